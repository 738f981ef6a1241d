// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Index of intervals: finds an interval that covers a range, and intervals that overlap a range.
//!
//! The caller gives each interval a number and a space. They may overlap in any way, and several
//! may be equal. Each interval has a class. A search is limited to a set of classes. All memory is
//! allocated when the index is created. Every search takes logarithmic time for any set of
//! intervals, because the tree (AVL) is balanced. The bound is necessary because malicious
//! processes choose the addresses.

use crate::Memory;

/// Index that means no node.
const NONE: u16 = u16::MAX;
/// Upper bound for the height of a balanced tree of 2^16 nodes.
const HEIGHT: usize = 32;
/// Number of classes.
pub const CLASSES: usize = 4;

/// Interval of a space, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Interval {
    /// Space of the interval. Intervals of different spaces never overlap.
    pub space: u64,
    /// First address.
    pub first: u64,
    /// Last address, not less than the first.
    pub last: u64,
}

impl Interval {
    /// Creates an interval of `len` addresses from `first`. Returns `None` if `len` is 0 or the end
    /// exceeds the space.
    #[must_use]
    pub const fn new(space: u64, first: u64, len: u64) -> Option<Self> {
        let Some(more) = len.checked_sub(1) else {
            return None;
        };
        match first.checked_add(more) {
            Some(last) => Some(Self { space, first, last }),
            None => None,
        }
    }

    /// Returns a whole space.
    #[must_use]
    pub const fn all(space: u64) -> Self {
        Self {
            space,
            first: 0,
            last: u64::MAX,
        }
    }

    /// Returns the number of addresses. For a whole space of 2⁶⁴ addresses, it returns 2⁶⁴ − 1.
    #[must_use]
    pub const fn len(&self) -> u64 {
        (self.last - self.first).saturating_add(1)
    }

    /// Returns false, because an interval has at least 1 address.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Returns true if the interval contains all of `other`.
    #[must_use]
    pub const fn covers(&self, other: &Self) -> bool {
        self.space == other.space && self.first <= other.first && other.last <= self.last
    }

    /// Returns true if the intervals overlap.
    #[must_use]
    pub const fn meets(&self, other: &Self) -> bool {
        self.space == other.space && self.first <= other.last && other.first <= self.last
    }
}

/// Sort key of the nodes: space, first address, number.
type Key = (u64, u64, u16);
/// Highest last address of a set of intervals, by class.
type Reach = [Option<u64>; CLASSES];

#[derive(Clone, Copy)]
struct Node {
    interval: Interval,
    /// Class; [`CLASSES`] or more if the node is not in the tree.
    class: u8,
    height: u8,
    left: u16,
    right: u16,
    parent: u16,
    /// Highest last address of this node and all nodes below it, by class.
    reach: Reach,
}

impl Node {
    const UNUSED: Self = Self {
        interval: Interval {
            space: 0,
            first: 0,
            last: 0,
        },
        class: CLASSES as u8,
        height: 0,
        left: NONE,
        right: NONE,
        parent: NONE,
        reach: [None; CLASSES],
    };

    fn own(&self) -> Reach {
        let mut reach = [None; CLASSES];
        if let Some(own) = reach.get_mut(usize::from(self.class)) {
            *own = Some(self.interval.last);
        }
        reach
    }
}

/// Returns the highest address in `reach` of the classes in the bit set `classes`.
fn farthest(reach: &Reach, classes: u8) -> Option<u64> {
    let wanted = |(class, _): &(usize, &Option<u64>)| classes & (1 << class) != 0;
    let found = reach.iter().enumerate().filter(wanted);
    found.filter_map(|(_, last)| *last).max()
}

/// Index of intervals by number.
pub struct Intervals<M: Memory> {
    nodes: M::Array<Node>,
    root: u16,
}

impl<M: Memory> Intervals<M> {
    /// Creates an index for numbers below `capacity`. May sleep if the allocation of memory does.
    ///
    /// # Errors
    ///
    /// Returns the error of [`Memory::array`] if an allocation fails.
    pub fn new(capacity: u16) -> Result<Self, M::Error> {
        Ok(Self {
            nodes: M::array(usize::from(capacity), |_| Node::UNUSED)?,
            root: NONE,
        })
    }

    fn node(&self, at: u16) -> Option<&Node> {
        self.nodes.get(usize::from(at))
    }

    fn node_mut(&mut self, at: u16) -> Option<&mut Node> {
        self.nodes.get_mut(usize::from(at))
    }

    fn key(node: &Node, at: u16) -> Key {
        (node.interval.space, node.interval.first, at)
    }

    fn height(&self, at: u16) -> i32 {
        self.node(at).map_or(0, |n| i32::from(n.height))
    }

    /// Returns the left and right child of a node.
    fn children(&self, at: u16) -> (u16, u16) {
        self.node(at).map_or((NONE, NONE), |n| (n.left, n.right))
    }

    /// Computes the height and the reach of a node from its children. Returns the height of the
    /// left child minus the height of the right child.
    fn update(&mut self, at: u16) -> i32 {
        let (left, right) = self.children(at);
        let (l, r) = (self.height(left), self.height(right));
        let below = |at: u16| self.node(at).map_or([None; CLASSES], |n| n.reach);
        let (of_left, of_right) = (below(left), below(right));
        if let Some(node) = self.node_mut(at) {
            node.height = (l.max(r) + 1) as u8;
            node.reach = node.own();
            let sides = of_left.iter().zip(&of_right);
            for (all, (left, right)) in node.reach.iter_mut().zip(sides) {
                *all = (*all).max(*left).max(*right);
            }
        }
        l - r
    }

    /// Replaces `old` by `new` as the child of its parent.
    fn replace(&mut self, old: u16, new: u16) {
        let parent = self.node(old).map_or(NONE, |n| n.parent);
        match self.node_mut(parent) {
            Some(p) if p.left == old => p.left = new,
            Some(p) => p.right = new,
            None => self.root = new,
        }
        if let Some(n) = self.node_mut(new) {
            n.parent = parent;
        }
    }

    /// Makes `child` the left or right child of `parent`.
    fn attach(&mut self, parent: u16, child: u16, left: bool) {
        if let Some(p) = self.node_mut(parent) {
            if left {
                p.left = child;
            } else {
                p.right = child;
            }
        }
        if let Some(c) = self.node_mut(child) {
            c.parent = parent;
        }
    }

    /// Rotates a node with its left or right child. Returns the child, which is now above the node.
    fn rotate(&mut self, at: u16, left: bool) -> u16 {
        let side = |(l, r): (u16, u16)| if left { (l, r) } else { (r, l) };
        let (child, _) = side(self.children(at));
        let (_, inner) = side(self.children(child));
        self.replace(at, child);
        self.attach(at, inner, left);
        self.attach(child, at, !left);
        self.update(at);
        self.update(child);
        child
    }

    /// Balances the tree from a changed node up to the root.
    fn balance(&mut self, mut at: u16) {
        while self.node(at).is_some() {
            let lean = self.update(at);
            if lean.abs() > 1 {
                let left = lean > 0;
                let (l, r) = self.children(at);
                let child = if left { l } else { r };
                let (outer, inner) = match (left, self.children(child)) {
                    (true, (outer, inner)) => (outer, inner),
                    (false, (inner, outer)) => (outer, inner),
                };
                if self.height(inner) > self.height(outer) {
                    self.rotate(child, !left);
                }
                at = self.rotate(at, left);
            }
            at = self.node(at).map_or(NONE, |n| n.parent);
        }
    }

    /// Adds the interval with this number. Returns false, without a change, if the number is not
    /// below the capacity or is in use, or the class does not exist.
    pub fn insert(&mut self, number: u16, interval: Interval, class: u8) -> bool {
        let unused = |n: &Node| usize::from(n.class) >= CLASSES;
        if usize::from(class) >= CLASSES || !self.node(number).is_some_and(unused) {
            return false;
        }
        let new = Node {
            interval,
            class,
            ..Node::UNUSED
        };
        let key = Self::key(&new, number);
        let (mut parent, mut left, mut at) = (NONE, false, self.root);
        while let Some(node) = self.node(at) {
            (parent, left) = (at, key < Self::key(node, at));
            at = if left { node.left } else { node.right };
        }
        if let Some(node) = self.node_mut(number) {
            *node = new;
        }
        match parent {
            NONE => self.root = number,
            parent => self.attach(parent, number, left),
        }
        self.balance(number);
        true
    }

    /// Removes the interval with this number, if there is one.
    pub fn remove(&mut self, number: u16) {
        let in_tree = |n: &&Node| usize::from(n.class) < CLASSES;
        let Some(&Node {
            left,
            right,
            parent,
            ..
        }) = self.node(number).filter(in_tree)
        else {
            return;
        };
        let changed = if left == NONE || right == NONE {
            self.replace(number, if left == NONE { right } else { left });
            parent
        } else {
            // The next node in order replaces the removed node.
            let mut next = right;
            while self.children(next).0 != NONE {
                next = self.children(next).0;
            }
            let above = self.node(next).map_or(NONE, |n| n.parent);
            if next != right {
                self.replace(next, self.children(next).1);
                self.attach(next, right, false);
            }
            self.replace(number, next);
            self.attach(next, left, true);
            if next == right {
                next
            } else {
                above
            }
        };
        if let Some(node) = self.node_mut(number) {
            *node = Node::UNUSED;
        }
        self.balance(changed);
    }

    /// Returns the interval with this number.
    #[must_use]
    pub fn get(&self, number: u16) -> Option<Interval> {
        let node = self.node(number)?;
        (usize::from(node.class) < CLASSES).then_some(node.interval)
    }

    /// Returns the number of an interval in one of the `classes` (bit n: class n) that covers
    /// `range`. Prefers the interval with the highest last address.
    #[must_use]
    pub fn covering(&self, range: &Interval, classes: u8) -> Option<u16> {
        let low = (range.space, 0, 0);
        let high = (range.space, range.first, NONE);
        // Highest last address found so far, its node, and true if the address may belong to a node
        // below that node.
        let mut best: Option<(u64, u16, bool)> = None;
        let mut offer = |last: Option<u64>, at: u16, below: bool| {
            if let Some(last) = last.filter(|last| best.is_none_or(|b| *last > b.0)) {
                best = Some((last, at, below));
            }
        };
        let own = |at: u16| {
            let node = self.node(at)?;
            farthest(&node.own(), classes)
        };
        let all = |at: u16| farthest(&self.node(at)?.reach, classes);
        // Node at which the paths to `low` and `high` diverge.
        let mut split = self.root;
        while let Some(node) = self.node(split) {
            let key = Self::key(node, split);
            split = match () {
                () if key < low => node.right,
                () if key > high => node.left,
                () => break,
            };
        }
        offer(own(split), split, false);
        let (mut at, right) = self.children(split);
        while let Some(node) = self.node(at) {
            if Self::key(node, at) >= low {
                offer(own(at), at, false);
                offer(all(node.right), node.right, true);
                at = node.left;
            } else {
                at = node.right;
            }
        }
        at = right;
        while let Some(node) = self.node(at) {
            if Self::key(node, at) <= high {
                offer(own(at), at, false);
                offer(all(node.left), node.left, true);
                at = node.right;
            } else {
                at = node.left;
            }
        }
        let (last, mut at, below) = best.filter(|b| b.0 >= range.last)?;
        while below && own(at) != Some(last) {
            let (left, right) = self.children(at);
            at = if all(left) == Some(last) { left } else { right };
            self.node(at)?;
        }
        Some(at)
    }

    /// Returns the number of the interval with the lowest first address among those of all classes
    /// that overlap `range`.
    #[must_use]
    pub fn meeting(&self, range: &Interval) -> Option<u16> {
        const ALL: u8 = (1 << CLASSES) - 1;
        let low = (range.space, 0, 0);
        let high = (range.space, range.last, NONE);
        let (mut stack, mut depth) = ([NONE; HEIGHT], 0usize);
        let mut at = self.root;
        loop {
            while let Some(node) = self.node(at) {
                if farthest(&node.reach, ALL) < Some(range.first) {
                    break;
                }
                if Self::key(node, at) < low {
                    at = node.right;
                    continue;
                }
                *stack.get_mut(depth)? = at;
                depth += 1;
                at = node.left;
            }
            depth = depth.checked_sub(1)?;
            let found = *stack.get(depth)?;
            let node = self.node(found)?;
            if Self::key(node, found) > high {
                // All remaining intervals begin after the end of `range`.
                return None;
            }
            if node.interval.last >= range.first {
                return Some(found);
            }
            at = node.right;
        }
    }

    /// Checks the invariants, for tests. Returns the number of intervals.
    ///
    /// # Errors
    ///
    /// Returns a description of the violated invariant.
    pub fn check(&self) -> Result<usize, &'static str> {
        let (mut seen, mut before) = (0, None);
        // In-order traversal by the links to parents.
        let (mut at, mut from) = (self.root, NONE);
        while let Some(node) = self.node(at) {
            let (left, right) = (node.left, node.right);
            if from == node.parent && left != NONE {
                (from, at) = (at, left);
                continue;
            }
            if from == left || from == node.parent {
                let key = Self::key(node, at);
                if before.is_some_and(|before| before >= key) {
                    return Err("nodes are not in order");
                }
                before = Some(key);
                seen += 1;
                if seen > self.nodes.len() {
                    return Err("the tree has a circle");
                }
                if right != NONE {
                    (from, at) = (at, right);
                    continue;
                }
            }
            let (l, r) = (self.height(left), self.height(right));
            if (l - r).abs() > 1 || i32::from(node.height) != l.max(r) + 1 {
                return Err("the tree is not balanced");
            }
            let of = |at: u16| self.node(at).map_or([None; CLASSES], |n| n.reach);
            let (own, l, r) = (node.own(), of(left), of(right));
            let sides = l.iter().zip(&r).zip(&own);
            for (all, ((l, r), own)) in node.reach.iter().zip(sides) {
                if *all != (*own).max(*l).max(*r) {
                    return Err("the height or the reach of a node is wrong");
                }
            }
            (from, at) = (at, node.parent);
        }
        let used = |n: &&Node| usize::from(n.class) < CLASSES;
        if self.nodes.iter().filter(used).count() != seen {
            return Err("a node cannot be reached from the root");
        }
        Ok(seen)
    }
}
