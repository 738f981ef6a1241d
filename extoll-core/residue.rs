// SPDX-License-Identifier: GPL-2.0-only

//! Words of a descriptor that a process stored without completing it (HW §8, G8): the next owner of the VPID would complete it by its
//! own first stores, or send its first command with them; and descriptors of a process that are still on their way, which would be taken
//! for the next owner's. [`wire::residue`] has what is done about them; here it is done.

use crate::{
    nic::Nic,
    stats::Reason,
    user::{self, backlog},
};
use kernel::{
    sync::Arc,
    time::{delay::fsleep, Delta, Instant, Monotonic},
};
use wire::{
    ids::{Unit, Vpid},
    regs::wcbuf,
    residue::{stores, Action, Eraser, Event, Outcome},
    wcbuf::State,
};

/// Pause between looks.
const PAUSE: Delta = Delta::from_micros(20);
/// How long the end of a kernel port waits for what is on its way.
const CLOSE_MS: u32 = 100;
/// When a VPID that is kept is looked at for the first time, and how often after that.
const SOON_MS: u32 = 50;
const AGAIN_MS: u32 = 500;

/// Empties requester pages of a VPID that nobody else stores to: `words` is the command. `patience_ms`: how long what is on its way may
/// take. False when the NIC does not say that nothing is, or that it accepted the commands. A NIC that is gone holds nothing. May sleep.
pub(crate) fn clear(
    nic: &Nic,
    unit: Unit,
    vpid: Vpid,
    pages: &[u32],
    words: &[u64],
    patience_ms: u32,
) -> bool {
    let register = wcbuf::state(unit, vpid);
    let began: Instant<Monotonic> = Instant::now();
    let now = || began.elapsed().as_micros_ceil().max(0) as u64;
    let mut machine = Eraser::new(pages.len() as u8, u64::from(patience_ms) * 1000, now());
    let mut action = machine.start();
    if let (Some(hw), Some(page)) = (nic.alive_access(), pages.first()) {
        hw.window(unit).fence(*page);
    }
    loop {
        if action == Action::Look {
            fsleep(PAUSE);
        }
        let event = {
            let Some(hw) = nic.alive_access() else {
                return true;
            };
            match action {
                Action::Look => Event::State(State(hw.rf.read(register))),
                Action::Write(state) => {
                    hw.rf.write(register, state.raw());
                    Event::Done
                }
                Action::Store(number) => {
                    let page = pages.get(usize::from(number));
                    for index in stores(words.len() as u8).map(usize::from) {
                        if let (Some(page), Some(word)) = (page, words.get(index)) {
                            hw.window(unit).store(*page, index, *word);
                        }
                    }
                    Event::Done
                }
                Action::End(outcome) => return outcome != Outcome::Unclear,
            }
        };
        action = machine.step(event, now());
    }
}

/// Waits until nothing that a kernel port sent is in flight, its owner having stopped; false on time-out. May sleep.
pub(crate) fn settle(nic: &Nic, unit: Unit, vpid: Vpid) -> bool {
    clear(nic, unit, vpid, &[], &[], CLOSE_MS)
}

/// Where a process may be the next owner of a kernel port's VPID, also waits until the port's commands have executed; false on
/// time-out. May sleep.
fn is_executed(nic: &Arc<Nic>, unit: Unit, vpid: Vpid) -> bool {
    unit == Unit::Velo || vpid >= Vpid::USER_END || backlog::is_done(nic, vpid, 0, CLOSE_MS.into())
}

/// VPID of a kernel port that is closed, given back by drop.
pub(crate) struct Closed {
    nic: Arc<Nic>,
    unit: Unit,
    vpid: Vpid,
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.nic.table(self.unit).release(self.vpid);
    }
}

/// A VPID that is kept from others: its requester holds what its last owner left, or commands of his that are not executed. Given back by
/// drop.
pub(crate) enum Spoiled {
    Process(user::Spoiled),
    Kernel(Closed),
}

impl Spoiled {
    /// That is over. May sleep.
    fn is_done(&self) -> bool {
        match self {
            Self::Process(port) => port.is_done(),
            Self::Kernel(Closed { nic, unit, vpid }) => {
                settle(nic, *unit, *vpid) && is_executed(nic, *unit, *vpid)
            }
        }
    }
}

/// Gives back the VPID of a kernel port, which is closed and without a queue; `used`: something was sent, which has settled or not. What
/// is not done by now keeps it from others until it is. May sleep.
pub(crate) fn release(nic: &Arc<Nic>, unit: Unit, vpid: Vpid, used: bool, settled: bool) {
    let nic = nic.clone();
    let closed = Closed { nic, unit, vpid };
    if !used || (settled && is_executed(&closed.nic, unit, vpid)) {
        return;
    }
    let nic = closed.nic.clone();
    nic.table(unit).set_client(vpid, None);
    keep(&nic, unit, vpid, Spoiled::Kernel(closed));
}

/// Keeps a VPID from others for as long as that is necessary. May sleep.
pub(crate) fn keep(nic: &Arc<Nic>, unit: Unit, vpid: Vpid, spoiled: Spoiled) {
    nic.error(Reason::Residue, u64::from(vpid.get()) | (unit as u64) << 32);
    // There is room for every VPID.
    let _ = nic.spoiled.lock().push_within_capacity(spoiled);
    nic.schedule_residue(SOON_MS);
}

/// Gives back what is done by now. Returns in how many ms to look again. May sleep.
pub(crate) fn look(nic: &Nic) -> Option<u32> {
    let count = nic.spoiled.lock().len();
    for _ in 0..count {
        let next = nic.spoiled.lock().remove(0);
        let Ok(spoiled) = next else { break };
        if !spoiled.is_done() {
            let _ = nic.spoiled.lock().push_within_capacity(spoiled);
        }
    }
    let rest = nic.spoiled.lock().len();
    (rest != 0).then_some(AGAIN_MS)
}

/// The NIC is about to be given up. May sleep.
pub(crate) fn end(nic: &Nic) {
    let all = core::mem::take(&mut *nic.spoiled.lock());
    drop(all);
}
