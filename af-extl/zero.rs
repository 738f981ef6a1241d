// SPDX-License-Identifier: GPL-2.0-only

//! Zero copy for large calls: the peer reads the sender's memory ("source"), and GETs write to the
//! reader's memory ("sink"). Data that cannot use zero copy are copied by [`crate::direct`].
//!
//! Process context; functions may sleep. Locks that a caller holds are named at the function.

use crate::{
    direct::{tcp_lives, MSG_ZEROCOPY},
    nic::{whole_pages, Conn},
};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
    time::{delay::fsleep, Delta},
};
use kernel_ext::{
    net::socket::{Incoming, Outgoing, Tcp, Waiting, Zerocopy},
    sched::is_killed,
};
use protocol::ds::{SourceId, SourceState, Stream};

/// Maximum number of bytes lent at a time. The value keeps locked memory within usual limits.
const MOST: usize = 1 << 20;
/// Time in ms that a killed process waits for the peer's confirmation that memory was withdrawn.
const KILLED_MS: u64 = 2000;
/// Maximum time in ms that other processes wait for that confirmation, even if the peer timeout is
/// longer.
const WITHDRAWN_MS: u64 = 20_000;
/// Time in ns for which sources stay reserved between two calls of a zero-copy reader.
const GRACE: u64 = 2_000_000;

/// Treatment of the next bytes of a message.
pub(crate) enum Next {
    /// Copy this number of bytes.
    Copy(usize),
    /// Lend memory: address and number of bytes.
    Lend(usize, usize),
    /// Wait until other lent memory is released, then lend this number of bytes.
    Full(usize),
}

/// Returns the treatment of the next bytes. Memory of at least `least` bytes is lent. With `None`,
/// all bytes are copied.
pub(crate) fn next(conn: &Conn, msg: &Outgoing<'_>, least: Option<usize>) -> Next {
    let left = msg.remaining();
    let Some(least) = least.filter(|least| *least > 0 && left >= *least) else {
        return Next::Copy(left);
    };
    let Some((start, len)) = msg.next_piece() else {
        return Next::Copy(left);
    };
    let (before, bytes) = whole_pages((start, len));
    let room = conn.peek(|inner| inner.direct().map_or(0, |s| s.sending().source_room()));
    if bytes < least {
        return Next::Copy(left);
    }
    if room == 0 {
        let full = sources_full(conn) && msg.flags() & MSG_ZEROCOPY != 0;
        conn.count_not_lent();
        return if full {
            Next::Full(left)
        } else {
            Next::Copy(left)
        };
    }
    match before {
        0 => Next::Lend(start, bytes.min(MOST).min(room as usize)),
        // Bytes before the first whole page are copied.
        _ => Next::Copy(before),
    }
}

/// Returns whether the maximum of lent memory is in use and will be released. Returns false if
/// sending is impossible.
pub(crate) fn sources_full(conn: &Conn) -> bool {
    let full = |s: &mut Stream| s.can_send() && s.sending().sources_full();
    conn.peek(|inner| inner.direct().is_some_and(full))
}

/// Returns the state of lent memory; `None` if the memory was withdrawn before it was announced.
fn state(conn: &Conn, id: SourceId) -> Option<SourceState> {
    conn.peek(|inner| inner.direct().and_then(|s| s.sending().source(id)))
}

/// Returns whether the lent memory is released or the connection has ended.
fn is_finished(conn: &Conn, id: SourceId) -> bool {
    let ended = |inner: &mut crate::nic::Inner| inner.direct().is_none_or(|s| s.end().is_some());
    conn.peek(ended) || state(conn, id).is_none_or(|s| s.finished)
}

/// Withdraws lent memory that the peer has not begun to fetch, and waits for the peer's
/// confirmation.
///
/// The peer's kernel confirms at once, independently of its program. If no message arrives from a
/// peer, the streams' own timeout declares that peer dead, so this call need not end early. A peer
/// that sends other messages but no confirmation violates the protocol. After twice that timeout,
/// up to [`WITHDRAWN_MS`], the connection is aborted, because no signal ends this wait.
///
/// A killed process waits for [`KILLED_MS`] only. The memory may then still be in use when this
/// function returns. The connection stays, because other processes may have it open.
fn withdraw((tcp, conn): (&Tcp, &Arc<Conn>), id: SourceId) -> Option<SourceState> {
    let last = state(conn, id);
    let mut asked = false;
    let mut waited = 0;
    loop {
        tcp_lives(tcp, conn);
        if !asked {
            // A writer that is copying to the send ring may block on a page fault, so the lock is
            // only tried.
            let writer = conn.writer.try_lock();
            let alone = writer.is_some();
            let ask = |s: &mut Stream| s.withdraw_source(id, alone);
            asked = conn.with(|inner, _| inner.direct().is_none_or(ask));
        }
        if asked && is_finished(conn, id) {
            // The memory was perhaps never announced to the peer.
            return state(conn, id).or(last.map(|s| SourceState {
                acknowledged: 0,
                finished: true,
                ..s
            }));
        }
        let killed = is_killed();
        let most = if killed {
            KILLED_MS
        } else {
            (2 * conn.dead_ms()).min(WITHDRAWN_MS)
        };
        if waited >= most && killed {
            return state(conn, id);
        }
        if waited >= most {
            break;
        }
        let pause = (waited / 8).clamp(1, 50);
        fsleep(Delta::from_millis(pause as i64));
        waited += pause;
    }
    conn.with(|inner, now| inner.direct().map(|s| s.abort(now)));
    state(conn, id)
}

/// Lends `bytes` bytes from address `start` to the peer and waits until the peer has received them.
/// Returns the number of bytes received. Returns `None` if the caller must copy the bytes.
///
/// # Errors
///
/// Returns the error of the wait, if the peer received no byte.
pub(crate) fn send(
    (tcp, conn): (&Tcp, &Arc<Conn>),
    msg: &mut Outgoing<'_>,
    waiting: &mut Waiting<'_>,
    (start, bytes): (usize, usize),
) -> Result<Option<usize>> {
    let Ok(source) = conn.source(start, bytes) else {
        return Ok(None);
    };
    let id = {
        let _writer = conn.writer.lock();
        conn.with(|inner, _| {
            let stream = inner.direct()?;
            stream.commit_source(bytes as u32, source.nla())
        })
    };
    let Some(id) = id else {
        source.revoke();
        return Ok(None);
    };
    let waited = waiting.until(|| {
        tcp_lives(tcp, conn);
        is_finished(conn, id).then_some(())
    });
    let state = match waited {
        Ok(()) => state(conn, id),
        Err(_) => withdraw((tcp, conn), id),
    };
    if state.is_some_and(|s| s.finished) {
        conn.with(|inner, _| inner.direct().map(|s| s.disown_source(id)));
        // The peer does not read the memory any more.
        drop(source);
    } else if let Err(source) = conn.defer_release(id, source) {
        // The connection has ended, so no confirmation of the peer will arrive.
        conn.with(|inner, _| inner.direct().map(|s| s.disown_source(id)));
        source.revoke();
    }
    let n = state.map_or(0, |s| s.acknowledged) as usize;
    msg.skip(n);
    conn.sent.fetch_add(n as u64, Relaxed);
    conn.count_lent(n);
    match waited {
        Err(e) if n == 0 => Err(e),
        _ => Ok(Some(n)),
    }
}

/// Lends `bytes` bytes from address `start` to the peer without waiting. Returns the number of lent
/// bytes. Returns `None` if the caller must copy the bytes. The completion is signalled when the
/// peer has finished reading. The caller holds the connection's `writer`.
pub(crate) fn send_later(
    conn: &Arc<Conn>,
    msg: &mut Outgoing<'_>,
    completion: &Arc<Zerocopy>,
    (start, bytes): (usize, usize),
) -> Option<usize> {
    let source = conn.source(start, bytes).ok()?;
    if let Err(source) = conn.lend_later(source, bytes, completion) {
        source.revoke();
        return None;
    }
    msg.skip(bytes);
    conn.sent.fetch_add(bytes as u64, Relaxed);
    conn.count_lent(bytes);
    Some(bytes)
}

/// Zero-copy state of one receive call.
pub(crate) struct Reader<'a> {
    conn: &'a Arc<Conn>,
    /// Set if the call received bytes without copying.
    used: bool,
    /// Set if memory could not be registered. From then on the call copies.
    copies: bool,
}

impl<'a> Reader<'a> {
    /// Creates the state for a call that reads `len` bytes. Returns `None` if the call must copy:
    /// `len` is less than `least`, or `least` is 0 or `None`.
    pub(crate) fn new(conn: &'a Arc<Conn>, len: usize, least: Option<usize>) -> Option<Self> {
        if least.is_some_and(|least| least > 0 && len >= least) {
            return Some(Self {
                conn,
                used: false,
                copies: false,
            });
        }
        // Releases sources that were reserved for a reader, because that reader may not come.
        let held =
            |inner: &mut crate::nic::Inner| inner.direct().is_some_and(|s| s.receiving().is_held());
        if conn.peek(held) {
            conn.with(|inner, _| inner.direct().map(|s| s.release_sources(None)));
        }
        None
    }

    /// Returns the number of bytes before the first whole page of the memory to fill next, and the
    /// number of bytes in whole pages.
    fn room(&self, msg: &Incoming<'_>, left: usize) -> (usize, usize) {
        let piece = msg.next_piece().unwrap_or((0, 0));
        whole_pages((piece.0, piece.1.min(left)))
    }

    /// Reserves the peer's sources for this call. Only bytes that the call must copy go to the
    /// ring.
    pub(crate) fn hold(&self, msg: &Incoming<'_>, left: usize) {
        let (before, bytes) = self.room(msg, left);
        self.conn.with(|inner, _| {
            let Some(stream) = inner.direct() else {
                return;
            };
            if self.copies || bytes == 0 {
                return stream.release_sources(None);
            }
            let there = stream.receiving().available() as usize;
            stream.hold_sources(before.saturating_sub(there) as u32);
        });
    }

    /// Receives the next bytes in the memory of the call. Returns the number of bytes received.
    /// Returns `None` if the caller must copy the bytes.
    ///
    /// # Errors
    ///
    /// Returns the error of the wait, if no byte was received.
    pub(crate) fn receive(
        &mut self,
        tcp: &Tcp,
        msg: &mut Incoming<'_>,
        left: usize,
        waiting: &mut Waiting<'_>,
    ) -> Result<Option<usize>> {
        let conn = self.conn;
        let (before, bytes) = self.room(msg, left);
        let pending = conn.peek(|inner| inner.direct().map_or(0, |s| s.receiving().pending()));
        let (_, bytes) = whole_pages((0, bytes.min(pending as usize).min(MOST)));
        let start = msg.next_piece().map(|(start, _)| start);
        let (Some(start), true) = (start, before == 0 && bytes > 0) else {
            return Ok(self.copy());
        };
        let Ok(sink) = conn.sink(start, bytes) else {
            self.copies = true;
            return Ok(self.copy());
        };
        let offered = conn.with(|inner, _| {
            let n = inner.direct()?.offer_sink(bytes as u32)?;
            inner.lend(Some(sink.clone()));
            Some(n)
        });
        if offered.is_none() {
            return Ok(self.copy());
        }
        let waited = waiting.until(|| {
            tcp_lives(tcp, conn);
            conn.peek(|inner| {
                let Some(stream) = inner.direct() else {
                    return Some(());
                };
                let whole = stream.receiving().sunk().is_none_or(|(_, whole)| whole);
                (whole || stream.end().is_some()).then_some(())
            })
        });
        // The last reference must be dropped without the lock.
        let (n, lent) = conn.with(|inner, _| {
            let n = inner.stream_mut().map_or(0, |s| s.withdraw_sink());
            (n as usize, inner.lend(None))
        });
        drop(lent);
        // Late GET data must not be written to memory that the program reuses. If the NIC cannot
        // confirm that, the connection is aborted.
        if !sink.end() {
            conn.with(|inner, now| inner.direct().map(|s| s.abort(now)));
        }
        msg.skip(n);
        conn.count_sunk(n);
        self.used |= n > 0;
        match waited {
            Err(e) if n == 0 => Err(e),
            _ => Ok(Some(n)),
        }
    }

    /// Releases the reserved sources to the ring, so that the remaining bytes are copied.
    fn copy(&self) -> Option<usize> {
        let release = |s: &mut Stream| s.release_sources(None);
        self.conn.with(|inner, _| inner.direct().map(release));
        None
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let until = |now: protocol::Time| self.used.then(|| now.after(GRACE));
        self.conn.with(|inner, now| {
            let until = until(now);
            inner.direct().map(|s| s.release_sources(until))
        });
    }
}
