//! Instruction counts of nodes, from a plugin of QEMU (bench/insns).

use anyhow::{Context, Result};
use std::io::{BufRead, BufReader, Write};
use std::ops::{Add, Sub};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// File name of the plugin in the program directory.
pub const PLUGIN: &str = "libextoll_insns.so";

/// Maximum time for an answer of the plugin.
const PATIENCE: Duration = Duration::from_secs(20);

/// Instruction counts of the two halves of the address space.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Instructions {
    /// Instructions of the kernel.
    pub kernel: u64,
    /// Instructions of processes.
    pub user: u64,
}

impl Instructions {
    /// Returns the sum of both counts.
    pub fn total(self) -> u64 {
        self.kernel + self.user
    }
}

impl Add for Instructions {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            kernel: self.kernel + other.kernel,
            user: self.user + other.user,
        }
    }
}

impl Sub for Instructions {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            kernel: self.kernel.saturating_sub(before.kernel),
            user: self.user.saturating_sub(before.user),
        }
    }
}

/// Returns the plugin's socket of the node with this directory.
pub(crate) fn socket(dir: &Path) -> PathBuf {
    dir.join("insns.sock")
}

fn parse(line: &str) -> Option<Instructions> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["kernel", kernel, "user", user] => Some(Instructions {
            kernel: kernel.parse().ok()?,
            user: user.parse().ok()?,
        }),
        _ => None,
    }
}

/// Reads the counts since the node was switched on.
pub(crate) fn read(dir: &Path) -> Result<Instructions> {
    let path = socket(dir);
    let mut stream = UnixStream::connect(&path).with_context(|| {
        format!(
            "instructions of this node are not counted: {} does not answer",
            path.display()
        )
    })?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    parse(&line).with_context(|| format!("unexpected answer of the instruction counter: '{line}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let now = parse("kernel 12 user 7\n").unwrap();
        assert_eq!((now.kernel, now.user, now.total()), (12, 7, 19));
        let before = Instructions { kernel: 2, user: 7 };
        assert_eq!(
            now - before + before,
            Instructions {
                kernel: 12,
                user: 7
            }
        );
        for line in ["", "kernel 12", "user 7 kernel 12", "kernel x user 7"] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
