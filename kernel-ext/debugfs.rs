// SPDX-License-Identifier: GPL-2.0-only

//! debugfs directories with read-only text files that keep their module loaded while they are open.
//!
//! The files of `kernel::debugfs` have no owner: closing one after its module was unloaded makes debugfs read file
//! operations that are gone. Here the operations name the module that contains them.

use crate::bindings;
use core::{marker::PhantomData, ptr::NonNull};
use kernel::{
    error::from_err_ptr, fmt, module::this_module, prelude::*, seq_file::SeqFile, seq_print,
    sync::Arc, ModuleMetadata,
};

/// Writes the content of a file. Process context, may sleep; called again with more room when the text was longer than
/// expected. Errors end the text.
pub type Show<T> = fn(&T, &mut fmt::Formatter<'_>) -> fmt::Result;

/// What a file's inode points to.
struct File<T> {
    data: Arc<T>,
    show: Show<T>,
}

/// A directory in the root of debugfs, with its files (mode 0400). The drop removes it and may sleep: it waits for the
/// callbacks that run, after it none runs any more. Files that are still open then give `EIO`.
///
/// # Invariants
///
/// `entry` is a directory made by debugfs. The inodes of its files point to elements of `files`, which is not changed.
pub struct Dir<T> {
    entry: NonNull<bindings::dentry>,
    files: KVec<File<T>>,
}

// SAFETY: debugfs entries may be removed by any thread, and the data may be shared and dropped by any.
unsafe impl<T: Send + Sync> Send for Dir<T> {}
// SAFETY: `&Dir` allows nothing.
unsafe impl<T: Send + Sync> Sync for Dir<T> {}

impl<T: Send + Sync + 'static> Dir<T> {
    /// Makes the directory `name` with `files`, all of which show `data`. May sleep. `M` is the calling module, which
    /// cannot be unloaded while one of the files is open.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EEXIST` for a name that is taken; `EPERM`, `ENODEV` when the kernel runs without debugfs.
    pub fn new<M: ModuleMetadata + 'static>(
        name: &CStr,
        data: &Arc<T>,
        files: &[(&CStr, Show<T>)],
    ) -> Result<Self> {
        let mut list = KVec::with_capacity(files.len(), GFP_KERNEL)?;
        for &(_, show) in files {
            let data = data.clone();
            list.push(File { data, show }, GFP_KERNEL)?;
        }
        // SAFETY: `name` is a C string, which is copied; no parent means the root.
        let entry =
            unsafe { bindings::debugfs_create_dir(name.as_char_ptr(), core::ptr::null_mut()) };
        // INVARIANT: the directory was made just now, the list is complete.
        let dir = Self {
            entry: NonNull::new(from_err_ptr(entry)?).ok_or(ENODEV)?,
            files: list,
        };
        for ((name, _), file) in files.iter().zip(&dir.files) {
            // SAFETY: `name` is a C string, which is copied; the parent is a live directory. The operations are static
            // data of a module that stays while they are in use, and fit a pointer to a `File<T>`, which lives until
            // the drop of `dir` has removed the file.
            from_err_ptr(unsafe {
                bindings::debugfs_create_file_full(
                    name.as_char_ptr(),
                    0o400,
                    dir.entry.as_ptr(),
                    core::ptr::from_ref(file).cast_mut().cast(),
                    core::ptr::null(),
                    Operations::<M, T>::TABLE,
                )
            })?;
        }
        Ok(dir)
    }
}

impl<T> Drop for Dir<T> {
    fn drop(&mut self) {
        // SAFETY: made by debugfs and not removed yet by the type invariant. The files' data are dropped after this.
        unsafe { bindings::debugfs_remove(self.entry.as_ptr()) }
    }
}

/// The file operations for files of module `M` that show a `T`.
struct Operations<M, T>(PhantomData<(M, T)>);

impl<M: ModuleMetadata + 'static, T: Send + Sync + 'static> Operations<M, T> {
    /// In static memory, not in that of a file: debugfs uses them in the release of a file that was removed long ago,
    /// after the callback. `__this_module`, to which `M` leads, is that of the module into which this is linked.
    const TABLE: &'static bindings::file_operations = &bindings::file_operations {
        owner: this_module::<M>().as_ptr(),
        open: Some(open::<T>),
        read: Some(bindings::seq_read),
        llseek: Some(bindings::seq_lseek),
        release: Some(bindings::single_release),
        ..pin_init::zeroed()
    };
}

/// # Safety
///
/// To be called by debugfs only, for an inode that points to a live `File<T>` and a file that is being opened.
unsafe extern "C" fn open<T: Send + Sync + 'static>(
    inode: *mut bindings::inode,
    file: *mut bindings::file,
) -> c_int {
    // SAFETY: by the requirements; `show` gets the same pointer.
    unsafe { bindings::single_open(file, Some(show::<T>), (*inode).i_private) }
}

/// # Safety
///
/// To be called by `seq_read` and `seq_lseek` only, for a file opened by [`open`] and not removed yet: debugfs calls
/// them only then and lets the removal wait for their return.
unsafe extern "C" fn show<T: Send + Sync + 'static>(
    seq: *mut bindings::seq_file,
    _: *mut c_void,
) -> c_int {
    // SAFETY: by the requirements, `private` is the pointer to the live `File<T>`; nobody changes it.
    let file = unsafe { &*(*seq).private.cast::<File<T>>() };
    // SAFETY: `seq` is valid and, during this call, used by this thread only.
    let out = unsafe { SeqFile::from_raw(seq) };
    seq_print!(out, "{}", Text(file));
    0
}

/// Formats a file's content.
struct Text<'a, T>(&'a File<T>);

impl<T> fmt::Display for Text<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.0.show)(&self.0.data, f)
    }
}
