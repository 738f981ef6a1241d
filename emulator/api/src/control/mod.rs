//! The control socket: one JSON object per line in each direction.
//!
//! A request is a [`Request`] (its `cmd` field names it); the answer is `{"ok": …}` or `{"error": "…"}`. Requests of one
//! connection are answered in order. [`Client`] is the typed, blocking client.

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

/// What can be asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// State of everything; answer: [`Status`].
    Status,
    /// All counters; answer: [`Counters`].
    Counters {
        /// Only this NIC.
        #[serde(default)]
        nic: Option<usize>,
    },
    /// Reads a register as management software does; answer: the value.
    Peek {
        /// NIC.
        nic: usize,
        /// Byte offset in the register file, a multiple of 8.
        offset: u32,
    },
    /// Writes a register as management software does.
    Poke {
        /// NIC.
        nic: usize,
        /// Byte offset in the register file, a multiple of 8.
        offset: u32,
        /// Value.
        value: u64,
    },
    /// Plugs a cable in, pulls it, or changes what happens to packets while it is pulled.
    Link {
        /// Which cables.
        link: LinkSelect,
        /// Up or down.
        up: bool,
        /// What happens to packets while it is down; absent: as before.
        #[serde(default)]
        policy: Option<DownPolicy>,
    },
    /// Lets cables go down and up by themselves, beginning now.
    Flap {
        /// Which cables.
        link: LinkSelect,
        /// Time down, ms.
        down_ms: u64,
        /// Time up, ms.
        up_ms: u64,
        /// How often.
        count: u32,
        /// What happens to packets while it is down; absent: they are held.
        #[serde(default)]
        policy: Option<DownPolicy>,
    },
    /// Sets knobs of cables; absent ones stay.
    Knobs {
        /// Which cables.
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
    /// Ends all faults: cables, knobs and what NICs inject are as configured, nothing is frozen. Power and configuration space stay.
    EndFaults,
    /// Freezes or thaws a NIC.
    Freeze {
        /// NIC.
        nic: usize,
        /// Frozen.
        on: bool,
    },
    /// Switches a NIC on or off (off: torn out of its host).
    Power {
        /// NIC.
        nic: usize,
        /// On.
        on: bool,
    },
    /// Resets a NIC as its host would.
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
    /// Changes the configuration space of a NIC (fields as in `[pci]`); takes effect when QEMU starts.
    Pci {
        /// NIC.
        nic: usize,
        /// Fields to change.
        fields: serde_json::Map<String, serde_json::Value>,
    },
    /// Makes the model of a NIC panic at its next access (test of the containment).
    Panic {
        /// NIC.
        nic: usize,
    },
    /// Delivers a packet that no NIC sent.
    Forge {
        /// NIC that receives it.
        nic: usize,
        /// The packet.
        packet: Forged,
    },
    /// Raises a trigger event as if a unit of the chip had, after setting what the unit reports.
    Event {
        /// NIC.
        nic: usize,
        /// Number of the event.
        event: u8,
        /// Byte offsets of registers and their values.
        #[serde(default)]
        registers: Vec<(u32, u64)>,
    },
    /// Restarts the random draws.
    Seed {
        /// Seed.
        seed: u64,
    },
    /// Programs all NICs.
    Setup {
        /// Routes go around cables that carry nothing now.
        #[serde(default)]
        avoid_dead: bool,
    },
    /// Sets the network state (0 unconfigured, 1 running, 2 stopped).
    NetworkState {
        /// NIC; absent: all.
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
    /// Starts a trace; a running one ends.
    TraceStart {
        /// File.
        path: String,
    },
    /// Writes buffered trace records to the file; answer: number of records so far.
    TraceFlush,
    /// Ends the trace.
    TraceStop,
    /// Ends the emulator.
    Shutdown,
}

impl Request {
    /// From a line.
    ///
    /// # Errors
    ///
    /// It is no request.
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
    /// As `from_str` takes it.
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

    /// `all`, `NIC:PORT`, `nicN`, `N-M`.
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
    /// It was done; what was asked for, or null.
    Ok(serde_json::Value),
    /// It was not done, and why.
    Error(String),
}

impl Response {
    /// The line without its end.
    pub fn line(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_else(|e| {
            format!("{{\"error\":\"answer can't be written: {e}\"}}").into_bytes()
        })
    }
}

/// State of one NIC.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NicStatus {
    /// Index.
    pub nic: usize,
    /// Host it sits in.
    pub host: usize,
    /// Its socket; empty without a host.
    pub socket: String,
    /// It has no host but a device behind it.
    pub accelerator: bool,
    /// A guest is connected.
    pub connected: bool,
    /// Power.
    pub power: Power,
    /// Frozen.
    pub frozen: bool,
    /// Node ID in its register.
    pub node_id: u16,
    /// Network state in its register.
    pub network_state: u64,
    /// GUID.
    pub guid: u32,
    /// Bus mastering is on.
    pub bus_master: bool,
    /// MSI vectors enabled.
    pub msi_vectors: u16,
    /// DMA mappings and their bytes.
    pub dma_maps: (usize, u64),
    /// Faults that it injects now.
    pub faults: Faults,
}

/// State of the event loop.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LoopStats {
    /// Returns from waiting.
    pub wakeups: u64,
    /// Turns with something to do.
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
    /// Seed of random draws.
    pub seed: u64,
    /// Timing model.
    pub timing: TimingModel,
    /// Choice of switches.
    pub variant: String,
    /// ns since the start.
    pub uptime_ns: u64,
    /// A trace is being written.
    pub tracing: bool,
    /// NICs.
    pub nics: Vec<NicStatus>,
    /// Cables.
    pub links: Vec<LinkInfo>,
    /// Event loop.
    pub event_loop: LoopStats,
    /// Deadlocks of the fabric as the buffers in them; the first few only.
    #[serde(default)]
    pub deadlocks: Vec<String>,
}

impl Status {
    /// As an answer.
    ///
    /// # Errors
    ///
    /// It can't be written as JSON.
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
    /// The chip (fields as in `nic::Counters`).
    pub chip: serde_json::Value,
    /// Between chip and host.
    pub host: HostStats,
    /// What the timing model did.
    pub timing: TimingStats,
    /// Its crossbar.
    pub network: NodeStats,
    /// Bytes of its packets that are not stored yet.
    pub in_flight_bytes: u64,
    /// Bytes that wait for its units.
    pub waiting_bytes: u64,
}

impl NicCounters {
    /// A counter of the chip by its path, for instance `"velo.sent"` or `"events.28"`; `None` if there is none.
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
    /// ns since the start.
    pub uptime_ns: u64,
    /// NICs.
    pub nics: Vec<NicCounters>,
    /// Cables.
    pub links: Vec<LinkInfo>,
}

impl Counters {
    /// As an answer.
    ///
    /// # Errors
    ///
    /// They can't be written as JSON.
    pub fn value(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(self)
    }
}
