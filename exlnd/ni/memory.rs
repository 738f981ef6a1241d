// SPDX-License-Identifier: GPL-2.0-only

//! Registration of payload: slots with reserved network addresses, and the events of registrations
//! and GETs.
//!
//! Events are reported in any context. They are recorded in [`Events`], and the slot is queued in
//! [`Signals`] for the interface's thread. The locks in this file disable interrupts.

use crate::{
    fault::{self, Point},
    ffi::thread::Doorbell,
    ring::Ring,
};
use extoll_core::{
    atu::{Access, Region, Reserve, RevokeClient, WholePages},
    nic::Nic,
    rma::transfer::{Completion, Done, Quiet, RmaError},
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        atomic::{Atomic, AtomicFlag, Full, Relaxed},
        Arc, SpinLockIrq,
    },
};
use kernel_ext::mem::PageList;
use protocol::lnd::GetFailure;
use wire::ids::Vpid;

/// Maximum number of pages of a payload of 1 MiB that does not begin on a page boundary.
pub(super) const PAGES: usize = 257;

/// Code of [`Events::get_result`]: the peer did not answer the GET in time.
const TIMED_OUT: u32 = 4;
/// Code of [`Events::get_result`]: the GET timed out before it was posted, or after the peer had
/// answered all its parts. The peer is not the cause.
const LATE: u32 = 5;

/// Queue of slots with events, and the doorbell of the thread that handles them.
#[pin_data]
pub(super) struct Signals {
    /// Doorbell of the interface's thread.
    pub(super) doorbell: Doorbell,
    #[pin]
    queue: SpinLockIrq<Ring<u32>>,
}

impl Signals {
    /// Creates a queue for `slots` slots.
    pub(super) fn new(slots: usize) -> Result<Arc<Self>> {
        // Twice the number of slots, because slots of a lost NIC may also be queued.
        let (doorbell, ring) = (Doorbell::new()?, Ring::new(2 * slots)?);
        Arc::pin_init(
            pin_init!(Self {
                doorbell,
                queue <- new_spinlock_irq!(ring, "exlnd_signals"),
            }),
            GFP_KERNEL,
        )
    }

    /// Removes and returns the number of the next slot with an event.
    pub(super) fn next(&self) -> Option<u32> {
        self.queue.lock().pop()
    }
}

/// Events of a slot. The ATU and the GET engine record them in any context.
pub(super) struct Events {
    signals: Arc<Signals>,
    number: u32,
    /// Set while the slot is in the queue.
    queued: AtomicFlag,
    /// Set when the revocation was confirmed.
    revoked: AtomicFlag,
    /// Set when the revocation was not confirmed in time.
    late: AtomicFlag,
    /// Result of the GET: 0 for none, or a code of [`Events::take_get_result`].
    get_result: Atomic<u32>,
    /// Number of GETs that may still write.
    in_flight: Atomic<u32>,
}

impl Events {
    fn record(&self) {
        if !self.queued.xchg(true, Full) {
            // Cannot fail: each slot is queued at most once.
            let _ = self.signals.queue.lock().push(self.number);
        }
        self.signals.doorbell.notify();
    }

    /// Clears the flag that the slot is queued. Called before the slot's events are read.
    pub(super) fn clear_queued(&self) {
        self.queued.xchg(false, Full);
    }

    /// Returns whether the revocation was confirmed, and clears the event.
    pub(super) fn take_revoked(&self) -> bool {
        self.revoked.xchg(false, Full)
    }

    /// Returns whether the revocation was not confirmed in time, and clears the event.
    pub(super) fn take_late(&self) -> bool {
        self.late.xchg(false, Full)
    }

    /// Returns the result of the GET, if there is one, and clears the event.
    pub(super) fn take_get_result(&self) -> Option<Result<(), GetFailure>> {
        match self.get_result.xchg(0, Full) {
            1 => Some(Ok(())),
            2 => Some(Err(GetFailure::Fault)),
            LATE => Some(Err(GetFailure::NotPosted)),
            TIMED_OUT | 3 => Some(Err(GetFailure::Lost)),
            _ => None,
        }
    }

    /// Increments the number of GETs in flight before a GET is posted.
    pub(super) fn begin(&self) {
        self.in_flight.fetch_add(1, Full);
    }

    /// Decrements the number of GETs in flight after a GET could not be posted.
    pub(super) fn unbegin(&self) {
        self.in_flight.fetch_sub(1, Full);
    }

    /// Returns whether no GET can write any more.
    pub(super) fn is_quiet(&self) -> bool {
        self.in_flight.load(Relaxed) == 0
    }
}

impl RevokeClient for Events {
    fn revoked(&self, result: Result) {
        match result {
            Ok(()) if !fault::hit(Point::Late) => self.revoked.xchg(true, Full),
            _ => self.late.xchg(true, Full),
        };
        self.record();
    }
}

impl Completion for Events {
    fn done(&self, outcome: Result<Done, RmaError>) {
        let code = match outcome {
            Ok(_) => 1,
            Err(RmaError::Fault(_)) => 2,
            Err(RmaError::TimedOut) => TIMED_OUT,
            Err(_) => 3,
        };
        self.get_result.xchg(code, Full);
        self.record();
    }

    fn quiet(&self, how: Quiet) {
        // The engine calls this at once if it posted nothing or the peer answered everything.
        if self.in_flight.fetch_sub(1, Full) == 1 && how == Quiet::Settled {
            let _ = self.get_result.cmpxchg(TIMED_OUT, LATE, Full);
        }
        self.record();
    }
}

/// A slot for the registration of one message's memory. Its network addresses are reserved. After
/// the message has ended they are invalid until the slot is reused.
pub(super) struct RegionSlot {
    reserve: Reserve,
    pub(super) events: Arc<Events>,
}

impl RegionSlot {
    fn new(nic: &Nic, vpid: Vpid, access: Access, events: Arc<Events>) -> Result<Self> {
        let reserve = nic.atu().reserve(vpid, 1, PAGES, access)?;
        Ok(Self { reserve, events })
    }

    /// Registers memory. Any context.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Reserve::register`].
    pub(super) fn register(&self, pages: &Arc<PageList>) -> Result<Region> {
        self.events.take_revoked();
        self.events.take_late();
        self.events.take_get_result();
        self.reserve.register(pages, WholePages::EXPOSED)
    }

    /// Starts the revocation of a registration. Its end is recorded as an event. Any context.
    pub(super) fn revoke(&self, region: Region) {
        region.revoke_async(self.events.clone());
    }

    /// Returns whether a registration has ended whose revocation was not confirmed in time.
    pub(super) fn has_ended(&self) -> bool {
        self.reserve.is_unused()
    }
}

/// Registration slots of an interface. Peers read memory in the first half of the slots, GETs write
/// to memory in the second half.
pub(super) struct RegionSlots {
    all: KVVec<RegionSlot>,
    free: [Pin<KBox<SpinLockIrq<Ring<u32>>>>; 2],
    half: usize,
}

/// Half of the registration slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// Peers read the memory.
    Source,
    /// GETs write to the memory.
    Sink,
}

impl RegionSlots {
    /// Creates `half` slots for each side. May sleep.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`extoll_core::atu::Atu::reserve`].
    pub(super) fn new(
        nic: &Nic,
        vpid: Vpid,
        signals: &Arc<Signals>,
        half: usize,
    ) -> Result<Arc<Self>> {
        let mut all = KVVec::with_capacity(2 * half, GFP_KERNEL)?;
        let (mut sources, mut sinks) = (Ring::new(half)?, Ring::new(half)?);
        for i in 0..2 * half {
            let number = i as u32;
            let events = Events {
                signals: signals.clone(),
                number,
                queued: AtomicFlag::new(false),
                revoked: AtomicFlag::new(false),
                late: AtomicFlag::new(false),
                get_result: Atomic::new(0),
                in_flight: Atomic::new(0),
            };
            let (access, ring) = if i < half {
                (Access::READ, &mut sources)
            } else {
                (Access::WRITE, &mut sinks)
            };
            let events = Arc::new(events, GFP_KERNEL)?;
            all.push(RegionSlot::new(nic, vpid, access, events)?, GFP_KERNEL)?;
            // Cannot fail: the queue has room for all slots of a side.
            let _ = ring.push(number);
        }
        let lock = |ring| KBox::pin_init(new_spinlock_irq!(ring, "exlnd_slots"), GFP_KERNEL);
        Ok(Arc::new(
            Self {
                all,
                free: [lock(sources)?, lock(sinks)?],
                half,
            },
            GFP_KERNEL,
        )?)
    }

    fn free_slots(&self, side: Side) -> &SpinLockIrq<Ring<u32>> {
        let [sources, sinks] = &self.free;
        match side {
            Side::Source => sources,
            Side::Sink => sinks,
        }
    }

    /// Returns the slot with a number.
    pub(super) fn get(&self, number: u32) -> Option<&RegionSlot> {
        self.all.get(number as usize)
    }

    /// Returns the side of a slot.
    pub(super) fn side(&self, number: u32) -> Side {
        if (number as usize) < self.half {
            Side::Source
        } else {
            Side::Sink
        }
    }

    /// Claims the slot that has been free for longest.
    pub(super) fn claim(&self, side: Side) -> Option<(u32, &RegionSlot)> {
        let number = self.free_slots(side).lock().pop()?;
        Some((number, self.get(number)?))
    }

    /// Frees a slot whose network addresses no peer uses any more.
    pub(super) fn free(&self, number: u32) {
        // Cannot fail: the slot was claimed.
        let _ = self.free_slots(self.side(number)).lock().push(number);
    }

    /// Returns the number of free slots of a side.
    pub(super) fn left(&self, side: Side) -> usize {
        self.free_slots(side).lock().len()
    }
}
