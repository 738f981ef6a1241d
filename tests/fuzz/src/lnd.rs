// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Lustre networking.

use crate::{bytes, Input};
use wire::lnd::{fragments, pieces, Kind, Message, Payload, Rejected, VERSION};

/// Reads tag, length and quadwords of a message, and parses the message.
fn read(data: &[u8]) -> (u8, u16, Vec<u64>, Result<Message, Rejected>) {
    let mut input = Input(data);
    let (tag, len) = (input.u8(), u16::from(input.u8()));
    let words: Vec<u64> = (0..15).map(|_| input.u64()).collect();
    let message = Message::parse(tag, len, |i| words.get(i).copied().unwrap_or(0));
    (tag, len, words, message)
}

/// Input: tag, length, quadwords. Parses a message.
///
/// A parsed message yields the same words again, and its payload follows them.
pub fn fuzz_lnd_message(data: &[u8]) {
    let (tag, len, words, message) = read(data);
    match message {
        Ok(message) => {
            let said = message.words();
            let said = said.as_slice();
            // Messages of other versions may have unknown fields.
            let other = match message {
                Message::Hello(hello) => hello.version != VERSION,
                Message::Welcome(welcome) => welcome.own.version != VERSION,
                _ => false,
            };
            assert!(other || said == &words[..said.len()]);
            assert_eq!(8 * said.len(), usize::from(message.data_offset()));
            assert_eq!(message.kind().tag(), tag);
            assert!(message.len() == len || other && message.len() < len);
            if let Message::Request(r) = message {
                if let Payload::Inline(len) = r.payload {
                    let last = fragments(r.form, len.into()).expect("a payload that fits");
                    let (at, n) = pieces(r.form, len, last);
                    assert_eq!(at + n, len);
                }
            }
        }
        Err(reject) => assert!(!reject.to_string().is_empty()),
    }
}

pub(crate) fn message_seeds() -> Vec<Vec<u8>> {
    let seed = |kind: Kind, len: u8, words: &[u64]| {
        let mut seed = vec![kind.tag(), len];
        seed.extend(bytes(words));
        seed
    };
    let fetch = [0x0003_0001_0000_0055, 0x0050_0000, 0xfb00_0000_1000, 1];
    let large = [0x0003_0001_0000_0055, 0x0100_0009, 1, 2, 3];
    vec![
        seed(Kind::Hello, 16, &[0x55_00ff_0001, 7]),
        seed(Kind::Hello, 24, &[0x55_01ff_0002, 7, 1]),
        seed(Kind::Welcome, 32, &[0x66_0007_0001, 8, 7, 0x55]),
        seed(Kind::Stale, 8, &[0x55]),
        seed(Kind::Request, 93, &[0x0003_0001_0000_0055, 5, 1, 2, 3]),
        seed(Kind::Request, 120, &[0x0003_0001_0000_0055, 4096, 1, 2, 3]),
        seed(Kind::Request, 96, &fetch),
        seed(Kind::Request, 120, &large),
        seed(Kind::Fragment, 120, &[0x0103_0001_0000_0055]),
        seed(Kind::Notes, 24, &[0x55, 0x03_0001_0303, 6]),
    ]
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_of_lnd_are_messages_of_all_kinds() {
        let mut kinds = std::collections::HashSet::new();
        for seed in super::message_seeds() {
            let (.., message) = super::read(&seed);
            kinds.insert(message.expect("a seed is a message").kind());
        }
        assert_eq!(kinds.len(), wire::lnd::Kind::ALL.len());
    }
}
