//! Origin side of the SMFU: accesses to the shared memory window become requests to other nodes (HW
//! §12, G18).
//!
//! Stores are posted. A load waits in the matching store for its response. A load without a target,
//! or whose response times out, returns all ones.

use super::bridge::DeviceRead;
use super::smfu_queue::Queue;
use super::{Body, Nic, SmfuMessage, SmfuSpace, Te, ZeroMask};
use crate::env::{Dest, Env, NetPort, Packet};
use crate::lane::Lane;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use wire::ids::{NodeId, RegOffset};
use wire::regs::smfu::{
    self as regs, IntervalControl, IntervalCounter, StatusControl, TimeoutControl, TrafficClass,
};
use wire::regs::xbar::inp;
use wire::route::{self, RouteWord};

/// Number of entries of the matching store.
const STORE: usize = 512;
/// Mask of the valid address bits of intervals and bases.
const ADDR_MASK: u64 = (1 << 48) - 1;
/// Number of the crossbar inport at the SMFU's network port.
const INPORT: u32 = 10;

/// Receiver of the data of a load.
pub(super) enum Sink {
    /// The host's load with this number. The second number is the offset of the data in the load.
    Host(u64, usize),
    /// The device behind the root port, for this read.
    Device(DeviceRead),
}

struct Outstanding {
    node: u16,
    len: u32,
    sent_ns: u64,
    deadline_ns: u64,
    sink: Sink,
}

/// A load of the host that is not complete.
struct HostRead {
    id: u64,
    data: Vec<u8>,
    left: u32,
}

/// Maximum number of stores that may still arrive after the environment has told the host to wait,
/// because one message can contain several stores.
pub const UNDER_WAY: usize = 256;

/// Number of bytes in flight above which the host must wait before it stores more. A packet counts
/// its data plus 64 bytes.
const IN_FLIGHT: u64 = 1 << 20;
/// Number of bytes in flight above which stores are dropped.
const MOST_IN_FLIGHT: u64 = 16 << 20;

/// State of the permission for the host to store to the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stall {
    #[default]
    No,
    /// The host must wait for the network, at the latest until this time in ns.
    Until(u64),
    /// The wait has timed out. Stores without buffer space are dropped.
    Over,
}

#[derive(Default)]
pub(super) struct Smfu {
    pub(super) queue: Queue,
    store: BTreeMap<u64, Outstanding>,
    last_tag: u64,
    host: Option<HostRead>,
    /// Number of the host's current load, and the number of requests that the load has made.
    load: (u64, u32),
    stall: Stall,
    /// Number of bytes of this unit's packets that the targets have not stored.
    pub(super) in_flight: Rc<Cell<u64>>,
}

impl Smfu {
    /// Resets the state. The numbering of tags continues, so that late responses to earlier
    /// requests do not match new requests.
    pub(super) fn reset(&mut self) {
        *self = Self {
            last_tag: self.last_tag,
            load: (self.load.0, 0),
            in_flight: std::mem::take(&mut self.in_flight),
            ..Self::default()
        };
    }

    pub(super) fn next_deadline(&self) -> Option<u64> {
        let stall = match self.stall {
            Stall::Until(at) => Some(at),
            _ => None,
        };
        let store = self.store.values().map(|o| o.deadline_ns);
        store.chain(stall).chain(self.queue.next_due()).min()
    }
}

/// Target of an access to the window.
struct Target {
    node: u16,
    interval: Option<u8>,
    /// Global address of the access.
    addr: u64,
}

/// Reason why an access has no target.
enum TargetError {
    Disabled,
    NoTarget(&'static str),
}

/// Returns the exclusive end of an interval. An end whose low bits are 0xFFF is inclusive (G18).
fn exclusive(end: u64) -> u64 {
    if end & 0xFFF == 0xFFF {
        end + 1
    } else {
        end
    }
}

impl Nic {
    pub(super) fn smfu_status(&self) -> StatusControl {
        StatusControl(self.storage.at(regs::STATUS_CONTROL.0))
    }

    pub(super) fn smfu_traffic_class(&self) -> TrafficClass {
        TrafficClass(self.storage.at(regs::TRAFFIC_CLASS.0))
    }

    /// Returns the timeout of a request in ns.
    fn smfu_timeout(&self) -> u64 {
        let t = TimeoutControl(self.storage.at(regs::TIMEOUT_CONTROL.0)).timeout();
        match t {
            0 => self.cfg.smfu_timeout_ns,
            t => u64::from(t).saturating_mul(self.cfg.smfu_timeout_unit_ns),
        }
    }

    fn smfu_interval(&self, addr: u64) -> Option<(u8, u16, u64)> {
        (0..regs::INTERVALS).find_map(|i| {
            let control = IntervalControl(self.storage.at(regs::interval_control(i).0));
            if !control.valid() {
                return None;
            }
            let start = self.storage.at(regs::interval_startaddr(i).0) & ADDR_MASK;
            let end = exclusive(self.storage.at(regs::interval_endaddr(i).0) & ADDR_MASK);
            (start..end)
                .contains(&addr)
                .then_some((i as u8, control.t_node_id(), addr - start))
        })
    }

    fn smfu_target(&mut self, addr: u64) -> Result<Target, TargetError> {
        if !self.smfu_status().enable() {
            return Err(TargetError::Disabled);
        }
        let target = if let Some((i, node, addr)) = self.smfu_interval(addr) {
            Target {
                node,
                interval: Some(i),
                addr,
            }
        } else {
            let mask = self.storage.at(regs::ADDR_MASK.0) & ADDR_MASK & !0x3F;
            if mask == 0 && self.cfg.smfu_zero_mask == ZeroMask::Refuse {
                return Err(TargetError::NoTarget("no interval contains the address"));
            }
            let start = self.storage.at(regs::O_START_ADDR.0) & ADDR_MASK;
            let addr = addr.wrapping_sub(start) & ADDR_MASK;
            let shift = self.storage.at(regs::N_NODE_OFFSET.0) & 63;
            Target {
                node: ((addr & mask) >> shift) as u16,
                interval: None,
                addr: addr & !mask,
            }
        };
        if self.routable(target.node) {
            Ok(target)
        } else {
            Err(TargetError::NoTarget("no route to the node"))
        }
    }

    /// Returns true if the routing tables of the SMFU's inport contain the node. If the NIC has no
    /// network, every node is accepted.
    fn routable(&mut self, node: u16) -> bool {
        let Some(net) = &mut self.net else {
            return true;
        };
        let net = RefCell::new(net);
        let word = |at: RegOffset| RouteWord(net.borrow_mut().read(at.0).unwrap_or(0));
        let found = route::lookup(
            NodeId(node),
            |i| word(inp::grt(INPORT, i.into())),
            |i| word(inp::lrt(INPORT, i.into())),
        );
        found.is_ok()
    }

    fn smfu_refuse(&mut self, what: &str, addr: u64, why: &TargetError, env: &mut Env<'_>) {
        let drops = &mut self.counters.drops;
        let why = match why {
            TargetError::Disabled => {
                drops.smfu_disabled = drops.smfu_disabled.wrapping_add(1);
                "the unit is off"
            }
            TargetError::NoTarget(why) => {
                drops.smfu_no_interval = drops.smfu_no_interval.wrapping_add(1);
                self.smfu_failed();
                why
            }
        };
        self.diagnose(env, || format!("SMFU {what} at {addr:#x}: {why}"));
    }

    /// Sets the error flag of the SMFU and raises the event for it.
    fn smfu_failed(&mut self) {
        let at = regs::TIMEOUT_CONTROL.0;
        let control = TimeoutControl(self.storage.at(at)).with_timeout_err(true);
        self.storage.set_at(at, control.raw());
        self.raise(Te::SmfuTimeout);
    }

    pub(super) fn smfu_count(&mut self, at: RegOffset) {
        let n = self.storage.at(at.0).wrapping_add(1) & ADDR_MASK;
        self.storage.set_at(at.0, n);
    }

    fn smfu_count_interval(&mut self, interval: Option<u8>, write: bool) {
        let Some(i) = interval else { return };
        let at = regs::interval_counter(i.into()).0;
        let c = IntervalCounter(self.storage.at(at));
        let c = if write {
            c.with_sent_count_p(c.sent_count_p().wrapping_add(1))
        } else {
            c.with_sent_count_np(c.sent_count_np().wrapping_add(1))
        };
        self.storage.set_at(at, c.raw());
    }

    fn smfu_space(target: &Target, remote_rf: bool) -> SmfuSpace {
        if remote_rf {
            SmfuSpace::Registers
        } else {
            SmfuSpace::Memory(target.interval)
        }
    }

    /// Sends a packet of the SMFU.
    pub(super) fn smfu_send(
        &mut self,
        node: u16,
        tc: u8,
        bytes: u32,
        message: SmfuMessage,
        env: &mut Env<'_>,
    ) {
        let packet = Packet {
            src: self.node_id(),
            dst: Dest::Node(NodeId(node)),
            port: NetPort::Smfu,
            tc,
            bytes,
            body: Body::Smfu(Box::new(message)),
        };
        self.send(packet, None, env);
    }

    /// Sends a store that has arrived at the SMFU. `admitted` is true if the buffer space for the
    /// store was checked earlier.
    pub(super) fn smfu_store_now(
        &mut self,
        addr: u64,
        remote_rf: bool,
        data: &[u8],
        admitted: bool,
        env: &mut Env<'_>,
    ) {
        let target = match self.smfu_target(addr) {
            Ok(target) => target,
            Err(why) => return self.smfu_refuse("store", addr, &why, env),
        };
        if !admitted && !self.smfu_room(env) {
            return self.smfu_congested(addr, env);
        }
        self.counters.smfu.stores = self.counters.smfu.stores.wrapping_add(1);
        self.smfu_count(regs::SENT_COUNT_P);
        self.smfu_count_interval(target.interval, true);
        let message = SmfuMessage::Write {
            space: Self::smfu_space(&target, remote_rf),
            addr: target.addr,
            data: data.to_vec(),
        };
        let tc = self.smfu_traffic_class().tc_p();
        self.smfu_send(target.node, tc, data.len() as u32, message, env);
    }

    /// Reports a store that is dropped because buffer space is missing.
    pub(super) fn smfu_congested(&mut self, addr: u64, env: &mut Env<'_>) {
        self.smfu_failed();
        let waiting = self.smfu_waiting();
        self.diagnose(env, || {
            format!("SMFU store at {addr:#x}: the network is blocked, dropped behind {waiting} pending accesses")
        });
    }

    /// Returns the number of accesses that wait for the network or are in flight to the unit.
    fn smfu_waiting(&self) -> usize {
        self.tx_len(Lane::SMFU) + self.smfu.queue.len()
    }

    /// Returns true if a limit is reached. MODEL: there is a limit of bytes in flight in addition
    /// to the buffers of the network, because devices of the target accept stores much more slowly
    /// than memory.
    fn smfu_full(&self) -> bool {
        self.smfu_waiting() >= self.cfg.tx_queue_limit || self.smfu.in_flight.get() >= IN_FLIGHT
    }

    /// Returns true if another store fits. While the network is blocked, the host must first wait
    /// ([`Nic::host_stalled`]). After the wait has timed out, stores are dropped.
    pub(super) fn smfu_room(&mut self, env: &Env<'_>) -> bool {
        if !self.smfu_full() {
            self.smfu.stall = Stall::No;
            return true;
        }
        if self.smfu.stall == Stall::No {
            self.counters.smfu.stalls = self.counters.smfu.stalls.wrapping_add(1);
            let until = env.host.now_ns().saturating_add(self.smfu_timeout());
            self.smfu.stall = Stall::Until(until);
        }
        let waiting = self.smfu_waiting();
        let room = if waiting >= self.cfg.tx_queue_limit {
            // Stores that the host had already sent when it was stopped are still accepted.
            self.smfu.stall != Stall::Over
                && waiting < self.cfg.tx_queue_limit.saturating_add(UNDER_WAY)
        } else {
            // Two hosts that store to each other's devices may stop each other. They continue after
            // the timeout.
            self.smfu.in_flight.get() < MOST_IN_FLIGHT
        };
        if !room {
            let n = &mut self.counters.drops.smfu_congested;
            *n = n.wrapping_add(1);
        }
        room
    }

    /// Returns true while the host must not store because the network accepts no SMFU packets. The
    /// state ends at the latest after the SMFU's timeout ([`Nic::next_deadline`]).
    pub fn host_stalled(&self) -> bool {
        matches!(self.smfu.stall, Stall::Until(_)) && self.smfu_full()
    }

    /// Returns true while the host waits for a load, or must not store to the window.
    pub fn host_waits(&self) -> bool {
        self.smfu.host.as_ref().is_some_and(|h| h.left > 0) || self.host_stalled()
    }

    /// Returns true if the host's current load waits for the response with this tag.
    pub fn host_waits_for(&self, tag: u64) -> bool {
        let current = self.smfu.host.as_ref().filter(|h| h.left > 0).map(|h| h.id);
        self.smfu.store.get(&tag).is_some_and(|o| match o.sink {
            Sink::Host(id, _) => current == Some(id),
            Sink::Device(_) => false,
        })
    }

    /// Begins a load by the host.
    pub(super) fn smfu_begin_load(&mut self) {
        self.smfu.load = (self.smfu.load.0 + 1, 0);
        self.smfu.host = None;
    }

    /// Ends the request phase of a load by the host. Returns true if requests are pending, which
    /// means that `data` is incomplete.
    pub(super) fn smfu_end_load(&mut self, data: &[u8]) -> bool {
        let (id, left) = self.smfu.load;
        self.smfu.host = (left > 0).then(|| HostRead {
            id,
            data: data.to_vec(),
            left,
        });
        left > 0
    }

    /// Stores the result of a pending load in `data`. Returns `false` while the load is still
    /// pending. After a reset, the result is all ones.
    pub fn finish_load(&mut self, data: &mut [u8]) -> bool {
        match self.smfu.host.take() {
            Some(host) if host.left > 0 => {
                self.smfu.host = Some(host);
                false
            }
            Some(host) if host.data.len() == data.len() => {
                data.copy_from_slice(&host.data);
                true
            }
            _ => {
                data.fill(0xFF);
                true
            }
        }
    }

    /// Loads from the window for the host. `data` belongs at offset `at` of the whole load.
    pub(super) fn smfu_load(
        &mut self,
        addr: u64,
        remote_rf: bool,
        at: usize,
        data: &mut [u8],
        env: &mut Env<'_>,
    ) {
        data.fill(0xFF);
        let sink = Sink::Host(self.smfu.load.0, at);
        if self
            .smfu_request(addr, remote_rf, data.len() as u32, sink, env)
            .is_none()
        {
            self.smfu.load.1 += 1;
        }
    }

    /// Sends a read request. Returns `sink` if the request failed.
    pub(super) fn smfu_request_now(
        &mut self,
        addr: u64,
        remote_rf: bool,
        len: u32,
        sink: Sink,
        env: &mut Env<'_>,
    ) -> Option<Sink> {
        let target = match self.smfu_target(addr) {
            Ok(target) => target,
            Err(why) => {
                self.smfu_refuse("load", addr, &why, env);
                return Some(sink);
            }
        };
        if self.smfu.store.len() >= STORE {
            let n = &mut self.counters.drops.smfu_store_full;
            *n = n.wrapping_add(1);
            self.raise(Te::SmfuMatchingStoreEmpty);
            self.diagnose(env, || {
                format!("SMFU load at {addr:#x}: {STORE} requests are outstanding")
            });
            return Some(sink);
        }
        let now = env.host.now_ns();
        // Tags never repeat, not even after resets and power cycles.
        let tag = self.smfu.last_tag.max(now) + 1;
        self.smfu.last_tag = tag;
        self.smfu.store.insert(
            tag,
            Outstanding {
                node: target.node,
                len,
                sent_ns: now,
                deadline_ns: now.saturating_add(self.smfu_timeout()),
                sink,
            },
        );
        self.counters.smfu.outstanding = self.smfu.store.len() as u64;
        self.counters.smfu.loads = self.counters.smfu.loads.wrapping_add(1);
        self.smfu_count(regs::SENT_COUNT_NP);
        self.smfu_count_interval(target.interval, false);
        let misc = regs::MiscCount(self.storage.at(regs::MISC_COUNT.0));
        let most = misc.max_outstanding_nps().max(self.smfu.store.len() as u16);
        self.storage.set_at(
            regs::MISC_COUNT.0,
            misc.with_max_outstanding_nps(most).raw(),
        );
        let message = SmfuMessage::Read {
            space: Self::smfu_space(&target, remote_rf),
            addr: target.addr,
            len,
            tag,
        };
        let tc = self.smfu_traffic_class().tc_np();
        self.smfu_send(target.node, tc, 0, message, env);
        None
    }

    /// Processes a response to a load.
    pub(super) fn smfu_response(
        &mut self,
        from: u16,
        tag: u64,
        data: Option<Vec<u8>>,
        env: &mut Env<'_>,
    ) {
        self.smfu_count(regs::RCVD_COUNT_RSP);
        let expected = self.smfu.store.get(&tag).is_some_and(|o| {
            o.node == from && data.as_ref().is_none_or(|d| d.len() == o.len as usize)
        });
        let Some(o) = expected.then(|| self.smfu.store.remove(&tag)).flatten() else {
            self.counters.smfu.late = self.counters.smfu.late.wrapping_add(1);
            return;
        };
        let ns = env.host.now_ns().saturating_sub(o.sent_ns);
        let cycles = u128::from(ns) * u128::from(self.cfg.tsc_hz) / 1_000_000_000;
        let misc = regs::MiscCount(self.storage.at(regs::MISC_COUNT.0))
            .with_np2r_clk_cycle_count(u32::try_from(cycles).unwrap_or(u32::MAX))
            .with_overflow(cycles > u32::MAX.into());
        self.storage.set_at(regs::MISC_COUNT.0, misc.raw());
        if data.is_none() {
            self.counters.smfu.refused = self.counters.smfu.refused.wrapping_add(1);
            self.diagnose(env, || {
                format!("SMFU load: node {from} could not read its memory")
            });
        }
        self.smfu_finish(o, data);
    }

    fn smfu_finish(&mut self, o: Outstanding, data: Option<Vec<u8>>) {
        self.counters.smfu.outstanding = self.smfu.store.len() as u64;
        self.smfu_give(o.sink, o.len, data);
    }

    /// Completes a load of `len` bytes. `data` is `None` if the load failed.
    pub(super) fn smfu_give(&mut self, sink: Sink, len: u32, data: Option<Vec<u8>>) {
        match sink {
            Sink::Host(id, at) => {
                let Some(host) = self.smfu.host.as_mut().filter(|h| h.id == id) else {
                    return;
                };
                host.left -= 1;
                let len = len as usize;
                if let (Some(from), Some(to)) = (data, host.data.get_mut(at..at + len)) {
                    to.copy_from_slice(&from);
                }
            }
            Sink::Device(read) => self.bridge_read_done(&read, data.as_deref()),
        }
    }

    /// Ends waits and loads that have timed out.
    pub(super) fn smfu_expire(&mut self, now_ns: u64, env: &mut Env<'_>) {
        self.run_smfu_queue(now_ns, env);
        if let Stall::Until(at) = self.smfu.stall {
            if !self.smfu_full() {
                self.smfu.stall = Stall::No;
            } else if at <= now_ns {
                self.smfu.stall = Stall::Over;
            }
        }
        let due: Vec<u64> = self
            .smfu
            .store
            .iter()
            .filter(|(_, o)| o.deadline_ns <= now_ns)
            .map(|(&tag, _)| tag)
            .collect();
        for tag in due {
            let Some(o) = self.smfu.store.remove(&tag) else {
                continue;
            };
            self.counters.smfu.timeouts = self.counters.smfu.timeouts.wrapping_add(1);
            self.smfu_failed();
            let node = o.node;
            self.diagnose(env, || format!("SMFU load: no response from node {node}"));
            self.smfu_finish(o, None);
        }
    }

    /// Returns `status_control` with the bits that the SMFU computes. Returns `None` for other
    /// registers.
    pub(super) fn smfu_reg_read(&self, offset: RegOffset) -> Option<u64> {
        (offset == regs::STATUS_CONTROL).then(|| {
            self.smfu_status()
                .with_idle(self.smfu.store.is_empty())
                .with_matching_store_empty(self.smfu.store.len() >= STORE)
                .raw()
        })
    }

    pub(super) fn smfu_reg_write(
        &mut self,
        offset: RegOffset,
        value: u64,
        env: &mut Env<'_>,
    ) -> bool {
        let (status, classes) = match offset {
            regs::STATUS_CONTROL => (StatusControl(value), self.smfu_traffic_class()),
            regs::TRAFFIC_CLASS => (self.smfu_status(), TrafficClass(value)),
            _ => Default::default(),
        };
        if status.enable() && classes.tc_np() == classes.tc_rsp() {
            self.bad_setup(env, || {
                let class = classes.tc_np();
                format!("SMFU requests and responses are both in class {class} (HW §12)")
            });
        }
        match offset {
            regs::TIMEOUT_CONTROL => {
                // Writing 1 clears the error flag (HW §12).
                let new = TimeoutControl(value);
                let old = TimeoutControl(self.storage.at(offset.0));
                let err = old.timeout_err() && !new.timeout_err();
                self.storage
                    .set_at(offset.0, new.with_timeout_err(err).raw());
            }
            regs::COUNTER_RESET => {
                if value & 1 != 0 {
                    for at in (regs::SENT_COUNT_NP.0..=regs::MISC_COUNT.0).step_by(8) {
                        self.storage.set_at(at, 0);
                    }
                    for i in 0..regs::INTERVALS {
                        self.storage.set_at(regs::interval_counter(i).0, 0);
                    }
                }
            }
            _ => return false,
        }
        true
    }
}
