// SPDX-License-Identifier: GPL-2.0-only

//! Operations of a net device: the trait that a driver implements, and the C table that is made
//! from the trait.

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

/// Result of [`Operations::start_xmit`].
pub enum Transmit {
    /// The driver owns the frame, and has sent, kept or dropped it.
    Taken,
    /// The driver cannot accept the frame now. The driver has stopped the queue and returns the
    /// unchanged frame. The stack tries again later.
    Busy(SkBuff),
}

/// Transmit queue of a device. The object exists only inside [`Operations::start_xmit`], where the
/// queue's lock is held.
pub struct TxQueue<'a>(pub(super) &'a NetDev);

/// Operations that a net device driver implements. Callbacks may run on any CPU; RTNL serialises
/// the callbacks that are documented as "RTNL".
///
/// The queue lock serialises `start_xmit`. `start_xmit` runs only after a successful `open` and
/// before the next `stop` begins.
#[vtable]
pub trait Operations: Sized + 'static {
    /// Driver's data, shared by all callbacks and dropped after the last callback.
    type Data: Send + Sync + 'static;

    /// Brings the interface up. RTNL; may sleep. After its success the NAPI instances of the device
    /// run.
    fn open(dev: &Device<Self>, rtnl: &Rtnl<'_, Self>) -> Result;

    /// Takes the interface down. RTNL; may sleep. Transmission has ended and the NAPI instances are
    /// disabled.
    fn stop(dev: &Device<Self>, rtnl: &Rtnl<'_, Self>);

    /// Sends a frame. Bottom halves are disabled; must not sleep.
    fn start_xmit(dev: &Device<Self>, skb: SkBuff, queue: &TxQueue<'_>) -> Transmit;

    /// Handles a request to change the MAC address, which the driver changes through `rtnl`. RTNL;
    /// may sleep. The address is valid and unicast.
    fn set_mac_address(dev: &Device<Self>, rtnl: &Rtnl<'_, Self>, mac: [u8; 6]) -> Result {
        let _ = (dev, rtnl, mac);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Prepares for a new MTU, which is within the limits. RTNL; may sleep.
    fn change_mtu(dev: &Device<Self>, mtu: u32) -> Result {
        let _ = (dev, mtu);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Adds the driver's errors to the statistics. RCU read section or RTNL; must not sleep.
    fn stats64(dev: &Device<Self>, stats: &mut Stats64) {
        let _ = (dev, stats);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Called when the transmit queue has been stopped for longer than the watchdog time. Softirq.
    fn tx_timeout(dev: &Device<Self>) {
        let _ = dev;
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Called after a change of the receive filter. Bottom halves are disabled; must not sleep.
    fn set_rx_mode(dev: &Device<Self>) {
        let _ = dev;
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Returns true if offloads must be done in software for this frame. Transmit path; must not
    /// sleep.
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

/// Returns the driver's device object of a C device.
///
/// # Safety
///
/// `dev` must be registered with `T`'s operations, and this must be called inside a callback or the
/// deferred work.
unsafe fn device<'a, T: Operations>(dev: *const bindings::net_device) -> &'a Device<T> {
    // SAFETY: by the function's requirements `Registration::<T>::new()` set the owner to a
    // `Device<T>`, which lives until all callbacks and the work have ended.
    unsafe { &*bindings::extoll_net_owner(dev).cast::<Device<T>>() }
}

/// # Safety
///
/// Only the net core or `net_helpers.c` may call this function, for a device with `T`'s operations.
/// These requirements apply to all functions below.
unsafe extern "C" fn open<T: Operations>(dev: *mut bindings::net_device) -> c_int {
    // SAFETY: by the function's requirements this is a callback for a device with `T`'s operations.
    let d = unsafe { device::<T>(dev) };
    d.bql_reset();
    // SAFETY: the device is valid. The queue is not active yet, so the stack transmits only after
    // `open` has returned.
    unsafe { bindings::extoll_net_tx_start(dev) };
    from_result(|| {
        T::open(d, &Rtnl(d))?;
        // SAFETY: the device is valid. The device's NAPI instances are `extoll_napi`s, because only
        // `Napi` makes NAPI instances.
        unsafe { bindings::extoll_napi_enable_all(dev) };
        Ok(0)
    })
}

/// # Safety
///
/// The requirements of [`open`] apply.
unsafe extern "C" fn stop<T: Operations>(dev: *mut bindings::net_device) -> c_int {
    // SAFETY: by the function's requirements this is a callback for a device with `T`'s operations.
    let d = unsafe { device::<T>(dev) };
    // SAFETY: the device is valid. The device's NAPI instances are `extoll_napi`s, because only
    // `Napi` makes NAPI instances.
    unsafe {
        bindings::extoll_net_tx_stop(dev);
        bindings::extoll_napi_disable_all(dev);
    }
    T::stop(d, &Rtnl(d));
    0
}

/// # Safety
///
/// The requirements of [`open`] apply. The caller owns `skb` and passes it on, unless the function
/// returns busy.
unsafe extern "C" fn start_xmit<T: Operations>(
    skb: *mut bindings::sk_buff,
    dev: *mut bindings::net_device,
) -> bindings::netdev_tx_t {
    // SAFETY: by the function's requirements this is a callback for a device with `T`'s operations,
    // and ownership of `skb` passes to this function.
    let (d, frame) = unsafe { (device::<T>(dev), SkBuff::from_raw(skb)) };
    match T::start_xmit(d, frame, &TxQueue(d)) {
        // The stack accepts only the frame that it passed in.
        Transmit::Busy(back) if back.as_raw() == skb => {
            back.into_raw();
            bindings::netdev_tx_NETDEV_TX_BUSY
        }
        Transmit::Busy(_) | Transmit::Taken => bindings::netdev_tx_NETDEV_TX_OK,
    }
}

/// # Safety
///
/// The requirements of [`open`] apply; `addr` points to a `sockaddr`.
unsafe extern "C" fn set_mac_address<T: Operations>(
    dev: *mut bindings::net_device,
    addr: *mut c_void,
) -> c_int {
    from_result(|| {
        // SAFETY: by the function's requirements this is a callback for a device with `T`'s
        // operations. The net core passes a `struct sockaddr` with at least 6 bytes of address.
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
/// The requirements of [`open`] apply.
unsafe extern "C" fn change_mtu<T: Operations>(
    dev: *mut bindings::net_device,
    mtu: c_int,
) -> c_int {
    from_result(|| {
        // The net core has checked the value against the limits.
        let mtu = u32::try_from(mtu).map_err(|_| EINVAL)?;
        if T::HAS_CHANGE_MTU {
            // SAFETY: by the function's requirements this is a callback for a device with `T`'s
            // operations.
            T::change_mtu(unsafe { device::<T>(dev) }, mtu)?;
        }
        // SAFETY: the device is valid and RTNL is held.
        unsafe { bindings::extoll_net_set_mtu(dev, mtu) };
        Ok(0)
    })
}

/// # Safety
///
/// The requirements of [`open`] apply; `storage` is valid and not shared.
unsafe extern "C" fn get_stats64<T: Operations>(
    dev: *mut bindings::net_device,
    storage: *mut bindings::rtnl_link_stats64,
) {
    // SAFETY: by the function's requirements this is a callback for a device with `T`'s operations,
    // and `storage` is valid and not shared.
    let (d, stats) = unsafe { (device::<T>(dev), Stats64::from_raw(storage)) };
    stats.set_base(&d.stats().sum());
    if T::HAS_STATS64 {
        T::stats64(d, stats);
    }
}

/// # Safety
///
/// The requirements of [`open`] apply.
unsafe extern "C" fn tx_timeout<T: Operations>(dev: *mut bindings::net_device, _queue: c_uint) {
    // SAFETY: by the function's requirements this is a callback for a device with `T`'s operations.
    T::tx_timeout(unsafe { device::<T>(dev) });
}

/// # Safety
///
/// The requirements of [`open`] apply.
unsafe extern "C" fn set_rx_mode<T: Operations>(dev: *mut bindings::net_device) {
    // SAFETY: by the function's requirements this is a callback for a device with `T`'s operations.
    T::set_rx_mode(unsafe { device::<T>(dev) });
}

/// # Safety
///
/// The requirements of [`open`] apply; `skb` is valid during the call.
unsafe extern "C" fn features_check<T: Operations>(
    skb: *mut bindings::sk_buff,
    dev: *mut bindings::net_device,
    features: bindings::netdev_features_t,
) -> bindings::netdev_features_t {
    // SAFETY: by the function's requirements this is a callback for a device with `T`'s operations,
    // and `skb` is valid.
    let (d, len) = unsafe { (device::<T>(dev), (*skb).len) };
    if T::needs_software_offload(d, len) {
        0
    } else {
        features
    }
}

/// Runs the deferred work.
///
/// # Safety
///
/// The requirements of [`open`] apply.
pub(super) unsafe extern "C" fn work<T: Operations>(dev: *mut bindings::net_device) {
    // SAFETY: by the function's requirements this is the work of a device with `T`'s operations.
    let d = unsafe { device::<T>(dev) };
    T::work(d, &Rtnl(d));
}

/// Returns the C table for `T`.
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
