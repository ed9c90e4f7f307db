//! Counters of a link, for status and tests: plain atomics, read at any time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Cause;

/// Declares a struct of atomic counters and a struct for their values; each also gets the fields in
/// its braces.
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
            /// Reads all counters. Each value is exact; together they may be a moment apart.
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
        /// The last measured time from a publish to its PUBACK, in nanoseconds; zero if there is
        /// none.
        round_trip: AtomicU64,
        lost: [AtomicU64; Cause::COUNT],
        failed: [AtomicU64; Cause::COUNT],
    }
    /// Values of [`Counters`] at one time.
    pub struct Traffic {
        /// Last measured time from a message to its acknowledgement by the broker, including the
        /// wait for the socket.
        pub round_trip: Option<Duration>,
    }
    /// Bytes received from TCP.
    bytes_in,
    /// Bytes written to TCP.
    bytes_out,
    /// Received messages passed on as events.
    messages_in,
    /// Messages written to the connection.
    messages_out,
    /// Messages rejected by the broker.
    rejected,
    /// Messages without a subscriber: the broker reports this in its acknowledgement; no error.
    no_subscriber,
    /// Messages written and not acknowledged.
    unacknowledged,
    /// Messages, queued or unacknowledged, discarded with their connection.
    discarded,
    /// Connections that were established.
    connected,
    /// Failed attempts and lost connections.
    disconnected,
    /// Connections dropped because events were not received in time.
    stalled,
    /// Detections of another client with the same id.
    rivals,
}

/// Losses and failed attempts, by [`Cause::index`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endings {
    /// Losses of established connections.
    pub lost: [u64; Cause::COUNT],
    /// Attempts without a connection.
    pub failed: [u64; Cause::COUNT],
}

impl Counters {
    /// Reads all counters. Each value is exact; together they may be a moment apart.
    #[must_use]
    pub fn read(&self) -> Traffic {
        let nanoseconds = self.round_trip.load(Ordering::Relaxed);
        let round_trip = (nanoseconds > 0).then(|| Duration::from_nanos(nanoseconds));
        Traffic { round_trip, ..self.counts() }
    }

    /// Reads the causes of losses and failed attempts.
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

    /// Records the time that an acknowledgement took.
    pub fn answered_after(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.round_trip.store(nanoseconds.max(1), Ordering::Relaxed);
    }
}

/// Adds to a counter, with relaxed ordering: each counter is read by itself.
pub fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_separate_losses_from_failed_attempts() {
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
    fn round_trip_is_known_after_the_first_measurement() {
        let counters = Counters::default();
        assert_eq!(counters.read().round_trip, None);
        counters.answered_after(Duration::ZERO);
        assert_eq!(counters.read().round_trip, Some(Duration::from_nanos(1)));
        counters.answered_after(Duration::from_millis(30));
        assert_eq!(counters.read().round_trip, Some(Duration::from_millis(30)));
    }
}
