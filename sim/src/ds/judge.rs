//! Programs' actions, and the checks of the invariants.

use super::lent::Sent;
use super::setup::Decision;
use super::{byte, Rig, END, HURRY, MS, RING_BYTES};
use crate::port::FREE;
use anyhow::{ensure, Result};
use protocol::ds::End;
use protocol::Time;
use rand::Rng;
use wire::ds::{Ack, ConnId, Ended, Head, Message, Seq};
use wire::ids::Nla;

impl Rig {
    /// Returns true if neither node of the pair is hostile, so that data must arrive unchanged.
    pub(super) fn is_honest(&self, pair: usize) -> bool {
        let nodes = self.pairs[pair].sides.iter().map(|s| s.node);
        nodes.into_iter().all(|n| Some(n) != self.hostile)
    }

    pub(super) fn write(&mut self, pair: usize, side: usize) -> Result<()> {
        let s = self.pairs[pair].sides[side].clone();
        if s.left || s.crashed || s.shut {
            return Ok(());
        }
        let now = self.fabric.now();
        if s.lent > 0 {
            return self.wait_for_lent(pair, side);
        }
        let left = (s.plan - s.written) as usize;
        let carrier = self.carrier(pair, side);
        let lends = s.lends && left > 0 && carrier == Decision::Direct;
        if lends && self.rng.random_bool(0.3) {
            let len = self.rng.random_range(1..=left.min(RING_BYTES as usize));
            let data: Vec<u8> = (0..len as u64)
                .map(|i| byte(pair, side, s.written + i))
                .collect();
            if self.nodes[s.node].lend(&self.fabric, (pair, side), &data)? {
                self.pairs[pair].sides[side].lent = len as u64;
                self.log(|| format!("{pair}/{side} lends {len} from {}", s.written));
                self.check_reused(s.node)?;
                self.poll(s.node)?;
                self.check_reused(s.node)?;
                self.at(now + 1, super::Event::Write(pair, side));
                return Ok(());
            }
            self.check_reused(s.node)?;
        }
        let len = self.rng.random_range(1..=s.largest).min(left);
        let data: Vec<u8> = (0..len as u64)
            .map(|i| byte(pair, side, s.written + i))
            .collect();
        let more = self.rng.random_bool(0.2);
        let (n, done) = match carrier {
            // A writing program would sleep.
            Decision::Waiting => (0, false),
            // A reading program gets the error.
            Decision::Lost => return Ok(()),
            Decision::Tcp(_) => {
                let n = data.len() as u64;
                (n, self.write_tcp(pair, side, n))
            }
            Decision::Direct => {
                // Some programs stop reading. Peers that still send then get an error.
                let deaf = !self.pairs[pair].demanded && pair % 4 == 0;
                let node = &mut self.nodes[s.node];
                let n = node.write(&self.fabric, (pair, side), &data, more)? as u64;
                let done = s.written + n == s.plan;
                let Some(c) = node.find(pair, side) else {
                    return Ok(());
                };
                if done {
                    c.stream.shut();
                }
                if done && deaf {
                    c.stream.shut_receive();
                }
                let state = &mut self.pairs[pair].sides[side];
                state.written += n;
                state.shut = done;
                (n, done)
            }
        };
        self.poll(s.node)?;
        self.check_reused(s.node)?;
        let pace = match n {
            _ if now > HURRY => 2 * MS,
            0 => s.write_pace.max(2 * MS),
            _ => s.write_pace,
        };
        let next = now + self.rng.random_range(1..=pace);
        if !done && next < END {
            self.at(next, super::Event::Write(pair, side));
        }
        Ok(())
    }

    /// Lets a program wait until its memory is sent, or withdraw the memory.
    fn wait_for_lent(&mut self, pair: usize, side: usize) -> Result<()> {
        let now = self.fabric.now();
        let node = self.pairs[pair].sides[side].node;
        let withdraw = self.rng.random_bool(0.2);
        let sent = self.nodes[node].sent(&self.fabric, (pair, side), withdraw)?;
        let s = &mut self.pairs[pair].sides[side];
        if let Some(Sent::Over(n)) = sent {
            s.written += n;
            s.lent = 0;
        }
        let written = s.written;
        self.log(|| format!("{pair}/{side} waits, withdraws: {withdraw}, {sent:?}: {written}"));
        let gone = sent.is_none();
        self.check_reused(node)?;
        self.poll(node)?;
        self.check_reused(node)?;
        let pace = match self.pairs[pair].sides[side].write_pace {
            _ if now > HURRY => 2 * MS,
            pace => pace.max(MS),
        };
        let next = now + self.rng.random_range(1..=pace);
        if !gone && next < END {
            self.at(next, super::Event::Write(pair, side));
        }
        Ok(())
    }

    /// Returns data from the ring or from the program's memory.
    fn receive(&mut self, pair: usize, side: usize, most: usize) -> Result<Vec<u8>> {
        let (node, which) = (self.pairs[pair].sides[side].node, (pair, side));
        let lends = self.pairs[pair].sides[side].lends;
        let chance = self.rng.random_range(0..10);
        let now = self.fabric.now();
        let len = self.rng.random_range(1..=2 * RING_BYTES as u32);
        let node = &mut self.nodes[node];
        let (sunk, held) = match node.find(pair, side) {
            Some(c) => {
                let ended = c.stream.end().is_some();
                let sunk = c.stream.receiving().sunk();
                (
                    sunk.map(|(_, whole)| whole || ended),
                    c.stream.receiving().can_sink(),
                )
            }
            None => return Ok(Vec::new()),
        };
        match sunk {
            Some(done) if done || chance == 0 => return node.take_sink(&self.fabric, which),
            Some(_) => return Ok(Vec::new()),
            None if !lends => {}
            None if held && chance < 8 => {
                node.offer(&self.fabric, which, len)?;
                return Ok(Vec::new());
            }
            None if chance < 4 => node.hold(which, Some(len / 64), 0),
            None if chance == 4 => node.hold(which, None, now + 2 * MS),
            None => {}
        }
        node.read(&self.fabric, which, most)
    }

    pub(super) fn read(&mut self, pair: usize, side: usize) -> Result<()> {
        let s = self.pairs[pair].sides[side].clone();
        if s.left || s.crashed {
            return Ok(());
        }
        let now = self.fabric.now();
        let most = self.rng.random_range(1..=s.largest);
        let carrier = self.carrier(pair, side);
        let (data, eof, end) = match carrier {
            Decision::Waiting => (Vec::new(), false, None),
            Decision::Lost => (Vec::new(), false, Some(End::TimedOut)),
            Decision::Tcp(_) => self.read_tcp(pair, side, most),
            Decision::Direct => self.read_stream(pair, side, most)?,
        };
        let honest = self.is_honest(pair);
        let wrong = data
            .iter()
            .enumerate()
            .find(|(i, b)| **b != byte(pair, 1 - side, s.read + *i as u64));
        if let (Some((i, b)), true) = (wrong, honest) {
            let at = s.read + i as u64;
            let right = byte(pair, 1 - side, at);
            let describe = |i: usize| self.nodes[self.pairs[pair].sides[i].node].describe(pair, i);
            let both = [describe(0), describe(1)];
            self.log(|| format!("{} and {}", both[0], both[1]));
            anyhow::bail!("{pair}/{side} reads {b:#x} at {at} instead of {right:#x}");
        }
        let read = s.read + data.len() as u64;
        let other = self.pairs[pair].sides[1 - side].clone();
        ensure!(
            !honest || read <= other.written + other.lent,
            "{pair}/{side} reads unwritten data"
        );
        ensure!(
            !eof || !honest
                || (other.shut && (other.written..=other.written + other.lent).contains(&read)),
            "{pair}/{side} sees an end at {read} of {}, shut: {}",
            other.written,
            other.shut
        );
        let state = &mut self.pairs[pair].sides[side];
        state.read = read;
        state.eof |= eof;
        self.summary.bytes += data.len() as u64;
        if end.is_some() || (eof && state.shut) {
            self.leave(pair, side, false)?;
        } else {
            // A program that reads sleeps while there is no data.
            let pace = match data.is_empty() {
                true => s.read_pace.max(2 * MS),
                false => s.read_pace,
            };
            let next = now + self.rng.random_range(1..=pace);
            if next < END {
                self.at(next, super::Event::Read(pair, side));
            }
        }
        Ok(())
    }

    /// Reads from a stream. Returns the data, true at the end of the stream, and the reason if the
    /// connection has ended.
    fn read_stream(
        &mut self,
        pair: usize,
        side: usize,
        most: usize,
    ) -> Result<(Vec<u8>, bool, Option<End>)> {
        let node = self.pairs[pair].sides[side].node;
        let data = self.receive(pair, side, most)?;
        self.log(|| format!("{pair}/{side} takes {}", data.len()));
        self.check_reused(node)?;
        let Some(c) = self.nodes[node].find(pair, side) else {
            anyhow::bail!("{pair}/{side} is removed while a program has it open");
        };
        let remainder = c.stream.receiving().available() + u32::from(c.sink.is_some());
        let eof = remainder == 0 && c.stream.receiving().is_finished();
        let end = c
            .stream
            .end()
            .filter(|e| *e != End::Finished && remainder == 0);
        Ok((data, eof, end))
    }

    /// Makes a program close or abort its end.
    ///
    /// # Errors
    ///
    /// Fails if memory can't be accessed.
    pub(super) fn leave(&mut self, pair: usize, side: usize, abort: bool) -> Result<()> {
        let now = Time(self.fabric.now());
        let node = self.pairs[pair].sides[side].node;
        let s = &mut self.pairs[pair].sides[side];
        if s.left || s.crashed || !s.begun {
            return Ok(());
        }
        s.left = true;
        s.shut |= !abort;
        let carrier = s.carrier;
        // Data in its memory are lost with the program.
        self.nodes[node].take_sink(&self.fabric, (pair, side))?;
        if let Decision::Tcp(_) | Decision::Lost = carrier {
            let reset = self.read_tcp(pair, side, 0).2;
            let lost = (carrier == Decision::Lost).then_some(End::TimedOut);
            self.pairs[pair].sides[side].end = lost.or(reset);
        }
        self.nodes[node].close(pair, side, abort);
        self.close_tcp(pair, side, abort || carrier == Decision::Lost);
        if self.pairs[pair].sides.iter().all(|s| s.left) {
            self.pairs[pair].gone = now.0;
        }
        self.log(|| format!("{pair}/{side} leaves as {carrier:?}, aborts: {abort}"));
        let Some(c) = self.nodes[node].find(pair, side) else {
            return Ok(());
        };
        let s = &mut self.pairs[pair].sides[side];
        s.end = c.stream.end().filter(|e| *e != End::Finished);
        if abort {
            c.stream.abort(now);
        } else {
            c.stream.close(now);
        }
        c.open = false;
        let (end, counters) = (s.end, *c.stream.counters());
        self.summary.gets += counters.gets;
        self.summary.gets_again += counters.gets_again;
        self.summary.rewinds += counters.rewinds;
        self.summary.lent += counters.source_bytes;
        self.summary.sunk += counters.sunk;
        self.summary.cuts += counters.cuts;
        self.summary.asked += counters.asked;
        self.summary.odd += counters.old + counters.gaps + counters.foreign;
        match end {
            None => self.summary.finished += 1,
            Some(_) => self.summary.failed += 1,
        }
        let demanded = self.pairs[pair].demanded;
        self.log(|| format!("{pair}/{side} leaves, demanded: {demanded}, {end:?}, {counters:?}"));
        Ok(())
    }

    /// Sends a forged message.
    pub(super) fn forge(&mut self, node: usize) {
        let count = self.nodes.len();
        let to = self.rng.random_range(0..count);
        let conns: Vec<(ConnId, Seq, Seq)> = self.nodes[to]
            .conns
            .iter()
            .flatten()
            .map(|c| (c.stream.own(), c.stream.received_to(), c.stream.sent_to()))
            .collect();
        let random = Seq(self.rng.random());
        let known = match conns.len() {
            0 => None,
            n => Some(conns[self.rng.random_range(0..n)]),
        };
        let (conn, next, sent) = match known {
            Some(k) if self.rng.random_bool(0.8) => k,
            _ => (ConnId::from_low_bits(self.rng.random()), random, random),
        };
        let mut near = |at: Seq| match self.rng.random_range(0..4) {
            0 => Seq(self.rng.random()),
            1 => at,
            _ => Seq(at
                .0
                .wrapping_add(self.rng.random_range(0..8_000))
                .wrapping_sub(4_000)),
        };
        let head = Head {
            conn,
            seq: near(next),
            marks: 0,
        };
        let ack = Ack {
            ack: near(sent),
            edge: near(sent),
        };
        let [end, own_end] = [near(next), near(sent)];
        let message = match self.rng.random_range(0..9) {
            0 => Message::Velo { head, len: 30 },
            1 => Message::VeloLast { head, ack, len: 40 },
            2 => Message::RmaInfo {
                head,
                ack,
                len: self.rng.random_range(1..5_000),
                push: true,
            },
            3 => Message::RmaAvail {
                head,
                ack,
                ask: self.rng.random(),
                again: self.rng.random(),
                own: ConnId::from_low_bits(self.rng.random()),
            },
            4 => Message::Shutdown {
                head,
                ack,
                how: Ended::ALL[self.rng.random_range(0..Ended::ALL.len())],
            },
            5 => Message::RmaSource {
                head,
                ack,
                // Unassigned memory.
                nla: Nla(self.rng.random_range(0..FREE)),
                len: self.rng.random_range(1..20_000),
                push: self.rng.random(),
            },
            6 => Message::RmaCut {
                head,
                ack,
                end,
                len: self.rng.random_range(1..5_000),
            },
            7 => Message::RmaCutDone {
                head,
                ack,
                end: own_end,
                left: self.rng.random_range(0..5_000),
            },
            _ => {
                let mut bytes = vec![0; self.rng.random_range(1..=120)];
                self.rng.fill(&mut bytes[..]);
                let tag = self.rng.random_range(0x0e..0x30);
                self.nodes[node].forge(&mut self.fabric, to, tag, &bytes);
                return;
            }
        };
        let words = message.words();
        let mut bytes: Vec<u8> = words
            .as_slice()
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect();
        bytes.resize(message.len().into(), 0xee);
        self.nodes[node].forge(&mut self.fabric, to, message.kind().tag(), &bytes);
    }

    /// Checks that no GET may still access returned memory. The caller must call this before it
    /// uses the memory again.
    pub(super) fn check_reused(&mut self, node: usize) -> Result<()> {
        let now = self.fabric.now();
        for ring in self.nodes[node].take_reused() {
            // A hostile node may have confirmed data that it is still fetching.
            let mut nodes = self.nodes.iter().enumerate();
            let user = nodes.position(|(i, n)| n.uses((node, ring), now, self.hostile != Some(i)));
            ensure!(
                user.is_none(),
                "{ring:#x} of node {node} is given back while a GET of node {user:?} may use it"
            );
        }
        Ok(())
    }

    /// Checks that connections that had to carry all data have ended in order at both ends.
    pub(super) fn check_ends(&mut self, node: usize) -> Result<()> {
        for (pair, side, end) in std::mem::take(&mut self.nodes[node].ended) {
            self.log(|| format!("{pair}/{side} is forgotten: {end:?}"));
            ensure!(
                !self.pairs[pair].demanded || end == End::Finished,
                "{pair}/{side} had to end in order, and not with {end:?}"
            );
        }
        Ok(())
    }

    pub(super) fn check_end(&mut self) -> Result<()> {
        for (i, pair) in self.pairs.iter().enumerate() {
            for (side, s) in pair.sides.iter().enumerate() {
                let open = s.begun && !s.left && !s.crashed;
                let stream = self.nodes[s.node].describe(i, side);
                ensure!(!open, "{i}/{side} is still open: {s:?}, {stream}");
                let other = &pair.sides[1 - side];
                if pair.demanded {
                    ensure!(
                        s.end.is_none() && s.eof && s.read == other.plan,
                        "{i}/{side} had to carry all: {s:?}"
                    );
                }
            }
        }
        for node in &mut self.nodes {
            node.check_end(&self.fabric)?;
        }
        Ok(())
    }
}

/// Minimum time in ns for which a restarted node is down.
pub(super) const SHORTEST_RESTART: u64 = 1_300 * MS;
