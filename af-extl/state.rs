// SPDX-License-Identifier: GPL-2.0-only

//! What a socket is, and why its connection goes over TCP.

use protocol::ds::Fallback;

protocol::flow! {
    /// What carries the data of a socket. TCP's own states are TCP's: `LISTEN`, `ESTABLISHED`, …
    states Phase {
        /// No connection.
        Idle,
        /// Accepts connections.
        Listening,
        /// There is a connection, or one is being made, and it is not decided what carries its data.
        Waiting,
        /// Its data go by the streams of EXT-DS.
        Direct,
        /// TCP carries its data.
        Tcp,
    }
    /// What happens to a socket.
    events Event {
        /// A connection begins.
        Connect,
        /// It is the socket of a connection that was accepted.
        Accept,
        /// Both ends use the streams.
        UseStreams,
        /// It uses TCP.
        FallBack,
        /// It begins to listen.
        Listen,
        /// Connection or listening has ended, and the socket can be used again.
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

/// Number of a phase in extoll/af_extl.h.
pub(crate) fn mode(phase: Phase) -> u16 {
    match phase {
        Phase::Idle => 0,
        Phase::Listening => 1,
        Phase::Tcp => 2,
        Phase::Direct => 3,
        Phase::Waiting => 4,
    }
}

/// Name of a reason in files and counters.
pub(crate) fn name(why: Fallback) -> &'static str {
    match why {
        Fallback::NoDataPath => "no-data-path",
        Fallback::NoRoute => "no-route",
        Fallback::Off => "off",
        Fallback::NoMemory => "no-memory",
        Fallback::NoPlace => "no-place",
        Fallback::Silent => "silent",
        Fallback::KnownSilent => "known-silent",
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
        Fallback::KnownLate => "known-late",
        Fallback::NoNeighbour => "no-neighbour",
        Fallback::UserLimit => "user-limit",
    }
}
