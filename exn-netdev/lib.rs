// SPDX-License-Identifier: GPL-2.0-only

//! `exn.ko`: Ethernet over Extoll. Registers one network interface `exn%d` per NIC.
//!
//! The module binds to the auxiliary device that `extoll.ko` creates for each NIC. Probe, unbind,
//! module load and unload run in process context and may sleep. `dev.rs` documents the interface,
//! `shared.rs` the locks, docs/exn.md the wire format and the user interface.

#![forbid(unsafe_code)]

mod conf;
mod debugfs;
mod dev;
mod env;
mod ethtool;
mod outgoing;
mod poll;
mod reason;
mod rx_eager;
mod rx_rma;
mod rx_velo;
mod shared;
mod transmit;
mod tx;

use dev::Interface;
use extoll_core::child;
use kernel::{auxiliary, device::Core, driver, fmt, prelude::*, sync::Arc, InPlaceModule};
use kernel_ext::{debugfs::Dir, param};

struct Driver;

kernel::auxiliary_device_table!(
    AUX_TABLE,
    <Driver as auxiliary::Driver>::IdInfo,
    [(auxiliary::DeviceId::new(child::MODULE, child::EXN), ())]
);

impl auxiliary::Driver for Driver {
    type IdInfo = ();
    type Data<'bound> = Interface<'bound>;

    const ID_TABLE: auxiliary::IdTable<Self::IdInfo> = &AUX_TABLE;

    fn probe<'bound>(
        adev: &'bound auxiliary::Device<Core<'_>>,
        _info: &'bound Self::IdInfo,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        let nic = child::nic(adev)?;
        Interface::new(nic, adev.as_ref())
    }
}

/// Data of the module's debugfs directory, which has no state of its own.
struct Parameters;

#[pin_data]
struct Exn {
    #[pin]
    _driver: driver::Registration<auxiliary::Adapter<Driver>>,
    _files: Option<Dir<Parameters>>,
}

fn show_parameters(_: &Parameters, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    param::show(&conf::parameters(), f)
}

fn files() -> Result<Dir<Parameters>> {
    let data = Arc::new(Parameters, GFP_KERNEL)?;
    Dir::new::<LocalModule>(c"exn", &data, &[(c"parameters", show_parameters)])
}

impl InPlaceModule for Exn {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        conf::load_tunables();
        let checked = param::check(&conf::parameters(), |p| pr_err!("{}\n", p));
        try_pin_init!(Self {
            _: { checked? },
            _driver <- driver::Registration::new(
                <LocalModule as kernel::ModuleMetadata>::NAME,
                module,
            ),
            _files: files()
                .inspect_err(|e| pr_warn!("no debugfs files: {:?}\n", e))
                .ok(),
        })
    }
}

module! {
    type: Exn,
    name: "exn",
    authors: ["Extoll for Linux"],
    description: "Ethernet over Extoll",
    license: "GPL v2",
    params: {
        velo_threshold: u32 {
            default: 120,
            description: "Size in bytes from which unicast frames are announced, not sent as messages (ethtool --set-tunable tx-copybreak)",
        },
        default_nodeid: i32 {
            default: -1,
            description: "Node ID that receives unicast frames for unknown MAC addresses; -1 drops them",
        },
        mac: u32 {
            default: 0x2E87_0407,
            description: "First four octets of all MAC addresses of the network, for example 0x2e870407",
        },
    },
}
