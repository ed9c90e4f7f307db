//! Removes nodes from the fleet, and readmits them.
//!
//! A removed node has no machine. The reply to each of its Hellos says that it was removed and sets
//! a long retry delay; other frames of it are dropped. Requests of the node in flight at the store
//! end before the deletion: a record or a Node written after it would stay.

use super::Fleet;
use super::removals::{AdmissionRequest, Admitted, LastState, Next, Reply, Retry};
use super::requests::Response;
use crate::admin::{Answer, unknown};
use crate::metrics::add_counters;
use crate::source::{self, Admission, Changes as _, Removal, RemovalCause, Replication as _, Source};
use edgesync_object::NodeName;
use edgesync_protocol::change::Uid;
#[cfg(test)]
use edgesync_protocol::fault::{Fault, planted};
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
        if let Some(cause) = self.removals.begin_deletion(name, is_writing) {
            let name = name.clone();
            self.requests.ask(|source| async move {
                let removed = source.remove_node(&name, cause).await;
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
            self.dismiss(name, RemovalCause::Requested, Some(answer));
        } else {
            // The requester may have disconnected.
            let _ = answer.send(Err(unknown(name)));
        }
    }

    fn is_known(&self, name: &NodeName) -> bool {
        self.reconciler.nodes.contains(name) || self.reconciler.nodes.has_object(name)
    }

    /// Removes a node that another replica or an operator has removed. Its Node may be unknown
    /// here, and so may the node: it is refused once it connects.
    pub(super) fn removed_elsewhere(&mut self, name: &NodeName) {
        if self.removals.has(name) {
            let recorded = self.requests.replication().and_then(|replication| replication.removal(name));
            if let Some(removal) = recorded
                && self.removals.removed_again(name, removal)
            {
                self.delete_if_idle(name);
            }
            return;
        }
        #[cfg(test)]
        if planted(Fault::RemovalUnnoticed) {
            return;
        }
        tracing::warn!(node = name.as_str(), "removed by another replica or an operator, removing the node");
        self.dismiss(name, RemovalCause::Recorded, None);
    }

    /// Removes a node that sends a Hello although its removal is recorded: the notification of
    /// that was lost.
    pub(super) fn check_removal(&mut self, name: &NodeName) {
        let replication = self.requests.replication();
        if replication.is_some_and(|replication| replication.removal(name).is_some()) {
            self.removed_elsewhere(name);
        }
    }

    /// Removes a node from the fleet, and notifies it if it is connected.
    pub(super) fn dismiss(&mut self, name: &NodeName, cause: RemovalCause, answer: Option<Answer>) {
        self.release();
        let node = self.reconciler.nodes.uid(name).cloned();
        let mut last = LastState { answer, node, ..LastState::new(cause) };
        // Its queued uploads are dropped.
        let waiting = self.intake.forget(name);
        if let Some(id) = self.reconciler.nodes.id(name) {
            self.bodies.forget(id);
            self.patches.forget(id);
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
    pub(super) fn removed(&mut self, name: &NodeName, result: source::Result<Removal>) {
        match self.removals.removed(self.reconciler.now(), name, result) {
            Next::Nothing => {}
            Next::CatchUp => {
                self.catch_up(name);
                if self.removals.take_may_have_returned(name) && !self.is_removed(name) {
                    self.admit(name);
                }
            }
            Next::Delete => self.delete_if_idle(name),
            Next::Return => self.returned(name),
        }
    }

    /// Asks the source to catch up: then the Node of a removed node, if it has one, is new.
    fn catch_up(&mut self, name: &NodeName) {
        let question = self.feed.changes.catch_up();
        self.removals.asked(name, question);
    }

    /// Returns whether the store records a removal, as far as this replica knows; true without
    /// other replicas.
    fn is_removed(&self, name: &NodeName) -> bool {
        self.requests.replication().is_none_or(|replication| replication.removal(name).is_some())
    }

    /// Handles a frame of a removed node.
    pub(super) fn frame_of_removed(&mut self, name: &NodeName, frame: &Up) {
        let is_removed = self.is_removed(name);
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

    /// Handles a Node of a removed node: a new one readmits it.
    pub(super) fn node_of_removed(&mut self, name: &NodeName, uid: &Uid) {
        let is_asking = self.removals.node_changed(name, uid);
        #[cfg(test)]
        if planted(Fault::StaleNodeReadmits) {
            return self.admitted_elsewhere(name);
        }
        if is_asking {
            self.catch_up(name);
        }
    }

    /// Admits a node that another replica or an operator has admitted.
    pub(super) fn admitted_elsewhere(&mut self, name: &NodeName) {
        if self.removals.admitted_elsewhere(name) {
            self.admit(name);
        }
    }

    pub(super) fn admit(&mut self, name: &NodeName) {
        if let Some(AdmissionRequest { removal }) = self.removals.begin_admission(name) {
            let name = name.clone();
            self.requests.ask(|source| async move {
                let admitted = source.admit_node(&name, removal).await;
                Response::Admitted(name, admitted)
            });
        }
    }

    /// Handles the result of an admission at the store.
    pub(super) fn admitted(&mut self, name: &NodeName, result: source::Result<Admission>) {
        let now = self.reconciler.now();
        let replication = self.requests.replication();
        let is_removed = replication.is_some_and(|replication| replication.removal(name).is_some());
        match self.removals.admitted(now, name, result, is_removed) {
            Some(admitted) => self.welcome_back(name, admitted),
            None => self.delete_if_idle(name),
        }
    }

    /// Ends the removal of a node that has returned at another replica.
    fn returned(&mut self, name: &NodeName) {
        if let Some(admitted) = self.removals.returned(name) {
            self.welcome_back(name, admitted);
        }
    }

    fn welcome_back(&mut self, name: &NodeName, admitted: Admitted) {
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
