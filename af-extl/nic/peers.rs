// SPDX-License-Identifier: GPL-2.0-only

//! What a NIC remembers of peers that did not answer, or too late.

use super::Nic;
use kernel::prelude::*;
use kernel_ext::net::socket::{Mac, Neighbour};
use protocol::ds::{Fallback, Host, Program};
use wire::{ds::Tuple, ids::NodeId};

/// What a connection of a client goes to.
fn program(node: NodeId, tuple: &Tuple) -> Program {
    Program {
        node,
        address: tuple.server,
        port: tuple.server_port,
    }
}

impl Nic {
    /// Whether there is a use in asking a node for a connection.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub(crate) fn may_ask(&self, peer: NodeId, tuple: &Tuple) -> Result<(), Fallback> {
        let now = self.now();
        if self.silent.lock().is_silent(peer, self.opening.silent, now) {
            return Err(Fallback::KnownSilent);
        }
        match self.late.lock().is_avoided(&program(peer, tuple), now) {
            true => Err(Fallback::KnownLate),
            false => Ok(()),
        }
    }

    /// What became of a question to a node.
    pub(super) fn asked(&self, peer: NodeId, tuple: &Tuple, why: Option<Fallback>) {
        let (now, program) = (self.now(), program(peer, tuple));
        match why {
            // Messages of it say when it is not any more.
            Some(Fallback::Silent) => self.silent.lock().silent(peer, now),
            Some(Fallback::NotAccepted) => {
                self.late.lock().fail(program, self.opening.late, now);
            }
            Some(_) => {}
            None => self.late.lock().succeed(&program),
        }
    }

    /// The address of a neighbour on an interface of the NIC, which is asked for and waited for, at most
    /// `patience` ms; if it did not answer lately, not at all. May sleep.
    ///
    /// # Errors
    ///
    /// `NoNeighbour`: it is not known. It is asked for nevertheless.
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
            // It may have answered since it was given up.
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
                // A signal says nothing of the neighbour.
                if e != EINTR {
                    let pause = self.opening.silent;
                    self.unresolved.lock().fail(host, pause, self.now());
                }
                Err(Fallback::NoNeighbour)
            }
        }
    }
}
