//! Runs of a simulation by seed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

use crate::fault::{self, Fault};

/// The most bytes of a failure that are shown: it may contain the text of a large object.
const MAX_MESSAGE: usize = 4000;
/// The most failed seeds after which a run ends.
const MAX_FAILURES: usize = 20;

/// A simulation to run with many seeds.
pub struct Seeds {
    /// Runs one seed and optionally traces it step by step.
    pub run: fn(seed: u64, trace: bool) -> Result<(), String>,
    /// The number of seeds, from 0, unless `EDGESYNC_TEST_SEEDS` sets another (`<n>`) or a range
    /// (`<first>..<end>`). `EDGESYNC_TEST_MAX_SEEDS` lowers it for runs without a planted fault.
    pub count: u64,
    /// The package of the simulation.
    pub package: &'static str,
    /// The test that runs the seed in `EDGESYNC_TEST_SEED`.
    pub one: &'static str,
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Returns the seeds in `EDGESYNC_TEST_SEEDS`.
fn given() -> Option<Range<u64>> {
    let text = std::env::var("EDGESYNC_TEST_SEEDS").ok()?;
    let (first, end) = text.split_once("..").unwrap_or(("0", &text));
    Some(first.parse().ok()?..end.parse().ok()?)
}

impl Seeds {
    /// Returns the seeds to run. The search for a planted fault ends with the first seed that
    /// fails, and few seeds would miss rare faults, so only runs without one are shortened.
    fn range(&self, planted: Option<Fault>) -> Range<u64> {
        let all = given().unwrap_or(0..self.count);
        let most = number("EDGESYNC_TEST_MAX_SEEDS").filter(|_| planted.is_none());
        all.start..most.map_or(all.end, |most| all.end.min(all.start + most))
    }

    /// Returns the seeds that fail, searched on all cores until there are `limit`.
    fn failures(&self, planted: Option<Fault>, limit: usize) -> BTreeMap<u64, String> {
        let threads = std::thread::available_parallelism().map_or(2, |n| n.get() as u64);
        let (run, range) = (self.run, self.range(planted));
        let found = Mutex::new(BTreeMap::new());
        let search = |worker: u64| {
            for seed in range.clone().filter(|seed| seed % threads == worker) {
                if let Err(why) = run(seed, false) {
                    found.lock().unwrap().insert(seed, why);
                }
                if found.lock().unwrap().len() >= limit {
                    break;
                }
            }
        };
        std::thread::scope(|scope| {
            for worker in 0..threads {
                scope.spawn(move || fault::with(planted, || search(worker)));
            }
        });
        found.into_inner().unwrap()
    }

    /// Asserts that all seeds pass.
    pub fn hold(&self) {
        let failures = self.failures(None, MAX_FAILURES);
        if let Some((seed, why)) = failures.first_key_value() {
            let (package, one, all) = (self.package, self.one, failures.keys());
            panic!(
                "seed {seed}: {}\nreproduce: EDGESYNC_TEST_SEED={seed} cargo test -p {package} --lib {one} -- --nocapture\n\
                 failed: {all:?}",
                crate::message::clip(why, MAX_MESSAGE)
            );
        }
        println!("{} seeds hold", self.range(None).count());
    }

    /// Asserts that the seed in `EDGESYNC_TEST_SEED` passes.
    pub fn one_holds(&self) {
        let given = number("EDGESYNC_TEST_SEED");
        let seed = given.unwrap_or(0);
        if let Err(why) = (self.run)(seed, given.is_some()) {
            panic!("seed {seed}: {why}");
        }
    }

    /// Asserts that a seed fails with an injected fault. Tries `likely` first, the one that found
    /// it last: others may take long to end without a failure.
    pub fn find_first(&self, planted: Fault, likely: u64) {
        match fault::with(Some(planted), || (self.run)(likely, false)) {
            Err(why) => println!("{planted:?} found by seed {likely}: {why}"),
            Ok(()) => self.find(planted),
        }
    }

    /// Asserts that some seeds fail with an injected fault.
    pub fn find(&self, planted: Fault) {
        let failures = self.failures(Some(planted), 1);
        let (seed, why) = failures.first_key_value().unwrap_or_else(|| panic!("{planted:?} was not found"));
        println!("{planted:?} found by seed {seed}: {why}");
    }
}
