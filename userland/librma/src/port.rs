// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Functions for ports, connections and their settings.

use super::{borrow, error, give, status, Connection, Endpoint, Outcome, Status};
use extoll::rma::{NodeId, Port};
use extoll::{poll_milliseconds, Device, Wait};
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};
use std::time::Duration;

pub const REPLAY_POST: i32 = 1;
pub const REPLAY_NOTI: i32 = 2;
const REPLAY_CLOSE: i32 = 4;
const REPLAY_ALL: i32 = 7;
/// Maximum time of draining in one call. The next call continues an unfinished replay.
const DRAIN: Duration = Duration::from_secs(1);

const RRA: u8 = 4;
const IRQ: u8 = 8;
const TE: u8 = 16;

fn failed(e: extoll::Error) -> Status {
    error::of(&e)
}

/// # Safety
/// `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn rma2_open(to: *mut *mut Endpoint) -> Status {
    if to.is_null() {
        return error::INV_VALUE;
    }
    let port = match Port::open(&Device::default()) {
        Ok(port) => port,
        Err(e) if e.errno() == libc::ENODEV => return failed(e),
        // A device file that cannot be opened has a separate error code. A failed mapping also has
        // one.
        Err(extoll::Error::Os { what, .. }) if what.starts_with("cannot open") => return error::FD,
        Err(extoll::Error::Os { what, .. }) if what.starts_with("cannot map") => {
            return error::MMAP
        }
        Err(extoll::Error::Os { .. }) => return error::IOCTL,
        Err(e) => return failed(e),
    };
    let endpoint = Box::new(Endpoint {
        port,
        mode: AtomicI32::new(REPLAY_ALL),
    });
    // SAFETY: `to` is not null and meets this function's safety requirements.
    status(unsafe { give(to, Box::into_raw(endpoint)) })
}

/// # Safety
/// `port` is null or an open port that the caller does not use after this call.
#[no_mangle]
pub unsafe extern "C" fn rma2_close(port: *mut Endpoint) -> Status {
    if port.is_null() {
        return error::INV_PORT;
    }
    // SAFETY: `port` is not null, so the caller guarantees that it is an open port.
    let sent = send_rest(unsafe { &*port });
    if !may_be_repeated(sent) {
        // SAFETY: `rma2_open` created the object, and the caller does not use it after this call.
        drop(unsafe { Box::from_raw(port) });
    }
    sent
}

/// Returns whether the caller may repeat a call that closes. That is the case if the NIC has not
/// accepted all commands, but may still accept them.
fn may_be_repeated(sent: Status) -> bool {
    matches!(sent, error::POLL_EXCEEDED | error::INTERRUPTED)
}

/// Waits until the NIC has accepted all posted commands, if the mode includes `REPLAY_CLOSE`.
fn send_rest(endpoint: &Endpoint) -> Status {
    if endpoint.mode.load(Ordering::Relaxed) & REPLAY_CLOSE == 0 {
        return error::SUCCESS;
    }
    let wait = Wait::for_at_most(DRAIN);
    status(endpoint.port.drain(wait).map_err(failed))
}

/// # Safety
/// `port` is null or an open port; `to` is null or valid for a write.
#[no_mangle]
pub unsafe extern "C" fn rma2_connect(
    port: *mut Endpoint,
    node: u16,
    vpid: u16,
    options: c_int,
    to: *mut *mut Connection,
) -> Status {
    let connect = || -> Outcome<()> {
        // SAFETY: `port` meets this function's safety requirements.
        let endpoint = unsafe { borrow(port, error::INV_PORT)? };
        if NodeId(node).is_reserved() {
            return Err(error::INV_VALUE);
        }
        let options = u8::try_from(options)
            .ok()
            .filter(|o| *o < 32)
            .ok_or(error::INV_VALUE)?;
        let connection = Connection {
            node: NodeId(node),
            vpid: u8::try_from(vpid).map_err(|_| error::INV_VALUE)?,
            options: AtomicU8::new(options),
        };
        endpoint
            .port
            .check_page(connection.options())
            .map_err(failed)?;
        if to.is_null() {
            return Err(error::INV_VALUE);
        }
        // SAFETY: `to` is not null and meets this function's safety requirements.
        unsafe { give(to, Box::into_raw(Box::new(connection))) }
    };
    status(connect())
}

/// # Safety
/// `port` is null or an open port; `handle` is null or an open connection that the caller does not
/// use after this call.
#[no_mangle]
pub unsafe extern "C" fn rma2_disconnect(port: *mut Endpoint, handle: *mut Connection) -> Status {
    // SAFETY: `port` meets this function's safety requirements.
    let endpoint = match unsafe { borrow(port, error::INV_PORT) } {
        Ok(endpoint) => endpoint,
        Err(code) => return code,
    };
    if handle.is_null() {
        return error::INV_HANDLE;
    }
    let sent = send_rest(endpoint);
    if !may_be_repeated(sent) {
        // SAFETY: `rma2_connect` created the object, and the caller does not use it after this
        // call.
        drop(unsafe { Box::from_raw(handle) });
    }
    sent
}

/// # Safety
/// `handle` is null or an open connection.
#[no_mangle]
unsafe extern "C" fn rma2_handle_get_node(handle: *const Connection) -> u16 {
    // SAFETY: `handle` meets this function's safety requirements.
    unsafe { borrow(handle, 0) }.map_or(u16::MAX, |h| h.node.0)
}

/// # Safety
/// `handle` is null or an open connection.
#[no_mangle]
pub unsafe extern "C" fn rma2_handle_get_vpid(handle: *const Connection) -> u16 {
    // SAFETY: `handle` meets this function's safety requirements.
    unsafe { borrow(handle, 0) }.map_or(u16::MAX, |h| h.vpid.into())
}

/// Returns the result of `read` for a port. Returns `otherwise` for null and after an error.
///
/// # Safety
/// `port` is null or an open port.
unsafe fn ask<T>(
    port: *const Endpoint,
    otherwise: T,
    read: impl FnOnce(&Port) -> extoll::Result<T>,
) -> T {
    // SAFETY: the caller meets the safety requirements of this function.
    match unsafe { borrow(port, 0) } {
        Ok(endpoint) => read(&endpoint.port).unwrap_or(otherwise),
        Err(_) => otherwise,
    }
}

/// Runs `f` on a port and returns its status.
///
/// # Safety
/// `port` is null or an open port.
unsafe fn act(port: *const Endpoint, f: impl FnOnce(&Port) -> extoll::Result<()>) -> Status {
    // SAFETY: the caller meets the safety requirements of this function.
    status(unsafe { borrow(port, error::INV_PORT) }.and_then(|e| f(&e.port).map_err(failed)))
}

/// # Safety
/// `port` is null or an open port.
#[no_mangle]
unsafe extern "C" fn rma2_get_nodeid(port: *const Endpoint) -> u16 {
    // SAFETY: `port` meets this function's safety requirements.
    unsafe { ask(port, u16::MAX, |p| Ok(p.read_node()?.0)) }
}

/// # Safety
/// `port` is null or an open port.
#[no_mangle]
unsafe extern "C" fn rma2_get_vpid(port: *const Endpoint) -> u16 {
    // SAFETY: `port` meets this function's safety requirements.
    unsafe { ask(port, u16::MAX, |p| Ok(p.vpid().get())) }
}

/// # Safety
/// `port` is null or an open port.
#[no_mangle]
unsafe extern "C" fn rma2_get_node_num(port: *const Endpoint) -> u16 {
    // The type cannot represent 65,536 nodes. The public library truncates the number, but this
    // library returns the maximum of the type.
    // SAFETY: `port` meets this function's safety
    // requirements.
    unsafe { ask(port, 0, |p| Ok(p.max_nodes()?.min(u16::MAX.into()) as u16)) }
}

/// # Safety
/// `port` is null or an open port.
#[no_mangle]
unsafe extern "C" fn rma2_get_proc_num(port: *const Endpoint) -> u16 {
    // SAFETY: `port` meets this function's safety requirements.
    unsafe { ask(port, 0, |p| Ok(p.max_ports()?.min(u16::MAX.into()) as u16)) }
}

/// # Safety
/// `port` is null or an open port.
#[no_mangle]
unsafe extern "C" fn rma2_get_queue_size(port: *const Endpoint) -> u32 {
    // SAFETY: `port` meets this function's safety requirements.
    unsafe { ask(port, 0, |p| Ok(p.queue_size() as u32)) }
}

/// # Safety
/// `port` is null or an open port.
#[no_mangle]
unsafe extern "C" fn rma2_set_queue_size(port: *const Endpoint, bytes: u32) -> Status {
    // SAFETY: `port` meets this function's safety requirements.
    unsafe { act(port, |p| p.resize_queue(bytes.into(), p.segment_size()?)) }
}

/// # Safety
/// `port` is null or an open port.
#[no_mangle]
unsafe extern "C" fn rma2_get_queue_segment_size(port: *const Endpoint) -> u32 {
    // SAFETY: `port` meets this function's safety requirements.
    unsafe { ask(port, 0, |p| Ok(p.segment_size()? as u32)) }
}

/// # Safety
/// `port` is null or an open port.
#[no_mangle]
unsafe extern "C" fn rma2_set_queue_segment_size(port: *const Endpoint, bytes: u32) -> Status {
    // SAFETY: `port` meets this function's safety requirements.
    unsafe {
        act(port, |p| {
            p.resize_queue(p.queue_size() as u64, bytes.into())
        })
    }
}

/// # Safety
/// `port` is null or an open port.
#[no_mangle]
unsafe extern "C" fn rma2_set_protectionid(port: *const Endpoint, id: u16) -> Status {
    // SAFETY: `port` meets this function's safety requirements.
    unsafe { act(port, |p| p.set_protection(id)) }
}

/// # Safety
/// `port` is null or an open port.
#[no_mangle]
unsafe extern "C" fn rma2_replay_buffer_drain(port: *const Endpoint) {
    let wait = Wait::for_at_most(DRAIN);
    // This function cannot report failures, but the next command can. For the same reason it
    // ignores signals.
    // SAFETY: `port` meets this function's safety requirements.
    while unsafe { act(port, |p| p.drain(wait)) } == error::INTERRUPTED {}
}

/// # Safety
/// `port` is null or an open port.
#[no_mangle]
pub unsafe extern "C" fn rma2_set_replay_mode(port: *const Endpoint, mode: c_int) {
    // SAFETY: `port` meets this function's safety requirements.
    if let Ok(endpoint) = unsafe { borrow(port, 0) } {
        endpoint.mode.store(mode & REPLAY_ALL, Ordering::Relaxed);
    }
}

/// # Safety
/// `port` is null or an open port.
#[no_mangle]
unsafe extern "C" fn rma2_get_replay_buffer_mode(port: *const Endpoint) -> c_int {
    // SAFETY: `port` meets this function's safety requirements.
    unsafe { borrow(port, 0) }.map_or(0, |e| e.mode.load(Ordering::Relaxed))
}

/// # Safety
/// `port` is null or an open port.
#[no_mangle]
unsafe extern "C" fn rma2_get_fd(port: *const Endpoint) -> c_int {
    // SAFETY: `port` meets this function's safety requirements.
    unsafe { ask(port, -1, |p| Ok(p.as_fd().as_raw_fd())) }
}

/// # Safety
/// `port` is null or an open port.
#[no_mangle]
unsafe extern "C" fn rma2_arm(port: *const Endpoint) -> Status {
    // SAFETY: `port` meets this function's safety requirements.
    unsafe { act(port, |p| p.arm().map(drop)) }
}

/// # Safety
/// `port` is null or an open port.
#[no_mangle]
unsafe extern "C" fn rma2_poll_timeout(port: *const Endpoint) -> c_int {
    // SAFETY: `port` meets this function's safety requirements.
    unsafe { ask(port, -1, |p| Ok(poll_milliseconds(p.poll_timeout()))) }
}

/// Changes the requester page of a connection if the port may use the new page.
///
/// # Safety
/// `port` is null or an open port; `handle` is null or an open connection.
unsafe fn change(
    port: *const Endpoint,
    handle: *const Connection,
    new: impl FnOnce(u8) -> u8,
) -> Status {
    // SAFETY: the caller meets the safety requirements of this function.
    let both = unsafe { borrow(port, error::INV_PORT) }
        // SAFETY: the caller meets the safety requirements of this function.
        .and_then(|p| Ok((p, unsafe { borrow(handle, error::INV_HANDLE)? })));
    status(both.and_then(|(endpoint, connection)| {
        let options = new(connection.options.load(Ordering::Relaxed));
        endpoint
            .port
            .check_page(extoll::rma::PageOptions::from_index(options))
            .map_err(failed)?;
        connection.options.store(options, Ordering::Relaxed);
        Ok(())
    }))
}

/// Returns `SUCCESS` if the page option has the value `set`, and `ERR_ERROR` otherwise. The result
/// is an unsigned number, because the header declares that type.
///
/// # Safety
/// `handle` is null or an open connection.
unsafe fn is(handle: *const Connection, bit: u8, set: bool) -> u32 {
    // SAFETY: the caller meets the safety requirements of this function.
    let options = unsafe { borrow(handle, error::INV_HANDLE) };
    match options.map(|h| h.options.load(Ordering::Relaxed) & bit != 0) {
        Ok(it) if it == set => error::SUCCESS as u32,
        Ok(_) => error::ERR_ERROR as u32,
        Err(code) => code as u32,
    }
}

/// # Safety
/// `port` is null or an open port; `h` is null or an open connection.
#[no_mangle]
unsafe extern "C" fn rma2_request_interrupt(port: *const Endpoint, h: *const Connection) -> Status {
    // SAFETY: `port` and `h` meet this function's safety requirements.
    unsafe { change(port, h, |o| o | IRQ) }
}

/// # Safety
/// `_port` is null or an open port; `h` is null or an open connection.
#[no_mangle]
unsafe extern "C" fn rma2_get_interrupt(_port: *const Endpoint, h: *const Connection) -> u32 {
    // SAFETY: `h` meets this function's safety requirements.
    unsafe { is(h, IRQ, true) }
}

/// # Safety
/// `port` is null or an open port; `h` is null or an open connection.
#[no_mangle]
unsafe extern "C" fn rma2_request_rra(port: *const Endpoint, h: *const Connection) -> Status {
    // SAFETY: `port` and `h` meet this function's safety requirements.
    unsafe { change(port, h, |o| o | RRA) }
}

/// # Safety
/// `_port` is null or an open port; `h` is null or an open connection.
#[no_mangle]
unsafe extern "C" fn rma2_get_rra(_port: *const Endpoint, h: *const Connection) -> u32 {
    // SAFETY: `h` meets this function's safety requirements.
    unsafe { is(h, RRA, true) }
}

/// # Safety
/// `port` is null or an open port; `h` is null or an open connection.
#[no_mangle]
unsafe extern "C" fn rma2_request_physical_access(
    port: *const Endpoint,
    h: *const Connection,
) -> Status {
    // SAFETY: `port` and `h` meet this function's safety requirements.
    unsafe { change(port, h, |o| o & !TE) }
}

/// # Safety
/// `_port` is null or an open port; `h` is null or an open connection.
#[no_mangle]
unsafe extern "C" fn rma2_get_physical_access(_port: *const Endpoint, h: *const Connection) -> u32 {
    // SAFETY: `h` meets this function's safety requirements.
    unsafe { is(h, TE, false) }
}

/// # Safety
/// `port` is null or an open port; `h` is null or an open connection.
#[no_mangle]
unsafe extern "C" fn rma2_request_tcs(
    port: *const Endpoint,
    h: *const Connection,
    request: u32,
    response: u32,
) -> Status {
    if request > 3 || response > 3 {
        return error::INV_VALUE;
    }
    // SAFETY: `port` meets this function's safety requirements.
    let set = unsafe {
        act(port, |p| {
            let old = p.response_classes()?;
            let shift = 8 * request;
            let new = (old & !(0xFF << shift)) | (u64::from(response) << shift);
            // Setting the current value needs no privilege.
            if new == old {
                return Ok(());
            }
            p.set_response_classes(new)
        })
    };
    if set != error::SUCCESS {
        return set;
    }
    // SAFETY: `port` and `h` meet this function's safety requirements.
    unsafe { change(port, h, |o| (o & !3) | request as u8) }
}

/// # Safety
/// `port` is null or an open port; `h` is null or an open connection; `request` and `response` are
/// null or valid for a write.
#[no_mangle]
unsafe extern "C" fn rma2_get_tcs(
    port: *const Endpoint,
    h: *const Connection,
    request: *mut u32,
    response: *mut u32,
) -> Status {
    let read = || -> Outcome<()> {
        // SAFETY: `port` meets this function's safety requirements.
        let endpoint = unsafe { borrow(port, error::INV_PORT)? };
        // SAFETY: `h` meets this function's safety requirements.
        let connection = unsafe { borrow(h, error::INV_HANDLE)? };
        let class = u32::from(connection.options().traffic_class);
        let responses = endpoint.port.response_classes().map_err(failed)?;
        // SAFETY: `request` meets this function's safety requirements.
        unsafe {
            give(request, class)?;
            give(response, (responses >> (8 * class)) as u32 & 3)
        }
    };
    status(read())
}
