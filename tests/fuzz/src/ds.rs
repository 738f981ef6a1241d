// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Direct sockets.

use crate::{bytes, Input};
use wire::ds::{Ack, Answered, Connect, Head, Kind, Message, Rejected, Seq, SetupError};

/// A message of a stream or of the negotiation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Any {
    Stream(Message),
    Connect(Connect),
    Answered(Answered),
}

impl Any {
    fn kind(&self) -> Option<Kind> {
        match self {
            Self::Stream(message) => Some(message.kind()),
            Self::Connect(_) => None,
            Self::Answered(answered) => Some(answered.kind()),
        }
    }

    fn words(&self) -> Vec<u64> {
        match self {
            Self::Stream(message) => message.words().as_slice().to_vec(),
            Self::Connect(connect) => connect.words().to_vec(),
            Self::Answered(answered) => {
                let (words, count) = answered.words();
                words[..count].to_vec()
            }
        }
    }
}

/// Parses a message with this tag, as a port does.
fn parse(tag: u8, len: u16, words: &[u64]) -> Result<Any, SetupError> {
    let word = |i: usize| words.get(i).copied().unwrap_or(0);
    match Kind::from_tag(tag) {
        Some(Kind::Connect | Kind::Cancel) => Connect::parse(len, word).map(Any::Connect),
        Some(kind) if !kind.is_stream() => Answered::parse(kind, len, word).map(Any::Answered),
        _ => Ok(Any::Stream(Message::parse(tag, len, word)?)),
    }
}

/// Reads tag, length and quadwords of a message, and parses the message.
fn read(data: &[u8]) -> (u8, u16, Result<Any, SetupError>) {
    let mut input = Input(data);
    let (tag, len) = (input.u8(), u16::from(input.u8()));
    let words: Vec<u64> = (0..15).map(|_| input.u64()).collect();
    (tag, len, parse(tag, len, &words))
}

/// Input: tag, length, quadwords. Parses a message of a stream or of the negotiation.
///
/// A parsed message that is written and parsed again stays the same.
pub fn fuzz_ds_message(data: &[u8]) {
    let (tag, len, any) = read(data);
    match any {
        Ok(any) => {
            assert!(any.kind().is_none_or(|kind| kind.tag() == tag));
            let words = any.words();
            let mut said = len;
            match any {
                Any::Stream(message) => {
                    assert_eq!(message.len(), len);
                    assert_eq!(8 * words.len(), usize::from(message.data_offset()));
                    assert!(message.data_offset() + message.data_len() <= 120);
                }
                // Messages of other versions may be longer.
                _ => said = 8 * words.len() as u16,
            }
            assert_eq!(parse(tag, said, &words), Ok(any));
        }
        Err(SetupError::Rejected(reject)) => assert_text(&reject),
        Err(SetupError::Version { .. }) => assert!(len >= 16),
    }
}

fn assert_text(reject: &Rejected) {
    assert!(!reject.to_string().is_empty());
}

pub(crate) fn message_seeds() -> Vec<Vec<u8>> {
    let seed = |kind: Kind, len: u8, words: &[u64]| {
        let mut seed = vec![kind.tag(), len];
        seed.extend(bytes(words));
        seed
    };
    let end = wire::ds::Endpoint {
        ring: wire::ds::Ring {
            nla: wire::ids::Nla(0x10_0000),
            log2: 12,
        },
        receive_log2: 24,
        ..Default::default()
    };
    let connect = Connect {
        cookie: 5,
        client: end,
        ..Default::default()
    };
    let answered = |answer| {
        let answered = Answered {
            cookie: 5,
            to: wire::ds::ConnId::new(3, 4),
            from: wire::ds::ConnId::new(5, 6),
            answer,
        };
        let (words, count) = answered.words();
        seed(answered.kind(), 8 * count as u8, &words[..count])
    };
    let stream = |message: Message| {
        seed(
            message.kind(),
            message.len() as u8,
            message.words().as_slice(),
        )
    };
    let (head, ack) = (0x0300_0005_0000_1000, 0x9000_0000_1234);
    let place = Head {
        conn: wire::ds::ConnId::new(3, 4),
        seq: Seq(0x1000),
        marks: 0,
    };
    vec![
        seed(Kind::Velo, 120, &[head]),
        seed(Kind::VeloLast, 17, &[head, ack]),
        seed(Kind::RmaInfo, 24, &[head, ack, 4096]),
        seed(Kind::RmaAvail, 24, &[head, ack, 3]),
        seed(Kind::Shutdown, 24, &[head, ack, 1]),
        stream(Message::RmaSource {
            head: place,
            ack: Ack::default(),
            nla: wire::ids::Nla(0x20_0008),
            len: 65536,
            push: true,
        }),
        stream(Message::RmaCut {
            head: place,
            ack: Ack::default(),
            end: Seq(0x1_1000),
            len: 65536,
        }),
        stream(Message::RmaCutDone {
            head: place,
            ack: Ack::default(),
            end: Seq(0x1_1000),
            left: 4096,
        }),
        seed(Kind::Connect, Connect::LEN as u8, &connect.words()),
        seed(Kind::Cancel, Connect::LEN as u8, &connect.words()),
        answered(wire::ds::Answer::Offer),
        answered(wire::ds::Answer::Decline(wire::ds::Decline::Busy)),
        answered(wire::ds::Answer::Accept(end)),
        answered(wire::ds::Answer::Confirm),
        answered(wire::ds::Answer::Fallback),
    ]
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_of_ds_are_messages_of_all_kinds() {
        let mut tags = std::collections::HashSet::new();
        for seed in super::message_seeds() {
            let (tag, _, message) = super::read(&seed);
            message.expect("a seed is a message");
            tags.insert(tag);
        }
        let all = (0..=255).filter(|tag| super::Kind::from_tag(*tag).is_some());
        assert_eq!(tags.len(), all.count());
    }
}
