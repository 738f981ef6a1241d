// SPDX-License-Identifier: GPL-2.0-only

//! Address translation unit (HW §11): registration of memory.

mod region;

pub use region::{register_user, Access, Region};

use crate::{dma::DmaWords, nic::Nic, stats::Reason};
use kernel::{prelude::*, sync::Arc};
use wire::{
    atu::{GatBase, GAT_BYTES},
    regs::atu::{self, Control, GATS},
};

/// The global address tables.
pub(crate) struct Atu {
    _gats: KVec<DmaWords>,
}

impl Atu {
    /// Allocates the tables and writes the base table (HW §3.4). Fewer tables than asked for are no error.
    pub(crate) fn init(nic: &Arc<Nic>) -> Result<Self> {
        let want = nic.params.atu_gats.min(GATS);
        let mut gats = KVec::new();
        for n in 0..want {
            let memory = nic.with_bound(|dev| DmaWords::new(dev, GAT_BYTES as usize / 8))?;
            match memory {
                Ok(memory) if GatBase::new(memory.address()).is_some() => {
                    gats.push(memory, GFP_KERNEL)?
                }
                _ => {
                    nic.error(Reason::Memory, u64::from(n));
                    break;
                }
            }
        }
        let hw = nic.access().ok_or(ENODEV)?;
        for i in 0..GATS {
            let base = gats.get(i as usize).and_then(|m| GatBase::new(m.address()));
            hw.rf.write(atu::gat(i), base.map_or(0, |b| b.raw()));
        }
        hw.rf
            .write(atu::CONTROL, Control(0).with_enable(true).raw());
        drop(hw);
        Ok(Self { _gats: gats })
    }

    /// Switches translation off and forgets all tables, so that their memory can be freed.
    pub(crate) fn stop(nic: &Nic) {
        let Some(hw) = nic.alive_access() else { return };
        hw.rf.write(atu::CONTROL, 0);
        for i in 0..GATS {
            hw.rf.write(atu::gat(i), 0);
        }
    }
}
