// SPDX-License-Identifier: GPL-2.0-only

//! Virtual process IDs (VPIDs) of one unit: their allocation, and the clients of their ports.
//!
//! A spinlock that disables interrupts protects the table. Clients are called with it held.

use crate::stats::{add, PortStats};
use kernel::{
    prelude::*,
    static_lock_class,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, SpinLockIrq,
    },
};
use kernel_ext::net::BhDisabled;
use wire::ids::{Unit, Vpid};

/// Client of a port.
///
/// All methods are called with interrupts disabled and with the VPID table of the unit locked,
/// possibly in hard interrupt context. They must not sleep or take long, and must not open, close,
/// attach or detach ports.
pub trait Client: Send + Sync {
    /// Reports that a message or notification with an interrupt request arrived. The VPID's
    /// interrupt is masked until `rearm`. Called in hard interrupt context. Called in process
    /// context if an interrupt was, or may have been, lost.
    fn interrupt(&self);

    /// Reports that the port can be written again after a send failed with `Full` or `Retry`.
    fn writable(&self);

    /// Reports that the device was removed or is about to be unbound. From now on, sends fail with
    /// `Down`.
    fn down(&self) {}
}

/// Sending side of a port.
pub(crate) trait SendSide: Send + Sync {
    /// Returns mode, next packet number and last known committed count, for debugfs. Any context.
    fn show(&self) -> (&'static str, u8, u8);
}

enum Slot {
    /// Free VPID. The number counts all releases up to its own last release.
    Free(u64),
    Taken {
        client: Option<Arc<dyn Client>>,
        tx: Option<Arc<dyn SendSide>>,
        stats: Arc<PortStats>,
    },
}

/// This is a static, because lockdep compares names by address and the constructor is inlined.
static LOCK_NAME: &CStr = c"extoll_vpids";

/// Request for a VPID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum VpidRequest {
    /// The user VPID that has been free for longest, so that late packets for an earlier owner
    /// rarely reach a new owner.
    Any,
    /// The given VPID.
    This(Vpid),
}

impl From<Option<Vpid>> for VpidRequest {
    fn from(vpid: Option<Vpid>) -> Self {
        vpid.map_or(VpidRequest::Any, VpidRequest::This)
    }
}

/// VPIDs of one unit.
#[pin_data]
pub(crate) struct Table {
    unit: Unit,
    #[pin]
    slots: SpinLockIrq<KVec<Slot>>,
    releases: Atomic<u64>,
}

/// Result of delivering an interrupt.
#[derive(PartialEq, Eq)]
pub(crate) enum Delivered {
    Yes,
    NoClient,
}

impl Table {
    /// Makes a table with all VPIDs free. May sleep.
    pub(crate) fn new(unit: Unit) -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                unit,
                slots <- {
                    let mut slots = KVec::with_capacity(usize::from(Vpid::COUNT), GFP_KERNEL)?;
                    for _ in 0..Vpid::COUNT {
                        slots.push(Slot::Free(0), GFP_KERNEL)?;
                    }
                    SpinLockIrq::new(slots, LOCK_NAME, static_lock_class!())
                },
                releases: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the unit of the table.
    pub(crate) fn unit(&self) -> Unit {
        self.unit
    }

    /// Claims a VPID for which `clean` returns true. Any context.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the requested VPID is in use or not clean; `ENOSPC` if no VPID is free.
    pub(crate) fn allocate(
        &self,
        request: VpidRequest,
        stats: Arc<PortStats>,
        clean: impl Fn(Vpid) -> bool,
    ) -> Result<Vpid> {
        let mut slots = self.slots.lock();
        let free_since = |v: Vpid| match slots.get(v.index()) {
            Some(Slot::Free(since)) if clean(v) => Some(*since),
            _ => None,
        };
        let vpid = match request {
            VpidRequest::This(v) => free_since(v).map(|_| v).ok_or(EBUSY)?,
            VpidRequest::Any => Vpid::all()
                .take_while(|v| *v < Vpid::USER_END)
                .filter_map(|v| Some((free_since(v)?, v)))
                .min()
                .map(|(_, v)| v)
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

    /// Releases a VPID. Its client is not called after this function returns.
    pub(crate) fn release(&self, vpid: Vpid) {
        let mut slots = self.slots.lock();
        let number = self.releases.fetch_add(1, Relaxed) + 1;
        let old = slots
            .get_mut(vpid.index())
            .map(|slot| core::mem::replace(slot, Slot::Free(number)));
        // The client is dropped after the lock is released.
        drop(slots);
        drop(old);
    }

    /// Sets or removes the client. The old client is not called after this function returns.
    pub(crate) fn set_client(&self, vpid: Vpid, new: Option<Arc<dyn Client>>) {
        let mut slots = self.slots.lock();
        let old = match slots.get_mut(vpid.index()) {
            Some(Slot::Taken { client, .. }) => core::mem::replace(client, new),
            _ => new,
        };
        drop(slots);
        drop(old);
    }

    /// Sets the object that shows the port's sending state in debugfs.
    pub(crate) fn set_tx(&self, vpid: Vpid, new: Arc<dyn SendSide>) {
        let mut slots = self.slots.lock();
        let old = match slots.get_mut(vpid.index()) {
            Some(Slot::Taken { tx, .. }) => tx.replace(new),
            _ => Some(new),
        };
        drop(slots);
        drop(old);
    }

    /// Counts an interrupt of an open port and calls the port's client.
    pub(crate) fn interrupt(&self, vpid: Vpid) -> Delivered {
        let slots = self.slots.lock();
        match slots.get(vpid.index()) {
            Some(Slot::Taken { client, stats, .. }) => {
                // The interrupt is counted even without a client, because arming compares this
                // number.
                add(&stats.interrupts, 1);
                match client {
                    Some(client) => {
                        client.interrupt();
                        Delivered::Yes
                    }
                    None => Delivered::NoClient,
                }
            }
            _ => Delivered::NoClient,
        }
    }

    /// Counts an interrupt for all open ports and calls their clients.
    pub(crate) fn interrupt_all(&self) {
        let slots = self.slots.lock();
        for slot in slots.iter() {
            if let Slot::Taken { client, stats, .. } = slot {
                add(&stats.interrupts, 1);
                if let Some(client) = client {
                    client.interrupt();
                }
            }
        }
    }

    /// Calls the client of a port because the port can be written again. Process context.
    pub(crate) fn writable(&self, vpid: Vpid) {
        // Softirqs that the client raises run when bottom halves are enabled again.
        let _bh = BhDisabled::new();
        let slots = self.slots.lock();
        if let Some(Slot::Taken {
            client: Some(client),
            ..
        }) = slots.get(vpid.index())
        {
            client.writable();
        }
    }

    /// Calls the clients of all ports because the device was removed. Process context.
    pub(crate) fn down(&self) {
        let _bh = BhDisabled::new();
        for slot in self.slots.lock().iter() {
            if let Slot::Taken {
                client: Some(client),
                ..
            } = slot
            {
                client.down();
            }
        }
    }

    /// Returns the number of open VPIDs.
    pub(crate) fn open(&self) -> usize {
        self.slots
            .lock()
            .iter()
            .filter(|s| matches!(s, Slot::Taken { .. }))
            .count()
    }

    /// Calls `f` for each open VPID in ascending order, without the lock held.
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

/// Open VPID, as shown in debugfs.
pub(crate) struct Open {
    pub(crate) vpid: Vpid,
    pub(crate) attached: bool,
    pub(crate) tx: Option<Arc<dyn SendSide>>,
    pub(crate) stats: Arc<PortStats>,
}

#[kunit_tests(extoll_vpid)]
mod tests {
    use super::*;

    struct Calls {
        interrupts: Atomic<u32>,
        writable: Atomic<u32>,
        down: Atomic<u32>,
    }

    impl Calls {
        fn new() -> Self {
            Self {
                interrupts: Atomic::new(0),
                writable: Atomic::new(0),
                down: Atomic::new(0),
            }
        }
    }

    impl Client for Arc<Calls> {
        fn interrupt(&self) {
            self.interrupts.add(1, Relaxed);
        }

        fn writable(&self) {
            self.writable.add(1, Relaxed);
        }

        fn down(&self) {
            self.down.add(1, Relaxed);
        }
    }

    fn any(_: Vpid) -> bool {
        true
    }

    fn stats() -> Result<Arc<PortStats>> {
        Ok(Arc::new(PortStats::of(None), GFP_KERNEL)?)
    }

    #[test]
    fn longest_free_vpid_that_is_clean() -> Result {
        let table = Table::new(Unit::Velo)?;
        let vpid = |n| Vpid::new(n).ok_or(EINVAL);
        assert_eq!(table.allocate(VpidRequest::Any, stats()?, any)?, vpid(0)?);
        assert_eq!(
            table.allocate(VpidRequest::Any, stats()?, |v| v.get() > 2)?,
            vpid(3)?
        );
        assert_eq!(table.allocate(VpidRequest::Any, stats()?, any)?, vpid(1)?);
        assert_eq!(
            table
                .allocate(VpidRequest::This(vpid(3)?), stats()?, any)
                .err(),
            Some(EBUSY)
        );
        assert_eq!(
            table
                .allocate(VpidRequest::This(vpid(4)?), stats()?, |_| false)
                .err(),
            Some(EBUSY)
        );
        table.release(vpid(3)?);
        assert_eq!(
            table.allocate(VpidRequest::This(vpid(3)?), stats()?, any)?,
            vpid(3)?
        );
        // VPIDs that were never used come first, then the one that was released first.
        table.release(vpid(1)?);
        table.release(vpid(0)?);
        for n in (2..Vpid::USER_END.get()).filter(|n| *n != 3) {
            assert_eq!(table.allocate(VpidRequest::Any, stats()?, any)?, vpid(n)?);
            table.release(vpid(n)?);
        }
        assert_eq!(table.allocate(VpidRequest::Any, stats()?, any)?, vpid(1)?);
        assert_eq!(table.allocate(VpidRequest::Any, stats()?, any)?, vpid(0)?);
        assert_eq!(table.open(), 3);
        Ok(())
    }

    #[test]
    fn users_get_no_vpid_from_user_end_on() -> Result {
        let table = Table::new(Unit::Velo)?;
        let users = Vpid::all().take_while(|v| *v < Vpid::USER_END).count();
        for _ in 0..users {
            table.allocate(VpidRequest::Any, stats()?, any)?;
        }
        assert_eq!(
            table.allocate(VpidRequest::Any, stats()?, any).err(),
            Some(ENOSPC)
        );
        assert_eq!(table.open(), users);
        // VPIDs from `USER_END` on are available by number only.
        let last = Vpid::all().last();
        assert!(last >= Some(Vpid::USER_END));
        assert_eq!(table.allocate(last.into(), stats()?, any).ok(), last);
        Ok(())
    }

    #[test]
    fn clients_hear_until_they_are_removed() -> Result {
        let table = Table::new(Unit::Velo)?;
        let counts = stats()?;
        let v = table.allocate(VpidRequest::Any, counts.clone(), any)?;
        let calls = Arc::new(Calls::new(), GFP_KERNEL)?;
        let client = Arc::new(calls.clone(), GFP_KERNEL)?;
        assert!(table.interrupt(v) == Delivered::NoClient);
        table.set_client(v, Some(client));
        assert!(table.interrupt(v) == Delivered::Yes);
        table.interrupt_all();
        table.writable(v);
        table.down();
        table.set_client(v, None);
        assert!(table.interrupt(v) == Delivered::NoClient);
        table.interrupt_all();
        table.writable(v);
        table.down();
        assert_eq!(calls.interrupts.load(Relaxed), 2);
        assert_eq!(calls.writable.load(Relaxed), 1);
        assert_eq!(calls.down.load(Relaxed), 1);
        // Interrupts are counted with and without a client.
        assert_eq!(counts.interrupts.load(Relaxed), 5);
        // A free VPID accepts no client.
        table.release(v);
        table.set_client(v, Some(Arc::new(calls, GFP_KERNEL)?));
        assert!(table.interrupt(v) == Delivered::NoClient);
        Ok(())
    }
}
