// SPDX-License-Identifier: GPL-2.0-only

//! Waits until the NIC has executed all commands of a closed RMA port.
//!
//! The network may block commands that the NIC has already accepted. When the NIC executes such a
//! command later, it uses the VPID's current table entry (HW §10.7). If the VPID had a new owner,
//! the command would run with that owner's protection descriptor and translations. A VPID is
//! therefore reused only after all its commands are executed.
//!
//! To detect that, the driver posts one command in each traffic class, because the NIC executes a
//! VPID's commands in order within a class (HW §10.8). Each of these commands requests a
//! notification with a random number, in a queue that no process can read.
//!
//! The functions run in process context, sleep, and acquire no locks.

use crate::{
    context::Context,
    hw::Hw,
    queue::{self, Layout, Queue},
    quirks, reclaim,
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
/// Maximum pause between two polls, in microseconds.
const PAUSE_US: i64 = 1000;
const QUEUE_BYTES: u64 = BusAddr::PAGE_SIZE;

/// Waits up to `patience_ms` milliseconds until all commands of an RMA VPID are executed. Before
/// and after the call, the VPID is closed and has neither translations nor a queue. `protection` is
/// the protection descriptor that its commands had. If the NIC was removed, the result is true. May
/// sleep.
pub(crate) fn wait_executed(ctx: &Context, vpid: Vpid, protection: u16, patience_ms: i64) -> bool {
    if !ctx.is_alive() {
        return true;
    }
    new_queue(ctx, vpid).is_ok_and(|queue| {
        let done = run(&queue, ctx, vpid, protection, patience_ms);
        remove(&queue, ctx, vpid);
        done
    })
}

/// Disables the VPID and removes its queue. Drains the queue, because packets that wait for free
/// slots could block queues of other VPIDs. May sleep.
fn remove(queue: &Queue, ctx: &Context, vpid: Vpid) {
    let reg = BqRegs(Unit::Rma).ub(vpid);
    queue.drain(ctx);
    if let Some(hw) = ctx.alive_access() {
        hw.rf.write(rma::vpid_table(vpid), rma::VPID_DISABLED);
        hw.rf.read(reg);
    }
    // Drains notifications that arrived after the first draining and before the VPID was disabled.
    queue.drain(ctx);
    ctx.revoke_confirmed(reg, |hw| queue::clear(hw, Unit::Rma, vpid));
}

/// Returns one command for each traffic class. The notification of class k contains `number` + k.
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

/// Allocates a queue of one page.
fn new_queue(ctx: &Context, vpid: Vpid) -> Result<Queue> {
    let layout = Layout::new(SlotCode::B16, QUEUE_BYTES, QUEUE_BYTES)?;
    ctx.with_bound(|dev| Queue::new(dev, Unit::Rma, vpid, layout))?
}

/// Removes the entry in a slot and returns its content; `None` if the slot is empty.
fn pop(queue: &Queue, slot: u32) -> Option<[u64; 2]> {
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
            // The NIC may drop commands (HW §8). It accepts new ones after the driver has cleared
            // the retry flag.
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
        // A pass processes at most one notification per slot, because pending commands of the
        // former owner may produce notifications continuously.
        for _ in 0..queue.slots() {
            let Some(content) = pop(queue, next) else {
                break;
            };
            seen |= class_of(content, number).map_or(0, |class| 1 << class);
            next = queue.next(next, 1);
        }
        if seen == (1 << CLASSES) - 1 {
            return reclaim::wait_idle(ctx, Unit::Rma, vpid, patience(quirks::RMA_SETTLE_MS));
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

/// Posts the commands of the traffic classes that are not in the bitmap `seen`.
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

/// Returns the traffic class of the posted command that the notification `words` reports; `None` if
/// it reports another command.
fn class_of(words: [u64; 2], number: u64) -> Option<u64> {
    let notification = Notification::decode(words).ok().flatten()?;
    let class = notification.word0.wrapping_sub(number);
    let ours = notification.kind == NotificationType::Requester
        && notification.command == Command::NotificationPut
        && notification.error == 0
        && class < CLASSES.into();
    ours.then_some(class)
}
