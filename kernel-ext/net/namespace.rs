// SPDX-License-Identifier: GPL-2.0-only

//! What a module keeps per network namespace, with files in `/proc/net` and `/proc/sys/net`.

use super::{
    socket::Tcp,
    sysctl::{Knob, Knobs, Table},
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

/// Writes the content of a file. Process context, may sleep; called again with more room when the
/// text was longer than expected.
pub type Show<N> = fn(&N, &mut fmt::Formatter<'_>) -> fmt::Result;

/// Data of a module per network namespace.
pub trait PerNet: Send + Sync + Sized + 'static {
    /// Files in `/proc/net` of each namespace, readable by all.
    const FILES: &'static [(&'static CStr, Show<Self>)];

    /// Numbers that the administrator of a namespace may change, and their directory below `/proc/sys`.
    const KNOBS: (&'static CStr, &'static [Knob]) = (c"", &[]);

    /// Where the registration is found. One per module.
    fn place() -> &'static Place<Self>;

    /// Data for a namespace that begins, with the values of its knobs. May sleep.
    fn new(knobs: Knobs) -> Result<Arc<Self>>;

    /// The data for the namespace of a socket, `None` when nothing is registered. May sleep.
    fn of(tcp: &Tcp) -> Option<Arc<Self>> {
        let all = Self::place().spaces.get()?;
        // SAFETY: the socket and its sock are valid by the invariants of `Tcp`.
        let net = unsafe { bindings::extoll_sock_net(tcp.as_raw()) };
        let spaces = all.spaces.lock();
        spaces.get(&net.addr()).map(|space| space.data.clone())
    }
}

/// A static variable for a registration.
pub struct Place<N: PerNet> {
    spaces: Global<Spaces<N>>,
    /// There is a registration, or one is being made.
    taken: AtomicFlag,
}

impl<N: PerNet> Place<N> {
    /// Nothing registered.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self {
            spaces: Global::new(),
            taken: AtomicFlag::new(false),
        }
    }
}

impl<N: PerNet> Place<N> {
    /// Nothing is registered any more.
    fn release(&self) {
        self.spaces.set(None);
        self.taken.xchg(false, Full);
    }
}

/// All namespaces by their address.
#[pin_data]
struct Spaces<N: PerNet> {
    #[pin]
    spaces: Mutex<RBTree<usize, Space<N>>>,
}

/// What a namespace has. The files refer to elements of `files`, which stay where they are.
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

/// Data in all namespaces, those that begin later included. The drop removes them and their files
/// and may sleep.
///
/// # Invariants
///
/// `raw` is registered, and is not moved.
#[pin_data(PinnedDrop)]
pub struct Registration<N: PerNet> {
    #[pin]
    raw: Opaque<bindings::pernet_operations>,
    types: PhantomData<N>,
}

// SAFETY: a registration may be dropped by any thread.
unsafe impl<N: PerNet> Send for Registration<N> {}
// SAFETY: `&Registration` allows nothing.
unsafe impl<N: PerNet> Sync for Registration<N> {}

impl<N: PerNet> Registration<N> {
    /// Registers. May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY`: there is a registration. `ENOMEM`, and what [`PerNet::new`] returns.
    pub fn new() -> impl PinInit<Self, Error> {
        let init = |slot: *mut bindings::pernet_operations| {
            if N::place().taken.xchg(true, Full) {
                return Err(EBUSY);
            }
            // SAFETY: `slot` is valid for writes, and stays where it is until the drop.
            unsafe { register::<N>(slot) }.inspect_err(|_| N::place().release())
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
        // SAFETY: registered by the invariants.
        unsafe { bindings::unregister_pernet_subsys(self.raw.get()) };
        N::place().release();
    }
}

/// Registers for the place that the caller has taken.
///
/// # Safety
///
/// `slot` must be valid for writes, and stay where it is while it is registered.
unsafe fn register<N: PerNet>(slot: *mut bindings::pernet_operations) -> Result {
    let spaces = Arc::pin_init(
        pin_init!(Spaces { spaces <- new_mutex!(RBTree::new(), "extoll_namespaces") }),
        GFP_KERNEL,
    )?;
    N::place().spaces.set(Some(spaces));
    let ops = bindings::pernet_operations {
        init: Some(begin::<N>),
        exit: Some(end::<N>),
        ..pin_init::zeroed()
    };
    // SAFETY: by the requirements.
    to_result(unsafe {
        slot.write(ops);
        bindings::register_pernet_subsys(slot)
    })
}

/// # Safety
///
/// To be called by the network core only, once per namespace, not at the same time as another call.
unsafe extern "C" fn begin<N: PerNet>(net: *mut bindings::net) -> c_int {
    from_result(|| {
        let all = N::place().spaces.get().ok_or(ENODEV)?;
        let (path, knobs) = N::KNOBS;
        let values = Knobs::new(knobs)?;
        // SAFETY: the namespace is valid until `end`, which drops it.
        let table = unsafe { Table::new(net, path, knobs, &values)? };
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
            // SAFETY: the namespace is valid, the name is copied; `show` gets the file, which lives
            // until `end` has removed it.
            let added = to_result(unsafe {
                bindings::extoll_net_proc_add(net, file.name.as_char_ptr(), Some(show::<N>), data)
            });
            if let Err(e) = added {
                let made = files.get(..n).unwrap_or(&[]);
                // SAFETY: made just now.
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
/// To be called by the network core only, once per namespace for which [`begin`] succeeded.
unsafe extern "C" fn end<N: PerNet>(net: *mut bindings::net) {
    let Some(all) = N::place().spaces.get() else {
        return;
    };
    // Not dropped under the lock: whoever shows a file holds none, but what it drops may be
    // anything.
    let space = all.spaces.lock().remove_node(&net.addr());
    if let Some(node) = space {
        let (_, space) = node.to_key_value();
        // SAFETY: `begin` made them; the files are where they were, since a vector that is moved
        // leaves its elements alone.
        unsafe { remove(net, &space.files) };
    }
}

/// Removes files and waits for those who read them.
///
/// # Safety
///
/// They must be in the namespace.
unsafe fn remove<N>(net: *mut bindings::net, files: &[File<N>]) {
    for file in files {
        // SAFETY: by the requirements.
        unsafe { bindings::extoll_net_proc_remove(net, file.name.as_char_ptr()) };
    }
}

/// # Safety
///
/// To be called by seq_file only, for a file that [`begin`] added and that is not removed: procfs
/// calls it only then, and lets the removal wait for its return.
unsafe extern "C" fn show<N: PerNet>(seq: *mut bindings::seq_file, _: *mut c_void) -> c_int {
    // SAFETY: by the requirements, the data are those given to `extoll_net_proc_add`.
    let file = unsafe { &*bindings::extoll_net_proc_data(seq).cast::<File<N>>() };
    // SAFETY: `seq` is valid and, during this call, used by this thread only.
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
