// SPDX-License-Identifier: GPL-2.0-only

//! Configuration accesses of the PCI core.

use super::{shared::Shared, Width};
use crate::bindings;
use kernel::prelude::*;

/// Results of the operations, with the values of the PCI core.
const SUCCESSFUL: c_int = 0;
const BAD_REGISTER: c_int = 0x87;
const NOT_FOUND: c_int = 0x86;
/// Size of PCIe configuration space in bytes.
const END: u32 = 4096;
/// Register of the interrupt pin. The register reads as 0, so that drivers do not wait for
/// interrupts of pins.
const INTERRUPT_PIN: u16 = 0x3d;

/// Table of operations. A bus with this table belongs to a bridge of this module.
pub(super) struct Operations(bindings::pci_ops);

// SAFETY: the table is constant.
unsafe impl Sync for Operations {}

static OPERATIONS: Operations = Operations(bindings::pci_ops {
    read: Some(read),
    write: Some(write),
    ..pin_init::zeroed()
});

/// Returns the table that all bridges of this module use.
pub(super) fn operations() -> *mut bindings::pci_ops {
    // The PCI core does not change the table.
    (&raw const OPERATIONS.0).cast_mut()
}

/// Checks that an access is to bus 0 and to an aligned register. Returns function, offset and
/// width, or an error of the PCI core.
fn locate(number: u8, devfn: c_uint, at: c_int, size: c_int) -> Result<(u8, u16, Width), c_int> {
    let width = Width::of(size).ok_or(BAD_REGISTER)?;
    let aligned = (at as u32) < END && at as u32 % width.bytes() == 0;
    match (aligned, number, u8::try_from(devfn)) {
        (false, ..) => Err(BAD_REGISTER),
        (true, 0, Ok(devfn)) => Ok((devfn, at as u16, width)),
        _ => Err(NOT_FOUND),
    }
}

/// Clears the interrupt pin's byte in a value that was read at `offset`.
fn without_pin(offset: u16, width: Width, value: u32) -> u32 {
    let end = offset + width.bytes() as u16;
    if (offset..end).contains(&INTERRUPT_PIN) {
        value & !(0xff << (8 * (INTERRUPT_PIN - offset)))
    } else {
        value
    }
}

/// # Safety
///
/// Only the PCI core may call this function, for a bus of a bridge of this module.
unsafe extern "C" fn read(
    bus: *mut bindings::pci_bus,
    devfn: c_uint,
    at: c_int,
    size: c_int,
    value: *mut u32,
) -> c_int {
    // SAFETY: by the function's requirements the bus is alive, and so is the `Shared` of its
    // bridge.
    let (shared, number) = unsafe { (Shared::of_bus(bus), (*bus).number) };
    let (result, read) = match locate(number, devfn, at, size) {
        Ok((devfn, offset, width)) => match shared.gate.read(devfn, offset, width) {
            Some(v) => (SUCCESSFUL, without_pin(offset, width, v & width.ones())),
            None => (NOT_FOUND, width.ones()),
        },
        Err(e) => (e, u32::MAX),
    };
    // SAFETY: the PCI core passes a pointer that is valid for writes.
    unsafe { value.write(read) };
    result
}

/// # Safety
///
/// The requirements of [`read`] apply.
unsafe extern "C" fn write(
    bus: *mut bindings::pci_bus,
    devfn: c_uint,
    at: c_int,
    size: c_int,
    value: u32,
) -> c_int {
    // SAFETY: the reasons given in `read` apply.
    let (shared, number) = unsafe { (Shared::of_bus(bus), (*bus).number) };
    match locate(number, devfn, at, size) {
        Ok((devfn, offset, width)) => {
            let value = value & width.ones();
            match shared.gate.write(devfn, offset, width, value) {
                Some(()) => SUCCESSFUL,
                None => NOT_FOUND,
            }
        }
        Err(e) => e,
    }
}
