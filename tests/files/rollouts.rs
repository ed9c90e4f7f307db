//! A roll-out in waves with three devices that check their files.

use std::fs;

use edgesync_admin::Route;
use edgesync_admin::agent::FilesState;
use edgesync_admin::cloud::RolloutStatus;
use serde_json::{Value, json};

use crate::files::device::{Device, check_user, config_map};
use edgesync_testkit::site::fleet::output_text;
use edgesync_testkit::site::*;

const CANARY: &str = "edge-1";
const OTHERS: [&str; 2] = ["edge-2", "edge-3"];
const RULE: &str = "web";

/// A file rule whose check refuses files that say so.
fn checked(site: &Site, node: &str) -> String {
    let (to, user) = (site.path(node).join("out"), check_user());
    format!(
        "[[files]]\nname = \"web\"\nobjects = {{ kinds = [\"configmaps\"], namespaces = [\"plant\"] }}\n\
         to = \"{}/{{metadata.name}}\"\ncheck = ['/bin/sh', '-c', '! grep -r broken \"$EDGESYNC_CANDIDATE\"']\n\
         check_user = \"{user}\"\nsettle = \"0s\"\n",
        to.display(),
    )
}

fn file(site: &Site, node: &str, name: &str) -> String {
    fs::read_to_string(site.path(node).join("out").join(name).join("conf")).unwrap_or_default()
}

fn conf(name: &str, text: &str) -> Value {
    config_map(name, json!({ "conf": text }))
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

/// Runs `edgesync-cloud rollout` and returns its output.
async fn rollout(cloud: &Cloud, words: &[&str]) -> String {
    let output = cloud.command(&[&["rollout"], words, &[RULE]].concat()).await;
    assert!(output.status.success(), "{words:?}: {}", output_text(&output));
    output_text(&output)
}

#[tokio::test]
async fn bad_version_stays_at_the_canary_and_its_fix_reaches_all() {
    let site = Site::new();
    let mut cloud = Cloud::start_with(&site, |settings| {
        settings.tables("");
    })
    .await;
    let node = |name: &str, stage: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"stage": stage}}});
    cloud.apply([node(CANARY, "canary"), node(OTHERS[0], "late"), node(OTHERS[1], "late")]).await;
    cloud.apply([conf("web", "one"), conf("db", "one")]).await;
    cloud.apply([rule("5m")]).await;
    let mut devices = Vec::new();
    for name in [CANARY, OTHERS[0], OTHERS[1]] {
        let mut device = Device::named(&site, &cloud, name, &checked(&site, name));
        device.agent.write_config();
        device.start_helper().await;
        device.agent.run().await;
        device.all_in_effect("web", 2).await;
        devices.push(device);
    }
    until_stable(&cloud, 1).await;

    // The check of the canary refuses the bad version: no other node is sent it.
    cloud.apply([conf("web", "broken")]).await;
    let failed = until(&cloud, "the roll-out pauses", |shown| shown.paused.is_some()).await;
    assert_eq!(failed.paused.as_deref(), Some("FailuresExceeded"));
    assert_eq!(failed.revisions.iter().map(|one| (one.number, one.open)).collect::<Vec<_>>()[1..], [(2, 1)]);
    assert_eq!((failed.waves[0].failed, failed.waves[1].open), (1, false));
    let first = &failed.waves[0].failures[0];
    assert_eq!(first.node, CANARY);
    assert!(first.message.contains("web"), "{first:?}");
    let status = rollout(&cloud, &["status"]).await;
    assert!(status.contains("FailuresExceeded") && status.contains(CANARY), "{status}");
    devices[0].until(&cloud, "web", &conf("web", ""), FilesState::NotInEffect).await;
    for name in [CANARY, OTHERS[0], OTHERS[1]] {
        assert_eq!((file(&site, name, "web"), file(&site, name, "db")), ("one".into(), "one".into()));
    }
    // A cloud side that is killed goes on where it was.
    cloud.crash().await;
    let again = until(&cloud, "the status after a restart", |shown| shown.waves[0].failed == 1).await;
    assert_eq!((again.paused, again.revisions.len()), (failed.paused, 2));

    // The undone version does not return with a change of another object.
    rollout(&cloud, &["undo"]).await;
    until_stable(&cloud, 1).await;
    cloud.apply([conf("db", "two")]).await;
    until_stable(&cloud, 3).await;
    for name in [CANARY, OTHERS[0], OTHERS[1]] {
        eventually("the other object reaches all", PATIENCE, async || {
            (file(&site, name, "db") == "two").then_some(())
        })
        .await;
        assert_eq!(file(&site, name, "web"), "one");
    }
    for device in &devices {
        device.all_in_effect("web", 2).await;
    }

    // The fix goes through all waves, and waits for an operator between them.
    rollout(&cloud, &["pause"]).await;
    cloud.apply([conf("web", "fixed")]).await;
    rollout(&cloud, &["resume"]).await;
    until_stable(&cloud, 4).await;
    for name in [CANARY, OTHERS[0], OTHERS[1]] {
        eventually("the fix reaches all", PATIENCE, async || {
            (file(&site, name, "web") == "fixed").then_some(())
        })
        .await;
    }
    let history = rollout(&cloud, &["history"]).await;
    assert!(history.contains("Undone"), "{history}");

    // An object that is new on the canary is not good there before it is in effect.
    devices[0].helper.kill();
    cloud.apply([rule("1s")]).await;
    cloud.apply([conf("new", "one")]).await;
    let failed = until(&cloud, "the roll-out pauses", |shown| shown.paused.is_some()).await;
    assert_eq!((failed.waves[0].failed, failed.waves[1].open), (1, false), "{failed:?}");
    assert!(devices[1].object("web", "new").await.is_none() && file(&site, OTHERS[0], "new").is_empty());
    devices[0].start_helper().await;
    devices[0].all_in_effect("web", 3).await;
    cloud.apply([rule("5m")]).await;
    rollout(&cloud, &["resume"]).await;
    until_stable(&cloud, 5).await;
}
