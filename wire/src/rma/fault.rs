// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Meaning of error notifications (G13, G17).

use super::{Command, Notification};
use core::fmt;

/// Unit that found an error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FaultUnit {
    /// The requester, at the origin.
    Requester,
    /// The responder, at the target.
    Responder,
    /// The completer of the node that received the data.
    Completer,
}

/// Kind of an error. The notification contains the unit only; the kind follows from the command.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FaultCause {
    /// No translation, one of another VPID, or one that does not allow the access.
    Translation,
    /// A bus address that cannot be accessed.
    Memory,
    /// The lock does not exist.
    Lock,
    /// A register access of illegal length or address.
    Register,
    /// A modifier that the NIC does not support here.
    Modifier,
}

/// An error that a notification reports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fault {
    /// Unit that found the error. If several units report an error, the first one on the path of
    /// the data.
    pub unit: FaultUnit,
    /// Kind of the error.
    pub cause: FaultCause,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.unit {
            FaultUnit::Requester => "requester",
            FaultUnit::Responder => "responder",
            FaultUnit::Completer => "completer",
        };
        let cause = match self.cause {
            FaultCause::Translation => "translation refused",
            FaultCause::Memory => "memory not accessible",
            FaultCause::Lock => "no such lock",
            FaultCause::Register => "illegal register access",
            FaultCause::Modifier => "modifier not supported",
        };
        write!(f, "{unit}: {cause}")
    }
}

impl Fault {
    /// Returns the error that a notification reports; `None` if it reports success.
    pub fn of(n: &Notification) -> Option<Self> {
        let unit = match n.error {
            0 => return None,
            e if e & 1 != 0 => FaultUnit::Requester,
            e if e & 2 != 0 => FaultUnit::Responder,
            _ => FaultUnit::Completer,
        };
        let cause = match n.command {
            Command::Lock | Command::LockResponse => FaultCause::Lock,
            // Only the target's unit can refuse a register, because the local side of a register
            // access is memory.
            _ if n.mode.rra && unit != FaultUnit::Requester => FaultCause::Register,
            _ if n.mode.era || n.mode.ewa => FaultCause::Modifier,
            _ if n.mode.translate => FaultCause::Translation,
            _ => FaultCause::Memory,
        };
        Some(Self { unit, cause })
    }
}
