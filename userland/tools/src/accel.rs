// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `extollctl accel`: PCIe devices that nodes borrow from each other by vpci.ko.

use crate::choice::Choice;
use crate::table::table;
use anyhow::{bail, ensure, Context, Result};
use clap::Subcommand;
use rustix::io::Errno;
use serde_json::{json, Map, Value};
use std::fmt;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const FILE: &str = "/dev/extoll_pci";
const DEVICES: &str = "/sys/bus/pci/devices";
const DRIVER: &str = "vpci";
/// Maximum time for which a command waits until the PCI core has bound a driver or a borrower has
/// returned a device.
const PATIENCE: Duration = Duration::from_secs(30);

/// Subcommand of `extollctl accel`.
#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Lists the devices that a node lends. Without --node, lists the devices that this node has
    /// borrowed, and those that it lends.
    ///
    /// Example: extollctl accel list --node 3
    List {
        /// Number of the node.
        #[arg(short, long)]
        node: Option<u16>,
    },
    /// Borrows a device of another node. Adds the device to this node's PCI tree and prints its PCI
    /// domain.
    ///
    /// Example: extollctl accel borrow --node 3 0000:02:00.0
    Borrow {
        /// Number of the node.
        #[arg(short, long)]
        node: u16,
        /// Device to borrow: its index in the node's list, or its PCI address on that node. Not
        /// required for an accelerator.
        #[arg(default_value = "0")]
        address: String,
    },
    /// Enrols a node as an accelerator, which is a NIC with a device but without a host. Must be
    /// repeated after each loss of power.
    ///
    /// Example: extollctl accel enrol --node 5
    Enrol {
        /// Number of the node.
        #[arg(short, long)]
        node: u16,
    },
    /// Returns a borrowed device to its lender. The driver on this node is unbound first.
    ///
    /// Example: extollctl accel return 0x10001
    Return {
        /// PCI domain of the device (0x10001).
        #[arg(value_parser = crate::number)]
        domain: u64,
    },
    /// Unbinds a device of this node from its driver and offers it to other nodes.
    ///
    /// Example: extollctl accel lend 0000:02:00.0
    Lend {
        /// PCI address of the device (0000:02:00.0).
        address: String,
    },
    /// Takes a device back from its borrower. A device of this node is then bound to its usual
    /// driver. With --node, takes back the device of an accelerator.
    ///
    /// Example: extollctl accel reclaim 0000:02:00.0
    ///
    /// Example: extollctl accel reclaim --node 5
    Reclaim {
        /// PCI address of the device (0000:02:00.0).
        #[arg(required_unless_present = "node", conflicts_with = "node")]
        address: Option<String>,
        /// Node of the accelerator.
        #[arg(short, long)]
        node: Option<u16>,
        /// Declares that all nodes which borrowed the accelerator are down or have no window to it.
        /// The same must be true for all accelerators that are joined with it. The numbers of their
        /// intervals are then used for other nodes.
        #[arg(long, requires = "node")]
        down: bool,
        /// Time in milliseconds that the borrower has to unbind its driver. After this time, the
        /// device cannot access the borrower any more.
        #[arg(long, default_value_t = 5000, conflicts_with = "node")]
        grace_ms: u32,
        /// Keeps offering the device to other nodes.
        #[arg(long, conflicts_with = "node")]
        keep: bool,
    },
    /// Joins the devices of two accelerators. The first device then accesses the second device
    /// directly, not through this node. Drivers can map the BARs of the second device
    /// (dma_map_resource).
    ///
    /// Example: extollctl accel join 0x10001 0x10002
    Join {
        /// PCI domain of the first device (0x10001).
        #[arg(value_parser = crate::number)]
        domain: u64,
        /// PCI domain of the second device (0x10002).
        #[arg(value_parser = crate::number)]
        with: u64,
    },
    /// Ends the access of a device to another device that "join" set up.
    ///
    /// Example: extollctl accel part 0x10001 0x10002
    Part {
        /// PCI domain of the first device (0x10001).
        #[arg(value_parser = crate::number)]
        domain: u64,
        /// PCI domain of the second device (0x10002).
        #[arg(value_parser = crate::number)]
        with: u64,
    },
    /// Declares that a node is switched off and has no access to resources of this node. The
    /// declaration must be true, because other nodes then get these resources.
    ///
    /// Example: extollctl accel down --node 5
    Down {
        /// Number of the node.
        #[arg(short, long)]
        node: u16,
    },
    /// Resets a device in the state "Broken", and offers it to other nodes again.
    ///
    /// Example: extollctl accel repair 0000:02:00.0
    Repair {
        /// PCI address of the device (0000:02:00.0).
        address: String,
    },
}

/// Error that the module returned for a command.
#[derive(Debug)]
struct CommandError(Errno);

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Errno::TIMEDOUT => "the node does not answer",
            Errno::BUSY => "somebody has the device",
            Errno::AGAIN => {
                "one of the nodes does not lend yet, because its module vpci, or that of this node, was loaded less than about 16 s ago: try again"
            }
            Errno::NXIO => "there is no such device",
            Errno::NOENT => "nobody has the device",
            Errno::EXIST => "the node is an accelerator already",
            Errno::ISCONN => "the devices are already joined",
            Errno::NOTCONN => "the devices are not joined",
            Errno::OPNOTSUPP => "the node of the device has a host",
            Errno::XDEV => "that node has a host, whose driver uses its NIC",
            Errno::NOSPC => "no intervals or no address space are left for the BARs of the device",
            Errno::IO => "the device does not work; see the kernel log",
            Errno::NODEV => "this node has no suitable NIC",
            Errno::MFILE => "the maximum number of devices is reached (parameter leases of vpci)",
            Errno::STALE => "the device was offered again since it was listed; list it again",
            Errno::PROTO => "the node has another version of vpci",
            Errno::PERM => "the lender does not permit it",
            other => return std::io::Error::from(other).fmt(f),
        })
    }
}

impl std::error::Error for CommandError {}

/// Sends a command to the module and returns its answer.
fn ask(command: &str) -> Result<String> {
    let mut file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(FILE)
        .map_err(|e| match e.kind() {
            ErrorKind::NotFound => anyhow::anyhow!("no {FILE}: is the module vpci loaded?"),
            _ => anyhow::Error::new(e).context(FILE),
        })?;
    file.write_all(command.as_bytes())
        .map_err(|e| match Errno::from_io_error(&e) {
            Some(errno) => CommandError(errno).into(),
            None => anyhow::Error::new(e),
        })?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// Sends a command about a device of a node. Adds a hint to some errors of the module.
fn ask_about(node: u16, index: &str, command: &str) -> Result<String> {
    ask(command).map_err(|e| {
        let hint = match e.downcast_ref() {
            Some(CommandError(Errno::BUSY)) => holder(node, index),
            Some(CommandError(Errno::TIMEDOUT)) => Some(format!(
                "either its module vpci is not loaded, or it is an accelerator that has not been enrolled since it was powered on \
                 (extollctl accel enrol --node {node})"
            )),
            _ => None,
        };
        match hint {
            Some(hint) => anyhow::anyhow!("{e}: {hint}"),
            None => e,
        }
    })
}

/// Returns a description of the node that has borrowed a device.
fn holder(node: u16, index: &str) -> Option<String> {
    let offered = parse(&ask(&format!("list node={node}")).ok()?);
    let found = offered.iter().find(|r| cell(r, "index") == index)?;
    let own = parse(&ask("leases").ok()?);
    let is_own = |r: &Map<String, Value>| {
        cell(r, "node") == node.to_string() && cell(r, "at") == cell(found, "at")
    };
    if own.iter().any(is_own) {
        return Some("this node; return it with 'extollctl accel return'".into());
    }
    let state = cell(found, "state");
    let by: String = state.chars().filter(char::is_ascii_digit).collect();
    (!by.is_empty()).then(|| format!("node {by}"))
}

/// Parses the `name=value` words of a line. Joins several values of a name with commas.
fn words(line: &str) -> Map<String, Value> {
    let mut all = Map::new();
    for (name, value) in line.split_whitespace().filter_map(|w| w.split_once('=')) {
        // A property with several values occurs once for each value.
        let value = match all.get(name).and_then(Value::as_str) {
            Some(before) => format!("{before},{value}"),
            None => value.to_owned(),
        };
        all.insert(name.to_owned(), value.into());
    }
    all
}

fn parse(text: &str) -> Vec<Map<String, Value>> {
    text.lines().map(words).collect()
}

fn cell(row: &Map<String, Value>, name: &str) -> String {
    let text = row.get(name).and_then(Value::as_str).unwrap_or_default();
    if text.is_empty() { "-" } else { text }.to_owned()
}

fn show(heading: &[&str], rows: &[Map<String, Value>]) -> String {
    let mut all = vec![heading.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>()];
    all.extend(
        rows.iter()
            .map(|r| heading.iter().map(|h| cell(r, h)).collect()),
    );
    table(&all)
}

fn list(node: Option<u16>) -> Result<(Value, String)> {
    const OFFER: [&str; 6] = ["index", "at", "id", "class", "bars", "state"];
    if let Some(node) = node {
        let rows = parse(&ask_about(node, "0", &format!("list node={node}"))?);
        let text = show(&OFFER, &rows);
        return Ok((json!({ "offered": rows }), text));
    }
    let (borrowed, lent) = (parse(&ask("leases")?), parse(&ask("lent")?));
    let text = format!(
        "borrowed\n{}lent\n{}",
        show(
            &["domain", "node", "at", "id", "class", "bars", "lease", "reaches"],
            &borrowed
        ),
        show(&OFFER[1..], &lent)
    );
    Ok((json!({ "borrowed": borrowed, "lent": lent }), text))
}

fn borrow(node: u16, device: &str) -> Result<(Value, String)> {
    let index = match device.parse::<u16>() {
        Ok(index) => index.to_string(),
        Err(_) => {
            let rows = parse(&ask_about(node, "0", &format!("list node={node}"))?);
            let found = rows.iter().find(|r| cell(r, "at") == device);
            let found = found.with_context(|| format!("node {node} lends no {device}"))?;
            cell(found, "index")
        }
    };
    let said = ask_about(node, &index, &format!("borrow node={node} index={index}"))?;
    let domain = said.split_whitespace().nth(1).context("no answer")?;
    Ok((json!({ "domain": domain }), said.clone()))
}

/// Returns the sysfs directory of a device.
fn directory(device: &str) -> Result<PathBuf> {
    ensure!(!device.contains('/'), "{device} is not a PCI address");
    let dir = Path::new(DEVICES).join(device);
    ensure!(dir.is_dir(), "there is no {device}");
    Ok(dir)
}

fn driver(dir: &Path) -> Option<String> {
    let link = fs::read_link(dir.join("driver")).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

/// Binds a device to the driver `name`. If `name` is empty, binds it to the driver that the kernel
/// selects.
fn rebind(device: &str, name: &str) -> Result<()> {
    let dir = directory(device)?;
    if driver(&dir).is_some() {
        fs::write(dir.join("driver/unbind"), device).context("unbind")?;
    }
    // A single line feed clears the driver override.
    fs::write(dir.join("driver_override"), format!("{name}\n")).context("driver_override")?;
    fs::write("/sys/bus/pci/drivers_probe", device).context("drivers_probe")?;
    Ok(())
}

fn lend(device: &str) -> Result<(Value, String)> {
    let dir = directory(device)?;
    // The module must answer before the device is unbound from its usual driver.
    ask("lent")?;
    rebind(device, DRIVER)?;
    let begun = Instant::now();
    while driver(&dir).as_deref() != Some(DRIVER) {
        if begun.elapsed() > Duration::from_secs(2) {
            // The driver did not bind, so the device is bound to its usual driver again.
            rebind(device, "")?;
            bail!("the driver {DRIVER} does not take {device}; see the kernel log");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok((json!({ "lent": device }), String::new()))
}

/// Returns the entry of a device of this node that is offered to other nodes.
fn kept(device: &str) -> Result<Option<Map<String, Value>>> {
    let rows = parse(&ask("lent")?);
    Ok(rows.into_iter().find(|r| cell(r, "at") == device))
}

fn repair(device: &str) -> Result<(Value, String)> {
    let found = kept(device)?.with_context(|| format!("{device} is not lent"))?;
    let state = cell(&found, "state");
    ensure!(state == "Broken", "{device} is not broken but {state}");
    ask(&format!("repair handle={}", cell(&found, "handle")))?;
    Ok((json!({ "repaired": device }), String::new()))
}

fn reclaim(device: &str, grace_ms: u32, keep: bool) -> Result<(Value, String)> {
    let found = kept(device)?.with_context(|| format!("{device} is not lent"))?;
    let handle = cell(&found, "handle");
    if cell(&found, "state").starts_with("Lent") {
        ask(&format!("reclaim handle={handle} grace_ms={grace_ms}"))?;
    }
    let begun = Instant::now();
    loop {
        let state = kept(device)?.map(|r| cell(&r, "state"));
        match state.as_deref() {
            Some("Free" | "Broken") | None => break,
            Some(state) if begun.elapsed() > PATIENCE + Duration::from_millis(grace_ms.into()) => {
                bail!("{device} was not returned in time: its state is {state}")
            }
            Some(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    if !keep {
        rebind(device, "")?;
    }
    Ok((json!({ "reclaimed": device }), String::new()))
}

/// Runs a subcommand. Returns its output as JSON and as text.
pub fn run(verb: &Verb, choice: &Choice) -> Result<(Value, String)> {
    ensure!(
        choice.nic.is_none() && choice.device.is_none(),
        "'accel' uses the first NIC: omit --nic and --device"
    );
    match verb {
        Verb::List { node } => list(*node),
        Verb::Borrow { node, address } => borrow(*node, address),
        Verb::Return { domain } => {
            ask(&format!("return domain={domain:#x}"))?;
            Ok((json!({ "returned": format!("{domain:#x}") }), String::new()))
        }
        Verb::Lend { address } => lend(address),
        Verb::Enrol { node } => {
            ask(&format!("enrol node={node}"))?;
            Ok((json!({ "enrolled": node }), String::new()))
        }
        Verb::Reclaim {
            node: Some(node),
            down,
            ..
        } => {
            let command = format!("reclaim node={node} down={}", u8::from(*down));
            ask_about(*node, "0", &command)?;
            Ok((json!({ "reclaimed": node }), String::new()))
        }
        Verb::Reclaim {
            address,
            grace_ms,
            keep,
            ..
        } => reclaim(address.as_deref().unwrap_or_default(), *grace_ms, *keep),
        Verb::Down { node } => {
            ask(&format!("down node={node}"))?;
            Ok((json!({ "down": node }), String::new()))
        }
        Verb::Repair { address } => repair(address),
        Verb::Join { domain, with } => {
            ask(&format!("join domain={domain:#x} with={with:#x}"))?;
            Ok((
                json!({ "joined": [format!("{domain:#x}"), format!("{with:#x}")] }),
                String::new(),
            ))
        }
        Verb::Part { domain, with } => {
            ask(&format!("part domain={domain:#x} with={with:#x}"))?;
            Ok((
                json!({ "parted": [format!("{domain:#x}"), format!("{with:#x}")] }),
                String::new(),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_apart() {
        let rows = parse("index=0 handle=0x5 at=0000:02:00.0 state=Lent(NodeId(3))\nindex=1 at=\n");
        assert_eq!(cell(&rows[0], "at"), "0000:02:00.0");
        assert_eq!(cell(&rows[0], "state"), "Lent(NodeId(3))");
        assert_eq!(cell(&rows[1], "at"), "-");
        assert_eq!(cell(&rows[1], "state"), "-");
        let text = show(&["index", "state"], &rows);
        assert_eq!(text, "index  state\n    0  Lent(NodeId(3))\n    1  -\n");
    }

    #[test]
    fn words_of_the_same_name_are_kept() {
        let row = words("node=2 reaches=3 reaches=5 at=x");
        assert_eq!(cell(&row, "reaches"), "3,5");
        assert_eq!(cell(&row, "at"), "x");
    }

    #[test]
    fn only_addresses_name_devices() {
        assert!(directory("../../net").is_err());
        assert!(directory("ffff:ff:1f.7").is_err());
    }
}
