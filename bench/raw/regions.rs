// SPDX-License-Identifier: GPL-2.0-only

//! Registered memory, transfers of any length and locks, for the scenarios `raw::atu_*`,
//! `raw::large` and `raw::locks`. The program that writes the commands passes VPIDs and NLAs
//! between the nodes.

use crate::{
    attached::Attached,
    command::Words,
    engines::{self, Received},
    protocol::pattern,
    report::Report,
};
use core::ops::Range;
use extoll_core::{
    atu::{Access, Region, WholePages},
    dma::DmaWords,
    nic::Nic,
    rma::{
        transfer::{CallIn, Destination, Engine, Notify, RmaError, Setup, Submitter},
        Address, Fault, LockTarget,
    },
};
use kernel::{page::Page, prelude::*, sync::Arc, time::Delta};
use kernel_ext::{
    mem::{PageList, PAGE},
    sched::cond_resched,
};
use wire::ids::{BusAddr, Nla, NodeId, Vpid};

/// Size of the notification queue in bytes.
pub(crate) const QUEUE_BYTES: u32 = 512 << 10;
/// Maximum size in bytes of the kernel memory that an offer or a copy allocates.
const MAX_OWN: usize = 64 << 20;
/// Number of words between two voluntary preemption points.
const STRIDE: usize = 4096;

/// Kind of memory that a command allocates.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Single pages that are not contiguous.
    Pages,
    /// A virtually contiguous kernel buffer.
    Buffer,
    /// Contiguous and coherent memory that is not registered.
    Bus,
}

impl Kind {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "pages" => Kind::Pages,
            "buffer" => Kind::Buffer,
            "bus" => Kind::Bus,
            _ => return None,
        })
    }
}

/// Allocated memory, as the CPU accesses it.
pub(crate) enum View {
    Words(Arc<DmaWords>),
    Pages(Arc<PageList>),
}

impl View {
    /// Allocates memory of `bytes` bytes. May sleep.
    pub(crate) fn new(nic: &Arc<Nic>, kind: Kind, bytes: usize) -> Result<Self> {
        let pages = match kind {
            Kind::Bus => {
                let memory = nic.with_bound(|dev| DmaWords::new(dev, bytes / 8))??;
                return Ok(View::Words(Arc::new(memory, GFP_KERNEL)?));
            }
            Kind::Pages => {
                let mut list = KVVec::new();
                for _ in 0..bytes / PAGE {
                    list.push(Page::alloc_page(GFP_KERNEL | __GFP_ZERO)?, GFP_KERNEL)?;
                }
                PageList::from_pages(list)?
            }
            Kind::Buffer => PageList::from_buffer(VVec::from_elem(0u8, bytes, GFP_KERNEL)?)?,
        };
        Ok(View::Pages(Arc::new(pages, GFP_KERNEL)?))
    }

    /// Registers the whole memory. May sleep.
    pub(crate) fn register(&self, nic: &Arc<Nic>, vpid: Vpid, access: Access) -> Result<Region> {
        match self {
            View::Words(_) => Err(EINVAL),
            View::Pages(pages) => nic.atu().register_pages(vpid, pages.clone(), access),
        }
    }

    /// Registers `bytes` bytes of the memory, beginning at byte `first` of the first page. May
    /// sleep.
    fn register_range(
        &self,
        nic: &Arc<Nic>,
        vpid: Vpid,
        (first, bytes): (usize, usize),
        access: Access,
    ) -> Result<Region> {
        let View::Pages(pages) = self else {
            return Err(EINVAL);
        };
        // The whole pages may be exposed, because all of their bytes belong to this module.
        let whole = WholePages::EXPOSED;
        nic.atu()
            .register_range(vpid, pages.clone(), first, bytes, access, whole)
    }

    pub(crate) fn read(&self, i: usize) -> u64 {
        match self {
            View::Words(words) => words.read(i),
            View::Pages(pages) => pages.read(i),
        }
    }

    pub(crate) fn write(&self, i: usize, value: u64) {
        match self {
            View::Words(words) => words.write(i, value),
            View::Pages(pages) => pages.write(i, value),
        }
    }

    pub(crate) fn fill(&self, bytes: usize, seed: Option<u64>) {
        for i in 0..bytes / 8 {
            self.write(i, seed.map_or(0, |seed| pattern(seed, i as u64)));
            if i % STRIDE == 0 {
                cond_resched();
            }
        }
    }

    /// Returns the index of the first word in `words` that differs from the pattern. Word 0 is
    /// compared with pattern word `first`.
    fn mismatch(&self, mut words: Range<usize>, seed: Option<u64>, first: u64) -> Option<usize> {
        words.find(|i| {
            if i % STRIDE == 0 {
                cond_resched();
            }
            self.read(*i) != seed.map_or(0, |seed| pattern(seed, first + *i as u64))
        })
    }
}

/// Memory that peers may access through a port. Fields are dropped in this order.
pub(crate) struct Offer {
    region: Option<Region>,
    engine: Engine,
    view: View,
    /// Range of the offered words.
    words: Range<usize>,
    /// Counters of the peers' notifications, if there is a listener.
    pub(crate) received: Option<Arc<Received>>,
}

/// Revokes the region while the port is open, so that the NLAs of the region are free at once.
impl Drop for Offer {
    fn drop(&mut self) {
        if let Some(region) = self.region.take() {
            // The result is ignored. NLAs stay reserved while commands are unanswered.
            let _ = region.revoke();
        }
    }
}

/// Allocates `bytes` bytes of memory filled with the pattern, or with zeros for `None`. Registers
/// them, unless their kind needs no registration. May sleep.
pub(crate) fn memory(
    nic: &Arc<Nic>,
    vpid: Vpid,
    words: &Words,
    bytes: usize,
    seed: Option<u64>,
) -> Result<(Option<Region>, View)> {
    let access = words.access;
    let view = View::new(nic, words.kind, bytes)?;
    let region = match (words.kind, words.range()) {
        (Kind::Bus, _) => None,
        (_, None) => Some(view.register(nic, vpid, access)?),
        (_, Some(range)) => Some(view.register_range(nic, vpid, range, access)?),
    };
    view.fill(bytes, seed);
    Ok((region, view))
}

impl Offer {
    /// Opens a port. Allocates and registers `bytes` bytes of memory filled with the pattern, or
    /// with zeros for `None`.
    fn new(nic: &Arc<Nic>, words: &Words, bytes: usize, seed: Option<u64>) -> Result<Self> {
        let mut setup = Setup::default();
        let received = if words.listen {
            Some(Arc::new(Received::new(nic, words.slow_us), GFP_KERNEL)?)
        } else {
            None
        };
        if let Some(received) = received.clone() {
            let context = match words.slow_us {
                0 => CallIn::Poll,
                _ => CallIn::Process,
            };
            setup.listener = Some((received, context));
        }
        let engine = engines::open(nic, setup)?;
        let vpid = engine.requester().vpid();
        let (region, view) = memory(nic, vpid, words, bytes, seed)?;
        let (first, len) = words.range().unwrap_or((0, bytes));
        Ok(Self {
            region,
            engine,
            view,
            words: first / 8..(first + len) / 8,
            received,
        })
    }

    /// Returns the engine of the offer and its VPID.
    pub(crate) fn engine(&self) -> (Submitter, Vpid) {
        (self.engine.submitter(), self.engine.requester().vpid())
    }

    fn address(&self, remote: u64) -> Result<Address<'_>> {
        match (&self.region, &self.view) {
            (Some(region), _) => Ok(Address::Region {
                region,
                offset: 0,
                remote: Nla(remote),
            }),
            (None, View::Words(words)) => Ok(Address::Bus {
                local: words.address(),
                remote: BusAddr(remote),
            }),
            _ => Err(EINVAL),
        }
    }
}

/// Returns the value of the word `bytes` after a check.
pub(crate) fn bytes(words: &Words, report: &mut Report<'_>) -> Result<usize> {
    let bytes = words.bytes as usize;
    if bytes == 0 || bytes % PAGE != 0 {
        return report.fail(EINVAL, fmt!("bytes is a multiple of {PAGE}, not 0"));
    }
    if bytes > MAX_OWN {
        return report.fail(EINVAL, fmt!("bytes exceeds the limit of {MAX_OWN}"));
    }
    Ok(bytes)
}

/// Command `offer`: registers memory and opens it to peers.
pub(crate) fn offer(attached: &Attached, words: &Words, report: &mut Report<'_>) -> Result {
    let bytes = bytes(words, report)?;
    let mut place = attached.offer();
    let Some(nic) = attached.nic() else {
        return report.fail(ENODEV, fmt!("the NIC is gone"));
    };
    if place.is_some() {
        return report.fail(EBUSY, fmt!("there is an offer already"));
    }
    let offer = match Offer::new(&nic, words, bytes, Some(words.seed)) {
        Ok(offer) => offer,
        Err(e) => return report.fail(e, fmt!("cannot offer: {e:?}")),
    };
    report.number("vpid", u64::from(offer.engine.requester().vpid().get()))?;
    if let (None, View::Words(words)) = (&offer.region, &offer.view) {
        report.number("nla", words.address().0)?;
    }
    if let Some(region) = &offer.region {
        report.number("nla", region.nla().0)?;
        report.number("bytes", region.bytes() as u64)?;
    }
    *place = Some(offer);
    Ok(())
}

/// Command `offered`: shows the state of the offer. Compares the memory of the offer with the
/// pattern of `seed`, or with zeros if the seed is 0.
pub(crate) fn offered(attached: &Attached, words: &Words, report: &mut Report<'_>) -> Result {
    let place = attached.offer();
    let Some(offer) = place.as_ref() else {
        return report.fail(ENOENT, fmt!("there is no offer"));
    };
    let alive = offer.region.as_ref().is_some_and(Region::is_alive);
    report.number("alive", u64::from(alive))?;
    compare_words(&offer.view, offer.words.clone(), words.seed, 0, report)
}

/// Compares `bytes` / 8 words with the pattern, beginning at pattern word `first`, or with zeros if
/// the seed is 0. Reports the index of the first word that differs.
pub(crate) fn compare(
    view: &View,
    bytes: usize,
    seed: u64,
    first: u64,
    report: &mut Report<'_>,
) -> Result {
    compare_words(view, 0..bytes / 8, seed, first, report)
}

fn compare_words(
    view: &View,
    words: Range<usize>,
    seed: u64,
    first: u64,
    report: &mut Report<'_>,
) -> Result {
    let seed = (seed != 0).then_some(seed);
    match view.mismatch(words, seed, first) {
        Some(word) => report.line(fmt!("mismatch {word}")),
        None => report.line(fmt!("mismatch none")),
    }
}

/// Command `revoke`: ends the region of the offer. Memory and port stay.
pub(crate) fn revoke(attached: &Attached, report: &mut Report<'_>) -> Result {
    let region = match &mut *attached.offer() {
        Some(offer) => offer.region.take(),
        None => None,
    };
    let Some(region) = region else {
        return report.fail(ENOENT, fmt!("there is no region"));
    };
    match region.revoke() {
        Ok(()) => report.line(fmt!("result ok")),
        Err(e) => report.line(fmt!("result {e:?}")),
    }
}

/// Command `withdraw`: ends the offer.
pub(crate) fn withdraw(attached: &Attached, report: &mut Report<'_>) -> Result {
    let offer = attached.offer().take();
    if offer.is_none() {
        return report.fail(ENOENT, fmt!("there is no offer"));
    }
    Ok(())
}

pub(crate) fn destination(words: &Words, report: &mut Report<'_>) -> Result<Destination> {
    let Some(node) = words.node else {
        return report.fail(EINVAL, fmt!("node= is missing"));
    };
    Ok(Destination {
        node: NodeId(node as u16),
        vpid: Vpid::new(words.vpid as u16).ok_or(EINVAL)?,
        traffic_class: words.tc as u8,
        // GETs request no notification, because the peer's error counter shows rejected accesses.
        notify: if words.get {
            Notify::Nothing
        } else {
            Notify::Each
        },
    })
}

pub(crate) fn outcome(result: Result<(), RmaError>, report: &mut Report<'_>) -> Result {
    match result {
        Ok(()) => report.line(fmt!("result ok")),
        Err(RmaError::Fault(Fault { unit, cause })) => {
            report.line(fmt!("result {unit:?} {cause:?}"))
        }
        Err(e) => report.line(fmt!("result {e:?}")),
    }
}

/// Command `copy`: performs one transfer between new local memory and the NLA (or bus address)
/// `nla` + `offset` of a peer. Verifies the data if it is in local memory.
pub(crate) fn copy(
    nic: &Arc<Nic>,
    words: &Words,
    timeout: Delta,
    report: &mut Report<'_>,
) -> Result {
    let to = destination(words, report)?;
    let bytes = bytes(words, report)?;
    let get = words.get;
    let mut local = match Offer::new(nic, words, bytes, (!get).then_some(words.seed)) {
        Ok(local) => local,
        Err(e) => return report.fail(e, fmt!("no local memory: {e:?}")),
    };
    let address = local.address(words.nla + words.offset)?;
    let engine = &local.engine;
    let len = words.len.unwrap_or(bytes as u64);
    let result = if get {
        let handle = engine.get(to, address, len, timeout);
        handle.and_then(|handle| handle.wait())
    } else {
        engines::put(engine, to, address, len, timeout)
    };
    outcome(result, report)?;
    if get && result.is_ok() {
        let first = words.offset / 8;
        compare(&local.view, len as usize & !7, words.seed, first, report)?;
    }
    if let Some(region) = local.region.take() {
        if let Err(e) = region.revoke() {
            report.line(fmt!("revoked {e:?}"))?;
        }
    }
    Ok(())
}

/// Command `lock`: performs `count` fetch-compare-and-add operations on lock `number`.
pub(crate) fn lock(
    nic: &Arc<Nic>,
    words: &Words,
    timeout: Delta,
    report: &mut Report<'_>,
) -> Result {
    let to = destination(words, report)?;
    let (requester, notifications) = nic.rma().open(None, QUEUE_BYTES)?;
    let engine = Engine::new(requester, notifications)?;
    let (mut successes, mut value, mut timeouts) = (0, 0, 0);
    for i in 0..words.count {
        // Both units must behave equally (G16), so the test alternates between them.
        let at = if i % 2 == 0 {
            LockTarget::Completer
        } else {
            LockTarget::Responder
        };
        let operands = (words.compare as i32, words.add as i32);
        match engine.lock(to, at, words.number as u32, operands, timeout) {
            Ok(locked) => {
                successes += u64::from(locked.success);
                value = locked.value;
            }
            Err(RmaError::TimedOut) if timeouts < words.patience => timeouts += 1,
            Err(e) => return outcome(Err(e), report),
        }
    }
    outcome(Ok(()), report)?;
    report.number("timeouts", timeouts)?;
    report.number("successes", successes)?;
    report.line(fmt!("value {value}"))
}
