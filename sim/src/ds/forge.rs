//! Forged messages of negotiations.

use super::Rig;
use rand::Rng;
use wire::ds::{Answer, Answered, ConnId, Connect, Decline, Endpoint, Kind, Ring, Seq, Tuple};
use wire::eth::VPID;
use wire::ids::Nla;

impl Rig {
    /// Sends a negotiation message that the node should not send: a message of its own, of another
    /// node, an old message, or a message with a wrong field.
    pub(super) fn forge_setup(&mut self, node: usize) {
        let to = self.rng.random_range(0..self.nodes.len());
        if self.rng.random_bool(0.3) {
            let which = self.rng.random_range(0..1_000);
            let other = self.rng.random_bool(0.5);
            if let Some((said_to, tag, bytes)) = self.nodes[node].setup.old(which) {
                let to = if other { to } else { said_to };
                self.nodes[node].forge(&mut self.fabric, to, tag, &bytes);
            }
            return;
        }
        let names = self.nodes[to].setup.names();
        let any = ConnId::from_low_bits(self.rng.random());
        let (own, far, cookie) = match names.len() {
            n if n > 0 && self.rng.random_bool(0.9) => names[self.rng.random_range(0..n)],
            _ => (any, any, self.rng.random()),
        };
        let cookie = match self.rng.random_bool(0.7) {
            true => cookie,
            false => self.rng.random(),
        };
        let tuple = match self.pairs.len() {
            0 => Tuple::default(),
            n => self.pairs[self.rng.random_range(0..n)].tcp.tuple,
        };
        let end = Endpoint {
            id: far,
            velo: VPID,
            rma: VPID,
            isn: Seq(self.rng.random()),
            ring: Ring {
                nla: Nla(self.rng.random_range(0..1 << 40)),
                log2: self.rng.random_range(12..=24),
            },
            receive_log2: self.rng.random_range(12..=24),
            sources: self.rng.random(),
        };
        let connect = Connect {
            cookie,
            client: end,
            tuple,
        };
        let why = Decline::ALL[self.rng.random_range(0..Decline::ALL.len())];
        let answer = match self.rng.random_range(0..7) {
            0 => Answer::Offer,
            1 => Answer::Decline(why),
            2 => Answer::Confirm,
            3 => Answer::Fallback,
            4 => Answer::Accept(end),
            other => {
                let kind = [Kind::Connect, Kind::Cancel][other - 5];
                return self.send_wrong(node, to, kind, &connect.words());
            }
        };
        let answered = Answered {
            cookie,
            to: own,
            from: far,
            answer,
        };
        let (words, n) = answered.words();
        self.send_wrong(node, to, answered.kind(), &words[..n]);
    }

    /// Sends a message, possibly with a wrong field or length.
    fn send_wrong(&mut self, node: usize, to: usize, kind: Kind, words: &[u64]) {
        let mut words = words.to_vec();
        if self.rng.random_bool(0.4) {
            let bit = self.rng.random_range(0..64 * words.len());
            words[bit / 64] ^= 1 << (bit % 64);
        }
        let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        if self.rng.random_bool(0.1) {
            bytes.resize(self.rng.random_range(1..=120), 0xee);
        }
        self.nodes[node].forge(&mut self.fabric, to, kind.tag(), &bytes);
    }
}
