//! Ports of a node's state machines, and its poll function for messages.

use super::fetched::Target;
use super::{Node, Report};
use crate::fabric::Fabric;
use crate::memory::{Block, Pool};
use crate::port::Port;
use crate::Heap;
use protocol::base::age_bound::AgeBound;
use protocol::eth::poll::{Timer, Work};
use protocol::eth::rendezvous::{AnnouncePort, FetchPort, Fetches, Shared};
use protocol::{Time, TransportError};
use std::cell::RefCell;
use std::rc::Rc;
use wire::eth::{self, Announcement, GET_PAGE};
use wire::ids::{NodeId, Unit};

/// Sends announcements.
pub(super) struct Announcer<'a> {
    pub(super) fabric: &'a mut Fabric,
    pub(super) port: &'a mut Port,
}

impl AnnouncePort for Announcer<'_> {
    fn announce(&mut self, to: NodeId, announcement: &Announcement) -> Result<(), TransportError> {
        self.port.send(
            self.fabric,
            eth::announcement_descriptor(to),
            &announcement.encode(),
        )
    }
}

/// Posts GETs into buffers of the node.
pub(super) struct Fetcher<'a> {
    pub(super) fabric: &'a mut Fabric,
    pub(super) port: &'a mut Port,
    pub(super) pool: &'a Pool,
    pub(super) targets: &'a mut Vec<Target>,
    pub(super) reports: &'a mut Vec<Report>,
    pub(super) short_of_memory: bool,
    pub(super) twice: bool,
}

impl FetchPort for Fetcher<'_> {
    type Buffer = Block;

    fn reserve(&mut self) -> Result<(), TransportError> {
        self.port.reserve(self.fabric, Unit::Rma)
    }

    fn buffer(&mut self, _len: u32) -> Option<Block> {
        match self.short_of_memory {
            true => None,
            false => self.pool.take(),
        }
    }

    fn get(
        &mut self,
        from: NodeId,
        announcement: &Announcement,
        len: u32,
        local: u64,
    ) -> Result<(), TransportError> {
        let descriptor = eth::get_descriptor(from, announcement, len, local);
        // The tags are written before the GET is posted, because the GET may be answered at once.
        let target = Target::prepare(self.fabric, self.port.nic(), local, len)
            .map_err(|_| TransportError::Never)?;
        self.port.command(self.fabric, GET_PAGE, &descriptor)?;
        if self.twice {
            let _ = self.port.command(self.fabric, GET_PAGE, &descriptor);
        }
        self.targets.retain(|t| t.local != local);
        self.targets.push(target);
        self.reports.push(Report::Get {
            from: from.0,
            address: announcement.address,
            local,
        });
        Ok(())
    }
}

/// The table of GETs with its lock.
pub(super) struct Locked<'a>(pub(super) &'a RefCell<Fetches<Heap, Block>>);

impl Shared<Fetches<Heap, Block>> for Locked<'_> {
    fn with<R>(&self, f: impl FnOnce(&mut Fetches<Heap, Block>) -> R) -> R {
        f(&mut self.0.borrow_mut())
    }
}

/// The timer with its lock.
pub(super) struct Timed(pub(super) Rc<RefCell<Timer>>);

impl Shared<Timer> for Timed {
    fn with<R>(&self, f: impl FnOnce(&mut Timer) -> R) -> R {
        f(&mut self.0.borrow_mut())
    }
}

/// One run of the poll function for messages.
pub(super) struct Run<'a> {
    pub(super) node: &'a mut Node,
    pub(super) port: Port,
    pub(super) fabric: &'a mut Fabric,
    /// Time as read by the CPU.
    pub(super) now: u64,
    pub(super) failed: Option<anyhow::Error>,
}

impl Work for Run<'_> {
    fn messages(&mut self, most: usize) -> usize {
        let mut n = 0;
        while n < most {
            match self.port.message(self.fabric) {
                Ok(Some(message)) => {
                    n += 1;
                    self.node.message(self.fabric, &message);
                }
                Ok(None) => break,
                Err(e) => {
                    self.failed = Some(e);
                    break;
                }
            }
        }
        n
    }

    fn room(&self) -> usize {
        self.node.waiting.room()
    }

    fn backlog(&mut self) -> usize {
        self.port.backlog(self.fabric)
    }

    fn age_bound(&mut self) -> &mut AgeBound {
        self.node.waiting.age_bound()
    }

    fn waiting(&self) -> usize {
        self.node.waiting.len()
    }

    fn pump(&mut self) {
        self.node.pump(self.fabric, &mut self.port);
    }

    fn publish(&mut self) {
        self.node.published = self.node.waiting.len();
    }

    fn housekeeping(&mut self) {
        self.node.age(self.now);
    }

    fn is_busy(&self) -> bool {
        !self.node.is_idle()
    }

    fn timer_runs(&self) -> bool {
        self.node.timer_at.is_some()
    }

    fn set_timer(&mut self, at: Time) {
        self.node.set_timer(at);
    }
}
