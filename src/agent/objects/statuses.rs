//! The status of synced objects as local programs have written it. It waits in the outbox for the
//! cloud, and reads overlay it on the stored object; the row stays unchanged.
//!
//! Once the cloud has accepted a status, the outbox no longer has it, but the object's version with
//! it is still in flight. Until then the status stays in memory: a patch computed from the older
//! one would revert it. `managedFields` are kept in the same way, because the cloud's versions do
//! not carry them.
//!
//! Depends only on the outbox's state.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::watch;

use crate::store::{MAX_UPLOAD_BYTES, OutboxState};
use edgesync_api::Stored;
use edgesync_object::status::Result;
use edgesync_object::{
    Object, ObjectRef, Resource, Status, member, too_deep, with_managed_fields, with_status,
};
use edgesync_protocol::change::Uid;
use edgesync_protocol::upload::{Content, StatusContent};

/// Maximum number of objects whose status is written concurrently.
const LOCKS: usize = 16;
/// Maximum bytes kept in memory.
const RECENT_BYTES: usize = 128 << 10;
/// Bytes of an entry beside its texts.
const ENTRY_BYTES: usize = 200;
/// Time for which an accepted status is served, if no version of the object follows. None follows
/// if the cloud has refused it.
const RETENTION: Duration = Duration::from_secs(30);

/// A status to write.
#[derive(Debug)]
pub(super) struct Change {
    /// The status as JSON text.
    pub(super) status: String,
    /// `managedFields` of the status, as JSON text.
    pub(super) managers: Option<String>,
    /// Whether it differs from the previous one.
    pub(super) is_changed: bool,
}

impl Change {
    /// Returns the status of `object`, which was computed from `old`.
    pub(super) fn new(object: &Object, old: &Stored) -> Result<Self> {
        let empty = Value::Object(serde_json::Map::new());
        let status = object.fields().get("status").unwrap_or(&empty);
        let before = member(&old.json, &["status"]).map(serde_json::from_str::<Value>);
        let is_changed = match before {
            Some(before) => before.map_err(Status::internal)? != *status,
            None => object.fields().contains_key("status"),
        };
        let of_status = |entry: &&Value| entry.get("subresource").is_some_and(|name| name == "status");
        let managers = object.metadata().and_then(|metadata| metadata.get("managedFields"));
        let managers = managers.and_then(Value::as_array).into_iter().flatten().filter(of_status);
        let managers: Vec<&Value> = managers.collect();
        let managers = (!managers.is_empty()).then(|| serde_json::to_string(&managers)).transpose();
        Ok(Self {
            status: serde_json::to_string(status).map_err(Status::internal)?,
            managers: managers.map_err(Status::internal)?,
            is_changed,
        })
    }

    /// Returns the content for the outbox.
    pub(super) fn content(&self, resource: &Resource, uid: &Uid, object: &Stored) -> Result<String> {
        let status: &RawValue = serde_json::from_str(&self.status).map_err(Status::internal)?;
        let about = ObjectRef {
            api_version: resource.api_version().into(),
            kind: resource.kind.as_str().into(),
            namespace: object.namespace.as_str().into(),
            name: object.name.as_str().into(),
        };
        let content = Content::Status(StatusContent { uid: uid.clone(), object: about, status });
        let content = serde_json::to_string(&content).map_err(Status::internal)?;
        if content.len() > MAX_UPLOAD_BYTES {
            return Err(Status::too_large(MAX_UPLOAD_BYTES));
        }
        if too_deep(&content) {
            return Err(Status::bad_request("the status is nested too deeply"));
        }
        Ok(content)
    }
}

/// Locally written statuses: those in the outbox, and recent ones in memory.
#[derive(Debug)]
pub(super) struct Statuses {
    outbox: watch::Receiver<OutboxState>,
    recent: Mutex<Recent>,
    hasher: RandomState,
    locks: [tokio::sync::Mutex<()>; LOCKS],
}

impl Statuses {
    pub(super) fn new(outbox: watch::Receiver<OutboxState>) -> Self {
        let locks = std::array::from_fn(|_| tokio::sync::Mutex::new(()));
        Self { outbox, recent: Mutex::default(), hasher: RandomState::new(), locks }
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the outbox may hold a status.
    pub(super) fn may_wait(&self) -> bool {
        self.outbox.borrow().marks.rows.status > 0
    }

    /// Locks the status of an object. Objects with the same hash share a lock.
    pub(super) async fn lock(&self, uid: &str) -> tokio::sync::MutexGuard<'_, ()> {
        let hash = self.hasher.hash_one(uid);
        let at = usize::try_from(hash % LOCKS as u64).unwrap_or_default();
        // The index is below the length.
        let [first, ..] = &self.locks;
        self.locks.get(at).unwrap_or(first).lock().await
    }

    /// Returns the object as clients see it. `waiting` is the status pending in the outbox.
    pub(super) fn show(&self, uid: &str, object: Stored, waiting: Option<&str>, now: Instant) -> Stored {
        let waiting = waiting.and_then(|content| member(content, &["status", "status"]));
        self.recent().show(uid, object, waiting, now)
    }

    /// Records a status written over a version of an object, once it is in the outbox.
    pub(super) fn note(&self, uid: &Uid, version: u64, change: Change) {
        self.recent().note(uid.clone(), version, change);
    }

    /// Removes the state of an object before its status is written again: the write may never
    /// report back.
    pub(super) fn forget(&self, uid: &str) {
        self.recent().remove(uid);
    }

    /// Releases memory of statuses that no read needs.
    pub(super) fn tidy(&self, now: Instant) {
        if !self.may_wait() {
            self.recent().settle(now);
        }
    }
}

/// Recently written statuses, up to [`RECENT_BYTES`].
#[derive(Debug, Default)]
struct Recent {
    entries: HashMap<Uid, Entry>,
    bytes: usize,
    /// Number of recorded statuses.
    count: u64,
}

#[derive(Debug)]
struct Entry {
    /// Its position in the order of recording.
    number: u64,
    /// The object's version when the status was last seen in the outbox.
    version: u64,
    /// JSON text; `None` once the object includes the status.
    status: Option<String>,
    managers: Option<String>,
    /// When it was first seen to have left the outbox.
    settled: Option<Instant>,
}

impl Entry {
    fn bytes(&self) -> usize {
        let texts = [&self.status, &self.managers];
        ENTRY_BYTES + texts.into_iter().flatten().map(String::len).sum::<usize>()
    }

    /// Returns whether to overlay the status on this version although it has left the outbox.
    fn lingers(&mut self, version: u64, now: Instant) -> bool {
        let since = *self.settled.get_or_insert(now);
        version == self.version && now.saturating_duration_since(since) < RETENTION
    }
}

impl Recent {
    fn note(&mut self, uid: Uid, version: u64, change: Change) {
        self.remove(&uid);
        self.count += 1;
        let Change { status, managers, .. } = change;
        let entry = Entry { number: self.count, version, status: Some(status), managers, settled: None };
        self.bytes += entry.bytes();
        self.entries.insert(uid, entry);
        while self.bytes > RECENT_BYTES {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.number);
            let Some(oldest) = oldest.map(|(uid, _)| uid.clone()) else { break };
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, uid: &str) {
        if let Some(entry) = self.entries.remove(uid) {
            self.bytes = self.bytes.saturating_sub(entry.bytes());
        }
    }

    fn show(&mut self, uid: &str, mut object: Stored, waiting: Option<&str>, now: Instant) -> Stored {
        let mut status = waiting;
        let Some(entry) = self.entries.get_mut(uid) else {
            return match status {
                Some(status) => Stored { json: with_status(&object.json, status), ..object },
                None => object,
            };
        };
        // Objects rarely carry managed fields; the cloud's own take precedence.
        let recorded = || member(&object.json, &["metadata", "managedFields"]).is_some();
        if let Some(managers) = entry.managers.as_ref().filter(|_| !recorded()) {
            object.json = with_managed_fields(&object.json, managers);
        }
        if waiting.is_some() {
            (entry.version, entry.settled) = (entry.version.max(object.version), None);
        } else if entry.status.is_some() && entry.lingers(object.version, now) {
            status = entry.status.as_deref();
        }
        if let Some(status) = status {
            object.json = with_status(&object.json, status);
        }
        self.drop_outdated(uid, object.version, now);
        object
    }

    /// Drops a status that a newer version of the object has replaced, or whose time is over.
    fn drop_outdated(&mut self, uid: &str, version: u64, now: Instant) {
        let Some(entry) = self.entries.get_mut(uid) else { return };
        let Some(since) = entry.settled else { return };
        if version <= entry.version && now.saturating_duration_since(since) < RETENTION {
            return;
        }
        let freed = entry.status.take().map_or(0, |status| status.len());
        let is_empty = entry.managers.is_none();
        self.bytes = self.bytes.saturating_sub(freed);
        if is_empty {
            self.remove(uid);
        }
    }

    /// Drops what is outdated. Called while the outbox holds no status.
    fn settle(&mut self, now: Instant) {
        let uids: Vec<Uid> = self.entries.keys().cloned().collect();
        for uid in uids {
            if let Some(entry) = self.entries.get_mut(&uid).filter(|entry| entry.status.is_some()) {
                entry.settled.get_or_insert(now);
                self.drop_outdated(&uid, 0, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(version: u64, status: Value) -> Stored {
        let mut value = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"a": 1},
            "metadata": {"name": "p", "uid": "u"}});
        value["status"] = status;
        Stored { namespace: "ns".into(), name: "p".into(), version, json: value.to_string() }
    }

    fn change(status: &Value, managers: Option<&str>) -> Change {
        Change { status: status.to_string(), managers: managers.map(str::to_owned), is_changed: true }
    }

    fn uid(name: &str) -> Uid {
        name.into()
    }

    fn status_of(object: &Stored) -> Value {
        serde_json::from_str(member(&object.json, &["status"]).unwrap()).unwrap()
    }

    const CLOUD: &str = "what the cloud has";

    #[test]
    fn a_status_is_shown_until_a_version_includes_it() {
        let (mut recent, start) = (Recent::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        recent.note(uid("u"), 5, change(&json!("mine"), None));
        let mut shown = |version, waiting: Option<&str>, seconds| {
            status_of(&recent.show("u", object(version, json!(CLOUD)), waiting, after(seconds)))
        };
        assert_eq!(shown(5, Some("\"mine\""), 0), "mine", "it waits");
        assert_eq!(shown(6, Some("\"mine\""), 1000), "mine", "it waits, and the spec has changed");
        assert_eq!(shown(6, None, 1001), "mine", "confirmed, and the version is on its way");
        assert_eq!(shown(5, None, 1001), CLOUD, "an older list shows what there was");
        assert_eq!(shown(6, None, 1002), "mine");
        assert_eq!(shown(7, None, 1003), CLOUD, "the version has come");
        assert_eq!(shown(6, None, 1003), CLOUD, "and all is forgotten");
        assert!(recent.entries.is_empty() && recent.bytes == 0);
    }

    #[test]
    fn a_status_without_a_new_version_expires() {
        let (mut recent, start) = (Recent::default(), Instant::now());
        recent.note(uid("u"), 5, change(&json!("refused"), Some("[1]")));
        let late = start + Duration::from_secs(86_400);
        assert_eq!(status_of(&recent.show("u", object(5, json!(CLOUD)), None, late)), "refused");
        let shown = recent.show("u", object(5, json!(CLOUD)), None, late + RETENTION);
        assert_eq!(status_of(&shown), CLOUD);
        assert_eq!(
            member(&shown.json, &["metadata", "managedFields"]),
            Some("[1]"),
            "who applies is known on"
        );
        assert_eq!(recent.bytes, ENTRY_BYTES + 3);

        recent.note(uid("v"), 5, change(&json!("unread"), None));
        recent.settle(late);
        assert_eq!(recent.entries.len(), 2);
        recent.settle(late + RETENTION);
        assert_eq!(recent.entries.len(), 1);
    }

    #[test]
    fn a_pending_status_is_shown_without_memory() {
        let mut recent = Recent::default();
        let shown = recent.show("u", object(5, json!(CLOUD)), Some("{\"a\":1}"), Instant::now());
        assert_eq!(status_of(&shown), json!({"a": 1}));
        assert_eq!(recent.show("u", object(5, json!(CLOUD)), None, Instant::now()), object(5, json!(CLOUD)));
    }

    #[test]
    fn memory_is_limited_and_evicts_the_oldest() {
        let mut recent = Recent::default();
        for number in 0..100 {
            recent.note(uid(&format!("u-{number}")), 5, change(&json!("x".repeat(4000)), None));
            recent.note(uid("again"), 5, change(&json!("x"), None));
            assert!(recent.bytes <= RECENT_BYTES);
        }
        assert_eq!(recent.bytes, recent.entries.values().map(Entry::bytes).sum::<usize>());
        assert!(recent.entries.contains_key("again") && recent.entries.contains_key("u-99"));
        assert!(!recent.entries.contains_key("u-0") && recent.entries.len() > 20);
        recent.note(uid("huge"), 5, change(&json!("x".repeat(RECENT_BYTES)), None));
        assert!(recent.entries.is_empty() && recent.bytes == 0);
    }

    #[test]
    fn a_change_has_only_the_status_and_its_managers() {
        let managed = |subresource: &str| json!({"manager": "m", "subresource": subresource});
        let sent = json!({"spec": {"a": 2}, "status": {"phase": "Running"},
            "metadata": {"managedFields": [managed(""), managed("status"), 7]}});
        let sent: Object = serde_json::from_value(sent).unwrap();
        let change = Change::new(&sent, &object(5, json!({"phase": "Pending"}))).unwrap();
        assert_eq!((&*change.status, change.is_changed), (r#"{"phase":"Running"}"#, true));
        assert_eq!(change.managers, Some(json!([managed("status")]).to_string()));
        assert!(!Change::new(&sent, &object(5, json!({"phase": "Running"}))).unwrap().is_changed);

        let none = Change::new(&Object::default(), &object(5, json!({"phase": "Running"}))).unwrap();
        assert_eq!((&*none.status, none.is_changed, none.managers), ("{}", true, None));
        let bare = Stored { json: r#"{"kind":"Pod"}"#.into(), ..object(5, json!(0)) };
        assert!(!Change::new(&Object::default(), &bare).unwrap().is_changed);
        assert!(Change::new(&sent, &bare).unwrap().is_changed);
    }

    #[test]
    fn the_item_names_the_object_and_has_limits() {
        let pods = edgesync_object::kinds::by_word("pods").unwrap().resource();
        let content = |status: &Value| change(status, None).content(&pods, &uid("u-1"), &object(5, json!(0)));
        let expected = json!({"status": {"uid": "u-1", "status": {"phase": "Running"},
            "object": {"apiVersion": "v1", "kind": "Pod", "namespace": "ns", "name": "p"}}});
        let text = content(&json!({"phase": "Running"})).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
        assert_eq!(member(&text, &["status", "status"]), Some(r#"{"phase":"Running"}"#));
        assert_eq!(content(&json!("x".repeat(MAX_UPLOAD_BYTES))).unwrap_err().code, 413);
        let deep = (0..200).fold(json!(1), |inner, _| json!([inner]));
        assert_eq!(content(&deep).unwrap_err().code, 400);
    }
}
