// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Calls of bpf(2). All calls may sleep, and require the capabilities that the manual page names.

use std::ffi::CString;
use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP: libc::c_int = 1;
const MAP_UPDATE: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const OBJ_PIN: libc::c_int = 6;
const OBJ_GET: libc::c_int = 7;
const LINK_CREATE: libc::c_int = 28;

const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_CGROUP_ARRAY: u32 = 8;
const PROG_TYPE_TRACING: u32 = 26;
const MODIFY_RETURN: u32 = 26;

/// Licence of the program. The kernel permits some functions only in programs with a GPL-compatible
/// licence.
const LICENCE: &std::ffi::CStr = c"Dual MIT/GPL";
/// Size of the buffer for messages of the kernel's verifier, in bytes.
const LOG_BYTES: usize = 256 << 10;

/// `union bpf_attr`. Fields are set by their offsets, and all other bytes are 0.
struct Attr([u8; 128]);

impl Attr {
    fn new() -> Self {
        Self([0; 128])
    }

    fn put(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn word(self, at: usize, value: u32) -> Self {
        self.put(at, &value.to_ne_bytes())
    }

    fn fd(self, at: usize, fd: RawFd) -> Self {
        self.put(at, &fd.to_ne_bytes())
    }

    /// Sets a field to an address. The memory must stay valid until the call.
    fn memory<T>(self, at: usize, memory: *const T) -> Self {
        self.put(at, &(memory as u64).to_ne_bytes())
    }

    /// # Safety
    ///
    /// Memory that the fields refer to must be valid for the accesses of the command.
    unsafe fn call(mut self, command: libc::c_int) -> Result<libc::c_int> {
        let size = self.0.len();
        // SAFETY: the union has `size` bytes. The caller guarantees that the memory to which it
        // refers is valid.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), size) };
        match result {
            -1 => Err(Error::last_os_error()),
            n => Ok(n as libc::c_int),
        }
    }

    /// # Safety
    ///
    /// Memory that the fields refer to must be valid for the accesses of the command. The command
    /// must return a descriptor.
    unsafe fn open(self, command: libc::c_int) -> Result<OwnedFd> {
        // SAFETY: the caller meets the safety requirements of this function.
        let fd = unsafe { self.call(command)? };
        // SAFETY: the kernel created the descriptor in this call, and no other object owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// BPF array with one value.
#[derive(Debug)]
pub struct Array {
    fd: OwnedFd,
    bytes: usize,
}

fn new_map(kind: u32, bytes: u32, name: &[u8]) -> Result<OwnedFd> {
    let attr = Attr::new()
        .word(0, kind)
        .word(4, 4)
        .word(8, bytes)
        .word(12, 1)
        .put(28, name);
    // SAFETY: the attributes contain no addresses, and the command returns a descriptor.
    unsafe { attr.open(MAP_CREATE) }
}

impl Array {
    /// Creates an array whose value consists of zeros.
    pub fn new(bytes: u32) -> Result<Self> {
        let fd = new_map(MAP_TYPE_ARRAY, bytes, b"extl_state")?;
        let bytes = bytes as usize;
        Ok(Self { fd, bytes })
    }

    /// Opens the array that is pinned at a path.
    pub fn at(path: &Path) -> Result<Self> {
        let fd = get(path)?;
        let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
        let field = |name: &str| {
            let mut lines = about.lines();
            let value = lines.find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
            value.trim().parse::<usize>().ok()
        };
        match (field("map_type"), field("value_size"), field("max_entries")) {
            (Some(kind), Some(bytes), Some(1)) if kind == MAP_TYPE_ARRAY as usize => {
                Ok(Self { fd, bytes })
            }
            _ => Err(Error::new(
                ErrorKind::InvalidData,
                "not an array with one value",
            )),
        }
    }

    /// Returns the value of the array.
    pub fn read(&self) -> Result<Vec<u8>> {
        let (key, mut value) = (0u32, vec![0u8; self.bytes]);
        let attr = Attr::new()
            .fd(0, self.fd.as_raw_fd())
            .memory(8, &raw const key)
            .memory(16, value.as_mut_ptr());
        // SAFETY: the map is an array with values of `bytes` bytes, the length of `value`, and keys
        // of 4 bytes.
        unsafe { attr.call(MAP_LOOKUP)? };
        Ok(value)
    }

    /// Sets the value of the array. Pads it with zeros or truncates it.
    pub fn write(&self, value: &[u8]) -> Result<()> {
        let mut value = value.to_vec();
        value.resize(self.bytes, 0);
        let key = 0u32;
        let attr = Attr::new()
            .fd(0, self.fd.as_raw_fd())
            .memory(8, &raw const key)
            .memory(16, value.as_ptr());
        // SAFETY: the map is an array with values of `bytes` bytes, the length of `value`, and keys
        // of 4 bytes.
        unsafe { attr.call(MAP_UPDATE).map(drop) }
    }
}

impl AsFd for Array {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Creates a map that contains a reference to a control group. `directory` is a descriptor of the
/// group's cgroup2 directory.
pub fn cgroup(directory: BorrowedFd<'_>) -> Result<OwnedFd> {
    let map = new_map(MAP_TYPE_CGROUP_ARRAY, 4, b"extl_cgroup")?;
    let (key, value) = (0u32, directory.as_raw_fd());
    let attr = Attr::new()
        .fd(0, map.as_raw_fd())
        .memory(8, &raw const key)
        .memory(16, &raw const value);
    // SAFETY: keys and values of this map have 4 bytes, and the kernel reads both.
    unsafe { attr.call(MAP_UPDATE)? };
    Ok(map)
}

/// Loads a program that modifies the return value of a function. `function` is the function's
/// number in the kernel's BTF. The error contains the last messages of the kernel's verifier.
pub fn load(instructions: &[u64], function: u32) -> Result<OwnedFd> {
    let count = u32::try_from(instructions.len()).map_err(|_| ErrorKind::InvalidInput)?;
    let attr = || {
        Attr::new()
            .word(0, PROG_TYPE_TRACING)
            .word(4, count)
            .memory(8, instructions.as_ptr())
            .memory(16, LICENCE.as_ptr())
            .put(48, b"extl_switch")
            .word(68, MODIFY_RETURN)
            .word(108, function)
    };
    // SAFETY: the kernel reads `count` instructions and the zero-terminated licence.
    let error = match unsafe { attr().open(PROG_LOAD) } {
        Ok(fd) => return Ok(fd),
        // The verifier reports EACCES, whose `ErrorKind` is the same as that of EPERM.
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => return Err(e),
        Err(e) => e,
    };
    let mut log = vec![0u8; LOG_BYTES];
    let again = attr()
        .word(24, 1)
        .word(28, LOG_BYTES as u32)
        .memory(32, log.as_mut_ptr());
    // SAFETY: the kernel reads `count` instructions and the zero-terminated licence, and writes at
    // most `LOG_BYTES` bytes to the log.
    if let Ok(fd) = unsafe { again.open(PROG_LOAD) } {
        return Ok(fd);
    }
    let end = log.iter().position(|b| *b == 0).unwrap_or(0);
    let text = String::from_utf8_lossy(&log[..end]);
    let said: Vec<&str> = text.lines().rev().take(4).collect();
    let said: Vec<&str> = said.into_iter().rev().collect();
    Err(Error::new(
        error.kind(),
        format!("{error}: {}", said.join("; ")),
    ))
}

/// Attaches a program that [`load`] returned to its function. The program stays attached while the
/// returned link is open or pinned.
pub fn attach(program: BorrowedFd<'_>) -> Result<OwnedFd> {
    let attr = Attr::new()
        .fd(0, program.as_raw_fd())
        .word(8, MODIFY_RETURN);
    // SAFETY: the attributes contain no addresses, and the command returns a descriptor.
    unsafe { attr.open(LINK_CREATE) }
}

fn path(path: &Path) -> Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Pins an object at a path in a BPF file system.
pub fn pin(object: BorrowedFd<'_>, at: &Path) -> Result<()> {
    let name = path(at)?;
    let attr = Attr::new()
        .memory(0, name.as_ptr())
        .fd(8, object.as_raw_fd());
    // SAFETY: the path is zero-terminated, and the kernel only reads it.
    unsafe { attr.call(OBJ_PIN).map(drop) }
}

/// Opens a pinned object.
fn get(at: &Path) -> Result<OwnedFd> {
    let name = path(at)?;
    let attr = Attr::new().memory(0, name.as_ptr());
    // SAFETY: the path is zero-terminated, the kernel only reads it, and the command returns a
    // descriptor.
    unsafe { attr.open(OBJ_GET) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_kernel_has_them() {
        let attr = Attr::new().word(4, 0x0102_0304).fd(8, -1).put(12, b"ab");
        assert_eq!(attr.0[..4], [0; 4]);
        assert_eq!(attr.0[4..8], 0x0102_0304u32.to_ne_bytes());
        assert_eq!(attr.0[8..16], [255, 255, 255, 255, b'a', b'b', 0, 0]);
    }

    #[test]
    fn errors_are_those_of_the_kernel() {
        // Missing paths, and a descriptor that is not a BPF object, must result in errors,
        // regardless of the privileges.
        assert!(Array::at(Path::new("/nonexistent/x")).is_err());
        assert!(attach(std::io::stdin().as_fd()).is_err());
        assert!(pin(std::io::stdin().as_fd(), Path::new("/nonexistent/x")).is_err());
        assert!(load(&[], 0).is_err());
        let nul = Path::new("a\0b");
        assert_eq!(get(nul).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
