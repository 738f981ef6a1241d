//! Negotiation at a node: clients that ask, their stored requests, accepted connections, and
//! decisions, driven like by a socket module (`af-extl/nic`).

use super::node::Node;
use super::{opening, Mutation, LIMITS};
use crate::fabric::Fabric;
use crate::port::Port;
use crate::Heap;
use anyhow::{ensure, Result};
use protocol::ds::{
    decline, Accepted, Client, ClientMessage, Failures, Fallback, Geometry, Opening, Pending,
    Program, Server, SilentNodes,
};
use protocol::Time;
use wire::ds::{
    Answer, Answered, ConnId, Connect, Decline, Endpoint, Kind, Ring, Seq, SetupError, Tuple,
};
use wire::eth::VPID;
use wire::ids::{Nla, NodeId};
use wire::velo::{self, Mtt, Target};

/// Maximum number of stored requests, in total and from one node. A single node can't use all
/// entries.
const NOTES: [u16; 2] = [12, 4];
/// Power of two by which rings are smaller than the protocol's minimum, so that they fill up often.
const SMALLER: u8 = 2;
/// Port of programs that can bypass TCP, and of programs that can't.
pub const PORTS: [u16; 2] = [7600, 7601];
/// Number of messages that a node remembers for forged repetitions.
const REMEMBERED: usize = 64;

/// State of TCP's connection as seen by one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct View {
    /// True once TCP's connection was established.
    pub up: bool,
    /// True after a reset or a failed connect.
    pub closed: bool,
    /// True if received data are unread.
    pub unread: bool,
    /// True after a FIN of the other end.
    pub finished: bool,
}

/// Path of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Not decided yet.
    Waiting,
    /// Streams.
    Direct,
    /// TCP.
    Tcp(Fallback),
    /// The peer's decision is unknown.
    Lost,
}

enum Side {
    Client(Client),
    Server(Server),
}

/// An end that negotiates, or has finished negotiating.
pub struct Setup {
    name: ConnId,
    pair: usize,
    side: usize,
    peer: usize,
    what: Side,
    rings: Option<(u64, u64)>,
    geometry: Geometry,
    /// True if this end accepts data from programs' memory.
    sources: bool,
    far: Option<Endpoint>,
    decision: Decision,
    open: bool,
    /// True if the program aborted the socket before the decision, false if the program closed it;
    /// `None` while it is open.
    closed: Option<bool>,
    syn: bool,
    /// Current state of TCP's connection.
    pub tcp: View,
    tcp_decides: bool,
    since: Time,
    /// Cookie and connection ID of the client.
    asked: Option<(u32, ConnId)>,
    due: Option<Time>,
}

/// A sent message: destination, tag, contents.
type Sent = (usize, u8, Vec<u8>);

/// Negotiation state of a node.
pub struct Negotiation {
    /// Ends in order of their start.
    pub setups: Vec<Setup>,
    pending: Pending<Heap>,
    silent: SilentNodes<Heap>,
    slow: Failures<Heap, Program>,
    /// True if the node lets TCP carry all connections.
    pub off: bool,
    /// Protocol version of the node.
    pub version: u8,
    /// Maximum delay of repeated messages in ns, if its messages are repeated.
    pub echo: Option<u64>,
    late: Vec<(u64, Sent)>,
    sent: Vec<Sent>,
    /// Decisions since the last call: pair, side, path.
    pub decided: Vec<(usize, usize, Decision)>,
    /// Number of clients that were declined for lack of slots or rings.
    pub short: u64,
    draw: u64,
}

/// Parameters of a new connection.
pub struct Terms {
    /// Number of the connection.
    pub pair: usize,
    /// Number of the other node.
    pub peer: usize,
    /// Addresses and ports.
    pub tuple: Tuple,
    /// Initial sequence number.
    pub isn: Seq,
    /// Sizes of the send ring and the receive ring in bytes.
    pub rings: [u32; 2],
}

impl Negotiation {
    pub(super) fn new(secret: u64) -> Self {
        let [all, each] = NOTES;
        let pending = match Pending::new(all, each, secret) {
            Ok(pending) => pending,
            Err(e) => match e {},
        };
        let silent = match SilentNodes::new(4) {
            Ok(silent) => silent,
            Err(e) => match e {},
        };
        let slow = match Failures::new(4, secret) {
            Ok(slow) => slow,
            Err(e) => match e {},
        };
        Self {
            setups: Vec::new(),
            pending,
            silent,
            slow,
            off: false,
            version: wire::ds::VERSION,
            echo: None,
            late: Vec::new(),
            sent: Vec::new(),
            decided: Vec::new(),
            short: 0,
            draw: secret | 1,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.draw ^= self.draw << 13;
        self.draw ^= self.draw >> 7;
        self.draw ^= self.draw << 17;
        (self.draw >> 8) % below
    }

    /// Returns true if a connection ID with this index is in use.
    pub(super) fn has(&self, index: usize) -> bool {
        let mut all = self.setups.iter();
        all.any(|s| s.name.index() as usize == index)
    }

    /// Returns true while a decision is pending or a late message may arrive.
    pub(super) fn is_waiting(&self) -> bool {
        !self.late.is_empty() || self.setups.iter().any(|s| s.decision == Decision::Waiting)
    }

    pub(super) fn find(&mut self, pair: usize, side: usize) -> Option<&mut Setup> {
        let mut all = self.setups.iter_mut();
        all.find(|s| (s.pair, s.side) == (pair, side))
    }

    /// Returns the connection IDs and cookies in use, as a basis for forged messages.
    pub(super) fn names(&self) -> Vec<(ConnId, ConnId, u32)> {
        let name = |s: &Setup| {
            let far = s.far.map_or(ConnId::default(), |far| far.id);
            (s.name, far, s.asked.map_or(0, |(cookie, _)| cookie))
        };
        self.setups.iter().map(name).collect()
    }

    /// Returns a message that was sent earlier.
    pub(super) fn old(&self, which: usize) -> Option<Sent> {
        let n = self.sent.len();
        (n > 0).then(|| self.sent[which % n].clone())
    }
}

impl Setup {
    fn endpoint(&self) -> Endpoint {
        let g = &self.geometry;
        Endpoint {
            id: self.name,
            velo: VPID,
            rma: VPID,
            isn: g.send_isn,
            ring: Ring {
                nla: Nla(self.rings.map_or(0, |(send, _)| send)),
                log2: g.send_ring.trailing_zeros() as u8 + SMALLER,
            },
            receive_log2: g.receive_ring.trailing_zeros() as u8 + SMALLER,
            sources: self.sources,
        }
    }

    fn meet(&mut self, far: Endpoint) {
        self.far = Some(far);
        self.geometry.receive_isn = far.isn;
        self.geometry.peer_send = far.ring.bytes() >> SMALLER;
        self.geometry.peer_ring = 1 << (far.receive_log2 - SMALLER);
        self.geometry.sources = self.sources && far.sources;
    }

    /// Returns true if TCP's state may determine the decision.
    fn see_tcp(&mut self, mutation: Option<Mutation>, now: Time) -> bool {
        if self.decision != Decision::Waiting || !self.open {
            return false;
        }
        let fin = mutation == Some(Mutation::FinDecides) && self.tcp.finished;
        let received = self.tcp.unread || fin;
        self.tcp_decides = match &mut self.what {
            Side::Client(client) => {
                if self.tcp.up && !self.tcp.closed {
                    client.tcp_up(&opening(mutation), now);
                }
                received || self.syn && self.tcp.closed
            }
            Side::Server(_) => received || self.tcp.closed,
        };
        self.tcp_decides
    }

    fn use_tcp(&mut self) {
        match &mut self.what {
            Side::Client(client) => {
                client.give_up(Fallback::TcpData);
            }
            Side::Server(server) => {
                server.tcp_received();
            }
        }
    }

    fn outcome(&self) -> Decision {
        match &self.what {
            Side::Client(client) => match client.state() {
                Opening::Direct => Decision::Direct,
                Opening::Tcp => Decision::Tcp(client.fallback().unwrap_or(Fallback::NotAccepted)),
                _ => Decision::Waiting,
            },
            Side::Server(server) => match server.state() {
                Accepted::Waiting => Decision::Waiting,
                Accepted::Direct => Decision::Direct,
                Accepted::Tcp(why) => Decision::Tcp(why),
                Accepted::Dead => Decision::Lost,
            },
        }
    }
}

/// Returns the server that a connection addresses.
fn program(peer: usize, tuple: &Tuple) -> Program {
    Program {
        node: Port::node_id(peer),
        address: tuple.server,
        port: tuple.server_port,
    }
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

impl Node {
    fn post(&mut self, fabric: &mut Fabric, (to, tag, bytes): &Sent) {
        if let Some(port) = &mut self.port {
            let descriptor = velo::Descriptor {
                target: Target::Node(Port::node_id(*to)),
                vpid: VPID,
                mtt: Mtt::from_low_bits(0),
                irq: false,
                tag: *tag,
                len: bytes.len() as u16,
            };
            // A message without credits is lost and repeated later.
            let _ = self.held.send(port, fabric, 0, (descriptor, bytes));
        }
    }

    /// Sends a message of a negotiation.
    fn send_setup(&mut self, fabric: &mut Fabric, to: usize, kind: Kind, words: &[u64]) {
        let mut bytes = bytes_of(words);
        bytes[0] = self.setup.version;
        let sent = (to, kind.tag(), bytes);
        self.post(fabric, &sent);
        if self.repeat_every.is_some() {
            self.post(fabric, &sent);
        }
        if let Some(longest) = self.setup.echo {
            let at = fabric.now() + self.setup.draw(longest);
            self.setup.late.push((at, sent.clone()));
        }
        if self.setup.sent.len() == REMEMBERED {
            self.setup.sent.remove(0);
        }
        self.setup.sent.push(sent);
    }

    fn answer(&mut self, fabric: &mut Fabric, to: usize, answered: &Answered) {
        let (words, n) = answered.words();
        self.send_setup(fabric, to, answered.kind(), &words[..n]);
    }

    fn begin(
        &mut self,
        fabric: &Fabric,
        terms: &Terms,
        side: usize,
        what: impl FnOnce(Endpoint) -> Side,
        asked: Option<(u32, ConnId)>,
    ) -> Result<Option<Endpoint>> {
        let Some((name, send, receive)) = self.prepare(fabric)? else {
            return Ok(None);
        };
        let [send_ring, receive_ring] = terms.rings;
        let now = Time(fabric.now());
        let mut setup = Setup {
            name,
            pair: terms.pair,
            side,
            peer: terms.peer,
            what: Side::Client(Client::new(Connect::default(), now)),
            rings: Some((send, receive)),
            geometry: Geometry {
                send_isn: terms.isn,
                receive_isn: Seq(0),
                send_ring,
                receive_ring,
                peer_ring: receive_ring,
                peer_send: send_ring,
                sources: false,
            },
            sources: self.setup.draw(6) > 0,
            far: None,
            decision: Decision::Waiting,
            open: true,
            closed: None,
            syn: false,
            tcp: View::default(),
            tcp_decides: false,
            since: now,
            asked,
            due: Some(now),
        };
        let own = setup.endpoint();
        setup.what = what(own);
        self.setup.setups.push(setup);
        Ok(Some(own))
    }

    /// Asks a node whether it accepts a direct connection.
    ///
    /// # Errors
    ///
    /// Fails if unused memory was written.
    pub fn ask(
        &mut self,
        fabric: &mut Fabric,
        terms: &Terms,
        cookie: u32,
    ) -> Result<Option<Fallback>> {
        let now = Time(fabric.now());
        if self.setup.off {
            return Ok(Some(Fallback::Off));
        }
        let silent = opening(self.mutation).silent;
        let peer = Port::node_id(terms.peer);
        if self.setup.silent.is_silent(peer, silent, now) {
            return Ok(Some(Fallback::RecentlySilent));
        }
        if self
            .setup
            .slow
            .is_avoided(&program(terms.peer, &terms.tuple), now)
        {
            return Ok(Some(Fallback::RecentlyLate));
        }
        let client = |client| {
            let tuple = terms.tuple;
            let connect = Connect {
                cookie,
                client,
                tuple,
            };
            Side::Client(Client::new(connect, now))
        };
        let made = self.begin(fabric, terms, 0, client, None)?;
        let Some(own) = made else {
            return Ok(Some(Fallback::NoSlot));
        };
        if let Some(setup) = self.setup.find(terms.pair, 0) {
            setup.asked = Some((cookie, own.id));
        }
        Ok(None)
    }

    /// A program accepts a connection of TCP. Returns the cookie of the client that asked, or the
    /// reason why the connection uses TCP.
    ///
    /// # Errors
    ///
    /// Fails if unused memory was written.
    pub fn accept(
        &mut self,
        fabric: &mut Fabric,
        terms: &Terms,
        tcp: View,
    ) -> Result<Result<u32, (Fallback, Option<u32>)>> {
        let now = Time(fabric.now());
        let limits = opening(self.mutation);
        let node = Port::node_id(terms.peer);
        if self.setup.off {
            return Ok(Err((Fallback::Off, None)));
        }
        let used = tcp.closed || tcp.finished || tcp.unread;
        if used && self.mutation == Some(Mutation::NoteKept) {
            return Ok(Err((Fallback::TcpData, None)));
        }
        let pending = &mut self.setup.pending;
        let Some(asked) = pending.begin_accept(node, &terms.tuple, &limits, now) else {
            self.refuse_all(fabric, &terms.tuple);
            return Ok(Err((Fallback::NotAsked, None)));
        };
        let Connect { cookie, client, .. } = asked.connect;
        if used {
            pending.end_accept(&asked);
            return Ok(Err((Fallback::TcpData, Some(cookie))));
        }
        let server = |own| Side::Server(Server::new(&asked, own, &limits, now));
        let made = self.begin(fabric, terms, 1, server, Some((cookie, client.id)))?;
        self.setup.pending.end_accept(&asked);
        if self.mutation == Some(Mutation::TakenTwice) {
            let _ = self.setup.pending.ask(node, &asked.connect, &limits, now);
        }
        if made.is_none() {
            self.setup.short += 1;
            let no = decline(cookie, client.id, Decline::Resources);
            self.answer(fabric, terms.peer, &no);
            return Ok(Err((Fallback::NoSlot, Some(cookie))));
        }
        if let Some(setup) = self.setup.find(terms.pair, 1) {
            setup.meet(client);
            setup.tcp = tcp;
        }
        Ok(Ok(cookie))
    }

    /// Declines all clients that asked for a connection that uses TCP.
    fn refuse_all(&mut self, fabric: &mut Fabric, tuple: &Tuple) {
        while let Some(asked) = self.setup.pending.remove_any(tuple) {
            let Connect { cookie, client, .. } = asked.connect;
            let no = decline(cookie, client.id, Decline::Resources);
            self.setup.short += 1;
            self.answer(fabric, usize::from(asked.node.0), &no);
        }
    }

    /// Returns true if a client's request for a connection is stored.
    pub fn has_note(&mut self, fabric: &Fabric, terms: &Terms) -> bool {
        let (limits, now) = (opening(self.mutation), Time(fabric.now()));
        let node = Port::node_id(terms.peer);
        let note = self.setup.pending.accept(node, &terms.tuple, &limits, now);
        note.is_some()
    }

    /// Returns true if TCP's SYN may be sent.
    pub fn may_connect(&mut self, pair: usize) -> bool {
        match self.setup.find(pair, 0).map(|s| &s.what) {
            Some(Side::Client(client)) => client.may_connect(),
            _ => true,
        }
    }

    /// Makes an end stop waiting for the answer.
    pub fn stop_asking(&mut self, pair: usize) {
        if let Some(Side::Client(client)) = self.setup.find(pair, 0).map(|s| &mut s.what) {
            client.give_up(Fallback::Silent);
        }
    }

    /// Records that TCP's SYN was sent.
    pub fn syn_went(&mut self, pair: usize) {
        if let Some(setup) = self.setup.find(pair, 0) {
            setup.syn = true;
        }
    }

    /// Updates the view of TCP's connection for a program that checks its path.
    pub fn look_at_tcp(&mut self, pair: usize, side: usize, tcp: View, now: Time) {
        let mutation = self.mutation;
        if let Some(setup) = self.setup.find(pair, side) {
            setup.tcp = tcp;
            setup.see_tcp(mutation, now);
        }
    }

    /// Makes a program close or abort its socket.
    pub fn close(&mut self, pair: usize, side: usize, abort: bool) {
        if let Some(setup) = self.setup.find(pair, side) {
            setup.open = false;
            if setup.decision == Decision::Waiting {
                setup.closed = Some(abort);
                if let Side::Client(client) = &mut setup.what {
                    client.give_up(Fallback::TcpOnly);
                }
            }
        }
    }

    /// Processes a received message of a negotiation.
    pub(super) fn setup_received(
        &mut self,
        fabric: &mut Fabric,
        source: NodeId,
        kind: Kind,
        (len, word): (u16, impl Fn(usize) -> u64),
    ) {
        let now = Time(fabric.now());
        let limits = opening(self.mutation);
        self.setup.silent.remove(source);
        let from = usize::from(source.0);
        // A node with another version changes the version of received messages likewise, because
        // the parser knows only one version.
        let other = u64::from(self.setup.version ^ wire::ds::VERSION);
        let word = |i| word(i) ^ if i == 0 { other } else { 0 };
        match kind {
            Kind::Connect | Kind::Cancel => match Connect::parse(len, word) {
                Ok(connect) if kind == Kind::Cancel => self.setup.pending.cancel(source, &connect),
                Ok(connect) => self.asked(fabric, from, &connect),
                Err(SetupError::Version { cookie, from: to }) if kind == Kind::Connect => {
                    let no = decline(cookie, to, Decline::Version);
                    self.answer(fabric, from, &no);
                }
                Err(_) => self.strays += 1,
            },
            _ => {
                let Ok(mut answered) = Answered::parse(kind, len, word) else {
                    self.strays += 1;
                    return;
                };
                let any = self.mutation == Some(Mutation::AnyAnswer);
                let mut all = self.setup.setups.iter_mut();
                let setup = all.find(|s| s.name == answered.to);
                let Some(setup) = setup.filter(|s| any || Port::node_id(s.peer) == source) else {
                    self.strays += 1;
                    return;
                };
                // TCP's state is considered only if there is a connection.
                setup.see_tcp(self.mutation, now);
                match &mut setup.what {
                    Side::Client(client) => {
                        client.receive(&answered, &limits, now);
                    }
                    Side::Server(server) => {
                        if let (true, Some((cookie, from))) = (any, setup.asked) {
                            (answered.cookie, answered.from) = (cookie, from);
                        }
                        server.receive(&answered);
                    }
                }
            }
        }
    }

    fn asked(&mut self, fabric: &mut Fabric, node: usize, connect: &Connect) {
        let asked = Some((connect.cookie, connect.client.id));
        let taken = |s: &Setup| s.side == 1 && s.peer == node && s.asked == asked;
        let again = self.mutation == Some(Mutation::TakenTwice);
        if !again && self.setup.setups.iter().any(taken) {
            return;
        }
        let now = Time(fabric.now());
        let limits = opening(self.mutation);
        let listens =
            connect.tuple.server_port == PORTS[0] && connect.tuple.server == [self.nic() as u8; 16];
        let noted = match listens {
            _ if self.setup.off => Err(Decline::Off),
            false => Err(Decline::NoListener),
            true => {
                let node = Port::node_id(node);
                self.setup.pending.ask(node, connect, &limits, now)
            }
        };
        let Connect { cookie, client, .. } = *connect;
        let answered = match noted {
            // The connection is being accepted, and the client will be notified.
            Ok(false) => return,
            Ok(true) => Answered {
                cookie,
                to: client.id,
                from: ConnId::default(),
                answer: Answer::Offer,
            },
            Err(why) => {
                self.setup.short += u64::from(why == Decline::Busy);
                decline(cookie, client.id, why)
            }
        };
        self.answer(fabric, node, &answered);
    }

    /// Processes a stream message for a connection ID. It proves to an accepted end that the client
    /// uses streams.
    pub(super) fn stream_received(&mut self, fabric: &Fabric, name: ConnId, source: NodeId) {
        let mut all = self.setup.setups.iter_mut();
        let found = all.position(|s| s.name == name && Port::node_id(s.peer) == source);
        let Some(i) = found else {
            return;
        };
        if let Side::Server(server) = &mut self.setup.setups[i].what {
            server.stream_received();
        }
        self.decide(fabric, i);
    }

    /// Applies a decision.
    fn decide(&mut self, fabric: &Fabric, i: usize) {
        let now = Time(fabric.now());
        let setup = &mut self.setup.setups[i];
        let outcome = setup.outcome();
        if setup.decision != Decision::Waiting || outcome == Decision::Waiting {
            return;
        }
        setup.decision = outcome;
        setup.since = now;
        if let (Decision::Direct, Side::Client(client)) = (outcome, &setup.what) {
            if let Some(far) = client.server() {
                setup.meet(far);
            }
        }
        let (pair, side, closed) = (setup.pair, setup.side, setup.closed);
        if let Side::Client(client) = &setup.what {
            let program = program(setup.peer, &client.connect().tuple);
            let pause = opening(self.mutation).late;
            match outcome {
                Decision::Tcp(Fallback::Silent) => self.setup.silent.silent(program.node, now),
                Decision::Tcp(Fallback::NotAccepted) => self.setup.slow.fail(program, pause, now),
                Decision::Direct => self.setup.slow.succeed(&program),
                _ => {}
            }
        }
        self.setup.decided.push((pair, side, outcome));
        let setup = &mut self.setup.setups[i];
        if let (Decision::Direct, Some((send, receive)), Some(far)) =
            (outcome, setup.rings, setup.far)
        {
            setup.rings = None;
            let (name, peer, geometry) = (setup.name, setup.peer, setup.geometry);
            let own = (name, send, receive);
            let far = (peer, far.id, far.ring.nla.0);
            self.establish(fabric, own, far, geometry, (pair, side));
            if let (Some(abort), Some(conn)) = (closed, self.find(pair, side)) {
                conn.open = false;
                match abort {
                    true => conn.stream.abort(now),
                    false => conn.stream.close(now),
                }
            }
        }
    }

    /// Processes all pending negotiations, after the messages were read.
    pub(super) fn negotiate(&mut self, fabric: &mut Fabric) -> Result<()> {
        let now = Time(fabric.now());
        let limits = opening(self.mutation);
        let late = std::mem::take(&mut self.setup.late);
        let (due, later): (Vec<_>, Vec<_>) = late.into_iter().partition(|(at, _)| *at <= now.0);
        self.setup.late = later;
        for (_, sent) in due {
            self.post(fabric, &sent);
        }
        for i in 0..self.setup.setups.len() {
            let setup = &mut self.setup.setups[i];
            if setup.decision == Decision::Waiting {
                let due = setup.due.is_some_and(|at| at <= now);
                if setup.tcp_decides {
                    if setup.see_tcp(self.mutation, now) {
                        setup.use_tcp();
                    }
                } else if due {
                    setup.see_tcp(self.mutation, now);
                }
            }
            loop {
                let setup = &mut self.setup.setups[i];
                let peer = setup.peer;
                let says = match &mut setup.what {
                    Side::Client(client) => client.next(&limits, now),
                    Side::Server(server) => server.next(&limits, now).map(ClientMessage::Answer),
                };
                match says {
                    Some(ClientMessage::Connect(c)) => {
                        self.send_setup(fabric, peer, Kind::Connect, &c.words());
                    }
                    Some(ClientMessage::Cancel(c)) => {
                        self.send_setup(fabric, peer, Kind::Cancel, &c.words())
                    }
                    Some(ClientMessage::Answer(answer)) => self.answer(fabric, peer, &answer),
                    None => break,
                }
            }
            self.decide(fabric, i);
            let setup = &mut self.setup.setups[i];
            setup.due = match &setup.what {
                Side::Client(client) => client.deadline(),
                Side::Server(server) => server.deadline(),
            };
        }
        self.tidy(fabric)
    }

    /// Releases finished negotiations.
    fn tidy(&mut self, fabric: &Fabric) -> Result<()> {
        let now = fabric.now();
        let limits = opening(self.mutation);
        let mut back = Vec::new();
        let conns = &self.conns;
        let mutation = self.mutation;
        self.setup.setups.retain_mut(|s| match s.decision {
            Decision::Waiting => true,
            Decision::Direct => {
                let conn = conns.get(s.name.index() as usize);
                conn.is_some_and(|c| c.as_ref().is_some_and(|c| c.stream.own() == s.name))
            }
            Decision::Tcp(_) | Decision::Lost => {
                if mutation != Some(Mutation::RingsKept) {
                    back.extend(s.rings.take());
                }
                // The client answers peers that do not know yet that it uses TCP, until they no
                // longer ask.
                let long = limits.keep + limits.confirm + LIMITS.hold;
                let answers = matches!(s.what, Side::Client(_)) && s.decision != Decision::Lost;
                answers && mutation != Some(Mutation::NoAnswer) && now < s.since.0 + long
            }
        });
        for (send, receive) in back {
            self.give_back(fabric, send)?;
            self.give_back(fabric, receive)?;
        }
        Ok(())
    }

    /// Checks that the node has no pending negotiation at the end of a run.
    pub(super) fn check_setups(&mut self, fabric: &Fabric) -> Result<()> {
        let nic = self.nic();
        let now = Time(fabric.now());
        self.setup.pending.expire(&opening(self.mutation), now);
        ensure!(
            self.setup.pending.is_empty(),
            "node {nic} has requests at the end"
        );
        let left: Vec<_> = self.setup.setups.iter().map(|s| (s.pair, s.side)).collect();
        ensure!(
            left.is_empty(),
            "node {nic} negotiates at the end: {left:?}"
        );
        Ok(())
    }
}
