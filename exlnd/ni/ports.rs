// SPDX-License-Identifier: GPL-2.0-only

//! Ports of an interface. Callbacks run in hard interrupt or process context and only notify the
//! thread's doorbell.

use super::memory::{self, Signals};
use extoll_core::{
    child::{patiently, Handle},
    links,
    monitor::{StatusClient, Subscription},
    nic::Status,
    rma::{
        self,
        transfer::{Capacity, Engine, Setup, Submitter},
    },
    velo::{self, Mailbox, Sender},
    vpid::Client,
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{AtomicFlag, Full, Relaxed},
        Arc,
    },
};
use protocol::{base::age_bound::AgeBound, Time};
use wire::lnd::VPID;

/// Sending side of an interface's ports. Dropped before the NIC is unbound.
pub(super) struct Link {
    pub(super) sender: Sender,
    pub(super) gets: Submitter,
}

/// Receiving side of an interface's ports. `handle` is dropped last.
pub(super) struct Ports {
    pub(super) mailbox: Mailbox,
    pub(super) engine: Engine,
    /// Bounds the age of the messages in the mailbox.
    pub(super) age_bound: AgeBound,
    /// Time at which the unread messages in the mailbox were last counted.
    pub(super) counted: Time,
    pub(super) status: Subscription,
    pub(super) handle: Handle,
}

/// Receiver of port events. The flag is set when the NIC is lost.
pub(super) struct PortEvents(pub(super) Arc<Signals>, pub(super) Arc<AtomicFlag>);

impl Client for PortEvents {
    fn interrupt(&self) {
        self.0.doorbell.notify();
    }

    fn writable(&self) {
        self.0.doorbell.notify();
    }

    fn down(&self) {
        self.1.store(true, Relaxed);
        self.0.doorbell.notify();
    }
}

/// Receiver of network events. It notifies the doorbell and sets the flag for each event.
pub(super) struct Watch(pub(super) Arc<Signals>, pub(super) Arc<AtomicFlag>);

impl StatusClient for Watch {
    fn changed(&self, _status: Status) {
        self.1.xchg(true, Full);
        self.0.doorbell.notify();
    }

    fn link(&self, _number: u8, _link: links::Link) {
        self.1.xchg(true, Full);
        self.0.doorbell.notify();
    }
}

/// Opens the ports of a NIC for up to `slots` concurrent payload GETs. Sleeps.
///
/// # Errors
///
/// Returns the errors of opening the ports, or `ENOMEM`.
pub(super) fn ports(handle: Handle, watch: Watch, slots: usize) -> Result<(Ports, Link)> {
    let (sender, mailbox) = patiently(|| {
        let bytes = velo::DEFAULT_MAILBOX_BYTES;
        handle.velo().open(Some(VPID), bytes)
    })?;
    let port = patiently(|| handle.rma().open(Some(VPID), rma::DEFAULT_QUEUE_BYTES))?;
    let setup = Setup {
        capacity: Capacity {
            transfers: 2 * slots,
            fragments: 8 * memory::PAGES + 4 * slots,
            commands: 512,
        },
        ..Setup::default()
    };
    let engine = Engine::with(port.0, port.1, setup)?;
    let link = Link {
        sender,
        gets: engine.submitter(),
    };
    // Requests the first check of the network.
    watch.1.xchg(true, Full);
    let status = handle.subscribe(Arc::new(watch, GFP_KERNEL)?)?;
    let ports = Ports {
        status,
        mailbox,
        engine,
        age_bound: AgeBound::default(),
        counted: Time::default(),
        handle,
    };
    Ok((ports, link))
}
