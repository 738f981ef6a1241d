// SPDX-License-Identifier: GPL-2.0-only

//! State of the sending side: the VELO port, announced frames, and the frame that waits for credit.
//! [`Shared`](crate::shared::Shared) protects it with its lock `tx`; [`crate::tx`] implements the
//! sending.

use crate::{
    conf,
    env::{boxed, Sender},
};
use extoll_core::velo;
use kernel::prelude::*;
use kernel_ext::net::{SkBuff, TxMapping};
use protocol::{
    base::flow::Counts,
    eth::{poll::CompletionBound, rendezvous::FlightState},
};
use wire::{eth::Path, velo::Target};

/// Frame that is being sent.
pub(crate) struct Outgoing {
    pub(crate) skb: SkBuff,
    pub(crate) target: Target,
    /// Path of the frame, eager or rendezvous, chosen by its length.
    pub(crate) path: Path,
    /// Number of the frame's flow; 0 if the flow is irrelevant.
    pub(crate) flow: u32,
    /// Number of the frame's messages that were sent.
    pub(crate) sent: usize,
}

/// Sending side of an interface; protected by the lock `tx`.
pub(crate) struct Tx {
    pub(crate) port: Option<velo::Sender>,
    /// Tracks which commands the NIC has executed.
    pub(crate) posted: CompletionBound,
    pub(crate) announced: KBox<Sender>,
    pub(crate) pending: Option<Outgoing>,
    /// Set while the driver keeps the transmit queue stopped.
    pub(crate) stopped: bool,
}

impl Tx {
    /// Creates the state without a port. May sleep.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            port: None,
            posted: CompletionBound::default(),
            announced: boxed(|| Sender::new(conf::TX_FLIGHT_MAX as u16, conf::TX_QUARANTINE))?,
            pending: None,
            stopped: false,
        })
    }

    /// Installs the port when the interface is opened.
    pub(crate) fn start(&mut self, port: velo::Sender) {
        self.port = Some(port);
        self.posted = CompletionBound::default();
        self.stopped = false;
    }

    /// Removes the port and the pending frame. The caller drops both after it has released the
    /// lock.
    pub(crate) fn stop(&mut self) -> (Option<velo::Sender>, Option<SkBuff>) {
        (self.port.take(), self.pending.take().map(|p| p.skb))
    }

    /// Returns a clone of the port for calls that may log. Such calls must be made without the
    /// lock, because netconsole may send the line through this interface.
    pub(crate) fn port(&self) -> Option<velo::Sender> {
        self.port.clone()
    }

    /// Returns the numbers of announced frames in flight and in quarantine.
    pub(crate) fn gauges(&self) -> (u64, u64) {
        (
            self.announced.active() as u64,
            self.announced.given_up() as u64,
        )
    }

    /// Returns whether a frame is pending and whether the queue is stopped.
    pub(crate) fn blocked(&self) -> (bool, bool) {
        (self.pending.is_some(), self.stopped)
    }

    /// Returns whether housekeeping must run.
    pub(crate) fn needs_tick(&self) -> bool {
        !self.announced.is_empty() || self.pending.is_some()
    }

    /// Returns whether the port is open.
    pub(crate) fn is_open(&self) -> bool {
        self.port.is_some()
    }

    /// Returns whether no announced frame is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.announced.active() == 0
    }

    /// Removes one announced frame at `down`, after the port was closed. Returns whether the frame
    /// was in flight, and its mapping. The caller drops the mapping after releasing the lock.
    pub(crate) fn flush_one(&mut self) -> Option<(bool, TxMapping)> {
        let (active, buffer) = self.announced.flush_one()?;
        Some((active, buffer.map))
    }

    /// Returns the counts of state transitions of announced frames.
    pub(crate) fn counts(&self) -> &Counts<FlightState> {
        self.announced.counts()
    }
}
