// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Sockets of listeners, and search for a listener by the number of its node.
//!
//! The IP address of a node does not follow from its number, because it depends on the
//! configuration of the interface. The client therefore asks all nodes by a multicast over the
//! interfaces of the NIC. Only the requested node answers.

use crate::choice::Choice;
use anyhow::{bail, Context, Result};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{bind, listen, socket_with, sockopt};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// IPv4 multicast group for private use on one link (RFC 3692).
const GROUP4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 254);
const GROUP6: Ipv6Addr = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 0x114);
/// Interval at which a question is repeated, because it may be lost.
const AGAIN: Duration = Duration::from_millis(500);
/// Maximum length of a question or an answer in bytes.
const DATAGRAM: usize = 512;
const BACKLOG: i32 = 128;

fn socket(family: AddressFamily, kind: SocketType) -> rustix::io::Result<OwnedFd> {
    socket_with(family, kind, SocketFlags::CLOEXEC, None)
}

/// Listens on a TCP port for IPv4 and IPv6, independent of `net.ipv6.bindv6only`.
pub fn tcp_listener(port: u16) -> Result<TcpListener> {
    let listener = match socket(AddressFamily::INET6, SocketType::STREAM) {
        Ok(socket) => listen_for_both(socket, port),
        // The kernel does not support IPv6.
        Err(Errno::AFNOSUPPORT) => return Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?),
        Err(e) => Err(e),
    };
    listener.with_context(|| format!("cannot listen on TCP port {port}"))
}

fn listen_for_both(socket: OwnedFd, port: u16) -> rustix::io::Result<TcpListener> {
    sockopt::set_ipv6_v6only(&socket, false)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(
        &socket,
        &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0),
    )?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Creates a UDP socket for one IP version. With port 0, the kernel chooses the port.
fn udp(v6: bool, port: u16) -> rustix::io::Result<UdpSocket> {
    let socket = match v6 {
        true => {
            let socket = socket(AddressFamily::INET6, SocketType::DGRAM)?;
            // The other IP version needs a second socket with the same port.
            sockopt::set_ipv6_v6only(&socket, true)?;
            bind(
                &socket,
                &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0),
            )?;
            socket
        }
        false => {
            let socket = socket(AddressFamily::INET, SocketType::DGRAM)?;
            bind(&socket, &SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))?;
            socket
        }
    };
    Ok(socket.into())
}

/// Returns the indices of the NIC's interfaces in this network namespace, and of the interfaces
/// directly on top of them. The latter are needed because the IP address of a bridge port belongs
/// to the bridge.
fn interfaces(choice: &Choice) -> Result<Vec<u32>> {
    let names = choice.driven()?.into_iter().flat_map(|nic| nic.interfaces);
    Ok(names
        .flat_map(|name| indices(&choice.root, &name))
        .collect())
}

fn indices(root: &Path, name: &str) -> Vec<u32> {
    let dir = root.join("sys/class/net").join(name);
    let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
    let above = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("upper_"))
        .map(|entry| entry.path());
    let index = |dir: std::path::PathBuf| fs::read_to_string(dir.join("ifindex")).ok();
    std::iter::once(dir.clone())
        .chain(above)
        .filter_map(|dir| index(dir)?.trim().parse().ok())
        .collect()
}

fn question(node: u16) -> String {
    format!("extoll-ping: where does node {node} listen?")
}

/// Starts to answer questions for this node with `answer`.
pub fn answer_for(choice: &Choice, node: u16, port: u16, answer: Vec<u8>) -> Result<()> {
    answer_on(&interfaces(choice)?, node, port, answer)
}

fn answer_on(interfaces: &[u32], node: u16, port: u16, answer: Vec<u8>) -> Result<()> {
    for v6 in [true, false] {
        let socket = match udp(v6, port) {
            Ok(socket) => socket,
            Err(Errno::AFNOSUPPORT) => continue,
            Err(e) => return Err(e).with_context(|| format!("cannot listen on UDP port {port}")),
        };
        for interface in interfaces {
            // Joining the group fails if the interface lacks this IP version.
            let _ = match v6 {
                true => sockopt::set_ipv6_add_membership(&socket, &GROUP6, *interface),
                false => {
                    let any = Ipv4Addr::UNSPECIFIED;
                    sockopt::set_ip_add_membership_with_ifindex(&socket, &GROUP4, &any, *interface)
                }
            };
        }
        let answer = answer.clone();
        thread::spawn(move || {
            let mut bytes = [0; DATAGRAM];
            loop {
                match socket.recv_from(&mut bytes) {
                    Ok((n, from)) if bytes[..n] == *question(node).as_bytes() => {
                        // Sending fails if the client has ended, which then needs no answer.
                        let _ = socket.send_to(&answer, from);
                    }
                    Ok(_) => {}
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(_) => thread::sleep(AGAIN),
                }
            }
        });
    }
    Ok(())
}

/// Asks for a node and returns the first answer that `parse` accepts.
pub fn find<T>(
    choice: &Choice,
    node: u16,
    port: u16,
    patience: Duration,
    parse: impl Fn(&[u8]) -> Option<T>,
) -> Result<T> {
    find_on(&interfaces(choice)?, node, port, patience, parse)
}

fn find_on<T>(
    interfaces: &[u32],
    node: u16,
    port: u16,
    patience: Duration,
    parse: impl Fn(&[u8]) -> Option<T>,
) -> Result<T> {
    if interfaces.is_empty() {
        bail!("this network namespace contains no interface of the NIC");
    }
    let mut sockets = Vec::new();
    for interface in interfaces {
        let group = SocketAddrV6::new(GROUP6, port, 0, *interface);
        sockets.extend(
            udp(true, 0)
                .ok()
                .map(|socket| (socket, SocketAddr::from(group))),
        );
        let Ok(socket) = udp(false, 0) else { continue };
        let any = Ipv4Addr::UNSPECIFIED;
        if sockopt::set_ip_multicast_if_with_ifindex(&socket, &GROUP4, &any, *interface).is_ok() {
            sockets.push((socket, (GROUP4, port).into()));
        }
    }
    let end = Instant::now() + patience;
    let mut failure = None;
    while Instant::now() < end {
        let mut asked = false;
        for (socket, group) in &sockets {
            match socket.send_to(question(node).as_bytes(), *group) {
                Ok(_) => asked = true,
                Err(e) => failure = Some(e),
            }
        }
        if !asked {
            break;
        }
        let again = Instant::now() + AGAIN;
        while let Some(answer) = receive(&sockets, again)? {
            if let Some(found) = parse(&answer) {
                return Ok(found);
            }
        }
    }
    match failure {
        Some(e) => Err(e).context("no answer over the interfaces of the NIC"),
        None => bail!("no answer over the interfaces of the NIC"),
    }
}

/// Receives the next datagram. Returns `None` if no datagram arrives before `end`.
fn receive(sockets: &[(UdpSocket, SocketAddr)], end: Instant) -> Result<Option<Vec<u8>>> {
    let mut fds: Vec<PollFd<'_>> = sockets
        .iter()
        .map(|(socket, _)| PollFd::new(socket, PollFlags::IN))
        .collect();
    let left = end.saturating_duration_since(Instant::now());
    let time = Timespec::try_from(left).context("a time")?;
    match poll(&mut fds, Some(&time)) {
        Ok(0) => return Ok(None),
        Ok(_) => {}
        Err(e) => return Err(e).context("cannot wait for an answer"),
    }
    let mut bytes = vec![0; DATAGRAM];
    let ready = fds.iter().position(|fd| !fd.revents().is_empty());
    let Some((socket, _)) = ready.and_then(|i| sockets.get(i)) else {
        return Ok(None);
    };
    // An error on the socket belongs to an earlier question.
    let n = socket.recv(&mut bytes).unwrap_or(0);
    bytes.truncate(n);
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn both_versions_are_listened_for_whatever_the_default_is() {
        let socket = socket(AddressFamily::INET6, SocketType::STREAM).unwrap();
        // Sets the state that a socket has with net.ipv6.bindv6only=1.
        sockopt::set_ipv6_v6only(&socket, true).unwrap();
        let listener = listen_for_both(socket, 0).unwrap();
        assert!(!sockopt::ipv6_v6only(&listener).unwrap());
        let port = listener.local_addr().unwrap().port();
        for host in ["127.0.0.1", "::1"] {
            TcpStream::connect((host, port)).unwrap();
        }
        // A second listener must fail, and must not listen on only one of the two IP versions.
        let second = tcp_listener(port).unwrap_err();
        assert!(format!("{second:#}").contains("in use"), "{second:#}");
    }

    #[test]
    fn interfaces_come_with_what_is_on_top_of_them() {
        let root = tempfile::tempdir().unwrap();
        let net = root.path().join("sys/class/net");
        for (name, index) in [
            ("exn0/upper_br0", "9"),
            ("exn0/lower_x", "8"),
            ("exn0", "7"),
        ] {
            fs::create_dir_all(net.join(name)).unwrap();
            fs::write(net.join(name).join("ifindex"), format!("{index}\n")).unwrap();
        }
        assert_eq!(indices(root.path(), "exn0"), [7, 9]);
        assert!(indices(root.path(), "exn1").is_empty());
    }

    /// Uses the loopback interface instead of a NIC's interface.
    #[test]
    fn a_node_is_found_by_its_number() {
        // This UDP port is currently free for both IP versions.
        let port = udp(true, 0).unwrap().local_addr().unwrap().port();
        let lo = 1;
        answer_on(&[lo], 5, port, b"here".to_vec()).unwrap();
        let find = |node, patience| {
            let is_it = |bytes: &[u8]| (bytes == b"here").then_some(());
            find_on(&[lo], node, port, Duration::from_millis(patience), is_it)
        };
        find(5, 60_000).unwrap();
        let e = find(6, 100).unwrap_err();
        assert!(e.to_string().contains("no answer"), "{e:#}");
        let e = find_on(&[], 5, port, AGAIN, |_| Some(())).unwrap_err();
        assert!(e.to_string().contains("network namespace"), "{e:#}");
    }
}
