// SPDX-License-Identifier: GPL-2.0-only

//! Notification queue of an RMA port: polling and arming of its interrupt.
//!
//! The queue has one consumer and needs no lock. All functions except `close` run in any context.

use super::{Handle, Notification};
use crate::{
    ring_consumer::{Consumer, PollFlow, Stop},
    stats::{add, Reason},
};
use core::ops::ControlFlow;
use kernel_ext::{barrier, trace};

/// Notification queue of a port. Can be dropped in any context.
pub struct Notifications {
    consumer: Consumer,
    port: Handle,
}

impl Notifications {
    pub(super) fn new(port: Handle) -> Self {
        Self {
            consumer: Consumer::new(&port.queue, &port.monitor),
            port,
        }
    }

    /// Processes up to `budget` notifications with `f` and returns their number. It is smaller than
    /// `budget` if the queue is empty or `f` stopped the poll. Slots that stay empty although the
    /// NIC wrote them are skipped. Registers are accessed only to update the read pointer from time
    /// to time, and to read the write pointer while the queue is empty. Any context.
    ///
    /// `f` returns `()`, or a [`ControlFlow`] that stops the poll:
    ///
    /// ```
    /// use core::ops::ControlFlow;
    /// use extoll_core::rma::{Notifications, Stop};
    ///
    /// /// Polls until the notification with this value is found.
    /// fn find(queue: &mut Notifications, value: u64) -> bool {
    ///     let mut found = false;
    ///     queue.poll(64, |n| {
    ///         found = n.word0 == value;
    ///         if found {
    ///             ControlFlow::Break(Stop::Consumed)
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
            let (queue, index) = (&self.port.queue, self.consumer.next());
            let Some(slot) = queue.slot(index) else { break };
            let word1 = slot.status();
            if word1 == 0 {
                let overdue = self.consumer.overdue();
                if overdue == 0 {
                    break;
                }
                let lost = self.consumer.run_of_empty(queue, overdue);
                core.ctx().error(
                    Reason::LostNotification,
                    u64::from(core.vpid().get()) | u64::from(lost) << 32,
                );
                add(&core.stats().skipped, lost.into());
                self.consumer.advance(queue, lost);
                continue;
            }
            barrier::dma_rmb();
            let word0 = slot.word(0);
            let vpid = core.vpid().get() as u8;
            trace::rma_complete(core.ctx().id(), vpid, index, word0, word1);
            let flow = match Notification::decode([word0, word1]) {
                Ok(Some(notification)) => {
                    let flow = f(&notification).flow();
                    if flow == ControlFlow::Break(Stop::Kept) {
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
            self.consumer.advance(queue, 1);
            done += 1;
            if flow.is_break() {
                break;
            }
        }
        self.consumer
            .commit_if_due(&self.port.queue, self.port.core().stats());
        done
    }

    /// Drops the queue. If it is the last handle of the port, waits until the port is closed, like
    /// [`Requester::close`](super::Requester::close). May sleep for some 100 ms.
    pub fn close(self) {
        let Self { port, consumer } = self;
        drop(consumer);
        port.close();
    }

    /// Returns whether a notification is in the queue. No register access. Any context.
    pub fn pending(&self) -> bool {
        self.port.queue.status(self.consumer.next()) != 0
    }

    /// Arms the port's interrupt after the queue was found empty. Returns whether a notification
    /// has arrived. The caller must then poll again, because the interrupt for it may not be raised
    /// (G7). Any context.
    #[must_use]
    pub fn rearm(&mut self) -> bool {
        let port = &self.port;
        self.consumer.rearm(&port.queue, port.core().stats());
        self.pending()
    }
}
