//! Tests of the world: timers, set-up, power, back-pressure.

use super::*;
use crate::config::{ConfigFile, Overrides};

fn world(config: &str) -> (World, Rc<Cell<u64>>) {
    let file: ConfigFile = toml::from_str(config).unwrap();
    let fabric = Fabric::build(file, &Overrides::default(), std::path::Path::new("/d")).unwrap();
    let time = Rc::new(Cell::new(0));
    let world = World::new(&fabric, Clock::Manual(Rc::clone(&time)), Tracer::off()).unwrap();
    (world, time)
}

#[test]
fn timers_of_nics_fire_when_they_are_due() {
    let (mut w, time) = world("topology = \"pair\"");
    assert_eq!(w.next_deadline(), None, "no deadline is expected");
    // Configures a periodic timer interrupt every 1000 ticks of 10 ns (HW §4.1, G25), and enables
    // TE 7.
    w.poke(1, 0x10000, 1 << 7);
    w.poke(1, 0x8080, 1000 | (1 << 48));
    let at = w.next_deadline().unwrap();
    w.tick();
    assert_eq!(w.chip_counters(1).events[7], 0);
    time.set(at);
    w.tick();
    assert_eq!(w.chip_counters(1).events[7], 1);
    assert!(w.next_deadline().is_some_and(|next| next > at));
    w.poke(1, 0x8080, 0);
    assert_eq!(w.next_deadline(), None);
}

#[test]
fn set_up_can_come_late() {
    let (mut w, time) = world("topology = \"pair\"\n[setup]\ndelay-ms = 5");
    assert_eq!((w.peek(0, 0x8050), w.next_deadline()), (0, Some(5_000_000)));
    time.set(5_000_000);
    w.tick();
    assert_eq!((w.peek(0, 0x8050), w.peek(1, 0x8050)), (1, 1));
    w.reset(1, ResetKind::PowerOn);
    assert_eq!((w.peek(0, 0x8050), w.peek(1, 0x8050)), (1, 0));
    time.set(10_000_000);
    w.tick();
    assert_eq!((w.peek(1, 0x8050), w.next_deadline()), (1, None));
}

/// Maps the VELO requester of NIC 0 (HW §5). Enables network port and queue engine of both NICs.
/// Opens VPID 3 of NIC 1 with a mailbox of two slots, and VPID 4 with a mailbox of 2 + `more` slots
/// (HW §7, §9.7).
fn velo_pair(w: &mut World, more: u64) {
    const BAR0: u64 = 0x1000_0000;
    w.with_nic(0, |n, _| n.set_bar_address(0, BAR0));
    w.poke(0, 0x9218, (BAR0 + 0x400_0000) >> 12);
    w.poke(0, 0x9220, ((BAR0 + 0x200_0000) >> 12) - 1);
    w.poke(0, 0x9228, 0x4209);
    w.poke(0, 0x9290, 0x8088);
    for nic in 0..2 {
        w.poke(nic, 0x9418, 81);
        w.poke(nic, 0xC0_0000, 1);
        w.poke(nic, 0x120_1808, 1 << 9);
    }
    for (vpid, last) in [(3, 1), (4, 1 + more)] {
        w.poke(1, 0x120_1000 + 8 * vpid, 1 << 17);
        w.poke(1, 0xC0_0800 + 8 * vpid, last);
        w.poke(
            1,
            0xC0_1800 + 8 * vpid,
            3 | (last << 2) | (1 << 18) | (1 << 58),
        );
    }
}

/// Sends a message of 8 bytes from NIC 0 to a VPID of NIC 1.
fn velo_send(w: &mut World, vpid: u64) {
    let page = 0x0200_0000 + (5 << 12);
    let descriptor = 1u64 | (vpid << 16) | (8 << 48);
    w.with_nic(0, |n, env| {
        n.mmio_write(0, page, &descriptor.to_le_bytes(), env);
        n.mmio_write(0, page + 8, &[7; 8], env);
    });
    w.settle();
}

/// A full mailbox blocks the fabric and the senders. After the timeout that software has
/// programmed, it no longer blocks other messages, regardless of the number of messages in flight
/// to the full mailbox (HW §8, §9.6, G10).
#[test]
fn a_full_mailbox_stops_others_for_its_time_out_at_most() {
    let config = "topology = \"pair\"\n[nic]\nhold-timeout-unit-ns = 1000\ntx-queue-limit = 100";
    let (mut w, time) = world(config);
    velo_pair(&mut w, 6);
    w.poke(1, 0x120_1800, 0x1_0000_0020);
    let stored = |w: &mut World, vpid: u32| w.peek(1, 0xC0_2800 + 8 * vpid) >> 32;
    let mut sent = 0;
    while w.chip_counters(0).velo.retries == 0 {
        velo_send(&mut w, 3);
        sent += 1;
        assert!(sent < 10_000, "the sender is never held back");
    }
    assert_eq!(stored(&mut w, 3), 1);
    let under_way = w.network().node_stats(0).1;
    assert!(under_way > 64 * 1024, "{under_way} bytes are not stored");
    assert_eq!(w.chip_counters(1).drops.hold_limit, 0);
    // After a replay (HW §8), the requester accepts messages again, which wait behind the earlier
    // messages.
    w.poke(0, 0x100_0000 + 0x1000 * 5, 0);
    let waits = w.next_deadline().unwrap();
    assert_eq!(waits, 0x20 * 1000);
    time.set(waits - 1);
    w.tick();
    assert_eq!(w.chip_counters(1).drops.hold_limit, 0);
    time.set(waits);
    w.tick();
    while w.busy() {
        w.settle();
    }
    assert_eq!(w.chip_counters(1).events[21], 1);
    assert_eq!(w.chip_counters(1).drops.hold_limit, sent - 2);
    assert_eq!(w.network().node_stats(0).1, 0);
    velo_send(&mut w, 4);
    assert_eq!(stored(&mut w, 4), 1);
}

#[test]
fn requesters_see_messages_that_wait_elsewhere() {
    let (mut w, _) = world("topology = \"pair\"");
    let faults = |json: &str| serde_json::from_str::<Faults>(json).unwrap();
    velo_pair(&mut w, 1);
    w.set_faults(1, faults(r#"{"queue-full":[{"unit":"velo"}]}"#))
        .unwrap();
    w.set_faults(0, faults(r#"{"wcbuf-retry-waiting":2}"#))
        .unwrap();
    for _ in 0..5 {
        velo_send(&mut w, 3);
    }
    assert_eq!(
        w.chip_counters(1).velo.holding,
        3,
        "{:?}",
        w.chip_counters(0)
    );
    let velo = &w.chip_counters(0).velo;
    assert_eq!((velo.sent, velo.retries, velo.retry_drops), (3, 1, 2));
    // A NIC that loses power drops the messages that wait for its queues.
    w.set_power(1, false);
    assert_eq!(w.pressure.waiting(1, wire::ids::Unit::Velo, 3), 0);
}

#[test]
fn neighbours_hear_what_the_node_register_says() {
    let (mut w, _) = world("topology = \"pair\"");
    w.poke(1, 0x8008, (7 << 24) | 0x123456);
    w.poke(1, 0x460018, 3);
    let ids = w.peek(0, 0x460018);
    assert_eq!(
        ((ids >> 2) & 0xff_ffff, (ids >> 26) & 0xffff),
        (0x123456, 7)
    );
}

#[test]
fn a_power_cycle_leaves_no_trace() {
    let (mut w, _) = world("topology = \"ring:3\"");
    w.poke(1, 0x8058, 9);
    let before = w.network().links();
    w.set_power(1, false);
    assert_eq!((w.peek(1, 0x8058), w.is_on(1)), (u64::MAX, false));
    w.set_power(1, true);
    assert_eq!((w.peek(1, 0x8058), w.peek(1, 0x8050)), (0, 1));
    assert_eq!(w.network().links(), before);
    assert!(!w.busy());
}

/// Ending faults restores the configured latencies, limits and options; it does not set them to
/// their defaults.
#[test]
fn the_end_of_faults_restores_what_was_configured() {
    let (mut w, time) = world(
        r#"
        topology = "ring:3"
        [network]
        link-down = "hold"
        link = { bytes-per-second = 1000000000, corrupt-rate = 0.01 }
        [timing]
        model = "unkind"
        [nic]
        faults = { wcbuf-retry-waiting = 32 }
        "#,
    );
    let injected = |w: &World, nic: usize| w.slots[nic].nic.config().faults.clone();
    let (links, faults) = (w.network().links(), injected(&w, 0));
    assert!(links.iter().all(|l| l.knobs.latency_ns > 0));
    assert_eq!(faults.wcbuf_retry_waiting, Some(32));
    w.change_network(|net, trace| {
        for cable in 0..net.cable_count() {
            net.set_knobs(cable, crate::network::LinkKnobs::default());
        }
        net.set_link(0, false, Some(crate::network::DownPolicy::Drop), trace);
    });
    for nic in 0..3 {
        let deaf = Faults {
            deaf: true,
            ..Faults::default()
        };
        w.set_faults(nic, deaf).unwrap();
        w.set_frozen(nic, true);
    }
    w.set_power(1, false);
    w.end_faults();
    while w.busy() {
        w.settle();
    }
    assert!(!w.is_on(1), "power is not a fault that ends");
    w.set_power(1, true);
    time.set(1_000_000);
    w.tick();
    for nic in 0..3 {
        assert_eq!(injected(&w, nic), faults, "NIC {nic}");
        assert!(!w.network().is_frozen(nic));
    }
    assert_eq!(w.network().links(), links);
}

/// The registers of an accelerator node are reachable, regardless of the VPIDs that accept such
/// requests (G19).
#[test]
fn an_accelerator_takes_requests_for_registers() {
    let (mut w, _) = world("topology = \"pair\"\nnodes = 1\naccelerators = 1");
    for back in [false, true] {
        if back {
            w.reset(1, ResetKind::PowerOn);
        }
        assert_eq!(w.peek(1, 0x160_0800 + 8 * 252), 0xF523);
        assert_eq!(w.peek(0, 0x160_0800 + 8 * 252), 0, "for the driver to open");
        assert_eq!(w.chip_counters(1).bad_setup, 0);
    }
}
