//! The emulator's world with a simulated clock.

use anyhow::{Context, Result};
use extoll_emulator::config::{ConfigFile, Fabric as Spec, Overrides};
use extoll_emulator::device::NicDevice;
use extoll_emulator::network::{DownPolicy, LinkKnobs};
use extoll_emulator::trace::Tracer;
use extoll_emulator::vfio_user::proto::region;
use extoll_emulator::vfio_user::{Device, DmaMapRequest};
use extoll_emulator::world::{Clock, World};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use std::cell::Cell;
use std::fs::File;
use std::path::Path;
use std::rc::Rc;
use vm_memory::mmap::MmapRegion;
use vm_memory::{Bytes, FileOffset, VolatileMemory};
use wire::htax::Windows;
use wire::ids::BusAddr;
use wire::regs::htax;

/// Bus address of a node's memory.
pub const MEMORY: u64 = 0x10_0000;
/// Size of a node's memory in bytes.
pub const MEMORY_BYTES: u64 = 0x100_0000;
/// Bus addresses of the NIC's BARs.
const BARS: [u64; 2] = [0x1_0000_0000, 0x2_0000_0000];
/// Maximum number of events of the world within one step of the simulation; more indicate an
/// endless loop.
const MOVES: usize = 1_000_000;

/// Memory of a node.
#[derive(Clone)]
pub struct Memory(Rc<MmapRegion>);

impl Memory {
    /// Reads bytes from an offset on.
    ///
    /// # Errors
    ///
    /// Fails if the range is outside of the memory.
    pub fn load(&self, at: u64, data: &mut [u8]) -> Result<()> {
        Ok(self.0.as_volatile_slice().read_slice(data, at as usize)?)
    }

    /// Writes bytes from an offset on.
    ///
    /// # Errors
    ///
    /// Fails if the range is outside of the memory.
    pub fn fill(&self, at: u64, data: &[u8]) -> Result<()> {
        Ok(self.0.as_volatile_slice().write_slice(data, at as usize)?)
    }
}

/// World, clock and memory of the nodes.
pub struct Fabric {
    /// The emulator's world.
    pub world: World,
    now: Rc<Cell<u64>>,
    memory: Vec<Memory>,
}

impl Fabric {
    /// Creates a fabric of `nodes` nodes, each with a cable to every other one.
    ///
    /// # Errors
    ///
    /// Fails if the emulator rejects the configuration, or there is no memory.
    pub fn new(nodes: usize, seed: u64) -> Result<Self> {
        let topology = match nodes {
            2 => "pair".to_owned(),
            n => format!("full:{n}"),
        };
        Self::of(nodes, topology, seed)
    }

    /// Creates a fabric of `nodes` nodes in a row, each with a cable to the next one.
    ///
    /// # Errors
    ///
    /// See [`Fabric::new`].
    pub fn row(nodes: usize, seed: u64) -> Result<Self> {
        Self::of(nodes, format!("mesh:{nodes}"), seed)
    }

    fn of(nodes: usize, topology: String, seed: u64) -> Result<Self> {
        let overrides = Overrides {
            topology: Some(topology),
            seed: Some(seed),
            ..Overrides::default()
        };
        let spec = Spec::build(ConfigFile::default(), &overrides, Path::new("/nonexistent"))?;
        let now = Rc::new(Cell::new(0));
        let world = World::new(&spec, Clock::Manual(Rc::clone(&now)), Tracer::off())?;
        let mut fabric = Self {
            world,
            now,
            memory: Vec::new(),
        };
        for nic in 0..nodes {
            let file = File::from(memfd_create("node", MemfdFlags::CLOEXEC)?);
            ftruncate(&file, MEMORY_BYTES)?;
            let fd = file.try_clone()?.into();
            let map = DmaMapRequest {
                iova: MEMORY,
                size: MEMORY_BYTES,
                offset: 0,
                writable: true,
            };
            fabric.device(nic).dma_map(map, Some(fd))?;
            let region = MmapRegion::from_file(FileOffset::new(file, 0), MEMORY_BYTES as usize)?;
            fabric.memory.push(Memory(Rc::new(region)));
            fabric.boot(nic)?;
        }
        Ok(fabric)
    }

    fn device(&mut self, nic: usize) -> NicDevice<'_> {
        NicDevice {
            world: &mut self.world,
            nic,
        }
    }

    /// Initializes a NIC after power-on like firmware and driver: BARs, bus mastering, intervals.
    ///
    /// # Errors
    ///
    /// Fails if the NIC rejects an access.
    pub fn boot(&mut self, nic: usize) -> Result<()> {
        let mut device = self.device(nic);
        for (register, bar) in [(0x10, BARS[0]), (0x18, BARS[1])] {
            device.region_write(region::CONFIG, register, &bar.to_le_bytes())?;
        }
        device.region_write(region::CONFIG, 0x04, &6u16.to_le_bytes())?;
        let windows = Windows::standard(BusAddr(BARS[0]), BusAddr(BARS[1]), 256 << 20);
        for (i, interval) in windows.intervals().context("windows")? {
            self.write(nic, htax::intvl_upper(i).get(), interval.upper.raw());
            self.write(nic, htax::intvl_lower(i).get(), interval.lower.raw());
            self.write(nic, htax::intvl_control(i).get(), interval.control.raw());
        }
        self.write(nic, htax::GENERAL.get(), htax::GENERAL_INIT);
        Ok(())
    }

    /// Returns the simulated time in ns.
    pub fn now(&self) -> u64 {
        self.now.get()
    }

    /// Advances the clock and the world to `to`, or further if an event of the world is later.
    ///
    /// # Errors
    ///
    /// Fails if the world has endless events.
    pub fn advance(&mut self, to: u64) -> Result<()> {
        for _ in 0..MOVES {
            while self.world.busy() {
                let before = self.world.next_deadline();
                self.world.settle();
                if self.world.busy() && self.world.next_deadline() == before {
                    break;
                }
            }
            match self.world.next_deadline() {
                Some(at) if at <= to => {
                    self.now.set(at.max(self.now()));
                    self.world.tick();
                }
                _ => {
                    self.now.set(to.max(self.now()));
                    return Ok(());
                }
            }
        }
        anyhow::bail!("the world has endless events before {to} ns");
    }

    /// Returns a register; all ones if the NIC is off.
    pub fn read(&mut self, nic: usize, register: u32) -> u64 {
        self.world.peek(nic, register)
    }

    /// Writes a register.
    pub fn write(&mut self, nic: usize, register: u32, value: u64) {
        self.world.poke(nic, register, value);
    }

    /// Writes words in ascending order to a window in BAR 0.
    ///
    /// # Errors
    ///
    /// Fails if the NIC rejects a store.
    pub fn store(&mut self, nic: usize, offset: u64, words: &[u64]) -> Result<()> {
        let mut device = self.device(nic);
        for (k, word) in (0u64..).zip(words) {
            device.region_write(region::BAR0, offset + 8 * k, &word.to_le_bytes())?;
        }
        Ok(())
    }

    /// Reads a node's memory at a bus address.
    ///
    /// # Errors
    ///
    /// Fails if the address is outside of the memory.
    pub fn load(&self, node: usize, address: u64, data: &mut [u8]) -> Result<()> {
        let at = address.checked_sub(MEMORY).context("below memory")?;
        self.memory[node].load(at, data)
    }

    /// Returns a quadword of a node's memory.
    ///
    /// # Errors
    ///
    /// Fails if the address is outside of the memory.
    pub fn word(&self, node: usize, address: u64) -> Result<u64> {
        let mut raw = [0; 8];
        self.load(node, address, &mut raw)?;
        Ok(u64::from_le_bytes(raw))
    }

    /// Returns a handle to a node's memory.
    pub fn memory(&self, node: usize) -> Memory {
        self.memory[node].clone()
    }

    /// Writes a node's memory at a bus address.
    ///
    /// # Errors
    ///
    /// Fails if the address is outside of the memory.
    pub fn fill(&self, node: usize, address: u64, data: &[u8]) -> Result<()> {
        let at = address.checked_sub(MEMORY).context("below memory")?;
        self.memory[node].fill(at, data)
    }

    /// Returns the number of cables.
    pub fn cables(&self) -> usize {
        self.world.network().cable_count()
    }

    /// Sets the parameters of a cable.
    pub fn knobs(&mut self, cable: usize, knobs: LinkKnobs) {
        self.world
            .change_network(|network, _| network.set_knobs(cable, knobs));
    }

    /// Plugs a cable in, or unplugs it. Packets in flight on an unplugged cable are lost.
    pub fn link(&mut self, cable: usize, up: bool) {
        self.world.change_network(|network, trace| {
            network.set_link(cable, up, Some(DownPolicy::Drop), trace);
        });
    }
}
