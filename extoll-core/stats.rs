// SPDX-License-Identifier: GPL-2.0-only

//! Counters and numbered reasons of everything that goes wrong. Every reason has a counter and the tracepoint `extoll_error`;
//! docs/driver.md says which ones are logged, too, at a limited rate.

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
            /// All reasons in the order of their numbers from 0.
            pub const ALL: &'static [$kind] = &[$($kind::$name),*];

            /// Short text for logs and debugfs.
            pub const fn text(self) -> &'static str {
                match self { $($kind::$name => $text,)* }
            }
        }
    };
}
pub(crate) use reasons;

reasons! {
    /// Why something was refused, dropped or repaired. The numbers are stable (docs/driver.md).
    Reason:
    /// Registers read as all ones: the device was removed or is in reset.
    DeviceGone = 0, "device gone";
    /// Interrupt without a new entry in the system notification queue.
    SpuriousInterrupt = 1, "spurious interrupt";
    /// System notification whose program counter no event of the program has.
    UnknownNotification = 2, "unknown system notification";
    /// More notifications than one interrupt may handle; the rest follows with the next one.
    InterruptBudget = 3, "interrupt budget used up";
    /// An event was masked for a second because it came too often.
    EventStorm = 4, "event storm, masked";
    /// An event that reports an error.
    ErrorEvent = 5, "error event";
    /// Message interrupt for a VPID without client.
    UnclaimedInterrupt = 6, "interrupt for unclaimed VPID";
    /// Status word with a length of 0 or above 120.
    BadStatus = 7, "bad VELO status";
    /// Notification with an impossible type.
    BadNotification = 8, "bad RMA notification";
    /// Notification with error bits.
    NotificationError = 9, "RMA notification with error";
    /// Packets were dropped by the requester and have to be sent again.
    Retry = 10, "write-combining buffer retry";
    /// The committed count moved backwards or beyond the packets sent.
    BadCommit = 11, "bad committed count";
    /// Nothing was committed for a second.
    Stalled = 12, "write-combining buffer stalled";
    /// Repair did not end in time, the packets were given up.
    RepairFailed = 13, "write-combining buffer repair failed";
    /// The illegal-routing drain did not end in time.
    DrainIncomplete = 14, "outport drain incomplete";
    /// A port was still open when the device was unbound.
    PortLeft = 15, "port left open at unbind";
    /// An optional memory area was made smaller than asked for.
    Memory = 16, "memory area reduced";
    /// An event that reports no error.
    NormalEvent = 17, "event";
    /// A peer sent to a VPID that is not open here.
    ClosedPort = 18, "message for closed port";
    /// A slot of a mailbox stayed empty although the NIC wrote it.
    LostMessage = 19, "VELO message lost, slots skipped";
    /// A slot of a notification queue stayed empty although the NIC wrote it.
    LostNotification = 20, "RMA notification lost, slots skipped";
    /// An entry of the system notification queue stayed invalid although the NIC wrote it.
    LostSystemNotification = 21, "system notification lost, entries skipped";
    /// The NIC did not confirm in time that it forgot translations; the memory stays reserved.
    AtuTimeout = 22, "translation flush not confirmed, memory kept";
    /// A remote register access was not answered in time.
    RraTimeout = 23, "remote register access timed out";
    /// A remote register access was answered with an error.
    RraFailed = 24, "remote register access failed";
    /// Too many remote register accesses wait for answers.
    RraBusy = 25, "remote register access busy";
    /// An answer to a remote register access that was given up.
    LateAnswer = 26, "late answer to a register access";
    /// A notification for the register access port that answers nothing.
    UnexpectedAnswer = 27, "unexpected answer to a register access";
    /// An access to the SMFU window timed out.
    SmfuTimeout = 28, "SMFU time-out";
    /// A link came up.
    LinkUp = 29, "link up";
    /// A link went down.
    LinkDown = 30, "link down";
    /// An event for user space could not be sent.
    LostUevent = 31, "uevent lost";
    /// What was written to a register's file makes no sense or is not allowed.
    RegisterCommand = 32, "bad command for a register file";
    /// A process's port had more interrupts than it may have; it gets none for a while.
    Throttled = 33, "interrupts of a port throttled";
    /// The NIC did not accept the command that clears what a process left in a requester; its VPID stays out of use.
    Residue = 34, "requester not cleared, VPID kept";
    /// Entries of the system notification queue waited for a second without an interrupt.
    LostInterrupt = 35, "interrupt lost, system notifications found";
    /// The VPID of an open port stays disabled for a while, because late answers could reach memory.
    Postponed = 36, "port opened, its RMA VPID disabled for a while";
    /// Memory that late answers may reach found no place in a batch; it is never freed.
    Leaked = 37, "memory of unanswered commands leaked";
    /// The device is reset, or the system sleeps; the driver is unbound and bound again.
    Reset = 38, "device reset";
    /// Interrupt that the notification queue does not explain, while somebody waits for such.
    MessageInterrupt = 39, "interrupt by another node";
    /// Other nodes caused too many interrupts; interrupt targets are closed for a second.
    MessageStorm = 40, "storm of interrupts by other nodes";
    /// A transaction with the PCIe backdoor of another node failed.
    Backdoor = 41, "PCIe backdoor transaction failed";
    /// A module above kept its handle of the NIC when it was unbound.
    HandleLeft = 42, "handles of the NIC left after unbind";
    /// The PCI core reports an error on the way to the device; it is reset, unbound and bound again.
    Unreachable = 43, "device unreachable by a PCI error";
    /// A register does not hold what the driver has written; the driver is unbound and bound again.
    Forgot = 44, "the NIC forgot its registers";
}

/// Counters of one NIC. Any context.
pub struct Stats {
    reasons: [Atomic<u64>; Reason::ALL.len()],
    /// By trigger event.
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

    /// How often `reason` occurred.
    pub fn reason(&self, reason: Reason) -> u64 {
        self.reasons
            .get(reason as usize)
            .map_or(0, |c| c.load(Relaxed))
    }

    /// How often trigger event `trigger` (0…31) was reported.
    pub fn events(&self, trigger: u8) -> u64 {
        self.events
            .get(usize::from(trigger))
            .map_or(0, |c| c.load(Relaxed))
    }

    /// Interrupts handled.
    pub fn interrupts(&self) -> u64 {
        self.interrupts.load(Relaxed)
    }

    /// Changes of network state or node ID.
    pub fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }
}

/// Who opened a port. The file may have been handed to others since.
#[derive(Clone, Copy)]
pub(crate) struct Opener {
    /// Process, as the initial namespace numbers it.
    pub(crate) pid: i32,
    /// Effective user, as the initial namespace numbers it.
    pub(crate) uid: u32,
}

macro_rules! port_stats {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        /// Counters of one port. Any context.
        pub struct PortStats {
            /// The process that opened the port; `None`: the kernel.
            pub(crate) opener: Option<Opener>,
            $($(#[$doc])* pub(crate) $name: Atomic<u64>,)*
        }

        impl PortStats {
            pub(crate) fn of(opener: Option<Opener>) -> Self {
                Self { opener, $($name: Atomic::new(0),)* }
            }

            /// All counters with their names.
            pub fn list(&self) -> [(&'static str, u64); [$(stringify!($name)),*].len()] {
                [$((stringify!($name), self.$name.load(Relaxed))),*]
            }
        }
    };
}

port_stats! {
    /// Packets written to the requester page.
    posted;
    /// Sends refused for lack of credit.
    full;
    /// Sends refused because a repair was running.
    busy;
    /// Reads of the write-combining buffer state.
    state_reads;
    /// Repairs begun.
    retries;
    /// Packets sent again.
    replayed;
    /// Packets given up.
    lost;
    /// Messages or notifications received.
    received;
    /// Received ones with errors.
    errors;
    /// Slots skipped because their content got lost.
    skipped;
    /// Read pointer updates.
    commits;
    /// Interrupts delivered to the client.
    interrupts;
    /// Pauses because of too many interrupts.
    throttled;
}

pub(crate) fn add(counter: &Atomic<u64>, n: u64) {
    counter.add(n, Relaxed);
}
