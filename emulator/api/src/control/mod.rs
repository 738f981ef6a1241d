//! The control socket: one JSON object per line in each direction.
//!
//! A request is a [`Request`]; its `cmd` field is the name. The answer is `{"ok": …}` or `{"error":
//! "…"}`. The requests of one connection are answered in order. [`Client`] is the typed, blocking
//! client.

mod client;
mod forged;

pub use client::Client;
pub use forged::Forged;

use crate::host::{HostStats, Power};
use crate::link::DownPolicy;
use crate::network::{LinkInfo, NodeStats};
use crate::nic::Faults;
use crate::timing::{TimingModel, TimingStats};
use serde::{Deserialize, Serialize};

/// Name of the control socket in the directory of a fabric.
pub const SOCKET: &str = "control.sock";

/// Requests to the emulator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Returns the state of the fabric as [`Status`].
    Status,
    /// Returns all counters as [`Counters`].
    Counters {
        /// NIC; `None`: all NICs.
        #[serde(default)]
        nic: Option<usize>,
    },
    /// Reads a register like management software, and returns its value.
    Peek {
        /// NIC.
        nic: usize,
        /// Byte offset in the register file, a multiple of 8.
        offset: u32,
    },
    /// Writes a register like management software.
    Poke {
        /// NIC.
        nic: usize,
        /// Byte offset in the register file, a multiple of 8.
        offset: u32,
        /// Value.
        value: u64,
    },
    /// Plugs a cable in, pulls it, or changes the handling of packets while it is pulled.
    Link {
        /// Cables to change.
        link: LinkSelect,
        /// True plugs the cables in.
        up: bool,
        /// Handling of packets while the link is down; `None`: unchanged.
        #[serde(default)]
        policy: Option<DownPolicy>,
    },
    /// Lets cables go down and up repeatedly, beginning now.
    Flap {
        /// Cables to change.
        link: LinkSelect,
        /// Time down, ms.
        down_ms: u64,
        /// Time up, ms.
        up_ms: u64,
        /// Number of times.
        count: u32,
        /// Handling of packets while the link is down; `None`: they are held.
        #[serde(default)]
        policy: Option<DownPolicy>,
    },
    /// Sets knobs of cables; absent ones stay unchanged.
    Knobs {
        /// Cables to change.
        link: LinkSelect,
        /// Delay, ns.
        #[serde(default)]
        latency_ns: Option<u64>,
        /// Payload bytes per second; 0: no limit.
        #[serde(default)]
        bytes_per_second: Option<u64>,
        /// Probability of damage per transmission.
        #[serde(default)]
        corrupt_rate: Option<f64>,
        /// Probability of loss per transmission.
        #[serde(default)]
        loss_rate: Option<f64>,
    },
    /// Ends all faults: cables, knobs and faults of NICs are as configured, and no NIC is frozen.
    /// Power and configuration space stay unchanged.
    EndFaults,
    /// Freezes or thaws a NIC.
    Freeze {
        /// NIC.
        nic: usize,
        /// True freezes the NIC.
        on: bool,
    },
    /// Switches a NIC on or off; off means removed from its host.
    Power {
        /// NIC.
        nic: usize,
        /// True switches the NIC on.
        on: bool,
    },
    /// Resets a NIC like its host.
    Reset {
        /// NIC.
        nic: usize,
    },
    /// Replaces the faults that a NIC injects; the empty object ends all of them.
    Faults {
        /// NIC.
        nic: usize,
        /// Faults.
        faults: Faults,
    },
    /// Changes the configuration space of a NIC (fields as in `[pci]`). Takes effect at QEMU's next
    /// start.
    Pci {
        /// NIC.
        nic: usize,
        /// Fields to change.
        fields: serde_json::Map<String, serde_json::Value>,
    },
    /// Makes the model of a NIC panic at its next access, to test that the panic is contained.
    Panic {
        /// NIC.
        nic: usize,
    },
    /// Delivers a packet without a sending NIC.
    Forge {
        /// NIC that receives it.
        nic: usize,
        /// The packet.
        packet: Forged,
    },
    /// Sets registers that a unit reports in, then raises a trigger event like a unit of the chip.
    Event {
        /// NIC.
        nic: usize,
        /// Number of the event.
        event: u8,
        /// Byte offsets of registers and their values.
        #[serde(default)]
        registers: Vec<(u32, u64)>,
    },
    /// Restarts the random number generators.
    Seed {
        /// Seed.
        seed: u64,
    },
    /// Programs all NICs like management software.
    Setup {
        /// True routes around cables that carry no packets now.
        #[serde(default)]
        avoid_dead: bool,
    },
    /// Sets the network state (0 unconfigured, 1 running, 2 stopped).
    NetworkState {
        /// NIC; `None`: all NICs.
        #[serde(default)]
        nic: Option<usize>,
        /// State.
        state: u64,
    },
    /// Changes a node ID at run time.
    NodeId {
        /// NIC.
        nic: usize,
        /// New node ID.
        id: u16,
    },
    /// Starts a trace. A running one ends.
    TraceStart {
        /// File.
        path: String,
    },
    /// Writes buffered trace records to the file, and returns the number of records so far.
    TraceFlush,
    /// Ends the trace.
    TraceStop,
    /// Ends the emulator.
    Shutdown,
}

impl Request {
    /// Parses a line.
    ///
    /// # Errors
    ///
    /// The line is not a request.
    pub fn parse(line: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(line)
    }
}

/// Selects cables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkSelect {
    /// Every cable.
    All,
    /// The cable with this end, `NIC:PORT`.
    End(String),
    /// All cables of a NIC.
    Nic(usize),
    /// All cables between two NICs.
    Between(usize, usize),
}

impl std::fmt::Display for LinkSelect {
    /// Writes the form that `from_str` parses.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::End(end) => f.write_str(end),
            Self::Nic(n) => write!(f, "nic{n}"),
            Self::Between(a, b) => write!(f, "{a}-{b}"),
        }
    }
}

impl std::str::FromStr for LinkSelect {
    type Err = String;

    /// Parses `all`, `NIC:PORT`, `nicN` or `N-M`.
    fn from_str(s: &str) -> Result<Self, String> {
        let bad = || format!("{s:?}: expected all, NIC:PORT, nicN or N-M");
        if s == "all" {
            Ok(Self::All)
        } else if let Some(n) = s.strip_prefix("nic") {
            n.parse().map(Self::Nic).map_err(|_| bad())
        } else if let Some((a, b)) = s.split_once('-') {
            a.parse()
                .ok()
                .zip(b.parse().ok())
                .map(|(a, b)| Self::Between(a, b))
                .ok_or_else(bad)
        } else {
            s.parse::<crate::topology::End>()
                .map(|_| Self::End(s.to_owned()))
                .map_err(|_| bad())
        }
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// Success, with the requested value or null.
    Ok(serde_json::Value),
    /// Failure, with the reason.
    Error(String),
}

impl Response {
    /// Returns the line without its line break.
    pub fn line(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_else(|e| {
            format!("{{\"error\":\"cannot write the answer: {e}\"}}").into_bytes()
        })
    }
}

/// State of one NIC.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NicStatus {
    /// Index.
    pub nic: usize,
    /// Host that the NIC is part of.
    pub host: usize,
    /// Path of the socket; empty without a host.
    pub socket: String,
    /// True if the NIC has a built-in device behind it and no host.
    pub accelerator: bool,
    /// True while a guest is connected.
    pub connected: bool,
    /// Power of the NIC.
    pub power: Power,
    /// True while the NIC is frozen.
    pub frozen: bool,
    /// Node ID in its register.
    pub node_id: u16,
    /// Network state in its register.
    pub network_state: u64,
    /// GUID.
    pub guid: u32,
    /// True while bus mastering is enabled.
    pub bus_master: bool,
    /// Number of enabled MSI vectors.
    pub msi_vectors: u16,
    /// Number of DMA mappings and of their bytes.
    pub dma_maps: (usize, u64),
    /// Faults that the NIC injects now.
    pub faults: Faults,
}

/// Statistics of the event loop.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LoopStats {
    /// Returns from waiting.
    pub wakeups: u64,
    /// Work passes with something to do.
    pub turns: u64,
    /// Messages of vfio-user clients.
    pub messages: u64,
    /// Socket reads of vfio-user clients.
    pub socket_reads: u64,
}

/// Answer to [`Request::Status`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Status {
    /// Process ID.
    pub pid: u32,
    /// Topology as the user gave it.
    pub topology: String,
    /// Seed of random numbers.
    pub seed: u64,
    /// Timing model.
    pub timing: TimingModel,
    /// Variant of the model.
    pub variant: String,
    /// Time since the start in ns.
    pub uptime_ns: u64,
    /// True while a trace is written.
    pub tracing: bool,
    /// NICs.
    pub nics: Vec<NicStatus>,
    /// Cables.
    pub links: Vec<LinkInfo>,
    /// Statistics of the event loop.
    pub event_loop: LoopStats,
    /// Deadlocks of the fabric, as lists of the buffers involved; only the first few.
    #[serde(default)]
    pub deadlocks: Vec<String>,
}

impl Status {
    /// Returns the state as an answer.
    ///
    /// # Errors
    ///
    /// The state cannot be written as JSON.
    pub fn value(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(self)
    }
}

/// Counters of one NIC.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NicCounters {
    /// Index.
    pub nic: usize,
    /// Counters of the chip (fields as in [`counters::Counters`](crate::counters::Counters)).
    pub chip: serde_json::Value,
    /// Counters between chip and host.
    pub host: HostStats,
    /// Statistics of the timing model.
    pub timing: TimingStats,
    /// Counters of the NIC's crossbar.
    pub network: NodeStats,
    /// Payload bytes of the NIC's packets that are not stored yet.
    pub in_flight_bytes: u64,
    /// Payload bytes that wait for the NIC's units.
    pub waiting_bytes: u64,
}

impl NicCounters {
    /// Returns a counter of the chip by its path, for instance `"velo.sent"` or `"events.28"`;
    /// `None` if it does not exist.
    pub fn chip(&self, path: &str) -> Option<u64> {
        let step = |v: &'_ serde_json::Value, key: &str| match v {
            serde_json::Value::Array(list) => {
                key.parse().ok().and_then(|i: usize| list.get(i).cloned())
            }
            other => other.get(key).cloned(),
        };
        path.split('.')
            .try_fold(self.chip.clone(), |v, key| step(&v, key))?
            .as_u64()
    }
}

/// Answer to [`Request::Counters`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Counters {
    /// Time since the start in ns.
    pub uptime_ns: u64,
    /// NICs.
    pub nics: Vec<NicCounters>,
    /// Cables.
    pub links: Vec<LinkInfo>,
}

impl Counters {
    /// Returns the counters as an answer.
    ///
    /// # Errors
    ///
    /// The counters cannot be written as JSON.
    pub fn value(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(self)
    }
}
