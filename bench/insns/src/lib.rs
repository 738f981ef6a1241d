//! Counts the instructions that an emulated x86-64 machine executes, separately for kernel and user
//! space. It is a plugin for QEMU's TCG:
//!
//! ```text
//! qemu-system-x86_64 … -plugin libextoll_insns.so,socket=PATH
//! ```
//!
//! The plugin answers each line on the socket with `kernel N user N`: the number of instructions
//! that all CPUs have executed since QEMU started. `make bench` sends a line before and after each
//! run (docs/bench.md).
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod qemu;

use qemu::Counters;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};

/// Returns true if instructions at an address belong to the kernel. Kernels are in the upper half
/// of the address space.
fn is_kernel(address: u64) -> bool {
    address >> 63 == 1
}

/// Returns the path of the socket from the options.
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
        // A single write, so that the client never receives half a line.
        (&mut &*stream).write_all(format!("kernel {kernel} user {user}\n").as_bytes())?;
    }
    Ok(())
}

/// Listens on the socket and answers one client after the other while QEMU runs.
fn serve(options: &[String], counters: Counters) -> Result<(), String> {
    let path = socket(options)?;
    // A killed QEMU leaves its socket behind.
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).map_err(|e| format!("{path}: {e}"))?;
    let work = move || {
        for stream in listener.incoming().flatten() {
            // A client that disconnects must not end the thread.
            let _ = answer(&stream, counters);
        }
    };
    qemu::spawn(work).map_err(|e| format!("cannot start a thread: {e}"))
}
