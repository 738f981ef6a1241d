//! Buffers of one node. A block that is given back is overwritten at once, and is the first to be
//! used again: whoever still reads it gets something else.

use crate::fabric::{Fabric, Memory, MEMORY};
use crate::port::FREE;
use anyhow::Result;
use protocol::eth::rendezvous::Buffer;
use std::cell::RefCell;
use std::rc::Rc;

/// Bytes of a block: the longest frame of the simulation.
pub const BLOCK: u64 = 2048;
/// What is in a block that nobody owns.
const POISON: u8 = 0xdb;

struct Inner {
    memory: Memory,
    /// The last one is used next.
    free: Vec<u64>,
    total: usize,
}

/// Buffers of one node.
#[derive(Clone)]
pub struct Pool(Rc<RefCell<Inner>>);

impl Pool {
    /// `blocks` buffers in the memory of a node.
    pub fn new(fabric: &Fabric, node: usize, blocks: usize) -> Self {
        Self(Rc::new(RefCell::new(Inner {
            memory: fabric.memory(node),
            free: (0..blocks as u64).rev().map(|i| FREE + i * BLOCK).collect(),
            total: blocks,
        })))
    }

    /// A block, if there is one.
    pub fn take(&self) -> Option<Block> {
        let address = self.0.borrow_mut().free.pop()?;
        Some(Block {
            address,
            pool: self.clone(),
        })
    }

    /// Whether all that was taken before is free again.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.used() == 0
    }

    /// Blocks that are not free.
    pub fn used(&self) -> usize {
        let inner = self.0.borrow();
        inner.total - inner.free.len()
    }
}

/// A block, given back when it is dropped.
pub struct Block {
    address: u64,
    pool: Pool,
}

impl Block {
    /// Changes the first bytes.
    ///
    /// # Errors
    ///
    /// The memory can't be written.
    pub fn fill(&self, data: &[u8]) -> Result<()> {
        let at = self.address - MEMORY;
        self.pool.0.borrow().memory.fill(at, data)
    }

    /// The first bytes.
    ///
    /// # Errors
    ///
    /// The memory can't be read.
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
        // The memory is as long as it was; a failure shows as an altered frame.
        let _ = self.fill(&[POISON; BLOCK as usize]);
        self.pool.0.borrow_mut().free.push(self.address);
    }
}
