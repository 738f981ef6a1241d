// SPDX-License-Identifier: GPL-2.0-only

//! Leases of devices behind NICs without a host, which this node sets up by itself
//! (docs/vpci.md, *Accelerator nodes*).
//!
//! Whoever borrows, lists, reclaims, enrols or gives back is in a system call and has the mutex
//! `accelerating` as long as it writes registers of an accelerator's NIC; not while a driver is bound or
//! unbound, which takes as long as that likes. One work item looks at the lease words and cuts off what
//! is lost, at once; another one ends that, and closes what could not be closed before.

mod life;
mod owed;
mod peer;

pub(crate) use owed::Owed;

use crate::{
    conf,
    nic::Nic,
    remote::{Remote, PLACE, RESET_MS},
};
use kernel::{
    new_mutex, new_spinlock_irq,
    prelude::*,
    sync::{
        atomic::{AtomicFlag, Relaxed},
        Arc, Mutex, SpinLockIrq,
    },
    time::{delay::fsleep, Delta},
};
use kernel_ext::security;
use protocol::{
    pci::{
        accel::{
            close, host_signs, Access, Claim, Found, Front, Goal, Gone, Peer, Plan, PlanError,
            Sight, Slot, Unclaimed, Want, Watch,
        },
        Ask, Reach,
    },
    Time,
};
use wire::{
    accel::{Mark, State, LEASE, NUMBERS},
    ids::NodeId,
    pci::{Device, DeviceState, Location, Register},
    regs::info,
    smfu::PAGE,
};

const STEP: Delta = Delta::from_millis(5);
/// Time of a look at registers in microseconds.
const LOOK_US: u32 = 100_000;

/// A device that is borrowed, as its registers are reached.
#[pin_data]
pub(crate) struct Accelerator {
    remote: Remote,
    found: Found,
    plan: Plan,
    #[pin]
    front: SpinLockIrq<Front>,
    #[pin]
    watch: SpinLockIrq<Watch>,
    lost: AtomicFlag,
    /// Why it is lost, as soon as it is.
    #[pin]
    gone: SpinLockIrq<Option<Gone>>,
    /// Somebody has its driver bound, or ends the lease.
    busy: AtomicFlag,
    /// Other devices that it reaches. Changed by who has `accelerating`.
    #[pin]
    peers: Mutex<[Option<Peer>; Slot::ALL.len()]>,
}

impl Accelerator {
    fn new(remote: &Remote, found: Found, plan: Plan, watch: Watch) -> Result<Arc<Self>> {
        let interrupts = Reach::new(plan.interrupts(), PAGE);
        let pause = RESET_MS as u64 * 1_000_000;
        let front = Front::new(&found.layout, found.reset, interrupts, pause);
        let init = pin_init!(Self {
            remote: remote.clone(),
            found,
            plan,
            front <- new_spinlock_irq!(front, "vpci_front"),
            watch <- new_spinlock_irq!(watch, "vpci_watch"),
            lost: AtomicFlag::new(false),
            gone <- new_spinlock_irq!(None, "vpci_gone"),
            busy: AtomicFlag::new(true),
            peers <- new_mutex!([None; Slot::ALL.len()], "vpci_peers"),
        });
        Arc::pin_init(init, GFP_KERNEL)
    }

    /// Whether nobody else has its driver bound, nor ends its lease: from now on the caller does.
    pub(crate) fn take(&self) -> bool {
        !self.busy.xchg(true, Relaxed)
    }

    /// Its driver has been bound.
    pub(crate) fn leave(&self) {
        self.busy.store(false, Relaxed);
    }

    /// Makes an access of the kernel; `None`: all ones. Any context; it takes `access_ms` at most,
    /// and the first one after a reset some times more.
    pub(crate) fn access(&self, nic: &Nic, ask: Ask) -> Option<u32> {
        // Twice: the first one after a reset puts BARs to their places.
        for _ in 0..2 {
            if self.lost.load(Relaxed) {
                return None;
            }
            let access = self.front.lock().access(nic.now(), ask);
            match access {
                Access::Read(register) => return self.cycle(nic, register, None),
                Access::Write(register, write) => {
                    let old = match write.keep {
                        0 => 0,
                        _ => self.cycle(nic, register, None)?,
                    };
                    let done = self.cycle(nic, register, Some(write.over(old)))?;
                    self.front.lock().made(register);
                    return Some(done);
                }
                Access::Reset(by) => {
                    let old = self.cycle(nic, by.register, None)?;
                    let done = self.cycle(nic, by.register, Some(old | by.bit));
                    self.front.lock().reset(nic.now());
                    return done;
                }
                Access::Restore => {
                    for (i, value) in self.plan.bars() {
                        let register = Register::new(0x10 + 4 * i as u16, 4)?;
                        self.cycle(nic, register, Some(value))?;
                    }
                    self.front.lock().restored();
                }
                Access::Denied | Access::Resetting => return None,
            }
        }
        None
    }

    /// Makes a configuration cycle, and has it looked soon whether the device is dead if it has answered none of many. Any context.
    fn cycle(&self, nic: &Nic, register: Register, write: Option<u32>) -> Option<u32> {
        let begun = nic.now();
        let done = self.remote.cycle_now(register, write);
        let silent = {
            let mut front = self.front.lock();
            front.answered(begun, done != Ok(None));
            front.silent_since().is_some()
        };
        if silent {
            nic.want(nic.now());
        }
        done.ok().flatten()
    }

    /// Looks whether it still is this node's, if it is time to; when to look next. May sleep.
    fn look(&self, nic: &Nic) -> Result<Time, Gone> {
        let silent = self.front.lock().silent_since();
        let due = self.watch.lock().next();
        if nic.now() < due && silent.is_none() {
            return Ok(due);
        }
        let [one, two] = self.plan.signs();
        let sent = nic.now();
        let seen = self.remote.look([LEASE, one.offset, two.offset], LOOK_US);
        let answer = seen.map(|[word, a, b]| (word, one.is_seen(a) && two.is_seen(b)));
        let (sight, next, stuck) = {
            let mut watch = self.watch.lock();
            let sight = watch.looked(sent, nic.now(), answer);
            let stuck = silent.is_some_and(|since| watch.has_heard(since));
            (sight, watch.next(), stuck)
        };
        match sight {
            Sight::Fine if stuck => return Err(Gone::Stuck),
            Sight::Fine => {}
            Sight::Rewrite(word) => {
                nic.counts.rewritten.add(1, Relaxed);
                // If it does not arrive, the next look does it again.
                let _ = self.remote.write(LEASE, word);
            }
            Sight::Lost(why) => return Err(why),
        }
        Ok(next)
    }
}

/// What a node says about the device behind its NIC.
pub(crate) enum Listed {
    /// The device, which nobody else has.
    Device(Device),
    /// Somebody has it.
    Had(State, NodeId),
}

fn claimed(why: Unclaimed) -> Error {
    match why {
        Unclaimed::Unknown => ENXIO,
        Unclaimed::Known => EEXIST,
        Unclaimed::Free => ENOENT,
        Unclaimed::Taken(..) => EBUSY,
    }
}

fn planned(e: PlanError) -> Error {
    match e {
        PlanError::NoInterval | PlanError::NoRoom(_) => ENOSPC,
        PlanError::Memory => EINVAL,
    }
}

fn device(found: &Found) -> Device {
    Device {
        identity: found.identity,
        location: Location {
            domain: 0,
            bus: PLACE.0,
            devfn: PLACE.1,
        },
        bars: found.bars,
        count: 1,
        state: DeviceState::Free,
        ..Device::default()
    }
}

impl Nic {
    /// The node of the NIC. May sleep.
    fn own_node(&self) -> Result<NodeId> {
        let raw = self.handle()?.rra().read_local(info::NODE)?;
        Ok(info::Node(raw).node_id())
    }

    /// The NIC of an accelerator node, which is another one. May sleep.
    fn remote(&self, node: NodeId) -> Result<Remote> {
        if self.is_closing() {
            return Err(ENODEV);
        }
        if node == self.own_node()? || node.is_reserved() {
            return Err(EINVAL);
        }
        Ok(Remote::new(&self.handle()?, node))
    }

    /// Gets the lease word. May sleep, for some seconds, or more when the fabric is slow.
    fn claim(&self, remote: &Remote, goal: Goal) -> Result<Mark> {
        let nonce = (security::random() as u32).max(1);
        let mut claim = Claim::new(goal, self.own_node()?, nonce, conf::claim_times());
        let mut written = false;
        loop {
            let failed = match claim.next() {
                _ if self.is_closing() => Some(ENODEV),
                Want::Read => {
                    let sent = self.now();
                    match remote.read(LEASE) {
                        Ok(word) => {
                            claim.read(sent, self.now(), word);
                            None
                        }
                        Err(e) => Some(e),
                    }
                }
                Want::Write(word) => {
                    // It may have arrived whatever this says, which the next look tells.
                    let _ = remote.write(LEASE, word);
                    claim.written();
                    written = true;
                    None
                }
                Want::Wait(_) => {
                    fsleep(STEP);
                    claim.waited(self.now());
                    None
                }
                Want::Over(how) => return how.map_err(claimed),
            };
            if let Some(e) = failed {
                if written {
                    // The word may be this node's, which has nothing.
                    self.owe_word(remote, claim.mark());
                }
                return Err(e);
            }
        }
    }

    /// Whether the word is this node's; a claim of who was late is overwritten. To be asked before
    /// each thing that nobody else may do. May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY`: it is another one. Those of registers; also if the answer took so long that somebody
    /// else may have the word by now.
    fn still(&self, remote: &Remote, mark: Mark) -> Result {
        for _ in 0..2 {
            let sent = self.now();
            let seen = Mark::parse(remote.read(LEASE)?);
            if self.now().since(sent) > conf::claim_times().window {
                continue;
            }
            match seen {
                Some(seen) if seen == mark => return Ok(()),
                Some(seen) if seen.state == State::Claimed && seen.node != mark.node => {
                    self.counts.rewritten.add(1, Relaxed);
                    remote.write(LEASE, mark.raw())?;
                }
                _ => return Err(EBUSY),
            }
        }
        Err(ETIMEDOUT)
    }

    /// Says that nobody has the device, if this node still does. May sleep.
    fn set_free(&self, remote: &Remote, mark: Mark) -> Result {
        self.still(remote, mark)?;
        remote.set(LEASE, mark.with(State::Free).raw())
    }

    /// Has a NIC without a host closed all ways. May sleep.
    ///
    /// # Errors
    ///
    /// `EXDEV`: it has a host by now. `EBUSY`: the word is not this node's any more.
    fn shut(&self, remote: &Remote, mark: Mark) -> Result {
        if remote.read_all(host_signs())?.iter().any(|v| *v != 0) {
            return Err(EXDEV);
        }
        self.still(remote, mark)?;
        remote.apply(close())
    }

    /// What is behind the NIC of a node, if that is an accelerator. May sleep.
    ///
    /// # Errors
    ///
    /// Those of its registers; `EIO`: it is no device that can be borrowed.
    pub(crate) fn list_accelerator(&self, node: NodeId) -> Result<Option<Listed>> {
        let Ok(remote) = self.remote(node) else {
            return Ok(None);
        };
        let Some(mark) = remote.read(LEASE).ok().and_then(Mark::parse) else {
            return Ok(None);
        };
        if mark.state != State::Free {
            return Ok(Some(Listed::Had(mark.state, mark.node)));
        }
        let _alone = self.accelerating.lock();
        let mark = self.claim(&remote, Goal::Borrow)?;
        let found = self.examine(&remote, mark).map(|(found, _)| found);
        let free = self.set_free(&remote, mark);
        free.inspect_err(|_| self.owe_word(&remote, mark))?;
        Ok(Some(Listed::Device(device(&found?))))
    }

    /// Whether the NIC of a node says that it is an accelerator's. May sleep.
    pub(crate) fn is_accelerator(&self, node: NodeId) -> bool {
        let word = self.remote(node).and_then(|r| r.read(LEASE));
        word.is_ok_and(|word| Mark::parse(word).is_some())
    }

    /// Closes all ways, and looks what the device is; numbers that may be in use. May sleep.
    fn examine(&self, remote: &Remote, mark: Mark) -> Result<(Found, u64)> {
        let used = remote.read(NUMBERS)?;
        self.shut(remote, mark)?;
        let found = remote.describe();
        self.counts.odd.add(u64::from(found.is_err()), Relaxed);
        Ok((found?, used))
    }

    /// Borrows the device behind the NIC of a node: its PCI domain, when its driver has been looked
    /// for. May sleep, for long.
    ///
    /// # Errors
    ///
    /// `ENXIO`: it is no accelerator's. `EBUSY`: somebody has the device. `EAGAIN`: this module has
    /// just begun. `EMFILE`: this node has borrowed `leases` devices. `EIO`: the device, or its NIC, does not do what it should. Others say why not.
    pub(crate) fn borrow_accelerator(self: &Arc<Self>, node: NodeId) -> Result<u32> {
        let lease = {
            let _alone = self.accelerating.lock();
            if !self.end_early() {
                // Numbers of an earlier life may not be used yet.
                return Err(EAGAIN);
            }
            if self.leases.lock().len() >= usize::from(conf::leases()) {
                return Err(EMFILE);
            }
            let remote = self.remote(node)?;
            let mark = self.claim(&remote, Goal::Borrow)?;
            self.set_up(&remote, mark).inspect_err(|e| {
                pr_err!("node {}: not borrowed: {:?}\n", node.0, e);
            })?
        };
        // From now on others see that it is busy.
        let built = lease.build();
        if let Err(e) = built {
            pr_err!("node {}: no bridge: {:?}\n", node.0, e);
            self.end_accelerator(&lease);
            return Err(e);
        }
        let domain = lease.domain().ok_or(ENODEV);
        lease.leave();
        domain
    }

    /// Says of a NIC that it is an accelerator's. May sleep.
    ///
    /// # Errors
    ///
    /// `EEXIST`: it is known. `EXDEV`: the driver of a host uses it.
    pub(crate) fn enrol(&self, node: NodeId) -> Result {
        let _alone = self.accelerating.lock();
        let remote = self.remote(node)?;
        if remote.read_all(host_signs())?.iter().any(|v| *v != 0) {
            return Err(EXDEV);
        }
        let mark = self.claim(&remote, Goal::Enrol)?;
        let done = remote.apply(close());
        let done = done.and_then(|()| remote.set(NUMBERS, 0));
        let done = done.and_then(|()| self.set_free(&remote, mark));
        done.inspect_err(|_| self.owe_word(&remote, mark))
    }

    /// Takes a device from whoever has it, and closes all ways to and from it. `down`: all nodes that
    /// had it before are known to have no windows to it any more. May sleep.
    ///
    /// # Errors
    ///
    /// `ENXIO`: it is no accelerator's. `ENOENT`: nobody has it. `EBUSY`: this node has it, or
    /// another one takes it.
    pub(crate) fn reclaim_accelerator(&self, node: NodeId, down: bool) -> Result {
        let _alone = self.accelerating.lock();
        let remote = self.remote(node)?;
        if self.accelerators()?.iter().any(|(l, _)| l.lender == node) {
            return Err(EBUSY);
        }
        let mark = self.claim(&remote, Goal::Reclaim { free: down })?;
        let done = self.close_and_reset(&remote, mark, down);
        let done = done.and_then(|()| self.set_free(&remote, mark));
        done.inspect_err(|_| self.owe_word(&remote, mark))
    }

    fn close_and_reset(&self, remote: &Remote, mark: Mark, down: bool) -> Result {
        self.shut(remote, mark)?;
        let reset = remote.describe().and_then(|found| {
            self.still(remote, mark)?;
            remote.reset(&found.reset)
        });
        if reset.is_err() {
            // Its next borrower does it, or does not get it.
            pr_warn!("node {}: its device is not reset\n", remote.node.0);
        }
        self.still(remote, mark)?;
        if down {
            remote.set(NUMBERS, 0)?;
        }
        Ok(())
    }
}
