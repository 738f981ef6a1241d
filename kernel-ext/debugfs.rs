// SPDX-License-Identifier: GPL-2.0-only

//! debugfs directories with text files that keep their module loaded while they are open.
//!
//! The files of `kernel::debugfs` have no owner: closing one after its module was unloaded makes debugfs read file
//! operations that are gone. Here the operations name the module that contains them.

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

/// Writes the content of a file. Process context, may sleep; called again with more room when the text was longer than
/// expected. Errors end the text.
pub type Show<T> = fn(&T, &mut fmt::Formatter<'_>) -> fmt::Result;

/// As [`Show`], for file number `n` of a directory.
pub type ShowNth<T> = fn(&T, u32, &mut fmt::Formatter<'_>) -> fmt::Result;

/// Takes what was written to a file, without white space around it. Process context, may sleep.
pub type Store<T> = fn(&T, &str) -> Result;

/// Longest text that a file takes in one write.
const MAX_STORE: usize = 128;

/// What a file's inode points to.
struct File<T> {
    data: Arc<T>,
    show: Content<T>,
    store: Option<Store<T>>,
}

enum Content<T> {
    Only(Show<T>),
    Nth(ShowNth<T>, u32),
}

/// A directory in the root of debugfs, with its files (mode 0400, or 0600 if they can be written) and directories of files. The drop removes it and may sleep: it waits for the
/// callbacks that run, after it none runs any more. Files that are still open then give `EIO`.
///
/// # Invariants
///
/// `entry` is a directory made by debugfs. The inodes of the files below point to objects that `files` owns, and which are
/// neither moved nor changed.
pub struct Dir<T> {
    entry: NonNull<bindings::dentry>,
    files: KVec<KBox<File<T>>>,
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
        // INVARIANT: the directory was made just now, without files.
        let mut dir = Self {
            entry: Self::directory(name, core::ptr::null_mut())?,
            files: KVec::new(),
        };
        for &(name, show) in files {
            dir.add::<M>(dir.entry, name, data, Content::Only(show), None)?;
        }
        Ok(dir)
    }

    /// Adds a file that can be written. May sleep.
    ///
    /// # Errors
    ///
    /// As [`Dir::new`].
    pub fn add_writable<M: ModuleMetadata + 'static>(
        &mut self,
        name: &CStr,
        data: &Arc<T>,
        show: Show<T>,
        store: Store<T>,
    ) -> Result {
        self.add::<M>(self.entry, name, data, Content::Only(show), Some(store))
    }

    /// Adds a directory of files, which `show` tells apart by their number in `names`. May sleep.
    ///
    /// # Errors
    ///
    /// As [`Dir::new`].
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

    /// Makes a directory; `parent` is a live directory of debugfs or null.
    fn directory(name: &CStr, parent: *mut bindings::dentry) -> Result<NonNull<bindings::dentry>> {
        // SAFETY: `name` is a C string, which is copied; no parent means the root. Callers give live directories only.
        let entry = unsafe { bindings::debugfs_create_dir(name.as_char_ptr(), parent) };
        NonNull::new(from_err_ptr(entry)?).ok_or(ENODEV)
    }

    /// Adds a file to `parent`, which is `entry` or a directory below it.
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
        // SAFETY: `name` is a C string, which is copied; the parent is a live directory. The operations are static
        // data of a module that stays while they are in use, and fit a pointer to a `File<T>`, which lives until
        // the drop of `self` has removed the file.
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
        // SAFETY: made by debugfs and not removed yet by the type invariant; removes what is below, too. The files' data are
        // dropped after this.
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
        write: Some(write::<T>),
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

/// # Safety
///
/// To be called by debugfs only, for a file opened by [`open`] and not removed yet; `text` is the writer's buffer.
unsafe extern "C" fn write<T: Send + Sync + 'static>(
    file: *mut bindings::file,
    text: *const c_char,
    count: usize,
    _: *mut bindings::loff_t,
) -> isize {
    // SAFETY: by the requirements: `single_open` made the `seq_file` and noted the pointer to the live `File<T>`, which
    // nobody changes.
    let file = unsafe {
        &*(*(*file).private_data.cast::<bindings::seq_file>())
            .private
            .cast::<File<T>>()
    };
    let take = || -> Result {
        let store = file.store.ok_or(EPERM)?;
        let mut buffer = [0; MAX_STORE];
        let buffer = buffer.get_mut(..count).ok_or(E2BIG)?;
        let from = UserPtr::from_ptr(text.cast_mut().cast());
        UserSlice::new(from, count).reader().read_slice(buffer)?;
        let text = core::str::from_utf8(buffer).map_err(|_| EINVAL)?;
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
