//! Delivery order of VELO messages. The messages of a VPID arrive in order (HW §9.1).
//!
//! The order includes messages of different traffic classes, and multicasts together with messages
//! to single nodes, although these use different channels and paths.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::rc::{Rc, Weak};

/// Sender of a message: index of the NIC, and VPID.
pub(super) type Source = (usize, u16);

/// A message in flight. It is dropped after it, or each copy of it, has been delivered or lost.
pub(super) struct Message {
    source: Source,
    /// Number of the message in sending order.
    number: u64,
    /// Destination node ID; `None` for a multicast.
    to: Option<u16>,
    /// NICs to which a multicast has been delivered.
    seen: RefCell<BTreeSet<usize>>,
}

#[derive(Default)]
struct Sent {
    /// Messages in flight to single nodes, by destination node.
    single: HashMap<u16, VecDeque<Weak<Message>>>,
    /// Length of `single` after nodes without messages in flight were last removed.
    kept: usize,
    multicasts: VecDeque<Weak<Message>>,
}

/// All messages in flight, by sender.
#[derive(Default)]
pub(super) struct Order(HashMap<Source, Sent>);

/// Removes messages that have been delivered from the front of `queue`.
fn prune(queue: &mut VecDeque<Weak<Message>>) {
    while queue.front().is_some_and(|m| m.strong_count() == 0) {
        queue.pop_front();
    }
}

impl Order {
    /// Registers a message that enters the network.
    pub(super) fn send(&mut self, source: Source, number: u64, to: Option<u16>) -> Rc<Message> {
        let message = Rc::new(Message {
            source,
            number,
            to,
            seen: RefCell::default(),
        });
        let sent = self.0.entry(source).or_default();
        if sent.single.len() > 2 * sent.kept + 64 {
            sent.single.retain(|_, queue| {
                prune(queue);
                !queue.is_empty()
            });
            sent.kept = sent.single.len();
        }
        let queue = match to {
            Some(node) => sent.single.entry(node).or_default(),
            None => &mut sent.multicasts,
        };
        prune(queue);
        queue.push_back(Rc::downgrade(&message));
        message
    }

    /// Returns true if all earlier messages of the sender of `message` to this NIC have been
    /// delivered.
    pub(super) fn is_next(&mut self, message: &Message, nic: usize, node: u16) -> bool {
        let Some(sent) = self.0.get_mut(&message.source) else {
            return true;
        };
        let before = |m: &Rc<Message>| m.number < message.number;
        if let Some(queue) = sent.single.get_mut(&node) {
            prune(queue);
            if queue
                .front()
                .and_then(Weak::upgrade)
                .is_some_and(|m| before(&m))
            {
                return false;
            }
        }
        // Multicasts stay in order without further checks, because they share a channel and a path.
        prune(&mut sent.multicasts);
        message.to.is_none()
            || !sent
                .multicasts
                .iter()
                .filter_map(Weak::upgrade)
                .any(|m| before(&m) && !m.seen.borrow().contains(&nic))
    }
}

impl Message {
    /// Records that NIC `nic` has received its copy if the message is a multicast.
    pub(super) fn delivered(&self, nic: usize) {
        if self.is_multicast() {
            self.seen.borrow_mut().insert(nic);
        }
    }

    /// Returns true if the message is a multicast.
    pub(super) fn is_multicast(&self) -> bool {
        self.to.is_none()
    }

    /// Returns true if both messages have the same sender.
    pub(super) fn same_source(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state that is kept for a sender depends on its messages in flight, not on the number of
    /// nodes.
    #[test]
    fn what_has_arrived_is_forgotten() {
        let mut order = Order::default();
        let kept = order.send((0, 9), 0, Some(7));
        for node in 0..=u16::MAX {
            drop(order.send((0, 9), u64::from(node) + 1, Some(node)));
        }
        let queues = &order.0[&(0, 9)].single;
        assert!(queues.len() <= 80, "{}", queues.len());
        assert!(queues.contains_key(&7));
        drop(kept);
    }

    #[test]
    fn a_message_waits_for_those_before_it_at_the_same_node() {
        let mut order = Order::default();
        let first = order.send((0, 9), 1, Some(5));
        let all = order.send((0, 9), 2, None);
        let last = order.send((0, 9), 3, Some(5));
        let elsewhere = order.send((0, 9), 4, Some(6));
        let other = order.send((0, 8), 5, Some(5));
        assert!(order.is_next(&first, 1, 5));
        assert!(!order.is_next(&all, 1, 5) && order.is_next(&all, 2, 6));
        assert!(!order.is_next(&last, 1, 5));
        assert!(!order.is_next(&elsewhere, 2, 6) && order.is_next(&other, 1, 5));
        drop(first);
        assert!(order.is_next(&all, 1, 5) && !order.is_next(&last, 1, 5));
        all.delivered(1);
        assert!(order.is_next(&last, 1, 5) && !order.is_next(&elsewhere, 2, 6));
        drop(all);
        assert!(order.is_next(&elsewhere, 2, 6));
    }
}
