// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! What error notifications mean (G13, G17).

use super::{Command, Notification};
use core::fmt;

/// Which unit found an error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FaultUnit {
    /// The requester, at the origin.
    Requester,
    /// The responder, at the target.
    Responder,
    /// The completer of the node that the data went to.
    Completer,
}

/// What kind of error it was. The notification tells the unit only; the kind follows from the
/// command.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FaultCause {
    /// No translation, one of another VPID, or one that does not allow the access.
    Translation,
    /// A bus address that cannot be accessed.
    Memory,
    /// No such lock.
    Lock,
    /// A register access of illegal length or address.
    Register,
    /// A modifier that the NIC does not support here.
    Modifier,
}

/// An error that a notification reports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fault {
    /// Unit; the first in the order of the data's way if several report one.
    pub unit: FaultUnit,
    /// Kind.
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
    /// The error of a notification, `None` if it reports success.
    pub fn of(n: &Notification) -> Option<Self> {
        let unit = match n.error {
            0 => return None,
            e if e & 1 != 0 => FaultUnit::Requester,
            e if e & 2 != 0 => FaultUnit::Responder,
            _ => FaultUnit::Completer,
        };
        let cause = match n.command {
            Command::Lock | Command::LockResponse => FaultCause::Lock,
            // The local side of a register access is memory: only the target's unit can refuse the
            // register.
            _ if n.mode.rra && unit != FaultUnit::Requester => FaultCause::Register,
            _ if n.mode.era || n.mode.ewa => FaultCause::Modifier,
            _ if n.mode.translate => FaultCause::Translation,
            _ => FaultCause::Memory,
        };
        Some(Self { unit, cause })
    }
}
