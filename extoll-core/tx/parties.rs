// SPDX-License-Identifier: GPL-2.0-only

//! Those who share the sending side of a port, besides its own client.

use super::Tx;
use kernel::{
    prelude::*,
    sync::{new_spinlock_irq, Arc, SpinLockIrq},
};
use kernel_ext::net::BhDisabled;
use wire::room_queue::{PartyId, RoomPlace};

/// Parties of a port at most.
const MOST: usize = 1 << 16;
/// Places that are made at first.
const FIRST: usize = 16;

/// One of several who send through a port.
///
/// All methods are called with interrupts disabled and with the list of the port's parties locked: they must
/// not sleep, not take long, and neither begin nor end a party of the port. They may send.
pub trait RoomClient: Send + Sync {
    /// There is room for what was refused with `Full` or `Retry`. It is kept for this party for 20 ms (longer
    /// in slow guests); then the next one gets it. Process context.
    fn writable(&self);

    /// The device is gone or about to be unbound: sends will fail with `Down` for ever. Process context.
    fn down(&self) {}
}

type List = KVVec<Option<Arc<dyn RoomClient>>>;

/// Whom to tell of room, by party.
#[pin_data]
pub(super) struct Parties {
    #[pin]
    list: SpinLockIrq<List>,
}

impl Parties {
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self { list <- new_spinlock_irq!(KVVec::new(), "extoll_tx_parties") })
    }

    /// Process context.
    pub(super) fn writable(&self, party: PartyId) {
        // What it schedules runs when bottom halves are on again.
        let _bh = BhDisabled::new();
        let list = self.list.lock();
        if let Some(Some(client)) = list.get(party.index()) {
            client.writable();
        }
    }

    /// Calls `f` with all. Process context.
    pub(super) fn all(&self, f: impl Fn(&dyn RoomClient)) {
        let _bh = BhDisabled::new();
        for client in self.list.lock().iter().flatten() {
            f(&**client);
        }
    }

    /// Makes sure that there are `len` places. May sleep.
    fn grow(&self, len: usize) -> Result {
        if self.list.lock().len() >= len {
            return Ok(());
        }
        let mut new: List = KVVec::with_capacity(len, GFP_KERNEL)?;
        for _ in 0..len {
            new.push(None, GFP_KERNEL)?;
        }
        let mut list = self.list.lock();
        if list.len() < len {
            for (new, old) in new.iter_mut().zip(list.iter_mut()) {
                *new = old.take();
            }
            core::mem::swap(&mut new, &mut *list);
        }
        drop(list);
        drop(new);
        Ok(())
    }

    fn set(&self, party: PartyId, client: Option<Arc<dyn RoomClient>>) {
        let mut list = self.list.lock();
        let old = match list.get_mut(party.index()) {
            Some(place) => core::mem::replace(place, client),
            None => client,
        };
        drop(list);
        // Its destructor runs without the lock.
        drop(old);
    }
}

/// A party of a port; ended by drop, after which its client is not called any more. Any context, but not a
/// method of a client of the same port.
pub(crate) struct Party<const N: usize> {
    tx: Arc<Tx<N>>,
    id: PartyId,
}

impl<const N: usize> Party<N> {
    /// A new party. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there are 65,536, `ENOMEM`.
    pub(crate) fn new(tx: &Arc<Tx<N>>, client: Arc<dyn RoomClient>) -> Result<Self> {
        let id = loop {
            let capacity = {
                let mut inner = tx.inner.lock();
                let parties = inner.machine.parties();
                if let Some(id) = parties.add() {
                    break id;
                }
                parties.capacity()
            };
            if capacity >= MOST {
                return Err(ENOSPC);
            }
            let places = KVVec::from_elem(RoomPlace::FREE, (2 * capacity).max(FIRST), GFP_KERNEL)?;
            let old = tx.inner.lock().machine.parties().grow(places);
            drop(old);
        };
        // From here on its drop ends it.
        let this = Self { tx: tx.clone(), id };
        tx.parties.grow((id.index() + 1).next_power_of_two())?;
        tx.parties.set(id, Some(client));
        Ok(this)
    }

    #[inline]
    pub(crate) fn id(&self) -> PartyId {
        self.id
    }
}

impl<const N: usize> Drop for Party<N> {
    fn drop(&mut self) {
        self.tx.parties.set(self.id, None);
        self.tx.inner.lock().machine.parties().remove(self.id);
    }
}
