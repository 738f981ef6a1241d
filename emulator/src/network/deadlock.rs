//! Detection of packets that wait for each other in a cycle.
//!
//! The head of an input queue waits for buffer space in the input queue at the far side of a link.
//! The head therefore waits until the head of that queue advances. A unit of a NIC is not part of a
//! cycle, because software or a timeout frees its buffer space.
//!
//! A cycle of waits can't end without help from outside. It is an error of the routing tables. The
//! buffers in the cycle are logged and counted. `pos_dead` of their inports and TE 13 report them
//! (MODEL decision, because HW §15.2 only names the flag).

use super::flow::InputQueue;
use super::{Network, Timer, NP_BASE, TE_XBAR_INPORT};
use crate::lane::channel_name;
use std::collections::HashMap;

/// Maximum number of deadlocks whose descriptions are kept.
const KEPT: usize = 16;

impl Network {
    /// Adds a queue whose head waits for a link to the list for the next check.
    pub(super) fn list_stalled(&mut self, at: InputQueue) {
        let input = self.input(at);
        if !input.listed {
            input.listed = true;
            if self.stalled.is_empty() {
                let due = self.now.saturating_add(self.cfg.deadlock_check_ns);
                self.timers.insert((due, Timer::Deadlock));
            }
            self.stalled.push(at);
        }
    }

    /// Checks all listed queues. The caller calls this only when no packet can advance now.
    /// Otherwise, a wait could be about to end.
    pub(super) fn find_deadlocks(&mut self) {
        let listed = std::mem::take(&mut self.stalled);
        let mut waiting = Vec::new();
        for at in listed {
            let moved = self.waits_for(at).next().is_none();
            let input = self.input(at);
            input.listed = !moved;
            if !moved {
                waiting.push(at);
            }
        }
        for circle in self.circles(&waiting) {
            self.report(&circle);
        }
        // Queues in a reported deadlock need no further check. Queues that wait for them are listed
        // again.
        let mut again = Vec::new();
        for at in waiting {
            let input = self.input(at);
            if input.reported {
                input.listed = false;
            } else {
                again.push(at);
            }
        }
        self.stalled = again;
        if !self.stalled.is_empty() {
            let due = self.now.saturating_add(self.cfg.deadlock_check_ns.max(1));
            self.timers.insert((due, Timer::Deadlock));
        }
    }

    /// Returns the cycles of waits that have not been reported. It finds them by a depth-first
    /// search that visits each queue once.
    fn circles(&self, waiting: &[InputQueue]) -> Vec<Vec<InputQueue>> {
        let mut found = Vec::new();
        // Index of each queue on the current path; `None` for queues whose search has finished.
        let mut seen: HashMap<InputQueue, Option<usize>> = HashMap::new();
        for &start in waiting {
            if seen.contains_key(&start) {
                continue;
            }
            seen.insert(start, Some(0));
            let mut path = vec![(start, self.waits_for(start).collect::<Vec<_>>())];
            while let Some((at, next)) = path.last_mut() {
                let at = *at;
                let Some(to) = next.pop() else {
                    seen.insert(at, None);
                    path.pop();
                    continue;
                };
                match seen.get(&to) {
                    Some(Some(first)) => {
                        let circle: Vec<InputQueue> =
                            path[*first..].iter().map(|(p, _)| *p).collect();
                        let old = circle
                            .iter()
                            .all(|p| self.nodes[p.nic as usize].xbar.inputs[p.queue()].reported);
                        if !old {
                            found.push(circle);
                        }
                    }
                    Some(None) => {}
                    None => {
                        seen.insert(to, Some(path.len()));
                        let next = self.waits_for(to).collect();
                        path.push((to, next));
                    }
                }
            }
        }
        found
    }

    fn report(&mut self, circle: &[InputQueue]) {
        let names: Vec<String> = circle.iter().map(ToString::to_string).collect();
        let text = names.join(" -> ");
        tracing::error!(
            "deadlock in the fabric: packets in these buffers wait for each other: {text}"
        );
        if self.deadlocks.len() < KEPT {
            self.deadlocks.push(text);
        }
        let mut nics: Vec<usize> = circle.iter().map(|p| p.nic as usize).collect();
        nics.sort_unstable();
        nics.dedup();
        for nic in nics {
            self.nodes[nic].stats.deadlocks += 1;
            self.raise(nic, TE_XBAR_INPORT);
        }
        for &at in circle {
            self.input(at).reported = true;
            if let link @ 0..NP_BASE = at.port() {
                self.regs(at.nic as usize).inports[link].set_possible_deadlock();
            }
        }
    }

    /// Returns the first deadlocks that were found, each as a list of its input buffers.
    pub fn deadlocks(&self) -> &[String] {
        &self.deadlocks
    }
}

impl std::fmt::Display for InputQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let channel = channel_name(self.channel.into());
        let (nic, port) = (self.nic, self.port());
        match port {
            0..NP_BASE => write!(f, "{nic}:{port} {channel}.{}", self.dvc()),
            _ => write!(f, "{nic}:n {channel}"),
        }
    }
}
