// SPDX-License-Identifier: GPL-2.0-only

//! Address translation unit (ATU, HW §11): registers memory, so that RMA commands can name it by
//! network logical address (NLA).
//!
//! A [`Region`] is made in these steps: pin or reference the pages, map them for DMA, allocate an
//! NLA range and its tables, write the entries. Its end reverses the steps after the NIC has
//! confirmed that it dropped the translations. Without that confirmation, memory and NLAs stay
//! reserved (quarantine). The state machine [`protocol::nic::translation`] orders these steps.
//!
//! Locks: the mutex `tables` (allocation of NLAs and tables, process context) and three spinlocks
//! that disable interrupts: `registry`, `revoke_lists` and that of the command interface. Regions
//! can be dropped in any context. They can also be made in any context from a [`Reserve`]. Two work
//! items end regions: `reaper` ends regions that were dropped, `retry` polls for late answers about
//! regions in quarantine.
//!
//! ```
//! use extoll_core::{atu::{Access, Region}, nic::Nic};
//! use kernel::{prelude::*, sync::Arc};
//! use kernel_ext::mem::PageList;
//! use wire::ids::Vpid;
//!
//! /// A megabyte of memory that peers of `vpid` can read and write.
//! fn offer(nic: &Nic, vpid: Vpid) -> Result<Region> {
//!     let pages = PageList::from_buffer(VVec::from_elem(0u8, 1 << 20, GFP_KERNEL)?)?;
//!     let pages = Arc::new(pages, GFP_KERNEL)?;
//!     nic.atu().register_pages(vpid, pages, Access::READ_WRITE)
//! }
//! ```

mod account;
mod commands;
mod make;
mod memory;
mod pool;
mod region;
mod register;
mod registry;
mod reserve;
mod revoke;
mod tables;
mod tests;
mod translation;
mod watch;

pub(crate) use account::TableAccount;
pub use pool::{Buffer, BufferPool};
pub use region::{Access, Region};
pub use register::WholePages;
pub use reserve::Reserve;
pub use revoke::RevokeClient;

use crate::{context::Context, stats::Reason};
use commands::Commands;
use kernel::{
    fmt, impl_has_delayed_work, impl_has_work, new_delayed_work, new_mutex, new_work,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Relaxed},
        new_spinlock_irq, Arc, Mutex, SpinLockIrq,
    },
    time::{delay::fsleep, Delta},
    workqueue::{DelayedWork, Work, WorkItem},
};
use kernel_ext::work;
use protocol::nic::nla::{NlaRange, SIZE_CODES};
use registry::Registry;
use revoke::RevokeLists;
use tables::{Gat, HoldOff, HoldOffNode, Tables};
use wire::{
    ids::Vpid,
    regs::atu::{self, Control, GATS},
};

/// Settings of the unit, which are fixed when the module is loaded.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    /// Maximum number of address tables, 0…1024.
    pub(crate) gats: u32,
    /// Largest size code of hardware pages, one of [`SIZE_CODES`].
    pub(crate) largest: u8,
    /// Maximum number of partially filled tables per unprivileged user.
    pub(crate) spare_tables: u32,
}

/// Statistics: current numbers, and totals since the NIC was bound. Any context.
struct Gauges {
    /// Number of translations and reserves of each VPID.
    uses: [Atomic<u32>; Vpid::COUNT as usize],
    /// Number of [`registry::BoundHold`]s: translations, and attempts to make one. Unbinding waits
    /// until it is 0.
    bound: Atomic<u32>,
    /// Number of translations that are ending, except those in quarantine.
    ending: Atomic<u32>,
    quarantined: Atomic<u32>,
    /// Number of pages in all translations.
    pages: Atomic<u64>,
    /// Number of hardware pages in all translations, by size code.
    hw_pages: [Atomic<u64>; SIZE_CODES.len()],
    /// Number of registrations that failed because the reserve had no free region.
    reserve_exhausted: Atomic<u64>,
    /// Number of times that a buffer pool had no free buffer.
    pool_exhausted: Atomic<u64>,
    /// Number of registrations that failed because of the user's limit of tables (`EDQUOT`).
    table_limit: Atomic<u64>,
}

/// Address translation unit of one NIC, returned by [`crate::nic::Nic::atu`].
#[pin_data]
pub struct Atu {
    ctx: Arc<Context>,
    settings: Settings,
    #[pin]
    tables: Mutex<Tables>,
    #[pin]
    commands: Commands,
    #[pin]
    registry: SpinLockIrq<Registry>,
    #[pin]
    revoke_lists: SpinLockIrq<RevokeLists>,
    #[pin]
    reaper: Work<Atu, 0>,
    #[pin]
    retry: DelayedWork<Atu, 1>,
    gauges: Gauges,
}

impl_has_work! {
    impl HasWork<Atu, 0> for Atu { self.reaper }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Atu, 1> for Atu { self.retry }
}

impl WorkItem<0> for Atu {
    type Pointer = Arc<Atu>;

    fn run(this: Arc<Atu>) {
        this.reap();
    }
}

impl WorkItem<1> for Atu {
    type Pointer = Arc<Atu>;

    fn run(this: Arc<Atu>) {
        this.poll_quarantine();
    }
}

impl Atu {
    /// Allocates the unit; [`Atu::init`] then sets up the hardware. May sleep.
    pub(crate) fn new(ctx: Arc<Context>, settings: Settings) -> Result<Arc<Self>> {
        let settings = Settings {
            gats: settings.gats.min(GATS),
            ..settings
        };
        let gauges = Gauges {
            uses: [const { Atomic::new(0) }; Vpid::COUNT as usize],
            bound: Atomic::new(0),
            ending: Atomic::new(0),
            quarantined: Atomic::new(0),
            pages: Atomic::new(0),
            hw_pages: [const { Atomic::new(0) }; SIZE_CODES.len()],
            reserve_exhausted: Atomic::new(0),
            pool_exhausted: Atomic::new(0),
            table_limit: Atomic::new(0),
        };
        Arc::pin_init(
            pin_init!(Self {
                ctx,
                settings,
                tables <- new_mutex!(Tables::closed(), "extoll_atu_tables"),
                commands <- Commands::new(),
                registry <- new_spinlock_irq!(Registry::closed(), "extoll_atu_registry"),
                revoke_lists <- new_spinlock_irq!(RevokeLists::new(), "extoll_atu_ending"),
                reaper <- new_work!("extoll_atu_reaper"),
                retry <- new_delayed_work!("extoll_atu_retry"),
                gauges,
            }),
            GFP_KERNEL,
        )
    }

    /// Clears the base table and enables the unit (HW §3.4). Tables are made on demand. May sleep.
    pub(crate) fn init(&self) -> Result {
        let ctx = &self.ctx;
        self.commands.open(ctx)?;
        self.tables.lock().open(self.settings.gats)?;
        self.registry.lock().open();
        let hw = ctx.access().ok_or(ENODEV)?;
        for i in 0..GATS {
            hw.rf.write(atu::gat(i), 0);
        }
        hw.rf
            .write(atu::CONTROL, Control(0).with_enable(true).raw());
        // Makes the NIC drop the translations of an earlier driver.
        Commands::flush_all(&hw);
        drop(hw);
        if self.commands.wait(ctx).result.is_err() {
            ctx.error(Reason::AtuTimeout, 0);
        }
        Ok(())
    }

    /// Ends all regions and disables translation. Registration fails from then on. May sleep, up to
    /// about a second.
    pub(crate) fn stop(self: &Arc<Self>) {
        self.registry.lock().refuse();
        self.tables.lock().refuse();
        self.retire_reserves();
        self.for_each(|translation| {
            let generation = translation.generation();
            translation.begin(generation);
            translation.cancel();
        });
        work::cancel_sync::<Atu, 0>(self);
        work::cancel_delayed_sync::<Atu, 1>(self);
        let answer = self.commands.wait_and_drain(&self.ctx);
        self.for_each(|translation| {
            translation.conclude(translation.generation(), Some(answer));
        });
        let Some(hw) = self.ctx.alive_access() else {
            return;
        };
        hw.rf.write(atu::CONTROL, 0);
        for i in 0..GATS {
            hw.rf.write(atu::gat(i), 0);
        }
        // The read flushes the posted writes.
        hw.rf.read(atu::CONTROL);
    }

    /// Frees the memory of all regions, including regions in quarantine. The caller has disabled
    /// the device's access to memory, and the device is still bound. May sleep.
    pub(crate) fn release(self: &Arc<Self>) {
        while self.gauges.bound.load(Acquire) != 0 {
            self.for_each(|translation| translation.cut_off());
            // Another CPU may be about to drop a `BoundHold`.
            fsleep(Delta::from_micros(100));
        }
        work::cancel_sync::<Atu, 0>(self);
        work::cancel_delayed_sync::<Atu, 1>(self);
        self.forget_lists();
        self.tables.lock().close();
        self.commands.close();
    }

    /// Returns whether the VPID has neither translations nor reserves. Any context.
    pub(crate) fn is_clean(&self, vpid: Vpid) -> bool {
        self.uses(vpid).is_none_or(|n| n.load(Acquire) == 0)
    }

    fn uses(&self, vpid: Vpid) -> Option<&Atomic<u32>> {
        self.gauges.uses.get(vpid.index())
    }

    /// Frees a range of NLAs and the tables that become empty. The caller keeps the device bound.
    /// May sleep, up to about a second.
    fn free(
        &self,
        range: NlaRange,
        hold_off: Option<(HoldOffNode, HoldOff)>,
        account: Option<&TableAccount>,
    ) {
        let ctx = &self.ctx;
        let idle = {
            let mut tables = self.tables.lock();
            if let Some(account) = account {
                account.remove(range);
            }
            tables.free(ctx, &self.commands, range, hold_off)
        };
        if !idle.is_empty() && self.commands.wait(ctx).result.is_err() {
            self.tables.lock().keep_pending(idle);
        } else {
            drop::<KVec<Arc<Gat>>>(idle);
        }
    }

    /// Writes the statistics to debugfs, one value per line. May sleep.
    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gauges = &self.gauges;
        let (tables, made, limit, held_off) = self.tables.lock().show();
        writeln!(f, "tables {tables}")?;
        writeln!(f, "tables_made {made}")?;
        writeln!(f, "tables_max {limit}")?;
        writeln!(f, "page_limit_KiB {}", 4u32 << self.settings.largest)?;
        let (regions, reserves) = self.registry.lock().show();
        writeln!(f, "regions {regions}")?;
        writeln!(f, "reserves {reserves}")?;
        writeln!(f, "ranges_resting {held_off}")?;
        writeln!(f, "pages {}", gauges.pages.load(Relaxed))?;
        for (code, n) in SIZE_CODES.into_iter().zip(&gauges.hw_pages).rev() {
            writeln!(f, "nlps_{}KiB {}", 4u32 << code, n.load(Relaxed))?;
        }
        writeln!(f, "ending {}", gauges.ending.load(Relaxed))?;
        writeln!(f, "quarantined {}", gauges.quarantined.load(Relaxed))?;
        let (issued, answered) = self.commands.show();
        writeln!(f, "notifications_asked {issued}")?;
        writeln!(f, "notifications_seen {answered}")?;
        for (name, n) in [
            ("reserve_exhausted", &gauges.reserve_exhausted),
            ("pool_exhausted", &gauges.pool_exhausted),
            ("table_limit", &gauges.table_limit),
        ] {
            writeln!(f, "{name} {}", n.load(Relaxed))?;
        }
        for vpid in Vpid::all() {
            let n = self.uses(vpid).map_or(0, |n| n.load(Relaxed));
            if n != 0 {
                writeln!(f, "vpid {} regions {n}", vpid.get())?;
            }
        }
        Ok(())
    }
}
