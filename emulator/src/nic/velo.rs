//! VELO unit, which sends and receives small messages (HW §9, G8, G9).

use super::bq::Item;
use super::wcbuf::{Kept, WcError};
use super::{wcflight, Body, Nic, Te, VeloMessage};
use crate::env::{Accessor, Dest, Env, NetPort, Packet, TraceEvent};
use crate::lane::Lane;
use wire::ids::{NodeId, RegOffset, Unit, Vpid};
use wire::regs::velo::{
    self as regs, CompProtDesc, Completer, Counter1, Counter2, Debug1, NodeVpidProtDesc,
};
use wire::regs::PacketCounter;
use wire::velo::{
    Descriptor, DescriptorWord, Error as DescriptorFault, RequesterAddr, StatusWord, MAX_LEN,
};

/// Number of bytes of a message in the requester page: descriptor and payload.
const MESSAGE: usize = 128;
const DESCRIPTOR: u128 = 0xFF;
const TRAFFIC_CLASSES: usize = 4;
const MAX_GROUP: u16 = 63;

/// Message that software is storing now.
#[derive(Clone, Copy)]
struct Assembly {
    bytes: [u8; MESSAGE],
    /// Set of the bytes that have been stored, one bit per byte.
    valid: u128,
    /// Time of the last store in ns.
    since: u64,
}

impl Assembly {
    const EMPTY: Self = Self {
        bytes: [0; MESSAGE],
        valid: 0,
        since: 0,
    };

    fn descriptor(&self) -> DescriptorWord {
        let (first, _) = self.bytes.split_first_chunk().unwrap_or((&[0; 8], &[]));
        DescriptorWord(u64::from_le_bytes(*first))
    }
}

pub(super) struct Velo {
    assembly: Vec<Option<Box<[Assembly; TRAFFIC_CLASSES]>>>,
    /// Registers `node_vpid_prot_desc`.
    source: Box<[u64; 256]>,
    /// Registers `comp_prot_desc`.
    accept: Box<[u64; 256]>,
    pub(super) slots_128: bool,
}

impl Default for Velo {
    fn default() -> Self {
        Self {
            assembly: vec![None; 256],
            source: Box::new([0; 256]),
            accept: Box::new([0; 256]),
            slots_128: false,
        }
    }
}

/// Returns a mask of `len` bits, beginning at bit `at`.
fn mask(at: usize, len: usize) -> u128 {
    let ones = if len >= 128 {
        u128::MAX
    } else {
        (1 << len) - 1
    };
    ones << at
}

fn table(first: RegOffset, offset: RegOffset) -> Option<usize> {
    let i = (offset.0.checked_sub(first.0)? / 8) as usize;
    (i < 256).then_some(i)
}

fn source_index(offset: RegOffset) -> Option<usize> {
    table(regs::node_vpid_prot_desc(Vpid::from_low_bits(0)), offset)
}

fn accept_index(offset: RegOffset) -> Option<usize> {
    table(regs::comp_prot_desc(Vpid::from_low_bits(0)), offset)
}

/// Result of a store to a message that is being assembled.
enum Step {
    Wait,
    BadLength(u16),
    Send(Box<VeloMessage>, DescriptorWord, bool),
}

impl Nic {
    /// Processes a store of the host to a requester page. `data` does not cross a page boundary.
    pub(super) fn velo_store(&mut self, at: u32, data: &[u8], env: &mut Env<'_>) {
        let addr = RequesterAddr::decode(at);
        let vpid = addr.vpid.index() as u8;
        self.check_store(Unit::Velo, vpid, addr.offset, MESSAGE, data.len(), env);
        let mut pos = usize::from(addr.offset) % MESSAGE;
        let mut rest = data;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(MESSAGE - pos));
            self.velo_assemble(vpid, addr.traffic_class, pos, now, env);
            rest = later;
            pos = 0;
        }
    }

    /// Adds bytes to a message. Sends the message when it is complete (G8).
    #[inline]
    fn velo_assemble(&mut self, vpid: u8, tc: u8, pos: usize, data: &[u8], env: &mut Env<'_>) {
        let now = env.host.now_ns();
        let slot = &mut self.velo.assembly[usize::from(vpid)];
        let classes = slot.get_or_insert_with(|| Box::new([Assembly::EMPTY; TRAFFIC_CLASSES]));
        let a = &mut classes[usize::from(tc) % TRAFFIC_CLASSES];
        let torn = pos < 8 && a.valid & DESCRIPTOR == DESCRIPTOR;
        if torn {
            a.valid = 0;
        }
        a.bytes[pos..pos + data.len()].copy_from_slice(data);
        a.valid |= mask(pos, data.len());
        a.since = now;
        let step = Self::velo_step(a);
        if torn {
            self.counters.drops.incomplete_descriptor =
                self.counters.drops.incomplete_descriptor.wrapping_add(1);
            self.wcbuf_error(Unit::Velo, vpid, WcError::QwLength);
            self.diagnose(env, || {
                format!("VELO VPID {vpid}: new descriptor before the old message was complete")
            });
        }
        match step {
            Step::Wait => self.watch_incomplete(Unit::Velo, now),
            Step::BadLength(len) => {
                self.counters.drops.velo_bad_descriptor =
                    self.counters.drops.velo_bad_descriptor.wrapping_add(1);
                self.wcbuf_error(Unit::Velo, vpid, WcError::MsgTooLong);
                self.diagnose(env, || format!("VELO VPID {vpid}: bad length of {len}"));
            }
            Step::Send(message, descriptor, excess) => {
                if excess {
                    self.wcbuf_error(Unit::Velo, vpid, WcError::PktTooLong);
                    self.diagnose(env, || {
                        format!("VELO VPID {vpid}: stores beyond the end of the message")
                    });
                }
                self.velo_send(vpid, tc, message, descriptor, env);
            }
        }
    }

    #[inline]
    fn velo_step(a: &mut Assembly) -> Step {
        if a.valid & DESCRIPTOR != DESCRIPTOR {
            return Step::Wait;
        }
        let d = a.descriptor();
        let len = d.len();
        if len == 0 || len > MAX_LEN {
            a.valid = 0;
            return Step::BadLength(len);
        }
        let padded = usize::from(len).div_ceil(8) * 8;
        let need = mask(0, 8 + padded);
        if a.valid & need != need {
            return Step::Wait;
        }
        let excess = a.valid & !need != 0;
        a.valid = 0;
        let mut message = Box::new(VeloMessage {
            src_node: 0,
            src_vpid: 0,
            protection: 0,
            dst_vpid: d.vpid(),
            mtt: d.mtt(),
            tag: d.tag(),
            interrupt: d.irq(),
            len: len as u8,
            data: [0; 120],
        });
        message.data[..padded].copy_from_slice(&a.bytes[8..8 + padded]);
        Step::Send(message, d, excess)
    }

    fn velo_send(
        &mut self,
        vpid: u8,
        tc: u8,
        message: Box<VeloMessage>,
        d: DescriptorWord,
        env: &mut Env<'_>,
    ) {
        if env.trace.enabled() {
            let mut words = vec![d.raw()];
            let qw = |c: &[u8]| c.try_into().map(u64::from_le_bytes).unwrap_or(0);
            words.extend(message.padded().chunks_exact(8).map(qw));
            env.trace.event(TraceEvent::Descriptor {
                port: NetPort::Velo,
                vpid: Vpid::from(vpid),
                words: &words,
            });
        }
        self.wcbuf_submit(Unit::Velo, vpid, Kept::Message(tc, message, d), env);
    }

    /// Returns true if the requester must reject a message now, because its lane or the
    /// destination's mailbox is congested.
    pub(super) fn velo_congested(&self, tc: u8, d: DescriptorWord) -> bool {
        let to = || Vpid::from_low_bits(d.vpid().into()).get() as u8;
        let lane = match d.multicast() {
            true => Lane::MULTICASTS,
            false => Lane::velo(tc),
        };
        self.tx_full(lane) || (!d.multicast() && self.pressed(d.target(), Unit::Velo, to()))
    }

    /// Discards messages that have been incomplete for `patience` ns. Returns their VPIDs. Among
    /// the remaining messages, also returns the earliest time of a last store.
    pub(super) fn velo_expire(&mut self, now: u64, patience: u64) -> (Vec<u8>, Option<u64>) {
        let mut late = Vec::new();
        let mut oldest = None;
        for (vpid, classes) in (0..).zip(&mut self.velo.assembly) {
            for a in classes.iter_mut().flat_map(|c| c.iter_mut()) {
                if wcflight::expire(&mut a.valid, a.since, now, patience, &mut oldest) {
                    late.push(vpid);
                }
            }
        }
        (late, oldest)
    }

    /// Sends a message that has left the write-combining buffer.
    pub(super) fn velo_execute(
        &mut self,
        vpid: u8,
        tc: u8,
        mut message: Box<VeloMessage>,
        d: DescriptorWord,
        env: &mut Env<'_>,
    ) {
        if let Err(DescriptorFault::Reserved(bits)) = Descriptor::decode(d.raw()) {
            self.counters.reserved_bits = self.counters.reserved_bits.wrapping_add(1);
            self.diagnose(env, || {
                format!("VELO VPID {vpid}: reserved bits {bits:#x} set in the descriptor")
            });
        }
        let dst = match d.multicast() {
            false => Dest::Node(NodeId(d.target())),
            true if d.target() <= MAX_GROUP => Dest::Group(d.target() as u8),
            true => {
                self.counters.drops.velo_bad_descriptor =
                    self.counters.drops.velo_bad_descriptor.wrapping_add(1);
                self.diagnose(env, || {
                    format!(
                        "VELO VPID {vpid}: multicast group {} does not exist",
                        d.target()
                    )
                });
                self.wcbuf_left(Unit::Velo, vpid, env);
                return;
            }
        };
        let source = NodeVpidProtDesc(self.velo.source[usize::from(vpid)]);
        message.src_node = source.tx_nodeid();
        message.src_vpid = source.tx_vpid().into();
        message.protection = source.tx_prot_desc();
        let bytes = u32::from(message.len);
        self.counters.velo.sent = self.counters.velo.sent.wrapping_add(1);
        self.counters.velo.bytes_sent = self.counters.velo.bytes_sent.wrapping_add(bytes.into());
        let c = PacketCounter(self.storage.at(regs::COUNTER_0.0));
        let c = c.with_sent_pkts(c.sent_pkts().wrapping_add(1));
        self.storage.set_at(regs::COUNTER_0.0, c.raw());
        let packet = Packet {
            src: self.node_id(),
            dst,
            port: NetPort::Velo,
            tc,
            bytes,
            body: Body::Velo(message),
        };
        self.send(packet, Some(vpid), env);
    }

    /// Checks a message from the network and stores it in its mailbox.
    pub(super) fn velo_receive(&mut self, message: Box<VeloMessage>, env: &mut Env<'_>) {
        let c = PacketCounter(self.storage.at(regs::COUNTER_0.0));
        let c = c.with_rcvd_pkts(c.rcvd_pkts().wrapping_add(1));
        self.storage.set_at(regs::COUNTER_0.0, c.raw());
        let vpid = u8::try_from(message.dst_vpid).ok();
        let accept = CompProtDesc(vpid.map_or(0, |v| self.velo.accept[usize::from(v)]));
        let Some(vpid) = vpid.filter(|_| accept.vpid_enable()) else {
            self.velo_refuse(&message, false, env);
            return;
        };
        if accept.rx_prot_desc() != message.protection {
            self.velo_refuse(&message, true, env);
            return;
        }
        let c = Counter2(self.storage.at(regs::COUNTER_2.0));
        let c = c
            .with_bq_requests(c.bq_requests().wrapping_add(1))
            .with_bq_responses(c.bq_responses().wrapping_add(1));
        self.storage.set_at(regs::COUNTER_2.0, c.raw());
        self.queue_put(Unit::Velo, vpid, Item::Message(message), env);
    }

    fn velo_refuse(&mut self, m: &VeloMessage, wrong_descriptor: bool, env: &mut Env<'_>) {
        let c = Counter1(self.storage.at(regs::COUNTER_1.0));
        let drops = &mut self.counters.drops;
        let c = if wrong_descriptor {
            drops.wrong_protection = drops.wrong_protection.wrapping_add(1);
            c.with_wrong_desc(c.wrong_desc().wrapping_add(1))
        } else {
            drops.vpid_disabled = drops.vpid_disabled.wrapping_add(1);
            c.with_disabled_mbox(c.disabled_mbox().wrapping_add(1))
        };
        self.storage.set_at(regs::COUNTER_1.0, c.raw());
        let d = Debug1(self.storage.at(regs::DEBUG_1.0));
        let d = d
            .with_error_snode(m.src_node)
            .with_error_svpid(m.src_vpid as u8)
            .with_error_tvpid(m.dst_vpid as u8)
            .with_error_count(d.error_count().wrapping_add(1));
        self.storage.set_at(regs::DEBUG_1.0, d.raw());
        self.raise(Te::VeloError);
        let why = if wrong_descriptor {
            "protection descriptors differ"
        } else {
            "mailbox disabled"
        };
        self.diagnose(env, || {
            format!(
                "VELO message from {}/{} to VPID {}: {why}",
                m.src_node, m.src_vpid, m.dst_vpid
            )
        });
    }

    /// Writes a message to its slots except the slots in `lost`. The payload is written first, then
    /// the status words from the last to the first (G9).
    pub(super) fn velo_write_slots(
        &mut self,
        m: &VeloMessage,
        at: &[u64],
        lost: u8,
        env: &mut Env<'_>,
    ) -> Result<(), ()> {
        let size = self.velo_slot_size();
        let kept = |slot: usize| lost & (1 << slot) == 0;
        let parts = size.parts(m.len.into()).zip(at);
        for (part, base) in parts.filter(|(p, _)| kept(p.slot.into())) {
            let start = usize::from(part.message_offset);
            let len = usize::from(part.len).div_ceil(8) * 8;
            let to = base.wrapping_add(part.slot_offset.into());
            self.dma_write(to, &m.data[start..start + len], env)
                .map_err(drop)?;
        }
        let status = StatusWord(0)
            .with_node(m.src_node)
            .with_vpid(m.src_vpid)
            .with_mtt(m.mtt)
            .with_tag(m.tag)
            .with_len(m.len.into());
        for (i, base) in at.iter().enumerate().rev().filter(|(i, _)| kept(*i)) {
            let word = status.with_eom(i + 1 == at.len()).raw();
            let to = base.wrapping_add(size.status_offset().into());
            self.dma_write(to, &word.to_le_bytes(), env).map_err(drop)?;
        }
        Ok(())
    }

    /// Returns true if the VPID is enabled in the unit.
    pub(super) fn accepts(&self, unit: Unit, vpid: u8) -> bool {
        match unit {
            Unit::Velo => CompProtDesc(self.velo.accept[usize::from(vpid)]).vpid_enable(),
            Unit::Rma => self.rma_accepts(vpid),
        }
    }

    pub(super) fn velo_reg_read(&mut self, offset: RegOffset, by: Accessor) -> Option<u64> {
        if let Some(i) = source_index(offset) {
            return Some(self.velo.source[i]);
        }
        if let Some(i) = accept_index(offset) {
            return Some(self.velo.accept[i]);
        }
        self.vector_read(Unit::Velo, offset, by)
    }

    pub(super) fn velo_reg_write(
        &mut self,
        offset: RegOffset,
        value: u64,
        env: &mut Env<'_>,
    ) -> bool {
        if let Some(i) = source_index(offset) {
            self.velo.source[i] = value;
            return true;
        }
        if let Some(i) = accept_index(offset) {
            self.velo.accept[i] = value;
            if !CompProtDesc(value).vpid_enable() {
                self.close_held(Unit::Velo, i as u8, env);
            }
            return true;
        }
        if offset == regs::COMPLETER {
            let slots_128 = Completer(value).packets_128b();
            if self.velo.slots_128 != slots_128 {
                self.velo.slots_128 = slots_128;
                self.forget_layouts(Unit::Velo);
            }
            return false;
        }
        self.vector_write(Unit::Velo, offset, value)
    }
}
