// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Meaning of error notifications (G13, G17).

use super::{Command, Notification};
use core::fmt;

/// Unit of the NIC that found an error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FaultUnit {
    /// The requester, at the origin.
    Requester,
    /// The responder, at the target.
    Responder,
    /// The completer of the node that received the data.
    Completer,
}

/// Kind of an error. The notification contains only the unit. The kind follows from the command.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FaultCause {
    /// The address has no translation, or its translation belongs to another VPID or forbids the
    /// access.
    Translation,
    /// The bus address cannot be accessed.
    Memory,
    /// The lock does not exist.
    Lock,
    /// The length or address of a register access is illegal.
    Register,
    /// The NIC does not support this modifier for the command.
    Modifier,
}

/// Error that a notification reports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fault {
    /// Unit that found the error. If several units report an error, the unit that comes first on
    /// the path of the data.
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
            // The responder or completer can only reject the register access, because the other
            // side of such a command is memory of the origin.
            _ if n.mode.rra && unit != FaultUnit::Requester => FaultCause::Register,
            _ if n.mode.era || n.mode.ewa => FaultCause::Modifier,
            _ if n.mode.translate => FaultCause::Translation,
            _ => FaultCause::Memory,
        };
        Some(Self { unit, cause })
    }
}
