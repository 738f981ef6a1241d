// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Which events are enabled: those that are wanted, without those that storm, or whose drain runs.

use wire::snq::{TriggerEvent, TriggerMask};

/// Occurrences of one event per second that are taken for a storm.
const STORM: u32 = 2000;
/// How long a storming event stays masked, in milliseconds.
pub const MASKED_MS: u32 = 1000;

/// Rounds in a row without credits in use that end a drain (HW §15.3).
pub const DRAIN_ROUNDS: u32 = 255;
/// Pause between the attempts of a drain, in milliseconds.
const DRAIN_PAUSE_MS: u32 = 10;
/// Attempts before a drain is given up for a while.
const DRAIN_ATTEMPTS: u32 = 100;
/// Pause after a drain that was given up, in milliseconds.
const DRAIN_RETRY_MS: u32 = 10_000;

/// How a drain goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DrainStep {
    /// It is over; write the mask.
    Done,
    /// Another attempt in so many milliseconds.
    Again(u32),
    /// Given up for so many milliseconds, which is to be reported.
    GaveUp(u32),
}

/// The enabled events of a NIC.
#[derive(Clone, Debug)]
pub struct Enabled {
    /// What the driver, or an administrator, wants.
    allowed: TriggerMask,
    /// What subscribers want besides.
    storming: TriggerMask,
    /// Attempts made by a running drain.
    drain: Option<u32>,
    counts: [u32; 32],
    /// When the counts began, in milliseconds.
    since_ms: u64,
}

/// Events that hardware masks by itself, per VPID: they can't storm.
const fn masks_itself(event: TriggerEvent) -> bool {
    matches!(
        event,
        TriggerEvent::VeloNotification | TriggerEvent::RmaNotification
    )
}

impl Enabled {
    /// `allowed` are enabled.
    pub const fn new(allowed: TriggerMask) -> Self {
        Self {
            allowed,
            storming: TriggerMask(0),
            drain: None,
            counts: [0; 32],
            since_ms: 0,
        }
    }

    /// What to write to `trigger_enable`.
    pub const fn mask(&self) -> TriggerMask {
        let wanted = if self.drain.is_some() {
            self.allowed.without(TriggerEvent::XbarOutport)
        } else {
            self.allowed
        };
        TriggerMask(wanted.raw() & !self.storming.raw())
    }

    /// Other events are wanted.
    pub fn allow(&mut self, allowed: TriggerMask) {
        self.allowed = allowed;
    }

    /// Counts an occurrence at `now_ms`, a time that does not run backwards. True: the event storms
    /// from now on; write the mask, report it, and call [`Enabled::calm`] [`MASKED_MS`] later.
    pub fn count(&mut self, event: TriggerEvent, now_ms: u64) -> bool {
        if masks_itself(event) {
            return false;
        }
        if now_ms.saturating_sub(self.since_ms) >= 1000 {
            self.since_ms = now_ms;
            self.counts = [0; 32];
        }
        let Some(count) = self.counts.get_mut(usize::from(event.number())) else {
            return false;
        };
        *count = count.saturating_add(1);
        let storms = *count > STORM && !self.storming.contains(event);
        if storms {
            self.storming = self.storming.with(event);
        }
        storms
    }

    /// Storms are over. True: there was one; write the mask.
    pub fn calm(&mut self) -> bool {
        core::mem::replace(&mut self.storming, TriggerMask(0)).raw() != 0
    }

    /// A drain is wanted. True: none ran; write the mask, and begin.
    pub fn begin_drain(&mut self) -> bool {
        let begins = self.drain.is_none();
        if begins {
            self.drain = Some(0);
        }
        begins
    }

    /// Whether a drain runs.
    pub const fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    /// An attempt ended, in which `clean` rounds found no credits in use.
    pub fn drained(&mut self, clean: u32) -> DrainStep {
        let attempts = self.drain.unwrap_or(0) + 1;
        if clean >= DRAIN_ROUNDS {
            self.drain = None;
            DrainStep::Done
        } else if attempts < DRAIN_ATTEMPTS {
            self.drain = Some(attempts);
            DrainStep::Again(DRAIN_PAUSE_MS)
        } else {
            self.drain = Some(0);
            DrainStep::GaveUp(DRAIN_RETRY_MS)
        }
    }
}

/// Whether somebody is told of an interrupt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// Tell.
    Call,
    /// The first one above the limit: call [`MessageLimit::collect`] [`MessageLimit::WINDOW_MS`]
    /// later, and tell then.
    Exceeded,
    /// Another one above the limit, told of with the first.
    Owed,
}

/// A limit on interrupts in a window of time. What is above it is told of at the end, once.
#[derive(Clone, Debug)]
pub struct MessageLimit {
    /// Most in a window; 0: any number.
    most: u32,
    since_ms: u64,
    count: u32,
    owed: bool,
}

impl MessageLimit {
    /// The window in milliseconds.
    pub const WINDOW_MS: u32 = 100;

    /// So many per second, rounded up to one per window; 0: any number.
    pub const fn new(per_second: u32) -> Self {
        Self {
            most: per_second.div_ceil(1000 / Self::WINDOW_MS),
            since_ms: 0,
            count: 0,
            owed: false,
        }
    }

    /// Another one at `now_ms`, a time that does not run backwards.
    pub fn admit(&mut self, now_ms: u64) -> Admission {
        if self.owed {
            return Admission::Owed;
        }
        if self.most == 0 {
            return Admission::Call;
        }
        if now_ms.saturating_sub(self.since_ms) >= Self::WINDOW_MS.into() {
            self.since_ms = now_ms;
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        if self.count <= self.most {
            return Admission::Call;
        }
        self.owed = true;
        Admission::Exceeded
    }

    /// Whether something was held back and not told of yet.
    pub const fn is_owed(&self) -> bool {
        self.owed
    }

    /// The window is over. True: something was held back; tell.
    pub fn collect(&mut self) -> bool {
        self.count = 0;
        core::mem::replace(&mut self.owed, false)
    }
}
