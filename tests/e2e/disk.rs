//! A full or read-only disk of the node: only stored objects are reported, stored objects stay
//! readable, and sync resumes without a restart once writes succeed.
//!
//! The disk is a small tmpfs in the test's directory. Where the tests may not mount one (without
//! root), the store's size limit replaces it. Tests that need a real disk are then skipped, with a
//! note in the output.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::site;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use edgesync_admin::agent::{AgentStatus, StoreStatus};
use serde_json::Value;
use site::*;

const NODE: &str = "edge-1";

/// A mounted tmpfs; unmounted when dropped.
struct Disk(PathBuf);

impl Disk {
    fn mount(path: &Path, options: &str) -> Option<Self> {
        fs::create_dir_all(path).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(path).output();
        let mounted = mounted.is_ok_and(|output| output.status.success());
        if !mounted {
            eprintln!("no file system may be mounted here: the limit of the store takes its place");
        }
        mounted.then(|| Self(path.to_owned()))
    }

    /// Mounts the disk read-write or read-only.
    fn set_writable(&self, writable: bool) {
        let options = if writable { "remount,rw" } else { "remount,ro" };
        let output = Command::new("mount").args(["-o", options]).arg(&self.0).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Starts a cloud side that soon resends what a node had no space for.
async fn cloud(site: &Site) -> Cloud {
    Cloud::start_with(site, |settings| {
        settings.text("sync.resend_min", "500ms").text("sync.resend_max", "1s");
    })
    .await
}

/// Checks that everything reported is stored and that everything stored is readable.
async fn honest(cloud: &Cloud, agent: &Agent) {
    agent.process.signal("STOP");
    cloud.process.signal("STOP");
    let (reported, kept) = (recorded(&cloud.database, NODE), edge_rows(&agent.database));
    agent.process.signal("CONT");
    cloud.process.signal("CONT");
    for (uid, version) in &reported {
        assert_eq!(kept.get(uid), Some(version), "{uid} was reported");
    }
    let read = held(&agent.client()).await;
    for uid in kept.keys() {
        assert!(read.contains_key(uid), "{uid} cannot be read");
    }
}

#[tokio::test]
async fn full_disk_stops_reports_until_there_is_space() {
    let site = Site::new();
    let cloud = cloud(&site).await;
    let mut agent = Agent::new(&site, NODE, cloud.mqtt);
    let Some(disk) = Disk::mount(agent.database.parent().unwrap(), "size=4m") else {
        return;
    };
    agent.settings.text("store.wal_size", "64KiB");
    agent.run().await;
    cloud.apply(objects(0..300)).await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 300);
    let process = agent.process.id();

    // Another program fills the disk.
    let filler = disk.0.join("filler");
    fill(&filler);
    cloud.apply(objects(300..1000)).await;
    cloud.apply((0..10).map(|number| changed(object(number), "new"))).await;
    let status = agent.until("it says that the store is full", |status| status.store.writing == "full").await;
    assert!(status.objects.total >= 300, "{status:#?}");
    eventually("the cloud knows that objects are refused", PATIENCE, async || {
        let refused = cloud.served(NODE).await?.refused_objects?;
        (refused.first()?.reason == "StoreFull").then_some(())
    })
    .await;
    honest(&cloud, &agent).await;

    fs::remove_file(&filler).unwrap();
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 1000);
    let status = agent.status().await;
    assert_eq!((&*status.store.writing, status.store.resets), (StoreStatus::WORKS, 0), "{status:#?}");
    assert_eq!(agent.process.id(), process);
}

/// Writes until the disk is full.
fn fill(path: &Path) {
    use std::io::Write as _;
    let mut file = fs::File::create(path).unwrap();
    for size in [65_536, 4096] {
        while file.write_all(&vec![0x55; size]).is_ok() {}
    }
}

fn large(number: usize) -> Value {
    sized(&format!("large-{number}"), 10_000)
}

#[tokio::test]
async fn store_at_its_size_limit_keeps_objects_and_accepts_deletes() {
    let site = Site::new();
    let cloud = cloud(&site).await;
    let agent = Agent::start_with(&site, NODE, cloud.mqtt, |settings| {
        settings.text("store.max_size", "1MiB").text("sync.max_object", "512KiB");
    })
    .await;
    cloud.apply((0..150).map(large)).await;
    eventually("what does not fit is refused", PATIENCE, async || {
        let node = cloud.node(NODE).await?;
        let refused = node.served()?.refused_objects.as_ref()?;
        let full = refused.iter().all(|object| object.reason == "StoreFull");
        (full && node.objects()? + refused.len() as u64 == 150 && node.pending() == Some(0)).then_some(())
    })
    .await;
    honest(&cloud, &agent).await;
    let fits = cloud.node(NODE).await.unwrap().objects().unwrap();
    assert!((50..150).contains(&fits), "{fits} objects of 10 KB fit into 1 MiB");

    for number in 20..150 {
        cloud.delete(&large(number)).await;
    }
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 20);
    assert_eq!(agent.status().await.store.writing, StoreStatus::WORKS);
}

#[tokio::test]
async fn read_only_disk_allows_reads_and_sync_resumes() {
    let site = Site::new();
    let cloud = cloud(&site).await;
    let mut agent = Agent::start_with(&site, NODE, cloud.mqtt, |settings| {
        settings.text("store.flush_interval", "1s");
    })
    .await;
    cloud.apply(objects(0..100)).await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 100);
    let process = agent.process.id();

    // An empty read-only file system covers the directory of the database.
    let Some(cover) = Disk::mount(agent.database.parent().unwrap(), "ro") else {
        return;
    };
    let fails = |status: &AgentStatus| status.store.writing.starts_with("fails: ");
    agent.until("it says that nothing can be written", fails).await;
    cloud.apply(objects(100..110)).await;
    eventually("the cloud knows that objects are refused", PATIENCE, async || {
        let refused = cloud.served(NODE).await?.refused_objects?;
        (refused.first()?.reason == "StoreUnavailable").then_some(())
    })
    .await;
    let status = agent.status().await;
    assert!(fails(&status) && status.objects.total == 100, "{status:#?}");
    assert_eq!(held(&agent.client()).await.len(), 100);
    assert_eq!(cloud.node(NODE).await.unwrap().objects(), Some(100));

    drop(cover);
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 110);
    assert_eq!(agent.status().await.store.writing, StoreStatus::WORKS);
    assert_eq!(agent.process.id(), process);
    assert!(agent.process.runs());
}

#[tokio::test]
async fn start_on_a_read_only_disk_fails_with_the_reason() {
    let site = Site::new();
    let cloud = cloud(&site).await;
    let mut agent = Agent::new(&site, NODE, cloud.mqtt);
    let Some(disk) = Disk::mount(agent.database.parent().unwrap(), "size=16m") else {
        return;
    };
    agent.run().await;
    cloud.apply(objects(0..100)).await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 100);
    agent.stop().await;
    let before = cloud.counters(NODE).await;

    disk.set_writable(false);
    agent.process.start();
    // The service manager starts it again after a delay.
    assert_eq!(agent.process.ended(PATIENCE).await.code(), Some(70));
    agent.process.logged("Read-only file system", 0).await;
    disk.set_writable(true);
    agent.run().await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 100);
    assert_eq!(cloud.counters(NODE).await.objects_sent, before.objects_sent);
}
