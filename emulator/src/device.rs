//! A NIC as a device of the vfio-user server.

use crate::nic::ResetKind;
use crate::peer::{Answered, Request};
use crate::trace::Event;
use crate::vfio_user::proto::{irq, region};
use crate::vfio_user::{Answer, Device, DmaMapRequest, IrqRequest};
use crate::world::World;
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Access to a NIC of a world while an event is handled.
pub struct NicDevice<'a> {
    /// World that contains the NIC.
    pub world: &'a mut World,
    /// Index of the NIC.
    pub nic: usize,
}

impl NicDevice<'_> {
    fn config_write(&mut self, offset: u64, data: &[u8]) {
        // A configuration write is answered, and its answer pushes all earlier posted writes.
        self.world.push_posted(self.nic);
        let now = self.world.now();
        let slot = &mut self.world.slots[self.nic];
        slot.machine.stats.config_writes += 1;
        let effects = slot.machine.config.write(offset, data);
        if self.world.tracer.on() {
            self.world.tracer.record(
                self.nic,
                now,
                Event::ConfigWrite {
                    offset,
                    data: data.to_vec(),
                },
            );
        }
        if effects.reset {
            self.world.slots[self.nic].machine.stats.function_resets += 1;
            self.world.reset(self.nic, ResetKind::FunctionLevel);
        } else {
            self.world.sync_pci(self.nic);
        }
    }
}

impl Device for NicDevice<'_> {
    fn region_size(&self, index: u32) -> u64 {
        let shape = self.world.slots[self.nic].machine.config.shape();
        match index {
            region::BAR0 => shape.bar0_size,
            region::BAR2 => shape.bar2_size,
            region::CONFIG => crate::pci::CONFIG_SIZE as u64,
            _ => 0,
        }
    }

    fn irq_count(&self, index: u32) -> u32 {
        let shape = self.world.slots[self.nic].machine.config.shape();
        match index {
            irq::MSI if shape.msi => shape.msi_vectors.into(),
            _ => 0,
        }
    }

    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Result<Answer, Errno> {
        data.fill(0xff);
        if !self.world.is_on(self.nic) {
            return Ok(Answer::Now);
        }
        if index == region::CONFIG {
            self.world.push_posted(self.nic);
            let machine = &mut self.world.slots[self.nic].machine;
            machine.stats.config_reads += 1;
            machine.config.read(offset, data);
            return Ok(Answer::Now);
        }
        if self.world.load(self.nic, index as u8, offset, data) {
            Ok(Answer::Now)
        } else {
            Ok(Answer::Later)
        }
    }

    fn finish_read(&mut self, data: &mut [u8]) -> bool {
        self.world.finish_load(self.nic, data)
    }

    fn stalled(&self) -> bool {
        self.world.stalled(self.nic)
    }

    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        if !self.world.is_on(self.nic) {
            return Ok(());
        }
        if index == region::CONFIG {
            self.config_write(offset, data);
        } else {
            self.world.with_nic(self.nic, |nic, env| {
                nic.mmio_write(index as u8, offset, data, env)
            });
            self.world.settle();
        }
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMapRequest, fd: Option<OwnedFd>) -> Result<(), Errno> {
        self.world.slots[self.nic].machine.memory.map(map, fd)
    }

    fn dma_unmap(&mut self, range: Option<(u64, u64)>) -> Result<u64, Errno> {
        self.world.slots[self.nic].machine.memory.unmap(range)
    }

    fn set_irqs(&mut self, index: u32, request: IrqRequest) -> Result<(), Errno> {
        let machine = &mut self.world.slots[self.nic].machine;
        match request {
            IrqRequest::Disable => {
                if index == irq::MSI {
                    machine.clear_msi();
                }
            }
            IrqRequest::Eventfds { start, fds } if index == irq::MSI => machine.set_msi(start, fds),
            IrqRequest::Trigger { start, which } if index == irq::MSI => {
                for (i, _) in which.iter().enumerate().filter(|(_, &raise)| raise) {
                    machine.signal(start as u16 + i as u16);
                }
            }
            // Only an empty request arrives here, because the other interrupt indices have no
            // vectors.
            IrqRequest::Eventfds { .. } | IrqRequest::Trigger { .. } => {}
        }
        Ok(())
    }

    fn negotiated(&mut self) {
        self.world.host_takes_dma(self.nic);
    }

    fn next_request(&mut self) -> Option<Request> {
        self.world.next_request(self.nic)
    }

    fn awaits_answers(&self) -> bool {
        self.world.awaits_answers(self.nic)
    }

    fn answered(&mut self, answer: Answered) {
        self.world.answered(self.nic, answer);
    }

    fn reset(&mut self) {
        self.world.slots[self.nic].machine.stats.device_resets += 1;
        self.world.reset(self.nic, ResetKind::PowerOn);
    }

    fn complain(&mut self, what: std::fmt::Arguments<'_>) {
        let now = self.world.now();
        let machine = &mut self.world.slots[self.nic].machine;
        machine.now_ns = now;
        machine.stats.protocol_errors += 1;
        machine.warn(what);
    }
}
