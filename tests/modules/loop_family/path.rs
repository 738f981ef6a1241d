// SPDX-License-Identifier: GPL-2.0-only

//! Data path of a socket: a ring that is written, made readable by a softirq, and read.

use kernel::{
    new_mutex, new_spinlock_irq,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex, SpinLockIrq,
    },
    time::Delta,
};
use kernel_ext::{
    global::Global,
    mem::{PageList, PAGE},
    net::socket::{Endpoint, Tcp, Wake},
    timer::{Expire, Timed},
};

/// Size of a ring in bytes, a power of two.
pub(crate) const RING: usize = 4 * PAGE;
/// Maximum number of bytes that come back at a time.
const BURST: u32 = 5000;

/// The path that outlives its socket, to test late wake-ups.
static LATE: Global<Timed<Path>> = Global::new();
/// Number of times that paths woke sockets that were released.
pub(crate) static WOKEN_LATE: Atomic<i32> = Atomic::new(0);

/// Drops the path that outlived its socket.
pub(crate) struct Late;

impl Drop for Late {
    fn drop(&mut self) {
        LATE.set(None);
    }
}

/// Byte counts modulo 2³². They satisfy `read` ≤ `visible` ≤ `written` ≤ `read` + ring.
#[derive(Clone, Copy, Default)]
pub(crate) struct State {
    pub(crate) written: u32,
    pub(crate) visible: u32,
    pub(crate) read: u32,
    pub(crate) ended: bool,
    pub(crate) finished: bool,
    /// The program has shut down receiving.
    pub(crate) shut_receiving: bool,
    /// Error that the timer sets.
    fail: Option<Error>,
    delay_us: u32,
    /// True after the socket was released.
    released: bool,
}

impl State {
    pub(crate) fn readable(&self) -> usize {
        self.visible.wrapping_sub(self.read) as usize
    }

    pub(crate) fn room(&self) -> usize {
        RING - self.written.wrapping_sub(self.read) as usize
    }

    /// Returns true if no more data will be readable.
    pub(crate) fn received_all(&self) -> bool {
        self.finished || self.shut_receiving
    }

    pub(crate) fn unsettled(&self) -> bool {
        self.visible != self.written || self.ended != self.finished
    }
}

#[pin_data]
pub(crate) struct Path {
    pub(crate) ring: PageList,
    #[pin]
    state: SpinLockIrq<State>,
    /// Lock that serialises writers and readers.
    #[pin]
    pub(crate) writer: Mutex<()>,
    #[pin]
    pub(crate) reader: Mutex<()>,
    endpoint: Endpoint,
}

impl Path {
    /// Creates the path of a socket. May sleep.
    pub(crate) fn new(tcp: &Tcp) -> Result<Arc<Timed<Self>>> {
        let ring = PageList::from_buffer(VVec::from_elem(0u8, RING, GFP_KERNEL)?)?;
        let endpoint = tcp.endpoint()?;
        let path = try_pin_init!(Self {
            ring,
            state <- new_spinlock_irq!(State::default(), "loop_state"),
            writer <- new_mutex!((), "loop_writer"),
            reader <- new_mutex!((), "loop_reader"),
            endpoint,
        }? Error);
        Arc::pin_init(Timed::new(path), GFP_KERNEL)
    }

    pub(crate) fn state(&self) -> State {
        *self.state.lock()
    }

    /// Changes the state.
    pub(crate) fn change<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.state.lock())
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

/// Arms the timer with the delay.
pub(crate) fn stir(path: &Timed<Path>) {
    path.arm(Delta::from_micros(path.state().delay_us.into()));
}

/// Lets the timer fail the connection with an error.
pub(crate) fn fail_later(path: &Timed<Path>, error: Error) {
    path.change(|s| s.fail = Some(error));
    stir(path);
}

/// Sets the delay of bytes.
pub(crate) fn set_delay(path: &Timed<Path>, us: u32) {
    path.change(|s| s.delay_us = us);
}

/// Keeps the path of a released socket. Its timer later tries to wake the socket.
pub(crate) fn outlive(path: &Arc<Timed<Path>>) {
    path.change(|s| s.released = true);
    LATE.set(Some(path.clone()));
    path.arm(Delta::from_millis(20));
}

impl Expire for Path {
    fn expired(timer: &Timed<Self>) {
        let mut again = false;
        // Interrupts are disabled, and the lock that `poll` and waits take is held.
        timer.change(|s| {
            if s.released {
                for what in [Wake::Readable, Wake::Writable, Wake::HungUp] {
                    timer.endpoint.wake(what);
                }
                timer.endpoint.fail(ECONNRESET);
                let _ = (timer.endpoint.ends(), timer.endpoint.queued());
                WOKEN_LATE.fetch_add(1, Relaxed);
                return;
            }
            if let Some(error) = s.fail.take() {
                timer.endpoint.fail(error);
                return;
            }
            let step = s.written.wrapping_sub(s.visible).min(BURST);
            s.visible = s.visible.wrapping_add(step);
            again = s.visible != s.written;
            if step > 0 {
                timer.endpoint.wake(Wake::Readable);
            }
            if !again && s.ended && !s.finished {
                s.finished = true;
                timer.endpoint.wake(Wake::Finished);
            }
        });
        if again {
            stir(timer);
        }
    }
}
