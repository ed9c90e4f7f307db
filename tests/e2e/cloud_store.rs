//! The cloud's store restored from an older copy, or lost: no node loses an object before an
//! operator confirms it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::site;

use site::fleet::output_text;
use site::*;

const NODE: &str = "edge-1";

/// Waits until removals are held back, and checks that the objects still exist.
async fn held_back(cloud: &Cloud, agent: &Agent, numbers: std::ops::Range<usize>) {
    let count = numbers.len() as u64;
    eventually(&format!("{count} removals are held back"), PATIENCE, async || {
        let node = cloud.node(NODE).await?;
        (node.held_back() == Some(count) && node.pending() == Some(0)).then_some(())
    })
    .await;
    let node = cloud.served(NODE).await.unwrap();
    assert_eq!(node.state, "held back", "{node:#?}");
    assert_eq!(cloud.counters(NODE).await.removals_sent, 0, "{node:#?}");
    assert_eq!(node.held_back_objects.unwrap().len(), numbers.len());
    agent.until("the node knows it", |status| status.sync.held_back == count).await;
    for object in objects(numbers) {
        assert!(agent.get(&object).await.is_some(), "{} is gone", object["metadata"]["name"]);
    }
}

async fn confirm_deletions(cloud: &Cloud) {
    let output = cloud.command(&["confirm-deletions", NODE]).await;
    assert!(output.status.success(), "{}", output_text(&output));
}

#[tokio::test]
async fn older_cloud_store_removes_nothing_until_confirmed() {
    let site = Site::new();
    let mut cloud = Cloud::start(&site).await;
    let agent = Agent::start(&site, NODE, cloud.mqtt).await;
    cloud.apply(objects(0..100)).await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 100);
    assert!(cloud.process.terminate(PATIENCE).await.success());
    let copy = Snapshot::of(&cloud.database);
    cloud.run().await;

    cloud.apply(objects(100..150)).await;
    cloud.apply((0..10).map(|number| changed(object(number), "later"))).await;
    for number in 10..15 {
        cloud.delete(&object(number)).await;
    }
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 145);
    cloud.process.kill();
    copy.restore(&cloud.database);
    cloud.run().await;

    held_back(&cloud, &agent, 100..150).await;
    // Everything else syncs: objects deleted later exist again, those changed later have their old
    // content.
    let counters = cloud.counters(NODE).await;
    assert_eq!((counters.objects_sent, counters.objects_resent), (15, 0), "{counters:?}");
    assert!(is_same(agent.get(&object(3)).await.unwrap(), cloud.get(&object(3)).await));
    assert!(agent.get(&object(12)).await.is_some());
    cloud.apply(objects(200..205)).await;
    eventually("new objects arrive all the same", PATIENCE, async || agent.get(&object(204)).await).await;

    // Both sides remember it.
    cloud.crash().await;
    held_back(&cloud, &agent, 100..150).await;

    confirm_deletions(&cloud).await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 105);
}

#[tokio::test]
async fn lost_cloud_store_removes_nothing_until_confirmed() {
    let site = Site::new();
    let mut cloud = Cloud::start(&site).await;
    let agent = Agent::start(&site, NODE, cloud.mqtt).await;
    cloud.apply(objects(0..100)).await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 100);
    cloud.process.kill();
    Snapshot::remove(&cloud.database);
    cloud.run().await;
    held_back(&cloud, &agent, 0..100).await;

    // Objects created again under their names replace the old ones.
    cloud.apply(objects(0..60)).await;
    held_back(&cloud, &agent, 60..100).await;
    confirm_deletions(&cloud).await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 60);
}
