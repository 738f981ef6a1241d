// SPDX-License-Identifier: GPL-2.0-only

//! Fragment lists: local and remote memory of a transfer. Any context.

use super::{
    super::{Address, Requester},
    Direction,
};
use crate::atu::Region;
use protocol::transfer::Fragment;
use wire::ids::{BusAddr, Nla};

/// Contiguous memory: address and length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span<A> {
    /// Address of the first byte.
    pub address: A,
    /// Length in bytes, at least 1.
    pub len: u64,
}

impl Span<BusAddr> {
    fn fragment(&self) -> Fragment {
        Fragment {
            address: self.address.0,
            len: self.len,
        }
    }
}

impl Span<Nla> {
    fn fragment(&self) -> Fragment {
        Fragment {
            address: self.address.0,
            len: self.len,
        }
    }
}

/// Part of a local region.
#[derive(Clone, Copy)]
pub struct RegionPart<'a> {
    /// Local region. It must be alive, belong to the engine's NIC and VPID, and permit the access.
    pub region: &'a Region,
    /// Offset of the first byte in the region.
    pub offset: usize,
    /// Length in bytes, at least 1.
    pub len: usize,
}

impl<'a> RegionPart<'a> {
    /// Describes the bytes `offset`…`offset + len` of a region.
    pub fn new(region: &'a Region, offset: usize, len: usize) -> Self {
        Self {
            region,
            offset,
            len,
        }
    }

    fn is_allowed(&self, by: &Requester, direction: Direction) -> bool {
        let (write, bytes) = (direction == Direction::Get, (self.offset, self.len));
        let region = &self.region;
        let nla = region.for_command(by.context(), by.vpid(), write, bytes);
        nla.is_some()
    }

    fn fragment(&self) -> Fragment {
        Fragment {
            address: self.region.nla().0.wrapping_add(self.offset as u64),
            len: self.len as u64,
        }
    }
}

/// Memory on both sides, as lists of fragments. The total lengths of both sides must be equal, but
/// fragment boundaries may differ. The NIC translates the addresses of both sides, or of none (HW
/// §10.1).
#[derive(Clone, Copy)]
pub enum Lists<'a> {
    /// Memory named by bus addresses, which no hardware checks.
    Bus {
        /// Local memory. It must stay mapped until the transfer is quiet.
        local: &'a [Span<BusAddr>],
        /// Memory of the peer.
        remote: &'a [Span<BusAddr>],
    },
    /// Registered memory, named by NLAs.
    Regions {
        /// Local memory.
        local: &'a [RegionPart<'a>],
        /// NLAs in regions of the peer's VPID.
        remote: &'a [Span<Nla>],
    },
}

/// One fragment on each side, which can be borrowed as [`Lists`].
pub(super) enum Single<'a> {
    Bus([Span<BusAddr>; 2]),
    Region(RegionPart<'a>, Span<Nla>),
}

impl<'a> Single<'a> {
    pub(super) fn new(address: Address<'a>, len: u64) -> Option<Self> {
        Some(match address {
            Address::Bus { local, remote } => Self::Bus([
                Span {
                    address: local,
                    len,
                },
                Span {
                    address: remote,
                    len,
                },
            ]),
            Address::Region {
                region,
                offset,
                remote,
            } => Self::Region(
                RegionPart::new(region, offset, usize::try_from(len).ok()?),
                Span {
                    address: remote,
                    len,
                },
            ),
        })
    }

    pub(super) fn lists(&self) -> Lists<'_> {
        match self {
            Self::Bus([local, remote]) => Lists::Bus {
                local: core::slice::from_ref(local),
                remote: core::slice::from_ref(remote),
            },
            Self::Region(local, remote) => Lists::Regions {
                local: core::slice::from_ref(local),
                remote: core::slice::from_ref(remote),
            },
        }
    }
}

impl Lists<'_> {
    /// Returns whether the port may access the local memory in this direction.
    pub(super) fn is_allowed(&self, by: &Requester, direction: Direction) -> bool {
        match self {
            Self::Bus { .. } => true,
            Self::Regions { local, .. } => local.iter().all(|p| p.is_allowed(by, direction)),
        }
    }

    pub(super) fn translate(&self) -> bool {
        matches!(self, Self::Regions { .. })
    }

    pub(super) fn local(&self) -> impl Iterator<Item = Fragment> + Clone + '_ {
        let (bus, parts): (&[Span<BusAddr>], &[RegionPart<'_>]) = match self {
            Self::Bus { local, .. } => (local, &[]),
            Self::Regions { local, .. } => (&[], local),
        };
        let bus = bus.iter().map(Span::<BusAddr>::fragment);
        Iterator::chain(bus, parts.iter().map(RegionPart::fragment))
    }

    pub(super) fn remote(&self) -> impl Iterator<Item = Fragment> + Clone + '_ {
        let (bus, nlas): (&[Span<BusAddr>], &[Span<Nla>]) = match self {
            Self::Bus { remote, .. } => (remote, &[]),
            Self::Regions { remote, .. } => (&[], remote),
        };
        let bus = bus.iter().map(Span::<BusAddr>::fragment);
        Iterator::chain(bus, nlas.iter().map(Span::<Nla>::fragment))
    }
}
