// SPDX-License-Identifier: GPL-2.0-only

//! Interrupts that other nodes cause: their writes to 0xFD_0000_0000…0xFD_FFFF_FFFF become MSI
//! vector 0, which is the notification queue's, too (HW §6.2, G26).
//!
//! Nothing says who wrote, or what: clients hear that there may be a message and look for
//! themselves. An interrupt that finds no entry in the queue was such a write for sure; one that
//! finds some may have been one, since interrupts of a vector are merged while one is pending.
//!
//! Who causes too many is held back: each client is called at the rate it asked for, and for what
//! came above that once at the end of a tenth of a second. If all together are more than the NIC
//! may have in a second, the interrupt targets ([`Smfu::interrupt_target`]) are closed for a
//! second; afterwards all clients are called, as what others wrote meanwhile led nowhere.
//!
//! [`Smfu::interrupt_target`]: crate::smfu::Smfu::interrupt_target

use super::{work::MESSAGES, Snq};
use crate::{hw::Hw, stats::Reason, subscribers::Subscribers};
use kernel::{
    prelude::*,
    sync::{new_spinlock_irq, Arc, SpinLockIrq},
};
use kernel_ext::net::BhDisabled;
use wire::snq::{Admission, MessageLimit, MASKED_MS};

/// Hears of interrupts that other nodes may have caused.
pub trait MessageClient: Send + Sync {
    /// A message may have come; `sure`: the interrupt was nothing else. Hard interrupt, or process
    /// context with interrupts disabled, with the list of clients locked: must not sleep, not take
    /// long, and neither subscribe nor unsubscribe.
    fn message(&self, sure: bool);
}

struct Listener {
    client: Arc<dyn MessageClient>,
    limit: MessageLimit,
}

struct Storm {
    /// Of all interrupts that the queue does not explain.
    limit: MessageLimit,
    /// Interrupt targets are closed until then, in milliseconds.
    closed_until: Option<u64>,
}

/// The clients of a NIC.
#[pin_data]
pub(super) struct Messages {
    #[pin]
    storm: SpinLockIrq<Storm>,
    #[pin]
    clients: Subscribers<Listener>,
}

impl Messages {
    /// `per_second`: more interrupts by other nodes are a storm; 0: none is.
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

/// A subscription to messages, ended by drop: when that returns, the client is not called any more.
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

    /// An interrupt came; `sure`: the queue had nothing to tell, its next entry is `next`. Hard
    /// interrupt.
    pub(super) fn deliver_message(self: &Arc<Self>, hw: &Hw, sure: bool, next: u16) {
        let (now, clients) = (self.now_ms(), &self.messages.clients);
        if sure {
            let reason = match clients.is_empty() {
                true => Reason::SpuriousInterrupt,
                false => Reason::MessageInterrupt,
            };
            self.ctx.note(reason, next.into());
            let stormy = {
                let mut storm = self.messages.storm.lock();
                let stormy = storm.limit.admit(now) == Admission::Exceeded;
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
            if !sure {
                // What is owed will be told anyway.
                if !listener.limit.is_owed() {
                    listener.client.message(false);
                }
                return;
            }
            match listener.limit.admit(now) {
                Admission::Call => listener.client.message(true),
                Admission::Exceeded => self.schedule::<MESSAGES>(MessageLimit::WINDOW_MS),
                Admission::Owed => {}
            }
        });
    }

    /// Tells clients of what was held back, and opens interrupt targets again.
    pub(super) fn deliver_late_messages(self: &Arc<Self>) {
        // What clients schedule runs when bottom halves are on again.
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
        // What came while targets were closed led nowhere: all look.
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
