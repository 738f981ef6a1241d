// SPDX-License-Identifier: GPL-2.0-only

//! debugfs directory of an interface, `exn-<PCI name>/`, with the files `state`, `reasons` and
//! `transitions` (docs/exn.md). Process context; acquires the locks of [`Shared`] one at a time.

use crate::{reason::Reason, shared::Shared};
use kernel::{
    fmt,
    prelude::*,
    str::CString,
    sync::{atomic::Relaxed, Arc},
};
use kernel_ext::debugfs::Dir;

/// debugfs files of an interface. Drop removes them.
pub(crate) type Files = Dir<Shared>;

/// Creates the files of an interface. May sleep.
pub(crate) fn files(shared: &Arc<Shared>) -> Result<Files> {
    let name = CString::try_from_fmt(fmt!("exn-{}", shared.nic.device().name()))?;
    Dir::new::<crate::LocalModule>(
        &name,
        shared,
        &[
            (c"state", show_state),
            (c"reasons", show_reasons),
            (c"transitions", show_transitions),
        ],
    )
}

fn show_state(sh: &Shared, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (active, quarantine, pending, stopped) = {
        let tx = sh.tx.lock();
        let (active, quarantine) = tx.gauges();
        let (pending, stopped) = tx.blocked();
        (active, quarantine, pending, stopped)
    };
    let fetches = sh.rx.lock().len();
    let macs = sh.macs.lock().len();
    writeln!(f, "node {}", sh.nic.node().0)?;
    writeln!(f, "carrier {}", sh.ndev.carrier_ok())?;
    writeln!(f, "eager_threshold_bytes {}", sh.conf.threshold())?;
    writeln!(f, "tx_flight_limit {}", sh.conf.flight())?;
    writeln!(f, "tx_rdv_in_flight {active}")?;
    writeln!(f, "tx_rdv_quarantined {quarantine}")?;
    writeln!(f, "tx_parked {pending}")?;
    writeln!(f, "tx_queue_stopped {stopped}")?;
    writeln!(f, "rx_rdv_in_flight {fetches}")?;
    writeln!(f, "rx_rdv_waiting {}", sh.waiting.load(Relaxed))?;
    writeln!(f, "rx_partial_frames {}", sh.partials.load(Relaxed))?;
    writeln!(f, "foreign_macs {macs}")
}

fn show_reasons(sh: &Shared, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for r in Reason::ALL {
        writeln!(
            f,
            "{:2} {} {}: {}",
            *r as u8,
            sh.counters.reason_count(*r),
            r.name(),
            r.text()
        )?;
    }
    Ok(())
}

fn show_transitions(sh: &Shared, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    // The counts are copied, because text must not be formatted with a lock held.
    let sent = sh.tx.lock().counts().clone();
    let fetched = sh.rx.lock().counts().clone();
    write!(f, "announced frames:\n{sent}fetches:\n{fetched}")
}
