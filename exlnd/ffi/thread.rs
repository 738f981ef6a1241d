// SPDX-License-Identifier: GPL-2.0-only

//! Threads, which run on the CPTs of LNet, and what they wait for.

use core::{marker::PhantomData, ptr::NonNull};
use kernel::{prelude::*, sync::Arc};

// Functions of lnet.c, with the same types.
extern "C" {
    fn exlnd_bell_new() -> *mut c_void;
    fn exlnd_bell_free(bell: *mut c_void);
    fn exlnd_bell_ring(bell: *mut c_void);
    fn exlnd_bell_wait(bell: *mut c_void, jiffies: c_long) -> bool;
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

/// What threads wait for.
pub(crate) struct Bell(NonNull<c_void>);

// SAFETY: lnet.c's functions may be called by any thread.
unsafe impl Send for Bell {}
// SAFETY: as above, at the same time as well.
unsafe impl Sync for Bell {}

impl Bell {
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: process context.
        let raw = unsafe { exlnd_bell_new() };
        Ok(Self(NonNull::new(raw).ok_or(ENOMEM)?))
    }

    /// Wakes who waits, or will. Any context.
    pub(crate) fn ring(&self) {
        // SAFETY: it exists as long as `self`.
        unsafe { exlnd_bell_ring(self.0.as_ptr()) }
    }

    /// Waits until it is rung, for so many jiffies at most; without end if none are said. Returns
    /// whether the thread is to go on.
    pub(crate) fn wait(&self, _: &Current, jiffies: Option<u32>) -> bool {
        let jiffies = jiffies.map_or(-1, |n| n as c_long);
        // SAFETY: as above; one of lnet.c's threads calls it, as it has its `Current`.
        unsafe { exlnd_bell_wait(self.0.as_ptr(), jiffies) }
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        // SAFETY: nobody waits: that takes a reference.
        unsafe { exlnd_bell_free(self.0.as_ptr()) }
    }
}

/// Whoever has it is a [`Thread`].
pub(crate) struct Current(PhantomData<*mut ()>);

/// What a thread does.
pub(crate) trait Run: Send + Sync + 'static {
    /// All of it: returns when its bell says so.
    fn run(&self, current: &Current);
}

/// A thread. Its drop has it end, and waits for that.
pub(crate) struct Thread<T: Run> {
    raw: NonNull<c_void>,
    _arg: Arc<T>,
}

// SAFETY: a thread may be ended by any other.
unsafe impl<T: Run> Send for Thread<T> {}
// SAFETY: `&Thread` allows nothing.
unsafe impl<T: Run> Sync for Thread<T> {}

/// Runs a thread.
///
/// # Safety
///
/// `arg` is a `T` that exists until this has returned, in a thread that lnet.c has started.
unsafe extern "C" fn main<T: Run>(arg: *mut c_void) {
    // SAFETY: by the requirement.
    unsafe { &*arg.cast_const().cast::<T>() }.run(&Current(PhantomData));
}

impl<T: Run> Thread<T> {
    /// Starts one on a CPT, or anywhere. May sleep.
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
        // SAFETY: `arg` stays until the thread was joined, in the drop of `Self`; the name is a
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
        // SAFETY: it was started, and is joined once, by another thread.
        unsafe { exlnd_thread_join(self.raw.as_ptr()) }
    }
}
