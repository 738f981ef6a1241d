//! Blocks of a drive.

use std::cell::RefCell;
use std::rc::Rc;

/// Base-2 logarithm of the block size in bytes.
pub(super) const BLOCK_LOG2: u32 = 9;

/// Content of a drive, which survives resets and loss of power. Clones share the content.
#[derive(Clone)]
pub struct Disk(Rc<RefCell<Vec<u8>>>);

impl Disk {
    /// Returns a disk full of zeros.
    pub fn new(mib: u64) -> Self {
        Self(Rc::new(RefCell::new(vec![0; (mib << 20) as usize])))
    }

    /// Returns the number of blocks of the disk.
    pub(super) fn blocks(&self) -> u64 {
        self.0.borrow().len() as u64 >> BLOCK_LOG2
    }

    /// Returns the bytes at offset `at`, or an empty vector if the range exceeds the disk.
    pub(super) fn read(&self, at: u64, len: u32) -> Vec<u8> {
        let bytes = self.0.borrow();
        let at = at as usize;
        bytes
            .get(at..at + len as usize)
            .map_or_else(Vec::new, <[u8]>::to_vec)
    }

    pub(super) fn write(&self, at: u64, data: &[u8]) {
        let at = at as usize;
        if let Some(to) = self.0.borrow_mut().get_mut(at..at + data.len()) {
            to.copy_from_slice(data);
        }
    }

    pub(super) fn zero(&self, at: u64, len: u64) {
        let at = at as usize;
        if let Some(to) = self.0.borrow_mut().get_mut(at..at + len as usize) {
            to.fill(0);
        }
    }
}
