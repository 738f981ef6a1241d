//! The emulator process of a lab: start, queries and fault injection.

use crate::proc;
use crate::state::{tail, LabDir, Paths, Record};
use anyhow::{anyhow, bail, ensure, Context, Result};
use extoll_emulator_api::control::{Client, Counters, Request, Status};
use extoll_emulator_api::nic::{Faults, LoseWrite, QueueFull, QueueUnit};
use extoll_emulator_api::topology::Topology;
use serde::Serialize;
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Maximum time from the emulator's start until it serves.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Maximum time for an answer of the emulator, which shares the machine with emulated CPUs.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);

/// Environment variable with NIC options (`KEY=VALUE` words) for all labs of a test run.
const NIC_OPTIONS: &str = "LAB_NIC_OPTIONS";

/// Returns the socket path of a NIC, counted over all nodes.
pub fn nic_socket(dir: &LabDir, nic: usize) -> PathBuf {
    dir.path.join(format!("nic{nic}.sock"))
}

/// Returns the path of the emulator's log.
pub fn log(dir: &LabDir) -> PathBuf {
    dir.path.join("emu.log")
}

/// Returns the path of the lab's trace.
pub fn trace_file(dir: &LabDir) -> PathBuf {
    dir.path.join("trace.jsonl")
}

/// Connects to the lab's emulator.
///
/// # Errors
/// When the emulator does not run.
pub fn connect(dir: &LabDir) -> Result<Client> {
    let client = Client::connect(&dir.path)?;
    client.set_timeout(ANSWER_PATIENCE)?;
    Ok(client)
}

/// Starts the emulator and waits until it serves.
///
/// # Errors
/// When the emulator ends or does not serve in time. The error contains the end of its log.
pub fn start(paths: &Paths, dir: &LabDir, record: &Record) -> Result<()> {
    let spec = &record.spec;
    let mut command: Vec<OsString> = vec![paths.bin.join("extoll-emu").into(), "run".into()];
    let topology = spec.topology.clone().unwrap_or_default();
    let mut options = vec![
        ("--nodes", spec.nodes.to_string()),
        ("--nics-per-node", spec.nics.to_string()),
    ];
    if spec.accelerators > 0 {
        options.push(("--accelerators", spec.accelerators.to_string()));
    }
    if Topology::is_shorthand(&topology) {
        options.push(("--topology", topology));
    } else {
        // The file is a configuration of the emulator with the topology. It is copied, because the
        // user may change the original.
        let copy = dir.path.join(if topology.ends_with(".json") {
            "fabric.json"
        } else {
            "fabric.toml"
        });
        std::fs::copy(&topology, &copy)
            .with_context(|| format!("'{topology}' is neither a topology (pair, ring:4, torus:2x2x2, …) nor a readable file"))?;
        options.push(("--config", copy.display().to_string()));
    }
    // A variant may set the timing model itself.
    let named = |v: &String| v.contains("timing.model=");
    if let Some(timing) = spec
        .timing
        .filter(|_| !spec.variant.as_ref().is_some_and(named))
    {
        options.push(("--timing", timing.to_string()));
    }
    if let Some(seed) = spec.seed {
        options.push(("--seed", seed.to_string()));
    }
    if let Some(variant) = &spec.variant {
        options.push(("--variant", variant.clone()));
    }
    for (name, value) in options {
        command.push(name.into());
        command.push(value.into());
    }
    command.push("--dir".into());
    command.push(dir.path.clone().into());
    // These options come first, so that the lab's own arguments override them.
    for word in std::env::var(NIC_OPTIONS)
        .iter()
        .flat_map(|v| v.split_whitespace())
    {
        command.push(format!("--nic-option={word}").into());
    }
    command.extend(spec.emu_args.iter().map(OsString::from));
    if !proc::exists(&command[0]) {
        bail!(
            "{} is missing; build the host programs (scripts/host-build)",
            command[0].to_string_lossy()
        );
    }
    let ended = proc::spawn(&record.token, "emu", &command, &log(dir))?;
    let start = Instant::now();
    loop {
        // The emulator answers only after it has created all its sockets.
        if let Ok(status) = connect(dir).and_then(|mut c| c.status()) {
            let (have, want) = (status.nics.len(), spec.all_nics());
            ensure!(
                have == want,
                "the emulator has {have} NICs instead of {want}"
            );
            return Ok(());
        }
        proc::interrupted()?;
        let ended = ended.load(Ordering::Relaxed);
        if ended || start.elapsed() > START_PATIENCE {
            let why = if ended { "ended" } else { "does not serve" };
            let seconds = start.elapsed().as_secs_f64();
            return Err(anyhow!("{}", tail(&log(dir), 20)))
                .with_context(|| format!("the emulator {why} after {seconds:.1} s"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A change of one injected fault of a NIC; its other faults stay as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A receive queue behaves as if it were full, or behaves normally again.
    QueueFull {
        /// VELO mailboxes or RMA notification queues.
        unit: QueueUnit,
        /// VPID of the queue; `None`: all queues of the unit.
        vpid: Option<u8>,
        /// Number of used slots at which the queue is full; `None`: always full.
        slots: Option<u32>,
        /// True if the queue behaves as full.
        on: bool,
    },
    /// Requesters report `retry` on every n-th descriptor; `None` ends the fault.
    RetryEvery(Option<u32>),
    /// Requesters report `retry` while more than this number of messages wait for the target queue;
    /// `None` ends the fault.
    RetryWaiting(Option<u32>),
    /// Write-combining buffers keep descriptors (true), or send them again.
    Stuck(bool),
    /// Registers read as all ones and ignore writes (true), or work normally.
    Deaf(bool),
    /// Every n-th DMA access fails; `None` ends the fault.
    DmaEvery(Option<u32>),
    /// Every n-th address translation fails; `None` ends the fault.
    AtuEvery(Option<u32>),
    /// Delay of ATU commands in ns; `None` ends the fault and executes the delayed commands.
    AtuDelay(Option<u64>),
    /// Every n-th fence or notification command of the ATU is never answered; `None` ends the
    /// fault.
    AtuLoseEvery(Option<u32>),
    /// Every n-th packet of a transfer, except its last one, is lost on its way to the NIC; `None`
    /// ends the fault.
    LoseInner(Option<u32>),
    /// The next writes into a ring are lost; count 0 ends the fault.
    LoseWrite(LoseWrite),
}

impl Fault {
    fn apply(&self, faults: &mut Faults) {
        match *self {
            Fault::QueueFull {
                unit,
                vpid,
                slots,
                on,
            } => {
                faults
                    .queue_full
                    .retain(|q| q.unit != unit || q.vpid != vpid);
                if on {
                    faults.queue_full.push(QueueFull { unit, vpid, slots });
                }
            }
            Fault::RetryEvery(n) => faults.wcbuf_retry_every = n,
            Fault::RetryWaiting(n) => faults.wcbuf_retry_waiting = n,
            Fault::Stuck(on) => faults.wcbuf_stuck = on,
            Fault::Deaf(on) => faults.deaf = on,
            Fault::DmaEvery(n) => faults.dma_fault_every = n,
            Fault::AtuEvery(n) => faults.atu_fault_every = n,
            Fault::AtuDelay(ns) => faults.atu_delay_ns = ns,
            Fault::AtuLoseEvery(n) => faults.atu_lose_every = n,
            Fault::LoseInner(n) => faults.lose_inner_every = n,
            Fault::LoseWrite(lose) => {
                let same =
                    |l: &LoseWrite| LoseWrite { count: 0, ..*l } == LoseWrite { count: 0, ..lose };
                faults.lose_writes.retain(|l| !same(l));
                if lose.count > 0 {
                    faults.lose_writes.push(lose);
                }
            }
        }
    }
}

/// Changes the faults that a NIC (counted over all nodes) injects.
///
/// # Errors
/// When the emulator refuses the change or has ended.
pub fn inject(dir: &LabDir, nic: usize, fault: &Fault) -> Result<()> {
    // A request replaces all faults of a NIC. The present faults are read first, because the
    // emulator counts some of them down.
    let mut client = connect(dir)?;
    let status = client.status()?.nics;
    let mut faults = status
        .into_iter()
        .nth(nic)
        .with_context(|| format!("the fabric has no NIC {nic}"))?
        .faults;
    fault.apply(&mut faults);
    client.call(&Request::Faults { nic, faults }).map(drop)
}

/// Flattens a nested document: each number is named after the path to it, joined by underscores.
fn flatten(prefix: &str, value: &Value, into: &mut Map<String, Value>) {
    match value {
        Value::Object(map) => {
            for (key, v) in map {
                let key = key.replace('-', "_");
                let name = if prefix.is_empty() {
                    key
                } else {
                    format!("{prefix}_{key}")
                };
                flatten(&name, v, into);
            }
        }
        Value::Array(list) => {
            for (i, v) in list.iter().enumerate() {
                flatten(&format!("{prefix}_{i}"), v, into);
            }
        }
        Value::Number(_) => {
            into.insert(prefix.to_owned(), value.clone());
        }
        _ => {}
    }
}

/// Returns state and counters of the fabric for `lab status --json`.
///
/// Each NIC has its state, `counters` and `chip`. `counters` is flat: counters of the chip as
/// `velo_sent`, `mmio_writes`, …, of the host side as `host_…`, of the timing model as `timing_…`
/// and of the crossbar as `network_…`. `chip` contains the counters of the chip, nested. Each link
/// has its state, the counters of both directions, and `retransmissions`: the number of
/// transmissions that the link layer repaired.
///
/// # Errors
/// When the emulator does not answer.
pub fn document(dir: &LabDir) -> Result<Value> {
    let mut client = connect(dir)?;
    let (status, counters) = (client.status()?, client.counters()?);
    Ok(describe(&status, &counters))
}

fn object(value: &impl Serialize) -> Map<String, Value> {
    // Plain structures always serialise.
    let mut map = Map::new();
    if let Ok(Value::Object(fields)) = serde_json::to_value(value) {
        map.extend(fields.into_iter().map(|(k, v)| (k.replace('-', "_"), v)));
    }
    map
}

fn describe(status: &Status, counters: &Counters) -> Value {
    let nics = status.nics.iter().zip(&counters.nics).map(|(state, c)| {
        let mut nic = object(state);
        let mut flat = Map::new();
        flatten("", &c.chip, &mut flat);
        flatten("host", &Value::Object(object(&c.host)), &mut flat);
        flatten("timing", &Value::Object(object(&c.timing)), &mut flat);
        flatten("network", &Value::Object(object(&c.network)), &mut flat);
        flat.insert("in_flight_bytes".into(), c.in_flight_bytes.into());
        nic.insert("counters".into(), Value::Object(flat));
        nic.insert("chip".into(), c.chip.clone());
        Value::Object(nic)
    });
    let links = counters.links.iter().map(|l| {
        let mut link = object(l);
        let repaired: u64 = [&l.forward, &l.backward]
            .iter()
            .map(|d| d.corrupted + d.lost)
            .sum();
        link.insert("retransmissions".into(), repaired.into());
        Value::Object(link)
    });
    serde_json::json!({
        "topology": status.topology, "seed": status.seed, "timing": status.timing, "variant": status.variant,
        "tracing": status.tracing, "uptime_ns": counters.uptime_ns,
        "nics": nics.collect::<Vec<_>>(), "links": links.collect::<Vec<_>>(),
        "event_loop": object(&status.event_loop),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use extoll_emulator_api::nic::LossyRing;

    #[test]
    fn faults_add_up_and_end_one_by_one() {
        let mut f = Faults::default();
        let full = |vpid, on| Fault::QueueFull {
            unit: QueueUnit::Velo,
            vpid,
            slots: None,
            on,
        };
        full(Some(254), true).apply(&mut f);
        full(Some(254), true).apply(&mut f);
        full(None, true).apply(&mut f);
        Fault::RetryEvery(Some(50)).apply(&mut f);
        assert_eq!((f.queue_full.len(), f.wcbuf_retry_every), (2, Some(50)));
        full(Some(254), false).apply(&mut f);
        assert_eq!(f.queue_full.len(), 1);
        let lose = |count| {
            Fault::LoseWrite(LoseWrite {
                ring: LossyRing::Rma,
                vpid: None,
                slot: None,
                count,
            })
        };
        lose(3).apply(&mut f);
        lose(1).apply(&mut f);
        assert_eq!((f.lose_writes.len(), f.lose_writes[0].count), (1, 1));
        lose(0).apply(&mut f);
        assert!(f.lose_writes.is_empty());
        Fault::RetryEvery(None).apply(&mut f);
        Fault::AtuEvery(Some(3)).apply(&mut f);
        Fault::AtuDelay(Some(5)).apply(&mut f);
        Fault::AtuLoseEvery(Some(2)).apply(&mut f);
        Fault::LoseInner(Some(7)).apply(&mut f);
        assert_eq!(f.lose_inner_every, Some(7));
        assert_eq!(
            (f.atu_fault_every, f.atu_delay_ns, f.atu_lose_every),
            (Some(3), Some(5), Some(2))
        );
        Fault::AtuDelay(None).apply(&mut f);
        assert_eq!((f.atu_fault_every, f.atu_delay_ns), (Some(3), None));
    }

    #[test]
    fn nested_counters_become_flat() {
        let mut m = Map::new();
        flatten(
            "",
            &serde_json::json!({"velo": {"bytes-sent": 3, "x": "no"}, "list": [1, 2]}),
            &mut m,
        );
        assert_eq!((m.len(), &m["list_1"]), (3, &2.into()));
        assert_eq!(m["velo_bytes_sent"], 3);
    }
}
