// SPDX-License-Identifier: GPL-2.0-only

//! Operations on sockets with direct connections, with the semantics of TCP's.
//!
//! Process context; functions may sleep. Lock order: the mutex `writer` or `reader` of the
//! [`Conn`], then its spin lock. User memory is copied only while one of the mutexes is held.

mod poll;

pub(crate) use poll::{ioctl, poll, poll_undecided};

use crate::{
    connection::{Connection, Mode},
    nic::{copy, Conn, Rings},
    zero::{self, Next, Reader},
};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
};
use kernel_ext::net::socket::{is_exiting, Incoming, Linger, Outgoing, State, Tcp, Waiting};
use protocol::ds::{Span, Stream};

/// Argument of shutdown(2).
const SHUT_WR: i32 = 1;

/// Flags of sendmsg and recvmsg.
pub(crate) const MSG_OOB: u32 = 0x1;
pub(crate) const MSG_PEEK: u32 = 0x2;
const MSG_TRUNC: u32 = 0x20;
pub(crate) const MSG_DONTWAIT: u32 = 0x40;
const MSG_WAITALL: u32 = 0x100;
const MSG_MORE: u32 = 0x8000;
pub(crate) const MSG_ZEROCOPY: u32 = 0x0400_0000;

/// Maximum number of bytes copied before they are announced to the peer.
const CHUNK: u32 = 64 << 10;

/// Result of a check that may end the wait of an operation.
enum Found {
    /// The ring has free space for a sender, or data for a receiver.
    Some(Arc<Rings>, Span),
    /// The peer's memory contains data that a zero-copy reader can receive directly.
    Source,
    /// The stream has ended: the peer has finished, and all data were read.
    End,
    /// The connection has ended, or the program has shut down the receiving direction.
    Ended,
    /// The sock has an error that does not end the connection.
    Failed,
}

/// Waits until the carrier of the data is decided, or until `enough` is true.
///
/// # Errors
///
/// `EAGAIN`: the timeout has elapsed. A pending signal returns the signal's error.
pub(crate) fn decided(
    data: &Connection,
    waiting: &mut Waiting<'_>,
    enough: fn(&Connection) -> bool,
) -> Result<Mode> {
    waiting.until(|| match data.mode() {
        Mode::Waiting if !enough(data) => None,
        mode => Some(mode),
    })
}

/// Returns whether TCP's connection exists. If not, notifies the direct connection.
pub(crate) fn tcp_lives(tcp: &Tcp, conn: &Arc<Conn>) -> bool {
    let lives = tcp.state() != State::Close;
    if !lives {
        conn.tcp_ended();
    }
    lives
}

/// Returns the result of `find`. Returns [`Found::Failed`] if nothing was found and the sock has an
/// error that does not end the connection (with `IP_RECVERR`).
fn find(tcp: &Tcp, conn: &Arc<Conn>, find: impl Fn() -> Option<Found>) -> Option<Found> {
    let lives = tcp_lives(tcp, conn);
    let found = find();
    if found.is_none() && lives && conn.sock().error().is_some() {
        // Data that arrived before the error are returned first.
        return find().or(Some(Found::Failed));
    }
    found
}

/// Returns free space for `most` bytes in the send ring. Returns less only if the socket counts as
/// writable. Therefore small sends are neither split nor interleaved with those of other threads.
fn send_room(conn: &Conn, most: usize) -> Option<Found> {
    conn.peek(|inner| {
        let rings = inner.rings();
        let (Some(stream), Some(rings)) = (inner.direct(), rings) else {
            return Some(Found::Ended);
        };
        if !stream.can_send() {
            return Some(Found::Ended);
        }
        let room = stream.sending().room();
        let most = u32::try_from(most).unwrap_or(CHUNK).min(CHUNK);
        if room.len < most && !stream.ready().writable {
            return None;
        }
        let len = room.len.min(most);
        Some(Found::Some(rings, Span { at: room.at, len }))
    })
}

/// Sends a message. `waiting` is the timeout of the call.
pub(crate) fn send(
    tcp: &Tcp,
    data: &Connection,
    conn: &Arc<Conn>,
    msg: &mut Outgoing<'_>,
    waiting: Waiting<'_>,
) -> Result<usize> {
    let flags = msg.flags();
    if flags & MSG_OOB != 0 {
        return Err(EOPNOTSUPP);
    }
    msg.check_control(tcp)?;
    let mut done = 0;
    let may = !waiting.is_over() || flags & MSG_ZEROCOPY != 0;
    let lends = may.then(|| data.zero_copy());
    let result = send_all(tcp, conn, msg, (waiting, lends), &mut done);
    data.sent_direct(done);
    if done > 0 {
        if msg.remaining() > 0 && flags & MSG_MORE == 0 {
            // Corked data are sent now, because `MSG_MORE` does not announce further data.
            push(tcp, conn);
        }
        return Ok(done);
    }
    match result {
        Ok(()) => Ok(0),
        Err(EPIPE) => {
            // As in TCP, a reset after the peer's end is reported as `EPIPE`.
            let finished = |s: &mut Stream| s.receiving().is_finished();
            if conn.peek(|inner| inner.direct().is_some_and(finished))
                && conn.sock().error() == Some(ECONNRESET)
            {
                let _ = tcp.take_error();
            }
            conn.forget_second_error();
            let reported = conn.sock().error().is_some();
            let error = tcp.sending_failed(flags, EPIPE);
            if reported {
                conn.error_seen();
            }
            Err(error)
        }
        Err(e) => Err(e),
    }
}

/// Sends until all data are in the ring or lent to the peer, or until an error occurs. The caller
/// ignores the error if bytes were sent. `EPIPE` also stands for an error of the sock.
fn send_all(
    tcp: &Tcp,
    conn: &Arc<Conn>,
    msg: &mut Outgoing<'_>,
    (mut waiting, mut lends): (Waiting<'_>, Option<usize>),
    done: &mut usize,
) -> Result {
    let flags = msg.flags();
    let mut completion = None;
    loop {
        if msg.remaining() == 0 && *done > 0 {
            return Ok(());
        }
        let next = zero::next(conn, msg, lends);
        let left = match next {
            Next::Copy(n) | Next::Lend(_, n) | Next::Full(n) => n,
        };
        let ended = |found: &Found| matches!(found, Found::Ended | Found::Failed);
        tcp_lives(tcp, conn);
        if conn.sock().error().is_some() || send_room(conn, left).as_ref().is_some_and(ended) {
            return Err(EPIPE);
        }
        if left == 0 {
            return Ok(());
        }
        if let Next::Lend(start, bytes) = next {
            let what = (start, bytes);
            let writer = conn.writer.lock();
            if *done == 0 && completion.is_none() {
                completion = msg.zerocopy(tcp)?;
            }
            let lent = match &completion {
                Some(completion) => zero::send_later(conn, msg, completion, what),
                // `MSG_ZEROCOPY` without `SO_ZEROCOPY` on a non-blocking call: copy.
                None if waiting.is_over() => None,
                None => {
                    drop(writer);
                    zero::send((tcp, conn), msg, &mut waiting, what)?
                }
            };
            let Some(n) = lent else {
                if *done == 0 {
                    // The completion is dropped with the lock held, because completion numbers are
                    // assigned in order.
                    completion = None;
                }
                lends = None;
                continue;
            };
            *done += n;
            if let (Some(completion), true) = (&completion, n > 0) {
                completion.sent(false);
            }
            // The next iteration finds that the connection has ended.
            if n < bytes && *done > 0 {
                return Ok(());
            }
            continue;
        }
        if let Next::Full(_) = next {
            if waiting.is_over() {
                // `poll` reports only free space in the ring, so a non-blocking call copies.
                lends = None;
                continue;
            }
            let free = || (!zero::sources_full(conn)).then_some(Found::Source);
            waiting.until(|| find(tcp, conn, free))?;
            continue;
        }
        if send_room(conn, left).is_none() {
            tcp.no_space();
            waiting.until_next(|| find(tcp, conn, || send_room(conn, left)))?;
        }
        // Only one thread may write at a time, because data follow those already committed.
        let writer = conn.writer.lock();
        let Some(Found::Some(rings, span)) = send_room(conn, left) else {
            continue;
        };
        if *done == 0 && completion.is_none() {
            completion = msg.zerocopy(tcp)?;
        }
        let (pages, base) = (rings.send.memory(), rings.send.offset());
        let ring = (pages, base, rings.send.bytes() as u32);
        let copied = copy(ring, span, |pages, at, len| msg.copy_in(pages, at, len));
        let n = *copied.as_ref().unwrap_or(&0);
        let more = flags & MSG_MORE != 0 || msg.remaining() > 0 || tcp.is_corked();
        let taken = conn.with(|inner, now| match inner.direct() {
            Some(stream) if n > 0 => stream.commit(n, more, now),
            _ => false,
        });
        if !taken {
            // The completion is dropped before the lock is released, so that no other thread gets
            // the next number first.
            drop(completion);
            drop(writer);
            return copied.and(Err(EPIPE));
        }
        if let Some(completion) = &completion {
            completion.sent(true);
        }
        drop(writer);
        *done += n as usize;
        conn.sent.fetch_add(n.into(), Relaxed);
        if n < span.len {
            return Ok(());
        }
    }
}

/// Sends corked data, unless the program has set a cork.
pub(crate) fn push(tcp: &Tcp, conn: &Arc<Conn>) {
    if !tcp.is_corked() {
        conn.with(|inner, _| inner.direct().map(Stream::push));
    }
}

/// Returns up to `most` readable bytes after the first `skip`, or the reason why there are none.
fn found(conn: &Conn, rcv_shut: bool, skip: u32, most: usize) -> Option<Found> {
    conn.peek(|inner| {
        let rings = inner.rings();
        let (Some(stream), Some(rings)) = (inner.direct(), rings) else {
            return Some(Found::Ended);
        };
        let span = stream.receiving().readable_behind(skip);
        if span.len > 0 {
            let len = span.len.min(u32::try_from(most).unwrap_or(u32::MAX));
            return Some(Found::Some(rings, Span { len, ..span }));
        }
        if stream.receiving().is_held() && stream.receiving().can_sink() && stream.end().is_none() {
            return Some(Found::Source);
        }
        if stream.receiving().is_finished() {
            return Some(Found::End);
        }
        (rcv_shut || stream.end().is_some()).then_some(Found::Ended)
    })
}

/// Receives a message. `waiting` is the timeout of the call.
pub(crate) fn receive(
    tcp: &Tcp,
    data: &Connection,
    conn: &Arc<Conn>,
    msg: &mut Incoming<'_>,
    (len, flags): (usize, u32),
    waiting: Waiting<'_>,
) -> Result<usize> {
    if flags & MSG_OOB != 0 {
        return Err(EINVAL);
    }
    let mut done = 0;
    let result = receive_all(tcp, data, conn, msg, (len, flags), waiting, &mut done);
    if done == 0 {
        result?;
    } else if flags & MSG_PEEK == 0 {
        data.received_direct(done);
        conn.received.fetch_add(done as u64, Relaxed);
    }
    if msg.wants_inq(tcp) {
        let left = conn.peek(|inner| {
            let stream = inner.direct()?;
            let left = stream.receiving().available() as usize;
            // The end of the stream counts as a byte, as with TCP.
            Some(left + usize::from(stream.receiving().is_finished()))
        });
        msg.answer_inq(tcp, left.unwrap_or(0));
    }
    Ok(done)
}

/// Receives as long as TCP would. Adds the bytes received to `done`; the caller ignores the error
/// if there are any.
fn receive_all(
    tcp: &Tcp,
    data: &Connection,
    conn: &Arc<Conn>,
    msg: &mut Incoming<'_>,
    (len, flags): (usize, u32),
    mut waiting: Waiting<'_>,
    done: &mut usize,
) -> Result {
    let target = tcp.rcvlowat(flags & MSG_WAITALL != 0, len);
    let peek = flags & MSG_PEEK != 0;
    let offset = if peek { tcp.peek_offset() } else { None };
    let from = offset.unwrap_or(0);
    let may = !peek && flags & MSG_TRUNC == 0 && !waiting.is_over();
    let mut sinks = Reader::new(conn, len, may.then(|| data.zero_copy()));
    loop {
        let skip = if peek { (from + *done) as u32 } else { 0 };
        if let Some(sinks) = &sinks {
            sinks.hold(msg, len - *done);
        }
        let reader = conn.reader.lock();
        let what = match found(conn, data.is_rcv_shut(), skip, len - *done) {
            Some(Found::Some(rings, span)) => {
                let n = copy_to_msg(conn, msg, &rings, span, flags)?;
                tcp.peeked(n as usize, peek);
                *done += n as usize;
                // More data may follow withdrawn memory and the end of the ring.
                if *done >= len || n < span.len {
                    return Ok(());
                }
                continue;
            }
            other => other,
        };
        drop(reader);
        let source = matches!(what, Some(Found::Source)) && sinks.is_some();
        if *done >= target && !source {
            return Ok(());
        }
        let what = match what {
            Some(what) => what,
            None => {
                let rcv_shut = || data.is_rcv_shut();
                let ready = || find(tcp, conn, || found(conn, rcv_shut(), skip, len - *done));
                let waits = !waiting.is_over();
                let busily = if waits { tcp.busy_poll() } else { 0 };
                match conn.poll_busily(busily, ready) {
                    Some(what) => what,
                    None => match waiting.until_next(ready) {
                        // A call for 0 bytes ends successfully after its timeout.
                        Err(EAGAIN) if len == 0 && waits => return Ok(()),
                        found => found?,
                    },
                }
            }
        };
        match what {
            Found::Some(..) => {}
            Found::Source => {
                let taken = match &mut sinks {
                    Some(sinks) => sinks.receive(tcp, msg, len - *done, &mut waiting)?,
                    // The source was reserved for another reader, which did not call again.
                    None => {
                        Reader::new(conn, 0, None);
                        None
                    }
                };
                // Without a result the connection has ended, which the next iteration detects.
                *done += taken.unwrap_or(0);
                if *done >= len {
                    return Ok(());
                }
            }
            Found::End => return Ok(()),
            _ if *done > 0 => return Ok(()),
            Found::Ended => {
                conn.forget_second_error();
                return tcp.take_error().inspect_err(|_| conn.error_seen());
            }
            // Another thread may have received the error already.
            Found::Failed => tcp.take_error()?,
        }
    }
}

/// Copies data of the ring to the message. Returns the number of bytes copied.
fn copy_to_msg(
    conn: &Arc<Conn>,
    msg: &mut Incoming<'_>,
    rings: &Rings,
    span: Span,
    flags: u32,
) -> Result<u32> {
    let n = if flags & MSG_TRUNC != 0 {
        span.len
    } else {
        let (pages, base) = (rings.receive.memory(), rings.receive.offset());
        let ring = (pages, base, rings.receive.bytes() as u32);
        copy(ring, span, |pages, at, len| msg.copy_out(pages, at, len))?
    };
    if flags & MSG_PEEK == 0 {
        conn.consume(n);
    }
    Ok(n)
}

/// Shuts down one or both directions. `how` is the argument of `shutdown(2)`.
///
/// # Errors
///
/// `ENOTCONN`: the connection has ended. `EINVAL`: invalid `how`.
pub(crate) fn shutdown(data: &Connection, conn: &Arc<Conn>, how: i32) -> Result {
    if !(0..=2).contains(&how) {
        return Err(EINVAL);
    }
    let ended = conn.with(|inner, _| match inner.direct() {
        Some(stream) if stream.end().is_none() => {
            if how != 0 {
                stream.shut();
            }
            if how != 1 {
                stream.shut_receive();
            }
            false
        }
        _ => true,
    });
    if ended {
        return Err(ENOTCONN);
    }
    if how != 1 {
        data.set_rcv_shut();
    }
    conn.wake_all();
    Ok(())
}

/// Returns whether the connection has ended.
pub(crate) fn has_ended(conn: &Conn) -> bool {
    conn.peek(|inner| inner.direct().is_none_or(|stream| stream.end().is_some()))
}

/// Closes the connection after the last descriptor was closed. Waits according to `SO_LINGER`.
pub(crate) fn release(tcp: &Tcp, data: &Connection, conn: &Arc<Conn>) {
    let direct = conn.peek(|inner| inner.direct().is_some());
    if direct && conn.sock().queued().unread > 0 {
        data.got_tcp_data();
    }
    let linger = tcp.linger();
    if direct && linger != Linger::Abort {
        // TCP's FIN is sent before the end of the stream. Otherwise a peer that closes on the
        // stream's end would close TCP first and keep the port in TIME_WAIT.
        let _ = tcp.shutdown(SHUT_WR);
    }
    conn.close(linger == Linger::Abort);
    if let (Linger::Wait(longest), false) = (linger, is_exiting()) {
        let mut waiting = tcp.timeout(longest);
        let _ = waiting.until(|| {
            let waits = conn.peek(|inner| {
                let stream = inner.direct()?;
                let all = stream.sending().end_acknowledged() || stream.end().is_some();
                (!all).then_some(())
            });
            waits.is_none().then_some(())
        });
        // TCP waits in its own close for the remaining time only.
        tcp.lingered(waiting.left());
    }
}
