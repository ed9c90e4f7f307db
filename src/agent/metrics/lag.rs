//! Measures how long numbered items have waited for confirmation. Pure.

use std::collections::VecDeque;

use edgesync_protocol::edge::OutboxMarks;
use edgesync_protocol::timing::Now;
use edgesync_protocol::upload::Lane;

/// Maximum number of distinct times. Beyond it, two times merge into the earlier one.
const MAX_MARKS: usize = 32;

/// Age of the oldest unconfirmed item. Items from before the start age from the start.
#[derive(Clone, Debug, Default)]
pub(in crate::agent) struct Lag {
    /// Pairs of a number and the time when it was the newest; both ascend.
    marks: VecDeque<(u64, Now)>,
    newest: u64,
}

impl Lag {
    /// Updates the newest number and the last confirmed one.
    pub(in crate::agent) fn observe(&mut self, now: Now, newest: u64, confirmed: u64) {
        if newest < self.newest {
            // The numbers have restarted.
            self.marks.clear();
        }
        self.newest = newest;
        while self.marks.front().is_some_and(|(number, _)| *number <= confirmed) {
            self.marks.pop_front();
        }
        let known = self.marks.back().map_or(confirmed, |(number, _)| *number);
        if newest > known {
            if self.marks.len() >= MAX_MARKS {
                self.merge();
            }
            self.marks.push_back((newest, now));
        }
    }

    /// Returns the age of the oldest unconfirmed item; zero if there is none.
    pub(in crate::agent) fn age(&self, now: Now) -> Now {
        self.marks.front().map_or(Now::ZERO, |(_, since)| now.saturating_sub(*since))
    }

    /// Halves the marks: each pair keeps the later number and the earlier time.
    fn merge(&mut self) {
        let merged = self.marks.make_contiguous().chunks(2).filter_map(|pair| {
            let (number, _) = pair.last()?;
            Some((*number, pair.first()?.1))
        });
        self.marks = merged.collect();
    }
}

/// Ages of unconfirmed changes and outbox items.
#[derive(Clone, Debug, Default)]
pub(in crate::agent) struct Ages {
    changes: Lag,
    lanes: [Lag; Lane::ALL.len()],
}

impl Ages {
    /// Updates the store's revision and the last one that the cloud has confirmed.
    pub(in crate::agent) fn changes(&mut self, now: Now, revision: u64, confirmed: u64) {
        self.changes.observe(now, revision, confirmed);
    }

    /// Updates the state of the outbox.
    pub(in crate::agent) fn outbox(&mut self, now: Now, marks: &OutboxMarks) {
        for (lag, lane) in self.lanes.iter_mut().zip(Lane::ALL) {
            let last = marks.last.get(lane);
            // An empty lane waits for nothing, whatever was dropped from it.
            let confirmed = if marks.rows.get(lane) == 0 { last } else { marks.confirmed.get(lane) };
            lag.observe(now, last, confirmed);
        }
    }

    /// Returns the age of the oldest unconfirmed change.
    pub(in crate::agent) fn oldest_change(&self, now: Now) -> Now {
        self.changes.age(now)
    }

    /// Returns the age of the oldest item of each lane.
    pub(in crate::agent) fn oldest_items(&self, now: Now) -> [Now; Lane::ALL.len()] {
        self.lanes.each_ref().map(|lag| lag.age(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_protocol::upload::Lanes;
    use proptest::prelude::*;
    use std::time::Duration;

    fn at(seconds: u64) -> Now {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_age_is_that_of_the_oldest_unconfirmed_number() {
        let mut lag = Lag::default();
        lag.observe(at(1), 5, 5);
        assert_eq!(lag.age(at(9)), at(0), "all is confirmed");
        lag.observe(at(10), 6, 5);
        lag.observe(at(20), 8, 5);
        assert_eq!(lag.age(at(30)), at(20));
        lag.observe(at(31), 8, 6);
        assert_eq!(lag.age(at(31)), at(11), "what came at 20 waits");
        lag.observe(at(32), 8, 7);
        assert_eq!(lag.age(at(32)), at(12), "a part of what came at 20 waits");
        lag.observe(at(33), 8, 8);
        assert_eq!(lag.age(at(40)), at(0));
    }

    #[test]
    fn restarted_numbers_are_not_mistaken_for_old_ones() {
        let mut lag = Lag::default();
        lag.observe(at(1), 100, 10);
        lag.observe(at(50), 3, 0);
        assert_eq!(lag.age(at(60)), at(10));
    }

    #[test]
    fn a_lane_without_items_has_no_age() {
        let mut ages = Ages::default();
        let lanes = |status, bulk| Lanes { status, events: 0, bulk };
        let mut marks = OutboxMarks { last: lanes(2, 4), rows: lanes(2, 4), ..OutboxMarks::default() };
        ages.outbox(at(1), &marks);
        assert_eq!(ages.oldest_items(at(4)), [at(3), at(0), at(3)]);
        marks.rows = lanes(2, 0);
        ages.outbox(at(5), &marks);
        assert_eq!(ages.oldest_items(at(6)), [at(5), at(0), at(0)]);
    }

    proptest! {
        /// Compares with a list of each number's time.
        #[test]
        fn ages_are_exact_for_few_times_and_never_too_small(
            steps in prop::collection::vec((0_u64..3, 0_u64..4), 1..200),
        ) {
            let (mut lag, mut came) = (Lag::default(), Vec::<u64>::new());
            let mut confirmed = 0;
            for (second, (new, settled)) in steps.into_iter().enumerate() {
                let second = second as u64;
                came.extend((0..new).map(|_| second));
                let newest = came.len() as u64;
                confirmed = newest.min(confirmed + settled);
                lag.observe(at(second), newest, confirmed);
                let exact = came.get(confirmed as usize).map_or(0, |since| second - since);
                let age = lag.age(at(second)).as_secs();
                prop_assert!(age >= exact, "{age} < {exact}");
                prop_assert!(exact > 0 || came.len() as u64 > confirmed || age == 0);
                if came.len() <= MAX_MARKS {
                    prop_assert_eq!(age, exact);
                }
                prop_assert!(lag.marks.len() <= MAX_MARKS);
            }
        }
    }
}
