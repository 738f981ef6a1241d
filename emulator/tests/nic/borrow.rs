//! A node that borrows the device behind another NIC. It performs the steps of a driver.

use super::rig::*;
use extoll_emulator::endpoint::{regs as dev, DeviceConfig, Endpoint, TestDevice};
use extoll_emulator::nic::NicConfig;
use wire::ids::{NodeId, Vpid};
use wire::regs::pcie::{self as p, BackdoorControl, BackdoorInfo, PcieToHtocCfg};
use wire::regs::{np, smfu as r};
use wire::rma::{Descriptor, Modifiers, NotifySpec, Operation, PageOptions};
use wire::tlp::{words, Bdf, CfgType, Kind, Status, Tlp};
use wire::velo::SlotSize;

pub const DEVICE: Bdf = Bdf::new(1, 0, 0);
/// Address of the device's BAR on the device's bus. The borrower has chosen it.
pub const BAR: u64 = 0xE000_0000;
/// Bus address of the device that leads to the borrower's memory.
pub const HOME: u64 = 0x10_0000_0000;
/// Bus address of the device that leads to the borrower's interrupt range.
pub const HOME_MSI: u64 = 0x20_0000_0000;
/// Address of memory of the borrower that the device may use.
pub const BUFFER: u64 = 0x100_0000;
/// Number of the interval for the device's BAR. Both nodes use equal numbers.
pub const MMIO: u32 = 1;
pub const MEMORY: u32 = 2;
pub const MSI: u32 = 3;

/// Node 0, which borrows the device behind node 1, and the network between them.
pub struct Borrow {
    pub rig: Rig,
}

impl Borrow {
    pub fn new() -> Self {
        let device = TestDevice::new(DeviceConfig::default());
        Self::with(NicConfig::default(), Box::new(device))
    }

    /// Performs the set-up step, and the borrower's steps that precede the first packet.
    pub fn with(cfg: NicConfig, device: Box<dyn Endpoint>) -> Self {
        let mut rig = Rig::with_config(2, cfg);
        super::probe::probe(&mut rig, 0, SlotSize::B128);
        rig.nodes[1].nic.attach(device);
        rig.nodes[1].nic.set_bus_master(false);
        for n in [np::RMA_COMPLETER, np::RMA_RESPONDER, np::SMFU] {
            rig.write(1, np::general(n), np::GENERAL_INIT);
        }
        // The SMFU of node 1 answers only when it is on. It is therefore switched on through RMA.
        let mut b = Self { rig };
        b.rma_write(r::TRAFFIC_CLASS.0, 0x223);
        b.rma_write(r::STATUS_CONTROL.0, 1);
        b.rig.smfu_rra(0, 1);
        let cfg = PcieToHtocCfg(0).with_regfwd_srctag0(true);
        b.rig.remote_write(0, p::PCIE_TO_HTOC_CFG, cfg.raw());
        b
    }

    /// Writes a register of node 1 by an immediate PUT (HW §13).
    pub fn rma_write(&mut self, offset: u32, value: u64) {
        let vpid = 252;
        let table = wire::regs::rma::vpid_table(Vpid::from(vpid));
        if self.rig.read(0, table) != wire::regs::rma::VPID_ENABLED {
            self.rig.open_rma(0, vpid, 2, 64);
        }
        let d = Descriptor {
            node: NodeId(1),
            vpid: Vpid::from(vpid),
            notify: NotifySpec::from_bits(0),
            modifiers: Modifiers::from_bits(0),
            op: Operation::ImmediatePut {
                len: 8,
                remote: offset.into(),
                value,
            },
        };
        let options = PageOptions {
            rra: true,
            traffic_class: 2,
            ..PageOptions::default()
        };
        self.rig.rma_post(0, vpid, options, &d);
    }

    pub fn inject(&mut self, tlp: Tlp, payload: &[u8]) {
        let packed = words::pack(&tlp, payload).unwrap();
        for (k, word) in (0..).zip(packed.as_slice()) {
            self.rig
                .remote_write(0, p::htoc_to_pcie_backdoor_data(k), *word);
        }
        let control = BackdoorControl(0)
            .with_payload_qw_length(packed.payload_qws())
            .with_send(true);
        self.rig
            .remote_write(0, p::HTOC_TO_PCIE_BACKDOOR_CONTROL, control.raw());
    }

    /// Pops a packet from the backdoor's FIFO.
    pub fn fetch(&mut self) -> Option<(Tlp, Vec<u8>)> {
        let info = BackdoorInfo(self.rig.remote_read(0, p::PCIE_TO_HTOC_BACKDOOR_INFO));
        if !info.valid() {
            return None;
        }
        let raw: Vec<u64> = (0..info.qw_count())
            .map(|_| self.rig.remote_read(0, p::PCIE_TO_HTOC_BACKDOOR_DATA))
            .collect();
        let mut data = vec![0; 128];
        let (tlp, len) = words::unpack(&raw, &mut data).unwrap();
        data.truncate(len);
        Some((tlp, data))
    }

    pub fn config(
        &mut self,
        ty: CfgType,
        target: Bdf,
        register: u16,
        write: Option<(u32, u8)>,
    ) -> (Status, u32) {
        let enables = write.map_or(0xF, |(_, enables)| enables);
        let from = (Bdf(0), 0);
        let kind = Kind::config(write.is_some(), ty, from, target, register, enables);
        let data = write.map(|(value, _)| value.to_le_bytes());
        self.inject(kind.into(), data.as_ref().map_or(&[], |d| &d[..]));
        let (tlp, data) = self.fetch().expect("a completion");
        let Kind::Completion { status, .. } = tlp.kind else {
            panic!("{tlp:?}")
        };
        let value = data.try_into().map_or(u32::MAX, u32::from_le_bytes);
        (status, value)
    }

    pub fn cfg_read(&mut self, register: u16) -> u32 {
        let (status, value) = self.config(CfgType::Type0, DEVICE, register, None);
        assert_eq!(status, Status::Success);
        value
    }

    pub fn cfg_write(&mut self, register: u16, value: u32) {
        let (status, _) = self.config(CfgType::Type0, DEVICE, register, Some((value, 0xF)));
        assert_eq!(status, Status::Success);
    }

    /// Returns the offset of a capability.
    pub fn capability(&mut self, id: u8) -> u16 {
        let mut at = self.cfg_read(0x34) as u16 & 0xFC;
        while at != 0 {
            let word = self.cfg_read(at);
            if word as u8 == id {
                return at;
            }
            at = (word >> 8) as u16 & 0xFC;
        }
        panic!("no capability {id:#x}");
    }

    /// Opens windows in both directions, sets the BAR of the device, and enables its memory
    /// decoding and bus mastering.
    pub fn open(&mut self) {
        let rig = &mut self.rig;
        rig.smfu_interval(0, MMIO, 1);
        rig.write(0, r::vpid_t_start_addr(MEMORY), BUFFER);
        rig.write(0, r::vpid_t_start_addr(MSI), 0xFD_0000_0000);
        rig.remote_write(0, r::vpid_t_start_addr(MMIO), BAR);
        for (k, start, size) in [(MEMORY, HOME, 1 << 20), (MSI, HOME_MSI, 4096)] {
            rig.remote_write(0, r::interval_startaddr(k), start);
            rig.remote_write(0, r::interval_endaddr(k), start + size);
            let control = r::IntervalControl::to_node(NodeId(0));
            rig.remote_write(0, r::interval_control(k), control.raw());
            // The HTAX bridge of node 1 forwards both classes of requests to the SMFU.
            use wire::regs::htax as h;
            rig.remote_write(0, h::intvl_upper(k), (start + size) >> 12);
            rig.remote_write(0, h::intvl_lower(k), (start >> 12) - 1);
            rig.remote_write(0, h::intvl_control(k), 1 | (0x100 << 5) | (3 << 14));
        }
        rig.remote_write(0, wire::regs::htax::GENERAL, 0x8088);
        self.cfg_write(0x10, BAR as u32);
        self.cfg_write(0x14, (BAR >> 32) as u32);
        self.cfg_write(0x04, 6);
    }

    pub fn load(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        assert!(self.rig.load(0, 2, window(MMIO) + offset, &mut data));
        data
    }

    pub fn reg(&mut self, offset: u64) -> u32 {
        u32::from_le_bytes(self.load(offset, 4).try_into().unwrap())
    }

    pub fn set_reg(&mut self, offset: u64, value: u32) {
        self.rig
            .store(0, 2, window(MMIO) + offset, &value.to_le_bytes());
    }

    pub fn dma(&mut self, bus: u64, memory: u32, len: u32, to_bus: bool) -> u32 {
        self.set_reg(dev::DMA_BUS, bus as u32);
        self.set_reg(dev::DMA_BUS + 4, (bus >> 32) as u32);
        self.set_reg(dev::DMA_MEMORY, memory);
        self.set_reg(dev::DMA_LEN, len);
        let direction = if to_bus { dev::DMA_TO_BUS } else { 0 };
        self.set_reg(dev::DMA_CONTROL, dev::DMA_START | direction);
        self.reg(dev::DMA_STATUS)
    }

    /// Enables MSI of the device, with vector 0 at an address that leads to the borrower's
    /// interrupt range.
    pub fn enable_msi(&mut self) {
        let at = self.capability(5);
        self.cfg_write(at + 4, HOME_MSI as u32);
        self.cfg_write(at + 8, (HOME_MSI >> 32) as u32);
        self.cfg_write(at + 12, 0x40);
        self.cfg_write(at, 1 << 16);
        self.set_reg(dev::INT_ENABLE, u32::MAX);
        self.rig.msis(0);
    }
}
