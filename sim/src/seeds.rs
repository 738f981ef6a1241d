//! Runs of many seeds, for the tests of all rigs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

/// A number from the environment, if that has one of this name.
///
/// # Panics
///
/// It is not a number.
#[must_use]
pub fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|t| !t.is_empty())?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text:?} is not a number")),
    )
}

/// Whether everything is to be run (`FULL=1`).
#[must_use]
pub fn full() -> bool {
    std::env::var("FULL").is_ok_and(|v| v == "1")
}

/// Seeds of a usual run.
const USUAL: u64 = 200;

/// Number of seeds to run: `SIM_SEEDS`, else `all` of them if everything is to be run, else those of a usual run.
///
/// # Panics
///
/// `SIM_SEEDS` is not a number.
#[must_use]
pub fn count(all: u64) -> u64 {
    number("SIM_SEEDS").unwrap_or(if full() { all } else { USUAL })
}

/// What the first of the seeds 1…`seeds` shows that shows the error `mutation`.
///
/// A seed of `rare` is tried before them, because few seeds show a rare error. One that no longer shows it costs time only. `FULL=1`
/// goes without.
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

/// Runs the seeds 1…`seeds` on all processors; what failed, and the sum of what was done.
///
/// # Panics
///
/// If a run does.
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
