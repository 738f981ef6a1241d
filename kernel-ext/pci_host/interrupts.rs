// SPDX-License-Identifier: GPL-2.0-only

//! Interrupts of the devices behind a bridge: a parent domain of PCI MSI and MSI-X, whose
//! interrupts are fired by software.
//!
//! A vector is masked in the device's own MSI-X table or configuration space, as with all PCI
//! devices. The domain is notified when a vector is requested or freed, and only requested vectors
//! are fired. Firing all vectors therefore needs no device access. Handlers are also called when
//! their device raised no event. All interrupts are marked as polled, so that the kernel does not
//! disable them as spurious.

use super::gate::FunctionsGate;
use crate::bindings;
use core::{iter, ptr};
use kernel::{
    prelude::*,
    static_lock_class,
    sync::{
        atomic::{Acquire, Atomic, Full, Relaxed, Release},
        rcu, Arc, SpinLock,
    },
};
use protocol::mem::runs::{words, Align, Slot, SlotAllocator};

/// Maximum number of vectors of a bridge, equal to the maximum of one device with MSI-X.
pub(super) const MAX_VECTORS: u32 = 2048;
/// Number of bits of a word.
const BITS: u32 = u64::BITS;

/// Name of the lock class; lockdep compares names by address.
static LOCK_NAME: &CStr = c"extoll_vectors";

type Vectors = SlotAllocator<(), KVec<Slot<()>>, KVec<u64>>;

/// Interrupts of a bridge. The methods have no effect after the bridge was removed.
///
/// # Invariants
///
/// `domain` is null, or a domain whose host data is this object. The domain is freed a grace period
/// after the pointer was cleared.
#[pin_data]
pub struct Interrupts {
    domain: Atomic<*mut bindings::irq_domain>,
    gate: Arc<FunctionsGate>,
    /// One bit per vector, set while the vector is requested.
    requested: KVec<Atomic<u64>>,
    /// Vectors that are allocated to devices.
    #[pin]
    vectors: SpinLock<Vectors>,
    fired: Atomic<u64>,
}

/// Table of callbacks that can be a static variable although it contains pointers.
struct Table<T>(T);

// SAFETY: tables are constant.
unsafe impl<T> Sync for Table<T> {}

static DOMAIN: Table<bindings::irq_domain_ops> = Table(bindings::irq_domain_ops {
    alloc: Some(alloc),
    free: Some(free),
    ..pin_init::zeroed()
});

static CHIP: Table<bindings::irq_chip> = Table(bindings::irq_chip {
    name: c"extoll".to_bytes_with_nul().as_ptr().cast(),
    irq_startup: Some(startup),
    irq_shutdown: Some(shutdown),
    irq_ack: Some(nothing),
    irq_mask: Some(nothing),
    irq_unmask: Some(nothing),
    irq_set_affinity: Some(set_affinity),
    irq_compose_msi_msg: Some(compose),
    ..pin_init::zeroed()
});

impl Interrupts {
    /// Makes a domain named after the number of the PCI domain. May sleep.
    pub(super) fn new(vectors: u32, gate: &Arc<FunctionsGate>, number: i32) -> Result<Arc<Self>> {
        if !(1..=MAX_VECTORS).contains(&vectors) {
            return Err(EINVAL);
        }
        let count = vectors as usize;
        let slots = KVec::from_elem(Slot::FREE, count, GFP_KERNEL)?;
        let bits = KVec::from_elem(0u64, words(count), GFP_KERNEL)?;
        let runs = SlotAllocator::new(slots, bits).ok_or(EINVAL)?;
        let mut requested = KVec::with_capacity(words(count), GFP_KERNEL)?;
        for _ in 0..words(count) {
            requested.push(Atomic::new(0), GFP_KERNEL)?;
        }
        let this = Arc::pin_init(
            pin_init!(Self {
                domain: Atomic::new(ptr::null_mut()),
                gate: gate.clone(),
                requested,
                vectors <- SpinLock::new(runs, LOCK_NAME, static_lock_class!()),
                fired: Atomic::new(0),
            }),
            GFP_KERNEL,
        )?;
        let data = Arc::as_ptr(&this).cast_mut().cast();
        // SAFETY: the table is static. The data outlive the domain, which `Interrupts::end` frees.
        let domain = unsafe { bindings::extoll_msi_domain_new(vectors, &DOMAIN.0, data, number) };
        if domain.is_null() {
            return Err(ENOMEM);
        }
        // INVARIANT: the domain has just been made for this object.
        this.domain.store(domain, Release);
        Ok(this)
    }

    pub(super) fn domain(&self) -> *mut bindings::irq_domain {
        self.domain.load(Relaxed)
    }

    /// Frees the domain after its devices have been removed. Returns false if a driver did not free
    /// its interrupts; then the caller must leak this object. Must be called once, before the last
    /// reference is dropped. Sleeps.
    pub(super) fn end(&self) -> bool {
        for word in &self.requested {
            word.store(0, Relaxed);
        }
        let domain = self.domain.xchg(ptr::null_mut(), Full);
        if domain.is_null() {
            return true;
        }
        // After the grace period no thread fires an interrupt of the domain.
        rcu::synchronize_rcu();
        if self.vectors.lock().used() > 0 {
            return false;
        }
        // SAFETY: `new` made the domain; all devices with interrupts of this domain have been
        // removed.
        unsafe { bindings::extoll_msi_domain_free(domain) };
        true
    }

    /// Returns the word that contains the bit of a vector, and that bit.
    fn bit(&self, vector: u32) -> Option<(&Atomic<u64>, u64)> {
        let word = self.requested.get((vector / BITS) as usize)?;
        Some((word, 1 << (vector % BITS)))
    }

    fn fire_one(&self, vector: u32) {
        let domain = self.domain.load(Acquire);
        if domain.is_null() {
            return;
        }
        // SAFETY: by the type invariant the domain is not freed before the end of the caller's RCU
        // read-side critical section. The function disables interrupts while handlers run.
        let done = unsafe { bindings::generic_handle_domain_irq_safe(domain, vector as usize) };
        self.fired.add(u64::from(done == 0), Relaxed);
    }

    /// Calls the handlers of requested vectors, from vector `from` upwards, then those of the lower
    /// vectors. Calls `more` before each vector. Returns `None` after all vectors. If `more`
    /// returned false, returns the vector that is next. May be called in hard interrupts, or in any
    /// other context that allows an RCU read-side critical section.
    pub fn fire_while(&self, from: u32, mut more: impl FnMut() -> bool) -> Option<u32> {
        let _grace = rcu::read_lock();
        let words = self.requested.len() as u32;
        let (first, low) = (from / BITS, (1u64 << (from % BITS)) - 1);
        for step in 0..=words {
            let index = (first + step) % words.max(1);
            let word = self.requested.get(index as usize)?;
            let mask = match step {
                0 => !low,
                n if n == words => low,
                _ => u64::MAX,
            };
            let mut bits = word.load(Relaxed) & mask;
            while bits != 0 {
                let vector = index * BITS + bits.trailing_zeros();
                if !more() {
                    return Some(vector);
                }
                self.fire_one(vector);
                bits &= bits - 1;
            }
        }
        None
    }

    /// Returns the number of requested vectors. Any context.
    pub fn requested(&self) -> u32 {
        let ones = |word: &Atomic<u64>| word.load(Relaxed).count_ones();
        self.requested.iter().map(ones).sum()
    }

    /// Returns the number of calls of handlers. Any context.
    pub fn fired(&self) -> u64 {
        self.fired.load(Relaxed)
    }

    /// Allocates consecutive vectors and returns the first vector. Each vector is freed separately.
    fn take(&self, count: usize) -> Option<usize> {
        let mut vectors = self.vectors.lock();
        // The vectors are aligned, because a device with plain MSI sets the low bits itself.
        let align = Align {
            modulus: count.checked_next_power_of_two()?,
            remainder: 0,
        };
        let first = vectors.allocate(count, align, ())?;
        vectors.close(first)?;
        vectors.free(first);
        for vector in first..first + count {
            let only = Align {
                modulus: 2 * MAX_VECTORS as usize,
                remainder: vector,
            };
            vectors.allocate(1, only, ())?;
        }
        Some(first)
    }

    fn give_back(&self, vector: usize) {
        let mut vectors = self.vectors.lock();
        if vectors.close(vector).is_some() {
            vectors.free(vector);
        }
    }

    /// Records whether a vector is requested. Other CPUs may change the bits of other vectors at
    /// the same time.
    fn note(&self, vector: usize, requested: bool) {
        let Some((word, bit)) = self.bit(vector as u32) else {
            return;
        };
        match (word.load(Relaxed) & bit != 0, requested) {
            // The bit is clear, so the addition has no carry.
            (false, true) => word.add(bit, Relaxed),
            // The bit is set, so the subtraction has no borrow.
            (true, false) => {
                let _ = word.fetch_sub(bit, Relaxed);
            }
            _ => {}
        }
    }
}

/// Returns the object of a domain.
///
/// # Safety
///
/// [`Interrupts::new`] made `domain`, which is not freed while the result is used.
unsafe fn of_domain<'a>(domain: *mut bindings::irq_domain) -> &'a Interrupts {
    // SAFETY: by the function's requirements the domain is valid; `new` set its host data.
    unsafe { &*(*domain).host_data.cast::<Interrupts>() }
}

/// Returns the object of an interrupt, and the number of its vector.
///
/// # Safety
///
/// `data` belongs to an interrupt of a domain that [`Interrupts::new`] made. Interrupt and domain
/// stay allocated while the result is used.
unsafe fn of_data<'a>(data: *mut bindings::irq_data) -> (&'a Interrupts, usize) {
    // SAFETY: by the function's requirements both are valid.
    unsafe { (of_domain((*data).domain), (*data).hwirq) }
}

/// # Safety
///
/// Only the interrupt core may call this function, for a domain that [`Interrupts::new`] made.
/// These requirements apply to all functions below.
unsafe extern "C" fn alloc(
    domain: *mut bindings::irq_domain,
    virq: c_uint,
    count: c_uint,
    _arg: *mut c_void,
) -> c_int {
    // SAFETY: by the function's requirements the domain is valid.
    let this = unsafe { of_domain(domain) };
    let Some(first) = this.take(count as usize) else {
        return ENOSPC.to_errno();
    };
    for (virq, vector) in iter::zip(virq..virq.saturating_add(count), first..) {
        // SAFETY: the interrupt core has allocated the descriptors; the tables are static.
        unsafe {
            bindings::irq_domain_set_info(
                domain,
                virq,
                vector,
                &CHIP.0,
                ptr::null_mut(),
                Some(bindings::handle_edge_irq),
                ptr::null_mut(),
                ptr::null(),
            );
            bindings::irq_modify_status(virq, 0, bindings::IRQ_IS_POLLED as c_ulong);
        }
    }
    0
}

/// # Safety
///
/// The requirements of [`alloc`] apply.
unsafe extern "C" fn free(domain: *mut bindings::irq_domain, virq: c_uint, count: c_uint) {
    // SAFETY: by the function's requirements the domain is valid.
    let this = unsafe { of_domain(domain) };
    for virq in virq..virq.saturating_add(count) {
        // SAFETY: `alloc` was called for these descriptors.
        let data = unsafe { bindings::irq_domain_get_irq_data(domain, virq) };
        if data.is_null() {
            continue;
        }
        // SAFETY: the descriptor is valid.
        let vector = unsafe { (*data).hwirq };
        this.note(vector, false);
        // SAFETY: the descriptor is valid.
        unsafe { bindings::irq_domain_reset_irq_data(data) };
        this.give_back(vector);
    }
}

/// # Safety
///
/// The requirements of [`alloc`] apply.
unsafe extern "C" fn startup(data: *mut bindings::irq_data) -> c_uint {
    // SAFETY: by the function's requirements `data` is an interrupt of a domain that
    // [`Interrupts::new`] made.
    let (this, vector) = unsafe { of_data(data) };
    this.note(vector, true);
    0
}

/// # Safety
///
/// The requirements of [`alloc`] apply.
unsafe extern "C" fn shutdown(data: *mut bindings::irq_data) {
    // SAFETY: by the function's requirements `data` is an interrupt of a domain that
    // [`Interrupts::new`] made.
    let (this, vector) = unsafe { of_data(data) };
    this.note(vector, false);
}

/// # Safety
///
/// The requirements of [`alloc`] apply.
unsafe extern "C" fn nothing(_data: *mut bindings::irq_data) {}

/// Accepts any affinity without an effect. Interrupts are handled on the CPU of the NIC's
/// interrupt, which is reported as the effective affinity.
///
/// # Safety
///
/// The requirements of [`alloc`] apply.
unsafe extern "C" fn set_affinity(
    data: *mut bindings::irq_data,
    _mask: *const bindings::cpumask,
    _force: bool,
) -> c_int {
    // SAFETY: by the function's requirements `data` is an interrupt of a domain that
    // [`Interrupts::new`] made.
    let (this, _) = unsafe { of_data(data) };
    let home = this.gate.interrupt().unwrap_or(0);
    // SAFETY: by the function's requirements `data` is valid; the interrupt core has locked the
    // descriptor.
    unsafe { bindings::extoll_msi_effective(data, home) };
    // The message of the vector does not change.
    bindings::IRQ_SET_MASK_OK_DONE as c_int
}

/// # Safety
///
/// The requirements of [`alloc`] apply; `msg` must be valid for writes.
unsafe extern "C" fn compose(data: *mut bindings::irq_data, msg: *mut bindings::msi_msg) {
    // SAFETY: by the function's requirements `data` is an interrupt of a domain that
    // [`Interrupts::new`] made.
    let (this, vector) = unsafe { of_data(data) };
    let message = this.gate.message(vector as u32);
    // Without an answer the message is 0, which the device does not store.
    let (address, data) = message.map_or((0, 0), |m| (m.address, m.data));
    // SAFETY: by the function's requirements `msg` is valid for writes.
    unsafe { bindings::extoll_msi_message(msg, address, data) };
}
