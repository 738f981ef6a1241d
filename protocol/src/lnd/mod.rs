// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Lustre networking (LND): the state machines of `kexlnd.ko` (docs/lnd-protocol.md).
//!
//! [`Lnd`] keeps the peers of a network interface and the LNet messages to and from them. An LNet
//! message is sent as a *request*, in one or several VELO messages. The peer *answers* the request
//! when its LNet has received the message. Short payload is part of these messages. Long payload is
//! *exposed* by the driver, and the peer fetches it by RMA GET. GETs are the only access to memory
//! of other nodes.
//!
//! # State machines
//!
//! * [`PeerState`]: session with a peer. A message to send starts a greeting (`New` → `Greeting`).
//!   The peer's answer begins the session (`Up`), and silence ends it (`Down`).
//! * [`SendState`]: message to a peer. It waits for a slot of the session (`Queued`), is
//!   transmitted (`Sending`) and awaits the answer (`Waiting`). Then its memory is revoked
//!   (`Closing`). If the peer has not answered, the message keeps its address for some time
//!   (`Resting`).
//! * [`ReceiveState`]: message from a peer. Its parts are collected (`Gathering`) and LNet decides
//!   about it (`Offered`). The payload is then copied (`Copying`), or fetched by GETs (`Due`,
//!   `Fetching`). After GETs, their destination is revoked (`Closing`).
//!
//! # Driver
//!
//! The driver holds one lock around [`Lnd`], and must not hold it while it calls LNet. Only
//! [`Lnd::new`] allocates memory or sleeps. The driver has these duties:
//!
//! * It passes each message of a node to [`Lnd::receive_message`], and copies payload into the
//!   message's buffer.
//! * It passes messages of LNet to [`Lnd::submit`].
//! * It performs the actions of [`Lnd::next_event`] after each call, and reports their results.
//!   Examples are [`Lnd::parsed`], [`Lnd::fetched`] and [`Lnd::revoked`].
//! * It calls [`Lnd::pump`] after each call, and when the port can accept messages again.
//! * It calls [`Lnd::expire`] at [`Lnd::next_deadline`].
//!
//! The owner of a sent message is notified twice. [`Event::Sent`] reports the result when the peer
//! cannot read the memory any more. [`Event::Released`] follows when the address of the memory may
//! be used again.

mod check;
mod dispatch;
mod events;
mod kept;
mod lnet;
mod peer;
mod peer_table;
mod pump;
mod receive;
mod replies;
mod send;
mod tables;

pub use dispatch::PayloadTarget;
pub use events::Event;
pub use kept::EagerCopies;
pub use lnet::LnetAction;
pub use send::{OutgoingMessage, SubmitError};
pub use tables::{Lnd, Ticket};

use crate::TransportError;
use wire::{ids::NodeId, lnd::Message};

crate::flow! {
    /// States of the session with a peer.
    states PeerState {
        /// No session exists, and none is needed.
        New,
        /// `HELLO` was sent or is due, and the peer has not answered.
        Greeting,
        /// A session exists.
        Up,
        /// The peer did not answer a short time ago, or declined the session.
        Down,
    }
    /// Events of the session with a peer.
    events PeerEvent {
        /// A message to the peer is queued.
        Want,
        /// The peer accepted the session with `WELCOME`.
        Welcome,
        /// The peer used the key of a pending session, which replaces the current one.
        Adopt,
        /// The peer sent `STALE`, because it does not know the session.
        Stale,
        /// The peer does not answer, or declined the session.
        Silent,
        /// The interface is being closed, or the port has failed.
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
    /// States of a message to a peer.
    states SendState {
        /// The message waits for a session, for a free slot, or for the next attempt after `BUSY`.
        Queued,
        /// Parts of the message are being sent.
        Sending,
        /// All parts were sent, and the answer is missing.
        Waiting,
        /// The result is known, and the exposed memory is being revoked.
        Closing,
        /// The owner was notified. The peer has not answered and may still know the address.
        Resting,
        /// The message is finished.
        Finished,
    }
    /// Events of a message to a peer.
    events SendEvent {
        /// The message received a slot of the session.
        Start,
        /// The last part was sent.
        Sent,
        /// The peer reported a missing part.
        Again,
        /// The peer answered `BUSY`.
        Later,
        /// The peer sent a final answer.
        Answer,
        /// The message ends without an answer, because of its deadline or the end of the session or
        /// interface.
        GiveUp,
        /// The memory is revoked. The peer has answered, or the request was never sent.
        Close,
        /// The memory is revoked, but the peer has not answered.
        Rest,
        /// The peer answered, or [`Limits::memory`] has passed since the end of the session.
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
        Closing + Close => Finished;
        Closing + Rest => Resting;
        Resting + Release => Finished;
    }
}

crate::flow! {
    /// States of a message from a peer.
    states ReceiveState {
        /// Some parts of the message have not arrived yet.
        Gathering,
        /// LNet has received it, and has not requested the payload.
        Offered,
        /// The peer cancelled the message, or the session ended, before LNet requested the payload.
        Cancelled,
        /// The payload is being copied from the buffer of the message.
        Copying,
        /// A GET must be posted.
        Due,
        /// A GET is in flight.
        Fetching,
        /// The result is known, and the destination of the GETs is being revoked.
        Closing,
        /// The message is finished.
        Finished,
    }
    /// Events of a message from a peer.
    events ReceiveEvent {
        /// The last part arrived.
        Complete,
        /// The peer cancelled the message, the session ended, or some parts did not arrive in time.
        Cancel,
        /// LNet refused the message, or requests no payload.
        Drop,
        /// LNet requested payload that is in the buffer.
        Copy,
        /// The payload was copied.
        Copied,
        /// LNet requested payload that must be fetched.
        Fetch,
        /// The driver is instructed to post a GET.
        Post,
        /// The GET failed.
        Fail,
        /// The GET has fetched all bytes.
        Fetched,
        /// The payload cannot be fetched, or the peer cancelled the message.
        GiveUp,
        /// The destination of the GETs is revoked.
        Close,
    }
    transitions {
        Gathering + Complete => Offered;
        Gathering + Cancel => Finished;
        Offered + Cancel => Cancelled;
        Offered + Drop => Finished;
        Offered + Copy => Copying;
        Offered + Fetch => Due;
        Cancelled + Drop => Finished;
        Copying + Copied => Finished;
        Due + Post => Fetching;
        Due + GiveUp => Closing;
        Fetching + Fail => Due;
        Fetching + Fetched => Closing;
        Fetching + GiveUp => Closing;
        Closing + Close => Finished;
    }
}

/// Sizes of the tables, which are allocated by [`Lnd::new`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// Maximum number of peers; up to 32,768.
    pub peers: u16,
    /// Maximum number of messages to peers, including messages in state `Resting`.
    pub sends: usize,
    /// Maximum number of messages from peers.
    pub receives: usize,
    /// Number of slots of a session (1…256), which is the maximum number of concurrent requests in
    /// each direction.
    pub slots: u16,
    /// Maximum number of one peer's messages with GETs, at least 1. The number limits the resources
    /// that a peer occupies if GETs from it never succeed.
    pub fetches: u32,
}

/// Returns the maximum number of messages that LNet passes to an interface at a time. `credits` is
/// the number of credits of the interface, and `peer_credits` the number of credits of one peer.
/// `cpts` is the number of CPU partitions that share the interface's credits.
#[must_use]
pub const fn max_concurrent(credits: u32, peer_credits: u32, cpts: u32) -> u32 {
    if cpts <= 1 {
        return credits;
    }
    // Each CPT gets an equal share of the credits, but at least the credits of eight peers, and at
    // most all credits.
    let (part, least) = (credits / cpts, peer_credits.saturating_mul(8));
    let each = if part > least { part } else { least };
    let each = if each < credits { each } else { credits };
    each.saturating_mul(cpts)
}

/// Limits of an interface. Times are in ticks. docs/lnd-protocol.md describes how the limits depend
/// on each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Time without an answer after which a peer is asked. The time is doubled with each question,
    /// up to `ask_most`.
    pub ask: u64,
    /// Maximum time between two questions to a peer.
    pub ask_most: u64,
    /// Time after a question at which a silent peer counts as down.
    pub give_up: u64,
    /// Time for which a peer that is down is not greeted again.
    pub dead: u64,
    /// Time after which a request is sent again to a busy peer. The time is doubled with each
    /// `BUSY`, up to 16-fold.
    pub busy: u64,
    /// Maximum age of the peer's last sign of life when a GET is requested. The GET must be posted
    /// before twice this time has passed since the sign of life. The value must be equal on all
    /// nodes.
    pub fresh: u64,
    /// Maximum time for which a packet is in flight. The value must be equal on all nodes.
    pub hold: u64,
    /// Maximum time from the acceptance of a message by the port until the port has sent or dropped
    /// the message.
    pub port: u64,
    /// Maximum duration of a GET; `hold` may shorten it.
    pub get: u64,
    /// Number of failed GETs after which the message fails.
    pub tries: u8,
    /// Maximum time for the reception of all parts of a request, and maximum time for fetching its
    /// payload.
    pub receive: u64,
}

impl Limits {
    /// Returns the time after the end of a session for which the peer may still use an exposed
    /// address.
    #[must_use]
    pub const fn memory(&self) -> u64 {
        let each = self.fresh.saturating_add(self.hold);
        self.port.saturating_add(each.saturating_mul(2))
    }
}

/// Cause of a message's failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    /// The deadline of the message has passed.
    TimedOut,
    /// The session ended, because the peer does not answer any more or was restarted.
    PeerLost,
    /// The peer does not answer the greeting.
    Unreachable,
    /// The peer uses another version of the protocol, has no free peer entry, or is closing.
    Unwelcome,
    /// The peer's LNet did not accept the message.
    Refused,
    /// The peer had no free slot for the message.
    Busy,
    /// The message was cancelled before the peer's LNet received it.
    Cancelled,
    /// The interface is being closed.
    Closing,
    /// The port has failed.
    Down,
}

/// Result of a message to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// The peer's LNet has received the message and all payload that it requested.
    Delivered,
    /// The peer's LNet has not received the message and will not receive it.
    NotDelivered(Cause),
    /// The peer's LNet received the message, but not the payload.
    Failed,
    /// It is unknown whether the peer's LNet has received the message.
    Unknown(Cause),
}

/// Cause of a GET's failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GetFailure {
    /// The GET had no result in time, or packets are missing. The next attempt may succeed.
    Lost,
    /// A NIC unit refused the GET, because the address is invalid.
    Fault,
    /// The port could not post the GET.
    NotPosted,
}

/// Transport of messages.
pub trait Port<T> {
    /// Sends a message to a node. `payload` contains the token of the submitted message, and the
    /// offset of the payload to send. A `quiet` message need not interrupt the receiver, because
    /// another part of the same request follows.
    ///
    /// # Errors
    ///
    /// Returns `Later` if the port is full; the driver must call [`Lnd::pump`] when the port can
    /// accept messages again. Returns `Never` if the port has failed.
    fn send(
        &mut self,
        to: NodeId,
        message: &Message,
        payload: Option<(&T, u16)>,
        quiet: bool,
    ) -> Result<(), TransportError>;
}

/// Statistics of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Messages accepted by [`Lnd::submit`].
    pub sends: u64,
    /// Messages delivered.
    pub delivered: u64,
    /// Messages of which it is known that the peer's LNet never receives them.
    pub not_delivered: u64,
    /// Messages delivered without their payload.
    pub failed: u64,
    /// Messages with unknown result.
    pub unknown: u64,
    /// Messages refused by [`Lnd::submit`].
    pub refused: u64,
    /// Messages of peers that arrived completely and were passed to LNet.
    pub offered: u64,
    /// Payloads fetched.
    pub fetched: u64,
    /// Payloads that could not be fetched.
    pub not_fetched: u64,
    /// GETs posted again.
    pub gets_again: u64,
    /// Requests sent again because a part was missing.
    pub again: u64,
    /// Requests of peers answered with `BUSY`.
    pub busy: u64,
    /// `BUSY` answers received.
    pub peer_busy: u64,
    /// Questions about requests sent, including repeated cancellations.
    pub asked: u64,
    /// Requests, parts and answers that were received twice or in a state that does not permit
    /// them.
    pub odd: u64,
    /// Messages with an unknown session key.
    pub strays: u64,
    /// Fragments that do not match their request.
    pub nonsense: u64,
    /// Sessions begun.
    pub sessions: u64,
    /// Sessions that ended because the peer was silent, was restarted or sent `STALE`, or because
    /// the interface was closed.
    pub lost: u64,
    /// VELO messages sent.
    pub messages: u64,
    /// Notes about requests (questions, cancellations and answers) sent.
    pub notes: u64,
}
