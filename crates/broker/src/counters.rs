//! What the endpoint did, for status, metrics and tests.

use edgesync_transport::counters;

counters! {
    /// Counts of one endpoint since it was bound.
    pub(crate) struct BrokerCounters {}
    /// A reading of [`BrokerCounters`].
    pub struct BrokerTraffic {
        /// Connections that are open; for the endpoint to say.
        pub open: u64,
    }
    /// TCP connections accepted.
    accepted,
    /// MQTT connections made.
    connected,
    /// TCP connections closed at once, because there were too many.
    over_limit,
    /// Connections refused before or with their CONNACK.
    refused,
    /// Connections ended for bytes or packets that are not MQTT v5.
    malformed,
    /// Publishes and subscriptions that were not allowed.
    unauthorized,
    /// Connections replaced by a newer one of the same node.
    taken_over,
    /// Connections ended because they did not read or acknowledge.
    not_reading,
    /// Connections ended because nothing was heard.
    silent,
    /// Messages handed to the cloud.
    messages_in,
    /// Messages written to nodes.
    messages_out,
    /// Bytes taken from TCP.
    bytes_in,
    /// Bytes handed to TCP.
    bytes_out,
    /// Messages that had to wait because the queue of their node was full.
    queue_full,
    /// Connections without a handshake of TLS, or with a certificate that is not taken.
    tls,
    /// Connections refused for their certificate being no node's, or for naming another node than it.
    identity,
    /// Connections ended because their certificate did.
    expired,
    /// Connections ended because their certificate was revoked.
    revoked,
}
