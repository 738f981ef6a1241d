// SPDX-License-Identifier: GPL-2.0-only

//! Mappings of device memory and DMA memory into user space that can be revoked.
//!
//! Pages are inserted by the fault handler only, under the lock of the [`Mapping`]'s content: whoever takes the content
//! out and unmaps the range under that lock knows that no process has a page of it any more. Later accesses give SIGBUS.

use crate::bindings;
use core::{marker::PhantomData, mem::ManuallyDrop, ptr::NonNull};
use kernel::{
    prelude::*,
    static_lock_class,
    sync::{
        atomic::{Acquire, Atomic, Relaxed, Release},
        Arc, Mutex,
    },
    time::{delay::fsleep, Delta},
};

/// The lock checker compares names by address, and literals in generic code may be there more than
/// once.
static LOCK_NAME: &CStr = c"extoll_mapping";
/// Pause of a process between attempts to access a page that is withheld.
const WITHHELD_PAUSE: Delta = Delta::from_millis(1);
/// Pages inserted by one fault, so that a queue of many pages does not cost as many faults.
const FAULT_AROUND: usize = 16;
/// Page offsets are handed out below this, beyond what any process asks for and representable in bytes.
const OFFSET_END: u64 = 1 << 50;

/// How CPUs access a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cache {
    /// Through the caches: RAM.
    WriteBack,
    /// Stores may be merged: requester pages.
    WriteCombining,
    /// As the program says: registers.
    Uncached,
}

/// A page frame.
#[derive(Clone, Copy)]
pub struct Frame {
    number: usize,
    /// `EXTOLL_VM_…`
    cache: c_int,
}

impl Frame {
    /// The frame at physical address `phys`, device memory.
    pub fn device(phys: u64, cache: Cache) -> Self {
        let number = (phys >> 12) as usize;
        let cache = match cache {
            Cache::WriteBack => bindings::EXTOLL_VM_CACHED,
            Cache::WriteCombining => bindings::EXTOLL_VM_COMBINING,
            Cache::Uncached => bindings::EXTOLL_VM_UNCACHED,
        } as c_int;
        Self { number, cache }
    }

    /// The frame of an address of RAM.
    ///
    /// # Safety
    ///
    /// `address` must be in a live allocation of coherent DMA memory.
    pub unsafe fn coherent(address: *const u8) -> Self {
        let mut cache = 0;
        // SAFETY: by the requirements the address is in the linear map or a vmalloc area, and mapped.
        let number = unsafe { bindings::extoll_dma_pfn(address.cast(), &mut cache) };
        Self { number, cache }
    }
}

/// Where frames come from.
///
/// # Safety
///
/// The frames must be fit to be accessed by any process that the mapping is made for, for as long as `self` lives or,
/// if they are device memory, until the device's driver has revoked all mappings.
pub unsafe trait Source: Send + Sync {
    /// Frame number `index`, `None` beyond the end.
    fn frame(&self, index: usize) -> Option<Frame>;
}

/// A piece of a mapping.
pub struct Part {
    /// Frames; `None` is a hole, accesses to which give SIGBUS.
    source: Option<Arc<dyn Source>>,
    /// First frame of the source.
    first: usize,
    /// Length in pages.
    pages: usize,
}

impl Part {
    /// `pages` pages from `first` of a source.
    pub fn new(source: Arc<dyn Source>, first: usize, pages: usize) -> Self {
        let source = Some(source);
        Self {
            source,
            first,
            pages,
        }
    }

    /// Pages that nobody may access.
    pub fn hole(pages: usize) -> Self {
        Self {
            source: None,
            first: 0,
            pages,
        }
    }
}

/// The mappings of one device file. Holds inode and mount of the file, so that it can be used at any time.
///
/// # Invariants
///
/// `mapping` is that of the inode at `path`, on which this object has a reference.
pub struct Space {
    mapping: NonNull<bindings::address_space>,
    path: bindings::path,
}

// SAFETY: address spaces of inodes may be used by any thread.
unsafe impl Send for Space {}
// SAFETY: the functions used lock what they need.
unsafe impl Sync for Space {}

impl Space {
    /// # Safety
    ///
    /// `file` must be valid, a device file's.
    pub(super) unsafe fn of_file(file: *mut bindings::file) -> Result<Arc<Self>> {
        // SAFETY: by the requirements.
        let mapping = NonNull::new(unsafe { (*file).f_mapping }).ok_or(ENODEV)?;
        // SAFETY: by the requirements; a file has its path all its life, and with that a reference to it.
        let path = unsafe {
            let path = (*file).__bindgen_anon_1.f_path;
            bindings::path_get(&path);
            path
        };
        // INVARIANT: the reference was taken just now; device files use the mapping of their own inode.
        Ok(Arc::new(Self { mapping, path }, GFP_KERNEL)?)
    }

    fn unmap(&self, first: u64, pages: usize) {
        // SAFETY: by the invariants.
        unsafe { bindings::unmap_mapping_pages(self.mapping.as_ptr(), first as usize, pages, true) }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // SAFETY: by the invariants.
        unsafe { bindings::path_put(&self.path) }
    }
}

/// What is mapped by one `mmap`, in all the processes and pieces that it became since.
#[pin_data]
pub struct Mapping {
    space: Arc<Space>,
    first: u64,
    pages: usize,
    /// VMAs.
    users: Atomic<i32>,
    #[pin]
    content: Mutex<Option<Content>>,
}

struct Content {
    parts: KVec<Part>,
    /// Pages from the first on that nobody gets at present.
    withheld: usize,
}

impl Mapping {
    /// False when every process has unmapped it, after which it holds nothing. Any context.
    pub fn is_used(&self) -> bool {
        self.users.load(Acquire) != 0
    }

    /// Takes all pages away from all processes; later accesses give SIGBUS. When it returns the mapping holds nothing, whoever took it
    /// from it. May sleep. Not with a lock held that [`Source::frame`] or the destructor of a source takes.
    pub fn revoke(&self) {
        let mut content = self.content.lock();
        let old = content.take();
        if old.is_some() {
            self.space.unmap(self.first, self.pages);
        }
        // While others wait: whoever finds nothing to revoke may believe that memory of the device is given back.
        drop(old);
        drop(content);
    }

    /// Takes the first `pages` pages away from all processes until [`Mapping::give_back`]: an access to them waits, and the
    /// process can be killed meanwhile. May sleep. Not with a lock held that [`Source::frame`] takes.
    pub fn withhold(&self, pages: usize) {
        if let Some(content) = &mut *self.content.lock() {
            content.withheld = pages;
            self.space.unmap(self.first, pages);
        }
    }

    /// Ends [`Mapping::withhold`]. May sleep.
    pub fn give_back(&self) {
        if let Some(content) = &mut *self.content.lock() {
            content.withheld = 0;
        }
    }

    /// Frame of page `index`.
    fn frame(parts: &[Part], mut index: usize) -> Option<Frame> {
        for part in parts {
            if index < part.pages {
                return part.source.as_ref()?.frame(part.first + index);
            }
            index -= part.pages;
        }
        None
    }
}

/// First page offset of the next mapping. Offsets may be used again after very many mappings: then revoking one makes
/// others fault once more, nothing else.
static NEXT_OFFSET: Atomic<u64> = Atomic::new(0);

fn take_offsets(pages: usize) -> Result<u64> {
    let pages = pages as u64;
    if pages > OFFSET_END / 2 {
        return Err(EINVAL);
    }
    let first = NEXT_OFFSET.fetch_add(pages, Relaxed) % OFFSET_END;
    Ok(if first + pages > OFFSET_END { 0 } else { first })
}

/// A shared mapping that is being made.
///
/// # Invariants
///
/// `vma` is new, shared, not yet visible to others, and locked by the caller of the handler.
pub struct NewMapping<'a> {
    vma: NonNull<bindings::vm_area_struct>,
    _lock: PhantomData<&'a ()>,
}

impl NewMapping<'_> {
    /// # Safety
    ///
    /// `vma` must be that of an `mmap` call, used during the call only.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a private mapping.
    pub(super) unsafe fn from_raw(vma: *mut bindings::vm_area_struct) -> Result<Self> {
        let vma = NonNull::new(vma).ok_or(EINVAL)?;
        // SAFETY: by the requirements.
        let flags = unsafe { (*vma.as_ptr()).__bindgen_anon_2.vm_flags };
        if flags & bindings::VM_SHARED as bindings::vm_flags_t == 0 {
            return Err(EINVAL);
        }
        // INVARIANT: checked above.
        Ok(Self {
            vma,
            _lock: PhantomData,
        })
    }

    /// Length in pages.
    pub fn pages(&self) -> usize {
        // SAFETY: by the invariants; the addresses are set.
        let (start, end) = unsafe {
            let range = (*self.vma.as_ptr()).__bindgen_anon_1.__bindgen_anon_1;
            (range.vm_start, range.vm_end)
        };
        (end - start) >> 12
    }

    /// Offset in the file, in pages.
    pub fn offset(&self) -> usize {
        // SAFETY: by the invariants.
        unsafe { (*self.vma.as_ptr()).vm_pgoff }
    }

    /// Puts `parts` there; they should cover the mapping, what they do not is a hole. `keep` gets the mapping before it
    /// takes effect, to revoke it later.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `EINVAL` for a monstrous length, and what `keep` returns.
    pub fn attach(
        self,
        space: &Arc<Space>,
        parts: KVec<Part>,
        keep: impl FnOnce(Arc<Mapping>) -> Result,
    ) -> Result {
        let pages = self.pages();
        let first = take_offsets(pages)?;
        let mapping = Arc::pin_init(
            pin_init!(Mapping {
                space: space.clone(),
                first,
                pages,
                users: Atomic::new(1),
                content <- Mutex::new(Some(Content { parts, withheld: 0 }), LOCK_NAME, static_lock_class!()),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        keep(mapping.clone())?;
        let vma = self.vma.as_ptr();
        // SAFETY: by the invariants the VMA may be changed. The operations are static and fit the private data, a
        // reference that `close` drops. Pages without struct page are inserted by `fault` only, as VM_PFNMAP wants.
        unsafe {
            bindings::extoll_vm_prepare(vma);
            (*vma).vm_pgoff = first as usize;
            (*vma).vm_private_data = Arc::into_raw(mapping).cast_mut().cast();
            (*vma).vm_ops = VM_OPERATIONS;
        }
        Ok(())
    }
}

const VM_OPERATIONS: &bindings::vm_operations_struct = &bindings::vm_operations_struct {
    open: Some(vm_open),
    close: Some(vm_close),
    fault: Some(vm_fault),
    ..pin_init::zeroed()
};

/// # Safety
///
/// To be called by the kernel only, for a VMA that is a copy of one of ours.
unsafe extern "C" fn vm_open(vma: *mut bindings::vm_area_struct) {
    // SAFETY: the original holds a reference; this makes one for the copy, which is not dropped here.
    let mapping = unsafe {
        ManuallyDrop::new(Arc::from_raw(
            (*vma).vm_private_data.cast_const().cast::<Mapping>(),
        ))
    };
    // The original is a user, so this is not 0 before.
    mapping.users.fetch_add(1, Relaxed);
    let _ = Arc::into_raw((*mapping).clone());
}

/// # Safety
///
/// To be called by the kernel only, once per VMA of ours.
unsafe extern "C" fn vm_close(vma: *mut bindings::vm_area_struct) {
    // SAFETY: the reference of this VMA.
    let mapping = unsafe { Arc::from_raw((*vma).vm_private_data.cast_const().cast::<Mapping>()) };
    // The last one gives the content up first: whoever finds the mapping unused may forget it, and believe that nothing of
    // the device is in use any more.
    let mut content = mapping.content.lock();
    let last = mapping.users.load(Relaxed) == 1;
    let old = if last { content.take() } else { None };
    if !last {
        mapping.users.fetch_sub(1, Relaxed);
    }
    // As in `Mapping::revoke`.
    drop(old);
    drop(content);
    if last {
        mapping.users.fetch_sub(1, Release);
    }
}

/// # Safety
///
/// To be called by the kernel only, for a fault in a VMA of ours.
unsafe extern "C" fn vm_fault(vmf: *mut bindings::vm_fault) -> bindings::vm_fault_t {
    // SAFETY: valid during the call.
    let (vma, at, address) = unsafe {
        let fault = &(*vmf).__bindgen_anon_1;
        (fault.vma, fault.pgoff, fault.address)
    };
    // SAFETY: the VMA is locked for the fault and holds a reference to the mapping.
    let mapping = unsafe { &*(*vma).vm_private_data.cast::<Mapping>() };
    // SAFETY: as above.
    let end = unsafe { (*vma).__bindgen_anon_1.__bindgen_anon_1.vm_end };
    let index = at.wrapping_sub(mapping.first as usize);
    let content = mapping.content.lock();
    let Some(Content { parts, withheld }) = content.as_ref() else {
        return bindings::vm_fault_reason_VM_FAULT_SIGBUS;
    };
    if index < *withheld {
        drop(content);
        // Back to the process, which tries again unless it has a signal to take.
        fsleep(WITHHELD_PAUSE);
        return bindings::vm_fault_reason_VM_FAULT_NOPAGE;
    }
    let insert = |n: usize| {
        Mapping::frame(parts, index + n).map(|frame| {
            // SAFETY: a shared VM_PFNMAP VMA, locked for the fault; addresses outside are refused. The frame is good
            // until the content is taken out, after which the range is unmapped.
            unsafe {
                bindings::extoll_vm_insert(
                    vma,
                    (address & !4095) + (n << 12),
                    frame.number,
                    frame.cache,
                )
            }
        })
    };
    let result = insert(0).unwrap_or(bindings::vm_fault_reason_VM_FAULT_SIGBUS);
    if result == bindings::vm_fault_reason_VM_FAULT_NOPAGE {
        let rest = (end - (address & !4095)) >> 12;
        for n in 1..rest.min(FAULT_AROUND) {
            // Only a convenience: what cannot be inserted now is when it is needed.
            if insert(n) != Some(bindings::vm_fault_reason_VM_FAULT_NOPAGE) {
                break;
            }
        }
    }
    result
}
