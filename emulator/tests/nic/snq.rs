//! Tests of the system notification queue: programs, ring, watermark and interrupts.

use super::rig::*;
use extoll_emulator::nic::{NicConfig, SnqRestart, Te};
use wire::ids::RegOffset;
use wire::regs::snq as regs;
use wire::snq::{Instruction, Opcode, TriggerEvent, TriggerMask, END, TABLE, TOURMALET};
use wire::velo::SlotSize;

fn fire(rig: &mut Rig, event: TriggerEvent) {
    rig.write(0, regs::TRIGGER_NOW, 1 << event.number());
}

/// Writes an instruction at address `pc` of the program memory.
fn instruction(rig: &mut Rig, pc: u32, i: Instruction) {
    rig.write(0, regs::program_ram(pc), i.encode());
}

fn read_op(next: u8, slot: u8, len: u8, addr: u32, emit: Option<u8>) -> Instruction {
    Instruction {
        opcode: Opcode::Read,
        next,
        slot,
        len,
        addr: RegOffset(addr),
        emit: emit.is_some(),
        words: emit.unwrap_or(0),
    }
}

#[test]
fn every_event_records_its_registers() {
    let mut rig = Rig::probed(1, SlotSize::B128);
    rig.write(0, regs::TRIGGER_ENABLE, 0xFFFF_FFFF);
    // Scratchpads and writable registers are set to recognisable values.
    for row in &TABLE {
        for at in row.registers {
            if !matches!(at.0, 0x8028 | 0x8080 | 0x8050) {
                rig.write(0, *at, (u64::from(at.0) << 8) | 1);
            }
        }
    }
    for row in &TABLE {
        let want: Vec<u64> = row.registers.iter().map(|at| rig.read(0, *at)).collect();
        fire(&mut rig, row.event);
        let entries = rig.snq_handle(0);
        let mut got = Vec::new();
        for e in &entries {
            let emission = TOURMALET.emission(e.header.pc()).expect("known address");
            assert_eq!(emission.event, row.event);
            let n = emission.registers.len();
            assert!(e.payload[..7 - n].iter().all(|w| *w == 0));
            got.extend_from_slice(e.words(n));
        }
        assert_eq!(
            entries.len(),
            row.registers.len().div_ceil(7),
            "{}",
            row.event
        );
        assert_eq!(got, want, "{}", row.event);
    }
    // Events without a program write no entry.
    for event in Te::ALL {
        if !TABLE.iter().any(|row| row.event == event) {
            fire(&mut rig, event);
            assert_eq!(rig.snq_handle(0).len(), 0, "{event}");
        }
    }
}

#[test]
fn vendor_layout_of_the_velo_vector() {
    // The vendor's program for TE 23 has three chained reads from address 89 on, then opcode 6 at
    // address 92 (HW §6.5).
    let mut rig = Rig::probed(1, SlotSize::B128);
    let at = 0x120_0020;
    instruction(&mut rig, 23, read_op(89, 0, 1, at, None));
    instruction(&mut rig, 89, read_op(90, 1, 1, at + 8, None));
    instruction(&mut rig, 90, read_op(91, 2, 1, at + 16, None));
    instruction(&mut rig, 91, read_op(92, 3, 1, at + 24, None));
    let emit = Instruction {
        opcode: Opcode::Emit,
        next: END,
        slot: 0,
        len: 1,
        addr: RegOffset(0),
        emit: true,
        words: 4,
    };
    instruction(&mut rig, 92, emit);
    let mut q = rig.open_velo(0, 254, SlotSize::B128, 1, 16);
    rig.velo_send(0, 254, (8 << 48) | (1 << 34) | (254 << 16), &[1; 8]);
    assert!(rig.velo_take(&mut q).is_some());
    let e = rig.snq_handle(0);
    assert_eq!(e.len(), 1);
    assert_eq!(e[0].header.pc(), 92);
    assert_eq!(
        e[0].payload,
        [0, 0, 0, 0, 0, 0, 1 << 62],
        "payload[3+i], bit j: VPID 64 i + j"
    );
    // The program's read has cleared the vector.
    assert_eq!(rig.read(0, RegOffset(at + 24)), 0);
}

#[test]
fn interrupts_and_entries_over_many_laps() {
    let mut rig = Rig::probed(1, SlotSize::B128);
    let mut rng = Rng(3);
    let (mut raised, mut seen) = (0u64, 0u64);
    while raised < 3000 {
        let burst = 1 + rng.below(40);
        for _ in 0..burst {
            raised += 1;
            rig.write(0, RegOffset(0x8050), raised);
        }
        assert_eq!(rig.msis(0), 1, "one interrupt per arming");
        // Pops all entries except a few, twice.
        let keep = rng.below(burst);
        for _ in keep..burst {
            let e = rig.snq_take(0).expect("entry");
            seen += 1;
            assert_eq!(e.words(1), [seen]);
        }
        rig.snq_ack(0);
        if keep > 0 {
            assert_eq!(rig.msis(0), 1, "armed while entries wait, so immediately");
            for _ in 0..keep {
                seen += 1;
                assert_eq!(rig.snq_take(0).expect("entry").words(1), [seen]);
            }
            rig.snq_ack(0);
        }
        assert_eq!(rig.msis(0), 0, "no entry waits");
        assert!(rig.snq_take(0).is_none());
    }
    assert_eq!(rig.nodes[0].nic.counters().snq_entries, raised);
    assert_eq!(rig.read(0, regs::QUEUE_WPLT), raised % 256);
}

#[test]
fn spurious_arming_is_harmless() {
    let mut rig = Rig::probed(1, SlotSize::B128);
    for _ in 0..5 {
        rig.snq_ack(0);
    }
    assert_eq!(rig.msis(0), 0);
    fire(&mut rig, Te::GpioIrq);
    assert_eq!(rig.msis(0), 1);
    assert_eq!(rig.snq_handle(0).len(), 1);
    // While the interrupt is disarmed, entries are written without interrupts.
    rig.write(0, regs::IRQ_WATERMARK, 0);
    fire(&mut rig, Te::GpioIrq);
    assert_eq!(rig.msis(0), 0);
    assert_eq!(rig.snq_handle(0).len(), 1);
}

#[test]
fn watermark_beyond_the_next_entry_waits_for_more() {
    let mut rig = Rig::probed(1, SlotSize::B128);
    rig.write(0, regs::IRQ_WATERMARK, 0x1_0000 | 5);
    for n in 1..=4 {
        fire(&mut rig, Te::GpioIrq);
        assert_eq!(rig.msis(0), 0, "after {n}");
    }
    fire(&mut rig, Te::GpioIrq);
    assert_eq!(rig.msis(0), 1);
}

#[test]
fn full_ring_holds_events_and_programs() {
    let mut rig = Rig::new(1);
    rig.start_snq(0, 4);
    for _ in 0..3 {
        fire(&mut rig, Te::GpioIrq);
    }
    // Only 3 of 4 entries can be used. An event with two entries needs two free entries.
    fire(&mut rig, Te::PcieBridgeError);
    fire(&mut rig, Te::TimerInterrupt);
    fire(&mut rig, Te::TimerInterrupt);
    assert_eq!(rig.nodes[0].nic.counters().snq_entries, 3);
    let first = rig.snq_take(0).expect("entry");
    assert_eq!(first.header.pc(), 8);
    rig.snq_ack(0);
    assert_eq!(
        rig.nodes[0].nic.counters().snq_entries,
        4,
        "first half only"
    );
    let mut pcs = Vec::new();
    loop {
        let entries = rig.snq_handle(0);
        if entries.is_empty() {
            break;
        }
        pcs.extend(
            entries
                .iter()
                .map(|e| TOURMALET.emission(e.header.pc()).expect("address")),
        );
    }
    let got: Vec<_> = pcs.iter().map(|e| (e.event, e.part)).collect();
    let want = [
        (Te::GpioIrq, 0),
        (Te::GpioIrq, 0),
        (Te::PcieBridgeError, 0),
        (Te::PcieBridgeError, 1),
        (Te::TimerInterrupt, 0),
    ];
    assert_eq!(got, want, "in order, and two pending equal events are one");
}

#[test]
fn lowest_event_first_and_disabled_ones_wait() {
    let mut rig = Rig::probed(1, SlotSize::B128);
    rig.write(0, regs::TRIGGER_ENABLE, 0);
    for event in [Te::NwState, Te::GpioIrq, Te::TimerInterrupt] {
        rig.with(0, |nic, env| nic.raise_event(event, env));
    }
    assert_eq!(rig.snq_handle(0).len(), 0);
    rig.write(0, regs::TRIGGER_ENABLE, TriggerMask::DEFAULT.raw());
    let pcs: Vec<_> = rig.snq_handle(0).iter().map(|e| e.header.pc()).collect();
    assert_eq!(pcs, [7, 8, 28]);
    // `trigger_now` does not raise disabled events.
    rig.write(0, regs::TRIGGER_ENABLE, 0);
    fire(&mut rig, Te::GpioIrq);
    rig.write(0, regs::TRIGGER_ENABLE, TriggerMask::DEFAULT.raw());
    assert_eq!(rig.snq_handle(0).len(), 0);
}

#[test]
fn once_means_once() {
    let mut rig = Rig::probed(1, SlotSize::B128);
    rig.write(0, regs::TRIGGER_ENABLE, 0);
    rig.write(0, regs::TRIGGER_ONCE_ENABLE, 1 << 8);
    assert_eq!(rig.read(0, regs::TRIGGER_ONCE), 1 << 8);
    rig.with(0, |nic, env| nic.raise_event(Te::GpioIrq, env));
    assert_eq!(rig.read(0, regs::TRIGGER_ONCE), 0);
    rig.with(0, |nic, env| nic.raise_event(Te::GpioIrq, env));
    assert_eq!(rig.snq_handle(0).len(), 1);
}

#[test]
fn restart_begins_a_first_lap() {
    for (rule, wp) in [(SnqRestart::ResetPointer, 0), (SnqRestart::KeepPointer, 5)] {
        let mut rig = Rig::with_config(
            1,
            NicConfig {
                snq_restart: rule,
                ..NicConfig::default()
            },
        );
        rig.start_snq(0, 256);
        for _ in 0..261 {
            fire(&mut rig, Te::GpioIrq);
            assert_eq!(rig.snq_handle(0).len(), 1);
        }
        rig.write(0, regs::EXECUTE, 0);
        assert_eq!(rig.read(0, regs::QUEUE_WPLT), wp);
        // An event that was pending while the SNQ was stopped is dropped when the SNQ starts.
        rig.with(0, |nic, env| nic.raise_event(Te::GpioIrq, env));
        rig.start_snq(0, 256);
        rig.msis(0);
        assert_eq!(rig.snq_handle(0).len(), 0);
        fire(&mut rig, Te::GpioIrq);
        assert_eq!(rig.msis(0), 1);
        assert_eq!(rig.snq_handle(0).len(), 1);
    }
}

#[test]
fn unwritten_words_are_zero_or_stale() {
    for stale in [false, true] {
        let mut rig = Rig::with_config(
            1,
            NicConfig {
                snq_stale_words: stale,
                ..NicConfig::default()
            },
        );
        rig.start_snq(0, 256);
        for k in 0..7 {
            rig.write(0, RegOffset(0x5428 + 8 * k), 0x55);
        }
        fire(&mut rig, Te::PcieBridgeError);
        rig.snq_handle(0);
        fire(&mut rig, Te::TimerInterrupt);
        let e = rig.snq_handle(0);
        assert_eq!(e[0].payload[..6].iter().any(|w| *w != 0), stale);
        assert_eq!(e[0].payload[6], 0);
    }
}

#[test]
fn broken_programs_end_with_a_diagnostic() {
    let mut rig = Rig::probed(1, SlotSize::B128);
    let cases = [
        (read_op(8, 0, 1, 0x8000, None).encode(), "does not end"),
        (0, "opcode 0"),
        (2, "opcode 2"),
        (
            read_op(END, 6, 4, 0x8000, Some(7)).encode(),
            "more than seven words",
        ),
    ];
    for (word, text) in cases {
        rig.write(0, regs::program_ram(8), word);
        rig.nodes[0].log.diagnostics.clear();
        rig.nodes[0].ram.now += 10_000_000_000;
        fire(&mut rig, Te::GpioIrq);
        assert!(
            rig.nodes[0]
                .log
                .diagnostics
                .iter()
                .any(|d| d.contains(text)),
            "{text}"
        );
    }
    // A loop that writes entries fills the ring and stops there.
    rig.write(
        0,
        regs::program_ram(8),
        read_op(8, 0, 1, 0x8000, Some(1)).encode(),
    );
    rig.snq_handle(0);
    fire(&mut rig, Te::GpioIrq);
    assert_eq!(rig.snq_handle(0).len(), 255);
    assert!(rig.snq_handle(0).len() > 200);
}

#[test]
fn ring_outside_memory_and_bus_master_off() {
    let mut rig = Rig::probed(1, SlotSize::B128);
    rig.write(0, regs::QUEUE_BALT, u64::MAX);
    fire(&mut rig, Te::GpioIrq);
    assert_eq!(rig.nodes[0].nic.counters().dma_faults, 1);
    rig.write(0, regs::QUEUE_BALT, RING >> 10);
    rig.nodes[0].nic.set_bus_master(false);
    rig.snq_ack(0);
    rig.msis(0);
    fire(&mut rig, Te::GpioIrq);
    assert_eq!(rig.msis(0), 0);
    assert!(rig.nodes[0].nic.counters().drops.bus_master_off >= 1);
}
