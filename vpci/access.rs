// SPDX-License-Identifier: GPL-2.0-only

//! Configuration accesses to borrowed devices. The kernel may make them with interrupts off, so the
//! caller polls the mailbox until the answer has arrived. Any context; no lock of [`Nic`] is held
//! on entry.

use crate::nic::Nic;
use core::hint::spin_loop;
use kernel::{prelude::*, sync::Arc};
use protocol::pci::{borrower::Handle, ConfigAccess, Poll};
use wire::pci::Status;

impl Nic {
    /// Makes a configuration access. The caller allows one access at a time for each lease. Returns
    /// the value that was read, or 0 for a write. Any context; busy-waits for up to `access_ms`.
    ///
    /// # Errors
    ///
    /// `TimedOut`: the lender did not answer in time; a write may have been executed. `Lost`: the
    /// lease has ended, or the port is closed. `Finished`: the lender did not execute the access.
    pub(crate) fn access(
        self: &Arc<Self>,
        lease: Handle,
        request: ConfigAccess,
    ) -> Result<u32, Poll> {
        let asked =
            self.with_machines(|machines, now| machines.borrower.access(now, lease, request));
        let (number, node, message) = asked.map_err(|_| Poll::Lost)?;
        self.send(node, &message);
        loop {
            if !self.poll() {
                return Err(Poll::Lost);
            }
            let again = self.with_machines(|machines, now| {
                match machines.borrower.poll(now, lease, number) {
                    Poll::Pending(until) if now < until => Ok(None),
                    Poll::Pending(_) => Ok(machines.borrower.step(now)),
                    Poll::Finished(Status::Done, value) => Err(Ok(value)),
                    how => Err(Err(how)),
                }
            });
            match again {
                Ok(Some((node, message))) => self.send(node, &message),
                Ok(None) => spin_loop(),
                Err(value) => {
                    if value == Err(Poll::TimedOut) {
                        // The timeout may have ended the lease.
                        self.wake();
                    }
                    return value;
                }
            }
        }
    }
}
