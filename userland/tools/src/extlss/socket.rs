// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Socket, parsed from a line of /proc/net/extl.

use anyhow::{bail, Context, Result};
use clap::ValueEnum;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::str::FromStr;

/// Path on which a socket's data travel.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The socket has no connection.
    Idle,
    /// The socket accepts connections.
    Listening,
    /// TCP carries the data.
    Tcp,
    /// VELO messages and RMA carry the data, without TCP.
    Direct,
    /// The choice between TCP and the direct path is still open.
    Waiting,
}

impl Mode {
    /// Returns the name of the mode.
    pub fn word(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Listening => "listening",
            Self::Tcp => "tcp",
            Self::Direct => "direct",
            Self::Waiting => "waiting",
        }
    }
}

/// Reasons for TCP with number, name in files, and description.
const REASONS: &[(u16, &str, &str)] = &[
    (
        1,
        "no-data-path",
        "this version of the module supports TCP only",
    ),
    (
        2,
        "no-route",
        "the route does not lead through an Extoll NIC",
    ),
    (3, "off", "switched off on this node"),
    (4, "no-memory", "no memory for rings"),
    (
        5,
        "no-place",
        "the connection table is full, or no local port is free",
    ),
    (6, "silent", "the peer does not answer"),
    (
        7,
        "known-silent",
        "the peer did not answer a short time ago",
    ),
    (8, "version", "the peer has another version of the protocol"),
    (9, "no-listener", "the peer's program uses plain TCP"),
    (
        10,
        "peer-busy",
        "too many connections of this node are pending at the peer",
    ),
    (
        11,
        "peer-resources",
        "the peer has no memory or another resource is exhausted",
    ),
    (12, "peer-off", "switched off on the peer"),
    (
        13,
        "not-accepted",
        "the server's program accepted the connection too late",
    ),
    (
        14,
        "tcp-data",
        "TCP carried data or was closed before the decision",
    ),
    (
        15,
        "client-fell-back",
        "the client chose TCP after the server accepted the connection",
    ),
    (
        16,
        "not-asked",
        "the client did not request the direct path",
    ),
    (
        17,
        "tcp-only",
        "the program uses a feature that only TCP has",
    ),
    (
        18,
        "known-late",
        "the server's program accepted a connection too late a short time ago",
    ),
    (
        19,
        "no-neighbour",
        "the neighbour's address is unknown and was not resolved in time",
    ),
    (
        20,
        "user-limit",
        "the user has the maximum number of connections (parameter user_connections)",
    ),
];

/// AF_EXTL socket.
#[derive(Clone, Debug)]
pub struct Socket {
    /// TCP state, in the form that filters use, for example `established` or `close-wait`.
    pub state: String,
    /// Local address.
    pub local: SocketAddr,
    /// Remote address; all zeros without a connection.
    pub peer: SocketAddr,
    /// Path on which the data travel.
    pub mode: Mode,
    /// Name of the reason for TCP; `None` if TCP is not used.
    pub reason: Option<String>,
    /// Number of bytes sent in all connections of the socket.
    pub sent: u64,
    /// Number of bytes received in all connections of the socket.
    pub received: u64,
    /// Number of the bytes in `sent` that used the direct path.
    pub direct_sent: u64,
    /// Number of the bytes in `received` that used the direct path.
    pub direct_received: u64,
    /// Number of bytes that the current connection sent in messages.
    pub message_sent: u64,
    /// Number of bytes that the current connection announced for GETs by the peer.
    pub announced: u64,
    /// Number of bytes that the current connection received in messages.
    pub message_received: u64,
    /// Number of bytes that the current connection received by GET.
    pub fetched: u64,
    /// Number of bytes sent from the program's memory without a copy.
    pub lent: u64,
    /// Number of bytes received into the program's memory without a copy.
    pub sunk: u64,
    /// Number of bytes that the program has not read. For a listener, number of pending
    /// connections.
    pub unread: u64,
    /// Number of bytes that the peer has not acknowledged. For a listener, maximum number of
    /// pending connections.
    pub unacknowledged: u64,
    /// User ID of the socket's owner.
    pub uid: u64,
    /// Inode number of the socket.
    pub inode: u64,
}

/// Converts a name like `CloseWait` to `close-wait`, and `FinWait1` to `fin-wait-1`.
fn dashed(name: &str) -> String {
    let mut out = String::new();
    for (i, c) in name.chars().enumerate() {
        if i > 0 && (c.is_uppercase() || c.is_ascii_digit()) {
            out.push('-');
        }
        out.extend(c.to_lowercase());
    }
    out
}

/// Columns of a line by name. The file may have columns that this program does not know, or lack
/// some.
struct Columns<'a>(BTreeMap<&'a str, &'a str>);

impl Columns<'_> {
    fn text(&self, name: &str) -> Result<&str> {
        let found = self.0.get(name).copied();
        found.with_context(|| format!("no column {name}"))
    }

    fn get<T: FromStr>(&self, name: &str) -> Result<T> {
        let text = self.text(name)?;
        let value = text.parse().ok();
        value.with_context(|| format!("{name}: {text}"))
    }

    /// Returns a number; 0 for modules that do not provide this column.
    fn later(&self, name: &str) -> Result<u64> {
        match self.0.contains_key(name) {
            true => self.get(name),
            false => Ok(0),
        }
    }

    fn socket(&self) -> Result<Socket> {
        let mode = dashed(self.text("mode")?);
        let mode = Mode::from_str(&mode, true).ok();
        let reason = self.text("reason")?;
        Ok(Socket {
            state: dashed(self.text("state")?),
            local: self.get("local")?,
            peer: self.get("remote")?,
            mode: mode.with_context(|| format!("mode {}", self.0["mode"]))?,
            reason: (reason != "-").then(|| reason.to_owned()),
            sent: self.get("sent")?,
            received: self.get("received")?,
            uid: self.get("uid")?,
            inode: self.get("inode")?,
            direct_sent: self.later("direct_sent")?,
            direct_received: self.later("direct_received")?,
            message_sent: self.later("message_sent")?,
            announced: self.later("announced")?,
            message_received: self.later("message_received")?,
            fetched: self.later("fetched")?,
            lent: self.later("lent")?,
            sunk: self.later("sunk")?,
            unread: self.later("unread")?,
            unacknowledged: self.later("unacknowledged")?,
        })
    }
}

/// Parses the text of /proc/net/extl.
pub fn parse(text: &str) -> Result<Vec<Socket>> {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or("").split(' ').collect();
    let one = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        if words.len() != names.len() {
            bail!("{} columns, not {}: {line}", words.len(), names.len());
        }
        let columns = names.iter().copied().zip(words).collect();
        Columns(columns).socket().with_context(|| line.to_owned())
    };
    lines.map(one).collect()
}

impl Socket {
    fn known(&self) -> Option<&'static (u16, &'static str, &'static str)> {
        let name = self.reason.as_deref()?;
        REASONS.iter().find(|(_, n, _)| *n == name)
    }

    /// Returns the number of the reason for TCP.
    pub fn reason_number(&self) -> Option<u16> {
        self.known().map(|(number, ..)| *number)
    }

    /// Returns the description of the reason for TCP.
    pub fn reason_words(&self) -> Option<String> {
        let name = self.reason.as_deref()?;
        Some(match self.known() {
            Some((number, _, words)) => format!("({number}) {words}"),
            // A newer module may report a reason that this program does not know.
            None => name.to_owned(),
        })
    }

    /// Returns the TCP state in the form that ss uses.
    pub fn state_word(&self) -> String {
        match self.state.as_str() {
            "established" => "ESTAB".into(),
            "close" => "UNCONN".into(),
            other => other.to_uppercase(),
        }
    }

    /// Returns all fields as JSON.
    pub fn json(&self, users: Option<Vec<String>>) -> Value {
        let mut object = json!({
            "state": self.state, "local": self.local.to_string(), "peer": self.peer.to_string(),
            "mode": self.mode.word(), "reason": self.reason, "reason_number": self.reason_number(),
            "reason_text": self.known().map(|(_, _, words)| words),
            "sent": self.sent, "received": self.received,
            "direct_sent": self.direct_sent, "direct_received": self.direct_received,
            "message_sent": self.message_sent, "announced": self.announced,
            "message_received": self.message_received, "fetched": self.fetched,
            "lent": self.lent, "sunk": self.sunk,
            "unread": self.unread, "unacknowledged": self.unacknowledged,
            "uid": self.uid, "inode": self.inode,
        });
        if let Some(users) = users {
            object["users"] = users.into();
        }
        object
    }
}

#[cfg(test)]
pub const SAMPLE: &str = "\
local remote state mode reason sent received uid inode direct_sent direct_received message_sent announced message_received fetched unread unacknowledged lent sunk\n\
0.0.0.0:7441 0.0.0.0:0 Listen Listening - 0 0 0 1001 0 0 0 0 0 0 0 128 0 0\n\
10.2.0.1:7442 0.0.0.0:0 Close Idle - 0 0 0 1002 0 0 0 0 0 0 0 0 0 0\n\
10.2.0.1:7443 10.2.0.2:50000 Established Direct - 100 200 0 1003 90 180 1 2 3 4 5 6 70 80\n\
10.2.0.1:7444 10.2.0.2:50001 Established Tcp no-listener 7 8 4 1004 0 0 0 0 0 0 0 0 0 0\n\
[::1]:7445 [::1]:50002 CloseWait Tcp no-route 7 8 4 1005 0 0 0 0 0 0 0 0 0 0\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_by_their_heading() {
        let all = parse(SAMPLE).unwrap();
        assert_eq!(all.len(), 5);
        assert_eq!(
            (all[2].sent, all[2].fetched, all[2].unacknowledged),
            (100, 4, 6)
        );
        assert_eq!((all[2].lent, all[2].sunk), (70, 80));
        assert_eq!(all[4].state_word(), "CLOSE-WAIT");
        assert_eq!(all[1].state_word(), "UNCONN");
        // Older modules have fewer columns, and newer modules may have more.
        let cut: String = SAMPLE
            .lines()
            .map(|l| l.split(' ').take(9).collect::<Vec<_>>().join(" ") + "\n")
            .collect();
        let old = parse(&cut).unwrap();
        assert_eq!((old[2].sent, old[2].fetched), (100, 0));
        let more = SAMPLE.replace('\n', " x\n");
        assert_eq!(parse(&more).unwrap().len(), 5);
        assert!(parse("local remote\n1.2.3.4:5 6.7.8.9:1 x\n").is_err());
        assert!(parse("local\n1.2.3.4:5\n").is_err());
        assert!(parse("").unwrap().is_empty());
    }

    #[test]
    fn reasons_are_those_of_the_header() {
        let header = include_str!("../../../include/af_extl.h");
        let mut found = 0;
        for line in header.lines() {
            let Some(rest) = line.trim().strip_prefix("EXTL_REASON_") else {
                continue;
            };
            let (name, rest) = rest.split_once(" = ").unwrap();
            let number: u16 = rest.split(',').next().unwrap().parse().unwrap();
            if number == 0 {
                continue;
            }
            let name = name.to_lowercase().replace('_', "-");
            let known = REASONS.iter().find(|(n, ..)| *n == number);
            let (_, other, words) = known.unwrap_or_else(|| panic!("no words for {name}"));
            assert_eq!(*other, name);
            assert!(!words.is_empty());
            found += 1;
        }
        assert_eq!(found, REASONS.len());
    }

    #[test]
    fn a_reason_that_is_not_known_is_shown() {
        let mut one = parse(SAMPLE).unwrap().remove(3);
        assert_eq!(one.reason_number(), Some(9));
        one.reason = Some("newer".into());
        assert_eq!(one.reason_words().as_deref(), Some("newer"));
        assert_eq!(one.json(None)["reason"], "newer");
        assert_eq!(one.json(None)["reason_number"], Value::Null);
        assert_eq!(one.json(Some(vec!["a".into()]))["users"][0], "a");
    }

    #[test]
    fn names_get_dashes() {
        assert_eq!(dashed("FinWait1"), "fin-wait-1");
        assert_eq!(dashed("Established"), "established");
    }
}
