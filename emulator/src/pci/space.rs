//! Bytes of a configuration space with their writable bits.

/// Size of a configuration space in bytes.
pub const CONFIG_SIZE: usize = 4096;

/// Values and write masks of a configuration space.
#[derive(Clone)]
pub struct Space {
    bytes: Box<[u8; CONFIG_SIZE]>,
    /// Mask of the bits that software can write.
    mask: Box<[u8; CONFIG_SIZE]>,
}

impl Default for Space {
    fn default() -> Self {
        Self {
            bytes: Box::new([0; CONFIG_SIZE]),
            mask: Box::new([0; CONFIG_SIZE]),
        }
    }
}

impl Space {
    /// Sets all bytes to 0 and makes them read only.
    pub fn clear(&mut self) {
        self.bytes.fill(0);
        self.mask.fill(0);
    }

    /// Sets values and writable bits, beginning at byte `at`. The slices may differ in length.
    pub fn put(&mut self, at: usize, value: &[u8], mask: &[u8]) {
        self.bytes[at..at + value.len()].copy_from_slice(value);
        self.mask[at..at + mask.len()].copy_from_slice(mask);
    }

    /// Sets the value and the writable bits of a dword.
    pub fn put32(&mut self, at: usize, value: u32, mask: u32) {
        self.put(at, &value.to_le_bytes(), &mask.to_le_bytes());
    }

    /// Reads one byte.
    pub fn u8(&self, at: usize) -> u8 {
        self.bytes[at]
    }

    /// Reads two bytes.
    pub fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    /// Reads eight bytes.
    pub fn u64(&self, at: usize) -> u64 {
        u64::from(self.u16(at))
            | (u64::from(self.u16(at + 2)) << 16)
            | (u64::from(self.u16(at + 4)) << 32)
            | (u64::from(self.u16(at + 6)) << 48)
    }

    /// Reads bytes. Bytes behind the end of the space are all ones.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        for (i, b) in data.iter_mut().enumerate() {
            let at = usize::try_from(offset).ok().and_then(|o| o.checked_add(i));
            *b = at
                .and_then(|at| self.bytes.get(at).copied())
                .unwrap_or(0xff);
        }
    }

    /// Writes one byte. Read-only bits and bytes behind the end of the space are ignored.
    pub fn write_byte(&mut self, at: usize, value: u8) {
        if let (Some(byte), Some(&m)) = (self.bytes.get_mut(at), self.mask.get(at)) {
            *byte = *byte & !m | value & m;
        }
    }
}
