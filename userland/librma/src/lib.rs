// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! librma.so: the functions of include/rma2.h, implemented with the crate `extoll`.
//!
//! C programs call the exported functions and must observe the contract of the header. Pointers are
//! null or valid. Ports, connections and regions were created by this library and have not been
//! closed. A null pointer results in an error.
#![deny(missing_docs)]

mod error;
mod mem;
mod noti;
mod port;
mod post;
#[cfg(test)]
mod tests;

use extoll::rma::{NodeId, Port};
use extoll::wire::rma::PageOptions;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU8};

/// Open port, which C programs know as `RMA2_Port`.
struct Endpoint {
    port: Port,
    /// Current `RMA2_Replay_Buffer_Mode`.
    mode: AtomicI32,
}

/// Connection, which C programs know as `RMA2_Handle`.
struct Connection {
    node: NodeId,
    vpid: u8,
    /// Index of the requester page (`RMA2_Connection_Options`).
    options: AtomicU8,
}

impl Connection {
    fn options(&self) -> PageOptions {
        PageOptions::from_index(self.options.load(std::sync::atomic::Ordering::Relaxed))
    }
}

/// `RMA2_Notification` of the header. It is packed, because programs may store copies at any
/// address.
#[repr(C, packed)]
#[derive(Clone, Copy)]
struct Noti {
    word0: u64,
    word1: u64,
}

/// `RMA2_Descriptor` of the header.
#[repr(C)]
struct Desc {
    list: [*mut c_void; 2],
    handle: *mut Connection,
    reserved0: u64,
    value: [u64; 3],
    reserved1: u64,
}

/// `RMA2_Region` of the header. Library and driver exchange the same structure.
#[repr(C)]
struct Region {
    list: [*mut c_void; 2],
    start: *mut c_void,
    nla: u64,
    count: u32,
    offset: u32,
    end: *mut c_void,
    size: usize,
    refcount: u64,
    endpoint: *mut c_void,
    parent: *mut c_void,
}

const _: () = assert!(size_of::<Noti>() == 16 && align_of::<Noti>() == 1);
const _: () = assert!(size_of::<Desc>() == 64);
const _: () = assert!(size_of::<Region>() == 80);

/// Error code `RMA2_ERROR` of the header.
type Status = c_int;

/// Result of a function inside of the library. The error is the code that the C program receives.
type Outcome<T> = Result<T, Status>;

fn status(outcome: Outcome<()>) -> Status {
    match outcome {
        Ok(()) => error::SUCCESS,
        Err(code) => code,
    }
}

/// Converts a pointer from a C program to a reference. Returns `code` for null.
///
/// # Safety
/// `pointer` is null or valid for the duration of the call.
unsafe fn borrow<'a, T>(pointer: *const T, code: Status) -> Outcome<&'a T> {
    // SAFETY: the caller meets the safety requirements of this function.
    unsafe { pointer.as_ref() }.ok_or(code)
}

/// Stores a result at an address from a C program. Fails with `INV_VALUE` for null.
///
/// # Safety
/// `to` is null or valid for writing.
unsafe fn give<T>(to: *mut T, value: T) -> Outcome<()> {
    if to.is_null() {
        return Err(error::INV_VALUE);
    }
    // SAFETY: the pointer is not null, so the caller guarantees that it is valid.
    unsafe { to.write(value) };
    Ok(())
}
