// SPDX-License-Identifier: GPL-2.0-only

//! What `/dev/extoll/velo2` and `/dev/extoll/rma2` have in common: a VPID with its queue, its mappings and its interrupt.
//!
//! Lock order: address space of the caller, [`Port::live`], content of a mapping. No lock is held that `mmap` takes while user
//! memory is touched.

use super::{
    policy::{Rights, Share},
    put, put_u64,
    queue::{Layout, Queue},
    throttle::Waiter,
    Shared,
};
use crate::{
    atu::TableAccount,
    hw::Hw,
    mmio,
    nic::Nic,
    quarantine, residue,
    stats::{Opener, PortStats},
    tx,
};
use kernel::{
    fs::File,
    ioctl::{_IOR, _IOW},
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        poll::PollTable,
        Arc, Mutex,
    },
    transmute::AsBytes,
};
use kernel_ext::{
    barrier,
    chardev::{Cache, Mapping, NewMapping, Part, Space, POLL_GONE, POLL_IN},
};
use wire::{
    bq::{Rp, SlotCode, WritePointers},
    htax::{Windows, UNIT_WINDOW},
    ids::{BusAddr, NodeId, RegOffset, Unit, Vpid},
    regs::{wcbuf, BqRegs},
};

/// Version of what this driver adds to the vendor's ABI.
const ABI_VERSION: u32 = 1;
const MAGIC: u32 = 0xE7;
const INFO: u32 = _IOR::<Info>(MAGIC, 0);
const ARM: u32 = _IOW::<u64>(MAGIC, 1);
const INFO_PRIVILEGED: u32 = 1;
const INFO_COMPAT: u32 = 2;
const INFO_UP: u32 = 4;
const INFO_MARKS: u32 = 8;

/// `struct extoll_info`.
type Info = [u32; 12];

/// A VPID, given back by drop. Whoever makes translations for it holds on to it, so that nobody else gets it before they
/// are gone.
pub(crate) struct Claim {
    nic: Arc<Nic>,
    unit: Unit,
    vpid: Vpid,
    /// [`Engine::reset`].
    reset: fn(&Hw, Vpid),
    share: Option<Share>,
}

impl Claim {
    pub(super) fn vpid(&self) -> Vpid {
        self.vpid
    }

    /// The account for address tables of an unprivileged user.
    pub(super) fn tables(&self) -> Option<&Arc<TableAccount>> {
        self.share.as_ref().map(Share::tables)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Also where a port could not be opened to its end: nobody's VPID takes packets.
        if let Some(hw) = self.nic.alive_access() {
            (self.reset)(&hw, self.vpid);
        }
        self.nic.table(self.unit).release(self.vpid);
    }
}

/// VPID of a process's port that is closed, kept until [`Spoiled::is_done`].
pub(crate) struct Spoiled {
    claim: Arc<Claim>,
    rights: Rights,
    clear: fn(&Claim, Rights) -> bool,
}

impl Spoiled {
    /// Nothing of the process is left in the requester, or on its way. May sleep.
    pub(crate) fn is_done(&self) -> bool {
        (self.clear)(&self.claim, self.rights)
    }
}

/// How long a process that ends waits for its commands, in milliseconds.
const BACKLOG_MS: i64 = 100;
/// The same for descriptors that are on their way.
const CLEAR_MS: u32 = 10;
/// How long they are waited for where nobody waits.
const CLEAR_AGAIN_MS: u32 = 50;

/// Mappings of one open file at a time, of which each costs kernel memory; all that there is to map, page by page, twice.
const MOST_MAPPINGS: usize = 128;
/// Requester pages of a VPID.
const MOST_PAGES: usize = 32;

/// Clears what rights may have left in the requester. True when it is empty now, and nothing on its way. May sleep.
fn clear_requester<E: Engine>(claim: &Claim, rights: Rights, patience_ms: u32) -> bool {
    let Claim { nic, vpid, .. } = claim;
    let (mut list, mut count) = ([0; MOST_PAGES], 0);
    for (place, page) in list.iter_mut().zip(E::pages(*vpid, rights)) {
        *place = page;
        count += 1;
    }
    let pages = list.get(..count).unwrap_or(&[]);
    E::nothing(nic.node(), *vpid)
        .is_ok_and(|words| residue::clear(nic, E::UNIT, *vpid, pages, words.as_ref(), patience_ms))
}

/// An open port.
pub(super) struct Live {
    claim: Arc<Claim>,
    layout: Layout,
    queue: Option<Arc<Queue>>,
    /// The process had the requester mapped.
    requester: bool,
    /// Mappings, and whether they are of the queue.
    mappings: KVec<(bool, Arc<Mapping>)>,
    /// Number of mappings at which unused ones are forgotten.
    prune_at: usize,
}

impl Live {
    pub(super) fn vpid(&self) -> Vpid {
        self.claim.vpid
    }

    pub(super) fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    /// Slots of the queue, 0 without.
    pub(super) fn slots(&self) -> u32 {
        self.queue.as_ref().map_or(0, |q| q.slots())
    }

    pub(super) fn layout(&mut self) -> &mut Layout {
        &mut self.layout
    }

    fn keep(&mut self, queue: bool, mapping: Arc<Mapping>) -> Result {
        if self.mappings.len() >= self.prune_at {
            self.mappings.retain(|(_, m)| m.is_used());
            self.prune_at = (2 * self.mappings.len()).clamp(16, MOST_MAPPINGS);
        }
        if self.mappings.len() >= MOST_MAPPINGS {
            return Err(ENOMEM);
        }
        Ok(self.mappings.push((queue, mapping), GFP_KERNEL)?)
    }
}

/// What differs between the units.
pub(super) trait Engine: Send + Sync {
    const UNIT: Unit;
    /// Nothing of an earlier owner is left that a new one could reach.
    fn is_clean(_: &Nic, _: Vpid) -> bool {
        true
    }
    /// Requester pages that a file with these rights can map, as offsets in the window of the unit.
    fn pages(vpid: Vpid, rights: Rights) -> impl Iterator<Item = u32>;
    /// The words of a command from the VPID to itself that nobody notices, whatever the words after the first contain.
    fn nothing(node: NodeId, vpid: Vpid) -> Result<impl AsRef<[u64]>>;
    /// Sets the VPID up; nothing is received before [`Engine::enable`].
    fn open(hw: &Hw, vpid: Vpid, protection: u16);
    /// The queue is in place.
    fn enable(hw: &Hw, vpid: Vpid);
    /// Nothing is received any more, and nothing sent, when the caller has read a register.
    fn disable(hw: &Hw, vpid: Vpid);
    /// The VPID is disabled and its queue, of `slots` slots, about to be removed.
    fn drain(hw: &Hw, vpid: Vpid, slots: u32);
    /// Clears what the process left in the VPID's registers, except for what its commands in flight still need.
    fn reset(hw: &Hw, vpid: Vpid);
    /// Clears what [`Engine::reset`] kept: no command is in flight now.
    fn forget(_: &Hw, _: Vpid) {}
    /// Whether all commands of the VPID are executed, which is closed and without a queue; waits for that. May sleep.
    fn is_done(_: &Arc<Nic>, _: Vpid, _: Rights, _patience_ms: i64) -> bool {
        true
    }
}

/// The port of one open file.
#[pin_data]
pub(super) struct Port {
    pub(super) shared: Arc<Shared>,
    pub(super) rights: Rights,
    space: Arc<Space>,
    waiter: Arc<Waiter>,
    /// Slot that poll looks at.
    armed: Atomic<u32>,
    slot: SlotCode,
    /// One closes at a time, so that the second finds everything closed.
    #[pin]
    closing: Mutex<()>,
    #[pin]
    live: Mutex<Option<Live>>,
}

/// Default sizes of queue and segment in bytes (HW §7).
const LAYOUT: Layout = Layout {
    bytes: 2 << 20,
    segment: 64 << 10,
};

/// See [`Spoiled`].
fn clear_again<E: Engine>(claim: &Claim, rights: Rights) -> bool {
    let done = clear_requester::<E>(claim, rights, CLEAR_AGAIN_MS)
        && E::is_done(&claim.nic, claim.vpid, rights, BACKLOG_MS);
    if done {
        forget::<E>(claim);
    }
    done
}

fn forget<E: Engine>(claim: &Claim) {
    if let Some(hw) = claim.nic.alive_access() {
        E::forget(&hw, claim.vpid);
    }
}

impl Port {
    /// Takes the VPID that has been free for longest. `ENOSPC` if there is none, `EDQUOT` if the user has too many, `EPERM` if users
    /// like this one have none.
    pub(super) fn open<E: Engine>(
        shared: &Arc<Shared>,
        rights: Rights,
        space: &Arc<Space>,
        slot: SlotCode,
    ) -> Result<impl PinInit<Self, Error>> {
        let nic = &shared.nic;
        rights.admit()?;
        let share = shared.quota.take(E::UNIT, rights, || nic.atu().account())?;
        let budget = share.as_ref().map(|share| share.budget().clone());
        let opener = Opener {
            pid: current!().tgid(),
            uid: rights.uid,
        };
        let stats = Arc::new(PortStats::of(Some(opener)), GFP_KERNEL)?;
        let owed = match E::UNIT {
            Unit::Rma => quarantine::owed(nic),
            Unit::Velo => [0; 4],
        };
        let is_owed = |vpid: Vpid| {
            let word = owed.get(vpid.index() / 64).copied().unwrap_or(0);
            word >> (vpid.index() % 64) & 1 != 0
        };
        let clean = |vpid| E::is_clean(nic, vpid) && !is_owed(vpid);
        let vpid = nic.table(E::UNIT).allocate(None, stats.clone(), clean)?;
        let claim = Claim {
            nic: nic.clone(),
            unit: E::UNIT,
            vpid,
            reset: E::reset,
            share,
        };
        let claim = Arc::new(claim, GFP_KERNEL)?;
        let waiter = Waiter::new(nic, E::UNIT, vpid, stats, budget)?;
        {
            let hw = nic.alive_access().ok_or(ENODEV)?;
            E::open(&hw, vpid, rights.protection());
            tx::reset_state(&hw, E::UNIT, vpid);
        }
        waiter.listen()?;
        let live = Live {
            claim,
            layout: LAYOUT,
            queue: None,
            requester: false,
            mappings: KVec::new(),
            prune_at: 16,
        };
        let (shared, space) = (shared.clone(), space.clone());
        Ok(try_pin_init!(Self {
            shared,
            rights,
            space,
            waiter,
            armed: Atomic::new(0),
            slot,
            closing <- new_mutex!((), "extoll_port_closing"),
            live <- new_mutex!(Some(live), "extoll_port"),
        }))
    }

    pub(super) fn nic(&self) -> &Arc<Nic> {
        &self.shared.nic
    }

    /// Calls `f` with the port while it is certainly open; `ENODEV` after the NIC is gone. `f` must not touch user memory.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut Live) -> Result<R>) -> Result<R> {
        let mut guard = self.live.lock();
        f((*guard).as_mut().ok_or(ENODEV)?)
    }

    /// As [`Port::with`], with the registers; `f` must not sleep.
    pub(super) fn with_hw<R>(&self, f: impl FnOnce(&Hw, &Live) -> Result<R>) -> Result<R> {
        self.with(|live| {
            let hw = self.nic().alive_access().ok_or(ENODEV)?;
            f(&hw, live)
        })
    }

    /// Closes: takes the pages from all processes, clears what they left in the requester, disables the VPID, calls `revoke` to
    /// revoke translations and whatever else others have of the VPID, removes the queue, waits for commands that are not executed, frees
    /// memory. When it returns that is done, whoever did it. May sleep.
    pub(super) fn close<E: Engine>(&self, revoke: impl FnOnce(Vpid)) {
        let _closing = self.closing.lock();
        let Some(live) = self.live.lock().take() else {
            return;
        };
        let (nic, vpid) = (self.nic(), live.vpid());
        for (_, mapping) in &live.mappings {
            mapping.revoke();
        }
        self.waiter.stop();
        if live.requester {
            barrier::wmb_everywhere();
        }
        // While the VPID is still enabled, so that the command for it is no error.
        let clear = !live.requester || clear_requester::<E>(&live.claim, self.rights, CLEAR_MS);
        if let Some(hw) = nic.alive_access() {
            E::disable(&hw, vpid);
            hw.rf.read(BqRegs(E::UNIT).ub(vpid));
        }
        revoke(vpid);
        nic.withdraw(BqRegs(E::UNIT).ub(vpid), |hw| {
            E::drain(hw, vpid, live.slots());
            E::reset(hw, vpid);
            Queue::remove(E::UNIT, vpid, hw);
        });
        let done = || !live.requester || E::is_done(nic, vpid, self.rights, BACKLOG_MS);
        if clear && done() {
            forget::<E>(&live.claim);
        } else {
            let spoiled = Spoiled {
                claim: live.claim.clone(),
                rights: self.rights,
                clear: clear_again::<E>,
            };
            residue::keep(nic, E::UNIT, vpid, residue::Spoiled::Process(spoiled));
        }
        drop(live);
    }

    /// Sets size of queue or segment: any whole number of pages, checked when the queue is made.
    pub(super) fn set_layout(
        &self,
        f: impl FnOnce(&mut Layout) -> &mut u64,
        bytes: usize,
    ) -> Result {
        let bytes = bytes as u64;
        if bytes % BusAddr::PAGE_SIZE != 0 {
            return Err(EFAULT);
        }
        self.with(|live| {
            *f(live.layout()) = bytes;
            Ok(())
        })
    }

    /// Stores what `f` computes from the registers.
    pub(super) fn get(&self, arg: usize, f: impl FnOnce(&Hw, &Live) -> u64) -> Result<isize> {
        let value = self.with_hw(|hw, live| Ok(f(hw, live)))?;
        put_u64(arg, value)
    }

    /// A privileged setting.
    pub(super) fn set(&self, f: impl FnOnce(&Hw, Vpid)) -> Result<isize> {
        self.rights.demand()?;
        self.with_hw(|hw, live| {
            f(hw, live.vpid());
            Ok(0)
        })
    }

    pub(super) fn lwp<E: Engine>(hw: &Hw, live: &Live) -> u64 {
        let word = hw.rf.read(BqRegs(E::UNIT).wp_lwp_dcq_rp(live.vpid()));
        WritePointers(word).lwp().into()
    }

    pub(super) fn lrp<E: Engine>(hw: &Hw, live: &Live) -> u64 {
        Rp(hw.rf.read(BqRegs(E::UNIT).rp(live.vpid()))).lrp().into()
    }

    /// Sets the write pointer, which has to lie in the queue: `EFAULT`.
    pub(super) fn set_lwp<E: Engine>(&self, arg: usize) -> Result<isize> {
        self.with_hw(|hw, live| {
            let slot = u32::try_from(arg).map_err(|_| EFAULT)?;
            if slot != 0 && slot >= live.slots() {
                return Err(EFAULT);
            }
            let reg = BqRegs(E::UNIT).wp_lwp_dcq_rp(live.vpid());
            hw.rf.update(reg, |v| WritePointers(v).with_lwp(slot).raw());
            Ok(0)
        })
    }

    /// Writes the raw read pointer, as the process itself can.
    pub(super) fn set_rp(&self, arg: usize) -> Result<isize> {
        self.with(|_| self.waiter.store_rp(Rp(arg as u64)).map(|()| 0))
    }

    /// What is the same for both units: our own ioctls. `None`: none of them.
    pub(super) fn common(&self, command: u32, arg: usize) -> Option<Result<isize>> {
        match command {
            INFO => Some(self.info(arg)),
            ARM => Some(self.arm(arg)),
            _ => None,
        }
    }

    fn info(&self, arg: usize) -> Result<isize> {
        let (vpid, slots) = self.with(|live| Ok((live.vpid(), live.slots())))?;
        let status = self.nic().status();
        let marks = self.nic().alive_access().is_some_and(|hw| hw.marks);
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        let flags = flag(self.rights.privileged, INFO_PRIVILEGED)
            | flag(self.rights.compat, INFO_COMPAT)
            | flag(status.is_up(), INFO_UP)
            | flag(marks, INFO_MARKS);
        let info: Info = [
            ABI_VERSION,
            flags,
            self.shared.index(),
            status.node.0.into(),
            vpid.get().into(),
            self.rights.page_mask(),
            self.slot.bytes(),
            slots,
            self.rights.protection().into(),
            0,
            0,
            0,
        ];
        put(arg, AsBytes::as_bytes(&info))
    }

    fn arm(&self, arg: usize) -> Result<isize> {
        self.with(|live| {
            let queue = live.queue.as_ref().ok_or(EFAULT)?;
            let slot = u32::try_from(arg).map_err(|_| EINVAL)?;
            if slot >= queue.slots() {
                return Err(EINVAL);
            }
            self.armed.store(slot, Relaxed);
            // There is nothing to wait for, and a store of the pointer that the NIC has already may undo that the queue is full (G10).
            if queue.status(slot) != 0 {
                return Ok(1);
            }
            // The process freed slots by stores that have to be seen first.
            barrier::wmb();
            let rp = Rp(0).with_lrp(slot).with_irq_retrigger(true);
            self.waiter.store_rp(rp)?;
            Ok((queue.status(slot) != 0).into())
        })
    }

    /// Readable when the slot that was armed last holds something.
    pub(super) fn poll(&self, file: &File, table: PollTable<'_>) -> u32 {
        table.register_wait(file, &self.waiter.changed);
        if !self.nic().is_alive() {
            return POLL_GONE;
        }
        match self.live.lock().as_ref() {
            None => POLL_GONE,
            Some(Live { queue: Some(q), .. }) => {
                let holds = || q.status(self.armed.load(Relaxed)) != 0;
                if holds() || (self.waiter.renew() && holds()) {
                    POLL_IN
                } else {
                    0
                }
            }
            Some(_) => 0,
        }
    }

    /// Page of the register file.
    fn registers(windows: &Windows, reg: RegOffset) -> Result<Part> {
        let size = RegOffset::WINDOW.into();
        let source = mmio::pages(windows.rf.0, size, reg.get().into(), 1, Cache::Uncached)?;
        Ok(Part::new(source, 0, 1))
    }

    /// Page with the state of the write-combining buffer.
    pub(super) fn state<E: Engine>(windows: &Windows, vpid: Vpid) -> Result<Part> {
        Self::registers(windows, wcbuf::state(E::UNIT, vpid))
    }

    /// Requester page at `offset` of the unit's window.
    pub(super) fn requester<E: Engine>(windows: &Windows, offset: u32) -> Result<Part> {
        let window = match E::UNIT {
            Unit::Velo => windows.velo,
            Unit::Rma => windows.rma,
        };
        let combining = Cache::WriteCombining;
        let source = mmio::pages(window.0, UNIT_WINDOW, offset.into(), 1, combining)?;
        Ok(Part::new(source, 0, 1))
    }

    fn windows(&self) -> Result<Windows> {
        Ok(self.nic().alive_access().ok_or(ENODEV)?.windows)
    }

    /// Maps what `f` collects, `pages` pages: `EINVAL` for another length.
    pub(super) fn map(
        &self,
        new: NewMapping<'_>,
        pages: usize,
        f: impl FnOnce(&Windows, Vpid, &mut KVec<Part>) -> Result,
    ) -> Result {
        if new.pages() != pages {
            return Err(EINVAL);
        }
        self.with(|live| {
            let mut parts = KVec::with_capacity(pages, GFP_KERNEL_ACCOUNT)?;
            f(&self.windows()?, live.vpid(), &mut parts)?;
            new.attach(&self.space, parts, |m| live.keep(false, m))
        })
    }

    /// As [`Port::map`] for the requester.
    pub(super) fn map_requester(
        &self,
        new: NewMapping<'_>,
        pages: usize,
        f: impl FnOnce(&Windows, Vpid, &mut KVec<Part>) -> Result,
    ) -> Result {
        self.with(|live| {
            live.requester = true;
            Ok(())
        })?;
        self.map(new, pages, f)
    }

    /// Makes the queue anew, as the sizes set say, and maps it behind its read pointer; an earlier one is destroyed first.
    pub(super) fn map_queue<E: Engine>(&self, new: NewMapping<'_>) -> Result {
        self.with(|live| {
            let vpid = live.vpid();
            if new.pages() as u64 != live.layout.bytes / BusAddr::PAGE_SIZE + 1 {
                return Err(EINVAL);
            }
            self.remove_queue::<E>(live)?;
            let (slot, layout) = (self.slot, live.layout);
            let queue = self
                .nic()
                .with_bound(|dev| Queue::new(dev, E::UNIT, vpid, slot, layout))??;
            let queue = Arc::new(queue, GFP_KERNEL)?;
            let mut parts = KVec::new();
            let rp = Self::registers(&self.windows()?, BqRegs(E::UNIT).rp(vpid))?;
            parts.push(rp, GFP_KERNEL)?;
            queue.parts(&mut parts)?;
            self.waiter.arming(|arm| {
                let hw = self.nic().alive_access().ok_or(ENODEV)?;
                queue.install(&hw, arm)?;
                E::enable(&hw, vpid);
                Ok(())
            })?;
            live.queue = Some(queue.clone());
            self.armed.store(0, Relaxed);
            let keep = |m: Arc<Mapping>| {
                live.keep(true, m.clone())?;
                self.waiter.watch(m, queue.clone());
                Ok(())
            };
            new.attach(&self.space, parts, keep)
                .or_else(|e| self.remove_queue::<E>(live).and(Err(e)))
        })
    }

    /// Also the error path of [`Port::map_queue`].
    fn remove_queue<E: Engine>(&self, live: &mut Live) -> Result {
        self.waiter.forget();
        for (_, mapping) in live.mappings.iter().filter(|(queue, _)| *queue) {
            mapping.revoke();
        }
        live.mappings.retain(|(queue, _)| !*queue);
        let vpid = live.vpid();
        if let Some(queue) = live.queue.as_ref() {
            self.nic().withdraw(BqRegs(E::UNIT).ub(vpid), |hw| {
                E::disable(hw, vpid);
                E::drain(hw, vpid, queue.slots());
                Queue::remove(E::UNIT, vpid, hw);
            });
        }
        live.queue = None;
        self.nic().alive_access().map(drop).ok_or(ENODEV)
    }
}
