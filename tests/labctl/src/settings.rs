//! Settings for all clusters of a run: kernel, volume, seed.

use std::sync::OnceLock;
use std::time::Duration;

/// Kernel that the nodes boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kernel {
    /// Debian's kernel.
    #[default]
    Stock,
    /// The debug kernel. Its network is about a hundred times slower, and its leak checker runs at
    /// the end.
    Debug,
}

impl Kernel {
    /// Returns the factor for all time limits.
    fn slowness(self) -> u32 {
        match self {
            Self::Stock => 1,
            Self::Debug => 6,
        }
    }
}

static KERNEL: OnceLock<Kernel> = OnceLock::new();

/// Selects the kernel for all clusters of this process. Only the first call has an effect.
pub fn use_kernel(kernel: Kernel) {
    let _ = KERNEL.set(kernel);
}

pub(crate) fn kernel() -> Kernel {
    KERNEL.get().copied().unwrap_or_default()
}

/// Returns a time limit for the selected kernel, longer on the slow debug kernel.
pub fn as_slow(time: Duration) -> Duration {
    time * kernel().slowness()
}

/// Returns the number of repetitions: `full`, or a fifth of it on the debug kernel. Loading the
/// modules under load takes half a minute on the debug kernel, and its checkers detect defects at
/// the first occurrence.
pub fn rounds(full: u32) -> u32 {
    match kernel() {
        Kernel::Stock => full,
        Kernel::Debug => full.div_ceil(5),
    }
}

/// Returns true if the kernel has a leak checker.
pub(crate) fn finds_leaks() -> bool {
    kernel() == Kernel::Debug
}

static IOMMU: OnceLock<()> = OnceLock::new();

/// Enables IOMMUs in all clusters of this process.
pub fn use_iommu() {
    let _ = IOMMU.set(());
}

pub(crate) fn iommu_for_all() -> bool {
    IOMMU.get().is_some()
}

/// Returns true in a run with the full number of repetitions (`make check-full`, `FULL=1`).
pub fn full() -> bool {
    std::env::var("FULL").is_ok_and(|v| v == "1")
}

/// Returns the run's seed (`SEED`), the basis of all random choices. Panics if the variable is not
/// a number.
pub fn seed() -> Option<u64> {
    let text = std::env::var("SEED").ok().filter(|t| !t.is_empty())?;
    match text.parse() {
        Ok(seed) => Some(seed),
        Err(_) => panic!("SEED={text:?} is not a number"),
    }
}

/// Lets the labs of this process use the run's seed, unless `LAB_SEED` is set. The caller must call
/// it before the first thread starts.
pub fn use_seed() {
    let is_unset = std::env::var_os("LAB_SEED").is_none_or(|v| v.is_empty());
    if let Some(seed) = seed().filter(|_| is_unset) {
        std::env::set_var("LAB_SEED", seed.to_string());
    }
}

/// Returns the CPUs per node for specifications without a number: `LAB_CPUS`, default one. Panics
/// if the variable is not a number.
pub fn cpus() -> u32 {
    match std::env::var("LAB_CPUS").ok().filter(|t| !t.is_empty()) {
        None => 1,
        Some(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("LAB_CPUS={text:?} is not a number")),
    }
}
