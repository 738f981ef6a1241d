// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Reasons for dropping received messages and frames. Their numbers are the indices of counters.

use core::fmt;

macro_rules! reasons {
    ($($(#[$m:meta])* $variant:ident = $number:literal, $name:literal;)*) => {
        /// Kind of a [`Reject`], for counters.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum Reason {
            $($(#[$m])* $variant = $number,)*
        }

        impl Reason {
            /// All reasons in numeric order.
            pub const ALL: &'static [Reason] = &[$(Reason::$variant),*];
            /// Number of reasons, which is the size of a counter array.
            pub const COUNT: usize = Self::ALL.len();

            /// Returns the short name that counters use.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Reason::$variant => $name,)*
                }
            }
        }
    };
}

reasons! {
    /// Message without bytes.
    Empty = 0, "empty";
    /// Message that is longer than 120 bytes, or whose number of bytes differs from its status
    /// word.
    MessageLength = 1, "message_length";
    /// Message from a VPID that is not the protocol's.
    SourceVpid = 2, "source_vpid";
    /// Non-final eager fragment that is not 120 bytes long.
    FragmentLength = 3, "fragment_length";
    /// Last fragment with a tag other than 0.
    LastTag = 4, "last_tag";
    /// Fragment whose tag breaks the sequence. The partial frame was discarded.
    TagBreak = 5, "tag_break";
    /// Further fragment of a frame that was discarded earlier.
    Tail = 6, "tail";
    /// Frame that exceeds the receiver's limit.
    FrameTooLong = 7, "frame_too_long";
    /// Frame that is shorter than an Ethernet header.
    Runt = 8, "runt";
    /// Announcement that is not 16 bytes long.
    AnnouncementLength = 9, "announcement_length";
    /// Announced length outside of the limits of the receiver.
    AnnouncedSize = 10, "announced_size";
    /// "Frame dropped" message that is not 8 bytes long.
    DroppedLength = 11, "dropped_length";
    /// "Frame dropped" message for an unknown buffer. Conforming peers never send this message
    /// (type 2).
    UnexpectedMtt = 12, "unexpected_mtt";
    /// Copy of a group frame that this node sent.
    OwnGroupFrame = 13, "own_group_frame";
    /// Notification with a type or command that the protocol does not produce.
    NotificationType = 14, "notification_type";
    /// Notification with error bits.
    NotificationError = 15, "notification_error";
}

impl Reason {
    /// Returns the number of the reason, which is below [`Reason::COUNT`].
    pub const fn number(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Drop reason with the offending values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reject {
    /// Kind of the reason.
    pub reason: Reason,
    /// Offending length, tag, VPID, node, address or error code, depending on the reason.
    pub got: u64,
    /// Expected value, or the limit of a size; 0 if there is no expected value.
    pub want: u64,
}

impl Reject {
    /// Returns a drop reason with the offending and the expected value.
    pub const fn new(reason: Reason, got: u64, want: u64) -> Self {
        Self { reason, got, want }
    }
}

impl From<Reject> for Reason {
    fn from(reject: Reject) -> Self {
        reject.reason
    }
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reject { got, want, .. } = *self;
        match self.reason {
            Reason::Empty => f.write_str("message without bytes"),
            Reason::MessageLength => write!(f, "message of {got} bytes, limit {want}"),
            Reason::SourceVpid => write!(f, "message from VPID {got} instead of {want}"),
            Reason::FragmentLength => write!(f, "eager fragment of {got} bytes instead of {want}"),
            Reason::LastTag => write!(f, "last fragment with tag {got} instead of {want}"),
            Reason::TagBreak => write!(
                f,
                "fragment tag {got} instead of {want}, partial frame discarded"
            ),
            Reason::Tail => write!(f, "fragment with tag {got} of a frame discarded before"),
            Reason::FrameTooLong => write!(f, "frame of {got} bytes or more, limit {want}"),
            Reason::Runt => write!(f, "frame of {got} bytes, shorter than a header of {want}"),
            Reason::AnnouncementLength => {
                write!(f, "announcement of {got} bytes instead of {want}")
            }
            Reason::AnnouncedSize => write!(f, "announced frame of {got} bytes, limit {want}"),
            Reason::DroppedLength => write!(f, "drop message of {got} bytes instead of {want}"),
            Reason::UnexpectedMtt => write!(f, "message type 2 for unknown buffer {got:#x}"),
            Reason::OwnGroupFrame => write!(f, "copy of the own group frame, node {got}"),
            Reason::NotificationType => {
                write!(f, "unexpected notification type {got}, command {want}")
            }
            Reason::NotificationError => write!(f, "notification with error bits {got:#x}"),
        }
    }
}
