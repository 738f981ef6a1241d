// SPDX-License-Identifier: GPL-2.0-only

//! How sockets are made: families of their own, and protocol numbers of IPv4 and IPv6.

use super::{ops::Operations, table::Table};
use crate::bindings;
use core::{marker::PhantomData, ptr::NonNull};
use kernel::{
    error::{from_err_ptr, from_result, to_result},
    module::this_module,
    prelude::*,
    sync::rcu,
    types::Opaque,
    ModuleMetadata,
};

/// Version of IP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// IPv4: addresses are `struct sockaddr_in`.
    V4,
    /// IPv6: addresses are `struct sockaddr_in6`.
    V6,
}

/// A socket family: `socket(NUMBER, SOCK_STREAM, protocol)` with protocol 0 for IPv4 and 1 for
/// IPv6. The drop unregisters it and may sleep; sockets that exist stay as they are.
///
/// # Invariants
///
/// `raw` is registered, and is not moved.
#[pin_data(PinnedDrop)]
pub struct Family<T: Operations, M: ModuleMetadata + 'static> {
    #[pin]
    raw: Opaque<bindings::net_proto_family>,
    number: u32,
    types: PhantomData<fn() -> (T, M)>,
}

// SAFETY: a registration may be dropped by any thread.
unsafe impl<T: Operations, M: ModuleMetadata + 'static> Send for Family<T, M> {}
// SAFETY: `&Family` allows nothing.
unsafe impl<T: Operations, M: ModuleMetadata + 'static> Sync for Family<T, M> {}

impl<T: Operations, M: ModuleMetadata + 'static> Family<T, M> {
    /// Registers it. `M` is the calling module. May sleep.
    ///
    /// # Errors
    ///
    /// `EEXIST`: the number is taken. `ENOBUFS`: there is no such number.
    pub fn new(number: u32) -> impl PinInit<Self, Error> {
        let init = move |slot: *mut bindings::net_proto_family| {
            let family = bindings::net_proto_family {
                family: i32::try_from(number).map_err(|_| ENOBUFS)?,
                create: Some(create::<T, M>),
                owner: this_module::<M>().as_ptr(),
            };
            // SAFETY: `slot` is valid for writes, and stays where it is until the drop.
            to_result(unsafe {
                slot.write(family);
                bindings::sock_register(slot)
            })
        };
        try_pin_init!(Self {
            raw <- Opaque::try_ffi_init(init),
            number,
            types: PhantomData,
        })
    }
}

#[pinned_drop]
impl<T: Operations, M: ModuleMetadata + 'static> PinnedDrop for Family<T, M> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: registered by the invariants.
        unsafe { bindings::sock_unregister(self.number as c_int) }
    }
}

/// # Safety
///
/// To be called by the socket layer only, for a new socket without a sock.
unsafe extern "C" fn create<T: Operations, M: ModuleMetadata + 'static>(
    net: *mut bindings::net,
    sock: *mut bindings::socket,
    protocol: c_int,
    kern: c_int,
) -> c_int {
    from_result(|| {
        let (v6, ops) = match protocol {
            0 => (false, Table::<T, M>::V4),
            1 => (true, Table::<T, M>::V6),
            _ => return Err(EPROTONOSUPPORT),
        };
        // SAFETY: by the requirements; the table is static data of a module that stays while it is
        // in use.
        to_result(unsafe { bindings::extoll_sock_create(net, sock, v6, kern, ops) })?;
        Ok(0)
    })
}

/// A protocol number of `AF_INET` or `AF_INET6`: `socket(AF_INET, SOCK_STREAM, NUMBER)`. Its
/// sockets call themselves sockets of TCP (`SO_PROTOCOL`). The drop unregisters it and may sleep;
/// sockets that exist stay as they are.
///
/// # Invariants
///
/// `0` was made by `extoll_sock_alias_register` and is still registered.
pub struct Alias<T: Operations, M: ModuleMetadata + 'static>(
    NonNull<bindings::extoll_sock_alias>,
    PhantomData<fn() -> (T, M)>,
);

// SAFETY: a registration may be dropped by any thread.
unsafe impl<T: Operations, M: ModuleMetadata + 'static> Send for Alias<T, M> {}
// SAFETY: `&Alias` allows nothing.
unsafe impl<T: Operations, M: ModuleMetadata + 'static> Sync for Alias<T, M> {}

impl<T: Operations, M: ModuleMetadata + 'static> Alias<T, M> {
    /// Registers it. `M` is the calling module. May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY`: there is one for this version. `EPERM`: the number is one of IP's own.
    /// `EAFNOSUPPORT`: the kernel has no IPv6.
    pub fn new(version: Version, number: u16) -> Result<Self> {
        let v6 = version == Version::V6;
        let ops = match version {
            Version::V4 => Table::<T, M>::V4,
            Version::V6 => Table::<T, M>::V6,
        };
        let owner = this_module::<M>().as_ptr();
        // SAFETY: owner and table are those of a module that stays while they are in use.
        let raw = from_err_ptr(unsafe {
            bindings::extoll_sock_alias_register(v6, number.into(), owner, ops)
        })?;
        // INVARIANT: registered just now.
        Ok(Self(NonNull::new(raw).ok_or(ENOMEM)?, PhantomData))
    }
}

impl<T: Operations, M: ModuleMetadata + 'static> Drop for Alias<T, M> {
    fn drop(&mut self) {
        // A program on `update_socket_protocol` may have asked for the number when it saw the module
        // live, which it is not any more: its `socket()` finds it meanwhile.
        rcu::synchronize_rcu();
        // SAFETY: registered by the invariants.
        unsafe { bindings::extoll_sock_alias_unregister(self.0.as_ptr()) }
    }
}
