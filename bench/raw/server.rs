// SPDX-License-Identifier: GPL-2.0-only

//! Server that answers pings and offers memory to RMA. A single work item does all work; interrupts
//! queue it.

use crate::{
    memory,
    protocol::{Offer, ASK, DATA, DONE, PING, PING_POLL, REPLY},
};
use extoll_core::{
    child::Handle,
    dma::DmaWords,
    rma::{NotificationType, Notifications, Requester},
    velo::{Header, Mailbox, SendError, Sender, SourceId, Target, MAX_LEN},
    vpid::Client,
};
use kernel::{
    impl_has_work, new_mutex, new_work,
    prelude::*,
    processor::cpu_relax,
    sync::{
        atomic::{AtomicFlag, Relaxed},
        Arc, Mutex,
    },
    time::{Delta, Instant, Monotonic},
    workqueue::{Work, WorkItem},
};
use kernel_ext::{sched::cond_resched, work};
use wire::ids::Vpid;

/// Size of the mailbox and of the notification queue in bytes.
pub(crate) const QUEUE_BYTES: u32 = 512 << 10;
/// Number of bytes offered for reading: twice the largest transfer, so that transfers can use
/// different offsets.
const SOURCE_BYTES: usize = 2 << 20;
/// Number of bytes offered for writing.
const SINK_BYTES: usize = 1 << 20;
/// Time in ms for which the server polls for the next message after a message of a polling client.
const POLL_MS: i64 = 1000;
/// Maximum time in ms that a peer may request in [`ASK`].
const MAX_LEASE_MS: u64 = 60_000;
/// Seed of the pattern in the memory that is offered for reading.
const SEED: u64 = 0x5EED_0001;

/// Server of one NIC.
#[pin_data]
pub(crate) struct Server {
    #[pin]
    inner: Mutex<Option<Inner>>,
    closing: AtomicFlag,
    #[pin]
    work: Work<Server>,
}

/// Counters of a server.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Number of answered messages.
    pub(crate) served: u64,
    /// Number of messages that need no answer.
    pub(crate) data: u64,
    /// Number of messages that were invalid or could not be answered.
    pub(crate) bad: u64,
    /// Number of PUTs that arrived.
    pub(crate) puts: u64,
    /// Number of runs of the work item.
    pub(crate) wakeups: u64,
}

struct Reply {
    to: SourceId,
    tag: u8,
    irq: bool,
    len: usize,
    payload: [u8; MAX_LEN as usize],
}

/// State that the work item uses. Ports are declared, and so dropped, before memory, because
/// closing a port makes the NIC reject late packets for the memory.
struct Inner {
    nic: Handle,
    sender: Sender,
    mailbox: Mailbox,
    requester: Requester,
    notifications: Notifications,
    source: DmaWords,
    sink: DmaWords,
    pending: Option<Reply>,
    polling: bool,
    lease: Option<Instant<Monotonic>>,
    counts: Counts,
}

enum Step {
    /// A message was processed.
    Worked,
    /// The mailbox was empty.
    Empty,
    /// The mailbox has messages, but no credit for the reply is free; `writable` will queue the
    /// work item.
    Blocked,
}

impl_has_work! {
    impl HasWork<Server> for Server { self.work }
}

impl WorkItem for Server {
    type Pointer = Arc<Server>;

    fn run(this: Arc<Server>) {
        if let Some(inner) = &mut *this.inner.lock() {
            inner.run(&this.closing);
        }
    }
}

/// Client of the ports that queues the work item.
struct Kick(Arc<Server>);

impl Kick {
    fn kick(&self) {
        if !self.0.closing.load(Relaxed) {
            // Failure means that the work item is queued already.
            let _ = work::enqueue(self.0.clone());
        }
    }
}

impl Client for Kick {
    fn interrupt(&self) {
        self.kick();
    }

    fn writable(&self) {
        self.kick();
    }
}

impl Server {
    /// Opens the ports and starts to answer messages. May sleep.
    pub(crate) fn start(nic: &Handle, vpid: Vpid) -> Result<Arc<Self>> {
        let source = memory::allocate(nic, SOURCE_BYTES)?;
        let sink = memory::allocate(nic, SINK_BYTES)?;
        memory::fill(&source, SOURCE_BYTES / 8, SEED, 0);
        let (sender, mailbox) = nic.velo().open(Some(vpid), QUEUE_BYTES)?;
        let (requester, notifications) = nic.rma().open(None, QUEUE_BYTES)?;
        let inner = Inner {
            nic: nic.clone(),
            sender: sender.clone(),
            mailbox,
            requester,
            notifications,
            source,
            sink,
            pending: None,
            polling: false,
            lease: None,
            counts: Counts::default(),
        };
        let server = Arc::pin_init(
            pin_init!(Self {
                inner <- new_mutex!(Some(inner), "extoll_bench_serving"),
                closing: AtomicFlag::new(false),
                work <- new_work!("extoll_bench_serve"),
            }),
            GFP_KERNEL,
        )?;
        let kick = Arc::new(Kick(server.clone()), GFP_KERNEL)?;
        sender.attach(kick.clone());
        // Queues the work item, which finds the mailbox empty and unmasks the interrupt.
        kick.kick();
        Ok(server)
    }

    /// Returns the VPIDs of VELO and RMA, and the counters. Waits while the work item processes
    /// messages. May sleep.
    pub(crate) fn show(&self) -> Option<(Vpid, Vpid, Counts)> {
        let inner = self.inner.lock();
        let inner = inner.as_ref()?;
        Some((inner.sender.vpid(), inner.requester.vpid(), inner.counts))
    }

    /// Closes the ports and frees the memory. Returns the time until which a peer may still write
    /// to the freed memory. May sleep.
    pub(crate) fn stop(self: &Arc<Self>) -> Option<Instant<Monotonic>> {
        self.closing.store(true, Relaxed);
        if let Some(inner) = self.inner.lock().as_ref() {
            inner.sender.detach();
        }
        // The ports' clients are detached, so nothing queues the work item again.
        work::cancel_sync(self);
        let inner = self.inner.lock().take()?;
        inner.sender.close();
        inner.mailbox.close();
        inner.requester.close();
        inner.notifications.close();
        // The memory can be freed now, because the NIC rejects all accesses of peers after the
        // ports are closed.
        drop((inner.source, inner.sink));
        inner.lease
    }
}

impl Inner {
    fn run(&mut self, closing: &AtomicFlag) {
        self.counts.wakeups += 1;
        let mut last: Instant<Monotonic> = Instant::now();
        let mut spins = 0u32;
        while !closing.load(Relaxed) && self.nic.is_alive() {
            match self.step() {
                Step::Worked => {
                    last = Instant::now();
                    cond_resched();
                }
                Step::Blocked => return,
                Step::Empty if self.polling => {
                    spins = spins.wrapping_add(1);
                    if spins % 32 == 0 {
                        self.polling = last.elapsed().as_millis() < POLL_MS;
                        cond_resched();
                    }
                    cpu_relax();
                }
                Step::Empty => {
                    if !self.mailbox.rearm() {
                        return;
                    }
                }
            }
        }
    }

    fn step(&mut self) -> Step {
        if let Some(reply) = &self.pending {
            let header = Header {
                tag: reply.tag,
                irq: reply.irq,
                ..Header::new(Target::Node(reply.to.node), reply.to.vpid)
            };
            let payload = reply.payload.get(..reply.len).unwrap_or(&[]);
            match self.sender.send(header, payload) {
                Ok(()) => self.counts.served += 1,
                Err(SendError::Full | SendError::Retry) => return Step::Blocked,
                Err(SendError::Down | SendError::Invalid) => self.counts.bad += 1,
            }
            self.pending = None;
        }
        let mut request = None;
        let taken = self.mailbox.poll(1, |message| {
            let mut payload = [0; MAX_LEN as usize];
            let len = message.copy_to(&mut payload);
            request = Some((message.status, message.word(0), len, payload));
        });
        if taken == 0 {
            return Step::Empty;
        }
        let Some((status, word, len, payload)) = request else {
            self.counts.bad += 1;
            return Step::Worked;
        };
        let reply = Reply {
            to: status.source,
            tag: status.tag | REPLY,
            irq: status.tag != PING_POLL,
            len,
            payload,
        };
        match status.tag {
            _ if status.err => self.counts.bad += 1,
            PING => self.pending = Some(reply),
            PING_POLL => {
                self.polling = true;
                self.pending = Some(reply);
            }
            ASK => {
                self.lease =
                    Some(Instant::now() + Delta::from_millis(word.min(MAX_LEASE_MS) as i64));
                self.pending = Some(self.offer(reply));
            }
            DATA => self.counts.data += 1,
            DONE => {
                self.polling = false;
                self.lease = None;
            }
            _ => self.counts.bad += 1,
        }
        Step::Worked
    }

    fn offer(&mut self, mut reply: Reply) -> Reply {
        let puts = &mut self.counts.puts;
        while self.notifications.poll(256, |n| {
            if n.kind == NotificationType::Completer && n.error == 0 {
                *puts += 1;
            }
        }) == 256
        {
            cond_resched();
        }
        let offer = Offer {
            vpid: self.requester.vpid(),
            source: self.source.address(),
            source_len: self.source.words() as u64 * 8,
            sink: self.sink.address(),
            sink_len: self.sink.words() as u64 * 8,
            seed: SEED,
            puts: *puts,
        };
        let bytes = offer.encode();
        reply.len = bytes.len();
        if let Some(to) = reply.payload.get_mut(..bytes.len()) {
            to.copy_from_slice(&bytes);
        }
        reply
    }
}
