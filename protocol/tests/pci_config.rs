//! Tests of the configuration registers of a lent function, as the borrower's kernel may read and
//! write them.

use proptest::prelude::*;
use protocol::pci::config::{Filter, Layout, LayoutError, Read, Shown, Space, Verdict, Written};
use protocol::pci::Reach;
use wire::pci::{Bar, Register};

/// Configuration registers of a function, four bytes each.
#[derive(Clone)]
struct Function(Vec<u32>);

impl Function {
    /// Returns a function like an NVMe controller, with the capabilities power management, MSI, a
    /// hidden capability, MSI-X and PCI Express. Its extended capabilities are errors, serial
    /// number and SR-IOV.
    fn new() -> Self {
        let mut f = Self(vec![0; 1024]);
        for (at, value) in [
            (0x00, 0x0010_1b36),
            (0x04, 0x0010_0007),
            (0x08, 0x0108_0202),
            (0x0c, 0x8080_0010),
            (0x10, 0xfe10_0004),
            (0x18, 0xfe20_000c),
            (0x20, 0xfe30_0000),
            (0x24, 0x0000_e001),
            (0x2c, 0x1100_1af4),
            (0x30, 0xfe40_0001),
            (0x34, 0x68),
            (0x3c, 0x0406_010b),
            // Vital product data is the first capability, and is hidden.
            (0x68, 0x0000_4003),
            (0x40, 0x0003_5001),
            (0x44, 0x0000_0008),
            (0x50, 0x0180_7005),
            (0x70, 0x0040_8011),
            (0x80, 0x0002_0010),
            (0xc0, 0x5555_aaaa),
            (0x100, 0x1482_0001),
            (0x148, 0x1601_0003),
            (0x160, 0x0001_0010),
            (0x200, 0x7777_7777),
        ] {
            f.0[at / 4] = value;
        }
        f
    }

    fn word(&self, at: u16) -> u32 {
        self.0[usize::from(at) / 4]
    }

    fn layout(&self) -> Result<Layout, LayoutError> {
        Layout::read(|at| self.word(at))
    }

    /// Returns a register as the borrower's kernel reads it.
    fn seen(&self, space: &Space, offset: u16, size: u8) -> u32 {
        let r = register(offset, size);
        match space.read(r) {
            Read::Value(value) => value,
            Read::Ask => space.seen(r, (self.word(r.dword()) >> r.shift()) & r.ones()),
        }
    }
}

fn register(offset: u16, size: u8) -> Register {
    Register::new(offset, size).expect("a register")
}

fn bar(log2: u8, is_64bit: bool, prefetchable: bool) -> Option<Bar> {
    Some(Bar {
        log2,
        is_64bit,
        prefetchable,
    })
}

const AT: [u64; 6] = [0x12_8000_0000, 0, 0x14_0000_0000, 0, 0x9000_0000, 0];

fn space(f: &Function) -> Space {
    let layout = f.layout().expect("a layout");
    let bars = [
        bar(14, true, false),
        None,
        bar(33, true, true),
        None,
        bar(12, false, false),
        None,
    ];
    Space::new(&layout, &bars, &AT)
}

fn filter(base: u64) -> Filter {
    Filter::new(Reach::new(base, 4096))
}

#[test]
fn chains_lead_to_what_is_shown() {
    let f = Function::new();
    let layout = f.layout().expect("a layout");
    let shown: Vec<_> = layout
        .capabilities()
        .iter()
        .map(|c| (c.at, c.len, c.shown.is_some(), c.next))
        .collect();
    assert_eq!(
        shown,
        [
            (0x40, 8, true, 0x50),
            (0x50, 24, true, 0x70),
            (0x68, 8, false, 0x70),
            (0x70, 12, true, 0x80),
            (0x80, 60, true, 0),
            (0x100, 0x48, false, 0x148),
            (0x148, 12, true, 0),
            (0x160, 0xea0, false, 0),
        ]
    );
}

#[test]
fn a_kernel_that_walks_the_chains_meets_nothing_hidden() {
    let f = Function::new();
    let space = space(&f);
    let mut ids = Vec::new();
    let mut at = f.seen(&space, 0x34, 1);
    while at != 0 {
        let word = f.seen(&space, at as u16, 4);
        ids.push(word & 0xff);
        at = (word >> 8) & 0xff;
    }
    assert_eq!(ids, [0x01, 0x05, 0x11, 0x10]);
    let (mut ids, mut at) = (Vec::new(), 0x100);
    while at != 0 {
        let word = f.seen(&space, at as u16, 4);
        ids.push(word & 0xffff);
        at = word >> 20;
    }
    // An empty header links to the visible capabilities.
    assert_eq!(ids, [0, 3]);
    // Hidden capabilities and the registers after them read as 0.
    for at in [0x6c, 0x104, 0x160, 0x200, 0x300] {
        assert_eq!(f.seen(&space, at, 4), 0, "{at:#x}");
    }
    // Registers outside of capabilities come from the device.
    assert_eq!(f.seen(&space, 0xc0, 4), 0x5555_aaaa);
}

#[test]
fn a_kernel_sees_one_function_without_ports_rom_and_pin() {
    let f = Function::new();
    let space = space(&f);
    assert_eq!(f.seen(&space, 0x00, 4), 0x0010_1b36);
    assert_eq!(f.seen(&space, 0x04, 2), 0x0006);
    assert_eq!(f.seen(&space, 0x0c, 4), 0x0000_0010);
    assert_eq!(f.seen(&space, 0x0e, 1), 0);
    assert_eq!(f.seen(&space, 0x24, 4), 0);
    assert_eq!(f.seen(&space, 0x30, 4), 0);
    assert_eq!(f.seen(&space, 0x3d, 1), 0);
    assert_eq!(f.seen(&space, 0x3c, 4), 0x0406_0000);
    // All ones of a device that does not answer remain all ones.
    assert_eq!(space.seen(register(4, 2), 0xffff), 0xffff);
    assert_eq!(space.seen(register(0x3c, 4), u32::MAX), u32::MAX);
}

/// Kernels write all ones to a BAR, read it back, and restore the old value.
#[test]
fn bars_are_sized_and_stay() {
    let f = Function::new();
    let mut space = space(&f);
    for (i, wanted) in [
        (0, 0xffff_c004),
        (1, 0xffff_ffff),
        (2, 0x0000_000c),
        (3, 0xffff_fffe),
        (4, 0xffff_f000),
        (5, 0),
    ] {
        let r = register(0x10 + 4 * i, 4);
        let old = f.seen(&space, r.offset(), 4);
        assert_eq!(space.write(r, u32::MAX), Written::Done);
        assert_eq!(f.seen(&space, r.offset(), 4), wanted, "BAR {i}");
        assert_eq!(space.write(r, old), Written::Done);
        assert_eq!(f.seen(&space, r.offset(), 4), old);
    }
    assert_eq!(space.address(0), Some(AT[0]));
    assert_eq!(space.address(1), None);
    assert_eq!(space.address(2), Some(AT[2]));
    assert_eq!(space.address(4), Some(AT[4]));
    // Single bytes can be written.
    assert_eq!(space.write(register(0x13, 1), 0x70), Written::Done);
    assert_eq!(space.address(0), Some(0x12_7000_0000));
    // There is no ROM. The kernel may store any value in the interrupt line.
    assert_eq!(space.write(register(0x30, 4), u32::MAX), Written::Done);
    assert_eq!(f.seen(&space, 0x30, 4), 0);
    assert_eq!(space.write(register(0x3c, 1), 0x0b), Written::Done);
    assert_eq!(f.seen(&space, 0x3c, 2), 0x000b);
}

#[test]
fn writes_go_to_the_lender_or_are_resets() {
    let f = Function::new();
    let mut space = space(&f);
    let command = register(4, 2);
    assert_eq!(space.write(command, 0x407), Written::Ask(command, 0x406));
    let control = register(0x88, 2);
    assert_eq!(space.write(control, 0x2810), Written::Ask(control, 0x2810));
    assert_eq!(space.write(control, 0xa810), Written::Reset);
    assert_eq!(
        space.write(register(0x8a, 2), 0x8000),
        Written::Ask(register(0x8a, 2), 0x8000)
    );
    // Writes to hidden capabilities have no effect.
    assert_eq!(space.write(register(0x6c, 4), 5), Written::Done);
    assert_eq!(space.write(register(0x168, 4), 5), Written::Done);
    // This function is reset by the Advanced Features capability.
    let mut f = Function::new();
    f.0[0x34 / 4] = 0x40;
    f.0[0x40 / 4] = 0x0306_0013;
    let mut space = self::space(&f);
    assert_eq!(space.write(register(0x44, 1), 1), Written::Reset);
    assert_eq!(
        space.write(register(0x44, 1), 0),
        Written::Ask(register(0x44, 1), 0)
    );
}

#[test]
fn functions_that_can_not_be_lent_are_told() {
    let changed = |changes: &[(usize, u32)]| {
        let mut f = Function::new();
        for (at, value) in changes {
            f.0[at / 4] = *value;
        }
        f.layout().err()
    };
    assert_eq!(changed(&[]), None);
    assert_eq!(changed(&[(0, u32::MAX)]), Some(LayoutError::Gone));
    assert_eq!(
        changed(&[(0x0c, 0x0001_0000)]),
        Some(LayoutError::Header(1))
    );
    // Invalid chains: circles, pointers into the header, pointers to missing capabilities.
    assert!(matches!(
        changed(&[(0x80, 0x0002_4010)]),
        Some(LayoutError::Chain(_))
    ));
    assert_eq!(
        changed(&[(0x80, 0x0002_1010)]),
        Some(LayoutError::Chain(0x10))
    );
    assert_eq!(changed(&[(0x148, 0x1001_0003)]), Some(LayoutError::TooMany));
    assert_eq!(
        changed(&[(0x160, 0x0841_0010)]),
        Some(LayoutError::Chain(0x84))
    );
    assert_eq!(
        changed(&[(0x160, 0x3001_0010)]),
        Some(LayoutError::Chain(0x300))
    );
    // MSI has 24 bytes, and another capability begins at its byte 16.
    assert_eq!(
        changed(&[(0x50, 0x0180_6005), (0x34, 0x50), (0x60, 0x0003_0001)]),
        Some(LayoutError::Overlap(0x50))
    );
    assert_eq!(
        changed(&[(0x68, 0x0000_4014)]),
        Some(LayoutError::Allocation)
    );
    // This function has no capabilities. Without PCI Express, it has no extended capabilities
    // either.
    let mut f = Function::new();
    f.0[1] = 0;
    let layout = f.layout().expect("a layout");
    assert!(layout.capabilities().is_empty());
    f.0[1] = 0x0010_0000;
    f.0[0x70 / 4] = 0x0040_0011;
    let layout = f.layout().expect("a layout");
    assert!(layout.capabilities().iter().all(|c| !c.is_extended()));
}

/// Executes a write if it is allowed. Returns the value and the bits that are kept.
fn written(filter: &mut Filter, offset: u16, size: u8, value: u32) -> Option<(u32, u32)> {
    let layout = Function::new().layout().expect("a layout");
    let register = register(offset, size);
    match filter.write(&layout, register, value) {
        Verdict::Write(write) => {
            filter.executed(&layout, Filter::accessed_register(register));
            Some((write.value, write.keep))
        }
        Verdict::Denied => None,
        Verdict::Read => panic!("a write is read"),
    }
}

#[test]
fn a_borrower_writes_what_it_may() {
    let mut f = filter(0xfe00_1000);
    let mut write = |offset, size, value| written(&mut f, offset, size, value);
    // In the command register, memory, bus mastering and errors are writable. I/O ports are not
    // writable, and the pin remains disabled.
    assert_eq!(write(4, 2, 0xffff), Some((0x0546, 0xfab9)));
    assert_eq!(write(4, 2, 0), Some((0x0400, 0xfab9)));
    // A write to the status register alone clears errors. The next write covers both registers.
    assert_eq!(write(6, 2, 0xffff), Some((0xf900, 0x06ff)));
    assert_eq!(write(4, 4, 6), Some((0x0406, 0x06ff_fab9)));
    assert_eq!(write(0x0c, 1, 0x10), Some((0x10, 0)));
    // Power states are writable, because the function keeps its registers.
    assert_eq!(write(0x44, 2, 0x0103), Some((3, 0x7ffc)));
    // Writable bits of MSI-X are enable and function mask, and of PCI Express the device control.
    assert_eq!(write(0x72, 2, 0xffff), Some((0xc000, 0x3fff)));
    assert_eq!(write(0x88, 2, 0xffff), Some((0x7910, 0x86ef)));
    for (offset, size) in [
        (0x00, 4),
        (0x08, 4),
        (0x0e, 1),
        (0x0f, 1),
        (0x10, 4),
        (0x13, 1),
        (0x24, 4),
        (0x28, 4),
        (0x2c, 4),
        (0x30, 4),
        (0x34, 1),
        (0x3c, 1),
        // These registers are not writable: hidden capabilities, registers after them, links,
        // read-only and unknown registers.
        (0x6c, 4),
        (0x160, 4),
        (0x200, 4),
        (0x40, 2),
        (0x74, 4),
        (0x78, 4),
        (0x90, 2),
        (0xa8, 2),
        (0xc0, 4),
        (0x148, 4),
        (0x100, 4),
    ] {
        assert_eq!(
            write(offset, size, u32::MAX >> (32 - 8 * size)),
            None,
            "{offset:#x}"
        );
    }
    // The addresses of BARs at the lender are not readable.
    let layout = Function::new().layout().expect("a layout");
    for (offset, verdict) in [
        (0x00, Verdict::Read),
        (0x10, Verdict::Denied),
        (0x24, Verdict::Denied),
        (0x28, Verdict::Read),
        (0x30, Verdict::Denied),
        (0x148, Verdict::Read),
        (0x150, Verdict::Read),
        // Registers outside of capabilities are read from the device, except extended registers.
        (0xc0, Verdict::Read),
        (0x154, Verdict::Denied),
        // The first four bytes of hidden capabilities are readable, because they link to other
        // capabilities. The other registers of hidden capabilities are not readable: vital product
        // data, headers of failed packets, BARs of virtual functions.
        (0x68, Verdict::Read),
        (0x6c, Verdict::Denied),
        (0x100, Verdict::Read),
        (0x11c, Verdict::Denied),
        (0x160, Verdict::Read),
        (0x184, Verdict::Denied),
        (0x188, Verdict::Denied),
        (0xffc, Verdict::Denied),
    ] {
        assert_eq!(f.read(&layout, register(offset, 4)), verdict, "{offset:#x}");
    }
    // The borrower reads the same list of capabilities nevertheless.
    let function = Function::new();
    let seen = Layout::read(|at| match f.read(&layout, register(at, 4)) {
        Verdict::Read => function.word(at),
        _ => u32::MAX,
    });
    assert_eq!(seen, Ok(layout));
}

/// The interrupt pin remains disabled, whichever bytes are written.
#[test]
fn the_pin_stays_disabled() {
    let layout = Function::new().layout().expect("a layout");
    for (offset, size, value, wanted) in [
        (4, 1, 0x06, 0x0406),
        (4, 1, 0x00, 0x0500),
        (4, 2, 0x0006, 0x0406),
        (5, 1, 0x00, 0x0400),
        (5, 1, 0x01, 0x0500),
        (4, 4, 0x0000_0106, 0x0506),
    ] {
        let r = register(offset, size);
        let Verdict::Write(write) = filter(4096).write(&layout, r, value) else {
            panic!("{offset:#x} can't be written");
        };
        let (accessed, old) = (
            Filter::accessed_register(r),
            0x0500_u32 & !(1 << 10) | 0x0100,
        );
        let (ones, shift) = (accessed.ones(), accessed.shift());
        let new = write.merged((old >> shift) & ones);
        let new = (old & !(ones << shift)) | (new << shift);
        assert_eq!(new & 0x0400, 0x0400, "{offset:#x} of {size}");
        let kept = u32::from(size == 1 && offset == 4) << 8;
        assert_eq!(new & 0xffff, wanted | kept, "{offset:#x} of {size}");
    }
}

/// A write counts only after its execution. MSI can be enabled after its address was written, but
/// not after a mere request to write the address.
#[test]
fn an_address_counts_when_it_has_been_written() {
    let layout = Function::new().layout().expect("a layout");
    let mut f = filter(0x12_fe00_1000);
    let low = (register(0x54, 4), 0xfe00_1000);
    let high = (register(0x58, 4), 0x12);
    for (r, value) in [low, high] {
        assert!(matches!(f.write(&layout, r, value), Verdict::Write(_)));
    }
    let enable = |f: &Filter| f.write(&layout, register(0x52, 2), 1) != Verdict::Denied;
    f.executed(&layout, high.0);
    assert!(!enable(&f));
    f.executed(&layout, low.0);
    assert!(enable(&f));
}

/// A function that loses its BARs in D3hot cannot be sent there.
#[test]
fn power_states_are_for_functions_that_keep_their_registers() {
    let mut f = Function::new();
    f.0[0x44 / 4] = 0;
    let layout = f.layout().expect("a layout");
    let verdict = filter(4096).write(&layout, register(0x44, 2), 3);
    let Verdict::Write(write) = verdict else {
        panic!("{verdict:?}");
    };
    assert_eq!(write.value & 3, 0);
    assert_eq!(write.keep & 3, 3);
    // D3hot does not reset the function, and the kernel sees *no soft reset*. A kernel that used
    // D3hot as a reset would pass the old state to the next user.
    let space = space(&f);
    assert_eq!(f.seen(&space, 0x44, 2), 0x0008);
    assert_eq!(f.seen(&space, 0x44, 4), 0x0008);
    assert_eq!(f.seen(&space, 0x44, 1), 0x08);
    assert_eq!(f.seen(&space, 0x45, 1), 0);
    f.0[0x44 / 4] = 0x0000_8100;
    assert_eq!(f.seen(&space, 0x44, 2), 0x8108);
}

#[test]
fn msi_leads_into_the_window_or_nowhere() {
    let base = 0x12_fe00_1000_u64;
    let mut f = filter(base);
    let enable = 0x0081;
    // MSI cannot be enabled before it has an address.
    assert_eq!(written(&mut f, 0x52, 2, enable), None);
    assert_eq!(
        written(&mut f, 0x54, 4, 0xfe00_1000),
        Some((0xfe00_1000, 0))
    );
    assert_eq!(written(&mut f, 0x52, 2, enable), None);
    assert_eq!(written(&mut f, 0x58, 4, 0x13), None);
    assert_eq!(written(&mut f, 0x52, 2, enable), None);
    assert_eq!(written(&mut f, 0x58, 4, 0x12), Some((0x12, 0)));
    assert_eq!(written(&mut f, 0x52, 2, enable), Some((1, 0xff8e)));
    // The whole address must be in the window.
    for outside in [0, 0xfe00_0ffc, 0xfe00_2000, 0xfe00_1ffd, 0xfee0_0000] {
        assert_eq!(written(&mut f, 0x54, 4, outside), None, "{outside:#x}");
    }
    assert_eq!(written(&mut f, 0x54, 2, 0x1000), None);
    assert_eq!(written(&mut f, 0x5b, 1, 0), None);
    assert_eq!(
        written(&mut f, 0x54, 4, 0xfe00_1ffc),
        Some((0xfe00_1ffc, 0))
    );
    // Data and masks are writable, and pending bits are not.
    assert_eq!(written(&mut f, 0x5c, 2, 7), Some((7, 0)));
    assert_eq!(written(&mut f, 0x60, 4, 7), Some((7, 0)));
    assert_eq!(written(&mut f, 0x64, 4, 7), None);
    // MSI can always be disabled. After a reset its address must be written again.
    assert_eq!(written(&mut f, 0x52, 2, 0), Some((0, 0xff8e)));
    f.reset();
    assert_eq!(written(&mut f, 0x52, 2, enable), None);
    // Without a window there are no interrupts.
    let mut none = Filter::new(None);
    assert_eq!(written(&mut none, 0x54, 4, 0), None);
}

#[test]
fn msi_of_32_bits_reaches_windows_below_4_gib() {
    let mut function = Function::new();
    function.0[0x50 / 4] = 0x0100_7005;
    function.0[0x34 / 4] = 0x50;
    let layout = function.layout().expect("a layout");
    let msi = layout.at(0x50).and_then(|c| c.shown);
    let wanted = Shown::Msi {
        wide: false,
        masks: true,
    };
    assert_eq!(msi, Some(wanted));
    for (base, wanted) in [(0xfe00_1000_u64, true), (0x1_fe00_1000, false)] {
        let mut f = filter(base);
        let low = f.write(&layout, register(0x54, 4), 0xfe00_1000);
        assert!(matches!(low, Verdict::Write(_)));
        f.executed(&layout, register(0x54, 4));
        let enabled = f.write(&layout, register(0x52, 2), 1);
        assert_eq!(matches!(enabled, Verdict::Write(_)), wanted, "{base:#x}");
        let data = f.write(&layout, register(0x58, 2), 7);
        assert!(matches!(data, Verdict::Write(w) if (w.value, w.keep) == (7, 0)));
        let masks = f.write(&layout, register(0x5c, 4), 7);
        assert!(matches!(masks, Verdict::Write(w) if (w.value, w.keep) == (7, 0)));
        let pending = f.write(&layout, register(0x60, 4), 7);
        assert_eq!(pending, Verdict::Denied);
    }
}

proptest! {
    /// For any sequence of writes, of which some are executed, the lender never writes BARs, never
    /// enables I/O ports or the pin, and never writes MSI addresses outside of the window.
    #[test]
    fn nothing_dangerous_is_ever_written(
        writes in proptest::collection::vec(
            (0_u16..0x200, 0_u8..3, any::<u32>(), 0_u8..5, 0_u8..5),
            1..40,
        ),
        disabled in any::<bool>(),
    ) {
        let layout = Function::new().layout().expect("a layout");
        let (base, mut f) = (0x1_fe00_1000_u64, filter(0x1_fe00_1000));
        let mut device = Function::new();
        device.0[1] &= !1;
        device.0[1] |= u32::from(disabled) << 10;
        let mut safe = disabled;
        for (offset, log2, value, kind, made) in writes {
            // Write to the registers of MSI frequently.
            let (offset, log2, value) = match kind {
                0 => (0x54, 2, base as u32 | value & 0xffc),
                1 => (0x58, 2, 1),
                2 => (0x52, 1, value & 0x70 | 1),
                3 => (4 | offset & 1, log2.min(2 - 2 * (offset & 1) as u8), value),
                _ => (offset, log2, value),
            };
            let Some(r) = Register::new(offset & !((1 << log2) - 1), 1 << log2) else {
                continue;
            };
            // Some writes fail, or are never executed.
            if let (Verdict::Write(write), 1..) = (f.write(&layout, r, value & r.ones()), made) {
                let accessed = Filter::accessed_register(r);
                let old = device.word(accessed.dword());
                let new = write.merged((old >> accessed.shift()) & accessed.ones());
                let field = accessed.ones() << accessed.shift();
                let dword = usize::from(accessed.dword()) / 4;
                device.0[dword] = (old & !field) | (new << accessed.shift());
                f.executed(&layout, accessed);
                safe |= (4..6).contains(&accessed.offset());
            }
            let start = Function::new();
            for at in (0x10..0x40).step_by(4) {
                prop_assert_eq!(device.word(at), start.word(at));
            }
            prop_assert_eq!(device.word(4) & 1, 0);
            prop_assert!(!safe || device.word(4) & 0x400 != 0);
            prop_assert_eq!((device.word(0x88) >> 15) & 1, 0);
            if (device.word(0x50) >> 16) & 1 != 0 {
                let address = (u64::from(device.word(0x58)) << 32) | u64::from(device.word(0x54));
                prop_assert!((base..base + 4096).contains(&address));
            }
        }
    }

    /// For any sequence of reads and writes of the borrower's kernel, the lender never writes BARs,
    /// and values do not exceed the size of their register.
    #[test]
    fn registers_have_their_size(
        offset in 0_u16..4096,
        log2 in 0_u8..3,
        value in any::<u32>(),
    ) {
        let f = Function::new();
        let mut space = space(&f);
        let Some(r) = Register::new(offset & !((1 << log2) - 1), 1 << log2) else {
            return Ok(());
        };
        prop_assert_eq!(f.seen(&space, r.offset(), r.size()) & !r.ones(), 0);
        if let Written::Ask(to, value) = space.write(r, value) {
            prop_assert_eq!(to, r);
            prop_assert_eq!(value & !r.ones(), 0);
            prop_assert!(!(0x10..0x28).contains(&r.dword()));
        }
        prop_assert_eq!(f.seen(&space, r.offset(), r.size()) & !r.ones(), 0);
    }
}
