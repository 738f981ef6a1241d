//! What a node has in use: as much after something was done as before. Only exact numbers are compared; kmemleak finds memory
//! that is lost (`make check-debug`).

use super::node::Node;
use anyhow::{Context, Result};

/// Prints what is in use on a node: open ports, pinned pages, registered memory, references to modules.
const IN_USE: &str = "echo ports $(cat /sys/kernel/debug/extoll-*/ports 2>/dev/null | grep -c ' vpid '); \
     awk '/^nr_foll_pin_acquired/ {n += $2} /^nr_foll_pin_released/ {n -= $2} END {printf \"pinned %d\\n\", n}' /proc/vmstat; \
     cat /sys/kernel/debug/extoll-*/atu 2>/dev/null | grep -E '^(regions|pages|ending|quarantined) '; \
     awk '$1 ~ /^(extoll|exn|af_extl|vpci)$/ {print \"references\", $1, $3}' /proc/modules";

/// What is in use on a node at rest.
#[derive(Debug, Clone)]
pub struct Usage(String);

impl Usage {
    /// What is in use now. Waits until the node is at rest.
    pub fn of(node: Node<'_>) -> Result<Self> {
        node.is_at_rest()?;
        node.ok(IN_USE).map(|text| Self(text.trim().to_owned()))
    }

    /// Waits until the node is at rest and has as much in use as then.
    pub fn is_back(&self, node: Node<'_>) -> Result<()> {
        node.is_at_rest()?;
        let same = format!("[ \"$({IN_USE})\" = '{}' ]", self.0);
        node.until("as much is in use as before", &same)
            .with_context(|| {
                let now = node.ok(IN_USE).unwrap_or_else(|e| format!("{e:#}"));
                format!("before:\n{}\nnow:\n{now}", self.0)
            })
    }
}

/// Runs `part`, which does something `cycles` times; afterwards as much is in use as before. It should have been done once
/// already, as the first time may open a port that stays open.
pub fn watch(node: Node<'_>, cycles: u32, part: impl FnOnce(u32) -> Result<()>) -> Result<()> {
    let before = Usage::of(node)?;
    part(cycles)?;
    before.is_back(node)
}
