//! Whether both sides hold the same: every object, every field.

use std::collections::BTreeMap;
use std::time::Duration;

use edgesync_api::{Client, ClientError};
use serde_json::Value;

use super::{Agent, Cloud, PATIENCE, eventually};

/// The collections that hold what belongs on the nodes.
const COLLECTIONS: [&str; 3] = ["/api/v1/configmaps", "/api/v1/secrets", "/api/v1/pods"];
/// What `kubectl apply` notes of an object. It does not travel unless it is to.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Objects of a page.
const PAGE: usize = 500;

/// Waits until cloud and node hold the same objects, and gives how many.
pub async fn same_on_both_sides(cloud: &Cloud, agent: &Agent) -> usize {
    same_within(PATIENCE, cloud, agent).await
}

/// The same with another limit.
pub async fn same_within(limit: Duration, cloud: &Cloud, agent: &Agent) -> usize {
    let mut last = String::new();
    let start = tokio::time::Instant::now();
    loop {
        // A comparison reads everything: it waits until both sides believe that it will hold.
        let believed = eventually("both sides are in sync", PATIENCE, async || {
            let node = cloud.node(&agent.node).await;
            let status = agent.status().await;
            let fits = node["state"] == "in sync" && status["sync"]["inSync"] == true;
            (fits || start.elapsed() > limit).then_some((fits, node, status))
        });
        let (fits, node, status) = believed.await;
        if fits {
            let (mut wanted, versions) = read(&cloud.client()).await;
            wanted.values_mut().for_each(leave_out);
            let found = held(&agent.client()).await;
            let mut differences = differences(&wanted, &found);
            let node = &agent.node;
            let versions = versions.into_iter().map(|(uid, version)| (format!("{node}.{uid}"), version));
            let versions: BTreeMap<String, String> = versions.collect();
            for (side, client) in [("cloud", cloud.client()), ("node", agent.client())] {
                if records(&client, node).await != versions {
                    differences.push(format!("the ObjectSync records of the {side}"));
                }
            }
            if differences.is_empty() {
                return wanted.len();
            }
            last = format!("{} differences, for instance {:?}", differences.len(), &differences[0]);
        }
        assert!(
            start.elapsed() < limit,
            "within {limit:?} {} did not get equal to the cloud: {last}\n{node:#}\n{status:#}",
            agent.node
        );
    }
}

/// Everything that nodes are to hold of what a cloud side holds, by UID.
pub async fn wanted(cloud: &Cloud) -> BTreeMap<String, Value> {
    let mut wanted = held(&cloud.client()).await;
    wanted.values_mut().for_each(leave_out);
    wanted
}

/// Everything that a side holds, by UID, without what each side has of its own.
pub async fn held(client: &Client) -> BTreeMap<String, Value> {
    read(client).await.0
}

/// Everything that a side holds, and the versions that its API gives it; both by UID.
async fn read(client: &Client) -> (BTreeMap<String, Value>, BTreeMap<String, String>) {
    let (mut all, mut versions) = (BTreeMap::new(), BTreeMap::new());
    for collection in COLLECTIONS {
        for mut item in items(client, collection).await {
            let uid = item["metadata"]["uid"].as_str().unwrap().to_owned();
            versions.insert(uid.clone(), without_own(&mut item));
            let twice = all.insert(uid, item);
            assert!(twice.is_none(), "listed twice: {twice:?}");
        }
    }
    (all, versions)
}

/// Takes from an object what each side has of its own, and gives the version.
fn without_own(object: &mut Value) -> String {
    let metadata = object["metadata"].as_object_mut().unwrap();
    // Not sent to nodes, which have their own for what is written there.
    metadata.remove("managedFields");
    // A node counts its own versions; the cloud's stand in the records.
    match metadata.remove("resourceVersion") {
        Some(Value::String(version)) => version,
        other => panic!("the version of an object is {other:?}"),
    }
}

/// Takes from an object of the cloud what does not travel to nodes.
fn leave_out(object: &mut Value) {
    let metadata = object["metadata"].as_object_mut().unwrap();
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut)
        && annotations.remove(LAST_APPLIED).is_some()
        && annotations.is_empty()
    {
        metadata.remove("annotations");
    }
}

/// Whether a node has the object of the cloud in the same state.
pub fn is_same(mut found: Value, mut wanted: Value) -> bool {
    without_own(&mut found);
    without_own(&mut wanted);
    leave_out(&mut wanted);
    found == wanted
}

/// The versions in the ObjectSync records of a node, by name.
async fn records(client: &Client, node: &str) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mine = format!("{node}.");
    let records = items(client, "/apis/reliablesyncs.kubeedge.io/v1alpha1/objectsyncs").await;
    let records = records.into_iter();
    let records = records
        .map(|record| (text(&record["metadata"]["name"]), text(&record["status"]["objectResourceVersion"])));
    records.filter(|(name, _)| name.starts_with(&mine)).collect()
}

/// All objects of a collection, page by page.
async fn items(client: &Client, collection: &str) -> Vec<Value> {
    let (mut all, mut next) = (Vec::new(), String::new());
    loop {
        let path = format!("{collection}?limit={PAGE}&continue={next}");
        // While a damaged database is being replaced a read is answered with 503 and "try again".
        let list = eventually("the list is answered", Duration::from_secs(30), async || {
            let answer = client.get::<Value>(&path).await;
            match answer.as_ref().err().and_then(ClientError::status).map(|status| status.code) {
                Some(503) => None,
                // "Start the list anew": the database has been replaced meanwhile.
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

/// What is to be held and is not, in words.
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
