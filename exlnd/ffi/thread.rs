// SPDX-License-Identifier: GPL-2.0-only

//! Kernel threads bound to the CPTs of LNet, and their doorbells.

use core::{marker::PhantomData, ptr::NonNull};
use kernel::{prelude::*, sync::Arc};

// Declared in lnet.c with the same types.
extern "C" {
    fn exlnd_doorbell_new() -> *mut c_void;
    fn exlnd_doorbell_free(doorbell: *mut c_void);
    fn exlnd_doorbell_notify(doorbell: *mut c_void);
    fn exlnd_doorbell_wait(doorbell: *mut c_void, jiffies: c_long) -> bool;
    fn exlnd_thread_start(
        run: unsafe extern "C" fn(*mut c_void),
        arg: *mut c_void,
        cpt: c_int,
        name: *const c_char,
        n: c_int,
        m: c_int,
    ) -> *mut c_void;
    fn exlnd_thread_join(thread: *mut c_void);
}

/// Doorbell on which threads wait.
pub(crate) struct Doorbell(NonNull<c_void>);

// SAFETY: The functions of lnet.c may be called by any thread.
unsafe impl Send for Doorbell {}
// SAFETY: The functions of lnet.c may be called concurrently.
unsafe impl Sync for Doorbell {}

impl Doorbell {
    /// Creates a doorbell. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: Process context.
        let raw = unsafe { exlnd_doorbell_new() };
        Ok(Self(NonNull::new(raw).ok_or(ENOMEM)?))
    }

    /// Wakes the waiting thread, or lets the next wait return at once. Any context.
    pub(crate) fn notify(&self) {
        // SAFETY: The object is freed only by the drop of `self`.
        unsafe { exlnd_doorbell_notify(self.0.as_ptr()) }
    }

    /// Waits until the doorbell is notified or `jiffies` have passed; `None` sets no time limit.
    /// Returns false if the thread must end.
    pub(crate) fn wait(&self, _: &Current, jiffies: Option<u32>) -> bool {
        let jiffies = jiffies.map_or(-1, |n| n as c_long);
        // SAFETY: The object is freed only by the drop of `self`. `Current` proves that the caller
        // is a thread started by lnet.c.
        unsafe { exlnd_doorbell_wait(self.0.as_ptr(), jiffies) }
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        // SAFETY: No thread waits, because waiting borrows `self`.
        unsafe { exlnd_doorbell_free(self.0.as_ptr()) }
    }
}

/// Proof that the caller runs in a [`Thread`].
pub(crate) struct Current(PhantomData<*mut ()>);

/// Function of a thread.
pub(crate) trait Run: Send + Sync + 'static {
    /// Runs until a wait on its doorbell returns false.
    fn run(&self, current: &Current);
}

/// A kernel thread. Drop stops it and waits for its end.
pub(crate) struct Thread<T: Run> {
    raw: NonNull<c_void>,
    _arg: Arc<T>,
}

// SAFETY: A thread may be stopped by any other thread.
unsafe impl<T: Run> Send for Thread<T> {}
// SAFETY: `&Thread` has no methods.
unsafe impl<T: Run> Sync for Thread<T> {}

/// Entry point of a thread.
///
/// # Safety
///
/// `arg` must point to a `T` that exists until this function returns. The caller must be a thread
/// started by lnet.c.
unsafe extern "C" fn main<T: Run>(arg: *mut c_void) {
    // SAFETY: The caller meets the safety requirements of this function.
    unsafe { &*arg.cast_const().cast::<T>() }.run(&Current(PhantomData));
}

impl<T: Run> Thread<T> {
    /// Starts a thread that is bound to a CPT of LNet, or may run on any CPU. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn start(
        arg: Arc<T>,
        cpt: Option<i32>,
        name: &CStr,
        (n, m): (u32, u32),
    ) -> Result<Self> {
        let (ptr, cpt) = (Arc::as_ptr(&arg).cast_mut(), cpt.unwrap_or(-1));
        // SAFETY: `arg` lives until the thread was joined in the drop of `Self`. The name is a C
        // string, which is copied.
        let raw = unsafe {
            exlnd_thread_start(
                main::<T>,
                ptr.cast(),
                cpt,
                name.as_char_ptr(),
                n as c_int,
                m as c_int,
            )
        };
        Ok(Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            _arg: arg,
        })
    }
}

impl<T: Run> Drop for Thread<T> {
    fn drop(&mut self) {
        // SAFETY: The thread was started, and is joined once, by another thread.
        unsafe { exlnd_thread_join(self.raw.as_ptr()) }
    }
}
