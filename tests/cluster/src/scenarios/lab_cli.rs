//! Errors on the command line of `lab`, in a separate lab.

use super::on_pair;
use crate::cluster::{as_slow, directory, Lab};
use crate::Scenario;
use anyhow::{bail, ensure, Context, Result};
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum duration of quick commands.
const SOON: Duration = Duration::from_secs(60);

/// A lab of one node, which the `lab` program starts next to the scenario's lab. Dropping it takes
/// the lab down. Its name begins with the name of the scenario's lab, so that a clean-up of that
/// lab finds it too (`run::below`).
struct Own {
    name: String,
}

/// Output and exit status of a command.
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Own {
    fn new(lab: &Lab, what: &str) -> Self {
        let name = format!("{}-{what}", lab.name());
        Self { name }
    }

    /// Fails if the kernel of the lab has reported a defect in any of its boots.
    fn assert_clean_log(&self) -> Result<()> {
        let console = directory(&self.name).join("node0/console.log");
        let log = std::fs::read(&console).with_context(|| console.display().to_string())?;
        let log = String::from_utf8_lossy(&log);
        ensure!(!log.is_empty(), "{} is empty", console.display());
        match lab::logscan::first_defect(&log, &[]) {
            None => Ok(()),
            Some(defect) => bail!("kernel log of lab {} is not clean:\n{defect}", self.name),
        }
    }

    fn run(&self, verb: &str, args: &[&str]) -> Result<Said> {
        let mut program = std::env::current_exe()?;
        program.set_file_name("lab");
        let out = Command::new(program)
            .args([verb, "--name", &self.name])
            .args(args)
            .stdin(Stdio::null())
            .output()?;
        Ok(Said {
            code: out.status.code(),
            out: String::from_utf8_lossy(&out.stdout).into_owned(),
            err: String::from_utf8_lossy(&out.stderr).into_owned(),
        })
    }

    fn up(&self, more: &[&str]) -> Result<Said> {
        let args = [&["--nodes", "1", "--topology", "single"], more].concat();
        self.run("up", &args)
    }

    /// Returns the running processes of the lab.
    fn processes(&self) -> Result<Vec<lab::proc::Process>> {
        let cluster = lab::Cluster::attach(&lab::Paths::default(), &self.name)?;
        Ok(cluster.processes())
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Err(error) = self.run("down", &[]) {
            eprintln!("lab {} could not be taken down: {error:#}", self.name);
        }
    }
}

fn until(what: &str, mut probe: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + as_slow(SOON);
    while !probe()? {
        ensure!(
            Instant::now() < deadline,
            "timed out, still waiting until {what}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// If a program does not start, `up` fails with the error text of that program.
fn wrong_arguments(lab: &Lab) -> Result<()> {
    let own = Own::new(lab, "args");
    for (argument, reason) in [
        ("--qemu-arg=-bogus", "-bogus: invalid option"),
        ("--emu-arg=--bogus", "unexpected argument '--bogus'"),
    ] {
        let said = own.up(&[argument])?;
        ensure!(said.code == Some(125), "{argument}: {:?}", said.code);
        ensure!(said.err.contains(reason), "{argument}: {}", said.err);
        ensure!(
            !said.err.contains(" /out/"),
            "a path of the build root is shown to the user: {}",
            said.err
        );
        ensure!(own.processes()?.is_empty(), "{argument} left processes");
    }
    Ok(())
}

/// A dead emulator is detected and reported, and `restart` repairs the lab.
fn dead_emulator(lab: &Lab) -> Result<()> {
    let own = Own::new(lab, "emu");
    let said = own.up(&[])?;
    ensure!(said.code == Some(0), "{}", said.err);
    let json: Value = serde_json::from_str(&own.run("status", &["--json"])?.out)?;
    ensure!(json["health"] == "up", "{json:#}");
    own.assert_clean_log().context("before the emulator dies")?;
    let pid = json["emulator"]["pid"].as_u64().context("no emulator")?;
    let killed = Command::new("kill")
        .args(["-KILL", &pid.to_string()])
        .status()?;
    ensure!(killed.success(), "the emulator could not be killed");
    until("the emulator has ended", || {
        Ok(own.processes()?.iter().all(|p| p.role != "emu"))
    })?;
    let advice = format!("./lab restart --name {}", own.name);
    let status = own.run("status", &[])?;
    ensure!(status.out.contains(&advice), "{}", status.out);
    let json: Value = serde_json::from_str(&own.run("status", &["--json"])?.out)?;
    ensure!(json["health"] != "up", "{json:#}");
    // The command reads a register, so QEMU may abort. The error must show the reason with or
    // without an abort.
    let exec = own.run("exec", &["0", "--", "ethtool", "-S", "exn0"])?;
    if exec.code == Some(125) {
        ensure!(exec.err.contains(&advice), "{}", exec.err);
    }
    let again = own.run("restart", &[])?;
    ensure!(again.code == Some(0), "{}", again.err);
    // The node has no peer, so it has no carrier.
    let running =
        "grep -qx 'network Running' /sys/kernel/debug/extoll-*/status && ip link show up dev exn0";
    let exec = own.run("exec", &["0", "--", "sh", "-c", running])?;
    ensure!(
        exec.code == Some(0) && exec.out.contains("NO-CARRIER"),
        "{}{}",
        exec.out,
        exec.err
    );
    own.assert_clean_log()
}

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("lab::wrong_arguments", wrong_arguments),
        on_pair("lab::dead_emulator", dead_emulator),
    ]
}
