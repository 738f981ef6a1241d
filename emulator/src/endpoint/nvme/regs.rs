//! Registers of the controller, with byte offsets in BAR0 (NVM Express 1.4, 3.1).

/// Size of BAR0 in bytes.
pub const BAR_SIZE: u64 = 0x4000;
/// Offset of the doorbells. Each queue pair has 4 bytes for the submission queue and 4 bytes for
/// the completion queue.
pub const DOORBELLS: u64 = 0x1000;
/// Offset of the MSI-X table in BAR0.
pub const TABLE: u64 = 0x2000;
/// Offset of the MSI-X pending bits in BAR0.
pub const PENDING: u64 = 0x3000;

/// Capabilities register, 8 bytes.
pub const CAP: u64 = 0x00;
/// Version register.
pub const VS: u64 = 0x08;
/// Interrupt mask set register: writing 1 masks a vector.
pub const INTMS: u64 = 0x0C;
/// Interrupt mask clear register: writing 1 unmasks a vector.
pub const INTMC: u64 = 0x10;
/// Configuration register.
pub const CC: u64 = 0x14;
/// Status register.
pub const CSTS: u64 = 0x1C;
/// Register with the sizes of the admin queues.
pub const AQA: u64 = 0x24;
/// Register with the address of the admin submission queue, 8 bytes.
pub const ASQ: u64 = 0x28;
/// Register with the address of the admin completion queue, 8 bytes.
pub const ACQ: u64 = 0x30;

/// Value of [`CAP`]: contiguous queues of up to 256 entries, ready within 5 s, NVM command set,
/// pages of 4 KiB.
pub const CAP_VALUE: u64 = (super::queues::MOST as u64 - 1) | (1 << 16) | (10 << 24) | (1 << 37);
/// Value of [`VS`]: version 1.4.
pub const VERSION: u32 = 0x0001_0400;

/// Bit in [`CC`]: the host has enabled the controller.
pub const CC_ENABLE: u32 = 1;
/// Bits in [`CC`]: command set, page size and arbitration. The controller supports only the value
/// 0.
pub const CC_CHOICES: u32 = 0x3FF0;
/// Bits in [`CC`]: the host announces a shutdown.
pub const CC_SHUT_DOWN: u32 = 3 << 14;
/// Bits in [`CC`]: sizes of I/O queue entries. The host must write this value before it creates I/O
/// queues.
pub const CC_ENTRIES: u32 = 0x0046_0000;
/// All writable bits of [`CC`].
pub const CC_BITS: u32 = CC_ENABLE | CC_CHOICES | CC_SHUT_DOWN | 0x00FF_0000;

/// Bit in [`CSTS`]: the controller processes commands.
pub const CSTS_READY: u32 = 1;
/// Bit in [`CSTS`]: the controller is in the fatal state, and the host must reset it.
pub const CSTS_FATAL: u32 = 2;
/// Bit in [`CSTS`]: shutdown is complete.
pub const CSTS_SHUT_DOWN: u32 = 2 << 2;

/// Returns the offset of the doorbell of a submission queue.
pub const fn tail(queue: u16) -> u64 {
    DOORBELLS + 8 * queue as u64
}

/// Returns the offset of the doorbell of a completion queue.
pub const fn head(queue: u16) -> u64 {
    DOORBELLS + 8 * queue as u64 + 4
}
