//! What the machines want, carried out: frames, loads, records.

use std::sync::Arc;

use jiff::Timestamp;

use super::{Fleet, Inbox, TURNS};
use crate::cloud::node::DesiredOn;
use crate::cloud::source::Source;
use crate::link::PublishError;
use crate::process::random;
use crate::sync::cloud::{CloudEffect, CloudNotice};
use crate::sync::timing::Now;

impl<S: Source> Fleet<S> {
    /// Gives machines their turn. Tells whether more of them wait.
    pub(super) fn drain(&mut self) -> bool {
        for _ in 0..TURNS {
            let Some(name) = self.touched.pop_front() else { return false };
            self.drain_node(&name);
        }
        !self.touched.is_empty()
    }

    fn drain_node(&mut self, name: &str) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.touched = false;
        }
        loop {
            let Some(node) = self.nodes.get_mut(name) else { return };
            if let Some(effect) = node.machine.poll_effect(&DesiredOn(self.placement.on(name))) {
                self.perform(name, effect);
            } else if !self.send_one(name) {
                break;
            }
        }
        if let Some(node) = self.nodes.get_mut(name) {
            let before = std::mem::replace(&mut node.different, node.machine.differences());
            self.openings.count(before, node.different);
        }
        self.schedule(name);
        self.watch_sync(name);
    }

    fn schedule(&mut self, name: &str) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let wanted = node.machine.deadline().filter(|at| *at != Now::MAX);
        if wanted != node.deadline {
            if let Some(old) = node.deadline.take() {
                self.deadlines.remove(&(old, name.to_owned()));
            }
            if let Some(at) = wanted {
                self.deadlines.insert((at, name.to_owned()));
            }
            node.deadline = wanted;
        }
    }

    /// Sends one frame if there is one and the node's link has room.
    fn send_one(&mut self, name: &str) -> bool {
        let (now, compress_above) = (self.now(), self.compress_above);
        let Some(node) = self.nodes.get_mut(name) else { return false };
        let bytes = match node.waiting.take() {
            Some(bytes) => bytes,
            None => {
                let desired = DesiredOn(self.placement.on(name));
                let Some(frame) = node.machine.poll_frame(now, &desired) else { return false };
                match frame.encode(compress_above) {
                    Ok(bytes) => {
                        tracing::debug!(node = name, frame = frame.name(), bytes = bytes.len(), "sends");
                        bytes
                    }
                    Err(error) => {
                        tracing::error!(node = name, frame = frame.name(), %error, "a frame could not be written");
                        return true;
                    }
                }
            }
        };
        match self.downlink.try_publish(name, bytes.clone()) {
            Ok(()) => true,
            Err(PublishError::Full) => {
                node.waiting = Some(bytes);
                if !std::mem::replace(&mut node.awaiting_room, true) {
                    let (downlink, inbox, name) =
                        (self.downlink.clone(), self.inbox.clone(), name.to_owned());
                    tokio::spawn(async move {
                        let _ = downlink.ready(&name).await;
                        let _ = inbox.send(Inbox::Room(name)).await;
                    });
                }
                false
            }
            Err(PublishError::NotConnected) => {
                self.disconnected(name);
                false
            }
            Err(error) => {
                tracing::error!(node = name, %error, "a frame does not fit the node's link");
                true
            }
        }
    }

    fn perform(&mut self, name: &str, effect: CloudEffect) {
        let (source, inbox, node) = (self.source.clone(), self.inbox.clone(), name.to_owned());
        match effect {
            CloudEffect::Open => self.wants_records(name),
            CloudEffect::Load { token, objects } => {
                let managed_fields = self.managed_fields;
                let uids = objects.into_iter().map(|(uid, _)| uid).collect();
                tokio::spawn(async move {
                    let bodies = source.bodies(uids, managed_fields).await;
                    let _ = inbox.send(Inbox::Bodies(node, token, bodies)).await;
                });
            }
            CloudEffect::Record(batch) => {
                let token = batch.token;
                let agent = self.nodes.get(name).and_then(|node| node.agent.clone());
                self.begun(name);
                tokio::spawn(async move {
                    let recorded = source.record(&node, agent, batch).await;
                    let _ = inbox.send(Inbox::Recorded(node, token, recorded)).await;
                });
            }
            CloudEffect::StoreWentBack => {
                if !std::mem::replace(&mut self.renewing, true) {
                    tracing::error!(
                        node = name,
                        "a node knows more than this store ever said: it was replaced by an older copy"
                    );
                    tokio::spawn(async move {
                        let fresh = source.new_incarnation().await;
                        let _ = inbox.send(Inbox::Incarnation(fresh)).await;
                    });
                }
            }
            CloudEffect::Renew(lease) => {
                let now = self.now();
                self.lifecycle.renewed(now, Timestamp::now(), name, &lease);
            }
            CloudEffect::Take { token, upload } => self.take(name, token, upload),
            CloudEffect::Notice(notice) => {
                if let CloudNotice::Welcomed { .. } = notice {
                    let now = self.now();
                    self.lifecycle.welcomed(now, name);
                }
                show(name, &notice);
            }
        }
    }

    pub(super) fn answered(&mut self, answer: Inbox) {
        let now = self.now();
        match answer {
            Inbox::Opened(name, expected, records) => {
                self.read_ended(expected);
                let records = records
                    .inspect_err(|error| {
                        tracing::error!(node = name, %error, "the node's records cannot be read");
                    })
                    .ok();
                self.with_machine(&name, |machine, desired| machine.opened(now, records, desired));
                self.ended(&name);
            }
            Inbox::Bodies(name, token, bodies) => {
                let bodies = bodies.unwrap_or_else(|error| {
                    tracing::error!(node = name, %error, "objects cannot be read");
                    Vec::new()
                });
                self.with_machine(&name, |machine, desired| machine.loaded(now, token, bodies, desired));
            }
            Inbox::Recorded(name, token, recorded) => {
                match &recorded {
                    Ok(refused) => {
                        for (uid, why) in refused {
                            tracing::warn!(node = name, %uid, why, "a report that cannot be recorded");
                        }
                    }
                    Err(error) => tracing::error!(node = name, %error, "reports could not be recorded"),
                }
                self.with_machine(&name, |machine, desired| {
                    machine.recorded(now, token, recorded.is_ok(), random(), desired);
                });
                self.ended(&name);
            }
            Inbox::Taken(name, token, stored) => self.taken(&name, token, stored),
            Inbox::LeasesWritten(written) => self.leases_written(&written),
            Inbox::NodesChanged(changed) => self.nodes_changed(&changed),
            Inbox::EventsExpired(expired) => self.events_expired(&expired),
            Inbox::Removed(name, removed) => self.removed(&name, removed),
            Inbox::Admitted(name, admitted) => self.admitted(&name, admitted),
            Inbox::Room(name) => {
                if let Some(node) = self.nodes.get_mut(&name) {
                    node.awaiting_room = false;
                }
                self.touch(&name);
            }
            Inbox::Incarnation(fresh) => {
                self.renewing = false;
                match fresh {
                    Ok(incarnation) => {
                        tracing::warn!(%incarnation, "a new incarnation of the cloud's store begins");
                        self.incarnation = incarnation;
                        self.issued = Arc::new(self.source.issued());
                        for node in self.nodes.values_mut() {
                            node.machine.set_incarnation(self.incarnation.clone(), self.issued.clone());
                        }
                    }
                    Err(error) => tracing::error!(%error, "no new incarnation could be stored"),
                }
            }
        }
    }
}

fn show(node: &str, notice: &CloudNotice) {
    match notice {
        CloudNotice::Welcomed { pending, held } => tracing::info!(node, pending, held, "welcomed"),
        CloudNotice::EpochChanged { from, to } => {
            tracing::warn!(node, %from, %to, "the node has another database than before");
        }
        CloudNotice::NodeWentBack { recorded, revision } => {
            tracing::warn!(node, recorded, revision, "the node has an older copy of its database");
        }
        CloudNotice::Repairing => {
            tracing::warn!(node, "the records differ from what the node holds: asking for its inventory");
        }
        CloudNotice::DeletionsHeld { count } => {
            tracing::error!(
                node,
                count,
                "removals are held back: they look like the loss of this store; confirm them with \
                 'edgesync-cloud confirm-deletions {node}' if they are wanted"
            );
        }
        CloudNotice::Rejected { uid, object, reason, message } => {
            let object = object.as_ref().map(|object| object.key().to_string());
            tracing::warn!(node, %uid, object, ?reason, message, "the node rejected an object");
        }
    }
}
