// SPDX-License-Identifier: GPL-2.0-only

//! TCP options on sockets with direct connections. Process context.

use crate::{direct, nic::Conn};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
};
use kernel_ext::net::socket::{BypassedBytes, GetOption, SetOption, State, Tcp};
use protocol::ds::{Stream, StreamState};

/// Levels and numbers of socket options.
pub(crate) const SOL_SOCKET: i32 = 1;
pub(crate) const SO_ERROR: i32 = 4;
pub(crate) const SOL_TCP: i32 = 6;
const TCP_NODELAY: i32 = 1;
const TCP_CORK: i32 = 3;
pub(crate) const TCP_INFO: i32 = 11;
const TCP_USER_TIMEOUT: i32 = 18;

/// Applies an option to the streams after it was set in TCP's sock.
pub(crate) fn was_set(tcp: &Tcp, conn: &Arc<Conn>, option: &SetOption<'_>) {
    match (option.level(), option.name()) {
        (SOL_TCP, TCP_CORK) => direct::push(tcp, conn),
        // Setting the option sends corked data, as in TCP.
        (SOL_TCP, TCP_NODELAY) => {
            let mut value = [0; 4];
            if option.read(&mut value).is_ok() && value != [0; 4] {
                conn.with(|inner, _| inner.direct().map(Stream::push));
            }
        }
        (SOL_TCP, TCP_USER_TIMEOUT) => conn.apply_options(),
        _ => {}
    }
}

/// Answers `TCP_INFO` with the values of the streams. May sleep.
///
/// # Errors
///
/// `EFAULT`, `EINVAL`: the program's buffer is invalid.
pub(crate) fn info(tcp: &Tcp, conn: &Conn, option: &mut GetOption<'_>) -> Result {
    let (sent, read) = (conn.sent.load(Relaxed), conn.received.load(Relaxed));
    let bypassed = conn.peek(|inner| {
        let stream = inner.direct()?;
        let sending = stream.sending();
        let (all, unsent) = (sending.unacknowledged(), sending.unsent());
        Some(BypassedBytes {
            state: state(stream.state()),
            sent: sent.saturating_sub(unsent.into()),
            acknowledged: sent.saturating_sub(all.into()),
            received: read + u64::from(stream.receiving().readable().len),
            unsent,
            unacknowledged: all.saturating_sub(unsent),
        })
    });
    match bypassed {
        Some(bypassed) => tcp.answer_info(option, &bypassed),
        None => tcp.getsockopt(option),
    }
}

fn state(state: StreamState) -> State {
    match state {
        StreamState::Established => State::Established,
        StreamState::FinWait1 => State::FinWait1,
        StreamState::FinWait2 => State::FinWait2,
        StreamState::CloseWait => State::CloseWait,
        StreamState::Closing => State::Closing,
        StreamState::LastAck => State::LastAck,
        StreamState::Closed => State::Close,
    }
}
