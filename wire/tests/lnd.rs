//! Checks that messages of Lustre networking match docs/lnd-protocol.md word by word, and that
//! invalid messages are rejected.

use proptest::prelude::*;
use wire::ids::{Nla, Vpid};
use wire::lnd::{
    fragments, pieces, Answer, Form, Fragment, Hello, Incarnation, Key, Kind, Message, Note,
    NoteKind, Notes, Payload, Reject, Request, RequestId, Source, Verdict, Welcome, FRAGMENT_DATA,
    MAX_FRAGMENTS, MAX_PAYLOAD, VERSION, VPID,
};

const ID: RequestId = RequestId {
    slot: 0xab,
    seq: 0x1234,
};
const KEY: Key = Key(0xdead_beef);

fn header(form: Form) -> [u64; 12] {
    let mut header = [0; 12];
    for (i, word) in header.iter_mut().take(form.words()).enumerate() {
        *word = 0x1111_1111_1111_1111 * (i as u64 + 1);
    }
    header
}

fn request(form: Form, payload: Payload) -> Message {
    Message::Request(Request {
        key: KEY,
        id: ID,
        form,
        header: header(form),
        payload,
    })
}

fn there(len: u32) -> Payload {
    let vpid = Vpid::new(251).unwrap();
    let nla = Nla(0x12_3456_7890);
    Payload::Remote(len, Source { nla, vpid })
}

fn notes(some: &[Note]) -> Message {
    let mut notes = Notes::NONE;
    for note in some {
        assert!(notes.push(*note));
    }
    Message::Notes(KEY, notes)
}

fn read(message: &Message) -> Result<Message, wire::lnd::Rejected> {
    let words = message.words();
    Message::parse(message.kind().tag(), message.len(), |i| {
        words.as_slice().get(i).copied().unwrap_or(0)
    })
}

#[test]
fn golden() {
    let hello = Hello {
        version: 1,
        slots: 256,
        key: KEY,
        incarnation: Incarnation(0x0123_4567_89ab_cdef),
    };
    let welcome = Welcome {
        answer: Answer::Full,
        own: Hello { slots: 8, ..hello },
        key: Key(0x55),
        incarnation: Incarnation(0x77),
    };
    let head = 0x00ab_1234_dead_beef_u64;
    let nid4 = header(Form::Nid4);
    let nid16 = header(Form::Nid16);
    let answer = Note {
        kind: NoteKind::Answer(Verdict::Failed),
        id: ID,
    };
    let cases: Vec<(Message, u8, u16, Vec<u64>)> = vec![
        (
            Message::Hello(hello),
            0x30,
            16,
            vec![0xdead_beef_00ff_0001, 0x0123_4567_89ab_cdef],
        ),
        (
            Message::Welcome(welcome),
            0x31,
            32,
            vec![0xdead_beef_0007_0201, 0x0123_4567_89ab_cdef, 0x77, 0x55],
        ),
        (Message::Stale(KEY), 0x32, 8, vec![0xdead_beef]),
        (
            request(Form::Nid4, Payload::Inline(5)),
            0x33,
            93,
            [&[head, 5], &nid4[..9]].concat(),
        ),
        (
            request(Form::Nid4, Payload::Inline(4096)),
            0x33,
            120,
            [&[head, 0x1000], &nid4[..9]].concat(),
        ),
        (
            request(Form::Nid16, Payload::Inline(4096)),
            0x33,
            120,
            [&[head, 0x0100_1000], &nid16[..]].concat(),
        ),
        (
            request(Form::Nid4, there(MAX_PAYLOAD)),
            0x33,
            96,
            [&[head, 0x0050_0000, 0xfb12_3456_7890], &nid4[..9]].concat(),
        ),
        (
            request(Form::Nid16, there(1)),
            0x33,
            120,
            [&[head, 0x0140_0001, 0xfb12_3456_7890], &nid16[..]].concat(),
        ),
        (
            Message::Fragment(Fragment {
                key: KEY,
                id: ID,
                part: 63,
                len: 112,
            }),
            0x34,
            120,
            vec![0x3fab_1234_dead_beef],
        ),
        (notes(&[]), 0x35, 8, vec![0xdead_beef]),
        (
            notes(&[answer, Note::bare(NoteKind::Ping)]),
            0x35,
            24,
            vec![0xdead_beef, 0x03_1234_ab03, 6],
        ),
    ];
    for (message, tag, len, words) in cases {
        assert_eq!(message.kind().tag(), tag, "{message:?}");
        assert_eq!(message.len(), len, "{message:?}");
        assert_eq!(message.words().as_slice(), words, "{message:?}");
        assert_eq!(read(&message), Ok(message));
    }
    assert_eq!((VERSION, VPID.get()), (1, 251));
}

#[test]
fn every_note_has_its_word() {
    let mut kinds = vec![
        NoteKind::Ask,
        NoteKind::Cancel,
        NoteKind::Working,
        NoteKind::Missing,
    ];
    kinds.extend(Verdict::ALL.map(NoteKind::Answer));
    for kind in kinds {
        let note = Note { kind, id: ID };
        assert_eq!(Note::parse(note.word()), Ok(note));
    }
    for kind in [NoteKind::Ping, NoteKind::Pong] {
        assert_eq!(Note::parse(Note::bare(kind).word()), Ok(Note::bare(kind)));
        assert!(Note { kind, id: ID }.word() != Note::bare(kind).word());
        assert!(Note::parse(Note { kind, id: ID }.word()).is_err());
    }
    // These notes have an unknown code, or a verdict in a note without a verdict.
    for raw in [0, 8, 0x05_0000_0003, 0x01_0000_0001, 1 << 40] {
        assert!(Note::parse(raw).is_err(), "{raw:#x}");
    }
    let mut notes = Notes::NONE;
    for _ in 0..Notes::MAX {
        assert!(!notes.is_full() && notes.push(Note::bare(NoteKind::Ping)));
    }
    assert!(notes.is_full() && !notes.push(Note::bare(NoteKind::Ping)));
    assert_eq!(Message::Notes(KEY, notes).len(), 120);
}

#[test]
fn pieces_are_the_whole_payload() {
    for form in [Form::Nid4, Form::Nid16] {
        let most = form.data() + u16::from(MAX_FRAGMENTS) * FRAGMENT_DATA;
        for len in [0, 1, form.data(), form.data() + 1, 4096, most - 1, most] {
            let count = fragments(form, len.into()).unwrap();
            let mut end = 0;
            for part in 0..=count {
                let (at, n) = pieces(form, len, part);
                assert_eq!(at, end);
                assert!(n > 0 || part == 0 && len == 0);
                end += n;
            }
            assert_eq!(end, len);
            assert_eq!(pieces(form, len, count + 1).1, 0);
        }
        assert_eq!(fragments(form, u32::from(most) + 1), None);
    }
}

#[test]
fn what_can_not_be_is_refused() {
    let parse = |tag, len, words: &[u64]| {
        Message::parse(tag, len, |i| words.get(i).copied().unwrap_or(0)).map_err(|e| e.why)
    };
    assert_eq!(parse(0x2f, 8, &[]), Err(Reject::Tag));
    assert_eq!(parse(0x36, 8, &[]), Err(Reject::Tag));
    // Invalid lengths.
    for (tag, len) in [
        (0x30, 15),
        (0x31, 16),
        (0x32, 16),
        (0x33, 0),
        (0x33, 15),
        (0x33, 89),
        (0x34, 8),
        (0x34, 121),
        (0x35, 0),
        (0x35, 12),
    ] {
        let head = if tag == 0x34 { 1 << 56 } else { 0 };
        assert_eq!(
            parse(tag, len, &[head]),
            Err(Reject::Length),
            "{tag:#x} {len}"
        );
    }
    // The first quadwords have a non-zero answer in a hello, an unknown answer, or a key of more
    // than 32 bits.
    assert_eq!(parse(0x30, 16, &[0x0101]), Err(Reject::Field));
    assert_eq!(parse(0x31, 32, &[0x0401]), Err(Reject::Field));
    assert_eq!(parse(0x31, 32, &[1, 0, 0, 1 << 32]), Err(Reject::Field));
    assert_eq!(parse(0x30, 16, &[(1 << 24) | 1]), Err(Reject::Field));
    // Messages of other versions may have other fields.
    assert!(parse(0x30, 16, &[(1 << 24) | 2]).is_ok());
    assert!(parse(0x30, 16, &[0x0102]).is_ok());
    assert!(parse(0x31, 32, &[2, 0, 0, 1 << 32]).is_ok());
    assert_eq!(parse(0x32, 8, &[1 << 32]), Err(Reject::Field));
    // These requests have a part number, a payload that is too long, unknown bits, a source that
    // ends after the last NLA, or an empty source.
    let fetch = 1 << 22;
    for words in [
        [1 << 56, 0, 0],
        [0, (1 << 20) + 1, 0],
        [0, 1 << 21, 0],
        [0, 1 << 32, 0],
        [0, 7089, 0],
        [0, fetch | 2, (1 << 40) - 1],
        [0, fetch, 0],
        [0, fetch | 1, 1 << 48],
    ] {
        assert_eq!(parse(0x33, 96, &words), Err(Reject::Field), "{words:x?}");
    }
    assert!(parse(0x33, 96, &[0, fetch | 2, (1 << 40) - 2]).is_ok());
    // These fragments are part 0 or exceed the maximum. The notes have a slot in their first
    // quadword.
    assert_eq!(parse(0x34, 9, &[0]), Err(Reject::Field));
    assert_eq!(parse(0x34, 9, &[64 << 56]), Err(Reject::Field));
    assert_eq!(parse(0x35, 8, &[1 << 32]), Err(Reject::Field));
}

#[test]
fn greetings_of_other_versions_can_be_answered() {
    let words = [0x55_0103_0102, 7, 8, 0x66, 9];
    let word = |i: usize| words.get(i).copied().unwrap_or(0);
    for len in [16, 24, 40, 120] {
        let Ok(Message::Hello(hello)) = Message::parse(0x30, len, word) else {
            panic!("{len}");
        };
        let encoded = (hello.version, hello.key, hello.incarnation);
        assert_eq!(encoded, (2, Key(0x55), Incarnation(7)));
    }
    for len in [32, 40, 120] {
        let Ok(Message::Welcome(welcome)) = Message::parse(0x31, len, word) else {
            panic!("{len}");
        };
        let encoded = (welcome.answer, welcome.key, welcome.incarnation);
        assert_eq!(encoded, (Answer::Version, Key(0x66), Incarnation(8)));
        assert_eq!(welcome.own.version, 2);
    }
    // Unknown answers of other versions are accepted.
    let other = |i: usize| if i == 0 { 0xff02 } else { word(i) };
    match Message::parse(0x31, 32, other) {
        Ok(Message::Welcome(welcome)) => assert_eq!(welcome.answer, Answer::Version),
        other => panic!("{other:?}"),
    }
    // Shorter messages and incomplete words are invalid. Other lengths are invalid in this version.
    let this = |i: usize| if i == 0 { 1 } else { word(i) };
    for (tag, len) in [(0x30, 8), (0x30, 20), (0x31, 24), (0x31, 36)] {
        let read = Message::parse(tag, len, word).map_err(|e| e.why);
        assert_eq!(read, Err(Reject::Length));
    }
    for (tag, len) in [(0x30, 24), (0x31, 40)] {
        let read = Message::parse(tag, len, this).map_err(|e| e.why);
        assert_eq!(read, Err(Reject::Length));
    }
}

#[test]
fn tags_are_those_of_kinds() {
    for kind in Kind::ALL {
        assert_eq!(Kind::from_tag(kind.tag()), Some(kind));
    }
    assert_eq!(Kind::from_tag(0), None);
}

proptest! {
    /// An accepted message encodes to the words that were decoded.
    #[test]
    fn anything(
        tag in 0x2eu8..0x38,
        len in 0u16..130,
        words in proptest::collection::vec(
            prop_oneof![any::<u64>(), 0..16u64, any::<u32>().prop_map(u64::from)], 15),
    ) {
        let read = Message::parse(tag, len, |i| words.get(i).copied().unwrap_or(0));
        match read {
            Ok(message) => {
                prop_assert_eq!(message.kind().tag(), tag);
                let encoded = message.words();
                let n = encoded.as_slice().len();
                // Messages of other versions may have unknown fields.
                let other = match message {
                    Message::Hello(hello) => hello.version != VERSION,
                    Message::Welcome(welcome) => welcome.own.version != VERSION,
                    _ => false,
                };
                prop_assert!(other || encoded.as_slice() == &words[..n]);
                prop_assert_eq!(8 * n as u16 + message.data_len(), message.len());
                prop_assert!(message.len() == len || other && message.len() < len);
            }
            Err(e) => prop_assert!(!e.to_string().is_empty()),
        }
    }
}
