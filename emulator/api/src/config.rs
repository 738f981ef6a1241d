//! Configuration of a fabric: file format, defaults and checks.

use crate::accelerator::{DeviceChoice, DeviceConfig};
use crate::network::NetConfig;
use crate::nic::NicConfig;
use crate::pci::PciConfig;
use crate::seed::{self, Purpose};
use crate::timing::{TimingConfig, TimingModel};
use crate::topology::{Topology, TopologyFile};
use crate::variant::{Choice, Variant};
use anyhow::{bail, Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Options of the set-up step, in which the emulator programs the NICs as management software does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct SetupConfig {
    /// True to program every NIC at the start and after each reset; false to program NICs only on
    /// command.
    pub auto: bool,
    /// Time in ms from a reset to the set-up.
    pub delay_ms: u64,
    /// Node ID of each NIC. If absent, the node ID is the index of the NIC.
    pub node_ids: Option<Vec<u16>>,
    /// Indices of the NICs in each multicast group, by the number of the group. If group 63 is
    /// absent, it contains all NICs.
    pub groups: BTreeMap<String, Vec<usize>>,
    /// True to deliver a multicast to its sender, too (G21).
    pub multicast_to_sender: bool,
}

impl Default for SetupConfig {
    fn default() -> Self {
        Self {
            auto: true,
            delay_ms: 0,
            node_ids: None,
            groups: BTreeMap::new(),
            multicast_to_sender: false,
        }
    }
}

/// Options of one NIC that differ from the common options.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NicOverride {
    /// Fields of `[pci]`.
    pub pci: toml::Table,
    /// Fields of `[nic]`.
    pub nic: toml::Table,
    /// Fields of `[accelerator]`. Only NICs without a host have them.
    pub accelerator: toml::Table,
    /// Path of the NIC's socket. If absent, it is `nic<N>.sock` in the directory of the fabric.
    pub socket: Option<PathBuf>,
    /// True if the NIC is switched off at the start.
    pub off: bool,
}

/// A configuration file (TOML, or JSON if its name ends in `.json`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ConfigFile {
    /// Number of hosts, without the NICs that have no host.
    pub nodes: Option<usize>,
    /// Number of NICs per host.
    pub nics_per_node: Option<usize>,
    /// Number of NICs without a host. They have the highest indices. Each is the root port of a
    /// built-in device.
    pub accelerators: Option<usize>,
    /// Shorthand of the topology (see [`crate::topology`]).
    pub topology: Option<String>,
    /// Topology as a list of cables; excludes `topology`.
    pub cabling: Option<TopologyFile>,
    /// Options of the fabric.
    pub network: NetConfig,
    /// Order and delays of events.
    pub timing: TimingConfig,
    /// Options of the set-up step.
    pub setup: SetupConfig,
    /// Options of all NICs; `node-id` and `guid` have no effect here.
    pub nic: NicConfig,
    /// PCI configuration space of all NICs.
    pub pci: PciConfig,
    /// Options of the device behind each NIC without a host.
    pub accelerator: DeviceConfig,
    /// Options of single NICs that differ from the common options, by index of the NIC.
    pub override_nic: BTreeMap<String, NicOverride>,
}

/// Complete options of one NIC at the start.
#[derive(Debug, Clone, PartialEq)]
pub struct NicSpec {
    /// Options of the chip.
    pub nic: NicConfig,
    /// PCI configuration space of the NIC.
    pub pci: PciConfig,
    /// Path of the NIC's socket.
    pub socket: PathBuf,
    /// True if the NIC is switched on at the start.
    pub powered: bool,
    /// Options of the device behind a NIC without a host. Such a NIC has no socket.
    pub accelerator: Option<DeviceConfig>,
}

/// A configuration that was checked.
#[derive(Debug, Clone)]
pub struct Fabric {
    /// Number of NICs per host. NIC n belongs to host n / `nics_per_node`.
    pub nics_per_node: usize,
    /// NICs and the cables between them.
    pub topology: Topology,
    /// Options of the network.
    pub network: NetConfig,
    /// Order and delays of events.
    pub timing: TimingConfig,
    /// Switches of the model, as [`Variant`] prints them.
    pub variant: String,
    /// Options of the set-up step.
    pub setup: SetupConfig,
    /// Options of each NIC.
    pub nics: Vec<NicSpec>,
    /// Directory that contains the sockets.
    pub dir: PathBuf,
}

/// Options of the command line. They override the configuration file.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// Number of hosts.
    pub nodes: Option<usize>,
    /// Number of NICs per host.
    pub nics_per_node: Option<usize>,
    /// Number of NICs without a host. If neither the command line nor the file contains it, it is
    /// the number of `devices`.
    pub accelerators: Option<usize>,
    /// Devices behind the first of the NICs without a host.
    pub devices: Vec<DeviceChoice>,
    /// Shorthand of the topology.
    pub topology: Option<String>,
    /// Seed of all random numbers.
    pub seed: Option<u64>,
    /// Timing model; `None` selects the model in the file.
    pub timing: Option<TimingModel>,
    /// Variant of the model.
    pub variant: Choice,
    /// Fields of `[nic]`.
    pub nic: toml::Table,
}

/// Parses words `KEY=VALUE` into fields of `[nic]`. A value that is not valid TOML becomes a
/// string.
///
/// # Errors
///
/// When a word has no `=`.
pub fn nic_options(words: &[String]) -> Result<toml::Table> {
    let mut table = toml::Table::new();
    for word in words {
        let (key, value) = word
            .split_once('=')
            .with_context(|| format!("{word:?} is not KEY=VALUE"))?;
        match toml::from_str::<toml::Table>(&format!("{key} = {value}")) {
            Ok(fields) => table.extend(fields),
            Err(_) => drop(table.insert(key.to_owned(), value.into())),
        }
    }
    Ok(table)
}

impl ConfigFile {
    /// Reads a configuration file. Errors name the file and the position in the file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let parsed = if path.extension().is_some_and(|e| e == "json") {
            serde_json::from_str(&text).map_err(anyhow::Error::from)
        } else {
            toml::from_str(&text).map_err(anyhow::Error::from)
        };
        parsed.with_context(|| format!("{} is not a valid configuration", path.display()))
    }
}

fn overlay<T: Serialize + for<'a> Deserialize<'a>>(base: &T, changes: &toml::Table) -> Result<T> {
    let mut table = toml::Table::try_from(base)?;
    table.extend(changes.clone());
    Ok(table.try_into()?)
}

fn index_map<T: Clone>(map: &BTreeMap<String, T>, what: &str) -> Result<BTreeMap<usize, T>> {
    map.iter()
        .map(|(k, v)| {
            Ok((
                k.parse()
                    .with_context(|| format!("{what}: {k:?} is not a number"))?,
                v.clone(),
            ))
        })
        .collect()
}

impl SetupConfig {
    /// Returns the indices of the NICs in each multicast group, by number of the group.
    pub fn group_map(&self) -> Result<BTreeMap<u8, Vec<usize>>> {
        let map = index_map(&self.groups, "setup.groups")?;
        map.into_iter()
            .map(|(k, v)| Ok((u8::try_from(k).context("setup.groups: groups are 0…63")?, v)))
            .collect()
    }
}

impl Fabric {
    /// Combines configuration file and command line, and checks the result.
    pub fn build(file: ConfigFile, cli: &Overrides, dir: &Path) -> Result<Self> {
        let seed = cli.seed.unwrap_or(file.network.seed);
        let mut file = cli.variant.apply(file, seed)?;
        file.nic = overlay(&file.nic, &cli.nic).context("NIC options")?;
        file.timing.model = cli.timing.unwrap_or(file.timing.model);
        file.timing.validate().map_err(anyhow::Error::msg)?;
        let variant = Variant::of(&file)?.to_string();
        let nics_per_node = cli.nics_per_node.or(file.nics_per_node).unwrap_or(1);
        let nodes = cli.nodes.or(file.nodes);
        if nics_per_node == 0 || nodes == Some(0) {
            bail!("there must be at least one node with one NIC");
        }
        let accelerators = cli.accelerators.or(file.accelerators);
        let accelerators = accelerators.unwrap_or(cli.devices.len());
        let wanted = nodes.map(|n| n.saturating_mul(nics_per_node).saturating_add(accelerators));
        if cli.devices.len() > accelerators {
            bail!(
                "{} devices were given for {accelerators} accelerators",
                cli.devices.len()
            );
        }
        let topology = match (&cli.topology, &file.topology, &file.cabling) {
            (None, Some(_), Some(_)) => bail!("both topology and cabling are given"),
            (Some(t), _, _) | (None, Some(t), _) => Topology::parse(t)?,
            (None, None, Some(c)) => Topology::from_file(c)?,
            (None, None, None) => Topology::default_for(
                wanted.unwrap_or((2 * nics_per_node).saturating_add(accelerators)),
            )?,
        };
        let count = topology.nodes;
        if let Some(w) = wanted.filter(|&w| w != count) {
            bail!(
                "topology {} has {count} NICs, but {w} are asked for (nodes × NICs per node + accelerators)",
                topology.name
            );
        }
        let with_host = match count.checked_sub(accelerators) {
            Some(n) if n > 0 => n,
            _ => bail!("{accelerators} accelerators leave none of the {count} NICs for a host"),
        };
        if with_host % nics_per_node != 0 {
            bail!("{with_host} NICs can't be divided among nodes with {nics_per_node} each");
        }
        let mut network = file.network;
        network.seed = seed;
        network.link.validate().map_err(anyhow::Error::msg)?;
        if network.tx_credit_bytes == 0 {
            bail!("network.tx-credit-bytes must not be 0");
        }
        let ids = match &file.setup.node_ids {
            Some(ids) if ids.len() != count => {
                bail!("setup.node-ids has {} entries for {count} NICs", ids.len())
            }
            Some(ids) => ids.clone(),
            None => (0..count as u16).collect(),
        };
        let mut overrides = index_map(&file.override_nic, "override-nic")?;
        let mut nics = Vec::new();
        for i in 0..count {
            let o = overrides.remove(&i).unwrap_or_default();
            let place = || format!("override-nic.{i}");
            let pci: PciConfig = overlay(&file.pci, &o.pci).with_context(place)?;
            pci.validate()
                .map_err(anyhow::Error::msg)
                .with_context(place)?;
            // State of a chip that no management software has programmed: no node ID (HW §4.2), and
            // a GUID that depends on the index.
            let mut nic: NicConfig = overlay(&file.nic, &o.nic).with_context(place)?;
            if !o.nic.contains_key("guid") {
                nic.guid = Some(0xE0_0000 + i as u32);
            }
            if !o.nic.contains_key("node-id") {
                nic.node_id = 0;
            }
            let given = |key: &str| o.nic.contains_key(key) || cli.nic.contains_key(key);
            file.timing.apply(&mut nic, given, seed, i);
            let chip = if nic.seed == 0 { seed } else { nic.seed };
            nic.seed = seed::derive(chip, i, Purpose::Chip);
            let accelerator = if i >= with_host {
                let mut device: DeviceConfig =
                    overlay(&file.accelerator, &o.accelerator).with_context(place)?;
                if let Some(choice) = cli.devices.get(i - with_host) {
                    device.kind = choice.kind;
                    device.size_mib = choice.mib.unwrap_or(device.size_mib);
                }
                device
                    .validate()
                    .map_err(anyhow::Error::msg)
                    .with_context(place)?;
                Some(device)
            } else if o.accelerator.is_empty() {
                None
            } else {
                bail!("override-nic.{i}: this NIC has a host, so there is no accelerator");
            };
            let socket = o
                .socket
                .unwrap_or_else(|| PathBuf::from(format!("nic{i}.sock")));
            nics.push(NicSpec {
                nic,
                pci,
                socket: dir.join(socket),
                powered: !o.off,
                accelerator,
            });
        }
        if let Some((i, _)) = overrides.first_key_value() {
            bail!("override-nic.{i}: there are only {count} NICs");
        }
        let setup = SetupConfig {
            node_ids: Some(ids),
            ..file.setup
        };
        setup.group_map()?;
        Ok(Self {
            nics_per_node,
            topology,
            network,
            timing: file.timing,
            variant,
            setup,
            nics,
            dir: dir.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::AtuTlb;

    fn build(text: &str, cli: Overrides) -> Result<Fabric> {
        Fabric::build(toml::from_str(text)?, &cli, Path::new("/d"))
    }

    #[test]
    fn file_and_command_line() {
        let f = build(
            r#"
            topology = "torus:2x2x2"
            [network]
            seed = 5
            link = { latency-ns = 100 }
            [setup]
            groups = { 3 = [0, 1] }
            [override-nic.2]
            pci = { revision = 0x42 }
            off = true
            "#,
            Overrides {
                nics_per_node: Some(2),
                seed: Some(9),
                ..Default::default()
            },
        )
        .unwrap();
        assert_eq!(
            (
                f.nics.len(),
                f.nics_per_node,
                f.network.seed,
                f.network.link.latency_ns
            ),
            (8, 2, 9, 100)
        );
        assert_eq!(
            (f.nics[2].pci.revision, f.nics[1].pci.revision),
            (0x42, 0x40)
        );
        assert!(!f.nics[2].powered);
        assert_eq!(f.nics[3].socket, Path::new("/d/nic3.sock"));
        assert_eq!(f.nics[3].nic.guid(), 0xE0_0003);
    }

    #[test]
    fn nic_options_from_words() {
        let cli = |words: &[&str]| Overrides {
            nic: nic_options(&words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>()).unwrap(),
            ..Default::default()
        };
        let text =
            "[nic]\natu-tlb = \"whole-pages\"\n[override-nic.1]\nnic = { atu-tlb-entries = 7 }";
        let words = [
            "atu-tlb=off",
            "atu-tlb-entries=16",
            "faults={ atu-delay-ns = 5 }",
        ];
        let f = build(text, cli(&words)).unwrap();
        let of = |i: usize| (f.nics[i].nic.atu_tlb, f.nics[i].nic.atu_tlb_entries.get());
        assert_eq!((of(0), of(1)), ((AtuTlb::Off, 16), (AtuTlb::Off, 7)));
        assert_eq!(f.nics[0].nic.faults.atu_delay_ns, Some(5));
        for bad in ["atu-tlb=maybe", "atu-tlb-entries=0", "atu-speed=9"] {
            let e = build(text, cli(&[bad])).map(|_| ()).unwrap_err();
            assert!(format!("{e:#}").contains("NIC options"), "{e:#}");
        }
        assert!(nic_options(&["atu-tlb".to_owned()]).is_err());
    }

    #[test]
    fn the_last_nics_can_be_accelerators() {
        let f = build(
            "nodes = 2\naccelerators = 2\n[accelerator]\nvectors = 8\n[override-nic.3]\naccelerator = { device = 7 }",
            Overrides::default(),
        )
        .unwrap();
        let devices: Vec<_> = f
            .nics
            .iter()
            .map(|n| n.accelerator.as_ref().map(|a| (a.device, a.vectors)))
            .collect();
        assert_eq!(devices, [None, None, Some((0x7e57, 8)), Some((7, 8))]);
    }

    #[test]
    fn kinds_of_devices_are_chosen() {
        let text =
            "nodes = 1\naccelerators = 3\n[override-nic.2]\naccelerator = { kind = \"gap\" }";
        let with = |list: &[&str]| {
            let devices: Result<_, String> = list.iter().map(|k| k.parse()).collect();
            let cli = Overrides {
                devices: devices.map_err(anyhow::Error::msg)?,
                ..Overrides::default()
            };
            let f = build(text, cli)?;
            let kinds = f
                .nics
                .iter()
                .filter_map(|n| Some(n.accelerator.as_ref()?.kind));
            anyhow::Ok(kinds.collect::<Vec<_>>())
        };
        use crate::accelerator::DeviceKind::{self, Gap, Huge, Nvme, Plain, Storm};
        assert_eq!(with(&[]).unwrap(), [Plain, Gap, Plain]);
        assert_eq!(with(&["storm", "huge"]).unwrap(), [Storm, Huge, Plain]);
        assert!(with(&["plain"; 4]).is_err());
        assert!(with(&["nonsense"]).is_err());
        assert_eq!(with(&["nvme:8M"]).unwrap(), [Nvme, Gap, Plain]);
        // The number of NICs without a host is by default the number of named devices.
        let named = |list: &[DeviceChoice]| {
            let cli = Overrides {
                nodes: Some(2),
                devices: list.to_vec(),
                ..Overrides::default()
            };
            let f = build("[accelerator]\nsize-mib = 16", cli).unwrap();
            let of = |n: &NicSpec| n.accelerator.as_ref().map(|a| a.size_mib);
            f.nics.iter().filter_map(of).collect::<Vec<_>>()
        };
        let nvme = DeviceChoice::from(DeviceKind::Nvme);
        let small = DeviceChoice {
            mib: Some(8),
            ..nvme
        };
        assert_eq!(named(&[small, nvme]), [8, 16]);
        assert!(named(&[]).is_empty());
    }

    #[test]
    fn mistakes_are_named() {
        let cli = Overrides::default;
        for (text, cli, word) in [
            ("nodes = 3\ntopology = \"pair\"", cli(), "asked for"),
            ("nodez = 3", cli(), "nodez"),
            ("[override-nic.7]\noff = true", cli(), "only 2 NICs"),
            (
                "[override-nic.0]\npci = { bar0-size = 3 }",
                cli(),
                "bar0-size",
            ),
            (
                "[override-nic.0]\npci = { colour = 3 }",
                cli(),
                "override-nic.0",
            ),
            ("[setup]\nnode-ids = [1]", cli(), "1 entries for 2"),
            (
                "[network]\nlink = { corrupt-rate = 0.99 }",
                cli(),
                "corrupt_rate",
            ),
            (
                "accelerators = 2",
                Overrides {
                    topology: Some("pair".into()),
                    ..cli()
                },
                "leave none",
            ),
            (
                "accelerators = 1\n[accelerator]\nvectors = 3",
                cli(),
                "vectors",
            ),
            (
                "[override-nic.0]\naccelerator = { vectors = 1 }",
                cli(),
                "has a host",
            ),
            (
                "topology = \"ring:3\"",
                Overrides {
                    nics_per_node: Some(2),
                    ..cli()
                },
                "divided",
            ),
        ] {
            let e = build(text, cli).map(|_| ()).unwrap_err();
            assert!(format!("{e:#}").contains(word), "{text}: {e:#}");
        }
    }
}
