// SPDX-License-Identifier: GPL-2.0-only

//! ethtool operations: driver information, counters, ring sizes and eager threshold. They run in
//! process context under RTNL.

use crate::{conf, dev::Exn, reason};
use extoll_core::velo;
use kernel::{prelude::*, sync::atomic::Relaxed};
use kernel_ext::net::{Ack, Device, EthtoolOps, RingParam, Tunable};

#[vtable]
impl EthtoolOps for Exn {
    const DRIVER: &'static CStr = c"exn";
    const VERSION: &'static CStr = c"0.1";
    const STATS: &'static [&'static CStr] = &reason::NAMES;

    fn bus_info(dev: &Device<Self>, put: &mut dyn FnMut(&[u8])) {
        put(dev.data().shared.nic.device().name().to_bytes());
    }

    fn stats(dev: &Device<Self>, values: &mut [u64]) {
        let sh = &dev.data().shared;
        let (active, quarantine) = sh.tx.lock().gauges();
        let fetches = sh.rx.lock().len() as u64;
        let gauges = [
            active,
            quarantine,
            fetches,
            u64::from(sh.waiting.load(Relaxed)),
            u64::from(sh.partials.load(Relaxed)),
            sh.macs.lock().len() as u64,
        ];
        for (to, from) in values
            .iter_mut()
            .zip(Iterator::chain(sh.counters.values(), gauges))
        {
            *to = from;
        }
    }

    fn ringparam(dev: &Device<Self>) -> RingParam {
        let sh = &dev.data().shared;
        let slots = velo::DEFAULT_MAILBOX_BYTES / sh.nic.velo().slot_size().bytes();
        RingParam {
            rx: slots,
            rx_max: slots,
            tx: sh.conf.flight(),
            tx_max: conf::TX_FLIGHT_MAX,
        }
    }

    fn set_ringparam(dev: &Device<Self>, rx: u32, tx: u32, ack: &mut Ack<'_>) -> Result {
        if rx != Self::ringparam(dev).rx {
            return Err(ack.refuse(c"the mailbox can't be resized"));
        }
        if !dev.data().shared.conf.set_flight(tx) {
            return Err(ack.refuse(c"4 to 512 announced frames may be in flight"));
        }
        Ok(())
    }

    fn tunable(dev: &Device<Self>, which: Tunable) -> Result<u32> {
        match which {
            Tunable::TxCopybreak => Ok(dev.data().shared.conf.threshold()),
            Tunable::RxCopybreak => Err(EOPNOTSUPP),
        }
    }

    fn set_tunable(dev: &Device<Self>, which: Tunable, value: u32) -> Result {
        match which {
            Tunable::TxCopybreak => {
                if !dev.data().shared.conf.set_threshold(value) {
                    return Err(EINVAL);
                }
                Ok(())
            }
            Tunable::RxCopybreak => Err(EOPNOTSUPP),
        }
    }
}
