//! `lab exec`, `lab cp` and `lab log`.

use super::Exec;
use anyhow::{anyhow, bail, ensure, Context, Result};
use lab::copy::{copy, Place};
use lab::ui::Paint;
use lab::{Cluster, Command, Health, Input, Node, Paths, Status};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Exit status of timeout(1) for a command that ran too long.
const TIMED_OUT: u8 = 124;

/// Returns the exit status that a shell would return for the command.
pub fn exit_code(status: Status) -> u8 {
    u8::try_from(status.shell_code()).unwrap_or(super::FAILURE)
}

impl Exec {
    fn build(&self) -> Result<Command> {
        let mut command = Command::new(&self.command);
        for pair in &self.env {
            let (name, value) = pair
                .split_once('=')
                .with_context(|| format!("--env {pair}: expected NAME=VALUE"))?;
            command = command.env(name, value);
        }
        if let Some(dir) = &self.cwd {
            command = command.cwd(dir.as_os_str());
        }
        if let Some(seconds) = self.timeout {
            let limit = Duration::try_from_secs_f64(seconds)
                .context("--timeout: not a number of seconds")?;
            command = command.timeout(limit);
        }
        Ok(command)
    }
}

/// Runs `lab exec`.
pub fn exec(paths: &Paths, args: Exec) -> Result<u8> {
    let cluster = Cluster::attach(paths, &args.which.name)?;
    if args.node == "all" {
        return exec_all(&cluster, &args);
    }
    let node = running(&cluster, &args.node)?;
    let command = args.build()?;
    if args.tty {
        return super::interactive::run(&node, command).map_err(|e| explain(&cluster, &node, e));
    }
    let input = if args.no_stdin {
        Input::None
    } else {
        Input::Fd(std::io::stdin().as_fd().try_clone_to_owned()?)
    };
    let mut sink = |error: bool, data: &[u8]| -> Result<()> {
        if error {
            std::io::stderr().write_all(data)?;
        } else {
            let mut out = std::io::stdout().lock();
            out.write_all(data)?;
            out.flush()?;
        }
        Ok(())
    };
    match command.input(input).run_with(&node, None, &mut sink) {
        Ok(status) => Ok(exit_code(status)),
        Err(e) if args.timeout.is_some() && format!("{e:#}").contains("not finished in time") => {
            eprintln!("lab: {e:#}");
            Ok(TIMED_OUT)
        }
        Err(e) => Err(explain(&cluster, &node, e)),
    }
}

/// Adds the state of the lab to the error of a node that did not answer. Returns the unchanged
/// error as `Err` if the lab is up or starting.
fn of_lab(cluster: &Cluster, error: anyhow::Error) -> Result<anyhow::Error, anyhow::Error> {
    if cluster.was_ended() {
        return Ok(error.context(format!(
            "lab '{}' was ended by another command",
            cluster.spec().name
        )));
    }
    match cluster.health() {
        Health::Dead if !cluster.record().ready => Ok(anyhow!("{}", cluster.unborn_report())),
        Health::EmulatorDied | Health::Dead => Ok(error.context(cluster.emulator_report())),
        Health::Up | Health::Starting => Err(error),
    }
}

/// Returns the named node. Fails if it is off.
pub fn running(cluster: &Cluster, node: &str) -> Result<Node> {
    let index = lab::spec::parse_node(node)?;
    cluster
        .running_node(index)
        .map_err(|e| of_lab(cluster, e).unwrap_or_else(|e| e))
}

/// Adds the known reason to the error of a command: the state of the lab, or that the node is off.
/// If the node went off just now, the end of its console follows.
pub fn explain(cluster: &Cluster, node: &Node, error: anyhow::Error) -> anyhow::Error {
    // A QEMU that has just closed its sockets takes a moment to end.
    let went_off = format!("{error:#}").contains("went off");
    let deadline = Instant::now() + Duration::from_secs(2);
    while went_off && cluster.is_on(node.index()) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    if super::is_broken_pipe(&error) {
        return error;
    }
    let error = match of_lab(cluster, error) {
        Ok(told) => return told,
        Err(error) => error,
    };
    if cluster.is_on(node.index()) {
        return error;
    }
    let advice = cluster.switch_on(node.index());
    if !went_off {
        return anyhow!("{error:#}; {advice}");
    }
    anyhow!(
        "{error:#}; {advice}\n-- end of its console:\n{}\n--",
        node.last_words()
    )
}

/// Runs the command in all nodes in parallel. Prefixes each line of output with the node's name.
fn exec_all(cluster: &Cluster, args: &Exec) -> Result<u8> {
    let paint = Paint::stdout();
    let screen = Mutex::new(());
    let results: Vec<Result<u8>> = std::thread::scope(|scope| {
        let threads: Vec<_> = cluster
            .nodes()
            .into_iter()
            .map(|node| {
                let screen = &screen;
                scope.spawn(move || -> Result<u8> {
                    let prefix = paint.cyan(&format!("{}: ", node.name()));
                    let mut rest = [Vec::new(), Vec::new()];
                    let print = |error: bool, line: &[u8]| -> Result<()> {
                        let _one_at_a_time = screen.lock();
                        let text = [prefix.as_bytes(), line].concat();
                        if error {
                            std::io::stderr().write_all(&text)?;
                        } else {
                            std::io::stdout().write_all(&text)?;
                        }
                        Ok(())
                    };
                    let node = cluster.running_node(node.index())?;
                    let status = args.build()?.run_with(&node, None, &mut |error, data| {
                        let rest = &mut rest[usize::from(error)];
                        rest.extend_from_slice(data);
                        while let Some(end) = rest.iter().position(|b| *b == b'\n') {
                            let line: Vec<u8> = rest.drain(..=end).collect();
                            print(error, &line)?;
                        }
                        Ok(())
                    })?;
                    for (error, mut line) in [false, true].into_iter().zip(rest) {
                        if !line.is_empty() {
                            line.push(b'\n');
                            print(error, &line)?;
                        }
                    }
                    Ok(exit_code(status))
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| bail!("a thread panicked")))
            .collect()
    });
    let mut code = 0;
    for result in results {
        match result {
            Ok(c) => code = code.max(c),
            Err(e) => {
                eprintln!("lab: {}", super::shown(&format!("{e:#}")));
                code = code.max(super::FAILURE);
            }
        }
    }
    Ok(code)
}

/// Returns the path by which this process reaches a host path of the user. The wrapper enters the
/// build root, where such paths do not exist, and passes the user's root and working directories in
/// `LAB_HOST_ROOT` and `LAB_HOST_CWD`.
pub fn host_path(path: &Path) -> PathBuf {
    match (
        std::env::var_os("LAB_HOST_ROOT"),
        std::env::var_os("LAB_HOST_CWD"),
    ) {
        (Some(root), Some(cwd)) => {
            let absolute = Path::new(&cwd).join(path);
            Path::new(&root).join(absolute.strip_prefix("/").unwrap_or(&absolute))
        }
        _ => path.to_owned(),
    }
}

/// Runs `lab cp`.
pub fn cp(paths: &Paths, name: &str, list: &[String]) -> Result<u8> {
    let cluster = Cluster::attach(paths, name)?;
    let places: Vec<Place> = list.iter().map(|p| Place::parse(p)).collect();
    let (target, sources) = places
        .split_last()
        .context("cp needs a source and a target")?;
    ensure!(
        places.iter().any(|p| matches!(p, Place::Node(..))),
        "neither source nor target is in a node; write node0:/path"
    );
    match copy(&cluster, sources, target, &host_path) {
        Ok(()) => Ok(0),
        Err(e) => Err(of_lab(&cluster, e).unwrap_or_else(|e| e)),
    }
}

/// Writes log data without the carriage returns of the serial line.
fn write_log(out: &mut impl Write, data: &[u8]) -> Result<()> {
    let clean: Vec<u8> = data.iter().copied().filter(|b| *b != b'\r').collect();
    out.write_all(&clean)?;
    Ok(out.flush()?)
}

/// Returns the last `n` lines.
fn last_lines(data: &[u8], n: usize) -> &[u8] {
    let body = data.strip_suffix(b"\n").unwrap_or(data);
    let mut breaks = body.iter().enumerate().rev().filter(|(_, b)| **b == b'\n');
    match n.checked_sub(1) {
        None => &[],
        Some(skip) => breaks.nth(skip).map_or(data, |(i, _)| &data[i + 1..]),
    }
}

/// Runs `lab log`.
pub fn log(
    paths: &Paths,
    name: &str,
    node: &str,
    follow: bool,
    lines: Option<usize>,
) -> Result<u8> {
    let cluster = Cluster::attach(paths, name)?;
    let path = if node == "emu" {
        lab::emu::log(cluster.dir())
    } else {
        cluster.node(lab::spec::parse_node(node)?)?.console()
    };
    let mut file =
        std::fs::File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut out = std::io::stdout().lock();
    let mut data = Vec::new();
    file.read_to_end(&mut data)?;
    write_log(&mut out, lines.map_or(&data[..], |n| last_lines(&data, n)))?;
    // The log is removed with the lab, which ends the loop.
    while follow && path.exists() {
        std::thread::sleep(Duration::from_millis(200));
        data.clear();
        file.read_to_end(&mut data)?;
        write_log(&mut out, &data)?;
    }
    Ok(0)
}

/// Runs `lab log --defects`, which searches for the same signs of defects as the tests.
pub fn defects(paths: &Paths, name: &str, node: &str) -> Result<u8> {
    let cluster = Cluster::attach(paths, name)?;
    let node = cluster.node(lab::spec::parse_node(node)?)?;
    match lab::logscan::first_defect(&node.log_since(0), &[]) {
        None => Ok(0),
        Some(found) => {
            writeln!(std::io::stdout(), "{found}")?;
            Ok(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_found() {
        assert_eq!(last_lines(b"a\nb\nc\n", 2), b"b\nc\n");
        assert_eq!(last_lines(b"a\nb\nc", 1), b"c");
        assert_eq!(last_lines(b"a\nb\n", 9), b"a\nb\n");
        assert_eq!(last_lines(b"a\n", 0), b"");
        assert_eq!(last_lines(b"", 3), b"");
    }

    #[test]
    fn exit_codes_are_the_shells() {
        assert_eq!(exit_code(Status::Code(7)), 7);
        assert_eq!(exit_code(Status::Signal(9)), 137);
    }
}
