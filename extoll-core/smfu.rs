// SPDX-License-Identifier: GPL-2.0-only

//! Shared memory functional unit (SMFU): loads from and stores to memory of other nodes (HW §12).
//!
//! BAR 2 is the window. Its first 32 MiB are interval 0, which accesses remote register files
//! ([`crate::rra`]). The remainder is divided into intervals ([`Window`]), i.e. address ranges that
//! each point to one node. An access to an interval reaches the memory that the node has opened for
//! *the same interval number* ([`Target`]). If there is no such target, it reaches the node's
//! exported memory.
//!
//! **Ordering.** The PCIe order applies from end to end for accesses of one CPU to one node. Stores
//! arrive in program order, and a load completes after all earlier stores have arrived (HW §12).
//! Accesses to different nodes are not ordered. Nor are accesses by the window and accesses by RMA,
//! VELO or the register file. A write-combining mapping delays stores until [`RemoteMemory::flush`]
//! or a load.
//!
//! **Time-outs.** A load that is not answered returns all ones, sets `timeout_ERR` and raises
//! trigger event 12. [`RemoteMemory::read`] distinguishes such a load from data. Stores are not
//! answered, so the loss of a store is not detected.
//!
//! **Locks.** The mutex `state` (exported memory, layout of the window, mappings; process context),
//! and the spinlocks `target_table` (targets) and `flag` (time-out register), which disable
//! interrupts.

mod memory;
mod target;
mod window;

use crate::{context::Context, dma::DmaWords, hw::Hw, stats::Reason};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Full},
        new_spinlock_irq, Arc, Mutex, SpinLockIrq,
    },
};
use memory::IoMapping;
use protocol::nic::smfu::WindowAllocator;
use target::TargetTable;
use wire::{
    ids::{BusAddr, CpuAddr, NodeId, RegOffset},
    regs::{
        np,
        smfu::{
            self, IntervalControl, StatusControl, TimeoutControl, RRA_WINDOW, TRAFFIC_CLASS_INIT,
        },
    },
    smfu::{Span, UNMAPPED_BASE},
};

pub use crate::mmio::Word;
pub use memory::{AccessError, Caching, RemoteMemory};
pub use target::{ClosedTarget, Target, TargetMemory};
pub use window::{Window, WindowSpec};

/// Maximum size of exported memory in KiB: 1 GiB.
pub const MAX_KIB: u32 = 1 << 20;
/// Minimum size of exported memory in KiB. If less can be allocated, no memory is exported.
const MIN_TARGET_KIB: u32 = 64;

/// SMFU of one NIC.
#[pin_data]
pub struct Smfu {
    ctx: Arc<Context>,
    /// Configured size of exported memory in KiB.
    target_kib: u32,
    #[pin]
    state: Mutex<State>,
    #[pin]
    target_table: SpinLockIrq<TargetTable>,
    /// Number of time-outs so far. Incremented before the flag in the register is cleared.
    timeouts: Atomic<u64>,
    /// Held while the time-out flag is read and cleared.
    #[pin]
    flag: SpinLockIrq<()>,
}

struct State {
    exported: Option<Arc<DmaWords>>,
    allocator: KBox<WindowAllocator>,
    mapped: KVec<Arc<IoMapping>>,
    closed: bool,
}

/// Sets up an interval: control, start and end (HW §13). `base` is the bus address of the window.
fn write_interval(hw: &Hw, base: u64, number: u32, node: NodeId, span: Span) {
    hw.rf.write(
        smfu::interval_control(number),
        IntervalControl::to_node(node).raw(),
    );
    hw.rf
        .write(smfu::interval_startaddr(number), base + span.start);
    hw.rf.write(smfu::interval_endaddr(number), base + span.end);
}

/// Part of the window that points to remote register files.
const REGISTERS: Span = Span {
    start: 0,
    end: RRA_WINDOW,
};

impl Smfu {
    /// Allocates the unit's state. `target_kib` is the size of exported memory in KiB, 0 for none.
    /// May sleep.
    #[inline(never)] // Keeps its stack frame out of later calls.
    pub(crate) fn new(ctx: Arc<Context>, window_bytes: u64, target_kib: u32) -> Result<Arc<Self>> {
        let state = State {
            exported: None,
            allocator: KBox::new(WindowAllocator::new(window_bytes), GFP_KERNEL)?,
            mapped: KVec::new(),
            closed: false,
        };
        let target_table = TargetTable::new()?;
        Arc::pin_init(
            pin_init!(Self {
                ctx,
                target_kib,
                state <- new_mutex!(state, "extoll_smfu"),
                target_table <- new_spinlock_irq!(target_table, "extoll_smfu_targets"),
                timeouts: Atomic::new(0),
                flag <- new_spinlock_irq!((), "extoll_smfu_flag"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the number of time-outs so far.
    pub(crate) fn timeouts(&self) -> u64 {
        self.timeouts.load(Acquire)
    }

    /// Checks whether the unit reports a time-out. If so, counts it, clears the flag by writing 1
    /// (HW §12), and returns true. Any context.
    pub(crate) fn check_timeout(&self, hw: &Hw) -> bool {
        {
            // The lock prevents a second write of 1, which could set the flag that another CPU has
            // cleared.
            let _alone = self.flag.lock();
            let control = TimeoutControl(hw.rf.read(smfu::TIMEOUT_CONTROL));
            if !control.timeout_err() {
                return false;
            }
            self.timeouts.fetch_add(1, Full);
            hw.rf.write(smfu::TIMEOUT_CONTROL, control.raw());
        }
        self.ctx.error(Reason::SmfuTimeout, self.timeouts());
        true
    }

    /// Returns an error if a load that returned all ones failed. `before` is the number of
    /// time-outs before the load.
    fn failed(&self, hw: &Hw, before: u64) -> Result<(), AccessError> {
        if self.ctx.check_removed(hw, u64::MAX) {
            return Err(AccessError::Down);
        }
        // The flag is checked first, because it is cleared only after its time-out was counted.
        if self.check_timeout(hw) || self.timeouts() != before {
            return Err(AccessError::TimedOut);
        }
        Ok(())
    }

    /// Points interval 0 to a node, in the order of HW §13. Any context.
    pub(crate) fn point_rra(&self, node: NodeId) -> Option<()> {
        let hw = self.ctx.alive_access()?;
        write_interval(&hw, hw.windows.bus.smfu.0, 0, node, REGISTERS);
        Some(())
    }

    /// Loads a register of the node that interval 0 points to. Any context.
    pub(crate) fn rra_load(&self, offset: RegOffset) -> Result<u64, AccessError> {
        let before = self.timeouts();
        let hw = self.ctx.alive_access().ok_or(AccessError::Down)?;
        let at = offset.get() as usize;
        let value = u64::load(&hw.remote_rf, at).ok_or(AccessError::Outside)?;
        if value == u64::MAX {
            self.failed(&hw, before)?;
        }
        Ok(value)
    }

    /// Stores to a register of the node that interval 0 points to. Any context.
    pub(crate) fn rra_store(&self, offset: RegOffset, value: u64) -> Result<(), AccessError> {
        let hw = self.ctx.alive_access().ok_or(AccessError::Down)?;
        let at = offset.get() as usize;
        value.store(&hw.remote_rf, at).ok_or(AccessError::Outside)
    }

    /// Allocates the exported memory and sets the unit up (HW §3.6). May sleep.
    pub(crate) fn init(&self) -> Result {
        let exported = self.allocate()?;
        let hw = self.ctx.access().ok_or(ENODEV)?;
        let window = hw.windows.bus.smfu.0;
        {
            // Bases of an earlier driver could point to memory that has a new owner. Base 0 is not
            // safe either, because it may mean the default base or physical address 0 (G18).
            let mut target_table = self.target_table.lock();
            if let Some(memory) = &exported {
                let bytes = memory.words() as u64 * 8;
                let done = target_table.targets.export(memory.address(), bytes);
                done.map_err(|_| ERANGE)?;
            }
            target_table.write_all(&hw);
            hw.rf.write(smfu::O_START_ADDR, window);
            let default = target_table.targets.default_base();
            hw.rf.write(smfu::T_START_ADDR_DEFAULT, default.0);
        }
        hw.rf.write(smfu::ADDR_MASK, 0);
        hw.rf.write(smfu::TRAFFIC_CLASS, TRAFFIC_CLASS_INIT);
        hw.rf.write(np::general(np::SMFU), np::GENERAL_INIT);
        let on = StatusControl(0).with_enable(true);
        hw.rf.write(smfu::STATUS_CONTROL, on.raw());
        for i in 0..smfu::INTERVALS - 1 {
            hw.rf.write(smfu::interval_startaddr(i), 0);
            hw.rf.write(smfu::interval_endaddr(i), 0);
            hw.rf.write(smfu::interval_control(i), 0);
        }
        // Interval 0 points to remote register files.
        write_interval(&hw, window, 0, NodeId(0), REGISTERS);
        drop(hw);
        self.state.lock().exported = exported;
        Ok(())
    }

    /// Allocates the exported memory. Halves the size until the allocation succeeds at addresses
    /// that the unit supports.
    fn allocate(&self) -> Result<Option<Arc<DmaWords>>> {
        let mut kib = self.target_kib.checked_next_power_of_two().unwrap_or(0);
        while kib >= MIN_TARGET_KIB {
            let words = kib as usize * 128;
            let memory = self.ctx.with_bound(|dev| DmaWords::new(dev, words))?;
            let fits = |m: &DmaWords| m.address().0 + words as u64 * 8 < smfu::ADDRESS_END;
            if let Some(memory) = memory.ok().filter(fits) {
                return Ok(Some(Arc::new(memory, GFP_KERNEL)?));
            }
            kib /= 2;
            self.ctx.error(Reason::Memory, u64::from(kib));
        }
        Ok(None)
    }

    /// Disables the unit, so that peers can no longer access the exported memory.
    pub(crate) fn stop(&self) {
        let Some(hw) = self.ctx.alive_access() else {
            return;
        };
        hw.rf.write(smfu::STATUS_CONTROL, 0);
        for i in 0..smfu::INTERVALS - 1 {
            hw.rf.write(smfu::interval_control(i), 0);
        }
        for i in 0..smfu::INTERVALS {
            hw.rf.write(smfu::vpid_t_start_addr(i), UNMAPPED_BASE.0);
        }
        hw.rf.write(np::general(np::SMFU), 0);
        hw.rf.write(smfu::T_START_ADDR_DEFAULT, UNMAPPED_BASE.0);
    }

    /// Returns the bus address and the size in bytes of the exported memory. May sleep.
    pub fn exported(&self) -> Option<(BusAddr, usize)> {
        self.with_exported(|m| (m.address(), m.words() * 8))
    }

    /// Calls `f` with the exported memory, which stays allocated while `f` runs. May sleep.
    pub fn with_exported<R>(&self, f: impl FnOnce(&DmaWords) -> R) -> Option<R> {
        self.exported_memory().map(|m| f(&m))
    }

    /// Returns the exported memory. The caller drops it before the NIC is unbound. May sleep.
    pub(crate) fn exported_memory(&self) -> Option<Arc<DmaWords>> {
        self.state.lock().exported.clone()
    }

    /// Returns the CPU address and the size in bytes of the whole window. Its first 32 MiB point to
    /// remote register files and must not be mapped for unprivileged users. Any context.
    pub fn whole_window(&self) -> Option<(CpuAddr, u64)> {
        let hw = self.ctx.alive_access()?;
        Some((hw.windows.cpu.smfu, hw.windows.bus.smfu_size))
    }

    /// Returns the CPU address of the window.
    fn window_start(&self) -> Option<u64> {
        Some(self.whole_window()?.0 .0)
    }

    /// Returns the address of the window for other devices of this host.
    fn window_bus(&self) -> Option<u64> {
        let hw = self.ctx.alive_access()?;
        Some(hw.windows.bus.smfu.0)
    }

    /// Frees the exported memory after the unit was stopped.
    pub(crate) fn free_exported(&self) {
        let memory = self.state.lock().exported.take();
        drop(memory);
    }
}
