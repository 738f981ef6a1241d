// SPDX-License-Identifier: GPL-2.0-only

//! Counters of a NIC, and numbered reasons of errors. Each reason has a counter and causes the
//! tracepoint `extoll_error`. docs/driver.md lists the reasons that are also logged, at a limited
//! rate. Counters are atomic and can be used in any context.

use kernel::sync::atomic::{Atomic, Relaxed};

macro_rules! reasons {
    (
        $(#[$kind_doc:meta])* $kind:ident:
        $($(#[$doc:meta])* $name:ident = $n:literal, $text:literal;)*
    ) => {
        $(#[$kind_doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u32)]
        pub enum $kind {
            $($(#[$doc])* $name = $n,)*
        }

        impl $kind {
            /// All reasons in the order of their numbers, from 0.
            pub const ALL: &'static [$kind] = &[$($kind::$name),*];

            /// Returns a short text for logs and debugfs.
            pub const fn text(self) -> &'static str {
                match self { $($kind::$name => $text,)* }
            }
        }
    };
}
pub(crate) use reasons;

reasons! {
    /// Reason why a packet, request or device was rejected, dropped or repaired. The numbers are
    /// stable (docs/driver.md).
    Reason:
    /// Registers read as all ones: the device was removed or is in reset.
    DeviceGone = 0, "device gone";
    /// Interrupt without a new entry in the system notification queue.
    SpuriousInterrupt = 1, "spurious interrupt";
    /// System notification with a program counter that belongs to no event of the notification
    /// program.
    UnknownNotification = 2, "unknown system notification";
    /// More notifications arrived than the limit per interrupt. The remainder raises the next
    /// interrupt.
    InterruptBudget = 3, "interrupt budget used up";
    /// An event was masked for a second, because it was too frequent.
    EventStorm = 4, "event storm, masked";
    /// An event that reports an error occurred.
    ErrorEvent = 5, "error event";
    /// Interrupt for a VPID without a client.
    UnclaimedInterrupt = 6, "interrupt for unclaimed VPID";
    /// VELO status word with a length of 0 or above 120.
    BadStatus = 7, "bad VELO status";
    /// RMA notification with an invalid type.
    BadNotification = 8, "bad RMA notification";
    /// RMA notification with error bits.
    NotificationError = 9, "RMA notification with error";
    /// The requester dropped packets, which have to be sent again.
    Retry = 10, "write-combining buffer retry";
    /// The committed count moved backwards or beyond the packets sent.
    BadCommit = 11, "bad committed count";
    /// The committed count did not change for a second.
    Stalled = 12, "write-combining buffer stalled";
    /// A repair did not end in time, and its packets were discarded.
    RepairFailed = 13, "write-combining buffer repair failed";
    /// The drain of packets with illegal routing did not end in time.
    DrainIncomplete = 14, "outport drain incomplete";
    /// A port was still open when the device was unbound.
    PortLeaked = 15, "port left open at unbind";
    /// An optional memory area was made smaller than requested.
    Memory = 16, "memory area reduced";
    /// An event that reports no error occurred.
    NormalEvent = 17, "event";
    /// A peer sent a message to a VPID of this node that is not open.
    ClosedPort = 18, "message for closed port";
    /// A slot of a mailbox stayed empty although the NIC wrote it.
    LostMessage = 19, "VELO message lost, slots skipped";
    /// A slot of a notification queue stayed empty although the NIC wrote it.
    LostNotification = 20, "RMA notification lost, slots skipped";
    /// An entry of the system notification queue stayed invalid although the NIC wrote it.
    LostSystemNotification = 21, "system notification lost, entries skipped";
    /// The NIC did not confirm in time that it dropped translations. The memory stays reserved.
    AtuTimeout = 22, "translation flush not confirmed, memory kept";
    /// A remote register access was not answered in time.
    RraTimeout = 23, "remote register access timed out";
    /// A remote register access was answered with an error.
    RraFailed = 24, "remote register access failed";
    /// There are too many unanswered remote register accesses.
    RraBusy = 25, "remote register access busy";
    /// Answer to a remote register access that had timed out before.
    LateAnswer = 26, "late answer to a register access";
    /// Notification for the register access port that matches no request.
    UnexpectedAnswer = 27, "unexpected answer to a register access";
    /// An access to the SMFU window timed out.
    SmfuTimeout = 28, "SMFU time-out";
    /// A link came up.
    LinkUp = 29, "link up";
    /// A link went down.
    LinkDown = 30, "link down";
    /// An event for user space could not be sent.
    LostUevent = 31, "uevent lost";
    /// Text written to a register's file is invalid or not allowed.
    RegisterCommand = 32, "bad command for a register file";
    /// A process's port exceeded its limit of interrupts and receives none for a while.
    Throttled = 33, "interrupts of a port throttled";
    /// The NIC did not accept the command that clears a requester. The VPID is not reused.
    Reclaim = 34, "requester not cleared, VPID kept";
    /// Entries of the system notification queue waited for a second without an interrupt.
    LostInterrupt = 35, "interrupt lost, system notifications found";
    /// The VPID of an open port stays disabled for a while, because late answers could reach
    /// memory.
    Postponed = 36, "port opened, its RMA VPID disabled for a while";
    /// Memory that late answers may access exceeded the capacity of its batch. It is never freed.
    Leaked = 37, "memory of unanswered commands leaked";
    /// The device is being reset, or the system suspended. The driver is unbound and bound again.
    Reset = 38, "device reset";
    /// Interrupt without an entry in the notification queue, while clients subscribe to interrupts
    /// by other nodes.
    MessageInterrupt = 39, "interrupt by another node";
    /// Other nodes raised too many interrupts. Interrupt targets are closed for a second.
    MessageStorm = 40, "storm of interrupts by other nodes";
    /// A transaction with the PCIe backdoor of another node failed.
    Backdoor = 41, "PCIe backdoor transaction failed";
    /// A module above kept its handle of the NIC after it was unbound.
    HandleLeaked = 42, "handles of the NIC left after unbind";
    /// The PCI core reported an error on the path to the device. The device is reset, unbound and
    /// bound again.
    Unreachable = 43, "device unreachable by a PCI error";
    /// A register lost the value that the driver has written. The driver is unbound and bound
    /// again.
    RegistersLost = 44, "the NIC forgot its registers";
}

/// Counters of one NIC. Any context.
pub struct Stats {
    reasons: [Atomic<u64>; Reason::ALL.len()],
    /// Number of reports of each trigger event.
    events: [Atomic<u64>; 32],
    interrupts: Atomic<u64>,
    changes: Atomic<u64>,
}

impl Stats {
    pub(crate) fn new() -> Self {
        Self {
            reasons: [const { Atomic::new(0) }; Reason::ALL.len()],
            events: [const { Atomic::new(0) }; 32],
            interrupts: Atomic::new(0),
            changes: Atomic::new(0),
        }
    }

    pub(crate) fn count(&self, reason: Reason) {
        if let Some(c) = self.reasons.get(reason as usize) {
            c.add(1, Relaxed);
        }
    }

    pub(crate) fn event(&self, trigger: u8) {
        if let Some(c) = self.events.get(usize::from(trigger)) {
            c.add(1, Relaxed);
        }
    }

    pub(crate) fn interrupt(&self) {
        self.interrupts.add(1, Relaxed);
    }

    pub(crate) fn change(&self) {
        self.changes.add(1, Relaxed);
    }

    /// Returns the number of occurrences of `reason`.
    pub fn reason(&self, reason: Reason) -> u64 {
        self.reasons
            .get(reason as usize)
            .map_or(0, |c| c.load(Relaxed))
    }

    /// Returns the number of reports of trigger event `trigger` (0…31).
    pub fn events(&self, trigger: u8) -> u64 {
        self.events
            .get(usize::from(trigger))
            .map_or(0, |c| c.load(Relaxed))
    }

    /// Returns the number of interrupts handled.
    pub fn interrupts(&self) -> u64 {
        self.interrupts.load(Relaxed)
    }

    /// Returns the number of changes of network state or node ID.
    pub fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }
}

/// Process and user that opened a port. The file may have been passed to another process later.
#[derive(Clone, Copy)]
pub(crate) struct Opener {
    /// Process ID in the initial namespace.
    pub(crate) pid: i32,
    /// Effective user ID in the initial namespace.
    pub(crate) uid: u32,
}

macro_rules! port_stats {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        /// Counters of one port. Any context.
        pub struct PortStats {
            /// Process that opened the port; `None` for the kernel.
            pub(crate) opener: Option<Opener>,
            $($(#[$doc])* pub(crate) $name: Atomic<u64>,)*
        }

        impl PortStats {
            pub(crate) fn of(opener: Option<Opener>) -> Self {
                Self { opener, $($name: Atomic::new(0),)* }
            }

            /// Returns all counters with their names.
            pub fn list(&self) -> [(&'static str, u64); [$(stringify!($name)),*].len()] {
                [$((stringify!($name), self.$name.load(Relaxed))),*]
            }
        }
    };
}

port_stats! {
    /// Packets written to the requester page.
    posted;
    /// Sends that failed for lack of credit.
    full;
    /// Sends that failed because a repair was running.
    busy;
    /// Register reads of the state of the write-combining buffer.
    state_reads;
    /// Repairs started.
    retries;
    /// Packets that were sent again.
    replayed;
    /// Packets that were discarded.
    lost;
    /// Messages or notifications received.
    received;
    /// Received messages or notifications with errors.
    errors;
    /// Slots skipped because their entries were lost.
    skipped;
    /// Updates of the NIC's read pointer.
    commits;
    /// Interrupts delivered to the client.
    interrupts;
    /// Pauses of the port because of too many interrupts.
    throttled;
}

pub(crate) fn add(counter: &Atomic<u64>, n: u64) {
    counter.add(n, Relaxed);
}
