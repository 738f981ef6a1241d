//! Cables: knobs and statistics.

use serde::{Deserialize, Serialize};

/// Largest sum of the damage rates; above it a link would hardly get anything through.
pub const MAX_DAMAGE: f64 = 0.95;

/// What happens to packets on a link that is down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DownPolicy {
    /// Lost: the cable was pulled.
    #[default]
    Drop,
    /// Kept in the retransmission buffer until the link is up again, or the buffer is full.
    Hold,
}

/// Adjustable properties of a cable, the same in both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LinkKnobs {
    /// Delay in ns; 0: packets arrive at once.
    pub latency_ns: u64,
    /// Each packet takes up to so many ns more, but never overtakes the one ahead of it.
    pub jitter_ns: u64,
    /// Payload bytes per second; 0: no limit.
    pub bytes_per_second: u64,
    /// Probability that a transmission arrives damaged (negative acknowledge, sent again).
    pub corrupt_rate: f64,
    /// Probability that a transmission or its acknowledge vanishes (time-out, sent again).
    pub loss_rate: f64,
}

impl LinkKnobs {
    /// Checks the ranges.
    pub fn validate(&self) -> Result<(), String> {
        let rates = [self.corrupt_rate, self.loss_rate];
        if rates.iter().any(|r| !(0.0..=1.0).contains(r)) || rates.iter().sum::<f64>() > MAX_DAMAGE
        {
            return Err(format!("corrupt_rate and loss_rate must be probabilities with a sum of at most {MAX_DAMAGE}"));
        }
        if self.latency_ns.max(self.jitter_ns) > 10_000_000_000 {
            return Err("latency_ns and jitter_ns must be at most 10 s".into());
        }
        Ok(())
    }
}

/// Statistics of one direction of a cable. All but `queued_bytes` count up from the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStats {
    /// Packets that arrived.
    pub packets: u64,
    /// Payload bytes that arrived.
    pub bytes: u64,
    /// Transmissions that arrived damaged.
    pub corrupted: u64,
    /// Transmissions that vanished.
    pub lost: u64,
    /// Packets lost because the link was down.
    pub dropped_down: u64,
    /// Packets lost because the buffer of a link that was down was full.
    pub dropped_full: u64,
    /// Bytes under way or held now.
    pub queued_bytes: u64,
}
