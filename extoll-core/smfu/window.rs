// SPDX-License-Identifier: GPL-2.0-only

//! Parts of the window that lead to other nodes: intervals, and mask mode.

use super::{
    memory::{Caching, IoMapping, RemoteMemory},
    write_interval, Smfu,
};
use crate::hw::Hw;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{AtomicFlag, Relaxed},
        Arc, Mutex, UniqueArc,
    },
    time::{delay::fsleep, Delta},
};
use wire::{
    ids::{BusAddr, CpuAddr, NodeId},
    regs::smfu,
    smfu::{MaskMode, Refused, Span, PAGE},
};

/// Time for stores that nothing pushes.
const STORE_TIME: Delta = Delta::from_millis(5);
/// Nodes whose slices of mask mode are in use at once.
const SLICES: usize = 256;

fn refused(e: Refused) -> Error {
    match e {
        Refused::Invalid => EINVAL,
        Refused::Taken => EBUSY,
        Refused::Full => ENOSPC,
    }
}

/// Who has to know that a window goes.
pub trait WindowClient: Send + Sync {
    /// The device is gone, or will be unbound: when this returns nobody may use the window's
    /// addresses any more, so take them from whomever they were given to. Once; process context,
    /// may sleep. Must neither make nor drop windows; what drops one waits for this.
    fn revoked(&self);
}

struct Told {
    list: KVec<(u32, Arc<dyn WindowClient>)>,
    revoked: bool,
}

/// The clients of all windows of a NIC.
#[pin_data]
pub(super) struct Clients {
    #[pin]
    told: Mutex<Told>,
}

impl Clients {
    pub(super) fn new() -> impl PinInit<Self> {
        let told = Told {
            list: KVec::new(),
            revoked: false,
        };
        pin_init!(Self { told <- new_mutex!(told, "extoll_window_clients") })
    }

    fn add(&self, number: u32, client: &Option<Arc<dyn WindowClient>>) -> Result {
        let mut told = self.told.lock();
        if told.revoked {
            return Err(ENODEV);
        }
        if let Some(client) = client {
            told.list.push((number, client.clone()), GFP_KERNEL)?;
        }
        Ok(())
    }

    fn remove(&self, number: u32) {
        let old = {
            let list = &mut self.told.lock().list;
            let at = list.iter().position(|(n, _)| *n == number);
            at.and_then(|i| list.remove(i).ok())
        };
        // Its destructor runs without the lock.
        drop(old);
    }

    /// Tells all, once; no more windows are made.
    pub(super) fn revoke(&self) {
        let mut told = self.told.lock();
        told.revoked = true;
        for (_, client) in &told.list {
            client.revoked();
        }
        let old = core::mem::take(&mut told.list);
        drop(told);
        drop(old);
    }
}

enum What {
    Interval(u32),
    Mask,
}

/// Where to load: start of a slice or interval, mapping of a page, byte in it.
type Probe = (u64, Arc<IoMapping>, usize);

/// What the hardware was set to, so that a part of the window leads somewhere; set back by the
/// drop, when the last handle and mapping are gone. The drop may sleep.
///
/// Stores to the window and register writes take different ways in the chip, so that a register
/// read behind the stores does not push them: only a load through the same part does (HW §12). So
/// the drop makes one before the part leads elsewhere. Whether it is answered does not matter.
pub(super) struct Route {
    smfu: Arc<Smfu>,
    what: What,
    /// Something was stored since the hardware was set.
    stored: AtomicFlag,
    probes: Pin<KBox<Mutex<KVec<Probe>>>>,
}

impl Route {
    /// On an error the caller gives `what` back.
    fn new(smfu: &Arc<Smfu>, what: What) -> Result<Arc<Self>> {
        let place = UniqueArc::new_uninit(GFP_KERNEL)?;
        let probes = new_mutex!(KVec::new(), "extoll_smfu_probes");
        let probes = KBox::pin_init(probes, GFP_KERNEL)?;
        // Nothing fails any more: from here on the drop sets the hardware back.
        let route = place.write(Self {
            smfu: smfu.clone(),
            what,
            stored: AtomicFlag::new(false),
            probes,
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

    /// The drop will load the quadword at byte `at` of `span`. May sleep.
    fn probe(&self, span: Span, at: u64) -> Result {
        let mut probes = self.probes.lock();
        if probes.iter().any(|(start, _, _)| *start == span.start) {
            return Ok(());
        }
        if probes.len() >= SLICES {
            return Err(ENOSPC);
        }
        probes.reserve(1, GFP_KERNEL)?;
        let page = at & !(PAGE - 1);
        let mapping = self.smfu.map_io(span.start + page, PAGE, false)?;
        let byte = (at - page) as usize & !7;
        Ok(probes.push((span.start, mapping, byte), GFP_KERNEL)?)
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
        let probes = core::mem::take(&mut *self.probes.lock());
        if self.stored.load(Relaxed) {
            // Out of the processors first.
            kernel_ext::barrier::wmb_everywhere();
            for (_, mapping, at) in &probes {
                smfu.push_stores(mapping, *at);
            }
            if probes.is_empty() {
                fsleep(STORE_TIME);
            }
        }
        for (_, mapping, _) in &probes {
            smfu.unmap_io(mapping);
        }
        let hw = smfu.ctx.alive_access();
        match self.what {
            What::Interval(number) => {
                if let Some(hw) = hw {
                    clear_interval(&hw, number);
                }
                smfu.state.lock().layout.free(number);
            }
            What::Mask => {
                if let Some(hw) = hw {
                    hw.rf.write(smfu::ADDR_MASK, 0);
                    hw.rf.write(smfu::N_NODE_OFFSET, 0);
                }
                smfu.state.lock().layout.clear_mask();
            }
        }
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
    client: Option<Arc<dyn WindowClient>>,
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
            client: None,
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

    /// Tells `client` before the window goes with the device.
    pub fn on_revoke(mut self, client: Arc<dyn WindowClient>) -> Self {
        self.client = Some(client);
        self
    }
}

/// An interval that leads to a node; freed when it and its mappings are dropped. May sleep.
pub struct Window {
    route: Arc<Route>,
    span: Span,
    number: u32,
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
        let route = Route::new(self, What::Interval(number))
            .inspect_err(|_| self.state.lock().layout.free(number))?;
        // From here on an error gives the interval back.
        if let Some(at) = spec.probe {
            route.probe(span, at)?;
        }
        self.clients.add(number, &spec.client)?;
        let window = Window {
            route,
            span,
            number,
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

    /// Sets slices of `slice` bytes for nodes 0…`nodes` − 1, both powers of two. They lie at the
    /// start of the window: slices that meet its first 32 MiB cannot be used. Intervals go on
    /// working beyond them. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for sizes that do not fit the window, `EBUSY` if set already or an interval is in
    /// the way, `ENOMEM`, `ENODEV`.
    pub fn masked(self: &Arc<Self>, slice: u64, nodes: u32) -> Result<Masked> {
        let mode = self.state.lock().layout.set_mask(slice, nodes);
        let mode = mode.map_err(refused)?;
        let route =
            Route::new(self, What::Mask).inspect_err(|_| self.state.lock().layout.clear_mask())?;
        let masked = Masked { route, mode };
        let hw = self.ctx.alive_access().ok_or(ENODEV)?;
        hw.rf.write(smfu::N_NODE_OFFSET, mode.shift());
        hw.rf.write(smfu::ADDR_MASK, mode.mask());
        drop(hw);
        Ok(masked)
    }

    /// Tells the clients of all windows that these go; no more are made. May sleep.
    pub(crate) fn revoke_windows(&self) {
        self.clients.revoke();
    }
}

impl Window {
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
        self.span.bytes()
    }

    /// Offset in the window (BAR 2).
    pub fn offset(&self) -> u64 {
        self.span.start
    }

    /// Address for the processor, to be mapped elsewhere, e.g. into user space; `None` when the
    /// device is gone. Whoever maps it has to be gone before the window is dropped, and when its
    /// [client](WindowClient) has returned.
    pub fn physical(&self) -> Option<CpuAddr> {
        self.route.note_store();
        let start = self.route.smfu().window_start()?;
        Some(CpuAddr(start + self.span.start))
    }

    /// Address for other devices of this host, which reach the node by themselves; `None` when the
    /// device is gone. Whoever has it has to be gone before the window is dropped, and when its
    /// [client](WindowClient) has returned.
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
            clear_interval(&hw, self.number);
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

impl Drop for Window {
    fn drop(&mut self) {
        self.route.smfu().clients.remove(self.number);
    }
}

/// Mask mode, ended by the drop of it and its mappings: a range of the window in which the address
/// contains the node. The drop may sleep.
pub struct Masked {
    route: Arc<Route>,
    mode: MaskMode,
}

impl Masked {
    fn slice(&self, node: NodeId) -> Result<Span> {
        let span = self.mode.slice(node).ok_or(ERANGE)?;
        if span.bytes() >= PAGE {
            self.route.probe(span, 0)?;
        }
        Ok(span)
    }

    /// Address for the processor and size in bytes of a node's slice. May sleep.
    ///
    /// # Errors
    ///
    /// `ERANGE` for a node without usable slice, `ENOSPC` for the 257th node, `ENOMEM`, `ENODEV`.
    pub fn physical(&self, node: NodeId) -> Result<(CpuAddr, u64)> {
        let span = self.slice(node)?;
        self.route.note_store();
        let start = self.route.smfu().window_start().ok_or(ENODEV)?;
        Ok((CpuAddr(start + span.start), span.bytes()))
    }

    /// Maps a node's slice for the kernel. May sleep.
    ///
    /// # Errors
    ///
    /// As [`Masked::physical`].
    pub fn map(&self, node: NodeId, caching: Caching) -> Result<RemoteMemory> {
        let span = self.slice(node)?;
        RemoteMemory::new(&self.route, span.start, span.bytes(), caching)
    }
}
