//! Compares a drive of node 1 that node 0 has borrowed (vpci.ko) with a drive of the same model in
//! node 0. The figures are instructions, interrupts, copied bytes, accesses to node 0's NIC and
//! packets per read. Only reads are compared, because an emulated drive reads memory very slowly
//! over the fabric.

use crate::insns::{at_rest, passes_of, Row, Unit};
use anyhow::{ensure, Context, Result};
use labctl::{modules, Device, Lab, Model, Spec};
use serde::Serialize;
use std::time::{Duration, Instant};

const MIB: u64 = 64;

/// Lab with a drive in each node; otherwise like [`crate::insns::SPEC`]. Both drives that node 0
/// uses are behind an IOMMU.
pub const SPEC: Spec = Spec::pair()
    .no_sshd()
    .ideal()
    .cpus(1)
    .count_instructions()
    .append(&["idle=halt"])
    .iommu_in(&[0])
    .devices(&[
        Device {
            node: 0,
            model: Model::Nvme { mib: MIB },
        },
        Device {
            node: 1,
            model: Model::Nvme { mib: MIB },
        },
    ]);

/// Maximum time of a run.
const PATIENCE: Duration = Duration::from_secs(240);
/// Maximum time until the lender's module leases the device, and until a driver has found a drive.
const BEGIN: Duration = Duration::from_secs(60);
/// Number of reads in the shorter of the two runs that are compared.
const FEW: u64 = 16;
const MANY: u64 = 272;

/// Name, title and block size of each kind of read.
const READS: [(&str, &str, &str); 2] = [
    ("read4k", "reads of 4 KiB", "4k"),
    ("read128k", "reads of 128 KiB", "128k"),
];

/// Figures of one kind of reads from one drive. All numbers are per read.
#[derive(Debug, Clone, Serialize)]
pub struct Drive {
    /// Drive that was read: `local` or `borrowed`.
    pub subject: &'static str,
    /// Name of the workload.
    pub work: &'static str,
    /// Interrupts that the drive raised.
    pub interrupts: f64,
    /// Bytes that node 0 copied between the memory of its driver and the pool that the drive can
    /// access.
    pub copied: f64,
    /// Loads and stores of node 0 to its NIC, including the window to the drive.
    pub mmio: f64,
    /// Packets that both NICs sent.
    pub packets: f64,
}

/// All figures of the measurement.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Drives {
    /// Instructions per read.
    pub rows: Vec<Row>,
    /// Other figures per read.
    pub counts: Vec<Drive>,
}

fn until(lab: &Lab, what: &str, node: usize, script: &str) -> Result<String> {
    let begun = Instant::now();
    loop {
        let out = lab.sh_for(node, script, PATIENCE)?;
        if out.status == 0 {
            return Ok(out.stdout);
        }
        ensure!(begun.elapsed() < BEGIN, "{what}: {}", out.stderr);
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Returns the interrupts of a controller in node 0, the bytes copied for borrowed devices, node
/// 0's accesses to its NIC, and the packets of both NICs.
fn counted(lab: &Lab, controller: &str) -> Result<[u64; 4]> {
    let script = format!(
        "awk '/{controller}q/ {{n += $2}} END {{print n + 0}}' /proc/interrupts; \
         exec 3<>/dev/extoll_pci; echo leases >&3; tr ' ' '\\n' <&3 | awk -F= '/^copied_/ {{n += $2}} END {{print n + 0}}'"
    );
    let said = lab.ok(0, &script)?;
    let mut numbers = said.split_whitespace().map(str::parse::<u64>);
    let mut next = || {
        numbers
            .next()
            .context("too few numbers")?
            .context("no number")
    };
    let (interrupts, copied) = (next()?, next()?);
    let status = lab.status()?;
    let of = |nic: usize, name: &str| {
        let counter = status["fabric"]["nics"][nic]["counters"][name].as_u64();
        counter.with_context(|| format!("the emulator has no counter {name}"))
    };
    let mmio = of(0, "mmio_writes")? + of(0, "mmio_reads")?;
    let packets = of(0, "packets_sent")? + of(1, "packets_sent")?;
    Ok([interrupts, copied, mmio, packets])
}

fn read(lab: &Lab, controller: &str, size: &str, count: u64) -> Result<()> {
    let script = format!(
        "dd if=/dev/{controller}n1 of=/dev/null bs={size} count={count} iflag=direct 2>/dev/null"
    );
    lab.ok_for(0, &script, PATIENCE).map(drop)
}

/// Measures both drives, and reports each step by `progress`.
///
/// # Errors
/// When a program fails, or instructions are not counted.
pub fn measure(lab: &Lab, passes: usize, progress: impl Fn(&str)) -> Result<Drives> {
    for node in 0..2 {
        let load = modules::modprobe("vpci", "vpci.timeout_ms=10000");
        lab.ok(node, &format!("modprobe nvme; {load}"))?;
    }
    let lend = "extollctl accel lend $(lspci -Dn -d ::0108 | cut -d' ' -f1)";
    lab.ok_for(1, lend, PATIENCE)?;
    until(
        lab,
        "node 0 has borrowed the drive of node 1",
        0,
        "extollctl accel borrow --node 1 0",
    )?;
    until(
        lab,
        "both drives have appeared",
        0,
        "[ -b /dev/nvme0n1 ] && [ -b /dev/nvme1n1 ]",
    )?;
    let quiet = at_rest(lab)?;
    let mut all = Drives::default();
    for (subject, controller) in [("local", "nvme0"), ("borrowed", "nvme1")] {
        for (work, title, size) in READS {
            progress(&format!("{title} from a drive, {subject}"));
            let before = counted(lab, controller)?;
            let passes = passes_of(lab, passes, [FEW, MANY], |count| {
                read(lab, controller, size, count)
            })?;
            let after = counted(lab, controller)?;
            let reads = (passes.len() as u64 * (FEW + MANY) + FEW) as f64;
            let per_read = |column: usize| (after[column] - before[column]) as f64 / reads;
            all.counts.push(Drive {
                subject,
                work,
                interrupts: per_read(0),
                copied: per_read(1),
                mmio: per_read(2),
                packets: per_read(3),
            });
            all.rows.push(Row {
                subject: if subject == "local" {
                    "drive_local"
                } else {
                    "drive_borrowed"
                },
                work,
                title,
                unit: Unit::Read,
                units: MANY - FEW,
                quiet,
                passes,
            });
        }
    }
    // Unloading the module returns the drive.
    for node in 0..2 {
        lab.ok_for(node, "rmmod vpci", PATIENCE)?;
    }
    Ok(all)
}

impl Drives {
    /// Returns keys and values for the summary.
    pub fn summary(&self) -> Vec<(String, f64)> {
        let rows = self.rows.iter().flat_map(Row::summary);
        let counts = self.counts.iter().flat_map(|d| {
            let key = format!("drive_{}.{}", d.subject, d.work);
            [
                (format!("{key}.interrupts"), d.interrupts),
                (format!("{key}.copied_bytes"), d.copied),
                (format!("{key}.mmio"), d.mmio),
                (format!("{key}.packets"), d.packets),
            ]
        });
        let node = |subject: &str, work: &str| {
            let mut rows = self.rows.iter();
            let row = rows.find(|r| r.subject == subject && r.work == work)?;
            Some(row.of_node(0)?.median)
        };
        let ratios = READS.iter().filter_map(|(work, ..)| {
            let ratio = node("drive_borrowed", work)? / node("drive_local", work)?;
            Some((format!("drive_borrowed.{work}.vs_local"), ratio))
        });
        rows.chain(counts).chain(ratios).collect()
    }

    /// Returns the figures that are not in the table of instructions, as text.
    pub fn text(&self) -> String {
        let mut out = String::from("\nPer read from a drive in node 0\n\n");
        for d in &self.counts {
            out.push_str(&format!(
                "  {}, {}: {:.2} interrupts, {:.0} bytes copied for the device, {:.2} accesses to the NIC, {:.2} packets\n",
                d.subject, d.work, d.interrupts, d.copied, d.mmio, d.packets
            ));
        }
        let ratios = self.summary().into_iter();
        for (key, value) in ratios.filter(|(key, _)| key.ends_with(".vs_local")) {
            out.push_str(&format!("  {key}: {value:.2} times the instructions\n"));
        }
        out
    }
}
