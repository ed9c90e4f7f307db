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
/// The bytes that a cut may lose: those that have passed and are in the socket of the agent, which
/// has not read them yet. On a busy machine they are many.
const UNREAD: u64 = 256 << 10;

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
/// Returns the number of bytes that will have passed.
fn limit(proxy: &Proxy, bytes: u32) -> u64 {
    let later = std::iter::repeat_n((Way::Down, 1), 100_000);
    // Counted before the limit is set: bytes may pass meanwhile.
    let end = proxy.passed(Way::Down) + u64::from(bytes);
    proxy.cut_series(std::iter::once((Way::Down, bytes as usize)).chain(later));
    end
}

async fn until_passed(proxy: &Proxy, end: u64) {
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
    let end = limit(&proxy, 600_000);
    agent.run().await;
    until_passed(&proxy, end).await;
    until_passed(&proxy, limit(&proxy, 600_000)).await;
    agent.stop().await;
    let end = limit(&proxy, 600_000);
    agent.run().await;
    until_passed(&proxy, end).await;
    agent.process.kill();
    let end = limit(&proxy, 600_000);
    agent.run().await;
    until_passed(&proxy, end).await;
    cloud.crash().await;
    proxy.cut_series([]);
    assert_eq!(same_within(LIMIT, &cloud, &agent).await, 1);
    let passed = passed(&proxy);
    println!("{passed} bytes for {needed}");
    // Without the parts that are kept, the first four interruptions alone would repeat 2.4 MB.
    assert!(passed <= needed * 11 / 10 + KILLED + 5 * UNREAD, "{passed} bytes for {needed}");
    assert!(agent.get(&sized("large", 1)).await.is_some());
}
