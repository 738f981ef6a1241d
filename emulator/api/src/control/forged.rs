//! Packets that no NIC sent.

use crate::nic::QueueUnit;
use serde::{Deserialize, Serialize};

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
        /// Stamped protection descriptor.
        #[serde(default)]
        protection: u16,
        /// Destination VPID, 10 bits.
        vpid: u16,
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
    /// An RMA request or response. What the numbers mean depends on the command, as in its descriptor.
    Rma {
        /// Source node.
        src_node: u16,
        /// Source VPID.
        src_vpid: u8,
        /// Protection descriptor.
        #[serde(default)]
        protection: u16,
        /// Destination VPID; of a response that of the port which is said to have asked.
        vpid: u8,
        /// Code of the command (HW §10.2); responses are 10, 11, 13.
        command: u8,
        /// Notifications asked for: 1 requester, 2 responder, 4 completer.
        #[serde(default)]
        notify: u8,
        /// Mode bits as in notifications: 1 RRA, 2 interrupt, 4 NLAs, ….
        #[serde(default)]
        mode: u8,
        /// Address at the receiver; value of a notification put, number of a lock.
        #[serde(default)]
        address: u64,
        /// Address of a get's answer, value of an immediate put, operands or value of a lock.
        #[serde(default)]
        second: u64,
        /// Bytes of gets, immediate puts and responses of failure; class of a notification put.
        #[serde(default)]
        len: u32,
        /// Bytes of puts and get responses as hexadecimal digits, at most 4096.
        #[serde(default)]
        data: String,
        /// Makes a response one of failure.
        #[serde(default)]
        error: u8,
        /// Of a put or get response: more packets of the transfer follow, so this one does not complete it.
        #[serde(default)]
        more: bool,
    },
    /// A slot of the queue of `vpid`, whatever its words say.
    Slot {
        /// Mailbox or notification queue.
        unit: QueueUnit,
        /// VPID.
        vpid: u8,
        /// The last words of the slot: quadword before the status and status, or notification.
        words: [u64; 2],
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
