// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Mask of enabled events. It contains the requested events, except events that storm or are being
//! drained.

use wire::snq::{TriggerEvent, TriggerMask};

/// Number of occurrences of one event per second above which the event storms.
const STORM: u32 = 2000;
/// Time for which a storming event stays masked, in milliseconds.
pub const MASKED_MS: u32 = 1000;

/// Number of consecutive rounds without credits in use after which a drain ends (HW §15.3).
pub const DRAIN_ROUNDS: u32 = 255;
/// Pause between the attempts of a drain, in milliseconds.
const DRAIN_PAUSE_MS: u32 = 10;
/// Number of attempts after which a drain pauses.
const DRAIN_ATTEMPTS: u32 = 100;
/// Pause after unsuccessful attempts, in milliseconds.
const DRAIN_RETRY_MS: u32 = 10_000;

/// Next step of a drain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DrainStep {
    /// The drain has finished. The caller must write the mask.
    Done,
    /// Another attempt is due after this time in milliseconds.
    Again(u32),
    /// The attempts have failed. The caller must log the failure, and retry after this time in
    /// milliseconds.
    GaveUp(u32),
}

/// State of the enabled events of a NIC.
#[derive(Clone, Debug)]
pub struct EventMask {
    /// Events that the driver or an administrator allows.
    allowed: TriggerMask,
    /// Events that are masked because they storm.
    storming: TriggerMask,
    /// Number of attempts of the drain in progress.
    drain: Option<u32>,
    counts: [u32; 32],
    /// Start of the counting period in milliseconds.
    since_ms: u64,
}

/// Returns true if the NIC itself masks the event per VPID, so that the event cannot storm.
const fn masks_itself(event: TriggerEvent) -> bool {
    matches!(
        event,
        TriggerEvent::VeloNotification | TriggerEvent::RmaNotification
    )
}

impl EventMask {
    /// Returns a mask in which the events `allowed` are enabled.
    pub const fn new(allowed: TriggerMask) -> Self {
        Self {
            allowed,
            storming: TriggerMask(0),
            drain: None,
            counts: [0; 32],
            since_ms: 0,
        }
    }

    /// Returns the value for `trigger_enable`.
    pub const fn mask(&self) -> TriggerMask {
        let wanted = if self.drain.is_some() {
            self.allowed.without(TriggerEvent::XbarOutport)
        } else {
            self.allowed
        };
        TriggerMask(wanted.raw() & !self.storming.raw())
    }

    /// Replaces the set of allowed events.
    pub fn allow(&mut self, allowed: TriggerMask) {
        self.allowed = allowed;
    }

    /// Counts an occurrence at `now_ms`, which must not decrease. Returns true if a storm of the
    /// event begins. The caller must then write the mask, log the storm, and call
    /// [`EventMask::end_storms`] after [`MASKED_MS`].
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

    /// Ends all storms. Returns true if there was a storm; the caller must then write the mask.
    pub fn end_storms(&mut self) -> bool {
        core::mem::replace(&mut self.storming, TriggerMask(0)).raw() != 0
    }

    /// Begins a drain. Returns false if a drain is in progress. Otherwise the caller must write the
    /// mask and make the first attempt.
    pub fn begin_drain(&mut self) -> bool {
        let begins = self.drain.is_none();
        if begins {
            self.drain = Some(0);
        }
        begins
    }

    /// Returns true if a drain is in progress.
    pub const fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    /// Records an attempt with `clean` consecutive rounds without credits in use.
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

/// Result of an interrupt at a [`MessageLimit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LimitResult {
    /// The client must be notified now.
    Call,
    /// First interrupt above the limit. The caller must call [`MessageLimit::collect`] after
    /// [`MessageLimit::WINDOW_MS`] and notify the client then.
    Exceeded,
    /// Further interrupt above the limit. The pending notification covers it.
    Pending,
}

/// Limit of interrupts per time window. Interrupts above the limit cause one notification at the
/// end of the window.
#[derive(Clone, Debug)]
pub struct MessageLimit {
    /// Maximum number of interrupts per window; 0 if there is no limit.
    max: u32,
    since_ms: u64,
    count: u32,
    pending: bool,
}

impl MessageLimit {
    /// Length of the window in milliseconds.
    pub const WINDOW_MS: u32 = 100;

    /// Returns a limit of `per_second` interrupts per second, but at least one per window. 0 means
    /// that there is no limit.
    pub const fn new(per_second: u32) -> Self {
        Self {
            max: per_second.div_ceil(1000 / Self::WINDOW_MS),
            since_ms: 0,
            count: 0,
            pending: false,
        }
    }

    /// Counts an interrupt at `now_ms`, which must not decrease.
    pub fn admit(&mut self, now_ms: u64) -> LimitResult {
        if self.pending {
            return LimitResult::Pending;
        }
        if self.max == 0 {
            return LimitResult::Call;
        }
        if now_ms.saturating_sub(self.since_ms) >= Self::WINDOW_MS.into() {
            self.since_ms = now_ms;
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        if self.count <= self.max {
            return LimitResult::Call;
        }
        self.pending = true;
        LimitResult::Exceeded
    }

    /// Returns true if a notification is pending.
    pub const fn is_pending(&self) -> bool {
        self.pending
    }

    /// Ends the window. Returns true if a notification is pending; the caller must then notify the
    /// client.
    pub fn collect(&mut self) -> bool {
        self.count = 0;
        core::mem::replace(&mut self.pending, false)
    }
}
