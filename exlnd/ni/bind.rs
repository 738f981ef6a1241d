// SPDX-License-Identifier: GPL-2.0-only

//! The NIC of an interface: how it goes, and how an interface without one gets one again.

use super::{
    ports::{ports, Ear, Link, Ports, Watch},
    Ni, Places,
};
use crate::registry;
use extoll_core::child::Handle;
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
    time::msecs_to_jiffies,
};
use protocol::Time;
use wire::lnd::VPID;

/// How long the end of what goes on is waited for when a NIC goes.
const HASTE_MS: i64 = 2_500;
/// An interface without a NIC looks for one so often.
const SEARCH_MS: u32 = 250;
/// So long it waits if it could not use one that it has found.
const PAUSE: u64 = 2_000_000_000;

/// What goes on when a NIC is lost has ended by then, as a rule.
const LONG: u64 = 30_000_000_000;

/// How the search for a NIC goes.
#[derive(Default)]
pub(super) struct Search {
    /// Not before this time.
    from: Time,
    /// Since when the end of what went on is waited for; that it takes long was told.
    waits: Option<Time>,
    told_waits: bool,
    /// Why one could not be used was told.
    told: Option<Error>,
}

impl Ni {
    /// Whether LNet waits for no memory that is registered.
    fn is_quiet(&self) -> bool {
        !self.outs.lock().is_exposed() && self.sinks.lock().is_empty()
    }

    /// The NIC goes: all that goes on ends, and nothing begins any more. Sleeps.
    pub(crate) fn lose(self: &Arc<Self>) {
        let ended = self.binding.lock();
        if *ended {
            return;
        }
        let link = {
            let mut core = self.core.lock();
            let now = self.now();
            // Without it nothing is taken: messages would come for as long as it is waited here.
            let link = core.link.take();
            self.tell_fatal(true);
            if let Some(machine) = core.machine_mut() {
                machine.down_all(now);
            }
            self.drive(&mut core, now);
            link
        };
        if !self.wait(HASTE_MS, || self.is_quiet()) {
            pr_warn!("ex{}: memory is still registered\n", self.number);
        }
        self.close(link);
        // What is registered still ends with the NIC.
        if self.is_quiet() {
            self.drop_places();
        }
        self.orphan.store(true, Relaxed);
        self.signals.bell.ring();
        drop(ended);
    }

    /// Nothing is registered any more, and nothing begins. Sleeps.
    fn drop_places(&self) {
        let places = {
            let mut core = self.core.lock();
            while core.late.pop().is_some() {}
            self.outs.lock().forget_places();
            self.sinks.lock().forget_places();
            core.places.take()
        };
        drop(places);
    }

    /// Closes the ports. Sleeps.
    pub(super) fn close(&self, link: Option<Arc<Link>>) {
        if let Some(link) = &link {
            link.sender.detach();
        }
        let Some(ports) = self.ports.lock().take() else {
            return;
        };
        let Ports {
            mailbox,
            engine,
            handle,
            status,
            ..
        } = ports;
        drop(status);
        drop(engine);
        drop(link);
        mailbox.close();
        drop(handle);
    }

    /// Takes a NIC if the interface has none and there is the one that it had, by the node ID,
    /// which is its address; tries again if that fails. For its thread. Returns the jiffies until
    /// it is to be called again, if it is. Sleeps.
    pub(super) fn look_for_nic(self: &Arc<Self>, search: &mut Search) -> Option<u32> {
        if !self.orphan.load(Relaxed) || self.ended.load(Relaxed) {
            return None;
        }
        let again = Some(msecs_to_jiffies(SEARCH_MS) as u32);
        let now = self.now();
        // Peers may still know addresses of before, for some seconds.
        if !self.is_idle() || !self.is_quiet() {
            let since = *search.waits.get_or_insert(now);
            if now.since(since) > LONG && !core::mem::replace(&mut search.told_waits, true) {
                pr_warn!(
                    "ex{}: has no NIC, as messages have not ended\n",
                    self.number
                );
            }
            return again;
        }
        search.waits = None;
        if now < search.from {
            return again;
        }
        let Some(handle) = registry::adopt(self, self.node) else {
            return again;
        };
        let ended = self.binding.lock();
        // Whoever has unbound it in the meantime waits for that lock, or had it.
        let revived = match !*ended && registry::has(self) {
            true => self.revive(handle),
            false => return again,
        };
        match revived {
            Ok(()) => {
                pr_info!("ex{}: has its NIC again\n", self.number);
                *search = Search::default();
                return None;
            }
            Err(e) => {
                registry::over(self);
                search.from = now.after(PAUSE);
                if search.told.replace(e) != Some(e) {
                    pr_err!("ex{}: {:?}, tries again\n", self.number, e);
                }
            }
        }
        drop(ended);
        again
    }

    /// What begins now goes by this NIC. Sleeps.
    fn revive(self: &Arc<Self>, handle: Handle) -> Result {
        self.drop_places();
        let watch = Watch(self.signals.clone(), self.changed.clone());
        let (ports, link) = ports(handle, watch, self.places)?;
        let places = Places::new(&ports.handle, VPID, &self.signals, self.places)?;
        let ear = Arc::new(Ear(self.signals.clone(), self.lost.clone()), GFP_KERNEL)?;
        let link = Arc::new(link, GFP_KERNEL)?;
        let sender = link.sender.clone();
        self.lost.store(false, Relaxed);
        *self.ports.lock() = Some(ports);
        {
            let mut core = self.core.lock();
            core.link = Some(link);
            core.places = Some(places);
        }
        sender.attach(ear);
        self.orphan.store(false, Relaxed);
        // The thread tells LNet.
        self.signals.bell.ring();
        Ok(())
    }
}
