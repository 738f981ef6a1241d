// SPDX-License-Identifier: GPL-2.0-only

//! Registered memory, transfers of any length and locks: what the scenarios `raw::atu_*`, `raw::large` and `raw::locks`
//! use. Nodes tell each other VPID and NLA by way of whoever gives the commands.

use crate::{
    attached::Attached,
    command::Words,
    engines::{self, Heard},
    protocol::pattern,
    report::Report,
};
use extoll_core::{
    atu::{self, Access, Region},
    dma::DmaWords,
    nic::Nic,
    rma::{
        transfer::{CallIn, Destination, Engine, RmaError, Setup, Submitter, Tell},
        Address, Fault, LockTarget,
    },
};
use kernel::{
    dma::DataDirection, page::Page, prelude::*, scatterlist::SGTable, sync::Arc, time::Delta,
};
use kernel_ext::{
    mem::{PageList, PAGE},
    sched::cond_resched,
};
use wire::ids::{BusAddr, Nla, NodeId, Vpid};

/// Bytes of the notification queue.
pub(crate) const QUEUE_BYTES: u32 = 512 << 10;
/// Most kernel memory of an offer or a copy.
const MAX_OWN: usize = 64 << 20;
/// Words between two occasions for others to run.
const STRIDE: usize = 4096;

/// What memory is made of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Contiguous, coherent.
    Coherent,
    /// Single pages.
    Pages,
    /// A virtually contiguous kernel buffer.
    Buffer,
    /// A mapped scatterlist, which the CPU does not reach any more.
    Table,
    /// Memory of the process that gives the command.
    User,
    /// Coherent and not registered.
    Bus,
}

impl Kind {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "coherent" => Kind::Coherent,
            "pages" => Kind::Pages,
            "buffer" => Kind::Buffer,
            "table" => Kind::Table,
            "user" => Kind::User,
            "bus" => Kind::Bus,
            _ => return None,
        })
    }
}

/// How the CPU reaches memory.
pub(crate) enum View {
    Words(Arc<DmaWords>),
    Pages(Arc<PageList>),
    None,
}

impl View {
    /// Makes memory of `bytes` bytes; `EINVAL` for a kind that is registered in the making. May sleep.
    pub(crate) fn new(nic: &Arc<Nic>, kind: Kind, bytes: usize) -> Result<Self> {
        let pages = match kind {
            Kind::Coherent | Kind::Bus => {
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
            Kind::Table | Kind::User => return Err(EINVAL),
        };
        Ok(View::Pages(Arc::new(pages, GFP_KERNEL)?))
    }

    /// Registers all of the memory. May sleep.
    pub(crate) fn register(&self, nic: &Arc<Nic>, vpid: Vpid, access: Access) -> Result<Region> {
        match self {
            View::Words(words) => atu::register_coherent(nic, vpid, words.clone(), access),
            View::Pages(pages) => atu::register_pages(nic, vpid, pages.clone(), access),
            View::None => Err(EINVAL),
        }
    }

    pub(crate) fn read(&self, i: usize) -> u64 {
        match self {
            View::Words(words) => words.read(i),
            View::Pages(pages) => pages.read(i),
            View::None => 0,
        }
    }

    pub(crate) fn write(&self, i: usize, value: u64) {
        match self {
            View::Words(words) => words.write(i, value),
            View::Pages(pages) => pages.write(i, value),
            View::None => {}
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

    /// First word that is not word `first` + i of the pattern.
    fn mismatch(&self, bytes: usize, seed: Option<u64>, first: u64) -> Option<usize> {
        (0..bytes / 8).find(|i| {
            if i % STRIDE == 0 {
                cond_resched();
            }
            self.read(*i) != seed.map_or(0, |seed| pattern(seed, first + *i as u64))
        })
    }
}

/// Memory with a port. Fields in the order in which they go.
pub(crate) struct Offer {
    region: Option<Region>,
    engine: Engine,
    view: View,
    bytes: usize,
    /// What peers told, if somebody listens.
    pub(crate) heard: Option<Arc<Heard>>,
}

fn scatterlist(
    nic: &Arc<Nic>,
    vpid: Vpid,
    bytes: usize,
    seed: Option<u64>,
    access: Access,
) -> Result<Region> {
    let mut buffer = VVec::with_capacity(bytes, GFP_KERNEL)?;
    for i in 0..bytes / 8 {
        let word = seed.map_or(0, |seed| pattern(seed, i as u64));
        buffer.extend_from_slice(&word.to_le_bytes(), GFP_KERNEL)?;
    }
    let direction = if access.write {
        DataDirection::Bidirectional
    } else {
        DataDirection::ToDevice
    };
    let table = nic.with_bound(|dev| {
        KBox::pin_init(SGTable::new(dev, buffer, direction, GFP_KERNEL), GFP_KERNEL)
    })??;
    atu::register_table(nic, vpid, table, access)
}

/// Makes `bytes` bytes of memory filled with the pattern (zeros without seed) and registers them, unless their kind says
/// not to. May sleep.
pub(crate) fn memory(
    nic: &Arc<Nic>,
    vpid: Vpid,
    words: &Words,
    bytes: usize,
    seed: Option<u64>,
) -> Result<(Option<Region>, View)> {
    let access = words.access;
    let region = match words.kind {
        Kind::Table => scatterlist(nic, vpid, bytes, seed, access)?,
        Kind::User => atu::register_user(nic, vpid, words.start as usize, bytes, access)?,
        kind => {
            let view = View::new(nic, kind, bytes)?;
            let region = match kind {
                Kind::Bus => None,
                _ => Some(view.register(nic, vpid, access)?),
            };
            view.fill(bytes, seed);
            return Ok((region, view));
        }
    };
    Ok((Some(region), View::None))
}

impl Offer {
    /// Opens a port, makes `bytes` bytes of memory filled with the pattern (zeros without seed) and registers them.
    fn new(nic: &Arc<Nic>, words: &Words, bytes: usize, seed: Option<u64>) -> Result<Self> {
        let mut setup = Setup::default();
        let heard = match words.listen {
            true => Some(Arc::new(Heard::new(nic, words.slow_us), GFP_KERNEL)?),
            false => None,
        };
        if let Some(heard) = heard.clone() {
            let context = match words.slow_us {
                0 => CallIn::Poll,
                _ => CallIn::Process,
            };
            setup.listener = Some((heard, context));
        }
        let engine = engines::open(nic, setup)?;
        let vpid = engine.requester().vpid();
        let (region, view) = memory(nic, vpid, words, bytes, seed)?;
        Ok(Self {
            region,
            engine,
            view,
            bytes,
            heard,
        })
    }

    /// Its engine, and that one's VPID.
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

/// The word `bytes`, checked.
pub(crate) fn bytes(words: &Words, report: &mut Report<'_>) -> Result<usize> {
    let bytes = words.bytes as usize;
    if bytes == 0 || bytes % PAGE != 0 {
        return report.fail(EINVAL, fmt!("bytes is a multiple of {PAGE}, not 0"));
    }
    if bytes > MAX_OWN && words.kind != Kind::User {
        return report.fail(EINVAL, fmt!("at most {MAX_OWN} bytes of kernel memory"));
    }
    Ok(bytes)
}

/// `offer`: memory for peers.
pub(crate) fn offer(attached: &Attached, words: &Words, report: &mut Report<'_>) -> Result {
    let bytes = bytes(words, report)?;
    let mut place = attached.offer();
    let Some(nic) = attached.nic() else {
        return report.fail(ENODEV, fmt!("the NIC is gone"));
    };
    if place.is_some() {
        return report.fail(EBUSY, fmt!("there is an offer"));
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

/// `offered`: what became of the offer; compares its memory with the pattern of `seed`, or zeros for seed 0.
pub(crate) fn offered(attached: &Attached, words: &Words, report: &mut Report<'_>) -> Result {
    let place = attached.offer();
    let Some(offer) = place.as_ref() else {
        return report.fail(ENOENT, fmt!("there is no offer"));
    };
    let alive = offer.region.as_ref().is_some_and(Region::is_alive);
    report.number("alive", u64::from(alive))?;
    compare(&offer.view, offer.bytes, words.seed, 0, report)
}

/// Reports the first of `bytes` / 8 words that differs from word `first` and following of the pattern (seed 0: from zeros).
pub(crate) fn compare(
    view: &View,
    bytes: usize,
    seed: u64,
    first: u64,
    report: &mut Report<'_>,
) -> Result {
    let seed = (seed != 0).then_some(seed);
    match view.mismatch(bytes, seed, first) {
        Some(word) => report.line(fmt!("mismatch {word}")),
        None => report.line(fmt!("mismatch none")),
    }
}

/// `revoke`: ends the region; memory and port stay.
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

/// `withdraw`: ends the offer.
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
        // Its counter of errors shows what was refused.
        tell: match words.get {
            true => Tell::Nothing,
            false => Tell::Each,
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

/// `copy`: one transfer between new local memory and NLA (or bus address) `nla` + `offset` of a peer, verified where that
/// is possible from here.
pub(crate) fn copy(
    nic: &Arc<Nic>,
    words: &Words,
    timeout: Delta,
    report: &mut Report<'_>,
) -> Result {
    let to = destination(words, report)?;
    let bytes = bytes(words, report)?;
    let get = words.get;
    let local = match Offer::new(nic, words, bytes, (!get).then_some(words.seed)) {
        Ok(local) => local,
        Err(e) => return report.fail(e, fmt!("no local memory: {e:?}")),
    };
    let address = local.address(words.nla + words.offset)?;
    let engine = &local.engine;
    let len = words.len.unwrap_or(bytes as u64);
    let handle = if get {
        engine.get(to, address, len, timeout)
    } else {
        engine.put_confirmed(to, address, len, timeout)
    };
    let result = handle.and_then(|handle| handle.wait());
    outcome(result, report)?;
    if get && result.is_ok() && !matches!(local.view, View::None) {
        let first = words.offset / 8;
        compare(&local.view, len as usize & !7, words.seed, first, report)?;
    }
    if let Some(region) = local.region {
        if let Err(e) = region.revoke() {
            report.line(fmt!("revoked {e:?}"))?;
        }
    }
    Ok(())
}

/// `lock`: `count` times fetch-compare-and-add on lock `number`.
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
        // Both units do the same (G16).
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
