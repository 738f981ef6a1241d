// SPDX-License-Identifier: GPL-2.0-only

//! State of the seven links and their neighbours (HW §15.4), as last seen. Trigger events 17 to 20 make it be read again.

use crate::{nic::Nic, stats::Reason};
use kernel::{
    fmt,
    prelude::*,
    str::CString,
    sync::{
        atomic::{Atomic, Relaxed},
        new_mutex, new_spinlock_irq, Arc, Mutex, SpinLockIrq,
    },
};
use kernel_ext::uevent;
use wire::{
    ids::NodeId,
    regs::lp::{self, Ids, LpIn, Status},
};

/// Number of links.
pub const LINKS: usize = lp::PORTS as usize;

/// Who is at the other end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// GUID of the NIC.
    pub guid: u32,
    /// Its node ID.
    pub node: NodeId,
    /// Its link.
    pub port: u8,
}

/// A link.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Link {
    /// Software lets it train.
    pub enabled: bool,
    /// It carries packets.
    pub up: bool,
    /// The neighbour, once it has told.
    pub neighbour: Option<Neighbour>,
}

/// State of a NIC's links.
#[pin_data]
pub(crate) struct Links {
    #[pin]
    state: SpinLockIrq<[Link; LINKS]>,
    /// Taken to look at the registers: what was read first is noted first.
    #[pin]
    looking: Mutex<()>,
    ups: [Atomic<u64>; LINKS],
    downs: [Atomic<u64>; LINKS],
}

impl Links {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            state <- new_spinlock_irq!([Link::default(); LINKS], "extoll_links"),
            looking <- new_mutex!((), "extoll_links_looking"),
            ups: [const { Atomic::new(0) }; LINKS],
            downs: [const { Atomic::new(0) }; LINKS],
        })
    }

    /// The links as last seen. No register access; any context.
    pub(crate) fn get(&self) -> [Link; LINKS] {
        *self.state.lock()
    }

    /// Whether one of them carries packets, as last seen. Any context.
    pub(crate) fn any_up(&self) -> bool {
        self.state.lock().iter().any(|link| link.up)
    }

    /// For debugfs.
    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, link) in self.get().iter().enumerate() {
            let count = |list: &[Atomic<u64>; LINKS]| list.get(n).map_or(0, |c| c.load(Relaxed));
            let state = match (link.enabled, link.up) {
                (_, true) => "up",
                (true, false) => "down",
                (false, false) => "disabled",
            };
            write!(
                f,
                "link {n} {state} ups {} downs {}",
                count(&self.ups),
                count(&self.downs)
            )?;
            if let Some(Neighbour { guid, node, port }) = link.neighbour {
                write!(f, " neighbour {} port {port} guid {guid:#x}", node.0)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

fn read(nic: &Arc<Nic>, n: u32) -> Option<Link> {
    let hw = nic.alive_access()?;
    let status = hw.rf.read(lp::status(n));
    if status == u64::MAX {
        nic.is_gone(&hw, status);
        return None;
    }
    let status = Status(status);
    let ids = Ids(hw.rf.read(lp::ids(n)));
    let told = LpIn(hw.rf.read(lp::lp_in(n))).node_id_received();
    Some(Link {
        enabled: status.enable(),
        up: status.ready(),
        neighbour: told.then_some(Neighbour {
            guid: ids.remote_guid(),
            node: ids.remote_node(),
            port: ids.remote_lp_id(),
        }),
    })
}

/// Reads all links; what changed is told to subscribers and user space if `tell`. Process context.
pub(crate) fn refresh(nic: &Arc<Nic>, tell: bool) {
    let _looking = nic.links.looking.lock();
    for n in 0..LINKS {
        let Some(new) = read(nic, n as u32) else {
            return;
        };
        let old = {
            let mut state = nic.links.state.lock();
            match state.get_mut(n) {
                Some(place) => core::mem::replace(place, new),
                None => return,
            }
        };
        if !tell || old == new {
            continue;
        }
        if old.up != new.up {
            changed(nic, n, new.up);
        }
        nic.publish_link(n as u8, new);
    }
}

/// Looks again as long as no link is up: should an event get lost, those above would wait for the first one for ever. Process context.
pub(crate) fn watch(nic: &Arc<Nic>) {
    if !nic.links.any_up() {
        refresh(nic, true);
    }
}

fn changed(nic: &Nic, n: usize, up: bool) {
    let counters = if up { &nic.links.ups } else { &nic.links.downs };
    if let Some(counter) = counters.get(n) {
        counter.fetch_add(1, Relaxed);
    }
    if up {
        nic.error(Reason::LinkUp, n as u64);
    } else {
        nic.error(Reason::LinkDown, n as u64);
    }
    let state = if up { c"STATE=up" } else { c"STATE=down" };
    let sent = CString::try_from_fmt(fmt!("EXTOLL_LINK={n}"))
        .and_then(|link| uevent::changed(nic.device(), &[&link, state]));
    if sent.is_err() {
        nic.error(Reason::LostUevent, n as u64);
    }
}
