// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! libextl.so: preloaded, it makes the program's sockets of TCP sockets of AF_EXTL
//! (docs/af_extl.md). It has one function, `socket()`; all others work on such a socket as they
//! are. Where a socket can't be had that way, the program gets one of TCP.
#![deny(missing_docs)]

mod choice;

use choice::Choice;
use libc::{c_char, c_int, c_long};
use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

extern "C" {
    /// glibc: the last part of the name that the program was started by.
    static program_invocation_short_name: *const c_char;
}

/// What the environment asks for, read once.
static CHOICE: OnceLock<Choice> = OnceLock::new();

/// The choice of this process.
fn choice() -> &'static Choice {
    CHOICE.get_or_init(|| {
        // SAFETY: glibc sets it to a string before any code of the program runs, and a program that
        // changes it does so before it has threads.
        let name = unsafe { CStr::from_ptr(program_invocation_short_name) };
        Choice::new(name.to_bytes(), |variable| {
            std::env::var_os(variable).map(|value| value.as_bytes().to_vec())
        })
    })
}

/// The system call, since a program that looks for `socket` finds this library's.
fn make(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let [domain, kind, protocol] = [domain, kind, protocol].map(c_long::from);
    // SAFETY: socket(2) takes three numbers and touches no memory of the program.
    unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) as c_int }
}

/// See socket(2).
#[no_mangle]
extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if let Some(other) = choice().protocol(domain, kind, protocol) {
        // SAFETY: the address of the thread's own errno.
        let errno = unsafe { *libc::__errno_location() };
        let fd = make(domain, kind, other);
        if fd >= 0 {
            return fd;
        }
        // Whatever the reason: if it is one for TCP, too, the program gets to know it.
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }
    make(domain, kind, protocol)
}
