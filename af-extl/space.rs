// SPDX-License-Identifier: GPL-2.0-only

//! Data of a network namespace: the list of its sockets, counters, and the files `/proc/net/extl`
//! and `/proc/net/extl_stat` that show both. Process context. The mutex `sockets` protects the
//! list; the spin lock `transitions` nests inside a socket's phase lock.

use crate::{
    conf,
    connection::SocketInfo,
    state::{name, Event, Phase},
};
use kernel::{
    fmt, new_mutex, new_spinlock,
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex, SpinLock,
    },
};
use kernel_ext::{
    net::{
        namespace::{PerNet, Show, Slot},
        sysctl::{Sysctl, Sysctls},
    },
    sched::cond_resched,
};
use protocol::{base::flow::Counts, ds::Fallback};

static NET_STATE: Slot<Space> = Slot::new();

/// Number of sockets that are listed while the lock is held once.
const BATCH: usize = 32;

/// Data of a network namespace.
#[pin_data]
pub(crate) struct Space {
    #[pin]
    sockets: Mutex<Sockets>,
    #[pin]
    transitions: SpinLock<Counts<Phase>>,
    reasons: [Atomic<u64>; Fallback::ALL.len()],
    /// Accepted sockets whose private data could not be allocated. TCP carries their data until the
    /// allocation succeeds.
    unmade: Atomic<u64>,
    sysctls: Sysctls,
    /// Direct connections that also received data over TCP, which is never delivered.
    astray: Atomic<u64>,
}

/// Sockets of the namespace by number.
struct Sockets {
    by_number: RBTree<u64, Arc<SocketInfo>>,
    count: u64,
    next: u64,
}

impl PerNet for Space {
    const FILES: &'static [(&'static CStr, Show<Self>)] =
        &[(c"extl", show_sockets), (c"extl_stat", show_counters)];

    const SYSCTLS: (&'static CStr, &'static [Sysctl]) = (
        c"net/extl",
        &[
            Sysctl {
                name: c"data_path",
                min: 0,
                max: 1,
                initial: conf::data_path,
            },
            Sysctl {
                name: c"zero_copy_kib",
                min: 0,
                max: conf::ZERO_COPY_MOST,
                initial: conf::zero_copy_kib,
            },
        ],
    );

    fn slot() -> &'static Slot<Self> {
        &NET_STATE
    }

    fn new(sysctls: Sysctls) -> Result<Arc<Self>> {
        let sockets = Sockets {
            by_number: RBTree::new(),
            count: 0,
            next: 0,
        };
        Arc::pin_init(
            pin_init!(Self {
                sockets <- new_mutex!(sockets, "extl_sockets"),
                transitions <- new_spinlock!(Counts::default(), "extl_transitions"),
                reasons: [const { Atomic::new(0) }; Fallback::ALL.len()],
                unmade: Atomic::new(0),
                sysctls,
                astray: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }
}

impl Space {
    /// Adds a socket to the list and returns its number. May sleep.
    pub(crate) fn add(&self, info: Arc<SocketInfo>) -> Result<u64> {
        let reservation = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let mut sockets = self.sockets.lock();
        let number = sockets.next;
        sockets.next += 1;
        sockets.count += 1;
        sockets
            .by_number
            .insert(reservation.into_node(number, info));
        Ok(number)
    }

    /// Removes a socket from the list. May sleep.
    pub(crate) fn remove(&self, number: u64) {
        let mut sockets = self.sockets.lock();
        let node = sockets.by_number.remove_node(&number);
        sockets.count -= u64::from(node.is_some());
        drop(sockets);
        drop(node);
    }

    /// Returns the next sockets from number `next` on and advances `next`. The list is read in
    /// batches, because sockets are created and closed under the same lock.
    fn batch(&self, next: &mut u64) -> [Option<Arc<SocketInfo>>; BATCH] {
        let mut batch = [const { None }; BATCH];
        let mut sockets = self.sockets.lock();
        let mut at = sockets.by_number.cursor_lower_bound_mut(next);
        *next = u64::MAX;
        for to in &mut batch {
            let Some(cursor) = at else {
                return batch;
            };
            *to = Some(cursor.current().1.clone());
            at = cursor.move_next();
        }
        if let Some(cursor) = at {
            *next = *cursor.current().0;
        }
        batch
    }

    /// Applies `event` to `phase` and counts the transition. Returns false, without a change, if
    /// the event is impossible in this phase.
    pub(crate) fn step(&self, phase: &mut Phase, event: Event) -> bool {
        self.transitions.lock().step(phase, event)
    }

    /// Counts a connection that fell back to TCP.
    pub(crate) fn fell_back(&self, why: Fallback) {
        let index = usize::from(why.code()).wrapping_sub(1);
        if let Some(n) = self.reasons.get(index) {
            n.fetch_add(1, Relaxed);
        }
    }

    /// Returns whether data of new connections may bypass TCP.
    pub(crate) fn data_path(&self) -> bool {
        self.sysctls.get(0) != 0
    }

    /// Returns the minimum size in bytes of blocking calls that use zero copy; 0: never.
    pub(crate) fn zero_copy(&self) -> usize {
        (self.sysctls.get(1) as usize) << 10
    }

    /// Counts a direct connection whose peer has sent data over TCP.
    pub(crate) fn count_astray(&self) {
        self.astray.fetch_add(1, Relaxed);
    }

    /// Counts an accepted socket without private data.
    pub(crate) fn count_unmade(&self) {
        self.unmade.fetch_add(1, Relaxed);
    }
}

fn show_sockets(space: &Space, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(
        f,
        "local remote state mode reason sent received uid inode {}",
        crate::show::COLUMNS
    )?;
    // Sockets created during the listing are not shown.
    let (mut next, end) = (0, space.sockets.lock().next);
    while next < end {
        let batch = space.batch(&mut next);
        for info in batch.iter().flatten() {
            info.line(f)?;
        }
        cond_resched();
    }
    Ok(())
}

fn show_counters(space: &Space, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let sockets = space.sockets.lock().count;
    writeln!(f, "sockets {sockets}")?;
    for (why, n) in Fallback::ALL.into_iter().zip(&space.reasons) {
        writeln!(f, "fallback-{} {}", name(why), n.load(Relaxed))?;
    }
    writeln!(f, "unmade {}", space.unmade.load(Relaxed))?;
    writeln!(f, "tcp-data-astray {}", space.astray.load(Relaxed))?;
    let transitions = space.transitions.lock().clone();
    for (from, event, _, n) in transitions.iter() {
        writeln!(f, "{from}+{event} {n}")?;
    }
    Ok(())
}
