// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! RMA commands on registered memory: put, get, notification and lock (HW §10).

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

/// Size of a port's notification queue in bytes: 16,384 notifications.
pub const QUEUE: usize = 256 << 10;
/// Size of a physically contiguous segment of the queue in bytes.
const SEGMENT: usize = 64 << 10;
const REQUESTER_PAGES: usize = 32;
const STATE_AT: u64 = (REQUESTER_PAGES * PAGE) as u64;
const QUEUE_AT: u64 = STATE_AT + PAGE as u64;
/// Maximum sleep while it is unknown whether the awaited notification raises an interrupt. Most
/// commands are posted without [`Peer::interrupting`].
const UNPROMISED: Duration = Duration::from_millis(100);
/// Maximum number of outstanding packets of a port (HW §8).
const PACKETS: u64 = 255;

/// Remote port to which commands are sent, with the options of the requester page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// ID of the port's node.
    pub node: NodeId,
    /// VPID of the port.
    pub vpid: Vpid,
    /// Traffic class, interrupts and kind of addresses.
    pub options: PageOptions,
}

impl Peer {
    /// Addresses a port with translated addresses, traffic class 0 and no interrupts.
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

    /// Makes all notifications of the commands raise interrupts. An interrupt wakes programs that
    /// sleep on the port that receives the notification.
    #[must_use]
    pub fn interrupting(mut self) -> Self {
        self.options.irq = true;
        self
    }

    /// Sets the traffic class, 0 to 3. Commands of different classes have no defined order.
    #[must_use]
    pub fn class(mut self, class: u8) -> Self {
        self.options.traffic_class = class & 3;
        self
    }
}

/// State that a port and its regions share. When the last of them is dropped, the device node is
/// closed.
pub(crate) struct Shared {
    // Fields are dropped in this order. The mappings must be dropped before the descriptor, which
    // closes the port.
    sender: Outbox<3>,
    queue: Mutex<Queue>,
    backend: Arc<dyn Backend>,
    link: Arc<Link>,
    node: NodeId,
    vpid: Vpid,
    /// Bit p is set if requester page p may be used. A store to another page would kill the
    /// process.
    pages: u32,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.sender.close(self.backend.fd());
    }
}

/// Open RMA port. The type is `Send` and `Sync`. It has one lock for posting and one for
/// notifications.
pub struct Port(Arc<Shared>);

impl Port {
    /// Opens an unused port of a NIC.
    pub fn open(device: &Device) -> Result<Self> {
        Self::with_backend(Arc::new(device.open("rma2")?))
    }

    /// Creates a port for an open device node.
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

    /// Returns the ID of this node.
    pub fn node(&self) -> NodeId {
        self.0.node
    }

    /// Returns the VPID of this port.
    pub fn vpid(&self) -> Vpid {
        self.0.vpid
    }

    /// Returns the device node of the port.
    pub fn backend(&self) -> &dyn Backend {
        &*self.0.backend
    }

    /// Returns counters, which started at 0 when the port was opened.
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

    /// Registers a buffer. Until it is unregistered, peers that know its NLA may read and write it
    /// through this port.
    pub fn register(&self, buffer: Buffer) -> Result<Region> {
        Region::new(self.0.clone(), buffer)
    }

    /// Registers memory by address, for language bindings.
    ///
    /// # Safety
    /// Until [`Port::unregister_memory`] succeeded or the port is closed, the memory must stay
    /// allocated. Rust references must not be used for it or for other data in its pages.
    pub unsafe fn register_memory(&self, address: u64, bytes: u64) -> Result<RegionArg> {
        // SAFETY: the caller guarantees the requirements of crate::raw::register.
        unsafe { crate::raw::register(&*self.0.backend, address, bytes) }
    }

    /// Ends a registration by address. After the call, the NIC does not access the memory.
    pub fn unregister_memory(&self, mut arg: RegionArg) -> Result<()> {
        self.0
            .backend
            .unregister(&mut arg)
            .map_err(|e| Error::os("cannot unregister", e))
    }

    /// Posts one command. Fails with [`Error::Full`] if no credit is available. Local addresses
    /// must be NLAs of this port's regions.
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

    /// Posts an encoded descriptor. Fails with [`Error::Full`] if no credit is available.
    pub fn post_words(&self, options: PageOptions, words: [u64; 3]) -> Result<()> {
        self.check_page(options)?;
        self.sender().post(options.index(), &words)
    }

    /// Fails if this process may not post commands with these options.
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

    /// Writes `len` bytes of a region to `remote`. If credits are missing, fails with
    /// [`Error::Full`] and sends nothing.
    ///
    /// A transfer of more than 8 MiB consists of several commands, whose number [`commands`]
    /// returns. The maximum is 255. Either all commands are posted or none. Each command creates
    /// the notifications in `notify`, because an error is reported only by the command that it
    /// affects. Commands of one port and traffic class stay in order.
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

    /// Reads `len` bytes at `remote` into a region. Commands, notifications and errors are those of
    /// [`Port::put`].
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

    /// Sends a value and a class to the peer, which receives them in a notification.
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

    /// Repeats a call that fails with [`Error::Full`] until a credit is available.
    pub fn retry<T>(&self, wait: Wait, mut post: impl FnMut() -> Result<T>) -> Result<T> {
        let mut pauses = Pauses::new(wait);
        loop {
            match post() {
                Err(Error::Full) => pauses.pause(&self.0.link, self.0.backend.fd())?,
                other => return other,
            }
        }
    }

    /// Returns the next notification; `None` if the queue is empty. The caller must check the
    /// `error` field.
    pub fn try_notification(&self) -> Result<Option<Notification>> {
        self.queue().take(|_| true)
    }

    /// Waits for the next notification. The caller must check its `error` field.
    pub fn notification(&self, wait: Wait) -> Result<Notification> {
        self.wait_for(wait, |_| true)
    }

    /// Waits for the oldest notification that `wanted` accepts. All other notifications stay in the
    /// queue.
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
        // The awaited notification is in the queue or will arrive there, because no other call
        // removes it.
        let waiting = |_: &Jobs| true;
        let sleep = UNPROMISED;
        self.look_until(wait, sleep, || look(&mut self.queue()), || Ok(()), waiting)
    }

    /// Waits until `look` returns a result. `sleep` is the maximum sleep. `check` fails if `look`
    /// cannot succeed any more. `waiting` returns true if only a notification can make `look`
    /// succeed.
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
                // Repeats dropped packets, because their notifications would otherwise never
                // arrive. A thread that sends also repeats them, so that this call does not wait
                // for its lock.
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

    /// Repeats packets that the NIC dropped, and skips notifications whose write to the queue was
    /// lost. Calls that wait and [`Port::arm`] do this, too. Programs that use neither must call
    /// this function.
    pub fn settle(&self) -> Result<()> {
        self.sender().settle()?;
        self.queue().skip_lost(&*self.0.backend)
    }

    /// Waits until the NIC has accepted all posted commands. They may complete later.
    pub fn drain(&self, wait: Wait) -> Result<()> {
        self.sender().drain(self.0.backend.fd(), wait)
    }

    /// Prepares a wait in an event loop. Requests an interrupt with the next notification of a
    /// command posted with [`Peer::interrupting`], and repeats dropped packets. Afterwards, the
    /// program checks for notifications and then waits until the descriptor is readable. It must
    /// not wait longer than the returned time; `None` means no limit.
    ///
    /// The time is limited while commands are unconfirmed, because the descriptor does not become
    /// readable when the NIC drops a command.
    pub fn arm(&self) -> Result<Option<Duration>> {
        self.queue().ring()?.arm(&*self.0.backend, true)?;
        self.settle()?;
        Ok(self.poll_timeout())
    }

    /// Returns the maximum time to wait for the descriptor, as of the last check; see
    /// [`Port::arm`].
    pub fn poll_timeout(&self) -> Option<Duration> {
        if self.sender().is_unconfirmed() {
            Some(SETTLE)
        } else {
            self.queue().is_suspect().then_some(HOLE)
        }
    }

    /// Returns the size of the notification queue in bytes; 0 if the port has no queue.
    pub fn queue_size(&self) -> usize {
        self.queue().slots() as usize * 16
    }

    /// Creates a new, empty queue of `bytes` bytes in segments of `segment` bytes. Both must be
    /// multiples of the page size. The port must have no traffic, because notifications in the old
    /// queue are lost. After an error, the port has a new queue of the old size. If that queue
    /// cannot be created either, all receiving calls fail with [`Error::NoQueue`] until another
    /// call of this function succeeds.
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
            // The old queue still exists. The caller receives the first error.
            let _ = sizes(old);
            return Err(e);
        }
        // The driver may free the old queue from here on. It must not be accessed.
        queue.replace(None);
        let map = || map_queue(b, &self.0.link);
        let made = map();
        let (ring, result) = match made {
            Ok(ring) => (Some(ring), Ok(())),
            Err(e) => (sizes(old).and_then(|()| map()).ok(), Err(e)),
        };
        queue.replace(ring);
        // Sleeping threads wait for a slot of the old queue.
        self.0.link.wake();
        result
    }

    /// Returns the address of the oldest notification whose two words `wanted` accepts, for
    /// language bindings. The address stays valid until the notification is freed or the queue is
    /// resized. No other call returns this notification.
    pub fn peek(&self, wanted: impl Fn([u64; 2]) -> bool) -> Result<Found> {
        self.queue().lend(wanted)
    }

    /// Waits for a notification that `wanted` accepts, and returns its address like [`Port::peek`].
    pub fn peek_wait(&self, wait: Wait, wanted: impl Fn([u64; 2]) -> bool) -> Result<*mut u8> {
        self.wait_until(wait, |queue| {
            Ok(match queue.lend(&wanted)? {
                Found::At(address) => Some(address),
                Found::Others(_) => None,
            })
        })
    }

    /// Frees a notification that [`Port::peek`] returned. The order does not matter. Returns false
    /// for other addresses.
    pub fn free(&self, address: *const u8) -> bool {
        self.queue().free(address)
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.backend.fd()
    }
}

/// Fails unless the target is a valid node or, with [`Modifiers::multicast`], a valid group.
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

/// Limits and settings that only some programs need.
impl Port {
    /// Returns the number of nodes that the driver supports.
    pub fn max_nodes(&self) -> Result<u64> {
        get(self.backend(), nr::GET_MAXNODEID, "number of nodes")
    }

    /// Returns the number of ports per node.
    pub fn max_ports(&self) -> Result<u64> {
        get(self.backend(), nr::GET_MAXVPID, "number of ports")
    }

    /// Returns the traffic classes of responses to requests of class 0 to 3. Each class occupies
    /// one byte, from bit 0 on.
    pub fn response_classes(&self) -> Result<u64> {
        get(self.backend(), nr::GET_TCS, "traffic classes")
    }

    /// Sets the traffic classes of responses, see [`Port::response_classes`]. The driver may permit
    /// this call only to privileged programs.
    pub fn set_response_classes(&self, classes: u64) -> Result<()> {
        set(self.backend(), nr::SET_TCS, classes, "traffic classes")
    }

    /// Returns the protection descriptor. The NIC drops packets with another descriptor.
    pub fn protection(&self) -> Result<u64> {
        get(self.backend(), nr::GET_PROTDESC, "protection descriptor")
    }

    /// Sets the protection descriptor. The driver may permit this call only to privileged programs.
    pub fn set_protection(&self, descriptor: u16) -> Result<()> {
        set(
            self.backend(),
            nr::SET_PROTDESC,
            descriptor.into(),
            "protection descriptor",
        )
    }

    /// Returns the size of a queue segment in bytes.
    pub fn segment_size(&self) -> Result<u64> {
        get(self.backend(), nr::GET_NOTIQ_SEGMENT_SIZE, "segment size")
    }

    /// Reads the current node ID, which changes when the network is set up again.
    pub fn read_node(&self) -> Result<NodeId> {
        Ok(NodeId(
            get(self.backend(), nr::GET_NODEID, "node ID")? as u16
        ))
    }
}
