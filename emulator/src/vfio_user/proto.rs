//! Numbers of the vfio-user protocol, and little-endian access to message bytes.
//!
//! QEMU's specification of vfio-user (docs/interop/vfio-user.rst) is the source.
//! `REGION_WRITE_MULTI` is an extension of QEMU.

/// Length of a message header in bytes.
pub const HEADER_LEN: usize = 16;
/// Maximum payload of a region access or version message in bytes (sent as `max_data_xfer_size`).
pub const MAX_XFER: usize = 1 << 20;
/// Maximum length in bytes of an accepted message. Only a broken or hostile client sends longer
/// messages.
pub const MAX_MESSAGE: usize = HEADER_LEN + 64 + MAX_XFER;
/// Maximum number of file descriptors per message, sent as `max_msg_fds`.
pub const MAX_FDS: usize = 16;
/// Maximum number of writes in a `REGION_WRITE_MULTI` message.
pub const MULTI_MAX: usize = 200;
/// Maximum number of DMA mappings per client. It is the protocol's default. A guest with an IOMMU
/// may map each page separately.
pub const MAX_DMA_MAPS: usize = 65_535;

/// Command numbers.
pub mod command {
    /// Negotiates version and capabilities. It is the first message of a client.
    pub const VERSION: u16 = 1;
    /// Adds a DMA mapping.
    pub const DMA_MAP: u16 = 2;
    /// Removes DMA mappings.
    pub const DMA_UNMAP: u16 = 3;
    /// Returns the number of regions and of interrupt indices.
    pub const DEVICE_GET_INFO: u16 = 4;
    /// Returns size and flags of a region.
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    /// Requests ioeventfds for a region. The server always rejects it.
    pub const DEVICE_GET_REGION_IO_FDS: u16 = 6;
    /// Returns the number of vectors of an interrupt index.
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    /// Changes interrupt routing.
    pub const DEVICE_SET_IRQS: u16 = 8;
    /// Reads a region.
    pub const REGION_READ: u16 = 9;
    /// Writes a region.
    pub const REGION_WRITE: u16 = 10;
    /// Reads memory of the client, or a device on the client's bus, for the server.
    pub const DMA_READ: u16 = 11;
    /// Writes memory of the client, or a device on the client's bus, for the server.
    pub const DMA_WRITE: u16 = 12;
    /// Resets the device.
    pub const DEVICE_RESET: u16 = 13;
    /// Contains several small region writes.
    pub const REGION_WRITE_MULTI: u16 = 15;
}

/// Flags in a message header.
pub mod flag {
    /// Mask of the message type.
    pub const TYPE: u32 = 0xf;
    /// Message type of a reply. Commands have type 0.
    pub const REPLY: u32 = 1;
    /// The sender wants no reply.
    pub const NO_REPLY: u32 = 1 << 4;
    /// The reply contains an error number.
    pub const ERROR: u32 = 1 << 5;
}

/// Indices of the regions of a PCI device.
pub mod region {
    /// Index of BAR0. BARn has index n.
    pub const BAR0: u32 = 0;
    /// Index of BAR2.
    pub const BAR2: u32 = 2;
    /// Index of the configuration space.
    pub const CONFIG: u32 = 7;
    /// Number of region indices.
    pub const COUNT: u32 = 9;
}

/// Indices of the interrupts of a PCI device.
pub mod irq {
    /// Index of MSI.
    pub const MSI: u32 = 1;
    /// Number of interrupt indices (INTx, MSI, MSI-X, error, request).
    pub const COUNT: u32 = 5;
}

/// Header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Number that the sender chooses and the reply repeats.
    pub id: u16,
    /// Command number.
    pub command: u16,
    /// Length of the whole message in bytes.
    pub size: u32,
    /// Flags of the message (see [`flag`]).
    pub flags: u32,
    /// Error number of a reply.
    pub error: u32,
}

impl Header {
    /// Decodes the first 16 bytes of a message. Returns `None` if the message is shorter.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader::new(bytes);
        Some(Self {
            id: r.u16()?,
            command: r.u16()?,
            size: r.u32()?,
            flags: r.u32()?,
            error: r.u32()?,
        })
    }

    /// Appends the encoded header.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.command.to_le_bytes());
        out.extend_from_slice(&self.size.to_le_bytes());
        out.extend_from_slice(&self.flags.to_le_bytes());
        out.extend_from_slice(&self.error.to_le_bytes());
    }
}

/// Reader of little-endian numbers from a byte slice. Every method returns `None` if too few bytes
/// remain.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Returns a reader that begins at the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Reads the next `n` bytes.
    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.bytes.split_at_checked(n)?;
        self.bytes = tail;
        Some(head)
    }

    /// Returns the remaining bytes.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    /// Reads the next two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }

    /// Reads the next four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    /// Reads the next eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
}
