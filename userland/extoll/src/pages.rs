// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Sending: requester pages, credits and replay (HW §8), the same for VELO and RMA.

use crate::error::{Error, Result};
use crate::raw::{flush, Mapping, PAGE};
use crate::{Counters, Wait};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::wcbuf::{Action, Credits, Event, Failure, Replay, State, Verdict, COPIES};

/// Longest repair; the kernel driver gives up after the same time.
const REPAIR: Duration = Duration::from_secs(1);

/// What was sent under a packet number, kept until it is committed. `N` quadwords at most.
#[derive(Clone, Copy)]
struct Packet<const N: usize> {
    words: [u64; N],
    len: u8,
    page: u8,
}

/// The sending half of a port.
pub(crate) struct Sender<const N: usize> {
    requester: Arc<Mapping>,
    state: Arc<Mapping>,
    state_at: usize,
    credits: Credits,
    copies: Box<[Packet<N>; COPIES]>,
    broken: Option<&'static str>,
    pub(crate) counters: Counters,
}

impl<const N: usize> Sender<N> {
    /// Clears the state as opening a VPID does; `state_at` is the offset of the state word.
    pub fn new(requester: Arc<Mapping>, state: Arc<Mapping>, state_at: usize) -> Result<Self> {
        let opened = State(state.load(state_at));
        if opened.is_all_ones() {
            return Err(Error::Gone);
        }
        state.store(state_at, opened.fresh().raw());
        let empty = Packet {
            words: [0; N],
            len: 0,
            page: 0,
        };
        Ok(Self {
            requester,
            state,
            state_at,
            credits: Credits::new(),
            copies: Box::new([empty; COPIES]),
            broken: None,
            counters: Counters::default(),
        })
    }

    /// Writes a packet to requester page `page`, or fails with [`Error::Full`] and leaves nothing behind.
    pub fn post(&mut self, page: u8, words: &[u64]) -> Result<()> {
        if self.credits.room() == 0 {
            self.refresh()?;
        }
        if let Some(why) = self.broken {
            return Err(Error::Broken(why));
        }
        let index = self.credits.take().ok_or(Error::Full)?;
        let copy = &mut self.copies[usize::from(index)];
        copy.words[..words.len()].copy_from_slice(words);
        copy.len = words.len() as u8;
        copy.page = page;
        self.push(index);
        self.counters.posted += 1;
        Ok(())
    }

    /// [`Sender::post`] that waits for room.
    pub fn post_wait(&mut self, page: u8, words: &[u64], wait: Wait) -> Result<()> {
        loop {
            match self.post(page, words) {
                Err(Error::Full) if !wait.is_over() => std::thread::yield_now(),
                other => return other,
            }
        }
    }

    /// Packets that may not be accepted yet, by the last look.
    pub fn outstanding(&self) -> u8 {
        self.credits.outstanding()
    }

    /// Looks at the state if anything is outstanding, and repairs what was dropped. Nobody else would tell.
    pub fn settle(&mut self) -> Result<()> {
        if self.outstanding() > 0 {
            self.refresh()?;
        }
        Ok(())
    }

    /// Waits until the NIC accepted everything.
    pub fn drain(&mut self, wait: Wait) -> Result<()> {
        loop {
            self.settle()?;
            if self.outstanding() == 0 {
                return Ok(());
            }
            if wait.is_over() {
                return Err(Error::Timeout);
            }
            std::thread::yield_now();
        }
    }

    fn push(&self, index: u8) {
        let packet = &self.copies[usize::from(index)];
        let base = usize::from(packet.page) * PAGE;
        for (i, word) in packet.words[..usize::from(packet.len)].iter().enumerate() {
            self.requester.store(base + 8 * i, *word);
        }
        flush();
    }

    fn load(&mut self) -> State {
        self.counters.state_reads += 1;
        State(self.state.load(self.state_at))
    }

    fn fail(&mut self, why: Failure) -> Error {
        match why {
            Failure::Gone => Error::Gone,
            Failure::Desync { .. } => self.broke("impossible committed count"),
            Failure::Protocol => self.broke("impossible state"),
        }
    }

    fn broke(&mut self, why: &'static str) -> Error {
        self.broken = Some(why);
        Error::Broken(why)
    }

    fn refresh(&mut self) -> Result<()> {
        if let Some(why) = self.broken {
            return Err(Error::Broken(why));
        }
        let state = self.load();
        match self.credits.on_state(state) {
            Verdict::Ok { .. } | Verdict::Full => Ok(()),
            Verdict::Retry { .. } => self.repair(),
            Verdict::Gone => Err(Error::Gone),
            Verdict::Desync { .. } => Err(self.broke("impossible committed count")),
        }
    }

    fn repair(&mut self) -> Result<()> {
        self.counters.replays += 1;
        let deadline = Instant::now() + REPAIR;
        let mut replay = Replay::new();
        let mut action = replay.start();
        let mut reads = 0u32;
        loop {
            let event = match action {
                Action::ReadState => {
                    reads += 1;
                    if reads % 16 == 0 {
                        if Instant::now() > deadline {
                            return Err(self.broke("the repair took longer than a second"));
                        }
                        std::thread::yield_now();
                    }
                    Event::State(self.load())
                }
                Action::WriteState(value) => {
                    self.state.store(self.state_at, value.raw());
                    Event::Written
                }
                Action::Send(index) => {
                    self.push(index);
                    Event::Sent
                }
                Action::Done => {
                    self.counters.resent += u64::from(replay.resent());
                    return Ok(());
                }
                Action::Failed(why) => return Err(self.fail(why)),
            };
            action = replay.step(&mut self.credits, event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn sender() -> (Sender<3>, Arc<Mapping>, Arc<Mapping>) {
        let pages = Arc::new(Mapping::anonymous(32 * PAGE, None).unwrap());
        let state = Arc::new(Mapping::anonymous(PAGE, None).unwrap());
        state.store(0, 0x0300_0001_0000_0007);
        let sender = Sender::new(pages.clone(), state.clone(), 0).unwrap();
        (sender, pages, state)
    }

    #[test]
    fn opening_clears_the_state_and_packets_go_to_their_page() {
        let (mut sender, pages, state) = sender();
        assert_eq!(state.load(0), 0);
        sender.post(16, &[1, 2, 3]).unwrap();
        assert_eq!([0, 8, 16].map(|o| pages.load(16 * PAGE + o)), [1, 2, 3]);
        assert_eq!(sender.outstanding(), 1);
    }

    #[test]
    fn the_256th_packet_waits_for_credit() {
        let (mut sender, _, state) = sender();
        for i in 0..255 {
            sender.post(0, &[i, 0, 0]).unwrap();
        }
        assert_eq!(sender.counters.state_reads, 0);
        assert!(matches!(sender.post(0, &[255, 0, 0]), Err(Error::Full)));
        let soon = Wait::for_at_most(Duration::from_millis(5));
        assert!(matches!(
            sender.post_wait(0, &[0; 3], soon),
            Err(Error::Full)
        ));
        assert!(matches!(sender.drain(soon), Err(Error::Timeout)));
        state.store(0, State(0).with_committed_count(255).raw());
        sender.post(0, &[255, 0, 0]).unwrap();
        assert_eq!(sender.outstanding(), 1);
    }

    #[test]
    fn a_vanished_device_and_a_senseless_count_are_told_apart() {
        let (mut sender, _, state) = sender();
        sender.post(0, &[0; 3]).unwrap();
        state.store(0, u64::MAX);
        assert!(matches!(sender.settle(), Err(Error::Gone)));
        state.store(0, State(0).with_committed_count(9).raw());
        assert!(matches!(sender.settle(), Err(Error::Broken(_))));
        state.store(0, State(0).with_committed_count(1).raw());
        assert!(matches!(sender.post(0, &[0; 3]), Err(Error::Broken(_))));
    }

    /// Plays the NIC: accepts `accept` packets, drops the rest until the state was cleared, then takes what is resent.
    #[test]
    fn dropped_packets_are_sent_again() {
        let (mut sender, pages, state) = sender();
        for i in 1..=5u64 {
            sender.post((i % 2) as u8, &[i, i, i]).unwrap();
        }
        let dropped = State(0)
            .with_committed_count(2)
            .with_retry(true)
            .with_retry_count(3);
        state.store(0, dropped.raw());
        pages.store(PAGE, 0);
        let stop = Arc::new(AtomicBool::new(false));
        let nic = {
            let (state, pages, stop) = (state.clone(), pages.clone(), stop.clone());
            std::thread::spawn(move || {
                while State(state.load(0)).retry() {
                    std::thread::yield_now();
                }
                // Packets 3, 4, 5 come again; the fifth goes to page 1.
                while pages.load(PAGE) != 5 && !stop.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                state.store(0, State(0).with_committed_count(5).raw());
            })
        };
        sender.settle().unwrap();
        stop.store(true, Ordering::Relaxed);
        nic.join().unwrap();
        assert_eq!(sender.outstanding(), 0);
        assert_eq!((sender.counters.replays, sender.counters.resent), (1, 3));
        assert_eq!(pages.load(0), 4);
    }

    #[test]
    fn a_repair_that_never_ends_breaks_the_port() {
        let (mut sender, _, state) = sender();
        sender.post(0, &[0; 3]).unwrap();
        // The toggles differ for ever: the buffer never becomes idle.
        let stuck = State(0)
            .with_retry(true)
            .with_retry_count(1)
            .with_assembly(true);
        state.store(0, stuck.raw());
        let start = Instant::now();
        assert!(matches!(sender.settle(), Err(Error::Broken(_))));
        assert!(start.elapsed() >= REPAIR);
        assert!(matches!(sender.post(0, &[0; 3]), Err(Error::Broken(_))));
    }
}
