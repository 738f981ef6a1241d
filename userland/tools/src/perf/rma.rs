// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! The RMA tests.

use super::link::{Endpoint, Hello};
use super::{Measured, Plan, Test};
use crate::stats::ns;
use anyhow::{bail, Context, Result};
use extoll::rma::{Command, Nla, NodeId, Notification, NotificationType, NotifySpec, Peer, Vpid};
use std::time::Instant;

/// Classes of the notification puts that end a test.
const STOP: u8 = 1;
const ACK: u8 = 2;

const REQUESTER: NotifySpec = NotifySpec::from_bits(1);
const COMPLETER: NotifySpec = NotifySpec::from_bits(4);

fn to(plan: &Plan, peer: &Hello) -> Peer {
    let p = Peer::new(NodeId(peer.node), Vpid::from_low_bits(peer.rma.into()));
    if plan.events {
        p.interrupting()
    } else {
        p
    }
}

fn is_from(n: &Notification, peer: &Hello) -> bool {
    n.node.0 == peer.node && n.vpid.get() == peer.rma
}

fn is_class(n: &Notification, class: u8) -> bool {
    n.command == Command::NotificationPut && n.class() == class
}

/// The next notification from the other side that `wanted` accepts. An error report ends the test.
fn expect(
    end: &Endpoint,
    plan: &Plan,
    peer: &Hello,
    wanted: impl Fn(&Notification) -> bool,
) -> Result<Notification> {
    let n = end
        .rma
        .wait_for(plan.wait(), |n| {
            is_from(n, peer) && (n.error != 0 || wanted(n))
        })
        .context("no notification")?;
    if n.error != 0 {
        bail!(extoll::Error::Transfer(n.error));
    }
    Ok(n)
}

fn say(end: &Endpoint, plan: &Plan, peer: &Hello, class: u8) -> Result<()> {
    let to = to(plan, peer);
    end.rma
        .retry(plan.wait(), || end.rma.notify(&to, class, 0))?;
    Ok(())
}

fn put(end: &Endpoint, plan: &Plan, peer: &Hello, notify: NotifySpec) -> Result<()> {
    let to = to(plan, peer);
    end.rma.retry(plan.wait(), || {
        end.rma
            .put(&to, &end.region, 0, plan.size, Nla(peer.nla), notify)
    })?;
    Ok(())
}

fn get(end: &Endpoint, plan: &Plan, peer: &Hello) -> Result<()> {
    let to = to(plan, peer);
    end.rma.retry(plan.wait(), || {
        end.rma
            .get(&to, &end.region, 0, plan.size, Nla(peer.nla), COMPLETER)
    })?;
    Ok(())
}

fn arrived(n: &Notification) -> bool {
    n.kind == NotificationType::Completer && n.command == Command::BytePut
}

fn fetched(n: &Notification) -> bool {
    n.kind == NotificationType::Completer && n.command == Command::ByteGetResponse
}

fn sent(n: &Notification) -> bool {
    n.kind == NotificationType::Requester && n.command == Command::BytePut
}

/// Repeats `step` for the warm-up and then until the goal, noting the time of each.
fn repeat(plan: &Plan, mut step: impl FnMut() -> Result<()>) -> Result<Measured> {
    for _ in 0..plan.warmup {
        step()?;
    }
    let mut m = Measured::default();
    let goal = plan.goal();
    let start = Instant::now();
    while !goal.reached(m.iterations) {
        let begun = Instant::now();
        step()?;
        m.times.push(ns(begun.elapsed()));
        m.iterations += 1;
    }
    m.ns = ns(start.elapsed());
    Ok(m)
}

/// Client: PUTs, waits for the PUT that comes back; half the time is the latency.
pub fn put_latency(end: &Endpoint, plan: &Plan, peer: &Hello) -> Result<Measured> {
    let mut m = repeat(plan, || {
        put(end, plan, peer, COMPLETER)?;
        expect(end, plan, peer, arrived).map(|_| ())
    })?;
    m.times.iter_mut().for_each(|t| *t /= 2);
    stop(end, plan, peer)?;
    Ok(m)
}

/// Server: answers each PUT by one.
pub fn put_pong(end: &Endpoint, plan: &Plan, peer: &Hello) -> Result<Measured> {
    loop {
        let n = expect(end, plan, peer, |n| arrived(n) || is_class(n, STOP))?;
        if is_class(&n, STOP) {
            say(end, plan, peer, ACK)?;
            return Ok(Measured::default());
        }
        put(end, plan, peer, COMPLETER)?;
    }
}

/// Client: the time of a GET.
pub fn get_latency(end: &Endpoint, plan: &Plan, peer: &Hello) -> Result<Measured> {
    let m = repeat(plan, || {
        get(end, plan, peer)?;
        expect(end, plan, peer, fetched).map(|_| ())
    })?;
    stop(end, plan, peer)?;
    Ok(m)
}

/// Server: waits for the end, asleep: what is measured does not need it.
pub fn idle(end: &Endpoint, plan: &Plan, peer: &Hello) -> Result<Measured> {
    let asleep = Plan {
        events: true,
        ..*plan
    };
    answer_stop(end, &asleep, peer)?;
    Ok(Measured::default())
}

fn answer_stop(end: &Endpoint, plan: &Plan, peer: &Hello) -> Result<()> {
    // Only the client can tell how long its part takes; it fails by itself when nothing moves any more, and then closes the
    // connection, which ends this side at the next message.
    let patience = plan.duration_ms.unwrap_or(0).saturating_add(
        plan.timeout_ms
            .saturating_mul(plan.iters.saturating_add(plan.warmup)),
    );
    let wait = extoll::Wait::for_at_most(std::time::Duration::from_millis(patience));
    let wait = if plan.events { wait } else { wait.polling() };
    end.rma
        .wait_for(wait, |n| is_from(n, peer) && is_class(n, STOP))
        .context("the other side did not finish")?;
    say(end, plan, peer, ACK)
}

/// Asks for the acknowledgement that comes behind all data (commands of a port are in order).
fn stop(end: &Endpoint, plan: &Plan, peer: &Hello) -> Result<()> {
    say(end, plan, peer, STOP)?;
    expect(end, plan, peer, |n| is_class(n, ACK)).map(|_| ())
}

/// Either side of a stream of transfers. A side that does not send only answers.
pub fn stream(end: &Endpoint, plan: &Plan, peer: &Hello, sends: bool) -> Result<Measured> {
    let mut m = Measured::default();
    if sends {
        let is_put = plan.test == Test::PutBw;
        let done = if is_put { sent } else { fetched };
        let goal = plan.goal();
        let start = Instant::now();
        let mut flying = 0;
        loop {
            let enough = goal.reached(m.iterations);
            if enough && flying == 0 {
                break;
            }
            if enough || flying >= plan.tx_depth {
                expect(end, plan, peer, done)?;
                flying -= 1;
                continue;
            }
            match is_put {
                true => put(end, plan, peer, REQUESTER)?,
                false => get(end, plan, peer)?,
            }
            flying += 1;
            m.iterations += 1;
        }
        // PUTs are sent but may not have arrived yet.
        say(end, plan, peer, STOP)?;
        if !plan.bidirectional {
            expect(end, plan, peer, |n| is_class(n, ACK))?;
            m.ns = ns(start.elapsed());
            return Ok(m);
        }
        answer_stop(end, plan, peer)?;
        expect(end, plan, peer, |n| is_class(n, ACK))?;
        m.ns = ns(start.elapsed());
        return Ok(m);
    }
    answer_stop(end, plan, peer)?;
    Ok(m)
}
