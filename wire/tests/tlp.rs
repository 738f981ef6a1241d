// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests of PCIe packets: golden vectors from the PCI Express Base Specification, round trips, and
//! the rules for completions.

use proptest::prelude::*;
use wire::tlp::{completions, words, Bdf, CfgType, Error, Kind, Span, Status, Tlp, PAGE};

fn span(addr: u64, dwords: u16, first_be: u8, last_be: u8) -> Span {
    Span {
        addr,
        dwords,
        first_be,
        last_be,
    }
}

const HOST: Bdf = Bdf::new(0, 2, 0);

#[test]
fn headers_as_the_specification_draws_them() {
    let cases: Vec<(Tlp, [u32; 4])> = vec![
        // Memory read of one dword below 4 GiB.
        (
            Kind::MemRead {
                requester: HOST,
                tag: 0x0C,
                span: span(0xFDAF_F040, 1, 0xF, 0),
            }
            .into(),
            [0x0000_0001, 0x0010_0C0F, 0xFDAF_F040, 0],
        ),
        // Memory write of one dword below 4 GiB.
        (
            Kind::MemWrite {
                requester: HOST,
                tag: 0,
                span: span(0xFDAF_F040, 1, 0xF, 0),
            }
            .into(),
            [0x4000_0001, 0x0010_000F, 0xFDAF_F040, 0],
        ),
        // Read with a header of four dwords from an address above 4 GiB: bytes 6…12 of two
        // quadwords.
        (
            Kind::MemRead {
                requester: Bdf::new(1, 0, 0),
                tag: 0xFF,
                span: span(0xFD_0000_0004, 3, 0xC, 0x1),
            }
            .into(),
            [0x2000_0003, 0x0100_FF1C, 0xFD, 4],
        ),
        // Write of 4 KiB, with length field 0, relaxed ordering, traffic class 5, and the poisoned
        // bit.
        (
            Tlp {
                traffic_class: 5,
                attributes: 2,
                poisoned: true,
                kind: Kind::MemWrite {
                    requester: Bdf::new(1, 0, 0),
                    tag: 0,
                    span: span(0x1_0000_0000, 1024, 0xF, 0xF),
                },
            },
            [0x6050_6000, 0x0100_00FF, 1, 0],
        ),
        (
            Kind::CfgRead {
                ty: CfgType::Type0,
                requester: Bdf(0),
                tag: 0,
                target: Bdf::new(1, 0, 0),
                register: 0,
                enables: 0xF,
            }
            .into(),
            [0x0400_0001, 0x0000_000F, 0x0100_0000, 0],
        ),
        // Configuration write of type 1 to the extended register 0x154.
        (
            Kind::CfgWrite {
                ty: CfgType::Type1,
                requester: Bdf(0),
                tag: 7,
                target: Bdf::new(2, 31, 7),
                register: 0x154,
                enables: 0x3,
            }
            .into(),
            [0x4500_0001, 0x0000_0703, 0x02FF_0154, 0],
        ),
        (
            Kind::Completion {
                completer: Bdf::new(1, 0, 0),
                status: Status::Success,
                modified: false,
                byte_count: 4,
                requester: HOST,
                tag: 0x0C,
                lower_addr: 0x40,
                dwords: 1,
            }
            .into(),
            [0x4A00_0001, 0x0100_0004, 0x0010_0C40, 0],
        ),
        (
            Kind::Completion {
                completer: Bdf::new(1, 0, 0),
                status: Status::Unsupported,
                modified: false,
                byte_count: 4,
                requester: Bdf(0),
                tag: 3,
                lower_addr: 0,
                dwords: 0,
            }
            .into(),
            [0x0A00_0000, 0x0100_2004, 0x0000_0300, 0],
        ),
        // A byte count of 4096 is 0 in the field.
        (
            Kind::Completion {
                completer: Bdf(0),
                status: Status::Success,
                modified: false,
                byte_count: 4096,
                requester: Bdf::new(1, 0, 0),
                tag: 1,
                lower_addr: 0,
                dwords: 1024,
            }
            .into(),
            [0x4A00_0000, 0, 0x0100_0100, 0],
        ),
    ];
    for (tlp, dw) in cases {
        assert_eq!(tlp.encode(), Ok(dw), "{tlp:?}");
        assert_eq!(Tlp::decode(dw), Ok(tlp));
    }
}

#[test]
fn what_is_not_allowed_is_named() {
    for (dw, error) in [
        ([0x0200_0001, 0xF, 0, 0], Error::Type(0x02)), // I/O read
        ([0x3000_0000, 0, 0, 0], Error::Type(0x30)),   // message
        ([0x4C00_0001, 0xF, 0, 0], Error::Type(0x4C)), // atomic
        ([0x0000_8001, 0xF, 0, 0], Error::Feature),    // digest
        ([0x0000_0401, 0xF, 0, 0], Error::Feature),    // address type
        ([0x0000_0001, 0xF, 2, 0], Error::Feature),    // processing hint
        ([0x2000_0001, 0xF, 0, 0], Error::Address),    // 64-bit header below 4 GiB
        ([0x0000_0001, 0x1F, 0, 0], Error::ByteEnables), // last enables of one dword
        ([0x0000_0002, 0x0F, 0, 0], Error::ByteEnables), // no last enables
        ([0x0000_0003, 0xFD, 0, 0], Error::ByteEnables), // hole
        ([0x0000_0002, 0xFD, 4, 0], Error::ByteEnables), // hole, not one quadword
        ([0x0000_0002, 0xFF, 0xFFC, 0], Error::CrossesPage),
        ([0x0400_0002, 0xF, 0, 0], Error::Length),
        ([0x0400_0001, 0x1F, 0, 0], Error::ByteEnables),
        ([0x0400_0001, 0xF, 0x1000, 0], Error::Feature),
        ([0x4A00_0001, 0x2004, 0, 0], Error::Status), // error with data
        ([0x0A00_0000, 0xE004, 0, 0], Error::Status), // no such status
        ([0x0A00_0001, 0x2004, 0, 0], Error::Length),
    ] {
        assert_eq!(Tlp::decode(dw), Err(error), "{dw:08x?}");
    }
    // Gaps between enabled bytes are legal in one dword and in one aligned quadword.
    assert!(Tlp::decode([0x0000_0001, 0x05, 0, 0]).is_ok());
    assert!(Tlp::decode([0x0000_0002, 0x5A, 8, 0]).is_ok());
}

#[test]
fn backdoor_words() {
    let write: Tlp = Kind::CfgWrite {
        ty: CfgType::Type0,
        requester: Bdf(0),
        tag: 0,
        target: Bdf::new(1, 0, 0),
        register: 0x10,
        enables: 0xF,
    }
    .into();
    let packed = words::pack(&write, &[0x78, 0x56, 0x34, 0x12]).unwrap();
    assert_eq!(
        packed.as_slice(),
        [0x0000_000F_4400_0001, 0x0000_0000_0100_0010, 0x1234_5678]
    );
    assert_eq!(packed.payload_qws(), 1);
    let mut payload = [0; 8];
    assert_eq!(
        words::unpack(packed.as_slice(), &mut payload),
        Ok((write, 4))
    );
    assert_eq!(payload[..4], [0x78, 0x56, 0x34, 0x12]);
    assert_eq!(words::pack(&write, &[0; 8]), Err(Error::Payload));
    assert_eq!(
        words::unpack(&packed.as_slice()[..2], &mut payload),
        Err(Error::Payload)
    );
    assert_eq!(words::unpack(&[1], &mut payload), Err(Error::Payload));
    let big: Tlp = Kind::MemWrite {
        requester: Bdf(0),
        tag: 0,
        span: span(0, 33, 0xF, 0xF),
    }
    .into();
    assert_eq!(words::pack(&big, &[0; 132]), Err(Error::Payload));
}

#[test]
fn a_read_is_answered_in_pieces() {
    // Specification 2.3.1.1: splits occur at the read completion boundary, and the byte count
    // decreases.
    let list: Vec<_> = completions(0x1_0038, 300, 256)
        .map(|p| (p.offset, p.len, p.byte_count, p.lower_addr, p.dwords()))
        .collect();
    assert_eq!(list, [(0, 200, 300, 0x38, 50), (200, 100, 100, 0, 25)]);
    let one: Vec<_> = completions(0x1003, 1, 256)
        .map(|p| (p.len, p.byte_count, p.lower_addr, p.dwords()))
        .collect();
    assert_eq!(one, [(1, 1, 3, 1)]);
    assert_eq!(completions(0, 0, 256).count(), 0);
}

fn any_span() -> impl Strategy<Value = Span> {
    (any::<u64>(), 0u32..=4096).prop_filter_map("page", |(addr, len)| Span::bytes(addr, len))
}

fn any_kind() -> impl Strategy<Value = Kind> {
    let ids = || (any::<u16>().prop_map(Bdf), any::<u8>());
    let cfg = || {
        (
            prop_oneof![Just(CfgType::Type0), Just(CfgType::Type1)],
            any::<u16>().prop_map(Bdf),
            (0u16..1024).prop_map(|r| r * 4),
            0u8..16,
        )
    };
    prop_oneof![
        (ids(), any_span()).prop_map(|((requester, tag), span)| Kind::MemRead {
            requester,
            tag,
            span
        }),
        (ids(), any_span()).prop_map(|((requester, tag), span)| Kind::MemWrite {
            requester,
            tag,
            span
        }),
        (ids(), cfg()).prop_map(|((requester, tag), (ty, target, register, enables))| {
            Kind::CfgRead {
                ty,
                requester,
                tag,
                target,
                register,
                enables,
            }
        }),
        (ids(), cfg()).prop_map(|((requester, tag), (ty, target, register, enables))| {
            Kind::CfgWrite {
                ty,
                requester,
                tag,
                target,
                register,
                enables,
            }
        }),
        (
            ids(),
            any::<u16>().prop_map(Bdf),
            any::<bool>(),
            1u16..=4096,
            0u8..128,
            0u16..=1024,
            0usize..4
        )
            .prop_map(
                |(
                    (requester, tag),
                    completer,
                    modified,
                    byte_count,
                    lower_addr,
                    dwords,
                    status,
                )| {
                    use Status::*;
                    let status = if dwords > 0 {
                        Success
                    } else {
                        [Success, Unsupported, Retry, Abort][status]
                    };
                    Kind::Completion {
                        completer,
                        status,
                        modified,
                        byte_count,
                        requester,
                        tag,
                        lower_addr,
                        dwords,
                    }
                }
            ),
    ]
}

proptest! {
    #[test]
    fn every_packet_survives(
        kind in any_kind(), traffic_class in 0u8..8, attributes in 0u8..8, poisoned: bool,
    ) {
        let tlp = Tlp { traffic_class, attributes, poisoned, kind };
        let dw = tlp.encode().unwrap();
        prop_assert_eq!(Tlp::decode(dw), Ok(tlp));
    }

    #[test]
    fn whatever_is_decoded_encodes_to_the_same(dw in any::<[u32; 4]>(), code in 0usize..10) {
        let codes = [0x00, 0x20, 0x40, 0x60, 0x04, 0x44, 0x05, 0x45, 0x0A, 0x4A];
        let dw = [dw[0] & 0x0077_73FF | (codes[code] << 24), dw[1], dw[2], dw[3]];
        if let Ok(tlp) = Tlp::decode(dw) {
            let again = tlp.encode().unwrap();
            // Bit 29 of the first dword: the header has four dwords.
            let n = 3 + ((dw[0] >> 29) & 1) as usize;
            prop_assert_eq!(&again[..n], &dw[..n]);
        }
    }

    #[test]
    fn backdoor_words_survive(kind in any_kind(), fill: u8) {
        let tlp = Tlp::from(kind);
        let payload = vec![fill; usize::from(tlp.payload_dwords()) * 4];
        match words::pack(&tlp, &payload) {
            Ok(w) => {
                let mut back = [0; 128];
                let (again, len) = words::unpack(w.as_slice(), &mut back).unwrap();
                prop_assert_eq!(again, tlp);
                prop_assert_eq!(&back[..len], &payload[..]);
            }
            Err(e) => {
                let too_long = tlp.payload_dwords() > words::PAYLOAD_DWORDS;
                prop_assert!(e == Error::Payload && too_long);
            }
        }
    }

    #[test]
    fn spans_name_exactly_the_bytes(addr: u64, len in 1u32..=4096) {
        match Span::bytes(addr, len) {
            None => prop_assert!(addr % PAGE + u64::from(len) > PAGE),
            Some(s) => {
                let (skip, n) = s.extent();
                prop_assert_eq!((s.addr + u64::from(skip), n), (addr, len));
                let enabled: u32 = (0..s.dwords).map(|i| s.enables(i).count_ones()).sum();
                prop_assert_eq!(enabled, len);
                prop_assert_eq!(u32::from(s.byte_count()), len);
            }
        }
    }

    #[test]
    fn pieces_cover_the_read(
        addr in 0u64..1 << 40, len in 1u32..=4096,
        max in prop_oneof![Just(128u32), Just(256), Just(512)],
    ) {
        let mut next = 0;
        for p in completions(addr, len, max) {
            prop_assert_eq!((p.offset, u32::from(p.byte_count)), (next, len - next));
            prop_assert_eq!(u64::from(p.lower_addr), (addr + u64::from(next)) & 0x7F);
            prop_assert!(p.len > 0 && p.len <= max);
            next += p.len;
            prop_assert!(next == len || (addr + u64::from(next)) % 64 == 0);
        }
        prop_assert_eq!(next, len);
    }
}

#[test]
fn configuration_accesses_through_the_backdoor() {
    use wire::regs::pcie;
    use wire::tlp::backdoor::{self, Completion, Config, Fault, Info};
    let device = Bdf::new(1, 0, 0);
    let config = |register, bytes| Config::new(device, CfgType::Type0, register, bytes);
    // The bytes must be in one aligned dword.
    for (register, bytes) in [(0, 3), (1, 2), (2, 4), (4096, 1), (3, 0), (0, 8)] {
        assert_eq!(config(register, bytes), None, "{register} {bytes}");
    }
    for (register, bytes, enables, value) in [
        (0x10, 4, 0xF, 0x8765_4321),
        (0x12, 2, 0xC, 0x8765),
        (0x10, 2, 0x3, 0x4321),
        (0x13, 1, 0x8, 0x87),
        (0xFFF, 1, 0x8, 0x87),
    ] {
        let access = config(register, bytes).unwrap();
        let Kind::CfgRead {
            register: at,
            enables: be,
            ..
        } = access.read().kind
        else {
            panic!()
        };
        assert_eq!((at, be), (register & !3, enables));
        assert_eq!(access.value(0x8765_4321), value);
        assert_eq!(
            access.value(u32::MAX),
            u32::MAX >> (32 - 8 * u32::from(bytes))
        );
        let (tlp, payload) = access.write(0xFFFF_FFFF);
        let dword = u32::from_le_bytes(payload);
        let wide = (0..4)
            .map(|i| (((u32::from(enables) >> i) & 1) * 0xFF) << (8 * i))
            .sum::<u32>();
        assert_eq!(dword, wide, "{register:#x}");
        assert!(matches!(tlp.kind, Kind::CfgWrite { enables: be, .. } if be == enables));
    }
    // The data registers are written before the control register.
    let (tlp, payload) = config(0x10, 4).unwrap().write(0xE000_0000);
    let writes: Vec<_> = backdoor::send(&tlp, &payload).unwrap().collect();
    assert_eq!(writes.len(), 4);
    assert_eq!(
        writes[2],
        (pcie::htoc_to_pcie_backdoor_data(2), 0xE000_0000)
    );
    assert_eq!(
        writes[3],
        (pcie::HTOC_TO_PCIE_BACKDOOR_CONTROL, (1 << 40) | 1)
    );
    assert!(backdoor::send(&tlp, &[]).is_err());
    for (value, want) in [
        (0, Info::Empty),
        (7, Info::Packet(3)),
        (1, Info::Impossible(0)),
        (3, Info::Impossible(1)),
        (1 | (18 << 1), Info::Packet(18)),
        (1 | (19 << 1), Info::Impossible(19)),
    ] {
        assert_eq!(backdoor::info(value), want, "{value:#x}");
    }
    // Only completions for this requester are accepted.
    let answer = |status, requester, dwords| {
        let kind = Kind::Completion {
            completer: device,
            status,
            modified: false,
            byte_count: 4,
            requester,
            tag: 0,
            lower_addr: 0,
            dwords,
        };
        let data = [1, 2, 3, 4];
        let packed = words::pack(&kind.into(), &data[..usize::from(dwords) * 4]).unwrap();
        backdoor::completion(packed.as_slice())
    };
    let (status, value) = (Status::Success, 0x0403_0201);
    assert_eq!(answer(status, Bdf(0), 1), Ok(Completion { status, value }));
    let (status, value) = (Status::Unsupported, u32::MAX);
    assert_eq!(answer(status, Bdf(0), 0), Ok(Completion { status, value }));
    assert_eq!(answer(Status::Success, Bdf(8), 1), Err(Fault::Other));
    let request: Tlp = config(0, 4).unwrap().read();
    let packed = words::pack(&request, &[]).unwrap();
    assert_eq!(backdoor::completion(packed.as_slice()), Err(Fault::Other));
    assert!(matches!(backdoor::completion(&[]), Err(Fault::Packet(_))));
}
