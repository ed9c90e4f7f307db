//! Roll-outs over a real cluster: two replicas, whose leader is killed, and three nodes.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

mod phases;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use crate::cluster::install;
use crate::cluster::setup::{PATIENCE, Setup, arrived, replica_by};
use edgesync_testkit::proxy::Proxy;
use edgesync_testkit::site::fleet::output_text;
use edgesync_testkit::site::{Agent, Cloud, Site, eventually};

const CANARY: &str = "edge-1";
const RULE: &str = "web";

/// A rule for the ConfigMaps of the namespace `shop`: the canary first, then all others.
fn rule(soak: &str) -> String {
    json!({
        "apiVersion": "edgesync.io/v1alpha1", "kind": "ClusterPlacement", "metadata": {"name": RULE},
        "spec": {
            "objects": {"kinds": ["configmaps"], "namespaces": ["shop"]},
            "nodes": {},
            "rollout": {
                // The nodes have no file rules.
                "waves": [{"selector": "stage=canary", "heldOnly": true}, {"heldOnly": true}],
                "soak": soak, "settle": "1s", "minSuccess": {"percent": 100}, "maxFailures": {"percent": 0},
            },
        },
    })
    .to_string()
}

/// The cluster, its replicas and nodes.
struct Fleet {
    // The processes end before the directories go.
    agents: Vec<Agent>,
    replicas: [Cloud; 2],
    /// Connections of the nodes: those of the first replica, and those of the second one.
    lines: [Proxy; 2],
    setup: Setup,
    _homes: [Site; 2],
}

impl Fleet {
    /// Starts the replicas one after the other, so that the first one leads.
    async fn start() -> Self {
        let setup = Setup::start().await;
        let admin = setup.kubernetes.admin.clone();
        Self::over(setup, [&admin, &admin]).await
    }

    /// The same with a kubeconfig for each replica.
    async fn over(setup: Setup, kubeconfigs: [&Path; 2]) -> Self {
        setup.admin.run(&["wait", "--for=condition=Established", "crd/clusterplacements.edgesync.io"]).ok();
        for (name, stage) in [(CANARY, "canary"), ("edge-2", "late"), ("edge-3", "late")] {
            setup.apply(&format!(
                "{{apiVersion: v1, kind: Node, metadata: {{name: {name}, labels: {{edgesync.io/edge: 'true', \
                 stage: {stage}}}}}}}"
            ));
        }
        for name in ["web", "db"] {
            setup.put(name, "one").await;
        }
        setup.apply(&rule("1h"));
        let homes = [Site::new(), Site::new()];
        let mut replicas = [0, 1].map(|index| replica_by(&homes[index], kubeconfigs[index]));
        let lines = [Proxy::start(replicas[0].mqtt), Proxy::start(replicas[1].mqtt)];
        replicas[0].run().await;
        let mut fleet = Self { agents: Vec::new(), replicas, lines, setup, _homes: homes };
        eventually("the first replica leads", PATIENCE, async || fleet.leader().await).await;
        fleet.replicas[1].run().await;
        for (name, line) in [(CANARY, 0), ("edge-2", 1), ("edge-3", 0)] {
            let line = fleet.lines[line].address();
            fleet.agents.push(Agent::start(&fleet.setup.site, name, line).await);
        }
        fleet
    }

    /// Returns the id of the replica that has the Lease.
    async fn leader(&self) -> Option<String> {
        let path = "/apis/coordination.k8s.io/v1/namespaces/edgesync/leases/edgesync-cloud";
        let lease: Value = self.setup.kubernetes.client.get(path).await.ok()?;
        lease["spec"]["holderIdentity"].as_str().filter(|holder| !holder.is_empty()).map(str::to_owned)
    }

    /// Returns the rule.
    async fn rule(&self) -> Value {
        let path = format!("/apis/edgesync.io/v1alpha1/clusterplacements/{RULE}");
        self.setup.kubernetes.client.get(&path).await.unwrap()
    }

    /// Waits until the stored status of the roll-out matches.
    async fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        eventually(what, 3 * PATIENCE, async || {
            last = self.rule().await["status"]["rollout"].take();
            is_so(&last).then_some(())
        })
        .await;
        last
    }

    /// Waits until the stack has these revisions, open for so many waves. Those of the stable one
    /// do not count.
    async fn revisions(&self, expected: &[(u64, Option<u64>)]) {
        let stack = |rollout: &Value| {
            let revisions = rollout["revisions"].as_array().cloned().unwrap_or_default().into_iter();
            let one = |(at, one): (usize, Value)| {
                (one["number"].as_u64().unwrap(), one["open"].as_u64().filter(|_| at > 0))
            };
            revisions.enumerate().map(one).collect::<Vec<_>>()
        };
        self.until(&format!("the revisions are {expected:?}"), |rollout| stack(rollout) == expected).await;
    }

    /// Waits until nodes hold a ConfigMap of this content.
    async fn hold(&self, agents: &[Agent], name: &str, mode: &str) {
        for agent in agents {
            eventually(&format!("{} holds {name} {mode}", agent.node), PATIENCE, async || {
                (mode_of(agent, name).await == mode).then_some(())
            })
            .await;
        }
    }

    /// Runs `edgesync-cloud rollout` at a replica, until it is not refused.
    async fn command(&self, replica: usize, word: &str) {
        let mut last = String::new();
        eventually(&format!("rollout {word}"), PATIENCE, async || {
            let output = self.replicas[replica].command(&["rollout", word, RULE]).await;
            last = output_text(&output);
            output.status.success().then_some(())
        })
        .await;
    }

    /// Returns the numbers of the revisions that have Secrets, and the number of these.
    fn stored(&self) -> (BTreeSet<String>, usize) {
        let words = ["get", "secrets", "-n", "edgesync", "-l", "edgesync.io/revision-of", "-o", "json"];
        let secrets = self.setup.admin.run(&words).json();
        let secrets = secrets["items"].as_array().unwrap();
        let number = |secret: &Value| {
            secret["metadata"]["annotations"]["edgesync.io/revision"].as_str().unwrap().to_owned()
        };
        (secrets.iter().map(number).collect(), secrets.len())
    }
}

async fn mode_of(agent: &Agent, name: &str) -> String {
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "shop"}});
    let held = agent.get(&object).await.unwrap_or_default();
    held["data"]["mode"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn roll_out_continues_when_its_leader_is_killed() {
    let mut fleet = Fleet::start().await;
    fleet.revisions(&[(1, None)]).await;
    fleet.hold(&fleet.agents, "web", "one").await;

    // A change stays at the canary, which is good for as long as it soaks.
    fleet.setup.put("web", "two").await;
    fleet.hold(&fleet.agents[..1], "web", "two").await;
    let is_good = |rollout: &Value| !rollout["revisions"][1]["goodSince"].is_null();
    fleet.until("the canary is good", is_good).await;
    fleet.revisions(&[(1, None), (2, Some(1))]).await;
    fleet.hold(&fleet.agents[1..], "web", "one").await;

    // The other replica continues.
    let former = fleet.leader().await.unwrap();
    fleet.replicas[0].process.kill();
    fleet.lines[0].set_upstream(fleet.replicas[1].mqtt);
    fleet.command(1, "promote").await;
    fleet.hold(&fleet.agents, "web", "two").await;
    eventually("the other replica leads", PATIENCE, async || {
        fleet.leader().await.filter(|leader| *leader != former)
    })
    .await;
    fleet.until("all waves are good", is_good).await;
    fleet.command(1, "promote").await;
    fleet.revisions(&[(2, None)]).await;

    // The canary is at a replica that does not lead, and the operator too.
    fleet.replicas[0].run().await;
    fleet.lines[0].set_upstream(fleet.replicas[0].mqtt);
    fleet.lines[0].cut();
    eventually("the canary is at the other replica", PATIENCE, async || {
        (fleet.replicas[0].state(CANARY).await? == "in sync").then_some(())
    })
    .await;
    fleet.setup.put("web", "three").await;
    fleet.hold(&fleet.agents[..1], "web", "three").await;
    fleet.command(0, "undo").await;
    fleet.revisions(&[(2, None)]).await;
    fleet.hold(&fleet.agents[..1], "web", "two").await;

    // What was undone does not return with another change, which opens its waves by itself.
    fleet.setup.apply(&rule("1s"));
    fleet.setup.put("db", "two").await;
    fleet.revisions(&[(4, None)]).await;
    fleet.hold(&fleet.agents, "db", "two").await;
    fleet.hold(&fleet.agents, "web", "two").await;
    for (agent, changes) in fleet.agents.iter().zip([6, 4, 4]) {
        assert_eq!(arrived(agent).await, (changes, changes), "{}", agent.node);
    }

    eventually("the Secrets of ended revisions are deleted", PATIENCE, async || {
        (fleet.stored() == (["4".to_owned()].into(), 2)).then_some(())
    })
    .await;
    let expected = ["RolloutInitialized", "RevisionBegun", "WaveOpened", "RolloutCompleted", "RevisionEnded"];
    let mut found = BTreeSet::new();
    eventually("the Events exist", PATIENCE, async || {
        let events = fleet.setup.list("events").into_iter();
        let events = events.filter(|event| event["involvedObject"]["name"] == RULE);
        found = events.filter_map(|event| event["reason"].as_str().map(str::to_owned)).collect();
        expected.iter().all(|reason| found.contains(*reason)).then_some(())
    })
    .await;

    let mut conditions = BTreeSet::new();
    eventually("the conditions of the rule", PATIENCE, async || {
        let found = fleet.rule().await["status"]["conditions"].take();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let all = found.as_array().cloned().unwrap_or_default().into_iter();
        conditions = all
            .map(|one| format!("{}={} {}", text(&one["type"]), text(&one["status"]), text(&one["reason"])))
            .collect();
        let expected = ["Progressing=False Complete", "Paused=False NotPaused", "Degraded=False AsExpected"];
        expected.iter().all(|one| conditions.contains(*one)).then_some(())
    })
    .await;

    let before = fleet.rule().await;
    let again = fleet.setup.admin.feed(&["apply", "-f", "-"], &rule("1s"));
    again.says(&format!("clusterplacement.edgesync.io/{RULE} unchanged"));
    let after = fleet.rule().await;
    assert_eq!(after["metadata"]["generation"], before["metadata"]["generation"]);
    assert_eq!(after["status"]["rollout"], before["status"]["rollout"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn installed_rights_suffice_for_roll_outs() {
    let setup = install::Setup::installed().await;
    setup.aggregate(&["edgesync-place-configmaps"]);
    setup.admin.run(&["create", "configmap", "web", "-n", "plant", "--from-literal=mode=one"]).ok();
    setup.apply(
        "{apiVersion: edgesync.io/v1alpha1, kind: Placement, metadata: {name: web, namespace: plant}, spec: \
         {objects: {kinds: [configmaps]}, nodes: {}, rollout: {waves: [{heldOnly: true}], soak: 1s, settle: 1s}}}",
    );
    let mut replica = setup.replica();
    replica.fleet.cloud.run().await;
    let mut agent = replica.fleet.device(&setup.site, "edge-1").await;
    agent.run_as_configured().await;
    let stable = async |number: u64| {
        eventually(&format!("revision {number} is stable"), PATIENCE, async || {
            let rule = setup.get(&["placement", "web", "-n", "plant"]);
            let revisions = rule["status"]["rollout"]["revisions"].as_array()?.clone();
            matches!(&revisions[..], [only] if only["number"] == number).then_some(())
        })
        .await;
    };
    stable(1).await;
    let change = ["patch", "configmap", "web", "-n", "plant", "-p", "{\"data\": {\"mode\": \"two\"}}"];
    setup.admin.run(&change).ok();
    stable(2).await;
    eventually("the first revision is deleted", PATIENCE, async || {
        let secrets = setup.get(&["secrets", "-n", "edgesync", "-l", "edgesync.io/revision-of"]);
        let secrets = secrets["items"].as_array()?.clone();
        let is_second = |secret: &Value| secret["metadata"]["annotations"]["edgesync.io/revision"] == "2";
        (secrets.len() == 2 && secrets.iter().all(is_second)).then_some(())
    })
    .await;
    eventually("an Event is in the namespace of the rule", PATIENCE, async || {
        let events = setup.get(&["events", "-n", "plant"]);
        events["items"].as_array()?.iter().any(|event| event["reason"] == "RolloutCompleted").then_some(())
    })
    .await;
    assert!(replica.refused().is_empty(), "{:#?}", replica.refused());
}
