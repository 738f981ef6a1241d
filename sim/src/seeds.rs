//! Runs of many seeds, for the tests of all simulations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

/// Returns a number from the environment, if the variable is set.
///
/// # Panics
///
/// Panics if it is not a number.
#[must_use]
pub fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|t| !t.is_empty())?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text:?} is not a number")),
    )
}

/// Returns true in a full run (`FULL=1`).
#[must_use]
pub fn full() -> bool {
    std::env::var("FULL").is_ok_and(|v| v == "1")
}

/// Number of seeds in a normal run.
const USUAL: u64 = 200;

/// Returns the number of seeds to run: `SIM_SEEDS` if set, `all` in a full run, else the normal
/// number.
///
/// # Panics
///
/// Panics if `SIM_SEEDS` is not a number.
#[must_use]
pub fn count(all: u64) -> u64 {
    number("SIM_SEEDS").unwrap_or(if full() { all } else { USUAL })
}

/// Returns the violation of the first seed of 1…`seeds` that reveals the bug `mutation`.
///
/// Seeds in `rare` are tried first, because few seeds reveal a rare bug. An outdated one only costs
/// time. `FULL=1` ignores them.
pub fn first<M: PartialEq, V>(
    mutation: M,
    rare: &[(M, u64)],
    seeds: u64,
    shows: impl FnMut(u64) -> Option<V>,
) -> Option<V> {
    let rare = rare.iter().find(|(m, _)| *m == mutation && !full());
    let hint = rare.map(|(_, seed)| *seed);
    hint.into_iter().chain(1..=seeds).find_map(shows)
}

/// Runs the seeds 1…`seeds` on all CPUs. Returns the failures and the sum of the statistics.
///
/// # Panics
///
/// Panics if a run panics.
pub fn many<S: Default + Send, V: Send>(
    seeds: u64,
    run: impl Fn(u64) -> Result<S, V> + Sync,
    and: impl Fn(S, S) -> S + Sync,
) -> (Vec<V>, S) {
    let next = AtomicU64::new(1);
    let results = Mutex::new((Vec::new(), S::default()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed > seeds {
                    return;
                }
                let result = run(seed);
                let mut results = results.lock().unwrap();
                match result {
                    Ok(done) => {
                        let sum = std::mem::take(&mut results.1);
                        results.1 = and(sum, done);
                    }
                    Err(v) => results.0.push(v),
                }
            });
        }
    });
    results.into_inner().unwrap()
}
