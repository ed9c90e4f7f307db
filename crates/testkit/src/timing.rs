//! Time limits that hold on a busy machine as on an idle one.
//!
//! A limit is what an idle machine keeps. Where it has passed, [`load`] measures how busy the
//! machine is, and the limit counts that many times.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// No test waits longer than this for anything that takes no work to speak of.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The processor time that [`load`] takes: several of a scheduler's slices.
const WORK: Duration = Duration::from_millis(30);

/// The factor by which this machine runs a thread slower than an idle one would, at least 1:
/// wall-clock time over processor time of a piece of work, rounded up.
pub fn load() -> u32 {
    let (begun, worked) = (Instant::now(), processor_time());
    while processor_time() - worked < WORK {}
    let taken = begun.elapsed().as_micros();
    // A tenth more is the measurement itself.
    u32::try_from((taken * 10 / 11).div_ceil(WORK.as_micros())).unwrap().max(1)
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

/// This time, as much longer as the machine is busy now: for what a scenario does in its own time.
pub fn scaled(time: Duration) -> Duration {
    time * load()
}

/// Whether `elapsed` is within `limit`, or within what the limit is on a machine as busy as this
/// one now.
pub fn is_within(elapsed: Duration, limit: Duration) -> bool {
    elapsed < limit || elapsed < scaled(limit)
}

/// Asserts [`is_within`].
#[track_caller]
pub fn assert_within(elapsed: Duration, limit: Duration) {
    assert!(is_within(elapsed, limit), "{elapsed:?} instead of {limit:?}");
}

/// Awaits `future` within `limit`, or fails with `what` did not happen.
#[track_caller]
pub fn within<T>(what: &str, limit: Duration, future: impl Future<Output = T>) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        let mut future = std::pin::pin!(future);
        if let Ok(value) = tokio::time::timeout(limit, &mut future).await {
            return value;
        }
        let more = limit * (load() - 1);
        match tokio::time::timeout(more, future).await {
            Ok(value) => value,
            Err(_) => panic!("{caller}: within {:?} this did not happen: {what}", limit + more),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_holds_and_is_missed() {
        assert!(is_within(Duration::from_millis(9), Duration::from_millis(10)));
        assert!(!is_within(Duration::from_secs(86_400), Duration::from_millis(10)));
    }

    #[test]
    fn load_grows_with_the_threads_that_compete() {
        let threads = std::thread::available_parallelism().unwrap().get() * 4;
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let seen = load();
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(seen >= 2, "{seen}");
        });
    }
}
