// SPDX-License-Identifier: GPL-2.0-only

//! RMA GET and PUT with several commands in flight.

use crate::{
    attached::Run,
    command::Peer,
    memory,
    protocol::{pattern, Offer, ASK, DONE, OFFER_BYTES, REPLY},
    report::Report,
    server::QUEUE_BYTES,
    wait::{Mode, Waiter},
};
use extoll_core::{
    dma::DmaWords,
    nic::Nic,
    rma::{
        self, last_fragment_start, Address, Notification, NotificationType, Notifications,
        NotifySpec, PageOptions, Requester, SendError,
    },
    velo::{Header, Mailbox, Sender, Target},
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{delay::fsleep, Delta, Instant, Monotonic},
};
use wire::ids::{BusAddr, Unit};

/// Maximum size of a transfer in bytes.
pub(crate) const MAX_SIZE: usize = 1 << 20;
/// Maximum number of transfers in flight.
pub(crate) const MAX_INFLIGHT: usize = 64;
/// Maximum size in bytes of the memory for all transfers in flight.
const MAX_MEMORY: usize = 16 << 20;
/// Time in ms for which memory of an aborted run is not freed, because late responses may still be
/// written to it.
const PARK_MS: i64 = 2000;
/// Seed of the data that PUTs write.
const PUT_SEED: u64 = 0x5EED_0002;
/// Maximum number of PUTs per run, because their notifications must fit the queue of the server.
const MAX_PUTS: u64 = QUEUE_BYTES as u64 / 16 / 2;

/// Direction of the data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// GET: from the server.
    Get,
    /// PUT: to the server.
    Put,
}

/// Parameters of a run.
pub(crate) struct Job {
    pub(crate) direction: Direction,
    /// Number of bytes per transfer, a multiple of 8.
    pub(crate) size: usize,
    /// Number of transfers.
    pub(crate) count: u64,
    /// Maximum number of transfers in flight.
    pub(crate) inflight: usize,
}

/// Local memory of one transfer in flight.
struct Slot {
    memory: DmaWords,
    /// Offset in the server's memory of the transfer in flight; `None` if the slot is free.
    busy: Option<u64>,
    /// Offset in the server's memory of the last completed transfer.
    last: Option<u64>,
}

/// RMA port and memory of a run. The port is declared, and so dropped, before memory, because
/// closing a port makes the NIC reject late packets for the memory.
struct Ports {
    requester: Requester,
    notifications: Notifications,
    slots: KVec<Slot>,
    in_flight: usize,
}

/// Memory that an aborted run left. It is freed after late responses can no longer arrive.
pub(crate) struct PendingMemory(Option<Ports>);

impl Drop for PendingMemory {
    fn drop(&mut self) {
        if let Some(ports) = self.0.take() {
            ports.requester.close();
            ports.notifications.close();
            // The memory can be freed now, because the NIC rejects all further accesses to it.
            drop(ports.slots);
        }
    }
}

/// Exchanges control messages with the server.
struct Control<'a> {
    peer: &'a Peer,
    waiter: &'a Waiter,
    sender: Sender,
    mailbox: Mailbox,
    armed: bool,
}

impl Control<'_> {
    fn header(&self, tag: u8) -> Header {
        Header {
            tag,
            irq: true,
            ..Header::new(Target::Node(self.peer.node), self.peer.vpid)
        }
    }

    /// Requests the server's offer and a lease for the maximum duration of the run.
    fn ask(&mut self) -> Result<Offer> {
        let peer = self.peer;
        let header = self.header(ASK);
        let lease = self.peer.timeout_ms.to_le_bytes();
        let sender = &self.sender;
        self.waiter.send(|| sender.send(header, &lease))?;
        self.waiter.until(
            Mode::Irq,
            Unit::Velo,
            &mut self.armed,
            &mut self.mailbox,
            |mailbox| {
                let mut found = None;
                while found.is_none()
                    && mailbox.poll(1, |m| {
                        let from = m.status.source;
                        let ours = from.node == peer.node && from.vpid == peer.vpid;
                        if ours && m.status.tag == ASK | REPLY && m.len() == OFFER_BYTES {
                            found = Offer::decode(|i| m.word(i));
                        }
                    }) != 0
                {}
                found
            },
            |mailbox| mailbox.rearm(),
        )
    }

    fn done(&self) -> Result {
        let header = self.header(DONE);
        self.waiter.send(|| self.sender.send(header, &[0; 8]))
    }
}

/// Runs the job: requests the server's memory, performs the transfers, and verifies the data.
pub(crate) fn run(
    run: &mut Run<'_>,
    nic: &Arc<Nic>,
    peer: &Peer,
    job: &Job,
    report: &mut Report<'_>,
) -> Result {
    if job.direction == Direction::Put && job.count > MAX_PUTS {
        return report.fail(
            EINVAL,
            fmt!("count exceeds the limit of {MAX_PUTS} PUTs per run"),
        );
    }
    let waiter = run.waiter.clone();
    let (sender, mailbox) = nic.velo().open(None, QUEUE_BYTES)?;
    sender.attach(waiter.client(Unit::Velo)?);
    let mut control = Control {
        peer,
        waiter: &waiter,
        sender,
        mailbox,
        armed: false,
    };
    let offer = match control.ask() {
        Ok(offer) => offer,
        Err(e) => {
            return report.fail(
                e,
                fmt!(
                    "no answer from node {} VPID {}",
                    peer.node.0,
                    peer.vpid.get()
                ),
            )
        }
    };
    let room = match job.direction {
        Direction::Get => offer.source_len,
        Direction::Put => offer.sink_len,
    };
    if job.size as u64 > room {
        return report.fail(EMSGSIZE, fmt!("the server offers {room} bytes"));
    }
    let mut inflight = job.inflight.min(MAX_MEMORY / job.size).max(1);
    if job.direction == Direction::Put {
        // Each slot needs a separate range of the server's memory.
        inflight = inflight.min((room / job.size as u64) as usize).max(1);
    }
    inflight = inflight.min(job.count as usize);

    let mut slots = KVec::with_capacity(inflight, GFP_KERNEL)?;
    for i in 0..inflight {
        let memory = memory::allocate(nic, job.size)?;
        if job.direction == Direction::Put {
            memory::fill(&memory, job.size / 8, PUT_SEED + i as u64, 0);
        }
        slots.push(
            Slot {
                memory,
                busy: None,
                last: None,
            },
            GFP_KERNEL,
        )?;
    }
    let (requester, notifications) = nic.rma().open(None, QUEUE_BYTES)?;
    requester.attach(waiter.client(Unit::Rma)?);
    let mut ports = Ports {
        requester,
        notifications,
        slots,
        in_flight: 0,
    };
    let outcome = measured(&mut ports, &waiter, peer, job, &offer, &mut control, report);
    ports.requester.detach();
    if ports.in_flight != 0 {
        let until = Instant::<Monotonic>::now() + Delta::from_millis(PARK_MS);
        if let Ok(state) = run.state() {
            state.pending = Some((until, PendingMemory(Some(ports))));
        }
    }
    outcome?;
    control.done()?;
    control.sender.detach();
    Ok(())
}

fn measured(
    ports: &mut Ports,
    waiter: &Waiter,
    peer: &Peer,
    job: &Job,
    offer: &Offer,
    control: &mut Control<'_>,
    report: &mut Report<'_>,
) -> Result {
    let begin: Instant<Monotonic> = Instant::now();
    let mut flow = Flow {
        ports,
        waiter,
        peer,
        job,
        offer,
        armed: false,
        posted: 0,
        done: 0,
        batches: 0,
    };
    flow.run(report)?;
    let (count, batches) = (flow.done, flow.batches);
    if job.direction == Direction::Put {
        arrived(control, offer, count)?;
    }
    let elapsed = begin.elapsed().as_nanos().max(1) as u64;
    let verified = match job.direction {
        Direction::Get => verify_gets(ports, job, offer, report)?,
        Direction::Put => verify_puts(ports, waiter, peer, job, offer, report)?,
    };
    let bytes = count * job.size as u64;
    report.line(fmt!("mode {}", peer.mode.name()))?;
    report.number("size", job.size as u64)?;
    report.number("count", count)?;
    report.number("inflight", ports.slots.len() as u64)?;
    report.number("bytes", bytes)?;
    report.number("elapsed_ns", elapsed)?;
    report.number(
        "kib_per_s",
        (bytes / 1024).saturating_mul(1_000_000_000) / elapsed,
    )?;
    report.number("wakeups", batches)?;
    report.number("verified_bytes", verified)
}

/// State of the transfers of a run.
struct Flow<'a> {
    ports: &'a mut Ports,
    waiter: &'a Waiter,
    peer: &'a Peer,
    job: &'a Job,
    offer: &'a Offer,
    armed: bool,
    posted: u64,
    done: u64,
    /// Number of polls that found notifications.
    batches: u64,
}

/// Returns the offset in the server's memory for transfer `index`. Offsets are multiples of 64
/// bytes, spread over the memory.
fn source_offset(job: &Job, offer: &Offer, index: u64) -> u64 {
    let span = offer.source_len - job.size as u64;
    (index * job.size as u64 % (span + 64).max(64)).min(span) & !63
}

impl Flow<'_> {
    fn run(&mut self, report: &mut Report<'_>) -> Result {
        while self.done < self.job.count {
            self.waiter.check()?;
            let blocked = self.post()?;
            if self.ports.in_flight == 0 {
                if blocked {
                    self.waiter.send(|| self.ports.requester.reserve(1))?;
                }
                continue;
            }
            let batch = self.waiter.until(
                self.peer.mode,
                Unit::Rma,
                &mut self.armed,
                &mut self.ports.notifications,
                |queue| {
                    let mut batch = [None; 16];
                    let mut places = batch.iter_mut();
                    let n = queue.poll(16, |n| {
                        if let Some(place) = places.next() {
                            *place = Some(*n);
                        }
                    });
                    (n != 0).then_some(batch)
                },
                |queue| queue.rearm(),
            )?;
            self.batches += 1;
            for notification in batch.iter().flatten() {
                self.complete(notification, report)?;
            }
        }
        Ok(())
    }

    /// Posts commands until all are posted, all slots are in use, or no credit is free. Returns
    /// true if no credit is free.
    fn post(&mut self) -> Result<bool> {
        let page = PageOptions {
            irq: self.peer.mode == Mode::Irq,
            ..PageOptions::default()
        };
        let get = self.job.direction == Direction::Get;
        let to = rma::Peer {
            notify: NotifySpec {
                // A PUT is complete on this side when it has been sent. The server counts its
                // arrival.
                requester: !get,
                responder: false,
                completer: true,
            },
            page,
            ..rma::Peer::new(self.peer.node, self.offer.vpid)
        };
        let len = self.job.size as u32;
        let words = self.job.size / 8;
        while self.posted < self.job.count {
            let Some(i) = self.ports.slots.iter().position(|s| s.busy.is_none()) else {
                return Ok(false);
            };
            let Some(slot) = self.ports.slots.get_mut(i) else {
                return Ok(false);
            };
            let local = slot.memory.address();
            let (offset, result) = if get {
                let offset = source_offset(self.job, self.offer, self.posted);
                // Cleared, so that data of an earlier transfer is not mistaken for data of this
                // transfer.
                slot.memory.write(0, 0);
                slot.memory.write(words - 1, 0);
                let remote = BusAddr(self.offer.source.0 + offset);
                let address = Address::Bus { local, remote };
                (offset, self.ports.requester.get(to, address, len))
            } else {
                let offset = (i * self.job.size) as u64;
                let remote = BusAddr(self.offer.sink.0 + offset);
                let address = Address::Bus { local, remote };
                (offset, self.ports.requester.put(to, address, len))
            };
            match result {
                Ok(()) => {}
                Err(SendError::Full | SendError::Retry) => return Ok(true),
                Err(e) => return Err(e.into()),
            }
            slot.busy = Some(offset);
            self.ports.in_flight += 1;
            self.posted += 1;
        }
        Ok(false)
    }

    fn complete(&mut self, n: &Notification, report: &mut Report<'_>) -> Result {
        let get = self.job.direction == Direction::Get;
        let kind = if get {
            NotificationType::Completer
        } else {
            NotificationType::Requester
        };
        if n.error != 0 || n.kind != kind || n.node != self.peer.node {
            return report.fail(EPROTO, fmt!("unexpected notification {n:?}"));
        }
        let len = self.job.size as u32;
        // The slot is found by the local address: requester and completer report the address of
        // their own side (HW §10.4). The server's addresses may have equal values.
        let found = self.ports.slots.iter().position(|slot| {
            let last = last_fragment_start(slot.memory.address().0, len);
            slot.busy.is_some() && last == n.word0
        });
        let Some(slot) = found.and_then(|i| self.ports.slots.get_mut(i)) else {
            let done = self.done;
            for slot in self.ports.slots.iter() {
                let (at, busy) = (slot.memory.address().0, slot.busy.is_some());
                report.line(fmt!("slot_at {at:#x} busy {busy}"))?;
            }
            return report.fail(
                EPROTO,
                fmt!("no transfer for notification {n:x?} after {done}"),
            );
        };
        let offset = slot.busy.take().unwrap_or(0);
        slot.last = Some(offset);
        self.ports.in_flight -= 1;
        self.done += 1;
        if get {
            let words = self.job.size / 8;
            for word in [0, words - 1] {
                let want = pattern(self.offer.seed, offset / 8 + word as u64);
                let got = slot.memory.read(word);
                if got != want {
                    return report.fail(
                        EBADMSG,
                        fmt!(
                            "GET of offset {offset}: word {word} is {got:#x} instead of {want:#x}"
                        ),
                    );
                }
            }
        }
        Ok(())
    }
}

/// Waits until the server reports `count` PUTs more than in the offer `before`.
fn arrived(control: &mut Control<'_>, before: &Offer, count: u64) -> Result {
    loop {
        let seen = control.ask()?.puts.wrapping_sub(before.puts);
        if seen == count {
            return Ok(());
        }
        if seen > count {
            return Err(EBUSY);
        }
        control.waiter.check()?;
        fsleep(Delta::from_micros(100));
    }
}

/// Compares every word of the last GET of each slot. Returns the number of bytes compared.
fn verify_gets(ports: &Ports, job: &Job, offer: &Offer, report: &mut Report<'_>) -> Result<u64> {
    let mut bytes = 0;
    for slot in ports.slots.iter() {
        let Some(offset) = slot.last else { continue };
        if let Some((word, got)) =
            memory::mismatch(&slot.memory, job.size / 8, offer.seed, offset / 8)
        {
            return report.fail(
                EBADMSG,
                fmt!("GET of offset {offset}: word {word} is {got:#x}"),
            );
        }
        bytes += job.size as u64;
    }
    Ok(bytes)
}

/// Reads the data of the PUTs back and compares it. Returns the number of bytes compared.
fn verify_puts(
    ports: &mut Ports,
    waiter: &Waiter,
    peer: &Peer,
    job: &Job,
    offer: &Offer,
    report: &mut Report<'_>,
) -> Result<u64> {
    let mut bytes = 0;
    let to = rma::Peer {
        notify: NotifySpec {
            requester: false,
            responder: false,
            completer: true,
        },
        page: PageOptions {
            irq: true,
            ..PageOptions::default()
        },
        ..rma::Peer::new(peer.node, offer.vpid)
    };
    let len = job.size as u32;
    let mut armed = false;
    for i in 0..ports.slots.len() {
        let Some(slot) = ports.slots.get(i).filter(|s| s.last.is_some()) else {
            continue;
        };
        memory::fill(&slot.memory, job.size / 8, 0, 0);
        let remote = BusAddr(offer.sink.0 + (i * job.size) as u64);
        let local = slot.memory.address();
        let requester = &ports.requester;
        waiter.send(|| requester.get(to, Address::Bus { local, remote }, len))?;
        ports.in_flight += 1;
        let (kind, error) = waiter.until(
            Mode::Irq,
            Unit::Rma,
            &mut armed,
            &mut ports.notifications,
            |queue| {
                let mut found = None;
                queue.poll(1, |n| found = Some((n.kind, n.error)));
                found
            },
            |queue| queue.rearm(),
        )?;
        ports.in_flight -= 1;
        if error != 0 || kind != NotificationType::Completer {
            return report.fail(EPROTO, fmt!("reading back failed with error {error}"));
        }
        if let Some((word, got)) =
            memory::mismatch(&slot.memory, job.size / 8, PUT_SEED + i as u64, 0)
        {
            return report.fail(
                EBADMSG,
                fmt!("PUT to slot {i}: word {word} there is {got:#x}"),
            );
        }
        bytes += job.size as u64;
    }
    Ok(bytes)
}
