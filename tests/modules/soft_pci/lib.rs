// SPDX-License-Identifier: GPL-2.0-only

//! Test aid: a PCI device in software behind a bridge of `kernel_ext::pci_host`, and its driver,
//! which checks that the device behaves like any PCI device. The parameter `hole` is the address of
//! reserved memory for its BAR. With the parameter `nic`, each bound NIC has such a bridge.

#![forbid(unsafe_code)]

mod control;
mod device;
mod driver;
mod record;

use control::Control;
use device::{Kind, SoftDevice, BAR_BYTES};
use extoll_core::child;
use kernel::{
    auxiliary,
    device::{Bound, Core, Device},
    driver::Registration,
    fmt, pci,
    prelude::*,
    sync::Arc,
    InPlaceModule,
};
use kernel_ext::{debugfs::Dir, global::Global, pci_host::HostBridge, work::FlushOnDrop};

/// The device that is being added.
static CURRENT: Global<SoftDevice> = Global::new();

/// Driver that adds a bridge below each NIC.
struct OfNics;

kernel::auxiliary_device_table!(
    AUX_TABLE,
    <OfNics as auxiliary::Driver>::IdInfo,
    [(auxiliary::DeviceId::new(child::MODULE, child::VPCI), ())]
);

/// Adds a bridge in the last addresses of the NIC's BAR 2, which are unoccupied. The device uses
/// MSI.
fn below(nic: &Device<Bound>) -> Result<HostBridge> {
    let pdev = <&pci::Device<Bound>>::try_from(nic)?;
    let end = pdev.resource_start(2)? + pdev.resource_len(2)?;
    let kind = Kind {
        msix: false,
        ram: false,
        leaks: false,
    };
    control::attach(nic, end - BAR_BYTES, kind).map(|(bridge, _)| bridge)
}

impl auxiliary::Driver for OfNics {
    type IdInfo = ();
    type Data<'bound> = HostBridge;

    const ID_TABLE: auxiliary::IdTable<Self::IdInfo> = &AUX_TABLE;

    fn probe<'bound>(
        adev: &'bound auxiliary::Device<Core<'_>>,
        _info: &'bound Self::IdInfo,
    ) -> impl PinInit<HostBridge, Error> + 'bound {
        if module_parameters::nic.value() == 0 {
            return Err(ENODEV);
        }
        below(adev.parent())
    }
}

fn show(control: &Control, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    control.show(f)
}

fn store(control: &Control, line: &str) -> Result {
    control.command(line)
}

/// Removes the bridge before the drivers are unregistered.
struct End(Arc<Control>);

impl Drop for End {
    fn drop(&mut self) {
        // There may be no bridge.
        let _ = self.0.end(false);
        CURRENT.set(None);
    }
}

fn files(control: &Arc<Control>) -> Result<Dir<Control>> {
    let mut dir = Dir::new::<LocalModule>(c"soft_pci", control, &[])?;
    dir.add_writable::<LocalModule>(c"control", control, show, store)?;
    Ok(dir)
}

/// Parts of the module, in the order in which they are dropped.
#[pin_data]
struct SoftPci {
    _files: Dir<Control>,
    #[pin]
    _nics: Registration<auxiliary::Adapter<OfNics>>,
    _end: End,
    #[pin]
    _driver: Registration<pci::Adapter<driver::Driver>>,
    _flush: FlushOnDrop,
}

impl InPlaceModule for SoftPci {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        let name = <LocalModule as kernel::ModuleMetadata>::NAME;
        let control = Control::new(module_parameters::hole.value());
        try_pin_init!(Self {
            _flush: FlushOnDrop,
            _driver <- Registration::new(name, module),
            _end: End(control?),
            _nics <- Registration::new(name, module),
            _files: files(&_end.0)?,
        })
    }
}

module! {
    type: SoftPci,
    name: "soft_pci",
    authors: ["Extoll for Linux"],
    description: "Test aid: a PCI device made of software",
    license: "GPL v2",
    params: {
        hole: u64 {
            default: 0,
            description: "Physical address of 16 KiB for BAR 0",
        },
        nic: u32 {
            default: 0,
            description: "1: a bridge below each NIC",
        },
    },
}
