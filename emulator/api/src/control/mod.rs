//! The control socket of the emulator. Each message is a JSON object on one line.
//!
//! A request is a [`Request`]; its `cmd` field is the name of the variant. The answer is `{"ok":
//! …}` or `{"error": "…"}`. The requests of one connection are answered in order. [`Client`] is a
//! typed, blocking client.

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
        /// Index of the NIC; `None` selects all NICs.
        #[serde(default)]
        nic: Option<usize>,
    },
    /// Reads a register as management software does, and returns its value.
    Peek {
        /// Index of the NIC.
        nic: usize,
        /// Byte offset in the register file, a multiple of 8.
        offset: u32,
    },
    /// Writes a register as management software does.
    Poke {
        /// Index of the NIC.
        nic: usize,
        /// Byte offset in the register file, a multiple of 8.
        offset: u32,
        /// Value to write.
        value: u64,
    },
    /// Plugs cables in or unplugs them, and sets the handling of packets while they are unplugged.
    Link {
        /// Cables to change.
        link: LinkSelect,
        /// True to plug the cables in.
        up: bool,
        /// Handling of packets while the link is down; `None` leaves it unchanged.
        #[serde(default)]
        policy: Option<DownPolicy>,
    },
    /// Makes links go down and up repeatedly, beginning now.
    Flap {
        /// Cables to change.
        link: LinkSelect,
        /// Duration of each down phase in ms.
        down_ms: u64,
        /// Duration of each up phase in ms.
        up_ms: u64,
        /// Number of down phases.
        count: u32,
        /// Handling of packets while the link is down; `None` holds them.
        #[serde(default)]
        policy: Option<DownPolicy>,
    },
    /// Sets knobs of cables. Absent knobs stay unchanged.
    Knobs {
        /// Cables to change.
        link: LinkSelect,
        /// Delay in ns.
        #[serde(default)]
        latency_ns: Option<u64>,
        /// Maximum payload bytes per second; 0 for no limit.
        #[serde(default)]
        bytes_per_second: Option<u64>,
        /// Probability that a transmission is damaged.
        #[serde(default)]
        corrupt_rate: Option<f64>,
        /// Probability that a transmission is lost.
        #[serde(default)]
        loss_rate: Option<f64>,
    },
    /// Ends all injected faults. Cables, knobs and faults of NICs return to their configured state,
    /// and frozen NICs are thawed. Power and configuration space stay unchanged.
    EndFaults,
    /// Freezes or thaws a NIC.
    Freeze {
        /// Index of the NIC.
        nic: usize,
        /// True to freeze the NIC.
        on: bool,
    },
    /// Switches a NIC on or off. A NIC that is off is removed from its host.
    Power {
        /// Index of the NIC.
        nic: usize,
        /// True to switch the NIC on.
        on: bool,
    },
    /// Resets a NIC as its host does.
    Reset {
        /// Index of the NIC.
        nic: usize,
    },
    /// Replaces the faults that a NIC injects. The empty object ends all faults of the NIC.
    Faults {
        /// Index of the NIC.
        nic: usize,
        /// New faults.
        faults: Faults,
    },
    /// Changes the PCI configuration space of a NIC (fields as in `[pci]`). The change takes effect
    /// at QEMU's next start.
    Pci {
        /// Index of the NIC.
        nic: usize,
        /// Fields to change.
        fields: serde_json::Map<String, serde_json::Value>,
    },
    /// Makes the model of a NIC panic at its next access, to test that the panic is contained.
    Panic {
        /// Index of the NIC.
        nic: usize,
    },
    /// Delivers a packet without a sending NIC.
    Forge {
        /// Index of the NIC that receives the packet.
        nic: usize,
        /// Packet to deliver.
        packet: Forged,
    },
    /// Sets the registers in which a unit of the chip reports an event, then raises the trigger
    /// event.
    Event {
        /// Index of the NIC.
        nic: usize,
        /// Number of the trigger event.
        event: u8,
        /// Byte offsets of registers and their values.
        #[serde(default)]
        registers: Vec<(u32, u64)>,
    },
    /// Restarts the random number generators from a seed.
    Seed {
        /// New seed.
        seed: u64,
    },
    /// Programs all NICs as management software does.
    Setup {
        /// True to route around cables that carry no packets now.
        #[serde(default)]
        avoid_dead: bool,
    },
    /// Sets the network state of NICs.
    NetworkState {
        /// Index of the NIC; `None` selects all NICs.
        #[serde(default)]
        nic: Option<usize>,
        /// State to set: 0 unconfigured, 1 running, 2 stopped.
        state: u64,
    },
    /// Changes the node ID of a running NIC.
    NodeId {
        /// Index of the NIC.
        nic: usize,
        /// New node ID.
        id: u16,
    },
    /// Starts a trace, and ends a trace that is running.
    TraceStart {
        /// Path of the trace file.
        path: String,
    },
    /// Writes buffered trace records to the file. Returns the number of records since the start of
    /// the trace.
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

/// Selection of cables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkSelect {
    /// Every cable.
    All,
    /// The cable with the end `NIC:PORT`.
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

/// An answer of the emulator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// Success, with the requested value, or null if no value was requested.
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
    /// Index of the NIC.
    pub nic: usize,
    /// Number of the host that the NIC is part of.
    pub host: usize,
    /// Path of the NIC's socket; empty for a NIC without a host.
    pub socket: String,
    /// True if the NIC has a built-in device behind it and no host.
    pub accelerator: bool,
    /// True while a guest is connected.
    pub connected: bool,
    /// Power state of the NIC.
    pub power: Power,
    /// True while the NIC is frozen.
    pub frozen: bool,
    /// Node ID in its register.
    pub node_id: u16,
    /// Network state in its register.
    pub network_state: u64,
    /// GUID of the NIC.
    pub guid: u32,
    /// True while bus mastering is enabled.
    pub bus_master: bool,
    /// Number of enabled MSI vectors.
    pub msi_vectors: u16,
    /// Number of DMA mappings, and their total size in bytes.
    pub dma_maps: (usize, u64),
    /// Faults that the NIC injects now.
    pub faults: Faults,
}

/// Statistics of the event loop.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LoopStats {
    /// Times that the loop returned from waiting.
    pub wakeups: u64,
    /// Work passes in which the loop had something to do.
    pub turns: u64,
    /// Messages that vfio-user clients sent.
    pub messages: u64,
    /// Reads from the sockets of vfio-user clients.
    pub socket_reads: u64,
}

/// Answer to [`Request::Status`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Status {
    /// Process ID of the emulator.
    pub pid: u32,
    /// Topology as the user gave it.
    pub topology: String,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Timing model of the run.
    pub timing: TimingModel,
    /// Variant of the model.
    pub variant: String,
    /// Time in ns since the emulator started.
    pub uptime_ns: u64,
    /// True while a trace is written.
    pub tracing: bool,
    /// State of each NIC.
    pub nics: Vec<NicStatus>,
    /// State of each cable.
    pub links: Vec<LinkInfo>,
    /// Statistics of the event loop.
    pub event_loop: LoopStats,
    /// Deadlocks of the fabric, each as a list of the buffers involved. Only the first few are
    /// listed.
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
    /// Index of the NIC.
    pub nic: usize,
    /// Counters of the chip (fields as in [`counters::Counters`](crate::counters::Counters)).
    pub chip: serde_json::Value,
    /// Counters of the interface between chip and host.
    pub host: HostStats,
    /// Statistics of the timing model.
    pub timing: TimingStats,
    /// Counters of the NIC's crossbar.
    pub network: NodeStats,
    /// Payload bytes of packets from this NIC that the receivers have not stored yet.
    pub in_flight_bytes: u64,
    /// Payload bytes of arrived packets that the units of the NIC have not processed yet.
    pub waiting_bytes: u64,
}

impl NicCounters {
    /// Returns a counter of the chip by its path, for instance `"velo.sent"` or `"events.28"`;
    /// `None` if there is no such counter.
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
    /// Time in ns since the emulator started.
    pub uptime_ns: u64,
    /// Counters of each NIC.
    pub nics: Vec<NicCounters>,
    /// Counters of each cable.
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
