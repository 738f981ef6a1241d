// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Sources: data outside of the send ring, and the records about them at both ends
//! (docs/ds-protocol.md, Sources).
//!
//! Bytes of a source have sequence numbers like bytes of the send ring. The unacknowledged bytes,
//! including bytes of sources, never exceed the ring size when the sender adds data to the ring.
//! Therefore the sequence number determines the offset of each byte in a ring.

use wire::{ds::Seq, ids::Nla};

/// Maximum number of unfinished sources of a sender.
pub const SOURCES: usize = 4;
/// Maximum number of withdrawn ranges at a receiver whose reader has not passed them. The sender
/// observes this limit.
const VOIDS: usize = 8;

/// ID of a source, unique within its stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SourceId(u64);

/// State of a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceState {
    /// Number of bytes of the source that the peer has received.
    pub acknowledged: u32,
    /// True if the peer has all bytes that it fetched, and will fetch no further bytes.
    pub finished: bool,
    /// True if the owner has withdrawn the source.
    pub withdrawn: bool,
}

/// State of a withdrawal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cut {
    No,
    /// The peer has not answered yet at which byte it stops.
    Asked,
    /// The peer fetches no bytes from this sequence number on.
    At(Seq),
    /// The source was never announced, so no bytes belong to its sequence numbers.
    Unsaid,
}

/// Source of a sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Source {
    id: SourceId,
    from: Seq,
    end: Seq,
    nla: Nla,
    cut: Cut,
    /// True if the owner may still ask for the state of the source.
    owned: bool,
}

impl Source {
    fn state(&self, una: Seq) -> SourceState {
        let end = match self.cut {
            Cut::At(at) => at,
            Cut::Unsaid => self.from,
            Cut::No | Cut::Asked => self.end,
        };
        SourceState {
            acknowledged: una.max(self.from).min(end).since(self.from),
            finished: match self.cut {
                Cut::No | Cut::At(_) => !una.before(end),
                // The number of fetched bytes is unknown until the peer answers.
                Cut::Asked => false,
                Cut::Unsaid => true,
            },
            withdrawn: self.cut != Cut::No,
        }
    }

    pub(super) fn from(&self) -> Seq {
        self.from
    }

    pub(super) fn end(&self) -> Seq {
        self.end
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cut != Cut::No
    }

    /// Returns the NLA of byte `seq`.
    pub(super) fn nla_at(&self, seq: Seq) -> Nla {
        Nla(self.nla.0 + u64::from(seq.since(self.from)))
    }
}

/// Unfinished sources of a sender.
#[derive(Debug, Default)]
pub(super) struct Sources {
    list: [Option<Source>; SOURCES],
    /// ID of the next source. A sequence number would not be unique, because withdrawn sequence
    /// numbers can be used again.
    ids: u64,
    /// Ends of dropped sources that have left-out bytes, which the peer's reader may not have
    /// passed yet.
    left_out: [Option<Seq>; VOIDS],
}

impl Sources {
    /// Returns true if one more source can be added. Even if this source is withdrawn, the peer
    /// must not have more than eight withdrawn ranges. `read` is a lower bound of the peer's read
    /// position.
    pub(super) fn has_room(&self, read: Seq) -> bool {
        let past = |end: &Seq| !read.before(*end);
        let voids = self.left_out.iter().flatten().filter(|end| !past(end));
        let used = self.all().count();
        used < SOURCES && used + voids.count() < VOIDS
    }

    /// Returns true if all slots are used.
    pub(super) fn is_full(&self) -> bool {
        self.list.iter().all(Option::is_some)
    }

    /// Returns true if all slots are free.
    pub(super) fn is_empty(&self) -> bool {
        self.list.iter().all(Option::is_none)
    }

    /// Adds a source that begins at `from`. The caller checked [`Sources::has_room`].
    pub(super) fn add(&mut self, from: Seq, len: u32, nla: Nla) -> Option<SourceId> {
        let slot = self.list.iter_mut().find(|s| s.is_none())?;
        let id = SourceId(self.ids);
        self.ids += 1;
        *slot = Some(Source {
            id,
            from,
            end: from.plus(len),
            nla,
            cut: Cut::No,
            owned: true,
        });
        Some(id)
    }

    fn all(&self) -> impl Iterator<Item = &Source> {
        self.list.iter().flatten()
    }

    fn find(&mut self, id: SourceId) -> Option<&mut Source> {
        self.list.iter_mut().flatten().find(|s| s.id == id)
    }

    /// Returns the source that contains `seq`.
    pub(super) fn at(&self, seq: Seq) -> Option<&Source> {
        self.all()
            .find(|s| !seq.before(s.from) && seq.before(s.end))
    }

    /// Returns the start of the first source at or after `seq`, or `end` if there is no such
    /// source.
    pub(super) fn next_from(&self, seq: Seq, end: Seq) -> Seq {
        let later = self.all().filter(|s| !s.from.before(seq)).map(|s| s.from);
        later.fold(end, Seq::min)
    }

    /// Returns the state of a source; `None` after [`Sources::disown`].
    pub(super) fn state(&self, id: SourceId, una: Seq) -> Option<SourceState> {
        let mut all = self.all();
        all.find(|s| s.id == id).map(|s| s.state(una))
    }

    /// Returns true if a finished source still has an owner.
    pub(super) fn any_source_finished(&self, una: Seq) -> bool {
        self.all().any(|s| s.owned && s.state(una).finished)
    }

    /// Records that the owner will not ask for the state of a source again.
    pub(super) fn disown(&mut self, id: SourceId, una: Seq, read: Seq) {
        if let Some(source) = self.find(id) {
            source.owned = false;
        }
        self.tidy(una, read);
    }

    /// Drops finished sources without owner. All bytes before `una` are acknowledged. `read` is a
    /// lower bound of the peer's read position.
    pub(super) fn tidy(&mut self, una: Seq, read: Seq) {
        for end in &mut self.left_out {
            *end = end.filter(|end| read.before(*end));
        }
        for slot in &mut self.list {
            // A withdrawn source is kept until its sequence numbers are acknowledged and the peer
            // has answered.
            let ended = |s: &Source| !una.before(s.end) && s.cut != Cut::Asked;
            let Some(source) = slot.filter(|s| !s.owned && ended(s)) else {
                continue;
            };
            *slot = None;
            if source.is_cut() && read.before(source.end) {
                // `has_room` guarantees a free entry.
                let mut free = self.left_out.iter_mut().filter(|end| end.is_none());
                if let Some(free) = free.next() {
                    *free = Some(source.end);
                }
            }
        }
    }

    /// Withdraws a source. All bytes before `una` are acknowledged, and all bytes before `sent`
    /// were sent. `end` is the end of the stream if the end may move back; otherwise `None`.
    pub(super) fn cut(&mut self, id: SourceId, una: Seq, sent: Seq, end: Option<Seq>) -> Withdrawn {
        let busy = self.cutting().is_some();
        let Some(source) = self.find(id) else {
            return Withdrawn::Unknown;
        };
        // The peer may have received the whole source, although its acknowledgement is missing.
        if source.cut != Cut::No || !una.before(source.end) {
            return Withdrawn::Done;
        }
        if !source.from.before(sent) {
            if Some(source.end) != end {
                source.cut = Cut::Unsaid;
                return Withdrawn::Done;
            }
            // The source is the last item of the stream, so its sequence numbers can be used again.
            let from = source.from;
            for slot in &mut self.list {
                if slot.is_some_and(|s| s.id == id) {
                    *slot = None;
                }
            }
            return Withdrawn::Removed(from);
        }
        if busy {
            return Withdrawn::Retry;
        }
        source.cut = Cut::Asked;
        Withdrawn::Notify(source.from)
    }

    /// Returns the source whose withdrawal the peer has not answered.
    pub(super) fn cutting(&self) -> Option<&Source> {
        self.all().find(|s| s.cut == Cut::Asked)
    }

    /// Records the peer's answer that the last `left` bytes of the source ending at `end` are not
    /// fetched. Ignores an unexpected answer.
    pub(super) fn cut_done(&mut self, end: Seq, left: u32) {
        let mut all = self.list.iter_mut().flatten();
        if let Some(s) = all.find(|s| s.cut == Cut::Asked && s.end == end) {
            let left = left.min(s.end.since(s.from));
            s.cut = Cut::At(Seq(s.end.0.wrapping_sub(left)));
        }
    }
}

/// Result of a withdrawal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Withdrawn {
    /// The withdrawal must be sent to the peer, beginning at this sequence number.
    Notify(Seq),
    /// The source was removed, and the stream ends at this sequence number.
    Removed(Seq),
    /// No further action is needed, because the source was never announced, was withdrawn before,
    /// or is acknowledged.
    Done,
    /// An earlier withdrawal is unanswered, and the caller must retry later.
    Retry,
    /// The source does not exist.
    Unknown,
}

/// Announced source, or its remainder, that is not yet in the ranges to fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pending {
    /// Sequence number after the last byte of the source.
    pub(super) end: Seq,
    /// NLA of the first remaining byte.
    pub(super) nla: Nla,
    /// True if the last byte of the source ends a send operation of the peer.
    pub(super) push: bool,
}

/// Withdrawn ranges, i.e. sequence numbers without bytes, in ascending order.
#[derive(Debug, Default)]
pub(super) struct Voids {
    list: [(Seq, Seq); VOIDS],
    count: usize,
}

impl Voids {
    fn all(&self) -> &[(Seq, Seq)] {
        self.list.get(..self.count).unwrap_or_default()
    }

    /// Returns true if no slot is free for another range.
    pub(super) fn is_full(&self) -> bool {
        self.count == VOIDS
    }

    /// Adds a range after the existing ranges. The caller has checked [`Voids::is_full`].
    pub(super) fn add(&mut self, from: Seq, end: Seq) {
        if let Some(slot) = self.list.get_mut(self.count) {
            *slot = (from, end);
            self.count += 1;
        }
    }

    /// Returns the read position after withdrawn ranges that begin at `read`, and removes these
    /// ranges.
    pub(super) fn pass(&mut self, mut read: Seq) -> Seq {
        while let Some((from, end)) = self.all().first().copied() {
            if read != from {
                break;
            }
            read = end;
            self.list.copy_within(1..self.count, 0);
            self.count -= 1;
        }
        read
    }

    /// Returns the start and the length of consecutive bytes in `read`…`end`, after the first
    /// `skip` bytes.
    pub(super) fn behind(&self, read: Seq, end: Seq, mut skip: u32) -> (Seq, u32) {
        let mut at = read;
        for (from, to) in self.all() {
            let len = from.min(end).since(at);
            if skip < len {
                return (at.plus(skip), len - skip);
            }
            skip -= len;
            if !to.before(end) {
                return (end, 0);
            }
            at = *to;
        }
        let len = end.since(at);
        (at.plus(skip.min(len)), len.saturating_sub(skip))
    }

    /// Returns the number of bytes in `read`…`end`, without withdrawn ranges.
    pub(super) fn bytes(&self, read: Seq, end: Seq) -> u32 {
        let empty = self.all().iter().map(|(from, to)| {
            let (from, to) = (from.min(end), to.min(end));
            to.since(from)
        });
        end.since(read) - empty.sum::<u32>()
    }
}
