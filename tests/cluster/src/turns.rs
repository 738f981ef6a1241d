//! Which scenarios a whole run leaves to other seeds, so that it ends in time however many there are.

use crate::cluster::Spec;
use crate::scenario::Scenario;
use crate::scenarios::TURNS;

/// In how many seeds a scenario runs once: 1, in each. The longest text that fits counts.
fn one_in(turns: &[(&str, u64)], name: &str) -> u64 {
    let fits = turns.iter().filter(|t| name.starts_with(t.0));
    fits.max_by_key(|t| t.0.len()).map_or(1, |t| t.1)
}

/// Splits scenarios into those whose turn it is and those that wait for another seed. `all` is sorted by specification. Scenarios
/// of a specification that only they use come and go together, since a boot costs as much as what is done then.
pub fn split(all: Vec<Scenario>, seed: u64) -> (Vec<Scenario>, Vec<Scenario>) {
    split_by(TURNS, all, seed)
}

fn split_by(
    turns: &[(&str, u64)],
    all: Vec<Scenario>,
    seed: u64,
) -> (Vec<Scenario>, Vec<Scenario>) {
    // A place for each scenario on a cluster that is booted in any case, and one for each other cluster.
    let always: Vec<Spec> = all
        .iter()
        .filter(|s| one_in(turns, s.name) == 1)
        .map(|s| s.spec.clone())
        .collect();
    let mut place = 0u64;
    let mut last: Option<Spec> = None;
    all.into_iter().partition(|s| {
        let n = one_in(turns, s.name);
        if n == 1 {
            return true;
        }
        if always.contains(&s.spec) || last.as_ref() != Some(&s.spec) {
            place += 1;
        }
        last = Some(s.spec.clone());
        seed.wrapping_add(place) % n == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios;
    use std::collections::BTreeSet;

    const T: &[(&str, u64)] = &[("a::", 2), ("a::x", 1), ("b::", 3)];

    fn names(list: &[Scenario]) -> Vec<&'static str> {
        list.iter().map(|s| s.name).collect()
    }

    #[test]
    fn the_longest_text_wins() {
        let turns = ["a::y", "a::xy", "b::x", "c::x"].map(|name| one_in(T, name));
        assert_eq!(turns, [2, 1, 3, 1]);
    }

    #[test]
    fn clusters_of_their_own_come_and_go_whole() {
        let own = Spec::pair().memory(512);
        let other = Spec::pair().memory(768);
        let new = |name, spec: &Spec| Scenario::new(name, spec.clone(), |_| Ok(()));
        let all = vec![
            new("c::1", &Spec::pair()),
            new("a::1", &Spec::pair()),
            new("a::2", &Spec::pair()),
            new("a::3", &own),
            new("a::4", &own),
            new("a::5", &other),
        ];
        let (now, later) = split_by(T, all.clone(), 0);
        assert_eq!(names(&now), ["c::1", "a::2", "a::5"]);
        assert_eq!(names(&later), ["a::1", "a::3", "a::4"]);
        let (now, _) = split_by(T, all, 1);
        assert_eq!(names(&now), ["c::1", "a::1", "a::3", "a::4"]);
    }

    #[test]
    fn every_scenario_has_its_turn() {
        let most = TURNS.iter().map(|t| t.1).max().unwrap_or(1);
        let all: BTreeSet<_> = names(&scenarios::all()).into_iter().collect();
        for first in [0, 17, u64::from(u32::MAX)] {
            let mut ran = BTreeSet::new();
            for seed in 0..most {
                let (now, later) = split(scenarios::all(), first.wrapping_add(seed));
                assert_eq!(now.len() + later.len(), all.len());
                ran.extend(names(&now));
            }
            assert_eq!(ran, all);
        }
    }

    #[test]
    fn entries_are_used() {
        for (prefix, n) in TURNS {
            assert!(*n > 0);
            let all = scenarios::all();
            assert!(all.iter().any(|s| s.name.starts_with(prefix)), "{prefix}");
        }
    }
}
