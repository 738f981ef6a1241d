// SPDX-License-Identifier: GPL-2.0-only

//! Groups of sysfs files on a device, made at run time. A group may have thousands of files, at a
//! few dozen bytes each.

use crate::bindings;
use core::fmt::{self, Write};
use kernel::{
    container_of,
    device::{self, Bound},
    error::to_result,
    page::PAGE_SIZE,
    prelude::*,
    sync::{aref::ARef, Arc},
};

/// Returns the C object of a device.
pub(crate) fn raw(device: &device::Device) -> *mut bindings::device {
    // `Device` is a transparent wrapper of `Opaque<device>`, so both have the same address.
    core::ptr::from_ref(device).cast_mut().cast()
}

/// Callbacks of the files of a group. Process context, may sleep. Removing the group in a callback
/// would deadlock.
pub trait Files: Send + Sync + 'static {
    /// Writes the content of file `id`. Text longer than a page is an error.
    ///
    /// # Errors
    ///
    /// The error of the `read` call.
    fn show(&self, id: u32, out: &mut Text<'_>) -> Result;

    /// Receives text that was written to file `id`, without white space around it.
    ///
    /// # Errors
    ///
    /// The error of the `write` call.
    fn store(&self, id: u32, text: &str) -> Result;
}

/// A page of text. `write_str` fails when the page is full.
pub struct Text<'a> {
    page: &'a mut [u8],
    used: usize,
}

impl Write for Text<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let end = self.used + s.len();
        let place = self.page.get_mut(self.used..end).ok_or(fmt::Error)?;
        place.copy_from_slice(s.as_bytes());
        self.used = end;
        Ok(())
    }
}

/// File of a group. sysfs holds a pointer to `attribute`.
#[repr(C)]
struct File<T> {
    attribute: bindings::device_attribute,
    owner: *const T,
    id: u32,
}

/// Directory of files below a device's directory. The drop removes the directory and waits for
/// running callbacks. The drop may sleep. Afterwards no callback runs, and files that are still
/// open return `ENODEV`.
///
/// # Invariants
///
/// The group exists in sysfs. The group refers to `files` and `_names`, which are not changed.
/// `owner` of all files points to `*_data`.
pub struct Group<T: Files> {
    device: ARef<device::Device>,
    name: &'static CStr,
    files: KVVec<File<T>>,
    _names: KVVec<u8>,
    _data: Arc<T>,
}

// SAFETY: any thread may remove a sysfs group; `T: Send + Sync` may be shared with and dropped by
// any thread.
unsafe impl<T: Files> Send for Group<T> {}
// SAFETY: `&Group` gives access to sizes only.
unsafe impl<T: Files> Sync for Group<T> {}

/// Description of a file.
pub struct Entry<N: fmt::Display> {
    /// File name.
    pub name: N,
    /// Number that is passed to the callbacks.
    pub id: u32,
    /// Whether root may read the file, and whether root may write it.
    pub access: (bool, bool),
}

/// Buffer for file names.
struct Names(KVVec<u8>);

impl Write for Names {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let bytes = s.as_bytes();
        self.0
            .extend_from_slice(bytes, GFP_KERNEL)
            .map_err(|_| fmt::Error)
    }
}

impl<T: Files> Group<T> {
    /// Makes the directory `name` of `device` with a file per element of `entries`, accessible to
    /// root only. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EEXIST` for a name that exists.
    pub fn new<N: fmt::Display>(
        device: &device::Device<Bound>,
        name: &'static CStr,
        data: Arc<T>,
        entries: impl Iterator<Item = Entry<N>>,
    ) -> Result<Self> {
        let owner: *const T = &*data;
        let mut files = KVVec::new();
        let mut names = Names(KVVec::new());
        let mut starts = KVVec::new();
        for entry in entries {
            starts.push(names.0.len(), GFP_KERNEL)?;
            write!(names, "{}\0", entry.name).map_err(|_| ENOMEM)?;
            let (read, write) = entry.access;
            let mut attribute = bindings::device_attribute::default();
            attribute.attr.mode = if read { 0o400 } else { 0 } | if write { 0o200 } else { 0 };
            attribute.__bindgen_anon_1.show = if read { Some(show::<T>) } else { None };
            attribute.__bindgen_anon_2.store = if write { Some(store::<T>) } else { None };
            let id = entry.id;
            let file = File {
                attribute,
                owner,
                id,
            };
            files.push(file, GFP_KERNEL)?;
        }
        let mut list = KVVec::with_capacity(files.len() + 1, GFP_KERNEL)?;
        for (file, start) in files.iter_mut().zip(&starts) {
            let rest = names.0.get(*start..).ok_or(EINVAL)?;
            file.attribute.attr.name = rest.as_ptr().cast();
            // SAFETY: initialises the lock class of a valid attribute that is not in use yet.
            unsafe { bindings::extoll_sysfs_attr_init(&mut file.attribute) };
            list.push(&raw mut file.attribute.attr, GFP_KERNEL)?;
        }
        list.push(core::ptr::null_mut(), GFP_KERNEL)?;
        let mut group = Self::group(name);
        group.__bindgen_anon_2.attrs = list.as_mut_ptr();
        // SAFETY: the device is bound, so its kobject is in sysfs. The group's list ends with a
        // null pointer; the names of the attributes are C strings. Attributes and names live until
        // the drop has removed the group; if this call fails, sysfs keeps no pointer to them. The
        // group itself and the list are used during this call only. sysfs calls `show` and `store`
        // for attributes of this list only, so with pointers into `File<T>`s.
        to_result(unsafe { bindings::sysfs_create_group(Self::kobject(device), &group) })?;
        // INVARIANT: the group has just been created.
        Ok(Self {
            device: device.into(),
            name,
            files,
            _names: names.0,
            _data: data,
        })
    }

    /// Returns the number of files.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns true if the group has no files.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns the bytes that this module allocated for the group. sysfs itself needs about 200
    /// bytes per file.
    pub fn bytes(&self) -> usize {
        self.files.capacity() * size_of::<File<T>>() + self._names.capacity()
    }

    /// Returns a group without files.
    fn group(name: &'static CStr) -> bindings::attribute_group {
        bindings::attribute_group {
            name: name.as_char_ptr(),
            ..pin_init::zeroed()
        }
    }

    fn kobject(device: &device::Device) -> *mut bindings::kobject {
        // SAFETY: the expression computes the address of a field of a valid device.
        unsafe { &raw mut (*raw(device)).kobj }
    }
}

impl<T: Files> Drop for Group<T> {
    fn drop(&mut self) {
        let group = Self::group(self.name);
        // SAFETY: by the type invariant the directory exists; `device` holds a reference. A group
        // without a list makes sysfs remove the whole directory, after it has waited for callbacks.
        // Files, names and data are dropped after this call.
        unsafe { bindings::sysfs_remove_group(Self::kobject(&self.device), &group) };
    }
}

/// # Safety
///
/// `attribute` is in a `File<T>` of a group that is not removed while the result is in use.
unsafe fn file<'a, T: Files>(attribute: *mut bindings::device_attribute) -> (&'a T, u32) {
    // SAFETY: by the function's requirements the file is alive, and so is the data of its group.
    // Files of a group are not changed.
    unsafe {
        let file = container_of!(attribute, File<T>, attribute);
        (&*(*file).owner, (*file).id)
    }
}

/// # Safety
///
/// Only sysfs may call this function, for an attribute of a [`Group`].
unsafe extern "C" fn show<T: Files>(
    _: *mut bindings::device,
    attribute: *mut bindings::device_attribute,
    page: *mut c_char,
) -> isize {
    // SAFETY: sysfs calls this function only before the attribute is removed, and the removal waits
    // for the return.
    let (data, id) = unsafe { file::<T>(attribute) };
    // SAFETY: sysfs passes a zeroed page that only this call uses.
    let page = unsafe { core::slice::from_raw_parts_mut(page.cast(), PAGE_SIZE) };
    let mut out = Text { page, used: 0 };
    match data.show(id, &mut out) {
        Ok(()) => out.used as isize,
        Err(e) => e.to_errno() as isize,
    }
}

/// # Safety
///
/// The requirements of [`show`] apply.
unsafe extern "C" fn store<T: Files>(
    _: *mut bindings::device,
    attribute: *mut bindings::device_attribute,
    text: *const c_char,
    count: usize,
) -> isize {
    // SAFETY: the reasons given in `show` apply.
    let (data, id) = unsafe { file::<T>(attribute) };
    // SAFETY: sysfs passes `count` initialised bytes that are valid during this call.
    let bytes = unsafe { core::slice::from_raw_parts(text.cast::<u8>(), count) };
    let done = core::str::from_utf8(bytes)
        .map_err(|_| EINVAL)
        .and_then(|text| data.store(id, text.trim()));
    match done {
        Ok(()) => count as isize,
        Err(e) => e.to_errno() as isize,
    }
}
