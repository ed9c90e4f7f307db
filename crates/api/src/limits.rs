//! What a server of the API gives to its clients. Pure.

use std::time::Duration;

/// What a server gives to its clients at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest body of a request, in bytes.
    pub body_bytes: usize,
    /// All bodies that are read at one time, in bytes; at least one of the longest fits.
    pub bodies_bytes: usize,
    /// What bodies become in memory, of all requests until they are done, in bytes; eight times the longest body at
    /// least. A body that becomes more is refused.
    pub values_bytes: usize,
    /// The longest head of a request, in bytes; at least 8 KiB.
    pub head_bytes: usize,
    /// Connections of each listener at one time, watches apart. When more come, those go that wait for nothing.
    pub connections: usize,
    /// Watches of each listener at one time. One address, or one user at a Unix socket, has half of these and of those.
    pub watches: usize,
    /// How long a client may take until its first request begins, the handshake of TLS left out.
    pub first_timeout: Duration,
    /// How long a client may take for the head of a request, and stay idle between two.
    pub head_timeout: Duration,
    /// How long a client may take for the body of a request, waiting for memory included.
    pub body_timeout: Duration,
    /// How long a client may read nothing of its response.
    pub write_timeout: Duration,
    /// How long requests may go on after the shutdown has begun.
    pub drain_timeout: Duration,
    /// Lists that wait for a client to ask for their next part.
    pub snapshots: usize,
}

impl Limits {
    /// For the cloud: objects of several megabytes are stored.
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

    /// For the edge: small memory, a few local clients that read.
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
            // Fewer than the store opens, so that lists that nobody goes on with keep no others out.
            snapshots: 6,
            ..Self::cloud()
        }
    }
}
