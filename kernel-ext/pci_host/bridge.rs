// SPDX-License-Identifier: GPL-2.0-only

//! Creation and removal of a host bridge.

use super::{
    calls, config,
    gate::{Accesses, Functions, FunctionsGate},
    interrupts,
    shared::{added, inspect, wait_unreferenced, Shared},
    Interrupts, Pool, Window,
};
use crate::{bindings, sysfs, work};
use core::ptr;
use kernel::{
    container_of,
    device::{Bound, Device},
    error::to_result,
    new_mutex,
    prelude::*,
    sync::{aref::ARef, Arc, Mutex},
    types::Opaque,
};

/// Maximum number of windows of a bridge: one for each BAR of a function.
const WINDOWS: usize = 6;

/// State of a bridge.
enum Phase {
    /// The bridge was not made yet, or was removed.
    Absent,
    Present,
}

/// Objects that [`Bridge::attach`] makes.
struct Made {
    bridge: *mut bindings::pci_host_bridge,
    shared: Option<Pin<KBox<Shared>>>,
    interrupts: Option<Arc<Interrupts>>,
    domain: i32,
    /// Number of `resources` that have been inserted into the kernel's resource tree.
    inserted: usize,
    linked: bool,
    /// Number of accepted devices, or the error of the first rejected device.
    found: Result<u32>,
}

/// Bridge, which does not move in memory.
///
/// # Invariants
///
/// `made` is accessed only with `phase` locked, or by functions for which the lock holder waits.
/// `anchor` is null or a device to which this object owns a reference.
#[pin_data(PinnedDrop)]
struct Bridge {
    parent: ARef<Device>,
    anchor: *mut bindings::pci_dev,
    #[pin]
    notifier: Opaque<bindings::notifier_block>,
    #[pin]
    phase: Mutex<Phase>,
    #[pin]
    made: Opaque<Made>,
    gate: Arc<FunctionsGate>,
    pool: Arc<Pool>,
    windows: KVec<Window>,
    vectors: u32,
}

/// Host bridge. The drop removes the bridge, like [`HostBridge::remove`]. The bridge must be
/// removed before the parent's driver is unbound. Otherwise that driver could not release the BAR
/// that contains the windows, and could not be bound again.
pub struct HostBridge {
    bridge: Pin<KBox<Bridge>>,
    interrupts: Arc<Interrupts>,
    domain: u32,
}

// SAFETY: fields are constant or protected by a lock.
unsafe impl Send for HostBridge {}
// SAFETY: the reason given for `Send` applies.
unsafe impl Sync for HostBridge {}

impl HostBridge {
    /// Makes a bridge below `parent`, finds the devices behind it, and binds their drivers.
    /// `vectors` is 1 to 2048. From then on, the bridge calls `functions`. Process context without
    /// locks; sleeps until the drivers are bound.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: invalid windows or number of vectors, or a window outside of the parent's BARs.
    /// - `EBUSY`: addresses of a window are in use, or the parent is being added or removed.
    /// - `ENODEV`: no device answers.
    /// - `ERANGE`: a device has a BAR that is in none of the windows.
    /// - `EOPNOTSUPP`: an IOMMU driver manages a device.
    /// - `ENOMEM`, and errors of the PCI core.
    pub fn new(
        parent: &Device<Bound>,
        windows: &[Window],
        vectors: u32,
        pool: Arc<Pool>,
        functions: Arc<dyn Functions>,
    ) -> Result<Self> {
        Self::prepare(parent, windows, vectors, pool, functions)?.begin()
    }

    /// Prepares a bridge that [`Prepared::begin`] makes later. Unlike for [`HostBridge::new`],
    /// `parent` need not be proven bound while drivers are probed.
    ///
    /// # Errors
    ///
    /// `EINVAL` and `ENOMEM` for the reasons given at [`HostBridge::new`].
    pub fn prepare(
        parent: &Device<Bound>,
        windows: &[Window],
        vectors: u32,
        pool: Arc<Pool>,
        functions: Arc<dyn Functions>,
    ) -> Result<Prepared> {
        let mut list = KVec::with_capacity(windows.len(), GFP_KERNEL)?;
        for window in windows {
            if !window.is_valid() || list.iter().any(|w| window.meets(w)) {
                return Err(EINVAL);
            }
            list.push(*window, GFP_KERNEL)?;
        }
        if list.len() > WINDOWS || !(1..=interrupts::MAX_VECTORS).contains(&vectors) {
            return Err(EINVAL);
        }
        let gate = Arc::new(FunctionsGate::new(functions), GFP_KERNEL)?;
        // SAFETY: the device is bound, so it and its ancestors are alive.
        let anchor = unsafe { bindings::extoll_pci_anchor(sysfs::raw(parent)) };
        if !anchor.is_null() {
            // SAFETY: the device is alive. The drop of `Bridge` drops the reference.
            unsafe { bindings::pci_dev_get(anchor) };
        }
        let made = Made {
            bridge: ptr::null_mut(),
            shared: None,
            interrupts: None,
            domain: -1,
            inserted: 0,
            linked: false,
            found: Err(ENODEV),
        };
        let parent: &Device = parent;
        let bridge = KBox::pin_init(
            pin_init!(Bridge {
                parent: parent.into(),
                // INVARIANT: the reference was acquired above.
                anchor,
                notifier <- Opaque::ffi_init(|n: *mut bindings::notifier_block| {
                    // SAFETY: `n` is valid for writes.
                    unsafe { n.write(bindings::notifier_block {
                        notifier_call: Some(Bridge::notified),
                        ..pin_init::zeroed()
                    }) }
                }),
                phase <- new_mutex!(Phase::Absent, "extoll_host_bridge"),
                made <- Opaque::new(made),
                gate,
                pool,
                windows: list,
                vectors,
            }),
            GFP_KERNEL,
        )?;
        // SAFETY: the notifier is pinned, and the drop unregisters it.
        to_result(unsafe {
            bindings::bus_register_notifier(
                &raw const bindings::pci_bus_type,
                bridge.notifier.get(),
            )
        })?;
        Ok(Prepared(bridge))
    }

    /// Returns the number of the PCI domain, at least 0x10000. Any context.
    pub fn domain(&self) -> u32 {
        self.domain
    }

    /// Returns the interrupts of the devices. Any context.
    pub fn interrupts(&self) -> &Arc<Interrupts> {
        &self.interrupts
    }

    /// Returns the memory of the devices. Any context.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.bridge.pool
    }

    /// Returns counts of accesses to configuration space. Any context.
    pub fn accesses(&self) -> Accesses {
        self.bridge.gate.accesses()
    }

    /// Removes the bridge while the devices still answer: unbinds drivers, removes devices, drops
    /// the functions. Drivers of the devices must not call this function. Process context without
    /// locks; sleeps until the drivers are unbound. Later calls have no effect.
    pub fn remove(&self) {
        self.bridge.end(false);
    }

    /// Removes the bridge after the devices became unreachable. First marks all devices, so that
    /// accesses to configuration space fail at once, and notifies their drivers (`error_detected`,
    /// permanent failure). Then removes the bridge like [`HostBridge::remove`].
    pub fn lost(&self) {
        self.bridge.end(true);
    }
}

/// Host bridge that has not been made yet.
pub struct Prepared(Pin<KBox<Bridge>>);

// SAFETY: the reason given for `HostBridge` applies.
unsafe impl Send for Prepared {}

impl Prepared {
    /// Makes the bridge, finds the devices behind it, and binds their drivers. The parent's driver
    /// must not be unbound during this call, or before the [`HostBridge`] is removed. Contexts are
    /// those of [`HostBridge::new`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`HostBridge::new`].
    pub fn begin(self) -> Result<HostBridge> {
        let (interrupts, domain) = self.0.begin()?;
        Ok(HostBridge {
            bridge: self.0,
            interrupts,
            domain,
        })
    }
}

impl Bridge {
    /// # Safety
    ///
    /// The caller holds the lock `phase`, or the lock holder waits for the caller. Results must not
    /// be used concurrently.
    #[allow(clippy::mut_from_ref)]
    unsafe fn made(&self) -> &mut Made {
        // SAFETY: by the function's requirements and the type invariant this is the only access.
        unsafe { &mut *self.made.get() }
    }

    /// Calls `f` with the lock of rescans and removals held. Returns its result, or `EBUSY` if the
    /// anchor is being removed.
    fn locked(&self, f: unsafe extern "C" fn(*mut c_void) -> c_int) -> Result {
        let this = ptr::from_ref(self).cast_mut().cast();
        // CAST: opaque type in both sets of bindings.
        let queue = work::reset_queue().cast();
        // SAFETY: this object owns a reference to the anchor. `f` gets this object and runs only
        // while this function waits.
        to_result(unsafe { bindings::extoll_pci_locked(self.anchor, queue, Some(f), this) })
    }

    fn begin(&self) -> Result<(Arc<Interrupts>, u32)> {
        let mut phase = self.phase.lock();
        let mut result = self.locked(Self::attach_locked);
        // SAFETY: `phase` is locked, and `attach_locked` does not run any more.
        let made = unsafe { self.made() };
        let interrupts = made.interrupts.clone();
        if result.is_ok() && interrupts.is_none() {
            result = Err(ENODEV);
        }
        if let Err(e) = result {
            self.finish();
            return Err(e);
        }
        *phase = Phase::Present;
        interrupts.map(|i| (i, made.domain as u32)).ok_or(ENODEV)
    }

    fn end(&self, lost: bool) {
        let mut phase = self.phase.lock();
        if !matches!(*phase, Phase::Present) {
            return;
        }
        if lost {
            // SAFETY: `phase` is locked. The bus exists until it is removed below.
            unsafe { bindings::extoll_pci_lost((*self.made().bridge).bus) };
        }
        if self.locked(Self::detach_locked).is_err() {
            // The thread that removes the anchor holds the lock, and waits for this function.
            self.detach();
        }
        self.finish();
        *phase = Phase::Absent;
    }

    /// # Safety
    ///
    /// `this` is a bridge whose `phase` is locked by a thread that waits for this call.
    unsafe extern "C" fn attach_locked(this: *mut c_void) -> c_int {
        // SAFETY: by the function's requirements `this` is a valid bridge.
        let this = unsafe { &*this.cast::<Self>() };
        match this.attach() {
            Ok(()) => 0,
            Err(e) => e.to_errno(),
        }
    }

    /// # Safety
    ///
    /// The requirements of [`Bridge::attach_locked`] apply.
    unsafe extern "C" fn detach_locked(this: *mut c_void) -> c_int {
        // SAFETY: by the function's requirements `this` is a valid bridge.
        unsafe { &*this.cast::<Self>() }.detach();
        0
    }

    /// Returns the resources of the bus number and of the windows.
    fn resources(&self) -> Result<KVec<Opaque<bindings::resource>>> {
        let mut list = KVec::with_capacity(1 + self.windows.len(), GFP_KERNEL)?;
        // There is one bus, number 0.
        let number = bindings::resource {
            flags: bindings::IORESOURCE_BUS as c_ulong,
            name: c"bus of another node".as_char_ptr(),
            ..pin_init::zeroed()
        };
        list.push(Opaque::new(number), GFP_KERNEL)?;
        for window in &self.windows {
            list.push(Opaque::new(window.resource()), GFP_KERNEL)?;
        }
        Ok(list)
    }

    /// Makes the bridge and its devices. The caller holds the lock of rescans and removals.
    fn attach(&self) -> Result {
        // SAFETY: by the requirements of `attach_locked`, its caller waits for this function with
        // `phase` locked.
        let made = unsafe { self.made() };
        // SAFETY: the lock of rescans and removals is held.
        let domain = unsafe { bindings::extoll_pci_domain_new() };
        to_result(domain)?;
        made.domain = domain;
        // SAFETY: the function has no preconditions.
        let bridge = unsafe { bindings::pci_alloc_host_bridge(0) };
        if bridge.is_null() {
            // SAFETY: the number was allocated above.
            unsafe { bindings::pci_bus_release_emul_domain_nr(domain) };
            return Err(ENOMEM);
        }
        made.bridge = bridge;
        // SAFETY: the bridge was made above. The PCI core releases the number when it frees the
        // bridge.
        unsafe { (*bridge).domain_nr = domain };
        let interrupts = Interrupts::new(self.vectors, &self.gate, domain)?;
        let irq_domain = interrupts.domain();
        let interrupts = made.interrupts.insert(interrupts).clone();
        self.gate.begin(&interrupts)?;
        let shared = KBox::pin_init(
            pin_init!(Shared {
                host <- Opaque::ffi_init(|host| {
                    // SAFETY: `host` is valid for writes; the field `pool` keeps the pool alive.
                    unsafe { bindings::extoll_pci_host_init(
                        host,
                        sysfs::raw(&self.parent),
                        domain,
                        calls::table(),
                        Arc::as_ptr(&self.pool).cast(),
                    ) };
                }),
                gate: self.gate.clone(),
                pool: self.pool.clone(),
                resources: self.resources()?,
            }? Error),
            GFP_KERNEL,
        )?;
        let shared = &**made.shared.insert(shared);
        for window in shared.resources.iter().skip(1) {
            // SAFETY: the anchor is alive. `finish` removes the resource before it is freed.
            to_result(unsafe { bindings::extoll_pci_window_insert(self.anchor, window.get()) })?;
            made.inserted += 1;
        }
        // SAFETY: the bridge is not registered yet. The objects that it refers to live until
        // `finish` has found that no other reference to the bridge exists; the parent is
        // referenced.
        unsafe {
            (*bridge).dev.parent = sysfs::raw(&self.parent);
            (*bridge).dev.msi.domain = irq_domain;
            (*bridge).sysdata = (&raw mut (*shared.host.get()).sysdata).cast();
            (*bridge).ops = config::operations();
            (*bridge).busnr = 0;
            // The lender manages the hardware above the device, including its errors, links and
            // power.
            (*bridge).set_native_aer(0);
            (*bridge).set_native_pcie_hotplug(0);
            (*bridge).set_native_shpc_hotplug(0);
            (*bridge).set_native_pme(0);
            (*bridge).set_native_ltr(0);
            (*bridge).set_native_dpc(0);
            (*bridge).set_native_cxl_error(0);
            (*bridge).set_no_ext_tags(1);
            (*bridge).set_msi_domain(1);
            let list = &raw mut (*bridge).windows;
            if let Some(buses) = shared.resources.first() {
                bindings::pci_add_resource_offset(list, buses.get(), 0);
            }
            // Windows are added in descending order, because the PCI core merges adjacent windows
            // in ascending order and removes one of them from the tree.
            let mut above = u64::MAX;
            let all = || self.windows.iter().zip(shared.resources.iter().skip(1));
            while let Some((window, resource)) = all()
                .filter(|(w, _)| w.cpu < above)
                .max_by_key(|(w, _)| w.cpu)
            {
                above = window.cpu;
                let offset = window.cpu.wrapping_sub(window.bus);
                bindings::pci_add_resource_offset(list, resource.get(), offset);
            }
        }
        self.scan(made)
    }

    /// Finds the devices, claims their BARs, and binds drivers.
    fn scan(&self, made: &mut Made) -> Result {
        let bridge = made.bridge;
        // SAFETY: `attach` set up the bridge.
        to_result(unsafe { bindings::pci_scan_root_bus_bridge(bridge) }).inspect_err(|_| {
            // After an error the bridge has no bus. SAFETY: the PCI core uses only registered
            // bridges.
            unsafe { (*bridge).bus = ptr::null_mut() }
        })?;
        // SAFETY: the bridge is registered, so it has a bus.
        let bus = unsafe { (*bridge).bus };
        made.found = Ok(0);
        // SAFETY: the lock of rescans and removals is held. Only `inspect` uses `found` during the
        // call.
        unsafe {
            bindings::pci_bus_claim_resources(bus);
            bindings::pci_walk_bus(bus, Some(inspect), (&raw mut made.found).cast());
        }
        let found = match made.found {
            Ok(0) => Err(ENODEV),
            found => found.map(drop),
        };
        if let Err(e) = found {
            self.detach();
            return Err(e);
        }
        // SAFETY: both devices are registered, so their kobjects are in sysfs.
        let linked = unsafe {
            bindings::sysfs_create_link(
                &raw mut (*bridge).dev.kobj,
                &raw mut (*sysfs::raw(&self.parent)).kobj,
                c"nic".as_char_ptr(),
            )
        };
        made.linked = linked == 0;
        // SAFETY: the lock of rescans and removals is held.
        unsafe { bindings::pci_bus_add_devices(bus) };
        Ok(())
    }

    /// Removes the devices and the bridge from the PCI core. The caller holds the lock of rescans
    /// and removals, or the thread that holds it waits for the caller.
    fn detach(&self) {
        // SAFETY: the caller has locked `phase`, or the thread that has locked `phase` waits for
        // the caller.
        let made = unsafe { self.made() };
        let bridge = made.bridge;
        // SAFETY: `scan` registered the bridge.
        unsafe {
            let bus = (*bridge).bus;
            bindings::pci_stop_root_bus(bus);
            if made.linked {
                bindings::sysfs_remove_link(&raw mut (*bridge).dev.kobj, c"nic".as_char_ptr());
                made.linked = false;
            }
            bindings::pci_remove_root_bus(bus);
        }
    }

    /// Frees the objects that `attach` made. The bridge is not registered in the PCI core.
    fn finish(&self) {
        // SAFETY: callers have `phase` locked, and no function that uses `made` is running.
        let made = unsafe { self.made() };
        self.gate.close();
        let shared = made.shared.take();
        if let Some(shared) = &shared {
            for window in shared.resources.iter().skip(1).take(made.inserted) {
                // SAFETY: `attach` inserted the window.
                unsafe { bindings::extoll_pci_window_remove(window.get()) };
            }
        }
        made.inserted = 0;
        if let Some(interrupts) = made.interrupts.take() {
            if !interrupts.end() {
                dev_warn!(
                    &*self.parent,
                    "a driver did not free its interrupts in PCI domain {:x}: \
                     their memory is kept\n",
                    made.domain
                );
                core::mem::forget(interrupts);
                // SAFETY: the function has no preconditions.
                unsafe { bindings::extoll_pci_pin() };
            }
        }
        let bridge = core::mem::replace(&mut made.bridge, ptr::null_mut());
        if bridge.is_null() {
            return;
        }
        if wait_unreferenced(bridge) {
            // SAFETY: this is the last reference, so no object refers to `shared` after this call.
            unsafe { bindings::pci_free_host_bridge(bridge) };
            drop(shared);
        } else {
            dev_warn!(
                &*self.parent,
                "a device of PCI domain {:x} is still referenced: its memory is kept\n",
                made.domain
            );
            core::mem::forget(shared);
            // SAFETY: the function has no preconditions.
            unsafe { bindings::extoll_pci_pin() };
        }
        let leaked = Pool::keep_leaked(&self.pool);
        if leaked > 0 {
            dev_warn!(
                &*self.parent,
                "a driver did not free {} chunks of DMA memory in PCI domain {:x}: \
                 the pool is kept\n",
                leaked,
                made.domain
            );
        }
    }

    /// # Safety
    ///
    /// Only the notifier chain of the PCI bus may call this function, for the notifier of a bridge.
    unsafe extern "C" fn notified(
        _notifier: *mut bindings::notifier_block,
        action: c_ulong,
        device: *mut c_void,
    ) -> c_int {
        let device: *mut bindings::device = device.cast();
        // SAFETY: the device is alive and belongs to the PCI bus.
        let pdev = unsafe { container_of!(device, bindings::pci_dev, dev) };
        if action == bindings::bus_notifier_event_BUS_NOTIFY_ADD_DEVICE as c_ulong {
            added(pdev);
        }
        0
    }
}

#[pinned_drop]
impl PinnedDrop for Bridge {
    fn drop(self: Pin<&mut Self>) {
        self.end(false);
        // SAFETY: `HostBridge::prepare` registered the notifier or failed to register it, which the
        // chain tolerates. The call waits for running notifications.
        unsafe {
            bindings::bus_unregister_notifier(
                &raw const bindings::pci_bus_type,
                self.notifier.get(),
            )
        };
        self.gate.close();
        if !self.anchor.is_null() {
            // SAFETY: `HostBridge::prepare` acquired the reference.
            unsafe { bindings::pci_dev_put(self.anchor) };
        }
        // SAFETY: no other thread uses `made` any more. The drop of `Opaque` does not drop its
        // content.
        unsafe { ptr::drop_in_place(self.made.get()) };
    }
}
