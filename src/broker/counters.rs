//! What the endpoint did, for status, metrics and tests.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of one endpoint since it was bound.
#[derive(Debug, Default)]
pub struct BrokerCounters {
    pub(super) accepted: AtomicU64,
    pub(super) connected: AtomicU64,
    pub(super) over_limit: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) malformed: AtomicU64,
    pub(super) unauthorized: AtomicU64,
    pub(super) taken_over: AtomicU64,
    pub(super) not_reading: AtomicU64,
    pub(super) silent: AtomicU64,
    pub(super) messages_in: AtomicU64,
    pub(super) messages_out: AtomicU64,
    pub(super) bytes_in: AtomicU64,
    pub(super) bytes_out: AtomicU64,
    pub(super) queue_full: AtomicU64,
    pub(super) tls: AtomicU64,
    pub(super) identity: AtomicU64,
    pub(super) expired: AtomicU64,
    pub(super) revoked: AtomicU64,
}

/// A reading of [`BrokerCounters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BrokerTraffic {
    /// TCP connections accepted.
    pub accepted: u64,
    /// MQTT connections made.
    pub connected: u64,
    /// TCP connections closed at once, because there were too many.
    pub over_limit: u64,
    /// Connections refused before or with their CONNACK.
    pub refused: u64,
    /// Connections ended for bytes or packets that are not MQTT v5.
    pub malformed: u64,
    /// Publishes and subscriptions that were not allowed.
    pub unauthorized: u64,
    /// Connections replaced by a newer one of the same node.
    pub taken_over: u64,
    /// Connections ended because they did not read or acknowledge.
    pub not_reading: u64,
    /// Connections ended because nothing was heard.
    pub silent: u64,
    /// Messages handed to the cloud.
    pub messages_in: u64,
    /// Messages written to nodes.
    pub messages_out: u64,
    /// Bytes taken from TCP.
    pub bytes_in: u64,
    /// Bytes handed to TCP.
    pub bytes_out: u64,
    /// Messages that had to wait because the queue of their node was full.
    pub queue_full: u64,
    /// Connections without a handshake of TLS, or with a certificate that is not taken.
    pub tls: u64,
    /// Connections refused for their certificate being no node's, or for naming another node than it.
    pub identity: u64,
    /// Connections ended because their certificate did.
    pub expired: u64,
    /// Connections ended because their certificate was revoked.
    pub revoked: u64,
    /// Connections that are open.
    pub open: u64,
}

impl BrokerCounters {
    /// Reads all counts; each is exact, together they may be a moment apart. How many connections are open is for
    /// the endpoint to say.
    #[must_use]
    pub fn read(&self) -> BrokerTraffic {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        BrokerTraffic {
            accepted: get(&self.accepted),
            connected: get(&self.connected),
            over_limit: get(&self.over_limit),
            refused: get(&self.refused),
            malformed: get(&self.malformed),
            unauthorized: get(&self.unauthorized),
            taken_over: get(&self.taken_over),
            not_reading: get(&self.not_reading),
            silent: get(&self.silent),
            messages_in: get(&self.messages_in),
            messages_out: get(&self.messages_out),
            bytes_in: get(&self.bytes_in),
            bytes_out: get(&self.bytes_out),
            queue_full: get(&self.queue_full),
            tls: get(&self.tls),
            identity: get(&self.identity),
            expired: get(&self.expired),
            revoked: get(&self.revoked),
            open: 0,
        }
    }
}
