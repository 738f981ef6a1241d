//! Transfers that nodes submit.

use super::{sink, source, Rig, Transfer, BLOCK, SINKS_EACH, SOURCE, SOURCE_BYTES, TIMEOUTS};
use crate::port::Port;
use anyhow::Result;
use protocol::eth::rendezvous::Buffer;
use protocol::transfer::{Fragment, Lock, Notify, Queue, SubmitError, Terms, TransferKind};
use protocol::Time;
use rand::Rng;
use std::rc::Rc;
use wire::eth::VPID;
use wire::rma::{Direction, LockTarget};

/// Returns the contents of a node's source memory at these fragments.
fn offered(node: usize, list: &[Fragment]) -> Vec<u8> {
    let from = source(node);
    let part = |f: &Fragment| {
        let at = (f.address - SOURCE) as usize;
        &from[at..at + f.len as usize]
    };
    list.iter().flat_map(part).copied().collect()
}

impl Rig {
    /// Divides `bytes` bytes from `address` on into fragments that are not contiguous.
    fn cut(&mut self, ranges: &[(u64, u64)]) -> Vec<Fragment> {
        let mut all = Vec::new();
        for &(address, len) in ranges {
            let (mut at, end) = (address, address + len);
            while at < end {
                let len = self.rng.random_range(1..=700).min(end - at);
                all.push(Fragment { address: at, len });
                // Leaves some bytes out in between.
                at += len + self.rng.random_range(0..20);
            }
        }
        all
    }

    pub(super) fn submit(&mut self, n: usize, again: Option<usize>) -> Result<()> {
        if !self.nodes[n].is_up() {
            return Ok(());
        }
        let count = self.nodes.len();
        let peer = match again {
            Some(id) => self.transfers[id].peer,
            None => (n + self.rng.random_range(0..count)) % count,
        };
        let id = self.transfers.len() as u64;
        let now = self.fabric.now();
        let demanded = self.healthy[n] && self.healthy[peer];
        let wait = self
            .rng
            .random_range(TIMEOUTS[usize::from(demanded)].clone());
        let terms = Terms {
            node: Port::node_id(peer),
            vpid: VPID,
            class: self.rng.random_range(0..4),
            translate: false,
            deadline: Time(now + wait),
            post_by: None,
            queue: [Queue::Direct, Queue::Deferred][self.rng.random_range(0..2)],
        };
        let mut t = Transfer {
            node: n,
            peer,
            ticket: None,
            kind: None,
            local: Vec::new(),
            remote: Vec::new(),
            data: Vec::new(),
            blocks: Vec::new(),
            sinks: Vec::new(),
            deadline: now + wait,
            since: now,
            demanded,
            outcome: false,
            quiet: false,
        };
        let taken = if again.is_none() && self.rng.random_bool(0.1) {
            let lock = Lock {
                at: [LockTarget::Completer, LockTarget::Responder][self.rng.random_range(0..2)],
                number: self.rng.random_range(0..4),
                compare: i32::MAX,
                add: 1,
            };
            self.nodes[n].lock(&mut self.fabric, &terms, lock, id)
        } else {
            let prepared = match again {
                Some(id) => self.repeat(&mut t, id),
                None => self.prepare(&mut t)?,
            };
            if !prepared {
                return Ok(());
            }
            let kind = t.kind.unwrap_or(TransferKind {
                direction: Direction::Get,
                notify: Notify::Nothing,
                confirm: false,
            });
            let lists = [&t.local[..], &t.remote[..]];
            self.nodes[n].submit(&mut self.fabric, &terms, kind, lists, id)
        };
        self.record_trace(|| {
            let bytes = t.data.len();
            format!(
                "node {n}: {id} of {bytes} bytes with node {peer}: {:?}, {taken:?}",
                t.kind
            )
        });
        match taken {
            Ok(ticket) => {
                t.ticket = Some(ticket);
                self.summary.taken += 1;
                self.summary.demanded += u64::from(t.demanded);
            }
            Err(SubmitError::Invalid) => anyhow::bail!("a transfer is rejected as invalid"),
            Err(_) => {
                self.summary.refused += 1;
                (t.outcome, t.quiet) = (true, true);
                // The peer never got a command for this memory.
                self.free(&mut t, 0)?;
            }
        }
        self.transfers.push(t);
        Ok(())
    }

    /// Gives a transfer the memory of an earlier GET, which may be late, and other bytes of the
    /// peer. Returns false if the earlier GET is quiet.
    fn repeat(&mut self, t: &mut Transfer, id: usize) -> bool {
        let old = &self.transfers[id];
        if old.quiet {
            return false;
        }
        t.kind = old.kind;
        t.local = old.local.clone();
        t.blocks = old.blocks.clone();
        t.remote = old.remote.clone();
        let last = t.remote.iter().map(|f| f.address + f.len).max();
        let room = SOURCE + SOURCE_BYTES - last.unwrap_or(SOURCE);
        let by = self.rng.random_range(0..=room.min(500));
        for f in &mut t.remote {
            f.address += by;
        }
        t.data = offered(t.peer, &t.remote);
        true
    }

    /// Assigns memory on both sides to a transfer. Returns false if no memory is free.
    fn prepare(&mut self, t: &mut Transfer) -> Result<bool> {
        let get = self.rng.random_bool(0.5);
        let mut ranges = Vec::new();
        for _ in 0..self.rng.random_range(1..=3) {
            let Some(block) = self.nodes[t.node].block() else {
                return Ok(false);
            };
            self.check_poison(t.node, block.address(), BLOCK)?;
            let skip = self.rng.random_range(0..500);
            ranges.push((
                block.address() + skip,
                self.rng.random_range(1..BLOCK - skip),
            ));
            t.blocks.push(Rc::new(block));
        }
        t.local = self.cut(&ranges);
        let bytes: u64 = t.local.iter().map(|f| f.len).sum();
        let ranges = match get {
            true => {
                let len = bytes + 2_000;
                let at = SOURCE + self.rng.random_range(0..SOURCE_BYTES - 8 * len / 5 - 4_000);
                vec![(at, 8 * len / 5)]
            }
            false => match self.take_sinks(t, bytes)? {
                Some(ranges) => ranges,
                None => return Ok(false),
            },
        };
        t.remote = self.cut(&ranges);
        trim(&mut t.remote, &mut t.local);
        let bytes: u64 = t.local.iter().map(|f| f.len).sum();
        if get {
            t.data = offered(t.peer, &t.remote);
        } else {
            t.data = vec![0; bytes as usize];
            self.rng.fill(&mut t.data[..]);
            let mut rest = &t.data[..];
            for f in &t.local {
                let (head, tail) = rest.split_at(f.len as usize);
                self.fabric.fill(t.node, f.address, head)?;
                rest = tail;
            }
        }
        let choices = [
            Notify::Nothing,
            Notify::Each,
            Notify::Last,
            Notify::Value { class: 1, value: 5 },
        ];
        t.kind = Some(TransferKind {
            direction: if get { Direction::Get } else { Direction::Put },
            notify: choices[self.rng.random_range(0..4)],
            confirm: !get && self.rng.random_bool(0.8),
        });
        Ok(true)
    }

    /// Reserves sinks at the peer for `bytes` bytes.
    fn take_sinks(&mut self, t: &mut Transfer, bytes: u64) -> Result<Option<Vec<(u64, u64)>>> {
        let now = self.fabric.now();
        let wanted = bytes / BLOCK + 2;
        let mut ranges = Vec::new();
        for i in 0..SINKS_EACH {
            if ranges.len() as u64 == wanted {
                break;
            }
            let (free, dirty) = &mut self.sinks[t.peer][t.node][i as usize];
            if *free <= now && !*dirty {
                *free = u64::MAX;
                t.sinks.push(i);
                ranges.push((sink(t.node, i), BLOCK));
            }
        }
        for (at, len) in &ranges {
            self.check_poison(t.peer, *at, *len)?;
        }
        if (ranges.len() as u64) < wanted {
            for i in std::mem::take(&mut t.sinks) {
                self.sinks[t.peer][t.node][i as usize] = (now, false);
            }
            return Ok(None);
        }
        Ok(Some(ranges))
    }
}

/// Cuts the longer list to the length of the other.
fn trim(a: &mut Vec<Fragment>, b: &mut Vec<Fragment>) {
    let sum = |l: &[Fragment]| l.iter().map(|f| f.len).sum::<u64>();
    let bytes = sum(a).min(sum(b));
    for list in [a, b] {
        let mut left = bytes;
        list.retain_mut(|f| {
            f.len = f.len.min(left);
            left -= f.len;
            f.len > 0
        });
    }
}
