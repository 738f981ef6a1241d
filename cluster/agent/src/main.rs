//! The program inside a node. `lab-agent init` is the node's first process, `lab-agent serve` runs
//! commands for `lab`.
#![forbid(unsafe_code)]

mod init;
mod kmsg;
mod port;
mod session;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Exit status of a shell for a program that was found but cannot be run.
const CANNOT_RUN: u8 = 126;
/// Exit status of a shell for a program that was not found.
const NOT_FOUND: u8 = 127;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    match args.get(1).map(|a| a.as_bytes()) {
        Some(b"init") => init::run(),
        Some(b"serve") => port::serve_all(),
        Some(b"wait") => init::wait(),
        Some(b"on-terminal") => on_terminal(&args[2..]),
        _ => {
            eprintln!("usage: lab-agent init|serve|wait|on-terminal PROGRAM [ARGUMENT…]");
            ExitCode::from(2)
        }
    }
}

/// Makes this process the leader of a new session with standard input as its controlling terminal,
/// then executes `argv`. Returns only if this fails.
fn on_terminal(argv: &[std::ffi::OsString]) -> ExitCode {
    let Some((program, arguments)) = argv.split_first() else {
        return ExitCode::from(2);
    };
    let attached = rustix::process::setsid()
        .and_then(|_| rustix::process::ioctl_tiocsctty(rustix::stdio::stdin()));
    if let Err(e) = attached {
        eprintln!("lab: no controlling terminal: {e}\r");
        return ExitCode::from(CANNOT_RUN);
    }
    let error = Command::new(program).args(arguments).exec();
    eprintln!("lab: cannot run {}: {error}\r", program.to_string_lossy());
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound {
        NOT_FOUND
    } else {
        CANNOT_RUN
    })
}
