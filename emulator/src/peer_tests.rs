//! Tests of accesses to other devices, without a client.

use super::*;

fn open() -> Peers {
    let mut p = Peers::default();
    p.open();
    p
}

fn ok(r: &Request, data: &[u8]) -> Answered {
    Answered {
        id: r.id,
        store: r.data.is_some(),
        about: Some((r.addr, r.len as u64)),
        result: Ok(data.to_vec()),
    }
}

#[test]
fn messages_are_made_in_order_and_whole() {
    let mut p = open();
    for (i, len) in [1usize, 2, 4, 8].into_iter().enumerate() {
        assert!(p.store(0, 0x1000 + 8 * i as u64, &vec![i as u8; len]));
    }
    let load = p.load(0, 0x2000, 4).unwrap();
    let mut seen = Vec::new();
    while let Some(r) = p.request(0) {
        seen.push((r.addr, r.len, r.data.is_some()));
        let data = if r.data.is_some() { &[][..] } else { &[7; 4] };
        let settled = p.answer(ok(&r, data));
        match r.data {
            Some(_) => assert_eq!(settled, Settled::Stored),
            None => assert_eq!(settled, Settled::Loaded(load, vec![7; 4])),
        }
    }
    let want = [
        (0x1000, 1, true),
        (0x1008, 2, true),
        (0x1010, 4, true),
        (0x1018, 8, true),
        (0x2000, 4, false),
    ];
    assert_eq!(seen, want);
    assert_eq!(p.stores(), (4, 4));
    assert!(!p.awaits() && !p.holds() && p.deadline().is_none());
}

#[test]
fn long_stores_are_cut_and_long_loads_refused() {
    let mut p = open();
    let data: Vec<u8> = (0..LONGEST + 100).map(|i| i as u8).collect();
    assert!(p.store(0, 0x1000, &data));
    let (a, b) = (p.request(0).unwrap(), p.request(0).unwrap());
    assert_eq!((a.addr, a.len), (0x1000, LONGEST));
    assert_eq!((b.addr, b.len), (0x1000 + LONGEST as u64, 100));
    assert_eq!([a.data.unwrap(), b.data.unwrap()].concat(), data);
    assert_eq!(p.load(0, 0, LONGEST + 1), None);
    assert!(p.load(0, 0, LONGEST).is_some());
    assert!(
        !p.store(0, 0, &[]) && p.load(0, 0, 0).is_none(),
        "empty accesses fail"
    );
}

#[test]
fn nobody_is_asked_without_a_client() {
    let mut p = Peers::default();
    assert!(!p.accepts(8) && !p.store(0, 0, &[1]) && p.load(0, 0, 8).is_none());
    assert!(!p.holds() && p.request(0).is_none());
}

/// Memory writes wait for earlier stores to devices, and stores for earlier memory writes. Loads
/// delay no writes.
#[test]
fn memory_waits_for_stores_to_devices_and_not_for_loads() {
    let write = |n: u8| Due::Write(n.into(), vec![n]);
    let mut p = open();
    assert!(p.store(0, 1, &[1]));
    assert_eq!(p.behind(0, write(2)), None);
    assert_eq!(p.behind(0, Due::Interrupt(0)), None);
    assert!(p.store(0, 3, &[3]));
    let first = p.request(0).unwrap();
    // The memory write and the entries behind it wait for the answer of the store.
    assert_eq!((p.due(), p.request(0)), (None, None));
    p.answer(ok(&first, &[]));
    assert_eq!(p.due(), Some(write(2)));
    assert_eq!(p.due(), Some(Due::Interrupt(0)));
    let second = p.request(0).unwrap();
    assert_eq!(second.addr, 3);
    p.answer(ok(&second, &[]));
    assert!(!p.holds());
    // This memory write is behind a load that is sent, but not answered.
    p.load(0, 4, 8).unwrap();
    assert!(p.holds());
    assert_eq!(p.behind(0, write(5)), None);
    assert_eq!(p.due(), None);
    p.request(0).unwrap();
    assert_eq!(p.due(), Some(write(5)));
    assert!(!p.holds() && p.awaits());
}

#[test]
fn a_read_of_memory_sees_what_waits_to_be_written() {
    let mut p = open();
    assert!(p.store(0, 0x9000, &[1]));
    p.behind(0, Due::Write(0x100, vec![1, 2, 3, 4]));
    p.behind(0, Due::Write(0x102, vec![9]));
    let mut buf = [0; 6];
    p.overlay(0xFF, &mut buf);
    assert_eq!(buf, [0, 1, 2, 9, 4, 0]);
    let mut buf = [0; 2];
    p.overlay(0x104, &mut buf);
    assert_eq!(buf, [0, 0]);
    // Only memory writes are pushed out. Stores and interrupts stay queued.
    p.behind(0, Due::Interrupt(1));
    let out = p.push_out();
    assert_eq!(out.len(), 2);
    assert_eq!(p.request(0).unwrap().addr, 0x9000);
    assert!(p.holds());
}

#[test]
fn the_client_has_a_limited_number_of_messages() {
    let mut p = open();
    for i in 0..WINDOW as u64 + 5 {
        assert!(p.store(0, i, &[1]));
    }
    let sent: Vec<_> = std::iter::from_fn(|| p.request(0)).collect();
    assert_eq!(sent.len(), WINDOW);
    assert!(!p.has_request());
    p.answer(ok(&sent[0], &[]));
    assert!(p.request(0).is_some() && p.request(0).is_none());
    let mut p = open();
    for i in 0..40u64 {
        assert!(p.store(0, i << 20, &vec![0; LONGEST]));
    }
    let sent = std::iter::from_fn(|| p.request(0)).count();
    assert_eq!(sent, WINDOW_BYTES / LONGEST);
}

#[test]
fn what_waits_is_bounded() {
    let mut p = open();
    let mut n = 0;
    while p.store(0, 0, &vec![0; LONGEST]) {
        n += 1;
        assert!(n <= MAX_QUEUED_BYTES / LONGEST);
    }
    assert!(n > 900);
    let due = Due::Write(0, vec![0; LONGEST]);
    assert!(p.behind(0, due).is_some(), "no room: at once");
}

#[test]
fn errors_and_garbage_are_told_apart() {
    let mut p = open();
    assert!(p.store(0, 0x10, &[1; 8]));
    let load = p.load(0, 0x20, 8).unwrap();
    let (s, l) = (p.request(0).unwrap(), p.request(0).unwrap());
    let unknown = Answered {
        id: 999,
        ..ok(&s, &[])
    };
    assert_eq!(p.answer(unknown), Settled::Garbage(None));
    // The answer is for a load, but has the number of a store. The store still waits for its own
    // answer.
    let swapped = Answered {
        store: false,
        ..ok(&s, &[])
    };
    assert_eq!(p.answer(swapped), Settled::Garbage(None));
    let error = Answered {
        result: Err(19),
        ..ok(&s, &[])
    };
    let nobody = Settled::NoDevice {
        load: None,
        addr: 0x10,
        len: 8,
        error: 19,
    };
    assert_eq!(p.answer(error), nobody);
    assert_eq!(p.answer(ok(&s, &[])), Settled::Garbage(None), "twice");
    assert_eq!(p.answer(ok(&l, &[0; 7])), Settled::Garbage(Some(load)));
    p.load(0, 0x30, 8).unwrap();
    let l = p.request(0).unwrap();
    let elsewhere = Answered {
        about: Some((0x31, 8)),
        ..ok(&l, &[0; 8])
    };
    assert!(matches!(p.answer(elsewhere), Settled::Garbage(Some(_))));
    assert!(!p.awaits());
}

#[test]
fn a_client_that_does_not_answer_is_given_up_until_it_does() {
    let mut p = open();
    assert!(p.store(5, 0x10, &[1]));
    let load = p.load(5, 0x20, 8).unwrap();
    p.behind(5, Due::Interrupt(0));
    assert!(p.store(5, 0x30, &[1]));
    let (s, l) = (p.request(7).unwrap(), p.request(8).unwrap());
    assert_eq!(p.deadline(), Some(7 + TIMEOUT_NS));
    let (lost, due) = p.give_up();
    assert_eq!((lost.stores, &lost.loads[..]), (2, &[load][..]));
    assert_eq!(due, [Due::Interrupt(0)]);
    assert_eq!((p.deadline(), p.stores()), (None, (2, 2)));
    assert!(p.is_mute() && !p.accepts(1) && p.awaits());
    assert_eq!(p.answer(ok(&s, &[])), Settled::Late);
    assert!(p.accepts(1));
    assert_eq!(p.answer(ok(&l, &[0; 8])), Settled::Late);
    assert!(!p.awaits());
    // A client that does not read its messages is sent no more messages.
    assert!(p.store(100, 0, &[1]));
    assert_eq!(p.deadline(), Some(100 + TIMEOUT_NS));
}

#[test]
fn a_reset_and_the_end_of_a_client_forget_what_waits() {
    let mut p = open();
    let lost = p.load(0, 0, 8).unwrap();
    assert!(p.store(0, 8, &[1]));
    assert!(p.cancel(lost) && !p.cancel(lost));
    let sent = p.request(0).unwrap();
    assert!(p.store(0, 16, &[1]));
    p.reset();
    assert_eq!((p.stores(), p.request(0)), ((2, 1), None));
    assert_eq!(p.answer(ok(&sent, &[])), Settled::Stored);
    assert_eq!(p.stores(), (2, 2));
    let load = p.load(0, 0, 8).unwrap();
    p.request(0).unwrap();
    let (lost, due) = p.close();
    assert_eq!((lost.loads, due), (vec![load], vec![]));
    assert!(!p.accepts(1) && !p.awaits());
    p.open();
    let next = p.load(0, 0, 8).unwrap();
    assert_ne!(next, load, "numbers continue");
    assert_eq!(p.take_new(), [next]);
}
