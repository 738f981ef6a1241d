// SPDX-License-Identifier: GPL-2.0-only

//! Repair of a port after the NIC has dropped packets (HW §8), in single steps. The work item
//! `watch` runs it. Callers that prevent work items from running use [`Tx::poll`].
//! [`protocol::nic::sending`] and [`wire::wcbuf`] decide about the steps.
//!
//! Each step acquires the port's spinlock, which disables interrupts.

use super::{reset_state, Inner, Tx};
use crate::{
    hw::Hw,
    quirks,
    stats::{add, Reason},
};
use kernel::{
    sync::Arc,
    time::{delay::fsleep, Delta, Instant, Monotonic},
};
use protocol::nic::sending::{Mode, WatchDelay};
use wire::{
    regs::wcbuf,
    wcbuf::{Action, Event, Failure, COPIES},
};

/// Pause between two polls while the NIC needs time for a repair.
const REPAIR_PAUSE: Delta = Delta::from_micros(20);
/// Maximum number of steps per call of [`Tx::poll`], which cannot pause. It is sufficient to resend
/// all packets.
const STEPS_AT_ONCE: usize = COPIES + 16;

/// Result of a repair step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The step is done.
    Done,
    /// The step is done, but the NIC needs some time before the next step.
    Waits,
    /// No repair is necessary, or the repair has ended.
    Finished,
}

impl<const N: usize> Tx<N> {
    /// Runs the repair of HW §8 until it has succeeded, its deadline has passed, or the port is
    /// closed. May sleep.
    pub(super) fn repair(&self) {
        loop {
            match self.repair_step() {
                Step::Done => {}
                Step::Waits => fsleep(REPAIR_PAUSE),
                Step::Finished => break,
            }
        }
        self.wake();
    }

    /// Checks whether packets were dropped, and continues their repair as far as possible without a
    /// pause. Does not notify clients of credit. Any context.
    pub(crate) fn poll(&self) {
        {
            let mut inner = self.inner.lock();
            if inner.port.is_in_doubt() {
                if let Some(state) = self.read_state() {
                    inner.port.polled(state);
                }
            }
        }
        for _ in 0..STEPS_AT_ONCE {
            if self.repair_step() != Step::Done {
                break;
            }
        }
    }

    /// Executes the next step of a repair. Any context.
    fn repair_step(&self) -> Step {
        let (mut began, mut lost) = (false, None);
        let step = {
            let mut guard = self.inner.lock();
            began |= guard.port.repair_began();
            if began {
                guard.repair = Some(Instant::now());
            }
            self.step_locked(&mut guard, &mut lost)
        };
        if began {
            add(&self.stats.retries, 1);
            self.ctx.error(Reason::Retry, u64::from(self.vpid.get()));
        }
        self.report_discarded(lost);
        step
    }

    /// Executes a step with the lock held. If the repair fails, stores the number of discarded
    /// packets in `lost`.
    fn step_locked(&self, inner: &mut Inner<N>, lost: &mut Option<u8>) -> Step {
        let (Some(action), Some(hw)) = (inner.port.repair(), self.ctx.alive_access()) else {
            return Step::Finished;
        };
        let reg = wcbuf::state(self.unit, self.vpid);
        let event = match action {
            Action::ReadState => match self.read_state() {
                Some(state) => Event::State(state),
                None => return Step::Finished,
            },
            Action::WriteState(state) => {
                hw.rf.write(reg, state.raw());
                Event::Written
            }
            Action::Send(number) => {
                if let Some(packet) = inner.copies.get(usize::from(number)) {
                    hw.window(self.unit).push(packet.page, packet.words());
                    add(&self.stats.replayed, 1);
                }
                Event::Sent
            }
            // The port can send again.
            Action::Done => return Step::Finished,
            Action::Failed(failure) => {
                if matches!(failure, Failure::Desync { .. }) {
                    self.ctx.note(Reason::BadCommit, u64::from(self.vpid.get()));
                }
                *lost = Some(self.discard(inner, &hw));
                return Step::Finished;
            }
        };
        let waits = inner.port.repair_done(event);
        // The time of the repair is limited as well, because the NIC may drop resent packets
        // repeatedly.
        let late =
            |began: Instant<Monotonic>| began.elapsed().as_millis() >= quirks::REPAIR_DEADLINE_MS;
        if inner.port.mode() == Mode::Repair && inner.repair.is_some_and(late) {
            *lost = Some(self.discard(inner, &hw));
            return Step::Finished;
        }
        if waits {
            Step::Waits
        } else {
            Step::Done
        }
    }

    /// Discards all outstanding packets and resets the state. Returns their number.
    fn discard(&self, inner: &mut Inner<N>, hw: &Hw) -> u8 {
        reset_state(hw, self.unit, self.vpid);
        let lost = inner.port.discard();
        add(&self.stats.lost, u64::from(lost));
        lost
    }

    /// Reports discarded packets. Must be called without the lock.
    fn report_discarded(&self, lost: Option<u8>) {
        if let Some(lost) = lost {
            self.ctx.error(
                Reason::RepairFailed,
                u64::from(self.vpid.get()) | u64::from(lost) << 32,
            );
        }
    }

    /// Discards all outstanding packets, for example after a transmit time-out. Does nothing during
    /// a repair, which has its own deadline. Any context. Logs without holding a lock, because the
    /// console may need the lock.
    pub(crate) fn reset(self: &Arc<Self>) {
        let lost = {
            let mut guard = self.inner.lock();
            let inner = &mut *guard;
            match self.ctx.alive_access() {
                Some(hw) if inner.port.is_in_doubt() => self.discard(inner, &hw),
                _ => return,
            }
        };
        self.report_discarded(Some(lost));
        // Credit is available again, so the clients are called.
        self.schedule(WatchDelay::Now);
    }
}
