//! Registry of connected nodes and retained messages: the only state that connections share. No
//! I/O.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{Notify, watch};

use edgesync_object::NodeName;
use edgesync_transport::link::Backlog;
use edgesync_transport::link::queue::{Limits, Queue};

/// A message queued for a node.
#[derive(Clone, Debug)]
pub(super) struct Outbound {
    pub(super) topic: Arc<str>,
    pub(super) payload: Bytes,
    pub(super) origin: Origin,
}

/// Origin of an outbound message, which decides its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// From the cloud, live.
    Cloud { retain: bool },
    /// From the same client: not sent to subscriptions with the no-local option.
    Own { retain: bool },
    /// Retained, sent because of a new subscription.
    Retained,
}

/// Reason why a connection is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Eviction {
    TakenOver,
    Revoked,
    ShuttingDown,
}

/// Shared state of a connected node's session.
pub(super) struct Session {
    pub(super) connection: u64,
    pub(super) node: NodeName,
    pub(super) down: Arc<str>,
    pub(super) queue: Queue<Outbound>,
    /// Whether a subscription covers the node's `down` topic.
    pub(super) listens: AtomicBool,
    /// The largest packet the client takes, in bytes.
    pub(super) max_packet: u32,
    /// Counts of the cloud's messages: being dequeued; not fully written; not acknowledged.
    popping: AtomicU64,
    unwritten: AtomicU64,
    unacknowledged: AtomicU64,
    /// Whether the session is queued in [`ShrunkBacklogs`].
    backlog_shrunk: AtomicBool,
    evict: watch::Sender<Option<Eviction>>,
    ended: watch::Sender<bool>,
}

impl Session {
    /// Requests the end of the connection; the first reason counts.
    pub(super) fn evict(&self, eviction: Eviction) {
        self.evict.send_if_modified(|now| {
            let first = now.is_none();
            now.get_or_insert(eviction);
            first
        });
    }

    /// Dequeues the next message of the cloud; call [`Session::popped`] once it counts as
    /// unwritten.
    pub(super) fn pop(&self) -> Option<Outbound> {
        self.popping.fetch_add(1, Ordering::SeqCst);
        let next = self.queue.pop();
        if next.is_none() {
            self.popped();
        }
        next
    }

    pub(super) fn popped(&self) {
        self.popping.fetch_sub(1, Ordering::SeqCst);
    }

    /// Updates the counts; returns whether the session must be pushed to [`ShrunkBacklogs`].
    pub(super) fn set_backlog(&self, unwritten: u64, unacknowledged: u64) -> bool {
        let before = self.unwritten.swap(unwritten, Ordering::SeqCst);
        let waited = self.unacknowledged.swap(unacknowledged, Ordering::SeqCst);
        (unwritten < before || unacknowledged < waited) && !self.backlog_shrunk.swap(true, Ordering::SeqCst)
    }

    /// Returns the cloud's messages that are not completed.
    pub(super) fn backlog(&self) -> Backlog {
        // Read in the order in which a message advances: then one may count twice, but none is
        // missed.
        let queued = self.queue.depth() as u64 + self.popping.load(Ordering::SeqCst);
        let unwritten = self.unwritten.load(Ordering::SeqCst);
        let unacknowledged = self.unacknowledged.load(Ordering::SeqCst);
        Backlog { unsent: queued + unwritten, unacknowledged: queued + unacknowledged.max(unwritten) }
    }

    /// Watches for an eviction.
    pub(super) fn evictions(&self) -> watch::Receiver<Option<Eviction>> {
        self.evict.subscribe()
    }

    /// Returns when the connection has ended and all its events have been sent.
    pub(super) async fn ended(&self) {
        // Cannot fail: the session holds the sender.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }
}

/// Sessions whose backlog has become smaller, each once.
#[derive(Default)]
pub(super) struct ShrunkBacklogs {
    sessions: Mutex<Vec<Arc<Session>>>,
    pushed: Notify,
}

impl ShrunkBacklogs {
    pub(super) fn push(&self, session: &Arc<Session>) {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(session));
        self.pushed.notify_one();
    }

    /// Waits for sessions and returns their nodes' names. Safe to cancel; for one reader.
    pub(super) async fn next(&self) -> Vec<NodeName> {
        loop {
            let sessions = std::mem::take(&mut *self.sessions.lock().unwrap_or_else(PoisonError::into_inner));
            if !sessions.is_empty() {
                let name = |session: Arc<Session>| {
                    session.backlog_shrunk.store(false, Ordering::SeqCst);
                    session.node.clone()
                };
                return sessions.into_iter().map(name).collect();
            }
            self.pushed.notified().await;
        }
    }
}

/// Outcome of retaining a presence message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retained {
    Kept,
    TooLarge,
    TooMany,
}

#[derive(Default)]
struct State {
    sessions: HashMap<NodeName, Arc<Session>>,
    /// Number of revocations so far.
    revocations: u64,
    presence: HashMap<NodeName, Bytes>,
}

/// Sessions and retained messages of one endpoint.
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

    /// Locks the state. A panic elsewhere cannot leave it inconsistent, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of revocations so far; a connection reads it before its certificate is
    /// verified.
    pub(super) fn revocations(&self) -> u64 {
        self.lock().revocations
    }

    /// Evicts a node's session, and refuses connections whose certificate was verified before.
    /// Returns whether the node was connected.
    pub(super) fn revoke(&self, node: &NodeName) -> bool {
        let mut state = self.lock();
        state.revocations += 1;
        let Some(session) = state.sessions.get(node) else { return false };
        session.queue.close_and_clear();
        session.evict(Eviction::Revoked);
        true
    }

    /// Registers a session, and evicts the node's previous one, which is returned;
    /// [`Session::ended`] waits for its end. `None` if there was a revocation since `revocations`
    /// was read: it may concern this connection.
    pub(super) fn register(
        &self,
        node: &NodeName,
        down: Arc<str>,
        max_packet: u32,
        revocations: u64,
    ) -> Option<(Arc<Session>, Option<Arc<Session>>)> {
        let session = Arc::new(Session {
            connection: self.connections.fetch_add(1, Ordering::Relaxed) + 1,
            node: node.clone(),
            down,
            queue: Queue::new(self.limits, true),
            listens: AtomicBool::new(false),
            max_packet,
            popping: AtomicU64::new(0),
            unwritten: AtomicU64::new(0),
            unacknowledged: AtomicU64::new(0),
            backlog_shrunk: AtomicBool::new(false),
            evict: watch::channel(None).0,
            ended: watch::channel(false).0,
        });
        let mut state = self.lock();
        if state.revocations != revocations {
            return None;
        }
        let previous = state.sessions.insert(node.clone(), Arc::clone(&session));
        drop(state);
        if let Some(previous) = &previous {
            previous.queue.close_and_clear();
            previous.evict(Eviction::TakenOver);
        }
        Some((session, previous))
    }

    /// Removes the session, unless a newer one has replaced it.
    pub(super) fn unregister(&self, session: &Arc<Session>) {
        session.queue.close_and_clear();
        let mut state = self.lock();
        if state.sessions.get(&session.node).is_some_and(|now| Arc::ptr_eq(now, session)) {
            state.sessions.remove(&session.node);
        }
        drop(state);
        session.ended.send_replace(true);
    }

    pub(super) fn session(&self, node: &NodeName) -> Option<Arc<Session>> {
        self.lock().sessions.get(node).cloned()
    }

    /// Returns the number of connected nodes.
    pub(super) fn count(&self) -> u64 {
        self.lock().sessions.len() as u64
    }

    pub(super) fn sessions(&self) -> Vec<Arc<Session>> {
        self.lock().sessions.values().cloned().collect()
    }

    /// Retains a node's presence; an empty payload removes it.
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

    /// Replaces the message retained on `cloud`; `None` removes it.
    pub(super) fn set_cloud(&self, payload: Option<Bytes>) {
        self.cloud.send_replace(payload);
    }

    /// Watches the message retained on `cloud`; yields the newest only.
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

    fn register(registry: &Registry, node: &str) -> (Arc<Session>, Option<Arc<Session>>) {
        registry.register(&name(node), Arc::from("down"), 1000, registry.revocations()).unwrap()
    }

    #[test]
    fn newer_session_keeps_the_name_when_the_older_ends() {
        let registry = registry();
        let (old, none) = register(&registry, "a");
        assert!(none.is_none());
        let (new, previous) = register(&registry, "a");
        assert_eq!(previous.map(|session| session.connection), Some(old.connection));
        assert_eq!(*old.evictions().borrow(), Some(Eviction::TakenOver));
        registry.unregister(&old);
        assert_eq!(registry.session(&name("a")).map(|session| session.connection), Some(new.connection));
        assert_eq!(registry.count(), 1);
        registry.unregister(&new);
        assert_eq!(registry.count(), 0);
        assert!(registry.session(&name("a")).is_none());
    }

    #[test]
    fn revocation_refuses_handshakes_begun_before_it() {
        let registry = registry();
        assert!(!registry.revoke(&name("a")), "no session");
        let before = registry.revocations();
        let (session, _) = register(&registry, "a");
        assert!(registry.revoke(&name("a")));
        assert_eq!(*session.evictions().borrow(), Some(Eviction::Revoked));
        assert!(registry.register(&name("a"), Arc::from("down"), 1000, before).is_none());
        assert_eq!(register(&registry, "b").0.node, "b");
    }

    #[test]
    fn retained_messages_have_limits_and_can_be_removed() {
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
