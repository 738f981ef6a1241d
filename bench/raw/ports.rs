// SPDX-License-Identifier: GPL-2.0-only

//! Tests of the port functions that sockets use: messages in several buffers, traffic classes,
//! polls that stop early, and handles that are dropped with interrupts disabled.

use crate::{attached::Attached, report::Report};
use core::ops::ControlFlow;
use extoll_core::{
    nic::Nic,
    rma::{Descriptor, Modifiers, NotifySpec, Operation, PageOptions, Requester},
    velo::{self, Header, Mailbox, SendError, Sender, Stop, Target},
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    time::{delay::fsleep, Delta, Instant, Monotonic},
};
use kernel_ext::sched::cond_resched;

/// Size in bytes of each queue that the tests open; the minimum.
const QUEUE_BYTES: u32 = 512 * 1024;
/// Maximum time in ms for a message to this node.
const PATIENCE_MS: i64 = 20_000;
/// Number of 128-byte slots in a mailbox of [`QUEUE_BYTES`].
const SLOTS: u64 = 4096;

/// Words of a command.
struct Words {
    op: Op,
    messages: u64,
    ms: i64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    /// Sends messages from several buffers, in several traffic classes, and with polls that stop
    /// early.
    Messages,
    /// Polls RMA notifications and stops early.
    Commands,
    /// Closes a full mailbox.
    Full,
    /// Drops the last handles with interrupts disabled.
    Drop,
}

impl Words {
    fn take(&mut self, word: &str) -> Option<()> {
        let (key, text) = word.split_once('=')?;
        match (key, text) {
            ("op", "messages") => self.op = Op::Messages,
            ("op", "commands") => self.op = Op::Commands,
            ("op", "full") => self.op = Op::Full,
            ("op", "drop") => self.op = Op::Drop,
            ("nic", _) => {}
            (key, text) => {
                let n = text.parse::<u64>().ok()?;
                match key {
                    "messages" if n <= 1_000_000 => self.messages = n,
                    "ms" if n <= 60_000 => self.ms = n as i64,
                    _ => return None,
                }
            }
        }
        Some(())
    }
}

/// Runs the command if it belongs to this file. May sleep.
pub(crate) fn run<'a>(
    attached: &Attached,
    verb: &str,
    mut words: impl Iterator<Item = &'a str>,
    report: &mut Report<'_>,
) -> Option<Result> {
    if verb != "ports" {
        return None;
    }
    let mut all = Words {
        op: Op::Messages,
        messages: 1000,
        ms: 0,
    };
    if let Some(word) = words.find(|word| all.take(word).is_none()) {
        return Some(report.fail(EINVAL, fmt!("'{word}' is not understood")));
    }
    let mut run = || {
        let run = attached.begin(Delta::from_secs(60))?;
        let nic = run.nic()?;
        match all.op {
            Op::Messages => messages(&nic, report),
            Op::Commands => commands(&nic, report),
            Op::Full => full(&nic, &all, report),
            Op::Drop => dropped(&nic, report),
        }
    };
    Some(run())
}

/// Repeats `f` until it returns a value or `PATIENCE_MS` have passed.
fn until<R>(mut f: impl FnMut() -> Result<Option<R>>) -> Result<R> {
    let begin: Instant<Monotonic> = Instant::now();
    loop {
        if let Some(found) = f()? {
            return Ok(found);
        }
        if begin.elapsed().as_millis() > PATIENCE_MS {
            return Err(ETIMEDOUT);
        }
        cond_resched();
    }
}

/// Repeats `send` while it fails for lack of queue space or credits.
fn sent(mut send: impl FnMut() -> Result<(), SendError>) -> Result {
    until(|| match send() {
        Ok(()) => Ok(Some(())),
        Err(SendError::Full | SendError::Retry) => Ok(None),
        Err(e) => Err(e.into()),
    })
}

/// Returns byte `i` of message `n`.
fn byte(n: usize, i: usize) -> u8 {
    (n.wrapping_mul(31) ^ i.wrapping_mul(7)) as u8
}

#[inline(never)]
fn messages(nic: &Nic, report: &mut Report<'_>) -> Result {
    let (sender, mut mailbox) = nic.velo().open(None, QUEUE_BYTES)?;
    let to = Header::new(Target::Node(nic.node()), sender.vpid());
    report.number("pieces", pieces(&sender, &mut mailbox, to)?)?;
    report.number("classes", classes(&sender, &mut mailbox, to)?)?;
    report.number("stops", stops(&sender, &mut mailbox, to)?)?;
    // The header or the length of each of these messages is invalid.
    let wrong = Header { class: 4, ..to };
    let refused = [
        sender.send(to, &[]),
        sender.send_gathered(to, &[&[0; 100], &[0; 21]]),
        sender.send(wrong, b"x"),
    ];
    let all = refused.iter().all(|r| *r == Err(SendError::Invalid));
    report.number("refused", all.into())
}

/// Sends messages of all lengths from three buffers each, and reads them into three buffers with
/// other lengths. Returns the number of messages.
fn pieces(sender: &Sender, mailbox: &mut Mailbox, to: Header) -> Result<u64> {
    let mut count = 0;
    for len in 1..=usize::from(velo::MAX_LEN) {
        let mut bytes = [0; velo::MAX_LEN as usize];
        for (i, place) in bytes.iter_mut().enumerate() {
            *place = byte(len, i);
        }
        let bytes = bytes.get(..len).ok_or(EINVAL)?;
        let (a, rest) = bytes.split_at(len / 3);
        let (b, c) = rest.split_at(rest.len() / 5);
        sent(|| sender.send_gathered(to, &[a, b, &[], c]))?;
        let mut got = [0; velo::MAX_LEN as usize];
        let (first, second) = got.split_at_mut((len * 7 / 11).max(1));
        let n = until(|| {
            let mut n = None;
            mailbox.poll(1, |m| {
                n = Some(m.scatter(0, &mut [&mut *first, &mut *second]))
            });
            Ok(n)
        })?;
        if got.get(..n) != Some(bytes) {
            return Err(EBADMSG);
        }
        count += 1;
    }
    Ok(count)
}

/// Sends messages of four traffic classes alternately. The messages of a class must arrive in
/// order. Returns the number of messages.
fn classes(sender: &Sender, mailbox: &mut Mailbox, to: Header) -> Result<u64> {
    const EACH: u64 = 200;
    let mut next = [0u64; 4];
    let mut got = 0;
    let mut take = |mailbox: &mut Mailbox| {
        let mut wrong = false;
        got += mailbox.poll(64, |m| match next.get_mut(usize::from(m.status.tag)) {
            Some(next) => {
                wrong |= m.word(0) != *next;
                *next += 1;
            }
            None => wrong = true,
        }) as u64;
        if wrong {
            Err(EBADMSG)
        } else {
            Ok(got)
        }
    };
    for n in 0..EACH {
        for class in 0..4 {
            let header = Header {
                class,
                tag: class,
                ..to
            };
            sent(|| sender.send(header, &n.to_le_bytes()))?;
        }
        take(mailbox)?;
    }
    until(|| Ok((take(mailbox)? == 4 * EACH).then_some(4 * EACH)))
}

/// Stops polls early by the result of their closure. The next poll must find the remaining
/// messages. Returns the number of polls.
fn stops(sender: &Sender, mailbox: &mut Mailbox, to: Header) -> Result<u64> {
    for tag in 0..3 {
        sent(|| sender.send(Header { tag, ..to }, b"x"))?;
    }
    let mut seen = KVec::new();
    let mut polls = 0;
    for stop in [
        Stop::Kept,
        Stop::Consumed,
        Stop::Kept,
        Stop::Consumed,
        Stop::Consumed,
    ] {
        until(|| {
            let mut looked = None;
            let taken = mailbox.poll(64, |m| {
                looked = Some(m.status.tag);
                ControlFlow::Break(stop)
            });
            let Some(tag) = looked else { return Ok(None) };
            if taken != usize::from(stop == Stop::Consumed) {
                return Err(EBADMSG);
            }
            seen.push(tag, GFP_KERNEL)?;
            Ok(Some(()))
        })?;
        polls += 1;
    }
    if *seen != [0, 0, 1, 1, 2] {
        return Err(EBADMSG);
    }
    Ok(polls)
}

/// Sends a notification with `value` from the port to itself.
fn note(requester: &Requester, value: u64) -> Descriptor {
    Descriptor {
        node: requester.context().node(),
        vpid: requester.vpid(),
        notify: NotifySpec {
            completer: true,
            ..NotifySpec::NONE
        },
        modifiers: Modifiers::NONE,
        op: Operation::NotificationPut { class: 0, value },
    }
}

/// Stops polls of notifications early by the result of their closure.
#[inline(never)]
fn commands(nic: &Nic, report: &mut Report<'_>) -> Result {
    let (requester, mut queue) = nic.rma().open(None, QUEUE_BYTES)?;
    let page = PageOptions::default();
    for value in 0..2 {
        sent(|| requester.post(page, &note(&requester, value)))?;
    }
    for (stop, value) in [(Stop::Kept, 0), (Stop::Consumed, 0), (Stop::Consumed, 1)] {
        until(|| {
            let mut looked = None;
            let taken = queue.poll(64, |n| {
                looked = Some(n.word0);
                ControlFlow::Break(stop)
            });
            match looked {
                None => Ok(None),
                Some(v) if v == value && taken == usize::from(stop == Stop::Consumed) => {
                    Ok(Some(()))
                }
                Some(_) => Err(EBADMSG),
            }
        })?;
    }
    report.number("stops", 3)
}

/// Fills a mailbox that is not read, closes it, and measures the time until a message to another
/// mailbox arrives.
#[inline(never)]
fn full(nic: &Nic, words: &Words, report: &mut Report<'_>) -> Result {
    let (sender, mut mailbox) = nic.velo().open(None, QUEUE_BYTES)?;
    let (full_sender, full_box) = nic.velo().open(None, QUEUE_BYTES)?;
    let node = Target::Node(nic.node());
    let to = Header::new(node, full_sender.vpid());
    let many = SLOTS + words.messages.min(200);
    for n in 0..many {
        sent(|| sender.send(to, &n.to_le_bytes()))?;
    }
    // Waits until the messages are in flight in front of the full mailbox.
    fsleep(Delta::from_millis(words.ms));
    report.number("waiting", full_box.unread_slots() as u64)?;
    let begin: Instant<Monotonic> = Instant::now();
    full_sender.close();
    full_box.close();
    report.number("close_us", begin.elapsed().as_micros_ceil() as u64)?;
    let begin: Instant<Monotonic> = Instant::now();
    sent(|| sender.send(Header::new(node, sender.vpid()), b"through"))?;
    until(|| Ok((mailbox.poll(1, |_| {}) != 0).then_some(())))?;
    report.number("through_us", begin.elapsed().as_micros_ceil() as u64)
}

/// Drops ports with a spinlock held and interrupts disabled. Their VPIDs are freed some time later
/// and can be opened again then.
#[inline(never)]
fn dropped(nic: &Nic, report: &mut Report<'_>) -> Result {
    let lock = KBox::pin_init(new_spinlock_irq!((), "extoll_bench_drop"), GFP_KERNEL)?;
    let (sender, mailbox) = nic.velo().open(None, QUEUE_BYTES)?;
    let (requester, queue) = nic.rma().open(None, QUEUE_BYTES)?;
    let vpids = (sender.vpid(), requester.vpid());
    sent(|| sender.send(Header::new(Target::Node(nic.node()), vpids.0), b"x"))?;
    sent(|| requester.post(PageOptions::default(), &note(&requester, 1)))?;
    {
        let _held = lock.lock();
        drop((sender, mailbox, requester, queue));
    }
    let begin: Instant<Monotonic> = Instant::now();
    until(|| {
        let velo = nic.velo().open(Some(vpids.0), QUEUE_BYTES);
        let rma = nic.rma().open(Some(vpids.1), QUEUE_BYTES);
        let busy = [velo.as_ref().err(), rma.as_ref().err()];
        match busy.iter().flatten().find(|e| ***e != EBUSY) {
            Some(e) => Err(**e),
            None => {
                let open = velo.is_ok() && rma.is_ok();
                if let Ok((sender, mailbox)) = velo {
                    sender.close();
                    mailbox.close();
                }
                if let Ok((requester, queue)) = rma {
                    requester.close();
                    queue.close();
                }
                Ok(open.then_some(()))
            }
        }
    })?;
    report.number("free_us", begin.elapsed().as_micros_ceil() as u64)
}
