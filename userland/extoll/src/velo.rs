// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! VELO: messages of 1…120 bytes between ports (HW §9).

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

/// Bytes of the mailbox that a port asks for: 2,048 messages in slots of 128 bytes.
pub const MAILBOX: usize = 256 << 10;
/// Bytes of a contiguous piece of it.
const SEGMENT: usize = 64 << 10;
/// Offset at which the mailbox is mapped.
const MAILBOX_AT: u64 = 2 * PAGE as u64;

/// Where a message goes and what it carries besides data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct To {
    /// A node, or a multicast group.
    pub target: Target,
    /// The port there.
    pub vpid: Vpid,
    /// User tag.
    pub tag: u8,
    /// Message type tag, 0…3.
    pub mtt: Mtt,
    /// Wakes a receiver that sleeps.
    pub interrupt: bool,
}

impl To {
    /// A port of a node; tags 0, waking the receiver.
    pub fn new(node: NodeId, vpid: Vpid) -> Self {
        Self {
            target: Target::Node(node),
            vpid,
            tag: 0,
            mtt: Mtt::default(),
            interrupt: true,
        }
    }

    /// The sender of a message that was received.
    pub fn reply(source: SourceId) -> Self {
        Self::new(source.node, source.vpid)
    }

    /// With a user tag.
    #[must_use]
    pub fn tagged(self, tag: u8) -> Self {
        Self { tag, ..self }
    }

    /// Without waking the receiver: for receivers that poll.
    #[must_use]
    pub fn quiet(self) -> Self {
        Self {
            interrupt: false,
            ..self
        }
    }
}

/// A message received.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// Sender as the NIC stamped it.
    pub source: SourceId,
    /// User tag.
    pub tag: u8,
    /// Message type tag.
    pub mtt: Mtt,
    bytes: [u8; MAX_LEN as usize],
    len: usize,
}

impl Message {
    /// The data, 1…120 bytes.
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

/// An open VELO port. `Send` and `Sync`: one lock for sending, one for receiving.
pub struct Port {
    // In this order: the mappings go before the descriptor that closes the port.
    sender: Outbox<16>,
    inbox: Mutex<Inbox>,
    backend: Arc<dyn Backend>,
    link: Arc<Link>,
    node: NodeId,
    vpid: Vpid,
}

impl Port {
    /// Opens a free port of a NIC.
    pub fn open(device: &Device) -> Result<Self> {
        Self::with_backend(Arc::new(device.open("velo2")?))
    }

    /// The port behind an open device node.
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

    /// This node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// This port.
    pub fn vpid(&self) -> Vpid {
        self.vpid
    }

    /// What receivers see as the sender.
    pub fn id(&self) -> SourceId {
        SourceId {
            node: self.node,
            vpid: self.vpid,
        }
    }

    /// Protection descriptor: only ports that have the same one reach each other (docs/security.md).
    pub fn protection(&self) -> Result<u16> {
        let descriptor = get(&*self.backend, nr::GET_RX_PROTDESC, "protection descriptor")?;
        Ok(descriptor as u16)
    }

    /// Counters since the port was opened.
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

    /// Sends a message of 1…120 bytes, or fails with [`Error::Full`] at once.
    pub fn try_send(&self, to: &To, data: &[u8]) -> Result<()> {
        let (words, n) = pack(to, data)?;
        self.sender.post(0, &words[..n])
    }

    /// [`Port::try_send`] that waits for room.
    pub fn send(&self, to: &To, data: &[u8], wait: Wait) -> Result<()> {
        let (words, n) = pack(to, data)?;
        self.sender
            .post_wait(self.backend.fd(), 0, &words[..n], wait)
    }

    /// Looks whether the NIC dropped packets and repeats them, and whether something got lost on its way into the mailbox. The waiting
    /// calls and [`Port::arm`] do it by themselves; programs that only try have to.
    pub fn settle(&self) -> Result<()> {
        self.sender.settle()?;
        self.lock_inbox().skip_lost(&*self.backend)
    }

    /// Waits until the NIC accepted everything that was sent; that says nothing about its arrival.
    pub fn drain(&self, wait: Wait) -> Result<()> {
        self.sender.drain(self.backend.fd(), wait)
    }

    /// The next message, if there is one.
    pub fn try_recv(&self) -> Result<Option<Message>> {
        self.lock_inbox().take()
    }

    /// The next message.
    pub fn recv(&self, wait: Wait) -> Result<Message> {
        wait.until(
            &self.link,
            self.backend.fd(),
            || self.try_recv(),
            || {
                // What the NIC dropped is repaired here, or a reply would never come. Another thread that sends does that, too.
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

    /// For event loops: asks for an interrupt with the next marked message, and repeats what the NIC dropped. Then try to receive,
    /// then wait until the descriptor is readable, at most as long as this says, and begin again; `None`: as long as you like.
    /// Time-outs are needed while packets are unconfirmed: nothing makes the descriptor readable when the NIC drops one.
    pub fn arm(&self) -> Result<Option<Duration>> {
        self.lock_inbox().ring.arm(&*self.backend, true)?;
        self.settle()?;
        Ok(self.poll_timeout())
    }

    /// How long to wait on the descriptor at most, by the last look; see [`Port::arm`].
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

/// Fails for what is neither a node nor a group.
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
    /// Gives up what got lost on its way into the mailbox.
    fn skip_lost(&mut self, backend: &dyn Backend) -> Result<()> {
        let wp = || backend.get(nr::GET_WP);
        let Some((first, overdue)) = self.ring.overdue(|ring| Some(ring.slot(0)), wp)? else {
            return Ok(());
        };
        if self.is_there(first) {
            return Ok(());
        }
        let slots = match self.slots_from(first) {
            0 => {
                let empty = self.ring.run_of_empty(first, overdue);
                // What follows in 64-byte slots may be the rest of a long message: no slot tells which one it is. A message
                // begins where the NIC's pointer was.
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

    /// Slots of the message that begins in a slot, 0 if that is empty, 1 if its status makes no sense.
    fn slots_from(&self, first: u32) -> u32 {
        match Status::decode(self.ring.status(first)) {
            Ok(None) => 0,
            Ok(Some(status)) => self.slot.slots_for(status.len),
            Err(_) => 1,
        }
    }

    /// The message that begins in the slot to be read next is there with all its slots.
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
        for piece in self.slot.pieces(status.len) {
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
