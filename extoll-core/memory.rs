// SPDX-License-Identifier: GPL-2.0-only

//! Memory allocation for the state machines of the crate `protocol`.

use kernel::prelude::*;
use protocol::Memory;

/// Allocator of kernel memory. Allocation may sleep.
pub struct KernelMemory;

impl Memory for KernelMemory {
    type Array<T> = KVVec<T>;
    type Error = Error;

    fn array<T>(len: usize, mut make: impl FnMut(usize) -> T) -> Result<KVVec<T>> {
        let mut array = KVVec::with_capacity(len, GFP_KERNEL)?;
        for i in 0..len {
            array.push(make(i), GFP_KERNEL)?;
        }
        Ok(array)
    }
}
