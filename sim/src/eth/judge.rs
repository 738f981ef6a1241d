//! Checks of the invariants.

use super::traffic::{pattern, word};
use super::{Announced, Fate, Got, Rig, BOUND, LATE, MS, SETTLE};
use crate::eth::node::Report;
use crate::eth::setup::{LIMITS, PERIODS};
use anyhow::Result;

impl Rig {
    /// Returns true if a frame that `from` submits now must reach `to`.
    pub(super) fn is_demanded(&self, from: usize, to: usize) -> bool {
        let now = self.fabric.now();
        if self.forged[from][to] || self.hostile[from] || self.hostile[to] {
            return false;
        }
        if self.healthy[from] && self.healthy[to] {
            return true;
        }
        // After a fault, only the first frame must arrive. It shows the other nodes that the fault
        // has ended.
        let well =
            |n: usize| self.ill[n] == 0 && (self.healthy[n] || now >= self.healed[n] + SETTLE);
        let alone = !self.open.iter().any(|id| {
            let f = &self.frames[*id as usize];
            (f.from, f.to) == (from, to) && now < f.at + LIMITS.timeout + BOUND
        });
        well(from) && well(to) && alone
    }

    /// Processes and checks the reports of a node.
    pub(super) fn collect(&mut self, node: usize) -> Result<()> {
        let now = self.fabric.now();
        for report in std::mem::take(&mut self.nodes[node].reports) {
            self.say(|| match &report {
                Report::Delivered { from, data } => {
                    let id = word(data, 16);
                    format!("node {node}: delivered frame {id} of node {from}")
                }
                other => format!("node {node}: {other:?}"),
            });
            match report {
                Report::Sent { id } => {
                    let frame = &mut self.frames[id as usize];
                    (frame.fate, frame.sent) = (Fate::Sent, now);
                }
                Report::Announced { id, address } => {
                    let frame = &mut self.frames[id as usize];
                    (frame.fate, frame.sent) = (Fate::Announced, now);
                    let entry = Announced {
                        id,
                        at: now,
                        fetched: None,
                        flushed: false,
                    };
                    if let Some(old) = self.announced.insert((node, address), entry) {
                        self.check_reuse(&old)?;
                    }
                }
                Report::Dropped { id, peer } => {
                    self.open.remove(&id);
                    let frame = &mut self.frames[id as usize];
                    frame.fate = Fate::Dropped;
                    let (from, to, demanded) = (frame.from, frame.to, frame.demanded);
                    // Other nodes may block a healthy peer for a while, but then a frame is
                    // outstanding.
                    anyhow::ensure!(
                        !demanded || (peer && self.owes(from, to)),
                        "frame {id} was dropped, though its peer is healthy and has no frame open"
                    );
                    self.not_taken(from, to);
                }
                Report::Ended { address, fetched } => {
                    if let Some(a) = self.announced.get_mut(&(node, address)) {
                        let frame = &mut self.frames[a.id as usize];
                        if fetched {
                            a.fetched.get_or_insert(now);
                            if now - a.at >= LIMITS.lag {
                                // The sender may reuse the frame's memory at once.
                                self.lagged.insert((node, frame.to), now);
                            }
                        }
                        if fetched {
                            frame.fetched.get_or_insert(now);
                        }
                        if fetched && frame.demanded {
                            anyhow::ensure!(
                                frame.fate == Fate::Delivered || frame.at + BOUND > now,
                                "frame {} ended late and undelivered",
                                a.id
                            );
                        }
                    }
                }
                Report::Delivered { from, data } => self.delivered(node, from.into(), &data)?,
                Report::Get {
                    from,
                    address,
                    local,
                } => {
                    self.check_get(node, local)?;
                    self.check_announced(node, from.into(), address)?;
                    let got = Got {
                        at: now,
                        flushed: false,
                    };
                    self.gets.insert((node, local), got);
                }
                Report::Got { local } => {
                    self.gets.remove(&(node, local));
                }
                Report::Refused { from } => {
                    let from = usize::from(from);
                    let both = self.healthy[node]
                        && self.healthy.get(from) == Some(&true)
                        && !self.forged[from][node];
                    anyhow::ensure!(!both, "node {node} refused a frame of node {from}");
                }
            }
        }
        Ok(())
    }

    /// Returns true if a drop is justified. A drop is justified if a frame from `from` to `to` is
    /// stalled, or was given up and `to` has not posted a GET since. It is also justified if `to`
    /// recently fetched a frame late.
    fn owes(&self, from: usize, to: usize) -> bool {
        let now = self.fabric.now();
        let between = self.announced.iter().filter(|((node, _), a)| {
            *node == from && self.frames[a.id as usize].to == to && !a.flushed
        });
        let last = between.clone().filter_map(|(_, a)| a.fetched).max();
        let lagged = self.lagged.get(&(from, to));
        if lagged.is_some_and(|at| at + LIMITS.lag_hold + OVERDUE > now) {
            return true;
        }
        let waits = |a: &Announced| a.fetched.is_none() && a.at + LIMITS.lag <= now;
        if between.clone().any(|(_, a)| waits(a)) {
            return true;
        }
        between
            .filter(|(_, a)| a.fetched.is_none() && a.at + LIMITS.stall <= now)
            .any(|(_, a)| {
                let given_up = a.at + LIMITS.timeout;
                now < given_up + OVERDUE || last.is_none_or(|last| last < given_up + OVERDUE)
            })
    }

    /// Checks that memory of an earlier announcement may be reused.
    fn check_reuse(&self, old: &Announced) -> Result<()> {
        let now = self.fabric.now();
        let frame = &self.frames[old.id as usize];
        let ended = frame.fate == Fate::Delivered
            || old.fetched.is_some()
            || self.hostile[frame.to]
            || self.forged[frame.to][frame.from];
        anyhow::ensure!(
            ended || now + LATE >= old.at + kept(old.flushed),
            "memory of frame {} is used again {} ms after it was announced, and it was never fetched",
            old.id,
            (now - old.at) / MS
        );
        Ok(())
    }

    /// Checks that no GET may still write to memory that is used now.
    pub(super) fn check_get(&mut self, node: usize, address: u64) -> Result<()> {
        let now = self.fabric.now();
        if let Some(got) = self.gets.remove(&(node, address)) {
            anyhow::ensure!(
                now + LATE >= got.at + kept(got.flushed),
                "memory of node {node} is used again {} ms after a GET that was never answered",
                (now - got.at) / MS
            );
        }
        Ok(())
    }

    /// Checks that `node` fetches memory that `from` has announced to it and still keeps.
    fn check_announced(&self, node: usize, from: usize, address: u64) -> Result<()> {
        let now = self.fabric.now();
        // A third node may have reported the GET in the name of this node.
        let trusted = self.hostile.get(from) == Some(&false)
            && !self.hostile[node]
            && !self.forged[from][node]
            && !self.forged[node][from];
        if !trusted || now < self.forgotten[from] {
            return Ok(());
        }
        let announced = self.announced.get(&(from, address));
        let kept = announced.is_some_and(|a| {
            self.frames[a.id as usize].to == node
                && now <= a.at + LIMITS.timeout + LIMITS.quarantine
        });
        anyhow::ensure!(
            kept,
            "node {node} fetches memory that node {from} may have reused"
        );
        Ok(())
    }

    fn delivered(&mut self, node: usize, from: usize, data: &[u8]) -> Result<()> {
        let now = self.fabric.now();
        // No invariant holds for announcements of a hostile node, which may repeat announcements
        // that others sent to it.
        if self.hostile.get(from) != Some(&false) || self.hostile[node] || self.forged[from][node] {
            return Ok(());
        }
        // Memory announced before a reboot has lost its contents.
        let excused = now < self.forgotten[from];
        let id = word(data, 16);
        let checked = self.check_frame(node, from, id, data);
        if excused && checked.is_err() {
            return Ok(());
        }
        checked?;
        self.check_order(id)?;
        self.open.remove(&id);
        if let Some(frame) = self.frames.get_mut(id as usize) {
            frame.fate = Fate::Delivered;
        }
        self.summary.delivered += 1;
        self.arrived(from, node)
    }

    /// Checks the order of a flow. A frame may overtake an earlier announced one only if that one
    /// has stalled or its sender knows that it was fetched.
    fn check_order(&self, id: u64) -> Result<()> {
        let frame = &self.frames[id as usize];
        let (from, to) = (frame.from, frame.to);
        if !(self.healthy[from] && self.healthy[to]) || self.forged[from][to] {
            return Ok(());
        }
        for before in self.open.range(..id) {
            let other = &self.frames[*before as usize];
            let same = (other.from, other.to, other.flow) == (from, to, frame.flow);
            let stalls = other.sent + LIMITS.stall <= frame.sent;
            let fetched = other.fetched.is_some_and(|at| at <= frame.sent);
            anyhow::ensure!(
                !same || stalls || fetched || other.fate == Fate::Queued,
                "frame {id} has overtaken frame {before} of its flow"
            );
        }
        Ok(())
    }

    fn check_frame(&self, node: usize, from: usize, id: u64, data: &[u8]) -> Result<()> {
        let Some(frame) = self.frames.get(id as usize) else {
            anyhow::bail!(
                "node {node} got {} bytes that are no frame of node {from}",
                data.len()
            );
        };
        anyhow::ensure!(
            (frame.from, frame.to, frame.len as usize) == (from, node, data.len()),
            "node {node} got frame {id} of node {} to node {} from node {from}, {} of {} bytes",
            frame.from,
            frame.to,
            data.len(),
            frame.len
        );
        anyhow::ensure!(data == pattern(id, data.len()), "frame {id} was altered");
        anyhow::ensure!(frame.fate != Fate::Delivered, "frame {id} came twice");
        Ok(())
    }

    /// Checks a node that has read messages. No message may stay in its mailbox for a long time,
    /// whatever other nodes leave unanswered.
    pub(super) fn check_unread(&mut self, node: usize) -> Result<()> {
        let now = self.fabric.now();
        let well = self.ill[node] == 0 && now >= self.healed[node] + SETTLE;
        let backlog = self.nodes[node].backlog_of_messages(&mut self.fabric);
        let read = self.delivered_before[0][node].saturating_sub(backlog as u64);
        let unread = &mut self.unread[node];
        while unread.front().is_some_and(|(count, _)| *count <= read) {
            unread.pop_front();
        }
        if !(well || self.healthy[node]) {
            unread.clear();
        }
        let since = unread.front().map_or(now, |(_, at)| *at);
        anyhow::ensure!(
            now - since < LONGEST_UNREAD,
            "a message of node {node} has been in the mailbox for {} ms",
            (now - since) / MS
        );
        Ok(())
    }

    /// Checks that frames between healthy nodes arrive in time. No frame of a healthy node may wait
    /// long for a slot, whatever its target.
    pub(super) fn check_bound(&self) -> Result<()> {
        let now = self.fabric.now();
        for id in &self.open {
            let f = &self.frames[*id as usize];
            let stopped = f.fate == Fate::Queued && self.healthy[f.from];
            anyhow::ensure!(
                !stopped || now < f.at + LONGEST_STOP,
                "frame {id} of node {} has waited for a slot for {} ms",
                f.from,
                (now - f.at) / MS
            );
            anyhow::ensure!(
                !f.demanded
                    || matches!(f.fate, Fate::Delivered | Fate::Dropped)
                    || now < f.at + BOUND,
                "frame {id} of node {} has not reached node {} after {} ms, though both are well; it is {:?}",
                f.from,
                f.to,
                (now - f.at) / MS,
                f.fate
            );
        }
        Ok(())
    }

    pub(super) fn check_end(&mut self) -> Result<()> {
        self.check_bound()?;
        for node in &self.nodes {
            anyhow::ensure!(node.is_idle(), "node {} still waits at the end", node.nic);
            let scratch = usize::from(node.is_up());
            anyhow::ensure!(
                node.pool.used() == scratch,
                "node {} lost {} buffers",
                node.nic,
                node.pool.used() - scratch
            );
        }
        Ok(())
    }
}

/// Maximum time in ns for which the frame queue may be stopped.
const LONGEST_STOP: u64 = 10 * LIMITS.stall;

/// Time in ns after which an overdue frame is given up.
const OVERDUE: u64 = 5 * PERIODS.busy + LATE;

/// Maximum time in ns for which a message may be in a mailbox.
const LONGEST_UNREAD: u64 = LIMITS.patience + 2 * LIMITS.stall;

/// Returns the minimum time in ns for which memory without a notification is kept. For memory of a
/// closed port it starts at the close.
fn kept(flushed: bool) -> u64 {
    match flushed {
        true => LIMITS.quarantine,
        false => LIMITS.timeout + LIMITS.quarantine,
    }
}
