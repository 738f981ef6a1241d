//! The emulator process of a lab.

use crate::proc;
use crate::state::{tail, LabDir, Paths, Record};
use anyhow::{bail, Context, Result};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long the emulator may take until all its sockets are there.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// Socket of a NIC, counted over all nodes.
pub fn nic_socket(dir: &LabDir, nic: usize) -> PathBuf {
    dir.path.join(format!("nic{nic}.sock"))
}

/// Log of the emulator.
pub fn log(dir: &LabDir) -> PathBuf {
    dir.path.join("emu.log")
}

/// Starts the emulator and waits until it serves.
///
/// # Errors
/// When it ends early or does not serve in time; the message has the end of its log.
pub fn start(paths: &Paths, dir: &LabDir, record: &Record) -> Result<()> {
    let spec = &record.spec;
    let mut command: Vec<OsString> = vec![paths.bin.join("extoll-emu").into(), "run".into()];
    for (name, value) in [("--nodes", spec.nodes.to_string()), ("--topology", spec.topology.clone().unwrap_or_default()), ("--nics-per-node", spec.nics.to_string())] {
        command.push(name.into());
        command.push(value.into());
    }
    command.push("--dir".into());
    command.push(dir.path.clone().into());
    command.extend(spec.emu_args.iter().map(OsString::from));
    if !proc::exists(&command[0]) {
        bail!("{} is missing; build the host programs (scripts/host-build)", command[0].to_string_lossy());
    }
    proc::spawn(&record.token, "emu", &command, &log(dir))?;
    let start = Instant::now();
    let all = spec.nodes * spec.nics;
    let mut seen = false;
    loop {
        if (0..all).all(|i| nic_socket(dir, i).exists()) {
            return Ok(());
        }
        let alive = proc::find(&record.token).iter().any(|p| p.role == "emu");
        seen |= alive;
        let failed = (seen && !alive) || start.elapsed() > START_PATIENCE;
        if failed {
            let why = if alive { "does not serve" } else { "ended" };
            return Err(anyhow::anyhow!("{}", tail(&log(dir), 20))).with_context(|| format!("the emulator {why} after {:.1} s", start.elapsed().as_secs_f64()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
