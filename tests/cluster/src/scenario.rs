//! What a scenario is.

use crate::cluster::{Lab, Spec};
use anyhow::Result;
use std::time::Duration;

/// How long a scenario may take unless it says otherwise, without the boot of its cluster.
pub const DEADLINE: Duration = Duration::from_secs(300);

/// What a scenario does with the machine, and so what may run beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Keeps the processors busy: not beside another one of these.
    Cpu,
    /// Waits for most of its time: beside anything but [`Load::Exclusive`].
    Wait,
    /// Needs the machine for itself, for memory or for exact times.
    Exclusive,
}

/// One test.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Name, `group::what`.
    pub name: &'static str,
    /// The cluster it wants.
    pub spec: Spec,
    /// The test itself.
    pub run: fn(&Lab) -> Result<()>,
    /// What may run beside it.
    pub load: Load,
    /// How long it may take.
    pub deadline: Duration,
    /// Counters of the emulator's findings (`labctl::findings`) that it moves on purpose.
    pub expects: &'static [&'static str],
    /// Nothing is broken in it, so the drivers may count no errors.
    pub healthy: bool,
}

impl Scenario {
    /// A scenario that waits most of the time, ends within [`DEADLINE`] and makes the emulator find nothing. What its group
    /// says otherwise (`scenarios::GROUPS`, `scenarios::expected`) comes on top when the list is put together.
    pub const fn new(name: &'static str, spec: Spec, run: fn(&Lab) -> Result<()>) -> Self {
        Self {
            name,
            spec,
            run,
            load: Load::Wait,
            deadline: DEADLINE,
            expects: &[],
            healthy: false,
        }
    }
}

/// Scenarios whose names begin with a text, and what they differ in.
pub struct Group {
    /// The text: `group::` or a whole name.
    pub prefix: &'static str,
    /// As [`Scenario::load`].
    pub load: Load,
    /// Seconds of [`Scenario::deadline`].
    pub seconds: u64,
}

/// Applies the group whose text fits best.
pub fn apply(groups: &[Group], scenario: &mut Scenario) {
    let fits = groups
        .iter()
        .filter(|g| scenario.name.starts_with(g.prefix));
    if let Some(group) = fits.max_by_key(|g| g.prefix.len()) {
        scenario.load = group.load;
        scenario.deadline = Duration::from_secs(group.seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_text_wins() {
        let group = |prefix, load, seconds| Group {
            prefix,
            load,
            seconds,
        };
        let groups = [
            group("a::b", Load::Exclusive, 7),
            group("a::", Load::Cpu, 5),
        ];
        let load = |name| {
            let mut s = Scenario::new(name, Spec::pair(), |_| Ok(()));
            apply(&groups, &mut s);
            (s.load, s.deadline.as_secs())
        };
        assert_eq!(load("a::b"), (Load::Exclusive, 7));
        assert_eq!(load("a::c"), (Load::Cpu, 5));
        assert_eq!(load("c::a"), (Load::Wait, DEADLINE.as_secs()));
    }
}
