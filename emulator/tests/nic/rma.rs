//! Tests of RMA: transfers, notifications word by word, errors, translation, locks and remote
//! registers.

use super::rig::*;
use extoll_emulator::nic::{Faults, NicConfig, UnalignedQw};
use wire::ids::{NodeId, RegOffset, Vpid};
use wire::regs::{rma as regs, wcbuf};
use wire::rma::{
    fragments, last_fragment_len, last_fragment_start, Command, Descriptor, Modifiers,
    Notification, NotificationType, NotifySpec, Operation, PageOptions,
};
use wire::velo::SlotSize;

pub const ALL: NotifySpec = NotifySpec {
    requester: true,
    responder: true,
    completer: true,
};
pub const PLAIN: PageOptions = PageOptions {
    traffic_class: 0,
    rra: false,
    irq: false,
    translate: false,
};
const IRQ: PageOptions = PageOptions { irq: true, ..PLAIN };

pub fn desc(node: u16, vpid: u8, notify: NotifySpec, op: Operation) -> Descriptor {
    Descriptor {
        node: NodeId(node),
        vpid: Vpid::from(vpid),
        notify,
        modifiers: Modifiers::NONE,
        op,
    }
}

pub fn get(len: u32, remote: u64, local: u64) -> Operation {
    Operation::Get {
        qw: false,
        len,
        remote,
        local,
    }
}

pub fn put(len: u32, local: u64, remote: u64) -> Operation {
    Operation::Put {
        qw: false,
        len,
        local,
        remote,
    }
}

/// Nodes 0 and 1, on which VPID 5 (node 0) and VPID 6 (node 1) are open, with their queues and 64
/// KiB of memory each.
pub struct Pair {
    pub rig: Rig,
    pub q0: Queue,
    pub q1: Queue,
    pub m0: u64,
    pub m1: u64,
}

impl Pair {
    pub fn new() -> Self {
        Self::with_config(NicConfig::default())
    }

    pub fn with_config(cfg: NicConfig) -> Self {
        let mut rig = Rig::with_config(2, cfg);
        rig.probe_all(SlotSize::B128);
        let q0 = rig.open_rma(0, 5, 2, 256);
        let q1 = rig.open_rma(1, 6, 2, 256);
        let m0 = rig.nodes[0].ram.alloc(64 << 10);
        let m1 = rig.nodes[1].ram.alloc(64 << 10);
        Self {
            rig,
            q0,
            q1,
            m0,
            m1,
        }
    }

    pub fn post(&mut self, options: PageOptions, d: &Descriptor) {
        self.rig.rma_post(0, 5, options, d);
    }

    /// Returns the notifications at both nodes.
    pub fn notes(&mut self) -> (Vec<Notification>, Vec<Notification>) {
        let decode = |words: Vec<[u64; 2]>| -> Vec<Notification> {
            words
                .iter()
                .map(|w| Notification::decode(*w).expect("valid").expect("written"))
                .collect()
        };
        let a = self.rig.rma_drain(&mut self.q0);
        let b = self.rig.rma_drain(&mut self.q1);
        self.rig.commit(&self.q0, false);
        self.rig.commit(&self.q1, false);
        (decode(a), decode(b))
    }

    fn drops(&self, i: usize) -> extoll_emulator::nic::Drops {
        self.rig.nodes[i].nic.counters().drops.clone()
    }
}

#[test]
fn rendezvous_of_the_ethernet_protocol_word_by_word() {
    // Node 2 fetches a frame of 1,514 bytes from node 1. The documentation of `wire` contains this
    // example.
    let mut rig = Rig::probed(3, SlotSize::B128);
    let mut q1 = rig.open_rma(1, 254, 32, 4096);
    let mut q2 = rig.open_rma(2, 254, 32, 4096);
    let a = rig.nodes[1].ram.alloc(4096) + 2;
    let b = rig.nodes[2].ram.alloc(4096) + 66;
    let frame = pattern(9, 1514);
    rig.nodes[1].ram.put(a, &frame);
    let page = 0x0400_0000 + 0x8F_E000;
    for (k, word) in [(0, 0x0005_E906_0001_FE03), (8, a), (16, b)] {
        rig.store(2, 0, page + k, &word.to_le_bytes());
    }
    assert_eq!(rig.nodes[2].ram.get(b, 1514), frame);
    assert_eq!(rig.nodes[2].ram.get(b + 1514, 2), [0, 0]);
    assert_eq!(rig.rma_drain(&mut q1), [[a + 1488, 0x0102_0002_7F00_0019]]);
    assert_eq!(rig.rma_drain(&mut q2), [[b + 1488, 0x0154_0001_7F00_0019]]);
    for i in [1, 2] {
        assert_eq!(rig.msis(i), 1, "node {i}");
        let e = rig.snq_handle(i);
        assert_eq!(e.len(), 1);
        assert_eq!(super::velo::vectors(&e), [254]);
        assert_eq!(
            wire::snq::TOURMALET
                .emission(e[0].header.pc())
                .map(|m| m.event.number()),
            Some(25)
        );
    }
}

#[test]
fn put_and_get_of_every_kind_of_size_and_alignment() {
    let mut p = Pair::new();
    let sizes = [
        1, 2, 7, 8, 9, 63, 495, 496, 497, 991, 992, 993, 1488, 4096, 5000, 20_000,
    ];
    for (n, len) in sizes.into_iter().enumerate() {
        for shift in [0u64, 1, 4095] {
            for qw in [false, true] {
                let data = pattern(n as u64 * 10 + shift, len as usize);
                let (from, to) = (p.m0 + shift, p.m1 + 8192 + 2 * shift);
                p.rig.nodes[0].ram.put(from, &data);
                // The encoder rejects unaligned quadword commands, but the hardware executes them
                // (G12).
                let mut words = desc(1, 6, ALL, put(len, from, to)).encode().expect("words");
                words[0] |= u64::from(qw) << 2;
                p.rig.rma_raw(0, 5, PLAIN, words);
                assert_eq!(p.rig.nodes[1].ram.get(to, data.len()), data);
                let (a, b) = p.notes();
                let code = if qw { Command::QwPut } else { Command::BytePut };
                let note = |kind, start, command, node, vpid| Notification {
                    word0: last_fragment_start(start, len),
                    size_field: last_fragment_len(len) - 1,
                    vpid: Vpid::from(vpid),
                    node: NodeId(node),
                    kind,
                    command,
                    mode: Default::default(),
                    error: 0,
                };
                assert_eq!(a, [note(NotificationType::Requester, from, code, 1, 6)]);
                assert_eq!(b, [note(NotificationType::Completer, to, code, 0, 5)]);
                assert_eq!(
                    b[0].word0 - to + u64::from(b[0].last_size()),
                    u64::from(len)
                );

                // A GET reads the data back.
                let back = p.m0 + 32_768 + shift;
                let mut words = desc(1, 6, ALL, get(len, to, back)).encode().expect("words");
                words[0] |= u64::from(qw) << 2;
                p.rig.rma_raw(0, 5, PLAIN, words);
                assert_eq!(p.rig.nodes[0].ram.get(back, data.len()), data);
                let (a, b) = p.notes();
                let (request, response) = match qw {
                    false => (Command::ByteGet, Command::ByteGetResponse),
                    true => (Command::QwGet, Command::QwGetResponse),
                };
                let want = [
                    note(NotificationType::Requester, back, request, 1, 6),
                    note(NotificationType::Completer, back, response, 1, 6),
                ];
                assert_eq!(a, want);
                assert_eq!(b, [note(NotificationType::Responder, to, request, 0, 5)]);
            }
        }
    }
    let state = wire::wcbuf::State(p.rig.read(0, wcbuf::rma::state(Vpid::from(5))));
    assert_eq!(usize::from(state.committed_count()), sizes.len() * 12 % 256);
    assert_eq!(p.drops(0), Default::default());
}

#[test]
fn only_what_the_spec_asks_for() {
    let mut p = Pair::new();
    for spec in 0..8u8 {
        let notify = NotifySpec::from_bits(spec);
        let kinds = |n: &[Notification]| n.iter().map(|n| n.kind.code()).collect::<Vec<_>>();
        let want = |bits: &[u8]| {
            bits.iter()
                .copied()
                .filter(|b| spec & b != 0)
                .collect::<Vec<_>>()
        };
        p.post(PLAIN, &desc(1, 6, notify, get(600, p.m1, p.m0)));
        let (a, b) = p.notes();
        assert_eq!(
            (kinds(&a), kinds(&b)),
            (want(&[1, 4]), want(&[2])),
            "get, spec {spec}"
        );
        p.post(PLAIN, &desc(1, 6, notify, put(600, p.m0, p.m1)));
        let (a, b) = p.notes();
        assert_eq!(
            (kinds(&a), kinds(&b)),
            (want(&[1]), want(&[4])),
            "put, spec {spec}"
        );
        let value = 0x1122_3344_5566_7788;
        p.post(
            PLAIN,
            &desc(
                1,
                6,
                notify,
                Operation::NotificationPut { class: 0xC5, value },
            ),
        );
        let (a, b) = p.notes();
        assert_eq!((kinds(&a), kinds(&b)), (want(&[1]), want(&[4])));
        assert!(a
            .iter()
            .chain(&b)
            .all(|n| (n.word0, n.class(), n.command) == (value, 0xC5, Command::NotificationPut)));
        for len in 1..=8u8 {
            p.rig.nodes[1].ram.put(p.m1, &[0xFF; 16]);
            p.post(
                PLAIN,
                &desc(
                    1,
                    6,
                    notify,
                    Operation::ImmediatePut {
                        len,
                        remote: p.m1 + 1,
                        value,
                    },
                ),
            );
            let n = usize::from(len);
            assert_eq!(
                p.rig.nodes[1].ram.get(p.m1 + 1, n),
                &value.to_le_bytes()[..n]
            );
            assert!(p.rig.nodes[1]
                .ram
                .get(p.m1 + 1 + n as u64, 7)
                .iter()
                .all(|b| *b == 0xFF));
            let (a, b) = p.notes();
            assert_eq!((kinds(&a), kinds(&b)), (want(&[1]), want(&[4])));
            assert!(a
                .iter()
                .all(|n| (n.word0, n.size_field) == (value, u32::from(len) - 1)));
            assert!(b
                .iter()
                .all(|n| (n.word0, n.size_field) == (p.m1 + 1, u32::from(len) - 1)));
        }
    }
}

#[test]
fn loop_back_gets_all_three_notifications() {
    let mut p = Pair::new();
    p.rig.nodes[0].ram.put(p.m0, &[7; 100]);
    p.post(PLAIN, &desc(0, 5, ALL, get(100, p.m0, p.m0 + 4096)));
    let (a, _) = p.notes();
    assert_eq!(
        a.iter().map(|n| n.kind.code()).collect::<Vec<_>>(),
        [1, 2, 4]
    );
    assert_eq!(p.rig.nodes[0].ram.get(p.m0 + 4096, 100), [7; 100]);
}

#[test]
fn notification_replicate_gives_one_per_fragment() {
    let mut p = Pair::new();
    let ntr = Modifiers {
        ntr: true,
        ..Modifiers::NONE
    };
    let len = 496 * 5 + 3;
    p.post(
        PLAIN,
        &Descriptor {
            modifiers: ntr,
            ..desc(1, 6, ALL, put(len, p.m0, p.m1))
        },
    );
    let (a, b) = p.notes();
    for (notes, start) in [(a, p.m0), (b, p.m1)] {
        let got: Vec<_> = notes
            .iter()
            .map(|n| (n.word0, n.last_size(), n.mode.bits()))
            .collect();
        let want: Vec<_> = fragments(len)
            .map(|f| (start + u64::from(f.offset), f.len, 16))
            .collect();
        assert_eq!(got, want);
    }
    p.post(
        PLAIN,
        &Descriptor {
            modifiers: ntr,
            ..desc(1, 6, ALL, get(len, p.m1, p.m0))
        },
    );
    let (a, b) = p.notes();
    assert_eq!((a.len(), b.len()), (12, 6));
}

#[test]
fn interrupts_follow_the_page() {
    let mut p = Pair::new();
    p.post(PLAIN, &desc(1, 6, ALL, get(8, p.m1, p.m0)));
    assert_eq!((p.rig.msis(0), p.rig.msis(1)), (0, 0));
    p.post(IRQ, &desc(1, 6, ALL, get(8, p.m1, p.m0)));
    assert_eq!(super::velo::vectors(&p.rig.snq_handle(0)), [5]);
    assert_eq!(super::velo::vectors(&p.rig.snq_handle(1)), [6]);
    let (a, b) = p.notes();
    assert!(a[2..].iter().chain(&b[1..]).all(|n| n.mode.bits() == 2));
    // Both queues are masked now. Arming them again sends the missed interrupt.
    p.post(IRQ, &desc(1, 6, ALL, get(8, p.m1, p.m0)));
    assert_eq!(p.rig.snq_handle(0).len(), 0);
    p.rig.commit(&p.q0, true);
    assert_eq!(super::velo::vectors(&p.rig.snq_handle(0)), [5]);
}

#[test]
fn eight_mebibytes_in_one_command() {
    let mut p = Pair::new();
    let len = 8 << 20;
    let (from, to) = (p.rig.nodes[1].ram.alloc(len), p.rig.nodes[0].ram.alloc(len));
    let data = pattern(77, len as usize);
    p.rig.nodes[1].ram.put(from, &data);
    p.post(PLAIN, &desc(1, 6, ALL, get(len as u32, from, to)));
    assert!(p.rig.nodes[0].ram.get(to, len as usize) == data);
    let (a, _) = p.notes();
    assert_eq!(a[1].word0 - to + u64::from(a[1].last_size()), len);
    assert_eq!(p.rig.nodes[1].nic.counters().rma.served_bytes, len);
}

#[test]
fn refused_commands_tell_the_requester() {
    let mut p = Pair::new();
    let legal = desc(1, 6, ALL, put(8, p.m0, p.m1)).encode().expect("words");
    for code in [4u64, 7, 8, 9, 10, 11, 13, 14, 15] {
        let word0 = legal[0] & !(0xF << 2) | (code << 2);
        p.rig.rma_raw(0, 5, PLAIN, [word0, legal[1], legal[2]]);
        let words = p.rig.rma_drain_raw(&mut p.q0);
        assert_eq!(words.len(), 1, "command {code}");
        assert_eq!(words[0][1] >> 61, 1, "requester error");
        assert_eq!((words[0][1] >> 51) & 0xF, code);
        p.rig.commit(&p.q0, false);
    }
    // These are the modifiers MC, ERA and EWA (G14).
    for modifier in [1u64, 4, 8] {
        p.rig.rma_raw(
            0,
            5,
            PLAIN,
            [legal[0] | (modifier << 35), legal[1], legal[2]],
        );
        assert_eq!(p.rig.rma_drain(&mut p.q0).len(), 1);
    }
    let errors = p.rig.read(0, regs::REQUESTER_ERROR_CNT_0);
    assert_eq!(
        ((errors >> 16) & 0x7FFF, (errors >> 32) & 0x7FFF),
        (10, 2),
        "cmdt, exldis"
    );
    assert_eq!(p.rig.nodes[0].nic.counters().events[27], 12);
    assert_eq!(p.rig.nodes[1].nic.counters().packets_received, 0);
    // If no notification is requested, none is written, unless error notifications are forced.
    let quiet = desc(1, 6, NotifySpec::NONE, put(8, p.m0, p.m1))
        .encode()
        .expect("words");
    p.rig
        .rma_raw(0, 5, PLAIN, [quiet[0] | (1 << 35), quiet[1], quiet[2]]);
    assert!(p.rig.rma_take(&mut p.q0).is_none());
    p.rig.write(0, regs::CONFIG, (1 << 32) | 0x84_0200);
    p.rig
        .rma_raw(0, 5, PLAIN, [quiet[0] | (1 << 35), quiet[1], quiet[2]]);
    assert!(p.rig.rma_take(&mut p.q0).is_some());
    // Software clears the counters.
    p.rig.write(0, regs::REQUESTER_ERROR_CTRL, 4);
    assert_eq!(p.rig.read(0, regs::REQUESTER_ERROR_CNT_0), 0);
    assert_eq!(p.rig.read(0, regs::REQUESTER_ERROR_CTRL), 0);
    // A descriptor with a wrong length field never leaves the write-combining buffer.
    p.rig
        .rma_raw(0, 5, PLAIN, [legal[0] & !1, legal[1], legal[2]]);
    assert_eq!(p.rig.read(0, wcbuf::rma::ERRORS0), (5 << 24) | 1);
    // Reserved bits are reported but have no effect.
    p.rig.rma_raw(
        0,
        5,
        PLAIN,
        [legal[0] | (1 << 63) | (1 << 6), legal[1], legal[2]],
    );
    assert_eq!(p.rig.rma_drain(&mut p.q1).len(), 1);
}

#[test]
fn error_counters_have_fifteen_bits_and_an_overflow_flag() {
    let mut p = Pair::new();
    let field = |p: &mut Pair| (p.rig.read(0, regs::REQUESTER_ERROR_CNT_0) >> 16) & 0xFFFF;
    for _ in 0..0x7FFF {
        p.rig.rma_raw(0, 5, PLAIN, [3 | (4 << 2), 0, 0]);
    }
    assert_eq!(field(&mut p), 0x7FFF);
    p.rig.rma_raw(0, 5, PLAIN, [3 | (4 << 2), 0, 0]);
    assert_eq!(field(&mut p), 0x8000);
    p.rig.rma_raw(0, 5, PLAIN, [3 | (4 << 2), 0, 0]);
    assert_eq!(field(&mut p), 0x8001, "the flag stays");
}

#[test]
fn unaligned_quadword_commands_can_be_errors() {
    let mut p = Pair::with_config(NicConfig {
        unaligned_qw: UnalignedQw::Error,
        ..NicConfig::default()
    });
    let mut words = desc(1, 6, ALL, put(9, p.m0, p.m1)).encode().expect("words");
    words[0] |= 1 << 2;
    p.rig.rma_raw(0, 5, PLAIN, words);
    let (a, b) = p.notes();
    assert_eq!((a.len(), a[0].error, b.len()), (1, 1, 0));
}

#[test]
fn vpid_and_protection_checks() {
    let mut p = Pair::new();
    p.rig.write(
        1,
        regs::vpid_table(Vpid::from(6)),
        regs::VPID_ENABLED | (0x77 << 16),
    );
    p.post(PLAIN, &desc(1, 6, ALL, put(8, p.m0, p.m1)));
    p.post(PLAIN, &desc(1, 6, ALL, get(8, p.m1, p.m0)));
    let (a, b) = p.notes();
    assert_eq!(
        (a.len(), b.len()),
        (2, 0),
        "two requester notifications, no answer"
    );
    assert_eq!(p.drops(1).wrong_protection, 2);
    p.rig.write(
        0,
        regs::vpid_table(Vpid::from(5)),
        regs::VPID_ENABLED | (0x77 << 16),
    );
    p.post(PLAIN, &desc(1, 6, ALL, get(8, p.m1, p.m0)));
    assert_eq!(p.notes().0.len(), 2);
    p.rig
        .write(1, regs::vpid_table(Vpid::from(6)), regs::VPID_DISABLED);
    p.post(PLAIN, &desc(1, 6, ALL, put(8, p.m0, p.m1)));
    p.post(PLAIN, &desc(1, 6, ALL, get(8, p.m1, p.m0)));
    assert_eq!(p.drops(1).vpid_disabled, 2);
    assert_eq!(p.rig.read(1, regs::RESPONDER_ERROR_CNT_0) >> 48, 1);
    assert_eq!(p.rig.read(1, regs::RESPONDER_ERROR_CNT_1) & 0x7FFF, 1);
    assert_eq!(p.rig.read(1, regs::COMPLETER_ERROR_CNT_2), (1 << 16) | 1);
    // A closed VPID cannot send. A late response to it is dropped.
    p.notes();
    p.rig.hold_wire = true;
    p.rig.write(
        1,
        regs::vpid_table(Vpid::from(6)),
        regs::VPID_ENABLED | (0x77 << 16),
    );
    p.post(PLAIN, &desc(1, 6, ALL, get(8, p.m1, p.m0)));
    p.rig
        .write(0, regs::vpid_table(Vpid::from(5)), regs::VPID_DISABLED);
    p.rig.pump();
    p.rig.hold_wire = false;
    assert_eq!(p.rig.read(0, regs::COMPLETER_ERROR_CNT_2) & 0x7FFF, 1);
    p.post(PLAIN, &desc(1, 6, ALL, get(8, p.m1, p.m0)));
    assert_eq!(p.drops(0).vpid_disabled, 2);
    assert_eq!(
        p.notes().0.len(),
        1,
        "the requester notification from before"
    );
}

#[test]
fn failed_reads_are_told_and_failed_writes_are_not_known() {
    let mut p = Pair::new();
    let end = p.rig.nodes[0].ram.bytes.len() as u64;
    // The third fragment crosses the end of memory.
    let edge = end - 1000;
    let bad = |error, start: u64| (start + 992, error);
    let seen = |n: &[Notification]| n.iter().map(|n| (n.word0, n.error)).collect::<Vec<_>>();
    // The local read fails. The target has received two fragments, and receives a packet that ends
    // the transfer.
    p.post(PLAIN, &desc(1, 6, ALL, put(2000, edge, p.m1)));
    let (a, b) = p.notes();
    assert_eq!(
        (seen(&a), seen(&b)),
        (vec![bad(1, edge)], vec![bad(1, p.m1)])
    );
    // The read of the first fragment fails, so no packet is sent.
    p.post(PLAIN, &desc(1, 6, ALL, put(2000, end - 100, p.m1)));
    let (a, b) = p.notes();
    assert_eq!((seen(&a), b.len()), (vec![(end - 100, 1)], 0));
    // The remote write fails. It is posted, so the chip does not notice.
    p.post(PLAIN, &desc(1, 6, ALL, put(2000, p.m0, edge)));
    let (a, b) = p.notes();
    assert_eq!(
        (seen(&a), seen(&b)),
        (vec![(p.m0 + 1984, 0)], vec![(edge + 1984, 0)])
    );
    // The remote read fails. The origin receives an error notification (G17).
    p.post(PLAIN, &desc(1, 6, ALL, get(2000, edge, p.m0)));
    let (a, b) = p.notes();
    assert_eq!(seen(&a), [(p.m0 + 1984, 0), bad(2, p.m0)]);
    assert_eq!(seen(&b), [bad(2, edge)]);
    // The local write fails. It is posted, so the chip does not notice.
    p.post(PLAIN, &desc(1, 6, ALL, get(2000, p.m1, edge)));
    let (a, b) = p.notes();
    assert_eq!(seen(&a), [(edge + 1984, 0), (edge + 1984, 0)]);
    assert_eq!(b.len(), 1);
    // With replication, each fragment has a notification.
    let ntr = Modifiers {
        ntr: true,
        ..Modifiers::NONE
    };
    p.post(
        PLAIN,
        &Descriptor {
            modifiers: ntr,
            ..desc(1, 6, ALL, put(2000, p.m0, edge))
        },
    );
    let all = [0, 496, 992, 1488, 1984].map(|at| (edge + at, 0));
    assert_eq!(seen(&p.notes().1), all);
    // A transfer that cannot be read counts one failure. A packet that cannot be written counts one
    // failure.
    assert_eq!((p.drops(0).dma, p.drops(1).dma), (2 + 3, 1 + 2 * 3));
    for at in [u64::MAX, u64::MAX - 100, 1 << 52] {
        p.post(PLAIN, &desc(1, 6, ALL, put(300, p.m0, at)));
        p.post(PLAIN, &desc(1, 6, ALL, get(300, p.m1, at)));
        let (a, b) = p.notes();
        assert_eq!((a.len(), b.len()), (3, 2));
    }
    // The following accesses fail because of injected faults, then because bus mastering is off.
    let faults = Faults {
        dma_fault_every: Some(1),
        ..Faults::default()
    };
    p.rig.with(1, |nic, env| nic.set_faults(faults, env));
    p.post(PLAIN, &desc(1, 6, ALL, get(8, p.m1, p.m0)));
    p.rig
        .with(1, |nic, env| nic.set_faults(Faults::default(), env));
    assert_eq!(p.notes().0.last().map(|n| n.error), Some(2));
    p.rig.nodes[1].nic.set_bus_master(false);
    p.post(PLAIN, &desc(1, 6, ALL, get(8, p.m1, p.m0)));
    assert_eq!(p.notes().0.last().map(|n| n.error), Some(2));
    assert!(p.drops(1).bus_master_off > 0);
}

#[test]
fn posted_writes_into_the_interrupt_range_interrupt() {
    let mut p = Pair::new();
    let op = Operation::ImmediatePut {
        len: 8,
        remote: 0xFD_2300_0000,
        value: 1,
    };
    p.post(PLAIN, &desc(1, 6, NotifySpec::NONE, op));
    assert_eq!(p.rig.msis(1), 1);
    assert_eq!(p.rig.nodes[1].nic.counters().dma_faults, 0);
}

#[test]
fn full_notification_queue_holds_and_releases() {
    let mut p = Pair::new();
    let mut q = p.rig.open_rma(1, 7, 2, 256); // 511 usable
    let total = 2000u64;
    for value in 0..total {
        let completer = NotifySpec {
            completer: true,
            ..NotifySpec::NONE
        };
        p.post(
            PLAIN,
            &desc(
                1,
                7,
                completer,
                Operation::NotificationPut { class: 1, value },
            ),
        );
    }
    assert_eq!(p.rig.nodes[1].nic.counters().rma.holding, total - 511);
    let mut got = Vec::new();
    while (got.len() as u64) < total {
        got.extend(p.rig.rma_drain(&mut q).iter().map(|w| w[0]));
        p.rig.commit(&q, false);
    }
    assert_eq!(got, (0..total).collect::<Vec<_>>());
}

#[test]
fn commands_wait_for_network_credit_in_order() {
    let mut p = Pair::new();
    p.rig.nodes[0].ram.put(p.m0, &[1; 1000]);
    p.rig.credit = 0;
    p.post(PLAIN, &desc(1, 6, ALL, put(1000, p.m0, p.m1)));
    p.post(
        PLAIN,
        &desc(1, 6, ALL, Operation::NotificationPut { class: 0, value: 3 }),
    );
    assert_eq!(p.notes().0.len(), 0);
    assert!(p.rig.nodes[0].nic.tx_waiting());
    // Data is read when the command is executed.
    p.rig.nodes[0].ram.put(p.m0, &[2; 1000]);
    // Each packet of the transfer may use the remaining credit.
    p.rig.credit = 100;
    for fragment in [496, 992, 1000] {
        assert_eq!(p.rig.nodes[0].nic.counters().rma.notifications, 0);
        p.rig.tick(0);
        let mut want = [2; 1000];
        want[fragment..].fill(0);
        assert_eq!(p.rig.nodes[1].ram.get(p.m1, 1000), want);
    }
    // The last packet has left credit for the notification PUT.
    assert!(!p.rig.nodes[0].nic.tx_waiting());
    assert_eq!(p.notes().0.len(), 2);
    // A responder must wait for credit, too.
    p.rig.credit = u64::MAX;
    p.rig.hold_wire = true;
    p.post(PLAIN, &desc(1, 6, ALL, get(100, p.m1, p.m0)));
    p.rig.credit = 0;
    p.rig.pump();
    assert!(p.rig.nodes[1].nic.tx_waiting());
    p.rig.credit = 1;
    p.rig.tick(1);
    p.rig.pump();
    assert_eq!(p.notes().0.len(), 2);
}

#[test]
fn requester_errors_and_split_stores() {
    let mut p = Pair::new();
    let bytes: Vec<u8> = desc(1, 6, ALL, put(8, p.m0, p.m1))
        .encode()
        .expect("words")
        .iter()
        .flat_map(|w| w.to_le_bytes())
        .collect();
    let page = 0x0400_0000 + 5 * 4096;
    p.rig.store(0, 0, page + 13, &bytes[13..]);
    p.rig.store(0, 0, page, &bytes[..5]);
    p.rig.store(0, 0, page + 5, &bytes[5..13]);
    assert_eq!(p.notes().0.len(), 1);
    // The line of 64 bytes contains two descriptors with garbage between them.
    let mut line = bytes.clone();
    line.extend_from_slice(&[0xEE; 8]);
    p.rig.store(0, 0, page, &line);
    assert_eq!(p.notes().0.len(), 1);
    assert_eq!(p.rig.read(0, wcbuf::rma::ERRORS1) >> 32, (5 << 24) | 1);
    p.rig.store(0, 0, page, &bytes[..8]);
    p.rig.store(0, 0, page, &bytes);
    assert_eq!(p.notes().0.len(), 1);
    assert_eq!(p.rig.read(0, wcbuf::rma::ERRORS0) & 0x7F_FFFF, 1);
}

#[test]
fn forced_retry_of_rma() {
    let faults = Faults {
        wcbuf_retry_every: Some(4),
        ..Faults::default()
    };
    let mut p = Pair::with_config(NicConfig {
        faults,
        ..NicConfig::default()
    });
    for value in 0..6 {
        p.post(
            PLAIN,
            &desc(1, 6, ALL, Operation::NotificationPut { class: 0, value }),
        );
    }
    let at = wcbuf::rma::state(Vpid::from(5));
    let state = wire::wcbuf::State(p.rig.read(0, at));
    assert_eq!(
        (state.committed_count(), state.retry_count(), state.retry()),
        (3, 3, true)
    );
    p.rig.write(0, at, state.cleared().raw());
    for value in 3..6 {
        p.post(
            PLAIN,
            &desc(1, 6, ALL, Operation::NotificationPut { class: 0, value }),
        );
    }
    assert_eq!(
        p.notes().1.iter().map(|n| n.word0).collect::<Vec<_>>(),
        [0, 1, 2, 3, 4, 5]
    );
}

#[test]
fn performance_counters_count_and_clear() {
    let mut p = Pair::new();
    p.post(PLAIN, &desc(1, 6, ALL, put(1000, p.m0, p.m1)));
    p.post(PLAIN, &desc(1, 6, ALL, get(500, p.m1, p.m0)));
    assert_eq!(p.rig.read(0, regs::PERF_REQUESTER_IN_0), 1 << 32);
    assert_eq!(p.rig.read(0, regs::PERF_REQUESTER_IN_2), 1 << 32);
    assert_eq!(p.rig.read(0, regs::PERF_REQUESTER_OUT_6), 1000);
    assert_eq!(p.rig.read(1, regs::PERF_RESPONDER_OUT_4), 500);
    assert_eq!(p.rig.read(0, regs::PERF_COMPLETER_IN_4), 500);
    // Packets have up to 496 bytes (G29). Each packet is read and written separately.
    assert_eq!(p.rig.read(0, regs::PERF_REQUESTER_OUT_0), 3 << 32);
    assert_eq!(p.rig.read(0, regs::PERF_REQUESTER_OUT_2), 1 << 32);
    assert_eq!(p.rig.read(1, regs::PERF_RESPONDER_OUT_0), 2 << 32);
    assert_eq!(p.rig.read(1, regs::PERF_COMPLETER_IN_0), 3 << 32);
    assert_eq!(p.rig.read(0, regs::PERF_COMPLETER_IN_2), 2 << 32);
    for (node, first, packets, bytes) in [
        (0, regs::PERF_REQUESTER_RE_0, 3, 1000),
        (1, regs::PERF_RESPONDER_RE_0, 2, 500),
    ] {
        let read = [0, 8, 16, 24].map(|k| p.rig.read(node, RegOffset(first.0 + k)));
        assert_eq!(read, [packets, bytes, packets, bytes], "node {node}");
    }
    let written = [regs::PERF_COMPLETER_OUT_0, regs::PERF_COMPLETER_OUT_1];
    assert_eq!(written.map(|at| p.rig.read(1, at)), [3, 1000]);
    let end = p.rig.nodes[0].ram.bytes.len() as u64;
    p.post(PLAIN, &desc(1, 6, ALL, put(8, end, p.m1)));
    assert_eq!(p.rig.read(0, regs::PERF_REQUESTER_RE_2), (1 << 32) | 3);
    p.rig.write(0, regs::PERF_COUNTER_CONTROL, 1);
    for at in (regs::PERF_REQUESTER_IN_0.0..=regs::PERF_COMPLETER_NOTI.0).step_by(8) {
        assert_eq!(p.rig.read(0, RegOffset(at)), 0);
    }
}
