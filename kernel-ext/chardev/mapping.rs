// SPDX-License-Identifier: GPL-2.0-only

//! Mappings of device memory and DMA memory into user space that can be revoked.
//!
//! Only the fault handler inserts pages, with the lock of the [`Mapping`]'s content held. Under
//! that lock, revoking removes the content and unmaps the range; afterwards no process can access a
//! page of the mapping. Later accesses raise SIGBUS.

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

/// Name of the lock class. The name is one static object, because lockdep compares names by address
/// and generic code may contain several copies of a literal.
static LOCK_NAME: &CStr = c"extoll_mapping";
/// Pause of a process between attempts to access a withheld page.
const WITHHELD_PAUSE: Delta = Delta::from_millis(1);
/// Number of pages that one fault inserts, so that mapping a long queue costs few faults.
const FAULT_AROUND: usize = 16;
/// Upper bound of page offsets: larger than any program requests, and the byte offset still fits 64
/// bits.
const OFFSET_END: u64 = 1 << 50;

/// Caching of CPU accesses to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cache {
    /// Cached; for RAM.
    WriteBack,
    /// Stores may be merged; for requester pages.
    WriteCombining,
    /// Uncached and unmerged accesses; for registers.
    Uncached,
}

/// Page frame, and the caching of CPU accesses to the frame.
#[derive(Clone, Copy)]
pub struct Frame {
    number: usize,
    /// Caching of CPU accesses: one of the constants `EXTOLL_VM_…`.
    cache: c_int,
}

impl Frame {
    /// Returns the frame of device memory at physical address `phys`.
    pub fn device(phys: u64, cache: Cache) -> Self {
        let number = (phys >> 12) as usize;
        let cache = match cache {
            Cache::WriteBack => bindings::EXTOLL_VM_CACHED,
            Cache::WriteCombining => bindings::EXTOLL_VM_COMBINING,
            Cache::Uncached => bindings::EXTOLL_VM_UNCACHED,
        } as c_int;
        Self { number, cache }
    }

    /// Returns the frame of coherent DMA memory at `address`.
    ///
    /// # Safety
    ///
    /// `address` must be in a live allocation of coherent DMA memory.
    pub unsafe fn coherent(address: *const u8) -> Self {
        let mut cache = 0;
        // SAFETY: by the function's requirements the address is mapped, in the linear map or a
        // vmalloc area.
        let number = unsafe { bindings::extoll_dma_pfn(address.cast(), &mut cache) };
        Self { number, cache }
    }
}

/// Provider of frames.
///
/// # Safety
///
/// Any process for which a mapping is made may access the frames. RAM must stay allocated while
/// `self` lives. Device memory must stay valid until the device's driver has revoked all mappings.
pub unsafe trait Source: Send + Sync {
    /// Returns frame number `index`, or `None` beyond the end.
    fn frame(&self, index: usize) -> Option<Frame>;
}

/// Section of a mapping.
pub struct Part {
    /// Provider of the frames; `None` for a hole, in which accesses raise SIGBUS.
    source: Option<Arc<dyn Source>>,
    /// Index of the first frame in the source.
    first: usize,
    /// Length in pages.
    pages: usize,
}

impl Part {
    /// Returns a section with frames `first` to `first + pages - 1` of a source.
    pub fn new(source: Arc<dyn Source>, first: usize, pages: usize) -> Self {
        let source = Some(source);
        Self {
            source,
            first,
            pages,
        }
    }

    /// Returns a hole of `pages` pages, in which accesses raise SIGBUS.
    pub fn hole(pages: usize) -> Self {
        Self {
            source: None,
            first: 0,
            pages,
        }
    }
}

/// Mappings of one device file. Holds references to inode and mount of the file, so that it stays
/// usable after the file is closed.
///
/// # Invariants
///
/// `mapping` belongs to the inode of `path`, and this object owns a reference to `path`.
pub struct Space {
    mapping: NonNull<bindings::address_space>,
    path: bindings::path,
}

// SAFETY: any thread may use the address space of an inode.
unsafe impl Send for Space {}
// SAFETY: the C functions that are called acquire the locks that they need.
unsafe impl Sync for Space {}

impl Space {
    /// # Safety
    ///
    /// `file` must be a valid file of a device node.
    pub(super) unsafe fn of_file(file: *mut bindings::file) -> Result<Arc<Self>> {
        // SAFETY: by the function's requirements the file is valid.
        let mapping = NonNull::new(unsafe { (*file).f_mapping }).ok_or(ENODEV)?;
        // SAFETY: by the function's requirements the file is valid; it holds a reference to its
        // path as long as it exists.
        let path = unsafe {
            let path = (*file).__bindgen_anon_1.f_path;
            bindings::path_get(&path);
            path
        };
        // INVARIANT: the reference has just been acquired. Device files use the mapping of their
        // own inode.
        Ok(Arc::new(Self { mapping, path }, GFP_KERNEL)?)
    }

    fn unmap(&self, first: u64, pages: usize) {
        // SAFETY: by the type invariant the inode of `mapping` is referenced.
        unsafe { bindings::unmap_mapping_pages(self.mapping.as_ptr(), first as usize, pages, true) }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // SAFETY: by the type invariant this object owns the reference.
        unsafe { bindings::path_put(&self.path) }
    }
}

/// Memory that one `mmap` call mapped. Because of splits and forks, several VMAs and processes may
/// contain parts of the mapping.
#[pin_data]
pub struct Mapping {
    space: Arc<Space>,
    first: u64,
    pages: usize,
    /// Number of VMAs.
    users: Atomic<i32>,
    #[pin]
    content: Mutex<Option<Content>>,
}

struct Content {
    parts: KVec<Part>,
    /// Number of pages at the beginning whose accesses have to wait.
    withheld: usize,
}

impl Mapping {
    /// Returns false when all VMAs are unmapped and the content has been dropped. Any context.
    pub fn is_used(&self) -> bool {
        self.users.load(Acquire) != 0
    }

    /// Removes all pages from all processes; later accesses raise SIGBUS. When this function
    /// returns, the mapping has no content, even if another thread removed it. May sleep. The
    /// caller must not hold a lock that [`Source::frame`] or the drop of a source takes.
    pub fn revoke(&self) {
        let mut content = self.content.lock();
        let old = content.take();
        if old.is_some() {
            self.space.unmap(self.first, self.pages);
        }
        // The content is dropped before the unlock, because a concurrent `revoke` that finds no
        // content may conclude that the device's memory is free.
        drop(old);
        drop(content);
    }

    /// Removes the first `pages` pages from all processes. Accesses to these pages wait until
    /// [`Mapping::give_back`], and a waiting process can be killed. May sleep. The caller must not
    /// hold a lock that [`Source::frame`] takes.
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

    /// Returns the frame of page `index`.
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

/// First page offset of the next mapping. After very many mappings an offset may be used again.
/// Revoking one of two mappings with the same offset only causes additional page faults in the
/// other mapping.
static NEXT_OFFSET: Atomic<u64> = Atomic::new(0);

fn take_offsets(pages: usize) -> Result<u64> {
    let pages = pages as u64;
    if pages > OFFSET_END / 2 {
        return Err(EINVAL);
    }
    let first = NEXT_OFFSET.fetch_add(pages, Relaxed) % OFFSET_END;
    Ok(if first + pages > OFFSET_END { 0 } else { first })
}

/// Shared mapping that is being made.
///
/// # Invariants
///
/// `vma` is new, shared, not yet visible to others. The caller of the handler has locked the VMA.
pub struct NewMapping<'a> {
    vma: NonNull<bindings::vm_area_struct>,
    _lock: PhantomData<&'a ()>,
}

impl NewMapping<'_> {
    /// # Safety
    ///
    /// `vma` must be the argument of an `mmap` call; the result must not be used after that call.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a private mapping.
    pub(super) unsafe fn from_raw(vma: *mut bindings::vm_area_struct) -> Result<Self> {
        let vma = NonNull::new(vma).ok_or(EINVAL)?;
        // SAFETY: by the function's requirements the VMA is valid.
        let flags = unsafe { (*vma.as_ptr()).__bindgen_anon_2.vm_flags };
        if flags & bindings::VM_SHARED as bindings::vm_flags_t == 0 {
            return Err(EINVAL);
        }
        // INVARIANT: the checks above establish the invariant.
        Ok(Self {
            vma,
            _lock: PhantomData,
        })
    }

    /// Returns the length in pages.
    pub fn pages(&self) -> usize {
        // SAFETY: by the type invariant the VMA is valid; its addresses are set.
        let (start, end) = unsafe {
            let range = (*self.vma.as_ptr()).__bindgen_anon_1.__bindgen_anon_1;
            (range.vm_start, range.vm_end)
        };
        (end - start) >> 12
    }

    /// Returns the offset in the file, in pages.
    pub fn offset(&self) -> usize {
        // SAFETY: by the type invariant the VMA is valid.
        unsafe { (*self.vma.as_ptr()).vm_pgoff }
    }

    /// Sets the content. Pages that `parts` do not cover are holes. `keep` receives the mapping
    /// before the first page can be inserted, so that the owner can revoke the mapping later.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `EINVAL` for an excessive length, and the error of `keep`.
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
                content <- Mutex::new(
                    Some(Content { parts, withheld: 0 }),
                    LOCK_NAME,
                    static_lock_class!(),
                ),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        keep(mapping.clone())?;
        let vma = self.vma.as_ptr();
        // SAFETY: by the type invariant the VMA may be changed here. The operations are static and
        // expect the private data: a reference that `vm_close` drops. Only `vm_fault` inserts pages
        // without struct page, as VM_PFNMAP requires.
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
/// Only the kernel may call this function, for a copy of a VMA that [`NewMapping::attach`] set up.
unsafe extern "C" fn vm_open(vma: *mut bindings::vm_area_struct) {
    // SAFETY: the original VMA holds a reference, which `ManuallyDrop` leaves alone. A reference
    // for the copy is made below.
    let mapping = unsafe {
        ManuallyDrop::new(Arc::from_raw(
            (*vma).vm_private_data.cast_const().cast::<Mapping>(),
        ))
    };
    // The original VMA is counted, so the count was not 0.
    mapping.users.fetch_add(1, Relaxed);
    let _ = Arc::into_raw((*mapping).clone());
}

/// # Safety
///
/// Only the kernel may call this function, once per VMA that [`NewMapping::attach`] set up or
/// [`vm_open`] copied.
unsafe extern "C" fn vm_close(vma: *mut bindings::vm_area_struct) {
    // SAFETY: this VMA owns the reference, which is dropped at the end of this function.
    let mapping = unsafe { Arc::from_raw((*vma).vm_private_data.cast_const().cast::<Mapping>()) };
    // The last VMA drops the content before the count becomes 0. An owner that finds the mapping
    // unused may forget it, and conclude that no memory of the device is in use.
    let mut content = mapping.content.lock();
    let last = mapping.users.load(Relaxed) == 1;
    let old = if last { content.take() } else { None };
    if !last {
        mapping.users.fetch_sub(1, Relaxed);
    }
    // The content is dropped before the unlock, for the reason given in `Mapping::revoke`.
    drop(old);
    drop(content);
    if last {
        mapping.users.fetch_sub(1, Release);
    }
}

/// # Safety
///
/// Only the kernel may call this function, for a fault in a VMA that [`NewMapping::attach`] set up
/// or [`vm_open`] copied.
unsafe extern "C" fn vm_fault(vmf: *mut bindings::vm_fault) -> bindings::vm_fault_t {
    // SAFETY: the fault is valid during the call.
    let (vma, at, address) = unsafe {
        let fault = &(*vmf).__bindgen_anon_1;
        (fault.vma, fault.pgoff, fault.address)
    };
    // SAFETY: the VMA is locked for the fault and holds a reference to the mapping.
    let mapping = unsafe { &*(*vma).vm_private_data.cast::<Mapping>() };
    // SAFETY: the VMA is locked for the fault.
    let end = unsafe { (*vma).__bindgen_anon_1.__bindgen_anon_1.vm_end };
    let index = at.wrapping_sub(mapping.first as usize);
    let content = mapping.content.lock();
    let Some(Content { parts, withheld }) = content.as_ref() else {
        return bindings::vm_fault_reason_VM_FAULT_SIGBUS;
    };
    if index < *withheld {
        drop(content);
        // Returns to the process, which tries again unless a signal is pending.
        fsleep(WITHHELD_PAUSE);
        return bindings::vm_fault_reason_VM_FAULT_NOPAGE;
    }
    let insert = |n: usize| {
        Mapping::frame(parts, index + n).map(|frame| {
            // SAFETY: the VMA is shared, has VM_PFNMAP and is locked for the fault; the call
            // rejects addresses outside of the VMA. The frame is valid until the content is
            // removed; the range is then unmapped under the same lock.
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
            // Inserting further pages only saves faults. A page that cannot be inserted now faults
            // when it is accessed.
            if insert(n) != Some(bindings::vm_fault_reason_VM_FAULT_NOPAGE) {
                break;
            }
        }
    }
    result
}
