// SPDX-License-Identifier: GPL-2.0-only

//! Numbered places where something can be made to fail once, for tests: docs/exlnd.md lists them.

use kernel::{
    fmt,
    prelude::*,
    sync::atomic::{Atomic, Full, Relaxed},
};

/// Where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Point {
    /// There is no place to register payload that goes out.
    Source = 1,
    /// Payload that goes out has gaps.
    SourceGaps,
    /// The machine has no room for a message.
    Submit,
    /// There is no place to register where payload goes.
    Sink,
    /// Where payload goes can't be registered.
    SinkGaps,
    /// The engine has no place for a GET.
    Get,
    /// A GET has left something out.
    Hole,
    /// LNet does not take a message.
    Parse,
    /// The end of a registration is confirmed late.
    Late,
    /// An interface can't begin, when its threads are there already.
    Start,
}

/// The last of them.
const LAST: u32 = Point::Start as u32;

/// The one that fails next; 0: none.
static NEXT: Atomic<u32> = Atomic::new(0);

/// Whether something has to fail here: once. Any context.
pub(crate) fn hit(point: Point) -> bool {
    NEXT.load(Relaxed) == point as u32 && NEXT.cmpxchg(point as u32, 0, Full).is_ok()
}

/// Has a place fail, the next time that it is reached.
///
/// # Errors
///
/// `EINVAL`: there is no such place.
pub(crate) fn set(text: &str) -> Result {
    let point = text.parse::<u32>().map_err(|_| EINVAL)?;
    if point > LAST {
        return Err(EINVAL);
    }
    NEXT.store(point, Relaxed);
    Ok(())
}

/// Shows the one that fails next.
pub(crate) fn show(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "{}", NEXT.load(Relaxed))
}
