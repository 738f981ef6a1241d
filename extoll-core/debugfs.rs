// SPDX-License-Identifier: GPL-2.0-only

//! debugfs directory of a NIC, `extoll-<PCI name>/` (docs/driver.md). Process context. Acquires the
//! locks of the units whose state is shown.

use crate::{nic::Nic, rf, stats::Reason, vpid::Open};
use kernel::{fmt, prelude::*, str::CString, sync::Arc, ModuleMetadata};
use kernel_ext::debugfs::Dir;
use wire::{
    ids::Unit,
    snq::{TriggerEvent, TriggerMask},
};

/// Directory with the files of a NIC. Drop removes it.
pub(crate) type Files = Dir<Nic>;

/// Makes the files of a NIC. An open file keeps module `M` loaded. May sleep.
pub(crate) fn files<M: ModuleMetadata + 'static>(nic: &Arc<Nic>) -> Result<Files> {
    let name = CString::try_from_fmt(fmt!("extoll-{}", nic.device().name()))?;
    let mut dir = Dir::new::<M>(
        &name,
        nic,
        &[
            (c"status", show_status),
            (c"counters", show_counters),
            (c"ports", show_ports),
            (c"atu", |nic, f| nic.atu().show(f)),
            (c"events", show_events),
            (c"quarantine", |nic, f| nic.quarantine().show(f)),
            (c"links", |nic, f| nic.link_monitor().show(f)),
        ],
    )?;
    dir.add_writable::<M>(c"event_mask", nic, show_mask, store_mask)?;
    dir.add_directory::<M>(c"registers", nic, &rf::sections()?, rf::show_section)?;
    Ok(dir)
}

/// Writes each event that occurred, with its sub-causes.
fn show_events(nic: &Nic, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for event in TriggerEvent::ALL {
        let n = nic.stats().events(event.number());
        if n != 0 {
            writeln!(f, "event {} {n} ({})", event.number(), event.name())?;
            nic.events().show(event, f)?;
        }
    }
    Ok(())
}

fn show_mask(nic: &Nic, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (_, mask, _) = nic.snq().show();
    writeln!(f, "{mask:#010x}")
}

/// Sets the enabled events. Events on which ports depend cannot be disabled.
fn store_mask(nic: &Nic, text: &str) -> Result {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let mask = u32::from_str_radix(digits, 16).map_err(|_| EINVAL)?;
    let mask = TriggerMask(mask.into());
    let needed = [
        TriggerEvent::VeloNotification,
        TriggerEvent::RmaNotification,
        TriggerEvent::NwState,
    ];
    if !needed.iter().all(|e| mask.contains(*e)) {
        return Err(EINVAL);
    }
    nic.snq().allow(mask);
    nic.events().queue_link_poll();
    Ok(())
}

fn show_status(nic: &Nic, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let status = nic.status();
    let (rp, mask, draining) = nic.snq().show();
    writeln!(f, "node {}", status.node.0)?;
    writeln!(f, "network {:?}", status.network)?;
    writeln!(f, "alive {}", status.alive)?;
    writeln!(f, "velo_slot_bytes {}", nic.velo().slot_size().bytes())?;
    writeln!(f, "snq_read_pointer {rp}")?;
    writeln!(f, "snq_enabled {mask:#010x}")?;
    writeln!(f, "outport_drain {draining}")
}

fn show_counters(nic: &Nic, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let stats = nic.stats();
    writeln!(f, "interrupts {}", stats.interrupts())?;
    writeln!(f, "status_changes {}", stats.changes())?;
    for reason in Reason::ALL {
        writeln!(
            f,
            "reason {} {} ({})",
            *reason as u32,
            stats.reason(*reason),
            reason.text()
        )?;
    }
    for event in TriggerEvent::ALL {
        let n = stats.events(event.number());
        if n != 0 {
            writeln!(f, "event {} {n} ({})", event.number(), event.name())?;
        }
    }
    Ok(())
}

fn show_ports(nic: &Nic, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for unit in [Unit::Velo, Unit::Rma] {
        let mut result = Ok(());
        nic.table(unit).for_each(|port| {
            if result.is_ok() {
                result = show_port(f, unit, port);
            }
        });
        result?;
    }
    Ok(())
}

fn show_port(f: &mut fmt::Formatter<'_>, unit: Unit, port: &Open) -> fmt::Result {
    write!(
        f,
        "{unit:?} vpid {} attached {}",
        port.vpid.get(),
        port.attached
    )?;
    if let Some(opener) = &port.stats.opener {
        write!(f, " pid {} user {}", opener.pid, opener.uid)?;
    }
    if let Some(tx) = &port.tx {
        let (mode, pwp, committed) = tx.show();
        write!(f, " tx {mode} sent {pwp} committed {committed}")?;
    }
    for (name, value) in port.stats.list() {
        write!(f, " {name} {value}")?;
    }
    writeln!(f)
}
