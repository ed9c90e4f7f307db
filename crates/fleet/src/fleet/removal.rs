//! Nodes that an operator has removed from the fleet, and their way back.
//!
//! A removed node has no machine. To each Hello it is told that it was removed, and it waits long before the next one;
//! other frames of it are dropped. What the store is doing about the node is let end first: a record or a Node that is
//! written after the removal would stay.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::asked::after;
use super::{Fleet, Inbox};
use crate::admin::{Answer, unknown};
use crate::metrics::add_counters;
use crate::source::{self, Source, SourceError};
use edgesync_admin::cloud::{NodeInfo, RemovedNode, state};
use edgesync_object::Status;
use edgesync_object::time::rfc3339;
use edgesync_protocol::frame::{Down, HelloRequest, Up};
use edgesync_protocol::timing::Now;

/// How long a removed node waits before it asks again, in seconds.
const RETRY_AFTER: u64 = 3600;
/// How long a removal, or an admission, that failed is not tried again.
const RETRY: Duration = Duration::from_secs(5);

/// The nodes that were removed.
#[derive(Debug, Default)]
pub(super) struct Removals {
    nodes: BTreeMap<String, Removed>,
    /// Those that are [`Stage::Draining`].
    draining: BTreeSet<String>,
    /// When something that failed is tried again.
    retries: BTreeSet<(Now, String)>,
    /// Frames of them that were dropped.
    dropped: u64,
}

#[derive(Debug)]
struct Removed {
    since: Timestamp,
    stage: Stage,
    /// The session of its last Hello.
    session: Option<String>,
    connection: Option<String>,
    /// Reads and writes of the store about it that are under way.
    busy: u32,
    /// Its Node was created anew: it is to come back.
    wanted: bool,
    /// An operator has asked for it; else its Node was deleted.
    asked: bool,
    answers: Vec<Answer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// What is under way about it is to end first.
    Draining,
    /// The store is removing it.
    Deleting,
    /// The store could not: it is tried again.
    Failed,
    /// The store knows that it was removed.
    Gone,
    /// The store is admitting it.
    Admitting,
    /// The store could not: it is tried again.
    NotAdmitted,
}

impl Removals {
    pub(super) fn new(removed: Vec<(String, Timestamp)>) -> Self {
        let gone = |(name, since)| (name, Removed { stage: Stage::Gone, ..Removed::new(since) });
        Self { nodes: removed.into_iter().map(gone).collect(), ..Self::default() }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.nodes.contains_key(name)
    }

    pub(super) fn dropped_frames(&self) -> u64 {
        self.dropped
    }

    /// The connection of a node has come or gone. Tells whether it is one of these.
    pub(super) fn connected(&mut self, name: &str, connection: Option<&str>) -> bool {
        let Some(removed) = self.nodes.get_mut(name) else { return false };
        removed.connection = connection.map(str::to_owned);
        true
    }

    pub(super) fn connection(&self, name: &str) -> Option<&str> {
        self.nodes.get(name)?.connection.as_deref()
    }

    /// All connections have gone.
    pub(super) fn disconnected(&mut self) {
        for removed in self.nodes.values_mut() {
            removed.connection = None;
        }
    }

    /// The node after this one in their order, as JSON.
    pub(super) fn next(&self, at: Option<&str>) -> Option<(&str, NodeInfo)> {
        let (name, removed) = self.nodes.range::<str, _>(after(at)).next()?;
        Some((name, removed.show(name)))
    }

    pub(super) fn show_one(&self, name: &str) -> Option<NodeInfo> {
        self.nodes.get(name).map(|removed| removed.show(name))
    }
}

impl Removed {
    fn new(since: Timestamp) -> Self {
        Self {
            since,
            stage: Stage::Draining,
            session: None,
            connection: None,
            busy: 0,
            wanted: false,
            asked: false,
            answers: Vec::new(),
        }
    }

    fn show(&self, name: &str) -> NodeInfo {
        NodeInfo::Removed(RemovedNode {
            name: name.to_owned(),
            state: state::REMOVED.to_owned(),
            removed: rfc3339(self.since),
            connected: Some(self.connection.is_some()),
            objects_not_in_effect: None,
        })
    }

    fn reason(&self, name: &str) -> String {
        format!(
            "node '{name}' was removed from the fleet at {}; 'edgesync-cloud node admit {name}' takes it in again",
            rfc3339(self.since)
        )
    }

    fn answer(&mut self, result: &Result<bool, Status>) {
        for answer in self.answers.drain(..) {
            // Those who asked may have gone.
            let _ = answer.send(result.clone());
        }
    }
}

fn failed(error: &SourceError) -> Status {
    Status::unavailable(format!("the store could not: {error}"), 5)
}

// --- what is under way

impl<S: Source> Fleet<S> {
    /// The store is asked something about a node.
    pub(super) fn begun(&mut self, name: &str) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.busy += 1;
        }
    }

    /// The store has answered.
    pub(super) fn ended(&mut self, name: &str) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.busy = node.busy.saturating_sub(1);
        } else if let Some(removed) = self.removals.nodes.get_mut(name) {
            removed.busy = removed.busy.saturating_sub(1);
            self.delete_if_idle(name);
        }
    }

    pub(super) fn go_on_removing(&mut self) {
        let names: Vec<String> = self.removals.draining.iter().cloned().collect();
        for name in names {
            self.work.node();
            self.delete_if_idle(&name);
        }
    }

    fn delete_if_idle(&mut self, name: &str) {
        let writing = self.lifecycle.is_writing(name);
        let Some(removed) = self.removals.nodes.get_mut(name) else { return };
        if removed.stage != Stage::Draining || removed.busy > 0 || writing {
            return;
        }
        removed.stage = Stage::Deleting;
        self.removals.draining.remove(name);
        let asked = removed.asked;
        let (source, inbox, name) = (self.source.clone(), self.inbox.clone(), name.to_owned());
        tokio::spawn(async move {
            let removed = source.remove_node(&name, asked).await;
            let _ = inbox.send(Inbox::Removed(name, removed)).await;
        });
    }

    /// Tries again what failed.
    pub(super) fn retry_removals(&mut self, now: Now) {
        let end = self.work.part();
        while !self.work.has_reached(end)
            && self.removals.retries.first().is_some_and(|(at, _)| *at <= now)
            && let Some((_, name)) = self.removals.retries.pop_first()
        {
            self.work.node();
            match self.removals.nodes.get_mut(&name).map(|removed| &mut removed.stage) {
                Some(stage @ Stage::Failed) => {
                    *stage = Stage::Draining;
                    self.removals.draining.insert(name.clone());
                    self.delete_if_idle(&name);
                }
                Some(Stage::NotAdmitted) => self.admit(&name),
                _ => {}
            }
        }
    }
}

// --- out

impl<S: Source> Fleet<S> {
    pub(super) fn remove_on_request(&mut self, name: &str, answer: Answer) {
        if let Some(removed) = self.removals.nodes.get_mut(name) {
            match removed.stage {
                Stage::Draining | Stage::Deleting => removed.answers.push(answer),
                _ => drop(answer.send(Ok(false))),
            }
        } else if self.nodes.contains_key(name) || self.labels.contains_key(name) {
            tracing::warn!(node = name, "an operator removes it from the fleet");
            self.dismiss(name, Some(answer));
        } else {
            let _ = answer.send(Err(unknown(name)));
        }
    }

    /// Removes a node from the fleet, and tells it if it is connected.
    pub(super) fn dismiss(&mut self, name: &str, answer: Option<Answer>) {
        let mut removed = Removed::new(Timestamp::now());
        removed.asked = answer.is_some();
        removed.answers.extend(answer);
        let waiting = self.forget_uploads(name);
        self.bodies.forget(name);
        if let Some(node) = self.nodes.remove(name) {
            if let Some(at) = node.deadline {
                self.deadlines.remove(&(at, name.to_owned()));
            }
            removed.busy = node.busy.saturating_sub(waiting);
            removed.session = node.session;
            removed.connection = node.connection;
            self.openings.count(node.different, 0);
            add_counters(&mut self.counts.gone, &node.machine.counters());
        }
        self.labels.remove(name);
        self.registered.remove(name);
        self.lifecycle.forget(name);
        let deltas = self.placement.remove_node(name);
        self.place(deltas);
        let is_connected = removed.connection.is_some();
        self.removals.nodes.insert(name.to_owned(), removed);
        self.removals.draining.insert(name.to_owned());
        if is_connected {
            self.tell_removed(name);
        }
        self.delete_if_idle(name);
    }

    /// The store has removed a node, or could not.
    pub(super) fn removed(&mut self, name: &str, result: source::Result<bool>) {
        let at = self.now() + RETRY;
        let Some(removed) = self.removals.nodes.get_mut(name) else { return };
        match result {
            Ok(_) => {
                tracing::info!(node = name, "removed from the fleet");
                removed.stage = Stage::Gone;
                removed.answer(&Ok(true));
                if removed.wanted {
                    self.admit(name);
                }
            }
            Err(error) => {
                tracing::error!(node = name, %error, "the node could not be removed");
                removed.stage = Stage::Failed;
                removed.answer(&Err(failed(&error)));
                self.removals.retries.insert((at, name.to_owned()));
            }
        }
    }

    /// A frame of a removed node.
    pub(super) fn frame_of_removed(&mut self, name: &str, frame: &Up) {
        let Some(removed) = self.removals.nodes.get_mut(name) else { return };
        if let Up::Hello(hello) = frame {
            removed.session = Some(hello.session.clone());
            match removed.stage == Stage::Gone && !self.source.is_removed(name) {
                true => self.admit(name),
                false => self.tell_removed(name),
            }
        } else {
            self.removals.dropped += 1;
        }
    }

    fn tell_removed(&mut self, name: &str) {
        let Some(removed) = self.removals.nodes.get(name) else { return };
        let Some(session) = removed.session.clone() else { return };
        let reason = removed.reason(name);
        self.request_hello(
            name,
            HelloRequest { session, reason, retry_after_seconds: RETRY_AFTER, removed: true },
        );
    }

    /// Sends it if there is room: a node that does not hear it says Hello again.
    pub(super) fn request_hello(&self, name: &str, request: HelloRequest) {
        let sent = Down::HelloRequest(request)
            .encode(self.compress_above)
            .map_err(|error| error.to_string())
            .and_then(|bytes| self.downlink.try_publish(name, bytes).map_err(|error| error.to_string()));
        if let Err(error) = sent {
            tracing::debug!(node = name, error, "the node could not be asked for a Hello");
        }
    }
}

// --- and in again

impl<S: Source> Fleet<S> {
    pub(super) fn admit_on_request(&mut self, name: &str, answer: Answer) {
        let Some(removed) = self.removals.nodes.get_mut(name) else {
            let known = self.nodes.contains_key(name) || self.labels.contains_key(name);
            let _ = answer.send(if known { Ok(false) } else { Err(unknown(name)) });
            return;
        };
        match removed.stage {
            Stage::Draining | Stage::Deleting | Stage::Failed => {
                let busy = format!("node '{name}' is being removed at the moment");
                let _ = answer.send(Err(Status::unavailable(busy, 1)));
            }
            Stage::Admitting => removed.answers.push(answer),
            Stage::Gone | Stage::NotAdmitted => {
                removed.answers.push(answer);
                self.admit(name);
            }
        }
    }

    /// Whoever creates the Node of a removed node takes it in again. While the removal waits for the store, it is the
    /// store that has just made the Node: it goes with the rest.
    pub(super) fn node_created(&mut self, name: &str) {
        let Some(removed) = self.removals.nodes.get_mut(name) else { return };
        match removed.stage {
            Stage::Deleting => removed.wanted = true,
            Stage::Gone => {
                tracing::info!(node = name, "its Node was created: it is taken in again");
                self.admit(name);
            }
            _ => {}
        }
    }

    /// Another replica, or an operator, has let a node in again.
    pub(super) fn admitted_elsewhere(&mut self, name: &str) {
        if self.removals.nodes.get(name).is_some_and(|removed| removed.stage == Stage::Gone) {
            tracing::info!(node = name, "it was admitted elsewhere: it is taken in again");
            self.admit(name);
        }
    }

    fn admit(&mut self, name: &str) {
        let Some(removed) = self.removals.nodes.get_mut(name) else { return };
        removed.stage = Stage::Admitting;
        let (source, inbox, name) = (self.source.clone(), self.inbox.clone(), name.to_owned());
        tokio::spawn(async move {
            let admitted = source.admit_node(&name).await;
            let _ = inbox.send(Inbox::Admitted(name, admitted)).await;
        });
    }

    /// The store has admitted a node, or could not.
    pub(super) fn admitted(&mut self, name: &str, result: source::Result<bool>) {
        let at = self.now() + RETRY;
        let Some(removed) = self.removals.nodes.get_mut(name) else { return };
        if let Err(error) = result {
            tracing::error!(node = name, %error, "the node could not be admitted");
            removed.answer(&Err(failed(&error)));
            removed.stage = Stage::NotAdmitted;
            self.removals.retries.insert((at, name.to_owned()));
            return;
        }
        tracing::info!(node = name, "admitted to the fleet again");
        removed.answer(&Ok(true));
        let Some(removed) = self.removals.nodes.remove(name) else { return };
        if let Some(labels) = self.labels.get(name).cloned() {
            let deltas = self.placement.set_node(name, labels);
            self.place(deltas);
        }
        let Some(connection) = removed.connection else { return };
        self.meet(name);
        if let Some(node) = self.nodes.get_mut(name) {
            node.connection = Some(connection);
        }
        if let Some(session) = removed.session {
            let reason = "this node is admitted to the fleet again".to_owned();
            self.request_hello(
                name,
                HelloRequest { session, reason, retry_after_seconds: 0, removed: false },
            );
        }
    }
}
