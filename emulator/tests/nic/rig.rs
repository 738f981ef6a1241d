//! A rig of NICs for tests, with hosts in memory and a network that delivers immediately.

use extoll_emulator::env::{
    Accessor, Dest, DmaFault, Env, Host, NetPort, Packet, Trace, TraceEvent,
};
use extoll_emulator::nic::{Load, Nic, NicConfig};
use std::collections::VecDeque;
use wire::bq::{DcqBase, SegmentDesc, SlotCode, WritePointers};
use wire::ids::{BusAddr, RegOffset, Unit, Vpid};
use wire::regs::{self, BqRegs};
use wire::rma::{Descriptor, Notification, PageOptions};
use wire::snq::{Entry, Ring, TriggerMask, ENTRY_BYTES, TOURMALET};
use wire::velo::{SlotSize, Status};

/// Bus address of BAR 0.
pub const BAR0: u64 = 0x38_0000_0000;
pub const BAR2: u64 = 0x39_0000_0000;
pub const BAR2_SIZE: u64 = 0x1000_0000;
const RAM: usize = 48 << 20;
/// Address of the SNQ ring in host memory.
pub const RING: u64 = 0x10_0000;
pub const RING_ENTRIES: u16 = 256;

/// Size in bytes of the intervals of [`Rig::smfu_interval`].
pub const WINDOW: u64 = 1 << 20;

/// Returns the offset in BAR 2 of interval `k` of [`Rig::smfu_interval`].
pub fn window(k: u32) -> u64 {
    0x0200_0000 + u64::from(k) * WINDOW
}

/// First address of another device of the host.
pub const PEER: u64 = 0x7A_0000_0000;
const PEER_BYTES: u64 = 1 << 20;

/// Memory of a host.
pub struct Ram {
    /// Pending reads of other devices: number, address and length in bytes.
    pub asked: Vec<(u64, u64, usize)>,
    last_asked: u64,
    pub bytes: Vec<u8>,
    pub msi: u32,
    pub now: u64,
    free: u64,
}

impl Ram {
    fn range(&self, addr: u64, len: usize) -> Result<std::ops::Range<usize>, DmaFault> {
        let fault = DmaFault { addr, len };
        let start = usize::try_from(addr).map_err(|_| fault)?;
        let end = start.checked_add(len).ok_or(fault)?;
        (end <= self.bytes.len()).then_some(start..end).ok_or(fault)
    }

    /// Allocates zeroed memory that begins at a page boundary.
    pub fn alloc(&mut self, len: u64) -> u64 {
        let at = self.free;
        self.free += len.div_ceil(4096) * 4096;
        assert!(
            self.free <= self.bytes.len() as u64,
            "test host out of memory"
        );
        at
    }

    pub fn qw(&self, addr: u64) -> u64 {
        let at = addr as usize;
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("8 bytes"))
    }

    pub fn set_qw(&mut self, addr: u64, value: u64) {
        self.put(addr, &value.to_le_bytes());
    }

    pub fn put(&mut self, addr: u64, data: &[u8]) {
        self.bytes[addr as usize..addr as usize + data.len()].copy_from_slice(data);
    }

    pub fn get(&self, addr: u64, len: usize) -> &[u8] {
        &self.bytes[addr as usize..addr as usize + len]
    }
}

impl Host for Ram {
    fn dma_read(&mut self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        let range = self.range(addr, buf.len())?;
        buf.copy_from_slice(&self.bytes[range]);
        Ok(())
    }

    fn begin_load(&mut self, addr: u64, len: usize) -> Result<Option<u64>, DmaFault> {
        if !(PEER..PEER + PEER_BYTES).contains(&addr) {
            return Ok(None);
        }
        self.last_asked += 1;
        self.asked.push((self.last_asked, addr, len));
        Ok(Some(self.last_asked))
    }

    fn peek(&mut self, addr: u64, buf: &mut [u8]) -> bool {
        self.dma_read(addr, buf).is_ok()
    }

    fn dma_write(&mut self, addr: u64, data: &[u8]) -> Result<(), DmaFault> {
        let range = self.range(addr, data.len())?;
        self.bytes[range].copy_from_slice(data);
        Ok(())
    }

    fn msi(&mut self, vector: u16) {
        assert_eq!(vector, 0);
        self.msi += 1;
    }

    fn now_ns(&self) -> u64 {
        self.now
    }
}

/// Receiver of the trace of a NIC.
#[derive(Default)]
pub struct Log {
    pub on: bool,
    /// Register accesses of the host: true for a write, offset and value.
    pub regs: Vec<(bool, u32, u64)>,
    pub diagnostics: Vec<String>,
}

impl Trace for Log {
    fn enabled(&self) -> bool {
        self.on
    }

    fn event(&mut self, event: TraceEvent<'_>) {
        match event {
            TraceEvent::RegWrite {
                by: Accessor::Host,
                offset,
                value,
            } => self.regs.push((true, offset, value)),
            TraceEvent::RegRead {
                by: Accessor::Host,
                offset,
                value,
            } => self.regs.push((false, offset, value)),
            TraceEvent::Diagnostic(text) => self.diagnostics.push(text.to_owned()),
            _ => {}
        }
    }
}

/// A host with its NIC.
pub struct Node {
    pub nic: Nic,
    pub ram: Ram,
    pub log: Log,
    pub ring: Option<Ring>,
}

/// All nodes and the network between them.
pub struct Rig {
    pub nodes: Vec<Node>,
    pub wire: VecDeque<Packet>,
    /// Port and traffic class of every delivered packet.
    pub carried: Vec<(NetPort, u8)>,
    /// Network credit in bytes at the start of each call.
    pub credit: u64,
    /// True to keep packets in `wire` until [`Rig::pump`] is called.
    pub hold_wire: bool,
    /// True to continue transfers only in [`Rig::tick`].
    pub hold_transfers: bool,
}

impl Rig {
    /// Creates NICs with node IDs 0, 1, and so on, with bus mastering enabled and BARs mapped.
    pub fn new(n: u16) -> Self {
        Self::with_config(n, NicConfig::default())
    }

    pub fn with_config(n: u16, cfg: NicConfig) -> Self {
        let node = |id| {
            let mut nic = Nic::new(NicConfig {
                node_id: id,
                seed: cfg.seed + (u64::from(id) << 32),
                ..cfg.clone()
            });
            nic.set_bar_address(0, BAR0);
            nic.set_bar_address(2, BAR2);
            nic.set_bus_master(true);
            let ram = Ram {
                asked: Vec::new(),
                last_asked: 0,
                bytes: vec![0; RAM],
                msi: 0,
                now: 1_000,
                free: 0x20_0000,
            };
            Node {
                nic,
                ram,
                log: Log::default(),
                ring: None,
            }
        };
        Self {
            nodes: (0..n).map(node).collect(),
            wire: VecDeque::new(),
            carried: Vec::new(),
            credit: u64::MAX,
            hold_wire: false,
            hold_transfers: false,
        }
    }

    /// Creates NICs on which the driver's probe sequence has run.
    pub fn probed(n: u16, slots: SlotSize) -> Self {
        let mut rig = Self::new(n);
        rig.probe_all(slots);
        rig
    }

    pub fn probe_all(&mut self, slots: SlotSize) {
        for i in 0..self.nodes.len() {
            super::probe::probe(self, i, slots);
        }
    }

    /// Calls `f` with a NIC, then delivers the packets that the NIC has sent.
    pub fn with<R>(&mut self, i: usize, f: impl FnOnce(&mut Nic, &mut Env<'_>) -> R) -> R {
        let node = &mut self.nodes[i];
        let mut env = Env {
            host: &mut node.ram,
            outbox: &mut self.wire,
            tx_credit: self.credit,
            tx_room: [self.credit; extoll_emulator::lane::LANES],
            trace: &mut node.log,
        };
        let result = f(&mut node.nic, &mut env);
        if !self.hold_wire {
            self.pump();
            self.go_on();
        }
        result
    }

    /// Runs transfers until they end or need more credit.
    fn go_on(&mut self) {
        if self.hold_transfers || self.credit != u64::MAX {
            return;
        }
        let held = std::mem::replace(&mut self.hold_wire, true);
        let waits = |n: &Node| n.nic.tx_waiting();
        while let Some(i) = self.nodes.iter().position(waits) {
            self.tick(i);
            self.pump();
        }
        self.hold_wire = held;
    }

    /// Delivers packets until no packet is left.
    pub fn pump(&mut self) {
        self.pump_some(usize::MAX);
    }

    /// Delivers up to `n` packets.
    pub fn pump_some(&mut self, n: usize) {
        let held = std::mem::replace(&mut self.hold_wire, true);
        for _ in 0..n {
            let Some(packet) = self.wire.pop_front() else {
                break;
            };
            self.carried.push((packet.port, packet.tc));
            let to: Vec<usize> = (0..self.nodes.len())
                .filter(|&i| match packet.dst {
                    Dest::Node(id) => self.nodes[i].nic.node_id() == id,
                    Dest::Group(63) => self.nodes[i].nic.node_id() != packet.src,
                    Dest::Group(_) => false,
                })
                .collect();
            for i in to {
                let packet = packet.clone();
                self.with(i, |nic, env| nic.receive(packet, env));
            }
        }
        self.hold_wire = held;
    }

    pub fn write(&mut self, i: usize, reg: RegOffset, value: u64) {
        self.store(i, 0, reg.0.into(), &value.to_le_bytes());
    }

    pub fn read(&mut self, i: usize, reg: RegOffset) -> u64 {
        let mut raw = [0; 8];
        self.load(i, 0, reg.0.into(), &mut raw);
        u64::from_le_bytes(raw)
    }

    pub fn store(&mut self, i: usize, bar: u8, offset: u64, data: &[u8]) {
        self.with(i, |nic, env| nic.mmio_write(bar, offset, data, env));
    }

    /// Executes a load of the host. Returns true if the load is complete. Answers from the network
    /// arrive immediately, unless `hold_wire` is set.
    pub fn load(&mut self, i: usize, bar: u8, offset: u64, data: &mut [u8]) -> bool {
        match self.with(i, |nic, env| nic.mmio_read(bar, offset, data, env)) {
            Load::Done => true,
            Load::Pending => self.nodes[i].nic.finish_load(data),
        }
    }

    /// Routes interval `k` of 1 MiB to `node`. The interval is at `window(k)`, which is in the
    /// window above the first 32 MiB.
    pub fn smfu_interval(&mut self, i: usize, k: u32, node: u16) {
        use wire::regs::smfu as r;
        let start = BAR2 + window(k);
        self.write(i, r::interval_startaddr(k), start);
        self.write(i, r::interval_endaddr(k), start + WINDOW);
        let control = r::IntervalControl::to_node(wire::ids::NodeId(node));
        self.write(i, r::interval_control(k), control.raw());
    }

    /// Writes a register of another node through the first 32 MiB of the window. [`Rig::smfu_rra`]
    /// selects the node.
    pub fn remote_write(&mut self, i: usize, reg: RegOffset, value: u64) {
        self.store(i, 2, reg.0.into(), &value.to_le_bytes());
    }

    pub fn remote_read(&mut self, i: usize, reg: RegOffset) -> u64 {
        let mut raw = [0; 8];
        assert!(self.load(i, 2, reg.0.into(), &mut raw));
        u64::from_le_bytes(raw)
    }

    /// Routes interval 0 to the registers of `node` (HW §3.6).
    pub fn smfu_rra(&mut self, i: usize, node: u16) {
        use wire::regs::smfu as r;
        let control = r::IntervalControl::to_node(wire::ids::NodeId(node));
        self.write(i, r::interval_control(0), control.raw());
    }

    pub fn tick(&mut self, i: usize) -> Option<u64> {
        let now = self.nodes[i].ram.now;
        self.with(i, |nic, env| nic.tick(now, env))
    }

    /// Stores a VELO message as the driver does, quadword by quadword in ascending order.
    pub fn velo_send(&mut self, i: usize, vpid: u8, descriptor: u64, payload: &[u8]) {
        let page = 0x0200_0000 + 0x20_0000 + u64::from(vpid) * 4096;
        self.store(i, 0, page, &descriptor.to_le_bytes());
        let mut padded = payload.to_vec();
        padded.resize(payload.len().div_ceil(8) * 8, 0);
        for (k, qw) in padded.chunks_exact(8).enumerate() {
            self.store(i, 0, page + 8 + 8 * k as u64, qw);
        }
    }

    /// Posts an RMA descriptor.
    pub fn rma_post(&mut self, i: usize, vpid: u8, options: PageOptions, d: &Descriptor) {
        self.rma_raw(i, vpid, options, d.encode().expect("descriptor"));
    }

    pub fn rma_raw(&mut self, i: usize, vpid: u8, options: PageOptions, words: [u64; 3]) {
        let page = 0x0400_0000 + (u64::from(options.index()) << 20) + u64::from(vpid) * 4096;
        for (k, word) in (0..).zip(words) {
            self.store(i, 0, page + 8 * k, &word.to_le_bytes());
        }
    }

    /// Creates a queue with the steps of HW §7 in order.
    pub fn create_queue(
        &mut self,
        i: usize,
        unit: Unit,
        vpid: u8,
        slot: SlotCode,
        segments: u32,
        per_segment: u32,
    ) -> Queue {
        let ram = &mut self.nodes[i].ram;
        let dcq = ram.alloc(4096);
        let bytes = u64::from(per_segment * slot.bytes());
        let mut bases = Vec::new();
        for k in 0..segments {
            let base = ram.alloc(bytes);
            let desc = SegmentDesc {
                slot,
                slots: per_segment,
                base: BusAddr(base),
            };
            ram.set_qw(
                dcq + 8 * u64::from(k),
                desc.encode().expect("segment").raw(),
            );
            bases.push(base);
        }
        let desc = |k: usize| SegmentDesc {
            slot,
            slots: per_segment,
            base: BusAddr(bases[k]),
        };
        let first = desc(0).encode().expect("segment").with_valid(true);
        let next = desc(bases.len().min(2) - 1)
            .encode()
            .expect("segment")
            .with_valid(true);
        let base = DcqBase {
            segments,
            page: BusAddr(dcq),
        }
        .encode()
        .expect("page");
        let r = BqRegs(unit);
        let v = Vpid::from(vpid);
        self.write(i, r.ub(v), u64::from(segments * per_segment - 1));
        self.write(i, r.dcq_base_dcq_ub(v), base.raw());
        self.write(
            i,
            r.wp_lwp_dcq_rp(v),
            WritePointers::initial(segments).raw(),
        );
        self.write(i, r.rp(v), 0x1_0000_0000);
        self.write(i, r.c_base_size_valid(v), first.raw());
        self.write(i, r.n_base_size_valid(v), next.raw());
        Queue {
            node: i,
            unit,
            vpid,
            slot,
            per_segment,
            bases,
            read: 0,
        }
    }

    /// Opens a VELO VPID. Its mailbox has `segments` segments of `per_segment` slots.
    pub fn open_velo(
        &mut self,
        i: usize,
        vpid: u8,
        slots: SlotSize,
        segments: u32,
        per_segment: u32,
    ) -> Queue {
        let q = self.create_queue(i, Unit::Velo, vpid, slots.into(), segments, per_segment);
        let at = regs::velo::comp_prot_desc(Vpid::from(vpid));
        let value = self.read(i, at);
        self.write(i, at, value | (1 << 17));
        q
    }

    /// Opens an RMA VPID. Its notification queue has `segments` segments of `per_segment` slots.
    pub fn open_rma(&mut self, i: usize, vpid: u8, segments: u32, per_segment: u32) -> Queue {
        self.write(
            i,
            regs::rma::vpid_table(Vpid::from(vpid)),
            regs::rma::VPID_ENABLED,
        );
        self.create_queue(i, Unit::Rma, vpid, SlotCode::B16, segments, per_segment)
    }

    /// Pops the next message of a mailbox. Does not write the read pointer.
    pub fn velo_take(&mut self, q: &mut Queue) -> Option<(Status, Vec<u8>)> {
        let size = if q.slot == SlotCode::B128 {
            SlotSize::B128
        } else {
            SlotSize::B64
        };
        let ram = &self.nodes[q.node].ram;
        let status = ram.qw(q.addr(q.read) + u64::from(size.status_offset()));
        let status = Status::decode(status).expect("valid status")?;
        let mut data = vec![0; status.len.into()];
        for part in size.parts(status.len) {
            let base = q.addr(q.read + u32::from(part.slot));
            let from = self.nodes[q.node]
                .ram
                .get(base + u64::from(part.slot_offset), part.len.into());
            data[part.message_offset.into()..][..part.len.into()].copy_from_slice(from);
        }
        for k in 0..size.slots_for(status.len) {
            let at = q.addr(q.read + k) + u64::from(size.status_offset());
            let word = self.nodes[q.node].ram.qw(at);
            assert_eq!(
                (word >> 48) & 0xFFF,
                u64::from(status.len),
                "status of slot {k}"
            );
            self.nodes[q.node].ram.set_qw(at, 0);
        }
        q.read = (q.read + size.slots_for(status.len)) % q.total();
        Some((status, data))
    }

    /// Pops the next notification. Does not write the read pointer.
    pub fn rma_take(&mut self, q: &mut Queue) -> Option<[u64; 2]> {
        let words = self.rma_take_raw(q)?;
        assert!(Notification::decode(words).is_ok());
        Some(words)
    }

    /// Pops the next notification like `rma_take`. The notification may contain an unknown command.
    pub fn rma_take_raw(&mut self, q: &mut Queue) -> Option<[u64; 2]> {
        let at = q.addr(q.read);
        let ram = &mut self.nodes[q.node].ram;
        let words = [ram.qw(at), ram.qw(at + 8)];
        if words[1] == 0 {
            return None;
        }
        ram.set_qw(at + 8, 0);
        q.read = (q.read + 1) % q.total();
        Some(words)
    }

    /// Pops all notifications.
    pub fn rma_drain(&mut self, q: &mut Queue) -> Vec<[u64; 2]> {
        std::iter::from_fn(|| self.rma_take(q)).collect()
    }

    /// Pops all notifications like `rma_drain`. The notifications may contain unknown commands.
    pub fn rma_drain_raw(&mut self, q: &mut Queue) -> Vec<[u64; 2]> {
        std::iter::from_fn(|| self.rma_take_raw(q)).collect()
    }

    /// Writes the read pointer to the NIC, and arms the interrupt if `retrigger` is true.
    pub fn commit(&mut self, q: &Queue, retrigger: bool) {
        let value = u64::from(q.read) | (u64::from(retrigger) << 32);
        self.write(q.node, BqRegs(q.unit).rp(Vpid::from(q.vpid)), value);
    }

    /// Starts the SNQ with the steps of HW §3.1 and the driver's SNQ programs.
    pub fn start_snq(&mut self, i: usize, entries: u16) {
        use wire::regs::snq as r;
        self.write(i, r::EXECUTE, 0);
        self.nodes[i]
            .ram
            .put(RING, &vec![0; usize::from(entries) * ENTRY_BYTES]);
        self.write(i, r::QUEUE_MSLT, u64::from(entries - 1));
        self.write(i, r::QUEUE_BALT, RING >> 10);
        let wp = self.read(i, r::QUEUE_WPLT) as u16;
        let ring = Ring::new(entries, wp).expect("ring");
        for k in 0..entries {
            let at = RING + u64::from(k) * ENTRY_BYTES as u64 + 56;
            let header = ring.blank(k).raw().to_le_bytes();
            self.nodes[i].ram.put(at, &header);
        }
        self.write(i, r::QUEUE_RPLT, ring.rplt().into());
        self.write(i, r::IRQ_WATERMARK, ring.watermark().raw());
        for (pc, word) in (0..).zip(TOURMALET.words()) {
            self.write(i, r::program_ram(pc), *word);
        }
        self.write(i, r::TRIGGER_ENABLE, TriggerMask::DEFAULT.raw());
        self.write(i, r::IRQ_0, r::IRQ_0_INIT);
        self.write(i, r::IRQ_1, r::IRQ_1_INIT);
        self.write(i, r::IRQ_2, r::IRQ_2_INIT);
        self.write(i, r::HTAX, r::HTAX_INIT);
        self.write(i, r::EXECUTE, 1);
        self.nodes[i].ring = Some(ring);
    }

    /// Pops the next entry of the SNQ ring, without acknowledging it.
    pub fn snq_take(&mut self, i: usize) -> Option<Entry> {
        let node = &mut self.nodes[i];
        let ring = node.ring.as_mut().expect("started");
        let at = RING + u64::from(ring.next()) * ENTRY_BYTES as u64;
        let raw: [u8; ENTRY_BYTES] = node.ram.get(at, ENTRY_BYTES).try_into().expect("entry");
        let entry = Entry::from_bytes(&raw);
        ring.is_valid(entry.header).then(|| {
            ring.consume();
            entry
        })
    }

    /// Acknowledges all popped entries and arms the interrupt again.
    pub fn snq_ack(&mut self, i: usize) {
        use wire::regs::snq as r;
        let ring = *self.nodes[i].ring.as_ref().expect("started");
        self.write(i, r::QUEUE_RPLT, ring.rplt().into());
        self.write(i, r::IRQ_WATERMARK, ring.watermark().raw());
    }

    /// Acts as the interrupt handler: pops all entries, then acknowledges them.
    pub fn snq_handle(&mut self, i: usize) -> Vec<Entry> {
        let entries = std::iter::from_fn(|| self.snq_take(i)).collect();
        self.snq_ack(i);
        entries
    }

    /// Returns the number of MSI messages since the last call.
    pub fn msis(&mut self, i: usize) -> u32 {
        std::mem::take(&mut self.nodes[i].ram.msi)
    }
}

/// A buffer queue as software sees it.
pub struct Queue {
    pub node: usize,
    pub unit: Unit,
    pub vpid: u8,
    pub slot: SlotCode,
    pub per_segment: u32,
    pub bases: Vec<u64>,
    /// Index of the next slot to read.
    pub read: u32,
}

impl Queue {
    pub fn total(&self) -> u32 {
        self.per_segment * self.bases.len() as u32
    }

    /// Returns the address of a slot. An index beyond the last slot wraps.
    pub fn addr(&self, index: u32) -> u64 {
        let index = index % self.total();
        let base = self.bases[(index / self.per_segment) as usize];
        base + u64::from(index % self.per_segment * self.slot.bytes())
    }
}

/// Returns bytes that depend on `seed`.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(seed ^ 0x9E37_79B9_7F4A_7C15);
    (0..len).map(|_| rng.next() as u8).collect()
}

/// Random number generator (xorshift64*).
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}
