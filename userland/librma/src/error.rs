// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `RMA2_ERROR`.

use super::Status;
use extoll::Error;
use std::ffi::{c_char, c_int, CStr};
use std::io::Write;

macro_rules! codes {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        $(
            // The header defines codes that this library never returns.
            #[allow(dead_code)]
            pub const $name: Status = $value;
        )*

        fn text(code: Status) -> &'static CStr {
            match code {
                $($value => $text,)*
                _ => c"not an RMA2_ERROR",
            }
        }

        /// All codes with their names.
        #[cfg(test)]
        pub const ALL: &[(&str, Status)] = &[$((stringify!($name), $value)),*];
    };
}

codes! {
    SUCCESS = 0, c"success";
    ERR_ERROR = -1, c"failed";
    INV_HANDLE = -2, c"not a connection";
    INV_PORT = -3, c"not a port";
    INV_VALUE = -4, c"a value is out of range";
    NO_ROUTE = -5, c"no route to the node";
    PORTS_USED = -6, c"all ports are in use";
    NO_MEM = -7, c"the memory cannot be registered";
    NO_NOTI = -9, c"the notification queue is empty";
    POLL_EXCEEDED = -10, c"the NIC did not accept the commands in time";
    WRONG_ARG = -11, c"not permitted for this program";
    NOT_YET = -12, c"not available";
    NO_DESC_MEM = -13, c"no room for another command, try again";
    NO_MATCH = -15, c"no matching notification";
    WRONG_CMD = -16, c"command not supported by this function";
    NO_DEVICE = -17, c"no Extoll device";
    NO_CONNECT = -18, c"not connected";
    INVALID_VERSION = -22, c"the versions of library and driver do not match";
    IOCTL = -23, c"the driver refused the operation";
    MMAP = -24, c"the device cannot be mapped";
    FD = -25, c"the device file cannot be opened, or the network is down";
    MAP = -26, c"no memory for a region";
    INTERRUPTED = -27, c"interrupted by a signal";
    DOUBLE_MAP = 27, c"mapped twice";
    NO_TABLE = 28, c"not registered";
    NOT_FREE = 29, c"still in use";
    PART = 30, c"only a part of the region fits";
    ATU = 31, c"address translation failed";
    MLOCKLIMIT = 32, c"limit of locked memory reached (ulimit -l)";
}

/// Returns the code that is closest to an error of the crate.
pub fn of(error: &Error) -> Status {
    match error {
        // Any call may discover that the driver has lost its NIC.
        e if e.errno() == libc::ENODEV => NO_DEVICE,
        Error::NetworkDown(_) => FD,
        Error::NotPermitted { .. } => FD,
        Error::PortsUsed(_) | Error::UserPortsUsed(_) => PORTS_USED,
        Error::Queue { .. } => MLOCKLIMIT,
        Error::Register { reason, .. } => match reason.raw_os_error() {
            Some(libc::ENOMEM) => MLOCKLIMIT,
            _ => NO_MEM,
        },
        Error::Full => NO_DESC_MEM,
        Error::Interrupted => INTERRUPTED,
        // On an open port, the driver returns EPERM only for operations of privileged programs.
        e if e.errno() == libc::EINVAL => INV_VALUE,
        e if e.errno() == libc::EPERM => WRONG_ARG,
        Error::Driver(_) => INVALID_VERSION,
        Error::NoQueue => MMAP,
        Error::Timeout => POLL_EXCEEDED,
        _ => ERR_ERROR,
    }
}

/// # Safety
/// `to` is null or valid for writes of `size` bytes.
#[no_mangle]
unsafe extern "C" fn rma2_serror(error: Status, to: *mut c_char, size: c_int) {
    // SAFETY: `to` meets this function's safety requirements.
    unsafe { copy_text(text(error).to_bytes(), to, size) }
}

/// # Safety
/// `header` is null or a zero-terminated string.
#[no_mangle]
unsafe extern "C" fn rma2_perror(error: Status, header: *const c_char) {
    let what = text(error).to_string_lossy();
    let line = if header.is_null() {
        format!("{what}\n")
    } else {
        // SAFETY: the pointer is not null, so the caller guarantees that it is zero-terminated.
        let header = unsafe { CStr::from_ptr(header) };
        format!("{}: {what}\n", header.to_string_lossy())
    };
    // A failed write is ignored, because there is no other place to report it.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Copies as much of a text as fits into `size` bytes, and terminates it with a zero.
///
/// # Safety
/// `to` is null or valid for writes of `size` bytes.
pub unsafe fn copy_text(text: &[u8], to: *mut c_char, size: c_int) {
    let Some(room) = usize::try_from(size).ok().filter(|n| *n > 0) else {
        return;
    };
    if to.is_null() {
        return;
    }
    let n = text.len().min(room - 1);
    // SAFETY: the copy and its zero have at most `size` bytes, and `to` is valid for them.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, n);
        to.add(n).write(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_own_text() {
        let mut texts: Vec<_> = ALL.iter().map(|(_, code)| text(*code)).collect();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), ALL.len());
        assert_eq!(text(5), c"not an RMA2_ERROR");
    }

    #[test]
    fn texts_are_cut_to_the_buffer() {
        let mut buffer = [1 as c_char; 8];
        // SAFETY: the buffer has eight bytes.
        unsafe { rma2_serror(INV_PORT, buffer.as_mut_ptr(), 4) };
        assert_eq!(buffer[..5], *b"not\0\x01".map(|b| b as c_char).as_slice());
        // SAFETY: the function writes neither to a buffer of zero bytes nor to null.
        unsafe {
            rma2_serror(INV_PORT, buffer.as_mut_ptr(), 0);
            rma2_serror(INV_PORT, std::ptr::null_mut(), 9);
        }
        assert_eq!(buffer[0], b'n' as c_char);
    }
}
