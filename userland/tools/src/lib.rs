// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Command line tools. A module contains either a program with its options (`ctl`, `extl`,
//! `extlctl`, `extlss`, `perf`, `ping`, `trace`), or code that several programs use.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod accel;
pub mod choice;
pub mod ctl;
pub mod extl;
pub mod extlctl;
pub mod extlss;
pub mod man;
pub mod peer;
pub mod perf;
pub mod ping;
pub mod rendezvous;
pub mod stats;
pub mod table;
pub mod trace;

use clap::Parser;
use rustix::io::Errno;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Parses the arguments of a program and runs it. Prints an error as `NAME: reason` and returns
/// exit status 2.
pub fn main<A: Parser>(name: &str, run: impl FnOnce(A) -> anyhow::Result<ExitCode>) -> ExitCode {
    match run(A::parse()) {
        Ok(code) => code,
        // The reader of the output has closed it. This is not an error.
        Err(e) if is_closed_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            complain(name, &e);
            ExitCode::from(2)
        }
    }
}

/// Prints an error to the standard error.
pub(crate) fn complain(name: &str, e: &anyhow::Error) {
    say(&format!("{name}: {e:#}"));
}

/// Prints a line to the standard error and ignores failures. `eprintln!` would panic if the
/// standard error is closed.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Returns a hint why a file of a kernel file system cannot be read. `mount` is the command that
/// mounts the file system.
pub(crate) fn why_unreadable(e: &std::io::Error, mount: &str) -> String {
    match Errno::from_io_error(e) {
        Some(Errno::NOENT) => format!("it does not exist; try: {mount}"),
        Some(Errno::ACCESS) => "only root may read it".into(),
        Some(Errno::PERM) => "kernel lockdown, or a missing capability".into(),
        _ => "unexpected error".into(),
    }
}

fn is_closed_pipe(e: &anyhow::Error) -> bool {
    e.downcast_ref::<std::io::Error>()
        .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Parses a decimal number, or a hexadecimal number after 0x.
pub fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(&hex.replace('_', ""), 16),
        None => text.replace('_', "").parse(),
    };
    parsed.map_err(|e| format!("{text}: {e}"))
}

/// Parses a size in bytes. The suffixes k, M and G mean powers of 1,024.
pub fn size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((i, 'k' | 'K')) => (&text[..i], 1 << 10),
        Some((i, 'M')) => (&text[..i], 1 << 20),
        Some((i, 'G')) => (&text[..i], 1 << 30),
        _ => (text, 1),
    };
    number(digits)?
        .checked_mul(unit)
        .ok_or_else(|| format!("{text} is too large"))
}

/// Parses a time in seconds, which may have a fraction.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|e| format!("{text}: {e}"))?;
    Duration::try_from_secs_f64(number).map_err(|e| format!("{text}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_file_has_the_hint_for_its_reason_only() {
        let why = |errno: Errno| why_unreadable(&errno.into(), "mount it");
        assert!(why(Errno::NOENT).contains("mount it"));
        for errno in [Errno::ACCESS, Errno::PERM, Errno::IO] {
            assert!(!why(errno).contains("mount it"));
            assert_eq!(why(errno).contains("root"), errno == Errno::ACCESS);
            assert_eq!(why(errno).contains("lockdown"), errno == Errno::PERM);
        }
    }

    #[test]
    fn numbers_sizes_and_times() {
        assert_eq!(number("0x46_0008"), Ok(0x46_0008));
        assert_eq!(number("12"), Ok(12));
        assert!(number("0xg").is_err() && number("").is_err() && number("-1").is_err());
        assert_eq!(size("64k"), Ok(65536));
        assert_eq!(size("8M"), Ok(8 << 20));
        assert!(size("99999999999G").is_err() && size("k").is_err());
        assert_eq!(seconds("0.2"), Ok(Duration::from_millis(200)));
        assert!(seconds("-1").is_err() && seconds("x").is_err() && seconds("1e99").is_err());
    }
}
