//! What nodes have sent, on its way to the fleet: bounded in messages and in bytes, and shared fairly.
//!
//! Each connection has a share of it. What it sent counts against the share until the fleet is done with it, and for longer
//! if the work that it caused was more than its share of time. So a node that floods waits for its own turn, at its own
//! socket, and no other node notices.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep};

use super::FleetEvent;
#[cfg(test)]
use edgesync_protocol::fault::{Fault, planted};

/// Small messages of one connection that wait; one as large as a packet may be takes the place of all.
const SHARE: u32 = 16;
/// Bytes of all messages that wait.
const ROOM_BYTES: usize = 64 << 20;
/// The unit in which these are counted.
const ROOM_UNIT: usize = 1 << 10;
/// Bytes of frames, decoded, that the fleet reads of one connection in a second, when it has had more than [`BURST`].
const RATE: u32 = 4 << 20;
/// Bytes that it reads without delay after a quiet time.
const BURST: u32 = 4 << 20;

/// The sending end.
#[derive(Clone)]
pub(super) struct Inflow {
    queue: mpsc::Sender<Queued>,
    room: Arc<Semaphore>,
    /// The largest message, in bytes.
    longest: usize,
}

/// Events of the nodes for the fleet.
pub struct FleetEvents {
    queue: mpsc::Receiver<Queued>,
    /// Of the event that was taken last.
    hold: Option<Hold>,
}

struct Queued {
    event: FleetEvent,
    hold: Option<Hold>,
    _room: Option<OwnedSemaphorePermit>,
}

/// A part of a connection's share.
struct Hold {
    share: Arc<Share>,
    places: OwnedSemaphorePermit,
}

/// What one connection may have on the way.
pub(super) struct Share {
    places: Arc<Semaphore>,
    spent: Mutex<Spent>,
}

/// Bytes that were read of a connection lately.
struct Spent {
    bytes: f64,
    at: Instant,
}

/// A place for one message.
pub(super) struct Place<'a> {
    permit: mpsc::Permit<'a, Queued>,
    hold: Hold,
    room: OwnedSemaphorePermit,
}

/// A way for so many events, of messages of at most so many bytes.
pub(super) fn inflow(events: usize, longest: usize) -> (Inflow, FleetEvents) {
    let (sender, receiver) = mpsc::channel(events);
    let room = Arc::new(Semaphore::new(ROOM_BYTES / ROOM_UNIT));
    (Inflow { queue: sender, room, longest: longest.max(1) }, FleetEvents { queue: receiver, hold: None })
}

impl Inflow {
    /// The share of a new connection.
    pub(super) fn share(&self) -> Arc<Share> {
        let spent = Mutex::new(Spent { bytes: 0.0, at: Instant::now() });
        Arc::new(Share { places: Arc::new(Semaphore::new(SHARE as usize)), spent })
    }

    /// How many places of a share a message takes.
    fn places(&self, bytes: usize) -> u32 {
        #[cfg(test)]
        if planted(Fault::NoShares) {
            return 0;
        }
        let part = (bytes * SHARE as usize).div_ceil(self.longest);
        u32::try_from(part).unwrap_or(SHARE).clamp(1, SHARE)
    }

    /// Takes a place for a message of so many bytes if there is one now.
    pub(super) fn try_reserve(&self, bytes: usize, share: &Arc<Share>) -> Option<Place<'_>> {
        let places = Arc::clone(&share.places).try_acquire_many_owned(self.places(bytes)).ok()?;
        let room = Arc::clone(&self.room).try_acquire_many_owned(room_of(bytes)).ok()?;
        let permit = self.queue.try_reserve().ok()?;
        Some(Place { permit, hold: Hold { share: Arc::clone(share), places }, room })
    }

    /// Waits for a place. `None` when nobody takes events any more. Safe to cancel.
    pub(super) async fn reserve(&self, bytes: usize, share: &Arc<Share>) -> Option<Place<'_>> {
        let taking = async {
            let places = Arc::clone(&share.places).acquire_many_owned(self.places(bytes)).await.ok()?;
            let room = Arc::clone(&self.room).acquire_many_owned(room_of(bytes)).await.ok()?;
            let permit = self.queue.reserve().await.ok()?;
            Some(Place { permit, hold: Hold { share: Arc::clone(share), places }, room })
        };
        tokio::select! {
            place = taking => place,
            () = self.queue.closed() => None,
        }
    }

    /// Tells of something that counts against no share. False when nobody takes events any more.
    pub(super) async fn tell(&self, event: FleetEvent) -> bool {
        let bytes = match &event {
            FleetEvent::Message { payload, .. } => payload.len(),
            _ => 0,
        };
        let room = Arc::clone(&self.room).acquire_many_owned(room_of(bytes));
        let room = tokio::select! {
            room = room => room.ok(),
            () = self.queue.closed() => return false,
        };
        self.queue.send(Queued { event, hold: None, _room: room }).await.is_ok()
    }

    /// The same, if there is room, of what takes none.
    pub(super) fn try_tell(&self, event: FleetEvent) -> bool {
        self.queue.try_send(Queued { event, hold: None, _room: None }).is_ok()
    }

    /// Returns when nobody takes events any more.
    pub(super) async fn closed(&self) {
        self.queue.closed().await;
    }
}

impl Place<'_> {
    /// Sends the message.
    pub(super) fn send(self, event: FleetEvent) {
        self.permit.send(Queued { event, hold: Some(self.hold), _room: Some(self.room) });
    }
}

fn room_of(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(ROOM_UNIT).min(ROOM_BYTES / ROOM_UNIT)).unwrap_or(1)
}

impl FleetEvents {
    /// The next event; `None` when there will be none. Whoever asks is done with the one before. Safe to cancel.
    pub async fn recv(&mut self) -> Option<FleetEvent> {
        self.hold = None;
        let queued = self.queue.recv().await?;
        Some(self.take(queued))
    }

    /// The next event, if there is one now.
    pub fn try_recv(&mut self) -> Option<FleetEvent> {
        self.hold = None;
        let queued = self.queue.try_recv().ok()?;
        Some(self.take(queued))
    }

    fn take(&mut self, queued: Queued) -> FleetEvent {
        self.hold = queued.hold;
        queued.event
    }

    /// What was taken last came to so many bytes, decoded. Its sender waits if that is more than its share of time.
    pub fn came_to(&mut self, bytes: usize) {
        let Some(Hold { share, places }) = self.hold.take() else { return };
        let pause = share.spend(bytes);
        if !pause.is_zero() {
            tokio::spawn(async move {
                sleep(pause).await;
                drop(places);
            });
        }
    }
}

impl Share {
    /// Notes that so many bytes were read. How long the next ones are to wait.
    fn spend(&self, bytes: usize) -> Duration {
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let paid = now.duration_since(spent.at).as_secs_f64() * f64::from(RATE);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        *spent = Spent { bytes: (spent.bytes - paid).max(0.0) + f64::from(bytes), at: now };
        Duration::from_secs_f64((spent.bytes - f64::from(BURST)).max(0.0) / f64::from(RATE))
    }
}

/// Events that a test tells.
#[cfg(any(test, feature = "testing"))]
#[allow(missing_debug_implementations, reason = "for tests")]
pub struct TestEvents(Inflow);

#[cfg(any(test, feature = "testing"))]
impl TestEvents {
    /// Tells an event, which comes back if there is no room.
    pub fn send(&self, event: FleetEvent) -> Result<(), FleetEvent> {
        let queued = Queued { event, hold: None, _room: None };
        self.0.queue.try_send(queued).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(queued) | mpsc::error::TrySendError::Closed(queued) => {
                queued.event
            }
        })
    }
}

/// A way for so many events of a test.
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

    /// One node says as much as it can, then another one says one thing: how many come before that.
    fn before_the_other(bytes: usize) -> usize {
        let (inflow, mut events) = inflow(1024, 256 << 10);
        let (flood, good) = (inflow.share(), inflow.share());
        while let Some(place) = inflow.try_reserve(bytes, &flood) {
            place.send(message("flood", bytes));
        }
        if let Some(place) = inflow.try_reserve(100, &good) {
            place.send(message("good", 100));
        }
        std::iter::from_fn(|| events.try_recv())
            .take_while(|event| matches!(event, FleetEvent::Message { node, .. } if node == "flood"))
            .count()
    }

    #[tokio::test]
    async fn who_floods_waits_for_its_own_turn() {
        assert_eq!(before_the_other(100), 16);
        assert_eq!(before_the_other(256 << 10), 1);
        let planted = fault::with(Some(Fault::NoShares), || before_the_other(100));
        assert_eq!(planted, 1024, "the planted bug is found");
    }

    #[tokio::test]
    async fn what_waits_is_bounded_in_bytes_too() {
        let (inflow, _events) = inflow(1024, 256 << 10);
        let nodes: Vec<_> = (0..1000).map(|_| inflow.share()).collect();
        let places: Vec<_> = nodes.iter().filter_map(|share| inflow.try_reserve(256 << 10, share)).collect();
        assert_eq!(places.len(), 256);
    }

    #[tokio::test(start_paused = true)]
    async fn who_causes_more_work_than_its_share_of_time_waits_and_nobody_else() {
        let (inflow, mut events) = inflow(1024, 256 << 10);
        let (flood, good) = (inflow.share(), inflow.share());
        let begun = Instant::now();
        // Small on the line, and 256 KiB each when it is decompressed.
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
    async fn nobody_waits_for_a_fleet_that_has_gone() {
        let (inflow, events) = inflow(1, 1000);
        let share = inflow.share();
        inflow.try_reserve(1, &share).unwrap().send(message("a", 1));
        drop(events);
        assert!(inflow.reserve(1, &share).await.is_none());
        assert!(!inflow.tell(message("a", 1)).await);
    }
}
