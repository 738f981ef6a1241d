//! Buffer queues: VELO mailboxes and RMA notification queues in host memory (HW §7, G10).

mod segments;

use self::segments::Layout;
use super::noti::Vectors;
use super::{FullRule, HoldClosed, HoldScope, LossyRing, Nic, Te, VeloMessage};
use crate::env::{Env, Stream};
use crate::lane::Receipt;
use std::collections::VecDeque;
use wire::bq::{General, Rp, SegmentWord, SlotCode, WritePointers};
use wire::ids::{RegOffset, Unit, Vpid};
use wire::regs::{rma_bq, velo_bq};

const QUEUES: usize = 256;
/// Bit `enable` of the timeout registers (HW §9.3, §10.7).
const TIMEOUT_ENABLE: u64 = 1 << 32;

/// Lowest VPID that is reserved for the kernel (HW §4.2).
const KERNEL: u8 = Vpid::USER_END.get() as u8;

/// An item to store in a queue.
pub(super) enum Item {
    /// A VELO message, which uses one slot, or up to three small slots.
    Message(Box<VeloMessage>),
    /// Last two words of a forged mailbox slot, which raises an interrupt.
    Slot([u64; 2]),
    /// An RMA notification, and true to raise an interrupt.
    Notification([u64; 2], bool),
}

impl Item {
    /// Returns the approximate number of bytes of the emulator's memory that the item uses while it
    /// is held.
    fn cost(&self) -> u64 {
        match self {
            Item::Message(_) => 256,
            Item::Slot(_) | Item::Notification(..) => 64,
        }
    }
}

struct Held {
    item: Item,
    /// Time in ns at which the item arrived, or at which the item before it was removed, whichever
    /// is later.
    since_ns: u64,
    /// Credit of the sender that the item's packet uses.
    receipt: Option<Receipt>,
    /// Stream of the item's packet. The item stays behind the data of its transfer even if it waits
    /// for long.
    stream: Option<Stream>,
}

#[derive(Default)]
struct Queue {
    ub: u64,
    dcq: u64,
    current: u64,
    next: u64,
    wp_dcq_rp: u64,
    lwp: u32,
    lrp: u32,
    rp: u64,
    /// Flag of [`FullRule::FlagOnEqual`] that the queue is full.
    full: bool,
    /// True after a timeout until a slot becomes free. New items are dropped at once in that time.
    timed_out: bool,
    layout: Option<Box<Layout>>,
    hold: VecDeque<Held>,
}

impl Queue {
    fn valid(&self) -> bool {
        SegmentWord(self.current).valid()
    }

    /// Returns the total number of slots.
    fn slots(&self) -> u64 {
        u64::from(self.ub as u32) + 1
    }
}

/// Result of the check for free slots.
enum Room {
    Yes,
    Wait,
    Never,
}

/// State of all queues of a unit.
pub(super) struct BufferQueues {
    unit: Unit,
    general: u64,
    queues: Vec<Queue>,
    /// All held items in order of arrival, if the scope is [`HoldScope::Unit`].
    hold: VecDeque<(u8, Held)>,
    held_cost: u64,
    held: usize,
    pub(super) vectors: Vectors,
}

impl BufferQueues {
    pub(super) fn new(unit: Unit) -> Self {
        let mut queues = Vec::new();
        queues.resize_with(QUEUES, Queue::default);
        Self {
            unit,
            general: 0,
            queues,
            hold: VecDeque::new(),
            held_cost: 0,
            held: 0,
            vectors: Vectors::default(),
        }
    }

    pub(super) fn reset(&mut self) {
        *self = Self::new(self.unit);
    }

    /// Returns the number of held items.
    pub(super) fn holding(&self) -> usize {
        self.held
    }

    /// Returns the earliest `since_ns` of the items that are first in their queue.
    fn oldest(&self) -> Option<u64> {
        if self.held == 0 {
            return None;
        }
        let per_vpid = self.queues.iter().filter_map(|q| q.hold.front());
        let all = per_vpid.chain(self.hold.front().map(|(_, h)| h));
        all.map(|h| h.since_ns).min()
    }

    fn room(&self, vpid: u8, slots: u32, rule: FullRule) -> Room {
        let q = &self.queues[usize::from(vpid)];
        let size = q.slots();
        let after = |n: u32| (u64::from(q.lwp) + u64::from(n)) % size;
        let lrp = u64::from(q.lrp);
        let (never, wait) = match rule {
            FullRule::KeepOneFree => (
                u64::from(slots) >= size,
                (1..=slots).any(|n| after(n) == lrp),
            ),
            FullRule::FlagOnEqual => (
                u64::from(slots) > size,
                q.full || (1..slots).any(|n| after(n) == lrp),
            ),
        };
        match (never, wait) {
            (true, _) => Room::Never,
            (_, true) => Room::Wait,
            _ => Room::Yes,
        }
    }
}

/// Registers of one queue.
enum Reg {
    General,
    Ub,
    Dcq,
    Current,
    Next,
    Pointers,
    Rp,
}

fn locate(unit: Unit, offset: RegOffset) -> Option<(Reg, u8)> {
    let base = match unit {
        Unit::Velo => velo_bq::GENERAL,
        Unit::Rma => rma_bq::GENERAL,
    };
    let at = offset.0.checked_sub(base.0)?;
    let vpid = ((at % 0x800) / 8) as u8;
    Some(match at {
        0 => (Reg::General, 0),
        0x0800..=0x0FFF => (Reg::Ub, vpid),
        0x1000..=0x17FF => (Reg::Dcq, vpid),
        0x1800..=0x1FFF => (Reg::Current, vpid),
        0x2000..=0x27FF => (Reg::Next, vpid),
        0x2800..=0x2FFF => (Reg::Pointers, vpid),
        0x10_0000..=0x1F_FFFF => (Reg::Rp, (at >> 12) as u8),
        _ => return None,
    })
}

impl Nic {
    fn queue(&mut self, unit: Unit, vpid: u8) -> &mut Queue {
        &mut self.queues[unit as usize].queues[usize::from(vpid)]
    }

    fn slot_code(&self, unit: Unit) -> SlotCode {
        match unit {
            Unit::Velo if self.velo_slot_size() == wire::velo::SlotSize::B128 => SlotCode::B128,
            Unit::Velo => SlotCode::B64,
            Unit::Rma => SlotCode::B16,
        }
    }

    pub(super) fn queue_reg_read(&mut self, unit: Unit, offset: RegOffset) -> Option<u64> {
        let (reg, vpid) = locate(unit, offset)?;
        let general = self.queues[unit as usize].general;
        let q = self.queue(unit, vpid);
        Some(match reg {
            Reg::General => general,
            Reg::Ub => q.ub,
            Reg::Dcq => q.dcq,
            Reg::Current => q.current,
            Reg::Next => q.next,
            Reg::Pointers => {
                let mut p = WritePointers(q.wp_dcq_rp).with_lwp(q.lwp);
                if let Some(&(_, first, _)) =
                    q.layout.as_ref().and_then(|l| l.segments.get(l.current))
                {
                    p = p.with_wp(q.lwp.saturating_sub(first) as u16);
                }
                p.raw()
            }
            Reg::Rp => q.rp,
        })
    }

    pub(super) fn queue_reg_write(
        &mut self,
        unit: Unit,
        offset: RegOffset,
        value: u64,
        env: &mut Env<'_>,
    ) -> bool {
        let Some((reg, vpid)) = locate(unit, offset) else {
            return false;
        };
        let q = self.queue(unit, vpid);
        match reg {
            Reg::General => self.queues[unit as usize].general = value,
            Reg::Ub => {
                q.ub = value;
                q.layout = None;
            }
            Reg::Dcq => {
                q.dcq = value;
                q.layout = None;
            }
            Reg::Current => {
                q.current = value;
                q.layout = None;
                q.timed_out = false;
                if q.valid() {
                    // The held items were for the previous queue.
                    self.drop_held(unit, vpid, env);
                } else {
                    self.forget_interrupt(unit, vpid);
                    self.close_held(unit, vpid, env);
                }
            }
            Reg::Next => {
                q.next = value;
                q.layout = None;
            }
            Reg::Pointers => {
                q.wp_dcq_rp = value;
                q.lwp = WritePointers(value).lwp();
            }
            Reg::Rp => {
                let rp = Rp(value);
                q.lrp = rp.lrp();
                q.rp = value;
                q.full = false;
                let outside = q.valid() && u64::from(q.lrp) >= q.slots();
                if outside && vpid >= KERNEL {
                    self.bad_slot(env, || {
                        format!("{unit} queue of VPID {vpid}: read pointer {value:#x}")
                    });
                }
                let room = self.queues[unit as usize].room(vpid, 1, self.cfg.full_rule);
                if matches!(room, Room::Yes) {
                    self.queue(unit, vpid).timed_out = false;
                }
                self.release(unit, vpid, env);
                if rp.irq_retrigger() {
                    self.arm_interrupt(unit, vpid);
                }
            }
        }
        true
    }

    /// Discards the segment layouts after a change of the slot sizes. The segments are checked
    /// again at the next use.
    pub(super) fn forget_layouts(&mut self, unit: Unit) {
        for q in &mut self.queues[unit as usize].queues {
            q.layout = None;
        }
    }

    /// Stores an item in the queue of `vpid`, holds it while the queue is full, or drops it.
    pub(super) fn queue_put(&mut self, unit: Unit, vpid: u8, item: Item, env: &mut Env<'_>) {
        let all = &self.queues[unit as usize];
        if !General(all.general).enable() || !all.queues[usize::from(vpid)].valid() {
            self.counters.drops.queue_invalid = self.counters.drops.queue_invalid.wrapping_add(1);
            self.diagnose(env, || {
                format!("{unit} queue of VPID {vpid} is not set up: dropped")
            });
            return;
        }
        let behind = match self.cfg.hold_scope {
            HoldScope::Vpid => !all.queues[usize::from(vpid)].hold.is_empty(),
            HoldScope::Unit => !all.hold.is_empty(),
        };
        let item = if behind {
            item
        } else {
            match self.try_store(unit, vpid, item, env) {
                Some(item) => item,
                None => {
                    self.queue(unit, vpid).timed_out = false;
                    return;
                }
            }
        };
        if self.queue(unit, vpid).timed_out {
            self.drop_late(unit, vpid);
        } else {
            self.hold(unit, vpid, item, env);
        }
    }

    /// Stores or drops the item. Returns the item if it must wait.
    fn try_store(&mut self, unit: Unit, vpid: u8, item: Item, env: &mut Env<'_>) -> Option<Item> {
        let slots = match &item {
            Item::Message(m) => self.velo_slot_size().slots_for(m.len.into()),
            Item::Slot(_) | Item::Notification(..) => 1,
        };
        if self.forced_full(unit, vpid, slots) {
            return Some(item);
        }
        match self.queues[unit as usize].room(vpid, slots, self.cfg.full_rule) {
            Room::Wait => return Some(item),
            Room::Never => {
                self.queue_bad(unit, vpid, env, || {
                    format!("too small for an item of {slots} slots")
                });
                return None;
            }
            Room::Yes => {}
        }
        let mut at = [0u64; 3];
        let at = &mut at[..slots.min(3) as usize];
        if let Err(why) = self.slot_addresses(unit, vpid, at, env) {
            self.queue_bad(unit, vpid, env, || why);
            return None;
        }
        self.check_slots(unit, vpid, at, env);
        let ring = match unit {
            Unit::Velo => LossyRing::Velo,
            Unit::Rma => LossyRing::Rma,
        };
        let lost = self.lost_slots(ring, vpid, slots);
        env.host.enter(Stream::Queue(unit, vpid));
        let stored = match &item {
            Item::Message(m) => self.velo_write_slots(m, at, lost, env),
            Item::Slot(_) | Item::Notification(..) if lost != 0 => Ok(()),
            Item::Slot(words) => {
                let end = at[0].wrapping_add(self.velo_slot_size().status_offset().into());
                self.write_notification(*words, end.wrapping_sub(8), env)
            }
            Item::Notification(words, _) => self.write_notification(*words, at[0], env),
        };
        env.host.leave();
        if stored.is_err() {
            self.counters.drops.dma = self.counters.drops.dma.wrapping_add(1);
        }
        // Writes are posted, so after a failed write the chip still advances its pointer and raises
        // the interrupt.
        let stored = stored.is_ok() && lost == 0;
        let q = self.queue(unit, vpid);
        q.lwp = ((u64::from(q.lwp) + u64::from(slots)) % q.slots()) as u32;
        q.full = q.lwp == q.lrp;
        let interrupt = match item {
            Item::Message(m) => {
                let velo = &mut self.counters.velo;
                velo.received = velo.received.wrapping_add(stored.into());
                let bytes = if stored { m.len.into() } else { 0 };
                velo.bytes_received = velo.bytes_received.wrapping_add(bytes);
                m.interrupt
            }
            Item::Slot(_) => true,
            Item::Notification(_, interrupt) => {
                let n = &mut self.counters.rma.notifications;
                *n = n.wrapping_add(stored.into());
                interrupt
            }
        };
        if interrupt {
            self.request_interrupt(unit, vpid);
        }
        None
    }

    fn write_notification(
        &mut self,
        words: [u64; 2],
        at: u64,
        env: &mut Env<'_>,
    ) -> Result<(), ()> {
        // Word 1 marks the slot as full, so it is written last.
        self.dma_write(at, &words[0].to_le_bytes(), env)
            .map_err(drop)?;
        self.dma_write(at.wrapping_add(8), &words[1].to_le_bytes(), env)
            .map_err(drop)
    }

    /// Reports slots that software returned without clearing their status word (HW §7, §9.5).
    /// Queues of user processes are not checked, because the kernel does not control them.
    fn check_slots(&mut self, unit: Unit, vpid: u8, at: &[u64], env: &mut Env<'_>) {
        if vpid < KERNEL || !self.bus_master {
            return;
        }
        let status = u64::from(self.slot_code(unit).bytes()) - 8;
        for slot in at {
            let mut raw = [0; 8];
            if env.host.peek(slot.wrapping_add(status), &mut raw) && raw != [0; 8] {
                self.bad_slot(env, || {
                    format!("{unit} queue of VPID {vpid}: slot at {slot:#x} was not cleared")
                });
            }
        }
    }

    fn bad_slot(&mut self, env: &mut Env<'_>, text: impl FnOnce() -> String) {
        self.counters.bad_slots = self.counters.bad_slots.wrapping_add(1);
        self.diagnose(env, text);
    }

    /// Counts an error of a queue and raises the event for it.
    fn queue_error(&mut self, unit: Unit, vpid: u8, set: impl Fn(General) -> General) {
        let word = &mut self.queues[unit as usize].general;
        let g = General(*word);
        *word = set(g)
            .with_error_queue(vpid)
            .with_error_count(g.error_count().wrapping_add(1))
            .raw();
        self.raise(Te::BqError);
    }

    fn queue_bad(&mut self, unit: Unit, vpid: u8, env: &mut Env<'_>, why: impl FnOnce() -> String) {
        self.counters.drops.queue_bad = self.counters.drops.queue_bad.wrapping_add(1);
        self.queue_error(unit, vpid, |g| g.with_ub_assert(true));
        self.diagnose(env, || format!("{unit} queue of VPID {vpid}: {}", why()));
    }

    /// Returns true if an item of `slots` slots must wait because of the fault
    /// [`super::Faults::queue_full`].
    fn forced_full(&self, unit: Unit, vpid: u8, slots: u32) -> bool {
        let q = &self.queues[unit as usize].queues[usize::from(vpid)];
        let size = q.slots();
        let used = (u64::from(q.lwp) % size + size - u64::from(q.lrp) % size) % size;
        let full = |limit| used + u64::from(slots) > u64::from(limit);
        let mut faults = self.cfg.faults.queue_full.iter();
        faults.any(|f| {
            Unit::from(f.unit) == unit
                && f.vpid.is_none_or(|v| v == vpid)
                && f.slots.is_none_or(full)
        })
    }

    fn count_held(&mut self, unit: Unit, vpid: u8, change: i64, new: bool) {
        let held = self.queues[unit as usize].held as u64;
        let (holding, total) = match unit {
            Unit::Velo => (
                &mut self.counters.velo.holding,
                &mut self.counters.velo.held,
            ),
            Unit::Rma => (&mut self.counters.rma.holding, &mut self.counters.rma.held),
        };
        *holding = held;
        *total = total.wrapping_add(new.into());
        // Items are counted even if this NIC does not inject the fault, because requesters of other
        // NICs read the count.
        let node = self.info.node_id();
        let n = self.tx.pressure.waiting(node, unit, vpid);
        let n = i64::from(n)
            .saturating_add(change)
            .clamp(0, u32::MAX.into());
        self.tx.pressure.set(node, unit, vpid, n as u32);
    }

    fn hold(&mut self, unit: Unit, vpid: u8, item: Item, env: &mut Env<'_>) {
        let cost = item.cost();
        let limit = self.cfg.hold_limit_bytes;
        let scope = self.cfg.hold_scope;
        let all = &mut self.queues[unit as usize];
        let over = all.held_cost.saturating_add(cost) > limit;
        if over {
            self.counters.drops.hold_limit = self.counters.drops.hold_limit.wrapping_add(1);
            self.queue_error(unit, vpid, |g| g.with_timeout_assert(true));
            self.bq_timeout_error(unit);
            self.diagnose(env, || {
                format!("{unit} queue of VPID {vpid} stays full and the hold buffer is exhausted: item dropped")
            });
            return;
        }
        let held = Held {
            item,
            since_ns: env.host.now_ns(),
            receipt: self.tx.receipt.take(),
            stream: self.tx.stream,
        };
        let all = &mut self.queues[unit as usize];
        all.held_cost += cost;
        all.held += 1;
        match scope {
            HoldScope::Vpid => all.queues[usize::from(vpid)].hold.push_back(held),
            HoldScope::Unit => all.hold.push_back((vpid, held)),
        }
        self.count_held(unit, vpid, 1, true);
    }

    fn unhold(&mut self, unit: Unit, vpid: u8, cost: u64) {
        let all = &mut self.queues[unit as usize];
        all.held_cost = all.held_cost.saturating_sub(cost);
        all.held = all.held.saturating_sub(1);
        self.count_held(unit, vpid, -1, false);
    }

    /// Stores a held item as [`Nic::try_store`] does.
    fn try_release(&mut self, unit: Unit, vpid: u8, held: Held, env: &mut Env<'_>) -> Option<Held> {
        let Held {
            item,
            since_ns,
            receipt,
            stream,
        } = held;
        if let Some(stream) = stream {
            env.host.enter(stream);
        }
        let left = self.try_store(unit, vpid, item, env);
        if stream.is_some() {
            env.host.leave();
        }
        left.map(|item| Held {
            item,
            since_ns,
            receipt,
            stream,
        })
    }

    /// Returns true if the held items of the queue of `vpid` can't be stored because the queue is
    /// closed.
    fn is_stuck(&self, unit: Unit, vpid: u8) -> bool {
        let queue = &self.queues[unit as usize].queues[usize::from(vpid)];
        self.cfg.hold_closed == HoldClosed::Keep && !(queue.valid() && self.accepts(unit, vpid))
    }

    /// Drops or keeps the held items of a closed queue, depending on the options.
    pub(super) fn close_held(&mut self, unit: Unit, vpid: u8, env: &mut Env<'_>) {
        match self.cfg.hold_closed {
            HoldClosed::Drop => self.drop_held(unit, vpid, env),
            HoldClosed::Keep => {}
        }
    }

    /// Stores held items of the queue of `vpid` until the queue is full.
    fn release(&mut self, unit: Unit, vpid: u8, env: &mut Env<'_>) {
        if self.queues[unit as usize].held == 0 {
            return;
        }
        while !self.is_stuck(unit, vpid) {
            let Some(held) = self.queue(unit, vpid).hold.pop_front() else {
                break;
            };
            let cost = held.item.cost();
            if let Some(held) = self.try_release(unit, vpid, held, env) {
                self.queue(unit, vpid).hold.push_front(held);
                break;
            }
            self.unhold(unit, vpid, cost);
            self.hold_moved(unit, vpid, env);
        }
        while let Some((vpid, held)) = self.queues[unit as usize].hold.pop_front() {
            if self.is_stuck(unit, vpid) {
                self.queues[unit as usize].hold.push_front((vpid, held));
                break;
            }
            let cost = held.item.cost();
            if let Some(held) = self.try_release(unit, vpid, held, env) {
                let all = &mut self.queues[unit as usize];
                all.hold.push_front((vpid, held));
                break;
            }
            self.unhold(unit, vpid, cost);
            self.hold_moved(unit, vpid, env);
        }
    }

    /// Restarts the timeout of the items that are now first in their queue, because until now they
    /// waited behind other items.
    fn hold_moved(&mut self, unit: Unit, vpid: u8, env: &mut Env<'_>) {
        let now = env.host.now_ns();
        let all = &mut self.queues[unit as usize];
        if let Some(held) = all.queues[usize::from(vpid)].hold.front_mut() {
            held.since_ns = now;
        }
        if let Some((_, held)) = all.hold.front_mut() {
            held.since_ns = now;
        }
    }

    /// Calls [`Nic::release`] for every queue.
    pub(super) fn release_all(&mut self, env: &mut Env<'_>) {
        for unit in [Unit::Velo, Unit::Rma] {
            for vpid in 0..=255 {
                self.release(unit, vpid, env);
            }
        }
    }

    /// Removes and returns the held items of the queue of `vpid`.
    fn take_held(&mut self, unit: Unit, vpid: u8) -> Vec<Held> {
        let mut taken: Vec<Held> = self.queue(unit, vpid).hold.drain(..).collect();
        let queued = std::mem::take(&mut self.queues[unit as usize].hold);
        for (v, held) in queued {
            if v == vpid {
                taken.push(held);
            } else {
                self.queues[unit as usize].hold.push_back((v, held));
            }
        }
        taken
    }

    /// Drops the held items of the queue of `vpid`, so that a closed queue does not block other
    /// queues.
    pub(super) fn drop_held(&mut self, unit: Unit, vpid: u8, env: &mut Env<'_>) {
        if self.queues[unit as usize].held == 0 {
            return;
        }
        let first = self.queues[unit as usize].hold.front();
        let led = first.is_some_and(|(v, _)| *v == vpid);
        let dropped = self.take_held(unit, vpid);
        for held in dropped {
            self.unhold(unit, vpid, held.item.cost());
            self.counters.drops.hold_closed = self.counters.drops.hold_closed.wrapping_add(1);
        }
        if led {
            self.hold_moved(unit, vpid, env);
        }
        // Items of other queues may have waited behind the dropped items.
        self.release(unit, vpid, env);
    }

    /// Returns true if the unit's hold buffer is full. The unit then accepts no packets from the
    /// network.
    pub(super) fn hold_full(&self, unit: Unit) -> bool {
        self.queues[unit as usize].held_cost >= self.cfg.hold_buffer_bytes
    }

    /// Returns the time in ns for which a full queue may block the unit, from the unit's timeout
    /// register (HW §9.3, §10.7).
    fn hold_time(&self, unit: Unit) -> Option<u64> {
        let at = match unit {
            Unit::Velo => wire::regs::velo::TIMEOUT,
            Unit::Rma => wire::regs::rma::BQ_TIMEOUT,
        };
        let word = self.storage.at(at.0);
        let programmed = u64::from(word as u32).saturating_mul(self.cfg.hold_timeout_unit_ns);
        let programmed = (word & TIMEOUT_ENABLE != 0).then_some(programmed);
        self.cfg.hold_time_ns.or(programmed)
    }

    /// Returns the time at which the next full queue times out. A queue times out when it has
    /// accepted no item for [`Nic::hold_time`] (HW §9.6).
    pub(super) fn hold_deadline(&self, unit: Unit) -> Option<u64> {
        let oldest = self.queues[unit as usize].oldest()?;
        Some(oldest.saturating_add(self.hold_time(unit)?))
    }

    /// Handles queues that have timed out, so that they no longer block the unit. Drops their held
    /// items, and all further items until a slot becomes free (MODEL decision).
    pub(super) fn expire_holds(&mut self, now_ns: u64, env: &mut Env<'_>) {
        for unit in [Unit::Velo, Unit::Rma] {
            while self.hold_deadline(unit).is_some_and(|at| at <= now_ns) {
                let all = &self.queues[unit as usize];
                let oldest = all.oldest();
                let is_oldest = |h: Option<&Held>| h.map(|h| h.since_ns) == oldest;
                let in_unit = all.hold.front().filter(|(_, h)| is_oldest(Some(h)));
                let mut per_vpid = (0..=255).zip(&all.queues);
                let late = match in_unit {
                    Some((vpid, _)) => Some(*vpid),
                    None => per_vpid.find_map(|(v, q)| is_oldest(q.hold.front()).then_some(v)),
                };
                let Some(vpid) = late else {
                    break;
                };
                self.queue(unit, vpid).timed_out = true;
                let word = &mut self.queues[unit as usize].general;
                *word = General(*word).with_timeout_assert(true).raw();
                self.raise(Te::BqError);
                self.bq_timeout_error(unit);
                self.diagnose(env, || {
                    format!("{unit} queue of VPID {vpid} accepted no item for the whole time-out: held items dropped")
                });
                for held in self.take_held(unit, vpid) {
                    self.unhold(unit, vpid, held.item.cost());
                    self.drop_late(unit, vpid);
                }
                self.hold_moved(unit, vpid, env);
                // Items of other queues may have waited behind the dropped items.
                self.release(unit, vpid, env);
            }
        }
    }

    /// Counts an item that is dropped because its queue stayed full.
    fn drop_late(&mut self, unit: Unit, vpid: u8) {
        self.counters.drops.hold_limit = self.counters.drops.hold_limit.wrapping_add(1);
        let word = &mut self.queues[unit as usize].general;
        let g = General(*word);
        let count = g.error_count().wrapping_add(1);
        *word = g.with_error_queue(vpid).with_error_count(count).raw();
    }

    /// Returns the slot size that VELO currently uses.
    pub(super) fn velo_slot_size(&self) -> wire::velo::SlotSize {
        if self.velo.slots_128 {
            wire::velo::SlotSize::B128
        } else {
            wire::velo::SlotSize::B64
        }
    }
}
