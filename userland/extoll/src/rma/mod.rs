// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! RMA: put, get, notify, lock on registered memory (HW §10).

mod jobs;
mod queue;
mod region;
mod text;
mod wait;

pub use queue::Found;
pub use region::Region;
pub use text::content;
pub use wait::commands;
pub use wire::ids::{Nla, NodeId, Vpid};
pub use wire::rma::{
    Command, LockResult, LockTarget, Mode, Modifiers, Notification, NotificationType, NotifySpec,
    Operation, PageOptions, MAX_LEN,
};

use crate::backend::{get, rma as nr, set, Backend, Device, RegionArg};
use crate::error::{check_range, Error, Result};
use crate::pages::{Outbox, Pages};
use crate::raw::PAGE;
use crate::ring::{Ring, HOLE};
use crate::wait::{Armed, Link, Pauses, SETTLE};
use crate::{Buffer, Counters, Wait};
use jobs::Jobs;
use queue::Queue;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wait::{get_of, put_of};
use wire::rma::Descriptor;
use wire::route::MCAST_GROUPS;

/// Bytes of the notification queue that a port asks for: 16,384 notifications.
pub const QUEUE: usize = 256 << 10;
/// Bytes of a contiguous piece of it.
const SEGMENT: usize = 64 << 10;
const REQUESTER_PAGES: usize = 32;
const STATE_AT: u64 = (REQUESTER_PAGES * PAGE) as u64;
const QUEUE_AT: u64 = STATE_AT + PAGE as u64;
/// Longest sleep while nothing is known of what is waited for: most commands are not posted with [`Peer::interrupting`].
const UNPROMISED: Duration = Duration::from_millis(100);
/// Packets of a port that may be outstanding (HW §8).
const PACKETS: u64 = 255;

/// A port of some node as the target of commands, with the options of the requester page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its node.
    pub node: NodeId,
    /// Its number there.
    pub vpid: Vpid,
    /// Traffic class, interrupts, kind of addresses.
    pub options: PageOptions,
}

impl Peer {
    /// Translated addresses, traffic class 0, no interrupts.
    pub fn new(node: NodeId, vpid: Vpid) -> Self {
        let options = PageOptions {
            translate: true,
            ..PageOptions::default()
        };
        Self {
            node,
            vpid,
            options,
        }
    }

    /// Every notification of the commands also wakes who sleeps on the port that gets it.
    #[must_use]
    pub fn interrupting(mut self) -> Self {
        self.options.irq = true;
        self
    }

    /// On traffic class 0…3; between classes there is no order.
    #[must_use]
    pub fn class(mut self, class: u8) -> Self {
        self.options.traffic_class = class & 3;
        self
    }
}

/// What a port and its regions share; the last of them closes the device.
pub(crate) struct Shared {
    // In this order: the mappings go before the descriptor that closes the port.
    sender: Outbox<3>,
    queue: Mutex<Queue>,
    backend: Arc<dyn Backend>,
    link: Arc<Link>,
    node: NodeId,
    vpid: Vpid,
    /// Bit p: requester page p may be used; a store to another one would end the program.
    pages: u32,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.sender.close(self.backend.fd());
    }
}

/// An open RMA port. `Send` and `Sync`: one lock for posting, one for notifications.
pub struct Port(Arc<Shared>);

impl Port {
    /// Opens a free port of a NIC.
    pub fn open(device: &Device) -> Result<Self> {
        Self::with_backend(Arc::new(device.open("rma2")?))
    }

    /// The port behind an open device node.
    pub fn with_backend(backend: Arc<dyn Backend>) -> Result<Self> {
        let b = &*backend;
        set(
            b,
            nr::SET_NOTIQ_SEGMENT_SIZE,
            SEGMENT as u64,
            "segment size",
        )?;
        set(b, nr::SET_NOTIQ_SIZE, QUEUE as u64, "queue size")?;
        let node = NodeId(get(b, nr::GET_NODEID, "node ID")? as u16);
        let vpid = get(b, nr::GET_VPID, "VPID")?;
        let vpid = u16::try_from(vpid)
            .ok()
            .and_then(Vpid::new)
            .ok_or_else(|| Error::Driver(format!("VPID {vpid}")))?;
        let info = backend
            .info()
            .map_err(|e| Error::os("cannot read the port information", e))?;
        let pages = info.map_or(u32::MAX, |i| i.pages);
        let link = Arc::default();
        let queue = Queue::new(map_queue(b, &link)?);
        let requester = backend
            .map(0, REQUESTER_PAGES * PAGE)
            .map_err(|e| Error::os("cannot map the requester pages", e))?;
        let state = backend
            .map(STATE_AT, PAGE)
            .map_err(|e| Error::os("cannot map the buffer state", e))?;
        let to = Pages {
            requester: Arc::new(requester),
            state: Arc::new(state),
            state_at: 0,
            marks: info.is_some_and(|i| i.marks),
        };
        Ok(Self(Arc::new(Shared {
            sender: Outbox::new(to, &link)?,
            queue: Mutex::new(queue),
            backend,
            link,
            node,
            vpid,
            pages,
        })))
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.0.node
    }

    /// This port.
    pub fn vpid(&self) -> Vpid {
        self.0.vpid
    }

    /// The device node behind the port.
    pub fn backend(&self) -> &dyn Backend {
        &*self.0.backend
    }

    /// Counters since the port was opened.
    pub fn counters(&self) -> Counters {
        let sent = self.sender().counters();
        let queue = self.queue();
        Counters {
            received: queue.received,
            commits: queue.commits(),
            skipped: queue.skipped(),
            sleeps: queue.sleeps,
            woken: self.0.link.woken(),
            ..sent
        }
    }

    fn sender(&self) -> &Outbox<3> {
        &self.0.sender
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a buffer: from now on peers that know the NLA can read and write it through this port.
    pub fn register(&self, buffer: Buffer) -> Result<Region> {
        Region::new(self.0.clone(), buffer)
    }

    /// Registers memory by address, for language bindings.
    ///
    /// # Safety
    /// Until [`Port::unregister_memory`] succeeded or the port is closed, the memory must stay allocated, and neither it nor what
    /// shares its pages may be accessed through Rust references.
    pub unsafe fn register_memory(&self, address: u64, bytes: u64) -> Result<RegionArg> {
        // SAFETY: the caller promises what crate::raw::register asks for.
        unsafe { crate::raw::register(&*self.0.backend, address, bytes) }
    }

    /// Ends a registration by address; afterwards the NIC does not access the memory any more.
    pub fn unregister_memory(&self, mut arg: RegionArg) -> Result<()> {
        self.0
            .backend
            .unregister(&mut arg)
            .map_err(|e| Error::os("cannot unregister", e))
    }

    /// Posts one command, or fails with [`Error::Full`] at once. Local addresses are NLAs of this port's regions.
    pub fn post(
        &self,
        peer: &Peer,
        notify: NotifySpec,
        modifiers: Modifiers,
        op: Operation,
    ) -> Result<()> {
        let words = self.encode(peer, notify, modifiers, op)?;
        self.post_words(peer.options, words)
    }

    /// Posts a descriptor built elsewhere, or fails with [`Error::Full`] at once.
    pub fn post_words(&self, options: PageOptions, words: [u64; 3]) -> Result<()> {
        self.check_page(options)?;
        self.sender().post(options.index(), &words)
    }

    /// Fails if the driver does not let this process use such commands.
    pub fn check_page(&self, options: PageOptions) -> Result<()> {
        match (self.0.pages >> options.index()) & 1 {
            0 => Err(Error::Forbidden(options)),
            _ => Ok(()),
        }
    }

    fn encode(
        &self,
        peer: &Peer,
        notify: NotifySpec,
        modifiers: Modifiers,
        op: Operation,
    ) -> Result<[u64; 3]> {
        check_target(peer.node, modifiers)?;
        Descriptor {
            node: peer.node,
            vpid: peer.vpid,
            notify,
            modifiers,
            op,
        }
        .encode()
        .map_err(Error::Descriptor)
    }

    /// Writes `len` bytes of a region to `remote`, or fails with [`Error::Full`] at once, and nothing is sent. Longer than 8 MiB:
    /// [`commands`] of them, each of which notifies as `notify` says, as an error is reported by the one it hits alone; all or
    /// none are posted, at most 255. Commands of one port and traffic class are in order.
    pub fn put(
        &self,
        peer: &Peer,
        region: &Region,
        offset: u64,
        len: u64,
        remote: Nla,
        notify: NotifySpec,
    ) -> Result<()> {
        self.transfer(peer, region, (offset, len), remote, notify, put_of)
    }

    /// Reads `len` bytes at `remote` into a region; the rest is as for [`Port::put`].
    pub fn get(
        &self,
        peer: &Peer,
        region: &Region,
        offset: u64,
        len: u64,
        remote: Nla,
        notify: NotifySpec,
    ) -> Result<()> {
        self.transfer(peer, region, (offset, len), remote, notify, get_of)
    }

    fn transfer(
        &self,
        peer: &Peer,
        region: &Region,
        (offset, len): (u64, u64),
        remote: Nla,
        notify: NotifySpec,
        op: fn(u32, u64, u64) -> Operation,
    ) -> Result<()> {
        check_range(offset, len, region.len())?;
        let most = PACKETS * u64::from(MAX_LEN);
        check_range(0, len, most)?;
        self.check_page(peer.options)?;
        let local = region.nla_at(offset)?.0;
        let piece = |n: u64| {
            let done = n * u64::from(MAX_LEN);
            let part = (len - done).min(u64::from(MAX_LEN)) as u32;
            let op = op(part, local.wrapping_add(done), remote.0.wrapping_add(done));
            self.encode(peer, notify, Modifiers::NONE, op)
        };
        let count = commands(len);
        let page = peer.options.index();
        match count {
            1 => self.sender().post(page, &piece(0)?),
            _ => {
                let all = (0..count).map(piece).collect::<Result<Vec<_>>>()?;
                self.sender().post_all(page, &all)
            }
        }
    }

    /// Sends a value and a class to the peer, which finds them in a notification.
    pub fn notify(&self, peer: &Peer, class: u8, value: u64) -> Result<()> {
        let notify = NotifySpec {
            completer: true,
            ..NotifySpec::NONE
        };
        self.post(
            peer,
            notify,
            Modifiers::NONE,
            Operation::NotificationPut { class, value },
        )
    }

    /// Repeats what fails with [`Error::Full`] until there is room.
    pub fn retry<T>(&self, wait: Wait, mut post: impl FnMut() -> Result<T>) -> Result<T> {
        let mut pauses = Pauses::new(wait);
        loop {
            match post() {
                Err(Error::Full) => pauses.pause(&self.0.link, self.0.backend.fd())?,
                other => return other,
            }
        }
    }

    /// The next notification, if there is one. Its `error` field is for the caller to look at.
    pub fn try_notification(&self) -> Result<Option<Notification>> {
        self.queue().take(|_| true)
    }

    /// The next notification.
    pub fn notification(&self, wait: Wait) -> Result<Notification> {
        self.wait_for(wait, |_| true)
    }

    /// The oldest notification that `wanted` accepts; others stay where they are.
    pub fn wait_for(
        &self,
        wait: Wait,
        wanted: impl Fn(&Notification) -> bool,
    ) -> Result<Notification> {
        self.wait_until(wait, |queue| queue.take(&wanted))
    }

    fn wait_until<T>(
        &self,
        wait: Wait,
        mut look: impl FnMut(&mut Queue) -> Result<Option<T>>,
    ) -> Result<T> {
        // Nobody else takes what is looked for: it is there, or comes as a notification.
        let waiting = |_: &Jobs| true;
        let sleep = UNPROMISED;
        self.look_until(wait, sleep, || look(&mut self.queue()), || Ok(()), waiting)
    }

    /// Waits until `look` finds something. `sleep` is the longest sleep. `check` fails when that cannot happen any more; `waiting` says
    /// whether nothing but a notification lets it find something.
    fn look_until<T>(
        &self,
        wait: Wait,
        sleep: Duration,
        look: impl FnMut() -> Result<Option<T>>,
        check: impl Fn() -> Result<()>,
        waiting: impl Fn(&Jobs) -> bool,
    ) -> Result<T> {
        wait.until(
            &self.0.link,
            self.0.backend.fd(),
            look,
            || {
                // What the NIC dropped is repaired here, or its notification would never come. Another thread that sends does that, too.
                self.sender().try_settle()?;
                self.queue().skip_lost(&*self.0.backend)?;
                check()
            },
            |necessary| {
                let mut queue = self.queue();
                queue.sleeps += 1;
                let armed = queue.ring()?.arm(&*self.0.backend, necessary)?;
                Ok(match waiting(&queue.jobs) {
                    true => armed,
                    false => Armed::Look,
                })
            },
            || Some(self.poll_timeout().map_or(sleep, |time| time.min(sleep))),
        )
    }

    /// Looks whether the NIC dropped packets and repeats them, and whether something got lost on its way into the queue. The
    /// waiting calls and [`Port::arm`] do it by themselves; programs that only try have to.
    pub fn settle(&self) -> Result<()> {
        self.sender().settle()?;
        self.queue().skip_lost(&*self.0.backend)
    }

    /// Waits until the NIC accepted everything that was posted; that says nothing about its arrival.
    pub fn drain(&self, wait: Wait) -> Result<()> {
        self.sender().drain(self.0.backend.fd(), wait)
    }

    /// For event loops: asks for an interrupt with the next notification of a command posted with [`Peer::interrupting`], and
    /// repeats what the NIC dropped. Then look for notifications, then wait until the descriptor is readable, at most as long as this
    /// says, and begin again; `None`: as long as you like. Time-outs are needed while commands are unconfirmed: nothing makes
    /// the descriptor readable when the NIC drops one.
    pub fn arm(&self) -> Result<Option<Duration>> {
        self.queue().ring()?.arm(&*self.0.backend, true)?;
        self.settle()?;
        Ok(self.poll_timeout())
    }

    /// How long to wait on the descriptor at most, by the last look; see [`Port::arm`].
    pub fn poll_timeout(&self) -> Option<Duration> {
        if self.sender().is_unconfirmed() {
            Some(SETTLE)
        } else {
            self.queue().is_suspect().then_some(HOLE)
        }
    }

    /// Bytes of the notification queue; 0 if there is none any more.
    pub fn queue_size(&self) -> usize {
        self.queue().slots() as usize * 16
    }

    /// Makes a new, empty queue of `bytes` bytes in segments of `segment` bytes, both multiples of the page size. For a port
    /// without traffic: notifications in the old one are lost. After an error the port has a queue of the old size; if not even
    /// that can be made, everything that receives fails with [`Error::NoQueue`] until another call of this succeeds.
    pub fn resize_queue(&self, bytes: u64, segment: u64) -> Result<()> {
        let page = PAGE as u64;
        if bytes == 0 || segment == 0 || segment % page != 0 || bytes % segment != 0 {
            return Err(Error::QueueSize { bytes, segment });
        }
        let b = &*self.0.backend;
        let mut queue = self.queue();
        let old = (
            get(b, nr::GET_NOTIQ_SIZE, "queue size")?,
            get(b, nr::GET_NOTIQ_SEGMENT_SIZE, "segment size")?,
        );
        let sizes = |(bytes, segment): (u64, u64)| -> Result<()> {
            set(b, nr::SET_NOTIQ_SEGMENT_SIZE, segment, "segment size")?;
            set(b, nr::SET_NOTIQ_SIZE, bytes, "queue size")
        };
        if let Err(e) = sizes((bytes, segment)) {
            // Nothing was made yet, so nothing is lost; the first error is the one to tell.
            let _ = sizes(old);
            return Err(e);
        }
        // From here on the driver may have taken the old queue away: no access to it any more.
        queue.replace(None);
        let map = || map_queue(b, &self.0.link);
        let made = map();
        let (ring, result) = match made {
            Ok(ring) => (Some(ring), Ok(())),
            Err(e) => (sizes(old).and_then(|()| map()).ok(), Err(e)),
        };
        queue.replace(ring);
        // Threads that sleep wait for a slot of the old queue.
        self.0.link.wake();
        result
    }

    /// Lends the oldest notification in the queue that `wanted` accepts by its two words, for language bindings: its address
    /// stays valid, and nobody else gets it, until it is freed or the queue is resized.
    pub fn peek(&self, wanted: impl Fn([u64; 2]) -> bool) -> Result<Found> {
        self.queue().lend(wanted)
    }

    /// [`Port::peek`] that waits.
    pub fn peek_wait(&self, wait: Wait, wanted: impl Fn([u64; 2]) -> bool) -> Result<*mut u8> {
        self.wait_until(wait, |queue| {
            Ok(match queue.lend(&wanted)? {
                Found::At(address) => Some(address),
                Found::Others(_) => None,
            })
        })
    }

    /// Frees a notification given out by [`Port::peek`], in any order; false if the address is not one of those.
    pub fn free(&self, address: *const u8) -> bool {
        self.queue().free(address)
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.backend.fd()
    }
}

/// Fails for what is no node, or with [`Modifiers::multicast`] no group.
pub fn check_target(node: NodeId, modifiers: Modifiers) -> Result<()> {
    match modifiers.multicast {
        true if node.0 >= MCAST_GROUPS => Err(Error::Group(node.0)),
        false if node.is_reserved() => Err(Error::Node(node.0)),
        _ => Ok(()),
    }
}

fn map_queue(backend: &dyn Backend, link: &Arc<Link>) -> Result<Ring> {
    let bytes = get(backend, nr::GET_NOTIQ_SIZE, "queue size")? as usize;
    let map = backend
        .map(QUEUE_AT, bytes.saturating_add(PAGE))
        .map_err(|e| Error::queue("notification queue", e))?;
    set(backend, nr::SET_NOTIQ_WP, 0, "write pointer")?;
    // One slot stays unused, see `Ring::commit`.
    set(
        backend,
        nr::SET_NOTIQ_RP,
        queue::last(bytes),
        "read pointer",
    )?;
    queue::ring(map, bytes, link)
}

/// Limits and settings of a port that only some programs need.
impl Port {
    /// Nodes that the driver supports.
    pub fn max_nodes(&self) -> Result<u64> {
        get(self.backend(), nr::GET_MAXNODEID, "number of nodes")
    }

    /// Ports per node.
    pub fn max_ports(&self) -> Result<u64> {
        get(self.backend(), nr::GET_MAXVPID, "number of ports")
    }

    /// Traffic classes of the responses to requests of class 0…3, one byte each from bit 0.
    pub fn response_classes(&self) -> Result<u64> {
        get(self.backend(), nr::GET_TCS, "traffic classes")
    }

    /// Sets [`Port::response_classes`]; the driver may refuse it to unprivileged programs.
    pub fn set_response_classes(&self, classes: u64) -> Result<()> {
        set(self.backend(), nr::SET_TCS, classes, "traffic classes")
    }

    /// Protection descriptor: packets with another one are dropped.
    pub fn protection(&self) -> Result<u64> {
        get(self.backend(), nr::GET_PROTDESC, "protection descriptor")
    }

    /// Sets [`Port::protection`]; the driver may refuse it to unprivileged programs.
    pub fn set_protection(&self, descriptor: u16) -> Result<()> {
        set(
            self.backend(),
            nr::SET_PROTDESC,
            descriptor.into(),
            "protection descriptor",
        )
    }

    /// Bytes of a queue segment.
    pub fn segment_size(&self) -> Result<u64> {
        get(self.backend(), nr::GET_NOTIQ_SEGMENT_SIZE, "segment size")
    }

    /// The node ID as it is now; it changes when the network is set up anew.
    pub fn read_node(&self) -> Result<NodeId> {
        Ok(NodeId(
            get(self.backend(), nr::GET_NODEID, "node ID")? as u16
        ))
    }
}
