// SPDX-License-Identifier: GPL-2.0-only

//! Message-signalled interrupts of a PCI device (MSI or MSI-X). The handler gets the number of the
//! vector.

use crate::{bindings, pci::raw};
use core::marker::PhantomPinned;
use kernel::{
    device::Bound,
    error::to_result,
    pci,
    prelude::*,
    sync::atomic::{Acquire, Atomic, Release},
};

/// Hard interrupt handler.
pub trait VectorHandler: Send + Sync + 'static {
    /// Called in hard interrupt context for every interrupt of a vector. Must not sleep.
    fn handle(&self, vector: u32);
}

/// Argument of the interrupt handler for one vector.
struct Cookie<T> {
    handler: *const T,
    vector: u32,
    irq: c_uint,
}

/// All requested vectors of a device. The drop waits for running handlers and frees the vectors; it
/// may sleep.
///
/// # Invariants
///
/// The first `requested` elements of `cookies` have been requested. Elements of `cookies` do not
/// move in memory, and their `handler` points to the field `handler`.
#[pin_data(PinnedDrop)]
pub struct Vectors<'a, T: VectorHandler> {
    dev: &'a pci::Device<Bound>,
    handler: T,
    cookies: KVec<Cookie<T>>,
    requested: Atomic<usize>,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: the pointers in `cookies` point to `handler`, which is accessed by shared reference only.
unsafe impl<T: VectorHandler> Send for Vectors<'_, T> {}
// SAFETY: the reason given for `Send` applies.
unsafe impl<T: VectorHandler> Sync for Vectors<'_, T> {}

impl<'a, T: VectorHandler> Vectors<'a, T> {
    /// Allocates and requests 1 to `max` vectors, of MSI-X or of plain MSI. May sleep. The handler
    /// may be called before this function returns.
    ///
    /// # Errors
    ///
    /// Errors of `pci_alloc_irq_vectors` and `request_irq`.
    pub fn new(
        dev: &'a pci::Device<Bound>,
        max: u32,
        msix: bool,
        name: &'static CStr,
        handler: T,
    ) -> Result<Pin<KBox<Self>>> {
        let kind = if msix {
            bindings::PCI_IRQ_MSIX
        } else {
            bindings::PCI_IRQ_MSI
        };
        let mut cookies = KVec::with_capacity(max as usize, GFP_KERNEL)?;
        // SAFETY: the device is valid while bound.
        let count = unsafe { bindings::pci_alloc_irq_vectors(raw(dev), 1, max, kind) };
        to_result(count)?;
        for vector in 0..count as u32 {
            // SAFETY: the device has `count` vectors.
            let irq = unsafe { bindings::pci_irq_vector(raw(dev), vector) } as c_uint;
            let handler = core::ptr::null();
            let cookie = Cookie {
                handler,
                vector,
                irq,
            };
            // The capacity is `max`, so the call cannot fail.
            let _ = cookies.push_within_capacity(cookie);
        }
        // From now on the drop frees the vectors.
        let this = Self {
            dev,
            handler,
            cookies,
            requested: Atomic::new(0),
            _pin: PhantomPinned,
        };
        let mut this = KBox::into_pin(KBox::new(this, GFP_KERNEL)?);
        let handler: *const T = &this.handler;
        // SAFETY: the object is not moved.
        let fields = unsafe { this.as_mut().get_unchecked_mut() };
        for cookie in &mut fields.cookies {
            cookie.handler = handler;
        }
        for cookie in &this.cookies {
            let pointer = core::ptr::from_ref(cookie).cast_mut().cast();
            // SAFETY: cookie and handler are pinned and live until the drop has freed the
            // interrupt. If the object is leaked, both live for ever; data that the handler refers
            // to live as long, because `T` is `'static`.
            to_result(unsafe {
                bindings::request_irq(
                    cookie.irq,
                    Some(Self::callback),
                    0,
                    name.as_char_ptr(),
                    pointer,
                )
            })?;
            // INVARIANT: this cookie has just been requested.
            this.requested.store(cookie.vector as usize + 1, Release);
        }
        Ok(this)
    }

    /// Returns the number of vectors, at least 1.
    pub fn count(&self) -> u32 {
        self.cookies.len() as u32
    }

    /// Returns the handler.
    pub fn handler(&self) -> &T {
        &self.handler
    }

    /// # Safety
    ///
    /// Only the interrupt core may call this function, with a cookie of a [`Vectors`].
    unsafe extern "C" fn callback(_irq: c_int, cookie: *mut c_void) -> bindings::irqreturn_t {
        // SAFETY: by the function's requirements the cookie belongs to a [`Vectors`], which is
        // alive because its drop frees the interrupt first.
        let (handler, vector) = unsafe {
            let cookie = &*cookie.cast::<Cookie<T>>();
            (&*cookie.handler, cookie.vector)
        };
        handler.handle(vector);
        bindings::irqreturn::IRQ_HANDLED
    }
}

#[pinned_drop]
impl<T: VectorHandler> PinnedDrop for Vectors<'_, T> {
    fn drop(self: Pin<&mut Self>) {
        for cookie in self.cookies.iter().take(self.requested.load(Acquire)) {
            let pointer = core::ptr::from_ref(cookie).cast_mut().cast();
            // SAFETY: by the type invariant the interrupt was requested with this cookie. The call
            // waits for running handlers.
            unsafe { bindings::free_irq(cookie.irq, pointer) };
        }
        // SAFETY: `new` allocated the vectors; all of their interrupts have been freed.
        unsafe { bindings::pci_free_irq_vectors(raw(self.dev)) };
    }
}
