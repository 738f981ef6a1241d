// SPDX-License-Identifier: GPL-2.0-only

//! Bytes of the kernel's heap that a device is lent, for as long as its driver is bound: CPU and device may have them by turns.

use crate::{bindings, sysfs};
use core::{mem::MaybeUninit, ops::Range};
use kernel::{
    device::{Bound, Device},
    dma::DataDirection,
    error::to_result,
    prelude::*,
};

/// Whose the bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    Device,
    Cpu,
}

/// A streaming mapping that can be synchronised. If it is leaked the device keeps the bytes.
///
/// # Examples
///
/// ```
/// # use kernel::{device::{Bound, Device}, dma::DataDirection, prelude::*};
/// # use kernel_ext::mem::Loan;
/// fn first_byte(dev: &Device<Bound>) -> Result<u8> {
///     let buffer = KVec::from_elem(0u8, 64, GFP_KERNEL)?;
///     let mut loan = Loan::new(dev, buffer, 0..64, DataDirection::FromDevice)?;
///     // … the device is told `loan.address()`, and writes …
///     loan.to_cpu();
///     loan.bytes().and_then(|b| b.first().copied()).ok_or(EIO)
/// }
/// ```
pub struct Loan<'a> {
    dev: &'a Device<Bound>,
    buffer: KVec<u8>,
    lent: Range<usize>,
    address: u64,
    direction: DataDirection,
    turn: Turn,
}

impl<'a> Loan<'a> {
    /// Lends a part of a buffer. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` for what is not in the buffer, or for no bytes or direction; `ENOMEM`.
    pub fn new(
        dev: &'a Device<Bound>,
        mut buffer: KVec<u8>,
        lent: Range<usize>,
        direction: DataDirection,
    ) -> Result<Self> {
        let bytes = buffer.get_mut(lent.clone()).ok_or(EINVAL)?;
        if bytes.is_empty() || direction == DataDirection::None {
            return Err(EINVAL);
        }
        let mut address = MaybeUninit::uninit();
        // SAFETY: the device is bound; the memory is that of a `KVec`, linearly mapped, which is neither accessed while it is the
        // device's nor moved or freed before it is unmapped; bytes may have any value.
        to_result(unsafe {
            bindings::extoll_dma_map(
                sysfs::raw(dev),
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                direction.into(),
                address.as_mut_ptr(),
            )
        })?;
        Ok(Self {
            dev,
            buffer,
            lent,
            // SAFETY: written on success.
            address: unsafe { address.assume_init() },
            direction,
            turn: Turn::Device,
        })
    }

    /// Where the device has the first of the bytes. Any context.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The CPU's turn: it sees what the device wrote. Any context.
    pub fn to_cpu(&mut self) {
        // SAFETY: mapped by `new`.
        unsafe {
            bindings::extoll_dma_to_cpu(
                sysfs::raw(self.dev),
                self.address,
                self.lent.len(),
                self.direction.into(),
            )
        };
        self.turn = Turn::Cpu;
    }

    /// The device's turn: it sees what the CPU wrote. Any context.
    pub fn to_device(&mut self) {
        // SAFETY: mapped by `new`.
        unsafe {
            bindings::extoll_dma_to_device(
                sysfs::raw(self.dev),
                self.address,
                self.lent.len(),
                self.direction.into(),
            )
        };
        self.turn = Turn::Device;
    }

    /// The bytes, if it is the CPU's turn. Any context.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.buffer
            .get(self.lent.clone())
            .filter(|_| self.turn == Turn::Cpu)
    }

    /// The bytes, to be changed, if it is the CPU's turn. Any context.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let turn = self.turn;
        self.buffer
            .get_mut(self.lent.clone())
            .filter(|_| turn == Turn::Cpu)
    }

    /// Ends it: the buffer, with what the device wrote. Any context.
    pub fn end(mut self) -> KVec<u8> {
        // The drop unmaps what is left then.
        let buffer = {
            self.unmap();
            core::mem::take(&mut self.buffer)
        };
        core::mem::forget(self);
        buffer
    }

    fn unmap(&mut self) {
        // SAFETY: mapped by `new`; called once, by the drop or instead of it.
        unsafe {
            bindings::extoll_dma_unmap(
                sysfs::raw(self.dev),
                self.address,
                self.lent.len(),
                self.direction.into(),
            )
        };
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        self.unmap();
    }
}
