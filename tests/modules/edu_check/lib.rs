// SPDX-License-Identifier: GPL-2.0-only

//! Test aid: a driver for QEMU's `edu` that checks registers, memory access and interrupts of the
//! device, local or borrowed. Its probe fails if a check fails; the log contains the reason.

#![forbid(unsafe_code)]

use kernel::{
    device::Core,
    dma::DataDirection,
    driver,
    io::Io,
    pci,
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
    time::{delay::fsleep, Delta, Instant, Monotonic},
    InPlaceModule,
};
use kernel_ext::{
    pci::{device_id, Enabled},
    testing::SyncMapping,
    vectors::{VectorHandler, Vectors},
};

/// IDs of the device.
const VENDOR: u16 = 0x1234;
const DEVICE: u16 = 0x11e8;

/// Registers of BAR 0. Registers below [`DMA_FROM`] have 32 bits.
const ID: usize = 0x00;
/// Register that returns the inverse of the value written.
const LIVENESS: usize = 0x04;
const FACTORIAL: usize = 0x08;
const STATUS: usize = 0x20;
/// Register with the causes of the interrupt. Writing to [`RAISE`] sets causes, writing to
/// [`CLEAR`] clears them.
const CAUSES: usize = 0x24;
const RAISE: usize = 0x60;
const CLEAR: usize = 0x64;
const DMA_FROM: usize = 0x80;
const DMA_TO: usize = 0x88;
const DMA_BYTES: usize = 0x90;
const DMA_COMMAND: usize = 0x98;

/// Value of [`ID`] without the version in \[31:16\].
const ED: u32 = 0xed;
/// Status bits: a factorial is being computed; the end of the computation raises an interrupt.
const COMPUTING: u32 = 1;
const TELLS: u32 = 0x80;
/// Cause: a DMA transfer has ended.
const DMA_OVER: u32 = 0x100;
/// Command bits: start; direction from the device to memory; interrupt at the end.
const BEGIN: u32 = 1;
const TO_MEMORY: u32 = 2;
const DMA_TELLS: u32 = 4;
/// Address of the device's own memory, and number of its bytes that the test uses.
const OWN: u64 = 0x4_0000;
const BYTES: usize = 4000;

/// Maximum milliseconds until an interrupt.
const PATIENCE_MS: i64 = 10_000;
const STEP: Delta = Delta::from_millis(1);
/// Time within which data in flight should arrive.
const LATER: Delta = Delta::from_millis(500);
/// Number of reads of a register, each of which may take half a second.
const TRIES: u32 = 10;

/// Counts interrupts.
struct InterruptCount(Atomic<u32>);

impl VectorHandler for InterruptCount {
    fn handle(&self, _vector: u32) {
        self.0.add(1, Relaxed);
    }
}

/// Logs `what` and returns an error if a condition does not hold.
fn check(right: bool, what: &str) -> Result {
    if right {
        return Ok(());
    }
    pr_err!("edu: {}\n", what);
    Err(EIO)
}

/// A device under test.
struct Edu<'a> {
    bar: &'a pci::Bar<'a>,
    vectors: &'a Vectors<'a, InterruptCount>,
}

impl Edu<'_> {
    /// Reads a register whose value is never all ones. All ones mean that the answer was late,
    /// because the device's host may be busy.
    fn read(&self, at: usize) -> Result<u32> {
        for _ in 0..TRIES {
            match self.bar.try_read32(at)? {
                u32::MAX => fsleep(STEP),
                value => return Ok(value),
            }
        }
        pr_err!("edu: register {:x} does not answer\n", at);
        Err(ETIMEDOUT)
    }

    fn write(&self, at: usize, value: u32) -> Result {
        self.bar.try_write32(value, at)
    }

    fn registers(&self) -> Result {
        check(
            self.read(ID)? & 0xffff == ED,
            "the ID register is not edu's",
        )?;
        for value in [1, 0x1234_5678, u32::MAX - 1] {
            self.write(LIVENESS, value)?;
            check(
                self.read(LIVENESS)? == !value,
                "the liveness register is wrong",
            )?;
        }
        Ok(())
    }

    fn rings(&self) -> u32 {
        self.vectors.handler().0.load(Relaxed)
    }

    /// Waits for an interrupt beyond the count `before` with the given cause, and clears the cause.
    fn rung(&self, before: u32, cause: u32, what: &str) -> Result {
        let start: Instant<Monotonic> = Instant::now();
        // Interrupts of other devices are counted too.
        while self.rings() == before || self.read(CAUSES)? & cause == 0 {
            if start.elapsed().as_millis() > PATIENCE_MS {
                pr_err!(
                    "edu: no interrupt of {}: causes {:x}, {} interrupts\n",
                    what,
                    self.read(CAUSES)?,
                    self.rings() - before
                );
                return Err(ETIMEDOUT);
            }
            fsleep(STEP);
        }
        self.write(CLEAR, cause)?;
        check(self.read(CAUSES)? & cause == 0, "a cause stays")
    }

    fn interrupts(&self) -> Result {
        self.write(CLEAR, u32::MAX >> 1)?;
        for cause in [1, 0x55] {
            let before = self.rings();
            self.write(RAISE, cause)?;
            self.rung(before, cause, "a register")?;
        }
        let before = self.rings();
        self.write(STATUS, TELLS)?;
        self.write(FACTORIAL, 10)?;
        self.rung(before, COMPUTING, "a factorial")?;
        check(self.read(FACTORIAL)? == 3_628_800, "it can't multiply")?;
        self.write(STATUS, 0)
    }

    /// Lets the device copy bytes between memory and its own.
    fn copy(&self, address: u64, to_memory: bool) -> Result {
        let (from, to, way) = if to_memory {
            (OWN, address, TO_MEMORY)
        } else {
            (address, OWN, 0)
        };
        let before = self.rings();
        self.bar.try_write64(from, DMA_FROM)?;
        self.bar.try_write64(to, DMA_TO)?;
        self.bar.try_write64(BYTES as u64, DMA_BYTES)?;
        self.write(DMA_COMMAND, BEGIN | way | DMA_TELLS)?;
        self.rung(before, DMA_OVER, "an access to memory")
    }

    /// Copies memory of this host to the device and back to another address.
    fn memory(&self, pdev: &pci::Device<kernel::device::Bound>) -> Result {
        let (mut sent, mut got) = (KVec::new(), KVec::new());
        for n in 0..BYTES as u32 {
            let byte = (n.wrapping_mul(0x9e37_79b1) >> 13) as u8;
            sent.push(byte, GFP_KERNEL)?;
            got.push(!byte, GFP_KERNEL)?;
        }
        let mut want = KVec::with_capacity(BYTES, GFP_KERNEL)?;
        want.extend_from_slice(&sent, GFP_KERNEL)?;
        let out = SyncMapping::new(pdev.as_ref(), sent, 0..BYTES, DataDirection::ToDevice)?;
        let mut back = SyncMapping::new(pdev.as_ref(), got, 0..BYTES, DataDirection::FromDevice)?;
        self.copy(out.address(), false)?;
        self.copy(back.address(), true)?;
        let wrong = |mapping: &mut SyncMapping<'_>| {
            mapping.to_cpu();
            let got = mapping.bytes().unwrap_or_default();
            let mut all = got.iter().zip(&want).enumerate();
            let first = all
                .find(|(_, (g, w))| g != w)
                .map(|(at, (g, w))| (at, *g, *w));
            let more = all.filter(|(_, (g, w))| g != w).count();
            mapping.to_device();
            first.map(|(at, g, w)| (at, g, w, more))
        };
        let Some((at, got, want, more)) = wrong(&mut back) else {
            return Ok(());
        };
        fsleep(LATER);
        pr_err!(
            "edu: byte {} comes back as {:x}, not {:x}, and {} more; later: {:?}\n",
            at,
            got,
            want,
            more,
            wrong(&mut back)
        );
        Err(EIO)
    }
}

struct Driver;

kernel::pci_device_table!(
    PCI_TABLE,
    <Driver as pci::Driver>::IdInfo,
    [(device_id(VENDOR, DEVICE), ())]
);

/// Resources of the driver for a device.
struct Data<'a> {
    _vectors: Pin<KBox<Vectors<'a, InterruptCount>>>,
    _enabled: Enabled<'a>,
}

impl pci::Driver for Driver {
    type IdInfo = ();
    type Data<'bound> = Data<'bound>;

    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        _info: Option<&'bound Self::IdInfo>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        let enabled = Enabled::new(pdev)?;
        enabled.set_dma_mask(pdev)?;
        pdev.set_master();
        let bar = pdev.iomap_region(0, c"edu_check")?;
        let count = InterruptCount(Atomic::new(0));
        let vectors = Vectors::new(pdev, 1, false, c"edu_check", count)?;
        let edu = Edu {
            bar: &bar,
            vectors: &vectors,
        };
        edu.registers()?;
        edu.interrupts()?;
        edu.memory(pdev)?;
        pr_info!("edu: all checks passed\n");
        Ok(Data {
            _vectors: vectors,
            _enabled: enabled,
        })
    }
}

/// The module.
#[pin_data]
struct EduCheck {
    #[pin]
    _driver: driver::Registration<pci::Adapter<Driver>>,
}

impl InPlaceModule for EduCheck {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            _driver <- driver::Registration::new(
                <LocalModule as kernel::ModuleMetadata>::NAME,
                module,
            ),
        })
    }
}

module! {
    type: EduCheck,
    name: "edu_check",
    authors: ["Extoll for Linux"],
    description: "Test aid: a driver that checks QEMU's edu",
    license: "GPL v2",
}
