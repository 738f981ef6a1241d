// SPDX-License-Identifier: GPL-2.0-only

//! Address translation unit (HW §11): registration of memory, so that RMA commands reach it by NLA.
//!
//! A [`Region`] is made in this order: pin or reference pages, map them for DMA, take an NLA range (and tables for it),
//! write the entries; and ended in the opposite one, with the NIC's word in between that it has forgotten the
//! translations ([`commands`]). What it does not answer for stays reserved.

mod commands;
mod mapping;
mod region;
mod tables;

pub(crate) use region::end;
pub use region::{
    register_coherent, register_pages, register_table, register_user, Access, Region,
};

use crate::{nic::Nic, stats::Reason};
use commands::Commands;
use kernel::{
    fmt, new_mutex,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Relaxed},
        Arc, Mutex,
    },
};
use tables::Tables;
use wire::{
    ids::Vpid,
    nla::SIZE_CODES,
    regs::atu::{self, Control, GATS},
};

/// The unit of one NIC.
#[pin_data]
pub(crate) struct Atu {
    #[pin]
    pub(crate) tables: Mutex<Tables>,
    #[pin]
    pub(crate) commands: Commands,
    /// Regions, quarantined ones included, by VPID.
    regions: [Atomic<u32>; Vpid::COUNT as usize],
    /// Of these, in quarantine.
    quarantined: Atomic<u32>,
    /// Pages that regions have.
    pages: Atomic<u64>,
    /// Hardware pages that they are made of, by size.
    nlps: [Atomic<u64>; SIZE_CODES.len()],
}

impl Atu {
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            tables <- new_mutex!(Tables::closed(), "extoll_atu_tables"),
            commands <- Commands::new(),
            regions: [const { Atomic::new(0) }; Vpid::COUNT as usize],
            quarantined: Atomic::new(0),
            pages: Atomic::new(0),
            nlps: [const { Atomic::new(0) }; SIZE_CODES.len()],
        })
    }

    /// Empties the base table, as tables come on demand, and switches the unit on (HW §3.4). May sleep.
    pub(crate) fn init(nic: &Arc<Nic>) -> Result {
        nic.atu.commands.open(nic)?;
        nic.atu.tables.lock().open(nic.params.atu_gats.min(GATS))?;
        let hw = nic.access().ok_or(ENODEV)?;
        for i in 0..GATS {
            hw.rf.write(atu::gat(i), 0);
        }
        hw.rf
            .write(atu::CONTROL, Control(0).with_enable(true).raw());
        // Translations that an earlier owner left.
        Commands::flush_all(&hw);
        drop(hw);
        if !nic.atu.commands.settle(nic) {
            nic.error(Reason::AtuTimeout, 0);
        }
        Ok(())
    }

    /// Ends all regions and switches translation off. No region can be made any more. May sleep.
    pub(crate) fn stop(nic: &Arc<Nic>) {
        mapping::end_all(nic);
        let Some(hw) = nic.alive_access() else { return };
        hw.rf.write(atu::CONTROL, 0);
        for i in 0..GATS {
            hw.rf.write(atu::gat(i), 0);
        }
        // The NIC has seen all that.
        hw.rf.read(atu::CONTROL);
    }

    /// Gives all memory back, that of quarantined regions too. To be called after the device lost its access to memory,
    /// while it is still bound. May sleep.
    pub(crate) fn release(nic: &Arc<Nic>) {
        mapping::release_all(nic);
        nic.atu.tables.lock().close();
        nic.atu.commands.close();
    }

    /// Whether nothing of an earlier owner of the VPID is left. Any context.
    pub(crate) fn is_clean(&self, vpid: Vpid) -> bool {
        self.count(vpid).is_none_or(|n| n.load(Acquire) == 0)
    }

    /// Whether nothing is left of any owner.
    fn is_idle(&self) -> bool {
        self.regions.iter().all(|n| n.load(Acquire) == 0)
    }

    fn count(&self, vpid: Vpid) -> Option<&Atomic<u32>> {
        self.regions.get(vpid.index())
    }

    /// One line per fact, for debugfs.
    pub(crate) fn show(nic: &Nic, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let this = &nic.atu;
        let (tables, made, limit, regions, resting) = this.tables.lock().show();
        writeln!(f, "tables {tables}")?;
        writeln!(f, "tables_made {made}")?;
        writeln!(f, "tables_max {limit}")?;
        writeln!(f, "regions {regions}")?;
        writeln!(f, "ranges_resting {resting}")?;
        writeln!(f, "pages {}", this.pages.load(Relaxed))?;
        for (code, n) in SIZE_CODES.into_iter().zip(&this.nlps).rev() {
            writeln!(f, "nlps_{}KiB {}", 4u32 << code, n.load(Relaxed))?;
        }
        writeln!(f, "quarantined {}", this.quarantined.load(Relaxed))?;
        let (issued, answered) = this.commands.show();
        writeln!(f, "notifications_asked {issued}")?;
        writeln!(f, "notifications_seen {answered}")?;
        for vpid in Vpid::all() {
            let n = this.count(vpid).map_or(0, |n| n.load(Relaxed));
            if n != 0 {
                writeln!(f, "vpid {} regions {n}", vpid.get())?;
            }
        }
        Ok(())
    }
}
