//! A node's disk that is full or cannot be written: nothing is reported that is not stored, what is stored
//! can be read, and all goes on without a restart once it can be written again.
//!
//! The disk is a small tmpfs in the test's directory. Where the tests may not mount one (they are not run
//! by root), the store's own limit of size takes its place, and what only a real disk shows is left out,
//! which the output says.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::site;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

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

    /// Whether it can be written from now on.
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

/// A cloud side that soon tries again to send what a node had no room for.
async fn cloud(site: &Site) -> Cloud {
    Cloud::start_with(site, |settings| {
        settings.text("sync.resend_min", "500ms").text("sync.resend_max", "1s");
    })
    .await
}

/// Sees that everything reported is stored and that everything stored can be read.
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
async fn on_a_full_disk_nothing_is_reported_in_vain_and_room_is_used_as_soon_as_there_is_some() {
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

    // Somebody else fills the disk.
    let filler = disk.0.join("filler");
    fill(&filler);
    cloud.apply(objects(300..1000)).await;
    cloud.apply((0..10).map(|number| changed(object(number), "new"))).await;
    let status =
        agent.until("it says that the store is full", |status| status["store"]["writing"] == "full").await;
    assert!(status["objects"]["total"].as_u64().unwrap() >= 300, "{status:#}");
    eventually("the cloud knows that objects are refused", PATIENCE, async || {
        let node = cloud.node(NODE).await;
        let refused = node["refusedObjects"].as_array()?.first()?.clone();
        (refused["reason"] == "StoreFull").then_some(())
    })
    .await;
    honest(&cloud, &agent).await;

    fs::remove_file(&filler).unwrap();
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 1000);
    let status = agent.status().await;
    assert_eq!(status["store"]["writing"], "works", "{status:#}");
    assert_eq!(status["store"]["resets"], 0, "{status:#}");
    assert_eq!(agent.process.id(), process);
}

/// Writes until there is no room left.
fn fill(path: &Path) {
    use std::io::Write as _;
    let mut file = fs::File::create(path).unwrap();
    for size in [65_536, 4096] {
        while file.write_all(&vec![0x55; size]).is_ok() {}
    }
}

#[tokio::test]
async fn at_the_limit_of_its_size_the_store_keeps_what_it_has_and_takes_what_fits_after_deletions() {
    let site = Site::new();
    let cloud = cloud(&site).await;
    let agent = Agent::start_with(&site, NODE, cloud.mqtt, |settings| {
        settings.text("store.max_size", "1MiB").text("sync.max_object", "512KiB");
    })
    .await;
    cloud.apply(objects(0..1000)).await;
    eventually("what does not fit is refused", PATIENCE, async || {
        let node = cloud.node(NODE).await;
        let (objects, refused) = (node["objects"].as_u64()?, node["refusedObjects"].as_array()?);
        let full = refused.iter().all(|object| object["reason"] == "StoreFull");
        (full && objects + refused.len() as u64 == 1000 && node["pending"] == 0).then_some(())
    })
    .await;
    honest(&cloud, &agent).await;
    let fits = cloud.node(NODE).await["objects"].as_u64().unwrap();
    assert!((300..1000).contains(&fits), "{fits} objects of 1.4 KB fit into 1 MiB");

    for number in 100..1000 {
        cloud.delete(&object(number)).await;
    }
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 100);
    assert_eq!(agent.status().await["store"]["writing"], "works");
}

#[tokio::test]
async fn where_nothing_can_be_written_all_is_still_read_and_goes_on_once_it_can() {
    let site = Site::new();
    let cloud = cloud(&site).await;
    let mut agent = Agent::start_with(&site, NODE, cloud.mqtt, |settings| {
        settings.text("store.flush_interval", "1s");
    })
    .await;
    cloud.apply(objects(0..100)).await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 100);
    let process = agent.process.id();

    // The directory of the database disappears under a file system that is empty and read-only.
    let Some(cover) = Disk::mount(agent.database.parent().unwrap(), "ro") else {
        return;
    };
    let fails = |status: &serde_json::Value| {
        status["store"]["writing"].as_str().is_some_and(|writing| writing.starts_with("fails: "))
    };
    agent.until("it says that nothing can be written", fails).await;
    cloud.apply(objects(100..110)).await;
    eventually("the cloud knows that objects are refused", PATIENCE, async || {
        let node = cloud.node(NODE).await;
        let refused = node["refusedObjects"].as_array()?.first()?.clone();
        (refused["reason"] == "StoreUnavailable").then_some(())
    })
    .await;
    let status = agent.status().await;
    assert!(fails(&status) && status["objects"]["total"] == 100, "{status:#}");
    assert_eq!(held(&agent.client()).await.len(), 100);
    assert_eq!(cloud.node(NODE).await["objects"], 100);

    drop(cover);
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 110);
    assert_eq!(agent.status().await["store"]["writing"], "works");
    assert_eq!(agent.process.id(), process);
    assert!(agent.process.runs());
}

#[tokio::test]
async fn a_start_on_a_disk_that_cannot_be_written_says_why_and_costs_nothing() {
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
    // The service manager starts it again after a while.
    assert_eq!(agent.process.ended(PATIENCE).await.code(), Some(70));
    agent.process.logged("Read-only file system", 0).await;
    disk.set_writable(true);
    agent.run().await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 100);
    assert_eq!(cloud.counters(NODE).await.sent, before.sent);
}
