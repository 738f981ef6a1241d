// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Transfers between fragment lists, and lock operations, over one RMA port.
//!
//! [`Transfers`] contains all transfers of a port. It divides transfers into commands, at the ends
//! of local and remote fragments and after [`Limits::command`] bytes. It selects the next command
//! to post, and assigns notifications to commands. It ends transfers after their deadline, and
//! reports when their memory may be used again.
//!
//! # State machine
//!
//! The states of a transfer are in [`TransferState`]. A `Queued` transfer becomes `InFlight` with
//! its first command, and `Quiet` when all commands were answered. After an error the transfer is
//! `Failing`: the answers to its other commands are awaited, and no further commands are posted. A
//! transfer that ends early (time-out, cancellation, loss of its peer) is `Late`: it has a result,
//! but some of its commands are still in flight.
//!
//! The owner of a transfer receives two facts, each once: the outcome of the transfer, and, at the
//! same time or later, that the transfer is quiet ([`Quiet`]). No command of a quiet transfer can
//! access memory.
//!
//! # Driver
//!
//! The driver holds a lock around [`Transfers`] and has these duties:
//!
//! * It passes transfers to [`Transfers::submit`], and notifications of the port to
//!   [`Transfers::process_notification`].
//! * It calls [`Transfers::post`] after each of these calls, and when the port can accept commands
//!   again.
//! * It calls [`Transfers::expire`] at [`Transfers::next_deadline`].
//! * It reports the events of [`Transfers::next_event`] to their owners, and calls
//!   [`Transfers::report_done`] after each event without `quiet`.
//!
//! # Assignment of notifications
//!
//! A notification contains only the unit, the peer, the kind of the command and the local address
//! of its last fragment (HW §10.4). Commands in flight are found by a hash of these values. An
//! error may contain any address within a command, so all commands of the peer are searched, whose
//! number is limited. Two GETs, or two PUTs, of a peer are never in flight together if their local
//! memory overlaps. Two operations on one lock are never in flight together either. Therefore the
//! notification of one command is never mistaken for a lost notification of another command.
//!
//! # Late commands
//!
//! The commands of a `Late` transfer are kept for [`Limits::absorb`], because their notifications
//! may still arrive. A new command that could be confused with a late command waits for a *fence*.
//! A fence is a lock operation without effect, performed by the unit whose answer is missing. A
//! unit answers all requests of one traffic class in order (HW §10.8), so the late command is
//! dropped after the fence. The fence also prevents late answers from writing to memory of a later
//! transfer with the same peer.
//!
//! # Fairness
//!
//! A peer is a node and a VPID. The transfers of different peers post their commands in round-robin
//! order, one command per peer. The numbers of commands and bytes in flight are limited per peer,
//! and the numbers of transfers and fragments per node. Therefore a stalled peer leaves resources
//! for other peers.
//!
//! ```
//! use protocol::transfer::*;
//! use protocol::{Memory, TransportError, Time};
//! use wire::ids::{NodeId, Vpid};
//! use wire::rma::{Descriptor, PageOptions};
//! use wire::rma::Direction;
//!
//! struct Heap;
//! impl Memory for Heap {
//!     type Array<T> = Vec<T>;
//!     type Error = ();
//!     fn array<T>(len: usize, make: impl FnMut(usize) -> T) -> Result<Vec<T>, ()> {
//!         Ok((0..len).map(make).collect())
//!     }
//! }
//!
//! /// A port without answers.
//! struct Void(usize);
//! impl Port for Void {
//!     fn post(&mut self, _: PageOptions, _: &Descriptor) -> Result<(), TransportError> {
//!         self.0 += 1;
//!         Ok(())
//!     }
//! }
//!
//! let capacity = Capacity { transfers: 8, fragments: 64, commands: 16 };
//! let limits = Limits::new(&capacity, 1000);
//! let mut all: Transfers<Heap, &str> = Transfers::new(&capacity, &limits).unwrap();
//! let terms = Terms {
//!     node: NodeId(1),
//!     vpid: Vpid::new(9).unwrap(),
//!     class: 0,
//!     translate: true,
//!     deadline: Time(50),
//!     post_by: None,
//!     queue: Queue::Direct,
//! };
//! let get = TransferKind { direction: Direction::Get, notify: Notify::Nothing, confirm: false };
//! let part = |address, len| Fragment { address, len };
//! let (local, remote) = ([part(0x1000, 100), part(0x2000, 60)], [part(0x9000, 160)]);
//! let lists = (local.into_iter(), remote.into_iter());
//! all.submit(&terms, get, lists.0, lists.1, "mine").unwrap();
//!
//! let mut port = Void(0);
//! assert_eq!(all.post(&mut port, Time(0), 10).commands, 2);
//! // The outcome, and then the time at which memory may be used again.
//! all.expire(all.next_deadline().unwrap(), 10);
//! let end = all.next_event(Queue::Direct).unwrap();
//! assert_eq!((end.token, end.outcome, end.quiet), ("mine", Some(Err(Failure::TimedOut)), None));
//! all.report_done(end.ticket);
//! all.expire(Time(1050), 10);
//! let end = all.next_event(Queue::Direct).unwrap();
//! assert_eq!(end.quiet, Some(Quiet::Unanswered));
//! ```

mod answer;
mod describe;
mod end;
mod fragments;
mod locks;
mod post;

mod submit;
mod tables;
mod unclaimed;

pub use fragments::Fragment;
pub use locks::LockNumbers;
pub use tables::{Ticket, Transfers};
pub use unclaimed::Unclaimed;

use crate::{Time, TransportError};
use wire::{
    ids::{NodeId, Vpid},
    rma::{Descriptor, Direction, Fault, LockTarget, PageOptions, MAX_LEN},
};

crate::flow! {
    /// States of a transfer or lock operation.
    states TransferState {
        /// No command was posted.
        Queued,
        /// Commands were posted.
        InFlight,
        /// A command failed. Other commands in flight are awaited, and no further commands are
        /// posted.
        Failing,
        /// The transfer has an outcome, but some of its commands are still in flight.
        Late,
        /// The transfer is quiet, because no command is in flight.
        Quiet,
    }
    /// Events of a transfer or lock operation.
    events TransferEvent {
        /// The first command is posted.
        Begin,
        /// All commands were posted and answered.
        Finish,
        /// A command failed.
        Fault,
        /// The transfer ends early, because of a time-out, its cancellation, the loss of its peer,
        /// or a failure of the port.
        GiveUp,
        /// The last command in flight was answered, or fenced.
        LastAnswer,
        /// [`Limits::absorb`] has passed without all late answers, or the port is closed.
        Forget,
    }
    transitions {
        Queued + Begin => InFlight;
        Queued + GiveUp => Quiet;
        InFlight + Finish => Quiet;
        InFlight + Fault => Failing;
        InFlight + GiveUp => Late;
        Failing + LastAnswer => Quiet;
        Failing + GiveUp => Late;
        Late + LastAnswer => Quiet;
        Late + Forget => Quiet;
    }
}

/// Sizes of the tables, which are allocated by [`Transfers::new`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// Maximum number of transfers and lock operations, including late transfers; up to 65,536.
    pub transfers: usize,
    /// Maximum number of fragments of all transfers together that have bytes without a posted
    /// command.
    pub fragments: usize,
    /// Maximum number of commands in flight, including late commands; up to 65,536.
    pub commands: usize,
}

/// Limits of peers and nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Maximum number of commands in flight to a peer, including late commands. Fences do not
    /// count.
    pub window: usize,
    /// Maximum number of bytes in flight to a peer. A single command may exceed the limit.
    pub window_bytes: u64,
    /// Maximum size of a command in bytes, 1…8 MiB.
    pub command: u32,
    /// Maximum number of transfers with all VPIDs of a node, including late transfers.
    pub node: usize,
    /// Maximum number of [`Capacity::fragments`] that the transfers with one node may use.
    pub node_fragments: usize,
    /// Time for which late notifications are awaited, in ticks. The time must be longer than any
    /// packet can be in flight.
    pub absorb: u64,
}

impl Limits {
    /// Returns limits for a NIC with 255 commands in flight. A peer has up to 16 commands and 32
    /// MiB in flight. A node has up to half of the transfers and fragments. `absorb` is in ticks.
    pub const fn new(capacity: &Capacity, absorb: u64) -> Self {
        Self {
            window: 16,
            window_bytes: 32 << 20,
            command: MAX_LEN,
            node: capacity.transfers.div_ceil(2),
            node_fragments: capacity.fragments.div_ceil(2),
            absorb,
        }
    }
}

/// Notification of the peer about a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Notify {
    /// The peer receives no notification.
    #[default]
    Nothing,
    /// A notification for each command, including refused commands. For a PUT, the completer sends
    /// it when the data have arrived. For a GET, the responder sends it when the data were read.
    Each,
    /// A notification for the last command, which is posted after all other commands were answered
    /// without error.
    Last,
    /// A notification PUT that follows the data, after all commands were answered without error.
    /// The peer receives the value, and the class in the size field.
    Value {
        /// Class of the notification PUT, in its size field.
        class: u8,
        /// Value of the notification PUT.
        value: u64,
    },
}

/// Kind of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransferKind {
    /// Direction of the data.
    pub direction: Direction,
    /// Notification of the peer.
    pub notify: Notify,
    /// True if a PUT is complete only after the peer's completer has answered a lock operation that
    /// follows the data. No data arrive after that. A packet that the network has lost is not
    /// detected.
    pub confirm: bool,
}

/// Fetch-compare-and-add operation on a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// Unit that performs the operation.
    pub at: LockTarget,
    /// Lock number, 24 bits.
    pub number: u32,
    /// Compare operand.
    pub compare: i32,
    /// Addend.
    pub add: i32,
}

/// Parameters of a transfer: peer, class, deadlines, event queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Remote node.
    pub node: NodeId,
    /// Remote VPID.
    pub vpid: Vpid,
    /// Traffic class, 0…3.
    pub class: u8,
    /// True if addresses are NLAs, false if they are bus addresses.
    pub translate: bool,
    /// Time at which the transfer ends with [`Failure::TimedOut`].
    pub deadline: Time,
    /// Time at which the transfer times out if some of its commands were not posted. The limit is
    /// necessary because the peer may have reused the memory by then. The confirmation and fences
    /// do not count.
    pub post_by: Option<Time>,
    /// Queue for the events of the transfer.
    pub queue: Queue,
}

/// Event queue. Each queue has a separate consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Queue {
    /// Events for the context that processes notifications.
    Direct,
    /// Events for a context that may take longer.
    Deferred,
}

/// Result of a successful transfer or lock operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Done {
    /// Number of transferred bytes.
    pub bytes: u64,
    /// Word 0 of the answer to a lock operation.
    pub word: u64,
}

/// Cause of a transfer's failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Failure {
    /// A NIC unit refused a command.
    Fault(Fault),
    /// [`Terms::deadline`] or [`Terms::post_by`] has expired.
    TimedOut,
    /// The owner cancelled the transfer.
    Cancelled,
    /// The driver ended all transfers of its peer ([`Transfers::abort`]).
    PeerLost,
    /// The port has failed or was closed.
    Down,
}

/// Reason why a transfer is quiet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Quiet {
    /// All posted commands, or fences behind them, were answered, or the NIC cannot access memory
    /// any more. The memory may be used again at once.
    Settled,
    /// No answer arrived for [`Limits::absorb`]. The transfer is finished on the assumption that no
    /// answer will arrive. Memory that a late answer would damage must be protected in another way.
    Unanswered,
    /// The port is about to be closed while commands are in flight.
    Closed,
}

/// Reason for refusing a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SubmitError {
    /// The transfer is empty, the lists have different lengths, an address range wraps around, or a
    /// lock number has more than 24 bits.
    Invalid,
    /// The table of transfers is full.
    Transfers,
    /// The fragment pool is full.
    Fragments,
    /// The node has the maximum number of transfers or fragments, on all VPIDs.
    Peer,
}

/// Report to the owner of a transfer.
#[derive(Debug)]
pub struct Event<T> {
    /// Transfer to which the report belongs.
    pub ticket: Ticket,
    /// Token of the owner. The report with `quiet` returns the original token; an earlier report
    /// returns a clone.
    pub token: T,
    /// Outcome of the transfer, reported once.
    pub outcome: Option<Result<Done, Failure>>,
    /// Reason for which the transfer is quiet. A report with this reason is the last report of the
    /// transfer.
    pub quiet: Option<Quiet>,
}

/// RMA port that accepts commands.
pub trait Port {
    /// Posts a command from a requester page.
    ///
    /// # Errors
    ///
    /// Returns `Later` if the port is full; the driver must call [`Transfers::post`] when the port
    /// can accept commands again. Returns `Never` if the port has failed.
    fn post(&mut self, page: PageOptions, descriptor: &Descriptor) -> Result<(), TransportError>;
}

/// Result of a call of [`Transfers::post`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Posted {
    /// Commands posted.
    pub commands: usize,
    /// True if more commands may be possible. The driver then calls [`Transfers::post`] again.
    pub more: bool,
}

/// Statistics of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Accepted transfers and lock operations.
    pub submitted: u64,
    /// Transfers that succeeded.
    pub done: u64,
    /// Transfers that failed because a unit refused a command.
    pub faults: u64,
    /// Transfers that timed out.
    pub timed_out: u64,
    /// Transfers that were cancelled.
    pub cancelled: u64,
    /// Transfers that failed because the driver gave up their peer.
    pub peer_lost: u64,
    /// Transfers that failed because of the port.
    pub down: u64,
    /// Transfers refused because of invalid arguments.
    pub refused_invalid: u64,
    /// Transfers refused because the table of transfers was full.
    pub refused_transfers: u64,
    /// Transfers refused because the fragment pool was full.
    pub refused_fragments: u64,
    /// Transfers refused because of the limits of their node.
    pub refused_peer: u64,
    /// Commands posted, including fences.
    pub commands: u64,
    /// Fences posted.
    pub fences: u64,
    /// Notifications of late commands.
    pub late: u64,
    /// Late commands dropped after a fence, because their notifications were lost.
    pub passed: u64,
    /// Late commands dropped after [`Limits::absorb`].
    pub forgotten: u64,
    /// Notifications that belong to no command in flight.
    pub unclaimed: u64,
}
