// SPDX-License-Identifier: GPL-2.0-only

//! Interrupts that other nodes raise. Their writes to 0xFD_0000_0000…0xFD_FFFF_FFFF raise MSI
//! vector 0, which the notification queue also uses (HW §6.2, G26).
//!
//! The interrupt carries neither sender nor content. Clients are therefore notified only that there
//! may be a message, and poll for it. If the queue has no entry at an interrupt, such a write has
//! raised the interrupt. If the queue has entries, such a write may have raised it as well, because
//! interrupts of a vector are merged while one is pending.
//!
//! Interrupts are rate-limited. Each client is called at most at its requested rate. Interrupts
//! above that rate cause one call at the end of each 100 ms. If the total exceeds the NIC's limit
//! per second, the interrupt targets ([`Smfu::interrupt_target`]) are closed for a second.
//! Afterwards all clients are called, because writes of that second were lost.
//!
//! Clients are called in the hard interrupt or in a work item, with the list of clients locked.

use super::{work::MESSAGES, Snq};
use crate::{hw::Hw, stats::Reason, subscribers::Subscribers};
use kernel::{
    prelude::*,
    sync::{new_spinlock_irq, Arc, SpinLockIrq},
};
use kernel_ext::net::BhDisabled;
use protocol::nic::snq::{LimitResult, MessageLimit, MASKED_MS};

/// Client for interrupts that other nodes may have raised.
pub trait MessageClient: Send + Sync {
    /// Reports that a message may have arrived. If `certain` is set, the interrupt had no other
    /// cause. Called in hard interrupt context, or in process context with interrupts disabled,
    /// with the list of clients locked. Must not sleep or take long, and must not subscribe or
    /// unsubscribe.
    fn message(&self, certain: bool);
}

struct Listener {
    client: Arc<dyn MessageClient>,
    limit: MessageLimit,
}

struct Storm {
    /// Rate limit of all interrupts for which the queue had no entry.
    limit: MessageLimit,
    /// Time in milliseconds until which interrupt targets are closed.
    closed_until: Option<u64>,
}

/// Clients of a NIC.
#[pin_data]
pub(super) struct Messages {
    #[pin]
    storm: SpinLockIrq<Storm>,
    #[pin]
    clients: Subscribers<Listener>,
}

impl Messages {
    /// Makes the list of clients. More than `per_second` interrupts by other nodes per second are a
    /// storm; 0 disables the limit.
    pub(super) fn new(per_second: u32) -> impl PinInit<Self> {
        let storm = Storm {
            limit: MessageLimit::new(per_second),
            closed_until: None,
        };
        pin_init!(Self {
            storm <- new_spinlock_irq!(storm, "extoll_message_storm"),
            clients <- Subscribers::new(),
        })
    }
}

/// Subscription of a [`MessageClient`]. When its drop returns, the client is not called any more.
/// Process context; may sleep.
pub struct MessageSubscription {
    snq: Arc<Snq>,
    key: u64,
}

impl Drop for MessageSubscription {
    fn drop(&mut self) {
        self.snq.messages.clients.remove(self.key);
    }
}

impl Snq {
    /// See [`crate::nic::Nic::subscribe_messages`].
    pub(crate) fn subscribe_messages(
        self: &Arc<Self>,
        client: Arc<dyn MessageClient>,
        per_second: u32,
    ) -> Result<MessageSubscription> {
        let limit = MessageLimit::new(per_second);
        let key = self.messages.clients.add(Listener { client, limit })?;
        let snq = self.clone();
        Ok(MessageSubscription { snq, key })
    }

    /// Delivers an interrupt to the clients. If `certain` is set, the queue had no entry. `next` is
    /// the queue's next slot, for reports. Hard interrupt.
    pub(super) fn deliver_message(self: &Arc<Self>, hw: &Hw, certain: bool, next: u16) {
        let (now, clients) = (self.now_ms(), &self.messages.clients);
        if certain {
            let reason = if clients.is_empty() {
                Reason::SpuriousInterrupt
            } else {
                Reason::MessageInterrupt
            };
            self.ctx.note(reason, next.into());
            let stormy = {
                let mut storm = self.messages.storm.lock();
                let stormy = storm.limit.admit(now) == LimitResult::Exceeded;
                if stormy {
                    storm.closed_until = Some(now + u64::from(MASKED_MS));
                    self.to.smfu.close_interrupts(hw);
                }
                stormy
            };
            if stormy {
                self.ctx.error(Reason::MessageStorm, next.into());
                self.schedule::<MESSAGES>(MessageLimit::WINDOW_MS);
            }
        }
        clients.for_each(|listener| {
            if !certain {
                // A pending deferred call includes this interrupt.
                if !listener.limit.is_pending() {
                    listener.client.message(false);
                }
                return;
            }
            match listener.limit.admit(now) {
                LimitResult::Call => listener.client.message(true),
                LimitResult::Exceeded => self.schedule::<MESSAGES>(MessageLimit::WINDOW_MS),
                LimitResult::Pending => {}
            }
        });
    }

    /// Makes deferred calls to clients, and reopens interrupt targets after a storm. Process
    /// context.
    pub(super) fn deliver_late_messages(self: &Arc<Self>) {
        // Softirqs that clients raise run when bottom halves are enabled again.
        let _bh = BhDisabled::new();
        let Some(hw) = self.ctx.alive_access() else {
            return;
        };
        let now = self.now_ms();
        let mut storm = self.messages.storm.lock();
        let closed = storm.closed_until.is_some_and(|until| until > now);
        let reopened = !closed && storm.closed_until.take().is_some();
        if reopened {
            storm.limit.collect();
            self.to.smfu.open_interrupts(&hw);
        }
        drop(storm);
        // Writes were lost while the targets were closed, so all clients must poll.
        self.messages.clients.for_each(|listener| {
            if listener.limit.collect() {
                listener.client.message(true);
            } else if reopened {
                listener.client.message(false);
            }
        });
        if closed {
            self.schedule::<MESSAGES>(MessageLimit::WINDOW_MS);
        }
    }
}
