//! Who is connected, and what is retained. The only state that connections share; no I/O.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{Notify, watch};

use edgesync_object::NodeName;
use edgesync_transport::link::Backlog;
use edgesync_transport::link::queue::{Limits, Queue};

/// A message on its way to a node.
#[derive(Clone, Debug)]
pub(super) struct Outbound {
    pub(super) topic: Arc<str>,
    pub(super) payload: Bytes,
    pub(super) origin: Origin,
}

/// Where an outbound message comes from, which decides its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// From the cloud, just now.
    Cloud { retain: bool },
    /// From the same client: not sent to subscriptions that ask for no local messages.
    Own { retain: bool },
    /// Retained, sent because of a new subscription.
    Retained,
}

/// Why a connection is told to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Eviction {
    TakenOver,
    Revoked,
    ShuttingDown,
}

/// What others see of a connection.
pub(super) struct Seat {
    pub(super) connection: u64,
    pub(super) node: NodeName,
    pub(super) down: Arc<str>,
    pub(super) queue: Queue<Outbound>,
    /// Whether one of the subscriptions covers the node's `down` topic.
    pub(super) listens: AtomicBool,
    /// The largest packet the client takes, in bytes.
    pub(super) max_packet: u32,
    /// Of the cloud's messages: being taken off the queue, not written, not acknowledged or not written.
    taking: AtomicU64,
    unwritten: AtomicU64,
    unacknowledged: AtomicU64,
    /// Whether the cloud will look at these.
    moved: AtomicBool,
    evict: watch::Sender<Option<Eviction>>,
    gone: watch::Sender<bool>,
}

impl Seat {
    /// Tells the connection to go.
    pub(super) fn evict(&self, eviction: Eviction) {
        self.evict.send_if_modified(|now| {
            let first = now.is_none();
            now.get_or_insert(eviction);
            first
        });
    }

    /// Takes the next message of the cloud; [`Seat::has_taken`] is due once it counts as unwritten.
    pub(super) fn take(&self) -> Option<Outbound> {
        self.taking.fetch_add(1, Ordering::SeqCst);
        let taken = self.queue.pop();
        if taken.is_none() {
            self.has_taken();
        }
        taken
    }

    pub(super) fn has_taken(&self) {
        self.taking.fetch_sub(1, Ordering::SeqCst);
    }

    /// Notes how far the cloud's messages are; whether the cloud is to be told.
    pub(super) fn set_backlog(&self, unwritten: u64, unacknowledged: u64) -> bool {
        let before = self.unwritten.swap(unwritten, Ordering::SeqCst);
        let waited = self.unacknowledged.swap(unacknowledged, Ordering::SeqCst);
        (unwritten < before || unacknowledged < waited) && !self.moved.swap(true, Ordering::SeqCst)
    }

    /// How far the cloud's messages are.
    pub(super) fn backlog(&self) -> Backlog {
        // In the order in which a message goes on, so that it is rather counted twice than left out.
        let queued = self.queue.depth() as u64 + self.taking.load(Ordering::SeqCst);
        let unwritten = self.unwritten.load(Ordering::SeqCst);
        let unacknowledged = self.unacknowledged.load(Ordering::SeqCst);
        Backlog { unsent: queued + unwritten, unacknowledged: queued + unacknowledged.max(unwritten) }
    }

    /// Sees an eviction.
    pub(super) fn evictions(&self) -> watch::Receiver<Option<Eviction>> {
        self.evict.subscribe()
    }

    /// Returns once the connection has ended and everything about it has been said.
    pub(super) async fn gone(&self) {
        // The sender lives in the seat we hold: it cannot go away.
        let _ = self.gone.subscribe().wait_for(|gone| *gone).await;
    }
}

/// Connections of which something has gone on, each once.
#[derive(Default)]
pub(super) struct Moved {
    seats: Mutex<Vec<Arc<Seat>>>,
    pushed: Notify,
}

impl Moved {
    pub(super) fn push(&self, seat: &Arc<Seat>) {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(seat));
        self.pushed.notify_one();
    }

    /// Waits for some. Can be cancelled without loss; for one reader.
    pub(super) async fn next(&self) -> Vec<NodeName> {
        loop {
            let seats = std::mem::take(&mut *self.seats.lock().unwrap_or_else(PoisonError::into_inner));
            if !seats.is_empty() {
                let told = |seat: Arc<Seat>| {
                    seat.moved.store(false, Ordering::SeqCst);
                    seat.node.clone()
                };
                return seats.into_iter().map(told).collect();
            }
            self.pushed.notified().await;
        }
    }
}

/// What retaining a presence message came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retained {
    Kept,
    TooLarge,
    TooMany,
}

#[derive(Default)]
struct State {
    seats: HashMap<NodeName, Arc<Seat>>,
    /// How often somebody was cut off.
    cuts: u64,
    presence: HashMap<NodeName, Bytes>,
}

/// See the module.
pub(super) struct Registry {
    limits: Limits,
    max_retained: usize,
    max_retained_bytes: usize,
    state: Mutex<State>,
    cloud: watch::Sender<Option<Bytes>>,
    connections: AtomicU64,
}

impl Registry {
    pub(super) fn new(limits: Limits, max_retained: usize, max_retained_bytes: usize) -> Self {
        let (cloud, _) = watch::channel(None);
        let state = Mutex::new(State::default());
        Self { limits, max_retained, max_retained_bytes, state, cloud, connections: AtomicU64::new(0) }
    }

    /// A panic elsewhere cannot leave the maps half changed, so poison means nothing here.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often somebody was cut off so far; a connection remembers it before its certificate is looked at.
    pub(super) fn cuts(&self) -> u64 {
        self.lock().cuts
    }

    /// Tells a node's connection to go, and gives no place to connections whose certificate was looked at before.
    /// Returns whether the node was connected.
    pub(super) fn cut(&self, node: &NodeName) -> bool {
        let mut state = self.lock();
        state.cuts += 1;
        let Some(seat) = state.seats.get(node) else { return false };
        seat.queue.close_and_clear();
        seat.evict(Eviction::Revoked);
        true
    }

    /// Gives a node's name to a new connection and tells the one that had it to go; that one is returned,
    /// and [`Seat::gone`] says when its last word has been said. `None` if somebody was cut off since `cuts` were
    /// counted: it may have been this one.
    pub(super) fn sit(
        &self,
        node: &NodeName,
        down: Arc<str>,
        max_packet: u32,
        cuts: u64,
    ) -> Option<(Arc<Seat>, Option<Arc<Seat>>)> {
        let seat = Arc::new(Seat {
            connection: self.connections.fetch_add(1, Ordering::Relaxed) + 1,
            node: node.clone(),
            down,
            queue: Queue::new(self.limits, true),
            listens: AtomicBool::new(false),
            max_packet,
            taking: AtomicU64::new(0),
            unwritten: AtomicU64::new(0),
            unacknowledged: AtomicU64::new(0),
            moved: AtomicBool::new(false),
            evict: watch::channel(None).0,
            gone: watch::channel(false).0,
        });
        let mut state = self.lock();
        if state.cuts != cuts {
            return None;
        }
        let previous = state.seats.insert(node.clone(), Arc::clone(&seat));
        drop(state);
        if let Some(previous) = &previous {
            previous.queue.close_and_clear();
            previous.evict(Eviction::TakenOver);
        }
        Some((seat, previous))
    }

    /// Frees the name, unless a newer connection has it.
    pub(super) fn leave(&self, seat: &Arc<Seat>) {
        seat.queue.close_and_clear();
        let mut state = self.lock();
        if state.seats.get(&seat.node).is_some_and(|now| Arc::ptr_eq(now, seat)) {
            state.seats.remove(&seat.node);
        }
        drop(state);
        seat.gone.send_replace(true);
    }

    pub(super) fn seat(&self, node: &NodeName) -> Option<Arc<Seat>> {
        self.lock().seats.get(node).cloned()
    }

    /// How many nodes are connected.
    pub(super) fn occupied(&self) -> u64 {
        self.lock().seats.len() as u64
    }

    pub(super) fn seats(&self) -> Vec<Arc<Seat>> {
        self.lock().seats.values().cloned().collect()
    }

    /// Keeps a node's presence; an empty payload removes it.
    pub(super) fn retain_presence(&self, node: &NodeName, payload: &[u8]) -> Retained {
        let mut state = self.lock();
        if payload.is_empty() {
            state.presence.remove(node);
            return Retained::Kept;
        }
        if payload.len() > self.max_retained_bytes {
            return Retained::TooLarge;
        }
        if state.presence.len() >= self.max_retained && !state.presence.contains_key(node) {
            return Retained::TooMany;
        }
        state.presence.insert(node.clone(), Bytes::copy_from_slice(payload));
        Retained::Kept
    }

    pub(super) fn presence(&self, node: &NodeName) -> Option<Bytes> {
        self.lock().presence.get(node).cloned()
    }

    /// Replaces what is retained on `cloud`; `None` removes it.
    pub(super) fn set_cloud(&self, payload: Option<Bytes>) {
        self.cloud.send_replace(payload);
    }

    /// Sees what is retained on `cloud`, and only the newest.
    pub(super) fn cloud(&self) -> watch::Receiver<Option<Bytes>> {
        self.cloud.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry() -> Registry {
        Registry::new(Limits { messages: 4, bytes: 100 }, 2, 10)
    }

    fn name(node: &str) -> NodeName {
        NodeName::parse(node).unwrap()
    }

    fn sit(registry: &Registry, node: &str) -> (Arc<Seat>, Option<Arc<Seat>>) {
        registry.sit(&name(node), Arc::from("down"), 1000, registry.cuts()).unwrap()
    }

    #[test]
    fn a_newer_connection_takes_the_name_and_the_older_one_cannot_free_it() {
        let registry = registry();
        let (old, none) = sit(&registry, "a");
        assert!(none.is_none());
        let (new, previous) = sit(&registry, "a");
        assert_eq!(previous.map(|seat| seat.connection), Some(old.connection));
        assert_eq!(*old.evictions().borrow(), Some(Eviction::TakenOver));
        registry.leave(&old);
        assert_eq!(registry.seat(&name("a")).map(|seat| seat.connection), Some(new.connection));
        assert_eq!(registry.occupied(), 1);
        registry.leave(&new);
        assert_eq!(registry.occupied(), 0);
        assert!(registry.seat(&name("a")).is_none());
    }

    #[test]
    fn whoever_is_cut_off_goes_and_does_not_slip_in_with_what_was_checked_before() {
        let registry = registry();
        assert!(!registry.cut(&name("a")), "nobody is there");
        let before = registry.cuts();
        let (seat, _) = sit(&registry, "a");
        assert!(registry.cut(&name("a")));
        assert_eq!(*seat.evictions().borrow(), Some(Eviction::Revoked));
        assert!(registry.sit(&name("a"), Arc::from("down"), 1000, before).is_none());
        assert_eq!(sit(&registry, "b").0.node, "b");
    }

    #[test]
    fn what_is_retained_has_limits_and_an_empty_message_removes_it() {
        let registry = registry();
        let keep = |node: &str, payload: &[u8]| registry.retain_presence(&name(node), payload);
        assert_eq!(keep("a", b"1"), Retained::Kept);
        assert_eq!(keep("b", b"1"), Retained::Kept);
        assert_eq!(keep("c", b"1"), Retained::TooMany);
        assert_eq!(keep("a", b"22"), Retained::Kept);
        assert_eq!(keep("a", &[0; 11]), Retained::TooLarge);
        assert_eq!(registry.presence(&name("a")).as_deref(), Some(&b"22"[..]));
        assert_eq!(keep("a", b""), Retained::Kept);
        assert_eq!(keep("c", b"1"), Retained::Kept);
    }
}
