//! `edgesync-cloud` with the kubeconfig of a cluster: administers a fleet from any machine, without
//! a port of a replica.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as STANDARD;
use edgesync_admin::cloud::state::{REMOVED, REVOKED};
use edgesync_admin::cloud::{NodeInfo, NodeList};
use edgesync_admin::read;
use serde_json::Value;

use crate::cluster::setup::{EVERYWHERE, PATIENCE, Setup, config_map};
use edgesync_testkit::site::fleet::{Fleet, ended, in_sync, output_text};
use edgesync_testkit::site::{Agent, Site, eventually, held};

/// Maximum time until a revocation is in force everywhere.
const SOON: Duration = Duration::from_secs(2);

/// Runs `edgesync-cloud` with these arguments and a kubeconfig.
async fn ask(kubeconfig: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(edgesync_testkit::programs::cloud());
    command.args(words).arg("--kubeconfig").arg(kubeconfig);
    ended(command).await
}

/// The same commands as the administrator of the cluster.
impl Setup {
    async fn via_cluster(&self, words: &[&str]) -> Output {
        ask(&self.kubernetes.admin, words).await
    }

    /// Returns the standard output of a command that must succeed.
    pub(crate) async fn says(&self, words: &[&str]) -> String {
        let output = self.via_cluster(words).await;
        assert!(output.status.success(), "{words:?}: {}", output_text(&output));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Asserts that a command fails with this code and message.
    async fn fails(&self, words: &[&str], code: i32, expected: &str) {
        fails_with(&self.via_cluster(words).await, code, expected);
    }

    /// Returns the status of a node; `None` if it is unknown.
    async fn node(&self, name: &str) -> Option<NodeInfo> {
        let nodes: Value = serde_json::from_str(&self.says(&["nodes", "-o", "json"]).await).unwrap();
        read::<NodeList>(&nodes).unwrap().items.into_iter().find(|node| node.name() == name)
    }

    /// Waits until the status of a node has this state.
    async fn node_is(&self, name: &str, state: &str) -> NodeInfo {
        eventually(&format!("{name} is '{state}' as seen from afar"), PATIENCE, async || {
            self.node(name).await.filter(|node| node.state() == state)
        })
        .await
    }

    /// Starts a replica with the join service.
    async fn fleet(&self, home: &Site) -> Fleet {
        let joining = Site::address();
        let mut cloud = self.replica(home);
        cloud.settings.text("enrollment.listen", joining).text("broker.tls", "on");
        cloud.run().await;
        Fleet { cloud, joining }
    }
}

fn fails_with(output: &Output, code: i32, expected: &str) {
    assert_eq!(output.status.code(), Some(code), "{}", output_text(output));
    assert!(output_text(output).contains(expected), "{expected}: {}", output_text(output));
}

/// Joins a device with this token and starts its agent.
async fn joined(fleet: &Fleet, site: &Site, node: &str, token: &str) -> Agent {
    let mut agent = fleet.new_device(site, node);
    let output = fleet.join(&agent, token, &[]).await;
    assert!(output.status.success(), "{}", output_text(&output));
    agent.run_as_configured().await;
    in_sync(&agent).await;
    agent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn devices_join_and_are_revoked_via_the_cluster() {
    let setup = Setup::start().await;
    setup.fails(&["token", "create"], 1, "no replica of edgesync-cloud has started yet").await;
    setup.fails(&["nodes"], 1, "no replica of edgesync-cloud has run in namespace 'edgesync'").await;
    setup.apply(EVERYWHERE);
    setup.apply(&config_map("c0", "fast"));
    let home = Site::new();
    let fleet = setup.fleet(&home).await;
    assert_eq!(setup.says(&["token", "list"]).await, "");

    let token = setup.says(&["token", "create", "--node", "edge-1", "--label", "site=north"]).await;
    let agent = joined(&fleet, &setup.site, "edge-1", &token).await;
    let tokens = setup.says(&["token", "list"]).await;
    assert!(tokens.lines().any(|line| line.contains("edge-1") && line.contains("used up")), "{tokens}");
    let node = setup.node_is("edge-1", "in sync").await;
    assert!(node.served_by().is_some() && node.last_renewal().is_some(), "{node:#?}");
    assert_eq!((node.ready(), node.pending()), (Some(true), Some(0)), "{node:#?}");
    let served = fleet.cloud.served("edge-1").await.unwrap();
    assert_eq!(node.agent_version(), served.agent_version.as_deref());
    assert!(setup.says(&["nodes"]).await.contains("edge-1"), "a table");

    // Only the records that edgesync writes.
    setup.records_everything(&["edge-1"], "cm").await;
    setup.apply(
        "{apiVersion: reliablesyncs.kubeedge.io/v1alpha1, kind: ObjectSync, metadata: {name: edge-1.of-kubeedge, namespace: shop}, \
         spec: {}}",
    );
    for words in [&["syncs", "-o", "name"][..], &["syncs", "-o", "name", "--node", "edge-1"]] {
        let records = setup.says(words).await;
        assert_eq!(records.lines().count(), held(&agent.client()).await.len(), "{records}");
        assert!(!records.contains("of-kubeedge"), "{records}");
    }
    assert_eq!(setup.says(&["syncs", "-o", "name", "--node", "edge-2"]).await, "");

    let revoked = setup.says(&["node", "revoke", "edge-1"]).await;
    assert!(revoked.starts_with("node 'edge-1': 1 certificate revoked"), "{revoked}");
    eventually("the replica has cut the node", SOON, async || {
        (fleet.cloud.state("edge-1").await? == REVOKED).then_some(())
    })
    .await;
    setup.node_is("edge-1", "revoked").await;
    setup.fails(&["node", "revoke", "edge-2"], 1, "node 'edge-2' not found").await;

    // A revoked token is refused.
    let token = setup.says(&["token", "create"]).await;
    let usable = setup.says(&["token", "list"]).await;
    let id = usable.lines().find(|line| line.contains("usable")).unwrap().split(' ').next().unwrap();
    assert_eq!(setup.says(&["token", "revoke", id]).await, format!("token '{id}' revoked"));
    let second = fleet.new_device(&setup.site, "edge-2");
    fails_with(&fleet.join(&second, &token, &[]).await, 1, "revoked");
    setup.fails(&["token", "revoke", "nothing"], 1, "token 'nothing' not found").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn nodes_are_removed_admitted_and_forgotten_via_the_cluster() {
    let setup = Setup::start().await;
    let home = Site::new();
    let fleet = setup.fleet(&home).await;
    let token = setup.says(&["token", "create", "--uses", "2"]).await;
    let agent = joined(&fleet, &setup.site, "edge-1", &token).await;
    setup.node_is("edge-1", "in sync").await;
    setup.fails(&["node", "remove", "edge-2"], 1, "node 'edge-2' not found").await;
    assert_eq!(setup.says(&["node", "admit", "edge-1"]).await, "node 'edge-1' was not removed");

    let removed = setup.says(&["node", "remove", "edge-1"]).await;
    assert_eq!(removed, "node 'edge-1' removed from the fleet");
    assert_eq!(setup.node("edge-1").await.unwrap().state(), REMOVED);
    eventually("the replica has removed it", PATIENCE, async || {
        (fleet.cloud.state("edge-1").await? == REMOVED).then_some(())
    })
    .await;
    let again = setup.says(&["node", "remove", "edge-1"]).await;
    assert_eq!(again, "node 'edge-1' already removed");
    setup.says(&["node", "admit", "edge-1"]).await;
    setup.node_is("edge-1", "in sync").await;

    // The next device may take the name.
    let thief = Site::new();
    let other = fleet.new_device(&thief, "edge-1");
    fails_with(&fleet.join(&other, &token, &[]).await, 1, "taken");
    setup.says(&["node", "forget", "edge-1"]).await;
    assert_eq!(setup.node("edge-1").await, None);
    // On one machine only one agent of a name runs for an address.
    drop(agent);
    let _other = joined(&fleet, &thief, "edge-1", &token).await;
    setup.node_is("edge-1", "in sync").await;
    setup.fails(&["node", "forget", "edge-2"], 1, "node 'edge-2' not found").await;

    // Replicas complete a removal that stopped between its two steps.
    let members = ["get", "secret/edgesync-member.edge-1", "-n", "edgesync", "-o", "json"];
    let mut member = setup.admin.run(&members).json();
    let text = STANDARD.decode(member["data"]["member.json"].as_str().unwrap()).unwrap();
    let mut known: Value = serde_json::from_slice(&text).unwrap();
    known["removed"] = "2026-11-23T00:00:00Z".into();
    member["data"]["member.json"] = STANDARD.encode(known.to_string()).into();
    setup.apply(&member.to_string());
    setup.node_is("edge-1", REMOVED).await;
    let again = setup.says(&["node", "remove", "edge-1"]).await;
    assert_eq!(again, "node 'edge-1' already removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn held_back_removals_are_confirmed_via_the_cluster() {
    let mut setup = Setup::start().await;
    setup.apply(EVERYWHERE);
    let home = Site::new();
    let mut cloud = setup.replica(&home);
    cloud.run().await;
    let agent = Agent::start(&setup.site, "edge-1", cloud.mqtt).await;
    setup.node_is("edge-1", "in sync").await;
    setup.kubernetes.copy_or_restore().await;
    for number in 0..60 {
        setup.apply(&config_map(&format!("c{number}"), "fast"));
    }
    setup.holds(&agent, "cm").await;
    setup.node_is("edge-1", "in sync").await;
    let confirm = ["confirm-deletions", "edge-1"];
    assert_eq!(setup.says(&confirm).await, "node 'edge-1': no removals held back");

    setup.kubernetes.copy_or_restore().await;
    let node = setup.node_is("edge-1", "held back").await;
    assert_eq!(node.held_back(), Some(60), "{node:#?}");
    assert_eq!(held(&agent.client()).await.len(), 60);
    assert_eq!(setup.says(&confirm).await, "node 'edge-1': held removals confirmed");
    setup.holds(&agent, "cm").await;
    setup.fails(&["confirm-deletions", "edge-2"], 1, "node 'edge-2' not found").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn kubeconfig_type_is_detected_and_refusals_say_what_to_do() {
    let mut setup = Setup::start().await;
    let home = Site::new();
    let fleet = setup.fleet(&home).await;
    let context = ["nodes", "--context", "admin", "-n", "edgesync"];
    assert_eq!(setup.says(&context).await, "");
    setup.fails(&["nodes", "--context", "other"], 64, "no context 'other' (contexts: admin)").await;
    setup.fails(&["nodes", "-n", "shop"], 1, "has run in namespace 'shop'").await;
    for words in [&["get", "configmaps"][..], &["apply", "-f", "/dev/null"], &["delete", "-f", "/dev/null"]] {
        setup.fails(words, 64, "kubectl --kubeconfig").await;
    }
    setup.fails(&["broker-config", "mosquitto"], 1, "on the machine of a replica").await;

    // An operator of the replicas' own API, with a kubeconfig from this command.
    let api = format!("https://{}", fleet.cloud.api);
    setup.fails(&["kubeconfig"], 64, "--api https://HOST:PORT is required").await;
    let ours = setup.says(&["kubeconfig", "--user", "ada", "--api", &api]).await;
    let path = setup.site.path("ada.kubeconfig");
    std::fs::write(&path, ours).unwrap();
    eventually("the replica knows the operator", PATIENCE, async || {
        ask(&path, &["nodes"]).await.status.success().then_some(())
    })
    .await;
    fails_with(&ask(&path, &["nodes", "-n", "edgesync"]).await, 64, "need that of a Kubernetes cluster");
    assert!(setup.says(&["operator", "list"]).await.lines().any(|line| line.starts_with("ada")));
    let revoked = setup.says(&["operator", "revoke", "ada"]).await;
    assert_eq!(revoked, "operator 'ada': 1 certificate revoked");
    eventually("the replica refuses the operator", SOON, async || {
        output_text(&ask(&path, &["nodes"]).await).contains("was revoked").then_some(())
    })
    .await;

    // A user without rights gets the names of the missing ones.
    let eve = setup.kubernetes.user("eve");
    fails_with(&ask(&eve, &["nodes"]).await, 1, "User \"eve\" cannot get resource \"configmaps\"");
    let token = ask(&eve, &["token", "create"]).await;
    fails_with(&token, 1, "User \"eve\" cannot get resource \"secrets\"");
    let rights = ["create", "role", "ask", "-n", "edgesync", "--verb=get,list", "--resource=configmaps"];
    setup.admin.run(&rights).ok();
    let bound = ["create", "rolebinding", "ask", "-n", "edgesync", "--role=ask", "--user=eve"];
    setup.admin.run(&bound).ok();
    fails_with(&ask(&eve, &["nodes"]).await, 1, "User \"eve\" cannot list resource \"nodes\"");
    // The records need no right to the keys.
    let rights =
        ["create", "role", "records", "-n", "edgesync", "--verb=get,list,update", "--resource=secrets"];
    setup.admin.run(&rights).ok();
    let bound = ["create", "rolebinding", "records", "-n", "edgesync", "--role=records", "--user=eve"];
    setup.admin.run(&bound).ok();
    let listed = ask(&eve, &["operator", "list"]).await;
    assert!(output_text(&listed).lines().any(|line| line.starts_with("ada")), "{}", output_text(&listed));
    fails_with(&ask(&eve, &["token", "create"]).await, 1, "in the namespace \"edgesync-ca\"");
    let stranger = setup.kubernetes.caller("stranger", "nonsense");
    fails_with(&ask(&stranger, &["nodes"]).await, 69, "expired, revoked or of another cluster");

    setup.admin.run(&["delete", "crd", "objectsyncs.reliablesyncs.kubeedge.io"]).ok();
    setup.fails(&["syncs"], 1, "kind ObjectSync not served").await;
    setup.kubernetes.server.kill();
    setup.fails(&["nodes"], 69, "connect to API server").await;
}
