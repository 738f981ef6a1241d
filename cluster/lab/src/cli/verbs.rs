//! `up`, `down`, `status`, `list`, `reboot`.

use super::Up;
use anyhow::Result;
use lab::state::{now, LabDir};
use lab::ui::{table, Paint, Progress, Shown, Silent};
use lab::{Cluster, NodeState, Paths};
use serde_json::{json, Value};
use std::time::Instant;

fn progress(quiet: bool) -> Box<dyn Progress> {
    if quiet {
        Box::new(Silent)
    } else {
        Box::new(Shown::default())
    }
}

/// `lab up`.
pub fn up(paths: &Paths, args: Up) -> Result<u8> {
    let start = Instant::now();
    let mut progress = progress(args.quiet);
    let quiet = args.quiet;
    let cluster = Cluster::up(paths, args.spec(), progress.as_mut())?;
    drop(progress);
    if !quiet {
        let spec = cluster.spec();
        let name = if spec.name == "default" { String::new() } else { format!("--name {} ", spec.name) };
        eprintln!(
            "{} up in {:.1} s; try: ./lab sh {name}0   ./lab status {name}  ./lab down {name}",
            Paint::stderr().bold(&format!("lab '{}'", spec.name)),
            start.elapsed().as_secs_f64()
        );
    }
    Ok(0)
}

/// `lab down`.
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

/// `lab reboot`.
pub fn reboot(paths: &Paths, name: &str, node: &str, hard: bool) -> Result<u8> {
    let cluster = Cluster::attach(paths, name)?;
    cluster.reboot(lab::spec::parse_node(node)?, hard, progress(false).as_mut())?;
    Ok(0)
}

/// `lab list`.
pub fn list(paths: &Paths) -> Result<u8> {
    let mut rows = vec![["LAB", "NODES", "TOPOLOGY", "STATE"].map(String::from).to_vec()];
    for dir in LabDir::all(paths) {
        let Ok(cluster) = Cluster::attach(paths, &dir.name) else { continue };
        let spec = cluster.spec();
        let state = match (cluster.record().ready, cluster.processes().is_empty()) {
            (_, true) => "dead",
            (true, false) => "up",
            (false, false) => "starting or interrupted",
        };
        rows.push(vec![dir.name.clone(), spec.nodes.to_string(), spec.topology.clone().unwrap_or_else(|| "-".into()), state.into()]);
    }
    print!("{}", table(&rows));
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
    json!({
        "name": spec.name, "ready": cluster.record().ready, "up_s": now().saturating_sub(cluster.record().started),
        "spec": spec, "nodes": nodes, "emulator": {"pid": pid("emu")},
    })
}

/// `lab status`.
pub fn status(paths: &Paths, name: &str, as_json: bool) -> Result<u8> {
    let cluster = Cluster::attach(paths, name)?;
    let states = cluster.states();
    let doc = document(&cluster, &states);
    if as_json {
        println!("{}", serde_json::to_string_pretty(&doc)?);
        return Ok(0);
    }
    let paint = Paint::stdout();
    let spec = cluster.spec();
    println!(
        "{}  {} nodes, {} NICs each, topology {}, kernel {}, up for {} s",
        paint.bold(&format!("lab '{name}'")),
        spec.nodes,
        spec.nics,
        spec.topology.as_deref().unwrap_or("-"),
        spec.kernel,
        doc["up_s"]
    );
    let mut rows = vec![["NODE", "STATE", "ADDRESS", "PID"].map(|s| paint.dim(s)).to_vec()];
    for (node, state) in doc["nodes"].as_array().into_iter().flatten().zip(states) {
        let text = |k: &str| node[k].as_str().map_or_else(|| node[k].to_string(), String::from);
        let state = match state {
            NodeState::Ready => paint.green("ready"),
            NodeState::Off => paint.red("off"),
            NodeState::Failed => paint.red("bring-up failed"),
            NodeState::Booting => paint.yellow("booting"),
            NodeState::Silent => paint.yellow("does not answer"),
        };
        rows.push(vec![text("name"), state, text("address"), text("pid")]);
    }
    print!("{}", table(&rows));
    Ok(0)
}
