// SPDX-License-Identifier: GPL-2.0-only

//! `vpci.ko`: PCIe Device Lending. PCIe devices of other nodes are driven here by their own drivers
//! (borrower), and devices of this node by drivers of other nodes (lender). docs/vpci.md describes
//! the use of the module, docs/pci-protocol.md the protocol.
//!
//! The module registers a driver for the auxiliary device that `extoll.ko` creates for each NIC, a
//! PCI driver for devices to lend, and the control device `/dev/extoll_pci`. All callbacks of these
//! three run in process context and may sleep. `nic.rs` documents contexts and locks.

#![forbid(unsafe_code)]

mod accel;
mod access;
mod borrow;
mod conf;
mod control;
mod counts;
mod interrupt_relay;
mod lease;
mod lend;
mod nic;
mod port;
mod registry;
mod remote;

use extoll_core::child;
use kernel::{auxiliary, device::Core, driver, miscdevice::*, pci, prelude::*, InPlaceModule};
use kernel_ext::{param, pci_host, work};

struct NicDriver;

kernel::auxiliary_device_table!(
    AUX_TABLE,
    <NicDriver as auxiliary::Driver>::IdInfo,
    [(auxiliary::DeviceId::new(child::MODULE, child::VPCI), ())]
);

impl auxiliary::Driver for NicDriver {
    type IdInfo = ();
    type Data<'bound> = nic::Bound;

    const ID_TABLE: auxiliary::IdTable<Self::IdInfo> = &AUX_TABLE;

    fn probe<'bound>(
        adev: &'bound auxiliary::Device<Core<'_>>,
        _info: &'bound Self::IdInfo,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        nic::Bound::new(child::nic(adev)?)
    }
}

/// State of the module. Fields are dropped in declaration order.
#[pin_data]
struct Vpci {
    #[pin]
    _control: MiscDeviceRegistration<control::Control>,
    #[pin]
    _devices: driver::Registration<pci::Adapter<lend::LenderDriver>>,
    #[pin]
    _nics: driver::Registration<auxiliary::Adapter<NicDriver>>,
    _registered: registry::Registered,
    _flush: work::FlushOnDrop,
}

/// Checks whether this kernel supports host bridges that a module creates.
///
/// # Errors
///
/// `EOPNOTSUPP`: this kernel does not support such host bridges. The log contains the reason.
fn supported() -> Result {
    match pci_host::unsupported() {
        Some(why) => {
            pr_err!("this kernel is not supported: {}\n", why);
            Err(EOPNOTSUPP)
        }
        None => Ok(()),
    }
}

impl InPlaceModule for Vpci {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        conf::load_tunables();
        let checked = param::check(&conf::parameters(), |p| pr_err!("{}\n", p));
        try_pin_init!(Self {
            _: { checked.and_then(|()| supported())? },
            _flush: work::FlushOnDrop,
            _registered: registry::Registered::new()?,
            _nics <- driver::Registration::new(
                <LocalModule as kernel::ModuleMetadata>::NAME,
                module,
            ),
            _devices <- driver::Registration::new(
                <LocalModule as kernel::ModuleMetadata>::NAME,
                module,
            ),
            _control <- MiscDeviceRegistration::register(MiscDeviceOptions {
                name: c"extoll_pci",
            }),
        })
    }
}

module! {
    type: Vpci,
    name: "vpci",
    authors: ["Extoll for Linux"],
    description: "PCIe devices of other nodes over Extoll",
    license: "GPL v2",
    params: {
        dma_kib: u32 {
            default: 4096,
            description: "Memory in KiB that a borrowed device can access by DMA, 64 to 65536",
        },
        map_kib: u32 {
            default: 32768,
            description: "Address range in KiB for pages that are mapped without copying behind an IOMMU, 0 to 1048576",
        },
        leases: u32 {
            default: 8,
            description: "Maximum number of devices per NIC that are lent, and that are borrowed, 1 to 16",
        },
    },
}
