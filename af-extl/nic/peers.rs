// SPDX-License-Identifier: GPL-2.0-only

//! Peers that did not answer, or answered too late. Process context or softirq; only
//! [`Nic::resolve`] may sleep.

use super::Nic;
use kernel::prelude::*;
use kernel_ext::net::socket::{Mac, Neighbour};
use protocol::ds::{Fallback, Host, Program};
use wire::{ds::Tuple, ids::NodeId};

/// Returns the server program that a client connects to.
fn program(node: NodeId, tuple: &Tuple) -> Program {
    Program {
        node,
        address: tuple.server,
        port: tuple.server_port,
    }
}

impl Nic {
    /// Checks whether it is useful to request a connection from a node.
    ///
    /// # Errors
    ///
    /// Returns the reason for the fallback to TCP.
    pub(crate) fn may_ask(&self, peer: NodeId, tuple: &Tuple) -> Result<(), Fallback> {
        let now = self.now();
        if self.silent.lock().is_silent(peer, self.opening.silent, now) {
            return Err(Fallback::RecentlySilent);
        }
        if self.late.lock().is_avoided(&program(peer, tuple), now) {
            return Err(Fallback::RecentlyLate);
        }
        Ok(())
    }

    /// Records the result of a request to a node.
    pub(super) fn asked(&self, peer: NodeId, tuple: &Tuple, why: Option<Fallback>) {
        let (now, program) = (self.now(), program(peer, tuple));
        match why {
            // A message from the node removes it from the list of nodes that do not answer.
            Some(Fallback::Silent) => self.silent.lock().silent(peer, now),
            Some(Fallback::NotAccepted) => {
                self.late.lock().fail(program, self.opening.late, now);
            }
            Some(_) => {}
            None => self.late.lock().succeed(&program),
        }
    }

    /// Returns the MAC address of a neighbour, after a wait of up to `patience` ms for its
    /// resolution. Does not wait if the neighbour recently did not answer. May sleep.
    ///
    /// # Errors
    ///
    /// `NoNeighbour`: the address is unknown. The resolution of the address has been started.
    pub(crate) fn resolve(
        &self,
        interface: u32,
        neighbour: &Neighbour,
        patience: u32,
    ) -> Result<Mac, Fallback> {
        let host = Host {
            interface,
            address: neighbour.host(),
        };
        if let Ok(Some(mac)) = neighbour.address() {
            // The neighbour may have answered since the last attempt failed.
            self.unresolved.lock().succeed(&host);
            return Ok(mac);
        }
        let avoided = self.unresolved.lock().is_avoided(&host, self.now());
        match neighbour.resolve(if avoided { 0 } else { patience }) {
            Ok(mac) => {
                self.unresolved.lock().succeed(&host);
                Ok(mac)
            }
            Err(e) => {
                // A signal does not show that the neighbour is unreachable.
                if e != EINTR {
                    let pause = self.opening.silent;
                    self.unresolved.lock().fail(host, pause, self.now());
                }
                Err(Fallback::NoNeighbour)
            }
        }
    }
}
