// SPDX-License-Identifier: GPL-2.0-only

//! Creation of sockets: by a separate socket family, or by protocol numbers of IPv4 and IPv6.

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

/// IP version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// IPv4: addresses are `struct sockaddr_in`.
    V4,
    /// IPv6: addresses are `struct sockaddr_in6`.
    V6,
}

/// Socket family: `socket(NUMBER, SOCK_STREAM, protocol)` with protocol 0 for IPv4 and 1 for IPv6.
/// The drop unregisters the family and may sleep. Existing sockets are not affected.
///
/// # Invariants
///
/// `raw` is registered and is not moved.
#[pin_data(PinnedDrop)]
pub struct Family<T: Operations, M: ModuleMetadata + 'static> {
    #[pin]
    raw: Opaque<bindings::net_proto_family>,
    number: u32,
    types: PhantomData<fn() -> (T, M)>,
}

// SAFETY: any thread may drop a registration.
unsafe impl<T: Operations, M: ModuleMetadata + 'static> Send for Family<T, M> {}
// SAFETY: `&Family` has no methods.
unsafe impl<T: Operations, M: ModuleMetadata + 'static> Sync for Family<T, M> {}

impl<T: Operations, M: ModuleMetadata + 'static> Family<T, M> {
    /// Registers the family. `M` is the calling module. May sleep.
    ///
    /// # Errors
    ///
    /// `EEXIST`: the number is in use. `ENOBUFS`: the number is out of range.
    pub fn new(number: u32) -> impl PinInit<Self, Error> {
        let init = move |slot: *mut bindings::net_proto_family| {
            let family = bindings::net_proto_family {
                family: i32::try_from(number).map_err(|_| ENOBUFS)?,
                create: Some(create::<T, M>),
                owner: this_module::<M>().as_ptr(),
            };
            // SAFETY: `slot` is valid for writes, and does not move before the drop.
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
        // SAFETY: by the type invariant the family is registered.
        unsafe { bindings::sock_unregister(self.number as c_int) }
    }
}

/// # Safety
///
/// Only the socket layer may call this function, for a new socket without a sock.
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
        // SAFETY: by the function's requirements the socket is new. The table is static data of a
        // module that stays loaded while it is in use.
        to_result(unsafe { bindings::extoll_sock_create(net, sock, v6, kern, ops) })?;
        Ok(0)
    })
}

/// Protocol number of `AF_INET` or `AF_INET6`: `socket(AF_INET, SOCK_STREAM, NUMBER)`. Sockets with
/// this number report TCP as their protocol (`SO_PROTOCOL`). The drop unregisters the number and
/// may sleep. Existing sockets are not affected.
///
/// # Invariants
///
/// Field `0` came from `extoll_sock_alias_register` and is registered.
pub struct Alias<T: Operations, M: ModuleMetadata + 'static>(
    NonNull<bindings::extoll_sock_alias>,
    PhantomData<fn() -> (T, M)>,
);

// SAFETY: any thread may drop a registration.
unsafe impl<T: Operations, M: ModuleMetadata + 'static> Send for Alias<T, M> {}
// SAFETY: `&Alias` has no methods.
unsafe impl<T: Operations, M: ModuleMetadata + 'static> Sync for Alias<T, M> {}

impl<T: Operations, M: ModuleMetadata + 'static> Alias<T, M> {
    /// Registers the number. `M` is the calling module. May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY`: this version already has an alias. `EPERM`: IP itself uses the number.
    /// `EAFNOSUPPORT`: the kernel has no IPv6.
    pub fn new(version: Version, number: u16) -> Result<Self> {
        let v6 = version == Version::V6;
        let ops = match version {
            Version::V4 => Table::<T, M>::V4,
            Version::V6 => Table::<T, M>::V6,
        };
        let owner = this_module::<M>().as_ptr();
        // SAFETY: owner and table belong to a module that stays loaded while they are in use.
        let raw = from_err_ptr(unsafe {
            bindings::extoll_sock_alias_register(v6, number.into(), owner, ops)
        })?;
        // INVARIANT: the number has just been registered.
        Ok(Self(NonNull::new(raw).ok_or(ENOMEM)?, PhantomData))
    }
}

impl<T: Operations, M: ModuleMetadata + 'static> Drop for Alias<T, M> {
    fn drop(&mut self) {
        // A BPF program on `update_socket_protocol` may have selected the number while the module
        // was live. The grace period lets that `socket()` call still find the number.
        rcu::synchronize_rcu();
        // SAFETY: by the type invariant the number is registered.
        unsafe { bindings::extoll_sock_alias_unregister(self.0.as_ptr()) }
    }
}
