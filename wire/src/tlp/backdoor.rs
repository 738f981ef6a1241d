// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! A packet through the backdoor of a NIC in root-port mode, and its completion (HW §14, G20).
//!
//! The sender writes the packet to `htoc_to_pcie_backdoor_data`, then its length with `send` to the
//! control register; the completion appears in the receive FIFO: `info` tells its length, and as
//! many reads of `data` give it. Whether reading `info` takes anything out is unknown (G20), so it
//! is read until it says that there is something, and not again before all of that was read.

use super::{words, Bdf, CfgType, Error, Kind, Status, Tlp};
use crate::ids::RegOffset;
use crate::regs::pcie::{self, BackdoorControl, BackdoorInfo};

/// Tag of all requests: completions with tag 0 go to the FIFO (`regfwd_srctag0`).
pub const TAG: u8 = 0;
/// Requester of all requests.
pub const REQUESTER: Bdf = Bdf(0);
/// Most registers that sending a packet writes.
pub const WRITES: usize = words::MAX + 1;

/// What `pcie_to_htoc_backdoor_info` tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Info {
    /// Nothing came yet.
    Empty,
    /// A packet: read `data` so many times.
    Packet(usize),
    /// No packet has so many quadwords.
    Impossible(u8),
}

/// Reads the register.
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

/// A completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// How the request ended.
    pub status: Status,
    /// First dword of the payload; all ones without one.
    pub value: u32,
}

/// Why what came is no completion of the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// No packet at all.
    Packet(Error),
    /// A packet, but not a completion of this requester.
    Other,
}

/// The register writes that send a packet, in order.
///
/// # Errors
///
/// Those of [`words::pack`].
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

/// Reads the completion of a request with one dword at most from the quadwords that came.
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

/// A configuration access of 1, 2 or 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The function.
    pub target: Bdf,
    /// Type 0, or 1 for what is behind a bridge.
    pub ty: CfgType,
    /// Byte offset in its configuration space.
    register: u16,
    bytes: u8,
}

impl Config {
    /// `None` for other sizes, and for bytes that are not in one aligned dword of the 4,096.
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

    /// The packet that reads.
    pub fn read(self) -> Tlp {
        self.tlp(false)
    }

    /// The packet that writes `value`, and its payload.
    pub fn write(self, value: u32) -> (Tlp, [u8; 4]) {
        let dword = (value & self.mask()) << self.shift();
        (self.tlp(true), dword.to_le_bytes())
    }

    /// The bytes asked for, from the dword that came; all ones stay all ones.
    pub const fn value(self, dword: u32) -> u32 {
        (dword >> self.shift()) & self.mask()
    }
}
