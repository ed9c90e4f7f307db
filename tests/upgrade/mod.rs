//! Upgrades: this version takes over what each released version has left on the disks of a device
//! and a cloud side. Downgrades: what a later version has left is refused with a next step.
//!
//! `tests/upgrade/record` writes the fixtures, in `tests/fixtures/releases/<version>`. Frames of
//! released versions are read by `tests/repository/frames.rs`. A device sets the database of a
//! later version aside: `tests/store/edge.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use edgesync_cloud_store::{CloudOptions, CloudStore};
use edgesync_config as config;
use edgesync_config::{Settings, edge, settings};
use edgesync_fleet::config::Config as CloudConfig;
use edgesync_testkit::site;
use serde_json::Value;
use site::fleet::{Fleet, ended, identity_of, in_sync, output_text};
use site::*;

/// The node of the fixtures.
const NODE: &str = "edge-1";
/// Objects that it holds: 12 ConfigMaps, 12 Secrets, a Pod, and one of a custom kind.
const OBJECTS: u64 = 26;
/// The Pod whose status waits in the outbox of the device.
const POD: &str = "/api/v1/namespaces/plant/pods/line";
const WIDGET: &str = "/apis/example.com/v1/namespaces/plant/widgets/wheel";

/// Returns the directories of the fixtures, oldest version first.
fn releases() -> Vec<PathBuf> {
    let directory = edgesync_testkit::programs::root().join("tests/fixtures/releases");
    let mut found: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    assert!(!found.is_empty(), "the fixtures were not found");
    found
}

/// Unpacks the databases and keys of a fixture to where the programs of a site expect them.
fn unpack(release: &Path, site: &Site) {
    let archive = fs::File::open(release.join("fleet.tar.zst")).unwrap();
    let files = zstd::decode_all(archive).unwrap();
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--file", "-", "--directory"]).arg(site.path("")).stdin(Stdio::piped());
    let mut child = tar.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&files).unwrap();
    assert!(child.wait().unwrap().success(), "{}", release.display());
}

/// Creates the agent of the unpacked device, not started.
fn device(site: &Site, fleet: &Fleet) -> Agent {
    let mut agent = Agent::new(site, NODE, fleet.cloud.mqtt);
    let mut identities = fs::read_dir(agent.database.with_file_name("identity")).unwrap();
    let identity = identities.next().unwrap().unwrap().path();
    agent.settings.text("identity.directory", identity.display());
    agent.settings.text("link.broker", format!("mqtts://{}", fleet.cloud.mqtt));
    agent.write_config();
    agent
}

fn recorded_status(release: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(release.join("status.json")).unwrap()).unwrap()
}

#[test]
fn this_version_has_recorded_fixtures() {
    let version = edgesync_testkit::programs::root().join("tests/fixtures/releases");
    let version = version.join(edgesync_runtime::VERSION);
    for file in ["fleet.tar.zst", "status.json", "edgesync.toml", "edgesync-cloud.toml"] {
        let path = version.join(file);
        assert!(path.exists(), "{} is missing\nhint: tests/upgrade/record", path.display());
    }
}

#[tokio::test]
async fn databases_of_each_release_keep_objects_and_identity() {
    for release in releases() {
        println!("upgrade from {}", release.display());
        let recorded = recorded_status(&release);
        let site = Site::new();
        unpack(&release, &site);
        let fleet = Fleet::embedded(&site, |_| {}).await;
        let mut agent = device(&site, &fleet);
        let certificate = identity_of(agent.config()).join("node.pem");
        let (before, certificate_before) = (edge_rows(&agent.database), fs::read(&certificate).unwrap());
        assert_eq!(before.len() as u64, OBJECTS);
        agent.run_as_configured().await;
        in_sync(&agent).await;

        let status = agent.status().await;
        assert_eq!(recorded["store"]["epoch"], status.store.epoch.as_str(), "the database was not replaced");
        assert_eq!((status.store.resets, status.store.writing.as_str()), (0, "works"));
        let identity = status.identity.unwrap();
        assert_eq!(recorded["identity"]["serial"], identity.serial.as_str());
        assert_eq!(fs::read(&certificate).unwrap(), certificate_before);

        // What waited in the outbox takes effect.
        eventually("the queued status has arrived", PATIENCE, async || {
            let pod: Value = fleet.cloud.client().get(POD).await.ok()?;
            (pod["status"]["message"] == "set while the cloud side was away").then_some(())
        })
        .await;
        eventually("both sides have equal objects", PATIENCE, async || {
            let (desired, found) = (wanted(&fleet.cloud).await, held(&agent.client()).await);
            differences(&desired, &found).is_empty().then_some(())
        })
        .await;
        fleet.cloud.in_sync(NODE, OBJECTS).await;
        let widget: Value = agent.client().get(WIDGET).await.unwrap();
        assert_eq!(widget["spec"]["size"], 3);
        // The Pod came back with its new status; the node held all others.
        let (sent, removals) = fleet.cloud.sent_since(NODE, Default::default()).await;
        assert!(sent <= 1 && removals == 0, "{sent} objects and {removals} removals sent");
        let uids = |rows: &BTreeMap<String, String>| rows.keys().cloned().collect::<Vec<_>>();
        agent.stop().await;
        assert_eq!(uids(&edge_rows(&agent.database)), uids(&before));

        // The CA and the key of tokens still serve new devices.
        let mut other = fleet.device(&site, "edge-2").await;
        other.run_as_configured().await;
        in_sync(&other).await;
    }
}

/// Checks that a recorded configuration is valid, and that each key that still exists has the
/// recorded value.
fn check_configuration<C: Settings>(path: &Path) {
    let text = fs::read_to_string(path).unwrap();
    let loaded = config::parse::<C>(path, &text, []).unwrap();
    let odd = loaded
        .warnings
        .iter()
        .find(|warning| !["is not used", "is deprecated"].iter().any(|expected| warning.contains(expected)));
    assert!(odd.is_none(), "{}: {odd:?}", path.display());
    let now: BTreeMap<String, String> = settings(&loaded.config)
        .into_iter()
        .map(|one| (format!("{}.{}", one.section, one.key), one.value))
        .collect();
    let (mut section, mut equal) = ("", 0);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name;
        }
        let Some((key, value)) = line.split_once(" = ") else { continue };
        // The origin of the value follows as a comment.
        let value = value.rsplit_once(" # ").map_or(value, |(value, _)| value).trim_end();
        if let Some(found) = now.get(&format!("{section}.{key}")) {
            assert_eq!(found, value, "{}: {section}.{key}", path.display());
            equal += 1;
        }
    }
    assert!(equal > 40, "{}: {equal} keys were compared", path.display());
}

#[test]
fn configurations_of_each_release_are_read() {
    for release in releases() {
        check_configuration::<edge::Config>(&release.join("edgesync.toml"));
        check_configuration::<CloudConfig>(&release.join("edgesync-cloud.toml"));
    }
}

#[test]
fn cloud_databases_of_each_release_can_be_restored() {
    for release in releases() {
        let site = Site::new();
        unpack(&release, &site);
        let (report, replaced) =
            edgesync_cloud_store::inspect::restore(&site.path("cloud.db"), &site.path("restored.db"))
                .unwrap();
        assert!(report.objects > OBJECTS && replaced.is_none(), "{}: {report:?}", release.display());
        CloudStore::open(&site.path("restored.db"), &CloudOptions::default()).unwrap();
    }
}

/// Marks a database as that of a later version.
fn make_newer(database: &Path) {
    let conn = rusqlite::Connection::open(database).unwrap();
    let newer = "INSERT INTO migrations VALUES (9999, '9999_x.sql', 0, ''); PRAGMA user_version = 9999;";
    conn.execute_batch(newer).unwrap();
    conn.close().unwrap();
}

#[tokio::test]
async fn cloud_side_refuses_a_newer_database_with_next_steps() {
    let site = Site::new();
    let mut cloud = Cloud::start(&site).await;
    cloud.apply(objects(0..3)).await;
    assert!(cloud.process.terminate(PATIENCE).await.success());
    let backup = site.path("backup.db");
    let backup = backup.to_str().unwrap();
    let command = async |words: &[&str]| {
        let mut command = Command::new(edgesync_testkit::programs::cloud());
        command.args(words).arg("--config").arg(site.path("cloud.toml"));
        ended(command).await
    };
    let output = command(&["backup", backup]).await;
    assert!(output.status.success(), "{}", output_text(&output));
    make_newer(&cloud.database);
    let before = fs::read(&cloud.database).unwrap();

    cloud.process.start();
    assert!(!cloud.process.ended(PATIENCE).await.success());
    cloud.process.logged("edgesync-cloud restore FILE", 0).await;
    let log = cloud.process.log().join("\n");
    for words in
        ["schema version 9999 of a newer edgesync-cloud", "hint: install", "edgesync-cloud restore FILE"]
    {
        assert!(log.contains(words), "{words:?} in {log}");
    }
    let output = command(&["verify"]).await;
    let text = output_text(&output);
    assert!(!output.status.success() && text.contains("install the newer edgesync-cloud again"), "{text}");
    assert!(fs::read(&cloud.database).unwrap() == before, "the database was not changed");

    // The second next step works.
    let output = command(&["restore", backup]).await;
    assert!(output.status.success(), "{}", output_text(&output));
    cloud.run().await;
    assert_eq!(held(&cloud.client()).await.len(), 3);
}
