// SPDX-License-Identifier: GPL-2.0-only

//! Module entry of `extoll.ko`: PCI driver for Tourmalet and its load-time parameters.

#![forbid(unsafe_code)]

use extoll_core::{
    nic::Params,
    probe::{BoundNic, DEVICE_IDS, VENDOR_ID},
    probe_error::{self, ProbeErrors},
    quarantine::HistoryOwner,
    smfu, time,
    user::Settings,
};
use kernel::{device::Core, driver, fmt, pci, prelude::*, InPlaceModule};
use kernel_ext::{
    chardev::Classes,
    debugfs::Dir,
    param::{self, Overrides, Param, Tunable},
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
        param::check(&parameters(), |p| dev_err!(pdev, "{}\n", p))?;
        let params = Params {
            velo_slots_64: VELO_SLOTS_64.value() != 0,
            atu_gats: ATU_GATS.number(),
            atu_page_kib: ATU_PAGE_KIB.number(),
            tables_per_user: module_parameters::tables_per_user.value(),
            smfu_target_kib: SMFU_TARGET_KIB.number(),
            quarantine_kib: module_parameters::quarantine_kib.value(),
            log_interval_ms: LOG_INTERVAL_MS.number(),
            vendor_events: VENDOR_EVENTS.value() != 0,
            message_interrupts: MESSAGE_INTERRUPTS.number(),
        };
        let settings = Settings {
            compat_unsafe: module_parameters::compat_unsafe.value(),
            vpids_per_user: module_parameters::vpids_per_user.value(),
            user_interrupts: USER_INTERRUPTS.number(),
            interrupts_per_user: module_parameters::interrupts_per_user.value(),
            process_quarantine_ms: PROCESS_QUARANTINE_MS.number(),
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
    /// Device classes of the driver's device files. Dropped after the driver, because each file
    /// belongs to a class.
    _classes: Classes,
    _history: HistoryOwner,
    _overrides: Overrides,
    _files: Option<Dir<ProbeErrors>>,
    /// Owner of the work queues. Dropped last, because the other objects queue work on them.
    _work: work::Owner,
}

/// Selects the size of VELO mailbox slots: 1 for 64 bytes, 0 for 128 bytes.
static VELO_SLOTS_64: Tunable = Tunable::new("extoll.velo_slots_64", 0);
/// Maximum number of global address tables. Each has 2 MiB and is allocated on demand.
static ATU_GATS: Tunable = Tunable::new("extoll.atu_gats", GATS as i64);
/// Size in KiB of the largest hardware pages that the ATU uses (HW §11.1).
static ATU_PAGE_KIB: Tunable = Tunable::new("extoll.atu_page_kib", 4);
/// Size in KiB of the memory that the SMFU exports to other nodes; 0 exports none.
static SMFU_TARGET_KIB: Tunable = Tunable::new("extoll.smfu_target_kib", 4096);
/// Time in ms for which freed memory is kept if a process may have named it by bus address.
static PROCESS_QUARANTINE_MS: Tunable = Tunable::new("extoll.process_quarantine_ms", 60_000);
/// Maximum number of interrupts per second of a port of a process; 0 sets no limit.
static USER_INTERRUPTS: Tunable = Tunable::new("extoll.user_interrupts", 20_000);
/// Interval in ms in which at most four lines are logged for each reason.
static LOG_INTERVAL_MS: Tunable = Tunable::new("extoll.log_interval_ms", 10_000);
/// 1 enables only the events that the vendor's driver enables. The links are then polled once a
/// second.
static VENDOR_EVENTS: Tunable = Tunable::new("extoll.vendor_events", 0);
/// Maximum number of interrupts per second that writes of other nodes may cause. Above it, their
/// targets are closed for a second. 0 sets no limit.
static MESSAGE_INTERRUPTS: Tunable = Tunable::new("extoll.message_interrupts", 100_000);

/// Reads the user's overrides of all tunables of this module. May sleep.
fn load_tunables() {
    let all = [
        &VELO_SLOTS_64,
        &ATU_GATS,
        &ATU_PAGE_KIB,
        &SMFU_TARGET_KIB,
        &PROCESS_QUARANTINE_MS,
        &USER_INTERRUPTS,
        &LOG_INTERVAL_MS,
        &VENDOR_EVENTS,
        &MESSAGE_INTERRUPTS,
    ];
    all.into_iter().for_each(Tunable::load);
}

/// Returns all parameters and tunables that have a permitted range.
fn parameters() -> [Param; 16] {
    use module_parameters as m;
    let any = u32::MAX.into();
    [
        VELO_SLOTS_64.param(0, 1),
        ATU_GATS.param(0, GATS.into()),
        ATU_PAGE_KIB.one_of(&PAGE_KIB),
        Param::new(
            "tables_per_user",
            m::tables_per_user.value(),
            1,
            GATS.into(),
        ),
        SMFU_TARGET_KIB.param(0, smfu::MAX_KIB.into()),
        Param::new("quarantine_kib", m::quarantine_kib.value(), 0, any),
        PROCESS_QUARANTINE_MS.param(1000, QUARANTINE_MAX_MS),
        Param::switch("compat_unsafe", m::compat_unsafe.value()),
        Param::new(
            "vpids_per_user",
            m::vpids_per_user.value(),
            0,
            Vpid::COUNT.into(),
        ),
        USER_INTERRUPTS.param(0, any),
        Param::new(
            "interrupts_per_user",
            m::interrupts_per_user.value(),
            0,
            any,
        ),
        LOG_INTERVAL_MS.param(0, LOG_INTERVAL_MAX_MS),
        VENDOR_EVENTS.param(0, 1),
        MESSAGE_INTERRUPTS.param(0, any),
        Param::new("slow", m::slow.value(), 1, SLOW_MAX),
        Param::new("first_user", m::first_user.value(), 0, any),
    ]
}

/// Checks whether `compat_unsafe`, which lets processes access all memory, is permitted.
///
/// # Errors
///
/// `EPERM`: `compat_unsafe` is set, and the kernel is locked down.
fn admit() -> Result {
    if !module_parameters::compat_unsafe.value() {
        return Ok(());
    }
    locked_down(Locked::ModuleParameters)
        .inspect_err(|_| pr_err!("kernel lockdown forbids compat_unsafe\n"))
}

/// Sizes of the ATU's hardware pages in KiB (HW §11.1).
const PAGE_KIB: [i64; 5] = [4, 8, 64, 2048, 1 << 20];
/// Maximum quarantine time in ms: ten minutes.
const QUARANTINE_MAX_MS: i64 = 600_000;
/// Maximum log interval in ms: one day.
const LOG_INTERVAL_MAX_MS: i64 = 86_400_000;
const SLOW_MAX: i64 = 100;

fn show_parameters(_: &ProbeErrors, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    param::show(&parameters(), f)
}

fn show_tunables(_: &ProbeErrors, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    Overrides::show(f)
}

/// Stores overrides of tunables and applies those of this module. NICs that are bound later use
/// them.
fn set_tunables(_: &ProbeErrors, text: &str) -> Result {
    Overrides::set(text)?;
    load_tunables();
    param::check(&parameters(), |p| pr_err!("{}\n", p))
}

fn files() -> Result<Dir<ProbeErrors>> {
    let (mut dir, data) = probe_error::files::<LocalModule>(&[(c"parameters", show_parameters)])?;
    dir.add_writable::<LocalModule>(c"tunables", &data, show_tunables, set_tunables)?;
    Ok(dir)
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
            _history: HistoryOwner::new()?,
            _overrides: Overrides::new()?,
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
    type: Extoll,
    name: "extoll",
    authors: ["Extoll for Linux"],
    description: "Base driver for the Extoll Tourmalet NIC",
    license: "GPL v2",
    params: {
        tables_per_user: u32 {
            default: 64,
            description: "Maximum number of partially filled address tables per unprivileged user, 1 to 1024",
        },
        quarantine_kib: u32 {
            default: 65536,
            description: "Maximum memory in KiB that is kept for late answers; above it no RMA port is enabled",
        },
        compat_unsafe: bool {
            default: false,
            description: "Give every process access to physical memory and all registers, like the vendor's driver",
        },
        vpids_per_user: u32 {
            default: 125,
            description: "Maximum number of VPIDs per unit and NIC for one unprivileged user",
        },
        interrupts_per_user: u32 {
            default: 100_000,
            description: "Maximum number of interrupts per second for all ports of a user on a NIC, 0 for no limit",
        },
        first_user: u32 {
            default: 0,
            description: "First of the 65535 user IDs that may use the NIC without privilege",
        },
        slow: u32 {
            default: 1,
            description: "Factor of the time-outs after which a peer or the NIC counts as stalled, 1 to 100; for emulated or overcommitted guests",
        },
    },
}
