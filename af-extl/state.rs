// SPDX-License-Identifier: GPL-2.0-only

//! Phases of a socket, and the names of the reasons for a fallback to TCP.

use protocol::ds::Fallback;

protocol::flow! {
    /// Carrier of a socket's data. TCP's own states (`LISTEN`, `ESTABLISHED`, …) are not repeated
    /// here.
    states Phase {
        /// The socket has no connection.
        Idle,
        /// The socket accepts connections.
        Listening,
        /// A connection exists or is being made, and its carrier is undecided.
        Waiting,
        /// The streams of EXT-DS carry the data.
        Direct,
        /// TCP carries the data.
        Tcp,
    }
    /// Events of a socket.
    events Event {
        /// A connection begins.
        Connect,
        /// The socket was created for an accepted connection.
        Accept,
        /// Both ends use the streams.
        UseStreams,
        /// The connection falls back to TCP.
        FallBack,
        /// The socket begins to listen.
        Listen,
        /// The connection has ended or the socket does not listen any more, so the socket can be
        /// reused.
        Close,
    }
    transitions {
        Idle + Connect => Waiting;
        Idle + Accept => Waiting;
        Idle + Listen => Listening;
        Idle + Close => Idle;
        Listening + Listen => Listening;
        Listening + Close => Idle;
        Waiting + UseStreams => Direct;
        Waiting + FallBack => Tcp;
        Waiting + Close => Idle;
        Direct + Close => Idle;
        Tcp + Close => Idle;
    }
}

/// Returns the number of a phase in extoll/af_extl.h.
pub(crate) fn mode(phase: Phase) -> u16 {
    match phase {
        Phase::Idle => 0,
        Phase::Listening => 1,
        Phase::Tcp => 2,
        Phase::Direct => 3,
        Phase::Waiting => 4,
    }
}

/// Returns the name of a reason as files and counters show it.
pub(crate) fn name(why: Fallback) -> &'static str {
    match why {
        Fallback::NoDataPath => "no-data-path",
        Fallback::NoRoute => "no-route",
        Fallback::Off => "off",
        Fallback::NoMemory => "no-memory",
        Fallback::NoSlot => "no-place",
        Fallback::Silent => "silent",
        Fallback::RecentlySilent => "known-silent",
        Fallback::Version => "version",
        Fallback::NoListener => "no-listener",
        Fallback::PeerBusy => "peer-busy",
        Fallback::PeerResources => "peer-resources",
        Fallback::PeerOff => "peer-off",
        Fallback::NotAccepted => "not-accepted",
        Fallback::TcpData => "tcp-data",
        Fallback::ClientFellBack => "client-fell-back",
        Fallback::NotAsked => "not-asked",
        Fallback::TcpOnly => "tcp-only",
        Fallback::RecentlyLate => "known-late",
        Fallback::NoNeighbour => "no-neighbour",
        Fallback::UserLimit => "user-limit",
    }
}
