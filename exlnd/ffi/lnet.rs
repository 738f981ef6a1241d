// SPDX-License-Identifier: GPL-2.0-only

//! Safe wrappers of the functions of LNet for drivers, which lnet.c exports to Rust.
//!
//! LNet and this module call each other in process context and may sleep. No lock may be held when
//! LNet is called, because LNet may call back ([`Msg::finalize`], [`NiRef::parse`],
//! [`NiRef::notify`]).

use core::{
    marker::PhantomData,
    mem::ManuallyDrop,
    ptr::{self, NonNull},
};
use kernel::{bindings, device, error::to_result, prelude::*};
use kernel_ext::mem::{BioVecs, FragmentList};
use wire::lnd::{Form, Header};

/// Layout of the C type `struct exlnd_send_request`.
#[repr(C)]
struct RawSendRequest {
    header: Header,
    /// Array of `struct bio_vec`.
    vecs: *const c_void,
    count: u32,
    skip: u32,
    len: u32,
    address: u32,
    form: u32,
}

// Declared in lnet.c with the same types. Structures are opaque pointers here.
extern "C" {
    fn exlnd_known_type() -> c_int;
    fn exlnd_register(kind: u32) -> c_int;
    fn exlnd_unregister();
    fn exlnd_ni_address(ni: *mut c_void, address: u32);
    fn exlnd_ni_numa(ni: *mut c_void, dev: *mut c_void) -> c_int;
    fn exlnd_ni_cpt(ni: *mut c_void, i: c_int) -> c_int;
    fn exlnd_ni_fatal(ni: *mut c_void, fatal: bool);
    fn exlnd_peer_cpt(ni: *mut c_void, address: u32) -> c_int;
    fn exlnd_notify(ni: *mut c_void, address: u32, alive: bool);
    fn exlnd_parse(
        ni: *mut c_void,
        form: u32,
        header: *const u64,
        address: u32,
        index: c_ulong,
    ) -> c_int;
    fn exlnd_msg_send_request(msg: *mut c_void, request: *mut RawSendRequest) -> c_int;
    fn exlnd_msg_read(msg: *mut c_void, at: u32, to: *mut u8, len: u32);
    fn exlnd_msg_health(msg: *mut c_void, health: u32);
    fn exlnd_msg_finalize(msg: *mut c_void, status: c_int);
    fn exlnd_msg_fault(msg: *mut c_void) -> bool;
    fn exlnd_iter_vecs(
        iter: *const bindings::iov_iter,
        vecs: *mut *const c_void,
        count: *mut u32,
        skip: *mut u32,
    ) -> c_int;
    fn exlnd_iter_count(iter: *const bindings::iov_iter) -> usize;
    fn exlnd_iter_write(iter: *mut bindings::iov_iter, from: *const u8, len: usize) -> usize;
}

/// Registration of the driver with LNet. Drop unregisters it.
pub(crate) struct Registration(());

impl Registration {
    /// Registers the driver under the number of a network type, by default that of `ex`. May sleep.
    ///
    /// # Errors
    ///
    /// `EPROTONOSUPPORT`: LNet does not know the type. `EBUSY`: another driver uses it.
    pub(crate) fn new(kind: Option<u32>) -> Result<Self> {
        let kind = match kind {
            Some(kind) => kind,
            // SAFETY: The function reads a constant table.
            None => u32::try_from(unsafe { exlnd_known_type() }).map_err(|_| EPROTONOSUPPORT)?,
        };
        // SAFETY: Process context. The functions of the operation table may be called from now on.
        to_result(unsafe { exlnd_register(kind) })?;
        Ok(Self(()))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: The driver is registered. No interface exists, because interfaces hold a
        // reference to the module.
        unsafe { exlnd_unregister() }
    }
}

/// Result of a message for LNet's health statistics, in the order of the table in lnet.c.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Health {
    /// The message was delivered.
    Ok,
    /// The message was not delivered for lack of a local resource. LNet may resend it on another
    /// path.
    LocalDropped,
    /// The message was not delivered, because the interface is stopped. LNet may resend it.
    LocalAborted,
    /// The message failed because of an error of this node.
    LocalError,
    /// The peer did not receive the message. LNet may resend it.
    RemoteDropped,
    /// The message may have been delivered. The peer reported an error.
    RemoteError,
    /// The message may have been delivered. The peer does not answer.
    RemoteTimeout,
    /// The message may have been delivered. The cause of the failure is unknown.
    NetworkTimeout,
}

/// Result of a message: health status and errno.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End(pub(crate) Health, pub(crate) i32);

impl End {
    /// Result of a message that was delivered.
    pub(crate) const OK: Self = Self(Health::Ok, 0);
}

/// Returns the LNet address of a node, which is its node ID plus 1. Parts of LNet treat 0 as no
/// address.
pub(crate) fn address(node: wire::ids::NodeId) -> u32 {
    u32::from(node.0) + 1
}

/// An interface of LNet.
pub(crate) struct NiRef(NonNull<c_void>);

// SAFETY: LNet's functions for interfaces may be called by any thread. The owner ends its threads
// before LNet frees the interface, because `lnd_shutdown` waits for `Ni::end`.
unsafe impl Send for NiRef {}
// SAFETY: LNet's functions for interfaces may be called concurrently.
unsafe impl Sync for NiRef {}

impl NiRef {
    /// Wraps an interface.
    ///
    /// # Safety
    ///
    /// `raw` must be an interface that LNet is starting on this module. It must not be used after
    /// LNet was notified that the start failed or the interface was stopped.
    pub(super) unsafe fn new(raw: NonNull<c_void>) -> Self {
        Self(raw)
    }

    /// Returns the CPTs whose threads serve the peers. Called after [`NiRef::set_device`].
    pub(crate) fn cpts(&self) -> impl Iterator<Item = i32> + use<'_> {
        // SAFETY: The interface is valid, by the requirements of `new`.
        let count = unsafe { exlnd_ni_cpt(self.0.as_ptr(), -1) };
        // SAFETY: The interface is valid, by the requirements of `new`; `i` is less than the number
        // of CPTs.
        (0..count).map(move |i| unsafe { exlnd_ni_cpt(self.0.as_ptr(), i) })
    }

    /// Returns the CPT whose threads serve a peer.
    pub(crate) fn cpt_of(&self, address: u32) -> i32 {
        // SAFETY: The interface is valid, by the requirements of `new`.
        unsafe { exlnd_peer_cpt(self.0.as_ptr(), address) }
    }

    /// Sets the address and the device of the interface. The device determines its CPTs.
    pub(crate) fn set_device(&self, device: &device::Device, address: u32) -> Result {
        // `Device` is a transparent wrapper of `struct device`.
        let device = ptr::from_ref(device).cast_mut().cast();
        // SAFETY: The interface is valid and LNet is starting it. The device is borrowed for the
        // call.
        unsafe {
            exlnd_ni_address(self.0.as_ptr(), address);
            to_result(exlnd_ni_numa(self.0.as_ptr(), device))
        }
    }

    /// Notifies LNet that a peer is alive or dead. LNet may call back.
    pub(crate) fn notify(&self, address: u32, alive: bool) {
        // SAFETY: The interface is valid. The caller is a thread of this module without locks.
        unsafe { exlnd_notify(self.0.as_ptr(), address, alive) }
    }

    /// Notifies LNet that the interface is unusable or usable.
    pub(crate) fn set_fatal(&self, fatal: bool) {
        // SAFETY: The interface is valid, by the requirements of `new`.
        unsafe { exlnd_ni_fatal(self.0.as_ptr(), fatal) }
    }

    /// Passes an incoming message to LNet. If LNet accepts the message, LNet requests the payload
    /// by [`Ni::recv`] with `number`, before or after this function returns.
    ///
    /// # Errors
    ///
    /// Returns an error if LNet does not accept the message.
    pub(crate) fn parse(&self, form: Form, header: &Header, address: u32, number: u64) -> Result {
        let form = match form {
            Form::Nid4 => 0,
            Form::Nid16 => 1,
        };
        // SAFETY: The interface is valid. A header has the size of LNet's largest; it is copied.
        to_result(unsafe {
            exlnd_parse(
                self.0.as_ptr(),
                form,
                header.as_ptr(),
                address,
                number as c_ulong,
            )
        })
    }
}

/// Header, address and payload of an outgoing message.
pub(crate) struct SendRequest<'a> {
    pub(crate) header: Header,
    pub(crate) form: Form,
    /// LNet address of the next hop.
    pub(crate) address: u32,
    pub(crate) len: u32,
    pieces: Pieces<'a>,
}

impl SendRequest<'_> {
    /// Returns the payload as a list of pages that a device reads. May sleep.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`FragmentList::share_bvecs`].
    pub(crate) fn pages(&self) -> Result<FragmentList> {
        self.pieces.share(self.len as usize, false)
    }
}

/// Segments of pages with a payload. The first `skip` bytes of the segments precede the payload.
struct Pieces<'a> {
    vecs: *const bindings::bio_vec,
    count: u32,
    skip: u32,
    _of: PhantomData<&'a ()>,
}

impl Pieces<'_> {
    /// Returns the first `len` bytes of the payload as a list of pages.
    fn share(&self, len: usize, write: bool) -> Result<FragmentList> {
        let (mut skip, mut left) = (self.skip, u32::try_from(len).map_err(|_| EINVAL)?);
        let mut vecs = KVVec::with_capacity(self.count as usize, GFP_KERNEL)?;
        for i in 0..self.count as usize {
            // SAFETY: LNet's array has `count` entries, which do not change until the message is
            // finalized. `self` borrows the message.
            let mut vec = unsafe { self.vecs.add(i).read() };
            let passed = skip.min(vec.bv_len);
            skip -= passed;
            vec.bv_offset += passed;
            vec.bv_len = (vec.bv_len - passed).min(left);
            left -= vec.bv_len;
            if vec.bv_len > 0 {
                vecs.push(vec, GFP_KERNEL)?;
            }
        }
        if left > 0 {
            return Err(EINVAL);
        }
        // SAFETY: The array is not changed. LNet's buffers are pages with permanent addresses, and
        // the list holds references to them. Devices access the pages only until the message is
        // finalized, because this module waits for the end of their access.
        let vecs = unsafe { BioVecs::from_raw(vecs.as_ptr(), vecs.len(), write) };
        FragmentList::share_bvecs(vecs)
    }
}

/// An LNet message that this module owns and must finalize once. Drop finalizes it with an error,
/// so it must not be dropped with a lock held.
pub(crate) struct Msg(NonNull<c_void>);

// SAFETY: LNet's messages may be finalized by any thread.
unsafe impl Send for Msg {}
// SAFETY: `&Msg` only allows reading data that LNet does not change.
unsafe impl Sync for Msg {}

impl Msg {
    /// Takes ownership of a message.
    ///
    /// # Safety
    ///
    /// `raw` must be a message of LNet that only this module owns from now on.
    pub(super) unsafe fn new(raw: NonNull<c_void>) -> Self {
        Self(raw)
    }

    /// Returns header, address and payload of the message.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: the payload is memory of a GPU, or the address is not that of an Extoll node.
    pub(crate) fn send_request(&self) -> Result<SendRequest<'_>> {
        let mut raw = RawSendRequest {
            header: [0; 12],
            vecs: ptr::null(),
            count: 0,
            skip: 0,
            len: 0,
            address: 0,
            form: 0,
        };
        // SAFETY: The message was not finalized.
        to_result(unsafe { exlnd_msg_send_request(self.0.as_ptr(), &mut raw) })?;
        Ok(SendRequest {
            header: raw.header,
            form: match raw.form {
                0 => Form::Nid4,
                _ => Form::Nid16,
            },
            address: raw.address,
            len: raw.len,
            pieces: Pieces {
                vecs: raw.vecs.cast(),
                count: raw.count,
                skip: raw.skip,
                _of: PhantomData,
            },
        })
    }

    /// Copies payload from offset `at`. Fills `to` with zeros if the payload is shorter.
    pub(crate) fn read(&self, at: u32, to: &mut [u8]) {
        // SAFETY: The message was not finalized; lnet.c copies within its payload.
        unsafe { exlnd_msg_read(self.0.as_ptr(), at, to.as_mut_ptr(), to.len() as u32) }
    }

    /// Returns whether a rule of `lnetctl fault` lets the message fail. Sets its health status in
    /// that case.
    pub(crate) fn is_to_fail(&mut self) -> bool {
        // SAFETY: The message was not finalized, and `self` is borrowed exclusively.
        unsafe { exlnd_msg_fault(self.0.as_ptr()) }
    }

    /// Finalizes the message. LNet may call back during this call, so the caller must hold no lock.
    pub(crate) fn finalize(self, end: End) {
        let this = ManuallyDrop::new(self);
        // SAFETY: The message is finalized once, because `self` is consumed. Process context.
        unsafe {
            exlnd_msg_health(this.0.as_ptr(), end.0 as u32);
            exlnd_msg_finalize(this.0.as_ptr(), end.1);
        }
    }

    /// Finalizes the message with the health status that LNet has recorded for it.
    pub(crate) fn finalize_as_is(self, status: i32) {
        let this = ManuallyDrop::new(self);
        // SAFETY: The message is finalized once, because `self` is consumed. Process context.
        unsafe { exlnd_msg_finalize(this.0.as_ptr(), status) }
    }

    /// Returns the message to LNet, whose send call then returns an error.
    pub(crate) fn refuse(self, health: Health) {
        let this = ManuallyDrop::new(self);
        // SAFETY: The message was not finalized.
        unsafe { exlnd_msg_health(this.0.as_ptr(), health as u32) }
    }
}

impl Drop for Msg {
    fn drop(&mut self) {
        // SAFETY: The message was not finalized, because `finalize` consumes `self`.
        unsafe {
            exlnd_msg_health(self.0.as_ptr(), Health::LocalError as u32);
            exlnd_msg_finalize(self.0.as_ptr(), -(bindings::EIO as c_int));
        }
    }
}

/// An incoming message with the destination of its payload. The iterator is a copy of LNet's
/// iterator and valid until the message is finalized.
pub(crate) struct Wanted {
    msg: Msg,
    to: bindings::iov_iter,
}

// SAFETY: `Msg` is `Send`. The iterator refers to pages, which any thread may write.
unsafe impl Send for Wanted {}
// SAFETY: `&Wanted` only allows reading.
unsafe impl Sync for Wanted {}

impl Wanted {
    /// Takes ownership of a message and its destination.
    ///
    /// # Safety
    ///
    /// `to` must be an iterator over pages that stay, and may be written, until `msg` is finalized.
    pub(super) unsafe fn new(msg: Msg, to: bindings::iov_iter) -> Self {
        Self { msg, to }
    }

    /// Returns the number of bytes that are still to be written.
    pub(crate) fn len(&self) -> usize {
        // SAFETY: The iterator is valid, because the message was not finalized, which consumes
        // `self`.
        unsafe { exlnd_iter_count(&self.to) }
    }

    /// Copies bytes to the destination and advances it.
    ///
    /// # Errors
    ///
    /// `EIO`: less than `bytes.len()` bytes of the destination remain.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result {
        // SAFETY: The iterator is valid, because the message was not finalized, which consumes
        // `self`.
        match unsafe { exlnd_iter_write(&mut self.to, bytes.as_ptr(), bytes.len()) } {
            n if n == bytes.len() => Ok(()),
            _ => Err(EIO),
        }
    }

    /// Returns the destination as a list of pages that a device writes. May sleep.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`FragmentList::share_bvecs`], or `EOPNOTSUPP` if the destination is
    /// not made of pages.
    pub(crate) fn pages(&self) -> Result<FragmentList> {
        let (mut vecs, mut count, mut skip) = (ptr::null(), 0, 0);
        // SAFETY: The iterator is valid, because the message was not finalized. The pointers refer
        // to local variables.
        to_result(unsafe { exlnd_iter_vecs(&self.to, &mut vecs, &mut count, &mut skip) })?;
        let pieces = Pieces {
            vecs: vecs.cast(),
            count,
            skip,
            _of: PhantomData,
        };
        pieces.share(self.len(), true)
    }

    /// Finalizes the message like [`Msg::finalize`].
    pub(crate) fn finalize(self, end: End) {
        self.msg.finalize(end);
    }
}
