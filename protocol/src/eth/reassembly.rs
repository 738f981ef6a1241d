// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Reassembly of eager frames, one state machine per source (EXT §3.2).
//!
//! VELO delivers the messages of a source in order, but messages can be lost (mailbox full, sender restarted)
//! and the protocol has no start marker: any fragment may be the first. The machine therefore
//! * takes fragments only in tag sequence and discards the partial frame when the sequence breaks,
//! * then takes the breaking fragment as start of a new frame only if its Ethernet source address is the
//!   sending node's, and otherwise drops the presumed rest of the broken frame up to its last fragment,
//! * never lets a frame grow beyond its limit.
//!
//! What no receiver can tell from tags alone: a lost *first* fragment (the rest looks like a frame; its
//! addresses are garbage), and a lost end whose place is taken by fragments that carry just the missing tags,
//! in the simplest case a lost last fragment followed by a frame of one message. A receiver should therefore
//! not skip checksums of frames that came in several fragments. (Taking any fragment with the node's address
//! in the right place for a start would lose frames that merely carry such bytes as data, again and again.)

use wire::{
    eth::{source, MacPrefix, Reason, Reject, FRAGMENT, HEADER_LEN, MAX_FRAME},
    ids::NodeId,
};

/// Where the bytes of a message go in the frame buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CopyTo {
    /// Byte offset; 0 starts a new frame.
    pub offset: u32,
    /// Bytes: the whole message.
    pub len: u16,
}

/// Outcome of one message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Progress {
    /// Store the bytes; more fragments follow.
    NeedMore {
        /// Where to store them.
        copy: CopyTo,
        /// Set if a partial frame had to be given up first: count it, reuse its buffer.
        discarded: Option<Reject>,
    },
    /// Store the bytes; the frame is complete.
    Complete {
        /// Where to store them.
        copy: CopyTo,
        /// Frame length in bytes, [`HEADER_LEN`]…limit.
        len: u32,
        /// As above.
        discarded: Option<Reject>,
    },
    /// Drop the bytes and any partial frame of this source.
    Reject(Reject),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum State {
    /// Between frames.
    Idle,
    /// `len` bytes stored; the next fragment must have this tag.
    Partial { len: u32, next_tag: u8 },
    /// A frame was given up; its remaining fragments are dropped.
    Tail,
}

/// Reassembly state of one source. Small (12 bytes); buffers belong to the caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reassembler {
    state: State,
    max_frame: u32,
}

impl Reassembler {
    /// A machine between frames that takes frames of at most `max_frame` bytes, itself limited to
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

    /// Bytes of the partial frame, `None` between frames.
    pub const fn partial(&self) -> Option<u32> {
        match self.state {
            State::Partial { len, .. } => Some(len),
            State::Idle | State::Tail => None,
        }
    }

    /// Gives up the partial frame, for example without memory for it: its remaining fragments are dropped.
    pub fn abandon(&mut self) {
        if let State::Partial { .. } = self.state {
            self.state = State::Tail;
        }
    }

    /// Forgets everything, for example because the source was restarted.
    pub fn reset(&mut self) {
        self.state = State::Idle;
    }

    /// Takes one eager message ([`wire::eth::Message::Eager`]) of the source on `node`.
    pub fn push(
        &mut self,
        prefix: MacPrefix,
        node: NodeId,
        tag: u8,
        last: bool,
        data: &[u8],
    ) -> Progress {
        // A malformed message breaks the frame it belongs to, but says nothing about where the frame ends.
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

/// Length of the longest frame whose first fragment (not the last one) has this tag, among frames of at most
/// 257 fragments: a good first buffer size. Longer frames share the tags and need up to [`MAX_FRAME`].
pub const fn first_buffer_len(tag: u8) -> u32 {
    let todo = if tag == 0 { 256 } else { tag as u32 };
    (todo + 1) * FRAGMENT as u32
}
