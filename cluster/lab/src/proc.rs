//! Processes of a lab: started detached, and found by the token in their environment.

use anyhow::{Context, Result};
use rustix::process::{kill_process, Pid, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Environment variable with the lab's token.
pub const TOKEN_VAR: &str = "EXTOLL_LAB";
/// Environment variable with the role of the process: `emu` or `nodeN`.
pub const ROLE_VAR: &str = "EXTOLL_LAB_ROLE";

/// Maximum size of an environment that is searched, in bytes.
const ENVIRON_BYTES: usize = 256 << 10;

/// Maximum time that a process may spend in execve(2).
const EXEC_PATIENCE: Duration = Duration::from_secs(5);

/// A running process of a lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process ID.
    pub pid: i32,
    /// `emu` or `nodeN`.
    pub role: String,
}

/// Returns the processes whose environment has this token. Unlike a file with process IDs, the
/// result is complete and current even after a `lab` command was killed.
pub fn find(token: &str) -> Vec<Process> {
    let Ok(dir) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for entry in dir.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|s| s.parse::<i32>().ok())
        else {
            continue;
        };
        let Some(environ) = environ(pid, EXEC_PATIENCE) else {
            continue;
        };
        if variable(&environ, TOKEN_VAR) != Some(token.as_bytes())
            || stat(pid).is_none_or(|s| s.zombie)
        {
            continue;
        }
        let role = variable(&environ, ROLE_VAR).unwrap_or_default();
        found.push(Process {
            pid,
            role: String::from_utf8_lossy(role).into_owned(),
        });
    }
    found
}

/// Returns the value of a variable. While a shell parses its environment, a NUL replaces the `=`.
fn variable<'a>(environ: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut words = environ.split(|b| *b == 0);
    loop {
        match words.next()?.strip_prefix(name.as_bytes()) {
            Some([]) => return words.next(),
            Some([b'=', value @ ..]) => return Some(value),
            _ => {}
        }
    }
}

/// Returns the environment of a process. `None` if the process has ended or has no environment, or
/// if it may still be in execve(2) after `patience`.
fn environ(pid: i32, patience: Duration) -> Option<Vec<u8>> {
    let start = Instant::now();
    let mut before = stat(pid)?;
    loop {
        // The file is read with one call, because after an execve(2) an open file returns end of
        // file.
        let mut environ = vec![0; ENVIRON_BYTES];
        let mut file = File::open(format!("/proc/{pid}/environ")).ok()?;
        let len = file.read(&mut environ).ok()?;
        if len > 0 {
            environ.truncate(len);
            return Some(environ);
        }
        // During execve(2) a process has no environment, for many milliseconds on a busy machine.
        // Such a process may still belong to this lab. Zombies and kernel threads never get an
        // environment.
        let now = stat(pid)?;
        if now.zombie || now.kernel || now.passed_no_execve(&before) {
            return None;
        }
        if start.elapsed() > patience {
            return None;
        }
        // User time counts from the last page fault on.
        let user_time = if now.faults == before.faults {
            before.user_time
        } else {
            now.user_time
        };
        before = Stat { user_time, ..now };
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Fields of `/proc/PID/stat`.
struct Stat {
    zombie: bool,
    kernel: bool,
    /// The process sleeps interruptibly or is stopped.
    waits: bool,
    /// CPU time in user mode, in clock ticks.
    user_time: u64,
    /// Page faults. Every execve(2) causes some, both before and after it removes the old
    /// environment.
    faults: u64,
}

impl Stat {
    /// Returns true if the counters prove that the process was not in execve(2) at any time from
    /// `earlier` until this reading.
    fn passed_no_execve(&self, earlier: &Stat) -> bool {
        let ran = self.user_time != earlier.user_time;
        self.faults == earlier.faults && (self.waits && earlier.waits || ran)
    }
}

fn stat(pid: i32) -> Option<Stat> {
    /// `PF_KTHREAD` of the kernel's task flags.
    const KERNEL_THREAD: u64 = 0x0020_0000;
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Fields from the third on: state, parent, group, session, terminal, group of the terminal,
    // flags, minor faults. Field 12 is the number of major faults, field 14 the time in user mode.
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let state = fields.first()?;
    Some(Stat {
        zombie: state.starts_with(['Z', 'X']),
        kernel: number(9)? & KERNEL_THREAD != 0,
        waits: state.starts_with(['S', 'T', 't']),
        user_time: number(14)?,
        faults: number(10)? + number(12)?,
    })
}

fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        // The process may have ended already.
        let _ = kill_process(pid, signal);
    }
}

/// Ends all processes of a lab for which `which` returns true. Sends SIGTERM first unless `hard`.
/// Returns the number of ended processes.
///
/// # Errors When a process survives for 10 s.
pub fn end(token: &str, hard: bool, which: impl Fn(&Process) -> bool) -> Result<usize> {
    let start = Instant::now();
    let first: Vec<_> = find(token).into_iter().filter(&which).collect();
    let count = first.len();
    if !hard {
        first.iter().for_each(|p| signal(p.pid, Signal::TERM));
    }
    loop {
        let left: Vec<_> = find(token).into_iter().filter(&which).collect();
        if left.is_empty() {
            return Ok(count);
        }
        anyhow::ensure!(
            start.elapsed() < Duration::from_secs(10),
            "processes did not end: {left:?}"
        );
        if hard || start.elapsed() > Duration::from_secs(2) {
            left.iter().for_each(|p| signal(p.pid, Signal::KILL));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Starts a process that outlives this one: own session, no terminal, output into `log`. The
/// returned flag becomes true if the process ends while this one still runs.
///
/// # Errors
/// When the log cannot be written or the program cannot be started.
pub fn spawn(
    token: &str,
    role: &str,
    command: &[std::ffi::OsString],
    log: &Path,
) -> Result<Arc<AtomicBool>> {
    let out = File::options()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("cannot write {}", log.display()))?;
    let program = command.first().context("empty command")?;
    // A process that outlives this one must not inherit its descriptors (pipes of a shell, locks).
    // setsid(1) executes the program without a fork, because a child of this process is never a
    // group leader. The loop has no redirection, because the shell would keep the old descriptor
    // under a number that the loop closes.
    let script = "for f in /proc/self/fd/*; do n=${f##*/}; [ \"$n\" -le 2 ] || eval \"exec $n>&-\"; done; exec setsid \"$@\"";
    let mut child = Command::new("bash")
        .args(["-c", script, "bash"])
        .args(command)
        .env(TOKEN_VAR, token)
        .env(ROLE_VAR, role)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .spawn()
        .with_context(|| format!("cannot start {}", program.to_string_lossy()))?;
    // Reaps the child if it ends while this process still runs.
    let ended = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&ended);
    std::thread::spawn(move || {
        let _ = child.wait();
        tell.store(true, Ordering::Relaxed);
    });
    Ok(ended)
}

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Makes Ctrl-C, SIGTERM and SIGHUP an error of [`interrupted`] instead of ending this process, so
/// that started processes can be ended, too. A second signal ends this process at once.
///
/// # Errors
/// When no handler can be installed.
pub fn catch_signals() -> Result<()> {
    let flag = Arc::clone(INTERRUPTED.get_or_init(Arc::default));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // The order matters: at the first signal the conditional shutdown finds the flag unset.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&flag))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .context("cannot catch signals")?;
    }
    Ok(())
}

/// Returns true if a signal has arrived since [`catch_signals`].
pub fn was_interrupted() -> bool {
    INTERRUPTED
        .get()
        .is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Fails after a signal. Loops that wait call this function.
///
/// # Errors
/// When a signal has arrived since [`catch_signals`].
pub fn interrupted() -> Result<()> {
    anyhow::ensure!(!was_interrupted(), "interrupted");
    Ok(())
}

/// Returns true if a program of this name is in PATH, or the path exists.
pub fn exists(program: &std::ffi::OsStr) -> bool {
    if program.as_bytes().contains(&b'/') {
        return Path::new(program).exists();
    }
    std::env::var_os("PATH")
        .is_some_and(|p| std::env::split_paths(&p).any(|d| d.join(program).exists()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_by_its_token_and_ended() {
        let token = format!("test-{}", std::process::id());
        let log = std::env::temp_dir().join(&token);
        assert_eq!(find(&token), vec![]);
        spawn(&token, "node7", &["sleep".into(), "1000".into()], &log).unwrap();
        let found = find(&token);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].role, "node7");
        assert_eq!(end(&token, true, |p| p.role == "node8").unwrap(), 0);
        assert_eq!(find(&token).len(), 1);
        assert_eq!(end(&token, false, |_| true).unwrap(), 1);
        assert_eq!(find(&token), vec![]);
        std::fs::remove_file(log).unwrap();
    }

    #[test]
    fn what_a_process_says_is_in_its_log_and_nothing_is_inherited() {
        let token = format!("test-log-{}", std::process::id());
        let log = std::env::temp_dir().join(&token);
        let script = "echo out; echo err >&2; ls /proc/self/fd | wc -l";
        let command = ["sh", "-c", script].map(Into::into);
        spawn(&token, "node7", &command, &log).unwrap();
        let start = Instant::now();
        let text = || std::fs::read_to_string(&log).unwrap();
        while text().lines().count() < 3 && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        // The fourth descriptor is the directory that ls reads.
        assert_eq!(text(), "out\nerr\n4\n");
        std::fs::remove_file(log).unwrap();
    }

    #[test]
    fn variables_are_found_while_a_shell_takes_them_apart() {
        for environ in ["A=x\0AB=c=d\0B=", "A\0x\0AB\0c=d\0B\0", "AB=c=d"] {
            assert_eq!(variable(environ.as_bytes(), "AB"), Some(&b"c=d"[..]));
            assert_eq!(variable(environ.as_bytes(), "ABC"), None);
        }
        assert_eq!(variable(b"A=x\0B=", "B"), Some(&b""[..]));
        assert_eq!(variable(b"", "B"), None);
    }

    #[test]
    fn processes_without_environment_do_not_delay() {
        for program in [&["sleep", "1000"][..], &["sh", "-c", "while :; do :; done"]] {
            let mut command = Command::new(program[0]);
            let mut child = command.args(&program[1..]).env_clear().spawn().unwrap();
            let pid = i32::try_from(child.id()).unwrap();
            let comm = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
            while comm().trim_end() != program[0] {
                std::thread::sleep(Duration::from_millis(1));
            }
            let start = Instant::now();
            // This timeout expires only if `environ` waits although no execve(2) is in progress.
            let patience = Duration::from_secs(300);
            let environ = environ(pid, patience);
            // The shell sets some variables, but the kernel shows only the initial environment.
            assert_eq!(environ, None);
            assert!(start.elapsed() < patience, "{program:?}");
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_process_is_found_while_it_becomes_another_program() {
        let token = format!("test-exec-{}", std::process::id());
        let log = std::env::temp_dir().join(&token);
        // The shell executes itself $0 times, then executes `sleep`.
        let again = "[ $0 = 0 ] && exec sleep 1000; exec bash -c \"$1\" $(($0 - 1)) \"$1\"";
        let command = ["bash", "-c", again, "300", again].map(Into::into);
        spawn(&token, "emu", &command, &log).unwrap();
        let comm = |pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        let start = Instant::now();
        loop {
            let found = find(&token);
            assert_eq!(found.len(), 1, "{:?} after the start", start.elapsed());
            if comm(found[0].pid) == "sleep\n" {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(60));
        }
        assert_eq!(end(&token, false, |_| true).unwrap(), 1);
        std::fs::remove_file(log).unwrap();
    }
}
