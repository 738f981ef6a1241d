// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Lustre networking over Extoll (docs/lnd-protocol.md): what a network interface remembers of its peers
//! and of the messages that go to them and come from them.
//!
//! An LNet message goes as a *request*, in one or several VELO messages, and is *answered* when the
//! peer's LNet has it. Short payload travels in these messages; long one stays where it is, is
//! *exposed* there by whoever drives this, and fetched by the peer with RMA GETs. There is no other
//! access to memory of other nodes. So two things are told of a request, in this order: what became
//! of it, when nobody reads its memory any more ([`Event::Sent`]), and that its address may name
//! something else ([`Event::Released`]).
//!
//! [`Lnd`] is told of messages ([`Lnd::take`]), of what LNet does with them ([`Lnd::parsed`],
//! [`Lnd::receive`]), of GETs and revocations, of time ([`Lnd::expire`]) and of room to send
//! ([`Lnd::pump`]); what is to be done it says in [`Lnd::next_event`]. No function sleeps or gets
//! memory but [`Lnd::new`]. One lock around it suffices, which may not be held while LNet is called.

mod check;
mod events;
mod hear;
mod kept;
mod known;
mod lnet;
mod peer;
mod pump;
mod receive;
mod send;
mod stray;
mod tables;

pub use events::Event;
pub use hear::Part;
pub use kept::Kept;
pub use lnet::Taking;
pub use send::{Letter, Refusal};
pub use tables::{Lnd, Ticket};

use crate::Refused;
use wire::{ids::NodeId, lnd::Message};

crate::flow! {
    /// A peer.
    states PeerState {
        /// There is no session, and none is wanted.
        New,
        /// A session is wanted, which the peer has not answered.
        Greeting,
        /// There is a session.
        Up,
        /// It did not answer a short time ago.
        Down,
    }
    /// What happens to it.
    events PeerStep {
        /// Something has to go to it.
        Want,
        /// It has answered: there is a session.
        Welcome,
        /// It has begun another session than the one that there was, if any.
        Adopt,
        /// It does not know the session any more.
        Stale,
        /// It does not answer, or does not want a session.
        Silent,
        /// The interface ends.
        Leave,
    }
    transitions {
        New + Want => Greeting;
        New + Adopt => Up;
        New + Leave => New;
        Greeting + Welcome => Up;
        Greeting + Adopt => Up;
        Greeting + Silent => Down;
        Greeting + Leave => New;
        Up + Adopt => Up;
        Up + Stale => New;
        Up + Silent => Down;
        Up + Leave => New;
        Down + Want => Greeting;
        Down + Adopt => Up;
        Down + Leave => New;
    }
}

crate::flow! {
    /// A message that goes out.
    states SendState {
        /// It waits for a session, for a place in it, or for a peer that was busy.
        Queued,
        /// Its parts are being sent.
        Sending,
        /// All of it was sent.
        Waiting,
        /// What becomes of it is known; its memory is being revoked.
        Closing,
        /// Its owner was told, but the peer has not answered, and may still know its address.
        Resting,
        /// It is over.
        Over,
    }
    /// What happens to it.
    events SendStep {
        /// It has got a place.
        Start,
        /// The last part was sent.
        Sent,
        /// The peer has not got all of it.
        Again,
        /// The peer was busy.
        Later,
        /// The peer has answered.
        Answer,
        /// It ends without an answer.
        GiveUp,
        /// Nobody can reach its memory any more. The peer has answered, or never heard of it.
        Close,
        /// The same, but it has not answered.
        Rest,
        /// It has answered, or has had the time to forget.
        Release,
    }
    transitions {
        Queued + Start => Sending;
        Queued + GiveUp => Closing;
        Sending + Sent => Waiting;
        Sending + Again => Sending;
        Sending + Later => Queued;
        Sending + Answer => Closing;
        Sending + GiveUp => Closing;
        Waiting + Again => Sending;
        Waiting + Later => Queued;
        Waiting + Answer => Closing;
        Waiting + GiveUp => Closing;
        Closing + Close => Over;
        Closing + Rest => Resting;
        Resting + Release => Over;
    }
}

crate::flow! {
    /// A message that comes in.
    states ReceiveState {
        /// Not all of it is there.
        Gathering,
        /// LNet was given it, and has not said yet where the payload goes.
        Offered,
        /// The peer does not want it any more, or has gone. LNet has not said yet.
        Lapsed,
        /// Its payload is being copied from the buffer that it came in.
        Copying,
        /// A GET has to be posted.
        Due,
        /// One is on its way.
        Fetching,
        /// What becomes of it is known; the memory that GETs write to is being revoked.
        Closing,
        /// It is over.
        Over,
    }
    /// What happens to it.
    events ReceiveStep {
        /// The last part came.
        Complete,
        /// The peer cancels it, or has gone.
        Lapse,
        /// LNet does not take it, or wants none of the payload.
        Drop,
        /// LNet wants payload that is here.
        Copy,
        /// It has it.
        Copied,
        /// LNet wants payload that has to be fetched.
        Fetch,
        /// A GET is posted.
        Post,
        /// It brought nothing, or not all.
        Fail,
        /// All is there.
        Fetched,
        /// It will never be.
        GiveUp,
        /// Nothing writes to its memory any more.
        Close,
    }
    transitions {
        Gathering + Complete => Offered;
        Gathering + Lapse => Over;
        Offered + Lapse => Lapsed;
        Offered + Drop => Over;
        Offered + Copy => Copying;
        Offered + Fetch => Due;
        Lapsed + Drop => Over;
        Copying + Copied => Over;
        Due + Post => Fetching;
        Due + GiveUp => Closing;
        Fetching + Fail => Due;
        Fetching + Fetched => Closing;
        Fetching + GiveUp => Closing;
        Closing + Close => Over;
    }
}

/// Sizes of the tables, which get their memory when they are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// Peers, at most 32,768.
    pub peers: u16,
    /// Messages that go out, those included whose peers have not answered.
    pub sends: usize,
    /// Messages that come in.
    pub receives: usize,
    /// Requests that a peer may have here at a time, and most that this end has at a peer; 1…256.
    pub slots: u16,
    /// Messages of one peer that have a GET posted, or had, at a time; at least 1. Their number here
    /// is what a peer can take of others that never brings what its messages promise.
    pub fetches: u32,
}

/// Messages that LNet gives an interface at a time, by its credits: of all, of each peer, and the
/// CPTs among which it divides them.
#[must_use]
pub const fn at_a_time(credits: u32, peer_credits: u32, cpts: u32) -> u32 {
    if cpts <= 1 {
        return credits;
    }
    // Each CPT has its part, but enough for eight peers, and no more than all.
    let (part, least) = (credits / cpts, peer_credits.saturating_mul(8));
    let each = if part > least { part } else { least };
    let each = if each < credits { each } else { credits };
    each.saturating_mul(cpts)
}

/// Times in ticks, and bounds. docs/lnd-protocol.md tells how they depend on each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// After so long without an answer a peer is asked; then after twice that time, and so on up to
    /// `ask_most`.
    pub ask: u64,
    /// See `ask`.
    pub ask_most: u64,
    /// A peer that was asked and has not answered for so long has gone.
    pub give_up: u64,
    /// For so long one that has gone is not tried again.
    pub dead: u64,
    /// After so long a request is sent again to a peer that was busy; then after twice that time,
    /// and so on up to 16 times.
    pub busy: u64,
    /// A GET is decided upon only so long after a moment when the peer was alive, and posted within
    /// twice that time. The same for all nodes.
    pub fresh: u64,
    /// Nothing is on its way in the network for longer. The same for all nodes.
    pub hold: u64,
    /// A port that has taken a message sends it by then, or never.
    pub port: u64,
    /// Time for a GET; `hold` may be shorter.
    pub get: u64,
    /// GETs that may fail before a message does.
    pub tries: u8,
    /// For so long payload is fetched.
    pub receive: u64,
}

impl Limits {
    /// For how long a peer may use an address that this end has told it, from when this end has
    /// ended the session with it.
    #[must_use]
    pub const fn memory(&self) -> u64 {
        let each = self.fresh.saturating_add(self.hold);
        self.port.saturating_add(each.saturating_mul(2))
    }
}

/// Why something did not happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Why {
    /// Its time was over.
    TimedOut,
    /// The peer has gone, or has begun anew.
    PeerLost,
    /// The peer does not answer.
    Unreachable,
    /// The peer speaks another version of the protocol, or has no place for this end.
    Unwelcome,
    /// The peer's LNet did not take it.
    Refused,
    /// The peer had no place for it.
    Busy,
    /// The peer had not got all of it when it was cancelled.
    Cancelled,
    /// The interface ends.
    Closing,
    /// The port does not work any more.
    Down,
}

/// What became of a message that went out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// The peer's LNet has it, and all of the payload that it wanted.
    Delivered,
    /// The peer's LNet has not seen it and never will.
    NotDelivered(Why),
    /// The peer's LNet has seen it, but could not get the payload.
    Failed,
    /// Nobody knows.
    Unknown(Why),
}

/// Why a GET did not bring what it was to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GetFailure {
    /// Nothing came in time, or not all: it may succeed the next time.
    Lost,
    /// A unit refused it: there is no such memory.
    Fault,
    /// It could not be posted.
    NotPosted,
}

/// Sends messages.
pub trait Port<T> {
    /// Sends a message to a node; its payload is that of the [`Letter`] with this token, from an
    /// offset on. A message that is `quiet` need not interrupt the receiver, because another part
    /// of the same request follows.
    ///
    /// # Errors
    ///
    /// `Later`: there is no room; [`Lnd::pump`] has to be called when there is. `Never`: the port
    /// is dead.
    fn send(
        &mut self,
        to: NodeId,
        message: &Message,
        payload: Option<(&T, u16)>,
        quiet: bool,
    ) -> Result<(), Refused>;
}

/// What happened so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Messages to peers that were taken.
    pub sends: u64,
    /// Of these, delivered.
    pub delivered: u64,
    /// Certainly not delivered.
    pub not_delivered: u64,
    /// Delivered without their payload.
    pub failed: u64,
    /// Of which nobody knows.
    pub unknown: u64,
    /// Not taken.
    pub refused: u64,
    /// Messages that LNet was given.
    pub offered: u64,
    /// Payloads fetched.
    pub fetched: u64,
    /// Payloads that could not be.
    pub not_fetched: u64,
    /// GETs made anew.
    pub gets_again: u64,
    /// Requests sent once more as a part of them was missing.
    pub again: u64,
    /// Requests of peers that there was no place for.
    pub busy: u64,
    /// Requests that peers were busy for.
    pub peer_busy: u64,
    /// Requests that a peer was asked about.
    pub asked: u64,
    /// Requests and parts that came twice, or too early.
    pub odd: u64,
    /// Messages of no session.
    pub strays: u64,
    /// Messages that make no sense in their session.
    pub nonsense: u64,
    /// Sessions begun.
    pub sessions: u64,
    /// Sessions that ended with requests in them, or whose peer has gone.
    pub lost: u64,
    /// Messages sent.
    pub messages: u64,
    /// Notes sent.
    pub notes: u64,
}
