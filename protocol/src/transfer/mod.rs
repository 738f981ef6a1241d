// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Transfers between fragment lists, and lock operations, over one RMA port: what is posted next,
//! whose notification is it, what is late, and when memory may be used again.
//!
//! A transfer is cut into commands where a local or a remote fragment ends and at
//! [`Limits::command`] bytes, and has one outcome. [`Transfers`] keeps all transfers of a port. It
//! is told of notifications ([`Transfers::take`]), of time ([`Transfers::expire`]) and of room to
//! post ([`Transfers::post`]), and reports ([`Transfers::next_event`]) the outcome of each
//! transfer, once, and later or at the same time, once, that it is quiet ([`Quiet`]): that nothing
//! of it is on its way that could touch memory.
//!
//! **Whose notification.** One names unit, peer, command and the local address of the last fragment
//! (HW §10.4), nothing else. Commands in flight are found by a hash of these. An error may name any
//! address within a command, so all commands of the peer are looked at, of which there is a bounded
//! number. Of GETs, or PUTs, of one peer that meet in local memory, and of operations on one lock,
//! only one is on its way at a time: a notification that gets lost, or a command that the port
//! gives up, is never made up for by that of another one.
//!
//! **What is late.** A transfer that ends before its commands were answered (time-out, cancelled,
//! its peer given up) keeps these for [`Limits::absorb`], to take late notifications. A command
//! whose notification could be taken for one of those first has a lock operation answered that
//! changes nothing, by the unit that owes the old one: a *fence*. What is asked of a unit in one
//! traffic class is answered in order (HW §10.8), so nothing comes for the old one behind the
//! fence, and it is forgotten. This also keeps a late answer from writing to memory that a later
//! transfer of the same peer uses.
//!
//! **Peers** (a node and a VPID) take turns, one command each. What a peer has in flight, in
//! commands and bytes, is bounded, and so are the places for transfers and fragments that a node has
//! altogether: one that stands still leaves room for the others.
//!
//! ```
//! use protocol::transfer::*;
//! use protocol::{Memory, Refused, Time};
//! use wire::ids::{NodeId, Vpid};
//! use wire::rma::{Descriptor, PageOptions};
//! use wire::transfer::Direction;
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
//! /// A port that nobody answers.
//! struct Void(usize);
//! impl Port for Void {
//!     fn post(&mut self, _: PageOptions, _: &Descriptor) -> Result<(), Refused> {
//!         self.0 += 1;
//!         Ok(())
//!     }
//! }
//!
//! let capacity = Capacity { transfers: 8, fragments: 64, commands: 16 };
//! let mut all: Transfers<Heap, &str> = Transfers::new(&capacity, &Limits::new(&capacity, 1000)).unwrap();
//! let terms = Terms {
//!     node: NodeId(1),
//!     vpid: Vpid::new(9).unwrap(),
//!     class: 0,
//!     translate: true,
//!     deadline: Time(50),
//!     post_by: None,
//!     queue: Queue::Direct,
//! };
//! let get = Move { direction: Direction::Get, tell: Tell::Nothing, confirm: false };
//! let part = |address, len| Fragment { address, len };
//! let (here, there) = ([part(0x1000, 100), part(0x2000, 60)], [part(0x9000, 160)]);
//! let lists = (here.into_iter(), there.into_iter());
//! all.submit(&terms, get, lists.0, lists.1, "mine").unwrap();
//!
//! let mut port = Void(0);
//! assert_eq!(all.post(&mut port, Time(0), 10).commands, 2);
//! // Its end, and when memory may be used again.
//! all.expire(all.next_deadline().unwrap(), 10);
//! let end = all.next_event(Queue::Direct).unwrap();
//! assert_eq!((end.token, end.outcome, end.quiet), ("mine", Some(Err(Failure::TimedOut)), None));
//! all.told(end.ticket);
//! all.expire(Time(1050), 10);
//! let end = all.next_event(Queue::Direct).unwrap();
//! assert_eq!(end.quiet, Some(Quiet::Unanswered));
//! ```

mod answer;
mod describe;
mod end;
mod fragments;
mod post;
mod submit;
mod tables;
mod unclaimed;

pub use fragments::Fragment;
pub use tables::{Ticket, Transfers};
pub use unclaimed::Unclaimed;

use crate::{Refused, Time};
use wire::{
    ids::{NodeId, Vpid},
    rma::{Descriptor, LockTarget, PageOptions, MAX_LEN},
    transfer::{Direction, Fault},
};

crate::flow! {
    /// Life of a transfer or lock operation.
    states State {
        /// Nothing was posted.
        Queued,
        /// Commands were posted.
        Moving,
        /// A command failed: the others in flight are awaited, no more are posted.
        Failing,
        /// It has ended; commands in flight are not answered.
        Late,
        /// Nothing of it is on its way.
        Over,
    }
    /// What happens to it.
    events Step {
        /// The first command is posted.
        Begin,
        /// All is done.
        Finish,
        /// A command failed.
        Fault,
        /// It ends early: time-out, cancelled, peer given up, port down.
        GiveUp,
        /// The last command in flight was answered.
        Settle,
        /// Nobody waits for the answers any longer.
        Forget,
    }
    transitions {
        Queued + Begin => Moving;
        Queued + GiveUp => Over;
        Moving + Finish => Over;
        Moving + Fault => Failing;
        Moving + GiveUp => Late;
        Failing + Settle => Over;
        Failing + GiveUp => Late;
        Late + Settle => Over;
        Late + Forget => Over;
    }
}

/// Sizes of the tables, which get their memory when they are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// Transfers and lock operations, those that are late included; at most 65,536.
    pub transfers: usize,
    /// Fragments of all transfers together that no command was posted for yet.
    pub fragments: usize,
    /// Commands in flight, late ones included; at most 65,536.
    pub commands: usize,
}

/// Bounds and times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Commands in flight to a peer, late ones included, fences not.
    pub window: usize,
    /// Bytes in flight to a peer; one command may always be.
    pub window_bytes: u64,
    /// Bytes of a command, 1…8 MiB.
    pub command: u32,
    /// Transfers of a node, whatever their VPIDs, late ones included.
    pub node: usize,
    /// Of [`Capacity::fragments`], those of a node.
    pub node_fragments: usize,
    /// How long late notifications are waited for, in ticks: longer than anything is on its way.
    pub absorb: u64,
}

impl Limits {
    /// Windows for a NIC that takes 255 commands at a time, of which peers have 16 each and no more
    /// than 32 MiB of data, and nodes half of the places for transfers and fragments; `absorb` in
    /// ticks.
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

/// What the peer is told of a transfer besides its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tell {
    /// Nothing.
    #[default]
    Nothing,
    /// A notification for each command, also for one that is refused there: of a PUT by its
    /// completer when the data is there, of a GET by its responder when the data was read.
    Each,
    /// One for the last command, which is posted when all others have been answered without error.
    Last,
    /// A notification PUT behind the data, when all commands have been answered without error. The
    /// peer gets the value, and the class in the size field.
    Value {
        /// Class.
        class: u8,
        /// Value.
        value: u64,
    },
}

/// What a transfer does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// Which way the data goes.
    pub direction: Direction,
    /// What the peer hears of it.
    pub tell: Tell,
    /// Of a PUT: it is done when the peer's completer has answered a lock operation behind the
    /// data, not when the data was sent. Nothing of it comes later then; what the network has lost
    /// nobody tells.
    pub confirm: bool,
}

/// A fetch-compare-and-add.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// The unit that performs it.
    pub at: LockTarget,
    /// Lock number, 24 bits.
    pub number: u32,
    /// Compare operand.
    pub compare: i32,
    /// Addend.
    pub add: i32,
}

/// With whom, how, and until when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Remote node.
    pub node: NodeId,
    /// Remote VPID.
    pub vpid: Vpid,
    /// Traffic class, 0…3.
    pub class: u8,
    /// Addresses are NLAs, otherwise bus addresses.
    pub translate: bool,
    /// When it times out.
    pub deadline: Time,
    /// It times out, too, if something of it was not posted by then, as the port had no room: memory
    /// of the peer may be something else's later. Confirmation and fences don't count.
    pub post_by: Option<Time>,
    /// Which of two queues its events go to.
    pub queue: Queue,
}

/// Events are kept apart by who takes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Queue {
    /// Whoever handles notifications.
    Direct,
    /// Somebody who may take his time.
    Deferred,
}

/// What was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Done {
    /// Bytes of a transfer.
    pub bytes: u64,
    /// Word 0 of the answer to a lock operation.
    pub word: u64,
}

/// Why a transfer did not succeed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Failure {
    /// A unit refused a command.
    Fault(Fault),
    /// The deadline came first.
    TimedOut,
    /// It was cancelled.
    Cancelled,
    /// Its peer was given up.
    PeerLost,
    /// The port takes no more commands, or was closed.
    Down,
}

/// Why nothing of a transfer is on its way any more.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Quiet {
    /// All commands that were posted have been answered, or a fence behind them, or the NIC can't
    /// touch memory any more. Memory may be used again.
    Settled,
    /// No answer came for [`Limits::absorb`]. That nothing comes later is an assumption: memory
    /// that a late answer would harm has to be protected by other means.
    Unanswered,
    /// The tables were cleared while commands were in flight, as the port is about to be closed.
    Closed,
}

/// Why a transfer was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refusal {
    /// No bytes, other lengths here than there, an address range that wraps around, a lock number
    /// above 24 bits.
    Invalid,
    /// No place for a transfer.
    Transfers,
    /// No place for its fragments.
    Fragments,
    /// Its node has, on all VPIDs, as many transfers or fragments as one may have.
    Peer,
}

/// Something to tell the owner of a transfer.
#[derive(Debug)]
pub struct Event<T> {
    /// The transfer.
    pub ticket: Ticket,
    /// What its owner gave with it; the last one if it is quiet.
    pub token: T,
    /// Its outcome.
    pub outcome: Option<Result<Done, Failure>>,
    /// It is quiet. Nothing follows.
    pub quiet: Option<Quiet>,
}

/// Takes commands.
pub trait Port {
    /// Posts a command from a requester page.
    ///
    /// # Errors
    ///
    /// `Later`: there is no room; [`Transfers::post`] has to be called when there is. `Never`: the
    /// port is dead.
    fn post(&mut self, page: PageOptions, descriptor: &Descriptor) -> Result<(), Refused>;
}

/// What a call of [`Transfers::post`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Posted {
    /// Commands posted.
    pub commands: usize,
    /// There may be more to post: call again.
    pub more: bool,
}

/// What happened so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Transfers and lock operations taken.
    pub submitted: u64,
    /// Of these, done.
    pub done: u64,
    /// Ended by the error of a unit.
    pub faults: u64,
    /// Ended by their deadline.
    pub timed_out: u64,
    /// Cancelled.
    pub cancelled: u64,
    /// Ended as their peer was given up.
    pub peer_lost: u64,
    /// Ended as the port went down.
    pub down: u64,
    /// Not taken: arguments that form no transfer.
    pub refused_invalid: u64,
    /// Not taken: no place for a transfer.
    pub refused_transfers: u64,
    /// Not taken: no place for the fragments.
    pub refused_fragments: u64,
    /// Not taken: too many of one peer.
    pub refused_peer: u64,
    /// Commands posted, fences included.
    pub commands: u64,
    /// Lock operations that ask whether something old still comes.
    pub fences: u64,
    /// Late notifications taken.
    pub late: u64,
    /// Late commands that a fence showed to be over: their notifications were lost.
    pub passed: u64,
    /// Late commands that nobody answered in time.
    pub forgotten: u64,
    /// Notifications that no command in flight was waiting for.
    pub unclaimed: u64,
}
