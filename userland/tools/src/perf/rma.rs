// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests of RMA transfers.

use super::link::{Hello, Session};
use super::{Measured, Plan, Test};
use crate::stats::ns;
use anyhow::{bail, Context, Result};
use extoll::rma::{
    commands, Command, Nla, NodeId, Notification, NotificationType, NotifySpec, Peer, Vpid,
};
use std::time::Instant;

/// Class of the notification put that requests the end of a test.
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

/// Waits for the next notification from the other side that `wanted` accepts. A notification with
/// an error makes the test fail.
fn expect(s: &Session, wanted: impl Fn(&Notification) -> bool) -> Result<Notification> {
    let wanted = |n: &Notification| is_from(n, s.peer) && (n.error != 0 || wanted(n));
    let n = s
        .watch
        .wait(|wait| s.end.rma.wait_for(wait, wanted))
        .context("no notification")?;
    if n.error != 0 {
        bail!(extoll::Error::Transfer(n.error));
    }
    s.watch.progress()?;
    Ok(n)
}

/// Waits for the notifications of all commands of a transfer.
fn expect_all(s: &Session, wanted: impl Fn(&Notification) -> bool) -> Result<()> {
    for _ in 0..commands(s.plan.size) {
        expect(s, &wanted)?;
    }
    Ok(())
}

fn say(s: &Session, class: u8) -> Result<()> {
    let to = to(s.plan, s.peer);
    let rma = &s.end.rma;
    s.watch
        .wait(|wait| rma.retry(wait, || rma.notify(&to, class, 0)))
}

fn put(s: &Session, notify: NotifySpec) -> Result<()> {
    let to = to(s.plan, s.peer);
    let (rma, nla) = (&s.end.rma, Nla(s.peer.nla));
    let post = || rma.put(&to, &s.end.region, 0, s.plan.size, nla, notify);
    s.watch.wait(|wait| rma.retry(wait, post))?;
    s.watch.progress()
}

fn get(s: &Session) -> Result<()> {
    let to = to(s.plan, s.peer);
    let (rma, nla) = (&s.end.rma, Nla(s.peer.nla));
    let post = || rma.get(&to, &s.end.region, 0, s.plan.size, nla, COMPLETER);
    s.watch.wait(|wait| rma.retry(wait, post))?;
    s.watch.progress()
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

/// Repeats `step` for the warm-up and then until the goal is reached. Records the duration of each
/// repetition.
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

/// Runs on the client. Sends a PUT and waits for the server's PUT. The latency is half of this
/// time.
pub fn put_latency(s: &Session) -> Result<Measured> {
    let mut m = repeat(s.plan, || {
        put(s, COMPLETER)?;
        expect_all(s, arrived)
    })?;
    m.times.iter_mut().for_each(|t| *t /= 2);
    stop(s)?;
    Ok(m)
}

/// Runs on the server. Answers each PUT with a PUT.
pub fn put_pong(s: &Session) -> Result<Measured> {
    loop {
        let n = expect(s, |n| arrived(n) || is_class(n, STOP))?;
        if is_class(&n, STOP) {
            say(s, ACK)?;
            return Ok(Measured::default());
        }
        for _ in 1..commands(s.plan.size) {
            expect(s, arrived)?;
        }
        put(s, COMPLETER)?;
    }
}

/// Runs on the client. Measures the time of a GET.
pub fn get_latency(s: &Session) -> Result<Measured> {
    let m = repeat(s.plan, || {
        get(s)?;
        expect_all(s, fetched)
    })?;
    stop(s)?;
    Ok(m)
}

/// Runs on the server. Sleeps until the end of the test, because a GET does not involve the server.
pub fn idle(s: &Session) -> Result<Measured> {
    answer_stop(s, true)?;
    Ok(Measured::default())
}

fn answer_stop(s: &Session, asleep: bool) -> Result<()> {
    // This side cannot observe the transfers of the other side. The keep-alive lines of the other
    // side show its progress.
    let is_stop = |n: &Notification| is_from(n, s.peer) && is_class(n, STOP);
    s.watch
        .wait_for_the_other(|wait| {
            let wait = if asleep { wait.sleeping() } else { wait };
            s.end.rma.wait_for(wait, is_stop)
        })
        .context("the other side did not finish")?;
    say(s, ACK)
}

/// Requests an acknowledgement. The request arrives after all data, because the commands of a port
/// stay in order.
fn stop(s: &Session) -> Result<()> {
    say(s, STOP)?;
    expect(s, |n| is_class(n, ACK)).map(|_| ())
}

/// Sends a stream of transfers. With `sends` false, this side only answers messages of the other
/// side.
pub fn stream(s: &Session, sends: bool) -> Result<Measured> {
    let mut m = Measured::default();
    if sends {
        let is_put = s.plan.test == Test::PutBw;
        let done = if is_put { sent } else { fetched };
        let goal = s.plan.goal();
        let start = Instant::now();
        let mut flying = 0;
        loop {
            let enough = goal.reached(m.iterations);
            if enough && flying == 0 {
                break;
            }
            if enough || flying >= s.plan.tx_depth {
                expect_all(s, done)?;
                flying -= 1;
                continue;
            }
            match is_put {
                true => put(s, REQUESTER)?,
                false => get(s)?,
            }
            flying += 1;
            m.iterations += 1;
        }
        // The PUTs have been sent, but they may not have arrived yet.
        say(s, STOP)?;
        if !s.plan.bidirectional {
            expect(s, |n| is_class(n, ACK))?;
            m.ns = ns(start.elapsed());
            return Ok(m);
        }
        answer_stop(s, false)?;
        expect(s, |n| is_class(n, ACK))?;
        m.ns = ns(start.elapsed());
        return Ok(m);
    }
    answer_stop(s, false)?;
    Ok(m)
}
