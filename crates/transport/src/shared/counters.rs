//! Counters of a shared listener, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one listener since it was bound.
#[derive(Debug, Default)]
pub struct SharedCounters {
    pub(super) accepted: AtomicU64,
    pub(super) passed: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) over_limit: AtomicU64,
}

/// Values of [`SharedCounters`] at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedTraffic {
    /// TCP connections that got a permit, or none in time.
    pub accepted: u64,
    /// Connections passed to their service.
    pub passed: u64,
    /// Connections refused before: no TLS, no common protocol, a failed handshake, or evicted.
    pub refused: u64,
    /// Connections closed without a permit.
    pub over_limit: u64,
}

impl SharedCounters {
    /// Reads all counters. Each value is exact; together they may be a moment apart.
    #[must_use]
    pub fn counts(&self) -> SharedTraffic {
        SharedTraffic {
            accepted: self.accepted.load(Ordering::Relaxed),
            passed: self.passed.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            over_limit: self.over_limit.load(Ordering::Relaxed),
        }
    }
}
