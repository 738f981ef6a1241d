//! What holds for all clusters of a run: kernel, volume, seed.

use std::sync::OnceLock;
use std::time::Duration;

/// The kernel that the nodes boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kernel {
    /// Debian's.
    #[default]
    Stock,
    /// The debug kernel: about a hundred times slower on the network, and its leak checker is asked at the end.
    Debug,
}

impl Kernel {
    /// Factor by which all patience grows.
    fn slowness(self) -> u32 {
        match self {
            Self::Stock => 1,
            Self::Debug => 6,
        }
    }
}

static KERNEL: OnceLock<Kernel> = OnceLock::new();

/// Chooses the kernel for all clusters of this process; only the first call counts.
pub fn use_kernel(kernel: Kernel) {
    let _ = KERNEL.set(kernel);
}

pub(crate) fn kernel() -> Kernel {
    KERNEL.get().copied().unwrap_or_default()
}

/// What a node is given as a time for something to happen in: as much longer on a slow kernel as everything takes there.
pub fn as_slow(time: Duration) -> Duration {
    time * kernel().slowness()
}

/// How often to repeat what is done `full` times: a fifth of it on the debug kernel, where loading the modules under load takes half a
/// minute, and which sees what goes wrong the first time.
pub fn rounds(full: u32) -> u32 {
    match kernel() {
        Kernel::Stock => full,
        Kernel::Debug => full.div_ceil(5),
    }
}

/// Whether the kernel finds memory that is lost.
pub(crate) fn finds_leaks() -> bool {
    kernel() == Kernel::Debug
}

static IOMMU: OnceLock<()> = OnceLock::new();

/// Gives all clusters of this process IOMMUs.
pub fn use_iommu() {
    let _ = IOMMU.set(());
}

pub(crate) fn iommu_for_all() -> bool {
    IOMMU.get().is_some()
}

/// Whether this is the run with the full volumes (`make check-full`, `FULL=1`), not the usual one.
pub fn full() -> bool {
    std::env::var("FULL").is_ok_and(|v| v == "1")
}

/// The run's seed (`SEED`), of which everything random is to be made. Panics on what is no number.
pub fn seed() -> Option<u64> {
    let text = std::env::var("SEED").ok().filter(|t| !t.is_empty())?;
    match text.parse() {
        Ok(seed) => Some(seed),
        Err(_) => panic!("SEED={text:?} is not a number"),
    }
}

/// Makes the labs of this process draw from the run's seed, unless `LAB_SEED` says otherwise. To be called before there are threads.
pub fn use_seed() {
    let is_unset = std::env::var_os("LAB_SEED").is_none_or(|v| v.is_empty());
    if let Some(seed) = seed().filter(|_| is_unset) {
        std::env::set_var("LAB_SEED", seed.to_string());
    }
}

/// Processors per node for specifications that don't fix them: `LAB_CPUS`, usually one. Panics on what is no number.
pub fn cpus() -> u32 {
    match std::env::var("LAB_CPUS").ok().filter(|t| !t.is_empty()) {
        None => 1,
        Some(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("LAB_CPUS={text:?} is not a number")),
    }
}
