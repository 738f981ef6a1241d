// SPDX-License-Identifier: GPL-2.0-only

//! The operations of a net device: the trait that a driver implements and the C table made from it.

use super::{
    dev::{Device, NetDev, Rtnl},
    skb::SkBuff,
    stats::Stats64,
};
use crate::bindings;
use core::marker::PhantomData;
use kernel::{
    error::{from_result, VTABLE_DEFAULT_ERROR},
    prelude::*,
};

/// What became of a frame passed to [`Operations::start_xmit`].
pub enum Transmit {
    /// The driver took it (sent, kept or dropped it).
    Taken,
    /// No room: the driver stopped the queue before, did nothing with the frame and hands it back; the stack tries again later.
    Busy(SkBuff),
}

/// The transmit queue of a device. Its lock is held as long as this exists, that is, inside [`Operations::start_xmit`].
pub struct TxQueue<'a>(pub(super) &'a NetDev);

/// What a net device driver implements. Callbacks may run on any CPU; those documented as "RTNL" are serialised by it.
///
/// `start_xmit` is serialised by the queue lock and never runs outside a period from a successful `open` to the begin of `stop`.
#[vtable]
pub trait Operations: Sized + 'static {
    /// The driver's data, shared by all callbacks, dropped after the last one.
    type Data: Send + Sync + 'static;

    /// Brings the interface up. RTNL; may sleep. The NAPI instances of the device run from its successful end on.
    fn open(dev: &Device<Self>, rtnl: &Rtnl<'_, Self>) -> Result;

    /// Takes the interface down. RTNL; may sleep. Transmission has ended and the NAPI instances are disabled before.
    fn stop(dev: &Device<Self>, rtnl: &Rtnl<'_, Self>);

    /// Sends a frame. Bottom halves are off; must not sleep.
    fn start_xmit(dev: &Device<Self>, skb: SkBuff, queue: &TxQueue<'_>) -> Transmit;

    /// Asked to change the MAC address; the driver changes it through `rtnl`. RTNL; may sleep. The address is valid and unicast.
    fn set_mac_address(dev: &Device<Self>, rtnl: &Rtnl<'_, Self>, mac: [u8; 6]) -> Result {
        let _ = (dev, rtnl, mac);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// The MTU is about to change to a value within the limits. RTNL; may sleep.
    fn change_mtu(dev: &Device<Self>, mtu: u32) -> Result {
        let _ = (dev, mtu);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Adds the driver's errors to the statistics. RCU read section or RTNL; must not sleep.
    fn stats64(dev: &Device<Self>, stats: &mut Stats64) {
        let _ = (dev, stats);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// The transmit queue has been stopped for longer than the watchdog allows. Softirq.
    fn tx_timeout(dev: &Device<Self>) {
        let _ = dev;
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// The receive filter changed. Bottom halves are off; must not sleep.
    fn set_rx_mode(dev: &Device<Self>) {
        let _ = dev;
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Whether offloads have to be done in software for this frame. Transmit path; must not sleep.
    fn needs_software_offload(dev: &Device<Self>, len: u32) -> bool {
        let _ = (dev, len);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Runs after [`NetDev::schedule_work`](super::NetDev::schedule_work) and
    /// [`NetDev::schedule_work_in`](super::NetDev::schedule_work_in). RTNL; may sleep.
    fn work(dev: &Device<Self>, rtnl: &Rtnl<'_, Self>) {
        let _ = (dev, rtnl);
    }
}

/// The driver's device object that belongs to a C device.
///
/// # Safety
///
/// `dev` must be a device that was registered with `T`'s operations, inside a callback or the work of it.
unsafe fn device<'a, T: Operations>(dev: *const bindings::net_device) -> &'a Device<T> {
    // SAFETY: By the requirements the owner was set by `Registration::<T>::new()` to a `Device<T>` that lives until all callbacks
    // and the work have ended.
    unsafe { &*bindings::extoll_net_owner(dev).cast::<Device<T>>() }
}

/// # Safety
///
/// To be called by the net core or `net_helpers.c` only, for a device with `T`'s operations (all functions below alike).
unsafe extern "C" fn open<T: Operations>(dev: *mut bindings::net_device) -> c_int {
    // SAFETY: By the requirements.
    let d = unsafe { device::<T>(dev) };
    d.bql_reset();
    // SAFETY: The device is valid; the queue is not active yet, so nothing transmits before `open` returned.
    unsafe { bindings::extoll_net_tx_start(dev) };
    from_result(|| {
        T::open(d, &Rtnl(d))?;
        // SAFETY: The device is valid; all its NAPI instances are `extoll_napi`s since only `Napi` makes them.
        unsafe { bindings::extoll_napi_enable_all(dev) };
        Ok(0)
    })
}

/// # Safety
///
/// See [`open`].
unsafe extern "C" fn stop<T: Operations>(dev: *mut bindings::net_device) -> c_int {
    // SAFETY: By the requirements.
    let d = unsafe { device::<T>(dev) };
    // SAFETY: The device is valid; all its NAPI instances are `extoll_napi`s since only `Napi` makes them.
    unsafe {
        bindings::extoll_net_tx_stop(dev);
        bindings::extoll_napi_disable_all(dev);
    }
    T::stop(d, &Rtnl(d));
    0
}

/// # Safety
///
/// See [`open`]; the caller owns `skb` and gives it away unless busy is returned.
unsafe extern "C" fn start_xmit<T: Operations>(
    skb: *mut bindings::sk_buff,
    dev: *mut bindings::net_device,
) -> bindings::netdev_tx_t {
    // SAFETY: By the requirements.
    let (d, frame) = unsafe { (device::<T>(dev), SkBuff::from_raw(skb)) };
    match T::start_xmit(d, frame, &TxQueue(d)) {
        // Only the very frame that was passed in may go back to the stack.
        Transmit::Busy(back) if back.as_raw() == skb => {
            back.into_raw();
            bindings::netdev_tx_NETDEV_TX_BUSY
        }
        Transmit::Busy(_) | Transmit::Taken => bindings::netdev_tx_NETDEV_TX_OK,
    }
}

/// # Safety
///
/// See [`open`]; `addr` points to a `sockaddr`.
unsafe extern "C" fn set_mac_address<T: Operations>(
    dev: *mut bindings::net_device,
    addr: *mut c_void,
) -> c_int {
    from_result(|| {
        // SAFETY: By the requirements; the net core passes a `struct sockaddr` with at least 6 bytes of address.
        let (d, data) = unsafe {
            (
                device::<T>(dev),
                (*addr.cast::<bindings::sockaddr>()).sa_data,
            )
        };
        let mut mac = [0u8; 6];
        for (m, s) in mac.iter_mut().zip(data) {
            *m = s;
        }
        if mac[0] & 1 != 0 || mac == [0; 6] {
            return Err(EADDRNOTAVAIL);
        }
        T::set_mac_address(d, &Rtnl(d), mac)?;
        Ok(0)
    })
}

/// # Safety
///
/// See [`open`].
unsafe extern "C" fn change_mtu<T: Operations>(
    dev: *mut bindings::net_device,
    mtu: c_int,
) -> c_int {
    from_result(|| {
        // The net core has checked it against the limits.
        let mtu = u32::try_from(mtu).map_err(|_| EINVAL)?;
        if T::HAS_CHANGE_MTU {
            // SAFETY: By the requirements.
            T::change_mtu(unsafe { device::<T>(dev) }, mtu)?;
        }
        // SAFETY: The device is valid and RTNL is held.
        unsafe { bindings::extoll_net_set_mtu(dev, mtu) };
        Ok(0)
    })
}

/// # Safety
///
/// See [`open`]; `storage` is valid and unshared.
unsafe extern "C" fn get_stats64<T: Operations>(
    dev: *mut bindings::net_device,
    storage: *mut bindings::rtnl_link_stats64,
) {
    // SAFETY: By the requirements.
    let (d, stats) = unsafe { (device::<T>(dev), Stats64::from_raw(storage)) };
    stats.set_base(&d.stats().sum());
    if T::HAS_STATS64 {
        T::stats64(d, stats);
    }
}

/// # Safety
///
/// See [`open`].
unsafe extern "C" fn tx_timeout<T: Operations>(dev: *mut bindings::net_device, _queue: c_uint) {
    // SAFETY: By the requirements.
    T::tx_timeout(unsafe { device::<T>(dev) });
}

/// # Safety
///
/// See [`open`].
unsafe extern "C" fn set_rx_mode<T: Operations>(dev: *mut bindings::net_device) {
    // SAFETY: By the requirements.
    T::set_rx_mode(unsafe { device::<T>(dev) });
}

/// # Safety
///
/// See [`open`]; `skb` is valid for the call.
unsafe extern "C" fn features_check<T: Operations>(
    skb: *mut bindings::sk_buff,
    dev: *mut bindings::net_device,
    features: bindings::netdev_features_t,
) -> bindings::netdev_features_t {
    // SAFETY: By the requirements.
    let (d, len) = unsafe { (device::<T>(dev), (*skb).len) };
    if T::needs_software_offload(d, len) {
        0
    } else {
        features
    }
}

/// Body of the deferred work.
///
/// # Safety
///
/// See [`open`].
pub(super) unsafe extern "C" fn work<T: Operations>(dev: *mut bindings::net_device) {
    // SAFETY: By the requirements.
    let d = unsafe { device::<T>(dev) };
    T::work(d, &Rtnl(d));
}

/// The C table for `T`.
pub(super) fn table<T: Operations>() -> &'static bindings::net_device_ops {
    struct Table<T>(PhantomData<T>);
    impl<T: Operations> Table<T> {
        const OPS: bindings::net_device_ops = bindings::net_device_ops {
            ndo_open: Some(open::<T>),
            ndo_stop: Some(stop::<T>),
            ndo_start_xmit: Some(start_xmit::<T>),
            ndo_validate_addr: Some(bindings::eth_validate_addr),
            ndo_set_mac_address: if T::HAS_SET_MAC_ADDRESS {
                Some(set_mac_address::<T>)
            } else {
                None
            },
            ndo_change_mtu: Some(change_mtu::<T>),
            ndo_get_stats64: Some(get_stats64::<T>),
            ndo_tx_timeout: if T::HAS_TX_TIMEOUT {
                Some(tx_timeout::<T>)
            } else {
                None
            },
            ndo_set_rx_mode: if T::HAS_SET_RX_MODE {
                Some(set_rx_mode::<T>)
            } else {
                None
            },
            ndo_features_check: if T::HAS_NEEDS_SOFTWARE_OFFLOAD {
                Some(features_check::<T>)
            } else {
                None
            },
            ..pin_init::zeroed()
        };
    }
    &Table::<T>::OPS
}
