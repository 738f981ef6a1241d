//! Registers of crossbar, link ports and network ports of a NIC (HW §15), and their state.
//!
//! docs/emulator.md documents the decisions where no source describes the behaviour. The hardware
//! sets error flags, and software clears them by writing 0. Counters wrap and can be written.
//! Credits read 0 (G1).

use super::barrier::{Unit, UNITS};
use super::topology::LINKS;
use crate::nic::NetworkRegs;
use std::cell::RefCell;
use std::rc::Rc;
use wire::regs::lp::{Ids, LpIn, RetransmissionCounters, Status};
use wire::regs::np::General;
use wire::regs::PacketCounter;

/// Number of crossbar ports: seven links, then the network ports n0…n3 (HW §15.2).
pub const XBAR_PORTS: usize = 11;
/// Number of the crossbar port of n0.
pub const NP_BASE: usize = LINKS as usize;
const LRT: usize = 1024;
const GRT: usize = 64;
const MCAST: usize = 64;
const GLOBAL_INTERRUPTS: usize = 4;
/// Number of credit classes of an outport (HW §15.3).
const FCC: usize = 10;

/// Bit `illegal_routing` of the inport register `routing`.
const ILLEGAL: u64 = 1 << 2;
/// Bit `pos_dead` of the inport register `routing`.
const POS_DEAD: u64 = 1 << 3;

const INP: u32 = 0x40_0000;
const OUTP: u32 = 0x42_C000;
const BARRIER: u32 = 0x44_0000;
const BARRIER_CONFIG: u32 = 0x45_4000;
const GINT: u32 = 0x45_0000;
const LP: u32 = 0x46_0000;
const NP: u32 = 0x9400;

/// State of a crossbar inport.
#[derive(Clone)]
pub struct Inport {
    /// Register `routing`: options and flags.
    pub routing: u64,
    /// Number of packets received.
    pub received: u32,
    /// Number of packets forwarded.
    pub sent: u32,
    debug: u64,
    /// Words of the multicast table, by group.
    pub mcast: Box<[u64; MCAST]>,
    /// Words of the global routing table, by bits [15:10] of the node ID.
    pub grt: Box<[u64; GRT]>,
    /// Words of the local routing table, by bits [9:0] of the node ID.
    pub lrt: Box<[u64; LRT]>,
}

impl Inport {
    fn new() -> Self {
        Self {
            routing: 0,
            received: 0,
            sent: 0,
            debug: 0,
            mcast: Box::new([0; MCAST]),
            grt: Box::new([0; GRT]),
            lrt: Box::new([0; LRT]),
        }
    }

    /// Records a packet that has no legal route.
    pub fn set_illegal(&mut self) {
        self.routing |= ILLEGAL;
    }

    /// Records that the inport may be part of a deadlock.
    pub fn set_possible_deadlock(&mut self) {
        self.routing |= POS_DEAD;
    }
}

/// State of a crossbar outport.
#[derive(Clone, Default)]
pub struct Outport {
    /// Number of packets sent.
    pub sent: u32,
    general: u64,
    credits: [u64; 2],
    /// Number of packets without a route that this outport dropped since software last set the
    /// credits, by credit class.
    swallowed: [u8; FCC],
}

impl Outport {
    /// Drops a packet that has no route. Its credits stay in use until software sets them again (HW
    /// §15.3).
    pub fn swallow(&mut self, class: usize) {
        self.sent = self.sent.wrapping_add(1);
        if let Some(n) = self.swallowed.get_mut(class) {
            *n = (*n + 1).min(0x3f);
        }
    }

    /// Returns the register `fcc_credits`, which has six bits per credit class.
    fn class_credits(&self) -> u64 {
        let classes = self.swallowed.iter().rev();
        classes.fold(0, |word, &n| (word << 6) | u64::from(n))
    }

    /// Returns the register `general`, which has the total credits in bits [7:0].
    fn general(&self) -> u64 {
        let total: u64 = self.swallowed.iter().map(|&n| u64::from(n)).sum();
        (self.general & !0xff) | total.min(0xff)
    }
}

/// State of a link port.
#[derive(Clone)]
pub struct LinkPort {
    /// Enable bit that software wrote.
    pub enable: bool,
    /// True while the link is up.
    pub ready: bool,
    /// Error flags (bits [11:7]) and attempts (bits [5:2]) of the register `status`.
    pub flags: u64,
    /// Number of packets received.
    pub received: u32,
    /// Number of packets sent.
    pub sent: u32,
    /// Number of packets that arrived damaged; 14 bits.
    pub errors: u16,
    /// Number of retransmissions that were started; 14 bits.
    pub retransmissions: u16,
    /// Number of negative acknowledgements from the other side; 14 bits.
    pub nacks: u16,
    /// Number of packets that were sent again; 14 bits.
    pub resent: u16,
    /// Number of retransmission timeouts; 8 bits.
    pub timeouts: u8,
    /// Bits [1:0] of the register `ids` as software wrote them.
    send: u64,
    /// GUID, node ID and port that the other side sent.
    pub remote: (u32, u16, u8),
    /// Received flags of the register `lp_in`: bits [1:0] for the identity, and bits [49:34] for
    /// barriers.
    pub id_flags: u64,
    threshold: u8,
    ack: u16,
    credit: u8,
    misc: [u64; 3],
}

impl LinkPort {
    fn new() -> Self {
        Self {
            enable: true,
            ready: false,
            flags: 0,
            received: 0,
            sent: 0,
            errors: 0,
            retransmissions: 0,
            nacks: 0,
            resent: 0,
            timeouts: 0,
            send: 0,
            remote: (0, 0, 0),
            id_flags: 0,
            threshold: 0,
            ack: 0,
            credit: 0,
            misc: [0; 3],
        }
    }

    /// Records a damaged packet in the link layer of this port.
    pub fn damaged(&mut self) {
        self.errors = self.errors.wrapping_add(1) & 0x3fff;
        self.flags |= 1 << 8;
    }

    /// Records a retransmission by this port. `timeout` is true after a timeout, and false after a
    /// negative acknowledgement.
    pub fn resend(&mut self, timeout: bool, attempts: u32) {
        self.retransmissions = self.retransmissions.wrapping_add(1) & 0x3fff;
        self.resent = self.resent.wrapping_add(1) & 0x3fff;
        if timeout {
            self.timeouts = self.timeouts.wrapping_add(1);
        } else {
            self.nacks = self.nacks.wrapping_add(1) & 0x3fff;
        }
        let flags = Status(self.flags).with_retrans_attempts(attempts.min(15) as u8);
        self.flags = flags.raw();
    }

    fn status(&self) -> u64 {
        Status(self.flags)
            .with_enable(self.enable)
            .with_ready(self.ready)
            .with_low_level_link_init(self.ready)
            .raw()
    }
}

/// State of a network port.
#[derive(Clone, Default)]
pub struct NetworkPort {
    /// Register `general` as software wrote it.
    pub general: u64,
    /// Numbers of packets that the port received from the host side, and sent to the network.
    pub to_network: (u32, u32),
    /// Numbers of packets that the port received from the network, and sent to the host side.
    pub to_host: (u32, u32),
    /// True while packets wait for a frozen NIC.
    pub waiting: bool,
    /// True while the buffer for waiting packets is full.
    pub full: bool,
    misc: [u64; 7],
}

impl NetworkPort {
    /// Returns the bit `general.enable`.
    pub fn enabled(&self) -> bool {
        self.general & 1 != 0
    }
}

/// Action that a register write of software triggers. The network performs the action after the
/// access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortAction {
    /// Send GUID, or node ID and port, or both, to the other side, because register `ids` of this
    /// link was written.
    SendIds {
        /// Number of the link port.
        link: u8,
        /// True to send the GUID.
        guid: bool,
        /// True to send node ID and port.
        ids: bool,
    },
    /// Enable or disable this link, because `status.enable` has changed.
    LinkEnable {
        /// Number of the link port.
        link: u8,
    },
    /// Process a write to a register of the barrier unit with this number.
    Barrier(u8),
    /// Raise the global interrupt with this number.
    GlobalInterrupt(u8),
    /// Train the links again, because the registers were reset.
    Reset,
}

/// All network registers of a NIC.
pub struct NodeRegs {
    /// State of each crossbar inport.
    pub inports: Vec<Inport>,
    /// State of each crossbar outport.
    pub outports: Vec<Outport>,
    /// State of each link port.
    pub links: Vec<LinkPort>,
    /// State of each network port.
    pub nps: Vec<NetworkPort>,
    /// Work sets of the global interrupts. Bit 1 is the interrupt flag.
    pub gint: [u64; GLOBAL_INTERRUPTS],
    /// State of each barrier unit.
    pub(super) barriers: [Unit; UNITS],
    /// Actions that the network must perform.
    pub actions: Vec<PortAction>,
}

impl NodeRegs {
    /// Returns all registers in their reset state.
    pub fn new() -> Self {
        Self {
            inports: (0..XBAR_PORTS).map(|_| Inport::new()).collect(),
            outports: vec![Outport::default(); XBAR_PORTS],
            links: (0..LINKS).map(|_| LinkPort::new()).collect(),
            nps: vec![NetworkPort::default(); 4],
            gint: [0; GLOBAL_INTERRUPTS],
            barriers: [Unit::default(); UNITS],
            actions: Vec::new(),
        }
    }

    fn locate(offset: u32) -> Option<(Reg, usize, u32)> {
        let split = |base: u32, stride: u32, n: usize| {
            let i = (offset.checked_sub(base)? / stride) as usize;
            (i < n).then_some((i, (offset - base) % stride))
        };
        if let Some((i, at)) = split(NP, 0x80, 4) {
            return Some((Reg::Np, i, at));
        }
        if let Some((i, at)) = split(INP, 0x4000, XBAR_PORTS) {
            return Some((Reg::In, i, at));
        }
        if let Some((i, at)) = split(OUTP, 0x40, XBAR_PORTS) {
            return Some((Reg::Out, i, at));
        }
        if let Some((i, at)) = split(GINT, 0x1000, GLOBAL_INTERRUPTS) {
            return (at == 0).then_some((Reg::GlobalInterrupt, i, at));
        }
        if let Some((i, at)) = split(BARRIER, 0x1000, UNITS) {
            return (at == 0).then_some((Reg::Barrier, i, at));
        }
        if let Some((i, at)) = split(BARRIER_CONFIG, 8, UNITS) {
            return Some((Reg::BarrierConfig, i, at));
        }
        split(LP, 0x80, LINKS.into()).map(|(i, at)| (Reg::Link, i, at))
    }
}

impl Default for NodeRegs {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Clone, Copy)]
enum Reg {
    Np,
    In,
    Out,
    GlobalInterrupt,
    Barrier,
    BarrierConfig,
    Link,
}

fn pair(low: u32, high: u32) -> u64 {
    PacketCounter::default()
        .with_rcvd_pkts(low)
        .with_sent_pkts(high)
        .raw()
}

fn unpair(v: u64) -> (u32, u32) {
    let c = PacketCounter(v);
    (c.rcvd_pkts(), c.sent_pkts())
}

impl NetworkRegs for NodeRegs {
    fn read(&mut self, offset: u32) -> Option<u64> {
        let (kind, i, at) = Self::locate(offset)?;
        Some(match kind {
            Reg::In => {
                let p = &self.inports[i];
                match at {
                    0x00 => p.routing,
                    0x08 => p.received.into(),
                    0x10 => p.sent.into(),
                    0x18 => p.debug,
                    0x200..0x400 => p.mcast[(at - 0x200) as usize / 8],
                    0x400..0x600 => p.grt[(at - 0x400) as usize / 8],
                    0x2000..0x4000 => p.lrt[(at - 0x2000) as usize / 8],
                    _ => return None,
                }
            }
            Reg::Out => {
                let p = &self.outports[i];
                match at {
                    0x00 => p.sent.into(),
                    // Credits read 0 (G1), except credits in use for which the drain loop of HW
                    // §15.3 waits.
                    0x08 => p.class_credits(),
                    0x10 => p.general(),
                    0x18 => p.credits[0],
                    0x20 => p.credits[1],
                    _ => return None,
                }
            }
            Reg::Link => {
                let p = &self.links[i];
                match at {
                    0x00 => pair(p.received, p.sent),
                    0x08 => p.status(),
                    0x10 => RetransmissionCounters::default()
                        .with_errors(p.errors)
                        .with_retransmissions(p.retransmissions)
                        .with_nack_received(p.nacks)
                        .with_retrans_send(p.resent)
                        .with_retransmission_timeouts(p.timeouts)
                        .raw(),
                    0x18 => {
                        let (guid, node, port) = p.remote;
                        Ids(p.send)
                            .with_remote_guid(guid)
                            .with_remote_node_id(node)
                            .with_remote_lp_id(port)
                            .raw()
                    }
                    0x20 => LpIn(p.id_flags).with_buffer_threshold(p.threshold).raw(),
                    0x28..=0x38 => 0,
                    0x40 => p.ack.into(),
                    0x48 => p.credit.into(),
                    0x50..=0x60 => p.misc[(at - 0x50) as usize / 8],
                    _ => return None,
                }
            }
            Reg::Np => {
                let p = &self.nps[i];
                match at {
                    0x00 => pair(p.to_network.0, p.to_network.1),
                    0x08 => pair(p.to_host.0, p.to_host.1),
                    0x18 => General(p.general)
                        .with_empty(!p.waiting)
                        .with_disabled(!p.enabled())
                        .with_full(p.full)
                        .raw(),
                    0x10 => 0,
                    0x20..=0x50 => p.misc[(at - 0x20) as usize / 8],
                    _ => return None,
                }
            }
            Reg::GlobalInterrupt => self.gint[i],
            Reg::Barrier => self.barriers[i].work_set(),
            Reg::BarrierConfig => self.barriers[i].config(),
        })
    }

    fn write(&mut self, offset: u32, value: u64) -> bool {
        let Some((kind, i, at)) = Self::locate(offset) else {
            return false;
        };
        match kind {
            Reg::In => {
                let p = &mut self.inports[i];
                match at {
                    0x00 => p.routing = value & 0xF_FFFF_FFFF,
                    0x08 => p.received = value as u32,
                    0x10 => p.sent = value as u32,
                    0x18 => p.debug = value,
                    0x200..0x400 => p.mcast[(at - 0x200) as usize / 8] = value,
                    0x400..0x600 => p.grt[(at - 0x400) as usize / 8] = value,
                    0x2000..0x4000 => p.lrt[(at - 0x2000) as usize / 8] = value,
                    _ => return false,
                }
            }
            Reg::Out => {
                let p = &mut self.outports[i];
                match at {
                    0x00 => p.sent = value as u32,
                    0x10 => p.general = value,
                    0x18 => p.credits[0] = value,
                    0x20 => {
                        p.credits[1] = value;
                        p.swallowed = [0; FCC];
                    }
                    0x08 | 0x28 => {}
                    _ => return false,
                }
            }
            Reg::Link => return self.write_link(i, at, value),
            Reg::Np => {
                let p = &mut self.nps[i];
                match at {
                    0x00 => p.to_network = unpair(value),
                    0x08 => p.to_host = unpair(value),
                    0x18 => p.general = value,
                    0x10 => {}
                    0x20..=0x50 => p.misc[(at - 0x20) as usize / 8] = value,
                    _ => return false,
                }
            }
            Reg::GlobalInterrupt => {
                self.gint[i] = value & 2;
                if value & 1 != 0 {
                    self.actions.push(PortAction::GlobalInterrupt(i as u8));
                }
            }
            Reg::Barrier => {
                if self.barriers[i].write_work_set(value) {
                    self.actions.push(PortAction::Barrier(i as u8));
                }
            }
            Reg::BarrierConfig => {
                self.barriers[i].write_config(value);
                self.actions.push(PortAction::Barrier(i as u8));
            }
        }
        true
    }

    fn reset(&mut self) {
        let mut actions = std::mem::take(&mut self.actions);
        actions.push(PortAction::Reset);
        *self = Self {
            actions,
            ..Self::new()
        };
    }
}

impl NodeRegs {
    fn write_link(&mut self, i: usize, at: u32, value: u64) -> bool {
        let p = &mut self.links[i];
        match at {
            0x00 => (p.received, p.sent) = unpair(value),
            0x08 => {
                let enable = value & 1 != 0;
                p.flags = value & 0xfbc & !0x40;
                if enable != p.enable {
                    p.enable = enable;
                    self.actions.push(PortAction::LinkEnable { link: i as u8 });
                }
            }
            0x10 => {
                let c = RetransmissionCounters(value);
                p.errors = c.errors();
                p.retransmissions = c.retransmissions();
                p.nacks = c.nack_received();
                p.resent = c.retrans_send();
                p.timeouts = c.retransmission_timeouts();
            }
            0x18 => {
                p.send = value & 3;
                if p.send != 0 {
                    let (guid, ids) = (value & 1 != 0, value & 2 != 0);
                    self.actions.push(PortAction::SendIds {
                        link: i as u8,
                        guid,
                        ids,
                    });
                }
            }
            0x20 => {
                // Writing 1 clears the received flags, because a script of HW §15.4 clears them in
                // this way.
                p.id_flags &= !value;
                p.threshold = LpIn(value).buffer_threshold();
            }
            0x28..=0x38 => {}
            0x40 => {
                let keep = (if value & (1 << 16) != 0 {
                    0
                } else {
                    value as u16 & 0xff
                }) | if value & (1 << 17) != 0 {
                    0
                } else {
                    value as u16 & 0xff00
                };
                p.ack = keep;
            }
            0x48 => {
                p.credit = if value & (1 << 8) != 0 {
                    0
                } else {
                    value as u8
                }
            }
            0x50..=0x60 => p.misc[(at - 0x50) as usize / 8] = value,
            _ => return false,
        }
        true
    }
}

/// Network registers that a NIC and the network share.
#[derive(Clone)]
pub struct SharedRegs(pub Rc<RefCell<NodeRegs>>);

impl NetworkRegs for SharedRegs {
    fn read(&mut self, offset: u32) -> Option<u64> {
        self.0.borrow_mut().read(offset)
    }

    fn write(&mut self, offset: u32, value: u64) -> bool {
        self.0.borrow_mut().write(offset, value)
    }

    fn reset(&mut self) {
        self.0.borrow_mut().reset();
    }
}
