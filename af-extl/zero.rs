// SPDX-License-Identifier: GPL-2.0-only

//! Large calls whose data are not copied: the peer reads the sender's memory, and the reader's is
//! fetched to. What can't go this way is copied by [`crate::direct`].

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

/// Bytes that are lent at a time, so that locked memory stays within usual limits.
const MOST: usize = 1 << 20;
/// So long, in milliseconds, who is killed waits for what the peer says of withdrawn memory.
const KILLED_MS: u64 = 2000;
/// So long, in milliseconds, anybody else does at most, however patient the connection is.
const WITHDRAWN_MS: u64 = 20_000;
/// So long, in nanoseconds, a reader is waited for that takes sources to its memory.
const GRACE: u64 = 2_000_000;

/// What is done with the next bytes of a message.
pub(crate) enum Next {
    /// So many are copied.
    Copy(usize),
    /// So many are lent, from this address on.
    Lend(usize, usize),
    /// So many will be when something else is over that is lent.
    Full(usize),
}

/// How the next bytes go that a process sends: so many or more are lent. `None`: all are copied.
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
        let full = is_lent_out(conn) && msg.flags() & MSG_ZEROCOPY != 0;
        conn.count_not_lent();
        return if full {
            Next::Full(left)
        } else {
            Next::Copy(left)
        };
    }
    match before {
        0 => Next::Lend(start, bytes.min(MOST).min(room as usize)),
        // Up to the first whole page.
        _ => Next::Copy(before),
    }
}

/// Whether nothing more can be lent until something is over; not if nothing can be sent any more.
pub(crate) fn is_lent_out(conn: &Conn) -> bool {
    let lent_out = |s: &mut Stream| s.can_send() && s.sending().is_lent_out();
    conn.peek(|inner| inner.direct().is_some_and(lent_out))
}

/// What became of lent memory; nothing of one that nobody was told of.
fn state(conn: &Conn, id: SourceId) -> Option<SourceState> {
    conn.peek(|inner| inner.direct().and_then(|s| s.sending().source(id)))
}

/// Whether there is nothing to wait for.
fn is_over(conn: &Conn, id: SourceId) -> bool {
    let ended = |inner: &mut crate::nic::Inner| inner.direct().is_none_or(|s| s.end().is_some());
    conn.peek(ended) || state(conn, id).is_none_or(|s| s.over)
}

/// Takes back what the peer has not begun to fetch. It answers at once, whatever its program does. One
/// that says nothing is dead as it always would be, by the streams' own clock: so who gives up early
/// loses no connection that is slow. One that says all but this breaks the rules, and is given twice
/// that time; not more than a constant, as no signal ends this. Who is killed does not wait for that:
/// then it may not be over when this returns, and the connection is not either, which others may have
/// open.
fn withdraw((tcp, conn): (&Tcp, &Arc<Conn>), id: SourceId) -> Option<SourceState> {
    let last = state(conn, id);
    let mut asked = false;
    let mut waited = 0;
    loop {
        tcp_lives(tcp, conn);
        if !asked {
            // Who copies to the send ring has a place there, and may be held up by memory that does not come.
            let writer = conn.writer.try_lock();
            let alone = writer.is_some();
            let ask = |s: &mut Stream| s.withdraw_source(id, alone);
            asked = conn.with(|inner, _| inner.direct().is_none_or(ask));
        }
        if asked && is_over(conn, id) {
            // It may never have been there.
            return state(conn, id).or(last.map(|s| SourceState {
                acknowledged: 0,
                over: true,
                ..s
            }));
        }
        let killed = is_killed();
        let most = match killed {
            true => KILLED_MS,
            false => (2 * conn.dead_ms()).min(WITHDRAWN_MS),
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

/// Lends `bytes` bytes from `start` to the peer, and waits until it has them: how many it has, and
/// whether that is all there was to wait for. `None`: they have to be copied.
///
/// # Errors
///
/// Those of waiting, if the peer has nothing of it.
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
        is_over(conn, id).then_some(())
    });
    let state = match waited {
        Ok(()) => state(conn, id),
        Err(_) => withdraw((tcp, conn), id),
    };
    if state.is_some_and(|s| s.over) {
        conn.with(|inner, _| inner.direct().map(|s| s.let_source_go(id)));
        // Nobody reads it any more.
        drop(source);
    } else if let Err(source) = conn.settle_later(id, source) {
        // The connection is over: nothing more comes of it.
        conn.with(|inner, _| inner.direct().map(|s| s.let_source_go(id)));
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

/// Lends `bytes` bytes from `start` to the peer: how many. The completion comes when nobody reads them
/// any more. `None`: they have to be copied. With the connection's `writer` locked.
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

/// A call that takes sources to its memory, as long as it lasts.
pub(crate) struct Reader<'a> {
    conn: &'a Arc<Conn>,
    /// It has taken some.
    took: bool,
    /// What can't be registered is copied.
    copies: bool,
}

impl<'a> Reader<'a> {
    /// For a call that reads `len` bytes, if so many or more are taken; `None` if it copies, as it
    /// always does without such a bound.
    pub(crate) fn new(conn: &'a Arc<Conn>, len: usize, least: Option<usize>) -> Option<Self> {
        if least.is_some_and(|least| least > 0 && len >= least) {
            return Some(Self {
                conn,
                took: false,
                copies: false,
            });
        }
        // Nobody may come who is waited for.
        let held =
            |inner: &mut crate::nic::Inner| inner.direct().is_some_and(|s| s.receiving().is_held());
        if conn.peek(held) {
            conn.with(|inner, _| inner.direct().map(|s| s.release_sources(None)));
        }
        None
    }

    /// Bytes before the next whole page, and of whole pages, of the memory that is filled next.
    fn room(&self, msg: &Incoming<'_>, left: usize) -> (usize, usize) {
        let piece = msg.next_piece().unwrap_or((0, 0));
        whole_pages((piece.0, piece.1.min(left)))
    }

    /// What comes next from the peer's memory goes to the ring only as far as it has to be copied.
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

    /// Takes the next bytes to the memory of the call: how many; `None` if they have to be copied.
    ///
    /// # Errors
    ///
    /// Those of waiting, if nothing was taken.
    pub(crate) fn take(
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
        // One reference more is dropped without the lock.
        let (n, lent) = conn.with(|inner, _| {
            let n = inner.stream_mut().map_or(0, |s| s.withdraw_sink());
            (n as usize, inner.lend(None))
        });
        drop(lent);
        // Late answers must not find what the program does with its memory next. Where the NIC does not
        // say that they won't, no more is received.
        if !sink.end() {
            conn.with(|inner, now| inner.direct().map(|s| s.abort(now)));
        }
        msg.skip(n);
        conn.count_sunk(n);
        self.took |= n > 0;
        match waited {
            Err(e) if n == 0 => Err(e),
            _ => Ok(Some(n)),
        }
    }

    /// What is left goes to the ring.
    fn copy(&self) -> Option<usize> {
        let release = |s: &mut Stream| s.release_sources(None);
        self.conn.with(|inner, _| inner.direct().map(release));
        None
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let until = |now: protocol::Time| self.took.then(|| now.after(GRACE));
        self.conn.with(|inner, now| {
            let until = until(now);
            inner.direct().map(|s| s.release_sources(until))
        });
    }
}
