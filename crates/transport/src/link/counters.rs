//! What went through a link, for status and tests: plain atomics, read at any time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Cause;

/// Atomic counts, and a reading of them; beside the counts each has what stands in its braces.
#[macro_export]
macro_rules! counters {
    ($(#[$of:meta])* $vis:vis struct $counters:ident { $($own:tt)* }
     $(#[$about:meta])* pub struct $reading:ident { $($more:tt)* }
     $($(#[$doc:meta])* $count:ident,)*) => {
        $(#[$of])*
        #[derive(Debug, Default)]
        $vis struct $counters {
            $($(#[$doc])* pub $count: std::sync::atomic::AtomicU64,)*
            $($own)*
        }

        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $reading {
            $($(#[$doc])* pub $count: u64,)*
            $($more)*
        }

        impl $counters {
            /// Reads all counts; each is exact, together they may be a moment apart.
            pub fn counts(&self) -> $reading {
                $reading {
                    $($count: self.$count.load(std::sync::atomic::Ordering::Relaxed),)*
                    ..$reading::default()
                }
            }
        }
    };
}

counters! {
    /// Counts of one link since it was started.
    pub struct Counters {
        /// Messages that were encoded and may still wait for the socket.
        pub(crate) unwritten: AtomicU64,
        /// The last measured time from a publish to its PUBACK, in nanoseconds; zero if there is none.
        round_trip: AtomicU64,
        lost: [AtomicU64; Cause::COUNT],
        failed: [AtomicU64; Cause::COUNT],
    }
    /// A reading of [`Counters`].
    pub struct Traffic {
        /// The last measured time from a message to its acknowledgement by the broker, the wait for the socket
        /// included.
        pub round_trip: Option<Duration>,
    }
    /// Bytes taken from TCP.
    bytes_in,
    /// Bytes handed to TCP.
    bytes_out,
    /// Messages handed on.
    messages_in,
    /// Messages written to the connection.
    messages_out,
    /// Messages the broker answered with an error.
    not_taken,
    /// Messages nobody was subscribed to: the broker says so, it is no error.
    no_subscriber,
    /// Messages written and not yet acknowledged.
    unacknowledged,
    /// Messages thrown away, queued or unacknowledged, because their connection ended.
    discarded,
    /// Connections made.
    connected,
    /// Failed attempts and lost connections.
    disconnected,
    /// Connections dropped because received messages were not taken.
    stalled,
    /// Signs of another client with the same id.
    rivals,
}

/// Why connections ended and attempts failed: counts by [`Cause::index`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endings {
    /// Connections that were lost.
    pub lost: [u64; Cause::COUNT],
    /// Attempts that led to no connection.
    pub failed: [u64; Cause::COUNT],
}

impl Counters {
    /// Reads all counts; each is exact, together they may be a moment apart.
    #[must_use]
    pub fn read(&self) -> Traffic {
        let nanoseconds = self.round_trip.load(Ordering::Relaxed);
        let round_trip = (nanoseconds > 0).then(|| Duration::from_nanos(nanoseconds));
        Traffic { round_trip, ..self.counts() }
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
    pub fn answered_after(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.round_trip.store(nanoseconds.max(1), Ordering::Relaxed);
    }
}

/// Adds to a counter.
pub fn add(counter: &AtomicU64, amount: u64) {
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
