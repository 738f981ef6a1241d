// SPDX-License-Identifier: GPL-2.0-only

//! What trigger events report (HW §6.5): which field of which register moved, counted, and logged at a limited rate.
//!
//! The notification program records registers with each event. Every field of every recorded register is a sub-cause: a report in
//! which the field differs from the last report counts for it. For ECC events the program records no ECC register (HW §6.5), so all
//! registers with ECC flags are read instead.

use crate::{hw::Hw, links, nic::Nic, stats::Reason};
use core::fmt;
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, AtomicFlag, Full, Relaxed},
        Arc,
    },
};
use wire::{
    ids::RegOffset,
    regs::map::{Field, Place, Register},
    snq::{TriggerEvent, TriggerMask, TABLE},
};

/// Events that report normal things: counted, but no errors.
const NORMAL: TriggerMask = TriggerMask(0)
    .with(TriggerEvent::PcieCoreLinkStatus)
    .with(TriggerEvent::PcieBridgeRegfileInfo)
    .with(TriggerEvent::TimerInterrupt)
    .with(TriggerEvent::GpioIrq)
    .with(TriggerEvent::BarrierReleased)
    .with(TriggerEvent::BarrierGlobalInterrupt)
    .with(TriggerEvent::LinkPort)
    .with(TriggerEvent::LinkMacStatus)
    .with(TriggerEvent::NwState);

/// The driver's events: the vendor's (HW §6.5), and links, inports and correctable ECC errors.
pub(crate) const ENABLED: TriggerMask = TriggerMask::DEFAULT
    .with(TriggerEvent::EccError)
    .with(TriggerEvent::XbarInport)
    .with(TriggerEvent::LinkPort)
    .with(TriggerEvent::LinkMacStatus);

/// Words of an entry that has another part after it (HW §6.3).
const FULL_PART: usize = 7;
/// Changed fields that one log line shows.
const SHOWN: usize = 6;

/// A register that an event records, or one with ECC flags.
struct Word {
    event: TriggerEvent,
    place: Place,
    offset: RegOffset,
    entry: u32,
    last: Atomic<u64>,
    /// Its fields in `causes`.
    first: usize,
    count: usize,
}

struct Cause {
    field: Field,
    count: Atomic<u64>,
}

/// State of a NIC's event reports.
pub(crate) struct Events {
    words: KVVec<Word>,
    causes: KVVec<Cause>,
    /// The first values were read: changes can be told.
    begun: AtomicFlag,
    /// ECC flags are to be looked at.
    ecc: AtomicFlag,
}

/// A field that changed.
#[derive(Clone, Copy)]
struct Change {
    word: usize,
    field: Field,
    old: u64,
    new: u64,
}

/// What a report changed.
pub(crate) struct Changes<'a> {
    events: &'a Events,
    list: [Option<Change>; SHOWN],
    total: usize,
}

impl fmt::Display for Changes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, change) in self.list.iter().flatten().enumerate() {
            let Change {
                word,
                field,
                old,
                new,
            } = change;
            f.write_str(if n == 0 { "" } else { ", " })?;
            if let Some(word) = self.events.words.get(*word) {
                write!(f, "{word}{}", Dotted(field.name))?;
            }
            write!(f, " {old:#x} -> {new:#x}")?;
        }
        match self.total.saturating_sub(SHOWN) {
            0 if self.total == 0 => f.write_str("nothing changed"),
            0 => Ok(()),
            more => write!(f, ", {more} more"),
        }
    }
}

// For the kernel's printing macros.
impl kernel::fmt::Display for Changes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A field name after a register's.
struct Dotted(&'static str);

impl fmt::Display for Dotted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        write!(f, ".{}", self.0)
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(register) = Register::at(self.place) else {
            return Ok(());
        };
        write!(f, "{register}")?;
        if register.entries() > 1 {
            write!(f, "[{}]", self.entry)?;
        }
        Ok(())
    }
}

/// Whether a field is an ECC flag.
fn is_ecc(field: &Field) -> bool {
    let name = field.name;
    let ends = |s: &str| {
        name.get(name.len().wrapping_sub(s.len())..)
            .is_some_and(|end| end.eq_ignore_ascii_case(s))
    };
    ends("sec") || ends("ded") || ends("sec_error") || ends("ded_error")
}

impl Events {
    pub(crate) fn new() -> Result<Self> {
        let mut this = Self {
            words: KVVec::new(),
            causes: KVVec::new(),
            begun: AtomicFlag::new(false),
            ecc: AtomicFlag::new(false),
        };
        for program in &TABLE {
            let event = program.event;
            if is_vector(event) || is_ecc_event(event) {
                continue;
            }
            for offset in program.registers {
                if let Some((register, entry)) = Register::find(*offset) {
                    this.add(event, &register, entry, register.fields())?;
                }
            }
        }
        for register in Register::all().filter(Register::is_dumped) {
            if register.entries() == 1 && register.fields().any(|f| is_ecc(&f)) {
                let flags = register.fields().filter(is_ecc);
                this.add(TriggerEvent::EccFatal, &register, 0, flags)?;
            }
        }
        Ok(this)
    }

    fn add(
        &mut self,
        event: TriggerEvent,
        register: &Register,
        entry: u32,
        fields: impl Iterator<Item = Field> + Clone,
    ) -> Result {
        let first = self.causes.len();
        let none = fields.clone().next().is_none();
        for field in fields.chain(none.then_some(Field::WHOLE)) {
            let count = Atomic::new(0);
            self.causes.push(Cause { field, count }, GFP_KERNEL)?;
        }
        let word = Word {
            event,
            place: register.place(),
            offset: register.offset(entry),
            entry,
            last: Atomic::new(0),
            first,
            count: self.causes.len() - first,
        };
        Ok(self.words.push(word, GFP_KERNEL)?)
    }

    /// Counts the fields that a report changed.
    fn compare<'a>(
        &'a self,
        event: TriggerEvent,
        values: impl Iterator<Item = (RegOffset, u64)>,
    ) -> Changes<'a> {
        let mut changes = Changes {
            events: self,
            list: [None; SHOWN],
            total: 0,
        };
        for (offset, value) in values {
            let words = self.words.iter().enumerate();
            let mut found = words.filter(|(_, w)| w.event == event && w.offset == offset);
            let Some((n, word)) = found.next() else {
                continue;
            };
            let last = word.last.xchg(value, Full);
            if last == value || !self.begun.load(Relaxed) {
                continue;
            }
            let causes = self.causes.get(word.first..word.first + word.count);
            for cause in causes.unwrap_or_default() {
                let (old, new) = (cause.field.of(last), cause.field.of(value));
                if old == new {
                    continue;
                }
                cause.count.fetch_add(1, Relaxed);
                if let Some(place) = changes.list.get_mut(changes.total) {
                    let (word, field) = (n, cause.field);
                    *place = Some(Change {
                        word,
                        field,
                        old,
                        new,
                    });
                }
                changes.total += 1;
            }
        }
        changes
    }

    /// Writes the sub-causes of an event that occurred.
    pub(crate) fn show(&self, event: TriggerEvent, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for word in self.words.iter().filter(|w| w.event == event) {
            let causes = self.causes.get(word.first..word.first + word.count);
            for cause in causes.unwrap_or_default() {
                let count = cause.count.load(Relaxed);
                if count != 0 {
                    writeln!(f, "  {word}{} {count}", Dotted(cause.field.name))?;
                }
            }
        }
        Ok(())
    }
}

/// Events whose words are interrupt vectors of VPIDs.
fn is_vector(event: TriggerEvent) -> bool {
    matches!(
        event,
        TriggerEvent::VeloNotification | TriggerEvent::RmaNotification
    )
}

fn is_ecc_event(event: TriggerEvent) -> bool {
    matches!(event, TriggerEvent::EccError | TriggerEvent::EccFatal)
}

/// Handles all that the dispatcher does not itself: decodes, counts, logs, and starts what has to be done in process context. Hard
/// interrupt, with the notification queue locked.
pub(crate) fn handle(
    nic: &Arc<Nic>,
    hw: &Hw,
    event: TriggerEvent,
    part: u8,
    registers: &[RegOffset],
    words: &[u64],
) {
    let values = registers.iter().copied().zip(words.iter().copied());
    let changes = nic.events.compare(event, values);
    match event {
        TriggerEvent::SmfuTimeout => {
            nic.smfu.take_timeout(nic, hw);
            return;
        }
        TriggerEvent::EccError | TriggerEvent::EccFatal => {
            nic.events.ecc.store(true, Relaxed);
            nic.schedule_events();
        }
        TriggerEvent::LinkPort
        | TriggerEvent::LinkMacStatus
        | TriggerEvent::LinkMacLaneError
        | TriggerEvent::LinkMacRetrainError => nic.schedule_events(),
        _ => {}
    }
    // Of a report in parts those without change say nothing.
    let silent = changes.total == 0 && (part > 0 || words.len() == FULL_PART);
    if NORMAL.contains(event) {
        nic.note(Reason::NormalEvent, event.number().into());
    } else if !silent {
        nic.event_error(event, part, &changes);
    }
}

/// As [`handle`] for events whose words the dispatcher judged itself: only counts.
pub(crate) fn count(nic: &Nic, event: TriggerEvent, registers: &[RegOffset], words: &[u64]) {
    let values = registers.iter().copied().zip(words.iter().copied());
    nic.events.compare(event, values);
}

/// What a report of an error changed, logged.
pub(crate) fn error(
    nic: &Nic,
    event: TriggerEvent,
    part: u8,
    registers: &[RegOffset],
    words: &[u64],
) {
    let values = registers.iter().copied().zip(words.iter().copied());
    let changes = nic.events.compare(event, values);
    nic.event_error(event, part, &changes);
}

/// Registers' values as they are, but of those that are read for `skip`.
fn read_all<'a>(
    nic: &'a Nic,
    wanted: impl Fn(&Word) -> bool + 'a,
) -> impl Iterator<Item = (RegOffset, u64)> + 'a {
    let words = nic.events.words.iter().filter(move |w| wanted(w));
    words.filter_map(|w| {
        let value = nic.alive_access()?.rf.read(w.offset);
        (value != u64::MAX).then_some((w.offset, value))
    })
}

/// Process context: the first time notes how things are and enables the driver's events, later looks at what events asked for.
pub(crate) fn work(nic: &Arc<Nic>) {
    let events = &nic.events;
    if !events.begun.load(Relaxed) {
        for event in TriggerEvent::ALL {
            let values = read_all(nic, move |w| w.event == event);
            events.compare(event, values);
        }
        links::refresh(nic, false);
        events.begun.store(true, Relaxed);
        nic.snq.allow(nic, ENABLED);
    }
    if events.ecc.xchg(false, Full) {
        let flags = read_all(nic, |w| w.event == TriggerEvent::EccFatal);
        let changes = events.compare(TriggerEvent::EccFatal, flags);
        nic.event_error(TriggerEvent::EccFatal, 0, &changes);
    }
    links::refresh(nic, true);
}
