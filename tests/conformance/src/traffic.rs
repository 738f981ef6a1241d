//! Traffic of user programs, kernel modules and TCP on a failing fabric: every operation must
//! succeed or fail in time.

use anyhow::{bail, ensure, Context, Result};
use clap::Subcommand;
use extoll::rma::{LockTarget, Nla, NodeId, Region, Vpid};
use extoll::velo::To;
use extoll::{rma, velo, Buffer, Device, Error, Wait};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Number of bytes that a server offers: half for reading, half for writing.
const BYTES: u64 = 128 << 10;
const HALF: u64 = BYTES / 2;
/// Port and size in bytes of TCP exchanges.
const TCP_PORT: u16 = 18601;
const TCP_BYTES: usize = 8000;
/// Size of a transfer in bytes.
const PIECE: u64 = 4000;
/// Time after the deadline by which an operation must have ended on a slow host.
const SLACK: Duration = Duration::from_secs(10);

/// Number of kinds of operations of a user program: messages, reading, writing, locks.
const USER_KINDS: usize = 4;

/// Pause between operations, which gives other programs CPU time.
const PAUSE: Duration = Duration::from_millis(150);

/// End and log of an endless run.
#[derive(clap::Args)]
pub struct Control {
    /// End the run when this file exists.
    #[arg(long)]
    stop: PathBuf,
    /// File that is rewritten after every round with the counts so far.
    #[arg(long)]
    log: PathBuf,
    /// Maximum duration of an operation in ms.
    #[arg(long, default_value_t = 1500)]
    deadline: u64,
}

#[derive(Subcommand)]
pub enum Verb {
    /// Answer messages and TCP connections and offer memory until killed.
    Serve,
    /// Run VELO, RMA and lock operations with a server.
    User {
        /// Words printed by the server after "ready".
        #[arg(num_args = 4)]
        server: Vec<u64>,
        #[command(flatten)]
        control: Control,
    },
    /// Run commands of extoll_bench one after the other.
    Kernel {
        commands: Vec<String>,
        #[command(flatten)]
        control: Control,
    },
    /// Send kilobytes to a server and back.
    Tcp {
        host: String,
        #[command(flatten)]
        control: Control,
    },
}

pub fn run(verb: Verb) -> Result<()> {
    match verb {
        Verb::Serve => {
            let listener = TcpListener::bind(("0.0.0.0", TCP_PORT))?;
            std::thread::spawn(move || listener.incoming().flatten().for_each(echo));
            let (messages, memory, region) = open()?;
            serve(&messages, &memory, &region)
        }
        Verb::User { server, control } => {
            let [node, velo, rma, nla] = server[..] else {
                bail!("four numbers");
            };
            let node = NodeId(u16::try_from(node)?);
            let port = |n: u64| Vpid::new(n as u16).context("no such port");
            let (messages, memory, region) = open()?;
            let mut client = Client {
                messages,
                echo: To::new(node, port(velo)?),
                memory,
                peer: rma::Peer::new(node, port(rma)?).interrupting(),
                region,
                remote: nla,
                sequence: 0,
                locks: 0,
                locked: 0,
            };
            control.drive(USER_KINDS, |kind, deadline| {
                client.operation(kind, deadline)
            })
        }
        Verb::Kernel { commands, control } => {
            ensure!(!commands.is_empty(), "no command");
            control.drive(commands.len(), |kind, deadline| {
                let ms = deadline.as_millis();
                bench(&format!("{} timeout_ms={ms}", commands[kind]))
            })
        }
        Verb::Tcp { host, control } => {
            let address = (host.as_str(), TCP_PORT).to_socket_addrs()?.next();
            let address = address.context("no such host")?;
            let mut n = 0;
            control.drive(1, |_, deadline| {
                n += 1;
                there_and_back(&address, n, deadline)
            })
        }
    }
}

/// Results so far, counted for each kind of operation, so that a kind that never succeeds is
/// visible.
struct Counts {
    done: Vec<u64>,
    failed: u64,
    worst: Duration,
}

impl Counts {
    fn new(kinds: usize) -> Self {
        Self {
            done: vec![0; kinds],
            failed: 0,
            worst: Duration::ZERO,
        }
    }

    fn add(&mut self, kind: usize, succeeded: bool, took: Duration) {
        match succeeded {
            true => self.done[kind] += 1,
            false => self.failed += 1,
        }
        self.worst = self.worst.max(took);
    }

    fn text(&self) -> String {
        let sum: u64 = self.done.iter().sum();
        let mut text = format!("done {sum}\n");
        for (kind, done) in self.done.iter().enumerate() {
            text += &format!("done_{kind} {done}\n");
        }
        let (failed, worst) = (self.failed, self.worst.as_millis());
        text + &format!("failed {failed}\nworst_ms {worst}\n")
    }
}

impl Control {
    /// Repeats operations of `kinds` kinds in turn. `operation` gets its kind and deadline and
    /// returns true on success. Fails if an operation exceeds the deadline or returns an error.
    fn drive(
        &self,
        kinds: usize,
        mut operation: impl FnMut(usize, Duration) -> Result<bool>,
    ) -> Result<()> {
        let deadline = Duration::from_millis(self.deadline);
        let mut counts = Counts::new(kinds);
        for kind in (0..kinds).cycle() {
            if self.stop.exists() {
                break;
            }
            let start = Instant::now();
            let succeeded = operation(kind, deadline)?;
            let took = start.elapsed();
            counts.add(kind, succeeded, took);
            ensure!(took < deadline + SLACK, "an operation took {took:?}");
            let new = self.log.with_extension("new");
            std::fs::write(&new, counts.text())?;
            std::fs::rename(&new, &self.log)?;
            std::thread::sleep(PAUSE);
        }
        crate::say("ok")
    }
}

fn open() -> Result<(velo::Port, rma::Port, Region)> {
    let device = Device::default();
    let (messages, memory) = (velo::Port::open(&device)?, rma::Port::open(&device)?);
    let region = memory.register(Buffer::new(BYTES as usize)?)?;
    Ok((messages, memory, region))
}

/// Echoes the data of one connection. Errors are ignored, because the client detects them.
fn echo(mut stream: TcpStream) {
    let patient = stream.set_read_timeout(Some(Duration::from_secs(10)));
    let mut data = [0; TCP_BYTES];
    if patient.is_ok() && stream.read_exact(&mut data).is_ok() {
        let _ = stream.write_all(&data);
    }
}

fn there_and_back(address: &SocketAddr, n: usize, deadline: Duration) -> Result<bool> {
    let question: Vec<u8> = (0..TCP_BYTES)
        .map(|i| byte((n * 7919 + i) as u64))
        .collect();
    let mut answer = vec![0; TCP_BYTES];
    let mut exchange = || -> std::io::Result<()> {
        let mut stream = TcpStream::connect_timeout(address, deadline / 2)?;
        stream.set_read_timeout(Some(deadline / 2))?;
        stream.write_all(&question)?;
        stream.read_exact(&mut answer)
    };
    if exchange().is_err() {
        return Ok(false);
    }
    ensure!(question == answer, "an answer differs from the question");
    Ok(true)
}

/// Runs a command of extoll_bench.
fn bench(command: &str) -> Result<bool> {
    let mut file = File::options()
        .read(true)
        .write(true)
        .open("/dev/extoll_bench")?;
    let accepted = file.write_all(command.as_bytes()).is_ok();
    let mut said = String::new();
    file.read_to_string(&mut said)?;
    let value = |key: &str| said.lines().find_map(|l| l.strip_prefix(key));
    let mismatch = value("mismatch ").is_some_and(|m| m != "none");
    ensure!(!mismatch, "{command}: {said}");
    Ok(accepted && value("result ").is_none_or(|r| r == "ok"))
}

fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9E37_79B9) >> 13) as u8
}

fn serve(messages: &velo::Port, memory: &rma::Port, region: &Region) -> Result<()> {
    let offered: Vec<u8> = (0..HALF).map(byte).collect();
    region.write(0, &offered)?;
    let (node, nla) = (messages.node(), region.nla().0);
    crate::say(&format!(
        "ready {node} {} {} {nla}",
        messages.vpid(),
        memory.vpid()
    ))?;
    loop {
        let m = match messages.recv(Wait::for_at_most(Duration::from_secs(3600))) {
            Ok(m) => m,
            Err(Error::Timeout | Error::Message(_)) => continue,
            Err(e) => return Err(e.into()),
        };
        // An answer that can't be sent in time is dropped, and the client times out.
        match messages.send(
            &To::reply(m.source),
            m.data(),
            Wait::for_at_most(Duration::from_secs(1)),
        ) {
            Ok(()) | Err(Error::Timeout | Error::Lost { .. }) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

struct Client {
    messages: velo::Port,
    echo: To,
    memory: rma::Port,
    peer: rma::Peer,
    region: Region,
    remote: u64,
    sequence: u64,
    /// Number of attempts on the lock (`locks`), and last known value of the lock (`locked`).
    locks: u32,
    locked: u32,
}

impl Client {
    /// Runs an operation of a kind. Fails on wrong data or a broken port.
    fn operation(&mut self, kind: usize, deadline: Duration) -> Result<bool> {
        self.sequence += 1;
        let wait = Wait::for_at_most(deadline);
        let result = match kind {
            0 => self.ping(wait),
            1 => self.get(wait),
            2 => self.put_and_get(wait),
            _ => self.lock(wait),
        };
        match result.as_ref().map_err(|e| e.downcast_ref::<Error>()) {
            Ok(()) => Ok(true),
            Err(Some(Error::Timeout | Error::Transfer(_) | Error::Full)) => Ok(false),
            // A broken or hostile NIC may have written invalid entries into the queues.
            Err(Some(Error::Message(_) | Error::Notification(_))) => Ok(false),
            Err(_) => result.map(|()| false),
        }
    }

    fn ping(&mut self, wait: Wait) -> Result<()> {
        let question = self.sequence.to_le_bytes();
        self.messages.send(&self.echo, &question, wait)?;
        while self.messages.recv(wait)?.data() != question {}
        Ok(())
    }

    /// Reads a chunk of the server's memory.
    fn get(&mut self, wait: Wait) -> Result<()> {
        let at = self.sequence * 997 % (HALF - PIECE);
        let here = self.sequence % 8 * PIECE;
        self.memory.get_wait(
            &self.peer,
            &self.region,
            here,
            PIECE,
            Nla(self.remote + at),
            wait,
        )?;
        let mut seen = vec![0; PIECE as usize];
        self.region.read(here, &mut seen)?;
        let wrong = seen.iter().zip(at..).position(|(b, at)| *b != byte(at));
        ensure!(wrong.is_none(), "byte {wrong:?} of a piece at {at}");
        Ok(())
    }

    /// Writes a number and reads it back.
    fn put_and_get(&mut self, wait: Wait) -> Result<()> {
        let there = Nla(self.remote + HALF + self.sequence % 64 * 8);
        let (from, to) = (HALF, HALF + 64 + self.sequence % 64 * 8);
        self.region.store(from, self.sequence)?;
        self.memory
            .put_wait(&self.peer, &self.region, from, 8, there, wait)?;
        self.region.store(to, 0)?;
        self.memory
            .get_wait(&self.peer, &self.region, to, 8, there, wait)?;
        let seen = self.region.load(to)?;
        ensure!(seen <= self.sequence, "{seen} instead of {}", self.sequence);
        // If a PUT was lost with its cable, the old number remains. This counts as a time-out.
        if seen != self.sequence {
            return Err(Error::Timeout.into());
        }
        Ok(())
    }

    /// Adds one to a lock of the server that only this client uses.
    fn lock(&mut self, wait: Wait) -> Result<()> {
        self.locks += 1;
        let at = if self.locks % 2 == 0 {
            LockTarget::Completer
        } else {
            LockTarget::Responder
        };
        let found = self
            .memory
            .lock_wait(&self.peer, at, 0, i32::MAX, 1, wait)?;
        let (success, number, value) = (found.result(), found.number(), found.value());
        ensure!(
            success == 1 && number == 0,
            "lock {number}: result {success}"
        );
        // The lock grows by one for each successful attempt, and by at most one for each other
        // attempt.
        let expected = self.locked + 1..=self.locks;
        ensure!(expected.contains(&value), "{value}, not in {expected:?}");
        self.locked = value;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_by_itself() {
        let mut counts = Counts::new(2);
        counts.add(0, true, Duration::from_millis(3));
        counts.add(1, false, Duration::from_millis(7));
        counts.add(0, true, Duration::from_millis(5));
        let text = "done 2\ndone_0 2\ndone_1 0\nfailed 1\nworst_ms 7\n";
        assert_eq!(counts.text(), text);
    }
}
