//! Reports which objects are in effect: to the cloud durably and once, and as Events.

use std::collections::HashSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::agent::events::{EventReason, Events, Regarding};
use crate::agent::kinds::KindRegistry;
use crate::store::{EdgeStore, MonotonicTime, OutboxPut, OutboxWrite};
use edgesync_files::wire::{ReportPosition, StatusUpdate};
use edgesync_files::{State, Status};
use edgesync_object::{ObjectRef, ResourceVersion};
use edgesync_protocol::digest::Epoch;
use edgesync_protocol::upload::{EffectContent, EffectState, MAX_EFFECT_MESSAGE};
use edgesync_transport::admission::{LinePermit, LogThrottle};

/// Metadata key of the report position, written in the transaction of the report.
const METADATA_KEY: &str = "files";
/// Maximum number of items per transaction.
const MAX_BATCH: usize = 256;
/// Maximum number of objects with an Event each that they are in effect; more share one Event.
const MAX_SINGLE_EVENTS: usize = 8;

/// The persisted report position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    /// Position up to which the cloud has received reports.
    pub(super) told: ReportPosition,
    /// Epoch of the database that the reports stem from.
    pub(super) store: String,
    /// Whether this database has ever held all desired objects.
    pub(super) whole: bool,
}

/// Position of the reports, and the epoch of their database.
#[derive(Debug, Default)]
pub(super) struct Reported {
    /// Position up to which the cloud has received reports; `None` if there never were any.
    pub(super) position: Option<ReportPosition>,
    /// Position up to which Events were emitted.
    emitted: Option<ReportPosition>,
    /// Epoch of the database that the reports stem from.
    pub(super) epoch: String,
    /// Whether this database has ever held all desired objects. Before that, nothing is removed
    /// because it is missing.
    pub(super) is_whole: bool,
}

impl Reported {
    /// Restores the persisted position. Unreadable metadata counts as absent.
    pub(super) async fn restore(store: &EdgeStore) -> Self {
        let text = store.note(METADATA_KEY).await.ok().flatten();
        match text.and_then(|text| serde_json::from_str::<Kept>(&text).ok()) {
            Some(Kept { told, store, whole }) => {
                Self { position: Some(told.clone()), emitted: Some(told), epoch: store, is_whole: whole }
            }
            None => Self::default(),
        }
    }

    /// Returns what to persist with a report up to this position.
    pub(super) fn kept(&self, told: ReportPosition) -> Kept {
        Kept { told, store: self.epoch.clone(), whole: self.is_whole }
    }

    /// Compares the epoch of the database: a new database, and the cloud, know of no earlier
    /// reports.
    pub(super) fn check_epoch(&mut self, epoch: Epoch) {
        let epoch = epoch.to_string();
        if self.epoch != epoch {
            self.epoch = epoch;
            self.is_whole = false;
            self.restart();
        }
    }

    /// Records that the database with this epoch holds all desired objects. Returns whether that is
    /// new; `false` if another database has replaced it.
    pub(super) fn mark_whole(&mut self, epoch: Epoch) -> bool {
        self.epoch == epoch.to_string() && !std::mem::replace(&mut self.is_whole, true)
    }

    /// Has everything reported again. Returns whether there were reports.
    pub(super) fn restart(&mut self) -> bool {
        match &mut self.position {
            Some(position) => {
                position.seq = 0;
                true
            }
            None => false,
        }
    }

    /// Returns the number of the last Event in the epoch of a position; zero if there was none.
    pub(super) fn emitted_in(&self, position: &ReportPosition) -> u64 {
        let emitted = self.emitted.as_ref().filter(|emitted| emitted.epoch == position.epoch);
        emitted.map_or(0, |emitted| emitted.seq)
    }

    /// Records a report and its Events up to this position.
    pub(super) fn advance(&mut self, position: &ReportPosition) {
        self.position = Some(position.clone());
        self.emitted = Some(position.clone());
    }
}

/// Puts new results into the outbox, together with the position. Returns whether they were stored.
pub(super) async fn post(
    store: &EdgeStore,
    updates: &[StatusUpdate],
    kept: &Kept,
    at: MonotonicTime,
) -> bool {
    let puts = updates.iter().filter_map(|update| OutboxPut::effect(at, content(update)));
    let mut postings: Vec<OutboxWrite> = puts.map(OutboxWrite::Upload).collect();
    let Ok(note) = serde_json::to_string(kept) else { return false };
    postings.push(OutboxWrite::Metadata(METADATA_KEY, note));
    while !postings.is_empty() {
        let rest = postings.split_off(postings.len().min(MAX_BATCH));
        if let Err(error) = store.post(postings).await {
            // The helper repeats it with the next outcome.
            tracing::warn!(%error, "effect states not queued");
            return false;
        }
        postings = rest;
    }
    true
}

fn content(update: &StatusUpdate) -> EffectContent {
    let Status { version, wanted, state, message, since, .. } = &update.status;
    // An object whose removal waits has no desired version.
    let wanted = wanted.as_ref().or(version.as_ref());
    let version = version.as_deref().map(ResourceVersion::from);
    let state = match state {
        State::Gone => EffectState::Gone,
        State::InEffect => EffectState::InEffect,
        State::NotInEffect => EffectState::NotInEffect,
        State::Conflict => EffectState::Conflict,
        State::Waiting => EffectState::Waiting,
    };
    let mut message = reported_message(&update.status).unwrap_or_else(|| message.clone());
    message.truncate(message.floor_char_boundary(MAX_EFFECT_MESSAGE));
    EffectContent {
        uid: update.uid.as_str().into(),
        object: object_of(&update.status),
        version,
        wanted: ResourceVersion::from(wanted.map(String::as_str).unwrap_or_default()),
        state,
        rule: update.rule.clone(),
        message,
        since: *since,
    }
}

/// Returns reason and end of a wait, in front of its explanation.
fn reported_message(status: &Status) -> Option<String> {
    let reason = status.reason?.name();
    let until = status.until.and_then(|until| Timestamp::from_microsecond(until).ok());
    let until = until.map(|until| format!(" until {until:.0}")).unwrap_or_default();
    Some(format!("{reason}{until}: {}", status.message))
}

fn object_of(status: &Status) -> ObjectRef {
    ObjectRef {
        api_version: status.api_version.as_str().into(),
        kind: status.kind.as_str().into(),
        namespace: status.namespace.as_str().into(),
        name: status.name.as_str().into(),
    }
}

/// Emits Events for new results, except those already emitted. A program reads all files of its
/// rule and may quote any: rules in `quoting` concern sealed kinds, and their messages stay here.
pub(super) fn emit(
    events: &Events,
    (kinds, quoting): (&KindRegistry, &HashSet<&str>),
    lines: &LogThrottle,
    updates: &[StatusUpdate],
    emitted: u64,
) {
    let updates: Vec<&StatusUpdate> = updates.iter().filter(|update| update.status.seq > emitted).collect();
    let in_effect = updates.iter().filter(|update| update.status.state == State::InEffect).count();
    if in_effect > MAX_SINGLE_EVENTS {
        let note = format!("{in_effect} objects in effect");
        events.emit(EventReason::InEffect, Regarding::Node, note);
    }
    for StatusUpdate { uid, rule, status } in updates {
        let why = match status.state {
            State::Gone if status.message.is_empty() => continue,
            // A wait is reported with the status of the object, and is no occasion to act.
            State::Waiting => continue,
            State::InEffect if in_effect > MAX_SINGLE_EVENTS => continue,
            State::InEffect => EventReason::InEffect,
            State::NotInEffect if status.rolled_back => EventReason::RolledBack,
            State::NotInEffect => EventReason::NotInEffect,
            State::Conflict | State::Gone => EventReason::Conflict,
        };
        let object = object_of(status);
        let version = |version: &Option<String>| version.clone().unwrap_or_else(|| "none".to_owned());
        let (wanted, there) = (version(&status.wanted), version(&status.version));
        let detail = match status.state {
            State::InEffect => String::new(),
            // Log and Events have more readers than the object.
            _ if kinds.is_sealed(&object.key()) => ": sealed kind; hint: 'edgesync files' as root".to_owned(),
            _ if quoting.contains(rule.as_str()) => {
                ": output may quote a sealed kind; hint: 'edgesync files' as root".to_owned()
            }
            _ => format!(": {}", status.message),
        };
        let note = match status.state {
            State::InEffect => format!("version {wanted} in effect (rule {rule})"),
            State::Gone => format!("object deleted, files of others kept (rule {rule}){detail}"),
            _ if status.rolled_back => {
                format!("rolled back from version {wanted} to {there} (rule {rule}){detail}")
            }
            _ => format!("version {wanted} not in effect (rule {rule}), current {there}{detail}"),
        };
        if status.state != State::InEffect
            && let Some(LinePermit { suppressed }) = lines.permit_line()
        {
            tracing::warn!(
                rule,
                kind = &*status.kind,
                namespace = &*status.namespace,
                name = &*status.name,
                suppressed,
                "{note}"
            );
        }
        events.emit(why, Regarding::Object(object, uid.as_str().into()), note);
    }
}

/// Emits an Event for a failure that blocks all objects.
pub(super) fn emit_problem(events: &Events, problem: &str) {
    events.emit(EventReason::NotInEffect, Regarding::Node, format!("file rules cannot run: {problem}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_files::WaitReason;

    #[test]
    fn another_database_has_everything_reported_again() {
        let position = ReportPosition { epoch: 7, seq: 3 };
        let mut reported = Reported::default();
        reported.check_epoch(Epoch(1));
        assert!(!reported.restart(), "there were no reports");
        assert_eq!([2, 1, 1].map(|epoch| reported.mark_whole(Epoch(epoch))), [false, true, false]);
        reported.advance(&position);
        assert_eq!(reported.emitted_in(&position), 3);
        assert_eq!(reported.emitted_in(&ReportPosition { epoch: 8, seq: 1 }), 0, "of other records");
        reported.check_epoch(Epoch(2));
        assert!(!reported.is_whole);
        assert_eq!(reported.position, Some(ReportPosition { epoch: 7, seq: 0 }));
        assert_eq!(reported.emitted_in(&position), 3, "Events are not repeated");
    }

    /// The state of such an object was never reported.
    #[test]
    fn long_explanation_of_a_wait_is_cut() {
        for state in [State::Waiting, State::NotInEffect] {
            let reason = (state == State::Waiting).then_some(WaitReason::Condition);
            let message = "\u{e9}".repeat(MAX_EFFECT_MESSAGE / 2);
            let wanted = Some("2".to_owned());
            let kind = "ConfigMap".to_owned();
            let status = Status { kind, wanted, state, message, reason, ..Status::default() };
            let update = StatusUpdate { uid: "u".to_owned(), rule: "web".to_owned(), status };
            assert!(OutboxPut::effect(MonotonicTime::default(), content(&update)).is_some(), "{state:?}");
        }
    }
}
