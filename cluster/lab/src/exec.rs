//! Commands in a node.

use crate::channel::{until, Channel, Received};
use crate::cluster::Node;
use anyhow::{anyhow, bail, Context, Result};
use lab_proto::{GuestMsg, HostMsg, Request, Status, WinSize, CHUNK, STDIN_WINDOW};
use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum time for the agent to answer before a command starts.
pub const CONNECT_PATIENCE: Duration = Duration::from_secs(60);
/// Maximum input that waits for the port, in bytes. Above this size no more input is read.
const BACKLOG: usize = 256 * 1024;

/// Source of a command's standard input.
#[derive(Debug, Default)]
pub enum Input {
    /// No input.
    #[default]
    None,
    /// These bytes.
    Bytes(Vec<u8>),
    /// A file, pipe or terminal, read when it is ready.
    Fd(OwnedFd),
}

/// Result of a finished command.
#[derive(Clone, Debug)]
pub struct Output {
    /// Exit code, or the signal that killed the command.
    pub status: Status,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
}

impl Output {
    /// Returns standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Returns standard error as text.
    pub fn error_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Returns the output if the command succeeded.
    ///
    /// # Errors
    /// When the command failed. The error contains its status and the end of its output.
    pub fn ok(self) -> Result<Self> {
        if self.status.success() {
            return Ok(self);
        }
        let (out, err) = (self.text(), self.error_text());
        bail!(
            "{}\n{}{}",
            self.status,
            crate::logscan::last_lines(&out, 20),
            crate::logscan::last_lines(&err, 20)
        )
    }
}

/// Instruction to a running command.
#[derive(Debug)]
pub enum Control {
    /// Sends a signal to the command's process group.
    Signal(i32),
    /// Changes the size of the command's terminal.
    Resize(WinSize),
    /// Abandons the command, which the agent then ends.
    Abandon,
}

/// Sends [`Control`]s to a command that another thread drives.
#[derive(Clone)]
pub struct Remote {
    sender: Sender<Control>,
    wake: Arc<UnixStream>,
}

impl Remote {
    /// Creates a sender and its receiver.
    ///
    /// # Errors
    /// When no socket pair can be created.
    pub fn new() -> Result<(Self, RemoteEnd)> {
        let (a, b) = UnixStream::pair()?;
        a.set_nonblocking(true)?;
        b.set_nonblocking(true)?;
        let (sender, receiver) = channel();
        Ok((
            Self {
                sender,
                wake: Arc::new(a),
            },
            RemoteEnd { receiver, wake: b },
        ))
    }

    /// Sends an instruction. Does nothing if the command has ended.
    pub fn send(&self, control: Control) {
        if self.sender.send(control).is_ok() {
            // A full wake-up socket wakes the receiver as well.
            let _ = (&*self.wake).write(&[0]);
        }
    }
}

/// The receiving end of a [`Remote`].
pub struct RemoteEnd {
    receiver: Receiver<Control>,
    wake: UnixStream,
}

/// A command to be run in a node.
#[derive(Debug)]
pub struct Command {
    request: Request,
    input: Input,
    timeout: Option<Duration>,
    connect: Duration,
}

impl Command {
    /// Creates a command from a program and its arguments.
    pub fn new<S: AsRef<OsStr>>(argv: impl IntoIterator<Item = S>) -> Self {
        let argv = argv
            .into_iter()
            .map(|a| a.as_ref().as_bytes().to_vec())
            .collect();
        Self {
            request: Request {
                argv,
                ..Request::default()
            },
            input: Input::None,
            timeout: None,
            connect: CONNECT_PATIENCE,
        }
    }

    /// Creates a command that runs a script with `/bin/sh`.
    pub fn sh(script: &str) -> Self {
        Self::new(["/bin/sh", "-c", script])
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.request.env.push((
            name.as_ref().as_bytes().to_vec(),
            value.as_ref().as_bytes().to_vec(),
        ));
        self
    }

    /// Sets the working directory.
    #[must_use]
    pub fn cwd(mut self, dir: impl Into<OsString>) -> Self {
        self.request.cwd = Some(dir.into().as_bytes().to_vec());
        self
    }

    /// Sets the standard input.
    #[must_use]
    pub fn input(mut self, input: Input) -> Self {
        self.input = input;
        self
    }

    /// Sets the time after which the command is ended with an error.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Sets the maximum time for the agent to answer before the command starts; the default is
    /// [`CONNECT_PATIENCE`].
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect = limit;
        self
    }

    /// Returns the maximum time to wait for the agent, which never exceeds the command's own
    /// timeout.
    fn patience(&self) -> Duration {
        self.timeout.map_or(self.connect, |t| t.min(self.connect))
    }

    /// Gives the command a terminal of this size.
    #[must_use]
    pub fn terminal(mut self, size: WinSize) -> Self {
        self.request.pty = Some(size);
        self
    }

    /// Returns the command line, for messages.
    pub fn describe(&self) -> String {
        let words: Vec<_> = self
            .request
            .argv
            .iter()
            .map(|a| String::from_utf8_lossy(a))
            .collect();
        words.join(" ")
    }

    /// Runs the command and passes each chunk of output to `sink` (true = standard error). Returns
    /// its status.
    ///
    /// # Errors
    /// When the node does not answer or goes off, the timeout expires, the command cannot be
    /// started, or `sink` fails.
    pub fn run_with(
        self,
        node: &Node,
        remote: Option<&RemoteEnd>,
        sink: &mut dyn FnMut(bool, &[u8]) -> Result<()>,
    ) -> Result<Status> {
        let what = self.describe();
        let deadline = self.timeout.map(|t| Instant::now() + t);
        let connect = Instant::now() + self.patience();
        let result = Channel::open(node.dir(), connect).and_then(|mut channel| {
            channel.queue(&HostMsg::Start(self.request));
            let mut drive = Drive {
                channel,
                input: self.input,
                credit: STDIN_WINDOW,
                position: 0,
                eof_sent: false,
            };
            drive.run(remote, deadline, sink)
        });
        result.with_context(|| format!("{}: {what}", node.name()))
    }

    /// Runs the command to its end and collects its output.
    ///
    /// # Errors
    /// See [`Command::run_with`]. A failed command is not an error.
    pub fn run(self, node: &Node) -> Result<Output> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let mut sink = |error: bool, data: &[u8]| {
            if error { &mut stderr } else { &mut stdout }.extend_from_slice(data);
            Ok(())
        };
        let status = self.run_with(node, None, &mut sink)?;
        Ok(Output {
            status,
            stdout,
            stderr,
        })
    }

    /// Starts the command in the background.
    ///
    /// # Errors
    /// When no thread or socket can be created.
    pub fn spawn(self, node: &Node) -> Result<Running> {
        let what = format!("{}: {}", node.name(), self.describe());
        let (remote, end) = Remote::new()?;
        let shared = Arc::new((Mutex::new(Progress::default()), Condvar::new()));
        let (theirs, node) = (Arc::clone(&shared), node.clone());
        let thread = std::thread::Builder::new().spawn(move || {
            let mut sink = |error: bool, data: &[u8]| {
                let mut p = lock(&theirs.0);
                if error { &mut p.stderr } else { &mut p.stdout }.extend_from_slice(data);
                theirs.1.notify_all();
                Ok(())
            };
            let result = self.run_with(&node, Some(&end), &mut sink);
            lock(&theirs.0).result = Some(result);
            theirs.1.notify_all();
        })?;
        Ok(Running {
            what,
            remote,
            shared,
            thread: Some(thread),
        })
    }
}

fn lock(m: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Progress {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    result: Option<Result<Status>>,
}

/// A command that runs in the background; dropping it ends the command.
pub struct Running {
    what: String,
    remote: Remote,
    shared: Arc<(Mutex<Progress>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Waits until `test` accepts the output so far (standard output, standard error).
    ///
    /// # Errors
    /// When the command ends or `patience` expires first.
    pub fn wait_for(
        &self,
        patience: Duration,
        mut test: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + patience;
        let mut p = lock(&self.shared.0);
        loop {
            if test(&p.stdout, &p.stderr) {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let text =
                || String::from_utf8_lossy(&[&p.stdout[..], &p.stderr[..]].concat()).into_owned();
            if p.result.is_some() {
                bail!(
                    "{} ended without the expected output; it wrote:\n{}",
                    self.what,
                    text()
                );
            }
            if left.is_zero() {
                bail!(
                    "{} did not write the expected output within {patience:?}; it wrote:\n{}",
                    self.what,
                    text()
                );
            }
            p = self
                .shared
                .1
                .wait_timeout(p, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Returns true while the command runs.
    pub fn is_running(&self) -> bool {
        lock(&self.shared.0).result.is_none()
    }

    /// Sends a signal to the command's process group.
    pub fn signal(&self, number: i32) {
        self.remote.send(Control::Signal(number));
    }

    /// Waits until the command ends.
    ///
    /// # Errors
    /// When the node fails or `patience` expires; the command is then ended.
    pub fn wait(self, patience: Duration) -> Result<Output> {
        let deadline = Instant::now() + patience;
        let mut p = lock(&self.shared.0);
        loop {
            if let Some(result) = p.result.take() {
                let (stdout, stderr) =
                    (std::mem::take(&mut p.stdout), std::mem::take(&mut p.stderr));
                return Ok(Output {
                    status: result?,
                    stdout,
                    stderr,
                });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("{} did not end within {patience:?}", self.what);
            }
            p = self
                .shared
                .1
                .wait_timeout(p, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.remote.send(Control::Abandon);
        if let Some(t) = self.thread.take() {
            // A panic in the thread has already been printed.
            let _ = t.join();
        }
    }
}

struct Drive {
    channel: Channel,
    input: Input,
    credit: usize,
    position: usize,
    eof_sent: bool,
}

impl Drive {
    fn run(
        &mut self,
        remote: Option<&RemoteEnd>,
        deadline: Option<Instant>,
        sink: &mut dyn FnMut(bool, &[u8]) -> Result<()>,
    ) -> Result<Status> {
        loop {
            if let Some(status) = self.receive(sink)? {
                return Ok(status);
            }
            // Runs after `receive`, which may have granted more credit.
            let wants_input = self.feed_bytes();
            self.channel.flush()?;
            if deadline.is_some_and(|d| Instant::now() >= d) {
                bail!("not finished in time; it was ended");
            }
            let ready = self.wait(wants_input, remote, deadline)?;
            if ready.input {
                self.read_input()?;
            }
            if let (true, Some(remote)) = (ready.remote, remote) {
                self.obey(remote)?;
            }
        }
    }

    /// Sends in-memory input as far as the window allows. Returns true if a file should be polled
    /// for input.
    fn feed_bytes(&mut self) -> bool {
        let may = |d: &Self| d.credit > 0 && d.channel.pending() < BACKLOG;
        match &self.input {
            Input::None => self.end_input(),
            Input::Fd(_) => return may(self),
            Input::Bytes(_) => {
                while may(self) {
                    let Input::Bytes(bytes) = &self.input else {
                        break;
                    };
                    let n = (bytes.len() - self.position).min(CHUNK).min(self.credit);
                    if n == 0 {
                        self.input = Input::None;
                        self.end_input();
                        break;
                    }
                    let piece = bytes[self.position..self.position + n].to_vec();
                    self.position += n;
                    self.credit -= n;
                    self.channel.queue(&HostMsg::Stdin(piece));
                }
            }
        }
        false
    }

    fn end_input(&mut self) {
        if !self.eof_sent {
            self.eof_sent = true;
            self.channel.queue(&HostMsg::StdinEof);
        }
    }

    fn read_input(&mut self) -> Result<()> {
        let Input::Fd(fd) = &self.input else {
            return Ok(());
        };
        let mut buffer = vec![0; CHUNK.min(self.credit)];
        match rustix::io::read(fd, &mut buffer) {
            Ok(0) => {
                self.input = Input::None;
                self.end_input();
            }
            Ok(n) => {
                buffer.truncate(n);
                self.credit -= n;
                self.channel.queue(&HostMsg::Stdin(buffer));
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            // A closed terminal counts as end of input.
            Err(Errno::IO) => {
                self.input = Input::None;
                self.end_input();
            }
            Err(e) => return Err(anyhow!(e).context("cannot read standard input")),
        }
        Ok(())
    }

    fn receive(
        &mut self,
        sink: &mut dyn FnMut(bool, &[u8]) -> Result<()>,
    ) -> Result<Option<Status>> {
        loop {
            match self.channel.receive()? {
                Received::Message(GuestMsg::Stdout(d)) => sink(false, &d)?,
                Received::Message(GuestMsg::Stderr(d)) => sink(true, &d)?,
                Received::Message(GuestMsg::Credit(n)) => {
                    self.credit = (self.credit + n as usize).min(STDIN_WINDOW)
                }
                Received::Message(GuestMsg::Exit(status)) => return Ok(Some(status)),
                Received::Message(GuestMsg::Failed(reason)) => bail!("{reason}"),
                Received::Message(GuestMsg::NoSession) => {
                    bail!("the node was restarted while the command ran")
                }
                Received::Message(GuestMsg::HelloAck { .. }) => {}
                Received::Nothing => return Ok(None),
                Received::Closed => bail!("the node went off while the command ran"),
            }
        }
    }

    fn wait(
        &self,
        input: bool,
        remote: Option<&RemoteEnd>,
        deadline: Option<Instant>,
    ) -> Result<Ready> {
        let flags = if self.channel.pending() > 0 {
            PollFlags::IN | PollFlags::OUT
        } else {
            PollFlags::IN
        };
        let mut fds = vec![PollFd::new(self.channel.socket(), flags)];
        let mut at_input = None;
        if let (true, Input::Fd(fd)) = (input, &self.input) {
            at_input = Some(fds.len());
            fds.push(PollFd::new(fd, PollFlags::IN));
        }
        let mut at_remote = None;
        if let Some(remote) = remote {
            at_remote = Some(fds.len());
            fds.push(PollFd::new(&remote.wake, PollFlags::IN));
        }
        match poll(&mut fds, until(deadline).as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let ready = |at: Option<usize>| at.is_some_and(|i| !fds[i].revents().is_empty());
        Ok(Ready {
            input: ready(at_input),
            remote: ready(at_remote),
        })
    }

    fn obey(&mut self, remote: &RemoteEnd) -> Result<()> {
        let mut bin = [0; 64];
        while matches!((&remote.wake).read(&mut bin), Ok(n) if n == bin.len()) {}
        while let Ok(control) = remote.receiver.try_recv() {
            match control {
                Control::Signal(n) => self.channel.queue(&HostMsg::Signal(n)),
                Control::Resize(size) => self.channel.queue(&HostMsg::Resize(size)),
                Control::Abandon => bail!("the command was abandoned"),
            }
        }
        Ok(())
    }
}

struct Ready {
    input: bool,
    remote: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_boots_gets_the_time_that_it_was_given() {
        let (long, short) = (Duration::from_secs(900), Duration::from_secs(3));
        let ready = || crate::cluster::ready(long);
        assert_eq!(ready().patience(), long);
        // Only commands that wait for a boot may wait longer than `CONNECT_PATIENCE` for the agent.
        assert_eq!(
            Command::sh("true").timeout(long).patience(),
            CONNECT_PATIENCE
        );
        assert_eq!(Command::sh("true").patience(), CONNECT_PATIENCE);
        assert_eq!(ready().timeout(short).patience(), short);
    }
}
