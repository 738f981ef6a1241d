// SPDX-License-Identifier: GPL-2.0-only

//! Busy polling of the mailbox by threads that wait for a message (`SO_BUSY_POLL`).

use super::{run::MailboxState, Conn, Count, Nic};
use kernel::{
    processor::cpu_relax,
    sync::{atomic::Relaxed, Arc},
};
use kernel_ext::sched::need_resched;

impl Nic {
    /// Processes messages of all connections until `ready` returns a value, for up to `us`
    /// microseconds. Ends early when the CPU is needed or a signal is pending. The mailbox raises
    /// up to one interrupt during this call. Process context without locks.
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
            // A negotiation message requires the work item, which may have to run on this CPU.
            let blocked = matches!(left, MailboxState::Setup);
            if blocked || need_resched() || self.now() >= until || self.is_closing() {
                break None;
            }
            if kernel::current!().signal_pending() {
                break None;
            }
            cpu_relax();
        };
        self.pollers.fetch_sub(1, Relaxed);
        // The last polling thread arms the mailbox.
        match self.read_soft() {
            MailboxState::Nothing => {}
            MailboxState::More | MailboxState::Setup => self.wake(),
        }
        found
    }
}

impl Conn {
    /// Polls busily until `ready` returns a value, for up to `us` microseconds. Process context
    /// without locks.
    pub(crate) fn poll_busily<R>(&self, us: u32, ready: impl FnMut() -> Option<R>) -> Option<R> {
        (us > 0).then(|| self.nic.poll_busily(us, ready)).flatten()
    }
}
