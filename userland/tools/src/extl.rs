// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `extl-run`: a program with libextl.so preloaded.

use anyhow::{ensure, Context, Result};
use clap::Parser;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// The library's name for the dynamic linker.
const LIBRARY: &str = "libextl.so.1";
/// Variable of the dynamic linker.
const PRELOAD: &str = "LD_PRELOAD";

/// Runs a program whose sockets of TCP are sockets of AF_EXTL.
///
/// It preloads libextl.so, which asks for IPPROTO_EXTL in place of TCP when the program, or one
/// that it starts, makes a stream socket of IPv4 or IPv6. Where that can't be had, for instance
/// because the module af_extl is not there, the program gets a socket of TCP. Nothing else of the
/// program changes. The environment variables EXTL_ONLY, EXTL_NOT and EXTL_PROTOCOL mean what the
/// options of these names do.
///
/// Not reached are programs that are linked statically or make system calls without the C library
/// (Go), those with privileges of their own (set-user-ID), sockets that a program inherits, and
/// those made by io_uring. Exits with the program's status; with 2 if the program can't be run.
#[derive(Parser, Debug)]
#[command(name = "extl-run", version)]
pub struct Args {
    /// Only for programs of these names, with commas between them.
    #[arg(long, value_name = "NAMES")]
    only: Option<OsString>,
    /// Not for programs of these names, with commas between them.
    #[arg(long, value_name = "NAMES")]
    not: Option<OsString>,
    /// Protocol number, if the module was loaded with another one.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    protocol: Option<u16>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// The library beside this program, where it is installed so, or its name for the linker to find.
fn library(own: Option<&Path>) -> OsString {
    let beside = own
        .and_then(|program| program.parent()?.parent())
        .map(|top| top.join("lib").join(LIBRARY));
    match beside {
        Some(path) if path.exists() => path.into(),
        _ => LIBRARY.into(),
    }
}

/// What to preload: the library before what was there.
fn preload(library: &OsStr, before: Option<OsString>) -> OsString {
    let mut all = library.to_os_string();
    if let Some(before) = before.filter(|b| !b.is_empty()) {
        all.push(":");
        all.push(before);
    }
    all
}

/// Runs the program in place of this one: returns only if it can't.
pub fn run(args: Args) -> Result<ExitCode> {
    let (name, words) = args.program.split_first().context("no program")?;
    let library = library(std::env::current_exe().ok().as_deref());
    ensure!(
        !library.as_encoded_bytes().contains(&b':') && !library.as_encoded_bytes().contains(&b' '),
        "the dynamic linker can't be given {}: no blanks or colons",
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
