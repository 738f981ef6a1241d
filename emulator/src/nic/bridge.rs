//! PCIe bridge of a NIC in root-port mode. It exchanges packets with the device behind the NIC, and
//! has a backdoor (HW §14, G20).
//!
//! The HTAX intervals of this NIC route packets of the device like accesses of a host. Requests
//! from the network for this node's memory go to the device. Software accesses the device's
//! configuration space through the backdoor registers.

use super::htax::Route;
use super::smfu::Sink;
use super::smfu_target::Requester;
use super::{BackdoorInfoRead, Nic, Te};
use crate::endpoint::{chunks, Endpoint, Gather, Gathered, Link, PciePacket, MAX_READ};
use crate::env::Env;
use crate::lane::Lane;
use std::collections::{BTreeMap, VecDeque};
use wire::ids::RegOffset;
use wire::regs::pcie::{
    self as regs, BackdoorControl, BackdoorInfo, ForwardCounter, HtocToPcie, PcieToHtocCfg,
    RegfwdDrop, RequestCounter, ResponseCounter,
};
use wire::tlp::{words, Bdf, CfgType, Kind, Span};

/// PCIe ID of the root port.
const SELF: Bdf = Bdf(0);
/// Capacity of the receive FIFO in packets.
const FIFO: usize = 64;
/// Maximum number of packets that one call moves. The next call moves the remaining packets.
const ROUNDS: usize = 65_536;

/// A read by the device that waits for the network.
pub(super) struct DeviceRead {
    requester: Bdf,
    tag: u8,
    span: Span,
}

/// A read from the network that waits for the device.
struct Serving {
    to: Requester,
    /// Number of chunks of the read that are not complete.
    left: u32,
    /// Data that was read so far; `None` after a chunk has failed.
    data: Option<Vec<u8>>,
}

/// A request to the device for one chunk of a [`Serving`].
struct Asked {
    serving: u64,
    offset: usize,
    gather: Gather,
    deadline_ns: u64,
}

/// Receive FIFO of the backdoor.
#[derive(Default)]
struct Fifo {
    /// Number of quadwords of each packet whose `info` software has not read.
    infos: VecDeque<u8>,
    data: VecDeque<u64>,
    /// Number of quadwords of the first packet that software has read, for
    /// [`BackdoorInfoRead::Peek`].
    taken: u8,
}

#[derive(Default)]
pub(super) struct Bridge {
    device: Option<Box<dyn Endpoint>>,
    to_device: VecDeque<PciePacket>,
    from_device: VecDeque<PciePacket>,
    fifo: Fifo,
    asked: BTreeMap<u8, Asked>,
    serving: BTreeMap<u64, Serving>,
    next_serving: u64,
}

impl Bridge {
    /// Resets the bridge of the chip and the device.
    pub(super) fn reset(&mut self) {
        let mut device = self.device.take();
        if let Some(device) = &mut device {
            device.reset();
        }
        *self = Self {
            device,
            ..Self::default()
        };
    }

    pub(super) fn next_deadline(&self) -> Option<u64> {
        let device = self.device.as_ref().and_then(|d| d.next_deadline());
        let asked = self.asked.values().map(|a| a.deadline_ns);
        asked.chain(device).min()
    }

    /// Returns true if packets are waiting to be moved.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        !self.to_device.is_empty()
            || !self.from_device.is_empty()
            || self.device.as_ref().is_some_and(|d| d.wants_credit())
    }
}

/// Class of a packet, which the configuration of the receive side distinguishes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    MemWrite,
    MemRead,
    CfgWrite,
    CfgRead,
    ReadResponse,
    TargetDone,
}

impl Class {
    fn of(kind: &Kind) -> Self {
        match kind {
            Kind::MemWrite { .. } => Self::MemWrite,
            Kind::MemRead { .. } => Self::MemRead,
            Kind::CfgWrite { .. } => Self::CfgWrite,
            Kind::CfgRead { .. } => Self::CfgRead,
            Kind::Completion { dwords: 0, .. } => Self::TargetDone,
            Kind::Completion { .. } => Self::ReadResponse,
        }
    }

    fn counter(self) -> RegOffset {
        match self {
            Self::MemWrite => regs::PCIE_TO_HTOC_COUNTER_MEMWR,
            Self::MemRead => regs::PCIE_TO_HTOC_COUNTER_MEMRD,
            Self::CfgWrite => regs::PCIE_TO_HTOC_COUNTER_CFGWR,
            Self::CfgRead => regs::PCIE_TO_HTOC_COUNTER_CFGRD,
            Self::ReadResponse => regs::PCIE_TO_HTOC_COUNTER_RDRSP,
            Self::TargetDone => regs::PCIE_TO_HTOC_COUNTER_TGTDONE,
        }
    }

    /// Returns two flags of the configuration. The first is true if the FIFO receives all packets
    /// of this class; the second is true if the FIFO receives the packets that no interval maps.
    fn to_fifo(self, cfg: PcieToHtocCfg) -> (bool, bool) {
        match self {
            Self::MemWrite => (cfg.regfwd_memwr_all(), cfg.regfwd_memwr_cantmap()),
            Self::MemRead => (cfg.regfwd_memrd_all(), cfg.regfwd_memrd_cantmap()),
            Self::CfgWrite => (cfg.regfwd_cfgwr_all(), cfg.regfwd_cfgwr_cantmap()),
            Self::CfgRead => (cfg.regfwd_cfgrd_all(), cfg.regfwd_cfgrd_cantmap()),
            Self::ReadResponse => (cfg.regfwd_rdrsp_all(), false),
            Self::TargetDone => (cfg.regfwd_tgtdone_all(), false),
        }
    }
}

/// Result of the processing of a packet from the device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Forwarded,
    Stored,
    Error,
}

impl Nic {
    /// Puts the NIC into root-port mode and attaches this device.
    pub fn attach(&mut self, device: Box<dyn Endpoint>) {
        self.bridge.device = Some(device);
    }

    /// Returns true if a device is attached to this NIC instead of a host.
    pub fn is_root_port(&self) -> bool {
        self.bridge.device.is_some()
    }

    fn bridge_cfg(&self) -> PcieToHtocCfg {
        PcieToHtocCfg(self.storage.at(regs::PCIE_TO_HTOC_CFG.0))
    }

    /// Moves packets until no packet is left or [`ROUNDS`] packets have been moved.
    pub(super) fn run_bridge(&mut self, env: &mut Env<'_>) {
        for _ in 0..ROUNDS {
            if let Some(packet) = self.bridge.from_device.pop_front() {
                self.take_from_device(packet, env);
            } else if let Some(packet) = self.bridge.to_device.pop_front() {
                self.call_device(env, |device, link| device.receive(packet, link));
            } else if self.device_credit() > 0 && self.bridge.is_ready() {
                self.call_device(env, |device, link| device.tick(link));
            } else {
                break;
            }
        }
    }

    fn device_credit(&self) -> usize {
        self.cfg
            .tx_queue_limit
            .saturating_sub(self.tx_len(Lane::SMFU))
    }

    fn call_device(&mut self, env: &mut Env<'_>, f: impl FnOnce(&mut dyn Endpoint, &mut Link<'_>)) {
        let credit = self.device_credit();
        let Bridge {
            device,
            from_device,
            ..
        } = &mut self.bridge;
        if let Some(device) = device {
            let mut link = Link::new(env.host.now_ns(), credit, from_device);
            f(device.as_mut(), &mut link);
        }
    }

    /// Runs the device if it is due. Fails reads that the device did not answer in time.
    pub(super) fn bridge_tick(&mut self, now_ns: u64, env: &mut Env<'_>) {
        let device = self.bridge.device.as_ref();
        if device
            .and_then(|d| d.next_deadline())
            .is_some_and(|at| at <= now_ns)
        {
            self.call_device(env, |device, link| device.tick(link));
        }
        let due: Vec<u8> = self
            .bridge
            .asked
            .iter()
            .filter(|(_, a)| a.deadline_ns <= now_ns)
            .map(|(&tag, _)| tag)
            .collect();
        for tag in due {
            self.counters.bridge.timeouts = self.counters.bridge.timeouts.wrapping_add(1);
            self.diagnose(env, || "a read of the device timed out".to_owned());
            if let Some(asked) = self.bridge.asked.remove(&tag) {
                self.bridge_served(asked.serving, asked.offset, None, env);
            }
        }
    }

    fn send_to_device(&mut self, packet: PciePacket) {
        self.counters.bridge.to_device = self.counters.bridge.to_device.wrapping_add(1);
        let at = match packet.tlp.kind {
            Kind::MemWrite { .. } => regs::HTOC_TO_PCIE_P_COUNTER,
            Kind::Completion { .. } => regs::HTOC_TO_PCIE_R_COUNTER,
            _ => regs::HTOC_TO_PCIE_NP_COUNTER,
        };
        let c = ForwardCounter(self.storage.at(at.0));
        let c = c.with_forw_pkts(c.forw_pkts().wrapping_add(1));
        self.storage.set_at(at.0, c.raw());
        self.bridge.to_device.push_back(packet);
    }

    /// Performs a write from the network to the device.
    pub(super) fn bridge_write(&mut self, addr: u64, data: &[u8]) {
        for packet in PciePacket::writes(SELF, addr, data) {
            self.send_to_device(packet);
        }
    }

    /// Performs a read from the network at the device. Tag 0 stays free for the backdoor.
    pub(super) fn bridge_read(&mut self, to: Requester, addr: u64, len: u32, env: &mut Env<'_>) {
        let parts: Vec<(u32, u32)> = match len {
            0 => vec![(0, 0)],
            _ => chunks(addr, len, MAX_READ).collect(),
        };
        let free: Vec<u8> = (1..=u8::MAX)
            .filter(|tag| !self.bridge.asked.contains_key(tag))
            .take(parts.len())
            .collect();
        if free.len() < parts.len() {
            self.counters.drops.smfu_store_full =
                self.counters.drops.smfu_store_full.wrapping_add(1);
            self.raise(Te::SmfuMatchingStoreEmpty);
            return self.smfu_answer(to, None, env);
        }
        let serving = self.bridge.next_serving;
        self.bridge.next_serving += 1;
        self.bridge.serving.insert(
            serving,
            Serving {
                to,
                left: parts.len() as u32,
                data: Some(vec![0; len as usize]),
            },
        );
        let deadline_ns = env
            .host
            .now_ns()
            .saturating_add(self.cfg.completion_timeout_ns);
        for (tag, (offset, n)) in free.into_iter().zip(parts) {
            let Some(span) = Span::bytes(addr.wrapping_add(offset.into()), n) else {
                continue;
            };
            let asked = Asked {
                serving,
                offset: offset as usize,
                gather: Gather::new(span),
                deadline_ns,
            };
            self.bridge.asked.insert(tag, asked);
            let requester = SELF;
            let kind = Kind::MemRead {
                requester,
                tag,
                span,
            };
            self.send_to_device(PciePacket::bare(kind));
        }
    }

    /// Processes a completed chunk of a read from the network; `bytes` is `None` if the chunk
    /// failed.
    fn bridge_served(
        &mut self,
        serving: u64,
        offset: usize,
        bytes: Option<Vec<u8>>,
        env: &mut Env<'_>,
    ) {
        let Some(s) = self.bridge.serving.get_mut(&serving) else {
            return;
        };
        match (&bytes, &mut s.data) {
            (Some(bytes), Some(data)) => {
                if let Some(to) = data.get_mut(offset..offset + bytes.len()) {
                    to.copy_from_slice(bytes);
                }
            }
            _ => s.data = None,
        }
        s.left -= 1;
        if s.left == 0 {
            if let Some(s) = self.bridge.serving.remove(&serving) {
                self.smfu_answer(s.to, s.data, env);
            }
        }
    }

    /// Answers a read by the device; `data` is `None` if the network did not answer it.
    pub(super) fn bridge_read_done(&mut self, read: &DeviceRead, data: Option<&[u8]>) {
        let to = (read.requester, read.tag);
        for packet in PciePacket::read_answers(SELF, to, read.span, data) {
            self.send_to_device(packet);
        }
    }

    /// Processes a packet from the device.
    fn take_from_device(&mut self, packet: PciePacket, env: &mut Env<'_>) {
        self.counters.bridge.from_device = self.counters.bridge.from_device.wrapping_add(1);
        let cfg = self.bridge_cfg();
        let class = Class::of(&packet.tlp.kind);
        let (all, cantmap) = class.to_fifo(cfg);
        let special = match packet.tlp.kind {
            Kind::MemWrite { span, .. } => cfg.regfwd_interrupt() && self.is_interrupt(span.addr),
            Kind::Completion { tag: 0, .. } => cfg.regfwd_srctag0(),
            _ => false,
        };
        let fate = if all || special {
            self.store_packet(&packet, env)
        } else if self.forward(&packet, env) {
            Fate::Forwarded
        } else if cantmap {
            self.store_packet(&packet, env)
        } else {
            self.refuse(&packet, env);
            Fate::Error
        };
        self.count_received(class, fate);
    }

    /// Returns true if the registers `interrupt_0/1` identify this address as an interrupt.
    fn is_interrupt(&self, addr: u64) -> bool {
        let mask = self.storage.at(regs::PCIE_TO_HTOC_INTERRUPT_1.0);
        let want = self.storage.at(regs::PCIE_TO_HTOC_INTERRUPT_0.0);
        mask != 0 && addr & mask == want & mask
    }

    /// Performs a request of the device. Returns `false` if the request has no target.
    fn forward(&mut self, packet: &PciePacket, env: &mut Env<'_>) -> bool {
        match packet.tlp.kind {
            Kind::MemWrite { span, .. } => {
                let Some(route) = self.htax.route_addr(span.addr, true) else {
                    return false;
                };
                if packet.tlp.poisoned {
                    return false;
                }
                for (addr, bytes) in PciePacket::runs(span, &packet.data) {
                    self.unit_store(route.at(addr - span.addr), bytes, env);
                }
                true
            }
            Kind::MemRead {
                requester,
                tag,
                span,
            } => {
                let (skip, len) = span.extent();
                let read = DeviceRead {
                    requester,
                    tag,
                    span,
                };
                match self.htax.route_addr(span.addr, false) {
                    Some(Route::Smfu { addr, remote_rf }) => {
                        let sink = Sink::Device(read);
                        let at = addr + u64::from(skip);
                        let back = self.smfu_request(at, remote_rf, len, sink, env);
                        if let Some(Sink::Device(read)) = back {
                            self.bridge_read_done(&read, None);
                        }
                        true
                    }
                    Some(route) => {
                        let mut data = vec![0; len as usize];
                        self.unit_load(route.at(skip.into()), &mut data, env);
                        self.bridge_read_done(&read, Some(&data));
                        true
                    }
                    None => false,
                }
            }
            Kind::Completion { tag, .. } => {
                let Some(asked) = self.bridge.asked.get_mut(&tag) else {
                    return false;
                };
                let (serving, offset) = (asked.serving, asked.offset);
                let bytes = match asked.gather.add(packet) {
                    Gathered::More => return true,
                    Gathered::Done(bytes) => Some(bytes),
                    Gathered::Failed => None,
                };
                self.bridge.asked.remove(&tag);
                self.bridge_served(serving, offset, bytes, env);
                true
            }
            Kind::CfgRead { .. } | Kind::CfgWrite { .. } => false,
        }
    }

    /// Drops a packet without a target. If the device waits for an answer, answers with an error.
    fn refuse(&mut self, packet: &PciePacket, env: &mut Env<'_>) {
        let write = matches!(packet.tlp.kind, Kind::MemWrite { .. });
        match packet.tlp.kind {
            Kind::MemRead {
                requester,
                tag,
                span,
            } => {
                let read = DeviceRead {
                    requester,
                    tag,
                    span,
                };
                self.bridge_read_done(&read, None);
            }
            Kind::CfgRead { requester, tag, .. } | Kind::CfgWrite { requester, tag, .. } => {
                let span = Span {
                    addr: 0,
                    dwords: 1,
                    first_be: 0xF,
                    last_be: 0,
                };
                let read = DeviceRead {
                    requester,
                    tag,
                    span,
                };
                self.bridge_read_done(&read, None);
            }
            _ => {}
        }
        if matches!(packet.tlp.kind, Kind::Completion { .. }) {
            self.counters.drops.pcie_packet = self.counters.drops.pcie_packet.wrapping_add(1);
        } else {
            self.htax_discard(write);
        }
        let kind = packet.tlp.kind;
        self.diagnose(env, || {
            format!("dropped a packet of the device without a target: {kind:x?}")
        });
    }

    fn count_received(&mut self, class: Class, fate: Fate) {
        let at = class.counter().0;
        let word = self.storage.at(at);
        let word = if matches!(class, Class::ReadResponse | Class::TargetDone) {
            let c = ResponseCounter(word);
            match fate {
                Fate::Forwarded => c.with_fwd(c.fwd().wrapping_add(1)).raw(),
                Fate::Stored => c.with_regfile(c.regfile().wrapping_add(1)).raw(),
                Fate::Error => word,
            }
        } else {
            let c = RequestCounter(word);
            match fate {
                Fate::Forwarded => c.with_fwd(c.fwd().wrapping_add(1)).raw(),
                Fate::Stored => c.with_regfile(c.regfile().wrapping_add(1)).raw(),
                Fate::Error => c.with_error(c.error().wrapping_add(1)).raw(),
            }
        };
        self.storage.set_at(at, word);
    }

    /// Puts a packet into the receive FIFO, or drops it if the FIFO is full.
    fn store_packet(&mut self, packet: &PciePacket, env: &mut Env<'_>) -> Fate {
        let packed = words::pack(&packet.tlp, &packet.data).ok();
        let fifo = &mut self.bridge.fifo;
        let full = fifo.infos.len() >= FIFO || fifo.data.len() >= FIFO * words::MAX;
        let Some(packed) = packed.filter(|_| !full) else {
            let at = regs::PCIE_TO_HTOC_REGFWD_DROP.0;
            let c = RegfwdDrop(self.storage.at(at));
            let c = match packet.tlp.kind {
                Kind::MemWrite { .. } => c.with_posted(c.posted().wrapping_add(1)),
                Kind::Completion { .. } => c.with_response(c.response().wrapping_add(1)),
                _ => c.with_nonposted(c.nonposted().wrapping_add(1)),
            };
            self.storage.set_at(at, c.raw());
            self.counters.drops.pcie_packet = self.counters.drops.pcie_packet.wrapping_add(1);
            self.diagnose(env, || {
                "packet does not fit the backdoor's FIFO, dropped".to_owned()
            });
            return Fate::Error;
        };
        fifo.infos.push_back(packed.as_slice().len() as u8);
        fifo.data.extend(packed.as_slice());
        self.counters.bridge.stored = self.counters.bridge.stored.wrapping_add(1);
        if self.bridge_cfg().info_trigger() {
            self.raise(Te::PcieBridgeRegfileInfo);
        }
        Fate::Stored
    }

    /// Reads a FIFO register. Reading removes the value (HW §14). With `Peek`, reading `INFO` does
    /// not.
    pub(super) fn bridge_reg_read(&mut self, offset: RegOffset) -> Option<u64> {
        let peek = self.cfg.backdoor_info_read == BackdoorInfoRead::Peek;
        let fifo = &mut self.bridge.fifo;
        match offset {
            regs::PCIE_TO_HTOC_BACKDOOR_INFO => {
                let count = if peek {
                    fifo.infos.front().copied()
                } else {
                    fifo.infos.pop_front()
                };
                let info = count.map_or(BackdoorInfo(0), |n| {
                    BackdoorInfo(0).with_valid(true).with_qw_count(n)
                });
                Some(info.raw())
            }
            regs::PCIE_TO_HTOC_BACKDOOR_DATA => {
                let word = fifo.data.pop_front();
                if peek && word.is_some() {
                    fifo.taken += 1;
                    if fifo.infos.front().is_some_and(|&n| fifo.taken >= n) {
                        fifo.infos.pop_front();
                        fifo.taken = 0;
                    }
                }
                Some(word.unwrap_or(0))
            }
            _ => None,
        }
    }

    pub(super) fn bridge_reg_write(
        &mut self,
        offset: RegOffset,
        value: u64,
        env: &mut Env<'_>,
    ) -> bool {
        if offset != regs::HTOC_TO_PCIE_BACKDOOR_CONTROL {
            return false;
        }
        let at = offset.0;
        let sent = BackdoorControl(self.storage.at(at)).sent_tlp_count();
        let control = BackdoorControl(value);
        let sent = if control.send() {
            self.backdoor_send(control.payload_qw_length(), env);
            sent.wrapping_add(1)
        } else {
            sent
        };
        let kept = control.with_send(false).with_sent_tlp_count(sent);
        self.storage.set_at(at, kept.raw());
        true
    }

    /// Sends the packet that software has written to the backdoor registers.
    fn backdoor_send(&mut self, payload: u8, env: &mut Env<'_>) {
        let n = (words::HEADER + usize::from(payload)).min(words::MAX);
        let raw: Vec<u64> = (0..n as u32)
            .map(|k| self.storage.at(regs::htoc_to_pcie_backdoor_data(k).0))
            .collect();
        let mut data = vec![0; usize::from(words::PAYLOAD_DWORDS) * 4];
        let (mut tlp, len) = match words::unpack(&raw, &mut data) {
            Ok(found) if self.is_root_port() => found,
            other => {
                // The packet is malformed, or its target is a host, which does not answer it (G20).
                let at = regs::HTOC_TO_PCIE_NP_COUNTER.0;
                let c = ForwardCounter(self.storage.at(at));
                let c = c.with_disc_pkts(c.disc_pkts().wrapping_add(1));
                self.storage.set_at(at, c.raw());
                self.counters.drops.pcie_packet = self.counters.drops.pcie_packet.wrapping_add(1);
                if let Err(why) = other {
                    self.raise(Te::PcieBridgeError);
                    self.diagnose(env, || format!("backdoor packet {raw:x?}: {why}"));
                }
                return;
            }
        };
        data.truncate(len);
        self.counters.bridge.injected = self.counters.bridge.injected.wrapping_add(1);
        if HtocToPcie(self.storage.at(regs::HTOC_TO_PCIE.0)).map_config_to_0() {
            if let Kind::CfgRead { ty, .. } | Kind::CfgWrite { ty, .. } = &mut tlp.kind {
                *ty = CfgType::Type0;
            }
        }
        self.send_to_device(PciePacket { tlp, data });
    }
}
