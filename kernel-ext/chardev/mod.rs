// SPDX-License-Identifier: GPL-2.0-only

//! Character devices below `/dev/extoll`, and mappings that can be revoked. Open files may outlive
//! the device.
//!
//! A [`Node`] is one device file. Each open makes a [`Handler`] by the node's [`Opener`]. The
//! handler lives until the last descriptor is closed, even if the node is removed earlier. An open
//! file keeps the module loaded.

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

/// Maximum number of nodes per NIC; node numbers are smaller.
pub const NODES_PER_NIC: u32 = bindings::EXTOLL_NODES_PER_NIC;
/// Maximum number of NICs with nodes; NIC numbers are smaller.
pub const NICS: u32 = bindings::EXTOLL_NICS;

/// Poll result: data can be read.
pub const POLL_IN: u32 = 0x0001 | 0x0040;
/// Poll result: the device was removed.
pub const POLL_GONE: u32 = 0x0008 | 0x0010;

/// Device classes `extoll` and `extoll_priv` and their device numbers. Each module makes one object
/// before its first [`Node`], and drops the object after its last [`Node`].
pub struct Classes(());

impl Classes {
    /// Registers classes and device numbers. May sleep.
    ///
    /// # Errors
    ///
    /// `EEXIST`: another driver registered these classes. `EBUSY`: no device numbers are free.
    /// `ENOMEM`.
    pub fn register() -> Result<Self> {
        // SAFETY: the function has no preconditions. A second registration fails.
        to_result(unsafe { bindings::extoll_chardev_register() })?;
        Ok(Self(()))
    }
}

impl Drop for Classes {
    fn drop(&mut self) {
        // SAFETY: `register` registered the classes and device numbers.
        unsafe { bindings::extoll_chardev_unregister() }
    }
}

/// Makes handlers for opens of a node. Called one at a time per node.
pub trait Opener: Send + Sync {
    /// Returns the handler of a file that is being opened. May sleep.
    fn open(&self, opening: &Opening) -> Result<Arc<dyn Handler>>;
}

/// File that is being opened.
pub struct Opening {
    space: Arc<Space>,
    owner: u32,
}

impl Opening {
    /// Returns the user ID of the device file's owner, in the initial user namespace.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Returns the space in which mappings of the file are made.
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }
}

/// Operations on an open file. Any process that has the file open calls these operations, also
/// concurrently. All operations may sleep.
#[allow(unused_variables)]
pub trait Handler: Send + Sync {
    /// Handles an ioctl. Called without locks.
    fn ioctl(&self, command: u32, arg: usize) -> Result<isize> {
        Err(ENOTTY)
    }

    /// Maps memory. The caller's address space is locked. Consequently a lock that this function
    /// acquires must never be held during an access to user memory.
    fn mmap(&self, new: NewMapping<'_>) -> Result {
        Err(ENODEV)
    }

    /// Returns the events that are ready, and registers for changes.
    fn poll(&self, file: &File, table: PollTable<'_>) -> u32 {
        POLL_GONE
    }

    /// Reads into `to`. Returns the number of bytes.
    fn read(&self, to: UserSlice) -> Result<usize> {
        Err(EINVAL)
    }

    /// Writes from `from`. Returns the number of bytes.
    fn write(&self, from: UserSlice) -> Result<usize> {
        Err(EINVAL)
    }

    /// Sets the position and returns it.
    fn seek(&self, offset: i64) -> Result<i64> {
        Err(ESPIPE)
    }

    /// Called once, after the last descriptor was closed and all mappings were removed.
    fn release(&self);
}

/// Device file. The drop removes the file and waits for a running open; afterwards no open can
/// begin. The drop may sleep.
///
/// # Invariants
///
/// `raw` came from `extoll_node_add`, with a pointer to `*_opener`.
pub struct Node {
    raw: NonNull<bindings::extoll_node>,
    _opener: KBox<Arc<dyn Opener>>,
}

// SAFETY: any thread may remove a node.
unsafe impl Send for Node {}
// SAFETY: `&Node` has no methods.
unsafe impl Sync for Node {}

impl Node {
    /// Makes `/dev/extoll/NAME` for NIC 0, `/dev/extollN/NAME` for NIC N. `number` is unique per
    /// NIC. With `private`, the file has class `extoll_priv` and mode 0600; otherwise class
    /// `extoll` and mode 0666. `M` is the calling module. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOSPC`: number out of range. `EEXIST`: the name exists. `ENOMEM`.
    pub fn new<M: ModuleMetadata + 'static>(
        parent: &device::Device<Bound>,
        nic: u32,
        number: u32,
        name: &CStr,
        private: bool,
        opener: Arc<dyn Opener>,
    ) -> Result<Self> {
        let opener = KBox::new(opener, GFP_KERNEL)?;
        // SAFETY: the parent is bound; the name is copied. The operations are static data of a
        // module that stays loaded while they are in use. The owner has the type that `open`
        // expects, and lives until the drop has removed the node.
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
        // INVARIANT: `raw` has just been made with `opener`.
        Ok(Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            _opener: opener,
        })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // SAFETY: by the type invariant `raw` is a node. After this call the owner, which is
        // dropped next, is not reachable.
        unsafe { bindings::extoll_node_del(self.raw.as_ptr()) }
    }
}

/// Object that a file's `private_data` points to.
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
/// `open` must have succeeded for `file`, which must not be released yet.
unsafe fn handler<'a>(file: *mut bindings::file) -> &'a dyn Handler {
    // SAFETY: `open` stored a pointer to a `Private`, which `release` drops.
    let private = unsafe { &*(*file).private_data.cast::<Private>() };
    &**private
}

/// # Safety
///
/// Only the kernel may call this function, for the inode of a [`Node`] and a file that is being
/// opened.
unsafe extern "C" fn open(inode: *mut bindings::inode, file: *mut bindings::file) -> c_int {
    from_result(|| {
        // SAFETY: the file is valid, and its mapping is the one of its inode.
        let space = unsafe { Space::of_file(file) }?;
        // SAFETY: the inode is valid.
        let owner = unsafe { (*inode).i_uid.val };
        let opening = Opening { space, owner };
        // SAFETY: the inode belongs to a node, whose device the open keeps alive.
        let owner = unsafe { bindings::extoll_node_lock(inode) }.cast::<Arc<dyn Opener>>();
        let handler = if owner.is_null() {
            Err(ENODEV)
        } else {
            // SAFETY: a non-null result means that the node, and so its owner, exists until the
            // unlock.
            unsafe { &*owner }.open(&opening)
        };
        // SAFETY: the call above acquired the lock.
        unsafe { bindings::extoll_node_unlock(inode) };
        let handler = handler?;
        let private = KBox::new(handler.clone(), GFP_KERNEL).inspect_err(|_| handler.release())?;
        // SAFETY: the file is not yet visible to other threads.
        unsafe { (*file).private_data = KBox::into_raw(private).cast() };
        Ok(0)
    })
}

/// # Safety
///
/// Only the kernel may call this function, once, for an open file.
unsafe extern "C" fn release(_: *mut bindings::inode, file: *mut bindings::file) -> c_int {
    // SAFETY: `open` stored the pointer, and the file is not used any more.
    let private = unsafe { KBox::from_raw((*file).private_data.cast::<Private>()) };
    private.release();
    0
}

/// # Safety
///
/// Only the kernel may call this function, for an open file.
unsafe extern "C" fn ioctl(file: *mut bindings::file, command: c_uint, arg: c_ulong) -> c_long {
    // SAFETY: the file is open.
    let handler = unsafe { handler(file) };
    from_result(|| handler.ioctl(command, arg).map(|v| v as c_long))
}

/// # Safety
///
/// Only the kernel may call this function, for an open file and a new VMA with the address space
/// locked for writing.
unsafe extern "C" fn mmap(file: *mut bindings::file, vma: *mut bindings::vm_area_struct) -> c_int {
    // SAFETY: the file is open.
    let handler = unsafe { handler(file) };
    // SAFETY: by the function's requirements the VMA is new. Other threads do not use the VMA
    // during this call.
    let new = unsafe { NewMapping::from_raw(vma) };
    from_result(|| new.and_then(|new| handler.mmap(new)).map(|()| 0))
}

/// # Safety
///
/// Only the kernel may call this function, for an open file and a valid or null table.
unsafe extern "C" fn poll(
    file: *mut bindings::file,
    table: *mut bindings::poll_table_struct,
) -> bindings::__poll_t {
    // SAFETY: the file is open.
    let handler = unsafe { handler(file) };
    // SAFETY: the table is valid during the call, or null.
    let table = unsafe { PollTable::from_raw(table) };
    // SAFETY: the file is valid, and no `fdget_pos` reference to it is used here.
    let file = unsafe { File::from_raw_file(file) };
    handler.poll(file, table)
}

/// # Safety
///
/// Only the kernel may call this function, for an open file.
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
/// Only the kernel may call this function, for an open file.
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
/// Only the kernel may call this function, for an open file.
unsafe extern "C" fn llseek(
    file: *mut bindings::file,
    offset: bindings::loff_t,
    _: c_int,
) -> bindings::loff_t {
    // SAFETY: the file is open.
    let handler = unsafe { handler(file) };
    from_result(|| handler.seek(offset))
}
