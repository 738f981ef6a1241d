// SPDX-License-Identifier: GPL-2.0-only

//! The ports of an interface.

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
use protocol::{base::age::Horizon, Time};
use wire::lnd::VPID;

/// What is needed to send and to fetch. It goes with the NIC.
pub(super) struct Link {
    pub(super) sender: Sender,
    pub(super) gets: Submitter,
}

/// The receiving side of the ports. `handle` is the last one to go.
pub(super) struct Ports {
    pub(super) mailbox: Mailbox,
    pub(super) engine: Engine,
    /// What is known of the age of messages.
    pub(super) horizon: Horizon,
    pub(super) counted: Time,
    pub(super) status: Subscription,
    pub(super) handle: Handle,
}

/// Hears of the ports.
pub(super) struct Ear(pub(super) Arc<Signals>, pub(super) Arc<AtomicFlag>);

impl Client for Ear {
    fn interrupt(&self) {
        self.0.bell.ring();
    }

    fn writable(&self) {
        self.0.bell.ring();
    }

    fn down(&self) {
        self.1.store(true, Relaxed);
        self.0.bell.ring();
    }
}

/// Hears of the network.
pub(super) struct Watch(pub(super) Arc<Signals>, pub(super) Arc<AtomicFlag>);

impl StatusClient for Watch {
    fn changed(&self, _status: Status) {
        self.1.xchg(true, Full);
        self.0.bell.ring();
    }

    fn link(&self, _number: u8, _link: links::Link) {
        self.1.xchg(true, Full);
        self.0.bell.ring();
    }
}

/// Ports of a NIC, for so many messages whose payload is fetched at a time. Sleeps.
///
/// # Errors
///
/// Those of the ports, `ENOMEM`.
pub(super) fn ports(handle: Handle, watch: Watch, places: usize) -> Result<(Ports, Link)> {
    let (sender, mailbox) = patiently(|| {
        let bytes = velo::DEFAULT_MAILBOX_BYTES;
        handle.velo().open(Some(VPID), bytes)
    })?;
    let port = patiently(|| handle.rma().open(Some(VPID), rma::DEFAULT_QUEUE_BYTES))?;
    let setup = Setup {
        capacity: Capacity {
            transfers: 2 * places,
            fragments: 8 * memory::PAGES + 4 * places,
            commands: 512,
        },
        ..Setup::default()
    };
    let engine = Engine::with(port.0, port.1, setup)?;
    let link = Link {
        sender,
        gets: engine.submitter(),
    };
    // The first look is due.
    watch.1.xchg(true, Full);
    let status = handle.subscribe(Arc::new(watch, GFP_KERNEL)?)?;
    let ports = Ports {
        status,
        mailbox,
        engine,
        horizon: Horizon::default(),
        counted: Time::default(),
        handle,
    };
    Ok((ports, link))
}
