//! Messages between `lab` (host) and `lab-agent` (node) on one virtio-serial port.
//!
//! A port carries one session at a time. The end of a virtio-serial connection is not ordered with
//! its data. After a client was killed, the remains of its last message may precede the next
//! client's first message, in either direction. Byte stuffing therefore makes frame boundaries
//! recognisable anywhere in the stream. A session begins with a [`HostMsg::Hello`] with a random
//! number. The agent then drops the old session, and the host ignores all messages before the
//! [`GuestMsg::HelloAck`] with its own number.
//!
//! Frame: `FLAG, stuff(kind u8, length u32 LE, payload), FLAG`. The length reveals a truncated
//! frame.
#![forbid(unsafe_code)]

mod frame;

pub use frame::{encode, Decoder, Frame, FrameError, MAX_PAYLOAD};

use serde::{Deserialize, Serialize};

/// Version of this protocol. The agent reports its version in [`GuestMsg::HelloAck`].
pub const VERSION: u32 = 1;
/// Maximum number of bytes of standard input that the host sends before the agent grants more.
pub const STDIN_WINDOW: usize = 256 * 1024;
/// Maximum data in one message, in bytes.
pub const CHUNK: usize = 16 * 1024;
/// Number of ports of a node, which is the number of commands that can run in parallel.
pub const PORTS: usize = 16;

/// Returns the name of a port in the node (`/dev/virtio-ports/…` and sysfs).
pub fn port_name(index: usize) -> String {
    format!("lab.{index}")
}

/// Size of a terminal, in character cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WinSize {
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
}

/// A command to run in the node. Strings are bytes, as in system calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Program (looked up in PATH) and its arguments; not empty.
    pub argv: Vec<Vec<u8>>,
    /// Variables added to the node's default environment.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Working directory, `/root` when absent.
    pub cwd: Option<Vec<u8>>,
    /// Size of the command's own terminal, which also carries standard error; `None`: pipes.
    pub pty: Option<WinSize>,
}

/// Result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// Exit code, 0–255.
    Code(i32),
    /// Number of the signal that killed the command.
    Signal(i32),
}

impl Status {
    /// Returns the status as a shell shows it: the code, or 128 + signal number.
    pub fn shell_code(self) -> i32 {
        match self {
            Status::Code(c) => c,
            Status::Signal(s) => 128 + s,
        }
    }

    /// Returns true if the command exited with code 0.
    pub fn success(self) -> bool {
        self == Status::Code(0)
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Status::Code(c) => write!(f, "exit status {c}"),
            Status::Signal(s) => write!(f, "killed by signal {s}"),
        }
    }
}

/// Messages from the host to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostMsg {
    /// Begins a session with this random number and ends the port's previous session.
    Hello(u64),
    /// Runs a command; valid once per session.
    Start(Request),
    /// Standard input: up to [`CHUNK`] bytes, within the granted window.
    Stdin(Vec<u8>),
    /// End of standard input.
    StdinEof,
    /// New size of the terminal.
    Resize(WinSize),
    /// Signal for the command's process group.
    Signal(i32),
}

/// Messages from the agent to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestMsg {
    /// Answer to [`HostMsg::Hello`].
    HelloAck {
        /// Random number of the [`HostMsg::Hello`] that is answered.
        nonce: u64,
        /// Protocol version of the agent, which is its [`VERSION`].
        version: u32,
    },
    /// Standard output, or all output of a terminal.
    Stdout(Vec<u8>),
    /// Standard error.
    Stderr(Vec<u8>),
    /// Number of bytes of standard input that were consumed.
    Credit(u32),
    /// End of the command, sent after all its output. Last message of a session.
    Exit(Status),
    /// Reason why the command could not be started or the request was malformed. Last message of a
    /// session.
    Failed(String),
    /// The agent has no session on this port. It was restarted, or the message is valid only within
    /// a session.
    NoSession,
}

/// Error for a message that cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadMessage(
    /// Reason, for a log line.
    pub String,
);

impl std::fmt::Display for BadMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadMessage {}

const HELLO: u8 = 1;
const START: u8 = 2;
const STDIN: u8 = 3;
const STDIN_EOF: u8 = 4;
const RESIZE: u8 = 5;
const SIGNAL: u8 = 6;
const HELLO_ACK: u8 = 65;
const STDOUT: u8 = 66;
const STDERR: u8 = 67;
const CREDIT: u8 = 68;
const EXIT: u8 = 69;
const FAILED: u8 = 70;
const NO_SESSION: u8 = 71;

fn pack<T: Serialize>(value: &T) -> Vec<u8> {
    // Serialising these types into a growing vector never fails.
    postcard::to_stdvec(value).unwrap_or_default()
}

fn unpack<'a, T: Deserialize<'a>>(what: &str, data: &'a [u8]) -> Result<T, BadMessage> {
    match postcard::take_from_bytes(data) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(BadMessage(format!("{what}: {} bytes too many", rest.len()))),
        Err(e) => Err(BadMessage(format!("{what}: {e}"))),
    }
}

impl HostMsg {
    /// Appends the message as a frame.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            HostMsg::Hello(n) => encode(HELLO, &pack(n), out),
            HostMsg::Start(r) => encode(START, &pack(r), out),
            HostMsg::Stdin(d) => encode(STDIN, d, out),
            HostMsg::StdinEof => encode(STDIN_EOF, &[], out),
            HostMsg::Resize(w) => encode(RESIZE, &pack(w), out),
            HostMsg::Signal(s) => encode(SIGNAL, &pack(s), out),
        }
    }

    /// Reads a message out of a frame.
    ///
    /// # Errors
    /// When the kind is unknown or the payload does not fit the kind.
    pub fn get(frame: Frame) -> Result<Self, BadMessage> {
        let d = frame.payload;
        Ok(match frame.kind {
            HELLO => HostMsg::Hello(unpack("hello", &d)?),
            START => HostMsg::Start(unpack("start", &d)?),
            STDIN => HostMsg::Stdin(d),
            STDIN_EOF => HostMsg::StdinEof,
            RESIZE => HostMsg::Resize(unpack("resize", &d)?),
            SIGNAL => HostMsg::Signal(unpack("signal", &d)?),
            k => return Err(BadMessage(format!("unknown message kind {k}"))),
        })
    }
}

impl GuestMsg {
    /// Appends the message as a frame.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            GuestMsg::HelloAck { nonce, version } => {
                encode(HELLO_ACK, &pack(&(nonce, version)), out)
            }
            GuestMsg::Stdout(d) => encode(STDOUT, d, out),
            GuestMsg::Stderr(d) => encode(STDERR, d, out),
            GuestMsg::Credit(n) => encode(CREDIT, &pack(n), out),
            GuestMsg::Exit(s) => encode(EXIT, &pack(s), out),
            GuestMsg::Failed(s) => encode(FAILED, s.as_bytes(), out),
            GuestMsg::NoSession => encode(NO_SESSION, &[], out),
        }
    }

    /// Reads a message out of a frame.
    ///
    /// # Errors
    /// When the kind is unknown or the payload does not fit the kind.
    pub fn get(frame: Frame) -> Result<Self, BadMessage> {
        let d = frame.payload;
        Ok(match frame.kind {
            HELLO_ACK => {
                let (nonce, version) = unpack("hello ack", &d)?;
                GuestMsg::HelloAck { nonce, version }
            }
            STDOUT => GuestMsg::Stdout(d),
            STDERR => GuestMsg::Stderr(d),
            CREDIT => GuestMsg::Credit(unpack("credit", &d)?),
            EXIT => GuestMsg::Exit(unpack("exit", &d)?),
            FAILED => GuestMsg::Failed(String::from_utf8_lossy(&d).into_owned()),
            NO_SESSION => GuestMsg::NoSession,
            k => return Err(BadMessage(format!("unknown message kind {k}"))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode_all(bytes: &[u8]) -> Vec<Frame> {
        let mut d = Decoder::new();
        d.push(bytes);
        std::iter::from_fn(|| d.next_frame())
            .map(|f| f.unwrap())
            .collect()
    }

    #[test]
    fn every_host_message_survives() {
        let request = Request {
            argv: vec![b"sh".to_vec(), vec![0x7e, 0x7d, 0xff, 0x0a]],
            env: vec![(b"A".to_vec(), b"b=c".to_vec())],
            cwd: Some(b"/tmp".to_vec()),
            pty: Some(WinSize { rows: 24, cols: 80 }),
        };
        let all = [
            HostMsg::Hello(0x7e7e_7d7d_0102_0304),
            HostMsg::Start(request),
            HostMsg::Stdin(vec![0x7e; 100]),
            HostMsg::StdinEof,
            HostMsg::Resize(WinSize {
                rows: 1,
                cols: 65535,
            }),
            HostMsg::Signal(15),
        ];
        let mut bytes = Vec::new();
        all.iter().for_each(|m| m.put(&mut bytes));
        let back: Vec<_> = decode_all(&bytes)
            .into_iter()
            .map(|f| HostMsg::get(f).unwrap())
            .collect();
        assert_eq!(back, all);
    }

    #[test]
    fn every_guest_message_survives() {
        let all = [
            GuestMsg::HelloAck {
                nonce: u64::MAX,
                version: VERSION,
            },
            GuestMsg::Stdout(vec![]),
            GuestMsg::Stderr(b"~}~".to_vec()),
            GuestMsg::Credit(STDIN_WINDOW as u32),
            GuestMsg::Exit(Status::Code(255)),
            GuestMsg::Exit(Status::Signal(9)),
            GuestMsg::Failed("no such program".into()),
            GuestMsg::NoSession,
        ];
        let mut bytes = Vec::new();
        all.iter().for_each(|m| m.put(&mut bytes));
        let back: Vec<_> = decode_all(&bytes)
            .into_iter()
            .map(|f| GuestMsg::get(f).unwrap())
            .collect();
        assert_eq!(back, all);
    }

    #[test]
    fn malformed_payloads_are_errors() {
        for kind in [HELLO, START, RESIZE, SIGNAL, 0, 99] {
            assert!(
                HostMsg::get(Frame {
                    kind,
                    payload: vec![0xff; 3]
                })
                .is_err(),
                "kind {kind}"
            );
        }
        for kind in [HELLO_ACK, CREDIT, EXIT, 0, 99] {
            assert!(
                GuestMsg::get(Frame {
                    kind,
                    payload: vec![0xff; 30]
                })
                .is_err(),
                "kind {kind}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_payload_makes_the_parser_panic(kind: u8, payload: Vec<u8>) {
            let _ = HostMsg::get(Frame { kind, payload: payload.clone() });
            let _ = GuestMsg::get(Frame { kind, payload });
        }
    }
}
