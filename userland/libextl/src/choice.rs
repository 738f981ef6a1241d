// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Selection of programs and sockets for which `IPPROTO_EXTL` replaces TCP.

use libc::{
    c_int, AF_INET, AF_INET6, IPPROTO_MPTCP, IPPROTO_TCP, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM,
};

/// Constant `IPPROTO_EXTL` of extoll/af_extl.h.
const IPPROTO_EXTL: c_int = 259;

/// Setting of a process, read from its environment.
#[derive(Debug, PartialEq)]
pub(crate) enum Choice {
    /// Protocol number that replaces TCP in all sockets of the process.
    Protocol(c_int),
    /// The process uses TCP.
    Nothing,
}

/// Returns whether a comma-separated list contains `name`.
fn has(list: &[u8], name: &[u8]) -> bool {
    list.split(|b| *b == b',').any(|item| item == name)
}

impl Choice {
    /// Returns the setting for program `name`. `EXTL_ONLY` and `EXTL_NOT` are lists of program
    /// names. `EXTL_PROTOCOL` is a protocol number. If its value is not a number, the process uses
    /// TCP.
    pub(crate) fn new(name: &[u8], variable: impl Fn(&str) -> Option<Vec<u8>>) -> Self {
        let only = variable("EXTL_ONLY").is_none_or(|list| has(&list, name));
        let not = variable("EXTL_NOT").is_some_and(|list| has(&list, name));
        let protocol = match variable("EXTL_PROTOCOL") {
            Some(text) => std::str::from_utf8(&text).ok().and_then(|t| t.parse().ok()),
            None => Some(IPPROTO_EXTL),
        };
        match protocol {
            Some(protocol) if only && !not => Self::Protocol(protocol),
            _ => Self::Nothing,
        }
    }

    /// Returns the protocol that replaces the requested one. Returns `None` unless the requested
    /// protocol is TCP or MPTCP.
    pub(crate) fn protocol(&self, domain: c_int, kind: c_int, protocol: c_int) -> Option<c_int> {
        let Self::Protocol(other) = self else {
            return None;
        };
        let inet = domain == AF_INET || domain == AF_INET6;
        let stream = kind & !(SOCK_NONBLOCK | SOCK_CLOEXEC) == SOCK_STREAM;
        let tcp = [0, IPPROTO_TCP, IPPROTO_MPTCP].contains(&protocol);
        (inet && stream && tcp).then_some(*other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(name: &str, set: &[(&str, &str)]) -> Choice {
        Choice::new(name.as_bytes(), |variable| {
            let (_, value) = set.iter().find(|(name, _)| *name == variable)?;
            Some(value.as_bytes().to_vec())
        })
    }

    #[test]
    fn programs_are_chosen_by_name() {
        let all = Choice::Protocol(259);
        assert_eq!(choice("a", &[]), all);
        assert_eq!(choice("a", &[("EXTL_ONLY", "b,a")]), all);
        assert_eq!(choice("a", &[("EXTL_ONLY", "b,ab")]), Choice::Nothing);
        assert_eq!(choice("a", &[("EXTL_ONLY", "")]), Choice::Nothing);
        assert_eq!(choice("a", &[("EXTL_NOT", "a")]), Choice::Nothing);
        assert_eq!(choice("a", &[("EXTL_NOT", "b")]), all);
        let both = [("EXTL_ONLY", "a"), ("EXTL_NOT", "a")];
        assert_eq!(choice("a", &both), Choice::Nothing);
    }

    #[test]
    fn the_protocol_is_a_number() {
        let other = [("EXTL_PROTOCOL", "258")];
        assert_eq!(choice("a", &other), Choice::Protocol(258));
        let none = [("EXTL_PROTOCOL", "x")];
        assert_eq!(choice("a", &none), Choice::Nothing);
    }

    #[test]
    fn only_sockets_of_tcp_change() {
        let all = Choice::Protocol(259);
        let flags = SOCK_NONBLOCK | SOCK_CLOEXEC;
        for domain in [AF_INET, AF_INET6] {
            for kind in [SOCK_STREAM, SOCK_STREAM | flags] {
                assert_eq!(all.protocol(domain, kind, 0), Some(259));
                assert_eq!(all.protocol(domain, kind, IPPROTO_TCP), Some(259));
                assert_eq!(all.protocol(domain, kind, IPPROTO_MPTCP), Some(259));
                assert_eq!(all.protocol(domain, kind, libc::IPPROTO_SCTP), None);
                assert_eq!(Choice::Nothing.protocol(domain, kind, 0), None);
            }
            assert_eq!(all.protocol(domain, libc::SOCK_DGRAM, 0), None);
            assert_eq!(all.protocol(domain, libc::SOCK_RAW, IPPROTO_TCP), None);
        }
        assert_eq!(all.protocol(libc::AF_UNIX, SOCK_STREAM, 0), None);
    }
}
