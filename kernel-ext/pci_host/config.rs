// SPDX-License-Identifier: GPL-2.0-only

//! Configuration accesses of the PCI core.

use super::{shared::Shared, Width};
use crate::bindings;
use kernel::prelude::*;

/// Results of the operations.
const SUCCESSFUL: c_int = 0;
const BAD_REGISTER: c_int = 0x87;
const NOT_FOUND: c_int = 0x86;
/// End of the configuration space of PCIe.
const END: u32 = 4096;
/// Register of the interrupt pin: 0, so that nobody waits for interrupts that have no message.
const INTERRUPT_PIN: u16 = 0x3d;

/// A table, which bridges are known by.
pub(super) struct Operations(bindings::pci_ops);

// SAFETY: never changed.
unsafe impl Sync for Operations {}

static OPERATIONS: Operations = Operations(bindings::pci_ops {
    read: Some(read),
    write: Some(write),
    ..pin_init::zeroed()
});

/// The table of all our bridges.
pub(super) fn operations() -> *mut bindings::pci_ops {
    // The PCI core does not change it.
    (&raw const OPERATIONS.0).cast_mut()
}

/// What an access is to: bus 0, an aligned register.
fn place(number: u8, devfn: c_uint, at: c_int, size: c_int) -> Result<(u8, u16, Width), c_int> {
    let width = Width::of(size).ok_or(BAD_REGISTER)?;
    let aligned = (at as u32) < END && at as u32 % width.bytes() == 0;
    match (aligned, number, u8::try_from(devfn)) {
        (false, ..) => Err(BAD_REGISTER),
        (true, 0, Ok(devfn)) => Ok((devfn, at as u16, width)),
        _ => Err(NOT_FOUND),
    }
}

/// Clears what of a value at `offset` is the interrupt pin.
fn without_pin(offset: u16, width: Width, value: u32) -> u32 {
    let end = offset + width.bytes() as u16;
    match (offset..end).contains(&INTERRUPT_PIN) {
        true => value & !(0xff << (8 * (INTERRUPT_PIN - offset))),
        false => value,
    }
}

/// # Safety
///
/// To be called by the PCI core for a bus of one of our bridges.
unsafe extern "C" fn read(
    bus: *mut bindings::pci_bus,
    devfn: c_uint,
    at: c_int,
    size: c_int,
    value: *mut u32,
) -> c_int {
    // SAFETY: by the requirements the bus is alive, and so is what its bridge shares.
    let (shared, number) = unsafe { (Shared::of_bus(bus), (*bus).number) };
    let (result, read) = match place(number, devfn, at, size) {
        Ok((devfn, offset, width)) => match shared.behind.read(devfn, offset, width) {
            Some(v) => (SUCCESSFUL, without_pin(offset, width, v & width.ones())),
            None => (NOT_FOUND, width.ones()),
        },
        Err(e) => (e, u32::MAX),
    };
    // SAFETY: the caller's, to be written.
    unsafe { value.write(read) };
    result
}

/// # Safety
///
/// As [`read`].
unsafe extern "C" fn write(
    bus: *mut bindings::pci_bus,
    devfn: c_uint,
    at: c_int,
    size: c_int,
    value: u32,
) -> c_int {
    // SAFETY: as in `read`.
    let (shared, number) = unsafe { (Shared::of_bus(bus), (*bus).number) };
    match place(number, devfn, at, size) {
        Ok((devfn, offset, width)) => {
            let value = value & width.ones();
            match shared.behind.write(devfn, offset, width, value) {
                Some(()) => SUCCESSFUL,
                None => NOT_FOUND,
            }
        }
        Err(e) => e,
    }
}
