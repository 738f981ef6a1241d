//! A minimal driver of VPID 254: messages, GETs, notifications.

use crate::fabric::{Fabric, MEMORY};
use anyhow::{Context, Result};
use protocol::TransportError;
use wire::bq::{DcqBase, General, Rp, SegmentDesc, SlotCode, WritePointers};
use wire::eth::{self, VPID};
use wire::htax::{BAR0_RMA, BAR0_VELO};
use wire::ids::{BusAddr, NodeId, Unit};
use wire::regs::{np, rma as rma_regs, velo as velo_regs, wcbuf, BqRegs};
use wire::rma::{self, Notification, RequesterAddr};
use wire::velo::{self, SlotSize, Status};
use wire::wcbuf::{Credits, State, Verdict};

/// Number of slots of each queue.
const SLOTS: u32 = 512;
/// Start of the queues; buffers follow.
const QUEUES: u64 = MEMORY + 0x2000;
/// Start of the locks for peers: 16 per VPID.
const LOCKS: u64 = MEMORY + 0x1_4000;
/// First bus address behind queues and locks.
pub const FREE: u64 = MEMORY + 0x2_0000;
/// Time in ns after which a slot that stays empty behind the NIC's write pointer is skipped,
/// because its write was lost.
const HOLE_NS: u64 = 100_000_000;

/// A received message.
#[derive(Debug, Clone)]
pub struct Message {
    /// Sender, tags, length.
    pub status: Status,
    /// Payload.
    pub data: Vec<u8>,
}

struct Queue {
    unit: Unit,
    base: u64,
    slot: SlotCode,
    next: u32,
    /// Time at which the next slot was first found empty behind the write pointer.
    hole: Option<u64>,
}

impl Queue {
    fn open(fabric: &mut Fabric, nic: usize, unit: Unit, slot: SlotCode) -> Result<Self> {
        let (base, dcq) = match unit {
            Unit::Velo => (QUEUES, MEMORY),
            Unit::Rma => (QUEUES + 0x1_0000, MEMORY + 0x1000),
        };
        let bytes = u64::from(SLOTS * slot.bytes());
        fabric.fill(nic, base, &vec![0; bytes as usize])?;
        let desc = SegmentDesc {
            slot,
            slots: SLOTS,
            base: BusAddr(base),
        };
        let segment = desc.encode().ok().context("segment")?;
        let segment = segment.with_valid(true).raw();
        let page = DcqBase {
            segments: 1,
            page: BusAddr(dcq),
        };
        let page = page.encode().ok().context("page")?.raw();
        let regs = BqRegs(unit);
        fabric.fill(
            nic,
            dcq,
            &desc.encode().ok().context("segment")?.raw().to_le_bytes(),
        )?;
        for (register, value) in [
            (regs.ub(VPID), u64::from(SLOTS - 1)),
            (regs.dcq_base_dcq_ub(VPID), page),
            (regs.wp_lwp_dcq_rp(VPID), WritePointers::initial(1).raw()),
            (regs.rp(VPID), Rp(0).raw()),
            (regs.c_base_size_valid(VPID), segment),
            (regs.n_base_size_valid(VPID), segment),
        ] {
            fabric.write(nic, register.get(), value);
        }
        let general = fabric.read(nic, regs.general().get());
        fabric.write(
            nic,
            regs.general().get(),
            General(general).with_enable(true).raw(),
        );
        Ok(Self {
            unit,
            base,
            slot,
            next: 0,
            hole: None,
        })
    }

    fn at(&self, slot: u32) -> u64 {
        self.base + u64::from((slot % SLOTS) * self.slot.bytes())
    }

    fn status_at(&self, slot: u32) -> u64 {
        self.at(slot) + u64::from(self.slot.bytes()) - 8
    }

    /// Returns the number of slots that the NIC has written, from the next one on.
    fn ahead(&self, fabric: &mut Fabric, nic: usize) -> u32 {
        let pointers = fabric.read(nic, BqRegs(self.unit).wp_lwp_dcq_rp(VPID).get());
        match pointers {
            u64::MAX => 0,
            pointers => (WritePointers(pointers).lwp() + SLOTS - self.next) % SLOTS,
        }
    }

    /// Skips a slot whose write was lost. Returns true if it did.
    fn skip_hole(&mut self, fabric: &mut Fabric, nic: usize) -> bool {
        let pointers = fabric.read(nic, BqRegs(self.unit).wp_lwp_dcq_rp(VPID).get());
        if pointers == u64::MAX || WritePointers(pointers).lwp() % SLOTS == self.next {
            self.hole = None;
            return false;
        }
        let since = *self.hole.get_or_insert(fabric.now());
        if fabric.now() - since < HOLE_NS {
            return false;
        }
        self.advance(fabric, nic);
        true
    }

    fn advance(&mut self, fabric: &mut Fabric, nic: usize) {
        self.hole = None;
        self.next = (self.next + 1) % SLOTS;
        let rp = Rp(0).with_lrp(self.next).raw();
        fabric.write(nic, BqRegs(self.unit).rp(VPID).get(), rp);
    }
}

/// Port of one node at both units.
pub struct Port {
    nic: usize,
    mailbox: Queue,
    notifications: Queue,
    credits: [Credits; 2],
    /// True if a sender waits for credits.
    refused: bool,
}

impl Port {
    /// Opens the port on a NIC that has booted.
    ///
    /// # Errors
    ///
    /// Fails if the NIC rejects an access.
    pub fn open(fabric: &mut Fabric, nic: usize) -> Result<Self> {
        let init = [
            (np::general(np::VELO).get(), np::GENERAL_INIT_VELO),
            (np::general(np::RMA_COMPLETER).get(), np::GENERAL_INIT),
            (np::general(np::RMA_RESPONDER).get(), np::GENERAL_INIT),
            (velo_regs::COMPLETER.get(), 1 << 9),
            (
                rma_regs::CONFIG.get(),
                rma_regs::Config::for_pcie(128, 512).raw(),
            ),
            (rma_regs::LOCK_BASE.get(), LOCKS),
            (rma_regs::LOCK_CFG.get(), rma_regs::LOCK_CFG_INIT),
            (rma_regs::vpid_table(VPID).get(), rma_regs::VPID_ENABLED),
        ];
        for (register, value) in init {
            fabric.write(nic, register, value);
        }
        let mailbox = Queue::open(fabric, nic, Unit::Velo, SlotCode::B128)?;
        let notifications = Queue::open(fabric, nic, Unit::Rma, SlotCode::B16)?;
        let node = fabric.read(nic, wire::regs::info::NODE.get());
        let source = velo_regs::NodeVpidProtDesc(0)
            .with_tx_nodeid(wire::regs::info::Node(node).id())
            .with_tx_vpid(VPID.get() as u8);
        fabric.write(
            nic,
            velo_regs::node_vpid_prot_desc(VPID).get(),
            source.raw(),
        );
        fabric.write(nic, velo_regs::comp_prot_desc(VPID).get(), 1 << 17);
        let mut port = Self {
            nic,
            mailbox,
            notifications,
            credits: [Credits::new(); 2],
            refused: false,
        };
        for unit in [Unit::Velo, Unit::Rma] {
            port.forget(fabric, unit);
        }
        Ok(port)
    }

    /// Closes the port. The NIC rejects later messages for it.
    pub fn close(self, fabric: &mut Fabric) {
        fabric.write(self.nic, velo_regs::comp_prot_desc(VPID).get(), 0);
        fabric.write(
            self.nic,
            rma_regs::vpid_table(VPID).get(),
            rma_regs::VPID_DISABLED,
        );
    }

    /// Drops commands that the requester has not committed.
    fn forget(&mut self, fabric: &mut Fabric, unit: Unit) {
        let register = wcbuf::state(unit, VPID).get();
        let state = State(fabric.read(self.nic, register));
        fabric.write(self.nic, register, state.fresh().raw());
        self.credits[unit as usize] = Credits::new();
    }

    /// Polls the requesters. Rejected commands are lost.
    pub fn look(&mut self, fabric: &mut Fabric) {
        for unit in [Unit::Velo, Unit::Rma] {
            let state = State(fabric.read(self.nic, wcbuf::state(unit, VPID).get()));
            if let Verdict::Retry { .. } | Verdict::Desync { .. } =
                self.credits[unit as usize].on_state(state)
            {
                self.forget(fabric, unit);
            }
        }
    }

    /// Ensures that a descriptor can be stored.
    ///
    /// # Errors
    ///
    /// Returns `Later` if no credit is available.
    pub fn reserve(&mut self, fabric: &mut Fabric, unit: Unit) -> Result<(), TransportError> {
        if self.credits[unit as usize].room() == 0 {
            self.look(fabric);
        }
        match self.credits[unit as usize].room() {
            0 => {
                self.refused = true;
                Err(TransportError::Later)
            }
            _ => Ok(()),
        }
    }

    fn post(
        &mut self,
        fabric: &mut Fabric,
        unit: Unit,
        page: u64,
        words: &[u64],
    ) -> Result<(), TransportError> {
        self.reserve(fabric, unit)?;
        self.credits[unit as usize]
            .take()
            .ok_or(TransportError::Later)?;
        fabric
            .store(self.nic, page, words)
            .map_err(|_| TransportError::Never)
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// Returns `Later` if no credit is available.
    pub fn send(
        &mut self,
        fabric: &mut Fabric,
        descriptor: velo::Descriptor,
        payload: &[u8],
    ) -> Result<(), TransportError> {
        let mut words = vec![descriptor.encode().map_err(|_| TransportError::Never)?];
        for chunk in payload.chunks(8) {
            let mut raw = [0; 8];
            raw[..chunk.len()].copy_from_slice(chunk);
            words.push(u64::from_le_bytes(raw));
        }
        let page = BAR0_VELO + u64::from(eth::VELO_PAGE.encode());
        self.post(fabric, Unit::Velo, page, &words)
    }

    /// Posts an RMA command.
    ///
    /// # Errors
    ///
    /// Returns `Later` if no credit is available.
    pub fn command(
        &mut self,
        fabric: &mut Fabric,
        page: RequesterAddr,
        descriptor: &rma::Descriptor,
    ) -> Result<(), TransportError> {
        let words = descriptor.encode().map_err(|_| TransportError::Never)?;
        let page = BAR0_RMA + u64::from(page.encode());
        self.post(fabric, Unit::Rma, page, &words)
    }

    /// Returns the next message.
    ///
    /// # Errors
    ///
    /// Fails if memory can't be read.
    pub fn message(&mut self, fabric: &mut Fabric) -> Result<Option<Message>> {
        loop {
            let q = &mut self.mailbox;
            let raw = fabric.word(self.nic, q.status_at(q.next))?;
            if raw == 0 {
                if q.skip_hole(fabric, self.nic) {
                    continue;
                }
                return Ok(None);
            }
            let status = Status::decode(raw).ok().flatten();
            let piece = status.and_then(|s| SlotSize::B128.parts(s.len).next());
            let mut data = vec![0; piece.map_or(0, |p| p.len.into())];
            if let Some(piece) = piece {
                let at = q.at(q.next) + u64::from(piece.slot_offset);
                fabric.load(self.nic, at, &mut data)?;
            }
            fabric.fill(self.nic, q.status_at(q.next), &[0; 8])?;
            q.advance(fabric, self.nic);
            if let Some(status) = status {
                return Ok(Some(Message { status, data }));
            }
        }
    }

    /// Returns the next notification.
    ///
    /// # Errors
    ///
    /// Fails if memory can't be read.
    pub fn notification(&mut self, fabric: &mut Fabric) -> Result<Option<Notification>> {
        loop {
            let q = &mut self.notifications;
            let word1 = fabric.word(self.nic, q.status_at(q.next))?;
            if word1 == 0 {
                if q.skip_hole(fabric, self.nic) {
                    continue;
                }
                return Ok(None);
            }
            let word0 = fabric.word(self.nic, q.at(q.next))?;
            fabric.fill(self.nic, q.status_at(q.next), &[0; 8])?;
            q.advance(fabric, self.nic);
            if let Ok(Some(notification)) = Notification::decode([word0, word1]) {
                return Ok(Some(notification));
            }
        }
    }

    /// Returns the number of unread mailbox slots that the NIC has written.
    pub fn backlog(&self, fabric: &mut Fabric) -> usize {
        self.mailbox.ahead(fabric, self.nic) as usize
    }

    /// Returns true if the NIC has written unread slots, or has credits for a sender that waits for
    /// them.
    pub fn overlooked(&mut self, fabric: &mut Fabric) -> bool {
        let written = [&self.mailbox, &self.notifications]
            .map(|q| q.ahead(fabric, self.nic) > 0)
            .contains(&true);
        let refused = std::mem::take(&mut self.refused);
        if refused {
            self.look(fabric);
        }
        written || refused
    }

    /// Returns the number of its NIC.
    pub fn nic(&self) -> usize {
        self.nic
    }

    /// Returns the node ID of NIC `nic`.
    pub fn node_id(nic: usize) -> NodeId {
        NodeId(nic as u16)
    }
}
