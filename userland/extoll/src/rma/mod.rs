// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! RMA: put, get, notify, lock on registered memory (HW §10).

mod queue;
mod region;

pub use region::Region;
pub use wire::ids::{Nla, NodeId, Vpid};
pub use wire::rma::{
    Command, LockResult, LockTarget, Mode, Modifiers, Notification, NotificationType, NotifySpec,
    Operation, PageOptions, MAX_LEN,
};

use crate::backend::{get, rma as nr, set, Backend, Device, RegionArg};
use crate::error::{check_range, Error, Result};
use crate::pages::Sender;
use crate::raw::PAGE;
use crate::{Buffer, Counters, Wait};
use queue::Queue;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wire::rma::{last_fragment_start, Descriptor};

/// Bytes of the notification queue that a port asks for: 16,384 notifications.
pub const QUEUE: usize = 256 << 10;
/// Bytes of a contiguous piece of it.
const SEGMENT: usize = 64 << 10;
const REQUESTER_PAGES: usize = 32;
const STATE_AT: u64 = (REQUESTER_PAGES * PAGE) as u64;
const QUEUE_AT: u64 = STATE_AT + PAGE as u64;
/// How long closing waits for the NIC to accept what was sent.
const LINGER: Duration = Duration::from_millis(100);
/// How long a split transfer waits for room between its pieces.
const ROOM: Duration = Duration::from_secs(1);

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
    sender: Mutex<Sender<3>>,
    queue: Mutex<Queue>,
    backend: Arc<dyn Backend>,
    node: NodeId,
    vpid: Vpid,
    /// Bit p: requester page p may be used; a store to another one would end the program.
    pages: u32,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let sender = self
            .sender
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        // Closing goes on whatever comes of it; there is nobody left to tell.
        let _ = sender.drain(Wait::for_at_most(LINGER));
    }
}

/// An open RMA port. `Send` and `Sync`: one lock for posting, one for notifications.
pub struct Port(Arc<Shared>);

impl Port {
    /// Opens the lowest free port of a NIC.
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
        let queue = map_queue(b)?;
        let requester = backend
            .map(0, REQUESTER_PAGES * PAGE)
            .map_err(|e| Error::os("cannot map the requester pages", e))?;
        let state = backend
            .map(STATE_AT, PAGE)
            .map_err(|e| Error::os("cannot map the buffer state", e))?;
        Ok(Self(Arc::new(Shared {
            sender: Mutex::new(Sender::new(Arc::new(requester), Arc::new(state), 0)?),
            queue: Mutex::new(queue),
            backend,
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
        let sent = self.sender().counters;
        let queue = self.queue();
        Counters {
            received: queue.received,
            commits: queue.ring.commits,
            sleeps: queue.sleeps,
            ..sent
        }
    }

    fn sender(&self) -> MutexGuard<'_, Sender<3>> {
        // A panic in another thread leaves nothing half done here: packets are taken and pushed in one step.
        self.0.sender.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Writes `len` bytes of a region to `remote`. Longer than 8 MiB: several commands, of which the last one notifies (commands
    /// of one port and traffic class are in order).
    pub fn put(
        &self,
        peer: &Peer,
        region: &Region,
        offset: u64,
        len: u64,
        remote: Nla,
        notify: NotifySpec,
    ) -> Result<()> {
        self.transfer(
            peer,
            region,
            offset,
            len,
            remote,
            notify,
            |len, local, remote| Operation::Put {
                qw: false,
                len,
                local,
                remote,
            },
        )
    }

    /// Reads `len` bytes at `remote` into a region. Longer than 8 MiB: as [`Port::put`].
    pub fn get(
        &self,
        peer: &Peer,
        region: &Region,
        offset: u64,
        len: u64,
        remote: Nla,
        notify: NotifySpec,
    ) -> Result<()> {
        self.transfer(
            peer,
            region,
            offset,
            len,
            remote,
            notify,
            |len, local, remote| Operation::Get {
                qw: false,
                len,
                remote,
                local,
            },
        )
    }

    #[allow(clippy::too_many_arguments)]
    fn transfer(
        &self,
        peer: &Peer,
        region: &Region,
        offset: u64,
        len: u64,
        remote: Nla,
        notify: NotifySpec,
        op: impl Fn(u32, u64, u64) -> Operation,
    ) -> Result<()> {
        check_range(offset, len, region.len())?;
        let local = region.nla_at(offset)?.0;
        let mut done = 0;
        loop {
            let part = (len - done).min(u64::from(MAX_LEN)) as u32;
            let last = done + u64::from(part) == len;
            let spec = if last { notify } else { NotifySpec::NONE };
            let words = self.encode(
                peer,
                spec,
                Modifiers::NONE,
                op(part, local.wrapping_add(done), remote.0.wrapping_add(done)),
            )?;
            if done == 0 {
                self.post_words(peer.options, words)?;
            } else {
                self.sender()
                    .post_wait(peer.options.index(), &words, Wait::for_at_most(ROOM))?;
            }
            done += u64::from(part);
            if last {
                return Ok(());
            }
        }
    }

    /// [`Port::put`] that waits until the data has left: the region may be changed, the peer may not have it yet.
    pub fn put_wait(
        &self,
        peer: &Peer,
        region: &Region,
        offset: u64,
        len: u64,
        remote: Nla,
        wait: Wait,
    ) -> Result<()> {
        let notify = NotifySpec {
            requester: true,
            ..NotifySpec::NONE
        };
        self.retry(wait, || self.put(peer, region, offset, len, remote, notify))?;
        let at = last_piece(region.nla_at(offset)?.0, len);
        self.complete(peer, wait, NotificationType::Requester, move |n| {
            n.command == Command::BytePut && n.word0 == at
        })?;
        Ok(())
    }

    /// [`Port::get`] that waits until the data is in the region.
    pub fn get_wait(
        &self,
        peer: &Peer,
        region: &Region,
        offset: u64,
        len: u64,
        remote: Nla,
        wait: Wait,
    ) -> Result<()> {
        let notify = NotifySpec {
            completer: true,
            ..NotifySpec::NONE
        };
        self.retry(wait, || self.get(peer, region, offset, len, remote, notify))?;
        let at = last_piece(region.nla_at(offset)?.0, len);
        self.complete(peer, wait, NotificationType::Completer, move |n| {
            n.command == Command::ByteGetResponse && n.word0 == at
        })?;
        Ok(())
    }

    /// Fetch-compare-and-add at the peer: if the lock ≤ `compare` then `add` is added. Waits for the outcome.
    pub fn lock_wait(
        &self,
        peer: &Peer,
        at: LockTarget,
        number: u32,
        compare: i32,
        add: i32,
        wait: Wait,
    ) -> Result<LockResult> {
        let notify = NotifySpec {
            completer: true,
            ..NotifySpec::NONE
        };
        let op = Operation::Lock {
            at,
            number,
            compare,
            add,
        };
        self.retry(wait, || self.post(peer, notify, Modifiers::NONE, op))?;
        let n = self.complete(peer, wait, NotificationType::Completer, move |n| {
            n.command == Command::LockResponse && LockResult(n.word0).number() == number
        })?;
        Ok(LockResult(n.word0))
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
        loop {
            match post() {
                Err(Error::Full) if wait.is_over() => return Err(Error::Timeout),
                Err(Error::Full) => std::thread::yield_now(),
                other => return other,
            }
        }
    }

    fn complete(
        &self,
        peer: &Peer,
        wait: Wait,
        kind: NotificationType,
        is_it: impl Fn(&Notification) -> bool,
    ) -> Result<Notification> {
        let (node, vpid) = (peer.node, peer.vpid);
        let n = self.wait_for(wait, move |n| {
            n.kind == kind && n.node == node && n.vpid == vpid && (n.error != 0 || is_it(n))
        })?;
        match n.error {
            0 => Ok(n),
            bits => Err(Error::Transfer(bits)),
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
        wait.until(
            self.0.backend.fd(),
            |idle| {
                let found = look(&mut self.queue())?;
                if found.is_none() && idle {
                    // What the NIC dropped is repaired here, or its notification would never come.
                    self.settle()?;
                }
                Ok(found)
            },
            |necessary| {
                let mut queue = self.queue();
                if necessary {
                    queue.ring.arm(&*self.0.backend);
                } else {
                    queue.ring.arm_once(&*self.0.backend);
                }
                queue.sleeps += 1;
            },
        )
    }

    /// Looks whether the NIC dropped packets and repeats them. The waiting calls do it by themselves.
    pub fn settle(&self) -> Result<()> {
        self.sender().settle()
    }

    /// Waits until the NIC accepted everything that was posted; that says nothing about its arrival.
    pub fn drain(&self, wait: Wait) -> Result<()> {
        self.sender().drain(wait)
    }

    /// Asks for an interrupt with the next notification of a command posted with [`Peer::interrupting`]. Look for
    /// notifications once more before waiting on the descriptor.
    pub fn arm(&self) {
        self.queue().ring.arm(&*self.0.backend);
    }

    /// Bytes of the notification queue.
    pub fn queue_size(&self) -> usize {
        self.queue().ring.slots() as usize * 16
    }

    /// Makes a new, empty queue of `bytes` bytes in segments of `segment` bytes, both multiples of the page size. For a port
    /// without traffic: notifications in the old one are lost.
    pub fn resize_queue(&self, bytes: u64, segment: u64) -> Result<()> {
        let b = &*self.0.backend;
        let mut queue = self.queue();
        let old = (
            get(b, nr::GET_NOTIQ_SIZE, "queue size")?,
            get(b, nr::GET_NOTIQ_SEGMENT_SIZE, "segment size")?,
        );
        let change = |bytes, segment| -> Result<Queue> {
            set(b, nr::SET_NOTIQ_SEGMENT_SIZE, segment, "segment size")?;
            set(b, nr::SET_NOTIQ_SIZE, bytes, "queue size")?;
            map_queue(b)
        };
        let (new, result) = match change(bytes, segment) {
            Ok(new) => (Ok(new), Ok(())),
            Err(e) => (change(old.0, old.1), Err(e)),
        };
        let counted = (queue.received, queue.sleeps, queue.ring.commits);
        *queue = new?;
        (queue.received, queue.sleeps, queue.ring.commits) = counted;
        result
    }

    /// Address of the oldest notification in the queue that `wanted` accepts by its two words, for language bindings; `Err` with
    /// the number of those that are there but not wanted. It stays valid until freed or the queue is resized.
    pub fn peek(&self, wanted: impl Fn([u64; 2]) -> bool) -> std::result::Result<*mut u8, usize> {
        self.queue().peek(wanted)
    }

    /// [`Port::peek`] that waits.
    pub fn peek_wait(&self, wait: Wait, wanted: impl Fn([u64; 2]) -> bool) -> Result<*mut u8> {
        self.wait_until(wait, |queue| Ok(queue.peek(&wanted).ok()))
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

/// Word 0 of the notification of a transfer that may be split (HW §10.4).
fn last_piece(start: u64, len: u64) -> u64 {
    let before = len.saturating_sub(1) / u64::from(MAX_LEN) * u64::from(MAX_LEN);
    last_fragment_start(start.wrapping_add(before), (len - before) as u32)
}

fn map_queue(backend: &dyn Backend) -> Result<Queue> {
    let bytes = get(backend, nr::GET_NOTIQ_SIZE, "queue size")? as usize;
    let map = backend
        .map(QUEUE_AT, bytes.saturating_add(PAGE))
        .map_err(|e| Error::os("cannot map the notification queue", e))?;
    set(backend, nr::SET_NOTIQ_WP, 0, "write pointer")?;
    set(backend, nr::SET_NOTIQ_RP, 0, "read pointer")?;
    Queue::new(map, bytes)
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
