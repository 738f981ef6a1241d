//! A drive in node 1, borrowed by node 0 and used by its unmodified driver.
//!
//! A device reads memory of another node in units of eight bytes, each of which is a message in the
//! emulator. The drive therefore reads little, and time-outs are longer than usual.

use crate::cluster::{modules, Device, Lab, Model, Spec, PATIENCE};
use crate::scenarios::expected::{BORROWED, TAKEN};
use crate::scenarios::{
    guest,
    pci::lease::{
        self as lease, counter, counters, ctl, first, lend, load, more, no_fences, reclaim, Lease,
        DRIVE_MIB, LENDER, LONG, PAIR,
    },
};
use crate::Scenario;
use anyhow::{ensure, Context, Result};

/// Block device of the drive at the borrower, which has no other drive.
const DRIVE: &str = "/dev/nvme0n1";
const OPTIONS: &str = "vpci.timeout_ms=10000";

/// With an IOMMU, the borrower's NIC accesses only mapped memory. The lender has no IOMMU, because
/// its NIC could not reach devices through an IOMMU.
const IOMMU: Spec = Spec::pair().ideal().iommu_in(&[0]).devices(&[Device {
    node: LENDER,
    model: Model::Nvme { mib: DRIVE_MIB },
}]);

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        Scenario::new("vpci::drive", PAIR.ideal(), drive)
            .gate()
            .finds(BORROWED),
        Scenario::new("vpci::drive_taken_away", PAIR.ideal(), drive_taken_away).finds(TAKEN),
        // This scenario must be first in its cluster, because it tests a node that has not loaded
        // the module.
        Scenario::new("vpci::commands", PAIR, commands).finds(BORROWED),
        Scenario::new("vpci::drive_iommu", IOMMU, drive_iommu).finds(BORROWED),
        Scenario::new("vpci::drive_unkind", PAIR, drive_unkind).finds(BORROWED),
    ]
}

/// Loads the modules and lets node 1 offer its drive. Returns its PCI address.
fn offer(lab: &Lab) -> Result<String> {
    for node in 0..2 {
        load(lab, node, OPTIONS)?;
    }
    let address = first(lab, LENDER, lease::DRIVE)?;
    lend(lab, LENDER, &address)?;
    Ok(address)
}

/// Borrows the drive. Returns its PCI domain.
fn borrow(lab: &Lab, address: &str) -> Result<String> {
    let lease = Lease::new(lab, 0, LENDER, address, false)?;
    let drive = lease.drive(lab)?;
    ensure!(drive == DRIVE, "the drive is {drive}");
    Ok(lease.domain)
}

fn gone(lab: &Lab) -> Result<()> {
    lab.until("the drive is removed", PATIENCE, |lab| {
        let left = lab.sh_for(0, "lspci -Dn -d ::0108; ls /dev | grep ^nvme0", PATIENCE)?;
        Ok(left.stdout.is_empty())
    })
}

fn state(lab: &Lab, address: &str) -> Result<String> {
    lease::state(lab, LENDER, address)
}

/// Ends the offer and checks that node 1 uses its drive again. Returns its block device.
fn end(lab: &Lab, address: &str) -> Result<String> {
    reclaim(lab, LENDER, address)?;
    for node in 0..2 {
        no_fences(lab, node)?;
    }
    lease::drive(lab, LENDER, address)
}

/// A borrowed drive works: file system, checksummed data, interrupts per queue. After return and
/// another lease the data are unchanged.
fn drive(lab: &Lab) -> Result<()> {
    let address = offer(lab)?;
    let counts = || -> Result<[u64; 2]> {
        let of = |name| counter(lab, LENDER, name);
        Ok([of("lender.leases")?, of("lender.returned")?])
    };
    let before = counts()?;
    let offered = ctl(lab, 0, "list --node 1")?;
    ensure!(offered["offered"][0]["at"] == address.as_str(), "{offered}");
    let domain = borrow(lab, &address)?;
    let bytes = lab.ok(0, &format!("blockdev --getsize64 {DRIVE}"))?;
    ensure!(bytes.trim() == (DRIVE_MIB << 20).to_string(), "{bytes}");
    ensure!(
        state(lab, &address)?.starts_with("Lent"),
        "{}",
        state(lab, &address)?
    );
    let has = format!("[ -e /sys/bus/pci/devices/{address}/nvme ]");
    let own = lab.sh_for(LENDER, &has, PATIENCE)?;
    ensure!(own.status != 0, "node 1 has the drive, too");

    let volume = if crate::cluster::full() {
        "256m"
    } else {
        "192k"
    };
    lab.ok_for(
        0,
        &format!(
            "fio --name=v --filename={DRIVE} --rw=randrw --bs=4k --size=1m --io_size={volume} --offset=32m --verify=crc32c \
             --verify_fatal=1 --direct=1 --ioengine=libaio --iodepth=2 --output-format=terse >/tmp/fio"
        ),
        LONG,
    )?;
    lab.ok_for(
        0,
        &format!(
            "mkfs.ext4 -q -O ^has_journal -E lazy_itable_init=1,nodiscard -N 64 {DRIVE} 8m && mount {DRIVE} /mnt && \
             head -c 32768 /dev/urandom >/mnt/file && sha256sum /mnt/file >/tmp/sum && umount /mnt"
        ),
        LONG,
    )?;
    let fired = lab.ok(0, "awk '/nvme0q/ {n += $2} END {print n}' /proc/interrupts")?;
    let fired: u64 = fired.trim().parse().with_context(|| fired.clone())?;
    ensure!(fired >= 30, "{fired} interrupts of the drive");

    ctl(lab, 0, &format!("return {domain}"))?;
    gone(lab)?;
    ensure!(state(lab, &address)? == "Free", "{}", state(lab, &address)?);
    let again = borrow(lab, &address)?;
    lab.ok_for(
        0,
        &format!("fsck.ext4 -fn {DRIVE} && mount -o ro {DRIVE} /mnt && sha256sum -c /tmp/sum && umount /mnt"),
        LONG,
    )?;
    ctl(lab, 0, &format!("return {again}"))?;
    gone(lab)?;
    let after = counts()?;
    ensure!(
        after == [before[0] + 2, before[1] + 2],
        "leases, and given back: {before:?}, {after:?}"
    );
    let own = end(lab, &address)?;
    for node in 0..2 {
        lab.ok(node, "rmmod vpci")?;
    }
    // Node 1 reads what node 0 wrote.
    lab.ok_for(
        LENDER,
        &format!(
            "mount -o ro {own} /mnt && sha256sum /mnt/file | cut -c1-64 >/tmp/sum && umount /mnt"
        ),
        LONG,
    )?;
    let (here, there) = (
        lab.ok(0, "cut -c1-64 /tmp/sum")?,
        lab.ok(LENDER, "cat /tmp/sum")?,
    );
    ensure!(here == there, "{here} and {there}");
    Ok(())
}

/// Node 1 takes its drive back while node 0 reads: first in agreement with node 0, then by force.
/// The driver is notified, the reader gets an error, and the next lease works.
fn drive_taken_away(lab: &Lab) -> Result<()> {
    const ENDS: [&str; 3] = ["lender.returned", "lender.reclaimed", "lender.expired"];
    const LOST: [&str; 2] = ["borrower.revoked", "borrower.lost"];
    let address = offer(lab)?;
    let (ends, lost) = (counters(lab, LENDER, &ENDS)?, counters(lab, 0, &LOST)?);
    borrow(lab, &address)?;
    let read = format!(
        "while dd if={DRIVE} of=/dev/null bs=4k count=16 iflag=direct 2>/dev/null; do :; done"
    );
    let reader = lab.spawn(0, &read)?;
    lab.until("node 0 reads", PATIENCE, |lab| {
        Ok(counter(lab, 0, "interrupts")? > 50)
    })?;
    ctl(
        lab,
        LENDER,
        &format!("reclaim {address} --grace-ms 8000 --keep"),
    )?;
    reader.wait(LONG)?;
    gone(lab)?;
    ensure!(state(lab, &address)? == "Free", "{}", state(lab, &address)?);
    let in_order = more(lab, LENDER, &ENDS, &ends)?;
    ensure!(in_order == [1, 0, 0], "not in order: {in_order:?}");
    let forced = more(lab, 0, &LOST, &lost)?;
    ensure!(forced == [0, 0], "taken by force: {forced:?}");
    borrow(lab, &address)?;
    let reader = lab.spawn(0, &read)?;
    lab.until("node 0 reads", PATIENCE, |lab| {
        Ok(lease_word(lab, "maps")? > 50)
    })?;
    // The driver is removed, like a pulled card.
    lab.ok_for(
        LENDER,
        &format!("echo {address} >/sys/bus/pci/drivers/vpci/unbind"),
        LONG,
    )?;
    reader.wait(LONG)?;
    gone(lab)?;
    let forced = more(lab, 0, &LOST, &lost)?;
    ensure!(forced == [1, 0], "not taken by force: {forced:?}");
    // The driver logs this message in its callback `error_detected`.
    lab.ok(0, "dmesg | grep 'nvme.*request disconnect'")?;
    lab.ok(
        LENDER,
        &format!("echo {address} >/sys/bus/pci/drivers_probe"),
    )?;
    borrow(lab, &address)?;
    lab.ok_for(
        0,
        &format!("dd if={DRIVE} of=/dev/null bs=4k count=4 iflag=direct"),
        LONG,
    )?;
    // The borrower's module is unloaded with the drive in use.
    lab.ok_for(0, "rmmod vpci", LONG)?;
    gone(lab)?;
    lab.ok(0, &modules::modprobe("vpci", OPTIONS))?;
    end(lab, &address).map(drop)
}

/// The drive works on a fabric with maximum delays and reordering. The test writes little and reads
/// more.
fn drive_unkind(lab: &Lab) -> Result<()> {
    let address = offer(lab)?;
    let domain = borrow(lab, &address)?;
    lab.ok_for(
        0,
        &format!(
            "head -c 4096 /dev/urandom >/tmp/block && dd if=/tmp/block of={DRIVE} bs=4k seek=3 oflag=direct 2>/dev/null && \
             dd if={DRIVE} bs=4k skip=3 count=1 iflag=direct 2>/dev/null | cmp - /tmp/block && \
             dd if={DRIVE} of=/dev/null bs=16k count=8 iflag=direct 2>/dev/null"
        ),
        LONG,
    )?;
    ctl(lab, 0, &format!("return {domain}"))?;
    gone(lab)?;
    end(lab, &address).map(drop)
}

/// Returns a number from the entry of the only lease.
fn lease_word(lab: &Lab, name: &str) -> Result<u64> {
    let said = ctl(lab, 0, "list")?;
    let word = &said["borrowed"][0][name];
    let number = word.as_u64().or_else(|| word.as_str()?.parse().ok());
    number.with_context(|| format!("{name}: {said}"))
}

/// With an IOMMU in front of the borrower's NIC, whole pages are mapped without a copy. Only parts
/// of pages are copied.
fn drive_iommu(lab: &Lab) -> Result<()> {
    let outside = || lease::model(lab, 0, "host_dma_outside_memory");
    let faults = outside()?;
    let address = offer(lab)?;
    let domain = borrow(lab, &address)?;
    let words = ["direct", "copied_in", "copied_out", "refused"];
    let before = words.map(|w| lease_word(lab, w));
    lab.ok_for(
        0,
        &format!(
            "head -c 65536 /dev/urandom >/tmp/block && dd if=/tmp/block of={DRIVE} bs=4k seek=300 oflag=direct 2>/dev/null && \
             dd if={DRIVE} bs=16k skip=75 count=4 iflag=direct 2>/dev/null | cmp - /tmp/block && \
             dd if={DRIVE} bs=4k skip=300 count=16 2>/dev/null | cmp - /tmp/block"
        ),
        LONG,
    )?;
    let after = words.map(|w| lease_word(lab, w));
    let mut more = [0; 4];
    for ((more, before), after) in more.iter_mut().zip(before).zip(after) {
        *more = after? - before?;
    }
    let [direct, copied_in, copied_out, refused] = more;
    println!("{direct} mapped as they are, {copied_in} and {copied_out} bytes copied");
    ensure!(direct >= 16 + 4, "only {direct} mappings without a copy");
    ensure!(
        copied_in + copied_out == 0,
        "{copied_in} and {copied_out} bytes of whole pages were copied"
    );
    ensure!(refused == 0, "{refused} were refused");
    // Transfers of less than a page are copied, so that the remainder of the page stays
    // unreachable.
    lab.ok_for(
        0,
        &format!("dd if={DRIVE} of=/dev/null bs=512 skip=2400 count=3 iflag=direct"),
        LONG,
    )?;
    let copied = lease_word(lab, "copied_out")?;
    ensure!(copied >= 3 * 512, "{copied} bytes were copied");
    ctl(lab, 0, &format!("return {domain}"))?;
    gone(lab)?;
    // Without address ranges for pages, whole pages are copied too.
    no_fences(lab, 0)?;
    lab.ok(
        0,
        &format!(
            "rmmod vpci && {}",
            modules::modprobe("vpci", &format!("{OPTIONS} map_kib=0"))
        ),
    )?;
    let domain = borrow(lab, &address)?;
    lab.ok_for(
        0,
        &format!(
            "dd if={DRIVE} bs=16k skip=75 count=4 iflag=direct 2>/dev/null | cmp - /tmp/block"
        ),
        LONG,
    )?;
    let (direct, copied) = (lease_word(lab, "direct")?, lease_word(lab, "copied_out")?);
    ensure!(
        direct == 0 && copied >= 65536,
        "{direct} mapped as they are, {copied} bytes copied"
    );
    ctl(lab, 0, &format!("return {domain}"))?;
    gone(lab)?;
    // The lender's NIC may see late stores of its own driver. The borrower's IOMMU saw no unmapped
    // access.
    let faults = outside()? - faults;
    ensure!(faults == 0, "{faults} accesses of what nobody had mapped");
    end(lab, &address).map(drop)
}

/// Administrators' tools can access all registers of the borrowed drive. Registers that identify
/// the device have the values of the drive.
fn registers(lab: &Lab, domain: &str, address: &str) -> Result<()> {
    let here = format!("{}:00:00.0", domain.trim_start_matches("0x"));
    let dump = |number: usize, at: &str| -> Result<Vec<String>> {
        let shown = lab.ok(number, &format!("lspci -xxxx -s {at}"))?;
        // Lines of the dump have an offset and 16 bytes.
        let lines = shown.lines().filter(|l| l.split_whitespace().count() == 17);
        Ok(lines.map(str::to_owned).collect())
    };
    let (borrowed, own) = (dump(0, &here)?, dump(LENDER, address)?);
    ensure!(borrowed.len() == 256 && own.len() == 256, "{borrowed:?}");
    // Compares the IDs, the PCI Express capability (0x80), and the extended registers above 256
    // bytes.
    ensure!(
        borrowed[0][..15] == own[0][..15],
        "{} {}",
        borrowed[0],
        own[0]
    );
    ensure!(borrowed[8].starts_with("80: 10 "), "{}", borrowed[8]);
    ensure!(borrowed[16..] == own[16..], "{borrowed:?} {own:?}");
    let set = format!("setpci -s {here} CACHE_LINE_SIZE");
    let read = lab.ok(0, &format!("{set}=10 && {set}"))?;
    ensure!(read.trim() == "10", "the size of a cache line is {read}");
    Ok(())
}

/// Invalid commands fail with a reason.
fn commands(lab: &Lab) -> Result<()> {
    let refused = |node: usize, words: &str, why: &str| -> Result<()> {
        let out = lab.sh_for(node, &format!("extollctl accel {words}"), LONG)?;
        ensure!(out.status != 0, "'{words}' was done: {}", out.stdout);
        ensure!(out.stderr.contains(why), "'{words}': {}", out.stderr);
        Ok(())
    };
    lab.sh_for(0, "rmmod vpci", PATIENCE)?;
    refused(0, "list", "is the module vpci loaded?")?;
    let address = offer(lab)?;
    refused(0, "list --node 1000", "does not answer")?;
    refused(0, "borrow --node 1 7", "no such device")?;
    refused(0, "borrow --node 1 0000:7f:00.0", "lends no")?;
    refused(0, "return 0x10001", "no such device")?;
    refused(LENDER, "lend 0000:7f:00.0", "there is no")?;
    refused(LENDER, "reclaim 0000:7f:00.0", "is not lent")?;
    // A bridge can't be lent.
    let bridge = lab.ok(LENDER, "lspci -Dn -d ::0600 | cut -d' ' -f1")?;
    let bridge = bridge.lines().next().context("no bridge")?.to_owned();
    refused(LENDER, &format!("lend {bridge}"), "does not take")?;
    let left = lab.ok(
        LENDER,
        &format!("cat /sys/bus/pci/devices/{bridge}/driver_override"),
    )?;
    ensure!(!left.contains("vpci"), "the bridge is still vpci's: {left}");
    for words in [
        "",
        "nonsense",
        "borrow",
        "list node=x",
        "borrow node=1 node",
        "return domain=zz",
    ] {
        let out = lab.sh_for(0, &format!("echo '{words}' >/dev/extoll_pci"), PATIENCE)?;
        ensure!(out.status != 0, "'{words}' was done");
    }
    guest::install(lab, 0)?;
    let user = lab.sh_for(
        0,
        "setpriv --reuid 1000 --clear-groups sh -c 'echo leases >/dev/extoll_pci'",
        PATIENCE,
    )?;
    ensure!(user.status != 0, "a user may");
    let domain = borrow(lab, &address)?;
    registers(lab, &domain, &address).context("lspci and setpci")?;
    let again = format!("borrow --node 1 {address}");
    refused(0, &again, "somebody has the device")?;
    // A node's own device does not need the network.
    refused(LENDER, &again, "Invalid argument")?;
    refused(LENDER, &format!("repair {address}"), "is not broken")?;
    ctl(lab, 0, &format!("return {domain}"))?;
    end(lab, &address).map(drop)
}
