// SPDX-License-Identifier: GPL-2.0-only

//! Probe errors, i.e. numbered reasons why devices were not bound. Each is logged and counted.
//! Counters are per module, because a device that is not bound has no debugfs directory. The
//! debugfs file `extoll/refusals` shows them (docs/driver.md). Counters are atomic; any context.

use crate::stats::reasons;
use kernel::{
    device::Bound,
    fmt, pci,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
    ModuleMetadata,
};
use kernel_ext::debugfs::{Dir, Show};

reasons! {
    /// Reason why a device was not bound. The numbers are stable (docs/driver.md).
    ProbeError:
    /// The PCI core could not enable the device.
    Enable = 0, "cannot be enabled";
    /// The PCI revision is not supported (HW §1).
    Revision = 1, "PCI revision not supported";
    /// The device has no MSI capability.
    Msi = 2, "no MSI capability";
    /// The host supports none of the DMA masks.
    DmaMask = 3, "DMA masks of 52 and of 32 bits not possible";
    /// A BAR is missing or too small.
    BarSize = 4, "BAR too small";
    /// A BAR is claimed by another driver.
    BarClaimed = 5, "BAR cannot be claimed";
    /// A BAR lost its address in a reset that the kernel did not notice.
    BarLost = 6, "BAR lost its address, remove and rescan the device";
    /// The registers could not be mapped.
    Map = 7, "registers cannot be mapped";
    /// No interrupt vector is available.
    Interrupt = 8, "no interrupt";
    /// Memory is short, or the hardware does not react as expected.
    Setup = 9, "cannot be set up";
    /// The address of a BAR does not fit the NIC's registers (HW §5, §12).
    BarAddress = 10, "address of a BAR does not fit the registers";
}

static COUNTS: [Atomic<u64>; ProbeError::ALL.len()] =
    [const { Atomic::new(0) }; ProbeError::ALL.len()];

/// Counts and logs a probe error of `dev`. Any context.
pub(crate) fn report(dev: &pci::Device<Bound>, why: ProbeError, detail: fmt::Arguments<'_>) {
    if let Some(c) = COUNTS.get(why as usize) {
        c.add(1, Relaxed);
    }
    let (n, text) = (why as u32, why.text());
    dev_err!(dev, "refused, reason {n}: {text} ({detail})\n");
}

/// Error of the set-up and its probe error, by default [`ProbeError::Setup`].
pub(crate) struct SetupError(pub(crate) ProbeError, pub(crate) Error);

impl From<Error> for SetupError {
    fn from(error: Error) -> Self {
        Self(ProbeError::Setup, error)
    }
}

/// Data of the debugfs file: the counters of the module.
pub struct ProbeErrors;

/// Makes the debugfs directory `extoll` of module `M`, which also contains `files`. Drop removes
/// it. May sleep.
///
/// # Errors
///
/// The errors of [`Dir::new`].
pub fn files<M: ModuleMetadata + 'static>(
    files: &[(&CStr, Show<ProbeErrors>)],
) -> Result<(Dir<ProbeErrors>, Arc<ProbeErrors>)> {
    let data = Arc::new(ProbeErrors, GFP_KERNEL)?;
    let mut all = KVec::new();
    all.push((c"refusals", show as Show<ProbeErrors>), GFP_KERNEL)?;
    all.extend_from_slice(files, GFP_KERNEL)?;
    Ok((Dir::new::<M>(c"extoll", &data, &all)?, data))
}

fn show(_: &ProbeErrors, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (why, count) in ProbeError::ALL.iter().zip(&COUNTS) {
        let (n, count, text) = (*why as u32, count.load(Relaxed), why.text());
        writeln!(f, "reason {n} {count} ({text})")?;
    }
    Ok(())
}
