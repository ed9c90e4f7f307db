//! Agent and cloud side killed at random moments of a running sync, over and over.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::site;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use edgesync_api::{Address, Client};
use serde_json::Value;
use site::*;

const NODE: &str = "edge-1";
/// Number of kills of agent or cloud side.
const ROUNDS: usize = 60;
/// Clients that change objects continuously, and the number of objects of each.
const WRITERS: usize = 2;
const OBJECTS: usize = 200;
/// Maximum milliseconds between a start and the next kill.
const LIFE: usize = 300;

/// Resource versions by UID.
type Versions = BTreeMap<String, String>;
/// The editions that the cloud acknowledged to a writer, `None` for a deleted object; objects whose
/// last response was lost are left out.
type Acknowledged = BTreeMap<usize, Option<String>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_kills_lose_nothing_reported_and_both_sides_converge() {
    let mut random = Random::seeded();
    let site = Site::new();
    let mut cloud = Cloud::start(&site).await;
    let mut agent = Agent::start(&site, NODE, cloud.mqtt).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (api, stop, random) = (cloud.client(), Arc::clone(&stop), Random::new(random.next()));
            tokio::spawn(write(api.address().clone(), writer * OBJECTS, random, stop))
        })
        .collect();

    let mut checked = 0;
    for round in 0..ROUNDS {
        tokio::time::sleep(Duration::from_millis(random.below(LIFE) as u64)).await;
        let (reported, kept) = match random.below(5) {
            0..=1 => {
                agent.process.kill();
                let found = (records(&cloud.client()).await, edge_rows(&agent.database));
                agent.run().await;
                found
            }
            2..=3 => {
                cloud.process.kill();
                let found = (recorded(&cloud.database, NODE), records(&agent.client()).await);
                cloud.run().await;
                found
            }
            _ => {
                agent.process.kill();
                cloud.process.kill();
                let found = (recorded(&cloud.database, NODE), edge_rows(&agent.database));
                agent.run().await;
                cloud.run().await;
                found
            }
        };
        // Read last: the cloud removes an object before the node does.
        let desired = held(&cloud.client()).await;
        for (uid, version) in &reported {
            let held = kept.get(uid);
            let in_order = match held {
                Some(held) => !older(held, version),
                None => !desired.contains_key(uid),
            };
            assert!(in_order, "round {round}: {uid} was reported in version {version}, held is {held:?}");
        }
        checked += reported.len();
    }
    assert!(checked > ROUNDS * 10, "the kills came before anything was reported: {checked}");

    stop.store(true, Ordering::Relaxed);
    let mut acknowledged = Acknowledged::new();
    for writer in writers {
        acknowledged.append(&mut writer.await.unwrap());
    }
    same_on_both_sides(&cloud, &agent).await;
    for (number, edition) in acknowledged {
        assert_eq!(edition_of(&cloud, &config_map(number)).await, edition, "object {number} in the cloud");
    }
}

/// Changes objects until `stop` is set, also while the API is down.
async fn write(api: Address, first: usize, mut random: Random, stop: Arc<AtomicBool>) -> Acknowledged {
    let mut client = Client::new(api.clone());
    let mut acknowledged = Acknowledged::new();
    let mut edition = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let number = first + random.below(OBJECTS);
        let object = config_map(number);
        edition += 1;
        let (answer, result) = if random.below(6) == 0 {
            let answer = client.delete::<Value>(&path_of(&object), None).await.map(drop);
            let missing = answer.as_ref().err().and_then(|error| error.status()).map(|status| status.code);
            (if missing == Some(404) { Ok(()) } else { answer }, None)
        } else {
            let answer = apply(&client, &changed(object, edition)).await;
            (answer.map(drop), Some(edition.to_string()))
        };
        match answer {
            Ok(()) => drop(acknowledged.insert(number, result)),
            Err(error) if error.status().is_some() => panic!("{error}"),
            Err(_) => {
                acknowledged.remove(&number);
                client = Client::new(api.clone());
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    acknowledged
}

async fn edition_of(cloud: &Cloud, object: &Value) -> Option<String> {
    let found: Value = cloud.client().get(&path_of(object)).await.ok()?;
    found["metadata"]["annotations"]["example.org/edition"].as_str().map(str::to_owned)
}

/// Returns the node's ObjectSync records from an API.
async fn records(client: &Client) -> Versions {
    let mut all = Versions::new();
    let mut next = String::new();
    loop {
        let path = format!("/apis/reliablesyncs.kubeedge.io/v1alpha1/objectsyncs?limit=500&continue={next}");
        let list: Value = client.get(&path).await.unwrap();
        for record in list["items"].as_array().unwrap() {
            let name = record["metadata"]["name"].as_str().unwrap();
            let uid = name.strip_prefix(&format!("{NODE}.")).unwrap();
            let version = record["status"]["objectResourceVersion"].as_str().unwrap();
            all.insert(uid.to_owned(), version.to_owned());
        }
        match list["metadata"]["continue"].as_str() {
            Some(token) if !token.is_empty() => next = token.to_owned(),
            _ => return all,
        }
    }
}

/// Returns whether a decimal version is smaller than another.
fn older(one: &str, other: &str) -> bool {
    (one.len(), one) < (other.len(), other)
}
