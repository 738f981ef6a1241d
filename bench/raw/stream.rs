// SPDX-License-Identifier: GPL-2.0-only

//! Kernel counterparts of user programs' operations: streams of messages, streams of transfers
//! between registered memories, and registration itself. `make bench` compares kernel and user
//! programs.

use crate::{
    attached::Run,
    command::{Peer, Words},
    protocol::{DATA, DONE, PING, PING_POLL, REPLY},
    regions::{self, View},
    report::Report,
    server::QUEUE_BYTES,
    wait::{Mode, Waiter},
};
use extoll_core::{
    nic::Nic,
    rma::{
        self, Address, LockTarget, Notification, NotificationType, Notifications, NotifySpec,
        PageOptions, Requester, SendError, MAX_LEN as MAX_TRANSFER,
    },
    velo::{Header, Mailbox, Target, MAX_LEN},
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{Instant, Monotonic},
};
use wire::ids::{Nla, Unit};

/// Number of messages after which the sender requests a reply. Up to twice this number may be in
/// flight, which fill a quarter of the mailbox.
const PART: u64 = 512;

fn since(begin: Instant<Monotonic>) -> u64 {
    begin.elapsed().as_nanos().max(1) as u64
}

/// Command `rate`: sends `count` messages of `size` bytes in one direction. Ends when the server
/// has confirmed the last message.
pub(crate) fn rate(
    run: &Run<'_>,
    nic: &Arc<Nic>,
    peer: &Peer,
    size: usize,
    count: u64,
    report: &mut Report<'_>,
) -> Result {
    let (sender, mut mailbox) = nic.velo().open(None, QUEUE_BYTES)?;
    let waiter = &run.waiter;
    sender.attach(waiter.client(Unit::Velo)?);
    let ping = match peer.mode {
        Mode::Irq => PING,
        Mode::Poll => PING_POLL,
    };
    let payload = [0xA5; MAX_LEN as usize];
    let message = payload.get(..size).ok_or(EINVAL)?;
    let header = |tag, irq| Header {
        tag,
        irq,
        ..Header::new(Target::Node(peer.node), peer.vpid)
    };
    let send = |tag, irq| waiter.send(|| sender.send(header(tag, irq), message));
    let mut armed = false;
    // In polling mode, the first message must interrupt the server, which does not poll then.
    send(ping, true)?;
    answer(waiter, peer, ping, &mut armed, &mut mailbox)?;
    let begin = Instant::now();
    let irq = peer.mode == Mode::Irq;
    let mut asked = 0;
    let mut i = 0;
    while i < count {
        i += 1;
        let ask = i % PART == 0 || i == count;
        send(if ask { ping } else { DATA }, irq)?;
        asked += u64::from(ask);
        while asked > u64::from(i < count) {
            answer(waiter, peer, ping, &mut armed, &mut mailbox)?;
            asked -= 1;
        }
        waiter.check()?;
    }
    let elapsed = since(begin);
    send(DONE, false)?;
    sender.detach();
    report.line(fmt!("mode {}", peer.mode.name()))?;
    report.number("size", size as u64)?;
    report.number("count", count)?;
    report.number("elapsed_ns", elapsed)
}

/// Waits for the server's reply to a message with `tag`.
fn answer(
    waiter: &Waiter,
    peer: &Peer,
    tag: u8,
    armed: &mut bool,
    mailbox: &mut Mailbox,
) -> Result {
    waiter.until(
        peer.mode,
        Unit::Velo,
        armed,
        mailbox,
        |mailbox| {
            let mut found = false;
            while !found
                && mailbox.poll(1, |m| {
                    let from = m.status.source;
                    found =
                        (from.node, from.vpid, m.status.tag) == (peer.node, peer.vpid, tag | REPLY);
                }) != 0
            {}
            found.then_some(())
        },
        |mailbox| mailbox.rearm(),
    )
}

/// Command `stream`: performs `count` transfers of `len` bytes each between new local memory and
/// the NLA `nla` + `offset` of a peer. All transfers use the same bytes. A stream of PUTs ends when
/// all PUTs have arrived at the peer.
pub(crate) fn stream(
    run: &Run<'_>,
    nic: &Arc<Nic>,
    peer: &Peer,
    words: &Words,
    report: &mut Report<'_>,
) -> Result {
    let bytes = regions::bytes(words, report)?;
    let len = words.len.unwrap_or(bytes as u64);
    if !(1..=u64::from(MAX_TRANSFER)).contains(&len) || len > bytes as u64 {
        return report.fail(
            EINVAL,
            fmt!("len must be 1 to {MAX_TRANSFER} and not exceed bytes"),
        );
    }
    let seed = (!words.get).then_some(words.seed);
    // `requester` is declared before the region, so that the region is dropped before the port.
    let (requester, mut notifications) = nic.rma().open(None, QUEUE_BYTES)?;
    let (region, view) = regions::memory(nic, requester.vpid(), words, bytes, seed)?;
    let Some(region) = &region else {
        return report.fail(EINVAL, fmt!("this kind of memory has no NLA"));
    };
    requester.attach(run.waiter.client(Unit::Rma)?);
    let mut flow = Flow {
        peer,
        waiter: &run.waiter,
        notifications: &mut notifications,
        armed: false,
        wakeups: 0,
    };
    let notify = NotifySpec {
        requester: !words.get,
        responder: false,
        completer: words.get,
    };
    let to = flow.peer(notify);
    let address = || Address::Region {
        region,
        offset: 0,
        remote: Nla(words.nla.wrapping_add(words.offset)),
    };
    let begin = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while done < words.count {
        flow.waiter.check()?;
        let mut blocked = false;
        while !blocked && posted < words.count && posted - done < words.inflight {
            let result = if words.get {
                requester.get(to, address(), len as u32)
            } else {
                requester.put(to, address(), len as u32)
            };
            match result {
                Ok(()) => posted += 1,
                Err(SendError::Full | SendError::Retry) => blocked = true,
                Err(e) => return Err(e.into()),
            }
        }
        if posted == done {
            flow.waiter.send(|| requester.reserve(1))?;
            continue;
        }
        let kind = if words.get {
            NotificationType::Completer
        } else {
            NotificationType::Requester
        };
        done += flow.take(kind, report)?;
    }
    if !words.get {
        flow.confirm(&requester, report)?;
    }
    let elapsed = since(begin);
    requester.detach();
    report.line(fmt!("mode {}", peer.mode.name()))?;
    report.number("size", len)?;
    report.number("count", done)?;
    report.number("bytes", done.saturating_mul(len))?;
    report.number("elapsed_ns", elapsed)?;
    report.number("wakeups", flow.wakeups)?;
    if words.get {
        regions::compare(
            &view,
            len as usize & !7,
            words.seed,
            words.offset / 8,
            report,
        )?;
    }
    Ok(())
}

struct Flow<'a> {
    peer: &'a Peer,
    waiter: &'a Waiter,
    notifications: &'a mut Notifications,
    armed: bool,
    /// Number of polls that found notifications.
    wakeups: u64,
}

impl Flow<'_> {
    fn peer(&self, notify: NotifySpec) -> rma::Peer {
        rma::Peer {
            notify,
            page: PageOptions {
                irq: self.peer.mode == Mode::Irq,
                ..PageOptions::default()
            },
            ..rma::Peer::new(self.peer.node, self.peer.vpid)
        }
    }

    /// Waits for notifications of `kind` without an error. Returns their number.
    fn take(&mut self, kind: NotificationType, report: &mut Report<'_>) -> Result<u64> {
        let node = self.peer.node;
        let (number, bad): (usize, Option<Notification>) = self.waiter.until(
            self.peer.mode,
            Unit::Rma,
            &mut self.armed,
            self.notifications,
            |queue| {
                let mut bad = None;
                let number = queue.poll(256, |n| {
                    if n.error != 0 || n.kind != kind || n.node != node {
                        bad = Some(*n);
                    }
                });
                (number != 0).then_some((number, bad))
            },
            |queue| queue.rearm(),
        )?;
        self.wakeups += 1;
        match bad {
            None => Ok(number as u64),
            Some(n) => report.fail(EPROTO, fmt!("unexpected notification {n:?}")),
        }
    }

    /// Waits until the peer's completer has answered a lock operation that changes no value. All
    /// earlier PUTs have arrived at the peer then.
    fn confirm(&mut self, requester: &Requester, report: &mut Report<'_>) -> Result {
        let to = self.peer(NotifySpec {
            requester: false,
            responder: false,
            completer: true,
        });
        self.waiter
            .send(|| requester.lock(to, LockTarget::Completer, 0, i32::MIN, 0))?;
        self.take(NotificationType::Completer, report).map(|_| ())
    }
}

/// Command `register`: registers and revokes memory of `bytes` bytes `count` times. The memory is
/// not accessed in between.
pub(crate) fn register(nic: &Arc<Nic>, words: &Words, report: &mut Report<'_>) -> Result {
    let bytes = regions::bytes(words, report)?;
    let (requester, _notifications) = nic.rma().open(None, QUEUE_BYTES)?;
    let view = View::new(nic, words.kind, bytes)?;
    let (mut registered, mut revoked) = (0u64, 0u64);
    for _ in 0..words.count {
        if kernel::current!().signal_pending() {
            return Err(EINTR);
        }
        let begin = Instant::now();
        let region = view.register(nic, requester.vpid(), words.access)?;
        registered += since(begin);
        let begin = Instant::now();
        region.revoke()?;
        revoked += since(begin);
    }
    report.number("bytes", bytes as u64)?;
    report.number("count", words.count)?;
    report.number("register_ns", registered)?;
    report.number("revoke_ns", revoked)
}
