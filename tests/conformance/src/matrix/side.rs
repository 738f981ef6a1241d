//! One side of the matrix: a port, its memory with both kinds of addresses, and checks of the
//! results.

use super::case::{Case, Ends, Id, Kind, Plan, BATCH, LARGE_SLOT, SLOT};
use anyhow::{bail, ensure, Context, Result};
use extoll::rma::{
    Command, NodeId, Notification, NotificationType, NotifySpec, Operation, Peer, Port, Region,
    Vpid,
};
use extoll::{Buffer, ContiguousBuffer, Device, Error, Wait};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Maximum duration of any operation.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Number of bytes around the data that must not change.
const GUARD: u64 = 64;
const GUARD_BYTE: u8 = 0xEE;
const HUGE: u64 = 2 << 20;
/// Number of pages of 2 MiB that a side of the large plan allocates.
const HUGE_PAGES: u64 = 8;
/// Class of the synchronising notification that follows all commands, and upper bits of its value.
const SYNC_CLASS: u32 = 0xFF;
const SYNC: u64 = 0x5359_4E43 << 8;

/// Pattern in which no two combinations have the same data.
struct Pattern(Vec<u8>);

impl Pattern {
    fn new(longest: usize) -> Self {
        let mut x = 0x9E37_79B9_7F4A_7C15u64;
        let words = (longest + (1 << 16)) / 8 + 1;
        let next = |_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x.to_le_bytes()
        };
        Self((0..words).flat_map(next).collect())
    }

    fn of(&self, case: &Case) -> &[u8] {
        let at = (case.value as u32).wrapping_mul(61) as usize % (1 << 16);
        &self.0[at..at + case.len as usize]
    }
}

/// Memory accessed by bus address.
enum Physical {
    Contiguous(ContiguousBuffer),
    /// Neighbouring huge pages of the region: bus address of the first page, and offset of the
    /// first page in the region.
    Huge(u64, u64),
    Missing,
}

/// One side of the matrix.
pub struct Side {
    port: Port,
    region: Region,
    physical: Physical,
    slot: u64,
    /// Number of slots per role. If a side is origin and target, the target's slots follow the
    /// origin's.
    slots: usize,
    pattern: Pattern,
}

/// Address of a side, as sent to the peer.
#[derive(serde::Serialize, serde::Deserialize, Clone, Copy, Debug)]
pub struct Address {
    pub id: Id,
    nla: u64,
    /// Bus address; `None` without contiguous memory.
    bus: Option<u64>,
    slot: u64,
    /// NLA of the synchronisation data.
    sync: u64,
}

impl Address {
    /// Returns true if commands with bus addresses are possible.
    pub fn has_physical(&self) -> bool {
        self.bus.is_some()
    }

    /// Returns the address of `offset` in a slot.
    fn of(&self, translate: bool, slot: usize, offset: u64) -> u64 {
        let base = if translate { Some(self.nla) } else { self.bus };
        base.unwrap_or(0) + slot as u64 * self.slot + offset
    }
}

impl Side {
    /// Opens a port and allocates the memory for a plan.
    pub fn open(plan: Plan) -> Result<Self> {
        let large = plan == Plan::Large;
        let device = Device::default();
        let port = Port::open(&device)?;
        let (slot, slots) = if large {
            (LARGE_SLOT, 1)
        } else {
            (SLOT, BATCH)
        };
        let bytes = if large {
            HUGE_PAGES * HUGE
        } else {
            (2 * slots as u64) * slot + 4096
        };
        let buffer = if large {
            Buffer::huge(bytes as usize).context("pages of 2 MiB (vm.nr_hugepages)")?
        } else {
            Buffer::new(bytes as usize)?
        };
        let address = buffer.mapping().address(0) as u64;
        let region = port.register(buffer)?;
        let physical = if large {
            match neighbours(address)? {
                Some((bus, at)) => Physical::Huge(bus, at),
                // Succeeds if the kernel has a contiguous memory area (`cma=`).
                None => ContiguousBuffer::new(&device, bytes as usize)
                    .map_or(Physical::Missing, Physical::Contiguous),
            }
        } else {
            Physical::Contiguous(ContiguousBuffer::new(&device, bytes as usize)?)
        };
        let longest = if large { (8 << 20) + 8 } else { 8192 };
        Ok(Self {
            port,
            region,
            physical,
            slot,
            slots,
            pattern: Pattern::new(longest),
        })
    }

    pub fn id(&self) -> Id {
        Id {
            node: self.port.node().0,
            vpid: self.port.vpid().get(),
        }
    }

    pub fn port(&self) -> &Port {
        &self.port
    }

    pub fn address(&self) -> Address {
        Address {
            id: self.id(),
            nla: self.region.nla().0,
            bus: match &self.physical {
                Physical::Contiguous(memory) => Some(memory.bus().0),
                Physical::Huge(bus, _) => Some(*bus),
                Physical::Missing => None,
            },
            slot: self.slot,
            // No slot uses the last page.
            sync: self.region.nla().0 + self.region.len() - 4096,
        }
    }

    fn write(&self, translate: bool, at: u64, data: &[u8]) -> extoll::Result<()> {
        match &self.physical {
            Physical::Contiguous(memory) if !translate => memory.mapping().write(at, data),
            Physical::Huge(_, first) if !translate => self.region.write(first + at, data),
            _ => self.region.write(at, data),
        }
    }

    fn read(&self, translate: bool, at: u64, data: &mut [u8]) -> extoll::Result<()> {
        match &self.physical {
            Physical::Contiguous(memory) if !translate => memory.mapping().read(at, data),
            Physical::Huge(_, first) if !translate => self.region.read(first + at, data),
            _ => self.region.read(at, data),
        }
    }

    fn place(&self, case: &Case, role: Role) -> u64 {
        let slot = case.slot + role.first_slot(self.slots);
        slot as u64 * self.slot + case.offset(role.is_origin())
    }

    /// Returns the data that the combination transfers.
    fn data<'a>(&'a self, case: &Case, value: &'a [u8; 8]) -> &'a [u8] {
        if case.register().is_some() || case.kind == Kind::Immediate {
            &value[..case.len as usize]
        } else {
            self.pattern.of(case)
        }
    }

    /// Fills the memory of a batch: data to be read with the pattern, memory to be written with
    /// guard bytes.
    pub fn prepare(&self, batch: &[Case], role: Role) -> Result<()> {
        for case in batch {
            let (at, te) = (self.place(case, role), case.page.translate);
            if role.receives(case) {
                let len = u64::from(case.len) + 2 * GUARD;
                self.write(te, at - GUARD, &vec![GUARD_BYTE; len as usize])?;
            } else if role.gives(case) {
                self.write(te, at, self.pattern.of(case))?;
            }
        }
        Ok(())
    }

    /// Compares the memory after a batch. Returns a line for each failure.
    pub fn compare(&self, batch: &[Case], role: Role) -> Result<Vec<String>> {
        let mut failures = vec![];
        let mut seen = vec![];
        for case in batch.iter().filter(|c| role.receives(c)) {
            let (at, te) = (self.place(case, role), case.page.translate);
            let len = case.len as usize;
            seen.resize(len + 2 * GUARD as usize, 0);
            self.read(te, at - GUARD, &mut seen)?;
            let value = case.value.to_le_bytes();
            let data = self.data(case, &value);
            let (before, rest) = seen.split_at(GUARD as usize);
            let (inside, after) = rest.split_at(len);
            let touched = |b: &[u8]| b.iter().position(|b| *b != GUARD_BYTE);
            if let Some(i) = touched(before).or(touched(after).map(|i| i + len + GUARD as usize)) {
                let offset = i as i64 - GUARD as i64;
                failures.push(format!("{case:?}: byte {offset} of {len} was written"));
            }
            let moved = if case.is_refused() {
                touched(inside)
            } else if inside == data {
                None
            } else {
                inside.iter().zip(data).position(|(a, b)| a != b)
            };
            if let Some(i) = moved {
                let (is, want) = (inside[i], data[i]);
                failures.push(format!("{case:?}: byte {i} is {is:#x}, not {want:#x}"));
            }
        }
        Ok(failures)
    }

    /// Posts a command of the origin. Waits for credits if necessary.
    pub fn post(&self, case: &Case, target: &Address, role_slot: usize) -> Result<()> {
        let ends = self.ends(case, target, role_slot);
        let peer = Peer {
            node: NodeId(target.id.node),
            vpid: Vpid::from_low_bits(target.id.vpid.into()),
            options: case.page,
        };
        let spec = NotifySpec::from_bits(case.spec);
        let wait = Wait::for_at_most(PATIENCE);
        let (port, offset, len) = (&self.port, case.local, u64::from(case.len));
        let remote = extoll::rma::Nla(ends.remote);
        let post = || match (case.is_split(), case.is_get()) {
            (true, true) => port.get(&peer, &self.region, offset, len, remote, spec),
            (true, false) => port.put(&peer, &self.region, offset, len, remote, spec),
            _ => port.post(&peer, spec, case.modifiers, case.operation(&ends)),
        };
        port.retry(wait, post).with_context(|| format!("{case:?}"))
    }

    /// Returns the addresses of a combination with this side as origin.
    pub fn ends(&self, case: &Case, target: &Address, target_first: usize) -> Ends {
        let te = case.page.translate;
        let me = self.address();
        Ends {
            origin: me.id,
            target: target.id,
            local: me.of(te, case.slot, case.local),
            remote: case
                .register()
                .unwrap_or_else(|| target.of(te, case.slot + target_first, case.remote)),
        }
    }

    /// Returns the addresses of a combination with this side as target.
    pub fn ends_as_target(&self, case: &Case, origin: &Address) -> Ends {
        let te = case.page.translate;
        let me = self.address();
        Ends {
            origin: origin.id,
            target: me.id,
            local: origin.of(te, case.slot, case.local),
            remote: case
                .register()
                .unwrap_or_else(|| me.of(te, case.slot, case.remote)),
        }
    }

    /// Returns the number of slots of a role.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Posts a notification to the target and a GET from the target on each class. Both follow all
    /// earlier commands of the class.
    pub fn synchronise(&self, classes: &[u8], target: &Address) -> Result<()> {
        let completer = NotifySpec {
            completer: true,
            ..NotifySpec::NONE
        };
        for class in classes {
            let to = Peer::new(
                NodeId(target.id.node),
                Vpid::from_low_bits(target.id.vpid.into()),
            );
            let to = to.class(*class);
            let (local, remote) = (self.address().sync, target.sync);
            let get = Operation::Get {
                qw: true,
                len: 8,
                local: local + 8 * u64::from(*class),
                remote: remote + 64,
            };
            let tell = Operation::NotificationPut {
                class: SYNC_CLASS as u8,
                value: SYNC | u64::from(*class),
            };
            for op in [get, tell] {
                let post = || {
                    self.port
                        .post(&to, completer, extoll::rma::Modifiers::NONE, op)
                };
                self.port.retry(Wait::for_at_most(PATIENCE), post)?;
            }
        }
        Ok(())
    }

    fn is_sync(&self, n: &Notification) -> bool {
        let at = self.address().sync;
        n.kind == NotificationType::Completer
            && match n.command {
                Command::NotificationPut => n.size_field == SYNC_CLASS && n.word0 >> 8 == SYNC >> 8,
                Command::QwGetResponse => (at..at + 64).contains(&n.word0),
                _ => false,
            }
    }

    /// Receives notifications until all expected notifications and `syncs` synchronising
    /// notifications have arrived. Returns a line for each failure. Notifications of the same unit,
    /// command and class must arrive in the order of the commands.
    pub fn collect(
        &self,
        batch: &[Case],
        expected: Vec<(usize, Notification)>,
        mut syncs: usize,
    ) -> Result<Vec<String>> {
        let mut failures = vec![];
        let mut open: HashMap<Notification, Vec<usize>> = HashMap::new();
        let mut left = expected.len();
        for (case, n) in expected.into_iter().rev() {
            open.entry(n).or_default().push(case);
        }
        let mut last: HashMap<_, (usize, u64)> = HashMap::new();
        let wait = Wait::for_at_most(PATIENCE);
        let mut take = |n: Notification| {
            if self.is_sync(&n) {
                syncs = syncs.saturating_sub(1);
            } else if let Some(case) = open.get_mut(&n).and_then(Vec::pop) {
                left -= 1;
                let class = batch[case].page.traffic_class;
                let before = last.insert((n.kind, n.command, class), (case, n.word0));
                // Notifications are ordered by number between commands and by address within a
                // command.
                let late = before.filter(|b| b.0 > case || b.0 == case && b.1 > n.word0);
                if let Some((other, _)) = late {
                    failures.push(format!(
                        "{:?}: notified after {:?}",
                        batch[case], batch[other]
                    ));
                }
            } else {
                failures.push(format!("unexpected {n:x?}"));
            }
            left > 0 || syncs > 0
        };
        let mut more = take_all(&self.port, &mut take)?;
        while more.unwrap_or(true) {
            match self.port.notification(wait) {
                Ok(n) => more = Some(take(n)),
                Err(Error::Timeout) => break,
                Err(e) => bail!("{e}"),
            }
        }
        // Unexpected notifications would have arrived before the expected notifications.
        take_all(&self.port, &mut take)?;
        // Repeats the last commands if the NIC rejected them, because later waits of this side do
        // not repeat them.
        if let Err(e) = self.port.drain(Wait::for_at_most(PATIENCE)) {
            failures.push(format!("what was posted is not accepted: {e}"));
        }
        for (n, case) in open
            .iter()
            .flat_map(|(n, cases)| cases.iter().map(move |c| (n, c)))
        {
            failures.push(format!("{:?}: not notified by {n:x?}", batch[*case]));
        }
        if syncs > 0 {
            failures.push(format!(
                "{syncs} synchronising commands of {} did not come through",
                self.id().vpid
            ));
        }
        Ok(failures)
    }
}

/// Passes all available notifications to `take`. Returns its last result.
fn take_all(port: &Port, take: &mut impl FnMut(Notification) -> bool) -> Result<Option<bool>> {
    let mut said = None;
    while let Some(n) = port.try_notification()? {
        said = Some(take(n));
    }
    Ok(said)
}

/// Role of a side in a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Origin,
    Target,
    /// Target of commands that the same side posts.
    TargetOfOwn,
}

impl Role {
    fn is_origin(self) -> bool {
        self == Role::Origin
    }

    /// Returns the first slot of the role.
    pub fn first_slot(self, slots: usize) -> usize {
        if self == Role::TargetOfOwn {
            slots
        } else {
            0
        }
    }

    /// Returns true if the combination, unless it is rejected, writes memory of this side.
    fn receives(self, case: &Case) -> bool {
        if self.is_origin() {
            case.is_get()
        } else {
            case.is_put() && case.register().is_none()
        }
    }

    fn gives(self, case: &Case) -> bool {
        if self.is_origin() {
            matches!(case.kind, Kind::Put { .. })
        } else {
            case.is_get() && case.register().is_none()
        }
    }
}

/// Returns the bus address and the offset of a run of neighbouring huge pages of the size of a
/// slot, if there is one.
///
/// Without an IOMMU, bus addresses are physical addresses, which privileged programs can read from
/// the kernel.
fn neighbours(address: u64) -> Result<Option<(u64, u64)>> {
    if std::fs::read_dir("/sys/kernel/iommu_groups").is_ok_and(|mut all| all.next().is_some()) {
        return Ok(None);
    }
    let map = File::open("/proc/self/pagemap")?;
    let mut pages = vec![];
    for page in 0..HUGE_PAGES {
        let mut entry = [0; 8];
        map.read_exact_at(&mut entry, (address + page * HUGE) / 4096 * 8)?;
        let entry = u64::from_le_bytes(entry);
        let frame = entry & ((1 << 55) - 1);
        ensure!(entry >> 63 == 1 && frame != 0, "page {page} is not there");
        pages.push(frame * 4096);
    }
    let wanted = (LARGE_SLOT / HUGE) as usize;
    let run = pages
        .windows(wanted)
        .position(|w| w.windows(2).all(|p| p[1] == p[0] + HUGE));
    Ok(run.map(|first| (pages[first], first as u64 * HUGE)))
}
