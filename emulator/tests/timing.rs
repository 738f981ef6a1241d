//! Tests of the timing model and of variants in a running emulator.

mod common;

use common::{Emu, Guest, DEADLINE};
use extoll_emulator::timing::TimingModel;
use std::process::Command;
use std::time::Instant;

fn receive(guest: &mut Guest) -> Vec<u8> {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some((_, data)) = guest.receive() {
            return data;
        }
        assert!(Instant::now() < end, "no message");
        std::thread::yield_now();
    }
}

#[test]
fn late_and_mixed_up_but_complete_and_free_when_idle() {
    let args = ["--topology", "pair", "--timing", "unkind", "--seed", "3"];
    let emu = Emu::start(&args);
    let (mut a, mut b) = (emu.guest(0), emu.guest(1));
    a.init();
    b.init();
    for i in 0..40u8 {
        a.send(1, false, false, &[i]);
        if i % 4 == 3 {
            for k in i - 3..=i {
                assert_eq!(
                    receive(&mut b),
                    [k],
                    "one VPID's messages in order (HW §9.1)"
                );
            }
            b.publish(false);
        }
    }
    let c = emu.counters();
    assert_eq!(c.nics[0].timing.packets_delayed, 40);
    assert!(c.nics[1].timing.writes_delayed >= 80, "{:?}", c.nics[1]);
    assert!(c.links[0].knobs.latency_ns >= 5_000);
    let status = emu.status();
    assert_eq!((status.timing, status.seed), (TimingModel::Unkind, 3));
    emu.wait_for_idle();
}

#[test]
fn a_variant_is_drawn_printed_and_repeatable() {
    let of = |args: &[&str]| {
        let emu = Emu::start(args);
        let mut guest = emu.guest(0);
        guest.init();
        emu.status().variant
    };
    let drawn = of(&["--seed", "11", "--variant", "auto"]);
    assert_eq!(of(&["--seed", "1", "--variant", "11"]), drawn);
    assert_ne!(drawn, "default");
    assert_eq!(
        of(&["--variant", &drawn]),
        drawn,
        "a printed variant can be passed back"
    );
    assert_eq!(of(&[]), "default");
    let run = |args: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_extoll-emu"))
            .args(args)
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (out.status.success(), text(out.stdout), text(out.stderr))
    };
    let (ok, covering, _) = run(&["variants", "--covering"]);
    assert!(ok);
    for line in covering.lines() {
        // The printed form omits switches with their default value.
        let shown = line.replace(",timing.model=ideal", "");
        assert_eq!(of(&["--variant", line]), shown);
    }
    let (ok, list, _) = run(&["variants"]);
    assert!(ok && list.contains("nic.full-rule=keep-one-free|flag-on-equal"));
    let (ok, _, why) = run(&["run", "--dir", "/nowhere", "--variant", "nic.colour=1"]);
    assert!(!ok && why.contains("nic.colour"), "{why}");
}
