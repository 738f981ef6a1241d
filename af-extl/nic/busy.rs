// SPDX-License-Identifier: GPL-2.0-only

//! Who waits for a message looks for it himself, if he was told to (`SO_BUSY_POLL`).

use super::{run::Left, Conn, Count, Nic};
use kernel::{
    processor::cpu_relax,
    sync::{atomic::Relaxed, Arc},
};
use kernel_ext::sched::need_resched;

impl Nic {
    /// Reads the mailbox, whosever messages come, until `ready` has something, at most for so many
    /// microseconds, and not longer than nobody else wants the processor and no signal comes. Meanwhile
    /// the mailbox interrupts once at most. Process context without locks.
    pub(super) fn poll_busily<R>(
        self: &Arc<Self>,
        us: u32,
        mut ready: impl FnMut() -> Option<R>,
    ) -> Option<R> {
        self.count(Count::BusyPolls);
        let until = self.now().after(u64::from(us) * 1000);
        self.pollers.fetch_add(1, Relaxed);
        let found = loop {
            let left = self.read_soft();
            if let Some(found) = ready() {
                break Some(found);
            }
            // A message of a negotiation wants a work item, which may have no other processor.
            let blocked = matches!(left, Left::Setup);
            if blocked || need_resched() || self.now() >= until || self.is_closing() {
                break None;
            }
            if kernel::current!().signal_pending() {
                break None;
            }
            cpu_relax();
        };
        self.pollers.fetch_sub(1, Relaxed);
        // The last one arms the mailbox again.
        match self.read_soft() {
            Left::Nothing => {}
            Left::More | Left::Setup => self.wake(),
        }
        found
    }
}

impl Conn {
    /// Waits busily until `ready` has something, at most for so many microseconds, if there are any. Process
    /// context without locks.
    pub(crate) fn poll_busily<R>(&self, us: u32, ready: impl FnMut() -> Option<R>) -> Option<R> {
        (us > 0).then(|| self.nic.poll_busily(us, ready)).flatten()
    }
}
