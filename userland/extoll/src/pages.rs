// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Sending for VELO and RMA: requester pages, credits and replay (HW §8).

use crate::error::{Error, Result};
use crate::raw::{flush, publish, Mapping, PAGE};
use crate::wait::{Link, Pauses};
use crate::{Counters, Wait};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use wire::wcbuf::{Action, Credits, Event, Replay, State, Verdict, COPIES, MARK};

/// Maximum time of a replay. It exceeds the programmed timeouts after which full queues at the
/// other end release the network (HW §9.3, §10.7). The kernel driver uses the same time.
const REPAIR: Duration = Duration::from_secs(5);
/// Maximum time of a replay step. A step holds the lock, and other threads must not miss their
/// deadlines.
const STEP: Duration = Duration::from_millis(1);
/// Maximum part of the time between two steps that counts as duration of the replay. No step is
/// tried between calls of the program.
const BETWEEN: Duration = Duration::from_millis(10);
/// Time for which closing a port waits until the NIC has accepted sent packets.
const LINGER: Duration = Duration::from_millis(100);
const SENSELESS: &str = "impossible committed count";

/// Contents of a packet of up to `N` quadwords, which are kept until the NIC has committed the
/// packet.
#[derive(Clone, Copy)]
struct Packet<const N: usize> {
    words: [u64; N],
    len: u8,
    page: u8,
}

/// Posted packet: its number, and the number of losses that preceded it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    number: u64,
    losses: u64,
}

/// Loss of packets. The numbers of the lost packets begin with `first`.
struct Loss {
    first: u64,
    packets: u8,
    why: &'static str,
}

/// Replay that is in progress.
struct Repair {
    replay: Replay,
    action: Action,
    /// Duration of the replay so far, and the time at which it was last updated.
    tried: Duration,
    counted: Instant,
}

impl Repair {
    fn new() -> Self {
        let replay = Replay::new();
        Self {
            action: replay.start(),
            replay,
            tried: Duration::ZERO,
            counted: Instant::now(),
        }
    }

    fn count(&mut self, now: Instant) {
        self.tried += now.duration_since(self.counted).min(BETWEEN);
        self.counted = now;
    }
}

/// Mappings of the requester pages and of the state word.
pub(crate) struct Pages {
    pub requester: Arc<Mapping>,
    pub state: Arc<Mapping>,
    /// Byte offset of the state word in its mapping.
    pub state_at: usize,
    /// True if a store at [`MARK`] must follow each fence.
    pub marks: bool,
}

impl Pages {
    fn read_state(&self) -> State {
        State(self.state.load(self.state_at))
    }
}

/// Pauses before repeated reads of a state of all ones. A single failed read does not prove that
/// the NIC was removed.
const UNREAD: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_millis(1),
    Duration::from_millis(20),
];

/// Reads the state. After a read of all ones, repeats the read after each pause of [`UNREAD`].
fn read_state(mut read: impl FnMut() -> State, mut pause: impl FnMut(Duration)) -> State {
    for time in UNREAD {
        let state = read();
        if !state.is_all_ones() {
            return state;
        }
        pause(time);
    }
    read()
}

/// Sending half of a port.
pub(crate) struct Sender<const N: usize> {
    pages: Pages,
    link: Arc<Link>,
    credits: Credits,
    copies: Box<[Packet<N>; COPIES]>,
    repair: Option<Repair>,
    /// Number of losses, and the last loss.
    losses: u64,
    last_loss: Option<Loss>,
    counters: Counters,
}

impl<const N: usize> Sender<N> {
    /// Creates the sending half of a port and clears the state, as for a newly opened VPID.
    pub fn new(pages: Pages, link: Arc<Link>) -> Result<Self> {
        let opened = State(pages.state.load(pages.state_at));
        if opened.is_all_ones() {
            return Err(link.lost());
        }
        pages.state.store(pages.state_at, opened.fresh().raw());
        let empty = Packet {
            words: [0; N],
            len: 0,
            page: 0,
        };
        Ok(Self {
            pages,
            link,
            credits: Credits::new(),
            copies: Box::new([empty; COPIES]),
            repair: None,
            losses: 0,
            last_loss: None,
            counters: Counters::default(),
        })
    }

    /// Writes a packet to requester page `page`. Without a credit, fails with [`Error::Full`] and
    /// writes nothing.
    fn post(&mut self, page: u8, words: &[u64]) -> Result<Posted> {
        self.link.check()?;
        if self.repair.is_some() || self.credits.room() == 0 {
            self.refresh()?;
        }
        if self.repair.is_some() {
            return Err(Error::Full);
        }
        let index = self.credits.take().ok_or(Error::Full)?;
        let copy = &mut self.copies[usize::from(index)];
        copy.words[..words.len()].copy_from_slice(words);
        copy.len = words.len() as u8;
        copy.page = page;
        self.push(index);
        // A sleeping thread must repeat the packet if the NIC drops it.
        self.link.wake();
        let number = self.counters.posted;
        self.counters.posted += 1;
        Ok(Posted {
            number,
            losses: self.losses,
        })
    }

    /// Ensures credits for `n` packets. Fails with [`Error::Full`] if they are not available.
    fn make_room(&mut self, n: u8) -> Result<()> {
        self.link.check()?;
        if self.repair.is_some() || self.credits.room() < n {
            self.refresh()?;
        }
        match self.repair.is_some() || self.credits.room() < n {
            true => Err(Error::Full),
            false => Ok(()),
        }
    }

    /// Fails if the packet was lost. If two losses occurred since the packet was posted, its state
    /// is unknown, and the function fails, too.
    fn check_posted(&self, posted: Posted) -> Result<()> {
        match &self.last_loss {
            Some(loss) if self.losses > posted.losses => {
                let confirmed = self.losses == posted.losses + 1 && posted.number < loss.first;
                match confirmed {
                    true => Ok(()),
                    false => Err(Error::Lost {
                        packets: loss.packets,
                        why: loss.why,
                    }),
                }
            }
            _ => Ok(()),
        }
    }

    /// Returns whether packets were unconfirmed at the last check.
    fn is_unconfirmed(&self) -> bool {
        self.repair.is_some() || self.credits.outstanding() > 0
    }

    /// If packets are outstanding, checks the state and repeats dropped packets. The NIC does not
    /// report drops in another way.
    fn settle(&mut self) -> Result<()> {
        self.link.check()?;
        if self.is_unconfirmed() {
            self.refresh()?;
        }
        Ok(())
    }

    fn push(&self, index: u8) {
        let packet = &self.copies[usize::from(index)];
        let base = usize::from(packet.page) * PAGE;
        // Stores to memory that the packet refers to must precede the packet.
        publish();
        for (i, word) in packet.words[..usize::from(packet.len)].iter().enumerate() {
            self.pages.requester.store(base + 8 * i, *word);
        }
        flush();
        if self.pages.marks {
            self.pages.requester.store(base + usize::from(MARK), 0);
        }
    }

    /// Returns the state word, which is all ones if the NIC was removed.
    fn load(&mut self) -> State {
        let (pages, reads) = (&self.pages, &mut self.counters.state_reads);
        let read = || {
            *reads += 1;
            pages.read_state()
        };
        read_state(read, std::thread::sleep)
    }

    /// Gives up all outstanding packets and resets the state, as the kernel driver does.
    fn give_up(&mut self, why: &'static str) -> Error {
        let state = self.load();
        if state.is_all_ones() {
            return self.link.lost();
        }
        let packets = self.credits.outstanding();
        self.counters.lost += u64::from(packets);
        self.losses += 1;
        self.last_loss = Some(Loss {
            first: self.counters.posted - u64::from(packets),
            packets,
            why,
        });
        self.pages
            .state
            .store(self.pages.state_at, state.fresh().raw());
        self.credits = Credits::new();
        self.repair = None;
        Error::Lost { packets, why }
    }

    fn refresh(&mut self) -> Result<()> {
        if self.repair.is_none() {
            let state = self.load();
            match self.credits.on_state(state) {
                Verdict::Ok { .. } | Verdict::Full => return Ok(()),
                Verdict::Retry { .. } => {}
                Verdict::Unread => return Err(self.link.lost()),
                Verdict::Desync { .. } => return Err(self.give_up(SENSELESS)),
            }
            self.counters.replays += 1;
        }
        let repair = self.repair.take().unwrap_or_else(Repair::new);
        self.repair = self.go_on(repair)?;
        Ok(())
    }

    /// Executes a step of a replay. Returns the replay if it is not complete.
    fn go_on(&mut self, mut repair: Repair) -> Result<Option<Repair>> {
        let began = Instant::now();
        repair.count(began);
        let resent = repair.replay.resent();
        let result = loop {
            let event = match repair.action {
                Action::ReadState => {
                    let now = Instant::now();
                    repair.count(now);
                    if repair.tried >= REPAIR {
                        break Err(self.give_up("the repair took longer than five seconds"));
                    }
                    if now.duration_since(began) >= STEP {
                        break Ok(true);
                    }
                    let state = self.load();
                    if state.is_all_ones() {
                        break Err(self.link.lost());
                    }
                    Event::State(state)
                }
                Action::WriteState(value) => {
                    self.pages.state.store(self.pages.state_at, value.raw());
                    Event::Written
                }
                Action::Send(index) => {
                    self.push(index);
                    Event::Sent
                }
                Action::Done => break Ok(false),
                Action::Failed(_) => break Err(self.give_up(SENSELESS)),
            };
            repair.action = repair.replay.step(&mut self.credits, event);
        };
        self.counters.resent += u64::from(repair.replay.resent() - resent);
        result.map(|goes_on| goes_on.then_some(repair))
    }
}

/// Sending half of a port, which the threads of the port share. No thread holds the lock while it
/// waits. Threads that send, drain or receive therefore meet their own deadlines.
pub(crate) struct Outbox<const N: usize> {
    sender: Mutex<Sender<N>>,
    link: Arc<Link>,
}

impl<const N: usize> Outbox<N> {
    /// Creates the sending half, see [`Sender::new`].
    pub fn new(pages: Pages, link: &Arc<Link>) -> Result<Self> {
        Ok(Self {
            sender: Mutex::new(Sender::new(pages, link.clone())?),
            link: link.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Sender<N>> {
        // The state is consistent even after a panic in another thread, because a packet is
        // recorded and pushed in one step.
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a packet, see [`Sender::post`].
    pub fn post(&self, page: u8, words: &[u64]) -> Result<()> {
        self.lock().post(page, words).map(drop)
    }

    /// Posts all packets. If credits are missing, fails with [`Error::Full`] and posts no packet.
    pub fn post_all(&self, page: u8, packets: &[[u64; N]]) -> Result<()> {
        let mut sender = self.lock();
        sender.make_room(u8::try_from(packets.len()).map_err(|_| Error::Full)?)?;
        packets
            .iter()
            .try_for_each(|words| sender.post(page, words).map(drop))
    }

    /// Posts a packet after packet `before`, on which it depends. Fails if `before` was lost.
    pub fn post_behind(&self, page: u8, words: &[u64], before: Option<Posted>) -> Result<Posted> {
        let mut sender = self.lock();
        before.map_or(Ok(()), |before| sender.check_posted(before))?;
        sender.post(page, words)
    }

    /// Fails with [`Error::Lost`] if the packet was lost, even if another call detected the loss.
    pub fn check_posted(&self, posted: Posted) -> Result<()> {
        self.lock().check_posted(posted)
    }

    /// Waits for a credit, then posts a packet like [`Outbox::post`]. Packets of one thread stay in
    /// order. Packets of different threads have no defined order.
    pub fn post_wait(&self, fd: BorrowedFd<'_>, page: u8, words: &[u64], wait: Wait) -> Result<()> {
        let mut pauses = Pauses::new(wait);
        loop {
            // This is a separate statement, so that the lock is released before the branches.
            let result = self.post(page, words);
            match result {
                Err(Error::Full) => pauses.pause(&self.link, fd)?,
                other => return other,
            }
        }
    }

    /// Returns whether packets were unconfirmed at the last check.
    pub fn is_unconfirmed(&self) -> bool {
        self.lock().is_unconfirmed()
    }

    /// If packets are outstanding, checks the state and repeats dropped packets. The repetition
    /// takes at most a millisecond.
    pub fn settle(&self) -> Result<()> {
        self.lock().settle()
    }

    /// Calls [`Outbox::settle`], unless another thread holds the lock.
    pub fn try_settle(&self) -> Result<()> {
        match self.sender.try_lock() {
            Ok(mut sender) => sender.settle(),
            Err(TryLockError::Poisoned(sender)) => sender.into_inner().settle(),
            Err(TryLockError::WouldBlock) => Ok(()),
        }
    }

    /// Waits until the NIC has accepted all packets.
    pub fn drain(&self, fd: BorrowedFd<'_>, wait: Wait) -> Result<()> {
        self.link.check()?;
        let mut pauses = Pauses::new(wait);
        while self.is_unconfirmed() {
            self.settle()?;
            if self.is_unconfirmed() {
                pauses.pause(&self.link, fd)?;
            }
        }
        Ok(())
    }

    /// Gives the NIC a short time to accept sent packets. The port calls this function before it
    /// removes the mappings. If the NIC was removed, no mapping is accessed.
    pub fn close(&self, fd: BorrowedFd<'_>) {
        if self.is_unconfirmed() && self.link.look(fd).is_ok() {
            let wait = Wait::for_at_most(LINGER);
            // Closing the port ignores signals and other failures, because it cannot report them.
            while matches!(self.drain(fd, wait), Err(Error::Interrupted)) {}
        }
    }

    /// Returns the counters of the sending half.
    pub fn counters(&self) -> Counters {
        self.lock().counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Nic {
        outbox: Outbox<3>,
        pages: Arc<Mapping>,
        state: Arc<Mapping>,
        fd: UnixStream,
        _other: UnixStream,
    }

    fn nic() -> Nic {
        nic_with(false)
    }

    fn nic_with(marks: bool) -> Nic {
        let pages = Arc::new(Mapping::anonymous(32 * PAGE, None).unwrap());
        let state = Arc::new(Mapping::anonymous(PAGE, None).unwrap());
        state.store(0, 0x0300_0001_0000_0007);
        let to = Pages {
            requester: pages.clone(),
            state: state.clone(),
            state_at: 0,
            marks,
        };
        let outbox = Outbox::new(to, &Arc::default()).unwrap();
        let (fd, _other) = UnixStream::pair().unwrap();
        Nic {
            outbox,
            pages,
            state,
            fd,
            _other,
        }
    }

    impl Nic {
        fn drain(&self, wait: Wait) -> Result<()> {
            self.outbox.drain(self.fd.as_fd(), wait)
        }

        fn post_wait(&self, wait: Wait) -> Result<()> {
            self.outbox.post_wait(self.fd.as_fd(), 0, &[0; 3], wait)
        }

        /// Sets a state with unequal toggles, so that the buffer never becomes idle.
        fn stick(&self, dropped: u8) {
            let stuck = State(0)
                .with_retry(true)
                .with_retry_count(dropped)
                .with_assembly(true);
            self.state.store(0, stuck.raw());
        }

        /// Sets the duration of the replay so far.
        fn repairs_since(&self, time: Duration) {
            self.outbox.lock().repair.as_mut().unwrap().tried = time;
        }
    }

    fn ms(ms: u64) -> Wait {
        Wait::for_at_most(Duration::from_millis(ms))
    }

    #[test]
    fn a_read_of_all_ones_is_repeated_after_pauses() {
        for (ones, reads) in [(0, 1), (2, 3), (3, 4), (9, 4)] {
            let (mut n, mut pauses) = (0, Vec::new());
            let read = || {
                n += 1;
                State(if n > ones { 1 } else { u64::MAX })
            };
            let state = read_state(read, |time| pauses.push(time));
            assert_eq!((n, state.is_all_ones()), (reads, ones == 9));
            assert_eq!(pauses, UNREAD[..reads - 1]);
        }
    }

    #[test]
    fn fences_are_marked_only_when_that_is_wanted() {
        for marks in [false, true] {
            let nic = nic_with(marks);
            let at = |page: usize| page * PAGE + usize::from(MARK);
            for page in [0, 16] {
                nic.pages.store(at(page), u64::MAX);
            }
            nic.outbox.post(16, &[1, 2, 3]).unwrap();
            assert_eq!(nic.pages.load(at(16)) == 0, marks);
            assert_eq!(nic.pages.load(at(0)), u64::MAX);
        }
    }

    #[test]
    fn opening_clears_the_state_and_packets_go_to_their_page() {
        let nic = nic();
        assert_eq!(nic.state.load(0), 0);
        nic.outbox.post(16, &[1, 2, 3]).unwrap();
        assert_eq!([0, 8, 16].map(|o| nic.pages.load(16 * PAGE + o)), [1, 2, 3]);
        assert!(nic.outbox.is_unconfirmed());
    }

    #[test]
    fn the_256th_packet_waits_for_credit() {
        let nic = nic();
        for i in 0..255 {
            nic.outbox.post(0, &[i, 0, 0]).unwrap();
        }
        assert_eq!(nic.outbox.counters().state_reads, 0);
        assert!(matches!(nic.outbox.post(0, &[255, 0, 0]), Err(Error::Full)));
        assert!(matches!(nic.post_wait(ms(5)), Err(Error::Timeout)));
        assert!(matches!(nic.drain(ms(5)), Err(Error::Timeout)));
        let count = |n| State(0).with_committed_count(n).raw();
        nic.state.store(0, count(255));
        nic.outbox.post(0, &[255, 0, 0]).unwrap();
        assert!(nic.outbox.is_unconfirmed());
        nic.state.store(0, count(0));
        nic.drain(ms(1000)).unwrap();
    }

    #[test]
    fn a_vanished_device_is_not_touched_again() {
        let nic = nic();
        nic.outbox.post(0, &[0; 3]).unwrap();
        nic.state.store(0, u64::MAX);
        assert!(matches!(nic.outbox.settle(), Err(Error::Gone)));
        let reads = nic.outbox.counters().state_reads;
        nic.state.store(0, State(0).with_committed_count(1).raw());
        assert!(matches!(nic.outbox.settle(), Err(Error::Gone)));
        assert!(matches!(nic.outbox.post(0, &[0; 3]), Err(Error::Gone)));
        assert!(matches!(nic.drain(ms(5)), Err(Error::Gone)));
        assert_eq!(nic.outbox.counters().state_reads, reads);
    }

    #[test]
    fn a_descriptor_that_hangs_up_ends_sending_and_draining() {
        let nic = nic();
        nic.outbox.post(0, &[0; 3]).unwrap();
        drop(nic._other);
        assert!(matches!(
            nic.outbox.drain(nic.fd.as_fd(), ms(20_000)),
            Err(Error::Gone)
        ));
        let reads = nic.outbox.counters().state_reads;
        nic.outbox.close(nic.fd.as_fd());
        assert_eq!(nic.outbox.counters().state_reads, reads);
    }

    #[test]
    fn a_senseless_count_costs_the_packets_and_not_the_port() {
        let nic = nic();
        nic.outbox.post(0, &[0; 3]).unwrap();
        nic.state.store(0, State(0).with_committed_count(9).raw());
        assert!(matches!(
            nic.outbox.settle(),
            Err(Error::Lost { packets: 1, .. })
        ));
        assert_eq!(nic.state.load(0), 0);
        nic.outbox.post(0, &[0; 3]).unwrap();
        nic.state.store(0, State(0).with_committed_count(1).raw());
        nic.drain(ms(5)).unwrap();
    }

    /// Simulates a NIC that drops packets after the first two until the state is cleared. The NIC
    /// then accepts the repeated packets.
    #[test]
    fn dropped_packets_are_sent_again() {
        let nic = nic();
        for i in 1..=5u64 {
            nic.outbox.post((i % 2) as u8, &[i, i, i]).unwrap();
        }
        let dropped = State(0)
            .with_committed_count(2)
            .with_retry(true)
            .with_retry_count(3);
        nic.state.store(0, dropped.raw());
        nic.pages.store(PAGE, 0);
        let stop = Arc::new(AtomicBool::new(false));
        let other = {
            let (state, pages, stop) = (nic.state.clone(), nic.pages.clone(), stop.clone());
            std::thread::spawn(move || {
                while State(state.load(0)).retry() {
                    std::thread::yield_now();
                }
                // Packets 3, 4 and 5 are sent again. Packet 5 belongs to page 1.
                while pages.load(PAGE) != 5 && !stop.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                state.store(0, State(0).with_committed_count(5).raw());
            })
        };
        let drained = nic.drain(ms(20_000));
        stop.store(true, Ordering::Relaxed);
        other.join().unwrap();
        drained.unwrap();
        let counters = nic.outbox.counters();
        assert_eq!((counters.replays, counters.resent), (1, 3));
        assert_eq!(nic.pages.load(0), 4);
    }

    #[test]
    fn a_repair_that_never_ends_costs_its_packets_and_not_the_port() {
        let nic = nic();
        for _ in 0..3 {
            nic.outbox.post(0, &[0; 3]).unwrap();
        }
        nic.stick(3);
        nic.outbox.settle().unwrap();
        nic.repairs_since(REPAIR / 2);
        nic.outbox.settle().unwrap();
        nic.repairs_since(REPAIR);
        assert!(matches!(
            nic.outbox.settle(),
            Err(Error::Lost { packets: 3, .. })
        ));
        // The loss is reported once. After that, the port works as before.
        nic.drain(ms(0)).unwrap();
        assert_eq!(nic.outbox.counters().lost, 3);
        nic.outbox.post(0, &[7; 3]).unwrap();
        nic.state.store(0, State(0).with_committed_count(1).raw());
        nic.drain(ms(0)).unwrap();
    }

    /// A NIC may accept packets only after full queues elsewhere have timed out (HW §9.3). This can
    /// take seconds, but the packets must not be lost.
    #[test]
    fn a_nic_that_is_held_up_for_seconds_loses_nothing() {
        let nic = nic();
        nic.outbox.post(5, &[7; 3]).unwrap();
        nic.stick(1);
        nic.pages.store(5 * PAGE, 0);
        nic.outbox.settle().unwrap();
        nic.repairs_since(Duration::from_millis(3300));
        nic.outbox.settle().unwrap();
        let dropped = State(0).with_retry(true).with_retry_count(1);
        nic.state.store(0, dropped.raw());
        while nic.pages.load(5 * PAGE) != 7 {
            nic.outbox.settle().unwrap();
        }
        nic.state.store(0, State(0).with_committed_count(1).raw());
        nic.drain(ms(20_000)).unwrap();
        let counters = nic.outbox.counters();
        assert_eq!((counters.lost, counters.resent), (0, 1));
    }

    #[test]
    fn whose_packets_were_given_up_is_known_to_all() {
        let nic = nic();
        let post = |before| nic.outbox.post_behind(0, &[8; 3], before);
        let first = post(None).unwrap();
        nic.state.store(0, State(0).with_committed_count(1).raw());
        nic.drain(ms(0)).unwrap();
        let (second, third) = (post(Some(first)).unwrap(), post(None).unwrap());
        nic.outbox.check_posted(third).unwrap();
        // The committed count exceeds the number of sent packets.
        nic.state.store(0, State(0).with_committed_count(9).raw());
        assert!(matches!(nic.outbox.settle(), Err(Error::Lost { .. })));
        nic.outbox.check_posted(first).unwrap();
        let is_lost = |posted| {
            matches!(
                nic.outbox.check_posted(posted),
                Err(Error::Lost { packets: 2, .. })
            )
        };
        assert!(is_lost(second) && is_lost(third));
        // A packet that depends on a lost packet is not sent. Other packets are sent.
        assert!(matches!(
            post(Some(third)),
            Err(Error::Lost { packets: 2, .. })
        ));
        assert_eq!(nic.outbox.counters().posted, 3);
        let fourth = post(Some(first)).unwrap();
        nic.outbox.check_posted(fourth).unwrap();
    }

    #[test]
    fn several_packets_are_sent_all_or_none() {
        let nic = nic();
        for _ in 0..253 {
            nic.outbox.post(0, &[0; 3]).unwrap();
        }
        assert!(matches!(
            nic.outbox.post_all(0, &[[1; 3]; 3]),
            Err(Error::Full)
        ));
        nic.outbox.post_all(0, &[[1; 3]; 2]).unwrap();
        assert_eq!(nic.outbox.counters().posted, 255);
        // An impossible count during a replay must be detected, too.
        nic.state.store(0, State(0).with_committed_count(250).raw());
        nic.outbox.settle().unwrap();
        let stuck = State(0)
            .with_committed_count(250)
            .with_retry(true)
            .with_retry_count(5)
            .with_assembly(true);
        nic.state.store(0, stuck.raw());
        nic.outbox.settle().unwrap();
        assert!(matches!(
            nic.outbox.post_all(0, &[[1; 3]; 2]),
            Err(Error::Full)
        ));
        assert_eq!(nic.outbox.counters().posted, 255);
    }

    #[test]
    fn a_repair_keeps_to_the_deadline_of_each_call_and_goes_on_in_the_next() {
        let nic = nic();
        nic.outbox.post(0, &[0; 3]).unwrap();
        nic.stick(1);
        // The call must not continue the replay to its end, because it would then give up the
        // packet.
        assert!(matches!(nic.drain(ms(10)), Err(Error::Timeout)));
        assert!(matches!(nic.post_wait(ms(10)), Err(Error::Timeout)));
        assert!(matches!(nic.outbox.post(0, &[0; 3]), Err(Error::Full)));
        nic.outbox.settle().unwrap();
        let counters = nic.outbox.counters();
        assert_eq!((counters.replays, counters.lost), (1, 0));
    }

    #[test]
    fn time_without_calls_does_not_count_for_a_repair() {
        let nic = nic();
        nic.outbox.post(0, &[0; 3]).unwrap();
        nic.stick(1);
        nic.outbox.settle().unwrap();
        if let Some(repair) = &mut nic.outbox.lock().repair {
            repair.counted = repair.counted.checked_sub(2 * REPAIR).unwrap();
        }
        nic.outbox.settle().unwrap();
        assert_eq!(nic.outbox.counters().lost, 0);
    }
}
