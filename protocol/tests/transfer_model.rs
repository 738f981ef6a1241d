//! Random test of transfers. The network answers late, loses answers, drops commands and reports
//! errors. A model records the effect of each command.

mod heap;
mod rma;

use heap::Heap;
use proptest::prelude::*;
use protocol::transfer::{
    Capacity, Event, Failure, Fragment, Lock, Notify, Queue, Quiet, Terms, Ticket, TransferKind,
    Transfers,
};
use protocol::Time;
use rma::*;
use std::collections::BTreeMap;
use wire::ids::NodeId;
use wire::rma::{Command, Direction, LockTarget, NotificationType, Operation};

const CAPACITY: Capacity = Capacity {
    transfers: 24,
    fragments: 60,
    commands: 24,
};
const PEERS: u64 = 3;

/// Facts about a transfer that the model knows.
struct Account {
    ticket: Ticket,
    kind: Option<TransferKind>,
    local: Vec<Fragment>,
    remote: Vec<Fragment>,
    bytes: u64,
    posted: u64,
    /// Number of bytes of commands that were executed without error.
    done: u64,
    failed: bool,
    /// True if a restart of the peer dropped data of the transfer.
    excused: bool,
    outcome: bool,
    quiet: bool,
}

struct World {
    table: Transfers<Heap, usize>,
    nic: Nic,
    now: u64,
    accounts: Vec<Account>,
    paths: BTreeMap<(u16, u8), Path>,
    born: BTreeMap<u64, u64>,
    /// Owners whose report is not finished.
    reporting: Vec<Ticket>,
}

/// Returns the address of byte `at` of a list.
fn place(list: &[Fragment], mut at: u64) -> Option<u64> {
    for f in list {
        if at < f.len {
            return Some(f.address + at);
        }
        at -= f.len;
    }
    None
}

/// Returns the transfer to which a command belongs, according to the command's remote address or
/// compare operand.
fn owner(sent: &Sent) -> Option<usize> {
    match sent.descriptor.op {
        Operation::Get { remote, .. } | Operation::Put { remote, .. } => {
            Some((remote >> 24) as usize)
        }
        Operation::Lock { compare, .. } => usize::try_from(compare).ok(),
        Operation::NotificationPut { value, .. } => Some(value as usize),
        Operation::ImmediatePut { .. } => None,
    }
}

/// Returns true if a command must fail because its local memory is unreadable.
fn is_bad(sent: &Sent) -> bool {
    match sent.descriptor.op {
        Operation::Put { local, .. } => local % 5 == 4,
        _ => false,
    }
}

fn range(sent: &Sent) -> Option<(bool, u64, u64)> {
    match sent.descriptor.op {
        Operation::Get { local, len, .. } => Some((true, local, local + u64::from(len))),
        Operation::Put { local, len, .. } => Some((false, local, local + u64::from(len))),
        _ => None,
    }
}

impl World {
    fn new() -> Self {
        Self {
            table: Transfers::new(&CAPACITY, &LIMITS).unwrap(),
            nic: nic(),
            now: 0,
            accounts: Vec::new(),
            paths: BTreeMap::new(),
            born: BTreeMap::new(),
            reporting: Vec::new(),
        }
    }

    fn submit(&mut self, r: u64) {
        let id = self.accounts.len();
        let terms = Terms {
            class: (r >> 8) as u8 % 2,
            deadline: Time(self.now + 20 + (r >> 10) % 200),
            post_by: None,
            queue: [Queue::Direct, Queue::Deferred][(r >> 12) as usize % 2],
            ..terms((r % PEERS) as u16, 0)
        };
        if (r >> 20) & 7 == 0 {
            let lock = Lock {
                at: [LockTarget::Completer, LockTarget::Responder][(r >> 24) as usize % 2],
                number: (r >> 25) as u32 % 3 * 10,
                compare: id as i32,
                add: 1,
            };
            if let Ok(ticket) = self.table.submit_lock(&terms, lock, id) {
                self.open(ticket, None, Vec::new(), Vec::new());
            }
            return;
        }
        // The address range is small, so that transfers overlap.
        let (mut local, mut remote) = (Vec::new(), Vec::new());
        let mut s = r >> 24;
        let mut bytes = 0;
        for _ in 0..1 + r % 4 {
            let len = 1 + s % 1500;
            let address = 0x1000 + (s >> 3) % 8 * 700;
            local.push(Fragment { address, len });
            bytes += len;
            s = s.wrapping_mul(0x5DEE_CE66D).wrapping_add(11) >> 1;
        }
        let (base, mut left) = ((id as u64) << 24, bytes);
        while left > 0 {
            let len = (1 + s % 1500).min(left);
            let address = base + (bytes - left) * 2;
            remote.push(Fragment { address, len });
            left -= len;
            s = s.wrapping_mul(0x5DEE_CE66D).wrapping_add(11) >> 1;
        }
        let notify = match (r >> 16) & 3 {
            0 => Notify::Nothing,
            1 => Notify::Each,
            2 => Notify::Last,
            _ => Notify::Value {
                class: 1,
                value: id as u64,
            },
        };
        let kind = TransferKind {
            direction: [Direction::Get, Direction::Put][(r >> 18) as usize % 2],
            notify,
            confirm: (r >> 19) & 1 == 1,
        };
        let (l, r) = (local.iter().copied(), remote.iter().copied());
        if let Ok(ticket) = self.table.submit(&terms, kind, l, r, id) {
            self.open(ticket, Some(kind), local, remote);
        }
    }

    fn open(
        &mut self,
        ticket: Ticket,
        kind: Option<TransferKind>,
        local: Vec<Fragment>,
        remote: Vec<Fragment>,
    ) {
        self.accounts.push(Account {
            ticket,
            kind,
            bytes: local.iter().map(|f| f.len).sum(),
            local,
            remote,
            posted: 0,
            done: 0,
            failed: false,
            excused: false,
            outcome: false,
            quiet: false,
        });
    }

    fn post(&mut self, room: usize) {
        self.nic.room = room;
        let posted = self.table.post(&mut self.nic, Time(self.now), 1000);
        let sent = std::mem::take(&mut self.nic.posted);
        assert_eq!(posted.commands, sent.len());
        for s in sent {
            self.posted(s);
        }
    }

    fn posted(&mut self, sent: Sent) {
        let node = sent.descriptor.node.0;
        if let Some(a) = owner(&sent).map(|id| &mut self.accounts[id]) {
            assert!(
                !a.outcome,
                "posted a command of a finished transfer: {sent:?}"
            );
            if let Operation::Get {
                local, remote, len, ..
            }
            | Operation::Put {
                local, remote, len, ..
            } = sent.descriptor.op
            {
                for i in 0..u64::from(len) {
                    assert_eq!(place(&a.local, a.posted + i), Some(local + i));
                    assert_eq!(place(&a.remote, a.posted + i), Some(remote + i));
                }
                a.posted += u64::from(len);
                let last = a.posted == a.bytes;
                let kind = a.kind.unwrap();
                let notified = kind.notify == Notify::Each || kind.notify == Notify::Last && last;
                let n = sent.descriptor.notify;
                assert_eq!(notified, n.responder || n.requester && n.completer);
                assert!(kind.notify != Notify::Last || !last || a.done + u64::from(len) == a.bytes);
            } else if let Operation::NotificationPut { .. } = sent.descriptor.op {
                assert_eq!(
                    a.done, a.bytes,
                    "the peer was notified before all data were transferred"
                );
            }
        }
        // No other command in flight has the same notification, or writes to the same memory.
        if let Some((get, start, end)) = range(&sent) {
            let others = self.paths.iter().filter(|((n, _), _)| *n == node);
            for other in others.flat_map(|(_, p)| p.pending()) {
                if let Some((g, s, e)) = range(other) {
                    let apart = g != get || e <= start || end <= s;
                    assert!(apart, "{other:?} overlaps with {sent:?}");
                }
            }
        }
        self.born.insert(sent.number, self.now);
        let key = (node, sent.page.traffic_class);
        let path = self.paths.entry(key).or_default();
        path.requester.push_back(sent);
    }

    /// Lets a unit execute a command. The notification may be lost.
    fn work(&mut self, r: u64, lose: bool, fail: bool) {
        let key = ((r % PEERS) as u16, (r >> 8) as u8 % 2);
        let Some(path) = self.paths.get_mut(&key) else {
            return;
        };
        let Act::Did(sent) = path.step((r >> 9) as usize % 3) else {
            return;
        };
        let put = matches!(sent.descriptor.op, Operation::Put { .. });
        let error = match (put, fail) {
            (true, _) => u8::from(is_bad(&sent)),
            (false, true) => 2,
            (false, false) => 0,
        };
        if let Some(a) = owner(&sent).map(|id| &mut self.accounts[id]) {
            a.failed |= error != 0;
            if let Operation::Get { len, .. } | Operation::Put { len, .. } = sent.descriptor.op {
                a.done += u64::from(if error == 0 { len } else { 0 });
            } else {
                a.done = 1;
            }
        }
        if !lose {
            let n = answer(&sent, error).unwrap();
            // The notification of a dropped command belongs to no transfer.
            self.table.process_notification(&n);
        }
    }

    /// Drops all commands in flight to a peer.
    fn restart(&mut self, node: u16) {
        for ((n, _), path) in &mut self.paths {
            if *n == node {
                for sent in path.pending() {
                    if let Some(id) = owner(sent) {
                        self.accounts[id].excused = true;
                    }
                }
                *path = Path::default();
            }
        }
    }

    fn advance(&mut self, by: u64) {
        self.now += by;
        // Every command is in flight for less than `absorb`.
        let (born, now) = (&self.born, self.now);
        let young = |s: &Sent| born[&s.number] + LIMITS.absorb > now;
        for path in self.paths.values_mut() {
            path.requester.retain(young);
            path.responder.retain(young);
            path.completer.retain(young);
        }
        while self.table.expire(Time(self.now), 1) {}
    }

    fn forge(&mut self, r: u64) {
        let mut n = answer(
            &Sent {
                number: 0,
                page: Default::default(),
                descriptor: wire::rma::Descriptor {
                    node: NodeId((r % PEERS) as u16),
                    vpid: vpid(7),
                    notify: Default::default(),
                    modifiers: Default::default(),
                    op: Operation::Put {
                        qw: false,
                        len: 8,
                        local: 0x1000 + (r >> 8) % 8 * 700,
                        remote: 0,
                    },
                },
            },
            (r >> 16) as u8 & 4,
        )
        .unwrap();
        (n.kind, n.command) = [
            (NotificationType::Completer, Command::BytePut),
            (NotificationType::Completer, Command::NotificationPut),
            (NotificationType::Responder, Command::ByteGet),
            (NotificationType::Responder, Command::Lock),
        ][(r >> 20) as usize % 4];
        assert!(!self.table.process_notification(&n), "{n:?}");
    }

    fn events(&mut self, queue: Queue, most: usize, at_once: bool) {
        for _ in 0..most {
            let Some(e) = self.table.next_event(queue) else {
                return;
            };
            self.event(&e);
            if e.quiet.is_some() {
                continue;
            }
            if at_once {
                self.table.report_done(e.ticket);
            } else {
                self.reporting.push(e.ticket);
            }
        }
    }

    fn event(&mut self, e: &Event<usize>) {
        assert!(
            !self.reporting.contains(&e.ticket),
            "two reports to one owner at a time"
        );
        let a = &mut self.accounts[e.token];
        assert_eq!(a.ticket, e.ticket);
        assert!(!a.quiet, "a report after the last one");
        if let Some(outcome) = e.outcome {
            assert!(!a.outcome, "two outcomes");
            a.outcome = true;
            match outcome {
                Ok(done) => {
                    assert_eq!(done.bytes, a.bytes);
                    let all = a.kind.map_or(1, |_| a.bytes);
                    assert_eq!(a.done, all, "success too early");
                    assert!(!a.failed);
                }
                Err(Failure::Fault(_)) => {
                    // The error belongs to a data command, or to the lock operation that follows
                    // the data.
                    let confirms = a.kind.is_some_and(|w| w.confirm);
                    assert!(a.failed || confirms, "wrong error");
                }
                Err(_) => {}
            }
        }
        if let Some(quiet) = e.quiet {
            assert!(a.outcome, "quiet before the outcome");
            a.quiet = true;
            let pending = self.paths.values().flat_map(Path::pending);
            // A notification PUT to the peer does not access local memory.
            let tells = |s: &Sent| matches!(s.descriptor.op, Operation::NotificationPut { .. });
            let mine = pending.filter(|s| owner(s) == Some(e.token) && !tells(s));
            let mine = mine.count();
            assert!(
                mine == 0 || quiet == Quiet::Closed,
                "quiet: {mine} commands are in flight"
            );
        }
    }

    fn finish(mut self) {
        for ticket in std::mem::take(&mut self.reporting) {
            self.table.report_done(ticket);
        }
        for _ in 0..3 {
            for r in 0..2000 {
                self.post(usize::MAX);
                for unit in 0..3 {
                    let one = (r % PEERS) | ((r / PEERS % 2) << 8) | (unit << 9);
                    self.work(one, false, false);
                }
                self.table.check().unwrap();
            }
            self.advance(LIMITS.absorb / 2);
        }
        self.advance(LIMITS.absorb);
        for queue in [Queue::Direct, Queue::Deferred] {
            self.events(queue, usize::MAX, true);
        }
        assert!(self.table.is_empty() && self.table.in_flight() == 0);
        assert!(self.table.next_deadline().is_none());
        assert!(self.accounts.iter().all(|a| a.outcome && a.quiet));
        let c = self.table.counters();
        let ended = c.done + c.faults + c.timed_out + c.cancelled + c.peer_lost + c.down;
        assert_eq!(ended, c.submitted);
    }
}

fn operation() -> impl Strategy<Value = (u8, u64)> {
    (0u8..32, any::<u64>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]
    #[test]
    fn outcomes_are_true_and_memory_is_safe(ops in prop::collection::vec(operation(), 0..300)) {
        let mut w = World::new();
        for (op, r) in ops {
            match op {
                0..=5 => w.submit(r),
                6..=9 => w.post((r % 5) as usize),
                10..=20 => w.work(r, false, false),
                21 => w.work(r, true, false),
                22 => w.work(r, false, true),
                23 => w.advance(r % 40),
                24 if r % 4 == 0 => w.advance(LIMITS.absorb),
                25 if r % 4 == 0 => w.restart((r >> 8) as u16 % 3),
                26 => w.forge(r),
                27 if !w.accounts.is_empty() => {
                    let a = &w.accounts[r as usize % w.accounts.len()];
                    let (ticket, ended) = (a.ticket, a.outcome);
                    let cancelled = w.table.cancel(ticket, Time(w.now));
                    prop_assert!(!(cancelled && ended));
                }
                28 if r % 4 == 0 => {
                    let mark = w.table.mark();
                    let node = NodeId((r >> 8) as u16 % 3);
                    while w.table.abort(node, mark, Time(w.now), 2) {}
                }
                29 => w.events(Queue::Direct, (r % 4) as usize, true),
                30 => w.events(Queue::Deferred, (r % 4) as usize, (r >> 8) & 1 == 0),
                31 => {
                    for ticket in std::mem::take(&mut w.reporting) {
                        w.table.report_done(ticket);
                    }
                }
                _ => {}
            }
            w.table.check().map_err(TestCaseError::fail)?;
        }
        w.finish();
    }
}
