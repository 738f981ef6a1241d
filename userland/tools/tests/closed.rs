// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests that programs end without an error message when the reader of their output has closed it.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};

/// Returns a standard output without a reader. Every write to it fails.
fn closed() -> Stdio {
    let (ours, _) = UnixStream::pair().unwrap();
    OwnedFd::from(ours).into()
}

fn is_quiet(out: &Output, what: &str) {
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && error.is_empty(), "{what}: {out:?}");
}

#[test]
fn tools_end_quietly_when_their_output_is_closed() {
    let empty = tempfile::tempdir().unwrap();
    let root = empty.path().to_str().unwrap();
    let trace = empty.path().join("trace");
    let line = "a-1 [000] d 1.0: extoll_interrupt: nic=00000010 entries=1 read_pointer=2\n";
    std::fs::write(&trace, line.repeat(10_000)).unwrap();
    let trace = trace.to_str().unwrap();
    let ctl = env!("CARGO_BIN_EXE_extollctl");
    for words in [
        &[ctl, "--root", root, "list"][..],
        &[ctl, "--root", root, "--json", "list"],
        &[ctl, "reg", "list"],
        &[ctl, "--help"],
        &[env!("CARGO_BIN_EXE_extoll-trace"), "--input", trace],
        &[
            env!("CARGO_BIN_EXE_extoll-trace"),
            "--json",
            "--input",
            trace,
        ],
        &[env!("CARGO_BIN_EXE_extoll-perf"), "--version"],
        &[env!("CARGO_BIN_EXE_extoll-ping"), "--help"],
    ] {
        let mut command = Command::new(words[0]);
        let out = command.args(&words[1..]).stdout(closed()).output();
        is_quiet(&out.unwrap(), &words.join(" "));
    }
    // The reader closes the output after the first line.
    let script = format!("'{ctl}' reg list | head -n 1");
    let out = Command::new("sh").args(["-c", &script]).output().unwrap();
    is_quiet(&out, &script);
    assert_eq!(out.stdout.split(|b| *b == b'\n').count(), 2, "{out:?}");
}

#[test]
fn an_error_that_nobody_reads_is_no_panic() {
    for words in [
        &[env!("CARGO_BIN_EXE_extollctl"), "-N", "none", "list"][..],
        &[
            env!("CARGO_BIN_EXE_extoll-perf"),
            "-d",
            "/nonexistent",
            "serve",
            "-p",
            "0",
        ],
        &[env!("CARGO_BIN_EXE_extoll-ping"), "-d", "/nonexistent", "1"],
        &[
            env!("CARGO_BIN_EXE_extoll-trace"),
            "--input",
            "/nonexistent",
        ],
    ] {
        let mut command = Command::new(words[0]);
        let status = command.args(&words[1..]).stderr(closed()).stdout(closed());
        assert_eq!(status.status().unwrap().code(), Some(2), "{words:?}");
    }
}
