//! Access to another node's memory through the SMFU window, mapped by a privileged program.

use anyhow::{ensure, Context, Result};
use clap::Subcommand;
use extoll::wire::ids::{NodeId, RegOffset};
use extoll::wire::regs::smfu::{self, IntervalControl, RRA_WINDOW};
use extoll::{AccessMethod, Device, RegisterFile, Smfu, Window};
use std::time::{Duration, Instant};

/// Interval that the driver leaves free. The driver uses the lowest intervals.
const INTERVAL: u32 = 62;
/// Number of bytes transferred (`BYTES`), and offset of the word that synchronises both sides
/// (`STATE`).
const BYTES: usize = 16 << 10;
const STATE: u64 = BYTES as u64;
const MAPPED: usize = BYTES + 4096;
const WRITTEN: u64 = 0x1111;
const CHECKED: u64 = 0x2222;
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Subcommand)]
pub enum Verb {
    /// Let another node read and write the exported memory.
    Export,
    /// Read and write the exported memory of a node.
    Use {
        /// Node that exports memory.
        node: u16,
    },
}

pub fn run(verb: Verb) -> Result<()> {
    let unit = Smfu::open(&Device::default())?;
    match verb {
        Verb::Export => export(&unit),
        Verb::Use { node } => with_interval(NodeId(node), || import(&unit)),
    }
}

/// Returns a pattern. Patterns of different seeds differ in nearly every byte.
fn pattern(seed: u32) -> Vec<u8> {
    (0..BYTES as u32)
        .map(|i| (i.wrapping_add(seed << 16).wrapping_mul(2_654_435_761) >> 11) as u8)
        .collect()
}

fn check(window: &Window, at: u64, expected: &[u8]) -> Result<()> {
    let mut seen = vec![0; expected.len()];
    window.read(at, &mut seen)?;
    match seen.iter().zip(expected).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(i) => anyhow::bail!("byte {i} is {:#x}, not {:#x}", seen[i], expected[i]),
    }
}

/// Loads a word that is never all ones, and returns its value. If the load returns all ones, the
/// answer exceeded the NIC's time-out, as on a slow network with many stores queued.
fn answered(window: &Window, at: u64) -> Result<u64> {
    for _ in 0..10 {
        let value = window.load(at)?;
        if value != u64::MAX {
            return Ok(value);
        }
    }
    anyhow::bail!("no answer to ten loads")
}

fn until(window: &Window, at: u64, value: u64) -> Result<()> {
    let start = Instant::now();
    while window.load(at)? != value {
        ensure!(start.elapsed() < PATIENCE, "{value:#x} did not come");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn export(unit: &Smfu) -> Result<()> {
    let memory = unit.local(MAPPED)?;
    memory.write(0, &pattern(1))?;
    memory.store(STATE, 0)?;
    crate::say(&format!("ready {}", unit.node()))?;
    until(&memory, STATE, WRITTEN)?;
    check(&memory, 0, &pattern(2)).context("data stored by the other node")?;
    memory.store(STATE, CHECKED)?;
    // Keeps the mapping until the other node has loaded the word.
    until(&memory, STATE, 0)?;
    crate::say("ok")
}

/// Opens an interval to `node`, behind the interval of remote registers, while `work` runs.
fn with_interval(node: NodeId, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let registers = RegisterFile::open(&Device::default())?;
    registers.set_methods(AccessMethod::Local, AccessMethod::Local)?;
    let write = |at: RegOffset, value| registers.write(node, at, value);
    let base = registers.read(node, smfu::O_START_ADDR)? + RRA_WINDOW;
    write(smfu::interval_control(INTERVAL), 0)?;
    write(smfu::interval_startaddr(INTERVAL), base)?;
    write(smfu::interval_endaddr(INTERVAL), base + MAPPED as u64)?;
    write(
        smfu::interval_control(INTERVAL),
        IntervalControl::to_node(node).raw(),
    )?;
    let done = work();
    write(smfu::interval_control(INTERVAL), 0)?;
    done
}

fn import(unit: &Smfu) -> Result<()> {
    let window = unit.window(RRA_WINDOW as usize + MAPPED)?;
    let at = |offset: u64| RRA_WINDOW + offset;
    check(&window, at(0), &pattern(1)).context("memory of the other node")?;
    // Stores single words, then bytes at any offset.
    let new = pattern(2);
    for (i, word) in new.chunks_exact(8).enumerate().take(64) {
        window.store(at(8 * i as u64), u64::from_le_bytes(word.try_into()?))?;
    }
    let mut done = 512;
    for len in [1, 2, 3, 5, 7, 8, 9, 15, 31, 33, 63, 64, 65, 127]
        .into_iter()
        .cycle()
    {
        if done == BYTES {
            break;
        }
        let end = (done + len).min(BYTES);
        window.write(at(done as u64), &new[done..end])?;
        done = end;
    }
    window.flush();
    // A load returns after all earlier stores have arrived.
    let last = answered(&window, at(BYTES as u64 - 8))?;
    ensure!(
        last.to_le_bytes() == new[BYTES - 8..],
        "the load overtook the stores: {last:#x}"
    );
    window.store(at(STATE), WRITTEN)?;
    until(&window, at(STATE), CHECKED)?;
    window.store(at(STATE), 0)?;
    window.flush();
    // The store must have arrived before the interval is closed.
    answered(&window, at(STATE))?;
    crate::say("ok")
}
