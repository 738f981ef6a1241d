//! Kernel logs, read from the nodes' consoles on the host. They are complete and include earlier
//! boots.

use crate::{Lab, PATIENCE};
use anyhow::{ensure, Error, Result};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Evidence of a defect in a kernel log.
#[derive(Debug)]
pub struct Defect {
    /// The line with its context, and the node.
    text: String,
    /// True for a report of a stall, which a slow host may cause too.
    pub is_stall: bool,
}

impl Defect {
    /// Returns the worst defect in the consoles of a lab that may be unresponsive. A stall is
    /// returned only if there is no other defect.
    pub fn of_lab(name: &str) -> Option<Self> {
        let dir = std::fs::read_dir(crate::directory(name)).ok()?;
        let consoles = dir.flatten().map(|e| e.path().join("console.log"));
        let defects = consoles.filter_map(|path| {
            let log = std::fs::read(&path).ok()?;
            let log = String::from_utf8_lossy(&log);
            Some(Self {
                text: format!(
                    "{}:\n{}",
                    path.display(),
                    lab::logscan::first_defect(&log, &[])?
                ),
                is_stall: lab::logscan::is_stall(&log, &[]),
            })
        });
        defects.min_by_key(|d| d.is_stall)
    }
}

impl std::fmt::Display for Defect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Defect {}

/// Received data that differ from the data sent.
#[derive(Debug)]
pub struct WrongData(String);

impl WrongData {
    /// Returns an error with a description.
    pub fn error(what: impl std::fmt::Display) -> Error {
        Error::new(Self(format!("wrong data: {what}")))
    }
}

impl std::fmt::Display for WrongData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongData {}

/// Position in the kernel log of a node.
pub struct LogMark {
    node: usize,
    at: u64,
}

/// Returns the position behind the line that contains `word`.
fn end_of_line_with(log: &[u8], word: &str) -> Option<usize> {
    let at = log.windows(word.len()).position(|w| w == word.as_bytes())?;
    let rest = log[at..].iter().position(|b| *b == b'\n')?;
    Some(at + rest + 1)
}

impl Lab {
    /// Waits until the console log contains all messages that the node's kernel has logged so far.
    /// Returns the length of the console log.
    fn log_settled(&self, node: usize) -> Result<u64> {
        let console = self.node(node)?;
        let from = console.log_mark();
        let word = format!("mark {:016x}", lab::state::random());
        self.quietly(node, &format!("echo '<7>lab: {word}' >/dev/kmsg"))?;
        let deadline = Instant::now() + crate::as_slow(PATIENCE);
        loop {
            let all = std::fs::read(console.console())?;
            let start = usize::try_from(from)?.min(all.len());
            if let Some(end) = end_of_line_with(&all[start..], &word) {
                return Ok((start + end) as u64);
            }
            ensure!(
                Instant::now() < deadline,
                "node{node}: what is written to /dev/kmsg does not get to the console"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Marks the current end of a node's kernel log.
    pub fn log_mark(&self, node: usize) -> Result<LogMark> {
        let at = self.log_settled(node)?;
        Ok(LogMark { node, at })
    }

    /// Returns the kernel log since the mark, including earlier boots.
    pub fn log_since(&self, mark: &LogMark) -> Result<String> {
        self.log_settled(mark.node)?;
        Ok(self.node(mark.node)?.log_since(mark.at))
    }

    /// Fails if the kernel of any node has reported a defect since the last check, or since the
    /// boot.
    pub fn assert_clean_log(&self) -> Result<()> {
        self.assert_clean_log_but(&[])
    }

    /// Does the check of [`Lab::assert_clean_log`], but ignores lines that contain one of these
    /// texts.
    pub fn assert_clean_log_but(&self, expected: &[&str]) -> Result<()> {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        let mut silent = Ok(());
        let mut defects = Vec::new();
        for (node, from) in checked.iter_mut().enumerate() {
            // The log of an unresponsive node is checked too, because it may show the cause.
            let settled = self.log_settled(node);
            let log = self.node(node)?.log_since(*from);
            if let Some(defect) = lab::logscan::first_defect(&log, expected) {
                defects.push(Defect {
                    text: format!("kernel log of node{node} is not clean:\n{defect}"),
                    is_stall: lab::logscan::is_stall(&log, expected),
                });
            }
            match settled {
                Ok(end) => *from = end,
                Err(e) => silent = Err(e.context(format!("node{node} does not answer"))),
            }
        }
        match defects.into_iter().min_by_key(|d| d.is_stall) {
            Some(defect) => Err(Error::new(defect)),
            None => silent,
        }
    }

    /// Returns the number of kernel boots started in this lab.
    pub fn boots(&self) -> usize {
        let logs = (0..self.spec().nodes).filter_map(|n| self.node(n).ok());
        logs.map(|n| n.log_since(0).matches("] Linux version ").count())
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_when_they_are_complete() {
        let log = b"[1] a\r\n[2] mark 7\r\n[3] b";
        assert_eq!(end_of_line_with(log, "mark 7"), Some(19));
        assert_eq!(end_of_line_with(log, "b"), None);
        assert_eq!(end_of_line_with(log, "mark 8"), None);
    }
}
