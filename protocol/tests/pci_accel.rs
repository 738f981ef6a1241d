//! Tests of devices behind NICs without a host: registers that a borrower writes, and checks of
//! functions.

use proptest::prelude::*;
use protocol::pci::accel::{
    close, describe, Access, AccessFilter, Cycles, Found, FunctionError, Peer, Plan, PlanError,
    Setting, Slot, Watch, DMA_BASE, DMA_MAX,
};
use protocol::pci::borrower::UNANSWERED_MAX;
use protocol::pci::{ConfigAccess, Reach};
use protocol::Time;
use std::collections::BTreeMap;
use wire::accel::{LeaseRecord, State};
use wire::ids::NodeId;
use wire::pci::{Bar, Register};
use wire::regs::{htax, pcie, smfu};
use wire::smfu::UNMAPPED_BASE;

fn bar(log2: u8, is_64bit: bool) -> Option<Bar> {
    Some(Bar {
        log2,
        is_64bit,
        prefetchable: is_64bit,
    })
}

#[test]
fn what_is_opened_was_closed_and_is_apart() {
    let bars = [
        bar(20, true),
        None,
        bar(12, false),
        bar(28, false),
        bar(24, true),
        None,
    ];
    let free = 0x00FF_FFFF_FFFF_FFFE;
    let used = 1 << 55;
    let plan = Plan::new(&bars, NodeId(3), (free, free), used, 1 << 22).unwrap();
    let numbers = plan.numbers();
    assert!(numbers.is_valid(), "{numbers:?}");
    assert_eq!(numbers.bar_set() & (used | !free), 0);
    assert_eq!(numbers.bar_set().count_ones(), 4);
    // BARs are aligned to their size. They do not overlap each other, DMA memory or the interrupt
    // page.
    let mut spans = vec![(DMA_BASE, plan.interrupts() + 4096)];
    for (i, bar) in bars.iter().enumerate() {
        let Some(bar) = bar else {
            assert_eq!(plan.address(i), None);
            continue;
        };
        let at = plan.address(i).unwrap();
        assert_eq!(at % bar.window(), 0, "BAR {i} at {at:#x}");
        assert!(bar.is_64bit || at + bar.window() <= 1 << 32);
        assert!(spans
            .iter()
            .all(|(s, e)| at >= *e || at + bar.window() <= *s));
        spans.push((at, at + bar.window()));
    }
    let written: Vec<_> = plan.bars().collect();
    assert_eq!(written.len(), 6);
    assert_eq!(written[1], (1, (plan.address(0).unwrap() >> 32) as u32));

    let closed: Vec<_> = close().collect();
    // The paths from the device are closed first, then the paths to it.
    assert_eq!((closed[0].offset, closed[0].value), (htax::GENERAL, 0));
    for k in 0..64 {
        let has = |offset, value| {
            closed
                .iter()
                .any(|s| s.offset == offset && s.value == value)
        };
        assert!(has(smfu::interval_control(k), 0));
        assert!(has(smfu::vpid_t_start_addr(k), UNMAPPED_BASE.0));
    }
    let mut registers: BTreeMap<u32, u64> =
        closed.iter().map(|s| (s.offset.get(), s.value)).collect();
    let opened: Vec<_> = plan.open().collect();
    registers.extend(opened.iter().map(|s| (s.offset.get(), s.value)));
    assert_eq!(opened.last().unwrap().offset, htax::GENERAL);
    for sign in plan.open_check() {
        assert!(sign.is_seen(registers[&sign.offset.get()]));
        assert!(closed
            .iter()
            .all(|s| s.offset != sign.offset || !sign.is_seen(s.value)));
    }
    // The device has exactly these two paths, without a gap between them. All other addresses lead
    // to `NOWHERE`.
    let intervals: Vec<_> = (0..64)
        .filter(|k| registers[&smfu::interval_control(*k).get()] != 0)
        .collect();
    assert_eq!(
        intervals.iter().fold(0, |set, k| set | (1u64 << k)),
        numbers.dma_set()
    );
    let span = |k: u8| {
        let of = |at: wire::ids::RegOffset| registers[&at.get()];
        (
            of(smfu::interval_startaddr(k.into())),
            of(smfu::interval_endaddr(k.into())),
        )
    };
    let (dma, interrupts) = (span(numbers.dma), span(numbers.interrupts));
    assert_eq!(dma, (DMA_BASE, plan.interrupts()));
    assert_eq!(interrupts, (plan.interrupts(), plan.interrupts() + 4096));
    let bound = |at: wire::ids::RegOffset| registers[&at.get()];
    for i in [3, 4] {
        assert_eq!((bound(htax::intvl_lower(i)) + 1) << 12, dma.0);
        assert_eq!(bound(htax::intvl_upper(i)) << 12, interrupts.1);
    }
    for i in [0, 1, 2, 5] {
        assert_eq!(bound(htax::intvl_control(i)), 0);
    }
    let open: Vec<_> = (0..64)
        .filter(|k| registers[&smfu::vpid_t_start_addr(*k).get()] != UNMAPPED_BASE.0)
        .collect();
    assert_eq!(
        open.iter().fold(0, |set, k| set | (1u64 << k)),
        numbers.bar_set()
    );
    assert_eq!(registers[&pcie::PCIE_TO_HTOC_CFG.get()], 2);
}

#[test]
fn large_bars_are_aligned() {
    // Above the largest BAR there is no space for another BAR.
    for log2 in 4..46 {
        let bars = [
            bar(log2, true),
            None,
            bar(12, true).filter(|_| log2 < 45),
            None,
            bar(12, false),
            None,
        ];
        let plan = Plan::new(&bars, NodeId(3), (!1, !1), 0, 4096).unwrap();
        let at = plan.address(0).unwrap();
        assert_eq!(
            at % bars[0].unwrap().window(),
            0,
            "2^{log2} bytes at {at:#x}"
        );
    }
}

/// Registers of both NICs after a path to another device was opened, and after it was closed.
#[test]
fn ways_to_another_accelerator_are_its_bars_and_nothing_else() {
    let [me, to] = [NodeId(1), NodeId(7)];
    let bars = [bar(20, false), None, bar(14, true), None, None, None];
    let own = Plan::new(&bars, me, (!1, !1), 0, 1 << 20).unwrap();
    let used = 0xFF << 40;
    let other = Plan::new(&bars, me, (!1, !1), used, 1 << 20).unwrap();
    let own_numbers = own.numbers().dma_set();
    for slot in Slot::ALL {
        let free = !(own_numbers | used | other.numbers().bar_set());
        let peer = Peer::new(slot, to, &bars, |i| other.address(i), free).unwrap();
        assert_eq!((peer.slot(), peer.node()), (slot, to));
        assert_eq!(peer.numbers() & !free, 0);
        assert_eq!(peer.numbers().count_ones(), 2);
        let state = |lists: &[Vec<Setting>]| -> BTreeMap<u32, u64> {
            let all = lists.iter().flatten();
            all.map(|s| (s.offset.get(), s.value)).collect()
        };
        // The other NIC has targets at its BARs, in addition to the targets for its own borrower.
        let there = state(&[close().collect(), other.open().collect()]);
        let with = state(&[
            close().collect(),
            other.open().collect(),
            peer.open_targets().collect(),
        ]);
        let new: Vec<_> = with.iter().filter(|(k, v)| there[k] != **v).collect();
        assert_eq!(new.len(), 2);
        for (i, peer_bar) in [0, 2].map(|i| (i, peer.bar(i).unwrap())) {
            let target = smfu::vpid_t_start_addr(peer_bar.number.into()).get();
            assert_eq!(there[&target], UNMAPPED_BASE.0);
            assert_eq!(with[&target], other.address(i).unwrap());
            assert_eq!(peer_bar.bytes, bars[i].unwrap().window());
        }
        assert_eq!(peer.bar(1), None);
        // This NIC has one interval per BAR, without gaps. The on-chip network maps exactly these
        // intervals.
        let (first, second) = (peer.bar(0).unwrap(), peer.bar(2).unwrap());
        assert_eq!(first.at, slot.base());
        assert_eq!(second.at, first.at + first.bytes);
        let here = state(&[close().collect(), own.open().collect()]);
        let led = state(&[
            close().collect(),
            own.open().collect(),
            peer.open_windows().collect(),
        ]);
        let to = smfu::IntervalControl::to_node(to).raw();
        for peer_bar in [first, second] {
            let of = |at: wire::ids::RegOffset| led[&at.get()];
            let number = peer_bar.number.into();
            assert_eq!(of(smfu::interval_startaddr(number)), peer_bar.at);
            assert_eq!(
                of(smfu::interval_endaddr(number)),
                peer_bar.at + peer_bar.bytes
            );
            assert_eq!(of(smfu::interval_control(number)), to);
        }
        let mut maps = 0;
        for i in 0..htax::INTERVALS {
            let of = |at: wire::ids::RegOffset| (here.get(&at.get()), led.get(&at.get()));
            let (before, after) = of(htax::intvl_control(i));
            if before == after {
                // The device's own paths are unchanged.
                assert_eq!(of(htax::intvl_upper(i)).0, of(htax::intvl_upper(i)).1);
                continue;
            }
            assert_eq!(before, Some(&0));
            maps += 1;
            let bound = |at: wire::ids::RegOffset| led[&at.get()];
            assert_eq!((bound(htax::intvl_lower(i)) + 1) << 12, first.at);
            let end = second.at + second.bytes;
            assert_eq!(bound(htax::intvl_upper(i)) << 12, end);
        }
        assert_eq!(maps, 2);
        // When the path is closed, the on-chip network is closed first.
        let back: Vec<_> = peer.close_windows().collect();
        assert!(back[..2].iter().all(|s| s.value == 0));
        let over = state(&[
            close().collect(),
            own.open().collect(),
            peer.open_windows().collect(),
            back,
        ]);
        let control = |(at, _): &(&u32, &u64)| {
            (0..htax::INTERVALS).any(|i| htax::intvl_control(i).get() == **at)
                || (0..64).any(|k| smfu::interval_control(k).get() == **at)
        };
        assert!(over.iter().filter(control).all(|(k, v)| here[k] == *v));
        let none: Vec<_> = peer.close_targets().collect();
        assert!(none.len() == 2 && none.iter().all(|s| s.value == UNMAPPED_BASE.0));
    }
}

#[test]
fn a_peer_needs_numbers_and_room() {
    let new = |bars: &[Option<Bar>; 6], free| {
        Peer::new(Slot::First, NodeId(7), bars, |_| Some(0), free).map(drop)
    };
    let two = [bar(20, false), bar(12, false), None, None, None, None];
    assert_eq!(new(&two, 0b110), Ok(()));
    assert_eq!(new(&two, 0b100), Err(PlanError::NoInterval));
    assert_eq!(new(&two, (1 << 63) | 1), Err(PlanError::NoInterval));
    let large = [bar(29, false), None, None, None, None, None];
    assert_eq!(new(&large, !0), Ok(()));
    let large = [bar(29, false), bar(12, false), None, None, None, None];
    assert_eq!(new(&large, !0), Err(PlanError::NoRoom(1)));
}

#[test]
fn a_plan_needs_numbers_and_room() {
    let me = NodeId(3);
    let all = (u64::MAX, u64::MAX);
    let one = [bar(20, true), None, None, None, None, None];
    let make = |bars, free, used, dma| Plan::new(bars, me, free, used, dma).map(drop);
    assert_eq!(make(&one, all, 0, 4096), Ok(()));
    assert_eq!(make(&one, all, u64::MAX, 4096), Err(PlanError::NoInterval));
    assert_eq!(
        make(&one, (1, u64::MAX), 0, 4096),
        Err(PlanError::NoInterval)
    );
    assert_eq!(
        make(&one, (4, (1 << 63) | 1), 0, 4096),
        Err(PlanError::NoInterval)
    );
    assert_eq!(make(&one, (4, 6), 0, 4096), Ok(()));
    for dma in [0, 100, DMA_MAX + 4096, u64::MAX] {
        assert_eq!(make(&one, all, 0, dma), Err(PlanError::Memory));
    }
    let large = [None, bar(31, false), None, None, bar(47, true), None];
    assert_eq!(make(&large, all, 0, 4096), Err(PlanError::NoRoom(1)));
    let large = [None, None, None, None, bar(47, true), None];
    assert_eq!(make(&large, all, 0, 4096), Err(PlanError::NoRoom(4)));
}

/// Model of a function: registers, and their writable bits.
#[derive(Clone)]
struct Function {
    words: BTreeMap<u16, u32>,
    writable: BTreeMap<u16, u32>,
    log: Vec<(u16, u32)>,
}

impl Function {
    /// Returns a function like the emulator's test device: one BAR of 1 MiB, MSI-X, PCI Express
    /// with reset.
    fn new() -> Self {
        let words = [
            (0x00, 0x7E57_1CAD),
            (0x04, 0x0010_0006),
            (0x08, 0x1200_0001),
            (0x10, 0xE000_0004),
            (0x2C, 0x7E57_1CAD),
            (0x34, 0x40),
            (0x40, 0x0003_7001),
            (0x70, 0x0002_B010),
            (0x74, 0x1000_8001),
            (0xB0, 0x0003_0011),
            (0xB4, 0x1000),
            (0xB8, 0x1800),
        ];
        Self {
            words: words.into(),
            writable: [
                (0x10, 0xFFF0_0000),
                (0x14, u32::MAX),
                (0x04, 0x0546),
                (0x78, 0x7FFF),
            ]
            .into(),
            log: Vec::new(),
        }
    }

    fn with(mut self, at: u16, value: u32, writable: u32) -> Self {
        self.words.insert(at, value);
        self.writable.insert(at, writable);
        self
    }
}

impl Cycles for Function {
    fn read(&mut self, r: Register) -> Option<u32> {
        let word = self.words.get(&r.dword()).copied().unwrap_or(0);
        Some((word >> r.shift()) & r.ones())
    }

    fn write(&mut self, r: Register, value: u32) -> Option<()> {
        self.log.push((r.offset(), value));
        let can = self.writable.get(&r.dword()).copied().unwrap_or(0);
        let field = (r.ones() << r.shift()) & can;
        let word = self.words.entry(r.dword()).or_default();
        *word = *word & !field | (value << r.shift()) & field;
        Some(())
    }
}

fn found(mut f: Function) -> Result<Found, FunctionError> {
    describe(&mut f)
}

#[test]
fn a_function_is_described() {
    let mut f = Function::new();
    let found = describe(&mut f).unwrap();
    let id = found.identity;
    assert_eq!(
        (id.vendor, id.device, id.class, id.revision),
        (0x1CAD, 0x7E57, 0x12_0000, 1)
    );
    let large = Some(Bar {
        log2: 20,
        is_64bit: true,
        prefetchable: false,
    });
    assert_eq!(found.bars, [large, None, None, None, None, None]);
    assert_eq!(
        (found.reset.register.offset(), found.reset.bit),
        (0x78, 0x8000)
    );
    // Decoding is disabled while the BARs have test values, which are restored.
    assert_eq!(f.log[0], (0x04, 0));
    assert_eq!((f.words[&0x10], f.words[&0x14]), (0xE000_0004, 0));
    assert_eq!(f.words[&0x04] & 6, 0);
    // The other BARs have 32 bits, are for I/O ports, or are not implemented.
    let f = Function::new()
        .with(0x18, 0x8, 0xFFFF_F000)
        .with(0x1C, 0x1, 0xFFFF_FF00)
        .with(0x20, 0, 0x8000_0000);
    let narrow = |log2, prefetchable| {
        Some(Bar {
            log2,
            is_64bit: false,
            prefetchable,
        })
    };
    assert_eq!(
        describe(&mut f.clone()).unwrap().bars,
        [large, None, narrow(12, true), None, narrow(31, false), None]
    );
}

#[test]
fn impossible_functions_are_refused() {
    let refused = |at, value, writable| found(Function::new().with(at, value, writable)).err();
    use FunctionError::{Bar, Gone, Layout, NoBars, NoReset};
    assert_eq!(refused(0, 0xFFFF_FFFF, 0), Some(Gone));
    assert_eq!(refused(0, 0x7E57_0000, 0), Some(Gone));
    // Impossible BARs: 2^60 bytes, mask with holes, reserved kind, all ones, 64 bits in the last
    // register.
    assert_eq!(refused(0x14, 0, 0xF000_0000), Some(Bar(0, 0xFFF0_0004)));
    assert!(matches!(refused(0x10, 4, 0x8010_0000), Some(Bar(0, _))));
    assert!(matches!(refused(0x18, 2, 0xFFFF_F000), Some(Bar(2, _))));
    assert!(matches!(refused(0x18, u32::MAX, 0), Some(Bar(2, _))));
    assert!(matches!(refused(0x24, 4, 0xFFFF_F000), Some(Bar(5, _))));
    let none = Function::new().with(0x10, 0, 0).with(0x14, 0, 0);
    assert_eq!(found(none).err(), Some(NoBars));
    assert!(matches!(
        refused(0x34, 0xFC, 0),
        Some(Layout(_)) | Some(NoReset)
    ));
    // The list of capabilities is circular.
    assert!(matches!(refused(0x40, 0x0003_4001, 0), Some(Layout(_))));
    // The function is a bridge.
    assert!(matches!(refused(0x0C, 0x0001_0000, 0), Some(Layout(_))));
    assert_eq!(refused(0x74, 0x8001, 0), Some(NoReset));
}

/// Function with random registers.
struct Noise(u64);

impl Cycles for Noise {
    fn read(&mut self, r: Register) -> Option<u32> {
        self.0 = self
            .0
            .wrapping_mul(0x5851_F42D_4C95_7F2D)
            .wrapping_add(0x1405_7B7E_F767_814F);
        Some((self.0 >> 32) as u32 & r.ones()).filter(|_| self.0 % 97 != 0)
    }

    fn write(&mut self, _: Register, _: u32) -> Option<()> {
        Some(())
    }
}

proptest! {
    /// Random register values are refused, or describe possible BARs. The code never panics.
    #[test]
    fn noise_is_no_function(seed: u64) {
        prop_assert!(describe(&mut Noise(seed)).is_err());
    }

    /// For any register values, a function that is accepted has possible BARs.
    #[test]
    fn what_is_found_can_be(words in proptest::collection::vec(any::<(u8, u32, u32)>(), 0..24)) {
        let mut f = Function::new();
        for (at, value, writable) in words {
            f = f.with(u16::from(at) & 0xFC, value, writable);
        }
        if let Ok(found) = describe(&mut f) {
            for (i, bar) in found.bars.iter().enumerate() {
                let Some(bar) = bar else { continue };
                prop_assert!((4..=Bar::LOG2_MAX).contains(&bar.log2));
                prop_assert!(bar.is_64bit || bar.log2 < 32);
                prop_assert!(!bar.is_64bit || i < 5 && found.bars[i + 1].is_none());
            }
            if let Ok(plan) = Plan::new(&found.bars, NodeId(1), (!1, !1), 0, 4096) {
                for (i, bar) in found.bars.iter().enumerate() {
                    let at = bar.and_then(|b| Some(plan.address(i)? % b.window()));
                    prop_assert_eq!(at.unwrap_or(0), 0);
                }
            }
        }
    }
}

#[test]
fn drivers_write_what_is_theirs() {
    let f = Function::new()
        .with(0x40, 0x0003_5001, 0)
        .with(0x50, 0x0180_7005, u32::MAX);
    let found = found(f).unwrap();
    let reach = Reach::new(0x1040_0000, 4096);
    let mut filter = AccessFilter::new(&found.layout, found.reset, reach, 100);
    let register = |at, size| Register::new(at, size).unwrap();
    let write = |at, size, value| ConfigAccess::Write(register(at, size), value);
    let mut asks = |now, request| filter.access(Time(now), request);
    // Bus mastering is allowed. BARs are not writable. MSI can only address the interrupt page.
    assert!(matches!(asks(0, write(0x04, 2, 6)), Access::Write(_, w) if w.value & 6 == 6));
    assert_eq!(asks(0, write(0x10, 4, 0)), Access::Denied);
    assert_eq!(
        asks(0, ConfigAccess::Read(register(0x10, 4))),
        Access::Denied
    );
    assert_eq!(asks(0, write(0x54, 4, 0x1000_0000)), Access::Denied);
    assert_eq!(
        asks(0, ConfigAccess::Read(register(0, 4))),
        Access::Read(register(0, 4))
    );
    // A write to one byte of the command register includes the byte that disables the interrupt
    // pin.
    assert!(matches!(
        asks(0, write(0x04, 1, 6)),
        Access::Write(r, w) if r == register(0x04, 2) && w.value == 0x406
    ));
    // MSI can be enabled after its whole address was written, not after a request to write it.
    for (at, value) in [(0x54, 0x1040_0000), (0x58, 0)] {
        let enable = filter.access(Time(0), write(0x52, 2, 1));
        assert_eq!(enable, Access::Denied, "before {at:#x} is written");
        let access = filter.access(Time(0), write(at, 4, value));
        assert!(matches!(access, Access::Write(..)), "{access:?}");
        filter.executed(register(at, 4));
    }
    let mut asks = |now, request| filter.access(Time(now), request);
    assert!(matches!(asks(1, write(0x52, 2, 1)), Access::Write(..)));
    // A reset takes time, and BARs are restored before any other access.
    assert_eq!(asks(5, ConfigAccess::Reset), Access::Reset(found.reset));
    filter.reset(Time(5));
    assert_eq!(
        filter.access(Time(104), ConfigAccess::Reset),
        Access::Resetting
    );
    let id = ConfigAccess::Read(register(0, 4));
    assert_eq!(filter.access(Time(105), id), Access::Restore);
    filter.restored();
    assert_eq!(filter.access(Time(106), id), Access::Read(register(0, 4)));
    // An address written before the reset does not enable MSI.
    assert_eq!(filter.access(Time(107), write(0x52, 2, 1)), Access::Denied);
}

#[test]
fn a_function_that_answers_nothing_is_dead_if_its_nic_answers() {
    let found = found(Function::new()).unwrap();
    let mut filter = AccessFilter::new(&found.layout, found.reset, None, 100);
    for n in 0..UNANSWERED_MAX {
        assert_eq!(filter.silent_since(), None);
        filter.answered(Time(50 + u64::from(n)), false);
    }
    assert_eq!(filter.silent_since(), Some(Time(50)));
    filter.answered(Time(90), true);
    assert_eq!(filter.silent_since(), None);
    for n in 0..UNANSWERED_MAX {
        filter.answered(Time(100 + u64::from(n)), false);
    }
    assert_eq!(filter.silent_since(), Some(Time(100)));

    // A check that began before time 100 does not prove that the device answered after this time.
    let record = LeaseRecord {
        state: State::Lent,
        node: NodeId(1),
        nonce: 7,
    };
    let mut watch = Watch::new(record, Time(0), 1000);
    let _ = watch.checked(Time(99), Time(101), Some((record.raw(), true)));
    assert!(!watch.has_answered(Time(100)));
    let _ = watch.checked(Time(110), Time(111), None);
    assert!(!watch.has_answered(Time(100)));
    let _ = watch.checked(Time(120), Time(121), Some((record.raw(), true)));
    assert!(watch.has_answered(Time(100)));
}
