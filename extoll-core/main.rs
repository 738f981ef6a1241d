// SPDX-License-Identifier: GPL-2.0-only

//! Module entry of `extoll.ko`: PCI driver for Tourmalet and its load-time parameters.

#![forbid(unsafe_code)]

use extoll_core::{
    nic::Params,
    probe::{BoundNic, DEVICE_IDS, VENDOR_ID},
    quarantine::PastOwner,
    refusal::{self, Refusals},
    smfu, time,
    user::Settings,
};
use kernel::{device::Core, driver, fmt, pci, prelude::*, InPlaceModule};
use kernel_ext::{
    chardev::Classes,
    debugfs::Dir,
    param::{self, Param},
    pci::device_id,
    security::{locked_down, Locked},
    work,
};
use wire::{ids::Vpid, regs::atu::GATS};

struct ExtollDriver;

kernel::pci_device_table!(
    PCI_TABLE,
    <ExtollDriver as pci::Driver>::IdInfo,
    [
        (device_id(VENDOR_ID, DEVICE_IDS[0]), ()),
        (device_id(VENDOR_ID, DEVICE_IDS[1]), ()),
    ]
);

impl pci::Driver for ExtollDriver {
    type IdInfo = ();
    type Data<'bound> = BoundNic<'bound>;

    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        _info: Option<&'bound Self::IdInfo>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        let params = Params {
            velo_slots_64: module_parameters::velo_slots_64.value(),
            atu_gats: module_parameters::atu_gats.value(),
            atu_page_kib: module_parameters::atu_page_kib.value(),
            tables_per_user: module_parameters::tables_per_user.value(),
            smfu_target_kib: module_parameters::smfu_target_kib.value(),
            quarantine_kib: module_parameters::quarantine_kib.value(),
            log_interval_ms: module_parameters::log_interval_ms.value(),
            snq_irq: [
                module_parameters::snq_irq_0.value(),
                module_parameters::snq_irq_1.value(),
                module_parameters::snq_irq_2.value(),
            ],
            vendor_events: module_parameters::vendor_events.value(),
            message_interrupts: module_parameters::message_interrupts.value(),
            mark_fences: module_parameters::mark_fences.value(),
        };
        let settings = Settings {
            compat_unsafe: module_parameters::compat_unsafe.value(),
            vpids_per_user: module_parameters::vpids_per_user.value(),
            user_interrupts: module_parameters::user_interrupts.value(),
            interrupts_per_user: module_parameters::interrupts_per_user.value(),
            process_quarantine_ms: module_parameters::process_quarantine_ms.value(),
            first_user: module_parameters::first_user.value(),
        };
        if settings.compat_unsafe {
            dev_warn!(
                pdev,
                "compat_unsafe: every process can read and write all memory of all nodes\n"
            );
        }
        BoundNic::probe::<LocalModule>(pdev, params, settings)
    }

    fn unbind<'bound>(_pdev: &'bound pci::Device<Core<'_>>, this: Pin<&Self::Data<'bound>>) {
        this.stop();
    }
}

#[pin_data]
struct Extoll {
    #[pin]
    _driver: driver::Registration<pci::Adapter<ExtollDriver>>,
    /// Dropped after the driver, whose nodes are in it.
    _classes: Classes,
    _past: PastOwner,
    _files: Option<Dir<Refusals>>,
    /// Dropped when nothing is left that enqueues.
    _work: work::Owner,
}

/// Those with a range. Any value of the others makes sense.
fn parameters() -> [Param; 17] {
    use module_parameters as m;
    let any = u32::MAX.into();
    [
        Param::switch("velo_slots_64", m::velo_slots_64.value()),
        Param::new("atu_gats", m::atu_gats.value(), 0, GATS.into()),
        Param::one_of("atu_page_kib", m::atu_page_kib.value(), &PAGE_KIB),
        Param::new(
            "tables_per_user",
            m::tables_per_user.value(),
            1,
            GATS.into(),
        ),
        Param::new(
            "smfu_target_kib",
            m::smfu_target_kib.value(),
            0,
            smfu::MOST_KIB.into(),
        ),
        Param::new("quarantine_kib", m::quarantine_kib.value(), 0, any),
        Param::new(
            "process_quarantine_ms",
            m::process_quarantine_ms.value(),
            1000,
            QUARANTINE_MAX_MS,
        ),
        Param::switch("compat_unsafe", m::compat_unsafe.value()),
        Param::new(
            "vpids_per_user",
            m::vpids_per_user.value(),
            0,
            Vpid::COUNT.into(),
        ),
        Param::new("user_interrupts", m::user_interrupts.value(), 0, any),
        Param::new(
            "interrupts_per_user",
            m::interrupts_per_user.value(),
            0,
            any,
        ),
        Param::new(
            "log_interval_ms",
            m::log_interval_ms.value(),
            0,
            LOG_INTERVAL_MAX_MS,
        ),
        Param::switch("vendor_events", m::vendor_events.value()),
        Param::new("message_interrupts", m::message_interrupts.value(), 0, any),
        Param::switch("mark_fences", m::mark_fences.value()),
        Param::new("slow", m::slow.value(), 1, SLOW_MAX),
        Param::new("first_user", m::first_user.value(), 0, any),
    ]
}

/// Checks that the administrator may set the parameters that give access to memory: the interrupt
/// packet is a write to any address, and `compat_unsafe` gives processes all memory.
///
/// # Errors
///
/// `EPERM`: one of them is set, and the kernel is locked down.
fn admit() -> Result {
    use module_parameters as m;
    let packet = [
        m::snq_irq_0.value(),
        m::snq_irq_1.value(),
        m::snq_irq_2.value(),
    ];
    if packet == SNQ_IRQ && !m::compat_unsafe.value() {
        return Ok(());
    }
    locked_down(Locked::ModuleParameters).inspect_err(|_| {
        pr_err!("kernel lockdown forbids compat_unsafe and snq_irq_0 to snq_irq_2\n")
    })
}

/// Default of the interrupt packet (HW §6.2).
const SNQ_IRQ: [u64; 3] = [0xFD23_0000_0040_002D, 0x0300_0100_0000, 0];
/// Sizes of the ATU's hardware pages (HW §11.1).
const PAGE_KIB: [i64; 5] = [4, 8, 64, 2048, 1 << 20];
/// Ten minutes.
const QUARANTINE_MAX_MS: i64 = 600_000;
/// A day.
const LOG_INTERVAL_MAX_MS: i64 = 86_400_000;
const SLOW_MAX: i64 = 100;

fn show_parameters(_: &Refusals, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    use module_parameters as m;
    param::show(&parameters(), f)?;
    for (n, word) in [
        m::snq_irq_0.value(),
        m::snq_irq_1.value(),
        m::snq_irq_2.value(),
    ]
    .iter()
    .enumerate()
    {
        writeln!(f, "snq_irq_{n} {word:#x}")?;
    }
    Ok(())
}

impl InPlaceModule for Extoll {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        let checked = param::check(&parameters(), |p| pr_err!("{}\n", p)).and_then(|()| admit());
        try_pin_init!(Self {
            _: {
                checked?;
                time::set_slow(module_parameters::slow.value());
            },
            _work: work::Owner::new()?,
            _classes: Classes::register()?,
            _past: PastOwner::new()?,
            _driver <- driver::Registration::new(<LocalModule as kernel::ModuleMetadata>::NAME, module),
            _files: refusal::files::<LocalModule>(&[(c"parameters", show_parameters)])
                .inspect_err(|e| pr_warn!("no debugfs files: {:?}\n", e))
                .ok(),
        })
    }
}

module! {
    type: Extoll,
    name: "extoll",
    authors: ["Extoll for Linux"],
    description: "Base driver for the Extoll Tourmalet NIC",
    license: "GPL v2",
    params: {
        velo_slots_64: bool {
            default: false,
            description: "Use 64-byte instead of 128-byte VELO mailbox slots",
        },
        atu_gats: u32 {
            default: 1024,
            description: "Most global address tables (2 MiB of memory each, made on demand), 0 to 1024",
        },
        atu_page_kib: u32 {
            default: 4,
            description: "Largest hardware pages that the ATU is given in KiB: 4, 8, 64, 2048 or 1048576",
        },
        tables_per_user: u32 {
            default: 64,
            description: "Address tables that memory of an unprivileged user may lie in without filling them",
        },
        smfu_target_kib: u32 {
            default: 4096,
            description: "Memory exported by the SMFU in KiB, 0 for none",
        },
        quarantine_kib: u32 {
            default: 65536,
            description: "Memory in KiB that may wait for late answers before no further RMA port is enabled",
        },
        process_quarantine_ms: u32 {
            default: 60_000,
            description: "Time in ms for which memory stays that processes may have named by bus addresses, 1000 to 600000",
        },
        snq_irq_0: u64 {
            default: crate::SNQ_IRQ[0],
            description: "First header word of the interrupt packet",
        },
        snq_irq_1: u64 {
            default: crate::SNQ_IRQ[1],
            description: "Second header word of the interrupt packet",
        },
        snq_irq_2: u64 {
            default: crate::SNQ_IRQ[2],
            description: "Payload of the interrupt packet",
        },
        compat_unsafe: bool {
            default: false,
            description: "Give every process physical memory and all registers, as the vendor's driver does",
        },
        vpids_per_user: u32 {
            default: 125,
            description: "VPIDs per unit that one unprivileged user may hold on a NIC",
        },
        user_interrupts: u32 {
            default: 20_000,
            description: "Interrupts per second that a port of a process may have, 0 for any number",
        },
        interrupts_per_user: u32 {
            default: 100_000,
            description: "Interrupts per second that all ports of a user on a NIC may have, 0 for any number",
        },
        log_interval_ms: u32 {
            default: 10_000,
            description: "Time in which at most 4 lines per reason are logged",
        },
        vendor_events: bool {
            default: false,
            description: "Enable only the events that the vendor's driver has; links are looked at once a second then",
        },
        message_interrupts: u32 {
            default: 100_000,
            description: "Interrupts per second by writes of other nodes above which their targets are closed, 0 for any number",
        },
        mark_fences: bool {
            default: false,
            description: "Follow each store fence by a marking store, if the NIC is an emulator that asks for it",
        },
        slow: u32 {
            default: 1,
            description: "Factor of time-outs after which a peer or the NIC counts as stalled, for emulated or overcommitted guests, 1 to 100",
        },
        first_user: u32 {
            default: 0,
            description: "Users from this number on, 65535 of them, may use the NIC without privilege",
        },
    },
}
