// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Protocol machines: what both ends of a protocol remember and decide, without I/O, locks, memory
//! of its own, or a clock.
//!
//! A machine is driven by whoever has those: a kernel module in production, the simulation (`sim/`)
//! over the emulator's NIC models, or a unit test. It gets
//! * memory for its tables from a [`Memory`], all of it when it is made,
//! * the time from a [`Clock`],
//! * a way to send from a transport trait of its own,
//! * buffers as a type of the caller, of which it knows no more than it has to
//!   ([`eth::rendezvous::Buffer`]).
//!
//! The life of each object is a table of states and events ([`mod@base::flow`]), whose transitions are
//! counted. docs/machines.md tells how to write one and its simulation.
#![no_std]
#![forbid(unsafe_code)]

pub mod base;
pub mod cache;
pub mod ds;
pub mod eth;
pub mod intervals;
pub mod lnd;
pub mod pci;
pub mod tickets;
pub mod transfer;
pub mod translation;

pub use base::slots::Slots;
pub use wire::time::Time;

use core::ops::DerefMut;

/// Where the memory of tables comes from.
pub trait Memory {
    /// An array whose length never changes.
    type Array<T>: DerefMut<Target = [T]>;
    /// Why there is none.
    type Error;

    /// An array of `len` elements made by `make`, which gets their indices in ascending order.
    ///
    /// # Errors
    ///
    /// There is no memory.
    fn array<T>(len: usize, make: impl FnMut(usize) -> T) -> Result<Self::Array<T>, Self::Error>;
}

/// Tells the time.
pub trait Clock {
    /// Now.
    fn now(&self) -> Time;
}

impl Clock for Time {
    fn now(&self) -> Time {
        *self
    }
}

/// Access to what is behind a lock.
pub trait Shared<T> {
    /// Calls `f` with the lock held.
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R;
}

/// Why a transport did not take something.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refused {
    /// No room now; the transport tells its user when there is.
    Later,
    /// It never will.
    Never,
}
