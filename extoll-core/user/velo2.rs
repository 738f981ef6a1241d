// SPDX-License-Identifier: GPL-2.0-only

//! `/dev/extoll/velo2`: one VELO port per open file, with the vendor's ABI (docs/uapi.md). Process
//! context. Acquires the mutex of the port.

use super::{policy::Rights, port::UserPort, put_u64, OpenFile, Shared};
use crate::{
    hw::Hw,
    velo::{self as unit, Velo},
};
use kernel::{
    fs::File,
    ioctl::{_IOC_NR, _IOC_TYPE, _IOR, _IOW},
    prelude::*,
    sync::{poll::PollTable, Arc},
};
use kernel_ext::chardev::{Handler, NewMapping, Opening};
use wire::{
    bq::SlotCode,
    ids::Vpid,
    regs::velo::{self, CompProtDesc, NodeVpidProtDesc},
};

const MAGIC: u32 = b'k' as u32;
const MAX_NR: u32 = 21;
const GET_RP: u32 = _IOR::<u32>(MAGIC, 0);
const SET_RP: u32 = _IOW::<u32>(MAGIC, 1);
const GET_WP: u32 = _IOR::<u32>(MAGIC, 2);
const SET_WP: u32 = _IOW::<u32>(MAGIC, 3);
const GET_VPID: u32 = _IOR::<u64>(MAGIC, 4);
const GET_MBOX_SIZE: u32 = _IOR::<u64>(MAGIC, 5);
const SET_MBOX_SIZE: u32 = _IOW::<u64>(MAGIC, 6);
const GET_SEGMENT_SIZE: u32 = _IOR::<u64>(MAGIC, 7);
const SET_SEGMENT_SIZE: u32 = _IOW::<u64>(MAGIC, 8);
const GET_NODEID: u32 = _IOR::<u64>(MAGIC, 12);
const SET_TX_PROTDESC: u32 = _IOW::<u64>(MAGIC, 13);
const GET_TX_PROTDESC: u32 = _IOR::<u64>(MAGIC, 14);
const SET_RX_PROTDESC: u32 = _IOW::<u64>(MAGIC, 15);
const GET_RX_PROTDESC: u32 = _IOR::<u64>(MAGIC, 16);
const SET_TX_ID: u32 = _IOW::<u64>(MAGIC, 17);
const GET_TX_ID: u32 = _IOR::<u64>(MAGIC, 18);
const GET_PROCNUM: u32 = _IOR::<u32>(MAGIC, 19);
const GET_NODENUM: u32 = _IOR::<u32>(MAGIC, 20);
const GET_SLOT_SIZE: u32 = _IOR::<u32>(MAGIC, 21);

/// Number of nodes that the vendor's driver reports.
const NODES: u64 = 1024;
/// Traffic class of the requester page that can be mapped.
const TRAFFIC_CLASS: u8 = 0;

type Port = UserPort<Velo>;

/// State of an open `/dev/extoll/velo2`.
#[pin_data]
pub(super) struct Velo2 {
    id: u64,
    #[pin]
    port: Port,
}

impl Velo2 {
    /// Opens a file. Returns `EAGAIN` if the network does not run. Other errors are those of
    /// [`UserPort::open`].
    pub(super) fn open(shared: &Arc<Shared>, id: u64, opening: &Opening) -> Result<Arc<Self>> {
        if !shared.nic.status().is_up() {
            return Err(EAGAIN);
        }
        let rights = Rights::current(&shared.settings);
        let unit = shared.nic.velo();
        let slot = SlotCode::from(unit.slot_size());
        let space = opening.space();
        let port = Port::open(shared, unit, rights, space, slot, 1 << TRAFFIC_CLASS)?;
        Arc::pin_init(try_pin_init!(Self { id, port <- port }), GFP_KERNEL)
    }
}

impl OpenFile for Velo2 {
    fn detach(&self) {
        self.port.close(|| {});
    }

    fn revoke(&self) {
        self.port.revoke();
    }
}

impl Handler for Velo2 {
    fn ioctl(&self, command: u32, arg: usize) -> Result<isize> {
        let port = &self.port;
        if let Some(done) = port.common(command, arg) {
            return done;
        }
        if _IOC_TYPE(command) != MAGIC || _IOC_NR(command) > MAX_NR {
            return Err(ENOTTY);
        }
        port.with(|_| Ok(()))?;
        let value = arg as u64;
        let source = |hw: &Hw, vpid| NodeVpidProtDesc(hw.rf.read(velo::node_vpid_prot_desc(vpid)));
        let accept = |hw: &Hw, vpid| CompProtDesc(hw.rf.read(velo::comp_prot_desc(vpid)));
        match command {
            GET_RP => port.get(arg, Port::lrp),
            SET_RP => port.set_rp(arg),
            GET_WP => port.get(arg, Port::lwp),
            SET_WP => port.set_lwp(arg),
            GET_VPID => put_u64(arg, port.with(|live| Ok(live.vpid().get().into()))?),
            GET_MBOX_SIZE => put_u64(arg, port.with(|live| Ok(live.sizes().bytes))?),
            SET_MBOX_SIZE => port.set_size(|l| &mut l.bytes, arg),
            GET_SEGMENT_SIZE => put_u64(arg, port.with(|live| Ok(live.sizes().segment))?),
            SET_SEGMENT_SIZE => port.set_size(|l| &mut l.segment, arg),
            GET_NODEID => put_u64(arg, port.nic().node().0.into()),
            SET_TX_PROTDESC => port.set(|hw, vpid| {
                unit::update_source(hw, vpid, |v| v.with_tx_prot_desc(value as u16));
            }),
            GET_TX_PROTDESC => port.get(arg, |hw, l| source(hw, l.vpid()).tx_prot_desc().into()),
            SET_RX_PROTDESC => port.set(|hw, vpid| {
                let word = accept(hw, vpid).with_rx_prot_desc(value as u16);
                hw.rf.write(velo::comp_prot_desc(vpid), word.raw());
            }),
            GET_RX_PROTDESC => port.get(arg, |hw, l| accept(hw, l.vpid()).rx_prot_desc().into()),
            SET_TX_ID => port.set(|hw, vpid| {
                unit::update_source(hw, vpid, |v| {
                    v.with_tx_nodeid(value as u16)
                        .with_tx_vpid((value >> 16) as u8)
                });
            }),
            GET_TX_ID => port.get(arg, |hw, live| {
                let word = source(hw, live.vpid());
                u64::from(word.tx_nodeid()) | u64::from(word.tx_vpid()) << 16
            }),
            GET_PROCNUM => put_u64(arg, Vpid::COUNT.into()),
            GET_NODENUM => put_u64(arg, NODES),
            GET_SLOT_SIZE => put_u64(arg, port.nic().velo().slot_size().bytes().into()),
            // Undefined commands, and commands that this driver does not support, succeed without
            // effect.
            _ => Ok(0),
        }
    }

    fn mmap(&self, new: NewMapping<'_>) -> Result {
        if new.offset() != 0 {
            return self.port.map_queue(new);
        }
        self.port.map_requester(new, 2, |windows, vpid, parts| {
            let page = Port::requester(windows, vpid, TRAFFIC_CLASS)?;
            parts.push(page, GFP_KERNEL)?;
            Ok(parts.push(Port::state(windows, vpid)?, GFP_KERNEL)?)
        })
    }

    fn poll(&self, file: &File, table: PollTable<'_>) -> u32 {
        self.port.poll(file, table)
    }

    fn release(&self) {
        self.detach();
        self.port.shared.forget(self.id);
    }
}
