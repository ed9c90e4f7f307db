//! Resource limits of an API server. Pure.

use std::time::Duration;

/// Resource limits of an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of a request body, in bytes.
    pub body_bytes: usize,
    /// Total size of request bodies in flight, in bytes; at least one body of the maximum size
    /// fits.
    pub bodies_bytes: usize,
    /// Memory of the parsed bodies of all requests in progress, in bytes; at least eight times the
    /// maximum body. A body that needs more alone is refused.
    pub values_bytes: usize,
    /// Maximum size of a request head, in bytes; at least 8 KiB.
    pub head_bytes: usize,
    /// Connections per listener, watches excluded. Beyond it idle connections are closed.
    pub connections: usize,
    /// Watches per listener. One address, or one user of a Unix socket, gets at most half of these
    /// and of the connections.
    pub watches: usize,
    /// Time limit for the start of the first request, TLS handshake excluded.
    pub first_timeout: Duration,
    /// Time limit for the head of a request, and between two requests.
    pub head_timeout: Duration,
    /// Time limit for a request body, including the wait for memory.
    pub body_timeout: Duration,
    /// Time for which a client may leave its response unread.
    pub write_timeout: Duration,
    /// Time limit for requests in progress at shutdown.
    pub drain_timeout: Duration,
    /// Maximum number of paged lists whose snapshot is held for the next page.
    pub snapshots: usize,
}

impl Limits {
    /// Returns the limits of the cloud side, which stores objects of several megabytes.
    #[must_use]
    pub fn cloud() -> Self {
        Self {
            body_bytes: 32 << 20,
            bodies_bytes: 64 << 20,
            values_bytes: 256 << 20,
            head_bytes: 16 << 10,
            connections: 4096,
            watches: 4096,
            first_timeout: Duration::from_secs(10),
            head_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(5),
            snapshots: 32,
        }
    }

    /// Returns the limits of the agent: small memory, a few local clients that mostly read.
    #[must_use]
    pub fn edge() -> Self {
        Self {
            // Leases and Events are written on the device.
            body_bytes: 64 << 10,
            bodies_bytes: 256 << 10,
            values_bytes: 4 << 20,
            head_bytes: 8 << 10,
            connections: 64,
            watches: 64,
            // Fewer than the store allows, so that abandoned lists do not block others.
            snapshots: 6,
            ..Self::cloud()
        }
    }
}
