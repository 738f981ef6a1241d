// SPDX-License-Identifier: GPL-2.0-only

//! Mapped hardware of one NIC. Register accesses work in any context.

use crate::{
    dma::BoundDevice,
    mmio::{RegisterFile, Remote, Window},
};
use kernel::{
    device::{self, Bound},
    new_spinlock,
    prelude::*,
    sync::SpinLock,
};
use kernel_ext::pci::Region;
use wire::{
    htax::Sides,
    ids::Unit,
    regs::{
        self,
        info::{Driver, DRIVER},
        np,
        smfu::RRA_WINDOW,
        BqRegs,
    },
};

/// Register file and requester windows, valid while the device is bound.
pub(crate) struct Hw {
    /// Registers of the NIC.
    pub(crate) rf: RegisterFile,
    velo: Window,
    rma: Window,
    /// Set if each fence after a descriptor is followed by a marker store, also in processes.
    pub(crate) marks: bool,
    /// Start of the SMFU window, i.e. interval 0, which points to a remote register file.
    pub(crate) remote_rf: Remote,
    /// Held while the registers that identify VELO senders are changed.
    pub(crate) velo_sources: Pin<KBox<SpinLock<()>>>,
    /// Addresses of the windows, for the CPU and on the bus.
    pub(crate) windows: Sides,
    device: BoundDevice,
}

impl Hw {
    /// Maps the register file (uncached) and the requester windows (write-combining; HW §3.1 step
    /// 2) in BAR 0, and the remote register file in BAR 2. Enables marker stores after fences if an
    /// emulator requests them. May sleep.
    pub(crate) fn map(
        dev: &device::Device<Bound>,
        bar0: &Region<'_>,
        windows: Sides,
    ) -> Result<Self> {
        let rf = RegisterFile::map(bar0, windows.cpu.rf.0)?;
        let mut velo = Window::map(bar0, windows.cpu.velo.0)?;
        let mut rma = Window::map(bar0, windows.cpu.rma.0)?;
        let marks = Driver(rf.read(DRIVER)).wants_marks();
        if marks {
            velo.mark_fences();
            rma.mark_fences();
        }
        Ok(Self {
            rf,
            velo,
            rma,
            marks,
            remote_rf: Remote::map(windows.cpu.smfu.0, RRA_WINDOW as usize, false)?,
            velo_sources: KBox::pin_init(new_spinlock!((), "extoll_velo_sources"), GFP_KERNEL)?,
            windows,
            device: BoundDevice::new(dev),
        })
    }

    /// Returns the requester window of a unit.
    pub(crate) fn window(&self, unit: Unit) -> &Window {
        match unit {
            Unit::Velo => &self.velo,
            Unit::Rma => &self.rma,
        }
    }

    /// Returns the device, which is bound while `self` is reachable.
    pub(crate) fn device(&self) -> &BoundDevice {
        &self.device
    }

    /// Stops all units that access memory by themselves or for peers: notification queue, network
    /// ports, queue engines, address translation, window.
    pub(crate) fn quiesce(&self) {
        self.rf.write(regs::snq::EXECUTE, 0);
        for port in [np::VELO, np::RMA_COMPLETER, np::RMA_RESPONDER, np::SMFU] {
            self.rf.write(np::general(port), 0);
        }
        for unit in [Unit::Velo, Unit::Rma] {
            self.rf.write(BqRegs(unit).general(), 0);
        }
        self.rf.write(regs::atu::CONTROL, 0);
        self.rf.write(regs::smfu::STATUS_CONTROL, 0);
        // The read flushes the posted writes.
        self.rf.read(regs::info::DRIVER);
    }
}
