// SPDX-License-Identifier: GPL-2.0-only

//! Transfer engine: transfers of any length between fragment lists, lock operations, and
//! notifications from peers. An [`Engine`] owns an RMA port and runs the state machine of
//! `protocol::transfer` for it. That state machine defines the rules.
//!
//! **Submitting.** [`Submitter::submit`] takes a [`Request`] and the [`Completion`] of the
//! transfer's owner. It works in any context and allocates no memory, because the engine's tables
//! have a fixed [`Capacity`]. A transfer for which no slots are free fails with [`RmaError::Busy`],
//! which is counted. [`Submitter::get`], [`put`](Submitter::put) and [`lock`](Submitter::lock) are
//! for callers that can sleep. They transfer one fragment and return a [`Handle`].
//!
//! **Completion.** Each accepted transfer ends with exactly one call of [`Completion::done`]. A
//! transfer that is not answered ends at its deadline (plus a scheduling delay), when it is
//! cancelled, when its peer is aborted ([`Submitter::abort`]), or when the NIC or the engine is
//! removed. `submit`, `cancel` and `abort` never make the call themselves, and no lock of the
//! engine is held during the call.
//!
//! **Reuse of memory.** Memory of a transfer may be reused after [`Completion::quiet`], which is
//! called exactly once, with or after the outcome. If the completion object owns the memory, its
//! owner need not do anything, because the engine drops that object after the call.
//!
//! | [`Quiet`] | Meaning | Registered memory | Memory named by bus address |
//! |---|---|---|---|
//! | `Settled` | all commands are answered, or the NIC is cut off | reusable at once | the same |
//! | `Unanswered` | no answer within ten seconds | reusable when its region has ended (drop or [`Region::revoke`](crate::atu::Region::revoke)) | must go into a [`quarantine::Batch`](crate::quarantine::Batch) |
//! | `Closed` | the engine was dropped before all answers | as for `Unanswered` | the same |
//!
//! A transfer that succeeds, or fails with an error of a command, is `Settled` at the same moment.
//! After a time-out, `Cancelled` or `PeerLost`, this may take up to ten seconds. Until then a GET
//! may still write to local memory, and a PUT may read from it. Nevertheless the same transfer can
//! be submitted again at once, because the engine delays commands that could overlap with late
//! commands of the first transfer.
//!
//! **Contexts.** The engine uses three work items on `extoll.ko`'s work queue. The first processes
//! notifications and posts commands. Interrupts, and credits that become free, start it. The second
//! handles deadlines. The third calls the completions that may sleep ([`CallIn::Process`]), one
//! after the other. With [`Setup::soft`], a softirq replaces the first work item. A spinlock that
//! disables interrupts protects all state.
//!
//! **Fairness.** The engine serves peers (a node and a VPID) in round-robin order, one command
//! each. A peer may have up to 16 commands and 32 MiB in flight, including late commands, and half
//! of the slots for transfers. Notifications from peers go through a queue with a limit per node
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

/// Time for which late notifications are awaited. No packet stays in the network for longer.
pub const ABSORB: Delta = Delta::from_secs(10);

/// Reason why a transfer failed or was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RmaError {
    /// A unit reported an error for a command.
    Fault(Fault),
    /// The deadline passed. The peer is dead, unreachable or too slow, or has closed its port.
    TimedOut,
    /// The owner cancelled the transfer.
    Cancelled,
    /// The peer was aborted ([`Submitter::abort`]).
    PeerLost,
    /// The device was removed, or the engine was dropped.
    Down,
    /// The arguments do not form a valid transfer; or a local region is dead, too short, belongs to
    /// another VPID, or does not permit the access.
    Invalid,
    /// There is no free slot for the transfer, or the peer has reached its limit.
    Busy,
    /// Memory is short.
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
    /// Node of the peer.
    pub node: NodeId,
    /// VPID of the peer.
    pub vpid: Vpid,
    /// Traffic class, 0…3.
    pub traffic_class: u8,
    /// Notification that the peer receives in addition to the data, with an interrupt. If the peer
    /// has an engine, its [`Listener`] is called.
    pub notify: Notify,
}

/// Outcome of a lock operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Locked {
    /// True if the lock was changed, because its value was not greater than the compare operand.
    pub success: bool,
    /// Value of the lock after the operation.
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

/// Context in which a completion or a listener is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallIn {
    /// In a separate work item, in process context. The call may sleep. Calls of this kind are
    /// serialized for an engine. The callee may wait for other transfers of the engine by their
    /// [`Handle`]. It must not do so if memory reclaim waits for the callee, because the work queue
    /// guarantees only one thread.
    Process,
    /// In the context that processes notifications: a work item, a softirq with [`Setup::soft`], or
    /// a caller of [`Submitter::poll`]. The call must not sleep and must be short. The same applies
    /// to the drop of the completion object, because the engine may hold the last reference. The
    /// object may contain a region. Wrap other contents whose drop sleeps in a
    /// [`Deferred`](kernel_ext::work::Deferred).
    Poll,
}

/// Receives the end of a transfer. It is passed by reference count, so that a pooled object can be
/// reused without allocation.
///
/// Both methods are called in the [`CallIn`] of the request, without a lock of the engine, so they
/// may submit and cancel transfers. They must not drop the [`Engine`]. The object can contain a
/// [`Submitter`], which does not keep the engine's port open.
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

    /// Reports that no command of the transfer can access memory any more. `how` says how reliable
    /// this is (see the table above). Called exactly once, after `done` has returned. The engine
    /// then drops its reference.
    fn quiet(&self, _how: Quiet) {}
}

/// Receives notifications that belong to no transfer of the engine. Commands of peers cause them:
/// data of a PUT arrived, data of a GET was read, or a notification PUT arrived. Answers that
/// arrive after ten seconds also belong to no transfer.
///
/// Notifications wait in a queue of [`Setup::unclaimed`] entries, of which each node may use
/// [`Setup::unclaimed_per_node`]. If a node sends notifications faster than the listener processes
/// them, only notifications of that node are lost. A protocol with credits loses no notifications.
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
    /// Processes one notification. Calls are serialized, in the order of arrival, and in the
    /// [`CallIn`] of the [`Setup`].
    fn notified(&self, notification: &Notification);
}

/// Description of a transfer that is submitted.
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
    /// Peer of the transfer, with the notification that it receives.
    pub to: Destination,
    /// Direction of the data: GET or PUT.
    pub direction: Direction,
    /// Local and remote memory. One command transfers up to 8 MiB, and ends where a fragment of
    /// either list ends.
    pub lists: Lists<'a>,
    /// For a PUT: report success only after the peer's completer has processed all data. To confirm
    /// this, a lock operation that changes nothing follows the data. Without `confirm`, success
    /// means only that the data was sent: an error at the peer is reported only to the peer, and a
    /// dead peer is not detected.
    pub confirm: bool,
    /// Time until the transfer times out.
    pub timeout: Delta,
    /// Context in which the completion is called.
    pub context: CallIn,
}
