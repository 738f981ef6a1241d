// SPDX-License-Identifier: GPL-2.0-only

//! Transfer engine: transfers of any length between fragment lists, lock operations, and
//! notifications from peers. An [`Engine`] owns an RMA port and runs the state machine of
//! `protocol::transfer` for it, which defines the rules.
//!
//! **Submitting.** [`Submitter::submit`] takes a [`Request`] and the owner's [`Completion`]. It
//! works in any context and allocates nothing, because the engine's tables have a fixed
//! [`Capacity`]. A transfer that does not fit fails with [`RmaError::Busy`], which is counted.
//! [`Submitter::get`], [`put`](Submitter::put) and [`lock`](Submitter::lock) are for callers that
//! can sleep: they take one fragment and return a [`Handle`].
//!
//! **Completion.** Each accepted transfer ends with exactly one call of [`Completion::done`]. It
//! ends at its deadline (plus a scheduling delay), when it is cancelled, when its peer is aborted
//! ([`Submitter::abort`]), or when the NIC or the engine is removed. The call never happens on the
//! stack of `submit`, `cancel` or `abort`, and no lock of the engine is held.
//!
//! **Reuse of memory.** Memory of a transfer may be reused after [`Completion::quiet`], which is
//! called exactly once, with or after the outcome. An owner that keeps the memory in the completion
//! object need not do anything, because the engine drops that object after the call.
//!
//! | [`Quiet`] | Meaning | Registered memory | Memory given by bus address |
//! |---|---|---|---|
//! | `Settled` | each command, or a fence after it, was answered; or none was posted; or the NIC is cut off from memory | reusable at once | reusable at once |
//! | `Unanswered` | no answer within ten seconds | reusable when its region has ended (drop or [`Region::revoke`](crate::atu::Region::revoke)) | must go into a [`quarantine::Batch`](crate::quarantine::Batch) |
//! | `Closed` | the engine was dropped while commands were unanswered | as before | as before |
//!
//! A transfer that succeeds, or fails with an error of a command, is `Settled` at the same moment.
//! After a time-out, `Cancelled` or `PeerLost`, this may take up to ten seconds. Until then a GET
//! may still write to local memory, and a PUT may read from it. Submitting the same transfer again
//! is safe nevertheless, because the engine delays commands that could overlap with late ones of
//! the first transfer.
//!
//! **Contexts.** The engine uses three work items of `extoll.ko`'s queue. The first processes
//! notifications and posts commands; interrupts, and credits that become free, start it. The second
//! handles deadlines. The third calls the completions that may sleep ([`CallIn::Process`]), one
//! after the other. With [`Setup::soft`], a softirq replaces the first work item. All state is
//! under one spinlock that disables interrupts.
//!
//! **Fairness.** The engine serves peers (a node and a VPID) in round-robin order, one command
//! each. A peer may have up to 16 commands and 32 MiB in flight, late ones included, and half of
//! the slots for transfers. Notifications from peers go through a queue with a limit per node
//! ([`Listener`]).

mod engine;
mod handle;
mod lists;
mod run;
mod submitter;

pub use self::{
    engine::{Engine, Setup},
    handle::Handle,
    lists::{Lists, RegionPart, Span},
    submitter::Submitter,
};
pub use protocol::transfer::{Capacity, Counters, Done, Notify, Quiet, Ticket};
pub use wire::rma::Direction;

use super::{Fault, LockResult, LockTarget, Notification};
use kernel::{prelude::*, time::Delta};
use protocol::transfer::{Failure, Lock, SubmitError};
use wire::ids::{NodeId, Vpid};

/// Time for which late notifications are awaited. No packet stays in the network that long.
pub const ABSORB: Delta = Delta::from_secs(10);

/// Reason why a transfer failed or was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RmaError {
    /// A unit reported an error for a command.
    Fault(Fault),
    /// The deadline passed: the peer is dead, unreachable, too slow, or has closed its port.
    TimedOut,
    /// The owner cancelled the transfer.
    Cancelled,
    /// The peer was aborted ([`Submitter::abort`]).
    PeerLost,
    /// The device was removed, or the engine was dropped.
    Down,
    /// The arguments do not form a legal transfer; or a local region is dead, too short, belongs to
    /// another VPID, or does not allow the access.
    Invalid,
    /// No free slot for a transfer, or the peer has reached its limit.
    Busy,
    /// Out of memory.
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

impl From<SubmitError> for RmaError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Invalid => RmaError::Invalid,
            SubmitError::Transfers | SubmitError::Fragments | SubmitError::Peer => RmaError::Busy,
        }
    }
}

/// Destination of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Destination {
    /// Remote node.
    pub node: NodeId,
    /// Remote VPID.
    pub vpid: Vpid,
    /// Traffic class, 0…3.
    pub traffic_class: u8,
    /// Notification for the peer, with interrupt, sent besides the data. If the peer has an engine,
    /// its [`Listener`] gets it.
    pub notify: Notify,
}

/// Outcome of a lock operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Locked {
    /// True if the lock's value was not greater than the compare operand, so that it was changed.
    pub success: bool,
    /// Value of the lock afterwards.
    pub value: i32,
}

impl Locked {
    /// Decodes the outcome of [`Submitter::submit_lock`].
    pub fn of(done: &Done) -> Self {
        let word = LockResult(done.word);
        Self {
            success: word.result() == 1,
            value: word.value() as i32,
        }
    }
}

/// Context in which an owner is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallIn {
    /// In a separate work item, in process context; may sleep. Calls of this kind are serialized
    /// for an engine. The callee may wait for other transfers of the engine by their [`Handle`],
    /// unless memory reclaim waits for the callee: the work queue is guaranteed only one thread.
    Process,
    /// In the context that processes notifications: a work item, a softirq with [`Setup::soft`], or
    /// a caller of [`Submitter::poll`]. The call must not sleep nor take long; neither must the
    /// drop of the completion object, because the engine may hold the last reference. The object
    /// may contain a region. Wrap contents whose drop sleeps in a
    /// [`Deferred`](kernel_ext::work::Deferred).
    Poll,
}

/// Receives the end of a transfer. Passed by reference count, so that an object of a pool can be
/// reused without allocation.
///
/// Both methods are called in the [`CallIn`] that the request names, without a lock of the engine:
/// they may submit and cancel. They must not drop the [`Engine`], and need not keep it: a
/// [`Submitter`] is a reference that does not keep the port open.
///
/// ```
/// use extoll_core::rma::transfer::{Completion, Done, Quiet, RmaError};
/// use kernel::{prelude::*, sync::Arc};
///
/// /// Message in flight, with the registered memory that holds it.
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
///         // The engine drops `self` and so the region, whose drop revokes: late accesses
///         // cannot reach reused memory.
///         pr_info!("{how:?}\n");
///     }
/// }
/// ```
pub trait Completion: Send + Sync {
    /// Reports the outcome. Called exactly once.
    fn done(&self, outcome: Result<Done, RmaError>);

    /// Reports that no command of the transfer can access memory any more, with the certainty of
    /// the table above. Called exactly once, after `done` has returned. The engine then drops its
    /// reference.
    fn quiet(&self, _how: Quiet) {}
}

/// Receives notifications that belong to no transfer of the engine. Peers cause them (data of a PUT
/// has arrived, data of a GET was read, a notification PUT), or they are answers that arrive after
/// ten seconds.
///
/// Notifications wait in a queue of [`Setup::unclaimed`] entries, of which each node may use
/// [`Setup::unclaimed_per_node`]. A node that notifies faster than the listener runs loses its own
/// notifications, not those of other nodes. A protocol with credits loses none.
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
    /// Processes one notification. Calls are serialized and in the order of arrival, in the
    /// [`CallIn`] that was requested.
    fn notified(&self, notification: &Notification);
}

/// Transfer to be submitted.
///
/// ```
/// # use kernel::{sync::Arc, time::Delta};
/// use extoll_core::{
///     atu::Region,
///     rma::transfer::{
///         CallIn, Completion, Destination, Direction, Lists, RegionPart, Request, RmaError, Span,
///         Submitter, Ticket,
///     },
/// };
/// use wire::ids::Nla;
///
/// /// Fetches 6,000 bytes from two fragments of the peer's memory into parts of two regions.
/// fn gather(
///     engine: &Submitter,
///     from: Destination,
///     [a, b]: [&Region; 2],
///     remote: [Nla; 2],
///     completion: Arc<dyn Completion>,
/// ) -> Result<Ticket, RmaError> {
///     let span = |address, len| Span { address, len };
///     let request = Request {
///         to: from,
///         direction: Direction::Get,
///         lists: Lists::Regions {
///             local: &[RegionPart::new(a, a.bytes() - 1000, 1000), RegionPart::new(b, 0, 5000)],
///             remote: &[span(remote[0], 2000), span(remote[1], 4000)],
///         },
///         confirm: false,
///         timeout: Delta::from_secs(5),
///         context: CallIn::Process,
///     };
///     engine.submit(&request, completion)
/// }
/// ```
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Peer of the transfer.
    pub to: Destination,
    /// GET or PUT.
    pub direction: Direction,
    /// Local and remote memory. A command transfers up to 8 MiB, and ends where a fragment of
    /// either list ends.
    pub lists: Lists<'a>,
    /// For a PUT: report success only after the peer's completer has processed all data. A lock
    /// operation that changes nothing follows the data and confirms this. Without `confirm`,
    /// success means that the data was sent: an error at the peer is only reported to the peer, and
    /// a dead peer is not noticed.
    pub confirm: bool,
    /// Time until the transfer times out.
    pub timeout: Delta,
    /// Context in which the completion is called.
    pub context: CallIn,
}
