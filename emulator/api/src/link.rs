//! Knobs and statistics of cables.

use serde::{Deserialize, Serialize};

/// Maximum sum of the damage rates. With a higher sum, a link would deliver hardly any packet.
pub const MAX_DAMAGE: f64 = 0.95;

/// Handling of packets on a link that is down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DownPolicy {
    /// Packets are lost, as with an unplugged cable.
    #[default]
    Drop,
    /// Packets stay in the retransmission buffer until the link is up again, or are dropped if the
    /// buffer is full.
    Hold,
}

/// Adjustable properties of a cable, which apply to both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LinkKnobs {
    /// Delay in ns; 0 means immediate arrival.
    pub latency_ns: u64,
    /// Maximum additional delay per packet in ns. Packets never overtake each other.
    pub jitter_ns: u64,
    /// Maximum payload bytes per second; 0 for no limit.
    pub bytes_per_second: u64,
    /// Probability that a transmission arrives damaged and is repeated after a negative
    /// acknowledgement.
    pub corrupt_rate: f64,
    /// Probability that a transmission or its acknowledgement is lost and the packet is repeated
    /// after a timeout.
    pub loss_rate: f64,
}

impl LinkKnobs {
    /// Checks the ranges.
    pub fn validate(&self) -> Result<(), String> {
        let rates = [self.corrupt_rate, self.loss_rate];
        if rates.iter().any(|r| !(0.0..=1.0).contains(r)) || rates.iter().sum::<f64>() > MAX_DAMAGE
        {
            return Err(format!(
                "corrupt_rate and loss_rate must be probabilities with a sum of up to {MAX_DAMAGE}"
            ));
        }
        if self.latency_ns.max(self.jitter_ns) > 10_000_000_000 {
            return Err("latency_ns and jitter_ns must not exceed 10 s".into());
        }
        Ok(())
    }
}

/// Statistics of one direction of a cable. All except `queued_bytes` count since the emulator
/// started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStats {
    /// Packets that arrived.
    pub packets: u64,
    /// Payload bytes that arrived.
    pub bytes: u64,
    /// Transmissions that arrived damaged.
    pub corrupted: u64,
    /// Transmissions that were lost.
    pub lost: u64,
    /// Packets lost because the link was down.
    pub dropped_down: u64,
    /// Packets lost because the link was down and its buffer was full.
    pub dropped_full: u64,
    /// Bytes that are in flight or held now.
    pub queued_bytes: u64,
}
