//! Tests of delays and orders inside the units, and of the random number generators.

use super::*;
use crate::nic::{Faults, QueueFull, QueueUnit};
use std::collections::BTreeSet;
use wire::atu::Command;
use wire::ids::BusAddr;
use wire::wcbuf::State;

const IDEAL: &str = "model = \"ideal\"";

/// Returns the order in which NIC `nic` serves eight VPIDs that all have a command.
fn turns(rig: &mut Rig, nic: usize) -> Vec<u64> {
    rig.world.set_frozen(nic, true);
    for vpid in 0..8 {
        let to = 1 - nic as u64;
        let word = 3 | (5 << 2) | (VPID << 8) | (to << 16) | (4 << 32);
        rig.store(nic, 0x400_0000 | (vpid << 12), &[word, 7, 0]);
    }
    rig.world.set_frozen(nic, false);
    let noti = |k: u64| rig.see(1 - nic, NOTIFICATIONS + 16 * k + 8);
    (0..8).map(|k| (noti(k) >> 23) & 0xFF).collect()
}

/// There is no order between VPIDs (G12, G28). Each run and each NIC draws a different order.
#[test]
fn every_run_and_every_nic_draws_its_own_order() {
    let of = |seed| {
        let mut rig = Rig::new(seed, IDEAL);
        [turns(&mut rig, 0), turns(&mut rig, 1)]
    };
    let runs: Vec<_> = (0..8).map(of).collect();
    let orders: BTreeSet<_> = runs.iter().flatten().collect();
    assert!(orders.len() >= 15, "{} of 16 differ", orders.len());
    assert_eq!(of(3), runs[3]);
}

/// A new seed reaches every generator, regardless of the run's first seed.
#[test]
fn a_new_seed_reaches_everything() {
    let order = |seed, new| {
        let mut rig = Rig::new(seed, IDEAL);
        rig.world.reseed(new);
        turns(&mut rig, 0)
    };
    assert_eq!(order(1, 7), order(2, 7));
    assert_ne!(order(1, 7), order(1, 8));
    let history = |seed, new| {
        let mut rig = Rig::new(seed, UNKIND);
        rig.world.reseed(new);
        history(&mut rig)
    };
    assert_eq!(history(1, 7), history(2, 7));
    assert_ne!(history(1, 7), history(1, 8));
    // The new seed must also reach the generators after a power cycle of the chip.
    let revived = |seed| {
        let mut rig = Rig::new(seed, IDEAL);
        rig.world.reseed(7);
        rig.world.set_power(0, false);
        rig.world.set_power(0, true);
        rig.ready(0);
        turns(&mut rig, 0)
    };
    assert_eq!(revived(1), revived(2));
}

/// A cached translation is not read from memory, so it pushes no writes (HW §11).
#[test]
fn a_cached_translation_reads_nothing() {
    for seed in 0..16 {
        let mut rig = Rig::new(seed, UNKIND);
        rig.translate();
        for k in 0..20 {
            rig.put(0, SOURCE, k + 1);
            rig.rma_te(2, 4, 8, [SOURCE, TARGET + 8 * k]);
        }
        while rig.step() {}
        let seen: Vec<_> = (0..20).map(|k| rig.see(1, TARGET + 8 * k) != 0).collect();
        assert_eq!(seen, [true; 20]);
        let stats = rig.world.timing_stats(1);
        let atu = &rig.world.chip_counters(1).atu;
        assert!(
            atu.tlb_hits >= 19 && stats.writes_delayed >= 20,
            "{stats:?}"
        );
        assert_eq!((stats.pushes, atu.stale_hits), (0, 0), "seed {seed}");
    }
}

/// Delivers to NIC 1 a packet of a translated PUT to the page [`TARGET`].
fn arrive(rig: &mut Rig) {
    let text = format!(
        r#"{{"kind":"rma","command":2,"src_node":0,"src_vpid":{VPID},"vpid":{VPID},"address":{TARGET},"mode":4,"data":"0000"}}"#
    );
    let packet = serde_json::from_str(&text).unwrap();
    rig.world.forge(1, &packet).unwrap();
}

/// A flush is complete when its notification arrives. Until then, the flushed translations may be
/// in use (HW §11.3).
#[test]
fn a_flush_takes_its_time() {
    let mut stale = 0;
    for seed in 0..64 {
        let mut rig = Rig::new(seed, UNKIND);
        rig.translate();
        let answer = 0x8000;
        rig.rma_te(2, 0, 8, [SOURCE, TARGET]);
        while rig.step() {}
        let page = TARGET >> 12;
        rig.put(1, 8 * page, 0);
        rig.store(1, 0xC008, &[(1 << 60) | page]);
        let notify = Command::Notify(BusAddr(answer)).encode().unwrap();
        rig.store(1, 0xC008, &[notify.raw()]);
        let mut used = 0;
        while rig.see(1, answer) == 0 {
            arrive(&mut rig);
            let now = rig.world.chip_counters(1).atu.stale_hits;
            stale += u64::from(now > used);
            used = now;
            // The arriving packet may have pushed the answer.
            if !rig.step() {
                break;
            }
        }
        assert_ne!(rig.see(1, answer), 0, "seed {seed}: no answer");
        arrive(&mut rig);
        assert_eq!(
            rig.world.chip_counters(1).atu.stale_hits,
            used,
            "seed {seed}: in use after the notification"
        );
    }
    assert!(stale > 32, "{stale}");
}

/// Returns the event and the number of VPIDs in the vector of each SNQ entry.
fn vectors(rig: &Rig) -> Vec<(u64, u32)> {
    let entry = |k: u64| RING + 64 * k;
    (0..)
        .map(entry)
        .take_while(|at| rig.see(1, at + 56) >> 63 != 0)
        .map(|at| {
            let event = (rig.see(1, at + 56) >> 48) & 0xFFF;
            let words = (3..7).map(|w| rig.see(1, at + 8 * w).count_ones());
            (event, words.sum())
        })
        .collect()
}

/// A program reads the vectors some time after the event, so one entry can report several VPIDs
/// (G4, G7).
#[test]
fn vectors_have_several_bits() {
    let run = |seed, timing| {
        let mut rig = Rig::new(seed, timing);
        rig.more_queues();
        for vpid in VPID..VPID + 3 {
            rig.velo_to(vpid, true, vpid);
            let word = 3 | (5 << 2) | (vpid << 8) | (1 << 16) | (4 << 32);
            rig.store(0, 0x480_0000 | (VPID << 12), &[word, 7, 0]);
        }
        while rig.step() {}
        let all = vectors(&rig);
        [23, 25].map(|te| {
            let bits = all.iter().filter(|(e, _)| *e == te).map(|(_, n)| *n);
            assert_eq!(bits.clone().sum::<u32>(), 3, "each once: {all:?}");
            bits.max()
        })
    };
    let several = |timing| {
        let runs: Vec<_> = (0..64).map(|seed| run(seed, timing)).collect();
        [0, 1].map(|i| runs.iter().filter(|r| r[i] > Some(1)).count())
    };
    let late = several(UNKIND);
    assert!(late.iter().all(|n| *n >= 8), "{late:?} of 64");
    assert_eq!(several("model = \"unkind\"\nevent-delay-ns = 0"), [0, 0]);
    assert_eq!(several(IDEAL), [0, 0]);
}

/// A requester's notification reports that a request was sent. It does not wait for writes of other
/// packets (HW §10.5, §17).
#[test]
fn a_requester_notification_waits_for_nobody() {
    let mut first = 0;
    for seed in 0..64 {
        let mut rig = Rig::new(seed, UNKIND);
        // NIC 0 sends a message to itself.
        rig.store(0, 0x200_0000 | (VPID << 12), &[(VPID << 16) | (8 << 48), 5]);
        rig.until(|r| r.world.chip_counters(0).velo.received == 1);
        let word = 3 | (5 << 2) | (VPID << 8) | (1 << 16) | (1 << 32);
        rig.store(0, 0x400_0000 | (VPID << 12), &[word, 7, 0]);
        rig.until(|r| r.see(0, NOTIFICATIONS + 8) != 0);
        first += u32::from(rig.message(0, 0).is_none());
    }
    assert!((4..=60).contains(&first), "{first} of 64");
}

/// Data arrives before its notification, even if the notification waited for a slot in its queue
/// (HW §10.8).
#[test]
fn a_notification_that_waited_comes_after_its_data() {
    let mut waited = 0;
    for seed in 0..200 {
        let mut rig = Rig::new(seed, UNKIND);
        let full = Faults {
            queue_full: vec![QueueFull {
                unit: QueueUnit::Rma,
                vpid: None,
                slots: None,
            }],
            ..Faults::default()
        };
        rig.world.set_faults(1, full).unwrap();
        rig.put(0, SOURCE, 5);
        rig.rma(2, 0, 4, 8, [SOURCE, TARGET]);
        rig.until(|r| r.world.chip_counters(1).rma.held == 1);
        waited += u32::from(rig.see(1, TARGET) == 0);
        rig.world.set_faults(1, Faults::default()).unwrap();
        rig.until(|r| r.see(1, NOTIFICATIONS + 8) != 0);
        assert_eq!(rig.see(1, TARGET), 5, "seed {seed}");
    }
    assert!(waited > 100, "{waited} of 200 were still to be written");
}

/// With `push = "bridge"`, a register may report a write that has not reached the bridge. The
/// guaranteed orders hold nevertheless.
#[test]
fn a_read_may_push_only_what_has_come_to_the_bridge() {
    let mut early = 0;
    for seed in 0..64 {
        let mut rig = Rig::new(seed, &format!("{UNKIND}\npush = \"bridge\""));
        rig.velo(VPID, 0, false, 4);
        let mut raw = [0; 8];
        while u64::from_le_bytes(raw) >> 32 == 0 {
            assert!(rig.step());
            let register = 0xC0_2800 + 8 * VPID;
            assert!(rig.world.load(1, 0, register, &mut raw));
        }
        early += u32::from(rig.message(1, 0).is_none());
        rig.until(|r| r.message(1, 0) == Some(4));
    }
    assert!((16..64).contains(&early), "{early} of 64");
}

/// A command counts as committed after it has left the requester. Until then, the toggles differ
/// (HW §8).
#[test]
fn a_command_counts_when_it_has_left() {
    let mut late = 0;
    for seed in 0..64 {
        let mut rig = Rig::new(seed, UNKIND);
        rig.velo(VPID, 0, false, 1);
        let state = |r: &mut Rig| State(r.world.peek(0, 0x100_0000 + 0x1000 * VPID as u32));
        late += u32::from(state(&mut rig).committed_count() == 0);
        while rig.step() {}
        assert_eq!(state(&mut rig), State(0).with_committed_count(1));
    }
    assert!(late > 48, "{late} of 64");
}

/// Configured options of a NIC stay. Values for the other options are drawn for each NIC.
#[test]
fn units_have_times_and_sizes_of_their_own() {
    let build = |text: &str, cli: &[&str]| {
        let file: ConfigFile = toml::from_str(text).unwrap();
        let words: Vec<_> = cli.iter().map(|w| (*w).to_owned()).collect();
        let overrides = Overrides {
            nic: crate::config::nic_options(&words).unwrap(),
            ..Overrides::default()
        };
        let fabric = Fabric::build(file, &overrides, std::path::Path::new("/d")).unwrap();
        let nics: Vec<_> = fabric.nics.into_iter().map(|n| n.nic).collect();
        nics
    };
    let unkind = "topology = \"ring:8\"\n[timing]\nmodel = \"unkind\"\n";
    let late = format!("topology = \"ring:8\"\n[timing]\n{UNKIND}\n");
    let nics = build(&late, &[]);
    let limits: BTreeSet<_> = nics.iter().map(|n| n.tx_queue_limit).collect();
    assert!(limits.len() > 4 && limits.iter().all(|n| (16..=128).contains(n)));
    let seeds: BTreeSet<_> = nics.iter().map(|n| n.seed).collect();
    assert_eq!(seeds.len(), 8);
    assert!(nics
        .iter()
        .all(|n| n.snq_program_ns > 0 && n.rma_begin_ns > 0));
    let given = build(&late, &["wc-commit-ns=0", "tx-queue-limit=4096"]);
    assert!(given
        .iter()
        .all(|n| (n.wc_commit_ns, n.tx_queue_limit) == (0, 4096)));
    let file = format!("{unkind}commit-delay-ns = 7\n[nic]\natu-command-ns = 9\n[override-nic.1]\nnic = {{ wc-commit-ns = 5 }}");
    let nics = build(&file, &[]);
    assert_eq!((nics[0].wc_commit_ns, nics[1].wc_commit_ns), (7, 5));
    assert!(nics.iter().all(|n| n.atu_command_ns == 9));
    let ideal = build("", &[]);
    assert!(ideal
        .iter()
        .all(|n| (n.wc_commit_ns, n.tx_queue_limit) == (0, 4096)));
    let with_seed = |seed| build(&format!("[nic]\nseed = {seed}"), &[])[1].seed;
    assert_ne!(with_seed(5), with_seed(6));
}

/// The order covers requests of one VPID in one class (HW §10.8). A response to a local VPID does
/// not wait for requests that the remote VPID with the same number sends in the class of the
/// response.
#[test]
fn a_response_passes_a_put_of_the_same_number() {
    let mut first = 0;
    for seed in 0..32 {
        let timing = "model = \"unkind\"\ndma-delay-ns = 2000000\nstretch-every = 0";
        let mut rig = Rig::new(seed, timing);
        rig.put(1, SOURCE, 7);
        rig.put(1, SOURCE + 8, 8);
        // NIC 1 sends a PUT in class 1, which is the class of responses to requests in class 0.
        let word = 3 | (2 << 2) | (VPID << 8) | (7 << 40);
        rig.store(1, 0x410_0000 | (VPID << 12), &[word, SOURCE, TARGET]);
        rig.until(|r| r.world.chip_counters(0).dma_writes == 1);
        rig.rma(0, 0, 0, 8, [SOURCE + 8, TARGET + 8]);
        rig.until(|r| r.see(0, TARGET) != 0 || r.see(0, TARGET + 8) != 0);
        first += u32::from(rig.see(0, TARGET) == 0);
        while rig.step() {}
        assert_eq!((rig.see(0, TARGET), rig.see(0, TARGET + 8)), (7, 8));
    }
    assert!((4..=24).contains(&first), "{first} of 32");
}
