// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! VELO messages of 1 to 120 bytes between ports (HW §9).

use crate::backend::{get, set, velo as nr, Backend, Device};
use crate::error::{Error, Result};
use crate::pages::{Outbox, Pages};
use crate::raw::PAGE;
use crate::ring::{Ring, HOLE};
use crate::wait::{Link, SETTLE};
use crate::{Counters, Wait};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
pub use wire::ids::{NodeId, Vpid};
use wire::route::MCAST_GROUPS;
use wire::velo::{Descriptor, SlotSize, Status};
pub use wire::velo::{Mtt, SourceId, Target, MAX_LEN};

/// Size of a port's mailbox in bytes: 2,048 messages in slots of 128 bytes.
pub const MAILBOX: usize = 256 << 10;
/// Size of a physically contiguous segment of the mailbox in bytes.
const SEGMENT: usize = 64 << 10;
/// Byte offset of the mailbox in the device file.
const MAILBOX_AT: u64 = 2 * PAGE as u64;

/// Destination of a message, and its properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct To {
    /// Node or multicast group.
    pub target: Target,
    /// VPID of the receiving port.
    pub vpid: Vpid,
    /// User tag.
    pub tag: u8,
    /// Message type tag, 0 to 3.
    pub mtt: Mtt,
    /// True if the message wakes a receiver that sleeps.
    pub interrupt: bool,
}

impl To {
    /// Addresses the port `vpid` of a node. Both tags are 0, and the message wakes the receiver.
    pub fn new(node: NodeId, vpid: Vpid) -> Self {
        Self {
            target: Target::Node(node),
            vpid,
            tag: 0,
            mtt: Mtt::default(),
            interrupt: true,
        }
    }

    /// Addresses the sender of a received message.
    pub fn reply(source: SourceId) -> Self {
        Self::new(source.node, source.vpid)
    }

    /// Sets the user tag.
    #[must_use]
    pub fn tagged(self, tag: u8) -> Self {
        Self { tag, ..self }
    }

    /// Makes the message wake no receiver. The receiver must poll.
    #[must_use]
    pub fn quiet(self) -> Self {
        Self {
            interrupt: false,
            ..self
        }
    }
}

/// Message that a port has received.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// Sender of the message, which the sender's NIC has stamped.
    pub source: SourceId,
    /// User tag.
    pub tag: u8,
    /// Message type tag.
    pub mtt: Mtt,
    bytes: [u8; MAX_LEN as usize],
    len: usize,
}

impl Message {
    /// Returns the 1 to 120 bytes of the message.
    pub fn data(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

struct Inbox {
    ring: Ring,
    slot: SlotSize,
    received: u64,
    sleeps: u64,
}

/// Open VELO port. The type is `Send` and `Sync`. It has one lock for sending and one for
/// receiving.
pub struct Port {
    // Fields are dropped in this order. The mappings must be dropped before the descriptor, which
    // closes the port.
    sender: Outbox<16>,
    inbox: Mutex<Inbox>,
    backend: Arc<dyn Backend>,
    link: Arc<Link>,
    node: NodeId,
    vpid: Vpid,
}

impl Port {
    /// Opens an unused port of a NIC.
    pub fn open(device: &Device) -> Result<Self> {
        Self::with_backend(Arc::new(device.open("velo2")?))
    }

    /// Creates a port for an open device node.
    pub fn with_backend(backend: Arc<dyn Backend>) -> Result<Self> {
        let b = &*backend;
        let node = NodeId(get(b, nr::GET_NODEID, "node ID")? as u16);
        let vpid = get(b, nr::GET_VPID, "VPID")?;
        let vpid = u16::try_from(vpid)
            .ok()
            .and_then(Vpid::new)
            .ok_or_else(|| Error::Driver(format!("VPID {vpid}")))?;
        let slot = match get(b, nr::GET_SLOT_SIZE, "slot size")? {
            64 => SlotSize::B64,
            128 => SlotSize::B128,
            other => return Err(Error::Driver(format!("mailbox slots of {other} bytes"))),
        };
        set(b, nr::SET_SEGMENT_SIZE, SEGMENT as u64, "segment size")?;
        set(b, nr::SET_MBOX_SIZE, MAILBOX as u64, "mailbox size")?;
        let bytes = get(b, nr::GET_MBOX_SIZE, "mailbox size")? as usize;
        let map = backend
            .map(MAILBOX_AT, bytes.saturating_add(PAGE))
            .map_err(|e| Error::queue("mailbox", e))?;
        set(b, nr::SET_WP, 0, "write pointer")?;
        // One slot stays unused, see `Ring::commit`.
        let last = (bytes / slot.bytes() as usize).saturating_sub(1);
        set(b, nr::SET_RP, last as u64, "read pointer")?;
        let pages = Arc::new(
            backend
                .map(0, 2 * PAGE)
                .map_err(|e| Error::os("cannot map the requester page", e))?,
        );
        let info = backend
            .info()
            .map_err(|e| Error::os("cannot read the port information", e))?;
        let to = Pages {
            requester: pages.clone(),
            state: pages,
            state_at: PAGE,
            marks: info.is_some_and(|i| i.marks),
        };
        let link = Arc::<Link>::default();
        Ok(Self {
            sender: Outbox::new(to, &link)?,
            inbox: Mutex::new(Inbox {
                ring: Ring::new(map, slot.bytes() as usize, bytes, link.clone())?,
                slot,
                received: 0,
                sleeps: 0,
            }),
            backend,
            link,
            node,
            vpid,
        })
    }

    /// Returns the ID of this node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Returns the VPID of this port.
    pub fn vpid(&self) -> Vpid {
        self.vpid
    }

    /// Returns the source ID that receivers of this port's messages see.
    pub fn id(&self) -> SourceId {
        SourceId {
            node: self.node,
            vpid: self.vpid,
        }
    }

    /// Returns the protection descriptor. Only ports with the same descriptor can exchange messages
    /// (docs/security.md).
    pub fn protection(&self) -> Result<u16> {
        let descriptor = get(&*self.backend, nr::GET_RX_PROTDESC, "protection descriptor")?;
        Ok(descriptor as u16)
    }

    /// Returns counters, which started at 0 when the port was opened.
    pub fn counters(&self) -> Counters {
        let sent = self.sender.counters();
        let inbox = self.lock_inbox();
        Counters {
            received: inbox.received,
            commits: inbox.ring.commits,
            skipped: inbox.ring.skipped,
            sleeps: inbox.sleeps,
            woken: self.link.woken(),
            ..sent
        }
    }

    fn lock_inbox(&self) -> std::sync::MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message of 1 to 120 bytes. Fails with [`Error::Full`] if no credit is available.
    pub fn try_send(&self, to: &To, data: &[u8]) -> Result<()> {
        let (words, n) = pack(to, data)?;
        self.sender.post(0, &words[..n])
    }

    /// Waits for a credit, then sends a message of 1 to 120 bytes.
    pub fn send(&self, to: &To, data: &[u8], wait: Wait) -> Result<()> {
        let (words, n) = pack(to, data)?;
        self.sender
            .post_wait(self.backend.fd(), 0, &words[..n], wait)
    }

    /// Repeats packets that the NIC dropped, and skips messages whose write to the mailbox was
    /// lost. Calls that wait and [`Port::arm`] do this, too. Programs that use neither must call
    /// this function.
    pub fn settle(&self) -> Result<()> {
        self.sender.settle()?;
        self.lock_inbox().skip_lost(&*self.backend)
    }

    /// Waits until the NIC has accepted all messages. They may arrive later.
    pub fn drain(&self, wait: Wait) -> Result<()> {
        self.sender.drain(self.backend.fd(), wait)
    }

    /// Returns the next message; `None` if the mailbox is empty.
    pub fn try_recv(&self) -> Result<Option<Message>> {
        self.lock_inbox().take()
    }

    /// Waits for the next message.
    pub fn recv(&self, wait: Wait) -> Result<Message> {
        wait.until(
            &self.link,
            self.backend.fd(),
            || self.try_recv(),
            || {
                // Repeats dropped packets, because their replies would otherwise never arrive. A
                // thread that sends also repeats them, so that this call does not wait for its
                // lock.
                self.sender.try_settle()?;
                self.lock_inbox().skip_lost(&*self.backend)
            },
            |necessary| {
                let mut inbox = self.lock_inbox();
                inbox.sleeps += 1;
                inbox.ring.arm(&*self.backend, necessary)
            },
            || self.poll_timeout(),
        )
    }

    /// Prepares a wait in an event loop. Requests an interrupt with the next message that has the
    /// interrupt flag, and repeats dropped packets. Afterwards, the program tries to receive and
    /// then waits until the descriptor is readable. It must not wait longer than the returned time;
    /// `None` means no limit.
    ///
    /// The time is limited while packets are unconfirmed, because the descriptor does not become
    /// readable when the NIC drops a packet.
    pub fn arm(&self) -> Result<Option<Duration>> {
        self.lock_inbox().ring.arm(&*self.backend, true)?;
        self.settle()?;
        Ok(self.poll_timeout())
    }

    /// Returns the maximum time to wait for the descriptor, as of the last check; see
    /// [`Port::arm`].
    pub fn poll_timeout(&self) -> Option<Duration> {
        if self.sender.is_unconfirmed() {
            Some(SETTLE)
        } else {
            self.lock_inbox().ring.is_suspect().then_some(HOLE)
        }
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.backend.fd()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.sender.close(self.backend.fd());
    }
}

/// Fails unless the target is a valid node or multicast group.
pub fn check_target(target: Target) -> Result<()> {
    match target {
        Target::Node(node) if node.is_reserved() => Err(Error::Node(node.0)),
        Target::Group(group) if group >= MCAST_GROUPS => Err(Error::Group(group)),
        _ => Ok(()),
    }
}

fn pack(to: &To, data: &[u8]) -> Result<([u64; 16], usize)> {
    check_target(to.target)?;
    let len = u16::try_from(data.len()).unwrap_or(u16::MAX);
    let descriptor = Descriptor {
        target: to.target,
        vpid: to.vpid,
        mtt: to.mtt,
        irq: to.interrupt,
        tag: to.tag,
        len,
    };
    let mut words = [0; 16];
    words[0] = descriptor.encode().map_err(Error::Message)?;
    for (word, chunk) in words[1..].iter_mut().zip(data.chunks(8)) {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_le_bytes(bytes);
    }
    Ok((words, 1 + data.len().div_ceil(8)))
}

impl Inbox {
    /// Skips messages whose write to the mailbox was lost.
    fn skip_lost(&mut self, backend: &dyn Backend) -> Result<()> {
        let wp = || backend.get(nr::GET_WP);
        let Some((first, overdue)) = self.ring.lost_slots(|ring| Some(ring.slot(0)), wp)? else {
            return Ok(());
        };
        if self.is_there(first) {
            return Ok(());
        }
        let slots = match self.slots_from(first) {
            0 => {
                let empty = self.ring.run_of_empty(first, overdue);
                // Slots of 64 bytes after the gap may be the end of a long message. A slot does not
                // contain its position in the message. The NIC's write pointer, however, is always
                // at the start of a message.
                match self.slots_from(self.ring.slot(empty)) {
                    0 | 1 => empty,
                    _ => overdue,
                }
            }
            n => n.min(overdue),
        };
        self.ring.advance(slots);
        self.ring.skipped += u64::from(slots);
        Err(Error::Skipped(slots))
    }

    /// Returns the number of slots of the message that begins in a slot. Returns 0 for an empty
    /// slot and 1 for an invalid status word.
    fn slots_from(&self, first: u32) -> u32 {
        match Status::decode(self.ring.status(first)) {
            Ok(None) => 0,
            Ok(Some(status)) => self.slot.slots_for(status.len),
            Err(_) => 1,
        }
    }

    /// Returns whether all slots of the message in the next slot have arrived.
    fn is_there(&self, first: u32) -> bool {
        let slots = self.slots_from(first);
        slots > 0 && (1..slots).all(|i| self.ring.status(self.ring.slot(i)) != 0)
    }

    fn take(&mut self) -> Result<Option<Message>> {
        self.ring.check()?;
        let first = self.ring.slot(0);
        let status = match Status::decode(self.ring.status(first)) {
            Ok(None) => return Ok(None),
            Ok(Some(status)) => status,
            Err(e) => {
                self.ring.advance(1);
                return Err(Error::Message(e));
            }
        };
        let slots = self.slot.slots_for(status.len);
        if (1..slots).any(|i| self.ring.status(self.ring.slot(i)) == 0) {
            return Ok(None);
        }
        let mut message = Message {
            source: status.source,
            tag: status.tag,
            mtt: status.mtt,
            bytes: [0; MAX_LEN as usize],
            len: usize::from(status.len),
        };
        for piece in self.slot.parts(status.len) {
            let at = usize::from(piece.message_offset);
            self.ring.read(
                self.ring.slot(u32::from(piece.slot)),
                usize::from(piece.slot_offset),
                &mut message.bytes[at..at + usize::from(piece.len)],
            )?;
        }
        self.ring.advance(slots);
        self.received += 1;
        Ok(Some(message))
    }
}
