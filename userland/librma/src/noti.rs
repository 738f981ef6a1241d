// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Functions that find, read and free notifications.

use super::{borrow, error, give, status, Endpoint, Noti, Outcome, Status};
use crate::port::REPLAY_NOTI;
use extoll::rma::{content, Command, Found, LockResult};
use extoll::wire::rma::NotificationWord;
use extoll::Wait;
use std::ffi::{c_char, c_int};
use std::sync::atomic::Ordering;
use std::time::Duration;

#[no_mangle]
static RMA2_CLASS_ANY: u8 = 0xFF;
#[no_mangle]
static RMA2_NODEID_ANY: u16 = 0xFFFF;
#[no_mangle]
static RMA2_VPID_ANY: u16 = 0xFFFF;
#[no_mangle]
static RMA2_LOCK_ANY: u32 = 0xFFFF_FFFF;
#[no_mangle]
static RMA2_ANY_NLA: u64 = u64::MAX;
#[no_mangle]
static RMA2_DEFAULT_FLAG: u32 = 0;
#[no_mangle]
static RMA2_BLOCK_FLAG: u32 = 1;
#[no_mangle]
static RMA2_MATCH_LAST_NLA_FLAG: u32 = 2;

/// Time for which a blocking call polls before it sleeps. Programs for this interface expect low
/// latency.
const SPIN: Duration = Duration::from_millis(5);

/// Stores the address of the oldest notification that `wanted` accepts. The notification belongs to
/// the caller until the caller frees it.
///
/// # Safety
/// `port` is null or an open port; `to` is null or valid for a write.
unsafe fn find(
    port: *const Endpoint,
    to: *mut *mut Noti,
    block: bool,
    wanted: impl Fn(&Noti) -> bool,
) -> Status {
    let run = || -> Outcome<()> {
        // SAFETY: the caller meets the safety requirements of this function.
        let endpoint = unsafe { borrow(port, error::INV_PORT)? };
        if to.is_null() {
            return Err(error::INV_VALUE);
        }
        let test = |[word0, word1]: [u64; 2]| wanted(&Noti { word0, word1 });
        let found = if block {
            endpoint
                .port
                .peek_wait(Wait::forever().spinning(SPIN), test)
                .map_err(|e| error::of(&e))?
        } else {
            match endpoint.port.peek(test).map_err(|e| error::of(&e))? {
                Found::At(found) => found,
                Found::Others(others) => {
                    if endpoint.mode.load(Ordering::Relaxed) & REPLAY_NOTI != 0 {
                        endpoint.port.settle().map_err(|e| error::of(&e))?;
                    }
                    return Err(if others == 0 {
                        error::NO_NOTI
                    } else {
                        error::NO_MATCH
                    });
                }
            }
        };
        // SAFETY: the caller meets the safety requirements of this function.
        unsafe { give(to, found.cast()) }
    };
    let result = status(run());
    if result != error::SUCCESS {
        // SAFETY: the caller meets the safety requirements of this function. For null the function
        // returns an error without a write.
        let _ = unsafe { give(to, std::ptr::null_mut()) };
    }
    result
}

/// # Safety
/// `port` is null or an open port; `to` is null or valid for a write.
#[no_mangle]
pub unsafe extern "C" fn rma2_noti_probe(port: *const Endpoint, to: *mut *mut Noti) -> Status {
    // SAFETY: `port` and `to` meet this function's safety requirements.
    unsafe { find(port, to, false, |_| true) }
}

/// # Safety
/// `port` is null or an open port; `to` is null or valid for a write.
#[no_mangle]
pub unsafe extern "C" fn rma2_noti_get_block(port: *const Endpoint, to: *mut *mut Noti) -> Status {
    // SAFETY: `port` and `to` meet this function's safety requirements.
    unsafe { find(port, to, true, |_| true) }
}

/// Properties of the notifications that rma2_noti_match accepts. They may be the wildcards of the
/// header.
struct Match {
    command: c_int,
    node: u16,
    vpid: u16,
    kind: c_int,
    nla: u64,
    last_nla: bool,
    class: u8,
}

impl Match {
    fn is(&self, n: &Noti) -> bool {
        let w = NotificationWord(n.word1);
        let command = c_int::from(w.command());
        // With RMA2_MATCH_LAST_NLA_FLAG, the given address is the end of the data instead of the
        // start of the last fragment.
        let before = if self.last_nla {
            u64::from(w.size()) + 1
        } else {
            0
        };
        (self.kind == 7 || self.kind == c_int::from(w.kind()))
            && (self.command == 15
                || self.command == command
                || self.command == 7 && matches!(command, 2 | 3 | 6)
                || self.command == 14 && matches!(command, 0 | 1 | 10 | 11))
            && self.matches_peer(w)
            && (self.class == RMA2_CLASS_ANY || self.class == w.size() as u8)
            && (self.nla == RMA2_ANY_NLA || self.nla.wrapping_sub(before) == n.word0)
    }

    fn matches_peer(&self, w: NotificationWord) -> bool {
        peer(w, self.node, self.vpid)
    }
}

fn peer(w: NotificationWord, node: u16, vpid: u16) -> bool {
    (node == RMA2_NODEID_ANY || node == w.node())
        && (vpid == RMA2_VPID_ANY || vpid == u16::from(w.vpid()))
}

/// # Safety
/// `port` is null or an open port; `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn rma2_noti_match(
    port: *const Endpoint,
    command: c_int,
    node: u16,
    vpid: u16,
    kind: c_int,
    nla: u64,
    flags: c_int,
    to: *mut *mut Noti,
) -> Status {
    let m = Match {
        command,
        node,
        vpid,
        kind,
        nla,
        last_nla: flags & 2 != 0,
        class: RMA2_CLASS_ANY,
    };
    // SAFETY: `port` and `to` meet this function's safety requirements.
    unsafe { find(port, to, flags & 1 != 0, |n| m.is(n)) }
}

/// # Safety
/// `port` is null or an open port; `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn rma2_noti_match_block(
    port: *const Endpoint,
    command: c_int,
    node: u16,
    vpid: u16,
    kind: c_int,
    nla: u64,
    flags: c_int,
    to: *mut *mut Noti,
) -> Status {
    // SAFETY: `port` and `to` meet this function's safety requirements.
    unsafe { rma2_noti_match(port, command, node, vpid, kind, nla, flags | 1, to) }
}

fn notification_put(class: u8, node: u16, vpid: u16) -> Match {
    Match {
        command: Command::NotificationPut.code().into(),
        node,
        vpid,
        kind: 4,
        nla: RMA2_ANY_NLA,
        last_nla: false,
        class,
    }
}

/// # Safety
/// `port` is null or an open port; `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn rma2_noti_noti_match(
    port: *const Endpoint,
    class: u8,
    node: u16,
    vpid: u16,
    to: *mut *mut Noti,
) -> Status {
    // SAFETY: `port` and `to` meet this function's safety requirements.
    unsafe {
        find(port, to, false, |n| {
            notification_put(class, node, vpid).is(n)
        })
    }
}

/// # Safety
/// `port` is null or an open port; `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn rma2_noti_noti_match_block(
    port: *const Endpoint,
    class: u8,
    node: u16,
    vpid: u16,
    to: *mut *mut Noti,
) -> Status {
    // SAFETY: `port` and `to` meet this function's safety requirements.
    unsafe {
        find(port, to, true, |n| {
            notification_put(class, node, vpid).is(n)
        })
    }
}

/// Returns whether a notification is the result of a lock operation: the completer's notification
/// at the origin, or the responder's notification at the target.
fn is_lock(n: &Noti, number: u32, node: u16, vpid: u16) -> bool {
    let w = NotificationWord(n.word1);
    matches!(w.command(), 12 | 13)
        && w.kind() & 6 != 0
        && peer(w, node, vpid)
        && (number == RMA2_LOCK_ANY || number == LockResult(n.word0).number())
}

/// # Safety
/// `port` is null or an open port; `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn rma2_noti_lock_match(
    port: *const Endpoint,
    number: u32,
    node: u16,
    vpid: u16,
    to: *mut *mut Noti,
) -> Status {
    // SAFETY: `port` and `to` meet this function's safety requirements.
    unsafe { find(port, to, false, |n| is_lock(n, number, node, vpid)) }
}

/// # Safety
/// `port` is null or an open port; `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn rma2_noti_lock_match_block(
    port: *const Endpoint,
    number: u32,
    node: u16,
    vpid: u16,
    to: *mut *mut Noti,
) -> Status {
    // SAFETY: `port` and `to` meet this function's safety requirements.
    unsafe { find(port, to, true, |n| is_lock(n, number, node, vpid)) }
}

/// # Safety
/// `port` is null or an open port; `noti` is null or a notification.
#[no_mangle]
pub unsafe extern "C" fn rma2_noti_free(port: *const Endpoint, noti: *const Noti) -> Status {
    status(
        // SAFETY: `port` meets this function's safety requirements. The address in `noti` is only
        // compared.
        unsafe { borrow(port, error::INV_PORT) }.and_then(|e| match e.port.free(noti.cast()) {
            true => Ok(()),
            false => Err(error::INV_VALUE),
        }),
    )
}

/// # Safety
/// `input` is null or a notification; `output` is null or valid for the write of a notification.
#[no_mangle]
unsafe extern "C" fn rma2_noti_dup(input: *const Noti, output: *mut Noti) -> Status {
    status(
        // SAFETY: `input` meets this function's safety requirements.
        unsafe { read(input) }
            .ok_or(error::INV_VALUE)
            .and_then(|n| {
                // SAFETY: `output` meets this function's safety requirements.
                unsafe { give(output, n) }
            }),
    )
}

/// Copies a notification. Returns `None` for null.
///
/// # Safety
/// `noti` is null or valid.
unsafe fn read(noti: *const Noti) -> Option<Noti> {
    // SAFETY: the pointer is not null, so the caller guarantees that it is valid.
    (!noti.is_null()).then(|| unsafe { noti.read_volatile() })
}

macro_rules! fields {
    ($($name:ident: $type:ty = |$w0:ident, $w1:ident| $value:expr;)*) => {
        $(
            /// # Safety
            /// `noti` is null or a notification.
            #[no_mangle]
            unsafe extern "C" fn $name(noti: *const Noti) -> $type {
                // SAFETY: `noti` meets this function's safety requirements.
                let n = unsafe { read(noti) }.unwrap_or(Noti { word0: 0, word1: 0 });
                let ($w0, $w1) = (n.word0, NotificationWord(n.word1));
                let _ = ($w0, $w1);
                $value
            }
        )*
    };
}

fields! {
    rma2_noti_get_cmd: c_int = |_a, w| w.command().into();
    rma2_noti_get_notification_type: c_int = |_a, w| w.kind().into();
    rma2_noti_get_mode: c_int = |_a, w| w.mode().into();
    rma2_noti_get_error: u8 = |_a, w| w.error();
    rma2_noti_get_remote_nodeid: u16 = |_a, w| w.node();
    rma2_noti_get_remote_vpid: u16 = |_a, w| w.vpid().into();
    rma2_noti_get_local_address: u64 = |a, _w| a;
    rma2_noti_get_size: u32 = |_a, w| w.size() + 1;
    rma2_noti_get_lock_value: u32 = |a, _w| LockResult(a).value();
    rma2_noti_get_lock_number: u32 = |a, _w| LockResult(a).number();
    rma2_noti_get_lock_result: u8 = |a, _w| LockResult(a).result();
    rma2_noti_get_notiput_payload: u64 = |a, _w| a;
    rma2_noti_get_notiput_class: u8 = |_a, w| w.size() as u8;
}

/// # Safety
/// `noti` is null or a notification.
#[no_mangle]
unsafe extern "C" fn rma2_noti_get_total_size(start: u64, noti: *const Noti) -> u32 {
    // SAFETY: `noti` meets this function's safety requirements.
    let n = unsafe { read(noti) }.unwrap_or(Noti { word0: 0, word1: 0 });
    let last = u64::from(NotificationWord(n.word1).size()) + 1;
    n.word0.wrapping_sub(start).wrapping_add(last) as u32
}

fn describe(n: &Noti) -> String {
    let w = NotificationWord(n.word1);
    let command = match Command::from_code(w.command()) {
        Some(command) => format!("{command:?}"),
        None => format!("command {}", w.command()),
    };
    let detail = content([n.word0, n.word1]);
    format!(
        "{command} type {} node {} vpid {} {detail} mode {:#x} error {}\n",
        w.kind(),
        w.node(),
        w.vpid(),
        w.mode(),
        w.error()
    )
}

/// # Safety
/// `noti` is null or a notification.
#[no_mangle]
unsafe extern "C" fn rma2_noti_dump(noti: *const Noti) {
    // SAFETY: `noti` meets this function's safety requirements. printf reads `text.len()` bytes,
    // which is the whole text. The function uses the output buffer of C, so that the line stays in
    // order with output of the program.
    unsafe {
        if let Some(n) = read(noti) {
            let text = describe(&n);
            libc::printf(c"%.*s".as_ptr(), text.len() as c_int, text.as_ptr());
        }
    }
}

/// # Safety
/// `noti` is null or a notification; `file` is null or an open stream.
#[no_mangle]
unsafe extern "C" fn rma2_noti_fdump(noti: *const Noti, file: *mut libc::FILE) {
    if file.is_null() {
        return;
    }
    // SAFETY: `noti` meets this function's safety requirements.
    unsafe {
        if let Some(n) = read(noti) {
            let text = describe(&n);
            libc::fwrite(text.as_ptr().cast(), 1, text.len(), file);
        }
    }
}

/// # Safety
/// `noti` is null or a notification; `to` is null or valid for writes of `size` bytes.
#[no_mangle]
unsafe extern "C" fn rma2_noti_sdump(noti: *const Noti, to: *mut c_char, size: c_int) {
    // SAFETY: `noti` and `to` meet this function's safety requirements.
    unsafe {
        if let Some(n) = read(noti) {
            error::copy_text(describe(&n).as_bytes(), to, size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noti(word0: u64, w: NotificationWord) -> Noti {
        Noti {
            word0,
            word1: w.raw(),
        }
    }

    fn word() -> NotificationWord {
        NotificationWord(0)
            .with_node(3)
            .with_vpid(4)
            .with_kind(4)
            .with_command(2)
            .with_size(99)
    }

    fn any() -> Match {
        Match {
            command: 15,
            node: 0xFFFF,
            vpid: 0xFFFF,
            kind: 4,
            nla: u64::MAX,
            last_nla: false,
            class: 0xFF,
        }
    }

    #[test]
    fn matching_compares_every_part() {
        let n = noti(0x1000, word());
        assert!(any().is(&n));
        assert!(Match {
            command: 7,
            ..any()
        }
        .is(&n));
        assert!(!Match {
            command: 14,
            ..any()
        }
        .is(&n));
        assert!(Match {
            node: 3,
            vpid: 4,
            ..any()
        }
        .is(&n));
        assert!(!Match { node: 2, ..any() }.is(&n));
        assert!(!Match { vpid: 5, ..any() }.is(&n));
        assert!(!Match { kind: 1, ..any() }.is(&n));
        assert!(Match { kind: 7, ..any() }.is(&n));
        assert!(Match {
            nla: 0x1000,
            ..any()
        }
        .is(&n));
        assert!(!Match {
            nla: 0x1064,
            ..any()
        }
        .is(&n));
        assert!(Match {
            nla: 0x1064,
            last_nla: true,
            ..any()
        }
        .is(&n));
        let put = noti(7, word().with_command(5).with_size(8));
        assert!(notification_put(8, 3, 4).is(&put));
        assert!(!notification_put(9, 3, 4).is(&put));
        let lock = noti((5 << 32) | (1 << 24) | 12, word().with_command(13));
        assert!(is_lock(&lock, 12, 3, 4) && is_lock(&lock, RMA2_LOCK_ANY, 3, 0xFFFF));
        assert!(!is_lock(&lock, 11, 3, 4) && !is_lock(&n, 12, 3, 4));
    }

    #[test]
    fn fields_and_text() {
        let n = noti(0x2000 + 496, word());
        // SAFETY: the pointer is valid, or null.
        unsafe {
            assert_eq!(rma2_noti_get_size(&n), 100);
            assert_eq!(rma2_noti_get_total_size(0x2000, &n), 596);
            assert_eq!(rma2_noti_get_remote_nodeid(&n), 3);
            assert_eq!(rma2_noti_get_cmd(std::ptr::null()), 0);
            let mut text = [0; 200];
            rma2_noti_sdump(&n, text.as_mut_ptr(), 200);
            let text = std::ffi::CStr::from_ptr(text.as_ptr()).to_str().unwrap();
            assert!(
                text.starts_with("BytePut type 4 node 3 vpid 4 address 0x21f0 size 100"),
                "{text}"
            );
        }
    }
}
