//! A roll-out in waves with three devices whose nginx takes the files.

use std::net::SocketAddr;
use std::path::Path;

use edgesync_admin::Route;
use edgesync_admin::agent::FilesState;
use edgesync_admin::cloud::RolloutStatus;
use serde_json::{Value, json};

use crate::files::device::{Device, config_map};
use crate::files::nginx::{NGINX, Nginx, closed_window, nginx, page_at, rule as nginx_rule};
use edgesync_testkit::site::fleet::output_text;
use edgesync_testkit::site::*;

const CANARY: &str = "edge-1";
const OTHERS: [&str; 2] = ["edge-2", "edge-3"];
const RULE: &str = "web";

/// Returns a location of nginx, by the name of the object.
fn conf(name: &str, text: &str) -> Value {
    config_map(name, json!({ "site.conf": format!("location /{name} {{ return 200 \"{text}\"; }}\n") }))
}

/// Returns what nginx refuses to load.
fn broken() -> Value {
    config_map("web", json!({ "site.conf": "lisssten 80;\n" }))
}

/// A device with its nginx.
struct Station {
    device: Device,
    address: SocketAddr,
    _nginx: Nginx,
}

impl Station {
    async fn start(site: &Site, cloud: &Cloud, name: &str) -> Self {
        let (directory, address) = (site.path(&format!("{name}.nginx")), Site::address());
        let mut nginx = nginx(directory.clone(), Some(address));
        nginx.start().await;
        let mut device = Device::named(site, cloud, name, &nginx_rule(&directory, false));
        device.agent.write_config();
        device.start_helper().await;
        device.agent.run().await;
        device.all_in_effect("nginx", 2).await;
        Self { device, address, _nginx: nginx }
    }

    /// Returns what its nginx serves for an object.
    fn serves(&self, name: &str) -> Option<String> {
        page_at(self.address, &format!("/{name}"))
    }

    async fn until(&self, name: &str, text: &str) {
        eventually(&format!("{name} {text:?} is served"), PATIENCE, async || {
            (self.serves(name).as_deref() == Some(text)).then_some(())
        })
        .await;
    }
}

fn node(name: &str, stage: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"stage": stage}}})
}

fn rule(healthy_within: &str) -> Value {
    json!({
        "apiVersion": "edgesync.io/v1alpha1", "kind": "ClusterPlacement", "metadata": { "name": RULE },
        "spec": {
            "objects": { "kinds": ["configmaps"], "namespaces": ["plant"] },
            "nodes": {},
            "rollout": {
                "waves": [{ "selector": "stage=canary" }, {}],
                "soak": "1s", "healthyWithin": healthy_within, "settle": "1s",
                "minSuccess": { "percent": 100 }, "maxFailures": { "percent": 0 },
            },
        },
    })
}

async fn shown(cloud: &Cloud) -> Option<RolloutStatus> {
    ask(&cloud.client(), Route::RolloutStatus(RULE)).await.ok()
}

/// Waits until the roll-out is in this state.
async fn until(cloud: &Cloud, what: &str, is_so: impl Fn(&RolloutStatus) -> bool) -> RolloutStatus {
    eventually(what, 2 * PATIENCE, async || shown(cloud).await.filter(&is_so)).await
}

/// Waits until this revision is stable and the only one.
async fn until_stable(cloud: &Cloud, number: u64) {
    let is_stable = |shown: &RolloutStatus| matches!(&shown.revisions[..], [only] if only.number == number);
    until(cloud, &format!("revision {number} is stable"), is_stable).await;
}

/// Waits until the status of the rule says that the roll-out is degraded, with these words.
async fn until_degraded(cloud: &Cloud, words: &str) {
    let path = format!("/apis/edgesync.io/v1alpha1/clusterplacements/{RULE}");
    eventually(&format!("the status of the rule says {words:?}"), PATIENCE, async || {
        let rule: Value = cloud.client().get(&path).await.unwrap();
        let mut conditions = rule["status"]["conditions"].as_array()?.iter();
        let degraded = conditions.find(|one| one["type"] == "Degraded" && one["status"] == "True")?;
        degraded["message"].as_str()?.contains(words).then_some(())
    })
    .await;
}

/// Runs `edgesync-cloud rollout` and returns its output.
async fn rollout(cloud: &Cloud, words: &[&str]) -> String {
    let output = cloud.command(&[&["rollout"], words, &[RULE]].concat()).await;
    assert!(output.status.success(), "{words:?}: {}", output_text(&output));
    output_text(&output)
}

#[tokio::test]
async fn bad_version_stays_at_the_canary_and_its_fix_reaches_all() {
    if !Path::new(NGINX).exists() {
        eprintln!("notice: {NGINX} is missing; roll-outs were not tested with it");
        return;
    }
    let site = Site::new();
    let mut cloud = Cloud::start_with(&site, |settings| {
        settings.tables("");
    })
    .await;
    cloud.apply([node(CANARY, "canary"), node(OTHERS[0], "late"), node(OTHERS[1], "late")]).await;
    cloud.apply([conf("web", "one"), conf("db", "one")]).await;
    cloud.apply([rule("5m")]).await;
    let mut stations = Vec::new();
    for name in [CANARY, OTHERS[0], OTHERS[1]] {
        stations.push(Station::start(&site, &cloud, name).await);
    }
    until_stable(&cloud, 1).await;

    // nginx on the canary refuses the bad version: no other node is sent it.
    cloud.apply([broken()]).await;
    let failed = until(&cloud, "the roll-out pauses", |shown| shown.paused.is_some()).await;
    assert_eq!(failed.paused.as_deref(), Some("FailuresExceeded"));
    assert_eq!(failed.revisions.iter().map(|one| (one.number, one.open)).collect::<Vec<_>>()[1..], [(2, 1)]);
    assert_eq!((failed.waves[0].failed, failed.waves[1].open), (1, false));
    let first = &failed.waves[0].failures[0];
    assert_eq!(first.node, CANARY);
    let key = "ConfigMap 'plant/web': NotInEffect: ";
    assert!(first.message.starts_with(key) && first.message.contains("lisssten"), "{first:?}");
    let status = rollout(&cloud, &["status"]).await;
    let summary = format!("1 of 1 nodes in wave 1 have failed, 0 % may; {CANARY}: {key}");
    assert!(status.contains("FailuresExceeded") && status.contains(&summary), "{status}");
    until_degraded(&cloud, &summary).await;
    stations[0].device.until(&cloud, "nginx", &broken(), FilesState::NotInEffect).await;
    for station in &stations {
        assert_eq!(["web", "db"].map(|name| station.serves(name)), [Some("one".into()), Some("one".into())]);
    }
    // A cloud side that is killed goes on where it was.
    cloud.crash().await;
    let again = until(&cloud, "the status after a restart", |shown| shown.waves[0].failed == 1).await;
    assert_eq!((again.paused, again.revisions.len()), (failed.paused, 2));
    assert_eq!(again.waves[0].failures, failed.waves[0].failures);

    // The undone version does not return with a change of another object.
    rollout(&cloud, &["undo"]).await;
    until_stable(&cloud, 1).await;
    cloud.apply([conf("db", "two")]).await;
    until_stable(&cloud, 3).await;
    for station in &stations {
        station.until("db", "two").await;
        assert_eq!(station.serves("web").as_deref(), Some("one"));
        station.device.all_in_effect("nginx", 2).await;
    }

    // The fix goes through all waves, and waits for an operator between them.
    rollout(&cloud, &["pause"]).await;
    cloud.apply([conf("web", "fixed")]).await;
    rollout(&cloud, &["resume"]).await;
    until_stable(&cloud, 4).await;
    for station in &stations {
        station.until("web", "fixed").await;
    }
    let history = rollout(&cloud, &["history"]).await;
    assert!(history.contains("Undone"), "{history}");

    // An object that is new on the canary is not good there before it is in effect.
    stations[0].device.helper.kill();
    cloud.apply([rule("1s")]).await;
    cloud.apply([conf("new", "one")]).await;
    let failed = until(&cloud, "the roll-out pauses", |shown| shown.paused.is_some()).await;
    assert_eq!((failed.waves[0].failed, failed.waves[1].open), (1, false), "{failed:?}");
    assert!(stations[1].device.object("nginx", "new").await.is_none());
    assert_ne!(stations[1].serves("new").as_deref(), Some("one"));
    stations[0].device.start_helper().await;
    stations[0].device.all_in_effect("nginx", 3).await;
    cloud.apply([rule("5m")]).await;
    rollout(&cloud, &["resume"]).await;
    until_stable(&cloud, 5).await;
}

/// Nodes go back outside of windows, where the operator says so and the file rule permits it.
#[tokio::test]
async fn undo_overrides_windows_of_rules_that_permit_it() {
    let site = Site::new();
    let cloud = Cloud::start_with(&site, |settings| {
        settings.tables("");
    })
    .await;
    let object = |mode: &str| config_map("web", json!({ "mode": mode }));
    let nodes = [CANARY, OTHERS[0]];
    cloud.apply(nodes.map(|name| node(name, "canary"))).await;
    cloud.apply([object("one")]).await;
    let mut rule = rule("5m");
    rule["spec"]["rollout"]["soak"] = json!("1h");
    cloud.apply([rule]).await;
    let path = |name: &str| site.path(&format!("{name}.files"));
    let files = |name: &str, rest: &str| {
        let shown = path(name).display().to_string();
        format!(
            "[[files]]\nname = \"web\"\nobjects = {{ kinds = [\"configmaps\"], namespaces = [\"plant\"] }}\n\
             to = \"{shown}/{{metadata.name}}\"\nsettle = \"0s\"\n{rest}"
        )
    };
    let mode = |name: &str| std::fs::read_to_string(path(name).join("web/mode")).ok();
    let mut devices = Vec::new();
    for name in nodes {
        std::fs::create_dir(path(name)).unwrap();
        let mut device = Device::named(&site, &cloud, name, &files(name, ""));
        device.agent.write_config();
        device.start_helper().await;
        device.agent.run().await;
        device.all_in_effect("web", 1).await;
        devices.push(device);
    }
    until_stable(&cloud, 1).await;
    let one = devices[0].object("web", "web").await.unwrap().version;

    cloud.apply([object("two")]).await;
    for (device, rest) in devices.iter_mut().zip(["overridable = true\n", ""]) {
        let two = device.until(&cloud, "web", &object("two"), FilesState::InEffect).await;
        assert_ne!(two.version, one);
        let name = device.agent.node.clone();
        device.reload(&files(&name, &(closed_window() + rest))).await;
    }
    until(&cloud, "both have it in effect", |shown| shown.waves[0].good == 2).await;
    rollout(&cloud, &["undo", "--override-window"]).await;
    let expected = [(FilesState::InEffect, "one"), (FilesState::Waiting, "two")];
    for (device, (state, content)) in devices.iter().zip(expected) {
        let shown = eventually(&format!("{} is {}", device.agent.node, state.name()), PATIENCE, async || {
            device.object("web", "web").await.filter(|shown| shown.state == state && shown.desired == one)
        })
        .await;
        assert_eq!(shown.reason.as_deref(), (state == FilesState::Waiting).then_some("Window"), "{shown:?}");
        assert_eq!(mode(&device.agent.node).as_deref(), Some(content));
    }
    until_stable(&cloud, 1).await;
}
