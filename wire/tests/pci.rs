//! Checks that messages of Device Lending match docs/pci-protocol.md word by word, and that invalid
//! messages are rejected.

use proptest::prelude::*;
use wire::ids::NodeId;
use wire::pci::{
    Bar, Body, Borrow, Device, DeviceState, Grant, Identity, Incarnation, Kind, LeaseId, Location,
    Message, Numbers, ParseError, Reason, Register, Reject, Role, Status, LONGEST_LEASE_MS,
    VERSION, VPID,
};
use wire::velo::MAX_LEN;

const SENDER: Incarnation = Incarnation(0x0123_4567_89ab_cdef);
const LEASE: LeaseId = LeaseId(0xcafe_f00d_dead_beef);
const BORROW: Borrow = Borrow {
    handle: 0x1111_1111,
    generation: 7,
    lender: Incarnation(0x2222),
    windows: 0x7fff_ffff_ffff_fffe,
    targets: 0x6,
    dma: 0x0040_0000,
};
const GRANT: Grant = Grant {
    lease: LEASE,
    generation: 7,
    timeout_ms: 4000,
    numbers: Numbers {
        bars: [1, 0, 62, 0, 9, 0],
        dma: 2,
        interrupts: 1,
    },
    dma: 0x00ff_1000_0000,
    interrupts: 0x00ff_2000_0000,
    borrower: Incarnation(0x3333),
};

fn bar(log2: u8, is_64bit: bool, prefetchable: bool) -> Option<Bar> {
    Some(Bar {
        log2,
        is_64bit,
        prefetchable,
    })
}

fn device() -> Device {
    Device {
        handle: 0x1111_1111,
        generation: 7,
        identity: Identity {
            vendor: 0x1b36,
            device: 0x0010,
            subsystem_vendor: 0x1af4,
            subsystem: 0x1100,
            class: 0x01_0802,
            revision: 2,
        },
        location: Location {
            domain: 0x1_0000,
            bus: 3,
            devfn: 0x21,
        },
        index: 1,
        count: 3,
        bars: [
            bar(14, true, false),
            None,
            bar(12, false, false),
            None,
            bar(40, true, true),
            None,
        ],
        state: DeviceState::Lent(NodeId(0x1234)),
    }
}

fn message(number: u32, body: Body) -> Message {
    Message {
        number,
        sender: SENDER,
        body,
    }
}

fn register(offset: u16, size: u8) -> Register {
    Register::new(offset, size).expect("a register")
}

fn parse(tag: u8, words: &[u64]) -> Result<Message, ParseError> {
    Message::parse(tag, 8 * words.len() as u16, |i| words[i])
}

/// Returns a message of each kind with its tag and its words, except for the sender's incarnation.
fn golden() -> Vec<(Message, u8, Vec<u64>)> {
    let number = 0xdead_beef_u32;
    let lease = LEASE.0;
    let alive = |to, answer| Body::Alive {
        lease: LEASE,
        to,
        answer,
    };
    vec![
        (
            message(5, Body::List(0x1234)),
            0x40,
            vec![0x5_0000_0001, 0x1234],
        ),
        (
            message(5, Body::Device(device())),
            0x41,
            vec![
                0x5_0000_0101,
                0x7_1111_1111,
                0x1100_1af4_0010_1b36,
                0x2103_0201_0802,
                0x0003_0001_0001_0000,
                0x1234_00e8_000c_004e,
            ],
        ),
        (
            message(number, Body::Borrow(BORROW)),
            0x42,
            vec![
                0xdead_beef_0000_0001,
                0x7_1111_1111,
                0x2222,
                0x7fff_ffff_ffff_fffe,
                6,
                0x40_0000,
            ],
        ),
        (
            message(number, Body::Grant(GRANT)),
            0x43,
            vec![
                0xdead_beef_0000_0001,
                lease,
                0xfa0_0000_0007,
                0x0102_0009_003e_0001,
                0xff_1000_0000,
                0xff_2000_0000,
                0x3333,
            ],
        ),
        (
            message(5, Body::Refuse(Reason::Lease, LEASE)),
            0x44,
            vec![0x5_0000_0901, lease],
        ),
        (
            message(5, Body::Read(LEASE, register(0x102, 2))),
            0x45,
            vec![0x5_0000_0201, lease, 0x102],
        ),
        (
            message(5, Body::Write(LEASE, register(0xffc, 4), 0x89ab_cdef)),
            0x46,
            vec![0x5_0000_0401, lease, 0x89ab_cdef_0000_0ffc],
        ),
        (
            message(5, Body::Done(LEASE, Status::Denied, 0xffff)),
            0x47,
            vec![0x5_0000_0101, lease, 0xffff],
        ),
        (
            message(5, Body::Reset(LEASE)),
            0x48,
            vec![0x5_0000_0001, lease],
        ),
        (
            message(0, Body::Return(LeaseId::new(number, 0))),
            0x49,
            vec![1, 0xdead_beef],
        ),
        (message(0, Body::Returned(LEASE)), 0x4a, vec![1, lease]),
        (
            message(0, Body::Revoke(LEASE, 5000)),
            0x4b,
            vec![1, lease, 5000],
        ),
        (message(0, Body::Revoked(LEASE)), 0x4c, vec![1, lease]),
        (
            message(5, alive(Role::Lender, false)),
            0x4d,
            vec![0x5_0000_0001, lease],
        ),
        (
            message(5, alive(Role::Borrower, true)),
            0x4d,
            vec![0x5_0000_0301, lease],
        ),
    ]
}

/// Returns the words with the sender's incarnation inserted.
fn with_sender(words: &[u64]) -> Vec<u64> {
    let mut all = words.to_vec();
    all.insert(1, SENDER.0);
    all
}

#[test]
fn every_message_has_its_words() {
    let mut kinds = std::collections::HashSet::new();
    for (message, tag, words) in golden() {
        let words = with_sender(&words);
        assert_eq!(message.kind().tag(), tag, "{message:?}");
        assert_eq!(message.words().as_slice(), words, "{message:?}");
        assert_eq!(usize::from(message.words().bytes()), 8 * words.len());
        assert!(message.words().bytes() <= MAX_LEN);
        assert_eq!(parse(tag, &words), Ok(message));
        kinds.insert(message.kind());
    }
    assert_eq!(kinds.len(), Kind::ALL.len());
    assert_eq!(VPID.get(), 252);
}

#[test]
fn numbers_in_messages_are_those_of_the_document() {
    for (i, reason) in (1..).zip(Reason::ALL) {
        assert_eq!(
            (reason.code(), Reason::from_code(i)),
            (i, Some(reason)),
            "{reason:?}"
        );
    }
    assert_eq!(Reason::from_code(0), None);
    assert_eq!(Reason::from_code(12), None);
    for (i, status) in (0..).zip(Status::ALL) {
        assert_eq!((status.code(), Status::from_code(i)), (i, Some(status)));
    }
    assert_eq!(Status::from_code(4), None);
    assert_eq!(Kind::from_tag(0x3f), None);
    assert_eq!(Kind::from_tag(0x4e), None);
}

/// Checks the role that receives each kind of message.
#[test]
fn messages_are_for_one_role() {
    let lender = [
        Kind::List,
        Kind::Borrow,
        Kind::Read,
        Kind::Write,
        Kind::Reset,
        Kind::Return,
        Kind::Revoked,
    ];
    for (message, ..) in golden() {
        let wanted = match message.body {
            Body::Alive { to, .. } => to,
            _ if lender.contains(&message.kind()) => Role::Lender,
            _ => Role::Borrower,
        };
        assert_eq!(message.role(), wanted, "{message:?}");
    }
}

fn rejected(tag: u8, words: &[u64]) -> Reject {
    match parse(tag, &with_sender(words)) {
        Err(ParseError::Rejected(rejected)) => {
            assert!(!rejected.to_string().is_empty());
            rejected.why
        }
        other => panic!("{tag:#x} {words:x?}: {other:?}"),
    }
}

#[test]
fn what_is_no_message_is_rejected() {
    assert_eq!(rejected(0x3f, &[1, 0]), Reject::Tag);
    for (_, tag, mut words) in golden() {
        words.push(0);
        assert_eq!(rejected(tag, &words), Reject::Length, "{tag:#x}");
        words.truncate(words.len() - 2);
        if !words.is_empty() {
            assert_eq!(rejected(tag, &words), Reject::Length, "{tag:#x}");
        }
    }
    let half = Message::parse(0x40, 28, |_| 1);
    assert!(matches!(half, Err(ParseError::Rejected(r)) if r.why == Reject::Length));
    let none = Message::parse(0x40, 8, |_| 1);
    assert!(matches!(none, Err(ParseError::Rejected(r)) if r.why == Reject::Length));
    let lease = LEASE.0;
    let fields: &[(u8, &[u64])] = &[
        // These messages have unknown bits or codes in the first quadword, an unexpected number, or
        // no number.
        (0x40, &[0x5_0001_0001, 0]),
        (0x40, &[0x5_0000_0101, 0]),
        (0x4a, &[0x5_0000_0001, lease]),
        (0x42, &[1, 0, 0, 0, 0, 4096]),
        // This message has an index of 17 bits.
        (0x40, &[0x5_0000_0001, 0x1_0000]),
        // These messages have no lease.
        (0x45, &[0x5_0000_0201, 0xdead_beef, 0]),
        (0x48, &[0x5_0000_0001, 0xcafe_f00d_0000_0000]),
        (0x49, &[1, 0xcafe_f00d_0000_0000]),
        (0x4b, &[1, 0xdead_beef, 0]),
        (0x4d, &[0x5_0000_0001, 0xdead_beef]),
        // These requests have interval 0 or 63, or DMA memory that is empty, not page aligned, or
        // too large.
        (0x42, &[0x5_0000_0001, 0, 0, 1, 6, 4096]),
        (0x42, &[0x5_0000_0001, 0, 0, 6, 1 << 63, 4096]),
        (0x42, &[0x5_0000_0001, 0, 0, 6, 6, 0]),
        (0x42, &[0x5_0000_0001, 0, 0, 6, 6, 4097]),
        (0x42, &[0x5_0000_0001, 0, 0, 6, 6, 1 << 40]),
        // These accesses have invalid sizes, offsets or values.
        (0x45, &[0x5_0000_0301, lease, 0]),
        (0x45, &[0x5_0000_0001, lease, 0]),
        (0x45, &[0x5_0000_0201, lease, 1]),
        (0x45, &[0x5_0000_0401, lease, 0x1000]),
        (0x45, &[0x5_0000_0401, lease, 0x1_0000_0000]),
        (0x46, &[0x5_0000_0101, lease, 0x100_0000_0000]),
        (0x46, &[0x5_0000_0401, lease, 0x1_0000]),
        (0x47, &[0x5_0000_0401, lease, 0]),
        (0x47, &[0x5_0000_0001, lease, 1 << 32]),
        (0x44, &[0x5_0000_0001, lease]),
        (0x44, &[0x5_0000_0c01, lease]),
        (0x4b, &[1, lease, 1 << 32]),
        (0x4d, &[0x5_0000_0401, lease]),
    ];
    for (tag, words) in fields {
        assert_eq!(rejected(*tag, words), Reject::Field, "{tag:#x} {words:x?}");
    }
}

/// A grant with one invalid field is rejected.
#[test]
fn grants_that_can_not_be_are_rejected() {
    let changed: &[fn(&mut Grant)] = &[
        |g| g.lease = LeaseId::new(0xdead_beef, 0),
        |g| g.lease = LeaseId::new(0xdead_bee0, 1),
        |g| g.timeout_ms = 0,
        |g| g.timeout_ms = LONGEST_LEASE_MS + 1,
        |g| g.numbers.bars[1] = 1,
        |g| g.numbers.bars[1] = 63,
        |g| g.numbers.bars[1] = 64,
        |g| g.numbers.dma = 0,
        |g| g.numbers.dma = g.numbers.interrupts,
        |g| g.numbers.interrupts = 63,
        |g| g.dma += 8,
        |g| g.dma = 0,
        |g| g.interrupts = 1 << 52,
    ];
    for (i, change) in changed.iter().enumerate() {
        let mut grant = GRANT;
        change(&mut grant);
        let words = message(0xdead_beef, Body::Grant(grant)).words();
        let read = parse(Kind::Grant.tag(), words.as_slice());
        assert!(
            matches!(read, Err(ParseError::Rejected(r)) if r.why == Reject::Field),
            "{i}: {read:?}"
        );
    }
}

#[test]
fn devices_that_can_not_be_are_rejected() {
    let good = message(5, Body::Device(device())).words();
    let good = good.as_slice();
    for (word, change) in [
        // These descriptions have an invalid state, unknown bits, an index outside of the list, or
        // a borrower of a free device. Other descriptions have a BAR that is too small, too large,
        // in the second half of a 64-bit BAR, a 64-bit BAR at the end, or no BAR.
        (0, 0x0000_0500),
        (4, 1 << 48),
        (5, 0x0002_0000_0000),
        (6, 0x4e ^ 0x43),
        (6, 0x000c_0000 ^ 0x0020_0000),
        (6, 0x0c00),
        (6, 0x4e00_0000_0000),
        (6, 0x00e8_000c_004e),
        (0, 0x0000_0100),
    ] {
        let mut words = good.to_vec();
        words[word] ^= change;
        let read = parse(Kind::Device.tag(), &words);
        assert!(
            matches!(read, Err(ParseError::Rejected(r)) if r.why == Reject::Field),
            "{word} {change:#x}: {read:?}"
        );
    }
}

/// A message of another version yields a version error. Its kind and number are at the positions of
/// version 1.
#[test]
fn other_versions_are_told_apart() {
    for kind in Kind::ALL {
        let words = [0x7_0000_ff02, 0, 1, 2, 3];
        let wanted = ParseError::Version {
            kind,
            version: 2,
            number: 7,
        };
        assert_eq!(parse(kind.tag(), &words), Err(wanted));
        assert!(!wanted.to_string().is_empty());
    }
    assert_eq!(VERSION, 1);
}

#[test]
fn registers_are_aligned() {
    assert_eq!(Register::new(0, 3), None);
    assert_eq!(Register::new(2, 4), None);
    assert_eq!(Register::new(4096, 1), None);
    let r = register(0x0e, 2);
    assert_eq!((r.dword(), r.shift(), r.ones()), (0x0c, 16, 0xffff));
    assert_eq!(register(0, 4).ones(), u32::MAX);
}

proptest! {
    #[test]
    fn anything_is_read_as_what_it_says(
        tag in 0x3e_u8..0x50,
        len in 0_u16..=120,
        mut words in proptest::array::uniform15(any::<u64>()),
        plain in any::<bool>(),
    ) {
        if plain {
            words[0] = words[0] & 0xffff_ffff_0000_0300 | 1;
        }
        let read = Message::parse(tag, len, |i| words[i]);
        if let Ok(message) = read {
            let said = message.words();
            prop_assert_eq!(said.as_slice(), &words[..usize::from(len) / 8]);
            prop_assert_eq!(said.bytes(), len);
        }
    }

    #[test]
    fn requests_and_grants_are_read_as_they_were(
        sets in any::<[u64; 2]>(),
        pages in 1_u64..1 << 28,
        names in any::<[u64; 3]>(),
        nonce in 1_u32..,
    ) {
        let [windows, targets] = sets.map(|s| s & 0x7fff_ffff_ffff_fffe);
        let borrow = Borrow {
            handle: names[0] as u32,
            generation: (names[0] >> 32) as u32,
            lender: Incarnation(names[1]),
            windows,
            targets,
            dma: pages * 4096,
        };
        let m = message(nonce, Body::Borrow(borrow));
        prop_assert_eq!(parse(Kind::Borrow.tag(), m.words().as_slice()), Ok(m));
        let grant = Grant {
            lease: LeaseId::new(nonce, names[2] as u32 | 1),
            dma: pages * 4096,
            ..GRANT
        };
        let m = message(nonce, Body::Grant(grant));
        prop_assert_eq!(parse(Kind::Grant.tag(), m.words().as_slice()), Ok(m));
    }
}
