//! A large object over a line that is cut, with restarts of both sides: the bytes that have arrived
//! are not sent again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit as support;
use edgesync_testkit::site;
use std::time::Duration;

use site::{Agent, Cloud, Site, eventually, same_within, sized};
use support::proxy::{Proxy, Way};

const NODE: &str = "edge-1";
/// The object compresses to a half.
const SIZE: usize = 6 << 20;
const LIMIT: Duration = Duration::from_secs(60);
/// The bytes that a killed agent may lose: those in memory, and those being committed.
const KILLED: u64 = 256 << 10;

/// Returns an installation with the object in the cloud, whose agent does not run yet.
async fn installation(site: &Site) -> (Cloud, Proxy, Agent) {
    let cloud = Cloud::start_with(site, |settings| {
        settings.text("api.max_body", "16MiB");
    })
    .await;
    let proxy = Proxy::start(cloud.mqtt);
    let agent = Agent::new(site, NODE, proxy.address());
    cloud.apply([sized("large", SIZE)]).await;
    (cloud, proxy, agent)
}

fn passed(proxy: &Proxy) -> u64 {
    proxy.passed(Way::Up) + proxy.passed(Way::Down)
}

/// Lets this many bytes reach the agent from now on; every later connection ends at its first byte.
fn limit(proxy: &Proxy, bytes: usize) {
    let later = std::iter::repeat_n((Way::Down, 1), 100_000);
    proxy.cut_series(std::iter::once((Way::Down, bytes)).chain(later));
}

async fn until_passed(proxy: &Proxy, bytes: u64) {
    let end = proxy.passed(Way::Down) + bytes;
    eventually("the line carries a part of the object", LIMIT, async || {
        (proxy.passed(Way::Down) >= end).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_object_survives_cuts_and_restarts_of_both_sides() {
    let needed = {
        let site = Site::new();
        let (cloud, proxy, mut agent) = installation(&site).await;
        agent.run().await;
        assert_eq!(same_within(LIMIT, &cloud, &agent).await, 1);
        passed(&proxy)
    };
    let site = Site::new();
    let (mut cloud, proxy, mut agent) = installation(&site).await;
    limit(&proxy, 600_000);
    agent.run().await;
    until_passed(&proxy, 600_000).await;
    limit(&proxy, 600_000);
    until_passed(&proxy, 600_000).await;
    agent.stop().await;
    limit(&proxy, 600_000);
    agent.run().await;
    until_passed(&proxy, 600_000).await;
    agent.process.kill();
    limit(&proxy, 600_000);
    agent.run().await;
    until_passed(&proxy, 600_000).await;
    cloud.crash().await;
    proxy.cut_series([]);
    assert_eq!(same_within(LIMIT, &cloud, &agent).await, 1);
    let passed = passed(&proxy);
    println!("{passed} bytes for {needed}");
    assert!(passed * 10 <= needed * 11 + KILLED * 10, "{passed} bytes for {needed}");
    assert!(agent.get(&sized("large", 1)).await.is_some());
}
