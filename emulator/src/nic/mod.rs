//! Model of one Tourmalet NIC: its reaction to accesses of its host, packets from the network, and
//! timers.
//!
//! [`Nic`] owns all state of the chip, but does no I/O. Each call passes host memory, interrupts,
//! the network and the time in an [`Env`]. Each functional unit has a separate file with the unit's
//! state and an `impl Nic` with its behaviour. Hardware facts are cited as HW §n, decisions of this
//! project about gaps in the sources as G n.
//!
//! An entry point (`mmio_write`, `receive`, `tick`, …) completes its work before it returns: it
//! executes descriptors, writes notifications, runs SNQ programs and puts packets into the outbox.
//! There are two exceptions:
//!
//! * An option can give a unit random delays (`random_delay.rs`).
//! * A call sends a limited number of packets of RMA transfers. Later calls send the remaining
//!   packets (`rma_engine.rs`, [`Nic::tx_waiting`]).
//!
//! The size of the access or packet therefore limits the work of a call. There is one exception:
//! when messages on hold are released, the call delivers all messages for which the queue has free
//! slots.
#![forbid(unsafe_code)]

mod atu;
mod body;
mod bq;
mod bridge;

mod dma;
mod held;
mod htax;
mod info;
mod lock;
mod noti;
mod random_delay;
mod regmap;
mod regs;
mod rma;
mod rma_engine;
mod rma_mem;
mod rma_regs;
mod rma_requester;
mod rma_target;
mod smfu;
mod smfu_queue;
mod smfu_target;
mod snq;
mod tlb;
mod tx;
mod velo;
mod wcbuf;
mod wcflight;
mod wclines;

use crate::env::{Accessor, Env, Packet, TraceEvent};
use crate::lane::Receipt;
use wire::ids::{NodeId, Unit};
use wire::regs::pcie;

pub use body::{Body, Part, RmaKind, RmaMessage, SmfuMessage, SmfuSpace, VeloMessage};
pub use extoll_emulator_api::counters::{
    AtuCounters, BridgeCounters, Counters, Drops, RmaCounters, SmfuCounters, VeloCounters,
};
pub use extoll_emulator_api::nic::{
    AtuNotify, AtuTlb, BackdoorInfoRead, Faults, FlrScope, FullRule, HoldClosed, HoldScope,
    IrqMissed, LoseWrite, LossyRing, NicConfig, QueueFull, QueueUnit, RraVpid, SnqRestart,
    UnalignedQw, WriteCombining, ZeroBase, ZeroMask,
};
pub use regmap::{Access, RegMap, Register, RF_SIZE};
pub use smfu::UNDER_WAY as SMFU_UNDER_WAY;
pub use snq::Te;
pub use wcbuf::Pressure;

/// Registers of the network ports (RF+0x009400…0x0095FF), and of crossbar, barriers, links and PHY
/// (RF+0x400000…0x4B7FFF).
///
/// The register file checks existence and access rights first. It calls an implementation only for
/// permitted accesses to existing registers, in whole aligned quadwords.
pub trait NetworkRegs {
    /// Returns the value of the register at byte offset `offset`. Returns `None` if the NIC stores
    /// the value itself.
    fn read(&mut self, offset: u32) -> Option<u64>;
    /// Writes a register. Returns `false` if the NIC must store the value itself.
    fn write(&mut self, offset: u32, value: u64) -> bool;
    /// Sets all registers to their reset values.
    fn reset(&mut self) {}
}

/// Kind of reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetKind {
    /// Power-on: resets all state, including the counters.
    PowerOn,
    /// PCI function-level reset, or return from D3: resets the registers that [`FlrScope`] selects,
    /// and keeps the counters.
    FunctionLevel,
}

/// State of a load by the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// The data is available.
    Done,
    /// The data will arrive later.
    Pending,
}

/// Model of a NIC.
pub struct Nic {
    cfg: NicConfig,
    storage: regmap::Storage,
    net: Option<Box<dyn NetworkRegs>>,
    bars: [u64; 6],
    bus_master: bool,
    /// Maximum payload size and maximum read request size on the bus, in bytes; `None` while they
    /// are unknown.
    bus_limits: Option<[u32; 2]>,
    htax: htax::Htax,
    info: info::Info,
    snq: snq::Snq,
    queues: [bq::BufferQueues; 2],
    wcbuf: [wcbuf::WcBuf; 2],
    flight: wcflight::Flight,
    lines: wclines::Lines,
    velo: velo::Velo,
    rma: rma::Rma,
    atu: atu::Atu,
    smfu: smfu::Smfu,
    bridge: bridge::Bridge,
    held: held::Held,
    tx: tx::Tx,
    counters: Counters,
    dma_accesses: u32,
    diagnostics: DiagnosticLimit,
}

/// Rate limit of diagnostics: a burst, then ten per second.
#[derive(Default)]
struct DiagnosticLimit {
    spent: u32,
    since_ns: u64,
}

impl DiagnosticLimit {
    const BURST: u32 = 32;
    const REFILL_NS: u64 = 100_000_000;

    fn allow(&mut self, now_ns: u64) -> bool {
        let refill = now_ns.saturating_sub(self.since_ns) / Self::REFILL_NS;
        if refill > 0 {
            self.spent = self
                .spent
                .saturating_sub(u32::try_from(refill).unwrap_or(u32::MAX));
            self.since_ns = now_ns;
        }
        self.spent < Self::BURST && {
            self.spent += 1;
            true
        }
    }
}

impl Nic {
    /// Returns a NIC after power-on, without bus mastering and with BAR addresses 0.
    pub fn new(cfg: NicConfig) -> Self {
        let mut nic = Self {
            storage: regmap::Storage::new(),
            net: None,
            bars: [0; 6],
            bus_master: false,
            bus_limits: None,
            htax: htax::Htax::default(),
            info: info::Info::default(),
            snq: snq::Snq::new(&cfg),
            queues: [
                bq::BufferQueues::new(Unit::Velo),
                bq::BufferQueues::new(Unit::Rma),
            ],
            wcbuf: [wcbuf::WcBuf::default(), wcbuf::WcBuf::default()],
            flight: wcflight::Flight::new(&cfg),
            lines: wclines::Lines::new(&cfg),
            velo: velo::Velo::default(),
            rma: rma::Rma::new(&cfg),
            atu: atu::Atu::new(&cfg),
            smfu: smfu::Smfu::default(),
            bridge: bridge::Bridge::default(),
            held: held::Held::default(),
            tx: tx::Tx::default(),
            counters: Counters::default(),
            dma_accesses: 0,
            diagnostics: DiagnosticLimit::default(),
            cfg,
        };
        nic.set_reset_values();
        nic
    }

    /// Installs the implementation of the network registers. Without it, the NIC only stores their
    /// values.
    pub fn set_network_regs(&mut self, regs: Box<dyn NetworkRegs>) {
        self.net = Some(regs);
    }

    /// Sets the counter in which the fabric counts the bytes that packets of this NIC's SMFU occupy
    /// in the network and at their destinations.
    pub fn set_smfu_in_flight(&mut self, bytes: std::rc::Rc<std::cell::Cell<u64>>) {
        self.smfu.in_flight = bytes;
    }

    /// Shares the numbers of waiting messages with the other NICs of the fabric, for
    /// [`Faults::wcbuf_retry_waiting`].
    pub fn set_pressure(&mut self, pressure: Pressure) {
        self.tx.pressure = pressure;
    }

    /// Restarts all random number generators with `seed`.
    pub fn reseed(&mut self, seed: u64) {
        self.cfg.seed = seed;
        self.flight.reseed(seed);
        self.lines.reseed(seed);
        self.rma.engine.reseed(seed);
        self.atu.reseed(seed);
        self.snq.reseed(seed);
    }

    /// Returns the options of this NIC. `faults` contains the current faults.
    pub fn config(&self) -> &NicConfig {
        &self.cfg
    }

    /// Returns the current node ID (register field `info_rf node.id`). Software may change it at
    /// any time.
    pub fn node_id(&self) -> NodeId {
        NodeId(self.info.node_id())
    }

    /// Returns the network state in scratchpad 3: 0 unconfigured, 1 running, 2 stopped (HW §4.3).
    pub fn network_state(&self) -> u64 {
        self.info.network_state()
    }

    /// Returns the counters of the NIC.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Sets the bus address of a BAR (0, 2 or 4). HTAX intervals contain such addresses (HW §5).
    pub fn set_bar_address(&mut self, bar: u8, addr: u64) {
        if let Some(base) = self.bars.get_mut(usize::from(bar)) {
            *base = addr;
        }
    }

    /// Sets the bus-master enable bit of the PCI command register. While it is 0, all DMA accesses
    /// and interrupts are dropped (G34).
    pub fn set_bus_master(&mut self, on: bool) {
        self.bus_master = on;
    }

    /// Sets the maximum payload size and the maximum read request size of the configuration space,
    /// in bytes. Software writes both to registers of the chip, too (HW §3.5).
    pub fn set_bus_limits(&mut self, payload: u32, read_request: u32) {
        self.bus_limits = Some([payload, read_request]);
    }

    /// Replaces the injected faults. Queues that are no longer forced full deliver the messages on
    /// hold. Write-combining buffers that are no longer stuck execute their descriptors.
    pub fn set_faults(&mut self, faults: Faults, env: &mut Env<'_>) {
        let release = self.cfg.faults.queue_full != faults.queue_full;
        if self.cfg.faults.atu_fault_every != faults.atu_fault_every {
            self.atu.translations = 0;
        }
        if self.cfg.faults.lose_inner_every != faults.lose_inner_every {
            self.rma.inner = 0;
        }
        if self.cfg.faults.atu_lose_every != faults.atu_lose_every {
            self.atu.answers = 0;
        }
        let unstick = self.cfg.faults.wcbuf_stuck && !faults.wcbuf_stuck;
        self.cfg.faults = faults;
        if self.cfg.faults.atu_delay_ns.is_none() {
            self.atu_run(self.atu.waiting(), env);
        }
        if unstick {
            self.wcbuf_unstick(env);
        }
        if release {
            self.release_all(env);
        }
        self.settle(env);
    }

    /// Replaces the faults of a chip without power. Such a chip has no messages or descriptors to
    /// release.
    pub fn preset_faults(&mut self, faults: Faults) {
        self.cfg.faults = faults;
    }

    /// Executes a load of the host from BAR `bar` at `offset`, with any length and alignment. After
    /// [`Load::Pending`], some of the data arrives over the network, and [`Nic::finish_load`]
    /// returns the result. Only one load is in progress at a time; a new load replaces it.
    pub fn mmio_read(&mut self, bar: u8, offset: u64, data: &mut [u8], env: &mut Env<'_>) -> Load {
        self.counters.mmio_reads = self.counters.mmio_reads.wrapping_add(1);
        if self.cfg.faults.deaf {
            data.fill(0xFF);
            return Load::Done;
        }
        self.requester_tick(env);
        let pending = self.host_read(bar, offset, data, env);
        self.settle(env);
        if pending {
            Load::Pending
        } else {
            Load::Done
        }
    }

    /// Executes a store of the host to BAR `bar` at `offset`, with any length and alignment.
    pub fn mmio_write(&mut self, bar: u8, offset: u64, data: &[u8], env: &mut Env<'_>) {
        self.counters.mmio_writes = self.counters.mmio_writes.wrapping_add(1);
        if self.cfg.faults.deaf {
            return;
        }
        self.requester_tick(env);
        self.host_write(bar, offset, data, env);
        self.settle(env);
    }

    /// Processes a packet that arrives at this node's network port `pkt.port`.
    pub fn receive(&mut self, pkt: Packet, env: &mut Env<'_>) {
        self.receive_for(pkt, None, env);
    }

    /// Processes a packet. The sender's credit returns when the packet has been stored or dropped.
    /// The caller should hold back packets of lanes that the NIC does not accept now
    /// ([`Nic::takes`]).
    pub fn receive_for(&mut self, pkt: Packet, receipt: Option<Receipt>, env: &mut Env<'_>) {
        self.tx.receipt = receipt;
        let (stores, _) = env.host.device_writes();
        self.deliver(pkt, env);
        self.hold_credit(stores, env);
        self.tx.receipt = None;
        self.settle(env);
    }

    /// Runs the timers that are due at `now_ns`, and resumes work that waited for network credit.
    /// Returns the time of the next deadline. Every other call may change the deadline, so the
    /// caller must read it again after each call.
    pub fn tick(&mut self, now_ns: u64, env: &mut Env<'_>) -> Option<u64> {
        self.timer_tick(now_ns);
        self.requester_tick(env);
        self.expire_holds(now_ns, env);
        self.atu_tick(now_ns, env);
        self.smfu_expire(now_ns, env);
        self.bridge_tick(now_ns, env);
        self.settle(env);
        self.next_deadline()
    }

    /// Returns the time of the next deadline for [`Nic::tick`].
    pub fn next_deadline(&self) -> Option<u64> {
        let holds = [Unit::Velo, Unit::Rma].map(|unit| self.hold_deadline(unit));
        let holds = holds.into_iter().flatten();
        let others = [
            self.info.next_fire(),
            self.atu.next_due(),
            self.rma.engine.next_due(),
            self.snq.next_due(),
            self.smfu.next_deadline(),
            self.bridge.next_deadline(),
            self.flight.next_due(),
            self.lines.next_due(),
        ];
        others.into_iter().flatten().chain(holds).min()
    }

    /// Returns true while packets remain to be sent, because transfers exceeded the limit of a call
    /// or because network credit is missing. The caller must call [`Nic::tick`] when there is
    /// credit and all earlier packets are in flight.
    pub fn tx_waiting(&self) -> bool {
        !self.tx.is_empty() || self.rma.engine.is_ready()
    }

    /// Reads a register as management software does over the network.
    pub fn reg_peek(&mut self, offset: u32, env: &mut Env<'_>) -> u64 {
        self.rf_read(offset & !7, Accessor::Management, env)
    }

    /// Writes a register as management software does over the network, with all side effects.
    pub fn reg_poke(&mut self, offset: u32, value: u64, env: &mut Env<'_>) {
        self.rf_write(offset & !7, value, Accessor::Management, env);
        self.settle(env);
    }

    /// Raises a trigger event on behalf of the environment, for example 13, 14, 16, 17 or 20 for
    /// the network.
    pub fn raise_event(&mut self, te: Te, env: &mut Env<'_>) {
        self.raise(te);
        self.settle(env);
    }

    /// Sets registers as the unit does that owns them, then raises a trigger event. If a register
    /// does not keep its value, returns its offset and raises no event.
    pub fn report_event(
        &mut self,
        te: Te,
        registers: &[(u32, u64)],
        env: &mut Env<'_>,
    ) -> Option<u32> {
        for &(offset, value) in registers {
            self.storage.set_at(offset, value);
            if self.rf_value(offset, Accessor::Management, env) != Some(value) {
                return Some(offset);
            }
        }
        self.raise_event(te, env);
        None
    }

    /// Fills a slot of a queue with words that the chip would not write. In a mailbox, they are the
    /// status quadword and the quadword before it; in a notification queue, they are the
    /// notification.
    pub fn forge_slot(&mut self, unit: QueueUnit, vpid: u8, words: [u64; 2], env: &mut Env<'_>) {
        let item = match unit {
            QueueUnit::Velo => bq::Item::Slot(words),
            QueueUnit::Rma => bq::Item::Notification(words, true),
        };
        self.queue_put(unit.into(), vpid, item, env);
        self.settle(env);
    }

    /// Resets the chip. All operations in progress inside the chip are lost.
    pub fn reset(&mut self, kind: ResetKind, env: &mut Env<'_>) {
        let sending = self.tx.len() + self.rma.engine.len() + self.flight.len();
        let lost = sending + self.queues.iter().map(|q| q.holding()).sum::<usize>();
        self.counters.drops.reset = self.counters.drops.reset.wrapping_add(lost as u64);
        self.withdraw_pressure();
        let keep = kind == ResetKind::FunctionLevel && self.cfg.flr_scope == FlrScope::KeepNetwork;
        let info = std::mem::take(&mut self.info);
        let pressure = std::mem::take(&mut self.tx.pressure);
        self.htax = htax::Htax::default();
        self.snq = snq::Snq::new(&self.cfg);
        for q in &mut self.queues {
            q.reset();
        }
        self.wcbuf = Default::default();
        self.flight = wcflight::Flight::new(&self.cfg);
        self.lines = wclines::Lines::new(&self.cfg);
        self.velo = velo::Velo::default();
        self.rma = rma::Rma::new(&self.cfg);
        self.atu = atu::Atu::new(&self.cfg);
        self.smfu.reset();
        self.bridge.reset();
        self.held = held::Held::default();
        self.tx = tx::Tx::default();
        self.tx.pressure = pressure;
        self.storage
            .clear(|offset| keep && regs::is_network(offset));
        if kind == ResetKind::PowerOn {
            self.counters = Counters::default();
        }
        self.counters.velo.holding = 0;
        self.counters.rma.holding = 0;
        self.counters.atu.cached = 0;
        self.counters.atu.waiting = 0;
        self.counters.smfu.outstanding = 0;
        self.set_reset_values();
        if keep {
            self.info = info.kept();
        } else if let Some(net) = &mut self.net {
            net.reset();
        }
        let _ = env;
    }

    /// Sets the registers that have a reset value other than 0 (G2).
    fn set_reset_values(&mut self) {
        self.info = info::Info::new(&self.cfg);
        let link = pcie::NwlGeneral0::default()
            .with_phy_layer_up(true)
            .with_dl_layer_up(true)
            .with_ltssm_state(LTSSM_L0)
            .with_current_link_speed(3)
            .with_link_width(16);
        self.storage.set_at(pcie::NWL_GENERAL0.0, link.raw());
    }

    /// Runs the work that an access or packet has triggered.
    #[inline]
    fn settle(&mut self, env: &mut Env<'_>) {
        if self.holds_credit() {
            self.stores_ended(env);
        }
        if !self.tx.is_empty() {
            self.run_tx(env);
        }
        if !self.rma.engine.is_idle() {
            self.run_rma(env);
        }
        if self.bridge.is_ready() {
            self.run_bridge(env);
        }
        if self.snq.is_ready() {
            self.run_snq(env);
        }
    }

    fn deliver(&mut self, pkt: Packet, env: &mut Env<'_>) {
        self.counters.packets_received = self.counters.packets_received.wrapping_add(1);
        self.rma.engine.pace();
        let stream = pkt.stream();
        self.tx.stream = stream;
        if let Some(stream) = stream {
            env.host.enter(stream);
        }
        match pkt.body {
            Body::Velo(message) => self.velo_receive(message, env),
            Body::Rma(message) => self.rma_receive(pkt.src.0, pkt.tc, *message, env),
            Body::Smfu(message) => self.smfu_receive(pkt.src.0, *message, env),
        }
        self.tx.stream = None;
        if stream.is_some() {
            env.host.leave();
        }
    }

    /// Counts and reports a wrong value that software wrote to a set-up register.
    fn bad_setup(&mut self, env: &mut Env<'_>, text: impl FnOnce() -> String) {
        self.counters.bad_setup = self.counters.bad_setup.wrapping_add(1);
        self.diagnose(env, text);
    }

    /// Counts and reports an error of software.
    fn diagnose(&mut self, env: &mut Env<'_>, text: impl FnOnce() -> String) {
        self.counters.diagnostics = self.counters.diagnostics.wrapping_add(1);
        if self.diagnostics.allow(env.host.now_ns()) {
            env.trace.event(TraceEvent::Diagnostic(&text()));
        }
    }
}

/// Code for the link state of an idle link that is up. The value is arbitrary (G2).
const LTSSM_L0: u8 = 0x11;
