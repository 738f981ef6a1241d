// SPDX-License-Identifier: GPL-2.0-only

//! What lnet.c calls for LNet: in process context, but for those that only tell a number.

use super::lnet::{Msg, NiRef, Wanted};
use crate::{
    conf,
    ni::{Asked, Ni},
};
use core::{mem::ManuallyDrop, ptr::NonNull};
use kernel::{bindings, prelude::*, sync::Arc};

/// The interface of a call.
///
/// # Safety
///
/// `data` came from `exlnd_rs_startup`, and was not given to `exlnd_rs_shutdown`.
unsafe fn ni(data: *mut c_void) -> ManuallyDrop<Arc<Ni>> {
    // SAFETY: by the requirement. LNet keeps the reference, and gives it back at the end.
    ManuallyDrop::new(unsafe { Arc::from_raw(data.cast_const().cast::<Ni>()) })
}

// A function of lnet.c, with the same types.
extern "C" {
    fn exlnd_ni_data(ni: *mut c_void, data: *mut c_void);
}

/// Begins an interface.
///
/// # Safety
///
/// `raw` is an interface of LNet's that is about to be started, `interface` a string.
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
    // SAFETY: by the requirement.
    let name = unsafe { CStr::from_char_ptr(interface) };
    let asked = Asked {
        immediate,
        credits,
        peer_credits,
    };
    // SAFETY: by the requirement; `exlnd_rs_shutdown` ends all that uses it.
    let lnet = unsafe { NiRef::new(handle) };
    match Ni::start(lnet, name.to_bytes(), &asked) {
        Ok(ni) => {
            let data = Arc::into_raw(ni.clone()).cast_mut();
            // SAFETY: by the requirement; it is given back by `exlnd_rs_shutdown`.
            unsafe { exlnd_ni_data(raw, data.cast()) };
            // LNet calls back with `data` for what comes in.
            ni.begin_to_read();
            0
        }
        Err(e) => e.to_errno(),
    }
}

/// Ends an interface, which has no messages any more. LNet may still be given some that came in
/// before, and call back for them, until this returns.
///
/// # Safety
///
/// As [`ni`], and LNet does not use `data` after this.
#[no_mangle]
unsafe extern "C" fn exlnd_rs_shutdown(data: *mut c_void) {
    // SAFETY: by the requirement.
    let ni = ManuallyDrop::into_inner(unsafe { ni(data) });
    ni.end();
}

/// Takes a message that goes out.
///
/// # Safety
///
/// As [`ni`]; `msg` is a message, this module's if 0 is returned.
#[no_mangle]
unsafe extern "C" fn exlnd_rs_send(data: *mut c_void, msg: *mut c_void) -> c_int {
    let Some(msg) = NonNull::new(msg) else {
        return EINVAL.to_errno();
    };
    // SAFETY: by the requirement.
    let (ni, msg) = unsafe { (ni(data), Msg::new(msg)) };
    match ni.send(msg) {
        Ok(()) => 0,
        Err((msg, health, e)) => {
            msg.refuse(health);
            e.to_errno()
        }
    }
}

/// Is told what LNet wants of a message that has come in, and where that goes.
///
/// # Safety
///
/// As [`ni`]; `number` is that of a message that LNet was given; `msg` is null, or this
/// module's from now on, and `to` an iterator over pages that stay until it is finalized.
#[no_mangle]
unsafe extern "C" fn exlnd_rs_recv(
    data: *mut c_void,
    number: c_ulong,
    msg: *mut c_void,
    to: *mut bindings::iov_iter,
) -> c_int {
    // SAFETY: by the requirement.
    let ni = unsafe { ni(data) };
    let wanted = NonNull::new(msg).map(|msg| {
        // SAFETY: by the requirement.
        let msg = unsafe { Msg::new(msg) };
        // SAFETY: by the requirement; an iterator may be copied.
        unsafe { Wanted::new(msg, to.read()) }
    });
    ni.recv(number as u64, wanted);
    0
}

/// LNet keeps a message that it was given, and wants it later by the same number.
///
/// # Safety
///
/// As [`ni`]; `number` is that of a message that LNet was given.
#[no_mangle]
unsafe extern "C" fn exlnd_rs_keep(data: *mut c_void, number: c_ulong) {
    // SAFETY: by the requirement.
    let ni = unsafe { ni(data) };
    ni.keep(number as u64);
}

/// What LNet may count with for a message, in seconds. Any context.
#[no_mangle]
extern "C" fn exlnd_rs_timeout() -> c_int {
    conf::timeout() as c_int
}

/// Payload that is sent in messages, by default. Any context.
#[no_mangle]
extern "C" fn exlnd_rs_immediate() -> i32 {
    conf::immediate() as i32
}

/// Whether this many bytes of payload can be sent in messages. Any context.
#[no_mangle]
extern "C" fn exlnd_rs_is_immediate(bytes: i64) -> bool {
    conf::IMMEDIATE.contains(&bytes)
}

/// Credits and times for which LNet was given no number. Any context.
///
/// # Safety
///
/// The pointers may be written.
#[no_mangle]
unsafe extern "C" fn exlnd_rs_tunables(
    credits: *mut c_int,
    peer_credits: *mut c_int,
    router_credits: *mut c_int,
    peer_timeout: *mut c_int,
) {
    let t = conf::tunables();
    // SAFETY: by the requirement.
    unsafe {
        credits.write(t.credits);
        peer_credits.write(t.peer_credits);
        router_credits.write(t.router_credits);
        peer_timeout.write(t.peer_timeout);
    }
}

/// A command of LNet's for an interface; there are none.
///
/// # Safety
///
/// As [`ni`].
#[no_mangle]
unsafe extern "C" fn exlnd_rs_ctl(_data: *mut c_void, _cmd: c_uint) -> c_int {
    EINVAL.to_errno()
}
