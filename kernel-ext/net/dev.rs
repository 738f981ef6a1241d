// SPDX-License-Identifier: GPL-2.0-only

//! The net device itself and its registration.

use super::{
    ethtool::EthtoolOps,
    ops::{self, Operations, TxQueue},
    stats::{BqlDone, BqlToken, PerCpuStats},
};
use crate::bindings;
use core::{marker::PhantomData, ops::Deref, ptr::NonNull};
use kernel::{
    device,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{Atomic, AtomicFlag, Relaxed},
        new_spinlock_irq, Arc, SpinLockIrq,
    },
};

/// Numbers the restarts of all transmit queues, so that a token fits one period of one device only.
static GENERATION: Atomic<u64> = Atomic::new(1);

/// Parameters of a new net device.
pub struct Config {
    /// Name with one `%d` for the number, at most 15 characters.
    pub name: &'static CStr,
    /// Smallest MTU that may be set (bytes, without the Ethernet header).
    pub min_mtu: u32,
    /// Largest MTU that may be set.
    pub max_mtu: u32,
    /// MTU at the start.
    pub mtu: u32,
    /// Length of the stack's transmit queue in frames.
    pub tx_queue_len: u32,
    /// Time after which a stopped transmit queue is reported by [`Operations::tx_timeout`], in ms.
    pub watchdog_ms: u32,
    /// Advertise that frames of TCP and UDP may be passed with an unfinished checksum.
    pub tx_csum: bool,
    /// Whether [`NetDev::takes_unfinished`] at first; the administrator may switch it.
    pub rx_csum: bool,
    /// Set `IFF_MULTICAST`.
    pub multicast: bool,
}

/// A net device without its driver data: everything that is safe to do from any context that holds
/// an `Arc` of it.
///
/// # Invariants
///
/// `ptr` comes from `extoll_net_alloc()` and is freed in `drop()` only. `live` is true from just
/// before registration until just before unregistration.
#[pin_data(PinnedDrop)]
pub struct NetDev {
    ptr: NonNull<bindings::net_device>,
    /// What the C object points to for as long as it exists, though it has a reference only while
    /// it is registered. Dropped after it was freed.
    parent: ARef<device::Device>,
    stats: PerCpuStats,
    claimed: Atomic<i32>,
    /// It has a NAPI instance.
    has_napi: AtomicFlag,
    #[pin]
    live: SpinLockIrq<bool>,
    #[pin]
    bql: SpinLockIrq<u64>,
}

// SAFETY: All uses of the C object go through functions that may be called on any CPU; see each of
// them.
unsafe impl Send for NetDev {}
// SAFETY: As above; what needs serialisation takes one of the locks.
unsafe impl Sync for NetDev {}

impl NetDev {
    /// Allocates a device that is not registered yet. `parent` is its parent in sysfs. May sleep.
    pub fn alloc(config: &Config, parent: &device::Device<device::Bound>) -> Result<Arc<Self>> {
        let c = bindings::extoll_net_config {
            name: config.name.as_char_ptr(),
            min_mtu: config.min_mtu,
            max_mtu: config.max_mtu,
            mtu: config.mtu,
            tx_queue_len: config.tx_queue_len,
            watchdog_ms: config.watchdog_ms,
            tx_csum: config.tx_csum,
            rx_csum: config.rx_csum,
            multicast: config.multicast,
        };
        let stats = PerCpuStats::new()?;
        let parent: ARef<device::Device> = parent.into();
        // CAST: `Device` is a transparent wrapper of `struct device`.
        let raw: *mut bindings::device = core::ptr::from_ref::<device::Device>(&parent)
            .cast_mut()
            .cast();
        // SAFETY: `c` and the name in it live across the call; `raw` is a valid device, to which
        // the result has a reference for as long as the C object exists.
        let ptr = NonNull::new(unsafe { bindings::extoll_net_alloc(&c, raw) }).ok_or(ENOMEM)?;
        Arc::pin_init(
            pin_init!(Self {
                ptr,
                parent,
                stats,
                claimed: Atomic::new(0),
                has_napi: AtomicFlag::new(false),
                live <- new_spinlock_irq!(false, "extoll_net_live"),
                bql <- new_spinlock_irq!(0, "extoll_net_bql"),
            }),
            GFP_KERNEL,
        )
        .inspect_err(|_| {
            // SAFETY: The device was allocated above, and its owner was not made.
            unsafe { bindings::free_netdev(ptr.as_ptr()) }
        })
    }

    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::net_device {
        self.ptr.as_ptr()
    }

    /// The device gets its NAPI instance.
    ///
    /// # Errors
    ///
    /// `EBUSY`: it has one.
    pub(super) fn claim_napi(&self) -> Result {
        match self.has_napi.xchg(true, Relaxed) {
            true => Err(EBUSY),
            false => Ok(()),
        }
    }

    /// The instance is gone.
    pub(super) fn release_napi(&self) {
        self.has_napi.store(false, Relaxed);
    }

    /// Whether the administrator wants received checksums that are unfinished to be taken
    /// (`ethtool -K … rx on`). Any context.
    #[inline]
    pub fn takes_unfinished(&self) -> bool {
        // SAFETY: The device is valid; the field is read as one word.
        unsafe { bindings::extoll_net_rx_csum(self.as_raw()) }
    }

    /// Interface name, for messages: before registration it holds the pattern. The name may change
    /// any time, so it is copied.
    pub fn name(&self) -> [u8; 16] {
        let mut name = [0u8; 16];
        // SAFETY: The device is valid, and its name is an array of 16 bytes of which the last is
        // always 0.
        let p = unsafe { bindings::extoll_net_name(self.as_raw()) };
        for (i, b) in name.iter_mut().take(15).enumerate() {
            // SAFETY: `i` < 15 and the loop ends at the terminator, so the byte is inside the
            // string.
            *b = unsafe { p.add(i).read_volatile() } as u8;
            if *b == 0 {
                break;
            }
        }
        name
    }

    /// Whether the interface is up (between `open` and `stop`). Any context; may change at once
    /// unless RTNL is held.
    #[inline]
    pub fn is_running(&self) -> bool {
        // SAFETY: The device is valid by the type invariant; this is an atomic bit test.
        unsafe { bindings::extoll_net_running(self.as_raw()) }
    }

    /// Current MTU in bytes. Any context.
    #[inline]
    pub fn mtu(&self) -> u32 {
        // SAFETY: The device is valid; the field is read as one word.
        unsafe { bindings::extoll_net_mtu(self.as_raw()) }
    }

    /// Current MAC address. A reader that races with a change may see a mixture, as everywhere in
    /// the stack.
    pub fn mac(&self) -> [u8; 6] {
        let mut mac = [0; 6];
        // SAFETY: The device is valid, `mac` has 6 bytes.
        unsafe { bindings::extoll_net_get_mac(self.as_raw(), mac.as_mut_ptr()) };
        mac
    }

    /// Switches the carrier. Does nothing unless the device is registered. Any context.
    pub fn set_carrier(&self, on: bool) {
        self.carrier_by(|| on);
    }

    /// As [`NetDev::set_carrier`] by what `on` says. Of several at a time the one that asked last
    /// wins: `on` runs with interrupts off and a lock held, which switching the carrier and
    /// scheduling work take, too.
    pub fn carrier_by(&self, on: impl FnOnce() -> bool) {
        let live = self.live.lock();
        if !*live {
            return;
        }
        // SAFETY: Unregistration can't begin while the lock is held, so a link-watch event that
        // this queues is flushed by it. On a device that is just being registered only the state
        // bit changes.
        unsafe {
            if on() {
                bindings::netif_carrier_on(self.as_raw())
            } else {
                bindings::netif_carrier_off(self.as_raw())
            }
        }
    }

    /// Whether the carrier is on. Any context.
    #[inline]
    pub fn carrier_ok(&self) -> bool {
        // SAFETY: The device is valid; this is an atomic bit test.
        unsafe { bindings::extoll_net_carrier_ok(self.as_raw()) }
    }

    /// Runs [`Operations::work`] soon, in process context with RTNL held. Does nothing unless the
    /// device is registered. Any context.
    pub fn schedule_work(&self) {
        let live = self.live.lock();
        if *live {
            // SAFETY: The work item is initialised since allocation, and its function since
            // registration; unregistration clears `live` under the lock and then cancels the work,
            // before anything the function uses is freed.
            unsafe { bindings::extoll_net_schedule_work(self.as_raw()) }
        }
    }

    /// As [`NetDev::schedule_work`], but after `ms` milliseconds, or at the time set before if that
    /// has not come yet. Any context.
    pub fn schedule_work_in(&self, ms: u32) {
        let live = self.live.lock();
        if *live {
            // SAFETY: As above: the delayed item is initialised and cancelled with the other one.
            unsafe { bindings::extoll_net_schedule_work_in(self.as_raw(), ms) }
        }
    }

    /// Wakes the transmit queue if the driver stopped it. Any context.
    #[inline]
    pub fn wake_queue(&self) {
        // SAFETY: The device and with it its queues are valid by the type invariant; outside
        // `open`…`stop` the queue discipline is the no-op one, which may be scheduled.
        unsafe { bindings::extoll_net_tx_wake(self.as_raw()) }
    }

    /// Stops the transmit queue, with a full barrier after it. Any context.
    #[inline]
    pub fn stop_queue(&self) {
        // SAFETY: The device is valid; this sets an atomic bit.
        unsafe { bindings::extoll_net_tx_stop(self.as_raw()) }
    }

    /// Counts received frames. Any context.
    #[inline]
    pub fn count_rx(&self, bytes: u32) {
        self.stats.rx(bytes);
    }

    /// Counts sent frames. Any context.
    #[inline]
    pub fn count_tx(&self, packets: u32, bytes: u64) {
        self.stats.tx(packets, bytes);
    }

    pub(super) fn stats(&self) -> &PerCpuStats {
        &self.stats
    }

    /// Gives bytes back to the byte queue limit; may wake the queue. Any context.
    pub fn bql_done(&self, done: BqlDone) {
        if done.packets == 0 {
            return;
        }
        let generation = self.bql.lock();
        if *generation == done.generation {
            // SAFETY: The device is valid, the lock serialises completions, and tokens exist only
            // for bytes that were charged since the last reset and are consumed on the way here, so
            // no more than that is completed.
            unsafe { bindings::extoll_net_bql_completed(self.as_raw(), done.packets, done.bytes) }
        }
    }

    /// Forgets all charges; tokens given out so far become void. Softirq or process context.
    pub(super) fn bql_reset(&self) {
        // SAFETY: The device is valid. The lock serialises the reset with `bql_sent()`, it is
        // released below.
        unsafe { bindings::extoll_net_tx_lock(self.as_raw()) };
        let mut generation = self.bql.lock();
        *generation = GENERATION.fetch_add(1, Relaxed);
        // SAFETY: The device is valid; charging and completing are excluded by the two locks, and
        // tokens of earlier generations are not accepted any more.
        unsafe { bindings::extoll_net_bql_reset(self.as_raw()) };
        drop(generation);
        // SAFETY: Taken above.
        unsafe { bindings::extoll_net_tx_unlock(self.as_raw()) };
    }
}

#[pinned_drop]
impl PinnedDrop for NetDev {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant. `Registration` holds an `Arc` while the device is
        // registered, so it is not.
        unsafe { bindings::free_netdev(self.as_raw()) }
    }
}

impl TxQueue<'_> {
    /// Charges the byte queue limit with a frame that is about to be sent.
    #[inline]
    pub fn bql_sent(&self, bytes: u32) -> BqlToken {
        let generation = *self.0.bql.lock();
        // SAFETY: The device is valid; the lock of this very queue is held while `self` exists,
        // which serialises calls.
        unsafe { bindings::extoll_net_bql_sent(self.0.as_raw(), bytes) };
        BqlToken { bytes, generation }
    }
}

/// A net device together with its driver's data.
#[pin_data]
pub struct Device<T: Operations> {
    // Dropped first: it may hold NAPI instances of the device.
    #[pin]
    data: T::Data,
    ndev: Arc<NetDev>,
}

impl<T: Operations> Device<T> {
    /// The driver's data.
    #[inline]
    pub fn data(&self) -> &T::Data {
        &self.data
    }

    /// The device as a handle that can be kept.
    #[inline]
    pub fn handle(&self) -> &Arc<NetDev> {
        &self.ndev
    }

    /// Sets the MAC address. Only in callbacks that hold RTNL: `open`, `stop`, `set_mac_address`,
    /// `work`.
    pub(super) fn set_mac_locked(&self, mac: &[u8; 6]) {
        // SAFETY: The device is valid, RTNL is held as required of the callers in this module.
        unsafe { bindings::extoll_net_set_mac(self.as_raw(), mac.as_ptr()) }
    }
}

impl<T: Operations> Deref for Device<T> {
    type Target = NetDev;
    fn deref(&self) -> &NetDev {
        &self.ndev
    }
}

/// Proof that RTNL is held, passed to the callbacks that run under it.
pub struct Rtnl<'a, T: Operations>(pub(super) &'a Device<T>);

impl<T: Operations> Rtnl<'_, T> {
    /// Sets the MAC address and tells the stack when it changed.
    pub fn set_mac(&self, mac: &[u8; 6]) {
        if self.0.mac() != *mac {
            self.0.set_mac_locked(mac);
            // SAFETY: The device is valid and RTNL is held.
            unsafe { bindings::extoll_net_notify_mac(self.0.as_raw()) }
        }
    }
}

impl<T: Operations> Rtnl<'_, T> {
    /// Takes the interface through [`Operations::stop`] and [`Operations::open`] if it is up,
    /// without changing what user space sees but the carrier. If opening fails, the interface stays
    /// without carrier until this is called again, which calls [`Operations::stop`] once more, or
    /// it is set down and up again. May sleep. Only from [`Operations::work`], not from `open` or
    /// `stop` themselves.
    pub fn restart(&self) -> Result {
        let dev = self.0;
        if !dev.is_running() {
            return Ok(());
        }
        // No watchdog from here on: disabling the queue waits for one that runs, which may use what
        // `stop` closes.
        dev.set_carrier(false);
        // SAFETY: The device is valid and RTNL is held; all its NAPI instances are `extoll_napi`s.
        unsafe {
            bindings::extoll_net_tx_disable(dev.as_raw());
            bindings::extoll_napi_disable_all(dev.as_raw());
        }
        T::stop(dev, self);
        dev.bql_reset();
        T::open(dev, self)?;
        // SAFETY: As above.
        unsafe { bindings::extoll_napi_enable_all(dev.as_raw()) };
        dev.wake_queue();
        Ok(())
    }
}

/// A registered net device, which ends before its parent is unbound. Dropping it unregisters: after
/// that no callback runs and none will.
///
/// # Invariants
///
/// The device is registered and its operations were set to `T`'s with a pointer to the contents of
/// `dev`.
pub struct Registration<'a, T: Operations> {
    dev: Arc<Device<T>>,
    bound: PhantomData<&'a device::Device<device::Bound>>,
}

impl<'a, T: Operations + EthtoolOps> Registration<'a, T> {
    /// Registers `ndev`, whose parent is bound, with the driver data made by `data`. The interface
    /// may be opened before this returns. May sleep, takes RTNL.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the device has another parent; `EBUSY`: it was registered before; those of `data`
    /// and of the net core.
    pub fn new(
        ndev: Arc<NetDev>,
        parent: &'a device::Device<device::Bound>,
        mac: &[u8; 6],
        data: impl PinInit<T::Data, Error>,
    ) -> Result<Self> {
        if !core::ptr::eq::<device::Device>(&*ndev.parent, &**parent) {
            return Err(EINVAL);
        }
        if ndev.claimed.xchg(1, Relaxed) != 0 {
            return Err(EBUSY);
        }
        let owned = ndev.clone();
        let dev = Arc::pin_init(
            try_pin_init!(Device::<T> {
                data <- data,
                ndev: owned,
            }? Error),
            GFP_KERNEL,
        )?;
        let raw = ndev.as_raw();
        let owner = core::ptr::from_ref::<Device<T>>(&dev).cast_mut().cast();
        // SAFETY: The device is not registered, so nobody uses it concurrently (`claimed` excludes
        // a second registration). The tables are static; `owner` stays valid until after
        // unregistration since `Registration` holds `dev`.
        unsafe {
            bindings::extoll_net_set_mac(raw, mac.as_ptr());
            bindings::extoll_net_set_ops(
                raw,
                ops::table::<T>(),
                super::ethtool::table::<T>(),
                owner,
                Some(ops::work::<T>),
            );
        }
        // Callbacks may come, and use carrier and work, before `register_netdev()` returns.
        *ndev.live.lock() = true;
        // SAFETY: The device is completely set up and not registered.
        kernel::error::to_result(unsafe { bindings::register_netdev(raw) }).inspect_err(|_| {
            *ndev.live.lock() = false;
            // SAFETY: The work items are initialised since allocation; they may wait for RTNL,
            // which is not held here.
            unsafe { bindings::extoll_net_cancel_work(raw) }
        })?;
        // INVARIANT: Registered just now.
        Ok(Self {
            dev,
            bound: PhantomData,
        })
    }
}

impl<T: Operations> Deref for Registration<'_, T> {
    type Target = Device<T>;
    fn deref(&self) -> &Device<T> {
        &self.dev
    }
}

impl<T: Operations> Drop for Registration<'_, T> {
    fn drop(&mut self) {
        *self.dev.live.lock() = false;
        // SAFETY: By the type invariant. After the first call no callback of the tables runs; after
        // the second the work doesn't.
        unsafe {
            bindings::unregister_netdev(self.dev.as_raw());
            bindings::extoll_net_cancel_work(self.dev.as_raw());
        }
    }
}
