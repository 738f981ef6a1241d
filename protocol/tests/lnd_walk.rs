//! Random walks of LND ends, connected by queues that lose, repeat and swap messages. Nodes are
//! restarted at random.
//!
//! Invariants: the peer's LNet receives a message exactly once if the sender was informed of its
//! delivery. It receives the message at most once if the outcome is unknown, and never if the
//! message was reported as not delivered. Fetched data are always the data that were exposed for
//! the message. Without further loss, all messages end and all addresses are released.

mod lnd_net;

use lnd_net::{lost, End, InFlight, CAPACITY, LIMITS};
use proptest::prelude::*;
use protocol::lnd::{Event, LnetAction, Outcome, Ticket};
use protocol::Time;
use std::collections::HashMap;
use wire::ids::NodeId;

#[derive(Default)]
struct Seen {
    offered: u32,
    taken: bool,
    got: Option<bool>,
}

struct Walk {
    ends: Vec<End>,
    now: u64,
    seed: u64,
    in_flight: Vec<InFlight>,
    /// GETs in flight: node, message, target node, address, deadline, length.
    gets: Vec<(usize, Ticket, u16, u64, u64, u32)>,
    late: Vec<(usize, Ticket)>,
    revoking: Vec<(usize, Ticket, u32)>,
    /// Token of each message, by node and table index.
    names: HashMap<(usize, u32), u32>,
    seen: HashMap<u32, Seen>,
    /// Tokens whose sender or receiver was restarted.
    restarted: Vec<u32>,
    routes: HashMap<u32, (usize, usize)>,
    token: u32,
}

impl Walk {
    fn new(seed: u64) -> Self {
        Self {
            ends: vec![End::new(0, seed), End::new(1, seed ^ 0xffff)],
            now: 0,
            seed,
            in_flight: Vec::new(),
            gets: Vec::new(),
            late: Vec::new(),
            revoking: Vec::new(),
            names: HashMap::new(),
            seen: HashMap::new(),
            restarted: Vec::new(),
            routes: HashMap::new(),
            token: 0,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        (self.seed >> 33) % below
    }

    /// Performs one random action. If `fair` is true, no message is lost.
    fn step(&mut self, fair: bool) {
        let node = self.draw(2) as usize;
        match self.draw(12) {
            0 | 1 if !fair => {
                self.token += 1;
                let (to, len) = (self.draw(2) as u16, self.draw(400) as usize + 1);
                let remote = self.draw(2) == 0;
                let until = self.now + 50 + self.draw(1500);
                let (token, now) = (self.token, self.now);
                self.routes.insert(token, (node, to.into()));
                if self.ends[node].submit(to, token, len, remote, until, now) {
                    self.seen.insert(token, Seen::default());
                }
            }
            2 | 3 => {
                let room = self.draw(6) as usize;
                let messages = self.ends[node].pump(room, self.now);
                self.in_flight.extend(messages);
            }
            4..=6 => self.carry(fair),
            7 => self.now += 1 + self.draw(15),
            8 => self.get(fair),
            9 => self.late(),
            10 => {
                if let Some((node, ticket, token)) = self.revoking.pop() {
                    self.ends[node].exposed.retain(|_, t| *t != token);
                    self.ends[node].lnd.revoked(ticket);
                }
            }
            _ if !fair && self.draw(40) == 0 => self.restart(node),
            _ => {}
        }
        for node in 0..2 {
            while self.ends[node].lnd.expire(Time(self.now), 3) {}
            self.events(node);
            self.ends[node].lnd.check().unwrap();
        }
    }

    /// Restarts a node, after all messages and GETs from before have left the network.
    fn restart(&mut self, node: usize) {
        for (token, (from, to)) in &self.routes {
            if *from == node || *to == node {
                self.restarted.push(*token);
            }
        }
        self.ends[node] = End::new(node as u16, self.seed);
        self.in_flight.clear();
        self.gets.clear();
        self.late.retain(|(n, _)| *n != node);
        self.revoking.retain(|(n, ..)| *n != node);
        self.names.retain(|(n, _), _| *n != node);
        let other = 1 - node;
        for _ in 0..2 * (LIMITS.fresh + LIMITS.hold) {
            self.now += 1;
            while self.ends[other].lnd.expire(Time(self.now), 3) {}
            self.ends[other].pump(100, self.now);
            self.events(other);
            self.gets.clear();
        }
    }

    fn carry(&mut self, fair: bool) {
        if self.in_flight.is_empty() {
            return;
        }
        let most = self.in_flight.len().min(4) as u64;
        let i = self.draw(most) as usize;
        let m = self.in_flight.remove(i);
        let fate = if fair { 9 } else { self.draw(10) };
        if fate == 0 {
            return;
        }
        if fate == 1 {
            self.in_flight.push(m.clone());
        }
        let now = self.now;
        self.ends[usize::from(m.to)].deliver(&m, now, now);
    }

    fn events(&mut self, node: usize) {
        self.ends[node].collect();
        while let Some(event) = self.ends[node].events.pop_front() {
            let now = Time(self.now);
            match event {
                Event::Offer(ticket, _) => self.offer(node, ticket),
                Event::Fetch {
                    ticket,
                    node: from,
                    source,
                    len,
                    until,
                    ..
                } => {
                    self.gets
                        .push((node, ticket, from.0, source.nla.0, until.0, len));
                }
                Event::RevokeTarget(ticket) => self.ends[node].lnd.get_target_revoked(ticket),
                Event::Received(ticket, done) => {
                    let token = self.names[&(node, ticket.index())];
                    let seen = self.seen.get_mut(&token).expect("no such message");
                    assert_eq!(seen.got.replace(done), None);
                    self.ends[node].lnd.finished(ticket);
                }
                Event::Revoke(ticket, token) => self.revoking.push((node, ticket, token)),
                Event::Sent(_, token, outcome) => {
                    let end = &mut self.ends[node];
                    assert!(end.exposed.values().all(|t| *t != token));
                    assert_eq!(end.outcomes.insert(token, outcome), None);
                }
                Event::Released(_, token) => {
                    let end = &mut self.ends[node];
                    let nla = end.addresses.remove(&token).expect("released twice");
                    // The address is reused at once.
                    end.free.push(nla);
                }
                Event::Peer(..) => {}
            }
            self.ends[node].collect();
            let _ = now;
        }
    }

    fn offer(&mut self, node: usize, ticket: Ticket) {
        let (_, header, len, inline) = self.ends[node].lnd.offered(ticket).expect("no such offer");
        let token = header[0] as u32;
        let seen = self.seen.get_mut(&token).expect("no such message");
        seen.offered += 1;
        assert_eq!(seen.offered, 1, "{token} was offered twice");
        self.names.insert((node, ticket.index()), token);
        match self.draw(8) {
            0 => self.ends[node].lnd.parsed(ticket, false),
            1 | 2 => {
                // LNet decides later, and payload in the buffer may be copied until then.
                let kept = self.draw(2) == 0 && self.ends[node].lnd.kept(ticket);
                assert!(inline || !kept);
                let seen = self.seen.get_mut(&token).expect("no such message");
                seen.taken = true;
                if kept {
                    seen.got = Some(true);
                } else {
                    self.late.push((node, ticket));
                }
                self.ends[node].lnd.parsed(ticket, true);
            }
            _ => {
                self.seen.get_mut(&token).expect("no such message").taken = true;
                self.wants(node, ticket, token, len, inline);
                self.ends[node].lnd.parsed(ticket, true);
            }
        }
    }

    fn wants(&mut self, node: usize, ticket: Ticket, token: u32, len: u32, inline: bool) {
        let wanted = if self.draw(6) == 0 { 0 } else { len };
        let action = self.ends[node].lnd.receive(ticket, wanted, Time(self.now));
        let got = match action {
            LnetAction::Copy => {
                assert!(inline);
                let (from, _) = self.routes[&token];
                let data = &self.ends[node].buffers[&ticket.index()][..len as usize];
                if let Some(sent) = self.ends[from].payloads.get(&token) {
                    assert_eq!(data, sent);
                }
                self.ends[node].lnd.copied(ticket);
                Some(true)
            }
            LnetAction::Done => Some(true),
            LnetAction::Lost => Some(false),
            LnetAction::Fetch => None,
        };
        self.seen.get_mut(&token).expect("no such message").got = got;
    }

    fn late(&mut self) {
        if self.late.is_empty() {
            return;
        }
        let i = self.draw(self.late.len() as u64) as usize;
        let (node, ticket) = self.late.swap_remove(i);
        let token = self.names[&(node, ticket.index())];
        let (len, inline) = match self.ends[node].lnd.offered(ticket) {
            Some((_, _, len, inline)) => (len, inline),
            None => (0, false),
        };
        self.wants(node, ticket, token, len, inline);
    }

    fn get(&mut self, fair: bool) {
        if self.gets.is_empty() {
            return;
        }
        let i = self.draw(self.gets.len() as u64) as usize;
        let (node, ticket, from, nla, until, len) = self.gets.swap_remove(i);
        let token = self.names[&(node, ticket.index())];
        let read = self.ends[usize::from(from)].exposed.get(&nla).copied();
        let lose = !fair && self.draw(4) == 0 || self.now > until;
        let result = match read {
            _ if lose => lost(),
            None => Err(protocol::lnd::GetFailure::Fault),
            Some(read) => {
                assert_eq!(read, token, "{node} fetched data of another message");
                assert!(len as usize <= self.ends[usize::from(from)].payloads[&read].len());
                Ok(())
            }
        };
        self.ends[node].lnd.fetched(ticket, result, Time(self.now));
    }

    fn finish(&mut self) {
        for _ in 0..60_000 {
            self.step(true);
            let over = self.ends.iter().all(|e| e.lnd.is_closed());
            if over && self.in_flight.is_empty() && self.late.is_empty() {
                break;
            }
        }
        for end in &self.ends {
            assert!(
                end.lnd.is_closed(),
                "{} out, {} in",
                end.lnd.sends(),
                end.lnd.receives()
            );
            assert!(end.addresses.is_empty() && end.free.len() == 63);
        }
        for (token, seen) in &self.seen {
            let (from, _) = self.routes[token];
            let restarted = self.restarted.contains(token);
            let outcome = self.ends[from].outcomes.get(token);
            assert!(outcome.is_some() || restarted, "{token} has no outcome");
            match outcome {
                Some(Outcome::Delivered) => {
                    assert!(seen.taken && (seen.got == Some(true) || restarted));
                }
                Some(Outcome::NotDelivered(protocol::lnd::Cause::Refused)) => {
                    assert!(seen.offered == 1 && !seen.taken);
                }
                Some(Outcome::NotDelivered(_)) => assert_eq!(seen.offered, 0, "{token}"),
                Some(Outcome::Failed) => assert!(seen.taken),
                Some(Outcome::Unknown(_)) | None => {}
            }
        }
        assert!(self.ends.iter().all(|e| e.peer_state(NodeId(9)).is_none()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn walks(seed in any::<u64>(), steps in 50usize..1500) {
        let mut walk = Walk::new(seed);
        for _ in 0..steps {
            walk.step(false);
        }
        walk.finish();
        prop_assert!(walk.token as usize <= steps && CAPACITY.sends > 0);
    }
}
