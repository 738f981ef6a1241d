//! The driver of a node, which feeds the state machines and executes their requests.

use super::net::Packet;
use super::node::{numbers, Job, Link, INTERVALS};
use super::{Event, Mutation, Rig, BUSY, LAG, MS, SLOW_MOST, US, WORK_MOST};
use anyhow::{ensure, Context, Result};
use protocol::pci::lender::{Open, Step, Work as LenderWork};
use protocol::pci::{borrower::Work, EndReason, Handle, OfferState, OpenError, Opened};
use protocol::Time;
use rand::Rng;
use wire::ids::NodeId;
use wire::pci::{Body, Grant, LeaseId, Message, Numbers, Reason, Role};

impl Rig {
    fn time(&self) -> Time {
        Time(self.now)
    }

    /// Starts the driver of a node. Its devices are reset.
    pub(super) fn start(&mut self, node: usize) -> Result<()> {
        let (now, mutation) = (self.now, self.mutation);
        self.nodes[node].load(now, &mut self.rng, mutation);
        self.log(|| format!("{node} begins"));
        for i in 0..self.functions.len() {
            if self.functions[i].home == node {
                self.functions[i].reset();
                self.functions[i].handle = None;
                self.offer(i)?;
            }
        }
        self.drain(node)
    }

    /// Offers a device.
    pub(super) fn offer(&mut self, i: usize) -> Result<()> {
        let function = &mut self.functions[i];
        function.stopping = false;
        let (device, layout) = (function.device(), function.layout());
        if let Some(life) = &mut self.nodes[function.home].life {
            function.handle = life.lender.offer(&device, &layout);
            ensure!(function.handle.is_some(), "a device can't be offered");
        }
        Ok(())
    }

    /// Returns the device with this handle.
    pub(super) fn function(&self, node: usize, handle: u32) -> Option<usize> {
        let is = |f: &super::Function| f.home == node && f.handle == Some(handle);
        self.functions.iter().position(is)
    }

    pub(super) fn deliver(&mut self, i: u64) -> Result<()> {
        let Some(raw) = self.net.messages.remove(&i) else {
            return Ok(());
        };
        let (to, mutation) = (raw.to, self.mutation);
        if self.net.cut[raw.from][to] > 0 {
            return Ok(());
        }
        let now = self.time();
        let others = self.nodes.len() as u16;
        let Some(life) = self.nodes.get_mut(to).and_then(|n| n.life.as_mut()) else {
            return Ok(());
        };
        let len = 8 * raw.words.len() as u16;
        let parsed = Message::parse(raw.tag, len, |i| raw.words[i]);
        let mut message = match parsed {
            Ok(message) => message,
            Err(_) => {
                ensure!(raw.from == usize::from(others), "{raw:?} is no message");
                return Ok(());
            }
        };
        let mut from = NodeId(raw.from as u16);
        match mutation {
            Some(Mutation::Unsourced) => from = NodeId((from.0 + 1) % others),
            Some(Mutation::Renumbered)
                if matches!(message.body, Body::Read(..) | Body::Write(..)) =>
            {
                life.count += 1;
                message.number = life.count;
            }
            _ => {}
        }
        match message.role() {
            Role::Lender => life.lender.receive(now, from, &message),
            Role::Borrower => life.borrower.receive(now, from, &message),
        }
        // Several messages are read before the driver acts.
        let (at, lives) = (self.now + 100 * US, self.nodes[to].lives);
        if self.rng.random_bool(0.3) {
            let poll = self.nodes[to].life.as_mut().map(|life| &mut life.poll);
            if let Some(poll) = poll.filter(|poll| poll.is_none_or(|soon| soon > at)) {
                *poll = Some(at);
                self.at(at, Event::Poll(to, lives));
            }
            return Ok(());
        }
        self.drain(to)
    }

    pub(super) fn poll(&mut self, node: usize, lives: u32) -> Result<()> {
        let (now, mutation) = (self.time(), self.mutation);
        let Some(life) = self.nodes[node].life(lives) else {
            return Ok(());
        };
        if life.poll != Some(self.now) {
            return Ok(());
        }
        life.poll = None;
        if mutation != Some(Mutation::NoTimer) {
            life.lender.time(now);
            life.borrower.time(now);
        }
        self.polls += 1;
        ensure!(self.polls < 400_000, "node {node} polls endlessly");
        self.silent_is_down(node);
        self.drain(node)
    }

    /// Executes the requests that are due and schedules the others.
    pub(super) fn drain(&mut self, node: usize) -> Result<()> {
        let now = self.time();
        let mut steps = 0;
        while let Some(life) = self.nodes[node].life.as_mut() {
            steps += 1;
            ensure!(steps < 10_000, "node {node} has endless requests");
            if let Some((to, message)) = life.borrower.step(now) {
                self.post(node, to.0.into(), &message);
            } else if let Some(step) = life.lender.step(now) {
                match step {
                    Step::Send(to, message) => self.post(node, to.0.into(), &message),
                    Step::Config(config) => {
                        let at = self.within(US, MS);
                        self.have(node, at, Job::Config(config));
                    }
                }
            } else if let Some(work) = life.lender.work() {
                self.lend(node, work);
            } else if let Some(work) = life.borrower.work() {
                self.borrow(node, work)?;
            } else {
                break;
            }
        }
        self.stop_unlent(node);
        let lag = self.rng.random_range(0..LAG);
        let lives = self.nodes[node].lives;
        let Some(life) = self.nodes[node].life.as_mut() else {
            return Ok(());
        };
        let next = [life.lender.next(), life.borrower.next()];
        let Some(next) = next.into_iter().flatten().min() else {
            return Ok(());
        };
        // Requests that were due but could not be executed are checked later.
        let next = next.0.max(self.now + 1).saturating_add(lag);
        if life.poll.is_none_or(|at| at > next) {
            life.poll = Some(next);
            self.at(next, Event::Poll(node, lives));
        }
        Ok(())
    }

    pub(super) fn have(&mut self, node: usize, at: u64, job: Job) {
        let number = self.name();
        self.jobs
            .insert(number, (node, self.nodes[node].lives, job));
        self.at(at, Event::Job(number));
    }

    /// Returns the time at which long work of this node ends.
    fn slowly(&mut self, node: usize) -> u64 {
        match self.nodes[node].slow && self.now < BUSY {
            true => self.within(US, SLOW_MOST),
            false => self.within(US, WORK_MOST / 2),
        }
    }

    /// Schedules the end of bus mastering of devices whose lease has ended, even if the end of the
    /// lease waits for an earlier reset.
    fn stop_unlent(&mut self, node: usize) {
        use Mutation::{LenderClosedEarly, NoMasterOff, SlowReset};
        if let Some(NoMasterOff | LenderClosedEarly | SlowReset) = self.mutation {
            return;
        }
        for i in 0..self.functions.len() {
            let function = &self.functions[i];
            let wanted = function.home == node && function.master.is_some() && !function.stopping;
            let Some(handle) = function.handle.filter(|_| wanted) else {
                continue;
            };
            let life = self.nodes[node].life.as_ref();
            if life.and_then(|l| l.lender.state(handle)) == Some(OfferState::Fencing) {
                self.functions[i].stopping = true;
                let at = self.within(US, WORK_MOST / 2);
                self.have(node, at, Job::Stop(handle));
            }
        }
    }

    fn lend(&mut self, node: usize, work: LenderWork) {
        let soon = self.within(US, WORK_MOST / 2);
        self.log(|| format!("{node} is to {work:?}"));
        match work {
            LenderWork::Open(open) => self.have(node, soon, Job::Open(open)),
            LenderWork::Close(handle, numbers) => {
                self.have(node, soon, Job::Close(handle, numbers));
            }
            LenderWork::Reset(handle) => {
                let at = self.slowly(node);
                self.have(node, at, Job::Reset(handle));
            }
            LenderWork::Release(set) => self.release(node, set),
            LenderWork::Gone(handle) => {
                if let Some(i) = self.function(node, handle) {
                    self.functions[i].handle = None;
                }
            }
        }
    }

    fn borrow(&mut self, node: usize, work: Work) -> Result<()> {
        let soon = self.within(US, WORK_MOST / 2);
        self.log(|| format!("{node} is to {work:?}"));
        match work {
            Work::Open(handle, grant) => {
                self.check_deadline(node, handle)?;
                self.have(node, soon, Job::Take(handle, grant));
            }
            Work::Recall(handle, grace) => {
                // Some borrowers ignore it.
                if self.rng.random_bool(0.7) {
                    let grace = u64::from(grace) * MS;
                    let at = self.now + self.rng.random_range(0..=grace.min(300 * MS));
                    self.have(node, at, Job::GiveBack(handle));
                }
            }
            // The driver of a lost device may take long, but can't reach anything during that time.
            Work::Close(handle, why) if why != EndReason::GivenBack => {
                if self.mutation != Some(Mutation::SlowClose) {
                    self.have(node, soon, Job::Cut(handle));
                }
                let at = self.slowly(node).max(soon + 1);
                self.have(node, at, Job::Drop(handle, why));
            }
            Work::Close(handle, why) => self.have(node, soon, Job::Drop(handle, why)),
            Work::Closed(handle, why) => {
                self.check_deadline(node, handle)?;
                self.over(node, handle, why)?;
            }
            Work::Release(set) => self.release(node, set),
        }
        Ok(())
    }

    fn release(&mut self, node: usize, set: u64) {
        self.nodes[node].parked &= !set;
        if self.nodes[node].greedy {
            self.take_for_others(node, set);
        }
    }

    /// Closes targets. Their numbers stay reserved.
    fn shut(&mut self, node: usize, set: u64, at_once: bool) {
        for n in numbers(set) {
            self.nodes[node].targets[n] = None;
        }
        if !at_once {
            self.nodes[node].parked |= set;
        }
    }

    fn lease_of(&self, node: usize, handle: u32) -> Option<LeaseId> {
        let life = self.nodes[node].life.as_ref()?;
        let mut all = life.lender.devices();
        all.find(|(d, _)| d.handle == handle)?.1
    }

    pub(super) fn job(&mut self, i: u64) -> Result<()> {
        let Some((node, lives, job)) = self.jobs.remove(&i) else {
            return Ok(());
        };
        let now = self.time();
        let later = self.within(US, WORK_MOST / 2);
        if let Job::Lag(lease) = job {
            return self.drop_windows(node, lease);
        }
        if self.nodes[node].life(lives).is_none() {
            return Ok(());
        }
        self.log(|| format!("{node}: {job:?}"));
        let mutation = self.mutation;
        match job.clone() {
            Job::Open(open) => {
                let result = self.open(node, &open)?;
                self.have(node, later, Job::Opened(open.handle, result));
            }
            Job::Close(handle, numbers) => {
                self.close(node, handle, numbers);
                self.have(node, later, Job::Closed(handle));
            }
            Job::Reset(handle) => {
                let works = match self.function(node, handle) {
                    Some(i) if mutation == Some(Mutation::NoReset) => self.functions[i].works,
                    Some(i) if mutation == Some(Mutation::LenderClosedEarly) => {
                        self.functions[i].used_by = None;
                        self.functions[i].works
                    }
                    Some(i) => {
                        self.functions[i].reset();
                        self.functions[i].works
                    }
                    None => true,
                };
                self.have(node, later, Job::WasReset(handle, works));
            }
            Job::Config(config) => {
                if mutation == Some(Mutation::LateConfig) {
                    let at = self.within(20 * MS, 60 * MS);
                    self.have(node, at, Job::Late(config));
                    if let Some(life) = self.nodes[node].life.as_mut() {
                        life.lender.configured(&config, Ok(0));
                    }
                } else {
                    // Some accesses fail.
                    let value = match self.rng.random_bool(0.02) {
                        true => Err(()),
                        false => Ok(self.configure(node, &config)?),
                    };
                    if let Some(life) = self.nodes[node].life.as_mut() {
                        life.lender.configured(&config, value);
                    }
                }
            }
            Job::Late(config) => {
                self.configure(node, &config)?;
            }
            Job::Cut(handle) => self.cut_windows(node, handle)?,
            Job::Stop(handle) => {
                let life = self.nodes[node].life.as_ref();
                let over = life.and_then(|l| l.lender.state(handle)) == Some(OfferState::Fencing);
                if let Some(i) = self.function(node, handle) {
                    let function = &mut self.functions[i];
                    function.stopping = false;
                    function.master = function.master.filter(|_| !over);
                }
            }
            Job::Take(handle, grant) => {
                let done = self.take(node, handle, &grant)?;
                self.have(node, later, Job::Taken(handle, done));
            }
            Job::Drop(handle, why) => {
                self.drop_lease(node, handle, why)?;
                self.have(node, later, Job::Dropped(handle));
            }
            _ => {}
        }
        let Some(life) = self.nodes[node].life.as_mut() else {
            return Ok(());
        };
        match job {
            Job::Opened(handle, result) => life.lender.opened(now, handle, result),
            Job::Closed(handle) => life.lender.closed(now, handle),
            Job::WasReset(handle, done) => life.lender.reset(now, handle, done),
            Job::Taken(handle, done) => {
                life.borrower.opened(now, handle, done);
                if done {
                    self.is_up(node, handle);
                }
            }
            Job::Dropped(handle) => life.borrower.closed(now, handle),
            Job::GiveBack(handle) => life.borrower.give_back(now, handle),
            _ => {}
        }
        self.drain(node)
    }

    fn open(&mut self, node: usize, open: &Open) -> Result<Result<Opened, OpenError>> {
        let Some(i) = self.function(node, open.handle) else {
            return Ok(Err(OpenError::Refuse(Reason::NoRoom)));
        };
        if !self.functions[i].works {
            return Ok(Err(OpenError::Broken));
        }
        if self.now < super::CALM && self.rng.random_bool(0.03) {
            return Ok(Err(OpenError::Refuse(Reason::NotAllowed)));
        }
        let lease = self.lease_of(node, open.handle).context("no lease")?;
        let function = &self.functions[i];
        let left = function.used_by;
        ensure!(
            left.is_none(),
            "device {i} was not reset after {left:x?}, and is lent"
        );
        let count = function.bars.iter().flatten().count();
        let places: Vec<bool> = function.bars.iter().map(Option::is_some).collect();
        let to = usize::from(open.borrower.0);
        let nic = &mut self.nodes[node];
        let mut bars = numbers(open.bars & nic.free_targets());
        let mut links = numbers(open.links & nic.free_windows());
        if bars.clone().count() < count || links.clone().count() < 2 {
            return Ok(Err(OpenError::Refuse(Reason::NoInterval)));
        }
        let link = Link {
            node: to,
            lease,
            since: self.now,
            function: Some(i),
        };
        let mut found = Numbers::default();
        for (bar, _) in found.bars.iter_mut().zip(places).filter(|(_, is)| *is) {
            let n = bars.next().context("a number")?;
            nic.targets[n] = Some(link);
            *bar = n as u8;
        }
        for number in [&mut found.dma, &mut found.interrupts] {
            let n = links.next().context("a number")?;
            nic.windows[n] = Some(link);
            *number = n as u8;
        }
        let interrupts = 0xF000_0000 + 0x1000 * u64::from(found.interrupts);
        self.functions[i].interrupts = interrupts;
        self.check_tables()?;
        Ok(Ok(Opened {
            numbers: found,
            dma: 0x1_0000_0000 * u64::from(found.dma),
            interrupts,
        }))
    }

    fn close(&mut self, node: usize, handle: u32, found: Numbers) {
        let mutation = self.mutation;
        if let Some(i) = self.function(node, handle) {
            if mutation != Some(Mutation::NoMasterOff) {
                self.functions[i].master = None;
            }
        }
        let at_once = mutation == Some(Mutation::LenderNumbersAtOnce);
        self.shut(node, found.bar_set(), at_once);
        let windows = numbers(found.dma_set());
        if mutation == Some(Mutation::LenderClosedEarly) {
            // The device keeps accessing memory for the same time.
            let lease = windows.clone().find_map(|n| self.nodes[node].windows[n]);
            let at = self.within(100 * MS, 300 * MS);
            if let Some(link) = lease {
                self.have(node, at, Job::Lag(link.lease));
                if let Some(i) = self.function(node, handle) {
                    self.functions[i].master = Some((link.lease, found.dma));
                }
            }
            return;
        }
        for n in windows {
            self.nodes[node].windows[n] = None;
        }
    }

    fn drop_windows(&mut self, node: usize, lease: LeaseId) -> Result<()> {
        if self.mutation == Some(Mutation::LenderClosedEarly) {
            for function in &mut self.functions {
                function.master = function.master.filter(|m| m.0 != lease);
            }
        }
        for n in 0..INTERVALS {
            if self.nodes[node].windows[n].is_some_and(|w| w.lease == lease) {
                self.nodes[node].windows[n] = None;
            }
        }
        Ok(())
    }

    /// Opens the intervals of a grant, if they are still free.
    fn take(&mut self, node: usize, handle: Handle, grant: &Grant) -> Result<bool> {
        let Some(request) = self.request(node, handle) else {
            return Ok(false);
        };
        let lender = request.lender;
        request.slot = grant.numbers.dma;
        request.interrupts = grant.interrupts;
        let nic = &mut self.nodes[node];
        let (windows, targets) = (grant.numbers.bar_set(), grant.numbers.dma_set());
        if windows & !nic.free_windows() != 0 || targets & !nic.free_targets() != 0 {
            return Ok(false);
        }
        let link = Link {
            node: lender,
            lease: grant.lease,
            since: self.now,
            function: None,
        };
        numbers(targets).for_each(|n| nic.targets[n] = Some(link));
        numbers(windows).for_each(|n| nic.windows[n] = Some(link));
        self.seen_leases.push(grant.lease);
        self.check_tables()?;
        Ok(true)
    }

    /// Returns the ID of a borrowed lease.
    fn borrowed(&self, node: usize, handle: Handle) -> Option<LeaseId> {
        let life = self.nodes[node].life.as_ref()?;
        let mut leases = life.borrower.leases();
        Some(leases.find(|l| l.0 == handle)?.1)
    }

    /// Closes the windows to the BARs of a device.
    fn cut_windows(&mut self, node: usize, handle: Handle) -> Result<()> {
        match self.borrowed(node, handle) {
            Some(lease) if self.mutation != Some(Mutation::BorrowerClosedEarly) => {
                self.drop_windows(node, lease)
            }
            _ => Ok(()),
        }
    }

    fn drop_lease(&mut self, node: usize, handle: Handle, _: EndReason) -> Result<()> {
        let Some(lease) = self.borrowed(node, handle) else {
            return Ok(());
        };
        let mutation = self.mutation;
        if mutation == Some(Mutation::BorrowerClosedEarly) {
            let at = self.within(100 * MS, 300 * MS);
            self.have(node, at, Job::Lag(lease));
        } else {
            self.drop_windows(node, lease)?;
        }
        let open = |t: &Option<Link>| t.is_some_and(|t| t.lease == lease);
        let targets = &self.nodes[node].targets;
        let set = (0..INTERVALS)
            .filter(|n| open(&targets[*n]))
            .fold(0, |set, n| set | (1 << n));
        let at_once = mutation == Some(Mutation::BorrowerNumbersAtOnce);
        self.shut(node, set, at_once);
        Ok(())
    }

    /// A device accesses the other end of its DMA window.
    pub(super) fn dma(&mut self, i: usize) -> Result<()> {
        let at = self.now + self.functions[i].pause;
        self.at(at, Event::Dma(i));
        let home = self.functions[i].home;
        let Some((lease, slot)) = self.functions[i].master else {
            return Ok(());
        };
        if !self.nodes[home].on {
            return Ok(());
        }
        // The window may belong to another lease by now.
        if let Some(link) = self.nodes[home].windows[usize::from(slot)] {
            self.access(Packet {
                from: home,
                to: link.node,
                number: slot.into(),
                lease,
                dma: true,
                since: link.since,
            });
        }
        Ok(())
    }
}
