//! HTAX bridge, which routes host accesses to the units (HW §5).

use super::{Nic, Te};
use wire::ids::RegOffset;
use wire::regs::htax::{self as regs, Bound, DiscardedCounter, General, IntvlControl};
use wire::regs::PacketCounter;

/// Address bits that every unit decodes (HW §1.2).
const UNIT_MASK: u64 = 0x01FF_FFFF;
const INTERVALS: usize = regs::INTERVALS as usize;

const VC_POSTED: u8 = 1;
const VC_NONPOSTED: u8 = 2;

const PORT_RF: u16 = 0x008;
const PORT_VELO: u16 = 0x010;
const PORT_RMA: u16 = 0x020;
const PORT_SMFU: u16 = 0x100;
/// Second-level target that selects the register file of a remote node.
const TARGET_RF: u8 = 3;

/// Target of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// Register file, at this byte offset.
    Rf(u32),
    /// VELO requester pages, at this byte offset.
    Velo(u32),
    /// RMA requester pages, at this byte offset.
    Rma(u32),
    /// SMFU window, at this host address; `remote_rf` is true for a remote register file.
    Smfu { addr: u64, remote_rf: bool },
    /// Address of the default port that no unit has. It reads as 0.
    Unmapped,
    /// Port that has no unit for host accesses.
    Discard,
}

impl Route {
    /// Returns the target that is `offset` bytes behind this target.
    pub(super) fn at(self, offset: u64) -> Self {
        let n = offset as u32;
        match self {
            Self::Rf(at) => Self::Rf(at.wrapping_add(n)),
            Self::Velo(at) => Self::Velo(at.wrapping_add(n)),
            Self::Rma(at) => Self::Rma(at.wrapping_add(n)),
            Self::Smfu { addr, remote_rf } => Self::Smfu {
                addr: addr.wrapping_add(offset),
                remote_rf,
            },
            Self::Unmapped | Self::Discard => self,
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Interval {
    upper: u64,
    lower: u64,
    control: u64,
}

#[derive(Default)]
pub(super) struct Htax {
    intervals: [Interval; INTERVALS],
    general: u64,
    posted: u64,
    nonposted: u64,
    response: u64,
    discarded: u64,
}

fn bump(word: &mut u64, rcvd: u32, sent: u32) {
    let c = PacketCounter(*word);
    *word = c
        .with_rcvd_pkts(c.rcvd_pkts().wrapping_add(rcvd))
        .with_sent_pkts(c.sent_pkts().wrapping_add(sent))
        .raw();
}

impl Htax {
    #[inline]
    fn count(&mut self, write: bool) {
        if write {
            bump(&mut self.posted, 1, 1);
        } else {
            bump(&mut self.nonposted, 1, 1);
            bump(&mut self.response, 1, 1);
        }
    }

    /// Returns the port and the one-hot unit of the interval that contains an address.
    #[inline]
    fn find(&self, addr: u64, write: bool) -> Option<(u16, u8)> {
        let page = addr >> 12;
        let vc = if write { VC_POSTED } else { VC_NONPOSTED };
        self.intervals.iter().find_map(|i| {
            let control = IntvlControl(i.control);
            let hit =
                control.enable() && control.vcs() & vc != 0 && i.lower < page && page < i.upper;
            hit.then(|| (control.port_oh(), control.port()))
        })
    }

    /// Routes an access by the device behind a root port. Returns `None` if no interval contains
    /// the address.
    pub(super) fn route_addr(&mut self, addr: u64, write: bool) -> Option<Route> {
        self.count(write);
        if !General(self.general).enable() {
            return None;
        }
        let (port_oh, port) = self.find(addr, write)?;
        match Self::unit(port_oh, port, addr) {
            Route::Discard => None,
            route => Some(route),
        }
    }

    /// Routes an access to host address `bar_base + offset`.
    #[inline]
    pub(super) fn route(&mut self, bar: u8, bar_base: u64, offset: u64, write: bool) -> Route {
        let addr = bar_base.wrapping_add(offset);
        self.count(write);
        let general = General(self.general);
        if general.enable() {
            if let Some((port_oh, port)) = self.find(addr, write) {
                return Self::unit(port_oh, port, addr);
            }
            if general.default_port_oh() != PORT_RF {
                return Self::unit(general.default_port_oh(), general.default_port(), addr);
            }
        }
        // The default port has the register file in the first bytes of BAR 0. The remaining
        // addresses are unmapped (G3).
        match u32::try_from(offset) {
            Ok(offset) if bar == 0 && offset < super::RF_SIZE => Route::Rf(offset),
            _ => Route::Unmapped,
        }
    }

    fn unit(port_oh: u16, port: u8, addr: u64) -> Route {
        let offset = (addr & UNIT_MASK) as u32;
        match port_oh {
            PORT_RF => Route::Rf(offset),
            PORT_VELO => Route::Velo(offset),
            PORT_RMA => Route::Rma(offset),
            PORT_SMFU => Route::Smfu {
                addr,
                remote_rf: port == TARGET_RF,
            },
            _ => Route::Discard,
        }
    }

    pub(super) fn read(&self, offset: RegOffset) -> Option<u64> {
        Some(match offset {
            regs::GENERAL => self.general,
            regs::POSTED_COUNTER => self.posted,
            regs::NONPOSTED_COUNTER => self.nonposted,
            regs::RESPONSE_COUNTER => self.response,
            regs::DISCARDED_COUNTER => self.discarded,
            _ => {
                let (i, word) = Self::interval(offset)?;
                match word {
                    0 => self.intervals[i].upper,
                    1 => self.intervals[i].lower,
                    _ => self.intervals[i].control,
                }
            }
        })
    }

    pub(super) fn write(&mut self, offset: RegOffset, value: u64) -> bool {
        match offset {
            regs::GENERAL => self.general = value,
            regs::POSTED_COUNTER => self.posted = value,
            regs::NONPOSTED_COUNTER => self.nonposted = value,
            regs::RESPONSE_COUNTER => self.response = value,
            regs::DISCARDED_COUNTER => self.discarded = value,
            _ => match Self::interval(offset) {
                Some((i, 0)) => self.intervals[i].upper = Bound(value).bound(),
                Some((i, 1)) => self.intervals[i].lower = Bound(value).bound(),
                Some((i, _)) => self.intervals[i].control = value,
                None => return false,
            },
        }
        true
    }

    fn interval(offset: RegOffset) -> Option<(usize, u32)> {
        let rest = offset.0.checked_sub(regs::intvl_upper(0).0)? / 8;
        let i = (rest / 3) as usize;
        (i < INTERVALS).then_some((i, rest % 3))
    }
}

impl Nic {
    /// Counts an access that no unit accepts, and raises the event for it.
    pub(super) fn htax_discard(&mut self, write: bool) {
        let c = DiscardedCounter(self.htax.discarded);
        let c = if write {
            c.with_posted(c.posted().wrapping_add(1))
        } else {
            c.with_nonposted(c.nonposted().wrapping_add(1))
        };
        self.htax.discarded = c.raw();
        self.raise(Te::HtaxBridgeDiscarded);
    }
}
