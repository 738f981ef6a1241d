// SPDX-License-Identifier: GPL-2.0-only

//! RMA: put, get, locks, notifications (HW §10).
//!
//! [`open`] gives the two halves of a port: a [`Requester`], which may be shared and cloned, and its queue of
//! [`Notifications`], which has one owner. The port is closed when all of them are dropped; dropping may sleep.
//! [`transfer::Engine`] takes both and offers transfers of any length with one completion and a deadline each.
//!
//! Commands name memory by [`Address`]: bus addresses on both sides, which nobody checks (it must stay mapped for the
//! device until the notification says that they are done; without one, closing the port is not enough, see
//! [`quarantine`]), or a local [`Region`] and an NLA of the peer, which the ATUs
//! check.

pub mod transfer;

use crate::{
    atu::Region,
    bq::{self, Queue},
    dma::DmaWords,
    intake::Reader,
    nic::Nic,
    quarantine, residue,
    stats::{add, PortStats, Reason},
    tx::{self, Tx},
    vpid::Client,
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex, UniqueArc},
};
use kernel_ext::{barrier, trace};
use wire::{
    bq::SlotCode,
    ids::{BusAddr, Nla, NodeId, Unit, Vpid},
    regs::{info, np, rma, wcbuf},
    rma::RequesterAddr,
};

pub use crate::tx::SendError;
pub use wire::rma::{
    last_fragment_start, Command, Descriptor, LockResult, LockTarget, Modifiers, Notification,
    NotificationType, NotifySpec, Operation, PageOptions, MAX_IMMEDIATE, MAX_LEN,
};
pub use wire::transfer::{Fault, FaultCause, FaultUnit};

/// Words of a descriptor.
const PACKET_WORDS: usize = 3;
/// Default size of the notification queue in bytes (HW §7).
pub const DEFAULT_QUEUE_BYTES: u32 = 2 << 20;

/// Where a command goes, how, and what is reported about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Remote node.
    pub node: NodeId,
    /// Remote VPID.
    pub vpid: Vpid,
    /// Notifications asked for.
    pub notify: NotifySpec,
    /// Requester page: traffic class, remote registers, interrupts. Translation follows from the [`Address`].
    pub page: PageOptions,
    /// Modifiers: one notification per fragment (NTR), multicast. The NIC may refuse some (G14).
    pub modifiers: Modifiers,
    /// Quadword instead of byte GETs and PUTs: lengths and addresses are multiples of 8.
    pub quadwords: bool,
}

impl Peer {
    /// Byte commands on traffic class 0 without notifications and modifiers.
    pub const fn new(node: NodeId, vpid: Vpid) -> Self {
        Self {
            node,
            vpid,
            notify: NotifySpec::NONE,
            page: PageOptions::from_index(0),
            modifiers: Modifiers::NONE,
            quadwords: false,
        }
    }
}

/// Memory on both sides of a command. The NIC translates both or none (HW §10.1), so they come together.
#[derive(Clone, Copy)]
pub enum Address<'a> {
    /// Bus addresses. Memory of a command that is not done goes to [`quarantine`] instead of being freed.
    Bus {
        /// Here.
        local: BusAddr,
        /// At the peer.
        remote: BusAddr,
    },
    /// Registered memory.
    Region {
        /// Local region; has to be alive, of the port's VPID, and allow the access.
        region: &'a Region,
        /// Byte offset in it.
        offset: usize,
        /// NLA in a region of the peer's VPID.
        remote: Nla,
    },
}

/// Memory of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remote {
    /// Bus address.
    Bus(BusAddr),
    /// NLA in a region of the peer's VPID.
    Nla(Nla),
}

/// Both sides as numbers.
#[derive(Clone, Copy)]
struct Ends {
    translate: bool,
    local: u64,
    remote: u64,
}

impl Address<'_> {
    /// Checks the local side for a port of `vpid` that reads (or, for a GET, writes) `len` bytes there.
    fn ends(&self, vpid: Vpid, write: bool, len: u64) -> Option<Ends> {
        match *self {
            Address::Bus { local, remote } => Some(Ends {
                translate: false,
                local: local.0,
                remote: remote.0,
            }),
            Address::Region {
                region,
                offset,
                remote,
            } => {
                let access = region.access();
                let allowed = if write { access.write } else { access.read };
                let local = region.slice(offset, usize::try_from(len).ok()?)?;
                (allowed && region.vpid() == vpid).then_some(Ends {
                    translate: true,
                    local: local.0,
                    remote: remote.0,
                })
            }
        }
    }
}

/// Hardware side of an open port.
struct Port {
    nic: Arc<Nic>,
    vpid: Vpid,
    tx: Arc<Tx<PACKET_WORDS>>,
    queue: Queue,
    stats: Arc<PortStats>,
}

impl Port {
    fn new(
        nic: &Arc<Nic>,
        vpid: Vpid,
        queue_bytes: u32,
        stats: Arc<PortStats>,
    ) -> Result<Arc<Self>> {
        let place = UniqueArc::new_uninit(GFP_KERNEL)?;
        let tx = Tx::new(nic, Unit::Rma, vpid, stats.clone())?;
        let queue =
            nic.with_bound(|dev| Queue::new(dev, Unit::Rma, vpid, SlotCode::B16, queue_bytes))??;
        nic.rma.set_tx(vpid, tx.clone());
        // Nothing fails any more: the drop of the port releases the VPID.
        Ok(place
            .write(Self {
                nic: nic.clone(),
                vpid,
                tx,
                queue,
                stats,
            })
            .into())
    }

    /// Opening sequence of HW §10.9.
    fn install(&self) -> Result {
        let wait = quarantine::wait_ms(&self.nic, self.vpid);
        let entry = match wait {
            None => rma::VPID_ENABLED,
            Some(_) => rma::VPID_DISABLED,
        };
        {
            let hw = self.nic.alive_access().ok_or(ENODEV)?;
            hw.rf.write(rma::vpid_table(self.vpid), entry);
            tx::reset_state(&hw, Unit::Rma, self.vpid);
            self.queue.install(&hw)?;
        }
        if let Some(ms) = wait {
            quarantine::postpone(&self.nic, self.vpid, ms);
        }
        Ok(())
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let settled = self.tx.close();
        quarantine::forget(&self.nic, self.vpid);
        self.nic.withdraw(rma::vpid_table(self.vpid), |hw| {
            hw.rf.write(rma::vpid_table(self.vpid), rma::VPID_DISABLED);
            bq::clear(hw, Unit::Rma, self.vpid);
        });
        self.nic.locks.clear(self.vpid);
        let used = self.tx.is_used();
        residue::release(&self.nic, Unit::Rma, self.vpid, used, settled);
    }
}

/// Requesting half of a port.
#[derive(Clone)]
pub struct Requester(Arc<Port>);

/// Notification queue of a port.
pub struct Notifications {
    port: Arc<Port>,
    reader: Reader,
}

/// Opens a port with the given VPID, or the user VPID that has been free for longest, and a queue of `queue_bytes`, a power of two of
/// 512 KiB…64 MiB ([`DEFAULT_QUEUE_BYTES`], 16 bytes per notification). Interrupts are armed, but nobody hears them
/// before [`Requester::attach`]. The VPID may stay disabled for a while ([`Requester::is_enabled`]). May sleep.
///
/// # Errors
///
/// `EBUSY` if the VPID is taken, or something of its last owner is left, `ENOSPC` if none is free, `EINVAL` for the size, `ENOMEM`, `ENODEV` if the device is
/// gone.
pub fn open(
    nic: &Arc<Nic>,
    vpid: Option<Vpid>,
    queue_bytes: u32,
) -> Result<(Requester, Notifications)> {
    let stats = Arc::new(PortStats::new(), GFP_KERNEL)?;
    let clean = |v| nic.atu().is_clean(v);
    let vpid = nic.rma.allocate(vpid, stats.clone(), clean)?;
    // From success on the port's drop releases the VPID.
    let port = Port::new(nic, vpid, queue_bytes, stats).inspect_err(|_| nic.rma.release(vpid))?;
    let reader = Reader::new(nic, Unit::Rma, vpid)?;
    port.install()?;
    Ok((Requester(port.clone()), Notifications { port, reader }))
}

impl Requester {
    /// Own VPID.
    pub fn vpid(&self) -> Vpid {
        self.0.vpid
    }

    /// The NIC.
    pub fn nic(&self) -> &Arc<Nic> {
        &self.0.nic
    }

    /// Counters.
    pub fn stats(&self) -> &PortStats {
        &self.0.stats
    }

    /// False while the VPID stays disabled because of [`crate::quarantine`]: commands are refused with `Retry`, answers and
    /// commands of peers are not taken, and [`Client::writable`] follows. Any context.
    pub fn is_enabled(&self) -> bool {
        !self.0.nic.quarantine.is_waiting(self.0.vpid)
    }

    /// Sets who hears of interrupts and of room to send. Replaces an earlier client, which is not called any more when
    /// this returns. Call [`Notifications::rearm`] afterwards. Not from a client's method.
    pub fn attach(&self, client: Arc<dyn Client>) {
        self.0.nic.rma.set_client(self.0.vpid, Some(client));
    }

    /// Removes the client: when this returns, it is not called any more. Not from a client's method.
    pub fn detach(&self) {
        self.0.nic.rma.set_client(self.0.vpid, None);
    }

    /// Commands that can be posted by the last known state. No register access, any context.
    pub fn room(&self) -> usize {
        self.0.tx.room()
    }

    /// Commands given to the port since it was opened, and those of them that it will not post again. No register access, any context.
    pub fn progress(&self) -> (u64, u64) {
        self.0.tx.progress()
    }

    /// Makes sure that the next `n` (at most 255) commands do not fail for lack of credit, provided nobody else posts;
    /// see [`velo::Sender::reserve`](crate::velo::Sender::reserve).
    ///
    /// # Errors
    ///
    /// As [`Requester::post`].
    pub fn reserve(&self, n: usize) -> Result<(), SendError> {
        if !self.is_enabled() {
            return Err(SendError::Retry);
        }
        self.0.tx.reserve(n)
    }

    /// Posts a command. Any context; takes an interrupt-safe spin lock.
    ///
    /// # Errors
    ///
    /// `Full`: no credit. `Retry`: lost commands are being sent again, or the VPID is not enabled yet. In both cases nothing was posted and
    /// [`Client::writable`] follows, perhaps even before this returns. `Down`: for ever. `Invalid`: a count, address or
    /// number that the command does not allow.
    pub fn post(&self, page: PageOptions, descriptor: &Descriptor) -> Result<(), SendError> {
        let words = descriptor.encode().map_err(|_| SendError::Invalid)?;
        if !self.is_enabled() {
            return Err(SendError::Retry);
        }
        let page = RequesterAddr::page(self.0.vpid, page).encode();
        self.0.tx.post(page, &words)?;
        let [a, b, c] = words;
        trace::rma_post(self.0.nic.id(), self.0.vpid.get() as u8, a, b, c);
        Ok(())
    }

    fn command(&self, peer: &Peer, translate: bool, op: Operation) -> Result<(), SendError> {
        let page = PageOptions {
            translate,
            ..peer.page
        };
        self.post(
            page,
            &Descriptor {
                node: peer.node,
                vpid: peer.vpid,
                notify: peer.notify,
                modifiers: peer.modifiers,
                op,
            },
        )
    }

    fn get_ends(&self, peer: &Peer, ends: Ends, len: u32) -> Result<(), SendError> {
        let op = Operation::Get {
            qw: peer.quadwords,
            len,
            remote: ends.remote,
            local: ends.local,
        };
        self.command(peer, ends.translate, op)
    }

    fn put_ends(&self, peer: &Peer, ends: Ends, len: u32) -> Result<(), SendError> {
        let op = Operation::Put {
            qw: peer.quadwords,
            len,
            local: ends.local,
            remote: ends.remote,
        };
        self.command(peer, ends.translate, op)
    }

    /// Reads `len` (1…8 MiB) bytes of the peer's memory into local memory. See [`Requester::post`].
    ///
    /// # Errors
    ///
    /// As [`Requester::post`]; `Invalid` also for a local region that is dead, too short, read-only or another VPID's.
    pub fn get(&self, peer: Peer, address: Address<'_>, len: u32) -> Result<(), SendError> {
        let ends = address
            .ends(self.vpid(), true, len.into())
            .ok_or(SendError::Invalid)?;
        self.get_ends(&peer, ends, len)
    }

    /// Writes `len` (1…8 MiB) bytes of local memory to the peer's memory. See [`Requester::post`].
    ///
    /// # Errors
    ///
    /// As [`Requester::get`], where the local region has to allow reading.
    pub fn put(&self, peer: Peer, address: Address<'_>, len: u32) -> Result<(), SendError> {
        let ends = address
            .ends(self.vpid(), false, len.into())
            .ok_or(SendError::Invalid)?;
        self.put_ends(&peer, ends, len)
    }

    /// Writes the low `len` (1…8) bytes of `value` to the peer's memory. See [`Requester::post`].
    ///
    /// # Errors
    ///
    /// As [`Requester::post`].
    pub fn put_immediate(
        &self,
        peer: Peer,
        remote: Remote,
        value: u64,
        len: u8,
    ) -> Result<(), SendError> {
        let (translate, remote) = match remote {
            Remote::Bus(addr) => (false, addr.0),
            Remote::Nla(nla) => (true, nla.0),
        };
        self.command(
            &peer,
            translate,
            Operation::ImmediatePut { len, remote, value },
        )
    }

    /// Fetch-compare-and-add on lock `number` of the peer's VPID: if its value is at most `compare`, adds `add`. The
    /// completer notification carries the outcome as [`LockResult`]. See [`Requester::post`].
    ///
    /// # Errors
    ///
    /// As [`Requester::post`].
    pub fn lock(
        &self,
        peer: Peer,
        at: LockTarget,
        number: u32,
        compare: i32,
        add: i32,
    ) -> Result<(), SendError> {
        self.command(
            &peer,
            false,
            Operation::Lock {
                at,
                number,
                compare,
                add,
            },
        )
    }

    /// Only notifies the peer, with a class and a value. See [`Requester::post`].
    ///
    /// # Errors
    ///
    /// As [`Requester::post`].
    pub fn notify(&self, peer: Peer, class: u8, value: u64) -> Result<(), SendError> {
        self.command(&peer, false, Operation::NotificationPut { class, value })
    }

    /// Gives up commands that the NIC did not take, e.g. after a transmit time-out. Any context.
    pub fn reset(&self) {
        self.0.tx.reset();
    }
}

impl Notifications {
    /// Takes up to `budget` notifications and calls `f` for each; returns their number. Fewer than `budget` means that
    /// the queue was found empty. Slots that stay empty although the NIC wrote them are skipped. No register access but an
    /// occasional read pointer update, and a look at the write pointer while nothing comes. Any context.
    pub fn poll(&mut self, budget: usize, mut f: impl FnMut(&Notification)) -> usize {
        let mut done = 0;
        while done < budget {
            let port = &self.port;
            let (queue, slot) = (&port.queue, self.reader.next());
            let word1 = queue.status(slot);
            if word1 == 0 {
                let overdue = self.reader.overdue(queue);
                if overdue == 0 {
                    break;
                }
                let lost = self.reader.run_of_empty(queue, overdue);
                port.nic.error(
                    Reason::LostNotification,
                    u64::from(port.vpid.get()) | u64::from(lost) << 32,
                );
                add(&port.stats.skipped, lost.into());
                self.reader.advance(queue, lost);
                continue;
            }
            barrier::dma_rmb();
            let word0 = queue.read(slot, 0);
            trace::rma_complete(port.nic.id(), port.vpid.get() as u8, slot, word0, word1);
            self.reader.advance(queue, 1);
            done += 1;
            match Notification::decode([word0, word1]) {
                Ok(Some(notification)) => {
                    add(&port.stats.received, 1);
                    if notification.error != 0 {
                        add(&port.stats.errors, 1);
                        port.nic.error(Reason::NotificationError, word1);
                    }
                    f(&notification);
                }
                Ok(None) | Err(_) => {
                    add(&port.stats.errors, 1);
                    port.nic.error(Reason::BadNotification, word1);
                }
            }
        }
        let port = &self.port;
        self.reader.commit_if_due(&port.queue, &port.stats);
        done
    }

    /// True when a notification waits. No register access.
    pub fn pending(&self) -> bool {
        self.port.queue.status(self.reader.next()) != 0
    }

    /// Unmasks the interrupt of the port after the queue was found empty. True when a notification is waiting all the
    /// same: poll again, as its interrupt may or may not come (G7).
    #[must_use]
    pub fn rearm(&mut self) -> bool {
        let port = &self.port;
        self.reader.rearm(&port.queue, &port.stats);
        self.pending()
    }
}

/// The locks (HW §10.6), in host memory from [`init`] to [`Locks::free`].
#[pin_data]
pub(crate) struct Locks {
    #[pin]
    memory: Mutex<Option<DmaWords>>,
}

impl Locks {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self { memory <- new_mutex!(None, "extoll_locks") })
    }

    /// Zeroes the locks of a VPID that is closed. May sleep.
    pub(crate) fn clear(&self, vpid: Vpid) {
        if let Some(memory) = &*self.memory.lock() {
            for i in (vpid.index()..memory.words() * 2).step_by(usize::from(Vpid::COUNT)) {
                memory.write_half(i, 0);
            }
        }
    }

    /// Frees the memory, of which the NIC does not know any more. May sleep.
    pub(crate) fn free(&self) {
        let memory = self.memory.lock().take();
        drop(memory);
    }
}

/// `rma2` part of the probe (HW §3.5). `mps` and `mrrs`: PCIe maximum payload and read request sizes in bytes.
pub(crate) fn init(nic: &Arc<Nic>, mps: u32, mrrs: u32) -> Result {
    let locks = nic.with_bound(|dev| DmaWords::new(dev, rma::LOCK_MEMORY as usize / 8))??;
    let hw = nic.access().ok_or(ENODEV)?;
    nic.set_node(info::Node(hw.rf.read(info::NODE)).node_id());
    drop(hw);
    for vpid in Vpid::all() {
        let hw = nic.access().ok_or(ENODEV)?;
        hw.rf.write(rma::vpid_table(vpid), rma::VPID_DISABLED);
        tx::reset_state(&hw, Unit::Rma, vpid);
    }
    let hw = nic.access().ok_or(ENODEV)?;
    hw.rf
        .write(rma::CONFIG, rma::Config::for_pcie(mps, mrrs).raw());
    hw.rf.write(rma::LOCK_BASE, locks.address().0);
    hw.rf.write(rma::LOCK_CFG, rma::LOCK_CFG_INIT);
    for reg in [
        rma::REQUESTER_ERROR_CTRL,
        rma::RESPONDER_ERROR_CTRL,
        rma::COMPLETER_ERROR_CTRL,
    ] {
        hw.rf.update(reg, |v| v & rma::ERROR_CTRL_INIT_MASK);
    }
    hw.rf.update(rma::BQ_TIMEOUT, |v| {
        (v & !0xFFFF_FFFF) | (rma::BQ_TIMEOUT_INIT & 0xFFFF_FFFF)
    });
    hw.rf.update(rma::BQ_TIMEOUT, |v| {
        v | (rma::BQ_TIMEOUT_INIT & !0xFFFF_FFFF)
    });
    hw.rf.update(wcbuf::rma::TIMEOUT, |v| {
        (v & 0xFFFF_FFFF) | (wcbuf::TIMEOUT_INIT & !0xFFFF_FFFF)
    });
    hw.rf
        .update(wcbuf::rma::TIMEOUT, |v| v | (wcbuf::TIMEOUT_INIT & 1));
    hw.rf
        .write(np::general(np::RMA_COMPLETER), np::GENERAL_INIT);
    hw.rf
        .write(np::general(np::RMA_RESPONDER), np::GENERAL_INIT);
    drop(hw);
    *nic.locks.memory.lock() = Some(locks);
    Ok(())
}

/// Disconnects the unit from the network and forgets the lock memory.
pub(crate) fn stop(nic: &Nic) {
    let Some(hw) = nic.alive_access() else { return };
    hw.rf.write(np::general(np::RMA_COMPLETER), 0);
    hw.rf.write(np::general(np::RMA_RESPONDER), 0);
    hw.rf.write(rma::LOCK_CFG, 0);
    hw.rf.write(rma::LOCK_BASE, 0);
}
