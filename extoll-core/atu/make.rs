// SPDX-License-Identifier: GPL-2.0-only

//! How translations begin: with a place of their own, or again with one that a reserve has kept.

use super::{
    memory::{Memory, Nlps},
    registry::{BoundHold, TranslationNode, VpidUse},
    reserve::Reserved,
    tables::{Place, Rest, RestNode},
    translation::{Home, Spare, State, Translation},
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
    mem::{DmaRoom, PageList},
    sched::cond_resched,
};
use protocol::translation::{Life, Turn};
use wire::{ids::Vpid, nla::Range};

/// What a translation is made for.
pub(super) struct Request {
    pub(super) vpid: Vpid,
    pub(super) access: Access,
    /// First address of user memory.
    pub(super) start: usize,
    pub(super) account: Option<Arc<TableAccount>>,
    /// How long its NLAs rest afterwards.
    pub(super) rest: Rest,
}

/// Why a translation of a reserve was not used again.
pub(super) enum Refused {
    /// It is as it was, and the device is still kept bound.
    Unused(Error, BoundHold),
    /// Entries were written, or unbinding has begun: it ends, and goes back by itself.
    Ending(Error),
}

impl Translation {
    /// Gives memory a place in NLA space and writes its entries. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` unless the memory is made of whole pages, `ENOMEM`, `ENOSPC`, `EDQUOT`, `ENODEV`,
    /// `ETIMEDOUT`.
    pub(super) fn new(bound: BoundHold, request: Request, memory: Memory) -> Result<Arc<Self>> {
        let atu = bound.atu().clone();
        let (ctx, account) = (&atu.ctx, request.account.as_deref());
        let largest = atu.settings.largest;
        let prepared = memory.placement(largest).and_then(|placement| {
            let node = TranslationNode::new(GFP_KERNEL)?;
            let at_rest = RestNode::new(GFP_KERNEL)?;
            let (pages, wish) = (placement.pages(), placement.wish());
            let whose = (account, request.rest);
            let mut tables = atu.tables.lock();
            let place = tables.allocate(ctx, &atu.commands, pages, wish, whose)?;
            Ok((node, at_rest, place))
        });
        let (node, at_rest, place) = match prepared {
            Ok(prepared) => prepared,
            Err(e) => {
                if e == EDQUOT {
                    atu.gauges.table_limit.add(1, Relaxed);
                }
                memory.release(ctx);
                return Err(e);
            }
        };
        let range = place.range;
        let (vpid, access) = (request.vpid, request.access);
        let made = Self::with_state(&atu, vpid, range, access, request.start, Life::new());
        let this = match made {
            Ok(made) => made,
            Err(e) => {
                // No entry was written.
                drop(place);
                atu.free(range, None, account);
                memory.release(ctx);
                return Err(e);
            }
        };
        let home = Home::Space {
            node: at_rest,
            rest: request.rest,
            account: request.account,
            _vpid: VpidUse::new(&atu, vpid),
        };
        let entered = memory.enter(&place, vpid, access, largest, cond_resched);
        this.occupy(this.turn(), home, bound, place, memory, entered, node)?;
        Ok(this)
    }

    /// One of a reserve: not in use, at `place`. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn spare(
        atu: &Arc<Atu>,
        vpid: Vpid,
        access: Access,
        place: Place,
    ) -> Result<Arc<Self>> {
        let room = DmaRoom::new(place.range.pages as usize)?;
        let node = TranslationNode::new(GFP_KERNEL)?;
        let this = Self::with_state(atu, vpid, place.range, access, 0, Life::over())?;
        {
            let mut state = this.state.lock();
            state.place = Some(place);
            state.spare = Some(Spare { node, room });
        }
        Ok(this)
    }

    fn with_state(
        atu: &Arc<Atu>,
        vpid: Vpid,
        range: Range,
        access: Access,
        start: usize,
        life: Life,
    ) -> Result<Arc<Self>> {
        let state = State {
            life,
            place: None,
            memory: None,
            nlps: Nlps::default(),
            home: None,
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

    /// Live in `turn`, with the entries that were written. Any context.
    ///
    /// # Errors
    ///
    /// `ENODEV` if unbinding has begun, which waits for the end then; that of `entered` if not all
    /// entries were written. Either way it ends like any other, since peers may guess its NLAs.
    #[allow(clippy::too_many_arguments)]
    fn occupy(
        self: &Arc<Self>,
        turn: Turn,
        home: Home,
        bound: BoundHold,
        place: Place,
        memory: Memory,
        entered: Result<Nlps>,
        node: TranslationNode,
    ) -> Result {
        let gauges = &self.atu.gauges;
        let nlps = entered.unwrap_or_default();
        gauges.pages.add(self.range.pages, Relaxed);
        for (all, own) in gauges.nlps.iter().zip(nlps) {
            all.add(own, Relaxed);
        }
        {
            let mut state = self.state.lock();
            state.place = Some(place);
            state.memory = Some(memory);
            state.nlps = nlps;
            state.home = Some(home);
            state.bound = Some(bound);
            self.live.store(turn.get(), Relaxed);
        }
        let node = node.into_node(self.range.first, self.clone());
        let open = self.atu.registry.lock().enter(node);
        let result = match open {
            true => entered.map(drop),
            false => Err(ENODEV),
        };
        if result.is_err() {
            self.abandon(turn, None);
        }
        result
    }

    /// Begins another life of one of a reserve, with other memory. Any context.
    ///
    /// # Errors
    ///
    /// `ENOSPC` for a list that is too long, `ENOMEM`, `EIO`, `EOPNOTSUPP`, `EINVAL`, `ENODEV`.
    pub(super) fn occupy_again(
        self: &Arc<Self>,
        bound: BoundHold,
        reserved: &Arc<Reserved>,
        pages: &Arc<PageList>,
    ) -> Result<Turn, Refused> {
        let (place, spare) = {
            let mut state = self.state.lock();
            (state.place.take(), state.spare.take())
        };
        let keep = |place, spare| {
            let mut state = self.state.lock();
            state.place = place;
            state.spare = spare;
        };
        let (Some(place), Some(Spare { node, room })) = (place, spare) else {
            return Err(Refused::Unused(EINVAL, bound));
        };
        let ctx = &self.atu.ctx;
        let spare = |room: Option<DmaRoom>, node| room.map(|room| Spare { node, room });
        let memory = match Memory::map_in(ctx, room, pages, self.access) {
            Ok(memory) => memory,
            Err((room, e)) => {
                keep(Some(place), spare(room, node));
                return Err(Refused::Unused(e, bound));
            }
        };
        let unmap = |memory: Memory| memory.unmap(ctx).map(|(_, room)| room);
        let largest = self.atu.settings.largest;
        // There is another life: whoever has it from the reserve is alone.
        let again = || self.state.lock().life.begin_again().ok_or(EINVAL);
        let turn = match memory.placement(largest).and_then(|_| again()) {
            Ok(turn) => turn,
            Err(e) => {
                keep(Some(place), spare(unmap(memory), node));
                return Err(Refused::Unused(e, bound));
            }
        };
        let home = Home::Reserve(reserved.clone());
        let entered = memory.enter(&place, self.vpid, self.access, largest, || {});
        self.occupy(turn, home, bound, place, memory, entered, node)
            .map_err(Refused::Ending)?;
        Ok(turn)
    }
}
