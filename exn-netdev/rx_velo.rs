// SPDX-License-Identifier: GPL-2.0-only

//! Receiving side: VELO messages, GETs of announced frames, delivery of each source's frames in the
//! order of sending, and housekeeping of the interface.
//!
//! The state is used by the NAPI poll function, and by `open` and `stop` while NAPI is disabled, so
//! it needs no lock. Only the table of GETs has a lock (`rx` of [`Shared`]), because netpoll and
//! `stop` also end GETs.

use crate::{
    conf,
    env::{boxed, delay, ms, Clock, Frame, Locked, Order, RxBuffer, Waiting},
    reason::{reason_of, Counter, Reason},
    rx_eager::{Fragment, Partials},
    shared::Shared,
};
use extoll_core::{
    rma::{self, SendError},
    velo,
};
use kernel::{prelude::*, sync::atomic::Relaxed};
use kernel_ext::{mem::BoundDevice, net::PollCx};
use protocol::{
    base::age_bound::AgeBound,
    eth::{
        order::Ticket,
        poll::{CompletionBound, Work},
        rendezvous::{Announced, AnnouncementError, FetchPort},
    },
    Clock as _, Time, TransportError,
};
use wire::{
    eth::{self, Announcement, Message},
    ids::NodeId,
};

/// RMA port through which the state machine posts GETs.
struct Gets<'a> {
    sh: &'a Shared,
    requester: &'a rma::Requester,
    dev: &'a BoundDevice,
}

fn transport_error(e: SendError) -> TransportError {
    match e {
        SendError::Full | SendError::Retry => TransportError::Later,
        SendError::Down | SendError::Invalid => TransportError::Never,
    }
}

impl FetchPort for Gets<'_> {
    type Buffer = RxBuffer;

    fn reserve(&mut self) -> Result<(), TransportError> {
        self.requester.reserve(1).map_err(transport_error)
    }

    fn buffer(&mut self, len: u32) -> Option<RxBuffer> {
        RxBuffer::new(self.dev, &self.sh.ndev, len).ok()
    }

    fn give_back(&mut self, buffer: RxBuffer) {
        drop(buffer.map.discard(self.dev));
    }

    fn get(
        &mut self,
        from: NodeId,
        announcement: &Announcement,
        len: u32,
        local: u64,
    ) -> Result<(), TransportError> {
        let descriptor = eth::get_descriptor(from, announcement, len, local);
        self.requester
            .post(eth::GET_PAGE.options, &descriptor)
            .map_err(transport_error)
    }
}

/// State that only the poll function uses. It has no lock.
pub(crate) struct VeloState {
    pub(crate) mailbox: Option<velo::Mailbox>,
    pub(crate) rx: VeloRx,
    /// Set if messages were read since the interrupt was armed.
    pub(crate) used: bool,
}

impl VeloState {
    /// Creates the state of the poll function, without ports. May sleep.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            mailbox: None,
            rx: VeloRx {
                requester: None,
                posted: CompletionBound::default(),
                partials: Partials::new()?,
                waiting: boxed(|| Waiting::new(conf::RX_WAITING))?,
                order: Order::new(conf::ORDER, conf::ORDER_PER_SOURCE)?,
                given_up: 0,
            },
            used: false,
        })
    }

    /// Arms the interrupt if it fired or if messages were read since. Returns whether messages are
    /// pending.
    pub(crate) fn rearm(&mut self, sh: &Shared) -> bool {
        let fired = sh.velo_fired.xchg(false, Relaxed);
        let used = core::mem::take(&mut self.used);
        let mailbox = self.mailbox.as_mut().filter(|_| fired || used);
        mailbox.is_some_and(|mailbox| mailbox.rearm())
    }
}

/// State of the receiving side except the mailbox.
pub(crate) struct VeloRx {
    pub(crate) requester: Option<rma::Requester>,
    /// Tracks which commands the NIC has executed.
    posted: CompletionBound,
    partials: Partials,
    waiting: KBox<Waiting>,
    order: Order,
    /// Number of announcements with abandoned order that were already counted.
    given_up: u64,
}

/// Learns the source address of a frame and passes the frame to the stack.
pub(crate) fn deliver(sh: &Shared, (skb, checksum, node): Frame, cx: &mut PollCx<'_>) {
    sh.learn(skb.data(), node);
    if let Err(skb) = cx.receive(skb, checksum) {
        sh.reject(Reason::RxShort, Some(node), u64::from(skb.len()));
    }
}

/// Counts an announcement that is dropped.
fn drop_announcement(sh: &Shared, node: NodeId, len: u32, why: AnnouncementError) {
    match why {
        AnnouncementError::Source(open) => sh.reject(Reason::RxPeerBound, Some(node), open as u64),
        AnnouncementError::Waiting(n) => sh.reject(Reason::RxWaiting, Some(node), n as u64),
        AnnouncementError::Stale => sh.reject(Reason::RxOld, Some(node), u64::from(len)),
        AnnouncementError::Port => sh.reject(Reason::RxPort, Some(node), u64::from(len)),
    }
}

impl VeloRx {
    /// Installs the port when the interface is opened. The mailbox is still empty.
    pub(crate) fn start(&mut self, requester: rma::Requester) {
        self.requester = Some(requester);
        self.waiting.age_bound().emptied(Clock.now());
    }

    /// Drops all received frames and announcements that were not delivered, and returns their
    /// number. The ports are closed.
    pub(crate) fn flush(&mut self, sh: &Shared) -> usize {
        self.partials.flush();
        self.posted = CompletionBound::default();
        let mut n = self.waiting.flush(&Locked(&sh.rx));
        self.order.flush(|frame| {
            drop(frame);
            n += 1;
        });
        self.gauges(sh);
        n
    }

    /// Returns a time before which all GETs that were given to the port have reached the NIC.
    fn all_posted_before(&mut self) -> Time {
        self.requester.as_ref().map_or(Time::default(), |port| {
            let (given, posted) = port.progress();
            self.posted.update(Clock.now(), given, posted)
        })
    }

    fn gauges(&self, sh: &Shared) {
        sh.waiting.store(self.waiting.len() as u32, Relaxed);
        sh.partials.store(self.partials.len() as u32, Relaxed);
    }

    fn message(
        &mut self,
        sh: &Shared,
        message: &velo::Message<'_>,
        now: Time,
        cx: &mut PollCx<'_>,
    ) {
        let status = &message.status;
        let node = status.source.node;
        let mut bytes = [0u8; velo::MAX_LEN as usize];
        let n = message.copy_to(&mut bytes);
        let payload = bytes.get(..n).unwrap_or(&[]);
        if node.is_reserved() {
            return sh.reject(Reason::RxSource, Some(node), u64::from(status.source.raw()));
        }
        sh.message_from(node, now);
        if status.err {
            // The meaning of the error bit is unknown (G9). The message is dropped, and so is the
            // frame that it may continue.
            self.partials.abandon(node);
            return sh.reject(Reason::RxMessage, Some(node), u64::from(status.len));
        }
        match Message::parse(status, payload) {
            Ok(Message::Eager { tag, last, data }) => {
                let fragment = Fragment { tag, last, data };
                let complete = self.partials.push(sh, node, &fragment, now, cx);
                if let Some((skb, checksum)) = complete {
                    self.eager_frame(sh, (skb, checksum, node), now, cx);
                }
            }
            Ok(Message::Announcement(a)) => self.announced(sh, node, a, now),
            Ok(Message::Dropped { address }) => sh.tx_dropped(node, address),
            Err(reject) => sh.reject(reason_of(&reject), Some(node), reject.got),
        }
    }

    fn eager_frame(&mut self, sh: &Shared, frame: Frame, now: Time, cx: &mut PollCx<'_>) {
        let (skb, _, node) = &frame;
        let node = *node;
        if eth::is_own_group_frame(skb.data(), node, sh.nic.node()) {
            return sh.reject(Reason::RxOwnMulticast, Some(node), u64::from(skb.len()));
        }
        sh.count(Counter::RxEager);
        match eth::destination(skb.data()) {
            Some(eth::BROADCAST) => sh.count(Counter::RxBroadcast),
            Some(mac) if eth::is_group_mac(mac) => sh.count(Counter::RxMulticast),
            _ => {}
        }
        match self.order.complete(now, node, frame) {
            Ok(()) => sh.count(Counter::RxHeld),
            Err(frame) => deliver(sh, frame, cx),
        }
    }

    /// Holds a fetched frame until it can be delivered in order.
    ///
    /// # Errors
    ///
    /// Returns the frame if it can be delivered at once.
    pub(crate) fn fetched(&mut self, ticket: Option<Ticket>, frame: Frame) -> Result<(), Frame> {
        match ticket {
            Some(ticket) => self.order.arrived(ticket, frame),
            None => Err(frame),
        }
    }

    /// Marks the announced frame at this position in the order as failed.
    pub(crate) fn ended(&mut self, ticket: Ticket) {
        self.order.ended(ticket);
    }

    /// Delivers the held frames that need not wait for an earlier frame any more.
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

    fn announced(&mut self, sh: &Shared, node: NodeId, announcement: Announcement, now: Time) {
        sh.count(Counter::RxAnnounced);
        if sh.is_gated() {
            // If announcements were kept, the mailbox would fill up and block the network.
            return sh.reject(Reason::RxPort, Some(node), announcement.len);
        }
        let (len, discard) = match announcement.frame_len(conf::MAX_FRAME) {
            Ok(len) => (len, false),
            Err(reject) => {
                sh.reject(reason_of(&reject), Some(node), reject.got);
                // A frame that cannot be delivered is still fetched if possible, to free the
                // sender's buffer.
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
            ticket: if discard {
                None
            } else {
                self.order.announced(now, node)
            },
        };
        if let Err(why) = self.waiting.push(&Clock, announced, &sh.limits()) {
            if let Some(ticket) = announced.ticket {
                self.order.ended(ticket);
            }
            return drop_announcement(sh, node, len, why);
        }
        if self.waiting.len() == 1 {
            self.pump(sh);
        }
    }

    /// Fetches waiting announcements as far as limits, credit and memory permit.
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
                |dropped, why| {
                    if let Some(ticket) = dropped.ticket {
                        order.ended(ticket);
                    }
                    drop_announcement(sh, dropped.node, dropped.len, why);
                },
            )
        });
        if pumped.is_ok_and(|pumped| pumped.handled == 0 && pumped.remaining > 0) {
            sh.count(Counter::RxDeferred);
        }
    }

    /// Returns whether anything pending needs housekeeping.
    fn is_busy(&self, sh: &Shared) -> bool {
        !self.waiting.is_empty()
            || !self.partials.is_empty()
            || !self.order.is_empty()
            || !sh.rx.lock().is_empty()
            || sh.tx.lock().needs_tick()
    }

    /// Discards overdue incomplete frames, and stops holding frames for an announced frame that is
    /// overdue.
    fn age(&mut self, sh: &Shared, now: Time) {
        self.order.expire(now, ms(conf::scaled(conf::ORDER_MS)));
        self.partials.age(sh, now);
    }
}

/// State for one run of the poll function, which the state machine controls.
pub(crate) struct Run<'a, 'b> {
    pub(crate) sh: &'a Shared,
    pub(crate) mailbox: Option<&'a mut velo::Mailbox>,
    pub(crate) rx: &'a mut VeloRx,
    pub(crate) cx: &'a mut PollCx<'b>,
    /// Start of the run.
    pub(crate) now: Time,
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
        self.mailbox
            .as_ref()
            .map_or(0, |mailbox| mailbox.unread_slots())
    }

    fn age_bound(&mut self) -> &mut AgeBound {
        self.rx.waiting.age_bound()
    }

    fn waiting(&self) -> usize {
        self.rx.waiting.len()
    }

    fn pump(&mut self) {
        self.rx.pump(self.sh);
    }

    fn publish(&mut self) {
        // The gauges are updated after `pump` has released the lock `rx`. A context that ends a GET
        // reads them after releasing `rx` as well.
        self.rx.gauges(self.sh);
    }

    fn housekeeping(&mut self) {
        self.sh.tx_tick(self.now);
        let posted_before = self.rx.all_posted_before();
        self.sh.rx_tick(self.now, posted_before);
        self.rx.age(self.sh, self.now);
    }

    fn is_busy(&self) -> bool {
        self.rx.is_busy(self.sh)
    }

    fn timer_runs(&self) -> bool {
        self.cx.timer_runs()
    }

    fn set_timer(&mut self, at: Time) {
        self.cx.again_in(delay(Clock.now(), at));
    }
}
