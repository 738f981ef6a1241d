//! Specification of a cluster, and its translation to a lab.

use crate::settings::{self, Kernel};
use lab::BringUp;

/// Memory of a node with the debug kernel in MiB.
const DEBUG_MEMORY_MIB: u32 = 2560;
/// Maximum duration of a boot of the debug kernel in seconds.
const DEBUG_BOOT_S: u64 = 900;

/// Specification of a cluster. Scenarios with equal specifications share one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Number of nodes.
    pub nodes: usize,
    topology: Option<&'static str>,
    nics: usize,
    accelerators: usize,
    devices: &'static [lab::Device],
    memory_mib: Option<u32>,
    cpus: Option<u32>,
    iommu: bool,
    iommu_nodes: &'static [usize],
    numa: bool,
    bench_nics: bool,
    count_instructions: bool,
    sshd: bool,
    bring_up: BringUp,
    timing: lab::TimingModel,
    append: &'static [&'static str],
    emu_args: &'static [&'static str],
}

impl Spec {
    /// Returns a cluster of `nodes` nodes with one NIC each, like `lab up` without options.
    pub const fn new(nodes: usize) -> Self {
        Self {
            nodes,
            topology: None,
            nics: 1,
            accelerators: 0,
            devices: &[],
            memory_mib: None,
            cpus: None,
            iommu: false,
            iommu_nodes: &[],
            numa: false,
            bench_nics: false,
            count_instructions: false,
            sshd: true,
            bring_up: BringUp::Net,
            timing: lab::TimingModel::Unkind,
            append: &[],
            emu_args: &[],
        }
    }

    /// Returns a cluster of two nodes and one cable.
    pub const fn pair() -> Self {
        Self::new(2).topology("pair")
    }

    /// Sets the cables in the emulator's notation (`ring:4`).
    pub const fn topology(mut self, topology: &'static str) -> Self {
        self.topology = Some(topology);
        self
    }

    /// Sets the number of NICs per node.
    pub const fn nics(mut self, nics: usize) -> Self {
        self.nics = nics;
        self
    }

    /// Adds NICs without a host. Each NIC has the emulator's test device behind it, or the devices
    /// that the emulator's arguments name.
    pub const fn accelerators(mut self, accelerators: usize) -> Self {
        self.accelerators = accelerators;
        self
    }

    /// Adds PCI devices, each to the node that it names.
    pub const fn devices(mut self, devices: &'static [lab::Device]) -> Self {
        self.devices = devices;
        self
    }

    /// Sets the memory per node in MiB.
    pub const fn memory(mut self, mib: u32) -> Self {
        self.memory_mib = Some(mib);
        self
    }

    /// Sets the CPUs per node. The default is one, or `LAB_CPUS` in clusters of up to two nodes.
    pub const fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = Some(cpus);
        self
    }

    /// Adds a strict IOMMU to each node.
    pub const fn iommu(mut self) -> Self {
        self.iommu = true;
        self
    }

    /// Adds a strict IOMMU to these nodes.
    pub const fn iommu_in(mut self, nodes: &'static [usize]) -> Self {
        self.iommu = true;
        self.iommu_nodes = nodes;
        self
    }

    /// Selects a fabric without delay and reordering. The default has the maximum delay and
    /// reordering that the hardware permits (docs/emulator.md, Time and order).
    pub const fn ideal(mut self) -> Self {
        self.timing = lab::TimingModel::Ideal;
        self
    }

    /// Splits each node into two NUMA nodes, with the NICs on the second one.
    pub const fn numa(mut self) -> Self {
        self.numa = true;
        self
    }

    /// Adds pairs of virtio-net and e1000e NICs, for comparison with exn.
    pub const fn bench_nics(mut self) -> Self {
        self.bench_nics = true;
        self
    }

    /// Counts the instructions that nodes execute ([`crate::Lab::instructions`]).
    pub const fn count_instructions(mut self) -> Self {
        self.count_instructions = true;
        self
    }

    /// Starts no sshd in the nodes.
    pub const fn no_sshd(mut self) -> Self {
        self.sshd = false;
        self
    }

    /// Loads no modules at boot.
    pub const fn no_modules(mut self) -> Self {
        self.bring_up = BringUp::None;
        self
    }

    /// Adds words to the kernel command line.
    pub const fn append(mut self, words: &'static [&'static str]) -> Self {
        self.append = words;
        self
    }

    /// Adds arguments for the emulator.
    pub const fn emulator(mut self, arguments: &'static [&'static str]) -> Self {
        self.emu_args = arguments;
        self
    }

    /// Returns the CPUs of each node. Clusters of more than two nodes have one CPU per node,
    /// because they would not come up with more CPUs than the host has.
    fn processors(&self) -> u32 {
        match (self.cpus, self.nodes) {
            (Some(cpus), _) => cpus,
            (None, 0..=2) => settings::cpus(),
            (None, _) => 1,
        }
    }

    /// Returns a short description for users.
    pub fn describe(&self) -> String {
        let mut words = vec![self.topology.unwrap_or("").to_owned()];
        words.push(match self.nodes {
            1 => "1 node".into(),
            n => format!("{n} nodes"),
        });
        let mut with = |given: bool, word: String| {
            if given {
                words.push(word);
            }
        };
        with(self.nics != 1, format!("{} NICs each", self.nics));
        with(
            self.accelerators > 0,
            format!("{} accelerators", self.accelerators),
        );
        for d in self.devices {
            let word = match d.model {
                lab::Model::Nvme { mib } => format!("NVMe of {mib} MiB"),
                lab::Model::E1000e => "e1000e".into(),
                lab::Model::Edu => "edu".into(),
            };
            with(true, format!("{word} at node {}", d.node));
        }
        if let Some(mib) = self.memory_mib {
            with(true, format!("{mib} MiB"));
        }
        with(
            self.iommu,
            match self.iommu_nodes {
                [] => "IOMMU".into(),
                nodes => format!("IOMMU in {nodes:?}"),
            },
        );
        with(
            self.timing == lab::TimingModel::Ideal,
            "ideal timing".into(),
        );
        with(self.numa, "NUMA".into());
        with(self.bring_up == BringUp::None, "no modules".into());
        with(true, format!("cpus {}", self.processors()));
        for word in self.append.iter().chain(self.emu_args) {
            with(true, (*word).to_owned());
        }
        words.retain(|w| !w.is_empty());
        words.join(", ")
    }

    /// Returns the lab of this specification. Adds the settings of the run: kernel, and IOMMUs for
    /// all nodes. The fabric's random choices follow from `LAB_SEED`, which `lab` reads
    /// ([`crate::use_seed`]).
    pub(crate) fn compose(&self, name: &str) -> lab::Spec {
        let usual = lab::Spec::default();
        let words = |list: &[&str]| list.iter().map(|w| (*w).to_owned()).collect();
        let mut spec = lab::Spec {
            name: name.to_owned(),
            nodes: self.nodes,
            topology: self.topology.map(Into::into),
            nics: self.nics,
            accelerators: self.accelerators,
            devices: self.devices.to_vec(),
            memory_mib: self.memory_mib.unwrap_or(usual.memory_mib),
            cpus: self.processors(),
            bring_up: self.bring_up,
            sshd: self.sshd,
            bench_nics: self.bench_nics,
            count_instructions: self.count_instructions,
            iommu: self.iommu || settings::iommu_for_all(),
            iommu_nodes: self.iommu_nodes.to_vec(),
            numa: self.numa,
            timing: Some(self.timing),
            append: words(self.append),
            emu_args: words(self.emu_args),
            ..usual
        };
        if settings::kernel() == Kernel::Debug {
            spec.kernel = "debug".into();
            spec.boot_timeout_s = Some(DEBUG_BOOT_S);
            spec.memory_mib = self.memory_mib.unwrap_or(DEBUG_MEMORY_MIB);
        }
        spec
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_becomes_a_lab() {
        const NVME: lab::Device = lab::Device {
            node: 1,
            model: lab::Model::Nvme { mib: 8 },
        };
        const SPEC: Spec = Spec::new(2)
            .devices(&[NVME])
            .topology("ring:4")
            .nics(2)
            .memory(384)
            .cpus(2)
            .append(&["cma=96M"]);
        let lab = SPEC.compose("x").settle().unwrap();
        assert_eq!(
            (lab.nodes, lab.nics, lab.memory_mib, lab.cpus),
            (2, 2, 384, 2)
        );
        assert_eq!(lab.topology.as_deref(), Some("ring:4"));
        assert_eq!(lab.devices, [NVME]);
        assert_eq!(
            (lab.append, lab.name),
            (vec!["cma=96M".to_owned()], "x".to_owned())
        );
        assert_eq!(
            Spec::pair().compose("x").memory_mib,
            lab::Spec::default().memory_mib
        );
        assert_eq!(
            Spec::new(1).no_modules().compose("x").bring_up,
            BringUp::None
        );
        assert_eq!(
            SPEC.describe(),
            "ring:4, 2 nodes, 2 NICs each, NVMe of 8 MiB at node 1, 384 MiB, cpus 2, cma=96M"
        );
    }
}
