//! The conformance matrix of RMA: commands × notification specifications × kinds of addresses ×
//! sizes × offsets, with all traffic classes, interrupts and modifiers. It runs between two nodes,
//! between two ports of a node, and from a port to itself.

mod case;
mod interrupts;
mod side;

use anyhow::{bail, ensure, Context, Result};
use case::{batches, Case, Extent, Plan};
use clap::{Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use side::{Address, Role, Side, PATIENCE};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

const TCP_PORT: u16 = 18600;
/// Number of failures after which the run ends.
const ENOUGH: usize = 20;

#[derive(Subcommand)]
pub enum Verb {
    /// Serve as the target of another node's commands, for one client.
    Serve,
    /// Run the matrix.
    Run {
        /// Node that serves (default: this node is origin and target)
        #[arg(long)]
        host: Option<String>,
        /// Run every n-th combination of the small transfers.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
        every: u16,
        /// Run all long transfers.
        #[arg(long)]
        full: bool,
        /// Run only these parts of the matrix
        #[arg(long, value_enum)]
        plan: Vec<Plan>,
    },
}

pub fn run(verb: Verb) -> Result<()> {
    match verb {
        Verb::Serve => serve(),
        Verb::Run {
            host,
            every,
            full,
            plan,
        } => {
            let extent = Extent {
                every: every.into(),
                full,
            };
            let plans = if plan.is_empty() {
                Plan::value_variants()
            } else {
                &plan
            };
            matrix(host.as_deref(), extent, plans)
        }
    }
}

/// Request of the client to the server.
#[derive(Serialize, Deserialize)]
enum Ask {
    Open {
        plan: Plan,
        extent: Extent,
        origin: Address,
    },
    /// Checks a batch, then prepares the next one.
    Step {
        check: Option<usize>,
        prepare: Option<usize>,
    },
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Opened(Address),
    Failures(Vec<String>),
    Error(String),
}

/// Connection on which both ends send messages as lines of JSON.
struct Line {
    from: BufReader<TcpStream>,
    to: TcpStream,
}

impl Line {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(4 * PATIENCE))?;
        let to = stream.try_clone()?;
        Ok(Self {
            from: BufReader::new(stream),
            to,
        })
    }

    fn tell(&mut self, what: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        Ok(self.to.write_all(&line)?)
    }

    /// Receives a line. Returns `None` when the peer has closed the connection.
    fn hear<T: for<'a> Deserialize<'a>>(&mut self) -> Result<Option<T>> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        if line.is_empty() {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&line)?))
    }

    fn ask(&mut self, what: &Ask) -> Result<Answer> {
        self.tell(what)?;
        match self.hear()?.context("the other node ended")? {
            Answer::Error(e) => bail!("on the other node: {e}"),
            answer => Ok(answer),
        }
    }
}

fn serve() -> Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", TCP_PORT))?;
    crate::say("ready")?;
    let mut line = Line::new(listener.accept()?.0)?;
    let mut work: Option<Work> = None;
    while let Some(ask) = line.hear()? {
        let answer = match ask {
            Ask::Open {
                plan,
                extent,
                origin,
            } => {
                // Frees the previous memory first, because two sides of the large plan do not fit.
                drop(work.take());
                Side::open(plan).map(|side| {
                    let address = side.address();
                    work = Some(Work {
                        side,
                        batches: batches(plan, extent),
                        origin,
                    });
                    Answer::Opened(address)
                })
            }
            Ask::Step { check, prepare } => work
                .as_ref()
                .context("nothing is open")
                .and_then(|w| w.step(check, prepare))
                .map(Answer::Failures),
        };
        line.tell(&answer.unwrap_or_else(|e| Answer::Error(format!("{e:#}"))))?;
    }
    crate::say("ok")
}

/// State of the server.
struct Work {
    side: Side,
    batches: Vec<Vec<Case>>,
    origin: Address,
}

impl Work {
    fn step(&self, check: Option<usize>, prepare: Option<usize>) -> Result<Vec<String>> {
        let batch = |n: usize| self.batches.get(n).context("no such batch");
        let mut failures = vec![];
        if let Some(batch) = check.map(batch).transpose()? {
            let told = told(
                batch,
                |case| self.side.ends_as_target(case, &self.origin),
                1,
            );
            failures = self.side.collect(batch, told, classes(batch).len())?;
            failures.extend(self.side.compare(batch, Role::Target)?);
        }
        if let Some(batch) = prepare.map(batch).transpose()? {
            self.side.prepare(batch, Role::Target)?;
        }
        Ok(failures)
    }
}

/// Returns the notifications that the origin (0) or the target (1) expects, with the numbers of
/// their combinations.
fn told(
    batch: &[Case],
    ends: impl Fn(&Case) -> case::Ends,
    whom: usize,
) -> Vec<(usize, extoll::rma::Notification)> {
    let of = |(i, case): (usize, &Case)| {
        let [origin, target] = case.notifications(&ends(case));
        let list = if whom == 0 { origin } else { target };
        list.into_iter().map(move |n| (i, n)).collect::<Vec<_>>()
    };
    batch.iter().enumerate().flat_map(of).collect()
}

/// Returns the traffic classes that a batch uses.
fn classes(batch: &[Case]) -> Vec<u8> {
    let mut all: Vec<u8> = batch.iter().map(|c| c.page.traffic_class).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Target of the commands.
enum Target<'a> {
    Remote(&'a mut Line),
    /// Another port of this node.
    Port(Box<Work>),
    Own,
}

fn matrix(host: Option<&str>, extent: Extent, plans: &[Plan]) -> Result<()> {
    let mut line = match host {
        Some(host) => Some(Line::new(TcpStream::connect((host, TCP_PORT))?)?),
        None => None,
    };
    let places: &[&str] = if host.is_some() {
        &["remote"]
    } else {
        &["ports", "own"]
    };
    let (mut total, mut failed) = (0, 0);
    for plan in plans {
        for place in places {
            // A side of the large plan has only one role. A test from a port to itself would repeat
            // the test between two ports.
            if *plan == Plan::Large && *place == "own" {
                continue;
            }
            let start = Instant::now();
            let (run, left_out, failures) = part(*plan, place, extent, line.as_mut())
                .with_context(|| format!("{plan:?} {place}"))?;
            let seconds = start.elapsed().as_secs_f32();
            let more = if left_out > 0 {
                format!(", {left_out} left out: no contiguous memory")
            } else {
                String::new()
            };
            crate::say(&format!(
                "{plan:?} {place}: {run} combinations in {seconds:.1} s, {} failures{more}",
                failures.len()
            ))?;
            for failure in failures.iter().take(ENOUGH) {
                crate::say(&format!("  {failure}"))?;
            }
            total += run;
            failed += failures.len();
        }
    }
    if host.is_none() && plans.contains(&Plan::Short) {
        let (run, failures) = interrupts::run()?;
        crate::say(&format!(
            "Interrupts: {run} combinations, {} failures",
            failures.len()
        ))?;
        for failure in failures.iter().take(ENOUGH) {
            crate::say(&format!("  {failure}"))?;
        }
        total += run;
        failed += failures.len();
    }
    ensure!(failed == 0, "{failed} failures in {total} combinations");
    crate::say(&format!("ok {total}"))
}

/// Runs a plan. Returns the number of combinations that ran, the number of combinations that are
/// impossible on this node, and the failures.
fn part(
    plan: Plan,
    place: &str,
    extent: Extent,
    line: Option<&mut Line>,
) -> Result<(usize, usize, Vec<String>)> {
    let origin = Side::open(plan)?;
    let all = batches(plan, extent);
    let (mut target, address) = match (line, place) {
        (Some(line), _) => {
            let Answer::Opened(address) = line.ask(&Ask::Open {
                plan,
                extent,
                origin: origin.address(),
            })?
            else {
                bail!("no address");
            };
            (Target::Remote(line), address)
        }
        (None, "own") => (Target::Own, origin.address()),
        _ => {
            let side = Side::open(plan)?;
            let address = side.address();
            let batches = batches(plan, extent);
            let origin = origin.address();
            (
                Target::Port(Box::new(Work {
                    side,
                    batches,
                    origin,
                })),
                address,
            )
        }
    };
    let physical = origin.address().has_physical() && address.has_physical();
    // Selects batches whose addresses exist. The server identifies a batch by its number.
    let possible = |b: &[Case]| physical || b.iter().all(|c| c.page.translate);
    let (run, left_out): (Vec<usize>, Vec<usize>) =
        (0..all.len()).partition(|n| possible(&all[*n]));
    let mut failures = vec![];
    target.step(&origin, &all, None, run.first().copied())?;
    let mut count = 0;
    for (k, n) in run.iter().enumerate() {
        let batch = &all[*n];
        count += batch.len();
        failures.extend(one(
            &origin,
            &address,
            batch,
            &mut target,
            &all,
            (*n, run.get(k + 1).copied()),
        )?);
        if failures.len() >= ENOUGH {
            break;
        }
    }
    Ok((
        count,
        left_out.iter().map(|n| all[*n].len()).sum(),
        failures,
    ))
}

/// Runs a batch that the target has prepared, and lets the target prepare the next one.
fn one(
    origin: &Side,
    address: &Address,
    batch: &[Case],
    target: &mut Target<'_>,
    all: &[Vec<Case>],
    (this, next): (usize, Option<usize>),
) -> Result<Vec<String>> {
    let own = matches!(target, Target::Own);
    let first = if own {
        Role::TargetOfOwn.first_slot(origin.slots())
    } else {
        0
    };
    origin.prepare(batch, Role::Origin)?;
    for case in batch {
        origin.post(case, address, first)?;
    }
    let classes = classes(batch);
    origin.synchronise(&classes, address)?;
    let ends = |case: &Case| origin.ends(case, address, first);
    let mut here = told(batch, ends, 0);
    let mut syncs = classes.len();
    if own {
        here.extend(told(batch, ends, 1));
        syncs *= 2;
    }
    let mut failures = origin.collect(batch, here, syncs)?;
    failures.extend(origin.compare(batch, Role::Origin)?);
    failures.extend(target.step(origin, all, Some(this), next)?);
    Ok(failures)
}

impl Target<'_> {
    fn step(
        &mut self,
        origin: &Side,
        all: &[Vec<Case>],
        check: Option<usize>,
        prepare: Option<usize>,
    ) -> Result<Vec<String>> {
        match self {
            Target::Port(work) => work.step(check, prepare),
            Target::Remote(line) => match line.ask(&Ask::Step { check, prepare })? {
                Answer::Failures(list) => Ok(list),
                _ => bail!("not an answer to this"),
            },
            Target::Own => {
                let failures = match check {
                    Some(n) => origin.compare(&all[n], Role::TargetOfOwn)?,
                    None => vec![],
                };
                if let Some(n) = prepare {
                    origin.prepare(&all[n], Role::TargetOfOwn)?;
                }
                Ok(failures)
            }
        }
    }
}
