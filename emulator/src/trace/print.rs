//! Output of a trace as text, with register names.

use super::{By, Event, Record};
use crate::nic::RegMap;
use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, Write};
use std::sync::OnceLock;

/// Selection of the records to print.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// NICs whose records are printed; empty for all NICs.
    pub nics: Vec<usize>,
    /// Kinds of records that are printed, with the names in the file, for example `reg-write`;
    /// empty for all kinds.
    pub kinds: Vec<String>,
    /// Number of the packet whose path is printed; `None` for all records.
    pub packet: Option<u64>,
    /// True to print only register accesses by the host, without set-up, SNQ programs and other
    /// nodes.
    pub host_only: bool,
}

/// Returns the name of an event's kind, as trace files contain it.
pub fn kind(e: &Event) -> &'static str {
    match e {
        Event::RegWrite { .. } => "reg-write",
        Event::RegRead { .. } => "reg-read",
        Event::Descriptor { .. } => "descriptor",
        Event::Dma { .. } => "dma",
        Event::Msi { .. } => "msi",
        Event::Diagnostic { .. } => "diagnostic",
        Event::Inject { .. } => "inject",
        Event::Hop { .. } => "hop",
        Event::Deliver { .. } => "deliver",
        Event::Drop { .. } => "drop",
        Event::Link { .. } => "link",
        Event::ConfigWrite { .. } => "config-write",
        Event::State { .. } => "state",
    }
}

/// Names of all kinds that a filter can contain.
pub const KINDS: [&str; 13] = [
    "reg-write",
    "reg-read",
    "descriptor",
    "dma",
    "msi",
    "diagnostic",
    "inject",
    "hop",
    "deliver",
    "drop",
    "link",
    "config-write",
    "state",
];

impl Filter {
    /// Returns true if the filter selects the record.
    pub fn matches(&self, r: &Record) -> bool {
        let packet = match r.event {
            Event::Inject { id, .. }
            | Event::Hop { id, .. }
            | Event::Deliver { id, .. }
            | Event::Drop { id, .. } => Some(id),
            _ => None,
        };
        let by = match r.event {
            Event::RegWrite { by, .. } | Event::RegRead { by, .. } => Some(by),
            _ => None,
        };
        (self.nics.is_empty() || self.nics.contains(&r.nic))
            && (self.kinds.is_empty() || self.kinds.iter().any(|k| k == kind(&r.event)))
            && (self.packet.is_none() || self.packet == packet)
            && (!self.host_only || by.is_none_or(|b| b == By::Host))
    }
}

/// Returns the name of the register at a byte offset, without the prefix that all register names
/// have.
pub fn register_name(offset: u32) -> &'static str {
    static NAMES: OnceLock<HashMap<u32, String>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let mut names = HashMap::new();
        for r in RegMap::get().registers() {
            let name = r.name.strip_prefix("extoll_rf_").unwrap_or(&r.name);
            for i in 0..r.entries {
                let text = if r.entries > 1 {
                    format!("{name}[{i}]")
                } else {
                    name.to_owned()
                };
                names.insert(r.offset + i * r.stride, text);
            }
        }
        names
    });
    names
        .get(&(offset & !7))
        .map_or("(no register)", String::as_str)
}

fn port_name(p: u8) -> String {
    if p < 7 {
        format!("link {p}")
    } else {
        format!("n{}", p - 7)
    }
}

/// Returns one line of text for a record.
pub fn line(r: &Record) -> String {
    let by = |by: By| match by {
        By::Host => "",
        By::Remote => " (remote)",
        By::Snq => " (snq)",
        By::Management => " (management)",
    };
    let text = match &r.event {
        Event::RegWrite {
            by: b,
            offset,
            value,
        } => {
            format!(
                "W RF+{offset:#09x} = {value:#018x}  {}{}",
                register_name(*offset),
                by(*b)
            )
        }
        Event::RegRead {
            by: b,
            offset,
            value,
        } => {
            format!(
                "R RF+{offset:#09x} : {value:#018x}  {}{}",
                register_name(*offset),
                by(*b)
            )
        }
        Event::Descriptor { port, vpid, words } => {
            let words: Vec<String> = words.iter().map(|w| format!("{w:016x}")).collect();
            format!(
                "descriptor {} vpid {vpid}: {}",
                if *port == 0 { "velo" } else { "rma" },
                words.join(" ")
            )
        }
        Event::Dma { write, addr, len } => format!(
            "dma {} {addr:#x} {len} bytes",
            if *write { "write" } else { "read" }
        ),
        Event::Msi { vector } => format!("msi {vector}"),
        Event::Diagnostic { text } => format!("! {text}"),
        Event::Inject {
            id,
            src,
            dst,
            group,
            port,
            vpid,
            bytes,
            body,
        } => {
            let what = if *group { "group" } else { "node" };
            format!("packet {id}: {body} node {src} -> {what} {dst} vpid {vpid}, n{port}, {bytes} bytes")
        }
        Event::Hop {
            id,
            inport,
            outport,
        } => format!(
            "packet {id}: {} -> {}",
            port_name(*inport),
            port_name(*outport)
        ),
        Event::Deliver { id, port } => format!("packet {id}: delivered at n{port}"),
        Event::Drop { id, reason } => {
            let reason = serde_json::to_value(reason).ok();
            format!(
                "packet {id}: DROPPED, {}",
                reason.as_ref().and_then(|r| r.as_str()).unwrap_or("?")
            )
        }
        Event::Link { port, up } => format!("link {port} {}", if *up { "up" } else { "down" }),
        Event::ConfigWrite { offset, data } => {
            let hex: Vec<String> = data.iter().rev().map(|b| format!("{b:02x}")).collect();
            format!("config W {offset:#05x} = 0x{}", hex.concat())
        }
        Event::State { text } => format!("* {text}"),
    };
    format!("{:>14.6} ms  nic {:<3} {text}", r.t as f64 / 1e6, r.nic)
}

/// Writes the selected records of a trace to `out` as text. If a line is not a record, the error
/// names the line. If the last line is truncated, the output reports that and ends. The last line
/// is truncated while the emulator runs, or after it was killed.
pub fn print(input: impl BufRead, out: &mut impl Write, filter: &Filter) -> anyhow::Result<()> {
    let mut lines = input.lines().enumerate().peekable();
    let (mut shown, mut nics, mut kinds) = (false, BTreeSet::new(), BTreeSet::new());
    while let Some((n, l)) = lines.next() {
        match Record::parse(&l?) {
            Ok(r) if filter.matches(&r) => {
                shown = true;
                writeln!(out, "{}", line(&r))?;
            }
            Ok(r) => {
                nics.insert(r.nic.to_string());
                kinds.insert(kind(&r.event).to_owned());
            }
            Err(_) if n > 0 && lines.peek().is_none() => {
                writeln!(out, "(the last record is incomplete)")?
            }
            Err(e) => anyhow::bail!("line {}: not a trace record: {e}", n + 1),
        }
    }
    if !shown && !nics.is_empty() {
        let list = |set: BTreeSet<String>| Vec::from_iter(set).join(", ");
        let (nics, kinds) = (list(nics), list(kinds));
        writeln!(
            out,
            "(no record matches; the trace has records of kinds {kinds}, NICs {nics})"
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_filters() {
        assert_eq!(register_name(0x8050), "info_rf_scratchpad_scratchpad[3]");
        assert_eq!(register_name(0x1_0068), "snq_rf_execute");
        assert_eq!(register_name(0x7_fff8), "(no register)");
        let write =
            r#"{"t":1000000,"nic":1,"kind":"reg-write","by":"host","offset":65640,"value":1}"#;
        let hop = r#"{"t":2,"nic":0,"kind":"hop","id":9,"inport":7,"outport":0}"#;
        let text = format!("{write}\n{hop}\n{{\"t\":2,");
        let show = |f: &Filter| {
            let mut out = Vec::new();
            print(text.as_bytes(), &mut out, f).unwrap();
            String::from_utf8(out).unwrap()
        };
        let all = show(&Filter::default());
        assert!(
            all.contains("snq_rf_execute")
                && all.contains("n0 -> link 0")
                && all.contains("incomplete"),
            "{all}"
        );
        let some = show(&Filter {
            nics: vec![0],
            ..Filter::default()
        });
        assert!(!some.contains("snq_rf_execute") && some.contains("packet 9"));
        let some = show(&Filter {
            kinds: vec!["reg-write".into()],
            ..Filter::default()
        });
        assert!(some.contains("snq_rf_execute") && !some.contains("packet 9"));
        let none = show(&Filter {
            nics: vec![9],
            ..Filter::default()
        });
        assert!(
            none.contains("no record matches") && none.contains("hop, reg-write, NICs 0, 1"),
            "{none}"
        );
        assert!(print(
            format!("garbage\n{hop}\n").as_bytes(),
            &mut Vec::new(),
            &Filter::default()
        )
        .is_err());
    }
}
