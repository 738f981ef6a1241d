// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Round trips of every codec. Decoders must neither panic nor accept a value that cannot be
//! encoded again.

#![allow(clippy::precedence)] // bit patterns as the reference writes them

use proptest::prelude::*;
use wire::ids::{BusAddr, Nla, NodeId, Vpid};
use wire::{atu, bq, eth, htax, regs, rma, route, velo};

fn vpid() -> impl Strategy<Value = Vpid> {
    (0u16..256).prop_map(|v| Vpid::new(v).unwrap())
}

fn page() -> impl Strategy<Value = BusAddr> {
    (0u64..1 << 40).prop_map(|p| BusAddr(p << 12))
}

fn velo_descriptor() -> impl Strategy<Value = velo::Descriptor> {
    (
        any::<u16>(),
        any::<bool>(),
        vpid(),
        0u8..4,
        any::<bool>(),
        any::<u8>(),
        1u16..=120,
    )
        .prop_map(
            |(to, multicast, vpid, mtt, irq, tag, len)| velo::Descriptor {
                target: if multicast {
                    velo::Target::Group(to)
                } else {
                    velo::Target::Node(NodeId(to))
                },
                vpid,
                mtt: velo::Mtt::from_low_bits(mtt),
                irq,
                tag,
                len,
            },
        )
}

fn operation() -> impl Strategy<Value = rma::Operation> {
    use rma::Operation::*;
    let len = 1u32..=rma::MAX_LEN;
    prop_oneof![
        (len.clone(), any::<u64>(), any::<u64>()).prop_map(|(len, remote, local)| Get {
            qw: false,
            len,
            remote,
            local
        }),
        (len.clone(), any::<u64>(), any::<u64>()).prop_map(|(len, remote, local)| Put {
            qw: false,
            len,
            remote,
            local
        }),
        (
            1u32..=rma::MAX_LEN / 8,
            any::<u64>(),
            any::<u64>(),
            any::<bool>()
        )
            .prop_map(|(n, a, b, get)| {
                let (len, remote, local) = (8 * n, a & !7, b & !7);
                if get {
                    Get {
                        qw: true,
                        len,
                        remote,
                        local,
                    }
                } else {
                    Put {
                        qw: true,
                        len,
                        remote,
                        local,
                    }
                }
            }),
        (any::<u8>(), any::<u64>()).prop_map(|(class, value)| NotificationPut { class, value }),
        (1u8..=8, any::<u64>(), any::<u64>()).prop_map(|(len, remote, value)| ImmediatePut {
            len,
            remote,
            value
        }),
        (any::<bool>(), 0u32..1 << 24, any::<i32>(), any::<i32>()).prop_map(
            |(r, number, compare, add)| Lock {
                at: if r {
                    rma::LockTarget::Responder
                } else {
                    rma::LockTarget::Completer
                },
                number,
                compare,
                add,
            }
        ),
    ]
}

#[test]
fn addresses_of_interrupts() {
    let meets = |addr, bytes| BusAddr(addr).meets_interrupts(bytes);
    assert!(!meets(0xFC_FFFF_F000, 0x1000));
    assert!(meets(0xFC_FFFF_F000, 0x1001));
    assert!(meets(0xFD_0000_0000, 1));
    assert!(meets(0xFD_FFFF_FFFF, 1));
    assert!(!meets(0xFE_0000_0000, 0x1000));
    assert!(meets(0, u64::MAX));
    assert!(!meets(u64::MAX, 8));
}

proptest! {
    #[test]
    fn velo_descriptor_round_trip(d in velo_descriptor()) {
        prop_assert_eq!(velo::Descriptor::decode(d.encode().unwrap()), Ok(d));
    }

    #[test]
    fn velo_words(raw: u64, len in 0u16..130) {
        let raw = velo::DescriptorWord(raw).with_len(len).raw();
        if let Ok(d) = velo::Descriptor::decode(raw) {
            prop_assert_eq!(d.encode(), Ok(raw));
            prop_assert!((1..=15).contains(&d.payload_qws()));
        }
        if let Ok(Some(s)) = velo::Status::decode(raw) {
            prop_assert_eq!(velo::Status::decode(s.encode().unwrap()), Ok(Some(s)));
            prop_assert_eq!(velo::SourceId::from_raw(s.source.raw()), s.source);
        }
    }

    #[test]
    fn velo_requester_round_trip(addr in 0u32..velo::WINDOW) {
        let a = velo::RequesterAddr::decode(addr);
        prop_assert_eq!(a.encode(), addr & 0x3F_FFFF);
        prop_assert_eq!(velo::RequesterAddr::decode(a.encode()), a);
    }

    #[test]
    fn velo_pieces_cover_the_message(len: u16, big: bool) {
        let size = if big { velo::SlotSize::B128 } else { velo::SlotSize::B64 };
        let mut at = 0;
        for (k, p) in size.parts(len).enumerate() {
            prop_assert_eq!(usize::from(p.slot), k);
            prop_assert_eq!(u16::from(p.message_offset), at);
            prop_assert!(p.len > 0);
            prop_assert!(u32::from(p.slot_offset) + u32::from(p.len) <= size.status_offset());
            prop_assert!(size.status_offset() - u32::from(p.slot_offset) < u32::from(p.len) + 8);
            prop_assert_eq!(p.slot_offset % 8, 0);
            at += u16::from(p.len);
        }
        prop_assert_eq!(at, len.min(120));
        prop_assert_eq!(size.parts(len).len().max(1), size.slots_for(len) as usize);
    }

    #[test]
    fn rma_descriptor_round_trip(
        node: u16, vpid in vpid(), n in 0u8..8, m in 0u8..16, op in operation(),
    ) {
        let d = rma::Descriptor {
            node: NodeId(node),
            vpid,
            notify: rma::NotifySpec::from_bits(n),
            modifiers: rma::Modifiers::from_bits(m),
            op,
        };
        prop_assert_eq!(d.notify.bits(), n);
        prop_assert_eq!(d.modifiers.bits(), m);
        prop_assert_eq!(rma::Descriptor::decode(d.encode().unwrap()), Ok(d));
    }

    #[test]
    fn rma_words(w0: u64, w1: u64, w2: u64, fix: bool) {
        let w0 = if fix { (w0 | 3) & rma::DescriptorWord::KNOWN } else { w0 };
        if let Ok(d) = rma::Descriptor::decode([w0, w1, w2]) {
            match d.encode() {
                Ok(words) => prop_assert_eq!(words, [w0, w1, w2]),
                // The hardware accepts unaligned commands (G12), but the drivers never send them.
                Err(e) => prop_assert_eq!(e, rma::DescriptorError::Unaligned),
            }
        }
    }

    #[test]
    fn rma_requester_round_trip(addr in 0u32..rma::WINDOW) {
        let a = rma::RequesterAddr::decode(addr);
        prop_assert_eq!(a.encode(), addr);
        prop_assert_eq!(rma::PageOptions::from_index(a.options.index()), a.options);
    }

    #[test]
    fn notification_words(w0: u64, w1: u64) {
        if let Ok(Some(n)) = rma::Notification::decode([w0, w1]) {
            prop_assert_eq!(n.encode(), [w0, w1 & rma::NotificationWord::KNOWN]);
            prop_assert_eq!(rma::Mode::from_bits(n.mode.bits()), n.mode);
            prop_assert_eq!(rma::Command::from_code(n.command.code()), Some(n.command));
            prop_assert_eq!(rma::NotificationType::from_code(n.kind.code()), Some(n.kind));
        }
    }

    #[test]
    fn fragments_cover_the_transfer(start: u64, len in 0u32..200_000) {
        let mut at = 0;
        for f in rma::fragments(len) {
            prop_assert_eq!(f.offset, at);
            prop_assert!((1..=rma::FRAGMENT).contains(&f.len));
            at += f.len;
            prop_assert_eq!(f.last, at == len);
            if f.last {
                let last_start = start.wrapping_add(f.offset.into());
                prop_assert_eq!(rma::last_fragment_start(start, len), last_start);
                prop_assert_eq!(rma::last_fragment_len(len), f.len);
            }
        }
        prop_assert_eq!(at, len);
        prop_assert_eq!(rma::fragments(len).count() as u32, rma::fragment_count(len));
    }

    #[test]
    fn the_last_fragment_gives_the_length(start in 0u64..1 << 52, len in 1u32..=rma::MAX_LEN) {
        let n = rma::Notification {
            word0: rma::last_fragment_start(start, len),
            size_field: rma::last_fragment_len(len) - 1,
            vpid: Vpid::NET,
            node: NodeId(0),
            kind: rma::NotificationType::Completer,
            command: rma::Command::ByteGetResponse,
            mode: rma::Mode::default(),
            error: 0,
        };
        prop_assert_eq!(n.word0 - start + u64::from(n.last_size()), u64::from(len));
        prop_assert_eq!(eth::match_key(start, len), n.word0);
    }

    #[test]
    fn queue_words(raw: u64, slots in 1u32..=65_536, base in page(), segments in 1u32..=512) {
        for code in 0..4 {
            let seg = bq::SegmentDesc { slot: bq::SlotCode::from_code(code), slots, base };
            prop_assert_eq!(seg.encode().unwrap().segment(), seg);
            let valid = seg.encode().unwrap().with_valid(true);
            prop_assert_eq!(valid.segment(), seg);
            prop_assert!(valid.valid());
        }
        let seg = bq::SegmentWord(raw).segment();
        prop_assert_eq!(seg.encode().unwrap().raw(), raw & bq::SegmentWord::KNOWN & !(1 << 58));
        let d = bq::DcqBase { segments, page: base };
        prop_assert_eq!(bq::DcqBase::decode(d.encode().unwrap()), Ok(d));
        if let Ok(d) = bq::DcqBase::decode(bq::DcqBaseWord(raw)) {
            prop_assert_eq!(d.encode().unwrap().raw(), raw & bq::DcqBaseWord::KNOWN);
        }
    }

    #[test]
    fn atu_words(raw: u64, nla: u64, v in vpid(), write: bool, size in 0u8..=18, at in page()) {
        if let Ok(c) = atu::Command::decode(atu::CommandWord(raw)) {
            prop_assert_eq!(atu::Command::decode(c.encode().unwrap()), Ok(c));
        }
        if let Ok(addr) = atu::GatEntry(raw).translate(Nla(nla), v, write) {
            prop_assert!(addr.0 < BusAddr::END);
        }
        let e = atu::GatEntry::new(at, v, true, write).unwrap().with_size(size);
        let low = (4096u64 << size) - 1;
        let got = e.translate(Nla(nla), v, false);
        prop_assert_eq!(got, Ok(BusAddr((at.0 & !low) | (nla & low))));
        let parts = atu::NlaParts::from(Nla(nla & atu::NlaParts::KNOWN));
        let again = atu::NlaParts(0).with_gat(parts.gat()).with_entry(parts.entry());
        let again = again.with_offset(parts.offset());
        prop_assert_eq!(Nla::from(again).0, nla & atu::NlaParts::KNOWN);
        let base = atu::GatBase(raw);
        prop_assert_eq!(base.entry_addr(7).0, base.addr().0 + 56);
    }

    #[test]
    fn intervals_match_exactly_their_range(
        first in 1u64..1 << 40, pages in 1u64..1 << 20, probe: u64,
    ) {
        let base = BusAddr(first << 12);
        let interval = htax::Interval::covering(base, pages << 12, htax::control::RF);
        prop_assume!(first + pages <= 1 << 40);
        let interval = interval.unwrap();
        let last = base.0 + (pages << 12) - 1;
        for addr in [base.0, last, base.0 - 1, last + 1, probe & (BusAddr::END - 1)] {
            let inside = (base.0..=last).contains(&addr);
            prop_assert_eq!(interval.contains(BusAddr(addr)), inside);
            prop_assert_eq!(interval.offset(BusAddr(addr)), inside.then(|| addr - base.0));
        }
        let mut off = interval;
        off.control = regs::htax::IntvlControl(0);
        prop_assert!(!off.contains(base));
    }

    #[test]
    fn route_words(raw: u64, port in 0u8..11) {
        if let Ok(e) = route::RouteEntry::decode(route::RouteWord(raw)) {
            prop_assert_eq!(route::RouteEntry::decode(e.encode()), Ok(e));
        }
        let port = route::OutPort::new(port).unwrap();
        let e = route::RouteEntry::Port(port);
        prop_assert_eq!(route::RouteEntry::decode(e.encode()), Ok(e));
        let m = route::McastEntry(raw);
        prop_assert_eq!(m.iter().count() as u32, (raw & 0x7FF).count_ones());
        prop_assert!(m.with(port).has(port));
    }

    #[test]
    fn every_field_keeps_to_its_bits(raw: u64, value: u32) {
        // A representative word with fields of every type; all words use the same macro.
        let w = velo::DescriptorWord(raw);
        let others = !velo::DescriptorWord(0).with_len(0xFFF).raw();
        prop_assert_eq!(w.with_len(value as u16).raw() & others, raw & others);
        prop_assert_eq!(w.with_len(value as u16).len(), value as u16 & 0xFFF);
        prop_assert_eq!(w.with_irq(true).with_irq(false).raw(), w.with_irq(false).raw());
        prop_assert!(w.with_multicast(true).multicast());
    }

    #[test]
    fn announcement_round_trip(address: u64, len: u64) {
        let a = eth::Announcement { address, len };
        prop_assert_eq!(eth::Announcement::decode(&a.encode()), Ok(a));
        match a.frame_len(eth::MAX_FRAME) {
            Ok(n) => prop_assert!(u64::from(n) == len && (14..=65_558).contains(&n)),
            Err(e) => prop_assert_eq!(e.got, len),
        }
    }

    #[test]
    fn mac_round_trip(node: u16, prefix: [u8; 4], mac: [u8; 6]) {
        let p = eth::MacPrefix(prefix);
        prop_assert_eq!(p.node(p.mac(NodeId(node))), Some(NodeId(node)));
        if let Some(node) = p.node(mac) {
            prop_assert_eq!(p.mac(node), mac);
        }
    }
}
