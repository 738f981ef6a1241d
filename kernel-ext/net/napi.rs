// SPDX-License-Identifier: GPL-2.0-only

//! NAPI: polling a device with a budget.

use super::{
    dev::{NetDev, Rtnl},
    ops::Operations,
    skb::{Checksum, RxSkb, Unmapped},
    ETH_HLEN,
};
use crate::bindings;
use core::cell::UnsafeCell;
use kernel::{
    container_of,
    prelude::*,
    sync::Arc,
    time::Delta,
    types::{Opaque, ScopeGuard},
};

/// What a [`NapiPoll`] implementation found.
pub enum Polled {
    /// There may be more to do: poll again.
    More,
    /// Nothing is left, this much of the budget was used (less than the budget), and the device will interrupt when more comes: the poll
    /// function has re-armed it. An interrupt that comes before the instance is idle is not lost.
    Done(usize),
    /// As `Done`, but the device was not re-armed, because [`PollCx::defers`] said so for this much of the budget: a timer has the instance
    /// polled again.
    Deferred(usize),
}

/// The poll function of one NAPI instance and what it works on.
pub trait NapiPoll: Send + Sync + 'static {
    /// What only the poll function uses, without a lock; see [`Napi::with_state`].
    type State: Send + 'static;

    /// Does up to `cx.budget()` units of receive work, at least 1. Softirq (or a NAPI thread with bottom halves off); one CPU at a time.
    fn poll(&self, state: &mut Self::State, cx: &mut PollCx<'_>) -> Polled;

    /// Has transmission go on, for netpoll, perhaps with interrupts off. May come while [`NapiPoll::poll`] runs: netpoll notices a run
    /// only if it began after netpoll itself was set up.
    fn netpoll(&self) {}
}

/// A NAPI instance of a net device.
///
/// It belongs to the device from its making to its drop, and is polled only between a successful `open` and `stop`.
///
/// # Invariants
///
/// `raw` was set up by `extoll_napi_add()` for `ndev` and is in the device's list until it is dropped.
/// `state` is referred to only by the running poll function, if it has a budget, or, while the instance is disabled, under RTNL.
#[pin_data(PinnedDrop)]
pub struct Napi<P: NapiPoll> {
    #[pin]
    raw: Opaque<bindings::extoll_napi>,
    ctx: P,
    state: UnsafeCell<P::State>,
    ndev: Arc<NetDev>,
}

// SAFETY: The C object may be used from any CPU through the functions below; `P` and `Arc<NetDev>` are `Send`.
unsafe impl<P: NapiPoll> Send for Napi<P> {}
// SAFETY: As above, all functions below may run concurrently; `P` and `Arc<NetDev>` are `Sync`, and `state`, which is `Send`, is used by one
// context at a time by the type invariant.
unsafe impl<P: NapiPoll> Sync for Napi<P> {}

impl<P: NapiPoll> Napi<P> {
    /// Makes an instance for `ndev`. It must not be made between `open` and `stop` if it is to be polled in this period. May sleep.
    pub fn new(ndev: Arc<NetDev>, ctx: P, state: P::State) -> impl PinInit<Self, Error> {
        let dev = ndev.as_raw();
        try_pin_init!(Self {
            ctx,
            state: UnsafeCell::new(state),
            // Last, so that nothing can fail after the instance was added to the device. `dev` is kept valid by `ndev` (above in
            // the closure, then in the field).
            raw <- Opaque::ffi_init(move |p: *mut bindings::extoll_napi| {
                // SAFETY: `p` is valid for writes and pinned; the device is valid as said above.
                unsafe { bindings::extoll_napi_add(dev, p, Some(poll::<P>)) }
            }),
            ndev,
        }? Error)
    }

    /// Has the instance polled soon, unless it is disabled or scheduled already (then it is polled once more). Any context, hard interrupts
    /// included.
    #[inline]
    pub fn schedule(&self) {
        // SAFETY: `raw` is initialised by the invariant; the call is safe in every state of the instance.
        unsafe { bindings::extoll_napi_schedule(self.raw.get()) };
    }

    /// Has the instance polled after `delay`; replaces an earlier delay that has not ended. Any context.
    #[inline]
    pub fn schedule_in(&self, delay: Delta) {
        // SAFETY: `raw` is initialised by the invariant; the timer is cancelled when the instance is dropped.
        unsafe { bindings::extoll_napi_schedule_in(self.raw.get(), delay.as_nanos().max(0) as u64) }
    }

    /// What it works on.
    pub fn context(&self) -> &P {
        &self.ctx
    }

    /// Calls `f` with the state of the poll function while that can't run: from `open`, `stop`, or anywhere under RTNL while the
    /// interface is down. May sleep, and so may `f`.
    ///
    /// # Errors
    ///
    /// `EBUSY` when the instance is enabled, or when `f` itself calls this.
    pub fn with_state<T: Operations, R>(
        &self,
        _rtnl: &Rtnl<'_, T>,
        f: impl FnOnce(&mut P::State) -> R,
    ) -> Result<R> {
        // SAFETY: `raw` is initialised by the invariant.
        if !unsafe { bindings::extoll_napi_claim(self.raw.get()) } {
            return Err(EBUSY);
        }
        let claim = ScopeGuard::new(|| {
            // SAFETY: Claimed above.
            unsafe { bindings::extoll_napi_unclaim(self.raw.get()) }
        });
        // SAFETY: The instance is disabled and claimed. RTNL, which is held, must be held to enable it, so it stays disabled, and the
        // claim excludes a second reference from here.
        let result = f(unsafe { &mut *self.state.get() });
        drop(claim);
        Ok(result)
    }
}

#[pinned_drop]
impl<P: NapiPoll> PinnedDrop for Napi<P> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: `raw` is initialised by the invariant. The call first disables the instance, that is, waits for its poll function.
        unsafe { bindings::extoll_napi_del(self.raw.get()) }
    }
}

/// One run of a poll function.
pub struct PollCx<'a> {
    raw: *mut bindings::extoll_napi,
    ndev: &'a NetDev,
    budget: usize,
}

impl PollCx<'_> {
    /// Receive work that may be done in this run.
    #[inline]
    pub fn budget(&self) -> usize {
        self.budget
    }

    /// Whether the administrator wants polls by a timer rather than an interrupt after a run that used this much of the budget and
    /// left nothing (`napi_defer_hard_irqs`, `gro_flush_timeout`).
    #[inline]
    pub fn defers(&self, work: usize) -> bool {
        // SAFETY: `raw` is the instance that is being polled.
        unsafe { bindings::extoll_napi_defers(self.raw, work.min(self.budget) as c_int) }
    }

    /// Has this instance polled again after `delay`; replaces an earlier delay that has not ended.
    #[inline]
    pub fn again_in(&mut self, delay: Delta) {
        // SAFETY: `raw` is the instance that is being polled.
        unsafe { bindings::extoll_napi_schedule_in(self.raw, delay.as_nanos().max(0) as u64) }
    }

    /// Whether a delay of [`PollCx::again_in`] or [`Napi::schedule_in`] has not ended.
    #[inline]
    pub fn timer_runs(&self) -> bool {
        // SAFETY: `raw` is the instance that is being polled; the call only reads.
        unsafe { bindings::extoll_napi_timer_runs(self.raw) }
    }

    /// Allocates an empty receive buffer with room for `len` bytes, or `None` without memory.
    #[inline]
    pub fn alloc(&mut self, len: u32) -> Option<RxSkb> {
        // SAFETY: `raw` is the instance that is being polled, on this CPU, with bottom halves off. The result is a fresh frame.
        unsafe { RxSkb::from_raw(bindings::extoll_napi_alloc_skb(self.raw, len)) }
    }

    /// Hands a received Ethernet frame to the stack (with GRO) and counts it. Gives a frame that is too short for its header back.
    #[inline]
    pub fn receive(&mut self, skb: RxSkb, checksum: Checksum) -> Result<(), RxSkb> {
        let len = skb.len();
        if (len as usize) < ETH_HLEN {
            return Err(skb);
        }
        self.ndev.count_rx(len);
        // SAFETY: `raw` is being polled on this CPU; the frame is owned, linear and has at least a header.
        unsafe {
            bindings::extoll_napi_receive(self.raw, skb.into_raw(), checksum == Checksum::Verified)
        };
        Ok(())
    }

    /// Frees a frame that was sent, in bulk with others.
    #[inline]
    pub fn consume(&mut self, skb: Unmapped) {
        // SAFETY: The frame is owned; the budget is that of the running poll, as the function wants to know.
        unsafe { bindings::napi_consume_skb(skb.into_raw(), self.budget as c_int) }
    }
}

/// # Safety
///
/// To be called by the net core only, for a NAPI instance made by [`Napi::<P>::new`].
unsafe extern "C" fn poll<P: NapiPoll>(napi: *mut bindings::napi_struct, budget: c_int) -> c_int {
    // SAFETY: By the requirements `napi` is the field of an `extoll_napi`, which is the field of a `Napi<P>`. It is alive: it is disabled
    // (which waits for this function) before it may be dropped.
    let (raw, this) = unsafe {
        let raw = container_of!(napi, bindings::extoll_napi, napi);
        let this = container_of!(Opaque::cast_from(raw), Napi<P>, raw);
        (raw, &*this)
    };
    let units = match usize::try_from(budget) {
        Ok(n) if n > 0 => n,
        // Without the state, which another CPU may be using.
        _ => {
            this.ctx.netpoll();
            return 0;
        }
    };
    let mut cx = PollCx {
        raw,
        ndev: &this.ndev,
        budget: units,
    };
    // SAFETY: By the type invariant: NAPI runs a poll function with a budget on one CPU at a time, and not while disabled.
    let polled = this.ctx.poll(unsafe { &mut *this.state.get() }, &mut cx);
    match polled {
        Polled::Done(work) if work < cx.budget => {
            // SAFETY: `napi` is being polled and less than the budget was used.
            unsafe { bindings::napi_complete_done(napi, work as c_int) };
            work as c_int
        }
        Polled::Deferred(work) if work < cx.budget => {
            // SAFETY: As above. The second call is safe in every state of the instance.
            unsafe {
                // No timer after all, when the settings have changed meanwhile: the next run decides anew.
                if bindings::napi_complete_done(napi, work as c_int) {
                    bindings::extoll_napi_schedule(raw);
                }
            }
            work as c_int
        }
        Polled::Done(_) | Polled::Deferred(_) | Polled::More => budget,
    }
}
