// SPDX-License-Identifier: GPL-2.0-only

//! Memory of a transfer: fragment lists.

use super::{super::Address, Direction};
use crate::atu::Region;
use protocol::transfer::Fragment;
use wire::ids::{BusAddr, Nla, Vpid};

/// Contiguous memory by its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span<A> {
    /// Of the first byte.
    pub address: A,
    /// Bytes, at least one.
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

/// A part of a local region.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    /// The region; has to be alive, of the engine's VPID, and allow the access.
    pub region: &'a Region,
    /// Byte offset in it.
    pub offset: usize,
    /// Bytes, at least one.
    pub len: usize,
}

impl<'a> Part<'a> {
    /// Bytes `offset`…`offset + len` of a region.
    pub fn new(region: &'a Region, offset: usize, len: usize) -> Self {
        Self {
            region,
            offset,
            len,
        }
    }

    fn is_allowed(&self, vpid: Vpid, direction: Direction) -> bool {
        let access = self.region.access();
        let allowed = match direction {
            Direction::Get => access.write,
            Direction::Put => access.read,
        };
        allowed && self.region.vpid() == vpid && self.region.slice(self.offset, self.len).is_some()
    }

    fn fragment(&self) -> Fragment {
        Fragment {
            address: self.region.nla().0.wrapping_add(self.offset as u64),
            len: self.len as u64,
        }
    }
}

/// Memory on both sides, in fragments with boundaries of their own but of the same length
/// altogether. The NIC translates both sides or none (HW §10.1).
#[derive(Clone, Copy)]
pub enum Lists<'a> {
    /// Bus addresses, which nobody checks.
    Bus {
        /// Here. It has to stay mapped until the transfer is quiet.
        local: &'a [Span<BusAddr>],
        /// At the peer.
        remote: &'a [Span<BusAddr>],
    },
    /// Registered memory.
    Regions {
        /// Here.
        local: &'a [Part<'a>],
        /// NLAs in regions of the peer's VPID.
        remote: &'a [Span<Nla>],
    },
}

/// One fragment on either side, from which [`Lists`] can be made.
pub(super) enum Single<'a> {
    Bus([Span<BusAddr>; 2]),
    Region(Part<'a>, Span<Nla>),
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
                Part::new(region, offset, usize::try_from(len).ok()?),
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
    /// Whether the local memory may be used so by a port of `vpid`.
    pub(super) fn is_allowed(&self, vpid: Vpid, direction: Direction) -> bool {
        match self {
            Self::Bus { .. } => true,
            Self::Regions { local, .. } => local.iter().all(|p| p.is_allowed(vpid, direction)),
        }
    }

    pub(super) fn translate(&self) -> bool {
        matches!(self, Self::Regions { .. })
    }

    pub(super) fn local(&self) -> impl Iterator<Item = Fragment> + Clone + '_ {
        let (bus, parts): (&[Span<BusAddr>], &[Part<'_>]) = match self {
            Self::Bus { local, .. } => (local, &[]),
            Self::Regions { local, .. } => (&[], local),
        };
        let bus = bus.iter().map(Span::<BusAddr>::fragment);
        Iterator::chain(bus, parts.iter().map(Part::fragment))
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
