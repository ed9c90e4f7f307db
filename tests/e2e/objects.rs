//! Transferred objects: deletions and reused names, many versions, no changes, many objects, large
//! and oversized ones.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::site;
use std::process::Command;
use std::time::{Duration, Instant};

use edgesync_admin::cloud::NodeCounters;
use edgesync_object::ObjectRef;
use serde_json::Value;
use site::*;

const NODE: &str = "edge-1";

#[tokio::test]
async fn reused_names_lead_to_the_new_objects_online() {
    let site = Site::new();
    let (cloud, agent) = in_sync(&site, NODE, 60).await;
    for edition in 0..3 {
        for number in 0..20 {
            cloud.delete(&object(number)).await;
            cloud.apply([changed(object(number), edition)]).await;
        }
    }
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 60);
}

#[tokio::test]
async fn reused_names_lead_to_the_new_objects_after_time_offline() {
    let site = Site::new();
    let (cloud, mut agent) = in_sync(&site, NODE, 60).await;
    agent.stop().await;
    let before = cloud.counters(NODE).await;
    for edition in 0..3 {
        for number in 0..20 {
            cloud.delete(&object(number)).await;
            cloud.apply([changed(object(number), edition)]).await;
        }
    }
    agent.run().await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 60);
    let (sent, _) = cloud.sent_since(NODE, before).await;
    assert_eq!(sent, 20);
}

#[tokio::test]
async fn offline_versions_of_an_object_arrive_as_the_last_one() {
    let site = Site::new();
    let (cloud, mut agent) = in_sync(&site, NODE, 20).await;
    agent.stop().await;
    let before = cloud.counters(NODE).await;
    for edition in 0..500 {
        cloud.apply([changed(object(7), edition)]).await;
    }
    agent.run().await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 20);
    assert_eq!(cloud.sent_since(NODE, before).await, (1, 0));
    let object = agent.get(&object(7)).await.unwrap();
    assert_eq!(object["metadata"]["annotations"]["example.org/edition"], "499");
}

#[tokio::test]
async fn reconnection_sends_only_newer_objects() {
    let site = Site::new();
    let (mut cloud, mut agent) = in_sync(&site, NODE, 400).await;
    let before = cloud.counters(NODE).await;
    agent.stop().await;
    agent.run().await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 400);
    assert_eq!(cloud.sent_since(NODE, before).await, (0, 0), "nothing had changed");

    agent.process.kill();
    cloud.apply((0..17).map(|number| changed(object(number), "a"))).await;
    cloud.apply(objects(400..405)).await;
    for number in 100..103 {
        cloud.delete(&object(number)).await;
    }
    agent.run().await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 402);
    assert_eq!(cloud.sent_since(NODE, before).await, (22, 3));

    // A restart of the cloud resets the counters.
    cloud.crash().await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 402);
    assert_eq!(cloud.sent_since(NODE, NodeCounters::default()).await, (0, 0), "nothing had changed");
}

#[tokio::test]
async fn twenty_thousand_objects_arrive_without_resends() {
    const COUNT: usize = 20_000;
    let limit = Duration::from_secs(120);
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    let mut agent = Agent::start(&site, NODE, cloud.mqtt).await;
    let start = Instant::now();
    cloud.apply(objects(0..COUNT)).await;
    println!("{COUNT} objects applied in {:.1?}", start.elapsed());
    assert_eq!(same_within(limit, &cloud, &agent).await, COUNT);
    println!("equal on both sides after {:.1?}", start.elapsed());
    let counters = cloud.counters(NODE).await;
    // The cloud resends one message as a probe when a disk stalls for `sync.resend_min`.
    assert!(
        counters.objects_resent <= 2 && counters.objects_sent == COUNT as u64 + counters.objects_resent,
        "{counters:?}"
    );

    // All at once, into an empty database.
    agent.stop().await;
    Snapshot::remove(&agent.database);
    let start = Instant::now();
    agent.run().await;
    eventually("the node is filled again", limit, async || {
        let node = cloud.node(NODE).await?;
        (node.state() == "in sync" && node.objects() == Some(COUNT as u64)).then_some(())
    })
    .await;
    println!("sent, stored and reported once more in {:.1?}", start.elapsed());
    assert_eq!(same_within(limit, &cloud, &agent).await, COUNT);
}

#[tokio::test]
async fn large_object_does_not_delay_small_ones() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    let mut agent = Agent::new(&site, NODE, cloud.mqtt);
    let large = sized("large", 3_000_000);
    // Queued before the small ones.
    cloud.apply([large.clone()]).await;
    cloud.apply(objects(0..300)).await;
    agent.run().await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 301);
    // The database has the order of arrival.
    agent.stop().await;
    let order = arrivals(&agent.database);
    let place = order.iter().position(|name| name == "large").unwrap();
    println!("the large object was stored after {place} of 300 small ones");
    assert!(place >= 50, "only {place} small objects came before the large one");
}

/// Returns the names of objects in the order in which they were stored.
fn arrivals(database: &std::path::Path) -> Vec<String> {
    let snapshot = Snapshot::of(database);
    let conn = snapshot.open();
    let mut statement = conn.prepare("SELECT name FROM objects ORDER BY revision").unwrap();
    let names = statement.query_map([], |row| row.get(0)).unwrap();
    names.map(Result::unwrap).collect()
}

#[tokio::test]
async fn oversized_object_is_rejected_without_delaying_others() {
    let site = Site::new();
    let (cloud, agent) = in_sync(&site, NODE, 30).await;
    let huge = sized("huge", 20 << 20);
    cloud.apply([huge.clone()]).await;
    let uid = cloud.get(&huge).await["metadata"]["uid"].as_str().unwrap().to_owned();
    cloud.apply(objects(30..60)).await;
    cloud.apply((0..10).map(|number| changed(object(number), "a"))).await;

    let refused = eventually("the object is refused", PATIENCE, async || {
        let node = cloud.node(NODE).await?;
        let refused = node.served()?.refused_objects.as_ref()?.first()?.clone();
        (node.objects() == Some(60) && node.pending() == Some(0)).then_some(refused)
    })
    .await;
    assert_eq!((&refused.uid, &*refused.reason), (&uid, "TooLarge"), "{refused:?}");
    let (mut wanted, found) = (wanted(&cloud).await, held(&agent.client()).await);
    wanted.remove(&uid).unwrap();
    let differences = differences(&wanted, &found);
    assert!(differences.is_empty(), "{differences:?}");

    let mut command = Command::new(edgesync_testkit::programs::device());
    let output = command.args(["status", "-v"]).arg("--socket").arg(&agent.socket).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains(&uid) && shown.contains("TooLarge"), "{shown}");

    // A version that fits is accepted at once.
    cloud.apply([sized("huge", 1000)]).await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 61);
    assert_eq!(cloud.served(NODE).await.unwrap().refused_objects, Some(Vec::new()));
}

#[tokio::test]
async fn rejected_object_is_named_in_status_log_and_event() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    let agent = Agent::start_with(&site, "edge-1", cloud.mqtt, |settings| {
        settings.text("sync.max_object", "256KiB");
    })
    .await;
    cloud.apply([sized("too-large", 300 << 10)]).await;
    let named = ObjectRef {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "plant-0".into(),
        name: "too-large".into(),
    };
    let refused = eventually("the cloud shows what is refused", PATIENCE, async || {
        cloud.served("edge-1").await?.refused_objects?.into_iter().next()
    })
    .await;
    assert_eq!((refused.object.as_ref(), &*refused.reason), (Some(&named), "TooLarge"), "{refused:#?}");
    let status = agent.until("it shows the same", |status| !status.rejected.is_empty()).await;
    assert_eq!(status.rejected[0].object, Some(named));
    assert!(agent.process.log().iter().any(|line| line.contains("ConfigMap plant-0/too-large")));
    let event = eventually("the Event is on the object", PATIENCE, async || {
        let path = "/apis/events.k8s.io/v1/namespaces/plant-0/events";
        let events: Value = cloud.client().get(path).await.ok()?;
        events["items"].as_array()?.iter().find(|event| event["reason"] == "ObjectRejected").cloned()
    })
    .await;
    assert_eq!(
        (&event["regarding"]["kind"], &event["regarding"]["name"]),
        (&"ConfigMap".into(), &"too-large".into())
    );
}

#[tokio::test]
async fn last_applied_annotation_is_sent_only_if_configured() {
    for travels in [false, true] {
        let site = Site::new();
        let cloud = Cloud::start_with(&site, |settings| {
            settings.set("sync.strip_last_applied", if travels { "false" } else { "true" });
        })
        .await;
        let agent = Agent::start(&site, NODE, cloud.mqtt).await;
        let (mut alone, mut beside) = (config_map(1), changed(config_map(2), "a"));
        for object in [&mut alone, &mut beside] {
            object["metadata"]["annotations"][LAST_APPLIED] = "{}\n".into();
        }
        cloud.apply([alone.clone(), beside.clone()]).await;
        for object in [alone, beside] {
            let held = eventually("it is on the node", PATIENCE, async || agent.get(&object).await).await;
            let stored = cloud.get(&object).await;
            assert_eq!(
                stored["metadata"]["annotations"], object["metadata"]["annotations"],
                "the cloud keeps it"
            );
            let noted = held["metadata"]["annotations"].get(LAST_APPLIED);
            assert_eq!(noted.map(|noted| *noted == "{}\n"), travels.then_some(true), "{held:#}");
            assert_eq!(is_same(held, stored), !travels);
        }
    }
}
