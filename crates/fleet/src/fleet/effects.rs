//! What the machines want, carried out: frames, loads, records.

use std::time::Duration;

use jiff::Timestamp;

use super::bodies::{Answer, Sort, Wanted};
use super::{Fleet, Inbox, TURNS};
use crate::config::ObjectSyncs;
use crate::source::Source;
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::{CloudEffect, CloudNotice};
use edgesync_protocol::timing::Now;
use edgesync_runtime::random;
use edgesync_transport::link::PublishError;

/// What became of the next frame for a node.
enum Sending {
    /// It is on its way, or will never be.
    Sent,
    /// There is none, or no connection.
    Nothing,
    /// It waits for room.
    Full,
}

/// So long nothing is heard of a node that has exceeded its quota: as long as it was told to wait.
const REFUSED: Duration = Duration::from_secs(60);
/// Lines in the log about the reports of one batch.
const LINES: usize = 3;
/// Bytes of frames that are written in one turn of the loop, about: a few milliseconds.
const TURN: u64 = 1 << 20;

impl<S: Source> Fleet<S> {
    /// Does what the machines want, for as long as one turn of the loop may take. Tells whether something is left to do.
    pub(super) fn drain(&mut self) -> bool {
        let (end, part) = (self.written + TURN, self.work.part());
        for _ in 0..TURNS {
            if self.written >= end || self.work.has_reached(part) {
                return true;
            }
            self.work.node();
            if let Some(name) = self.moved.pop_front() {
                self.tell_progress(&name);
                self.touch(&name);
            } else if !self.serve_next() && !self.drain_next() {
                return false;
            }
        }
        true
    }

    /// Does what the next machine wants. Tells whether there was one.
    fn drain_next(&mut self) -> bool {
        if let Some(name) = self.touched.pop_front() {
            self.drain_node(&name);
        } else if let Some(answer) = self.bodies.next_answer() {
            let (now, Answer { node, token, bodies }) = (self.now(), answer);
            self.with_machine(&node, |machine, desired| machine.loaded(now, token, bodies, desired));
        } else if self.bodies.step() {
            return true;
        } else if let Some(uids) = self.bodies.next_read() {
            self.read(uids);
        } else {
            return false;
        }
        true
    }

    fn drain_node(&mut self, name: &str) {
        if let Some(node) = self.node(name) {
            node.touched = false;
        }
        loop {
            let Some(node) = self.nodes.get_mut(name) else { return };
            let desired = self.replicas.desired(self.placement.on(name), &self.work);
            if let Some(effect) = node.machine.poll_effect(&desired) {
                self.perform(name, effect);
            } else if !self.send_one(name) {
                break;
            }
        }
        if let Some(node) = self.nodes.get_mut(name) {
            let before = std::mem::replace(&mut node.different, node.machine.differences());
            self.openings.count(before, node.different);
        }
        if S::IS_SHARED && self.source.object_syncs() == ObjectSyncs::Differences {
            self.watch_differences(name);
        }
        self.schedule(name);
        self.watch_sync(name);
    }

    fn read(&self, uids: Vec<Uid>) {
        let (source, inbox, left_out) = (self.source.clone(), self.inbox.clone(), self.left_out);
        tokio::spawn(async move {
            let bodies = source.bodies(uids.clone(), left_out).await;
            let _ = inbox.send(Inbox::Bodies(uids, bodies)).await;
        });
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
        if self.downlink.is_shared() && !self.line.is_empty() {
            // Nobody overtakes those who wait.
            self.line.join(name);
            return false;
        }
        match self.send_next(name) {
            Sending::Sent => true,
            Sending::Nothing => false,
            Sending::Full => {
                let is_first = match self.nodes.get_mut(name) {
                    _ if self.downlink.is_shared() => {
                        self.line.join(name);
                        self.line.wait()
                    }
                    Some(node) => !std::mem::replace(&mut node.awaiting_room, true),
                    None => false,
                };
                if is_first {
                    self.await_room(name);
                }
                false
            }
        }
    }

    /// While there is room in the queue of all nodes: the next of those who wait for it sends a frame. Tells whether
    /// there was one.
    fn serve_next(&mut self) -> bool {
        let Some(name) = self.line.next() else { return false };
        match self.send_next(&name) {
            // Perhaps it has more, and stands in line again.
            Sending::Sent => self.touch(&name),
            Sending::Nothing => {}
            Sending::Full => {
                self.line.rejoin(name.clone());
                if self.line.wait() {
                    self.await_room(&name);
                }
            }
        }
        true
    }

    /// Tells the machine of a node how far its link is, if that is known.
    pub(super) fn tell_progress(&mut self, name: &str) {
        let (now, backlog) = (self.now(), self.downlink.backlog(name));
        let (Some(node), Some(backlog)) = (self.node(name), backlog) else { return };
        // It was made, and waits for room.
        let waiting = u64::from(node.waiting.is_some());
        node.machine.link_progress(now, backlog.unsent + waiting, backlog.unacknowledged + waiting);
    }

    fn await_room(&self, name: &str) {
        let (downlink, inbox, name) = (self.downlink.clone(), self.inbox.clone(), name.to_owned());
        tokio::spawn(async move {
            let _ = downlink.ready(&name).await;
            let _ = inbox.send(Inbox::Room(name)).await;
        });
    }

    fn send_next(&mut self, name: &str) -> Sending {
        let (now, compress_above) = (self.now(), self.compress_above);
        self.inform(name);
        let Some(node) = self.nodes.get_mut(name) else { return Sending::Nothing };
        let bytes = match node.waiting.take() {
            Some(bytes) => bytes,
            None => {
                let desired = self.replicas.desired(self.placement.on(name), &self.work);
                let Some(frame) = node.machine.poll_frame(now, &desired) else { return Sending::Nothing };
                match frame.encode(compress_above) {
                    Ok(bytes) => {
                        self.written += bytes.len() as u64;
                        node.sent += bytes.len() as u64;
                        self.work.frame(bytes.len());
                        tracing::debug!(node = name, frame = frame.name(), bytes = bytes.len(), "sends");
                        bytes
                    }
                    Err(error) => {
                        tracing::error!(node = name, frame = frame.name(), %error, "a frame could not be written");
                        return Sending::Sent;
                    }
                }
            }
        };
        match self.downlink.try_publish(name, bytes.clone()) {
            Ok(()) => Sending::Sent,
            Err(PublishError::Full) => {
                node.waiting = Some(bytes);
                Sending::Full
            }
            Err(PublishError::NotConnected) => {
                self.disconnected(name);
                Sending::Nothing
            }
            Err(error) => {
                tracing::error!(node = name, %error, "a frame does not fit the node's link");
                Sending::Sent
            }
        }
    }

    fn perform(&mut self, name: &str, effect: CloudEffect) {
        let (source, inbox, node) = (self.source.clone(), self.inbox.clone(), name.to_owned());
        match effect {
            CloudEffect::Open => self.wants_records(name),
            CloudEffect::CatchUp { token } => self.ask_to_catch_up(name, token),
            CloudEffect::Load { token, objects } => {
                let size = |uid: &Uid| self.placement.object(uid).map_or(0, |object| object.size);
                let wanted = |(uid, version)| Wanted { size: size(&uid), uid, version };
                let wanted: Vec<Wanted> = objects.into_iter().map(wanted).collect();
                let is_large = wanted.iter().any(|wanted| wanted.size > self.max_frame);
                let sort = if is_large { Sort::Large } else { Sort::Small };
                self.bodies.load(name, token, sort, wanted);
            }
            CloudEffect::Record(batch) => {
                let token = batch.token;
                let agent = self.nodes.get(name).and_then(|node| node.agent.clone());
                self.recording(name, &batch);
                self.begun(name);
                tokio::spawn(async move {
                    let recorded = source.record(&node, agent, batch).await;
                    let _ = inbox.send(Inbox::Recorded(node, token, recorded)).await;
                });
            }
            CloudEffect::StoreWentBack => {
                let agreed = self.witnesses.hear(name, self.nodes.len());
                let witnesses = self.witnesses.count();
                if !agreed {
                    tracing::warn!(
                        node = name,
                        witnesses,
                        "a node says that it has what this store never gave: its own removals are held back if they are many"
                    );
                } else if !std::mem::replace(&mut self.renewing, true) {
                    tracing::error!(
                        node = name,
                        witnesses,
                        "nodes know more than this store ever said: it was replaced by an older copy"
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
                let now = self.now();
                match &notice {
                    CloudNotice::Welcomed { .. } => {
                        self.lifecycle.welcomed(now, name);
                        if S::IS_SHARED {
                            self.welcomed_here(name);
                        }
                    }
                    CloudNotice::OverQuota { .. } => self.refuse(name),
                    _ => {}
                }
                // Once a minute at most, and the only line that says what to do.
                if matches!(notice, CloudNotice::OverQuota { .. }) || self.may_log(name) {
                    show(name, &notice);
                }
            }
        }
    }

    /// Hears nothing of a node for a while.
    fn refuse(&mut self, name: &str) {
        let until = self.now() + REFUSED;
        if let Some(node) = self.nodes.get_mut(name) {
            node.refused_until = until;
        }
    }

    /// The store begins a new incarnation when it is asked to, and when it notices that its machine was away.
    pub(super) fn follow_incarnation(&mut self) {
        let incarnation = self.source.incarnation();
        if incarnation == self.incarnation {
            return;
        }
        tracing::warn!(%incarnation, "a new incarnation of the cloud's store begins");
        self.incarnation = incarnation;
        self.issued = self.source.issued();
        self.witnesses.clear();
        self.news.renewed();
    }

    pub(super) fn answered(&mut self, answer: Inbox) {
        let now = self.now();
        self.work.change();
        match answer {
            Inbox::Opened(name, expected, records) => {
                self.read_ended(expected);
                self.work.objects(records.as_ref().map_or(0, Vec::len));
                let records = records
                    .inspect_err(|error| {
                        tracing::error!(node = name, %error, "the node's records cannot be read");
                    })
                    .ok();
                self.with_machine(&name, |machine, desired| machine.opened(now, records, desired));
                self.ended(&name);
            }
            Inbox::Bodies(uids, bodies) => {
                let bodies = bodies.unwrap_or_else(|error| {
                    tracing::error!(%error, "objects cannot be read");
                    Vec::new()
                });
                self.bodies.arrived(uids, bodies);
            }
            Inbox::Recorded(name, token, recorded) => {
                match &recorded {
                    Ok(refused) => {
                        for (uid, why) in refused.iter().take(LINES) {
                            tracing::warn!(node = name, %uid, why, of = refused.len(), "a report that cannot be recorded");
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
            Inbox::RuleStatusWritten(written) => self.rule_status_written(&written),
            Inbox::Confirmed(node, written) => self.confirmation_written(&node, &written),
            Inbox::Removed(name, removed) => self.removed(&name, removed),
            Inbox::Admitted(name, admitted) => self.admitted(&name, admitted),
            Inbox::Room(_) if self.downlink.is_shared() => self.line.has_room(),
            Inbox::Room(name) => {
                if let Some(node) = self.nodes.get_mut(&name) {
                    node.awaiting_room = false;
                }
                self.touch(&name);
            }
            Inbox::Incarnation(fresh) => {
                self.renewing = false;
                match fresh {
                    Ok(_) => self.follow_incarnation(),
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
        CloudNotice::OverQuota { limit } => {
            tracing::error!(
                node,
                limit,
                "the node names more objects than it can have been given: nothing of it is heard for a minute; if this \
                 store was replaced by an older copy, raise sync.max_unknown"
            );
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
            tracing::warn!(node, %uid, object, ?reason, why = message, "the node rejected an object");
        }
    }
}
