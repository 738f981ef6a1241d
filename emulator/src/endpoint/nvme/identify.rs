//! Data structures that describe the controller and its namespace, and log pages (NVM Express 1.4,
//! 5.14 and 5.15).

use super::disk::BLOCK_LOG2;
use super::regs::VERSION;
use super::MOST_DATA_LOG2;

/// Size of each Identify structure in bytes.
pub(super) const BYTES: usize = 4096;
/// Maximum number of pending asynchronous event requests.
pub(super) const EVENTS: usize = 4;
/// Current temperature, warning threshold and critical threshold in kelvin.
const TEMPERATURES: [u16; 3] = [300, 343, 373];
/// First byte of a locally administered IEEE identifier.
const LOCAL: u8 = 0x02;

struct Page(Vec<u8>);

impl Page {
    fn new(bytes: usize) -> Self {
        Self(vec![0; bytes])
    }

    fn put(mut self, at: usize, data: &[u8]) -> Self {
        self.0[at..at + data.len()].copy_from_slice(data);
        self
    }

    /// Stores ASCII text, padded with blanks.
    fn text(mut self, at: usize, len: usize, text: &str) -> Self {
        self.0[at..at + len].fill(b' ');
        let n = text.len().min(len);
        self.put(at, &text.as_bytes()[..n])
    }
}

/// Returns the Identify structure of the controller. `serial` distinguishes controllers of one
/// vendor.
pub(super) fn controller(vendor: u16, serial: u32) -> Vec<u8> {
    let [_, warning, critical] = TEMPERATURES;
    let name = format!("nqn.2024-01.example.extoll:drive-{serial:08x}");
    Page::new(BYTES)
        .put(0, &vendor.to_le_bytes())
        .put(2, &vendor.to_le_bytes())
        .text(4, 20, &format!("{serial:08X}"))
        .text(24, 40, "Extoll emulated drive")
        .text(64, 8, env!("CARGO_PKG_VERSION"))
        // Maximum number of data pages of a command, as a power of two.
        .put(77, &[MOST_DATA_LOG2 - 12])
        .put(78, &1u16.to_le_bytes())
        .put(80, &VERSION.to_le_bytes())
        // Type of the controller: I/O controller.
        .put(111, &[1])
        // Abort limit, event limit, one read-only firmware slot, and log pages that support
        // offsets.
        .put(258, &[3, EVENTS as u8 - 1, 0x03, 0x04])
        .put(266, &warning.to_le_bytes())
        .put(268, &critical.to_le_bytes())
        // Sizes of queue entries, as powers of two.
        .put(512, &[0x66, 0x44])
        // One namespace, Write Zeroes, and a volatile cache that one Flush command can flush for
        // all namespaces.
        .put(516, &1u32.to_le_bytes())
        .put(520, &0x0008u16.to_le_bytes())
        .put(525, &[0x07])
        .put(768, name.as_bytes())
        // Maximum power of power state 0: 10 W.
        .put(2048, &1000u16.to_le_bytes())
        .0
}

/// Returns the permanent identifier (EUI-64) of the namespace.
fn eui64(serial: u32) -> [u8; 8] {
    ((u64::from(LOCAL) << 56) | u64::from(serial)).to_be_bytes()
}

/// Returns the Identify structure of the namespace.
pub(super) fn namespace(blocks: u64, serial: u32) -> Vec<u8> {
    let blocks = blocks.to_le_bytes();
    Page::new(BYTES)
        // Size, capacity and utilization of the namespace.
        .put(0, &blocks)
        .put(8, &blocks)
        .put(16, &blocks)
        .put(120, &eui64(serial))
        .put(128, &(BLOCK_LOG2 << 16).to_le_bytes())
        .0
}

/// Returns the list of namespace IDs greater than `above`.
pub(super) fn list(above: u32) -> Vec<u8> {
    let first = u32::from(above == 0);
    Page::new(BYTES).put(0, &first.to_le_bytes()).0
}

/// Returns the identification descriptors of the namespace.
pub(super) fn descriptors(serial: u32) -> Vec<u8> {
    Page::new(BYTES).put(0, &[1, 8]).put(4, &eui64(serial)).0
}

/// Returns a log page, or `None` if the page does not exist. `commands` is the number of executed
/// reads and of executed writes.
pub(super) fn log(page: u8, commands: [u64; 2]) -> Option<Vec<u8>> {
    Some(match page {
        // Error log without entries.
        1 => Page::new(64).0,
        // Health log: temperature, spare blocks in percent, and the threshold of spare blocks.
        2 => {
            let [reads, writes] = commands.map(u64::to_le_bytes);
            Page::new(512)
                .put(1, &TEMPERATURES[0].to_le_bytes())
                .put(3, &[100, 10])
                .put(64, &reads)
                .put(80, &writes)
                .0
        }
        // Firmware log: slot 1 is active.
        3 => {
            Page::new(512)
                .put(0, &[1])
                .text(8, 8, env!("CARGO_PKG_VERSION"))
                .0
        }
        _ => return None,
    })
}
