//! Messages of a node without a lease, with the true address of the node.

use super::Rig;
use anyhow::Result;
use rand::Rng;
use wire::pci::{
    Body, Borrow, Device, Grant, Incarnation, LeaseId, Message, Numbers, Reason, Register, Role,
    Status,
};

impl Rig {
    pub(super) fn forge(&mut self) -> Result<()> {
        let from = self.nodes.len();
        let to = self.rng.random_range(0..self.nodes.len());
        let seen = match self.seen_leases.len() {
            0 => LeaseId(self.rng.random()),
            n => self.seen_leases[self.rng.random_range(0..n)],
        };
        let life = self.nodes[to].life.as_ref();
        let incarnation = life.map_or(Incarnation(1), |l| l.lender.incarnation());
        let rng = &mut self.rng;
        let lease = match rng.random_bool(0.8) {
            true => seen,
            false => LeaseId::new(seen.nonce(), 0),
        };
        let register = Register::new(4, 2).expect("a register");
        let body = match rng.random_range(0..15) {
            0 => Body::List(rng.random_range(0..5)),
            1 => Body::Device(Device::default()),
            // The device is absent, because the forger could legally borrow an existing one.
            2 => Body::Borrow(Borrow {
                handle: rng.random(),
                generation: 1,
                lender: incarnation,
                windows: (u64::MAX >> 2) & !1,
                targets: (u64::MAX >> 2) & !1,
                dma: 4096,
            }),
            3 => Body::Grant(Grant {
                lease: seen,
                generation: 1,
                timeout_ms: 1,
                numbers: Numbers {
                    bars: [1, 0, 2, 0, 3, 0],
                    dma: 1,
                    interrupts: 2,
                },
                dma: 4096,
                interrupts: 4096,
                borrower: Incarnation(rng.random()),
            }),
            4 => Body::Refuse(Reason::ALL[rng.random_range(0..11)], lease),
            5 => Body::Read(seen, register),
            6 => Body::Write(seen, register, 6),
            7 => Body::Done(seen, Status::Done, 6),
            8 => Body::Reset(seen),
            9 => Body::Return(lease),
            10 => Body::Returned(lease),
            11 => Body::Revoke(seen, rng.random_range(0..2)),
            12 => Body::Revoked(seen),
            n => Body::Alive {
                lease: seen,
                to: if n == 13 {
                    Role::Lender
                } else {
                    Role::Borrower
                },
                answer: rng.random_bool(0.5),
            },
        };
        let bare = matches!(
            body,
            Body::Return(_) | Body::Returned(_) | Body::Revoke(..) | Body::Revoked(_)
        );
        let number = match body {
            _ if bare => 0,
            Body::Grant(_) | Body::Borrow(_) => seen.nonce(),
            _ => rng.random_range(0..50),
        };
        let sender = Incarnation(rng.random());
        let message = Message {
            number,
            sender,
            body,
        };
        self.post(from, to, &message);
        Ok(())
    }
}
