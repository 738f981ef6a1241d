//! Tests of RMA transfers whose source is another device of the host.

use super::rig::*;
use super::rma::{desc, get, put, Pair, ALL, PLAIN};
use wire::regs::rma as regs;
use wire::rma::{Command, Notification, NotificationType};

fn seen(notes: &[Notification]) -> Vec<(NotificationType, u8)> {
    notes.iter().map(|n| (n.kind, n.error)).collect()
}

/// Answers all pending requests to the device of a node. If `well` is true, the data is a pattern
/// that depends on the address; otherwise, the answer is an error. Returns the number of requests.
fn serve(p: &mut Pair, node: usize, well: bool) -> usize {
    let asked = std::mem::take(&mut p.rig.nodes[node].ram.asked);
    let n = asked.len();
    for (number, addr, len) in asked {
        let data = well.then(|| bytes(addr, len));
        p.rig.with(node, |nic, env| nic.loaded(number, data, env));
        p.rig.pump();
    }
    n
}

fn bytes(addr: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (addr + i) as u8 ^ 0x5A).collect()
}

#[test]
fn a_get_waits_for_the_device_and_others_do_not() {
    let mut p = Pair::new();
    let mut other = p.rig.open_rma(0, 9, 2, 256);
    p.post(PLAIN, &desc(1, 6, ALL, get(1000, PEER + 40, p.m0)));
    // Commands of another VPID to the same target must continue.
    p.rig.nodes[1].ram.put(p.m1, &[7; 64]);
    let quick = desc(1, 6, ALL, get(64, p.m1, p.m0 + 0x2000));
    p.rig.rma_post(0, 9, PLAIN, &quick);
    assert_eq!(p.rig.nodes[0].ram.get(p.m0 + 0x2000, 64), [7; 64]);
    assert_eq!(p.rig.rma_drain(&mut other).len(), 2);
    let (a, b) = p.notes();
    assert_eq!(
        (seen(&a), b.len()),
        (vec![(NotificationType::Requester, 0)], 1),
        "the device has not answered yet"
    );
    assert!(
        !p.rig.nodes[1].nic.tx_waiting(),
        "no work until the device answers"
    );
    // The NIC reads the device packet by packet.
    for _ in 0..3 {
        assert_eq!(serve(&mut p, 1, true), 1);
    }
    assert_eq!(serve(&mut p, 1, true), 0);
    let (a, b) = p.notes();
    assert_eq!(seen(&a), [(NotificationType::Completer, 0)]);
    assert_eq!(a[0].command, Command::ByteGetResponse);
    assert_eq!(seen(&b), [(NotificationType::Responder, 0)]);
    let want = bytes(PEER + 40, 1000);
    assert_eq!(p.rig.nodes[0].ram.get(p.m0, 1000), want);
    assert_eq!(p.rig.nodes[1].nic.counters().dma_faults, 0);
}

#[test]
fn a_put_is_read_from_the_own_device() {
    let mut p = Pair::new();
    p.post(PLAIN, &desc(1, 6, ALL, put(600, PEER, p.m1)));
    // The second PUT must stay behind the first PUT.
    p.rig.nodes[0].ram.put(p.m0, &[9; 8]);
    p.post(PLAIN, &desc(1, 6, ALL, put(8, p.m0, p.m1 + 0x1000)));
    assert_eq!(p.notes().0.len(), 0);
    assert_eq!(p.rig.nodes[1].ram.get(p.m1 + 0x1000, 8), [0; 8]);
    assert_eq!(serve(&mut p, 0, true), 1);
    assert_eq!(serve(&mut p, 0, true), 1);
    let (a, b) = p.notes();
    assert_eq!(seen(&a), [(NotificationType::Requester, 0); 2]);
    assert_eq!(seen(&b), [(NotificationType::Completer, 0); 2]);
    assert_eq!(p.rig.nodes[1].ram.get(p.m1, 600), bytes(PEER, 600));
    assert_eq!(p.rig.nodes[1].ram.get(p.m1 + 0x1000, 8), [9; 8]);
}

/// The error is reported like a failed DMA read of memory.
#[test]
fn a_device_that_does_not_answer_is_told() {
    let mut p = Pair::new();
    p.post(PLAIN, &desc(1, 6, ALL, get(1000, PEER, p.m0)));
    assert_eq!(serve(&mut p, 1, true), 1);
    assert_eq!(serve(&mut p, 1, false), 1);
    let (a, b) = p.notes();
    assert_eq!(
        seen(&a),
        [
            (NotificationType::Requester, 0),
            (NotificationType::Completer, 2)
        ]
    );
    assert_eq!(seen(&b), [(NotificationType::Responder, 2)]);
    assert_eq!(p.rig.nodes[1].nic.counters().dma_faults, 1);
    assert_eq!(serve(&mut p, 1, true), 0, "the remainder is not read");
}

#[test]
fn a_vpid_that_is_closed_meanwhile_stops_nothing() {
    let mut p = Pair::new();
    p.post(PLAIN, &desc(1, 6, ALL, put(8, PEER, p.m1)));
    let entry = p.rig.read(0, regs::vpid_table(5.into()));
    p.rig.write(0, regs::vpid_table(5.into()), entry & !1);
    p.rig.write(0, regs::vpid_table(5.into()), entry);
    p.rig.nodes[0].ram.put(p.m0, &[3; 8]);
    p.post(PLAIN, &desc(1, 6, ALL, put(8, p.m0, p.m1 + 8)));
    assert_eq!(p.rig.nodes[1].ram.get(p.m1, 16)[8..], [3; 8]);
    // The VPID of the transfer has been closed, so the answer is ignored.
    assert_eq!(serve(&mut p, 0, true), 1);
    assert_eq!(p.rig.nodes[1].ram.get(p.m1, 8), [0; 8]);
    let (a, b) = p.notes();
    assert_eq!((a.len(), b.len()), (1, 1));
    // Requests that wait behind a request whose data is still being read must continue, too.
    p.post(PLAIN, &desc(1, 6, ALL, get(8, PEER, p.m0)));
    p.post(PLAIN, &desc(1, 6, ALL, get(8, p.m1 + 8, p.m0 + 8)));
    let entry = p.rig.read(1, regs::vpid_table(6.into()));
    p.rig.write(1, regs::vpid_table(6.into()), entry & !1);
    p.rig.write(1, regs::vpid_table(6.into()), entry);
    p.post(PLAIN, &desc(1, 6, ALL, get(8, p.m1 + 8, p.m0 + 16)));
    assert_eq!(p.rig.nodes[0].ram.get(p.m0 + 16, 8), [3; 8]);
    serve(&mut p, 1, true);
}
