//! Buffers of one node. A returned block is overwritten at once and is the first to be reused, so
//! that a late reader gets other data.

use crate::fabric::{Fabric, Memory, MEMORY};
use crate::port::FREE;
use anyhow::Result;
use protocol::eth::rendezvous::Buffer;
use std::cell::RefCell;
use std::rc::Rc;

/// Size of a block in bytes: the maximum length of a frame.
pub const BLOCK: u64 = 2048;
/// Value of bytes in free blocks.
const POISON: u8 = 0xdb;

struct Inner {
    memory: Memory,
    /// Free blocks; the last one is used next.
    free: Vec<u64>,
    total: usize,
}

/// Buffers of one node.
#[derive(Clone)]
pub struct Pool(Rc<RefCell<Inner>>);

impl Pool {
    /// Creates `blocks` buffers in the memory of a node.
    pub fn new(fabric: &Fabric, node: usize, blocks: usize) -> Self {
        Self(Rc::new(RefCell::new(Inner {
            memory: fabric.memory(node),
            free: (0..blocks as u64).rev().map(|i| FREE + i * BLOCK).collect(),
            total: blocks,
        })))
    }

    /// Returns a free block, if there is one.
    pub fn take(&self) -> Option<Block> {
        let address = self.0.borrow_mut().free.pop()?;
        Some(Block {
            address,
            pool: self.clone(),
        })
    }

    /// Returns true if all blocks are free.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.used() == 0
    }

    /// Returns the number of blocks in use.
    pub fn used(&self) -> usize {
        let inner = self.0.borrow();
        inner.total - inner.free.len()
    }
}

/// A block, which is returned when it is dropped.
pub struct Block {
    address: u64,
    pool: Pool,
}

impl Block {
    /// Writes the first bytes.
    ///
    /// # Errors
    ///
    /// Fails if the memory can't be written.
    pub fn fill(&self, data: &[u8]) -> Result<()> {
        let at = self.address - MEMORY;
        self.pool.0.borrow().memory.fill(at, data)
    }

    /// Reads the first bytes.
    ///
    /// # Errors
    ///
    /// Fails if the memory can't be read.
    pub fn load(&self, data: &mut [u8]) -> Result<()> {
        let at = self.address - MEMORY;
        self.pool.0.borrow().memory.load(at, data)
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.address)
    }
}

impl Buffer for Block {
    fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // The result is ignored: the block is within the memory, and a failure would show as an
        // altered frame.
        let _ = self.fill(&[POISON; BLOCK as usize]);
        self.pool.0.borrow_mut().free.push(self.address);
    }
}
