// SPDX-License-Identifier: GPL-2.0-only

//! Set-up of a NIC's units in the order of HW §3, and their shutdown in the reverse order. Process
//! context; may sleep.

use crate::{
    htax, info,
    nic::Nic,
    probe_error::{ProbeError, SetupError},
    queue,
    snq::Interrupt,
    stats::Reason,
    xbar,
};
use kernel::{device::Bound, pci, prelude::*, sync::Arc};
use kernel_ext::{
    pci::{payload_sizes, Enabled, Msi, MsiVectors},
    work::FlushOnDrop,
};

/// Maximum number of MSI vectors that are allocated; only vector 0 is used (HW §1).
const MAX_VECTORS: u32 = 32;

/// Installed interrupt handler.
pub(crate) type Irq<'a> = Pin<KBox<Msi<'a, Interrupt>>>;

/// Executes steps 3 to 27 of the set-up. `irq` must store the interrupt handler. The caller must
/// call [`end`] later, even after an error. May sleep.
pub(crate) fn begin<'a>(
    nic: &Arc<Nic>,
    dev: &'a pci::Device<Bound>,
    vectors: u32,
    irq: impl FnOnce(Irq<'a>),
) -> Result<(), SetupError> {
    nic.monitor().listen()?;
    {
        let hw = nic.access().ok_or(ENODEV)?;
        htax::init(&hw)?;
        info::read_network_state(nic, &hw)?;
        xbar::init(&hw);
        nic.snq().setup(&hw)?;
    }
    let handler = MsiVectors::new(dev, vectors.min(MAX_VECTORS))
        .and_then(|v| v.request(c"extoll", Interrupt(nic.snq().clone())))
        .map_err(|e| SetupError(ProbeError::Interrupt, e))?;
    irq(handler);
    {
        let hw = nic.access().ok_or(ENODEV)?;
        nic.snq().start(&hw);
        info::read_network_state(nic, &hw)?;
    }
    queue::init(nic.context())?;
    nic.velo().init()?;
    nic.atu().init()?;
    let (mps, mrrs) = payload_sizes(dev);
    nic.rma().init(mps, mrrs)?;
    nic.smfu().init()?;
    // Step 27. After an error the NIC is usable nevertheless, and the first request tries again.
    if let Err(e) = nic.rra().open() {
        dev_warn!(
            dev,
            "remote registers not available yet, the first access tries again: {:?}\n",
            e
        );
    }
    nic.monitor().schedule();
    nic.snq().start_work();
    nic.link_monitor().schedule();
    Ok(())
}

/// Shuts all units down after all modules above were unbound. `irq` drops the interrupt handler.
/// May sleep.
#[inline(never)] // Keeps its stack frame out of the unbinding of the modules above.
pub(crate) fn end(nic: &Arc<Nic>, enabled: &Enabled<'_>, irq: impl FnOnce()) {
    if !nic.is_alive() {
        nic.isolate();
        // Keeps the device stopped even if it recovers.
        nic.quiesce();
    }
    // Waits until ports are closed whose last handle was dropped.
    drop(FlushOnDrop);
    let late_memory = nic.rra().close();
    // The reclaim ends while the units run, because it makes the NIC execute commands and gives the
    // NIC a queue for that.
    nic.reclaim().end();
    nic.snq().stop();
    irq();
    stop_units(nic);
    // After this line, the NIC cannot access memory whose release it did not confirm.
    enabled.stop_dma();
    nic.atu().release();
    shutdown(nic);
    drop(late_memory);
    nic.snq().free();
    nic.rma().free_locks();
    nic.smfu().free_exported();
}

/// Removes all addresses of host memory from the hardware.
fn stop_units(nic: &Arc<Nic>) {
    nic.smfu().stop();
    nic.rma().stop();
    nic.atu().stop();
    nic.velo().stop();
    queue::stop(nic.context());
}

/// Stops all work items and then releases the hardware.
fn shutdown(nic: &Nic) {
    let left: usize = nic.tables().iter().map(|table| table.open()).sum();
    if left != 0 {
        nic.error(Reason::PortLeaked, left as u64);
    }
    // After this line, failed register accesses do not declare the device dead.
    nic.retire();
    // Each object is stopped after the objects that queue its work item.
    nic.snq().end();
    nic.events().end();
    nic.link_monitor().end();
    nic.quarantine().end();
    nic.monitor().end();
    nic.tables().iter().for_each(|table| table.down());
    nic.smfu().unmap_all();
    nic.release();
}
