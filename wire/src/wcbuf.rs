// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Requester write-combining buffers: state word, credit accounting and replay after a retry (HW §8).
//!
//! Software numbers the packets of a VPID modulo 256 and keeps a copy of each until it is committed.
//! [`Credits`] counts them; [`Replay`] is the five-step repair after the hardware dropped packets. Both do
//! no I/O: the caller reads and writes the state register ([`crate::regs::wcbuf::state`]) and pushes packets.

use core::fmt;

/// Packets that may be outstanding: one less than the 256 numbers, so that full and empty differ.
pub const MAX_OUTSTANDING: u8 = 255;
/// Entries of the copy buffer that replay needs.
pub const COPIES: usize = 256;
/// Mask that opening a VPID applies to the state: clears everything but `[55:24]` (HW §3.3).
pub const OPEN_MASK: u64 = 0x00FF_FFFF_FF00_0000;

/// Offset in a requester page of the store that marks a fence. MODEL: only an emulator that asks for it
/// ([`crate::regs::info::Driver::wants_marks`]) may get one; a descriptor never reaches so far.
pub const MARK: u16 = 0xFF8;

bits! {
    /// State word of a VPID's write-combining buffer. Bits outside the fields are unknown and kept.
    pub struct State {
        /// Packets accepted, modulo 256.
        committed_count / with_committed_count: u8 [7:0];
        /// A packet could not be buffered; it and all later ones were dropped.
        retry / with_retry: bool [32:32];
        /// Assembly toggle.
        assembly / with_assembly: bool [33:33];
        /// Stream-out toggle.
        streamout / with_streamout: bool [34:34];
        /// Packets dropped since `retry` was set.
        retry_count / with_retry_count: u8 [63:56];
    }
}

impl State {
    /// True when nothing is in flight between assembly and stream-out.
    pub const fn is_idle(self) -> bool {
        self.assembly() == self.streamout()
    }

    /// True when packets were dropped and must be sent again.
    pub const fn needs_replay(self) -> bool {
        self.retry() && self.retry_count() != 0
    }

    /// The value that ends the retry state: `retry` and `retry_count` cleared, the rest kept.
    #[must_use]
    pub const fn cleared(self) -> Self {
        self.with_retry(false).with_retry_count(0)
    }

    /// The value that opening a VPID writes back.
    #[must_use]
    pub const fn opened(self) -> Self {
        Self(self.0 & OPEN_MASK)
    }

    /// The value with which a port starts, whatever was left behind: as [`State::opened`], and out of the retry state with
    /// nothing in flight. Toggles that were read while a packet was in flight and written back would differ for ever, and
    /// the next repair would wait for them in vain. All ones are no state, and what they would set is unknown: as after 0.
    #[must_use]
    pub const fn fresh(self) -> Self {
        if self.is_all_ones() {
            return Self(0);
        }
        self.opened()
            .with_retry(false)
            .with_assembly(self.streamout())
    }

    /// True for the all-ones value that reads of a vanished device return.
    pub const fn is_all_ones(self) -> bool {
        self.0 == u64::MAX
    }
}

/// What a state word says about the packets sent so far.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// Usable; carries the number of packets not yet committed (0…254).
    Ok {
        /// Packets not yet committed.
        outstanding: u8,
    },
    /// 255 packets are outstanding: nothing may be sent.
    Full,
    /// Packets were dropped: run [`Replay`], send nothing else on this VPID meanwhile.
    Retry {
        /// Packets dropped when the state was read.
        dropped: u8,
    },
    /// All ones: the device is gone, or did not answer this once. Says nothing about the packets.
    Unread,
    /// The count went backwards or beyond what was sent; the VPID cannot be used any more.
    Desync {
        /// Count that the hardware shows.
        committed: u8,
        /// Last count seen before.
        known: u8,
        /// Number of the next packet.
        pwp: u8,
    },
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Ok { outstanding } => write!(f, "ok, {outstanding} outstanding"),
            Verdict::Full => f.write_str("full"),
            Verdict::Retry { dropped } => write!(f, "retry, {dropped} dropped"),
            Verdict::Unread => f.write_str("all ones"),
            Verdict::Desync {
                committed,
                known,
                pwp,
            } => {
                write!(f, "committed count {committed} is outside {known}…{pwp}")
            }
        }
    }
}

/// Packet numbers of one VPID in one unit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Credits {
    pwp: u8,
    committed: u8,
}

impl Credits {
    /// Start values, valid after the state register was written with [`State::opened`].
    pub const fn new() -> Self {
        Self {
            pwp: 0,
            committed: 0,
        }
    }

    /// Number of the next packet: index of its copy.
    pub const fn pwp(&self) -> u8 {
        self.pwp
    }

    /// Last known committed count.
    pub const fn committed(&self) -> u8 {
        self.committed
    }

    /// Packets that may be unfinished, by the last state seen.
    pub const fn outstanding(&self) -> u8 {
        self.pwp.wrapping_sub(self.committed)
    }

    /// Packets that may be sent without reading the state register, 0…255.
    pub const fn room(&self) -> u8 {
        MAX_OUTSTANDING - self.outstanding()
    }

    /// Takes the number of a packet about to be sent: store the copy at this index, then push the packet.
    /// `None` when there is no room.
    #[must_use]
    pub fn take(&mut self) -> Option<u8> {
        if self.room() == 0 {
            return None;
        }
        let index = self.pwp;
        self.pwp = self.pwp.wrapping_add(1);
        Some(index)
    }

    /// Takes in a state word that was read after the last packet was pushed.
    pub fn on_state(&mut self, state: State) -> Verdict {
        if state.is_all_ones() {
            return Verdict::Unread;
        }
        let committed = state.committed_count();
        if committed.wrapping_sub(self.committed) > self.outstanding() {
            return Verdict::Desync {
                committed,
                known: self.committed,
                pwp: self.pwp,
            };
        }
        self.committed = committed;
        if state.needs_replay() {
            Verdict::Retry {
                dropped: state.retry_count(),
            }
        } else if self.room() == 0 {
            Verdict::Full
        } else {
            Verdict::Ok {
                outstanding: self.outstanding(),
            }
        }
    }
}

/// What the caller of [`Replay`] reports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// The state register was read.
    State(State),
    /// The requested write of the state register was done.
    Written,
    /// The requested packet was pushed and fenced.
    Sent,
}

/// What the caller of [`Replay`] must do next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Read the state register, then report [`Event::State`]. The caller paces these reads and gives up
    /// when its deadline passes, or the device is gone: all ones are read again.
    ReadState,
    /// Write this value to the state register, then report [`Event::Written`].
    WriteState(State),
    /// Push the copy with this number followed by a store fence, then report [`Event::Sent`].
    Send(u8),
    /// Done: all packets are committed.
    Done,
    /// Given up; the machine stays in this state.
    Failed(Failure),
}

/// Why a replay failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Failure {
    /// The committed count makes no sense.
    Desync {
        /// Count that the hardware shows.
        committed: u8,
        /// Last count seen before.
        known: u8,
        /// Number of the next packet.
        pwp: u8,
    },
    /// The reported event does not answer the last action.
    Protocol,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Desync {
                committed,
                known,
                pwp,
            } => {
                write!(f, "committed count {committed} is outside {known}…{pwp}")
            }
            Failure::Protocol => f.write_str("replay machine driven out of order"),
        }
    }
}

/// Steps of HW §8.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Step {
    /// 1: wait until assembly = streamout.
    WaitIdle,
    /// 2: wait until all packets not committed are counted as dropped.
    WaitDropped,
    /// 3: the state is being written with the retry fields cleared.
    Clearing,
    /// 3: wait until retry_count reads 0.
    WaitCleared,
    /// 4: packets `next`…pwp−1 are being sent.
    Sending { next: u8 },
    /// 5: wait until everything is committed.
    WaitOk,
    /// End.
    Done,
    /// End.
    Failed(Failure),
}

/// Repair after a retry, HW §8 steps 1–5, as a state machine without I/O.
///
/// ```
/// use wire::wcbuf::{Action, Credits, Event, Replay, State};
/// let mut credits = Credits::new();
/// let _packet = credits.take();
/// let mut replay = Replay::new();
/// let mut state = State(0).with_retry(true).with_retry_count(1);
/// let mut action = replay.start();
/// loop {
///     let event = match action {
///         Action::ReadState => Event::State(state),
///         Action::WriteState(value) => { state = value; Event::Written }
///         Action::Send(_) => { state = state.with_committed_count(1); Event::Sent }
///         Action::Done => break,
///         Action::Failed(reason) => panic!("{reason}"),
///     };
///     action = replay.step(&mut credits, event);
/// }
/// assert_eq!(credits.outstanding(), 0);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Replay {
    step: Step,
    resent: u32,
    rounds: u32,
}

impl Default for Replay {
    fn default() -> Self {
        Self::new()
    }
}

impl Replay {
    /// A machine at step 1.
    pub const fn new() -> Self {
        Self {
            step: Step::WaitIdle,
            resent: 0,
            rounds: 1,
        }
    }

    /// First action.
    pub const fn start(&self) -> Action {
        self.action()
    }

    /// Packets sent again so far.
    pub const fn resent(&self) -> u32 {
        self.resent
    }

    /// Passes through steps 1–5 so far: 1, more if the hardware dropped packets during the replay.
    pub const fn rounds(&self) -> u32 {
        self.rounds
    }

    const fn action(&self) -> Action {
        match self.step {
            Step::WaitIdle
            | Step::WaitDropped
            | Step::Clearing
            | Step::WaitCleared
            | Step::WaitOk => Action::ReadState,
            Step::Sending { next } => Action::Send(next),
            Step::Done => Action::Done,
            Step::Failed(failure) => Action::Failed(failure),
        }
    }

    /// Next action after `event`. `credits` must be those of the VPID; nobody else may change them meanwhile.
    pub fn step(&mut self, credits: &mut Credits, event: Event) -> Action {
        match (self.step, event) {
            (Step::Done | Step::Failed(_), _) => {}
            (Step::Clearing, Event::Written) => self.step = Step::WaitCleared,
            (Step::Sending { next }, Event::Sent) => {
                self.resent = self.resent.saturating_add(1);
                let next = next.wrapping_add(1);
                self.step = if next == credits.pwp() {
                    Step::WaitOk
                } else {
                    Step::Sending { next }
                };
            }
            (
                Step::WaitIdle | Step::WaitDropped | Step::WaitCleared | Step::WaitOk,
                Event::State(state),
            ) => match credits.on_state(state) {
                // Whether the device is gone is for the caller to find out: its packets are as they were.
                Verdict::Unread => {}
                Verdict::Desync {
                    committed,
                    known,
                    pwp,
                } => {
                    self.step = Step::Failed(Failure::Desync {
                        committed,
                        known,
                        pwp,
                    });
                }
                Verdict::Ok { .. } | Verdict::Full | Verdict::Retry { .. } => {
                    return self.on_state(credits, state);
                }
            },
            _ => self.step = Step::Failed(Failure::Protocol),
        }
        self.action()
    }

    /// Steps that wait for a state; `credits` already took it in.
    fn on_state(&mut self, credits: &Credits, state: State) -> Action {
        if self.step == Step::WaitOk && state.needs_replay() {
            // Dropped again: go round once more. The caller's deadline bounds the rounds.
            self.rounds = self.rounds.saturating_add(1);
            self.step = Step::WaitIdle;
        }
        if self.step == Step::WaitIdle && state.is_idle() {
            self.step = Step::WaitDropped;
        }
        if self.step == Step::WaitDropped && credits.outstanding() == state.retry_count() {
            self.step = Step::Clearing;
            return Action::WriteState(state.cleared());
        }
        if self.step == Step::WaitCleared {
            if state.retry_count() != 0 {
                self.step = Step::Clearing;
                return Action::WriteState(state.cleared());
            }
            self.step = if credits.outstanding() == 0 {
                Step::WaitOk
            } else {
                Step::Sending {
                    next: credits.committed(),
                }
            };
        }
        if self.step == Step::WaitOk && credits.outstanding() == 0 && !state.retry() {
            self.step = Step::Done;
        }
        self.action()
    }
}
