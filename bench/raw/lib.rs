// SPDX-License-Identifier: GPL-2.0-only

//! `extoll_bench.ko`: performance of VELO and RMA without a network stack. Not loaded by default.
//!
//! Programs control the module by text through `/dev/extoll_bench`: they write a command, then read
//! its result as `key value` lines (docs/bench.md). A command runs in the writing process and ends
//! at a signal. The open file keeps the module loaded. Unbinding a NIC ends the run on that NIC.

#![forbid(unsafe_code)]

mod attached;
mod calls;
mod chunks;
mod command;
mod engines;
mod handles;
mod lists;
mod many;
mod memory;
mod notices;
mod pingpong;
mod ports;
mod protocol;
mod regions;
mod remote;
mod report;
mod server;
mod stream;
mod transfer;
mod wait;
mod window;

use attached::{Attached, Registry};
use kernel::{
    auxiliary,
    device::Core,
    driver,
    fs::{File, Kiocb},
    iov::{IovIterDest, IovIterSource},
    miscdevice::{MiscDevice, MiscDeviceOptions, MiscDeviceRegistration},
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
    InPlaceModule,
};
use kernel_ext::{
    global::Global,
    security::{locked_down, Locked},
    work::FlushOnDrop,
};

/// NICs that commands can use.
static REGISTRY: Global<Registry> = Global::new();

/// Maximum length of a command in bytes.
const MAX_COMMAND: usize = 512;

struct RawDriver;

kernel::auxiliary_device_table!(
    AUX_TABLE,
    <RawDriver as auxiliary::Driver>::IdInfo,
    [(
        auxiliary::DeviceId::new(extoll_core::child::MODULE, extoll_core::child::RAW),
        ()
    )]
);

/// Binding of a NIC. Its drop removes the NIC from the registry and ends all activities on it.
struct Binding(Arc<Attached>);

impl Drop for Binding {
    fn drop(&mut self) {
        if let Some(registry) = REGISTRY.get() {
            registry.remove(&self.0);
        }
        self.0.shutdown();
    }
}

impl auxiliary::Driver for RawDriver {
    type IdInfo = ();
    type Data<'bound> = Binding;

    const ID_TABLE: auxiliary::IdTable<Self::IdInfo> = &AUX_TABLE;

    fn probe<'bound>(
        adev: &'bound auxiliary::Device<Core<'_>>,
        _info: &'bound Self::IdInfo,
    ) -> impl PinInit<Binding, Error> + 'bound {
        let nic = extoll_core::child::nic(adev)?;
        let registry = REGISTRY.get().ok_or(ENODEV)?;
        let attached = Attached::new(nic)?;
        registry.add(attached.clone())?;
        Ok(Binding(attached))
    }
}

/// Result of a command, and the number of bytes that were read so far. The number is not the file's
/// position, because a failed write must not change it.
struct Output {
    text: KVec<u8>,
    position: i64,
}

/// Open file with the result of its last command.
#[pin_data]
struct Control {
    registry: Arc<Registry>,
    #[pin]
    output: Mutex<Output>,
}

#[vtable]
impl MiscDevice for Control {
    type Ptr = Pin<KBox<Self>>;

    fn open(_file: &File, _misc: &MiscDeviceRegistration<Self>) -> Result<Self::Ptr> {
        // A locked-down kernel must reject this, because commands contain physical addresses.
        locked_down(Locked::PciAccess)?;
        KBox::try_pin_init(
            try_pin_init!(Self {
                registry: REGISTRY.get().ok_or(ENODEV)?,
                output <- new_mutex!(
                    Output { text: KVec::new(), position: 0 },
                    "extoll_bench_output"
                ),
            }),
            GFP_KERNEL,
        )
    }

    fn read_iter(kiocb: Kiocb<'_, Self::Ptr>, iov: &mut IovIterDest<'_>) -> Result<usize> {
        let this = kiocb.file();
        let mut output = this.output.lock();
        let Output { text, position } = &mut *output;
        iov.simple_read_from_buffer(position, text)
    }

    fn write_iter(kiocb: Kiocb<'_, Self::Ptr>, iov: &mut IovIterSource<'_>) -> Result<usize> {
        let this = kiocb.file();
        let len = iov.len();
        let mut command = KVec::new();
        let mut byte = [0];
        while !iov.is_empty() {
            if iov.copy_from_iter(&mut byte) == 0 {
                return Err(EFAULT);
            }
            match byte {
                [b'\n'] => break,
                _ if command.len() == MAX_COMMAND => return Err(E2BIG),
                [byte] => command.push(byte, GFP_KERNEL)?,
            }
        }
        if !iov.is_empty() {
            return Err(EINVAL);
        }
        // A second command on the same file waits for the first command, whose run has a deadline.
        let mut output = this.output.lock();
        output.text.clear();
        output.position = 0;
        command::run(&this.registry, &command, &mut output.text)?;
        Ok(len)
    }
}

#[pin_data]
struct Bench {
    // The fields are dropped in this order: commands, NICs, registry, work items.
    #[pin]
    _control: MiscDeviceRegistration<Control>,
    #[pin]
    _driver: driver::Registration<auxiliary::Adapter<RawDriver>>,
    _registry: ClearRegistry,
    _flush: FlushOnDrop,
}

/// Guard that empties the static when the module is unloaded or its initialisation fails.
struct ClearRegistry;

impl Drop for ClearRegistry {
    fn drop(&mut self) {
        REGISTRY.set(None);
    }
}

impl InPlaceModule for Bench {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            _flush: FlushOnDrop,
            _registry: {
                REGISTRY.set(Some(Registry::new()?));
                ClearRegistry
            },
            _driver <- driver::Registration::new(
                <LocalModule as kernel::ModuleMetadata>::NAME,
                module,
            ),
            _control <- MiscDeviceRegistration::register(MiscDeviceOptions {
                name: c"extoll_bench",
            }),
        })
    }
}

module! {
    type: Bench,
    name: "extoll_bench",
    authors: ["Extoll for Linux"],
    description: "Raw VELO and RMA measurements over Extoll",
    license: "GPL v2",
}
