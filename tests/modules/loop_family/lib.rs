// SPDX-License-Identifier: GPL-2.0-only

//! Test aid: sockets (family 22) with a minimal data path of their own. Written data come back on
//! the same socket after a delay, through a ring, a timer and a softirq. `guest/loop.py` compares
//! these sockets with sockets of TCP. The module tests `kernel_ext::net::socket` without using a
//! NIC for data.

#![forbid(unsafe_code)]

mod ops;
mod path;

use extoll_core::child;
use kernel::{
    auxiliary,
    device::{Core, Device},
    driver,
    prelude::*,
    sync::{aref::ARef, Arc},
    InPlaceModule,
};
use kernel_ext::{global::Global, net::socket::Family, work::FlushOnDrop};
use ops::Loop;

/// Number of the family, unused by the kernel.
const FAMILY: u32 = 22;

/// The NIC that was bound last.
static NIC: Global<ARef<Device>> = Global::new();

struct Driver;

kernel::auxiliary_device_table!(
    AUX_TABLE,
    <Driver as auxiliary::Driver>::IdInfo,
    [(auxiliary::DeviceId::new(child::MODULE, child::VPCI), ())]
);

/// Clears [`NIC`] when dropped.
struct Forget;

impl Drop for Forget {
    fn drop(&mut self) {
        NIC.set(None);
    }
}

impl auxiliary::Driver for Driver {
    type IdInfo = ();
    type Data<'bound> = Forget;

    const ID_TABLE: auxiliary::IdTable<Self::IdInfo> = &AUX_TABLE;

    fn probe<'bound>(
        adev: &'bound auxiliary::Device<Core<'_>>,
        _info: &'bound Self::IdInfo,
    ) -> impl PinInit<Forget, Error> + 'bound {
        let nic: &Device = adev.parent();
        NIC.set(Some(Arc::new(nic.into(), GFP_KERNEL)?));
        Ok(Forget)
    }
}

/// Parts of the module, in the order in which they are dropped. After the first two, no new sockets
/// and no new NIC can appear. Then the paths are dropped that outlived their sockets.
#[pin_data]
struct Loops {
    #[pin]
    _family: Family<Loop, LocalModule>,
    #[pin]
    _driver: driver::Registration<auxiliary::Adapter<Driver>>,
    _late: path::Late,
    _flush: FlushOnDrop,
}

impl InPlaceModule for Loops {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            _flush: FlushOnDrop,
            _late: path::Late,
            _driver <- driver::Registration::new(
                <LocalModule as kernel::ModuleMetadata>::NAME,
                module,
            ),
            _family <- Family::new(FAMILY),
        })
    }
}

module! {
    type: Loops,
    name: "loop_family",
    authors: ["Extoll for Linux"],
    description: "Test aid: sockets whose data come back",
    license: "GPL v2",
    alias: ["net-pf-22"],
}
