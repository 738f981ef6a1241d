// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests of notification programs: addresses against HW §6.5, execution against the table, and
//! state of the ring.

#![allow(clippy::precedence)] // bit patterns as the reference writes them

use proptest::prelude::*;
use wire::ids::RegOffset;
use wire::snq::*;

/// Returns the value of a register in the test.
fn value(offset: RegOffset) -> u64 {
    0xDEAD_0000_0000 | u64::from(offset.get())
}

/// Executes the program of `event` by the rules of G4. Returns (pc, words) of each entry.
fn execute(ram: &[u64; 256], event: TriggerEvent) -> Vec<(u16, Vec<u64>)> {
    let mut words = [None; 7];
    let mut entries = Vec::new();
    let mut pc = event.number();
    for _ in 0..256 {
        let raw = InstructionWord(ram[usize::from(pc)]);
        match raw.opcode() {
            3 => {
                for k in 0..=u32::from(raw.len_minus_1()) {
                    let at = usize::from(raw.slot()) + k as usize;
                    words[at] = Some(value(RegOffset(8 * (raw.addr_div_8() + k))));
                }
            }
            6 => assert!(raw.emit()),
            4 | 1 => return entries,
            other => panic!("opcode {other} at {pc}"),
        }
        if raw.emit() {
            let n = usize::from(raw.words());
            let entry = words[..n]
                .iter()
                .map(|w| w.expect("unwritten word"))
                .collect();
            assert!(
                words[n..].iter().all(Option::is_none),
                "words beyond the entry"
            );
            entries.push((u16::from(pc), entry));
            words = [None; 7];
        }
        pc = raw.next();
        if pc == 255 {
            return entries;
        }
    }
    panic!("program of {event} does not end");
}

fn check(program: &Program, table: &[EventProgram]) {
    for event in TriggerEvent::ALL {
        let registers = table
            .iter()
            .find(|row| row.event == event)
            .map_or(&[][..], |row| row.registers);
        let entries = execute(program.words(), event);
        let want: Vec<Vec<u64>> = registers
            .chunks(7)
            .map(|part| part.iter().map(|r| value(*r)).collect())
            .collect();
        assert_eq!(
            entries.iter().map(|e| e.1.clone()).collect::<Vec<_>>(),
            want,
            "{event}"
        );
        assert_eq!(program.parts(event) as usize, want.len());
        for (part, (pc, _)) in entries.iter().enumerate() {
            let e = program
                .emission(*pc)
                .expect("emitting address is in the map");
            assert_eq!((e.event, usize::from(e.part)), (event, part));
            assert_eq!(Some(e.registers), registers.chunks(7).nth(part));
        }
    }
    let mapped = (0..1000)
        .filter(|pc| program.emission(*pc).is_some())
        .count();
    assert_eq!(
        mapped as u32,
        TriggerEvent::ALL
            .iter()
            .map(|e| program.parts(*e))
            .sum::<u32>()
    );
    let used = program.words().iter().filter(|w| **w != 0).count();
    assert_eq!(used, usize::from(program.used()));
}

#[test]
fn driver_program_records_what_its_table_says() {
    check(&TOURMALET, &TABLE);
    assert_eq!(TOURMALET.words()[255], 1 | 255 << 4);
}

#[test]
fn program_addresses_match_the_reference() {
    // Rows (pc, event, part, words) of every address that writes an entry.
    #[rustfmt::skip]
    let want: &[(u16, u8, u8, usize)] = &[
        (0, 0, 0, 1), (1, 1, 0, 1), (2, 2, 0, 1), (3, 3, 0, 1), (4, 4, 0, 1), (32, 5, 0, 7),
        (34, 5, 1, 6), (6, 6, 0, 1), (7, 7, 0, 1), (8, 8, 0, 1), (9, 9, 0, 1), (10, 10, 0, 3),
        (11, 11, 0, 1), (35, 12, 0, 1), (41, 13, 0, 7), (45, 13, 1, 4), (51, 14, 0, 7),
        (55, 14, 1, 4), (61, 15, 0, 7), (68, 15, 1, 7), (70, 15, 2, 2), (74, 16, 0, 5),
        (80, 17, 0, 7), (86, 20, 0, 7), (87, 21, 0, 2), (88, 22, 0, 4), (92, 23, 0, 4),
        (24, 24, 0, 5), (96, 25, 0, 4), (98, 27, 0, 7), (99, 27, 1, 2), (28, 28, 0, 1),
    ];
    for pc in 0..256 {
        let got = TOURMALET
            .emission(pc)
            .map(|e| (pc, e.event.number(), e.part, e.registers.len()));
        assert_eq!(got, want.iter().find(|w| w.0 == pc).copied(), "pc {pc}");
    }
}

#[test]
fn recorded_registers_match_the_reference() {
    let strided =
        |base: u32, stride: u32, n: u32| (0..n).map(|i| base + stride * i).collect::<Vec<_>>();
    let mut want: Vec<(u8, Vec<u32>)> = vec![
        (0, vec![0x850]),
        (1, vec![0x8028]),
        (2, vec![0x8028]),
        (3, vec![0x4780]),
        (4, vec![0x5408]),
        (6, vec![0x5A10]),
        (7, vec![0x8080]),
        (8, vec![0x9008]),
        (9, vec![0x92B8]),
        (10, vec![0x9300, 0x9308, 0x9310]),
        (11, vec![0xA000]),
        // The vendor's program reads the stale address 0x5810. Tourmalet's timeout register is at
        // 0xA010.
        (12, vec![0xA010]),
        (13, strided(0x400000, 0x4000, 11)),
        (14, strided(0x42C010, 0x40, 11)),
        (15, strided(0x440000, 0x1000, 16)),
        (16, vec![0x8050, 0x450000, 0x451000, 0x452000, 0x453000]),
        (17, strided(0x460008, 0x80, 7)),
        (20, strided(0x486110, 0x8000, 7)),
        (21, vec![0xC00000, 0xE00000]),
        (22, vec![0x1100008, 0x1100010, 0x1500008, 0x1500010]),
        (23, vec![0x1200020, 0x1200028, 0x1200030, 0x1200038]),
        (24, strided(0x1201810, 8, 5)),
        (25, vec![0x1600020, 0x1600028, 0x1600030, 0x1600038]),
        (28, vec![0x8050]),
    ];
    want.push((
        5,
        vec![
            0x5428, 0x5430, 0x5440, 0x5448, 0x5450, 0x5458, 0x5460, 0x5468, 0x5470, 0x5478, 0x5480,
            0x5490, 0x5498,
        ],
    ));
    want.push((
        27,
        vec![
            0x1601018, 0x1601020, 0x1601040, 0x1601048, 0x1601050, 0x1601070, 0x1601078, 0x1601080,
            0x1601088,
        ],
    ));
    want.sort();
    let got: Vec<(u8, Vec<u32>)> = TABLE
        .iter()
        .map(|row| {
            (
                row.event.number(),
                row.registers.iter().map(|r| r.get()).collect(),
            )
        })
        .collect();
    assert_eq!(got, want);
}

#[test]
fn instruction_words() {
    // The first instruction of event 5 reads two registers from 0x5428 on and continues at address
    // 32.
    let i = Instruction::decode(TOURMALET.words()[5]).unwrap();
    assert_eq!(
        (i.opcode, i.next, i.slot, i.len, i.addr),
        (Opcode::Read, 32, 0, 2, RegOffset(0x5428))
    );
    assert_eq!(i.to_string(), "read RF+0x5428 x2 -> word 0, next 32");
    // Encoding: opcode 3 | next 32 << 4 | slot 0 | (2-1) << 19 | 0x5428/8 << 22.
    assert_eq!(
        TOURMALET.words()[5],
        3 | 32 << 4 | 1 << 19 | (0x5428 / 8) << 22
    );
    // The last instruction of event 23 writes an entry of four words and ends.
    assert_eq!(TOURMALET.words()[92], 6 | 255 << 4 | 1 << 48 | 4 << 49);
    assert_eq!(Instruction::decode(0), Err(InstructionError::Opcode(0)));
    assert_eq!(
        Instruction::decode(3 | 1 << 12),
        Err(InstructionError::Reserved(1 << 12))
    );
    assert_eq!(
        Instruction::decode(3 | 6 << 16 | 1 << 19),
        Err(InstructionError::Overflow { slot: 6, len: 2 })
    );
}

#[test]
fn bad_tables() {
    const A: EventProgram = EventProgram {
        event: TriggerEvent::NwState,
        registers: &[RegOffset(8)],
        style: Style::Burst,
    };
    static TWICE: [EventProgram; 2] = [A, A];
    assert_eq!(
        assemble(&TWICE),
        Err(AssembleError::Duplicate(TriggerEvent::NwState))
    );
    static ODD: [EventProgram; 1] = [EventProgram {
        registers: &[RegOffset(12)],
        ..A
    }];
    assert_eq!(assemble(&ODD), Err(AssembleError::Register(RegOffset(12))));
    static FAR: [EventProgram; 1] = [EventProgram {
        registers: &[RegOffset::INVALID],
        ..A
    }];
    assert_eq!(
        assemble(&FAR),
        Err(AssembleError::Register(RegOffset::INVALID))
    );
    static LONG: [RegOffset; 300] = {
        let mut r = [RegOffset(0); 300];
        let mut i = 0;
        while i < 300 {
            r[i] = RegOffset(16 * i as u32);
            i += 1;
        }
        r
    };
    static TOO_LONG: [EventProgram; 1] = [EventProgram {
        registers: &LONG,
        ..A
    }];
    assert_eq!(assemble(&TOO_LONG), Err(AssembleError::TooLong));
    // 224 registers fit exactly: one at the event's own address, 223 at 32…254.
    static EXACT: [EventProgram; 1] = [EventProgram {
        registers: LONG.split_at(224).0,
        ..A
    }];
    let program = assemble(&EXACT).unwrap();
    assert_eq!(program.used(), 256);
    check(&program, &EXACT);
    static ONE_MORE: [EventProgram; 1] = [EventProgram {
        registers: LONG.split_at(225).0,
        ..A
    }];
    assert_eq!(assemble(&ONE_MORE), Err(AssembleError::TooLong));
}

#[test]
fn entries_are_right_aligned() {
    let e = Entry::with_words(&[1, 2, 3], Header(9));
    assert_eq!(e.payload, [0, 0, 0, 0, 1, 2, 3]);
    assert_eq!(e.words(3), [1, 2, 3]);
    assert_eq!(e.words(0), [0; 0]);
    assert_eq!(e.words(99), e.payload);
    // HW §6.5: vector i of events 23 and 25 is payload[3 + i].
    assert_eq!(
        Entry::with_words(&[10, 11, 12, 13], Header(0)).payload[3..],
        [10, 11, 12, 13]
    );
}

/// Model of the NIC's state of the ring, by G6.
struct Hardware {
    ring: Vec<Header>,
    wp: usize,
    flip: bool,
    rplt: usize,
    watermark: usize,
    armed: bool,
    msis: usize,
}

impl Hardware {
    fn evaluate(&mut self) {
        let n = self.ring.len();
        let distance = |x: usize| (x + 2 * n - self.rplt - 1) % n;
        if self.armed && distance(self.wp) >= distance(self.watermark) {
            self.armed = false;
            self.msis += 1;
        }
    }

    fn full(&self) -> bool {
        self.wp == self.rplt
    }

    fn write(&mut self, pc: u16) {
        assert!(!self.full());
        self.ring[self.wp] = Header(0).with_pc(pc).with_flip(self.flip);
        self.wp = (self.wp + 1) % self.ring.len();
        if self.wp == 0 {
            self.flip = !self.flip;
        }
        self.evaluate();
    }
}

#[test]
fn ring_bookkeeping_follows_the_hardware() {
    let ring = Ring::new(256, 0).unwrap();
    assert_eq!(
        (ring.rplt(), ring.watermark().raw(), ring.next()),
        (255, 0x10001, 0)
    );
    // After a restart, the write pointer may have any value.
    for wp in [0, 1, 5, 254, 255] {
        follow_the_hardware(wp);
    }
}

fn follow_the_hardware(wp: u16) {
    let mut ring = Ring::new(256, wp).unwrap();
    let mut hw = Hardware {
        ring: (0..256).map(|i| ring.blank(i)).collect(),
        wp: wp.into(),
        flip: true,
        rplt: ring.rplt().into(),
        watermark: ring.watermark().watermark().into(),
        armed: true,
        msis: 0,
    };
    let mut seed = 1u32;
    let (mut written, mut read) = (0u16, 0u16);
    for _ in 0..3000 {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let burst = if seed >> 30 == 0 {
            255
        } else {
            (seed >> 16) % 5 + 1
        };
        let before = hw.msis;
        for _ in 0..burst {
            if !hw.full() {
                hw.write(written % 0x1000);
                written = written.wrapping_add(1);
            }
        }
        assert_eq!(
            hw.msis,
            before + 1,
            "exactly one interrupt per burst after a re-arm"
        );
        while ring.is_valid(hw.ring[usize::from(ring.next())]) {
            assert_ne!(read, written, "wp {wp}: an entry that was never written");
            assert_eq!(hw.ring[usize::from(ring.next())].pc(), read % 0x1000);
            read = read.wrapping_add(1);
            ring.consume();
        }
        assert_eq!(read, written);
        hw.rplt = usize::from(ring.rplt());
        hw.watermark = usize::from(ring.watermark().watermark());
        hw.armed = true;
        hw.evaluate();
        // The watermark is the index after the next entry (HW §6.4).
        assert_eq!(hw.watermark, (hw.wp + 1) % 256);
    }
    assert_eq!(Ring::new(1, 0), None);
    assert_eq!(Ring::new(100, 0), None);
}

proptest! {
    #[test]
    fn entry_round_trip(words: [u64; 8]) {
        let e = Entry::from_words(words);
        prop_assert_eq!(e.to_words(), words);
        prop_assert_eq!(Entry::from_bytes(&e.to_bytes()), e);
    }

    #[test]
    fn instruction_round_trip(
        op in 0usize..4, next: u8, slot in 0u8..7, len in 1u8..=7, qw in 0u32..1 << 26,
        emit: bool, words in 0u8..=7,
    ) {
        let opcode = [Opcode::Idle, Opcode::Read, Opcode::NoProgram, Opcode::Emit][op];
        let len = len.min(7 - slot);
        let i = Instruction { opcode, next, slot, len, addr: RegOffset(qw * 8), emit, words };
        prop_assert_eq!(Instruction::decode(i.encode()), Ok(i));
    }

    #[test]
    fn random_words_decode_or_not_but_reencode_equal(raw: u64) {
        if let Ok(i) = Instruction::decode(raw) {
            prop_assert_eq!(i.encode(), raw);
        }
    }

    #[test]
    fn random_tables_execute_as_they_say(
        rows in prop::collection::btree_map(
            0u8..32, (prop::collection::vec(0u32..0x8000, 0..25), any::<bool>()), 0..8,
        ),
    ) {
        // Bursts read runs of adjacent registers. The values are therefore mapped to a few distinct
        // blocks.
        let table: Vec<EventProgram> = rows
            .into_iter()
            .map(|(event, (registers, burst))| {
                let mut last = 0;
                let registers: Vec<RegOffset> = registers
                    .into_iter()
                    .map(|r| {
                        last = if r % 3 == 0 { r * 8 } else { last + 8 };
                        RegOffset(last)
                    })
                    .collect();
                EventProgram {
                    event: TriggerEvent::from_number(event).unwrap(),
                    registers: registers.leak(),
                    style: if burst { Style::Burst } else { Style::Single },
                }
            })
            .collect();
        let table: &'static [EventProgram] = table.leak();
        match assemble(table) {
            Ok(program) => check(&program, table),
            Err(e) => prop_assert_eq!(e, AssembleError::TooLong),
        }
    }
}

#[test]
fn a_lost_entry_does_not_come_back_to_life() {
    const N: u16 = 8;
    let mut ring = Ring::new(N, 0).expect("ring");
    let mut memory = [Header(0); N as usize];
    for lap in 0..6u32 {
        for i in 0..N {
            let at = usize::from(ring.next());
            assert_eq!(ring.next(), i);
            assert!(
                !ring.is_valid(memory[at]),
                "lap {lap}: entry {i} before it is written"
            );
            if lap == 2 && i == 3 {
                // The write to memory is lost.
                memory[at] = ring.filler();
            } else {
                memory[at] = Header(0).with_ts(1).with_flip(lap % 2 == 0);
            }
            assert!(ring.is_valid(memory[at]));
            ring.consume();
        }
    }
}
