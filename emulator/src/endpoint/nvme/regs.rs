//! Registers of the controller, byte offsets in BAR0 (NVM Express 1.4, 3.1).

/// Size of BAR0 in bytes.
pub const BAR_SIZE: u64 = 0x4000;
/// Doorbells: for each queue pair 4 bytes for the submission queue and 4 for the completion queue.
pub const DOORBELLS: u64 = 0x1000;
/// Offset of the MSI-X table in BAR0.
pub const TABLE: u64 = 0x2000;
/// Offset of the MSI-X pending bits in BAR0.
pub const PENDING: u64 = 0x3000;

/// Capabilities, 8 bytes.
pub const CAP: u64 = 0x00;
/// Version.
pub const VS: u64 = 0x08;
/// Interrupt mask: write 1 to set.
pub const INTMS: u64 = 0x0C;
/// Interrupt mask: write 1 to clear.
pub const INTMC: u64 = 0x10;
/// Configuration.
pub const CC: u64 = 0x14;
/// Status.
pub const CSTS: u64 = 0x1C;
/// Sizes of the admin queues.
pub const AQA: u64 = 0x24;
/// Address of the admin submission queue, 8 bytes.
pub const ASQ: u64 = 0x28;
/// Address of the admin completion queue, 8 bytes.
pub const ACQ: u64 = 0x30;

/// [`CAP`]: queues of 256 entries, contiguous; ready within 5 s; NVM command set; pages of 4 KiB.
pub const CAP_VALUE: u64 = (super::queues::MOST as u64 - 1) | (1 << 16) | (10 << 24) | (1 << 37);
/// [`VS`]: 1.4.
pub const VERSION: u32 = 0x0001_0400;

/// [`CC`]: the controller is on.
pub const CC_ENABLE: u32 = 1;
/// [`CC`]: command set, page size, arbitration; only 0 is supported.
pub const CC_CHOICES: u32 = 0x3FF0;
/// [`CC`]: shutdown notification of the host.
pub const CC_SHUT_DOWN: u32 = 3 << 14;
/// [`CC`]: sizes of I/O queue entries, which the host has to write before it creates I/O queues.
pub const CC_ENTRIES: u32 = 0x0046_0000;
/// [`CC`]: all writable bits.
pub const CC_BITS: u32 = CC_ENABLE | CC_CHOICES | CC_SHUT_DOWN | 0x00FF_0000;

/// [`CSTS`]: the controller processes commands.
pub const CSTS_READY: u32 = 1;
/// [`CSTS`]: fatal state, the controller has to be reset.
pub const CSTS_FATAL: u32 = 2;
/// [`CSTS`]: shutdown is complete.
pub const CSTS_SHUT_DOWN: u32 = 2 << 2;

/// Returns the doorbell of a submission queue.
pub const fn tail(queue: u16) -> u64 {
    DOORBELLS + 8 * queue as u64
}

/// Returns the doorbell of a completion queue.
pub const fn head(queue: u16) -> u64 {
    DOORBELLS + 8 * queue as u64 + 4
}
