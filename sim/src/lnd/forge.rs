//! Messages of an attacker on a node, with the true address of the node.

use super::{node, Rig};
use crate::port::Port;
use rand::Rng;
use wire::eth::VPID;
use wire::ids::Nla;
use wire::lnd::{
    Answer, Form, Fragment, Hello, Incarnation, Key, Message, Note, NoteKind, Notes, Payload,
    Request, RequestId, Source, Verdict, Welcome, VERSION,
};

impl Rig {
    pub(super) fn forge(&mut self, from: usize) {
        let to = self.rng.random_range(0..self.nodes.len());
        // Occasionally a flood of messages without a session.
        let flood = self.rng.random_bool(0.02);
        for _ in 0..if flood { 60 } else { 1 } {
            self.forge_one(from, to, flood);
        }
    }

    fn forge_one(&mut self, from: usize, to: usize, stray: bool) {
        let node = Port::node_id(to);
        let key = self.nodes[from].keys.get(&node).copied();
        let received = self.nodes[from].received_keys.get(&node).copied();
        let rng = &mut self.rng;
        // Mostly a message of the current session, or one that would start another session.
        let key = match (key, received) {
            _ if stray || rng.random_bool(0.2) => Key(rng.random()),
            (_, Some(received)) if rng.random_bool(0.4) => received,
            (Some(key), _) => key,
            _ => Key(rng.random()),
        };
        let id = RequestId {
            slot: rng.random_range(0..9),
            seq: self.plan.numbers.wrapping_add(rng.random_range(0..30)),
        };
        let hello = Hello {
            version: if rng.random_bool(0.8) { VERSION } else { 7 },
            slots: [1, 4, 256][rng.random_range(0..3)],
            key: Key(rng.random()),
            incarnation: Incarnation(rng.random()),
        };
        let message = match rng.random_range(0..12) {
            // Messages without notes start sessions.
            10 => Message::Notes(key, Notes::NONE),
            0 | 11 => Message::Hello(hello),
            1 => Message::Welcome(Welcome {
                answer: Answer::ALL[rng.random_range(0..4)],
                own: hello,
                key,
                incarnation: Incarnation(rng.random()),
            }),
            2 => Message::Stale(key),
            3 | 4 => {
                let remote = Payload::Remote(
                    rng.random_range(1..12_000),
                    Source {
                        nla: Nla(rng.random_range(0..0x20_0000)),
                        vpid: VPID,
                    },
                );
                let payload = match rng.random_bool(0.5) {
                    true => remote,
                    false => Payload::Inline(rng.random_range(0..600)),
                };
                let mut header = [0; 12];
                header[0] = u64::MAX - rng.random_range(0..1000);
                Message::Request(Request {
                    key,
                    id,
                    form: Form::Nid4,
                    header,
                    payload,
                })
            }
            5 => Message::Fragment(Fragment {
                key,
                id,
                part: rng.random_range(1..6),
                len: rng.random_range(1..=112),
            }),
            _ => {
                let kinds = [
                    NoteKind::Ask,
                    NoteKind::Cancel,
                    NoteKind::Working,
                    NoteKind::Missing,
                    NoteKind::Answer(Verdict::ALL[rng.random_range(0..5)]),
                ];
                let mut notes = Notes::NONE;
                for _ in 0..rng.random_range(0..6) {
                    let kind = kinds[rng.random_range(0..5)];
                    let seq = self.plan.numbers.wrapping_add(rng.random_range(0..30));
                    let id = RequestId { seq, ..id };
                    notes.push(Note { kind, id });
                }
                Message::Notes(key, notes)
            }
        };
        let mut bytes = node::bytes(&message);
        bytes.resize(message.len().into(), 0x5a);
        let tag = message.kind().tag();
        if rng.random_bool(0.1) {
            let at = rng.random_range(0..bytes.len());
            bytes[at] ^= 1 << rng.random_range(0..8);
        }
        self.record_trace(|| format!("node {from} forges {message:?}"));
        self.nodes[from].forge(&mut self.fabric, node, tag, &bytes);
    }
}
