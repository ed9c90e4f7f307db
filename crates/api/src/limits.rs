//! Resource limits of an API server. Pure.

use std::time::Duration;

/// Resource limits of an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest body of a request, in bytes.
    pub body_bytes: usize,
    /// All request bodies in flight, in bytes; at least one body of the longest length fits.
    pub bodies_bytes: usize,
    /// Memory of parsed bodies, over all requests in progress, in bytes; at least eight times the
    /// longest body. A body that would take more alone is refused.
    pub values_bytes: usize,
    /// The longest request head, in bytes; at least 8 KiB.
    pub head_bytes: usize,
    /// Connections per listener, watches excluded. Beyond it idle connections are closed.
    pub connections: usize,
    /// Watches per listener. One address, or one user of a Unix socket, gets half of these and of
    /// the connections.
    pub watches: usize,
    /// How long a client may take to begin its first request, TLS handshake excluded.
    pub first_timeout: Duration,
    /// How long a client may take for the head of a request, and idle between two requests.
    pub head_timeout: Duration,
    /// How long a client may take for a request body, including the wait for memory.
    pub body_timeout: Duration,
    /// How long a client may leave its response unread.
    pub write_timeout: Duration,
    /// How long requests may continue after the shutdown has begun.
    pub drain_timeout: Duration,
    /// Paged lists whose snapshot is held for the next page.
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
