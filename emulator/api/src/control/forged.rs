//! Packets that tests inject without a sending NIC.

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
    /// An RMA request or response. The meaning of the numbers depends on the command, as in a
    /// descriptor.
    Rma {
        /// Source node.
        src_node: u16,
        /// Source VPID.
        src_vpid: u8,
        /// Protection descriptor.
        #[serde(default)]
        protection: u16,
        /// Destination VPID; in a response the VPID of the port that appears to have sent the
        /// request.
        vpid: u8,
        /// Code of the command (HW §10.2); responses are 10, 11, 13.
        command: u8,
        /// Requested notifications, as a sum: 1 requester, 2 responder, 4 completer.
        #[serde(default)]
        notify: u8,
        /// Mode bits as in notifications: 1 RRA, 2 interrupt, 4 NLAs, ….
        #[serde(default)]
        mode: u8,
        /// Address at the receiver; value of a notification put, number of a lock.
        #[serde(default)]
        address: u64,
        /// Address for a get's answer, value of an immediate put, operands or value of a lock.
        #[serde(default)]
        second: u64,
        /// Length in bytes of gets, immediate puts and failed responses; class of a notification
        /// put.
        #[serde(default)]
        len: u32,
        /// Data of puts and get responses as hexadecimal digits, up to 4096 bytes.
        #[serde(default)]
        data: String,
        /// Error code of a failed response; 0: success.
        #[serde(default)]
        error: u8,
        /// True if more packets of the put or get response follow, so that this one does not
        /// complete it.
        #[serde(default)]
        more: bool,
    },
    /// A slot of the queue of `vpid`, with arbitrary content.
    Slot {
        /// Queue: mailbox or notification queue.
        unit: QueueUnit,
        /// VPID.
        vpid: u8,
        /// Last two quadwords of the slot: quadword before the status and status, or notification.
        words: [u64; 2],
    },
    /// A store by the SMFU. With a target base in the interrupt range it is an interrupt.
    SmfuWrite {
        /// Source node.
        src_node: u16,
        /// Interval whose target base is used; `None`: the default base.
        #[serde(default)]
        interval: Option<u8>,
        /// Global address.
        addr: u64,
        /// Bytes as hexadecimal digits, 1…4096.
        data: String,
    },
}
