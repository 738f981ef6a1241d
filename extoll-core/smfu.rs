// SPDX-License-Identifier: GPL-2.0-only

//! Shared memory functional unit: loads and stores that reach memory of other nodes (HW §12).
//!
//! BAR 2 is the window. Its first 32 MiB are interval 0 and lead to remote register files ([`crate::rra`]). In the rest
//! a [`Window`] is an interval: an address range that leads to one node, where the access goes to the base that the
//! target has set for *the same interval number* ([`Target`]), else to its exported memory. [`Masked`] is the other mode: the
//! node is part of the address.
//!
//! **Ordering.** The PCIe order holds from end to end for accesses of one processor to one node: stores arrive in the order
//! in which they were made, and a load comes back after all earlier stores have arrived (HW §12). Nothing is ordered
//! between nodes, nor between the window and RMA, VELO or the register file. A write-combining mapping delays stores until
//! [`Mapping::flush`] or a load.
//!
//! **Time-outs.** A load that is not answered gives all ones, sets `timeout_ERR` and raises trigger event 12. [`Mapping::read`]
//! tells such a load from data; for a store there is no answer, so that a lost store goes unnoticed by its maker.

use crate::{dma::DmaWords, hw::Hw, mmio::Remote, nic::Nic, rra::RraError, stats::Reason};
use kernel::{
    new_mutex,
    prelude::*,
    revocable::Revocable,
    sync::{
        atomic::{Acquire, Atomic, Full},
        new_spinlock_irq, Arc, Mutex, SpinLockIrq,
    },
};
use wire::{
    ids::{BusAddr, NodeId, RegOffset},
    regs::{
        np,
        smfu::{
            self, IntervalControl, StatusControl, TimeoutControl, RRA_WINDOW, TRAFFIC_CLASS_INIT,
        },
    },
    smfu::{Layout, MaskMode, Refused, Span},
};

pub use crate::mmio::Word;

/// Most memory that can be exported, in KiB: 1 GiB.
pub const MOST_KIB: u32 = 1 << 20;
/// Smallest exported memory worth having, in KiB.
const MIN_TARGET_KIB: u32 = 64;
/// Where accesses of other nodes go while no memory is exported: 90 TiB, where no machine has memory or devices. The unit has no switch
/// for them alone, and base 0 would be the beginning of all physical memory.
const NOWHERE: BusAddr = BusAddr(0x5A00_0000_0000);

/// State of a NIC's unit.
#[pin_data]
pub(crate) struct Smfu {
    #[pin]
    state: Mutex<State>,
    /// Time-outs seen; grows before the flag in the register is cleared.
    timeouts: Atomic<u64>,
    /// Taken to look at that flag.
    #[pin]
    flag: SpinLockIrq<()>,
}

struct State {
    exported: Option<Arc<DmaWords>>,
    layout: KBox<Layout>,
    /// Bit n: the target base of interval n is set by a [`Target`].
    targets: u64,
    mapped: KVec<Arc<Mapped>>,
    closed: bool,
}

/// A mapping, revoked when the device goes.
#[pin_data]
struct Mapped {
    #[pin]
    io: Revocable<Remote>,
}

impl Smfu {
    pub(crate) fn new(window_bytes: u64) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            state <- {
                let layout = KBox::new(Layout::new(window_bytes), GFP_KERNEL)?;
                let (exported, targets, mapped) = (None, 0, KVec::new());
                new_mutex!(State { exported, layout, targets, mapped, closed: false }, "extoll_smfu")
            },
            timeouts: Atomic::new(0),
            flag <- new_spinlock_irq!((), "extoll_smfu_flag"),
        })
    }

    /// Time-outs so far.
    pub(crate) fn timeouts(&self) -> u64 {
        self.timeouts.load(Acquire)
    }

    /// If the unit reports a time-out: counts it and clears the flag by writing 1 (HW §12). Any context.
    pub(crate) fn take_timeout(&self, nic: &Nic, hw: &Hw) -> bool {
        {
            // Writing 1 to a flag that somebody else has cleared would set it again.
            let _alone = self.flag.lock();
            let control = TimeoutControl(hw.rf.read(smfu::TIMEOUT_CONTROL));
            if !control.timeout_err() {
                return false;
            }
            self.timeouts.fetch_add(1, Full);
            hw.rf.write(smfu::TIMEOUT_CONTROL, control.raw());
        }
        nic.error(Reason::SmfuTimeout, self.timeouts());
        true
    }

    /// Whether all ones mean that the access failed; `before`: time-outs before it.
    fn failed(&self, nic: &Arc<Nic>, hw: &Hw, before: u64) -> Result<(), AccessError> {
        if nic.is_gone(hw, u64::MAX) {
            return Err(AccessError::Down);
        }
        // The order matters: who clears the flag has counted before.
        if self.take_timeout(nic, hw) || self.timeouts() != before {
            return Err(AccessError::TimedOut);
        }
        Ok(())
    }

    /// Points interval 0 at a node, in the order of HW §13.
    pub(crate) fn point_rra(&self, nic: &Nic, node: NodeId) -> Option<()> {
        let hw = nic.alive_access()?;
        let start = hw.windows.smfu.0;
        let span = Span {
            start: 0,
            end: RRA_WINDOW,
        };
        write_interval(&hw, start, 0, node, span);
        Some(())
    }

    /// Loads a register of the node that interval 0 points at; the flag: no store is under way afterwards.
    pub(crate) fn rra_load(
        &self,
        nic: &Arc<Nic>,
        offset: RegOffset,
    ) -> Result<(u64, bool), RraError> {
        let before = self.timeouts();
        let hw = nic.alive_access().ok_or(RraError::Down)?;
        let value = u64::load(&hw.remote_rf, offset.get() as usize).ok_or(RraError::BadOffset)?;
        if value == u64::MAX {
            self.failed(nic, &hw, before)?;
        }
        Ok((value, false))
    }

    /// Stores to a register of the node that interval 0 points at.
    pub(crate) fn rra_store(
        &self,
        nic: &Arc<Nic>,
        offset: RegOffset,
        value: u64,
    ) -> Result<((), bool), RraError> {
        let hw = nic.alive_access().ok_or(RraError::Down)?;
        value
            .store(&hw.remote_rf, offset.get() as usize)
            .ok_or(RraError::BadOffset)?;
        Ok(((), true))
    }

    /// Revokes all mappings and waits for their users; no more are made.
    pub(crate) fn unmap_all(&self) {
        let mapped = {
            let mut state = self.state.lock();
            state.closed = true;
            core::mem::take(&mut state.mapped)
        };
        for m in &mapped {
            m.io.revoke();
        }
    }

    /// Frees the exported memory; the unit was stopped.
    pub(crate) fn free_exported(&self) {
        let memory = self.state.lock().exported.take();
        drop(memory);
    }
}

/// Sets an interval: control, start, end (HW §13). `base`: physical address of the window.
fn write_interval(hw: &Hw, base: u64, number: u32, node: NodeId, span: Span) {
    hw.rf.write(
        smfu::interval_control(number),
        IntervalControl::to_node(node).raw(),
    );
    hw.rf
        .write(smfu::interval_startaddr(number), base + span.start);
    hw.rf.write(smfu::interval_endaddr(number), base + span.end);
}

fn clear_interval(hw: &Hw, number: u32) {
    hw.rf.write(smfu::interval_control(number), 0);
    hw.rf.write(smfu::interval_startaddr(number), 0);
    hw.rf.write(smfu::interval_endaddr(number), 0);
}

/// Allocates the exported memory and sets the unit up (HW §3.6).
pub(crate) fn init(nic: &Arc<Nic>) -> Result {
    let target = allocate(nic)?
        .map(|memory| Arc::new(memory, GFP_KERNEL))
        .transpose()?;
    let hw = nic.access().ok_or(ENODEV)?;
    let window = hw.windows.smfu.0;
    // What an earlier owner left would lead peers to memory that is somebody else's by now.
    for i in 0..smfu::INTERVALS {
        hw.rf.write(smfu::vpid_t_start_addr(i), 0);
    }
    hw.rf.write(smfu::O_START_ADDR, window);
    hw.rf.write(
        smfu::T_START_ADDR_DEFAULT,
        target.as_ref().map_or(NOWHERE, |t| t.address()).0,
    );
    hw.rf.write(smfu::ADDR_MASK, 0);
    hw.rf.write(smfu::TRAFFIC_CLASS, TRAFFIC_CLASS_INIT);
    hw.rf.write(np::general(np::SMFU), np::GENERAL_INIT);
    hw.rf.write(
        smfu::STATUS_CONTROL,
        StatusControl(0).with_enable(true).raw(),
    );
    for i in 0..smfu::INTERVALS - 1 {
        hw.rf.write(smfu::interval_startaddr(i), 0);
        hw.rf.write(smfu::interval_endaddr(i), 0);
        hw.rf.write(smfu::interval_control(i), 0);
    }
    // Interval 0: the remote register file.
    let span = Span {
        start: 0,
        end: RRA_WINDOW,
    };
    write_interval(&hw, window, 0, NodeId(0), span);
    drop(hw);
    nic.smfu.state.lock().exported = target;
    Ok(())
}

/// Halves the size until memory is found.
fn allocate(nic: &Arc<Nic>) -> Result<Option<DmaWords>> {
    let mut kib = nic
        .params
        .smfu_target_kib
        .checked_next_power_of_two()
        .unwrap_or(0);
    while kib >= MIN_TARGET_KIB {
        if let Ok(memory) = nic.with_bound(|dev| DmaWords::new(dev, kib as usize * 128))? {
            return Ok(Some(memory));
        }
        kib /= 2;
        nic.error(Reason::Memory, u64::from(kib));
    }
    Ok(None)
}

/// Switches the unit off, so that nobody reaches the exported memory.
pub(crate) fn stop(nic: &Nic) {
    let Some(hw) = nic.alive_access() else { return };
    hw.rf.write(smfu::STATUS_CONTROL, 0);
    for i in 0..smfu::INTERVALS - 1 {
        hw.rf.write(smfu::interval_control(i), 0);
    }
    for i in 0..smfu::INTERVALS {
        hw.rf.write(smfu::vpid_t_start_addr(i), 0);
    }
    hw.rf.write(np::general(np::SMFU), 0);
    hw.rf.write(smfu::T_START_ADDR_DEFAULT, NOWHERE.0);
}

/// Why remote memory was not accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessError {
    /// Outside the window, or not aligned to its size.
    Outside,
    /// The target did not answer; or, seldom, a load of all ones was under way while another access timed out.
    TimedOut,
    /// The device is gone or unbound.
    Down,
}

impl From<AccessError> for Error {
    fn from(e: AccessError) -> Error {
        match e {
            AccessError::Outside => EFAULT,
            AccessError::TimedOut => ETIMEDOUT,
            AccessError::Down => ENODEV,
        }
    }
}

impl From<AccessError> for RraError {
    fn from(e: AccessError) -> RraError {
        match e {
            AccessError::Outside => RraError::BadOffset,
            AccessError::TimedOut => RraError::TimedOut,
            AccessError::Down => RraError::Down,
        }
    }
}

fn refused(e: Refused) -> Error {
    match e {
        Refused::Invalid => EINVAL,
        Refused::Taken => EBUSY,
        Refused::Full => ENOSPC,
    }
}

/// The memory that this node exports: address for the NIC and size in bytes. May sleep.
pub fn exported(nic: &Nic) -> Option<(BusAddr, usize)> {
    with_exported(nic, |m| (m.address(), m.words() * 8))
}

/// Calls `f` with the memory that this node exports, which stays while `f` runs; it may sleep.
pub fn with_exported<R>(nic: &Nic, f: impl FnOnce(&DmaWords) -> R) -> Option<R> {
    exported_memory(nic).map(|m| f(&m))
}

/// The memory that this node exports; to be dropped before the NIC is unbound. May sleep.
pub(crate) fn exported_memory(nic: &Nic) -> Option<Arc<DmaWords>> {
    nic.smfu.state.lock().exported.clone()
}

/// The whole window: physical address and size in bytes. The first 32 MiB lead to remote register files and must not be given to
/// unprivileged users. Any context.
pub fn window(nic: &Nic) -> Option<(u64, u64)> {
    let hw = nic.alive_access()?;
    Some((hw.windows.smfu.0, hw.windows.smfu_size))
}

/// What the hardware was set to; set back by the drop, when the last handle and mapping are gone.
struct Held {
    nic: Arc<Nic>,
    what: What,
}

enum What {
    Interval(u32),
    Mask,
}

impl Drop for Held {
    fn drop(&mut self) {
        // Stores that a processor still combines, or that are on their way, go to the present node and not to that of the next owner.
        kernel_ext::barrier::wmb_everywhere();
        let mut state = self.nic.smfu.state.lock();
        let hw = self.nic.alive_access();
        if let Some(hw) = &hw {
            hw.rf.read(smfu::ADDR_MASK);
        }
        match self.what {
            What::Interval(number) => {
                if let Some(hw) = hw {
                    clear_interval(&hw, number);
                }
                state.layout.free(number);
            }
            What::Mask => {
                if let Some(hw) = hw {
                    hw.rf.write(smfu::ADDR_MASK, 0);
                    hw.rf.write(smfu::N_NODE_OFFSET, 0);
                }
                state.layout.clear_mask();
            }
        }
    }
}

/// `what` was set just now; an error sets it back.
fn hold(nic: &Arc<Nic>, what: What) -> Result<Arc<Held>> {
    let nic = nic.clone();
    Ok(Arc::new(Held { nic, what }, GFP_KERNEL)?)
}

/// A part of the window that leads to one node.
struct Part {
    held: Arc<Held>,
    span: Span,
}

impl Part {
    fn physical(&self) -> Option<u64> {
        Some(self.held.nic.alive_access()?.windows.smfu.0 + self.span.start)
    }

    fn map(&self, caching: Caching) -> Result<Mapping> {
        let phys = self.physical().ok_or(ENODEV)?;
        let bytes = self.span.bytes() as usize;
        let nic = &self.held.nic;
        // A mapping is made while the device is bound, and noted for the end of the binding.
        nic.with_bound(|_| {
            let remote = Remote::map(phys, bytes, caching == Caching::WriteCombining)?;
            let init = pin_init!(Mapped { io <- Revocable::new(remote) });
            let mapped = Arc::pin_init(init, GFP_KERNEL)?;
            let mut state = nic.smfu.state.lock();
            if state.closed {
                return Err(ENODEV);
            }
            state.mapped.push(mapped.clone(), GFP_KERNEL)?;
            Ok(Mapping {
                held: self.held.clone(),
                mapped,
            })
        })?
    }
}

/// How the kernel maps a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caching {
    /// Every access goes out at once.
    Uncached,
    /// Stores are merged and go out later.
    WriteCombining,
}

/// An interval that leads to a node; freed when it and its mappings are dropped. May sleep.
pub struct Window {
    part: Part,
    number: u32,
    node: NodeId,
}

impl Window {
    /// Takes an interval of `bytes`, a multiple of 4096, that leads to `node`: number `want` (1…62), or the lowest free one.
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for size, number or node; `EBUSY` if the number is taken; `ENOSPC` without room; `ENODEV`.
    pub fn new(nic: &Arc<Nic>, node: NodeId, bytes: u64, want: Option<u32>) -> Result<Self> {
        if node.is_reserved() {
            return Err(EINVAL);
        }
        let mut state = nic.smfu.state.lock();
        let hw = nic.alive_access().ok_or(ENODEV)?;
        let (number, span) = state.layout.reserve(bytes, want).map_err(refused)?;
        write_interval(&hw, hw.windows.smfu.0, number, node, span);
        drop(hw);
        drop(state);
        Ok(Self {
            part: Part {
                held: hold(nic, What::Interval(number))?,
                span,
            },
            number,
            node,
        })
    }

    /// Node it leads to.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Number of the interval, which selects the base at the target.
    pub fn interval(&self) -> u32 {
        self.number
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.part.span.bytes()
    }

    /// Offset in the window (BAR 2).
    pub fn offset(&self) -> u64 {
        self.part.span.start
    }

    /// Physical address for the CPU, to be mapped into user space; `None` when the device is gone.
    pub fn physical(&self) -> Option<u64> {
        self.part.physical()
    }

    /// Maps it for the kernel. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `ENODEV`.
    pub fn map(&self, caching: Caching) -> Result<Mapping> {
        self.part.map(caching)
    }
}

/// Mask mode, ended by the drop of it and its mappings: a range of the window in which the address contains the node.
pub struct Masked {
    held: Arc<Held>,
    mode: MaskMode,
}

impl Masked {
    /// Sets slices of `slice` bytes for nodes 0…`nodes` − 1, both powers of two. They lie at the start of the window: slices that
    /// meet its first 32 MiB cannot be used. Intervals go on working beyond them. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for sizes that do not fit the window, `EBUSY` if set already or an interval is in the way, `ENODEV`.
    pub fn new(nic: &Arc<Nic>, slice: u64, nodes: u32) -> Result<Self> {
        let mut state = nic.smfu.state.lock();
        let hw = nic.alive_access().ok_or(ENODEV)?;
        let mode = state.layout.set_mask(slice, nodes).map_err(refused)?;
        hw.rf.write(smfu::N_NODE_OFFSET, mode.shift());
        hw.rf.write(smfu::ADDR_MASK, mode.mask());
        drop(hw);
        drop(state);
        Ok(Self {
            held: hold(nic, What::Mask)?,
            mode,
        })
    }

    fn part(&self, node: NodeId) -> Result<Part> {
        Ok(Part {
            held: self.held.clone(),
            span: self.mode.slice(node).ok_or(ERANGE)?,
        })
    }

    /// Physical address for the CPU and size in bytes of a node's slice.
    ///
    /// # Errors
    ///
    /// `ERANGE` for a node without usable slice, `ENODEV`.
    pub fn physical(&self, node: NodeId) -> Result<(u64, u64)> {
        let part = self.part(node)?;
        Ok((part.physical().ok_or(ENODEV)?, part.span.bytes()))
    }

    /// Maps a node's slice for the kernel. May sleep.
    ///
    /// # Errors
    ///
    /// `ERANGE` for a node without usable slice, `ENOMEM`, `ENODEV`.
    pub fn map(&self, node: NodeId, caching: Caching) -> Result<Mapping> {
        self.part(node)?.map(caching)
    }
}

/// The base for what arrives with an interval number, instead of the exported memory; taken back by drop.
///
/// It opens memory to all other nodes: the address must stay mapped for the device as long as this exists, and for whatever size
/// the other side's interval has.
pub struct Target {
    nic: Arc<Nic>,
    number: u32,
}

impl Target {
    /// Sets the base for interval `number` (1…62). May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for the number or address 0, which means "the exported memory" (G18); `EIO` for an address that means an interrupt;
    /// `EBUSY` if it is set; `ENODEV`.
    pub fn new(nic: &Arc<Nic>, number: u32, base: BusAddr) -> Result<Self> {
        if !(1..wire::smfu::USABLE).contains(&number) || base.0 == 0 || !base.is_page() {
            return Err(EINVAL);
        }
        if base.meets_interrupts(1) {
            return Err(EIO);
        }
        let mut state = nic.smfu.state.lock();
        let hw = nic.alive_access().ok_or(ENODEV)?;
        if state.targets & 1 << number != 0 {
            return Err(EBUSY);
        }
        state.targets |= 1 << number;
        hw.rf.write(smfu::vpid_t_start_addr(number), base.0);
        drop(hw);
        Ok(Self {
            nic: nic.clone(),
            number,
        })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let mut state = self.nic.smfu.state.lock();
        // What arrived before is in memory when this returns.
        let base = smfu::vpid_t_start_addr(self.number);
        self.nic.withdraw(base, |hw| hw.rf.write(base, 0));
        state.targets &= !(1 << self.number);
    }
}

/// Remote memory as the kernel accesses it; unmapped by drop, and useless once the device is unbound. Accesses: any context, but a
/// load holds the processor until it is answered or timed out.
pub struct Mapping {
    held: Arc<Held>,
    mapped: Arc<Mapped>,
}

impl Mapping {
    /// Loads a word at byte `offset`.
    ///
    /// # Errors
    ///
    /// See [`AccessError`].
    pub fn read<T: Word>(&self, offset: usize) -> Result<T, AccessError> {
        let nic = &self.held.nic;
        let before = nic.smfu.timeouts();
        let hw = nic.alive_access().ok_or(AccessError::Down)?;
        let io = self.mapped.io.try_access().ok_or(AccessError::Down)?;
        let value = T::load(&io, offset).ok_or(AccessError::Outside)?;
        if value == T::ONES {
            nic.smfu.failed(nic, &hw, before)?;
        }
        Ok(value)
    }

    /// Stores a word at byte `offset`. Success says nothing about its arrival.
    ///
    /// # Errors
    ///
    /// `Outside`, `Down`.
    pub fn write<T: Word>(&self, offset: usize, value: T) -> Result<(), AccessError> {
        let io = self.mapped.io.try_access().ok_or(AccessError::Down)?;
        // Looked at by a reader of RCU, as `Nic::alive_access` does.
        if !self.held.nic.is_alive() {
            return Err(AccessError::Down);
        }
        value.store(&io, offset).ok_or(AccessError::Outside)
    }

    /// Copies remote memory at `offset`, by single loads of eight bytes where alignment allows.
    ///
    /// # Errors
    ///
    /// See [`AccessError`]; `out` is partly written then.
    pub fn read_bytes(&self, offset: usize, out: &mut [u8]) -> Result<(), AccessError> {
        offset.checked_add(out.len()).ok_or(AccessError::Outside)?;
        let mut i = 0;
        while i < out.len() {
            let at = offset + i;
            let aligned = at % 8 == 0;
            match out
                .get_mut(i..)
                .and_then(|rest| rest.first_chunk_mut::<8>())
            {
                Some(word) if aligned => {
                    *word = self.read::<u64>(at)?.to_le_bytes();
                    i += 8;
                }
                _ => {
                    let byte = self.read(at)?;
                    if let Some(place) = out.get_mut(i) {
                        *place = byte;
                    }
                    i += 1;
                }
            }
        }
        Ok(())
    }

    /// Copies `data` to remote memory at `offset`, ascending.
    ///
    /// # Errors
    ///
    /// `Outside`, `Down`; part may have been written then.
    pub fn write_bytes(&self, offset: usize, data: &[u8]) -> Result<(), AccessError> {
        offset.checked_add(data.len()).ok_or(AccessError::Outside)?;
        let mut i = 0;
        while let Some(byte) = data.get(i) {
            let at = offset + i;
            match data.get(i..).and_then(|rest| rest.first_chunk::<8>()) {
                Some(word) if at % 8 == 0 => {
                    self.write(at, u64::from_le_bytes(*word))?;
                    i += 8;
                }
                _ => {
                    self.write(at, *byte)?;
                    i += 1;
                }
            }
        }
        Ok(())
    }

    /// Sends stores that a write-combining mapping still holds.
    pub fn flush(&self) {
        kernel_ext::barrier::wmb();
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let mut state = self.held.nic.smfu.state.lock();
        state.mapped.retain(|m| !Arc::ptr_eq(m, &self.mapped));
    }
}
