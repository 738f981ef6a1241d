// SPDX-License-Identifier: GPL-2.0-only

//! What is fixed when the module is loaded.

/// Facts fixed at load time.
#[derive(Clone, Copy)]
pub struct Params {
    /// 64-byte instead of 128-byte VELO slots.
    pub velo_slots_64: bool,
    /// Global address tables of 2 MiB that the ATU may have at most, 0…1024.
    pub atu_gats: u32,
    /// Largest hardware pages of the ATU in KiB, one of those of [`wire::nla::SIZE_CODES`].
    pub atu_page_kib: u32,
    /// Address tables that memory of one unprivileged user may lie in without filling them, 1…1024.
    pub tables_per_user: u32,
    /// Memory exported by the SMFU in KiB.
    pub smfu_target_kib: u32,
    /// Memory in quarantine in KiB above which no RMA port is enabled.
    pub quarantine_kib: u32,
    /// Time in which a reason gets few log lines, in milliseconds.
    pub log_interval_ms: u32,
    /// The three words of the SNQ interrupt packet (HW §6.2).
    pub snq_irq: [u64; 3],
    /// Only the events that the vendor's driver has are enabled.
    pub vendor_events: bool,
    /// Interrupts by other nodes in a second above which there is a storm, 0: any number.
    pub message_interrupts: u32,
    /// Mark fences for an emulator that asks for it.
    pub mark_fences: bool,
}
