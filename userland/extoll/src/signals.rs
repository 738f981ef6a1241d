// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests that a signal ends every call that waits. Each test covers some of these calls.

use crate::fake::Fake;
use crate::raw::signals;
use crate::rma::{self, LockTarget, Nla, Peer};
use crate::velo::{self, NodeId, To, Vpid};
use crate::{Buffer, Error, Result, Wait};
use std::sync::Arc;
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;

/// Runs `call` in a thread and sends signals to it. Fails unless a signal ends the call.
fn is_interrupted<T: Send + 'static>(call: impl FnOnce() -> Result<T> + Send + 'static) {
    let thread = spawn(call);
    let end = Instant::now() + Duration::from_secs(120);
    while !thread.is_finished() {
        assert!(Instant::now() < end, "it waits on");
        // The first signal may arrive before the call begins.
        sleep(Duration::from_millis(5));
        signals::send(&thread);
    }
    let result = thread.join().unwrap();
    assert!(matches!(result, Err(Error::Interrupted)));
}

fn velo_port() -> Arc<velo::Port> {
    let values = [
        (0x8008_6B0C, 3),
        (0x8008_6B04, 7),
        (0x8004_6B15, 128),
        (0x8008_6B05, 64 << 10),
    ];
    let fake = Fake::new((2 * PAGE, 128), &values);
    Arc::new(velo::Port::with_backend(fake).unwrap())
}

fn rma_port() -> Arc<rma::Port> {
    let values = [
        (0x8004_6B00, 64 << 10),
        (0x8004_6B03, 64 << 10),
        (0x8004_6B08, 3),
        (0x8004_6B09, 7),
    ];
    let fake = Fake::new((0x21000, 16), &values);
    Arc::new(rma::Port::with_backend(fake).unwrap())
}

fn peer() -> Peer {
    Peer::new(NodeId(1), Vpid::from(9))
}

/// Returns all modes of waiting without a deadline.
fn manners() -> [Wait; 3] {
    let wait = Wait::forever();
    [wait, wait.sleeping(), wait.polling()]
}

#[test]
fn a_signal_ends_receiving_and_waiting_for_notifications() {
    for wait in manners() {
        let port = velo_port();
        is_interrupted(move || port.recv(wait));
        let port = rma_port();
        is_interrupted(move || port.notification(wait));
        let port = rma_port();
        is_interrupted(move || port.peek_wait(wait, |_| true).map(|_| ()));
        for put in [true, false] {
            let port = rma_port();
            let region = port.register(Buffer::new(64).unwrap()).unwrap();
            is_interrupted(move || match put {
                true => port.put_wait(&peer(), &region, 0, 64, Nla(0), wait),
                false => port.get_wait(&peer(), &region, 0, 64, Nla(0), wait),
            });
        }
        let port = rma_port();
        let at = LockTarget::Responder;
        is_interrupted(move || port.lock_wait(&peer(), at, 1, 0, 0, wait));
    }
}

#[test]
fn a_signal_ends_waiting_for_room_and_for_confirmation() {
    let to = To::new(NodeId(5), Vpid::from(6));
    for wait in manners() {
        let port = velo_port();
        for _ in 0..255 {
            port.try_send(&to, b"x").unwrap();
        }
        let waiting = port.clone();
        is_interrupted(move || waiting.send(&to, b"y", wait));
        let waiting = port.clone();
        is_interrupted(move || waiting.drain(wait));
        // The interrupted calls sent nothing.
        assert_eq!(port.counters().posted, 255);
        let port = rma_port();
        for _ in 0..255 {
            port.notify(&peer(), 0, 0).unwrap();
        }
        let waiting = port.clone();
        is_interrupted(move || waiting.retry(wait, || waiting.notify(&peer(), 0, 0)));
        is_interrupted(move || port.drain(wait));
    }
}
