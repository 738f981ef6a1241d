// SPDX-License-Identifier: GPL-2.0-only

//! Socket operations (`struct proto_ops`): each is passed to TCP or handled by the streams,
//! depending on the [`Mode`] of the socket.
//!
//! Process context, without locks of this module; operations may sleep. [`Connection`] decides the
//! mode, [`direct`] implements the operations of streams.

use crate::{
    conf,
    connection::{Connection, Mode},
    direct::{self, MSG_DONTWAIT, MSG_PEEK},
    nic::{Conn, Decision},
    open, options,
    state::Event,
};
use kernel::{prelude::*, sync::Arc, time::msecs_to_jiffies};
use kernel_ext::net::socket::{
    Addr, Child, GetOption, Incoming, Operations, Outgoing, PollTable, Port, SetOption,
    ShutdownDirections, Socket, Splice, State, Tcp,
};
use protocol::ds::Fallback;

/// Level of the socket options of this family, as in extoll/af_extl.h.
const SOL_EXTL: i32 = 0x4558;
/// Read-only option of level `SOL_EXTL`; value: `struct extl_info`.
const EXTL_INFO: i32 = 1;
/// Flag of recvmsg: read the error queue.
const MSG_ERRQUEUE: u32 = 0x2000;
/// Flag of sendmsg: connect and send.
const MSG_FASTOPEN: u32 = 0x2000_0000;
/// TCP options that streams cannot support; setting one makes the socket use TCP.
/// `TCP_DEFER_ACCEPT`: the client sends data before the server's program can accept. `TCP_MD5SIG`,
/// `TCP_MD5SIG_EXT`, `TCP_AO_ADD_KEY`, `TCP_AO_INFO`: the program requires signed segments.
/// `TCP_REPAIR` and `TCP_FASTOPEN_CONNECT` manipulate TCP's own connection.
const TCP_ONLY: [(i32, i32); 7] = [(6, 9), (6, 14), (6, 19), (6, 30), (6, 32), (6, 38), (6, 40)];
/// TCP option that is valid only without a connection.
const TCP_FASTOPEN: (i32, i32) = (6, 23);
/// Flag of connect: the file is non-blocking.
const O_NONBLOCK: i32 = 0x800;

/// Socket type of this module.
pub(crate) struct Stream;

/// Connection that was requested from the peer, and the local port that the request named.
type Asked<'a> = (Arc<Conn>, Port<'a>);

/// Runs an operation that may begin a connection, and updates the phase of the socket by TCP's
/// state before and after the operation.
fn connecting<'a, A, R>(
    sock: &'a Socket<'_, Stream>,
    ask: impl FnOnce(&'a Tcp, &Connection) -> Option<A>,
    run: impl FnOnce(&Tcp, Option<A>) -> Result<R>,
) -> Result<R> {
    let (tcp, data) = (sock.tcp(), &*sock.data());
    let begins = tcp.state() == State::Close && data.begin();
    let asked = if begins { ask(tcp, data) } else { None };
    let result = run(tcp, asked);
    if begins {
        data.began();
    }
    data.check_closed(tcp);
    result
}

/// Closes TCP's connection if the streams have ended. Operations that depend on TCP's state call
/// this function first, because the program may reuse the socket afterwards.
fn end_with_stream(sock: &Socket<'_, Stream>) {
    if let Mode::Direct(conn) = sock.data().mode() {
        if direct::has_ended(&conn) {
            conn.forget_second_error();
            sock.tcp().abort();
        }
    }
}

/// Requests a direct connection from the peer and waits some milliseconds for the answer.
fn ask<'a>(tcp: &'a Tcp, data: &Connection, addr: &Addr<'_>, nonblock: bool) -> Option<Asked<'a>> {
    let asked = if data.wants_tcp() {
        Err(Fallback::TcpOnly)
    } else {
        open::ask(tcp, addr, nonblock)
    };
    let (candidate, port) = match asked {
        Ok((conn, port)) => (Ok(conn), Some(port)),
        Err(why) => (Err(why), None),
    };
    let conn = data.set_candidate(candidate)?;
    let mut waiting = tcp.timeout(msecs_to_jiffies(conf::max_ask_ms()));
    // A signal also interrupts TCP's connect. The signal does not end the request, because the
    // peer's answer usually still arrives in time.
    let answered = waiting.until(|| conn.may_connect().then_some(()));
    if answered == Err(EAGAIN) {
        conn.give_up(Fallback::Silent);
    }
    Some((conn, port?))
}

/// Runs TCP's connect from the port that was named in the request.
fn connect_from(tcp: &Tcp, asked: Option<Asked<'_>>, connect: impl Fn(&Tcp) -> Result) -> Result {
    let result = connect(tcp);
    let Some((conn, port)) = asked else {
        return result;
    };
    drop(port);
    if result == Err(EADDRNOTAVAIL) && tcp.state() == State::Close {
        // Another socket uses the port now. TCP may connect from any port, so TCP carries the data.
        conn.give_up(Fallback::NoSlot);
        return connect(tcp);
    }
    result
}

#[vtable]
impl Operations for Stream {
    type Data = Connection;

    fn new(tcp: &Tcp) -> impl PinInit<Connection, Error> {
        Connection::new(tcp)
    }

    fn release(sock: &Socket<'_, Self>) {
        sock.data().unlisten();
        if let Some(conn) = sock.data().detach() {
            direct::release(sock.tcp(), &sock.data(), &conn);
        }
    }

    fn bind(sock: &Socket<'_, Self>, addr: &Addr<'_>) -> Result {
        end_with_stream(sock);
        sock.tcp().bind(addr)
    }

    fn connect(sock: &Socket<'_, Self>, addr: &Addr<'_>, flags: i32) -> Result {
        end_with_stream(sock);
        let result = connecting(
            sock,
            |tcp, data| ask(tcp, data, addr, flags & O_NONBLOCK != 0),
            |tcp, asked| connect_from(tcp, asked, |tcp| tcp.connect(addr, flags)),
        );
        // Updates the phase, because TCP's connection may be established.
        sock.data().mode();
        result
    }

    fn accept(sock: &Socket<'_, Self>, child: &Child<'_, Self>) -> Result {
        match child.accept()? {
            Some(new) => {
                // In-kernel users read TCP's queues directly, so their connections use TCP.
                let candidate = if child.is_for_kernel() {
                    Err(open::leave_to_tcp(new.tcp()))
                } else {
                    open::accept(new.tcp())
                };
                new.data().set_candidate(candidate);
            }
            None => sock.data().accepted_without_data(),
        }
        Ok(())
    }

    fn listen(sock: &Socket<'_, Self>, backlog: i32) -> Result {
        sock.tcp().listen(backlog)?;
        sock.data().step(Event::Listen);
        sock.data().listen();
        Ok(())
    }

    fn peer_name(sock: &Socket<'_, Self>) -> Result {
        match sock.data().mode() {
            Mode::Direct(conn) if direct::has_ended(&conn) => Err(ENOTCONN),
            _ => Ok(()),
        }
    }

    fn shutdown(sock: &Socket<'_, Self>, how: i32) -> Result {
        let (tcp, data) = (sock.tcp(), &*sock.data());
        // In these states, `shutdown` leaves the socket without a connection.
        let ends = matches!(tcp.state(), State::Listen | State::SynSent);
        if !(0..=2).contains(&how) {
            return Err(EINVAL);
        }
        let ended = ShutdownDirections {
            receiving: how != 1,
            sending: how != 0,
        };
        let connected = matches!(tcp.state(), State::Established | State::CloseWait);
        if let (Mode::Waiting, true, Some(conn)) = (data.mode(), connected, data.conn()) {
            match conn.shut_when_decided(ended) {
                Decision::Waiting => {
                    tcp.mark_connected();
                    data.trace_shutdown(how, false);
                    data.end(ended);
                    conn.wake_all();
                    return Ok(());
                }
                Decision::Direct | Decision::Lost(_) => {
                    tcp.mark_connected();
                    data.trace_shutdown(how, true);
                    return direct::shutdown(data, &conn, how);
                }
                Decision::Tcp(_) => {}
            }
        }
        end_with_stream(sock);
        match data.mode() {
            Mode::Direct(conn) if !direct::has_ended(&conn) => {
                data.trace_shutdown(how, true);
                tcp.mark_connected();
                return direct::shutdown(data, &conn, how);
            }
            _ => {}
        }
        data.trace_shutdown(how, false);
        tcp.shutdown(how)?;
        // The phase of a connection is kept until its data was read.
        if ends {
            data.check_closed(tcp);
        }
        Ok(())
    }

    fn poll(sock: &Socket<'_, Self>, table: PollTable<'_>) -> u32 {
        let (tcp, data) = (sock.tcp(), &*sock.data());
        match data.mode() {
            Mode::Tcp => return tcp.poll(table),
            _ => tcp.poll_wait(&table),
        }
        // The carrier may have been decided before the wait queue was entered.
        match data.mode() {
            Mode::Tcp => tcp.poll_now(&table),
            Mode::Waiting => direct::poll_undecided(data),
            Mode::Direct(conn) => direct::poll(tcp, data, &conn),
        }
    }

    fn ioctl(sock: &Socket<'_, Self>, command: u32, arg: usize) -> Result<usize> {
        if let Mode::Direct(conn) = sock.data().mode() {
            if let Some(result) = direct::ioctl(&conn, command, arg) {
                return result;
            }
        }
        sock.tcp().ioctl(command, arg)
    }

    fn setsockopt(sock: &Socket<'_, Self>, option: &SetOption<'_>) -> Result {
        if (option.level(), option.name()) == TCP_FASTOPEN {
            end_with_stream(sock);
        }
        let tcp = sock.tcp();
        tcp.setsockopt(option)?;
        if let Mode::Direct(conn) = sock.data().mode() {
            options::was_set(tcp, &conn, option);
        }
        if TCP_ONLY.contains(&(option.level(), option.name())) {
            sock.data().want_tcp();
        }
        Ok(())
    }

    fn getsockopt(sock: &Socket<'_, Self>, option: &mut GetOption<'_>) -> Result {
        match (option.level(), option.name()) {
            (SOL_EXTL, EXTL_INFO) => {
                sock.data().mode();
                option.answer(&sock.data().info())
            }
            (SOL_EXTL, _) => Err(ENOPROTOOPT),
            (options::SOL_SOCKET, options::SO_ERROR) => {
                if let Mode::Direct(conn) = sock.data().mode() {
                    conn.forget_second_error();
                    if conn.sock().error().is_some() {
                        conn.error_seen();
                    }
                }
                sock.tcp().getsockopt(option)
            }
            (options::SOL_TCP, options::TCP_INFO) => match sock.data().mode() {
                Mode::Direct(conn) => options::info(sock.tcp(), &conn, option),
                _ => sock.tcp().getsockopt(option),
            },
            _ => sock.tcp().getsockopt(option),
        }
    }

    fn sendmsg(sock: &Socket<'_, Self>, msg: &mut Outgoing<'_>, len: usize) -> Result<usize> {
        let (tcp, data) = (sock.tcp(), &*sock.data());
        if msg.flags() & MSG_FASTOPEN != 0 {
            if tcp.state() == State::Close && data.begin() {
                data.set_candidate(Err(Fallback::TcpOnly));
                let result = tcp.sendmsg(msg, len);
                data.began();
                data.check_closed(tcp);
                return result.inspect(|n| data.sent(*n));
            }
            // TCP returns an error or waits for its connection. The data of the call may still
            // bypass TCP.
            end_with_stream(sock);
            let result = msg.without_data(|msg| tcp.sendmsg(msg, 0));
            data.check_closed(tcp);
            result?;
            msg.clear_flags(MSG_FASTOPEN);
        }
        let flags = msg.flags();
        let (mut mode, mut waiting) = (data.mode(), tcp.sending(flags & MSG_DONTWAIT != 0));
        if let Mode::Waiting = mode {
            mode = direct::decided(data, &mut waiting, Connection::is_snd_shut)?;
        }
        match mode {
            Mode::Direct(conn) => direct::send(tcp, data, &conn, msg, waiting),
            _ if data.is_snd_shut() => Err(tcp.sending_failed(flags, EPIPE)),
            _ => tcp.sendmsg(msg, len).inspect(|n| data.sent(*n)),
        }
    }

    fn recvmsg(
        sock: &Socket<'_, Self>,
        msg: &mut Incoming<'_>,
        len: usize,
        flags: i32,
    ) -> Result<usize> {
        let (tcp, data, bits) = (sock.tcp(), &*sock.data(), flags as u32);
        let mut mode = match bits & MSG_ERRQUEUE {
            0 => data.mode(),
            _ => Mode::Tcp,
        };
        let mut waiting = tcp.receiving(bits & MSG_DONTWAIT != 0);
        if let Mode::Waiting = mode {
            mode = direct::decided(data, &mut waiting, Connection::is_rcv_shut)?;
        }
        match mode {
            Mode::Direct(conn) => {
                return direct::receive(tcp, data, &conn, msg, (len, bits), waiting);
            }
            // The program has shut down the receiving direction.
            Mode::Waiting => return Ok(0),
            Mode::Tcp => {}
        }
        let n = tcp.recvmsg(msg, len, flags)?;
        if bits & (MSG_PEEK | MSG_ERRQUEUE) == 0 {
            data.received(n);
        }
        Ok(n)
    }

    fn splice_eof(sock: &Socket<'_, Self>) {
        match sock.data().mode() {
            Mode::Direct(conn) => direct::push(sock.tcp(), &conn),
            _ => sock.tcp().splice_eof(),
        }
    }

    fn splice_read(sock: &Socket<'_, Self>, to: &mut Splice<'_>, len: usize) -> Result<usize> {
        let (tcp, data) = (sock.tcp(), &*sock.data());
        let mut mode = data.mode();
        if let Mode::Waiting = mode {
            let mut waiting = tcp.receiving(tcp.is_nonblocking());
            mode = direct::decided(data, &mut waiting, Connection::is_rcv_shut)?;
        }
        match mode {
            Mode::Waiting => Ok(0),
            // The function calls `recvmsg`, which counts the received bytes.
            Mode::Direct(_) => to.by_recvmsg(tcp, len),
            _ => {
                let result = tcp.splice_read(to, len);
                result.inspect(|n| data.received(*n))
            }
        }
    }
}
