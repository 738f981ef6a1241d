// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Why a connection uses TCP.

use wire::ds::Decline;

/// Numbered reasons, which statistics, traces and `EXTL_INFO` show (docs/ds-protocol.md, Fallback).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Fallback {
    /// This version of the module has no data path.
    NoDataPath = 1,
    /// The route does not lead through a NIC that could.
    NoRoute = 2,
    /// It is switched off here.
    Off = 3,
    /// No memory for rings.
    NoMemory = 4,
    /// No place for one more connection, or no local port.
    NoPlace = 5,
    /// The peer does not answer on the service VPID.
    Silent = 6,
    /// It did not answer a short time ago.
    KnownSilent = 7,
    /// It speaks another version of the protocol.
    Version = 8,
    /// Its program uses plain TCP.
    NoListener = 9,
    /// Too many connections of this node wait there.
    PeerBusy = 10,
    /// It has no memory, or no other resource.
    PeerResources = 11,
    /// It is switched off there.
    PeerOff = 12,
    /// The server took the connection too late, or as plain TCP.
    NotAccepted = 13,
    /// Data came by TCP.
    TcpData = 14,
    /// The client asked for TCP after the connection was taken.
    ClientFellBack = 15,
    /// The client never asked for anything else.
    NotAsked = 16,
    /// The program wants what only TCP has.
    TcpOnly = 17,
    /// The server took connections too late a short time ago.
    KnownLate = 18,
    /// The neighbour's address is not known, and it does not answer soon.
    NoNeighbour = 19,
    /// The user has as many connections as one may have.
    UserLimit = 20,
}

impl Fallback {
    /// All of them.
    pub const ALL: [Self; 20] = [
        Self::NoDataPath,
        Self::NoRoute,
        Self::Off,
        Self::NoMemory,
        Self::NoPlace,
        Self::Silent,
        Self::KnownSilent,
        Self::Version,
        Self::NoListener,
        Self::PeerBusy,
        Self::PeerResources,
        Self::PeerOff,
        Self::NotAccepted,
        Self::TcpData,
        Self::ClientFellBack,
        Self::NotAsked,
        Self::TcpOnly,
        Self::KnownLate,
        Self::NoNeighbour,
        Self::UserLimit,
    ];

    /// Its number.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// What a server said.
    #[must_use]
    pub const fn declined(why: Decline) -> Self {
        match why {
            Decline::Version => Self::Version,
            Decline::NoListener => Self::NoListener,
            Decline::Busy => Self::PeerBusy,
            Decline::Resources => Self::PeerResources,
            Decline::Off => Self::PeerOff,
        }
    }
}
