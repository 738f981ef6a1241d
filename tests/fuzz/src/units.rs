// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Formats of the hardware units.

#![allow(clippy::precedence)] // bit patterns as the reference writes them

use crate::{bytes, Input};
use wire::ids::{BusAddr, Nla, NodeId, RegOffset, Vpid};
use wire::{atu, bq, htax, regs, rma, route, snq, tlp, velo, wcbuf};

/// Input: a VELO descriptor and a requester address.
pub fn fuzz_velo_descriptor(data: &[u8]) {
    let mut input = Input(data);
    let raw = input.u64();
    match velo::Descriptor::decode(raw) {
        Ok(d) => {
            assert_eq!(d.encode(), Ok(raw));
            assert!(d.payload_qws() * 8 >= d.len && d.payload_qws() <= 15);
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
    let addr = velo::RequesterAddr::decode(input.u64() as u32);
    assert_eq!(velo::RequesterAddr::decode(addr.encode()), addr);
    assert!(addr.encode() < velo::WINDOW);
}

/// Input: a VELO status word. The slots of the message that it describes are checked too.
pub fn fuzz_velo_status(data: &[u8]) {
    let raw = Input(data).u64();
    match velo::Status::decode(raw) {
        Ok(Some(s)) => {
            assert_eq!(
                s.encode(),
                Ok(raw & velo::StatusWord::KNOWN & !(0x300 << 16))
            );
            for size in [velo::SlotSize::B64, velo::SlotSize::B128] {
                let total: u16 = size.parts(s.len).map(|p| u16::from(p.len)).sum();
                assert_eq!(total, s.len);
                assert!(size.slots_for(s.len) <= 3);
            }
        }
        Ok(None) => assert_eq!(raw, 0),
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}

pub(crate) fn velo_seeds() -> Vec<Vec<u8>> {
    [
        0x002A_0007_80FE_003F,
        0x0078_0204_80FE_003F,
        0x0010_0005_00FE_0002,
        0x0010_0001_00FE_0001,
    ]
    .map(|w| bytes(&[w, 0x2F_E000]))
    .to_vec()
}

/// Input: three words of an RMA descriptor and a requester address.
pub fn fuzz_rma_descriptor(data: &[u8]) {
    let mut input = Input(data);
    let words = [input.u64(), input.u64(), input.u64()];
    match rma::Descriptor::decode(words) {
        Ok(d) => match d.encode() {
            Ok(again) => assert_eq!(again, words),
            Err(e) => assert_eq!(e, rma::DescriptorError::Unaligned),
        },
        Err(e) => assert!(!e.to_string().is_empty()),
    }
    let addr = rma::RequesterAddr::decode(input.u64() as u32);
    assert_eq!(rma::RequesterAddr::decode(addr.encode()), addr);
    assert!(addr.encode() < rma::WINDOW);
}

pub(crate) fn rma_seeds() -> Vec<Vec<u8>> {
    vec![
        bytes(&[0x0005_E906_0001_FE03, 0x1000, 0x2000, 0x8F_E000]),
        bytes(&[0x0000_0701_0009_FC1B, 0x8050, 1]),
        bytes(&[0x0000_0101_0009_FC33, 0xFFFF_FFFF_0012_3456, 2 << 32]),
        bytes(&[0x0000_AB01_0009_FC17, 77, 0]),
        bytes(&[0x7FFF_FF01_0009_FC0F, 8, 16]),
    ]
}

/// Input: two words of a notification, then a start address.
pub fn fuzz_rma_notification(data: &[u8]) {
    let mut input = Input(data);
    let words = [input.u64(), input.u64()];
    match rma::Notification::decode(words) {
        Ok(Some(n)) => {
            assert_eq!(
                n.encode(),
                [words[0], words[1] & rma::NotificationWord::KNOWN]
            );
            if let Ok(c) = wire::eth::Completion::from_notification(&n) {
                assert_eq!(c.key, n.word0);
            }
        }
        Ok(None) => assert_eq!(words[1], 0),
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}

pub(crate) fn notification_seeds() -> Vec<Vec<u8>> {
    vec![
        bytes(&[0x1000 + 1488, 0x0102_0002_7F00_0019, 0x1000]),
        bytes(&[0x9000 + 1488, 0x0154_0001_7F00_0019, 0x9000]),
    ]
}

/// Input: a segment word and a descriptor page word.
pub fn fuzz_bq(data: &[u8]) {
    let mut input = Input(data);
    let raw = input.u64();
    let segment = bq::SegmentWord(raw).segment();
    let known = raw & bq::SegmentWord::KNOWN;
    assert_eq!(segment.encode().map(|w| w.raw()), Ok(known & !(1 << 58)));
    assert!(segment.bytes() <= 8 << 20);
    let raw = input.u64();
    match bq::DcqBase::decode(bq::DcqBaseWord(raw)) {
        Ok(d) => {
            assert!((1..=bq::MAX_SEGMENTS).contains(&d.segments));
            assert_eq!(
                d.encode().map(|w| w.raw()),
                Ok(raw & bq::DcqBaseWord::KNOWN)
            );
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}

pub(crate) fn bq_seeds() -> Vec<Vec<u8>> {
    vec![bytes(&[
        1 << 58 | 0x12345 << 18 | 32_767 << 2 | 3,
        0x12_3450 << 16 | 31,
    ])]
}

/// Input: GAT entry, NLA, VPID and access, then a command.
pub fn fuzz_atu(data: &[u8]) {
    let mut input = Input(data);
    let entry = atu::GatEntry(input.u64());
    let nla = Nla(input.u64());
    let flags = input.u64();
    let vpid = Vpid::from_low_bits(flags);
    match entry.translate(nla, vpid, flags & 0x100 != 0) {
        Ok(addr) => {
            assert!(addr.0 < BusAddr::END);
            assert_eq!(addr.0 % 4096, nla.0 % 4096);
            assert_eq!(entry.vpid(), vpid.get());
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
    match atu::Command::decode(atu::CommandWord(input.u64())) {
        Ok(c) => assert_eq!(c.encode().and_then(atu::Command::decode), Ok(c)),
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}

pub(crate) fn atu_seeds() -> Vec<Vec<u8>> {
    let entry = 0x12_3456_7000 | 200 << 2 | 3;
    vec![
        bytes(&[
            entry,
            0x1_4000_0ABC,
            200,
            1 << 60 | 1023 << 28 | 3 << 18 | 7,
        ]),
        bytes(&[entry | 9 << 59, 0x1F_5678, 200 | 0x100, 4 << 60 | 0x17F0]),
    ]
}

/// Input: entries of a notification ring, consumed one after the other.
pub fn fuzz_snq_entry(data: &[u8]) {
    let mut ring = snq::Ring::new(256, 0).expect("power of two");
    for chunk in data.chunks_exact(snq::ENTRY_BYTES) {
        let mut raw = [0; snq::ENTRY_BYTES];
        raw.copy_from_slice(chunk);
        let entry = snq::Entry::from_bytes(&raw);
        assert_eq!(entry.to_bytes(), raw);
        if let Some(e) = snq::TOURMALET.emission(entry.header.pc()) {
            assert_eq!(entry.words(e.registers.len()).len(), e.registers.len());
        }
        if ring.is_valid(entry.header) {
            ring.consume();
        }
        assert!(ring.next() < 256 && ring.rplt() < 256 && ring.watermark().watermark() < 256);
    }
}

pub(crate) fn entry_seeds() -> Vec<Vec<u8>> {
    let entry = |pc| {
        snq::Entry::with_words(&[1, 2, 3, 4], snq::Header(0).with_pc(pc).with_flip(true)).to_bytes()
    };
    vec![
        [entry(92), entry(96), entry(28)].concat(),
        entry(255).repeat(300),
    ]
}

/// Input: a whole program RAM. Decodes each word.
pub fn fuzz_snq_program(data: &[u8]) {
    let mut input = Input(data);
    let mut ram = [0; snq::PROGRAM_WORDS];
    for word in &mut ram {
        *word = input.u64();
        match snq::Instruction::decode(*word) {
            Ok(i) => {
                assert_eq!(i.encode(), *word);
                assert!(!i.to_string().is_empty());
            }
            Err(e) => assert!(!e.to_string().is_empty()),
        }
    }
}

pub(crate) fn program_seeds() -> Vec<Vec<u8>> {
    vec![bytes(snq::TOURMALET.words())]
}

/// Input: state words, sends and replay events in any order.
pub fn fuzz_wcbuf(data: &[u8]) {
    let mut input = Input(data);
    let mut credits = wcbuf::Credits::new();
    let mut replay = wcbuf::Replay::new();
    while !input.is_empty() {
        let op = input.u8();
        match op & 7 {
            0..=3 => {
                let room = credits.room();
                assert_eq!(credits.take().is_some(), room > 0);
            }
            4 => {
                let verdict = credits.on_state(wcbuf::State(input.u64()));
                assert!(!verdict.to_string().is_empty());
            }
            5 => {
                let _ = replay.step(&mut credits, wcbuf::Event::Sent);
            }
            6 => {
                let _ = replay.step(&mut credits, wcbuf::Event::Written);
            }
            _ => {
                let state = wcbuf::State(input.u64());
                match replay.step(&mut credits, wcbuf::Event::State(state)) {
                    wcbuf::Action::WriteState(s) => {
                        assert!(!s.needs_replay() && !s.retry());
                        assert_eq!(s.committed_count(), state.committed_count());
                    }
                    wcbuf::Action::Send(n) => {
                        assert!(n.wrapping_sub(credits.committed()) < credits.outstanding());
                    }
                    wcbuf::Action::Done => assert!(replay.rounds() > 0),
                    wcbuf::Action::ReadState | wcbuf::Action::Failed(_) => {}
                }
                if op & 8 != 0 {
                    replay = wcbuf::Replay::new();
                }
            }
        }
        assert_eq!(
            u32::from(credits.room()) + u32::from(credits.outstanding()),
            255
        );
    }
}

pub(crate) fn wcbuf_seeds() -> Vec<Vec<u8>> {
    let state = |op: u8, s: wcbuf::State| [vec![op], bytes(&[s.raw()])].concat();
    let dropped = wcbuf::State(0).with_retry(true).with_retry_count(2);
    vec![[
        vec![0, 0],
        state(4, dropped),
        state(7, dropped.with_assembly(true)),
        state(7, dropped),
        vec![6],
        state(7, wcbuf::State(0)),
        vec![5, 5],
        state(7, wcbuf::State(2)),
    ]
    .concat()]
}

/// Input: interval registers, window layout and a probe address.
pub fn fuzz_htax(data: &[u8]) {
    let mut input = Input(data);
    let interval = htax::Interval {
        upper: regs::htax::Bound(input.u64()),
        lower: regs::htax::Bound(input.u64()),
        control: regs::htax::IntvlControl(input.u64()),
    };
    let probe = BusAddr(input.u64());
    assert_eq!(interval.contains(probe), interval.offset(probe).is_some());
    let windows = htax::Windows::standard(BusAddr(input.u64()), BusAddr(input.u64()), input.u64());
    if let Some(all) = windows.intervals() {
        let hits = all
            .iter()
            .filter(|(i, x)| *i != 4 && x.contains(probe))
            .count();
        let bar0 = (windows.rf.0..windows.rf.0 + htax::BAR0_MIN).contains(&probe.0);
        let bar2 = (windows.smfu.0..windows.smfu.0 + windows.smfu_size).contains(&probe.0);
        assert_eq!(hits, usize::from(bar0) + usize::from(bar2));
        for (_, x) in all {
            assert!(x.control.port_oh().is_power_of_two());
        }
    }
}

pub(crate) fn htax_seeds() -> Vec<Vec<u8>> {
    vec![bytes(&[
        0xF2000,
        0xEFFFF,
        0xC107,
        0xF000_1000,
        0xF000_0000,
        0x40_0000_0000,
        0x1000_0000,
    ])]
}

/// Input: two table words and a node.
pub fn fuzz_route(data: &[u8]) {
    let mut input = Input(data);
    let (global, local) = (route::RouteWord(input.u64()), route::RouteWord(input.u64()));
    let node = NodeId(input.u64() as u16);
    let mut asked = None;
    let result = route::lookup(
        node,
        |i| {
            assert!(u32::from(i) < regs::xbar::inp::GRT_ENTRIES);
            global
        },
        |i| {
            asked = Some(i);
            local
        },
    );
    assert!(asked.is_none_or(|i| u32::from(i) < regs::xbar::inp::LRT_ENTRIES));
    match result {
        Ok(port) => {
            let word = if asked.is_some() { local } else { global };
            assert_eq!(word.outport(), port.get());
            assert!(word.valid() && !word.local());
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
    let group = route::McastEntry(global.raw());
    assert!(group.iter().all(|p| group.has(p)));
}

pub(crate) fn route_seeds() -> Vec<Vec<u8>> {
    vec![bytes(&[3, 1 | 7 << 4, 0x0C05]), bytes(&[1 | 6 << 4, 0, 1])]
}

/// Input: a register offset. Looks up the register's name.
pub fn fuzz_regs(data: &[u8]) {
    let offset = RegOffset(Input(data).u64() as u32);
    if let Some(found) = regs::lookup(offset) {
        assert!(offset.is_valid());
        let info = found.info;
        let at = info.offset + found.outer * info.outer.1 + found.inner * info.inner.1;
        assert_eq!(at, offset.get());
        assert!(!found.to_string().contains('#'));
    }
}

pub(crate) fn regs_seeds() -> Vec<Vec<u8>> {
    [
        0x8008u64, 0x9200, 0xD0_0000, 0x40_2000, 0x46_0308, 0x120_1830,
    ]
    .map(|o| bytes(&[o]))
    .to_vec()
}

/// Input: backdoor words of a PCIe packet, then a span and the fragments of its answer.
pub fn fuzz_tlp(data: &[u8]) {
    let qws: Vec<u64> = data
        .chunks_exact(8)
        .map(|c| Input(c).u64())
        .take(tlp::words::MAX)
        .collect();
    let mut payload = [0; 4 * tlp::words::PAYLOAD_DWORDS as usize];
    match tlp::words::unpack(&qws, &mut payload) {
        Ok((packet, len)) => {
            assert_eq!(len, usize::from(packet.payload_dwords()) * 4);
            let again = tlp::words::pack(&packet, &payload[..len]).expect("fits");
            let mut back = [0; 4 * tlp::words::PAYLOAD_DWORDS as usize];
            assert_eq!(
                tlp::words::unpack(again.as_slice(), &mut back),
                Ok((packet, len))
            );
            assert_eq!(back[..len], payload[..len]);
            if let tlp::Kind::MemRead { span, .. } = packet.kind {
                let (skip, n) = span.extent();
                assert!(skip < 4 && n <= tlp::PAGE as u32);
                let at = span.addr + u64::from(skip);
                assert_eq!(tlp::completions(at, n, 256).map(|p| p.len).sum::<u32>(), n);
            }
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
    let mut input = Input(data);
    let (addr, len) = (input.u64(), input.u64() as u32);
    if let Some(span) = tlp::Span::bytes(addr, len) {
        assert_eq!(span.extent().1, len);
        let kind = tlp::Kind::MemRead {
            requester: tlp::Bdf(0),
            tag: 0,
            span,
        };
        assert!(tlp::Tlp::from(kind).encode().is_ok());
    }
}

pub(crate) fn tlp_seeds() -> Vec<Vec<u8>> {
    vec![
        bytes(&[0x0000_000F_4400_0001, 0x0100_0010, 0x1234_5678]),
        bytes(&[0x0000_000F_0400_0001, 0x0100_0000]),
        bytes(&[0x0100_FF1C_2000_0003, 0x0000_0004_0000_00FD]),
        bytes(&[0x0100_0004_4A00_0001, 0x0010_0C40, 0xDEAD_BEEF]),
        bytes(&[
            0x0000_00FF_4000_0020,
            0xF000_0000,
            1,
            2,
            3,
            4,
            5,
            6,
            7,
            8,
            9,
            10,
            11,
            12,
            13,
            14,
            15,
            16,
        ]),
    ]
}
