//! The seam between the NIC model and everything around it.
//!
//! The NIC model (`nic`) sees the machine it is plugged into as a [`Host`] and the rest of the fabric as an outbox of
//! [`Packet`]s. Both are passed in on every call, so the model owns no I/O and unit tests need neither QEMU nor sockets.

use wire::ids::{NodeId, Unit, Vpid};

/// A DMA access to what is neither guest memory nor another device, or while bus mastering is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmaFault {
    /// Bus address of the access.
    pub addr: u64,
    /// Length in bytes.
    pub len: usize,
}

/// An order that posted writes of a NIC keep. Writes that have a stream in common become visible in the order in which they
/// were made; those that have none in common may pass each other (G28, docs/emulator.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    /// RMA packets of one VPID and traffic class (HW §10.8): requests and puts of a VPID there, or responses to a VPID here.
    Rma {
        /// Node they come from.
        node: u16,
        /// VPID that posted the descriptors.
        vpid: u8,
        /// Traffic class.
        tc: u8,
        /// Whether they are responses.
        response: bool,
    },
    /// SMFU packets of one node: PCIe order is kept end to end (HW §12).
    Smfu {
        /// Node they come from.
        node: u16,
    },
    /// Slots of one receive queue.
    Queue(Unit, u8),
    /// Entries of the SNQ and its interrupts (HW §17): after everything that was put into receive queues, which is what they
    /// tell of.
    Snq,
    /// Answers of the ATU, which end the use of a page (HW §11.3): among themselves, and after the last [`Host::fence`].
    Answers,
    /// After everything that was written before.
    Everything,
}

/// The machine that a NIC is plugged into.
///
/// Writes that share a [`Stream`] must become visible to the guest in call order, and what they have of an aligned 8-byte word as a
/// whole: guests poll status words that follow their payload (HW §17), and a PCIe packet has byte enables. A read sees all earlier writes.
pub trait Host {
    /// Reads host memory at bus address `addr`.
    fn dma_read(&mut self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault>;
    /// What the processors of the host see at bus address `addr` now. No access of the chip: it counts nowhere and sets nothing in
    /// motion. `false`: nothing is there.
    fn peek(&mut self, addr: u64, buf: &mut [u8]) -> bool;
    /// Writes host memory, or to another device, at bus address `addr`. That the latter fails is told later, see
    /// [`crate::nic::Nic::store_failed`].
    fn dma_write(&mut self, addr: u64, data: &[u8]) -> Result<(), DmaFault>;
    /// Begins to read from another device of the host; the result comes later, with this number ([`crate::nic::Nic::loaded`]).
    /// `None`: that is what [`Host::dma_read`] is for. Error: there is nobody to ask.
    fn ask(&mut self, addr: u64, len: usize) -> Result<Option<u64>, DmaFault> {
        let _ = (addr, len);
        Ok(None)
    }
    /// Writes to other devices so far, and how many of them have ended.
    fn device_writes(&self) -> (u64, u64) {
        (0, 0)
    }
    /// Sends MSI message `vector`. Lost if MSI is disabled in configuration space (G26).
    fn msi(&mut self, vector: u16);
    /// Monotonic time in nanoseconds.
    fn now_ns(&self) -> u64;
    /// What follows belongs to this stream, too, until [`Host::leave`].
    fn enter(&mut self, stream: Stream) {
        let _ = stream;
    }
    /// Ends the last [`Host::enter`].
    fn leave(&mut self) {}
    /// What is written in [`Stream::Answers`] from now on comes after everything that was written before.
    fn fence(&mut self) {}
}

/// One of the four network ports of a NIC (HW §15.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum NetPort {
    /// n0: VELO.
    Velo = 0,
    /// n1: RMA completer.
    RmaCompleter = 1,
    /// n2: RMA responder.
    RmaResponder = 2,
    /// n3: SMFU.
    Smfu = 3,
}

/// Where a packet goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dest {
    /// One node.
    Node(NodeId),
    /// A multicast group, 0…63.
    Group(u8),
}

/// A network packet. The network looks only at the envelope; `body` belongs to the units.
#[derive(Debug, Clone)]
pub struct Packet {
    /// Node that injected the packet.
    pub src: NodeId,
    /// Destination node or group.
    pub dst: Dest,
    /// Port at the destination that receives it.
    pub port: NetPort,
    /// Traffic class 0…3.
    pub tc: u8,
    /// Payload bytes that count for bandwidth (≤ 496 per network packet; larger ones of the SMFU stand for several packets).
    pub bytes: u32,
    /// What the units exchange.
    pub body: crate::nic::Body,
}

/// Passed to every entry point of the NIC model.
pub struct Env<'a> {
    /// Memory and interrupts of the machine the NIC sits in.
    pub host: &'a mut dyn Host,
    /// Packets that the NIC injects; the caller routes them after the call.
    pub outbox: &'a mut std::collections::VecDeque<Packet>,
    /// Payload bytes that the network still takes from this node; the NIC subtracts what it injects, holds commands back
    /// while it is 0 (one packet may overshoot) and goes on at the next `Nic::tick`. `u64::MAX`: no limit.
    pub tx_credit: u64,
    /// Bytes for which each lane has room at the network ports, used in the same way.
    pub tx_room: [u64; crate::lane::LANES],
    /// Trace sink; cheap when tracing is off.
    pub trace: &'a mut dyn Trace,
}

/// Receives trace events. Which NIC they belong to is known to the implementation.
pub trait Trace {
    /// True if events are wanted at all (check before formatting). [`TraceEvent::Diagnostic`]s come regardless, but
    /// rate limited by their source.
    fn enabled(&self) -> bool;
    /// Records an event.
    fn event(&mut self, event: TraceEvent<'_>);
}

/// Who accesses a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accessor {
    /// The host the NIC sits in.
    Host,
    /// Another node, by remote register access.
    Remote,
    /// An SNQ program.
    Snq,
    /// Set-up and control of the emulator.
    Management,
}

/// What can be traced.
#[derive(Debug, Clone)]
pub enum TraceEvent<'a> {
    /// Register file write.
    RegWrite {
        /// Who writes.
        by: Accessor,
        /// Byte offset in the register file.
        offset: u32,
        /// Value written.
        value: u64,
    },
    /// Register file read.
    RegRead {
        /// Who reads.
        by: Accessor,
        /// Byte offset in the register file.
        offset: u32,
        /// Value returned.
        value: u64,
    },
    /// VELO or RMA requester store that completed a descriptor.
    Descriptor {
        /// Unit.
        port: NetPort,
        /// Source VPID.
        vpid: Vpid,
        /// Descriptor QWs.
        words: &'a [u64],
    },
    /// DMA by the NIC.
    Dma {
        /// True for a write to host memory.
        write: bool,
        /// Bus address.
        addr: u64,
        /// Length in bytes.
        len: usize,
    },
    /// MSI sent.
    Msi {
        /// Vector.
        vector: u16,
    },
    /// The guest or software did something wrong; the text says what.
    Diagnostic(&'a str),
}
