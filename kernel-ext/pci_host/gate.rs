// SPDX-License-Identifier: GPL-2.0-only

//! Access to the functions behind a bridge, until the bridge is closed.

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

/// Width of an access to configuration space.
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
    /// Returns the number of bytes: 1, 2, 4.
    pub const fn bytes(self) -> u32 {
        match self {
            Width::Byte => 1,
            Width::Word => 2,
            Width::Dword => 4,
        }
    }

    /// Returns all ones, the result of a read without an answer.
    pub const fn ones(self) -> u32 {
        u32::MAX >> (32 - 8 * self.bytes())
    }

    /// Returns the width of `bytes` bytes.
    pub const fn of(bytes: c_int) -> Option<Self> {
        match bytes {
            1 => Some(Width::Byte),
            2 => Some(Width::Word),
            4 => Some(Width::Dword),
            _ => None,
        }
    }
}

/// Store by which a device causes an interrupt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// Address, in the device's address space.
    pub address: u64,
    /// Value to store.
    pub data: u32,
}

/// Functions behind a bridge. The bridge's removal drops this object, so it may own resources on
/// which the removal depends.
pub trait Functions: Send + Sync + 'static {
    /// Reads `width` bits at `offset` (0…4095, aligned to the width) of function `devfn` of bus 0.
    /// Returns `None` if the function does not answer; the reader then gets all ones. Called in any
    /// context, possibly with interrupts disabled, always in an RCU read-side critical section.
    /// Must not sleep, and must return within a bounded time.
    fn read(&self, devfn: u8, offset: u16, width: Width) -> Option<u32>;

    /// Writes to configuration space; parameters and contexts are the same as for [`Self::read`].
    /// Returns `None` if the function does not answer.
    fn write(&self, devfn: u8, offset: u16, width: Width, value: u32) -> Option<()>;

    /// Returns the store of a device for interrupt `vector` (from 0). A device with plain MSI and
    /// several vectors changes the low bits of the data itself, so the data of consecutive vectors
    /// must be consecutive numbers. The contexts of [`Self::read`] apply.
    fn message(&self, vector: u32) -> Message;

    /// Called once while the bridge is made. Drivers of its devices may expect interrupts before
    /// [`super::HostBridge::new`] returns, so these must be fired from now on. Process context,
    /// with the lock of rescans held; may sleep.
    ///
    /// # Errors
    ///
    /// On an error the bridge is not made.
    fn begin(&self, interrupts: &Arc<Interrupts>) -> Result {
        let _ = interrupts;
        Ok(())
    }

    /// Returns the number of the interrupt whose handler calls [`super::Interrupts::fire_while`].
    /// The devices' interrupts are handled on the CPU of that interrupt.
    fn interrupt(&self) -> Option<u32> {
        None
    }
}

/// Accesses to configuration space.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Accesses {
    /// Number of reads.
    pub reads: u64,
    /// Number of writes.
    pub writes: u64,
    /// Number of reads and writes without an answer.
    pub failed: u64,
}

/// Functions of a bridge, with a flag that ends access to these functions. See the module's
/// documentation.
///
/// # Invariants
///
/// `functions` is changed only by [`FunctionsGate::close`], after a grace period that begins when
/// `open` is cleared. `functions` is read only in an RCU read-side critical section that has found
/// `open` set.
pub(super) struct FunctionsGate {
    open: AtomicFlag,
    functions: UnsafeCell<Option<Arc<dyn Functions>>>,
    reads: Atomic<u64>,
    writes: Atomic<u64>,
    failed: Atomic<u64>,
}

// SAFETY: `Arc<dyn Functions>` is `Send` and `Sync`, and accesses to the cell follow the type
// invariant.
unsafe impl Send for FunctionsGate {}
// SAFETY: the reason given for `Send` applies.
unsafe impl Sync for FunctionsGate {}

impl FunctionsGate {
    pub(super) fn new(functions: Arc<dyn Functions>) -> Self {
        Self {
            open: AtomicFlag::new(true),
            functions: UnsafeCell::new(Some(functions)),
            reads: Atomic::new(0),
            writes: Atomic::new(0),
            failed: Atomic::new(0),
        }
    }

    /// Calls `f` unless the bridge is closed. Any context.
    fn with<R>(&self, f: impl FnOnce(&dyn Functions) -> Option<R>) -> Option<R> {
        let _grace = rcu::read_lock();
        if !self.open.load(Acquire) {
            return None;
        }
        // SAFETY: `open` was set in the critical section of `_grace`. By the type invariant the
        // cell is not changed before that section ends.
        let functions = unsafe { &*self.functions.get() };
        let functions = functions.as_ref()?;
        // SAFETY: the call only informs lockdep.
        unsafe { bindings::extoll_pci_functions_enter() };
        let result = f(&**functions);
        // SAFETY: the call only informs lockdep, and pairs with the call above.
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

    /// Calls [`Functions::begin`]; called by the thread that makes the bridge. May sleep.
    pub(super) fn begin(&self, interrupts: &Arc<Interrupts>) -> Result {
        let functions = {
            let _grace = rcu::read_lock();
            if !self.open.load(Acquire) {
                return Err(ENODEV);
            }
            // SAFETY: `open` was set in the critical section of `_grace`. By the type invariant the
            // cell is not changed before that section ends.
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

    /// Ends access to the functions and drops the functions. When this method returns, no call of
    /// the functions is running. Must not be called concurrently. Sleeps.
    pub(super) fn close(&self) {
        self.open.store(false, Release);
        rcu::synchronize_rcu();
        // SAFETY: after the grace period no reader uses the cell, by the type invariant. Callers do
        // not call this method concurrently.
        let functions = unsafe { (*self.functions.get()).take() };
        drop(functions);
    }
}
