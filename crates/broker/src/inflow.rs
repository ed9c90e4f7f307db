//! Queue of messages from nodes to the fleet: bounded in messages and in bytes, and shared fairly.
//!
//! Each connection has a share; at an external broker, each node, see [`super::node_queues`]. A
//! message counts against the share until the fleet has processed it, and for longer if its decoded
//! size exceeds the rate. So a node that floods is delayed at its own socket or in its own queue,
//! and other nodes are not affected.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep};

use super::FleetEvent;
#[cfg(test)]
use edgesync_protocol::fault::{Fault, planted};

/// Queued small messages of one connection; a message of the maximum packet size uses the whole
/// share.
const SHARE: u32 = 16;
/// Limit for all queued messages in bytes.
pub(super) const BUDGET_BYTES: usize = 64 << 20;
/// Unit of the byte limit.
const BUDGET_UNIT: usize = 1 << 10;
/// Decoded frame bytes that the fleet reads from one connection per second, beyond [`BURST`].
const RATE: u32 = 4 << 20;
/// Decoded frame bytes that it reads without delay after an idle period.
const BURST: u32 = 4 << 20;

/// Sending half of the queue.
#[derive(Clone)]
pub(super) struct Inflow {
    queue: mpsc::Sender<Queued>,
    budget: Arc<Semaphore>,
    /// The largest message in bytes.
    longest: usize,
}

/// Receiving half of the queue: events of the nodes for the fleet.
pub struct FleetEvents {
    queue: mpsc::Receiver<Queued>,
    /// Permits of the last received event.
    held: Option<Held>,
}

struct Queued {
    event: FleetEvent,
    held: Option<Held>,
    _budget: Option<OwnedSemaphorePermit>,
}

/// Permits of a connection's share, held by a message.
struct Held {
    share: Arc<Share>,
    permits: OwnedSemaphorePermit,
}

/// Quota of one connection for queued messages.
pub(super) struct Share {
    permits: Arc<Semaphore>,
    bucket: Mutex<Bucket>,
}

/// Token bucket of decoded bytes.
struct Bucket {
    bytes: f64,
    at: Instant,
}

/// Reserved queue space for one message.
pub(super) struct Reservation<'a> {
    permit: mpsc::Permit<'a, Queued>,
    held: Held,
    budget: OwnedSemaphorePermit,
}

/// Creates a queue of `events` events, with messages of at most `longest` bytes.
pub(super) fn inflow(events: usize, longest: usize) -> (Inflow, FleetEvents) {
    let (sender, receiver) = mpsc::channel(events);
    let budget = Arc::new(Semaphore::new(BUDGET_BYTES / BUDGET_UNIT));
    (Inflow { queue: sender, budget, longest: longest.max(1) }, FleetEvents { queue: receiver, held: None })
}

impl Inflow {
    /// Creates the share of a new connection.
    pub(super) fn share(&self) -> Arc<Share> {
        let bucket = Mutex::new(Bucket { bytes: 0.0, at: Instant::now() });
        Arc::new(Share { permits: Arc::new(Semaphore::new(SHARE as usize)), bucket })
    }

    /// Returns the number of permits of a share that a message needs.
    fn permits(&self, bytes: usize) -> u32 {
        #[cfg(test)]
        if planted(Fault::NoShares) {
            return 0;
        }
        let part = (bytes * SHARE as usize).div_ceil(self.longest);
        u32::try_from(part).unwrap_or(SHARE).clamp(1, SHARE)
    }

    /// Reserves space for a message of `bytes` bytes if it is available now.
    pub(super) fn try_reserve(&self, bytes: usize, share: &Arc<Share>) -> Option<Reservation<'_>> {
        let permits = Arc::clone(&share.permits).try_acquire_many_owned(self.permits(bytes)).ok()?;
        let budget = Arc::clone(&self.budget).try_acquire_many_owned(budget_permits(bytes)).ok()?;
        let permit = self.queue.try_reserve().ok()?;
        Some(Reservation { permit, held: Held { share: Arc::clone(share), permits }, budget })
    }

    /// Waits for space. `None` when the receiver was dropped. Safe to cancel.
    pub(super) async fn reserve(&self, bytes: usize, share: &Arc<Share>) -> Option<Reservation<'_>> {
        let reserving = async {
            let permits = Arc::clone(&share.permits).acquire_many_owned(self.permits(bytes)).await.ok()?;
            let budget = Arc::clone(&self.budget).acquire_many_owned(budget_permits(bytes)).await.ok()?;
            let permit = self.queue.reserve().await.ok()?;
            Some(Reservation { permit, held: Held { share: Arc::clone(share), permits }, budget })
        };
        tokio::select! {
            reservation = reserving => reservation,
            () = self.queue.closed() => None,
        }
    }

    /// Sends an event that counts against no share. `false` when the receiver was dropped.
    pub(super) async fn send_uncounted(&self, event: FleetEvent) -> bool {
        let bytes = match &event {
            FleetEvent::Message { payload, .. } => payload.len(),
            _ => 0,
        };
        let budget = Arc::clone(&self.budget).acquire_many_owned(budget_permits(bytes));
        let budget = tokio::select! {
            budget = budget => budget.ok(),
            () = self.queue.closed() => return false,
        };
        self.queue.send(Queued { event, held: None, _budget: budget }).await.is_ok()
    }

    /// Sends an event without payload, if there is space.
    pub(super) fn try_send_uncounted(&self, event: FleetEvent) -> bool {
        self.queue.try_send(Queued { event, held: None, _budget: None }).is_ok()
    }

    /// Returns when the receiver was dropped.
    pub(super) async fn closed(&self) {
        self.queue.closed().await;
    }
}

impl Reservation<'_> {
    pub(super) fn send(self, event: FleetEvent) {
        self.permit.send(Queued { event, held: Some(self.held), _budget: Some(self.budget) });
    }
}

fn budget_permits(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BUDGET_UNIT).min(BUDGET_BYTES / BUDGET_UNIT)).unwrap_or(1)
}

impl FleetEvents {
    /// Returns the next event; `None` when there will be none. Calling it marks the previous event
    /// as processed. Safe to cancel.
    pub async fn recv(&mut self) -> Option<FleetEvent> {
        self.held = None;
        let queued = self.queue.recv().await?;
        Some(self.take(queued))
    }

    /// Returns the next event, if there is one now.
    pub fn try_recv(&mut self) -> Option<FleetEvent> {
        self.held = None;
        let queued = self.queue.try_recv().ok()?;
        Some(self.take(queued))
    }

    fn take(&mut self, queued: Queued) -> FleetEvent {
        self.held = queued.held;
        queued.event
    }

    /// Reports the decoded size of the last event. Its sender is delayed if that exceeds the rate.
    pub fn came_to(&mut self, bytes: usize) {
        let Some(Held { share, permits }) = self.held.take() else { return };
        let pause = share.charge(bytes);
        if !pause.is_zero() {
            tokio::spawn(async move {
                sleep(pause).await;
                drop(permits);
            });
        }
    }
}

impl Bucket {
    /// Returns the bytes that are not refilled yet.
    fn level(&self, now: Instant) -> f64 {
        let refilled = now.duration_since(self.at).as_secs_f64() * f64::from(RATE);
        (self.bytes - refilled).max(0.0)
    }
}

impl Share {
    /// Returns whether no message holds a permit, and the rate would not delay the next one.
    pub(super) fn is_idle(&self) -> bool {
        let bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        self.permits.available_permits() == SHARE as usize && bucket.level(Instant::now()) <= 0.0
    }

    /// Records decoded bytes; returns the delay until the bucket is within its burst.
    fn charge(&self, bytes: usize) -> Duration {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        *bucket = Bucket { bytes: bucket.level(now) + f64::from(bytes), at: now };
        Duration::from_secs_f64((bucket.bytes - f64::from(BURST)).max(0.0) / f64::from(RATE))
    }
}

/// Events sent by a test.
#[cfg(any(test, feature = "testing"))]
#[allow(missing_debug_implementations, reason = "for tests")]
pub struct TestEvents(Inflow);

#[cfg(any(test, feature = "testing"))]
impl TestEvents {
    /// Sends an event; returns it if there is no space.
    pub fn send(&self, event: FleetEvent) -> Result<(), FleetEvent> {
        let queued = Queued { event, held: None, _budget: None };
        self.0.queue.try_send(queued).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(queued) | mpsc::error::TrySendError::Closed(queued) => {
                queued.event
            }
        })
    }
}

/// Creates a queue of `count` events for a test.
#[cfg(any(test, feature = "testing"))]
pub fn test_events(count: usize) -> (TestEvents, FleetEvents) {
    let (inflow, events) = inflow(count, 1 << 20);
    (TestEvents(inflow), events)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Channel;
    use edgesync_object::NodeName;
    use edgesync_protocol::fault;

    fn message(node: &str, bytes: usize) -> FleetEvent {
        FleetEvent::Message {
            node: NodeName::parse(node).unwrap(),
            channel: Channel::Up,
            payload: vec![0; bytes],
        }
    }

    /// One node fills its share, then another one sends a message: returns how many precede that
    /// one.
    fn before_the_other(bytes: usize) -> usize {
        let (inflow, mut events) = inflow(1024, 256 << 10);
        let (flood, good) = (inflow.share(), inflow.share());
        while let Some(reservation) = inflow.try_reserve(bytes, &flood) {
            reservation.send(message("flood", bytes));
        }
        if let Some(reservation) = inflow.try_reserve(100, &good) {
            reservation.send(message("good", 100));
        }
        std::iter::from_fn(|| events.try_recv())
            .take_while(|event| matches!(event, FleetEvent::Message { node, .. } if node == "flood"))
            .count()
    }

    #[tokio::test]
    async fn flooding_node_is_limited_to_its_share() {
        assert_eq!(before_the_other(100), 16);
        assert_eq!(before_the_other(256 << 10), 1);
        let planted = fault::with(Some(Fault::NoShares), || before_the_other(100));
        assert_eq!(planted, 1024, "the planted bug is found");
    }

    #[tokio::test]
    async fn queue_is_bounded_in_bytes_too() {
        let (inflow, _events) = inflow(1024, 256 << 10);
        let nodes: Vec<_> = (0..1000).map(|_| inflow.share()).collect();
        let permits: Vec<_> = nodes.iter().filter_map(|share| inflow.try_reserve(256 << 10, share)).collect();
        assert_eq!(permits.len(), 256);
    }

    #[tokio::test(start_paused = true)]
    async fn node_above_its_rate_is_delayed_and_no_other() {
        let (inflow, mut events) = inflow(1024, 256 << 10);
        let (flood, good) = (inflow.share(), inflow.share());
        let begun = Instant::now();
        // Small on the wire, 256 KiB each when decompressed.
        for _ in 0..160 {
            inflow.reserve(2000, &flood).await.unwrap().send(message("flood", 2000));
            events.recv().await.unwrap();
            events.came_to(256 << 10);
        }
        let took = begun.elapsed();
        assert!((Duration::from_secs(6)..Duration::from_secs(10)).contains(&took), "40 MiB in {took:?}");
        assert!(inflow.try_reserve(100, &good).is_some());
    }

    #[tokio::test]
    async fn reserve_returns_none_without_a_receiver() {
        let (inflow, events) = inflow(1, 1000);
        let share = inflow.share();
        inflow.try_reserve(1, &share).unwrap().send(message("a", 1));
        drop(events);
        assert!(inflow.reserve(1, &share).await.is_none());
        assert!(!inflow.send_uncounted(message("a", 1)).await);
    }
}
