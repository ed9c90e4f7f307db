//! Replicas behind an external broker: one serves all nodes, another one stands by, and nodes join
//! at either.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use crate::cluster::setup::{EVERYWHERE, Setup, arrived, config_map};
use edgesync_testkit::mosquitto::{Mosquitto, free_address};
use edgesync_testkit::site::Site;
use edgesync_testkit::site::fleet::{Fleet, in_sync, mosquitto_files, output_text};
use edgesync_testkit::timing::assert_within;

/// Maximum time without a serving replica on an idle machine, with the time of the commands.
const TAKEOVER: Duration = Duration::from_secs(15 + 10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn external_broker_nodes_join_anywhere_and_fail_over() {
    let setup = Setup::start().await;
    setup.apply(EVERYWHERE);
    for number in 0..10 {
        setup.apply(&config_map(&format!("c{number}"), "fast"));
    }
    let address = free_address();
    let homes = [Site::new(), Site::new()];
    let [mut leader, mut next] = homes.each_ref().map(|home| {
        let (mut cloud, joining) = (setup.replica(home), Site::address());
        cloud.mqtt = address;
        cloud.settings.text("broker.mode", "external").text("link.broker", format!("mqtts://{address}"));
        cloud.settings.text("link.backoff_min", "20ms").text("link.backoff_max", "200ms");
        cloud.settings.text("enrollment.listen", joining);
        Fleet { cloud, joining }
    });
    leader.cloud.run().await;
    mosquitto_files(&leader, &setup.site.path("mosquitto"), address).await;
    let _broker = Mosquitto::start_from(address, &setup.site.path("mosquitto/mosquitto.conf"));
    next.cloud.write_config();
    next.cloud.process.start();
    next.cloud.process.logged("standing by", 0).await;

    let mut agents = Vec::new();
    for (node, fleet) in [("edge-1", &leader), ("edge-2", &next)] {
        let token = setup.says(&["token", "create", "--node", node]).await;
        let mut agent = fleet.new_device(&setup.site, node);
        let output = fleet.join(&agent, &token, &[]).await;
        assert!(output.status.success(), "{node}: {}", output_text(&output));
        agent.run_as_configured().await;
        setup.holds(&agent, "cm").await;
        in_sync(&agent).await;
        agents.push(agent);
    }
    setup.records_everything(&["edge-1", "edge-2"], "cm").await;

    let killed = Instant::now();
    leader.cloud.process.kill();
    setup.apply(&config_map("c0", "slow"));
    setup.admin.run(&["delete", "cm/c1", "-n", "shop"]).ok();
    for agent in &agents {
        setup.holds(agent, "cm").await;
    }
    assert_within(killed.elapsed(), TAKEOVER);
    setup.records_everything(&["edge-1", "edge-2"], "cm").await;
    for agent in &agents {
        assert_eq!(arrived(agent).await.0, 10 + 1, "{} got something that it held already", agent.node);
    }
    // The restarted replica stands by.
    leader.cloud.process.start();
    leader.cloud.process.logged("standing by", 0).await;
}
