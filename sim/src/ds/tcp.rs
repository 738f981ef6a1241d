//! A minimal model of TCP's connection: segments arrive in order, some of them late. Includes the
//! programs that connect and accept, like sockets of `af-extl`.

use super::setup::{Decision, Terms, View, PORTS};
use super::{byte, Event, Rig, Side, LIMITS, MS, OPENING, RING_BYTES, US};
use anyhow::{ensure, Result};
use protocol::ds::{End, Fallback};
use protocol::Time;
use rand::Rng;
use wire::ds::{Seq, Tuple};

/// Allowance in ns for the time until a node polls and reads its mailbox.
const SLACK: u64 = 150 * MS;
/// Number of the reason for TCP that the server accepted too late or as TCP.
const NOT_ACCEPTED: u8 = Fallback::NotAccepted.code();
/// Time in ns after which a listener that stopped accepting is closed.
const DEAF: u64 = 2_500 * MS;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Segment {
    Syn,
    SynAck,
    Ack,
    Data(u64),
    Fin,
    Rst,
}

/// One end of TCP's connection.
#[derive(Debug, Clone, Default)]
pub(super) struct TcpEnd {
    pub(super) up: bool,
    /// True after a reset or a failed connect.
    pub(super) closed: bool,
    /// Number of received bytes.
    got: u64,
    finished: bool,
    fin: bool,
    /// Arrival time of the last segment in flight to this end.
    last: u64,
}

/// Parameters and state of TCP's connection.
#[derive(Debug, Clone)]
pub(super) struct Tcp {
    pub(super) ends: [TcpEnd; 2],
    pub(super) tuple: Tuple,
    cookie: u32,
    /// `[0]`: true if the client does not ask. `[1]`: true if the server listens with a TCP socket.
    plain: [bool; 2],
    /// Delay in ns of the server's accept after the connection is established; `None`: never
    /// accepted.
    pub(super) accept: Option<u64>,
    /// Maximum delay of segments in ns.
    slowest: u64,
    begun: u64,
    /// True if an older connection had the same addresses and ports.
    reused: bool,
    tries: u32,
}

impl Rig {
    fn send_tcp(&mut self, pair: usize, to: usize, segment: Segment) {
        let now = self.fabric.now();
        let slowest = self.pairs[pair].tcp.slowest;
        let mut at = now + 1 + self.rng.random_range(0..=slowest);
        if !self.clean && self.rng.random_bool(0.04) {
            // The segment was lost and is retransmitted.
            at += self.rng.random_range(100 * MS..300 * MS);
        }
        let end = &mut self.pairs[pair].tcp.ends[to];
        end.last = at.max(end.last + 1);
        let at = end.last;
        self.at(at, Event::Tcp(pair, to, segment));
    }

    fn view(&self, pair: usize, side: usize) -> View {
        let end = &self.pairs[pair].tcp.ends[side];
        View {
            up: end.up,
            closed: end.closed,
            unread: end.got > self.pairs[pair].sides[side].read,
            finished: end.finished,
        }
    }

    /// Returns a tuple that no live connection has, often one of a connection that was reset or
    /// ended long ago.
    fn tuple(&mut self, a: usize, b: usize, plain: bool) -> (Tuple, bool) {
        let now = self.fabric.now();
        let server_port = PORTS[usize::from(plain)];
        let ours = |t: &Tuple| {
            (t.client, t.server, t.server_port) == ([a as u8; 16], [b as u8; 16], server_port)
        };
        let gone = |p: &super::Pair| {
            let [client, server] = &p.sides;
            let out = client.left || client.crashed;
            let reset = p.tcp.ends[0].closed || client.crashed;
            // TCP waits for late segments.
            let old = p.tcp.ends.iter().all(|e| e.fin || e.closed) && p.gone + 1_000 * MS < now;
            ours(&p.tcp.tuple) && out && (reset || (old && server.left))
        };
        let port = self
            .pairs
            .iter()
            .rev()
            .find(|p| gone(p))
            .map(|p| p.tcp.tuple.client_port);
        let live = |port: u16| {
            self.pairs
                .iter()
                .any(|p| ours(&p.tcp.tuple) && p.tcp.tuple.client_port == port && !gone(p))
        };
        let reused = port
            .filter(|port| !live(*port))
            .filter(|_| self.pairs.len() % 2 == 0);
        let tuple = Tuple {
            client: [a as u8; 16],
            server: [b as u8; 16],
            client_port: reused.unwrap_or(10_000 + self.pairs.len() as u16),
            server_port,
        };
        (tuple, reused.is_some())
    }

    fn terms(&mut self, pair: usize, side: usize) -> Terms {
        let low = self.rng.random_range(0..20_000);
        let any = self.rng.random();
        // Often a number close to the wrap to 0.
        let isn = Seq([low, u32::MAX - low, any][self.rng.random_range(0..3)]);
        let rings = [(); 2].map(|()| [1024, 2048, RING_BYTES as u32][self.rng.random_range(0..3)]);
        Terms {
            pair,
            peer: self.pairs[pair].sides[1 - side].node,
            tuple: self.pairs[pair].tcp.tuple,
            isn,
            rings,
        }
    }

    /// Makes a program connect.
    pub(super) fn connect(&mut self) -> Result<()> {
        let count = self.nodes.len();
        let a = self.rng.random_range(0..count);
        // The target may be the node itself.
        let b = self.rng.random_range(0..count);
        if !self.nodes[a].is_up() {
            self.summary.refused += 1;
            return Ok(());
        }
        let now = self.fabric.now();
        let mut plain = [0.04, 0.04].map(|p| self.rng.random_bool(p));
        let (tuple, reused) = self.tuple(a, b, plain[1]);
        // If the client does not ask, the server must not use the request of an older connection.
        plain[0] |= reused && self.rng.random_bool(0.5);
        let accept = match self.rng.random_range(0..30) {
            0 => None,
            1 => Some(OPENING.accept - 30 * MS..OPENING.accept + 30 * MS),
            2 => Some(0..700 * MS),
            3..8 => Some(0..40 * MS),
            _ => Some(0..MS),
        };
        let accept = accept.map(|range| self.rng.random_range(range));
        let slowest = [20 * US, MS, 10 * MS][self.rng.random_range(0..3)];
        let mut sides = [self.side(a), self.side(b)];
        // Limits the data to a few seconds of transfer.
        let most = |s: &Side, pace: u64| s.largest as u64 * 2_000 * MS / pace.max(2 * MS);
        for i in 0..2 {
            let (writer, reader) = (&sides[i], &sides[1 - i]);
            let most = most(writer, writer.write_pace).min(most(reader, reader.read_pace));
            sides[i].plan = writer.plan.min(most);
        }
        // Some programs write no data.
        for side in &mut sides {
            if self.rng.random_bool(0.15) {
                side.plan = 0;
            }
        }
        let mut demanded = self.is_reliable(a, now) && self.is_reliable(b, now);
        demanded &= accept.is_some();
        let pair = self.pairs.len();
        for side in 0..2 {
            // Prefers an end whose port holds its messages.
            let (likely, most) = match self.nodes[[a, b][side]].held.holds {
                true => (0.7, 200 * MS),
                false => (0.08, [20 * MS, 500 * MS][self.pairs.len() % 2]),
            };
            if self.rng.random_bool(likely) {
                let later = self.rng.random_range(0..most);
                self.at(now + later, Event::Leave(pair, side));
                demanded = false;
            }
        }
        sides[0].begun = true;
        self.log(|| format!("{pair}: {sides:?}, {tuple:?}, {plain:?} demanded: {demanded}"));
        self.summary.connections += 1;
        self.summary.demanded += u64::from(demanded);
        let tcp = Tcp {
            ends: Default::default(),
            tuple,
            cookie: self.rng.random(),
            plain,
            accept,
            slowest,
            begun: now,
            reused,
            tries: 0,
        };
        let cookie = tcp.cookie;
        self.summary.reused += u64::from(reused);
        self.pairs.push(super::Pair {
            sides,
            demanded,
            tcp,
            gone: u64::MAX >> 1,
        });
        let terms = self.terms(pair, 0);
        let chance = match plain[0] {
            true => Some(Fallback::TcpOnly),
            false => self.nodes[a].ask(&mut self.fabric, &terms, cookie)?,
        };
        self.check_reused(a)?;
        if let Some(why) = chance {
            self.decided(pair, 0, Decision::Tcp(why))?;
        }
        self.at(now, Event::Open(pair));
        Ok(())
    }

    /// Starts TCP's connection, or waits if its SYN may not be sent yet.
    pub(super) fn open(&mut self, pair: usize) -> Result<()> {
        let now = self.fabric.now();
        let side = &self.pairs[pair].sides[0];
        if side.left || side.crashed {
            return Ok(());
        }
        let node = side.node;
        let longest = (u64::from(OPENING.asks) + 2) * OPENING.ask + 20 * MS;
        let early = self.mutation == Some(super::Mutation::EarlySyn);
        if !early && !self.nodes[node].may_connect(pair) {
            if now < self.pairs[pair].tcp.begun + longest {
                self.poll(node)?;
                self.at(now + MS / 2, Event::Open(pair));
                return Ok(());
            }
            self.nodes[node].stop_asking(pair);
        }
        self.nodes[node].syn_went(pair);
        self.send_tcp(pair, 1, Segment::Syn);
        Ok(())
    }

    fn start(&mut self, pair: usize, side: usize) {
        let now = self.fabric.now();
        let s = &mut self.pairs[pair].sides[side];
        s.begun = true;
        s.since = now;
        self.at(now, Event::Write(pair, side));
        self.at(now, Event::Read(pair, side));
    }

    /// Processes a segment on arrival.
    pub(super) fn segment(&mut self, pair: usize, to: usize, segment: Segment) -> Result<()> {
        self.log(|| format!("{pair}/{to} gets {segment:?}"));
        let side = &self.pairs[pair].sides[to];
        let (node, gone) = (side.node, side.crashed || side.left);
        let closed = self.pairs[pair].tcp.ends[to].closed;
        match segment {
            Segment::Rst => {
                self.pairs[pair].tcp.ends[to].closed = true;
                // A connecting program gets the error at once.
                if to == 0 && !self.pairs[pair].tcp.ends[0].up && !gone {
                    self.leave(pair, 0, true)?;
                }
            }
            _ if !self.nodes[node].is_up() || side.crashed => {
                if segment == Segment::Syn && self.pairs[pair].tcp.tries < 5 {
                    self.pairs[pair].tcp.tries += 1;
                    let later = self.fabric.now() + 500 * MS;
                    self.at(later, Event::Tcp(pair, to, segment));
                } else {
                    self.send_tcp(pair, 1 - to, Segment::Rst);
                }
            }
            Segment::Syn => {
                let tuple = self.pairs[pair].tcp.tuple;
                let old = (0..pair).find(|i| {
                    let tcp = &self.pairs[*i].tcp;
                    let end = &tcp.ends[1];
                    tcp.tuple == tuple && end.up && !end.closed && !end.fin
                });
                match old {
                    // The client resets the old connection and connects again.
                    Some(old) => {
                        self.pairs[old].tcp.ends[1].closed = true;
                        let later = self.fabric.now() + 100 * MS;
                        self.at(later, Event::Tcp(pair, to, segment));
                    }
                    None => self.send_tcp(pair, 0, Segment::SynAck),
                }
            }
            Segment::SynAck if gone || closed => self.send_tcp(pair, 1, Segment::Rst),
            Segment::SynAck => {
                self.pairs[pair].tcp.ends[0].up = true;
                self.send_tcp(pair, 1, Segment::Ack);
                self.start(pair, 0);
            }
            Segment::Ack => {
                self.pairs[pair].tcp.ends[1].up = true;
                let after = self.pairs[pair].tcp.accept.unwrap_or(DEAF);
                let at = self.fabric.now() + after;
                self.at(at, Event::Accept(pair));
            }
            Segment::Data(_) if gone || closed => {
                self.pairs[pair].tcp.ends[to].closed = true;
                self.send_tcp(pair, 1 - to, Segment::Rst);
            }
            Segment::Data(n) => self.pairs[pair].tcp.ends[to].got += n,
            Segment::Fin => self.pairs[pair].tcp.ends[to].finished = true,
        }
        Ok(())
    }

    /// Makes the server's program accept a connection.
    pub(super) fn accept(&mut self, pair: usize) -> Result<()> {
        let Tcp {
            accept,
            plain,
            cookie,
            ..
        } = self.pairs[pair].tcp;
        let node = self.pairs[pair].sides[1].node;
        if self.pairs[pair].sides[1].crashed {
            return Ok(());
        }
        if accept.is_none() {
            self.pairs[pair].tcp.ends[1].closed = true;
            self.send_tcp(pair, 0, Segment::Rst);
            return Ok(());
        }
        let view = self.view(pair, 1);
        let terms = self.terms(pair, 1);
        let taken = match plain[1] {
            true => Err((Fallback::TcpOnly, None)),
            false => self.nodes[node].accept(&mut self.fabric, &terms, view)?,
        };
        self.check_reused(node)?;
        self.log(|| format!("{pair}/1 accepts: {taken:?}"));
        if !plain[1] {
            let left = self.nodes[node].has_note(&self.fabric, &terms);
            ensure!(
                !left,
                "a request of {pair} is left after its connection was accepted"
            );
        }
        self.start(pair, 1);
        let note = taken.map_or_else(|(_, note)| note, Some);
        if note.is_some_and(|note| note != cookie) {
            self.summary.foreign_notes += 1;
            // A reset connection may withdraw the request of the next connection, which repeats it.
            // A held message may also belong to an earlier connection; the message is harmless if
            // the client did not wait.
            let gave_up = matches!(self.pairs[pair].sides[0].carrier, Decision::Tcp(_));
            ensure!(
                !self.is_honest(pair) || self.echoes || taken.is_err() || gave_up,
                "{pair} uses the request of another connection"
            );
        }
        match taken {
            Ok(_) => self.decided(pair, 1, Decision::Waiting),
            Err((why, _)) => self.decided(pair, 1, Decision::Tcp(why)),
        }
    }

    /// Records the decision of an end. Both ends must decide alike.
    fn decided(&mut self, pair: usize, side: usize, what: Decision) -> Result<()> {
        self.log(|| format!("{pair}/{side}: {what:?}"));
        let p = &mut self.pairs[pair];
        p.sides[side].carrier = what;
        let honest = self.is_honest(pair);
        let p = &self.pairs[pair];
        let reset = p.tcp.ends.iter().any(|e| e.closed) || p.sides.iter().any(|s| s.crashed);
        match what {
            Decision::Waiting => return Ok(()),
            Decision::Direct => self.summary.direct += 1,
            Decision::Lost => self.summary.lost += 1,
            Decision::Tcp(why) => {
                self.summary.tcp += 1;
                self.summary.reasons |= 1 << why.code();
                ensure!(
                    !honest || self.is_plausible(pair, side, why),
                    "{pair}/{side} has no reason for TCP: {why:?}"
                );
            }
        }
        if honest && !reset {
            let other = self.pairs[pair].sides[1 - side].carrier;
            let tcp = |d| matches!(d, Decision::Tcp(_));
            let direct = |d| d == Decision::Direct;
            ensure!(
                !(direct(what) && tcp(other) || tcp(what) && direct(other)),
                "{pair}/{side} is {what:?}, the other end {other:?}"
            );
        }
        if what == Decision::Direct && !self.pairs[pair].demanded {
            self.ask_now_and_then(pair, side);
        }
        Ok(())
    }

    /// Enables keepalive for an end whose peer may vanish.
    pub(super) fn ask_now_and_then(&mut self, pair: usize, side: usize) {
        let idle = [600 * MS, 3_000 * MS][self.rng.random_range(0..2)];
        let node = self.pairs[pair].sides[side].node;
        if let Some(c) = self.nodes[node].find(pair, side) {
            c.stream.set_keepalive(Some((idle, 200 * MS, 12)));
        }
    }

    fn is_plausible(&self, pair: usize, side: usize, why: Fallback) -> bool {
        let p = &self.pairs[pair];
        let [own, peer] = [side, 1 - side].map(|i| &self.nodes[p.sides[i].node].setup);
        let end = &p.tcp.ends[side];
        let prompt = p.tcp.accept.is_some_and(|after| after < 60 * MS);
        let plain = p.tcp.plain[0] || p.tcp.plain[1];
        let left = p.sides.iter().any(|s| s.left);
        let late = self.summary.reasons & (1 << NOT_ACCEPTED) != 0;
        // True if the run has no disturbance that would explain a fallback to TCP.
        let sure = self.clean && prompt && !plain && !left && !p.tcp.reused;
        match why {
            Fallback::Off => own.off,
            Fallback::PeerOff => side == 0 && peer.off,
            Fallback::Version => side == 0 && own.version != peer.version,
            Fallback::NoListener => side == 0 && p.tcp.plain[1],
            Fallback::PeerBusy | Fallback::PeerResources => side == 0 && self.short() > 0,
            Fallback::NoSlot => true,
            Fallback::Silent | Fallback::RecentlySilent => side == 0 && !self.clean,
            Fallback::TcpOnly => p.tcp.plain[side] || p.sides[side].left,
            Fallback::TcpData => !sure && (end.got > 0 || end.closed || end.finished || end.fin),
            Fallback::NotAccepted => side == 0 && (!sure || self.short() > 0),
            Fallback::ClientFellBack => side == 1 && (!sure || self.short() > 0),
            Fallback::NotAsked => side == 1 && (!sure || late || self.short() > 0),
            Fallback::RecentlyLate => side == 0 && late,
            Fallback::NoDataPath
            | Fallback::NoRoute
            | Fallback::NoMemory
            | Fallback::NoNeighbour
            | Fallback::UserLimit => false,
        }
    }

    fn short(&self) -> u64 {
        self.nodes.iter().map(|n| n.setup.short).sum()
    }

    /// Polls a node and records its decisions.
    pub(super) fn poll(&mut self, node: usize) -> Result<()> {
        for (i, pair) in self.pairs.iter().enumerate() {
            for side in (0..2).filter(|side| pair.sides[*side].node == node) {
                let view = self.view(i, side);
                if let Some(setup) = self.nodes[node].setup.find(i, side) {
                    setup.tcp = view;
                }
            }
        }
        self.nodes[node].poll(&mut self.fabric)?;
        for (pair, side, what) in std::mem::take(&mut self.nodes[node].setup.decided) {
            self.decided(pair, side, what)?;
        }
        Ok(())
    }

    /// Checks that no end waits longer for its decision than permitted.
    pub(super) fn check_waiting(&self, node: usize) -> Result<()> {
        let now = self.fabric.now();
        for (i, pair) in self.pairs.iter().enumerate() {
            for (side, s) in pair
                .sides
                .iter()
                .enumerate()
                .filter(|(_, s)| s.node == node)
            {
                let most = [OPENING.accept, OPENING.confirm][side] + SLACK;
                let waits = s.begun && !s.left && !s.crashed && s.carrier == Decision::Waiting;
                ensure!(
                    !waits || !pair.tcp.ends[side].up || now < s.since + most,
                    "{i}/{side} waits for too long"
                );
            }
        }
        Ok(())
    }

    /// Returns the path of a side's data as seen by its program.
    pub(super) fn carrier(&mut self, pair: usize, side: usize) -> Decision {
        let s = &self.pairs[pair].sides[side];
        if s.carrier == Decision::Waiting {
            let view = self.view(pair, side);
            let now = Time(self.fabric.now());
            self.nodes[s.node].look_at_tcp(pair, side, view, now);
        }
        self.pairs[pair].sides[side].carrier
    }

    /// Makes a program close TCP's connection.
    pub(super) fn close_tcp(&mut self, pair: usize, side: usize, abort: bool) {
        let unread = self.view(pair, side).unread;
        let end = &mut self.pairs[pair].tcp.ends[side];
        if !end.up {
            end.closed = true;
        } else if !end.closed && (abort || unread) {
            end.closed = true;
            self.send_tcp(pair, 1 - side, Segment::Rst);
        } else if !end.closed && !std::mem::replace(&mut end.fin, true) {
            self.send_tcp(pair, 1 - side, Segment::Fin);
        }
    }

    /// Ends the TCP connections of a node that has crashed. Its peers get resets after different
    /// delays.
    pub(super) fn crash_tcp(&mut self, node: usize) {
        for i in 0..self.pairs.len() {
            for side in 0..2 {
                let pair = &mut self.pairs[i];
                let end = &mut pair.tcp.ends[side];
                if pair.sides[side].node != node || !(pair.sides[side].begun || end.up) {
                    continue;
                }
                pair.sides[side].crashed = true;
                end.closed = true;
                let later = self.rng.random_range(0..2_000 * MS);
                let at = self.fabric.now() + later;
                self.at(at, Event::Tcp(i, 1 - side, Segment::Rst));
            }
        }
    }

    /// Writes by TCP. Returns true if all was written.
    pub(super) fn write_tcp(&mut self, pair: usize, side: usize, len: u64) -> bool {
        if self.pairs[pair].tcp.ends[side].closed {
            return true;
        }
        let s = &mut self.pairs[pair].sides[side];
        s.written += len;
        let done = s.written == s.plan;
        s.shut |= done;
        if len > 0 {
            self.send_tcp(pair, 1 - side, Segment::Data(len));
        }
        if done {
            self.pairs[pair].tcp.ends[side].fin = true;
            self.send_tcp(pair, 1 - side, Segment::Fin);
        }
        done
    }

    /// Reads from TCP. Returns the data, true at the end of the stream, and the reason after a
    /// reset.
    pub(super) fn read_tcp(
        &mut self,
        pair: usize,
        side: usize,
        most: usize,
    ) -> (Vec<u8>, bool, Option<End>) {
        let end = &self.pairs[pair].tcp.ends[side];
        let read = self.pairs[pair].sides[side].read;
        let n = (end.got - read).min(most as u64);
        let data = (0..n).map(|i| byte(pair, 1 - side, read + i)).collect();
        let unread = end.got > read + n;
        let reset = end.closed && !unread;
        let failed = reset.then_some(End::Peer(wire::ds::Ended::Reset));
        (data, end.finished && !unread && !end.closed, failed)
    }
}

/// The path of a connection is decided before the streams give up the peer.
const _: () = assert!(OPENING.confirm < LIMITS.give_up);
