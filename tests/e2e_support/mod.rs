//! Real processes for end-to-end tests: each in a directory of its own, on addresses that nobody else uses,
//! killed by its process id when dropped. When a test fails, what its processes logged is printed.
//!
//! Nothing here waits for a time: [`eventually`] asks until something is true, and names what never was.
#![allow(dead_code, reason = "each test program uses its own part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

pub(crate) mod agent;
pub(crate) mod cloud;
pub(crate) mod forger;
pub(crate) mod process;

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use edgesync::api::{Address, Client};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

pub(crate) use agent::Agent;
pub(crate) use cloud::Cloud;
pub(crate) use forger::Forger;

/// How long the processes have for anything that is not timed by their configuration.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long an answer of an API may take.
const ANSWER: Duration = Duration::from_secs(20);
/// Between two looks at a condition.
const PAUSE: Duration = Duration::from_millis(25);

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
});

/// Runs a future to its end from a plain test.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    RUNTIME.block_on(future)
}

/// Waits until the condition holds, at most `limit`.
///
/// # Panics
/// Says `what` did not happen.
#[track_caller]
pub(crate) fn eventually(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::park_timeout(PAUSE);
    }
    start.elapsed()
}

/// Asks that the condition holds all the time.
#[track_caller]
pub(crate) fn steadily(what: &str, during: Duration, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while start.elapsed() < during {
        assert!(condition(), "{what}: not any more after {:?}", start.elapsed());
        std::thread::park_timeout(PAUSE);
    }
}

/// What an API answers; `None` when nobody does.
pub(crate) fn get(address: &Address, path: &str) -> Option<Value> {
    let client = Client::new(address.clone());
    block_on(async { tokio::time::timeout(ANSWER, client.get(path)).await.ok()?.ok() })
}

/// All items of a collection, page by page.
pub(crate) fn list(address: &Address, path: &str) -> Option<Vec<Value>> {
    let mut items = Vec::new();
    let mut token = String::new();
    loop {
        let mut page = get(address, &format!("{path}?limit=500&continue={token}"))?;
        let Value::Array(more) = page["items"].take() else { return None };
        items.extend(more);
        token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        if token.is_empty() {
            return Some(items);
        }
    }
}

/// Objects by UID, and versions by record name: what two sides are compared by.
pub(crate) type Held = (BTreeMap<String, Value>, BTreeMap<String, String>);

/// The ConfigMaps and the ObjectSync records of a node that an API shows.
pub(crate) fn held(address: &Address, node: &str) -> Option<Held> {
    let objects = list(address, "/api/v1/configmaps")?;
    let objects =
        objects.into_iter().map(|object| (text(&object, "/metadata/uid"), stripped(object))).collect();
    let prefix = format!("{node}.");
    let records = list(address, "/apis/reliablesyncs.kubeedge.io/v1alpha1/objectsyncs")?;
    let records = records
        .iter()
        .map(|record| (text(record, "/metadata/name"), text(record, "/status/objectResourceVersion")))
        .filter(|(name, _)| name.starts_with(&prefix))
        .collect();
    Some((objects, records))
}

/// Without what the cloud does not send.
fn stripped(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    object
}

/// The text at a JSON pointer; empty when there is none.
pub(crate) fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The number at a JSON pointer.
#[track_caller]
pub(crate) fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {pointer} in {value:#}"))
}

/// A ConfigMap that looks like one: a few lines of settings and `filler` bytes that do not compress well.
pub(crate) fn config_map(name: &str, note: &str, filler: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": { "app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "plant" },
        },
        "data": { "note": note, "log.level": "info", "filler": noise(name, note, filler) },
    })
}

/// Text that is different for each name and note and alike in every run.
fn noise(name: &str, note: &str, length: usize) -> String {
    let mut state =
        name.bytes().chain(note.bytes()).fold(1_u64, |state, byte| state.wrapping_mul(31) ^ u64::from(byte));
    let letter = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b' ' + ((state >> 33) % 90) as u8 + 1)
    };
    (0..length).map(letter).collect()
}

/// Waits until both sides say that they are in sync and hold the same objects in the same versions.
#[track_caller]
pub(crate) fn wait_equal(cloud: &Cloud, agent: &Agent) {
    wait_equal_within(cloud, agent, PATIENCE);
}

/// The same with another limit.
#[track_caller]
pub(crate) fn wait_equal_within(cloud: &Cloud, agent: &Agent, limit: Duration) {
    let node = agent.node();
    let mut seen = String::new();
    let start = Instant::now();
    loop {
        let state = cloud.node(node).map(|shown| text(&shown, "/state"));
        if state.as_deref() == Some("in sync") && agent.is_in_sync() {
            let (ours, theirs) = (held(cloud.api(), node), held(&agent.api(), node));
            match (ours, theirs) {
                (Some(ours), Some(theirs)) if ours == theirs => return,
                (Some(ours), Some(theirs)) => seen = difference(&ours, &theirs),
                _ => "an API does not answer".clone_into(&mut seen),
            }
        } else {
            seen = format!("cloud: {:#?}\nagent: {:#?}", cloud.node(node), agent.try_status());
        }
        assert!(start.elapsed() < limit, "{node} and the cloud are not equal within {limit:?}: {seen}");
        std::thread::park_timeout(PAUSE);
    }
}

fn difference(ours: &Held, theirs: &Held) -> String {
    let objects = ours.0.iter().filter(|(uid, object)| theirs.0.get(*uid) != Some(*object)).count();
    let more = theirs.0.keys().filter(|uid| !ours.0.contains_key(*uid)).count();
    let records = ours.1.iter().filter(|(name, version)| theirs.1.get(*name) != Some(*version)).count();
    format!(
        "objects: {} in the cloud, {} on the node, {objects} missing or different, {more} too many; records: \
         {} and {}, {records} different",
        ours.0.len(),
        theirs.0.len(),
        ours.1.len(),
        theirs.1.len()
    )
}
