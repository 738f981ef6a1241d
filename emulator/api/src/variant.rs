//! Variants of the model. A variant gives a value to each switch, a decision about a gap of the
//! hardware reference (docs/hardware.md).
//!
//! If the reference is silent, the model has a default behaviour and alternatives. A driver must
//! work with all of them. Tests therefore run either with a variant drawn from a seed, or with each
//! of a set of variants that together contain every value of every switch.

use crate::config::ConfigFile;
use anyhow::{bail, Context, Result};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use toml::{Table, Value};

/// Value of a switch whose field is left out of the configuration.
const NONE: &str = "none";

/// A decision of the model for which there are alternatives.
#[derive(Debug, Clone, Copy)]
pub struct Switch {
    /// Key in the configuration file, as `section.field`.
    pub key: &'static str,
    /// Number of the gap in the reference, as `G` and digits.
    pub gap: &'static str,
    /// Possible values. The first value is the default.
    pub values: &'static [&'static str],
}

const fn switch(key: &'static str, gap: &'static str, values: &'static [&'static str]) -> Switch {
    Switch { key, gap, values }
}

/// All switches for which variants draw values.
pub const SWITCHES: &[Switch] = &[
    switch("nic.flr-scope", "G2", &["everything", "keep-network"]),
    switch("pci.msi-vectors", "G3", &["1", "4", "32"]),
    switch("nic.snq-stale-words", "G5", &["false", "true"]),
    switch("nic.snq-restart", "G6", &["reset-pointer", "keep-pointer"]),
    switch("nic.irq-missed", "G7", &["remember", "forget"]),
    switch("nic.full-rule", "G10", &["keep-one-free", "flag-on-equal"]),
    switch("nic.hold-scope", "G10", &["vpid", "unit"]),
    switch(
        "nic.hold-timeout-unit-ns",
        "G10",
        &["100000000", "40000000"],
    ),
    switch("nic.wc", "G8", &["stores", "lines"]),
    switch("nic.wc-timeout-unit-ns", "G8", &["32000000", "0"]),
    switch("nic.wc-commit-ns", "G11", &["0", "200000"]),
    switch("nic.faults.wcbuf-retry-waiting", "G11", &[NONE, "32"]),
    switch("nic.wc-depth", "G11", &[NONE, "16"]),
    switch("nic.tx-queue-limit", "G11", &["4096", "64"]),
    switch("nic.unaligned-qw", "G12", &["as-bytes", "error"]),
    switch("nic.atu-tlb", "G17", &["on", "whole-pages", "off"]),
    switch("nic.atu-notify", "G17", &["behind-all", "own-way"]),
    switch("nic.smfu-zero-mask", "G18", &["refuse", "node-zero"]),
    switch("nic.smfu-zero-base", "G18", &["default", "address"]),
    switch("nic.rra-vpid", "G19", &["any", "open"]),
    switch("nic.backdoor-info-read", "G20", &["pop", "peek"]),
    switch("network.illegal-routing", "G21", &["inport", "outport"]),
    switch("setup.multicast-to-sender", "G21", &["false", "true"]),
    switch("setup.delay-ms", "G22", &["0", "400", "50"]),
    switch("nic.tsc-hz", "G25", &["100000000", "156250000"]),
    switch(TIMING, "G28", &["ideal", "unkind"]),
    switch("nic.smfu-store-ns", "G35", &["0", "2000000"]),
    switch("timing.push", "G35", &["all", "bridge"]),
    switch("network.link.bytes-per-second", "G35", &["0", "1000000000"]),
    switch("network.link.latency-ns", "G35", &["0", "100000"]),
    switch("nic.hold-closed", "G10", &["drop", "keep"]),
];

/// Switch of the timing model. The program `lab` uses the unkind model by default, unless a variant
/// names a model.
const TIMING: &str = "timing.model";

/// Values of switches by key. Switches without a value have their default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Variant(BTreeMap<String, String>);

/// Choice of a variant for a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Choice {
    /// Every switch has its default.
    #[default]
    Default,
    /// Values are drawn from the seed of the run.
    Auto,
    /// Values are drawn from this seed.
    Seed(u64),
    /// The switches in this variant have these values.
    Set(Variant),
}

impl FromStr for Choice {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "default" => Choice::Default,
            "auto" => Choice::Auto,
            _ => match text.parse() {
                Ok(seed) => Choice::Seed(seed),
                Err(_) => Choice::Set(text.parse()?),
            },
        })
    }
}

impl FromStr for Variant {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut values = BTreeMap::new();
        for word in text.split(',') {
            let (key, value) = word.split_once('=').with_context(|| {
                format!("{word:?} is not auto, default, a number or KEY=VALUE,…")
            })?;
            if !SWITCHES.iter().any(|s| s.key == key) {
                bail!("there is no switch {key:?}; `extoll-emu variants` lists them");
            }
            values.insert(key.to_owned(), value.to_owned());
        }
        Ok(Self(values))
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("default");
        }
        for (i, (key, value)) in self.0.iter().enumerate() {
            write!(f, "{}{key}={value}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl Variant {
    /// Returns the variant of a seed. Each switch has its default with probability ½, otherwise one
    /// of its other values.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut values = BTreeMap::new();
        for s in SWITCHES {
            let other = rng.random_range(1..s.values.len());
            if rng.random() {
                values.insert(s.key.to_owned(), s.values[other].to_owned());
            }
        }
        Self(values)
    }

    /// Returns a few variants that together contain every value of every switch. Each variant names
    /// its timing model. Only the first variant is ideal, because the unkind model exposes most
    /// errors.
    pub fn covering() -> Vec<Self> {
        let lines = SWITCHES.iter().map(|s| s.values.len()).max().unwrap_or(0);
        let line = |i: usize| {
            let values = SWITCHES.iter().enumerate().filter_map(|(k, s)| {
                let named = s.key == TIMING;
                let v = if named {
                    i.min(1)
                } else {
                    (i + k) % s.values.len()
                };
                (v != 0 || named).then(|| (s.key.to_owned(), s.values[v].to_owned()))
            });
            Self(values.collect())
        };
        (0..lines).map(line).collect()
    }

    /// Returns the variant that a configuration describes.
    ///
    /// # Errors
    ///
    /// When the configuration cannot be written as TOML.
    pub fn of(file: &ConfigFile) -> Result<Self> {
        let table = Table::try_from(file)?;
        let differs = |s: &Switch| {
            let have = get(&table, s.key);
            (have != parse(s.values[0])).then(|| (s.key.to_owned(), show(have)))
        };
        Ok(Self(SWITCHES.iter().filter_map(differs).collect()))
    }

    /// Returns `file` with the values of this variant. If `keep` is true, values of `file` that
    /// differ from the default stay.
    fn apply(&self, file: ConfigFile, keep: bool) -> Result<ConfigFile> {
        if self.0.is_empty() {
            return Ok(file);
        }
        let fixed = if keep {
            Self::of(&file)?
        } else {
            Self::default()
        };
        let mut table = Table::try_from(&file)?;
        for (key, value) in self.0.iter().filter(|(k, _)| !fixed.0.contains_key(*k)) {
            set(&mut table, key, parse(value)).with_context(|| key.clone())?;
        }
        Ok(table.try_into()?)
    }
}

impl Choice {
    /// Returns the configuration with the chosen values. Values in the file override drawn values;
    /// named values override the file.
    ///
    /// # Errors
    ///
    /// When a switch cannot have its value.
    pub fn apply(&self, file: ConfigFile, seed: u64) -> Result<ConfigFile> {
        match self {
            Choice::Default => Ok(file),
            Choice::Auto => Variant::from_seed(seed).apply(file, true),
            Choice::Seed(seed) => Variant::from_seed(*seed).apply(file, true),
            Choice::Set(variant) => variant.apply(file, false),
        }
        .context("variant")
    }
}

/// Parses a value as TOML. Text that is not valid TOML becomes a string; `none` becomes `None`.
fn parse(text: &str) -> Option<Value> {
    if text == NONE {
        return None;
    }
    let table = toml::from_str::<Table>(&format!("v = {text}")).ok();
    let value = table.and_then(|mut t| t.remove("v"));
    Some(value.unwrap_or_else(|| text.into()))
}

fn show(value: Option<Value>) -> String {
    match value {
        None => NONE.to_owned(),
        Some(Value::String(s)) => s,
        Some(v) => v.to_string(),
    }
}

fn get(table: &Table, key: &str) -> Option<Value> {
    let mut path = key.split('.');
    let first = table.get(path.next()?)?;
    path.try_fold(first, |v, k| v.get(k)).cloned()
}

fn set(table: &mut Table, key: &str, value: Option<Value>) -> Result<()> {
    let (path, field) = key.rsplit_once('.').unwrap_or(("", key));
    let mut at = table;
    for part in path.split('.').filter(|p| !p.is_empty()) {
        let next = at.entry(part).or_insert_with(|| Table::new().into());
        at = next.as_table_mut().context("not a section")?;
    }
    match value {
        Some(v) => drop(at.insert(field.to_owned(), v)),
        None => drop(at.remove(field)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_switch_exists_and_takes_its_values() {
        let default = ConfigFile::default();
        assert_eq!(Variant::of(&default).unwrap(), Variant::default());
        for s in SWITCHES {
            for &value in s.values {
                let text = format!("{}={value}", s.key);
                let choice: Choice = text.parse().unwrap();
                let file = choice.apply(default.clone(), 1).unwrap();
                let want = if value == s.values[0] {
                    "default".to_owned()
                } else {
                    text
                };
                assert_eq!(Variant::of(&file).unwrap().to_string(), want);
            }
        }
    }

    #[test]
    fn a_covering_set_has_every_value_once_at_least() {
        let lines = Variant::covering();
        let mut seen = BTreeSet::new();
        for line in &lines {
            let file = Choice::Set(line.to_string().parse().unwrap())
                .apply(ConfigFile::default(), 1)
                .unwrap();
            let table = Table::try_from(&file).unwrap();
            seen.extend(SWITCHES.iter().map(|s| (s.key, show(get(&table, s.key)))));
        }
        for s in SWITCHES {
            for v in s.values {
                assert!(seen.contains(&(s.key, (*v).to_owned())), "{} {v}", s.key);
            }
        }
        assert!(lines.len() <= 4, "each line costs a whole run");
    }

    /// Values that have an effect only together must be in one variant, and each variant must name
    /// its timing model.
    #[test]
    fn a_covering_set_has_what_belongs_together() {
        let lines = Variant::covering();
        let of = |line: &Variant, key: &str| line.0.get(key).cloned().unwrap_or_default();
        let models: Vec<String> = lines.iter().map(|l| of(l, TIMING)).collect();
        assert_eq!(models.iter().filter(|m| *m == "ideal").count(), 1);
        assert_eq!(models[1..], vec!["unkind"; lines.len() - 1]);
        let has = |wanted: &[(&str, &str)]| {
            let all = |l: &&Variant| wanted.iter().all(|(key, value)| of(l, key) == *value);
            lines.iter().any(|l| all(&l))
        };
        // A driver notices that its identity was lost only if the set-up restores it after the
        // reset has finished.
        assert!(has(&[("nic.flr-scope", ""), ("setup.delay-ms", "400")]));
        // Descriptors are in flight only if execution takes time.
        assert!(has(&[
            ("nic.wc", "lines"),
            ("nic.wc-commit-ns", "200000"),
            ("nic.wc-depth", "16"),
            (TIMING, "unkind"),
        ]));
        // Only with delays can a read push writes, or an answer pass writes.
        for late in [("timing.push", "bridge"), ("nic.atu-notify", "own-way")] {
            assert!(has(&[late, (TIMING, "unkind")]), "{late:?}");
        }
    }

    #[test]
    fn seeds_repeat_and_differ() {
        let of = |n| Variant::from_seed(n);
        assert_eq!(of(7), of(7));
        let all: BTreeSet<String> = (0..64).map(|n| of(n).to_string()).collect();
        assert!(all.len() > 60);
        assert_eq!("9".parse::<Choice>().unwrap(), Choice::Seed(9));
    }

    #[test]
    fn a_drawn_value_gives_way_to_the_file_and_a_named_one_does_not() {
        let file = || -> ConfigFile {
            toml::from_str("[nic]\nfull-rule = \"flag-on-equal\"\natu-tlb = \"off\"").unwrap()
        };
        for seed in 0..32 {
            let drawn = Choice::Seed(seed).apply(file(), 0).unwrap();
            assert_eq!(Variant::of(&drawn).unwrap().0["nic.atu-tlb"], "off");
        }
        let named: Choice = "nic.atu-tlb=whole-pages".parse().unwrap();
        let of = Variant::of(&named.apply(file(), 0).unwrap()).unwrap();
        assert_eq!(
            of.to_string(),
            "nic.atu-tlb=whole-pages,nic.full-rule=flag-on-equal"
        );
    }

    #[test]
    fn mistakes_are_named() {
        for (text, word) in [
            ("nic.colour=3", "nic.colour"),
            ("sometimes", "sometimes"),
            ("nic.full-rule=maybe", "variant"),
        ] {
            let result = text
                .parse::<Choice>()
                .and_then(|c| c.apply(ConfigFile::default(), 0).map(drop));
            assert!(
                format!("{:#}", result.unwrap_err()).contains(word),
                "{text}"
            );
        }
    }
}
