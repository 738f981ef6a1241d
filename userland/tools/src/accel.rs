// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `extollctl accel`: PCIe devices that nodes lend to each other (vpci.ko).

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
/// How long the PCI core may take to bind a driver, or a borrower to give a device back.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is done with devices.
#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Devices that a node lends; without a node those that this one has borrowed, and lends itself.
    List {
        /// The node.
        #[arg(short, long)]
        node: Option<u16>,
    },
    /// Has a device of another node appear in this one's PCI tree; says its PCI domain.
    Borrow {
        /// The node.
        #[arg(short, long)]
        node: u16,
        /// Which of its devices: index in its list, or PCI address there; not needed if it is an accelerator.
        #[arg(default_value = "0")]
        address: String,
    },
    /// Says of a node that it is an accelerator: its NIC has a device behind it, and no host. Once, and again after a loss of power.
    Enrol {
        /// The node.
        #[arg(short, long)]
        node: u16,
    },
    /// Gives a device back, whose driver lets go of it first.
    Return {
        /// Its PCI domain (0x10001).
        #[arg(value_parser = crate::number)]
        domain: u64,
    },
    /// Takes a device of this node from its driver, and offers it to others.
    Lend {
        /// Its PCI address (0000:02:00.0).
        address: String,
    },
    /// Takes a device back from whoever has it: one of this node, which its own driver gets then, or that of an accelerator.
    Reclaim {
        /// Its PCI address (0000:02:00.0).
        #[arg(required_unless_present = "node", conflicts_with = "node")]
        address: Option<String>,
        /// The accelerator's node.
        #[arg(short, long)]
        node: Option<u16>,
        /// All nodes that have had the accelerator, and accelerators that it was joined with, are known to be down, or to have no window to it
        /// any more: the numbers of their intervals are given to others.
        #[arg(long, requires = "node")]
        down: bool,
        /// Milliseconds that the borrower gets to let go of it in order; then it is cut off.
        #[arg(long, default_value_t = 5000, conflicts_with = "node")]
        grace_ms: u32,
        /// Goes on being offered.
        #[arg(long, conflicts_with = "node")]
        keep: bool,
    },
    /// Has the device of an accelerator reach that of another one, past this node: drivers can map its BARs (dma_map_resource).
    Join {
        /// Its PCI domain (0x10001).
        #[arg(value_parser = crate::number)]
        domain: u64,
        /// PCI domain of the device that it is to reach.
        #[arg(value_parser = crate::number)]
        with: u64,
    },
    /// The device of an accelerator reaches that of the other one no more.
    Part {
        /// Its PCI domain (0x10001).
        #[arg(value_parser = crate::number)]
        domain: u64,
        /// PCI domain of the device that it reaches.
        #[arg(value_parser = crate::number)]
        with: u64,
    },
    /// Says that a node is switched off, and has nothing of this one any more. It must be true: what that node reaches is given to others.
    Down {
        /// The node.
        #[arg(short, long)]
        node: u16,
    },
    /// Offers a device again that was found broken; it is reset first.
    Repair {
        /// Its PCI address (0000:02:00.0).
        address: String,
    },
}

/// Why the module does not do what it was told.
#[derive(Debug)]
struct Refused(Errno);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Errno::TIMEDOUT => "the node does not answer",
            Errno::BUSY => "somebody has the device",
            Errno::AGAIN => {
                "one of the nodes does not lend yet: its module, or this node's, has begun less than some 16 s ago"
            }
            Errno::NXIO => "there is no such device",
            Errno::NOENT => "nobody has the device",
            Errno::EXIST => "it is an accelerator already",
            Errno::ISCONN => "it reaches that device already",
            Errno::NOTCONN => "it does not reach that device",
            Errno::OPNOTSUPP => "the node of the device has a host",
            Errno::XDEV => "that node has a host, whose driver uses its NIC",
            Errno::NOSPC => "there are no intervals, or no room, for the device's BARs",
            Errno::IO => "the device does not work; the kernel's log says why",
            Errno::NODEV => "this node has no NIC for that",
            Errno::MFILE => "no more devices: see the parameters leases and per_node of vpci",
            Errno::STALE => "the device was offered anew meanwhile; list it again",
            Errno::PROTO => "the node's vpci is of another version",
            Errno::PERM => "the lender does not allow it",
            other => return std::io::Error::from(other).fmt(f),
        })
    }
}

impl std::error::Error for Refused {}

/// Says something to the module: its answer.
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
            Some(errno) => Refused(errno).into(),
            None => anyhow::Error::new(e),
        })?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// The same, about a device of a node: says what else is known when the module refuses.
fn ask_about(node: u16, index: &str, command: &str) -> Result<String> {
    ask(command).map_err(|e| {
        let hint = match e.downcast_ref() {
            Some(Refused(Errno::BUSY)) => holder(node, index),
            Some(Refused(Errno::TIMEDOUT)) => Some(format!(
                "either its module vpci is not loaded, or it is an accelerator that has not been enrolled since it got power \
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

/// Which node has a device.
fn holder(node: u16, index: &str) -> Option<String> {
    let offered = parse(&ask(&format!("list node={node}")).ok()?);
    let found = offered.iter().find(|r| cell(r, "index") == index)?;
    let own = parse(&ask("leases").ok()?);
    let is_own = |r: &Map<String, Value>| {
        cell(r, "node") == node.to_string() && cell(r, "at") == cell(found, "at")
    };
    if own.iter().any(is_own) {
        return Some("this node, which gives it back by 'extollctl accel return'".into());
    }
    let state = cell(found, "state");
    let by: String = state.chars().filter(char::is_ascii_digit).collect();
    (!by.is_empty()).then(|| format!("node {by}"))
}

/// `name=value` words of a line; values of the same name with commas.
fn words(line: &str) -> Map<String, Value> {
    let mut all = Map::new();
    for (name, value) in line.split_whitespace().filter_map(|w| w.split_once('=')) {
        // What there is several of has one word for each.
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

/// The directory of a device.
fn directory(device: &str) -> Result<PathBuf> {
    ensure!(!device.contains('/'), "{device} is no PCI address");
    let dir = Path::new(DEVICES).join(device);
    ensure!(dir.is_dir(), "there is no {device}");
    Ok(dir)
}

fn driver(dir: &Path) -> Option<String> {
    let link = fs::read_link(dir.join("driver")).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

/// Gives a device to another driver, or to the one that the kernel finds.
fn rebind(device: &str, name: &str) -> Result<()> {
    let dir = directory(device)?;
    if driver(&dir).is_some() {
        fs::write(dir.join("driver/unbind"), device).context("unbind")?;
    }
    // A line feed alone: none.
    fs::write(dir.join("driver_override"), format!("{name}\n")).context("driver_override")?;
    fs::write("/sys/bus/pci/drivers_probe", device).context("drivers_probe")?;
    Ok(())
}

fn lend(device: &str) -> Result<(Value, String)> {
    let dir = directory(device)?;
    // Before its own driver lets go of it.
    ask("lent")?;
    rebind(device, DRIVER)?;
    let begun = Instant::now();
    while driver(&dir).as_deref() != Some(DRIVER) {
        if begun.elapsed() > Duration::from_secs(2) {
            // Its own driver has it again.
            rebind(device, "")?;
            bail!("the driver {DRIVER} does not take {device}; the kernel's log says why");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok((json!({ "lent": device }), String::new()))
}

/// A device of this node that is kept for others.
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
                bail!("{device} does not come back: {state}")
            }
            Some(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    if !keep {
        rebind(device, "")?;
    }
    Ok((json!({ "reclaimed": device }), String::new()))
}

/// What a verb says, for programs and for people.
pub fn run(verb: &Verb, choice: &Choice) -> Result<(Value, String)> {
    ensure!(
        choice.nic.is_none() && choice.device.is_none(),
        "'accel' is about the first NIC; -N and -d are not for it"
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
