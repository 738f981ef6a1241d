// SPDX-License-Identifier: GPL-2.0-only

//! What is behind a bridge, for as long as it is there.

use super::Interrupts;
use crate::bindings;
use core::cell::UnsafeCell;
use kernel::{
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, AtomicFlag, Relaxed, Release},
        rcu, Arc,
    },
};

/// How wide an access to configuration space is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    /// 8 bits.
    Byte,
    /// 16 bits.
    Word,
    /// 32 bits.
    Dword,
}

impl Width {
    /// Bytes: 1, 2, 4.
    pub const fn bytes(self) -> u32 {
        match self {
            Width::Byte => 1,
            Width::Word => 2,
            Width::Dword => 4,
        }
    }

    /// All ones: what is read where nobody answers.
    pub const fn ones(self) -> u32 {
        u32::MAX >> (32 - 8 * self.bytes())
    }

    /// That of so many bytes.
    pub const fn of(bytes: c_int) -> Option<Self> {
        match bytes {
            1 => Some(Width::Byte),
            2 => Some(Width::Word),
            4 => Some(Width::Dword),
            _ => None,
        }
    }
}

/// What a device stores to cause an interrupt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// Where, as the device has it.
    pub address: u64,
    /// What.
    pub data: u32,
}

/// The functions behind a bridge. It is dropped by the bridge's removal, so it may hold what that depends on.
pub trait Functions: Send + Sync + 'static {
    /// Reads `width` from `offset` (0…4095, aligned to the width) of function `devfn` of bus 0. `None` if nobody answers: all ones.
    /// Any context, perhaps with interrupts disabled, always within a critical section of RCU: must not sleep, and has to
    /// return within a bounded time.
    fn read(&self, devfn: u8, offset: u16, width: Width) -> Option<u32>;

    /// Writes likewise. `None` if nobody answers.
    fn write(&self, devfn: u8, offset: u16, width: Width, value: u32) -> Option<()>;

    /// What a device stores for interrupt `vector` (from 0 on). A device with plain MSI and several vectors changes the low bits
    /// of the data itself, so those of consecutive vectors have to be consecutive numbers. Contexts as above.
    fn message(&self, vector: u32) -> Message;

    /// The bridge is being made, and its drivers may want interrupts before [`super::HostBridge::new`] returns: these are
    /// to be fired from now on. Once, in process context, with the lock of rescans; may sleep.
    ///
    /// # Errors
    ///
    /// There is no bridge then.
    fn begin(&self, interrupts: &Arc<Interrupts>) -> Result {
        let _ = interrupts;
        Ok(())
    }

    /// Number of the interrupt in which [`super::Interrupts::fire`] is called: where that runs is where the interrupts of the
    /// devices do.
    fn interrupt(&self) -> Option<u32> {
        None
    }
}

/// Accesses to configuration space.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Accesses {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Of both, those that nobody answered.
    pub failed: u64,
}

/// See the module's documentation.
///
/// # Invariants
///
/// `functions` is changed only by [`Behind::close`], a grace period after `open` was cleared, and read only by who has seen `open`
/// within a critical section of RCU.
pub(super) struct Behind {
    open: AtomicFlag,
    functions: UnsafeCell<Option<Arc<dyn Functions>>>,
    reads: Atomic<u64>,
    writes: Atomic<u64>,
    failed: Atomic<u64>,
}

// SAFETY: `Arc<dyn Functions>` may be shared and sent; the cell is accessed as the invariant says.
unsafe impl Send for Behind {}
// SAFETY: as above.
unsafe impl Sync for Behind {}

impl Behind {
    pub(super) fn new(functions: Arc<dyn Functions>) -> Self {
        Self {
            open: AtomicFlag::new(true),
            functions: UnsafeCell::new(Some(functions)),
            reads: Atomic::new(0),
            writes: Atomic::new(0),
            failed: Atomic::new(0),
        }
    }

    /// Calls `f` unless it is closed. Any context.
    fn with<R>(&self, f: impl FnOnce(&dyn Functions) -> Option<R>) -> Option<R> {
        let _grace = rcu::read_lock();
        if !self.open.load(Acquire) {
            return None;
        }
        // SAFETY: by the invariant nobody changes it before the grace period of the guard is over.
        let functions = unsafe { &*self.functions.get() };
        let functions = functions.as_ref()?;
        // SAFETY: only notes something for the lock checker.
        unsafe { bindings::extoll_pci_functions_enter() };
        let result = f(&**functions);
        // SAFETY: as above, and what was noted is.
        unsafe { bindings::extoll_pci_functions_leave() };
        result
    }

    pub(super) fn read(&self, devfn: u8, offset: u16, width: Width) -> Option<u32> {
        self.reads.add(1, Relaxed);
        let value = self.with(|f| f.read(devfn, offset, width));
        self.failed.add(u64::from(value.is_none()), Relaxed);
        value
    }

    pub(super) fn write(&self, devfn: u8, offset: u16, width: Width, value: u32) -> Option<()> {
        self.writes.add(1, Relaxed);
        let done = self.with(|f| f.write(devfn, offset, width, value));
        self.failed.add(u64::from(done.is_none()), Relaxed);
        done
    }

    pub(super) fn message(&self, vector: u32) -> Option<Message> {
        self.with(|f| Some(f.message(vector)))
    }

    /// By who makes the bridge. May sleep.
    pub(super) fn begin(&self, interrupts: &Arc<Interrupts>) -> Result {
        let functions = {
            let _grace = rcu::read_lock();
            if !self.open.load(Acquire) {
                return Err(ENODEV);
            }
            // SAFETY: by the invariant nobody changes it before the grace period of the guard is over.
            unsafe { (*self.functions.get()).clone() }
        };
        functions.ok_or(ENODEV)?.begin(interrupts)
    }

    pub(super) fn interrupt(&self) -> Option<u32> {
        self.with(|f| f.interrupt())
    }

    pub(super) fn accesses(&self) -> Accesses {
        Accesses {
            reads: self.reads.load(Relaxed),
            writes: self.writes.load(Relaxed),
            failed: self.failed.load(Relaxed),
        }
    }

    /// Nobody is called any more when this returns, and the functions are dropped. To be called by one at a time. Sleeps.
    pub(super) fn close(&self) {
        self.open.store(false, Release);
        rcu::synchronize_rcu();
        // SAFETY: by the invariant nobody reads it any more; the caller is the only one who changes it.
        let functions = unsafe { (*self.functions.get()).take() };
        drop(functions);
    }
}
