//! The programs as services: SIGTERM, SIGHUP and the notifications to the service manager.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::site;
use edgesync_testkit::timing::within;
use std::path::{Path, PathBuf};
use std::time::Duration;

use edgesync_admin::cloud::state::OFFLINE;
use site::*;
use tokio::net::UnixDatagram;

const NODE: &str = "edge-1";
/// Maximum time for an orderly shutdown.
const END: Duration = Duration::from_secs(5);

/// The service manager's end of `NOTIFY_SOCKET`.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Manager {
    fn at(path: &Path) -> Self {
        Self { socket: UnixDatagram::bind(path).unwrap(), path: path.to_owned() }
    }

    /// Waits for a message with this assignment and returns the whole message.
    async fn received(&self, assignment: &str) -> String {
        let wait = async {
            loop {
                let mut buffer = [0; 4096];
                let length = self.socket.recv(&mut buffer).await.unwrap();
                let message = String::from_utf8(buffer[..length].to_vec()).unwrap();
                if message.lines().any(|line| line == assignment) {
                    return message;
                }
            }
        };
        within(&format!("the service manager receives {assignment}"), PATIENCE, wait).await
    }
}

#[tokio::test]
async fn sigterm_mid_sync_drains_both_sides_and_exits_with_zero() {
    let site = Site::new();
    let mut cloud = Cloud::start(&site).await;
    let mut agent = Agent::start(&site, NODE, cloud.mqtt).await;
    cloud.apply(objects(0..1000)).await;

    let status = agent.process.terminate(END).await;
    assert_eq!(status.code(), Some(0));
    eventually("the cloud sees that the node has gone", END, async || {
        (cloud.state(NODE).await? == OFFLINE).then_some(())
    })
    .await;
    let status = cloud.process.terminate(END).await;
    assert_eq!(status.code(), Some(0));

    let (reported, kept) = (recorded(&cloud.database, NODE), edge_rows(&agent.database));
    for (uid, version) in &reported {
        assert_eq!(kept.get(uid), Some(version), "{uid} was reported");
    }
    cloud.run().await;
    agent.run().await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 1000);
}

#[tokio::test]
async fn reload_changes_the_log_level_of_both_sides() {
    let site = Site::new();
    let mut cloud = Cloud::start(&site).await;
    let mut agent = Agent::start(&site, NODE, cloud.mqtt).await;
    cloud.in_sync(NODE, 0).await;
    let debug = |process: &Process| process.log().iter().any(|line| line.contains("DEBUG"));
    assert!(!debug(&agent.process) && !debug(&cloud.process));

    agent.settings.text("log.level", "debug");
    agent.write_config();
    agent.process.signal("HUP");
    agent.process.logged("reloaded: log.level", 0).await;
    cloud.settings.text("log.level", "debug");
    cloud.write_config();
    cloud.process.signal("HUP");
    cloud.process.logged("reloaded: log.level", 0).await;
    cloud.apply([object(1)]).await;
    agent.process.logged("DEBUG", 0).await;
    cloud.process.logged("DEBUG", 0).await;
    assert!(agent.process.runs() && cloud.process.runs());

    // An invalid file changes nothing.
    agent.settings.text("log.level", "loud");
    agent.write_config();
    let lines = agent.process.log().len();
    agent.process.signal("HUP");
    agent.process.logged("reload rejected, configuration unchanged", lines).await;
    cloud.apply([object(2)]).await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 2);
}

#[tokio::test]
async fn service_manager_receives_ready_reloading_and_stopping() {
    let site = Site::new();
    let manager = Manager::at(&site.path("notify"));
    let mut cloud = Cloud::new(&site);
    cloud.process.env("NOTIFY_SOCKET", manager.path.display());
    cloud.run().await;
    manager.received("EXTEND_TIMEOUT_USEC=30000000").await;
    let ready = manager.received("READY=1").await;
    assert!(ready.contains("loading placement index"), "{ready}");

    let mut agent = Agent::new(&site, NODE, cloud.mqtt);
    agent.process.env("NOTIFY_SOCKET", manager.path.display());
    agent.process.env("WATCHDOG_USEC", 400_000);
    agent.run().await;
    manager.received("READY=1").await;
    manager.received("STATUS=in sync, 0 objects").await;
    manager.received("WATCHDOG=1").await;
    agent.process.signal("HUP");
    let message = manager.received("RELOADING=1").await;
    assert!(message.contains("MONOTONIC_USEC="), "{message}");
    manager.received("READY=1").await;

    agent.stop().await;
    manager.received("STOPPING=1").await;
    assert_eq!(cloud.process.terminate(END).await.code(), Some(0));
    manager.received("STOPPING=1").await;
}
