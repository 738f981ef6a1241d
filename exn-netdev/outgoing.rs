// SPDX-License-Identifier: GPL-2.0-only

//! State of the sending side: the port, frames that are announced, the one that is parked. What is done with a
//! frame is in [`crate::tx`].

use crate::{
    conf,
    machine::{boxed, Sender},
};
use extoll_core::velo;
use kernel::prelude::*;
use kernel_ext::net::{SkBuff, TxMapping};
use protocol::{
    base::flow::Counts,
    eth::{poll::Settled, rendezvous::FlightState},
};
use wire::{eth::Path, velo::Target};

/// A frame on its way to the port.
pub(crate) struct Outgoing {
    pub(crate) skb: SkBuff,
    pub(crate) target: Target,
    /// By its length.
    pub(crate) path: Path,
    /// A number that all frames of a flow share.
    pub(crate) flow: u32,
    /// Messages of it that were sent.
    pub(crate) sent: usize,
}

/// Sending side of an interface.
pub(crate) struct Tx {
    pub(crate) port: Option<velo::Sender>,
    /// What the port has sent.
    pub(crate) settled: Settled,
    pub(crate) announced: KBox<Sender>,
    pub(crate) parked: Option<Outgoing>,
    /// The queue was stopped by this module.
    pub(crate) stopped: bool,
}

impl Tx {
    /// An empty one. May sleep.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            port: None,
            settled: Settled::default(),
            announced: boxed(|| Sender::new(conf::TX_FLIGHT_MAX as u16, conf::TX_QUARANTINE))?,
            parked: None,
            stopped: false,
        })
    }

    /// Takes the port into use.
    pub(crate) fn start(&mut self, port: velo::Sender) {
        self.port = Some(port);
        self.settled = Settled::default();
        self.stopped = false;
    }

    /// Gives the port back, and the frame that waited for it: both to be dropped without the lock.
    pub(crate) fn stop(&mut self) -> (Option<velo::Sender>, Option<SkBuff>) {
        (self.port.take(), self.parked.take().map(|p| p.skb))
    }

    /// The port, to be used without the lock: it may log, and the line may have to go out here.
    pub(crate) fn port(&self) -> Option<velo::Sender> {
        self.port.clone()
    }

    /// Announced frames in flight and in quarantine.
    pub(crate) fn gauges(&self) -> (u64, u64) {
        (
            self.announced.active() as u64,
            self.announced.given_up() as u64,
        )
    }

    /// Whether a frame is parked, and whether the queue is stopped.
    pub(crate) fn blocked(&self) -> (bool, bool) {
        (self.parked.is_some(), self.stopped)
    }

    /// Whether housekeeping has something to do.
    pub(crate) fn needs_tick(&self) -> bool {
        !self.announced.is_empty() || self.parked.is_some()
    }

    /// Whether the port is open.
    pub(crate) fn is_open(&self) -> bool {
        self.port.is_some()
    }

    /// Whether nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.announced.active() == 0
    }

    /// Takes one frame out at `down`, true if it was in flight, to be dropped without the lock; the
    /// port is closed.
    pub(crate) fn flush_one(&mut self) -> Option<(bool, TxMapping)> {
        let (active, buffer) = self.announced.flush_one()?;
        Some((active, buffer.map))
    }

    /// What happened to announced frames.
    pub(crate) fn counts(&self) -> &Counts<FlightState> {
        self.announced.counts()
    }
}
