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
    /// The only values there are, if not all in the range.
    choice: Option<&'static [i64]>,
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
            choice: None,
        }
    }

    /// A parameter that may be one of `choice`, in ascending order.
    pub fn one_of(name: &'static str, value: impl Into<i64>, choice: &'static [i64]) -> Self {
        let (least, most) = (choice.first(), choice.last());
        Self {
            choice: Some(choice),
            ..Self::new(
                name,
                value,
                least.copied().unwrap_or(0),
                most.copied().unwrap_or(0),
            )
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
        (self.least..=self.most).contains(&self.value)
            && !(self.even && self.value % 2 != 0)
            && self.choice.is_none_or(|all| all.contains(&self.value))
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
            choice,
        } = self;
        if let Some(choice) = choice {
            return write!(f, "{name}={value} is out of range: one of {choice:?}");
        }
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
