// SPDX-License-Identifier: GPL-2.0-only

//! `/dev/extoll/rma2`: one RMA port per open file, and the memory that is registered for it, with
//! the vendor's ABI (docs/uapi.md).
//!
//! Process context. Each open file has a mutex for its port, one for its regions, and one for its
//! entry in the quarantine.

use super::{
    policy::{Rights, PAGES},
    port::{UserPort, UserVpid},
    put, put_u64, OpenFile, Shared,
};
use crate::{
    atu::{Access, Region},
    quarantine::Batch,
    rma::{update_entry, Rma},
};
use kernel::{
    fs::File,
    ioctl::{_IOC_NR, _IOC_TYPE, _IOR, _IOW},
    new_mutex,
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
    sync::{poll::PollTable, Arc, Mutex},
    uaccess::{UserPtr, UserSlice},
};
use kernel_ext::chardev::{Handler, NewMapping, Opening, Part};
use wire::{
    bq::SlotCode,
    ids::{BusAddr, RegOffset, Vpid},
    regs::rma::{self, ErrorCtrl, VpidTable},
};

const MAGIC: u32 = b'k' as u32;
const MAX_NR: u32 = 26;
const GET_NOTIQ_SIZE: u32 = _IOR::<u32>(MAGIC, 0);
const SET_NOTIQ_SIZE: u32 = _IOW::<u32>(MAGIC, 1);
const SET_NOTIQ_SEGMENT_SIZE: u32 = _IOW::<u32>(MAGIC, 2);
const GET_NOTIQ_SEGMENT_SIZE: u32 = _IOR::<u32>(MAGIC, 3);
const SET_NOTIQ_WP: u32 = _IOW::<u32>(MAGIC, 4);
const SET_NOTIQ_RP: u32 = _IOW::<u32>(MAGIC, 5);
const GET_NOTIQ_WP: u32 = _IOR::<u32>(MAGIC, 6);
const GET_NOTIQ_RP: u32 = _IOR::<u32>(MAGIC, 7);
const GET_NODEID: u32 = _IOR::<u32>(MAGIC, 8);
const GET_VPID: u32 = _IOR::<u32>(MAGIC, 9);
const REGISTER_REGION: u32 = _IOW::<u64>(MAGIC, 10);
const UNREGISTER_REGION: u32 = _IOW::<u64>(MAGIC, 11);
const GET_MAXNODEID: u32 = _IOR::<u32>(MAGIC, 12);
const GET_MAXVPID: u32 = _IOR::<u32>(MAGIC, 13);
const SET_TUS: u32 = _IOW::<u32>(MAGIC, 14);
const GET_TUS: u32 = _IOR::<u32>(MAGIC, 15);
const SET_EXCELL: u32 = _IOW::<u32>(MAGIC, 16);
const GET_EXCELL: u32 = _IOR::<u32>(MAGIC, 17);
const SET_TCS: u32 = _IOW::<u32>(MAGIC, 18);
const GET_TCS: u32 = _IOR::<u32>(MAGIC, 19);
const SET_PROTDESC: u32 = _IOW::<u32>(MAGIC, 20);
const GET_PROTDESC: u32 = _IOR::<u32>(MAGIC, 21);
const SET_TPHBITS: u32 = _IOW::<u32>(MAGIC, 22);
const GET_TPHBITS: u32 = _IOR::<u32>(MAGIC, 23);
const SET_HISTMODE: u32 = _IOW::<u32>(MAGIC, 24);
const GET_HISTMODE: u32 = _IOR::<u32>(MAGIC, 25);

/// Number of nodes that the vendor's driver reports.
const NODES: u64 = 65_536;
/// Page offsets at which mmap maps the state of the write-combining buffer.
const STATE_OFFSETS: [usize; 2] = [0x20, 0x1];
/// Size of the region structure in bytes, and offsets of its fields.
const REGION_BYTES: usize = 80;
const REGION_START: usize = 16;
const REGION_NLA: usize = 24;
const REGION_COUNT: usize = 32;
const REGION_SIZE: usize = 48;

type Port = UserPort<Rma>;

/// Region, with a reference that prevents the reuse of its VPID.
type Registered = (Region, Arc<UserVpid<Rma>>);

/// Registered memory, by NLA.
struct Regions {
    /// `None` after closing has begun.
    tree: Option<RBTree<u64, Registered>>,
}

/// State of an open `/dev/extoll/rma2`.
#[pin_data]
pub(super) struct Rma2 {
    id: u64,
    #[pin]
    port: Port,
    #[pin]
    regions: Mutex<Regions>,
    /// Entry in the quarantine, which records that late answers may come after the port was closed.
    /// Only for files that may post commands with bus addresses.
    #[pin]
    late_answers: Mutex<Option<Batch>>,
}

impl Rma2 {
    /// Opens a file. Returns `EAGAIN` if the network does not run, except for the owner of the
    /// device node. Other errors are those of [`UserPort::open`].
    pub(super) fn open(shared: &Arc<Shared>, id: u64, opening: &Opening) -> Result<Arc<Self>> {
        let rights = Rights::current(&shared.settings);
        if !shared.nic.status().is_up() && rights.uid != opening.owner() {
            return Err(EAGAIN);
        }
        let (unit, space) = (shared.nic.rma(), opening.space());
        let pages = rights.page_mask();
        let port = Port::open(shared, unit, rights, space, SlotCode::B16, pages)?;
        let tree = Some(RBTree::new());
        let this = Arc::pin_init(
            try_pin_init!(Self {
                id,
                port <- port,
                regions <- new_mutex!(Regions { tree }, "extoll_regions"),
                late_answers <- new_mutex!(None, "extoll_answers"),
            }),
            GFP_KERNEL,
        )?;
        this.expect_late_answers().inspect_err(|_| this.detach())?;
        Ok(this)
    }

    fn expect_late_answers(&self) -> Result {
        if self.port.rights.has_all_rights() {
            let vpid = self.port.with(|live| Ok(live.vpid()))?;
            let quarantine = self.port.nic().quarantine();
            let batch = quarantine.batch_of_process(Some(vpid), 0)?;
            *self.late_answers.lock() = Some(batch);
        }
        Ok(())
    }

    /// Registers the memory that the structure at `arg` describes, and stores its NLA in the
    /// structure.
    fn register(&self, arg: usize) -> Result<isize> {
        let mut raw = region(arg)?;
        let start = field(&raw, REGION_START) as usize;
        let bytes = field(&raw, REGION_SIZE) as usize;
        let count = field(&raw, REGION_COUNT) as u32;
        if bytes as u64 != u64::from(count) * BusAddr::PAGE_SIZE {
            return Err(EFAULT);
        }
        // Keeps the VPID while translations are made for it without a lock.
        let user_vpid = self.port.with(|live| Ok(live.user_vpid().clone()))?;
        let nic = self.port.nic();
        let room = RBTreeNodeReservation::new(GFP_KERNEL)?;
        let (vpid, access) = (user_vpid.vpid(), Access::READ_WRITE);
        let account = self.port.tables().cloned();
        let region = nic
            .atu()
            .register_user_for(account, vpid, start, bytes, access)?;
        let nla = region.nla().0;
        let node = room.into_node(nla, (region, user_vpid));
        {
            let mut regions = self.regions.lock();
            match regions.tree.as_mut() {
                Some(tree) => drop(tree.insert(node)),
                // Another thread has closed the port. The region must end before the port's VPID
                // can be reused.
                None => {
                    drop(regions);
                    let (_, (region, _lease)) = node.to_key_value();
                    return region.revoke().and(Err(ENODEV));
                }
            }
        }
        raw[REGION_NLA..REGION_NLA + 8].copy_from_slice(&nla.to_ne_bytes());
        put(arg, &raw).inspect_err(|_| {
            if let Some((region, _lease)) = self.take(nla, bytes) {
                let _ = region.revoke();
            }
        })
    }

    /// Removes the region with this NLA and size in bytes, and returns it.
    fn take(&self, nla: u64, bytes: usize) -> Option<(Region, Arc<UserVpid<Rma>>)> {
        let mut regions = self.regions.lock();
        let tree = regions.tree.as_mut()?;
        if tree.get(&nla)?.0.bytes() != bytes {
            return None;
        }
        tree.remove(&nla)
    }

    fn unregister(&self, arg: usize) -> Result<isize> {
        let raw = region(arg)?;
        let (nla, bytes) = (field(&raw, REGION_NLA), field(&raw, REGION_SIZE));
        let (region, _lease) = self.take(nla, bytes as usize).ok_or(EFAULT)?;
        region.revoke().map(|()| 0)
    }
}

/// Copies the region structure from address `arg` of the process. Returns `EFAULT` on failure.
fn region(arg: usize) -> Result<[u8; REGION_BYTES]> {
    let mut raw = [0; REGION_BYTES];
    UserSlice::new(UserPtr::from_addr(arg), REGION_BYTES)
        .reader()
        .read_slice(&mut raw)?;
    Ok(raw)
}

/// Returns the quadword at byte `offset` of the structure.
fn field(raw: &[u8; REGION_BYTES], offset: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&raw[offset..offset + 8]);
    u64::from_ne_bytes(bytes)
}

impl OpenFile for Rma2 {
    fn detach(&self) {
        self.port.close(|| {
            let tree = self.regions.lock().tree.take();
            if let Some(tree) = &tree {
                let regions = || tree.values().map(|(region, _)| region);
                // If the NIC does not confirm the end of a region, its memory stays in quarantine.
                let _ = self.port.nic().atu().revoke_all(regions);
            }
            drop(tree);
        });
        // Recorded when the port is closed, so that the driver's next binding knows of possible
        // late answers.
        let late_answers = self.late_answers.lock().take();
        if let Some(batch) = late_answers {
            batch.hold(self.port.shared.settings.process_quarantine_ms);
        }
    }

    fn revoke(&self) {
        self.port.revoke();
    }
}

/// Registers that control the history mode of requester, responder and completer.
const HISTORY: [RegOffset; 3] = [
    rma::REQUESTER_ERROR_CTRL,
    rma::RESPONDER_ERROR_CTRL,
    rma::COMPLETER_ERROR_CTRL,
];

impl Rma2 {
    /// Changes the VPID's entry in the VPID table. Only for files with all rights.
    fn set_entry(&self, f: impl FnOnce(VpidTable) -> VpidTable) -> Result<isize> {
        self.port.set(|hw, vpid| update_entry(hw, vpid, f))
    }

    fn get_entry(&self, arg: usize, f: impl FnOnce(VpidTable) -> u64) -> Result<isize> {
        self.port.get(arg, |hw, live| {
            f(VpidTable(hw.rf.read(rma::vpid_table(live.vpid()))))
        })
    }
}

impl Handler for Rma2 {
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
        match command {
            GET_NOTIQ_SIZE => put_u64(arg, port.with(|live| Ok(live.sizes().bytes))?),
            SET_NOTIQ_SIZE => port.set_size(|l| &mut l.bytes, arg),
            GET_NOTIQ_SEGMENT_SIZE => put_u64(arg, port.with(|live| Ok(live.sizes().segment))?),
            SET_NOTIQ_SEGMENT_SIZE => port.set_size(|l| &mut l.segment, arg),
            SET_NOTIQ_WP => port.set_lwp(arg),
            SET_NOTIQ_RP => port.set_rp(arg),
            GET_NOTIQ_WP => port.get(arg, Port::lwp),
            GET_NOTIQ_RP => port.get(arg, Port::lrp),
            GET_NODEID => put_u64(arg, port.nic().node().0.into()),
            GET_VPID => put_u64(arg, port.with(|live| Ok(live.vpid().get().into()))?),
            REGISTER_REGION => self.register(arg),
            UNREGISTER_REGION => self.unregister(arg),
            GET_MAXNODEID => put_u64(arg, NODES),
            GET_MAXVPID => put_u64(arg, Vpid::COUNT.into()),
            SET_TUS => self.set_entry(|v| {
                v.with_tu_completer(value as u8 & 7)
                    .with_tu_responder((value >> 32) as u8 & 7)
            }),
            GET_TUS => self.get_entry(arg, |v| {
                u64::from(v.tu_completer()) | u64::from(v.tu_responder()) << 32
            }),
            SET_EXCELL => self.set_entry(|v| v.with_excell_enable(value & 1 != 0)),
            GET_EXCELL => self.get_entry(arg, |v| v.excell_enable().into()),
            SET_TCS => self.set_entry(|v| {
                let class = |n: u32| (value >> (8 * n)) as u8 & 3;
                v.with_tc0(class(0))
                    .with_tc1(class(1))
                    .with_tc2(class(2))
                    .with_tc3(class(3))
            }),
            GET_TCS => self.get_entry(arg, |v| {
                u64::from(u32::from_le_bytes([v.tc0(), v.tc1(), v.tc2(), v.tc3()]))
            }),
            SET_PROTDESC => self.set_entry(|v| v.with_prot_desc(value as u16)),
            GET_PROTDESC => self.get_entry(arg, |v| v.prot_desc().into()),
            SET_TPHBITS => self.set_entry(|v| {
                v.with_steering_tag(value as u8)
                    .with_tph((value >> 8) as u8 & 3)
                    .with_th_enable(value >> 10 & 1 != 0)
            }),
            // Like the vendor's driver, this returns only the steering tag.
            GET_TPHBITS => self.get_entry(arg, |v| v.steering_tag().into()),
            SET_HISTMODE => port.set(|hw, _| {
                for (bit, reg) in HISTORY.into_iter().enumerate() {
                    let on = value >> bit & 1 != 0;
                    hw.rf
                        .update(reg, |v| ErrorCtrl(v).with_history_mode(on).raw());
                }
            }),
            GET_HISTMODE => port.get(arg, |hw, _| {
                let on = |(bit, reg)| u64::from(ErrorCtrl(hw.rf.read(reg)).history_mode()) << bit;
                HISTORY.into_iter().enumerate().map(on).sum()
            }),
            // Undefined commands succeed without effect.
            _ => Ok(0),
        }
    }

    fn mmap(&self, new: NewMapping<'_>) -> Result {
        let port = &self.port;
        match new.offset() {
            0 => port.map_requester(new, usize::from(PAGES), |windows, vpid, parts| {
                for index in 0..PAGES {
                    let part = if port.rights.may_use(index) {
                        Port::requester(windows, vpid, index)?
                    } else {
                        Part::hole(1)
                    };
                    parts.push(part, GFP_KERNEL)?;
                }
                Ok(())
            }),
            offset if STATE_OFFSETS.contains(&offset) => {
                port.map(new, 1, |windows, vpid, parts| {
                    Ok(parts.push(Port::state(windows, vpid)?, GFP_KERNEL)?)
                })
            }
            _ => port.map_queue(new),
        }
    }

    fn poll(&self, file: &File, table: PollTable<'_>) -> u32 {
        self.port.poll(file, table)
    }

    fn release(&self) {
        self.detach();
        self.port.shared.forget(self.id);
    }
}
