// SPDX-License-Identifier: GPL-2.0-only

//! Addresses in the arguments of system calls.

use super::Addr;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use kernel::prelude::*;

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
/// Size of `struct sockaddr_in`.
const V4: usize = 16;
/// Size of `struct sockaddr_in6` without the scope. TCP also accepts this size.
const V6: usize = 24;
/// Size of `struct sockaddr_in6`.
const V6_SCOPE: usize = 28;

impl Addr<'_> {
    /// Returns address and port of a `struct sockaddr_in` or `sockaddr_in6`. Returns `None` for
    /// anything else (`AF_UNSPEC`, which disconnects; other families; too short addresses), which
    /// the caller has to pass to TCP.
    pub fn get(&self) -> Option<SocketAddr> {
        let len = usize::try_from(self.len).ok()?;
        let mut raw = [0u8; V6_SCOPE];
        let n = len.min(V6_SCOPE);
        if self.ptr.is_null() {
            return None;
        }
        // SAFETY: the socket layer passes an address in kernel memory, which has the stated size
        // and is valid during the call.
        unsafe { core::ptr::copy_nonoverlapping(self.ptr.cast::<u8>(), raw.as_mut_ptr(), n) };
        parse(&raw, n)
    }
}

fn parse(raw: &[u8; V6_SCOPE], len: usize) -> Option<SocketAddr> {
    let [f0, f1, p0, p1, a, b, c, d, ..] = *raw;
    let port = u16::from_be_bytes([p0, p1]);
    match u16::from_ne_bytes([f0, f1]) {
        AF_INET if len >= V4 => Some(SocketAddr::new(Ipv4Addr::new(a, b, c, d).into(), port)),
        AF_INET6 if len >= V6 => {
            let address: [u8; 16] = raw.get(8..24)?.try_into().ok()?;
            let number = |bytes: &[u8]| Some(u32::from_ne_bytes(bytes.try_into().ok()?));
            let (flow, scope) = (number(raw.get(4..8)?)?, number(raw.get(24..28)?)?);
            let scope = if len >= V6_SCOPE { scope } else { 0 };
            Some(SocketAddrV6::new(Ipv6Addr::from(address), port, u32::from_be(flow), scope).into())
        }
        _ => None,
    }
}

/// Returns the IPv4 address of a mapped address (`::ffff:a.b.c.d`), and other addresses unchanged.
pub fn canonical(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        IpAddr::V4(_) => ip,
    }
}

/// Returns an address as 16 bytes in network order: IPv6 or IPv4-mapped.
pub fn bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[kunit_tests(kernel_ext_address)]
mod tests {
    use super::*;

    fn put(raw: &mut [u8; V6_SCOPE], at: usize, byte: u8) {
        if let Some(to) = raw.get_mut(at) {
            *to = byte;
        }
    }

    #[test]
    fn addresses_of_both_versions() {
        let mut raw = [0; V6_SCOPE];
        for (to, from) in raw.iter_mut().zip([2, 0, 0x1f, 0x90, 10, 2, 0, 1]) {
            *to = from;
        }
        let v4 = SocketAddr::new(Ipv4Addr::new(10, 2, 0, 1).into(), 8080);
        assert_eq!(parse(&raw, V4), Some(v4));
        assert_eq!(parse(&raw, V4 - 1), None);
        assert_eq!(parse(&[0; V6_SCOPE], V6_SCOPE), None);
        let mut raw = [0; V6_SCOPE];
        for (at, byte) in [
            (0, 10),
            (2, 0x1f),
            (3, 0x90),
            (18, 0xff),
            (19, 0xff),
            (20, 10),
        ] {
            put(&mut raw, at, byte);
        }
        put(&mut raw, 24, 3);
        let found = parse(&raw, V6_SCOPE);
        let mapped: IpAddr = Ipv4Addr::new(10, 0, 0, 0).to_ipv6_mapped().into();
        assert_eq!(found.map(|a| (a.ip(), a.port())), Some((mapped, 8080)));
        assert_eq!(canonical(mapped), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)));
        assert_eq!(bytes(mapped), bytes(canonical(mapped)));
        let scope = |a: Option<SocketAddr>| match a {
            Some(SocketAddr::V6(v6)) => Some(v6.scope_id()),
            _ => None,
        };
        assert_eq!(scope(found), Some(3));
        assert_eq!(scope(parse(&raw, V6)), Some(0));
        assert_eq!(parse(&raw, V6 - 1), None);
    }
}
