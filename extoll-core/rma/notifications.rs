// SPDX-License-Identifier: GPL-2.0-only

//! Notification queue of an RMA port.

use super::{Handle, Notification};
use crate::{
    intake::{PollFlow, Reader, Stop},
    stats::{add, Reason},
};
use core::ops::ControlFlow;
use kernel_ext::{barrier, trace};

/// Notification queue of a port. Drop in any context.
pub struct Notifications {
    reader: Reader,
    port: Handle,
}

impl Notifications {
    pub(super) fn new(port: Handle) -> Self {
        Self {
            reader: Reader::new(&port.queue, &port.monitor),
            port,
        }
    }

    /// Takes up to `budget` notifications and calls `f` for each; returns their number. Fewer than `budget`
    /// means that the queue was found empty, or that `f` ended it. Slots that stay empty although the NIC wrote
    /// them are skipped. No register access but an occasional read pointer update, and a look at the write
    /// pointer while nothing comes. Any context.
    ///
    /// `f` returns nothing, or whether to go on:
    ///
    /// ```
    /// use core::ops::ControlFlow;
    /// use extoll_core::rma::{Notifications, Stop};
    ///
    /// /// Waits for nothing else once the notification with this value was there.
    /// fn find(queue: &mut Notifications, value: u64) -> bool {
    ///     let mut found = false;
    ///     queue.poll(64, |n| {
    ///         found = n.word0 == value;
    ///         if found {
    ///             ControlFlow::Break(Stop::Taken)
    ///         } else {
    ///             ControlFlow::Continue(())
    ///         }
    ///     });
    ///     found
    /// }
    /// ```
    pub fn poll<F: PollFlow>(
        &mut self,
        budget: usize,
        mut f: impl FnMut(&Notification) -> F,
    ) -> usize {
        let mut done = 0;
        let core = self.port.core();
        while done < budget {
            let (queue, index) = (&self.port.queue, self.reader.next());
            let Some(slot) = queue.slot(index) else { break };
            let word1 = slot.status();
            if word1 == 0 {
                let overdue = self.reader.overdue();
                if overdue == 0 {
                    break;
                }
                let lost = self.reader.run_of_empty(queue, overdue);
                core.ctx().error(
                    Reason::LostNotification,
                    u64::from(core.vpid().get()) | u64::from(lost) << 32,
                );
                add(&core.stats().skipped, lost.into());
                self.reader.advance(queue, lost);
                continue;
            }
            barrier::dma_rmb();
            let word0 = slot.word(0);
            let vpid = core.vpid().get() as u8;
            trace::rma_complete(core.ctx().id(), vpid, index, word0, word1);
            let flow = match Notification::decode([word0, word1]) {
                Ok(Some(notification)) => {
                    let flow = f(&notification).flow();
                    if flow == ControlFlow::Break(Stop::Left) {
                        break;
                    }
                    add(&core.stats().received, 1);
                    if notification.error != 0 {
                        add(&core.stats().errors, 1);
                        core.ctx().error(Reason::NotificationError, word1);
                    }
                    flow
                }
                Ok(None) | Err(_) => {
                    add(&core.stats().errors, 1);
                    core.ctx().error(Reason::BadNotification, word1);
                    ControlFlow::Continue(())
                }
            };
            self.reader.advance(queue, 1);
            done += 1;
            if flow.is_break() {
                break;
            }
        }
        self.reader
            .commit_if_due(&self.port.queue, self.port.core().stats());
        done
    }

    /// Drops it, as [`Requester::close`](super::Requester::close). May sleep, for some 100 ms.
    pub fn close(self) {
        let Self { port, reader } = self;
        drop(reader);
        port.close();
    }

    /// True when a notification waits. No register access. Any context.
    pub fn pending(&self) -> bool {
        self.port.queue.status(self.reader.next()) != 0
    }

    /// Unmasks the interrupt of the port after the queue was found empty. True when a notification is waiting
    /// all the same: poll again, as its interrupt may or may not come (G7). Any context.
    #[must_use]
    pub fn rearm(&mut self) -> bool {
        let port = &self.port;
        self.reader.rearm(&port.queue, port.core().stats());
        self.pending()
    }
}
