// SPDX-License-Identifier: GPL-2.0-only

//! LNet, as far as a driver of its sees it: what lnet.c offers.
//!
//! LNet and this module call each other in process context, where sleeping is allowed; no lock may
//! be held while LNet is called, as it may call back ([`Msg::finalize`], [`NiRef::parse`],
//! [`NiRef::notify`]).

use core::{
    marker::PhantomData,
    mem::ManuallyDrop,
    ptr::{self, NonNull},
};
use kernel::{bindings, device, error::to_result, prelude::*};
use kernel_ext::mem::{BioVecs, FragmentList};
use wire::lnd::{Form, Header};

/// As `struct exlnd_letter`.
#[repr(C)]
struct RawLetter {
    header: Header,
    /// Of `struct bio_vec`.
    vecs: *const c_void,
    count: u32,
    skip: u32,
    len: u32,
    address: u32,
    form: u32,
}

// The functions of lnet.c, with the same types: pointers to structures that are
// opaque here, and numbers.
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
    fn exlnd_msg_letter(msg: *mut c_void, letter: *mut RawLetter) -> c_int;
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

/// LNet knows of the driver while this exists.
pub(crate) struct Registration(());

impl Registration {
    /// Tells LNet of the driver, under a number of a network type; under that of `ex` if none is
    /// given. May sleep.
    ///
    /// # Errors
    ///
    /// `EPROTONOSUPPORT`: LNet does not know such a type. `EBUSY`: another driver has it.
    pub(crate) fn new(kind: Option<u32>) -> Result<Self> {
        let kind = match kind {
            Some(kind) => kind,
            // SAFETY: looks into a constant table.
            None => u32::try_from(unsafe { exlnd_known_type() }).map_err(|_| EPROTONOSUPPORT)?,
        };
        // SAFETY: process context. The functions of the table may be called from now on.
        to_result(unsafe { exlnd_register(kind) })?;
        Ok(Self(()))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: it was registered. Interfaces keep the module, so there are none.
        unsafe { exlnd_unregister() }
    }
}

/// What became of a message, for the health of interfaces; the order of lnet.c's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Health {
    /// Nothing is wrong.
    Ok,
    /// Not delivered, for want of something here. It may be sent again by another way.
    LocalDropped,
    /// Not delivered, as the interface ends. It may be sent again.
    LocalAborted,
    /// An error here.
    LocalError,
    /// Certainly not delivered, because of the peer. It may be sent again.
    RemoteDropped,
    /// Perhaps delivered; an error of the peer.
    RemoteError,
    /// Perhaps delivered; the peer does not answer.
    RemoteTimeout,
    /// Perhaps delivered; nobody knows who is at fault.
    NetworkTimeout,
}

/// How a message ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End(pub(crate) Health, pub(crate) i32);

impl End {
    /// Well.
    pub(crate) const OK: Self = Self(Health::Ok, 0);
}

/// LNet address of a node. 0 stands for no address in parts of LNet.
pub(crate) fn address(node: wire::ids::NodeId) -> u32 {
    u32::from(node.0) + 1
}

/// An interface of LNet's.
pub(crate) struct NiRef(NonNull<c_void>);

// SAFETY: LNet's functions for interfaces may be called by any thread. Who has one ends its threads
// before LNet frees it: `Ni::end` is what `lnd_shutdown` waits for.
unsafe impl Send for NiRef {}
// SAFETY: as above.
unsafe impl Sync for NiRef {}

impl NiRef {
    /// # Safety
    ///
    /// `raw` is an interface that LNet has this module start, and is not used any more when LNet was
    /// told that it has not begun, or has ended.
    pub(super) unsafe fn new(raw: NonNull<c_void>) -> Self {
        Self(raw)
    }

    /// CPTs whose threads look after the peers. To be asked after [`NiRef::place`].
    pub(crate) fn cpts(&self) -> impl Iterator<Item = i32> + use<'_> {
        // SAFETY: valid, as an interface's owner promises.
        let count = unsafe { exlnd_ni_cpt(self.0.as_ptr(), -1) };
        // SAFETY: as above; the number is one of those.
        (0..count).map(move |i| unsafe { exlnd_ni_cpt(self.0.as_ptr(), i) })
    }

    /// The CPT of a peer.
    pub(crate) fn cpt_of(&self, address: u32) -> i32 {
        // SAFETY: valid, as an interface's owner promises.
        unsafe { exlnd_peer_cpt(self.0.as_ptr(), address) }
    }

    /// Says where the device is, and what address the interface has.
    pub(crate) fn place(&self, device: &device::Device, address: u32) -> Result {
        // `Device` is `struct device`, transparently.
        let device = ptr::from_ref(device).cast_mut().cast();
        // SAFETY: valid, and about to be started: LNet calls this module for that. The device is
        // borrowed.
        unsafe {
            exlnd_ni_address(self.0.as_ptr(), address);
            to_result(exlnd_ni_numa(self.0.as_ptr(), device))
        }
    }

    /// Tells LNet whether a peer is alive. LNet may call back.
    pub(crate) fn notify(&self, address: u32, alive: bool) {
        // SAFETY: valid, and a thread of this module's runs, without locks.
        unsafe { exlnd_notify(self.0.as_ptr(), address, alive) }
    }

    /// Tells LNet whether the interface is of no use.
    pub(crate) fn set_fatal(&self, fatal: bool) {
        // SAFETY: valid, as an interface's owner promises.
        unsafe { exlnd_ni_fatal(self.0.as_ptr(), fatal) }
    }

    /// Gives LNet a message. It says what it wants of that by [`Ni::recv`] with `number`, before
    /// this returns or later; not at all if it does not take the message.
    ///
    /// # Errors
    ///
    /// LNet does not take it.
    pub(crate) fn parse(&self, form: Form, header: &Header, address: u32, number: u64) -> Result {
        let form = match form {
            Form::Nid4 => 0,
            Form::Nid16 => 1,
        };
        // SAFETY: valid, as above; a header has as many bytes as LNet's largest. It is copied.
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

/// What a message says, and where its payload is.
pub(crate) struct Letter<'a> {
    pub(crate) header: Header,
    pub(crate) form: Form,
    /// LNet address of where it goes.
    pub(crate) address: u32,
    pub(crate) len: u32,
    pieces: Pieces<'a>,
}

impl Letter<'_> {
    /// Its payload as a list of pages that a device reads. May sleep.
    ///
    /// # Errors
    ///
    /// As [`FragmentList::share_bvecs`].
    pub(crate) fn pages(&self) -> Result<FragmentList> {
        self.pieces.share(self.len as usize, false)
    }
}

/// Pieces of pages, of which the first bytes don't count.
struct Pieces<'a> {
    vecs: *const bindings::bio_vec,
    count: u32,
    skip: u32,
    _of: PhantomData<&'a ()>,
}

impl Pieces<'_> {
    /// `len` bytes as a list of pages.
    fn share(&self, len: usize, write: bool) -> Result<FragmentList> {
        let (mut skip, mut left) = (self.skip, u32::try_from(len).map_err(|_| EINVAL)?);
        let mut vecs = KVVec::with_capacity(self.count as usize, GFP_KERNEL)?;
        for i in 0..self.count as usize {
            // SAFETY: LNet's array has so many, which don't change before the message is finalized;
            // whoever has `self` has the message.
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
        // SAFETY: the array is not changed. LNet's buffers are pages with permanent addresses, and
        // the list keeps references. A device may access them until the message is finalized, and
        // does not afterwards: this module waits for that.
        let vecs = unsafe { BioVecs::from_raw(vecs.as_ptr(), vecs.len(), write) };
        FragmentList::share_bvecs(vecs)
    }
}

/// An LNet message that this module owns, and has to finalize once. Its drop does so, as of one
/// that has failed: never with a lock.
pub(crate) struct Msg(NonNull<c_void>);

// SAFETY: LNet's messages may be finalized by any thread.
unsafe impl Send for Msg {}
// SAFETY: `&Msg` allows reading only, of what LNet does not change.
unsafe impl Sync for Msg {}

impl Msg {
    /// # Safety
    ///
    /// `raw` is a message of LNet's that is this module's now, and nobody else's.
    pub(super) unsafe fn new(raw: NonNull<c_void>) -> Self {
        Self(raw)
    }

    /// What it says.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: memory of a GPU, or an address that no node of Extoll has.
    pub(crate) fn letter(&self) -> Result<Letter<'_>> {
        let mut raw = RawLetter {
            header: [0; 12],
            vecs: ptr::null(),
            count: 0,
            skip: 0,
            len: 0,
            address: 0,
            form: 0,
        };
        // SAFETY: a message that was not finalized.
        to_result(unsafe { exlnd_msg_letter(self.0.as_ptr(), &mut raw) })?;
        Ok(Letter {
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

    /// Copies bytes of its payload, from `at` on; zeros if it has less.
    pub(crate) fn read(&self, at: u32, to: &mut [u8]) {
        // SAFETY: a message that was not finalized; lnet.c copies within its payload.
        unsafe { exlnd_msg_read(self.0.as_ptr(), at, to.as_mut_ptr(), to.len() as u32) }
    }

    /// Whether it is to fail, by a rule of `lnetctl fault`; its health status is set then.
    pub(crate) fn is_to_fail(&mut self) -> bool {
        // SAFETY: a message that was not finalized; nobody else looks at it.
        unsafe { exlnd_msg_fault(self.0.as_ptr()) }
    }

    /// Ends it. LNet may call back, with this on its stack. No lock may be held.
    pub(crate) fn finalize(self, end: End) {
        let this = ManuallyDrop::new(self);
        // SAFETY: it is finalized once, as `self` is consumed, in process context.
        unsafe {
            exlnd_msg_health(this.0.as_ptr(), end.0 as u32);
            exlnd_msg_finalize(this.0.as_ptr(), end.1);
        }
    }

    /// Ends it with the health status that it has.
    pub(crate) fn finalize_as_is(self, status: i32) {
        let this = ManuallyDrop::new(self);
        // SAFETY: as in `finalize`.
        unsafe { exlnd_msg_finalize(this.0.as_ptr(), status) }
    }

    /// Leaves it to LNet, which has just given it to this module and is told that it was not taken.
    pub(crate) fn refuse(self, health: Health) {
        let this = ManuallyDrop::new(self);
        // SAFETY: a message that was not finalized.
        unsafe { exlnd_msg_health(this.0.as_ptr(), health as u32) }
    }
}

impl Drop for Msg {
    fn drop(&mut self) {
        // SAFETY: it was not finalized, or `finalize` would have consumed it.
        unsafe {
            exlnd_msg_health(self.0.as_ptr(), Health::LocalError as u32);
            exlnd_msg_finalize(self.0.as_ptr(), -(bindings::EIO as c_int));
        }
    }
}

/// A message that has come in, and where its payload goes: a copy of LNet's iterator, which is good
/// until the message is finalized.
pub(crate) struct Wanted {
    msg: Msg,
    to: bindings::iov_iter,
}

// SAFETY: `Msg` is; the iterator stands for pieces of pages, which may be written by any thread.
unsafe impl Send for Wanted {}
// SAFETY: `&Wanted` allows reading only.
unsafe impl Sync for Wanted {}

impl Wanted {
    /// # Safety
    ///
    /// `to` is an iterator over pages that stay until `msg` is finalized, and may be written until
    /// then.
    pub(super) unsafe fn new(msg: Msg, to: bindings::iov_iter) -> Self {
        Self { msg, to }
    }

    /// Bytes that are wanted, and were not written.
    pub(crate) fn len(&self) -> usize {
        // SAFETY: a valid iterator: the message was not finalized, as that consumes `self`.
        unsafe { exlnd_iter_count(&self.to) }
    }

    /// Copies bytes to where they belong and goes on behind them.
    ///
    /// # Errors
    ///
    /// `EIO`: fewer are wanted.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result {
        // SAFETY: as above, over pages that stay.
        match unsafe { exlnd_iter_write(&mut self.to, bytes.as_ptr(), bytes.len()) } {
            n if n == bytes.len() => Ok(()),
            _ => Err(EIO),
        }
    }

    /// Its pages as a list that a device writes. May sleep.
    ///
    /// # Errors
    ///
    /// As [`FragmentList::share_bvecs`]; `EOPNOTSUPP`: not made of pages.
    pub(crate) fn pages(&self) -> Result<FragmentList> {
        let (mut vecs, mut count, mut skip) = (ptr::null(), 0, 0);
        // SAFETY: as above, and places for what it tells.
        to_result(unsafe { exlnd_iter_vecs(&self.to, &mut vecs, &mut count, &mut skip) })?;
        let pieces = Pieces {
            vecs: vecs.cast(),
            count,
            skip,
            _of: PhantomData,
        };
        pieces.share(self.len(), true)
    }

    /// As [`Msg::finalize`].
    pub(crate) fn finalize(self, end: End) {
        self.msg.finalize(end);
    }
}
