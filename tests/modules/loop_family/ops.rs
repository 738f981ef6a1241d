// SPDX-License-Identifier: GPL-2.0-only

//! Operations of the sockets whose data come back. TCP establishes the connections.

use crate::{
    path::{self, Path, RING},
    NIC,
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{atomic::Relaxed, Arc, Mutex},
};
use kernel_ext::{
    net::socket::{
        is_exiting, Addr, GetOption, Incoming, Linger, Operations, Outgoing, PollTable, Route,
        SetOption, Socket, Splice, Tcp, Wake,
    },
    timer::Timed,
};

const MSG_PEEK: i32 = 0x2;
const MSG_TRUNC: i32 = 0x20;
const MSG_DONTWAIT: u32 = 0x40;
const MSG_WAITALL: i32 = 0x100;

const POLLIN: u32 = 0x41;
const POLLOUT: u32 = 0x104;
const POLLERR: u32 = 0x8;
const POLLHUP: u32 = 0x10;
const POLLRDHUP: u32 = 0x2000;

/// Level of the socket options below.
const LEVEL: i32 = 0x4c50;
/// Set: delay of bytes in microseconds.
const DELAY: i32 = 1;
/// Set: number of the error with which the connection fails after the delay.
const FAIL: i32 = 2;
/// Set: milliseconds that `connect` waits for a neighbour. The result is in `ROUTE`.
const RESOLVE: i32 = 3;
/// Read: route of the last `connect` (`ROUTE`), or of the connection (`OWN_ROUTE`).
const ROUTE: i32 = 4;
const OWN_ROUTE: i32 = 5;
/// Read: state of TCP: received bytes, FIN received, `TCP_CORK` set.
const QUEUED: i32 = 6;
/// Set: the path outlives the socket. Read: number of times that such paths tried to wake their
/// sockets.
const OUTLIVE: i32 = 7;

/// Operations of the module's sockets.
pub(crate) struct Loop;

#[pin_data]
pub(crate) struct Data {
    path: Arc<Timed<Path>>,
    #[pin]
    set: Mutex<Set>,
}

struct Set {
    resolve_ms: u32,
    outlive: bool,
    found: Result<Found>,
}

/// Description of a route in options: index of the interface; flags (belongs to a NIC, up, plain,
/// address known); addresses of the interface and of the neighbour; name.
type Found = [u8; 40];

fn describe(route: &Route, resolve_ms: u32) -> Found {
    let of_nic = NIC.get().is_some_and(|nic| route.interface.is_of(&nic));
    let neighbour = match (&route.neighbour, resolve_ms) {
        (None, _) => Err(ENOENT),
        (Some(n), 0) => n.address().and_then(|mac| mac.ok_or(EAGAIN)),
        (Some(n), ms) => n.resolve(ms),
    };
    let flags = [
        (of_nic, 1),
        (route.interface.is_up(), 2),
        (route.plain, 4),
        (neighbour.is_ok(), 8),
        (route.local.is_ipv6(), 16),
    ];
    let flags = flags
        .iter()
        .fold(0u32, |all, (is, bit)| all | if *is { *bit } else { 0 });
    let error = neighbour.as_ref().err().map_or(0, |e| -e.to_errno()) as u32;
    let mut found = [0; 40];
    let fields: [&[u8]; 6] = [
        &route.interface.index().to_ne_bytes(),
        &flags.to_ne_bytes(),
        &error.to_ne_bytes(),
        &route.interface.mac().unwrap_or_default(),
        &neighbour.unwrap_or_default(),
        route.interface.name().as_bytes(),
    ];
    for (to, from) in found.iter_mut().zip(fields.iter().copied().flatten()) {
        *to = *from;
    }
    found
}

/// Returns the position in the ring and the number of consecutive bytes from there.
fn place(number: u32, len: usize) -> (usize, usize) {
    let at = number as usize % RING;
    (at, len.min(RING - at))
}

/// Copies data into the ring, up to the free space.
fn fill(path: &Timed<Path>, msg: &mut Outgoing<'_>) -> Result<usize> {
    let s = path.state();
    let (mut number, mut left) = (s.written, s.room().min(msg.remaining()));
    let mut done = 0;
    while left > 0 {
        let (at, n) = place(number, left);
        match msg.copy_in(&path.ring, at, n) {
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
            Ok(copied) => {
                done += copied;
                number = number.wrapping_add(copied as u32);
                left -= copied;
                if copied < n {
                    break;
                }
            }
        }
    }
    path.change(|s| s.written = number);
    path::stir(path);
    Ok(done)
}

/// Copies received bytes, without the first `skip` bytes.
fn drain(
    path: &Timed<Path>,
    msg: &mut Incoming<'_>,
    skip: usize,
    max: usize,
    flags: i32,
) -> Result<usize> {
    let s = path.state();
    let (mut number, mut left) = (
        s.read.wrapping_add(skip as u32),
        s.readable().saturating_sub(skip).min(max),
    );
    let mut done = 0;
    while left > 0 {
        let (at, n) = place(number, left);
        let copied = match flags & MSG_TRUNC {
            0 => msg.copy_out(&path.ring, at, n),
            _ => Ok(msg.skip(n)),
        };
        match copied {
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
            Ok(copied) => {
                done += copied;
                number = number.wrapping_add(copied as u32);
                left -= copied;
                if copied < n {
                    break;
                }
            }
        }
    }
    if flags & MSG_PEEK == 0 && done > 0 {
        path.change(|s| s.read = number);
        path.endpoint().wake(Wake::Writable);
    }
    Ok(done)
}

impl Data {
    fn send(&self, tcp: &Tcp, msg: &mut Outgoing<'_>) -> Result<usize> {
        msg.check_control(tcp)?;
        let path = &self.path;
        let mut time = tcp.sending(msg.flags() & MSG_DONTWAIT != 0);
        let mut sent = 0;
        loop {
            let step = (|| {
                time.until(|| {
                    let look = || {
                        let s = path.state();
                        s.ended || s.room() > 0 || path.endpoint().has_error()
                    };
                    if !look() {
                        tcp.no_space();
                    }
                    look().then_some(())
                })?;
                let _one = path.writer.lock();
                if path.endpoint().has_error() || path.state().ended {
                    return Err(tcp.sending_failed(msg.flags(), EPIPE));
                }
                fill(path, msg)
            })();
            match step {
                Ok(n) => sent += n,
                Err(_) if sent > 0 => return Ok(sent),
                Err(e) => return Err(e),
            }
            if msg.remaining() == 0 {
                return Ok(sent);
            }
        }
    }

    fn receive(&self, tcp: &Tcp, msg: &mut Incoming<'_>, flags: i32) -> Result<usize> {
        let path = &self.path;
        let len = msg.remaining();
        let target = tcp.rcvlowat(flags & MSG_WAITALL != 0, len);
        let peek = flags & MSG_PEEK != 0;
        let offset = if peek { tcp.peek_offset() } else { None };
        let begin = offset.unwrap_or(0);
        let mut time = tcp.receiving(flags as u32 & MSG_DONTWAIT != 0);
        let mut got = 0;
        while got < len {
            // Peeked bytes stay in the ring. The next bytes to peek follow them.
            let skip = begin + if peek { got } else { 0 };
            let ready = time.until(|| {
                let s = path.state();
                let over = s.received_all() || path.endpoint().has_error();
                (s.readable() > skip || over || (got >= target)).then_some(())
            });
            let _one = path.reader.lock();
            let step = drain(path, msg, skip, len - got, flags);
            match (ready, step) {
                (_, Ok(n)) if n > 0 => got += n,
                (_, Err(e)) | (Err(e), _) if got == 0 => return Err(e),
                (Ok(()), Ok(_)) if got == 0 => {
                    tcp.take_error()?;
                    return Ok(0);
                }
                _ => break,
            }
            if got >= target {
                break;
            }
        }
        if tcp.peek_offset().is_some() {
            tcp.peeked(got, peek);
        }
        msg.answer_inq(tcp, path.state().readable());
        Ok(got)
    }

    fn find(&self, tcp: &Tcp, addr: &Addr<'_>) {
        let ms = self.set.lock().resolve_ms;
        let found = match addr.get() {
            Some(to) => tcp.route_to(to).map(|route| describe(&route, ms)),
            None => Err(EAFNOSUPPORT),
        };
        self.set.lock().found = found;
    }
}

#[vtable]
impl Operations for Loop {
    type Data = Data;

    fn new(tcp: &Tcp) -> impl PinInit<Data, Error> {
        let path = Path::new(tcp);
        let set = Set {
            resolve_ms: 0,
            outlive: false,
            found: Err(ENOENT),
        };
        try_pin_init!(Data {
            path: path?,
            set <- new_mutex!(set, "loop_set"),
        })
    }

    fn release(sock: &Socket<'_, Self>) {
        let (data, tcp) = (sock.data(), sock.tcp());
        if let (Linger::Wait(time), false) = (tcp.linger(), is_exiting()) {
            let settled = || (!data.path.state().unsettled()).then_some(());
            // The result of the wait does not matter, because the connection is closed in any case.
            let _ = tcp.timeout(time).until(settled);
        }
        if data.set.lock().outlive {
            path::outlive(&data.path);
        }
    }

    fn connect(sock: &Socket<'_, Self>, addr: &Addr<'_>, flags: i32) -> Result {
        sock.data().find(sock.tcp(), addr);
        sock.tcp().connect(addr, flags)
    }

    fn poll(sock: &Socket<'_, Self>, table: PollTable<'_>) -> u32 {
        let (tcp, path) = (sock.tcp(), &sock.data().path);
        tcp.poll_wait(&table);
        let mut s = path.state();
        if s.room() == 0 {
            tcp.no_space();
            s = path.state();
        }
        let received = s.received_all();
        let enough = s.readable() >= tcp.rcvlowat(false, usize::MAX);
        [
            (received || enough, POLLIN),
            (received, POLLRDHUP),
            (received && s.ended, POLLHUP),
            (s.ended || s.room() > 0, POLLOUT),
            (path.endpoint().has_error(), POLLERR),
            // Only this bit of TCP's events is used, because there may be no connection.
            (tcp.poll_now(&table) & POLLERR != 0, POLLERR),
        ]
        .iter()
        .fold(0, |all, (is, bits)| all | if *is { *bits } else { 0 })
    }

    fn shutdown(sock: &Socket<'_, Self>, how: i32) -> Result {
        let path = &sock.data().path;
        if how != 1 {
            path.change(|s| s.shut_receiving = true);
        }
        if how != 0 {
            path.change(|s| s.ended = true);
            path::stir(path);
        }
        path.endpoint().wake(Wake::HungUp);
        Ok(())
    }

    fn setsockopt(sock: &Socket<'_, Self>, option: &SetOption<'_>) -> Result {
        if option.level() != LEVEL {
            return sock.tcp().setsockopt(option);
        }
        let mut value = [0; 4];
        option.read(&mut value)?;
        let value = u32::from_ne_bytes(value);
        let data = sock.data();
        match option.name() {
            DELAY => path::set_delay(&data.path, value),
            FAIL => path::fail_later(&data.path, Error::from_errno(-(value as i32))),
            RESOLVE => data.set.lock().resolve_ms = value,
            OUTLIVE => data.set.lock().outlive = value != 0,
            _ => return Err(ENOPROTOOPT),
        }
        Ok(())
    }

    fn getsockopt(sock: &Socket<'_, Self>, option: &mut GetOption<'_>) -> Result {
        if option.level() != LEVEL {
            return sock.tcp().getsockopt(option);
        }
        let data = sock.data();
        match option.name() {
            ROUTE => {
                let found = data.set.lock().found;
                option.answer(&found?)
            }
            OWN_ROUTE => option.answer(&describe(&sock.tcp().route()?, 0)),
            QUEUED => {
                let queued = data.path.endpoint().queued();
                let corked = u8::from(sock.tcp().is_corked());
                let [a, b, c, d] = queued.unread.to_ne_bytes();
                option.answer(&[a, b, c, d, u8::from(queued.finished), corked])
            }
            OUTLIVE => option.answer(&path::WOKEN_LATE.load(Relaxed).to_ne_bytes()),
            _ => Err(ENOPROTOOPT),
        }
    }

    fn sendmsg(sock: &Socket<'_, Self>, msg: &mut Outgoing<'_>, _len: usize) -> Result<usize> {
        sock.data().send(sock.tcp(), msg)
    }

    fn recvmsg(
        sock: &Socket<'_, Self>,
        msg: &mut Incoming<'_>,
        _len: usize,
        flags: i32,
    ) -> Result<usize> {
        sock.data().receive(sock.tcp(), msg, flags)
    }

    fn splice_read(sock: &Socket<'_, Self>, to: &mut Splice<'_>, len: usize) -> Result<usize> {
        to.by_recvmsg(sock.tcp(), len)
    }
}
