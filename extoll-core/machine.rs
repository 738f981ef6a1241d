// SPDX-License-Identifier: GPL-2.0-only

//! What the machines of the crate `protocol` want of the kernel.

use kernel::prelude::*;
use protocol::Memory;

/// Memory of the kernel. Getting it may sleep.
pub struct Kernel;

impl Memory for Kernel {
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
