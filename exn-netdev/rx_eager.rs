// SPDX-License-Identifier: GPL-2.0-only

//! Reassembly of frames that arrive in VELO messages, one frame per source at a time. The poll
//! function uses the state, and `stop` does while NAPI is disabled. The state therefore needs no
//! lock.

use crate::{
    conf,
    env::{ms, Slots},
    reason::{reason_of, Counter, Reason},
    rx_rma::checksum,
    shared::Shared,
};
use kernel::prelude::*;
use kernel_ext::net::{Checksum, PollCx, RxSkb};
use protocol::{
    eth::reassembly::{first_buffer_len, Progress, Reassembler},
    Time,
};
use wire::{eth, ids::NodeId};

/// State of a source whose current frame is incomplete, or broken with fragments still to come.
struct Partial {
    asm: Reassembler,
    skb: Option<RxSkb>,
    /// Time of the last fragment.
    touched: Time,
}

impl Partial {
    fn new(now: Time) -> Self {
        Self {
            asm: Reassembler::new(conf::MAX_FRAME),
            skb: None,
            touched: now,
        }
    }

    /// Appends to the frame. If necessary, allocates a larger buffer: tags repeat after 256
    /// fragments, so the first tag may understate the length. Returns false if memory is short.
    fn append(&mut self, sh: &Shared, data: &[u8]) -> bool {
        let Some(skb) = self.skb.as_mut() else {
            return false;
        };
        if skb.append(data).is_ok() {
            return true;
        }
        let Some(mut larger) = RxSkb::alloc(&sh.ndev, conf::MAX_FRAME) else {
            return false;
        };
        if larger.append(skb.data()).is_err() || larger.append(data).is_err() {
            return false;
        }
        self.skb = Some(larger);
        true
    }

    /// Processes a fragment. If it completes the frame, returns the frame and whether the frame
    /// consisted of several messages.
    fn push(
        &mut self,
        sh: &Shared,
        node: NodeId,
        fragment: &Fragment<'_>,
        cx: &mut PollCx<'_>,
    ) -> Option<(RxSkb, bool)> {
        let &Fragment { tag, last, data } = fragment;
        let refuse = |reject: &eth::Reject| {
            sh.reject(reason_of(reject), Some(node), reject.got);
        };
        match self.asm.push(sh.prefix, node, tag, last, data) {
            Progress::NeedMore { copy, discarded } => {
                if let Some(reject) = discarded {
                    refuse(&reject);
                }
                if copy.offset == 0 {
                    let room = first_buffer_len(tag).min(conf::MAX_FRAME);
                    self.skb = RxSkb::alloc(&sh.ndev, room);
                }
                if !self.append(sh, data) {
                    self.asm.abandon();
                    self.skb = None;
                    sh.reject(Reason::RxNoMemory, Some(node), u64::from(copy.offset));
                }
                None
            }
            Progress::Complete {
                copy,
                len,
                discarded,
            } => {
                if let Some(reject) = discarded {
                    refuse(&reject);
                }
                let several = copy.offset != 0;
                if !several {
                    self.skb = cx.alloc(len);
                }
                let fits = self.append(sh, data);
                let skb = self.skb.take().filter(|_| fits);
                if skb.is_none() {
                    sh.reject(Reason::RxNoMemory, Some(node), u64::from(len));
                }
                skb.map(|skb| (skb, several))
            }
            Progress::Reject(reject) => {
                self.skb = None;
                // Further fragments of a broken frame are not counted, because its first error was
                // counted.
                if reject.reason != eth::Reason::Tail {
                    refuse(&reject);
                }
                None
            }
        }
    }
}

/// One message of an eager frame.
pub(crate) struct Fragment<'a> {
    pub(crate) tag: u8,
    pub(crate) last: bool,
    pub(crate) data: &'a [u8],
}

/// Incomplete frames by source.
pub(crate) struct Partials(Slots<Partial>);

impl Partials {
    /// Creates an empty table. May sleep.
    pub(crate) fn new() -> Result<Self> {
        Slots::new(conf::PARTIALS).map(Self)
    }

    /// Returns the number of sources with an incomplete frame.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is no incomplete frame.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops all incomplete frames.
    pub(crate) fn flush(&mut self) {
        while self.0.pop_oldest().is_some() {}
    }

    /// Marks the frame of `node` as broken. Its following fragments, including the final one, are
    /// dropped.
    pub(crate) fn abandon(&mut self, node: NodeId) {
        if let Some(p) = self.0.get_mut(u64::from(node.0)) {
            p.asm.abandon();
            p.skb = None;
        }
    }

    /// Processes a fragment of a source. Returns the frame if the fragment completes it.
    pub(crate) fn push(
        &mut self,
        sh: &Shared,
        node: NodeId,
        fragment: &Fragment<'_>,
        now: Time,
        cx: &mut PollCx<'_>,
    ) -> Option<(RxSkb, Checksum)> {
        sh.count(Counter::RxFragments);
        let key = u64::from(node.0);
        let mut p = match self.0.get_mut(key) {
            Some(_) => self.0.remove(key),
            None => None,
        }
        .unwrap_or_else(|| Partial::new(now));
        p.touched = now;
        let complete = p.push(sh, node, fragment, cx);
        // A source without an incomplete or broken frame needs no entry.
        if p.asm != Reassembler::new(conf::MAX_FRAME) {
            if self.0.is_full() {
                if let Some((old, _)) = self.0.pop_oldest() {
                    sh.reject(Reason::RxPartials, Some(NodeId(old as u16)), 0);
                }
            }
            // Cannot fail: a slot is free, and the key was removed above.
            let _ = self.0.insert(key, p);
        }
        complete.map(|(skb, several)| {
            let checksum = checksum(sh, &skb, several);
            (skb, checksum)
        })
    }

    /// Discards incomplete frames that received no fragment for [`conf::PARTIAL_MS`].
    pub(crate) fn age(&mut self, sh: &Shared, now: Time) {
        let limit = ms(conf::PARTIAL_MS);
        // The table is ordered by age, because each fragment makes its source the youngest entry.
        while self
            .0
            .oldest()
            .is_some_and(|(_, p)| now.since(p.touched) >= limit)
        {
            let Some((node, p)) = self.0.pop_oldest() else {
                break;
            };
            if p.skb.is_some() {
                sh.reject(Reason::RxStale, Some(NodeId(node as u16)), 0);
            }
        }
    }
}
