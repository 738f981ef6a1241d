// SPDX-License-Identifier: GPL-2.0-only

//! Settings of a NIC that are fixed when it is bound.

/// Settings of a NIC, from module parameters and tunables.
#[derive(Clone, Copy)]
pub struct Params {
    /// 64-byte instead of 128-byte VELO slots.
    pub velo_slots_64: bool,
    /// Global address tables of 2 MiB that the ATU may have at most, 0…1024.
    pub atu_gats: u32,
    /// Largest hardware pages of the ATU in KiB, one of those of [`protocol::nic::nla::SIZE_CODES`].
    pub atu_page_kib: u32,
    /// Address tables that memory of one unprivileged user may lie in without filling them, 1…1024.
    pub tables_per_user: u32,
    /// Memory exported by the SMFU in KiB.
    pub smfu_target_kib: u32,
    /// Memory in quarantine in KiB above which no RMA port is enabled.
    pub quarantine_kib: u32,
    /// Time in which a reason gets few log lines, in milliseconds.
    pub log_interval_ms: u32,
    /// Enables only the events that the vendor's driver enables.
    pub vendor_events: bool,
    /// Maximum number of interrupts per second that writes of other nodes cause; 0 for no limit.
    pub message_interrupts: u32,
}
