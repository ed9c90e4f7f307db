//! Counters of the endpoint, for status, metrics and tests.

use edgesync_transport::counters;

counters! {
    /// Counters of one endpoint since it was bound.
    pub(crate) struct BrokerCounters {}
    /// Values of [`BrokerCounters`] at one time.
    pub struct BrokerTraffic {
        /// Connected nodes, from the registry.
        pub open: u64,
    }
    /// TCP connections accepted, including those in `over_limit`.
    accepted,
    /// MQTT connections established, each reported as [`crate::FleetEvent::NodeConnected`].
    connected,
    /// TCP connections closed at once, because the limit was reached.
    over_limit,
    /// Connections refused before or with their CONNACK.
    refused,
    /// Connections ended for bytes or packets that are not MQTT v5.
    malformed,
    /// Publishes and subscriptions denied.
    unauthorized,
    /// Connections replaced by a newer one of the same node.
    taken_over,
    /// Connections ended because the client did not read or acknowledge in time.
    not_reading,
    /// Connections ended because nothing was received in time.
    silent,
    /// Messages passed to the cloud.
    messages_in,
    /// Messages written to nodes.
    messages_out,
    /// Bytes received from TCP.
    bytes_in,
    /// Bytes written to TCP.
    bytes_out,
    /// Messages delayed because their node's queue was full.
    queue_full,
    /// Connections with a failed TLS handshake.
    tls,
    /// Connections refused because their certificate is no node's or names another node.
    identity,
    /// Connections ended because their certificate expired.
    expired,
    /// Connections ended because their certificate was revoked.
    revoked,
}
