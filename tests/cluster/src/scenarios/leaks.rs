//! Resources in use on a node, which must be the same before and after a test. Only exact numbers
//! are compared. Lost memory is found by kmemleak (`make check-debug`).

use super::node::Node;
use anyhow::{Context, Result};

/// Prints the resources in use on a node: open ports, pinned pages, registered memory, references
/// to modules.
const IN_USE: &str = "echo ports $(cat /sys/kernel/debug/extoll-*/ports 2>/dev/null | grep -c ' vpid '); \
     awk '/^nr_foll_pin_acquired/ {n += $2} /^nr_foll_pin_released/ {n -= $2} END {printf \"pinned %d\\n\", n}' /proc/vmstat; \
     cat /sys/kernel/debug/extoll-*/atu 2>/dev/null | grep -E '^(regions|pages|ending|quarantined) '; \
     awk '$1 ~ /^(extoll|exn|af_extl|vpci)$/ {print \"references\", $1, $3}' /proc/modules";

/// Resources in use on an idle node.
#[derive(Debug, Clone)]
pub struct Usage(String);

impl Usage {
    /// Waits until the node is idle. Returns the resources in use.
    pub fn of(node: Node<'_>) -> Result<Self> {
        node.is_at_rest()?;
        node.ok(IN_USE).map(|text| Self(text.trim().to_owned()))
    }

    /// Waits until the node is idle and uses the same resources as in `self`.
    pub fn is_back(&self, node: Node<'_>) -> Result<()> {
        node.is_at_rest()?;
        let same = format!("[ \"$({IN_USE})\" = '{}' ]", self.0);
        node.until("the same resources are in use", &same)
            .with_context(|| {
                let now = node.ok(IN_USE).unwrap_or_else(|e| format!("{e:#}"));
                format!("before:\n{}\nnow:\n{now}", self.0)
            })
    }
}

/// Runs `part`, which repeats an action `cycles` times, and checks that it leaks no resource. The
/// action must have run once before, because the first run may open a port that stays open.
pub fn watch(node: Node<'_>, cycles: u32, part: impl FnOnce(u32) -> Result<()>) -> Result<()> {
    let before = Usage::of(node)?;
    part(cycles)?;
    before.is_back(node)
}
