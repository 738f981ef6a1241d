//! Entries of the queues: commands, status codes and completions (NVM Express 1.4, chapter 4).

/// Size of a submission queue entry in bytes.
pub const COMMAND: u32 = 64;
/// Size of a completion queue entry in bytes.
pub const COMPLETION: u32 = 16;

/// Opcodes of the admin queue.
pub mod admin {
    #![allow(missing_docs)]
    pub const DELETE_SQ: u8 = 0x00;
    pub const CREATE_SQ: u8 = 0x01;
    pub const GET_LOG_PAGE: u8 = 0x02;
    pub const DELETE_CQ: u8 = 0x04;
    pub const CREATE_CQ: u8 = 0x05;
    pub const IDENTIFY: u8 = 0x06;
    pub const ABORT: u8 = 0x08;
    pub const SET_FEATURES: u8 = 0x09;
    pub const GET_FEATURES: u8 = 0x0A;
    pub const ASYNC_EVENT: u8 = 0x0C;
}

/// Opcodes of I/O queues.
pub mod io {
    #![allow(missing_docs)]
    pub const FLUSH: u8 = 0x00;
    pub const WRITE: u8 = 0x01;
    pub const READ: u8 = 0x02;
    pub const WRITE_ZEROES: u8 = 0x08;
}

/// A command, decoded from an entry of a submission queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Command {
    pub opcode: u8,
    /// Fused operation, and kind of data pointer (PRP or SGL).
    pub flags: u8,
    pub id: u16,
    pub namespace: u32,
    pub prp: [u64; 2],
    /// Dwords 10 to 15 of the command.
    pub dwords: [u32; 6],
}

impl Command {
    /// Decodes an entry. If bytes at the end of the entry are missing, they count as 0.
    pub fn parse(entry: &[u8]) -> Self {
        let dword = |i: usize| {
            let bytes = entry.get(4 * i..).and_then(|b| b.first_chunk());
            bytes.copied().map_or(0, u32::from_le_bytes)
        };
        let qword = |i| u64::from(dword(i)) | (u64::from(dword(i + 1)) << 32);
        Self {
            opcode: dword(0) as u8,
            flags: (dword(0) >> 8) as u8,
            id: (dword(0) >> 16) as u16,
            namespace: dword(1),
            prp: [qword(6), qword(8)],
            dwords: std::array::from_fn(|i| dword(10 + i)),
        }
    }
}

/// Result of a command: status code type and status code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Status(pub u16);

impl Status {
    /// Successful.
    pub const SUCCESS: Self = Self(0x000);
    /// Invalid command opcode.
    pub const OPCODE: Self = Self(0x001);
    /// Invalid field in command.
    pub const FIELD: Self = Self(0x002);
    /// Data transfer error.
    pub const TRANSFER: Self = Self(0x004);
    /// Invalid namespace or format.
    pub const NAMESPACE: Self = Self(0x00B);
    /// Command sequence error.
    pub const SEQUENCE: Self = Self(0x00C);
    /// PRP offset invalid.
    pub const PRP_OFFSET: Self = Self(0x013);
    /// LBA out of range.
    pub const RANGE: Self = Self(0x080);
    /// Completion queue invalid.
    pub const COMPLETION_QUEUE: Self = Self(0x100);
    /// Invalid queue identifier.
    pub const QUEUE: Self = Self(0x101);
    /// Invalid queue size.
    pub const QUEUE_SIZE: Self = Self(0x102);
    /// Asynchronous event request limit exceeded.
    pub const EVENT_LIMIT: Self = Self(0x105);
    /// Invalid interrupt vector.
    pub const VECTOR: Self = Self(0x108);
    /// Invalid log page.
    pub const LOG_PAGE: Self = Self(0x109);
    /// Invalid queue deletion.
    pub const QUEUE_DELETION: Self = Self(0x10C);
    /// Feature identifier not saveable.
    pub const NOT_SAVEABLE: Self = Self(0x10D);

    /// Returns the status field of a completion without the phase bit. All errors except transfer
    /// errors set the bit "do not retry".
    fn field(self) -> u16 {
        let again = matches!(self, Self::SUCCESS | Self::TRANSFER);
        (self.0 << 1) | if again { 0 } else { 1 << 15 }
    }
}

/// A completion that has not been written to its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Completion {
    pub result: u32,
    pub queue: u16,
    pub head: u16,
    pub id: u16,
    pub status: Status,
}

impl Completion {
    /// Encodes the entry of the completion queue.
    pub fn bytes(&self, phase: bool) -> [u8; COMPLETION as usize] {
        let dwords = [
            self.result,
            0,
            u32::from(self.head) | (u32::from(self.queue) << 16),
            u32::from(self.id) | (u32::from(self.status.field() | u16::from(phase)) << 16),
        ];
        let mut bytes = [0; COMPLETION as usize];
        for (to, dword) in bytes.chunks_exact_mut(4).zip(dwords) {
            to.copy_from_slice(&dword.to_le_bytes());
        }
        bytes
    }
}
