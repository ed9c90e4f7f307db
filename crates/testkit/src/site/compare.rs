//! Comparison of both sides: every object, every field.

use std::collections::BTreeMap;
use std::time::Duration;

use edgesync_api::{Client, ClientError};
use serde_json::Value;

use super::{Agent, Cloud, PATIENCE, Site, eventually, objects};
use crate::timing::is_within;

/// Collections with objects placed on nodes.
const COLLECTIONS: [&str; 3] = ["/api/v1/configmaps", "/api/v1/secrets", "/api/v1/pods"];
/// Annotation of `kubectl apply`, not sent to nodes by default.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Number of objects per page.
const PAGE: usize = 500;

/// Starts a cloud and an agent that hold this many objects.
pub async fn in_sync(site: &Site, node: &str, count: usize) -> (Cloud, Agent) {
    let cloud = Cloud::start(site).await;
    let agent = Agent::start(site, node, cloud.mqtt).await;
    cloud.apply(objects(0..count)).await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, count);
    (cloud, agent)
}

/// Waits until cloud and node hold the same objects, and returns their number.
pub async fn same_on_both_sides(cloud: &Cloud, agent: &Agent) -> usize {
    same_within(PATIENCE, cloud, agent).await
}

/// The same with another limit.
pub async fn same_within(limit: Duration, cloud: &Cloud, agent: &Agent) -> usize {
    let mut last = String::new();
    let start = tokio::time::Instant::now();
    loop {
        // A comparison reads everything, so it waits until both sides report that they are in sync.
        let reported = eventually("both sides are in sync", PATIENCE, async || {
            let node = cloud.node(&agent.node).await;
            let status = agent.status().await;
            let fits = node.as_ref().is_some_and(|node| node.state() == "in sync") && status.sync.in_sync;
            (fits || !is_within(start.elapsed(), limit)).then_some((fits, node, status))
        });
        let (fits, node, status) = reported.await;
        if fits {
            let (mut desired, versions) = read(&cloud.client()).await;
            desired.values_mut().for_each(remove_unsent_fields);
            let found = held(&agent.client()).await;
            let mut differences = differences(&desired, &found);
            let node = &agent.node;
            let versions = versions.into_iter().map(|(uid, version)| (format!("{node}.{uid}"), version));
            let versions: BTreeMap<String, String> = versions.collect();
            for (side, client) in [("cloud", cloud.client()), ("node", agent.client())] {
                if records(&client, node).await != versions {
                    differences.push(format!("the ObjectSync records of the {side}"));
                }
            }
            if differences.is_empty() {
                return desired.len();
            }
            last = format!("{} differences, for instance {:?}", differences.len(), &differences[0]);
        }
        assert!(
            is_within(start.elapsed(), limit),
            "within {limit:?} {} did not get equal to the cloud: {last}\n{node:#?}\n{status:#?}",
            agent.node
        );
    }
}

/// Returns all objects of a cloud side that nodes must hold, by UID.
pub async fn wanted(cloud: &Cloud) -> BTreeMap<String, Value> {
    let mut desired = held(&cloud.client()).await;
    desired.values_mut().for_each(remove_unsent_fields);
    desired
}

/// Returns all objects of a side by UID, without side-specific fields.
pub async fn held(client: &Client) -> BTreeMap<String, Value> {
    read(client).await.0
}

/// Returns all objects of a side, and their versions; both by UID.
async fn read(client: &Client) -> (BTreeMap<String, Value>, BTreeMap<String, String>) {
    let (mut all, mut versions) = (BTreeMap::new(), BTreeMap::new());
    for collection in COLLECTIONS {
        for mut item in items(client, collection).await {
            let uid = item["metadata"]["uid"].as_str().unwrap().to_owned();
            versions.insert(uid.clone(), remove_own_fields(&mut item));
            let twice = all.insert(uid, item);
            assert!(twice.is_none(), "listed twice: {twice:?}");
        }
    }
    (all, versions)
}

/// Removes side-specific fields from an object, and returns its version.
fn remove_own_fields(object: &mut Value) -> String {
    let metadata = object["metadata"].as_object_mut().unwrap();
    // Not sent to nodes, which have their own for local writes.
    metadata.remove("managedFields");
    // A node has its own versions; the cloud's are in the records.
    match metadata.remove("resourceVersion") {
        Some(Value::String(version)) => version,
        other => panic!("the version of an object is {other:?}"),
    }
}

/// Removes fields that are not sent to nodes.
fn remove_unsent_fields(object: &mut Value) {
    let metadata = object["metadata"].as_object_mut().unwrap();
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut)
        && annotations.remove(LAST_APPLIED).is_some()
        && annotations.is_empty()
    {
        metadata.remove("annotations");
    }
}

/// Returns whether a node has the cloud's object in the same state.
pub fn is_same(mut found: Value, mut desired: Value) -> bool {
    remove_own_fields(&mut found);
    remove_own_fields(&mut desired);
    remove_unsent_fields(&mut desired);
    found == desired
}

/// Returns the versions in the ObjectSync records of a node, by name.
async fn records(client: &Client, node: &str) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let prefix = format!("{node}.");
    let records = items(client, "/apis/reliablesyncs.kubeedge.io/v1alpha1/objectsyncs").await;
    let records = records.into_iter();
    let records = records
        .map(|record| (text(&record["metadata"]["name"]), text(&record["status"]["objectResourceVersion"])));
    records.filter(|(name, _)| name.starts_with(&prefix)).collect()
}

/// Returns all objects of a collection, page by page.
async fn items(client: &Client, collection: &str) -> Vec<Value> {
    let (mut all, mut next) = (Vec::new(), String::new());
    loop {
        let path = format!("{collection}?limit={PAGE}&continue={next}");
        // While a damaged database is being replaced, reads are answered with 503 and a retry
        // delay.
        let list = eventually("the list is answered", PATIENCE, async || {
            let answer = client.get::<Value>(&path).await;
            match answer.as_ref().err().and_then(ClientError::status).map(|status| status.code) {
                Some(503) => None,
                // Expired: the database has been replaced meanwhile, so the list must restart.
                Some(410) => Some(None),
                _ => Some(Some(answer.unwrap())),
            }
        })
        .await;
        let Some(list) = list else {
            all.clear();
            next.clear();
            continue;
        };
        let Value::Object(mut list) = list else { panic!("no list: {list}") };
        let Some(Value::Array(page)) = list.remove("items") else { panic!("no items: {list:?}") };
        all.extend(page);
        match list["metadata"]["continue"].as_str() {
            Some(token) if !token.is_empty() => next = token.to_owned(),
            _ => return all,
        }
    }
}

/// Describes the differences between desired and held objects.
pub fn differences(wanted: &BTreeMap<String, Value>, found: &BTreeMap<String, Value>) -> Vec<String> {
    let name = |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]);
    let missing = wanted.iter().filter_map(|(uid, object)| match found.get(uid) {
        None => Some(format!("{} ({uid}) is missing", name(object))),
        Some(other) if other != object => Some(format!("{} differs:\n{object}\n{other}", name(object))),
        Some(_) => None,
    });
    let surplus = found.iter().filter(|(uid, _)| !wanted.contains_key(*uid));
    let surplus = surplus.map(|(uid, object)| format!("{} ({uid}) should not be there", name(object)));
    missing.chain(surplus).collect()
}
