//! The order in which a link tries its addresses, each with its own backoff. Pure: time and
//! randomness come in as arguments.
//!
//! The address that worked last comes first, also after its connection was lost. When it fails, or
//! its connections end soon again and again, the others follow in their order, after a short random
//! delay, so that nodes that lost one broker together do not arrive at the next one together. When
//! all have failed, the one whose delay ends first is next.

use std::time::{Duration, Instant};

use super::retry::{Retry, RetryOptions};

/// Number of short connections in sequence after which the other addresses are tried: a broker
/// that accepts each node and closes it again must not keep the nodes from those that work.
const SHORT: u32 = 3;

/// An address of the link.
struct Slot {
    retry: Retry,
    /// End of its delay; `None` if it has not failed since the last connection.
    due: Option<Instant>,
}

/// The addresses of one link, by their positions.
pub(super) struct Order {
    options: RetryOptions,
    slots: Vec<Slot>,
    /// The address that worked last.
    preferred: usize,
    current: usize,
    /// Begin of the current connection.
    connected_at: Option<Instant>,
    /// Number of connections in sequence that lasted less than [`RetryOptions::good_after`].
    short: u32,
}

impl Order {
    /// Creates the order of `count` addresses that begins with `preferred`.
    pub(super) fn new(options: RetryOptions, count: usize, preferred: usize) -> Self {
        let count = count.max(1);
        let slots = (0..count).map(|_| Slot { retry: Retry::new(options), due: None }).collect();
        let preferred = preferred.min(count - 1);
        Self { options, slots, preferred, current: preferred, connected_at: None, short: 0 }
    }

    /// Returns the position of the address of the current attempt, or of the next one.
    pub(super) fn current(&self) -> usize {
        self.current
    }

    /// Records that a connection is usable from `now` on.
    pub(super) fn connected(&mut self, now: Instant) {
        self.preferred = self.current;
        self.connected_at = Some(now);
        for slot in &mut self.slots {
            slot.due = None;
        }
        if let Some(slot) = self.slots.get_mut(self.current) {
            slot.retry.connected(now);
        }
    }

    /// Records the end of a connection, or of an attempt, at `now`. Chooses the next address, and
    /// returns the delay before it. `random` is in `[0, 1)`.
    pub(super) fn failed(&mut self, now: Instant, was_connected: bool, random: f64) -> Duration {
        let Some(slot) = self.slots.get_mut(self.current) else { return self.options.most };
        let delay = slot.retry.failed(now, random);
        if was_connected && !self.is_unstable(now) {
            return delay;
        }
        if let Some(slot) = self.slots.get_mut(self.current) {
            slot.due = Some(now + delay);
        }
        self.current = self.next();
        match self.slots.get(self.current).and_then(|slot| slot.due) {
            Some(due) => due.saturating_duration_since(now),
            // Addresses that all accept and close would otherwise be tried in turn without pause.
            None if was_connected => delay,
            None => self.options.first.min(self.options.most).mul_f64(random.clamp(0.0, 1.0)),
        }
    }

    /// Counts a connection that ended at `now`; returns whether the last ones all were short.
    fn is_unstable(&mut self, now: Instant) -> bool {
        let lasted = self.connected_at.take().map(|since| now.saturating_duration_since(since));
        let is_short = lasted.is_none_or(|lasted| lasted < self.options.good_after);
        self.short = if is_short { self.short.saturating_add(1) } else { 0 };
        self.short >= SHORT
    }

    /// Returns the delay after another client took the session over at `now`: at every address the
    /// two would meet again.
    pub(super) fn taken_over(&mut self, now: Instant, random: f64) -> Duration {
        match self.slots.get_mut(self.current) {
            Some(slot) => slot.retry.taken_over(now, random),
            None => self.options.taken_over,
        }
    }

    /// Returns the first address that has not failed since the last connection; without one, that
    /// whose delay ends first.
    fn next(&self) -> usize {
        let ordered = std::iter::once(self.preferred).chain(0..self.slots.len());
        let due = |at: &usize| self.slots.get(*at).and_then(|slot| slot.due);
        let untried = ordered.clone().find(|at| due(at).is_none());
        untried.or_else(|| ordered.min_by_key(due)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails attempts in sequence, without time between them but the delays; returns positions.
    fn attempts(order: &mut Order, now: &mut Instant, count: usize) -> Vec<usize> {
        let mut tried = Vec::new();
        for _ in 0..count {
            tried.push(order.current());
            *now += order.failed(*now, false, 0.5);
        }
        tried
    }

    #[test]
    fn last_good_address_is_first_then_the_others_in_order() {
        let mut order = Order::new(RetryOptions::default(), 4, 2);
        assert_eq!(attempts(&mut order, &mut Instant::now(), 4), [2, 0, 1, 3]);
    }

    #[test]
    fn each_address_has_its_own_backoff() {
        let mut order = Order::new(RetryOptions::default(), 2, 0);
        let mut now = Instant::now();
        // Delays of 0.5, 1, 2, 4 … s each, from the failure of the same address.
        let tried = attempts(&mut order, &mut now, 12);
        for at in 0..2 {
            let share = tried.iter().filter(|position| **position == at).count();
            assert!((5..=7).contains(&share), "{tried:?}");
        }
    }

    #[test]
    fn single_address_has_the_plain_backoff() {
        let (mut order, mut retry) =
            (Order::new(RetryOptions::default(), 1, 0), Retry::new(RetryOptions::default()));
        let now = Instant::now();
        for random in [0.0, 0.3, 0.9, 1.0, 1.0, 1.0] {
            assert_eq!(order.failed(now, false, random), retry.failed(now, random));
        }
        assert_eq!(order.taken_over(now, 0.5), retry.taken_over(now, 0.5));
    }

    #[test]
    fn lost_connection_is_retried_at_the_same_address_first() {
        let mut order = Order::new(RetryOptions::default(), 3, 0);
        let mut now = Instant::now();
        assert_eq!(attempts(&mut order, &mut now, 1), [0]);
        assert_eq!(order.current(), 1);
        order.connected(now);
        now += order.failed(now, true, 0.5);
        assert_eq!(attempts(&mut order, &mut now, 3), [1, 0, 2]);
    }

    #[test]
    fn address_that_closes_each_connection_is_left() {
        let options = RetryOptions::default();
        let mut order = Order::new(options, 2, 0);
        let mut now = Instant::now();
        let (mut tried, mut waited) = (Vec::new(), Vec::new());
        for _ in 0..6 {
            tried.push(order.current());
            order.connected(now);
            let delay = order.failed(now, true, 1.0);
            waited.push(delay.as_secs());
            now += delay;
        }
        assert_eq!(tried, [0, 0, 0, 1, 0, 1], "both close each connection");
        assert_eq!(waited, [1, 2, 4, 1, 8, 2], "each has its own backoff");
        // A connection that lasts ends the count.
        let mut order = Order::new(options, 2, 0);
        for _ in 0..5 {
            order.connected(now);
            now += options.good_after;
            now += order.failed(now, true, 0.5);
            assert_eq!(order.current(), 0);
        }
    }

    #[test]
    fn change_of_the_address_has_a_random_delay() {
        let options = RetryOptions::default();
        for (random, millis) in [(0.0, 0), (0.5, 500), (1.0, 1000)] {
            let mut order = Order::new(options, 2, 0);
            assert_eq!(order.failed(Instant::now(), false, random).as_millis(), millis);
            assert_eq!(order.current(), 1);
        }
    }

    #[test]
    fn takeover_keeps_the_address_and_waits_for_minutes() {
        let mut order = Order::new(RetryOptions::default(), 3, 1);
        order.connected(Instant::now());
        assert_eq!(order.taken_over(Instant::now(), 0.0).as_secs(), 300);
        assert_eq!(order.current(), 1);
    }

    #[test]
    fn position_outside_of_the_list_is_the_last_one() {
        assert_eq!(Order::new(RetryOptions::default(), 2, 7).current(), 1);
        assert_eq!(Order::new(RetryOptions::default(), 0, 0).current(), 0);
    }
}
