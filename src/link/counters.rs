//! What went through a link, for status and tests: plain atomics, read at any time.

use std::sync::atomic::{AtomicU64, Ordering};

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
    pub(crate) discarded: AtomicU64,
    pub(crate) connected: AtomicU64,
    pub(crate) disconnected: AtomicU64,
    pub(crate) stalled: AtomicU64,
    pub(crate) rivals: AtomicU64,
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
        }
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}
