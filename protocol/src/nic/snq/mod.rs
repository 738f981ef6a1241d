// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Notification queue: recovery of its ring, storms and drains of events, and limits for
//! interrupts.

mod consumer;
mod errors;
mod mask;

pub use consumer::{Empty, Poll, Skipped, SnqConsumer};
pub use errors::{ErrorChange, ErrorReports};
pub use mask::{DrainStep, EventMask, LimitResult, MessageLimit, DRAIN_ROUNDS, MASKED_MS};
