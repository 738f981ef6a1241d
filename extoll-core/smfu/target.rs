// SPDX-License-Identifier: GPL-2.0-only

//! Local memory that peers access through the SMFU: the exported memory, and targets of single
//! intervals.
//!
//! The unit knows the base of a target, but not its length. If a peer's interval is longer than the
//! target, the peer can access the memory after the target, unless an IOMMU prevents it.
//!
//! The spinlock `target_table`, which disables interrupts, protects the targets.

use super::Smfu;
use crate::{dma::DmaWords, hw::Hw, pool_pages::PoolPages};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{Delta, Instant, Monotonic},
};
use kernel_ext::{leased::LeasedDevice, pci::is_translated};
use protocol::nic::smfu::{TargetError, Targets};
use wire::{ids::BusAddr, regs::smfu, smfu::PAGE};

fn refused(e: TargetError) -> Error {
    match e {
        TargetError::Invalid => EINVAL,
        TargetError::Taken | TargetError::Overlaps => EBUSY,
        TargetError::TooHigh => ERANGE,
        TargetError::Interrupts => EIO,
    }
}

/// Targets of a NIC.
pub(super) struct TargetTable {
    pub(super) targets: KBox<Targets>,
    interrupts_closed: bool,
    /// Ends of the hold-off times, by interval number. Until then a number is not reused, and its
    /// base is invalid.
    held_off: KVec<Option<Instant<Monotonic>>>,
}

impl TargetTable {
    pub(super) fn new() -> Result<Self> {
        let targets = KBox::new(Targets::new(), GFP_KERNEL)?;
        Ok(Self {
            targets,
            interrupts_closed: false,
            held_off: KVec::from_elem(None, smfu::INTERVALS as usize, GFP_KERNEL)?,
        })
    }

    /// Frees numbers whose hold-off time has passed.
    fn end_hold_off(&mut self, now: Instant<Monotonic>) {
        for (number, until) in self.held_off.iter_mut().enumerate() {
            if until.is_some_and(|until| (now - until).as_nanos() >= 0) {
                *until = None;
                self.targets.close(number as u32);
            }
        }
    }

    /// Writes the base of an interval.
    fn write(&self, hw: &Hw, number: u32) {
        let base = self.targets.base(number, self.interrupts_closed);
        hw.rf.write(smfu::vpid_t_start_addr(number), base.0);
    }

    /// Writes the bases of all intervals, because the meaning of base 0 is unknown (G18).
    pub(super) fn write_all(&self, hw: &Hw) {
        for number in 0..smfu::INTERVALS {
            self.write(hw, number);
        }
    }

    fn set_interrupts_closed(&mut self, hw: &Hw, closed: bool) {
        self.interrupts_closed = closed;
        self.targets.interrupts().for_each(|n| self.write(hw, n));
    }
}

/// Memory that can be opened to other nodes, with the object that keeps it allocated.
pub enum TargetMemory {
    /// Coherent memory of this NIC, in whole pages. All of it is opened, and kept while it is open.
    Memory(Arc<DmaWords>),
    /// Memory behind an IOMMU, with the I/O addresses that follow it. It is kept while it is open.
    Pages(Arc<PoolPages>),
    /// Registers or memory of a device that another host drives. The caller closes the target
    /// before the device is withdrawn.
    Bar {
        /// Device that is leased to the other host.
        device: Arc<LeasedDevice>,
        /// Number of the BAR. All of it is opened, in whole pages.
        bar: usize,
    },
}

enum Proof {
    #[allow(dead_code)] // Held for its drop, never read.
    Memory(Arc<DmaWords>),
    #[allow(dead_code)] // Held for its drop, never read.
    Pages(Arc<PoolPages>),
    #[allow(dead_code)] // Held for its drop, never read.
    Bar(Arc<LeasedDevice>),
    Nothing,
}

/// Local memory that interval `number` of other nodes reaches, instead of the exported memory. Drop
/// closes the target, and peers cannot access it afterwards. Drop may sleep.
pub struct Target {
    smfu: Arc<Smfu>,
    number: u32,
    base: BusAddr,
    bytes: u64,
    closed: bool,
    _proof: Proof,
}

impl Smfu {
    /// Opens memory to all nodes that point an interval `number` (1…62) to this node. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an invalid number, memory of another NIC, or memory that does not consist of
    /// whole pages. `EBUSY` if the number is in use or part of the memory is already open. `ERANGE`
    /// for addresses above 2^48. `EIO` for addresses that raise interrupts. `EOPNOTSUPP` for a BAR
    /// if an IOMMU translates the NIC's addresses. `ENODEV`.
    pub fn target(self: &Arc<Self>, number: u32, memory: TargetMemory) -> Result<Target> {
        let (base, bytes, proof) = match memory {
            TargetMemory::Memory(memory) => {
                if !memory.is_of(self.ctx.device()) {
                    return Err(EINVAL);
                }
                let bytes = memory.words() as u64 * 8;
                (memory.address(), bytes, Proof::Memory(memory))
            }
            TargetMemory::Pages(pages) => {
                if !pages.is_of(self.ctx.device()) {
                    return Err(EINVAL);
                }
                let bytes = pages.all_bytes() as u64;
                (pages.address(), bytes, Proof::Pages(pages))
            }
            TargetMemory::Bar { device, bar } => {
                let region = device.bars().get(bar).copied().flatten();
                let region = region.filter(|_| device.is_usable()).ok_or(EINVAL)?;
                if self.ctx.with_bound(|dev| is_translated(dev))? {
                    return Err(EOPNOTSUPP);
                }
                if region.bytes < PAGE && region.bus % PAGE != 0 {
                    // The BAR's page also contains registers of other BARs.
                    return Err(EINVAL);
                }
                let bytes = region.bytes.max(PAGE);
                (BusAddr(region.bus), bytes, Proof::Bar(device))
            }
        };
        self.open(number, base, bytes, proof, |t| t.open(number, base, bytes))
    }

    /// Opens an interrupt target. Stores by nodes that point an interval `number` (1…62) to this
    /// node then raise interrupts, which are delivered to [`crate::nic::Nic::subscribe_messages`].
    /// If they are too frequent, all interrupt targets are closed for a second. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an invalid number; `EBUSY` if it is in use; `ENODEV`.
    pub fn interrupt_target(self: &Arc<Self>, number: u32) -> Result<Target> {
        let base = BusAddr(BusAddr::INTERRUPTS.start);
        self.open(number, base, PAGE, Proof::Nothing, |t| {
            t.open_interrupts(number)
        })
    }

    /// Allocates memory for devices of other nodes, followed by I/O addresses for pages that are
    /// mapped one by one. Both sizes are in bytes and multiples of the page size. Returns `None` if
    /// no IOMMU translates for the NIC. May sleep.
    ///
    /// # Errors
    ///
    /// The errors of [`PoolPages`].
    pub fn pool_pages(&self, bytes: usize, pages: usize) -> Result<Option<Arc<PoolPages>>> {
        PoolPages::new(&self.ctx, bytes, pages)
    }

    /// Returns a bitmap of the free interval numbers (1…62): bit *n* stands for number *n*. Any
    /// context.
    pub fn free_targets(&self) -> u64 {
        let mut target_table = self.target_table.lock();
        target_table.end_hold_off(Instant::now());
        target_table.targets.free_numbers()
    }

    /// Reserves all free numbers, because peers may still point intervals to targets of an earlier
    /// owner. Accesses to reserved numbers reach no memory. May sleep.
    ///
    /// # Errors
    ///
    /// `ENODEV`, `ENOMEM`.
    pub fn hold_free_targets(self: &Arc<Self>) -> Result<KVec<ClosedTarget>> {
        let mut held = KVec::with_capacity(smfu::INTERVALS as usize, GFP_KERNEL)?;
        let hw = self.ctx.alive_access().ok_or(ENODEV)?;
        let mut target_table = self.target_table.lock();
        target_table.end_hold_off(Instant::now());
        for number in 1..smfu::INTERVALS {
            if !target_table.targets.hold(number) {
                continue;
            }
            target_table.write(&hw, number);
            let target = ClosedTarget {
                smfu: self.clone(),
                number,
            };
            if held.push_within_capacity(target).is_err() {
                // Cannot happen: the vector has capacity for all numbers.
                break;
            }
        }
        Ok(held)
    }

    fn open(
        self: &Arc<Self>,
        number: u32,
        base: BusAddr,
        bytes: u64,
        proof: Proof,
        open: impl FnOnce(&mut Targets) -> Result<(), TargetError>,
    ) -> Result<Target> {
        let hw = self.ctx.alive_access().ok_or(ENODEV)?;
        let mut target_table = self.target_table.lock();
        target_table.end_hold_off(Instant::now());
        open(&mut target_table.targets).map_err(refused)?;
        target_table.write(&hw, number);
        drop(target_table);
        drop(hw);
        Ok(Target {
            smfu: self.clone(),
            number,
            base,
            bytes,
            closed: false,
            _proof: proof,
        })
    }

    /// Closes all interrupt targets for a while. Any context.
    pub(crate) fn close_interrupts(&self, hw: &Hw) {
        self.target_table.lock().set_interrupts_closed(hw, true);
    }

    /// Reopens all interrupt targets. Any context.
    pub(crate) fn open_interrupts(&self, hw: &Hw) {
        self.target_table.lock().set_interrupts_closed(hw, false);
    }
}

impl Target {
    /// Returns the number of the interval.
    pub fn interval(&self) -> u32 {
        self.number
    }

    /// Returns the bus address of the first byte, as the NIC uses it.
    pub fn base(&self) -> BusAddr {
        self.base
    }

    /// Returns the size in bytes. Intervals of peers must not be longer, because the hardware does
    /// not check their length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Target {
    /// Closes the target, but keeps its number reserved. When this function returns, peers cannot
    /// access the memory, although they may still have intervals with that number. May sleep.
    pub fn close_keep_number(mut self) -> ClosedTarget {
        self.leave(|targets, number| targets.disable(number));
        let number = ClosedTarget {
            smfu: self.smfu.clone(),
            number: self.number,
        };
        self.closed = true;
        number
    }

    fn leave(&self, change: impl Fn(&mut Targets, u32)) {
        let (smfu, number) = (&self.smfu, self.number);
        let base = smfu::vpid_t_start_addr(number);
        let mut done = false;
        // Writes that arrived before are in memory when this call returns.
        smfu.ctx.revoke_confirmed(base, |hw| {
            let mut target_table = smfu.target_table.lock();
            change(&mut target_table.targets, number);
            target_table.write(hw, number);
            done = true;
        });
        if !done {
            // The device was removed, so its register cannot be written.
            change(&mut smfu.target_table.lock().targets, number);
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.closed {
            self.leave(|targets, number| targets.close(number));
        }
    }
}

/// Reserved number of a closed target. Drop frees the number.
pub struct ClosedTarget {
    smfu: Arc<Smfu>,
    number: u32,
}

impl ClosedTarget {
    /// Keeps the number reserved for `time` from now on, instead of freeing it at once. Any
    /// context.
    pub fn hold_off(self, time: Delta) {
        let until = Instant::<Monotonic>::now() + time;
        let mut target_table = self.smfu.target_table.lock();
        if let Some(slot) = target_table.held_off.get_mut(self.number as usize) {
            *slot = Some(until);
        }
    }
}

impl ClosedTarget {
    /// Returns the number of the interval.
    pub fn interval(&self) -> u32 {
        self.number
    }
}

impl Drop for ClosedTarget {
    fn drop(&mut self) {
        let smfu = &self.smfu;
        let hw = smfu.ctx.alive_access();
        let mut target_table = smfu.target_table.lock();
        let held_off = target_table.held_off.get(self.number as usize);
        if held_off.copied().flatten().is_some() {
            return;
        }
        target_table.targets.close(self.number);
        if let Some(hw) = &hw {
            target_table.write(hw, self.number);
        }
    }
}
