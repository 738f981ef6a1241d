// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests of VELO messages.

use super::link::{Hello, Session};
use super::{Measured, Plan};
use crate::stats::ns;
use anyhow::{Context, Result};
use extoll::velo::{Message, NodeId, To, Vpid};
use extoll::Error;
use std::time::{Duration, Instant};

/// User tag of messages with data.
const DATA: u8 = 1;
const LAST: u8 = 2;
const CREDIT: u8 = 3;
/// Maximum number of unacknowledged messages. The mailbox of the receiver has slots for more than
/// twice that number.
const WINDOW: u64 = 768;
/// Number of messages after which the receiver sends an acknowledgement.
const REPORT: u64 = 128;

fn to(plan: &Plan, peer: &Hello) -> To {
    let to = To::new(NodeId(peer.node), Vpid::from_low_bits(peer.velo.into()));
    if plan.events {
        to
    } else {
        to.quiet()
    }
}

fn is_from(m: &Message, peer: &Hello) -> bool {
    m.source.node.0 == peer.node && m.source.vpid.get() == peer.velo
}

fn receive(s: &Session) -> Result<Message> {
    loop {
        let m = s
            .watch
            .wait(|wait| s.end.velo.recv(wait))
            .context("no message from the other side")?;
        if is_from(&m, s.peer) {
            s.watch.progress()?;
            return Ok(m);
        }
    }
}

fn send(s: &Session, to: &To, data: &[u8]) -> Result<()> {
    s.watch.wait(|wait| s.end.velo.send(to, data, wait))
}

/// Runs on the client. Sends a message and waits for the answer. The latency is half of the
/// round-trip time.
pub fn ping(s: &Session) -> Result<Measured> {
    let data = vec![0xA5; s.plan.size as usize];
    let to = to(s.plan, s.peer);
    for _ in 0..s.plan.warmup {
        send(s, &to.tagged(DATA), &data)?;
        receive(s)?;
    }
    let mut m = Measured::default();
    let goal = s.plan.goal();
    let start = Instant::now();
    while !goal.reached(m.iterations) {
        let sent = Instant::now();
        send(s, &to.tagged(DATA), &data)?;
        receive(s)?;
        m.times.push(ns(sent.elapsed()) / 2);
        m.iterations += 1;
    }
    m.ns = ns(start.elapsed());
    send(s, &to.tagged(LAST), &data)?;
    Ok(m)
}

/// Runs on the server. Answers messages until the last one.
pub fn pong(s: &Session) -> Result<Measured> {
    let to = to(s.plan, s.peer);
    loop {
        let m = receive(s)?;
        if m.tag == LAST {
            return Ok(Measured::default());
        }
        send(s, &to.tagged(DATA), m.data())?;
    }
}

/// Sends a stream of messages. With `sends` false, sends only the last message, which contains no
/// data.
pub fn stream(s: &Session, sends: bool) -> Result<Measured> {
    let data = vec![0x5A; s.plan.size as usize];
    let to = to(s.plan, s.peer);
    let goal = if sends {
        s.plan.goal()
    } else {
        super::Goal::Count(0)
    };
    let timeout = Duration::from_millis(s.plan.timeout_ms);
    let start = Instant::now();
    let mut m = Measured::default();
    // Numbers of messages: sent and acknowledged by the other side; received; received and
    // acknowledged by this side.
    let (mut acknowledged, mut received, mut reported) = (0, 0, 0);
    let (mut said_last, mut heard_last) = (false, false);
    let mut moved = Instant::now();
    while !(said_last && heard_last && acknowledged == m.iterations && reported == received) {
        let mut progress = false;
        if !said_last && m.iterations - acknowledged < WINDOW {
            let done = goal.reached(m.iterations);
            let tag = if done { LAST } else { DATA };
            match s.end.velo.try_send(&to.tagged(tag), &data) {
                Ok(()) if done => said_last = true,
                Ok(()) => m.iterations += 1,
                Err(Error::Full) if moved.elapsed() < timeout => {
                    s.watch.glance()?;
                    std::thread::yield_now();
                }
                Err(e) => return Err(e.into()),
            }
            progress = true;
        }
        if received - reported >= REPORT || heard_last && received > reported {
            let count: u64 = received - reported;
            match s
                .end
                .velo
                .try_send(&to.tagged(CREDIT), &count.to_le_bytes())
            {
                // This acknowledgement may have completed the test.
                Ok(()) => {
                    reported = received;
                    continue;
                }
                Err(Error::Full) if moved.elapsed() < timeout => s.watch.glance()?,
                Err(e) => return Err(e.into()),
            }
        }
        let message = if progress || received > reported && heard_last {
            s.end.velo.try_recv()?
        } else {
            let message = s.watch.wait(|wait| s.end.velo.recv(wait));
            Some(message.with_context(|| {
                format!(
                    "{} sent, {acknowledged} acknowledged, {received} received",
                    m.iterations
                )
            })?)
        };
        let Some(message) = message.filter(|m| is_from(m, s.peer)) else {
            continue;
        };
        moved = Instant::now();
        s.watch.progress()?;
        match message.tag {
            DATA => received += 1,
            LAST => heard_last = true,
            CREDIT => {
                let mut bytes = [0; 8];
                let n = message.data().len().min(8);
                bytes[..n].copy_from_slice(&message.data()[..n]);
                acknowledged += u64::from_le_bytes(bytes);
                m.ns = ns(start.elapsed());
            }
            _ => {}
        }
    }
    // The NIC of this side may not have accepted the last acknowledgement yet.
    s.watch.wait(|wait| s.end.velo.drain(wait))?;
    Ok(m)
}
