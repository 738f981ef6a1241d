//! Framing of vfio-user messages: conversion between messages, and bytes and file descriptors of a
//! stream socket.

use super::proto::{Header, HEADER_LEN, MAX_FDS, MAX_MESSAGE};
use super::session::{Session, TAKEN};
use super::Device;
use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    recvmsg, send, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags,
};
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

const READ_CHUNK: usize = 64 << 10;
/// Maximum number of bytes received while the device is not ready. They are received because
/// answers to DMA messages may be among them.
const AHEAD: usize = 8 << 20;
/// Number of unsent reply bytes above which no message is executed until the client has read some.
const TX_HIGH_WATER: usize = 4 << 20;

/// Reason why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum Closed {
    /// The client has closed its end of the socket.
    #[error("client closed the connection")]
    Eof,
    /// An operation on the socket failed.
    #[error("socket error: {0}")]
    Io(#[from] Errno),
    /// The stream contains bytes that can't be decoded.
    #[error("protocol violation: {0}")]
    Protocol(String),
}

/// State of a connection after a call of [`Connection::service`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// True if complete messages are pending. The caller must call again without waiting for the
    /// socket.
    pub more: bool,
    /// True if replies wait for space in the socket. The caller must watch the socket for
    /// writability.
    pub want_write: bool,
    /// True if the device is not ready for the next message. The caller must call again when the
    /// device is ready, and watch the socket for reading only if `listen` is set.
    pub waiting: bool,
    /// True if answers of the client are expected although the device is not ready.
    pub listen: bool,
}

/// Connection to a client.
pub struct Connection {
    stream: UnixStream,
    session: Session,
    rx: Vec<u8>,
    /// Index of the first unconsumed byte in `rx`.
    head: usize,
    /// Stream position of `rx[head]`.
    pos: u64,
    /// Received file descriptors. Each group has the stream position of the last byte that was
    /// received with it. That byte belongs to the message that the group belongs to.
    fds: VecDeque<(u64, Vec<OwnedFd>)>,
    tx: VecDeque<u8>,
    /// Stream position up to which answers were searched among the pending messages.
    searched: u64,
    /// True if the client has closed its end of the socket. Its last messages may still be pending.
    eof: bool,
    /// Number of `recvmsg` calls and number of executed messages.
    stats: (u64, u64),
}

impl Connection {
    /// Returns a connection for an accepted socket and makes it non-blocking.
    pub fn new(stream: UnixStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            session: Session::default(),
            rx: Vec::new(),
            head: 0,
            pos: 0,
            fds: VecDeque::new(),
            tx: VecDeque::new(),
            searched: 0,
            eof: false,
            stats: (0, 0),
        })
    }

    /// Returns the socket, so that the caller can poll it.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Returns the number of `recvmsg` calls and of executed messages.
    pub fn stats(&self) -> (u64, u64) {
        self.stats
    }

    /// Executes up to `budget` messages. Never blocks.
    pub fn service(&mut self, dev: &mut dyn Device, budget: usize) -> Result<Progress, Closed> {
        let mut left = budget;
        let mut out = Vec::new();
        let mut closed = None;
        let mut stopped = false;
        let mut waiting = false;
        let mut listen = false;
        loop {
            if !self.session.ready(dev, &mut out) {
                waiting = true;
                match self.receive_replies(dev) {
                    Ok(more) => listen = more,
                    Err(e) => closed = Some(e),
                }
                // The answer that the device waited for may be among the received answers.
                if closed.is_none() && self.session.ready(dev, &mut out) {
                    (waiting, listen) = (false, false);
                    continue;
                }
                break;
            }
            if self.tx.len() + out.len() > TX_HIGH_WATER {
                stopped = true;
                break;
            }
            match self.next_message() {
                Ok(Some((header, end))) => {
                    if left == 0 {
                        stopped = true;
                        break;
                    }
                    left -= 1;
                    let fds = self.take_fds(end);
                    self.stats.1 += 1;
                    let body = &self.rx[self.head + HEADER_LEN..self.head + header.size as usize];
                    self.session.handle(header, body, fds, dev, &mut out);
                    self.consume(header.size as usize);
                }
                Ok(None) if self.eof => {
                    closed = Some(Closed::Eof);
                    break;
                }
                Ok(None) => match self.receive() {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(e) => {
                        closed = Some(e);
                        break;
                    }
                },
                Err(e) => {
                    closed = Some(e);
                    break;
                }
            }
        }
        while self.tx.len() + out.len() <= TX_HIGH_WATER {
            let Some(request) = dev.next_request() else {
                break;
            };
            // The device may wait for the client's answer to this request.
            listen |= waiting && !self.eof && self.room_ahead();
            Session::request(request, &mut out);
        }
        self.tx.extend(out);
        let want_write = self.flush()?;
        match closed {
            Some(e) => Err(e),
            None => Ok(Progress {
                more: stopped && !want_write,
                want_write,
                waiting,
                listen,
            }),
        }
    }

    fn room_ahead(&self) -> bool {
        self.rx.len() - self.head < AHEAD
    }

    /// Processes answers of the client while the device is not ready for the client's messages.
    /// Returns `true` if more answers may arrive.
    fn receive_replies(&mut self, dev: &mut dyn Device) -> Result<bool, Closed> {
        loop {
            self.search(dev);
            if self.eof || !dev.awaits_answers() || !self.room_ahead() {
                return Ok(false);
            }
            match self.receive() {
                Ok(true) => {}
                Ok(false) => return Ok(true),
                // The messages that were received earlier are executed first.
                Err(Closed::Eof) => self.eof = true,
                Err(e) => return Err(e),
            }
        }
    }

    /// Processes answers that are behind other pending messages. An answer to a load keeps its
    /// position, because it must follow earlier stores of the device.
    fn search(&mut self, dev: &mut dyn Device) {
        let mut passed = self.searched > self.pos;
        let mut at = self.head + self.searched.saturating_sub(self.pos) as usize;
        while let Ok(Some((h, _))) = self.message_at(at) {
            let end = at + h.size as usize;
            let is_reply = Session::is_reply(&h);
            if is_reply && (!passed || Session::may_pass(&h)) {
                self.session.reply(h, &self.rx[at + HEADER_LEN..end], dev);
                self.rx[at + 2..at + 4].copy_from_slice(&TAKEN.to_le_bytes());
            } else {
                passed = true;
            }
            if passed {
                at = end;
                self.searched = self.pos + (at - self.head) as u64;
            } else {
                self.stats.1 += 1;
                self.take_fds(self.pos + u64::from(h.size));
                self.consume(h.size as usize);
                at = self.head;
            }
        }
    }

    /// Returns the complete message at the head of the buffer, and the stream position of its end.
    fn next_message(&self) -> Result<Option<(Header, u64)>, Closed> {
        self.message_at(self.head)
    }

    /// Returns the complete message at index `at` of the buffer. The stream position of its end is
    /// computed as if the message were at the head.
    fn message_at(&self, at: usize) -> Result<Option<(Header, u64)>, Closed> {
        let bytes = self.rx.get(at..).unwrap_or_default();
        let Some(h) = Header::decode(bytes) else {
            return Ok(None);
        };
        let size = h.size as usize;
        if !(HEADER_LEN..=MAX_MESSAGE).contains(&size) {
            return Err(Closed::Protocol(format!(
                "message length {size} (command {})",
                h.command
            )));
        }
        Ok((bytes.len() >= size).then_some((h, self.pos + size as u64)))
    }

    fn take_fds(&mut self, end: u64) -> Vec<OwnedFd> {
        let mut fds = Vec::new();
        while self.fds.front().is_some_and(|(at, _)| *at < end) {
            fds.extend(self.fds.pop_front().into_iter().flat_map(|(_, f)| f));
        }
        fds
    }

    fn consume(&mut self, n: usize) {
        self.head += n;
        self.pos += n as u64;
        if self.head == self.rx.len() {
            self.rx.clear();
            self.head = 0;
        }
    }

    /// Reads once from the socket. Returns `false` if no data is available.
    fn receive(&mut self) -> Result<bool, Closed> {
        if self.head > 0 {
            self.rx.drain(..self.head);
            self.head = 0;
        }
        // The buffer is made large enough to read a long message in as few calls as possible.
        let want = Header::decode(&self.rx)
            .map_or(0, |h| (h.size as usize).saturating_sub(self.rx.len()))
            .max(READ_CHUNK);
        let old = self.rx.len();
        self.rx.resize(old + want, 0);
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(64))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got = recvmsg(
            &self.stream,
            &mut [IoSliceMut::new(&mut self.rx[old..])],
            &mut control,
            flags,
        );
        self.rx.truncate(old + got.as_ref().map_or(0, |m| m.bytes));
        let got = match got {
            Ok(m) => m,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(Errno::CONNRESET) => return Err(Closed::Eof),
            Err(e) => return Err(e.into()),
        };
        self.stats.0 += 1;
        let fds: Vec<OwnedFd> = control
            .drain()
            .filter_map(|m| match m {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .collect();
        if got.flags.contains(ReturnFlags::CTRUNC) || fds.len() > MAX_FDS {
            return Err(Closed::Protocol(
                "too many file descriptors in one message".into(),
            ));
        }
        if got.bytes == 0 {
            return Err(Closed::Eof);
        }
        if !fds.is_empty() {
            self.fds
                .push_back((self.pos + self.rx.len() as u64 - 1, fds));
        }
        Ok(true)
    }

    /// Sends data until the socket is full. Returns `true` if data remains.
    fn flush(&mut self) -> Result<bool, Closed> {
        while !self.tx.is_empty() {
            let (a, _) = self.tx.as_slices();
            match send(&self.stream, a, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(n) => drop(self.tx.drain(..n)),
                Err(Errno::AGAIN) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Closed::Eof),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(false)
    }
}
