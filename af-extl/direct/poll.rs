// SPDX-License-Identifier: GPL-2.0-only

//! Readiness (`poll`) and queue lengths (`ioctl`) of sockets with direct connections. Process
//! context; takes the connection's lock.

use super::tcp_lives;
use crate::{connection::Connection, nic::Conn};
use kernel::{
    prelude::*,
    sync::Arc,
    uaccess::{UserPtr, UserSlice},
};
use kernel_ext::net::socket::Tcp;
use protocol::ds::Stream;

/// Bits of `poll(2)`.
const IN: u32 = 0x001 | 0x040;
const OUT: u32 = 0x004 | 0x100;
const ERR: u32 = 0x008;
const HUP: u32 = 0x010;
const RDHUP: u32 = 0x2000;

/// Returns the readiness in bits of `poll(2)`.
pub(crate) fn poll(tcp: &Tcp, data: &Connection, conn: &Arc<Conn>) -> u32 {
    let mask = mask(tcp, data, conn);
    if mask & OUT == 0 {
        tcp.no_space();
        return self::mask(tcp, data, conn);
    }
    mask
}

/// Returns the readiness while the carrier is undecided: only directions that the program has shut
/// down.
pub(crate) fn poll_undecided(data: &Connection) -> u32 {
    let rcv_shut = if data.is_rcv_shut() { IN | RDHUP } else { 0 };
    let snd_shut = if data.is_snd_shut() { OUT } else { 0 };
    let both = if rcv_shut != 0 && snd_shut != 0 {
        HUP
    } else {
        0
    };
    rcv_shut | snd_shut | both
}

fn mask(tcp: &Tcp, data: &Connection, conn: &Arc<Conn>) -> u32 {
    let low = tcp.rcvlowat(false, usize::MAX) as u32;
    let sock = conn.sock();
    conn.forget_second_error();
    // The error is read before the state of the streams, so that both are reported together if they
    // arrive together.
    let (error, queued) = (sock.error(), sock.has_error());
    let (mut mask, ended) = conn.peek(|inner| {
        let half = inner.rings().map_or(0, |r| r.receive.bytes() as u32 / 2);
        let Some(stream) = inner.direct() else {
            return (IN | OUT | HUP | RDHUP, true);
        };
        let ready = stream.ready();
        let rcv_shut = data.is_rcv_shut();
        let mut mask = 0;
        if ready.peer_finished || rcv_shut {
            mask |= IN | RDHUP;
        }
        // The limit is half of the ring, because more may never be available at once.
        if stream.receiving().available() >= low.min(half) {
            mask |= IN;
        }
        if ready.writable {
            mask |= OUT;
        }
        if stream.end().is_some() || (ready.peer_finished || rcv_shut) && !stream.can_send() {
            mask |= HUP;
        }
        (mask, stream.end().is_some())
    });
    // An error of TCP's own connection is reported only after the direct connection has also ended.
    let lives = tcp_lives(tcp, conn);
    if queued && (ended || lives || error.is_none()) {
        mask |= ERR;
    }
    mask
}

/// Handles `FIONREAD`, `SIOCOUTQ`, `SIOCOUTQNSD`; returns `None` for other commands.
pub(crate) fn ioctl(conn: &Conn, command: u32, arg: usize) -> Option<Result<usize>> {
    const FIONREAD: u32 = 0x541b;
    const SIOCOUTQ: u32 = 0x5411;
    const SIOCOUTQNSD: u32 = 0x894b;
    let of: fn(&Stream) -> u32 = match command {
        FIONREAD => |stream| stream.receiving().available(),
        SIOCOUTQ => |stream| stream.sending().unacknowledged(),
        SIOCOUTQNSD => |stream| stream.sending().unsent(),
        _ => return None,
    };
    let n = conn.peek(|inner| inner.direct().map_or(0, |stream| of(stream)));
    let mut to = UserSlice::new(UserPtr::from_addr(arg), 4).writer();
    Some(to.write_slice(&(n as i32).to_ne_bytes()).map(|()| 0))
}
