//! The world: all NICs, the network between them, and the order of events.
//!
//! Every public method is one event. It performs the work of the event and the resulting work, up
//! to a limit, so that one guest can't keep the others waiting. [`World::busy`] returns true while
//! work remains for [`World::settle`].
//!
//! A panic in the model of a NIC is contained and logged. The NIC then behaves like dead hardware
//! (reads return all ones, links are down) until its guest, a new client or a command resets it.

use crate::config::{Fabric, NicSpec};
use crate::control::Arrival;
use crate::endpoint::{DeviceKind, Disk, Nvme, TestDevice};
use crate::env::{Env, Packet};
use crate::lane::LANES;
use crate::machine::{HostStats, Machine};
use crate::network::routes::RouteError;
use crate::network::topology::Topology;
use crate::network::{Network, Outcome};
use crate::nic::{Counters, Faults, Load, Nic, NicConfig, Pressure, ResetKind, Te};
use crate::pci::PciConfig;
use crate::setup::Setup;
use crate::timing::{self, NicTiming, TimedHost, TimingConfig, TimingModel};
use crate::trace::{Event, Tracer};
use anyhow::Context;
pub use extoll_emulator_api::host::Power;
use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::rc::Rc;
use std::time::Instant;
use wire::regs::info::{self, Node};

/// Maximum number of crossbar steps per event. The next iteration of the event loop performs the
/// remaining steps.
const STEPS_PER_TURN: usize = 4096;

/// Source of the time in ns since the start.
#[derive(Debug, Clone)]
pub enum Clock {
    /// The monotonic clock of the host.
    Real(Instant),
    /// Time that a test sets.
    Manual(Rc<Cell<u64>>),
}

impl Clock {
    /// Returns a clock that starts now.
    pub fn real() -> Self {
        Clock::Real(Instant::now())
    }

    fn now(&self) -> u64 {
        match self {
            Clock::Real(start) => start.elapsed().as_nanos() as u64,
            Clock::Manual(t) => t.get(),
        }
    }
}

pub(crate) struct Slot {
    pub(crate) spec: NicSpec,
    pub(crate) nic: Nic,
    disk: Option<Disk>,
    pub(crate) machine: Machine,
    pub(crate) timing: Option<NicTiming>,
    outbox: VecDeque<Packet>,
    pub(crate) power: Power,
    pub(crate) connected: bool,
    deadline: Option<u64>,
    panic_next: bool,
}

/// Returns a new disk if an NVMe drive is behind the NIC. The disk outlives the chip of its
/// controller.
fn new_disk(spec: &NicSpec) -> Option<Disk> {
    let drive = spec.accelerator.as_ref();
    let drive = drive.filter(|device| device.kind == DeviceKind::Nvme);
    drive.map(|device| Disk::new(device.size_mib))
}

/// Returns a new chip, with the device behind it if the NIC is a root port.
fn new_chip(spec: &NicSpec, cfg: NicConfig, disk: Option<&Disk>) -> Nic {
    // The GUID of the NIC is also the serial number of the drive.
    let serial = cfg.guid.unwrap_or(0);
    let mut nic = Nic::new(cfg);
    match (&spec.accelerator, disk) {
        (Some(device), Some(disk)) => {
            nic.attach(Box::new(Nvme::new(device, serial, disk.clone())));
        }
        (Some(device), None) => nic.attach(Box::new(TestDevice::new(device.clone()))),
        (None, _) => {}
    }
    nic
}

/// The whole model: NICs, hosts, network and time.
pub struct World {
    pub(crate) slots: Vec<Slot>,
    pub(crate) network: Network,
    pub(crate) topology: Topology,
    nics_per_node: usize,
    pub(crate) timing: TimingConfig,
    /// Latencies that were drawn for the links without a configured latency.
    pub(crate) drawn_latency: Vec<u64>,
    variant: String,
    pub(crate) setup: Setup,
    /// Writer of the trace.
    pub tracer: Tracer,
    clock: Clock,
    /// Deadlines of NICs, each with the index of the NIC.
    timers: BTreeSet<(u64, usize)>,
    /// NICs that have packets left to send, now or after network credit returns.
    blocked: BTreeSet<usize>,
    /// Index of the NIC that most recently sent remaining packets.
    turn: usize,
    /// Numbers of messages that wait for full queues, which all NICs share.
    pressure: Pressure,
}

impl World {
    /// Creates all NICs, brings the links up and runs the set-up step. Fails if routes can't be
    /// computed.
    pub fn new(fabric: &Fabric, clock: Clock, tracer: Tracer) -> Result<Self, RouteError> {
        let mut network = Network::new(&fabric.topology, fabric.network.clone());
        let seed = fabric.network.seed;
        let mut drawn_latency = Vec::new();
        timing::stretch_links(&fabric.timing, seed, &mut network, &mut drawn_latency);
        let pressure = Pressure::default();
        let slots = fabric.nics.iter().enumerate().map(|(i, spec)| {
            let disk = new_disk(spec);
            let mut nic = new_chip(spec, spec.nic.clone(), disk.as_ref());
            nic.set_pressure(pressure.clone());
            nic.set_smfu_in_flight(network.smfu_in_flight(i));
            nic.set_network_regs(Box::new(network.shared_regs(i)));
            Slot {
                spec: spec.clone(),
                nic,
                disk,
                machine: Machine::new(i, spec.pci.clone()),
                timing: NicTiming::new(&fabric.timing, seed, i),
                outbox: VecDeque::new(),
                power: if spec.powered { Power::On } else { Power::Off },
                connected: false,
                deadline: None,
                panic_next: false,
            }
        });
        let mut world = Self {
            slots: slots.collect(),
            setup: Setup::new(&fabric.setup, &fabric.topology)?,
            topology: fabric.topology.clone(),
            nics_per_node: fabric.nics_per_node,
            timing: fabric.timing.clone(),
            drawn_latency,
            variant: fabric.variant.clone(),
            network,
            tracer,
            clock,
            timers: BTreeSet::new(),
            blocked: BTreeSet::new(),
            turn: 0,
            pressure: pressure.clone(),
        };
        for i in 0..world.slots.len() {
            world.sync_identity(i);
            if world.slots[i].power == Power::Off {
                world.network.set_power(i, false, &mut world.tracer);
            }
        }
        world.network.start(&mut world.tracer);
        for i in 0..world.slots.len() {
            world.nic_came_back(i);
        }
        while world.busy() {
            world.settle();
        }
        Ok(world)
    }

    /// Returns the number of NICs.
    pub fn nic_count(&self) -> usize {
        self.slots.len()
    }

    /// Returns the time in ns since the start.
    pub fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Returns true if the NIC has power.
    pub fn is_on(&self, nic: usize) -> bool {
        self.slots[nic].power == Power::On
    }

    /// Returns the GUID of a NIC.
    pub fn guid(&self, nic: usize) -> u32 {
        self.slots[nic].nic.config().guid()
    }

    /// Returns true if [`World::settle`] has work.
    pub fn busy(&self) -> bool {
        self.network.busy() || self.blocked.iter().any(|&i| self.may_send(i))
    }

    /// Returns true if a NIC holds packets that it may send now.
    fn may_send(&self, i: usize) -> bool {
        self.slots[i].nic.tx_waiting_lanes() & self.tx_open(i) != 0
    }

    /// Returns the time in ns since the start at which [`World::tick`] has its next work.
    pub fn next_deadline(&self) -> Option<u64> {
        let nic = self.timers.first().map(|(at, _)| *at);
        nic.into_iter()
            .chain(self.network.next_deadline())
            .chain(self.setup.next_deadline())
            .chain(self.timing_deadline())
            .chain(self.peer_deadline())
            .min()
    }

    /// Runs all timers that are due.
    pub fn tick(&mut self) {
        let now = self.now();
        self.run_timing(now);
        self.expire_peers(now);
        // Each due NIC runs once, so that a NIC whose deadline does not change can't delay the
        // others.
        let due: Vec<usize> = self
            .timers
            .iter()
            .take_while(|(at, _)| *at <= now)
            .map(|(_, i)| *i)
            .collect();
        for i in due {
            self.with_nic(i, |nic, env| nic.tick(now, env));
        }
        while let Some(nic) = self.setup.pop_due(now) {
            self.set_up(nic);
        }
        self.settle();
    }

    /// Moves packets until all packets are blocked or delivered, or the limit is reached.
    pub fn settle(&mut self) {
        let mut left = STEPS_PER_TURN;
        while left > 0 {
            let now = self.now();
            left -= self.network.run(now, left, &mut self.tracer).min(left);
            match self.network.outcome(&mut self.tracer) {
                Some(Outcome::Deliver(i, packet, receipt)) => {
                    left = left.saturating_sub(1);
                    self.with_nic(i, |nic, env| nic.receive_for(packet, Some(receipt), env));
                }
                Some(Outcome::Event(i, te)) => {
                    left = left.saturating_sub(1);
                    if let Some(&te) = Te::ALL.get(usize::from(te)) {
                        self.with_nic(i, |nic, env| nic.raise_event(te, env));
                    }
                }
                None => {
                    let Some(i) = self.next_blocked() else {
                        if self.network.busy() {
                            continue;
                        }
                        return;
                    };
                    left = left.saturating_sub(1);
                    self.turn = i;
                    self.blocked.remove(&i);
                    self.with_nic(i, |nic, env| nic.tick(now, env));
                }
            }
        }
    }

    /// Returns the NIC that sends remaining packets next, round robin.
    fn next_blocked(&self) -> Option<usize> {
        let after = self.blocked.range(self.turn + 1..);
        let mut all = after.chain(&self.blocked).copied();
        all.find(|&i| self.may_send(i))
    }

    /// Executes a load of the host from a BAR. Returns `false` if some of the data arrives over the
    /// network later. In that case, [`World::finish_load`] returns the result.
    pub fn load(&mut self, nic: usize, bar: u8, offset: u64, data: &mut [u8]) -> bool {
        // Earlier events must be completed before the guest reads their results.
        self.settle();
        self.push_posted(nic);
        let state = self.with_nic(nic, |n, env| n.mmio_read(bar, offset, data, env));
        self.settle();
        match state {
            Some(Load::Done) => true,
            Some(Load::Pending) => self.finish_load(nic, data),
            None => {
                data.fill(0xff);
                true
            }
        }
    }

    /// Stores the result of a pending load in `data`. Returns `false` while the load is still
    /// pending. If the NIC is off, the result is all ones.
    pub fn finish_load(&mut self, nic: usize, data: &mut [u8]) -> bool {
        if self.is_on(nic) {
            let done = self.slots[nic].nic.finish_load(data);
            if done {
                self.push_posted(nic);
            }
            return done;
        }
        data.fill(0xff);
        true
    }

    /// Returns true while the host of this NIC must not store (see [`Nic::host_stalled`]).
    pub fn stalled(&self, nic: usize) -> bool {
        self.is_on(nic) && self.slots[nic].nic.host_stalled()
    }

    /// Returns true if the host of this NIC waits for the data of a load, or must not store now.
    pub fn host_waits(&self, nic: usize) -> bool {
        self.is_on(nic) && self.slots[nic].nic.host_waits()
    }

    /// Returns true if a device is attached to this NIC instead of a host.
    pub fn is_accelerator(&self, nic: usize) -> bool {
        self.slots[nic].spec.accelerator.is_some()
    }

    /// Calls `f` with a NIC and its environment, then sends the packets in the outbox and updates
    /// the timers of the NIC. Returns `None` if the NIC is off or its model panicked.
    pub(crate) fn with_nic<R>(
        &mut self,
        i: usize,
        f: impl FnOnce(&mut Nic, &mut Env<'_>) -> R,
    ) -> Option<R> {
        let now = self.now();
        let (tx_credit, tx_room) = (self.tx_credit(i), self.tx_room(i));
        let slot = &mut self.slots[i];
        if slot.power != Power::On {
            return None;
        }
        slot.machine.now_ns = now;
        let mut sink = self.tracer.sink(i, now);
        let mut host = TimedHost::new(&mut slot.machine, slot.timing.as_mut());
        let mut env = Env {
            host: &mut host,
            outbox: &mut slot.outbox,
            tx_credit,
            tx_room,
            trace: &mut sink,
        };
        let (nic, bomb) = (&mut slot.nic, std::mem::take(&mut slot.panic_next));
        let result = catch_unwind(AssertUnwindSafe(|| {
            assert!(!bomb, "injected by command");
            f(nic, &mut env)
        }));
        match result {
            Ok(r) => {
                self.after_nic(i, now);
                Some(r)
            }
            Err(payload) => {
                self.crashed(i, &*payload);
                None
            }
        }
    }

    fn after_nic(&mut self, i: usize, now: u64) {
        while let Some(packet) = self.slots[i].outbox.pop_front() {
            self.send_packet(i, packet, now);
        }
        let slot = &mut self.slots[i];
        let deadline = slot.nic.next_deadline();
        if deadline != slot.deadline {
            if let Some(old) = slot.deadline {
                self.timers.remove(&(old, i));
            }
            if let Some(new) = deadline {
                self.timers.insert((new, i));
            }
            slot.deadline = deadline;
        }
        if slot.nic.tx_waiting() {
            self.blocked.insert(i);
        }
        let takes = slot.nic.takes();
        self.network.set_takes(i, takes);
        let changed = self.network.identity(i).1 != self.slots[i].nic.node_id().0;
        if changed || self.network.has_actions(i) {
            self.sync_identity(i);
            self.network.after_access(i, &mut self.tracer);
        }
        self.break_cycles(i);
    }

    /// Passes the GUID and the node ID in the registers of the NIC to the network.
    fn sync_identity(&mut self, i: usize) {
        let slot = &mut self.slots[i];
        let mut untraced = Tracer::off();
        let mut env = Env {
            host: &mut slot.machine,
            outbox: &mut slot.outbox,
            tx_credit: 0,
            tx_room: [0; LANES],
            trace: &mut untraced.sink(i, 0),
        };
        let node = Node(slot.nic.reg_peek(info::NODE.get(), &mut env));
        self.network.set_identity(i, node.guid(), node.id());
    }

    /// Contains a panic in the model of NIC `i`.
    pub(crate) fn crashed(&mut self, i: usize, payload: &(dyn std::any::Any + Send)) {
        let text = payload.downcast_ref::<&str>().copied().map(str::to_owned);
        let text = text
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "panic".into());
        tracing::error!(
            nic = i,
            "the model of this NIC failed: {text}; it is dead until its next reset"
        );
        self.note(i, format!("panic: {text}"));
        self.slots[i].machine.stats.panics += 1;
        self.switch_off(i, Power::Dead);
    }

    /// Makes the model of this NIC panic at its next access, to test that the panic is contained.
    pub fn inject_panic(&mut self, nic: usize) {
        self.slots[nic].panic_next = true;
    }

    pub(crate) fn note(&mut self, nic: usize, text: String) {
        if self.tracer.on() {
            let now = self.now();
            self.tracer.record(nic, now, Event::State { text });
        }
    }

    /// Replaces the chip by a new chip in its power-on state.
    fn replace_chip(&mut self, i: usize) {
        let faults = self.slots[i].nic.config().faults.clone();
        let cfg = NicConfig {
            faults,
            ..self.slots[i].spec.nic.clone()
        };
        let mut regs = self.network.shared_regs(i);
        crate::nic::NetworkRegs::reset(&mut regs);
        let mut nic = new_chip(&self.slots[i].spec, cfg, self.slots[i].disk.as_ref());
        nic.set_pressure(self.pressure.clone());
        nic.set_smfu_in_flight(self.network.smfu_in_flight(i));
        nic.set_network_regs(Box::new(regs));
        let slot = &mut self.slots[i];
        slot.nic.withdraw_pressure();
        slot.nic = nic;
        slot.outbox.clear();
        slot.machine.peers.reset();
        if let Some(t) = &mut slot.timing {
            t.clear();
        }
        if let Some(at) = slot.deadline.take() {
            self.timers.remove(&(at, i));
        }
        self.blocked.remove(&i);
    }

    fn switch_off(&mut self, i: usize, power: Power) {
        self.slots[i].power = power;
        self.replace_chip(i);
        self.network.set_power(i, false, &mut self.tracer);
        // Clears the actions that the register reset triggered, so that they do not retrain links
        // later.
        self.network.after_access(i, &mut self.tracer);
        self.slots[i].machine.config.reset();
    }

    fn switch_on(&mut self, i: usize) {
        self.slots[i].power = Power::On;
        self.slots[i].panic_next = false;
        self.slots[i].machine.config.reset();
        self.sync_identity(i);
        self.network.set_power(i, true, &mut self.tracer);
        self.sync_pci(i);
        self.nic_came_back(i);
    }

    /// Switches a NIC off or on. While it is off, its guest reads all ones and its links are down.
    /// When it is switched on, all state has its reset value.
    pub fn set_power(&mut self, nic: usize, on: bool) {
        match (on, self.slots[nic].power) {
            (true, Power::On) | (false, Power::Off) => {}
            (false, _) => {
                self.note(nic, "power off".into());
                self.switch_off(nic, Power::Off);
            }
            (true, _) => {
                self.note(nic, "power on".into());
                self.switch_on(nic);
            }
        }
        self.settle();
    }

    /// Freezes or thaws a NIC.
    pub fn set_frozen(&mut self, nic: usize, frozen: bool) {
        self.note(nic, if frozen { "frozen" } else { "thawed" }.into());
        self.network.set_frozen(nic, frozen);
        self.settle();
    }

    /// Resets a NIC on behalf of its host. A dead NIC works again afterwards.
    pub fn reset(&mut self, nic: usize, kind: ResetKind) {
        self.note(nic, format!("reset ({kind:?})"));
        let config = &mut self.slots[nic].machine.config;
        match kind {
            ResetKind::PowerOn => config.reset(),
            ResetKind::FunctionLevel => config.function_reset(),
        }
        match self.slots[nic].power {
            Power::Off => {}
            Power::Dead => self.switch_on(nic),
            Power::On => {
                self.slots[nic].machine.peers.reset();
                if let Some(t) = &mut self.slots[nic].timing {
                    t.clear();
                }
                self.with_nic(nic, |n, env| n.reset(kind, env));
                self.sync_pci(nic);
                self.nic_came_back(nic);
            }
        }
        self.settle();
    }

    /// Passes BARs, bus mastering and size limits from the configuration space to the chip.
    pub(crate) fn sync_pci(&mut self, i: usize) {
        let Slot { nic, machine, .. } = &mut self.slots[i];
        for bar in [0u8, 2] {
            nic.set_bar_address(bar, machine.config.bar(bar.into()).unwrap_or(0));
        }
        nic.set_bus_master(machine.config.bus_master());
        let (payload, read_request) = machine.config.payload_and_read_request();
        nic.set_bus_limits(payload, read_request);
    }

    /// Records that a client has connected, and revives a dead NIC.
    pub fn connected(&mut self, nic: usize) {
        self.slots[nic].connected = true;
        self.slots[nic].machine.stats.connects += 1;
        self.note(nic, "client connected".into());
        if self.slots[nic].power == Power::Dead {
            self.switch_on(nic);
        }
    }

    /// Drops memory and interrupts of a client that has disconnected, and resets the NIC for the
    /// next client.
    pub fn disconnected(&mut self, nic: usize) {
        self.slots[nic].connected = false;
        self.host_gone(nic);
        self.note(nic, "client disconnected".into());
        self.reset(nic, ResetKind::PowerOn);
    }

    /// Changes the identity in the configuration space of a NIC. The change takes effect for the
    /// next client, because QEMU reads the identity when it starts.
    pub fn set_pci(&mut self, nic: usize, pci: PciConfig) {
        self.slots[nic].spec.pci = pci.clone();
        self.slots[nic].machine.config.set_shape(pci);
        self.sync_pci(nic);
    }

    /// Delivers a packet that no NIC sent.
    pub fn forge(&mut self, nic: usize, packet: &crate::control::Forged) -> anyhow::Result<()> {
        let to = self.with_nic(nic, |n, _| n.node_id());
        let arrival = crate::control::arrival(packet, to.context("the NIC is off")?)?;
        self.with_nic(nic, |n, env| match arrival {
            Arrival::Packet(packet) => n.receive(packet, env),
            Arrival::Slot(unit, vpid, words) => n.forge_slot(unit, vpid, words, env),
        });
        self.settle();
        Ok(())
    }

    /// Sets registers of a chip to the given values, then raises a trigger event.
    ///
    /// # Errors
    ///
    /// If the event or a register does not exist, if the model computes the value of a register, or
    /// if the NIC is off.
    pub fn report(
        &mut self,
        nic: usize,
        event: u8,
        registers: &[(u32, u64)],
    ) -> anyhow::Result<()> {
        let te = *Te::ALL.get(usize::from(event)).context("events are 0…31")?;
        let refused = self.with_nic(nic, |n, env| n.report_event(te, registers, env));
        self.settle();
        match refused.context("the NIC is off")? {
            None => Ok(()),
            Some(offset) => anyhow::bail!("register {offset:#x} does not keep the given value"),
        }
    }

    /// Writes a register as management software does.
    pub fn poke(&mut self, nic: usize, offset: u32, value: u64) {
        self.with_nic(nic, |n, env| n.reg_poke(offset, value, env));
    }

    /// Reads a register as management software does. Returns all ones if the NIC is off.
    pub fn peek(&mut self, nic: usize, offset: u32) -> u64 {
        self.with_nic(nic, |n, env| n.reg_peek(offset, env))
            .unwrap_or(u64::MAX)
    }

    /// Replaces the faults that a NIC injects. Fails if the NIC is off.
    pub fn set_faults(&mut self, nic: usize, faults: Faults) -> anyhow::Result<()> {
        if self
            .with_nic(nic, |n, env| n.set_faults(faults, env))
            .is_none()
        {
            anyhow::bail!("NIC {nic} is off");
        }
        self.settle();
        Ok(())
    }

    /// Ends all faults, even in NICs without power. Cables, knobs and injected faults return to
    /// their configured state. Power does not change.
    pub fn end_faults(&mut self) {
        self.change_network(|network, trace| network.end_faults(trace));
        for nic in 0..self.slots.len() {
            let faults = self.slots[nic].spec.nic.faults.clone();
            if self.set_faults(nic, faults.clone()).is_err() {
                self.slots[nic].nic.preset_faults(faults);
            }
        }
    }

    /// Returns the identity in the configuration space of a NIC.
    pub fn pci(&self, nic: usize) -> &PciConfig {
        self.slots[nic].machine.config.shape()
    }

    /// Returns the counters of a chip.
    pub fn chip_counters(&self, nic: usize) -> &Counters {
        self.slots[nic].nic.counters()
    }

    /// Returns the counters of accesses between a chip and its host.
    pub fn host_stats(&self, nic: usize) -> &HostStats {
        &self.slots[nic].machine.stats
    }

    /// Returns the topology as the user gave it.
    pub fn topology_name(&self) -> &str {
        &self.topology.name
    }

    /// Returns the timing model.
    pub fn timing(&self) -> TimingModel {
        self.timing.model
    }

    /// Returns the choices of the model where the reference leaves a choice, in the form of
    /// [`crate::variant::Variant`].
    pub fn variant(&self) -> &str {
        &self.variant
    }

    /// Returns the number of NICs per host.
    pub fn nics_per_node(&self) -> usize {
        self.nics_per_node
    }

    /// Returns the network, for faults and reports.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Changes the network by `f`, and performs the work that results from the change.
    pub fn change_network(&mut self, f: impl FnOnce(&mut Network, &mut Tracer)) {
        let now = self.now();
        // The clock of the network must be up to date before the change.
        self.network.run(now, 0, &mut self.tracer);
        f(&mut self.network, &mut self.tracer);
        self.settle();
    }
}

#[cfg(test)]
#[path = "world_tests.rs"]
mod tests;
