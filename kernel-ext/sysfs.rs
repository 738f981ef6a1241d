// SPDX-License-Identifier: GPL-2.0-only

//! Groups of sysfs files on a device, made at run time: thousands of files at a few dozen bytes each.

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

/// The C object behind a device.
pub(crate) fn raw(device: &device::Device) -> *mut bindings::device {
    // `Device` is a transparent wrapper of `Opaque<device>`, so the addresses agree.
    core::ptr::from_ref(device).cast_mut().cast()
}

/// What the files of a group do. Process context, may sleep; removing the group from inside would wait for itself.
pub trait Files: Send + Sync + 'static {
    /// Writes the content of file `id`; what does not fit a page is an error.
    ///
    /// # Errors
    ///
    /// What the reader gets.
    fn show(&self, id: u32, out: &mut Text<'_>) -> Result;

    /// Takes what was written to file `id`, without white space around it.
    ///
    /// # Errors
    ///
    /// What the writer gets.
    fn store(&self, id: u32, text: &str) -> Result;
}

/// A page of text. Its `write_str` fails when the page is full.
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

/// One file; `attribute` is what sysfs points to.
#[repr(C)]
struct File<T> {
    attribute: bindings::device_attribute,
    owner: *const T,
    id: u32,
}

/// A directory of files below a device's. The drop removes it and may sleep: it waits for callbacks that run; after it none
/// runs any more, and files that are still open give `ENODEV`.
///
/// # Invariants
///
/// The group exists in sysfs. It refers to `files` and `names`, which are not changed. `owner` of all files is `*data`.
pub struct Group<T: Files> {
    device: ARef<device::Device>,
    name: &'static CStr,
    files: KVVec<File<T>>,
    _names: KVVec<u8>,
    _data: Arc<T>,
}

// SAFETY: sysfs groups may be removed by any thread; `T` may be shared and dropped by any.
unsafe impl<T: Files> Send for Group<T> {}
// SAFETY: `&Group` allows reading sizes only.
unsafe impl<T: Files> Sync for Group<T> {}

/// A file to be made.
pub struct Entry<N: fmt::Display> {
    /// Name.
    pub name: N,
    /// What the callbacks get.
    pub id: u32,
    /// May be read and written by root.
    pub access: (bool, bool),
}

/// Collects names.
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
    /// Makes the directory `name` of `device` with files for all `entries`, for root only. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EEXIST` for a name that is taken.
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
            // SAFETY: initialises the lock class of a live attribute that nobody uses yet.
            unsafe { bindings::extoll_sysfs_attr_init(&mut file.attribute) };
            list.push(&raw mut file.attribute.attr, GFP_KERNEL)?;
        }
        list.push(core::ptr::null_mut(), GFP_KERNEL)?;
        let mut group = Self::group(name);
        group.__bindgen_anon_2.attrs = list.as_mut_ptr();
        // SAFETY: the device is bound, so its kobject is in sysfs; the group has a list that ends with a null pointer, of
        // attributes whose names are C strings. Attributes and names live until the drop has removed the group (or are not
        // referred to if this fails); the group itself and the list are used during this call only. sysfs calls `show`
        // and `store` for attributes of this list alone, i.e. with pointers into `File<T>`s.
        to_result(unsafe { bindings::sysfs_create_group(Self::kobject(device), &group) })?;
        // INVARIANT: made just now.
        Ok(Self {
            device: device.into(),
            name,
            files,
            _names: names.0,
            _data: data,
        })
    }

    /// Number of files.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// True without files.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Bytes that the group takes in this module; sysfs itself needs about 200 per file.
    pub fn bytes(&self) -> usize {
        self.files.capacity() * size_of::<File<T>>() + self._names.capacity()
    }

    /// A group without files yet.
    fn group(name: &'static CStr) -> bindings::attribute_group {
        bindings::attribute_group {
            name: name.as_char_ptr(),
            ..pin_init::zeroed()
        }
    }

    fn kobject(device: &device::Device) -> *mut bindings::kobject {
        // SAFETY: a field of a live device.
        unsafe { &raw mut (*raw(device)).kobj }
    }
}

impl<T: Files> Drop for Group<T> {
    fn drop(&mut self) {
        let group = Self::group(self.name);
        // SAFETY: by the invariant the directory exists; the device is referenced. Without a list all of the directory is
        // removed at once, after waiting for callbacks. Files, names and data are dropped after this.
        unsafe { bindings::sysfs_remove_group(Self::kobject(&self.device), &group) };
    }
}

/// # Safety
///
/// `attribute` is in a `File<T>` of a group that is not removed before the callers of the result have returned.
unsafe fn file<'a, T: Files>(attribute: *mut bindings::device_attribute) -> (&'a T, u32) {
    // SAFETY: by the requirements. Nobody changes files of a group, and its data live as long.
    unsafe {
        let file = container_of!(attribute, File<T>, attribute);
        (&*(*file).owner, (*file).id)
    }
}

/// # Safety
///
/// To be called by sysfs only, for an attribute of a [`Group`].
unsafe extern "C" fn show<T: Files>(
    _: *mut bindings::device,
    attribute: *mut bindings::device_attribute,
    page: *mut c_char,
) -> isize {
    // SAFETY: sysfs calls this only while the attribute is not removed, and the removal waits for the return.
    let (data, id) = unsafe { file::<T>(attribute) };
    // SAFETY: sysfs gives a zeroed page to this call alone.
    let page = unsafe { core::slice::from_raw_parts_mut(page.cast(), PAGE_SIZE) };
    let mut out = Text { page, used: 0 };
    match data.show(id, &mut out) {
        Ok(()) => out.used as isize,
        Err(e) => e.to_errno() as isize,
    }
}

/// # Safety
///
/// As [`show`].
unsafe extern "C" fn store<T: Files>(
    _: *mut bindings::device,
    attribute: *mut bindings::device_attribute,
    text: *const c_char,
    count: usize,
) -> isize {
    // SAFETY: see `show`.
    let (data, id) = unsafe { file::<T>(attribute) };
    // SAFETY: sysfs gives `count` initialised bytes that stay during this call.
    let bytes = unsafe { core::slice::from_raw_parts(text.cast::<u8>(), count) };
    let done = core::str::from_utf8(bytes)
        .map_err(|_| EINVAL)
        .and_then(|text| data.store(id, text.trim()));
    match done {
        Ok(()) => count as isize,
        Err(e) => e.to_errno() as isize,
    }
}
