// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! HTAX intervals, which route host addresses to units on the chip (HW §5).

use crate::ids::{BusAddr, CpuAddr};
use crate::regs::htax::{Bound, IntvlControl};
use crate::regs::smfu::ADDRESS_END;

/// Control words that the initialisation sequence writes (HW §3.1).
pub mod control {
    /// Interval 0 leads to the register file.
    pub const RF: u64 = 0xC107;
    /// Interval 1 leads to VELO.
    pub const VELO: u64 = 0x4209;
    /// Interval 2 leads to RMA.
    pub const RMA: u64 = 0x440B;
    /// Interval 5 is the first part of the SMFU window. It leads to register files of remote nodes.
    pub const SMFU_RRA: u64 = 0xE007;
    /// Interval 3 is the rest of the SMFU window, for posted requests.
    pub const SMFU_POSTED: u64 = 0x6001;
    /// Interval 4 is the rest of the SMFU window, for non-posted requests.
    pub const SMFU_NONPOSTED: u64 = 0xA003;
}

/// Virtual channels as the one-hot numbers of field `vcs`.
pub mod vc {
    /// Channel of posted requests.
    pub const POSTED: u8 = 1;
    /// Channel of non-posted requests.
    pub const NONPOSTED: u8 = 2;
    /// Channel of responses.
    pub const RESPONSE: u8 = 4;
}

/// On-chip unit. Its number is the value of field `port`. Field `port_oh` is 1 << number.
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

/// Address interval, described by three register values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Interval {
    /// Number of the first page above the interval.
    pub upper: Bound,
    /// Number of the last page below the interval.
    pub lower: Bound,
    /// Control word with target unit and virtual channels.
    pub control: IntvlControl,
}

impl Interval {
    /// Returns the interval for `size` bytes at `base`. Returns `None` if the interval is not page
    /// aligned, is empty or exceeds 52 bits. It also must not begin at page 0, because the lower
    /// bound would be −1.
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

    /// Returns whether the interval is enabled and contains the address.
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

/// Bus addresses of the windows in BAR0 and BAR2 (HW §1.2). The NIC compares them with the address
/// of each access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Windows {
    /// Bus address of the register file.
    pub rf: BusAddr,
    /// Bus address of the VELO requester window.
    pub velo: BusAddr,
    /// Bus address of the RMA requester window.
    pub rma: BusAddr,
    /// Bus address of the SMFU window (BAR2).
    pub smfu: BusAddr,
    /// Size of the SMFU window in bytes. It must exceed 32 MiB.
    pub smfu_size: u64,
}

/// CPU addresses of the windows in BAR0 and BAR2. Behind a host bridge that translates addresses,
/// they differ from the bus addresses in [`Windows`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CpuWindows {
    /// CPU address of the register file.
    pub rf: CpuAddr,
    /// CPU address of the VELO requester window.
    pub velo: CpuAddr,
    /// CPU address of the RMA requester window.
    pub rma: CpuAddr,
    /// CPU address of the SMFU window (BAR2).
    pub smfu: CpuAddr,
}

/// BAR with its CPU address and its bus address.
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
    /// CPU addresses, which drivers map.
    pub cpu: CpuWindows,
    /// Bus addresses, which drivers write to registers.
    pub bus: Windows,
}

impl Sides {
    /// Returns the standard layout of `bar0` and `bar2`. Returns `None` if a BAR is too small or
    /// its addresses exceed the registers. HTAX intervals have 52 address bits, and the SMFU window
    /// has 48.
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

/// Size in bytes of each of the windows for register file, VELO and RMA.
pub const UNIT_WINDOW: u64 = 0x0200_0000;
/// Byte offset of the VELO window in BAR0.
pub const BAR0_VELO: u64 = 0x0200_0000;
/// Byte offset of the RMA window in BAR0.
pub const BAR0_RMA: u64 = 0x0400_0000;
/// Minimum size of BAR0 in bytes.
pub const BAR0_MIN: u64 = 0x0600_0000;

impl Windows {
    /// Returns the standard layout: three windows of 32 MiB in BAR0, and the SMFU window in BAR2.
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
    /// 3, 4. Returns `None` if an interval is invalid.
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
