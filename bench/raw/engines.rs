// SPDX-License-Identifier: GPL-2.0-only

//! Common functions of the tests of engines, and the listener of an offer.

use crate::{
    command::Words,
    regions::{self, View},
};
use extoll_core::{
    atu::Region,
    nic::Nic,
    rma::{
        transfer::{
            CallIn, Destination, Direction, Engine, Listener, Lists, Notify, RegionPart, Request,
            RmaError, Setup, Span, Submitter,
        },
        Address, Command, Notification, NotificationType,
    },
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
    time::{delay::fsleep, Delta},
};
use wire::ids::{NodeId, Vpid};

/// Size of the notification queue in bytes.
const QUEUE_BYTES: u32 = 512 << 10;

/// Opens an engine on a new port. May sleep.
pub(crate) fn open(nic: &Arc<Nic>, setup: Setup) -> Result<Engine> {
    let (requester, notifications) = nic.rma().open(None, QUEUE_BYTES)?;
    Engine::with(requester, notifications, setup)
}

/// Returns the destination from the words `node`, `vpid`, `tc` and `notify`.
pub(crate) fn destination(words: &Words) -> Result<Destination> {
    Ok(Destination {
        node: NodeId(words.node.ok_or(EINVAL)? as u16),
        vpid: Vpid::new(words.vpid as u16).ok_or(EINVAL)?,
        traffic_class: words.tc as u8,
        notify: words.notify,
    })
}

/// Collects the items of an iterator in a vector.
pub(crate) fn collect<T>(items: impl ExactSizeIterator<Item = T>) -> Result<KVVec<T>> {
    let mut all = KVVec::with_capacity(items.len(), GFP_KERNEL)?;
    for item in items {
        all.push(item, GFP_KERNEL)?;
    }
    Ok(all)
}

/// Writes `len` bytes to the peer's memory, and waits until they have arrived. May sleep.
pub(crate) fn put(
    engine: &Submitter,
    to: Destination,
    address: Address<'_>,
    len: u64,
    timeout: Delta,
) -> Result<(), RmaError> {
    let put = |lists| {
        let request = Request {
            to,
            direction: Direction::Put,
            lists,
            confirm: true,
            timeout,
            context: CallIn::Poll,
        };
        engine.start(&request)?.wait()
    };
    match address {
        Address::Region {
            region,
            offset,
            remote,
        } => put(Lists::Regions {
            local: &[RegionPart::new(region, offset, len as usize)],
            remote: &[Span {
                address: remote,
                len,
            }],
        }),
        Address::Bus { local, remote } => put(Lists::Bus {
            local: &[Span {
                address: local,
                len,
            }],
            remote: &[Span {
                address: remote,
                len,
            }],
        }),
    }
}

/// Local memory of a transfer.
pub(crate) struct LocalMemory {
    pub(crate) region: Option<Region>,
    pub(crate) view: View,
}

impl LocalMemory {
    /// Allocates memory of the kind that `words` names; the CPU must be able to access it. May
    /// sleep.
    pub(crate) fn new(
        nic: &Arc<Nic>,
        vpid: Vpid,
        words: &Words,
        bytes: usize,
        seed: Option<u64>,
    ) -> Result<Self> {
        let (region, view) = regions::memory(nic, vpid, words, bytes, seed)?;
        Ok(Self { region, view })
    }

    /// Returns the bus address if the memory is contiguous.
    pub(crate) fn bus(&self) -> Option<u64> {
        match &self.view {
            View::Words(words) => Some(words.address().0),
            View::Pages(_) => None,
        }
    }
}

/// Parses the word that selects which notifications a peer receives.
pub(crate) fn notify(text: &str) -> Option<Notify> {
    Some(match text {
        "nothing" => Notify::Nothing,
        "each" => Notify::Each,
        "last" => Notify::Last,
        "value" => Notify::Value {
            class: 2,
            value: 0xE7_0117,
        },
        _ => return None,
    })
}

/// Counters of the notifications that an offer received from peers.
pub(crate) struct Received {
    node: NodeId,
    /// Delay between two notifications in µs.
    slow: u64,
    /// Number of notifications of arrived PUTs, of GETs read by peers, of values (notification
    /// PUTs), and of other kinds.
    pub(crate) counts: [Atomic<u64>; 4],
    /// Number of notifications that came from this node.
    pub(crate) own: Atomic<u64>,
    pub(crate) last: Atomic<u64>,
}

impl Received {
    pub(crate) fn new(nic: &Nic, slow: u64) -> Self {
        Self {
            node: nic.node(),
            slow,
            counts: [const { Atomic::new(0) }; 4],
            own: Atomic::new(0),
            last: Atomic::new(0),
        }
    }
}

impl Listener for Received {
    fn notified(&self, n: &Notification) {
        use NotificationType::{Completer, Responder};
        let kind = match (n.kind, n.command) {
            (Completer, Command::BytePut | Command::QwPut) => 0,
            (Responder, Command::ByteGet | Command::QwGet) => 1,
            (Completer, Command::NotificationPut) => 2,
            _ => 3,
        };
        if kind == 2 {
            self.last.store(n.word0, Relaxed);
        }
        if n.node == self.node {
            self.own.fetch_add(1, Relaxed);
        }
        if let Some(count) = self.counts.get(kind) {
            count.fetch_add(1, Relaxed);
        }
        if self.slow != 0 {
            fsleep(Delta::from_micros(self.slow as i64));
        }
    }
}
