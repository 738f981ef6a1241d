// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Lease state of an accelerator, which is a PCIe device behind a NIC without a host. Borrowers
//! store the state in registers of that NIC (docs/pci-protocol.md, *Accelerators*).
//!
//! No software runs at such a node. The NIC has eight scratchpads, of which the hardware reference
//! defines only the first four (HW §4.3). This project uses two of the other scratchpads by its own
//! decision. Their contents survive resets that spare the network, but not power cycles.

use crate::ids::{NodeId, RegOffset};
use crate::regs::info;

/// Scratchpad 4: lease of the device, a [`LeaseWord`].
pub const LEASE: RegOffset = info::scratchpad(4);
/// Scratchpad 5: SMFU intervals through which a node may have windows. Bit *n* belongs to interval
/// *n*.
pub const INTERVALS: RegOffset = info::scratchpad(5);
/// Constant that distinguishes a valid lease word from the register's value after a reset.
pub const MAGIC: u16 = 0xACC;

bits! {
    /// Lease of an accelerator as a register stores it.
    pub struct LeaseWord {
        /// Random number that the borrower draws for each lease.
        nonce / with_nonce: u32 [31:0];
        /// Node that wrote the lease word.
        node / with_node: u16 [47:32];
        /// Code of the lease's [`State`].
        state / with_state: u8 [51:48];
        /// Constant [`MAGIC`].
        magic / with_magic: u16 [63:52];
    }
}

/// State of the device's lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// The device is not leased.
    Free,
    /// A node claims the device and waits, because another node may claim the device at the same
    /// time.
    Claimed,
    /// A node has leased the device.
    Lent,
    /// A node takes the device over. It closes all windows of the previous borrower.
    Taken,
}

impl State {
    const fn code(self) -> u8 {
        match self {
            State::Free => 1,
            State::Claimed => 2,
            State::Lent => 3,
            State::Taken => 4,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => State::Free,
            2 => State::Claimed,
            3 => State::Lent,
            4 => State::Taken,
            _ => return None,
        })
    }
}

/// Contents of a valid lease word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LeaseRecord {
    /// State of the lease.
    pub state: State,
    /// Node that wrote the lease word.
    pub node: NodeId,
    /// Random number of the lease.
    pub nonce: u32,
}

impl LeaseRecord {
    /// Decodes a register value. Returns `None` if the NIC belongs to no accelerator or has been
    /// reset.
    #[must_use]
    pub const fn parse(raw: u64) -> Option<Self> {
        let word = LeaseWord(raw);
        if word.magic() != MAGIC {
            return None;
        }
        match State::from_code(word.state()) {
            Some(state) => Some(Self {
                state,
                node: NodeId(word.node()),
                nonce: word.nonce(),
            }),
            None => None,
        }
    }

    /// Returns the register value.
    #[must_use]
    pub const fn raw(self) -> u64 {
        LeaseWord(0)
            .with_magic(MAGIC)
            .with_state(self.state.code())
            .with_node(self.node.0)
            .with_nonce(self.nonce)
            .raw()
    }

    /// Returns a copy of the lease in another state.
    #[must_use]
    pub const fn with(self, state: State) -> Self {
        Self { state, ..self }
    }
}
