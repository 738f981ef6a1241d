//! Writes messages into the kernel log, so that they appear in order on the node's console.

use std::io::Write;

/// Logs one line at level "notice". Does nothing if the kernel log cannot be written.
pub fn log(text: &str) {
    if let Ok(mut f) = std::fs::OpenOptions::new().write(true).open("/dev/kmsg") {
        // Each write is one record. A failed write is ignored, because it cannot be reported
        // elsewhere.
        let _ = f.write_all(format!("<5>lab-agent: {text}\n").as_bytes());
    }
}
