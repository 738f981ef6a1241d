//! Cables between the links of NICs, as shorthands and in files.
//!
//! The shorthands are `single`, `pair`, `ring:N`, `mesh:AxB…`, `torus:AxB…`, `full:N` (a cable
//! between every pair) and `star:N` (node 0 is the centre). A NIC has seven links, which limits its
//! number of cables. In a torus, a dimension of size two has one cable, as in a mesh.

use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fmt;

/// Number of links per NIC.
pub const LINKS: u8 = 7;
/// Maximum number of NICs in a fabric. The two reserved node IDs (HW §4.2) stay unused.
pub const MAX_NODES: usize = 4096;

/// One end of a cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct End {
    /// Index of the NIC.
    pub nic: usize,
    /// Number of the link port, 0…6.
    pub port: u8,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.nic, self.port)
    }
}

impl std::str::FromStr for End {
    type Err = TopologyError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let bad = || TopologyError(format!("{s:?} is not NIC:PORT"));
        let (nic, port) = s.split_once(':').ok_or_else(bad)?;
        Ok(End {
            nic: nic.parse().map_err(|_| bad())?,
            port: port.parse().map_err(|_| bad())?,
        })
    }
}

/// Error in the description of a topology.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("topology: {0}")]
pub struct TopologyError(pub String);

/// A dimension of a grid, for dimension-order routing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dimension {
    /// Number of nodes along the dimension.
    pub size: usize,
    /// True if the dimension wraps around. Dimensions of up to two nodes do not.
    pub wraps: bool,
    /// Number of the link towards the next higher coordinate.
    pub plus: u8,
    /// Number of the link towards the next lower coordinate.
    pub minus: u8,
}

/// NICs of a fabric, and cables between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// Name that the user gave.
    pub name: String,
    /// Number of NICs.
    pub nodes: usize,
    /// Cables between link ports. Each end occurs once.
    pub cables: Vec<(End, End)>,
    /// Dimensions of a grid, lowest first; empty for other shapes. The index of a NIC is c0 + size0
    /// · (c1 + size1 · …), where c0, c1, … are its coordinates.
    pub dims: Vec<Dimension>,
}

/// A topology in a configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TopologyFile {
    /// Total number of NICs, with and without a host.
    pub nodes: usize,
    /// Ends of each cable as `["NIC:PORT", "NIC:PORT"]`.
    pub cables: Vec<(String, String)>,
}

/// Names of the shorthands.
const KINDS: [&str; 7] = ["single", "pair", "ring", "mesh", "torus", "full", "star"];

impl Topology {
    /// Returns true if the text is a shorthand, correct or not, rather than the name of a file.
    pub fn is_shorthand(text: &str) -> bool {
        let kind = text.split_once(':').map_or(text, |(kind, _)| kind);
        KINDS.contains(&kind)
    }

    /// Parses a shorthand.
    pub fn parse(text: &str) -> Result<Self, TopologyError> {
        let (kind, arg) = text.split_once(':').unwrap_or((text, ""));
        let number = || {
            arg.parse::<usize>()
                .ok()
                .filter(|n| (1..=MAX_NODES).contains(n))
                .ok_or_else(|| {
                    TopologyError(format!(
                        "{text:?}: expected a number of nodes, 1…{MAX_NODES}"
                    ))
                })
        };
        match kind {
            "single" if arg.is_empty() => Self::cabled(text, 1, Vec::new()),
            "pair" if arg.is_empty() => Self::cabled(text, 2, vec![(0, 0, 1, 0)]),
            "ring" => Self::grid(text, &[number()?], true),
            "mesh" | "torus" => {
                let sizes: Option<Vec<usize>> = arg
                    .split('x')
                    .map(|s| s.parse().ok().filter(|&n| n > 0))
                    .collect();
                let sizes = sizes
                    .ok_or_else(|| TopologyError(format!("{text:?}: expected sizes like 4x2x2")))?;
                Self::grid(text, &sizes, kind == "torus")
            }
            "full" => {
                let n = number()?;
                let pairs = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b)));
                Self::cabled(text, n, pairs.map(|(a, b)| (a, b - 1, b, a)).collect())
            }
            "star" => {
                let n = number()?;
                Self::cabled(text, n, (1..n).map(|i| (0, i - 1, i, 0)).collect())
            }
            _ => Err(TopologyError(format!(
                "{text:?}: expected single, pair, ring:N, mesh:AxB…, torus:AxB…, full:N or star:N"
            ))),
        }
    }

    /// Builds the topology of a configuration file.
    pub fn from_file(file: &TopologyFile) -> Result<Self, TopologyError> {
        let mut cables = Vec::new();
        for (a, b) in &file.cables {
            let (a, b): (End, End) = (a.parse()?, b.parse()?);
            cables.push((a.nic, a.port.into(), b.nic, b.port.into()));
        }
        Self::cabled("file", file.nodes, cables)
    }

    fn cabled(
        name: &str,
        nodes: usize,
        list: Vec<(usize, usize, usize, usize)>,
    ) -> Result<Self, TopologyError> {
        let fail = |s: String| Err(TopologyError(format!("{name}: {s}")));
        if !(1..=MAX_NODES).contains(&nodes) {
            return fail(format!("{nodes} nodes; the number must be 1…{MAX_NODES}"));
        }
        let mut used = HashSet::new();
        let mut cables = Vec::new();
        for (a, ap, b, bp) in list {
            for (nic, port) in [(a, ap), (b, bp)] {
                if nic >= nodes {
                    return fail(format!(
                        "a cable ends at NIC {nic}, but there are only {nodes}"
                    ));
                }
                if port >= usize::from(LINKS) {
                    return fail(format!(
                        "NIC {nic} would need link {port}; a NIC has links 0…{}",
                        LINKS - 1
                    ));
                }
                if !used.insert((nic, port)) {
                    return fail(format!("two cables in link {port} of NIC {nic}"));
                }
            }
            cables.push((
                End {
                    nic: a,
                    port: ap as u8,
                },
                End {
                    nic: b,
                    port: bp as u8,
                },
            ));
        }
        Ok(Self {
            name: name.to_owned(),
            nodes,
            cables,
            dims: Vec::new(),
        })
    }

    fn grid(name: &str, sizes: &[usize], wrap: bool) -> Result<Self, TopologyError> {
        let nodes = sizes
            .iter()
            .try_fold(1usize, |p, &s| p.checked_mul(s))
            .unwrap_or(usize::MAX);
        let mut dims = Vec::new();
        let mut next = 0usize;
        for &size in sizes {
            let (plus, minus) = (next, if size > 2 { next + 1 } else { next });
            next += [0, 0, 1, 2][size.min(3)];
            if next > usize::from(LINKS) {
                return Err(TopologyError(format!(
                    "{name}: needs more than {LINKS} links per NIC"
                )));
            }
            dims.push(Dimension {
                size,
                wraps: wrap && size > 2,
                plus: plus as u8,
                minus: minus as u8,
            });
        }
        let mut list = Vec::new();
        if nodes <= MAX_NODES {
            for node in 0..nodes {
                let mut stride = 1;
                for d in &dims {
                    let at = node / stride % d.size;
                    if at + 1 < d.size {
                        list.push((node, d.plus.into(), node + stride, d.minus.into()));
                    } else if d.wraps {
                        list.push((node, d.plus.into(), node - at * stride, d.minus.into()));
                    }
                    stride *= d.size;
                }
            }
        }
        Ok(Self {
            dims,
            ..Self::cabled(name, nodes, list)?
        })
    }

    /// Returns the far end of each link of each NIC.
    pub fn neighbours(&self) -> Vec<[Option<End>; LINKS as usize]> {
        let mut n = vec![[None; LINKS as usize]; self.nodes];
        for &(a, b) in &self.cables {
            n[a.nic][usize::from(a.port)] = Some(b);
            n[b.nic][usize::from(b.port)] = Some(a);
        }
        n
    }

    /// Returns the default topology for a number of NICs.
    pub fn default_for(nodes: usize) -> Result<Self, TopologyError> {
        match nodes {
            1 => Self::parse("single"),
            2 => Self::parse("pair"),
            n => Self::parse(&format!("ring:{n}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorthands() {
        for (text, nodes, cables) in [
            ("single", 1, 0),
            ("pair", 2, 1),
            ("ring:2", 2, 1),
            ("ring:5", 5, 5),
            ("torus:2x2x2", 8, 12),
            ("torus:4x2x2", 16, 16 + 8 + 8),
            ("mesh:3x3", 9, 12),
            ("full:8", 8, 28),
            ("star:8", 8, 7),
            ("torus:2x2x2x2x2x2x2", 128, 448),
        ] {
            let t = Topology::parse(text).unwrap();
            assert_eq!((t.nodes, t.cables.len()), (nodes, cables), "{text}");
        }
    }

    #[test]
    fn errors_name_the_reason() {
        for (text, word) in [
            ("torus:3x3x3x3", "links per NIC"),
            ("full:9", "link 7"),
            ("star:9", "link 7"),
            ("ring:0", "number of nodes"),
            ("mesh:4x", "sizes"),
            ("mesh:4096x4096x4096", "nodes"),
            ("cube", "expected"),
        ] {
            let e = Topology::parse(text).unwrap_err();
            assert!(e.to_string().contains(word), "{text}: {e}");
        }
        let file = TopologyFile {
            nodes: 2,
            cables: vec![("0:0".into(), "1:0".into()), ("0:0".into(), "1:1".into())],
        };
        assert!(Topology::from_file(&file)
            .unwrap_err()
            .to_string()
            .contains("two cables"));
    }
}
