// SPDX-License-Identifier: GPL-2.0-only

//! Why devices were not taken: numbered reasons, each with a log line. They are counted for the whole module, since a device
//! that was refused has nothing of its own to count in: debugfs file `extoll/refusals` (docs/driver.md).

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
    /// Why a device was refused. The numbers are stable (docs/driver.md).
    Refusal:
    /// The PCI core cannot enable it.
    Enable = 0, "cannot be enabled";
    /// The revision that has to be refused (HW §1).
    Revision = 1, "PCI revision not supported";
    /// No MSI capability.
    Msi = 2, "no MSI capability";
    /// The host can do none of the DMA masks.
    DmaMask = 3, "DMA masks of 52 and of 32 bits not possible";
    /// A BAR is missing or too small.
    BarSize = 4, "BAR too small";
    /// A BAR belongs to somebody else.
    BarClaimed = 5, "BAR cannot be claimed";
    /// A BAR lost its address by a reset behind the kernel's back.
    BarLost = 6, "BAR lost its address, remove and rescan the device";
    /// Registers cannot be mapped.
    Map = 7, "registers cannot be mapped";
    /// No interrupt vector can be had.
    Interrupt = 8, "no interrupt";
    /// No memory, or the hardware does not do what it is told.
    Setup = 9, "cannot be set up";
    /// A BAR is where no register of the NIC can say it is (HW §5, §12).
    BarAddress = 10, "address of a BAR does not fit the registers";
}

static COUNTS: [Atomic<u64>; Refusal::ALL.len()] = [const { Atomic::new(0) }; Refusal::ALL.len()];

/// Counts and logs that `dev` is refused. Any context.
pub(crate) fn refuse(dev: &pci::Device<Bound>, why: Refusal, detail: fmt::Arguments<'_>) {
    if let Some(c) = COUNTS.get(why as usize) {
        c.add(1, Relaxed);
    }
    let (n, text) = (why as u32, why.text());
    dev_err!(dev, "refused, reason {n}: {text} ({detail})\n");
}

/// An error of the set-up with its reason, which is [`Refusal::Setup`] unless a place knows better.
pub(crate) struct Failure(pub(crate) Refusal, pub(crate) Error);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(Refusal::Setup, error)
    }
}

/// What the debugfs file shows: the counters of the module.
pub struct Refusals;

/// Makes the debugfs directory `extoll` of module `M`, also with its own `files`; removed by drop. May sleep.
///
/// # Errors
///
/// Those of [`Dir::new`].
pub fn files<M: ModuleMetadata + 'static>(
    files: &[(&CStr, Show<Refusals>)],
) -> Result<(Dir<Refusals>, Arc<Refusals>)> {
    let data = Arc::new(Refusals, GFP_KERNEL)?;
    let mut all = KVec::new();
    all.push((c"refusals", show as Show<Refusals>), GFP_KERNEL)?;
    all.extend_from_slice(files, GFP_KERNEL)?;
    Ok((Dir::new::<M>(c"extoll", &data, &all)?, data))
}

fn show(_: &Refusals, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (why, count) in Refusal::ALL.iter().zip(&COUNTS) {
        let (n, count, text) = (*why as u32, count.load(Relaxed), why.text());
        writeln!(f, "reason {n} {count} ({text})")?;
    }
    Ok(())
}
