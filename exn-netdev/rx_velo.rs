// SPDX-License-Identifier: GPL-2.0-only

//! Messages: eager frames are put together, announced ones fetched, and all of a source delivered in the order in which it sent them. And
//! the housekeeping of the interface.

use crate::{
    conf,
    machine::{Clock, Frame, Locked, Order, RxBuffer, Slots, Waiting},
    reason::{Counter, Reason},
    rx_rma::checksum,
    shared::{delay, ms, since, Shared},
};
use extoll_core::{
    rma::{self, SendError},
    velo,
};
use kernel::{prelude::*, sync::atomic::Relaxed};
use kernel_ext::{
    mem::BoundDevice,
    net::{self, PollCx, RxMapping, RxSkb},
};
use protocol::{
    order::Ticket,
    poll::{Horizon, Settled, Work},
    rendezvous::{Announced, FetchPort, Refusal},
    Clock as _, Refused, Time,
};
use wire::{
    ext_eth::{self, Announcement, Message, Progress, Reassembler, Reject},
    ids::NodeId,
};

/// A source whose frame is incomplete, or whose broken frame has not ended.
struct Partial {
    asm: Reassembler,
    skb: Option<RxSkb>,
    /// Last fragment, in jiffies.
    touched: u64,
}

/// What the machine fetches with.
struct Gets<'a> {
    sh: &'a Shared,
    requester: &'a rma::Requester,
    dev: &'a BoundDevice,
}

fn refused(e: SendError) -> Refused {
    match e {
        SendError::Full | SendError::Retry => Refused::Later,
        SendError::Down | SendError::Invalid => Refused::Never,
    }
}

impl FetchPort for Gets<'_> {
    type Buffer = RxBuffer;

    fn reserve(&mut self) -> Result<(), Refused> {
        self.requester.reserve(1).map_err(refused)
    }

    fn buffer(&mut self, len: u32) -> Option<RxBuffer> {
        let map = RxMapping::new(self.dev, &self.sh.ndev, len);
        map.ok().map(RxBuffer)
    }

    fn give_back(&mut self, RxBuffer(buffer): RxBuffer) {
        drop(buffer.discard(self.dev));
    }

    fn get(
        &mut self,
        from: NodeId,
        announcement: &Announcement,
        len: u32,
        local: u64,
    ) -> Result<(), Refused> {
        let descriptor = ext_eth::get_descriptor(from, announcement, len, local);
        self.requester
            .post(ext_eth::GET_PAGE.options, &descriptor)
            .map_err(refused)
    }
}

/// What only the poll function uses.
pub(crate) struct VeloState {
    pub(crate) mailbox: Option<velo::Mailbox>,
    pub(crate) rx: VeloRx,
    /// Something was taken from the mailbox since it was armed.
    pub(crate) used: bool,
}

impl VeloState {
    /// Without ports. May sleep.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            mailbox: None,
            rx: VeloRx {
                requester: None,
                settled: Settled::default(),
                partials: Slots::new(conf::PARTIALS)?,
                waiting: Waiting::new(conf::RX_WAITING)?,
                order: Order::new(conf::ORDER, conf::ORDER_PART)?,
                given_up: 0,
            },
            used: false,
        })
    }

    /// Arms the interrupt if it has come since, or something was taken. True if there is more.
    pub(crate) fn rearm(&mut self, sh: &Shared) -> bool {
        let fired = sh.velo_fired.xchg(false, Relaxed);
        let used = core::mem::take(&mut self.used);
        let mailbox = self.mailbox.as_mut().filter(|_| fired || used);
        mailbox.is_some_and(|mailbox| mailbox.rearm())
    }
}

/// Receiving side apart from the mailbox.
pub(crate) struct VeloRx {
    pub(crate) requester: Option<rma::Requester>,
    /// What the port has posted.
    settled: Settled,
    partials: Slots<Partial>,
    waiting: Waiting,
    order: Order,
    /// Announcements whose order was given up, as counted so far.
    given_up: u64,
}

fn reason_of(reject: &Reject) -> Reason {
    use ext_eth::Reason as W;
    match reject.reason {
        W::Empty | W::MessageLength => Reason::RxMessage,
        W::SourceVpid => Reason::RxSource,
        W::FragmentLength => Reason::RxFragmentLength,
        W::TagBreak | W::Tail => Reason::RxSequence,
        W::FrameTooLong => Reason::RxTooLong,
        W::Runt => Reason::RxShort,
        W::AnnouncementLength => Reason::RxAnnounceLength,
        W::AnnouncedSize => Reason::RxAnnounceSize,
        W::OwnGroupFrame => Reason::RxOwnMulticast,
        W::NotificationType | W::NotificationError => Reason::BadNotify,
        W::LastTag | W::DroppedLength | W::UnexpectedMtt => Reason::RxType,
    }
}

/// Hands a frame to the stack.
fn deliver(sh: &Shared, (skb, checksum, node): Frame, cx: &mut PollCx<'_>) {
    if let Err(skb) = cx.receive(skb, checksum) {
        sh.reject(Reason::RxShort, Some(node), u64::from(skb.len()));
    }
}

/// An announcement is not fetched.
fn refuse(sh: &Shared, node: NodeId, len: u32, why: Refusal) {
    match why {
        Refusal::Source(open) => sh.reject(Reason::RxPeerBound, Some(node), open as u64),
        Refusal::Waiting(n) => sh.reject(Reason::RxWaiting, Some(node), n as u64),
        Refusal::Stale => sh.reject(Reason::RxOld, Some(node), u64::from(len)),
        Refusal::Port => sh.reject(Reason::RxPort, Some(node), u64::from(len)),
    }
}

impl VeloRx {
    /// Takes the port into use. Its mailbox is new.
    pub(crate) fn start(&mut self, requester: rma::Requester) {
        self.requester = Some(requester);
        self.waiting.horizon().emptied(Clock.now());
    }

    /// Forgets everything received so far; returns the number of announcements and frames that were waiting. The ports are closed.
    pub(crate) fn flush(&mut self, sh: &Shared) -> usize {
        while self.partials.pop_oldest().is_some() {}
        self.settled = Settled::default();
        let mut n = self.waiting.flush(&Locked(&sh.rx));
        self.order.flush(|frame| {
            drop(frame);
            n += 1;
        });
        self.gauges(sh);
        n
    }

    /// All GETs that were given to the port before this are with the NIC.
    fn settle(&mut self) -> Time {
        self.requester.as_ref().map_or(Time::default(), |port| {
            let (given, posted) = port.progress();
            self.settled.update(Clock.now(), given, posted)
        })
    }

    fn gauges(&self, sh: &Shared) {
        sh.waiting.store(self.waiting.len() as u32, Relaxed);
        sh.partials.store(self.partials.len() as u32, Relaxed);
    }

    fn message(&mut self, sh: &Shared, message: &velo::Message<'_>, now: u64, cx: &mut PollCx<'_>) {
        let status = &message.status;
        let node = status.source.node;
        let mut bytes = [0u8; velo::MAX_LEN as usize];
        let n = message.copy_to(&mut bytes);
        let payload = bytes.get(..n).unwrap_or(&[]);
        if node.is_reserved() {
            return sh.reject(Reason::RxSource, Some(node), u64::from(status.source.raw()));
        }
        sh.heard(node, now);
        if status.err {
            // Semantics unknown (G9): such a message is not to be trusted, nor is what it would continue.
            if let Some(p) = self.partials.get_mut(u64::from(node.0)) {
                p.asm.abandon();
                p.skb = None;
            }
            return sh.reject(Reason::RxMessage, Some(node), u64::from(status.len));
        }
        match Message::parse(status, payload) {
            Ok(Message::Eager { tag, last, data }) => {
                self.eager(sh, node, tag, last, data, now, cx)
            }
            Ok(Message::Announcement(a)) => self.announced(sh, node, a, now),
            Ok(Message::Dropped { address }) => sh.tx_dropped(node, address),
            Err(reject) => sh.reject(reason_of(&reject), Some(node), reject.got),
        }
    }

    #[expect(clippy::too_many_arguments)]
    fn eager(
        &mut self,
        sh: &Shared,
        node: NodeId,
        tag: u8,
        last: bool,
        data: &[u8],
        now: u64,
        cx: &mut PollCx<'_>,
    ) {
        sh.count(Counter::RxFragments);
        let key = u64::from(node.0);
        let mut p = match self.partials.get_mut(key) {
            Some(_) => self.partials.remove(key),
            None => None,
        }
        .unwrap_or(Partial {
            asm: Reassembler::new(conf::MAX_FRAME),
            skb: None,
            touched: now,
        });
        p.touched = now;
        let mut several = false;
        let complete = match p.asm.push(sh.prefix, node, tag, last, data) {
            Progress::NeedMore { copy, discarded } => {
                if let Some(reject) = discarded {
                    sh.reject(reason_of(&reject), Some(node), reject.got);
                }
                if copy.offset == 0 {
                    let room = ext_eth::first_buffer_len(tag).min(conf::MAX_FRAME);
                    p.skb = RxSkb::alloc(&sh.ndev, room);
                }
                if !Self::append(sh, &mut p, data) {
                    p.asm.abandon();
                    p.skb = None;
                    sh.reject(Reason::RxNoMemory, Some(node), u64::from(copy.offset));
                }
                None
            }
            Progress::Complete {
                copy,
                len,
                discarded,
            } => {
                if let Some(reject) = discarded {
                    sh.reject(reason_of(&reject), Some(node), reject.got);
                }
                several = copy.offset != 0;
                if !several {
                    p.skb = cx.alloc(len);
                }
                let fits = Self::append(sh, &mut p, data);
                let skb = p.skb.take().filter(|_| fits);
                if skb.is_none() {
                    sh.reject(Reason::RxNoMemory, Some(node), u64::from(len));
                }
                skb
            }
            Progress::Reject(reject) => {
                p.skb = None;
                // The rest of a frame that was given up is counted once, with the break.
                if reject.reason != ext_eth::Reason::Tail {
                    sh.reject(reason_of(&reject), Some(node), reject.got);
                }
                None
            }
        };
        // Between frames there is nothing to remember.
        if p.asm != Reassembler::new(conf::MAX_FRAME) {
            if self.partials.is_full() {
                if let Some((old, _)) = self.partials.pop_oldest() {
                    sh.reject(Reason::RxPartials, Some(NodeId(old as u16)), 0);
                }
            }
            // Can't fail: there is a place, and the key was removed above.
            let _ = self.partials.insert(key, p);
        }
        if let Some(skb) = complete {
            self.eager_frame(sh, (skb, checksum(several), node), now, cx);
        }
    }

    /// Appends to the frame, in a larger buffer if need be (more than 256 fragments share tags).
    fn append(sh: &Shared, p: &mut Partial, data: &[u8]) -> bool {
        let Some(skb) = p.skb.as_mut() else {
            return false;
        };
        if skb.append(data).is_ok() {
            return true;
        }
        let Some(mut larger) = RxSkb::alloc(&sh.ndev, conf::MAX_FRAME) else {
            return false;
        };
        if larger.append(skb.data()).is_err() || larger.append(data).is_err() {
            return false;
        }
        p.skb = Some(larger);
        true
    }

    fn eager_frame(&mut self, sh: &Shared, frame: Frame, now: u64, cx: &mut PollCx<'_>) {
        let (skb, _, node) = &frame;
        let node = *node;
        if ext_eth::is_own_group_frame(skb.data(), node, sh.nic.node()) {
            return sh.reject(Reason::RxOwnMulticast, Some(node), u64::from(skb.len()));
        }
        sh.count(Counter::RxEager);
        match ext_eth::destination(skb.data()) {
            Some(ext_eth::BROADCAST) => sh.count(Counter::RxBroadcast),
            Some(mac) if ext_eth::is_group_mac(mac) => sh.count(Counter::RxMulticast),
            _ => {}
        }
        match self.order.complete(Time(now), node, frame) {
            Ok(()) => sh.count(Counter::RxHeld),
            Err(frame) => deliver(sh, frame, cx),
        }
    }

    /// An announced frame was fetched.
    pub(crate) fn fetched(
        &mut self,
        sh: &Shared,
        ticket: Option<Ticket>,
        frame: Frame,
        cx: &mut PollCx<'_>,
    ) {
        let late = match ticket {
            Some(ticket) => self.order.arrived(ticket, frame).err(),
            None => Some(frame),
        };
        if let Some(frame) = late {
            deliver(sh, frame, cx);
        }
    }

    /// The frame that was to have this place will not come.
    pub(crate) fn ended(&mut self, ticket: Ticket) {
        self.order.ended(ticket);
    }

    /// Delivers the frames whose turn it is.
    pub(crate) fn deliver(&mut self, sh: &Shared, cx: &mut PollCx<'_>) {
        while let Some(frame) = self.order.pop() {
            deliver(sh, frame, cx);
        }
        let given_up = self.order.given_up();
        if given_up != self.given_up {
            let more = given_up.wrapping_sub(self.given_up);
            self.given_up = given_up;
            sh.counters.add(Counter::RxUnordered, more);
        }
    }

    fn announced(&mut self, sh: &Shared, node: NodeId, announcement: Announcement, now: u64) {
        sh.count(Counter::RxAnnounced);
        if sh.is_gated() {
            // Waiting would hold back the network.
            return sh.reject(Reason::RxPort, Some(node), announcement.len);
        }
        let (len, discard) = match announcement.frame_len(conf::MAX_FRAME) {
            Ok(len) => (len, false),
            Err(reject) => {
                sh.reject(reason_of(&reject), Some(node), reject.got);
                // What can be fetched is, to free the sender's buffer.
                match u32::try_from(announcement.len) {
                    Ok(len) if len > 0 && len <= conf::MAX_FRAME => (len, true),
                    _ => return,
                }
            }
        };
        let announced = Announced {
            node,
            announcement,
            len,
            discard,
            ticket: match discard {
                true => None,
                false => self.order.announced(Time(now), node),
            },
        };
        if let Err(why) = self.waiting.push(&Clock, announced, &sh.limits()) {
            if let Some(ticket) = announced.ticket {
                self.order.ended(ticket);
            }
            return refuse(sh, node, len, why);
        }
        if self.waiting.len() == 1 {
            self.pump(sh);
        }
    }

    /// Fetches what waits, as far as possible.
    fn pump(&mut self, sh: &Shared) {
        let Some(requester) = self.requester.as_ref() else {
            return;
        };
        if self.waiting.is_empty() {
            return;
        }
        let limits = sh.limits();
        let (order, waiting) = (&mut self.order, &mut self.waiting);
        let pumped = sh.nic.with_bound_atomic(|dev| {
            let mut gets = Gets { sh, requester, dev };
            waiting.pump(
                &Locked(&sh.rx),
                &Clock,
                &mut gets,
                &limits,
                |refused, why| {
                    if let Some(ticket) = refused.ticket {
                        order.ended(ticket);
                    }
                    refuse(sh, refused.node, refused.len, why);
                },
            )
        });
        if pumped.is_ok_and(|pumped| pumped.taken == 0 && pumped.left > 0) {
            sh.count(Counter::RxDeferred);
        }
    }

    /// Whether something is pending that needs housekeeping.
    fn is_busy(&self, sh: &Shared) -> bool {
        !self.waiting.is_empty()
            || !self.partials.is_empty()
            || !self.order.is_empty()
            || !sh.rx.lock().is_empty()
            || sh.tx.lock().needs_tick()
    }

    /// Discards partial frames that don't go on, and lets go past what is not fetched in time.
    fn age(&mut self, sh: &Shared, now: u64) {
        self.order.expire(Time(now), ms(conf::ORDER_MS));
        let limit = ms(conf::PARTIAL_MS);
        // A source that goes on is moved to the young end with every fragment.
        while self
            .partials
            .oldest()
            .is_some_and(|(_, p)| since(now, p.touched) >= limit)
        {
            let Some((node, p)) = self.partials.pop_oldest() else {
                break;
            };
            if p.skb.is_some() {
                sh.reject(Reason::RxStale, Some(NodeId(node as u16)), 0);
            }
        }
    }
}

/// One run of the poll function.
pub(crate) struct Run<'a, 'b> {
    pub(crate) sh: &'a Shared,
    pub(crate) mailbox: Option<&'a mut velo::Mailbox>,
    pub(crate) rx: &'a mut VeloRx,
    pub(crate) cx: &'a mut PollCx<'b>,
    /// When it began, in jiffies.
    pub(crate) now: u64,
}

impl Work for Run<'_, '_> {
    fn messages(&mut self, most: usize) -> usize {
        let Self {
            sh,
            mailbox,
            rx,
            cx,
            now,
        } = self;
        mailbox.as_mut().map_or(0, |mailbox| {
            mailbox.poll(most, |message| rx.message(sh, message, *now, cx))
        })
    }

    fn room(&self) -> usize {
        self.rx.waiting.room()
    }

    fn backlog(&mut self) -> usize {
        self.mailbox.as_ref().map_or(0, |mailbox| mailbox.backlog())
    }

    fn horizon(&mut self) -> &mut Horizon {
        self.rx.waiting.horizon()
    }

    fn waiting(&self) -> usize {
        self.rx.waiting.len()
    }

    fn pump(&mut self) {
        self.rx.pump(self.sh);
    }

    fn publish(&mut self) {
        // Whoever ends a fetch looks at this after it has let go of the lock that fetching takes.
        self.rx.gauges(self.sh);
    }

    fn housekeeping(&mut self) {
        self.sh.tx_tick(self.now);
        let settled = self.rx.settle();
        self.sh.rx_tick(self.now, settled);
        self.rx.age(self.sh, self.now);
    }

    fn is_busy(&self) -> bool {
        self.rx.is_busy(self.sh)
    }

    fn timer_runs(&self) -> bool {
        self.cx.timer_runs()
    }

    fn set_timer(&mut self, at: Time) {
        self.cx.again_in(delay(net::jiffies64(), at));
    }
}
