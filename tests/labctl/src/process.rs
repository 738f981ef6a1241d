//! Commands: in nodes by the crate `lab`, and of its command line.

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

/// Exit status of a command whose node failed, the same as of `lab exec`.
const NODE_FAILED: i32 = 125;
/// Lines of a trace that are kept of a lab.
const TRACE_LINES: usize = 5000;
/// Clock ticks per second in `/proc`: `USER_HZ`, the same on every Linux machine that the lab runs on.
const TICKS: u64 = 100;

/// What a finished command left.
#[derive(Debug)]
pub struct Output {
    /// Exit status; 125 if the node failed.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// What programs say of data that are not what they should be: ours, fio, sha256sum -c, ping.
const WRONG_DATA: &[&str] = &["wrong data", "verify failed", ": FAILED\n"];

impl Output {
    /// Its standard output if it succeeded.
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

/// A command that runs in the background of a node.
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

    /// Waits for the end, at most `patience` (longer on a slow kernel); then the command is killed and an error returned.
    pub fn wait(self, patience: Duration) -> Result<Output> {
        let patience = as_slow(patience);
        // Nothing that it writes ends this wait: only its end does, or that of the patience, both with an error.
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

    /// True while the command runs.
    pub fn is_running(&mut self) -> bool {
        self.inner.is_running()
    }
}

fn drain(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        // A read error means that the command is gone: what came so far is the output.
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

    /// As [`Running::wait`].
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

/// Processor time of a process and the children that it has waited for.
pub(crate) fn cpu_time(pid: i32) -> Option<Duration> {
    ticks(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
        .map(|t| Duration::from_millis(t * 1000 / TICKS))
}

/// The fields `utime`, `stime`, `cutime` and `cstime`, 14 to 17, of `/proc/PID/stat`.
fn ticks(stat: &str) -> Option<u64> {
    // The second field is a name in brackets, which may have blanks.
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

/// See [`crate::keep`].
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
    // The end of a trace that was cut may be damaged: what came before it was printed.
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
