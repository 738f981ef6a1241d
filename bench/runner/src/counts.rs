//! Bus accesses that one operation costs, from the emulator's counters.

use crate::stats::{median, short};
use anyhow::{Context, Result};
use extoll_emulator_api::control::{Client, NicCounters};
use labctl::Lab;
use serde::Serialize;

/// Number of accesses of each kind between a host and its NIC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Bus {
    /// Stores to registers.
    pub register_writes: u64,
    /// 8-byte stores to the VELO and RMA requester pages. The CPU combines them into bursts.
    pub window_stores: u64,
    /// Loads from registers.
    pub reads: u64,
    /// MSI messages that the NIC sent.
    pub interrupts: u64,
    /// Bytes that the NIC read from memory.
    pub dma_read: u64,
    /// Bytes that the NIC wrote to memory.
    pub dma_written: u64,
}

impl Bus {
    fn of(nic: &NicCounters) -> Result<Self> {
        let get = |name: &str| {
            nic.chip(name)
                .with_context(|| format!("the emulator has no counter {name}"))
        };
        let windows = get("velo_stores")? + get("rma_stores")?;
        Ok(Self {
            register_writes: get("mmio_writes")?.saturating_sub(windows),
            window_stores: windows,
            reads: get("mmio_reads")?,
            interrupts: get("interrupts")?,
            dma_read: get("dma_bytes_read")?,
            dma_written: get("dma_bytes_written")?,
        })
    }

    /// Returns the accesses since `before`.
    pub fn since(self, before: Self) -> Self {
        let d = u64::wrapping_sub;
        Self {
            register_writes: d(self.register_writes, before.register_writes),
            window_stores: d(self.window_stores, before.window_stores),
            reads: d(self.reads, before.reads),
            interrupts: d(self.interrupts, before.interrupts),
            dma_read: d(self.dma_read, before.dma_read),
            dma_written: d(self.dma_written, before.dma_written),
        }
    }

    fn list(self) -> [u64; 6] {
        let Self {
            register_writes,
            window_stores,
            reads,
            interrupts,
            dma_read,
            dma_written,
        } = self;
        [
            register_writes,
            window_stores,
            reads,
            interrupts,
            dma_read,
            dma_written,
        ]
    }
}

/// Returns the number of accesses of both nodes since the emulator started.
///
/// # Errors
/// When the emulator does not answer as expected.
pub fn buses(emulator: &mut Client) -> Result<[Bus; 2]> {
    let counters = emulator.counters()?;
    let [a, b, ..] = &counters.nics[..] else {
        anyhow::bail!("the emulator has fewer than two NICs")
    };
    Ok([Bus::of(a)?, Bus::of(b)?])
}

/// Accesses per operation, averaged over a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Rate of [`Bus::register_writes`].
    pub register_writes: f64,
    /// Rate of [`Bus::window_stores`].
    pub window_stores: f64,
    /// Rate of [`Bus::reads`].
    pub reads: f64,
    /// Rate of [`Bus::interrupts`].
    pub interrupts: f64,
    /// Rate of [`Bus::dma_read`] in bytes.
    pub dma_read: f64,
    /// Rate of [`Bus::dma_written`] in bytes.
    pub dma_written: f64,
}

impl Rates {
    /// Headings of the columns of [`Rates::list`].
    pub const HEAD: [&'static str; 6] = [
        "reg writes",
        "page stores",
        "reads",
        "interrupts",
        "DMA read",
        "DMA written",
    ];

    /// Returns the median cost per operation. The first run is the reference: it has `more`
    /// operations fewer than each other run. Its cost is subtracted from the cost of each other
    /// run.
    pub fn marginal(runs: &[Bus], more: u64) -> Self {
        let Some((base, others)) = runs.split_first() else {
            return Self::default();
        };
        let base = base.list();
        let rate = |column: usize| {
            let added: Vec<f64> = others
                .iter()
                .map(|run| run.list()[column].saturating_sub(base[column]) as f64)
                .map(|n| n / more.max(1) as f64)
                .collect();
            median(&added).unwrap_or(f64::NAN)
        };
        Self {
            register_writes: rate(0),
            window_stores: rate(1),
            reads: rate(2),
            interrupts: rate(3),
            dma_read: rate(4),
            dma_written: rate(5),
        }
    }

    /// Returns all rates in the order of [`Rates::HEAD`].
    pub fn list(self) -> [f64; 6] {
        [
            self.register_writes,
            self.window_stores,
            self.reads,
            self.interrupts,
            self.dma_read,
            self.dma_written,
        ]
    }
}

/// Frames of an interface, from the statistics of the guest's kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Frames {
    /// Frames sent.
    pub sent: u64,
    /// Frames received.
    pub received: u64,
    /// Bytes sent plus bytes received.
    pub bytes: u64,
    /// Frames that the peer reads by GET (rendezvous). The other frames are sent in messages
    /// (eager).
    pub rendezvous: u64,
}

impl Frames {
    /// Reads the statistics of exn0 on a node.
    ///
    /// # Errors
    /// When the node does not answer as expected.
    pub fn read(lab: &Lab, node: usize) -> Result<Self> {
        let text = lab.ok(
            node,
            "cd /sys/class/net/exn0/statistics && cat tx_packets rx_packets tx_bytes rx_bytes",
        )?;
        Ok(Self {
            rendezvous: lab.ethtool(node, "tx_rdv_frames")?,
            ..Self::parse(&text)?
        })
    }

    fn parse(text: &str) -> Result<Self> {
        let n: Vec<u64> = text
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()
            .with_context(|| format!("no statistics of exn0: {text}"))?;
        let [sent, received, tx_bytes, rx_bytes] = n[..] else {
            anyhow::bail!("no statistics of exn0: {text}")
        };
        Ok(Self {
            sent,
            received,
            bytes: tx_bytes + rx_bytes,
            rendezvous: 0,
        })
    }

    fn since(self, before: Self) -> Self {
        let d = u64::wrapping_sub;
        Self {
            sent: d(self.sent, before.sent),
            received: d(self.received, before.received),
            bytes: d(self.bytes, before.bytes),
            rendezvous: d(self.rendezvous, before.rendezvous),
        }
    }
}

/// Name of the operation in runs over exn0, whose operations are frames.
pub const FRAMES: &str = "frames";

/// Counts of one node in a run.
#[derive(Debug, Clone, Serialize)]
pub struct Side {
    /// Name of the run.
    pub run: String,
    /// Number of the node.
    pub node: usize,
    /// Name of the operation.
    pub operation: &'static str,
    /// Number of operations.
    pub operations: u64,
    /// Bytes that those operations transferred.
    pub bytes: u64,
    /// Frames of exn0; zero in runs that do not use exn0.
    pub frames: Frames,
    /// Total number of bus accesses.
    pub bus: Bus,
}

impl Side {
    /// Headings of the columns of [`Side::row`].
    pub const HEAD: &'static [&'static str] = &[
        "per operation",
        "node",
        "operations",
        "rendezvous",
        "bytes",
        "reg writes",
        "page stores",
        "reads",
        "interrupts",
        "DMA read",
        "DMA written",
    ];

    /// Returns the figures per operation as a row of the table.
    pub fn row(&self) -> Vec<String> {
        let per = |n: u64| short(n as f64 / self.operations.max(1) as f64);
        let path = match self.frames.sent {
            n if n > 0 && self.operation == FRAMES => {
                format!("{:.0} %", 100.0 * self.frames.rendezvous as f64 / n as f64)
            }
            _ => "-".into(),
        };
        let mut row = vec![
            self.run.clone(),
            self.node.to_string(),
            format!("{} {}", self.operations, self.operation),
            path,
            per(self.bytes),
        ];
        row.extend(self.bus.list().into_iter().map(per));
        row
    }
}

/// Counts the accesses of nodes 0 and 1 during `run`. `run` returns the number of operations and
/// their bytes, or `None` if the operations are the frames of exn0.
///
/// # Errors
/// When `run` fails or counters cannot be read.
pub fn counted(
    lab: &Lab,
    emulator: &mut Client,
    name: &str,
    operation: &'static str,
    run: impl FnOnce() -> Result<Option<(u64, u64)>>,
) -> Result<Vec<Side>> {
    let mut read = || -> Result<Vec<(Bus, Frames)>> {
        let buses = buses(emulator)?;
        let with_frames = |(n, bus)| Ok((bus, Frames::read(lab, n)?));
        buses.into_iter().enumerate().map(with_frames).collect()
    };
    let before = read()?;
    let operations = run().with_context(|| format!("counted run '{name}'"))?;
    let after = read()?;
    let sides = before
        .iter()
        .zip(after)
        .enumerate()
        .map(|(node, (old, new))| {
            let frames = new.1.since(old.1);
            let (operations, bytes) =
                operations.unwrap_or((frames.sent + frames.received, frames.bytes));
            Side {
                run: name.to_string(),
                node,
                operation,
                operations,
                bytes,
                frames,
                bus: new.0.since(old.0),
            }
        });
    Ok(sides.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_per_operation() {
        let old = Bus {
            register_writes: 5,
            reads: 1,
            ..Bus::default()
        };
        let new = Bus {
            register_writes: 25,
            reads: 1,
            window_stores: 40,
            interrupts: 10,
            dma_read: 0,
            dma_written: 1280,
        };
        let side = Side {
            run: "x".into(),
            node: 1,
            operation: FRAMES,
            operations: 10,
            bytes: 840,
            frames: Frames {
                sent: 8,
                rendezvous: 4,
                ..Frames::default()
            },
            bus: new.since(old),
        };
        assert_eq!(
            side.row(),
            [
                "x",
                "1",
                "10 frames",
                "50 %",
                "84.0",
                "2.00",
                "4.00",
                "0.00",
                "1.00",
                "0.00",
                "128"
            ]
        );
        assert_eq!(side.row().len(), Side::HEAD.len());
    }

    #[test]
    fn rates_are_marginal() {
        let run = |register_writes, reads| Bus {
            register_writes,
            reads,
            ..Bus::default()
        };
        let rates = Rates::marginal(&[run(7, 3), run(27, 3), run(1027, 1), run(17, 4)], 10);
        assert_eq!(rates.register_writes, 2.0);
        assert_eq!(rates.reads, 0.0);
        assert_eq!(rates.list().len(), Rates::HEAD.len());
    }

    #[test]
    fn statistics_of_the_interface() {
        assert_eq!(
            Frames::parse("1\n2\n30\n40\n").unwrap(),
            Frames {
                sent: 1,
                received: 2,
                bytes: 70,
                rendezvous: 0
            }
        );
        assert!(Frames::parse("1\n2\n").is_err());
        assert!(Frames::parse("cat: no such file").is_err());
    }
}
