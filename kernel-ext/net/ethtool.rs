// SPDX-License-Identifier: GPL-2.0-only

//! ethtool operations.

use super::{dev::Device, ops::Operations};
use crate::bindings;
use core::marker::PhantomData;
use kernel::{
    error::{from_result, VTABLE_DEFAULT_ERROR},
    prelude::*,
};

/// Type for a net device in the C types of the ethtool table: the kernel crate's opaque
/// `net_device`.
type CNetDevice = kernel::bindings::net_device;

/// Ring sizes (`ethtool -g`) in messages or frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingParam {
    /// Current size of the receive ring.
    pub rx: u32,
    /// Maximum size of the receive ring.
    pub rx_max: u32,
    /// Current maximum number of transmit frames in flight.
    pub tx: u32,
    /// Maximum value of `tx`.
    pub tx_max: u32,
}

/// Parameters that `ethtool --set-tunable` changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tunable {
    /// `rx-copybreak` in bytes.
    RxCopybreak,
    /// `tx-copybreak` in bytes.
    TxCopybreak,
}

impl Tunable {
    fn from_id(id: u32) -> Result<Self> {
        match id {
            bindings::tunable_id_ETHTOOL_RX_COPYBREAK => Ok(Self::RxCopybreak),
            bindings::tunable_id_ETHTOOL_TX_COPYBREAK => Ok(Self::TxCopybreak),
            _ => Err(EOPNOTSUPP),
        }
    }
}

/// Error message for the program that sent an ethtool request.
pub struct Ack<'a> {
    /// Null for a request by `ioctl`.
    raw: *mut bindings::netlink_ext_ack,
    call: PhantomData<&'a mut bindings::netlink_ext_ack>,
}

impl Ack<'_> {
    /// Sets the reason of an error, up to 79 characters. Returns `EINVAL`.
    pub fn refuse(&mut self, why: &'static CStr) -> Error {
        // SAFETY: `raw` is null or valid during this call; `why` is a C string.
        unsafe { bindings::extoll_ack(self.raw, why.as_char_ptr()) };
        EINVAL
    }
}

/// ethtool operations of a driver. All operations run in process context under RTNL or the device's
/// lock, and may sleep.
#[vtable]
pub trait EthtoolOps: Operations {
    /// Driver name (`ethtool -i`).
    const DRIVER: &'static CStr;
    /// Driver version (`ethtool -i`).
    const VERSION: &'static CStr;
    /// Names of the private counters (`ethtool -S`), up to 31 characters each.
    const STATS: &'static [&'static CStr];

    /// Passes the name of the bus device (`ethtool -i`), up to 31 bytes, to `put`.
    fn bus_info(dev: &Device<Self>, put: &mut dyn FnMut(&[u8])) {
        let _ = (dev, put);
    }

    /// Fills in the private counters, in the order of [`EthtoolOps::STATS`]; `values` has the same
    /// length.
    fn stats(dev: &Device<Self>, values: &mut [u64]);

    /// Returns the ring sizes.
    fn ringparam(dev: &Device<Self>) -> RingParam {
        let _ = dev;
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Changes the ring sizes, which do not exceed the maximum values. `ack` receives the reason of
    /// an error.
    fn set_ringparam(dev: &Device<Self>, rx: u32, tx: u32, ack: &mut Ack<'_>) -> Result {
        let _ = (dev, rx, tx, ack);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Reads a tunable. Returns `EOPNOTSUPP` if the driver does not support the tunable.
    fn tunable(dev: &Device<Self>, which: Tunable) -> Result<u32> {
        let _ = (dev, which);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Changes a tunable.
    fn set_tunable(dev: &Device<Self>, which: Tunable, value: u32) -> Result {
        let _ = (dev, which, value);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Names of up to 32 private flags, up to 31 characters each.
    const FLAGS: &'static [&'static CStr] = &[];

    /// Reads the private flags (`ethtool --show-priv-flags`): bit i is flag i.
    fn flags(dev: &Device<Self>) -> u32 {
        let _ = dev;
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Changes the private flags.
    fn set_flags(dev: &Device<Self>, flags: u32) -> Result {
        let _ = (dev, flags);
        kernel::build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// Returns the driver's device object of a C device.
///
/// # Safety
///
/// `dev` must be registered with `T`'s operations, and this must be called inside an ethtool
/// callback.
unsafe fn device<'a, T: Operations>(dev: *mut CNetDevice) -> &'a Device<T> {
    // SAFETY: by the function's requirements the owner is a `Device<T>` that outlives the callback.
    unsafe { &*bindings::extoll_net_owner(dev.cast()).cast::<Device<T>>() }
}

/// Copies a string into a fixed array, truncated so that the terminator fits.
fn copy_str(to: &mut [c_char], from: &[u8]) {
    to.fill(0);
    let room = to.len().saturating_sub(1);
    for (t, f) in to.iter_mut().take(room).zip(from) {
        *t = *f as c_char;
    }
}

/// # Safety
///
/// Only the net core may call this function, for a device with `T`'s operations. These requirements
/// apply to all functions below. `info` is valid and zeroed.
unsafe extern "C" fn get_drvinfo<T: EthtoolOps>(
    dev: *mut CNetDevice,
    info: *mut bindings::ethtool_drvinfo,
) {
    // SAFETY: by the function's requirements both pointers are valid.
    let (d, info) = unsafe { (device::<T>(dev), &mut *info) };
    copy_str(&mut info.driver, T::DRIVER.to_bytes());
    copy_str(&mut info.version, T::VERSION.to_bytes());
    let bus = &mut info.bus_info;
    T::bus_info(d, &mut |s| copy_str(bus, s));
}

fn names<T: EthtoolOps>(set: u32) -> Result<&'static [&'static CStr]> {
    match set {
        bindings::ethtool_stringset_ETH_SS_STATS => Ok(T::STATS),
        bindings::ethtool_stringset_ETH_SS_PRIV_FLAGS if T::HAS_FLAGS => Ok(T::FLAGS),
        _ => Err(EOPNOTSUPP),
    }
}

/// # Safety
///
/// The requirements of [`get_drvinfo`] apply.
unsafe extern "C" fn get_sset_count<T: EthtoolOps>(_dev: *mut CNetDevice, set: c_int) -> c_int {
    from_result(|| Ok(names::<T>(set as u32)?.len() as c_int))
}

/// # Safety
///
/// The requirements of [`get_drvinfo`] apply; `data` has 32 bytes for each string of the set, whose
/// number [`get_sset_count`] returned.
unsafe extern "C" fn get_strings<T: EthtoolOps>(_dev: *mut CNetDevice, set: u32, data: *mut u8) {
    const LEN: usize = bindings::ETH_GSTRING_LEN as usize;
    for (i, name) in names::<T>(set).unwrap_or(&[]).iter().enumerate() {
        let name = name.to_bytes();
        let len = name.len().min(LEN - 1);
        // SAFETY: by the function's requirements the i-th slot of 32 bytes is inside the buffer.
        unsafe {
            data.add(i * LEN).write_bytes(0, LEN);
            core::ptr::copy_nonoverlapping(name.as_ptr(), data.add(i * LEN), len);
        }
    }
}

/// # Safety
///
/// The requirements of [`get_drvinfo`] apply; `values` has the number of elements that
/// [`get_sset_count`] returned.
unsafe extern "C" fn get_stats<T: EthtoolOps>(
    dev: *mut CNetDevice,
    _stats: *mut bindings::ethtool_stats,
    values: *mut u64,
) {
    // SAFETY: by the function's requirements both are valid; the core passes zeroed memory.
    let (d, values) = unsafe {
        (
            device::<T>(dev),
            core::slice::from_raw_parts_mut(values, T::STATS.len()),
        )
    };
    <T as EthtoolOps>::stats(d, values);
}

/// # Safety
///
/// The requirements of [`get_drvinfo`] apply; `ring` is valid.
unsafe extern "C" fn get_ringparam<T: EthtoolOps>(
    dev: *mut CNetDevice,
    ring: *mut bindings::ethtool_ringparam,
    _kernel: *mut bindings::kernel_ethtool_ringparam,
    _ack: *mut bindings::netlink_ext_ack,
) {
    // SAFETY: by the function's requirements both pointers are valid.
    let (d, ring) = unsafe { (device::<T>(dev), &mut *ring) };
    let p = T::ringparam(d);
    ring.rx_pending = p.rx;
    ring.rx_max_pending = p.rx_max;
    ring.tx_pending = p.tx;
    ring.tx_max_pending = p.tx_max;
}

/// # Safety
///
/// The requirements of [`get_drvinfo`] apply; `ring` is valid, `ack` is null or valid.
unsafe extern "C" fn set_ringparam<T: EthtoolOps>(
    dev: *mut CNetDevice,
    ring: *mut bindings::ethtool_ringparam,
    _kernel: *mut bindings::kernel_ethtool_ringparam,
    ack: *mut bindings::netlink_ext_ack,
) -> c_int {
    from_result(|| {
        // SAFETY: by the function's requirements both pointers are valid.
        let (d, ring) = unsafe { (device::<T>(dev), &*ring) };
        let mut ack = Ack {
            raw: ack,
            call: PhantomData,
        };
        T::set_ringparam(d, ring.rx_pending, ring.tx_pending, &mut ack)?;
        Ok(0)
    })
}

/// # Safety
///
/// The requirements of [`get_drvinfo`] apply; `t` is valid, `data` points to a 32-bit value (the
/// core checks the type of copybreak tunables).
unsafe extern "C" fn get_tunable<T: EthtoolOps>(
    dev: *mut CNetDevice,
    t: *const bindings::ethtool_tunable,
    data: *mut c_void,
) -> c_int {
    from_result(|| {
        // SAFETY: by the function's requirements both pointers are valid.
        let (d, which) = unsafe { (device::<T>(dev), Tunable::from_id((*t).id)?) };
        let value = T::tunable(d, which)?;
        // SAFETY: by the function's requirements `data` points to a 32-bit value.
        unsafe { data.cast::<u32>().write_unaligned(value) };
        Ok(0)
    })
}

/// # Safety
///
/// The requirements of [`get_tunable`] apply.
unsafe extern "C" fn set_tunable<T: EthtoolOps>(
    dev: *mut CNetDevice,
    t: *const bindings::ethtool_tunable,
    data: *const c_void,
) -> c_int {
    from_result(|| {
        // SAFETY: by the function's requirements all pointers are valid.
        let (d, which, value) = unsafe {
            (
                device::<T>(dev),
                Tunable::from_id((*t).id)?,
                data.cast::<u32>().read_unaligned(),
            )
        };
        T::set_tunable(d, which, value)?;
        Ok(0)
    })
}

/// # Safety
///
/// The requirements of [`get_drvinfo`] apply.
unsafe extern "C" fn get_flags<T: EthtoolOps>(dev: *mut CNetDevice) -> u32 {
    // SAFETY: by the function's requirements the device is registered.
    T::flags(unsafe { device::<T>(dev) })
}

/// # Safety
///
/// The requirements of [`get_drvinfo`] apply.
unsafe extern "C" fn set_flags<T: EthtoolOps>(dev: *mut CNetDevice, flags: u32) -> c_int {
    from_result(|| {
        // SAFETY: by the function's requirements the device is registered.
        T::set_flags(unsafe { device::<T>(dev) }, flags)?;
        Ok(0)
    })
}

/// Returns the C table for `T`.
pub(super) fn table<T: EthtoolOps>() -> &'static bindings::ethtool_ops {
    struct Table<T>(PhantomData<T>);
    impl<T: EthtoolOps> Table<T> {
        const OPS: bindings::ethtool_ops = bindings::ethtool_ops {
            get_drvinfo: Some(get_drvinfo::<T>),
            get_link: Some(get_link),
            get_link_ksettings: Some(get_link_ksettings),
            get_ts_info: Some(get_ts_info),
            get_sset_count: Some(get_sset_count::<T>),
            get_strings: Some(get_strings::<T>),
            get_ethtool_stats: Some(get_stats::<T>),
            get_ringparam: if T::HAS_RINGPARAM {
                Some(get_ringparam::<T>)
            } else {
                None
            },
            set_ringparam: if T::HAS_SET_RINGPARAM {
                Some(set_ringparam::<T>)
            } else {
                None
            },
            get_tunable: if T::HAS_TUNABLE {
                Some(get_tunable::<T>)
            } else {
                None
            },
            set_tunable: if T::HAS_SET_TUNABLE {
                Some(set_tunable::<T>)
            } else {
                None
            },
            get_priv_flags: if T::HAS_FLAGS {
                Some(get_flags::<T>)
            } else {
                None
            },
            set_priv_flags: if T::HAS_SET_FLAGS {
                Some(set_flags::<T>)
            } else {
                None
            },
            ..pin_init::zeroed()
        };
    }
    &Table::<T>::OPS
}

/// # Safety
///
/// The requirements of [`get_drvinfo`] apply.
unsafe extern "C" fn get_link(dev: *mut CNetDevice) -> u32 {
    // SAFETY: by the function's requirements the device is valid.
    unsafe { bindings::ethtool_op_get_link(dev.cast()) }
}

/// # Safety
///
/// The requirements of [`get_drvinfo`] apply; `info` is valid.
unsafe extern "C" fn get_ts_info(
    dev: *mut CNetDevice,
    info: *mut bindings::kernel_ethtool_ts_info,
) -> c_int {
    // SAFETY: by the function's requirements both pointers are valid.
    unsafe { bindings::ethtool_op_get_ts_info(dev.cast(), info) }
}

/// Reports a full-duplex link of unknown speed without negotiation.
///
/// # Safety
///
/// The requirements of [`get_drvinfo`] apply; `settings` is valid and zeroed.
unsafe extern "C" fn get_link_ksettings(
    _dev: *mut CNetDevice,
    settings: *mut bindings::ethtool_link_ksettings,
) -> c_int {
    // SAFETY: by the function's requirements `settings` is valid.
    let base = unsafe { &mut (*settings).base };
    base.speed = bindings::SPEED_UNKNOWN as u32;
    base.duplex = bindings::DUPLEX_FULL as u8;
    base.port = bindings::PORT_OTHER as u8;
    base.autoneg = bindings::AUTONEG_DISABLE as u8;
    0
}
