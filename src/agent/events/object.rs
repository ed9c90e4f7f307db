//! Events as objects (`events.k8s.io/v1`): names, references, times. Pure.

use std::hash::Hasher as _;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};
use siphasher::sip::SipHasher13;
use uuid::Uuid;

use super::Regarding;
use super::correlate::{Stamp, Told};
use super::why::Why;
use crate::store::{Clocked, TIME_CORRECTED, event_key};
use edgesync_object::ObjectRef;
use edgesync_object::name::{MAX_SUBDOMAIN, check_label, check_path_segment, check_uid};
use edgesync_object::time::{rfc3339, rfc3339_micros, signed_seconds};
use edgesync_protocol::upload::Lane;

/// The longest note, in bytes.
const MAX_NOTE: usize = 1024;
/// The longest instance, in characters.
const MAX_INSTANCE: usize = 128;
/// The longest kind and `apiVersion` of what an Event is about, in bytes.
const MAX_KIND: usize = 63;
const MAX_API_VERSION: usize = 320;
/// Who makes the Events.
pub(super) const CONTROLLER: &str = "edgesync.io/agent";
/// The annotation with the note of the last occurrence.
pub(super) const LATEST_NOTE: &str = "edgesync.io/latest-note";
/// The annotation with the number of occurrences that are left out.
pub(super) const LEFT_OUT: &str = "edgesync.io/left-out";
/// The key of the Event that items of the outbox were dropped: at most one waits.
const OVERFLOW_KEY: &str = "event/outbox-overflow";
/// The most corrections of the clock that are known.
pub(super) const MAX_CORRECTIONS: usize = 8;

/// An Event that is to be written: as a local object, and as an item of the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) namespace: String,
    pub(super) name: String,
    /// The object as JSON text.
    pub(super) body: String,
    pub(super) lane: Lane,
    /// The key of the item.
    pub(super) key: String,
    /// When it occurred first.
    pub(super) at: Clocked,
}

/// The names that a node gives.
#[derive(Debug)]
pub(super) struct Names {
    node: String,
    prefix: String,
    instance: String,
}

impl Names {
    pub(super) fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            prefix: shorten(node, MAX_SUBDOMAIN - ".0123456789abcdef".len()),
            instance: shorten(node, MAX_INSTANCE),
        }
    }

    /// The name of an Event: the node's, and sixteen digits.
    fn event(&self, id: u128) -> String {
        // The low half of a random UUID: 62 random bits.
        let low = id & u128::from(u64::MAX);
        format!("{}.{low:016x}", self.prefix)
    }
}

/// A name that is too long ends in a hash of the whole.
fn shorten(name: &str, max: usize) -> String {
    if name.len() <= max {
        return name.to_owned();
    }
    let mut hasher = SipHasher13::new();
    hasher.write(name.as_bytes());
    let head = &name[..name.floor_char_boundary(max.saturating_sub(9))];
    format!("{}-{:08x}", head.trim_end_matches(['.', '-']), hasher.finish() >> 32)
}

/// A note that is not too long.
pub(super) fn cut(mut note: String) -> String {
    const MARK: &str = "…";
    if note.len() > MAX_NOTE {
        note.truncate(note.floor_char_boundary(MAX_NOTE - MARK.len()));
        note.push_str(MARK);
    }
    note
}

/// What an Event can be about: an object whose names cannot be those of an object stands for the node, because the
/// Event would be refused.
pub(super) fn sound(regarding: Regarding) -> Regarding {
    match regarding {
        Regarding::Object(object, uid)
            if is_sound(&object) && (uid.is_empty() || check_uid(&uid).is_ok()) =>
        {
            Regarding::Object(object, uid)
        }
        _ => Regarding::Node,
    }
}

fn is_sound(object: &ObjectRef) -> bool {
    (object.namespace.is_empty() || check_label(&object.namespace).is_ok())
        && check_path_segment(&object.name).is_ok()
        && (1..=MAX_KIND).contains(&object.kind.len())
        && (1..=MAX_API_VERSION).contains(&object.api_version.len())
}

/// The wall clock was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockSet {
    /// Times of this boot before that are off.
    pub(super) before: Clocked,
    /// By so many milliseconds.
    pub(super) forward_ms: i64,
    /// A time after that, which is right.
    pub(super) now: Stamp,
}

impl ClockSet {
    /// Whether a time was told by the clock as it was. Between the moment when it was set and the one when that was
    /// noticed, times are right already: those tell themselves by what is between both clocks.
    fn concerns(&self, stamp: Stamp) -> bool {
        let ahead = |stamp: Stamp| {
            let since_boot = i64::try_from(stamp.at.since_boot).unwrap_or(i64::MAX);
            stamp.wall.as_millisecond().saturating_sub(since_boot)
        };
        let by_new = ahead(self.now).abs_diff(ahead(stamp));
        let by_old = ahead(self.now).saturating_sub(self.forward_ms).abs_diff(ahead(stamp));
        stamp.at.boot == self.before.boot && stamp.at.since_boot < self.before.since_boot && by_old < by_new
    }
}

/// What is known of times that are off.
#[derive(Debug, Default)]
pub(super) struct Corrections(Vec<ClockSet>);

impl Corrections {
    pub(super) fn add(&mut self, set: ClockSet) {
        if self.0.len() >= MAX_CORRECTIONS {
            self.0.remove(0);
        }
        self.0.push(set);
    }

    /// The right time, and by how many milliseconds it differs.
    fn corrected(&self, stamp: Stamp) -> (Timestamp, i64) {
        let mut right = stamp;
        for set in self.0.iter().filter(|set| set.before.boot == stamp.at.boot) {
            if set.concerns(right) {
                let forward = SignedDuration::from_millis(set.forward_ms);
                right.wall = right.wall.checked_add(forward).unwrap_or(right.wall);
            }
        }
        (right.wall, right.wall.duration_since(stamp.wall).as_millis().try_into().unwrap_or(i64::MAX))
    }
}

/// Makes the object.
pub(super) fn record(told: &Told, names: &Names, corrections: &Corrections) -> Record {
    let (about, namespace) = reference(&told.regarding, &names.node);
    let name = names.event(told.id);
    let (first, forward_ms) = corrections.corrected(told.first);
    let mut metadata = json!({
        "name": name,
        "namespace": namespace,
        "uid": Uuid::from_u128(told.id).to_string(),
        "creationTimestamp": rfc3339(first),
    });
    let annotations = annotations(told, forward_ms);
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
        "action": told.why.action(),
        "reason": told.why.reason(),
        "regarding": about,
        "note": &*told.note,
        "type": told.why.kind().name(),
    });
    if told.count > 1 {
        let count = i32::try_from(told.count).unwrap_or(i32::MAX);
        let (last, _) = corrections.corrected(told.last);
        event["series"] = json!({ "count": count, "lastObservedTime": rfc3339_micros(last) });
    }
    let (lane, key) = match told.why {
        Why::OutboxOverflow => (Lane::Status, OVERFLOW_KEY.to_owned()),
        _ => (Lane::Events, event_key(namespace, &name)),
    };
    let (body, namespace) = (event.to_string(), namespace.to_owned());
    Record { namespace, name, body, lane, key, at: told.first.at }
}

fn annotations(told: &Told, forward_ms: i64) -> Map<String, Value> {
    let mut annotations = Map::new();
    if let Some(latest) = &told.latest {
        annotations.insert(LATEST_NOTE.to_owned(), Value::from(&**latest));
    }
    if told.left_out > 0 {
        annotations.insert(LEFT_OUT.to_owned(), told.left_out.to_string().into());
    }
    if forward_ms != 0 {
        annotations.insert(TIME_CORRECTED.to_owned(), signed_seconds(forward_ms).into());
    }
    annotations
}

/// The ObjectReference, and the namespace of the Event.
fn reference<'a>(regarding: &'a Regarding, node: &'a str) -> (Value, &'a str) {
    let Regarding::Object(object, uid) = regarding else {
        // As the kubelet does: at its start it does not know the UID of its Node.
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
