//! The agent as an edge node of a scripted CloudCore: joining, objects, polled kinds, lost
//! databases, kill -9, cut frames, takeover, Node, Lease, Events, the local API.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::cloudcore;
use edgesync_testkit::site;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use cloudcore::{Fault, Options, Scripted};
use edgesync_admin::agent::{AgentStatus, CloudStatus};
use serde_json::{Value, json};
use site::fleet::{ended, identity_of, output_text};
use site::{Agent, PATIENCE, Random, Site, Snapshot, edge_rows, eventually};

const NODE: &str = "edge-1";

/// Starts a cloud with the dynamic controller, as most have.
fn cloud() -> Scripted {
    with(|_| {})
}

fn with(change: impl FnOnce(&mut Options)) -> Scripted {
    let mut options = Options::default();
    options.settings.dynamic_controller = true;
    change(&mut options);
    let cloud = Scripted::start(options);
    cloud.define("lab.io/v1", "Widget", "widgets");
    cloud
}

async fn join(cloud: &Scripted, agent: &Agent, token: &str) -> std::process::Output {
    let mut command = Command::new(edgesync_testkit::programs::device());
    command.args(["join", "--cloud", &cloud.join_url(), "--cloudcore", &cloud.url(), "--node", &agent.node]);
    command.arg("--config").arg(agent.config()).env("EDGESYNC_JOIN_TOKEN", token);
    ended(command).await
}

/// A device with these rules that has not joined.
fn new_device(site: &Site, rules: &str) -> Agent {
    let mut agent = Agent::new(site, NODE, Site::address());
    agent.settings.remove("link.broker").text("lease.interval", "1s").tables(rules);
    agent.write_config();
    agent
}

/// A device that has joined and runs.
async fn device(site: &Site, cloud: &Scripted, rules: &str) -> Agent {
    let mut agent = new_device(site, rules);
    let output = join(cloud, &agent, &cloud.token()).await;
    assert!(output.status.success(), "{}", output_text(&output));
    agent.run_as_configured().await;
    agent
}

async fn in_sync(agent: &Agent) {
    eventually("the node is in sync", PATIENCE, async || agent.is_in_sync().await.then_some(())).await;
}

fn pod(name: &str, config_map: &str, secret: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "lab"},
        "spec": {
            "nodeName": NODE, "containers": [{"name": "c", "image": "registry.invalid/web:1"}],
            "volumes": [
                {"name": "v", "configMap": {"name": config_map}},
                {"name": "s", "secret": {"secretName": secret}},
            ],
        },
    })
}

fn config_map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "lab"}, "data": {"k": value}})
}

fn secret(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "lab"}, "data": {"p": "czNjcmV0"}})
}

fn widget(name: &str) -> Value {
    json!({"apiVersion": "lab.io/v1", "kind": "Widget", "metadata": {"name": name, "namespace": "lab"}, "spec": {"color": "red"}})
}

async fn read(agent: &Agent, path: &str) -> Option<Value> {
    agent.client().get(path).await.ok()
}

/// Waits until the node serves an object that matches.
async fn holds(agent: &Agent, path: &str, fits: impl Fn(&Value) -> bool) -> Value {
    let what = format!("the node holds {path}");
    eventually(&what, PATIENCE, async || read(agent, path).await.filter(&fits)).await
}

async fn is_gone(agent: &Agent, path: &str) {
    let what = format!("the node holds {path} no more");
    eventually(&what, PATIENCE, async || read(agent, path).await.is_none().then_some(())).await;
}

const CONFIG_MAPS: &str = "/api/v1/namespaces/lab/configmaps";

#[tokio::test]
async fn device_joins_a_cloudcore_and_holds_what_its_pods_reference() {
    let (site, cloud) = (Site::new(), cloud());
    cloud.apply(config_map("web-conf", "1"));
    cloud.apply(secret("web-cred"));
    cloud.apply(pod("web", "web-conf", "web-cred"));
    let agent = device(&site, &cloud, "[kubeedge]\nwatch = [\"lab.io/v1/widgets\"]\n").await;
    in_sync(&agent).await;
    holds(&agent, "/api/v1/namespaces/lab/pods/web", |_| true).await;
    holds(&agent, &format!("{CONFIG_MAPS}/web-conf"), |held| held["data"]["k"] == "1").await;
    holds(&agent, "/api/v1/namespaces/lab/secrets/web-cred", |_| true).await;
    cloud.apply(config_map("web-conf", "2"));
    cloud.apply(widget("w1"));
    holds(&agent, &format!("{CONFIG_MAPS}/web-conf"), |held| held["data"]["k"] == "2").await;
    holds(&agent, "/apis/lab.io/v1/namespaces/lab/widgets/w1", |_| true).await;
    cloud.delete("widget", "lab", "w1");
    is_gone(&agent, "/apis/lab.io/v1/namespaces/lab/widgets/w1").await;

    // The cluster has the node's Node, Lease and Events.
    cloud
        .until("the Lease is renewed with the marker", |core| {
            let lease = core.object("lease", "kube-node-lease", NODE);
            lease.is_some_and(|lease| lease["metadata"]["annotations"]["edgesync.io/store"].is_string())
        })
        .await;
    cloud
        .until("the agent's Events have arrived", |core| {
            core.event_writes()
                .iter()
                .any(|event| event["reason"] == "AgentStarted" && event["involvedObject"]["name"] == NODE)
        })
        .await;
    let node = cloud.node(NODE).unwrap();
    assert_eq!(node["metadata"]["labels"]["node-role.kubernetes.io/edge"], "", "{node}");
    assert_eq!(node["status"]["allocatable"]["pods"], "0", "{node}");

    let answered = |status: &AgentStatus| {
        status.kubeedge.as_ref().is_some_and(|shown| shown.lease.resource_version.is_some())
    };
    let status = agent.until("CloudCore has answered the Lease", answered).await;
    assert_eq!((&*status.link.link_type, &*status.cloud.state), ("kubeedge", CloudStatus::CONNECTED));
    let shown = status.kubeedge.unwrap();
    assert!(shown.acknowledged >= 5, "{shown:?}");
    assert_eq!(shown.dynamic_controller, "on", "{shown:?}");
    assert!(shown.lease.resource_version.is_some() && shown.node.uid.is_some(), "{shown:?}");
    let metrics: String = agent.client().text("/metrics").await.unwrap();
    assert!(metrics.contains("edgesync_agent_kubeedge_"), "{metrics}");
    assert_eq!(cloud.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn lost_and_older_databases_are_refilled_by_cloudcore() {
    let (site, cloud) = (Site::new(), cloud());
    for n in 0..300 {
        cloud.apply(config_map(&format!("app-{n}"), "1"));
    }
    cloud.apply(config_map("other", "1"));
    cloud.apply(secret("web-cred"));
    cloud.apply(pod("web", "app-1", "web-cred"));
    cloud.apply(widget("w1"));
    let rules = "[kubeedge]\nfetch = [\"lab/configmap/app-*\"]\nwatch = [\"lab.io/v1/widgets\"]\n";
    let mut agent = device(&site, &cloud, rules).await;
    let all = |status: &AgentStatus| status.sync.in_sync && status.objects.total == 304;
    agent.until("everything has come", all).await;
    proven(&cloud).await;
    agent.stop().await;
    let older = Snapshot::of(&agent.database);

    agent.run_as_configured().await;
    for n in 0..300 {
        cloud.apply(config_map(&format!("app-{n}"), "2"));
    }
    let newest = format!("{CONFIG_MAPS}/app-299");
    holds(&agent, &newest, |held| held["data"]["k"] == "2").await;
    in_sync(&agent).await;
    proven(&cloud).await;
    for copy in [None, Some(older)] {
        agent.process.kill();
        match &copy {
            None => Snapshot::remove(&agent.database),
            Some(copy) => copy.restore(&agent.database),
        }
        agent.run_as_configured().await;
        agent.until("everything has come back", all).await;
        let held = read(&agent, &format!("{CONFIG_MAPS}?limit=500")).await.unwrap();
        let is_new = |held: &&Value| held["data"]["k"] == "2";
        assert_eq!(
            held["items"].as_array().unwrap().iter().filter(is_new).count(),
            300,
            "{}",
            copy.is_some()
        );
        let shown = agent.status().await.kubeedge.unwrap();
        assert_eq!(shown.verified.as_ref().unwrap().reason, "lost", "{shown:?}");
        proven(&cloud).await;
    }
    assert_eq!(cloud.violations(), Vec::<String>::new());
}

/// Waits for two renewals of the Lease, so that it contains the marker of the current database.
async fn proven(cloud: &Scripted) {
    for _ in 0..2 {
        let before = cloud.lease(NODE).map(|lease| lease["metadata"]["resourceVersion"].clone());
        cloud
            .until("the Lease is renewed", |core| {
                let lease = core.object("lease", "kube-node-lease", NODE);
                lease.map(|lease| lease["metadata"]["resourceVersion"].clone()) != before
            })
            .await;
    }
}

#[tokio::test]
async fn objects_recreated_while_offline_are_replaced() {
    let (site, cloud) = (Site::new(), with(|options| options.settings.dynamic_controller = false));
    cloud.apply(config_map("web-conf", "1"));
    cloud.apply(secret("web-cred"));
    cloud.apply(config_map("named", "1"));
    let mut agent = device(&site, &cloud, "[kubeedge]\nfetch = [\"lab/configmap/named\"]\n").await;
    // Without the dynamic controller CloudCore knows only Pods that are newer than the Node.
    cloud.until("the Node is registered", |core| core.object("node", "", NODE).is_some()).await;
    cloud.apply(pod("web", "web-conf", "web-cred"));
    holds(&agent, &format!("{CONFIG_MAPS}/web-conf"), |_| true).await;
    holds(&agent, &format!("{CONFIG_MAPS}/named"), |_| true).await;
    in_sync(&agent).await;
    proven(&cloud).await;
    agent.stop().await;
    // CloudCore pushes none of these; at most it sends the deletes of the old objects.
    let conf = cloud.recreate(config_map("web-conf", "anew"));
    cloud.recreate(config_map("named", "anew"));
    let web = cloud.recreate(pod("web", "web-conf", "web-cred"));
    agent.run_as_configured().await;
    let held = holds(&agent, &format!("{CONFIG_MAPS}/web-conf"), |held| held["data"]["k"] == "anew").await;
    assert_eq!(held["metadata"]["uid"], conf);
    holds(&agent, &format!("{CONFIG_MAPS}/named"), |held| held["data"]["k"] == "anew").await;
    holds(&agent, "/api/v1/namespaces/lab/pods/web", |held| held["metadata"]["uid"] == web).await;
    cloud.until("the deletes of the old ones are acknowledged", |core| core.waiting(NODE) == 0).await;
    holds(&agent, "/api/v1/namespaces/lab/pods/web", |held| held["metadata"]["uid"] == web).await;
    holds(&agent, &format!("{CONFIG_MAPS}/web-conf"), |held| held["metadata"]["uid"] == conf).await;
}

#[tokio::test]
async fn killed_agent_holds_everything_it_acknowledged() {
    let (site, cloud) = (Site::new(), cloud());
    let mut agent = device(&site, &cloud, "[kubeedge]\nwatch = [\"lab.io/v1/widgets\"]\n").await;
    in_sync(&agent).await;
    let mut random = Random::new(6);
    for round in 0..12_u64 {
        for n in 0..40 {
            let mut widget = widget(&format!("w{n}"));
            widget["spec"]["round"] = round.into();
            cloud.apply(widget);
        }
        let some = 1 + random.below(30);
        let before = cloud.objectsyncs(NODE);
        cloud
            .until("some are acknowledged", |core| {
                let now = core.objectsyncs(NODE);
                now.iter().filter(|(uid, version)| before.get(*uid) != Some(version)).count() >= some
            })
            .await;
        agent.process.kill();
        let rows: BTreeMap<String, String> = edge_rows(&agent.database);
        for (uid, version) in cloud.objectsyncs(NODE) {
            let held = rows.get(&uid).map_or(0, |held| held.parse::<u64>().unwrap());
            assert!(
                held >= version.parse().unwrap(),
                "round {round}: {uid} is held in {held}, told was {version}"
            );
        }
        agent.run_as_configured().await;
    }
    cloud.until("everything is acknowledged", |core| core.waiting(NODE) == 0).await;
    holds(&agent, "/apis/lab.io/v1/namespaces/lab/widgets/w39", |held| held["spec"]["round"] == 11).await;
    assert_eq!(cloud.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn brief_connection_loss_creates_no_event() {
    let (site, cloud) = (Site::new(), cloud());
    let agent = device(&site, &cloud, "").await;
    in_sync(&agent).await;
    proven(&cloud).await;
    let events = async || {
        let list = read(&agent, "/apis/events.k8s.io/v1/events").await.unwrap();
        list["items"].as_array().unwrap().iter().map(|event| event["reason"].clone()).collect::<Vec<_>>()
    };
    let before = events().await;
    assert!(!before.is_empty(), "that it was started is told");
    cloud.restart();
    agent.until("it is back", |status| status.link.connections >= 2).await;
    proven(&cloud).await;
    in_sync(&agent).await;
    assert_eq!(events().await, before);
}

#[tokio::test]
async fn cut_slow_and_restarted_links_recover() {
    let (site, cloud) = (Site::new(), cloud());
    let agent = device(&site, &cloud, "[kubeedge]\nwatch = [\"lab.io/v1/widgets\"]\n").await;
    in_sync(&agent).await;
    let path = |name: &str| format!("/apis/lab.io/v1/namespaces/lab/widgets/{name}");
    // A cut in the middle of a frame of a fragmented message.
    let mut large = widget("large");
    large["spec"]["text"] = "x".repeat(200_000).into();
    cloud.suffer(Fault::CutMidFrame);
    cloud.apply(large.clone());
    agent.until("the link was lost", |status| status.link.connections >= 2).await;
    cloud.suffer(Fault::None);
    holds(&agent, &path("large"), |held| held["spec"] == large["spec"]).await;
    // The relist after the loss ends before the line becomes slow.
    in_sync(&agent).await;
    // So slow that a message takes longer than the timeout of its acknowledgement.
    cloud.suffer(Fault::Slow { bytes: 64, pause: Duration::from_millis(20) });
    cloud.apply(widget("slow"));
    holds(&agent, &path("slow"), |_| true).await;
    cloud.suffer(Fault::None);
    // CloudCore restarts and has no watches.
    cloud.restart();
    cloud.apply(widget("after"));
    holds(&agent, &path("after"), |_| true).await;
    // An object that cannot be stored delays no other.
    let mut huge = widget("huge");
    huge["spec"]["text"] = "x".repeat(9 << 20).into();
    cloud.apply(huge);
    cloud.apply(widget("last"));
    holds(&agent, &path("last"), |_| true).await;
    let status = agent.until("it is shown", |status| !status.rejected.is_empty()).await;
    assert_eq!(status.rejected[0].reason, "TooLarge", "{status:?}");
    assert_eq!(cloud.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn offline_events_arrive_after_the_reconnection() {
    let (site, cloud) = (Site::new(), cloud());
    cloud.apply(pod("web", "none", "none"));
    let agent = device(&site, &cloud, "").await;
    holds(&agent, "/api/v1/namespaces/lab/pods/web", |_| true).await;
    cloud.refuse(true);
    cloud.cut(NODE);
    agent.until("the link is lost", |status| !status.link.is_connected()).await;
    for n in 0..20 {
        let event = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": format!("pump.{n}"), "namespace": "lab"},
            "eventTime": "2026-11-21T10:00:00.000000Z", "reportingController": "example.com/pump",
            "reportingInstance": "pump-1", "action": "Pumping", "reason": "Pumped", "type": "Normal", "note": "full",
            "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "lab", "name": "web"},
        });
        let _: Value =
            agent.client().post("/apis/events.k8s.io/v1/namespaces/lab/events", &event).await.unwrap();
    }
    cloud.refuse(false);
    cloud
        .until("every Event has arrived", |core| {
            let is_it = |n: usize| {
                core.event_writes().iter().any(|event| {
                    event["metadata"]["name"] == format!("pump.{n}")
                        && event["apiVersion"] == "v1"
                        && event["message"] == "full"
                })
            };
            (0..20).all(is_it)
        })
        .await;
    agent.until("nothing waits", |status| status.outbox["bulk"].waiting == 0).await;
}

#[tokio::test]
async fn failed_attempts_to_cloudcore_log_one_line_each() {
    let (site, cloud) = (Site::new(), cloud());
    let mut agent = new_device(&site, "");
    agent.settings.text("link.backoff_min", "300ms").text("link.backoff_max", "1s");
    agent.write_config();
    let output = join(&cloud, &agent, &cloud.token()).await;
    assert!(output.status.success(), "{}", output_text(&output));
    cloud.refuse(true);
    let url = cloud.url();
    agent.run_as_configured().await;
    crate::e2e::link::assert_one_log_line_per_failed_attempt(&agent, url.trim_start_matches("wss://")).await;
}

#[tokio::test]
async fn join_service_refusals_say_what_to_do() {
    let (site, cloud) = (Site::new(), cloud());
    let agent = new_device(&site, "");
    let output = join(&cloud, &agent, &cloud.expired_token()).await;
    assert!(!output.status.success());
    assert!(output_text(&output).contains("expired"), "{}", output_text(&output));
    assert!(!std::fs::read_to_string(agent.config()).unwrap().contains("kubeedge\""), "nothing has changed");

    let output = join(&cloud, &agent, &cloud.token()).await;
    assert!(output.status.success(), "{}", output_text(&output));
    let text = output_text(&output);
    assert!(text.contains("CloudCore"), "{text}");
    let pem = std::fs::read_to_string(identity_of(agent.config()).join("node.pem")).unwrap();
    let identity = edgesync_transport::tls::Identity::from_pem("node.pem", &pem).unwrap();
    assert_eq!(identity.certificate().subject().common_name, format!("system:node:{NODE}"));
}
