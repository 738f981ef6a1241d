// SPDX-License-Identifier: GPL-2.0-only

//! Common part of `/dev/extoll/velo2` and `/dev/extoll/rma2`: a VPID with its queue, its mappings
//! and its interrupt.
//!
//! Process context. Lock order: mmap lock of the caller, [`UserPort::live`], lock of a mapping.
//! While user memory is accessed, no lock that `mmap` acquires is held.

mod map;

use super::{
    policy::{QuotaClaim, Rights},
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
    vpid::VpidRequest,
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
use protocol::nic::ring_consumer::initial;
use wire::{
    bq::{Rp, SlotCode, WritePointers},
    ids::{BusAddr, Vpid},
    regs::BqRegs,
};

/// These are statics, because lockdep compares names by address, and literals in generic code may
/// exist several times.
static CLOSING_NAME: &CStr = c"extoll_port_closing";
static LIVE_NAME: &CStr = c"extoll_port";

/// Version of this driver's extensions to the vendor's ABI.
const ABI_VERSION: u32 = 1;
const MAGIC: u32 = 0xE7;
const INFO: u32 = _IOR::<Info>(MAGIC, 0);
const ARM: u32 = _IOW::<u64>(MAGIC, 1);
const INFO_PRIVILEGED: u32 = 1;
const INFO_COMPAT: u32 = 2;
const INFO_UP: u32 = 4;
const INFO_MARKS: u32 = 8;

/// `struct extoll_info` of the ABI.
type Info = [u32; 12];

/// Maximum number of mappings per open file, because each mapping costs kernel memory. It suffices
/// to map every page separately and twice.
const MAX_MAPPINGS: usize = 128;

/// VPID of a process's port. Code that makes translations for the VPID holds a reference.
pub(crate) type UserVpid<U> = PortCore<U, Option<QuotaClaim>>;

/// Queue sizes in bytes, set by the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sizes {
    pub(super) bytes: u64,
    pub(super) segment: u64,
}

/// Default sizes of a queue (HW §7).
const DEFAULT_SIZES: Sizes = Sizes {
    bytes: 2 << 20,
    segment: 64 << 10,
};

/// Queue of a process. The process maps its memory and consumes it. Its contents can harm only that
/// process, because the kernel reads only status words, for poll and to detect a full queue.
pub(super) struct UserQueue {
    queue: Queue<Arc<DmaWords>>,
    _charge: LockedPages,
}

impl UserQueue {
    /// Allocates a queue of zeroed memory, charged to the calling process. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: see [`Layout::new`]. `ENOMEM`: memory is short, or a limit was exceeded. `ENODEV`.
    fn new<U: PortUnit>(user_vpid: &UserVpid<U>, slot: SlotCode, sizes: Sizes) -> Result<Self> {
        let layout = Layout::new(slot, sizes.bytes, sizes.segment)?;
        let charge = LockedPages::charge((sizes.bytes / BusAddr::PAGE_SIZE) as usize)?;
        let queue = user_vpid
            .ctx()
            .with_bound(|dev| Queue::accounted(dev, U::UNIT, user_vpid.vpid(), layout))??;
        Ok(Self {
            queue,
            _charge: charge,
        })
    }

    pub(super) fn slots(&self) -> u32 {
        self.queue.slots()
    }

    /// Returns the slot that precedes `slot`.
    pub(super) fn before(&self, slot: u32) -> u32 {
        slot.checked_sub(1).unwrap_or(initial(self.slots()))
    }

    /// Returns the status word of a slot; 0 if the slot is outside of the queue.
    pub(super) fn status(&self, slot: u32) -> u64 {
        self.queue.status(slot)
    }
}

/// State of a port that is open.
pub(super) struct OpenPort<U: PortUnit> {
    user_vpid: Arc<UserVpid<U>>,
    sizes: Sizes,
    queue: Option<Arc<UserQueue>>,
    /// True if the process has mapped the requester.
    requester: bool,
    /// Mappings. The flag is true for mappings of the queue.
    mappings: KVec<(bool, Arc<Mapping>)>,
    /// Number of mappings at which unused mappings are removed from the list.
    prune_at: usize,
}

impl<U: PortUnit> OpenPort<U> {
    pub(super) fn vpid(&self) -> Vpid {
        self.user_vpid.vpid()
    }

    pub(super) fn user_vpid(&self) -> &Arc<UserVpid<U>> {
        &self.user_vpid
    }

    /// Returns the number of slots of the queue; 0 if there is no queue.
    pub(super) fn slots(&self) -> u32 {
        self.queue.as_ref().map_or(0, |q| q.slots())
    }

    pub(super) fn sizes(&mut self) -> &mut Sizes {
        &mut self.sizes
    }

    fn keep(&mut self, queue: bool, mapping: Arc<Mapping>) -> Result {
        if self.mappings.len() >= self.prune_at {
            self.mappings.retain(|(_, m)| m.is_used());
            self.prune_at = (2 * self.mappings.len()).clamp(16, MAX_MAPPINGS);
        }
        if self.mappings.len() >= MAX_MAPPINGS {
            return Err(ENOMEM);
        }
        Ok(self.mappings.push((queue, mapping), GFP_KERNEL)?)
    }
}

/// Port of one open file.
#[pin_data]
pub(super) struct UserPort<U: PortUnit> {
    pub(super) shared: Arc<Shared>,
    pub(super) rights: Rights,
    space: Arc<Space>,
    watch: Arc<UserWatch>,
    /// Account of the user's address tables; `None` for a file with all rights.
    tables: Option<Arc<TableAccount>>,
    /// Slot whose status word `poll` checks.
    armed: Atomic<u32>,
    slot: SlotCode,
    /// Serializes closing, so that a second caller of `close` also returns only after everything is
    /// closed.
    #[pin]
    closing: Mutex<()>,
    #[pin]
    live: Mutex<Option<OpenPort<U>>>,
}

impl<U: PortUnit> UserPort<U> {
    /// Claims the VPID that has been free for longest. The VPID stays disabled until it has a
    /// queue. `pages` is a bitmap of the requester pages that the file can map.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if no VPID is free; `EDQUOT` if the user holds too many VPIDs; `EPERM` if the user
    /// is not admitted; `ENOMEM`; `ENODEV`.
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
        let claim = shared.quota.claim(U::UNIT, rights, account)?;
        let budget = claim.as_ref().map(|claim| claim.budget().clone());
        let tables = claim.as_ref().map(|claim| claim.tables().clone());
        let opener = Opener {
            pid: current!().tgid(),
            uid: rights.uid,
        };
        let owner = Owner::Process {
            opener,
            protection: rights.protection(),
            pages,
        };
        let user_vpid = PortCore::claim(unit, VpidRequest::Any, owner, claim)?;
        let base = unit.base();
        let stats = user_vpid.stats().clone();
        let watch = UserWatch::new(base, user_vpid.vpid(), shared.settings, stats, budget)?;
        watch.listen()?;
        let live = OpenPort {
            user_vpid,
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

    /// Calls `f` with the port while it is open. Returns `ENODEV` after the file was detached. `f`
    /// must not access user memory.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut OpenPort<U>) -> Result<R>) -> Result<R> {
        let mut guard = self.live.lock();
        f((*guard).as_mut().ok_or(ENODEV)?)
    }

    /// Calls `f` like [`UserPort::with`], with access to the registers. `f` must not sleep.
    pub(super) fn with_hw<R>(&self, f: impl FnOnce(&Hw, &OpenPort<U>) -> Result<R>) -> Result<R> {
        self.with(|live| {
            let hw = self.nic().alive_access().ok_or(ENODEV)?;
            f(&hw, live)
        })
    }

    /// Closes the port: unmaps its pages from all processes, clears the requester, disables the
    /// VPID, calls `revoke`, removes the queue, waits for pending commands, and frees the memory.
    /// `revoke` must end translations and other uses of the VPID. All is done when this function
    /// returns, even if another thread began it. May sleep.
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
        // Called while the VPID is enabled, because the port then accepts the command that it sends
        // to itself.
        let settled = !live.requester || live.user_vpid.wait_settled();
        live.user_vpid
            .stop(live.queue.as_ref().map(|q| &q.queue), revoke);
        live.user_vpid.finish(live.requester, settled);
        drop(live);
    }

    /// Unmaps all pages from all processes, because the NIC was lost. The port itself stays open.
    /// May sleep.
    pub(super) fn revoke(&self) {
        // A concurrent `close` has removed the mappings from the list and unmaps them itself.
        let _closing = self.closing.lock();
        for (_, mapping) in self.live.lock().iter().flat_map(|live| &live.mappings) {
            mapping.revoke();
        }
    }

    /// Sets the size in bytes of the queue or of a segment. It must be a multiple of the page size.
    /// Other limits are checked when the queue is made.
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

    /// Stores a value at address `arg` of the process. `f` computes it from the registers.
    pub(super) fn get(
        &self,
        arg: usize,
        f: impl FnOnce(&Hw, &OpenPort<U>) -> u64,
    ) -> Result<isize> {
        let value = self.with_hw(|hw, live| Ok(f(hw, live)))?;
        put_u64(arg, value)
    }

    /// Executes a setting for which the file needs all rights.
    pub(super) fn set(&self, f: impl FnOnce(&Hw, Vpid)) -> Result<isize> {
        self.rights.require_privilege()?;
        self.with_hw(|hw, live| {
            f(hw, live.vpid());
            Ok(0)
        })
    }

    pub(super) fn lwp(hw: &Hw, live: &OpenPort<U>) -> u64 {
        let word = hw.rf.read(BqRegs(U::UNIT).wp_lwp_dcq_rp(live.vpid()));
        WritePointers(word).lwp().into()
    }

    pub(super) fn lrp(hw: &Hw, live: &OpenPort<U>) -> u64 {
        Rp(hw.rf.read(BqRegs(U::UNIT).rp(live.vpid()))).lrp().into()
    }

    /// Sets the write pointer. Returns `EFAULT` if it is outside of the queue.
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

    /// Writes the raw value of the read pointer. The process can also write it by its mapping.
    pub(super) fn set_rp(&self, arg: usize) -> Result<isize> {
        self.with(|_| self.watch.store_rp(Rp(arg as u64)).map(|()| 0))
    }

    /// Executes the ioctls that this driver adds for both units. Returns `None` for other commands.
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
            // The process may have freed slots by stores, which must be visible first.
            barrier::wmb();
            let holds = self.watch.arm(slot, queue)?;
            Ok((holds || queue.status(slot) != 0).into())
        })
    }

    /// Reports the port as readable if the slot that was armed last is filled.
    pub(super) fn poll(&self, file: &File, table: PollTable<'_>) -> u32 {
        table.register_wait(file, &self.watch.changed);
        if !self.nic().is_alive() {
            return POLL_GONE;
        }
        match self.live.lock().as_ref() {
            None => POLL_GONE,
            Some(OpenPort { queue: Some(q), .. }) => {
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
