// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! HTAX intervals, which route host addresses to units on the chip (HW §5).

use crate::ids::{BusAddr, CpuAddr};
use crate::regs::htax::{Bound, IntvlControl};
use crate::regs::smfu::ADDRESS_END;

/// Control words of the initialisation sequence (HW §3.1).
pub mod control {
    /// Interval 0: register file.
    pub const RF: u64 = 0xC107;
    /// Interval 1: VELO.
    pub const VELO: u64 = 0x4209;
    /// Interval 2: RMA.
    pub const RMA: u64 = 0x440B;
    /// Interval 5: first part of the SMFU window, remote register file.
    pub const SMFU_RRA: u64 = 0xE007;
    /// Interval 3: rest of the SMFU window, posted.
    pub const SMFU_POSTED: u64 = 0x6001;
    /// Interval 4: rest of the SMFU window, non-posted.
    pub const SMFU_NONPOSTED: u64 = 0xA003;
}

/// Virtual channels, one-hot as in `vcs`.
pub mod vc {
    /// Posted.
    pub const POSTED: u8 = 1;
    /// Non-posted.
    pub const NONPOSTED: u8 = 2;
    /// Response.
    pub const RESPONSE: u8 = 4;
}

/// On-chip units, numbers as in `port`; `port_oh` is 1 << number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Port {
    /// 0: host, posted.
    HostPosted,
    /// 1: host, non-posted.
    HostNonposted,
    /// 2: host, response.
    HostResponse,
    /// 3: register file.
    Rf,
    /// 4: VELO.
    Velo,
    /// 5: RMA requester.
    Rma,
    /// 8: SMFU.
    Smfu,
}

impl Port {
    /// Returns the port number.
    pub const fn number(self) -> u8 {
        match self {
            Port::HostPosted => 0,
            Port::HostNonposted => 1,
            Port::HostResponse => 2,
            Port::Rf => 3,
            Port::Velo => 4,
            Port::Rma => 5,
            Port::Smfu => 8,
        }
    }
}

/// One interval: three register values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Interval {
    /// First page number above the interval.
    pub upper: Bound,
    /// Last page number below the interval.
    pub lower: Bound,
    /// Control word with target unit and virtual channels.
    pub control: IntvlControl,
}

impl Interval {
    /// Returns the interval for `size` bytes at `base`. Returns `None` if it is not page aligned,
    /// empty, at page 0 (the lower bound would be −1), or above 52 bits.
    pub const fn covering(base: BusAddr, size: u64, control: u64) -> Option<Self> {
        let Some(end) = base.0.checked_add(size) else {
            return None;
        };
        if base.0 == 0
            || size == 0
            || (base.0 | size) % BusAddr::PAGE_SIZE != 0
            || end > BusAddr::END
        {
            return None;
        }
        Some(Self {
            upper: Bound(end >> 12),
            lower: Bound((base.0 >> 12) - 1),
            control: IntvlControl(control),
        })
    }

    /// Returns whether the interval is enabled and lower < page < upper.
    pub const fn contains(&self, addr: BusAddr) -> bool {
        let page = addr.0 >> 12;
        self.control.enable() && self.lower.bound() < page && page < self.upper.bound()
    }

    /// Returns the byte offset of `addr` from the first byte of the interval; `None` if `addr` is
    /// outside.
    pub const fn offset(&self, addr: BusAddr) -> Option<u64> {
        if self.contains(addr) {
            Some(addr.0 - ((self.lower.bound() + 1) << 12))
        } else {
            None
        }
    }
}

/// Bus addresses of the parts of BAR0 and BAR2 (HW §1.2), which the NIC compares with the address
/// of each access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Windows {
    /// Register file.
    pub rf: BusAddr,
    /// VELO requester.
    pub velo: BusAddr,
    /// RMA requester.
    pub rma: BusAddr,
    /// SMFU window (BAR2).
    pub smfu: BusAddr,
    /// Size of the SMFU window in bytes, more than 32 MiB.
    pub smfu_size: u64,
}

/// CPU addresses of the same parts. They differ from those in [`Windows`] behind a host bridge that
/// translates addresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CpuWindows {
    /// Register file.
    pub rf: CpuAddr,
    /// VELO requester.
    pub velo: CpuAddr,
    /// RMA requester.
    pub rma: CpuAddr,
    /// SMFU window (BAR2).
    pub smfu: CpuAddr,
}

/// A BAR with its CPU address and its bus address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bar {
    /// CPU address of the first byte.
    pub cpu: CpuAddr,
    /// Bus address of the first byte.
    pub bus: BusAddr,
    /// Size in bytes.
    pub size: u64,
}

/// CPU addresses and bus addresses of a NIC's windows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sides {
    /// CPU addresses, for mapping.
    pub cpu: CpuWindows,
    /// Bus addresses, for registers.
    pub bus: Windows,
}

impl Sides {
    /// Returns the standard layout of `bar0` and `bar2`. Returns `None` if a BAR is too small or if
    /// its addresses exceed the registers: 52 bits for HTAX intervals, 48 bits for the SMFU window.
    pub const fn standard(bar0: Bar, bar2: Bar) -> Option<Self> {
        let bus = Windows::standard(bar0.bus, bar2.bus, bar2.size);
        let end = bar2.bus.0.saturating_add(bar2.size);
        if bar0.size < BAR0_MIN || bus.intervals().is_none() || end >= ADDRESS_END {
            return None;
        }
        if bar0.cpu.0.checked_add(bar0.size).is_none() {
            return None;
        }
        let cpu = CpuWindows {
            rf: bar0.cpu,
            velo: CpuAddr(bar0.cpu.0 + BAR0_VELO),
            rma: CpuAddr(bar0.cpu.0 + BAR0_RMA),
            smfu: bar2.cpu,
        };
        Some(Self { cpu, bus })
    }
}

/// Size in bytes of each of the three windows: register file, VELO and RMA.
pub const UNIT_WINDOW: u64 = 0x0200_0000;
/// Offset of the VELO window in BAR0.
pub const BAR0_VELO: u64 = 0x0200_0000;
/// Offset of the RMA window in BAR0.
pub const BAR0_RMA: u64 = 0x0400_0000;
/// Minimum size of BAR0 in bytes.
pub const BAR0_MIN: u64 = 0x0600_0000;

impl Windows {
    /// Returns the standard layout: three windows of 32 MiB in BAR0, and BAR2 as the SMFU window.
    pub const fn standard(bar0: BusAddr, bar2: BusAddr, bar2_size: u64) -> Self {
        Self {
            rf: bar0,
            velo: BusAddr(bar0.0.saturating_add(BAR0_VELO)),
            rma: BusAddr(bar0.0.saturating_add(BAR0_RMA)),
            smfu: bar2,
            smfu_size: bar2_size,
        }
    }

    /// Returns pairs of index and interval in the order of the initialisation sequence: 0, 1, 2, 5,
    /// 3, 4. Returns `None` if a window is misplaced.
    pub const fn intervals(&self) -> Option<[(u32, Interval); 6]> {
        let rra = crate::regs::smfu::RRA_WINDOW;
        let Some(rest_size) = self.smfu_size.checked_sub(rra) else {
            return None;
        };
        let rest = BusAddr(self.smfu.0.saturating_add(rra));
        let (Some(rf), Some(velo), Some(rma), Some(remote_rf), Some(posted), Some(nonposted)) = (
            Interval::covering(self.rf, UNIT_WINDOW, control::RF),
            Interval::covering(self.velo, UNIT_WINDOW, control::VELO),
            Interval::covering(self.rma, UNIT_WINDOW, control::RMA),
            Interval::covering(self.smfu, rra, control::SMFU_RRA),
            Interval::covering(rest, rest_size, control::SMFU_POSTED),
            Interval::covering(rest, rest_size, control::SMFU_NONPOSTED),
        ) else {
            return None;
        };
        Some([
            (0, rf),
            (1, velo),
            (2, rma),
            (5, remote_rf),
            (3, posted),
            (4, nonposted),
        ])
    }
}
