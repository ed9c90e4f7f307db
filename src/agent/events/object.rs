//! Builds Event objects (`events.k8s.io/v1`): names, references, times. Pure.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::Regarding;
use super::correlate::{EventState, Stamp};
use super::reason::EventReason;
use crate::store::{MonotonicTime, TIME_CORRECTED, event_key};
use edgesync_object::event::{reporting_instance, shorten};
use edgesync_object::name::{MAX_SUBDOMAIN, check_label, check_path_segment, check_uid};
use edgesync_object::time::{rfc3339, rfc3339_micros, signed_seconds};
use edgesync_object::{NodeName, ObjectRef};
use edgesync_protocol::upload::Lane;

/// Maximum bytes of a note.
const MAX_NOTE: usize = 1024;
/// Maximum bytes of kind and `apiVersion` of the regarded object.
const MAX_KIND: usize = 63;
const MAX_API_VERSION: usize = 320;
pub(super) const CONTROLLER: &str = "edgesync.io/agent";
/// Annotation with the note of the last occurrence.
pub(super) const LATEST_NOTE: &str = "edgesync.io/latest-note";
/// Annotation with the number of suppressed occurrences.
pub(super) const SUPPRESSED: &str = "edgesync.io/left-out";
/// Outbox key of the Event about dropped items: at most one is pending.
const OVERFLOW_KEY: &str = "event/outbox-overflow";
/// Maximum number of clock corrections kept.
pub(super) const MAX_CORRECTIONS: usize = 8;

/// An Event to write: as a local object, and as an item of the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) namespace: String,
    pub(super) name: String,
    /// The object as JSON text.
    pub(super) body: String,
    pub(super) lane: Lane,
    /// Key of the outbox item.
    pub(super) key: String,
    /// Time of the first occurrence.
    pub(super) at: MonotonicTime,
}

/// Names derived from the node's name.
#[derive(Debug)]
pub(super) struct Names {
    node: NodeName,
    prefix: String,
    instance: String,
}

impl Names {
    pub(super) fn new(node: &NodeName) -> Self {
        Self {
            node: node.clone(),
            prefix: shorten(node, MAX_SUBDOMAIN - ".0123456789abcdef".len()),
            instance: reporting_instance(node),
        }
    }

    /// Returns the name of an Event: the node's, and sixteen digits.
    fn event(&self, id: u128) -> String {
        // The low half of a random UUID has 62 random bits.
        let low = id & u128::from(u64::MAX);
        format!("{}.{low:016x}", self.prefix)
    }
}

/// Truncates a note to the limit.
pub(super) fn truncate(mut note: String) -> String {
    const MARK: &str = "…";
    if note.len() > MAX_NOTE {
        note.truncate(note.floor_char_boundary(MAX_NOTE - MARK.len()));
        note.push_str(MARK);
    }
    note
}

/// Validates the regarded object. An invalid one is replaced by the node, because the API would
/// refuse the Event.
pub(super) fn validated(regarding: Regarding) -> Regarding {
    match regarding {
        Regarding::Object(object, uid)
            if is_valid(&object) && (uid.is_empty() || check_uid(&uid).is_ok()) =>
        {
            Regarding::Object(object, uid)
        }
        _ => Regarding::Node,
    }
}

fn is_valid(object: &ObjectRef) -> bool {
    (object.namespace.is_empty() || check_label(&object.namespace).is_ok())
        && check_path_segment(&object.name).is_ok()
        && (1..=MAX_KIND).contains(&object.kind.len())
        && (1..=MAX_API_VERSION).contains(&object.api_version.len())
}

/// A correction of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockSet {
    /// Times of this boot before that are off.
    pub(super) before: MonotonicTime,
    pub(super) forward_ms: i64,
    /// A later time, which is right.
    pub(super) now: Stamp,
}

impl ClockSet {
    /// Returns whether a time is of the clock before the correction. Times between the correction
    /// and its detection are already right: the difference of both clocks shows it.
    fn affects(&self, stamp: Stamp) -> bool {
        let ahead = |stamp: Stamp| {
            let since_boot = i64::try_from(stamp.at.since_boot).unwrap_or(i64::MAX);
            stamp.wall.as_millisecond().saturating_sub(since_boot)
        };
        let by_new = ahead(self.now).abs_diff(ahead(stamp));
        let by_old = ahead(self.now).saturating_sub(self.forward_ms).abs_diff(ahead(stamp));
        stamp.at.boot == self.before.boot && stamp.at.since_boot < self.before.since_boot && by_old < by_new
    }
}

/// Known corrections of the clock.
#[derive(Debug, Default)]
pub(super) struct Corrections(Vec<ClockSet>);

impl Corrections {
    pub(super) fn add(&mut self, set: ClockSet) {
        if self.0.len() >= MAX_CORRECTIONS {
            self.0.remove(0);
        }
        self.0.push(set);
    }

    /// Returns the corrected time, and its difference in milliseconds.
    fn corrected(&self, stamp: Stamp) -> (Timestamp, i64) {
        let mut right = stamp;
        for set in self.0.iter().filter(|set| set.before.boot == stamp.at.boot) {
            if set.affects(right) {
                let forward = SignedDuration::from_millis(set.forward_ms);
                right.wall = right.wall.checked_add(forward).unwrap_or(right.wall);
            }
        }
        (right.wall, right.wall.duration_since(stamp.wall).as_millis().try_into().unwrap_or(i64::MAX))
    }
}

/// Builds the object of an Event, with corrected times.
pub(super) fn record(state: &EventState, names: &Names, corrections: &Corrections) -> Record {
    let (about, namespace) = reference(&state.regarding, &names.node);
    let name = names.event(state.id);
    let (first, forward_ms) = corrections.corrected(state.first);
    let mut metadata = json!({
        "name": name,
        "namespace": namespace,
        "uid": Uuid::from_u128(state.id).to_string(),
        "creationTimestamp": rfc3339(first),
    });
    let annotations = annotations(state, forward_ms);
    if !annotations.is_empty() {
        metadata["annotations"] = Value::Object(annotations);
    }
    let mut event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": metadata,
        "eventTime": rfc3339_micros(first),
        "reportingController": CONTROLLER,
        "reportingInstance": names.instance,
        "action": state.reason.action(),
        "reason": state.reason.name(),
        "regarding": about,
        "note": &*state.note,
        "type": state.reason.kind().name(),
    });
    if state.count > 1 {
        let count = i32::try_from(state.count).unwrap_or(i32::MAX);
        let (last, _) = corrections.corrected(state.last);
        event["series"] = json!({ "count": count, "lastObservedTime": rfc3339_micros(last) });
    }
    let (lane, key) = match state.reason {
        EventReason::OutboxOverflow => (Lane::Status, OVERFLOW_KEY.to_owned()),
        _ => (Lane::Events, event_key(namespace, &name)),
    };
    let (body, namespace) = (event.to_string(), namespace.to_owned());
    Record { namespace, name, body, lane, key, at: state.first.at }
}

fn annotations(state: &EventState, forward_ms: i64) -> Map<String, Value> {
    let mut annotations = Map::new();
    if let Some(latest) = &state.latest {
        annotations.insert(LATEST_NOTE.to_owned(), Value::from(&**latest));
    }
    if state.suppressed > 0 {
        annotations.insert(SUPPRESSED.to_owned(), state.suppressed.to_string().into());
    }
    if forward_ms != 0 {
        annotations.insert(TIME_CORRECTED.to_owned(), signed_seconds(forward_ms).into());
    }
    annotations
}

/// Returns the ObjectReference, and the namespace of the Event.
fn reference<'a>(regarding: &'a Regarding, node: &NodeName) -> (Value, &'a str) {
    let Regarding::Object(object, uid) = regarding else {
        // Like the kubelet, which does not know its Node's UID when it starts.
        let about = json!({ "apiVersion": "v1", "kind": "Node", "name": node, "uid": node });
        return (about, "default");
    };
    let mut about = json!({
        "apiVersion": &*object.api_version,
        "kind": &*object.kind,
        "name": &*object.name,
    });
    if !uid.is_empty() {
        about["uid"] = Value::from(&**uid);
    }
    if object.namespace.is_empty() {
        return (about, "default");
    }
    about["namespace"] = Value::from(&*object.namespace);
    (about, &object.namespace)
}

#[cfg(test)]
mod tests;
