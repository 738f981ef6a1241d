// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `extoll-ping`: round trips of VELO messages.

use crate::choice::Choice;
use crate::peer::{target, Identity, Listener, Target};
use crate::stats::{ns, Summary};
use anyhow::{bail, Context, Result};
use clap::Parser;
use extoll::velo::{Message, Mtt, Port, SourceId, To, MAX_LEN};
use extoll::{Error, Wait};
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Message type tag of requests. Replies have another tag.
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const HEADER: usize = 8;
/// Default port of TCP and UDP. It is the port after that of extoll-perf.
const TCP_PORT: u16 = 18516;

/// Sends VELO messages to a node and measures the time until the replies. All messages use only the
/// fabric.
///
/// Start "extoll-ping --listen" on one node and "extoll-ping TARGET" on another node. The client
/// asks the listener for its VPID, unless TARGET contains it. If TARGET is the name or address of a
/// machine, it asks over TCP. If TARGET is the number of a node, it asks by a multicast over the
/// interfaces of the NIC.
///
/// The exit status is 0 if a reply arrived, 1 if no reply arrived, and 2 after an error.
///
/// Example: extoll-ping --listen
///
/// Example: extoll-ping node1 --count 5
///
/// Example: extoll-ping 3/17 --size 120 --interval 0.1
#[derive(Parser, Debug)]
#[command(name = "extoll-ping", version)]
pub struct Args {
    /// Name or address of a machine, number of a node, or NODE/VPID that the listener has printed.
    #[arg(required_unless_present = "listen", value_parser = target)]
    target: Option<Target>,
    /// Answers requests until the program is killed, or until it has answered --count requests.
    #[arg(short, long, conflicts_with = "target")]
    listen: bool,
    /// Stops after this number of requests.
    #[arg(short, long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Time in seconds between requests.
    #[arg(short, long, default_value = "1", value_parser = crate::seconds)]
    interval: Duration,
    /// Maximum time in seconds to wait for each reply.
    #[arg(short = 'W', long, default_value = "1", value_parser = crate::seconds)]
    timeout: Duration,
    /// Number of data bytes per message, 8 to 120.
    #[arg(short, long, default_value = "56", value_parser = clap::value_parser!(u8).range(8..=MAX_LEN as i64))]
    size: u8,
    /// Prints only the summary.
    #[arg(short, long)]
    quiet: bool,
    /// Polls instead of sleeping until an interrupt arrives.
    #[arg(short = 'P', long)]
    poll: bool,
    /// TCP and UDP port at which a listener reports its VPID.
    #[arg(short, long, default_value_t = TCP_PORT)]
    port: u16,
    #[command(flatten)]
    choice: Choice,
}

/// Runs the program.
pub fn run(args: Args) -> Result<ExitCode> {
    let port = Port::open(&args.choice.device()?)?;
    match &args.target {
        Some(target) => {
            let own = Identity::of(&port)?;
            let id = target.find(&args.choice, &own, args.port)?;
            ping(&args, &port, id)
        }
        None => listen(&args, &port),
    }
}

fn manner(args: &Args, wait: Wait) -> Wait {
    if args.poll {
        wait.polling()
    } else {
        wait
    }
}

fn listen(args: &Args, port: &Port) -> Result<ExitCode> {
    let mut out = std::io::stdout();
    writeln!(out, "listening on {}", port.id())?;
    out.flush()?;
    // Several listeners may run on a node, but only one of them can use the TCP port.
    if let Err(e) = Listener::new(port)?.announce(&args.choice, args.port) {
        let e = e.context(format!("clients must be started with {}", port.id()));
        crate::complain("extoll-ping", &e);
    }
    let mut answered = 0;
    while args.count != Some(answered) {
        let message = match port.recv(manner(args, Wait::forever())) {
            Ok(message) => message,
            Err(Error::Interrupted) => continue,
            Err(e) => return Err(e.into()),
        };
        if message.mtt.get() != REQUEST {
            continue;
        }
        let to = To {
            mtt: Mtt::from_low_bits(REPLY),
            ..To::reply(message.source).tagged(message.tag)
        };
        port.send(&to, message.data(), Wait::for_at_most(args.timeout))
            .with_context(|| format!("cannot answer {}", message.source))?;
        answered += 1;
        if !args.quiet {
            writeln!(
                out,
                "{} bytes from {}",
                message.data().len(),
                message.source
            )?;
        }
    }
    port.drain(Wait::for_at_most(args.timeout))?;
    Ok(ExitCode::SUCCESS)
}

fn request(sequence: u64, size: usize) -> Vec<u8> {
    let mut data = sequence.to_le_bytes().to_vec();
    data.extend((HEADER..size).map(|i| (i as u64 ^ sequence) as u8));
    data
}

fn is_reply(message: &Message, from: SourceId, sequence: u64) -> bool {
    message.mtt.get() == REPLY
        && message.source == from
        && message.data().get(..HEADER) == Some(&sequence.to_le_bytes())
}

fn ping(args: &Args, port: &Port, target: SourceId) -> Result<ExitCode> {
    let mut out = std::io::stdout();
    let size = usize::from(args.size);
    let to = To {
        mtt: Mtt::from_low_bits(REQUEST),
        ..To::reply(target)
    };
    writeln!(
        out,
        "extoll-ping {target} from {}: {size} bytes of data",
        port.id()
    )?;
    let (mut sent, mut times, mut wrong) = (0u64, Vec::new(), 0u64);
    while args.count != Some(sent) {
        let start = Instant::now();
        let data = request(sent, size);
        let wait = manner(args, Wait::for_at_most(args.timeout));
        port.send(&to.tagged(sent as u8), &data, wait)
            .with_context(|| format!("cannot send to {target}"))?;
        let sequence = sent;
        sent += 1;
        loop {
            match port.recv(wait) {
                Ok(m) if is_reply(&m, target, sequence) => {
                    let time = start.elapsed();
                    times.push(ns(time));
                    let fine = m.data() == data;
                    wrong += u64::from(!fine);
                    if !args.quiet || !fine {
                        let us = time.as_secs_f64() * 1e6;
                        let note = if fine { "" } else { " WRONG DATA" };
                        writeln!(
                            out,
                            "{size} bytes from {}: seq={sequence} time={us:.1} us{note}",
                            m.source
                        )?;
                    }
                    break;
                }
                // Late replies and messages from other senders are ignored.
                Ok(_) => {}
                Err(Error::Timeout) => {
                    if !args.quiet {
                        writeln!(out, "no reply to seq={sequence}")?;
                    }
                    break;
                }
                Err(e) => return Err(e.into()),
            }
        }
        if args.count != Some(sent) {
            std::thread::sleep(args.interval.saturating_sub(start.elapsed()));
        }
    }
    let received = times.len() as u64;
    let lost = (sent - received) as f64 * 100.0 / sent.max(1) as f64;
    writeln!(out, "--- {target} extoll-ping statistics ---")?;
    writeln!(
        out,
        "{sent} sent, {received} received, {lost:.0}% lost, {wrong} wrong"
    )?;
    let s = Summary::of(&mut times);
    if received > 0 {
        writeln!(
            out,
            "rtt min/median/avg/max/mdev = {:.1}/{:.1}/{:.1}/{:.1}/{:.1} us",
            s.min, s.median, s.mean, s.max, s.deviation
        )?;
    }
    if wrong > 0 {
        bail!("{wrong} replies carried wrong data");
    }
    if received == 0 {
        // The receiver's NIC drops packets with another protection descriptor without informing the
        // sender.
        crate::say(&format!(
            "extoll-ping: check that extoll-ping --listen runs at {target}, as the same user, and with CAP_SYS_RAWIO only if this program has it too: other ports don't reach each other (docs/security.md)"
        ));
    }
    Ok(ExitCode::from(u8::from(received == 0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn arguments_are_checked() {
        Args::command().debug_assert();
        let parse = |args: &[&str]| Args::try_parse_from([&["extoll-ping"], args].concat());
        assert!(parse(&[]).is_err());
        assert!(parse(&["--listen", "1"]).is_err());
        assert!(parse(&["1", "-s", "121"]).is_err());
        assert!(parse(&["1", "-s", "7"]).is_err());
        assert!(parse(&["1", "-c", "0"]).is_err());
        assert!(parse(&["-l"]).is_ok() && parse(&["node1"]).is_ok());
    }

    #[test]
    fn requests_differ() {
        assert_eq!(request(3, 8).len(), 8);
        assert_eq!(request(3, 120).len(), 120);
        assert_ne!(request(3, 20)[8..], request(4, 20)[8..]);
    }
}
