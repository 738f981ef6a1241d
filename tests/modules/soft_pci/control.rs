// SPDX-License-Identifier: GPL-2.0-only

//! Commands that a scenario writes into a file.

use crate::{
    device::{Kind, SoftDevice, BAR_BYTES, VECTORS},
    record::{check, RECORD},
    CURRENT,
};
use kernel::{
    device::{Bound, Device},
    fmt, new_mutex,
    prelude::*,
    sync::{atomic::Relaxed, Arc, Mutex},
};
use kernel_ext::pci_host::{HostBridge, Window};

/// Bus address of BAR 0, which differs from its CPU address.
pub(crate) const BUS: u64 = 0xa000_0000;

/// The current bridge, and the CPU address of its window.
#[pin_data]
pub(crate) struct Control {
    #[pin]
    bridge: Mutex<Option<(HostBridge, Arc<SoftDevice>)>>,
    parent: kernel::faux::Registration,
    hole: u64,
}

/// Calls the handlers of all requested vectors.
fn fire_all(bridge: &HostBridge) {
    bridge.interrupts().fire_while(0, || true);
}

/// Calls the handlers of the first requested vector from `vector` on.
fn fire(bridge: &HostBridge, vector: u32) {
    let mut first = true;
    bridge
        .interrupts()
        .fire_while(vector, || core::mem::take(&mut first));
}

/// Returns the window of the device.
pub(crate) fn window(cpu: u64) -> Window {
    Window {
        cpu,
        bus: BUS,
        bytes: BAR_BYTES,
        prefetchable: false,
    }
}

/// Creates a bridge with a device, which the driver finds by [`CURRENT`].
pub(crate) fn attach(
    parent: &Device<Bound>,
    cpu: u64,
    kind: Kind,
) -> Result<(HostBridge, Arc<SoftDevice>)> {
    let soft = SoftDevice::new(BUS, kind)?;
    let bridge = join(parent, &[window(cpu)], VECTORS, &soft)?;
    Ok((bridge, soft))
}

/// Creates a bridge with a second, adjacent window of the same kind. The PCI core would merge both
/// windows.
fn attach_two(
    parent: &Device<Bound>,
    cpu: u64,
    kind: Kind,
) -> Result<(HostBridge, Arc<SoftDevice>)> {
    let soft = SoftDevice::new(BUS, kind)?;
    let neighbour = Window {
        bus: BUS + BAR_BYTES,
        ..window(cpu + BAR_BYTES)
    };
    let bridge = join(parent, &[window(cpu), neighbour], VECTORS, &soft)?;
    Ok((bridge, soft))
}

fn join(
    parent: &Device<Bound>,
    windows: &[Window],
    vectors: u32,
    soft: &Arc<SoftDevice>,
) -> Result<HostBridge> {
    CURRENT.set(Some(soft.clone()));
    HostBridge::new(parent, windows, vectors, soft.pool.clone(), soft.clone())
}

impl Control {
    pub(crate) fn new(hole: u64) -> Result<Arc<Self>> {
        let parent = kernel::faux::Registration::new(c"soft_pci", None)?;
        Arc::pin_init(
            pin_init!(Self {
                bridge <- new_mutex!(None, "soft_pci"),
                parent,
                hole,
            }),
            GFP_KERNEL,
        )
    }

    fn parent(&self) -> &Device<Bound> {
        let faux: &kernel::faux::Device<Bound> = self.parent.as_ref();
        faux.as_ref()
    }

    fn add(&self, kind: Kind, two: bool) -> Result {
        let mut bridge = self.bridge.lock();
        if bridge.is_some() {
            return Err(EEXIST);
        }
        let attach = if two { attach_two } else { attach };
        *bridge = Some(attach(self.parent(), self.hole, kind)?);
        Ok(())
    }

    fn with(&self, f: impl FnOnce(&HostBridge, &SoftDevice)) -> Result {
        let bridge = self.bridge.lock();
        let (bridge, soft) = bridge.as_ref().ok_or(ENODEV)?;
        f(bridge, soft);
        Ok(())
    }

    /// Removes the bridge and checks that all its resources are released.
    pub(crate) fn end(&self, lost: bool) -> Result {
        let (bridge, soft) = self.bridge.lock().take().ok_or(ENODEV)?;
        let handled = || RECORD.handled.iter().map(|n| n.load(Relaxed)).sum::<u32>();
        if lost {
            soft.set_silent(true);
            bridge.lost();
        } else {
            bridge.remove();
        }
        check!(
            bridge.interrupts().requested() == 0,
            "vectors are still requested"
        );
        let before = handled();
        fire_all(&bridge);
        fire(&bridge, 0);
        check!(handled() == before, "a handler runs after the end");
        drop(bridge);
        CURRENT.set(None);
        let stats = soft.pool.stats();
        check!(stats.mapped == 0, "mappings are left");
        check!(
            stats.coherent == usize::from(soft.kind.leaks),
            "coherent memory is left"
        );
        // Only this function still holds the device and its pool, which are freed on return.
        Ok(())
    }

    /// Tries to create invalid bridges.
    fn errors(&self) -> Result {
        let parent = self.parent();
        let kind = Kind {
            msix: false,
            ram: false,
            leaks: false,
        };
        let soft = SoftDevice::new(BUS, kind)?;
        let good = window(self.hole);
        let none = Window { bytes: 0, ..good };
        let beyond = Window {
            cpu: u64::MAX - 10,
            ..good
        };
        // An address within the first 16 MiB, which is RAM on all of these nodes.
        let ram = Window {
            cpu: 0x80_0000,
            ..good
        };
        let elsewhere = Window {
            bus: BUS + (1 << 20),
            ..good
        };
        for (windows, vectors, error, what) in [
            (&[good][..], 0, EINVAL, "no vectors"),
            (&[good], 4096, EINVAL, "too many vectors"),
            (&[none], 8, EINVAL, "a window without bytes"),
            (&[beyond], 8, EINVAL, "a window beyond all addresses"),
            (&[good, good], 8, EINVAL, "the same window twice"),
            (&[ram], 8, EBUSY, "a window of RAM"),
            (&[elsewhere], 8, ERANGE, "a BAR outside of the window"),
            (&[], 8, ERANGE, "a BAR without a window"),
        ] {
            let result = join(parent, windows, vectors, &soft);
            check!(result.err() == Some(error), what);
        }
        soft.set_silent(true);
        let result = join(parent, &[good], 8, &soft);
        check!(
            result.err() == Some(ENODEV),
            "a device that does not answer"
        );
        CURRENT.set(None);
        Ok(())
    }

    /// Creates and removes bridges.
    fn cycles(&self, count: u32) -> Result {
        for n in 0..count {
            let kind = Kind {
                msix: n % 2 == 0,
                ram: true,
                leaks: false,
            };
            self.add(kind, n % 4 < 2)?;
            self.with(|bridge, _| fire_all(bridge))?;
            self.end(n % 3 == 0)?;
        }
        Ok(())
    }

    pub(crate) fn command(&self, line: &str) -> Result {
        let mut words = line.split_whitespace();
        let word = words.next().ok_or(EINVAL)?;
        let number = words.next().and_then(|n| n.parse::<u32>().ok());
        let msix = Kind {
            msix: true,
            ram: true,
            leaks: false,
        };
        let msi = Kind {
            msix: false,
            ..msix
        };
        let leak = Kind {
            leaks: true,
            ..msix
        };
        match (word, number) {
            ("msix", None) => self.add(msix, false),
            ("msi", None) => self.add(msi, false),
            ("leak", None) => self.add(leak, false),
            ("fire", Some(n)) => self.with(|bridge, _| fire(bridge, n)),
            ("fire_all", None) => self.with(|bridge, _| fire_all(bridge)),
            ("silent", Some(n)) => self.with(|_, soft| soft.set_silent(n != 0)),
            ("remove", None) => self.end(false),
            ("lost", None) => self.end(true),
            ("errors", None) => self.errors(),
            ("cycles", Some(n)) => self.cycles(n),
            _ => Err(EINVAL),
        }
    }

    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        RECORD.show(f)?;
        if let Some((bridge, soft)) = &*self.bridge.lock() {
            let (stats, accesses) = (soft.pool.stats(), bridge.accesses());
            writeln!(f, "domain {}", bridge.domain())?;
            writeln!(f, "requested {}", bridge.interrupts().requested())?;
            writeln!(f, "fired {}", bridge.interrupts().fired())?;
            writeln!(f, "reads {}", accesses.reads)?;
            writeln!(f, "failed_accesses {}", accesses.failed)?;
            writeln!(f, "mapped {}", stats.mapped)?;
            writeln!(f, "coherent {}", stats.coherent)?;
            writeln!(f, "slots {}", stats.slots)?;
        }
        Ok(())
    }
}
