// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Rendezvous of EXT-Eth: a frame is announced, fetched by the receiver with one GET, and both sides learn of the end by a
//! notification that names the address of the last fragment (EXT §4).
//!
//! [`Sender`] keeps announced frames, [`Waiting`] and [`Fetches`] are the receiver. Rules that both follow:
//! * Memory that a GET may still read or write is not given back: what was given up stays in a quarantine first.
//! * Only the peer that a transfer is with can end it.
//! * A peer that leaves things unanswered may occupy a part of the tables only, and what it holds up is not waited for.

mod receiver;
mod sender;

pub use receiver::{
    Allowed, FetchEvent, FetchPort, FetchState, Fetched, Fetches, Pumped, Refusal, Shared, Waiting,
};
pub use sender::{Admitted, AnnouncePort, Ended, FlightEvent, FlightState, Sender, Unsent};

use crate::{slots::Slots, Memory};
use wire::ids::NodeId;

/// Memory of a frame, mapped for the NIC for as long as this exists.
pub trait Buffer {
    /// Address for the NIC.
    fn address(&self) -> u64;
}

/// Times in ticks, and bounds per peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// After this time an announced frame counts as stalled.
    pub stall: u64,
    /// After this time an announced frame is given up, and a fetch is lost.
    pub timeout: u64,
    /// For so long the memory of both stays untouched then.
    pub keep: u64,
    /// An announcement that gets no memory for so long is fetched to be thrown away.
    pub patience: u64,
    /// Announced frames in flight.
    pub flight: usize,
    /// Announced frames in flight to a peer that has stalled ones, or has fetched none since some were given up.
    pub stalled_peer: usize,
    /// Fetches in flight.
    pub fetches: usize,
    /// Fetches in flight from one source.
    pub source: usize,
    /// Fetches in flight and lost from a source that left some unanswered.
    pub lossy_source: usize,
}

/// Transfers of one peer.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Tally {
    /// Waited for.
    open: usize,
    /// Of these, not answered in time.
    late: usize,
    /// Not waited for any more, but not forgotten.
    lost: usize,
    /// It has answered nothing since it last let something be lost.
    silent: bool,
}

impl Tally {
    /// Whether it leaves things unanswered.
    fn is_slow(&self) -> bool {
        self.late > 0 || self.silent
    }
}

/// Transfers by peer.
struct Peers<M: Memory>(Slots<M, Tally>);

impl<M: Memory> Peers<M> {
    /// For as many peers as there can be transfers.
    fn new(transfers: u16) -> Result<Self, M::Error> {
        Ok(Self(Slots::new(transfers)?))
    }

    fn get(&self, node: NodeId) -> Tally {
        self.0.get(u64::from(node.0)).copied().unwrap_or_default()
    }

    /// Changes a peer's tally; a peer without transfers is forgotten.
    fn update(&mut self, node: NodeId, f: impl FnOnce(&mut Tally)) {
        let key = u64::from(node.0);
        if self.0.get(key).is_none() {
            // There is room: no more peers than transfers.
            let _ = self.0.insert(key, Tally::default());
        }
        if let Some(t) = self.0.get_mut(key) {
            f(t);
            if t.open == 0 && t.lost == 0 {
                self.0.remove(key);
            }
        }
    }
}
