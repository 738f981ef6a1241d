// SPDX-License-Identifier: GPL-2.0-only

//! `af_extl.ko`: stream sockets with the semantics of TCP whose data bypass TCP where both ends
//! support it. docs/af_extl.md describes the use of these sockets, docs/ds-protocol.md the
//! protocol.
//!
//! The module registers the socket family `AF_EXTL`, the protocol `IPPROTO_EXTL` of IPv4 and IPv6,
//! and a driver for the auxiliary device that `extoll.ko` creates for each NIC. Probe, unbind,
//! module load and unload run in process context and may sleep. `ops.rs` is the entry point of
//! socket operations, `nic/mod.rs` documents contexts and locks of the data path.

#![forbid(unsafe_code)]

mod conf;
mod connection;
mod direct;
mod nic;
mod open;
mod ops;
mod options;
mod registry;
mod show;
mod space;
mod state;
mod zero;

use extoll_core::child;
use kernel::{auxiliary, device::Core, driver, fmt, prelude::*, sync::Arc, InPlaceModule};
use kernel_ext::{
    debugfs::Dir,
    net::{
        namespace,
        socket::{Alias, Family, Version},
    },
    param, work,
};
use nic::Bound;
use ops::Stream;
use registry::{all, Registered};
use space::Space;

struct Driver;

kernel::auxiliary_device_table!(
    AUX_TABLE,
    <Driver as auxiliary::Driver>::IdInfo,
    [(auxiliary::DeviceId::new(child::MODULE, child::AF_EXTL), ())]
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

/// State of the module. Fields are dropped in declaration order. Therefore no socket can be created
/// any more when the NICs are unbound and the namespaces release their data.
#[pin_data]
struct AfExtl {
    #[pin]
    _family: Family<Stream, LocalModule>,
    _v4: Option<Alias<Stream, LocalModule>>,
    _v6: Option<Alias<Stream, LocalModule>>,
    #[pin]
    _driver: driver::Registration<auxiliary::Adapter<Driver>>,
    _registered: Registered,
    _flush: work::FlushOnDrop,
    #[pin]
    _spaces: namespace::Registration<Space>,
    _files: Option<Dir<Parameters>>,
}

/// Data of the module's debugfs directory, which has no state of its own.
struct Parameters;

fn show_parameters(_: &Parameters, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    param::show(&conf::parameters(), f)
}

fn show_nics(_: &Parameters, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    all().map_or(Ok(()), |all| all.show(f))
}

fn show_connections(_: &Parameters, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    all().map_or(Ok(()), |all| all.show_connections(f))
}

fn files() -> Result<Dir<Parameters>> {
    let data = Arc::new(Parameters, GFP_KERNEL)?;
    let files: [(_, kernel_ext::debugfs::Show<Parameters>); 3] = [
        (c"parameters", show_parameters),
        (c"nics", show_nics),
        (c"connections", show_connections),
    ];
    Dir::new::<LocalModule>(c"af_extl", &data, &files)
}

/// Registers the protocol number for a version of IP. If that fails, `AF_EXTL` sockets still work.
fn alias(version: Version) -> Option<Alias<Stream, LocalModule>> {
    let number = conf::protocol();
    Alias::new(version, number)
        .inspect_err(|e| pr_warn!("no protocol {} for IP{:?}: {:?}\n", number, version, e))
        .ok()
}

impl InPlaceModule for AfExtl {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        conf::load_tunables();
        let checked = param::check(&conf::parameters(), |p| pr_err!("{}\n", p));
        // Fields are initialised in the order in which they are written here.
        try_pin_init!(Self {
            _: { checked? },
            _spaces <- namespace::Registration::new(),
            _flush: work::FlushOnDrop,
            _registered: Registered::new()?,
            _driver <- driver::Registration::new(
                <LocalModule as kernel::ModuleMetadata>::NAME,
                module,
            ),
            _family <- Family::new(conf::family()),
            _v4: alias(Version::V4),
            _v6: alias(Version::V6),
            _files: files()
                .inspect_err(|e| pr_warn!("no debugfs files: {:?}\n", e))
                .ok(),
        })
    }
}

module! {
    type: AfExtl,
    name: "af_extl",
    authors: ["Extoll for Linux"],
    description: "Stream sockets over Extoll",
    license: "GPL v2",
    alias: ["net-pf-19", "net-pf-2-proto-259-type-1", "net-pf-10-proto-259-type-1"],
    params: {
        family: u32 {
            default: 19,
            description: "Number of the socket family AF_EXTL: 13, 14, 18, 19, 22 or 25",
        },
        protocol: u32 {
            default: 259,
            description: "Protocol number IPPROTO_EXTL of AF_INET and AF_INET6, 257 to 261",
        },
        connections: u32 {
            default: 256,
            description: "Maximum number of connections per NIC that bypass TCP, 1 to 4096",
        },
        user_connections: u32 {
            default: 128,
            description: "Maximum number of these connections per user without CAP_SYS_RESOURCE, 1 to 4096",
        },
    },
}
