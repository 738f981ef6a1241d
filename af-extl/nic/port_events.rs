// SPDX-License-Identifier: GPL-2.0-only

//! Events of the ports. Callbacks run in hard interrupt or process context; stream messages are
//! then processed in a softirq.

use super::{run::MailboxState, Nic};
use extoll_core::vpid::Client;
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
};
use kernel_ext::tasklet::{Soft, Tasklet};

/// Softirq that processes stream messages after an interrupt.
struct MailboxSoftirq(Arc<Nic>);

impl Soft for MailboxSoftirq {
    fn run(tasklet: &Tasklet<Self>) {
        let nic = &tasklet.0;
        match nic.read_soft() {
            MailboxState::Nothing => {}
            MailboxState::More if nic.is_closing() => {}
            MailboxState::More => tasklet.schedule(),
            MailboxState::Setup => nic.wake(),
        }
    }
}

/// Port events of a NIC. Drop waits for the softirq and may sleep.
pub(super) struct PortEvents {
    nic: Arc<Nic>,
    softirq: Arc<Tasklet<MailboxSoftirq>>,
}

impl PortEvents {
    /// Creates the softirq. May sleep.
    pub(super) fn new(nic: &Arc<Nic>) -> Result<Self> {
        let softirq = Tasklet::new(Ok::<_, Error>(MailboxSoftirq(nic.clone())));
        Ok(Self {
            nic: nic.clone(),
            softirq: Arc::pin_init(softirq, GFP_KERNEL)?,
        })
    }
}

impl Client for PortEvents {
    fn interrupt(&self) {
        self.softirq.schedule();
    }

    fn writable(&self) {
        self.nic.blocked.notify();
        self.nic.send_room.store(true, Relaxed);
        self.nic.wake();
    }

    fn down(&self) {
        self.nic.dead.store(true, Relaxed);
        self.nic.wake();
    }
}
