//! Common code of the built-in devices: configuration requests, decoding of BAR0, and interrupt
//! vectors.

use super::config::{Config, Effects, Shape};
use super::{Link, PciePacket};
use wire::tlp::{Bdf, CfgType, Kind, Span, Status};

/// Size in bytes of a vector's entry in the MSI-X table.
const ENTRY: usize = 16;
/// Bit in the vector control word of an entry: the vector is masked.
const MASKED: u32 = 1;

/// A PCI function with one BAR.
pub(super) struct Function {
    config: Config,
    /// Bus, device and function number from the last configuration write.
    bdf: Bdf,
    vectors: u8,
    table: Vec<u8>,
    /// Set of the vectors that wait until software allows their interrupts.
    pending: u32,
}

impl Function {
    /// Returns the function after power-on.
    pub fn new(shape: Shape) -> Self {
        let vectors = shape.vectors;
        let mut f = Self {
            config: Config::new(shape),
            bdf: Bdf::default(),
            vectors,
            table: vec![0; usize::from(vectors) * ENTRY],
            pending: 0,
        };
        f.reset();
        f
    }

    /// Performs a function-level reset. The function keeps only its bus, device and function
    /// number.
    pub fn reset(&mut self) {
        self.config.reset();
        self.table.fill(0);
        for entry in self.table.chunks_exact_mut(ENTRY) {
            entry[12] = MASKED as u8;
        }
        self.pending = 0;
    }

    /// Performs a fundamental reset.
    pub fn power_on(&mut self) {
        self.reset();
        self.bdf = Bdf::default();
    }

    pub fn bdf(&self) -> Bdf {
        self.bdf
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the offset in BAR0 of an access, or `None` if the access is not completely inside
    /// the `size` bytes of BAR0.
    pub fn decode(&self, span: Span, size: u64) -> Option<u64> {
        let offset = span.addr.checked_sub(self.config.bar()?)?;
        (offset + u64::from(span.dwords) * 4 <= size).then_some(offset)
    }

    /// Answers a read of BAR0 with the dwords of the span. `None` answers "unsupported request".
    pub fn answer(
        &self,
        to: (Bdf, u8),
        span: Span,
        dwords: Option<Vec<[u8; 4]>>,
        link: &mut Link<'_>,
    ) {
        let (skip, len) = span.extent();
        let bytes = dwords.map(|d| d.concat());
        let wanted = bytes
            .as_ref()
            .and_then(|b| b.get(skip as usize..(skip + len) as usize));
        PciePacket::read_answers(self.bdf, to, span, wanted)
            .into_iter()
            .for_each(|p| link.send(p));
    }

    fn answer_configuration(
        &self,
        to: (Bdf, u8),
        status: Status,
        data: Option<[u8; 4]>,
        link: &mut Link<'_>,
    ) {
        let kind = Kind::Completion {
            completer: self.bdf,
            status,
            modified: false,
            byte_count: 4,
            requester: to.0,
            tag: to.1,
            lower_addr: 0,
            dwords: data.is_some().into(),
        };
        link.send(PciePacket {
            tlp: kind.into(),
            data: data.map_or_else(Vec::new, Vec::from),
        });
    }

    /// Answers a configuration request. Returns the effects of the request. If [`Effects::reset`]
    /// is set, the caller must reset the device.
    pub fn configure(&mut self, packet: &PciePacket, link: &mut Link<'_>) -> Effects {
        match packet.tlp.kind {
            Kind::CfgRead {
                ty,
                requester,
                tag,
                target,
                register,
                ..
            } => {
                let here = ty == CfgType::Type0 && target.function() == 0;
                let data = here.then(|| self.config.read(register));
                let status = if here {
                    Status::Success
                } else {
                    Status::Unsupported
                };
                self.answer_configuration((requester, tag), status, data, link);
                Effects::default()
            }
            Kind::CfgWrite {
                ty,
                requester,
                tag,
                target,
                register,
                enables,
            } => {
                let to = (requester, tag);
                if ty != CfgType::Type0 || target.function() != 0 {
                    self.answer_configuration(to, Status::Unsupported, None, link);
                    return Effects::default();
                }
                self.bdf = target;
                self.answer_configuration(to, Status::Success, None, link);
                let data = packet.data.first_chunk().copied().unwrap_or_default();
                self.config.write(register, enables, data)
            }
            _ => Effects::default(),
        }
    }

    /// Returns the byte of the MSI-X table at `offset`.
    pub fn table_byte(&mut self, offset: u64) -> Option<&mut u8> {
        self.table.get_mut(usize::try_from(offset).ok()?)
    }

    /// Returns the set of the vectors that wait until software allows their interrupts.
    pub fn pending(&self) -> u32 {
        self.pending
    }

    /// Marks a vector as pending. The caller must then call [`deliver`](Self::deliver).
    pub fn raise(&mut self, vector: u8) {
        self.pending |= 1u32.checked_shl(vector.into()).unwrap_or(0);
    }

    /// Sends the messages of pending vectors whose interrupts are allowed now, each `times` times.
    /// Returns the number of these vectors. While interrupts are off, messages are lost.
    pub fn deliver(&mut self, times: u32, link: &mut Link<'_>) -> u32 {
        let (msix, all_masked) = self.config.msix();
        if !self.config.bus_master() {
            return 0;
        }
        let mut sent = 0;
        for vector in 0..self.vectors {
            if self.pending & (1 << vector) == 0 {
                continue;
            }
            let message = if msix {
                let entry = &self.table[usize::from(vector) * ENTRY..][..ENTRY];
                let word = |i: usize| entry[i..i + 4].try_into().map_or(0, u32::from_le_bytes);
                if all_masked || word(12) & MASKED != 0 {
                    continue;
                }
                Some((u64::from(word(0)) | (u64::from(word(4)) << 32), word(8)))
            } else if self.config.msi_masked(vector) && self.config.msi(vector).is_some() {
                continue;
            } else {
                self.config.msi(vector).map(|(a, d)| (a, u32::from(d)))
            };
            self.pending &= !(1 << vector);
            if let Some((addr, data)) = message {
                sent += 1;
                for _ in 0..times {
                    PciePacket::writes(self.bdf, addr & !3, &data.to_le_bytes())
                        .for_each(|p| link.send(p));
                }
            }
        }
        self.config
            .set_msi_pending(if msix { 0 } else { self.pending });
        sent
    }
}
