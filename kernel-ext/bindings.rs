// SPDX-License-Identifier: GPL-2.0-only

//! Raw bindings: those of the kernel crate, and those that this project's own bindgen run adds.
//!
//! Types that are complete in `kernel::bindings` are re-exported, so that both name the same type.
//! Only `kernel_ext` uses this module; drivers use the safe abstractions.

#![allow(
    missing_docs,
    clippy::all,
    improper_ctypes,
    unreachable_pub,
    unsafe_op_in_unsafe_fn
)]
#![allow(
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    dead_code
)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    clippy::ptr_as_ptr,
    clippy::ref_as_ptr
)]
#![allow(clippy::cast_lossless, unnameable_types, unused_imports)]

pub(crate) use generated::*;

mod generated {
    pub(crate) use kernel::bindings::*;
    use kernel::{ffi, prelude::*};
    use pin_init::MaybeZeroable;

    type __kernel_size_t = usize;
    type __kernel_ssize_t = isize;
    type __kernel_ptrdiff_t = isize;

    include!(env!("EXTOLL_BINDINGS"));
}
