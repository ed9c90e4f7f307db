//! Cloud side and agent as processes on failing links: both sides converge, detect the failure in
//! time and report it, and resend no acknowledged object.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit as support;
use edgesync_testkit::site;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use edgesync_admin::cloud::state::OFFLINE;
use edgesync_object::Budget;
use edgesync_protocol::frame::{Down, Hello, Up, Welcome};
use edgesync_transport::link::Topics;
use rumqttc::v5::mqttbytes::v5::{Packet, PingResp, PubAckReason};
use serde_json::Value;
use site::{
    Agent, Cloud, PATIENCE, Settings, Site, changed, eventually, objects, same_within, sized, steadily,
};
use support::mosquitto::{self, Mosquitto};
use support::proxy::{Mode, Proxy, Way};
use support::relay::Relay;
use support::scripted_broker::ScriptedBroker;

const NODE: &str = "edge-1";
/// A short keepalive within the usual range; it bounds the detection of a dead peer.
const KEEPALIVE: Duration = Duration::from_secs(4);
/// Extra time on a busy machine on top of a guaranteed limit.
const SLACK: Duration = Duration::from_secs(3);
/// Time for both sides to converge again.
const AGAIN: Duration = Duration::from_secs(60);

/// Sets timeouts that a slow response on a busy machine does not reach, so it causes no resend.
fn patient(settings: &mut Settings) {
    settings.text("link.keepalive", "4s").text("sync.resend_min", "20s").text("sync.resend_max", "5m");
}

/// Timeouts so short that a lost frame is resent soon, and small frames, so that there are many.
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

/// Waits until the agent has detected that its link is dead.
async fn until_disconnected(agent: &Agent, limit: Duration) {
    eventually("the agent notices that the link is dead", limit, async || {
        (!agent.is_connected().await).then_some(())
    })
    .await;
}

/// Asserts that no object was resent.
async fn assert_nothing_was_resent(cloud: &Cloud) {
    let counters = cloud.counters(NODE).await;
    assert_eq!((counters.objects_resent, counters.inventories), (0, 0), "{counters:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_sync_through_mosquitto_without_resends() {
    let broker = Mosquitto::start();
    let site = Site::new();
    let cloud = Cloud::start_behind(&site, broker.address(), patient).await;
    assert_objects_sync_without_resends(&site, &cloud).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_sync_through_the_embedded_endpoint_without_resends() {
    let site = Site::new();
    let cloud = Cloud::start_with(&site, patient).await;
    assert_objects_sync_without_resends(&site, &cloud).await;
}

async fn assert_objects_sync_without_resends(site: &Site, cloud: &Cloud) {
    let agent = agent(site, cloud.mqtt).await;
    cloud.apply(objects(0..2000)).await;
    assert_eq!(same(cloud, &agent).await, 2000);
    assert_eq!(cloud.counters(NODE).await.objects_sent, 2000);
    cloud.apply(edition(0..100, "second")).await;
    delete(cloud, 1950..2000).await;
    cloud.apply(edition(1990..2000, "anew")).await;
    assert_eq!(same(cloud, &agent).await, 1960);
    assert_eq!(cloud.counters(NODE).await.objects_sent, 2110);
    let removed = cloud.counters(NODE).await.removals_sent;
    assert!((40..=50).contains(&removed), "{removed} removals: those of replaced names may be left out");
    assert_nothing_was_resent(cloud).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_killed_mid_transfer_causes_no_resends() {
    let mut broker = Mosquitto::start();
    let site = Site::new();
    let cloud = Cloud::start_behind(&site, broker.address(), patient).await;
    let agent = agent(&site, cloud.mqtt).await;
    cloud.apply(objects(0..200)).await;
    same(&cloud, &agent).await;
    start_transfer(&cloud, &agent).await;
    broker.kill();
    until_disconnected(&agent, KEEPALIVE + SLACK).await;
    eventually("the cloud loses the broker", KEEPALIVE + SLACK, async || {
        (cloud.state(NODE).await? == OFFLINE).then_some(())
    })
    .await;
    let (sent, held) = (cloud.counters(NODE).await.objects_sent, settled(&agent).await);
    broker.restart();
    same(&cloud, &agent).await;
    assert_eq!(cloud.counters(NODE).await.objects_sent, sent + 1500 - held, "{sent} were sent, {held} held");
    // In sync nothing is sent; an object that changes while offline is sent once, in its last
    // version.
    broker.kill();
    for note in ["second", "third", "last"] {
        cloud.apply(edition(0..5, note)).await;
    }
    delete(&cloud, 5..8).await;
    broker.restart();
    same(&cloud, &agent).await;
    let counters = cloud.counters(NODE).await;
    assert_eq!((counters.objects_sent, counters.removals_sent), (sent + 1500 - held + 5, 3));
    assert_nothing_was_resent(&cloud).await;
}

/// Applies 1,300 objects and returns when the first of them have arrived.
async fn start_transfer(cloud: &Cloud, agent: &Agent) {
    agent.process.signal("STOP");
    cloud.apply(objects(200..1500)).await;
    agent.process.signal("CONT");
    agent.until("objects arrive", |status| status.objects.total > 200).await;
}

/// Returns the number of objects on the node once no commit is in progress.
async fn settled(agent: &Agent) -> u64 {
    let (mut last, mut still) = (u64::MAX, 0);
    eventually("commits end", PATIENCE, async || {
        let now = agent.status().await.store.revision;
        still = if now == last { still + 1 } else { 0 };
        last = now;
        (still >= 10).then_some(())
    })
    .await;
    agent.status().await.objects.total
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cloud_killed_mid_transfer_sends_only_missing_objects() {
    let site = Site::new();
    let mut cloud = Cloud::start_with(&site, patient).await;
    let agent = agent(&site, cloud.mqtt).await;
    cloud.apply(objects(0..200)).await;
    same(&cloud, &agent).await;
    start_transfer(&cloud, &agent).await;
    cloud.process.kill();
    until_disconnected(&agent, KEEPALIVE + SLACK).await;
    let held = settled(&agent).await;
    cloud.run().await;
    same(&cloud, &agent).await;
    assert_eq!(cloud.counters(NODE).await.objects_sent, 1500 - held, "{held} were held");
    // In sync nothing is sent.
    cloud.crash().await;
    same(&cloud, &agent).await;
    assert_eq!(cloud.counters(NODE).await.objects_sent, 0);
    cloud.apply(edition(0..5, "second")).await;
    delete(&cloud, 5..8).await;
    same(&cloud, &agent).await;
    let counters = cloud.counters(NODE).await;
    assert_eq!((counters.objects_sent, counters.removals_sent), (5, 3));
    assert_nothing_was_resent(&cloud).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_link_is_detected_within_the_keepalive() {
    let broker = Mosquitto::start();
    let proxy = Proxy::start(broker.address());
    let site = Site::new();
    let cloud = Cloud::start_behind(&site, broker.address(), hasty).await;
    let agent = agent(&site, proxy.address()).await;
    cloud.apply(objects(0..100)).await;
    same(&cloud, &agent).await;
    proxy.set(Mode::Stall);
    until_disconnected(&agent, KEEPALIVE + SLACK).await;
    let cause = agent.status().await.link.cause.unwrap();
    assert!(cause.contains("silent") || cause.contains("timed out"), "{cause}");
    assert!(agent.status().await.cloud.state.starts_with("unknown"));
    assert!(!agent.is_in_sync().await);
    cloud.apply(edition(0..10, "second")).await;
    cloud.apply(objects(100..150)).await;
    proxy.set(Mode::Pass);
    assert_eq!(same(&cloud, &agent).await, 150);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cuts_in_mid_frame_converge() {
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
    assert_eq!(agent.status().await.counters.bad_frames, BTreeMap::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_round_trips_converge() {
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
    assert_eq!(agent.status().await.link.connections, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_cloud_behind_a_broker_is_reported_and_recovers() {
    const TOLD: Duration = Duration::from_secs(30);
    let broker = Mosquitto::start();
    let site = Site::new();
    let mut cloud = Cloud::start_behind(&site, broker.address(), hasty).await;
    let agent = agent(&site, cloud.mqtt).await;
    cloud.apply(objects(0..50)).await;
    same(&cloud, &agent).await;
    let is_gone = async || {
        let state = agent.status().await.cloud.state;
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
    assert_eq!(agent.status().await.link.connections, 1);
}

/// A broker and a cloud that welcomes each session and answers nothing else. Reports the names of
/// received frames.
fn silent_after_welcome() -> (ScriptedBroker, mpsc::Receiver<&'static str>) {
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
            // The test may have ended.
            let _ = sender.send(frame.name());
            if let Up::Hello(Hello { session, .. }) = frame {
                let welcome = Welcome {
                    session,
                    incarnation: None,
                    confirmed: 0,
                    pending: 1,
                    held: 0,
                    register: true,
                    features: Vec::new(),
                    waiting: Default::default(),
                };
                peer.publish(&topics.down(NODE), &Down::Welcome(welcome).encode(usize::MAX).unwrap(), 1);
            }
        }
    });
    (broker, frames)
}

/// The intervals relate to each other as the defaults do: Leases are more frequent than the
/// response timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unanswered_frames_are_resent_despite_acknowledged_leases() {
    let (broker, frames) = silent_after_welcome();
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
async fn hanging_endpoint_is_detected_within_the_keepalive() {
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
async fn broker_that_loses_acknowledged_messages_only_delays() {
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
async fn agents_sharing_a_name_are_detected_through_mosquitto() {
    let broker = Mosquitto::start();
    let site = Site::new();
    let cloud = Cloud::start_behind(&site, broker.address(), hasty).await;
    assert_agents_sharing_a_name_are_detected(&site, &cloud).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_sharing_a_name_are_detected_by_the_endpoint() {
    let site = Site::new();
    let cloud = Cloud::start_with(&site, hasty).await;
    assert_agents_sharing_a_name_are_detected(&site, &cloud).await;
}

async fn assert_agents_sharing_a_name_are_detected(site: &Site, cloud: &Cloud) {
    let other_site = Site::new();
    // Simulates two machines: on one machine, a second agent of a name does not start for the same
    // address. The second agent uses another notation of the address.
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
        one_knows |= reports_a_takeover(&one).await;
        two_knows |= reports_a_takeover(&two).await;
        (one_knows && two_knows).then_some(())
    })
    .await;
    cloud.apply(edition(0..20, "second")).await;
    delete(cloud, 190..200).await;
    drop(one);
    assert_eq!(same(cloud, &two).await, 190);
    // The remaining agent keeps its link.
    let connections = two.status().await.link.connections;
    steadily("the link stays", Duration::from_secs(3), async || {
        two.status().await.link.connections == connections
    })
    .await;
}

/// Returns whether the status names the takeover; its backoff must be the configured one.
async fn reports_a_takeover(agent: &Agent) -> bool {
    let link = agent.status().await.link;
    let knows = link.cause.is_some_and(|cause| cause.contains("taken over"));
    if knows {
        let wait = link.retry_in_seconds.unwrap();
        assert!((2.0..=3.0).contains(&wait), "{wait}");
    }
    knows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mosquitto_clients_reach_only_their_own_topics() {
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
        (*cloud.bad_frames().await.get("json")? == 1).then_some(())
    })
    .await;
    for foreign in ["edgesync/v1/nodes/edge-2/up", "edgesync/v1/nodes/edge-2/down", "edgesync/v1/cloud"] {
        let (_, _, error) = publish(foreign);
        assert!(error.to_lowercase().contains("not authorized"), "{foreign}: {error}");
    }
    assert_eq!(cloud.bad_frames().await["json"], 1);
    // A client in the place of the node's agent receives the response of the cloud.
    let report = r#"{"type":"Report","protocol":1,"session":"5e551047","from":0,"to":0}"#;
    let (up, down) = ("edgesync/v1/nodes/edge-1/up", "edgesync/v1/nodes/edge-1/down");
    let arguments = ["-i", NODE, "-t", up, "-e", down, "-q", "1", "-m", report, "-W", "10"];
    let (code, answer, error) = mosquitto::client("mosquitto_rr", cloud.mqtt, &arguments);
    assert_eq!(code, Some(0), "{error}");
    assert!(answer.contains("HelloRequest") && answer.contains("5e551047"), "{answer}");
    same(&cloud, &agent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_link_through_mosquitto_carries_only_pings() {
    let broker = Mosquitto::start();
    let site = Site::new();
    let cloud = Cloud::start_behind(&site, broker.address(), hasty).await;
    assert_idle_link_carries_only_pings(&site, &cloud).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_link_to_the_embedded_endpoint_carries_only_pings() {
    let site = Site::new();
    let cloud = Cloud::start_with(&site, hasty).await;
    assert_idle_link_carries_only_pings(&site, &cloud).await;
}

#[tokio::test]
async fn failed_attempts_log_one_line_each_and_none_of_a_library() {
    let (site, nobody) = (Site::new(), Site::address());
    let agent = Agent::start_with(&site, NODE, nobody, |settings| {
        settings.text("link.backoff_min", "300ms").text("link.backoff_max", "1s");
    })
    .await;
    assert_one_log_line_per_failed_attempt(&agent, &nobody.to_string()).await;
}

/// Waits for three failed connection attempts of an agent and checks their log lines.
pub(crate) async fn assert_one_log_line_per_failed_attempt(agent: &Agent, peer: &str) {
    const COUNTER: &str = "edgesync_agent_link_failed_attempts_total{";
    let attempts = async || {
        let metrics = agent.client().text("/metrics").await.unwrap();
        let samples = metrics.lines().filter(|line| line.starts_with(COUNTER));
        samples.map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap()).sum::<usize>()
    };
    eventually("each of three attempts or more is a line", PATIENCE, async || {
        let before = attempts().await;
        let lines = agent.process.log().iter().filter(|line| line.contains(peer)).count();
        // Attempts continue meanwhile, and a log line follows its count.
        (lines >= 3 && (before..=attempts().await).contains(&lines)).then_some(())
    })
    .await;
    for line in agent.process.log() {
        let foreign =
            ["WARN", "ERROR"].iter().any(|level| line.contains(level)) && !line.contains(" edgesync::");
        assert!(!foreign && !line.contains("rumqttc"), "{line}");
    }
}

async fn assert_idle_link_carries_only_pings(site: &Site, cloud: &Cloud) {
    const IDLE: Duration = Duration::from_secs(10);
    /// A ping and its response take two bytes each; a ping is sent every half keepalive.
    const PINGS: u64 = 2 * (2 * IDLE.as_secs() / KEEPALIVE.as_secs() + 1);
    let agent = Agent::start_with(site, NODE, cloud.mqtt, |settings| {
        settings.text("link.keepalive", "4s").text("link.connect_timeout", "3s");
        // Without renewals, which tests/e2e/upstream.rs covers.
        settings.text("lease.interval", "1h").text("lease.duration", "4h");
    })
    .await;
    cloud.apply(objects(0..20)).await;
    same(cloud, &agent).await;
    let traffic = async || {
        let link = agent.status().await.link;
        (link.bytes_in, link.bytes_out)
    };
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
