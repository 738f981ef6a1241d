//! Tests of tables about peers and users: failed servers and neighbours, resources per user, and
//! requests of clients that use another route than announced.

use protocol::ds::{FailureKey, Failures, Host, OpenLimits, Pending, Program, Shares};
use protocol::{Memory, Time};
use wire::ds::{ConnId, Connect, Endpoint, Tuple};
use wire::ids::NodeId;

struct Heap;

impl Memory for Heap {
    type Array<T> = Vec<T>;
    type Error = std::convert::Infallible;

    fn array<T>(len: usize, make: impl FnMut(usize) -> T) -> Result<Vec<T>, Self::Error> {
        Ok((0..len).map(make).collect())
    }
}

fn made<T>(made: Result<T, std::convert::Infallible>) -> T {
    match made {
        Ok(t) => t,
        Err(e) => match e {},
    }
}

const PAUSE: u64 = 100;

fn program(port: u16) -> Program {
    Program {
        node: NodeId(3),
        address: [7; 16],
        port,
    }
}

#[test]
fn who_fails_again_is_avoided_for_longer() {
    let mut known = made(Failures::<Heap, _>::new(4, 0x5eed));
    let (mut now, late) = (Time(1000), program(80));
    assert!(!known.is_avoided(&late, now));
    let mut pauses = Vec::new();
    for _ in 0..9 {
        known.fail(late, PAUSE, now);
        // The failure of an attempt that began at the same time does not count separately.
        known.fail(late, PAUSE, now);
        let began = now;
        while known.is_avoided(&late, now) {
            now = Time(now.0 + 1);
        }
        pauses.push((now.0 - began.0) / PAUSE);
        now = Time(now.0 + 10_000);
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    known.succeed(&late);
    known.fail(late, PAUSE, now);
    assert!(known.is_avoided(&late, Time(now.0 + PAUSE - 1)));
    assert!(!known.is_avoided(&late, Time(now.0 + PAUSE)));
}

#[test]
fn only_what_failed_is_avoided() {
    let mut known = made(Failures::<Heap, _>::new(8, 9));
    let late = program(80);
    known.fail(late, PAUSE, Time(0));
    let others = [
        program(81),
        Program {
            node: NodeId(4),
            ..late
        },
        Program {
            address: [8; 16],
            ..late
        },
    ];
    for other in others {
        assert!(!known.is_avoided(&other, Time(1)), "{other:?}");
        // The success of another key has no effect on the failed key.
        known.succeed(&other);
    }
    assert!(known.is_avoided(&late, Time(1)));
}

#[test]
fn the_oldest_is_forgotten() {
    let mut known = made(Failures::<Heap, _>::new(2, 1));
    for port in 1..=3 {
        known.fail(program(port), PAUSE, Time(0));
    }
    let avoided = (1..=3).map(|port| known.is_avoided(&program(port), Time(1)));
    assert_eq!(avoided.collect::<Vec<_>>(), [false, true, true]);
}

/// Keys with equal hashes are distinguished.
#[test]
fn a_number_is_no_proof() {
    #[derive(Clone, Copy, PartialEq, Eq)]
    struct Same(u8);
    impl FailureKey for Same {
        fn digest(&self, _: u64) -> u64 {
            1
        }
    }
    let mut known = made(Failures::<Heap, _>::new(2, 1));
    known.fail(Same(1), PAUSE, Time(0));
    assert!(!known.is_avoided(&Same(2), Time(1)));
    known.succeed(&Same(2));
    assert!(known.is_avoided(&Same(1), Time(1)));
    known.fail(Same(2), PAUSE, Time(1));
    assert!(known.is_avoided(&Same(2), Time(2)) && !known.is_avoided(&Same(1), Time(2)));
}

#[test]
fn numbers_depend_on_everything() {
    let host = |interface, last| {
        let mut address = [0; 16];
        address[15] = last;
        Host { interface, address }
    };
    let numbers = [host(1, 1), host(1, 2), host(2, 1)].map(|h| h.digest(5));
    assert!(numbers[0] != numbers[1] && numbers[0] != numbers[2] && numbers[1] != numbers[2]);
    assert_ne!(host(1, 1).digest(5), host(1, 1).digest(6));
}

#[test]
fn a_user_has_a_share() {
    let mut shares = made(Shares::<Heap>::new(3));
    assert!(!shares.charge(7, 0));
    assert!(shares.charge(7, 2) && shares.charge(7, 2) && !shares.charge(7, 2));
    assert!(shares.charge(8, 2));
    assert_eq!(
        (shares.count(7), shares.count(8), shares.count(9)),
        (2, 1, 0)
    );
    shares.release(7);
    assert!(shares.charge(7, 2) && !shares.charge(7, 2));
    for _ in 0..2 {
        shares.release(7);
    }
    // The user has no entry any more. Releasing a unit that was not charged has no effect.
    assert_eq!(shares.count(7), 0);
    shares.release(7);
    assert_eq!(shares.count(7), 0);
    assert!(shares.charge(9, 1) && shares.charge(10, 1));
    // The table has entries for at most as many users as there are units.
    assert!(!shares.charge(11, 1));
}

#[test]
fn notes_of_a_connection_are_found_whoever_wrote_them() {
    const LIMITS: OpenLimits = OpenLimits {
        ask: 10,
        asks: 3,
        accept: 100,
        refresh: 20,
        keep: 60,
        confirm: 200,
        silent: 500,
        late: 400,
    };
    let tuple = |port| Tuple {
        client: [1; 16],
        server: [2; 16],
        client_port: port,
        server_port: 80,
    };
    let mut pending = made(Pending::<Heap>::new(8, 4, 0x5eed));
    for (node, port) in [(1, 1000), (2, 1000), (1, 1001)] {
        let connect = Connect {
            cookie: node,
            client: Endpoint {
                id: ConnId::new(node, 1),
                ..Endpoint::default()
            },
            tuple: tuple(port),
        };
        let node = NodeId(node as u16);
        pending.ask(node, &connect, &LIMITS, Time(0)).unwrap();
    }
    let mut found = Vec::new();
    while let Some(asked) = pending.remove_any(&tuple(1000)) {
        found.push(asked.node.0);
    }
    assert_eq!((found, pending.len()), (vec![1, 2], 1));
    assert!(pending
        .accept(NodeId(1), &tuple(1001), &LIMITS, Time(1))
        .is_some());
}
