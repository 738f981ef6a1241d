// SPDX-License-Identifier: GPL-2.0-only

//! State of the seven links and their neighbours (HW §15.4), as read last. Trigger events 17 to 20
//! cause a new read.
//!
//! Registers are read in process context, under a mutex. The state is under a spinlock that
//! disables interrupts.

use crate::{context::Context, monitor::Monitor, stats::Reason};
use kernel::{
    fmt, impl_has_delayed_work, new_delayed_work,
    prelude::*,
    str::CString,
    sync::{
        atomic::{Atomic, AtomicFlag, Relaxed},
        new_mutex, new_spinlock_irq, Arc, Mutex, SpinLockIrq,
    },
    workqueue::{DelayedWork, WorkItem},
};
use kernel_ext::{uevent, work};
use wire::regs::lp::{self, Ids, LpIn, Status};

pub use crate::monitor::{Link, Neighbour, LINKS};

/// Interval of the periodic work item, in milliseconds.
const WATCH_MS: u32 = 1000;

/// State of a NIC's links.
#[pin_data]
pub(crate) struct Links {
    ctx: Arc<Context>,
    monitor: Arc<Monitor>,
    #[pin]
    state: SpinLockIrq<[Link; LINKS]>,
    /// Held while the registers are read, so that states are stored in the order of the reads.
    #[pin]
    reading: Mutex<()>,
    ups: [Atomic<u64>; LINKS],
    downs: [Atomic<u64>; LINKS],
    /// Set after the links were read for the first time.
    read_once: AtomicFlag,
    /// Set if links must be polled, because no event reports their changes.
    polled: AtomicFlag,
    #[pin]
    watch: DelayedWork<Links>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Links> for Links { self.watch }
}

impl WorkItem for Links {
    type Pointer = Arc<Links>;

    fn run(this: Arc<Links>) {
        // Reads the registers even if no link is up. If the event of a link were lost, modules
        // would otherwise wait for the link forever.
        if this.polled.load(Relaxed) || !this.any_up() {
            this.refresh();
        }
        if this.ctx.is_alive() {
            this.schedule();
        }
    }
}

impl Links {
    /// Makes the state with all links down. May sleep.
    #[inline(never)] // Keeps its stack frame out of later calls.
    pub(crate) fn new(ctx: Arc<Context>, monitor: Arc<Monitor>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                ctx,
                monitor,
                state <- new_spinlock_irq!([Link::default(); LINKS], "extoll_links"),
                reading <- new_mutex!((), "extoll_links_looking"),
                ups: [const { Atomic::new(0) }; LINKS],
                downs: [const { Atomic::new(0) }; LINKS],
                read_once: AtomicFlag::new(false),
                polled: AtomicFlag::new(true),
                watch <- new_delayed_work!("extoll_links_watch"),
            }),
            GFP_KERNEL,
        )
    }

    /// Sets whether links must be read periodically, because no event reports changes. Any context.
    pub(crate) fn poll(&self, polled: bool) {
        self.polled.store(polled, Relaxed);
    }

    /// Starts the periodic work item. It reads the links while none is up, or while no event
    /// reports changes. Any context.
    pub(crate) fn schedule(self: &Arc<Self>) {
        let delay = kernel::time::msecs_to_jiffies(WATCH_MS);
        let _ = work::enqueue_delayed(self.clone(), delay);
    }

    /// Cancels the work item and waits for it. The device must be retired. May sleep.
    pub(crate) fn end(self: &Arc<Self>) {
        work::cancel_delayed_sync::<Self, 0>(self);
    }

    /// Returns the state of the links that was read last. No register access; any context.
    pub(crate) fn get(&self) -> [Link; LINKS] {
        *self.state.lock()
    }

    /// Returns whether a link carried packets when it was read last. Any context.
    pub(crate) fn any_up(&self) -> bool {
        self.state.lock().iter().any(|link| link.up)
    }

    /// Writes the state of the links to debugfs.
    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, link) in self.get().iter().enumerate() {
            let count = |list: &[Atomic<u64>; LINKS]| list.get(n).map_or(0, |c| c.load(Relaxed));
            let state = match (link.enabled, link.up) {
                (_, true) => "up",
                (true, false) => "down",
                (false, false) => "disabled",
            };
            write!(
                f,
                "link {n} {state} ups {} downs {}",
                count(&self.ups),
                count(&self.downs)
            )?;
            if let Some(Neighbour { guid, node, port }) = link.neighbour {
                write!(f, " neighbour {} port {port} guid {guid:#x}", node.0)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    fn read(&self, n: u32) -> Option<Link> {
        let hw = self.ctx.alive_access()?;
        let status = hw.rf.read(lp::status(n));
        if status == u64::MAX {
            self.ctx.check_removed(&hw, status);
            return None;
        }
        let status = Status(status);
        let ids = Ids(hw.rf.read(lp::ids(n)));
        let received = LpIn(hw.rf.read(lp::lp_in(n))).node_id_received();
        Some(Link {
            enabled: status.enable(),
            up: status.ready(),
            neighbour: received.then_some(Neighbour {
                guid: ids.remote_guid(),
                node: ids.remote_node(),
                port: ids.remote_lp_id(),
            }),
        })
    }

    /// Reads all links, and notifies subscribers of changes. The first read notifies only
    /// subscribers, which assume that all links are down. Later reads also count and log changes
    /// and send them to user space. Process context.
    pub(crate) fn refresh(&self) {
        let _reading = self.reading.lock();
        let first = !self.read_once.load(Relaxed);
        for n in 0..LINKS {
            let Some(new) = self.read(n as u32) else {
                return;
            };
            let old = {
                let mut state = self.state.lock();
                match state.get_mut(n) {
                    Some(slot) => core::mem::replace(slot, new),
                    None => return,
                }
            };
            if old == new {
                continue;
            }
            if !first && old.up != new.up {
                self.changed(n, new.up);
            }
            self.monitor.publish_link(n as u8, new);
        }
        self.read_once.store(true, Relaxed);
    }

    fn changed(&self, n: usize, up: bool) {
        let counters = if up { &self.ups } else { &self.downs };
        if let Some(counter) = counters.get(n) {
            counter.fetch_add(1, Relaxed);
        }
        let reason = if up { Reason::LinkUp } else { Reason::LinkDown };
        self.ctx.error(reason, n as u64);
        let state = if up { c"STATE=up" } else { c"STATE=down" };
        let sent = CString::try_from_fmt(fmt!("EXTOLL_LINK={n}"))
            .and_then(|link| uevent::changed(self.ctx.device(), &[&link, state]));
        if sent.is_err() {
            self.ctx.error(Reason::LostUevent, n as u64);
        }
    }
}
