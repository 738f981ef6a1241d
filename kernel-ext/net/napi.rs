// SPDX-License-Identifier: GPL-2.0-only

//! NAPI: polling of a device with a budget.

use super::{
    dev::{NetDev, Rtnl},
    ops::Operations,
    skb::{Checksum, RxSkb, Unmapped},
    BhDisabled, ETH_HLEN,
};
use crate::bindings;
use core::cell::UnsafeCell;
use kernel::{
    container_of,
    prelude::*,
    static_lock_class,
    sync::{Arc, SpinLock},
    time::Delta,
    types::{Opaque, ScopeGuard},
};

/// Name of the lock class. The name is one static object, because lockdep compares names by address
/// and generic code may contain several copies of a literal.
static LOCK_NAME: &CStr = c"extoll_napi_turn";

/// Poll function of a NAPI instance, with its data.
pub trait NapiPoll: Send + Sync + 'static {
    /// Data that only the poll function uses, without a lock; see [`Napi::with_state`].
    type State: Send + 'static;

    /// Processes received messages, up to `cx.budget()` units (at least 1), and returns the number
    /// of units. If the function returns the whole budget, more work may be pending, and NAPI calls
    /// the function again. Runs in a softirq, in the NAPI thread or in a busy-polling process, with
    /// bottom halves disabled, on one CPU at a time.
    fn poll(&self, state: &mut Self::State, cx: &mut PollCx<'_>) -> usize;

    /// Enables the device's interrupt for the next message. Called after a run that left some of
    /// its budget, unless polling continues without an interrupt: by a busy-polling process, or by
    /// a timer that the administrator configured (`napi_defer_hard_irqs`, `gro_flush_timeout`).
    /// Returns true if a message may have arrived before the interrupt was enabled; then the poll
    /// function runs again. Called in the context of [`NapiPoll::poll`], which does not run at the
    /// same time.
    fn arm(&self, state: &mut Self::State) -> bool;

    /// Processes transmit completions for netpoll, possibly with interrupts disabled. `state` is
    /// `None` if the poll function is using it. Received frames cannot be delivered. Returns true
    /// if the poll function has work to do.
    fn netpoll(&self, state: Option<&mut Self::State>) -> bool {
        let _ = state;
        false
    }
}

/// NAPI instance of a net device.
///
/// The instance belongs to the device until it is dropped. NAPI polls the instance only between a
/// successful `open` and the next `stop`.
///
/// # Invariants
///
/// `extoll_napi_add()` set up `raw` for `ndev`; `raw` is in the device's list until it is dropped.
/// A reference to `state` exists only in the function [`poll`] while it holds `poll_lock`, or under
/// RTNL while the instance is disabled and `poll_lock` is free.
#[pin_data(PinnedDrop)]
pub struct Napi<P: NapiPoll> {
    #[pin]
    raw: Opaque<bindings::extoll_napi>,
    ctx: P,
    state: UnsafeCell<P::State>,
    /// Lock that a running poll holds until the device's interrupt is enabled, because another CPU
    /// may start to poll before that.
    #[pin]
    poll_lock: SpinLock<()>,
    ndev: Arc<NetDev>,
}

// SAFETY: any CPU may use the C object through the functions below; `P` and `Arc<NetDev>` are
// `Send`.
unsafe impl<P: NapiPoll> Send for Napi<P> {}
// SAFETY: all functions below may run concurrently. `P` and `Arc<NetDev>` are `Sync`. `state` is
// `Send`, and by the type invariant one context at a time uses it.
unsafe impl<P: NapiPoll> Sync for Napi<P> {}

impl<P: NapiPoll> Napi<P> {
    /// Makes the NAPI instance of `ndev`, which can have one at a time. An instance that is made
    /// between `open` and `stop` is not polled until the next `open`. May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY`: the device already has an instance.
    pub fn new(ndev: Arc<NetDev>, ctx: P, state: P::State) -> impl PinInit<Self, Error> {
        let dev = ndev.as_raw();
        try_pin_init!(Self {
            _: { ndev.claim_napi()? },
            ctx,
            state: UnsafeCell::new(state),
            poll_lock <- SpinLock::new((), LOCK_NAME, static_lock_class!()),
            // `raw` is the last field, so that no error is possible after the instance was added to
            // the device. `ndev` keeps `dev` valid, first in the closure, then in the field.
            raw <- Opaque::ffi_init(move |p: *mut bindings::extoll_napi| {
                // SAFETY: `p` is valid for writes and pinned; `ndev` keeps the device valid.
                unsafe { bindings::extoll_napi_add(dev, p, Some(poll::<P>)) }
            }),
            ndev,
        }? Error)
    }

    /// Schedules the instance. If the instance is already scheduled or running, it is polled once
    /// more. The call has no effect while the instance is disabled. Any context, hard interrupts
    /// included.
    #[inline]
    pub fn schedule(&self) {
        // SAFETY: `raw` is initialised by the type invariant; the call is allowed in every state of
        // the instance.
        unsafe { bindings::extoll_napi_schedule(self.raw.get()) };
    }

    /// Schedules the instance after `delay`; replaces an earlier delay that has not expired. Any
    /// context.
    #[inline]
    pub fn schedule_in(&self, delay: Delta) {
        // SAFETY: `raw` is initialised by the type invariant; dropping the instance cancels the
        // timer.
        unsafe { bindings::extoll_napi_schedule_in(self.raw.get(), delay.as_nanos().max(0) as u64) }
    }

    /// Returns the poll function's shared data.
    pub fn context(&self) -> &P {
        &self.ctx
    }

    /// Calls `f` with the state of the poll function while the poll function cannot run: from
    /// `open`, `stop`, or anywhere under RTNL while the interface is down. May sleep, and so may
    /// `f`.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the instance is enabled, or if `f` itself calls this function.
    pub fn with_state<T: Operations, R>(
        &self,
        _rtnl: &Rtnl<'_, T>,
        f: impl FnOnce(&mut P::State) -> R,
    ) -> Result<R> {
        // SAFETY: `raw` is initialised by the type invariant.
        if !unsafe { bindings::extoll_napi_claim(self.raw.get()) } {
            return Err(EBUSY);
        }
        let claim = ScopeGuard::new(|| {
            // SAFETY: the instance was claimed above.
            unsafe { bindings::extoll_napi_unclaim(self.raw.get()) }
        });
        {
            // The core considers the last run ended when it completes NAPI, but the run may still
            // be in `arm`. The run holds `poll_lock` until `arm` returns.
            let _no_softirq = BhDisabled::new();
            drop(self.poll_lock.lock());
        }
        // SAFETY: the instance is disabled and claimed, and the last run has ended. The instance
        // stays disabled, because enabling needs RTNL, which the caller holds. The claim excludes a
        // second reference from this function.
        let result = f(unsafe { &mut *self.state.get() });
        drop(claim);
        Ok(result)
    }
}

#[pinned_drop]
impl<P: NapiPoll> PinnedDrop for Napi<P> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: `raw` is initialised by the type invariant. The call disables the instance first.
        // Then the call waits for a grace period, within which the last run ends.
        unsafe { bindings::extoll_napi_del(self.raw.get()) }
        self.ndev.release_napi();
    }
}

/// Context of one run of a poll function.
pub struct PollCx<'a> {
    raw: *mut bindings::extoll_napi,
    ndev: &'a NetDev,
    budget: usize,
}

impl PollCx<'_> {
    /// Returns the maximum number of units of receive work in this run.
    #[inline]
    pub fn budget(&self) -> usize {
        self.budget
    }

    /// Schedules this instance again after `delay`; replaces an earlier delay that has not expired.
    #[inline]
    pub fn again_in(&mut self, delay: Delta) {
        // SAFETY: `raw` is the instance that is being polled.
        unsafe { bindings::extoll_napi_schedule_in(self.raw, delay.as_nanos().max(0) as u64) }
    }

    /// Returns true if a delay of [`PollCx::again_in`] or [`Napi::schedule_in`] has not expired.
    #[inline]
    pub fn timer_runs(&self) -> bool {
        // SAFETY: `raw` is the instance that is being polled; the call only reads.
        unsafe { bindings::extoll_napi_timer_runs(self.raw) }
    }

    /// Allocates an empty receive buffer for `len` bytes. Returns `None` without memory.
    #[inline]
    pub fn alloc(&mut self, len: u32) -> Option<RxSkb> {
        // SAFETY: `raw` is the instance that is being polled, on this CPU, with bottom halves
        // disabled. The result is a new frame or null.
        unsafe { RxSkb::from_raw(bindings::extoll_napi_alloc_skb(self.raw, len)) }
    }

    /// Passes a received Ethernet frame to the stack (with GRO) and counts it. Returns the frame as
    /// an error if it is shorter than an Ethernet header.
    #[inline]
    pub fn receive(&mut self, skb: RxSkb, checksum: Checksum) -> Result<(), RxSkb> {
        let len = skb.len();
        if (len as usize) < ETH_HLEN {
            return Err(skb);
        }
        self.ndev.count_rx(len);
        let (csum, start, offset) = match checksum {
            Checksum::Unknown => (bindings::extoll_csum_EXTOLL_CSUM_UNKNOWN, 0, 0),
            Checksum::Verified => (bindings::extoll_csum_EXTOLL_CSUM_VERIFIED, 0, 0),
            Checksum::Unfinished { start, offset } => {
                (bindings::extoll_csum_EXTOLL_CSUM_UNFINISHED, start, offset)
            }
        };
        // SAFETY: `raw` is being polled on this CPU. The frame is owned, linear and contains a
        // header. The call checks `start` and `offset`.
        unsafe { bindings::extoll_napi_receive(self.raw, skb.into_raw(), csum, start, offset) };
        Ok(())
    }

    /// Frees a frame that was sent, in bulk with other frames.
    #[inline]
    pub fn consume(&mut self, skb: Unmapped) {
        // SAFETY: the frame is owned; the function needs the budget of the running poll.
        unsafe { bindings::napi_consume_skb(skb.into_raw(), self.budget as c_int) }
    }
}

/// # Safety
///
/// Only the net core may call this function, for a NAPI instance made by [`Napi::<P>::new`].
unsafe extern "C" fn poll<P: NapiPoll>(napi: *mut bindings::napi_struct, budget: c_int) -> c_int {
    // SAFETY: by the function's requirements `napi` is the field of an `extoll_napi`, which is the
    // field of a `Napi<P>`. The object is alive, because its drop disables the instance and waits
    // for this function.
    let (raw, this) = unsafe {
        let raw = container_of!(napi, bindings::extoll_napi, napi);
        let this = container_of!(Opaque::cast_from(raw), Napi<P>, raw);
        (raw, &*this)
    };
    let units = match usize::try_from(budget) {
        Ok(n) if n > 0 => n,
        // Netpoll may have interrupted a run on this CPU, so it must not wait for `poll_lock`.
        _ => {
            let guard = this.poll_lock.try_lock();
            // SAFETY: by the type invariant, because `poll_lock` is held. The instance is not
            // disabled, because netpoll checks that, and disabling waits for netpoll.
            let state = guard.as_ref().map(|_| unsafe { &mut *this.state.get() });
            if this.ctx.netpoll(state) {
                // SAFETY: `raw` is initialised; the call is allowed in every state of the instance.
                unsafe { bindings::extoll_napi_schedule(raw) };
            }
            return 0;
        }
    };
    let mut cx = PollCx {
        raw,
        ndev: &this.ndev,
        budget: units,
    };
    // Waits only for a run that is in `arm`, or for netpoll.
    let guard = this.poll_lock.lock();
    // SAFETY: by the type invariant, because `poll_lock` is held. The instance is not disabled,
    // because NAPI has scheduled this run.
    let state = unsafe { &mut *this.state.get() };
    let work = this.ctx.poll(state, &mut cx).min(units);
    // SAFETY: `napi` is being polled, and less than the budget was used. If the call returns true,
    // the next poll needs an interrupt.
    if work < units && unsafe { bindings::napi_complete_done(napi, work as c_int) } {
        // `poll_lock` is still held. A concurrent poll, and `with_state` after disabling, wait for
        // the end of `arm`.
        if this.ctx.arm(state) {
            // SAFETY: `raw` is initialised; the call is allowed in every state of the instance.
            unsafe { bindings::extoll_napi_schedule(raw) };
        }
    }
    drop(guard);
    work as c_int
}
