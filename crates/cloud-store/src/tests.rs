//! Guarantees of the cloud's store, over real files.

use super::*;
use edgesync_object::objectsync::OBJECT_SYNC;
use edgesync_object::{LAST_APPLIED, ObjectRef, ObjectSync, OmittedFields, Scope, kinds};
use edgesync_placement::{ObjectMatch, Selection, Summary};
use edgesync_protocol::digest::Epoch;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

mod documents;
mod expiry;
mod feed;
mod fleet;
mod in_effect;
mod leases;
mod records;
mod rollouts;
mod upload;

/// A store in a temporary directory.
pub(super) struct Fixture {
    pub(super) store: CloudStore,
    pub(super) path: PathBuf,
    dir: tempfile::TempDir,
}

pub(super) fn fixture() -> Fixture {
    fixture_with(&CloudOptions::default())
}

fn fixture_with(options: &CloudOptions) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cloud.db");
    Fixture { store: CloudStore::open(&path, options).unwrap(), path, dir }
}

impl Fixture {
    /// Closes and reopens the store.
    pub(super) async fn reopen(self) -> Self {
        self.store.close().await;
        let store = CloudStore::open(&self.path, &CloudOptions::default()).unwrap();
        Self { store, ..self }
    }

    /// Opens a copy of the store as a crash at this moment would leave it, beside the running one.
    pub(super) fn after_crash(&self) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cloud.db");
        for part in ["", "-wal"] {
            let from = edgesync_store::durable::with_suffix(&self.path, part);
            std::fs::copy(from, edgesync_store::durable::with_suffix(&path, part)).unwrap();
        }
        Self { store: CloudStore::open(&path, &CloudOptions::default()).unwrap(), path, dir }
    }
}

/// Time at which these tests remove nodes.
const REMOVED: &str = "2026-01-02T03:04:05Z";

/// Removes a node as enrollment does. Returns whether it was not removed before.
pub(super) async fn remove_node(store: &CloudStore, node: &str) -> Result<bool, CloudError> {
    let member = json!({ "labels": {}, "removed": REMOVED });
    put_member(store, node, member, NodeEffect::Delete(node_name(node))).await
}

/// Admits a removed node again. Returns whether it was removed.
pub(super) async fn admit_node(store: &CloudStore, node: &str) -> Result<bool, CloudError> {
    put_member(store, node, json!({ "labels": {} }), NodeEffect::None).await
}

/// Writes a member, unless it is equal already. Returns whether it was written.
async fn put_member(
    store: &CloudStore,
    node: &str,
    member: Value,
    effect: NodeEffect,
) -> Result<bool, CloudError> {
    let (text, before) = (member.to_string(), store.document("member", node).await?);
    if before.as_ref().is_some_and(|before| before.text == text) {
        return Ok(false);
    }
    let version = before.map_or(0, |before| before.version);
    let (id, node) = (node.to_owned(), Some(node_name(node)));
    let member = Document { kind: "member", id, node, version, text };
    Ok(store.put_document(member, effect).await?.is_some())
}

/// Records all notifications of an observer: the changes since it began, and the newest version
/// after each commit.
#[derive(Default)]
pub(super) struct ObservedCommits(std::sync::Mutex<(Vec<(ChangeKind, String)>, u64)>);

impl ObservedCommits {
    pub(super) fn changes(&self) -> Vec<(ChangeKind, String)> {
        self.0.lock().unwrap().0.clone()
    }

    pub(super) fn version(&self) -> u64 {
        self.0.lock().unwrap().1
    }
}

impl CommitListener for ObservedCommits {
    fn begin(&self, version: u64) {
        *self.0.lock().unwrap() = (Vec::new(), version);
    }

    fn attend(&self, _: u64) {}

    fn wants(&self, _: &KindName) -> bool {
        true
    }

    fn committed(&self, changes: Vec<WatchChange>, version: u64) {
        let mut told = self.0.lock().unwrap();
        told.0.extend(changes.into_iter().map(|change| (change.kind, change.name)));
        told.1 = version;
    }

    fn closed(&self) {}
}

pub(super) fn kind(word: &str) -> Resource {
    kinds::by_word(word).unwrap().resource()
}

fn node_name(name: &str) -> NodeName {
    NodeName::parse(name).unwrap()
}

fn config_map(name: &str, data: &Value) -> Object {
    let value = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "lab"}, "data": data});
    serde_json::from_value(value).unwrap()
}

fn object(stored: &Stored) -> Object {
    Object::parse(&stored.body).unwrap()
}

pub(super) async fn create(store: &CloudStore, name: &str) -> Stored {
    store.create(&kind("cm"), config_map(name, &json!({}))).await.unwrap()
}

/// Changes the content of a ConfigMap.
pub(super) async fn change(store: &CloudStore, name: &str, data: Value) -> Stored {
    let old = store.get(kind("cm").key("lab", name)).await.unwrap();
    let mut changed = object(&old);
    changed.fields_mut().insert("data".into(), data);
    store.update(&kind("cm"), changed, old.version).await.unwrap()
}

pub(super) async fn delete(store: &CloudStore, name: &str) -> Result<Stored, CloudError> {
    store.delete(&kind("cm"), "lab", name, None).await
}

/// Returns all objects of a kind.
async fn all(store: &CloudStore, word: &str) -> Vec<Stored> {
    let kind = kind(word);
    let of = KindName { group: kind.group.clone(), kind: kind.kind.clone() };
    let scan = Scan { of, limit: usize::MAX, ..Scan::default() };
    let name = |listed: Listed| Some((listed.namespace, listed.name));
    let names = store.snapshot().await.unwrap().scan(scan, name).await.unwrap().0;
    let mut all = Vec::new();
    for (namespace, name) in names {
        all.push(store.get(kind.key(&namespace, &name)).await.unwrap());
    }
    all
}

/// Returns the changes of all kinds used in these tests.
async fn history(store: &CloudStore, after: u64) -> Result<Vec<WatchChange>, CloudError> {
    let words =
        ["cm", "secrets", "ns", "pods", "deploy", "nodes", "leases", "events", "events.events.k8s.io"];
    let mut changes = Vec::new();
    for word in words.into_iter().chain(["objectsyncs", "clusterobjectsyncs"]) {
        let query = HistoryQuery { after, of: name_of(word), limit: 100, bytes: usize::MAX };
        changes.extend(store.history(query).await?.changes);
    }
    changes.sort_by_key(|change| change.version);
    Ok(changes)
}

fn name_of(word: &str) -> KindName {
    let resource = kind(word);
    KindName { group: resource.group.clone(), kind: resource.kind.clone() }
}

#[tokio::test]
async fn no_snapshot_is_newer_than_the_version_of_the_store() {
    let fixture = fixture();
    let known = create(&fixture.store, "a").await.version;
    // A commit of another connection is one that the store has not published.
    let conn = rusqlite::Connection::open(&fixture.path).unwrap();
    assert_eq!(conn.execute("UPDATE meta SET last_version = ?1", [known + 1]).unwrap(), 1);
    let snapshot = fixture.store.snapshot().await.unwrap();
    assert_eq!((snapshot.version(), fixture.store.version()), (known + 1, known + 1));
}

#[tokio::test]
async fn a_new_object_gets_what_it_lacks() {
    let fixture = fixture();
    let mut given = config_map("a", &json!({"k": "v"}));
    given.set_metadata("resourceVersion", "7");
    let stored = fixture.store.create(&kind("cm"), given).await.unwrap();
    let object = object(&stored);
    assert!(uuid::Uuid::parse_str(object.uid()).is_ok());
    assert_eq!(object.resource_version(), stored.version.to_string());
    assert_eq!(object.generation(), 1);
    let created: jiff::Timestamp = object.creation_timestamp().parse().unwrap();
    assert_eq!(object.creation_timestamp().len(), "2026-11-21T01:45:34Z".len());
    assert!(jiff::Timestamp::now().duration_since(created).as_secs() < 60);
    assert_eq!(fixture.store.get(kind("cm").key("lab", "a")).await.unwrap(), stored);
}

#[tokio::test]
async fn a_taken_name_is_refused_and_costs_no_version() {
    let Fixture { store, .. } = &fixture();
    let first = create(store, "a").await;
    let again = store.create(&kind("cm"), config_map("a", &json!({}))).await;
    assert!(matches!(again, Err(CloudError::AlreadyExists { .. })), "{again:?}");
    assert_eq!(again.unwrap_err().to_string(), "ConfigMap 'lab/a' already exists");
    assert_eq!(create(store, "b").await.version, first.version + 1);
}

#[tokio::test]
async fn updating_by_the_same_changes_nothing() {
    let Fixture { store, .. } = &fixture();
    let stored = create(store, "a").await;
    assert_eq!(change(store, "a", json!({})).await, stored);
    assert_eq!(store.version(), stored.version);
}

#[tokio::test]
async fn an_update_must_be_of_the_version_uid_and_name_it_speaks_of() {
    let Fixture { store, .. } = &fixture();
    let stored = create(store, "a").await;
    let with = |field: &str, value: &str| {
        let mut object = object(&stored);
        object.set_metadata("labels", json!({"k": "v"}));
        object.set_metadata(field, value);
        object
    };
    let config_maps = kind("cm");
    let update = |object, expected| store.update(&config_maps, object, expected);
    let old = update(object(&stored), 7).await;
    assert!(
        matches!(old, Err(CloudError::Conflict { given: 7, current, .. }) if current == stored.version),
        "{old:?}"
    );
    assert!(matches!(update(with("uid", "other"), stored.version).await, Err(CloudError::OtherUid { .. })));
    assert!(matches!(update(with("name", "other"), stored.version).await, Err(CloudError::NotFound { .. })));
    assert_eq!(update(with("name", "a"), stored.version).await.unwrap().version, stored.version + 1);
}

#[tokio::test]
async fn a_deletion_has_a_version_and_is_of_the_one_it_speaks_of() {
    let Fixture { store, .. } = &fixture();
    let stored = create(store, "a").await;
    let config_maps = kind("cm");
    let try_delete = |expected| store.delete(&config_maps, "lab", "a", Some(expected));
    assert!(matches!(try_delete(7).await, Err(CloudError::Conflict { given: 7, .. })));
    let deleted = try_delete(stored.version).await.unwrap();
    assert_eq!(deleted.version, stored.version + 1);
    assert_eq!(object(&deleted).resource_version(), deleted.version.to_string());
    assert!(matches!(delete(store, "a").await, Err(CloudError::NotFound { .. })));
    let recreated = create(store, "a").await;
    assert!(recreated.uid != stored.uid && recreated.version > deleted.version);
}

#[tokio::test]
async fn what_is_not_valid_is_refused_with_every_problem() {
    let Fixture { store, .. } =
        &fixture_with(&CloudOptions { max_object_bytes: 1000, ..CloudOptions::default() });
    let mut bad = config_map("../a", &json!({}));
    bad.set_metadata("labels", json!({"x": 1}));
    let error = store.create(&kind("cm"), bad).await.unwrap_err().to_string();
    assert!(
        error.contains("metadata.name: must be") && error.contains("metadata.labels[x]: must be"),
        "{error}"
    );
    let sized = |size: usize| {
        let empty = config_map("a", &json!({"k": ""})).to_json().len();
        config_map("a", &json!({"k": "x".repeat(size - empty)}))
    };
    let large = store.create(&kind("cm"), sized(1001)).await;
    assert!(matches!(large, Err(CloudError::TooLarge { size: 1001, limit: 1000, .. })), "{large:?}");
    store.create(&kind("cm"), sized(1000)).await.unwrap();
}

#[tokio::test]
async fn unknown_kinds_are_stored_with_plural_and_scope() {
    let Fixture { store, .. } = &fixture();
    let widget = kinds::guess("lab.io/v1", "Widget", true);
    let object: Object = serde_json::from_value(
        json!({"apiVersion": "lab.io/v1", "kind": "Widget", "metadata": {"name": "w", "namespace": "lab"}}),
    )
    .unwrap();
    store.create(&widget, object.clone()).await.unwrap();
    assert_eq!(store.resources().await.unwrap(), std::slice::from_ref(&widget));
    let renamed = Resource { plural: "widgetses".into(), ..widget };
    let refused = store.create(&renamed, object).await;
    assert!(matches!(refused, Err(CloudError::Invalid { .. })), "{refused:?}");
}

/// Returns the names of ConfigMaps selected by labels, and the next cursor.
async fn labelled(
    snapshot: &CloudSnapshot,
    namespace: Option<&str>,
    limit: usize,
    after: Option<Cursor>,
) -> (Vec<String>, Option<Cursor>) {
    let of = KindName { group: String::new(), kind: "ConfigMap".into() };
    let scan = Scan { of, namespace: namespace.map(str::to_owned), limit, after, ..Scan::default() };
    let keep = |listed: Listed| {
        listed.body.contains(r#"{"l":"x"}"#).then(|| format!("{}/{}", listed.namespace, listed.name))
    };
    snapshot.scan(scan, keep).await.unwrap()
}

#[tokio::test]
async fn a_list_is_paged_by_namespace_and_name_and_filtered() {
    let Fixture { store, .. } = &fixture();
    for (namespace, name, label) in
        [("b", "1", "x"), ("a", "2", "x"), ("a", "1", "x"), ("a", "3", "y"), ("c", "1", "x")]
    {
        let mut object = config_map(name, &json!({}));
        object.set_metadata("namespace", namespace);
        object.set_metadata("labels", json!({"l": label}));
        store.create(&kind("cm"), object).await.unwrap();
    }
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!(snapshot.version(), store.version());
    let (first, next) = labelled(&snapshot, None, 2, None).await;
    assert_eq!(first, ["a/1", "a/2"]);
    let (second, next) = labelled(&snapshot, None, 2, next).await;
    assert_eq!((second, next), (vec!["b/1".to_owned(), "c/1".to_owned()], None));
    let (first, next) = labelled(&snapshot, Some("a"), 1, None).await;
    assert_eq!(first, ["a/1"]);
    assert_eq!(labelled(&snapshot, Some("a"), 10, next).await, (vec!["a/2".to_owned()], None));
    assert_eq!(all(store, "secret").await, []);
}

#[tokio::test]
async fn everything_survives_a_restart_and_versions_go_on_growing() {
    let fixture = fixture();
    let stored = create(&fixture.store, "a").await;
    let incarnation = fixture.store.incarnation();
    let fixture = fixture.reopen().await;
    assert_eq!(fixture.store.get(kind("cm").key("lab", "a")).await.unwrap(), stored);
    assert_eq!(fixture.store.incarnation(), incarnation);
    assert_eq!(history(&fixture.store, stored.version - 1).await.unwrap().len(), 1);
    let later = create(&fixture.store, "b").await;
    assert!(later.version > stored.version);
    assert_eq!(history(&fixture.store, later.version).await.unwrap(), []);
    for version in [stored.version, later.version] {
        assert!(!fixture.store.issued().is_lost(&version.into()), "{version}");
    }
}

#[tokio::test]
async fn older_copy_never_reissues_a_version_of_the_lost_timeline() {
    let fixture = fixture();
    create(&fixture.store, "a").await;
    fixture.store.close().await;
    let copy = fixture.dir.path().join("copy.db");
    std::fs::copy(&fixture.path, &copy).unwrap();
    let fixture = fixture.reopen().await;
    let mut lost = Vec::new();
    for n in 0..20 {
        lost.push(create(&fixture.store, &format!("lost-{n}")).await.version);
    }
    fixture.store.close().await;
    std::fs::copy(&copy, &fixture.path).unwrap();
    let fixture = fixture.reopen().await;
    let next = create(&fixture.store, "next").await.version;
    assert!(lost.iter().all(|version| *version < next));
    assert!(lost.iter().all(|version| fixture.store.issued().is_lost(&(*version).into())));
    for version in lost {
        assert!(matches!(history(&fixture.store, version).await, Err(CloudError::Expired { .. })));
    }
    assert!(!fixture.store.issued().is_lost(&next.into()));
    assert_eq!(history(&fixture.store, next).await.unwrap(), []);
}

#[tokio::test]
async fn a_new_incarnation_is_kept() {
    let fixture = fixture();
    let before = fixture.store.incarnation();
    let after = fixture.store.new_incarnation().await.unwrap();
    assert!(before != after && fixture.store.incarnation() == after);
    assert_eq!(fixture.reopen().await.store.incarnation(), after);
}

#[tokio::test]
async fn history_has_all_changes_in_order_and_reports_its_start() {
    let few = HistoryBound { changes: 16, bytes: 1 << 20 };
    let limits = HistoryLimits { objects: few, fleet: few };
    let Fixture { store, .. } = &fixture_with(&CloudOptions { history: limits, ..CloudOptions::default() });
    let start = store.version();
    let added = create(store, "a").await;
    let modified = change(store, "a", json!({"k": "v"})).await;
    let deleted = delete(store, "a").await.unwrap();
    let events = history(store, start).await.unwrap();
    let seen: Vec<_> =
        events.iter().map(|e| (e.kind, e.version, e.body.clone(), e.previous.clone())).collect();
    let before = added.body.clone();
    let expected = [
        (ChangeKind::Added, added, None),
        (ChangeKind::Modified, modified, Some(before)),
        (ChangeKind::Deleted, deleted, None),
    ];
    assert_eq!(seen, expected.map(|(kind, stored, before)| (kind, stored.version, stored.body, before)));
    assert_eq!(history(store, seen[1].1).await.unwrap().len(), 1);
    for n in 0..100 {
        create(store, &format!("b{n}")).await;
    }
    assert!(matches!(history(store, start).await, Err(CloudError::Expired { .. })));
    let recent = history(store, store.version() - 16).await.unwrap();
    assert_eq!(recent.len(), 16);
}

#[tokio::test]
async fn state_before_a_change_counts_towards_the_history() {
    let short = HistoryBound { changes: 1000, bytes: 40_000 };
    let limits = HistoryLimits { objects: short, ..HistoryLimits::default() };
    let Fixture { store, .. } = &fixture_with(&CloudOptions { history: limits, ..CloudOptions::default() });
    create(store, "a").await;
    let mut versions = Vec::new();
    for n in 0..40 {
        let data = json!({"k": format!("{n:01000}")});
        versions.push(change(store, "a", data).await.version);
    }
    // Each change has about 1,200 bytes of an object twice.
    assert!(matches!(history(store, versions[18]).await, Err(CloudError::Expired { .. })));
    assert_eq!(history(store, versions[30]).await.unwrap().len(), 9);
}

#[tokio::test]
async fn history_of_objects_outlives_mass_writes_of_the_fleet() {
    let few = HistoryBound { changes: 4, bytes: 1 << 20 };
    let history = HistoryLimits { fleet: few, ..HistoryLimits::default() };
    let Fixture { store, .. } = &fixture_with(&CloudOptions { history, ..CloudOptions::default() });
    let start = store.version();
    create(store, "a").await;
    let change = |n| NodeChange { node: node_name(&format!("n{n}")), report: None, conditions: Vec::new() };
    store.change_nodes((0..10).map(change).collect()).await.unwrap();
    let page =
        |of| store.history(HistoryQuery { after: start, of: name_of(of), limit: 100, bytes: usize::MAX });
    assert!(matches!(page("nodes").await, Err(CloudError::Expired { .. })));
    assert_eq!(page("cm").await.unwrap().changes.len(), 1);
}

#[tokio::test]
async fn observer_of_a_commit_too_large_to_buffer_begins_again() {
    let Fixture { store, .. } =
        &fixture_with(&CloudOptions { max_object_bytes: 64 << 20, ..CloudOptions::default() });
    let observed = Arc::new(ObservedCommits::default());
    store.observe(Arc::clone(&observed) as Arc<_>).await.unwrap();
    create(store, "a").await;
    assert_eq!(observed.changes().len(), 1);
    let large = config_map("b", &json!({"k": "x".repeat(32 << 20)}));
    let stored = store.create(&kind("cm"), large).await.unwrap();
    assert_eq!((observed.changes(), observed.version()), (Vec::new(), stored.version));
    create(store, "c").await;
    assert_eq!(observed.changes(), [(ChangeKind::Added, "c".to_owned())]);
}

#[tokio::test]
async fn history_page_ends_at_its_limits_and_has_its_position() {
    let Fixture { store, .. } = &fixture();
    let start = store.version();
    let mut versions = Vec::new();
    for n in 0..4 {
        versions.push(create(store, &format!("a{n}")).await.version);
    }
    let page = async |of: &str, limit, bytes| {
        let of = name_of(of);
        let page = store.history(HistoryQuery { after: start, of, limit, bytes }).await.unwrap();
        (page.changes.len(), page.version)
    };
    assert_eq!(page("cm", 100, usize::MAX).await, (4, versions[3]));
    assert_eq!(page("cm", 2, usize::MAX).await, (2, versions[1]));
    assert_eq!(page("cm", 100, 1).await, (1, versions[0]));
    assert_eq!(page("secrets", 100, usize::MAX).await, (0, versions[3]));
}

/// Returns the initial listing, and the feed of later changes.
async fn follow(store: &CloudStore) -> (Vec<Summary>, Feed) {
    let mut feed = store.follow();
    let mut summaries = Vec::new();
    loop {
        match feed.next().await {
            FeedItem::ListStarted => {}
            FeedItem::Listed(more) => summaries.extend(more),
            FeedItem::Complete => return (summaries, feed),
            other => panic!("{other:?}"),
        }
    }
}

async fn next_change(feed: &mut Feed) -> (ChangeKind, String, u64) {
    match feed.next().await {
        FeedItem::Change(change) => (change.kind, change.object.name.to_string(), change.version),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn bodies_are_read_without_managed_fields_on_request() {
    let Fixture { store, .. } = &fixture();
    let mut object = config_map("a", &json!({"k": "v"}));
    object.set_metadata("managedFields", json!([{"manager": "kubectl"}]));
    object.set_metadata("annotations", json!({LAST_APPLIED: "{}", "of": "others"}));
    let stored = store.create(&kind("cm"), object).await.unwrap();
    let uids = vec!["unknown".into(), Arc::clone(&stored.uid)];
    let all = OmittedFields { managed_fields: true, last_applied: true };
    let bodies = store.bodies(uids.clone(), all).await.unwrap();
    let [body] = &bodies[..] else { panic!("{bodies:?}") };
    assert_eq!((&body.uid, body.version.as_str()), (&stored.uid, &*stored.version.to_string()));
    let text = body.body.as_str();
    assert!(
        !text.contains("managedFields") && !text.contains(LAST_APPLIED) && text.contains("others"),
        "{text}"
    );
    assert_eq!(store.bodies(uids, OmittedFields::default()).await.unwrap()[0].body.as_str(), stored.body);
}

#[tokio::test]
async fn earlier_versions_are_read_from_the_history_as_they_were_sent() {
    let Fixture { store, .. } = &fixture();
    let mut texts = Vec::new();
    let mut object = config_map("a", &json!({"k": "0"}));
    object.set_metadata("managedFields", json!([{"manager": "kubectl"}]));
    let uid = store.create(&kind("cm"), object).await.unwrap().uid;
    let left_out = OmittedFields { managed_fields: true, last_applied: true };
    for number in 1..4 {
        let sent = store.bodies(vec![Arc::clone(&uid)], left_out).await.unwrap().remove(0);
        texts.push((sent.version.clone(), sent.body.as_str().to_owned()));
        change(store, "a", json!({"k": number.to_string()})).await;
    }
    let other = create(store, "b").await;
    let ask = |uid: &Arc<str>, version: &str| (Arc::clone(uid), version.into());
    let mut wanted: Vec<_> = texts.iter().map(|(version, _)| ask(&uid, version.as_str())).collect();
    // Versions of another object, of no object, and of another store.
    wanted.extend([ask(&uid, &other.version.to_string()), ask(&uid, "1"), ask(&uid, "x"), ask(&uid, "01")]);
    let bases = store.bases(wanted, left_out).await.unwrap();
    let found: Vec<_> = bases.into_iter().map(|(_, version, text)| (version, text)).collect();
    assert_eq!(found, texts);
}

#[tokio::test]
async fn the_last_version_outlives_its_own_change_in_the_history() {
    let short = HistoryBound { changes: 8, bytes: u64::MAX / 2 };
    let limits = HistoryLimits { objects: short, ..HistoryLimits::default() };
    let Fixture { store, .. } = &fixture_with(&CloudOptions { history: limits, ..CloudOptions::default() });
    let first = create(store, "a").await;
    for number in 0..40 {
        create(store, &format!("other-{number}")).await;
    }
    let wanted = || vec![(Arc::clone(&first.uid), first.version.into())];
    assert!(store.bases(wanted(), OmittedFields::default()).await.unwrap().is_empty());
    change(store, "a", json!({"k": "new"})).await;
    let bases = store.bases(wanted(), OmittedFields::default()).await.unwrap();
    assert_eq!(bases[0].2, first.body);
}

#[tokio::test]
async fn a_closed_store_is_one_file_even_if_readers_are_still_around() {
    let fixture = fixture();
    let stored = create(&fixture.store, "a").await;
    fixture.store.get(kind("cm").key("lab", "a")).await.unwrap();
    fixture.store.close().await;
    let copy = fixture.dir.path().join("copy.db");
    std::fs::copy(&fixture.path, &copy).unwrap();
    let store = CloudStore::open(&copy, &CloudOptions::default()).unwrap();
    assert_eq!(store.get(kind("cm").key("lab", "a")).await.unwrap(), stored);
}

#[tokio::test]
async fn two_processes_do_not_share_a_file() {
    let fixture = fixture();
    let second = CloudStore::open(&fixture.path, &CloudOptions::default());
    assert!(matches!(second, Err(OpenError::Named(StoreError::InUse { .. }))), "{second:?}");
    let error = second.unwrap_err();
    let said = error.to_string();
    assert!(said.matches("database").count() == 1 && said.ends_with("in use by another process"), "{said}");
    assert!(std::error::Error::source(&error).is_none());
    fixture.reopen().await;
}

#[tokio::test]
async fn a_store_that_was_found_out_gives_no_version_again() {
    static CLOCK: AtomicI64 = AtomicI64::new(1_795_000_000_000_000);
    let clock = || jiff::Timestamp::from_microsecond(CLOCK.load(Ordering::SeqCst)).unwrap();
    let running = || Duration::ZERO;
    let Fixture { store, .. } = &fixture_with(&CloudOptions { clock, running, ..CloudOptions::default() });
    let (incarnation, before) = (store.incarnation(), create(store, "a").await.version);
    // A version that nodes have received from the machine that continued without the copy.
    let lost = before + 500;
    assert!(!store.issued().is_lost(&lost.into()));
    CLOCK.fetch_add(1_000_000, Ordering::SeqCst);
    assert_ne!(store.new_incarnation().await.unwrap(), incarnation);
    let after = create(store, "b").await.version;
    assert_eq!(after, 1_795_000_001_000_001);
    assert!(store.issued().is_lost(&lost.into()) && !store.issued().is_lost(&before.into()));
    let history =
        |after| store.history(HistoryQuery { after, limit: 10, bytes: usize::MAX, of: name_of("cm") });
    assert!(matches!(history(lost).await, Err(CloudError::Expired { .. })));
    let page = history(before).await.unwrap();
    assert_eq!((page.changes.len(), page.version), (1, after));
}

#[tokio::test]
async fn resumed_copy_of_a_machine_reissues_no_version() {
    static CLOCK: AtomicI64 = AtomicI64::new(1_795_000_000_000_000);
    let clock = || jiff::Timestamp::from_microsecond(CLOCK.load(Ordering::SeqCst)).unwrap();
    let running = || Duration::from_secs(100);
    let fixture = fixture_with(&CloudOptions { clock, running, ..CloudOptions::default() });
    let store = &fixture.store;
    let (incarnation, before) = (store.incarnation(), create(store, "a").await.version);
    CLOCK.fetch_add(60_000_000, Ordering::SeqCst);
    let after = create(store, "b").await.version;
    assert_eq!(after, 1_795_000_060_000_001);
    let lost = before + 1;
    assert!(store.issued().is_lost(&lost.into()) && !store.issued().is_lost(&before.into()));
    let renewed = store.incarnation();
    assert_ne!(renewed, incarnation);
    assert_eq!(create(store, "c").await.version, after + 1);
    assert_eq!((store.incarnation(), fixture.reopen().await.store.incarnation()), (renewed.clone(), renewed));
}

#[tokio::test]
async fn unreleased_database_is_refused_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cloud.db");
    let unreleased = "CREATE TABLE migrations (
                        version INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum INTEGER NOT NULL, applied TEXT NOT NULL
                      ) STRICT;
                      PRAGMA application_id = 0x6573436c; PRAGMA user_version = 12;";
    rusqlite::Connection::open(&path).unwrap().execute_batch(unreleased).unwrap();
    let before = std::fs::read(&path).unwrap();
    for set_aside_corrupt in [false, true] {
        let options = CloudOptions { set_aside_corrupt, ..CloudOptions::default() };
        let error = CloudStore::open(&path, &options).unwrap_err();
        assert!(matches!(error, OpenError::Unreleased { .. }), "{error:?}");
        let text = error.to_string();
        for words in [path.to_str().unwrap(), "before the first release", "move the file away", "new tokens"]
        {
            assert!(text.contains(words), "{text}");
        }
    }
    let error = inspect::inspect(&path).unwrap_err();
    assert!(matches!(error, CloudError::Store(StoreError::Unreleased { .. })), "{error:?}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn a_damaged_file_is_refused_unless_it_may_be_set_aside() {
    let fixture = fixture();
    let incarnation = fixture.store.incarnation();
    for n in 0..200 {
        create(&fixture.store, &format!("a{n}")).await;
    }
    fixture.store.close().await;
    let mut bytes = std::fs::read(&fixture.path).unwrap();
    bytes[4096..].fill(0x5a);
    std::fs::write(&fixture.path, &bytes).unwrap();
    let refused = CloudStore::open(&fixture.path, &CloudOptions::default());
    let Err(error @ OpenError::Corrupt { .. }) = &refused else { panic!("{refused:?}") };
    let cause = std::error::Error::source(error).unwrap();
    assert!(cause.source().is_none() && !cause.to_string().contains("database damaged"), "{cause}");
    assert_eq!(std::fs::read(&fixture.path).unwrap().len(), bytes.len());
    let options = CloudOptions { set_aside_corrupt: true, ..CloudOptions::default() };
    let store = CloudStore::open(&fixture.path, &options).unwrap();
    assert_ne!(store.incarnation(), incarnation);
    let names =
        std::fs::read_dir(fixture.dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.contains(".corrupt-")).count(), 1);
}

/// Returns a closed database of 500 objects, with a piece of its bytes replaced everywhere.
async fn damaged(from: &str, to: &str) -> Fixture {
    let fixture = fixture();
    for n in 0..500 {
        create(&fixture.store, &format!("a{n:03}")).await;
    }
    fixture.store.close().await;
    let mut bytes = std::fs::read(&fixture.path).unwrap();
    let places: Vec<usize> =
        (0..bytes.len()).filter(|at| bytes[*at..].starts_with(from.as_bytes())).collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
    std::fs::write(&fixture.path, bytes).unwrap();
    Fixture { store: CloudStore::open(&fixture.path, &CloudOptions::default()).unwrap(), ..fixture }
}

#[tokio::test]
async fn damage_is_found_while_the_store_is_used() {
    let Fixture { store, .. } = &fixture();
    for n in 0..1200 {
        create(store, &format!("a{n}")).await;
    }
    let seen = store.look_through().await.unwrap();
    assert_eq!((seen, store.damage()), (CheckReport { objects: 1200, changes: 1200 }, None));
    for (from, to, found) in [
        // The texts of the object and of its change differ from the name in the columns.
        (r#""name":"a123""#, r#""name":"a124""#, "object 'lab/a123' in row 124 differs from its columns"),
        (r#""name":"a123""#, r#""name":"a123#"#, "differs from its columns"),
        // The name in the row differs from the one in the index.
        ("a123", "a1x3", "differs from its index entries"),
    ] {
        let Fixture { store, .. } = &damaged(from, to).await;
        assert_eq!(store.damage(), None);
        let error = store.look_through().await.unwrap_err();
        assert!(matches!(error, CloudError::Store(StoreError::Corrupt(_))), "{error}");
        assert!(store.damage().unwrap().contains(found), "{:?}", store.damage());
    }
}

#[tokio::test]
async fn nobody_follows_objects_that_cannot_be_read() {
    let Fixture { store, .. } = &damaged(r#"{"apiVersion""#, r#"[["#).await;
    let mut feed = store.follow();
    assert!(matches!(feed.next().await, FeedItem::ListStarted));
    let failed = feed.next().await;
    assert!(matches!(failed, FeedItem::Failed(CloudError::Store(StoreError::Corrupt(_)))), "{failed:?}");
}

#[tokio::test]
async fn deleted_kind_may_return_with_another_scope_and_plural() {
    let Fixture { store, .. } = &fixture();
    let resource = |kind: &str, plural: &str, scope| Resource {
        group: "lab.io".into(),
        version: "v1".into(),
        kind: kind.into(),
        plural: plural.into(),
        scope,
    };
    let widget = |resource: &Resource, namespace: &str| {
        let mut metadata = json!({"name": "w"});
        if !namespace.is_empty() {
            metadata["namespace"] = namespace.into();
        }
        let value = json!({"apiVersion": "lab.io/v1", "kind": resource.kind, "metadata": metadata});
        serde_json::from_value::<Object>(value).unwrap()
    };
    let before = resource("Widget", "widgets", Scope::Namespaced);
    store.create(&before, widget(&before, "lab")).await.unwrap();
    let others = [
        resource("Widget", "widgets", Scope::Cluster),
        resource("Widget", "widgetry", Scope::Namespaced),
        resource("Gadget", "widgets", Scope::Namespaced),
    ];
    for other in &others {
        let namespace = if other.scope == Scope::Cluster { "" } else { "lab" };
        let refused = store.create(other, widget(other, namespace)).await.unwrap_err().to_string();
        assert!(refused.contains("must agree with the kind 'Widget'"), "{refused}");
    }
    store.delete(&before, "lab", "w", None).await.unwrap();
    for other in &others {
        let namespace = if other.scope == Scope::Cluster { "" } else { "lab" };
        let created = store.create(other, widget(other, namespace)).await.unwrap();
        assert_eq!(store.get(other.key(namespace, "w")).await.unwrap(), created);
        let of = KindName { group: other.group.clone(), kind: other.kind.clone() };
        let query = HistoryQuery { after: created.version - 1, of, limit: 100, bytes: usize::MAX };
        let told = store.history(query).await.unwrap().changes;
        assert_eq!(told.iter().map(|change| change.version).collect::<Vec<_>>(), [created.version]);
        store.delete(other, namespace, "w", None).await.unwrap();
    }
}
