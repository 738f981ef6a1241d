// SPDX-License-Identifier: GPL-2.0-only

//! Character devices below `/dev/extoll`, whose open files outlive the device, and mappings that can be revoked.
//!
//! A [`Node`] is one device file. Each open makes a [`Handler`] by the node's [`Opener`]; the handler lives until the
//! last descriptor is closed, whatever becomes of the node. An open file keeps the module loaded.

mod mapping;

pub use mapping::{Cache, Frame, Mapping, NewMapping, Part, Source, Space};

use crate::bindings;
use core::{marker::PhantomData, ptr::NonNull};
use kernel::{
    device::{self, Bound},
    error::{from_err_ptr, from_result, to_result},
    fs::File,
    module::this_module,
    prelude::*,
    sync::{poll::PollTable, Arc},
    uaccess::{UserPtr, UserSlice},
    ModuleMetadata,
};

/// Nodes per NIC; numbers are smaller.
pub const NODES_PER_NIC: u32 = bindings::EXTOLL_NODES_PER_NIC;
/// NICs that can have nodes; numbers are smaller.
pub const NICS: u32 = bindings::EXTOLL_NICS;

/// Poll result: something can be read.
pub const POLL_IN: u32 = 0x0001 | 0x0040;
/// Poll result: the device is gone.
pub const POLL_GONE: u32 = 0x0008 | 0x0010;

/// The device classes `extoll` and `extoll_priv` and their device numbers. One per module, made before the first
/// [`Node`] and dropped after the last.
pub struct Classes(());

impl Classes {
    /// Registers them. May sleep.
    ///
    /// # Errors
    ///
    /// `EEXIST`: another driver has these classes. `EBUSY`: no device numbers. `ENOMEM`.
    pub fn register() -> Result<Self> {
        // SAFETY: no preconditions; a second registration fails.
        to_result(unsafe { bindings::extoll_chardev_register() })?;
        Ok(Self(()))
    }
}

impl Drop for Classes {
    fn drop(&mut self) {
        // SAFETY: registered by `register`.
        unsafe { bindings::extoll_chardev_unregister() }
    }
}

/// Makes handlers for opens of a node. Called one at a time per node.
pub trait Opener: Send + Sync {
    /// Opens. May sleep.
    fn open(&self, opening: &Opening) -> Result<Arc<dyn Handler>>;
}

/// A file that is being opened.
pub struct Opening {
    space: Arc<Space>,
    owner: u32,
}

impl Opening {
    /// User that the device file belongs to, in the initial user namespace.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Where mappings of the file live.
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }
}

/// Operations on an open file, called concurrently by any process that has it; all may sleep.
#[allow(unused_variables)]
pub trait Handler: Send + Sync {
    /// An ioctl. Called without locks.
    fn ioctl(&self, command: u32, arg: usize) -> Result<isize> {
        Err(ENOTTY)
    }

    /// Maps; called with the address space of the caller locked, so that user memory must not be touched while a lock is
    /// held that this takes.
    fn mmap(&self, new: NewMapping<'_>) -> Result {
        Err(ENODEV)
    }

    /// Tells what is ready and registers for changes.
    fn poll(&self, file: &File, table: PollTable<'_>) -> u32 {
        POLL_GONE
    }

    /// Reads into `to`.
    fn read(&self, to: UserSlice) -> Result<usize> {
        Err(EINVAL)
    }

    /// Writes from `from`.
    fn write(&self, from: UserSlice) -> Result<usize> {
        Err(EINVAL)
    }

    /// Sets the position.
    fn seek(&self, offset: i64) -> Result<i64> {
        Err(ESPIPE)
    }

    /// The last descriptor was closed, and nothing is mapped any more.
    fn release(&self);
}

/// A device file, removed by drop. After the drop no open begins; one that runs was waited for. May sleep.
///
/// # Invariants
///
/// `raw` was made by `extoll_node_add` with a pointer to `opener`.
pub struct Node {
    raw: NonNull<bindings::extoll_node>,
    _opener: KBox<Arc<dyn Opener>>,
}

// SAFETY: nodes may be removed by any thread.
unsafe impl Send for Node {}
// SAFETY: `&Node` allows nothing.
unsafe impl Sync for Node {}

impl Node {
    /// Makes `/dev/extoll/NAME` for NIC 0, `/dev/extollN/NAME` for NIC N. `number` is unique per NIC. `private`: class
    /// `extoll_priv` and mode 0600 instead of class `extoll` and mode 0666. `M` is the calling module. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOSPC`: number out of range. `EEXIST`: taken. `ENOMEM`.
    pub fn new<M: ModuleMetadata + 'static>(
        parent: &device::Device<Bound>,
        nic: u32,
        number: u32,
        name: &CStr,
        private: bool,
        opener: Arc<dyn Opener>,
    ) -> Result<Self> {
        let opener = KBox::new(opener, GFP_KERNEL)?;
        // SAFETY: the parent is bound; the name is copied; the operations are static data of a module that stays while
        // they are in use; the owner is what `open` expects and lives until the drop has removed the node.
        let raw = from_err_ptr(unsafe {
            bindings::extoll_node_add(
                core::ptr::from_ref(parent).cast_mut().cast(),
                nic,
                number,
                name.as_char_ptr(),
                private,
                Operations::<M>::TABLE,
                core::ptr::from_ref(&*opener).cast_mut().cast(),
            )
        })?;
        // INVARIANT: made just now.
        Ok(Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            _opener: opener,
        })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // SAFETY: by the invariants; afterwards nobody gets at the owner, which is dropped next.
        unsafe { bindings::extoll_node_del(self.raw.as_ptr()) }
    }
}

/// What a file's `private_data` points to.
type Private = Arc<dyn Handler>;

struct Operations<M>(PhantomData<M>);

impl<M: ModuleMetadata + 'static> Operations<M> {
    const TABLE: &'static bindings::file_operations = &bindings::file_operations {
        owner: this_module::<M>().as_ptr(),
        open: Some(open),
        release: Some(release),
        unlocked_ioctl: Some(ioctl),
        mmap: Some(mmap),
        poll: Some(poll),
        read: Some(read),
        write: Some(write),
        llseek: Some(llseek),
        ..pin_init::zeroed()
    };
}

/// # Safety
///
/// `file` must be one that [`open`] succeeded for and that is not released yet.
unsafe fn handler<'a>(file: *mut bindings::file) -> &'a dyn Handler {
    // SAFETY: `open` stored a `Private` that `release` drops.
    let private = unsafe { &*(*file).private_data.cast::<Private>() };
    &**private
}

/// # Safety
///
/// To be called by the kernel only, for an inode of a [`Node`] and a file that is being opened.
unsafe extern "C" fn open(inode: *mut bindings::inode, file: *mut bindings::file) -> c_int {
    from_result(|| {
        // SAFETY: the file is valid, and its mapping is that of its inode.
        let space = unsafe { Space::of_file(file) }?;
        // SAFETY: the inode is valid.
        let owner = unsafe { (*inode).i_uid.val };
        let opening = Opening { space, owner };
        // SAFETY: `inode` is a node's; its device is held by the open.
        let owner = unsafe { bindings::extoll_node_lock(inode) }.cast::<Arc<dyn Opener>>();
        let handler = if owner.is_null() {
            Err(ENODEV)
        } else {
            // SAFETY: non-null means that the node, and so its owner, exists until the unlock.
            unsafe { &*owner }.open(&opening)
        };
        // SAFETY: locked above.
        unsafe { bindings::extoll_node_unlock(inode) };
        let handler = handler?;
        let private = KBox::new(handler.clone(), GFP_KERNEL).inspect_err(|_| handler.release())?;
        // SAFETY: the file is not yet visible to others.
        unsafe { (*file).private_data = KBox::into_raw(private).cast() };
        Ok(0)
    })
}

/// # Safety
///
/// To be called by the kernel only, once, for an open file.
unsafe extern "C" fn release(_: *mut bindings::inode, file: *mut bindings::file) -> c_int {
    // SAFETY: `open` stored it, and nobody uses the file any more.
    let private = unsafe { KBox::from_raw((*file).private_data.cast::<Private>()) };
    private.release();
    0
}

/// # Safety
///
/// To be called by the kernel only, for an open file.
unsafe extern "C" fn ioctl(file: *mut bindings::file, command: c_uint, arg: c_ulong) -> c_long {
    // SAFETY: the file is open.
    let handler = unsafe { handler(file) };
    from_result(|| handler.ioctl(command, arg).map(|v| v as c_long))
}

/// # Safety
///
/// To be called by the kernel only, for an open file and a new VMA with the address space locked for writing.
unsafe extern "C" fn mmap(file: *mut bindings::file, vma: *mut bindings::vm_area_struct) -> c_int {
    // SAFETY: the file is open.
    let handler = unsafe { handler(file) };
    // SAFETY: by the requirements; the VMA is not used by others during this call.
    let new = unsafe { NewMapping::from_raw(vma) };
    from_result(|| new.and_then(|new| handler.mmap(new)).map(|()| 0))
}

/// # Safety
///
/// To be called by the kernel only, for an open file and a valid or null table.
unsafe extern "C" fn poll(
    file: *mut bindings::file,
    table: *mut bindings::poll_table_struct,
) -> bindings::__poll_t {
    // SAFETY: the file is open.
    let handler = unsafe { handler(file) };
    // SAFETY: valid or null during the call.
    let table = unsafe { PollTable::from_raw(table) };
    // SAFETY: the file is valid, and no `fdget_pos` of it is used here.
    let file = unsafe { File::from_raw_file(file) };
    handler.poll(file, table)
}

/// # Safety
///
/// To be called by the kernel only, for an open file.
unsafe extern "C" fn read(
    file: *mut bindings::file,
    to: *mut c_char,
    len: usize,
    _: *mut bindings::loff_t,
) -> isize {
    // SAFETY: the file is open.
    let handler = unsafe { handler(file) };
    let to = UserSlice::new(UserPtr::from_addr(to.addr()), len);
    from_result(|| handler.read(to).map(|n| n as isize))
}

/// # Safety
///
/// To be called by the kernel only, for an open file.
unsafe extern "C" fn write(
    file: *mut bindings::file,
    from: *const c_char,
    len: usize,
    _: *mut bindings::loff_t,
) -> isize {
    // SAFETY: the file is open.
    let handler = unsafe { handler(file) };
    let from = UserSlice::new(UserPtr::from_addr(from.addr()), len);
    from_result(|| handler.write(from).map(|n| n as isize))
}

/// # Safety
///
/// To be called by the kernel only, for an open file.
unsafe extern "C" fn llseek(
    file: *mut bindings::file,
    offset: bindings::loff_t,
    _: c_int,
) -> bindings::loff_t {
    // SAFETY: the file is open.
    let handler = unsafe { handler(file) };
    from_result(|| handler.seek(offset))
}
