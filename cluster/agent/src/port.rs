//! The virtio-serial ports. A thread per port serves one session after the other.

use crate::kmsg;
use crate::session::{Session, Step};
use lab_proto::{Decoder, GuestMsg, HostMsg, PORTS, VERSION};
use rustix::event::{epoll, poll, PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Maximum encoded output that waits for the host, in bytes. Above this size the agent stops
/// reading from the command.
const OUT_LIMIT: usize = 512 * 1024;
/// Time after which an absent host counts as disconnected. QEMU signals the presence of a host on
/// another queue than its data. A host may therefore look absent for a moment after it connects or
/// replaces another host.
const ABSENCE: Duration = Duration::from_millis(500);
/// Maximum time until the ports appear after boot.
const PORT_DEADLINE: Duration = Duration::from_secs(60);

/// Serves all ports. Returns only if no port can be served any more.
pub fn serve_all() -> ExitCode {
    let threads: Vec<_> = (0..PORTS)
        .map(|i| {
            std::thread::spawn(move || {
                if let Err(e) = serve(i) {
                    kmsg::log(&format!("port {i}: {e:#}"));
                }
            })
        })
        .collect();
    for t in threads {
        // A panic has printed its message already.
        let _ = t.join();
    }
    ExitCode::FAILURE
}

fn find_device(index: usize) -> anyhow::Result<String> {
    let wanted = lab_proto::port_name(index);
    let deadline = Instant::now() + PORT_DEADLINE;
    loop {
        if let Ok(dir) = std::fs::read_dir("/sys/class/virtio-ports") {
            for entry in dir.flatten() {
                let name = std::fs::read_to_string(entry.path().join("name")).unwrap_or_default();
                if name.trim() == wanted {
                    return Ok(format!("/dev/{}", entry.file_name().to_string_lossy()));
                }
            }
        }
        anyhow::ensure!(Instant::now() < deadline, "no virtio port named {wanted}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn serve(index: usize) -> anyhow::Result<()> {
    let path = find_device(index)?;
    let port = rustix::fs::open(
        &path,
        OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    Port::new(port)?.run()
}

/// State of the host side of a port.
#[derive(PartialEq, Eq)]
enum Host {
    Present,
    Gone,
}

struct Port {
    fd: OwnedFd,
    /// Watches `fd` edge-triggered. Without a host the port always reports "hung up", so that
    /// level-triggered polling would spin.
    events: OwnedFd,
    decoder: Decoder,
    out: Vec<u8>,
    sent: usize,
    session: Option<Session>,
    greeted: bool,
    gone_since: Option<Instant>,
}

impl Port {
    fn new(fd: OwnedFd) -> anyhow::Result<Self> {
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&events, &fd, epoll::EventData::new_u64(0), flags)?;
        Ok(Self {
            fd,
            events,
            decoder: Decoder::new(),
            out: Vec::new(),
            sent: 0,
            session: None,
            greeted: false,
            gone_since: None,
        })
    }

    fn run(mut self) -> anyhow::Result<()> {
        // The host may be waiting for a session that was lost when the agent restarted. A host
        // without a session ignores the message.
        self.say(&GuestMsg::NoSession);
        loop {
            match self.receive()? {
                Host::Present => self.gone_since = None,
                Host::Gone if self.idle() => self.gone_since = None,
                Host::Gone => {
                    let since = *self.gone_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= ABSENCE {
                        self.end_session();
                        self.greeted = false;
                        self.gone_since = None;
                    }
                }
            }
            self.work();
            self.send()?;
            self.wait()?;
        }
    }

    /// Returns true if an absent host leaves no state to drop: no session, no unsent output, no
    /// greeting.
    fn idle(&self) -> bool {
        self.session.is_none() && self.out.is_empty() && !self.greeted
    }

    /// Reads and handles all bytes that the host has sent.
    fn receive(&mut self) -> anyhow::Result<Host> {
        let mut buffer = [0; 32 * 1024];
        loop {
            match rustix::io::read(&self.fd, &mut buffer) {
                Ok(0) => return Ok(Host::Gone),
                Ok(n) => self.decoder.push(&buffer[..n]),
                Err(Errno::AGAIN) => return Ok(Host::Present),
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            }
            while let Some(frame) = self.decoder.next_frame() {
                match frame
                    .map_err(|e| lab_proto::BadMessage(format!("{e:?}")))
                    .and_then(HostMsg::get)
                {
                    Ok(message) => self.handle(message),
                    // Without a session, bad bytes are left over from a killed client and are not
                    // logged.
                    Err(e) if self.session.is_some() => kmsg::log(&format!("message dropped: {e}")),
                    Err(_) => {}
                }
            }
        }
    }

    fn handle(&mut self, message: HostMsg) {
        match message {
            HostMsg::Hello(nonce) => {
                self.end_session();
                self.greeted = true;
                self.say(&GuestMsg::HelloAck {
                    nonce,
                    version: VERSION,
                });
            }
            HostMsg::Start(request) if self.greeted => {
                self.greeted = false;
                match Session::start(&request) {
                    Ok(session) => self.session = Some(session),
                    Err(e) => crate::session::report_failure(&e, &mut self.out),
                }
            }
            message => match &mut self.session {
                Some(session) => session.handle(message),
                // Input may still arrive for a command that has just ended. A start without a
                // greeting is an error.
                None if matches!(message, HostMsg::Start(_)) => self.say(&GuestMsg::NoSession),
                None => {}
            },
        }
    }

    fn say(&mut self, message: &GuestMsg) {
        message.put(&mut self.out);
    }

    fn end_session(&mut self) {
        self.out.clear();
        self.sent = 0;
        if let Some(session) = self.session.take() {
            session.abandon();
        }
    }

    /// Moves data between the command and the port's buffers.
    fn work(&mut self) {
        loop {
            let Some(session) = &mut self.session else {
                return;
            };
            if self.out.len() - self.sent >= OUT_LIMIT {
                session.feed();
                return;
            }
            match session.step(&mut self.out) {
                Step::More => {}
                Step::Idle => return,
                Step::Ended => self.session = None,
            }
        }
    }

    /// Writes pending output until the port is full.
    fn send(&mut self) -> anyhow::Result<()> {
        while self.sent < self.out.len() {
            match rustix::io::write(&self.fd, &self.out[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                // The host has disconnected, which the next read reports.
                Err(Errno::PIPE) => break,
                Err(e) => return Err(e.into()),
            }
        }
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        } else if self.sent > OUT_LIMIT {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let mut timeout = None;
        let mut fds = vec![PollFd::new(&self.events, PollFlags::IN)];
        if let Some(session) = &self.session {
            let room = self.out.len() - self.sent < OUT_LIMIT;
            timeout = session.watch(room, &mut fds);
        }
        if let Some(since) = self.gone_since {
            let left = (since + ABSENCE).saturating_duration_since(Instant::now());
            timeout = Some(timeout.map_or(left, |t| t.min(left)));
        }
        let timeout = timeout.map(|t| Timespec {
            tv_sec: t.as_secs() as i64,
            tv_nsec: i64::from(t.subsec_nanos()),
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        // Consumes the edge, so that `events` becomes readable again only at the next edge.
        let mut list = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 1];
        let _ = epoll::wait(
            &self.events,
            &mut list[..],
            Some(&Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            }),
        );
        Ok(())
    }
}
