// SPDX-License-Identifier: GPL-2.0-only

//! Intervals of the window. Each interval points to another node.

use super::{
    memory::{Caching, IoMapping, RemoteMemory},
    write_interval, Smfu,
};
use crate::{hw::Hw, quirks};
use kernel::{
    prelude::*,
    sync::{
        atomic::{AtomicFlag, Relaxed},
        Arc, UniqueArc,
    },
    time::delay::fsleep,
};
use protocol::nic::smfu::WindowError;
use wire::{
    ids::{BusAddr, CpuAddr, NodeId},
    regs::smfu,
    smfu::{Span, PAGE},
};

fn refused(e: WindowError) -> Error {
    match e {
        WindowError::Invalid => EINVAL,
        WindowError::Taken => EBUSY,
        WindowError::Full => ENOSPC,
    }
}

/// Interval that is programmed into the hardware. Dropping the last handle or mapping resets the
/// hardware and may sleep.
///
/// Stores to the window and register writes take different paths in the chip, so reading a register
/// does not flush stores. Only a load through the same part of the window does (HW §12). Drop
/// therefore makes such a load before it resets the hardware, and ignores the result.
pub(super) struct Route {
    smfu: Arc<Smfu>,
    /// Number of the interval.
    number: u32,
    /// Set if a store may have been made through the interval.
    stored: AtomicFlag,
    /// Page mapping, and offset in it of the quadword that drop loads.
    probe: Option<(Arc<IoMapping>, usize)>,
}

impl Route {
    /// Makes the route for interval `number` at `span`. Drop loads the quadword at byte `probe` of
    /// the interval. On an error the caller frees the interval. May sleep.
    fn new(smfu: &Arc<Smfu>, number: u32, span: Span, probe: Option<u64>) -> Result<Arc<Self>> {
        let place = UniqueArc::new_uninit(GFP_KERNEL)?;
        let probe = match probe {
            Some(at) => {
                let page = at & !(PAGE - 1);
                let mapping = smfu.map_io(span.start + page, PAGE, false)?;
                Some((mapping, (at - page) as usize & !7))
            }
            None => None,
        };
        // No errors follow. After this line, drop resets the hardware.
        let route = place.write(Self {
            smfu: smfu.clone(),
            number,
            stored: AtomicFlag::new(false),
            probe,
        });
        Ok(route.into())
    }

    pub(super) fn smfu(&self) -> &Arc<Smfu> {
        &self.smfu
    }

    /// Records that a store may be made through the interval. Any context.
    #[inline]
    pub(super) fn note_store(&self) {
        if !self.stored.load(Relaxed) {
            self.stored.store(true, Relaxed);
        }
    }
}

fn clear_interval(hw: &Hw, number: u32) {
    hw.rf.write(smfu::interval_control(number), 0);
    hw.rf.write(smfu::interval_startaddr(number), 0);
    hw.rf.write(smfu::interval_endaddr(number), 0);
}

impl Drop for Route {
    fn drop(&mut self) {
        let smfu = &self.smfu;
        if self.stored.load(Relaxed) {
            // Flush the CPUs' write-combining buffers first.
            kernel_ext::barrier::wmb_everywhere();
            match &self.probe {
                Some((mapping, at)) => smfu.push_stores(mapping, *at),
                None => fsleep(quirks::SMFU_STORE_TIME),
            }
        }
        if let Some((mapping, _)) = &self.probe {
            smfu.unmap_io(mapping);
        }
        if let Some(hw) = smfu.ctx.alive_access() {
            clear_interval(&hw, self.number);
        }
        smfu.state.lock().allocator.free(self.number);
    }
}

/// Specification of a window.
///
/// ```no_run
/// # use extoll_core::{nic::Nic, smfu::{Caching, WindowSpec}};
/// # use kernel::prelude::*;
/// # use wire::ids::NodeId;
/// # fn example(nic: &Nic) -> Result {
/// // Maps a BAR of 1 MiB of a device behind node 5, naturally aligned.
/// let spec = WindowSpec::new(NodeId(5), 1 << 20).natural();
/// let window = nic.smfu().window(spec)?;
/// let id: u32 = window.map(Caching::Uncached)?.read(0)?;
/// # let _ = id;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct WindowSpec {
    node: NodeId,
    bytes: u64,
    interval: Option<u32>,
    natural: bool,
    probe: Option<u64>,
}

impl WindowSpec {
    /// Makes a specification for a window of `bytes` bytes, a multiple of 4096, that points to
    /// `node`.
    pub fn new(node: NodeId, bytes: u64) -> Self {
        Self {
            node,
            bytes,
            interval: None,
            natural: false,
            probe: Some(0),
        }
    }

    /// Requests interval `number` (1…62), which selects the base at the target. By default the
    /// lowest free number is used.
    pub fn interval(mut self, number: u32) -> Self {
        self.interval = Some(number);
        self
    }

    /// Requests natural alignment: the size is a power of two, and the address is a multiple of the
    /// size.
    pub fn natural(mut self) -> Self {
        self.natural = true;
        self
    }

    /// Sets the offset of the quadword that is loaded before the window is reset. The default is 0.
    /// Choose another offset if reading the first quadword of the target has a side effect.
    pub fn probe(mut self, offset: u64) -> Self {
        self.probe = Some(offset);
        self
    }

    /// Disables the load before the reset, for a target that must not be read, for example
    /// [interrupts](Smfu::interrupt_target). Drop then waits five milliseconds instead. No source
    /// states that this is long enough for stores in flight.
    pub fn no_probe(mut self) -> Self {
        self.probe = None;
        self
    }
}

/// Interval that points to a node. It is freed when the window and its mappings are dropped. The
/// last drop may sleep.
pub struct Window {
    route: Arc<Route>,
    span: Span,
    node: NodeId,
}

impl Smfu {
    /// Allocates an interval and points it to a node. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an invalid size, number or node; `EBUSY` if the number is in use; `ENOSPC` if
    /// the window is full; `ENOMEM`; `ENODEV`.
    pub fn window(self: &Arc<Self>, spec: WindowSpec) -> Result<Window> {
        let power = spec.bytes.is_power_of_two();
        let align = if spec.natural { spec.bytes } else { PAGE };
        let inside = spec.probe.is_none_or(|at| at < spec.bytes);
        if spec.node.is_reserved() || !inside || (spec.natural && !power) {
            return Err(EINVAL);
        }
        let mut state = self.state.lock();
        let reserved = state.allocator.reserve(spec.bytes, align, spec.interval);
        drop(state);
        let (number, span) = reserved.map_err(refused)?;
        let route = Route::new(self, number, span, spec.probe)
            .inspect_err(|_| self.state.lock().allocator.free(number))?;
        // After this line, an error frees the interval by dropping `window`.
        let window = Window {
            route,
            span,
            node: spec.node,
        };
        let hw = self.ctx.alive_access().ok_or(ENODEV)?;
        write_interval(&hw, hw.windows.bus.smfu.0, number, spec.node, span);
        drop(hw);
        Ok(window)
    }

    /// Returns a bitmap of the free interval numbers (1…62): bit *n* stands for number *n*. May
    /// sleep.
    pub fn free_windows(&self) -> u64 {
        self.state.lock().allocator.free_numbers()
    }
}

impl Window {
    /// Returns the node that the window points to.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Returns the number of the interval, which selects the base at the target.
    pub fn interval(&self) -> u32 {
        self.route.number
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.span.bytes()
    }

    /// Returns the offset in bytes in BAR 2.
    pub fn offset(&self) -> u64 {
        self.span.start
    }

    /// Returns the physical address for CPUs, which can be mapped for example into user space;
    /// `None` after the device was removed. Such mappings must be removed before the window is
    /// dropped.
    pub fn physical(&self) -> Option<CpuAddr> {
        self.route.note_store();
        let start = self.route.smfu().window_start()?;
        Some(CpuAddr(start + self.span.start))
    }

    /// Returns the bus address for other devices of this host, which can access the node without
    /// the CPU; `None` after the device was removed. The devices must stop using it before the
    /// window is dropped.
    pub fn bus(&self) -> Option<BusAddr> {
        self.route.note_store();
        let start = self.route.smfu().window_bus()?;
        Some(BusAddr(start + self.span.start))
    }

    /// Disconnects the window from the node. Its addresses may still be in use, and stay reserved
    /// until the window is dropped. The effect of later accesses is unknown: they may access the
    /// memory that node 0 exports (G18), or return all ones. Any context.
    pub fn disconnect(&self) {
        if let Some(hw) = self.route.smfu().ctx.alive_access() {
            clear_interval(&hw, self.route.number);
        }
    }

    /// Maps the window into the kernel's address space. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `ENODEV`.
    pub fn map(&self, caching: Caching) -> Result<RemoteMemory> {
        RemoteMemory::new(&self.route, self.span.start, self.span.bytes(), caching)
    }
}
