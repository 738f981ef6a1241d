// SPDX-License-Identifier: GPL-2.0-only

//! The bridge: its beginning and its end.

use super::{
    behind::{Accesses, Behind, Functions},
    calls, config, interrupts,
    shared::{added, alone, inspect, Shared},
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

/// Most windows of a bridge: one for each BAR of a function.
const WINDOWS: usize = 6;

/// What there is of a bridge.
enum Phase {
    /// Not yet, or not any more.
    Absent,
    Present,
}

/// What is made by the scan.
struct Made {
    bridge: *mut bindings::pci_host_bridge,
    shared: Option<Pin<KBox<Shared>>>,
    interrupts: Option<Arc<Interrupts>>,
    domain: i32,
    /// How many of `resources` are in the kernel's map of addresses.
    inserted: usize,
    linked: bool,
    /// What was found in the devices.
    found: Result<u32>,
}

/// A bridge at a fixed address.
///
/// # Invariants
///
/// `made` is accessed by who has `phase` locked, and by functions that he waits for. `anchor` is null or a device to which there is
/// a reference.
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
    behind: Arc<Behind>,
    pool: Arc<Pool>,
    windows: KVec<Window>,
    vectors: u32,
}

/// A host bridge. Its drop ends it, as [`HostBridge::remove`] does. It has to end before the driver of its parent is unbound: that
/// could not give back the BAR that windows are in, and would not be bound again.
pub struct HostBridge {
    bridge: Pin<KBox<Bridge>>,
    interrupts: Arc<Interrupts>,
    domain: u32,
}

// SAFETY: all is locked, or not changed.
unsafe impl Send for HostBridge {}
// SAFETY: as above.
unsafe impl Sync for HostBridge {}

impl HostBridge {
    /// Makes a bridge below `parent`, finds the devices behind it, and has their drivers bound. `vectors`: 1 to 2048. Process context
    /// without locks; sleeps as long as drivers take. `functions` is called from now on.
    ///
    /// # Errors
    ///
    /// `EINVAL` for windows or the number of vectors, or windows outside of the parent's BARs; `EBUSY` if a window is somebody else's, or
    /// the parent is being added or removed; `ENODEV` if no device answers; `ERANGE` if one has a BAR that is in no window; `EOPNOTSUPP` if
    /// an IOMMU's driver takes the device for one of its own; `ENOMEM`; those of the PCI core.
    pub fn new(
        parent: &Device<Bound>,
        windows: &[Window],
        vectors: u32,
        pool: Arc<Pool>,
        functions: Arc<dyn Functions>,
    ) -> Result<Self> {
        Self::prepare(parent, windows, vectors, pool, functions)?.begin()
    }

    /// As [`HostBridge::new`], but nothing is made yet: so `parent` need not be known to be bound while drivers are probed.
    ///
    /// # Errors
    ///
    /// `EINVAL` and `ENOMEM` as there.
    pub fn prepare(
        parent: &Device<Bound>,
        windows: &[Window],
        vectors: u32,
        pool: Arc<Pool>,
        functions: Arc<dyn Functions>,
    ) -> Result<Prepared> {
        let mut list = KVec::with_capacity(windows.len(), GFP_KERNEL)?;
        for window in windows {
            if !window.is_possible() || list.iter().any(|w| window.meets(w)) {
                return Err(EINVAL);
            }
            list.push(*window, GFP_KERNEL)?;
        }
        if list.len() > WINDOWS || !(1..=interrupts::MOST).contains(&vectors) {
            return Err(EINVAL);
        }
        let behind = Arc::new(Behind::new(functions), GFP_KERNEL)?;
        // SAFETY: the device is bound, so it and those above it are alive.
        let anchor = unsafe { bindings::extoll_pci_anchor(sysfs::raw(parent)) };
        if !anchor.is_null() {
            // SAFETY: alive; the reference is given back by the drop.
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
                // INVARIANT: a reference was taken.
                anchor,
                notifier <- Opaque::ffi_init(|n: *mut bindings::notifier_block| {
                    // SAFETY: valid for writes.
                    unsafe { n.write(bindings::notifier_block {
                        notifier_call: Some(Bridge::notified),
                        ..pin_init::zeroed()
                    }) }
                }),
                phase <- new_mutex!(Phase::Absent, "extoll_host_bridge"),
                made <- Opaque::new(made),
                behind,
                pool,
                windows: list,
                vectors,
            }),
            GFP_KERNEL,
        )?;
        // SAFETY: the drop takes the notifier away again.
        to_result(unsafe {
            bindings::bus_register_notifier(
                &raw const bindings::pci_bus_type,
                bridge.notifier.get(),
            )
        })?;
        Ok(Prepared(bridge))
    }

    /// Number of the PCI domain, which is 0x10000 or more. Any context.
    pub fn domain(&self) -> u32 {
        self.domain
    }

    /// The interrupts of the devices. Any context.
    pub fn interrupts(&self) -> &Arc<Interrupts> {
        &self.interrupts
    }

    /// The memory of the devices. Any context.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.bridge.pool
    }

    /// Accesses to configuration space. Any context.
    pub fn accesses(&self) -> Accesses {
        self.bridge.behind.accesses()
    }

    /// Whether it has not ended. Sleeps while it ends.
    pub fn is_present(&self) -> bool {
        matches!(*self.bridge.phase.lock(), Phase::Present)
    }

    /// Ends it while the devices still answer: drivers are unbound, devices removed, the functions dropped. Not for drivers of the
    /// devices. Process context without locks; sleeps as long as drivers take. Nothing happens the second time.
    pub fn remove(&self) {
        self.bridge.end(false);
    }

    /// Ends it because the devices do not answer any more: as [`HostBridge::remove`], but at first all devices are marked so that
    /// accesses to their configuration spaces fail at once, and drivers are told (`error_detected`, permanent failure) before they are unbound.
    pub fn lost(&self) {
        self.bridge.end(true);
    }
}

/// A host bridge that is not there yet.
pub struct Prepared(Pin<KBox<Bridge>>);

// SAFETY: as `HostBridge`.
unsafe impl Send for Prepared {}

impl Prepared {
    /// Makes it, finds the devices behind it, and has their drivers bound. Its parent is not unbound before [`HostBridge`] has ended:
    /// the caller's unbinding waits for this, and for that. Context and errors: as [`HostBridge::new`].
    ///
    /// # Errors
    ///
    /// See above.
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
    /// By who has `phase` locked, or by whom he waits for, and not twice at a time.
    #[allow(clippy::mut_from_ref)]
    unsafe fn made(&self) -> &mut Made {
        // SAFETY: by the requirements, and the invariants.
        unsafe { &mut *self.made.get() }
    }

    /// Calls `f` with the lock of rescans and removals: its result, or `EBUSY` if the anchor is about to be removed.
    fn locked(&self, f: unsafe extern "C" fn(*mut c_void) -> c_int) -> Result {
        let this = ptr::from_ref(self).cast_mut().cast();
        // CAST: an opaque type to both sets of bindings.
        let queue = work::reset_queue().cast();
        // SAFETY: there is a reference to the anchor, and `f` is called with this object while this function waits.
        to_result(unsafe { bindings::extoll_pci_locked(self.anchor, queue, Some(f), this) })
    }

    fn begin(&self) -> Result<(Arc<Interrupts>, u32)> {
        let mut phase = self.phase.lock();
        let mut result = self.locked(Self::attach_locked);
        // SAFETY: `phase` is locked, and nobody is waited for any more.
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
            // SAFETY: `phase` is locked. The bus stays until it is removed below.
            unsafe { bindings::extoll_pci_lost((*self.made().bridge).bus) };
        }
        if self.locked(Self::detach_locked).is_err() {
            // Who has the lock waits until this is over.
            self.detach();
        }
        self.finish();
        *phase = Phase::Absent;
    }

    /// # Safety
    ///
    /// `this` is a bridge whose `phase` is locked by somebody who waits for this.
    unsafe extern "C" fn attach_locked(this: *mut c_void) -> c_int {
        // SAFETY: by the requirements.
        let this = unsafe { &*this.cast::<Self>() };
        match this.attach() {
            Ok(()) => 0,
            Err(e) => e.to_errno(),
        }
    }

    /// # Safety
    ///
    /// As [`Bridge::attach_locked`].
    unsafe extern "C" fn detach_locked(this: *mut c_void) -> c_int {
        // SAFETY: by the requirements.
        unsafe { &*this.cast::<Self>() }.detach();
        0
    }

    /// Resources of the bus number and the windows.
    fn resources(&self) -> Result<KVec<Opaque<bindings::resource>>> {
        let mut list = KVec::with_capacity(1 + self.windows.len(), GFP_KERNEL)?;
        // One bus, number 0.
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

    /// Makes the bridge and what is behind it. With the lock of rescans.
    fn attach(&self) -> Result {
        // SAFETY: as the callers of `attach_locked` promise.
        let made = unsafe { self.made() };
        // SAFETY: the lock is held.
        let domain = unsafe { bindings::extoll_pci_domain_new() };
        to_result(domain)?;
        made.domain = domain;
        // SAFETY: no requirements.
        let bridge = unsafe { bindings::pci_alloc_host_bridge(0) };
        if bridge.is_null() {
            // SAFETY: the number was given out just now.
            unsafe { bindings::pci_bus_release_emul_domain_nr(domain) };
            return Err(ENOMEM);
        }
        made.bridge = bridge;
        // SAFETY: made just now. The PCI core gives the number back when it frees the bridge.
        unsafe { (*bridge).domain_nr = domain };
        let interrupts = Interrupts::new(self.vectors, &self.behind, domain)?;
        let irq_domain = interrupts.domain();
        let interrupts = made.interrupts.insert(interrupts).clone();
        self.behind.begin(&interrupts)?;
        let shared = KBox::pin_init(
            pin_init!(Shared {
                host <- Opaque::ffi_init(|host| {
                    // SAFETY: valid for writes; the pool is kept by `pool`.
                    unsafe { bindings::extoll_pci_host_init(
                        host, sysfs::raw(&self.parent), domain, calls::table(), Arc::as_ptr(&self.pool).cast(),
                    ) };
                }),
                behind: self.behind.clone(),
                pool: self.pool.clone(),
                resources: self.resources()?,
            }? Error),
            GFP_KERNEL,
        )?;
        let shared = &**made.shared.insert(shared);
        for window in shared.resources.iter().skip(1) {
            // SAFETY: the anchor is alive; the resource is taken out before it is freed (`finish`).
            to_result(unsafe { bindings::extoll_pci_window_insert(self.anchor, window.get()) })?;
            made.inserted += 1;
        }
        // SAFETY: the bridge is not registered yet. What it is given stays until `finish` has seen that nobody else has a
        // reference to it; the parent is referenced.
        unsafe {
            (*bridge).dev.parent = sysfs::raw(&self.parent);
            (*bridge).dev.msi.domain = irq_domain;
            (*bridge).sysdata = (&raw mut (*shared.host.get()).sysdata).cast();
            (*bridge).ops = config::operations();
            (*bridge).busnr = 0;
            // What is above the device is the lender's, and so are its errors, its links and its power.
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
            // From the highest down: of neighbours in the other order the PCI core makes one, and takes the other out of the map.
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

    /// Finds the devices, takes their BARs, lets drivers have them.
    fn scan(&self, made: &mut Made) -> Result {
        let bridge = made.bridge;
        // SAFETY: set up by `attach`.
        to_result(unsafe { bindings::pci_scan_root_bus_bridge(bridge) }).inspect_err(|_| {
            // It has no bus then.
            // SAFETY: not registered.
            unsafe { (*bridge).bus = ptr::null_mut() }
        })?;
        // SAFETY: it has been registered, so it has a bus.
        let bus = unsafe { (*bridge).bus };
        made.found = Ok(0);
        // SAFETY: the lock of rescans is held; `inspect` gets this object's `found`.
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
        // SAFETY: both devices are registered. There is nothing else of that name in the bridge's directory.
        let linked = unsafe {
            bindings::sysfs_create_link(
                &raw mut (*bridge).dev.kobj,
                &raw mut (*sysfs::raw(&self.parent)).kobj,
                c"nic".as_char_ptr(),
            )
        };
        made.linked = linked == 0;
        // SAFETY: the lock of rescans is held.
        unsafe { bindings::pci_bus_add_devices(bus) };
        Ok(())
    }

    /// Takes the devices and the bridge out of the PCI core. With the lock of rescans, or for who holds it.
    fn detach(&self) {
        // SAFETY: the callers have `phase` locked, or are waited for by who has.
        let made = unsafe { self.made() };
        let bridge = made.bridge;
        // SAFETY: the bridge was registered by `scan`.
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

    /// Gives back what `attach` has made; the bridge is not in the PCI core.
    fn finish(&self) {
        // SAFETY: the callers have `phase` locked, and wait for nobody.
        let made = unsafe { self.made() };
        self.behind.close();
        let shared = made.shared.take();
        if let Some(shared) = &shared {
            for window in shared.resources.iter().skip(1).take(made.inserted) {
                // SAFETY: inserted by `attach`.
                unsafe { bindings::extoll_pci_window_remove(window.get()) };
            }
        }
        made.inserted = 0;
        if let Some(interrupts) = made.interrupts.take() {
            if !interrupts.end() {
                dev_warn!(
                    &*self.parent,
                    "a driver left interrupts of PCI domain {:x} behind: its memory is kept\n",
                    made.domain
                );
                core::mem::forget(interrupts);
                // SAFETY: no requirements.
                unsafe { bindings::extoll_pci_pin() };
            }
        }
        let bridge = core::mem::replace(&mut made.bridge, ptr::null_mut());
        if bridge.is_null() {
            return;
        }
        if alone(bridge) {
            // SAFETY: the last reference. Nobody refers to what is in `shared` after it.
            unsafe { bindings::pci_free_host_bridge(bridge) };
            drop(shared);
        } else {
            dev_warn!(
                &*self.parent,
                "somebody still uses a device of PCI domain {:x}: its memory is kept\n",
                made.domain
            );
            core::mem::forget(shared);
            // SAFETY: no requirements.
            unsafe { bindings::extoll_pci_pin() };
        }
        let leaked = Pool::keep_leaked(&self.pool);
        if leaked > 0 {
            dev_warn!(&*self.parent, "a driver left {} pieces of DMA memory in PCI domain {:x} behind: the pool is kept\n", leaked, made.domain);
        }
    }

    /// # Safety
    ///
    /// To be called for the notifier of a bridge, by the chain of the PCI bus.
    unsafe extern "C" fn notified(
        _notifier: *mut bindings::notifier_block,
        action: c_ulong,
        device: *mut c_void,
    ) -> c_int {
        let device: *mut bindings::device = device.cast();
        // SAFETY: the device is alive, and one of the PCI bus.
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
        // SAFETY: registered by `HostBridge::new`, or not at all, which the chain bears. Waits for calls.
        unsafe {
            bindings::bus_unregister_notifier(
                &raw const bindings::pci_bus_type,
                self.notifier.get(),
            )
        };
        self.behind.close();
        if !self.anchor.is_null() {
            // SAFETY: the reference of `HostBridge::new`.
            unsafe { bindings::pci_dev_put(self.anchor) };
        }
        // SAFETY: nobody else uses it any more; the drop of an `Opaque` does not drop what is in it.
        unsafe { ptr::drop_in_place(self.made.get()) };
    }
}
