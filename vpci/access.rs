// SPDX-License-Identifier: GPL-2.0-only

//! Accesses to configuration registers of devices that are borrowed: the kernel makes them with
//! interrupts off as well, so whoever makes one reads the mailbox until the answer is there.

use crate::nic::Nic;
use core::hint::spin_loop;
use kernel::{prelude::*, sync::Arc};
use protocol::pci::{borrower::Handle, Ask, Poll};
use wire::pci::Status;

impl Nic {
    /// Makes an access, one at a time for each lease. Returns the value, 0 for a write. Any context; takes
    /// `access_ms` at most.
    ///
    /// # Errors
    ///
    /// `TimedOut`: the lender has not answered in time, so a write may have been made. `Lost`: the lease is
    /// over, or the port closed. `Over`: the lender has not made it.
    pub(crate) fn access(self: &Arc<Self>, lease: Handle, ask: Ask) -> Result<u32, Poll> {
        let asked = self.with_machines(|machines, now| machines.borrower.access(now, lease, ask));
        let (number, node, message) = asked.map_err(|_| Poll::Lost)?;
        self.send(node, &message);
        loop {
            if !self.look() {
                return Err(Poll::Lost);
            }
            let again = self.with_machines(|machines, now| {
                match machines.borrower.poll(now, lease, number) {
                    Poll::Pending(until) if now < until => Ok(None),
                    Poll::Pending(_) => Ok(machines.borrower.step(now)),
                    Poll::Over(Status::Done, value) => Err(Ok(value)),
                    how => Err(Err(how)),
                }
            });
            match again {
                Ok(Some((node, message))) => self.send(node, &message),
                Ok(None) => spin_loop(),
                Err(value) => {
                    if value == Err(Poll::TimedOut) {
                        // The lease may be over by that.
                        self.wake();
                    }
                    return value;
                }
            }
        }
    }
}
