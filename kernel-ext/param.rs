// SPDX-License-Identifier: GPL-2.0-only

//! Module parameters with their ranges, and tunables: numbers that are constants for users.
//!
//! The kernel checks only that a module parameter is a number of its type. [`check`] checks ranges.
//! Rust modules have no sysfs files for parameters, so [`show`] lists them in debugfs.
//!
//! A [`Tunable`] has no module parameter. Tests write an override into the debugfs file
//! `extoll/tunables` before they load the module that uses it (or, for `extoll.ko`, before they
//! bind the NIC). The module removes its overrides from the list and uses them until it is
//! unloaded.

use crate::global::Global;
use kernel::{
    fmt, new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex,
    },
};

/// Numeric parameter with its range.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    name: &'static str,
    value: i64,
    min: i64,
    max: i64,
    /// Bits that must be 0.
    clear: i64,
    /// Allowed values, if not all of the range are allowed.
    choice: Option<&'static [i64]>,
}

impl Param {
    /// Returns a parameter with the range `min` to `max`.
    pub fn new(name: &'static str, value: impl Into<i64>, min: i64, max: i64) -> Self {
        Self {
            name,
            value: value.into(),
            min,
            max,
            clear: 0,
            choice: None,
        }
    }

    /// Returns a parameter whose permitted values are `choice`, in ascending order.
    pub fn one_of(name: &'static str, value: impl Into<i64>, choice: &'static [i64]) -> Self {
        let (min, max) = (choice.first(), choice.last());
        Self {
            choice: Some(choice),
            ..Self::new(
                name,
                value,
                min.copied().unwrap_or(0),
                max.copied().unwrap_or(0),
            )
        }
    }

    /// Returns the same parameter, whose bits in `clear` must be 0.
    pub fn with_clear(self, clear: i64) -> Self {
        Self { clear, ..self }
    }

    /// Returns a Boolean parameter, shown as 0 or 1.
    pub fn switch(name: &'static str, value: bool) -> Self {
        Self::new(name, i64::from(value), 0, 1)
    }

    /// Returns true if the value is permitted.
    pub fn is_valid(&self) -> bool {
        (self.min..=self.max).contains(&self.value)
            && self.value & self.clear == 0
            && self.choice.is_none_or(|all| all.contains(&self.value))
    }
}

/// Formats the message that the value is out of its range, and the permitted range.
impl fmt::Display for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            value,
            min,
            max,
            clear,
            choice,
        } = self;
        if let Some(choice) = choice {
            return write!(f, "{name}={value} is out of range: one of {choice:?}");
        }
        if *clear != 0 && *value & *clear != 0 {
            return write!(
                f,
                "{name}={value:#x} is out of range: bits {clear:#x} have to be 0"
            );
        }
        write!(f, "{name}={value} is out of range: {min} to {max}")
    }
}

/// Checks `params` and calls `complain` for each parameter whose value is not permitted.
///
/// # Errors
///
/// `EINVAL` if `complain` was called.
pub fn check(params: &[Param], complain: impl Fn(&Param)) -> Result {
    let mut result = Ok(());
    for param in params.iter().filter(|p| !p.is_valid()) {
        complain(param);
        result = Err(EINVAL);
    }
    result
}

/// Writes a line `name value` for each parameter.
///
/// # Errors
///
/// Errors of `f`.
pub fn show(params: &[Param], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for Param { name, value, .. } in params {
        // The module's name is omitted, because the file belongs to one module: `atu_gats`, not
        // `extoll.atu_gats`.
        let name = name.split_once('.').map_or(*name, |(_, name)| name);
        writeln!(f, "{name} {value}")?;
    }
    Ok(())
}

/// Maximum number of overrides at a time.
const OVERRIDES: usize = 64;
/// Maximum length of a tunable's name in bytes.
const NAME_BYTES: usize = 48;

/// Overrides that no module has read yet; present while `extoll.ko` is loaded.
static STORE: Global<Store> = Global::new();

struct Override {
    name: [u8; NAME_BYTES],
    value: i64,
}

impl Override {
    fn name(&self) -> &str {
        let bytes = self.name.split(|byte| *byte == 0).next().unwrap_or(&[]);
        core::str::from_utf8(bytes).unwrap_or("")
    }
}

#[pin_data]
struct Store {
    #[pin]
    list: Mutex<KVec<Override>>,
}

/// Number without a module parameter. Only a test can override the default.
pub struct Tunable {
    name: &'static str,
    value: Atomic<i64>,
}

impl Tunable {
    /// Declares a tunable. `name` is the module's name, a dot and the name of the quantity.
    pub const fn new(name: &'static str, default: i64) -> Self {
        Self {
            name,
            value: Atomic::new(default),
        }
    }

    /// Returns the default, or the override that [`Tunable::load`] found. Any context.
    pub fn value(&self) -> i64 {
        self.value.load(Relaxed)
    }

    /// Returns the value as a number that the range of [`Tunable::param`] allows. Any context.
    pub fn number(&self) -> u32 {
        self.value() as u32
    }

    /// Removes this tunable's override from the list and uses the override's value from now on.
    /// Without an override the value does not change. May sleep.
    pub fn load(&self) {
        let Some(store) = STORE.get() else {
            return;
        };
        let mut list = store.list.lock();
        list.retain(|entry| {
            let is_own = entry.name() == self.name;
            if is_own {
                self.value.store(entry.value, Relaxed);
            }
            !is_own
        });
    }

    /// Returns the tunable with its range, for [`check`] and [`show`].
    pub fn param(&self, min: i64, max: i64) -> Param {
        Param::new(self.name, self.value(), min, max)
    }

    /// Returns the tunable with the values that it may have, in ascending order.
    pub fn one_of(&self, choice: &'static [i64]) -> Param {
        Param::one_of(self.name, self.value(), choice)
    }
}

/// Owner of the overrides. `extoll.ko` keeps this object while the module is loaded.
pub struct Overrides(());

impl Overrides {
    /// Creates the empty list of overrides. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> Result<Self> {
        let list = KVec::with_capacity(OVERRIDES, GFP_KERNEL)?;
        let store = pin_init!(Store { list <- new_mutex!(list, "extoll_tunables") });
        STORE.set(Some(Arc::pin_init(store, GFP_KERNEL)?));
        Ok(Self(()))
    }

    /// Replaces all overrides on the list by those of `text`: words of the form
    /// `module.name=number`. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a word of another form or a name of more than 47 bytes; `E2BIG` for more than
    /// 64 words; `ENODEV` while no owner exists. An error leaves the overrides unchanged.
    pub fn set(text: &str) -> Result {
        let store = STORE.get().ok_or(ENODEV)?;
        let mut list = KVec::with_capacity(OVERRIDES, GFP_KERNEL)?;
        for word in text.split_ascii_whitespace() {
            let (name, number) = word.split_once('=').ok_or(EINVAL)?;
            if name.len() >= NAME_BYTES || !name.contains('.') {
                return Err(EINVAL);
            }
            let mut entry = Override {
                name: [0; NAME_BYTES],
                value: number.parse().map_err(|_| EINVAL)?,
            };
            for (to, from) in entry.name.iter_mut().zip(name.bytes()) {
                *to = from;
            }
            list.push_within_capacity(entry).map_err(|_| E2BIG)?;
        }
        *store.list.lock() = list;
        Ok(())
    }

    /// Writes a line `module.name=number` for each override on the list. May sleep.
    ///
    /// # Errors
    ///
    /// The errors of `f`.
    pub fn show(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(store) = STORE.get() else {
            return Ok(());
        };
        let list = store.list.lock();
        for entry in list.iter() {
            writeln!(f, "{}={}", entry.name(), entry.value)?;
        }
        Ok(())
    }
}

impl Drop for Overrides {
    fn drop(&mut self) {
        STORE.set(None);
    }
}
