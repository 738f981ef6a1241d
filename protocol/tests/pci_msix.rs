//! Tests of MSI-X tables of malicious lenders (docs/pci-protocol.md, *Trust*).

use protocol::pci::config::{Layout, Msix, NotInBar};
use wire::pci::{Bar, BARS};

/// Returns the registers of a function with MSI-X at 0x40, and the given table and pending bits.
fn dword(table: u32, pending: u32, size: u32) -> impl Fn(u16) -> u32 {
    move |at| match at {
        0x00 => 0x0010_1b36,
        0x04 => 0x0010_0006,
        0x08 => 0x0108_0202,
        0x34 => 0x40,
        0x40 => (size << 16) | 0x0011,
        0x44 => table,
        0x48 => pending,
        _ => 0,
    }
}

fn look(table: u32, pending: u32, size: u32) -> Result<Option<Msix>, NotInBar> {
    let dword = dword(table, pending, size);
    let layout = Layout::read(&dword).expect("a device");
    let mut bars = [None; BARS];
    bars[0] = Some(Bar {
        log2: 14,
        is_64bit: true,
        prefetchable: false,
    });
    Msix::read(&layout, &bars, dword)
}

#[test]
fn a_table_in_its_bar_is_good() {
    let found = look(0x2000, 0x3000, 64).expect("inside").expect("there");
    assert_eq!(found.vectors(), 65);
    // The table may end at the last byte of its BAR.
    assert!(look(0x3000, 0x2000, 255).is_ok());
}

#[test]
fn a_table_beyond_its_bar_is_refused() {
    for (table, pending, size) in [
        (0x3000, 0x2000, 256),
        (0x3fff_fff8, 0x2000, 0),
        (0xffff_fff8, 0x2000, 2047),
        (0x2000, 0x4000, 0),
        // These locations are in missing BARs, and in upper halves of BARs.
        (0x2001, 0x3000, 0),
        (0x2000, 0x3005, 0),
        (0x2007, 0x3000, 0),
    ] {
        assert_eq!(look(table, pending, size), Err(NotInBar), "{table:#x}");
    }
}
