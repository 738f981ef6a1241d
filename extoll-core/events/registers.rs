// SPDX-License-Identifier: GPL-2.0-only

//! Registers that events record. Finds the fields that changed since the last report. Values and
//! counts are atomic; any context.

use core::fmt;
use kernel::{
    prelude::*,
    sync::atomic::{Atomic, AtomicFlag, Full, Relaxed},
};
use wire::{
    ids::RegOffset,
    regs::map::{Field, Register, RegisterIndex},
    snq::{TriggerEvent, TABLE},
};

/// Maximum number of changed fields in a log line.
const SHOWN: usize = 6;

/// Register that an event records, or register with ECC flags.
pub(super) struct Word {
    pub(super) event: TriggerEvent,
    index: RegisterIndex,
    pub(super) offset: RegOffset,
    entry: u32,
    last: Atomic<u64>,
    /// Index in `causes` of the register's first field.
    first: usize,
    count: usize,
}

struct Cause {
    field: Field,
    count: Atomic<u64>,
}

/// Registers whose values are compared, with the values of the last report.
pub(super) struct Registers {
    pub(super) words: KVVec<Word>,
    causes: KVVec<Cause>,
    /// Set after the initial values were read. Changes are counted from then on.
    pub(super) begun: AtomicFlag,
}

/// Change of a field.
#[derive(Clone, Copy)]
struct Change {
    word: usize,
    field: Field,
    old: u64,
    new: u64,
}

/// Changes in one report, for the log.
pub(super) struct Changes<'a> {
    registers: &'a Registers,
    list: [Option<Change>; SHOWN],
    pub(super) total: usize,
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
            if let Some(word) = self.registers.words.get(*word) {
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

// The kernel's printing macros need this second implementation.
impl kernel::fmt::Display for Changes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Field name, written with a leading dot after a register name.
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
        let Some(register) = Register::at(self.index) else {
            return Ok(());
        };
        write!(f, "{register}")?;
        if register.entries() > 1 {
            write!(f, "[{}]", self.entry)?;
        }
        Ok(())
    }
}

/// Returns whether a field is an ECC flag.
fn is_ecc(field: &Field) -> bool {
    let name = field.name;
    let ends = |s: &str| {
        name.get(name.len().wrapping_sub(s.len())..)
            .is_some_and(|end| end.eq_ignore_ascii_case(s))
    };
    ends("sec") || ends("ded") || ends("sec_error") || ends("ded_error")
}

impl Registers {
    pub(super) fn new() -> Result<Self> {
        let mut this = Self {
            words: KVVec::new(),
            causes: KVVec::new(),
            begun: AtomicFlag::new(false),
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
            index: register.index(),
            offset: register.offset(entry),
            entry,
            last: Atomic::new(0),
            first,
            count: self.causes.len() - first,
        };
        Ok(self.words.push(word, GFP_KERNEL)?)
    }

    /// Counts the fields that changed since the last report, and returns them.
    pub(super) fn compare<'a>(
        &'a self,
        event: TriggerEvent,
        values: impl Iterator<Item = (RegOffset, u64)>,
    ) -> Changes<'a> {
        let mut changes = Changes {
            registers: self,
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
                if let Some(slot) = changes.list.get_mut(changes.total) {
                    let (word, field) = (n, cause.field);
                    *slot = Some(Change {
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

    /// Writes the sub-causes of an event whose count is not 0.
    pub(super) fn show(&self, event: TriggerEvent, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

/// Returns whether the words of an event are interrupt vectors of VPIDs.
fn is_vector(event: TriggerEvent) -> bool {
    matches!(
        event,
        TriggerEvent::VeloNotification | TriggerEvent::RmaNotification
    )
}

fn is_ecc_event(event: TriggerEvent) -> bool {
    matches!(event, TriggerEvent::EccError | TriggerEvent::EccFatal)
}
