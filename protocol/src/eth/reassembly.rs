// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Reassembly of eager frames, one state machine per source (EXT §3.2).
//!
//! VELO delivers the messages of a source in order, but messages can be lost (mailbox full, sender
//! restarted). Fragments have no start marker, so any fragment may be the first of a frame. The
//! state machine follows these rules:
//!
//! * It accepts fragments only in tag sequence, and discards the partial frame if the sequence
//!   breaks.
//! * It accepts the fragment that breaks the sequence as the start of a new frame only if the
//!   Ethernet source address in it is the address of the sending node. If the address differs, it
//!   drops all remaining fragments of the broken frame.
//! * It rejects a frame that exceeds the length limit.
//!
//! Tags do not reveal two kinds of loss. If the *first* fragment is lost, the remainder looks like
//! a frame with invalid addresses. If the end is lost and the next fragments have exactly the
//! missing tags, two frames are merged. The simplest case is a lost last fragment, followed by a
//! frame of one message. Receivers must therefore verify checksums of frames that arrived in
//! several fragments. A fragment with the node's address starts a frame only after a break, because
//! a frame may contain the same bytes as data.

use wire::{
    eth::{source, MacPrefix, Reason, Reject, FRAGMENT, HEADER_LEN, MAX_FRAME},
    ids::NodeId,
};

/// Position of a message's bytes in the frame buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CopyTo {
    /// Byte offset in the frame. An offset of 0 starts a new frame.
    pub offset: u32,
    /// Number of bytes, which is the length of the message.
    pub len: u16,
}

/// Result of processing one message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Progress {
    /// The caller must store the bytes. More fragments follow.
    NeedMore {
        /// Target position of the bytes.
        copy: CopyTo,
        /// Set if a partial frame was discarded first. The caller counts it and reuses its buffer.
        discarded: Option<Reject>,
    },
    /// The caller must store the bytes. The frame is then complete.
    Complete {
        /// Target position of the bytes.
        copy: CopyTo,
        /// Frame length in bytes, [`HEADER_LEN`]…limit.
        len: u32,
        /// Set if a partial frame was discarded first.
        discarded: Option<Reject>,
    },
    /// The caller must drop the bytes and any partial frame of this source.
    Reject(Reject),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum State {
    /// No frame has begun.
    Idle,
    /// `len` bytes are stored. The next fragment must have the tag `next_tag`.
    Partial { len: u32, next_tag: u8 },
    /// A frame was discarded, and its remaining fragments are dropped.
    Tail,
}

/// Reassembly state of one source, 12 bytes. Buffers belong to the caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reassembler {
    state: State,
    max_frame: u32,
}

impl Reassembler {
    /// Returns an idle state machine that accepts frames of up to `max_frame` bytes, limited to
    /// [`MAX_FRAME`].
    pub const fn new(max_frame: u32) -> Self {
        let max_frame = if max_frame > MAX_FRAME {
            MAX_FRAME
        } else {
            max_frame
        };
        Self {
            state: State::Idle,
            max_frame,
        }
    }

    /// Gives up the partial frame, for example because of a memory shortage. Its remaining
    /// fragments are dropped.
    pub fn abandon(&mut self) {
        if let State::Partial { .. } = self.state {
            self.state = State::Tail;
        }
    }

    /// Returns to the initial state, for example because the source was restarted.
    pub fn reset(&mut self) {
        self.state = State::Idle;
    }

    /// Processes one eager message ([`wire::eth::Message::Eager`]) of the source on `node`.
    pub fn push(
        &mut self,
        prefix: MacPrefix,
        node: NodeId,
        tag: u8,
        last: bool,
        data: &[u8],
    ) -> Progress {
        // A malformed message makes its frame invalid, but does not mark the end of that frame.
        let malformed = if data.is_empty() {
            Some(Reject::new(Reason::Empty, 0, FRAGMENT as u64))
        } else if data.len() > FRAGMENT as usize {
            Some(Reject::new(
                Reason::MessageLength,
                data.len() as u64,
                FRAGMENT as u64,
            ))
        } else if !last && data.len() != FRAGMENT as usize {
            Some(Reject::new(
                Reason::FragmentLength,
                data.len() as u64,
                FRAGMENT as u64,
            ))
        } else if last && tag != 0 {
            Some(Reject::new(Reason::LastTag, tag as u64, 0))
        } else {
            None
        };
        if let Some(reject) = malformed {
            self.state = match (self.state, last) {
                (_, true) => State::Idle,
                (State::Idle, false) if data.is_empty() => State::Idle,
                (_, false) => State::Tail,
            };
            return Progress::Reject(reject);
        }

        let is_start = || source(data).is_some_and(|mac| mac == prefix.mac(node));
        match self.state {
            State::Idle => self.store(0, None, tag, last, data.len() as u16),
            State::Partial { len, next_tag } if tag == next_tag => {
                self.store(len, None, tag, last, data.len() as u16)
            }
            State::Partial { next_tag, .. } => {
                let reject = Reject::new(Reason::TagBreak, tag as u64, next_tag as u64);
                if is_start() {
                    return self.store(0, Some(reject), tag, last, data.len() as u16);
                }
                self.state = if last { State::Idle } else { State::Tail };
                Progress::Reject(reject)
            }
            State::Tail if is_start() => self.store(0, None, tag, last, data.len() as u16),
            State::Tail => {
                if last {
                    self.state = State::Idle;
                }
                Progress::Reject(Reject::new(Reason::Tail, tag as u64, 0))
            }
        }
    }

    /// Appends `count` bytes at `offset` to the frame.
    fn store(
        &mut self,
        offset: u32,
        discarded: Option<Reject>,
        tag: u8,
        last: bool,
        count: u16,
    ) -> Progress {
        let len = offset + count as u32;
        let copy = CopyTo { offset, len: count };
        if len > self.max_frame {
            self.state = if last { State::Idle } else { State::Tail };
            return Progress::Reject(Reject::new(
                Reason::FrameTooLong,
                len as u64,
                self.max_frame as u64,
            ));
        }
        if !last {
            self.state = State::Partial {
                len,
                next_tag: tag.wrapping_sub(1),
            };
            return Progress::NeedMore { copy, discarded };
        }
        self.state = State::Idle;
        if len < HEADER_LEN {
            return Progress::Reject(Reject::new(Reason::Runt, len as u64, HEADER_LEN as u64));
        }
        Progress::Complete {
            copy,
            len,
            discarded,
        }
    }
}

/// Returns a suitable size in bytes for the first buffer of a frame whose first fragment has this
/// tag and is not the last fragment. The size is sufficient for frames of up to 257 fragments.
/// Longer frames use the same tags and need up to [`MAX_FRAME`].
pub const fn first_buffer_len(tag: u8) -> u32 {
    let todo = if tag == 0 { 256 } else { tag as u32 };
    (todo + 1) * FRAGMENT as u32
}
