// SPDX-License-Identifier: GPL-2.0-only

//! Interrupts of the devices behind a bridge: a parent domain of PCI MSI and MSI-X, whose interrupts are fired by software.
//!
//! A vector is masked by the device's own table or configuration space, as the PCI core does with all devices. Which are
//! requested the domain hears from it: only those are fired, so that firing all of them writes to no device. Handlers see
//! interrupts of which their device knows nothing, so all are marked as polled: the kernel takes no offence at that.

use super::behind::Behind;
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
use wire::runs::{words, Align, Runs, Slot};

/// Most vectors of a bridge: those that one device with MSI-X can have.
pub(super) const MOST: u32 = 2048;
/// Bits of a word.
const BITS: u32 = u64::BITS;

/// The lock checker compares names by address.
static LOCK_NAME: &CStr = c"extoll_vectors";

type Vectors = Runs<(), KVec<Slot<()>>, KVec<u64>>;

/// The interrupts of a bridge. What is clear of it after the end of that does nothing.
///
/// # Invariants
///
/// `domain` is null or a domain whose host data are this object; it is freed a grace period after it was cleared.
#[pin_data]
pub struct Interrupts {
    domain: Atomic<*mut bindings::irq_domain>,
    behind: Arc<Behind>,
    /// A bit per vector that somebody has requested.
    requested: KVec<Atomic<u64>>,
    /// Those that are given to devices.
    #[pin]
    vectors: SpinLock<Vectors>,
    fired: Atomic<u64>,
}

/// Static tables of functions.
struct Table<T>(T);

// SAFETY: never changed.
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
    /// Makes a domain, called by the number of the PCI domain. May sleep.
    pub(super) fn new(vectors: u32, behind: &Arc<Behind>, number: i32) -> Result<Arc<Self>> {
        if !(1..=MOST).contains(&vectors) {
            return Err(EINVAL);
        }
        let count = vectors as usize;
        let slots = KVec::from_elem(Slot::FREE, count, GFP_KERNEL)?;
        let bits = KVec::from_elem(0u64, words(count), GFP_KERNEL)?;
        let runs = Runs::new(slots, bits).ok_or(EINVAL)?;
        let mut requested = KVec::with_capacity(words(count), GFP_KERNEL)?;
        for _ in 0..words(count) {
            requested.push(Atomic::new(0), GFP_KERNEL)?;
        }
        let this = Arc::pin_init(
            pin_init!(Self {
                domain: Atomic::new(ptr::null_mut()),
                behind: behind.clone(),
                requested,
                vectors <- SpinLock::new(runs, LOCK_NAME, static_lock_class!()),
                fired: Atomic::new(0),
            }),
            GFP_KERNEL,
        )?;
        let data = Arc::as_ptr(&this).cast_mut().cast();
        // SAFETY: the table is static; the data live longer than the domain, which `Interrupts::end` frees.
        let domain = unsafe { bindings::extoll_msi_domain_new(vectors, &DOMAIN.0, data, number) };
        if domain.is_null() {
            return Err(ENOMEM);
        }
        // INVARIANT: made just now for this object.
        this.domain.store(domain, Release);
        Ok(this)
    }

    pub(super) fn domain(&self) -> *mut bindings::irq_domain {
        self.domain.load(Relaxed)
    }

    /// Frees the domain, whose devices are gone. Sleeps. False if it has to stay, and so has this object, because a driver has
    /// left interrupts behind. To be called once, before the last reference is dropped.
    pub(super) fn end(&self) -> bool {
        for word in &self.requested {
            word.store(0, Relaxed);
        }
        let domain = self.domain.xchg(ptr::null_mut(), Full);
        if domain.is_null() {
            return true;
        }
        // Nobody fires one of its interrupts after this.
        rcu::synchronize_rcu();
        if self.vectors.lock().used() > 0 {
            return false;
        }
        // SAFETY: made by `new`; the devices that had interrupts of it have been removed.
        unsafe { bindings::extoll_msi_domain_free(domain) };
        true
    }

    /// The bit of a vector: in which word, and where in it.
    fn bit(&self, vector: u32) -> Option<(&Atomic<u64>, u64)> {
        let word = self.requested.get((vector / BITS) as usize)?;
        Some((word, 1 << (vector % BITS)))
    }

    fn fire_one(&self, vector: u32) {
        let domain = self.domain.load(Acquire);
        if domain.is_null() {
            return;
        }
        // SAFETY: by the invariant the domain is not freed as long as the caller's critical section of RCU lasts. Interrupts are
        // disabled while handlers run.
        let done = unsafe { bindings::generic_handle_domain_irq_safe(domain, vector as usize) };
        self.fired.add(u64::from(done == 0), Relaxed);
    }

    /// Has the handlers of a vector run, if somebody has requested it. Hard interrupts, or any other context that may be in
    /// a critical section of RCU.
    pub fn fire(&self, vector: u32) {
        let _grace = rcu::read_lock();
        if let Some((word, bit)) = self.bit(vector) {
            if word.load(Relaxed) & bit != 0 {
                self.fire_one(vector);
            }
        }
    }

    /// Has the handlers of all vectors run that somebody has requested. As [`Interrupts::fire`].
    pub fn fire_all(&self) {
        let _grace = rcu::read_lock();
        for (index, word) in (0..).zip(&self.requested) {
            let mut bits = word.load(Relaxed);
            while bits != 0 {
                self.fire_one(index * BITS + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// As [`Interrupts::fire_all`], from vector `from` on and then those before it, as long as `more` says so before each of them.
    /// `None` when all were called, otherwise the vector to go on with.
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

    /// How many vectors somebody has requested. Any context.
    pub fn requested(&self) -> u32 {
        let ones = |word: &Atomic<u64>| word.load(Relaxed).count_ones();
        self.requested.iter().map(ones).sum()
    }

    /// How often handlers were called. Any context.
    pub fn fired(&self) -> u64 {
        self.fired.load(Relaxed)
    }

    /// Takes consecutive vectors, each of which is given back by itself: the first of them.
    fn take(&self, count: usize) -> Option<usize> {
        let mut vectors = self.vectors.lock();
        // A device with plain MSI sets the low bits itself.
        let align = Align {
            modulus: count.checked_next_power_of_two()?,
            remainder: 0,
        };
        let first = vectors.take(count, align, ())?;
        vectors.close(first)?;
        vectors.free(first);
        for vector in first..first + count {
            let only = Align {
                modulus: 2 * MOST as usize,
                remainder: vector,
            };
            vectors.take(1, only, ())?;
        }
        Some(first)
    }

    fn give_back(&self, vector: usize) {
        let mut vectors = self.vectors.lock();
        if vectors.close(vector).is_some() {
            vectors.free(vector);
        }
    }

    /// Notes whether a vector is requested. Others may do so with other vectors at the same time.
    fn note(&self, vector: usize, requested: bool) {
        let Some((word, bit)) = self.bit(vector as u32) else {
            return;
        };
        match (word.load(Relaxed) & bit != 0, requested) {
            // No carry: the bit is clear.
            (false, true) => word.add(bit, Relaxed),
            // No borrow: it is set.
            (true, false) => {
                let _ = word.fetch_sub(bit, Relaxed);
            }
            _ => {}
        }
    }
}

/// The object of a domain.
///
/// # Safety
///
/// `domain` is one of [`Interrupts::new`], and not freed while the result is used.
unsafe fn of_domain<'a>(domain: *mut bindings::irq_domain) -> &'a Interrupts {
    // SAFETY: by the requirements, and as `new` has set it.
    unsafe { &*(*domain).host_data.cast::<Interrupts>() }
}

/// The object of an interrupt, and the number of the vector.
///
/// # Safety
///
/// `data` is that of an interrupt of one of our domains, and neither is freed while the result is used.
unsafe fn of_data<'a>(data: *mut bindings::irq_data) -> (&'a Interrupts, usize) {
    // SAFETY: by the requirements.
    unsafe { (of_domain((*data).domain), (*data).hwirq) }
}

/// # Safety
///
/// To be called by the interrupt core for one of our domains, as all functions below are.
unsafe extern "C" fn alloc(
    domain: *mut bindings::irq_domain,
    virq: c_uint,
    count: c_uint,
    _arg: *mut c_void,
) -> c_int {
    // SAFETY: by the requirements.
    let this = unsafe { of_domain(domain) };
    let Some(first) = this.take(count as usize) else {
        return ENOSPC.to_errno();
    };
    for (virq, vector) in iter::zip(virq..virq.saturating_add(count), first..) {
        // SAFETY: the core has made the descriptors; the tables are static.
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
/// As [`alloc`].
unsafe extern "C" fn free(domain: *mut bindings::irq_domain, virq: c_uint, count: c_uint) {
    // SAFETY: by the requirements.
    let this = unsafe { of_domain(domain) };
    for virq in virq..virq.saturating_add(count) {
        // SAFETY: the descriptors are those that `alloc` was called for.
        let data = unsafe { bindings::irq_domain_get_irq_data(domain, virq) };
        if data.is_null() {
            continue;
        }
        // SAFETY: as above.
        let vector = unsafe { (*data).hwirq };
        this.note(vector, false);
        // SAFETY: as above.
        unsafe { bindings::irq_domain_reset_irq_data(data) };
        this.give_back(vector);
    }
}

/// # Safety
///
/// As [`alloc`].
unsafe extern "C" fn startup(data: *mut bindings::irq_data) -> c_uint {
    // SAFETY: by the requirements.
    let (this, vector) = unsafe { of_data(data) };
    this.note(vector, true);
    0
}

/// # Safety
///
/// As [`alloc`].
unsafe extern "C" fn shutdown(data: *mut bindings::irq_data) {
    // SAFETY: by the requirements.
    let (this, vector) = unsafe { of_data(data) };
    this.note(vector, false);
}

/// # Safety
///
/// As [`alloc`].
unsafe extern "C" fn nothing(_data: *mut bindings::irq_data) {}

/// Any affinity is taken, and none has an effect: interrupts are handled where the NIC's is, which is shown.
///
/// # Safety
///
/// As [`alloc`].
unsafe extern "C" fn set_affinity(
    data: *mut bindings::irq_data,
    _mask: *const bindings::cpumask,
    _force: bool,
) -> c_int {
    // SAFETY: by the requirements.
    let (this, _) = unsafe { of_data(data) };
    let home = this.behind.interrupt().unwrap_or(0);
    // SAFETY: by the requirements; the core has the descriptor locked.
    unsafe { bindings::extoll_msi_effective(data, home) };
    // The message stays.
    bindings::IRQ_SET_MASK_OK_DONE as c_int
}

/// # Safety
///
/// As [`alloc`]; `msg` is the caller's, to be written.
unsafe extern "C" fn compose(data: *mut bindings::irq_data, msg: *mut bindings::msi_msg) {
    // SAFETY: by the requirements.
    let (this, vector) = unsafe { of_data(data) };
    let message = this.behind.message(vector as u32);
    // Nobody is there: what the device does not store anywhere.
    let (address, data) = message.map_or((0, 0), |m| (m.address, m.data));
    // SAFETY: by the requirements.
    unsafe { bindings::extoll_msi_message(msg, address, data) };
}
