//! Tests of the negotiation of direct sockets: single rules, and random walks with loss and delay
//! of messages. The invariant is that both ends finally use the same path, or that the server knows
//! that the connection is dead.

use protocol::ds::{
    decline, Accepted, Client, ClientMessage, Fallback, OpenLimits, Opening, Pending, Server,
    SilentNodes,
};
use protocol::{Memory, Time};
use rand_like::Walk;
use std::collections::HashSet;
use wire::ds::{Answer, Answered, ConnId, Connect, Decline, Endpoint, Kind, Tuple};
use wire::ids::NodeId;

struct Heap;

impl Memory for Heap {
    type Array<T> = Vec<T>;
    type Error = std::convert::Infallible;

    fn array<T>(len: usize, make: impl FnMut(usize) -> T) -> Result<Vec<T>, Self::Error> {
        Ok((0..len).map(make).collect())
    }
}

mod rand_like {
    /// Pseudo-random numbers from a seed.
    pub struct Walk(u64);

    impl Walk {
        pub fn new(seed: u64) -> Self {
            Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
        }

        pub fn below(&mut self, n: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 8) % n
        }
    }
}

const LIMITS: OpenLimits = OpenLimits {
    ask: 10,
    asks: 3,
    accept: 100,
    refresh: 20,
    keep: 60,
    confirm: 200,
    silent: 500,
    late: 400,
};
const NODE: NodeId = NodeId(3);

fn connect(cookie: u32, port: u16) -> Connect {
    Connect {
        cookie,
        client: Endpoint {
            id: ConnId::new(cookie & 0xff, 1),
            ..Endpoint::default()
        },
        tuple: Tuple {
            client: [1; 16],
            server: [2; 16],
            client_port: port,
            server_port: 80,
        },
    }
}

fn answer(to: &Connect, answer: Answer) -> Answered {
    Answered {
        cookie: to.cookie,
        to: to.client.id,
        from: ConnId::new(9, 9),
        answer,
    }
}

fn server_end() -> Endpoint {
    Endpoint {
        id: ConnId::new(9, 9),
        ..Endpoint::default()
    }
}

fn pending() -> Pending<Heap> {
    match Pending::new(8, 3, 0x5eed) {
        Ok(p) => p,
        Err(e) => match e {},
    }
}

#[test]
fn the_usual_course() {
    let c = connect(7, 1000);
    let mut client = Client::new(c, Time(0));
    assert!(!client.may_connect());
    assert_eq!(
        client.next(&LIMITS, Time(0)),
        Some(ClientMessage::Connect(c))
    );
    assert_eq!(client.next(&LIMITS, Time(0)), None);
    let mut waiting = pending();
    waiting.ask(NODE, &c, &LIMITS, Time(1)).unwrap();
    assert!(client.receive(&answer(&c, Answer::Offer), &LIMITS, Time(2)));
    assert!(client.may_connect());
    client.tcp_up(&LIMITS, Time(5));
    assert_eq!(client.state(), Opening::Waiting);
    let asked = waiting.accept(NODE, &c.tuple, &LIMITS, Time(6)).unwrap();
    assert!(waiting.is_empty());
    let mut server = Server::new(&asked, server_end(), &LIMITS, Time(6));
    let accept = server.next(&LIMITS, Time(6)).unwrap();
    assert_eq!(server.next(&LIMITS, Time(6)), None);
    assert!(client.receive(&accept, &LIMITS, Time(7)));
    assert_eq!(client.server(), Some(server_end()));
    let Some(ClientMessage::Answer(confirm)) = client.next(&LIMITS, Time(7)) else {
        panic!("the client sends no message");
    };
    assert!(server.receive(&confirm));
    assert_eq!(server.state(), Accepted::Direct);
    assert_eq!((client.deadline(), server.deadline()), (None, None));
}

#[test]
fn who_could_not_ask_says_nothing_of_the_peer() {
    let mut client = Client::new(connect(7, 1000), Time(0));
    while client.state() == Opening::Asking {
        let now = client.deadline().unwrap();
        while let Some(says) = client.next(&LIMITS, now) {
            assert!(matches!(says, ClientMessage::Connect(_)), "{says:?}");
            client.not_sent();
        }
    }
    assert_eq!(client.fallback(), Some(Fallback::NoSlot));
    // If only some questions were sent, the client cancels them, for the same reason.
    let mut client = Client::new(connect(7, 1000), Time(0));
    assert!(client.next(&LIMITS, Time(0)).is_some());
    let now = client.deadline().unwrap();
    assert!(client.next(&LIMITS, now).is_some());
    client.not_sent();
    client.give_up(Fallback::Silent);
    assert_eq!(client.fallback(), Some(Fallback::NoSlot));
    assert!(matches!(
        client.next(&LIMITS, now),
        Some(ClientMessage::Cancel(_))
    ));
}

#[test]
fn who_gets_no_answer_uses_tcp_and_does_not_ask_for_some_time() {
    let c = connect(7, 1000);
    let mut client = Client::new(c, Time(0));
    let mut sent = Vec::new();
    let mut now = Time(0);
    while client.state() == Opening::Asking {
        now = client.deadline().unwrap();
        sent.extend(client.next(&LIMITS, now));
    }
    assert_eq!(now, Time(u64::from(LIMITS.asks) * LIMITS.ask));
    assert_eq!(client.fallback(), Some(Fallback::Silent));
    // The last message cancels the request at a server that received an earlier message.
    assert_eq!(sent.len(), 4);
    assert_eq!(sent[3], ClientMessage::Cancel(c));
    let mut silent = match SilentNodes::<Heap>::new(2) {
        Ok(s) => s,
        Err(e) => match e {},
    };
    silent.silent(NODE, now);
    assert!(silent.is_silent(NODE, LIMITS.silent, Time(now.0 + LIMITS.silent - 1)));
    assert!(!silent.is_silent(NODE, LIMITS.silent, Time(now.0 + LIMITS.silent)));
    silent.silent(NODE, now);
    silent.remove(NODE);
    assert!(!silent.is_silent(NODE, LIMITS.silent, now));
    for n in 0..3 {
        silent.silent(NodeId(n), now);
    }
    let known: Vec<bool> = (0..3)
        .map(|n| silent.is_silent(NodeId(n), LIMITS.silent, now))
        .collect();
    assert_eq!(known, [false, true, true]);
}

#[test]
fn who_is_declined_uses_tcp_at_once_for_that_reason() {
    let reasons: HashSet<_> = Decline::ALL
        .into_iter()
        .map(|why| {
            let c = connect(7, 1000);
            let mut client = Client::new(c, Time(0));
            client.next(&LIMITS, Time(0));
            let answer = decline(c.cookie, c.client.id, why);
            assert!(client.receive(&answer, &LIMITS, Time(1)));
            assert_eq!(client.state(), Opening::Tcp);
            // No other server waits for this client, so no message is due.
            assert_eq!(client.next(&LIMITS, Time(1)), None);
            assert!(client.is_alone());
            client.fallback().unwrap()
        })
        .collect();
    assert_eq!(reasons.len(), Decline::ALL.len());
    let codes: HashSet<u8> = Fallback::ALL.into_iter().map(Fallback::code).collect();
    assert_eq!(codes, (1..=20).collect());
}

#[test]
fn a_question_before_the_declined_one_may_have_been_taken() {
    let c = connect(7, 1000);
    let mut client = Client::new(c, Time(0));
    client.next(&LIMITS, Time(0));
    client.next(&LIMITS, Time(LIMITS.ask));
    let answer = decline(c.cookie, c.client.id, Decline::Off);
    assert!(client.receive(&answer, &LIMITS, Time(LIMITS.ask)));
    assert!(!client.is_alone());
}

#[test]
fn who_is_declined_in_another_version_knows_why() {
    let c = connect(7, 1000);
    let mut client = Client::new(c, Time(0));
    client.next(&LIMITS, Time(0));
    let (mut words, n) = decline(c.cookie, c.client.id, Decline::Off).words();
    words[0] = (words[0] & !0xff) | u64::from(wire::ds::VERSION + 1);
    let answer = Answered::parse(Kind::Decline, 8 * n as u16, |i| words[i]).unwrap();
    assert!(client.receive(&answer, &LIMITS, Time(1)));
    assert_eq!(client.fallback(), Some(Fallback::Version));
}

#[test]
fn an_acceptance_that_comes_too_late_is_answered_with_tcp() {
    let c = connect(7, 1000);
    let mut client = Client::new(c, Time(0));
    client.next(&LIMITS, Time(0));
    client.receive(&answer(&c, Answer::Offer), &LIMITS, Time(1));
    client.tcp_up(&LIMITS, Time(2));
    let mut now = Time(2);
    let mut repeated = 0;
    while client.state() == Opening::Waiting {
        now = client.deadline().unwrap();
        if let Some(ClientMessage::Connect(_)) = client.next(&LIMITS, now) {
            repeated += 1;
        }
    }
    assert_eq!(now, Time(2 + LIMITS.accept));
    assert_eq!(client.fallback(), Some(Fallback::NotAccepted));
    assert_eq!(repeated, 5);
    let accept = answer(&c, Answer::Accept(server_end()));
    for _ in 0..2 {
        client.receive(&accept, &LIMITS, now);
        let Some(ClientMessage::Answer(answer)) = client.next(&LIMITS, now) else {
            panic!("the client sends no message");
        };
        assert_eq!(
            (answer.answer, answer.to),
            (Answer::Fallback, server_end().id)
        );
    }
    // A client in state `Direct` cannot change to TCP.
    let mut client = Client::new(c, Time(0));
    client.next(&LIMITS, Time(0));
    client.receive(&answer(&c, Answer::Offer), &LIMITS, Time(1));
    // The handshake of TCP is not complete, so this answer belongs to an older connection of the
    // client.
    client.receive(&accept, &LIMITS, Time(1));
    assert_eq!(client.state(), Opening::Offered);
    client.tcp_up(&LIMITS, Time(1));
    client.receive(&accept, &LIMITS, Time(1));
    assert_eq!(client.state(), Opening::Direct);
    assert!(!client.give_up(Fallback::TcpData));
    assert_eq!(client.state(), Opening::Direct);
}

#[test]
fn clients_of_a_node_don_t_take_each_other_s_place() {
    // With every secret, ports that differ in any bit have separate entries.
    for secret in [0, u64::MAX, 0x5555_5555_5555_5555, 0xffff_ffff] {
        let mut waiting = Pending::<Heap>::new(64, 64, secret).unwrap();
        let ports: Vec<u16> = (0..16).map(|bit| 1 << bit).chain([0, u16::MAX]).collect();
        for port in &ports {
            let c = connect(7, *port);
            assert_eq!(waiting.ask(NODE, &c, &LIMITS, Time(0)), Ok(true));
        }
        assert_eq!(waiting.len(), ports.len());
        for port in &ports {
            let c = connect(7, *port);
            let asked = waiting.accept(NODE, &c.tuple, &LIMITS, Time(1));
            assert_eq!(asked.map(|a| a.connect), Some(c), "{port} of {secret:#x}");
        }
    }
}

#[test]
fn answers_to_somebody_else_are_not_heard() {
    let c = connect(7, 1000);
    let mut client = Client::new(c, Time(0));
    client.next(&LIMITS, Time(0));
    let right = answer(&c, Answer::Offer);
    for wrong in [
        Answered { cookie: 8, ..right },
        Answered {
            to: ConnId::new(8, 1),
            ..right
        },
        answer(&c, Answer::Confirm),
        // This answer arrives before the offer.
        answer(&c, Answer::Accept(server_end())),
    ] {
        assert!(!client.receive(&wrong, &LIMITS, Time(1)));
        assert_eq!(client.state(), Opening::Asking);
    }
    let mut waiting = pending();
    waiting.ask(NODE, &c, &LIMITS, Time(0)).unwrap();
    let asked = waiting.accept(NODE, &c.tuple, &LIMITS, Time(0)).unwrap();
    let mut server = Server::new(&asked, server_end(), &LIMITS, Time(0));
    let right = Answered {
        cookie: 7,
        to: server_end().id,
        from: c.client.id,
        answer: Answer::Confirm,
    };
    for wrong in [
        Answered { cookie: 8, ..right },
        Answered {
            to: ConnId::new(8, 1),
            ..right
        },
        Answered {
            from: ConnId::new(8, 1),
            ..right
        },
        Answered {
            answer: Answer::Offer,
            ..right
        },
    ] {
        assert!(!server.receive(&wrong));
    }
    assert_eq!(server.state(), Accepted::Waiting);
    // Data on the TCP connection have the same effect as the client's answer.
    let mut other = Server::new(&asked, server_end(), &LIMITS, Time(0));
    assert!(other.tcp_received());
    assert_eq!(other.state(), Accepted::Tcp(Fallback::TcpData));
    assert!(!other.receive(&right));
    assert!(server.receive(&right));
    assert!(!server.tcp_received());
}

#[test]
fn who_takes_it_for_another_connection_is_not_used() {
    let other = Endpoint {
        id: ConnId::new(8, 8),
        ..Endpoint::default()
    };
    let c = connect(7, 1000);
    let mut client = Client::new(c, Time(0));
    client.next(&LIMITS, Time(0));
    // An answer before the offer belongs to an older connection with the same addresses.
    let accepted = |client: &mut Client, end| {
        client.receive(&answer(&c, Answer::Accept(end)), &LIMITS, Time(1));
        match client.next(&LIMITS, Time(1)) {
            Some(ClientMessage::Answer(answer)) => Some((answer.to, answer.answer)),
            _ => None,
        }
    };
    assert_eq!(accepted(&mut client, other), None);
    client.receive(&answer(&c, Answer::Offer), &LIMITS, Time(1));
    client.tcp_up(&LIMITS, Time(1));
    let confirm = Some((server_end().id, Answer::Confirm));
    let fallback = Some((other.id, Answer::Fallback));
    assert_eq!(accepted(&mut client, server_end()), confirm);
    assert_eq!(client.server(), Some(server_end()));
    assert_eq!(accepted(&mut client, other), fallback);
    assert_eq!(accepted(&mut client, server_end()), confirm);
    assert_eq!(client.server(), Some(server_end()));
    // A client that uses TCP answers every server with `Fallback`.
    let mut client = Client::new(c, Time(0));
    client.next(&LIMITS, Time(0));
    client.give_up(Fallback::TcpOnly);
    client.next(&LIMITS, Time(0));
    assert_eq!(accepted(&mut client, other), fallback);
    let late = Some((server_end().id, Answer::Fallback));
    assert_eq!(accepted(&mut client, server_end()), late);
}

#[test]
fn those_that_wait_are_bounded_and_forgotten() {
    let mut waiting = pending();
    for port in 0..3 {
        waiting
            .ask(NODE, &connect(1, port), &LIMITS, Time(0))
            .unwrap();
    }
    let busy = Err(Decline::Busy);
    assert_eq!(waiting.ask(NODE, &connect(1, 9), &LIMITS, Time(0)), busy);
    // A repeated request needs no new entry, and refreshes the existing entry.
    waiting
        .ask(NODE, &connect(1, 0), &LIMITS, Time(30))
        .unwrap();
    assert_eq!(waiting.len(), 3);
    // The first node has its maximum number of entries. Other nodes can use the table until it is
    // full.
    for node in 10..15 {
        let taken = waiting.ask(NodeId(node), &connect(1, 0), &LIMITS, Time(30));
        assert!(taken.is_ok());
    }
    let other = waiting.ask(NodeId(16), &connect(1, 0), &LIMITS, Time(30));
    assert_eq!(other, busy);
    // A request of one node does not match a connection of another node.
    let tuple = connect(1, 1).tuple;
    assert!(waiting
        .accept(NodeId(10), &tuple, &LIMITS, Time(40))
        .is_none());
    assert!(waiting.accept(NODE, &tuple, &LIMITS, Time(40)).is_some());
    assert!(waiting.accept(NODE, &tuple, &LIMITS, Time(40)).is_none());
    // Only the client that made a request can cancel it.
    waiting.cancel(NODE, &connect(2, 2));
    assert_eq!(waiting.len(), 7);
    waiting.cancel(NODE, &connect(1, 2));
    assert_eq!(waiting.len(), 6);
    waiting.expire(&LIMITS, Time(30 + LIMITS.keep));
    assert!(waiting.is_empty());
    let again = waiting.ask(NODE, &connect(1, 5), &LIMITS, Time(100));
    assert!(again.is_ok());
}

#[test]
fn a_client_whose_connection_is_being_taken_waits_for_no_other_one() {
    let mut waiting = pending();
    let request = connect(1, 5);
    let tuple = request.tuple;
    assert_eq!(waiting.ask(NODE, &request, &LIMITS, Time(0)), Ok(true));
    let asked = waiting
        .begin_accept(NODE, &tuple, &LIMITS, Time(1))
        .unwrap();
    // While the connection is created, which may take long, repeated requests belong to it.
    let later = Time(1 + 3 * LIMITS.keep);
    assert_eq!(waiting.ask(NODE, &request, &LIMITS, Time(2)), Ok(false));
    assert_eq!(waiting.ask(NODE, &request, &LIMITS, later), Ok(false));
    waiting.cancel(NODE, &request);
    assert!(waiting.accept(NODE, &tuple, &LIMITS, later).is_none());
    assert!(waiting.begin_accept(NODE, &tuple, &LIMITS, later).is_none());
    assert_eq!(waiting.len(), 1);
    waiting.end_accept(&asked);
    assert!(waiting.is_empty());
    // A later connection with the same addresses has a separate request, even if the request
    // arrives before the first connection is created.
    assert_eq!(waiting.ask(NODE, &request, &LIMITS, later), Ok(true));
    let asked = waiting.begin_accept(NODE, &tuple, &LIMITS, later).unwrap();
    assert_eq!(waiting.ask(NODE, &connect(2, 5), &LIMITS, later), Ok(true));
    waiting.end_accept(&asked);
    assert_eq!(waiting.len(), 1);
    let next = waiting.begin_accept(NODE, &tuple, &LIMITS, later).unwrap();
    assert_eq!(next.connect.cookie, 2);
}

/// Message in flight.
enum Mail {
    ToServer(ClientMessage),
    ToClient(Answered),
}

#[derive(Default, Debug)]
struct Seen {
    direct: u32,
    tcp: u32,
    dead: u32,
}

/// Simulates one connection. Messages are lost, duplicated and delayed, TCP is slow, and the
/// server's program accepts late. Returns a description of the violated invariant as an error.
fn walk(seed: u64, seen: &mut Seen) -> Result<(), String> {
    let mut r = Walk::new(seed);
    let loss = [0, 10, 40][r.below(3) as usize];
    let slowest = [2, 30, 150][r.below(3) as usize];
    let listens = r.below(8) > 0;
    let c = connect(r.below(1 << 20) as u32, 1000);
    let mut client = Client::new(c, Time(0));
    let mut waiting = pending();
    let mut server: Option<Server> = None;
    let mut accepted_tcp = false;
    let mut mail: Vec<(u64, Mail)> = Vec::new();
    let mut tcp_at = None;
    let tcp_time = r.below(60);
    let accept_time = r.below(250);
    let talks_first = r.below(10) == 0;
    for now in 0..2_000u64 {
        let time = Time(now);
        let mut out = Vec::new();
        while let Some(i) = mail.iter().position(|(at, _)| *at <= now) {
            match mail.remove(i).1 {
                Mail::ToServer(ClientMessage::Connect(connect)) => {
                    let result = if listens {
                        waiting.ask(NODE, &connect, &LIMITS, time)
                    } else {
                        Err(Decline::NoListener)
                    };
                    out.push(Mail::ToClient(match result {
                        Ok(_) => answer(&connect, Answer::Offer),
                        Err(why) => decline(connect.cookie, connect.client.id, why),
                    }));
                }
                Mail::ToServer(ClientMessage::Cancel(connect)) => waiting.cancel(NODE, &connect),
                Mail::ToServer(ClientMessage::Answer(answer)) => {
                    if let Some(server) = &mut server {
                        server.receive(&answer);
                    }
                }
                Mail::ToClient(answer) => {
                    client.receive(&answer, &LIMITS, time);
                }
            }
        }
        // The client's decision is final.
        let before = client.state();
        while let Some(says) = client.next(&LIMITS, time) {
            out.push(Mail::ToServer(says));
        }
        if before == Opening::Direct && client.state() != before {
            return Err("the client changed its decision".to_owned());
        }
        if client.may_connect() && tcp_at.is_none() {
            tcp_at = Some(now + tcp_time);
        }
        if tcp_at == Some(now) {
            client.tcp_up(&LIMITS, time);
        }
        // The server's program accepts the connection.
        if tcp_at.is_some_and(|at| now == at + accept_time) && listens {
            match waiting.accept(NODE, &c.tuple, &LIMITS, time) {
                Some(asked) => server = Some(Server::new(&asked, server_end(), &LIMITS, time)),
                None => {
                    accepted_tcp = true;
                    if talks_first {
                        client.give_up(Fallback::TcpData);
                    }
                }
            }
        }
        if let Some(server) = &mut server {
            out.extend(server.next(&LIMITS, time).map(Mail::ToClient));
        }
        for m in out {
            let copies = match r.below(100) {
                n if n < loss => 0,
                n if n > 95 => 2,
                _ => 1,
            };
            for _ in 0..copies {
                let copy = match &m {
                    Mail::ToServer(s) => Mail::ToServer(*s),
                    Mail::ToClient(s) => Mail::ToClient(*s),
                };
                mail.push((now + 1 + r.below(slowest), copy));
            }
        }
    }
    let direct = client.state() == Opening::Direct;
    if !direct && client.state() != Opening::Tcp {
        return Err(format!("the client is {}", client.state()));
    }
    match server.map(|s| s.state()) {
        Some(Accepted::Direct) if direct => seen.direct += 1,
        Some(Accepted::Tcp(_)) if !direct => seen.tcp += 1,
        Some(Accepted::Dead) => seen.dead += 1,
        None if !direct => seen.tcp += 1,
        other => return Err(format!("direct: {direct}, the server: {other:?}")),
    }
    if accepted_tcp && direct {
        return Err("the server's program uses TCP, but the client does not".to_owned());
    }
    Ok(())
}

#[test]
fn both_ends_agree() {
    let full = std::env::var("FULL").is_ok_and(|v| v == "1");
    let seeds = if full { 100_000 } else { 2_000 };
    let mut seen = Seen::default();
    for seed in 1..=seeds {
        if let Err(e) = walk(seed, &mut seen) {
            panic!("seed {seed}: {e}");
        }
    }
    let part = |n: u32, of: u32| n > seeds as u32 / of;
    assert!(part(seen.direct, 10) && part(seen.tcp, 10), "{seen:?}");
    // Some connections lost all answers.
    assert!(seen.dead > 0 && !part(seen.dead, 10), "{seen:?}");
}
