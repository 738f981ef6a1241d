//! Devices of other kinds than drives, several devices at once, and repeated leases.

use crate::cluster::{rounds, Lab, PATIENCE};
use crate::scenarios::expected::BORROWED;
use crate::scenarios::{
    guest,
    leaks::Usage,
    node::{node, volume},
    pci::lease::{
        counter, ctl, drive, first, lend, load, no_fences, own, reclaim, Lease, CARD, DRIVE, EDU,
        LENDER, LONG, PAIR,
    },
};
use crate::Scenario;
use anyhow::{ensure, Context, Result};

const OPTIONS: &str = "vpci.timeout_ms=10000";

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        Scenario::new("vpci::edu", PAIR, edu).finds(&["drops_smfu_no_interval"]),
        Scenario::new("vpci::network_card", PAIR.ideal(), network_card).finds(BORROWED),
        Scenario::new("vpci::several", PAIR.ideal(), several).finds(BORROWED),
        Scenario::new("vpci::borrowed_again", PAIR.ideal(), borrowed_again).finds(BORROWED),
        Scenario::new("vpci::cycles", PAIR.ideal(), cycles)
            .finds(BORROWED)
            .seconds(3600),
    ]
}

fn prepare(lab: &Lab) -> Result<()> {
    for number in 0..2 {
        load(lab, number, OPTIONS)?;
        guest::install(lab, number)?;
    }
    Ok(())
}

/// Runs commands of `guest/bar.py` on a borrowed device without a driver. Returns the values read.
fn bar(lab: &Lab, lease: &Lease, words: &str) -> Result<Vec<u64>> {
    let text = lease.ok(lab, &format!("{} $dev {words}", guest::program("bar")))?;
    text.lines()
        .map(|l| l.parse().with_context(|| text.clone()))
        .collect()
}

fn hex(text: &str) -> Result<u64> {
    u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).with_context(|| text.to_owned())
}

fn number(line: &serde_json::Value, name: &str) -> Result<u64> {
    let text = line[name]
        .as_str()
        .with_context(|| format!("no {name}: {line}"))?;
    match text.starts_with("0x") {
        true => hex(text),
        false => text.parse().with_context(|| text.to_owned()),
    }
}

/// QEMU's `edu` device works at the borrower: through its sysfs file, then with a driver for
/// registers, memory and interrupts. The device accesses only permitted memory. After the return,
/// the lender can use it again.
fn edu(lab: &Lab) -> Result<()> {
    prepare(lab)?;
    let address = first(lab, LENDER, EDU)?;
    lend(lab, LENDER, &address)?;
    let lease = Lease::new(lab, 0, LENDER, &address, false)?;
    by_file(lab, &lease).context("by its file")?;
    outside(lab, &lease).context("outside of its memory")?;
    by_driver(lab, &lease).context("by its driver")?;
    lease.end(lab)?;
    lab.ok(LENDER, "modprobe edu_check")?;
    reclaim(lab, LENDER, &address)?;
    node(lab, LENDER).until(
        "the lender's driver has it",
        &format!("[ -e /sys/bus/pci/drivers/edu_check/{address} ]"),
    )?;
    for number in 0..2 {
        lab.ok(number, "rmmod edu_check")?;
    }
    Ok(())
}

fn by_file(lab: &Lab, lease: &Lease) -> Result<()> {
    lease.ok(
        lab,
        "echo 1 >/sys/bus/pci/devices/$dev/enable && setpci -s $dev COMMAND=6:6",
    )?;
    let got = bar(lab, lease, "R0 W4=0x12345678 R4 W8=12 P R8 R0x20")?;
    ensure!(got[0] & 0xFFFF == 0xED, "ID {:#x}", got[0]);
    ensure!(got[1] == u64::from(!0x1234_5678u32), "{got:x?}");
    ensure!(got[2..] == [479_001_600, 0], "{got:?}");
    // The device has no interrupt pin. Only the borrower gets its message-signalled interrupts.
    let denied = counter(lab, LENDER, "lender.denied")?;
    let pin = lease.ok(lab, "setpci -s $dev INTERRUPT_PIN")?;
    ensure!(pin.trim() == "00", "pin {pin}");
    let message = lease.ok(
        lab,
        "setpci -s $dev CAP_MSI+4.l=fee00000 && setpci -s $dev CAP_MSI+2.w=1:1; setpci -s $dev CAP_MSI+4.l CAP_MSI+2.w",
    )?;
    let words: Vec<u64> = message.split_whitespace().map(hex).collect::<Result<_>>()?;
    ensure!(words[0] != 0xFEE0_0000 && words[1] & 1 == 0, "{message}");
    let denied = counter(lab, LENDER, "lender.denied")? - denied;
    ensure!(denied >= 2, "{denied} accesses were denied");
    // Without message-signalled interrupts, interrupts of the device are not delivered.
    bar(lab, lease, "W0x60=1 P R0x24 W0x64=1").map(drop)
}

/// Returns commands for a copy by the device: source, destination, size, start.
fn copy(from: u64, to: u64, bytes: u64, command: u64) -> String {
    format!("D0x80={from:#x} D0x88={to:#x} D0x90={bytes} D0x98={command} P P Q0x98")
}

/// Returns the emulator's count of accesses to the lender's NIC outside of all intervals.
fn nowhere(lab: &Lab) -> Result<u64> {
    let status = lab.status()?;
    let counters = &status["fabric"]["nics"][LENDER]["counters"];
    let found = counters["drops_smfu_no_interval"].as_u64();
    found.context("no counter")
}

/// Reason of the base driver for accesses to the NIC's window that hit no interval
/// (docs/driver.md).
const SMFU_TIMEOUT: u32 = 28;

/// Checks that the device can't access addresses outside of its memory.
fn outside(lab: &Lab, lease: &Lease) -> Result<()> {
    const OWN: u64 = 0x4_0000;
    let nic = node(lab, LENDER).pci()?;
    let end = lab.ok(
        LENDER,
        &format!("awk 'NR == 3 {{print $2}}' /sys/bus/pci/devices/{nic}/resource"),
    )?;
    // The last page of the NIC's window belongs to no interval.
    let place = hex(&end)? & !0xFFF;
    let told = node(lab, LENDER).reason(SMFU_TIMEOUT)?;
    let before = nowhere(lab)?;
    let done = bar(lab, lease, &copy(OWN, place, 8, 3))?;
    ensure!(done[0] & 1 == 0, "it still stores: {done:?}");
    let stored = nowhere(lab)?;
    ensure!(stored > before, "a store outside was not counted");
    let done = bar(lab, lease, &copy(place, OWN, 8, 1))?;
    ensure!(done[0] & 1 == 0, "it still loads: {done:?}");
    ensure!(nowhere(lab)? > stored, "a load outside was not counted");
    // The base driver of the lender's NIC counts the load.
    lab.until("the lender has counted the access", PATIENCE, |lab| {
        Ok(node(lab, LENDER).reason(SMFU_TIMEOUT)? > told)
    })?;
    // The device reaches its memory from the first to the last byte.
    let line = lease.line(lab)?;
    let (dma, slots) = (number(&line, "dma")?, number(&line, "slots")?);
    let before = nowhere(lab)?;
    for at in [dma, dma + slots * 2048 - 8] {
        bar(
            lab,
            lease,
            &format!("{} {}", copy(OWN, at, 8, 3), copy(at, OWN, 8, 1)),
        )?;
    }
    let more = nowhere(lab)? - before;
    ensure!(more == 0, "{more} accesses within its memory led nowhere");
    Ok(())
}

fn by_driver(lab: &Lab, lease: &Lease) -> Result<()> {
    let bound = "[ -e /sys/bus/pci/drivers/edu_check/$dev ]";
    lease.ok(lab, &format!("modprobe edu_check && {bound}"))?;
    rebind(lab, lease, 2)?;
    let line = lease.line(lab)?;
    ensure!(number(&line, "maps")? >= 6, "{line}");
    ensure!(
        (number(&line, "used")?, number(&line, "refused")?) == (0, 0),
        "{line}"
    );
    Ok(())
}

/// Returns a script that binds the driver, which tests the device, the given number of times.
fn again(times: u32) -> String {
    format!(
        "cd /sys/bus/pci/drivers/edu_check && for i in $(seq {times}); do \
         [ ! -e $dev ] || echo $dev >unbind || exit; echo $dev >bind || exit; done"
    )
}

fn rebind(lab: &Lab, lease: &Lease, times: u32) -> Result<()> {
    lease.ok(lab, &again(times)).map(drop)
}

/// An Ethernet adapter of node 1 works in node 0 with its own driver: it gets an address and moves
/// data.
fn network_card(lab: &Lab) -> Result<()> {
    prepare(lab)?;
    let address = first(lab, LENDER, CARD)?;
    lend(lab, LENDER, &address)?;
    let lease = Lease::new(lab, 0, LENDER, &address, false)?;
    lab.ok(0, "modprobe e1000e")?;
    let name = interface(lab, 0, &lease.address())?;
    carrier(lab, 0, &name)?;
    lab.ok(
        0,
        "printf '#!/bin/sh\\n[ \"$1\" = bound ] && ip addr add $ip/24 dev $interface\\nexit 0\\n' >/tmp/bound && chmod +x /tmp/bound",
    )?;
    lab.ok_for(
        0,
        &format!("busybox udhcpc -i {name} -n -q -f -t 10 -T 3 -s /tmp/bound"),
        LONG,
    )?;
    let got = lab.ok(0, &format!("ip -4 -o addr show {name}"))?;
    ensure!(got.contains("10.0.2.15/24"), "{got}");
    node(lab, 0).pings_to("10.0.2.2", 5, "-i 0.2")?;
    let bytes = volume(32 << 10, 4 << 20);
    lab.ok_for(
        0,
        &format!(
            "head -c {bytes} /dev/urandom >/tmp/out && socat -t 100 STDIO TCP:10.0.2.100:7 </tmp/out >/tmp/in && cmp /tmp/out /tmp/in"
        ),
        LONG,
    )?;
    let lines = lab.ok(0, &format!("grep {name} /proc/interrupts"))?;
    ensure!(lines.contains("extoll-PCI-MSIX"), "{lines}");
    let errors = lab.ok(
        0,
        &format!("cd /sys/class/net/{name}/statistics && cat rx_errors tx_errors tx_dropped"),
    )?;
    ensure!(
        errors.split_whitespace().all(|n| n == "0"),
        "errors: {errors}"
    );
    // Returns the device while it is in use.
    let pings = lab.spawn(0, "ping -q -i 0.2 10.0.2.2")?;
    lease.end(lab)?;
    pings.stop();
    let left = lab.sh_for(0, &format!("[ -e /sys/class/net/{name} ]"), PATIENCE)?;
    ensure!(left.status != 0, "{name} is left");
    lab.ok(0, "rmmod e1000e")?;
    // The lender can use the device again.
    lab.ok(LENDER, "modprobe e1000e")?;
    reclaim(lab, LENDER, &address)?;
    let name = interface(lab, LENDER, &address)?;
    carrier(lab, LENDER, &name)?;
    lab.ok(LENDER, "rmmod e1000e").map(drop)
}

fn interface(lab: &Lab, number: usize, address: &str) -> Result<String> {
    let look = format!("ls /sys/bus/pci/devices/{address}/net");
    let mut name = String::new();
    lab.until("the interface is there", LONG, |lab| {
        name = lab
            .sh_for(number, &look, PATIENCE)?
            .stdout
            .trim()
            .to_owned();
        Ok(!name.is_empty())
    })?;
    Ok(name)
}

fn carrier(lab: &Lab, number: usize, name: &str) -> Result<()> {
    lab.ok_for(number, &format!("ip link set {name} up"), LONG)?;
    let has = format!("[ \"$(cat /sys/class/net/{name}/carrier)\" = 1 ]");
    lab.until("there is a carrier", LONG, |lab| {
        Ok(lab.sh_for(number, &has, PATIENCE)?.status == 0)
    })
}

/// Three devices of a node are borrowed and used at once, and returned in another order. The
/// borrower lends a device to the same node.
fn several(lab: &Lab) -> Result<()> {
    prepare(lab)?;
    for number in 0..2 {
        lab.ok(number, "modprobe edu_check")?;
    }
    let drives = own(lab, LENDER, DRIVE)?;
    let [edu, back] = [first(lab, LENDER, EDU)?, first(lab, 0, EDU)?];
    ensure!(drives.len() == 2, "{drives:?}");
    for address in drives.iter().chain([&edu]) {
        lend(lab, LENDER, address)?;
    }
    lend(lab, 0, &back)?;
    let borrow = |address: &str| Lease::new(lab, 0, LENDER, address, false);
    let (one, two, three) = (borrow(&drives[0])?, borrow(&drives[1])?, borrow(&edu)?);
    let other = Lease::new(lab, LENDER, 0, &back, false)?;
    let leases = [&one, &two, &three, &other];
    let said = ctl(lab, 0, "list")?;
    let count = said["borrowed"].as_array().map_or(0, Vec::len);
    ensure!(count == 3, "{said}");

    let (first_drive, second_drive) = (one.drive(lab)?, two.drive(lab)?);
    ensure!(first_drive != second_drive, "{first_drive} twice");
    let work = |name: &str, seed: u32| {
        format!(
            "cd /tmp; head -c 16384 /dev/urandom >part{seed}; \
             for i in 1 2; do dd if=part{seed} of={name} bs=4k seek=256 oflag=direct 2>/dev/null && \
             dd if={name} bs=16k skip=64 count=1 iflag=direct 2>/dev/null | cmp - part{seed} && \
             dd if={name} of=/dev/null bs=64k count=4 iflag=direct 2>/dev/null || exit; done"
        )
    };
    // Uses both drives at once, then each of the other devices alone. A load that crosses another
    // load, or that waits for half a second on a busy host, gets no answer. The device then reads
    // all ones (`vpci::crossing_loads`), and edu's driver compares all data.
    let busy = [
        lab.spawn(0, &work(&first_drive, 1))?,
        lab.spawn(0, &work(&second_drive, 2))?,
    ];
    for job in busy {
        let out = job.wait(LONG)?;
        ensure!(out.status == 0, "{out:?}");
    }
    for lease in [&three, &other] {
        let script = format!("dev={}; {}", lease.address(), again(3));
        lab.ok_for(lease.node, &script, LONG)?;
    }
    partitioned(lab, &first_drive)?;
    for lease in leases {
        let line = lease.line(lab)?;
        ensure!(
            number(&line, "refused")? == 0 && number(&line, "full")? == 0,
            "{line}"
        );
    }
    // Returning one device does not affect the others.
    two.end(lab)?;
    rebind(lab, &three, 1)?;
    three.end(lab)?;
    rebind(lab, &other, 1)?;
    lab.ok_for(
        0,
        &format!("dd if={first_drive} of=/dev/null bs=16k count=4 iflag=direct"),
        LONG,
    )?;
    one.end(lab)?;
    rebind(lab, &other, 1)?;
    other.end(lab)?;
    for address in drives.iter().chain([&edu]) {
        reclaim(lab, LENDER, address)?;
    }
    reclaim(lab, 0, &back)?;
    for address in &drives {
        drive(lab, LENDER, address)?;
    }
    for number in 0..2 {
        no_fences(lab, number)?;
        lab.ok(number, "rmmod edu_check")?;
    }
    Ok(())
}

/// Creates a partition table with one partition and a file system in it.
fn partitioned(lab: &Lab, name: &str) -> Result<()> {
    // The partition has type 83, begins at 1 MiB and is 8 MiB long.
    let entry = r"\0\0\0\0\203\0\0\0\0\010\0\0\0\100\0\0";
    lab.ok_for(
        0,
        &format!(
            "printf '{entry}' | dd of={name} bs=1 seek=446 conv=notrunc 2>/dev/null && \
             printf '\\125\\252' | dd of={name} bs=1 seek=510 conv=notrunc 2>/dev/null && \
             blockdev --rereadpt {name} && p={name}p1 && \
             n=0; until [ -b $p ] || [ $n = 50 ]; do n=$((n+1)); sleep 0.1; done; \
             [ $(blockdev --getsize64 $p) = 8388608 ] && \
             mkfs.ext4 -q -O ^has_journal -E lazy_itable_init=1,nodiscard -N 64 $p && mount $p /mnt && \
             head -c 16384 /dev/urandom >/mnt/file && sha256sum /mnt/file >/tmp/sum && umount /mnt && \
             echo 3 >/proc/sys/vm/drop_caches && fsck.ext4 -fn $p && mount -o ro $p /mnt && sha256sum -c /tmp/sum && umount /mnt"
        ),
        LONG,
    )
    .map(drop)
}

/// A device can be borrowed directly after its return, while the lender still resets it.
fn borrowed_again(lab: &Lab) -> Result<()> {
    prepare(lab)?;
    for kind in [EDU, DRIVE] {
        let address = first(lab, LENDER, kind)?;
        lend(lab, LENDER, &address)?;
        let mut lease = Lease::new(lab, 0, LENDER, &address, false)?;
        for _ in 0..volume(5, 50) {
            lease.again(lab, LENDER, &address)?;
        }
        lease.end(lab)?;
        reclaim(lab, LENDER, &address)?;
    }
    Ok(())
}

/// Repeated leases, with and without a driver, leak no resource on either node.
fn cycles(lab: &Lab) -> Result<()> {
    prepare(lab)?;
    lab.ok(0, "modprobe edu_check")?;
    let devices = [first(lab, LENDER, EDU)?, first(lab, LENDER, DRIVE)?];
    for address in &devices {
        lend(lab, LENDER, address)?;
    }
    let before = counter(lab, LENDER, "lender.returned")?;
    let mut done = 0u64;
    let mut cycle = |n: u32| -> Result<()> {
        for i in 0..n {
            // Every fourth lease is of the drive, whose driver takes longer.
            let address = &devices[usize::from(i % 4 == 3)];
            let lease = Lease::new(lab, 0, LENDER, address, false)?;
            if i % 4 == 3 {
                lease.drive(lab)?;
            } else {
                lease.ok(lab, "[ -e /sys/bus/pci/drivers/edu_check/$dev ]")?;
            }
            lease.end(lab)?;
            done += 1;
        }
        Ok(())
    };
    cycle(4).context("the first")?;
    let nodes = [node(lab, 0), node(lab, 1)];
    let used = [Usage::of(nodes[0])?, Usage::of(nodes[1])?];
    cycle(rounds(volume(25, 1000)))?;
    for (used, node) in used.iter().zip(nodes) {
        used.is_back(node)?;
    }
    let back = counter(lab, LENDER, "lender.returned")? - before;
    ensure!(back == done, "{back} of {done} were given back");
    for number in 0..2 {
        no_fences(lab, number)?;
    }
    for address in &devices {
        reclaim(lab, LENDER, address)?;
    }
    lab.ok(0, "rmmod edu_check")?;
    lab.assert_no_leaks()
}
