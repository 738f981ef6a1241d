// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Addresses on an accelerator's bus, and the registers of its NIC that a borrower writes.
//!
//! | Addresses of the accelerator's bus | Lead to |
//! |---|---|
//! | from [`DMA_BASE`] on | DMA memory of the borrower, followed by a page for interrupts |
//! | 2 GiB … 3.75 GiB | BARs of 32 bits |
//! | from 1 TiB on | BARs of 64 bits |
//! | from [`PEERS`](super::PEERS) on | other accelerators, see [`Peer`](super::Peer) |
//!
//! All ranges for 32-bit devices are below 4 GiB, where the accelerator's bus has no host memory
//! (TH §4.7.5). Accesses of the device to other addresses have no effect, because no interval of
//! the on-chip network maps these addresses.

use wire::htax::{control, Interval};
use wire::ids::{BusAddr, NodeId, RegOffset};
use wire::pci::{Bar, Numbers, BARS};
use wire::regs::pcie::PcieToHtocCfg;
use wire::regs::smfu::{self, IntervalControl, StatusControl, INTERVALS, TRAFFIC_CLASS_INIT};
use wire::regs::{htax, np, pcie, snq};
use wire::smfu::{PAGE, UNMAPPED_BASE};

/// Bus address of the first byte of DMA memory.
pub const DMA_BASE: u64 = 0x1000_0000;
/// Maximum DMA memory in bytes, a multiple of 4096.
pub const DMA_MAX: u64 = 0x1000_0000;
/// Address range of 32-bit BARs.
const LOW: (u64, u64) = (0x8000_0000, 0xF000_0000);
/// Address range of 64-bit BARs, above the addresses for interrupts (HW §6.2), and below the
/// maximum address in the SMFU's registers.
const HIGH: (u64, u64) = (1 << 40, 1 << 46);
/// HTAX intervals of the device's stores and loads. A NIC with a host uses these intervals for the
/// SMFU window (HW §5).
const POSTED: u32 = 3;
const NONPOSTED: u32 = 4;

/// Value for a register of the accelerator's NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Offset of the register.
    pub offset: RegOffset,
    /// Value to be written.
    pub value: u64,
    /// Mask of bits that return the written value when they are read.
    pub mask: u64,
}

impl Setting {
    pub(super) const fn new(offset: RegOffset, value: u64) -> Self {
        let mask = u64::MAX;
        Self {
            offset,
            value,
            mask,
        }
    }

    const fn bits(offset: RegOffset, value: u64, mask: u64) -> Self {
        Self {
            offset,
            value,
            mask,
        }
    }

    /// Returns true if the value read shows that the register has the written value.
    #[must_use]
    pub const fn is_seen(&self, read: u64) -> bool {
        (read ^ self.value) & self.mask == 0
    }
}

/// Enable bit of `status_control`. The other bits of this register are flags, which may change at
/// any time.
const SWITCH: u64 = StatusControl(0).with_enable(true).raw();

/// Registers to be written in order, returned by [`close`] and [`Plan::open`].
#[derive(Clone, Debug)]
pub struct Settings<'a> {
    plan: Option<&'a Plan>,
    next: u32,
}

impl Iterator for Settings<'_> {
    type Item = Setting;

    fn next(&mut self) -> Option<Setting> {
        loop {
            let step = match self.plan {
                None => closing(self.next),
                Some(plan) => plan.opening(self.next),
            };
            self.next += 1;
            match step {
                Step::Write(setting) => return Some(setting),
                Step::Skip => {}
                Step::End => return None,
            }
        }
    }
}

/// Element of a list of settings.
enum Step {
    Write(Setting),
    /// No register is written in this step.
    Skip,
    End,
}

/// Returns the settings that close all paths from and to the device, in order. Paths from the
/// device into the network are closed first, and paths from the network to the device afterwards.
#[must_use]
pub const fn close() -> Settings<'static> {
    Settings {
        plan: None,
        next: 0,
    }
}

/// Numbers of the steps of [`close`] at which each kind of register begins.
const UNMAPPED: u32 = 1;
const SINGLE: u32 = UNMAPPED + htax::INTERVALS;
const ORIGINS: u32 = SINGLE + 6;
const TARGETS: u32 = ORIGINS + INTERVALS;
const CLOSED: u32 = TARGETS + INTERVALS;

fn closing(step: u32) -> Step {
    // Only answers of the backdoor can pass from the device to the register file.
    let only = PcieToHtocCfg(0).with_regfwd_srctag0(true).raw();
    Step::Write(match step {
        0 => Setting::new(htax::GENERAL, 0),
        UNMAPPED..SINGLE => Setting::new(htax::intvl_control(step - UNMAPPED), 0),
        SINGLE..ORIGINS => match step - SINGLE {
            0 => Setting::bits(smfu::STATUS_CONTROL, 0, SWITCH),
            1 => Setting::new(smfu::ADDR_MASK, 0),
            2 => Setting::new(smfu::N_NODE_OFFSET, 0),
            3 => Setting::new(smfu::T_START_ADDR_DEFAULT, UNMAPPED_BASE.0),
            4 => Setting::new(pcie::PCIE_TO_HTOC_INTERRUPT_1, 0),
            _ => Setting::new(pcie::PCIE_TO_HTOC_CFG, only),
        },
        ORIGINS..TARGETS => Setting::new(smfu::interval_control(step - ORIGINS), 0),
        TARGETS..CLOSED => Setting::new(smfu::vpid_t_start_addr(step - TARGETS), UNMAPPED_BASE.0),
        _ => return Step::End,
    })
}

/// Returns registers that are all 0 unless a host's driver uses the NIC. A NIC in use by a host is
/// not an accelerator's NIC.
#[must_use]
pub const fn host_check() -> [RegOffset; 3] {
    [snq::EXECUTE, snq::QUEUE_BALT, snq::TRIGGER_ENABLE]
}

/// Reason for which no plan can be made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PlanError {
    /// No interval numbers are free.
    NoInterval,
    /// The address range has no free space for this BAR.
    NoRoom(usize),
    /// The size of DMA memory is 0, not a multiple of the page size, or larger than [`DMA_MAX`].
    Memory,
}

/// Interval numbers and addresses of one lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    numbers: Numbers,
    bars: [Option<Bar>; BARS],
    at: [u64; BARS],
    dma: u64,
    borrower: NodeId,
}

/// Removes the highest number from a set and returns it. Lenders with a host mostly use low
/// numbers.
pub(super) fn pop_highest(set: &mut u64) -> Option<u8> {
    let number = 63u32.checked_sub(set.leading_zeros())?;
    *set &= !(1 << number);
    u8::try_from(number).ok()
}

impl Plan {
    /// Plans a lease of `borrower`. `windows` and `targets` are the interval numbers that are free
    /// at the borrower for windows and for targets. `used` is the set of numbers for which any node
    /// may have windows (see [`wire::accel::INTERVALS`]). `dma` is the size of DMA memory in bytes.
    ///
    /// # Errors
    ///
    /// See [`PlanError`].
    pub fn new(
        bars: &[Option<Bar>; BARS],
        borrower: NodeId,
        (windows, targets): (u64, u64),
        used: u64,
        dma: u64,
    ) -> Result<Self, PlanError> {
        if dma == 0 || dma % PAGE != 0 || dma > DMA_MAX {
            return Err(PlanError::Memory);
        }
        // Interval 0 leads to the register file, and interval 63 is never used.
        let usable = !(1 | (1 << 63));
        let (mut windows, mut targets) = (windows & usable & !used, targets & usable);
        let mut numbers = Numbers::default();
        for (number, _) in numbers
            .bars
            .iter_mut()
            .zip(bars)
            .filter(|(_, b)| b.is_some())
        {
            *number = pop_highest(&mut windows).ok_or(PlanError::NoInterval)?;
        }
        numbers.dma = pop_highest(&mut targets).ok_or(PlanError::NoInterval)?;
        numbers.interrupts = pop_highest(&mut targets).ok_or(PlanError::NoInterval)?;
        let mut plan = Self {
            numbers,
            bars: *bars,
            at: [0; BARS],
            dma,
            borrower,
        };
        plan.assign_addresses(false, LOW)?;
        plan.assign_addresses(true, HIGH)?;
        Ok(plan)
    }

    /// Assigns addresses to BARs in descending order of size, so that there are no gaps.
    fn assign_addresses(
        &mut self,
        is_64bit: bool,
        (mut next, end): (u64, u64),
    ) -> Result<(), PlanError> {
        for log2 in (4..=Bar::LOG2_MAX).rev() {
            for (i, (bar, at)) in self.bars.iter().zip(&mut self.at).enumerate() {
                let Some(bar) = bar.filter(|b| b.is_64bit == is_64bit && b.log2 == log2) else {
                    continue;
                };
                // Each BAR starts at a page boundary, because windows consist of whole pages.
                let bytes = bar.window();
                let start = next.checked_next_multiple_of(bytes);
                let behind = start.and_then(|s| s.checked_add(bytes).filter(|n| *n <= end));
                *at = start.unwrap_or(0);
                next = behind.ok_or(PlanError::NoRoom(i))?;
            }
        }
        Ok(())
    }

    /// Returns the interval numbers.
    #[must_use]
    pub const fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    /// Returns the bus address of a BAR at the accelerator.
    #[must_use]
    pub fn address(&self, bar: usize) -> Option<u64> {
        let there = self.bars.get(bar)?.is_some();
        self.at.get(bar).copied().filter(|_| there)
    }

    /// Returns the bus address of the page to which the device stores interrupts.
    #[must_use]
    pub const fn interrupts(&self) -> u64 {
        DMA_BASE + self.dma
    }

    /// Returns the values of the BAR registers, as pairs of register number and value.
    pub fn bars(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let there = self.bars.iter().zip(self.at).enumerate();
        there.flat_map(|(i, (bar, at))| {
            let low = bar.map(|_| (i, at as u32));
            let high = bar
                .filter(|b| b.is_64bit)
                .map(|_| (i + 1, (at >> 32) as u32));
            low.into_iter().chain(high)
        })
    }

    /// Returns the settings that open all paths after [`close`], in order. Paths from the device
    /// into the network are opened last. The borrower's targets must be open before.
    #[must_use]
    pub const fn open(&self) -> Settings<'_> {
        Settings {
            plan: Some(self),
            next: 0,
        }
    }

    fn opening(&self, step: u32) -> Step {
        Step::Write(match step {
            0 => Setting::bits(np::general(np::SMFU), np::GENERAL_INIT, 0),
            1 => Setting::new(smfu::TRAFFIC_CLASS, TRAFFIC_CLASS_INIT),
            2 => Setting::new(smfu::O_START_ADDR, DMA_BASE),
            3..9 => {
                let i = step as usize - 3;
                let number = self.numbers.bars.get(i).copied().unwrap_or(0);
                match self.address(i) {
                    Some(at) => Setting::new(smfu::vpid_t_start_addr(number.into()), at),
                    None => return Step::Skip,
                }
            }
            9..12 => smfu_setting(
                step - 9,
                self.numbers.dma,
                DMA_BASE,
                self.dma,
                self.borrower,
            ),
            12..15 => smfu_setting(
                step - 12,
                self.numbers.interrupts,
                self.interrupts(),
                PAGE,
                self.borrower,
            ),
            15..18 => self.htax_setting(step - 15, POSTED, control::SMFU_POSTED),
            18..21 => self.htax_setting(step - 18, NONPOSTED, control::SMFU_NONPOSTED),
            21 => Setting::bits(smfu::STATUS_CONTROL, SWITCH, SWITCH),
            22 => Setting::new(htax::GENERAL, htax::GENERAL_INIT),
            _ => return Step::End,
        })
    }

    const fn htax_setting(&self, which: u32, i: u32, control: u64) -> Setting {
        htax_setting(which, i, DMA_BASE, self.dma + PAGE, control)
    }

    /// Returns two settings that are in effect as long as the paths are open.
    #[must_use]
    pub const fn open_check(&self) -> [Setting; 2] {
        let to = IntervalControl::to_node(self.borrower).raw();
        [
            Setting::new(htax::GENERAL, htax::GENERAL_INIT),
            Setting::new(smfu::interval_control(self.numbers.dma as u32), to),
        ]
    }
}

/// Returns setting `which` (0…2) of the SMFU interval that leads to a node.
pub(super) const fn smfu_setting(
    which: u32,
    number: u8,
    start: u64,
    bytes: u64,
    to: NodeId,
) -> Setting {
    let number = number as u32;
    match which {
        0 => Setting::new(smfu::interval_startaddr(number), start),
        1 => Setting::new(smfu::interval_endaddr(number), start + bytes),
        _ => Setting::new(
            smfu::interval_control(number),
            IntervalControl::to_node(to).raw(),
        ),
    }
}

/// Returns setting `which` (0…2) of the HTAX interval that leads to the SMFU.
pub(super) const fn htax_setting(
    which: u32,
    i: u32,
    start: u64,
    bytes: u64,
    control: u64,
) -> Setting {
    let interval = Interval::covering(BusAddr(start), bytes, control);
    match (which, interval) {
        (0, Some(interval)) => Setting::new(htax::intvl_upper(i), interval.upper.raw()),
        (1, Some(interval)) => Setting::new(htax::intvl_lower(i), interval.lower.raw()),
        (_, Some(interval)) => Setting::new(htax::intvl_control(i), interval.control.raw()),
        // Unreachable, because all ranges consist of whole pages below the register's maximum
        // address.
        (_, None) => Setting::new(htax::intvl_control(i), 0),
    }
}
