// SPDX-License-Identifier: GPL-2.0-only

//! Handling of the loss of an interface's NIC, and the search for the NIC after its loss. Functions
//! run in process context and sleep. The mutex `binding` serialises changes of the NIC.

use super::{
    ports::{ports, Link, PortEvents, Ports, Watch},
    Ni, RegionSlots,
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

/// Maximum time in ms for which unbinding a NIC waits until LNet uses no registered memory.
const UNBIND_MS: i64 = 2_500;
/// Interval in ms between searches for a NIC.
const SEARCH_MS: u32 = 250;
/// Pause in ns before the next attempt after a NIC was found but could not be used.
const PAUSE: u64 = 2_000_000_000;

/// Time in ns after which a message that still prevents the use of a NIC is logged.
const LONG: u64 = 30_000_000_000;

/// State of the search for a NIC.
#[derive(Default)]
pub(super) struct Search {
    /// Time before which no further attempt is made.
    from: Time,
    /// Time at which the wait for messages of the previous NIC began.
    waits: Option<Time>,
    /// Set after a long wait was logged.
    logged_wait: bool,
    /// Error of the last attempt to use a NIC that was logged.
    logged: Option<Error>,
}

impl Ni {
    /// Returns whether no registered memory is in use by LNet.
    fn is_quiet(&self) -> bool {
        !self.outs.lock().is_exposed() && self.sinks.lock().is_empty()
    }

    /// Ends all messages and prevents new ones, because the NIC is being unbound. Sleeps.
    pub(crate) fn lose(self: &Arc<Self>) {
        let ended = self.binding.lock();
        if *ended {
            return;
        }
        let link = {
            let mut core = self.core.lock();
            let now = self.now();
            // Without the link the thread processes no incoming message. Otherwise new messages
            // would arrive during the wait below.
            let link = core.link.take();
            self.queue_fatal(true);
            if let Some(machine) = core.machine_mut() {
                machine.down_all(now);
            }
            self.drive(&mut core, now);
            link
        };
        if !self.wait(UNBIND_MS, || self.is_quiet()) {
            pr_warn!(
                "ex{}: memory of some messages is still registered\n",
                self.number
            );
        }
        self.close(link);
        // The ATU ends the remaining registrations when the NIC is unbound.
        if self.is_quiet() {
            self.drop_slots();
        }
        self.without_nic.store(true, Relaxed);
        self.signals.doorbell.notify();
        drop(ended);
    }

    /// Drops the registration slots after all registrations have ended. Sleeps.
    fn drop_slots(&self) {
        let slots = {
            let mut core = self.core.lock();
            while core.late.pop().is_some() {}
            self.outs.lock().forget_slots();
            self.sinks.lock().forget_slots();
            core.slots.take()
        };
        drop(slots);
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

    /// Searches for the lost NIC by its node ID, which is part of the interface's address, and uses
    /// the NIC again. Called by the interface's thread. Returns the jiffies until the next attempt;
    /// `None`: no search is needed. Sleeps.
    pub(super) fn search_nic(self: &Arc<Self>, search: &mut Search) -> Option<u32> {
        if !self.without_nic.load(Relaxed) || self.ended.load(Relaxed) {
            return None;
        }
        let again = Some(msecs_to_jiffies(SEARCH_MS) as u32);
        let now = self.now();
        // For some seconds peers may still know network addresses of the previous NIC.
        if !self.is_idle() || !self.is_quiet() {
            let since = *search.waits.get_or_insert(now);
            if now.since(since) > LONG && !core::mem::replace(&mut search.logged_wait, true) {
                pr_warn!(
                    "ex{}: NIC is not used yet, because earlier messages have not ended\n",
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
        // If the NIC was unbound since `adopt`, its unbinding either waits for `binding` or has
        // finished.
        if *ended || !registry::has(self) {
            return again;
        }
        match self.revive(handle) {
            Ok(()) => {
                pr_info!("ex{}: NIC is in use again\n", self.number);
                *search = Search::default();
                return None;
            }
            Err(e) => {
                registry::release(self);
                search.from = now.after(PAUSE);
                if search.logged.replace(e) != Some(e) {
                    pr_err!("ex{}: cannot use the NIC, retrying: {:?}\n", self.number, e);
                }
            }
        }
        drop(ended);
        again
    }

    /// Opens ports and registration slots on a NIC. Sleeps.
    fn revive(self: &Arc<Self>, handle: Handle) -> Result {
        self.drop_slots();
        let watch = Watch(self.signals.clone(), self.changed.clone());
        let (ports, link) = ports(handle, watch, self.slots)?;
        let slots = RegionSlots::new(&ports.handle, VPID, &self.signals, self.slots)?;
        let port_events = Arc::new(
            PortEvents(self.signals.clone(), self.lost.clone()),
            GFP_KERNEL,
        )?;
        let link = Arc::new(link, GFP_KERNEL)?;
        let sender = link.sender.clone();
        self.lost.store(false, Relaxed);
        *self.ports.lock() = Some(ports);
        {
            let mut core = self.core.lock();
            core.link = Some(link);
            core.slots = Some(slots);
        }
        sender.attach(port_events);
        self.without_nic.store(false, Relaxed);
        // The interface's thread reports the interface as usable to LNet.
        self.signals.doorbell.notify();
        Ok(())
    }
}
