//! Traffic of user programs while the fabric fails: every operation ends well or with an error, and in time.

use anyhow::{bail, ensure, Context, Result};
use clap::Subcommand;
use extoll::rma::{LockTarget, Nla, NodeId, Region, Vpid};
use extoll::velo::To;
use extoll::{rma, velo, Buffer, Device, Error, Wait};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Bytes that a server offers: half to be read, half to be written.
const BYTES: u64 = 128 << 10;
const HALF: u64 = BYTES / 2;
/// Bytes of a transfer.
const PIECE: u64 = 4000;
/// What a slow machine may need beyond the deadline to notice that it is over.
const SLACK: Duration = Duration::from_secs(4);

/// Between rounds, so that others get the processor.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Subcommand)]
pub enum Verb {
    /// Answers messages and offers memory until it is killed.
    Serve,
    /// Works with a server until a file exists; rewrites the log with what happened so far.
    Run {
        /// What the server said after "ready".
        #[arg(num_args = 4)]
        server: Vec<u64>,
        /// Ends when this file exists.
        #[arg(long)]
        stop: PathBuf,
        #[arg(long)]
        log: PathBuf,
        /// Milliseconds that an operation may take.
        #[arg(long, default_value_t = 1500)]
        deadline: u64,
    },
}

pub fn run(verb: Verb) -> Result<()> {
    let device = Device::default();
    let (messages, memory) = (velo::Port::open(&device)?, rma::Port::open(&device)?);
    let region = memory.register(Buffer::new(BYTES as usize)?)?;
    match verb {
        Verb::Serve => serve(&messages, &memory, &region),
        Verb::Run {
            server,
            stop,
            log,
            deadline,
        } => {
            let [node, velo, rma, nla] = server[..] else {
                bail!("four numbers");
            };
            let node = NodeId(u16::try_from(node)?);
            let port = |n: u64| Vpid::new(n as u16).context("no such port");
            let mut client = Client {
                messages,
                echo: To::new(node, port(velo)?),
                memory,
                peer: rma::Peer::new(node, port(rma)?).interrupting(),
                region,
                remote: nla,
                deadline: Duration::from_millis(deadline),
                sequence: 0,
                counts: Counts::default(),
            };
            while !stop.exists() {
                client.round()?;
                let new = log.with_extension("new");
                std::fs::write(&new, client.counts.show())?;
                std::fs::rename(&new, &log)?;
                std::thread::sleep(PAUSE);
            }
            crate::say("ok")
        }
    }
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
            Err(Error::Timeout) => continue,
            Err(e) => return Err(e.into()),
        };
        // An answer that cannot be sent in time is one that does not come; the client knows what to do.
        match messages.send(
            &To::reply(m.source),
            m.data(),
            Wait::for_at_most(Duration::from_secs(1)),
        ) {
            Ok(()) | Err(Error::Timeout | Error::Broken(_)) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

#[derive(Default)]
struct Counts {
    done: u64,
    failed: u64,
    worst: Duration,
}

impl Counts {
    fn show(&self) -> String {
        format!(
            "done {}\nfailed {}\nworst_ms {}\n",
            self.done,
            self.failed,
            self.worst.as_millis()
        )
    }
}

struct Client {
    messages: velo::Port,
    echo: To,
    memory: rma::Port,
    peer: rma::Peer,
    region: Region,
    remote: u64,
    deadline: Duration,
    sequence: u64,
    counts: Counts,
}

impl Client {
    /// One operation of each kind. Fails when one takes too long, moves wrong data or breaks the port.
    fn round(&mut self) -> Result<()> {
        for operation in [Self::ping, Self::get, Self::put_and_get, Self::lock] {
            self.sequence += 1;
            // What comes too late belongs to nobody.
            while self.memory.try_notification()?.is_some() {}
            let start = Instant::now();
            let result = operation(self, Wait::for_at_most(self.deadline));
            let took = start.elapsed();
            self.counts.worst = self.counts.worst.max(took);
            match result.as_ref().map_err(|e| e.downcast_ref::<Error>()) {
                Ok(()) => self.counts.done += 1,
                Err(Some(Error::Timeout | Error::Transfer(_) | Error::Full)) => {
                    self.counts.failed += 1
                }
                Err(_) => return result.with_context(|| self.counts.show()),
            }
            ensure!(took < self.deadline + SLACK, "an operation took {took:?}");
        }
        Ok(())
    }

    fn ping(&mut self, wait: Wait) -> Result<()> {
        let question = self.sequence.to_le_bytes();
        self.messages.send(&self.echo, &question, wait)?;
        while self.messages.recv(wait)?.data() != question {}
        Ok(())
    }

    /// Reads a piece of what the server offers.
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
        // A put that got lost with its cable leaves the old number: no success, and nothing to wait for.
        if seen != self.sequence {
            return Err(Error::Timeout.into());
        }
        Ok(())
    }

    fn lock(&mut self, wait: Wait) -> Result<()> {
        let at = if self.sequence % 2 == 0 {
            LockTarget::Completer
        } else {
            LockTarget::Responder
        };
        self.memory
            .lock_wait(&self.peer, at, 0, i32::MAX, 1, wait)?;
        Ok(())
    }
}
