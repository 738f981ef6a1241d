// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Who has the device behind a NIC without a host: what borrowers keep in registers of that NIC
//! (docs/pci-protocol.md, *Accelerators*).
//!
//! No software runs at such a node. Its NIC has eight scratchpads, of which the hardware reference
//! knows a meaning of the first four only (HW §4.3). Two of the others are used here. That is a
//! decision of this project's; resets that spare the network keep them, power cycles don't.

use crate::ids::{NodeId, RegOffset};
use crate::regs::info;

/// Scratchpad 4: who has the device, a [`LeaseWord`].
pub const LEASE: RegOffset = info::scratchpad(4);
/// Scratchpad 5: numbers of intervals that somebody may have windows for, as a set: bit *n* stands
/// for number *n*.
pub const NUMBERS: RegOffset = info::scratchpad(5);
/// What says that a word is one: no register has it after a reset.
pub const MAGIC: u16 = 0xACC;

bits! {
    /// The word.
    pub struct LeaseWord {
        /// Drawn for each lease.
        nonce / with_nonce: u32 [31:0];
        /// Who wrote it.
        node / with_node: u16 [47:32];
        /// See [`State`].
        state / with_state: u8 [51:48];
        /// [`MAGIC`].
        magic / with_magic: u16 [63:52];
    }
}

/// What becomes of the device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// Nobody has it.
    Free,
    /// A node wants it, and waits whether another one does, too.
    Claimed,
    /// A node has it.
    Lent,
    /// A node takes it from whoever has it, and closes everything.
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

/// A lease word that is one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Mark {
    /// What becomes of the device.
    pub state: State,
    /// Who wrote it.
    pub node: NodeId,
    /// Of which lease.
    pub nonce: u32,
}

impl Mark {
    /// What a register says; `None`: that its NIC is no accelerator's, or has been reset.
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

    /// The register's value.
    #[must_use]
    pub const fn raw(self) -> u64 {
        LeaseWord(0)
            .with_magic(MAGIC)
            .with_state(self.state.code())
            .with_node(self.node.0)
            .with_nonce(self.nonce)
            .raw()
    }

    /// The same with another state.
    #[must_use]
    pub const fn with(self, state: State) -> Self {
        Self { state, ..self }
    }
}
