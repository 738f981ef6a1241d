//! Changes of the fabric from outside: faults, knobs, power, and actions that register writes
//! trigger.

use super::link::Flap;
use super::topology::End;
use super::{DownPolicy, LinkKnobs};
use super::{
    DropReason, Network, PortAction, Timer, TE_GLOBAL_INTERRUPT, TE_LINK_MAC, TE_LINK_PORT,
};
use crate::nic::NetworkRegs;
use crate::seed::{self, Purpose};
use crate::trace::{Event, Tracer};
use rand::Rng;

impl Network {
    /// Brings up every link that can be up. The caller calls this once, after the NICs exist and
    /// their identity is known. [`Network::end_faults`] will restore the current knobs of the
    /// cables.
    pub fn start(&mut self, trace: &mut Tracer) {
        for c in 0..self.cables.len() {
            self.cables[c].usual = self.cables[c].knobs;
            self.update(c, trace);
        }
    }

    /// Performs the actions that register writes of this NIC triggered.
    pub fn after_access(&mut self, nic: usize, trace: &mut Tracer) {
        let actions = {
            let mut regs = self.regs(nic);
            if regs.actions.is_empty() {
                return;
            }
            std::mem::take(&mut regs.actions)
        };
        for action in actions {
            match action {
                PortAction::SendIds { link, guid, ids } => {
                    if let Some((c, side)) = self.nodes[nic].ports[usize::from(link)] {
                        if self.cables[c].live {
                            self.send_identity(c, side, guid, ids);
                        }
                    }
                }
                PortAction::LinkEnable { link } => {
                    if let Some((c, _)) = self.nodes[nic].ports[usize::from(link)] {
                        self.update(c, trace);
                    }
                }
                PortAction::Barrier(k) => self.barrier(nic, k.into()),
                PortAction::GlobalInterrupt(k) => self.global_interrupt(k),
                PortAction::Reset => self.retrain(nic, trace),
            }
        }
    }

    /// Sets the flag of global interrupt `k` and raises its event on all nodes, because a trigger
    /// on any node interrupts all nodes (G24).
    fn global_interrupt(&mut self, k: u8) {
        for nic in 0..self.nodes.len() {
            self.regs(nic).gint[usize::from(k)] |= 2;
            self.raise(nic, TE_GLOBAL_INTERRUPT);
        }
    }

    /// Trains the links of a chip again after a reset of the chip.
    fn retrain(&mut self, nic: usize, trace: &mut Tracer) {
        for (c, _) in self.nodes[nic].ports.into_iter().flatten() {
            self.cables[c].live = false;
            self.lose_queue(c, 0, trace);
            self.lose_queue(c, 1, trace);
            self.update(c, trace);
            // Packets that waited for buffer space in this NIC advance now, even if the link stays
            // down.
            for e in self.cables[c].ends {
                self.wake_link(e.nic, e.port);
            }
        }
    }

    /// Sends the identity of one side of a cable to the other side: GUID, node ID and port, or
    /// both.
    fn send_identity(&mut self, cable: usize, side: usize, guid: bool, ids: bool) {
        let (from, to) = (
            self.cables[cable].ends[side],
            self.cables[cable].ends[1 - side],
        );
        let (my_guid, my_node) = self.nodes[from.nic].identity;
        let mut regs = self.regs(to.nic);
        let lp = &mut regs.links[usize::from(to.port)];
        if guid {
            lp.remote.0 = my_guid;
            lp.id_flags |= 1;
        }
        if ids {
            lp.remote.1 = my_node;
            lp.remote.2 = from.port;
            lp.id_flags |= 2;
        }
    }

    /// Determines whether a cable carries packets, and acts on a change.
    fn update(&mut self, c: usize, trace: &mut Tracer) {
        let ends = self.cables[c].ends;
        let enabled = |e: End| {
            self.nodes[e.nic].powered && self.regs(e.nic).links[usize::from(e.port)].enable
        };
        let live = self.cables[c].up && ends.iter().all(|&e| enabled(e));
        for e in ends {
            self.regs(e.nic).links[usize::from(e.port)].ready = live;
        }
        if live == self.cables[c].live {
            return;
        }
        self.cables[c].live = live;
        for e in ends {
            self.wake_link(e.nic, e.port);
        }
        if trace.on() {
            trace.record(
                ends[0].nic,
                self.now,
                Event::Link {
                    port: ends[0].port,
                    up: live,
                },
            );
            trace.record(
                ends[1].nic,
                self.now,
                Event::Link {
                    port: ends[1].port,
                    up: live,
                },
            );
        }
        for side in 0..2 {
            if live {
                self.send_identity(c, side, true, true);
                self.release_held(c, side);
            } else {
                self.stop_direction(c, side, trace);
            }
        }
        for e in ends {
            self.raise(e.nic, TE_LINK_MAC);
            self.raise(e.nic, TE_LINK_PORT);
        }
    }

    fn release_held(&mut self, cable: usize, side: usize) {
        let now = self.now;
        let latency = self.cables[cable].knobs.latency_ns;
        let dir = &mut self.cables[cable].dirs[side];
        for (at, _) in &mut dir.queue {
            *at = now.saturating_add(latency);
        }
        if let Some((at, _)) = dir.queue.front() {
            self.timers.insert((*at, Timer::Arrive { cable, side }));
        }
    }

    fn stop_direction(&mut self, cable: usize, side: usize, trace: &mut Tracer) {
        self.timers
            .retain(|(_, t)| *t != Timer::Arrive { cable, side });
        self.cables[cable].dirs[side].busy_until = 0;
        if self.cables[cable].policy == DownPolicy::Drop {
            self.lose_queue(cable, side, trace);
        }
    }

    fn lose_queue(&mut self, cable: usize, side: usize, trace: &mut Tracer) {
        self.timers
            .retain(|(_, t)| *t != Timer::Arrive { cable, side });
        let c = &mut self.cables[cable];
        let from = c.ends[side].nic;
        let dir = &mut c.dirs[side];
        let lost = std::mem::take(&mut dir.queue);
        dir.busy_until = 0;
        dir.stats.dropped_down += lost.len() as u64;
        dir.stats.queued_bytes = 0;
        for (_, flit) in lost {
            self.lost_on_cable(cable, side, &flit);
            self.discard(from, flit, DropReason::LinkDown, trace);
        }
    }

    /// Returns the cable that has the end `end`.
    pub fn cable_at(&self, end: End) -> Option<usize> {
        Some(
            self.nodes
                .get(end.nic)?
                .ports
                .get(usize::from(end.port))?
                .as_ref()?
                .0,
        )
    }

    /// Returns the number of cables.
    pub fn cable_count(&self) -> usize {
        self.cables.len()
    }

    /// Plugs a cable in or unplugs it. Ends a flap of the cable.
    pub fn set_link(
        &mut self,
        cable: usize,
        up: bool,
        policy: Option<DownPolicy>,
        trace: &mut Tracer,
    ) {
        self.cables[cable].flap = None;
        self.timers.retain(|(_, t)| *t != Timer::Flap { cable });
        if let Some(p) = policy {
            self.cables[cable].policy = p;
        }
        self.cables[cable].up = up;
        self.update(cable, trace);
    }

    /// Makes a cable go down and up repeatedly, beginning now. Packets are held while the cable is
    /// down, unless `policy` differs.
    pub fn start_flap(
        &mut self,
        cable: usize,
        flap: Flap,
        policy: Option<DownPolicy>,
        trace: &mut Tracer,
    ) {
        self.set_link(cable, true, Some(policy.unwrap_or(DownPolicy::Hold)), trace);
        self.cables[cable].flap = Some(flap);
        self.timers.insert((self.now, Timer::Flap { cable }));
    }

    pub(super) fn flap(&mut self, cable: usize, trace: &mut Tracer) {
        let Some(mut flap) = self.cables[cable].flap else {
            return;
        };
        let up = !self.cables[cable].up;
        self.cables[cable].up = up;
        self.update(cable, trace);
        if up && flap.left <= 1 {
            self.cables[cable].flap = None;
            self.cables[cable].policy = self.cfg.link_down;
            return;
        }
        if up {
            flap.left -= 1;
        }
        self.cables[cable].flap = Some(flap);
        let wait = if up { flap.up_ns } else { flap.down_ns };
        self.timers
            .insert((self.now.saturating_add(wait.max(1)), Timer::Flap { cable }));
    }

    /// Sets the knobs of a cable. Packets in flight keep their arrival time.
    pub fn set_knobs(&mut self, cable: usize, knobs: LinkKnobs) {
        self.cables[cable].knobs = knobs;
    }

    /// Returns the knobs of a cable.
    pub fn knobs(&self, cable: usize) -> LinkKnobs {
        self.cables[cable].knobs
    }

    /// Returns cables and NICs to their configured state: cables are plugged in, knobs and policies
    /// are as configured, and no NIC is frozen. Power does not change.
    pub fn end_faults(&mut self, trace: &mut Tracer) {
        for c in 0..self.cables.len() {
            self.cables[c].knobs = self.cables[c].usual;
            self.set_link(c, true, Some(self.cfg.link_down), trace);
        }
        for nic in (0..self.nodes.len())
            .filter(|&n| self.nodes[n].frozen)
            .collect::<Vec<_>>()
        {
            self.set_frozen(nic, false);
        }
    }

    /// Freezes or thaws a NIC. A frozen NIC accepts no packets from the network and sends none.
    /// Packets to the NIC wait in the fabric, where they block transit traffic after buffers are
    /// full.
    pub fn set_frozen(&mut self, nic: usize, frozen: bool) {
        self.nodes[nic].frozen = frozen;
        if !frozen {
            self.ready_all(nic);
        }
    }

    /// Switches a NIC off or on. When a NIC is switched off, its links go down and its queued
    /// packets are lost. The caller resets the NIC.
    pub fn set_power(&mut self, nic: usize, on: bool, trace: &mut Tracer) {
        self.nodes[nic].powered = on;
        if !on {
            self.nodes[nic].frozen = false;
            self.lose_buffers(nic, trace);
        }
        for (c, side) in self.nodes[nic].ports.into_iter().flatten() {
            self.update(c, trace);
            if !on {
                // Packets of the NIC that is off are lost, regardless of the policy of the cable.
                self.lose_queue(c, side, trace);
            }
        }
    }

    /// Restarts the random number generators and the arbiters from `seed`.
    pub fn reseed(&mut self, seed: u64) {
        self.cfg.seed = seed;
        self.rng = seed::rng(seed, 0, Purpose::Network);
        for (i, node) in self.nodes.iter_mut().enumerate() {
            let mut rng = seed::rng(seed, i, Purpose::Arbiters);
            node.xbar.restart(|| rng.random());
        }
    }

    /// Returns the value of a network register. Returns `None` if the NIC model holds the register.
    pub fn register(&self, nic: usize, offset: u32) -> Option<u64> {
        NetworkRegs::read(&mut *self.regs(nic), offset)
    }

    /// Returns the links of a NIC that have a cable, with their far ends.
    pub fn link_ends(&self, nic: usize) -> Vec<(u8, End)> {
        let ports = self.nodes[nic].ports.iter().enumerate();
        ports
            .filter_map(|(p, c)| c.map(|(c, side)| (p as u8, self.cables[c].ends[1 - side])))
            .collect()
    }
}

impl Network {
    /// Returns true if register writes of this NIC triggered actions that [`Network::after_access`]
    /// must perform.
    pub fn has_actions(&self, nic: usize) -> bool {
        !self.regs(nic).actions.is_empty()
    }
}

impl Network {
    /// Returns both ends of a cable.
    pub fn cable_ends(&self, cable: usize) -> [End; 2] {
        self.cables[cable].ends
    }
}
