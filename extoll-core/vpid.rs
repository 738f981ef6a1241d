// SPDX-License-Identifier: GPL-2.0-only

//! Virtual process IDs of one unit: allocation, and the clients behind them.

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

/// Sending side of a port.
pub(crate) trait SendSide: Send + Sync {
    /// Mode, next packet number, last known committed count, for debugfs. Any context.
    fn show(&self) -> (&'static str, u8, u8);
}

enum Slot {
    /// With the number of releases when it was given back.
    Free(u64),
    Taken {
        client: Option<Arc<dyn Client>>,
        tx: Option<Arc<dyn SendSide>>,
        stats: Arc<PortStats>,
    },
}

/// The lock checker compares names by address, and what makes tables is inlined where it is used, literals included.
static LOCK_NAME: &CStr = c"extoll_vpids";

/// Which VPID somebody wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Want {
    /// The user VPID that has been free for longest: late packets for an earlier owner then
    /// find nobody as long as possible.
    Any,
    /// This one.
    This(Vpid),
}

impl From<Option<Vpid>> for Want {
    fn from(vpid: Option<Vpid>) -> Self {
        vpid.map_or(Want::Any, Want::This)
    }
}

/// The VPIDs of one unit.
#[pin_data]
pub(crate) struct Table {
    unit: Unit,
    #[pin]
    slots: SpinLockIrq<KVec<Slot>>,
    releases: Atomic<u64>,
}

/// What happened to an interrupt.
#[derive(PartialEq, Eq)]
pub(crate) enum Delivered {
    Yes,
    NoClient,
}

impl Table {
    /// All VPIDs are free. May sleep.
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

    /// The unit whose VPIDs these are.
    pub(crate) fn unit(&self) -> Unit {
        self.unit
    }

    /// Takes the wanted VPID, of those that are `clean`. Any context.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it is taken, not clean, or somebody else's, `ENOSPC` if none is free.
    pub(crate) fn allocate(
        &self,
        want: Want,
        stats: Arc<PortStats>,
        clean: impl Fn(Vpid) -> bool,
    ) -> Result<Vpid> {
        let mut slots = self.slots.lock();
        let free_since = |v: Vpid| match slots.get(v.index()) {
            Some(Slot::Free(since)) if clean(v) => Some(*since),
            _ => None,
        };
        let vpid = match want {
            Want::This(v) => free_since(v).map(|_| v).ok_or(EBUSY)?,
            Want::Any => Vpid::all()
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

    /// Gives a VPID back; its client is not called any more when this returns.
    pub(crate) fn release(&self, vpid: Vpid) {
        let mut slots = self.slots.lock();
        let number = self.releases.fetch_add(1, Relaxed) + 1;
        let old = slots
            .get_mut(vpid.index())
            .map(|slot| core::mem::replace(slot, Slot::Free(number)));
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
    pub(crate) fn set_tx(&self, vpid: Vpid, new: Arc<dyn SendSide>) {
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
            Some(Slot::Taken { client, stats, .. }) => {
                // Whoever arms goes by this number, be there a client or not.
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

    /// Calls the clients of all open ports.
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

    /// Tells the client of a port that it can be written. Process context.
    pub(crate) fn writable(&self, vpid: Vpid) {
        // What it schedules runs when bottom halves are on again.
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

    /// The device is gone: tells all who use a port. Process context.
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
    pub(crate) tx: Option<Arc<dyn SendSide>>,
    pub(crate) stats: Arc<PortStats>,
}

#[kunit_tests(extoll_vpid)]
mod tests {
    use super::*;

    struct Heard {
        interrupts: Atomic<u32>,
        writable: Atomic<u32>,
        down: Atomic<u32>,
    }

    impl Heard {
        fn new() -> Self {
            Self {
                interrupts: Atomic::new(0),
                writable: Atomic::new(0),
                down: Atomic::new(0),
            }
        }
    }

    impl Client for Arc<Heard> {
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
        assert_eq!(table.allocate(Want::Any, stats()?, any)?, vpid(0)?);
        assert_eq!(
            table.allocate(Want::Any, stats()?, |v| v.get() > 2)?,
            vpid(3)?
        );
        assert_eq!(table.allocate(Want::Any, stats()?, any)?, vpid(1)?);
        assert_eq!(
            table.allocate(Want::This(vpid(3)?), stats()?, any).err(),
            Some(EBUSY)
        );
        assert_eq!(
            table
                .allocate(Want::This(vpid(4)?), stats()?, |_| false)
                .err(),
            Some(EBUSY)
        );
        table.release(vpid(3)?);
        assert_eq!(
            table.allocate(Want::This(vpid(3)?), stats()?, any)?,
            vpid(3)?
        );
        // Those that were never used first, then the one that was given back first.
        table.release(vpid(1)?);
        table.release(vpid(0)?);
        for n in (2..Vpid::USER_END.get()).filter(|n| *n != 3) {
            assert_eq!(table.allocate(Want::Any, stats()?, any)?, vpid(n)?);
            table.release(vpid(n)?);
        }
        assert_eq!(table.allocate(Want::Any, stats()?, any)?, vpid(1)?);
        assert_eq!(table.allocate(Want::Any, stats()?, any)?, vpid(0)?);
        assert_eq!(table.open(), 3);
        Ok(())
    }

    #[test]
    fn users_get_no_vpid_from_user_end_on() -> Result {
        let table = Table::new(Unit::Velo)?;
        let users = Vpid::all().take_while(|v| *v < Vpid::USER_END).count();
        for _ in 0..users {
            table.allocate(Want::Any, stats()?, any)?;
        }
        assert_eq!(table.allocate(Want::Any, stats()?, any).err(), Some(ENOSPC));
        assert_eq!(table.open(), users);
        // Those are had by number.
        let last = Vpid::all().last();
        assert!(last >= Some(Vpid::USER_END));
        assert_eq!(table.allocate(last.into(), stats()?, any).ok(), last);
        Ok(())
    }

    #[test]
    fn clients_hear_until_they_are_removed() -> Result {
        let table = Table::new(Unit::Velo)?;
        let counts = stats()?;
        let v = table.allocate(Want::Any, counts.clone(), any)?;
        let heard = Arc::new(Heard::new(), GFP_KERNEL)?;
        let client = Arc::new(heard.clone(), GFP_KERNEL)?;
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
        assert_eq!(heard.interrupts.load(Relaxed), 2);
        assert_eq!(heard.writable.load(Relaxed), 1);
        assert_eq!(heard.down.load(Relaxed), 1);
        // Counted with and without a client.
        assert_eq!(counts.interrupts.load(Relaxed), 5);
        // A free VPID takes no client.
        table.release(v);
        table.set_client(v, Some(Arc::new(heard, GFP_KERNEL)?));
        assert!(table.interrupt(v) == Delivered::NoClient);
        Ok(())
    }
}
