//! A drive behind a NIC without a host, borrowed by nodes and used by the kernel's unmodified
//! driver.

use crate::cluster::{Lab, Spec, PATIENCE};
use crate::scenarios::pci::accel::{enrol, state};
use crate::scenarios::pci::lease::{self as lease, ctl, load, Lease, LONG};
use crate::Scenario;
use anyhow::{ensure, Context, Result};

/// Two nodes and a drive, which is node 2.
const SPEC: Spec = Spec::new(2)
    .accelerators(1)
    .emulator(&["--accelerator=nvme:64M"]);
const ACC: usize = 2;
const BYTES: u64 = 64 << 20;
/// PCI address of the drive at its NIC.
const PLACE: &str = "0000:01:00.0";
const ID: &str = "1cad:7e58";
const OPTIONS: &str = "vpci.timeout_ms=10000 vpci.access_ms=1000";

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![Scenario::new("vpci::accelerator_drive", SPEC, accelerator_drive).seconds(1200)]
}

/// Borrows the drive. Returns its lease, and its block device when the driver has found it.
fn borrow(lab: &Lab, node: usize) -> Result<(Lease, String)> {
    let lease = Lease::new(lab, node, ACC, PLACE, false)?;
    let name = lease::drive(lab, node, &lease.address())?;
    Ok((lease, name))
}

/// A borrowed drive keeps its data. It is used with a file system, returned, and loses its power.
/// The next node then finds the same data.
fn accelerator_drive(lab: &Lab) -> Result<()> {
    for node in 0..2 {
        load(lab, node, OPTIONS)?;
    }
    enrol(lab, 0, ACC)?;
    let said = ctl(lab, 0, &format!("list --node {ACC}"))?;
    ensure!(said["offered"][0]["id"] == ID, "{said}");
    let (lease, drive) = borrow(lab, 0)?;
    let shown = lease.ok(lab, "lspci -s $dev")?;
    ensure!(shown.contains("Non-Volatile memory controller"), "{shown}");
    let bytes = lab.ok(0, &format!("lsblk -bdno SIZE {drive}"))?;
    ensure!(bytes.trim() == BYTES.to_string(), "{bytes}");
    let health = lab.ok(0, &format!("nvme smart-log {drive}"))?;
    ensure!(health.contains("percentage_used"), "{health}");

    let volume = if crate::cluster::full() { "256m" } else { "8m" };
    for size in ["4k", "128k"] {
        lab.ok_for(
            0,
            &format!(
                "fio --name=v --filename={drive} --rw=randrw --bs={size} --size=64m --io_size={volume} --verify=crc32c \
                 --verify_fatal=1 --direct=1 --ioengine=libaio --iodepth=16 --output-format=terse >/tmp/fio"
            ),
            LONG,
        )?;
    }
    lab.ok_for(
        0,
        &format!(
            "printf 'label: gpt\\n,8MiB\\n,\\n' | sfdisk -q {drive} && mkfs.ext4 -q {drive}p2 && mount {drive}p2 /mnt && \
             head -c 4194304 /dev/urandom >/mnt/file && sha256sum /mnt/file >/tmp/sum && umount /mnt"
        ),
        LONG,
    )?;
    let fired = lab.ok(
        0,
        "awk '/nvme[0-9]+q/ {n += $2} END {print n}' /proc/interrupts",
    )?;
    let fired: u64 = fired.trim().parse().with_context(|| fired.clone())?;
    ensure!(fired >= 30, "{fired} interrupts of the drive");
    lease.end(lab)?;
    ensure!(state(lab, 0, ACC)? == "Free");

    // Without power the drive keeps its blocks, but must be enrolled again.
    lab.fault(&["power-off", "acc0"])?;
    lab.fault(&["power-on", "acc0"])?;
    enrol(lab, 0, ACC)?;
    let (lease, drive) = borrow(lab, 1)?;
    lab.ok_for(
        1,
        &format!(
            "fsck.ext4 -fn {drive}p2 && mount -o ro {drive}p2 /mnt && sha256sum /mnt/file | cut -c1-64 >/tmp/sum && umount /mnt"
        ),
        LONG,
    )?;
    let (here, there) = (
        lab.ok(0, "cut -c1-64 /tmp/sum")?,
        lab.ok(1, "cat /tmp/sum")?,
    );
    ensure!(here == there, "{here} and {there}");
    lease.end(lab)?;
    for node in 0..2 {
        lab.ok_for(node, "rmmod vpci", PATIENCE)?;
    }
    Ok(())
}
