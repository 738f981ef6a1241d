// SPDX-License-Identifier: GPL-2.0-only

//! Virtual process IDs of one unit: allocation and the clients behind them.

use crate::{
    stats::{add, PortStats},
    tx::ShowTx,
};
use kernel::{
    prelude::*,
    sync::{new_spinlock_irq, Arc, SpinLockIrq},
};
use wire::ids::Vpid;

/// What a port tells its user.
///
/// All methods are called with interrupts disabled and with the VPID table of the unit locked, possibly in hard
/// interrupt context: they must not sleep, not take long, and neither open, close, attach nor detach ports.
pub trait Client: Send + Sync {
    /// A message or notification with interrupt request arrived; the VPID is masked until `rearm`. Hard interrupt, or
    /// process context when something is there, or may be, that no interrupt told of.
    fn interrupt(&self);

    /// After `Full` or `Retry` the port can be written again.
    fn writable(&self);

    /// The device is gone or about to be unbound: sends will fail with `Down` for ever.
    fn down(&self) {}
}

enum Slot {
    Free,
    Taken {
        client: Option<Arc<dyn Client>>,
        tx: Option<Arc<dyn ShowTx>>,
        stats: Arc<PortStats>,
    },
}

/// The VPIDs of one unit.
#[pin_data]
pub(crate) struct Table {
    #[pin]
    slots: SpinLockIrq<KVec<Slot>>,
}

/// What happened to an interrupt.
#[derive(PartialEq, Eq)]
pub(crate) enum Delivered {
    Yes,
    NoClient,
}

impl Table {
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            slots <- {
                let mut slots = KVec::with_capacity(usize::from(Vpid::COUNT), GFP_KERNEL)?;
                for _ in 0..Vpid::COUNT {
                    slots.push(Slot::Free, GFP_KERNEL)?;
                }
                new_spinlock_irq!(slots, "extoll_vpids")
            },
        })
    }

    /// Takes `want`, or the lowest free user VPID, of those that are `clean`. `EBUSY` if it is taken, `ENOSPC` if none is
    /// free.
    pub(crate) fn allocate(
        &self,
        want: Option<Vpid>,
        stats: Arc<PortStats>,
        clean: impl Fn(Vpid) -> bool,
    ) -> Result<Vpid> {
        let mut slots = self.slots.lock();
        let free = |slots: &KVec<Slot>, v: Vpid| {
            matches!(slots.get(v.index()), Some(Slot::Free)) && clean(v)
        };
        let vpid = match want {
            Some(v) if free(&slots, v) => v,
            Some(_) => return Err(EBUSY),
            None => Vpid::all()
                .take_while(|v| *v < Vpid::USER_END)
                .find(|v| free(&slots, *v))
                .ok_or(ENOSPC)?,
        };
        if let Some(slot) = slots.get_mut(vpid.index()) {
            *slot = Slot::Taken {
                client: None,
                tx: None,
                stats,
            };
        }
        Ok(vpid)
    }

    /// Gives a VPID back; its client is not called any more when this returns.
    pub(crate) fn release(&self, vpid: Vpid) {
        let mut slots = self.slots.lock();
        let old = slots
            .get_mut(vpid.index())
            .map(|slot| core::mem::replace(slot, Slot::Free));
        // The client's destructor runs without the lock.
        drop(slots);
        drop(old);
    }

    /// Sets or removes the client; the old one is not called any more when this returns.
    pub(crate) fn set_client(&self, vpid: Vpid, new: Option<Arc<dyn Client>>) {
        let mut slots = self.slots.lock();
        let old = match slots.get_mut(vpid.index()) {
            Some(Slot::Taken { client, .. }) => core::mem::replace(client, new),
            _ => new,
        };
        drop(slots);
        drop(old);
    }

    /// Notes the sending side, for debugfs.
    pub(crate) fn set_tx(&self, vpid: Vpid, new: Arc<dyn ShowTx>) {
        let mut slots = self.slots.lock();
        let old = match slots.get_mut(vpid.index()) {
            Some(Slot::Taken { tx, .. }) => tx.replace(new),
            _ => Some(new),
        };
        drop(slots);
        drop(old);
    }

    /// Calls the client of an open port.
    pub(crate) fn interrupt(&self, vpid: Vpid) -> Delivered {
        let slots = self.slots.lock();
        match slots.get(vpid.index()) {
            Some(Slot::Taken {
                client: Some(client),
                stats,
                ..
            }) => {
                add(&stats.interrupts, 1);
                client.interrupt();
                Delivered::Yes
            }
            _ => Delivered::NoClient,
        }
    }

    /// Calls the clients of all open ports.
    pub(crate) fn interrupt_all(&self) {
        let slots = self.slots.lock();
        for slot in slots.iter() {
            if let Slot::Taken {
                client: Some(client),
                stats,
                ..
            } = slot
            {
                add(&stats.interrupts, 1);
                client.interrupt();
            }
        }
    }

    pub(crate) fn writable(&self, vpid: Vpid) {
        let slots = self.slots.lock();
        if let Some(Slot::Taken {
            client: Some(client),
            ..
        }) = slots.get(vpid.index())
        {
            client.writable();
        }
    }

    pub(crate) fn down(&self) {
        let slots = self.slots.lock();
        for slot in slots.iter() {
            if let Slot::Taken {
                client: Some(client),
                ..
            } = slot
            {
                client.down();
            }
        }
    }

    /// Number of open VPIDs.
    pub(crate) fn open(&self) -> usize {
        self.slots
            .lock()
            .iter()
            .filter(|s| matches!(s, Slot::Taken { .. }))
            .count()
    }

    /// Calls `f` for every open VPID in ascending order, without the lock.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&Open)) {
        for vpid in Vpid::all() {
            let found = match self.slots.lock().get(vpid.index()) {
                Some(Slot::Taken { client, tx, stats }) => Some(Open {
                    vpid,
                    attached: client.is_some(),
                    tx: tx.clone(),
                    stats: stats.clone(),
                }),
                _ => None,
            };
            if let Some(open) = found {
                f(&open);
            }
        }
    }
}

/// An open VPID as debugfs shows it.
pub(crate) struct Open {
    pub(crate) vpid: Vpid,
    pub(crate) attached: bool,
    pub(crate) tx: Option<Arc<dyn ShowTx>>,
    pub(crate) stats: Arc<PortStats>,
}
