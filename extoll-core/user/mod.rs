// SPDX-License-Identifier: GPL-2.0-only

//! Device files of a NIC for untrusted processes (docs/security.md), with the ABI of the vendor's
//! driver (docs/uapi.md).
//!
//! An open file may outlive the binding of its NIC. [`Devices::stop`] removes all its access to
//! hardware and DMA memory. Its operations then fail with `ENODEV`, and accesses to its mappings
//! raise SIGBUS.
//!
//! All functions run in process context and may sleep. The mutex `files` protects the list of open
//! files. Each file has a mutex of its own, which is acquired after `files`.

mod pmap;
mod policy;
mod port;
mod rf_access;
mod rma2;
mod smfu2;
mod throttle;
mod velo2;

pub use policy::Settings;

use crate::nic::Nic;
use kernel::{
    device::{self, Bound},
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Relaxed},
        Arc, Mutex,
    },
    uaccess::{UserPtr, UserSlice},
    ModuleMetadata,
};
use kernel_ext::{
    chardev::{Handler, Node, Opener, Opening, NICS},
    security::{locked_down, Locked},
};
use policy::Quota;

/// Open file whose NIC can be unbound or lost.
trait OpenFile: Handler {
    /// Frees everything by which the file accesses hardware or DMA memory. All is freed when this
    /// function returns, even if another thread began to free it. May sleep.
    fn detach(&self);

    /// Unmaps all pages of the NIC from all processes. All are unmapped when this function returns.
    /// A NIC that is not alive gets no new mappings. May sleep.
    fn revoke(&self);
}

/// Open files of a NIC.
struct Files {
    list: KVec<(u64, Arc<dyn OpenFile>)>,
    next: u64,
    stopped: bool,
}

/// State that the open files of a NIC share.
#[pin_data]
struct Shared {
    nic: Arc<Nic>,
    settings: Settings,
    index: u32,
    /// Numbers of VPIDs that users hold, by unit.
    quota: Arc<Quota>,
    #[pin]
    files: Mutex<Files>,
}

impl Shared {
    /// Returns the number of the NIC on this host.
    fn index(&self) -> u32 {
        self.index
    }

    /// Opens a file by calling `open` with the file's identity. Unbinding waits until `open` has
    /// returned.
    fn admit<T: OpenFile + 'static>(
        &self,
        open: impl FnOnce(u64) -> Result<Arc<T>>,
    ) -> Result<Arc<dyn Handler>> {
        let mut files = self.files.lock();
        // A dead NIC is checked first. Otherwise `open` would return `EAGAIN`, because the network
        // is down, and the process would retry.
        if files.stopped || !self.nic.is_alive() {
            return Err(ENODEV);
        }
        files.list.reserve(1, GFP_KERNEL)?;
        let id = files.next;
        let file = open(id)?;
        files.next += 1;
        files.list.push((id, file.clone()), GFP_KERNEL)?;
        Ok(file)
    }

    /// Removes a file from the list after it was detached and closed.
    fn forget(&self, id: u64) {
        let mut files = self.files.lock();
        let at = files.list.iter().position(|(i, _)| *i == id);
        let file = at.and_then(|i| files.list.remove(i).ok());
        drop(files);
        drop(file);
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Velo2,
    Rma2,
    Smfu2,
    Pmap,
    RfAccess,
}

/// Device nodes: kind, name, and whether only the superuser may open the node.
const NODES: [(Kind, &CStr, bool); 5] = [
    (Kind::Velo2, c"velo2", false),
    (Kind::Rma2, c"rma2", false),
    (Kind::Smfu2, c"smfu2", false),
    (Kind::Pmap, c"pmap", true),
    (Kind::RfAccess, c"extoll_rf_access", true),
];

struct NodeOpener {
    kind: Kind,
    shared: Arc<Shared>,
}

impl Opener for NodeOpener {
    fn open(&self, opening: &Opening) -> Result<Arc<dyn Handler>> {
        let shared = &self.shared;
        if matches!(self.kind, Kind::Pmap | Kind::RfAccess) {
            locked_down(Locked::PciAccess)?;
        }
        match self.kind {
            Kind::Velo2 => shared.admit(|id| velo2::Velo2::open(shared, id, opening)),
            Kind::Rma2 => shared.admit(|id| rma2::Rma2::open(shared, id, opening)),
            Kind::Smfu2 => shared.admit(|id| smfu2::Smfu2::open(shared, id, opening)),
            Kind::Pmap => shared.admit(|id| pmap::Pmap::open(shared, id, opening)),
            Kind::RfAccess => shared.admit(|id| rf_access::RfAccess::open(shared, id, opening)),
        }
    }
}

/// Bitmap of the numbers of NICs in use.
static INDICES: Atomic<u32> = Atomic::new(0);

/// Number of a NIC on this host, which is the lowest free number.
struct Index(u32);

impl Index {
    fn take() -> Result<Self> {
        loop {
            let used = INDICES.load(Relaxed);
            let free = used.trailing_ones();
            if free >= NICS {
                return Err(ENOSPC);
            }
            if INDICES.cmpxchg(used, used | 1 << free, Full).is_ok() {
                return Ok(Self(free));
            }
        }
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        loop {
            let used = INDICES.load(Relaxed);
            if INDICES.cmpxchg(used, used & !(1 << self.0), Full).is_ok() {
                return;
            }
        }
    }
}

/// Device files of a NIC. Drop removes them.
pub(crate) struct Devices {
    nodes: KVec<Node>,
    shared: Arc<Shared>,
    _index: Index,
}

impl Devices {
    /// Makes the device files. `M` is the module that this crate is linked into. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there are more than 32 NICs; `ENOMEM`.
    pub(crate) fn new<M: ModuleMetadata + 'static>(
        dev: &device::Device<Bound>,
        nic: &Arc<Nic>,
        settings: Settings,
    ) -> Result<Self> {
        let index = Index::take()?;
        let number = index.0;
        let quota = Quota::new(settings.vpids_per_user)?;
        let files = Files {
            list: KVec::new(),
            next: 0,
            stopped: false,
        };
        let shared = Arc::pin_init(
            pin_init!(Shared {
                nic: nic.clone(),
                settings,
                index: number,
                quota,
                files <- new_mutex!(files, "extoll_files"),
            }),
            GFP_KERNEL,
        )?;
        let mut this = Self {
            nodes: KVec::with_capacity(NODES.len(), GFP_KERNEL)?,
            shared,
            _index: index,
        };
        for (n, (kind, name, private)) in (0..).zip(NODES) {
            let shared = this.shared.clone();
            let opener = Arc::new(NodeOpener { kind, shared }, GFP_KERNEL)?;
            let node = Node::new::<M>(dev, number, n, name, private, opener)?;
            this.nodes.push(node, GFP_KERNEL)?;
        }
        Ok(this)
    }

    /// Returns an object that can unmap the NIC's pages from processes.
    pub(crate) fn pages(&self) -> Pages {
        Pages(self.shared.clone())
    }

    /// Removes the device files and detaches all open files from the NIC. May sleep.
    fn stop(&mut self) {
        self.nodes.clear();
        let files = {
            let mut files = self.shared.files.lock();
            files.stopped = true;
            core::mem::take(&mut files.list)
        };
        for (_, file) in &files {
            file.detach();
        }
    }
}

/// Pages of the NIC that processes have mapped ([`Devices::pages`]). Must be dropped before the NIC
/// is unbound.
pub(crate) struct Pages(Arc<Shared>);

impl Pages {
    /// Unmaps all pages permanently. The NIC must not be alive. May sleep.
    pub(crate) fn revoke(&self) {
        let mut first = 0;
        loop {
            let next = {
                let files = self.0.files.lock();
                let rest = files.list.iter().filter(|(id, _)| *id >= first);
                rest.min_by_key(|(id, _)| *id).cloned()
            };
            // Called without the lock, because closing a file may take long.
            let Some((id, file)) = next else { return };
            file.revoke();
            first = id + 1;
        }
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Copies `bytes` to address `arg` of the process. Returns `EFAULT` on failure.
fn put(arg: usize, bytes: &[u8]) -> Result<isize> {
    UserSlice::new(UserPtr::from_addr(arg), bytes.len())
        .writer()
        .write_slice(bytes)?;
    Ok(0)
}

/// Stores a quadword at address `arg` of the process. All GET calls of the vendor's driver do so,
/// regardless of the size in their ioctl codes. Returns `EFAULT` on failure.
fn put_u64(arg: usize, value: u64) -> Result<isize> {
    put(arg, &value.to_ne_bytes())
}

/// Reads a quadword from address `arg` of the process. Returns `EFAULT` on failure.
fn get_u64(arg: usize) -> Result<u64> {
    UserSlice::new(UserPtr::from_addr(arg), 8).reader().read()
}
