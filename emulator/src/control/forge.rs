//! Packets that no NIC sent: what a broken or hostile peer might put on the wire, delivered to one NIC.
//!
//! They enter at the network port of the NIC, behind the fabric, so the source may be a node that does not exist.

use crate::env::{Dest, NetPort, Packet};
use crate::nic::{Body, RmaKind, RmaMessage, SmfuMessage, SmfuSpace, VeloMessage};
use anyhow::{ensure, Context, Result};
use serde::{Deserialize, Serialize};
use wire::ids::NodeId;
use wire::rma::{Command, Mode, NotifySpec};

/// A forged packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Forged {
    /// A VELO message.
    Velo {
        /// Stamped source node.
        src_node: u16,
        /// Stamped source VPID.
        src_vpid: u8,
        /// Destination VPID.
        vpid: u8,
        /// Message type tag, 0…3.
        mtt: u8,
        /// User tag.
        #[serde(default)]
        tag: u8,
        /// Payload as hexadecimal digits, 1…120 bytes.
        data: String,
    },
    /// A notification put, which leaves a completer notification in the queue of `vpid`.
    Notification {
        /// Source node.
        src_node: u16,
        /// Source VPID.
        src_vpid: u8,
        /// Destination VPID.
        vpid: u8,
        /// Class, [7:0] of notification word 1.
        #[serde(default)]
        class: u8,
        /// Notification word 0.
        value: u64,
    },
    /// A store by the SMFU; with a target base in the interrupt range, an interrupt.
    SmfuWrite {
        /// Source node.
        src_node: u16,
        /// Interval, whose target base counts; none: the default base.
        #[serde(default)]
        interval: Option<u8>,
        /// Global address.
        addr: u64,
        /// Bytes as hexadecimal digits, 1…4096.
        data: String,
    },
}

fn bytes(hex: &str) -> Result<Vec<u8>> {
    ensure!(
        hex.len() % 2 == 0 && hex.is_ascii(),
        "the data are not pairs of hexadecimal digits"
    );
    (0..hex.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&hex[i..i + 2], 16).context("not a hexadecimal digit"))
        .collect()
}

impl Forged {
    /// The packet as it arrives at node `to`.
    ///
    /// # Errors
    ///
    /// Fields out of range.
    pub fn packet(&self, to: NodeId) -> Result<Packet> {
        let (src, port, size, body) = match *self {
            Self::Velo {
                src_node,
                src_vpid,
                vpid,
                mtt,
                tag,
                data: ref hex,
            } => {
                let payload = bytes(hex)?;
                ensure!(
                    (1..=120).contains(&payload.len()),
                    "a VELO message has 1…120 bytes"
                );
                ensure!(mtt <= 3, "a message type tag is 0…3");
                let mut data = [0; 120];
                data[..payload.len()].copy_from_slice(&payload);
                let message = VeloMessage {
                    src_node,
                    src_vpid: src_vpid.into(),
                    protection: 0,
                    dst_vpid: vpid.into(),
                    mtt,
                    tag,
                    interrupt: true,
                    len: payload.len() as u8,
                    data,
                };
                (
                    src_node,
                    NetPort::Velo,
                    payload.len(),
                    Body::Velo(Box::new(message)),
                )
            }
            Self::Notification {
                src_node,
                src_vpid,
                vpid,
                class,
                value,
            } => {
                let message = RmaMessage {
                    origin_vpid: src_vpid,
                    peer_vpid: vpid,
                    protection: 0,
                    command: Command::NotificationPut,
                    notify: NotifySpec::from_bits(4),
                    mode: Mode {
                        irq: true,
                        ..Mode::default()
                    },
                    kind: RmaKind::Notify { class, value },
                };
                (
                    src_node,
                    NetPort::RmaCompleter,
                    16,
                    Body::Rma(Box::new(message)),
                )
            }
            Self::SmfuWrite {
                src_node,
                interval,
                addr,
                data: ref hex,
            } => {
                let data = bytes(hex)?;
                ensure!((1..=4096).contains(&data.len()), "a store has 1…4096 bytes");
                let (space, size) = (SmfuSpace::Memory(interval), data.len());
                let message = SmfuMessage::Write { space, addr, data };
                (src_node, NetPort::Smfu, size, Body::Smfu(Box::new(message)))
            }
        };
        Ok(Packet {
            src: NodeId(src),
            dst: Dest::Node(to),
            port,
            tc: 0,
            bytes: size as u32,
            body,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn velo(mtt: u8, data: &str) -> Forged {
        Forged::Velo {
            src_node: 9,
            src_vpid: 254,
            vpid: 254,
            mtt,
            tag: 0,
            data: data.into(),
        }
    }

    #[test]
    fn a_message_carries_the_given_bytes() {
        let packet = velo(1, "0a0b0c").packet(NodeId(1)).expect("valid");
        assert_eq!(packet.src, NodeId(9));
        match packet.body {
            Body::Velo(m) => assert_eq!(&m.data[..usize::from(m.len)], [10, 11, 12]),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_store_is_made_as_told() {
        let json = r#"{"kind":"smfu-write","src_node":9,"interval":3,"addr":64,"data":"ff00"}"#;
        let forged: Forged = serde_json::from_str(json).expect("valid");
        let packet = forged.packet(NodeId(1)).expect("valid");
        let want = SmfuMessage::Write {
            space: SmfuSpace::Memory(Some(3)),
            addr: 64,
            data: vec![0xFF, 0],
        };
        assert_eq!(packet.body, Body::Smfu(Box::new(want)));
        assert_eq!((packet.port, packet.bytes), (NetPort::Smfu, 2));
    }

    #[test]
    fn fields_out_of_range_are_refused() {
        for bad in [
            velo(4, "00"),
            velo(0, ""),
            velo(0, "0"),
            velo(0, "xy"),
            velo(0, &"00".repeat(121)),
        ] {
            assert!(bad.packet(NodeId(1)).is_err(), "{bad:?}");
        }
    }
}
