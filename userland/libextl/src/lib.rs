// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! libextl.so: a preloaded library that replaces TCP sockets of a program by AF_EXTL sockets
//! (docs/af_extl.md).
//!
//! The library replaces only the function `socket()`. All other socket functions work on AF_EXTL
//! sockets unchanged. If an AF_EXTL socket cannot be created, the program gets a TCP socket.
#![deny(missing_docs)]

mod choice;

use choice::Choice;
use libc::{c_char, c_int, c_long};
use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

extern "C" {
    /// Base name by which the program was started (glibc).
    static program_invocation_short_name: *const c_char;
}

/// Setting of this process. The first call of `socket()` initializes it.
static CHOICE: OnceLock<Choice> = OnceLock::new();

/// Returns the setting of this process.
fn choice() -> &'static Choice {
    CHOICE.get_or_init(|| {
        // SAFETY: glibc initializes the variable with a string before any code of the program runs.
        // A program that changes the variable does so before it creates threads.
        let name = unsafe { CStr::from_ptr(program_invocation_short_name) };
        Choice::new(name.to_bytes(), |variable| {
            std::env::var_os(variable).map(|value| value.as_bytes().to_vec())
        })
    })
}

/// Calls socket(2) by its number, because the symbol `socket` is the function below.
fn make(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let [domain, kind, protocol] = [domain, kind, protocol].map(c_long::from);
    // SAFETY: socket(2) takes three numbers and touches no memory of the program.
    unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) as c_int }
}

/// Creates a socket, see socket(2).
#[no_mangle]
extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if let Some(other) = choice().protocol(domain, kind, protocol) {
        // SAFETY: the function returns the address of the thread's errno, which is always valid.
        let errno = unsafe { *libc::__errno_location() };
        let fd = make(domain, kind, other);
        if fd >= 0 {
            return fd;
        }
        // The program does not see this error. If the error also concerns TCP, the call below
        // reports it.
        // SAFETY: the address of the thread's errno is always valid.
        unsafe { *libc::__errno_location() = errno };
    }
    make(domain, kind, protocol)
}
