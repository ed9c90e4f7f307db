//! Publishes the notices of machine and bridge: to the log, the status, Events and the service
//! manager.

use super::Driver;
use super::statistics::{Rejection, SyncChange};
use crate::agent::events::{EventReason, Regarding};
use crate::agent::identity::IdentityChange;
use edgesync_admin::agent::RejectedObject;
use edgesync_join::renewal::Validity;
use edgesync_kubeedge::{BridgeNotice, RoundReason};
use edgesync_object::ObjectRef;
use edgesync_object::time::{rfc3339, rounded};
use edgesync_protocol::change::Rejected;
use edgesync_protocol::edge::{EdgeNotice, EdgePhase};
use edgesync_transport::admission::LinePermit;

impl Driver {
    pub(super) fn notice(&mut self, notice: EdgeNotice) {
        match notice {
            EdgeNotice::Welcomed { pending, held, round_trip } => {
                self.uplink.connection.welcomed(round_trip);
                if let Some(LinePermit { suppressed }) = self.peer_log.sessions.permit_line() {
                    let round_trip = rounded(round_trip);
                    tracing::info!(pending, held, %round_trip, suppressed, "session established");
                }
                if let Some(silence) = self.reporting.silence.end() {
                    let note = format!("cloud side responds again after {} s", silence.as_secs());
                    self.reporting.events.emit(EventReason::CloudReachable, Regarding::Node, note);
                }
            }
            EdgeNotice::IncarnationChanged { from, to } => {
                if let Some(LinePermit { suppressed }) = self.peer_log.sessions.permit_line() {
                    tracing::warn!(from, to, suppressed, "incarnation of the cloud's store changed");
                }
                let note = format!("incarnation of the cloud's store changed: {to}, was {from}");
                self.reporting.events.emit(EventReason::CloudIncarnationChanged, Regarding::Node, note);
            }
            EdgeNotice::Repairing => {
                self.verifier.records_differed();
                if let Some(LinePermit { suppressed }) = self.peer_log.sessions.permit_line() {
                    tracing::warn!(suppressed, "records differ from held objects: sending the inventory");
                }
                let note = "the cloud's records differ from held objects and are corrected".to_owned();
                self.reporting.events.emit(EventReason::RecordsDiffered, Regarding::Node, note);
            }
            EdgeNotice::CloudSilent { attempts } => {
                let silence = self.uplink.wire.silence();
                if let Some(LinePermit { suppressed }) = self.peer_log.sessions.permit_line() {
                    tracing::warn!(attempts, suppressed, "cloud unreachable: {silence}");
                }
                if self.reporting.silence.observe(self.uplink.wire.silence_threshold()) {
                    self.reporting.events.emit(
                        EventReason::CloudUnreachable,
                        Regarding::Node,
                        silence.to_owned(),
                    );
                }
            }
            EdgeNotice::HelloRequested { reason, retry_after_seconds } => {
                let line = self.peer_log.sessions.permit_line();
                match (retry_after_seconds > 0, line) {
                    (true, Some(LinePermit { suppressed })) => {
                        tracing::warn!(
                            reason,
                            retry_after_seconds,
                            suppressed,
                            "session refused by the cloud"
                        );
                    }
                    (false, Some(LinePermit { suppressed })) => {
                        tracing::info!(reason, suppressed, "Hello requested by the cloud");
                    }
                    (_, None) => {}
                }
                if retry_after_seconds > 0 {
                    self.uplink.connection.refusal = Some(reason);
                }
            }
            EdgeNotice::Register => self.report_node(true),
            EdgeNotice::Removed { reason } => {
                if let Some(LinePermit { suppressed }) = self.peer_log.sessions.permit_line() {
                    tracing::error!(reason, suppressed, "node removed from the fleet");
                }
                if self.uplink.connection.remove() {
                    self.reporting.events.emit(EventReason::NodeRemoved, Regarding::Node, reason);
                }
            }
            EdgeNotice::UploadRefused { content, reason, message } => {
                self.reporting.upload_refused(&self.kinds, &self.peer_log, &content, reason, &message);
            }
            EdgeNotice::Rejected(rejected) => self.rejected(rejected),
        }
    }

    /// Publishes the rejection of an object. An object that could not be identified may be of any
    /// kind.
    fn rejected(&mut self, rejected: Rejected) {
        let Rejected { uid, resource_version, reason, message, object } = rejected;
        let is_sealed = object.as_deref().is_none_or(|object| self.kinds.is_sealed(&object.key()));
        let entry = Rejection {
            object: RejectedObject {
                uid: uid.to_string(),
                object: object.as_deref().cloned(),
                resource_version: resource_version.to_string(),
                reason: format!("{reason:?}"),
                message,
            },
            is_sealed,
        };
        let why = entry.message(false);
        let name = object.as_deref().map(named);
        if let Some(LinePermit { suppressed }) = self.peer_log.objects.permit_line() {
            tracing::warn!(name, %uid, %resource_version, ?reason, why, suppressed, "object rejected");
        }
        self.statistics.count_rejection(reason);
        let note = format!("{reason:?}: {why}");
        let regarding = match object {
            Some(object) => Regarding::Object(*object, uid.clone()),
            None => Regarding::Node,
        };
        self.reporting.events.emit(EventReason::ObjectRejected, regarding, note);
        self.statistics.remember_rejected(&uid, entry);
    }

    /// Publishes a notice of the bridge to a CloudCore.
    pub(super) fn bridge_notice(&mut self, notice: BridgeNotice) {
        match notice {
            BridgeNotice::BadMessage { problem } => {
                self.statistics.count_bad_frame("message");
                if let Some(LinePermit { suppressed }) = self.peer_log.frames.permit_line() {
                    tracing::warn!(problem, suppressed, "invalid message");
                }
            }
            BridgeNotice::Refilling(reason) => {
                if let Some(LinePermit { suppressed }) = self.peer_log.sessions.permit_line() {
                    tracing::info!(reason = reason.name(), suppressed, "full refill started");
                }
                if reason == RoundReason::Lost {
                    self.verifier.records_differed();
                    let note = "database unknown to CloudCore: full refill started".to_owned();
                    self.reporting.events.emit(EventReason::RecordsDiffered, Regarding::Node, note);
                }
            }
            BridgeNotice::Verified { reason, compared, differed } => {
                if let Some(LinePermit { suppressed }) = self.peer_log.sessions.permit_line() {
                    let reason = reason.name();
                    tracing::info!(reason, compared, differed, suppressed, "held objects compared");
                }
                if differed == 0 {
                    return;
                }
                self.verifier.records_differed();
                // With the other reasons, a difference is expected or already reported.
                if matches!(reason, RoundReason::Routine | RoundReason::Asked) {
                    let note =
                        format!("{differed} of {compared} objects differ from the cloud's and are corrected");
                    self.reporting.events.emit(EventReason::RecordsDiffered, Regarding::Node, note);
                }
            }
            BridgeNotice::DynamicControllerSilent => {
                if let Some(LinePermit { suppressed }) = self.peer_log.sessions.permit_line() {
                    tracing::warn!(
                        suppressed,
                        "CloudCore's dynamic controller does not respond: kubeedge.watch, and kubeedge.fetch with '*', \
                         have no effect"
                    );
                }
            }
            BridgeNotice::Denied { what, message } => {
                if let Some(LinePermit { suppressed }) = self.peer_log.sessions.permit_line() {
                    let message = &*message;
                    tracing::warn!(
                        what,
                        why = message,
                        suppressed,
                        "CloudCore's dynamic controller refused the request"
                    );
                }
                if let Some(cloud_core) = self.uplink.wire.cloud_core_mut() {
                    cloud_core.record_denied(what, message);
                }
            }
        }
    }

    /// Emits an Event for a change of the certificate, and schedules a check of the device.
    pub(super) fn emit_identity(&mut self, change: IdentityChange) {
        let (why, note) = match change {
            IdentityChange::Renewed(certificate) => {
                let until = rfc3339(certificate.not_after());
                (EventReason::CertificateRenewed, format!("certificate renewed, valid until {until}"))
            }
            IdentityChange::Failed(problem) => {
                (EventReason::CertificateRenewalFailed, format!("certificate renewal failed: {problem}"))
            }
            IdentityChange::Validity(Validity::Expired) => {
                let note = "certificate expired; the renewal is retried".to_owned();
                (EventReason::CertificateExpired, note)
            }
            IdentityChange::Validity(_) => {
                let note = "less than a tenth of the certificate's lifetime left, renewal failing";
                (EventReason::CertificateExpiring, note.to_owned())
            }
        };
        self.reporting.events.emit(why, Regarding::Node, note);
        self.reporting.node.schedule_check();
    }

    pub(super) fn update_service_status(&mut self) {
        let in_sync = self.machine.in_sync();
        if self.statistics.observe_sync(in_sync) == SyncChange::InSync {
            self.files.synced(self.machine.totals().epoch);
            let objects = self.machine.totals().count;
            // Each change leaves and reaches sync; only the first time per connection is worth an
            // info line.
            if std::mem::replace(&mut self.uplink.connection.link.was_in_sync, true) {
                tracing::debug!(objects, "in sync");
            } else {
                tracing::info!(objects, "in sync");
            }
        }
        let held = self.machine.announced().1;
        if self.statistics.observe_held_back(held) {
            let note = format!(
                "the cloud holds back {held} removals; hint: 'edgesync-cloud confirm-deletions NODE'"
            );
            self.reporting.events.emit(EventReason::DeletionsHeldBack, Regarding::Node, note);
        }
        let line = match (self.uplink.is_connected(), self.machine.phase()) {
            _ if in_sync => format!("in sync, {} objects", self.machine.totals().count),
            (false, _) if let Some(next) = self.next_check_in() => {
                format!("away as planned, next check-in {}", rfc3339(next))
            }
            (false, _) => format!("offline, {} objects held", self.machine.totals().count),
            (true, EdgePhase::Live) => "receiving".to_owned(),
            (true, _) => format!("connected to {}, waiting for the cloud", self.uplink.wire.peer()),
        };
        self.service_status.send(line);
    }
}

/// Formats an object as `ConfigMap plant/line-1`.
fn named(object: &ObjectRef) -> String {
    let ObjectRef { kind, namespace, name, .. } = object;
    if namespace.is_empty() { format!("{kind} {name}") } else { format!("{kind} {namespace}/{name}") }
}
