// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! libvelo.so: the functions of include/velo.h, implemented with the crate `extoll`.
//!
//! C programs call the exported functions and must observe the contract of the header. Pointers are
//! null or valid. Ports were created by velo_open() and have not been closed. A null pointer
//! results in -EINVAL.
#![deny(missing_docs)]

use extoll::velo::{check_target, Mtt, NodeId, Port, Target, To, Vpid, MAX_LEN};
use extoll::{poll_milliseconds, Device, Error, Wait};
use std::ffi::{c_char, c_int, c_void, CStr, OsStr};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

const MULTICAST: u8 = 1;
const QUIET: u8 = 2;

/// `struct velo_to` of the header.
#[repr(C)]
struct CTo {
    node: u16,
    vpid: u16,
    tag: u8,
    mtt: u8,
    flags: u8,
    reserved: u8,
}

/// `struct velo_message` of the header.
#[repr(C)]
struct CMessage {
    node: u16,
    vpid: u16,
    tag: u8,
    mtt: u8,
    len: u16,
    data: [u8; MAX_LEN as usize],
}

const _: () = assert!(size_of::<CTo>() == 8 && size_of::<CMessage>() == 128);

fn number(result: Result<(), Error>) -> c_int {
    result.map_or_else(|e| -e.errno(), |()| 0)
}

/// Returns the NIC whose device files are in the directory `name`. Returns the default NIC for
/// null.
///
/// # Safety
/// `name` is null or a zero-terminated string.
unsafe fn device(name: *const c_char) -> Device {
    if name.is_null() {
        return Device::default();
    }
    Device::at(OsStr::from_bytes(
        // SAFETY: the pointer is not null, so the caller guarantees that it is zero-terminated.
        unsafe { CStr::from_ptr(name) }.to_bytes(),
    ))
}

/// # Safety
/// `name` is null or a zero-terminated string; `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn velo_open(name: *const c_char, to: *mut *mut Port) -> c_int {
    if to.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: `name` meets this function's safety requirements.
    match Port::open(&unsafe { device(name) }) {
        Ok(port) => {
            // SAFETY: `to` is not null and meets this function's safety requirements.
            unsafe { to.write(Box::into_raw(Box::new(port))) };
            0
        }
        Err(e) => -e.errno(),
    }
}

/// # Safety
/// `port` is null or an open port that the caller does not use after this call.
#[no_mangle]
unsafe extern "C" fn velo_close(port: *mut Port) {
    if !port.is_null() {
        // SAFETY: `velo_open` created the object, and the caller does not use it after this call.
        drop(unsafe { Box::from_raw(port) });
    }
}

/// # Safety
/// `port` is null or an open port.
#[no_mangle]
unsafe extern "C" fn velo_node(port: *const Port) -> u16 {
    // SAFETY: `port` meets this function's safety requirements.
    unsafe { port.as_ref() }.map_or(u16::MAX, |p| p.node().0)
}

/// # Safety
/// `port` is null or an open port.
#[no_mangle]
unsafe extern "C" fn velo_vpid(port: *const Port) -> u16 {
    // SAFETY: `port` meets this function's safety requirements.
    unsafe { port.as_ref() }.map_or(u16::MAX, |p| p.vpid().get())
}

/// # Safety
/// `port` is null or an open port.
#[no_mangle]
unsafe extern "C" fn velo_fd(port: *const Port) -> c_int {
    // SAFETY: `port` meets this function's safety requirements.
    unsafe { port.as_ref() }.map_or(-libc::EINVAL, |p| p.as_fd().as_raw_fd())
}

/// # Safety
/// `port` is null or an open port.
#[no_mangle]
unsafe extern "C" fn velo_arm(port: *const Port) -> c_int {
    // SAFETY: `port` meets this function's safety requirements.
    unsafe { port.as_ref() }.map_or(-libc::EINVAL, |p| number(p.arm().map(drop)))
}

/// # Safety
/// `port` is null or an open port.
#[no_mangle]
unsafe extern "C" fn velo_poll_timeout(port: *const Port) -> c_int {
    // SAFETY: `port` meets this function's safety requirements.
    unsafe { port.as_ref() }.map_or(-libc::EINVAL, |p| poll_milliseconds(p.poll_timeout()))
}

/// # Safety
/// `port` is null or an open port.
#[no_mangle]
unsafe extern "C" fn velo_drain(port: *const Port, timeout_ms: c_int) -> c_int {
    // SAFETY: `port` meets this function's safety requirements.
    let Some(port) = (unsafe { port.as_ref() }) else {
        return -libc::EINVAL;
    };
    let Some(wait) = wait(timeout_ms) else {
        return -libc::EINVAL;
    };
    number(match port.drain(wait) {
        Err(Error::Timeout) if timeout_ms == 0 => Err(Error::Full),
        other => other,
    })
}

/// Returns the wait for a timeout in milliseconds; `None` if the timeout is invalid.
fn wait(timeout_ms: c_int) -> Option<Wait> {
    match u64::try_from(timeout_ms) {
        Ok(ms) => Some(Wait::for_at_most(Duration::from_millis(ms))),
        Err(_) if timeout_ms == -1 => Some(Wait::forever()),
        Err(_) => None,
    }
}

fn target(to: &CTo) -> Option<To> {
    let known = to.flags & !(MULTICAST | QUIET) == 0 && to.mtt < 4 && to.reserved == 0;
    let vpid = Vpid::new(to.vpid).filter(|_| known)?;
    let target = match to.flags & MULTICAST {
        0 => Target::Node(NodeId(to.node)),
        _ => Target::Group(to.node),
    };
    check_target(target).ok()?;
    Some(To {
        target,
        vpid,
        tag: to.tag,
        mtt: Mtt::from_low_bits(to.mtt),
        interrupt: to.flags & QUIET == 0,
    })
}

/// # Safety
/// `port` is null or an open port; `to` is null or valid for a read; `data` is null or valid for
/// reads of `len` bytes.
#[no_mangle]
unsafe extern "C" fn velo_send(
    port: *const Port,
    to: *const CTo,
    data: *const c_void,
    len: usize,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: `port` meets this function's safety requirements.
    let port = unsafe { port.as_ref() };
    // SAFETY: `to` meets this function's safety requirements.
    let to = unsafe { to.as_ref() };
    let (Some(port), Some(to)) = (port, to) else {
        return -libc::EINVAL;
    };
    let (Some(to), Some(wait)) = (target(to), wait(timeout_ms)) else {
        return -libc::EINVAL;
    };
    if data.is_null() || len > MAX_LEN as usize {
        return -libc::EINVAL;
    }
    // SAFETY: `data` is not null, and valid for `len` bytes by this function's safety requirements.
    let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) };
    number(match timeout_ms {
        0 => port.try_send(&to, data),
        _ => port.send(&to, data, wait),
    })
}

/// # Safety
/// `port` is null or an open port; `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn velo_recv(port: *const Port, to: *mut CMessage, timeout_ms: c_int) -> c_int {
    // SAFETY: `port` meets this function's safety requirements.
    let Some(port) = (unsafe { port.as_ref() }) else {
        return -libc::EINVAL;
    };
    let Some(wait) = wait(timeout_ms).filter(|_| !to.is_null()) else {
        return -libc::EINVAL;
    };
    let received = match timeout_ms {
        0 => port.try_recv().and_then(|m| match m {
            Some(m) => Ok(m),
            // Repeats dropped messages here, because a program that only polls makes no other call
            // that does.
            None => port.settle().and(Err(Error::Full)),
        }),
        _ => port.recv(wait),
    };
    number(received.map(|m| {
        let mut data = [0; MAX_LEN as usize];
        data[..m.data().len()].copy_from_slice(m.data());
        let message = CMessage {
            node: m.source.node.0,
            vpid: m.source.vpid.get(),
            tag: m.tag,
            mtt: m.mtt.get(),
            len: m.data().len() as u16,
            data,
        };
        // SAFETY: `to` is not null and meets this function's safety requirements.
        unsafe { to.write(message) }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: CTo = CTo {
        node: 5,
        vpid: 6,
        tag: 7,
        mtt: 3,
        flags: 0,
        reserved: 0,
    };

    #[test]
    fn targets_are_checked() {
        let to = target(&TO).unwrap();
        assert_eq!((to.target, to.interrupt), (Target::Node(NodeId(5)), true));
        let group = target(&CTo { flags: 3, ..TO }).unwrap();
        assert_eq!((group.target, group.interrupt), (Target::Group(5), false));
        assert!(target(&CTo { flags: 4, ..TO }).is_none());
        assert!(target(&CTo { mtt: 4, ..TO }).is_none());
        assert!(target(&CTo { vpid: 256, ..TO }).is_none());
        assert!(target(&CTo { reserved: 1, ..TO }).is_none());
        for node in [0xFFFE, 0xFFFF] {
            assert!(target(&CTo { node, ..TO }).is_none());
        }
        let of = |node| {
            let flags = MULTICAST;
            target(&CTo { node, flags, ..TO }).is_some()
        };
        assert!(of(63) && !of(64) && !of(0xFFFF));
    }

    #[test]
    fn times_below_minus_one_are_refused() {
        assert!(wait(-1).is_some_and(|wait| wait.left().is_none()));
        assert!(wait(0).is_some_and(|wait| wait.is_over()));
        assert!(wait(60_000).is_some_and(|wait| !wait.is_over()));
        assert!(wait(-2).is_none() && wait(c_int::MIN).is_none());
    }

    #[test]
    fn an_interrupted_call_returns_eintr() {
        assert_eq!(number(Err(Error::Interrupted)), -libc::EINTR);
    }

    #[test]
    fn null_and_missing_devices_are_answered() {
        let mut port = std::ptr::null_mut();
        // SAFETY: all pointers are valid or null.
        unsafe {
            assert_eq!(
                velo_open(std::ptr::null(), std::ptr::null_mut()),
                -libc::EINVAL
            );
            assert_eq!(
                velo_open(c"/nonexistent".as_ptr(), &mut port),
                -libc::ENODEV
            );
            assert!(port.is_null());
            assert_eq!(velo_recv(port, std::ptr::null_mut(), 0), -libc::EINVAL);
            assert_eq!(velo_node(port), u16::MAX);
            assert_eq!(velo_drain(port, 0), -libc::EINVAL);
            assert_eq!(velo_arm(port), -libc::EINVAL);
            assert_eq!(velo_poll_timeout(port), -libc::EINVAL);
            velo_close(port);
        }
    }
}
