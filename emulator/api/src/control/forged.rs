//! Packets that tests inject without a sending NIC.

use crate::nic::QueueUnit;
use serde::{Deserialize, Serialize};

/// A packet that a test forges.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Forged {
    /// A VELO message.
    Velo {
        /// Source node ID in the packet.
        src_node: u16,
        /// Source VPID in the packet.
        src_vpid: u8,
        /// Protection descriptor in the packet.
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
    /// A notification PUT, which leaves a completer notification in the queue of `vpid`.
    Notification {
        /// Source node ID in the packet.
        src_node: u16,
        /// Source VPID in the packet.
        src_vpid: u8,
        /// Destination VPID.
        vpid: u8,
        /// Class of the notification: bits [7:0] of notification word 1.
        #[serde(default)]
        class: u8,
        /// Value of the notification: notification word 0.
        value: u64,
    },
    /// An RMA request or response. As in a descriptor, the command determines the meaning of the
    /// numbers.
    Rma {
        /// Source node ID in the packet.
        src_node: u16,
        /// Source VPID in the packet.
        src_vpid: u8,
        /// Protection descriptor in the packet.
        #[serde(default)]
        protection: u16,
        /// Destination VPID. In a response, the VPID of the port that appears to have sent the
        /// request.
        vpid: u8,
        /// Code of the command (HW §10.2). Codes of responses are 10, 11 and 13.
        command: u8,
        /// Requested notifications, as the sum of 1 (requester), 2 (responder) and 4 (completer).
        #[serde(default)]
        notify: u8,
        /// Mode bits as in notifications: 1 RRA, 2 interrupt, 4 NLAs, and so on.
        #[serde(default)]
        mode: u8,
        /// Address at the receiver. For a notification PUT, its value; for a lock, the number of
        /// the lock.
        #[serde(default)]
        address: u64,
        /// Address to which a GET's answer is written. For an immediate PUT, its value; for a lock,
        /// its operands or value.
        #[serde(default)]
        second: u64,
        /// Length in bytes of GETs, immediate PUTs and failed responses. For a notification PUT,
        /// its class.
        #[serde(default)]
        len: u32,
        /// Data of PUTs and GET responses as hexadecimal digits, up to 4096 bytes.
        #[serde(default)]
        data: String,
        /// Error code of a failed response; 0 for success.
        #[serde(default)]
        error: u8,
        /// True if more packets of the PUT or GET response follow, so that this packet does not
        /// complete it.
        #[serde(default)]
        more: bool,
    },
    /// Arbitrary content of a slot in the queue of `vpid`.
    Slot {
        /// Unit of the queue, which makes it a mailbox or a notification queue.
        unit: QueueUnit,
        /// VPID of the queue.
        vpid: u8,
        /// Last two quadwords of the slot. In a mailbox, the second quadword is the status. In a
        /// notification queue, both are the notification.
        words: [u64; 2],
    },
    /// A store by the SMFU. If the target base is in the interrupt range, the store raises an
    /// interrupt.
    SmfuWrite {
        /// Source node ID in the packet.
        src_node: u16,
        /// Number of the interval whose target base is used; `None` selects the default base.
        #[serde(default)]
        interval: Option<u8>,
        /// Global address of the store.
        addr: u64,
        /// Stored bytes as hexadecimal digits, 1…4096 bytes.
        data: String,
    },
}
