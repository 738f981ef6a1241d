// SPDX-License-Identifier: GPL-2.0-only

//! `/dev/extoll/velo2`: a VELO port per open file, with the vendor's ABI (docs/uapi.md).

use super::{
    policy::Rights,
    port::{Engine, Port},
    put_u64, OpenFile, Shared,
};
use crate::{hw::Hw, velo as unit};
use kernel::{
    fs::File,
    ioctl::{_IOC_NR, _IOC_TYPE, _IOR, _IOW},
    prelude::*,
    sync::{poll::PollTable, Arc},
};
use kernel_ext::chardev::{Handler, NewMapping, Opening};
use wire::{
    bq::{Rp, SlotCode, WritePointers},
    ids::{NodeId, Unit, Vpid},
    regs::{
        velo::{self, CompProtDesc, NodeVpidProtDesc},
        velo_bq,
    },
    velo::{Descriptor, Mtt, RequesterAddr, Target, MAX_LEN},
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

/// Nodes, as the vendor's driver tells.
const NODES: u64 = 1024;
/// Traffic class of the mapped requester page.
const TRAFFIC_CLASS: u8 = 0;
/// Messages that may be stuck before a full mailbox when it is closed.
const DRAIN_STEPS: u32 = 256;

struct Velo;

impl Engine for Velo {
    const UNIT: Unit = Unit::Velo;

    fn pages(vpid: Vpid, _: Rights) -> impl Iterator<Item = u32> {
        core::iter::once(RequesterAddr::page(vpid, TRAFFIC_CLASS).encode())
    }

    /// The longest possible message to the port's own mailbox, which nobody reads any more.
    fn nothing(node: NodeId, vpid: Vpid) -> Result<impl AsRef<[u64]>> {
        let descriptor = Descriptor {
            target: Target::Node(node),
            vpid,
            mtt: Mtt::from_low_bits(0),
            irq: false,
            tag: 0,
            len: MAX_LEN,
        };
        let mut words = [0; 1 + MAX_LEN as usize / 8];
        words[0] = descriptor.encode().map_err(|_| EINVAL)?;
        Ok(words)
    }

    fn open(hw: &Hw, vpid: Vpid, protection: u16) {
        unit::update_source(hw, vpid, |v| v.with_tx_prot_desc(protection));
        unit::stamp(hw, vpid);
        let accept = CompProtDesc(0).with_rx_prot_desc(protection);
        hw.rf.write(velo::comp_prot_desc(vpid), accept.raw());
    }

    fn enable(hw: &Hw, vpid: Vpid) {
        unit::enable(hw, vpid);
    }

    fn disable(hw: &Hw, vpid: Vpid) {
        hw.rf.update(velo::comp_prot_desc(vpid), |v| {
            CompProtDesc(v).with_vpid_enable(false).raw()
        });
    }

    /// Lets messages in that wait for room, as the vendor's driver does (HW §9.7), until none comes any more.
    fn drain(hw: &Hw, vpid: Vpid, slots: u32) {
        let lwp = || WritePointers(hw.rf.read(velo_bq::wp_lwp_dcq_rp(vpid))).lwp();
        let mut last = lwp();
        for _ in 0..DRAIN_STEPS.min(slots) {
            let next = last.checked_add(1).filter(|n| *n < slots).unwrap_or(0);
            hw.rf.write(velo_bq::rp(vpid), Rp(0).with_lrp(next).raw());
            let now = lwp();
            if now == last {
                break;
            }
            last = now;
        }
    }

    fn reset(hw: &Hw, vpid: Vpid) {
        hw.rf.write(velo::comp_prot_desc(vpid), 0);
    }

    /// A message that is still on its way goes out under the identity that stands here then, and 0 is that of the kernel.
    fn forget(hw: &Hw, vpid: Vpid) {
        unit::update_source(hw, vpid, |_| NodeVpidProtDesc(0));
    }
}

/// An open file.
#[pin_data]
pub(super) struct Velo2 {
    id: u64,
    #[pin]
    port: Port,
}

impl Velo2 {
    /// `EAGAIN` unless the network runs; see [`Port::open`].
    pub(super) fn open(shared: &Arc<Shared>, id: u64, opening: &Opening) -> Result<Arc<Self>> {
        if !shared.nic.status().is_up() {
            return Err(EAGAIN);
        }
        let rights = Rights::current(&shared.settings);
        let slot = SlotCode::from(shared.nic.velo().slot_size());
        let port = Port::open::<Velo>(shared, rights, opening.space(), slot)?;
        Arc::pin_init(try_pin_init!(Self { id, port <- port }), GFP_KERNEL)
    }
}

impl OpenFile for Velo2 {
    fn detach(&self) {
        self.port.close::<Velo>(|_| {});
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
            GET_RP => port.get(arg, Port::lrp::<Velo>),
            SET_RP => port.set_rp(arg),
            GET_WP => port.get(arg, Port::lwp::<Velo>),
            SET_WP => port.set_lwp::<Velo>(arg),
            GET_VPID => put_u64(arg, port.with(|live| Ok(live.vpid().get().into()))?),
            GET_MBOX_SIZE => put_u64(arg, port.with(|live| Ok(live.layout().bytes))?),
            SET_MBOX_SIZE => port.set_layout(|l| &mut l.bytes, arg).map(|()| 0),
            GET_SEGMENT_SIZE => put_u64(arg, port.with(|live| Ok(live.layout().segment))?),
            SET_SEGMENT_SIZE => port.set_layout(|l| &mut l.segment, arg).map(|()| 0),
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
            // Those without effect and what nobody defined.
            _ => Ok(0),
        }
    }

    fn mmap(&self, new: NewMapping<'_>) -> Result {
        if new.offset() != 0 {
            return self.port.map_queue::<Velo>(new);
        }
        self.port.map_requester(new, 2, |windows, vpid, parts| {
            let page = RequesterAddr::page(vpid, TRAFFIC_CLASS).encode();
            parts.push(Port::requester::<Velo>(windows, page)?, GFP_KERNEL)?;
            Ok(parts.push(Port::state::<Velo>(windows, vpid)?, GFP_KERNEL)?)
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
