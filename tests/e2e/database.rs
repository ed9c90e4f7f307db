//! The node's database lost, truncated, replaced with an older copy or damaged: the agent
//! continues, and the cloud resends only what was lost.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::site;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use site::*;

const NODE: &str = "edge-1";
/// Number of bytes to flip, one after the other.
const FLIPS: usize = 25;
/// Maximum number of objects that are lost with one page.
const PAGE_OBJECTS: u64 = 12;

#[tokio::test]
async fn database_deleted_while_stopped_is_refilled() {
    let site = Site::new();
    let (cloud, mut agent) = in_sync(&site, NODE, 300).await;
    let before = cloud.counters(NODE).await;
    agent.stop().await;
    Snapshot::remove(&agent.database);
    agent.run().await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 300);
    assert_eq!(cloud.sent_since(NODE, before).await, (300, 0));
}

#[tokio::test]
async fn database_deleted_while_running_is_rewritten() {
    let site = Site::new();
    let (cloud, mut agent) = in_sync(&site, NODE, 300).await;
    let (before, process) = (cloud.counters(NODE).await, agent.process.id());
    Snapshot::remove(&agent.database);
    cloud.apply(objects(300..310)).await;
    agent.until("a loss is noticed", |status| status.store.resets == 1).await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 310);
    // Nothing was lost, but the contents of the commit that noticed the loss may be sent twice.
    let (sent, removals) = cloud.sent_since(NODE, before).await;
    assert!((10..=20).contains(&sent) && removals == 0, "{sent} objects and {removals} removals sent");
    assert_eq!(agent.process.id(), process);
    assert!(agent.process.runs());

    let before = cloud.counters(NODE).await;
    agent.crash().await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 310);
    assert_eq!(cloud.sent_since(NODE, before).await, (0, 0));
}

#[tokio::test]
async fn truncated_database_keeps_its_readable_objects() {
    let site = Site::new();
    let (cloud, mut agent) = in_sync(&site, NODE, 300).await;
    for share in [2, 3, 100] {
        let before = cloud.counters(NODE).await;
        agent.stop().await;
        let length = fs::metadata(&agent.database).unwrap().len();
        cut(&agent.database, length - length / share);
        agent.run().await;
        assert_eq!(same_on_both_sides(&cloud, &agent).await, 300);
        let (sent, removals) = cloud.sent_since(NODE, before).await;
        println!("without its last 1/{share}: {sent} objects sent again");
        let most = 300 / share + PAGE_OBJECTS * 2;
        assert!(sent > 0 && sent <= most, "without its last 1/{share}: {sent} objects sent");
        assert_eq!(removals, 0);
    }
}

#[tokio::test]
async fn database_truncated_while_running_does_not_stop_the_agent() {
    let site = Site::new();
    let (cloud, mut agent) = in_sync(&site, NODE, 300).await;
    let process = agent.process.id();
    for length in [40_960, 1000, 0] {
        cut(&agent.database, length);
        cloud.apply((0..20).map(|number| changed(object(number), length))).await;
        assert_eq!(same_on_both_sides(&cloud, &agent).await, 300);
    }
    assert_eq!(agent.process.id(), process);
    assert!(agent.process.runs());
}

#[tokio::test]
async fn older_database_gets_exactly_the_later_changes_again() {
    let site = Site::new();
    let (cloud, mut agent) = in_sync(&site, NODE, 300).await;
    agent.stop().await;
    let copy = Snapshot::of(&agent.database);
    agent.run().await;
    cloud.apply((0..20).map(|number| changed(object(number), "new"))).await;
    cloud.apply(objects(300..310)).await;
    for number in 20..25 {
        cloud.delete(&object(number)).await;
    }
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 305);

    agent.stop().await;
    let before = cloud.counters(NODE).await;
    copy.restore(&agent.database);
    agent.run().await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 305);
    assert_eq!(cloud.sent_since(NODE, before).await, (30, 5));
}

#[tokio::test]
async fn older_copy_while_running_does_not_stop_the_agent() {
    let site = Site::new();
    let (cloud, mut agent) = in_sync(&site, NODE, 300).await;
    agent.stop().await;
    let copy = Snapshot::of(&agent.database);
    agent.run().await;
    cloud.apply((0..20).map(|number| changed(object(number), "new"))).await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 300);

    let process = agent.process.id();
    copy.restore(&agent.database);
    cloud.apply(objects(300..310)).await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 310);
    assert_eq!(agent.process.id(), process);
    assert!(agent.process.runs());
}

#[tokio::test]
async fn flipped_byte_loses_at_most_a_few_objects() {
    let mut random = Random::seeded();
    let site = Site::new();
    let (cloud, mut agent) = in_sync(&site, NODE, 300).await;
    let mut most = 0;
    for _ in 0..FLIPS {
        let before = cloud.counters(NODE).await;
        agent.stop().await;
        let length = usize::try_from(fs::metadata(&agent.database).unwrap().len()).unwrap();
        let (position, bit) = (random.below(length), random.below(8));
        flip(&agent.database, position as u64, 1 << bit);
        agent.run().await;
        assert_eq!(same_on_both_sides(&cloud, &agent).await, 300, "byte {position} of {length}");
        let (sent, removals) = cloud.sent_since(NODE, before).await;
        assert!(sent <= PAGE_OBJECTS, "byte {position} of {length}, bit {bit}: {sent} objects sent");
        assert_eq!(removals, 0, "byte {position} of {length}, bit {bit}");
        most = most.max(sent);
    }
    println!("{FLIPS} bytes flipped, one cost {most} objects at most");
}

/// A read of the row finds a flipped byte in it. Only the check of the whole file, at the start and
/// every `store.scrub_interval`, finds one in an index.
#[tokio::test]
async fn bytes_flipped_while_running_are_repaired_by_the_next_start() {
    let mut random = Random::seeded();
    let site = Site::new();
    let (cloud, mut agent) = in_sync(&site, NODE, 300).await;
    // Closed normally, so that the database holds everything and its log is empty.
    agent.stop().await;
    agent.run().await;
    cloud.in_sync(NODE, 300).await;
    let process = agent.process.id();
    for round in 0..10 {
        let length = usize::try_from(fs::metadata(&agent.database).unwrap().len()).unwrap();
        flip(&agent.database, random.below(length) as u64, 1 << random.below(8));
        cloud.apply((0..20).map(|number| changed(object(number), round))).await;
        held(&agent.client()).await;
    }
    cloud.in_sync(NODE, 300).await;
    assert_eq!(agent.process.id(), process);
    assert!(agent.process.runs());
    agent.crash().await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 300);
}

fn cut(path: &Path, length: u64) {
    File::options().write(true).open(path).unwrap().set_len(length).unwrap();
}

fn flip(path: &Path, position: u64, bit: u8) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, position).unwrap();
    file.write_all_at(&[byte[0] ^ bit], position).unwrap();
}
