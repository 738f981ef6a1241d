// SPDX-License-Identifier: GPL-2.0-only

//! VELO: small two-sided messages of 1…120 bytes (HW §9).
//!
//! [`Velo::open`] gives the two halves of a port: a [`Sender`], which may be shared and cloned, and the [`Mailbox`], which
//! has one owner. The port is closed when all of them are dropped; dropping may sleep.

use crate::{
    bq::{self, Queue},
    context::Context,
    hw::Hw,
    intake::Reader,
    residue::{self, Leftover, Residue},
    stats::{add, PortStats, Reason},
    tx::{self, Tx},
    vpid::{Client, Table},
};
use kernel::{
    prelude::*,
    sync::{Arc, UniqueArc},
};
use kernel_ext::{barrier, trace};
use wire::{
    bq::WritePointers,
    ids::{Unit, Vpid},
    regs::{
        info, np,
        velo::{self, CompProtDesc, Completer, NodeVpidProtDesc},
        velo_bq, wcbuf,
    },
    velo::{Descriptor, RequesterAddr},
};

pub use crate::tx::SendError;
pub use wire::velo::{Mtt, SlotSize, SourceId, Status, Target, MAX_LEN};

/// Traffic class of all messages, that of the vendor's kernel sends (HW §9.1).
const TRAFFIC_CLASS: u8 = 2;
/// Descriptor and payload.
const PACKET_WORDS: usize = 16;
/// Default mailbox size in bytes (HW §7).
pub const DEFAULT_MAILBOX_BYTES: u32 = 4 << 20;

/// A message to send, without its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Node or multicast group.
    pub target: Target,
    /// Receiving VPID.
    pub vpid: Vpid,
    /// Message type tag.
    pub mtt: Mtt,
    /// User tag.
    pub tag: u8,
    /// Interrupt the receiver.
    pub irq: bool,
}

/// A received message; the payload is a copy, its slot is free again.
pub struct Message {
    /// Sender, tags, length.
    pub status: Status,
    words: [u64; 15],
}

impl Message {
    /// Number of payload bytes, 1…120.
    pub fn len(&self) -> usize {
        usize::from(self.status.len.min(MAX_LEN))
    }

    /// Never true; messages have at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the payload to the start of `to`, as much as fits; returns the number of bytes copied.
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        let n = self.len().min(to.len());
        for (chunk, word) in to[..n].chunks_mut(8).zip(&self.words) {
            let bytes = word.to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
        n
    }

    /// Payload quadword `index`; bytes beyond the length are unspecified, 0 beyond the message.
    pub fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or(0)
    }
}

/// The unit of a NIC.
pub struct Velo {
    ctx: Arc<Context>,
    table: Arc<Table>,
    residue: Arc<Residue>,
    slot_size: SlotSize,
}

/// The VPID of a port that is closed, given back by drop.
struct Closed {
    unit: Arc<Velo>,
    vpid: Vpid,
}

impl Leftover for Closed {
    fn is_gone(&self) -> bool {
        residue::settle(&self.unit.ctx, Unit::Velo, self.vpid)
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.unit.table.release(self.vpid);
    }
}

/// Hardware side of an open port.
struct Port {
    unit: Arc<Velo>,
    vpid: Vpid,
    closed: Arc<Closed>,
    tx: Arc<Tx<PACKET_WORDS>>,
    queue: Queue,
    stats: Arc<PortStats>,
}

impl Drop for Port {
    fn drop(&mut self) {
        let settled = self.tx.close();
        self.unit
            .ctx
            .withdraw(velo::comp_prot_desc(self.vpid), |hw| {
                // HW §9.7: mailbox disabled, descriptors 0, queue registers 0.
                hw.rf.update(velo::comp_prot_desc(self.vpid), |v| {
                    CompProtDesc(v).with_vpid_enable(false).raw()
                });
                hw.rf.write(velo::comp_prot_desc(self.vpid), 0);
                // What is on its way goes out under the identity that stands here then.
                if settled {
                    update_source(hw, self.vpid, |_| NodeVpidProtDesc(0));
                }
                bq::clear(hw, Unit::Velo, self.vpid);
            });
        if self.tx.is_used() && !settled {
            self.unit.table.set_client(self.vpid, None);
            let left = self.closed.clone();
            self.unit.residue.keep(Unit::Velo, self.vpid, left);
        }
    }
}

/// Sending half of a port.
#[derive(Clone)]
pub struct Sender(Arc<Port>);

/// Receiving half of a port.
pub struct Mailbox {
    port: Arc<Port>,
    reader: Reader,
    slot_size: SlotSize,
}

impl Velo {
    /// The unit with the VPIDs of `table`; `slots_64`: mailboxes have slots of 64 instead of 128 bytes. May
    /// sleep.
    pub(crate) fn new(
        ctx: Arc<Context>,
        table: Arc<Table>,
        residue: Arc<Residue>,
        slots_64: bool,
    ) -> Result<Arc<Self>> {
        let slot_size = if slots_64 {
            SlotSize::B64
        } else {
            SlotSize::B128
        };
        let this = Self {
            ctx,
            table,
            residue,
            slot_size,
        };
        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    /// Bytes per slot of a mailbox.
    pub fn slot_size(&self) -> SlotSize {
        self.slot_size
    }

    /// Opens a port with the given VPID, or the user VPID that has been free for longest, and a mailbox of
    /// `mailbox_bytes`, a power of two of 512 KiB…64 MiB ([`DEFAULT_MAILBOX_BYTES`]). Interrupts are armed,
    /// but nobody hears them before [`Sender::attach`]. May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the VPID is taken, or something of its last owner on its way, `ENOSPC` if none is free,
    /// `EINVAL` for the size, `ENOMEM`, `ENODEV` if the device is gone.
    pub fn open(
        self: &Arc<Self>,
        vpid: Option<Vpid>,
        mailbox_bytes: u32,
    ) -> Result<(Sender, Mailbox)> {
        let stats = Arc::new(PortStats::new(), GFP_KERNEL)?;
        let place = UniqueArc::new_uninit(GFP_KERNEL)?;
        let vpid = self.table.allocate(vpid, stats.clone(), |_| true)?;
        // From success on its drop releases the VPID.
        let closed = place
            .write(Closed {
                unit: self.clone(),
                vpid,
            })
            .into();
        let port = Port::new(self, vpid, closed, mailbox_bytes, stats)?;
        let mailbox = Mailbox {
            port: port.clone(),
            reader: Reader::new(&self.ctx, &self.table, vpid)?,
            slot_size: self.slot_size,
        };
        port.install()?;
        Ok((Sender(port), mailbox))
    }
}

impl Port {
    fn new(
        unit: &Arc<Velo>,
        vpid: Vpid,
        closed: Arc<Closed>,
        mailbox_bytes: u32,
        stats: Arc<PortStats>,
    ) -> Result<Arc<Self>> {
        let place = UniqueArc::new_uninit(GFP_KERNEL)?;
        let Velo { ctx, table, .. } = &**unit;
        let tx = Tx::new(ctx, table, vpid, stats.clone())?;
        let slot = unit.slot_size.into();
        let queue =
            ctx.with_bound(|dev| Queue::new(dev, Unit::Velo, vpid, slot, mailbox_bytes))??;
        table.set_tx(vpid, tx.clone());
        Ok(place
            .write(Self {
                unit: unit.clone(),
                vpid,
                closed,
                tx,
                queue,
                stats,
            })
            .into())
    }

    /// Opening sequence of HW §9.7.
    fn install(&self) -> Result {
        let hw = self.unit.ctx.alive_access().ok_or(ENODEV)?;
        let vpid = self.vpid;
        stamp(&hw, vpid);
        hw.rf.update(velo::comp_prot_desc(vpid), |v| {
            CompProtDesc(v)
                .with_rx_prot_desc(0)
                .with_htax_reroute(false)
                .raw()
        });
        self.queue.install(&hw)?;
        tx::reset_state(&hw, Unit::Velo, vpid);
        enable(&hw, vpid);
        Ok(())
    }
}

/// Lets messages in to a mailbox that was made. Its pointers are set before and not, as the vendor's driver does (HW §9.7), after: a
/// message that came between would lie in a slot that the NIC then takes for free.
pub(crate) fn enable(hw: &Hw, vpid: Vpid) {
    hw.rf.write(velo_bq::rp(vpid), 0);
    hw.rf.update(velo_bq::wp_lwp_dcq_rp(vpid), |v| {
        WritePointers(v).with_lwp(0).raw()
    });
    hw.rf.update(velo::comp_prot_desc(vpid), |v| {
        CompProtDesc(v).with_vpid_enable(true).raw()
    });
}

/// Sets the identity that the NIC puts into outgoing messages: current node ID, VPID. The protection descriptor stays: it
/// is 0 for closed ports and those of the kernel.
pub(crate) fn stamp(hw: &Hw, vpid: Vpid) {
    let node = info::Node(hw.rf.read(info::NODE)).id();
    update_source(hw, vpid, |v| {
        v.with_tx_nodeid(node).with_tx_vpid(vpid.get() as u8)
    });
}

/// Changes identity and protection of a VPID's messages; nobody else does meanwhile. Process context.
pub(crate) fn update_source(
    hw: &Hw,
    vpid: Vpid,
    f: impl FnOnce(NodeVpidProtDesc) -> NodeVpidProtDesc,
) {
    let _alone = hw.velo_sources.lock();
    hw.rf.update(velo::node_vpid_prot_desc(vpid), |v| {
        f(NodeVpidProtDesc(v)).raw()
    });
}

impl Sender {
    /// Own VPID.
    pub fn vpid(&self) -> Vpid {
        self.0.vpid
    }

    /// What is known of the NIC: identity, status, liveness.
    pub fn context(&self) -> &Arc<Context> {
        &self.0.unit.ctx
    }

    /// Counters.
    pub fn stats(&self) -> &PortStats {
        &self.0.stats
    }

    /// Sets who hears of interrupts and of room to send. Replaces an earlier client, which is not called any more when
    /// this returns. Call [`Mailbox::rearm`] afterwards. Not from a client's method.
    pub fn attach(&self, client: Arc<dyn Client>) {
        self.0.unit.table.set_client(self.0.vpid, Some(client));
    }

    /// Removes the client: when this returns, it is not called any more. Not from a client's method.
    pub fn detach(&self) {
        self.0.unit.table.set_client(self.0.vpid, None);
    }

    /// Messages that can be sent by the last known state. No register access, any context.
    pub fn room(&self) -> usize {
        self.0.tx.room()
    }

    /// Messages given to the port since it was opened, and those of them that it will not send again. No register access, any context.
    pub fn progress(&self) -> (u64, u64) {
        self.0.tx.progress()
    }

    /// Makes sure that the next `n` (at most 255) sends do not fail for lack of credit, provided nobody else sends.
    /// Reads a register only if the last known credit does not suffice. Any context.
    ///
    /// # Errors
    ///
    /// As [`Sender::send`]. After `Full` and `Retry`, [`Client::writable`] is called once there is room for `n`, perhaps
    /// even before this returns.
    pub fn reserve(&self, n: usize) -> Result<(), SendError> {
        self.0.tx.reserve(n)
    }

    /// Sends one message of 1…120 bytes. Any context; takes an interrupt-safe spin lock.
    ///
    /// # Errors
    ///
    /// `Full`: no credit. `Retry`: lost messages are being sent again. In both cases nothing was sent and
    /// [`Client::writable`] follows, perhaps even before this returns. `Down`: for ever. `Invalid`: length not in 1…120.
    pub fn send(&self, header: Header, payload: &[u8]) -> Result<(), SendError> {
        let Header {
            target,
            vpid,
            mtt,
            tag,
            irq,
        } = header;
        let len = u16::try_from(payload.len()).map_err(|_| SendError::Invalid)?;
        let descriptor = Descriptor {
            target,
            vpid,
            mtt,
            irq,
            tag,
            len,
        }
        .encode()
        .map_err(|_| SendError::Invalid)?;
        let mut words = [0u64; PACKET_WORDS];
        words[0] = descriptor;
        // The rest of the last word stays 0, so that nothing leaks (EXT-Eth rule).
        for (word, chunk) in words[1..].iter_mut().zip(payload.chunks(8)) {
            let mut bytes = [0u8; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(bytes);
        }
        let used = 1 + payload.len().div_ceil(8);
        let page = RequesterAddr::page(self.0.vpid, TRAFFIC_CLASS).encode();
        let slot = self.0.tx.post(page, &words[..used])?;
        trace::velo_post(
            self.context().id(),
            self.0.vpid.get() as u8,
            slot,
            descriptor,
        );
        Ok(())
    }

    /// Gives up messages that the NIC did not take, e.g. after a transmit time-out. Any context.
    pub fn reset(&self) {
        self.0.tx.reset();
    }
}

impl Mailbox {
    /// Takes up to `budget` messages and calls `f` for each; returns their number. Fewer than `budget` means that the
    /// mailbox was found empty. A message whose slots stay empty although the NIC wrote them is skipped. No register access
    /// but an occasional read pointer update, and a look at the write pointer while nothing comes. Any context.
    pub fn poll(&mut self, budget: usize, mut f: impl FnMut(&Message)) -> usize {
        let mut done = 0;
        while done < budget {
            match self.take() {
                Taken::Message(message) => {
                    done += 1;
                    f(&message);
                }
                // Counts as work, so that a stream of bad ones ends the pass.
                Taken::Bad => done += 1,
                Taken::Nothing => break,
            }
        }
        let port = &self.port;
        self.reader.commit_if_due(&port.queue, &port.stats);
        done
    }

    /// Slots that the NIC has written and that were not read, which is at least the number of messages that wait. Reads a register.
    pub fn backlog(&self) -> usize {
        self.reader.backlog(&self.port.queue) as usize
    }

    /// True when a message waits. No register access.
    pub fn pending(&self) -> bool {
        self.ready().is_some()
    }

    /// Unmasks the interrupt of the port after the mailbox was found empty. True when a message is waiting all the same:
    /// poll again, as its interrupt may or may not come (G7).
    #[must_use]
    pub fn rearm(&mut self) -> bool {
        let port = &self.port;
        self.reader.rearm(&port.queue, &port.stats);
        self.pending()
    }

    /// Slots of the message whose status word is `raw`; 1 if that makes no sense.
    fn slots_of(&self, raw: u64) -> u32 {
        match Status::decode(raw) {
            Ok(Some(status)) => self.slot_size.slots_for(status.len),
            Ok(None) | Err(_) => 1,
        }
    }

    /// Status word of the next message if all its slots are there.
    fn ready(&self) -> Option<u64> {
        let (queue, first) = (&self.port.queue, self.reader.next());
        let raw = queue.status(first);
        let slots = self.slots_of(raw);
        let complete = raw != 0 && (1..slots).all(|i| queue.status(queue.next(first, i)) != 0);
        complete.then_some(raw)
    }

    /// The next message is not there, or not all of it: skips what got lost on its way.
    fn skip_lost(&mut self) -> Taken {
        let port = &self.port;
        let (queue, first) = (&port.queue, self.reader.next());
        let overdue = self.reader.overdue(queue);
        if overdue == 0 {
            return Taken::Nothing;
        }
        let raw = queue.status(first);
        let slots = if raw == 0 {
            let empty = self.reader.run_of_empty(queue, overdue);
            // What follows in 64-byte slots may be the rest of a long message: no slot tells which one it is. A message
            // begins where the NIC's pointer was.
            match self.slots_of(queue.status(queue.next(first, empty))) {
                1 => empty,
                _ => overdue,
            }
        } else {
            self.slots_of(raw).min(overdue)
        };
        port.unit.ctx.error(
            Reason::LostMessage,
            u64::from(port.vpid.get()) | u64::from(slots) << 32,
        );
        add(&port.stats.skipped, slots.into());
        self.reader.advance(queue, slots);
        Taken::Bad
    }

    fn take(&mut self) -> Taken {
        let Some(raw) = self.ready() else {
            return self.skip_lost();
        };
        barrier::dma_rmb();
        let port = &self.port;
        let ctx = &port.unit.ctx;
        let first = self.reader.next();
        trace::velo_complete(ctx.id(), port.vpid.get() as u8, first, raw);
        let Ok(Some(status)) = Status::decode(raw) else {
            ctx.error(Reason::BadStatus, raw);
            add(&port.stats.errors, 1);
            self.reader.advance(&port.queue, 1);
            return Taken::Bad;
        };
        let mut words = [0u64; 15];
        for piece in self.slot_size.pieces(status.len) {
            let slot = port.queue.next(first, u32::from(piece.slot));
            let from = u32::from(piece.slot_offset) / 8;
            let to = usize::from(piece.message_offset) / 8;
            for (i, word) in words[to..]
                .iter_mut()
                .take(usize::from(piece.len).div_ceil(8))
                .enumerate()
            {
                *word = port.queue.read(slot, from + i as u32);
            }
        }
        if status.err {
            add(&port.stats.errors, 1);
        }
        add(&port.stats.received, 1);
        self.reader
            .advance(&port.queue, self.slot_size.slots_for(status.len));
        Taken::Message(Message { status, words })
    }
}

enum Taken {
    Message(Message),
    Bad,
    Nothing,
}

impl Velo {
    /// `velo2` part of the probe (HW §3.3).
    pub(crate) fn init(&self) -> Result {
        let ctx = &self.ctx;
        for vpid in Vpid::all() {
            let hw = ctx.access().ok_or(ENODEV)?;
            let source = velo::node_vpid_prot_desc(vpid);
            hw.rf
                .update(source, |v| NodeVpidProtDesc(v).with_tx_prot_desc(0).raw());
            let node = info::Node(hw.rf.read(info::NODE)).id();
            hw.rf.update(source, |v| {
                NodeVpidProtDesc(v)
                    .with_tx_nodeid(node)
                    .with_tx_vpid(vpid.get() as u8)
                    .raw()
            });
            let accept = velo::comp_prot_desc(vpid);
            hw.rf
                .update(accept, |v| CompProtDesc(v).with_rx_prot_desc(0).raw());
            hw.rf
                .update(accept, |v| CompProtDesc(v).with_htax_reroute(false).raw());
            hw.rf.update(accept, |v| v & 0x1_FFFF);
            tx::reset_state(&hw, Unit::Velo, vpid);
        }
        let hw = ctx.access().ok_or(ENODEV)?;
        hw.rf.write(velo::TIMEOUT, velo::TIMEOUT_INIT);
        hw.rf.write(wcbuf::velo::TIMEOUT, wcbuf::TIMEOUT_INIT);
        hw.rf.update(velo::COMPLETER, |v| {
            Completer(v)
                .with_target_htax_port(velo::TARGET_HTAX_PORT_INIT)
                .raw()
        });
        let large = self.slot_size == SlotSize::B128;
        hw.rf.update(velo::COMPLETER, |v| {
            Completer(v).with_packets_128b(large).raw()
        });
        hw.rf.write(np::general(np::VELO), np::GENERAL_INIT_VELO);
        Ok(())
    }

    /// Disconnects the unit from the network.
    pub(crate) fn stop(&self) {
        if let Some(hw) = self.ctx.alive_access() {
            hw.rf.write(np::general(np::VELO), 0);
        }
    }
}
