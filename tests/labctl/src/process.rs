//! Commands in nodes through the crate `lab`, and commands of its command line.

use crate::settings::as_slow;
use crate::WrongData;
use anyhow::{bail, Context, Result};
use lab::Paths;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Exit status of a command whose node failed. `lab exec` uses the same status.
const NODE_FAILED: i32 = 125;
/// Maximum number of trace lines that are saved.
const TRACE_LINES: usize = 5000;
/// Clock ticks per second in `/proc`: `USER_HZ`, which is the same on every supported host.
const TICKS: u64 = 100;

/// Result of a finished command.
#[derive(Debug)]
pub struct Output {
    /// Exit status; 125 if the node failed.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Messages of programs about wrong data: this project's programs, fio, sha256sum -c, ping.
const WRONG_DATA: &[&str] = &["wrong data", "verify failed", ": FAILED\n"];

impl Output {
    /// Returns the standard output if the command succeeded.
    pub(crate) fn succeeded(self, node: usize, script: &str) -> Result<String> {
        if self.status != 0 {
            let (status, out, err) = (self.status, &self.stdout, &self.stderr);
            let what = format!("node{node}# {script}: exit status {status}\n{out}{err}");
            if WRONG_DATA
                .iter()
                .any(|w| out.contains(w) || err.contains(w))
            {
                return Err(WrongData::error(what));
            }
            bail!(what);
        }
        Ok(self.stdout)
    }
}

/// A command that runs on a node in the background.
pub struct Running {
    inner: lab::Running,
    what: String,
}

impl Running {
    pub(crate) fn start(node: &lab::Node, script: &str) -> Result<Self> {
        let what = format!("{}# {script}", node.name());
        let inner = lab::Command::new(["sh", "-c", script])
            .spawn(node)
            .with_context(|| format!("cannot start: {what}"))?;
        Ok(Self { inner, what })
    }

    /// Waits up to `patience` for the end (longer on a slow kernel), then kills the command and
    /// returns an error.
    pub fn wait(self, patience: Duration) -> Result<Output> {
        let patience = as_slow(patience);
        // The closure never ends the wait. The wait ends with the command or at the deadline, both
        // as an error. The code below distinguishes the two.
        let _ = self.inner.wait_for(patience, |_, _| false);
        if self.inner.is_running() {
            bail!("not finished after {} s: {}", patience.as_secs(), self.what);
        }
        Ok(match self.inner.wait(Duration::ZERO) {
            Ok(out) => Output {
                status: out.status.shell_code(),
                stdout: out.text(),
                stderr: out.error_text(),
            },
            Err(e) => Output {
                status: NODE_FAILED,
                stdout: String::new(),
                stderr: format!("lab: {e:#}"),
            },
        })
    }

    /// Ends the command if it still runs.
    pub fn stop(self) {}

    /// Returns true while the command runs.
    pub fn is_running(&mut self) -> bool {
        self.inner.is_running()
    }
}

fn drain(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        // A read error means that the command has ended; the output so far is returned.
        let _ = from.read_to_end(&mut all);
        all
    })
}

/// A command of `lab`.
pub(crate) struct Client {
    child: Child,
    what: String,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

impl Client {
    pub(crate) fn start(bin: &Path, name: &str, verb: &str, args: &[&str]) -> Result<Self> {
        let what = format!("lab {verb} {}", args.join(" "));
        let mut child = Command::new(bin.join("lab"))
            .arg(verb)
            .args(["--name", name])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start: {what}"))?;
        let stdout = child.stdout.take().map(drain);
        let stderr = child.stderr.take().map(drain);
        Ok(Self {
            child,
            what,
            stdout,
            stderr,
        })
    }

    /// Waits up to `patience` for the end of the command, longer on a slow kernel. Then kills the
    /// command and returns an error.
    pub(crate) fn wait(mut self, patience: Duration) -> Result<Output> {
        let patience = as_slow(patience);
        let deadline = Instant::now() + patience;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                bail!("not finished after {} s: {}", patience.as_secs(), self.what);
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let text = |t: Option<JoinHandle<Vec<u8>>>| -> String {
            t.and_then(|t| t.join().ok())
                .map(|b| String::from_utf8_lossy(&b).into_owned())
                .unwrap_or_default()
        };
        Ok(Output {
            status: status.code().unwrap_or(-1),
            stdout: text(self.stdout.take()),
            stderr: text(self.stderr.take()),
        })
    }
}

/// Returns the CPU time of a process and of its reaped children.
pub(crate) fn cpu_time(pid: i32) -> Option<Duration> {
    ticks(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
        .map(|t| Duration::from_millis(t * 1000 / TICKS))
}

/// Returns the sum of the fields `utime`, `stime`, `cutime` and `cstime`, 14 to 17, of
/// `/proc/PID/stat`.
fn ticks(stat: &str) -> Option<u64> {
    // The second field is a name in parentheses, which may contain blanks.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    (14..=17)
        .map(|f| fields.get(f - 3)?.parse::<u64>().ok())
        .sum()
}

fn copy_logs(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for entry in std::fs::read_dir(from)
        .with_context(|| from.display().to_string())?
        .flatten()
    {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_logs(&path, &target)?;
        } else if kind.is_file() && path.extension().is_none_or(|e| e != "bin") {
            std::fs::copy(&path, &target).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

/// Copies the logs of a failed lab from its directory `from` to `to` ([`crate::keep`]).
pub(crate) fn keep(paths: &Paths, from: &Path, to: &Path) -> Result<()> {
    copy_logs(from, to)?;
    let trace = from.join("trace.jsonl");
    if !trace.exists() {
        return Ok(());
    }
    let mut print = Command::new(paths.bin.join("extoll-emu"))
        .args(["trace", "print"])
        .arg(&trace)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot print the trace")?;
    let mut last = VecDeque::new();
    for line in BufReader::new(print.stdout.take().context("no pipe")?).split(b'\n') {
        if last.len() == TRACE_LINES {
            last.pop_front();
        }
        last.push_back(line?);
    }
    // The end of an interrupted trace may be damaged. The events before the damage were printed.
    print.wait()?;
    let mut file = std::fs::File::create(to.join("trace.txt"))?;
    for line in last {
        file.write_all(&line)?;
        file.write_all(b"\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read() {
        let stat = "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 100 20 3 4 20 0";
        assert_eq!(ticks(stat), Some(127));
        assert!(cpu_time(std::process::id() as i32).is_some());
        assert_eq!(cpu_time(-1), None);
    }

    #[test]
    fn logs_are_kept_and_sockets_are_not() {
        let dir = std::env::temp_dir().join(format!("labctl-keep-{}", std::process::id()));
        let (from, to) = (dir.join("from"), dir.join("to"));
        std::fs::create_dir_all(from.join("node0")).unwrap();
        std::fs::write(from.join("node0/console.log"), "x").unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(from.join("nic0.sock")).unwrap();
        keep(&Paths::default(), &from, &to).unwrap();
        assert_eq!(std::fs::read(to.join("node0/console.log")).unwrap(), b"x");
        assert!(!to.join("nic0.sock").exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
