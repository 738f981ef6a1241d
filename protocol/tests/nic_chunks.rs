// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests of split transfers with a target that answers in order, late, or with errors.

use proptest::prelude::*;
use protocol::nic::chunks::{Chunk, ChunkedTransfer, Verdict, WINDOW};
use protocol::transfer::LockNumbers;
use wire::{
    ids::{NodeId, Vpid},
    rma::{
        last_fragment_len, last_fragment_start, Command, Direction, Fault, FaultCause, FaultUnit,
        Mode, Notification, NotificationType, MAX_LEN,
    },
};

const NODE: NodeId = NodeId(4);

fn vpid() -> Vpid {
    Vpid::new(9).unwrap()
}

fn answer(direction: Direction, local: u64, chunk: Chunk, error: u8) -> Notification {
    let start = local + chunk.offset;
    let (kind, command) = match direction {
        Direction::Get => (NotificationType::Completer, Command::ByteGetResponse),
        Direction::Put => (NotificationType::Requester, Command::BytePut),
    };
    Notification {
        word0: if error == 0 {
            last_fragment_start(start, chunk.len)
        } else {
            start
        },
        size_field: last_fragment_len(chunk.len) - 1,
        vpid: vpid(),
        node: NODE,
        kind,
        command,
        mode: Mode {
            translate: true,
            ..Mode::default()
        },
        error,
    }
}

proptest! {
    #[test]
    fn covers_every_byte_once(
        len in 1u64..(10 * MAX_LEN as u64),
        local in 0u64..(1 << 40),
        get in any::<bool>(),
        picks in proptest::collection::vec(any::<usize>(), 0..40),
        fail_at in proptest::option::of(0usize..12),
    ) {
        let direction = if get { Direction::Get } else { Direction::Put };
        let mut t = ChunkedTransfer::new(direction, NODE, vpid(), local, len).unwrap();
        let mut waiting: Vec<Chunk> = Vec::new();
        let mut picks = picks.into_iter();
        let (mut at, mut answered) = (0, 0);
        let ended = loop {
            while let Some(chunk) = t.next() {
                prop_assert_eq!(chunk.offset, at);
                prop_assert!(chunk.len >= 1 && chunk.len <= MAX_LEN);
                at += u64::from(chunk.len);
                t.posted();
                waiting.push(chunk);
                prop_assert!(waiting.len() <= WINDOW);
            }
            prop_assert!(!waiting.is_empty(), "stuck");
            // Chunks may complete in any order.
            let chunk = waiting.remove(picks.next().unwrap_or(0) % waiting.len());
            let error = if fail_at == Some(answered) { 2 } else { 0 };
            answered += 1;
            let n = answer(direction, local, chunk, error);
            let wrong = Notification { node: NodeId(5), ..n };
            prop_assert_eq!(t.on_notification(&wrong), Verdict::Foreign);
            match t.on_notification(&n) {
                Verdict::Progress => {}
                Verdict::Ended => break true,
                Verdict::Foreign => break false,
            }
            prop_assert_eq!(t.on_notification(&n), Verdict::Foreign, "taken twice");
        };
        prop_assert!(ended && !t.is_outstanding() && waiting.is_empty());
        if fail_at.is_some_and(|n| n < answered) {
            let want = Fault { unit: FaultUnit::Responder, cause: FaultCause::Translation };
            prop_assert_eq!(t.fault(), Some(want));
            prop_assert!(!t.is_complete());
        } else {
            prop_assert_eq!(t.fault(), None);
            prop_assert_eq!((at, t.done()), (len, len));
        }
    }
}

#[test]
fn a_stopped_transfer_posts_nothing_and_absorbs_what_is_late() {
    let mut t =
        ChunkedTransfer::new(Direction::Get, NODE, vpid(), 0, 9 * u64::from(MAX_LEN)).unwrap();
    let first = t.next().unwrap();
    t.posted();
    t.stop();
    assert_eq!(t.next(), None);
    assert_eq!(
        t.on_notification(&answer(Direction::Get, 0, first, 0)),
        Verdict::Ended
    );
    assert!(!t.is_complete() && t.fault().is_none());
}

#[test]
fn what_was_not_taken_is_next_again() {
    let mut t =
        ChunkedTransfer::new(Direction::Get, NODE, vpid(), 0, 3 * u64::from(MAX_LEN)).unwrap();
    t.unpost();
    let first = t.next().unwrap();
    t.posted();
    let second = t.next().unwrap();
    t.posted();
    t.unpost();
    assert_eq!(t.next(), Some(second));
    assert_eq!(
        t.on_notification(&answer(Direction::Get, 0, second, 0)),
        Verdict::Foreign
    );
    assert_eq!(
        t.on_notification(&answer(Direction::Get, 0, first, 0)),
        Verdict::Progress
    );
    t.posted();
    t.unpost();
    assert_eq!((t.next(), t.is_outstanding()), (Some(second), false));
}

#[test]
fn causes_follow_from_the_command() {
    let base = answer(Direction::Put, 0, Chunk { offset: 0, len: 8 }, 0);
    assert_eq!(Fault::of(&base), None);
    let fault = |n: Notification| Fault::of(&n).unwrap();
    let with = |error, mode| {
        fault(Notification {
            error,
            mode,
            ..base
        })
    };
    let plain = Mode::default();
    assert_eq!(
        with(1, base.mode),
        Fault {
            unit: FaultUnit::Requester,
            cause: FaultCause::Translation
        }
    );
    assert_eq!(
        with(4, plain),
        Fault {
            unit: FaultUnit::Completer,
            cause: FaultCause::Memory
        }
    );
    assert_eq!(
        with(2, Mode { rra: true, ..plain }).cause,
        FaultCause::Register
    );
    assert_eq!(
        with(1, Mode { ewa: true, ..plain }).cause,
        FaultCause::Modifier
    );
    let lock = Notification {
        error: 2,
        command: Command::Lock,
        ..base
    };
    assert_eq!(fault(lock).cause, FaultCause::Lock);
}

#[test]
fn refuses_what_cannot_be() {
    assert!(ChunkedTransfer::new(Direction::Get, NODE, vpid(), 0, 0).is_none());
    assert!(ChunkedTransfer::new(Direction::Get, NODE, vpid(), u64::MAX, 2).is_none());
}

#[test]
fn a_lock_number_is_not_used_twice() {
    let mut numbers = LockNumbers::default();
    let taken: Vec<_> = (0..20).filter_map(|_| numbers.take(0)).collect();
    assert_eq!(taken[..5], [0, 1, 2, 3, 4]);
    assert_eq!(taken[15..], [15, 0, 1, 2, 3]);
    assert_eq!(numbers.take((1 << 4) | (1 << 5)), Some(6));
    assert_eq!(numbers.take(!(1 << 2)), Some(2));
    assert_eq!(numbers.take(!0), None);
    assert_eq!(numbers.take(!(1 << 2)), Some(2));
}
