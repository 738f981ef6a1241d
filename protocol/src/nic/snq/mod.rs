// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! The notification queue: recovery of its ring, storms, drains, limits of interrupts.

mod consumer;
mod errors;
mod mask;

pub use consumer::{Empty, Look, Skipped, SnqConsumer};
pub use errors::{ErrorReports, Moved};
pub use mask::{Admission, DrainStep, Enabled, MessageLimit, DRAIN_ROUNDS, MASKED_MS};
