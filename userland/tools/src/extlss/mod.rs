// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `extlss`: shows AF_EXTL sockets, as ss shows TCP sockets.

mod process;
mod socket;

use crate::table::table;
use anyhow::{Context, Result};
use clap::Parser;
use process::Owners;
use serde_json::Value;
use socket::{Mode, Socket};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Shows AF_EXTL sockets, the path of their data, and the reasons for TCP.
///
/// Each line contains the state, the queues, both addresses, the mode, the bytes that TCP carried,
/// the bytes of the direct path, and the reason for TCP. The direct path consists of VELO messages
/// and RMA, without TCP. The queues have the same meaning as in ss. For a connection, they are the
/// bytes that the program has not read, and the bytes that the peer has not acknowledged. For a
/// listener, they are the number of pending connections, and its maximum. Without options, the
/// program shows only connections.
///
/// extlss reads /proc/net/extl and therefore shows the sockets of its network namespace. It does
/// not list unused sockets. ss shows the same sockets as TCP sockets.
///
/// Example: extlss --all --processes
///
/// Example: extlss --mode tcp --extended
///
/// Example: extlss --state established --port 6379
#[derive(Parser, Debug)]
#[command(name = "extlss", version)]
pub struct Args {
    /// Shows all sockets, including listening sockets and sockets without a connection.
    #[arg(short, long)]
    all: bool,
    /// Shows only listening sockets.
    #[arg(short, long)]
    listening: bool,
    /// Has no effect, because all sockets are of this kind. The option exists for users of ss -t.
    #[arg(short, long)]
    tcp: bool,
    /// Shows only IPv4 sockets.
    #[arg(short = '4', long, conflicts_with = "ipv6")]
    ipv4: bool,
    /// Shows only IPv6 sockets.
    #[arg(short = '6', long)]
    ipv6: bool,
    /// Shows ports as numbers instead of the names in /etc/services.
    #[arg(short, long)]
    numeric: bool,
    /// Shows the processes that use the socket. Only root sees processes of other users.
    #[arg(short, long)]
    processes: bool,
    /// Shows user and inode. For the direct path, also shows the bytes by messages and by RMA.
    #[arg(short, long)]
    extended: bool,
    /// Omits the heading.
    #[arg(short = 'H', long)]
    no_header: bool,
    /// Prints JSON: an array with one object for each socket, which contains all data of the
    /// socket.
    #[arg(short, long)]
    json: bool,
    /// Shows only sockets in these states, separated by commas: established, syn-sent, close-wait,
    /// listen, close …
    #[arg(long, value_name = "STATES", value_delimiter = ',')]
    state: Vec<String>,
    /// Shows only sockets with this local or remote port.
    #[arg(long)]
    port: Option<u16>,
    /// Shows only sockets whose data use this path.
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// Shows only sockets that use TCP for one of these reasons. Reasons are names or numbers,
    /// separated by commas.
    #[arg(long, value_name = "REASONS", value_delimiter = ',')]
    reason: Vec<String>,
    /// Directory that replaces / in tests.
    #[arg(long, hide = true, default_value = "/")]
    root: PathBuf,
}

impl Args {
    /// Returns whether the options select a socket.
    fn wants(&self, s: &Socket) -> bool {
        let state = if self.listening {
            s.state == "listen"
        } else if self.all || !self.state.is_empty() {
            true
        } else {
            s.state != "listen" && s.state != "close"
        };
        let named = |list: &[String], names: &[&str]| {
            list.is_empty() || list.iter().any(|w| names.contains(&w.as_str()))
        };
        let ports = [s.local.port(), s.peer.port()];
        let number = s.reason_number().map(|n| n.to_string());
        let reason = [s.reason.as_deref(), number.as_deref()].map(|r| r.unwrap_or(""));
        state
            && !(self.ipv4 && s.local.is_ipv6())
            && !(self.ipv6 && s.local.is_ipv4())
            && named(&self.state, &[&s.state])
            && self.port.is_none_or(|port| ports.contains(&port))
            && self.mode.is_none_or(|mode| s.mode == mode)
            && named(&self.reason, &reason)
    }
}

/// Parses the text of /etc/services. Returns the names of TCP ports.
fn services(text: &str) -> BTreeMap<u16, String> {
    let one = |line: &str| {
        let line = line.split('#').next()?;
        let mut words = line.split_ascii_whitespace();
        let (name, port) = (words.next()?, words.next()?);
        let port = port.strip_suffix("/tcp")?.parse().ok()?;
        Some((port, name.to_owned()))
    };
    // If a port has several names, the first name is used.
    let mut all: Vec<_> = text.lines().filter_map(one).collect();
    all.reverse();
    all.into_iter().collect()
}

/// Formats an address in the form of ss.
fn end(at: &std::net::SocketAddr, services: &BTreeMap<u16, String>) -> String {
    let host = match at.ip() {
        std::net::IpAddr::V6(v6) => format!("[{v6}]"),
        std::net::IpAddr::V4(v4) => v4.to_string(),
    };
    match (at.port(), services.get(&at.port())) {
        (0, _) => format!("{host}:*"),
        (_, Some(name)) => format!("{host}:{name}"),
        (port, None) => format!("{host}:{port}"),
    }
}

/// Returns the cells of a socket's line.
fn row(args: &Args, s: &Socket, services: &BTreeMap<u16, String>, owners: &Owners) -> Vec<String> {
    let way = |all: u64, direct: u64| all.saturating_sub(direct).to_string();
    let mut cells = vec![
        s.state_word(),
        s.unread.to_string(),
        s.unacknowledged.to_string(),
        end(&s.local, services),
        end(&s.peer, services),
        s.mode.word().to_owned(),
        way(s.sent, s.direct_sent),
        way(s.received, s.direct_received),
        s.direct_sent.to_string(),
        s.direct_received.to_string(),
    ];
    let mut about = vec![];
    if let Some(words) = s.reason_words() {
        about.push(words);
    }
    if args.extended {
        about.push(format!("uid:{} ino:{}", s.uid, s.inode));
        if s.mode == Mode::Direct {
            about.push(format!(
                "sent(messages:{} announced:{}) received(messages:{} fetched:{})",
                s.message_sent, s.announced, s.message_received, s.fetched
            ));
            if s.lent + s.sunk > 0 {
                about.push(format!("not-copied(sent:{} received:{})", s.lent, s.sunk));
            }
        }
    }
    if args.processes {
        let users = owners.of(s.inode);
        if !users.is_empty() {
            about.push(format!("users:({})", users.join(",")));
        }
    }
    cells.push(about.join(" "));
    cells
}

/// Runs the program.
pub fn run(args: Args) -> Result<ExitCode> {
    let path = args.root.join("proc/net/extl");
    let text = fs::read_to_string(&path)
        .with_context(|| format!("{}: is af_extl loaded?", path.display()))?;
    let mut all = socket::parse(&text).with_context(|| path.display().to_string())?;
    all.retain(|s| args.wants(s));
    let owners = match args.processes {
        true => Owners::find(&args.root),
        false => Owners::default(),
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        let all: Vec<Value> = all
            .iter()
            .map(|s| s.json(args.processes.then(|| owners.of(s.inode))))
            .collect();
        writeln!(out, "{}", Value::Array(all))?;
        return Ok(ExitCode::SUCCESS);
    }
    let names = match args.numeric {
        true => BTreeMap::new(),
        false => services(&fs::read_to_string(args.root.join("etc/services")).unwrap_or_default()),
    };
    let heading = [
        "State",
        "Recv-Q",
        "Send-Q",
        "Local",
        "Peer",
        "Mode",
        "TCP-Sent",
        "TCP-Rcvd",
        "Direct-Sent",
        "Direct-Rcvd",
        "",
    ];
    let mut rows = vec![heading.map(String::from).to_vec()];
    rows.extend(all.iter().map(|s| row(&args, s, &names, &owners)));
    let text = table(&rows);
    let skip = match (args.no_header, text.find('\n')) {
        (true, Some(end)) => end + 1,
        _ => 0,
    };
    write!(out, "{}", &text[skip..])?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(options: &[&str]) -> Vec<String> {
        let args = Args::parse_from([&["extlss"], options].concat());
        let mut all = socket::parse(socket::SAMPLE).unwrap();
        all.retain(|s| args.wants(s));
        all.iter().map(|s| s.local.port().to_string()).collect()
    }

    #[test]
    fn filters_choose() {
        assert_eq!(shown(&[]), ["7443", "7444", "7445"]);
        assert_eq!(shown(&["-a"]), ["7441", "7442", "7443", "7444", "7445"]);
        assert_eq!(shown(&["-l"]), ["7441"]);
        assert_eq!(shown(&["-t", "-6"]), ["7445"]);
        assert_eq!(shown(&["-4"]), ["7443", "7444"]);
        assert_eq!(shown(&["--state", "listen,close"]), ["7441", "7442"]);
        assert_eq!(shown(&["--state", "close-wait"]), ["7445"]);
        assert_eq!(shown(&["--port", "50000"]), ["7443"]);
        assert_eq!(shown(&["--port", "7444"]), ["7444"]);
        assert_eq!(shown(&["--mode", "direct"]), ["7443"]);
        assert_eq!(shown(&["--reason", "no-listener"]), ["7444"]);
        assert_eq!(shown(&["--reason", "9,off"]), ["7444"]);
        assert_eq!(shown(&["--reason", "off"]), [""; 0]);
    }

    #[test]
    fn a_line_has_everything() {
        let all = socket::parse(socket::SAMPLE).unwrap();
        let names = services("# x\nhttp 80/tcp www\nfirst 7444/tcp\nsecond 7444/tcp\n");
        let args = Args::parse_from(["extlss", "-e", "-p"]);
        let owners = Owners::from([(1003, "(\"a\",pid=5,fd=3)")]);
        let line = |i: usize| row(&args, &all[i], &names, &owners).join(" ");
        assert_eq!(
            line(2),
            "ESTAB 5 6 10.2.0.1:7443 10.2.0.2:50000 direct 10 20 90 180 uid:0 ino:1003 \
             sent(messages:1 announced:2) received(messages:3 fetched:4) not-copied(sent:70 received:80) \
             users:((\"a\",pid=5,fd=3))"
        );
        assert_eq!(
            line(3),
            "ESTAB 0 0 10.2.0.1:first 10.2.0.2:50001 tcp 7 8 0 0 (9) the peer's program uses plain TCP uid:4 ino:1004"
        );
        assert!(line(0).starts_with("LISTEN 0 128 0.0.0.0:7441 0.0.0.0:* listening 0 0 0 0"));
    }
}
