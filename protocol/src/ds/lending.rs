// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Transfers that bypass a ring: from sources instead of the send ring, and to readers' buffers
//! instead of the receive ring.

use super::stream::{Received, Stream};
use super::{Limits, SourceId, Violation};
use crate::Time;
use wire::{
    ds::{Head, Seq},
    ids::Nla,
};

/// Maximum time for which sources of a closed socket stay readable, as a multiple of
/// [`Limits::orphan`].
const LENT_ORPHANS: u64 = 4;

impl Stream {
    /// Returns the time until which sources of a closed socket may stay readable, regardless of
    /// acknowledgements. The limit is needed because only this connection can end the access to the
    /// program's memory.
    pub(super) fn lent_until(&self, limits: &Limits) -> Option<Time> {
        let orphan = self.orphan.filter(|_| self.sending.has_sources())?;
        Some(orphan.after(limits.orphan.saturating_mul(LENT_ORPHANS)))
    }

    /// Appends `len` bytes at `nla` to the stream as a source. The peer may read them until the
    /// source is finished ([`Sending::source`](super::Sending::source)). After the end of the
    /// connection, the bytes stay readable until [`Stream::send_ring_free`]. Returns `None` if the
    /// stream accepts no more data, or currently accepts no source
    /// ([`Sending::source_room`](super::Sending::source_room)).
    pub fn commit_source(&mut self, len: u32, nla: Nla) -> Option<SourceId> {
        if !self.can_send() {
            return None;
        }
        let id = self.sending.commit_source(len, nla)?;
        self.corked = None;
        Some(id)
    }

    /// Withdraws a source. Bytes that the peer has not begun to fetch are removed from the stream.
    /// Returns false if the caller must retry after an earlier withdrawal has finished. `alone` is
    /// true if no other thread copies data after the source to the send ring. Otherwise the
    /// sequence numbers of removed bytes are not used again.
    pub fn withdraw_source(&mut self, id: SourceId, alone: bool) -> bool {
        self.end.is_some() || self.sending.withdraw(id, alone)
    }

    /// Tells the stream that the owner will not ask for the state of a source again. The state is
    /// dropped as soon as the source is finished.
    pub fn disown_source(&mut self, id: SourceId) {
        self.sending.disown(id);
    }

    /// Delays GETs from sources, because a waiting reader may provide a buffer. Up to `most` bytes
    /// of a source are still fetched to the ring.
    pub fn hold_sources(&mut self, most: u32) {
        self.held_until = None;
        self.receiving.hold(Some(most));
    }

    /// Ends [`Stream::hold_sources`], because the reader stopped waiting. With `until`, GETs from
    /// sources are delayed until that time, because the reader may wait again.
    pub fn release_sources(&mut self, until: Option<Time>) {
        if self.receiving.is_held() {
            match until {
                Some(_) => self.receiving.hold(Some(0)),
                None => self.receiving.hold(None),
            }
            self.held_until = until;
        }
    }

    /// Offers `len` bytes of a reader's memory as destination for the pending source. Returns the
    /// number of bytes that will be fetched to the memory. [`Get::sink`](super::Get::sink) is the
    /// offset in the memory. [`Receiving::sunk`](super::Receiving::sunk) reports the progress, and
    /// [`Stream::withdraw_sink`] ends the offer.
    pub fn offer_sink(&mut self, len: u32) -> Option<u32> {
        if self.end.is_some() {
            return None;
        }
        self.receiving.offer(len)
    }

    /// Ends the use of the reader's memory. Returns the number of bytes that have arrived in the
    /// memory. Posted GETs may still write to the memory until they are quiet.
    pub fn withdraw_sink(&mut self) -> u32 {
        let bytes = self.receiving.withdraw_sink();
        self.counters.sunk += u64::from(bytes);
        self.cut_now();
        bytes
    }

    /// Executes a withdrawal of the peer that was delayed because a reader's buffer was in use.
    pub(super) fn cut_now(&mut self) {
        if let Some((end, len)) = self.late_cut.take() {
            // The result is ignored, because the message of the withdrawal has already reported a
            // violation.
            let _ = self.withdrawn(end, len);
        }
    }

    pub(super) fn source(
        &mut self,
        head: Head,
        (nla, len): (Nla, u32),
        push: bool,
        now: Time,
    ) -> Result<Received, Violation> {
        if !self.receiving.accepts_sources() {
            self.counters.foreign += 1;
        } else if let Some((skip, len)) = self.fit(head, len) {
            if !self.refuse(now) {
                let nla = Nla(nla.0 + u64::from(skip));
                self.receiving.source(nla, len, push)?;
            }
        }
        Ok(Received::Nothing)
    }

    pub(super) fn withdrawn(&mut self, end: Seq, len: u32) -> Result<Received, Violation> {
        let from = Seq(end.0.wrapping_sub(len));
        // Do not replace a pending answer. Treat the new withdrawal as lost, because the peer
        // repeats it.
        let other = |cut: Option<(Seq, u32)>| cut.is_some_and(|(at, _)| at != end);
        if !self.receiving.accepts_sources() {
            self.counters.foreign += 1;
        } else if self.receiving.next().before(from) {
            self.counters.gaps += 1;
            self.gap = true;
        } else if other(self.cut) || other(self.late_cut) {
            self.counters.gaps += 1;
        } else if self.receiving.is_sinking() {
            // The withdrawal waits until no GET writes to a reader's memory.
            self.late_cut = Some((end, len));
        } else {
            match self.receiving.withdraw(from, end)? {
                Some(left) => self.cut = Some((end, left)),
                None => self.counters.gaps += 1,
            }
        }
        Ok(Received::Nothing)
    }
}
