// SPDX-License-Identifier: GPL-2.0-only

//! Memory that NICs access: places where it can be registered, and what becomes of registrations.

use crate::{
    fault::{self, Point},
    ffi::thread::Bell,
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

/// Pages of a message at most: 1 MiB that begins within a page.
pub(super) const PAGES: usize = 257;

/// Codes of [`Told::got`]: the time of a GET was over; it was, and the engine had not posted it, or
/// what it had was answered, so that this tells nothing of the peer.
const TIMED_OUT: u32 = 4;
const LATE: u32 = 5;

/// Which places have something to tell, and who wants to hear of it.
#[pin_data]
pub(super) struct Signals {
    pub(super) bell: Bell,
    #[pin]
    told: SpinLockIrq<Ring<u32>>,
}

impl Signals {
    /// For so many places.
    pub(super) fn new(places: usize) -> Result<Arc<Self>> {
        // Those of a NIC that is gone may have something to tell as well.
        let (bell, ring) = (Bell::new()?, Ring::new(2 * places)?);
        Arc::pin_init(
            pin_init!(Self {
                bell,
                told <- new_spinlock_irq!(ring, "exlnd_told"),
            }),
            GFP_KERNEL,
        )
    }

    /// The next place that has something to tell.
    pub(super) fn next(&self) -> Option<u32> {
        self.told.lock().pop()
    }
}

/// What a place has been told: by the ATU, and by the engine of GETs, in any context.
pub(super) struct Told {
    signals: Arc<Signals>,
    number: u32,
    listed: AtomicFlag,
    revoked: AtomicFlag,
    late: AtomicFlag,
    /// 0, or a code of [`Told::take_got`].
    got: Atomic<u32>,
    /// GETs that may still write.
    moving: Atomic<u32>,
}

impl Told {
    fn tell(&self) {
        if !self.listed.xchg(true, Full) {
            // Each place is listed once, so there is room.
            let _ = self.signals.told.lock().push(self.number);
        }
        self.signals.bell.ring();
    }

    /// To be called before its state is looked at.
    pub(super) fn unlist(&self) {
        self.listed.xchg(false, Full);
    }

    /// Whether nothing reaches the memory any more that was registered: true once.
    pub(super) fn take_revoked(&self) -> bool {
        self.revoked.xchg(false, Full)
    }

    /// Whether the NIC did not say so in time.
    pub(super) fn take_late(&self) -> bool {
        self.late.xchg(false, Full)
    }

    /// What became of a GET: once.
    pub(super) fn take_got(&self) -> Option<Result<(), GetFailure>> {
        match self.got.xchg(0, Full) {
            1 => Some(Ok(())),
            2 => Some(Err(GetFailure::Fault)),
            LATE => Some(Err(GetFailure::NotPosted)),
            TIMED_OUT | 3 => Some(Err(GetFailure::Lost)),
            _ => None,
        }
    }

    /// A GET begins.
    pub(super) fn begin(&self) {
        self.moving.fetch_add(1, Full);
    }

    /// It did not begin after all.
    pub(super) fn unbegin(&self) {
        self.moving.fetch_sub(1, Full);
    }

    /// Whether nothing comes any more.
    pub(super) fn is_quiet(&self) -> bool {
        self.moving.load(Relaxed) == 0
    }
}

impl RevokeClient for Told {
    fn revoked(&self, result: Result) {
        match result {
            Ok(()) if !fault::hit(Point::Late) => self.revoked.xchg(true, Full),
            _ => self.late.xchg(true, Full),
        };
        self.tell();
    }
}

impl Completion for Told {
    fn done(&self, outcome: Result<Done, RmaError>) {
        let code = match outcome {
            Ok(_) => 1,
            Err(RmaError::Fault(_)) => 2,
            Err(RmaError::TimedOut) => TIMED_OUT,
            Err(_) => 3,
        };
        self.got.xchg(code, Full);
        self.tell();
    }

    fn quiet(&self, how: Quiet) {
        // The engine says so at once if nothing was posted that was not answered.
        if self.moving.fetch_sub(1, Full) == 1 && how == Quiet::Settled {
            let _ = self.got.cmpxchg(TIMED_OUT, LATE, Full);
        }
        self.tell();
    }
}

/// Where the memory of one message can be registered. Its NLAs are nobody else's, so that they lead
/// nowhere when the message is over, as long as the place is not used again.
pub(super) struct Place {
    reserve: Reserve,
    pub(super) told: Arc<Told>,
}

impl Place {
    fn new(nic: &Nic, vpid: Vpid, access: Access, told: Arc<Told>) -> Result<Self> {
        let reserve = nic.atu().reserve(vpid, 1, PAGES, access)?;
        Ok(Self { reserve, told })
    }

    /// Registers memory. Any context.
    ///
    /// # Errors
    ///
    /// As [`Reserve::register`].
    pub(super) fn register(&self, pages: &Arc<PageList>) -> Result<Region> {
        self.told.take_revoked();
        self.told.take_late();
        self.told.take_got();
        self.reserve.register(pages, WholePages::EXPOSED)
    }

    /// Has a registration end; the place is told when it has. Any context.
    pub(super) fn revoke(&self, region: Region) {
        region.revoke_async(self.told.clone());
    }

    /// Whether the last registration, whose end was late, has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.reserve.is_unused()
    }
}

/// Places of an interface: the first half to be read by peers, the others for GETs to write to.
pub(super) struct Places {
    all: KVVec<Place>,
    free: [Pin<KBox<SpinLockIrq<Ring<u32>>>>; 2],
    half: usize,
}

/// Which half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// Peers read the memory.
    Source,
    /// GETs write it.
    Sink,
}

impl Places {
    /// `half` of each kind. May sleep.
    ///
    /// # Errors
    ///
    /// Those of [`extoll_core::atu::Atu::reserve`].
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
            let told = Told {
                signals: signals.clone(),
                number,
                listed: AtomicFlag::new(false),
                revoked: AtomicFlag::new(false),
                late: AtomicFlag::new(false),
                got: Atomic::new(0),
                moving: Atomic::new(0),
            };
            let (access, ring) = match i < half {
                true => (Access::READ, &mut sources),
                false => (Access::WRITE, &mut sinks),
            };
            let told = Arc::new(told, GFP_KERNEL)?;
            all.push(Place::new(nic, vpid, access, told)?, GFP_KERNEL)?;
            // There is room for all.
            let _ = ring.push(number);
        }
        let lock = |ring| KBox::pin_init(new_spinlock_irq!(ring, "exlnd_places"), GFP_KERNEL);
        Ok(Arc::new(
            Self {
                all,
                free: [lock(sources)?, lock(sinks)?],
                half,
            },
            GFP_KERNEL,
        )?)
    }

    fn free(&self, side: Side) -> &SpinLockIrq<Ring<u32>> {
        let [sources, sinks] = &self.free;
        match side {
            Side::Source => sources,
            Side::Sink => sinks,
        }
    }

    /// The place with a number.
    pub(super) fn get(&self, number: u32) -> Option<&Place> {
        self.all.get(number as usize)
    }

    /// Of which kind it is.
    pub(super) fn side(&self, number: u32) -> Side {
        match (number as usize) < self.half {
            true => Side::Source,
            false => Side::Sink,
        }
    }

    /// Takes the place that has been free for longest.
    pub(super) fn take(&self, side: Side) -> Option<(u32, &Place)> {
        let number = self.free(side).lock().pop()?;
        Some((number, self.get(number)?))
    }

    /// Gives one back, whose NLAs nobody knows any more.
    pub(super) fn put(&self, number: u32) {
        // It was taken, so there is room.
        let _ = self.free(self.side(number)).lock().push(number);
    }

    /// Free ones of a kind.
    pub(super) fn left(&self, side: Side) -> usize {
        self.free(side).lock().len()
    }
}
