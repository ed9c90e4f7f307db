//! The leader is killed in each phase of a roll-out, and the other replica continues. Nodes are
//! judged by the changes that they have stored.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use edgesync_admin::Route;
use edgesync_admin::cloud::RolloutStatus;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{CANARY, Fleet, RULE, rule};
use crate::cluster::fault_proxy::{FaultProxy, Loss};
use crate::cluster::setup::{PATIENCE, Setup, arrived};
use edgesync_testkit::proxy::Mode;
use edgesync_testkit::site::{Agent, ask, eventually};

/// A soak that does not end during the test.
const ENDLESS: &str = "1h";
const SHORT: &str = "1s";

/// All contents that a node has stored, in their order, by ConfigMap.
type Contents = BTreeMap<String, Vec<String>>;

/// Records the changes of a node, through a watch of its own API.
struct Recorder(Arc<Mutex<Contents>>);

impl Recorder {
    /// Begins before the node holds an object.
    fn start(agent: &Agent) -> Self {
        let (contents, client) = (Arc::new(Mutex::new(Contents::new())), agent.client());
        let shared = Arc::clone(&contents);
        // Ends with the agent.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let mut record = |line: &str| {
                let change: Value = serde_json::from_str(line).unwrap();
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let (name, mode) =
                    (text(&change["object"]["metadata"]["name"]), text(&change["object"]["data"]["mode"]));
                shared.lock().unwrap().entry(name).or_default().push(mode);
                true
            };
            let watch = client.lines("/api/v1/namespaces/shop/configmaps?watch=true", &mut record);
            drop(runtime.block_on(watch));
        });
        Self(contents)
    }

    fn contents(&self) -> Contents {
        self.0.lock().unwrap().clone()
    }
}

/// The fleet, whose replicas reach the cluster through proxies. All nodes are at the leader.
struct Phases {
    fleet: Fleet,
    proxies: [FaultProxy; 2],
    /// The leader.
    leader: usize,
    /// Of the canary, and of the other nodes.
    recorders: Vec<Recorder>,
}

impl Phases {
    async fn start() -> Self {
        let setup = Setup::start().await;
        let proxies =
            [FaultProxy::start(&setup.kubernetes).await, FaultProxy::start(&setup.kubernetes).await];
        let kubeconfigs = [0, 1].map(|index: usize| {
            let server = format!("http://{}", proxies[index].address);
            setup.kubernetes.admin_by(&format!("replica-{index}"), &server)
        });
        let fleet = Fleet::over(setup, [&kubeconfigs[0], &kubeconfigs[1]]).await;
        let recorders = fleet.agents.iter().map(Recorder::start).collect();
        let phases = Self { fleet, proxies, leader: 0, recorders };
        phases.move_nodes();
        phases
    }

    /// Moves all nodes to the leader.
    fn move_nodes(&self) {
        for line in &self.fleet.lines {
            line.set_upstream(self.fleet.replicas[self.leader].mqtt);
            line.cut();
        }
    }

    /// Catches a write of the leader's successor to the roll-out, by the roll-out that it writes.
    fn catch_next(&self, loss: Loss, is_it: impl Fn(&Value) -> bool + Send + 'static) {
        self.catch(1 - self.leader, loss, is_it);
    }

    /// Catches a write of a replica to the roll-out, by the roll-out that it writes.
    fn catch(&self, replica: usize, loss: Loss, is_it: impl Fn(&Value) -> bool + Send + 'static) {
        let status = format!("PUT /apis/edgesync.io/v1alpha1/clusterplacements/{RULE}/status");
        self.proxies[replica].catch(move |line, body| {
            let written = line.starts_with(&status).then(|| serde_json::from_slice::<Value>(body).ok());
            written.flatten().filter(|written| is_it(&written["status"]["rollout"])).map(|_| loss)
        });
    }

    /// Waits until a request of the leader was caught.
    async fn caught(&self, what: &str) {
        eventually(what, PATIENCE, async || self.proxies[self.leader].has_caught().then_some(())).await;
    }

    /// Kills the leader, and waits until the other replica leads and has the nodes.
    async fn kill_leader(&mut self) {
        let Self { fleet, proxies, leader, .. } = self;
        fleet.replicas[*leader].process.kill();
        // The process has ended: its term is not waited for.
        let lease = "/apis/coordination.k8s.io/v1/namespaces/edgesync/leases/edgesync-cloud";
        fleet.setup.kubernetes.client.delete::<Value>(lease, None).await.unwrap();
        let former = std::mem::replace(leader, 1 - *leader);
        proxies[former].release();
        self.move_nodes();
        self.fleet.lines.iter().for_each(|line| line.set(Mode::Pass));
        eventually("the other replica leads", PATIENCE, async || self.fleet.leader().await).await;
        // It could have the Lease before.
        self.fleet.replicas[former].process.start();
    }

    /// Returns the newest revision in the stored status: its number, and its open waves unless it
    /// is the stable one.
    async fn newest(&self) -> (u64, Option<u64>) {
        let revisions = self.fleet.rule().await["status"]["rollout"]["revisions"].take();
        let revisions = revisions.as_array().unwrap();
        let newest = revisions.last().unwrap();
        (newest["number"].as_u64().unwrap(), newest["open"].as_u64().filter(|_| revisions.len() > 1))
    }

    /// Returns the roll-out as the leader shows it.
    async fn shown(&self) -> Option<RolloutStatus> {
        ask(&self.fleet.replicas[self.leader].client(), Route::RolloutStatus(RULE)).await.ok()
    }

    /// Checks that the nodes have stored exactly these contents of `web`, one after the other, and
    /// that the nodes of the second wave have received nothing else.
    async fn stored(&self, canary: &[&str], others: &[&str]) {
        for (agent, recorder) in self.fleet.agents.iter().zip(&self.recorders) {
            let expected = if agent.node == CANARY { canary } else { others };
            let contents = eventually("all changes are recorded", PATIENCE, async || {
                let (received, applied) = arrived(agent).await;
                let contents = recorder.contents();
                let recorded: usize = contents.values().map(Vec::len).sum();
                // A leader that is killed may have sent to the canary what the next one repeats.
                assert!(received == applied || agent.node == CANARY, "{}: {received}", agent.node);
                (recorded as u64 == applied).then_some(contents)
            })
            .await;
            assert_eq!(contents["web"], expected, "{}", agent.node);
        }
    }

    async fn hold(&self, nodes: std::ops::Range<usize>, name: &str, mode: &str) {
        self.fleet.hold(&self.fleet.agents[nodes], name, mode).await;
    }
}

/// Returns the number of the newest revision of a roll-out, and its open waves.
fn newest(rollout: &Value) -> Option<(u64, u64)> {
    let newest = rollout["revisions"].as_array()?.last()?;
    Some((newest["number"].as_u64()?, newest["open"].as_u64()?))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn leader_may_be_killed_in_each_phase() {
    let mut it = Phases::start().await;
    it.fleet.revisions(&[(1, None)]).await;
    it.hold(0..3, "web", "one").await;
    it.stored(&["one"], &["one"]).await;

    // While bodies are saved: one of the two Secrets of the revision exists.
    let mut saved = 0;
    it.proxies[it.leader].catch(move |line, body| {
        let is_it = line.starts_with("POST /api/v1/namespaces/edgesync/secrets")
            && String::from_utf8_lossy(body).contains("edgesync.io/revision-of");
        saved += usize::from(is_it);
        (is_it && saved > 1).then_some(Loss::OfRequest)
    });
    it.fleet.setup.put("web", "two").await;
    it.caught("the first Secret is saved").await;
    assert_eq!(it.newest().await, (1, None));
    it.stored(&["one"], &["one"]).await;
    // The next leader opens the first wave, and is killed before it knows that.
    it.catch_next(Loss::OfResponse, |rollout| newest(rollout) == Some((2, 1)));
    it.kill_leader().await;
    it.caught("the first wave is open").await;
    assert_eq!(it.newest().await, (2, Some(1)));
    it.kill_leader().await;
    it.hold(0..1, "web", "two").await;

    // During soak.
    let is_good = |rollout: &Value| !rollout["revisions"][1]["goodSince"].is_null();
    it.fleet.until("the canary is good", is_good).await;
    it.stored(&["one", "two"], &["one"]).await;
    it.kill_leader().await;
    it.fleet.revisions(&[(1, None), (2, Some(1))]).await;

    // While paused: the wave is good for longer than its soak, and the next one stays closed.
    it.fleet.command(it.leader, "pause").await;
    it.kill_leader().await;
    it.fleet.setup.apply(&rule(SHORT));
    eventually("the next leader knows that the soak has ended", PATIENCE, async || {
        let shown = it.shown().await?;
        let since: Timestamp = shown.revisions.get(1)?.good_since.as_ref()?.parse().ok()?;
        let is_over = Timestamp::now().duration_since(since) > SignedDuration::from_secs(3);
        (is_over && shown.waves[0].held_only == 1).then_some(())
    })
    .await;
    assert_eq!(it.newest().await, (2, Some(1)));
    it.stored(&["one", "two"], &["one"]).await;

    // Between two waves: the write that opens the second one is lost.
    it.catch(it.leader, Loss::OfRequest, |rollout| newest(rollout) == Some((2, 2)));
    it.fleet.command(1 - it.leader, "resume").await;
    it.caught("the leader opens the second wave").await;
    assert_eq!(it.newest().await, (2, Some(1)));
    it.stored(&["one", "two"], &["one"]).await;
    // The next leader opens it, and is killed before it has recorded the end.
    it.catch_next(Loss::OfRequest, |rollout| {
        rollout["revisions"].as_array().is_some_and(|all| all.len() == 1)
    });
    it.kill_leader().await;
    it.hold(1..3, "web", "two").await;
    it.caught("the leader completes the revision").await;
    assert_eq!(it.newest().await, (2, Some(2)));
    it.stored(&["one", "two"], &["one", "two"]).await;
    it.kill_leader().await;
    it.fleet.revisions(&[(2, None)]).await;

    // During undo: the canary has not received it.
    it.fleet.setup.apply(&rule(ENDLESS));
    it.fleet.setup.put("web", "three").await;
    it.hold(0..1, "web", "three").await;
    it.fleet.revisions(&[(2, None), (3, Some(1))]).await;
    it.fleet.lines[0].set(Mode::Stall);
    it.catch(it.leader, Loss::OfResponse, |rollout| newest(rollout).is_some_and(|(number, _)| number == 2));
    tokio::select! {
        () = it.fleet.command(it.leader, "undo") => panic!("the leader has answered"),
        () = it.caught("the undo is stored") => {}
    }
    assert_eq!(it.newest().await, (2, None));
    it.stored(&["one", "two", "three"], &["one", "two"]).await;
    it.kill_leader().await;
    it.hold(0..1, "web", "two").await;

    // The next change goes through all waves, without what was undone.
    it.fleet.setup.put("db", "two").await;
    it.hold(0..1, "db", "two").await;
    it.fleet.command(it.leader, "promote").await;
    it.hold(1..3, "db", "two").await;
    it.fleet.command(it.leader, "promote").await;
    it.fleet.revisions(&[(4, None)]).await;
    it.stored(&["one", "two", "three", "two"], &["one", "two"]).await;
    for recorder in &it.recorders {
        assert_eq!(recorder.contents()["db"], ["one", "two"]);
    }
    eventually("the Secrets of ended revisions are deleted", PATIENCE, async || {
        (it.fleet.stored() == (["4".to_owned()].into(), 2)).then_some(())
    })
    .await;
}
