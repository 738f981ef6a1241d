//! The combinations of the matrix and their expected results, derived from the tables of HW §10 and
//! not from the driver's formulas.

use clap::ValueEnum;
use extoll::rma::{
    Command, LockTarget, Mode, Modifiers, NodeId, Notification, NotificationType, NotifySpec,
    Operation, PageOptions, Vpid, MAX_LEN,
};
use serde::{Deserialize, Serialize};

/// Payload bytes of a packet (HW §10.3).
const FRAGMENT: u64 = 496;
/// Number of locks per VPID (HW §10.6).
const LOCKS: usize = 16;
/// Number of combinations in flight at once.
pub const BATCH: usize = 32;
/// Bytes of memory for each combination. A transfer of up to a page and a byte may start at the end
/// of a page, and guard bytes surround it.
pub const SLOT: u64 = 3 * 4096;
/// Bytes of memory for a long transfer: five pages of 2 MiB. Only one long transfer runs at a time.
pub const LARGE_SLOT: u64 = 10 << 20;
/// Offset of the register that the tests access: scratchpad 4 (HW §4.3).
const SCRATCHPAD: u64 = 0x8060;

/// Lengths in bytes: whole quadwords, ends of fragments and pages, and one byte more or less than
/// these.
const SIZES: [u32; 11] = [1, 8, 119, 120, 121, 495, 496, 497, 4095, 4096, 4097];
/// Offsets in a slot: 0, 1, 3, 4, 7 and 8 modulo 64, and positions shortly before a page boundary.
const BYTES: [u64; 9] = [128, 129, 131, 132, 135, 136, 4088, 4093, 4095];
const QUADWORDS: [u64; 3] = [128, 136, 4088];
const LONG: [u32; 3] = [1 << 20, MAX_LEN, MAX_LEN + 1];
const LONG_BYTES: [(u64, u64); 3] = [(4095, 129), (131, 4088), (128, 128)];
const LONG_QUADWORDS: [(u64, u64); 3] = [(136, 4088), (4088, 128), (128, 128)];

/// Part of the matrix, with its own memory, ports and locks.
#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// PUTs and GETs of 1…4,097 bytes.
    Transfers,
    /// Immediate and notification PUTs.
    Short,
    /// Fetch-compare-and-add at the requester and at the completer.
    Locks,
    /// Scratchpad registers through RRA pages.
    Registers,
    /// Modifiers that the NIC must reject.
    Refused,
    /// PUTs and GETs of 1 MiB and more in huge pages.
    Large,
}

/// Fraction of the matrix to run.
#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
pub struct Extent {
    /// Every n-th combination of the cross product is run; 1 means all.
    pub every: usize,
    /// True if every specification, class and alignment of long transfers is run.
    pub full: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Get { qw: bool },
    Put { qw: bool },
    Immediate,
    Notification,
    Lock(LockTarget),
}

const TRANSFERS: [Kind; 4] = [
    Kind::Get { qw: false },
    Kind::Get { qw: true },
    Kind::Put { qw: false },
    Kind::Put { qw: true },
];
const OTHERS: [Kind; 4] = [
    Kind::Immediate,
    Kind::Notification,
    Kind::Lock(LockTarget::Completer),
    Kind::Lock(LockTarget::Responder),
];

/// One combination.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub kind: Kind,
    /// Notification specification, three bits.
    pub spec: u8,
    pub page: PageOptions,
    pub modifiers: Modifiers,
    pub len: u32,
    /// Offsets in the slots of both sides.
    pub local: u64,
    pub remote: u64,
    pub slot: usize,
    /// Number that identifies the combination. It is the payload of short commands and selects the
    /// start of the data in the pattern.
    pub value: u64,
    pub lock: Lock,
}

/// Operands and result of a lock operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lock {
    number: u32,
    compare: i32,
    add: i32,
    success: bool,
    after: i32,
}

/// Address of a port.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id {
    pub node: u16,
    pub vpid: u16,
}

/// Both ends of a transfer.
pub struct Ends {
    pub origin: Id,
    pub target: Id,
    /// Addresses of the combination's data at the origin (`local`) and the target (`remote`).
    pub local: u64,
    pub remote: u64,
}

impl Case {
    /// Returns true if data move to the target's memory.
    pub fn is_put(&self) -> bool {
        matches!(self.kind, Kind::Put { .. } | Kind::Immediate)
    }

    /// Returns true if data move to the origin's memory.
    pub fn is_get(&self) -> bool {
        matches!(self.kind, Kind::Get { .. })
    }

    /// Returns true if the NIC must reject the command (G14).
    pub fn is_refused(&self) -> bool {
        self.modifiers.multicast || self.modifiers.era || self.modifiers.ewa
    }

    /// Returns true if the transfer needs several commands.
    pub fn is_split(&self) -> bool {
        self.len > MAX_LEN
    }

    /// Returns the offset of the data in the slot of the origin or target.
    pub fn offset(&self, origin: bool) -> u64 {
        if origin {
            self.local
        } else {
            self.remote
        }
    }

    /// Returns the address of the register, if the remote address is one.
    pub fn register(&self) -> Option<u64> {
        self.page.rra.then_some(SCRATCHPAD)
    }

    pub fn operation(&self, ends: &Ends) -> Operation {
        let (len, local, remote) = (self.len, ends.local, ends.remote);
        match self.kind {
            Kind::Get { qw } => Operation::Get {
                qw,
                len,
                remote,
                local,
            },
            Kind::Put { qw } => Operation::Put {
                qw,
                len,
                local,
                remote,
            },
            Kind::Immediate => Operation::ImmediatePut {
                len: len as u8,
                remote,
                value: self.value,
            },
            Kind::Notification => Operation::NotificationPut {
                class: self.class(),
                value: self.value,
            },
            Kind::Lock(at) => Operation::Lock {
                at,
                number: self.lock.number,
                compare: self.lock.compare,
                add: self.lock.add,
            },
        }
    }

    /// Returns a class other than 255, which synchronisation uses.
    fn class(&self) -> u8 {
        (self.value % 255) as u8
    }

    fn command(&self) -> Command {
        match self.kind {
            Kind::Get { qw: false } => Command::ByteGet,
            Kind::Get { qw: true } => Command::QwGet,
            Kind::Put { qw: false } => Command::BytePut,
            Kind::Put { qw: true } => Command::QwPut,
            Kind::Immediate => Command::ImmediatePut,
            Kind::Notification => Command::NotificationPut,
            Kind::Lock(_) => Command::Lock,
        }
    }

    fn response(&self) -> Command {
        match self.kind {
            Kind::Get { qw: false } => Command::ByteGetResponse,
            Kind::Get { qw: true } => Command::QwGetResponse,
            Kind::Lock(_) => Command::LockResponse,
            _ => self.command(),
        }
    }

    /// Returns the expected notifications of the origin and of the target (HW §10.4, §10.5).
    pub fn notifications(&self, ends: &Ends) -> [Vec<Notification>; 2] {
        let spec = NotifySpec::from_bits(self.spec);
        if self.is_refused() {
            let told = spec.requester.then(|| self.refusal(ends));
            return [told.into_iter().collect(), vec![]];
        }
        let round_trip = self.is_get() || matches!(self.kind, Kind::Lock(_));
        let mut told = [vec![], vec![]];
        let units = [
            (spec.requester, NotificationType::Requester, true, 0),
            (
                spec.responder && round_trip,
                NotificationType::Responder,
                false,
                1,
            ),
            (spec.completer, NotificationType::Completer, round_trip, 1),
        ];
        for (wanted, unit, at_origin, to) in units {
            if !wanted {
                continue;
            }
            let to = if at_origin { 0 } else { to };
            let peer = if at_origin { ends.target } else { ends.origin };
            for (word0, size_field) in self.words(unit, ends) {
                told[to].push(Notification {
                    word0,
                    size_field,
                    ..self.notification(unit, peer)
                });
            }
        }
        told
    }

    fn notification(&self, unit: NotificationType, peer: Id) -> Notification {
        Notification {
            word0: 0,
            size_field: 0,
            vpid: Vpid::from_low_bits(peer.vpid.into()),
            node: NodeId(peer.node),
            kind: unit,
            command: if unit == NotificationType::Completer {
                self.response()
            } else {
                self.command()
            },
            mode: Mode::of(self.page, self.modifiers),
            error: 0,
        }
    }

    /// Returns word 0 and the size field of each notification of a unit.
    fn words(&self, unit: NotificationType, ends: &Ends) -> Vec<(u64, u32)> {
        let address = match (unit, self.is_get()) {
            (NotificationType::Requester, _) | (NotificationType::Completer, true) => ends.local,
            _ => ends.remote,
        };
        match self.kind {
            Kind::Get { .. } | Kind::Put { .. } => {
                // Each command of a split transfer causes a notification.
                let mut words = vec![];
                for before in (0..u64::from(self.len)).step_by(MAX_LEN as usize) {
                    let len = (u64::from(self.len) - before).min(MAX_LEN.into());
                    let last = (len - 1) / FRAGMENT;
                    let first = if self.modifiers.ntr { 0 } else { last };
                    words.extend((first..=last).map(|k| {
                        let size = (len - k * FRAGMENT).min(FRAGMENT);
                        (address + before + k * FRAGMENT, size as u32 - 1)
                    }));
                }
                words
            }
            Kind::Immediate if unit == NotificationType::Requester => {
                vec![(self.value, self.len - 1)]
            }
            Kind::Immediate => vec![(address, self.len - 1)],
            Kind::Notification => vec![(self.value, self.class().into())],
            Kind::Lock(_) if unit == NotificationType::Requester => {
                vec![(self.lock.word(false, self.lock.compare), 0)]
            }
            Kind::Lock(_) => vec![(self.lock.word(self.lock.success, self.lock.after), 0)],
        }
    }

    /// Returns the notification of a rejected command, which describes its first fragment (G14,
    /// G17).
    fn refusal(&self, ends: &Ends) -> Notification {
        let (word0, size_field) = match self.kind {
            Kind::Get { .. } | Kind::Put { .. } => (ends.local, self.len.min(496) - 1),
            _ => self.words(NotificationType::Requester, ends)[0],
        };
        Notification {
            word0,
            size_field,
            error: NotificationType::Requester.code(),
            ..self.notification(NotificationType::Requester, ends.target)
        }
    }
}

impl Lock {
    fn word(&self, success: bool, value: i32) -> u64 {
        u64::from(self.number) | (u64::from(success) << 24) | (u64::from(value as u32) << 32)
    }
}

/// Generates the combinations in order and selects a fraction.
struct Maker {
    extent: Extent,
    plan: Plan,
    /// Number of combinations so far, including the combinations left out.
    seen: usize,
    cases: Vec<Case>,
    locks: [i32; LOCKS],
}

impl Maker {
    fn add(&mut self, case: Case) {
        self.seen += 1;
        if self.seen % self.extent.every != 0 {
            return;
        }
        let number = self.cases.len();
        let slots = match self.plan {
            Plan::Large => 1,
            Plan::Locks => LOCKS,
            _ => BATCH,
        };
        let mut case = Case {
            slot: number % slots,
            value: case.value | number as u64,
            ..case
        };
        if let Kind::Lock(_) = case.kind {
            if !case.is_refused() {
                case.lock = self.lock(number);
            }
        }
        self.cases.push(case);
    }

    /// Returns the next operation on a lock. The comparison is true, false, true at the end of the
    /// range, and far off, with sums that wrap (G16).
    fn lock(&mut self, n: usize) -> Lock {
        let value = &mut self.locks[n % LOCKS];
        let (compare, add) = match n / LOCKS % 6 {
            0 => (*value, 7),
            1 => (value.saturating_sub(1), 1),
            2 => (i32::MAX, i32::MIN + 5),
            3 => (i32::MIN, 3),
            4 => (value.saturating_add(9), -100),
            _ => (0x1234_5678, -1),
        };
        let success = *value <= compare;
        if success {
            *value = value.wrapping_add(add);
        }
        Lock {
            number: (n % LOCKS) as u32,
            compare,
            add,
            success,
            after: *value,
        }
    }

    /// Returns every combination of traffic class, interrupt and replication, starting with the
    /// `n`-th.
    fn options(n: usize, translate: bool) -> (PageOptions, Modifiers) {
        let page = PageOptions {
            traffic_class: (n % 4) as u8,
            irq: n / 4 % 2 == 1,
            translate,
            rra: false,
        };
        let ntr = n / 8 % 2 == 1;
        (
            page,
            Modifiers {
                ntr,
                ..Modifiers::NONE
            },
        )
    }

    fn transfers(&mut self) {
        let mut n = 0;
        for kind in TRANSFERS {
            let qw = matches!(kind, Kind::Get { qw: true } | Kind::Put { qw: true });
            let (places, rounds) = if qw {
                (&QUADWORDS[..], 2)
            } else {
                (&BYTES[..], 1)
            };
            for len in SIZES.into_iter().filter(|len| !qw || len % 8 == 0) {
                for (translate, spec) in product(&[true, false], &[0, 1, 2, 3, 4, 5, 6, 7]) {
                    for _ in 0..rounds {
                        for (local, remote) in product(places, places) {
                            let (page, modifiers) = Self::options(n, translate);
                            n += 1;
                            self.add(Case {
                                kind,
                                spec,
                                page,
                                modifiers,
                                len,
                                local,
                                remote,
                                ..blank(kind)
                            });
                        }
                    }
                    // The next kind of command gets other combinations of offsets and options.
                    n += 5;
                }
            }
        }
    }

    fn short(&mut self) {
        for kind in [Kind::Immediate, Kind::Notification] {
            let last = if kind == Kind::Immediate { 8 } else { 1 };
            for len in 1..=last {
                for (n, spec) in product(&(0..16).collect::<Vec<_>>(), &[0, 1, 2, 3, 4, 5, 6, 7]) {
                    for (translate, k) in product(&[true, false], &[0, 3, 4, 8]) {
                        let (page, modifiers) = Self::options(n, translate);
                        // Combines every offset with every length.
                        let remote = BYTES[(n + k + usize::from(spec)) % BYTES.len()];
                        self.add(Case {
                            spec,
                            page,
                            modifiers,
                            len,
                            remote,
                            ..blank(kind)
                        });
                    }
                }
            }
        }
    }

    fn locks(&mut self) {
        for (n, spec) in product(&(0..8).collect::<Vec<_>>(), &[0, 1, 2, 3, 4, 5, 6, 7]) {
            for (translate, round) in product(&[true, false], &[0, 1, 2]) {
                for at in [LockTarget::Completer, LockTarget::Responder] {
                    let (page, modifiers) = Self::options(n + round * 8, translate);
                    let modifiers = Modifiers {
                        ntr: false,
                        ..modifiers
                    };
                    self.add(Case {
                        spec,
                        page,
                        modifiers,
                        ..blank(Kind::Lock(at))
                    });
                }
            }
        }
    }

    /// Generates a PUT and a GET of the same register.
    fn registers(&mut self) {
        for (n, spec) in product(&(0..8).collect::<Vec<_>>(), &[0, 1, 2, 3, 4, 5, 6, 7]) {
            for translate in [true, false] {
                let (page, modifiers) = Self::options(n, translate);
                let page = PageOptions { rra: true, ..page };
                for kind in [Kind::Immediate, Kind::Get { qw: spec & 1 == 1 }] {
                    let case = Case {
                        spec,
                        page,
                        modifiers,
                        len: 8,
                        local: 128,
                        remote: 0,
                        ..blank(kind)
                    };
                    self.add(case);
                    // The PUT and the GET carry the same value.
                    if let (Kind::Get { .. }, [.., put, get]) = (kind, &mut self.cases[..]) {
                        get.value = put.value;
                    }
                }
            }
        }
    }

    fn refused(&mut self) {
        for kind in TRANSFERS.into_iter().chain(OTHERS) {
            for bits in [1u8, 4, 8, 3, 13] {
                for (n, spec) in product(&[0, 6, 13], &[0, 1, 4, 7]) {
                    let (page, _) = Self::options(n, spec % 2 == 0);
                    let modifiers = Modifiers::from_bits(bits);
                    let len = if kind == Kind::Immediate { 4 } else { 1000 };
                    self.add(Case {
                        spec,
                        page,
                        modifiers,
                        len,
                        local: 136,
                        remote: 128,
                        ..blank(kind)
                    });
                }
            }
        }
    }

    fn large(&mut self) {
        let mut n = 0;
        for (len, kind) in product(&LONG, &TRANSFERS) {
            let qw = matches!(kind, Kind::Get { qw: true } | Kind::Put { qw: true });
            if qw && len % 8 != 0 {
                continue;
            }
            let places = if qw { LONG_QUADWORDS } else { LONG_BYTES };
            for translate in [true, false] {
                // For registered memory, the library splits the transfer.
                if len > MAX_LEN && !translate {
                    continue;
                }
                let specs = if self.extent.full { 0..8 } else { 7..8 };
                for spec in specs {
                    let chosen = if self.extent.full { 3 } else { 1 };
                    for k in 0..chosen {
                        let (local, remote) = places[(n + k) % 3];
                        let (page, modifiers) = Self::options(n, translate);
                        // The queue is too short for a notification of each fragment of longer
                        // transfers.
                        let ntr = modifiers.ntr && len <= 1 << 20 || len == 1 << 20 && n % 3 == 0;
                        let modifiers = Modifiers { ntr, ..modifiers };
                        self.add(Case {
                            kind,
                            spec,
                            page,
                            modifiers,
                            len,
                            local,
                            remote,
                            ..blank(kind)
                        });
                        n += 1;
                    }
                }
            }
        }
    }
}

fn blank(kind: Kind) -> Case {
    Case {
        kind,
        spec: 0,
        page: PageOptions::default(),
        modifiers: Modifiers::NONE,
        len: 1,
        local: 128,
        remote: 128,
        slot: 0,
        value: 0x1122_3344_0000_0000,
        lock: Lock::default(),
    }
}

fn product<A: Copy, B: Copy>(a: &[A], b: &[B]) -> Vec<(A, B)> {
    a.iter()
        .flat_map(|x| b.iter().map(move |y| (*x, *y)))
        .collect()
}

/// Returns the combinations of a plan in batches. All combinations of a batch are in flight at
/// once; they use different memory and locks.
pub fn batches(plan: Plan, extent: Extent) -> Vec<Vec<Case>> {
    let thin = plan == Plan::Transfers || plan == Plan::Short;
    let mut maker = Maker {
        extent: Extent {
            every: if thin { extent.every } else { 1 },
            ..extent
        },
        plan,
        seen: 0,
        cases: vec![],
        locks: [0; LOCKS],
    };
    let size = match plan {
        Plan::Transfers => {
            maker.transfers();
            BATCH
        }
        Plan::Short => {
            maker.short();
            BATCH
        }
        Plan::Locks => {
            maker.locks();
            LOCKS
        }
        Plan::Registers => {
            maker.registers();
            2
        }
        Plan::Refused => {
            maker.refused();
            BATCH
        }
        Plan::Large => {
            maker.large();
            1
        }
    };
    maker.cases.chunks(size).map(<[Case]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const ALL: Extent = Extent {
        every: 1,
        full: true,
    };

    #[test]
    fn nothing_is_missing_in_the_cross_product() {
        let cases: Vec<Case> = batches(Plan::Transfers, ALL).concat();
        let mut with_options = BTreeSet::new();
        let mut with_places = BTreeSet::new();
        for c in &cases {
            let key = (
                c.operation(&ends()).command_code(),
                c.spec,
                c.page.translate,
                c.len,
            );
            with_options.insert((key, c.page.index() & 0xF, c.modifiers.ntr));
            with_places.insert((key, c.local, c.remote));
        }
        // Byte commands have 11 sizes and 81 pairs of offsets. Quadword commands have 4 sizes and 9
        // pairs of offsets.
        assert_eq!(with_places.len(), 2 * 8 * 2 * (11 * 81 + 4 * 9));
        assert_eq!(with_options.len(), 2 * 8 * 2 * (11 + 4) * 16);
    }

    #[test]
    fn a_sample_has_every_command_in_every_form() {
        let sample = Extent {
            every: 11,
            full: false,
        };
        let cases: Vec<Case> = batches(Plan::Transfers, sample).concat();
        let seen: BTreeSet<_> = cases
            .iter()
            .map(|c| {
                (
                    c.operation(&ends()).command_code(),
                    c.spec,
                    c.page.translate,
                    c.len,
                )
            })
            .collect();
        assert_eq!(seen.len(), 2 * 8 * 2 * (11 + 4));
    }

    #[test]
    fn what_is_under_way_at_once_does_not_meet() {
        for plan in Plan::value_variants() {
            for batch in batches(*plan, ALL) {
                let slots: BTreeSet<_> = batch.iter().map(|c| c.slot).collect();
                assert_eq!(slots.len(), batch.len());
            }
        }
    }

    fn ends() -> Ends {
        let id = Id { node: 0, vpid: 0 };
        Ends {
            origin: id,
            target: id,
            local: 0,
            remote: 0,
        }
    }

    trait Code {
        fn command_code(&self) -> u8;
    }

    impl Code for Operation {
        fn command_code(&self) -> u8 {
            match self {
                Operation::Get { qw, .. } => u8::from(*qw),
                Operation::Put { qw, .. } => 2 + u8::from(*qw),
                _ => 4,
            }
        }
    }
}
