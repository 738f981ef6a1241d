// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Sources: data outside of the send ring, both ends' records of them (docs/ds-protocol.md,
//! Sources).
//!
//! Bytes of a source have numbers like all others. The sender fills its ring only if all
//! unacknowledged bytes, including those of sources, fit into the ring size. Therefore the number
//! still determines the offset of each byte in a ring.

use wire::{ds::Seq, ids::Nla};

/// Maximum number of unfinished sources of a sender.
pub const SOURCES: usize = 4;
/// Maximum number of withdrawn ranges that a receiver has not read past. The sender observes this
/// limit.
const VOIDS: usize = 8;

/// Name of a source, unique within its stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SourceId(u64);

/// State of a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceState {
    /// Number of its bytes that the peer has.
    pub acknowledged: u32,
    /// No more bytes of it will be fetched, and the peer has all fetched ones.
    pub finished: bool,
    /// The owner has withdrawn it.
    pub withdrawn: bool,
}

/// State of a withdrawal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cut {
    No,
    /// The peer has not answered where it stops.
    Asked,
    /// The peer fetches no bytes from this number on.
    At(Seq),
    /// The source was never announced, so its numbers have no bytes.
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
    /// The owner may still ask for its state.
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
    /// Name of the next source. Names are no byte numbers, because withdrawn numbers can be used
    /// again.
    ids: u64,
    /// Ends of dropped sources with bytes left out, which the peer's reader may not have passed.
    left_out: [Option<Seq>; VOIDS],
}

impl Sources {
    /// Returns whether one more source is possible. Even if it is withdrawn, the peer must not
    /// exceed its eight ranges. `read` is a lower bound of the peer's read position.
    pub(super) fn has_room(&self, read: Seq) -> bool {
        let past = |end: &Seq| !read.before(*end);
        let voids = self.left_out.iter().flatten().filter(|end| !past(end));
        let used = self.all().count();
        used < SOURCES && used + voids.count() < VOIDS
    }

    /// Returns whether all slots are used.
    pub(super) fn is_full(&self) -> bool {
        self.list.iter().all(Option::is_some)
    }

    /// Returns whether all slots are free.
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

    /// Returns the start of the first source at or behind `seq`, and `end` if there is no such
    /// source.
    pub(super) fn next_from(&self, seq: Seq, end: Seq) -> Seq {
        let later = self.all().filter(|s| !s.from.before(seq)).map(|s| s.from);
        later.fold(end, Seq::min)
    }

    /// Returns the state of a source; `None` after its owner let it go.
    pub(super) fn state(&self, id: SourceId, una: Seq) -> Option<SourceState> {
        let mut all = self.all();
        all.find(|s| s.id == id).map(|s| s.state(una))
    }

    /// Returns whether a finished source still has an owner.
    pub(super) fn any_source_finished(&self, una: Seq) -> bool {
        self.all().any(|s| s.owned && s.state(una).finished)
    }

    /// Ends the owner's interest in a source.
    pub(super) fn disown(&mut self, id: SourceId, una: Seq, read: Seq) {
        if let Some(source) = self.find(id) {
            source.owned = false;
        }
        self.tidy(una, read);
    }

    /// Drops finished sources without owner. `una` is acknowledged; `read` is a lower bound of the
    /// peer's read position.
    pub(super) fn tidy(&mut self, una: Seq, read: Seq) {
        for end in &mut self.left_out {
            *end = end.filter(|end| read.before(*end));
        }
        for slot in &mut self.list {
            // A withdrawn source keeps its numbers until they are acknowledged and the peer has
            // answered.
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

    /// Withdraws a source. All numbers before `una` are acknowledged, and all before `sent` were
    /// sent. `end` is the end of the stream if it may move back; otherwise `None`.
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
            // The source is the last item of the stream, so its numbers are given back.
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

    /// Returns the withdrawn source that the peer has not answered.
    pub(super) fn cutting(&self) -> Option<&Source> {
        self.all().find(|s| s.cut == Cut::Asked)
    }

    /// Records the peer's answer that the last `left` bytes of the source ending at `end` are not
    /// fetched. Ignores an answer without question.
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
    /// The peer must be notified, from this number on.
    Notify(Seq),
    /// The source was removed; the stream now ends here.
    Removed(Seq),
    /// The numbers of the source have no bytes, or it was withdrawn before, or is acknowledged.
    Done,
    /// An earlier withdrawal is unanswered; the caller must retry.
    Retry,
    /// The source does not exist.
    Unknown,
}

/// Announced source, or its remainder, that is not yet noted for fetching.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pending {
    /// Number behind its last byte.
    pub(super) end: Seq,
    /// NLA of its first byte.
    pub(super) nla: Nla,
    /// Its last byte ends a send of the peer.
    pub(super) push: bool,
}

/// Withdrawn ranges, i.e. numbers without bytes, in ascending order.
#[derive(Debug, Default)]
pub(super) struct Voids {
    list: [(Seq, Seq); VOIDS],
    count: usize,
}

impl Voids {
    fn all(&self) -> &[(Seq, Seq)] {
        self.list.get(..self.count).unwrap_or_default()
    }

    /// Returns whether another range has no slot.
    pub(super) fn is_full(&self) -> bool {
        self.count == VOIDS
    }

    /// Adds a range behind the others. The caller checked [`Voids::is_full`].
    pub(super) fn add(&mut self, from: Seq, end: Seq) {
        if let Some(slot) = self.list.get_mut(self.count) {
            *slot = (from, end);
            self.count += 1;
        }
    }

    /// Returns the read position behind withdrawn ranges at `read`, and removes these ranges.
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

    /// Returns the start and length of consecutive bytes in `read`…`end`, behind the first `skip`
    /// bytes.
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
