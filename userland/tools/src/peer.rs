// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Access to the listener of a test: rules for the ports that can reach each other, and search for
//! the listener's port over TCP or UDP.

use crate::choice::Choice;
use crate::rendezvous::{self, tcp_listener};
use anyhow::{anyhow, bail, Context, Result};
use extoll::velo::{NodeId, Port, SourceId, Vpid};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::Duration;

/// Maximum time for connecting, and for receiving a line.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum length of a line in bytes.
const LINE: u64 = 4096;

/// Properties of a process that determine the ports which it can reach.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Protection descriptor. Only ports with equal descriptors can reach each other.
    pub protection: u16,
    /// Effective user ID of the process.
    pub user: u32,
}

impl Identity {
    /// Returns the properties of this process. `port` is one of its ports.
    pub fn of(port: &Port) -> Result<Self> {
        Ok(Self {
            protection: port.protection()?,
            user: rustix::process::geteuid().as_raw(),
        })
    }

    /// Fails, with an explanation, if the ports of another process cannot be reached.
    pub fn admit(&self, other: &Self) -> Result<()> {
        if self.protection == other.protection {
            return Ok(());
        }
        let advice = match (
            self.is_privileged(),
            other.is_privileged(),
            self.user == other.user,
        ) {
            (true, false, _) | (false, true, _) => {
                "start both with CAP_SYS_RAWIO, or both without it and as the same user; kernel lockdown removes this capability"
            }
            (_, _, false) => "start both as the same user",
            (_, _, true) => "parameter first_user of extoll.ko must be the same on all nodes",
        };
        bail!("the other side has {other}, this one has {self}: such ports don't reach each other (docs/security.md); {advice}");
    }

    /// Returns whether the program has CAP_SYS_RAWIO, and therefore descriptor 0.
    fn is_privileged(&self) -> bool {
        self.protection == 0
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = match self.is_privileged() {
            true => "with",
            false => "without",
        };
        let Self { protection, user } = self;
        write!(
            f,
            "protection descriptor {protection} (user {user} {has} CAP_SYS_RAWIO)"
        )
    }
}

/// Port address of a listener, and properties of its process.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    node: u16,
    vpid: u16,
    #[serde(flatten)]
    identity: Identity,
}

impl Listener {
    /// Returns the data of a listener in this process.
    pub fn new(port: &Port) -> Result<Self> {
        Ok(Self {
            node: port.node().0,
            vpid: port.vpid().get(),
            identity: Identity::of(port)?,
        })
    }

    /// Starts to answer clients. They connect to a TCP port of this machine, or they ask all nodes
    /// for the listener of this node.
    pub fn announce(self, choice: &Choice, port: u16) -> Result<()> {
        self.serve(tcp_listener(port)?)?;
        rendezvous::answer_for(choice, self.node, port, serde_json::to_vec(&self)?)
    }

    fn serve(self, listener: TcpListener) -> Result<()> {
        let mut line = serde_json::to_vec(&self)?;
        line.push(b'\n');
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // The timeout protects the listener from clients that never read the answer.
                let _ = stream.set_write_timeout(Some(PATIENCE));
                let _ = (&stream).write_all(&line);
            }
        });
        Ok(())
    }

    /// Returns the port of the listener. Fails if ports of `own` cannot reach it.
    fn reached_by(self, own: &Identity) -> Result<SourceId> {
        own.admit(&self.identity)?;
        let vpid = Vpid::new(self.vpid).context("the other side reported an invalid VPID")?;
        Ok(SourceId {
            node: NodeId(self.node),
            vpid,
        })
    }
}

/// Destination of the messages of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Port with known node and VPID.
    Port(SourceId),
    /// Port of the listener on a node.
    Node(NodeId),
    /// Port of the listener on the machine with this name or address.
    Host(String),
}

/// Parses `NODE/VPID`, `NODE`, or the name or address of a machine.
pub fn target(text: &str) -> Result<Target, String> {
    let node = |text: &str| {
        let node = u16::try_from(crate::number(text)?)
            .map_err(|_| format!("{text} is not a node number"))?;
        match NodeId(node) {
            node if node.is_reserved() => Err(format!("node {node} is reserved")),
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
        return Err("not a node number or a host name".into());
    }
    match text.starts_with(|c: char| c.is_ascii_digit()) && !text.contains(['.', ':']) {
        true => Ok(Target::Node(node(text)?)),
        false => Ok(Target::Host(text.into())),
    }
}

impl Target {
    /// Returns the port of the target. Asks its listener if necessary.
    pub fn find(&self, choice: &Choice, own: &Identity, port: u16) -> Result<SourceId> {
        let (found, who) = match self {
            Target::Port(id) => return Ok(*id),
            Target::Node(node) => {
                let parse = |answer: &[u8]| {
                    let listener: Listener = serde_json::from_slice(answer).ok()?;
                    (listener.node == node.0).then_some(listener)
                };
                let found = rendezvous::find(choice, node.0, port, PATIENCE, parse);
                (found, format!("node {node} at UDP port {port}"))
            }
            Target::Host(host) => (ask_host(host, port), format!("{host} at TCP port {port}")),
        };
        let listener = found.with_context(|| {
            format!(
                "cannot ask {who} for its VPID (check that extoll-ping --listen runs there; NODE/VPID, which it prints, works without IP)"
            )
        })?;
        listener.reached_by(own)
    }
}

fn ask_host(host: &str, port: u16) -> Result<Listener> {
    let addresses = (host, port).to_socket_addrs();
    let addresses = addresses.with_context(|| format!("no host {host}"))?;
    let mut last = anyhow!("the name has no address");
    for address in addresses {
        match ask(address) {
            Ok(listener) => return Ok(listener),
            Err(e) => last = e,
        }
    }
    Err(last)
}

fn ask(address: SocketAddr) -> Result<Listener> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE)).read_line(&mut line)?;
    serde_json::from_str(&line).with_context(|| format!("invalid answer: {line:?}"))
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
        // The second client belongs to another user. The listener must tell it the reason why its
        // ports cannot reach the listener.
        let refused = target.find(&choice, &identity(0, 0), address.port());
        let refused = format!("{:#}", refused.unwrap_err());
        assert!(
            refused.contains("CAP_SYS_RAWIO") && refused.contains("security.md"),
            "{refused}"
        );
    }

    #[test]
    fn a_node_without_listener_is_named() {
        // The socket is bound but does not listen, so that no other test uses its port.
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
    fn what_was_compared_is_what_is_said() {
        let says = |own: Identity, other: Identity| {
            let e = own.admit(&other).unwrap_err().to_string();
            for side in [own, other] {
                assert!(
                    e.contains(&format!("descriptor {}", side.protection)),
                    "{e}"
                );
                assert!(e.contains(&format!("(user {} ", side.user)), "{e}");
            }
            e
        };
        // This is root of a container. Its ports have the descriptor of user 0, not that of
        // privileged programs.
        let e = says(identity(0xFFFF, 0), identity(0, 0));
        assert!(e.contains("start both with CAP_SYS_RAWIO"), "{e}");
        let e = says(identity(1000, 1000), identity(1001, 1001));
        assert!(
            e.contains("as the same user") && !e.contains("start both with"),
            "{e}"
        );
        let e = says(identity(1000, 101_000), identity(101, 101_000));
        assert!(e.contains("first_user"), "{e}");
        assert!(identity(0, 0).admit(&identity(0, 1000)).is_ok());
    }
}
