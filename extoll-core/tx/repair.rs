// SPDX-License-Identifier: GPL-2.0-only

//! The repair of a port that the NIC has dropped packets of (HW §8), step by step: by the work item that looks,
//! or by who keeps that from running. [`wire::sending`] and [`wire::wcbuf`] decide.

use super::{reset_state, Inner, Tx};
use crate::{
    hw::Hw,
    stats::{add, Reason},
};
use kernel::{
    sync::Arc,
    time::{delay::fsleep, Delta, Instant, Monotonic},
};
use wire::{
    regs::wcbuf,
    sending::{Kick, Mode},
    wcbuf::{Action, Event, Failure, COPIES},
};

/// How long a repair may take before its packets are given up: longer than full queues at the other end may
/// hold the fabric up (the programmed time-outs, HW §9.3, §10.7).
const REPAIR_DEADLINE_MS: i64 = 5000;
/// Pause between looks of a repair.
const REPAIR_PAUSE: Delta = Delta::from_micros(20);
/// Steps of a repair in one go by somebody who can't pause: enough to send everything again.
const STEPS_AT_ONCE: usize = COPIES + 16;

/// What became of a step of a repair.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It is done.
    Done,
    /// So it is, but the NIC needs some time before the next one.
    Waits,
    /// There is nothing to repair, or no more.
    Over,
}

impl<const N: usize> Tx<N> {
    /// Drives the repair of HW §8 until it is done, its deadline has passed, or the port is closed.
    pub(super) fn repair(&self) {
        loop {
            match self.repair_step() {
                Step::Done => {}
                Step::Waits => fsleep(REPAIR_PAUSE),
                Step::Over => break,
            }
        }
        self.wake();
    }

    /// Does what the watch does, as far as that is possible without a pause: looks whether packets were dropped,
    /// and goes on with their repair. Nobody is told of room. Any context.
    pub(crate) fn poll(&self) {
        {
            let mut inner = self.inner.lock();
            if inner.machine.is_in_doubt() {
                if let Some(state) = self.read_state() {
                    inner.machine.noticed(state);
                }
            }
        }
        for _ in 0..STEPS_AT_ONCE {
            if self.repair_step() != Step::Done {
                break;
            }
        }
    }

    /// Does the next step of a repair. Any context.
    fn repair_step(&self) -> Step {
        let (mut began, mut lost) = (false, None);
        let step = {
            let mut guard = self.inner.lock();
            began |= guard.machine.repair_began();
            if began {
                guard.repair = Some(Instant::now());
            }
            self.step_locked(&mut guard, &mut lost)
        };
        if began {
            add(&self.stats.retries, 1);
            self.ctx.error(Reason::Retry, u64::from(self.vpid.get()));
        }
        self.given_up(lost);
        step
    }

    /// With the number of packets that were `lost`, if they were given up.
    fn step_locked(&self, inner: &mut Inner<N>, lost: &mut Option<u8>) -> Step {
        let (Some(action), Some(hw)) = (inner.machine.repair(), self.ctx.alive_access()) else {
            return Step::Over;
        };
        let reg = wcbuf::state(self.unit, self.vpid);
        let event = match action {
            Action::ReadState => match self.read_state() {
                Some(state) => Event::State(state),
                None => return Step::Over,
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
            // The port is open then.
            Action::Done => return Step::Over,
            Action::Failed(failure) => {
                if matches!(failure, Failure::Desync { .. }) {
                    self.ctx.note(Reason::BadCommit, u64::from(self.vpid.get()));
                }
                *lost = Some(self.give_up(inner, &hw));
                return Step::Over;
            }
        };
        let waits = inner.machine.repair_did(event);
        // The rounds are bounded too: the NIC may drop what is sent again.
        let late = |began: Instant<Monotonic>| began.elapsed().as_millis() >= REPAIR_DEADLINE_MS;
        if inner.machine.mode() == Mode::Repair && inner.repair.is_some_and(late) {
            *lost = Some(self.give_up(inner, &hw));
            return Step::Over;
        }
        match waits {
            true => Step::Waits,
            false => Step::Done,
        }
    }

    /// Forgets all outstanding packets and starts afresh. Returns their number.
    fn give_up(&self, inner: &mut Inner<N>, hw: &Hw) -> u8 {
        reset_state(hw, self.unit, self.vpid);
        let lost = inner.machine.give_up();
        add(&self.stats.lost, u64::from(lost));
        lost
    }

    /// So many packets were given up. Not with the lock held.
    fn given_up(&self, lost: Option<u8>) {
        if let Some(lost) = lost {
            self.ctx.error(
                Reason::RepairFailed,
                u64::from(self.vpid.get()) | u64::from(lost) << 32,
            );
        }
    }

    /// Gives up everything outstanding, e.g. after a transmit time-out. Does nothing while a repair runs,
    /// which has a deadline of its own. Any context; what the console may need to send is not locked.
    pub(crate) fn reset(self: &Arc<Self>) {
        let lost = {
            let mut guard = self.inner.lock();
            let inner = &mut *guard;
            match self.ctx.alive_access() {
                Some(hw) if inner.machine.is_in_doubt() => self.give_up(inner, &hw),
                _ => return,
            }
        };
        self.given_up(Some(lost));
        // There is room for those who wait.
        self.kick(Kick::Now);
    }
}
