// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Which registers of an accelerator's NIC are written, and what leads where on its bus.
//!
//! | Addresses of the accelerator's bus | Lead to |
//! |---|---|
//! | from [`DMA_BASE`] on | DMA memory of the borrower, and behind it a page for interrupts |
//! | 2 GiB … 3.75 GiB | BARs of 32 bits |
//! | from 1 TiB on | BARs of 64 bits |
//! | from [`PEERS`](super::PEERS) on | other accelerators, see [`Peer`](super::Peer) |
//!
//! No address of a host is there, so everything that devices of 32 bits reach is below 4 GiB (TH
//! §4.7.5). What the device asks of any other address leads nowhere: no interval of the on-chip
//! network maps it.

use wire::htax::{control, Interval};
use wire::ids::{BusAddr, NodeId, RegOffset};
use wire::pci::{Bar, Numbers, BARS};
use wire::regs::pcie::PcieToHtocCfg;
use wire::regs::smfu::{self, IntervalControl, StatusControl, INTERVALS, TRAFFIC_CLASS_INIT};
use wire::regs::{htax, np, pcie, snq};
use wire::smfu::{NOWHERE, PAGE};

/// Where the device finds the first byte of DMA memory.
pub const DMA_BASE: u64 = 0x1000_0000;
/// Most DMA memory in bytes, a multiple of 4096.
pub const DMA_MOST: u64 = 0x1000_0000;
/// BARs of 32 bits lie there.
const LOW: (u64, u64) = (0x8000_0000, 0xF000_0000);
/// Those of 64 bits lie there: above the addresses that mean interrupts (HW §6.2), below the end of
/// what registers of the unit hold.
const HIGH: (u64, u64) = (1 << 40, 1 << 46);
/// HTAX intervals of stores and loads: those that a host's SMFU window has (HW §5).
const POSTED: u32 = 3;
const NONPOSTED: u32 = 4;

/// A register of the accelerator's NIC, and what it is to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Which register.
    pub offset: RegOffset,
    /// What is written.
    pub value: u64,
    /// Bits that are read back as they were written.
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

    /// Whether the register has what was written, if it was read as this.
    #[must_use]
    pub const fn is_seen(&self, read: u64) -> bool {
        (read ^ self.value) & self.mask == 0
    }
}

/// Flags of `status_control` come and go.
const SWITCH: u64 = StatusControl(0).with_enable(true).raw();

/// Registers that are to be written in order: the type of what [`close`] and [`Plan::open`] give, so
/// that its name is short.
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
                Step::Over => return None,
            }
        }
    }
}

/// A place in a list of settings.
enum Step {
    Write(Setting),
    /// Nothing here.
    Skip,
    Over,
}

/// What closes all ways from and to the device, in this order: first those of the device into the
/// network, then those of the network to it.
#[must_use]
pub const fn close() -> Settings<'static> {
    Settings {
        plan: None,
        next: 0,
    }
}

/// Numbers of the settings of [`close`]: where those of each kind begin.
const UNMAPPED: u32 = 1;
const SINGLE: u32 = UNMAPPED + htax::INTERVALS;
const ORIGINS: u32 = SINGLE + 6;
const TARGETS: u32 = ORIGINS + INTERVALS;
const CLOSED: u32 = TARGETS + INTERVALS;

fn closing(step: u32) -> Step {
    // Nothing of the device goes to the register file but what answers the backdoor.
    let only = PcieToHtocCfg(0).with_regfwd_srctag0(true).raw();
    Step::Write(match step {
        0 => Setting::new(htax::GENERAL, 0),
        UNMAPPED..SINGLE => Setting::new(htax::intvl_control(step - UNMAPPED), 0),
        SINGLE..ORIGINS => match step - SINGLE {
            0 => Setting::bits(smfu::STATUS_CONTROL, 0, SWITCH),
            1 => Setting::new(smfu::ADDR_MASK, 0),
            2 => Setting::new(smfu::N_NODE_OFFSET, 0),
            3 => Setting::new(smfu::T_START_ADDR_DEFAULT, NOWHERE.0),
            4 => Setting::new(pcie::PCIE_TO_HTOC_INTERRUPT_1, 0),
            _ => Setting::new(pcie::PCIE_TO_HTOC_CFG, only),
        },
        ORIGINS..TARGETS => Setting::new(smfu::interval_control(step - ORIGINS), 0),
        TARGETS..CLOSED => Setting::new(smfu::vpid_t_start_addr(step - TARGETS), NOWHERE.0),
        _ => return Step::Over,
    })
}

/// Registers of a NIC of which one is not 0 if the driver of a host uses it: that NIC is no
/// accelerator's.
#[must_use]
pub const fn host_signs() -> [RegOffset; 3] {
    [snq::EXECUTE, snq::QUEUE_BALT, snq::TRIGGER_ENABLE]
}

/// Why there is no plan.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PlanError {
    /// No numbers of intervals are left.
    NoInterval,
    /// There is no room for this BAR.
    NoRoom(usize),
    /// The DMA memory is none: not of whole pages, or larger than [`DMA_MOST`].
    Memory,
}

/// What is opened for a borrower.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    numbers: Numbers,
    bars: [Option<Bar>; BARS],
    at: [u64; BARS],
    dma: u64,
    borrower: NodeId,
}

/// The highest number of a set, which is taken out: lenders with a host mostly take low ones.
pub(super) fn take(set: &mut u64) -> Option<u8> {
    let number = 63u32.checked_sub(set.leading_zeros())?;
    *set &= !(1 << number);
    u8::try_from(number).ok()
}

impl Plan {
    /// For `borrower`, which has these numbers free for windows and for targets. `used`: numbers that
    /// somebody may have windows for, see [`wire::accel::NUMBERS`]. `dma`: bytes of DMA memory.
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
        if dma == 0 || dma % PAGE != 0 || dma > DMA_MOST {
            return Err(PlanError::Memory);
        }
        // 0 leads to registers, 63 is nobody's.
        let usable = !(1 | (1 << 63));
        let (mut windows, mut targets) = (windows & usable & !used, targets & usable);
        let mut numbers = Numbers::default();
        for (number, _) in numbers
            .bars
            .iter_mut()
            .zip(bars)
            .filter(|(_, b)| b.is_some())
        {
            *number = take(&mut windows).ok_or(PlanError::NoInterval)?;
        }
        numbers.dma = take(&mut targets).ok_or(PlanError::NoInterval)?;
        numbers.interrupts = take(&mut targets).ok_or(PlanError::NoInterval)?;
        let mut plan = Self {
            numbers,
            bars: *bars,
            at: [0; BARS],
            dma,
            borrower,
        };
        plan.place(false, LOW)?;
        plan.place(true, HIGH)?;
        Ok(plan)
    }

    /// Gives BARs their addresses, large ones first, so that there are no gaps.
    fn place(&mut self, wide: bool, (mut next, end): (u64, u64)) -> Result<(), PlanError> {
        for log2 in (4..=Bar::LOG2_MOST).rev() {
            for (i, (bar, at)) in self.bars.iter().zip(&mut self.at).enumerate() {
                let Some(bar) = bar.filter(|b| b.wide == wide && b.log2 == log2) else {
                    continue;
                };
                // Each has pages of its own, as windows have.
                let bytes = bar.window();
                let start = next.checked_next_multiple_of(bytes);
                let behind = start.and_then(|s| s.checked_add(bytes).filter(|n| *n <= end));
                *at = start.unwrap_or(0);
                next = behind.ok_or(PlanError::NoRoom(i))?;
            }
        }
        Ok(())
    }

    /// Numbers of intervals.
    #[must_use]
    pub const fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    /// Bus address of a BAR there.
    #[must_use]
    pub fn address(&self, bar: usize) -> Option<u64> {
        let there = self.bars.get(bar)?.is_some();
        self.at.get(bar).copied().filter(|_| there)
    }

    /// Where the device stores to cause interrupts: a page.
    #[must_use]
    pub const fn interrupts(&self) -> u64 {
        DMA_BASE + self.dma
    }

    /// What the registers of BARs are to have: number of the register, value.
    pub fn bars(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let there = self.bars.iter().zip(self.at).enumerate();
        there.flat_map(|(i, (bar, at))| {
            let low = bar.map(|_| (i, at as u32));
            let high = bar.filter(|b| b.wide).map(|_| (i + 1, (at >> 32) as u32));
            low.into_iter().chain(high)
        })
    }

    /// What opens the ways, in this order, after [`close`]: those of the device into the network last.
    /// The borrower's targets have to be open.
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
            9..12 => way(
                step - 9,
                self.numbers.dma,
                DMA_BASE,
                self.dma,
                self.borrower,
            ),
            12..15 => way(
                step - 12,
                self.numbers.interrupts,
                self.interrupts(),
                PAGE,
                self.borrower,
            ),
            15..18 => self.mapped(step - 15, POSTED, control::SMFU_POSTED),
            18..21 => self.mapped(step - 18, NONPOSTED, control::SMFU_NONPOSTED),
            21 => Setting::bits(smfu::STATUS_CONTROL, SWITCH, SWITCH),
            22 => Setting::new(htax::GENERAL, htax::GENERAL_INIT),
            _ => return Step::Over,
        })
    }

    const fn mapped(&self, which: u32, i: u32, control: u64) -> Setting {
        mapped(which, i, DMA_BASE, self.dma + PAGE, control)
    }

    /// Two of them that show whether the ways are still open as they were made.
    #[must_use]
    pub const fn signs(&self) -> [Setting; 2] {
        let to = IntervalControl::to_node(self.borrower).raw();
        [
            Setting::new(htax::GENERAL, htax::GENERAL_INIT),
            Setting::new(smfu::interval_control(self.numbers.dma as u32), to),
        ]
    }
}

/// One of the three registers of an interval towards a node.
pub(super) const fn way(which: u32, number: u8, start: u64, bytes: u64, to: NodeId) -> Setting {
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

/// One of the three registers of an interval of the on-chip network towards the unit.
pub(super) const fn mapped(which: u32, i: u32, start: u64, bytes: u64, control: u64) -> Setting {
    let interval = Interval::covering(BusAddr(start), bytes, control);
    match (which, interval) {
        (0, Some(interval)) => Setting::new(htax::intvl_upper(i), interval.upper.raw()),
        (1, Some(interval)) => Setting::new(htax::intvl_lower(i), interval.lower.raw()),
        (_, Some(interval)) => Setting::new(htax::intvl_control(i), interval.control.raw()),
        // They are of whole pages, and low.
        (_, None) => Setting::new(htax::intvl_control(i), 0),
    }
}
