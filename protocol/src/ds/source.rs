// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Bytes that are not in the send ring: each end's part of them (docs/ds-protocol.md, Sources).
//!
//! They have numbers as all bytes do. A byte's place in a ring is still that of its number, as
//! nothing goes into the send ring unless all that is unacknowledged would fit there.

use wire::{ds::Seq, ids::Nla};

/// Sources of a sender that are not over.
pub const SOURCES: usize = 4;
/// Ranges without bytes that a receiver has not read past. A sender sees to it that there are no more.
const VOIDS: usize = 8;

/// Names a source as long as its owner wants to know of it, and no other one of the stream ever.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SourceId(u64);

/// What became of a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceState {
    /// So many bytes of it the peer has.
    pub acknowledged: u32,
    /// Nothing more of it will be fetched, and the peer has all that was.
    pub over: bool,
    /// It was withdrawn.
    pub withdrawn: bool,
}

/// Whether a source is withdrawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cut {
    No,
    /// The peer has to say where.
    Asked,
    /// Nothing behind this place is fetched.
    At(Seq),
    /// The peer was never told of it.
    Unsaid,
}

/// Bytes that the peer fetches from elsewhere than the send ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Source {
    id: SourceId,
    from: Seq,
    end: Seq,
    nla: Nla,
    cut: Cut,
    /// Somebody wants to know what becomes of it.
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
            over: match self.cut {
                Cut::No | Cut::At(_) => !una.before(end),
                // How much it has is not known yet.
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

    /// Where byte `seq` is.
    pub(super) fn place(&self, seq: Seq) -> Nla {
        Nla(self.nla.0 + u64::from(seq.since(self.from)))
    }
}

/// Sources of a sender.
#[derive(Debug, Default)]
pub(super) struct Sources {
    list: [Option<Source>; SOURCES],
    /// The next name. Numbers of bytes are none: those of a source that was never said are used again.
    ids: u64,
    /// Where those ended that are forgotten, of which something was left out, and which the peer's
    /// reader may not be past.
    left_out: [Option<Seq>; VOIDS],
}

impl Sources {
    /// Whether there is a place for one more, here and at the peer, if it is withdrawn: the peer's
    /// reader is at `read` at least.
    pub(super) fn has_place(&self, read: Seq) -> bool {
        let past = |end: &Seq| !read.before(*end);
        let voids = self.left_out.iter().flatten().filter(|end| !past(end));
        let used = self.all().count();
        used < SOURCES && used + voids.count() < VOIDS
    }

    /// Whether all places are taken.
    pub(super) fn is_full(&self) -> bool {
        self.list.iter().all(Option::is_some)
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.list.iter().all(Option::is_none)
    }

    /// Adds one that begins at `from`, for which there is a place.
    pub(super) fn add(&mut self, from: Seq, len: u32, nla: Nla) -> Option<SourceId> {
        let place = self.list.iter_mut().find(|s| s.is_none())?;
        let id = SourceId(self.ids);
        self.ids += 1;
        *place = Some(Source {
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

    /// That which `seq` lies in.
    pub(super) fn at(&self, seq: Seq) -> Option<&Source> {
        self.all()
            .find(|s| !seq.before(s.from) && seq.before(s.end))
    }

    /// Where the first one begins that begins at `seq` or behind it; no later than `end`.
    pub(super) fn next_from(&self, seq: Seq, end: Seq) -> Seq {
        let later = self.all().filter(|s| !s.from.before(seq)).map(|s| s.from);
        later.fold(end, Seq::min)
    }

    /// What became of one; nothing is known of one that was let go.
    pub(super) fn state(&self, id: SourceId, una: Seq) -> Option<SourceState> {
        let mut all = self.all();
        all.find(|s| s.id == id).map(|s| s.state(una))
    }

    /// Whether one is over whose owner may not know that.
    pub(super) fn is_any_over(&self, una: Seq) -> bool {
        self.all().any(|s| s.owned && s.state(una).over)
    }

    /// Its owner does not ask any more.
    pub(super) fn let_go(&mut self, id: SourceId, una: Seq, read: Seq) {
        if let Some(source) = self.find(id) {
            source.owned = false;
        }
        self.tidy(una, read);
    }

    /// Forgets those that are over, and that nobody asks for. The peer's reader is at `read` at least.
    pub(super) fn tidy(&mut self, una: Seq, read: Seq) {
        for end in &mut self.left_out {
            *end = end.filter(|end| read.before(*end));
        }
        for place in &mut self.list {
            // What was withdrawn has its numbers until these are acknowledged, and until it is known
            // how much of it counts.
            let over = |s: &Source| !una.before(s.end) && s.cut != Cut::Asked;
            let Some(source) = place.filter(|s| !s.owned && over(s)) else {
                continue;
            };
            *place = None;
            if source.is_cut() && read.before(source.end) {
                // There is one, as `has_place` sees to it.
                let mut free = self.left_out.iter_mut().filter(|end| end.is_none());
                if let Some(free) = free.next() {
                    *free = Some(source.end);
                }
            }
        }
    }

    /// Withdraws one. The peer has all before `una`, and was told of all before `said`; the stream ends at
    /// `end` and may end earlier, if that is told.
    pub(super) fn cut(&mut self, id: SourceId, una: Seq, said: Seq, end: Option<Seq>) -> Withdrawn {
        let busy = self.cutting().is_some();
        let Some(source) = self.find(id) else {
            return Withdrawn::Gone;
        };
        // The peer may have all of it.
        if source.cut != Cut::No || !una.before(source.end) {
            return Withdrawn::Quietly;
        }
        if !source.from.before(said) {
            if Some(source.end) != end {
                source.cut = Cut::Unsaid;
                return Withdrawn::Quietly;
            }
            // It is the last thing in the stream.
            let from = source.from;
            for place in &mut self.list {
                if place.is_some_and(|s| s.id == id) {
                    *place = None;
                }
            }
            return Withdrawn::Unmade(from);
        }
        if busy {
            return Withdrawn::Later;
        }
        source.cut = Cut::Asked;
        Withdrawn::Ask(source.from)
    }

    /// The one that is withdrawn and waits for the peer's word.
    pub(super) fn cutting(&self) -> Option<&Source> {
        self.all().find(|s| s.cut == Cut::Asked)
    }

    /// The peer says that of the source that ended at `end` it does not fetch the last `left` bytes.
    /// What is no answer to a question counts for nothing.
    pub(super) fn cut_done(&mut self, end: Seq, left: u32) {
        let mut all = self.list.iter_mut().flatten();
        if let Some(s) = all.find(|s| s.cut == Cut::Asked && s.end == end) {
            let left = left.min(s.end.since(s.from));
            s.cut = Cut::At(Seq(s.end.0.wrapping_sub(left)));
        }
    }
}

/// How a source was withdrawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Withdrawn {
    /// The peer has to be told from this place on.
    Ask(Seq),
    /// The stream ends here now.
    Unmade(Seq),
    /// Its numbers have no bytes, or will have none.
    Quietly,
    /// The peer is asked after another one.
    Later,
    /// It is not there.
    Gone,
}

/// A source that was announced, and of which not everything is to be fetched yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pending {
    /// Where it ends.
    pub(super) end: Seq,
    /// Where the next byte of it is.
    pub(super) nla: Nla,
    /// Its end is the last of what was sent together.
    pub(super) push: bool,
}

/// Numbers without bytes, of sources that were withdrawn: in ascending order.
#[derive(Debug, Default)]
pub(super) struct Voids {
    list: [(Seq, Seq); VOIDS],
    count: usize,
}

impl Voids {
    fn all(&self) -> &[(Seq, Seq)] {
        self.list.get(..self.count).unwrap_or_default()
    }

    /// Whether there is no place for another one.
    pub(super) fn is_full(&self) -> bool {
        self.count == VOIDS
    }

    /// Adds one behind the others, for which there is a place.
    pub(super) fn add(&mut self, from: Seq, end: Seq) {
        if let Some(place) = self.list.get_mut(self.count) {
            *place = (from, end);
            self.count += 1;
        }
    }

    /// Where a reader is who is at `read`: behind numbers without bytes.
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

    /// The bytes of `read`…`end` behind the first `skip`: where they begin, and how many there are
    /// before the next number without one.
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

    /// How many bytes `read`…`end` are.
    pub(super) fn bytes(&self, read: Seq, end: Seq) -> u32 {
        let empty = self.all().iter().map(|(from, to)| {
            let (from, to) = (from.min(end), to.min(end));
            to.since(from)
        });
        end.since(read) - empty.sum::<u32>()
    }
}
