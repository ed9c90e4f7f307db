//! Time limits that scale with the load of the machine.
//!
//! A limit holds on an idle machine. When it has passed, [`load`] measures the load, and the limit
//! is multiplied by it.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Timeout of a test for an event that takes little work.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Processor time that [`load`] uses: several slices of the scheduler.
const WORK: Duration = Duration::from_millis(30);

/// Measures the load: wall-clock time over processor time of a busy loop, rounded up, at least 1.
pub fn load() -> u32 {
    let (begun, worked) = (Instant::now(), processor_time());
    while processor_time() - worked < WORK {}
    let taken = begun.elapsed().as_micros();
    // The measurement itself adds up to a tenth.
    u32::try_from((taken * 10 / 11).div_ceil(WORK.as_micros())).unwrap().max(1)
}

/// Returns the processor time of this thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

/// Multiplies a duration by the current load: for intervals that a test configures itself.
pub fn scaled(time: Duration) -> Duration {
    time * load()
}

/// Returns whether `elapsed` is within `limit`, scaled by the current load.
pub fn is_within(elapsed: Duration, limit: Duration) -> bool {
    elapsed < limit || elapsed < scaled(limit)
}

/// Panics unless `elapsed` is within `limit`, scaled by the current load.
#[track_caller]
pub fn assert_within(elapsed: Duration, limit: Duration) {
    assert!(is_within(elapsed, limit), "{elapsed:?} instead of {limit:?}");
}

/// Awaits `future` within `limit`, scaled by the load at its end, or panics with `what`.
#[track_caller]
pub fn within<T>(what: &str, limit: Duration, future: impl Future<Output = T>) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        let Some(value) = try_within(limit, future).await else {
            panic!("{caller}: within {limit:?}, scaled by the load, this did not happen: {what}")
        };
        value
    }
}

/// Awaits `future` within `limit`, scaled by the load at its end; `None` if it takes longer.
pub async fn try_within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    if let Ok(value) = tokio::time::timeout(limit, &mut future).await {
        return Some(value);
    }
    tokio::time::timeout(limit * (load() - 1), future).await.ok()
}

/// Receives a message within `limit`, scaled by the load at its end.
pub fn receive_within<T>(receiver: &Receiver<T>, limit: Duration) -> Result<T, RecvTimeoutError> {
    match receiver.recv_timeout(limit) {
        Err(RecvTimeoutError::Timeout) => receiver.recv_timeout(limit * (load() - 1)),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_met_and_missed() {
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
