//! `make bench`: compares exn, virtio-net and e1000e in one pair of nodes. The raw VELO and RMA
//! units are the upper limit.
//!
//! The nodes are emulated, so times say nothing about hardware. The output contains ratios of
//! figures that were measured directly after each other in the same nodes. It also contains counts
//! of bus accesses and instructions, which do not depend on the host (docs/bench.md).
#![forbid(unsafe_code)]

mod counts;
mod drives;
mod exlnd;
mod insns;
mod measure;
mod parse;
mod report;
mod stats;
mod summary;
mod table;
mod units;

use anyhow::{ensure, Context, Result};
use clap::Parser;
use counts::{counted, Side, FRAMES};
use extoll_emulator_api::control::Client;
use labctl::{Lab, Spec};
use measure::{Effort, Test};
use report::{RawRow, Results};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(about = "Compares exn with virtio-net, e1000e and the raw units, in one pair of nodes")]
struct Args {
    /// Measure with fewer and shorter repetitions
    #[arg(long)]
    quick: bool,
    /// Measure only this part
    #[arg(long, value_name = "PART")]
    only: Option<Part>,
    /// Count instructions only of workloads whose names in the summary contain one of these words.
    /// Words are separated by commas, for instance extl.tcp_rr,large
    #[arg(long, value_name = "NAMES")]
    work: Option<String>,
    /// Output file for the results in JSON; the summary is written next to it as summary.json
    #[arg(long, default_value = "/out/bench/results.json", value_name = "FILE")]
    output: PathBuf,
    /// Name of the lab to use
    #[arg(long, default_value = "bench", value_name = "X")]
    lab: String,
    /// Revision of the sources, which is stored in the results
    #[arg(long, default_value = "unknown", value_name = "TEXT")]
    revision: String,
}

/// Parts of the benchmark that can be measured alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Ratios, bus accesses, kernel API and user space
    Ratios,
    /// Instructions per operation
    Instructions,
    /// kexlnd.ko: ratios and instructions
    Exlnd,
}

/// The lab for ratios. It uses the ideal timing model, because delays of the fabric would be equal
/// for all drivers and hide their differences.
const SPEC: Spec = Spec::pair().bench_nics().no_sshd().ideal();

/// Progress output on stderr. Each line shows the time since this instant.
struct Progress(Instant);

impl Progress {
    fn step(&self, what: &str) {
        let s = self.0.elapsed().as_secs();
        eprintln!("  {:2}:{:02}  {what}", s / 60, s % 60);
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let effort = if args.quick {
        Effort {
            repetitions: 3,
            seconds: 1,
            round_trips: 200,
            raw_passes: 1,
            raw_bytes: 4 << 20,
            unit_passes: 3,
            counted_passes: 3,
        }
    } else {
        Effort {
            repetitions: 5,
            seconds: 3,
            round_trips: 1000,
            raw_passes: 3,
            raw_bytes: 16 << 20,
            unit_passes: 5,
            counted_passes: 9,
        }
    };
    let progress = Progress(Instant::now());
    let mut results = Results::new(effort, args.quick, &args.revision);
    results.setup = report::host_setup();
    if args.only != Some(Part::Instructions) {
        compare(args, &progress, &mut results)?;
    }
    if args.only != Some(Part::Ratios) {
        results.instructions = Some(count_instructions(args, &progress, &mut results)?);
    }
    results.summarise();
    results.seconds = progress.0.elapsed().as_secs();
    if let Some(parent) = args.output.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let summary = args.output.with_file_name("summary.json");
    store(&args.output, &results)?;
    store(&summary, &summary::of(&results))?;
    print!("{}", results.text());
    // The directory /out of the build root is out/ of the work tree.
    let shown = |path: &Path| path.strip_prefix("/").unwrap_or(path).display().to_string();
    progress.step(&format!(
        "done; all figures are in {}, the summary is in {}",
        shown(&args.output),
        shown(&summary)
    ));
    Ok(())
}

fn store(path: &Path, what: &impl serde::Serialize) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(what)?;
    text.push(b'\n');
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Boots two nodes and prepares them. Returns the lab and the node ID of node 1.
fn boot(name: &str, spec: &Spec, results: &mut Results) -> Result<(Lab, u64)> {
    let lab = Lab::up(name, spec)?;
    results.setup.extend(report::guest_setup(&lab)?);
    measure::prepare(&lab)?;
    let peer = lab
        .raw(1, "status")?
        .get("node")
        .and_then(|n| n.parse().ok())
        .context("node 1 does not report its node ID")?;
    Ok((lab, peer))
}

fn end(lab: Lab) -> Result<()> {
    for node in 0..2 {
        lab.ok(node, "rmmod extoll_bench")?;
    }
    lab.assert_clean_log()
}

fn compare(args: &Args, progress: &Progress, results: &mut Results) -> Result<()> {
    let effort = results.effort;
    let all = args.only != Some(Part::Exlnd);
    progress.step("booting two nodes with exn0, vio0 and e1k0");
    let (lab, peer) = boot(&args.lab, &SPEC, results)?;
    let dir = lab::state::LabDir::new(&lab::Paths::default(), &args.lab)?;
    let mut emulator = Client::connect(&dir.path)?;
    if all {
        compare_devices(&lab, &mut emulator, peer, progress, results)?;
    }
    results.exlnd = exlnd::measure(&lab, peer, &effort, |what| progress.step(what))?;
    if all {
        progress.step("kernel API and user space");
        results.units = units::measure(&lab, &mut emulator, peer, &effort)?;
    }
    end(lab)
}

fn compare_devices(
    lab: &Lab,
    emulator: &mut Client,
    peer: u64,
    progress: &Progress,
    results: &mut Results,
) -> Result<()> {
    let effort = results.effort;
    for repetition in 0..effort.repetitions {
        progress.step(&format!(
            "repetition {} of {}: TCP and UDP on every device, raw units",
            repetition + 1,
            effort.repetitions
        ));
        for test in Test::ALL {
            for device in test.devices() {
                let sample = measure::once(lab, device, test, repetition, &effort)
                    .with_context(|| format!("{} on {}", test.title(), device.name))?;
                results.samples.push(sample);
            }
        }
        results
            .samples
            .extend(measure::raw_once(lab, peer, repetition, &effort)?);
    }
    progress.step("bus accesses per frame and per raw operation");
    results.counts = count_all(lab, emulator, peer, &effort)?;
    progress.step("raw units by size");
    results.raw = raw_by_size(lab, peer, &effort)?;
    Ok(())
}

/// Counts instructions in separate nodes, because nodes that count are slower and need emulated
/// CPUs.
fn count_instructions(
    args: &Args,
    progress: &Progress,
    results: &mut Results,
) -> Result<insns::Figures> {
    progress.step("booting two nodes that count instructions");
    let name = format!("{}-insns", args.lab);
    let (lab, peer) = boot(&name, &insns::SPEC, results)?;
    let passes = results.effort.counted_passes;
    let wanted = |key: &str| {
        let part = if args.only == Some(Part::Exlnd) {
            "exlnd"
        } else {
            ""
        };
        let names = args.work.as_deref().unwrap_or(part);
        names.split(',').any(|name| key.contains(name))
    };
    let mut figures = insns::measure(&lab, peer, passes, wanted, |what| progress.step(what))?;
    end(lab)?;
    if wanted("drive") {
        progress.step("booting two nodes with a drive each");
        let lab = Lab::up(&name, &drives::SPEC)?;
        figures.drives = Some(drives::measure(&lab, passes.min(5), |what| {
            progress.step(what)
        })?);
        lab.assert_clean_log()?;
    }
    ensure!(
        figures.drives.is_some() || !figures.rows.is_empty(),
        "no workload matches the given names"
    );
    Ok(figures)
}

fn count_all(lab: &Lab, emulator: &mut Client, peer: u64, effort: &Effort) -> Result<Vec<Side>> {
    let pings = if effort.repetitions > 3 { 500 } else { 200 };
    let ping = |size: u32| -> Result<Option<(u64, u64)>> {
        let out = lab.ok(
            0,
            &format!("ping -q -c {pings} -i 0.005 -w 40 -s {size} 10.2.0.2"),
        )?;
        // The check allows additional packets, because ping -w sends one more packet if the last
        // answer is late.
        ensure!(
            out.contains(&format!(" {pings} received")),
            "frames were lost: {out}"
        );
        Ok(None)
    };
    let mut all = Vec::new();
    // The Ethernet, IP and ICMP headers add 42 bytes.
    for size in [56, 1400, 60_000] {
        all.extend(counted(
            lab,
            emulator,
            &format!("exn ping, {}-byte frames", size + 42),
            FRAMES,
            || ping(size),
        )?);
    }
    all.extend(counted(
        lab,
        emulator,
        "exn TCP stream 0 → 1",
        FRAMES,
        || {
            let out = lab.sh_for(
                0,
                &format!("iperf3 -J -c 10.2.0.2 -t {}", effort.seconds),
                Duration::from_secs(60),
            )?;
            parse::iperf3(&out.stdout)?;
            Ok(None)
        },
    )?);
    for mode in ["irq", "poll"] {
        all.extend(counted(
            lab,
            emulator,
            &format!("raw VELO ping-pong, 64 bytes, {mode}"),
            "round trips",
            || {
                let r = measure::ping_pong(lab, peer, 64, mode, effort)?;
                let n = parse::number(&r, "verified")? as u64;
                Ok(Some((n, n * 128)))
            },
        )?);
    }
    for verb in ["get", "put"] {
        let name = format!("raw RMA {} of 64 KiB", verb.to_uppercase());
        all.extend(counted(lab, emulator, &name, "transfers", || {
            let r = measure::transfer(lab, verb, peer, measure::RAW_SIZE, effort)?;
            Ok(Some((
                parse::number(&r, "count")? as u64,
                parse::number(&r, "bytes")? as u64,
            )))
        })?);
    }
    Ok(all)
}

fn raw_by_size(lab: &Lab, peer: u64, effort: &Effort) -> Result<Vec<RawRow>> {
    let trips = |mode| [8u64, 64, 120].map(|size| (mode, size));
    let sizes = [64, 256, 1024, 4096, 16384, 65536, 262_144, 1 << 20];
    let all: Vec<(&str, u64)> = ["irq", "poll"]
        .into_iter()
        .flat_map(trips)
        .chain(
            ["get", "put"]
                .into_iter()
                .flat_map(|verb| sizes.map(|size| (verb, size))),
        )
        .collect();
    let mut passes = vec![Vec::new(); all.len()];
    for _ in 0..effort.raw_passes {
        for (&(what, size), pass) in all.iter().zip(&mut passes) {
            pass.push(match what {
                "irq" | "poll" => measure::ping_pong(lab, peer, size, what, effort)?,
                verb => measure::transfer(lab, verb, peer, size, effort)?,
            });
        }
    }
    let row = |(&(what, size), passes): (&(&str, u64), Vec<_>)| {
        let name = match what {
            "irq" | "poll" => format!("VELO ping-pong {what}"),
            verb => format!("RMA {}", verb.to_uppercase()),
        };
        RawRow::new(&name, size, passes)
    };
    Ok(all.iter().zip(passes).map(row).collect())
}
