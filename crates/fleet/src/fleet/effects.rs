//! Performs the effects of the machines (frames, loads, records), and returns the results to them.

use std::time::Duration;

use jiff::Timestamp;

use super::bodies::{Answer, BodyRequest, FromRevision, SizeClass};
use super::nodes::NodeId;
use super::requests::{EventCause, Response};
use super::sender::Sent;
use super::{Fleet, absences, patches, replicas, writes};
use crate::source::{Changes as _, Source};
use edgesync_object::NodeName;
use edgesync_protocol::cloud::{CloudEffect, CloudNotice, DesiredState as _, LoadRequest};
use edgesync_protocol::renewal::Renewal;

/// Maximum number of machine turns before the loop looks for events again.
const TURNS: usize = 256;
/// Time for which frames of a node over its quota are dropped; equals the delay given to the node.
const REFUSED: Duration = Duration::from_secs(60);
/// Maximum number of log lines for the reports of one batch.
const LINES: usize = 3;
/// Approximate bytes of frames written in one turn of the loop: a few milliseconds.
const TURN: u64 = 1 << 20;

impl<S: Source> Fleet<S> {
    /// Performs effects of the machines within the budget of one turn. Returns whether work is
    /// left.
    pub(super) fn drain(&mut self) -> bool {
        let (end, part) = (self.sender.written() + TURN, self.reconciler.work.part());
        for _ in 0..TURNS {
            if self.sender.written() >= end || self.reconciler.work.has_reached(part) {
                return true;
            }
            self.reconciler.work.node();
            if let Some(id) = self.reconciler.nodes.next_moved() {
                self.sender.report_progress(&mut self.reconciler, id);
                self.reconciler.nodes.touch(id);
            } else if let Some(sent) = self.sender.serve_next(&mut self.reconciler) {
                self.await_room(sent);
            } else if !self.drain_next() {
                return false;
            }
        }
        true
    }

    /// Performs one step of work. Returns whether there was any.
    fn drain_next(&mut self) -> bool {
        self.release();
        if let Some(id) = self.reconciler.nodes.next_touched() {
            self.drain_node(id);
        } else if let Some(answer) = self.patches.next_answer() {
            let (now, Answer { node, token, bodies, .. }) = (self.reconciler.now(), answer);
            self.reconciler
                .with_machine(node, |machine, desired| machine.loaded(now, token, bodies, desired));
        } else if let Some(answer) = self.bodies.next_answer() {
            self.patches.complete(answer);
        } else if self.patches.step() || self.bodies.step() {
            return true;
        } else if let Some(pairs) = self.patches.next_job() {
            let left_out = self.reconciler.settings.left_out;
            self.requests.ask(|source| async move {
                let bases = source.bases(patches::bases_of(&pairs), left_out);
                let patches = patches::make(&pairs, bases).await;
                Response::PatchesMade(pairs, patches)
            });
        } else if let Some(id) = self.interrupted.next(self.reconciler.now(), self.bodies.is_short()) {
            if let Some(node) = self.reconciler.nodes.get_mut(id).filter(|node| node.machine.has_begun()) {
                node.machine.forget_begun();
            }
        } else if let Some(read) = self.bodies.next_read() {
            let left_out = self.reconciler.settings.left_out;
            self.requests.ask(|source| async move {
                let uids = read.uids.clone();
                let bodies = match read.revision.clone() {
                    None => source.bodies(uids, left_out).await,
                    Some(from) => from.read(&source, uids).await,
                };
                Response::BodiesRead(read, bodies)
            });
        } else {
            return false;
        }
        true
    }

    fn drain_node(&mut self, id: NodeId) {
        if let Some(node) = self.reconciler.node(id) {
            node.schedule.begin_turn();
        }
        loop {
            match self.reconciler.next_effect(id) {
                None => return,
                Some(Some(effect)) => self.perform(id, effect),
                Some(None) => match self.sender.send_one(&mut self.reconciler, id) {
                    Sent::Frame => {}
                    sent => {
                        self.await_room(sent);
                        break;
                    }
                },
            }
        }
        let in_sync = self.reconciler.end_turn(id);
        self.replicas.watch_differences(&mut self.reconciler, &self.requests, id);
        if in_sync {
            replicas::end_confirmation(&mut self.reconciler, &self.requests, id);
        }
    }

    fn await_room(&self, sent: Sent) {
        if let Sent::AwaitsRoom(id) = sent
            && let Some(name) = self.reconciler.nodes.name(id)
        {
            self.requests.run(self.sender.room(id, name));
        }
    }

    /// Reads records of nodes, as far as the limit of differences permits.
    pub(super) fn read_ledgers(&mut self) {
        let now = self.reconciler.now();
        while let Some((id, name, expected)) = self.reconciler.ledgers.next(now, &self.reconciler.nodes) {
            self.reconciler.nodes.request_begun(id);
            self.requests.ask(|source| async move {
                let records = source.records(&name).await;
                Response::RecordsRead(name, expected, records)
            });
        }
    }

    fn perform(&mut self, id: NodeId, effect: CloudEffect) {
        self.release();
        let Some(name) = self.reconciler.nodes.name(id) else { return };
        match effect {
            CloudEffect::ReadRecords => self.reconciler.ledgers.wait(id),
            CloudEffect::CatchUp { token } => {
                self.replicas.await_catch_up(self.feed.changes.catch_up(), id, token);
            }
            CloudEffect::Load { token, objects } => {
                let desired = self.reconciler.desired_on(&name);
                let rollouts = &self.reconciler.desired.rollouts;
                let machine = self.reconciler.nodes.named(&name).map(|node| &node.machine);
                let request = |LoadRequest { uid, version, base }| {
                    let size = desired.get(&uid).map_or(0, |object| object.size);
                    let revision = desired.revision(&uid).map(|revision| {
                        let held = || machine?.recorded_version(&uid, &desired);
                        let goes_back = || held().is_some_and(|held| version.is_older_than(&held));
                        let overrides_windows = rollouts.overrides_windows(&revision.key) && goes_back();
                        FromRevision { key: revision.key.clone(), overrides_windows }
                    });
                    // A patch would have the body without the annotation.
                    let base = base.filter(|_| revision.as_ref().is_none_or(|from| !from.overrides_windows));
                    BodyRequest { size, uid, version, base, revision }
                };
                let requests: Vec<BodyRequest> = objects.into_iter().map(request).collect();
                let max_frame = self.reconciler.settings.max_frame;
                let is_large = requests.iter().any(|request| request.size > max_frame);
                let class = if is_large { SizeClass::Large } else { SizeClass::Small };
                self.bodies.load(id, token, class, requests);
            }
            CloudEffect::Record(batch) => {
                let token = batch.token;
                let node = self.reconciler.nodes.get_mut(id);
                let agent = node.and_then(|node| {
                    node.reported.record(&batch);
                    node.reported.agent.clone()
                });
                self.reconciler.nodes.request_begun(id);
                self.requests.ask(|source| async move {
                    let recorded = source.record(&name, agent, batch).await;
                    Response::Recorded(name, token, recorded)
                });
            }
            CloudEffect::RollbackClaimed => {
                let nodes = self.reconciler.nodes.len();
                if self.reconciler.timeline.add_witness(&name, nodes) {
                    self.requests
                        .ask(|source| async move { Response::Incarnation(source.new_incarnation().await) });
                }
            }
            CloudEffect::Renew(renewal) => self.renew(id, &name, renewal),
            CloudEffect::Ingest { token, upload } => {
                self.intake.take(&mut self.reconciler, &self.requests, id, (token, upload));
            }
            CloudEffect::Notice(notice) => {
                let now = self.reconciler.now();
                match &notice {
                    CloudNotice::Welcomed { .. } => {
                        self.reconciler.nodes.lifecycle.welcomed(now, &name);
                        replicas::welcomed(&mut self.reconciler, &self.requests, id);
                        absences::ask_to_stay(&mut self.reconciler, id);
                    }
                    CloudNotice::OverQuota { .. } => self.refuse(id),
                    _ => {}
                }
                // At most once a minute, and the only line with the remedy.
                if matches!(notice, CloudNotice::OverQuota { .. }) || self.may_log(&name) {
                    log_notice(&name, &notice);
                }
            }
        }
    }

    /// Renews the Lease of a node. A replica that has stopped judging the node does not know the
    /// terms that a short renewal repeats.
    fn renew(&mut self, id: NodeId, name: &NodeName, renewal: Renewal) {
        let (now, clock) = (self.reconciler.now(), Timestamp::now());
        let lifecycle = &mut self.reconciler.nodes.lifecycle;
        let is_known = match renewal.into_lease(clock.as_microsecond()) {
            Some(lease) => {
                lifecycle.renewed(now, clock, name, &lease);
                true
            }
            None => lifecycle.renewed_again(now, clock, name),
        };
        if !is_known {
            self.reconciler.with_machine(id, |machine, _| machine.request_terms());
        }
    }

    /// Drops frames of a node for [`REFUSED`].
    fn refuse(&mut self, id: NodeId) {
        let until = self.reconciler.now() + REFUSED;
        if let Some(node) = self.reconciler.nodes.get_mut(id) {
            node.session.refuse_until(until);
        }
    }

    /// Adopts the incarnation of the store. The store begins one on request, and when a clock
    /// jump shows that its machine was suspended or restored.
    pub(super) fn follow_incarnation(&mut self) {
        let source = self.requests.source();
        let incarnation = source.incarnation();
        if incarnation == *self.reconciler.timeline.incarnation() {
            return;
        }
        self.reconciler.timeline.begin(incarnation, source.issued());
        self.reconciler.broadcasts.renewed();
        self.bodies.begin_timeline();
    }

    pub(super) fn handle_response(&mut self, answer: Response) {
        let now = self.reconciler.now();
        self.reconciler.work.change();
        match answer {
            Response::RecordsRead(name, expected, records) => {
                self.reconciler.ledgers.ended(expected);
                self.reconciler.work.objects(records.as_ref().map_or(0, Vec::len));
                let records = records
                    .inspect_err(|error| {
                        tracing::error!(node = name.as_str(), %error, "reading the records of the node failed");
                    })
                    .ok();
                if let Some(id) = self.reconciler.nodes.id(&name) {
                    self.reconciler
                        .with_machine(id, |machine, desired| machine.opened(now, records, desired));
                }
                self.ended(&name);
            }
            Response::BodiesRead(read, bodies) => {
                match (&read.revision, &bodies) {
                    (Some(from), Ok(bodies)) if bodies.len() < read.uids.len() => {
                        self.check_revision(from.key.clone());
                    }
                    (_, Err(error)) => tracing::error!(%error, "reading objects failed"),
                    _ => {}
                }
                self.bodies.arrived(read, bodies.unwrap_or_default());
            }
            Response::PatchesMade(pairs, patches) => self.patches.made(pairs, patches),
            Response::Recorded(name, token, recorded) => {
                match &recorded {
                    Ok(refused) => {
                        for (uid, why) in refused.iter().take(LINES) {
                            tracing::warn!(node = name.as_str(), %uid, why, of = refused.len(), "report not recorded");
                        }
                    }
                    Err(error) => {
                        tracing::error!(node = name.as_str(), %error, "recording reports failed");
                    }
                }
                if let Some(id) = self.reconciler.nodes.id(&name) {
                    let random = (self.reconciler.random)();
                    self.reconciler.with_machine(id, |machine, desired| {
                        machine.recorded(now, token, recorded.is_ok(), random, desired);
                    });
                }
                self.ended(&name);
            }
            Response::Ingested(name, token, stored) => {
                let Self { intake, reconciler, requests, counts, .. } = self;
                counts.events_dropped += intake.taken(reconciler, requests, &name, (token, stored));
                self.ended(&name);
            }
            Response::LeasesWritten(written) => {
                writes::leases_written(&mut self.reconciler, &mut self.counts, &written);
                self.resume_removals();
            }
            Response::NodesChanged(written) => {
                writes::conditions_written(&mut self.reconciler, &written);
                self.resume_removals();
            }
            Response::EventsExpired(expired) => self.expiry.ended(now, &mut self.counts, &expired),
            Response::EventEmitted(emitted, cause) => {
                if cause == EventCause::MissedCheckIn {
                    self.reconciler.nodes.lifecycle.missed_written();
                }
                if let Err(error) = emitted {
                    tracing::error!(%error, "creating an Event failed");
                }
            }
            Response::RuleStatusWritten(written) => {
                self.rules.status_written();
                if let Err(error) = written {
                    tracing::error!(%error, "writing the status of a rule failed");
                }
            }
            Response::RolloutStatuses(statuses) => self.statuses_read(statuses),
            Response::RolloutWritten(index, written) => self.rollout_written(index, written),
            Response::RolloutDeleted(deleted) => {
                if let Err(error) = deleted {
                    tracing::error!(%error, "deleting the status of a roll-out failed");
                }
            }
            Response::RevisionRead(index, key, set) => self.revision_read(index, key, set),
            Response::SnapshotMade(index, made) => self.snapshot_made(index, made),
            Response::RevisionsSwept(swept) => self.revisions_swept(&swept),
            Response::Confirmed(node, written) => {
                if let Err(error) = written {
                    tracing::error!(node = node.as_str(), %error, "publishing confirmed removals to other replicas failed");
                }
            }
            Response::Removed(name, removed) => self.removed(&name, removed),
            Response::Admitted(name, admitted) => self.admitted(&name, admitted),
            Response::LinkReady(id) => self.sender.has_room(&mut self.reconciler, id),
            Response::Incarnation(fresh) => {
                self.reconciler.timeline.renewed();
                match fresh {
                    Ok(_) => self.follow_incarnation(),
                    Err(error) => tracing::error!(%error, "storing a new incarnation failed"),
                }
            }
        }
    }
}

fn log_notice(node: &NodeName, notice: &CloudNotice) {
    match notice {
        CloudNotice::Welcomed { pending, held } => {
            tracing::info!(node = node.as_str(), pending, held, "session established");
        }
        CloudNotice::EpochChanged { from, to } => {
            tracing::warn!(node = node.as_str(), %from, %to, "node has a new database");
        }
        CloudNotice::NodeRolledBack { recorded, revision } => {
            tracing::warn!(
                node = node.as_str(),
                recorded,
                revision,
                "node has an older copy of its database"
            );
        }
        CloudNotice::Repairing => {
            tracing::warn!(node = node.as_str(), "records and held objects differ, requesting an inventory");
        }
        CloudNotice::OverQuota { limit } => {
            tracing::error!(
                node = node.as_str(),
                limit,
                "node reports more objects than it was sent, ignoring it for one minute; hint: raise sync.max_unknown if \
                 this store was replaced by an older copy"
            );
        }
        CloudNotice::DeletionsHeld { count } => {
            tracing::error!(
                node = node.as_str(),
                count,
                "removals held back, they look like a loss of this store; hint: to confirm them, run \
                 'edgesync-cloud confirm-deletions {node}'"
            );
        }
        CloudNotice::Rejected { uid, object, reason, message } => {
            let object = object.as_ref().map(|object| object.key().to_string());
            tracing::warn!(node = node.as_str(), %uid, object, ?reason, why = message, "node rejected an object");
        }
    }
}
