// SPDX-License-Identifier: GPL-2.0-only

//! Interrupts of devices that are borrowed.
//!
//! The NIC does not say which device an interrupt is of (G26), so that the handlers of all vectors are
//! called. Each load from a device that is gone takes the NIC's time-out, whose event may be an
//! interrupt of a device again; so a device whose handlers take long rests, which its own driver pays
//! for, and no other one.

use crate::{conf, nic::Nic};
use extoll_core::snq::MessageClient;
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
    time::{delay::fsleep, Delta},
};
use kernel_ext::pci_host::Interrupts;
use protocol::Time;

/// Handlers that take longer than this, in nanoseconds, load from devices that do not answer.
const SLOW: u64 = 20_000_000;
/// They are called again after so many times what they took, at most [`LONGEST`] nanoseconds.
const REST: u64 = 8;
const LONGEST: u64 = 4_000_000_000;
/// How often somebody looks whether handlers have ended.
const STEP: Delta = Delta::from_millis(1);

/// Hears of interrupts by devices of other nodes.
pub(crate) struct Bell(pub(crate) Arc<Nic>);

impl MessageClient for Bell {
    fn message(&self, _sure: bool) {
        self.0.counts.interrupts.fetch_add(1, Relaxed);
        self.0.ring();
    }
}

/// A device that is borrowed.
pub(crate) struct Heard {
    interrupts: Arc<Interrupts>,
    /// Its handlers are not called before.
    until: Time,
    /// They are to be called then.
    owed: bool,
    /// Somebody calls them now, and looks at `owed` afterwards.
    ringing: bool,
    /// Vector to begin with: those before it were called the last time.
    from: u32,
}

impl Nic {
    /// Calls the handlers of all borrowed devices, of those that rest later. Any context.
    fn ring(&self) {
        let mut next = 0;
        loop {
            let begun = self.now();
            let (interrupts, from) = {
                let mut list = self.interrupts.lock();
                let Some(heard) = list.get_mut(next) else {
                    return;
                };
                next += 1;
                if heard.ringing || begun < heard.until {
                    heard.owed = true;
                    let late = (!heard.ringing).then_some(heard.until);
                    drop(list);
                    if let Some(until) = late {
                        self.want(until);
                    }
                    continue;
                }
                heard.owed = false;
                heard.ringing = true;
                (heard.interrupts.clone(), heard.from)
            };
            let left = interrupts.fire_while(from, || self.now().since(begun) <= SLOW);
            let this = Arc::as_ptr(&interrupts);
            // Not the last reference: it stays in the list while handlers are called.
            drop(interrupts);
            self.rung(this, begun, left);
        }
    }

    /// Handlers of a device have been called, all of them or those before vector `left`.
    fn rung(&self, this: *const Interrupts, begun: Time, left: Option<u32>) {
        let now = self.now();
        let took = now.since(begun);
        let again = {
            let mut list = self.interrupts.lock();
            let mut list = list.iter_mut();
            let Some(heard) = list.find(|h| core::ptr::eq(Arc::as_ptr(&h.interrupts), this)) else {
                return;
            };
            heard.ringing = false;
            heard.owed |= left.is_some();
            heard.from = left.unwrap_or(0);
            if took > SLOW {
                heard.until = now.after(took.saturating_mul(REST).min(LONGEST));
            }
            heard.owed.then_some(heard.until.max(now))
        };
        if let Some(again) = again {
            self.want(again);
        }
    }

    /// Calls handlers that were not called before. Process context.
    pub(crate) fn ring_late(&self) {
        let now = self.now();
        let owed = |heard: &&Heard| heard.owed && !heard.ringing;
        let first = {
            let list = self.interrupts.lock();
            list.iter().filter(owed).map(|h| h.until).min()
        };
        match first {
            Some(until) if now < until => self.want(until),
            Some(_) => self.ring(),
            None => {}
        }
    }

    /// Interrupts of other nodes may be some of these. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn listen(&self, new: &Arc<Interrupts>) -> Result {
        // Devices of accelerators are not among those of `leases`.
        let most = 2 * usize::from(conf::leases()) + 64;
        let mut place = KVec::with_capacity(most, GFP_KERNEL)?;
        let mut list = self.interrupts.lock();
        if list.capacity() < most {
            while let Some(heard) = list.pop() {
                place.push_within_capacity(heard).map_err(|_| ENOMEM)?;
            }
            core::mem::swap(&mut *list, &mut place);
        }
        let heard = Heard {
            interrupts: new.clone(),
            until: Time(0),
            owed: false,
            ringing: false,
            from: 0,
        };
        let pushed = list.push_within_capacity(heard);
        drop(list);
        drop(place);
        pushed.map_err(|_| ENOMEM)
    }

    /// No more of these: their handlers are not called any more when this returns. May sleep.
    pub(crate) fn unlisten(&self, gone: &Arc<Interrupts>) {
        loop {
            let old = {
                let mut list = self.interrupts.lock();
                let at = list.iter().position(|h| Arc::ptr_eq(&h.interrupts, gone));
                match at {
                    Some(at) if list.get(at).is_some_and(|h| h.ringing) => None,
                    Some(at) => {
                        let old = list.remove(at).ok();
                        // Who is at a later one just now may leave one out.
                        for heard in list.iter_mut() {
                            heard.owed = true;
                        }
                        Some(old)
                    }
                    None => Some(None),
                }
            };
            if let Some(old) = old {
                drop(old);
                return self.want(self.now());
            }
            fsleep(STEP);
        }
    }
}
