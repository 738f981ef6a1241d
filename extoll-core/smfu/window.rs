// SPDX-License-Identifier: GPL-2.0-only

//! Parts of the window that lead to other nodes: intervals.

use super::{
    memory::{Caching, IoMapping, RemoteMemory},
    write_interval, Smfu,
};
use crate::hw::Hw;
use kernel::{
    prelude::*,
    sync::{
        atomic::{AtomicFlag, Relaxed},
        Arc, UniqueArc,
    },
    time::{delay::fsleep, Delta},
};
use wire::{
    ids::{BusAddr, CpuAddr, NodeId},
    regs::smfu,
    smfu::{Refused, Span, PAGE},
};

/// Time for stores that nothing pushes.
const STORE_TIME: Delta = Delta::from_millis(5);
fn refused(e: Refused) -> Error {
    match e {
        Refused::Invalid => EINVAL,
        Refused::Taken => EBUSY,
        Refused::Full => ENOSPC,
    }
}

/// What the hardware was set to, so that a part of the window leads somewhere; set back by the
/// drop, when the last handle and mapping are gone. The drop may sleep.
///
/// Stores to the window and register writes take different ways in the chip, so that a register
/// read behind the stores does not push them: only a load through the same part does (HW §12). So
/// the drop makes one before the part leads elsewhere. Whether it is answered does not matter.
pub(super) struct Route {
    smfu: Arc<Smfu>,
    /// Number of the interval.
    number: u32,
    /// Something was stored since the hardware was set.
    stored: AtomicFlag,
    /// Mapping of a page, and offset of the quadword in it that the drop loads.
    probe: Option<(Arc<IoMapping>, usize)>,
}

impl Route {
    /// For interval `number` at `span`; the drop will load the quadword at byte `probe` of it. On an error the caller
    /// frees the interval. May sleep.
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
        // Nothing fails any more: from here on the drop sets the hardware back.
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

    /// Somebody stores, or may. Any context.
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
            // Out of the processors first.
            kernel_ext::barrier::wmb_everywhere();
            match &self.probe {
                Some((mapping, at)) => smfu.push_stores(mapping, *at),
                None => fsleep(STORE_TIME),
            }
        }
        if let Some((mapping, _)) = &self.probe {
            smfu.unmap_io(mapping);
        }
        if let Some(hw) = smfu.ctx.alive_access() {
            clear_interval(&hw, self.number);
        }
        smfu.state.lock().layout.free(self.number);
    }
}

/// What kind of window is wanted.
///
/// ```no_run
/// # use extoll_core::{nic::Nic, smfu::{Caching, WindowSpec}};
/// # use kernel::prelude::*;
/// # use wire::ids::NodeId;
/// # fn example(nic: &Nic) -> Result {
/// // A BAR of 1 MiB of a device behind node 5, at a multiple of its size.
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
    /// `bytes`, a multiple of 4096, that lead to `node`.
    pub fn new(node: NodeId, bytes: u64) -> Self {
        Self {
            node,
            bytes,
            interval: None,
            natural: false,
            probe: Some(0),
        }
    }

    /// Interval `number` (1…62), which selects the base at the target, instead of the lowest free
    /// one.
    pub fn interval(mut self, number: u32) -> Self {
        self.interval = Some(number);
        self
    }

    /// The size is a power of two, and the address a multiple of it.
    pub fn natural(mut self) -> Self {
        self.natural = true;
        self
    }

    /// Before the window leads elsewhere the quadword at byte `offset` is loaded, 0 without this.
    /// Choose another one if the target is no memory, and reading its first quadword has an effect.
    pub fn probe(mut self, offset: u64) -> Self {
        self.probe = Some(offset);
        self
    }

    /// Nothing is loaded before the window leads elsewhere, because the target must not be read, as
    /// of [interrupts](Smfu::interrupt_target). Five milliseconds go by instead, which no source
    /// promises to be enough for stores that are under way.
    pub fn no_probe(mut self) -> Self {
        self.probe = None;
        self
    }
}

/// An interval that leads to a node; freed when it and its mappings are dropped. May sleep.
pub struct Window {
    route: Arc<Route>,
    span: Span,
    node: NodeId,
}

impl Smfu {
    /// Takes an interval. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for size, number or node; `EBUSY` if the number is taken; `ENOSPC` without room;
    /// `ENOMEM`; `ENODEV`.
    pub fn window(self: &Arc<Self>, spec: WindowSpec) -> Result<Window> {
        let power = spec.bytes.is_power_of_two();
        let align = if spec.natural { spec.bytes } else { PAGE };
        let inside = spec.probe.is_none_or(|at| at < spec.bytes);
        if spec.node.is_reserved() || !inside || (spec.natural && !power) {
            return Err(EINVAL);
        }
        let mut state = self.state.lock();
        let reserved = state.layout.reserve(spec.bytes, align, spec.interval);
        drop(state);
        let (number, span) = reserved.map_err(refused)?;
        let route = Route::new(self, number, span, spec.probe)
            .inspect_err(|_| self.state.lock().layout.free(number))?;
        // From here on an error frees the interval.
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

    /// Numbers (1…62) of intervals that are free, as a set: bit *n* stands for number *n*. May sleep.
    pub fn free_windows(&self) -> u64 {
        self.state.lock().layout.free_numbers()
    }
}

impl Window {
    /// Node it leads to.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Number of the interval, which selects the base at the target.
    pub fn interval(&self) -> u32 {
        self.route.number
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.span.bytes()
    }

    /// Offset in the window (BAR 2).
    pub fn offset(&self) -> u64 {
        self.span.start
    }

    /// Address for the processor, to be mapped elsewhere, e.g. into user space; `None` when the
    /// device is gone. Whoever maps it has to be gone before the window is dropped.
    pub fn physical(&self) -> Option<CpuAddr> {
        self.route.note_store();
        let start = self.route.smfu().window_start()?;
        Some(CpuAddr(start + self.span.start))
    }

    /// Address for other devices of this host, which reach the node by themselves; `None` when the
    /// device is gone. Whoever has it has to be gone before the window is dropped.
    pub fn bus(&self) -> Option<BusAddr> {
        self.route.note_store();
        let start = self.route.smfu().window_bus()?;
        Some(BusAddr(start + self.span.start))
    }

    /// Has it lead to the node no more, though somebody may still access its addresses, which nobody
    /// else gets before the drop. What an access does is not told by any source: it may lead to the
    /// memory that node 0 exports (G18), or give all ones. Any context.
    pub fn cut(&self) {
        if let Some(hw) = self.route.smfu().ctx.alive_access() {
            clear_interval(&hw, self.route.number);
        }
    }

    /// Maps it for the kernel. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `ENODEV`.
    pub fn map(&self, caching: Caching) -> Result<RemoteMemory> {
        RemoteMemory::new(&self.route, self.span.start, self.span.bytes(), caching)
    }
}
