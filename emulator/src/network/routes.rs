//! Computation of routes for a topology, as words for the routing tables. The forwarding code does
//! not depend on these routes.
//!
//! Grids use dimension order. Other shapes, and routes around dead cables, use shortest paths.
//! Multicasts use a spanning tree.
//!
//! Dimension order visits the dimensions in a fixed order, so packets on a mesh can't wait for each
//! other in a cycle. On the rings of a torus, they could. Two deterministic virtual channels
//! prevent that (MODEL decision; the chip has a related option: `force_dvc_to_zero`, HW §15.2).
//!
//! A packet that must still cross the wrap-around link of a ring uses channel 0; any other packet
//! uses channel 1. Along a ring, channel 0 waits for channel 1 at that link, and channel 1 never
//! waits for channel 0. Multicasts use a tree and a separate channel. Shortest paths on other
//! shapes can form cycles, which the deadlock detector reports.

use super::topology::{End, Topology, LINKS};
use std::collections::{BTreeMap, VecDeque};
use wire::ids::NodeId;
use wire::route::{McastEntry, OutPort, RouteEntry};

/// Multicast group that reaches every node (G21).
pub const BROADCAST_GROUP: u8 = 63;

/// Reason why routes cannot be computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("routing: {0}")]
pub struct RouteError(pub String);

/// Contents of the routing tables of one NIC.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tables {
    /// Words of the global routing table by index. Absent words are 0.
    pub grt: BTreeMap<u16, u64>,
    /// Words of the local routing table by index.
    pub lrt: BTreeMap<u16, u64>,
    /// Words of the multicast table of each crossbar inport, by group.
    pub mcast: Vec<BTreeMap<u16, u64>>,
}

/// Input of the route computation.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// Node ID of each NIC.
    pub ids: &'a [u16],
    /// Cables that must not be used.
    pub dead: &'a [(End, End)],
    /// Indices of the NICs in each multicast group. If group 63 is absent, it contains all NICs.
    pub groups: &'a BTreeMap<u8, Vec<usize>>,
    /// True to deliver a multicast to its sender, too.
    pub to_sender: bool,
}

/// Routes of a whole fabric.
pub struct Routes {
    ids: Vec<u16>,
    /// `first[to][from]`: link and virtual channel that NIC `from` uses towards NIC `to`. `None` if
    /// there is no path, or if `from` equals `to`.
    first: Vec<Vec<Option<(u8, u8)>>>,
    /// Link that each NIC uses towards a segment of node IDs, by segment.
    segment_first: BTreeMap<u8, Vec<Option<u8>>>,
    /// Links of the spanning tree at each NIC, with the NICs at their far ends.
    tree: Vec<Vec<(u8, usize)>>,
    groups: BTreeMap<u8, Vec<bool>>,
    to_sender: bool,
}

type Neighbours = Vec<[Option<End>; LINKS as usize]>;

impl Routes {
    /// Computes routes. Pairs of NICs without a path get no route. Two NICs in one segment of node
    /// IDs get no route if every path between them leaves the segment.
    ///
    /// # Errors
    ///
    /// If node IDs are reserved, duplicate or too few, or if a group member does not exist.
    pub fn compute(topology: &Topology, req: &Request<'_>) -> Result<Self, RouteError> {
        let n = topology.nodes;
        if req.ids.len() != n {
            return Err(RouteError(format!(
                "{} node IDs for {n} NICs",
                req.ids.len()
            )));
        }
        let mut seen = BTreeMap::new();
        for (nic, &id) in req.ids.iter().enumerate() {
            if NodeId(id).is_reserved() {
                return Err(RouteError(format!(
                    "node ID {id:#x} of NIC {nic} is reserved"
                )));
            }
            if let Some(other) = seen.insert(id, nic) {
                return Err(RouteError(format!(
                    "NICs {other} and {nic} both have node ID {id}"
                )));
            }
        }
        let mut neighbours = topology.neighbours();
        for &(a, b) in req.dead {
            for e in [a, b] {
                if let Some(slot) = neighbours
                    .get_mut(e.nic)
                    .and_then(|p| p.get_mut(usize::from(e.port)))
                {
                    *slot = None;
                }
            }
        }
        let segments: Vec<u8> = req.ids.iter().map(|&id| NodeId(id).segment()).collect();
        let one_segment = segments.windows(2).all(|w| w[0] == w[1]);
        let grid = !topology.dims.is_empty() && req.dead.is_empty() && one_segment;
        let first = (0..n)
            .map(|to| {
                if grid {
                    (0..n)
                        .map(|from| dimension_order(topology, from, to))
                        .collect()
                } else {
                    // Local tables route within a segment, so paths to a node must stay inside the
                    // node's segment.
                    let links = towards(&neighbours, &[to], |i| segments[i] == segments[to]);
                    links.into_iter().map(|l| l.map(|l| (l, 0))).collect()
                }
            })
            .collect();
        let mut segment_first = BTreeMap::new();
        for &s in &segments {
            segment_first.entry(s).or_insert_with(|| {
                let goal: Vec<usize> = (0..n).filter(|&i| segments[i] == s).collect();
                towards(&neighbours, &goal, |_| true)
            });
        }
        let mut groups: BTreeMap<u8, Vec<bool>> =
            BTreeMap::from([(BROADCAST_GROUP, vec![true; n])]);
        for (&g, members) in req.groups {
            let mut set = vec![false; n];
            for &m in members {
                *set.get_mut(m)
                    .ok_or_else(|| RouteError(format!("group {g}: there is no NIC {m}")))? = true;
            }
            if g >= 64 {
                return Err(RouteError(format!("group {g}: groups are 0…63")));
            }
            groups.insert(g, set);
        }
        let tree = spanning_forest(&neighbours);
        Ok(Self {
            ids: req.ids.to_vec(),
            first,
            segment_first,
            tree,
            groups,
            to_sender: req.to_sender,
        })
    }

    /// Returns the link that NIC `from` uses towards NIC `to`. Returns `None` if there is no path
    /// or if both are the same NIC.
    pub fn first_link(&self, from: usize, to: usize) -> Option<u8> {
        let (s, t) = (
            NodeId(self.ids[from]).segment(),
            NodeId(self.ids[to]).segment(),
        );
        if s == t {
            self.first[to][from].map(|(link, _)| link)
        } else {
            self.segment_first.get(&t)?[from]
        }
    }

    /// Returns the tables of NIC `nic`. The unicast tables are equal at all inports.
    pub fn tables(&self, nic: usize) -> Tables {
        let mut t = Tables::default();
        let my_segment = NodeId(self.ids[nic]).segment();
        let word = |port: Option<OutPort>| port.map(|p| RouteEntry::Port(p).encode().raw());
        for (to, &id) in self.ids.iter().enumerate() {
            let node = NodeId(id);
            if node.segment() == my_segment {
                let (port, dvc) = match self.first[to][nic] {
                    _ if to == nic => (OutPort::network(0), 0),
                    Some((link, dvc)) => (OutPort::link(link), dvc),
                    None => (None, 0),
                };
                let word = port.map(|p| RouteEntry::Port(p).encode().with_dvc(dvc).raw());
                t.lrt.extend(word.map(|w| (node.local(), w)));
            }
        }
        for (&s, first) in &self.segment_first {
            let w = if s == my_segment {
                Some(RouteEntry::Local.encode().raw())
            } else {
                word(first[nic].and_then(OutPort::link))
            };
            t.grt.extend(w.map(|w| (s.into(), w)));
        }
        t.mcast = (0..OutPort::COUNT)
            .map(|inport| self.multicast(nic, inport))
            .collect();
        t
    }

    fn multicast(&self, nic: usize, inport: u8) -> BTreeMap<u16, u64> {
        let from_host = inport >= LINKS;
        let mut table = BTreeMap::new();
        if !from_host && !self.tree[nic].iter().any(|(l, _)| *l == inport) {
            return table;
        }
        for (&g, members) in &self.groups {
            let mut entry = McastEntry::default();
            for &(link, far) in &self.tree[nic] {
                if link != inport && self.branch_has(far, nic, members) {
                    entry = OutPort::link(link).map_or(entry, |p| entry.with(p));
                }
            }
            if members[nic] && (!from_host || self.to_sender) {
                entry = OutPort::network(0).map_or(entry, |p| entry.with(p));
            }
            if entry.raw() != 0 {
                table.insert(g.into(), entry.raw());
            }
        }
        table
    }

    /// Returns true if the branch of the tree that begins at `at`, away from `behind`, contains a
    /// NIC of `members`.
    fn branch_has(&self, at: usize, behind: usize, members: &[bool]) -> bool {
        let mut stack = vec![(at, behind)];
        while let Some((i, from)) = stack.pop() {
            if members[i] {
                return true;
            }
            stack.extend(
                self.tree[i]
                    .iter()
                    .filter(|(_, far)| *far != from)
                    .map(|&(_, far)| (far, i)),
            );
        }
        false
    }
}

/// Returns the first link of every NIC towards the nearest NIC of `goal`. Paths use only NICs for
/// which `allowed` returns true. If several links are possible, returns the lowest number.
fn towards(
    neighbours: &Neighbours,
    goal: &[usize],
    allowed: impl Fn(usize) -> bool,
) -> Vec<Option<u8>> {
    let mut dist = vec![u32::MAX; neighbours.len()];
    let mut queue: VecDeque<usize> = goal.iter().copied().collect();
    for &g in goal {
        dist[g] = 0;
    }
    while let Some(i) = queue.pop_front() {
        for e in neighbours[i].iter().flatten() {
            if dist[e.nic] == u32::MAX && allowed(e.nic) {
                dist[e.nic] = dist[i] + 1;
                queue.push_back(e.nic);
            }
        }
    }
    let nearer = |i: usize| {
        let link = |(l, e): (usize, &Option<End>)| {
            e.filter(|e| dist[i] != 0 && dist[i] != u32::MAX && dist[e.nic] < dist[i])
                .map(|_| l as u8)
        };
        neighbours[i].iter().enumerate().find_map(link)
    };
    (0..neighbours.len()).map(nearer).collect()
}

/// Returns link and virtual channel of a route in dimension order. The lowest differing dimension
/// is first. On a ring, the shorter direction is used, and the upward direction if both are equally
/// long.
fn dimension_order(t: &Topology, from: usize, to: usize) -> Option<(u8, u8)> {
    let mut stride = 1;
    for d in &t.dims {
        let (a, b) = (from / stride % d.size, to / stride % d.size);
        if a != b {
            let up = (b + d.size - a) % d.size;
            let plus = if d.wraps { up <= d.size - up } else { b > a };
            // Channel 0 if the path must still cross the wrap-around link.
            let dvc = u8::from(!d.wraps || plus == (b > a));
            return Some((if plus { d.plus } else { d.minus }, dvc));
        }
        stride *= d.size;
    }
    None
}

/// Returns the tree links of every NIC. Each connected component has a separate tree.
fn spanning_forest(neighbours: &Neighbours) -> Vec<Vec<(u8, usize)>> {
    let mut tree = vec![Vec::new(); neighbours.len()];
    let mut seen = vec![false; neighbours.len()];
    for root in 0..neighbours.len() {
        if std::mem::replace(&mut seen[root], true) {
            continue;
        }
        let mut queue = VecDeque::from([root]);
        while let Some(i) = queue.pop_front() {
            for (link, e) in neighbours[i].iter().enumerate() {
                if let Some(e) = e.filter(|e| !seen[e.nic]) {
                    seen[e.nic] = true;
                    tree[i].push((link as u8, e.nic));
                    tree[e.nic].push((e.port, i));
                    queue.push_back(e.nic);
                }
            }
        }
    }
    tree
}
