// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! State machines of the protocols. They contain the state and the decisions of both ends, without
//! I/O, locks, allocation or a clock.
//!
//! A kernel module drives them in production, the simulation (`sim/`) over the emulator's NIC
//! models, and unit tests. A driver provides
//! * memory for tables by a [`Memory`], from which a state machine allocates only when it is
//!   created,
//! * the time by a [`Clock`],
//! * transmission by a transport trait of the state machine,
//! * buffers of a type of the driver, for which it implements a trait
//!   ([`eth::rendezvous::Buffer`]).
//!
//! Each object has a table of states and events ([`mod@base::flow`]), whose transitions are
//! counted. docs/machines.md explains how to write a state machine and its simulation.
#![no_std]
#![forbid(unsafe_code)]
#![warn(clippy::match_bool)]

pub mod base;
pub mod ds;
pub mod eth;
pub mod lnd;
pub mod mem;
pub mod nic;
pub mod pci;
pub mod transfer;

pub use base::{slots::Slots, time::Time};

use core::ops::DerefMut;

/// Allocator for tables.
pub trait Memory {
    /// Array whose length never changes.
    type Array<T>: DerefMut<Target = [T]>;
    /// Error of a failed allocation.
    type Error;

    /// Allocates an array of `len` elements made by `make`, which gets their indices in ascending
    /// order. May sleep if the allocator does.
    ///
    /// # Errors
    ///
    /// Returns an error if the memory cannot be allocated.
    fn array<T>(len: usize, make: impl FnMut(usize) -> T) -> Result<Self::Array<T>, Self::Error>;
}

/// Source of the current time.
pub trait Clock {
    /// Returns the current time.
    fn now(&self) -> Time;
}

impl Clock for Time {
    fn now(&self) -> Time {
        *self
    }
}

/// Access to data that a lock protects.
pub trait Shared<T> {
    /// Calls `f` with the lock held.
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R;
}

/// Reason for which a transport did not accept a command or message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TransportError {
    /// No slot is free now. The transport notifies its user when a slot becomes free.
    Later,
    /// The transport will never accept the command or message, for example because the port is
    /// closed.
    Never,
}
