// SPDX-License-Identifier: GPL-2.0-only

//! Creation of translations, with a newly allocated NLA range or with the range of a reserve.
//!
//! Creating a translation may sleep and acquires the mutex of the tables. Reusing a translation of
//! a reserve works in any context. Both acquire the spinlock of the translation and then, after its
//! release, that of the registry.

use super::{
    memory::{HwPages, Memory},
    registry::{BoundHold, TranslationNode, VpidUse},
    reserve::ReserveInner,
    tables::{HoldOff, HoldOffNode, TableRange},
    translation::{Owner, Spare, State, Translation},
    Access, Atu, TableAccount,
};
use kernel::{
    list::{AtomicTracker, ListLinks},
    new_delayed_work,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        new_spinlock_irq, Arc,
    },
};
use kernel_ext::{
    mem::{PageList, PreallocatedTable},
    sched::cond_resched,
};
use protocol::nic::{
    nla::NlaRange,
    translation::{Generation, Lifecycle},
};
use wire::ids::Vpid;

/// Arguments for a new translation.
pub(super) struct Request {
    pub(super) vpid: Vpid,
    pub(super) access: Access,
    /// First address in the address space of the process; 0 for kernel memory.
    pub(super) start: usize,
    pub(super) account: Option<Arc<TableAccount>>,
    /// Hold-off policy for the NLAs after the translation has ended.
    pub(super) hold_off: HoldOff,
}

/// Reason why a translation of a reserve could not be reused.
pub(super) enum Refused {
    /// The translation is unchanged. The caller gets its [`BoundHold`] back.
    Unused(Error, BoundHold),
    /// Entries were written, or unbinding has begun. The translation ends and then returns to its
    /// reserve.
    Ending(Error),
}

impl Translation {
    /// Allocates an NLA range for the memory and writes the entries. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` unless the memory consists of whole pages, `ENOMEM`, `ENOSPC`, `EDQUOT`, `ENODEV`,
    /// `ETIMEDOUT`.
    pub(super) fn new(bound: BoundHold, request: Request, memory: Memory) -> Result<Arc<Self>> {
        let atu = bound.atu().clone();
        let (ctx, account) = (&atu.ctx, request.account.as_deref());
        let largest = atu.settings.largest;
        let prepared = memory.placement(largest).and_then(|placement| {
            let node = TranslationNode::new(GFP_KERNEL)?;
            let hold_off_node = HoldOffNode::new(GFP_KERNEL)?;
            let (pages, alignment) = (placement.pages(), placement.alignment());
            let whose = (account, request.hold_off);
            let mut tables = atu.tables.lock();
            let table_range = tables.allocate(ctx, &atu.commands, pages, alignment, whose)?;
            Ok((node, hold_off_node, table_range))
        });
        let (node, hold_off_node, table_range) = match prepared {
            Ok(prepared) => prepared,
            Err(e) => {
                if e == EDQUOT {
                    atu.gauges.table_limit.add(1, Relaxed);
                }
                memory.release(ctx);
                return Err(e);
            }
        };
        let range = table_range.range;
        let (vpid, access) = (request.vpid, request.access);
        let made = Self::with_state(&atu, vpid, range, access, request.start, Lifecycle::new());
        let this = match made {
            Ok(made) => made,
            Err(e) => {
                // No entry was written.
                drop(table_range);
                atu.free(range, None, account);
                memory.release(ctx);
                return Err(e);
            }
        };
        let owner = Owner::Space {
            node: hold_off_node,
            hold_off: request.hold_off,
            account: request.account,
            _vpid: VpidUse::new(&atu, vpid),
        };
        let written = memory.write_entries(&table_range, vpid, access, largest, cond_resched);
        this.activate(
            this.generation(),
            owner,
            bound,
            table_range,
            memory,
            written,
            node,
        )?;
        Ok(this)
    }

    /// Allocates an unused translation of a reserve for the NLAs of `table_range`. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn spare(
        atu: &Arc<Atu>,
        vpid: Vpid,
        access: Access,
        table_range: TableRange,
    ) -> Result<Arc<Self>> {
        let room = PreallocatedTable::new(table_range.range.pages as usize)?;
        let node = TranslationNode::new(GFP_KERNEL)?;
        let this = Self::with_state(atu, vpid, table_range.range, access, 0, Lifecycle::over())?;
        {
            let mut state = this.state.lock();
            state.table_range = Some(table_range);
            state.spare = Some(Spare { node, room });
        }
        Ok(this)
    }

    fn with_state(
        atu: &Arc<Atu>,
        vpid: Vpid,
        range: NlaRange,
        access: Access,
        start: usize,
        life: Lifecycle,
    ) -> Result<Arc<Self>> {
        let state = State {
            life,
            table_range: None,
            memory: None,
            hw_pages: HwPages::default(),
            owner: None,
            bound: None,
            spare: None,
            watch: None,
            client: None,
            leftover: None,
        };
        Arc::pin_init(
            pin_init!(Self {
                atu: atu.clone(),
                vpid,
                range,
                access,
                start,
                live: Atomic::new(0),
                state <- new_spinlock_irq!(state, "extoll_atu_translation"),
                work <- new_delayed_work!("extoll_atu_translation"),
                links <- ListLinks::new(),
                listed <- AtomicTracker::new(),
            }),
            GFP_KERNEL,
        )
    }

    /// Makes the translation live in generation `generation`. Its entries have been written. Any
    /// context.
    ///
    /// # Errors
    ///
    /// `ENODEV` if unbinding has begun; the error of `written` if not all entries were written. In
    /// both cases the translation ends in the usual steps, because peers may guess its NLAs.
    /// Unbinding waits for its end.
    #[allow(clippy::too_many_arguments)]
    fn activate(
        self: &Arc<Self>,
        generation: Generation,
        owner: Owner,
        bound: BoundHold,
        table_range: TableRange,
        memory: Memory,
        written: Result<HwPages>,
        node: TranslationNode,
    ) -> Result {
        let gauges = &self.atu.gauges;
        let hw_pages = written.unwrap_or_default();
        gauges.pages.add(self.range.pages, Relaxed);
        for (all, own) in gauges.hw_pages.iter().zip(hw_pages) {
            all.add(own, Relaxed);
        }
        {
            let mut state = self.state.lock();
            state.table_range = Some(table_range);
            state.memory = Some(memory);
            state.hw_pages = hw_pages;
            state.owner = Some(owner);
            state.bound = Some(bound);
            self.live.store(generation.get(), Relaxed);
        }
        let node = node.into_node(self.range.first, self.clone());
        let open = self.atu.registry.lock().enter(node);
        let result = if open { written.map(drop) } else { Err(ENODEV) };
        if result.is_err() {
            self.abandon(generation, None);
        }
        result
    }

    /// Begins a new generation of a translation of a reserve, for other memory. Any context.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the list is too long; `ENOMEM`, `EIO`, `EOPNOTSUPP`, `EINVAL`, `ENODEV`.
    pub(super) fn reactivate(
        self: &Arc<Self>,
        bound: BoundHold,
        reserved: &Arc<ReserveInner>,
        pages: &Arc<PageList>,
    ) -> Result<Generation, Refused> {
        let (table_range, spare) = {
            let mut state = self.state.lock();
            (state.table_range.take(), state.spare.take())
        };
        let keep = |table_range, spare| {
            let mut state = self.state.lock();
            state.table_range = table_range;
            state.spare = spare;
        };
        let (Some(table_range), Some(Spare { node, room })) = (table_range, spare) else {
            return Err(Refused::Unused(EINVAL, bound));
        };
        let ctx = &self.atu.ctx;
        let spare = |room: Option<PreallocatedTable>, node| room.map(|room| Spare { node, room });
        let memory = match Memory::map_in(ctx, room, pages, self.access) {
            Ok(memory) => memory,
            Err((room, e)) => {
                keep(Some(table_range), spare(room, node));
                return Err(Refused::Unused(e, bound));
            }
        };
        let unmap = |memory: Memory| memory.unmap(ctx).map(|(_, room)| room);
        let largest = self.atu.settings.largest;
        // Cannot fail: only the caller has claimed the translation.
        let again = || self.state.lock().life.begin_again().ok_or(EINVAL);
        let generation = match memory.placement(largest).and_then(|_| again()) {
            Ok(generation) => generation,
            Err(e) => {
                keep(Some(table_range), spare(unmap(memory), node));
                return Err(Refused::Unused(e, bound));
            }
        };
        let owner = Owner::Reserve(reserved.clone());
        let written = memory.write_entries(&table_range, self.vpid, self.access, largest, || {});
        self.activate(generation, owner, bound, table_range, memory, written, node)
            .map_err(Refused::Ending)?;
        Ok(generation)
    }
}
