// SPDX-License-Identifier: GPL-2.0-only

//! The commands.

use crate::{pattern, tag, Raw, Receive, HALF_BYTES, VPID};
use extoll_core::{
    dma::DmaWords,
    rma::{NotificationType, NotifySpec, PageOptions, Peer},
};
use kernel::{
    prelude::*,
    str::CString,
    time::{Instant, Monotonic},
};
use wire::ids::{BusAddr, NodeId, Vpid};

/// Longest wait for one answer or completion.
const STEP_MS: i64 = 5000;
/// Gets or puts under way at a time.
const WINDOW: u32 = 16;

#[derive(Clone, Copy)]
enum Kind {
    Velo,
    Get,
    Put,
}

/// What to do.
#[derive(Clone, Copy)]
pub(crate) struct Command {
    kind: Kind,
    node: NodeId,
    count: u32,
    bytes: u32,
}

impl Command {
    /// From `KIND NODE COUNT BYTES`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let kind = match words.next()? {
            "velo" => Kind::Velo,
            "get" => Kind::Get,
            "put" => Kind::Put,
            _ => return None,
        };
        let node = NodeId(words.next()?.parse().ok()?);
        let count: u32 = words.next()?.parse().ok()?;
        let bytes: u32 = words.next()?.parse().ok()?;
        let max = match kind {
            Kind::Velo => 120,
            // A slice of the buffer for each command under way.
            Kind::Get | Kind::Put => HALF_BYTES as u32 / WINDOW,
        };
        let fits = (1..=max).contains(&bytes) && (1..=10_000_000).contains(&count);
        let end = words.next().is_none();
        (fits && end).then_some(Self {
            kind,
            node,
            count,
            bytes,
        })
    }
}

/// What came back.
struct Inbox {
    payload: [u8; 120],
    len: usize,
    tag: Option<(u8, u8)>,
}

impl Raw {
    /// Runs a command; one at a time.
    pub(crate) fn run(&self, command: Command) -> Result<CString> {
        let mut receive = self.receive.lock();
        let result = match command.kind {
            Kind::Velo => self.ping_pong(&mut receive, command),
            Kind::Get => self.transfer(&mut receive, command, false),
            Kind::Put => self.transfer(&mut receive, command, true),
        };
        // What came meanwhile is answered here, then interrupts are on again for the service.
        let mut rounds = 0;
        while (receive.mailbox.rearm() | receive.notifications.rearm()) && rounds < 1000 {
            receive.mailbox.poll(64, |m| {
                let _ = self.answer(m);
            });
            receive.notifications.poll(64, |_| {});
            rounds += 1;
        }
        let (name, passes) = match command.kind {
            Kind::Velo => ("velo", 2),
            Kind::Get => ("get", 1),
            Kind::Put => ("put", 1),
        };
        let ns = result?;
        let Command {
            node, count, bytes, ..
        } = command;
        let per = ns / u64::from(count * passes);
        let rate = u64::from(bytes) * u64::from(count) * 1000 / (ns / 1000).max(1);
        CString::try_from_fmt(fmt!(
            "{name} node {} count {count} bytes {bytes} ns {ns} ns_each {per} kbyte_per_s {rate}\n",
            node.0
        ))
    }

    /// Waits for the answer to the request that carried `seq`.
    fn wait_answer(&self, receive: &mut Receive, mtt: u8, seq: u8) -> Result<Inbox> {
        let began: Instant<Monotonic> = Instant::now();
        loop {
            let mut inbox = Inbox {
                payload: [0; 120],
                len: 0,
                tag: None,
            };
            receive.mailbox.poll(1, |m| {
                if !self.answer(m) {
                    inbox.len = m.copy_to(&mut inbox.payload);
                    inbox.tag = Some((m.status.mtt.get(), m.status.tag));
                }
            });
            if inbox.tag == Some((mtt, seq)) {
                return Ok(inbox);
            }
            if began.elapsed().as_millis() > STEP_MS {
                return Err(ETIMEDOUT);
            }
        }
    }

    fn ping_pong(&self, receive: &mut Receive, command: Command) -> Result<u64> {
        let len = command.bytes as usize;
        let began: Instant<Monotonic> = Instant::now();
        for i in 0..command.count {
            let mut payload = [0u8; 120];
            for (k, chunk) in payload.chunks_mut(8).enumerate() {
                chunk.copy_from_slice(&pattern(i as usize + k).to_le_bytes());
            }
            let payload = &payload[..len];
            self.send(command.node, tag::PING, i as u8, payload)?;
            let inbox = self.wait_answer(receive, tag::PONG, i as u8)?;
            if inbox.payload.get(..inbox.len) != Some(payload) {
                return Err(EBADMSG);
            }
        }
        Ok(began.elapsed().as_nanos() as u64)
    }

    fn peer_buffer(&self, receive: &mut Receive, node: NodeId) -> Result<u64> {
        self.send(node, tag::ASK, 0, &[0])?;
        let inbox = self.wait_answer(receive, tag::ADDRESS, 0)?;
        let bytes = inbox.payload.first_chunk::<8>().ok_or(EBADMSG)?;
        Ok(u64::from_le_bytes(*bytes))
    }

    /// Waits until at most `left` commands are under way; returns how many are.
    fn wait_done(
        &self,
        receive: &mut Receive,
        mut busy: u32,
        left: u32,
        kind: NotificationType,
    ) -> Result<u32> {
        let began: Instant<Monotonic> = Instant::now();
        while busy > left {
            let mut bad = false;
            receive.notifications.poll(WINDOW as usize, |n| {
                if n.kind == kind {
                    busy = busy.saturating_sub(1);
                }
                bad |= n.error != 0;
            });
            if bad {
                return Err(EIO);
            }
            if began.elapsed().as_millis() > STEP_MS {
                return Err(ETIMEDOUT);
            }
        }
        Ok(busy)
    }

    fn transfer(&self, receive: &mut Receive, command: Command, put: bool) -> Result<u64> {
        let Command {
            node, count, bytes, ..
        } = command;
        let base = self.peer_buffer(receive, node)?;
        let slice = HALF_BYTES as u32 / WINDOW;
        let kind = if put {
            NotificationType::Requester
        } else {
            NotificationType::Completer
        };
        let peer = |kind: NotificationType| Peer {
            node,
            vpid: Vpid::from(VPID),
            notify: NotifySpec::from_bits(kind.code()),
            page: PageOptions::default(),
        };
        // Gets: peer's pattern to the local first half. Puts: own pattern to the peer's second half.
        for i in 0..HALF_BYTES / 8 {
            self.local.write(i, 0);
        }
        let began: Instant<Monotonic> = Instant::now();
        let mut busy = 0;
        for i in 0..count {
            busy = self.wait_done(receive, busy, WINDOW - 1, kind)?;
            let at = u64::from(i % WINDOW * slice);
            if put {
                let from = BusAddr(self.buffer.address().0 + at);
                let to = BusAddr(base + HALF_BYTES as u64 + at);
                self.rma.put(peer(kind), from, to, bytes)?;
            } else {
                let to = BusAddr(self.local.address().0 + at);
                self.rma.get(peer(kind), BusAddr(base + at), to, bytes)?;
            }
            busy += 1;
        }
        self.wait_done(receive, busy, 0, kind)?;
        let ns = began.elapsed().as_nanos() as u64;
        if put {
            // Read back what arrived; a get follows the puts on the same path.
            for i in 0..count.min(WINDOW) {
                let at = u64::from(i * slice);
                let from = BusAddr(base + HALF_BYTES as u64 + at);
                let to = BusAddr(self.local.address().0 + at);
                self.rma
                    .get(peer(NotificationType::Completer), from, to, bytes)?;
            }
            self.wait_done(receive, count.min(WINDOW), 0, NotificationType::Completer)?;
        }
        for i in 0..count.min(WINDOW) as usize {
            check(&self.local, i * slice as usize, bytes as usize)?;
        }
        Ok(ns)
    }
}

/// Compares `bytes` at byte offset `at` (a multiple of 8) with the pattern.
fn check(memory: &DmaWords, at: usize, bytes: usize) -> Result {
    for k in 0..bytes.div_ceil(8) {
        let used = (bytes - 8 * k).min(8);
        let mask = u64::MAX >> (64 - 8 * used);
        let i = at / 8 + k;
        if (memory.read(i) ^ pattern(i)) & mask != 0 {
            return Err(EBADMSG);
        }
    }
    Ok(())
}
