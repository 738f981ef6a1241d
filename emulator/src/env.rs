//! Interface between the NIC model and its environment.
//!
//! The NIC model (`nic`) accesses its host through [`Host`] and sends packets by appending
//! [`Packet`]s to an outbox. Both are parameters of every call. The model therefore does no I/O,
//! and unit tests need neither QEMU nor sockets.

use wire::ids::{NodeId, Unit, Vpid};

/// A failed DMA access. Its address belongs neither to guest memory nor to another device, or bus
/// mastering is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmaFault {
    /// Bus address of the access.
    pub addr: u64,
    /// Length in bytes.
    pub len: usize,
}

/// A stream of posted writes of a NIC. Writes that have a stream in common become visible in the
/// order in which the NIC made them. Writes without a common stream may pass each other (G28,
/// docs/emulator.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    /// Writes for RMA packets of one VPID and one traffic class (HW §10.8): requests and PUTs from
    /// that VPID of another node, or responses to a VPID of this node.
    Rma {
        /// Node that sent the packets.
        node: u16,
        /// VPID that posted the descriptors.
        vpid: u8,
        /// Traffic class of the packets.
        tc: u8,
        /// True for responses, false for requests and PUTs.
        response: bool,
    },
    /// Writes for SMFU packets of one node, which keep PCIe order from end to end (HW §12).
    Smfu {
        /// Node that sent the packets.
        node: u16,
    },
    /// Writes to the slots of one receive queue.
    Queue(Unit, u8),
    /// Writes of SNQ entries, and their interrupts (HW §17). They follow all earlier writes to
    /// receive queues, because they announce these writes.
    Snq,
    /// Writes of the ATU's answers, which end the use of a page (HW §11.3). They keep their order,
    /// and follow all writes that precede the last [`Host::fence`].
    Answers,
    /// Writes that follow all earlier writes.
    Everything,
}

/// Host of a NIC: memory, interrupts and time.
///
/// Writes that share a [`Stream`] must become visible to the guest in call order, because guests
/// poll status words that follow their payload (HW §17). The bytes that one write stores in an
/// aligned 8-byte word must become visible together, because a PCIe packet has byte enables. A read
/// sees all earlier writes.
pub trait Host {
    /// Reads host memory at bus address `addr`.
    fn dma_read(&mut self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault>;
    /// Reads host memory at bus address `addr` as the CPUs of the host see it now. Returns `false`
    /// if the address is not in host memory. This is not an access of the chip: it is not counted,
    /// and it pushes no posted writes.
    fn peek(&mut self, addr: u64, buf: &mut [u8]) -> bool;
    /// Writes to host memory, or to another device, at bus address `addr`. If a write to a device
    /// fails later, the environment calls [`crate::nic::Nic::store_failed`].
    fn dma_write(&mut self, addr: u64, data: &[u8]) -> Result<(), DmaFault>;
    /// Begins to read from another device of the host. Returns a number with which the environment
    /// passes the result to [`crate::nic::Nic::loaded`] later. Returns `None` if `addr` is host
    /// memory, which [`Host::dma_read`] reads.
    ///
    /// # Errors
    ///
    /// [`DmaFault`] if no connected client could answer.
    fn begin_load(&mut self, addr: u64, len: usize) -> Result<Option<u64>, DmaFault> {
        let _ = (addr, len);
        Ok(None)
    }
    /// Returns the number of writes to other devices so far, and the number of these writes that
    /// have ended.
    fn device_writes(&self) -> (u64, u64) {
        (0, 0)
    }
    /// Sends MSI message `vector`. The message is lost if MSI is disabled in the configuration
    /// space (G26).
    fn msi(&mut self, vector: u16);
    /// Returns monotonic time in nanoseconds.
    fn now_ns(&self) -> u64;
    /// Adds the following writes to `stream` in addition to their other streams, until
    /// [`Host::leave`].
    fn enter(&mut self, stream: Stream) {
        let _ = stream;
    }
    /// Ends the effect of the last [`Host::enter`].
    fn leave(&mut self) {}
    /// Orders later writes in [`Stream::Answers`] behind all writes made so far.
    fn fence(&mut self) {}
}

/// Network port of a NIC (HW §15.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum NetPort {
    /// Port n0: VELO.
    Velo = 0,
    /// Port n1: RMA completer.
    RmaCompleter = 1,
    /// Port n2: RMA responder.
    RmaResponder = 2,
    /// Port n3: SMFU.
    Smfu = 3,
}

/// Destination of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dest {
    /// The node with this ID.
    Node(NodeId),
    /// A multicast group, 0…63.
    Group(u8),
}

/// A network packet. The network uses all fields except `body`, which only the units read.
#[derive(Debug, Clone)]
pub struct Packet {
    /// Node that injected the packet.
    pub src: NodeId,
    /// Destination node or group.
    pub dst: Dest,
    /// Port at the destination that receives the packet.
    pub port: NetPort,
    /// Traffic class 0…3.
    pub tc: u8,
    /// Payload bytes that count for bandwidth: up to 496 bytes per network packet. A larger SMFU
    /// packet represents several network packets.
    pub bytes: u32,
    /// Content that the units exchange.
    pub body: crate::nic::Body,
}

/// Environment of the NIC model, passed to every entry point.
pub struct Env<'a> {
    /// Memory and interrupts of the host.
    pub host: &'a mut dyn Host,
    /// Packets that the NIC injects. The caller routes them after the call.
    pub outbox: &'a mut std::collections::VecDeque<Packet>,
    /// Number of payload bytes that the network still accepts from this node; `u64::MAX` for no
    /// limit.
    ///
    /// The NIC subtracts the bytes that it injects. The last packet may be larger than the
    /// remaining credit. While the credit is 0, the NIC holds commands back until the next
    /// `Nic::tick`.
    pub tx_credit: u64,
    /// Number of free bytes of each lane at the network ports, which the NIC uses like `tx_credit`.
    pub tx_room: [u64; crate::lane::LANES],
    /// Receiver of trace events. Calls cost little while tracing is off.
    pub trace: &'a mut dyn Trace,
}

/// Receiver of trace events of one NIC.
pub trait Trace {
    /// Returns true if the receiver wants events. Callers check this before they format text.
    /// [`TraceEvent::Diagnostic`] is passed in any case; its source limits the rate.
    fn enabled(&self) -> bool;
    /// Records an event.
    fn event(&mut self, event: TraceEvent<'_>);
}

/// Originator of a register access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accessor {
    /// The host of the NIC.
    Host,
    /// Another node, by remote register access.
    Remote,
    /// An SNQ program.
    Snq,
    /// Set-up step and control socket of the emulator.
    Management,
}

/// An event in a trace.
#[derive(Debug, Clone)]
pub enum TraceEvent<'a> {
    /// A write to the register file.
    RegWrite {
        /// Originator of the write.
        by: Accessor,
        /// Byte offset in the register file.
        offset: u32,
        /// Value that was written.
        value: u64,
    },
    /// A read from the register file.
    RegRead {
        /// Originator of the read.
        by: Accessor,
        /// Byte offset in the register file.
        offset: u32,
        /// Value that was returned.
        value: u64,
    },
    /// The store that completed a descriptor of VELO or of the RMA requester.
    Descriptor {
        /// Network port of the unit.
        port: NetPort,
        /// Source VPID.
        vpid: Vpid,
        /// Quadwords of the descriptor.
        words: &'a [u64],
    },
    /// A DMA access by the NIC.
    Dma {
        /// True for a write to host memory.
        write: bool,
        /// Bus address.
        addr: u64,
        /// Length in bytes.
        len: usize,
    },
    /// An MSI message to the host.
    Msi {
        /// Number of the vector.
        vector: u16,
    },
    /// An error of the guest or of other software, described by the text.
    Diagnostic(&'a str),
}
