//! Users that borrow devices, use them and return them.

use super::net::Packet;
use super::node::numbers;
use super::{Event, Mutation, Request, Rig, BUSY, EACH, LAG, LIMITS, MS};
use anyhow::{ensure, Result};
use protocol::pci::{AccessError, Config, ConfigAccess, EndReason, Handle, LeaseState, Poll};
use protocol::Time;
use rand::Rng;
use wire::ids::NodeId;
use wire::pci::{Body, Borrow, Incarnation, LeaseId, Message, Register};

impl Rig {
    pub(super) fn request(&mut self, node: usize, handle: Handle) -> Option<&mut Request> {
        let lives = self.nodes[node].lives;
        let mut all = self.requests.values_mut();
        all.find(|r| r.node == node && r.life == lives && r.handle == handle)
    }

    /// A node tries to borrow one of the devices.
    pub(super) fn want(&mut self, node: usize) -> Result<()> {
        let i = self.rng.random_range(0..self.functions.len());
        let until = self.within(MS, 1_500 * MS);
        self.ask(node, i, until, false).map(|_| ())
    }

    /// Requests a device. The lender's description counts as received, though it may be outdated.
    fn ask(&mut self, node: usize, i: usize, until: u64, demanded: bool) -> Result<bool> {
        let lender = self.functions[i].home;
        if lender == node {
            return Ok(false);
        }
        let Some(handle) = self.functions[i].handle else {
            return Ok(false);
        };
        let described = self.nodes[lender].life.as_ref().and_then(|life| {
            let device = life.lender.devices().find(|(d, _)| d.handle == handle)?.0;
            Some((device, life.lender.incarnation()))
        });
        let Some((device, incarnation)) = described else {
            return Ok(false);
        };
        let old = !demanded && self.rng.random_bool(0.1);
        let terms = Borrow {
            handle,
            generation: device.generation - u32::from(old && device.generation > 1),
            lender: match !demanded && self.rng.random_bool(0.02) {
                true => Incarnation(7),
                false => incarnation,
            },
            windows: self.nodes[node].free_windows(),
            targets: self.nodes[node].free_targets(),
            dma: 1 << 20,
        };
        let (now, lives) = (Time(self.now), self.nodes[node].lives);
        let Some(life) = self.nodes[node].life.as_mut() else {
            return Ok(false);
        };
        let to = NodeId(lender as u16);
        let Some(handle) = life.borrower.borrow(now, to, &terms, Time(until)) else {
            return Ok(false);
        };
        self.summary.asked += 1;
        self.log(|| format!("{node} wants device {i} until {until}: {handle:x?}"));
        let number = self.name();
        self.requests.insert(
            number,
            Request {
                node,
                life: lives,
                handle,
                lender,
                function: i,
                until,
                answered: false,
                up: false,
                demanded,
                slot: 0,
                interrupts: 0,
            },
        );
        self.drain(node)?;
        Ok(true)
    }

    /// Checks that a request was granted or has ended by its deadline.
    pub(super) fn check_deadline(&mut self, node: usize, handle: Handle) -> Result<()> {
        let now = self.now;
        if let Some(request) = self.request(node, handle) {
            let late = now.saturating_sub(request.until + 2 * LAG);
            ensure!(
                request.answered || late == 0,
                "a request of {node} is {} ms overdue",
                late / MS
            );
            request.answered = true;
        }
        Ok(())
    }

    pub(super) fn over(&mut self, node: usize, handle: Handle, why: EndReason) -> Result<()> {
        if let Some(request) = self.request(node, handle) {
            request.up = false;
        }
        match why {
            EndReason::GivenBack => self.summary.returned += 1,
            EndReason::Lost | EndReason::Revoked | EndReason::Unknown | EndReason::Stuck => {
                self.summary.lost += 1
            }
            _ => self.summary.refused += 1,
        }
        Ok(())
    }

    /// Records an established lease. The device is used until it is returned.
    pub(super) fn is_up(&mut self, node: usize, handle: Handle) {
        let lives = self.nodes[node].lives;
        let mine = |r: &Request| r.node == node && r.life == lives && r.handle == handle;
        let found = self.requests.iter_mut().find(|(_, r)| mine(r));
        let Some((number, request)) = found else {
            return;
        };
        request.up = true;
        let (number, demanded) = (*number, request.demanded);
        self.summary.up += 1;
        self.at(self.now + 1, Event::Use(number));
        let back = match self.now < BUSY {
            true => self.rng.random_bool(0.7),
            false => !self.keep && !demanded,
        };
        if back {
            let at = self.within(MS, 1_500 * MS);
            self.have(node, at, super::Job::GiveBack(handle));
        }
    }

    pub(super) fn use_it(&mut self, i: u64) -> Result<()> {
        let Some(request) = self.requests.get(&i).copied() else {
            return Ok(());
        };
        let node = request.node;
        let time = Time(self.now);
        let Some(life) = self.nodes[node].life(request.life) else {
            return Ok(());
        };
        if life.borrower.state(request.handle) != Some(LeaseState::Up) {
            return Ok(());
        }
        let leases = life.borrower.leases();
        let lease = leases.filter(|l| l.0 == request.handle).map(|l| l.1).next();
        let calm = self.now > BUSY;
        let next = self.within(MS, if calm { 80 * MS } else { 20 * MS });
        self.at(next, Event::Use(i));
        if let Some(lease) = lease.filter(|_| self.liar == Some(node) && !calm) {
            if self.rng.random_bool(0.5) {
                self.lie(&request, lease);
                return Ok(());
            }
        }
        let register = |at, size| Register::new(at, size).expect("a register");
        let ask = match self.rng.random_range(0..11) {
            0..4 => {
                // Accesses through the windows.
                let links = self.nodes[node].windows;
                for (number, link) in links.iter().enumerate() {
                    let Some(link) = link.filter(|l| Some(l.lease) == lease) else {
                        continue;
                    };
                    self.access(Packet {
                        from: node,
                        to: link.node,
                        number,
                        lease: link.lease,
                        dma: false,
                        since: link.since,
                    });
                }
                return Ok(());
            }
            // Enables bus mastering.
            4 | 5 => ConfigAccess::Write(register(4, 2), 6),
            // Enables interrupts step by step.
            9 => {
                let step = self.rng.random_range(0..4);
                self.msi(&request, step)
            }
            6 | 7 => {
                self.next_write += 1;
                ConfigAccess::Write(register(0x50, 4), self.next_write)
            }
            8 if self.rng.random_bool(if self.mixed { 0.5 } else { 0.2 }) => ConfigAccess::Reset,
            // A write that is not permitted.
            8 => ConfigAccess::Write(register(0x10, 4), 0x1000),
            _ => ConfigAccess::Read(register(0, 4)),
        };
        let Some(life) = self.nodes[node].life(request.life) else {
            return Ok(());
        };
        match life.borrower.access(time, request.handle, ask) {
            Ok((number, to, message)) => {
                self.summary.accesses += 1;
                self.post(node, to.0.into(), &message);
                let look = self.name();
                self.looks.insert(look, (i, number, self.now));
                self.at(self.now + 1, Event::Look(look));
            }
            Err(AccessError::Busy) => {}
            Err(AccessError::Lost) => anyhow::bail!("a lease that is up is lost"),
        }
        self.drain(node)
    }

    /// Polls for the result of an access, like a waiting driver.
    pub(super) fn look(&mut self, look: u64) -> Result<()> {
        let Some(&(i, number, since)) = self.looks.get(&look) else {
            return Ok(());
        };
        let Some(request) = self.requests.get(&i).copied() else {
            return Ok(());
        };
        let time = Time(self.now);
        let late = self.now > since + LIMITS.access + LAG;
        let Some(life) = self.nodes[request.node].life(request.life) else {
            self.looks.remove(&look);
            return Ok(());
        };
        let poll = life.borrower.poll(time, request.handle, number);
        match poll {
            Poll::Pending(at) => {
                ensure!(!late, "an access of {} is overdue", request.node);
                let at = at.0.clamp(self.now + 1, self.now + 2 * MS);
                self.at(at, Event::Look(look));
                return self.drain(request.node);
            }
            Poll::TimedOut => self.summary.timed_out += 1,
            Poll::Finished(..) | Poll::Lost => {}
        }
        self.looks.remove(&look);
        Ok(())
    }

    /// The lender accesses a register.
    pub(super) fn configure(&mut self, node: usize, config: &Config) -> Result<u32> {
        let Some(i) = self.function(node, config.handle) else {
            return Ok(config.register.ones());
        };
        let life = self.nodes[node].life.as_ref();
        let lent = life.is_some_and(|life| {
            let mut all = life.lender.devices();
            all.any(|(d, lease)| d.handle == config.handle && lease == Some(config.lease))
        });
        let closed = self.nodes[node]
            .targets
            .iter()
            .all(|t| t.is_none_or(|t| t.lease != config.lease));
        ensure!(lent && !closed, "device {i} is accessed after its lease");
        let function = &mut self.functions[i];
        let Some(write) = config.write else {
            return Ok(function.read(config.register));
        };
        function.used_by = Some(config.lease);
        let value = write.merged(function.read(config.register));
        match config.register.offset() {
            5 => ensure!(value & 4 != 0, "the pin of device {i} is enabled"),
            4 => {
                ensure!(config.register.size() > 1, "half of command is written");
                ensure!(value & 0x400 != 0, "the pin of device {i} is enabled");
                let nonce = config.lease.nonce();
                let mut all = self.requests.values();
                let slot = all.find(|r| r.up && r.function == i && r.handle.number() == nonce);
                let slot = slot.map(|r| r.slot);
                self.functions[i].master = slot.map(|slot| (config.lease, slot));
            }
            at if at != 0x50 && function.set_msi(at, value) => {
                self.summary.enabled += u64::from(at == 0x42 && value & 1 != 0);
            }
            0x50 => {
                self.summary.writes += 1;
                function.set_msi(0x50, value);
                let count = self.writes.entry(value).or_default();
                *count += 1;
                ensure!(*count == 1, "{value} was written twice");
            }
            other => anyhow::bail!("register {other:#x} is written"),
        }
        let function = &self.functions[i];
        let window = function.interrupts;
        ensure!(
            function
                .message()
                .is_none_or(|at| (window..window + 4096).contains(&at)),
            "MSI of device {i} goes to {:x?}, and not to {window:#x}",
            function.message()
        );
        Ok(0)
    }

    /// Returns a step of enabling MSI: address, data, enable.
    fn msi(&mut self, request: &Request, step: u32) -> ConfigAccess {
        let register = |at, size| Register::new(at, size).expect("a register");
        let at = request.interrupts;
        match step {
            0 => ConfigAccess::Write(register(0x44, 4), at as u32),
            1 => ConfigAccess::Write(register(0x48, 4), (at >> 32) as u32),
            2 => ConfigAccess::Write(register(0x4c, 2), 7),
            _ => ConfigAccess::Write(register(0x42, 2), u32::from(self.rng.random_bool(0.8))),
        }
    }

    /// Makes a borrower write without waiting for the result of its previous write.
    fn lie(&mut self, request: &Request, lease: LeaseId) {
        let register = |at, size| Register::new(at, size).expect("a register");
        let Some(life) = self.nodes[request.node].life(request.life) else {
            return;
        };
        let sender = life.borrower.incarnation();
        for _ in 0..self.rng.random_range(1..6) {
            let ask = match self.rng.random_range(0..10) {
                0..6 => {
                    let step = self.rng.random_range(0..4);
                    self.msi(request, step)
                }
                6 => ConfigAccess::Write(register(0x44, 4), self.rng.random()),
                7 => ConfigAccess::Write(register(4, 1), 6),
                8 => ConfigAccess::Write(register(5, 1), 0),
                _ => ConfigAccess::Reset,
            };
            let body = match ask {
                ConfigAccess::Write(register, value) => Body::Write(lease, register, value),
                _ => Body::Reset(lease),
            };
            self.lies += 1;
            self.summary.lies += 1;
            let message = Message {
                number: self.lies,
                sender,
                body,
            };
            self.post(request.node, request.lender, &message);
        }
    }

    pub(super) fn give_all_back(&mut self) -> Result<()> {
        if self.keep {
            return Ok(());
        }
        for request in self.requests.values().copied().collect::<Vec<_>>() {
            let now = Time(self.now);
            if let Some(life) = self.nodes[request.node].life(request.life) {
                life.borrower.give_back(now, request.handle);
                self.drain(request.node)?;
            }
        }
        Ok(())
    }

    /// After all faults, any node can borrow a device.
    pub(super) fn demand(&mut self, i: usize) -> Result<()> {
        let home = self.functions[i].home;
        let lender = self.nodes[home].life.is_some();
        if let (Some(handle), Some(life)) =
            (self.functions[i].handle, self.nodes[home].life.as_mut())
        {
            life.lender.repair(handle);
        }
        let free = self.functions[i].handle.is_some_and(|handle| {
            let life = self.nodes[home].life.as_ref();
            life.and_then(|l| l.lender.state(handle)) == Some(protocol::pci::OfferState::Free)
        });
        if self.keep || !lender || !self.functions[i].works {
            return Ok(());
        }
        ensure!(
            free,
            "device {i} is not free though no node has it, and it has to be lent"
        );
        let alive: Vec<usize> = (0..self.nodes.len())
            .filter(|n| *n != home && self.nodes[*n].life.is_some())
            .collect();
        if alive.is_empty() {
            return Ok(());
        }
        let node = alive[self.rng.random_range(0..alive.len())];
        let asked = self.ask(node, i, self.now + EACH / 2, true)?;
        ensure!(asked, "{node} has no free entry for a request");
        self.summary.demanded += 1;
        Ok(())
    }

    pub(super) fn demanded(&mut self, i: usize) -> Result<()> {
        let demanded = |r: &Request| r.demanded && r.function == i;
        let Some(request) = self.requests.values().copied().find(demanded) else {
            return Ok(());
        };
        ensure!(
            request.up,
            "device {i} has to be lent to {}, and is not",
            request.node
        );
        let now = Time(self.now);
        if let Some(life) = self.nodes[request.node].life(request.life) {
            life.borrower.give_back(now, request.handle);
        }
        self.drain(request.node)
    }

    /// Other users of a node take intervals.
    pub(super) fn others(&mut self, node: usize) {
        self.nodes[node].greedy = true;
        // Mostly the lowest numbers, which leases use too.
        let all = numbers(self.nodes[node].free_targets());
        let count = self.rng.random_range(1..6);
        let set = all.take(count).fold(0, |set, n| set | (1 << n));
        self.take_for_others(node, set);
    }

    /// Other users open targets with free numbers. A driver that was just loaded reserves all until
    /// it knows which are free.
    pub(super) fn take_for_others(&mut self, node: usize, set: u64) {
        let life = self.nodes[node].life.as_ref();
        if life.is_none_or(|life| life.lender.begins().0 > self.now) {
            return;
        }
        let link = super::node::Link {
            node,
            lease: wire::pci::LeaseId(self.now),
            since: self.now,
            function: None,
        };
        let nic = &mut self.nodes[node];
        for n in numbers(set & nic.free_targets()) {
            nic.targets[n] = Some(link);
        }
    }

    /// Ends the other users of a node and closes their targets.
    pub(super) fn no_others(&mut self, node: usize) {
        self.nodes[node].greedy = false;
        for target in &mut self.nodes[node].targets {
            if target.is_some_and(|t| t.node == node) {
                *target = None;
            }
        }
    }

    /// Injected bug: silent nodes count as down.
    pub(super) fn silent_is_down(&mut self, node: usize) {
        if self.mutation != Some(Mutation::SilentIsDown) {
            return;
        }
        let now = Time(self.now);
        if let Some(life) = self.nodes[node].life.as_mut() {
            let silent: Vec<NodeId> = life.lender.fences().open().map(|f| f.0).collect();
            for peer in silent {
                life.lender.node_down(now, peer);
            }
        }
    }
}
