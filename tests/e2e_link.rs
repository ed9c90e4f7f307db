//! Cloud side and agent as processes on links that fail in every way: the ends are equal, the failure is
//! noticed in time and told, and what was reported is not sent again.
#![cfg(feature = "cloud")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod e2e_site;
mod support {
    pub(crate) mod mosquitto;
    pub(crate) mod proxy;
    pub(crate) mod relay;
    pub(crate) mod scripted_broker;
}

use std::time::Duration;

use e2e_site::{Agent, Cloud, PATIENCE, config_map, eventually, steadily, wait_equal};
use serde_json::{Value, json};
use support::mosquitto::{self, Mosquitto};
use support::proxy::{Mode, Proxy, Way};
use support::relay::Relay;

const NODE: &str = "edge-1";
/// The shortest one that is usual; a dead peer is noticed within it.
const KEEPALIVE: Duration = Duration::from_secs(4);
const LINK: &str = "keepalive = \"4s\"";
/// What a busy machine may take on top of a time that is promised.
const SLACK: Duration = Duration::from_secs(3);
/// Nothing is sent again because a busy machine answered late.
const PATIENT: &str = "resend_min = \"20s\"";
/// What is lost is sent again soon.
const HASTY: &str = "resend_min = \"500ms\"\nresend_max = \"2s\"\nframe_objects = 16";

fn objects(range: std::ops::Range<usize>, note: &str) -> Vec<Value> {
    range.map(|number| config_map(&name(number), note, 300)).collect()
}

fn large_objects(range: std::ops::Range<usize>) -> Vec<Value> {
    range.map(|number| config_map(&name(number), "large", 1000)).collect()
}

fn names(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(name).collect()
}

fn name(number: usize) -> String {
    format!("settings-{number}")
}

fn says_connected(agent: &Agent) -> bool {
    agent.says("/link/state") == "connected"
}

#[test]
fn two_thousand_objects_change_and_go_through_mosquitto() {
    let broker = Mosquitto::start();
    two_thousand_objects_change_and_go(&Cloud::external(broker.address(), PATIENT));
}

#[test]
fn two_thousand_objects_change_and_go_through_the_embedded_endpoint() {
    two_thousand_objects_change_and_go(&Cloud::embedded(PATIENT));
}

fn two_thousand_objects_change_and_go(cloud: &Cloud) {
    let agent = Agent::start(NODE, cloud.broker(), LINK);
    cloud.create(objects(0..2000, "first"));
    wait_equal(cloud, &agent);
    assert_eq!(agent.counts("/objects/total"), 2000);
    assert_eq!(cloud.counter(NODE, "objectsSent"), 2000);
    cloud.replace(objects(0..100, "second"));
    cloud.delete(names(1950..2000));
    cloud.create(objects(1990..2000, "anew"));
    wait_equal(cloud, &agent);
    assert_eq!(agent.counts("/objects/total"), 1960);
    assert_eq!(cloud.counter(NODE, "objectsSent"), 2110);
    let removed = cloud.counter(NODE, "removalsSent");
    assert!((40..=50).contains(&removed), "{removed} removals: those of replaced names may be left out");
    assert_eq!((cloud.counter(NODE, "objectsResent"), cloud.counter(NODE, "inventories")), (0, 0));
}

#[test]
fn a_broker_killed_in_a_transfer_costs_nothing_that_the_node_holds() {
    let mut broker = Mosquitto::start();
    let cloud = Cloud::external(broker.address(), PATIENT);
    let agent = Agent::start(NODE, cloud.broker(), LINK);
    cloud.create(objects(0..200, "first"));
    wait_equal(&cloud, &agent);
    cloud.create(objects(200..1500, "first"));
    broker.kill();
    eventually("both sides lose the broker", KEEPALIVE + SLACK, || {
        !says_connected(&agent) && cloud.state(NODE) == "offline"
    });
    let (sent, held) = (cloud.counter(NODE, "objectsSent"), settled(&agent));
    broker.restart();
    wait_equal(&cloud, &agent);
    assert_eq!(cloud.counter(NODE, "objectsSent"), sent + 1500 - held, "{sent} were sent, {held} held");
    // In sync: nothing at all is sent, and what changed meanwhile once, in its last version.
    broker.kill();
    for note in ["second", "third", "last"] {
        cloud.replace(objects(0..5, note));
    }
    cloud.delete(names(5..8));
    broker.restart();
    wait_equal(&cloud, &agent);
    assert_eq!(cloud.counter(NODE, "objectsSent"), sent + 1500 - held + 5);
    assert_eq!(cloud.counter(NODE, "removalsSent"), 3);
    assert_eq!((cloud.counter(NODE, "objectsResent"), cloud.counter(NODE, "inventories")), (0, 0));
}

/// What the node holds once its commits under way have ended.
fn settled(agent: &Agent) -> u64 {
    let mut last = agent.counts("/store/revision");
    let mut still = 0;
    eventually("commits end", PATIENCE, || {
        let now = agent.counts("/store/revision");
        still = if now == last { still + 1 } else { 0 };
        last = now;
        still >= 10
    });
    agent.counts("/objects/total")
}

#[test]
fn a_cloud_killed_in_a_transfer_sends_only_what_the_node_does_not_hold() {
    let mut cloud = Cloud::embedded(PATIENT);
    let agent = Agent::start(NODE, cloud.broker(), LINK);
    cloud.create(objects(0..200, "first"));
    wait_equal(&cloud, &agent);
    cloud.create(objects(200..1500, "first"));
    cloud.kill();
    eventually("the loss of the cloud is noticed", KEEPALIVE + SLACK, || !says_connected(&agent));
    let held = settled(&agent);
    cloud.restart();
    wait_equal(&cloud, &agent);
    assert_eq!(cloud.counter(NODE, "objectsSent"), 1500 - held, "{held} were held");
    // In sync: nothing is sent.
    cloud.restart();
    wait_equal(&cloud, &agent);
    assert_eq!(cloud.counter(NODE, "objectsSent"), 0);
    cloud.replace(objects(0..5, "second"));
    cloud.delete(names(5..8));
    wait_equal(&cloud, &agent);
    assert_eq!((cloud.counter(NODE, "objectsSent"), cloud.counter(NODE, "removalsSent")), (5, 3));
    assert_eq!((cloud.counter(NODE, "objectsResent"), cloud.counter(NODE, "inventories")), (0, 0));
}

#[test]
fn a_link_that_is_open_at_one_end_only_is_noticed_within_the_keepalive() {
    let broker = Mosquitto::start();
    let proxy = Proxy::start(broker.address());
    let cloud = Cloud::external(broker.address(), HASTY);
    let agent = Agent::start(NODE, proxy.address(), LINK);
    cloud.create(objects(0..100, "first"));
    wait_equal(&cloud, &agent);
    proxy.set(Mode::Stall);
    eventually("the agent notices", KEEPALIVE + SLACK, || !says_connected(&agent));
    let cause = agent.says("/link/cause");
    assert!(cause.contains("silent") || cause.contains("did not complete"), "{cause}");
    assert!(agent.says("/cloud/state").starts_with("unknown"));
    assert!(!agent.is_in_sync());
    cloud.replace(objects(0..10, "second"));
    cloud.create(objects(100..150, "first"));
    proxy.set(Mode::Pass);
    wait_equal(&cloud, &agent);
    assert_eq!(agent.counts("/objects/total"), 150);
}

#[test]
fn cuts_in_the_middle_of_frames_end_equal() {
    let broker = Mosquitto::start();
    let proxy = Proxy::start(broker.address());
    let cloud = Cloud::external(broker.address(), PATIENT);
    cloud.create(large_objects(0..1500));
    let cuts = [
        (Way::Down, 30_000),
        (Way::Down, 170_001),
        (Way::Up, 700),
        (Way::Down, 260_123),
        (Way::Down, 99_999),
        (Way::Up, 900),
        (Way::Down, 5),
        (Way::Down, 301_000),
    ];
    proxy.cut_series(cuts);
    let agent = Agent::start(NODE, proxy.address(), LINK);
    wait_equal(&cloud, &agent);
    assert_eq!(agent.counts("/objects/total"), 1500);
    assert_eq!(proxy.accepted(), cuts.len() as u64 + 1, "each cut fell into the transfer");
    assert_eq!(agent.status()["counters"]["badFrames"], json!({}));
}

#[test]
fn a_long_round_trip_ends_equal() {
    let broker = Mosquitto::start();
    let proxy = Proxy::start(broker.address());
    proxy.set(Mode::Delay(Duration::from_millis(300)));
    let cloud = Cloud::external(broker.address(), HASTY);
    let agent = Agent::start(NODE, proxy.address(), LINK);
    cloud.create(objects(0..400, "first"));
    wait_equal(&cloud, &agent);
    cloud.replace(objects(0..20, "second"));
    cloud.delete(names(20..30));
    wait_equal(&cloud, &agent);
    assert_eq!((agent.counts("/objects/total"), agent.counts("/link/connections")), (390, 1));
}

#[test]
fn a_dead_cloud_behind_a_living_broker_is_told_and_comes_back() {
    const TOLD: Duration = Duration::from_secs(30);
    let broker = Mosquitto::start();
    let mut cloud = Cloud::external(broker.address(), HASTY);
    let agent = Agent::start(NODE, cloud.broker(), LINK);
    cloud.create(objects(0..50, "first"));
    wait_equal(&cloud, &agent);
    let is_gone = |agent: &Agent| {
        let state = agent.says("/cloud/state");
        (state.contains("offline") || state.contains("unreachable")) && !agent.is_in_sync()
    };
    cloud.process().signal("STOP");
    eventually("the agent tells that the cloud hangs", TOLD, || is_gone(&agent));
    assert!(says_connected(&agent), "the broker lives");
    let shown = agent.status_text();
    assert!(shown.contains("offline") || shown.contains("unreachable"), "{shown}");
    cloud.process().signal("CONT");
    wait_equal(&cloud, &agent);
    cloud.kill();
    eventually("the agent tells that the cloud is gone", TOLD, || is_gone(&agent));
    assert!(says_connected(&agent), "the broker lives");
    cloud.restart();
    cloud.replace(objects(0..10, "second"));
    wait_equal(&cloud, &agent);
    assert_eq!(agent.counts("/link/connections"), 1);
}

#[test]
fn an_endpoint_that_hangs_is_noticed_within_the_keepalive() {
    let mut cloud = Cloud::embedded(HASTY);
    let agent = Agent::start(NODE, cloud.broker(), LINK);
    cloud.create(objects(0..50, "first"));
    wait_equal(&cloud, &agent);
    cloud.process().signal("STOP");
    eventually("the agent notices", KEEPALIVE + SLACK, || !says_connected(&agent));
    cloud.process().signal("CONT");
    cloud.create(objects(50..60, "first"));
    wait_equal(&cloud, &agent);
}

#[test]
fn a_broker_that_loses_what_it_acknowledged_delays_but_ends_equal() {
    let broker = Mosquitto::start();
    let relay = Relay::start(broker.address());
    let cloud = Cloud::external(broker.address(), HASTY);
    let agent = Agent::start(NODE, relay.address(), LINK);
    wait_equal(&cloud, &agent);
    relay.lose_every(3);
    cloud.create(objects(0..600, "first"));
    cloud.replace(objects(0..50, "second"));
    cloud.delete(names(50..60));
    eventually("messages get lost both ways", PATIENCE, || {
        let (up, down) = relay.lost();
        up >= 3 && down >= 10
    });
    relay.lose_every(0);
    wait_equal(&cloud, &agent);
    assert_eq!(agent.counts("/objects/total"), 590);
}

#[test]
fn two_agents_with_one_name_are_told_through_mosquitto() {
    let broker = Mosquitto::start();
    two_agents_with_one_name_are_told(&Cloud::external(broker.address(), HASTY));
}

#[test]
fn two_agents_with_one_name_are_told_by_the_embedded_endpoint() {
    two_agents_with_one_name_are_told(&Cloud::embedded(HASTY));
}

fn two_agents_with_one_name_are_told(cloud: &Cloud) {
    const BACK_OFF: &str = "keepalive = \"4s\"\ntaken_over_backoff = \"2s\"";
    cloud.create(objects(0..200, "first"));
    let one = Agent::start(NODE, cloud.broker(), BACK_OFF);
    wait_equal(cloud, &one);
    let two = Agent::start(NODE, cloud.broker(), BACK_OFF);
    let (mut one_knows, mut two_knows) = (false, false);
    eventually("both are told of each other", PATIENCE, || {
        one_knows |= knows_a_rival(&one);
        two_knows |= knows_a_rival(&two);
        one_knows && two_knows
    });
    cloud.replace(objects(0..20, "second"));
    cloud.delete(names(190..200));
    drop(one);
    wait_equal(cloud, &two);
    assert_eq!(two.counts("/objects/total"), 190);
    // Alone it keeps its link.
    let connections = two.counts("/link/connections");
    steadily("the link stays", Duration::from_secs(3), || two.counts("/link/connections") == connections);
}

/// Whether the status names the rival and a wait as long as configured.
fn knows_a_rival(agent: &Agent) -> bool {
    let status = agent.status();
    let knows = status["link"]["cause"].as_str().is_some_and(|cause| cause.contains("taken over"));
    if knows {
        let wait = status["link"]["retryInSeconds"].as_f64().unwrap();
        assert!((2.0..=3.0).contains(&wait), "{wait}");
    }
    knows
}

#[test]
fn mosquittos_own_clients_reach_their_topics_and_no_others() {
    let cloud = Cloud::embedded(HASTY);
    let agent = Agent::start("edge-2", cloud.broker(), LINK);
    cloud.create(objects(0..10, "first"));
    wait_equal(&cloud, &agent);
    let subscribe = |topic: &str| {
        let arguments = ["-i", NODE, "-t", topic, "-q", "1", "-C", "1", "-W", "10"];
        mosquitto::client("mosquitto_sub", cloud.broker(), &arguments)
    };
    let (code, printed, _) = subscribe("edgesync/v1/cloud");
    assert_eq!(code, Some(0));
    assert!(printed.contains("\"online\":true"), "{printed}");
    for foreign in ["edgesync/v1/nodes/edge-2/down", "edgesync/v1/nodes/+/up", "#"] {
        let (_, printed, error) = subscribe(foreign);
        assert!(printed.is_empty() && error.contains("denied"), "{foreign}: {printed} {error}");
    }
    let publish = |topic: &str| {
        let arguments = ["-i", NODE, "-t", topic, "-q", "1", "-m", "no frame"];
        mosquitto::client("mosquitto_pub", cloud.broker(), &arguments)
    };
    let (code, _, error) = publish("edgesync/v1/nodes/edge-1/up");
    assert_eq!(code, Some(0), "{error}");
    eventually("the frame is counted", PATIENCE, || cloud.bad_frames()["json"] == 1);
    for foreign in ["edgesync/v1/nodes/edge-2/up", "edgesync/v1/nodes/edge-2/down", "edgesync/v1/cloud"] {
        let (_, _, error) = publish(foreign);
        assert!(error.to_lowercase().contains("not authorized"), "{foreign}: {error}");
    }
    assert_eq!(cloud.bad_frames()["json"], 1);
    // What the cloud answers reaches a client that stands in for the node's agent.
    let report = r#"{"type":"Report","protocol":1,"session":"5e551047","from":0,"to":0}"#;
    let (up, down) = ("edgesync/v1/nodes/edge-1/up", "edgesync/v1/nodes/edge-1/down");
    let arguments = ["-i", NODE, "-t", up, "-e", down, "-q", "1", "-m", report, "-W", "10"];
    let (code, answer, error) = mosquitto::client("mosquitto_rr", cloud.broker(), &arguments);
    assert_eq!(code, Some(0), "{error}");
    assert!(answer.contains("HelloRequest") && answer.contains("5e551047"), "{answer}");
    wait_equal(&cloud, &agent);
}

#[test]
fn an_idle_link_carries_pings_and_nothing_else() {
    const IDLE: Duration = Duration::from_secs(10);
    /// A ping and its answer have two bytes each, and one goes every half keepalive.
    const PINGS: u64 = 2 * 2 * IDLE.as_secs() / KEEPALIVE.as_secs() + 2;
    let broker = Mosquitto::start();
    for cloud in [Cloud::external(broker.address(), HASTY), Cloud::embedded(HASTY)] {
        let agent = Agent::start(NODE, cloud.broker(), LINK);
        cloud.create(objects(0..20, "first"));
        wait_equal(&cloud, &agent);
        let traffic = || (agent.counts("/link/bytesIn"), agent.counts("/link/bytesOut"));
        let mut before = traffic();
        let mut quiet = 0;
        eventually("the last confirmation is through", PATIENCE, || {
            let now = traffic();
            quiet = if now == before { quiet + 1 } else { 0 };
            before = now;
            quiet >= 20
        });
        steadily("only pings", IDLE / 2, || {
            let (read, written) = traffic();
            read - before.0 <= PINGS && written - before.1 <= PINGS
        });
        let (read, written) = traffic();
        assert!(read > before.0 && written > before.1, "there are pings");
        assert_eq!((read - before.0) % 2, 0);
    }
}
