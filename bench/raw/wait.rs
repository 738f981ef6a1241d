// SPDX-License-Identifier: GPL-2.0-only

//! Waits of a run for messages and notifications, by interrupts or by polling. Each wait ends at
//! the latest at a deadline, at a signal, or at the removal of the NIC.

use extoll_core::{rma::SendError, vpid::Client};
use kernel::{
    new_condvar,
    prelude::*,
    processor::cpu_relax,
    sync::{
        atomic::{AtomicFlag, Relaxed},
        new_spinlock_irq, Arc, CondVar, CondVarTimeoutResult, SpinLockIrq,
    },
    time::{msecs_to_jiffies, Delta, Instant, Monotonic},
};
use kernel_ext::sched::cond_resched;
use wire::ids::Unit;

/// Method by which a run finds messages and notifications.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// By interrupts.
    Irq,
    /// By reading the queue in memory repeatedly.
    Poll,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Irq => "irq",
            Mode::Poll => "poll",
        }
    }
}

#[derive(Default)]
struct Events {
    interrupt: [bool; 2],
    writable: bool,
}

/// Client of the VELO port or of the RMA port of a run.
pub(crate) struct PortClient {
    waiter: Arc<Waiter>,
    unit: Unit,
}

/// Events of the ports, and the waiting run.
#[pin_data]
pub(crate) struct Waiter {
    #[pin]
    events: SpinLockIrq<Events>,
    #[pin]
    changed: CondVar,
    /// True after the removal of the NIC has begun.
    cancelled: AtomicFlag,
    deadline: Instant<Monotonic>,
}

impl Client for PortClient {
    fn interrupt(&self) {
        self.waiter.events.lock().interrupt[self.unit as usize] = true;
        self.waiter.changed.notify_all();
    }

    fn writable(&self) {
        self.waiter.events.lock().writable = true;
        self.waiter.changed.notify_all();
    }

    fn down(&self) {
        self.waiter.cancel();
    }
}

impl Waiter {
    /// Returns a waiter. All of its waits end `timeout` after this call.
    pub(crate) fn new(timeout: Delta) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                events <- new_spinlock_irq!(Events::default(), "extoll_bench_events"),
                changed <- new_condvar!("extoll_bench_changed"),
                cancelled: AtomicFlag::new(false),
                deadline: Instant::<Monotonic>::now() + timeout,
            }),
            GFP_KERNEL,
        )
    }

    /// Returns a client for the port of `unit`.
    pub(crate) fn client(self: &Arc<Self>, unit: Unit) -> Result<Arc<PortClient>> {
        let waiter = self.clone();
        Ok(Arc::new(PortClient { waiter, unit }, GFP_KERNEL)?)
    }

    /// Ends all waits with `ENODEV`. Any context.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Relaxed);
        // The lock is taken so that a waiter between its check and its sleep does not miss the
        // wakeup.
        drop(self.events.lock());
        self.changed.notify_all();
    }

    fn left_ms(&self) -> i64 {
        (self.deadline - Instant::now()).as_millis()
    }

    /// Checks whether the run must end.
    ///
    /// # Errors
    ///
    /// `ENODEV`, `EINTR`, `ETIMEDOUT`: the reason why the run must end.
    pub(crate) fn check(&self) -> Result {
        if self.cancelled.load(Relaxed) {
            Err(ENODEV)
        } else if kernel::current!().signal_pending() {
            Err(EINTR)
        } else if self.left_ms() <= 0 {
            Err(ETIMEDOUT)
        } else {
            Ok(())
        }
    }

    fn sleep_until(&self, take: impl Fn(&mut Events) -> bool) -> Result {
        let mut events = self.events.lock();
        loop {
            if take(&mut events) {
                return Ok(());
            }
            if self.cancelled.load(Relaxed) {
                return Err(ENODEV);
            }
            let left = self.left_ms();
            if left <= 0 {
                return Err(ETIMEDOUT);
            }
            let jiffies = msecs_to_jiffies(left.min(60_000) as u32).max(1);
            if let CondVarTimeoutResult::Signal { .. } = self
                .changed
                .wait_interruptible_timeout(&mut events, jiffies)
            {
                return Err(EINTR);
            }
        }
    }

    /// Repeats `send` until it does not fail for lack of credits. May sleep.
    pub(crate) fn send(&self, mut send: impl FnMut() -> Result<(), SendError>) -> Result {
        loop {
            self.events.lock().writable = false;
            match send() {
                Ok(()) => return Ok(()),
                Err(SendError::Full | SendError::Retry) => {
                    self.sleep_until(|e| core::mem::take(&mut e.writable))?;
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Waits until `ready` returns a value from the queue of `unit`. May sleep.
    ///
    /// `rearm` unmasks the interrupt and returns true if an entry is pending already. `armed`
    /// stores between calls whether the interrupt is unmasked.
    pub(crate) fn until<Q, R>(
        &self,
        mode: Mode,
        unit: Unit,
        armed: &mut bool,
        queue: &mut Q,
        mut ready: impl FnMut(&mut Q) -> Option<R>,
        mut rearm: impl FnMut(&mut Q) -> bool,
    ) -> Result<R> {
        let mut spins = 0u32;
        loop {
            if let Some(found) = ready(queue) {
                return Ok(found);
            }
            match mode {
                Mode::Poll => {
                    spins = spins.wrapping_add(1);
                    if spins % 32 == 0 {
                        self.check()?;
                        cond_resched();
                    }
                    cpu_relax();
                }
                Mode::Irq => {
                    if !*armed {
                        *armed = true;
                        if rearm(queue) {
                            continue;
                        }
                    }
                    self.sleep_until(|e| core::mem::take(&mut e.interrupt[unit as usize]))?;
                    // The interrupt handler has masked the VPID.
                    *armed = false;
                }
            }
        }
    }
}
