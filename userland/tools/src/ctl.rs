// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `extollctl`: shows and changes NICs, links, ports, counters and registers.

use crate::accel;
use crate::choice::{directory, Choice};
use crate::table::table;
use anyhow::{bail, Result};
use clap::{Parser, Subcommand};
use extoll::wire::ids::{NodeId, RegOffset};
use extoll::wire::regs::lp;
use extoll::wire::regs::map::{Field, Register, PREFIX};
use extoll::{AccessMethod, Nic, RegisterFile};
use rustix::io::Errno;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Shows and changes the state of this machine's Extoll NICs.
///
/// "list" and "reg list" work for all users. All other subcommands read debugfs or registers and
/// need root.
///
/// "list", "ports" and "counters" apply to all NICs unless one is selected. "links", "reg read" and
/// "reg write" apply to one NIC. If there are several, select one with --nic or --device.
///
/// Example: extollctl list
///
/// Example: extollctl links --node 3
///
/// Example: extollctl --json counters --all
///
/// Example: extollctl reg read info_rf_node
#[derive(Parser, Debug)]
#[command(name = "extollctl", version)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    choice: Choice,
    /// Prints JSON instead of tables.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Lists the NICs with address, driver, node, network, interfaces and device files.
    ///
    /// Example: extollctl list
    List,
    /// Shows the links of a node with state, neighbour, packets and retransmissions.
    ///
    /// Example: extollctl links --node 3
    Links {
        /// Number of another node, which is accessed through the fabric. The default is this node.
        #[arg(short, long)]
        node: Option<u16>,
    },
    /// Shows the open ports with unit, VPID, counters, and the process and user that opened the
    /// port. Ports of the kernel have no process and user.
    ///
    /// Example: extollctl ports
    Ports,
    /// Shows the counters of the driver.
    ///
    /// Example: extollctl counters --all
    Counters {
        /// Shows all counters, including those that are 0.
        #[arg(short, long)]
        all: bool,
    },
    /// Borrows and lends PCIe devices of nodes. Needs the module vpci, and root.
    ///
    /// Example: extollctl accel list --node 3
    Accel {
        #[command(subcommand)]
        verb: accel::Verb,
    },
    /// Lists, reads and writes registers by name or offset.
    ///
    /// Example: extollctl reg list node
    ///
    /// Example: extollctl reg read info_rf_node --node 3
    Reg {
        #[command(subcommand)]
        verb: RegVerb,
        /// Number of the node whose registers are accessed. The default is this node.
        #[arg(short, long, global = true)]
        node: Option<u16>,
        /// Timeout in microseconds for accesses to another node. The default is 1000000.
        #[arg(long, global = true)]
        timeout_us: Option<u64>,
    },
}

#[derive(Subcommand, Debug)]
enum RegVerb {
    /// Lists names and offsets of the registers whose names contain all of the given words.
    ///
    /// Example: extollctl reg list lp0 status
    List {
        /// Words that must occur in the names.
        words: Vec<String>,
    },
    /// Reads a register and shows its value and fields.
    ///
    /// Example: extollctl reg read 0x8008 --node 3
    Read {
        /// Name or offset (0x…) of the register.
        register: String,
        /// Index of the element in an array of registers.
        #[arg(short, long, default_value_t = 0)]
        index: u32,
        /// Reads the register even if the read changes its value.
        #[arg(long)]
        force: bool,
    },
    /// Writes a register. A wrong value can take down the node or the whole network.
    ///
    /// Example: extollctl reg write 0x8058 1
    Write {
        /// Name or offset (0x…) of the register.
        register: String,
        /// Value, decimal or 0x….
        #[arg(value_parser = crate::number)]
        value: u64,
        /// Index of the element in an array of registers.
        #[arg(short, long, default_value_t = 0)]
        index: u32,
    },
}

/// Runs the program.
pub fn run(args: Args) -> Result<ExitCode> {
    let (value, text) = output(&args)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&value)?)?;
    } else {
        write!(out, "{text}")?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Runs a subcommand. Returns its output as JSON and as text.
fn output(args: &Args) -> Result<(Value, String)> {
    match &args.verb {
        Verb::List => list(args),
        Verb::Links { node } => links(args, *node),
        Verb::Ports => ports(args),
        Verb::Counters { all } => counters(args, *all),
        Verb::Accel { verb } => accel::run(verb, &args.choice),
        Verb::Reg {
            verb,
            node,
            timeout_us,
        } => reg(args, verb, *node, *timeout_us),
    }
}

/// Formats rows with a heading. Replaces empty cells by dashes.
fn rows(heading: &[&str], rows: Vec<Vec<String>>) -> String {
    let dash = |cell: String| if cell.is_empty() { "-".into() } else { cell };
    let mut all = vec![heading.iter().map(|h| h.to_string()).collect::<Vec<_>>()];
    all.extend(rows.into_iter().map(|r| r.into_iter().map(dash).collect()));
    table(&all)
}

/// Returns the paths of the files in a directory.
fn files(dir: &String) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut all: Vec<String> = entries.map(|e| e.path().display().to_string()).collect();
    all.sort();
    all
}

fn list(args: &Args) -> Result<(Value, String)> {
    let (mut values, mut lines, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for nic in args.choice.nics()? {
        let dir = directory(&nic, &args.choice.root).map(|d| d.display().to_string());
        let files = dir.as_ref().map(files).unwrap_or_default();
        let status = nic.status();
        let field = |name: &str| {
            let status = status.as_ref();
            status
                .and_then(|s| s.fields.get(name).cloned())
                .unwrap_or_default()
        };
        values.push(json!({
            "pci": nic.pci, "device_id": nic.device_id, "revision": nic.revision, "driver": nic.driver,
            "numa_node": nic.numa_node, "interfaces": nic.interfaces,
            "status": status.as_ref().map(|s| &s.fields), "device": dir, "device_files": files,
        }));
        names.extend(files);
        lines.push(vec![
            nic.pci.clone(),
            format!("{:04x} rev {:02x}", nic.device_id, nic.revision),
            nic.driver.clone().unwrap_or_default(),
            field("node"),
            field("network"),
            nic.interfaces.join(","),
            nic.numa_node.to_string(),
            dir.unwrap_or_default(),
        ]);
    }
    let heading = [
        "NIC",
        "device",
        "driver",
        "node",
        "network",
        "interfaces",
        "NUMA",
        "files",
    ];
    let mut text = rows(&heading, lines);
    if values.is_empty() {
        text = "no Extoll NIC\n".into();
    }
    if !names.is_empty() {
        text += &format!("device files: {}\n", names.join(" "));
    }
    Ok((json!({ "nics": values, "device_files": names }), text))
}

fn debugfs(nic: &Nic, file: &str) -> Result<String> {
    let path = nic.debugfs.join(file);
    fs::read_to_string(&path).map_err(|e| {
        let why = crate::why_unreadable(&e, "mount -t debugfs debugfs /sys/kernel/debug");
        anyhow::Error::new(e).context(format!("cannot read {} ({why})", path.display()))
    })
}

/// Parses a line of the debugfs file `ports`: unit, then pairs of name and value.
fn parse_port(line: &str) -> Option<(String, Vec<(String, String)>)> {
    let mut words = line.split_whitespace();
    let unit = words.next()?.to_lowercase();
    let mut pairs = Vec::new();
    while let Some(name) = words.next() {
        pairs.push((name.to_string(), words.next()?.to_string()));
    }
    Some((unit, pairs))
}

/// Returns the names of users by user ID.
fn users(root: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(root.join("etc/passwd")).unwrap_or_default();
    let user = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_string();
        Some((fields.nth(1)?.to_string(), name))
    };
    // If an ID has several names, the first name is used, as in the functions of libc.
    text.lines().rev().filter_map(user).collect()
}

fn ports(args: &Args) -> Result<(Value, String)> {
    let (mut values, mut lines) = (Vec::new(), Vec::new());
    let users = users(&args.choice.root);
    for nic in args.choice.driven()? {
        for line in debugfs(&nic, "ports")?.lines() {
            let Some((unit, pairs)) = parse_port(line) else {
                continue;
            };
            let get = |name: &str| {
                pairs
                    .iter()
                    .find(|(n, _)| n == name)
                    .map(|(_, v)| v.clone())
                    .unwrap_or_default()
            };
            let mut row = vec![nic.pci.clone(), unit.clone()];
            row.extend(PORT_COLUMNS.iter().map(|c| match *c {
                "user" => users.get(&get(c)).cloned().unwrap_or_else(|| get(c)),
                _ => get(c),
            }));
            lines.push(row);
            let mut value: serde_json::Map<String, Value> = pairs
                .iter()
                .map(|(n, v)| (n.clone(), v.parse::<u64>().map_or(json!(v), |v| json!(v))))
                .collect();
            value.insert("nic".into(), json!(nic.pci));
            value.insert("unit".into(), json!(unit));
            values.push(Value::Object(value));
        }
    }
    let heading: Vec<&str> = ["NIC", "unit"].into_iter().chain(PORT_COLUMNS).collect();
    Ok((json!(values), rows(&heading, lines)))
}

const PORT_COLUMNS: [&str; 10] = [
    "vpid",
    "pid",
    "user",
    "tx",
    "posted",
    "received",
    "errors",
    "retries",
    "lost",
    "interrupts",
];

/// Parses a line of the debugfs file `counters`: name, value, text. The names of reasons and events
/// contain a number.
fn parse_counter(line: &str) -> Option<(String, u64, String)> {
    let (words, text) = line.split_once('(').unwrap_or((line, ""));
    let (name, value) = words.trim().rsplit_once(' ')?;
    let text = text.strip_suffix(')').unwrap_or(text);
    Some((name.to_string(), value.parse().ok()?, text.to_string()))
}

fn counters(args: &Args, all: bool) -> Result<(Value, String)> {
    let (mut values, mut lines) = (Vec::new(), Vec::new());
    for nic in args.choice.driven()? {
        let text = debugfs(&nic, "counters")?;
        for (name, value, text) in text.lines().filter_map(parse_counter) {
            values.push(json!({ "nic": nic.pci, "name": name, "value": value, "text": text }));
            if all || value > 0 {
                lines.push(vec![nic.pci.clone(), value.to_string(), name, text]);
            }
        }
    }
    Ok((
        json!(values),
        rows(&["NIC", "value", "counter", "meaning"], lines),
    ))
}

/// Access to the registers of one node.
struct Registers {
    file: RegisterFile,
    node: NodeId,
}

impl Registers {
    fn open(args: &Args, node: Option<u16>, timeout_us: Option<u64>) -> Result<Self> {
        let device = args
            .choice
            .the_device(std::env::var_os("EXTOLL_DEV").is_some())?;
        let file = RegisterFile::open(&device).map_err(|e| {
            let forbidden = e.errno() == Errno::ACCESS.raw_os_error();
            let e = anyhow::Error::new(e);
            match forbidden {
                true => e.context(
                    "only root may access registers, through the driver's register device",
                ),
                false => e,
            }
        })?;
        match node {
            None => file.set_methods(AccessMethod::Local, AccessMethod::Local)?,
            Some(_) => file.set_methods(AccessMethod::Rma, AccessMethod::Rma)?,
        }
        file.set_timeout(timeout_us.map_or(TIMEOUT, Duration::from_micros))?;
        Ok(Self {
            file,
            // Local access requires a node ID argument, but ignores its value.
            node: NodeId(node.unwrap_or(0)),
        })
    }

    fn read(&self, register: RegOffset) -> Result<u64> {
        Ok(self.file.read(self.node, register)?)
    }
}

fn links(args: &Args, node: Option<u16>) -> Result<(Value, String)> {
    let registers = Registers::open(args, node, None)?;
    let (mut values, mut lines) = (Vec::new(), Vec::new());
    for i in 0..LINKS {
        let status = lp::Status(registers.read(lp::status(i))?);
        let ids = lp::Ids(registers.read(lp::ids(i))?);
        let counter = registers.read(lp::counter(i))?;
        let again = lp::RetransmissionCounters(registers.read(lp::retransmission_counters(i))?);
        let (received, sent) = (counter as u32, (counter >> 32) as u32);
        let state = match (status.enable(), status.ready()) {
            (false, _) => "disabled",
            (true, false) => "down",
            (true, true) => "up",
        };
        let (guid, remote, port) = (ids.remote_guid(), ids.remote_node_id(), ids.remote_lp_id());
        let errors: Vec<&str> = [
            (status.cell_crc_error(), "cell-crc"),
            (status.packet_crc_error(), "packet-crc"),
            (status.packet_length_error(), "length"),
            (status.protocol_error(), "protocol"),
            (status.lp_in_fifo_full(), "fifo-full"),
        ]
        .into_iter()
        .filter_map(|(set, name)| set.then_some(name))
        .collect();
        values.push(json!({
            "link": i, "state": state, "remote_guid": guid, "remote_node": remote, "remote_port": port,
            "received": received, "sent": sent, "retransmissions": again.retransmissions(),
            "errors": again.errors(), "error_flags": errors,
        }));
        lines.push(vec![
            i.to_string(),
            state.to_string(),
            if guid == 0 && remote == 0 {
                String::new()
            } else {
                format!("{remote}.{port}")
            },
            sent.to_string(),
            received.to_string(),
            again.retransmissions().to_string(),
            again.errors().to_string(),
            errors.join(","),
        ]);
    }
    let heading = [
        "link",
        "state",
        "neighbour",
        "sent",
        "received",
        "retransmitted",
        "errors",
        "flags",
    ];
    Ok((json!(values), rows(&heading, lines)))
}

const LINKS: u32 = 7;
/// Default timeout of accesses to another node. It is a thousand times the driver's timeout,
/// because a person waits for the result.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Finds a register by its offset, or by its name with or without the vendor's prefix.
fn find(text: &str, index: u32) -> Result<(Option<Register>, RegOffset)> {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        let offset = crate::number(text).map_err(anyhow::Error::msg)?;
        let offset = RegOffset(u32::try_from(offset).unwrap_or(u32::MAX));
        if !offset.is_valid() {
            bail!(
                "{text} is not a register offset: offsets are multiples of 8 below {:#x}",
                RegOffset::WINDOW
            );
        }
        return match (Register::find(offset), index) {
            (found, 0) => Ok((found.map(|(register, _)| register), offset)),
            // The index counts from the first element of the array, as it does for a name.
            (Some((register, 0)), _) => element(register, index),
            _ => bail!("no array begins at {text}: omit --index"),
        };
    }
    let name = text.strip_prefix(PREFIX).unwrap_or(text);
    let exact: Vec<Register> = Register::all().filter(|r| r.to_string() == name).collect();
    let [register] = exact[..] else {
        let like: Vec<String> = Register::all()
            .map(|r| r.to_string())
            .filter(|r| r.contains(name))
            .take(5)
            .collect();
        if like.is_empty() {
            bail!("no register {text}");
        }
        bail!("no register {text}; similar names: {}", like.join(", "));
    };
    element(register, index)
}

fn element(register: Register, index: u32) -> Result<(Option<Register>, RegOffset)> {
    let offset = register.offset(index);
    if !offset.is_valid() {
        bail!("{register} has {} elements", register.entries());
    }
    Ok((Some(register), offset))
}

fn decode(register: Option<Register>, value: u64) -> (Vec<Value>, String) {
    let fields: Vec<Field> = register.iter().flat_map(|r| r.fields()).collect();
    let mut text = String::new();
    let mut values = Vec::new();
    for field in fields {
        let bits = field.of(value);
        text += &format!(
            "  {:<32} [{}:{}] {bits:#x}\n",
            field.name, field.msb, field.lsb
        );
        values
            .push(json!({ "name": field.name, "msb": field.msb, "lsb": field.lsb, "value": bits }));
    }
    (values, text)
}

fn reg(
    args: &Args,
    verb: &RegVerb,
    node: Option<u16>,
    timeout_us: Option<u64>,
) -> Result<(Value, String)> {
    match verb {
        RegVerb::List { words } => {
            args.choice.refuse("the list of registers")?;
            if node.is_some() || timeout_us.is_some() {
                bail!(
                    "the list of registers is the same for all nodes: omit --node and --timeout-us"
                );
            }
            let mut lines = Vec::new();
            let mut values = Vec::new();
            for r in Register::all() {
                let name = r.to_string();
                if !words.iter().all(|w| name.contains(w.as_str())) {
                    continue;
                }
                let access = format!("{:?}", r.access());
                values.push(json!({
                    "name": name, "offset": r.offset(0).get(), "entries": r.entries(), "stride": r.stride(), "access": access,
                }));
                lines.push(vec![
                    format!("{:#09x}", r.offset(0).get()),
                    access,
                    r.entries().to_string(),
                    name,
                ]);
            }
            if lines.is_empty() {
                bail!(
                    "no register name contains all of these words: {}",
                    words.join(" ")
                );
            }
            Ok((
                json!(values),
                rows(&["offset", "access", "elements", "name"], lines),
            ))
        }
        RegVerb::Read {
            register,
            index,
            force,
        } => {
            let (register, offset) = find(register, *index)?;
            if let Some(r) = register.filter(|r| r.is_destructive() && !force) {
                bail!("reading {r} changes it; use --force to read it");
            }
            let value = Registers::open(args, node, timeout_us)?.read(offset)?;
            let name = register.map(|r| r.to_string()).unwrap_or_default();
            let (fields, lines) = decode(register, value);
            Ok((
                json!({ "node": node, "name": name, "offset": offset.get(), "value": value, "fields": fields }),
                format!("{offset} {name} {value:#018x}\n{lines}"),
            ))
        }
        RegVerb::Write {
            register,
            value,
            index,
        } => {
            let (register, offset) = find(register, *index)?;
            if let Some(r) = register.filter(|r| !r.access().writes()) {
                bail!("{r} cannot be written");
            }
            let registers = Registers::open(args, node, timeout_us)?;
            registers.file.write(registers.node, offset, *value)?;
            Ok((
                json!({ "offset": offset.get(), "value": value }),
                String::new(),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choice::tests::{machine, ADDRESSES};
    use clap::CommandFactory;
    use std::path::Path;

    #[test]
    fn lines_of_debugfs_are_read() {
        Args::command().debug_assert();
        let (unit, pairs) =
            parse_port("Velo vpid 254 attached true tx Ready sent 5 committed 5 posted 261 full 0")
                .unwrap();
        assert_eq!(
            (unit.as_str(), &pairs[0].1[..], &pairs[5].0[..]),
            ("velo", "254", "posted")
        );
        assert_eq!(parse_port(""), None);
        assert_eq!(
            parse_counter("reason 7 3 (VELO status word with impossible length)"),
            Some((
                "reason 7".into(),
                3,
                "VELO status word with impossible length".into()
            ))
        );
        assert_eq!(
            parse_counter("interrupts 12"),
            Some(("interrupts".into(), 12, String::new()))
        );
        assert_eq!(parse_counter("nonsense"), None);
    }

    #[test]
    fn registers_have_names_and_offsets() {
        let (r, at) = find("nw_lp_top_rf_lp0_status", 0).unwrap();
        assert_eq!(at, lp::status(0));
        assert_eq!(find("extoll_rf_nw_lp_top_rf_lp0_status", 0).unwrap().1, at);
        let (by_offset, _) = find("0x460008", 0).unwrap();
        assert_eq!(by_offset.unwrap().to_string(), r.unwrap().to_string());
        assert!(decode(r, 3).1.contains("ready"));
        assert!(find("lp0_status", 0)
            .unwrap_err()
            .to_string()
            .contains("nw_lp_top_rf_lp0_status"));
        for bad in [
            "nothing_like_it",
            "0x460009",
            "0x2000000",
            "99999999999999999999",
        ] {
            assert!(find(bad, 0).is_err(), "{bad}");
        }
        assert!(find("nw_lp_top_rf_lp0_status", 1).is_err());
    }

    #[test]
    fn elements_are_counted_from_a_name_and_from_an_offset() {
        let pad = "info_rf_scratchpad_scratchpad";
        let (register, first) = find(pad, 0).unwrap();
        let (_, third) = find(pad, 3).unwrap();
        assert_eq!(
            third.get() - first.get(),
            3 * register.as_ref().unwrap().stride()
        );
        let text = |offset: RegOffset| format!("{:#x}", offset.get());
        let (by_offset, at) = find(&text(first), 3).unwrap();
        assert_eq!(
            (by_offset.unwrap().to_string(), at),
            (register.unwrap().to_string(), third)
        );
        assert_eq!(find(&text(third), 0).unwrap().1, third);
        for (bad, index, why) in [
            (text(third), 1, "begins"),
            (text(first), 8, "8 elements"),
            ("0x460008".into(), 1, "1 elements"),
        ] {
            let error = find(&bad, index).unwrap_err().to_string();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    fn run_in(root: &Path, words: &[&str]) -> Result<(Value, String)> {
        let root = root.to_str().unwrap();
        let all = [&["extollctl", "--root", root], words].concat();
        output(&Args::try_parse_from(all)?)
    }

    #[test]
    fn every_verb_heeds_the_choice_of_a_nic() {
        let root = machine(&ADDRESSES);
        let run = |words: &[&str]| run_in(root.path(), words);
        let dev = root.path().join("dev/extoll1");
        let dir = dev.to_str().unwrap();
        for choice in [["-N", ADDRESSES[1]], ["-d", dir]] {
            let run = |words: &[&str]| run(&[&choice, words].concat());
            let (value, text) = run(&["list"]).unwrap();
            assert_eq!(value["nics"].as_array().map(Vec::len), Some(1));
            assert_eq!(value["nics"][0]["device"], dir);
            assert_eq!(value["device_files"].as_array().map(Vec::len), Some(3));
            assert!(
                text.contains("extoll1/rma2") && !text.contains("extoll/"),
                "{text}"
            );
            assert_eq!(run(&["counters"]).unwrap().0[0]["value"], 11);
            assert_eq!(run(&["ports"]).unwrap().0[0]["vpid"], 1);
            // Opening fails because these files are not devices. The error must contain the file of
            // the selected NIC.
            for verb in [
                &["links"][..],
                &["reg", "read", "0x8008"],
                &["reg", "write", "0x8058", "1"],
                &["reg", "--node", "1", "write", "0x8058", "1"],
            ] {
                let error = format!("{:#}", run(verb).unwrap_err());
                assert!(!error.contains("several"), "{error}");
                assert!(
                    error.contains("dev/extoll1/extoll_rf_access") || error.contains("method"),
                    "{error}"
                );
            }
            assert!(run(&["reg", "list", "lp0"]).is_err());
        }
        assert!(run(&["reg", "list", "lp0"]).is_ok());
        assert!(run(&["reg", "--node", "1", "list", "lp0"]).is_err());
        // A NIC must be selected, and only once.
        assert_eq!(
            run(&["counters"]).unwrap().0.as_array().map(Vec::len),
            Some(2)
        );
        for verb in [&["links"][..], &["reg", "write", "0x8058", "1"]] {
            let error = format!("{:#}", run(verb).unwrap_err());
            assert!(error.contains("several NICs"), "{error}");
        }
        assert!(run(&["-N", ADDRESSES[1], "reg", "-d", dir, "read", "0x8008"]).is_err());
    }

    #[test]
    fn a_machine_without_nic_says_so() {
        let root = tempfile::tempdir().unwrap();
        let args = Args::parse_from(["extollctl", "--root", root.path().to_str().unwrap(), "list"]);
        let (value, text) = list(&args).unwrap();
        assert_eq!(text, "no Extoll NIC\n");
        assert_eq!(value["nics"], json!([]));
    }
}
