// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! A stream connection past its rings: sources of the own end and of the peer, memory of readers.

use super::stream::{Heard, Stream};
use super::{Broken, Limits, SourceId};
use crate::Time;
use wire::{
    ds::{Head, Seq},
    ids::Nla,
};

/// So many times [`Limits::orphan`] memory of a program that has closed its socket is lent at most.
const LENT_ORPHANS: u64 = 4;

impl Stream {
    /// Until when memory of a program that has closed its socket may be lent, however much the peer
    /// has acknowledged meanwhile: nobody but this connection would give it back.
    pub(super) fn lent_until(&self, limits: &Limits) -> Option<Time> {
        let orphan = self.orphan.filter(|_| self.sending.is_lending())?;
        Some(orphan.after(limits.orphan.saturating_mul(LENT_ORPHANS)))
    }

    /// The next `len` bytes are at `nla`, which the peer may read until the source is over
    /// ([`Sending::source`](super::Sending::source)), or the connection is, and for some time after the latter
    /// ([`Stream::send_ring_free`]). `None` if nothing can be sent any more, or as
    /// [`Sending::source_room`](super::Sending::source_room) says.
    pub fn commit_source(&mut self, len: u32, nla: Nla) -> Option<SourceId> {
        if !self.can_send() {
            return None;
        }
        let id = self.sending.commit_source(len, nla)?;
        self.corked = None;
        Some(id)
    }

    /// What of a source the peer has not begun to fetch is not part of the stream. False if that has
    /// to be tried again, when another one is over. Unless the caller is `alone`, somebody may be copying
    /// what comes behind it to the send ring: then its numbers stay used.
    pub fn withdraw_source(&mut self, id: SourceId, alone: bool) -> bool {
        self.end.is_some() || self.sending.withdraw(id, alone)
    }

    /// Nobody asks after a source any more.
    pub fn let_source_go(&mut self, id: SourceId) {
        self.sending.let_go(id);
    }

    /// A reader waits who may take a source itself; up to `most` bytes of one go to the ring before.
    pub fn hold_sources(&mut self, most: u32) {
        self.held_until = None;
        self.receiving.hold(Some(most));
    }

    /// It does not wait any more, and may come back until then.
    pub fn release_sources(&mut self, until: Option<Time>) {
        if self.receiving.is_held() {
            match until {
                Some(_) => self.receiving.hold(Some(0)),
                None => self.receiving.hold(None),
            }
            self.held_until = until;
        }
    }

    /// Memory of a reader for the next `len` bytes: how many of them will be fetched to it, as
    /// [`Get::sink`](super::Get::sink) says. What becomes of them is [`Receiving::sunk`](super::Receiving::sunk); it ends with
    /// [`Stream::withdraw_sink`].
    pub fn offer_sink(&mut self, len: u32) -> Option<u32> {
        if self.end.is_some() {
            return None;
        }
        self.receiving.offer(len)
    }

    /// The reader's memory is not to be used any more: how many bytes are there. GETs that were posted
    /// may still write to it until they are quiet.
    pub fn withdraw_sink(&mut self) -> u32 {
        let bytes = self.receiving.withdraw_sink();
        self.counters.sunk += u64::from(bytes);
        self.cut_now();
        bytes
    }

    /// Takes back what the peer has withdrawn meanwhile.
    pub(super) fn cut_now(&mut self) {
        if let Some((end, len)) = self.late_cut.take() {
            // What can't be right would have been found before.
            let _ = self.withdrawn(end, len);
        }
    }

    pub(super) fn source(
        &mut self,
        head: Head,
        (nla, len): (Nla, u32),
        push: bool,
        now: Time,
    ) -> Result<Heard, Broken> {
        if !self.receiving.takes_sources() {
            self.counters.foreign += 1;
        } else if let Some((skip, len)) = self.fit(head, len) {
            if !self.refuse(now) {
                let nla = Nla(nla.0 + u64::from(skip));
                self.receiving.source(nla, len, push)?;
            }
        }
        Ok(Heard::Nothing)
    }

    pub(super) fn withdrawn(&mut self, end: Seq, len: u32) -> Result<Heard, Broken> {
        let from = Seq(end.0.wrapping_sub(len));
        // An answer is not forgotten for another one: that counts as lost, and is asked for again.
        let other = |cut: Option<(Seq, u32)>| cut.is_some_and(|(at, _)| at != end);
        if !self.receiving.takes_sources() {
            self.counters.foreign += 1;
        } else if self.receiving.next().before(from) {
            self.counters.gaps += 1;
            self.gap = true;
        } else if other(self.cut) || other(self.late_cut) {
            self.counters.gaps += 1;
        } else if self.receiving.is_sinking() {
            // What goes to a reader's memory comes first.
            self.late_cut = Some((end, len));
        } else {
            match self.receiving.withdraw(from, end)? {
                Some(left) => self.cut = Some((end, left)),
                None => self.counters.gaps += 1,
            }
        }
        Ok(Heard::Nothing)
    }
}
