// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Write-combining buffers of requester pages (HW §8): state word, credits, and replay of dropped
//! packets.
//!
//! Software numbers the packets of a VPID modulo 256 and keeps a copy of each packet until the NIC
//! has committed the packet. [`Credits`] counts the packets. [`Replay`] performs the five repair
//! steps after the NIC dropped packets. Both types do no I/O. The caller accesses the state
//! register ([`crate::regs::wcbuf::state`]) and pushes packets.

use core::fmt;

/// Maximum number of outstanding packets. It is one less than the 256 packet numbers, so that a
/// full and an empty buffer differ.
pub const MAX_OUTSTANDING: u8 = 255;
/// Number of packet copies that are kept for replay.
pub const COPIES: usize = 256;
/// Mask that software applies to the state when it opens a VPID. Only bits `[55:24]` are kept (HW
/// §3.3).
pub const OPEN_MASK: u64 = 0x00FF_FFFF_FF00_0000;

/// Offset in a requester page of a store that marks a fence. Descriptors never reach this offset.
/// MODEL: only an emulator that requests it ([`crate::regs::info::Driver::wants_marks`]) may
/// receive this store.
pub const MARK: u16 = 0xFF8;

bits! {
    /// State word of a VPID's write-combining buffer. Software must not change bits outside of the
    /// fields, because their meaning is unknown.
    pub struct State {
        /// Number of accepted packets, modulo 256.
        committed_count / with_committed_count: u8 [7:0];
        /// The NIC could not buffer a packet. It dropped this packet and all later ones.
        retry / with_retry: bool [32:32];
        /// Toggle of the packet assembly. It equals `streamout` if no packet is in flight.
        assembly / with_assembly: bool [33:33];
        /// Toggle of the stream-out stage.
        streamout / with_streamout: bool [34:34];
        /// Number of packets dropped since `retry` was set.
        retry_count / with_retry_count: u8 [63:56];
    }
}

impl State {
    /// Returns whether no packet is between the assembly and the stream-out stage.
    pub const fn is_idle(self) -> bool {
        self.assembly() == self.streamout()
    }

    /// Returns whether packets were dropped and must be sent again.
    pub const fn needs_replay(self) -> bool {
        self.retry() && self.retry_count() != 0
    }

    /// Returns the value that ends the retry state. It has `retry` and `retry_count` cleared, and
    /// all other bits unchanged.
    #[must_use]
    pub const fn cleared(self) -> Self {
        self.with_retry(false).with_retry_count(0)
    }

    /// Returns the value to write back when a VPID is opened.
    #[must_use]
    pub const fn opened(self) -> Self {
        Self(self.0 & OPEN_MASK)
    }

    /// Returns the state with which a port starts, regardless of the previous owner's packets. Like
    /// [`State::opened`], it keeps the bits of [`OPEN_MASK`]. In addition, it ends the retry state
    /// and makes the toggles equal.
    ///
    /// A write of toggles that were read while a packet was in flight would make them differ
    /// permanently. The next replay would then wait for equal toggles until its deadline. A state
    /// of all ones carries no information, so the result is the same as for 0.
    #[must_use]
    pub const fn fresh(self) -> Self {
        if self.is_all_ones() {
            return Self(0);
        }
        self.opened()
            .with_retry(false)
            .with_assembly(self.streamout())
    }

    /// Returns whether the state is all ones. Reads of an absent device return this value.
    pub const fn is_all_ones(self) -> bool {
        self.0 == u64::MAX
    }
}

/// Result of comparing a state word with the packets sent so far.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// The state is usable.
    Ok {
        /// Number of packets that are not yet committed (0…254).
        outstanding: u8,
    },
    /// 255 packets are outstanding, so no packet may be sent.
    Full,
    /// Packets were dropped. The caller must run [`Replay`] and must not send other packets on this
    /// VPID until it has finished.
    Retry {
        /// Number of packets dropped when the state was read.
        dropped: u8,
    },
    /// The state is all ones, because the device is absent or did not answer the read. It carries
    /// no information about the packets.
    Unread,
    /// The committed count went backwards or exceeds the number of packets sent. The VPID is
    /// unusable.
    Desync {
        /// Count that the NIC reports.
        committed: u8,
        /// Count of the previous state word.
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
    /// Returns the start values. They are valid after [`State::opened`] was written to the state
    /// register.
    pub const fn new() -> Self {
        Self {
            pwp: 0,
            committed: 0,
        }
    }

    /// Returns the number of the next packet, which is the index of its copy.
    pub const fn pwp(&self) -> u8 {
        self.pwp
    }

    /// Returns the last known committed count.
    pub const fn committed(&self) -> u8 {
        self.committed
    }

    /// Returns the number of packets that the last state word did not report as committed.
    pub const fn outstanding(&self) -> u8 {
        self.pwp.wrapping_sub(self.committed)
    }

    /// Returns the number of packets that may be sent before the state register is read again,
    /// 0…255.
    pub const fn room(&self) -> u8 {
        MAX_OUTSTANDING - self.outstanding()
    }

    /// Allocates the number of the next packet; `None` without credit. The caller stores the copy
    /// of the packet at this index and then pushes the packet.
    #[must_use]
    pub fn take(&mut self) -> Option<u8> {
        if self.room() == 0 {
            return None;
        }
        let index = self.pwp;
        self.pwp = self.pwp.wrapping_add(1);
        Some(index)
    }

    /// Processes a state word that was read after the last packet was pushed.
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

/// Report from the caller of [`Replay`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// The state register was read.
    State(State),
    /// The requested write of the state register is complete.
    Written,
    /// The requested packet was pushed and fenced.
    Sent,
}

/// Action that [`Replay`] requests from its caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// The caller reads the state register, then reports [`Event::State`]. The caller also limits
    /// the rate of these reads, and gives up at its deadline or if the device is absent. After a
    /// state of all ones, another read is requested.
    ReadState,
    /// The caller writes this value to the state register, then reports [`Event::Written`].
    WriteState(State),
    /// The caller pushes the copy with this number and executes a store fence, then reports
    /// [`Event::Sent`].
    Send(u8),
    /// All packets are committed.
    Done,
    /// The replay has failed. All further events lead to this action again.
    Failed(Failure),
}

/// Reason why a replay failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Failure {
    /// The committed count is outside of the possible range.
    Desync {
        /// Count that the NIC reports.
        committed: u8,
        /// Count of the previous state word.
        known: u8,
        /// Number of the next packet.
        pwp: u8,
    },
    /// The reported event does not belong to the last action.
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

/// Step of a replay (HW §8).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Step {
    /// Step 1: waits until the toggles `assembly` and `streamout` are equal.
    WaitIdle,
    /// Step 2: waits until all packets that are not committed are counted as dropped.
    WaitDropped,
    /// Step 3: waits until the state with cleared retry fields is written.
    Clearing,
    /// Step 3: waits until `retry_count` reads 0.
    WaitCleared,
    /// Step 4: packets `next`…pwp−1 are being sent.
    Sending { next: u8 },
    /// Step 5: waits until all packets are committed.
    WaitOk,
    /// The replay was successful.
    Done,
    /// The replay has failed.
    Failed(Failure),
}

/// State machine without I/O for the repair after a retry (HW §8, steps 1–5).
///
/// ```
/// use wire::wcbuf::{Action, Credits, Event, Replay, State};
///
/// let mut credits = Credits::new();
/// let _packet = credits.take();
/// let mut replay = Replay::new();
/// let mut state = State(0).with_retry(true).with_retry_count(1);
/// let mut action = replay.start();
///
/// loop {
///     let event = match action {
///         Action::ReadState => Event::State(state),
///         Action::WriteState(value) => { state = value; Event::Written }
///         Action::Send(_) => { state = state.with_committed_count(1); Event::Sent }
///
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
    /// Returns a state machine at step 1.
    pub const fn new() -> Self {
        Self {
            step: Step::WaitIdle,
            resent: 0,
            rounds: 1,
        }
    }

    /// Returns the first action.
    pub const fn start(&self) -> Action {
        self.action()
    }

    /// Returns the number of packets sent again so far.
    pub const fn resent(&self) -> u32 {
        self.resent
    }

    /// Returns the number of passes through steps 1–5 so far. It exceeds 1 if the NIC dropped
    /// packets during the replay.
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

    /// Returns the next action after `event`. `credits` must belong to the same VPID. Only this
    /// function may change them during the replay.
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
                // The caller must check whether the device is absent. The state of the packets is
                // unknown until another read succeeds.
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

    /// Performs the steps that wait for a state. `credits` has already processed the state.
    fn on_state(&mut self, credits: &Credits, state: State) -> Action {
        if self.step == Step::WaitOk && state.needs_replay() {
            // Restarts at step 1, because packets were dropped again. The caller's deadline limits
            // the number of passes.
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
