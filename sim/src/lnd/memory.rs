//! Memory of a node behind its address translation unit: blocks, and addresses that map them. Both
//! are reused in last-in-first-out order, so that late accesses are noticed.

use crate::fabric::{Fabric, MEMORY, MEMORY_BYTES};
use crate::port::FREE;
use anyhow::{ensure, Context, Result};
use wire::atu::{Command, GatBase, GatEntry, GAT_BYTES};
use wire::eth::VPID;
use wire::ids::BusAddr;
use wire::regs::atu;

const PAGE: u64 = 4096;
/// Pages of a block.
const PAGES: u64 = 3;
/// Size of a block in bytes.
pub const BLOCK: u64 = PAGES * PAGE;
/// Number of blocks of a node.
pub const BLOCKS: u64 = 48;
/// Number of addresses for blocks.
const ADDRESSES: u64 = 64;
/// Distance in bytes between two addresses; an access beyond the end of a block is unmapped.
const STRIDE: u64 = (PAGES + 1) * PAGE;
/// Bus address of the translation table.
const TABLE: u64 = 0xe0_0000;
/// Value of bytes in free memory.
const POISON: u8 = 0xdb;

const _: () = assert!(TABLE % GAT_BYTES == 0 && FREE + BLOCKS * BLOCK <= TABLE);
const _: () = assert!(TABLE + GAT_BYTES <= MEMORY + MEMORY_BYTES && FREE % PAGE == 0);

/// Blocks and addresses of a node.
pub struct Memory {
    nic: usize,
    blocks: Vec<u64>,
    addresses: Vec<u64>,
}

impl Memory {
    /// Creates free memory without mappings.
    ///
    /// # Errors
    ///
    /// Fails if the memory can't be written.
    pub fn new(fabric: &Fabric, nic: usize) -> Result<Self> {
        let poison = vec![POISON; (BLOCKS * BLOCK) as usize];
        fabric.fill(nic, FREE, &poison)?;
        let entries = ADDRESSES * STRIDE / PAGE;
        fabric.fill(nic, TABLE, &vec![0; 8 * entries as usize])?;
        Ok(Self {
            nic,
            blocks: (0..BLOCKS).map(|i| FREE + i * BLOCK).collect(),
            // Address 0 is never assigned.
            addresses: (1..ADDRESSES).map(|i| i * STRIDE).collect(),
        })
    }

    /// Initializes the translation unit.
    pub fn up(&self, fabric: &mut Fabric) {
        let base = GatBase::new(BusAddr(TABLE)).map_or(0, GatBase::raw);
        fabric.write(self.nic, atu::gat(0).get(), base);
        let on = atu::Control(0).with_enable(true).raw();
        fabric.write(self.nic, atu::CONTROL.get(), on);
        self.command(fabric, Command::FlushVpid(VPID));
    }

    fn command(&self, fabric: &mut Fabric, command: Command) {
        if let Ok(word) = command.encode() {
            fabric.write(self.nic, atu::CMD_INTERFACE.get(), word.raw());
        }
    }

    /// Returns a free block, after checking that it was not written since its return.
    ///
    /// # Errors
    ///
    /// Fails if the free block was written.
    pub fn block(&mut self, fabric: &Fabric) -> Result<Option<u64>> {
        let Some(block) = self.blocks.pop() else {
            return Ok(None);
        };
        self.check(fabric, block)?;
        Ok(Some(block))
    }

    fn check(&self, fabric: &Fabric, block: u64) -> Result<()> {
        let mut data = vec![0; BLOCK as usize];
        fabric.load(self.nic, block, &mut data)?;
        ensure!(
            data.iter().all(|b| *b == POISON),
            "memory of node {} at {block:#x} was written to while nobody used it",
            self.nic
        );
        Ok(())
    }

    /// Frees a block.
    ///
    /// # Errors
    ///
    /// Fails if the memory can't be written.
    pub fn give_back(&mut self, fabric: &Fabric, block: u64) -> Result<()> {
        fabric.fill(self.nic, block, &[POISON; BLOCK as usize])?;
        self.blocks.push(block);
        Ok(())
    }

    /// Maps a block. Returns its address for reading or writing.
    ///
    /// # Errors
    ///
    /// Fails if the table can't be written.
    pub fn expose(&mut self, fabric: &Fabric, block: u64, write: bool) -> Result<Option<u64>> {
        let Some(address) = self.addresses.pop() else {
            return Ok(None);
        };
        for page in 0..PAGES {
            let to = BusAddr(block + page * PAGE);
            let entry = GatEntry::new(to, VPID, !write, write).context("an entry")?;
            let at = TABLE + 8 * (address / PAGE + page);
            fabric.fill(self.nic, at, &entry.raw().to_le_bytes())?;
        }
        Ok(Some(address))
    }

    /// Removes the mapping of an address.
    ///
    /// # Errors
    ///
    /// Fails if the table can't be written.
    pub fn revoke(&self, fabric: &mut Fabric, address: u64) -> Result<()> {
        let entry = address / PAGE;
        fabric.fill(self.nic, TABLE + 8 * entry, &[0; 8 * PAGES as usize])?;
        let flush = Command::FlushPages {
            gat: 0,
            entry: entry as u32,
            count: PAGES as u32,
        };
        self.command(fabric, flush);
        Ok(())
    }

    /// Frees an address.
    pub fn release(&mut self, address: u64) {
        self.addresses.push(address);
    }

    /// Checks free memory at the end of a run.
    ///
    /// # Errors
    ///
    /// Fails if free memory was written or is missing.
    pub fn check_end(&self, fabric: &Fabric) -> Result<()> {
        let nic = self.nic;
        for block in &self.blocks {
            self.check(fabric, *block)?;
        }
        ensure!(
            self.blocks.len() as u64 == BLOCKS,
            "node {nic} has lost memory"
        );
        ensure!(
            self.addresses.len() as u64 == ADDRESSES - 1,
            "node {nic} has lost addresses"
        );
        Ok(())
    }
}
