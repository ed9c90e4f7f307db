//! Removes nodes from the fleet, and readmits them.
//!
//! A removed node has no machine. The reply to each of its Hellos says that it was removed and sets
//! a long retry delay; other frames of it are dropped. Requests of the node in flight at the store
//! end before the deletion: a record or a Node written after it would stay.

use super::Fleet;
use super::removals::{LastState, Reply, Retry};
use super::requests::Response;
use crate::admin::{Answer, unknown};
use crate::metrics::add_counters;
use crate::source::{self, Replication as _, Source};
use edgesync_object::NodeName;
use edgesync_protocol::change::Uid;
use edgesync_protocol::frame::Up;

impl<S: Source> Fleet<S> {
    /// Counts the end of a request to the store for a node.
    pub(super) fn ended(&mut self, name: &NodeName) {
        if let Some(node) = self.reconciler.nodes.named_mut(name) {
            node.schedule.request_ended();
        } else {
            self.removals.ended(name);
            self.delete_if_idle(name);
        }
    }

    /// Resumes the removals that wait for a write for many nodes.
    pub(super) fn resume_removals(&mut self) {
        for name in self.removals.draining() {
            self.reconciler.work.node();
            self.delete_if_idle(&name);
        }
    }

    fn delete_if_idle(&mut self, name: &NodeName) {
        let is_writing = self.reconciler.nodes.lifecycle.is_writing(name);
        if let Some(by_operator) = self.removals.begin_deletion(name, is_writing) {
            let name = name.clone();
            self.requests.ask(|source| async move {
                let removed = source.remove_node(&name, by_operator).await;
                Response::Removed(name, removed)
            });
        }
    }

    /// Retries failed removals and admissions.
    pub(super) fn retry_removals(&mut self) {
        let (now, end) = (self.reconciler.now(), self.reconciler.work.part());
        while !self.reconciler.work.has_reached(end)
            && let Some(retry) = self.removals.next_retry(now)
        {
            self.reconciler.work.node();
            match retry {
                Retry::Remove(name) => self.delete_if_idle(&name),
                Retry::Admit(name) => self.admit(&name),
                Retry::Nothing => {}
            }
        }
    }

    // --- out

    pub(super) fn remove_on_request(&mut self, name: &NodeName, answer: Answer) {
        let Some(answer) = self.removals.remove_again(name, answer) else { return };
        if self.is_known(name) {
            tracing::warn!(node = name.as_str(), "operator requested removal of the node");
            self.dismiss(name, Some(answer));
        } else {
            // The requester may have disconnected.
            let _ = answer.send(Err(unknown(name)));
        }
    }

    fn is_known(&self, name: &NodeName) -> bool {
        self.reconciler.nodes.contains(name) || self.reconciler.nodes.has_object(name)
    }

    /// Removes a node from the fleet, and notifies it if it is connected.
    pub(super) fn dismiss(&mut self, name: &NodeName, answer: Option<Answer>) {
        self.release();
        let node = self.reconciler.nodes.uid(name).cloned();
        let mut last = LastState { answer, node, ..LastState::default() };
        // Its queued uploads are dropped.
        let waiting = self.intake.forget(name);
        if let Some(id) = self.reconciler.nodes.id(name) {
            self.bodies.forget(id);
        }
        if let Some(node) = self.reconciler.remove(name) {
            add_counters(&mut self.counts.gone, &node.machine.counters());
            last.busy = node.schedule.requests().saturating_sub(waiting);
            (last.session, last.connection) = node.session.into_ids();
        }
        let is_connected = last.connection.is_some();
        self.removals.insert(name, last);
        if is_connected {
            self.send_refusal(name);
        }
        self.delete_if_idle(name);
    }

    /// Handles the result of a removal at the store.
    pub(super) fn removed(&mut self, name: &NodeName, result: source::Result<bool>) {
        if self.removals.removed(self.reconciler.now(), name, result) {
            self.admit(name);
        }
    }

    /// Handles a frame of a removed node.
    pub(super) fn frame_of_removed(&mut self, name: &NodeName, frame: &Up) {
        let is_removed =
            || self.requests.replication().is_none_or(|replication| replication.is_removed(name));
        match self.removals.received(name, frame, is_removed) {
            Reply::Admit => self.admit(name),
            Reply::Refuse => self.send_refusal(name),
            Reply::Nothing => {}
        }
    }

    fn send_refusal(&self, name: &NodeName) {
        if let Some(refusal) = self.removals.refusal(name) {
            self.sender.request_hello(self.reconciler.settings.compress_above, name, refusal);
        }
    }

    // --- readmission

    pub(super) fn admit_on_request(&mut self, name: &NodeName, answer: Answer) {
        match self.removals.admit_again(name, answer) {
            Ok(true) => self.admit(name),
            Ok(false) => {}
            Err(answer) => {
                // The requester may have disconnected.
                let _ = answer.send(if self.is_known(name) { Ok(false) } else { Err(unknown(name)) });
            }
        }
    }

    /// Admits a removed node whose Node was created.
    pub(super) fn node_of_removed(&mut self, name: &NodeName, uid: &Uid) {
        if self.removals.node_changed(name, uid) {
            self.admit(name);
        }
    }

    /// Admits a node that another replica or an operator has admitted.
    pub(super) fn admitted_elsewhere(&mut self, name: &NodeName) {
        if self.removals.admitted_elsewhere(name) {
            self.admit(name);
        }
    }

    fn admit(&mut self, name: &NodeName) {
        if self.removals.begin_admission(name) {
            let name = name.clone();
            self.requests.ask(|source| async move {
                let admitted = source.admit_node(&name).await;
                Response::Admitted(name, admitted)
            });
        }
    }

    /// Handles the result of an admission at the store.
    pub(super) fn admitted(&mut self, name: &NodeName, result: source::Result<bool>) {
        let now = self.reconciler.now();
        let Some(admitted) = self.removals.admitted(now, name, result) else { return };
        if let Some(labels) = self.reconciler.nodes.labels(name).cloned() {
            self.reconciler.set_labels(name, labels);
        }
        let Some(connection) = admitted.connection else { return };
        if let Some(id) = self.meet(name)
            && let Some(node) = self.reconciler.nodes.get_mut(id)
        {
            node.session.connected(connection);
        }
        if let Some(request) = admitted.request {
            self.sender.request_hello(self.reconciler.settings.compress_above, name, request);
        }
    }
}
