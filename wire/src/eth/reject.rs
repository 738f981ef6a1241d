// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Why something received was refused: numbered, so that it can index counters, and printable.

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
            /// Number of reasons: size of a counter array.
            pub const COUNT: usize = Self::ALL.len();

            /// Short name in counter style.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Reason::$variant => $name,)*
                }
            }
        }
    };
}

reasons! {
    /// A message without bytes.
    Empty = 0, "empty";
    /// A message longer than 120 bytes, or one whose bytes do not agree with its status word.
    MessageLength = 1, "message_length";
    /// Sent from another VPID than the protocol's.
    SourceVpid = 2, "source_vpid";
    /// An eager fragment that is not the last but has no 120 bytes.
    FragmentLength = 3, "fragment_length";
    /// A last fragment with a tag other than 0.
    LastTag = 4, "last_tag";
    /// Tags not in sequence: the partial frame was discarded.
    TagBreak = 5, "tag_break";
    /// Rest of a frame that was discarded before.
    Tail = 6, "tail";
    /// A frame longer than the receiver takes.
    FrameTooLong = 7, "frame_too_long";
    /// A frame shorter than an Ethernet header.
    Runt = 8, "runt";
    /// An announcement that has no 16 bytes.
    AnnouncementLength = 9, "announcement_length";
    /// An announced length outside the frame lengths the receiver takes.
    AnnouncedSize = 10, "announced_size";
    /// A "frame dropped" message that has no 8 bytes.
    DroppedLength = 11, "dropped_length";
    /// A "frame dropped" message (type 2, which no conforming peer sends) that names no buffer of ours.
    UnexpectedMtt = 12, "unexpected_mtt";
    /// Copy of the own group frame.
    OwnGroupFrame = 13, "own_group_frame";
    /// A notification of a type or command that the protocol does not produce.
    NotificationType = 14, "notification_type";
    /// A notification with error bits.
    NotificationError = 15, "notification_error";
}

impl Reason {
    /// The number, below [`Reason::COUNT`].
    pub const fn number(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why something received was refused, with the values that show it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reject {
    /// The kind.
    pub reason: Reason,
    /// Offending value: a length, tag, VPID, node, address or error code, depending on the kind.
    pub got: u64,
    /// What was expected instead (a limit for sizes); 0 where that makes no sense.
    pub want: u64,
}

impl Reject {
    /// A reject with the offending and the expected value.
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
            Reason::MessageLength => write!(f, "message of {got} bytes, expected at most {want}"),
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
