// SPDX-License-Identifier: GPL-2.0-only

//! Transfers of any length between fragment lists, lock operations, and what peers notify of: an
//! [`Engine`] owns a port and drives the machine of `protocol::transfer` for it, which has the
//! rules.
//!
//! **Submitting.** [`Submitter::submit`] takes a [`Request`] and the owner's [`Completion`]. It
//! neither sleeps nor gets memory, in any context: the engine's tables are made with it
//! ([`Capacity`]), and what does not fit is refused as [`RmaError::Busy`], which is counted.
//! [`Submitter::get`], [`put`](Submitter::put) and
//! [`lock`](Submitter::lock) are for those who wait: one fragment, and a [`Handle`].
//!
//! **The end.** The owner hears of each transfer that was taken, from [`Completion::done`], exactly
//! once: by its deadline (give or take a scheduling delay), when it is cancelled, when its peer is
//! given up ([`Submitter::abort`]), when the NIC or the engine goes. None of this happens on the
//! stack of a call of `submit`, `cancel` or `abort`, and no lock of the engine is held.
//!
//! **When memory may be used again.** Not before [`Completion::quiet`], which comes exactly once,
//! with or after the outcome; an owner that keeps the memory in the completion object need not do
//! anything, since the engine drops that after the call.
//!
//! | [`Quiet`] | Meaning | Registered memory | Memory given by bus address |
//! |---|---|---|---|
//! | `Settled` | each command was answered, or a fence behind it, or none was posted, or the NIC is cut off from memory | at once | at once |
//! | `Unanswered` | ten seconds went by without an answer | when its region is gone (drop or [`Region::revoke`](crate::atu::Region::revoke)) | into a [`quarantine::Batch`](crate::quarantine::Batch) |
//! | `Closed` | the engine goes while commands are unanswered | as before | as before |
//!
//! A transfer that succeeds or fails by an error is `Settled` at the same moment. After a time-out,
//! `Cancelled` or `PeerLost` it may take up to ten seconds; meanwhile a GET may still write to
//! local memory, and a PUT read from it. Submitting the same transfer again is safe even so: an
//! engine lets no command go that could meet a late one, before it knows that nothing comes any
//! more for that.
//!
//! **Contexts.** What happens is in work items of `extoll.ko`'s queue: one handles notifications
//! (and posts), started by interrupts and by room to send, one deadlines, one calls those
//! completions that may take their time ([`CallIn::Process`]), one after the other. With
//! [`Setup::soft`] the first has a counterpart in a softirq, which interrupts and room start.
//!
//! **Fairness.** Peers (a node and a VPID) take turns, one command each. A peer has at most 16
//! commands and 32 MiB in flight, late ones included, and half of the places for transfers. What
//! peers notify of goes through a queue of which each node has a part ([`Listener`]).

mod engine;
mod handle;
mod lists;
mod run;
mod submitter;

pub use self::{
    engine::{Engine, Setup},
    handle::{callback, Handle},
    lists::{Lists, Part, Span},
    submitter::Submitter,
};
pub use protocol::transfer::{Capacity, Counters, Done, Quiet, Tell, Ticket};
pub use wire::transfer::Direction;

use super::{Fault, LockResult, LockTarget, Notification};
use kernel::{prelude::*, time::Delta};
use protocol::transfer::{Failure, Lock, Refusal};
use wire::ids::{NodeId, Vpid};

/// How long late notifications are waited for. No packet stays in the network as long.
pub const ABSORB: Delta = Delta::from_secs(10);

/// Why a transfer did not succeed, or was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RmaError {
    /// A unit refused a command.
    Fault(Fault),
    /// Not done by the deadline: the peer is dead, unreachable, has closed its port, or is too
    /// slow.
    TimedOut,
    /// Its owner cancelled it.
    Cancelled,
    /// Its peer was given up ([`Submitter::abort`]).
    PeerLost,
    /// The device is gone, or the engine was dropped.
    Down,
    /// The arguments do not form a legal transfer, or a local region is dead, too short, of another
    /// VPID, or does not allow the access.
    Invalid,
    /// The engine has no place for it, or for so many of one peer.
    Busy,
    /// No memory.
    NoMemory,
}

impl From<RmaError> for Error {
    fn from(e: RmaError) -> Error {
        match e {
            RmaError::Fault(_) => EIO,
            RmaError::TimedOut => ETIMEDOUT,
            RmaError::Cancelled => ECANCELED,
            RmaError::PeerLost => EHOSTDOWN,
            RmaError::Down => ENODEV,
            RmaError::Invalid => EINVAL,
            RmaError::Busy => EBUSY,
            RmaError::NoMemory => ENOMEM,
        }
    }
}

impl From<Failure> for RmaError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Fault(fault) => RmaError::Fault(fault),
            Failure::TimedOut => RmaError::TimedOut,
            Failure::Cancelled => RmaError::Cancelled,
            Failure::PeerLost => RmaError::PeerLost,
            Failure::Down => RmaError::Down,
        }
    }
}

impl From<Refusal> for RmaError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Invalid => RmaError::Invalid,
            Refusal::Transfers | Refusal::Fragments | Refusal::Peer => RmaError::Busy,
        }
    }
}

/// Where a transfer goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Destination {
    /// Remote node.
    pub node: NodeId,
    /// Remote VPID.
    pub vpid: Vpid,
    /// Traffic class, 0…3.
    pub traffic_class: u8,
    /// What the peer is told besides the data, with interrupt: its [`Listener`] gets the
    /// notification, if it has an engine.
    pub tell: Tell,
}

/// What a lock operation did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Locked {
    /// The value was at most the compare operand, and was changed.
    pub success: bool,
    /// The value afterwards.
    pub value: i32,
}

impl Locked {
    /// From the outcome of [`Submitter::submit_lock`].
    pub fn of(done: &Done) -> Self {
        let word = LockResult(done.word);
        Self {
            success: word.result() == 1,
            value: word.value() as i32,
        }
    }
}

/// Where an owner is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallIn {
    /// In a work item of its own, in process context: it may sleep. Meanwhile no other owner of
    /// the engine that wants to be called here is. It may wait for other transfers of the engine
    /// by their [`Handle`], unless memory reclaim waits for it: the work queue has one thread for
    /// certain.
    Process,
    /// Straight from where notifications are handled: in a work item as well, in a softirq with
    /// [`Setup::soft`], or in the context of a caller of [`Submitter::poll`]. It must not sleep nor
    /// take long, and neither may the drop of the completion object, if the engine's reference is
    /// the last one. A region may be in it; what sleeps when it is dropped belongs into a
    /// [`Deferred`](kernel_ext::work::Deferred).
    Poll,
}

/// Hears of the end of a transfer. It is shared, so that one of a pool of descriptors can be used
/// over and over without getting memory.
///
/// Both methods are called in the [`CallIn`] that the request asks for, without a lock of the
/// engine: they may submit and cancel. They must not drop the [`Engine`], and need not keep it: a
/// [`Submitter`] is a reference that does not keep the port open.
///
/// ```
/// use extoll_core::rma::transfer::{Completion, Done, Quiet, RmaError};
/// use kernel::{prelude::*, sync::Arc};
///
/// /// A message on its way, with the registered memory that it is in.
/// struct Sending {
///     region: Arc<extoll_core::atu::Region>,
/// }
///
/// impl Completion for Sending {
///     fn done(&self, outcome: Result<Done, RmaError>) {
///         match outcome {
///             Ok(done) => pr_info!("{} bytes\n", done.bytes),
///             Err(e) => pr_info!("failed: {e:?}\n"),
///         }
///     }
///
///     fn quiet(&self, how: Quiet) {
///         // The engine lets go of `self`, and with it of the region: its drop revokes, should
///         // something come after all.
///         pr_info!("{how:?}\n");
///     }
/// }
/// ```
pub trait Completion: Send + Sync {
    /// The outcome. Called exactly once.
    fn done(&self, outcome: Result<Done, RmaError>);

    /// Nothing of the transfer is on its way any more that could touch memory, as far as is known:
    /// see the table above. Called exactly once, after `done` has returned; then the engine drops
    /// its reference.
    fn quiet(&self, _how: Quiet) {}
}

/// Gets notifications that no transfer of the engine waits for: those that peers cause (data of a
/// PUT has arrived, of a GET was read, a notification PUT), and answers that come after ten
/// seconds.
///
/// They are kept in a queue of [`Setup::unclaimed`] entries, of which each node may fill
/// [`Setup::unclaimed_per_node`]: who notifies faster than the listener takes loses its own
/// notifications, and not those of others. A
/// protocol with credits loses none.
///
/// ```
/// use extoll_core::rma::{transfer::Listener, Command, Notification, NotificationType};
/// use kernel::prelude::*;
///
/// struct Target;
///
/// impl Listener for Target {
///     fn notified(&self, n: &Notification) {
///         match (n.kind, n.command) {
///             (NotificationType::Completer, Command::NotificationPut) => {
///                 pr_info!("node {} says {:#x}\n", n.node.0, n.word0)
///             }
///             (NotificationType::Responder, _) => pr_info!("node {} has read\n", n.node.0),
///             _ => {}
///         }
///     }
/// }
/// ```
pub trait Listener: Send + Sync {
    /// A notification, in the order of arrival, one at a time, in the [`CallIn`] that was asked
    /// for.
    fn notified(&self, notification: &Notification);
}

/// A transfer to be done.
///
/// ```
/// # use kernel::{prelude::*, time::Delta};
/// use extoll_core::{
///     atu::Region,
///     rma::transfer::{
///         callback, CallIn, Destination, Direction, Lists, Part, Request, RmaError, Span,
///         Submitter, Ticket,
///     },
/// };
/// use wire::ids::Nla;
///
/// /// Fetches 6,000 bytes, which the peer has in two places, to the end of one region and the
/// /// beginning of another.
/// fn gather(
///     engine: &Submitter,
///     from: Destination,
///     [a, b]: [&Region; 2],
///     remote: [Nla; 2],
/// ) -> Result<Ticket, RmaError> {
///     let span = |address, len| Span { address, len };
///     let request = Request {
///         to: from,
///         direction: Direction::Get,
///         lists: Lists::Regions {
///             local: &[Part::new(a, a.bytes() - 1000, 1000), Part::new(b, 0, 5000)],
///             remote: &[span(remote[0], 2000), span(remote[1], 4000)],
///         },
///         confirm: false,
///         timeout: Delta::from_secs(5),
///         context: CallIn::Process,
///     };
///     let told = callback((), |outcome| pr_info!("{outcome:?}\n"))?;
///     engine.submit(&request, told)
/// }
/// ```
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// With whom.
    pub to: Destination,
    /// Which way.
    pub direction: Direction,
    /// Between which memory, at most 8 MiB in one command: one ends where a fragment of either list
    /// does.
    pub lists: Lists<'a>,
    /// Of a PUT: it is done when the peer's completer has processed all of it, shown by a lock
    /// operation behind the data that changes nothing. Otherwise it is done when the data was sent,
    /// and only the peer learns of an error there, or of nothing when it is dead.
    pub confirm: bool,
    /// When it times out, from now.
    pub timeout: Delta,
    /// Where the completion is called.
    pub context: CallIn,
}
