// SPDX-License-Identifier: GPL-2.0-only

//! Functions that lnet.c calls on behalf of LNet. They run in process context and may sleep, unless
//! their comment says otherwise.

use super::lnet::{Msg, NiRef, Wanted};
use crate::{
    conf,
    ni::{Asked, Ni},
};
use core::{mem::ManuallyDrop, ptr::NonNull};
use kernel::{bindings, prelude::*, sync::Arc};

/// Returns the interface that a call of LNet refers to.
///
/// # Safety
///
/// `data` must come from `exlnd_rs_startup` and must not have been passed to `exlnd_rs_shutdown`.
unsafe fn ni(data: *mut c_void) -> ManuallyDrop<Arc<Ni>> {
    // SAFETY: By the safety requirements of this function, LNet holds this reference until
    // `exlnd_rs_shutdown`.
    ManuallyDrop::new(unsafe { Arc::from_raw(data.cast_const().cast::<Ni>()) })
}

// Declared in lnet.c with the same types.
extern "C" {
    fn exlnd_ni_data(ni: *mut c_void, data: *mut c_void);
}

/// Starts an interface.
///
/// # Safety
///
/// `raw` must be an interface that LNet is starting, `interface` a C string.
#[no_mangle]
unsafe extern "C" fn exlnd_rs_startup(
    raw: *mut c_void,
    interface: *const c_char,
    immediate: u32,
    credits: u32,
    peer_credits: u32,
) -> c_int {
    let Some(handle) = NonNull::new(raw) else {
        return EINVAL.to_errno();
    };
    // SAFETY: The caller meets the safety requirements of this function.
    let name = unsafe { CStr::from_char_ptr(interface) };
    let asked = Asked {
        immediate,
        credits,
        peer_credits,
    };
    // SAFETY: The caller meets the safety requirements of this function. `exlnd_rs_shutdown` ends
    // all uses of the interface.
    let lnet = unsafe { NiRef::new(handle) };
    match Ni::start(lnet, name.to_bytes(), &asked) {
        Ok(ni) => {
            let data = Arc::into_raw(ni.clone()).cast_mut();
            // SAFETY: The caller meets the safety requirements of this function.
            // `exlnd_rs_shutdown` takes the reference back.
            unsafe { exlnd_ni_data(raw, data.cast()) };
            // LNet passes `data` to the calls for incoming messages, so it is set before they are
            // processed.
            ni.begin_to_read();
            0
        }
        Err(e) => e.to_errno(),
    }
}

/// Stops an interface without outgoing messages. Until this function returns, earlier incoming
/// messages may still be passed to LNet, which calls back for them.
///
/// # Safety
///
/// The requirements of [`ni`] apply. LNet must not use `data` after this call.
#[no_mangle]
unsafe extern "C" fn exlnd_rs_shutdown(data: *mut c_void) {
    // SAFETY: The caller meets the safety requirements of this function.
    let ni = ManuallyDrop::into_inner(unsafe { ni(data) });
    ni.end();
}

/// Sends a message.
///
/// # Safety
///
/// The requirements of [`ni`] apply. `msg` must point to a message. The message belongs to this
/// module if 0 is returned, otherwise to LNet.
#[no_mangle]
unsafe extern "C" fn exlnd_rs_send(data: *mut c_void, msg: *mut c_void) -> c_int {
    let Some(msg) = NonNull::new(msg) else {
        return EINVAL.to_errno();
    };
    // SAFETY: The caller meets the safety requirements of this function.
    let (ni, msg) = unsafe { (ni(data), Msg::new(msg)) };
    match ni.send(msg) {
        Ok(()) => 0,
        Err((msg, health, e)) => {
            msg.refuse(health);
            e.to_errno()
        }
    }
}

/// Receives the payload of an incoming message, up to the length that LNet requests.
/// # Safety
///
/// The requirements of [`ni`] apply. `number` must be the number under which a message was passed
/// to LNet. `msg` must be null, or a message that belongs to this module from now on. In the second
/// case `to` must be an iterator over pages that stay until `msg` is finalized.
#[no_mangle]
unsafe extern "C" fn exlnd_rs_recv(
    data: *mut c_void,
    number: c_ulong,
    msg: *mut c_void,
    to: *mut bindings::iov_iter,
) -> c_int {
    // SAFETY: The caller meets the safety requirements of this function.
    let ni = unsafe { ni(data) };
    let wanted = NonNull::new(msg).map(|msg| {
        // SAFETY: The caller meets the safety requirements of this function.
        let msg = unsafe { Msg::new(msg) };
        // SAFETY: The caller meets the safety requirements of this function. An iterator may be
        // copied.
        unsafe { Wanted::new(msg, to.read()) }
    });
    ni.recv(number as u64, wanted);
    0
}

/// Makes a message available for a later receive by the same number, because LNet keeps it.
///
/// # Safety
///
/// The requirements of [`ni`] apply. `number` must be the number under which a message was passed
/// to LNet.
#[no_mangle]
unsafe extern "C" fn exlnd_rs_keep(data: *mut c_void, number: c_ulong) {
    // SAFETY: The caller meets the safety requirements of this function.
    let ni = unsafe { ni(data) };
    ni.keep(number as u64);
}

/// Returns the maximum time of a message in seconds. Any context.
#[no_mangle]
extern "C" fn exlnd_rs_timeout() -> c_int {
    conf::timeout() as c_int
}

/// Returns the default maximum of payload sent in messages, in bytes. Any context.
#[no_mangle]
extern "C" fn exlnd_rs_immediate() -> i32 {
    conf::immediate() as i32
}

/// Returns whether `bytes` is a permitted maximum of payload sent in messages. Any context.
#[no_mangle]
extern "C" fn exlnd_rs_is_immediate(bytes: i64) -> bool {
    conf::IMMEDIATE.contains(&bytes)
}

/// Returns the default credits and times. Any context.
///
/// # Safety
///
/// The pointers must be valid for writes.
#[no_mangle]
unsafe extern "C" fn exlnd_rs_tunables(
    credits: *mut c_int,
    peer_credits: *mut c_int,
    router_credits: *mut c_int,
    peer_timeout: *mut c_int,
) {
    let t = conf::tunables();
    // SAFETY: The caller meets the safety requirements of this function.
    unsafe {
        credits.write(t.credits);
        peer_credits.write(t.peer_credits);
        router_credits.write(t.router_credits);
        peer_timeout.write(t.peer_timeout);
    }
}

/// Handles a command of LNet for an interface. This driver supports no commands.
///
/// # Safety
///
/// The requirements of [`ni`] apply.
#[no_mangle]
unsafe extern "C" fn exlnd_rs_ctl(_data: *mut c_void, _cmd: c_uint) -> c_int {
    EINVAL.to_errno()
}
