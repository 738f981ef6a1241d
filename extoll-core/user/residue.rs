// SPDX-License-Identifier: GPL-2.0-only

//! Words of a descriptor that a process stored without completing it (HW §8, G8): the next owner of the VPID would complete it by its
//! own first stores, or send its first command with them.
//!
//! Nothing reads what a requester page holds, and no register clears it. But a command that does nothing to anybody can be stored over
//! it, word by word from the first. The first word replaces that of a command which the process began, so that this one is never
//! executed; and when the NIC accepts a descriptor, the page is empty. What is accepted early had words of the process behind a first
//! word that makes nothing of them; then the words that are left must not be stored, since they would stay. The counts of [`State`] move
//! only when the NIC is through with the descriptor, but from its last word on the toggles differ.

use crate::{hw::Hw, nic::Nic, tx};
use kernel::time::{delay::fsleep, Delta, Instant, Monotonic};
use wire::{
    ids::{Unit, Vpid},
    regs::wcbuf,
    wcbuf::State,
};

/// How long the NIC may take to accept a whole descriptor.
const PATIENCE_MS: i64 = 10;
/// Pause between looks.
const PAUSE: Delta = Delta::from_micros(20);

/// Empties requester pages of a VPID that nobody else stores to: `words` is the command. False when the NIC does not say that it accepted
/// it. A NIC that is gone holds nothing. May sleep.
pub(super) fn clear(
    nic: &Nic,
    unit: Unit,
    vpid: Vpid,
    mut pages: impl Iterator<Item = u32>,
    words: &[u64],
) -> bool {
    // The process may have written toggles and counts; and what it sent is counted as well, in its own time.
    for last in [false, true] {
        let Some(hw) = nic.alive_access() else {
            return true;
        };
        tx::reset_state(&hw, unit, vpid);
        drop(hw);
        if !last {
            tx::settle(nic, unit, vpid);
        }
    }
    pages.all(|page| clear_page(nic, unit, vpid, page, words))
}

/// What tells that a descriptor was accepted, or dropped as a whole: counts, and whether something is on its way.
fn progress(hw: &Hw, unit: Unit, vpid: Vpid) -> (u8, u8, bool) {
    let state = State(hw.rf.read(wcbuf::state(unit, vpid)));
    (
        state.committed_count(),
        state.retry_count(),
        !state.is_idle(),
    )
}

fn clear_page(nic: &Nic, unit: Unit, vpid: Vpid, page: u32, words: &[u64]) -> bool {
    let before = {
        let Some(hw) = nic.alive_access() else {
            return true;
        };
        let before = progress(&hw, unit, vpid);
        let accepted = words.iter().enumerate().any(|(i, word)| {
            hw.window(unit).store(page, i, *word);
            progress(&hw, unit, vpid) != before
        });
        if accepted {
            drop(hw);
            return tx::settle(nic, unit, vpid);
        }
        before
    };
    let began: Instant<Monotonic> = Instant::now();
    while began.elapsed().as_millis() < PATIENCE_MS {
        fsleep(PAUSE);
        // Not held while settling, which sleeps.
        let same = nic
            .alive_access()
            .is_some_and(|hw| progress(&hw, unit, vpid) == before);
        if !same {
            return tx::settle(nic, unit, vpid);
        }
    }
    false
}
