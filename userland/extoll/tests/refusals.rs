// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests of errors from calls with invalid arguments, which must send nothing.

mod fake;

use extoll::rma::{Modifiers, Nla, NodeId, NotifySpec, Operation, Peer, Port, Vpid};
use extoll::{velo, Buffer, Error, Wait};
use fake::Fake;
use std::sync::Arc;
use std::time::Duration;

fn device() -> Arc<Fake> {
    let values = [
        (0x8004_6B00, 64 << 10),
        (0x8004_6B03, 64 << 10),
        (0x8004_6B08, 3),
        (0x8004_6B09, 7),
    ];
    Fake::new((0x21000, 16), &values)
}

fn mailbox() -> Arc<Fake> {
    let values = [
        (0x8008_6B0C, 3),
        (0x8008_6B04, 7),
        (0x8004_6B15, 128),
        (0x8008_6B05, 64 << 10),
    ];
    Fake::new((8192, 128), &values)
}

fn peer() -> Peer {
    Peer::new(NodeId(1), Vpid::from(9))
}

fn later() -> Wait {
    Wait::for_at_most(Duration::from_secs(120))
}

#[test]
fn reserved_nodes_are_refused_and_groups_are_not_nodes() {
    let port = Port::with_backend(device()).unwrap();
    let region = port.register(Buffer::new(64).unwrap()).unwrap();
    for node in [0xFFFE, 0xFFFF] {
        let peer = Peer::new(NodeId(node), Vpid::from(9));
        let refused = |result| matches!(result, Err(Error::Node(n)) if n == node);
        assert!(refused(port.notify(&peer, 0, 0)));
        assert!(refused(port.put(
            &peer,
            &region,
            0,
            8,
            Nla(0),
            NotifySpec::NONE
        )));
        assert!(refused(port.get_wait(
            &peer,
            &region,
            0,
            8,
            Nla(0),
            later()
        )));
    }
    let multicast = Modifiers {
        multicast: true,
        ..Modifiers::NONE
    };
    let to = |group| {
        let peer = Peer::new(NodeId(group), Vpid::from(9));
        let op = Operation::NotificationPut { class: 0, value: 0 };
        port.post(&peer, NotifySpec::NONE, multicast, op)
    };
    assert!(matches!(to(64), Err(Error::Group(64))));
    assert_eq!(port.counters().posted, 0);
    to(63).unwrap();
}

#[test]
fn reserved_nodes_and_unknown_groups_are_refused() {
    let port = velo::Port::with_backend(mailbox()).unwrap();
    let to = velo::To::new(NodeId(5), Vpid::from(6));
    let send = |target| port.try_send(&velo::To { target, ..to }, b"x");
    for node in [0xFFFE, 0xFFFF] {
        let result = send(velo::Target::Node(NodeId(node)));
        assert!(matches!(result, Err(Error::Node(n)) if n == node));
    }
    assert!(matches!(
        send(velo::Target::Group(64)),
        Err(Error::Group(64))
    ));
    assert_eq!(port.counters().posted, 0);
    send(velo::Target::Node(NodeId(0xFFFD))).unwrap();
    send(velo::Target::Group(63)).unwrap();
}

#[test]
fn a_queue_has_whole_pages_and_whole_segments() {
    let port = Port::with_backend(device()).unwrap();
    for (bytes, segment) in [
        (5000, 4096),
        (12 << 10, 8 << 10),
        (0, 4096),
        (8192, 100),
        (0, 0),
    ] {
        let result = port.resize_queue(bytes, segment);
        assert!(matches!(result, Err(Error::QueueSize { .. })), "{result:?}");
    }
    assert_eq!(port.queue_size(), 64 << 10);
}

#[test]
fn pages_that_the_driver_withholds_are_not_touched() {
    let fake = device();
    fake.driver().pages = Some(0x00FF_0000);
    let port = Port::with_backend(fake.clone()).unwrap();
    let mut physical = peer();
    physical.options.translate = false;
    assert!(matches!(
        port.notify(&physical, 0, 0),
        Err(Error::Forbidden(_))
    ));
    port.notify(&peer(), 0, 0).unwrap();
    assert_eq!(port.counters().posted, 1);
}

#[test]
fn a_refused_registration_says_what_to_do() {
    let fake = device();
    let port = Port::with_backend(fake.clone()).unwrap();
    fake.driver().refuse = Some(libc::ENOMEM);
    let error = port.register(Buffer::new(5000).unwrap()).err().unwrap();
    assert!(error.to_string().contains("8192 bytes"), "{error}");
    assert!(error.to_string().contains("ulimit -l"), "{error}");
}
