//! Processes that are killed at any moment, stopped in order and told to read their configuration again.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod e2e_support;

use e2e_support::*;

#[tokio::test]
async fn what_the_cloud_holds_arrives_on_the_node() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    let agent = Agent::start(&site, "edge-1", cloud.mqtt).await;
    cloud.apply(objects(0..200)).await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 200);
    let counters = cloud.counters("edge-1").await;
    assert_eq!((counters.sent, counters.resent), (200, 0), "{counters:?}");
}
