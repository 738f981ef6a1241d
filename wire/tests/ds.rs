//! Checks that messages of direct sockets match docs/ds-protocol.md word by word, and that invalid
//! messages are rejected.

use proptest::prelude::*;
use wire::ds::{
    Ack, Answer, Answered, ConnId, Connect, Decline, Ended, Endpoint, Head, Kind, Message, Reject,
    Ring, Seq, SetupError, Tuple, LAST_DATA, MORE_DATA, SOURCE_MAX, VERSION,
};
use wire::ids::{Nla, Vpid};

const HEAD: Head = Head {
    conn: ConnId::from_low_bits(0xabcdef),
    seq: Seq(0x1234_5678),
    marks: 0x9a,
};
const ACK: Ack = Ack {
    ack: Seq(0x0102_0304),
    edge: Seq(0x0506_0708),
};

fn client() -> Endpoint {
    Endpoint {
        id: ConnId::new(5, 3),
        velo: Vpid::new(17).unwrap(),
        rma: Vpid::new(18).unwrap(),
        isn: Seq(0xdead_beef),
        ring: Ring {
            nla: Nla(0x12_3456_7000),
            log2: 16,
        },
        receive_log2: 17,
        sources: true,
    }
}

fn words(message: &Message) -> Vec<u64> {
    message.words().as_slice().to_vec()
}

#[test]
fn golden_stream() {
    let head = 0x9aab_cdef_1234_5678;
    let ack = 0x0506_0708_0102_0304;
    let cases = [
        (
            Message::Velo {
                head: HEAD,
                len: 112,
            },
            0x10,
            120,
            vec![head],
        ),
        (
            Message::VeloLast {
                head: HEAD,
                ack: ACK,
                len: 1,
            },
            0x11,
            17,
            vec![head, ack],
        ),
        (
            Message::RmaInfo {
                head: HEAD,
                ack: ACK,
                len: 0x1_0000,
                push: true,
            },
            0x12,
            24,
            vec![head, ack, 0x1_0001_0000],
        ),
        (
            Message::RmaAvail {
                head: HEAD,
                ack: ACK,
                ask: true,
                again: true,
                own: ConnId::from_low_bits(0x123456),
            },
            0x13,
            24,
            vec![head, ack, 0x0012_3456_0000_0003],
        ),
        (
            Message::Shutdown {
                head: HEAD,
                ack: ACK,
                how: Ended::Unknown,
            },
            0x14,
            24,
            vec![head, ack, 2],
        ),
        (
            Message::RmaSource {
                head: HEAD,
                ack: ACK,
                nla: Nla(0xff_ffff_f000),
                len: 0x1000,
                push: true,
            },
            0x15,
            32,
            vec![head, ack, 0x1_0000_1000, 0xff_ffff_f000],
        ),
        (
            Message::RmaCut {
                head: HEAD,
                ack: ACK,
                end: Seq(0x1234_5678),
                len: SOURCE_MAX,
            },
            0x16,
            24,
            vec![head, ack, 0x0040_0000_1234_5678],
        ),
        (
            Message::RmaCutDone {
                head: HEAD,
                ack: ACK,
                end: Seq(0x1234_5678),
                left: 0x1000,
            },
            0x17,
            24,
            vec![head, ack, 0x1000_1234_5678],
        ),
    ];
    for (message, tag, len, expected) in cases {
        assert_eq!((message.kind().tag(), message.len()), (tag, len));
        assert_eq!(words(&message), expected);
        let parsed = Message::parse(tag, len, |i| expected.get(i).copied().unwrap_or(0));
        assert_eq!(parsed, Ok(message));
    }
}

#[test]
fn golden_setup() {
    let tuple = Tuple {
        client: *b"\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\x02\0\x01",
        server: *b"\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\x02\0\x02",
        client_port: 40_000,
        server_port: 6_379,
    };
    let connect = Connect {
        cookie: 0xc00c_1e00,
        client: client(),
        tuple,
    };
    let expected = [
        0xc00c_1e00_3110_0001,
        0x0000_c005_0000_0000,
        0xdead_beef_0000_1211,
        0x12_3456_7000,
        0x18eb_9c40,
        0,
        0x0100_020a_ffff_0000,
        0,
        0x0200_020a_ffff_0000,
    ];
    // The name of the connection at the sender is in the bits above the name at the receiver.
    let mut named = expected;
    named[1] = u64::from(client().id.raw()) << 24;
    assert_eq!(connect.words(), named);
    assert_eq!(Connect::parse(Connect::LEN, |i| named[i]), Ok(connect));
    let answers = [
        (Answer::Offer, 0x21, 2),
        (Answer::Decline(Decline::NoListener), 0x22, 2),
        (Answer::Accept(client()), 0x24, 4),
        (Answer::Confirm, 0x25, 2),
        (Answer::Fallback, 0x26, 2),
    ];
    for (answer, tag, count) in answers {
        let from = match answer {
            Answer::Accept(end) => end.id,
            _ => ConnId::new(9, 1),
        };
        let answered = Answered {
            cookie: 7,
            to: ConnId::new(5, 3),
            from,
            answer,
        };
        let (words, len) = answered.words();
        assert_eq!((answered.kind().tag(), len), (tag, count));
        let len = 8 * len as u16;
        assert_eq!(
            Answered::parse(answered.kind(), len, |i| words[i]),
            Ok(answered)
        );
        let other = SetupError::Version { cookie: 7, from };
        let newer = |i: usize| words[i] ^ u64::from(i == 0);
        let parsed = Answered::parse(answered.kind(), len, newer);
        match answer {
            // A decline is accepted with any reason and any length.
            Answer::Decline(_) => {
                let declined = Answered {
                    answer: Answer::Decline(Decline::Version),
                    ..answered
                };
                assert_eq!(parsed, Ok(declined));
                let longer = Answered::parse(answered.kind(), len + 8, newer);
                assert_eq!(longer, Ok(declined));
            }
            _ => assert_eq!(parsed, Err(other)),
        }
        for wrong in [len - 8, len + 8, len - 1] {
            assert!(Answered::parse(answered.kind(), wrong, |i| words
                .get(i)
                .copied()
                .unwrap_or(0))
            .is_err());
        }
    }
    // Invalid ring sizes.
    for (nla, right) in [
        ((1 << 40) - (1 << 16), true),
        ((1 << 40) - (1 << 16) + 1, false),
        (u64::MAX, false),
    ] {
        let mut words = named;
        words[3] = nla;
        assert_eq!(Connect::parse(Connect::LEN, |i| words[i]).is_ok(), right);
    }
    for log2 in [11, 25] {
        let mut words = named;
        words[0] = (words[0] & !(0x1f << 24)) | (log2 << 24);
        let parsed = Connect::parse(Connect::LEN, |i| words[i]);
        assert!(
            matches!(parsed, Err(SetupError::Rejected(r)) if r.why == Reject::Field),
            "{parsed:?}"
        );
    }
}

#[test]
fn kinds_have_their_own_tags() {
    let all: Vec<Kind> = (0..=255).filter_map(Kind::from_tag).collect();
    assert_eq!(all.len(), 15);
    for kind in &all {
        assert_eq!(Kind::from_tag(kind.tag()), Some(*kind));
    }
    assert_eq!(all.iter().filter(|k| k.is_stream()).count(), 8);
    for (i, how) in Ended::ALL.into_iter().enumerate() {
        assert_eq!(
            (how.code() as usize, Ended::from_code(i as u8)),
            (i, Some(how))
        );
    }
    for why in Decline::ALL {
        assert_eq!(Decline::from_code(why.code()), Some(why));
    }
    assert_eq!((Decline::from_code(0), Ended::from_code(6)), (None, None));
    assert_eq!(VERSION, 1);
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    for tag in 0x10..=0x17 {
        let words = |i| 1 | (u64::from(i == 2) << 32);
        let good: Vec<u16> = (0..=200)
            .filter(|len| Message::parse(tag, *len, words).is_ok())
            .collect();
        let expected: Vec<u16> = match tag {
            0x10 => (9..=8 + MORE_DATA).collect(),
            0x11 => (17..=16 + LAST_DATA).collect(),
            0x15 => vec![32],
            _ => vec![24],
        };
        assert_eq!(good, expected, "tag {tag:#x}");
    }
    for tag in (0..0x10).chain(0x18..0x20).chain(0x27..=0xff) {
        let parsed = Message::parse(tag, 24, |_| 1);
        assert_eq!(parsed.map_err(|r| r.why), Err(Reject::Tag));
    }
    for tag in 0x20..=0x26 {
        let parsed = Message::parse(tag, 24, |_| 1);
        assert_eq!(parsed.map_err(|r| r.why), Err(Reject::Service));
    }
}

proptest! {
    #[test]
    fn anything_is_parsed_or_refused(tag: u8, len in 0u16..200, raw: [u64; 15]) {
        let word = |i: usize| raw.get(i).copied().unwrap_or(0);
        if let Ok(message) = Message::parse(tag, len, word) {
            prop_assert_eq!(message.kind().tag(), tag);
            prop_assert_eq!(message.len(), len);
            // An accepted message must encode to the words that were decoded.
            let words = words(&message);
            let again = Message::parse(tag, len, |i| words.get(i).copied().unwrap_or(0));
            prop_assert_eq!(again, Ok(message));
        }
        if let Ok(connect) = Connect::parse(len, word) {
            let words = connect.words();
            prop_assert_eq!(Connect::parse(len, |i| words[i]), Ok(connect));
        }
        if let Some(kind) = Kind::from_tag(tag) {
            if let Ok(answered) = Answered::parse(kind, len, word) {
                // A decline by another version may have any length.
                let (words, count) = answered.words();
                let len = 8 * count as u16;
                let again = Answered::parse(kind, len, |i| words.get(i).copied().unwrap_or(0));
                prop_assert_eq!(again.map(|a| a.answer), Ok(answered.answer));
            }
        }
    }

    #[test]
    fn places_compare_across_the_wrap(a: u32, by in 0u32..0x7fff_ffff) {
        let (first, second) = (Seq(a), Seq(a).plus(by));
        prop_assert_eq!(second.since(first), by);
        prop_assert_eq!(second.distance(first), by as i32);
        prop_assert_eq!(first.before(second), by > 0);
        prop_assert_eq!((first.min(second), first.max(second)), (first, second));
        prop_assert_eq!((second.min(first), second.max(first)), (first, second));
    }
}
