//! Tests of the work of a correct driver with the drive.

use super::host::*;
use extoll_emulator::endpoint::nvme::command::{admin, io, Status};
use extoll_emulator::endpoint::nvme::regs;
use extoll_emulator::endpoint::Endpoint;

fn identify(h: &mut Host, what: u32, namespace: u32) -> Vec<u8> {
    let said = h.admin(Ask {
        opcode: admin::IDENTIFY,
        namespace,
        prp: [DATA, 0],
        dwords: [what, 0, 0, 0],
        ..Ask::default()
    });
    assert_eq!(said.status, Status::SUCCESS);
    h.get(DATA, 4096).to_vec()
}

#[test]
fn the_controller_goes_on_and_off() {
    let mut h = Host::new();
    assert_eq!((h.cfg_read(0), h.cfg_read(8)), (0x7E58_1CAD, 0x0108_0201));
    h.cfg_write(0x10, u32::MAX);
    assert_eq!(h.cfg_read(0x10), 0xFFFF_C004);
    h.place();
    assert_eq!(
        h.load(regs::CAP, 8),
        Some(regs::CAP_VALUE.to_le_bytes().to_vec())
    );
    assert_eq!((h.read(regs::VS), h.ready()), (0x10400, 0));
    h.enable();
    assert_eq!(h.ready(), regs::CSTS_READY);
    // While the controller is enabled, these registers do not change.
    h.write(regs::AQA, 0);
    assert_eq!(h.read(regs::AQA), 0x7_0007);
    let at = h.pairs[0].commands();
    assert_eq!(h.load(regs::ASQ, 8), Some(at.to_le_bytes().to_vec()));
    h.write(regs::CC, regs::CC_ENABLE | regs::CC_ENTRIES | (1 << 14));
    assert_eq!(h.ready(), regs::CSTS_READY | regs::CSTS_SHUT_DOWN);
    h.write(regs::CC, 0);
    assert_eq!((h.ready(), h.read(regs::AQA)), (0, 0x7_0007));
    h.enable();
    assert_eq!(h.ready(), regs::CSTS_READY);
}

#[test]
fn it_says_what_it_is() {
    let mut h = Host::new();
    h.enable();
    let controller = identify(&mut h, 1, 0);
    assert_eq!(controller[..4], [0xAD, 0x1C, 0xAD, 0x1C]);
    assert_eq!(&controller[4..24], b"00E00002            ");
    assert_eq!((controller[77], controller[111]), (5, 1));
    assert_eq!(controller[512..514], [0x66, 0x44]);
    assert!(controller[768..].starts_with(b"nqn."));
    let blocks = (DISK_MIB << 11).to_le_bytes();
    let namespace = identify(&mut h, 0, 1);
    assert_eq!((&namespace[..8], namespace[130]), (&blocks[..], 9));
    assert_eq!(identify(&mut h, 2, 0)[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(identify(&mut h, 2, 1)[..4], [0; 4]);
    let id = identify(&mut h, 3, 1);
    assert_eq!((id[0], id[1], &id[4..12]), (1, 8, &namespace[120..128]));
    // The health log reports a temperature of 300 K.
    let said = h.admin(Ask {
        opcode: admin::GET_LOG_PAGE,
        prp: [DATA + 0x800, 0],
        dwords: [2 | (127 << 16), 0, 0, 0],
        ..Ask::default()
    });
    assert_eq!(
        (said.status, h.get(DATA + 0x801, 2)),
        (Status::SUCCESS, &[44, 1][..])
    );
}

#[test]
fn features() {
    let mut h = Host::new();
    h.enable();
    let mut ask = |opcode, id, value| {
        let said = h.admin(Ask {
            opcode,
            dwords: [id, value, 0, 0],
            ..Ask::default()
        });
        (said.status, said.result)
    };
    let ok = |value| (Status::SUCCESS, value);
    // The drive has three pairs of queues. The number is encoded minus 1.
    assert_eq!(ask(admin::SET_FEATURES, 7, 0x00FE_00FE), ok(0x2_0002));
    assert_eq!(ask(admin::GET_FEATURES, 7, 0), ok(0x2_0002));
    assert_eq!(ask(admin::GET_FEATURES, 6, 0), ok(1));
    assert_eq!(ask(admin::SET_FEATURES, 6, 0), ok(0));
    assert_eq!(ask(admin::GET_FEATURES, 6, 0), ok(0));
    assert_eq!(ask(admin::GET_FEATURES, 6 | (1 << 8), 0), ok(1));
    assert_eq!(ask(admin::GET_FEATURES, 6 | (3 << 8), 0), ok(4));
    for (opcode, id, value, want) in [
        (admin::SET_FEATURES, 7, 0xFFFF, Status::FIELD),
        (admin::SET_FEATURES, 9, 4, Status::FIELD),
        (admin::SET_FEATURES, 2, 1, Status::FIELD),
        (admin::SET_FEATURES, 0x7F, 0, Status::FIELD),
        (admin::GET_FEATURES, 0, 0, Status::FIELD),
        (admin::GET_FEATURES, 6 | (5 << 8), 0, Status::FIELD),
        (admin::SET_FEATURES, 6 | (1 << 31), 0, Status::NOT_SAVEABLE),
    ] {
        assert_eq!(ask(opcode, id, value).0, want, "{opcode:x} {id:x}");
    }
    h.create(1);
    let again = h.admin(Ask {
        opcode: admin::SET_FEATURES,
        dwords: [7, 0, 0, 0],
        ..Ask::default()
    });
    assert_eq!(again.status, Status::SEQUENCE);
}

/// Blocks are written to the disk and read back, with all kinds of page lists and any credit of the
/// link.
#[test]
fn blocks_are_kept() {
    for credits in [1, 3, 64] {
        let mut h = Host::up();
        h.credits = credits;
        // Up to 128 KiB are transferred, with one page, two pages, a list, and a list that
        // continues in another page.
        for (seed, offset, n, list) in [
            (1, 0, 1, 0),
            (2, 0x200, 8, 0),
            (3, 0xFFC, 8, 0),
            (4, 0, 256, 0),
            (5, 0xE04, 256, 0xFE8),
            (6, 0x10, 249, 0xFF8),
            (7, 0, 17, 0xFF0),
        ] {
            let len = n as usize * 512;
            let want = pattern(seed, len);
            let pages: Vec<u64> = (1..33).map(|k| DATA + 2 * 4096 * k).collect();
            let place = |k: usize| match (k + offset) / 4096 {
                0 => DATA + (k + offset) as u64,
                page => pages[page - 1] + ((k + offset) % 4096) as u64,
            };
            for (k, byte) in want.iter().enumerate() {
                h.put_ram(place(k), &[*byte]);
            }
            let second = if len + offset <= 8192 {
                pages[0]
            } else {
                let room = (4096 - list) / 8;
                let needed = (len + offset).div_ceil(4096) - 1;
                if needed > room {
                    h.put_list(LIST + list as u64, &pages[..room - 1]);
                    h.put_list(LIST + 4088, &[LIST + 0x2000]);
                    h.put_list(LIST + 0x2000, &pages[room - 1..]);
                } else {
                    h.put_list(LIST + list as u64, &pages[..needed]);
                }
                LIST + list as u64
            };
            let prp = [DATA + offset as u64, second];
            let first = 5 * seed;
            let said = h.ask(1, blocks(io::WRITE, first, n, prp));
            assert_eq!(said.status, Status::SUCCESS, "{seed}");
            let from = (DATA - RAM) as usize;
            h.ram[from..].fill(0xEE);
            let said = h.ask(1, blocks(io::READ, first, n, prp));
            assert_eq!(said.status, Status::SUCCESS, "{seed}");
            let got: Vec<u8> = (0..len).map(|k| h.get(place(k), 1)[0]).collect();
            assert!(got == want, "{seed} with {credits}");
            // No byte outside the buffer was written.
            let touched = h.ram[from..].iter().filter(|b| **b != 0xEE).count();
            assert!(touched <= len, "{seed}: {touched}");
            let flush = Ask {
                opcode: io::FLUSH,
                namespace: u32::MAX,
                ..Ask::default()
            };
            assert_eq!(h.ask(1, flush).status, Status::SUCCESS);
        }
        let zero = blocks(io::WRITE_ZEROES, 0, 300, [0; 2]);
        assert_eq!(h.ask(1, zero).status, Status::SUCCESS);
        h.ask(1, blocks(io::READ, 35, 1, [DATA, 0]));
        assert_eq!(h.get(DATA, 512), [0; 512]);
        assert_eq!(h.lost, 0);
    }
}

/// Queues wrap, each completion has an interrupt, and several commands are in flight at a time.
#[test]
fn many_commands() {
    let mut h = Host::up();
    h.create(2);
    h.interrupts.clear();
    let mut done = 0;
    for round in 0..50u64 {
        for queue in [1, 2] {
            for k in 0..ENTRIES as u16 - 1 {
                let block = (round * 3 + u64::from(k)) % 64;
                h.put_ram(DATA + 512 * u64::from(k), &[block as u8; 512]);
                let opcode = if k % 2 == 0 { io::WRITE } else { io::READ };
                let mut ask = blocks(opcode, block, 1, [DATA + 512 * u64::from(k), 0]);
                ask.id = k;
                h.put(queue, ask);
            }
        }
        h.ring(1);
        h.ring(2);
        for queue in [1, 2] {
            let mut seen = 0u32;
            while let Some(said) = h.peek(queue) {
                assert_eq!(said.status, Status::SUCCESS);
                seen |= 1 << said.id;
                done += 1;
            }
            assert_eq!(seen, (1 << (ENTRIES - 1)) - 1, "{round}");
            h.taken(queue);
        }
    }
    assert_eq!(h.interrupts.len(), done);
    let of = |v| h.interrupts.iter().filter(|i| **i == v).count();
    assert_eq!((of(1), of(2)), (done / 2, done / 2));
}

/// Completions wait for free entries in their queue. Commands wait until these completions are
/// written.
#[test]
fn a_full_completion_queue() {
    let mut h = Host::up();
    let n = ENTRIES as u16 - 1;
    let flush = |id| Ask {
        opcode: io::FLUSH,
        namespace: 1,
        id,
        ..Ask::default()
    };
    for round in 0..2 {
        (0..n).for_each(|k| h.put(1, flush(round * n + k)));
        h.ring(1);
    }
    let mut ids = Vec::new();
    while let Some(said) = h.peek(1) {
        ids.push(said.id);
    }
    assert_eq!(
        ids,
        (0..n).collect::<Vec<_>>(),
        "one completion per free entry"
    );
    h.taken(1);
    while let Some(said) = h.peek(1) {
        ids.push(said.id);
    }
    assert_eq!(ids, (0..2 * n).collect::<Vec<_>>());
}

/// Without MSI-X, interrupts use MSI, and the controller's interrupt mask applies.
#[test]
fn plain_msi() {
    let mut h = Host::new();
    let (msix, msi) = (h.capability(0x11), h.capability(5));
    h.cfg_write(msix, 0);
    h.cfg_write(msi + 4, MSI as u32);
    h.cfg_write(msi + 12, 0x40);
    h.cfg_write(msi, 0x21 << 16);
    h.enable();
    h.create(1);
    h.interrupts.clear();
    let flush = Ask {
        opcode: io::FLUSH,
        namespace: 1,
        ..Ask::default()
    };
    h.ask(1, flush);
    assert_eq!(h.interrupts, [0x41]);
    h.write(regs::INTMS, 2);
    h.ask(1, flush);
    assert_eq!((h.interrupts.len(), h.read(regs::INTMS)), (1, 2));
    h.write(regs::INTMC, 2);
    assert_eq!((h.interrupts.len(), h.read(regs::INTMC)), (2, 0));
}

/// Commands that wait for an event never complete. The abort command aborts none of them.
#[test]
fn events_never_come() {
    let mut h = Host::new();
    h.enable();
    let event = Ask {
        opcode: admin::ASYNC_EVENT,
        id: 9,
        ..Ask::default()
    };
    for _ in 0..4 {
        h.put(0, event);
        h.ring(0);
        assert_eq!(h.peek(0), None);
    }
    assert_eq!(h.admin(event).status, Status::EVENT_LIMIT);
    let abort = Ask {
        opcode: admin::ABORT,
        ..Ask::default()
    };
    let said = h.admin(abort);
    assert_eq!((said.status, said.result), (Status::SUCCESS, 1));
}

/// The disk keeps its content when the function, the controller or the slot is reset. All other
/// state is lost.
#[test]
fn resets() {
    let want = pattern(1, 512);
    let mut h = Host::up();
    h.put_ram(DATA, &want);
    let write = blocks(io::WRITE, 7, 1, [DATA, 0]);
    assert_eq!(h.ask(1, write).status, Status::SUCCESS);
    for how in 0..3 {
        match how {
            0 => h.write(regs::CC, 0),
            1 => {
                let express = h.capability(0x10);
                h.cfg_write(express + 8, 0x8000);
            }
            _ => h.drive.reset(),
        }
        if how > 0 {
            assert_eq!((h.cfg_read(4) & 6, h.cfg_read(0x10)), (0, 4));
            h.place();
            assert_eq!(h.read(regs::AQA), 0);
        }
        assert_eq!(h.ready(), 0);
        h.enable();
        // After a reset, queues must be created again.
        h.create(1);
        h.put_ram(DATA, &[0; 512]);
        let read = blocks(io::READ, 7, 1, [DATA, 0]);
        assert_eq!(h.ask(1, read).status, Status::SUCCESS);
        assert_eq!(h.get(DATA, 512), want);
    }
}
