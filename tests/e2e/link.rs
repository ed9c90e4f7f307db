//! Cloud side and agent as processes on links that fail in every way: the ends are equal, the failure is
//! noticed in time and told, and what was reported is not sent again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit as support;
use edgesync_testkit::site;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use edgesync_object::Budget;
use edgesync_protocol::frame::{Down, Hello, Up, Welcome};
use edgesync_transport::link::Topics;
use rumqttc::v5::mqttbytes::v5::{Packet, PingResp, PubAckReason};
use serde_json::{Value, json};
use site::{
    Agent, Cloud, PATIENCE, Settings, Site, changed, eventually, objects, same_within, sized, steadily,
};
use support::mosquitto::{self, Mosquitto};
use support::proxy::{Mode, Proxy, Way};
use support::relay::Relay;
use support::scripted_broker::ScriptedBroker;

const NODE: &str = "edge-1";
/// The shortest one that is usual; a dead peer is noticed within it.
const KEEPALIVE: Duration = Duration::from_secs(4);
/// What a busy machine may take on top of a time that is promised.
const SLACK: Duration = Duration::from_secs(3);
/// How long two sides have to become equal again.
const AGAIN: Duration = Duration::from_secs(60);

/// Nothing is sent again because a busy machine answered late.
fn patient(settings: &mut Settings) {
    settings.text("link.keepalive", "4s").text("sync.resend_min", "20s").text("sync.resend_max", "5m");
}

/// What is lost is sent again soon, and there are many frames that can be lost.
fn hasty(settings: &mut Settings) {
    settings.text("link.keepalive", "4s").text("sync.resend_min", "500ms").text("sync.resend_max", "2s");
    settings.set("sync.frame_objects", "16");
}

async fn agent(site: &Site, broker: SocketAddr) -> Agent {
    Agent::start_with(site, NODE, broker, |settings| {
        settings.text("link.keepalive", "4s").text("link.connect_timeout", "3s");
    })
    .await
}

async fn same(cloud: &Cloud, agent: &Agent) -> usize {
    same_within(AGAIN, cloud, agent).await
}

fn edition(numbers: Range<usize>, edition: &str) -> impl Iterator<Item = Value> {
    objects(numbers).map(move |object| changed(object, edition))
}

async fn delete(cloud: &Cloud, numbers: Range<usize>) {
    for object in objects(numbers) {
        cloud.delete(&object).await;
    }
}

/// Waits until the agent has noticed that its link is dead.
async fn until_disconnected(agent: &Agent, limit: Duration) {
    eventually("the agent notices that the link is dead", limit, async || {
        (!agent.is_connected().await).then_some(())
    })
    .await;
}

/// Nothing was sent for another reason than that it was new.
async fn nothing_was_repeated(cloud: &Cloud) {
    let counters = cloud.counters(NODE).await;
    assert_eq!((counters.resent, counters.inventories), (0, 0), "{counters:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_objects_change_and_go_through_mosquitto() {
    let broker = Mosquitto::start();
    let site = Site::new();
    let cloud = Cloud::start_behind(&site, broker.address(), patient).await;
    two_thousand_objects_change_and_go(&site, &cloud).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_objects_change_and_go_through_the_embedded_endpoint() {
    let site = Site::new();
    let cloud = Cloud::start_with(&site, patient).await;
    two_thousand_objects_change_and_go(&site, &cloud).await;
}

async fn two_thousand_objects_change_and_go(site: &Site, cloud: &Cloud) {
    let agent = agent(site, cloud.mqtt).await;
    cloud.apply(objects(0..2000)).await;
    assert_eq!(same(cloud, &agent).await, 2000);
    assert_eq!(cloud.counters(NODE).await.sent, 2000);
    cloud.apply(edition(0..100, "second")).await;
    delete(cloud, 1950..2000).await;
    cloud.apply(edition(1990..2000, "anew")).await;
    assert_eq!(same(cloud, &agent).await, 1960);
    assert_eq!(cloud.counters(NODE).await.sent, 2110);
    let removed = cloud.counters(NODE).await.removals;
    assert!((40..=50).contains(&removed), "{removed} removals: those of replaced names may be left out");
    nothing_was_repeated(cloud).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_killed_in_a_transfer_costs_nothing_that_the_node_holds() {
    let mut broker = Mosquitto::start();
    let site = Site::new();
    let cloud = Cloud::start_behind(&site, broker.address(), patient).await;
    let agent = agent(&site, cloud.mqtt).await;
    cloud.apply(objects(0..200)).await;
    same(&cloud, &agent).await;
    in_a_transfer(&cloud, &agent).await;
    broker.kill();
    until_disconnected(&agent, KEEPALIVE + SLACK).await;
    eventually("the cloud loses the broker", KEEPALIVE + SLACK, async || {
        (cloud.state(NODE).await == "offline").then_some(())
    })
    .await;
    let (sent, held) = (cloud.counters(NODE).await.sent, settled(&agent).await);
    broker.restart();
    same(&cloud, &agent).await;
    assert_eq!(cloud.counters(NODE).await.sent, sent + 1500 - held, "{sent} were sent, {held} held");
    // In sync: nothing at all is sent, and what changed meanwhile once, in its last version.
    broker.kill();
    for note in ["second", "third", "last"] {
        cloud.apply(edition(0..5, note)).await;
    }
    delete(&cloud, 5..8).await;
    broker.restart();
    same(&cloud, &agent).await;
    let counters = cloud.counters(NODE).await;
    assert_eq!((counters.sent, counters.removals), (sent + 1500 - held + 5, 3));
    nothing_was_repeated(&cloud).await;
}

/// Applies 1,300 objects and returns when the first of them have arrived.
async fn in_a_transfer(cloud: &Cloud, agent: &Agent) {
    agent.process.signal("STOP");
    cloud.apply(objects(200..1500)).await;
    agent.process.signal("CONT");
    agent.until("objects arrive", |status| status["objects"]["total"].as_u64() > Some(200)).await;
}

/// What the node holds once its commits under way have ended.
async fn settled(agent: &Agent) -> u64 {
    let (mut last, mut still) = (u64::MAX, 0);
    eventually("commits end", PATIENCE, async || {
        let now = agent.counts("/store/revision").await;
        still = if now == last { still + 1 } else { 0 };
        last = now;
        (still >= 10).then_some(())
    })
    .await;
    agent.counts("/objects/total").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cloud_killed_in_a_transfer_sends_only_what_the_node_does_not_hold() {
    let site = Site::new();
    let mut cloud = Cloud::start_with(&site, patient).await;
    let agent = agent(&site, cloud.mqtt).await;
    cloud.apply(objects(0..200)).await;
    same(&cloud, &agent).await;
    in_a_transfer(&cloud, &agent).await;
    cloud.process.kill();
    until_disconnected(&agent, KEEPALIVE + SLACK).await;
    let held = settled(&agent).await;
    cloud.run().await;
    same(&cloud, &agent).await;
    assert_eq!(cloud.counters(NODE).await.sent, 1500 - held, "{held} were held");
    // In sync: nothing is sent.
    cloud.crash().await;
    same(&cloud, &agent).await;
    assert_eq!(cloud.counters(NODE).await.sent, 0);
    cloud.apply(edition(0..5, "second")).await;
    delete(&cloud, 5..8).await;
    same(&cloud, &agent).await;
    let counters = cloud.counters(NODE).await;
    assert_eq!((counters.sent, counters.removals), (5, 3));
    nothing_was_repeated(&cloud).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_is_open_at_one_end_only_is_noticed_within_the_keepalive() {
    let broker = Mosquitto::start();
    let proxy = Proxy::start(broker.address());
    let site = Site::new();
    let cloud = Cloud::start_behind(&site, broker.address(), hasty).await;
    let agent = agent(&site, proxy.address()).await;
    cloud.apply(objects(0..100)).await;
    same(&cloud, &agent).await;
    proxy.set(Mode::Stall);
    until_disconnected(&agent, KEEPALIVE + SLACK).await;
    let cause = agent.says("/link/cause").await;
    assert!(cause.contains("silent") || cause.contains("did not complete"), "{cause}");
    assert!(agent.says("/cloud/state").await.starts_with("unknown"));
    assert!(!agent.is_in_sync().await);
    cloud.apply(edition(0..10, "second")).await;
    cloud.apply(objects(100..150)).await;
    proxy.set(Mode::Pass);
    assert_eq!(same(&cloud, &agent).await, 150);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cuts_in_the_middle_of_frames_end_equal() {
    let broker = Mosquitto::start();
    let proxy = Proxy::start(broker.address());
    let site = Site::new();
    let cloud = Cloud::start_behind(&site, broker.address(), patient).await;
    cloud.apply((0..1500).map(|number| sized(&format!("large-{number}"), 1000 + number))).await;
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
    let agent = agent(&site, proxy.address()).await;
    assert_eq!(same(&cloud, &agent).await, 1500);
    assert_eq!(proxy.accepted(), cuts.len() as u64 + 1, "each cut fell into the transfer");
    assert_eq!(agent.status().await["counters"]["badFrames"], json!({}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_round_trip_ends_equal() {
    let broker = Mosquitto::start();
    let proxy = Proxy::start(broker.address());
    proxy.set(Mode::Delay(Duration::from_millis(300)));
    let site = Site::new();
    let cloud = Cloud::start_behind(&site, broker.address(), hasty).await;
    let agent = agent(&site, proxy.address()).await;
    cloud.apply(objects(0..400)).await;
    same(&cloud, &agent).await;
    cloud.apply(edition(0..20, "second")).await;
    delete(&cloud, 20..30).await;
    assert_eq!(same(&cloud, &agent).await, 390);
    assert_eq!(agent.counts("/link/connections").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_cloud_behind_a_living_broker_is_told_and_comes_back() {
    const TOLD: Duration = Duration::from_secs(30);
    let broker = Mosquitto::start();
    let site = Site::new();
    let mut cloud = Cloud::start_behind(&site, broker.address(), hasty).await;
    let agent = agent(&site, cloud.mqtt).await;
    cloud.apply(objects(0..50)).await;
    same(&cloud, &agent).await;
    let is_gone = async || {
        let state = agent.says("/cloud/state").await;
        let gone = state.contains("offline") || state.contains("unreachable");
        (gone && !agent.is_in_sync().await).then_some(())
    };
    cloud.process.signal("STOP");
    eventually("the agent tells that the cloud hangs", TOLD, is_gone).await;
    assert!(agent.is_connected().await, "the broker lives");
    let mut command = Command::new(edgesync_testkit::programs::device());
    let output = command.arg("status").arg("--socket").arg(&agent.socket).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("offline") || shown.contains("unreachable"), "{shown}");
    cloud.process.signal("CONT");
    same(&cloud, &agent).await;
    cloud.process.kill();
    eventually("the agent tells that the cloud is gone", TOLD, is_gone).await;
    assert!(agent.is_connected().await, "the broker lives");
    cloud.run().await;
    cloud.apply(edition(0..10, "second")).await;
    same(&cloud, &agent).await;
    assert_eq!(agent.counts("/link/connections").await, 1);
}

/// A broker with a cloud behind it that welcomes each session and answers nothing else. Names the frames that come.
fn welcomes_and_falls_silent() -> (ScriptedBroker, mpsc::Receiver<&'static str>) {
    let (sender, frames) = mpsc::channel();
    let broker = ScriptedBroker::start(move |_, mut peer| {
        peer.accept_and_grant();
        let topics = Topics::default();
        while let Some(packet) = peer.read() {
            let publish = match packet {
                Packet::Publish(publish) => publish,
                Packet::PingReq(_) => {
                    peer.send(&Packet::PingResp(PingResp));
                    continue;
                }
                _ => continue,
            };
            peer.acknowledge(publish.pkid, PubAckReason::Success);
            if publish.topic != topics.up(NODE) {
                continue;
            }
            let frame = Up::decode(&publish.payload, &mut Budget::of(1 << 20)).unwrap();
            // The test may have seen enough.
            let _ = sender.send(frame.name());
            if let Up::Hello(Hello { session, .. }) = frame {
                let welcome =
                    Welcome { session, incarnation: None, confirmed: 0, pending: 1, held: 0, register: true };
                peer.publish(&topics.down(NODE), &Down::Welcome(welcome).encode(usize::MAX).unwrap(), 1);
            }
        }
    });
    (broker, frames)
}

/// The times stand to one another as the defaults do: a Lease goes out more often than an answer is waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_answers_is_said_again_although_leases_are_acknowledged_all_the_time() {
    let (broker, frames) = welcomes_and_falls_silent();
    let site = Site::new();
    let _agent = Agent::start_with(&site, NODE, broker.address(), |settings| {
        settings.text("lease.interval", "1s").text("lease.duration", "4s");
        settings.text("sync.hello_timeout", "2s").text("sync.report_timeout", "2s");
    })
    .await;
    let mut count = BTreeMap::new();
    eventually("Report and Upload come again, and then the Hello", PATIENCE, async || {
        for frame in frames.try_iter() {
            *count.entry(frame).or_insert(0) += 1;
        }
        let times = |name| count.get(name).copied().unwrap_or(0);
        (times("Report") >= 3 && times("Upload") >= 3 && times("Lease") >= 4 && times("Hello") >= 2)
            .then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_hangs_is_noticed_within_the_keepalive() {
    let site = Site::new();
    let cloud = Cloud::start_with(&site, hasty).await;
    let agent = agent(&site, cloud.mqtt).await;
    cloud.apply(objects(0..50)).await;
    same(&cloud, &agent).await;
    cloud.process.signal("STOP");
    until_disconnected(&agent, KEEPALIVE + SLACK).await;
    cloud.process.signal("CONT");
    cloud.apply(objects(50..60)).await;
    same(&cloud, &agent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_loses_what_it_acknowledged_delays_but_ends_equal() {
    let broker = Mosquitto::start();
    let relay = Relay::start(broker.address());
    let site = Site::new();
    let cloud = Cloud::start_behind(&site, broker.address(), hasty).await;
    let agent = agent(&site, relay.address()).await;
    same(&cloud, &agent).await;
    relay.lose_every(3);
    cloud.apply(objects(0..600)).await;
    cloud.apply(edition(0..50, "second")).await;
    delete(&cloud, 50..60).await;
    eventually("messages get lost both ways", AGAIN, async || {
        let (up, down) = relay.lost();
        (up >= 3 && down >= 10).then_some(())
    })
    .await;
    relay.lose_every(0);
    assert_eq!(same(&cloud, &agent).await, 590);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_agents_with_one_name_are_told_through_mosquitto() {
    let broker = Mosquitto::start();
    let site = Site::new();
    let cloud = Cloud::start_behind(&site, broker.address(), hasty).await;
    two_agents_with_one_name_are_told(&site, &cloud).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_agents_with_one_name_are_told_by_the_embedded_endpoint() {
    let site = Site::new();
    let cloud = Cloud::start_with(&site, hasty).await;
    two_agents_with_one_name_are_told(&site, &cloud).await;
}

async fn two_agents_with_one_name_are_told(site: &Site, cloud: &Cloud) {
    let other_site = Site::new();
    // As from two machines: on one machine, the second agent of a name at one address does not start. So it has another word
    // for the same address.
    let IpAddr::V4(plain) = cloud.mqtt.ip() else { panic!("{}", cloud.mqtt) };
    let start = |site, host: String| {
        Agent::start_with(site, NODE, cloud.mqtt, move |settings| {
            settings.text("link.broker", format!("mqtt://{host}:{}", cloud.mqtt.port()));
            settings.text("link.taken_over_backoff", "2s");
        })
    };
    cloud.apply(objects(0..200)).await;
    let one = start(site, plain.to_string()).await;
    same(cloud, &one).await;
    let two = start(&other_site, u32::from(plain).to_string()).await;
    let (mut one_knows, mut two_knows) = (false, false);
    eventually("both are told of each other", AGAIN, async || {
        one_knows |= knows_a_rival(&one).await;
        two_knows |= knows_a_rival(&two).await;
        (one_knows && two_knows).then_some(())
    })
    .await;
    cloud.apply(edition(0..20, "second")).await;
    delete(cloud, 190..200).await;
    drop(one);
    assert_eq!(same(cloud, &two).await, 190);
    // Alone it keeps its link.
    let connections = two.counts("/link/connections").await;
    steadily("the link stays", Duration::from_secs(3), async || {
        two.counts("/link/connections").await == connections
    })
    .await;
}

/// Whether the status names the rival, and a wait as long as configured.
async fn knows_a_rival(agent: &Agent) -> bool {
    let status = agent.status().await;
    let knows = status["link"]["cause"].as_str().is_some_and(|cause| cause.contains("taken over"));
    if knows {
        let wait = status["link"]["retryInSeconds"].as_f64().unwrap();
        assert!((2.0..=3.0).contains(&wait), "{wait}");
    }
    knows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mosquittos_own_clients_reach_their_topics_and_no_others() {
    let site = Site::new();
    let cloud = Cloud::start_with(&site, hasty).await;
    let agent = Agent::start(&site, "edge-2", cloud.mqtt).await;
    cloud.apply(objects(0..10)).await;
    same(&cloud, &agent).await;
    let subscribe = |topic: &str| {
        let arguments = ["-i", NODE, "-t", topic, "-q", "1", "-C", "1", "-W", "10"];
        mosquitto::client("mosquitto_sub", cloud.mqtt, &arguments)
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
        mosquitto::client("mosquitto_pub", cloud.mqtt, &arguments)
    };
    let (code, _, error) = publish("edgesync/v1/nodes/edge-1/up");
    assert_eq!(code, Some(0), "{error}");
    eventually("the frame is counted", PATIENCE, async || {
        (cloud.bad_frames().await["json"] == 1).then_some(())
    })
    .await;
    for foreign in ["edgesync/v1/nodes/edge-2/up", "edgesync/v1/nodes/edge-2/down", "edgesync/v1/cloud"] {
        let (_, _, error) = publish(foreign);
        assert!(error.to_lowercase().contains("not authorized"), "{foreign}: {error}");
    }
    assert_eq!(cloud.bad_frames().await["json"], 1);
    // What the cloud answers reaches a client that stands in for the node's agent.
    let report = r#"{"type":"Report","protocol":1,"session":"5e551047","from":0,"to":0}"#;
    let (up, down) = ("edgesync/v1/nodes/edge-1/up", "edgesync/v1/nodes/edge-1/down");
    let arguments = ["-i", NODE, "-t", up, "-e", down, "-q", "1", "-m", report, "-W", "10"];
    let (code, answer, error) = mosquitto::client("mosquitto_rr", cloud.mqtt, &arguments);
    assert_eq!(code, Some(0), "{error}");
    assert!(answer.contains("HelloRequest") && answer.contains("5e551047"), "{answer}");
    same(&cloud, &agent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_link_through_mosquitto_carries_pings_and_nothing_else() {
    let broker = Mosquitto::start();
    let site = Site::new();
    let cloud = Cloud::start_behind(&site, broker.address(), hasty).await;
    an_idle_link_carries_pings_and_nothing_else(&site, &cloud).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_link_to_the_embedded_endpoint_carries_pings_and_nothing_else() {
    let site = Site::new();
    let cloud = Cloud::start_with(&site, hasty).await;
    an_idle_link_carries_pings_and_nothing_else(&site, &cloud).await;
}

#[tokio::test]
async fn each_attempt_that_fails_is_one_line_of_the_log_and_none_is_of_a_library() {
    let (site, nobody) = (Site::new(), Site::address());
    let agent = Agent::start_with(&site, NODE, nobody, |settings| {
        settings.text("link.backoff_min", "300ms").text("link.backoff_max", "1s");
    })
    .await;
    one_line_for_each_failed_attempt(&agent, &nobody.to_string()).await;
}

/// Waits until an agent has tried three times to connect in vain, and sees how its log tells that.
pub(crate) async fn one_line_for_each_failed_attempt(agent: &Agent, peer: &str) {
    const COUNTER: &str = "edgesync_agent_link_failed_attempts_total{";
    let attempts = async || {
        let metrics = agent.client().text("/metrics").await.unwrap();
        let samples = metrics.lines().filter(|line| line.starts_with(COUNTER));
        samples.map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap()).sum::<usize>()
    };
    eventually("each of three attempts or more is a line", PATIENCE, async || {
        let before = attempts().await;
        let lines = agent.process.log().iter().filter(|line| line.contains(peer)).count();
        // Attempts go on meanwhile; a line follows its count a moment later.
        (lines >= 3 && (before..=attempts().await).contains(&lines)).then_some(())
    })
    .await;
    for line in agent.process.log() {
        let foreign =
            ["WARN", "ERROR"].iter().any(|level| line.contains(level)) && !line.contains(" edgesync::");
        assert!(!foreign && !line.contains("rumqttc"), "{line}");
    }
}

async fn an_idle_link_carries_pings_and_nothing_else(site: &Site, cloud: &Cloud) {
    const IDLE: Duration = Duration::from_secs(10);
    /// A ping and its answer have two bytes each, and one goes every half keepalive.
    const PINGS: u64 = 2 * (2 * IDLE.as_secs() / KEEPALIVE.as_secs() + 1);
    let agent = Agent::start_with(site, NODE, cloud.mqtt, |settings| {
        settings.text("link.keepalive", "4s").text("link.connect_timeout", "3s");
        // Renewals are not what this is about: tests/e2e/upstream.rs looks at those.
        settings.text("lease.interval", "1h").text("lease.duration", "4h");
    })
    .await;
    cloud.apply(objects(0..20)).await;
    same(cloud, &agent).await;
    let traffic = async || (agent.counts("/link/bytesIn").await, agent.counts("/link/bytesOut").await);
    let (mut before, mut quiet) = ((0, 0), 0);
    eventually("the last confirmation is through", PATIENCE, async || {
        let now = traffic().await;
        quiet = if now == before { quiet + 1 } else { 0 };
        before = now;
        (quiet >= 20).then_some(())
    })
    .await;
    steadily("the link carries pings only", IDLE, async || {
        let (read, written) = traffic().await;
        read - before.0 <= PINGS && written - before.1 <= PINGS
    })
    .await;
    let (read, written) = traffic().await;
    assert!(read > before.0 && written > before.1, "there are pings");
}
