// SPDX-License-Identifier: GPL-2.0-only

//! Settings of a NIC that are fixed when its driver is bound.

/// Settings of a NIC, from module parameters and tunables.
#[derive(Clone, Copy)]
pub struct Params {
    /// Selects 64-byte instead of 128-byte VELO slots.
    pub velo_slots_64: bool,
    /// Maximum number of global address tables (2 MiB each), 0…1024.
    pub atu_gats: u32,
    /// Largest hardware pages of the ATU in KiB, one of those of
    /// [`protocol::nic::nla::SIZE_CODES`].
    pub atu_page_kib: u32,
    /// Maximum number of partially filled address tables per unprivileged user, 1…1024.
    pub tables_per_user: u32,
    /// Memory exported by the SMFU in KiB.
    pub smfu_target_kib: u32,
    /// Maximum size of quarantined memory in KiB; no RMA port is enabled above it.
    pub quarantine_kib: u32,
    /// Interval in milliseconds in which at most four lines per reason are logged.
    pub log_interval_ms: u32,
    /// Enables only the events that the vendor's driver enables.
    pub vendor_events: bool,
    /// Maximum number of interrupts per second that writes of other nodes cause; 0 for no limit.
    pub message_interrupts: u32,
}
