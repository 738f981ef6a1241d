// SPDX-License-Identifier: GPL-2.0-only

//! Events of the ports. Callbacks run in hard interrupt or process context; stream messages are
//! then processed in a softirq.

use super::{run::Left, Nic};
use extoll_core::vpid::Client;
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
};
use kernel_ext::tasklet::{Soft, Tasklet};

/// Softirq that processes stream messages after an interrupt.
struct Reader(Arc<Nic>);

impl Soft for Reader {
    fn run(tasklet: &Tasklet<Self>) {
        let nic = &tasklet.0;
        match nic.read_soft() {
            Left::Nothing => {}
            Left::More if nic.is_closing() => {}
            Left::More => tasklet.schedule(),
            Left::Setup => nic.wake(),
        }
    }
}

/// Port events of a NIC. Drop waits for the softirq and may sleep.
pub(super) struct Ear {
    nic: Arc<Nic>,
    reader: Arc<Tasklet<Reader>>,
}

impl Ear {
    /// Creates the softirq. May sleep.
    pub(super) fn new(nic: &Arc<Nic>) -> Result<Self> {
        let reader = Tasklet::new(Ok::<_, Error>(Reader(nic.clone())));
        Ok(Self {
            nic: nic.clone(),
            reader: Arc::pin_init(reader, GFP_KERNEL)?,
        })
    }
}

impl Client for Ear {
    fn interrupt(&self) {
        self.reader.schedule();
    }

    fn writable(&self) {
        self.nic.blocked.tell();
        self.nic.room.store(true, Relaxed);
        self.nic.wake();
    }

    fn down(&self) {
        self.nic.dead.store(true, Relaxed);
        self.nic.wake();
    }
}
