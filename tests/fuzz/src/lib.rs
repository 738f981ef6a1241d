// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Fuzz entry points: one for each decoder of `wire`, and one for the layout that `protocol`
//! derives from a device's registers. Each entry point accepts any bytes and panics if the decoder
//! violates an invariant. `cargo test -p wire-fuzz` runs the entry points with a seeded, limited
//! number of inputs. libFuzzer runs them without limit (`fuzz_targets/`, `cargo fuzz run --fuzz-dir
//! tests/fuzz/fuzz_targets NAME`).
#![forbid(unsafe_code)]

mod ds;
mod eth;
mod lnd;
mod pci;
mod units;

pub use ds::fuzz_ds_message;
pub use eth::{fuzz_eth_message, fuzz_eth_reassembly};
pub use lnd::fuzz_lnd_message;
pub use pci::{fuzz_pci_config, fuzz_pci_message};
pub use units::{
    fuzz_atu, fuzz_bq, fuzz_htax, fuzz_regs, fuzz_rma_descriptor, fuzz_rma_notification,
    fuzz_route, fuzz_snq_entry, fuzz_snq_program, fuzz_tlp, fuzz_velo_descriptor, fuzz_velo_status,
    fuzz_wcbuf,
};

/// A fuzz target.
pub struct Target {
    /// Name of the target's harness in `fuzz_targets/`.
    pub name: &'static str,
    /// Entry point.
    pub run: fn(&[u8]),
    /// Function that returns valid inputs as a start for mutations.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Returns the little-endian bytes of quadwords.
pub fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// Input that yields values from its front, and zeros after its end.
pub(crate) struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        head
    }

    pub fn u64(&mut self) -> u64 {
        let mut qw = [0; 8];
        let head = self.bytes(8);
        qw[..head.len()].copy_from_slice(head);
        u64::from_le_bytes(qw)
    }

    pub fn u8(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "velo_descriptor",
        run: fuzz_velo_descriptor,
        seeds: units::velo_seeds,
    },
    Target {
        name: "velo_status",
        run: fuzz_velo_status,
        seeds: units::velo_seeds,
    },
    Target {
        name: "rma_descriptor",
        run: fuzz_rma_descriptor,
        seeds: units::rma_seeds,
    },
    Target {
        name: "rma_notification",
        run: fuzz_rma_notification,
        seeds: units::notification_seeds,
    },
    Target {
        name: "bq",
        run: fuzz_bq,
        seeds: units::bq_seeds,
    },
    Target {
        name: "atu",
        run: fuzz_atu,
        seeds: units::atu_seeds,
    },
    Target {
        name: "snq_entry",
        run: fuzz_snq_entry,
        seeds: units::entry_seeds,
    },
    Target {
        name: "snq_program",
        run: fuzz_snq_program,
        seeds: units::program_seeds,
    },
    Target {
        name: "wcbuf",
        run: fuzz_wcbuf,
        seeds: units::wcbuf_seeds,
    },
    Target {
        name: "htax",
        run: fuzz_htax,
        seeds: units::htax_seeds,
    },
    Target {
        name: "route",
        run: fuzz_route,
        seeds: units::route_seeds,
    },
    Target {
        name: "regs",
        run: fuzz_regs,
        seeds: units::regs_seeds,
    },
    Target {
        name: "tlp",
        run: fuzz_tlp,
        seeds: units::tlp_seeds,
    },
    Target {
        name: "lnd_message",
        run: fuzz_lnd_message,
        seeds: lnd::message_seeds,
    },
    Target {
        name: "ds_message",
        run: fuzz_ds_message,
        seeds: ds::message_seeds,
    },
    Target {
        name: "eth_message",
        run: fuzz_eth_message,
        seeds: eth::message_seeds,
    },
    Target {
        name: "eth_reassembly",
        run: fuzz_eth_reassembly,
        seeds: eth::reassembly_seeds,
    },
    Target {
        name: "pci_message",
        run: fuzz_pci_message,
        seeds: pci::message_seeds,
    },
    Target {
        name: "pci_config",
        run: fuzz_pci_config,
        seeds: pci::config_seeds,
    },
];
