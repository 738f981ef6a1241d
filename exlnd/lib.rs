// SPDX-License-Identifier: GPL-2.0-only

//! `kexlnd.ko`: LNet driver (LND) for Extoll. docs/exlnd.md describes the use, docs/lnd-protocol.md
//! the protocol.
//!
//! The module registers the network type `ex` with LNet and a driver for the auxiliary device that
//! `extoll.ko` creates for each NIC. LNet starts an interface `exN` on the NIC with number N.
//! Probe, unbind, module load and unload run in process context and may sleep. `ni/mod.rs`
//! documents threads and locks; `ffi/` contains all unsafe code.

#![deny(unsafe_code)]

mod conf;
mod fault;
mod ffi;
mod ni;
mod registry;
mod ring;

use extoll_core::child;
use ffi::lnet;
use kernel::{auxiliary, device::Core, driver, fmt, prelude::*, sync::Arc, InPlaceModule};
use kernel_ext::{debugfs::Dir, param, work};
use registry::{Bound, Registered};

struct Driver;

kernel::auxiliary_device_table!(
    AUX_TABLE,
    <Driver as auxiliary::Driver>::IdInfo,
    [(auxiliary::DeviceId::new(child::MODULE, child::EXLND), ())]
);

impl auxiliary::Driver for Driver {
    type IdInfo = ();
    type Data<'bound> = Bound;

    const ID_TABLE: auxiliary::IdTable<Self::IdInfo> = &AUX_TABLE;

    fn probe<'bound>(
        adev: &'bound auxiliary::Device<Core<'_>>,
        _info: &'bound Self::IdInfo,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        Bound::new(child::nic(adev)?)
    }
}

/// State of the module. Fields are dropped in the order of their declaration.
#[pin_data]
struct Exlnd {
    _lnd: lnet::Registration,
    #[pin]
    _driver: driver::Registration<auxiliary::Adapter<Driver>>,
    _registered: Registered,
    _flush: work::FlushOnDrop,
    _files: Option<Dir<Parameters>>,
}

/// Data of the module's debugfs directory, which has no state of its own.
struct Parameters;

fn show_parameters(_: &Parameters, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    param::show(&conf::parameters(), f)
}

fn show_interfaces(_: &Parameters, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    registry::show(f)
}

fn show_fault(_: &Parameters, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    fault::show(f)
}

fn set_fault(_: &Parameters, text: &str) -> Result {
    fault::set(text)
}

fn files() -> Result<Dir<Parameters>> {
    let data = Arc::new(Parameters, GFP_KERNEL)?;
    let files: [(_, kernel_ext::debugfs::Show<Parameters>); 2] = [
        (c"parameters", show_parameters),
        (c"interfaces", show_interfaces),
    ];
    let mut dir = Dir::new::<LocalModule>(c"kexlnd", &data, &files)?;
    dir.add_writable::<LocalModule>(c"fault", &data, show_fault, set_fault)?;
    Ok(dir)
}

fn register() -> Result<lnet::Registration> {
    let kind = conf::kind();
    lnet::Registration::new(kind).inspect_err(|e| match (*e, kind) {
        (e, None) if e == EPROTONOSUPPORT => {
            pr_err!("LNet does not know network type 'ex': see docs/exlnd.md, or set lnd_type\n")
        }
        (e, Some(kind)) if e == EPROTONOSUPPORT => {
            pr_err!("LNet does not know network type {}\n", kind)
        }
        (e, _) if e == EBUSY => pr_err!("another LNet driver uses this type\n"),
        _ => pr_err!("cannot register with LNet: {:?}\n", e),
    })
}

impl InPlaceModule for Exlnd {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        conf::load_tunables();
        let checked = param::check(&conf::parameters(), |p| pr_err!("{}\n", p));
        // Fields are initialised in the order written here.
        try_pin_init!(Self {
            _: { checked? },
            _flush: work::FlushOnDrop,
            _registered: Registered::new()?,
            _driver <- driver::Registration::new(
                <LocalModule as kernel::ModuleMetadata>::NAME,
                module,
            ),
            _lnd: register()?,
            _files: files()
                .inspect_err(|e| pr_warn!("no debugfs files: {:?}\n", e))
                .ok(),
        })
    }
}

module! {
    type: Exlnd,
    name: "kexlnd",
    authors: ["Extoll for Linux"],
    description: "Lustre networking over Extoll",
    license: "GPL v2",
    params: {
        lnd_type: u32 {
            default: 0,
            description: "LNet network type number; 0 for the one that LNet knows as ex",
        },
        credits: u32 {
            default: 256,
            description: "Maximum number of concurrent messages per interface",
        },
        peer_credits: u32 {
            default: 8,
            description: "Maximum number of concurrent messages per peer",
        },
        peer_buffer_credits: u32 {
            default: 0,
            description: "Maximum number of messages of one peer that a router buffers; 0 for LNet's default",
        },
        peer_timeout: u32 {
            default: 180,
            description: "Interval in seconds after which LNet pings a router",
        },
        timeout: u32 {
            default: 50,
            description: "Time in seconds after which a message that is not delivered fails",
        },
    },
}
