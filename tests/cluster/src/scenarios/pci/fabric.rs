//! A PCI device of one node, accessed by another node over the fabric: the behaviour of the
//! emulator on which Device Lending relies.

use crate::cluster::{Device, Lab, Model, Spec, PATIENCE};
use crate::scenarios::expected::BORROWED;
use crate::scenarios::{guest, node::node};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::thread;
use wire::ids::{NodeId, RegOffset};
use wire::regs::smfu;

/// Number of the node that lends its device.
const LENDER: usize = 1;
const DRIVE_MIB: u64 = 64;
/// Two nodes with devices. In a run with IOMMUs, the IOMMUs are set to passthrough, because
/// otherwise a NIC reaches no device.
const LENT: Spec = Spec::pair().append(&["iommu.passthrough=1"]).devices(&[
    Device {
        node: LENDER,
        model: Model::Nvme { mib: DRIVE_MIB },
    },
    Device {
        node: 0,
        model: Model::Edu,
    },
]);

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        Scenario::new("vpci::device_registers", LENT, device_registers).finds(BORROWED),
        Scenario::new("vpci::crossing_loads", LENT, crossing_loads)
            .finds(&["dma_faults", "host_peer_deadlocks"]),
    ]
}

/// A path through a window: an interval that no driver uses, the node that loads and stores, the
/// offset in its window, the target node.
#[derive(Clone, Copy)]
struct Way {
    number: u32,
    from: usize,
    start: u64,
    to: usize,
}

const fn way(number: u32, from: usize, to: usize) -> Way {
    let start = (number as u64) << 20;
    Way {
        number,
        from,
        start,
        to,
    }
}

/// Paths to the device, to an unoccupied address, from the lender to its own device, and from the
/// lender to the device of node 0.
const TO_DEVICE: Way = way(60, 0, LENDER);
const TO_NOTHING: Way = way(61, 0, LENDER);
const TO_OWN: Way = way(60, LENDER, LENDER);
const BACK: Way = way(62, LENDER, 0);
const BYTES: u64 = 0x4000;
/// An address without memory or BAR in either node.
const NOWHERE: u64 = 0xF0_0000_0000;
/// Registers of NVMe controllers: CAP, VS, AQA, ASQ.
const CAP: u64 = 0;
const VS: u64 = 8;
const AQA: u64 = 0x24;
const ASQ: u64 = 0x28;
/// Maximum duration in microseconds of a load that fails at once, because it forms a circle or hits
/// an unoccupied address. An unanswered load takes the SMFU's time-out of half a second. The clock
/// of an emulated CPU on a busy host permits no tighter bound.
const SOON_US: u64 = 400_000;

fn numbers(text: &str) -> Result<Vec<u64>> {
    text.lines()
        .map(|l| l.parse().with_context(|| text.to_owned()))
        .collect()
}

/// Runs commands of `guest/access.py` on the interval of a path.
fn access(lab: &Lab, way: Way, words: &[String]) -> Result<Vec<u64>> {
    let (program, start) = (guest::program("access"), way.start);
    numbers(&lab.ok(
        way.from,
        &format!("{program} {start} {BYTES} {}", words.join(" ")),
    )?)
}

/// Opens or closes paths and their targets.
fn lead(lab: &Lab, ways: &[(Way, u64)], open: bool) -> Result<()> {
    for &(way, base) in ways {
        let (k, from) = (way.number, way.from);
        let window = bar(lab, from, &node(lab, from).pci()?, 3)? + way.start;
        let to = smfu::IntervalControl::to_node(NodeId(way.to as u16)).raw();
        let words = [
            write(from, smfu::interval_startaddr(k), window),
            write(from, smfu::interval_endaddr(k), window + BYTES),
            write(from, smfu::interval_control(k), if open { to } else { 0 }),
            write(
                way.to,
                smfu::vpid_t_start_addr(k),
                if open { base } else { NOWHERE },
            ),
        ];
        access(lab, way, &words)?;
    }
    Ok(())
}

/// Runs commands of `guest/bar.py` on the lender's device.
fn local(lab: &Lab, device: &str, words: &[String]) -> Result<Vec<u64>> {
    let program = guest::program("bar");
    numbers(&lab.ok(LENDER, &format!("{program} {device} {}", words.join(" ")))?)
}

fn write(node: usize, at: RegOffset, value: u64) -> String {
    format!("w{node}:{:#x}={value:#x}", at.get())
}

/// Returns the address of a BAR from sysfs.
fn bar(lab: &Lab, number: usize, device: &str, line: u32) -> Result<u64> {
    let file = format!("/sys/bus/pci/devices/{device}/resource");
    let text = lab.ok(number, &format!("awk 'NR == {line} {{print $1}}' {file}"))?;
    let hex = text.trim().trim_start_matches("0x");
    u64::from_str_radix(hex, 16).with_context(|| text.clone())
}

fn counter(lab: &Lab, nic: usize, name: &str) -> Result<u64> {
    let status = lab.status()?;
    let value = &status["fabric"]["nics"][nic]["counters"][name];
    value.as_u64().with_context(|| format!("no counter {name}"))
}

fn circles(lab: &Lab) -> Result<u64> {
    let of = |nic| counter(lab, nic, "host_peer_deadlocks");
    Ok(of(0)? + of(1)?)
}

/// Returns the PCI address of the first device of a node that matches `lspci -d`.
fn place(lab: &Lab, number: usize, what: &str) -> Result<String> {
    let listed = lab.ok(number, &format!("lspci -Dn -d {what}"))?;
    let first = listed.split_whitespace().next();
    first
        .map(Into::into)
        .with_context(|| format!("no {what} at node {number}"))
}

/// Checks that the device is bound to its own driver, which can read and write it.
fn works(lab: &Lab) -> Result<()> {
    let drive = "/dev/nvme0n1";
    lab.until("the driver has found the drive", PATIENCE, |lab| {
        Ok(lab
            .sh_for(LENDER, &format!("[ -b {drive} ]"), PATIENCE)?
            .status
            == 0)
    })?;
    let bytes = lab.ok(LENDER, &format!("blockdev --getsize64 {drive}"))?;
    ensure!(bytes.trim() == (DRIVE_MIB << 20).to_string(), "{bytes}");
    lab.ok(
        LENDER,
        &format!(
            "head -c 65536 /dev/urandom >/tmp/block && dd if=/tmp/block of={drive} bs=64k oflag=direct 2>/dev/null \
             && dd if={drive} bs=64k count=1 iflag=direct 2>/dev/null | cmp - /tmp/block"
        ),
    )
    .map(drop)
}

/// Node 0 reads and writes registers of a device in node 1. Accesses to unoccupied addresses and
/// loads that can't be answered end with all ones.
fn device_registers(lab: &Lab) -> Result<()> {
    for number in 0..2 {
        guest::install(lab, number)?;
    }
    let none = lab.sh_for(0, "lspci -Dn -d ::0108", PATIENCE)?;
    ensure!(none.stdout.is_empty(), "node 0 has an NVMe drive as well");
    let device = &place(lab, LENDER, "::0108")?;
    lab.ok(LENDER, "modprobe nvme")?;
    works(lab)?;
    let sysfs = format!("/sys/bus/pci/devices/{device}");
    lab.ok(
        LENDER,
        &format!("echo {device} >{sysfs}/driver/unbind && echo 1 >{sysfs}/enable"),
    )?;
    let base = bar(lab, LENDER, device, 1)?;
    let ways = [(TO_DEVICE, base), (TO_NOTHING, NOWHERE), (TO_OWN, base)];
    lead(lab, &ways, true)?;
    let result = over_the_fabric(lab, device);
    lead(lab, &ways, false)?;
    result?;
    // The device works as it did before it was unbound.
    lab.ok(
        LENDER,
        &format!("echo 0 >{sysfs}/enable; echo {device} >/sys/bus/pci/drivers/nvme/bind"),
    )?;
    works(lab)
}

fn over_the_fabric(lab: &Lab, device: &str) -> Result<()> {
    let words = |list: &[&str]| -> Vec<String> { list.iter().map(|w| (*w).to_owned()).collect() };
    // Loads of 4 and 8 bytes return the same values at both nodes.
    let look = words(&["Q0", "R0", "R4", "R8"]);
    let there = local(lab, device, &look)?;
    let here = access(lab, TO_DEVICE, &look)?;
    ensure!(here == there, "{here:x?} from node 0, {there:x?} at node 1");
    let (cap, version) = (here[0], here[3]);
    ensure!(
        cap == here[1] | (here[2] << 32) && cap != 0 && cap != u64::MAX,
        "CAP {cap:#x} at {CAP}"
    );
    ensure!(
        (0x1_0000..0x3_0000).contains(&version),
        "VS {version:#x} at {VS}"
    );
    // Makes stores of 4 and 8 bytes, and loads that return the stored values.
    let stores = [
        format!("W{AQA:#x}=0x1f001f"),
        format!("D{ASQ:#x}=0x12345000"),
        format!("R{AQA:#x}"),
    ];
    let seen = access(lab, TO_DEVICE, &stores)?;
    ensure!(seen == [0x1F_001F], "{seen:x?}");
    let stored = [format!("R{AQA:#x}"), format!("Q{ASQ:#x}")];
    let stored = local(lab, device, &stored)?;
    ensure!(stored == [0x1F_001F, 0x1234_5000], "{stored:x?}");
    let done = counter(lab, LENDER, "host_peer_loads")?;
    ensure!(done >= 5, "{done} loads went to the device");

    // No BAR has this address.
    let (gone, late) = (
        counter(lab, LENDER, "host_dma_outside_memory")?,
        counter(lab, 0, "smfu_timeouts")?,
    );
    let got = access(
        lab,
        TO_NOTHING,
        &words(&["W0=1", "T", "R0", "T", "Q8", "T"]),
    )?;
    ensure!(
        (got[1], got[3]) == (0xFFFF_FFFF, u64::MAX),
        "{got:x?} from an unoccupied address"
    );
    ensure!(got[2] < SOON_US && got[4] < SOON_US, "{got:?} µs");
    let more = counter(lab, LENDER, "host_dma_outside_memory")? - gone;
    ensure!(more == 3, "{more} accesses were refused");

    // A CPU accesses its own node's device through its NIC. QEMU can't answer such an access.
    let met = circles(lab)?;
    let got = access(lab, TO_OWN, &words(&["T", "R0", "T"]))?;
    ensure!(got[1] == 0xFFFF_FFFF && got[2] < SOON_US, "{got:?}");
    let met = circles(lab)? - met;
    ensure!(met == 1, "{met} circles");
    let timeouts = counter(lab, 0, "smfu_timeouts")? - late;
    ensure!(timeouts == 0, "{timeouts} time-outs");
    // The failed accesses had no side effect. A series of many loads, with stores between them,
    // succeeds.
    let row: Vec<String> = (1..=200u64)
        .flat_map(|n| [format!("D{ASQ:#x}={:#x}", n << 12), format!("Q{ASQ:#x}")])
        .collect();
    let many = access(lab, TO_DEVICE, &row)?;
    ensure!(
        many.iter().copied().eq((1..=200).map(|n| n << 12)),
        "{many:x?}"
    );
    let again = access(lab, TO_DEVICE, &words(&["Q0"]))?;
    ensure!(again == [cap], "{again:x?}");
    Ok(())
}

/// Value of the ID register of QEMU's `edu`.
const EDU: u64 = 0x0100_00ED;
/// Number of loads that each node makes.
const MANY: usize = 100;

/// Both nodes load from the other's device at the same time. QEMU can't answer two loads that
/// cross: one of them returns all ones. Every load ends. A CPU that only loads keeps QEMU's lock
/// from the threads that answer, so loads time out, above all on a busy host. The CPUs therefore
/// pause between loads. The test counts time-outs and permits them.
fn crossing_loads(lab: &Lab) -> Result<()> {
    for number in 0..2 {
        guest::install(lab, number)?;
    }
    let edu = place(lab, 0, "1234:11e8")?;
    lab.ok(0, &format!("echo 1 >/sys/bus/pci/devices/{edu}/enable"))?;
    let nvme = place(lab, LENDER, "::0108")?;
    let ways = [
        (TO_DEVICE, bar(lab, LENDER, &nvme, 1)?),
        (BACK, bar(lab, 0, &edu, 1)?),
    ];
    lead(lab, &ways, true)?;
    let late = |nic| counter(lab, nic, "smfu_timeouts");
    let before = (late(0)?, late(1)?, circles(lab)?);
    let version = access(lab, TO_DEVICE, &[format!("R{VS}")])?[0];
    let many = |way: Way, at: u64| access(lab, way, &vec![format!("R{at} P"); MANY]);
    let (one, other) = thread::scope(|scope| {
        let one = scope.spawn(|| many(TO_DEVICE, VS));
        let other = many(BACK, 0);
        (one.join().expect("no panic"), other)
    });
    lead(lab, &ways, false)?;
    let (one, other) = (one?, other?);
    ensure!((one.len(), other.len()) == (MANY, MANY));
    let ones = |got: &[u64], right: u64| -> Result<u64> {
        let wrong = got.iter().find(|v| **v != right && **v != 0xFFFF_FFFF);
        ensure!(wrong.is_none(), "{wrong:x?} instead of {right:#x}");
        Ok(got.iter().filter(|v| **v != right).count() as u64)
    };
    let ones = ones(&one, version)? + ones(&other, EDU)?;
    let late = late(0)? + late(1)? - before.0 - before.1;
    let met = circles(lab)? - before.2;
    ensure!(
        met + late == ones,
        "{ones} loads gave all ones, {met} met another, {late} were late"
    );
    ensure!(ones < 2 * MANY as u64, "none had an answer");
    Ok(())
}
