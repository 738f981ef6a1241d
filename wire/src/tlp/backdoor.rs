// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Requests through the PCIe backdoor of a NIC in root-port mode, and their completions (HW §14,
//! G20).
//!
//! Software writes a packet to `htoc_to_pcie_backdoor_data`, and then its length with `send` to the
//! control register. The completion appears in the receive FIFO. The register `info` returns the
//! completion's length in quadwords. Software then reads `data` that number of times. A read of
//! `info` may or may not remove the entry (G20). Software therefore reads `info` until it reports a
//! packet, and reads it again only after the whole packet was read.

use super::{words, Bdf, CfgType, Error, Kind, Status, Tlp};
use crate::ids::RegOffset;
use crate::regs::pcie::{self, BackdoorControl, BackdoorInfo};

/// Tag of all requests. The NIC stores completions with tag 0 in the FIFO (`regfwd_srctag0`).
pub const TAG: u8 = 0;
/// Requester ID of all requests.
pub const REQUESTER: Bdf = Bdf(0);
/// Maximum number of register writes that send a packet.
pub const WRITES: usize = words::MAX + 1;

/// Decoded value of `pcie_to_htoc_backdoor_info`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Info {
    /// The FIFO is empty.
    Empty,
    /// The FIFO contains a packet of this number of quadwords.
    Packet(usize),
    /// The number of quadwords exceeds the longest packet.
    Impossible(u8),
}

/// Decodes the register value.
pub fn info(value: u64) -> Info {
    let info = BackdoorInfo(value);
    match (info.valid(), info.qw_count()) {
        (false, _) => Info::Empty,
        (true, n) if (words::HEADER..=words::MAX).contains(&usize::from(n)) => {
            Info::Packet(n.into())
        }
        (true, n) => Info::Impossible(n),
    }
}

/// Completion of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Status of the request.
    pub status: Status,
    /// First dword of the payload; all ones if the completion has no payload.
    pub value: u32,
}

/// Reason why the received quadwords are not a completion of the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The quadwords are not a valid packet.
    Packet(Error),
    /// The packet is not a completion for this requester.
    Other,
}

/// Returns the register writes that send a packet, in the order of execution.
///
/// # Errors
///
/// Returns the errors of [`words::pack`].
pub fn send(
    tlp: &Tlp,
    payload: &[u8],
) -> Result<impl Iterator<Item = (RegOffset, u64)> + Clone, Error> {
    let packed = words::pack(tlp, payload)?;
    let control = BackdoorControl(0)
        .with_payload_qw_length(packed.payload_qws())
        .with_send(true);
    let last = (pcie::HTOC_TO_PCIE_BACKDOOR_CONTROL, control.raw());
    let data = (0..words::MAX as u32).map_while(move |k| {
        let word = packed.as_slice().get(k as usize)?;
        Some((pcie::htoc_to_pcie_backdoor_data(k), *word))
    });
    Ok(data.chain(core::iter::once(last)))
}

/// Decodes the completion of a request for at most one dword.
///
/// # Errors
///
/// See [`Fault`].
pub fn completion(qw: &[u64]) -> Result<Completion, Fault> {
    let mut payload = [0; words::PAYLOAD_DWORDS as usize * 4];
    let (tlp, len) = words::unpack(qw, &mut payload).map_err(Fault::Packet)?;
    match tlp.kind {
        Kind::Completion {
            status,
            requester: REQUESTER,
            tag: TAG,
            ..
        } => {
            let first = payload.first_chunk::<4>().filter(|_| len >= 4);
            let value = match first {
                Some(bytes) if status == Status::Success && !tlp.poisoned => {
                    u32::from_le_bytes(*bytes)
                }
                _ => u32::MAX,
            };
            Ok(Completion { status, value })
        }
        _ => Err(Fault::Other),
    }
}

/// Access to 1, 2 or 4 bytes of a configuration space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Function whose configuration space is accessed.
    pub target: Bdf,
    /// Type 0, or type 1 for a target behind a bridge.
    pub ty: CfgType,
    /// Byte offset in the target's configuration space.
    register: u16,
    bytes: u8,
}

impl Config {
    /// Returns the access. Returns `None` if `bytes` is not 1, 2 or 4, or if the bytes are not in
    /// one aligned dword of the 4,096 bytes.
    pub const fn new(target: Bdf, ty: CfgType, register: u16, bytes: u8) -> Option<Self> {
        let good = matches!(bytes, 1 | 2 | 4) && register % bytes as u16 == 0 && register < 4096;
        if !good {
            return None;
        }
        Some(Self {
            target,
            ty,
            register,
            bytes,
        })
    }

    const fn shift(self) -> u32 {
        (self.register & 3) as u32 * 8
    }

    const fn mask(self) -> u32 {
        u32::MAX >> (32 - self.bytes as u32 * 8)
    }

    fn tlp(self, write: bool) -> Tlp {
        let enables = (0xF >> (4 - self.bytes)) << (self.register & 3);
        Kind::config(
            write,
            self.ty,
            (REQUESTER, TAG),
            self.target,
            self.register & !3,
            enables,
        )
        .into()
    }

    /// Returns the request that reads the register.
    pub fn read(self) -> Tlp {
        self.tlp(false)
    }

    /// Returns the request that writes `value`, and its payload.
    pub fn write(self, value: u32) -> (Tlp, [u8; 4]) {
        let dword = (value & self.mask()) << self.shift();
        (self.tlp(true), dword.to_le_bytes())
    }

    /// Returns the requested bytes of the received dword. A dword of all ones yields all ones.
    pub const fn value(self, dword: u32) -> u32 {
        (dword >> self.shift()) & self.mask()
    }
}
