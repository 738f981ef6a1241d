// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Who is at the other side: whether its ports can be reached, and where a listener is, which it says over TCP.

use crate::choice::Choice;
use anyhow::{anyhow, bail, Context, Result};
use extoll::velo::{NodeId, Port, SourceId, Vpid};
use extoll::wire::ext_eth::MacPrefix;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::thread;
use std::time::Duration;

/// How long connecting and each line may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest line.
const LINE: u64 = 4096;

/// What decides whether ports reach each other.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Protection descriptor: packets pass between equal ones only.
    pub protection: u16,
    /// Effective user.
    pub user: u32,
}

impl Identity {
    /// Of this process, whose port it is.
    pub fn of(port: &Port) -> Result<Self> {
        Ok(Self {
            protection: port.protection()?,
            user: rustix::process::geteuid().as_raw(),
        })
    }

    /// Fails, with the reason, when the ports of another process cannot be reached.
    pub fn admit(&self, other: &Self) -> Result<()> {
        if self.protection == other.protection {
            return Ok(());
        }
        bail!(
            "the other side runs as user {}, this one as user {}: ports of different users don't reach each other (docs/security.md); start both as the same user",
            other.user,
            self.user
        );
    }
}

/// What a listener says of itself.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    node: u16,
    vpid: u16,
    #[serde(flatten)]
    identity: Identity,
}

impl Listener {
    /// That of this process.
    pub fn new(port: &Port) -> Result<Self> {
        Ok(Self {
            node: port.node().0,
            vpid: port.vpid().get(),
            identity: Identity::of(port)?,
        })
    }

    /// Tells everybody who asks at a TCP port, from now on.
    pub fn announce(self, tcp_port: u16) -> Result<()> {
        let listener = TcpListener::bind(("::", tcp_port))
            .or_else(|_| TcpListener::bind(("0.0.0.0", tcp_port)))
            .with_context(|| format!("cannot listen on TCP port {tcp_port}"))?;
        self.serve(listener)
    }

    fn serve(self, listener: TcpListener) -> Result<()> {
        let mut line = serde_json::to_vec(&self)?;
        line.push(b'\n');
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Who asks and does not take the answer harms himself only.
                let _ = stream.set_write_timeout(Some(PATIENCE));
                let _ = (&stream).write_all(&line);
            }
        });
        Ok(())
    }

    /// Its port, if ports of `own` reach it.
    fn reached_by(self, own: &Identity) -> Result<SourceId> {
        own.admit(&self.identity)?;
        let vpid = Vpid::new(self.vpid).context("the other side says nonsense")?;
        Ok(SourceId {
            node: NodeId(self.node),
            vpid,
        })
    }
}

/// Who is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A port.
    Port(SourceId),
    /// Whoever listens on a node.
    Node(NodeId),
    /// Whoever listens on a machine.
    Host(String),
}

/// Reads `NODE/VPID`, `NODE` or a name or address of a machine.
pub fn target(text: &str) -> Result<Target, String> {
    let node = |text: &str| {
        let node = u16::try_from(crate::number(text)?).map_err(|_| format!("no node {text}"))?;
        match NodeId(node) {
            node if node.is_reserved() => Err(format!("{node} is no node")),
            node => Ok(node),
        }
    };
    if let Some((left, right)) = text.split_once('/') {
        let vpid = u16::try_from(crate::number(right)?)
            .ok()
            .and_then(Vpid::new)
            .ok_or_else(|| format!("VPID {right} is above 255"))?;
        let node = node(left)?;
        return Ok(Target::Port(SourceId { node, vpid }));
    }
    if text.is_empty() || text.contains(char::is_whitespace) {
        return Err("neither a node nor a host".into());
    }
    match text.starts_with(|c: char| c.is_ascii_digit()) && !text.contains(['.', ':']) {
        true => Ok(Target::Node(node(text)?)),
        false => Ok(Target::Host(text.into())),
    }
}

impl Target {
    /// The port, which its listener is asked for if need be.
    pub fn find(&self, choice: &Choice, own: &Identity, tcp_port: u16) -> Result<SourceId> {
        let (addresses, who) = match self {
            Target::Port(id) => return Ok(*id),
            Target::Node(node) => (near(choice, *node)?, format!("node {}", node.0)),
            Target::Host(host) => {
                let found = (host.as_str(), tcp_port).to_socket_addrs();
                let found = found.with_context(|| format!("no host {host}"))?;
                (found.collect(), host.clone())
            }
        };
        let mut last = anyhow!("no interface leads there");
        for mut address in addresses {
            address.set_port(tcp_port);
            match ask(address) {
                Ok(listener) => return listener.reached_by(own),
                Err(e) => last = e,
            }
        }
        Err(last).with_context(|| {
            format!(
                "cannot ask {who} at TCP port {tcp_port} for its VPID (is extoll-ping --listen running there? NODE/VPID, which it prints, needs no TCP)"
            )
        })
    }
}

/// Addresses of a node that follow from its number, by each interface of the NIC.
fn near(choice: &Choice, node: NodeId) -> Result<Vec<SocketAddr>> {
    let interfaces = choice.driven()?.into_iter().flat_map(|nic| nic.interfaces);
    Ok(interfaces
        .filter_map(|name| link_local(&choice.root, &name, node))
        .collect())
}

/// The address that a node's interface gives itself, made from its MAC address (RFC 4291, appendix A): all of a fabric have the same
/// prefix, and the node ID behind it.
fn link_local(root: &Path, interface: &str, node: NodeId) -> Option<SocketAddr> {
    let dir = root.join("sys/class/net").join(interface);
    let scope = fs::read_to_string(dir.join("ifindex")).ok()?;
    let own = fs::read_to_string(dir.join("address")).ok()?;
    let mut prefix = [0; 4];
    for (to, from) in prefix.iter_mut().zip(own.trim().split(':')) {
        *to = u8::from_str_radix(from, 16).ok()?;
    }
    let [a, b, c, d, e, f] = MacPrefix(prefix).mac(node).map(u16::from);
    let (high, middle, low) = ((a << 8) | b, c << 8, d);
    let address = Ipv6Addr::new(
        0xFE80,
        0,
        0,
        0,
        high ^ 0x200,
        middle | 0xFF,
        0xFE00 | low,
        (e << 8) | f,
    );
    Some(SocketAddrV6::new(address, 0, 0, scope.trim().parse().ok()?).into())
}

fn ask(address: SocketAddr) -> Result<Listener> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE)).read_line(&mut line)?;
    serde_json::from_str(&line).with_context(|| format!("not understood: {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{bind, socket, AddressFamily, SocketType};

    fn identity(protection: u16, user: u32) -> Identity {
        Identity { protection, user }
    }

    #[test]
    fn targets_are_ports_nodes_or_hosts() {
        let port = target("3/0x10").unwrap();
        let Target::Port(id) = port else {
            panic!("{port:?}");
        };
        assert_eq!((id.node.0, id.vpid.get()), (3, 16));
        assert_eq!(target("0x3"), Ok(Target::Node(NodeId(3))));
        for host in ["node1", "10.2.0.2", "fe80::1%3"] {
            assert_eq!(target(host), Ok(Target::Host(host.into())));
        }
        for bad in ["65535", "70000", "1/256", "x/1", "1/", "", "a b", "3x"] {
            assert!(target(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_listener_says_where_it_is_and_who_reaches_it() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let said = Listener {
            node: 5,
            vpid: 17,
            identity: identity(1000, 1000),
        };
        said.serve(listener).unwrap();
        let target = Target::Host("127.0.0.1".into());
        let choice = Choice::default();
        let id = target.find(&choice, &identity(1000, 1000), address.port());
        let id = id.unwrap();
        assert_eq!((id.node.0, id.vpid.get()), (5, 17));
        // Twice: it goes on. Another user is told why nothing would come back.
        let refused = target.find(&choice, &identity(0, 0), address.port());
        let refused = format!("{:#}", refused.unwrap_err());
        assert!(
            refused.contains("as user 1000, this one as user 0") && refused.contains("security.md"),
            "{refused}"
        );
    }

    #[test]
    fn a_node_without_listener_is_named() {
        // A port that nobody listens on, and that no other test gets meanwhile: bound only.
        let held = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&held, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let held = TcpListener::from(held);
        let port = held.local_addr().unwrap().port();
        let target = Target::Host("127.0.0.1".into());
        let e = target.find(&Choice::default(), &identity(0, 0), port);
        let e = format!("{:#}", e.unwrap_err());
        assert!(e.contains("--listen") && e.contains("127.0.0.1"), "{e}");
        assert_eq!(e.matches("refused").count(), 1, "{e}");
    }

    #[test]
    fn nodes_have_addresses_of_their_own() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("sys/class/net/exn0");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("ifindex"), "7\n").unwrap();
        fs::write(dir.join("address"), "2e:87:04:07:00:00\n").unwrap();
        let address = link_local(root.path(), "exn0", NodeId(0x102)).unwrap();
        assert_eq!(address.to_string(), "[fe80::2c87:4ff:fe07:102%7]:0");
        assert_eq!(link_local(root.path(), "exn1", NodeId(0)), None);
    }
}
