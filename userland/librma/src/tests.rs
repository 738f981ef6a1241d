// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests of the exported functions on a fake device in memory.

#[path = "../../extoll/tests/fake/mod.rs"]
mod fake;

use super::{error, mem::*, noti::*, port::*, Connection, Endpoint, Noti, Region, Status};
use extoll::rma::Port;
use fake::Fake;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::Arc;
use std::time::Duration;

fn open() -> (Arc<Fake>, *mut Endpoint) {
    let values = [
        (0x8004_6B00, 64 << 10),
        (0x8004_6B03, 64 << 10),
        (0x8004_6B08, 3),
        (0x8004_6B09, 7),
    ];
    let fake = Fake::new((0x21000, 16), &values);
    let endpoint = Endpoint {
        port: Port::with_backend(fake.clone()).unwrap(),
        mode: AtomicI32::new(7),
    };
    (fake, Box::into_raw(Box::new(endpoint)))
}

/// Makes the fake NIC accept `n` packets in total.
fn accept(fake: &Fake, n: u64) {
    fake.view(0x20000, 4096).store(0, n);
}

#[test]
fn ending_too_early_may_be_repeated() {
    let (fake, port) = open();
    // SAFETY: pointers are null, or this library created them and has not closed them.
    unsafe {
        let mut handle: *mut Connection = null_mut();
        assert_eq!(rma2_connect(port, 1, 9, 16, &mut handle), error::SUCCESS);
        let endpoint = &*port;
        endpoint
            .port
            .post_words((*handle).options(), [3, 0, 0])
            .unwrap();
        for _ in 0..2 {
            assert_eq!(rma2_disconnect(port, handle), error::POLL_EXCEEDED);
            assert_eq!(rma2_handle_get_vpid(handle), 9);
        }
        assert_eq!(rma2_close(port), error::POLL_EXCEEDED);
        accept(&fake, 1);
        assert_eq!(rma2_disconnect(port, handle), error::SUCCESS);
        assert_eq!(rma2_close(port), error::SUCCESS);
    }
    // The library has released the device, so this test owns the last reference.
    assert_eq!(Arc::strong_count(&fake), 1);
}

#[test]
fn nodes_that_are_reserved_are_refused() {
    let (_fake, port) = open();
    // SAFETY: pointers are null, or this library created them and has not closed them.
    unsafe {
        let mut handle: *mut Connection = null_mut();
        for (node, code) in [
            (0xFFFE, error::INV_VALUE),
            (0xFFFF, error::INV_VALUE),
            (0xFFFD, error::SUCCESS),
        ] {
            assert_eq!(rma2_connect(port, node, 9, 16, &mut handle), code);
        }
        assert_eq!(rma2_disconnect(port, handle), error::SUCCESS);
        assert_eq!(rma2_close(port), error::SUCCESS);
    }
}

/// Calls that block and calls that close must return `INTERRUPTED` after a signal.
#[test]
fn a_signal_ends_waiting() {
    extern "C" fn handler(_: libc::c_int) {}
    let handler = handler as extern "C" fn(libc::c_int) as libc::sighandler_t;
    let (fake, port) = open();
    // SAFETY: the handler does nothing and is therefore async-signal-safe.
    unsafe { libc::signal(libc::SIGUSR2, handler) };
    let options = extoll::rma::PageOptions::from_index(16);
    // SAFETY: the port is not closed yet.
    let endpoint = unsafe { &*port };
    let during = |call: &dyn Fn() -> Status| {
        // SAFETY: the function has no requirements.
        let this = unsafe { libc::pthread_self() } as usize;
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                    // SAFETY: the thread exists, because it waits for the end of this thread.
                    unsafe { libc::pthread_kill(this as libc::pthread_t, libc::SIGUSR2) };
                }
            });
            let code = call();
            over.store(true, Ordering::Relaxed);
            code
        })
    };
    let mut found: *mut Noti = null_mut();
    let to: *mut *mut Noti = &mut found;
    // SAFETY: pointers are null, or this library created them and has not closed them.
    let block = || unsafe { rma2_noti_get_block(port, to) };
    assert_eq!(during(&block), error::INTERRUPTED);
    assert!(found.is_null());
    endpoint.port.post_words(options, [3, 0, 0]).unwrap();
    // SAFETY: the port is open, and this call closes nothing.
    let close = || unsafe { rma2_close(port) };
    assert_eq!(during(&close), error::INTERRUPTED);
    accept(&fake, 1);
    assert_eq!(close(), error::SUCCESS);
}

#[test]
fn codes_keep_the_meaning_of_what_the_driver_said() {
    let os = |code| std::io::Error::from_raw_os_error(code);
    let register = |code| {
        error::of(&extoll::Error::Register {
            bytes: 4096,
            reason: os(code),
        })
    };
    assert_eq!(register(libc::ENOMEM), error::MLOCKLIMIT);
    for code in [libc::EDQUOT, libc::EAGAIN, libc::ENOSPC, libc::EFAULT] {
        assert_eq!(register(code), error::NO_MEM);
    }
    let call = |code| {
        error::of(&extoll::Error::Os {
            what: "x".into(),
            reason: os(code),
        })
    };
    assert_eq!(call(libc::EPERM), error::WRONG_ARG);
    assert_eq!(call(libc::EINVAL), error::INV_VALUE);
    let refused = extoll::Error::NotPermitted {
        path: "/dev/extoll/rma2".into(),
        user: 70_000,
        reason: os(libc::EPERM),
    };
    assert_eq!(error::of(&refused), error::FD);
    let used = extoll::Error::UserPortsUsed("/dev/extoll/rma2".into());
    assert_eq!(error::of(&used), error::PORTS_USED);
}

#[test]
fn without_replay_nothing_is_waited_for() {
    let (fake, port) = open();
    // SAFETY: pointers are null, or this library created them and has not closed them.
    unsafe {
        rma2_set_replay_mode(port, 0);
        let options = extoll::rma::PageOptions::from_index(16);
        (*port).port.post_words(options, [3, 0, 0]).unwrap();
        assert_eq!(rma2_close(port), error::SUCCESS);
    }
    assert_eq!(Arc::strong_count(&fake), 1);
}

#[test]
fn a_nic_that_is_gone_has_its_own_code() {
    let (fake, port) = open();
    let refuse = |code| fake.driver().refuse = Some(code);
    let mut page = vec![0u8; 8192];
    let address = page.as_mut_ptr().cast();
    // SAFETY: pointers are null, or this library created them and has not closed them. No other
    // code uses the memory.
    unsafe {
        let mut region: *mut Region = null_mut();
        refuse(libc::ENODEV);
        assert_eq!(
            rma2_register(port, address, 4096, &mut region),
            error::NO_DEVICE
        );
        let ending = |code| {
            let mut region: *mut Region = null_mut();
            assert_eq!(
                rma2_register(port, address, 4096, &mut region),
                error::SUCCESS
            );
            refuse(code);
            (rma2_unregister(port, region), region)
        };
        // A leak checker would report memory that was not freed.
        assert_eq!(ending(libc::ENODEV).0, error::NO_DEVICE);
        assert_eq!(ending(libc::ETIMEDOUT).0, error::NOT_FREE);
        // The driver has refused the call, and the region is still valid.
        let (code, region) = ending(libc::EFAULT);
        assert_eq!(code, error::ATU);
        assert_eq!(rma2_unregister(port, region), error::SUCCESS);
        assert_eq!(rma2_close(port), error::SUCCESS);
    }
    let os = |code| extoll::Error::Os {
        what: "x".into(),
        reason: std::io::Error::from_raw_os_error(code),
    };
    assert_eq!(error::of(&os(libc::ENODEV)), error::NO_DEVICE);
    assert_eq!(error::of(&os(libc::EIO)), error::ERR_ERROR);
    assert_eq!(error::of(&extoll::Error::Gone), error::NO_DEVICE);
    let queue = extoll::Error::Queue {
        what: "notification queue",
        reason: std::io::Error::from_raw_os_error(libc::ENOMEM),
    };
    assert_eq!(error::of(&queue), error::MLOCKLIMIT);
}

#[test]
fn a_notification_is_handed_out_once() {
    let (fake, port) = open();
    let queue = fake.view(0x21000, 4096 + (64 << 10));
    for n in 0..2 {
        queue.store(4096 + 16 * n, n as u64);
        queue.store(4096 + 16 * n + 8, (4 << 48) | (5 << 51));
    }
    // SAFETY: pointers are null, or this library created them and has not closed them.
    unsafe {
        assert_eq!(rma2_noti_probe(port, null_mut()), error::INV_VALUE);
        let take = || {
            let mut found: *mut Noti = null_mut();
            let code: Status = rma2_noti_probe(port, &mut found);
            (code, found)
        };
        let (first, second) = (take(), take());
        assert_eq!((first.0, second.0), (error::SUCCESS, error::SUCCESS));
        assert_eq!(((*first.1).word0, (*second.1).word0), (0, 1));
        assert_eq!(take(), (error::NO_NOTI, null_mut()));
        for (noti, code) in [
            (second.1, error::SUCCESS),
            (second.1, error::INV_VALUE),
            (first.1, error::SUCCESS),
            (first.1, error::INV_VALUE),
            (first.1.add(2), error::INV_VALUE),
        ] {
            assert_eq!(rma2_noti_free(port, noti), code);
        }
        assert_eq!(rma2_close(port), error::SUCCESS);
    }
}
