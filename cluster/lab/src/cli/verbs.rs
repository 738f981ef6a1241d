//! `lab up`, `lab restart`, `lab down`, `lab status`, `lab list` and `lab reboot`.

use super::Up;
use anyhow::Result;
use lab::state::{now, LabDir};
use lab::ui::{table, Paint, Progress, Shown, Silent};
use lab::{Cluster, Health, NodeState, Paths, Spec};
use serde_json::{json, Value};
use std::io::Write;
use std::time::Instant;

fn progress(quiet: bool) -> Box<dyn Progress> {
    if quiet {
        Box::new(Silent)
    } else {
        Box::new(Shown::default())
    }
}

/// Prints to standard output. A closed pipe is an error, which ends the program silently.
fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Runs `lab up`.
pub fn up(paths: &Paths, args: Up) -> Result<u8> {
    let start = Instant::now();
    lab::proc::catch_signals()?;
    let mut progress = progress(args.quiet);
    let quiet = args.quiet;
    let cluster = Cluster::up(paths, args.spec(), progress.as_mut())?;
    drop(progress);
    if !quiet {
        announce(&cluster, start);
    }
    Ok(0)
}

/// Runs `lab restart`.
pub fn restart(paths: &Paths, name: &str) -> Result<u8> {
    let start = Instant::now();
    lab::proc::catch_signals()?;
    let mut progress = progress(false);
    let cluster = Cluster::restart(paths, name, progress.as_mut())?;
    drop(progress);
    announce(&cluster, start);
    Ok(0)
}

/// Reports that a lab is up, with commands to try.
fn announce(cluster: &Cluster, start: Instant) {
    let spec = cluster.spec();
    let name = if spec.name == "default" {
        String::new()
    } else {
        format!("--name {} ", spec.name)
    };
    eprintln!(
        "{} up in {:.1} s; try: ./lab sh {name}0   ./lab status {name}  ./lab down {name}",
        Paint::stderr().bold(&format!("lab '{}'", spec.name)),
        start.elapsed().as_secs_f64()
    );
    if !spec.model().is_empty() {
        eprintln!("{}", spec.model());
    }
}

/// Runs `lab down`.
pub fn down(paths: &Paths, name: &str, all: bool) -> Result<u8> {
    if all {
        for dir in LabDir::all(paths) {
            Cluster::down(paths, &dir.name)?;
        }
    } else if !Cluster::down(paths, name)? {
        eprintln!("lab: there is no lab '{name}'");
    }
    Ok(0)
}

/// Runs `lab reboot`.
pub fn reboot(paths: &Paths, name: &str, node: &str, hard: bool) -> Result<u8> {
    lab::proc::catch_signals()?;
    let cluster = Cluster::attach(paths, name)?;
    cluster.reboot(lab::spec::parse_node(node)?, hard, progress(false).as_mut())?;
    Ok(0)
}

/// Runs `lab list`.
pub fn list(paths: &Paths) -> Result<u8> {
    let mut rows = vec![["LAB", "NODES", "TOPOLOGY", "STATE"]
        .map(String::from)
        .to_vec()];
    for dir in LabDir::all(paths) {
        let Ok(cluster) = Cluster::attach(paths, &dir.name) else {
            continue;
        };
        let spec = cluster.spec();
        rows.push(vec![
            dir.name.clone(),
            spec.nodes.to_string(),
            spec.topology.clone().unwrap_or_else(|| "-".into()),
            cluster.health().to_string(),
        ]);
    }
    say(&table(&rows))?;
    Ok(0)
}

fn document(cluster: &Cluster, states: &[NodeState]) -> Value {
    let spec = cluster.spec();
    let processes = cluster.processes();
    let pid = |role: &str| processes.iter().find(|p| p.role == role).map(|p| p.pid);
    let nodes: Vec<Value> = cluster
        .nodes()
        .iter()
        .zip(states)
        .map(|(node, state)| {
            json!({
                "name": node.name(), "state": state, "pid": pid(&node.name()),
                "address": format!("10.2.0.{}", node.index() + 1),
                "console": node.console(),
            })
        })
        .collect();
    let accelerators: Vec<Value> = (0..spec.accelerators)
        .map(|k| json!({"name": format!("acc{k}"), "nic": spec.nodes * spec.nics + k}))
        .collect();
    let fabric = match spec.nics {
        0 => Value::Null,
        _ => {
            lab::emu::document(cluster.dir()).unwrap_or_else(|e| json!({"error": format!("{e:#}")}))
        }
    };
    json!({
        "name": spec.name, "health": cluster.health(), "ready": cluster.record().ready, "up_s": now().saturating_sub(cluster.record().started),
        "spec": spec, "nodes": nodes, "accelerators": accelerators, "emulator": {"pid": pid("emu")}, "fabric": fabric,
    })
}

/// Runs `lab status`.
pub fn status(paths: &Paths, name: &str, as_json: bool) -> Result<u8> {
    let cluster = Cluster::attach(paths, name)?;
    let states = cluster.states();
    let doc = document(&cluster, &states);
    // Scripts use the exit status to start a lab only if none is up.
    let code = u8::from(cluster.health() != Health::Up);
    if as_json {
        say(&(serde_json::to_string_pretty(&doc)? + "\n"))?;
        return Ok(code);
    }
    let paint = Paint::stdout();
    let spec = cluster.spec();
    say(&format!(
        "{}  {} nodes, {} NICs each, {} accelerators, topology {}, kernel {}, up for {} s\n",
        paint.bold(&format!("lab '{name}'")),
        spec.nodes,
        spec.nics,
        spec.accelerators,
        spec.topology.as_deref().unwrap_or("-"),
        spec.kernel,
        doc["up_s"]
    ))?;
    if !spec.model().is_empty() {
        say(&(spec.model() + "\n"))?;
    }
    match cluster.health() {
        Health::Up => {}
        Health::EmulatorDied | Health::Dead if cluster.record().ready => {
            let report = super::shown(&cluster.emulator_report());
            say(&format!("{}\n", paint.red(&report)))?
        }
        Health::Dead => {
            let report = super::shown(&cluster.unborn_report());
            say(&format!("{}\n", paint.red(&report)))?
        }
        other => say(&format!("{}\n", paint.yellow(&other.to_string())))?,
    }
    let mut rows = vec![["NODE", "STATE", "ADDRESS", "PID"]
        .map(|s| paint.dim(s))
        .to_vec()];
    for (node, state) in doc["nodes"].as_array().into_iter().flatten().zip(states) {
        let text = |k: &str| match &node[k] {
            Value::String(s) => s.clone(),
            Value::Null => "-".into(),
            other => other.to_string(),
        };
        let state = match state {
            NodeState::Ready => paint.green("ready"),
            NodeState::Off => paint.red("off"),
            NodeState::Failed => paint.red("bring-up failed"),
            NodeState::Booting => paint.yellow("booting"),
            NodeState::Silent => paint.yellow("does not answer"),
        };
        rows.push(vec![text("name"), state, text("address"), text("pid")]);
    }
    say(&table(&rows))?;
    print_fabric(&doc["fabric"], spec, paint)?;
    Ok(code)
}

/// Counters of NICs that `status` shows: heading and name.
const COLUMNS: &[(&str, &str)] = &[
    ("VELO SENT", "velo_sent"),
    ("RECEIVED", "velo_received"),
    ("HELD", "velo_held"),
    ("RMA GET BYTES", "rma_get_bytes"),
    ("PUT BYTES", "rma_put_bytes"),
    ("MMIO WRITES", "mmio_writes"),
    ("READS", "mmio_reads"),
    ("IRQS", "interrupts"),
    ("DMA FAULTS", "dma_faults"),
];

fn print_fabric(fabric: &Value, spec: &Spec, paint: Paint) -> Result<()> {
    if let Some(error) = fabric["error"].as_str() {
        let error = super::shown(error);
        return say(&format!("{} {error}\n", paint.red("fabric:")));
    }
    let list = |key: &str| fabric[key].as_array().cloned().unwrap_or_default();
    if list("nics").is_empty() {
        return Ok(());
    }
    let head = |words: &[&str]| words.iter().map(|w| paint.dim(w)).collect::<Vec<_>>();
    let mut titles = vec!["NIC", "STATE"];
    titles.extend(COLUMNS.iter().map(|c| c.0));
    let mut rows = vec![head(&titles)];
    for nic in list("nics") {
        let index = nic["nic"].as_u64().unwrap_or(0) as usize;
        let state = match (
            nic["power"].as_str(),
            nic["frozen"].as_bool(),
            nic["connected"].as_bool(),
        ) {
            (Some("on"), Some(true), _) => paint.yellow("frozen"),
            (Some("on"), _, _) if nic["accelerator"] == true => paint.green("root port"),
            (Some("on"), _, Some(true)) => paint.green("on"),
            (Some("on"), _, _) => paint.yellow("no node"),
            (other, _, _) => paint.red(other.unwrap_or("?")),
        };
        let mut row = vec![spec.nic_name(index), state];
        row.extend(
            COLUMNS
                .iter()
                .map(|(_, name)| nic["counters"][name].to_string()),
        );
        rows.push(row);
    }
    say(&format!("\n{}", table(&rows)))?;
    let mut rows = vec![head(&[
        "LINK", "STATE", "PACKETS", "BYTES", "REPAIRED", "DROPPED",
    ])];
    for link in list("links") {
        let state = match (link["up"].as_bool(), link["live"].as_bool()) {
            (_, Some(true)) => paint.green("up"),
            (Some(true), _) => paint.yellow("not enabled"),
            _ => paint.red("cut"),
        };
        let both = |keys: &[&str]| -> u64 {
            let dirs = [&link["forward"], &link["backward"]];
            let value = |d: &Value, k: &str| {
                d[k].as_u64()
                    .or_else(|| d[k.replace('_', "-")].as_u64())
                    .unwrap_or(0)
            };
            dirs.iter()
                .flat_map(|d| keys.iter().map(|k| value(d, k)).collect::<Vec<_>>())
                .sum()
        };
        let end = |i: usize| link["ends"][i].as_str().unwrap_or("?").to_owned();
        rows.push(vec![
            format!("{} - {}", end(0), end(1)),
            state,
            both(&["packets"]).to_string(),
            both(&["bytes"]).to_string(),
            link["retransmissions"].to_string(),
            both(&["dropped_down", "dropped_full"]).to_string(),
        ]);
    }
    say(&format!("\n{}", table(&rows)))
}
