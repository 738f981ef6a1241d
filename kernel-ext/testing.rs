// SPDX-License-Identifier: GPL-2.0-only

//! Aids for the modules in tests/modules; modules that users load do not need them.

use crate::{bindings, sysfs};
use core::{mem::MaybeUninit, ops::Range};
use kernel::{
    device::{Bound, Device},
    dma::DataDirection,
    error::to_result,
    prelude::*,
};

/// Current user of the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Device,
    Cpu,
}

/// Streaming mapping of heap memory that CPU and device use alternately. If the mapping is leaked,
/// the bytes stay mapped for the device.
///
/// # Examples
///
/// ```
/// # use kernel::{device::{Bound, Device}, dma::DataDirection, prelude::*};
/// # use kernel_ext::testing::SyncMapping;
/// fn first_byte(dev: &Device<Bound>) -> Result<u8> {
///     let buffer = KVec::from_elem(0u8, 64, GFP_KERNEL)?;
///     let mut mapping = SyncMapping::new(dev, buffer, 0..64, DataDirection::FromDevice)?;
///     // … pass `mapping.address()` to the device, which writes …
///     mapping.to_cpu();
///     mapping.bytes().and_then(|b| b.first().copied()).ok_or(EIO)
/// }
/// ```
pub struct SyncMapping<'a> {
    dev: &'a Device<Bound>,
    buffer: KVec<u8>,
    range: Range<usize>,
    address: u64,
    direction: DataDirection,
    side: Side,
}

impl<'a> SyncMapping<'a> {
    /// Maps a range of a buffer for a device. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the range exceeds the buffer or is empty, or `direction` is none. `ENOMEM`.
    pub fn new(
        dev: &'a Device<Bound>,
        mut buffer: KVec<u8>,
        range: Range<usize>,
        direction: DataDirection,
    ) -> Result<Self> {
        let bytes = buffer.get_mut(range.clone()).ok_or(EINVAL)?;
        if bytes.is_empty() || direction == DataDirection::None {
            return Err(EINVAL);
        }
        let mut address = MaybeUninit::uninit();
        // SAFETY: the device is bound. The memory belongs to a `KVec`, so it is linearly mapped.
        // CPUs do not access the memory while the device uses it. The memory is neither moved nor
        // freed before it is unmapped. Bytes may have any value.
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
            range,
            // SAFETY: the call writes `address` on success.
            address: unsafe { address.assume_init() },
            direction,
            side: Side::Device,
        })
    }

    /// Returns the device address of the first byte. Any context.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Lets the CPU use the bytes. The CPU then sees what the device wrote. Any context.
    pub fn to_cpu(&mut self) {
        // SAFETY: `new` mapped the bytes.
        unsafe {
            bindings::extoll_dma_to_cpu(
                sysfs::raw(self.dev),
                self.address,
                self.range.len(),
                self.direction.into(),
            )
        };
        self.side = Side::Cpu;
    }

    /// Lets the device use the bytes. The device then sees what the CPU wrote. Any context.
    pub fn to_device(&mut self) {
        // SAFETY: `new` mapped the bytes.
        unsafe {
            bindings::extoll_dma_to_device(
                sysfs::raw(self.dev),
                self.address,
                self.range.len(),
                self.direction.into(),
            )
        };
        self.side = Side::Device;
    }

    /// Returns the bytes, if the CPU may use them. Any context.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.buffer
            .get(self.range.clone())
            .filter(|_| self.side == Side::Cpu)
    }

    /// Returns the bytes for changing them, if the CPU may use them. Any context.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let side = self.side;
        self.buffer
            .get_mut(self.range.clone())
            .filter(|_| side == Side::Cpu)
    }

    /// Unmaps the bytes. Returns the buffer with the bytes that the device wrote. Any context.
    pub fn end(mut self) -> KVec<u8> {
        // The bytes are unmapped before the vector is moved out. `forget` prevents that the drop
        // unmaps a second time.
        let buffer = {
            self.unmap();
            core::mem::take(&mut self.buffer)
        };
        core::mem::forget(self);
        buffer
    }

    fn unmap(&mut self) {
        // SAFETY: `new` mapped the bytes. The function runs once: by the drop, or by `end` instead
        // of the drop.
        unsafe {
            bindings::extoll_dma_unmap(
                sysfs::raw(self.dev),
                self.address,
                self.range.len(),
                self.direction.into(),
            )
        };
    }
}

impl Drop for SyncMapping<'_> {
    fn drop(&mut self) {
        self.unmap();
    }
}
