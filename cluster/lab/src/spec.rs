//! Description of a lab: nodes, NICs, topology and options.

use crate::devices::{self, Device};
use anyhow::{bail, ensure, Context, Result};
use extoll_emulator_api::timing::TimingModel;
use extoll_emulator_api::topology::Topology;
use extoll_emulator_api::variant::Choice;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Maximum number of nodes. Each node needs a host number of a /24 network.
pub const MAX_NODES: usize = 128;
/// Maximum number of NICs per node.
pub const MAX_NICS: usize = 8;
/// Default factor of the drivers' timeouts. The host may suspend an emulated CPU for longer than
/// the plain timeouts.
const SLOW: u32 = 10;
/// Maximum length of a lab's name. The paths of sockets must stay below 108 bytes.
pub const MAX_NAME: usize = 32;

/// Extent of a node's bring-up before `up` returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum BringUp {
    /// Host names and the loopback interface.
    None,
    /// Everything of `None`, and the modules are loaded.
    Modules,
    /// Everything of `Modules`, and every exnK is up with address 10.2.K.(node+1)/24 and a carrier.
    Net,
}

impl BringUp {
    /// Returns the word for the kernel command line.
    pub fn word(self) -> &'static str {
        match self {
            BringUp::None => "none",
            BringUp::Modules => "modules",
            BringUp::Net => "net",
        }
    }
}

/// Description of a lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Name of the lab: lower-case letters, digits and dashes.
    pub name: String,
    /// Number of nodes, 1–[`MAX_NODES`].
    pub nodes: usize,
    /// Topology in the emulator's notation; derived from the number of NICs if absent.
    pub topology: Option<String>,
    /// NICs per node, 0–[`MAX_NICS`]; 0: nodes without NIC and no emulator.
    pub nics: usize,
    /// Number of NICs without a node, each with an emulated device behind it (docs/emulator.md).
    /// They follow the nodes' NICs.
    #[serde(default)]
    pub accelerators: usize,
    /// Additional PCI devices of nodes.
    #[serde(default)]
    pub devices: Vec<Device>,
    /// Memory per node in MiB.
    pub memory_mib: u32,
    /// CPUs per node.
    pub cpus: u32,
    /// Directory name of the kernel below the guest images ("stock" is Debian's).
    pub kernel: String,
    /// Extent of the nodes' bring-up.
    pub bring_up: BringUp,
    /// True if every node runs sshd.
    pub sshd: bool,
    /// True adds a virtio-net pair and an e1000e pair between node 0 and node 1, for comparison
    /// with exn.
    pub bench_nics: bool,
    /// True counts the instructions that nodes execute ([`crate::insns`]). QEMU then never uses
    /// KVM.
    #[serde(default)]
    pub count_instructions: bool,
    /// True gives nodes an IOMMU. The kernel uses it without delayed invalidation.
    #[serde(default)]
    pub iommu: bool,
    /// Nodes with an IOMMU; empty: all nodes.
    #[serde(default)]
    pub iommu_nodes: Vec<usize>,
    /// True splits CPUs and memory of each node into two NUMA nodes. The NICs are at the second
    /// NUMA node.
    #[serde(default)]
    pub numa: bool,
    /// Timing model of the fabric (docs/emulator.md); `LAB_TIMING` or unkind if absent.
    #[serde(default)]
    pub timing: Option<TimingModel>,
    /// Seed of the fabric's random numbers; `LAB_SEED` or a random one if absent.
    #[serde(default)]
    pub seed: Option<u64>,
    /// Variant of the NIC model in the emulator's notation; `LAB_VARIANT` or `default` if absent.
    #[serde(default)]
    pub variant: Option<String>,
    /// Factor of the timeouts after which drivers consider a peer or NIC stalled (`extoll.slow`),
    /// 1–100; `LAB_SLOW` or 10 if absent.
    #[serde(default)]
    pub slow: Option<u32>,
    /// Words added to the kernel command line.
    pub append: Vec<String>,
    /// Arguments added to every QEMU.
    pub qemu_args: Vec<String>,
    /// Arguments added to the emulator.
    pub emu_args: Vec<String>,
    /// Maximum boot time in seconds; derived from the number of nodes if absent.
    pub boot_timeout_s: Option<u64>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            name: "default".into(),
            nodes: 2,
            topology: None,
            nics: 1,
            accelerators: 0,
            devices: Vec::new(),
            memory_mib: 512,
            cpus: 1,
            kernel: "stock".into(),
            bring_up: BringUp::Net,
            sshd: true,
            bench_nics: false,
            count_instructions: false,
            iommu: false,
            iommu_nodes: Vec::new(),
            numa: false,
            timing: None,
            seed: None,
            variant: None,
            slow: None,
            append: Vec::new(),
            qemu_args: Vec::new(),
            emu_args: Vec::new(),
            boot_timeout_s: None,
        }
    }
}

/// Checks a lab's name.
///
/// # Errors
/// When the name is empty, too long or contains other characters than a–z, 0–9 and dashes.
pub fn check_name(name: &str) -> Result<()> {
    let ok = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    ensure!(
        !name.is_empty()
            && name.len() <= MAX_NAME
            && name.chars().all(ok)
            && !name.starts_with('-'),
        "'{name}' is not a valid lab name; use 1 to {MAX_NAME} lower-case letters, digits and dashes"
    );
    Ok(())
}

/// Returns the number of NICs of a topology shorthand; `None` for a file.
///
/// # Errors
/// When the emulator would refuse the shorthand.
pub fn topology_size(topology: &str) -> Result<Option<usize>> {
    if !Topology::is_shorthand(topology) {
        return Ok(None);
    }
    Ok(Some(Topology::parse(topology)?.nodes))
}

/// Returns the parsed value of an environment variable; `None` if it is unset or empty.
fn variable<T: FromStr>(name: &str) -> Result<Option<T>> {
    match std::env::var(name) {
        Ok(text) if !text.is_empty() => match text.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => bail!("{name}: '{text}' is not a valid value"),
        },
        _ => Ok(None),
    }
}

/// Returns a random seed that is short enough to type.
fn any_seed() -> u64 {
    crate::state::random() >> 40
}

impl Spec {
    /// Returns true if the node has an IOMMU.
    pub fn has_iommu(&self, node: usize) -> bool {
        self.iommu && (self.iommu_nodes.is_empty() || self.iommu_nodes.contains(&node))
    }

    /// Fills in derived values and checks all values.
    ///
    /// # Errors
    /// When a value is out of range or two values contradict each other.
    pub fn settle(mut self) -> Result<Self> {
        check_name(&self.name)?;
        ensure!(
            (1..=MAX_NODES).contains(&self.nodes),
            "a lab has 1 to {MAX_NODES} nodes, not {}",
            self.nodes
        );
        ensure!(
            self.nics <= MAX_NICS,
            "a node has up to {MAX_NICS} NICs, not {}",
            self.nics
        );
        ensure!(
            self.memory_mib >= 192,
            "a node needs at least 192 MiB of memory"
        );
        ensure!(
            (1..=64).contains(&self.cpus),
            "a node has 1 to 64 CPUs, not {}",
            self.cpus
        );
        ensure!(
            !self.numa || self.cpus % 2 == 0,
            "two NUMA nodes need an even number of CPUs, such as --cpus 2"
        );
        ensure!(
            !self.kernel.is_empty() && !self.kernel.contains('/') && !self.kernel.starts_with('.'),
            "invalid kernel name '{}'",
            self.kernel
        );
        if let Some(node) = self.iommu_nodes.iter().find(|n| **n >= self.nodes) {
            bail!(
                "node {node} cannot have an IOMMU, because the lab has {} nodes",
                self.nodes
            );
        }
        devices::check(&self.devices, self.nodes)?;
        if self.slow.is_none() {
            self.slow = variable("LAB_SLOW")?;
        }
        let slow = *self.slow.get_or_insert(SLOW);
        ensure!(
            (1..=100).contains(&slow),
            "the factor of timeouts must be 1 to 100, not {slow}"
        );
        if self.nics == 0 {
            ensure!(self.topology.is_none(), "a topology needs NICs");
            ensure!(
                self.accelerators == 0,
                "accelerators need NICs in the nodes"
            );
            ensure!(
                self.bring_up == BringUp::None,
                "nodes without NICs have no modules or interfaces to bring up"
            );
            return Ok(self);
        }
        self.settle_model()?;
        ensure!(
            self.accelerators <= MAX_NODES,
            "a lab has up to {MAX_NODES} accelerators, not {}",
            self.accelerators
        );
        let total = self.all_nics();
        let topology = self.topology.get_or_insert_with(|| match total {
            1 => "single".into(),
            2 => "pair".into(),
            n => format!("ring:{n}"),
        });
        if let Some(size) = topology_size(topology)? {
            ensure!(
                size == total,
                "topology {topology} has {size} NICs, but {} nodes with {} each and {} accelerators make {total}",
                self.nodes,
                self.nics,
                self.accelerators
            );
        }
        Ok(self)
    }

    /// Fills in timing model, seed and variant.
    fn settle_model(&mut self) -> Result<()> {
        if self.timing.is_none() {
            self.timing = variable("LAB_TIMING")?;
        }
        if self.seed.is_none() {
            self.seed = variable("LAB_SEED")?;
        }
        if self.variant.is_none() {
            self.variant = variable("LAB_VARIANT")?;
        }
        let variant = self.variant.get_or_insert_with(|| "default".into());
        // The variant is checked here, because the emulator could report a mistake only in its log.
        variant.parse::<Choice>().context("--variant")?;
        self.timing.get_or_insert(TimingModel::Unkind);
        self.seed.get_or_insert_with(any_seed);
        Ok(())
    }

    /// Returns the options with which users can repeat a run of the fabric; empty without NICs.
    pub fn model(&self) -> String {
        match (self.timing, self.seed, &self.variant) {
            (Some(timing), Some(seed), Some(variant)) => {
                format!("timing {timing}, seed {seed}, variant {variant}")
            }
            _ => String::new(),
        }
    }

    /// Returns the number of NICs of the fabric: the nodes', then the accelerators'.
    pub fn all_nics(&self) -> usize {
        self.nodes * self.nics + self.accelerators
    }

    /// Returns the name of a NIC of the fabric: `node1.0` is NIC 0 of node 1, `acc0` the first
    /// accelerator.
    pub fn nic_name(&self, nic: usize) -> String {
        match nic.checked_sub(self.nodes * self.nics) {
            Some(k) => format!("acc{k}"),
            None => format!("node{}.{}", nic / self.nics, nic % self.nics),
        }
    }

    /// Returns the NIC of the fabric that an accelerator's name (`acc0`) means; `None` if the word
    /// is not such a name.
    ///
    /// # Errors
    /// When the lab does not have this accelerator.
    pub fn accelerator(&self, word: &str) -> Result<Option<usize>> {
        let Some(k) = word
            .strip_prefix("acc")
            .and_then(|k| k.parse::<usize>().ok())
        else {
            return Ok(None);
        };
        ensure!(
            k < self.accelerators,
            "lab '{}' has {} accelerators, no {word}",
            self.name,
            self.accelerators
        );
        Ok(Some(self.nodes * self.nics + k))
    }

    /// Returns the factor of the drivers' timeouts.
    pub fn slow(&self) -> u32 {
        self.slow.unwrap_or(SLOW)
    }

    /// Returns the maximum boot time.
    pub fn boot_timeout(&self) -> std::time::Duration {
        std::time::Duration::from_secs(self.boot_timeout_s.unwrap_or(90 + 20 * self.nodes as u64))
    }
}

/// Parses a node as users write it: `3` or `node3`.
///
/// # Errors
/// When the text has another form.
pub fn parse_node(text: &str) -> Result<usize> {
    text.strip_prefix("node")
        .unwrap_or(text)
        .parse()
        .with_context(|| format!("'{text}' is not a node (write 0 or node0)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topologies_have_sizes() {
        for (t, n) in [
            ("pair", 2),
            ("ring:4", 4),
            ("torus:4x2x2", 16),
            ("mesh:3x3", 9),
            ("single", 1),
            ("star:5", 5),
        ] {
            assert_eq!(topology_size(t).unwrap(), Some(n), "{t}");
        }
        for t in ["file.toml", "dir/ring", "rings:3"] {
            assert_eq!(topology_size(t).unwrap(), None, "{t}");
        }
        // The emulator would reject these topologies. The error of `lab` must give the reason.
        for t in [
            "ring:x",
            "ring:2x2",
            "pair:2",
            "torus:2x",
            "torus:3x3x3x3",
            "ring:",
            "torus:99999999999x99999999999",
        ] {
            let why = topology_size(t).unwrap_err().to_string();
            assert!(why.contains("topology"), "{t}: {why}");
            let spec = Spec {
                topology: Some(t.into()),
                ..Spec::default()
            };
            assert!(spec.settle().is_err(), "{t}");
        }
    }

    #[test]
    fn contradictions_are_refused() {
        let spec = |nodes, nics, topology: Option<&str>| {
            Spec {
                nodes,
                nics,
                topology: topology.map(Into::into),
                ..Spec::default()
            }
            .settle()
        };
        assert_eq!(spec(2, 1, None).unwrap().topology.as_deref(), Some("pair"));
        assert_eq!(
            spec(2, 2, None).unwrap().topology.as_deref(),
            Some("ring:4")
        );
        assert!(spec(8, 1, Some("torus:2x2x2")).is_ok());
        assert!(spec(7, 1, Some("torus:2x2x2")).is_err());
        assert!(spec(0, 1, None).is_err());
        assert!(spec(2, 0, None).is_err(), "bring-up needs a NIC");
        let with = |accelerators, topology: Option<&str>| {
            Spec {
                accelerators,
                topology: topology.map(Into::into),
                ..Spec::default()
            }
            .settle()
        };
        assert_eq!(with(1, None).unwrap().topology.as_deref(), Some("ring:3"));
        assert!(with(1, Some("pair")).is_err());
        assert!(with(MAX_NODES + 1, None).is_err());
        for name in ["", "a/b", "-x", "Ä", "x".repeat(33).as_str(), ".."] {
            assert!(check_name(name).is_err(), "{name}");
        }
        check_name("two-2").unwrap();
    }

    #[test]
    fn the_model_is_settled_once() {
        let spec = |seed, variant: Option<&str>| Spec {
            seed,
            variant: variant.map(Into::into),
            timing: Some(TimingModel::Ideal),
            ..Spec::default()
        };
        let one = spec(Some(7), Some("nic.full-rule=flag-on-equal"));
        assert_eq!(
            one.settle().unwrap().model(),
            "timing ideal, seed 7, variant nic.full-rule=flag-on-equal"
        );
        let drawn = spec(None, Some("auto")).settle().unwrap();
        let again = drawn.clone().settle().unwrap();
        assert_eq!((drawn.seed.is_some(), &drawn), (true, &again));
        assert!(spec(None, Some("nic.colour=3")).settle().is_err());
    }

    #[test]
    fn the_factor_has_bounds() {
        let settled = |slow| {
            Spec {
                slow: Some(slow),
                ..Spec::default()
            }
            .settle()
        };
        assert_eq!(settled(1).unwrap().slow(), 1);
        assert!(settled(0).is_err() && settled(101).is_err());
    }

    #[test]
    fn accelerators_come_after_the_nodes() {
        let spec = Spec {
            nics: 2,
            accelerators: 2,
            ..Spec::default()
        };
        assert_eq!(spec.all_nics(), 6);
        let names: Vec<_> = [0, 3, 4, 5].map(|n| spec.nic_name(n)).into();
        assert_eq!(names, ["node0.0", "node1.1", "acc0", "acc1"]);
        assert_eq!(spec.accelerator("acc1").unwrap(), Some(5));
        assert_eq!(spec.accelerator("node1").unwrap(), None);
        assert!(spec.accelerator("acc2").is_err());
    }

    #[test]
    fn nodes_are_numbers_or_names() {
        assert_eq!(parse_node("node12").unwrap(), 12);
        assert_eq!(parse_node("0").unwrap(), 0);
        assert!(parse_node("all").is_err());
        assert!(parse_node("node").is_err());
    }
}
