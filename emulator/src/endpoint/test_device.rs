//! The test device: a minimal accelerator for driver tests.
//!
//! It has one function. BAR0 has 1 MiB: 4-byte registers from offset 0 (module [`regs`]), MSI-X
//! table and pending bits, and memory in the upper half. A DMA engine copies between that memory
//! and bus addresses. The device does not model a real product. All kinds except
//! [`DeviceKind::Plain`] behave like broken or malicious devices.

use super::config::Shape;
use super::dma::{Dma, Transfer, FOREIGN_TAG};
use super::function::Function;
use super::{Endpoint, Link, PciePacket};
use extoll_emulator_api::accelerator::{DeviceConfig, DeviceKind};
use wire::tlp::{Kind, Span};

/// Size of BAR0 in bytes.
pub const BAR_SIZE: u64 = 1 << 20;
/// Offset of the MSI-X table in BAR0.
pub const TABLE_OFFSET: u64 = 0x1000;
/// Offset of the MSI-X pending bits in BAR0.
pub const PBA_OFFSET: u64 = 0x1800;
/// Offset of the device memory in BAR0. The memory extends to the end of BAR0.
pub const MEMORY_OFFSET: u64 = BAR_SIZE / 2;

/// Registers, with byte offsets in BAR0.
pub mod regs {
    /// Identification register, which always contains [`ID_VALUE`].
    pub const ID: u64 = 0x00;
    /// Value of the register [`ID`].
    pub const ID_VALUE: u32 = 0x7E57_ACCE;
    /// Register that only stores its value.
    pub const SCRATCH: u64 = 0x08;
    /// Set of pending interrupt reasons. Writing 1 clears a reason.
    pub const INT_STATUS: u64 = 0x0C;
    /// Set of reasons that raise an interrupt.
    pub const INT_ENABLE: u64 = 0x10;
    /// Writing 1 sets a bit of [`INT_STATUS`].
    pub const INT_SET: u64 = 0x14;
    /// Number of the vector of the interrupts, 0…vectors − 1.
    pub const INT_VECTOR: u64 = 0x18;
    /// Number of interrupts that were sent; read only.
    pub const INT_COUNT: u64 = 0x1C;
    /// Bus address of a DMA transfer, low half, followed by the high half.
    pub const DMA_BUS: u64 = 0x20;
    /// Offset of a DMA transfer in the device memory.
    pub const DMA_MEMORY: u64 = 0x28;
    /// Length of a DMA transfer in bytes.
    pub const DMA_LEN: u64 = 0x2C;
    /// Control bits of a DMA transfer: [`DMA_START`] and [`DMA_TO_BUS`].
    pub const DMA_CONTROL: u64 = 0x30;
    /// State of the DMA engine: 0 idle, 1 busy, 2 done, 3 failed; read only.
    pub const DMA_STATUS: u64 = 0x34;
    /// Size of the device memory in bytes; read only.
    pub const MEMORY_SIZE: u64 = 0x38;

    /// Bit in [`DMA_CONTROL`]: starts a transfer. It is ignored while a transfer runs.
    pub const DMA_START: u32 = 1;
    /// Bit in [`DMA_CONTROL`]: the transfer goes from the device memory to the bus. If the bit is
    /// clear, it goes from the bus to the device memory.
    pub const DMA_TO_BUS: u32 = 2;
    /// Bit in [`INT_STATUS`]: a transfer is done.
    pub const INT_DMA_DONE: u32 = 1;
    /// Bit in [`INT_STATUS`]: a transfer failed.
    pub const INT_DMA_FAILED: u32 = 2;
}

/// Returns the addresses that a device of kind [`DeviceKind::Astray`] accesses in addition: the
/// start of memory, interrupt addresses of PCs and NICs, and addresses before, behind and far above
/// its DMA address.
fn astray(bus: u64) -> [u64; 7] {
    [
        0,
        0xFEE0_0000,
        0xFD_0000_0000,
        bus.wrapping_sub(1 << 28) & !3,
        bus.wrapping_add(1 << 28) & !3,
        bus.wrapping_add(1 << 40) & !3,
        u64::MAX & !0xFFF,
    ]
}

/// Number of messages that a device of kind [`DeviceKind::Storm`] sends for one interrupt.
const STORM: u32 = 5000;

/// State of the test device.
pub struct TestDevice {
    cfg: DeviceConfig,
    function: Function,
    regs: [u32; 16],
    memory: Vec<u8>,
    dma: Dma,
    /// True if the device no longer answers configuration requests ([`DeviceKind::Mute`]).
    mute: bool,
}

impl TestDevice {
    /// Returns the device after power-on.
    pub fn new(cfg: DeviceConfig) -> Self {
        let sizes = !(BAR_SIZE - 1);
        let shape = Shape {
            vendor: cfg.vendor,
            device: cfg.device,
            // Class: processing accelerator.
            class: 0x12_0000,
            vectors: cfg.vectors,
            bar: match cfg.kind {
                DeviceKind::Huge => !((1 << 45) - 1),
                DeviceKind::Gap => sizes & !(1 << 30),
                _ => sizes,
            },
            table: TABLE_OFFSET as u32,
            pending: PBA_OFFSET as u32,
            garbage: cfg.kind == DeviceKind::Garbage,
        };
        Self {
            function: Function::new(shape),
            regs: [0; 16],
            memory: vec![0; (BAR_SIZE - MEMORY_OFFSET) as usize],
            dma: Dma::default(),
            mute: false,
            cfg,
        }
    }

    /// Resets all state except the memory and the function's bus, device and function number.
    fn function_reset(&mut self) {
        self.function.reset();
        self.regs = [0; 16];
        self.dma = Dma::default();
    }

    fn reg(&mut self, offset: u64) -> &mut u32 {
        &mut self.regs[(offset / 4) as usize % 16]
    }

    fn read_reg(&mut self, offset: u64) -> u32 {
        match offset {
            regs::ID => regs::ID_VALUE,
            regs::DMA_STATUS => self.dma.status(),
            regs::MEMORY_SIZE => self.memory.len() as u32,
            regs::INT_SET | regs::DMA_CONTROL => 0,
            0..0x40 => *self.reg(offset),
            _ => 0,
        }
    }

    fn write_reg(&mut self, offset: u64, value: u32, link: &mut Link<'_>) {
        match offset {
            regs::INT_STATUS => *self.reg(offset) &= !value,
            regs::INT_SET => self.interrupt(value, link),
            regs::INT_ENABLE => {
                *self.reg(offset) = value;
                let waiting = *self.reg(regs::INT_STATUS);
                self.interrupt(waiting, link);
            }
            regs::DMA_CONTROL if value & regs::DMA_START != 0 => {
                let bus = u64::from(*self.reg(regs::DMA_BUS))
                    | (u64::from(*self.reg(regs::DMA_BUS + 4)) << 32);
                let at = *self.reg(regs::DMA_MEMORY);
                let len = *self.reg(regs::DMA_LEN);
                let inside = u64::from(at) + u64::from(len) <= self.memory.len() as u64;
                let transfer = Transfer {
                    bus,
                    at,
                    len,
                    to_bus: value & regs::DMA_TO_BUS != 0,
                    refused: !inside || !self.function.config().bus_master(),
                };
                if self.cfg.kind == DeviceKind::Astray && self.function.config().bus_master() {
                    self.stray(bus, link);
                }
                if self.dma.start(transfer, self.cfg.dma_timeout_ns) {
                    self.run_dma(link);
                }
            }
            regs::SCRATCH | regs::INT_VECTOR | 0x20..0x30 => *self.reg(offset) = value,
            _ => {}
        }
    }

    fn stray(&mut self, bus: u64, link: &mut Link<'_>) {
        let id = self.function.bdf();
        for at in astray(bus) {
            PciePacket::writes(id, at, &[0xBA; 8]).for_each(|p| link.send(p));
            if let Some(span) = Span::bytes(at, 8) {
                link.send(PciePacket::bare(Kind::MemRead {
                    requester: id,
                    tag: FOREIGN_TAG,
                    span,
                }));
            }
        }
    }

    fn run_dma(&mut self, link: &mut Link<'_>) {
        let (payload, read) = self.function.config().payload_and_read_request();
        let id = self.function.bdf();
        let ended = if self.function.config().bus_master() {
            self.dma.run(id, payload, read, &self.memory, link)
        } else {
            self.dma.fail()
        };
        self.dma_ended(ended, link);
    }

    fn dma_ended(&mut self, ended: Option<bool>, link: &mut Link<'_>) {
        self.mute |= ended == Some(true) && self.cfg.kind == DeviceKind::Mute;
        match ended {
            Some(true) => self.interrupt(regs::INT_DMA_DONE, link),
            Some(false) => self.interrupt(regs::INT_DMA_FAILED, link),
            None => {}
        }
    }

    fn interrupt(&mut self, reasons: u32, link: &mut Link<'_>) {
        *self.reg(regs::INT_STATUS) |= reasons;
        if reasons & *self.reg(regs::INT_ENABLE) != 0 {
            let vector = *self.reg(regs::INT_VECTOR) % u32::from(self.cfg.vectors);
            self.function.raise(vector as u8);
            self.deliver(link);
        }
    }

    fn deliver(&mut self, link: &mut Link<'_>) {
        let times = match self.cfg.kind {
            DeviceKind::Storm => STORM,
            _ => 1,
        };
        let sent = self.function.deliver(times, link);
        let n = self.reg(regs::INT_COUNT);
        *n = n.wrapping_add(sent);
    }

    /// Returns the byte at `offset` in BAR0. Registers have no bytes here.
    fn byte(&mut self, offset: u64) -> Option<&mut u8> {
        match offset {
            MEMORY_OFFSET..BAR_SIZE => self.memory.get_mut((offset - MEMORY_OFFSET) as usize),
            TABLE_OFFSET..PBA_OFFSET => self.function.table_byte(offset - TABLE_OFFSET),
            _ => None,
        }
    }

    fn mem_read(&mut self, span: Span) -> Option<Vec<[u8; 4]>> {
        let base = self.function.decode(span, BAR_SIZE)?;
        let all = (base..base + u64::from(span.dwords) * 4).step_by(4);
        let dword = |at| match at {
            0..TABLE_OFFSET => self.read_reg(at).to_le_bytes(),
            PBA_OFFSET => self.function.pending().to_le_bytes(),
            _ => std::array::from_fn(|i| self.byte(at + i as u64).map_or(0, |b| *b)),
        };
        Some(all.map(dword).collect())
    }

    fn mem_write(&mut self, span: Span, data: &[u8], link: &mut Link<'_>) {
        let Some(base) = self.function.decode(span, BAR_SIZE) else {
            return;
        };
        for (i, word) in data.chunks_exact(4).enumerate() {
            let at = base + 4 * i as u64;
            let enables = span.enables(i as u16);
            if at < TABLE_OFFSET {
                // Registers accept only writes of whole dwords.
                if let (0xF, Ok(raw)) = (enables, word.try_into()) {
                    self.write_reg(at, u32::from_le_bytes(raw), link);
                }
                continue;
            }
            for k in (0..4).filter(|&k| enables & (1 << k) != 0) {
                if let Some(byte) = self.byte(at + k as u64) {
                    *byte = word[k];
                }
            }
        }
        if (TABLE_OFFSET..PBA_OFFSET).contains(&base) {
            self.deliver(link);
        }
    }
}

impl Endpoint for TestDevice {
    fn receive(&mut self, packet: PciePacket, link: &mut Link<'_>) {
        match packet.tlp.kind {
            Kind::MemRead {
                requester,
                tag,
                span,
            } => {
                let data = self.mem_read(span);
                self.function.answer((requester, tag), span, data, link);
            }
            Kind::MemWrite { span, .. } if !packet.tlp.poisoned => {
                self.mem_write(span, &packet.data, link)
            }
            Kind::MemWrite { .. } => {}
            Kind::CfgRead { .. } | Kind::CfgWrite { .. } if self.mute => {}
            Kind::CfgRead { .. } | Kind::CfgWrite { .. } => {
                let effects = self.function.configure(&packet, link);
                if effects.reset {
                    self.function_reset();
                } else if effects.interrupts {
                    self.deliver(link);
                }
            }
            Kind::Completion { tag, .. } => {
                let ended = self.dma.complete(tag, &packet, &mut self.memory);
                self.dma_ended(ended, link);
                self.run_dma(link);
            }
        }
    }

    fn tick(&mut self, link: &mut Link<'_>) {
        let ended = self.dma.expire(link.now_ns);
        self.dma_ended(ended, link);
        self.run_dma(link);
    }

    fn next_deadline(&self) -> Option<u64> {
        self.dma.deadline()
    }

    fn wants_credit(&self) -> bool {
        self.dma.wants_credit()
    }

    fn reset(&mut self) {
        self.function_reset();
        self.mute = false;
        self.function.power_on();
        self.memory.fill(0);
    }
}
