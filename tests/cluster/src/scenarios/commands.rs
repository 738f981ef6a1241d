//! The command line of the lab. The other scenarios use the library below it.

use super::on_pair;
use crate::cluster::{Lab, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use serde_json::Value;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![on_pair("lab::command_line", command_line)]
}

/// Each subcommand does its work and returns the right exit status.
fn command_line(lab: &Lab) -> Result<()> {
    let text = lab.run(
        "exec",
        &["1", "--", "sh", "-c", "echo out; echo err >&2"],
        PATIENCE,
    )?;
    ensure!(text == "out\n", "exec printed {text:?}");
    let out = lab.command(
        "exec",
        &["node0", "--", "sh", "-c", "echo no >&2; exit 7"],
        PATIENCE,
    )?;
    ensure!(
        (out.status, out.stderr.as_str()) == (7, "no\n"),
        "exec: {out:?}"
    );
    let out = lab.command("exec", &["5", "--", "true"], PATIENCE)?;
    ensure!(
        out.status == 125 && out.stderr.contains("no node 5"),
        "exec on no node: {out:?}"
    );

    let status: Value = serde_json::from_str(&lab.run("status", &["--json"], PATIENCE)?)
        .context("status --json")?;
    let nodes = status["nodes"]
        .as_array()
        .context("no nodes in the status")?;
    ensure!(
        nodes.len() == 2
            && nodes
                .iter()
                .all(|n| n["state"] == "ready" && n["pid"].is_number()),
        "nodes: {nodes:?}"
    );
    ensure!(
        status["fabric"]["nics"][1]["counters"]["mmio_writes"].as_u64() > Some(0),
        "no counters"
    );
    let table = lab.run("status", &[], PATIENCE)?;
    ensure!(
        table.contains("node1") && table.contains("ready"),
        "status: {table}"
    );

    // Copies a file to a node and back. The host is the build root here.
    let dir = std::env::temp_dir().join(format!("cp-{}", lab.name()));
    std::fs::create_dir_all(&dir)?;
    let (there, back) = (dir.join("there"), dir.join("back"));
    let data: Vec<u8> = (0..100_000u32)
        .map(|i| (i.wrapping_mul(i) >> 3) as u8)
        .collect();
    std::fs::write(&there, &data)?;
    let (from, to) = (there.display().to_string(), back.display().to_string());
    lab.run("cp", &[&from, "node0:/tmp/cp-test"], PATIENCE)?;
    lab.run("cp", &["node0:/tmp/cp-test", &to], PATIENCE)?;
    let got = std::fs::read(&back)?;
    std::fs::remove_dir_all(&dir)?;
    lab.ok(0, "rm /tmp/cp-test")?;
    ensure!(got == data, "the file came back with other contents");

    lab.ok(1, "echo '<5>seen on the console' >/dev/kmsg")?;
    lab.until("the kernel log shows the line", PATIENCE, |l| {
        Ok(l.run("log", &["1", "-n", "5"], PATIENCE)?
            .contains("seen on the console"))
    })?;
    let refused = lab.command("fault", &["explode"], PATIENCE)?;
    ensure!(
        refused.status != 0 && refused.stderr.contains("explode"),
        "fault explode: {refused:?}"
    );
    Ok(())
}
