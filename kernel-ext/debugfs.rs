// SPDX-License-Identifier: GPL-2.0-only

//! debugfs directories with text files that keep their module loaded while they are open.
//!
//! Files of `kernel::debugfs` have no owner. If one is closed after its module was unloaded,
//! debugfs reads file operations that were freed. The operations in this module name the owner.

use crate::bindings;
use core::{marker::PhantomData, ptr::NonNull};
use kernel::{
    error::from_err_ptr,
    fmt,
    module::this_module,
    prelude::*,
    seq_file::SeqFile,
    seq_print,
    str::CString,
    sync::Arc,
    uaccess::{UserPtr, UserSlice},
    ModuleMetadata,
};

/// Writes the content of a file. Process context, may sleep. The function is called again with a
/// larger buffer if the text did not fit. An error ends the text.
pub type Show<T> = fn(&T, &mut fmt::Formatter<'_>) -> fmt::Result;

/// Writes the content of file number `n` of a directory, under the rules of [`Show`].
pub type ShowNth<T> = fn(&T, u32, &mut fmt::Formatter<'_>) -> fmt::Result;

/// Receives text that was written to a file, without white space around it. Process context, may
/// sleep.
pub type Store<T> = fn(&T, &str) -> Result;

/// Maximum size in bytes of the text of one write.
const MAX_STORE: usize = 4096;

/// Object that a file's inode points to.
struct File<T> {
    data: Arc<T>,
    show: Content<T>,
    store: Option<Store<T>>,
}

enum Content<T> {
    Only(Show<T>),
    Nth(ShowNth<T>, u32),
}

/// Directory in the root of debugfs, with files (mode 0400, or 0600 if they are writable) and
/// subdirectories. The drop removes the directory and waits for running callbacks. The drop may
/// sleep. Afterwards no callback runs, and files that are still open return `EIO`.
///
/// # Invariants
///
/// `entry` is a directory made by debugfs. The inodes of the directory's files point to objects
/// that `files` owns. These objects are neither moved nor changed.
pub struct Dir<T> {
    entry: NonNull<bindings::dentry>,
    files: KVec<KBox<File<T>>>,
}

// SAFETY: any thread may remove debugfs entries; `T: Send + Sync` may be shared with and dropped by
// any thread.
unsafe impl<T: Send + Sync> Send for Dir<T> {}
// SAFETY: `&Dir` has no methods.
unsafe impl<T: Send + Sync> Sync for Dir<T> {}

impl<T: Send + Sync + 'static> Dir<T> {
    /// Makes the directory `name` with `files`, all of which show `data`. May sleep. `M` is the
    /// calling module, which cannot be unloaded while one of the files is open.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EEXIST` for a name that exists; `EPERM` or `ENODEV` if the kernel runs without
    /// debugfs.
    pub fn new<M: ModuleMetadata + 'static>(
        name: &CStr,
        data: &Arc<T>,
        files: &[(&CStr, Show<T>)],
    ) -> Result<Self> {
        // INVARIANT: the directory has just been made, without files.
        let mut dir = Self {
            entry: Self::directory(name, core::ptr::null_mut())?,
            files: KVec::new(),
        };
        for &(name, show) in files {
            dir.add::<M>(dir.entry, name, data, Content::Only(show), None)?;
        }
        Ok(dir)
    }

    /// Adds a writable file. May sleep.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Dir::new`].
    pub fn add_writable<M: ModuleMetadata + 'static>(
        &mut self,
        name: &CStr,
        data: &Arc<T>,
        show: Show<T>,
        store: Store<T>,
    ) -> Result {
        self.add::<M>(self.entry, name, data, Content::Only(show), Some(store))
    }

    /// Adds a directory of files. `show` gets the index of the file in `names`. May sleep.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Dir::new`].
    pub fn add_directory<M: ModuleMetadata + 'static>(
        &mut self,
        name: &CStr,
        data: &Arc<T>,
        names: &[CString],
        show: ShowNth<T>,
    ) -> Result {
        let below = Self::directory(name, self.entry.as_ptr())?;
        for (n, name) in (0..).zip(names) {
            self.add::<M>(below, name, data, Content::Nth(show, n), None)?;
        }
        Ok(())
    }

    /// Makes a directory. `parent` is an existing debugfs directory, or null for the root.
    fn directory(name: &CStr, parent: *mut bindings::dentry) -> Result<NonNull<bindings::dentry>> {
        // SAFETY: `name` is a C string, which debugfs copies. Callers pass null or a directory that
        // exists.
        let entry = unsafe { bindings::debugfs_create_dir(name.as_char_ptr(), parent) };
        NonNull::new(from_err_ptr(entry)?).ok_or(ENODEV)
    }

    /// Adds a file to `parent`, which is `entry` or a directory below `entry`.
    fn add<M: ModuleMetadata + 'static>(
        &mut self,
        parent: NonNull<bindings::dentry>,
        name: &CStr,
        data: &Arc<T>,
        show: Content<T>,
        store: Option<Store<T>>,
    ) -> Result {
        let data = data.clone();
        let mode = if store.is_some() { 0o600 } else { 0o400 };
        let file = KBox::new(File { data, show, store }, GFP_KERNEL)?;
        let inner = core::ptr::from_ref(&*file).cast_mut().cast();
        self.files.push(file, GFP_KERNEL)?;
        // SAFETY: `name` is a C string, which debugfs copies; the parent is an existing directory.
        // The operations are static data of a module that stays loaded while they are in use. The
        // operations expect a pointer to a `File<T>`, which lives until the drop of `self` has
        // removed the file.
        from_err_ptr(unsafe {
            bindings::debugfs_create_file_full(
                name.as_char_ptr(),
                mode,
                parent.as_ptr(),
                inner,
                core::ptr::null(),
                Operations::<M, T>::TABLE,
            )
        })?;
        Ok(())
    }
}

impl<T> Drop for Dir<T> {
    fn drop(&mut self) {
        // SAFETY: by the type invariant the directory was made by debugfs and still exists. The
        // call also removes its content. The files' data are dropped after this call.
        unsafe { bindings::debugfs_remove(self.entry.as_ptr()) }
    }
}

/// File operations of files of module `M` that show a `T`.
struct Operations<M, T>(PhantomData<(M, T)>);

impl<M: ModuleMetadata + 'static, T: Send + Sync + 'static> Operations<M, T> {
    /// Table in static memory rather than in `File`, because debugfs uses it after the release
    /// callback of a file that was removed long before. `M` names the module into which this code
    /// is linked.
    const TABLE: &'static bindings::file_operations = &bindings::file_operations {
        owner: this_module::<M>().as_ptr(),
        open: Some(open::<T>),
        read: Some(bindings::seq_read),
        write: Some(write::<T>),
        llseek: Some(bindings::seq_lseek),
        release: Some(bindings::single_release),
        ..pin_init::zeroed()
    };
}

/// # Safety
///
/// Only debugfs may call this function, for an inode that points to a valid `File<T>` and a file
/// that is being opened.
unsafe extern "C" fn open<T: Send + Sync + 'static>(
    inode: *mut bindings::inode,
    file: *mut bindings::file,
) -> c_int {
    // SAFETY: by the function's requirements both pointers are valid; `show` gets the pointer of
    // the inode.
    unsafe { bindings::single_open(file, Some(show::<T>), (*inode).i_private) }
}

/// # Safety
///
/// Only `seq_read` and `seq_lseek` may call this function, for a file opened by [`open`] that is
/// not removed yet. debugfs ensures this, because the removal waits for their return.
unsafe extern "C" fn show<T: Send + Sync + 'static>(
    seq: *mut bindings::seq_file,
    _: *mut c_void,
) -> c_int {
    // SAFETY: by the function's requirements `private` points to a valid `File<T>`, which is not
    // changed.
    let file = unsafe { &*(*seq).private.cast::<File<T>>() };
    // SAFETY: `seq` is valid, and only this thread uses it during this call.
    let out = unsafe { SeqFile::from_raw(seq) };
    seq_print!(out, "{}", Text(file));
    0
}

/// # Safety
///
/// Only debugfs may call this function, for a file opened by [`open`] that is not removed yet.
/// `text` is the writer's buffer.
unsafe extern "C" fn write<T: Send + Sync + 'static>(
    file: *mut bindings::file,
    text: *const c_char,
    count: usize,
    _: *mut bindings::loff_t,
) -> isize {
    // SAFETY: by the function's requirements `single_open` made the `seq_file` and stored the
    // pointer to the valid `File<T>`, which is not changed.
    let file = unsafe {
        &*(*(*file).private_data.cast::<bindings::seq_file>())
            .private
            .cast::<File<T>>()
    };
    let take = || -> Result {
        let store = file.store.ok_or(EPERM)?;
        if count > MAX_STORE {
            return Err(E2BIG);
        }
        let mut buffer = KVec::new();
        let from = UserPtr::from_ptr(text.cast_mut().cast());
        UserSlice::new(from, count).read_all(&mut buffer, GFP_KERNEL)?;
        let text = core::str::from_utf8(&buffer).map_err(|_| EINVAL)?;
        store(&file.data, text.trim())
    };
    match take() {
        Ok(()) => count as isize,
        Err(e) => e.to_errno() as isize,
    }
}

/// Formats a file's content.
struct Text<'a, T>(&'a File<T>);

impl<T> fmt::Display for Text<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.show {
            Content::Only(show) => show(&self.0.data, f),
            Content::Nth(show, n) => show(&self.0.data, n, f),
        }
    }
}
