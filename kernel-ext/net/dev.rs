// SPDX-License-Identifier: GPL-2.0-only

//! Net device and its registration.

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

/// Number of the next period between restarts of a transmit queue. The number is unique over all
/// devices, so a token belongs to one period of one device.
static GENERATION: Atomic<u64> = Atomic::new(1);

/// Parameters of a new net device.
pub struct Config {
    /// Name with one `%d` for the number, at most 15 characters.
    pub name: &'static CStr,
    /// Minimum MTU in bytes, without the Ethernet header.
    pub min_mtu: u32,
    /// Maximum MTU in bytes.
    pub max_mtu: u32,
    /// Initial MTU in bytes.
    pub mtu: u32,
    /// Length of the stack's transmit queue in frames.
    pub tx_queue_len: u32,
    /// Time in ms after which [`Operations::tx_timeout`] is called for a stopped transmit queue.
    pub watchdog_ms: u32,
    /// True to advertise that TCP and UDP frames may be passed with an unfinished checksum.
    pub tx_csum: bool,
    /// Initial value of [`NetDev::takes_unfinished`], which the administrator may change.
    pub rx_csum: bool,
    /// True to set `IFF_MULTICAST`.
    pub multicast: bool,
}

/// Net device without its driver data. Methods may be called in any context that holds an `Arc` of
/// the device, unless documented differently.
///
/// # Invariants
///
/// `ptr` comes from `extoll_net_alloc()`, and only `drop()` frees it. `live` becomes true just
/// before registration and false just before unregistration.
#[pin_data(PinnedDrop)]
pub struct NetDev {
    ptr: NonNull<bindings::net_device>,
    /// Parent device. The C object points to it as long as it exists, but holds a reference only
    /// while it is registered. Therefore this reference is dropped after the C object was freed.
    parent: ARef<device::Device>,
    stats: PerCpuStats,
    claimed: Atomic<i32>,
    /// True while the device has a NAPI instance.
    has_napi: AtomicFlag,
    #[pin]
    live: SpinLockIrq<bool>,
    #[pin]
    bql: SpinLockIrq<u64>,
}

// SAFETY: all accesses to the C object are through functions that may be called on any CPU; each
// function documents the reason.
unsafe impl Send for NetDev {}
// SAFETY: the reason given for `Send` applies. Accesses that must be serialised hold one of the
// locks.
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
        // SAFETY: `c` and its name are valid during the call. `raw` is a valid device, to which the
        // result holds a reference as long as the C object exists.
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
            // SAFETY: the device was allocated above, and the object that would own it was not
            // made.
            unsafe { bindings::free_netdev(ptr.as_ptr()) }
        })
    }

    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::net_device {
        self.ptr.as_ptr()
    }

    /// Reserves the device's NAPI instance.
    ///
    /// # Errors
    ///
    /// `EBUSY`: the device already has an instance.
    pub(super) fn claim_napi(&self) -> Result {
        if self.has_napi.xchg(true, Relaxed) {
            return Err(EBUSY);
        }
        Ok(())
    }

    /// Releases the reservation after the instance was removed.
    pub(super) fn release_napi(&self) {
        self.has_napi.store(false, Relaxed);
    }

    /// Returns true if frames with an unfinished checksum may be passed to the stack (`ethtool -K …
    /// rx on`). Any context.
    #[inline]
    pub fn takes_unfinished(&self) -> bool {
        // SAFETY: the device is valid; the field is read as one word.
        unsafe { bindings::extoll_net_rx_csum(self.as_raw()) }
    }

    /// Returns a copy of the interface name, for messages. Before registration the name is the
    /// pattern with `%d`. The name may change at any time.
    pub fn name(&self) -> [u8; 16] {
        let mut name = [0u8; 16];
        // SAFETY: the device is valid. The device's name is an array of 16 bytes, of which the last
        // is always 0.
        let p = unsafe { bindings::extoll_net_name(self.as_raw()) };
        for (i, b) in name.iter_mut().take(15).enumerate() {
            // SAFETY: `i` < 15 and the loop ends at the terminator, so the byte is inside the
            // array.
            *b = unsafe { p.add(i).read_volatile() } as u8;
            if *b == 0 {
                break;
            }
        }
        name
    }

    /// Returns true if the interface is up (between `open` and `stop`). Any context; the result may
    /// be outdated at once unless RTNL is held.
    #[inline]
    pub fn is_running(&self) -> bool {
        // SAFETY: the device is valid by the type invariant; this is an atomic bit test.
        unsafe { bindings::extoll_net_running(self.as_raw()) }
    }

    /// Returns the current MTU in bytes. Any context.
    #[inline]
    pub fn mtu(&self) -> u32 {
        // SAFETY: the device is valid; the field is read as one word.
        unsafe { bindings::extoll_net_mtu(self.as_raw()) }
    }

    /// Returns the current MAC address. During a change the result may contain bytes of both
    /// addresses, as elsewhere in the stack.
    pub fn mac(&self) -> [u8; 6] {
        let mut mac = [0; 6];
        // SAFETY: the device is valid, `mac` has 6 bytes.
        unsafe { bindings::extoll_net_get_mac(self.as_raw(), mac.as_mut_ptr()) };
        mac
    }

    /// Switches the carrier on or off. The call is ignored while the device is not registered. Any
    /// context.
    pub fn set_carrier(&self, on: bool) {
        self.carrier_by(|| on);
    }

    /// Sets the carrier to the result of `on`, like [`NetDev::set_carrier`]. `on` runs with
    /// interrupts disabled and a lock held, so that the last evaluation of `on` determines the
    /// state after concurrent calls. `on` must not switch the carrier or schedule work, because
    /// both take the same lock.
    pub fn carrier_by(&self, on: impl FnOnce() -> bool) {
        let live = self.live.lock();
        if !*live {
            return;
        }
        // SAFETY: unregistration flushes the link-watch event that this call queues, because it
        // cannot begin while the lock is held. For a device that is being registered, only the
        // state bit changes.
        unsafe {
            if on() {
                bindings::netif_carrier_on(self.as_raw())
            } else {
                bindings::netif_carrier_off(self.as_raw())
            }
        }
    }

    /// Returns true if the carrier is on. Any context.
    #[inline]
    pub fn carrier_ok(&self) -> bool {
        // SAFETY: the device is valid; this is an atomic bit test.
        unsafe { bindings::extoll_net_carrier_ok(self.as_raw()) }
    }

    /// Schedules [`Operations::work`], in process context with RTNL held. The call is ignored while
    /// the device is not registered. Any context.
    pub fn schedule_work(&self) {
        let live = self.live.lock();
        if *live {
            // SAFETY: the work item was initialised at allocation and its function at registration.
            // Unregistration clears `live` under the lock and then cancels the work, before the
            // data that the function uses are freed.
            unsafe { bindings::extoll_net_schedule_work(self.as_raw()) }
        }
    }

    /// Schedules [`Operations::work`] after `ms` milliseconds, or at an earlier scheduled time. The
    /// call is ignored while the device is not registered. Any context.
    pub fn schedule_work_in(&self, ms: u32) {
        let live = self.live.lock();
        if *live {
            // SAFETY: the reasons given in `schedule_work` apply; unregistration also cancels the
            // delayed work item.
            unsafe { bindings::extoll_net_schedule_work_in(self.as_raw(), ms) }
        }
    }

    /// Wakes the transmit queue if the driver stopped it. Any context.
    #[inline]
    pub fn wake_queue(&self) {
        // SAFETY: the device and so its queues are valid by the type invariant. While the interface
        // is down, the queue discipline is the no-op one, which may be scheduled.
        unsafe { bindings::extoll_net_tx_wake(self.as_raw()) }
    }

    /// Stops the transmit queue, with a full barrier after it. Any context.
    #[inline]
    pub fn stop_queue(&self) {
        // SAFETY: the device is valid; this sets an atomic bit.
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

    /// Returns bytes to the byte queue limit; may wake the queue. Any context.
    pub fn bql_done(&self, done: BqlDone) {
        if done.packets == 0 {
            return;
        }
        let generation = self.bql.lock();
        if *generation == done.generation {
            // SAFETY: the device is valid, and the lock serialises completions. Tokens exist only
            // for bytes that were charged since the last reset, and they are consumed here. So the
            // sum of completions does not exceed the charges.
            unsafe { bindings::extoll_net_bql_completed(self.as_raw(), done.packets, done.bytes) }
        }
    }

    /// Resets all charges; existing tokens become void. Softirq or process context.
    pub(super) fn bql_reset(&self) {
        // SAFETY: the device is valid. The lock serialises the reset with `bql_sent()`, and is
        // released below.
        unsafe { bindings::extoll_net_tx_lock(self.as_raw()) };
        let mut generation = self.bql.lock();
        *generation = GENERATION.fetch_add(1, Relaxed);
        // SAFETY: the device is valid. The two locks exclude charging and completing; tokens of
        // earlier generations are ignored from now on.
        unsafe { bindings::extoll_net_bql_reset(self.as_raw()) };
        drop(generation);
        // SAFETY: the call above acquired the lock.
        unsafe { bindings::extoll_net_tx_unlock(self.as_raw()) };
    }
}

#[pinned_drop]
impl PinnedDrop for NetDev {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: by the type invariant `ptr` is valid. The device is not registered, because a
        // `Registration` holds an `Arc`.
        unsafe { bindings::free_netdev(self.as_raw()) }
    }
}

impl TxQueue<'_> {
    /// Charges the byte queue limit with a frame that is about to be sent.
    #[inline]
    pub fn bql_sent(&self, bytes: u32) -> BqlToken {
        let generation = *self.0.bql.lock();
        // SAFETY: the device is valid. The lock of this queue is held while `self` exists, so calls
        // are serialised.
        unsafe { bindings::extoll_net_bql_sent(self.0.as_raw(), bytes) };
        BqlToken { bytes, generation }
    }
}

/// Net device with its driver's data.
#[pin_data]
pub struct Device<T: Operations> {
    // Data of the driver. Dropped first, because they may hold the NAPI instance of the device.
    #[pin]
    data: T::Data,
    ndev: Arc<NetDev>,
}

impl<T: Operations> Device<T> {
    /// Returns the driver's data.
    #[inline]
    pub fn data(&self) -> &T::Data {
        &self.data
    }

    /// Returns the device as a reference that can be cloned and kept.
    #[inline]
    pub fn handle(&self) -> &Arc<NetDev> {
        &self.ndev
    }

    /// Sets the MAC address. For callbacks that hold RTNL: `open`, `stop`, `set_mac_address`,
    /// `work`.
    pub(super) fn set_mac_locked(&self, mac: &[u8; 6]) {
        // SAFETY: the device is valid; callers in this module hold RTNL.
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
    /// Sets the MAC address. Notifies the stack if the address is different.
    pub fn set_mac(&self, mac: &[u8; 6]) {
        if self.0.mac() != *mac {
            self.0.set_mac_locked(mac);
            // SAFETY: the device is valid and RTNL is held.
            unsafe { bindings::extoll_net_notify_mac(self.0.as_raw()) }
        }
    }
}

impl<T: Operations> Rtnl<'_, T> {
    /// Restarts the interface by [`Operations::stop`] and [`Operations::open`] if it is up. User
    /// space only sees that the carrier changes. If opening fails, the interface has no carrier
    /// until it is set down and up again, or until the next call of this function, which calls
    /// [`Operations::stop`] once more. May sleep. Only [`Operations::work`] may call this function,
    /// not `open` or `stop`.
    pub fn restart(&self) -> Result {
        let dev = self.0;
        if !dev.is_running() {
            return Ok(());
        }
        // Without a carrier the watchdog does not run. Disabling the queue waits for a running
        // watchdog, which may use objects that `stop` closes.
        dev.set_carrier(false);
        // SAFETY: the device is valid and RTNL is held; all its NAPI instances are `extoll_napi`s.
        unsafe {
            bindings::extoll_net_tx_disable(dev.as_raw());
            bindings::extoll_napi_disable_all(dev.as_raw());
        }
        T::stop(dev, self);
        dev.bql_reset();
        T::open(dev, self)?;
        // SAFETY: the device is valid, RTNL is held, and all NAPI instances are `extoll_napi`s.
        unsafe { bindings::extoll_napi_enable_all(dev.as_raw()) };
        dev.wake_queue();
        Ok(())
    }
}

/// Registered net device, which must be dropped before its parent is unbound. The drop unregisters
/// the device and waits for callbacks; no callback runs afterwards.
///
/// # Invariants
///
/// The device is registered. Its operations are `T`'s, and its owner points to the contents of
/// `dev`.
pub struct Registration<'a, T: Operations> {
    dev: Arc<Device<T>>,
    bound: PhantomData<&'a device::Device<device::Bound>>,
}

impl<'a, T: Operations + EthtoolOps> Registration<'a, T> {
    /// Registers `ndev`, whose parent is bound, with the driver data that `data` initialises. The
    /// interface may be opened before this function returns. Acquires RTNL; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the device has another parent. `EBUSY`: the device was registered before. Other
    /// errors come from `data` and from the net core.
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
        // SAFETY: the device is not registered, so it is not used concurrently; `claimed` excludes
        // a second registration. The tables are static. `owner` is valid until after
        // unregistration, because `Registration` holds `dev`.
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
        // Callbacks may run, and use carrier and work, before `register_netdev()` returns.
        *ndev.live.lock() = true;
        // SAFETY: the device is completely set up and not registered.
        kernel::error::to_result(unsafe { bindings::register_netdev(raw) }).inspect_err(|_| {
            *ndev.live.lock() = false;
            // SAFETY: the work items were initialised at allocation. The work items may wait for
            // RTNL, which is not held here.
            unsafe { bindings::extoll_net_cancel_work(raw) }
        })?;
        // INVARIANT: the device has just been registered.
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
        // SAFETY: by the type invariant the device is registered. After the first call no callback
        // of the tables runs; after the second call the work does not run.
        unsafe {
            bindings::unregister_netdev(self.dev.as_raw());
            bindings::extoll_net_cancel_work(self.dev.as_raw());
        }
    }
}
