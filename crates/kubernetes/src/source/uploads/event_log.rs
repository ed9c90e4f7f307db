//! The Events that this replica has created for nodes, so that a node has only so many of them in
//! the cluster.
//!
//! The log outlives connections, and forgets an Event when the API server has deleted it. Another
//! replica has its own log, so a node that moves between replicas may have as many Events as
//! each of them permits.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use edgesync_object::{NodeName, Object};

/// An Event in the cluster, created by a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoggedEvent {
    pub(super) namespace: Arc<str>,
    pub(super) name: Box<str>,
    pub(super) uid: Box<str>,
    tokens: u32,
    /// Time of its last write.
    written: Instant,
}

/// Events of one node, by their last write.
#[derive(Debug, Default)]
struct NodeEvents {
    events: VecDeque<LoggedEvent>,
    tokens: u32,
}

/// Events of all nodes; see the module.
#[derive(Debug)]
pub(super) struct EventLog {
    nodes: HashMap<NodeName, NodeEvents>,
    /// Maximum tokens of a node's Events.
    limit: u32,
}

impl NodeEvents {
    fn push(&mut self, event: LoggedEvent) {
        self.tokens = self.tokens.saturating_add(event.tokens);
        self.events.push_back(event);
    }

    fn remove(&mut self, index: usize) -> Option<LoggedEvent> {
        let event = self.events.remove(index)?;
        self.tokens = self.tokens.saturating_sub(event.tokens);
        Some(event)
    }

    fn find(&self, namespace: &str, name: &str) -> Option<usize> {
        self.events.iter().position(|event| *event.namespace == *namespace && *event.name == *name)
    }
}

impl EventLog {
    pub(super) fn new(limit: u32) -> Self {
        Self { nodes: HashMap::new(), limit }
    }

    /// Returns whether an Event of a node is in the log.
    pub(super) fn has(&self, node: &NodeName, namespace: &str, name: &str) -> bool {
        self.nodes.get(node).is_some_and(|events| events.find(namespace, name).is_some())
    }

    /// Returns the oldest Event of a node if another one of so many tokens does not fit beside it.
    /// With no tokens the last one written stays.
    pub(super) fn oldest(&self, node: &NodeName, tokens: u32) -> Option<LoggedEvent> {
        let events = self.nodes.get(node)?;
        let fits = events.tokens.saturating_add(tokens) <= self.limit;
        let is_last = tokens == 0 && events.events.len() == 1;
        if fits || is_last { None } else { events.events.front().cloned() }
    }

    /// Forgets an Event that was deleted.
    pub(super) fn deleted(&mut self, node: &NodeName, event: &LoggedEvent) {
        if let Some(events) = self.nodes.get_mut(node)
            && let Some(index) = events.events.iter().position(|logged| logged.uid == event.uid)
        {
            events.remove(index);
        }
    }

    /// Records that a node's Event was written now.
    pub(super) fn written(&mut self, node: &NodeName, event: &Object, tokens: u32) {
        let events = self.nodes.entry(node.clone()).or_default();
        let (namespace, name) = (event.namespace(), event.name());
        if let Some(index) = events.find(namespace, name) {
            events.remove(index);
        }
        let last = events.events.back().filter(|last| *last.namespace == *namespace);
        let namespace = last.map_or_else(|| namespace.into(), |last| Arc::clone(&last.namespace));
        let (name, uid) = (name.into(), event.uid().into());
        events.push(LoggedEvent { namespace, name, uid, tokens, written: Instant::now() });
    }

    /// Forgets Events last written more than `ttl` ago: the API server has deleted them.
    pub(super) fn expire(&mut self, ttl: Duration) {
        let now = Instant::now();
        self.nodes.retain(|_, events| {
            while events.events.front().is_some_and(|event| now.duration_since(event.written) >= ttl) {
                events.remove(0);
            }
            !events.events.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_name;
    use serde_json::json;

    fn event(name: &str) -> Object {
        let metadata = json!({"name": name, "namespace": "default", "uid": format!("u-{name}")});
        Object::from(json!({ "metadata": metadata }).as_object().unwrap().clone())
    }

    fn names(log: &EventLog, node: &str) -> Vec<String> {
        let events = log.nodes.get(&node_name(node)).map(|events| events.events.clone()).unwrap_or_default();
        events.iter().map(|event| event.name.to_string()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_events_of_the_node_make_room() {
        let (mut log, node) = (EventLog::new(3), node_name("edge-1"));
        log.written(&node_name("edge-2"), &event("other"), 3);
        for name in ["a", "b", "c"] {
            assert_eq!(log.oldest(&node, 1), None, "{name}");
            log.written(&node, &event(name), 1);
        }
        // A continued Event is not a new one, and the most recent.
        assert!(log.has(&node, "default", "a") && !log.has(&node, "shop", "a"));
        log.written(&node, &event("a"), 1);
        assert_eq!(names(&log, "edge-1"), ["b", "c", "a"]);
        let oldest = log.oldest(&node, 2).unwrap();
        assert_eq!((&*oldest.name, &*oldest.uid, &*oldest.namespace), ("b", "u-b", "default"));
        assert_eq!(log.oldest(&node, 2), Some(oldest.clone()), "it is not deleted yet");
        log.deleted(&node, &oldest);
        log.deleted(&node, &oldest);
        assert_eq!(names(&log, "edge-1"), ["c", "a"]);
        // One that never fits has the room for itself.
        while let Some(oldest) = log.oldest(&node, 100) {
            log.deleted(&node, &oldest);
        }
        assert_eq!((names(&log, "edge-1").len(), names(&log, "edge-2").len()), (0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_is_forgotten_when_the_server_has_deleted_it() {
        let (mut log, node, minute) = (EventLog::new(100), node_name("edge-1"), Duration::from_secs(60));
        log.written(&node, &event("a"), 40);
        tokio::time::advance(minute * 59).await;
        log.written(&node, &event("b"), 40);
        log.expire(minute * 60);
        assert_eq!(names(&log, "edge-1"), ["a", "b"]);
        tokio::time::advance(minute).await;
        log.expire(minute * 60);
        assert_eq!((names(&log, "edge-1"), log.oldest(&node, 60)), (vec!["b".to_owned()], None));
        tokio::time::advance(minute * 59).await;
        log.expire(minute * 60);
        assert!(log.nodes.is_empty(), "nothing of a node is left");
    }
}
