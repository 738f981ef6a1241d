// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! VELO ports on a device made of memory.

mod fake;

use extoll::velo::{Mtt, NodeId, Port, SourceId, To, Vpid};
use extoll::wire::velo::{Descriptor, SlotSize, Status};
use extoll::{Error, Mapping, Wait};
use fake::Fake;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

const PAGE: usize = 4096;
const MAILBOX: usize = 64 << 10;

fn device(slot: u64) -> Arc<Fake> {
    Fake::new(&[
        (0x8008_6B0C, 3),
        (0x8008_6B04, 7),
        (0x8004_6B15, slot),
        (0x8008_6B05, MAILBOX as u64),
    ])
}

/// Writes a message into the mailbox as the NIC does, starting at `slot`; returns the next slot.
fn deliver(
    mailbox: &Mapping,
    size: SlotSize,
    slot: usize,
    from: SourceId,
    tag: u8,
    data: &[u8],
) -> usize {
    let bytes = size.bytes() as usize;
    let slots = MAILBOX / bytes;
    let status = Status {
        source: from,
        mtt: Mtt::from_low_bits(2),
        eom: true,
        err: false,
        tag,
        len: data.len() as u16,
    };
    let mut next = slot;
    for piece in size.pieces(data.len() as u16) {
        let at = PAGE + (slot + usize::from(piece.slot)) % slots * bytes;
        let from = usize::from(piece.message_offset);
        mailbox
            .write(
                (at + usize::from(piece.slot_offset)) as u64,
                &data[from..from + usize::from(piece.len)],
            )
            .unwrap();
        mailbox.store(at + bytes - 8, status.encode().unwrap());
        next = (slot + usize::from(piece.slot) + 1) % slots;
    }
    next
}

const FROM: SourceId = SourceId {
    node: NodeId(9),
    vpid: Vpid::MGMT,
};

#[test]
fn a_message_is_one_packet() {
    let fake = device(128);
    let port = Port::with_backend(fake.clone()).unwrap();
    assert_eq!((port.node(), port.vpid()), (NodeId(3), Vpid::from(7)));
    let to = To::new(NodeId(5), Vpid::from(6)).tagged(0xAB);
    port.try_send(&to, b"hello world").unwrap();
    let page = fake.view(0, 2 * PAGE);
    let d = Descriptor::decode(page.load(0)).unwrap();
    assert_eq!(
        (d.len, d.tag, d.irq, d.vpid),
        (11, 0xAB, true, Vpid::from(6))
    );
    assert_eq!(page.load(8).to_le_bytes(), *b"hello wo");
    assert_eq!(page.load(16).to_le_bytes(), *b"rld\0\0\0\0\0");
    assert!(matches!(
        port.try_send(&to, &[0; 121]),
        Err(Error::Message(_))
    ));
    assert!(matches!(port.try_send(&to, &[]), Err(Error::Message(_))));
    assert!(matches!(
        port.try_send(&to, &vec![0; 1 << 20]),
        Err(Error::Message(_))
    ));
    assert_eq!(port.counters().posted, 1);
}

#[test]
fn impossible_drivers_are_refused() {
    for (number, value) in [(0x8004_6B15, 32), (0x8008_6B04, 256), (0x8008_6B05, 0)] {
        let fake = device(128);
        fake.driver.lock().unwrap().values.insert(number, value);
        let error = Port::with_backend(fake).err().unwrap();
        assert!(
            matches!(error, Error::Driver(_) | Error::Os { .. }),
            "{error}"
        );
    }
}

#[test]
fn an_impossible_status_word_is_reported_and_skipped() {
    let fake = device(128);
    let port = Port::with_backend(fake.clone()).unwrap();
    let mailbox = fake.view(2 * PAGE as u64, PAGE + MAILBOX);
    mailbox.store(PAGE + 120, 0x0FFF_0000_0000_0001);
    let next = deliver(&mailbox, SlotSize::B128, 1, FROM, 1, b"next");
    assert_eq!(next, 2);
    assert!(matches!(port.try_recv(), Err(Error::Message(_))));
    assert_eq!(port.try_recv().unwrap().unwrap().data(), b"next");
    assert!(port.try_recv().unwrap().is_none());
}

#[test]
fn a_sleeper_gets_the_message_after_the_interrupt() {
    let fake = device(64);
    let port = Port::with_backend(fake.clone()).unwrap();
    let mailbox = fake.view(2 * PAGE as u64, PAGE + MAILBOX);
    let nic = {
        let fake = fake.clone();
        std::thread::spawn(move || {
            // Armed: bit 32 of the read pointer.
            while mailbox.load(0) >> 32 == 0 {
                std::thread::yield_now();
            }
            deliver(&mailbox, SlotSize::B64, 0, FROM, 3, &[7; 60]);
            fake.interrupt();
        })
    };
    let wait = Wait::for_at_most(Duration::from_secs(20)).sleeping();
    let message = port.recv(wait).unwrap();
    assert_eq!(
        (message.source, message.tag, message.mtt.get()),
        (FROM, 3, 2)
    );
    assert_eq!(message.data(), [7; 60]);
    nic.join().unwrap();
    assert!(port.counters().sleeps >= 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Any messages, over the end of the ring too, in both slot sizes.
    #[test]
    fn what_is_delivered_is_received(
        small in any::<bool>(),
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..=120), 1..1500),
    ) {
        let size = if small { SlotSize::B64 } else { SlotSize::B128 };
        let fake = device(size.bytes().into());
        let port = Port::with_backend(fake.clone()).unwrap();
        let mailbox = fake.view(2 * PAGE as u64, PAGE + MAILBOX);
        let mut slot = 0;
        for (i, data) in messages.iter().enumerate() {
            slot = deliver(&mailbox, size, slot, FROM, i as u8, data);
            let got = port.try_recv().unwrap().unwrap();
            prop_assert_eq!(got.data(), &data[..]);
            prop_assert_eq!(got.tag, i as u8);
        }
        prop_assert!(port.try_recv().unwrap().is_none());
        prop_assert_eq!(port.counters().received, messages.len() as u64);
    }
}
