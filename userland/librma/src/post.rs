// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Functions that post commands or prepare descriptors.

use super::{borrow, error, give, status, Connection, Desc, Endpoint, Outcome, Region, Status};
use crate::port::REPLAY_POST;
use extoll::rma::{check_target, Command, LockTarget, Modifiers, NotifySpec, Operation, Vpid};
use extoll::wire::rma::{Descriptor, DescriptorWord};
use extoll::Wait;
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Maximum time for which posting waits for a credit.
const ROOM: Duration = Duration::from_secs(2);

/// Returns the words of a command. Fails for a command that the NIC would reject.
fn encode(h: &Connection, spec: c_int, modifier: c_int, op: Operation) -> Outcome<[u64; 3]> {
    let bits = |value: c_int, limit: u8| {
        u8::try_from(value)
            .ok()
            .filter(|v| *v <= limit)
            .ok_or(error::INV_VALUE)
    };
    let modifiers = Modifiers::from_bits(bits(modifier, 15)?);
    check_target(h.node, modifiers).map_err(|e| error::of(&e))?;
    Descriptor {
        node: h.node,
        vpid: Vpid::from(h.vpid),
        notify: NotifySpec::from_bits(bits(spec, 7)?),
        modifiers,
        op,
    }
    .encode()
    .map_err(|e| error::of(&extoll::Error::Descriptor(e)))
}

fn send(endpoint: &Endpoint, h: &Connection, words: [u64; 3]) -> Outcome<()> {
    let post = || endpoint.port.post_words(h.options(), words);
    let sent = if endpoint.mode.load(Ordering::Relaxed) & REPLAY_POST == 0 {
        post()
    } else {
        endpoint.port.retry(Wait::for_at_most(ROOM), post)
    };
    sent.map_err(|e| match e {
        extoll::Error::Timeout => error::NO_DESC_MEM,
        other => error::of(&other),
    })
}

/// Encodes and posts a command.
///
/// # Safety
/// `port` is null or an open port; `handle` is null or an open connection.
unsafe fn post(
    port: *const Endpoint,
    handle: *const Connection,
    spec: c_int,
    modifier: c_int,
    op: Operation,
) -> Status {
    let run = || -> Outcome<()> {
        // SAFETY: the caller meets the safety requirements of this function.
        let endpoint = unsafe { borrow(port, error::INV_PORT)? };
        // SAFETY: the caller meets the safety requirements of this function.
        let h = unsafe { borrow(handle, error::INV_HANDLE)? };
        send(endpoint, h, encode(h, spec, modifier, op)?)
    };
    status(run())
}

/// Returns the NLA of a range of a region. Fails if the region does not contain the range.
///
/// # Safety
/// `region` is null or valid.
unsafe fn nla(region: *const Region, offset: u32, size: u32) -> Outcome<u64> {
    // SAFETY: the caller meets the safety requirements of this function.
    let r = unsafe { borrow(region, error::INV_VALUE)? };
    let offset = u64::from(r.offset) + u64::from(offset);
    if offset + u64::from(size) > r.size as u64 {
        return Err(error::INV_VALUE);
    }
    Ok(r.nla + offset)
}

macro_rules! transfers {
    ($($put:ident $by_region:ident $direct:ident $qw:literal;)*) => {
        $(
            /// # Safety
            /// `port` is null or an open port; `handle` is null or an open connection; `region` is
            /// null or a region of this library.
            #[no_mangle]
            unsafe extern "C" fn $by_region(
                port: *const Endpoint,
                handle: *const Connection,
                region: *const Region,
                offset: u32,
                size: u32,
                remote: u64,
                spec: c_int,
                modifier: c_int,
            ) -> Status {
                // SAFETY: `port`, `handle` and `region` meet this function's safety requirements.
                match unsafe { nla(region, offset, size) } {
                    // SAFETY: `port` and `handle` meet this function's safety requirements.
                    Ok(local) => unsafe {
                        $direct(port, handle, local, size, remote, spec, modifier)
                    },
                    Err(code) => code,
                }
            }

            /// # Safety
            /// `port` is null or an open port; `handle` is null or an open connection.
            #[no_mangle]
            unsafe extern "C" fn $direct(
                port: *const Endpoint,
                handle: *const Connection,
                local: u64,
                len: u32,
                remote: u64,
                spec: c_int,
                modifier: c_int,
            ) -> Status {
                let op = Operation::$put { qw: $qw, len, local, remote };
                // SAFETY: `port` and `handle` meet this function's safety requirements.
                unsafe { post(port, handle, spec, modifier, op) }
            }
        )*
    };
}

transfers! {
    Put rma2_post_put_bt rma2_post_put_bt_direct false;
    Put rma2_post_put_qw rma2_post_put_qw_direct true;
    Get rma2_post_get_bt rma2_post_get_bt_direct false;
    Get rma2_post_get_qw rma2_post_get_qw_direct true;
}

fn lock(target: u32, number: u32, compare: i32, add: i32) -> Outcome<Operation> {
    Ok(Operation::Lock {
        at: match target {
            0 => LockTarget::Completer,
            1 => LockTarget::Responder,
            _ => return Err(error::INV_VALUE),
        },
        number,
        compare,
        add,
    })
}

/// # Safety
/// `port` is null or an open port; `handle` is null or an open connection.
#[no_mangle]
unsafe extern "C" fn rma2_post_lock(
    port: *const Endpoint,
    handle: *const Connection,
    target: u32,
    number: u32,
    compare: i32,
    add: i32,
    spec: c_int,
    modifier: c_int,
) -> Status {
    match lock(target, number, compare, add) {
        // SAFETY: `port` and `handle` meet this function's safety requirements.
        Ok(op) => unsafe { post(port, handle, spec, modifier, op) },
        Err(code) => code,
    }
}

/// # Safety
/// `port` is null or an open port; `handle` is null or an open connection.
#[no_mangle]
unsafe extern "C" fn rma2_post_notification(
    port: *const Endpoint,
    handle: *const Connection,
    class: u8,
    value: u64,
    spec: c_int,
    modifier: c_int,
) -> Status {
    let op = Operation::NotificationPut { class, value };
    // SAFETY: `port` and `handle` meet this function's safety requirements.
    unsafe { post(port, handle, spec, modifier, op) }
}

fn immediate(count: u32, value: u64, remote: u64) -> Operation {
    Operation::ImmediatePut {
        // Encoding rejects a count that is 0 or too large.
        len: u8::try_from(count).unwrap_or(0),
        remote,
        value,
    }
}

/// # Safety
/// `port` is null or an open port; `handle` is null or an open connection.
#[no_mangle]
unsafe extern "C" fn rma2_post_immediate_put(
    port: *const Endpoint,
    handle: *const Connection,
    count: u32,
    value: u64,
    remote: u64,
    spec: c_int,
    modifier: c_int,
) -> Status {
    // SAFETY: `port` and `handle` meet this function's safety requirements.
    unsafe {
        post(
            port,
            handle,
            spec,
            modifier,
            immediate(count, value, remote),
        )
    }
}

/// # Safety
/// `port` is null or an open port; `handle` is null or an open connection; `desc` is null or a
/// descriptor of this library.
#[no_mangle]
unsafe extern "C" fn rma2_post_descriptor(
    port: *const Endpoint,
    handle: *const Connection,
    desc: *const Desc,
) -> Status {
    let run = || -> Outcome<()> {
        // SAFETY: `port` meets this function's safety requirements.
        let endpoint = unsafe { borrow(port, error::INV_PORT)? };
        // SAFETY: `handle` meets this function's safety requirements.
        let h = unsafe { borrow(handle, error::INV_HANDLE)? };
        // SAFETY: `desc` meets this function's safety requirements. The words of the descriptor are
        // posted without a check, as in the public library.
        let desc = unsafe { borrow(desc, error::INV_VALUE)? };
        send(endpoint, h, desc.value)
    };
    status(run())
}

/// # Safety
/// `port` is null or an open port; `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn rma2_desc_alloc(port: *const Endpoint, to: *mut *mut Desc) -> Status {
    // SAFETY: `port` meets this function's safety requirements.
    if let Err(code) = unsafe { borrow(port, error::INV_PORT) } {
        return code;
    }
    if to.is_null() {
        return error::INV_VALUE;
    }
    let desc = Box::new(Desc {
        list: [std::ptr::null_mut(); 2],
        handle: std::ptr::null_mut(),
        reserved0: 0,
        value: [0; 3],
        reserved1: 0,
    });
    // SAFETY: `to` is not null and meets this function's safety requirements.
    status(unsafe { give(to, Box::into_raw(desc)) })
}

/// # Safety
/// `_port` is null or an open port; `desc` is null or a descriptor of this library that the caller
/// does not use after this call.
#[no_mangle]
unsafe extern "C" fn rma2_desc_free(_port: *const Endpoint, desc: *mut Desc) -> Status {
    if desc.is_null() {
        return error::INV_VALUE;
    }
    // SAFETY: `rma2_desc_alloc` created the object, and the caller does not use it after this call.
    drop(unsafe { Box::from_raw(desc) });
    error::SUCCESS
}

/// Stores the largest `int` as the number of free descriptors. The number of descriptors has no
/// limit, because they are allocated on the heap.
///
/// # Safety
/// `_port` is null or an open port; `num` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn rma2_desc_query_free(_port: *const Endpoint, num: *mut c_int) -> Status {
    // SAFETY: `num` meets this function's safety requirements.
    status(unsafe { give(num, c_int::MAX) })
}

/// Stores the words of a command in a descriptor.
///
/// # Safety
/// `desc` is null or valid for writes; `handle` is null or an open connection.
unsafe fn fill(
    desc: *mut Desc,
    handle: *mut Connection,
    spec: c_int,
    modifier: c_int,
    op: Outcome<Operation>,
) -> Status {
    let run = || -> Outcome<()> {
        // SAFETY: the caller meets the safety requirements of this function.
        let h = unsafe { borrow(handle, error::INV_HANDLE)? };
        let words = encode(h, spec, modifier, op?)?;
        // SAFETY: the caller meets the safety requirements of this function.
        let desc = unsafe { desc.as_mut() }.ok_or(error::INV_VALUE)?;
        desc.handle = handle;
        desc.value = words;
        Ok(())
    };
    status(run())
}

/// # Safety
/// `desc` is null or a descriptor of this library; `handle` is null or an open connection.
#[no_mangle]
unsafe extern "C" fn rma2_desc_set_put_get(
    desc: *mut Desc,
    handle: *mut Connection,
    command: c_int,
    len: u32,
    spec: c_int,
    modifier: c_int,
    read: u64,
    write: u64,
) -> Status {
    let command = u8::try_from(command).ok().and_then(Command::from_code);
    let op = match command {
        Some(c @ (Command::BytePut | Command::QwPut)) => Ok(Operation::Put {
            qw: c == Command::QwPut,
            len,
            local: read,
            remote: write,
        }),
        Some(c @ (Command::ByteGet | Command::QwGet)) => Ok(Operation::Get {
            qw: c == Command::QwGet,
            len,
            remote: read,
            local: write,
        }),
        _ => Err(error::WRONG_CMD),
    };
    // SAFETY: `desc` and `handle` meet this function's safety requirements.
    unsafe { fill(desc, handle, spec, modifier, op) }
}

/// # Safety
/// `desc` is null or a descriptor of this library; `handle` is null or an open connection.
#[no_mangle]
unsafe extern "C" fn rma2_desc_set_immediate_put(
    desc: *mut Desc,
    handle: *mut Connection,
    spec: c_int,
    modifier: c_int,
    count: u32,
    write: u64,
    value: u64,
) -> Status {
    // SAFETY: `desc` and `handle` meet this function's safety requirements.
    unsafe {
        fill(
            desc,
            handle,
            spec,
            modifier,
            Ok(immediate(count, value, write)),
        )
    }
}

/// # Safety
/// `desc` is null or a descriptor of this library; `handle` is null or an open connection.
#[no_mangle]
unsafe extern "C" fn rma2_desc_set_noti_put(
    desc: *mut Desc,
    handle: *mut Connection,
    spec: c_int,
    modifier: c_int,
    class: u8,
    value: u64,
) -> Status {
    let op = Operation::NotificationPut { class, value };
    // SAFETY: `desc` and `handle` meet this function's safety requirements.
    unsafe { fill(desc, handle, spec, modifier, Ok(op)) }
}

/// # Safety
/// `desc` is null or a descriptor of this library; `handle` is null or an open connection.
#[no_mangle]
unsafe extern "C" fn rma2_desc_set_lock(
    desc: *mut Desc,
    handle: *mut Connection,
    spec: c_int,
    modifier: c_int,
    target: u8,
    number: u32,
    compare: u32,
    add: u32,
) -> Status {
    let op = lock(target.into(), number, compare as i32, add as i32);
    // SAFETY: `desc` and `handle` meet this function's safety requirements.
    unsafe { fill(desc, handle, spec, modifier, op) }
}

/// Replaces class and value in a descriptor to which rma2_desc_set_noti_put wrote a command.
///
/// # Safety
/// `desc` is null or a descriptor of this library.
#[no_mangle]
unsafe extern "C" fn rma2_desc_set_notification_value(
    desc: *mut Desc,
    class: u8,
    value: u64,
) -> Status {
    // SAFETY: `desc` meets this function's safety requirements.
    let Some(desc) = (unsafe { desc.as_mut() }) else {
        return error::INV_VALUE;
    };
    let word0 = DescriptorWord(desc.value[0]);
    if word0.command() != Command::NotificationPut.code() {
        return error::WRONG_CMD;
    }
    desc.value[0] = word0.with_count(class.into()).raw();
    desc.value[1] = value;
    error::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null_mut;
    use std::sync::atomic::AtomicU8;

    fn connection() -> Connection {
        Connection {
            node: extoll::rma::NodeId(0x1234),
            vpid: 0x56,
            options: AtomicU8::new(16),
        }
    }

    fn desc() -> Desc {
        Desc {
            list: [null_mut(); 2],
            handle: null_mut(),
            reserved0: 0,
            value: [0; 3],
            reserved1: 0,
        }
    }

    #[test]
    fn descriptors_have_the_bits_of_the_reference() {
        let (mut h, mut d) = (connection(), desc());
        // SAFETY: both pointers are valid in this call and in the calls below.
        let put = unsafe { rma2_desc_set_put_get(&mut d, &mut h, 2, 500, 5, 2, 0xAAA, 0xBBB) };
        assert_eq!(put, error::SUCCESS);
        let word0 =
            (499 << 40) | (2 << 35) | (5 << 32) | (0x1234 << 16) | (0x56 << 8) | (2 << 2) | 3;
        assert_eq!(d.value, [word0, 0xAAA, 0xBBB]);
        // SAFETY: both pointers are valid.
        let get = unsafe { rma2_desc_set_put_get(&mut d, &mut h, 0, 8, 0, 0, 0xAAA, 0xBBB) };
        assert_eq!((get, d.value[1], d.value[2]), (0, 0xAAA, 0xBBB));
        // SAFETY: both pointers are valid.
        unsafe {
            assert_eq!(
                rma2_desc_set_lock(&mut d, &mut h, 4, 0, 1, 9, 7, -1i32 as u32),
                0
            );
            assert_eq!(d.value[0] >> 40, 1);
            assert_eq!(d.value[1..], [(7 << 32) | 9, 0xFFFF_FFFF << 32]);
            assert_eq!(
                rma2_desc_set_notification_value(&mut d, 1, 2),
                error::WRONG_CMD
            );
            assert_eq!(rma2_desc_set_noti_put(&mut d, &mut h, 4, 0, 9, 77), 0);
            assert_eq!(rma2_desc_set_notification_value(&mut d, 0xA5, 78), 0);
            assert_eq!((d.value[0] >> 40, d.value[1]), (0xA5, 78));
        }
    }

    #[test]
    fn what_the_nic_would_not_take_is_refused() {
        let (mut h, mut d) = (connection(), desc());
        // SAFETY: all pointers are valid or null.
        unsafe {
            let mut put = |command, len, spec, modifier| {
                rma2_desc_set_put_get(&mut d, &mut h, command, len, spec, modifier, 0, 0)
            };
            assert_eq!(put(2, 0, 0, 0), error::INV_VALUE);
            assert_eq!(put(2, (8 << 20) + 1, 0, 0), error::INV_VALUE);
            assert_eq!(put(3, 7, 0, 0), error::INV_VALUE);
            assert_eq!(put(2, 8, 8, 0), error::INV_VALUE);
            assert_eq!(put(2, 8, 0, -1), error::INV_VALUE);
            assert_eq!(put(4, 8, 0, 0), error::WRONG_CMD);
            assert_eq!(put(2, 8 << 20, 7, 14), error::SUCCESS);
            // With modifier 1, the node is one of 64 multicast groups.
            assert_eq!(put(2, 8 << 20, 7, 15), error::INV_VALUE);
            let mut group = Connection {
                node: extoll::rma::NodeId(63),
                ..connection()
            };
            let mut noti = desc();
            let multicast = rma2_desc_set_noti_put(&mut noti, &mut group, 0, 1, 0, 0);
            assert_eq!(multicast, error::SUCCESS);
            assert_eq!(
                rma2_desc_set_immediate_put(&mut d, &mut h, 0, 0, 9, 0, 0),
                error::INV_VALUE
            );
            for (target, number) in [(2, 0), (0, 1 << 24)] {
                assert_eq!(
                    rma2_desc_set_lock(&mut d, &mut h, 0, 0, target, number, 0, 0),
                    error::INV_VALUE
                );
            }
            assert_eq!(
                rma2_desc_set_noti_put(null_mut(), &mut h, 0, 0, 0, 0),
                error::INV_VALUE
            );
            assert_eq!(
                rma2_desc_set_noti_put(&mut d, null_mut(), 0, 0, 0, 0),
                error::INV_HANDLE
            );
            assert_eq!(
                rma2_post_notification(null_mut(), &h, 0, 0, 0, 0),
                error::INV_PORT
            );
        }
    }
}
