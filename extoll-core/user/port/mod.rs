// SPDX-License-Identifier: GPL-2.0-only

//! What `/dev/extoll/velo2` and `/dev/extoll/rma2` have in common: a VPID with its queue, its mappings and its
//! interrupt.
//!
//! Lock order: address space of the caller, [`UserPort::live`], content of a mapping. No lock is held that
//! `mmap` takes while user memory is touched.

mod map;

use super::{
    policy::{Rights, Share},
    put, put_u64,
    throttle::UserWatch,
    Shared,
};
use crate::{
    atu::TableAccount,
    dma::DmaWords,
    hw::Hw,
    nic::Nic,
    port::{Owner, PortCore, PortUnit},
    queue::{Layout, Queue},
    stats::Opener,
    vpid::Want,
};
use kernel::{
    fs::File,
    ioctl::{_IOR, _IOW},
    prelude::*,
    static_lock_class,
    sync::{
        atomic::{Atomic, Relaxed},
        poll::PollTable,
        Arc, Mutex,
    },
    transmute::AsBytes,
};
use kernel_ext::{
    barrier,
    chardev::{Mapping, Space, POLL_GONE, POLL_IN},
    security::LockedPages,
};
use wire::{
    bq::{Rp, SlotCode, WritePointers},
    ids::{BusAddr, Vpid},
    intake::initial,
    regs::BqRegs,
};

/// The lock checker compares names by address, and literals in generic code may be there more than once.
static CLOSING_NAME: &CStr = c"extoll_port_closing";
static LIVE_NAME: &CStr = c"extoll_port";

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

/// Mappings of one open file at a time, of which each costs kernel memory; all that there is to map, page by
/// page, twice.
const MOST_MAPPINGS: usize = 128;

/// The VPID of a process's port. Whoever makes translations for it holds on to it.
pub(crate) type Lease<U> = PortCore<U, Option<Share>>;

/// Sizes of a queue in bytes, as the process set them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sizes {
    pub(super) bytes: u64,
    pub(super) segment: u64,
}

/// Default sizes (HW §7).
const DEFAULT_SIZES: Sizes = Sizes {
    bytes: 2 << 20,
    segment: 64 << 10,
};

/// The queue of a process: memory that it maps and consumes itself. What it writes there harms only itself:
/// the kernel reads nothing but status words, to answer poll and to see whether it is full.
pub(super) struct UserQueue {
    queue: Queue<Arc<DmaWords>>,
    _charge: LockedPages,
}

impl UserQueue {
    /// Allocates zeroed memory, charged to the calling process. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: see [`Layout::new`]. `ENOMEM`: no memory, or a limit exceeded. `ENODEV`.
    fn new<U: PortUnit>(lease: &Lease<U>, slot: SlotCode, sizes: Sizes) -> Result<Self> {
        let layout = Layout::new(slot, sizes.bytes, sizes.segment)?;
        let charge = LockedPages::charge((sizes.bytes / BusAddr::PAGE_SIZE) as usize)?;
        let queue = lease
            .ctx()
            .with_bound(|dev| Queue::accounted(dev, U::UNIT, lease.vpid(), layout))??;
        Ok(Self {
            queue,
            _charge: charge,
        })
    }

    pub(super) fn slots(&self) -> u32 {
        self.queue.slots()
    }

    /// The slot before another one.
    pub(super) fn before(&self, slot: u32) -> u32 {
        slot.checked_sub(1).unwrap_or(initial(self.slots()))
    }

    /// Status word of a slot; 0 outside of the queue.
    pub(super) fn status(&self, slot: u32) -> u64 {
        self.queue.status(slot)
    }
}

/// An open port.
pub(super) struct Live<U: PortUnit> {
    lease: Arc<Lease<U>>,
    sizes: Sizes,
    queue: Option<Arc<UserQueue>>,
    /// The process had the requester mapped.
    requester: bool,
    /// Mappings, and whether they are of the queue.
    mappings: KVec<(bool, Arc<Mapping>)>,
    /// Number of mappings at which unused ones are forgotten.
    prune_at: usize,
}

impl<U: PortUnit> Live<U> {
    pub(super) fn vpid(&self) -> Vpid {
        self.lease.vpid()
    }

    pub(super) fn lease(&self) -> &Arc<Lease<U>> {
        &self.lease
    }

    /// Slots of the queue, 0 without.
    pub(super) fn slots(&self) -> u32 {
        self.queue.as_ref().map_or(0, |q| q.slots())
    }

    pub(super) fn sizes(&mut self) -> &mut Sizes {
        &mut self.sizes
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

/// The port of one open file.
#[pin_data]
pub(super) struct UserPort<U: PortUnit> {
    pub(super) shared: Arc<Shared>,
    pub(super) rights: Rights,
    space: Arc<Space>,
    watch: Arc<UserWatch>,
    /// Address tables that memory of an unprivileged user may lie in.
    tables: Option<Arc<TableAccount>>,
    /// Slot that poll looks at.
    armed: Atomic<u32>,
    slot: SlotCode,
    /// One closes at a time, so that the second finds everything closed.
    #[pin]
    closing: Mutex<()>,
    #[pin]
    live: Mutex<Option<Live<U>>>,
}

impl<U: PortUnit> UserPort<U> {
    /// Takes the VPID that has been free for longest; it stays disabled until it has a queue. `pages`: requester
    /// pages that the file can map, as bits.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there is none, `EDQUOT` if the user has too many, `EPERM` if users like this one have none,
    /// `ENOMEM`, `ENODEV`.
    pub(super) fn open(
        shared: &Arc<Shared>,
        unit: &Arc<U>,
        rights: Rights,
        space: &Arc<Space>,
        slot: SlotCode,
        pages: u32,
    ) -> Result<impl PinInit<Self, Error>> {
        rights.admit()?;
        let account = || shared.nic.atu().account();
        let share = shared.quota.take(U::UNIT, rights, account)?;
        let budget = share.as_ref().map(|share| share.budget().clone());
        let tables = share.as_ref().map(|share| share.tables().clone());
        let opener = Opener {
            pid: current!().tgid(),
            uid: rights.uid,
        };
        let owner = Owner::Process {
            opener,
            protection: rights.protection(),
            pages,
        };
        let lease = PortCore::claim(unit, Want::Any, owner, share)?;
        let base = unit.base();
        let stats = lease.stats().clone();
        let watch = UserWatch::new(base, lease.vpid(), shared.settings, stats, budget)?;
        watch.listen()?;
        let live = Live {
            lease,
            sizes: DEFAULT_SIZES,
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
            watch,
            tables,
            armed: Atomic::new(0),
            slot,
            closing <- Mutex::new((), CLOSING_NAME, static_lock_class!()),
            live <- Mutex::new(Some(live), LIVE_NAME, static_lock_class!()),
        }))
    }

    pub(super) fn tables(&self) -> Option<&Arc<TableAccount>> {
        self.tables.as_ref()
    }

    pub(super) fn nic(&self) -> &Arc<Nic> {
        &self.shared.nic
    }

    /// Calls `f` with the port while it is certainly open; `ENODEV` after the NIC is gone. `f` must not touch
    /// user memory.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut Live<U>) -> Result<R>) -> Result<R> {
        let mut guard = self.live.lock();
        f((*guard).as_mut().ok_or(ENODEV)?)
    }

    /// As [`UserPort::with`], with the registers; `f` must not sleep.
    pub(super) fn with_hw<R>(&self, f: impl FnOnce(&Hw, &Live<U>) -> Result<R>) -> Result<R> {
        self.with(|live| {
            let hw = self.nic().alive_access().ok_or(ENODEV)?;
            f(&hw, live)
        })
    }

    /// Closes: takes the pages from all processes, clears what they left in the requester, disables the VPID,
    /// calls `revoke` to revoke translations and whatever else others have of the VPID, removes the queue, waits
    /// for commands that are not executed, frees memory. When it returns that is done, whoever did it. May sleep.
    pub(super) fn close(&self, revoke: impl FnOnce()) {
        let _closing = self.closing.lock();
        let Some(live) = self.live.lock().take() else {
            return;
        };
        for (_, mapping) in &live.mappings {
            mapping.revoke();
        }
        self.watch.stop();
        if live.requester {
            barrier::wmb_everywhere();
        }
        // While the VPID is enabled, so that the command for it is no error.
        let settled = !live.requester || live.lease.is_settled();
        live.lease
            .stop(live.queue.as_ref().map(|q| &q.queue), revoke);
        live.lease.finish(live.requester, settled);
        drop(live);
    }

    /// Takes all mappings from all processes, as the NIC is lost; the port stays open until it is closed. May sleep.
    pub(super) fn revoke(&self) {
        // One that closes has its mappings already, and takes them itself.
        let _closing = self.closing.lock();
        for (_, mapping) in self.live.lock().iter().flat_map(|live| &live.mappings) {
            mapping.revoke();
        }
    }

    /// Sets size of queue or segment: any whole number of pages, checked when the queue is made.
    pub(super) fn set_size(
        &self,
        f: impl FnOnce(&mut Sizes) -> &mut u64,
        bytes: usize,
    ) -> Result<isize> {
        let bytes = bytes as u64;
        if bytes % BusAddr::PAGE_SIZE != 0 {
            return Err(EFAULT);
        }
        self.with(|live| {
            *f(live.sizes()) = bytes;
            Ok(0)
        })
    }

    /// Stores what `f` computes from the registers.
    pub(super) fn get(&self, arg: usize, f: impl FnOnce(&Hw, &Live<U>) -> u64) -> Result<isize> {
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

    pub(super) fn lwp(hw: &Hw, live: &Live<U>) -> u64 {
        let word = hw.rf.read(BqRegs(U::UNIT).wp_lwp_dcq_rp(live.vpid()));
        WritePointers(word).lwp().into()
    }

    pub(super) fn lrp(hw: &Hw, live: &Live<U>) -> u64 {
        Rp(hw.rf.read(BqRegs(U::UNIT).rp(live.vpid()))).lrp().into()
    }

    /// Sets the write pointer, which has to lie in the queue: `EFAULT`.
    pub(super) fn set_lwp(&self, arg: usize) -> Result<isize> {
        self.with_hw(|hw, live| {
            let slot = u32::try_from(arg).map_err(|_| EFAULT)?;
            if slot != 0 && slot >= live.slots() {
                return Err(EFAULT);
            }
            let reg = BqRegs(U::UNIT).wp_lwp_dcq_rp(live.vpid());
            hw.rf.update(reg, |v| WritePointers(v).with_lwp(slot).raw());
            Ok(0)
        })
    }

    /// Writes the raw read pointer, as the process itself can.
    pub(super) fn set_rp(&self, arg: usize) -> Result<isize> {
        self.with(|_| self.watch.store_rp(Rp(arg as u64)).map(|()| 0))
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
            // The process freed slots by stores that have to be seen first.
            barrier::wmb();
            let holds = self.watch.arm(slot, queue)?;
            Ok((holds || queue.status(slot) != 0).into())
        })
    }

    /// Readable when the slot that was armed last holds something.
    pub(super) fn poll(&self, file: &File, table: PollTable<'_>) -> u32 {
        table.register_wait(file, &self.watch.changed);
        if !self.nic().is_alive() {
            return POLL_GONE;
        }
        match self.live.lock().as_ref() {
            None => POLL_GONE,
            Some(Live { queue: Some(q), .. }) => {
                let holds = || q.status(self.armed.load(Relaxed)) != 0;
                if holds() || (self.watch.renew() && (holds() || self.watch.is_stuck())) {
                    POLL_IN
                } else {
                    0
                }
            }
            Some(_) => 0,
        }
    }
}
