//! Network for tests of transfers. Its units answer in order within a class, and may lose commands
//! and answers.

#![allow(dead_code)]

pub mod table;

use protocol::transfer::{Limits, Port, Queue, Terms};
use protocol::{Time, TransportError};
use std::collections::VecDeque;
use wire::ids::{NodeId, Vpid};
use wire::rma::{
    last_fragment_len, last_fragment_start, Command, Descriptor, LockTarget, Mode, Notification,
    NotificationType, Operation, PageOptions,
};

pub const LIMITS: Limits = Limits {
    window: 4,
    window_bytes: 4096,
    command: 1024,
    node: 8,
    node_fragments: 30,
    absorb: 1000,
};

/// Command in flight.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub number: u64,
    pub page: PageOptions,
    pub descriptor: Descriptor,
}

/// Port that accepts a given number of commands.
#[derive(Default)]
pub struct Nic {
    pub room: usize,
    pub dead: bool,
    pub posted: Vec<Sent>,
    number: u64,
}

impl Port for Nic {
    fn post(&mut self, page: PageOptions, descriptor: &Descriptor) -> Result<(), TransportError> {
        descriptor.encode().expect("the command is illegal");
        if self.dead {
            return Err(TransportError::Never);
        }
        self.room = self.room.checked_sub(1).ok_or(TransportError::Later)?;
        self.number += 1;
        self.posted.push(Sent {
            number: self.number,
            page,
            descriptor: *descriptor,
        });
        Ok(())
    }
}

/// Returns a port that accepts any number of commands.
pub fn nic() -> Nic {
    Nic {
        room: usize::MAX,
        ..Nic::default()
    }
}

pub fn vpid(n: u16) -> Vpid {
    Vpid::new(n).unwrap()
}

pub fn terms(node: u16, deadline: u64) -> Terms {
    Terms {
        node: NodeId(node),
        vpid: vpid(7),
        class: 0,
        translate: false,
        deadline: Time(deadline),
        post_by: None,
        queue: Queue::Direct,
    }
}

/// Returns the notification of a unit about a command, with the given error bits.
pub fn answer(sent: &Sent, error: u8) -> Option<Notification> {
    let note = |kind, command, start: u64, len: u32| Notification {
        word0: if error == 0 {
            last_fragment_start(start, len)
        } else {
            // An error may contain the address of any fragment.
            start + u64::from(len - 1) / 496 / 2 * 496
        },
        size_field: last_fragment_len(len) - 1,
        vpid: sent.descriptor.vpid,
        node: sent.descriptor.node,
        kind,
        command,
        mode: Mode {
            translate: sent.page.translate,
            ..Mode::default()
        },
        error,
    };
    use NotificationType::{Completer, Requester};
    match sent.descriptor.op {
        Operation::Get { local, len, .. } => {
            Some(note(Completer, Command::ByteGetResponse, local, len))
        }
        Operation::Put { local, len, .. } => Some(note(Requester, Command::BytePut, local, len)),
        Operation::Lock { number, .. } => {
            let mut n = note(Completer, Command::LockResponse, 0, 1);
            n.word0 = u64::from(number) | (1 << 24) | (77 << 32);
            Some(n)
        }
        Operation::NotificationPut { .. } | Operation::ImmediatePut { .. } => None,
    }
}

/// Units for the commands of one class to one peer, each with its pending commands.
#[derive(Default)]
pub struct Path {
    pub requester: VecDeque<Sent>,
    pub responder: VecDeque<Sent>,
    pub completer: VecDeque<Sent>,
}

/// Action of a unit.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    Idle,
    /// The unit passed the command on, or executed it without a notification.
    On,
    /// The unit executed the command, which does not access memory any more.
    Did(Sent),
}

impl Path {
    pub fn pending(&self) -> impl Iterator<Item = &Sent> {
        let later = self.responder.iter().chain(&self.completer);
        self.requester.iter().chain(later)
    }

    /// Lets a unit process one command.
    pub fn step(&mut self, unit: usize) -> Act {
        match unit {
            0 => {
                let Some(sent) = self.requester.pop_front() else {
                    return Act::Idle;
                };
                match sent.descriptor.op {
                    Operation::Put { .. } => return Act::Did(sent),
                    Operation::Get { .. } => self.responder.push_back(sent),
                    Operation::Lock { at, .. } => match at {
                        LockTarget::Responder => self.responder.push_back(sent),
                        LockTarget::Completer => self.completer.push_back(sent),
                    },
                    _ => {}
                }
                Act::On
            }
            1 => self.responder.pop_front().map_or(Act::Idle, Act::Did),
            _ => self.completer.pop_front().map_or(Act::Idle, Act::Did),
        }
    }
}
