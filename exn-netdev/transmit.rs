// SPDX-License-Identifier: GPL-2.0-only

//! Transmit path from the network stack to [`Tx`](crate::outgoing::Tx), and completion of announced
//! frames.
//!
//! `transmit` runs with bottom halves off, under netpoll also with interrupts off. Functions hold
//! the lock `tx` of [`Shared`] while they access the sending side. They release it before they log
//! or free frames.

use crate::{
    conf,
    env::TxBuffer,
    outgoing::Outgoing,
    reason::{Counter, Reason},
    shared::Shared,
    tx::{Owners, Sent},
};
use kernel::{prelude::*, sync::atomic::Relaxed};
use kernel_ext::{
    mem::BoundDevice,
    net::{BqlDone, SkBuff, TxQueue, Unmapped},
};
use protocol::{eth::rendezvous::Ended, Time};
use wire::{
    eth::{self, Completion, Path},
    ids::NodeId,
    velo::Target,
};

impl Shared {
    fn account(&self, sent: Sent, skb: Option<SkBuff>, node: Option<NodeId>) {
        match (sent, skb) {
            (Sent::Done, Some(skb)) => skb.consume(),
            (Sent::Dropped(reason, detail), skb) => {
                drop(skb);
                self.reject(reason, node, detail);
            }
            (Sent::Done | Sent::Partial | Sent::Pending(_), _) => {}
        }
    }

    /// Sends a frame of the stack, makes it the pending frame, or drops it with a reason. Returns
    /// whether housekeeping is needed.
    pub(crate) fn transmit(&self, mut skb: SkBuff, queue: &TxQueue<'_>) -> bool {
        let (target, path, flow) = match self.prepare(&mut skb) {
            Ok(way) => way,
            Err((reason, detail)) => {
                drop(skb);
                self.reject(reason, None, detail);
                return false;
            }
        };
        let node = match target {
            Target::Node(node) => Some(node),
            Target::Group(_) => None,
        };
        let frame = Outgoing {
            skb,
            target,
            path,
            flow,
            sent: 0,
        };
        let (mut result, mut tick) = {
            let mut tx = self.tx.lock();
            (tx.transmit(self, frame, queue), tx.needs_tick())
        };
        // The lock is released between two bursts, so that interrupts can run.
        while let Sent::Partial = result.0 {
            let mut tx = self.tx.lock();
            result = tx.proceed(self);
            tick = tx.needs_tick();
        }
        self.account(result.0, result.1, node);
        tick
    }

    /// Checks a frame, makes it contiguous, finishes its checksum, and chooses its target and path.
    /// Returns the target, the path and the flow number, which is 0 if the flow is irrelevant.
    fn prepare(&self, skb: &mut SkBuff) -> Result<(Target, Path, u32), (Reason, u64)> {
        let len = skb.len();
        // The stack may not know yet that the carrier is off.
        if !self.ndev.carrier_ok() {
            return Err((Reason::TxNoCarrier, u64::from(len)));
        }
        if len < eth::HEADER_LEN {
            return Err((Reason::TxShort, u64::from(len)));
        }
        if len > conf::MAX_FRAME {
            return Err((Reason::TxLong, u64::from(len)));
        }
        if skb.checksum_unfinished() && !conf::skip_tx_checksum() {
            skb.finish_checksum()
                .map_err(|_| (Reason::TxChecksum, u64::from(len)))?;
            self.count(Counter::TxChecksummed);
        }
        if !skb.is_linear() {
            skb.linearize()
                .map_err(|_| (Reason::TxNoMemory, u64::from(len)))?;
            self.count(Counter::TxLinearized);
        }
        let mac = eth::destination(skb.data()).ok_or((Reason::TxShort, u64::from(len)))?;
        let target = self
            .prefix
            .target(mac, None)
            .or_else(|| self.node_of_foreign(mac).map(Target::Node))
            .or_else(|| self.flood(len))
            .ok_or((Reason::TxNoRoute, eth::as_number(mac)))?;
        let path = Path::choose(len, target, self.conf.threshold());
        if matches!(target, Target::Group(_)) && len > conf::MAX_EAGER {
            return Err((Reason::TxMulticastLong, u64::from(len)));
        }
        // If no announced frame is in flight, a short frame cannot overtake one, and the flow is
        // irrelevant. The gauge includes all earlier frames of the flow, because a flow is
        // transmitted in sequence.
        let matters = match path {
            Path::Rendezvous => true,
            Path::Eager => self.in_flight.load(Relaxed) != 0,
        };
        let flow = if matters { skb.flow_hash() } else { 0 };
        Ok((target, path, flow))
    }

    /// Returns all nodes as the target of a frame with unknown destination, if the frame is short
    /// enough.
    fn flood(&self, len: u32) -> Option<Target> {
        (len <= conf::MAX_FLOODED).then(|| {
            self.count(Counter::TxFlooded);
            Target::Group(eth::GROUP)
        })
    }

    /// Sends the pending frame and wakes the queue if possible. The caller must hold no lock of
    /// this module.
    pub(crate) fn tx_unblock(&self) {
        loop {
            let result = self.tx.lock().unblock(self);
            match result {
                Some((Sent::Partial, _)) => continue,
                Some((sent, skb)) => self.account(sent, skb, None),
                None => {}
            }
            break;
        }
    }

    /// Drops messages that the NIC does not accept if they block the pending frame. The caller must
    /// hold no lock of this module.
    pub(crate) fn tx_reset_port(&self) {
        let (port, (pending, _)) = {
            let tx = self.tx.lock();
            (tx.port(), tx.blocked())
        };
        if let Some(port) = port.filter(|_| pending) {
            if port.reserve(1).is_err() {
                port.reset();
            }
        }
    }

    /// Does the periodic work of the VELO port. Normally a work item does it, but work items may
    /// not run under netpoll. The caller must hold no lock of this module.
    pub(crate) fn tx_poll_port(&self) {
        let port = self.tx.lock().port();
        if let Some(port) = port {
            port.poll();
        }
    }

    /// Completes an announced frame when its notification arrives. `consume` frees the frame if it
    /// was sent.
    pub(crate) fn tx_complete(
        &self,
        dev: &BoundDevice,
        c: &Completion,
        done: &mut BqlDone,
        consume: impl FnOnce(Unmapped),
    ) {
        let ended = self.tx.lock().notified(self, c);
        self.tx_ended(dev, ended, c, done, consume);
    }

    /// Handles a message in which the peer reports that it dropped an announced frame.
    pub(crate) fn tx_dropped(&self, node: NodeId, address: u64) {
        let (mut done, mut owner) = (BqlDone::default(), [None]);
        let mut owners = Owners::new(&mut owner);
        let found = self
            .tx
            .lock()
            .dropped(self, node, address, &mut done, &mut owners);
        drop(owner);
        self.ndev.bql_done(done);
        let reason = if found {
            Reason::TxPeerDropped
        } else {
            Reason::DropUnmatched
        };
        self.reject(reason, Some(node), address);
    }

    fn tx_ended(
        &self,
        dev: &BoundDevice,
        ended: Ended<TxBuffer>,
        c: &Completion,
        done: &mut BqlDone,
        consume: impl FnOnce(Unmapped),
    ) {
        let (peer, value) = (c.peer, c.key);
        let (buffer, failed) = match ended {
            Ended::Fetched(buffer) => (buffer, None),
            Ended::Failed(buffer, error) => {
                (buffer, Some((Reason::TxNotifyError, u64::from(error))))
            }
            Ended::Late(buffer) => (buffer, Some((Reason::Late, value))),
            Ended::Unmatched => return self.unmatched(peer, value),
        };
        if let Some(token) = buffer.bql {
            done.add(token);
        }
        // Cannot fail: no announced frame outlives the driver binding that mapped it.
        let Ok(skb) = buffer.map.unmap(dev) else {
            return;
        };
        match failed {
            Some((reason, detail)) => {
                drop(skb);
                self.reject(reason, Some(peer), detail);
            }
            None => {
                self.ndev.count_tx(1, u64::from(skb.len()));
                self.count(Counter::TxRdvDone);
                consume(skb);
            }
        }
    }

    /// Does the housekeeping of the sending side. Interrupts must be enabled.
    pub(crate) fn tx_tick(&self, now: Time) {
        loop {
            let mut owners = [const { None }; 32];
            let all = self.tx_age(now, &mut Owners::new(&mut owners));
            drop(owners);
            if all {
                break;
            }
        }
        self.tx_unblock();
    }

    /// Marks frames as stalled while `owners` has free slots for their sockets, and ends overdue
    /// frames. Returns false if no slot was left. Any context. The caller must hold no lock of this
    /// module.
    pub(crate) fn tx_age(&self, now: Time, owners: &mut Owners<'_>) -> bool {
        let mut done = BqlDone::default();
        let (lost, all) = self.tx.lock().age(self, &self.limits(), &mut done, owners);
        self.ndev.bql_done(done);
        if let Some((node, n)) = lost {
            self.reject_many(Reason::TxTimeout, n, Some(node), n);
            self.unanswered(node, now);
        }
        all
    }
}
