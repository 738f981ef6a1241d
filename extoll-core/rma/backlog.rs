// SPDX-License-Identifier: GPL-2.0-only

//! Commands that the NIC has accepted from a port and not executed when its owner is done, as the network does
//! not take them. The NIC looks into the VPID table when it executes a command (HW §10.7): with the next owner's
//! protection descriptor and translations, if there is one by then.
//!
//! So the VPID goes on only when they are executed. Commands of a VPID are executed in order within a traffic
//! class (HW §10.8): one is posted behind them in each class, which asks for a notification with a number that
//! nobody can know, to a queue that no process sees.

use crate::{
    context::Context,
    hw::Hw,
    queue::{self, Layout, Queue},
    residue,
    time::patience,
    tx,
};
use kernel::{
    prelude::*,
    time::{delay::fsleep, Delta, Instant, Monotonic},
};
use kernel_ext::{barrier, security};
use wire::{
    bq::SlotCode,
    ids::{BusAddr, NodeId, Unit, Vpid},
    regs::{
        rma::{self, VpidTable},
        wcbuf, BqRegs,
    },
    rma::{
        Command, Descriptor, Modifiers, Notification, NotificationType, NotifySpec, Operation,
        PageOptions, RequesterAddr,
    },
    wcbuf::State,
};

const CLASSES: u8 = 4;
/// Longest pause between looks, in microseconds.
const PAUSE_US: i64 = 1000;
/// How long the NIC may take to finish with what it accepted.
const SETTLE_MS: u32 = 10;
const QUEUE_BYTES: u64 = BusAddr::PAGE_SIZE;

/// Waits up to `patience_ms` until all commands of an RMA VPID are executed, which is closed, cleared of its
/// owner's translations, and without a queue. It is so again afterwards. Its commands go out with the
/// protection descriptor that they had. True also for a NIC that is gone. May sleep.
pub(crate) fn is_done(ctx: &Context, vpid: Vpid, protection: u16, patience_ms: i64) -> bool {
    if !ctx.is_alive() {
        return true;
    }
    new_queue(ctx, vpid).is_ok_and(|queue| {
        let done = run(&queue, ctx, vpid, protection, patience_ms);
        remove(&queue, ctx, vpid);
        done
    })
}

/// Takes the queue from the VPID, which is disabled then, as is done with that of a port: what waits for room in it,
/// which may be anybody's, would hold up the queues of others. May sleep.
fn remove(queue: &Queue, ctx: &Context, vpid: Vpid) {
    let reg = BqRegs(Unit::Rma).ub(vpid);
    queue.drain(ctx);
    if let Some(hw) = ctx.alive_access() {
        hw.rf.write(rma::vpid_table(vpid), rma::VPID_DISABLED);
        hw.rf.read(reg);
    }
    // What came in between.
    queue.drain(ctx);
    ctx.withdraw(reg, |hw| queue::clear(hw, Unit::Rma, vpid));
}

/// The commands: what the notification in class k says is `number` + k.
fn commands(
    node: NodeId,
    vpid: Vpid,
    number: u64,
) -> impl Iterator<Item = Result<(u32, [u64; 3])>> {
    (0..CLASSES).map(move |class| {
        let options = PageOptions {
            traffic_class: class,
            rra: false,
            irq: false,
            translate: true,
        };
        let descriptor = Descriptor {
            node,
            vpid,
            notify: NotifySpec {
                requester: true,
                ..NotifySpec::NONE
            },
            modifiers: Modifiers::NONE,
            op: Operation::NotificationPut {
                class: 0,
                value: number.wrapping_add(class.into()),
            },
        };
        let words = descriptor.encode().map_err(|_| EINVAL)?;
        Ok((RequesterAddr::page(vpid, options).encode(), words))
    })
}

/// A queue of a page.
fn new_queue(ctx: &Context, vpid: Vpid) -> Result<Queue> {
    let layout = Layout::new(SlotCode::B16, QUEUE_BYTES, QUEUE_BYTES)?;
    ctx.with_bound(|dev| Queue::new(dev, Unit::Rma, vpid, layout))?
}

/// Takes what is in a slot.
fn take(queue: &Queue, slot: u32) -> Option<[u64; 2]> {
    let slot = queue.slot(slot)?;
    let status = slot.status();
    if status == 0 {
        return None;
    }
    barrier::dma_rmb();
    let content = [slot.word(0), status];
    slot.free();
    Some(content)
}

fn start(queue: &Queue, hw: &Hw, vpid: Vpid, protection: u16) -> Result {
    queue.install(hw, false)?;
    let entry = VpidTable(rma::VPID_ENABLED).with_prot_desc(protection);
    hw.rf.write(rma::vpid_table(vpid), entry.raw());
    Ok(())
}

fn run(queue: &Queue, ctx: &Context, vpid: Vpid, protection: u16, patience_ms: i64) -> bool {
    let number = security::random();
    {
        let Some(hw) = ctx.alive_access() else {
            return true;
        };
        if start(queue, &hw, vpid, protection).is_err() {
            return false;
        }
    }
    let began: Instant<Monotonic> = Instant::now();
    let (mut seen, mut next, mut pause, mut post_all) = (0u32, 0, 10, true);
    loop {
        {
            let Some(hw) = ctx.alive_access() else {
                return true;
            };
            let reg = wcbuf::state(Unit::Rma, vpid);
            // The NIC drops commands at times (HW §8), and goes on when it is told that this was seen.
            let state = State(hw.rf.read(reg));
            if state.retry() && !state.is_all_ones() {
                tx::reset_state(&hw, Unit::Rma, vpid);
                post_all = true;
            }
            if core::mem::take(&mut post_all) && !post(&hw, ctx.node(), vpid, number, seen) {
                return false;
            }
        }
        let before = next;
        // What is left of the owner may notify without end; the deadline holds all the same.
        for _ in 0..queue.slots() {
            let Some(content) = take(queue, next) else {
                break;
            };
            seen |= class_of(content, number).map_or(0, |class| 1 << class);
            next = queue.next(next, 1);
        }
        if seen == (1 << CLASSES) - 1 {
            return residue::settle(ctx, Unit::Rma, vpid, patience(SETTLE_MS));
        }
        if next != before {
            let Some(hw) = ctx.alive_access() else {
                return true;
            };
            barrier::wmb();
            queue.commit(&hw, next, false);
        }
        if began.elapsed().as_millis() >= patience_ms {
            return false;
        }
        fsleep(Delta::from_micros(pause));
        pause = (2 * pause).min(PAUSE_US);
    }
}

/// Posts the commands of the classes that are not in `seen`.
fn post(hw: &Hw, node: NodeId, vpid: Vpid, number: u64, seen: u32) -> bool {
    commands(node, vpid, number)
        .enumerate()
        .filter(|(class, _)| seen & (1 << class) == 0)
        .all(|(_, command)| {
            command.is_ok_and(|(page, words)| {
                hw.window(Unit::Rma).push(page, &words);
                true
            })
        })
}

/// Traffic class of the command that `words` tells of, if it is one of those posted with `number`.
fn class_of(words: [u64; 2], number: u64) -> Option<u64> {
    let told = Notification::decode(words).ok().flatten()?;
    let class = told.word0.wrapping_sub(number);
    let ours = told.kind == NotificationType::Requester
        && told.command == Command::NotificationPut
        && told.error == 0
        && class < CLASSES.into();
    ours.then_some(class)
}
