// SPDX-License-Identifier: GPL-2.0-only

//! Module parameters: what they may be, and which they are.
//!
//! The kernel refuses what is no number of the parameter's type; ranges are up to the module, which has no sysfs files for them either.

use kernel::{fmt, prelude::*};

/// A parameter that is a number, with its range.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    name: &'static str,
    value: i64,
    least: i64,
    most: i64,
    even: bool,
}

impl Param {
    /// A parameter that may be `least` to `most`.
    pub fn new(name: &'static str, value: impl Into<i64>, least: i64, most: i64) -> Self {
        Self {
            name,
            value: value.into(),
            least,
            most,
            even: false,
        }
    }

    /// The same, but odd numbers are not possible.
    pub fn even(self) -> Self {
        Self { even: true, ..self }
    }

    /// A switch, shown as 0 or 1.
    pub fn switch(name: &'static str, value: bool) -> Self {
        Self::new(name, i64::from(value), 0, 1)
    }

    /// Whether it is in its range.
    pub fn is_possible(&self) -> bool {
        (self.least..=self.most).contains(&self.value) && !(self.even && self.value % 2 != 0)
    }
}

/// Why it is not possible.
impl fmt::Display for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            value,
            least,
            most,
            even,
        } = self;
        let even = if *even { ", even" } else { "" };
        write!(f, "{name}={value} is out of range: {least} to {most}{even}")
    }
}

/// Looks at all of `params` and tells `complain` of those out of their ranges.
///
/// # Errors
///
/// `EINVAL` if there are any.
pub fn check(params: &[Param], complain: impl Fn(&Param)) -> Result {
    let mut result = Ok(());
    for param in params.iter().filter(|p| !p.is_possible()) {
        complain(param);
        result = Err(EINVAL);
    }
    result
}

/// Writes a line `name value` for each.
///
/// # Errors
///
/// Those of `f`.
pub fn show(params: &[Param], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for Param { name, value, .. } in params {
        writeln!(f, "{name} {value}")?;
    }
    Ok(())
}
