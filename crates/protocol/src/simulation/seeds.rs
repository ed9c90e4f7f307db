//! Runs of a simulation by seed.

use crate::fault::{self, Fault};

/// The most bytes of a failure that are shown: it may contain the text of a large object.
const MAX_MESSAGE: usize = 4000;

/// A simulation to run with many seeds.
pub struct Seeds {
    /// Runs one seed and optionally traces it step by step.
    pub run: fn(seed: u64, trace: bool) -> Result<(), String>,
    /// The number of seeds, unless `EDGESYNC_TEST_SEEDS` sets another. `EDGESYNC_TEST_MAX_SEEDS`
    /// lowers it for runs without a planted fault.
    pub count: u64,
    /// The package of the simulation.
    pub package: &'static str,
    /// The test that runs the seed in `EDGESYNC_TEST_SEED`.
    pub one: &'static str,
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

impl Seeds {
    /// Returns the number of seeds to run. The search for a planted fault ends with the first seed
    /// that fails, and few seeds would miss rare faults, so only runs without one are shortened.
    fn count(&self, planted: Option<Fault>) -> u64 {
        let count = number("EDGESYNC_TEST_SEEDS").unwrap_or(self.count);
        let most = number("EDGESYNC_TEST_MAX_SEEDS").filter(|_| planted.is_none());
        most.map_or(count, |most| count.min(most))
    }

    /// Returns the first seed that fails, searched on all cores.
    fn first_failure(&self, planted: Option<Fault>) -> Option<(u64, String)> {
        let threads = std::thread::available_parallelism().map_or(2, |n| n.get() as u64);
        let (run, count) = (self.run, self.count(planted));
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|worker| {
                    scope.spawn(move || {
                        let mut mine = (0..count).filter(|seed| seed % threads == worker);
                        fault::with(planted, || mine.find_map(|seed| Some((seed, run(seed, false).err()?))))
                    })
                })
                .collect();
            workers.into_iter().filter_map(|worker| worker.join().expect("no panic in a seed")).min()
        })
    }

    /// Asserts that all seeds pass.
    pub fn hold(&self) {
        if let Some((seed, why)) = self.first_failure(None) {
            let (package, one) = (self.package, self.one);
            panic!(
                "seed {seed}: {}\nreproduce: EDGESYNC_TEST_SEED={seed} cargo test -p {package} --lib {one} -- --nocapture",
                crate::message::clip(&why, MAX_MESSAGE)
            );
        }
        println!("{} seeds hold", self.count(None));
    }

    /// Asserts that the seed in `EDGESYNC_TEST_SEED` passes.
    pub fn one_holds(&self) {
        let given = number("EDGESYNC_TEST_SEED");
        let seed = given.unwrap_or(0);
        if let Err(why) = (self.run)(seed, given.is_some()) {
            panic!("seed {seed}: {why}");
        }
    }

    /// Asserts that some seeds fail with an injected fault.
    pub fn find(&self, planted: Fault) {
        let caught = self.first_failure(Some(planted));
        let (seed, why) = caught.unwrap_or_else(|| panic!("{planted:?} was not found"));
        println!("{planted:?} found by seed {seed}: {why}");
    }
}
