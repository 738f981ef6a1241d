// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests of VELO ports on a simulated device in memory.

mod fake;

use extoll::velo::{Mtt, NodeId, Port, SourceId, To, Vpid};
use extoll::wire::velo::{Descriptor, SlotSize, Status};
use extoll::{Error, Mapping, Wait};
use fake::Fake;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const MAILBOX: usize = 64 << 10;

fn device(slot: u64) -> Arc<Fake> {
    let values = [
        (0x8008_6B0C, 3),
        (0x8008_6B04, 7),
        (0x8004_6B15, slot),
        (0x8008_6B05, MAILBOX as u64),
    ];
    Fake::new((2 * PAGE as u64, slot), &values)
}

fn ms(ms: u64) -> Wait {
    Wait::for_at_most(Duration::from_millis(ms))
}

/// Time limit that only a failing test reaches.
const PATIENCE: Duration = Duration::from_secs(120);

fn later() -> Wait {
    Wait::for_at_most(PATIENCE)
}

fn to() -> To {
    To::new(NodeId(5), Vpid::from(6))
}

/// Opens a port and sends the maximum number of outstanding packets. Returns the port and the page
/// of the state word, through which a test can confirm the packets.
fn full(fake: &Arc<Fake>) -> (Arc<Port>, Mapping) {
    let port = Arc::new(Port::with_backend(fake.clone()).unwrap());
    for _ in 0..255 {
        port.try_send(&to(), b"x").unwrap();
    }
    (port, fake.view(0, 2 * PAGE))
}

/// Waits until `seen` returns true. Returns false after [`PATIENCE`].
fn eventually(seen: impl Fn() -> bool) -> bool {
    let end = Instant::now() + PATIENCE;
    while !seen() {
        if Instant::now() > end {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Writes a message into the mailbox from `slot` on, as the NIC does. Returns the next slot.
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
    for piece in size.parts(data.len() as u16) {
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
    let to = to().tagged(0xAB);
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

/// One thread receives the message for which another thread sleeps. The sleeping thread must
/// receive the next message.
#[test]
fn a_sleeper_waits_for_the_slot_behind_what_others_took() {
    let fake = device(128);
    let port = Arc::new(Port::with_backend(fake.clone()).unwrap());
    let mailbox = fake.view(2 * PAGE as u64, PAGE + MAILBOX);
    let sleeper = {
        let port = port.clone();
        std::thread::spawn(move || port.recv(later().sleeping()))
    };
    // After sleeps of 1, 1, 2, 4 … ms, the next sleep takes longer than the remaining test.
    assert!(eventually(|| port.counters().sleeps > 10));
    let asked = |slot| fake.driver().armed.contains(&slot);
    let next = deliver(&mailbox, SlotSize::B128, 0, FROM, 1, b"first");
    assert_eq!(port.try_recv().unwrap().unwrap().data(), b"first");
    assert!(eventually(|| asked(1)), "the sleeper waits for slot 0");
    deliver(&mailbox, SlotSize::B128, next, FROM, 2, b"second");
    fake.interrupt();
    assert_eq!(sleeper.join().unwrap().unwrap().data(), b"second");
}

#[test]
fn an_idle_receiver_hardly_ever_wakes_up() {
    let fake = device(128);
    let port = Port::with_backend(fake.clone()).unwrap();
    assert!(matches!(port.recv(ms(3000)), Err(Error::Timeout)));
    // The sleeps take 1, 1, 2, 4 … 512 ms, and then one second each.
    let sleeps = port.counters().sleeps;
    assert!(sleeps < 20, "{sleeps} sleeps");
}

#[test]
fn impossible_drivers_are_refused() {
    for (number, value) in [(0x8004_6B15, 32), (0x8008_6B04, 256), (0x8008_6B05, 0)] {
        let fake = device(128);
        fake.driver().values.insert(number, value);
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
fn an_interrupt_wakes_a_sleeper() {
    let fake = device(64);
    let port = Arc::new(Port::with_backend(fake.clone()).unwrap());
    let mailbox = fake.view(2 * PAGE as u64, PAGE + MAILBOX);
    let nic = {
        let (fake, port) = (fake.clone(), port.clone());
        std::thread::spawn(move || {
            // The first sleep follows the request for an interrupt. An interrupt without a message
            // must not end the call.
            let asleep = eventually(|| port.counters().sleeps > 1);
            fake.interrupt();
            let woken = eventually(|| port.counters().woken == 1);
            deliver(&mailbox, SlotSize::B64, 0, FROM, 3, &[7; 60]);
            fake.interrupt();
            (asleep, woken)
        })
    };
    let message = port.recv(later().sleeping()).unwrap();
    assert_eq!(nic.join().unwrap(), (true, true));
    assert_eq!(
        (message.source, message.tag, message.mtt.get()),
        (FROM, 3, 2)
    );
    assert_eq!(message.data(), [7; 60]);
    let asked = fake.driver().armed.clone();
    assert!(asked.len() >= 2 && asked.iter().all(|slot| *slot == 0));
}

#[test]
fn without_the_call_the_register_asks_for_the_interrupt() {
    let fake = device(64);
    fake.driver().no_arm = true;
    let port = Port::with_backend(fake.clone()).unwrap();
    let mailbox = fake.view(2 * PAGE as u64, PAGE + MAILBOX);
    let nic = std::thread::spawn(move || {
        // Bit 32 of the read pointer requests an interrupt. The descriptor does not become readable
        // in this test.
        let armed = eventually(|| mailbox.load(0) >> 32 != 0);
        deliver(&mailbox, SlotSize::B64, 0, FROM, 3, &[7; 60]);
        armed
    });
    assert_eq!(port.recv(later().sleeping()).unwrap().data(), [7; 60]);
    assert!(nic.join().unwrap());
    assert_eq!(port.counters().woken, 0);
}

/// A thread that sends or drains must not delay the deadline of a receiving thread.
#[test]
fn a_receiver_keeps_its_deadline_while_others_wait() {
    for drains in [false, true] {
        let fake = device(128);
        let (port, state) = full(&fake);
        let other = {
            let port = port.clone();
            std::thread::spawn(move || match drains {
                true => port.drain(later()),
                false => port.send(&to(), b"y", later()),
            })
        };
        let reads = port.counters().state_reads;
        assert!(eventually(|| port.counters().state_reads > reads + 100));
        for wait in [ms(30), ms(30).polling(), ms(30).sleeping()] {
            assert!(matches!(port.recv(wait), Err(Error::Timeout)));
        }
        assert!(matches!(port.try_send(&to(), b"z"), Err(Error::Full)));
        assert!(!other.is_finished(), "a receiver waited for it");
        state.store(PAGE, 255);
        other.join().unwrap().unwrap();
    }
}

#[test]
fn an_event_loop_is_told_to_look_again_while_packets_are_unconfirmed() {
    let fake = device(128);
    let port = Port::with_backend(fake.clone()).unwrap();
    let state = fake.view(0, 2 * PAGE);
    assert_eq!(port.arm().unwrap(), None);
    port.try_send(&to(), b"question").unwrap();
    let first = state.load(0);
    assert!(port.arm().unwrap().is_some());
    // The NIC drops the packet: the retry bit is set, and one packet is counted as dropped.
    state.store(0, 0);
    state.store(PAGE, (1 << 32) | (1 << 56));
    assert!(port.arm().unwrap().is_some());
    assert_eq!(state.load(0), first, "not sent again");
    state.store(PAGE, 1);
    assert_eq!(port.arm().unwrap(), None);
    assert_eq!(port.counters().resent, 1);
}

#[test]
fn a_lost_write_is_skipped_and_told() {
    for wait in [later(), later().sleeping(), later().polling()] {
        let fake = device(64);
        let port = Port::with_backend(fake.clone()).unwrap();
        let mailbox = fake.view(2 * PAGE as u64, PAGE + MAILBOX);
        // The mailbox has a message of two slots whose second slot was lost, then a lost message,
        // then a message that arrived.
        deliver(&mailbox, SlotSize::B64, 0, FROM, 1, &[1; 100]);
        mailbox.store(PAGE + 120, 0);
        deliver(&mailbox, SlotSize::B64, 3, FROM, 2, &[2; 20]);
        fake.driver().values.insert(0x8004_6B02, 4);
        assert!(matches!(port.recv(wait), Err(Error::Skipped(2))));
        assert!(matches!(port.recv(wait), Err(Error::Skipped(1))));
        assert_eq!(port.recv(wait).unwrap().data(), [2; 20]);
        assert_eq!(port.counters().skipped, 3);
        assert!(matches!(port.recv(ms(300)), Err(Error::Timeout)));
    }
}

#[test]
fn an_event_loop_skips_a_lost_write_too() {
    let fake = device(128);
    let port = Port::with_backend(fake.clone()).unwrap();
    let mailbox = fake.view(2 * PAGE as u64, PAGE + MAILBOX);
    deliver(&mailbox, SlotSize::B128, 1, FROM, 2, b"behind");
    fake.driver().values.insert(0x8004_6B02, 2);
    let mut times = Vec::new();
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        assert!(port.try_recv().unwrap().is_none());
        match port.arm() {
            Ok(time) => times.push(time),
            Err(e) => {
                assert!(matches!(e, Error::Skipped(1)), "{e}");
                break;
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(port.try_recv().unwrap().unwrap().data(), b"behind");
    // The first check of the write pointer only records the pointer; the second check detects the
    // loss.
    assert!(times[0].is_none() && times.last().is_some_and(Option::is_some));
}

/// Asserts that all calls fail with `Gone`. An access to a mapping would raise SIGBUS.
fn is_gone(port: &Port) {
    assert!(matches!(port.try_recv(), Err(Error::Gone)));
    assert!(matches!(port.recv(later().polling()), Err(Error::Gone)));
    assert!(matches!(port.try_send(&to(), b"z"), Err(Error::Gone)));
    assert!(matches!(port.drain(later()), Err(Error::Gone)));
    assert!(matches!(port.arm(), Err(Error::Gone)));
    assert!(matches!(port.settle(), Err(Error::Gone)));
}

#[test]
fn a_sleeper_gets_an_error_when_the_nic_is_unbound() {
    let fake = device(128);
    let port = Arc::new(Port::with_backend(fake.clone()).unwrap());
    let other = {
        let (fake, port) = (fake.clone(), port.clone());
        std::thread::spawn(move || {
            let asleep = eventually(|| port.counters().sleeps > 3);
            fake.unbind();
            asleep
        })
    };
    assert!(matches!(port.recv(later().sleeping()), Err(Error::Gone)));
    assert!(other.join().unwrap());
    is_gone(&port);
}

#[test]
fn a_request_for_an_interrupt_tells_that_the_nic_is_gone() {
    for sleeps in [true, false] {
        let fake = device(128);
        let port = Port::with_backend(fake.clone()).unwrap();
        port.try_send(&to(), b"unconfirmed").unwrap();
        fake.driver().unbind_in_arm = true;
        match sleeps {
            true => assert!(matches!(port.recv(later().sleeping()), Err(Error::Gone))),
            false => assert!(matches!(port.arm(), Err(Error::Gone))),
        }
        is_gone(&port);
    }
}

#[test]
fn a_sender_that_waits_gets_an_error_when_the_nic_is_unbound() {
    let fake = device(128);
    let (port, _state) = full(&fake);
    fake.hang_up();
    assert!(matches!(port.send(&to(), b"y", later()), Err(Error::Gone)));
    fake.unbind();
    is_gone(&port);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Messages of all lengths arrive unchanged in both slot sizes, also when they wrap around the
    /// end of the ring.
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
