//! Tests of the table of foreign MAC addresses.

mod heap;

use heap::Heap;
use protocol::eth::macs::{Bounds, Learned, Mac, Macs};
use protocol::Time;
use std::collections::HashMap;
use wire::ids::NodeId;

const BOUNDS: Bounds = Bounds {
    all: 16,
    of_node: 4,
    age: 1600,
};

fn macs() -> Macs<Heap> {
    Macs::new(BOUNDS).unwrap()
}

fn mac(n: u16) -> Mac {
    let [a, b] = n.to_be_bytes();
    [0x52, 0x54, 0, 0, a, b]
}

#[test]
fn an_address_is_where_it_was_heard_last() {
    let mut m = macs();
    assert_eq!(m.node(mac(1), Time(0)), None);
    assert_eq!(m.learn(mac(1), NodeId(3), Time(0)), Learned::New);
    assert_eq!(m.learn(mac(1), NodeId(3), Time(1)), Learned::Known);
    assert_eq!(m.node(mac(1), Time(2)), Some(NodeId(3)));
    assert_eq!(m.node(mac(2), Time(2)), None);
    // A virtual machine announces itself after a migration.
    assert_eq!(m.learn(mac(1), NodeId(5), Time(3)), Learned::New);
    assert_eq!(m.node(mac(1), Time(4)), Some(NodeId(5)));
    assert_eq!((m.of_node(NodeId(3)), m.of_node(NodeId(5))), (0, 1));
    m.clear();
    assert!(m.is_empty());
    assert_eq!(m.of_node(NodeId(5)), 0);
}

#[test]
fn silent_addresses_are_forgotten_and_others_are_not() {
    let mut m = macs();
    m.learn(mac(1), NodeId(1), Time(0));
    m.learn(mac(2), NodeId(1), Time(0));
    for at in (100..=3200).step_by(100) {
        assert_eq!(m.learn(mac(2), NodeId(1), Time(at)), Learned::Known, "{at}");
    }
    assert_eq!(m.node(mac(1), Time(3200)), None);
    assert_eq!(m.node(mac(2), Time(3200)), Some(NodeId(1)));
    // An expired address occupies no slot, even if it is never looked up.
    assert_eq!(m.len(), 1);
    // An expired address is learned again, even if it is the oldest address.
    assert_eq!(m.learn(mac(2), NodeId(1), Time(5000)), Learned::New);
    assert_eq!((m.len(), m.of_node(NodeId(1))), (1, 1));
}

#[test]
fn a_node_has_its_part_only() {
    let mut m = macs();
    m.learn(mac(100), NodeId(9), Time(0));
    for n in 0..4 {
        assert_eq!(m.learn(mac(n), NodeId(1), Time(1)), Learned::New);
    }
    for n in 4..1000 {
        assert_eq!(m.learn(mac(n), NodeId(1), Time(2)), Learned::Refused);
    }
    // A node with its maximum number of addresses cannot take over the address of another node
    // either.
    assert_eq!(m.learn(mac(100), NodeId(1), Time(3)), Learned::Refused);
    assert_eq!(m.node(mac(100), Time(4)), Some(NodeId(9)));
    assert_eq!(m.learn(mac(0), NodeId(1), Time(5)), Learned::Known);
    assert_eq!(m.len(), 5);
    // Expired addresses of the node do not count.
    assert_eq!(m.learn(mac(50), NodeId(1), Time(1700)), Learned::New);
}

#[test]
fn a_full_table_forgets_the_oldest() {
    let mut m = macs();
    for n in 0..16 {
        let node = NodeId(n / 4);
        assert_eq!(m.learn(mac(n), node, Time(n.into())), Learned::New);
    }
    assert_eq!(m.learn(mac(16), NodeId(4), Time(20)), Learned::New);
    assert_eq!(m.node(mac(0), Time(20)), None);
    assert_eq!(m.of_node(NodeId(0)), 3);
    assert_eq!(m.len(), 16);
}

/// Compares the table with a table without limits: known addresses and counts are correct.
#[test]
fn what_is_known_is_right() {
    let mut m = macs();
    let mut model: HashMap<Mac, (NodeId, u64)> = HashMap::new();
    let (mut seed, mut now) = (1u64, 0);
    let mut random = |n: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
        (seed >> 33) % n
    };
    for _ in 0..200_000 {
        now += random(40);
        let (address, node) = (mac(random(40) as u16), NodeId(random(6) as u16));
        match m.learn(address, node, Time(now)) {
            Learned::Refused => assert_eq!(m.of_node(node), BOUNDS.of_node),
            Learned::Known | Learned::New => {
                assert_eq!(m.node(address, Time(now)), Some(node));
                model.insert(address, (node, now));
            }
        }
        let asked = mac(random(40) as u16);
        if let Some(found) = m.node(asked, Time(now)) {
            let (node, heard) = model[&asked];
            assert_eq!(found, node);
            assert!(now - heard < BOUNDS.age);
        }
        let all: usize = (0..6).map(|n| usize::from(m.of_node(NodeId(n)))).sum();
        assert_eq!(all, m.len());
        assert!((0..6).all(|n| m.of_node(NodeId(n)) <= BOUNDS.of_node));
    }
}
