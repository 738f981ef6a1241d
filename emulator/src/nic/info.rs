//! Register file `info_rf`: identity, scratchpads, time stamp counter and timer (HW §4, G25, G27).

use super::{Nic, NicConfig, Te, WriteCombining};
use crate::env::Env;
use wire::ids::RegOffset;
use wire::regs::info::{self as regs, Driver, Node, TimerInterrupt};

const TSC_MASK: u64 = (1 << 48) - 1;
const NS_PER_S: u128 = 1_000_000_000;

#[derive(Default)]
pub(super) struct Info {
    driver: u64,
    node: u64,
    scratchpad: [u64; 8],
    tsc_base: u64,
    tsc_base_ns: u64,
    tsc_hz: u64,
    timer: u64,
    timer_next: Option<u64>,
    timer_min_ns: u64,
}

impl Info {
    pub(super) fn new(cfg: &NicConfig) -> Self {
        let node = Node::default()
            .with_guid(cfg.guid())
            .with_id(cfg.node_id)
            .with_vpids(256);
        let driver = Driver::default().with_ver(cfg.driver_version);
        let mut scratchpad = [0; 8];
        scratchpad[0] = cfg.chip_revision;
        Self {
            driver: match cfg.wc {
                WriteCombining::Stores => driver.raw(),
                WriteCombining::Lines => driver.with_marks_wanted().raw(),
            },
            node: node.raw(),
            scratchpad,
            tsc_hz: cfg.tsc_hz,
            timer_min_ns: cfg.timer_min_ns.max(1),
            ..Self::default()
        }
    }

    /// Returns the state after a reset that does not affect the network.
    pub(super) fn kept(mut self) -> Self {
        self.timer = 0;
        self.timer_next = None;
        self
    }

    pub(super) fn node_id(&self) -> u16 {
        Node(self.node).id()
    }

    pub(super) fn network_state(&self) -> u64 {
        self.scratchpad[3]
    }

    pub(super) fn next_fire(&self) -> Option<u64> {
        self.timer_next
    }

    fn tsc(&self, now_ns: u64) -> u64 {
        let ns = u128::from(now_ns.saturating_sub(self.tsc_base_ns));
        let ticks = ns * u128::from(self.tsc_hz) / NS_PER_S;
        self.tsc_base.wrapping_add(ticks as u64) & TSC_MASK
    }

    /// Returns the timer period in ns, or `None` while the timer is off.
    fn period_ns(&self) -> Option<u64> {
        let timer = TimerInterrupt(self.timer);
        if !timer.enable() || timer.period() == 0 || self.tsc_hz == 0 {
            return None;
        }
        let ns = u128::from(timer.period()) * NS_PER_S / u128::from(self.tsc_hz);
        Some(u64::try_from(ns).unwrap_or(u64::MAX).max(self.timer_min_ns))
    }

    fn start_timer(&mut self, now_ns: u64) {
        self.timer_next = self.period_ns().map(|ns| now_ns.saturating_add(ns));
    }

    /// Returns true if the timer has expired. Several missed expirations count as one.
    fn expire(&mut self, now_ns: u64) -> bool {
        if self.timer_next.is_none_or(|at| now_ns < at) {
            return false;
        }
        let mut timer = TimerInterrupt(self.timer);
        timer = timer.with_toggle(!timer.toggle());
        if timer.one_shot() {
            timer = timer.with_enable(false);
        }
        self.timer = timer.raw();
        self.start_timer(now_ns);
        true
    }
}

fn scratchpad_index(offset: RegOffset) -> Option<usize> {
    let first = regs::scratchpad(0).0;
    let i = (offset.0.checked_sub(first)? / 8) as usize;
    (i < 8).then_some(i)
}

impl Nic {
    pub(super) fn info_read(&self, offset: RegOffset, env: &Env<'_>) -> Option<u64> {
        Some(match offset {
            regs::DRIVER => self.info.driver,
            regs::NODE => self.info.node,
            regs::TSC => self.info.tsc(env.host.now_ns()),
            regs::TIMER_INTERRUPT => self.info.timer,
            _ => self.info.scratchpad[scratchpad_index(offset)?],
        })
    }

    pub(super) fn info_write(&mut self, offset: RegOffset, value: u64, env: &Env<'_>) -> bool {
        let now = env.host.now_ns();
        match offset {
            regs::NODE => {
                self.withdraw_pressure();
                self.info.node = value;
            }
            regs::TSC => {
                self.info.tsc_base = value & TSC_MASK;
                self.info.tsc_base_ns = now;
            }
            regs::TIMER_INTERRUPT => {
                self.info.timer = value;
                self.info.start_timer(now);
            }
            _ => match scratchpad_index(offset) {
                Some(i) => {
                    let old = std::mem::replace(&mut self.info.scratchpad[i], value);
                    if offset == regs::NW_STATE && old != value {
                        self.raise(Te::NwState); // G23
                    }
                }
                None => return false,
            },
        }
        true
    }

    pub(super) fn timer_tick(&mut self, now_ns: u64) {
        if self.info.expire(now_ns) {
            self.raise(Te::TimerInterrupt);
        }
    }
}
