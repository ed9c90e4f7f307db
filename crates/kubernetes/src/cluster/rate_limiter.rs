//! Client-side rate limiter of a replica: token bucket with two priorities.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::time::Instant;

/// Priority of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// A caller waits for it, or it has a deadline: Leases, Nodes, statuses, Events.
    Urgent,
    /// It yields to all urgent requests: ObjectSyncs, statuses of rules.
    Background,
}

/// Rate limiter shared by all writers. Cheap to clone.
///
/// A request takes its token when [`RateLimiter::wait`] returns; a cancelled wait takes none. Each
/// class waits in FIFO order. A background request gets a token only while no urgent one waits, and
/// leaves half of the burst, so that the next urgent requests need not wait.
#[derive(Clone, Debug)]
pub(crate) struct RateLimiter {
    shared: Arc<Shared>,
}

/// Usage of a [`RateLimiter`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Number of urgent requests admitted since the start.
    pub urgent: u64,
    /// Number of background requests admitted since the start.
    pub background: u64,
    /// Number of urgent requests that wait for a token now.
    pub waiting: usize,
}

#[derive(Debug)]
struct Shared {
    bucket: Mutex<Bucket>,
    /// Held by the first waiter of its class.
    urgent: AsyncMutex<()>,
    background: AsyncMutex<()>,
    /// Number of urgent requests waiting.
    waiting: watch::Sender<usize>,
}

/// A token bucket that gains one token per interval, stored as the time at which it is full again.
#[derive(Debug)]
struct Bucket {
    interval: Duration,
    burst: u32,
    full: Instant,
    urgent: u64,
    background: u64,
}

impl Bucket {
    fn new(qps: u32, burst: u32, now: Instant) -> Self {
        Self {
            interval: Duration::from_secs(1) / qps.max(1),
            burst: burst.max(1),
            full: now,
            urgent: 0,
            background: 0,
        }
    }

    /// Takes a token and leaves `reserve` of them; otherwise returns the time of the next token.
    fn take(&mut self, now: Instant, reserve: u32) -> Result<(), Instant> {
        let full = self.full.max(now) + self.interval;
        let capacity = self.interval * (self.burst - reserve.min(self.burst - 1));
        if full <= now + capacity {
            self.full = full;
            return Ok(());
        }
        // `capacity` is at least one interval, so a bucket that is full by `now` always has a
        // token.
        Err(full - capacity)
    }

    fn reserve(&self, priority: Priority) -> u32 {
        match priority {
            Priority::Urgent => 0,
            Priority::Background => self.burst / 2,
        }
    }
}

/// Counts an urgent request as waiting.
struct WaitingCount<'a>(&'a watch::Sender<usize>);

impl<'a> WaitingCount<'a> {
    fn new(waiting: &'a watch::Sender<usize>) -> Self {
        waiting.send_modify(|count| *count += 1);
        Self(waiting)
    }
}

impl Drop for WaitingCount<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl RateLimiter {
    /// Allows `qps` requests per second and bursts of `burst`, both at least 1.
    #[must_use]
    pub(crate) fn new(qps: u32, burst: u32) -> Self {
        let bucket = Mutex::new(Bucket::new(qps, burst, Instant::now()));
        let waiting = watch::channel(0).0;
        Self {
            shared: Arc::new(Shared {
                bucket,
                urgent: AsyncMutex::new(()),
                background: AsyncMutex::new(()),
                waiting,
            }),
        }
    }

    /// Changes the rate. A request that already sleeps wakes by the old one.
    #[cfg(test)]
    pub(crate) fn set(&self, qps: u32, burst: u32) {
        let mut bucket = self.bucket();
        let Bucket { urgent, background, .. } = *bucket;
        *bucket = Bucket { urgent, background, ..Bucket::new(qps, burst, Instant::now()) };
    }

    /// Waits for a token. Cancel-safe: a cancelled call takes none.
    pub(crate) async fn wait(&self, priority: Priority) {
        match priority {
            Priority::Urgent => {
                let _waiting = WaitingCount::new(&self.shared.waiting);
                let _first = self.shared.urgent.lock().await;
                while let Err(at) = self.take(priority) {
                    tokio::time::sleep_until(at).await;
                }
            }
            Priority::Background => {
                let _first = self.shared.background.lock().await;
                let mut waiting = self.shared.waiting.subscribe();
                loop {
                    // The sender lives as long as `self`.
                    let _ = waiting.wait_for(|count| *count == 0).await;
                    match self.take(priority) {
                        Ok(()) => return,
                        Err(at) => tokio::time::sleep_until(at).await,
                    }
                }
            }
        }
    }

    fn take(&self, priority: Priority) -> Result<(), Instant> {
        let mut bucket = self.bucket();
        let reserve = bucket.reserve(priority);
        bucket.take(Instant::now(), reserve)?;
        match priority {
            Priority::Urgent => bucket.urgent += 1,
            Priority::Background => bucket.background += 1,
        }
        Ok(())
    }

    /// Returns the usage so far.
    #[must_use]
    pub(crate) fn used(&self) -> Usage {
        let Bucket { urgent, background, .. } = *self.bucket();
        Usage { urgent, background, waiting: *self.shared.waiting.borrow() }
    }

    fn bucket(&self) -> std::sync::MutexGuard<'_, Bucket> {
        self.shared.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::task::JoinSet;

    const SECOND: Duration = Duration::from_secs(1);

    async fn finished(limiter: &RateLimiter, priority: Priority, count: usize) -> Vec<Duration> {
        let start = Instant::now();
        let mut times = Vec::new();
        for _ in 0..count {
            limiter.wait(priority).await;
            times.push(start.elapsed());
        }
        times
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_free_and_further_requests_follow_the_rate() {
        let limiter = RateLimiter::new(10, 4);
        let times = finished(&limiter, Priority::Urgent, 24).await;
        assert_eq!(times[3], Duration::ZERO);
        assert!((4..24).all(|n| times[n] >= SECOND * (n as u32 - 3) / 10), "{times:?}");
        assert!(times[23] < SECOND * 21 / 10, "{times:?}");
        tokio::time::sleep(SECOND * 60).await;
        let times = finished(&limiter, Priority::Urgent, 6).await;
        assert_eq!(
            (times[3], times[5] >= SECOND / 5),
            (Duration::ZERO, true),
            "a pause saves no more than the burst"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn background_requests_leave_half_of_the_burst() {
        let limiter = RateLimiter::new(10, 8);
        let times = finished(&limiter, Priority::Background, 6).await;
        assert_eq!((times[3], times[4] > Duration::ZERO), (Duration::ZERO, true));
        let times = finished(&limiter, Priority::Urgent, 4).await;
        assert_eq!(times[3], Duration::ZERO);
        limiter.set(20, 8);
        let mut one_more = tokio::spawn({
            let limiter = limiter.clone();
            async move { finished(&limiter, Priority::Urgent, 9).await }
        });
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(limiter.used(), Usage { urgent: 12, background: 6, waiting: 1 });
        (&mut one_more).await.unwrap();
        assert_eq!(limiter.used(), Usage { urgent: 13, background: 6, waiting: 0 });
    }

    #[tokio::test(start_paused = true)]
    async fn background_requests_yield_to_waiting_urgent_ones() {
        for burst in [1, 8] {
            let limiter = RateLimiter::new(10, burst);
            finished(&limiter, Priority::Urgent, burst as usize).await;
            let mut tasks = JoinSet::new();
            let order = Arc::new(Mutex::new(Vec::new()));
            // The background request was first in line.
            for priority in [Priority::Background, Priority::Urgent] {
                for _ in 0..20 {
                    let (limiter, order) = (limiter.clone(), Arc::clone(&order));
                    tasks.spawn(async move {
                        limiter.wait(priority).await;
                        order.lock().unwrap().push(priority);
                    });
                }
            }
            let start = Instant::now();
            tasks.join_all().await;
            let order = order.lock().unwrap().clone();
            assert!(order[..20].iter().all(|one| *one == Priority::Urgent), "{burst}: {order:?}");
            assert!(start.elapsed() >= SECOND * 39 / 10, "together they keep the rate");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_wait_takes_no_token() {
        let limiter = RateLimiter::new(1, 1);
        limiter.wait(Priority::Urgent).await;
        let start = Instant::now();
        for priority in [Priority::Urgent, Priority::Background] {
            let given_up = tokio::time::timeout(SECOND / 4, limiter.wait(priority)).await;
            assert!(given_up.is_err());
        }
        limiter.wait(Priority::Background).await;
        let took = start.elapsed();
        assert!(took >= SECOND && took < SECOND * 11 / 10, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_rate_applies_at_once() {
        let limiter = RateLimiter::new(1, 1);
        limiter.set(100, 50);
        assert_eq!(finished(&limiter, Priority::Urgent, 50).await[49], Duration::ZERO);
        assert!(finished(&limiter, Priority::Urgent, 100).await[99] < SECOND * 11 / 10);
    }
}
