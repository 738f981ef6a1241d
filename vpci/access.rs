// SPDX-License-Identifier: GPL-2.0-only

//! Accesses to configuration registers of devices that are borrowed: the kernel makes them with
//! interrupts off as well, so whoever makes one reads the mailbox until the answer is there.

use crate::nic::Nic;
use core::hint::spin_loop;
use kernel::sync::Arc;
use protocol::pci::{borrower::Handle, Ask, Poll};
use wire::ext_pci::Status;

impl Nic {
    /// Makes an access: the value, 0 of a write; `None` if it was not made, or nobody said so in
    /// time. One at a time for each lease. Any context; it takes `access_ms` at most.
    pub(crate) fn access(self: &Arc<Self>, lease: Handle, ask: Ask) -> Option<u32> {
        let asked = self.with_machines(|machines, now| machines.borrower.access(now, lease, ask));
        let (number, node, message) = asked.ok()?;
        self.send(node, &message);
        let mut over = false;
        loop {
            if !self.look() {
                return None;
            }
            let again = self.with_machines(|machines, now| {
                match machines.borrower.poll(now, lease, number) {
                    Poll::Pending(until) if now < until => Ok(None),
                    Poll::Pending(_) => Ok(machines.borrower.step(now)),
                    Poll::Over(Status::Done, value) => Err(Some(value)),
                    Poll::TimedOut => {
                        over = true;
                        Err(None)
                    }
                    Poll::Over(..) | Poll::Lost => Err(None),
                }
            });
            match again {
                Ok(Some((node, message))) => self.send(node, &message),
                Ok(None) => spin_loop(),
                Err(value) => {
                    if over {
                        // Perhaps with the lease.
                        self.wake();
                    }
                    return value;
                }
            }
        }
    }
}
