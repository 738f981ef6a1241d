//! Counts the instructions that an emulated x86-64 machine executes, kernel and user apart. A plugin for QEMU's TCG:
//!
//! ```text
//! qemu-system-x86_64 … -plugin libextoll_insns.so,socket=PATH
//! ```
//!
//! Each line that comes in at the socket is answered by `kernel N user N`: instructions since the start, of all processors.
//! `make bench` asks before and after a run (docs/bench.md).
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod qemu;

use qemu::Counters;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};

/// Which counter the instructions at an address belong to: kernels live in the upper half of the address space.
fn is_kernel(address: u64) -> bool {
    address >> 63 == 1
}

/// The socket that the options name.
fn socket(options: &[String]) -> Result<&str, String> {
    match options {
        [one] => one
            .strip_prefix("socket=")
            .filter(|path| !path.is_empty())
            .ok_or_else(|| format!("unknown option '{one}'")),
        _ => Err("the only option is socket=PATH".into()),
    }
}

fn answer(stream: &UnixStream, counters: Counters) -> std::io::Result<()> {
    for request in BufReader::new(stream).lines() {
        request?;
        let (kernel, user) = counters.read();
        // One write, so that nobody sees half a line.
        (&mut &*stream).write_all(format!("kernel {kernel} user {user}\n").as_bytes())?;
    }
    Ok(())
}

/// Listens; answers one client after the other for as long as QEMU runs.
fn serve(options: &[String], counters: Counters) -> Result<(), String> {
    let path = socket(options)?;
    // A QEMU that was killed leaves its socket.
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).map_err(|e| format!("{path}: {e}"))?;
    let work = move || {
        for stream in listener.incoming().flatten() {
            // A client that went away is no reason to end.
            let _ = answer(&stream, counters);
        }
    };
    qemu::spawn(work).map_err(|e| format!("no thread: {e}"))
}
