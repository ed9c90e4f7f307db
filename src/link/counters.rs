//! What went through a link, for status and tests: plain atomics, read at any time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Cause;

/// Counts of one link since it was started.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    pub(crate) messages_in: AtomicU64,
    pub(crate) messages_out: AtomicU64,
    pub(crate) not_taken: AtomicU64,
    pub(crate) no_subscriber: AtomicU64,
    pub(crate) unacknowledged: AtomicU64,
    /// Messages that were encoded and may still wait for the socket.
    pub(crate) unwritten: AtomicU64,
    pub(crate) discarded: AtomicU64,
    pub(crate) connected: AtomicU64,
    pub(crate) disconnected: AtomicU64,
    pub(crate) stalled: AtomicU64,
    pub(crate) rivals: AtomicU64,
    /// The last measured time from a publish to its PUBACK, in nanoseconds; zero if there is none.
    round_trip: AtomicU64,
    lost: [AtomicU64; Cause::COUNT],
    failed: [AtomicU64; Cause::COUNT],
}

/// Why connections ended and attempts failed: counts by [`Cause::index`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endings {
    /// Connections that were lost.
    pub lost: [u64; Cause::COUNT],
    /// Attempts that led to no connection.
    pub failed: [u64; Cause::COUNT],
}

/// A reading of [`Counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes taken from TCP.
    pub bytes_in: u64,
    /// Bytes handed to TCP.
    pub bytes_out: u64,
    /// Messages handed on.
    pub messages_in: u64,
    /// Messages written to the connection.
    pub messages_out: u64,
    /// Messages the broker answered with an error.
    pub not_taken: u64,
    /// Messages nobody was subscribed to: the broker says so, it is no error.
    pub no_subscriber: u64,
    /// Messages written and not yet acknowledged.
    pub unacknowledged: u64,
    /// Messages thrown away, queued or unacknowledged, because their connection ended.
    pub discarded: u64,
    /// Connections made.
    pub connected: u64,
    /// Failed attempts and lost connections.
    pub disconnected: u64,
    /// Connections dropped because received messages were not taken.
    pub stalled: u64,
    /// Signs of another client with the same id.
    pub rivals: u64,
    /// The last measured time from a message to its acknowledgement by the broker, the wait for the socket
    /// included.
    pub round_trip: Option<Duration>,
}

impl Counters {
    /// Reads all counts; each is exact, together they may be a moment apart.
    #[must_use]
    pub fn read(&self) -> Traffic {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Traffic {
            bytes_in: get(&self.bytes_in),
            bytes_out: get(&self.bytes_out),
            messages_in: get(&self.messages_in),
            messages_out: get(&self.messages_out),
            not_taken: get(&self.not_taken),
            no_subscriber: get(&self.no_subscriber),
            unacknowledged: get(&self.unacknowledged),
            discarded: get(&self.discarded),
            connected: get(&self.connected),
            disconnected: get(&self.disconnected),
            stalled: get(&self.stalled),
            rivals: get(&self.rivals),
            round_trip: Some(get(&self.round_trip)).filter(|time| *time > 0).map(Duration::from_nanos),
        }
    }

    /// Reads why connections ended and attempts failed.
    #[must_use]
    pub fn endings(&self) -> Endings {
        let get = |counters: &[AtomicU64; Cause::COUNT]| {
            std::array::from_fn(|at| counters.get(at).map_or(0, |counter| counter.load(Ordering::Relaxed)))
        };
        Endings { lost: get(&self.lost), failed: get(&self.failed) }
    }

    /// Counts a connection that was lost, or an attempt that failed.
    pub(crate) fn ended(&self, cause: &Cause, was_connected: bool) {
        add(&self.disconnected, 1);
        let counters = if was_connected { &self.lost } else { &self.failed };
        if let Some(counter) = counters.get(cause.index()) {
            add(counter, 1);
        }
    }

    /// Notes how long an acknowledgement took.
    pub(crate) fn answered_after(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.round_trip.store(nanoseconds.max(1), Ordering::Relaxed);
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_connections_and_failed_attempts_are_told_apart_by_cause() {
        let counters = Counters::default();
        assert_eq!(counters.endings(), Endings::default());
        counters.ended(&Cause::Closed, true);
        counters.ended(&Cause::Refused { peer: "h:1".into() }, false);
        counters.ended(&Cause::Refused { peer: "h:1".into() }, false);
        let endings = counters.endings();
        let counted = |counts: [u64; Cause::COUNT]| -> Vec<(&str, u64)> {
            Cause::LABELS.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect()
        };
        assert_eq!(counted(endings.lost), [("closed", 1)]);
        assert_eq!(counted(endings.failed), [("refused", 2)]);
        assert_eq!(counters.read().disconnected, 3);
    }

    #[test]
    fn a_round_trip_is_known_once_one_was_measured() {
        let counters = Counters::default();
        assert_eq!(counters.read().round_trip, None);
        counters.answered_after(Duration::ZERO);
        assert_eq!(counters.read().round_trip, Some(Duration::from_nanos(1)));
        counters.answered_after(Duration::from_millis(30));
        assert_eq!(counters.read().round_trip, Some(Duration::from_millis(30)));
    }
}
