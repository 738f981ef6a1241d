// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `extoll-trace`: decodes the tracepoints of the driver.

use crate::choice::{is_at, Choice};
use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use extoll::rma::content;
use extoll::wire::rma::{Descriptor, Notification, NotificationType, Operation};
use extoll::wire::snq::TriggerEvent;
use extoll::wire::velo;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Prints the trace events of the Extoll driver (system "extoll" of tracefs), decoded. Needs root.
///
/// The program uses its own trace buffer and does not disturb other users of tracefs. Stop it with
/// Ctrl-C. The kernel drops events that arrive faster than the program reads them. The output has
/// a line with the number of dropped events at this position, regardless of filters. At the end,
/// the program prints the total number, and the exit status is 1.
///
/// Example: extoll-trace --events velo,error
///
/// Example: extoll-trace --nic 0000:02:00.0 --vpid 4 --duration 10
///
/// Example: extoll-trace --input trace.txt
#[derive(Parser, Debug)]
#[command(name = "extoll-trace", version, disable_version_flag = true)]
pub struct Args {
    /// Prints only these kinds of events.
    #[arg(short, long, value_enum, value_delimiter = ',')]
    events: Vec<Kind>,
    /// Prints only events of the NIC with this PCI address.
    #[arg(short = 'N', long)]
    nic: Option<String>,
    /// Prints only events of this VPID.
    #[arg(short = 'V', long)]
    vpid: Option<u8>,
    /// Prints the version. The short option -V selects a VPID.
    #[arg(long, action = clap::ArgAction::Version)]
    version: Option<bool>,
    /// Stops after this number of lines.
    #[arg(short, long)]
    count: Option<u64>,
    /// Stops after this number of seconds.
    #[arg(short = 'D', long, value_parser = crate::seconds)]
    duration: Option<Duration>,
    /// Prints one JSON object per line.
    #[arg(long)]
    json: bool,
    /// Decodes a file instead of the running kernel. The file contains output of trace-cmd report
    /// or of tracefs. The name "-" means the standard input.
    #[arg(short, long)]
    input: Option<PathBuf>,
    /// Directory of tracefs.
    #[arg(long, default_value = "/sys/kernel/tracing")]
    tracefs: PathBuf,
}

/// Kind of trace events.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// VELO messages sent and received.
    Velo,
    /// RMA commands and notifications.
    Rma,
    /// Interrupts of the NIC.
    Interrupt,
    /// Entries of the NIC's system notification queue.
    Event,
    /// Errors of all kinds.
    Error,
}

impl Kind {
    fn of(event: &str) -> Option<Self> {
        Some(match event.strip_prefix("extoll_")? {
            "velo_post" | "velo_complete" => Kind::Velo,
            "rma_post" | "rma_complete" => Kind::Rma,
            "interrupt" => Kind::Interrupt,
            "event" => Kind::Event,
            "error" => Kind::Error,
            _ => return None,
        })
    }
}

/// Parsed line of the trace.
#[derive(Debug, PartialEq)]
struct Record<'a> {
    task: &'a str,
    cpu: &'a str,
    time: &'a str,
    event: &'a str,
    fields: BTreeMap<&'a str, &'a str>,
}

impl<'a> Record<'a> {
    /// Parses a line of the trace. Returns `None` for lines that are not events of the driver.
    fn parse(line: &'a str) -> Option<Self> {
        let at = line.find(": extoll_")?;
        let (head, tail) = (&line[..at], &line[at + 2..]);
        let (event, rest) = tail.split_once(": ").unwrap_or((tail, ""));
        let (before, time) = head.rsplit_once(char::is_whitespace)?;
        let open = before.rfind('[')?;
        let cpu = before[open + 1..].split(']').next()?;
        Some(Self {
            task: before[..open].trim(),
            cpu,
            time,
            event: event.trim(),
            fields: rest
                .split_whitespace()
                .filter_map(|pair| pair.split_once('='))
                .collect(),
        })
    }

    fn hex(&self, name: &str) -> Option<u64> {
        u64::from_str_radix(self.fields.get(name)?, 16).ok()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.fields.get(name)?.parse().ok()
    }

    fn words<const N: usize>(&self) -> Option<[u64; N]> {
        let mut words = [0; N];
        let mut parts = self.fields.get("words")?.split(',');
        for word in &mut words {
            *word = u64::from_str_radix(parts.next()?, 16).ok()?;
        }
        Some(words)
    }

    /// Returns the PCI address of the NIC.
    fn nic(&self) -> Option<String> {
        let id = self.hex("nic")?;
        let (bus, device) = ((id >> 8) & 0xFF, id & 0xFF);
        Some(format!(
            "{:04x}:{bus:02x}:{:02x}.{}",
            id >> 16,
            device >> 3,
            device & 7
        ))
    }

    /// Returns a description of the event; `None` if fields are missing.
    fn describe(&self, reasons: &BTreeMap<u64, String>) -> Option<String> {
        let vpid = || self.number("vpid");
        Some(match self.event {
            "extoll_velo_post" => {
                format!(
                    "velo {:>3} send {}",
                    vpid()?,
                    velo_descriptor(self.hex("descriptor")?)
                )
            }
            "extoll_velo_complete" => {
                format!(
                    "velo {:>3} recv {}",
                    vpid()?,
                    velo_status(self.hex("status")?)
                )
            }
            "extoll_rma_post" => {
                format!("rma  {:>3} post {}", vpid()?, rma_descriptor(self.words()?))
            }
            "extoll_rma_complete" => {
                format!(
                    "rma  {:>3} note {}",
                    vpid()?,
                    rma_notification(self.words()?)
                )
            }
            "extoll_interrupt" => format!(
                "interrupt: {} entries, next {}",
                self.number("entries")?,
                self.number("read_pointer")?
            ),
            "extoll_event" => {
                let n = self.number("trigger")?;
                let event = u8::try_from(n).ok().and_then(TriggerEvent::from_number);
                format!(
                    "event {n} ({}) part {} word {:#x}",
                    event.map_or("unknown", |e| e.name()),
                    self.number("part")?,
                    self.hex("word")?
                )
            }
            "extoll_error" => {
                let n = self.number("reason")?;
                let text = reasons.get(&n).map_or("", String::as_str);
                format!("ERROR reason {n} {text} detail {:#x}", self.hex("detail")?)
            }
            _ => return None,
        })
    }
}

/// Returns the number of events that were lost before this line. The line has the form `CPU:1 [LOST
/// 5 EVENTS]` or `CPU 1 is empty … [LOST EVENTS]`. The number is 0 if the kernel does not know it.
/// Returns `None` for other lines.
fn lost(line: &str) -> Option<u64> {
    // The whole line must match, because the text of an event may contain such words.
    let line = line.trim();
    let mark = line.strip_prefix("CPU")?.strip_suffix(" EVENTS]")?;
    let (_, count) = mark.split_once("[LOST")?;
    let count = count.trim();
    if count.is_empty() {
        return Some(0);
    }
    count.parse().ok()
}

fn velo_descriptor(raw: u64) -> String {
    match velo::Descriptor::decode(raw) {
        Ok(d) => format!(
            "{} bytes to {}/{} tag {} mtt {}{}",
            d.len,
            d.target,
            d.vpid,
            d.tag,
            d.mtt.get(),
            if d.irq { " irq" } else { "" }
        ),
        Err(e) => format!("{raw:#018x}: {e}"),
    }
}

fn velo_status(raw: u64) -> String {
    match velo::Status::decode(raw) {
        Ok(Some(s)) => format!(
            "{} bytes from {} tag {} mtt {}{}",
            s.len,
            s.source,
            s.tag,
            s.mtt.get(),
            if s.err { " ERR" } else { "" }
        ),
        Ok(None) => "nothing".into(),
        Err(e) => format!("{raw:#018x}: {e}"),
    }
}

fn rma_descriptor(words: [u64; 3]) -> String {
    let d = match Descriptor::decode(words) {
        Ok(d) => d,
        Err(e) => return format!("{:#018x},{:#x},{:#x}: {e}", words[0], words[1], words[2]),
    };
    let mut text = match d.op {
        Operation::Get {
            len, remote, local, ..
        } => {
            format!("get {len} bytes {remote:#x} -> {local:#x}")
        }
        Operation::Put {
            len, local, remote, ..
        } => {
            format!("put {len} bytes {local:#x} -> {remote:#x}")
        }
        Operation::NotificationPut { class, value } => {
            format!("notify class {class} value {value:#x}")
        }
        Operation::ImmediatePut { len, remote, value } => {
            format!("immediate put {len} bytes {value:#x} -> {remote:#x}")
        }
        Operation::Lock {
            number,
            compare,
            add,
            ..
        } => {
            format!("lock {number} if <= {compare} add {add}")
        }
    };
    let to = if d.modifiers.multicast {
        "group"
    } else {
        "node"
    };
    let _ = write!(text, " {to} {}/{}", d.node, d.vpid);
    for (set, name) in [
        (d.notify.requester, "req"),
        (d.notify.responder, "resp"),
        (d.notify.completer, "compl"),
        (d.modifiers.ntr, "ntr"),
    ] {
        if set {
            let _ = write!(text, " +{name}");
        }
    }
    text
}

fn rma_notification(words: [u64; 2]) -> String {
    let n = match Notification::decode(words) {
        Ok(Some(n)) => n,
        Ok(None) => return "nothing".into(),
        Err(e) => return format!("{:#x},{:#018x}: {e}", words[0], words[1]),
    };
    let kind = match n.kind {
        NotificationType::Requester => "requester",
        NotificationType::Responder => "responder",
        NotificationType::Completer => "completer",
    };
    let detail = content(words);
    let error = match n.error {
        0 => String::new(),
        bits => format!(" ERROR {bits}"),
    };
    format!(
        "{kind} {:?} {}/{} {detail}{error}",
        n.command, n.node, n.vpid
    )
}

/// Trace buffer of this program. Dropping the value removes the buffer.
struct Instance {
    dir: PathBuf,
}

impl Instance {
    fn new(tracefs: &Path) -> Result<Self> {
        let instances = tracefs.join("instances");
        fs::metadata(&instances).map_err(|e| {
            let tracefs = tracefs.display();
            let why = crate::why_unreadable(&e, &format!("mount -t tracefs tracefs {tracefs}"));
            anyhow::Error::new(e).context(format!("no tracefs at {tracefs} ({why})"))
        })?;
        let dir = instances.join(format!("extoll-trace-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Self { dir })
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.dir.join(file);
        fs::write(&path, value)
            .with_context(|| format!("cannot write {} (is extoll.ko loaded?)", path.display()))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // A buffer that cannot be removed only uses memory. Users can remove it with `rmdir`.
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Returns the texts of the numbered reasons, from the driver's counters in debugfs.
fn reasons() -> BTreeMap<u64, String> {
    extoll::nics(Path::new("/"))
        .iter()
        .filter_map(|nic| fs::read_to_string(nic.debugfs.join("counters")).ok())
        .flat_map(|text| parse_reasons(&text))
        .collect()
}

fn parse_reasons(text: &str) -> Vec<(u64, String)> {
    let one = |line: &str| {
        let rest = line.strip_prefix("reason ")?;
        let (number, rest) = rest.split_once(' ')?;
        let (_, name) = rest.split_once(' ')?;
        Some((number.parse().ok()?, name.to_string()))
    };
    text.lines().filter_map(one).collect()
}

/// Prints the events that match the filters.
struct Printer<'a> {
    args: &'a Args,
    reasons: BTreeMap<u64, String>,
    printed: u64,
    /// Number of gaps in the trace, and number of lost events that the kernel counted.
    gaps: u64,
    lost: u64,
}

impl<'a> Printer<'a> {
    fn new(args: &'a Args, reasons: BTreeMap<u64, String>) -> Self {
        Self {
            args,
            reasons,
            printed: 0,
            gaps: 0,
            lost: 0,
        }
    }

    fn gap(&mut self, count: u64, line: &str, out: &mut impl Write) -> Result<()> {
        self.gaps += 1;
        self.lost += count;
        if self.args.json {
            let object =
                serde_json::json!({ "event": "lost", "count": count, "text": line.trim() });
            writeln!(out, "{object}")?;
        } else {
            writeln!(out, "--- {} ---", line.trim())?;
        }
        Ok(())
    }

    /// Returns the message about lost events that ends the output.
    fn verdict(&self) -> Option<String> {
        let places = match self.gaps {
            0 => return None,
            1 => "in one place".to_string(),
            n => format!("in {n} places"),
        };
        Some(match self.lost {
            0 => format!("events were lost {places}: the trace is not complete"),
            n => format!("{n} events were lost {places}: the trace is not complete"),
        })
    }

    /// Prints a line if it matches the filters. Returns true when the requested number of lines has
    /// been printed.
    fn line(&mut self, line: &str, out: &mut impl Write) -> Result<bool> {
        if let Some(count) = lost(line) {
            self.gap(count, line, out)?;
            return Ok(false);
        }
        let Some(record) = Record::parse(line) else {
            return Ok(false);
        };
        let args = self.args;
        let kind = Kind::of(record.event);
        let wanted = (args.events.is_empty() || kind.is_some_and(|k| args.events.contains(&k)))
            && args
                .nic
                .as_ref()
                .is_none_or(|n| record.nic().is_some_and(|nic| is_at(&nic, n)))
            && args
                .vpid
                .is_none_or(|v| record.number("vpid") == Some(v.into()));
        if !wanted {
            return Ok(false);
        }
        let what = record
            .describe(&self.reasons)
            .unwrap_or_else(|| format!("{} {:?}", record.event, record.fields));
        let nic = record.nic().unwrap_or_default();
        if args.json {
            let object = serde_json::json!({
                "time": record.time, "cpu": record.cpu.parse::<u32>().ok(), "task": record.task, "nic": nic,
                "event": record.event, "fields": record.fields, "text": what,
            });
            writeln!(out, "{object}")?;
        } else {
            writeln!(
                out,
                "{:>14} {} {:<18} {nic} {what}",
                record.time, record.cpu, record.task
            )?;
        }
        self.printed += 1;
        Ok(args.count == Some(self.printed))
    }
}

/// Runs the program.
pub fn run(args: Args) -> Result<ExitCode> {
    let mut printer = Printer::new(&args, reasons());
    trace(&args, &mut printer)?;
    let Some(verdict) = printer.verdict() else {
        return Ok(ExitCode::SUCCESS);
    };
    crate::say(&format!("extoll-trace: {verdict}"));
    Ok(ExitCode::from(1))
}

fn trace(args: &Args, printer: &mut Printer) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if let Some(path) = &args.input {
        let input: Box<dyn Read> = match path.as_os_str().to_str() {
            Some("-") => Box::new(std::io::stdin()),
            _ => Box::new(
                File::open(path).with_context(|| format!("cannot open {}", path.display()))?,
            ),
        };
        // The name of a task may be invalid UTF-8.
        for line in BufReader::new(input).split(b'\n') {
            if printer.line(&String::from_utf8_lossy(&line?), &mut out)? {
                break;
            }
        }
        out.flush()?;
        return Ok(());
    }
    if args.nic.is_some() {
        // The program must fail if the NIC does not exist, because no event would ever match.
        let nic = args.nic.clone();
        let (device, root) = (None, "/".into());
        Choice { nic, device, root }.nics()?;
    }
    let instance = Instance::new(&args.tracefs)?;
    instance.write("events/extoll/enable", "1")?;
    let pipe = instance.dir.join("trace_pipe");
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut pipe = OpenOptions::new()
        .read(true)
        .custom_flags(nonblocking)
        .open(&pipe)
        .with_context(|| format!("cannot open {}", pipe.display()))?;
    crate::say("tracing; stop with Ctrl-C");
    let end = args.duration.map(|d| Instant::now() + d);
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, stopped.clone())?;
    }
    let (mut rest, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        match pipe.read(&mut chunk) {
            Ok(0) => std::thread::sleep(Duration::from_millis(50)),
            Ok(n) => rest.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                out.flush()?;
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e).context("cannot read the trace"),
        }
        while let Some(at) = rest.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = rest.drain(..=at).collect();
            if printer.line(&String::from_utf8_lossy(&line), &mut out)? {
                return Ok(());
            }
        }
        if stopped.load(Ordering::Relaxed) || end.is_some_and(|end| Instant::now() >= end) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn text(line: &str) -> String {
        let reasons = parse_reasons("interrupts 3\nreason 10 0 (packets were dropped, replay)\n");
        Record::parse(line)
            .unwrap()
            .describe(&reasons.into_iter().collect())
            .unwrap()
    }

    #[test]
    fn records_are_taken_apart() {
        Args::command().debug_assert();
        let line = "    kworker/0:1-12      [001] d.h1.  123.456789: extoll_interrupt: nic=00010210 entries=2 read_pointer=7\n";
        let r = Record::parse(line).unwrap();
        assert_eq!(
            (r.task, r.cpu, r.time, r.event),
            ("kworker/0:1-12", "001", "123.456789", "extoll_interrupt")
        );
        assert_eq!(r.nic().unwrap(), "0001:02:02.0");
        assert_eq!(text(line), "interrupt: 2 entries, next 7");
        assert_eq!(Record::parse("# tracer: nop"), None);
        assert_eq!(Record::parse("x: extoll_"), None);
        assert_eq!(Record::parse("CPU:0 [LOST 5 EVENTS]"), None);
    }

    #[test]
    fn lost_events_are_shown_and_counted() {
        assert_eq!(lost("CPU:0 [LOST 5 EVENTS]\n"), Some(5));
        assert_eq!(lost("CPU:12 [LOST EVENTS]"), Some(0));
        assert_eq!(lost("CPU 3: [LOST 7 EVENTS]"), Some(7));
        for other in [
            "a-1 [000] d 1.0: extoll_error: nic=1 [LOST 5 EVENTS]",
            "CPU:0 [LOST x EVENTS]",
            "CPU:0",
            "",
        ] {
            assert_eq!(lost(other), None, "{other}");
        }
        for options in [&["-e", "error", "-V", "3", "-c", "1"][..], &["--json"]] {
            let args = Args::parse_from([&["extoll-trace"], options].concat());
            let mut printer = Printer::new(&args, BTreeMap::new());
            assert_eq!(printer.verdict(), None);
            let mut out = Vec::new();
            // Lines about lost events do not count as requested lines.
            assert!(!printer.line("CPU:0 [LOST 5 EVENTS]\n", &mut out).unwrap());
            assert!(!printer.line("CPU:1 [LOST 6 EVENTS]\n", &mut out).unwrap());
            let out = String::from_utf8(out).unwrap();
            assert_eq!(out.lines().count(), 2, "{out}");
            assert!(out.contains("LOST 5 EVENTS"), "{out}");
            let verdict = printer.verdict().unwrap();
            assert!(
                verdict.starts_with("11 events were lost in 2 places"),
                "{verdict}"
            );
        }
    }

    #[test]
    fn messages_and_commands_are_decoded() {
        let head = " <idle>-0 [000] d.h1. 1.000001: ";
        let descriptor = (120u64 << 48) | (7 << 40) | (1 << 34) | (254 << 16) | 3;
        assert_eq!(
            text(&format!(
                "{head}extoll_velo_post: nic=00000010 vpid=254 slot=3 descriptor={descriptor:016x}"
            )),
            "velo 254 send 120 bytes to node 3/254 tag 7 mtt 0 irq"
        );
        assert_eq!(
            text(&format!(
                "{head}extoll_velo_complete: nic=00000010 vpid=9 slot=3 status=0000000000000000"
            )),
            "velo   9 recv nothing"
        );
        let word0 = (99u64 << 40) | (5 << 32) | (1 << 16) | (8 << 8) | (2 << 2) | 3;
        assert_eq!(
            text(&format!("{head}extoll_rma_post: nic=00000010 vpid=4 words={word0:016x},00000000000000aa,00000000000000bb")),
            "rma    4 post put 100 bytes 0xaa -> 0xbb node 1/8 +req +compl"
        );
        let word1 = (2u64 << 51) | (1 << 48) | (6 << 32) | (9 << 23) | 99 | (1 << 61);
        assert_eq!(
            text(&format!("{head}extoll_rma_complete: nic=00000010 vpid=4 slot=0 words=00000000000000aa,{word1:016x}")),
            "rma    4 note requester BytePut 6/9 address 0xaa size 100 ERROR 1"
        );
        assert_eq!(
            text(&format!(
                "{head}extoll_error: nic=00000010 reason=10 detail=0000000000000004"
            )),
            "ERROR reason 10 (packets were dropped, replay) detail 0x4"
        );
        assert!(text(&format!(
            "{head}extoll_event: nic=00000010 trigger=23 part=0 word=0000000000000001"
        ))
        .starts_with("event 23 ("));
    }

    #[test]
    fn filters_choose() {
        let lines = "a-1 [000] d 1.0: extoll_velo_complete: nic=00000010 vpid=9 slot=3 status=0000000000000000\n\
                     a-1 [000] d 1.1: extoll_velo_complete: nic=00000018 vpid=8 slot=3 status=0000000000000000\n\
                     a-1 [000] d 1.2: extoll_error: nic=00000010 reason=1 detail=0000000000000000\n";
        let run = |options: &[&str]| {
            let args = Args::parse_from([&["extoll-trace"], options].concat());
            let mut printer = Printer::new(&args, BTreeMap::new());
            let mut out = Vec::new();
            for line in lines.lines() {
                if printer.line(line, &mut out).unwrap() {
                    break;
                }
            }
            String::from_utf8(out).unwrap()
        };
        assert_eq!(run(&[]).lines().count(), 3);
        assert_eq!(run(&["-V", "9"]).lines().count(), 1);
        assert_eq!(run(&["-e", "error"]).lines().count(), 1);
        for address in ["0000:00:03.0", "00:03.0"] {
            assert!(run(&["-N", address]).contains("velo   8"), "{address}");
        }
        assert_eq!(run(&["-N", "0:03.0"]), "");
        assert_eq!(run(&["-c", "2"]).lines().count(), 2);
        let json = run(&["--json", "-c", "1"]);
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["fields"]["vpid"], "9");
        assert_eq!(value["cpu"], 0);
    }
}
