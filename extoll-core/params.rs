// SPDX-License-Identifier: GPL-2.0-only

//! Settings of a NIC that are fixed when its driver is bound.

/// Settings of a NIC, from module parameters and tunables.
#[derive(Clone, Copy)]
pub struct Params {
    /// Selects VELO slots of 64 bytes instead of 128.
    pub velo_slots_64: bool,
    /// Maximum number of global address tables (2 MiB each), 0…1024.
    pub atu_gats: u32,
    /// Size in KiB of the largest hardware pages of the ATU, one of the sizes in
    /// [`protocol::nic::nla::SIZE_CODES`].
    pub atu_page_kib: u32,
    /// Maximum number of partially filled address tables per unprivileged user, 1…1024.
    pub tables_per_user: u32,
    /// Size in KiB of the memory that the SMFU exports.
    pub smfu_target_kib: u32,
    /// Limit of quarantined memory in KiB. While it is exceeded, no RMA port is enabled.
    pub quarantine_kib: u32,
    /// Interval in milliseconds in which at most four lines are logged for each reason.
    pub log_interval_ms: u32,
    /// Enables only the events that the vendor's driver enables.
    pub vendor_events: bool,
    /// Maximum number of interrupts per second that writes of other nodes may cause; 0 sets no
    /// limit.
    pub message_interrupts: u32,
}
