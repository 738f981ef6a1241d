//! One command in a node: its process, its pipes or terminal, and the buffers between them and the
//! port.

use crate::init::PATH;
use crate::{CANNOT_RUN, NOT_FOUND};
use anyhow::{Context, Result};
use lab_proto::{GuestMsg, HostMsg, Request, Status, WinSize, CHUNK, STDIN_WINDOW};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{kill_process_group, pidfd_open, Pid, PidfdFlags, Signal};
use rustix::termios::{tcsetwinsize, Winsize};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Time between SIGHUP and SIGKILL for a command whose client has disconnected.
const GRACE: Duration = Duration::from_secs(1);
/// Maximum output that is read after the command has ended, in bytes: a pipe's largest capacity. A
/// process that the command left behind may hold the pipe open for ever, so end of file does not
/// mark the end of output.
const TAIL_LIMIT: usize = 1024 * 1024;
/// Time during which output of a terminal may still arrive after the command has ended.
const TERMINAL_TAIL: Duration = Duration::from_millis(200);

/// Error of a command that did not start, with the exit status that a shell returns for it.
#[derive(Debug)]
pub struct NotStarted {
    status: u8,
    text: String,
}

impl std::fmt::Display for NotStarted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for NotStarted {}

/// Reports to the host that a command could not be started.
pub fn report_failure(error: &anyhow::Error, out: &mut Vec<u8>) {
    match error.downcast_ref::<NotStarted>() {
        Some(e) => {
            GuestMsg::Stderr(format!("lab: {e}\n").into_bytes()).put(out);
            GuestMsg::Exit(Status::Code(e.status.into())).put(out);
        }
        None => GuestMsg::Failed(format!("{error:#}")).put(out),
    }
}

/// Result of [`Session::step`].
#[derive(PartialEq, Eq)]
pub enum Step {
    /// The step made progress; call again.
    More,
    /// No progress is possible until a file becomes ready.
    Idle,
    /// The command has ended, and its output and exit status are queued.
    Ended,
}

#[derive(Clone, Copy)]
enum Stream {
    Out,
    Err,
}

struct Finished {
    status: ExitStatus,
    since: Instant,
    tail: usize,
}

/// A running command.
pub struct Session {
    child: Child,
    pid: Pid,
    pidfd: OwnedFd,
    /// Terminal of the command, for input and output; `None` for a command on pipes.
    terminal: Option<OwnedFd>,
    stdin: Option<OwnedFd>,
    stdin_queue: VecDeque<u8>,
    stdin_eof: bool,
    credit: usize,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    finished: Option<Finished>,
}

fn nonblocking(fd: impl Into<OwnedFd>) -> Result<OwnedFd> {
    let fd = fd.into();
    let flags = rustix::fs::fcntl_getfl(&fd)?;
    rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
    Ok(fd)
}

fn open_terminal(size: WinSize) -> Result<(OwnedFd, OwnedFd)> {
    use rustix::pty::{grantpt, openpt, ptsname, unlockpt, OpenptFlags};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
        .context("no terminal")?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let name = ptsname(&master, Vec::new())?;
    let slave = rustix::fs::open(
        name.as_c_str(),
        OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    set_size(&master, size);
    Ok((nonblocking(master)?, slave))
}

fn set_size(terminal: &OwnedFd, size: WinSize) {
    let size = Winsize {
        ws_row: size.rows,
        ws_col: size.cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // A wrong size does no harm, so errors are ignored.
    let _ = tcsetwinsize(terminal, size);
}

impl Session {
    /// Starts the command.
    pub fn start(request: &Request) -> Result<Self> {
        let argv: Vec<OsString> = request
            .argv
            .iter()
            .map(|a| OsStr::from_bytes(a).to_owned())
            .collect();
        let (program, arguments) = argv.split_first().context("empty command")?;
        let terminal = request.pty.map(open_terminal).transpose()?;
        let mut command = match &terminal {
            None => {
                let mut c = Command::new(program);
                c.args(arguments)
                    .process_group(0)
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped());
                c
            }
            Some((_, slave)) => {
                // `lab-agent on-terminal` sets the session and the controlling terminal between
                // fork and exec.
                let mut c = Command::new(std::env::current_exe()?);
                c.arg("on-terminal").args(&argv);
                c.stdin(slave.try_clone()?)
                    .stdout(slave.try_clone()?)
                    .stderr(slave.try_clone()?);
                c
            }
        };
        command
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", "/root")
            .env("USER", "root")
            .env("SHELL", "/bin/bash")
            .env("LANG", "C.UTF-8");
        command.envs(std::env::vars_os().filter(|(k, _)| k.as_bytes().starts_with(b"LAB_")));
        command.envs(
            request
                .env
                .iter()
                .map(|(k, v)| (OsStr::from_bytes(k), OsStr::from_bytes(v))),
        );
        command.current_dir(
            request
                .cwd
                .as_deref()
                .map_or(OsStr::new("/root"), OsStr::from_bytes),
        );
        let mut child = command.spawn().map_err(|e| NotStarted {
            status: if e.kind() == std::io::ErrorKind::NotFound {
                NOT_FOUND
            } else {
                CANNOT_RUN
            },
            text: format!("cannot run {}: {e}", program.to_string_lossy()),
        })?;
        match Self::attach(&mut child) {
            Ok((pid, pidfd, [stdin, stdout, stderr])) => Ok(Self {
                child,
                pid,
                pidfd,
                terminal: terminal.map(|(master, _slave)| master),
                stdin,
                stdin_queue: VecDeque::new(),
                stdin_eof: false,
                credit: 0,
                stdout,
                stderr,
                finished: None,
            }),
            Err(e) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(e)
            }
        }
    }

    fn attach(child: &mut Child) -> Result<(Pid, OwnedFd, [Option<OwnedFd>; 3])> {
        let pid = Pid::from_child(child);
        let pipes = [
            child.stdin.take().map(nonblocking).transpose()?,
            child.stdout.take().map(nonblocking).transpose()?,
            child.stderr.take().map(nonblocking).transpose()?,
        ];
        Ok((pid, pidfd_open(pid, PidfdFlags::empty())?, pipes))
    }

    /// Handles a message of the host.
    pub fn handle(&mut self, message: HostMsg) {
        match message {
            HostMsg::Stdin(data) => {
                if self.stdin_queue.len() + data.len() <= STDIN_WINDOW {
                    self.stdin_queue.extend(data);
                } else {
                    crate::kmsg::log(
                        "the host sent more input than its window allows; the input is dropped",
                    );
                }
            }
            HostMsg::StdinEof => self.stdin_eof = true,
            HostMsg::Resize(size) => {
                if let Some(t) = &self.terminal {
                    set_size(t, size);
                }
            }
            HostMsg::Signal(number) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    self.signal(signal);
                }
            }
            HostMsg::Hello(_) | HostMsg::Start(_) => {}
        }
    }

    fn signal(&self, signal: Signal) {
        if self.finished.is_none() {
            // The process may have ended, but it is not reaped yet. Its group number is therefore
            // not reused.
            let _ = kill_process_group(self.pid, signal);
        }
    }

    /// Adds the files to poll to `fds`. When a file is ready, [`Self::step`] can proceed. Returns
    /// the maximum time to wait. If `room` is false, the caller accepts no output, so only files
    /// that accept input are added.
    pub fn watch<'a>(&'a self, room: bool, fds: &mut Vec<PollFd<'a>>) -> Option<Duration> {
        let mut terminal = PollFlags::empty();
        if !self.stdin_queue.is_empty() {
            fds.extend(self.stdin.iter().map(|f| PollFd::new(f, PollFlags::OUT)));
            terminal |= PollFlags::OUT;
        }
        if room {
            fds.extend(
                self.stdout
                    .iter()
                    .chain(&self.stderr)
                    .map(|f| PollFd::new(f, PollFlags::IN)),
            );
            terminal |= PollFlags::IN;
        }
        if !terminal.is_empty() {
            fds.extend(self.terminal.iter().map(|f| PollFd::new(f, terminal)));
        }
        match &self.finished {
            _ if !room => None,
            None => {
                fds.push(PollFd::new(&self.pidfd, PollFlags::IN));
                None
            }
            Some(f) => Some((f.since + TERMINAL_TAIL).saturating_duration_since(Instant::now())),
        }
    }

    /// Moves input and output as far as possible without waiting. Appends output to `out` as
    /// messages.
    pub fn step(&mut self, out: &mut Vec<u8>) -> Step {
        let mut progress = self.feed();
        if self.credit >= STDIN_WINDOW / 4 || (self.credit > 0 && self.stdin_queue.is_empty()) {
            GuestMsg::Credit(std::mem::take(&mut self.credit) as u32).put(out);
        }
        progress |= self.collect(Stream::Out, out);
        progress |= self.collect(Stream::Err, out);
        if self.finished.is_none() {
            if let Ok(Some(status)) = self.child.try_wait() {
                self.finished = Some(Finished {
                    status,
                    since: Instant::now(),
                    tail: 0,
                });
                return Step::More;
            }
        }
        let Some(f) = &self.finished else {
            return if progress { Step::More } else { Step::Idle };
        };
        let open = self.stdout.is_some() || self.stderr.is_some() || self.terminal.is_some();
        if open && progress && f.tail < TAIL_LIMIT {
            return Step::More;
        }
        if self.terminal.is_some() && f.tail < TAIL_LIMIT && f.since.elapsed() < TERMINAL_TAIL {
            return Step::Idle;
        }
        let status = match (f.status.code(), f.status.signal()) {
            (Some(code), _) => Status::Code(code),
            (None, signal) => Status::Signal(signal.unwrap_or(0)),
        };
        GuestMsg::Exit(status).put(out);
        Step::Ended
    }

    /// Writes queued input to the command. Returns true if this made progress.
    pub fn feed(&mut self) -> bool {
        let mut progress = false;
        while !self.stdin_queue.is_empty() {
            let Some(fd) = self.terminal.as_ref().or(self.stdin.as_ref()) else {
                // The command has closed its input. The bytes count as consumed, so that the host
                // sends the remainder.
                self.credit += self.stdin_queue.len();
                self.stdin_queue.clear();
                return true;
            };
            let (head, _) = self.stdin_queue.as_slices();
            match rustix::io::write(fd, head) {
                Ok(n) => {
                    self.stdin_queue.drain(..n);
                    self.credit += n;
                    progress = true;
                }
                Err(Errno::AGAIN) => return progress,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.stdin = None;
                    self.terminal = None;
                }
            }
        }
        if self.stdin_eof && self.stdin.take().is_some() {
            progress = true;
        }
        if self.stdin_eof {
            if let Some(t) = &self.terminal {
                // End of file on a terminal is the character Ctrl-D.
                if rustix::io::write(t, &[4]).is_ok() {
                    self.stdin_eof = false;
                }
            }
        }
        progress
    }

    /// Reads one chunk of output. Returns true if this made progress.
    fn collect(&mut self, stream: Stream, out: &mut Vec<u8>) -> bool {
        let slot = match (stream, self.terminal.is_some()) {
            (Stream::Out, true) => &mut self.terminal,
            (Stream::Out, false) => &mut self.stdout,
            (Stream::Err, _) => &mut self.stderr,
        };
        let Some(fd) = slot.as_ref() else {
            return false;
        };
        let mut buffer = [0; CHUNK];
        match rustix::io::read(fd.as_fd(), &mut buffer) {
            Ok(n) if n > 0 => {
                if let Some(f) = &mut self.finished {
                    f.tail += n;
                }
                let data = buffer[..n].to_vec();
                match stream {
                    Stream::Out => GuestMsg::Stdout(data).put(out),
                    Stream::Err => GuestMsg::Stderr(data).put(out),
                }
                true
            }
            Err(Errno::AGAIN | Errno::INTR) => false,
            // This is the end of a pipe, or the error of a terminal that no process holds open any
            // more.
            Ok(_) | Err(_) => {
                *slot = None;
                true
            }
        }
    }

    /// Ends the command of a client that has disconnected: sends SIGHUP, then SIGKILL after one
    /// second.
    pub fn abandon(mut self) {
        if self.finished.is_some() {
            return;
        }
        std::thread::spawn(move || {
            self.signal(Signal::HUP);
            self.signal(Signal::CONT);
            self.terminal = None;
            self.stdin = None;
            self.stdout = None;
            self.stderr = None;
            let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
            let grace = rustix::event::Timespec {
                tv_sec: GRACE.as_secs() as i64,
                tv_nsec: 0,
            };
            let _ = rustix::event::poll(&mut fds, Some(&grace));
            // The process is not reaped yet, so its group number cannot belong to another process.
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        });
    }
}
