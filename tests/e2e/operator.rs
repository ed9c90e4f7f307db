//! Operations with the programs' own commands: the database of the cloud side, several nodes at
//! once, events of a node, watches.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use edgesync_admin::check::CheckReport;
use edgesync_admin::cloud::state::{OFFLINE, REVOKED};
use serde_json::json;

use edgesync_testkit::kubectl::{Cluster, Edge, Kubectl};
use edgesync_testkit::site::fleet::{Fleet, ended, in_sync, output_text, stored};
use edgesync_testkit::site::{
    Agent, PATIENCE, Site, eventually, object, objects, same_on_both_sides, secret,
};

/// Runs a command on the machine of the cloud side.
async fn on_its_machine(site: &Site, words: &[&str]) -> Output {
    let mut command = Command::new(edgesync_testkit::programs::cloud());
    command.args(words).arg("--config").arg(site.path("cloud.toml"));
    ended(command).await
}

#[track_caller]
fn ends_with(code: i32, output: &Output) -> String {
    assert_eq!(output.status.code(), Some(code), "{}", output_text(output));
    output_text(output)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test]
async fn cloud_side_is_checked_backed_up_and_restored() {
    let site = Site::new();
    let mut fleet = Fleet::embedded(&site, |_| {}).await;
    let mut agent = fleet.device(&site, "edge-1").await;
    agent.run_as_configured().await;
    fleet.cloud.apply(objects(0..20).chain([secret(1_000)])).await;
    in_sync(&agent).await;
    same_on_both_sides(&fleet.cloud, &agent).await;

    let checked = on_its_machine(&site, &["check", "-o", "json"]).await;
    ends_with(0, &checked);
    let report: CheckReport = serde_json::from_slice(&checked.stdout).unwrap();
    assert!(report.checks.len() > 5 && report.counts.failed == 0, "{report:#?}");
    ends_with(0, &on_its_machine(&site, &["verify"]).await);

    let copy = site.path("copy.db");
    ends_with(0, &on_its_machine(&site, &["backup", text(&copy)]).await);
    assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    ends_with(1, &on_its_machine(&site, &["backup", text(&copy)]).await);

    // The token is unused so far; the bundle has no part of it, of the CA or of a Secret.
    let hidden = fleet.token(&["--node", "edge-2"]).await;
    let hidden = hidden.rsplit(['.', ':']).next().unwrap().to_owned();
    let word = fleet.cloud.get(&secret(1_000)).await["data"]["password"].as_str().unwrap().to_owned();
    let bundle = site.path("bundle.tar.zst");
    ends_with(0, &on_its_machine(&site, &["support-bundle", text(&bundle)]).await);
    let bytes = zstd::decode_all(std::fs::File::open(&bundle).unwrap()).unwrap();
    let bundle = String::from_utf8_lossy(&bytes);
    assert!(["README.txt", "check.json", "edge-1"].iter().all(|part| bundle.contains(part)));
    for hidden in ["PRIVATE KEY", &hidden, &word, "credentials-1000"] {
        assert!(!bundle.contains(hidden), "{hidden}");
    }

    // Restore refuses while the cloud side runs. Afterwards the deleted object exists again, on the
    // node too.
    ends_with(1, &on_its_machine(&site, &["restore", text(&copy)]).await);
    let lost = fleet.cloud.get(&object(3)).await;
    fleet.cloud.delete(&lost).await;
    eventually("it is gone on the node", PATIENCE, async || agent.get(&lost).await.is_none().then_some(()))
        .await;
    assert!(fleet.cloud.process.terminate(PATIENCE).await.success());
    let mut damaged = std::fs::read(&copy).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle..middle + 4096].fill(0x5a);
    let broken = site.path("broken.db");
    std::fs::write(&broken, damaged).unwrap();
    ends_with(1, &on_its_machine(&site, &["restore", text(&broken)]).await);
    ends_with(0, &on_its_machine(&site, &["restore", text(&copy)]).await);
    ends_with(0, &on_its_machine(&site, &["verify"]).await);
    fleet.cloud.run().await;
    eventually("it is back on the node", PATIENCE, async || agent.get(&lost).await.map(drop)).await;

    assert!(fleet.cloud.process.terminate(PATIENCE).await.success());
    std::fs::copy(&broken, &fleet.cloud.database).unwrap();
    ends_with(1, &on_its_machine(&site, &["verify"]).await);
}

#[tokio::test]
async fn node_commands_accept_several_nodes() {
    let site = Site::new();
    let fleet = Fleet::embedded(&site, |_| {}).await;
    let mut agents = Vec::new();
    for node in ["edge-1", "edge-2"] {
        let mut agent = fleet.device(&site, node).await;
        agent.run_as_configured().await;
        in_sync(&agent).await;
        agents.push(agent);
    }
    let both = |verb| ["node", verb, "edge-1", "node/edge-2"];
    let states = async |expected: Option<&str>| {
        for node in ["edge-1", "edge-2"] {
            eventually(&format!("{node} is {expected:?}"), PATIENCE, async || {
                (fleet.cloud.state(node).await.as_deref() == expected).then_some(())
            })
            .await;
        }
    };
    ends_with(0, &fleet.command(&both("remove")).await);
    for agent in &agents {
        agent.until("it is told", |status| status.cloud.removed).await;
    }
    ends_with(0, &fleet.command(&both("admit")).await);
    states(Some("in sync")).await;
    // An unknown node is reported and does not stop the command for the others.
    let output = fleet.command(&["node", "revoke", "edge-1", "nobody", "edge-2"]).await;
    assert!(ends_with(1, &output).contains("nobody"), "{}", output_text(&output));
    states(Some(REVOKED)).await;
    ends_with(0, &fleet.command(&both("forget")).await);
    states(None).await;
}

#[tokio::test]
async fn cloud_side_without_a_tls_api_serves_its_socket() {
    let site = Site::new();
    let fleet = Fleet::embedded(&site, |settings| {
        settings.text("api.listen", "off");
    })
    .await;
    ends_with(0, &fleet.command(&["nodes"]).await);
    assert!(ends_with(0, &fleet.command(&["page"]).await).contains("/page/#key="));
    let revoked = ends_with(0, &fleet.command(&["page", "revoke"]).await);
    assert!(revoked.trim_end().ends_with("all keys of the page revoked"), "{revoked}");
    let refused = fleet.command(&["kubeconfig", "--api", "https://cloud.example:10551"]).await;
    assert!(ends_with(1, &refused).contains("hint: set api.listen"), "{}", output_text(&refused));
    assert!(!fleet.cloud.kubeconfig.exists(), "no kubeconfig without an address");
}

#[tokio::test]
async fn roll_outs_are_moved_with_the_role_edit() {
    let site = Site::new();
    let fleet = Fleet::embedded(&site, |_| {}).await;
    let rule = json!({
        "apiVersion": "edgesync.io/v1alpha1", "kind": "ClusterPlacement", "metadata": {"name": "web"},
        "spec": {"objects": {"kinds": ["ConfigMap"]}, "nodes": {"names": ["*"]}, "rollout": {"waves": [{}]}}
    });
    fleet.cloud.apply([rule]).await;
    eventually("the roll-out has a revision", PATIENCE, async || {
        let output = fleet.command(&["rollout", "status", "web"]).await;
        output_text(&output).contains("Initialized").then_some(())
    })
    .await;
    let api = format!("https://{}", fleet.cloud.api);
    for (role, code, words) in [
        ("view", 1, "requires role 'edit', have 'view'"),
        ("edit", 0, "paused by ada"),
        ("admin", 1, "already"),
    ] {
        let output = fleet.command(&["kubeconfig", "--user", "ada", "--role", role, "--api", &api]).await;
        ends_with(0, &output);
        let file = site.path(role);
        std::fs::write(&file, output.stdout).unwrap();
        let output = fleet.command(&["rollout", "pause", "web", "--kubeconfig", text(&file)]).await;
        assert!(ends_with(code, &output).contains(words), "{role}: {}", output_text(&output));
    }
}

#[tokio::test]
async fn watched_roll_out_is_shown_when_it_changes() {
    let site = Site::new();
    let fleet = Fleet::embedded(&site, |_| {}).await;
    let rule = json!({
        "apiVersion": "edgesync.io/v1alpha1", "kind": "ClusterPlacement", "metadata": {"name": "web"},
        "spec": {"objects": {"kinds": ["ConfigMap"]}, "nodes": {}, "rollout": {"waves": [{}], "settle": "1s"}}
    });
    fleet.cloud.apply([rule]).await;
    eventually("the roll-out has a revision", PATIENCE, async || {
        let output = fleet.command(&["rollout", "status", "web"]).await;
        output_text(&output).contains("Initialized").then_some(())
    })
    .await;
    let mut command = Command::new(edgesync_testkit::programs::cloud());
    command.args(["rollout", "status", "web", "--watch"]).env("EDGESYNC_CLOUD_SERVER", &fleet.cloud.socket);
    let mut watch = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let (sender, received) = std::sync::mpsc::channel();
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| drop(sender.send(line))));
    // Returns the number of statuses up to the one with these words.
    let shown = |words: &str| {
        let mut statuses = 0;
        loop {
            let line = received.recv_timeout(PATIENCE).expect(words);
            statuses += usize::from(line.starts_with("Rule: web"));
            if line.contains(words) {
                return statuses;
            }
        }
    };
    assert_eq!(shown("not paused"), 1);
    ends_with(0, &fleet.command(&["rollout", "pause", "web"]).await);
    assert_eq!(shown("paused by"), 1, "an unchanged status is not repeated");
    ends_with(0, &fleet.command(&["rollout", "resume", "web"]).await);
    assert_eq!(shown("not paused"), 1);
    watch.kill().unwrap();
    watch.wait().unwrap();
}

#[tokio::test]
async fn events_and_watches_work_on_both_sides() {
    let cluster = Cluster::start().await;
    let edge = Edge::start(&cluster, "edge-1").await;
    let program = |name: &str, path: &str| {
        let mut program = Kubectl::with_kubeconfig(&cluster.site, name, &cluster.site.path("none"));
        program.program(path.into());
        program
    };
    let device = program("device", edgesync_testkit::programs::device());
    let cloud = program("cloud-side", edgesync_testkit::programs::cloud());
    let (at_device, at_cloud) =
        (["--socket", text(&edge.agent.socket)], ["--server", text(&cluster.cloud.socket)]);

    let events = [&["events"][..], &at_device].concat();
    eventually("the start is an Event", PATIENCE, async || {
        device.run(&events).ok().contains("AgentStarted").then_some(())
    })
    .await;
    device.run(&events).shows(&["LAST SEEN", "Normal", "node/edge-1"]);
    let list = device.run(&[&events[..], &["-o", "json"]].concat()).json();
    assert_eq!(list["items"][0]["reason"], "AgentStarted");

    let watch = ["get", "configmaps", "-n", "default", "-w"];
    let here = device.start(&[&watch[..], &at_device].concat(), "");
    let there = cloud.start(&[&watch[..], &at_cloud].concat(), "");
    cluster.kubectl(&["create", "configmap", "late", "--from-literal=a=b"]).ok();
    here.line("late").await;
    there.line("late").await;
    cluster.kubectl(&["delete", "configmap", "late"]).ok();
    cluster.kubectl(&["create", "configmap", "later"]).ok();
    here.line("later").await;
    there.line("later").await;

    for shell in ["bash", "zsh", "fish"] {
        cloud.run(&["completions", shell]).shows(&["explain-placement", "support-bundle"]);
        device.run(&["completions", shell]).shows(&["join", "support-bundle"]);
    }
}

/// Returns the output of `edgesync status` on a device.
async fn status_of(agent: &Agent, words: &[&str]) -> String {
    let mut command = Command::new(edgesync_testkit::programs::device());
    command.arg("status").args(words).arg("--socket").arg(&agent.socket);
    ends_with(0, &ended(command).await)
}

#[tokio::test]
async fn nodes_are_listed_and_status_summarizes_each_in_ten_lines() {
    let site = Site::new();
    let mut fleet = Fleet::embedded(&site, |_| {}).await;
    // A node with a label from its token that is offline, and one with a certificate and a budget.
    let mut north = fleet.new_device(&site, "edge-1");
    let token = fleet.token(&["--node", "edge-1", "--label", "site=north"]).await;
    ends_with(0, &fleet.join(&north, &token, &[]).await);
    north.run_as_configured().await;
    in_sync(&north).await;
    north.stop().await;
    let mut other = fleet.new_device(&site, "edge-2");
    other.settings.text("traffic.daily_budget", "1GiB");
    other.write_config();
    let token = fleet.token(&["--node", "edge-2"]).await;
    ends_with(0, &fleet.join(&other, &token, &[]).await);
    other.run_as_configured().await;
    fleet.cloud.apply(objects(0..5)).await;

    let shown = eventually("all is well", PATIENCE, async || {
        let shown = status_of(&other, &[]).await;
        let is_well = ["Healthy:       yes\n", "Objects:       5 held\n", "In sync:       yes\n"];
        is_well.iter().all(|line| shown.contains(line)).then_some(shown)
    })
    .await;
    for line in [
        "Node:          edge-2, ",
        "In sync:       yes",
        "Certificate:   valid, until ",
        "Database:      works",
    ] {
        assert!(shown.lines().any(|shown| shown.starts_with(line)), "{line}: {shown}");
    }
    let settled = eventually("nothing is on its way", PATIENCE, async || {
        let shown = status_of(&other, &[]).await;
        (!shown.contains("Outbox:")).then_some(shown)
    })
    .await;
    let lines = |shown: &str| shown.lines().skip_while(|line| !line.starts_with("Healthy:")).count();
    assert!((8..=10).contains(&lines(&settled)), "{settled}");
    assert!(status_of(&other, &["-v"]).await.lines().count() > 40);

    let listed = async |words: &[&str]| {
        let output = fleet.command(&[&["nodes"], words].concat()).await;
        ends_with(0, &output);
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    eventually("the one that was stopped is offline", PATIENCE, async || {
        let states = [fleet.cloud.state("edge-1").await?, fleet.cloud.state("edge-2").await?];
        (states == [OFFLINE, "in sync"]).then_some(())
    })
    .await;
    for (words, expected) in [
        (&["-l", "site=north"][..], "node/edge-1\n"),
        (&["-l", "site!=north"], "node/edge-2\n"),
        (&["--state", "offline"], "node/edge-1\n"),
        (&["--state", "in sync", "-l", "site=north"], ""),
        (&["--sort-by", "state"], "node/edge-2\nnode/edge-1\n"),
        (&["--state", "offline,in sync"], "node/edge-1\nnode/edge-2\n"),
    ] {
        let found = listed(&[words, &["-o", "name"]].concat()).await;
        assert_eq!((found.0.as_str(), found.1.as_str()), (expected, ""), "{words:?}");
    }
    let (table, summary) = listed(&[]).await;
    assert_eq!((table.lines().count(), summary.as_str()), (3, "2 nodes: 1 in sync, 1 offline\n"), "{table}");
    let (wide, summary) = listed(&["-o", "wide"]).await;
    assert!(wide.lines().next().unwrap().contains("CERTIFICATE ENDS"), "{wide}");
    assert_eq!(summary, "2 nodes: 1 in sync, 1 offline\n");
    for (agent, line) in [&north, &other].into_iter().zip(wide.lines().skip(1)) {
        let ends = stored(agent).identity.certificate().ends().to_string();
        assert!(line.starts_with(&agent.node) && line.contains(&ends[..10]), "{ends}: {wide}");
    }
    assert!(wide.lines().nth(1).unwrap().contains("site=north"), "{wide}");

    assert!(fleet.cloud.process.terminate(PATIENCE).await.success());
    let shown = eventually("not all is well", PATIENCE, async || {
        let shown = status_of(&other, &[]).await;
        shown.contains("Healthy:       no\n").then_some(shown)
    })
    .await;
    assert!(
        shown.contains("- no connection to the cloud: ") && shown.contains("; next attempt within "),
        "{shown}"
    );
}
