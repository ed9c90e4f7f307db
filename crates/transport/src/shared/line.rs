//! Counts the bytes of a connection before its service is known, TLS included.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::link::add;
use crate::link::counted::Counts;

/// Bytes of connections in both directions.
#[derive(Debug, Default)]
pub struct Bytes {
    /// Bytes received from TCP.
    pub received: AtomicU64,
    /// Bytes written to TCP.
    pub sent: AtomicU64,
}

/// The byte counters of one connection: its own, and then those of its service.
#[derive(Debug, Default)]
pub(super) struct Line {
    before: Bytes,
    service: OnceLock<Arc<Bytes>>,
}

impl Line {
    /// Adds the bytes counted so far, and all later ones, to the counters of a service. Only the
    /// first call has an effect.
    pub(super) fn count_for(&self, service: &Arc<Bytes>) {
        if self.service.set(Arc::clone(service)).is_ok() {
            add(&service.received, self.before.received.load(Ordering::Relaxed));
            add(&service.sent, self.before.sent.load(Ordering::Relaxed));
        }
    }
}

impl Counts for Line {
    fn bytes_in(&self) -> &AtomicU64 {
        self.service.get().map_or(&self.before.received, |service| &service.received)
    }

    fn bytes_out(&self) -> &AtomicU64 {
        self.service.get().map_or(&self.before.sent, |service| &service.sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_before_and_after_the_choice_count_for_the_service() {
        let (line, service) = (Line::default(), Arc::new(Bytes::default()));
        add(line.bytes_in(), 7);
        add(line.bytes_out(), 5);
        line.count_for(&service);
        line.count_for(&Arc::new(Bytes::default()));
        add(line.bytes_in(), 10);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!((read(&service.received), read(&service.sent)), (17, 5));
    }
}
