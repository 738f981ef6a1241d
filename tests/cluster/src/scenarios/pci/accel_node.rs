//! A device behind a NIC without a host (docs/emulator.md, *Accelerator nodes*), accessed by a node
//! over the fabric.

use crate::cluster::{Lab, Spec, PATIENCE};
use crate::scenarios::expected::REFUSED;
use crate::scenarios::guest;
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use wire::ids::{NodeId, RegOffset};
use wire::regs::pcie::{self, BackdoorControl, BackdoorInfo};
use wire::regs::smfu;
use wire::tlp::{words, Bdf, CfgType, Kind, Tlp};

/// A node with NIC 0, and NIC 1 with the test device.
const LENT: Spec = Spec::new(1).accelerators(1);

/// Node ID of the accelerator.
const LENDER: u16 = 1;
/// Vendor and device ID of the test device, its ID register at offset 0 of its BAR, and the address
/// of the BAR.
const VENDOR_DEVICE: u64 = 0x7E57_1CAD;
const ID: u64 = 0x7E57_ACCE;
const BAR: u64 = 0xE000_0000;
/// Interval of the window, unused by the driver, and its offset in the window.
const INTERVAL: u32 = 60;
const START: u64 = 64 << 20;
const BYTES: u64 = 1 << 20;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        Scenario::new("accelerator::borrowed", LENT, borrowed).finds(REFUSED),
        Scenario::new("accelerator::backdoor", LENT, backdoor).finds(REFUSED),
    ]
}

/// Runs commands of `guest/access.py`. Returns the values read.
fn access(lab: &Lab, words: &[String]) -> Result<Vec<u64>> {
    let words = words.join(" ");
    let text = lab.ok(
        0,
        &format!("{} {START} {BYTES} {words}", guest::program("access")),
    )?;
    text.lines()
        .map(|l| l.parse().with_context(|| text.clone()))
        .collect()
}

fn write(node: u16, at: RegOffset, value: u64) -> String {
    format!("w{node}:{:#x}={value:#x}", at.get())
}

fn read(node: u16, at: RegOffset) -> String {
    format!("r{node}:{:#x}", at.get())
}

/// Makes a configuration access through the lender's backdoor registers, by a packet. Returns the
/// value of a read.
fn config(lab: &Lab, register: u16, data: Option<u32>) -> Result<u64> {
    let (from, to) = ((Bdf(0), 0), Bdf::new(1, 0, 0));
    let kind = Kind::config(data.is_some(), CfgType::Type0, from, to, register, 0xF);
    let data = data.map_or(Vec::new(), |value| value.to_le_bytes().to_vec());
    let packed = words::pack(&Tlp::from(kind), &data)
        .map_err(|e| anyhow::anyhow!("packet not packed: {e:?}"))?;
    let mut list: Vec<String> = (0..)
        .zip(packed.as_slice())
        .map(|(k, word)| write(LENDER, pcie::htoc_to_pcie_backdoor_data(k), *word))
        .collect();
    let send = BackdoorControl(0)
        .with_payload_qw_length(packed.payload_qws())
        .with_send(true);
    list.push(write(
        LENDER,
        pcie::HTOC_TO_PCIE_BACKDOOR_CONTROL,
        send.raw(),
    ));
    list.push(read(LENDER, pcie::PCIE_TO_HTOC_BACKDOOR_INFO));
    let info = BackdoorInfo(access(lab, &list)?[0]);
    ensure!(info.valid(), "no completion");
    let next = read(LENDER, pcie::PCIE_TO_HTOC_BACKDOOR_DATA);
    let answer = access(lab, &vec![next; info.qw_count().into()])?;
    Ok(answer.get(2).map_or(0, |w| w & 0xFFFF_FFFF))
}

/// Returns the register writes that a borrower makes first and repeats after a power loss. They
/// direct completions to the FIFO and enable the SMFU.
fn prepare() -> [String; 4] {
    [
        write(LENDER, pcie::PCIE_TO_HTOC_CFG, 2),
        write(LENDER, smfu::TRAFFIC_CLASS, smfu::TRAFFIC_CLASS_INIT),
        write(LENDER, smfu::STATUS_CONTROL, 1),
        write(LENDER, smfu::vpid_t_start_addr(INTERVAL), BAR),
    ]
}

/// Sets the address of the BAR and enables it.
fn enable(lab: &Lab) -> Result<()> {
    for (register, value) in [(0x10, BAR as u32), (0x14, 0), (0x04, 6)] {
        config(lab, register, Some(value))?;
    }
    Ok(())
}

/// A device behind an accelerator NIC is reachable through the window, and is reachable again after
/// a power loss.
fn borrowed(lab: &Lab) -> Result<()> {
    guest::install(lab, 0)?;
    let status = lab.status()?;
    let nic = status["accelerators"][0]["nic"].as_u64();
    ensure!(nic == Some(1), "{}", status["accelerators"]);
    ensure!(status["fabric"]["nics"][1]["accelerator"] == true);
    access(lab, &prepare())?;
    let found = config(lab, 0, None)?;
    ensure!(found == VENDOR_DEVICE, "{found:#x} at the lender");
    enable(lab)?;
    // The window of BAR 2 from `START` on leads to the BAR.
    let base = lab.ok(
        0,
        "awk 'NR == 3 {print $1}' /sys/bus/pci/drivers/extoll/0*/resource",
    )?;
    let base = u64::from_str_radix(base.trim().trim_start_matches("0x"), 16)? + START;
    let to = smfu::IntervalControl::to_node(NodeId(LENDER)).raw();
    let opened = [
        write(0, smfu::interval_startaddr(INTERVAL), base),
        write(0, smfu::interval_endaddr(INTERVAL), base + BYTES),
        write(0, smfu::interval_control(INTERVAL), to),
    ];
    access(lab, &opened)?;
    let look = ["R0", "W8=0x12345678", "R8"].map(String::from);
    let got = access(lab, &look)?;
    ensure!(got == [ID, 0x1234_5678], "{got:x?} in the BAR");

    // Faults that need a host are rejected. Other faults work.
    for fault in [&["retry", "acc0", "--every", "1"][..], &["stuck", "acc0"]] {
        let error = lab.fault(fault).err().context("a fault was accepted")?;
        let text = format!("{error:#}");
        ensure!(text.contains("makes no sense for acc0"), "{text}");
    }
    ensure!(lab.fault(&["freeze", "acc1"]).is_err(), "there is no acc1");
    lab.fault(&["power-off", "acc0"])?;
    let gone = access(lab, &["R0".into()])?;
    ensure!(gone == [0xFFFF_FFFF], "{gone:x?} without power");
    lab.fault(&["power-on", "acc0"])?;
    // All registers of the accelerator are lost with the power.
    let mut back = Vec::new();
    // The accelerator is unreachable until the management software has configured it.
    lab.until_it_works("the lender is back", PATIENCE, |lab| {
        access(lab, &prepare())?;
        enable(lab)?;
        back = access(lab, &["R0".into(), "R8".into()])?;
        Ok(back == [ID, 0])
    })?;
    access(lab, &[write(0, smfu::interval_control(INTERVAL), 0)])?;
    Ok(())
}

/// Reason of the base driver for failed transactions (docs/driver.md).
const BACKDOOR: u32 = 41;

/// The driver's transactions with the lender's backdoor registers work. They make configuration
/// accesses, in process context and with a lock held. Transactions exclude each other, an
/// unfinished transaction is undone, and a read returns all ones if the device does not answer.
fn backdoor(lab: &Lab) -> Result<()> {
    lab.ok(0, "modprobe extoll_bench")?;
    let way = format!("node={LENDER} timeout_us=1000000");
    // With a lock held, the driver waits up to 100 ms. A busy host may not run the other node
    // within that time.
    let call = |words: &str| {
        let mut tries = if words.contains("wait=atomic") { 5 } else { 1 };
        loop {
            tries -= 1;
            match lab.raw(0, &format!("backdoor {words} {way}")) {
                Err(e) if tries != 0 && format!("{e:#}").contains("TimedOut") => {}
                done => return done,
            }
        }
    };
    let value = |words: &str, key: &str| -> Result<u64> {
        let answer = call(words)?;
        let text = answer.get(key).with_context(|| format!("{answer:?}"))?;
        Ok(text.parse()?)
    };
    let enable = || {
        lab.until_it_works("the lender takes registers", PATIENCE, |_| {
            call("op=local").map(|_| true)
        })
    };
    enable()?;
    for wait in ["", "wait=atomic"] {
        // With a lock held, a transaction takes up to 100 ms.
        for (place, want) in [
            ("offset=0 bytes=4", VENDOR_DEVICE),
            ("offset=2 bytes=2", VENDOR_DEVICE >> 16),
            ("offset=1 bytes=1", (VENDOR_DEVICE >> 8) & 0xFF),
        ] {
            let got = value(&format!("{place} {wait}"), "value")?;
            ensure!(got == want, "{place} {wait}: {got:#x}");
        }
        for line in [0x5A, 0xA5] {
            call(&format!("op=write offset=0x3C bytes=1 value={line} {wait}"))?;
            let got = value(&format!("offset=0x3C bytes=1 {wait}"), "value")?;
            ensure!(got == line, "{got:#x} instead of {line:#x}");
        }
    }
    // A transaction that is not finished is undone. No second transaction runs at the same time.
    for n in 1..4 {
        let got = call(&format!("op=undo offset=8 value={}", 0x1000 * n))?;
        let of = |key: &str| got.get(key).map(String::as_str);
        let set = (0x1000 * n).to_string();
        ensure!(
            of("set") == Some(&*set) && of("alone") == Some("1"),
            "{got:?}"
        );
        ensure!(of("value") == Some("0"), "not undone: {got:?}");
        let id = value("offset=0 bytes=4", "value")?;
        ensure!(
            id == VENDOR_DEVICE,
            "{id:#x}: the completion of the transaction that was undone"
        );
    }
    for words in [
        "offset=0 bytes=3",
        "offset=4096 bytes=4",
        "offset=1 bytes=2",
    ] {
        ensure!(call(words).is_err(), "{words} was accepted");
    }
    let failed = |lab: &Lab| crate::scenarios::node::node(lab, 0).reason(BACKDOOR);
    let before = failed(lab)?;
    lab.fault(&["power-off", "acc0"])?;
    let script = format!(
        "exec 3<>/dev/extoll_bench; printf %s 'backdoor offset=0 bytes=4 node={LENDER} timeout_us=20000' >&3; cat <&3; true"
    );
    let text = lab.ok(0, &script)?;
    ensure!(text.contains("plain 4294967295"), "{text}");
    ensure!(text.contains("error"), "{text}");
    ensure!(failed(lab)? >= before + 2, "not counted");
    lab.fault(&["power-on", "acc0"])?;
    enable()?;
    lab.until_it_works("the device answers again", PATIENCE, |_| {
        Ok(value("offset=0 bytes=4", "value")? == VENDOR_DEVICE)
    })
}
