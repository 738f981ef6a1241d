// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Reasons for using TCP.

use wire::ds::Decline;

/// Reason for using TCP. Statistics, traces and `EXTL_INFO` show the number of the reason
/// (docs/ds-protocol.md, Fallback).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Fallback {
    /// This version of the module has no direct data path.
    NoDataPath = 1,
    /// The route uses no Extoll NIC.
    NoRoute = 2,
    /// Direct data are switched off on this node.
    Off = 3,
    /// No memory is available for rings.
    NoMemory = 4,
    /// No connection slot or no local port is free.
    NoSlot = 5,
    /// The peer does not answer on the service VPID.
    Silent = 6,
    /// The peer did not answer a short time ago.
    RecentlySilent = 7,
    /// The peer uses another version of the protocol.
    Version = 8,
    /// The server's program uses plain TCP.
    NoListener = 9,
    /// Too many connections of this node are pending at the server.
    PeerBusy = 10,
    /// The server has no memory, or lacks another resource.
    PeerResources = 11,
    /// Direct data are switched off on the server.
    PeerOff = 12,
    /// The server accepted the connection too late, or as plain TCP.
    NotAccepted = 13,
    /// Data arrived on the TCP connection.
    TcpData = 14,
    /// The client changed to TCP after the server had accepted direct data.
    ClientFellBack = 15,
    /// The client did not ask for direct data.
    NotAsked = 16,
    /// The program uses a feature that only TCP has.
    TcpOnly = 17,
    /// The server accepted connections too late a short time ago.
    RecentlyLate = 18,
    /// The link-layer address of the neighbour is unknown, and the neighbour does not answer in
    /// time.
    NoNeighbour = 19,
    /// The user has reached the maximum number of connections.
    UserLimit = 20,
}

impl Fallback {
    /// All reasons, ordered by number.
    pub const ALL: [Self; 20] = [
        Self::NoDataPath,
        Self::NoRoute,
        Self::Off,
        Self::NoMemory,
        Self::NoSlot,
        Self::Silent,
        Self::RecentlySilent,
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
        Self::RecentlyLate,
        Self::NoNeighbour,
        Self::UserLimit,
    ];

    /// Returns the number of the reason.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the reason for a server's refusal.
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
