// SPDX-License-Identifier: GPL-2.0-only

//! Data of a module per network namespace, with files in `/proc/net` and `/proc/sys/net`.

use super::{
    socket::Tcp,
    sysctl::{Sysctl, Sysctls, Table},
};
use crate::{bindings, global::Global};
use core::marker::PhantomData;
use kernel::{
    error::{from_result, to_result},
    fmt, new_mutex,
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    seq_file::SeqFile,
    seq_print,
    sync::{
        atomic::{AtomicFlag, Full},
        Arc, Mutex,
    },
    types::Opaque,
};

/// Writes the content of a file. Process context, may sleep. The function is called again with a
/// larger buffer if the text did not fit.
pub type Show<N> = fn(&N, &mut fmt::Formatter<'_>) -> fmt::Result;

/// Data of a module per network namespace.
pub trait PerNet: Send + Sync + Sized + 'static {
    /// Files in `/proc/net` of each namespace, readable by all.
    const FILES: &'static [(&'static CStr, Show<Self>)];

    /// Numbers that the administrator of a namespace may change, and their directory below
    /// `/proc/sys`.
    const SYSCTLS: (&'static CStr, &'static [Sysctl]) = (c"", &[]);

    /// Returns the static variable of the registration. Each module has one variable.
    fn slot() -> &'static Slot<Self>;

    /// Returns the data of a new namespace. `sysctls` are the values of its numbers. May sleep.
    fn new(sysctls: Sysctls) -> Result<Arc<Self>>;

    /// Returns the data for the namespace of a socket, or `None` without a registration. May sleep.
    fn of(tcp: &Tcp) -> Option<Arc<Self>> {
        let all = Self::slot().spaces.get()?;
        // SAFETY: the socket and its sock are valid by the type invariants of `Tcp`.
        let net = unsafe { bindings::extoll_sock_net(tcp.as_raw()) };
        let spaces = all.spaces.lock();
        spaces.get(&net.addr()).map(|space| space.data.clone())
    }
}

/// Static variable for a registration.
pub struct Slot<N: PerNet> {
    spaces: Global<Spaces<N>>,
    /// True while a registration exists or is being made.
    taken: AtomicFlag,
}

impl<N: PerNet> Slot<N> {
    /// Returns a variable without a registration.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self {
            spaces: Global::new(),
            taken: AtomicFlag::new(false),
        }
    }
}

impl<N: PerNet> Slot<N> {
    /// Ends the registration.
    fn release(&self) {
        self.spaces.set(None);
        self.taken.xchg(false, Full);
    }
}

/// Data of all namespaces, by the address of the namespace.
#[pin_data]
struct Spaces<N: PerNet> {
    #[pin]
    spaces: Mutex<RBTree<usize, Space<N>>>,
}

/// Data and files of a namespace. Files in procfs refer to elements of `files`, which do not move
/// in memory.
struct Space<N> {
    data: Arc<N>,
    files: KVec<File<N>>,
    _table: Option<Table>,
}

struct File<N> {
    data: Arc<N>,
    name: &'static CStr,
    show: Show<N>,
}

/// Registration of data in all namespaces, including later ones. The drop removes the data and
/// their files, and may sleep.
///
/// # Invariants
///
/// `raw` is registered and is not moved.
#[pin_data(PinnedDrop)]
pub struct Registration<N: PerNet> {
    #[pin]
    raw: Opaque<bindings::pernet_operations>,
    types: PhantomData<N>,
}

// SAFETY: any thread may drop a registration.
unsafe impl<N: PerNet> Send for Registration<N> {}
// SAFETY: `&Registration` has no methods.
unsafe impl<N: PerNet> Sync for Registration<N> {}

impl<N: PerNet> Registration<N> {
    /// Registers the data type for all namespaces. May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY`: a registration exists. `ENOMEM`, and errors of [`PerNet::new`].
    pub fn new() -> impl PinInit<Self, Error> {
        let init = |slot: *mut bindings::pernet_operations| {
            if N::slot().taken.xchg(true, Full) {
                return Err(EBUSY);
            }
            // SAFETY: `slot` is valid for writes, and is not moved before the drop.
            unsafe { register::<N>(slot) }.inspect_err(|_| N::slot().release())
        };
        try_pin_init!(Self {
            raw <- Opaque::try_ffi_init(init),
            types: PhantomData,
        })
    }
}

#[pinned_drop]
impl<N: PerNet> PinnedDrop for Registration<N> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: by the type invariant `raw` is registered.
        unsafe { bindings::unregister_pernet_subsys(self.raw.get()) };
        N::slot().release();
    }
}

/// Registers the operations. The caller has set `taken` of the slot.
///
/// # Safety
///
/// `slot` must be valid for writes, and must not move while it is registered.
unsafe fn register<N: PerNet>(slot: *mut bindings::pernet_operations) -> Result {
    let spaces = Arc::pin_init(
        pin_init!(Spaces { spaces <- new_mutex!(RBTree::new(), "extoll_namespaces") }),
        GFP_KERNEL,
    )?;
    N::slot().spaces.set(Some(spaces));
    let ops = bindings::pernet_operations {
        init: Some(begin::<N>),
        exit: Some(end::<N>),
        ..pin_init::zeroed()
    };
    // SAFETY: by the function's requirements `slot` is valid and does not move.
    to_result(unsafe {
        slot.write(ops);
        bindings::register_pernet_subsys(slot)
    })
}

/// # Safety
///
/// Only the network core may call this function, once per namespace, and not concurrently with
/// another call.
unsafe extern "C" fn begin<N: PerNet>(net: *mut bindings::net) -> c_int {
    from_result(|| {
        let all = N::slot().spaces.get().ok_or(ENODEV)?;
        let (path, sysctls) = N::SYSCTLS;
        let values = Sysctls::new(sysctls)?;
        // SAFETY: the namespace is valid until `end`, which drops the table.
        let table = unsafe { Table::new(net, path, sysctls, &values)? };
        let data = N::new(values)?;
        let mut files = KVec::with_capacity(N::FILES.len(), GFP_KERNEL)?;
        for &(name, show) in N::FILES {
            let data = data.clone();
            files.push(File { data, name, show }, GFP_KERNEL)?;
        }
        let space = Space {
            data,
            files,
            _table: table,
        };
        let node = RBTreeNode::new(net.addr(), space, GFP_KERNEL)?;
        let mut spaces = all.spaces.lock();
        spaces.insert(node);
        let files = spaces.get(&net.addr()).map_or(&[][..], |s| &s.files);
        for (n, file) in files.iter().enumerate() {
            let data = core::ptr::from_ref(file).cast_mut().cast();
            // SAFETY: the namespace is valid, and the name is copied. `show` gets a pointer to
            // `file`, which lives until `end` has removed the file from procfs.
            let added = to_result(unsafe {
                bindings::extoll_net_proc_add(net, file.name.as_char_ptr(), Some(show::<N>), data)
            });
            if let Err(e) = added {
                let made = files.get(..n).unwrap_or(&[]);
                // SAFETY: the files were added above.
                unsafe { remove(net, made) };
                spaces.remove(&net.addr());
                return Err(e);
            }
        }
        Ok(0)
    })
}

/// # Safety
///
/// Only the network core may call this function, once per namespace for which [`begin`] succeeded.
unsafe extern "C" fn end<N: PerNet>(net: *mut bindings::net) {
    let Some(all) = N::slot().spaces.get() else {
        return;
    };
    // The data are dropped without the lock, because the drop of the data may take any lock.
    let space = all.spaces.lock().remove_node(&net.addr());
    if let Some(node) = space {
        let (_, space) = node.to_key_value();
        // SAFETY: `begin` added the files. Moving a vector does not move its elements, so their
        // addresses are the same.
        unsafe { remove(net, &space.files) };
    }
}

/// Removes files and waits for their readers.
///
/// # Safety
///
/// The files must exist in the namespace.
unsafe fn remove<N>(net: *mut bindings::net, files: &[File<N>]) {
    for file in files {
        // SAFETY: by the function's requirements the file exists in the namespace.
        unsafe { bindings::extoll_net_proc_remove(net, file.name.as_char_ptr()) };
    }
}

/// # Safety
///
/// Only seq_file may call this function, for a file that [`begin`] added and that has not been
/// removed. procfs ensures this, because the removal waits for the return.
unsafe extern "C" fn show<N: PerNet>(seq: *mut bindings::seq_file, _: *mut c_void) -> c_int {
    // SAFETY: by the function's requirements the file exists; its data are the pointer that `begin`
    // passed to `extoll_net_proc_add`.
    let file = unsafe { &*bindings::extoll_net_proc_data(seq).cast::<File<N>>() };
    // SAFETY: `seq` is valid, and only this thread uses it during this call.
    let out = unsafe { SeqFile::from_raw(seq) };
    seq_print!(out, "{}", Text(file));
    0
}

/// Formats a file's content.
struct Text<'a, N>(&'a File<N>);

impl<N> fmt::Display for Text<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.0.show)(&self.0.data, f)
    }
}
