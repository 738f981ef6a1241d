//! Tests of errors of a driver, of missing memory, and of resets during work.

use super::host::*;
use extoll_emulator::endpoint::nvme::command::{admin, io, Status};
use extoll_emulator::endpoint::nvme::regs;
use extoll_emulator::endpoint::Endpoint;

fn queue(opcode: u8, number: u32, entries: u32, at: u64, second: u32) -> Ask {
    Ask {
        opcode,
        prp: [at, 0],
        dwords: [number | (entries.wrapping_sub(1) << 16), second, 0, 0],
        ..Ask::default()
    }
}

#[test]
fn admin_commands_have_the_specified_status() {
    use admin::*;
    let mut h = Host::up();
    let page = RAM + 0x8_0000;
    let identify = |what, namespace, prp| Ask {
        opcode: IDENTIFY,
        namespace,
        prp,
        dwords: [what, 0, 0, 0],
        ..Ask::default()
    };
    let log = |first, second, offset| Ask {
        opcode: GET_LOG_PAGE,
        prp: [DATA, 0],
        dwords: [first, second, offset, 0],
        ..Ask::default()
    };
    let opcode = |opcode| Ask {
        opcode,
        ..Ask::default()
    };
    let fused = Ask {
        flags: 1,
        ..opcode(ABORT)
    };
    let lists = Ask {
        flags: 0x40,
        ..identify(1, 0, [DATA, 0])
    };
    let cases = [
        (opcode(0x7F), Status::OPCODE),
        (opcode(0x18), Status::OPCODE),
        (fused, Status::FIELD),
        (lists, Status::FIELD),
        // Wrong number, size, vector, address, and order of queues.
        (queue(CREATE_CQ, 0, 8, page, 3), Status::QUEUE),
        (queue(CREATE_CQ, 1, 8, page, 3), Status::QUEUE),
        (queue(CREATE_CQ, 4, 8, page, 3), Status::QUEUE),
        (queue(CREATE_CQ, 0xFFFF, 8, page, 3), Status::QUEUE),
        (queue(CREATE_CQ, 2, 1, page, 3), Status::QUEUE_SIZE),
        (queue(CREATE_CQ, 2, 257, page, 3), Status::QUEUE_SIZE),
        (queue(CREATE_CQ, 2, 0x1_0000, page, 3), Status::QUEUE_SIZE),
        (queue(CREATE_CQ, 2, 8, page, 3 | (4 << 16)), Status::VECTOR),
        (
            queue(CREATE_CQ, 2, 8, page, 3 | (0xFFFF << 16)),
            Status::VECTOR,
        ),
        (queue(CREATE_CQ, 2, 8, page, 2), Status::FIELD),
        (queue(CREATE_CQ, 2, 8, page + 8, 3), Status::PRP_OFFSET),
        (queue(CREATE_SQ, 1, 8, page, 1 | (1 << 16)), Status::QUEUE),
        (queue(CREATE_SQ, 2, 8, page, 1), Status::COMPLETION_QUEUE),
        (
            queue(CREATE_SQ, 2, 8, page, 1 | (2 << 16)),
            Status::COMPLETION_QUEUE,
        ),
        (
            queue(CREATE_SQ, 2, 1, page, 1 | (1 << 16)),
            Status::QUEUE_SIZE,
        ),
        (queue(CREATE_SQ, 2, 8, page, 1 << 16), Status::FIELD),
        (queue(DELETE_SQ, 0, 1, 0, 0), Status::QUEUE),
        (queue(DELETE_SQ, 3, 1, 0, 0), Status::QUEUE),
        (queue(DELETE_SQ, 9999, 1, 0, 0), Status::QUEUE),
        (queue(DELETE_CQ, 0, 1, 0, 0), Status::QUEUE),
        (queue(DELETE_CQ, 2, 1, 0, 0), Status::QUEUE),
        (queue(DELETE_CQ, 1, 1, 0, 0), Status::QUEUE_DELETION),
        (identify(0, 0, [DATA, 0]), Status::NAMESPACE),
        (identify(0, 2, [DATA, 0]), Status::NAMESPACE),
        (identify(2, u32::MAX, [DATA, 0]), Status::NAMESPACE),
        (identify(0xFF, 1, [DATA, 0]), Status::FIELD),
        (identify(1, 0, [DATA + 2, 0]), Status::PRP_OFFSET),
        (identify(1, 0, [DATA + 4, 12]), Status::PRP_OFFSET),
        (log(0x55, 0, 0), Status::LOG_PAGE),
        (log(2 | (0xFFFF << 16), 0xFFFF, 0), Status::FIELD),
        (log(2, 0, 516), Status::FIELD),
        (log(2, 0, 2), Status::FIELD),
    ];
    for (k, (ask, want)) in cases.into_iter().enumerate() {
        assert_eq!(h.admin(ask).status, want, "{k}: {ask:x?}");
    }
    // In the right order, these commands succeed.
    for number in [DELETE_SQ, DELETE_CQ] {
        assert_eq!(h.admin(queue(number, 1, 1, 0, 0)).status, Status::SUCCESS);
    }
    assert_eq!(h.ready(), regs::CSTS_READY);
}

#[test]
fn io_commands_have_the_specified_status() {
    let mut h = Host::up();
    let all = DISK_MIB << 11;
    let data = [DATA, DATA + 0x1000];
    let of = |namespace, ask: Ask| Ask { namespace, ..ask };
    let cases = [
        (blocks(0x55, 0, 1, data), Status::OPCODE),
        (of(0, blocks(io::READ, 0, 1, data)), Status::NAMESPACE),
        (of(2, blocks(io::WRITE, 0, 1, data)), Status::NAMESPACE),
        (
            of(u32::MAX, blocks(io::READ, 0, 1, data)),
            Status::NAMESPACE,
        ),
        (of(2, blocks(io::FLUSH, 0, 1, data)), Status::NAMESPACE),
        (blocks(io::READ, all, 1, data), Status::RANGE),
        (blocks(io::READ, all - 1, 2, data), Status::RANGE),
        (blocks(io::WRITE, u64::MAX, 1, data), Status::RANGE),
        (
            blocks(io::WRITE_ZEROES, all - 1, 0x1_0000, data),
            Status::RANGE,
        ),
        (blocks(io::READ, 0, 257, data), Status::FIELD),
        (blocks(io::READ, 0, 1, [DATA + 1, 0]), Status::PRP_OFFSET),
        (blocks(io::READ, 0, 9, [DATA, DATA + 4]), Status::PRP_OFFSET),
        (
            blocks(io::WRITE, 0, 32, [DATA, LIST + 4]),
            Status::PRP_OFFSET,
        ),
        // These pointers lead to unmapped addresses.
        (blocks(io::WRITE, 0, 1, [NOWHERE, 0]), Status::TRANSFER),
        (blocks(io::WRITE, 0, 9, [DATA, NOWHERE]), Status::TRANSFER),
        (blocks(io::READ, 0, 32, [DATA, NOWHERE]), Status::TRANSFER),
        (blocks(io::WRITE, 0, 8, [!0xFFF, 0]), Status::TRANSFER),
        // The PRP list contains garbage.
        (blocks(io::READ, 0, 32, [DATA, LIST]), Status::PRP_OFFSET),
    ];
    h.put_list(LIST, &[DATA, DATA + 0x123]);
    let before = h.disk.clone();
    for (k, (ask, want)) in cases.into_iter().enumerate() {
        assert_eq!(h.ask(1, ask).status, want, "{k}: {ask:x?}");
    }
    drop(before);
    // Data that the drive writes to an unmapped address is lost. No status reports the loss.
    let said = h.ask(1, blocks(io::READ, 0, 1, [NOWHERE, 0]));
    assert_eq!((said.status, h.lost > 0), (Status::SUCCESS, true));
    assert_eq!(h.ready(), regs::CSTS_READY);
}

#[test]
fn absurd_registers() {
    let mut h = Host::new();
    // Writes doorbells of a disabled controller and of missing queues, and values beyond the
    // queues.
    h.write(regs::tail(0), 3);
    h.enable();
    for number in [0, 1, 5, 511] {
        for value in [ENTRIES, 0xFFFF, u32::MAX] {
            h.write(regs::tail(number), value);
            h.write(regs::head(number), value);
        }
    }
    // This doorbell write consumes a completion that does not exist.
    h.write(regs::head(0), 3);
    h.create(1);
    // These accesses are to parts of registers, and beyond all registers.
    h.store(regs::CC, &[0]);
    h.store(regs::CC + 1, &[0; 2]);
    assert_eq!(h.ready(), regs::CSTS_READY);
    assert_eq!(h.load(regs::BAR_SIZE, 4), None);
    assert_eq!(h.load(0x38, 16), Some(vec![0; 16]));
    h.write(regs::CC, 0);
    // These choices of page size, command set, arbitration and queue sizes are not supported.
    for (config, sizes) in [
        (1 << 7, 0x7_0007),
        (1 << 4, 0x7_0007),
        (1 << 11, 0x7_0007),
        (0, 0x7_0000),
        (0, 0x7),
    ] {
        h.write(regs::AQA, sizes);
        h.write(regs::CC, regs::CC_ENTRIES | config | regs::CC_ENABLE);
        assert_eq!(h.ready(), regs::CSTS_FATAL, "{config:x} {sizes:x}");
        h.write(regs::CC, 0);
        assert_eq!(h.ready(), 0);
    }
    // These sizes of queue entries are not supported.
    h.enable();
    h.write(regs::CC, regs::CC_ENABLE);
    let ask = queue(admin::CREATE_CQ, 1, 8, RAM, 3);
    assert_eq!(h.admin(ask).status, Status::QUEUE_SIZE);
}

/// A queue that the controller cannot read puts it into the fatal state until it is reset.
#[test]
fn queues_that_are_not_there() {
    let mut h = Host::new();
    h.enable();
    h.write(regs::CC, 0);
    h.write64(regs::ASQ, NOWHERE);
    h.write(regs::CC, regs::CC_ENTRIES | regs::CC_ENABLE);
    h.write(regs::tail(0), 1);
    assert_eq!(h.ready(), regs::CSTS_READY | regs::CSTS_FATAL);
    h.write(regs::tail(0), 2);
    h.write(regs::CC, 0);
    h.enable();
    h.create(1);
    let read = blocks(io::READ, 0, 1, [DATA, 0]);
    assert_eq!(h.ask(1, read).status, Status::SUCCESS);
}

/// A read that is never answered makes its command fail after a timeout.
#[test]
fn answers_that_never_come() {
    let mut h = Host::up();
    h.hold = true;
    h.put(1, blocks(io::WRITE, 0, 16, [DATA, DATA + 0x1000]));
    h.ring(1);
    assert!(h.release_one(), "the command");
    h.lose();
    let at = h.drive.next_deadline().unwrap();
    h.now = at - 1;
    h.tick();
    assert_eq!(h.peek(1), None);
    h.now = at;
    h.tick();
    assert_eq!(h.peek(1).map(|s| s.status), Some(Status::TRANSFER));
    h.taken(1);
    assert_eq!(h.drive.next_deadline(), None);
    h.release();
    // The device can read only while bus mastering is enabled.
    h.cfg_write(4, 2);
    h.put(1, blocks(io::READ, 0, 1, [DATA, 0]));
    h.ring(1);
    assert_eq!(h.drive.next_deadline(), None);
    h.cfg_write(4, 6);
    assert_eq!(h.peek(1).map(|s| s.status), Some(Status::SUCCESS));
    // The timeout also applies to reads of the submission queue.
    h.taken(1);
    h.hold = true;
    h.ring(1);
    h.put(1, blocks(io::READ, 0, 1, [DATA, 0]));
    h.ring(1);
    h.lose();
    h.now = h.drive.next_deadline().unwrap();
    h.tick();
    h.release();
    assert_eq!(h.ready() & regs::CSTS_FATAL, regs::CSTS_FATAL);
}

/// The controller, the function or a queue is reset after any number of answers. After the reset,
/// the interrupted work has no visible effect.
#[test]
fn resets_in_mid_io() {
    let list: Vec<u64> = (1..32).map(|k| DATA + 4096 * k).collect();
    for how in 0..3 {
        for steps in 0..60 {
            let mut h = Host::up();
            h.put_list(LIST, &list);
            h.hold = true;
            h.put(1, blocks(io::WRITE, 0, 256, [DATA, LIST]));
            h.put(1, blocks(io::READ, 256, 256, [DATA, LIST]));
            h.put(1, blocks(io::WRITE, 600, 8, [DATA, 0]));
            h.ring(1);
            for _ in 0..steps {
                h.release_one();
            }
            match how {
                0 => h.write(regs::CC, 0),
                1 => {
                    let express = h.capability(0x10);
                    h.cfg_write(express + 8, 0x8000);
                    h.place();
                }
                _ => {
                    h.put(0, queue(admin::DELETE_SQ, 1, 1, 0, 0));
                    h.ring(0);
                    while h.peek(0).is_none() {
                        assert!(h.release_one(), "{steps}");
                    }
                    h.taken(0);
                    h.release();
                }
            }
            if how == 2 {
                assert_eq!(
                    h.admin(queue(admin::DELETE_CQ, 1, 1, 0, 0)).status,
                    Status::SUCCESS
                );
                h.pairs.pop();
            } else {
                assert_eq!(h.ready(), 0);
                let before = h.ram.clone();
                let interrupts = h.interrupts.len();
                // Answers to requests that were sent before the reset have no effect.
                for _ in 0..3 {
                    h.release_one();
                }
                assert!(h.ram == before && h.interrupts.len() == interrupts);
                h.release();
                h.enable();
            }
            h.create(1);
            let want = pattern(steps, 512);
            h.put_ram(DATA, &want);
            assert_eq!(
                h.ask(1, blocks(io::WRITE, 900, 1, [DATA, 0])).status,
                Status::SUCCESS
            );
            h.put_ram(DATA, &[0; 512]);
            assert_eq!(
                h.ask(1, blocks(io::READ, 900, 1, [DATA, 0])).status,
                Status::SUCCESS
            );
            assert!(h.get(DATA, 512) == want, "{how} {steps}");
            assert_eq!(h.peek(1), None);
        }
    }
}

/// With random registers, doorbells, commands, lists and missing answers, the drive does not panic,
/// and a reset restores it.
#[test]
fn nonsense_breaks_nothing() {
    for seed in 1..60 {
        let mut rng = Rng(seed * 7919);
        let mut h = Host::up();
        let at = [
            0,
            RAM,
            DATA,
            LIST,
            LIST + 0xFF8,
            NOWHERE,
            MSI,
            u64::MAX - 7,
            !0xFFF,
        ];
        let address = |rng: &mut Rng| {
            let base = at[rng.below(at.len() as u64) as usize];
            base.wrapping_add([0, 0, 4, 0x1000, 0x234][rng.below(5) as usize])
        };
        for _ in 0..300 {
            match rng.below(12) {
                0 => {
                    let offset = rng.below(regs::BAR_SIZE / 4) * 4;
                    h.write(offset, rng.next() as u32);
                }
                1 => {
                    let offset = rng.below(0x40) & !3;
                    h.write(offset, rng.below(0x1_0000) as u32);
                }
                2 => {
                    let value = rng.below(u64::from(ENTRIES) + 1) as u32;
                    h.write(regs::DOORBELLS + 4 * rng.below(10), value);
                }
                3 => {
                    let entries: Vec<u64> = (0..8).map(|_| address(&mut rng)).collect();
                    h.put_list(LIST + 0xFC0 * rng.below(2), &entries);
                }
                4 => h.hold = !h.hold,
                5 => h.lose(),
                6 => {
                    h.now += rng.below(2_000_000_000);
                    h.tick();
                }
                7 => h.credits = 1 + rng.below(8) as usize,
                8 => {
                    h.load(rng.below(regs::BAR_SIZE), 1 + rng.below(8) as u32 % 4);
                }
                _ => {
                    let queue = rng.below(2) as usize;
                    let ask = Ask {
                        opcode: rng.below(14) as u8,
                        flags: if rng.below(8) == 0 {
                            rng.next() as u8
                        } else {
                            0
                        },
                        id: rng.next() as u16,
                        namespace: rng.below(3) as u32,
                        prp: [address(&mut rng), address(&mut rng)],
                        dwords: std::array::from_fn(|_| {
                            [rng.below(9), rng.next(), rng.below(512), 3 << 16]
                                [rng.below(4) as usize] as u32
                        }),
                    };
                    h.put(queue, ask);
                    h.ring(queue);
                }
            }
        }
        h.credits = 64;
        h.release();
        h.now += 10_000_000_000;
        h.tick();
        h.drive.reset();
        h.place();
        h.enable();
        h.create(1);
        let read = blocks(io::READ, 0, 256, [DATA, LIST]);
        let list: Vec<u64> = (1..32).map(|k| DATA + 4096 * k).collect();
        h.put_list(LIST, &list);
        assert_eq!(h.ask(1, read).status, Status::SUCCESS, "{seed}");
    }
}
