// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `extl-run`: runs a program with libextl.so preloaded.

use anyhow::{ensure, Context, Result};
use clap::Parser;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Name of the library that the dynamic linker searches.
const LIBRARY: &str = "libextl.so.1";
/// Environment variable that names libraries to preload.
const PRELOAD: &str = "LD_PRELOAD";

/// Runs a program whose TCP sockets are AF_EXTL sockets.
///
/// extl-run preloads libextl.so. The library requests IPPROTO_EXTL instead of TCP when the program,
/// or a program that it starts, creates a stream socket of IPv4 or IPv6. If that is not possible,
/// for instance because the module af_extl is not loaded, the program gets a TCP socket. The
/// program is otherwise unchanged. The environment variables EXTL_ONLY, EXTL_NOT and EXTL_PROTOCOL
/// have the same meaning as the options of these names.
///
/// These programs and sockets are not affected: statically linked programs, programs that make
/// system calls without the C library (Go), set-user-ID programs, inherited sockets, and sockets
/// created by io_uring.
///
/// The exit status is that of the program, or 2 if the program cannot be run.
///
/// Example: extl-run redis-server
///
/// Example: extl-run --only python3 ./job.sh
#[derive(Parser, Debug)]
#[command(name = "extl-run", version)]
pub struct Args {
    /// Replaces TCP only in programs with these names, separated by commas.
    #[arg(long, value_name = "NAMES")]
    only: Option<OsString>,
    /// Keeps TCP in programs with these names, separated by commas.
    #[arg(long, value_name = "NAMES")]
    not: Option<OsString>,
    /// Protocol number. Required if the module was loaded with another number than the default.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    protocol: Option<u16>,
    /// Program to run, and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// Returns the path of the library in the installation of this program. If it is not there, returns
/// only the name, for which the dynamic linker searches.
fn library(own: Option<&Path>) -> OsString {
    let beside = own
        .and_then(|program| program.parent()?.parent())
        .map(|top| top.join("lib").join(LIBRARY));
    match beside {
        Some(path) if path.exists() => path.into(),
        _ => LIBRARY.into(),
    }
}

/// Returns the new value of `LD_PRELOAD`: the library, followed by the previous value.
fn preload(library: &OsStr, before: Option<OsString>) -> OsString {
    let mut all = library.to_os_string();
    if let Some(before) = before.filter(|b| !b.is_empty()) {
        all.push(":");
        all.push(before);
    }
    all
}

/// Replaces this process by the program. Returns only if the program cannot be run.
pub fn run(args: Args) -> Result<ExitCode> {
    let (name, words) = args.program.split_first().context("no program")?;
    let library = library(std::env::current_exe().ok().as_deref());
    ensure!(
        !library.as_encoded_bytes().contains(&b':') && !library.as_encoded_bytes().contains(&b' '),
        "the path {} must not contain blanks or colons, because the dynamic linker does not accept them",
        Path::new(&library).display()
    );
    let mut command = Command::new(name);
    command.args(words);
    command.env(PRELOAD, preload(&library, std::env::var_os(PRELOAD)));
    for (variable, value) in [("EXTL_ONLY", args.only), ("EXTL_NOT", args.not)] {
        value.map(|v| command.env(variable, v));
    }
    if let Some(protocol) = args.protocol {
        command.env("EXTL_PROTOCOL", protocol.to_string());
    }
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run {}", Path::new(name).display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_first() {
        let one = OsStr::new("a.so");
        assert_eq!(preload(one, None), "a.so");
        assert_eq!(preload(one, Some("".into())), "a.so");
        assert_eq!(preload(one, Some("b.so c.so".into())), "a.so:b.so c.so");
    }

    #[test]
    fn an_installed_library_is_found_beside_the_program() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("bin/extl-run");
        assert_eq!(library(Some(&program)), LIBRARY);
        assert_eq!(library(None), LIBRARY);
        let at = dir.path().join("lib").join(LIBRARY);
        std::fs::create_dir(dir.path().join("lib")).unwrap();
        std::fs::write(&at, "").unwrap();
        assert_eq!(library(Some(&program)), at);
    }
}
