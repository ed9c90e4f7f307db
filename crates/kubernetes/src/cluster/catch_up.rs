//! Catch-up requests of the consumer, answered by relists. Pure.
//!
//! A relist proves that no change was missed only if it starts after the request. Requests that
//! arrive during a round therefore wait for the next one, which answers all of them.

use std::time::Duration;

use tokio::time::Instant;

use edgesync_object::ResourceVersion;

/// Minimum interval between rounds, because each one lists everything.
const INTERVAL: Duration = Duration::from_secs(1);

/// Catch-up requests, and the round that answers them. Requests are numbered from 1.
#[derive(Debug)]
pub(super) struct CatchUp {
    /// The last request received, and the last one answered.
    requested: u64,
    answered: u64,
    round: Option<Round>,
    /// Earliest start of the next round.
    not_before: Instant,
}

/// A relist of everything.
#[derive(Debug)]
struct Round {
    /// The last request that it answers.
    request: u64,
    /// The version that the cluster had reached; `None` until discovery.
    reached: Option<ResourceVersion>,
}

impl CatchUp {
    pub(super) fn new(now: Instant) -> Self {
        Self { requested: 0, answered: 0, round: None, not_before: now }
    }

    /// Records the number of the last request.
    pub(super) fn request(&mut self, number: u64) {
        self.requested = number;
    }

    /// Starts a round if a request waits and no round is running. Returns when the discovery with
    /// which the round begins must start; one that is running may be older than the request.
    pub(super) fn start_round(&mut self, now: Instant) -> Option<Instant> {
        if self.round.is_some() || self.answered >= self.requested {
            return None;
        }
        self.round = Some(Round { request: self.requested, reached: None });
        Some(self.not_before.max(now))
    }

    /// Records the version that a discovery has found. Returns whether the round now needs a
    /// relist.
    pub(super) fn discovered(&mut self, reached: ResourceVersion) -> bool {
        let Some(round) = self.round.as_mut().filter(|round| round.reached.is_none()) else { return false };
        round.reached = Some(reached);
        true
    }

    /// Ends the round after its relist. Returns the last request that it answers and the version
    /// that the cluster had reached before; `None` while the round waits for discovery.
    pub(super) fn finish_round(&mut self, now: Instant) -> Option<(u64, ResourceVersion)> {
        let Round { request, reached } = self.round.take_if(|round| round.reached.is_some())?;
        let reached = reached?;
        self.answered = request;
        self.not_before = now + INTERVAL;
        Some((request, reached))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_answers_the_requests_made_before_its_start() {
        let now = Instant::now();
        let mut catch_up = CatchUp::new(now);
        assert_eq!(catch_up.start_round(now), None);
        catch_up.request(2);
        assert_eq!(catch_up.start_round(now), Some(now));
        assert_eq!(catch_up.finish_round(now), None, "discovery precedes the relist");
        assert!(catch_up.discovered(7.into()));
        assert!(!catch_up.discovered(9.into()), "the relist has started");
        catch_up.request(3);
        assert_eq!(catch_up.start_round(now), None, "one round at a time");
        assert_eq!(catch_up.finish_round(now), Some((2, 7.into())));
        assert_eq!(catch_up.finish_round(now), None);
        assert_eq!(catch_up.start_round(now), Some(now + INTERVAL));
        assert!(catch_up.discovered(8.into()));
        assert_eq!(catch_up.finish_round(now), Some((3, 8.into())));
        assert_eq!(catch_up.start_round(now), None);
    }

    #[test]
    fn discovery_without_a_round_starts_no_relist() {
        let mut catch_up = CatchUp::new(Instant::now());
        assert!(!catch_up.discovered(7.into()));
    }
}
