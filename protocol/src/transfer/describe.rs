// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Construction of RMA descriptors.

use super::{tables::Action, Lock};
use wire::{
    ids::{NodeId, Vpid},
    rma::{Descriptor, Direction, Modifiers, NotifySpec, Operation, PageOptions},
};

/// Data command of a transfer.
#[derive(Clone, Copy)]
pub(super) struct DataCommand {
    pub(super) direction: Direction,
    pub(super) local: u64,
    pub(super) remote: u64,
    pub(super) len: u32,
    /// True if the peer gets a notification.
    pub(super) notify_peer: bool,
}

pub(super) fn page(class: u8, translate: bool) -> PageOptions {
    PageOptions {
        traffic_class: class,
        irq: true,
        translate,
        rra: false,
    }
}

fn descriptor(to: (NodeId, Vpid), notify: NotifySpec, op: Operation) -> Descriptor {
    Descriptor {
        node: to.0,
        vpid: to.1,
        notify,
        modifiers: Modifiers::NONE,
        op,
    }
}

pub(super) fn lock(to: (NodeId, Vpid), lock: &Lock) -> Descriptor {
    let op = Operation::Lock {
        at: lock.at,
        number: lock.number,
        compare: lock.compare,
        add: lock.add,
    };
    descriptor(to, NotifySpec::from_bits(4), op)
}

pub(super) fn data(to: (NodeId, Vpid), command: &DataCommand) -> Descriptor {
    let DataCommand {
        direction,
        local,
        remote,
        len,
        notify_peer,
    } = *command;
    let qw = false;
    match direction {
        Direction::Get => {
            let notify = NotifySpec {
                requester: false,
                responder: notify_peer,
                completer: true,
            };
            let op = Operation::Get {
                qw,
                len,
                remote,
                local,
            };
            descriptor(to, notify, op)
        }
        Direction::Put => {
            let notify = NotifySpec {
                requester: true,
                responder: false,
                completer: notify_peer,
            };
            let op = Operation::Put {
                qw,
                len,
                local,
                remote,
            };
            descriptor(to, notify, op)
        }
    }
}

pub(super) fn value(to: (NodeId, Vpid), class: u8, value: u64) -> Descriptor {
    let op = Operation::NotificationPut { class, value };
    descriptor(to, NotifySpec::from_bits(4), op)
}

/// Returns the properties by which the notification of a command is recognised: kind, address or
/// lock number, and length.
pub(super) fn subject(op: &Operation) -> (Action, u64, u32) {
    match *op {
        Operation::Get { local, len, .. } => (Action::Get, local, len),
        Operation::Put { local, len, .. } => (Action::Put, local, len),
        Operation::Lock { at, number, .. } => (Action::Lock(at), number.into(), 0),
        // These commands are posted without notification.
        Operation::NotificationPut { value, .. } | Operation::ImmediatePut { value, .. } => {
            (Action::Put, value, 0)
        }
    }
}
