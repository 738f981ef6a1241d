// SPDX-License-Identifier: GPL-2.0-only

//! Frames that come in messages: put together per source.

use crate::{
    conf,
    machine::{ms, Slots},
    reason::{reason_of, Counter, Reason},
    rx_rma::checksum,
    shared::Shared,
};
use kernel::prelude::*;
use kernel_ext::net::{Checksum, PollCx, RxSkb};
use protocol::Time;
use wire::{
    eth::{self, Progress, Reassembler},
    ids::NodeId,
};

/// A source whose frame is incomplete, or whose broken frame has not ended.
struct Partial {
    asm: Reassembler,
    skb: Option<RxSkb>,
    /// Last fragment.
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

    /// Appends to the frame, in a larger buffer if need be (more than 256 fragments share tags).
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

    /// Takes a fragment; a frame that it completes, and whether it came in several.
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
                    let room = eth::first_buffer_len(tag).min(conf::MAX_FRAME);
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
                // The rest of a frame that was given up is counted once, with the break.
                if reject.reason != eth::Reason::Tail {
                    refuse(&reject);
                }
                None
            }
        }
    }
}

/// A message with a piece of a frame.
pub(crate) struct Fragment<'a> {
    pub(crate) tag: u8,
    pub(crate) last: bool,
    pub(crate) data: &'a [u8],
}

/// Frames that are incomplete.
pub(crate) struct Partials(Slots<Partial>);

impl Partials {
    /// None. May sleep.
    pub(crate) fn new() -> Result<Self> {
        Slots::new(conf::PARTIALS).map(Self)
    }

    /// Number of sources with one.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets all.
    pub(crate) fn flush(&mut self) {
        while self.0.pop_oldest().is_some() {}
    }

    /// What comes next of `node` does not continue its frame.
    pub(crate) fn abandon(&mut self, node: NodeId) {
        if let Some(p) = self.0.get_mut(u64::from(node.0)) {
            p.asm.abandon();
            p.skb = None;
        }
    }

    /// Takes a fragment; a frame that it completes.
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
        // Between frames there is nothing to remember.
        if p.asm != Reassembler::new(conf::MAX_FRAME) {
            if self.0.is_full() {
                if let Some((old, _)) = self.0.pop_oldest() {
                    sh.reject(Reason::RxPartials, Some(NodeId(old as u16)), 0);
                }
            }
            // Can't fail: there is a place, and the key was removed above.
            let _ = self.0.insert(key, p);
        }
        complete.map(|(skb, several)| {
            let checksum = checksum(sh, &skb, several);
            (skb, checksum)
        })
    }

    /// Discards frames that don't go on.
    pub(crate) fn age(&mut self, sh: &Shared, now: Time) {
        let limit = ms(conf::PARTIAL_MS);
        // A source that goes on is moved to the young end with every fragment.
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
