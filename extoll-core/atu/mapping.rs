// SPDX-License-Identifier: GPL-2.0-only

//! What the NIC and the memory management know of a region, and how it ends.
//!
//! A mapping is live, then revoked (entries zeroed, flush commanded), and gone when the NIC has answered; only then its
//! memory and its NLAs are given back. An address space change revokes at once in the notifier; what may sleep is left to
//! the work item, as is a second try when the NIC did not answer.

use super::{
    commands::Ticket,
    tables::{Bed, Gat, Place},
    Access, Commands,
};
use crate::{dma::DmaWords, nic::Nic, stats::Reason};
use kernel::{
    impl_has_delayed_work, new_delayed_work, new_spinlock,
    prelude::*,
    rbtree::RBTreeNodeReservation,
    sync::{
        atomic::{AtomicFlag, Full, Relaxed},
        Arc, SpinLock,
    },
    time::{delay::fsleep, Delta},
    workqueue::{DelayedWork, WorkItem},
};
use kernel_ext::{
    barrier,
    mem::{Change, Maps, PageList, StreamingPages, Watch, Watcher, PAGE},
    sched::cond_resched,
    work,
};
use wire::{
    ids::{BusAddr, Nla, Vpid},
    nla::{cut, placement, Range, SIZE_CODES},
    regs::atu,
};

/// Pause before the NIC is asked again about a region in quarantine, in milliseconds.
const RETRY_MS: u32 = 2000;
/// Pause before another look at pages of which nothing can be told yet, in milliseconds.
const LOOK_MS: u32 = 20;

/// Mapped memory that somebody else made.
pub(super) trait Segments: Send + Sync {
    /// Calls `f` with bus address and bytes of each segment.
    fn each(&self, f: &mut dyn FnMut(u64, u64));
}

/// Memory of a region.
pub(super) enum Memory {
    Pages(StreamingPages),
    Coherent(Arc<DmaWords>),
    Other(KBox<dyn Segments>),
}

impl Memory {
    /// Bus address and pages of each segment; `EINVAL` unless all are made of whole pages, `EIO` if addresses mean interrupts.
    fn segments(&self) -> Result<KVVec<(BusAddr, u64)>> {
        let mut list = KVVec::new();
        let mut result = Ok(());
        let mut add = |addr: u64, bytes: u64| {
            if result.is_ok() {
                result = if addr % PAGE as u64 != 0 || bytes % PAGE as u64 != 0 || bytes == 0 {
                    Err(EINVAL)
                } else if BusAddr(addr).meets_interrupts(bytes) {
                    Err(EIO)
                } else {
                    list.push((BusAddr(addr), bytes / PAGE as u64), GFP_KERNEL)
                        .map_err(Error::from)
                };
            }
        };
        match self {
            Memory::Pages(table) => table
                .segments()
                .for_each(|(addr, pages)| add(addr, pages * PAGE as u64)),
            Memory::Coherent(words) => add(words.address().0, words.words() as u64 * 8),
            Memory::Other(other) => other.each(&mut add),
        }
        result.map(|()| list)
    }

    /// Gives the memory up. The NIC must not access it any more. May sleep.
    fn release(self, nic: &Nic) {
        if let Memory::Pages(table) = self {
            // Unbinding waits until all regions are gone, so there is a device.
            let _ = nic.with_bound(|dev| drop(table.unmap(dev)));
        }
    }
}

/// Keeps a VPID from being given to somebody else, and the NIC from being unbound, while memory is mapped.
pub(super) struct Claim {
    nic: Arc<Nic>,
    vpid: Vpid,
}

impl Claim {
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENODEV` once unbinding has begun.
    pub(super) fn new(nic: &Arc<Nic>, vpid: Vpid) -> Result<Self> {
        let tables = nic.atu.tables.lock();
        if !tables.is_open() {
            return Err(ENODEV);
        }
        if let Some(count) = nic.atu.count(vpid) {
            count.add(1, Relaxed);
        }
        drop(tables);
        Ok(Self {
            nic: nic.clone(),
            vpid,
        })
    }

    /// Maps a list of pages for the NIC. May sleep.
    pub(super) fn map(&self, pages: Arc<PageList>, access: Access) -> Result<Memory> {
        self.nic
            .with_bound(|dev| StreamingPages::map(dev, pages, access.write))?
            .map(Memory::Pages)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(count) = self.nic.atu.count(self.vpid) {
            count.fetch_sub(1, Full);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Live,
    /// Somebody zeroes the entries and has the place meanwhile.
    Zeroing,
    Revoked,
    Gone,
}

struct State {
    phase: Phase,
    place: Option<Place>,
    memory: Option<Memory>,
    claim: Option<Claim>,
    /// Tells of changes of user memory.
    watch: Option<Arc<Watch>>,
    /// Pages (numbers in the region) that may have changed in the address space.
    suspect: Option<(usize, usize)>,
    quarantined: bool,
    /// In quarantine: what the NIC has to answer.
    ticket: Option<Ticket>,
    /// Where the NLAs rest afterwards.
    bed: Option<Bed>,
}

/// See the module.
#[pin_data]
pub(crate) struct Mapping {
    nic: Arc<Nic>,
    pub(super) vpid: Vpid,
    pub(super) range: Range,
    /// Hardware pages of each size.
    nlps: Nlps,
    pub(super) access: Access,
    /// First address in the address space of user memory.
    start: usize,
    /// Whether [`State::phase`] is [`Phase::Live`], for those that can't take the lock.
    live: AtomicFlag,
    #[pin]
    state: SpinLock<State>,
    #[pin]
    work: DelayedWork<Mapping>,
}

/// Number of hardware pages of each of [`SIZE_CODES`].
type Nlps = [u64; SIZE_CODES.len()];

impl_has_delayed_work! {
    impl HasDelayedWork<Mapping> for Mapping { self.work }
}

impl WorkItem for Mapping {
    type Pointer = Arc<Mapping>;

    fn run(this: Arc<Mapping>) {
        this.verify();
        this.finish();
    }
}

/// Tells a mapping of changes of the address space.
pub(super) struct Eye(pub(super) Arc<Mapping>);

impl Watcher for Eye {
    fn changing(&self, change: Change, start: usize, end: usize) {
        let this = &self.0;
        match change {
            Change::Gone => {
                if !this.revoke() {
                    return;
                }
            }
            // The entries go on to point to pages that stay reserved, so there is time for a second look.
            Change::Suspect => {
                let first = start.saturating_sub(this.start) / PAGE;
                let last = end
                    .saturating_sub(this.start)
                    .div_ceil(PAGE)
                    .min(this.range.pages as usize);
                if !this.suspect(first, last) {
                    return;
                }
            }
        }
        this.schedule(0);
    }
}

impl Mapping {
    /// Gives memory a place in NLA space and writes its entries. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` unless the memory is made of whole pages, `ENOMEM`, `ENOSPC`, `ENODEV`.
    pub(super) fn new(
        claim: Claim,
        access: Access,
        start: usize,
        memory: Memory,
    ) -> Result<Arc<Self>> {
        let (nic, vpid) = (&claim.nic.clone(), claim.vpid);
        let prepared = memory.segments().and_then(|segments| {
            let node = RBTreeNodeReservation::new(GFP_KERNEL)?;
            let bed = Bed::new(GFP_KERNEL)?;
            let pages = segments.iter().map(|(_, pages)| *pages).sum();
            let wish = placement(segments.iter().copied());
            let place = nic.atu.tables.lock().allocate(nic, pages, wish)?;
            Ok((segments, node, bed, place))
        });
        let (segments, node, bed, place) = match prepared {
            Ok(prepared) => prepared,
            Err(e) => {
                memory.release(nic);
                return Err(e);
            }
        };
        let range = place.range;
        let written = write_entries(&place, &segments, vpid, access);
        let mapping = Arc::pin_init(
            pin_init!(Self {
                nic: nic.clone(),
                vpid,
                range,
                nlps: written.unwrap_or_default(),
                access,
                start,
                live: AtomicFlag::new(true),
                state <- new_spinlock!(
                    State {
                        phase: Phase::Live,
                        place: None,
                        memory: None,
                        claim: None,
                        watch: None,
                        suspect: None,
                        quarantined: false,
                        ticket: None,
                        bed: None,
                    },
                    "extoll_atu_mapping"
                ),
                work <- new_delayed_work!("extoll_atu_mapping"),
            }),
            GFP_KERNEL,
        );
        let mapping = match (written, mapping) {
            (Ok(_), Ok(mapping)) => mapping,
            (written, mapping) => {
                // Nobody knows the NLAs, so nothing was cached.
                zero_entries(&place);
                drop(place);
                free(nic, range, None);
                memory.release(nic);
                return Err(written.err().or(mapping.err()).unwrap_or(ENOMEM));
            }
        };
        {
            let mut state = mapping.state.lock();
            state.place = Some(place);
            state.memory = Some(memory);
            state.claim = Some(claim);
            state.bed = Some(bed);
        }
        nic.atu.pages.add(range.pages, Relaxed);
        for (all, own) in nic.atu.nlps.iter().zip(mapping.nlps) {
            all.add(own, Relaxed);
        }
        let node = node.into_node(range.first, mapping.clone());
        if !nic.atu.tables.lock().insert(node) {
            // Unbinding has looked at all others, but waits until this one is gone, too.
            mapping.revoke();
            mapping.finish();
            return Err(ENODEV);
        }
        Ok(mapping)
    }

    pub(super) fn nic(&self) -> &Arc<Nic> {
        &self.nic
    }

    pub(super) fn nla(&self) -> Nla {
        Nla(self.range.first * PAGE as u64)
    }

    /// Whether it was not revoked so far. Any context.
    pub(super) fn is_live(&self) -> bool {
        self.live.load(Relaxed)
    }

    /// Has the work item run, unless there is nothing left to do.
    fn schedule(self: &Arc<Self>, delay_ms: u32) {
        let delay = kernel::time::msecs_to_jiffies(delay_ms);
        let state = self.state.lock();
        if state.phase != Phase::Gone {
            let _ = work::enqueue_delayed(self.clone(), delay);
        }
    }

    /// Zeroes the entries and commands the flush; false if that was done before. Neither sleeps nor allocates.
    pub(super) fn revoke(&self) -> bool {
        let place = {
            let mut state = self.state.lock();
            if state.phase != Phase::Live {
                return false;
            }
            state.phase = Phase::Zeroing;
            self.live.store(false, Relaxed);
            state.suspect = None;
            state.place.take()
        };
        if let Some(place) = &place {
            zero_entries(place);
        }
        Commands::flush(&self.nic, self.range);
        let mut state = self.state.lock();
        state.place = place;
        state.phase = Phase::Revoked;
        true
    }

    /// Has changes of user memory noticed. The caller then looks at the pages itself, once.
    pub(super) fn watch(&self, watch: Arc<Watch>) {
        self.state.lock().watch = Some(watch);
    }

    /// Ends that. May sleep.
    pub(super) fn unwatch(&self) {
        let watch = self.state.lock().watch.take();
        drop(watch);
    }

    /// Has pages `first…last` (numbers in the region) looked at; false if they do not matter any more.
    fn suspect(&self, first: usize, last: usize) -> bool {
        let mut state = self.state.lock();
        if state.phase != Phase::Live {
            return false;
        }
        let (a, b) = state.suspect.unwrap_or((first, last));
        state.suspect = Some((a.min(first), b.max(last)));
        true
    }

    /// Has pages looked at some time later.
    pub(super) fn doubt(self: &Arc<Self>, first: usize, last: usize) {
        if self.suspect(first, last) {
            self.schedule(LOOK_MS);
        }
    }

    /// Looks whether suspect pages are still the process's; if not, revokes. May sleep.
    fn verify(self: &Arc<Self>) {
        loop {
            let (first, end, pages, watch) = {
                let mut state = self.state.lock();
                let Some((first, end)) = state.suspect.take() else {
                    return;
                };
                match (&state.memory, &state.watch) {
                    (Some(Memory::Pages(table)), Some(watch)) => {
                        (first, end, table.pages().clone(), watch.clone())
                    }
                    _ => return,
                }
            };
            // The news comes before the change.
            watch.settle();
            match pages.mapped(first, end) {
                Maps::Same => {}
                Maps::Other => {
                    self.revoke();
                    return;
                }
                Maps::Unclear => return self.doubt(first, end),
            }
        }
    }

    /// Waits while somebody zeroes the entries, which takes as long as that takes. May sleep.
    pub(super) fn wait_zeroed(&self) -> Phase {
        loop {
            match self.state.lock().phase {
                Phase::Zeroing => {}
                other => return other,
            }
            fsleep(Delta::from_micros(100));
        }
    }

    /// Ends a revoked mapping: waits for the NIC's answer and gives everything back; without an answer puts it in
    /// quarantine and tries again later. False in that case. In quarantine it does not wait. May sleep.
    pub(super) fn finish(self: &Arc<Self>) -> bool {
        if self.wait_zeroed() != Phase::Revoked {
            return true;
        }
        let commands = &self.nic.atu.commands;
        let (quarantined, ticket) = {
            let state = self.state.lock();
            (state.quarantined, state.ticket)
        };
        let answered = if quarantined {
            // Any ticket is answered by a NIC that is gone.
            let known = match ticket {
                Some(ticket) => commands.is_answered(&self.nic, ticket),
                None => !self.nic.is_alive() && commands.settle(&self.nic),
            };
            // The answer to the first one may be lost; that to a later one will do.
            let next = if known { None } else { commands.ask(&self.nic) };
            self.quarantine(ticket.or(next));
            known
        } else {
            match commands.wait(&self.nic) {
                Ok(()) => true,
                Err(ticket) => {
                    notice_gone(&self.nic);
                    self.quarantine(ticket);
                    false
                }
            }
        };
        if !answered {
            self.schedule(RETRY_MS);
            return false;
        }
        self.release();
        true
    }

    /// Nothing is given back until the NIC has answered.
    fn quarantine(&self, ticket: Option<Ticket>) {
        let mut state = self.state.lock();
        if state.phase != Phase::Revoked {
            return;
        }
        state.ticket = ticket;
        if !core::mem::replace(&mut state.quarantined, true) {
            drop(state);
            self.nic.atu.quarantined.add(1, Relaxed);
            let detail = self.nla().0 | u64::from(self.vpid.get()) << 48;
            self.nic.error(Reason::AtuTimeout, detail);
        }
    }

    /// Gives everything back, once. The NIC must not access the memory any more. May sleep.
    fn release(self: &Arc<Self>) {
        let (place, memory, claim, bed, quarantined) = {
            let mut state = self.state.lock();
            if state.phase != Phase::Revoked {
                return;
            }
            state.phase = Phase::Gone;
            let State {
                place,
                memory,
                claim,
                bed,
                quarantined,
                ..
            } = &mut *state;
            (
                place.take(),
                memory.take(),
                claim.take(),
                bed.take(),
                *quarantined,
            )
        };
        // Nobody schedules it any more, and nobody but its timer would know of it once it has left the tree. One that runs finds nothing to do.
        work::cancel_delayed(self);
        drop(place);
        if let Some(memory) = memory {
            memory.release(&self.nic);
        }
        let atu = &self.nic.atu;
        // Before somebody else gets the range, under whose number it was entered.
        let this = atu.tables.lock().remove(self.range.first);
        free(&self.nic, self.range, bed);
        atu.pages.fetch_sub(self.range.pages, Relaxed);
        for (all, own) in atu.nlps.iter().zip(self.nlps) {
            all.fetch_sub(own, Relaxed);
        }
        if quarantined {
            atu.quarantined.fetch_sub(1, Relaxed);
        }
        drop(this);
        // Last: unbinding waits for it.
        drop(claim);
    }
}

/// Gives a range back, and the tables that nobody needs any more. May sleep.
fn free(nic: &Nic, range: Range, bed: Option<Bed>) {
    let atu = &nic.atu;
    let idle = atu.tables.lock().free(nic, range, bed);
    if !idle.is_empty() && !atu.commands.settle(nic) {
        atu.tables.lock().park(idle);
    } else {
        drop::<KVec<Arc<Gat>>>(idle);
    }
}

/// The NIC did not answer: notices if it is gone.
fn notice_gone(nic: &Arc<Nic>) {
    if let Some(hw) = nic.alive_access() {
        let raw = hw.rf.read(atu::CONTROL);
        nic.is_gone(&hw, raw);
    }
}

/// Ends mappings that are revoked ([`Mapping::wait_zeroed`]), for which it waits once: gives them up, or puts them in quarantine. May
/// sleep.
pub(super) fn finish_all<'a>(nic: &Arc<Nic>, mappings: impl Iterator<Item = &'a Arc<Mapping>>) {
    let result = nic.atu.commands.wait(nic);
    if result.is_err() {
        notice_gone(nic);
    }
    for mapping in mappings {
        match result {
            Ok(()) => mapping.release(),
            Err(ticket) => {
                mapping.quarantine(ticket);
                mapping.schedule(RETRY_MS);
            }
        }
    }
}

fn write_entries(
    place: &Place,
    segments: &[(BusAddr, u64)],
    vpid: Vpid,
    access: Access,
) -> Result<Nlps> {
    let mut page = place.range.first;
    let mut nlps = Nlps::default();
    for (addr, pages) in segments {
        for nlp in cut(page, *addr, *pages) {
            let entry = nlp.entry(vpid, access.read, access.write).ok_or(EINVAL)?;
            for (n, code) in nlps.iter_mut().zip(SIZE_CODES) {
                *n += u64::from(code == nlp.code);
            }
            for page in nlp.first..nlp.first + (1 << nlp.code) {
                place.gat(page).ok_or(EINVAL)?.write(page, entry.raw());
            }
        }
        page += pages;
        cond_resched();
    }
    // The entries are there before anybody tells the NIC an NLA.
    barrier::wmb();
    Ok(nlps)
}

fn zero_entries(place: &Place) {
    for page in place.range.first..place.range.end() {
        if let Some(gat) = place.gat(page) {
            gat.write(page, 0);
        }
    }
}

/// Calls `f` for every mapping.
fn for_each(nic: &Arc<Nic>, f: impl Fn(&Arc<Mapping>)) {
    let mut page = 0;
    loop {
        let next = nic.atu.tables.lock().next(page);
        let Some(mapping) = next else { return };
        page = mapping.range.first;
        f(&mapping);
    }
}

/// Ends all mappings as far as the NIC answers; no new ones are made. May sleep.
pub(super) fn end_all(nic: &Arc<Nic>) {
    nic.atu.tables.lock().refuse();
    for_each(nic, |mapping| {
        mapping.revoke();
        mapping.wait_zeroed();
        work::cancel_delayed_sync(mapping);
    });
    match nic.atu.commands.wait(nic) {
        Ok(()) => for_each(nic, |mapping| mapping.release()),
        Err(ticket) => for_each(nic, |mapping| mapping.quarantine(ticket)),
    }
}

/// Ends what is left without the NIC, which has no access to memory any more. May sleep.
pub(super) fn release_all(nic: &Arc<Nic>) {
    while !nic.atu.is_idle() {
        for_each(nic, |mapping| {
            mapping.release();
            // Nobody schedules it any more.
            work::cancel_delayed_sync(mapping);
        });
        // Others may be about to give something up.
        fsleep(Delta::from_micros(100));
    }
}
