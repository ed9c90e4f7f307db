//! A scripted CloudCore for tests: the observed behaviour of a stock one, as a state machine in
//! virtual time.
//!
//! It does not use the types of the bridge that it tests: two readings of the same protocol must
//! agree.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::needless_pass_by_value, reason = "values are written as they come to hand")]

mod cluster;
mod dynamic;
mod message;
mod push;
mod session;
mod upstream;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use serde_json::{Value, json};

use cluster::Change;
pub use cluster::{Cluster, Key};
use dynamic::Dynamic;

use edgesync_object::random::split_mix_64;
pub use push::ObjectSync;
use session::Session;

/// A point in virtual time.
pub type Now = Duration;

/// The content of a `delete`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deletes {
    /// The last object, or name, namespace and UID of one deleted while the node was away.
    #[default]
    Stock,
    /// Always name, namespace and UID only.
    Bare,
    /// Like `Bare`, with an empty UID.
    EmptyUid,
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// The time before an unacknowledged message is sent again.
    pub resend: Duration,
    /// The number of sends before other messages get their turn.
    pub sends: u32,
    /// The interval at which all ObjectSyncs are compared with the cluster.
    pub scan: Duration,
    /// The time that a session lives after a keepalive.
    pub keepalive: Duration,
    /// Whether Applications are answered.
    pub dynamic_controller: bool,
    /// The most sessions served; further ones are accepted and never answered.
    pub node_limit: usize,
    /// Whether the end of a replaced session ends its successor too.
    pub takeover_race: bool,
    pub deletes: Deletes,
    /// The number of existing objects that a new watch pushes: a real one pushed no more.
    pub watch_begins_with: usize,
    /// The seed of the ids of messages and objects.
    pub seed: u64,
    /// Unix time in milliseconds at [`Now`] zero.
    pub epoch: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            resend: Duration::from_secs(5),
            sends: 5,
            scan: Duration::from_secs(5),
            keepalive: Duration::from_secs(30),
            dynamic_controller: true,
            node_limit: 500,
            takeover_race: false,
            deletes: Deletes::Stock,
            watch_begins_with: 1000,
            seed: 1,
            epoch: 1_795_225_000_000,
        }
    }
}

/// The handle of a connection.
pub type Connection = u64;

/// The scripted CloudCore with its cluster.
pub struct CloudCore {
    pub settings: Settings,
    pub cluster: Cluster,
    ids: Ids,
    now: Now,
    /// By node and UID. They are objects of the cluster and survive a restart.
    syncs: BTreeMap<String, BTreeMap<String, ObjectSync>>,
    sessions: BTreeMap<Connection, Session>,
    next_connection: Connection,
    /// Connections closed by this side.
    closed: VecDeque<Connection>,
    /// The nodes whose Pods reference a ConfigMap or Secret.
    locations: BTreeMap<Key, BTreeSet<String>>,
    dynamic: Dynamic,
    next_scan: Now,
    /// The reasons why a real CloudCore would have exited or hung.
    violations: Vec<String>,
    /// Every `insert`, `update` and `patch` of an Event, in the order of arrival.
    event_writes: Vec<Value>,
    /// The `parent_msg_id` of every acknowledgement.
    acknowledged: BTreeSet<String>,
    /// Received texts without keepalives, newest last.
    received_texts: VecDeque<String>,
}

/// SplitMix64 generator of ids: equal seeds give equal ids, so that runs are reproducible.
pub struct Ids(u64);

impl Ids {
    pub fn number(&mut self) -> u64 {
        split_mix_64(&mut self.0)
    }

    pub fn uuid(&mut self) -> String {
        let (high, low) = (self.number(), self.number());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            0x8000 | (low >> 48) & 0x3fff,
            low & 0xffff_ffff_ffff
        )
    }
}

/// The number of received texts kept for tests.
const MAX_HEARD: usize = 10_000;

impl CloudCore {
    pub fn new(settings: Settings) -> Self {
        Self {
            ids: Ids(settings.seed),
            cluster: Cluster::new(settings.seed ^ 0x0c10_5e77),
            now: Now::ZERO,
            syncs: BTreeMap::new(),
            sessions: BTreeMap::new(),
            next_connection: 1,
            closed: VecDeque::new(),
            locations: BTreeMap::new(),
            dynamic: Dynamic::default(),
            next_scan: settings.scan,
            violations: Vec::new(),
            event_writes: Vec::new(),
            acknowledged: BTreeSet::new(),
            received_texts: VecDeque::new(),
            settings,
        }
    }

    // --- clients of the API server

    /// Creates or replaces the object and returns its UID.
    pub fn apply(&mut self, now: Now, object: Value) -> String {
        self.now = self.now.max(now);
        let (uid, change) = self.cluster.apply(object);
        self.happened(change);
        uid
    }

    /// Deletes the object and returns its UID.
    pub fn delete(&mut self, now: Now, kind: &str, namespace: &str, name: &str) -> Option<String> {
        self.now = self.now.max(now);
        let (uid, change) = self.cluster.delete(&Key::new(kind, namespace, name))?;
        self.happened(change);
        Some(uid)
    }

    /// Deletes the object, creates it again under its name, and returns the new UID.
    pub fn recreate(&mut self, now: Now, object: Value) -> String {
        if let Some(key) = self.cluster.key(&object) {
            self.delete(now, &key.kind, &key.namespace, &key.name);
        }
        self.apply(now, object)
    }

    pub fn object(&self, kind: &str, namespace: &str, name: &str) -> Option<&Value> {
        self.cluster.get(&Key::new(kind, namespace, name))
    }

    // --- connections

    pub fn connect(&mut self, now: Now, node: &str) -> Connection {
        self.now = self.now.max(now);
        let connection = self.next_connection;
        self.next_connection += 1;
        let before = self.connection_of(node);
        let mut replaced_too = false;
        if let Some(before) = before {
            self.close(before);
            replaced_too = self.settings.takeover_race;
        }
        let served = self.sessions.values().filter(|session| !session.mute).count();
        let mute = served >= self.settings.node_limit;
        self.sessions.insert(connection, Session::new(node, self.now, mute));
        if replaced_too {
            self.close(connection);
        } else if !mute {
            self.annotate(node);
        }
        connection
    }

    /// Ends the connection; messages in flight are lost.
    pub fn disconnect(&mut self, connection: Connection) {
        self.sessions.remove(&connection);
    }

    fn close(&mut self, connection: Connection) {
        if self.sessions.remove(&connection).is_some() {
            self.closed.push_back(connection);
        }
    }

    /// Returns the next connection closed by this side.
    pub fn poll_closed(&mut self) -> Option<Connection> {
        self.closed.pop_front()
    }

    pub fn is_open(&self, connection: Connection) -> bool {
        self.sessions.contains_key(&connection)
    }

    /// Returns the session that serves a node.
    pub fn connection_of(&self, node: &str) -> Option<Connection> {
        let serves = |session: &Session| session.node == node && !session.mute;
        self.sessions.iter().find(|(_, session)| serves(session)).map(|(connection, _)| *connection)
    }

    /// Restarts the process: everything but the cluster is lost.
    pub fn restart(&mut self, now: Now) {
        self.now = self.now.max(now);
        for connection in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.close(connection);
        }
        self.forget_process();
    }

    fn forget_process(&mut self) {
        self.dynamic = Dynamic::default();
        self.locations.clear();
        self.next_scan = self.now + self.settings.scan;
        // Informers start with all existing objects, Pods first: they determine the nodes of the
        // others.
        let mut objects: Vec<Value> = self.cluster.all().cloned().collect();
        objects.sort_by_key(|object| object["kind"] != "Pod");
        for object in objects {
            self.happened(Some(Change::Added(object)));
        }
    }

    /// Handles a message of the node.
    pub fn receive(&mut self, now: Now, connection: Connection, text: &str) {
        self.now = self.now.max(now);
        let (wall, id) = (self.wall(), self.ids.uuid());
        let Some(session) = self.sessions.get_mut(&connection) else { return };
        let Some(received_message) = message::read(text) else {
            return self.close(connection);
        };
        let (node, mute) = (session.node.clone(), session.mute);
        match received_message.operation.as_str() {
            "keepalive" => return session.keepalive_at = self.now,
            "ping" | "pong" | "config" => {
                let draft = received_message.answer(&received_message.source, json!("ack"));
                let text = draft.text(&id, wall, Deletes::Stock);
                return session.out.push_back(text);
            }
            _ => {}
        }
        if self.received_texts.len() == MAX_HEARD {
            self.received_texts.pop_front();
        }
        self.received_texts.push_back(text.to_owned());
        if received_message.operation == "response" {
            if !mute {
                self.acknowledge(connection, &received_message.parent);
            }
        } else if received_message.source == "metaserver" {
            self.application(&node, &received_message);
        } else if !matches!(
            received_message.source.as_str(),
            "cloudhub" | "cloudStream" | "devicecontroller" | "edgecontroller" | "synccontroller"
        ) {
            self.upstream(&node, &received_message);
        }
        self.pump();
    }

    fn acknowledge(&mut self, connection: Connection, parent: &str) {
        self.acknowledged.insert(parent.to_owned());
        let Some(session) = self.sessions.get_mut(&connection) else { return };
        let node = session.node.clone();
        if let Some(message) = session.acknowledged(parent) {
            self.recorded(&node, &message);
        }
    }

    /// Queues an arbitrary text ahead of messages that wait for acknowledgements.
    pub fn inject(&mut self, node: &str, text: impl Into<String>) {
        if let Some(connection) = self.connection_of(node)
            && let Some(session) = self.sessions.get_mut(&connection)
        {
            session.out.push_back(text.into());
        }
    }

    /// Returns the next message for a connection.
    pub fn poll(&mut self, connection: Connection) -> Option<String> {
        self.sessions.get_mut(&connection)?.out.pop_front()
    }

    pub fn tick(&mut self, now: Now) {
        self.now = self.now.max(now);
        let (now, limit) = (self.now, self.settings.keepalive);
        let silent = |session: &Session| !session.mute && session.keepalive_at + limit <= now;
        let silent: Vec<_> =
            self.sessions.iter().filter(|(_, session)| silent(session)).map(|(at, _)| *at).collect();
        for connection in silent {
            self.close(connection);
        }
        if self.next_scan <= now {
            self.next_scan = now + self.settings.scan;
            self.scan();
        }
        let (resend, sends) = (self.settings.resend, self.settings.sends);
        for session in self.sessions.values_mut() {
            session.tick(now, resend, sends);
        }
        self.pump();
    }

    fn pump(&mut self) {
        let (now, resend, deletes, wall) =
            (self.now, self.settings.resend, self.settings.deletes, self.wall());
        for session in self.sessions.values_mut() {
            session.pump(now, resend, wall, deletes);
        }
    }

    /// Returns the time of the next [`CloudCore::tick`].
    pub fn next_deadline(&self) -> Now {
        let limit = self.settings.keepalive;
        let sessions = self.sessions.values().filter(|session| !session.mute);
        let next =
            sessions.flat_map(|session| session.deadline().into_iter().chain([session.keepalive_at + limit]));
        next.chain([self.next_scan]).min().unwrap_or(self.next_scan)
    }

    fn wall(&self) -> u64 {
        self.settings.epoch + u64::try_from(self.now.as_millis()).unwrap_or(0)
    }

    // --- inspection by tests

    /// Returns the versions by UID that CloudCore assumes on the node.
    pub fn objectsyncs(&self, node: &str) -> BTreeMap<String, String> {
        let syncs = self.syncs.get(node).into_iter().flatten();
        syncs.map(|(uid, sync)| (uid.clone(), sync.version.clone())).collect()
    }

    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    pub fn event_writes(&self) -> &[Value] {
        &self.event_writes
    }

    pub fn was_acknowledged(&self, id: &str) -> bool {
        self.acknowledged.contains(id)
    }

    /// Returns the number of messages queued or in flight for a node.
    pub fn waiting(&self, node: &str) -> usize {
        self.connection_of(node).and_then(|at| self.sessions.get(&at)).map_or(0, Session::waiting)
    }

    /// Returns the received texts without keepalives.
    pub fn received_texts(&self) -> impl Iterator<Item = &String> {
        self.received_texts.iter()
    }
}
