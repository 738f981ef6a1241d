//! Invalid messages to Device Lending, and a borrower whose device raises endless interrupts.

use crate::cluster::{Lab, PATIENCE};
use crate::scenarios::{
    guest,
    node::{node, volume},
    pci::lease::{counter, first, lend, load, reclaim, Lease, DRIVE, EDU, LENDER, LONG, PAIR},
};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::fmt::Write;
use wire::pci::{Body, Borrow, Incarnation, LeaseId, Message, Reason, Register, Role, Status};

const OPTIONS: &str = "vpci.timeout_ms=10000";
/// VPID of the module's port. Forged messages come from this VPID and go to it.
const VPID: u8 = 252;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        Scenario::new("vpci::hostile_messages", PAIR, hostile_messages),
        Scenario::new("vpci::interrupt_storm", PAIR, interrupt_storm),
    ]
}

/// Returns a packet for `lab fault forge`.
fn packet(node: u16, vpid: u8, tag: u8, data: &[u8]) -> String {
    let mut hex = String::new();
    for b in data {
        // Writing to a string can't fail.
        let _ = write!(hex, "{b:02x}");
    }
    format!(
        r#"{{"kind":"velo","src_node":{node},"src_vpid":{vpid},"vpid":{VPID},"mtt":1,"tag":{tag},"data":"{hex}"}}"#
    )
}

fn bytes(message: &Message) -> Vec<u8> {
    let words = message.words();
    let all = words.as_slice().iter().flat_map(|w| w.to_le_bytes());
    all.take(words.bytes().into()).collect()
}

/// Returns a packet with a message of a made-up incarnation of a node.
fn said(node: u16, number: u32, body: Body) -> String {
    let message = Message {
        number,
        sender: Incarnation(0x1234_5678_9abc_def0),
        body,
    };
    packet(node, VPID, message.kind().tag(), &bytes(&message))
}

fn forge(lab: &Lab, to: usize, packets: &[String], count: u32) -> Result<()> {
    let (to, count) = (to.to_string(), count.to_string());
    let mut words = vec!["forge", &to, "--count", &count];
    words.extend(packets.iter().map(String::as_str));
    lab.fault(&words).map(drop)
}

/// Malformed messages, messages of programs, and messages of nodes without a lease are counted.
/// They do not affect the existing lease.
fn hostile_messages(lab: &Lab) -> Result<()> {
    for number in 0..2 {
        load(lab, number, OPTIONS)?;
    }
    let address = first(lab, LENDER, DRIVE)?;
    lend(lab, LENDER, &address)?;
    let lease = Lease::new(lab, 0, LENDER, &address, false)?;
    let drive = lease.drive(lab)?;
    let read = format!("dd if={drive} of=/dev/null bs=4k count=4 iflag=direct 2>/dev/null");
    lab.ok_for(0, &read, LONG)?;
    for to in 0..2 {
        malformed(lab, to).with_context(|| format!("malformed, to node{to}"))?;
        foreign(lab, to).with_context(|| format!("of programs, to node{to}"))?;
    }
    of_no_lease(lab)?;
    lab.ok_for(0, &read, LONG)?;
    let log = lab.ok(LENDER, "dmesg | grep -c 'vpci: reason' || true")?;
    let lines: u64 = log.trim().parse().with_context(|| log.clone())?;
    ensure!((2..200).contains(&lines), "{lines} lines in the log");
    lease.end(lab)?;
    reclaim(lab, LENDER, &address)
}

fn malformed(lab: &Lab, to: usize) -> Result<()> {
    let from = 1 - to as u16;
    let before = counter(lab, to, "rejected")?;
    let list = bytes(&Message {
        number: 7,
        sender: Incarnation(1),
        body: Body::List(0),
    });
    let mut reserved = list.clone();
    reserved[2] = 0xFF;
    let packets = [
        packet(from, VPID, 0x3F, &list),
        packet(from, VPID, 0x4E, &list),
        packet(from, VPID, 0xFF, &[0xFF; 64]),
        packet(from, VPID, 0x40, &list[..8]),
        packet(from, VPID, 0x40, &[list.clone(), vec![0; 8]].concat()),
        packet(from, VPID, 0x40, &reserved),
        packet(from, VPID, 0x43, &[0xFF; 64]),
        packet(from, VPID, 0x41, &[1; 56]),
        packet(from, VPID, 0x45, &[0; 32]),
        packet(from, VPID, 0x46, &[0xA5; 120]),
        packet(from, VPID, 0x40, &[1]),
    ];
    let times = volume(40, 1000);
    forge(lab, to, &packets, times)?;
    let want = packets.len() as u64 * u64::from(times);
    lab.until("all are counted", PATIENCE, |lab| {
        Ok(counter(lab, to, "rejected")? >= before + want)
    })?;
    let all = counter(lab, to, "rejected")? - before;
    ensure!(all == want, "{all} instead of {want}");
    Ok(())
}

/// Checks messages that differ from a module's only by the VPID of the sender.
fn foreign(lab: &Lab, to: usize) -> Result<()> {
    let before = (counter(lab, to, "foreign")?, counter(lab, to, "sent")?);
    let list = bytes(&Message {
        number: 9,
        sender: Incarnation(2),
        body: Body::List(0),
    });
    let packets: Vec<String> = [1u8, 64, 250, 254]
        .iter()
        .map(|vpid| packet(1 - to as u16, *vpid, 0x40, &list))
        .collect();
    forge(lab, to, &packets, 25)?;
    lab.until("all are counted", PATIENCE, |lab| {
        Ok(counter(lab, to, "foreign")? == before.0 + 100)
    })?;
    // The messages got no answer. The messages that were sent in the meantime belong to the lease.
    let sent = counter(lab, to, "sent")? - before.1;
    ensure!(sent < 100, "{sent} messages were sent");
    Ok(())
}

/// Checks messages about leases of other nodes and about absent leases.
fn of_no_lease(lab: &Lab) -> Result<()> {
    let id = LeaseId::new(0x0bad_cafe, 0x0dec_af00);
    let register = Register::new(4, 2).context("a register")?;
    let to_lender = |from: u16| {
        [
            Body::Read(id, register),
            Body::Write(id, register, 7),
            Body::Reset(id),
            Body::Return(id),
            Body::Revoked(id),
            Body::Alive {
                lease: id,
                to: Role::Lender,
                answer: false,
            },
            Body::Borrow(Borrow {
                handle: 1,
                generation: 1,
                lender: Incarnation(3),
                windows: 0xFF00,
                targets: 0xFF00,
                dma: 4096,
            }),
        ]
        .map(|body| said(from, 3, body))
    };
    let to_borrower = [
        Body::Refuse(Reason::Lease, id),
        Body::Done(id, Status::Done, 5),
        Body::Returned(id),
        Body::Revoke(id, 0),
        Body::Revoke(id, 100),
        Body::Alive {
            lease: id,
            to: Role::Borrower,
            answer: false,
        },
    ]
    .map(|body| said(1, 3, body));
    let watched = |lab: &Lab| -> Result<[u64; 4]> {
        Ok([
            counter(lab, LENDER, "lender.leases")?,
            counter(lab, LENDER, "lender.returned")?,
            counter(lab, LENDER, "lender.expired")?,
            counter(lab, 0, "borrower.lost")?,
        ])
    };
    let (odd, refused) = (
        counter(lab, LENDER, "lender.odd")?,
        counter(lab, LENDER, "lender.refused")?,
    );
    let before = watched(lab)?;
    // Sends the messages from the borrower, which has another lease, and from the lender itself.
    for from in [0, 1] {
        forge(lab, LENDER, &to_lender(from), 50)?;
    }
    forge(lab, 0, &to_borrower, 50)?;
    lab.until("the lender has counted the messages", PATIENCE, |lab| {
        Ok(counter(lab, LENDER, "lender.odd")? >= odd + 300
            && counter(lab, LENDER, "lender.refused")? > refused)
    })?;
    let after = watched(lab)?;
    ensure!(before == after, "{before:?} became {after:?}");
    Ok(())
}

/// Reason of the base driver for too many interrupts by other nodes (docs/driver.md).
const STORM: u32 = 40;

/// The borrower lets the device raise interrupts without end. Both nodes keep working, and so does
/// the borrower's other device.
fn interrupt_storm(lab: &Lab) -> Result<()> {
    for number in 0..2 {
        load(lab, number, OPTIONS)?;
        guest::install(lab, number)?;
    }
    let edu = first(lab, LENDER, EDU)?;
    let drive = first(lab, LENDER, DRIVE)?;
    for address in [&edu, &drive] {
        lend(lab, LENDER, address)?;
    }
    let storm = Lease::new(lab, 0, LENDER, &edu, false)?;
    let other = Lease::new(lab, 0, LENDER, &drive, false)?;
    let name = other.drive(lab)?;
    let line = storm.line(lab)?;
    let at = line["interrupts"].as_str().context("no interrupts")?;
    storm.ok(
        lab,
        &format!(
            "echo 1 >/sys/bus/pci/devices/$dev/enable && setpci -s $dev COMMAND=6:6 && \
             a=$(({at})) && setpci -s $dev CAP_MSI+4.l=$(printf %08x $((a & 0xffffffff))) && \
             setpci -s $dev CAP_MSI+8.l=$(printf %08x $((a >> 32))) && setpci -s $dev CAP_MSI+c.w=0 && \
             setpci -s $dev CAP_MSI+2.w=1:1 && [ $((0x$(setpci -s $dev CAP_MSI+2.w) & 1)) = 1 ]"
        ),
    )?;
    let before = (counter(lab, 0, "interrupts")?, node(lab, 0).reason(STORM)?);
    let words = format!(
        "{} {} S{}:0x60=1",
        guest::program("bar"),
        storm.address(),
        volume(40_000, 400_000)
    );
    let raising = lab.spawn(0, &words)?;
    lab.until("they come", PATIENCE, |lab| {
        Ok(counter(lab, 0, "interrupts")? > before.0 + 200)
    })?;
    // The other device works during the storm.
    lab.ok_for(
        0,
        &format!("dd if={name} of=/dev/null bs=4k count=16 iflag=direct 2>/dev/null"),
        LONG,
    )?;
    node(lab, 0).pings(5, "-i 0.2")?;
    let out = raising.wait(LONG)?;
    ensure!(out.status == 0, "{out:?}");
    let after = (counter(lab, 0, "interrupts")?, node(lab, 0).reason(STORM)?);
    println!(
        "        {} interrupts, {} storms",
        after.0 - before.0,
        after.1 - before.1
    );
    storm.ok(
        lab,
        &format!("{} $dev W0x64=0xffffffff", guest::program("bar")),
    )?;
    storm.end(lab)?;
    lab.ok_for(
        0,
        &format!("dd if={name} of=/dev/null bs=4k count=4 iflag=direct 2>/dev/null"),
        LONG,
    )?;
    other.end(lab)?;
    for address in [&edu, &drive] {
        reclaim(lab, LENDER, address)?;
    }
    Ok(())
}
