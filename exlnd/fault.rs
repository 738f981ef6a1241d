// SPDX-License-Identifier: GPL-2.0-only

//! Fault injection for tests: numbered points at which the module can be made to fail once
//! (docs/exlnd.md). Any context.

use kernel::{
    fmt,
    prelude::*,
    sync::atomic::{Atomic, Full, Relaxed},
};

/// Point at which a failure can be injected. The comment of each point says what happens there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Point {
    /// No slot is free for the registration of outgoing payload.
    Source = 1,
    /// Outgoing payload is not contiguous.
    SourceGaps,
    /// The table of outgoing messages is full.
    Submit,
    /// No slot is free for the registration of a receive buffer.
    Sink,
    /// A receive buffer cannot be registered, so the payload is copied.
    SinkGaps,
    /// The GET engine has no free slot.
    Get,
    /// A GET succeeds, but parts of its destination were not written.
    Hole,
    /// LNet does not accept a message.
    Parse,
    /// The NIC confirms the revocation of a registration late.
    Late,
    /// An interface fails to start after its threads were started.
    Start,
}

/// Number of the last point.
const LAST: u32 = Point::Start as u32;

/// Number of the point that fails when it is next reached; 0: none.
static NEXT: Atomic<u32> = Atomic::new(0);

/// Returns whether `point` must fail now, and disarms it. Any context.
pub(crate) fn hit(point: Point) -> bool {
    NEXT.load(Relaxed) == point as u32 && NEXT.cmpxchg(point as u32, 0, Full).is_ok()
}

/// Arms a point, which then fails the next time that it is reached. 0 disarms the armed point.
///
/// # Errors
///
/// `EINVAL`: there is no such point.
pub(crate) fn set(text: &str) -> Result {
    let point = text.parse::<u32>().map_err(|_| EINVAL)?;
    if point > LAST {
        return Err(EINVAL);
    }
    NEXT.store(point, Relaxed);
    Ok(())
}

/// Writes the number of the armed point.
pub(crate) fn show(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "{}", NEXT.load(Relaxed))
}
