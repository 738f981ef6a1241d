// SPDX-License-Identifier: GPL-2.0-only

//! NAPI: polling a device with a budget.

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

/// The lock checker compares names by address, and literals in generic code may be there more than once.
static LOCK_NAME: &CStr = c"extoll_napi_turn";

/// The poll function of one NAPI instance and what it works on.
pub trait NapiPoll: Send + Sync + 'static {
    /// What only the poll function uses, without a lock; see [`Napi::with_state`].
    type State: Send + 'static;

    /// Does up to `cx.budget()` units of receive work, at least 1, and returns how many it did. All
    /// of the budget means that there may be more, and it runs again. Softirq, or a NAPI thread or
    /// a process that polls, with bottom halves off; one CPU at a time.
    fn poll(&self, state: &mut Self::State, cx: &mut PollCx<'_>) -> usize;

    /// Has the device interrupt when something comes. Called after a run that left some of its
    /// budget, unless somebody polls on anyway: a process, or a timer as the administrator wants it
    /// (`napi_defer_hard_irqs`, `gro_flush_timeout`). Returns whether something has come meanwhile,
    /// whose interrupt may not come: then the poll function runs again. Context as of
    /// [`NapiPoll::poll`], which does not run meanwhile.
    fn arm(&self, state: &mut Self::State) -> bool;

    /// Has transmission go on, for netpoll, perhaps with interrupts off: takes completions, without
    /// `state` if the poll function is just using it. Received frames can't be delivered. Returns
    /// whether the poll function has something to do.
    fn netpoll(&self, state: Option<&mut Self::State>) -> bool {
        let _ = state;
        false
    }
}

/// The NAPI instance of a net device.
///
/// It belongs to the device from its making to its drop, and is polled only between a successful
/// `open` and `stop`.
///
/// # Invariants
///
/// `raw` was set up by `extoll_napi_add()` for `ndev` and is in the device's list until it is
/// dropped. `state` is referred to only by the holder of `turn`, in the C function [`poll`], or,
/// while the instance is disabled and nobody holds `turn`, under RTNL.
#[pin_data(PinnedDrop)]
pub struct Napi<P: NapiPoll> {
    #[pin]
    raw: Opaque<bindings::extoll_napi>,
    ctx: P,
    state: UnsafeCell<P::State>,
    /// Held by whoever polls, until the device is armed, as somebody else may be polling by then.
    #[pin]
    turn: SpinLock<()>,
    ndev: Arc<NetDev>,
}

// SAFETY: The C object may be used from any CPU through the functions below; `P` and
// `Arc<NetDev>` are `Send`.
unsafe impl<P: NapiPoll> Send for Napi<P> {}
// SAFETY: As above, all functions below may run concurrently; `P` and `Arc<NetDev>` are `Sync`, and
// `state`, which is `Send`, is used by one context at a time by the type invariant.
unsafe impl<P: NapiPoll> Sync for Napi<P> {}

impl<P: NapiPoll> Napi<P> {
    /// Makes the instance of `ndev`, which can have one at a time. It must not be made between
    /// `open` and `stop` if it is to be polled in this period. May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY`: there is one.
    pub fn new(ndev: Arc<NetDev>, ctx: P, state: P::State) -> impl PinInit<Self, Error> {
        let dev = ndev.as_raw();
        try_pin_init!(Self {
            _: { ndev.claim_napi()? },
            ctx,
            state: UnsafeCell::new(state),
            turn <- SpinLock::new((), LOCK_NAME, static_lock_class!()),
            // Last, so that nothing can fail after the instance was added to the device. `dev` is
            // kept valid by `ndev` (above in the closure, then in the field).
            raw <- Opaque::ffi_init(move |p: *mut bindings::extoll_napi| {
                // SAFETY: `p` is valid for writes and pinned; the device is valid as said above.
                unsafe { bindings::extoll_napi_add(dev, p, Some(poll::<P>)) }
            }),
            ndev,
        }? Error)
    }

    /// Has the instance polled soon, unless it is disabled or scheduled already (then it is polled
    /// once more). Any context, hard interrupts included.
    #[inline]
    pub fn schedule(&self) {
        // SAFETY: `raw` is initialised by the invariant; the call is safe in every state of the
        // instance.
        unsafe { bindings::extoll_napi_schedule(self.raw.get()) };
    }

    /// Has the instance polled after `delay`; replaces an earlier delay that has not ended. Any
    /// context.
    #[inline]
    pub fn schedule_in(&self, delay: Delta) {
        // SAFETY: `raw` is initialised by the invariant; the timer is cancelled when the instance
        // is dropped.
        unsafe { bindings::extoll_napi_schedule_in(self.raw.get(), delay.as_nanos().max(0) as u64) }
    }

    /// What it works on.
    pub fn context(&self) -> &P {
        &self.ctx
    }

    /// Calls `f` with the state of the poll function while that can't run: from `open`, `stop`, or
    /// anywhere under RTNL while the interface is down. May sleep, and so may `f`.
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
        {
            // The last run no longer counts once it has completed, but may still be arming.
            let _no_softirq = BhDisabled::new();
            drop(self.turn.lock());
        }
        // SAFETY: The instance is disabled and claimed, and the last run has ended. RTNL, which is
        // held, must be held to enable it, so it stays disabled, and the claim excludes a second
        // reference from here.
        let result = f(unsafe { &mut *self.state.get() });
        drop(claim);
        Ok(result)
    }
}

#[pinned_drop]
impl<P: NapiPoll> PinnedDrop for Napi<P> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: `raw` is initialised by the invariant. The call first disables the instance, and
        // then waits for a grace period, that is, for the end of the last run.
        unsafe { bindings::extoll_napi_del(self.raw.get()) }
        self.ndev.release_napi();
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
        // SAFETY: `raw` is the instance that is being polled, on this CPU, with bottom halves off.
        // The result is a fresh frame.
        unsafe { RxSkb::from_raw(bindings::extoll_napi_alloc_skb(self.raw, len)) }
    }

    /// Hands a received Ethernet frame to the stack (with GRO) and counts it. Gives a frame that is
    /// too short for its header back.
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
        // SAFETY: `raw` is being polled on this CPU; the frame is owned, linear and has at least a
        // header. The call checks `start` and `offset`.
        unsafe { bindings::extoll_napi_receive(self.raw, skb.into_raw(), csum, start, offset) };
        Ok(())
    }

    /// Frees a frame that was sent, in bulk with others.
    #[inline]
    pub fn consume(&mut self, skb: Unmapped) {
        // SAFETY: The frame is owned; the budget is that of the running poll, as the function wants
        // to know.
        unsafe { bindings::napi_consume_skb(skb.into_raw(), self.budget as c_int) }
    }
}

/// # Safety
///
/// To be called by the net core only, for a NAPI instance made by [`Napi::<P>::new`].
unsafe extern "C" fn poll<P: NapiPoll>(napi: *mut bindings::napi_struct, budget: c_int) -> c_int {
    // SAFETY: By the requirements `napi` is the field of an `extoll_napi`, which is the field of a
    // `Napi<P>`. It is alive: its drop disables it and waits for this function.
    let (raw, this) = unsafe {
        let raw = container_of!(napi, bindings::extoll_napi, napi);
        let this = container_of!(Opaque::cast_from(raw), Napi<P>, raw);
        (raw, &*this)
    };
    let units = match usize::try_from(budget) {
        Ok(n) if n > 0 => n,
        // Netpoll, perhaps in an interrupt in the middle of a run: it does not wait for its turn.
        _ => {
            let turn = this.turn.try_lock();
            // SAFETY: By the type invariant, as this is our turn. The instance is not disabled:
            // netpoll looks at that, and disabling waits for it.
            let state = turn.as_ref().map(|_| unsafe { &mut *this.state.get() });
            if this.ctx.netpoll(state) {
                // SAFETY: `raw` is initialised; this is safe in every state of the instance.
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
    // Waits for no more than a run that is arming, or netpoll.
    let turn = this.turn.lock();
    // SAFETY: By the type invariant: this is our turn, and the instance was not disabled when it
    // came, as NAPI has it scheduled.
    let state = unsafe { &mut *this.state.get() };
    let work = this.ctx.poll(state, &mut cx).min(units);
    // SAFETY: `napi` is being polled, and less than the budget was used. If it says so, nobody will
    // poll without an interrupt.
    if work < units && unsafe { bindings::napi_complete_done(napi, work as c_int) } {
        // Whoever polls now waits for this, and so does whoever disables and uses the state.
        if this.ctx.arm(state) {
            // SAFETY: As above.
            unsafe { bindings::extoll_napi_schedule(raw) };
        }
    }
    drop(turn);
    work as c_int
}
