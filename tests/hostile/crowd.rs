//! 200 good nodes: simulated, each with the real protocol machine, its own certificate and its own
//! connection.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use edgesync_admin::Route;
use edgesync_admin::cloud::NodeList;
use edgesync_api::Client;
use edgesync_protocol::apply::Totals;
use edgesync_protocol::digest::Epoch;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use edgesync_testkit::line::{Authority, Endpoint};
use edgesync_testkit::node::{Memory, session};
use edgesync_testkit::site::{Cloud, PATIENCE, ask, eventually, path_of};

/// The number of good nodes.
pub(crate) const NODES: usize = 200;

/// The good nodes, which all hold one shared object.
pub(crate) struct Crowd {
    nodes: JoinSet<(String, Memory, anyhow::Result<()>)>,
    go: watch::Sender<bool>,
    client: Client,
    shared: Value,
}

/// Returns the endpoint for nodes of a cloud side with its CA in this directory.
pub(crate) fn endpoint(cloud: &Cloud, pki: &Path) -> Endpoint {
    Endpoint { address: cloud.mqtt, authority: Some(Arc::new(Authority::open(pki).unwrap())), sources: 1 }
}

fn name(n: usize) -> String {
    format!("good-{n:03}")
}

impl Crowd {
    /// Connects all nodes and waits until they are in sync.
    pub(crate) async fn gather(cloud: &Cloud, endpoint: &Endpoint, shared: Value) -> Self {
        cloud.apply([shared.clone()]).await;
        let in_sync = Arc::new(AtomicUsize::new(0));
        let (go, gone) = watch::channel(false);
        let mut nodes = JoinSet::new();
        for n in 0..NODES {
            let (endpoint, in_sync, gone) = (endpoint.clone(), Arc::clone(&in_sync), gone.clone());
            nodes.spawn(async move {
                let totals = Totals { epoch: Epoch(1 + n as u128), ..Totals::default() };
                let mut memory = Memory { totals, wanted: 1, ..Memory::default() };
                let result = session(&name(n), &endpoint, &mut memory, &in_sync, gone).await;
                (name(n), memory, result)
            });
        }
        eventually("the good nodes are in sync", PATIENCE, async || {
            (in_sync.load(Ordering::Relaxed) == NODES).then_some(())
        })
        .await;
        Self { nodes, go, client: cloud.client(), shared }
    }

    /// Changes the shared object; returns the time until the change is recorded for all nodes.
    pub(crate) async fn change(&mut self) -> Duration {
        let mut object: Value = self.client.get(&path_of(&self.shared)).await.unwrap();
        object["data"] = json!({ "changed": uuid::Uuid::new_v4().to_string() });
        let start = Instant::now();
        self.shared = self.client.put(&path_of(&object), &object).await.unwrap();
        let version = &self.shared["metadata"]["resourceVersion"];
        let namespace = self.shared["metadata"]["namespace"].as_str().unwrap();
        let syncs = format!("/apis/reliablesyncs.kubeedge.io/v1alpha1/namespaces/{namespace}/objectsyncs");
        eventually("a change has reached all good nodes", PATIENCE, async || {
            let list: Value = self.client.get(&syncs).await.unwrap();
            let holds = |item: &&Value| item["status"]["objectResourceVersion"] == *version;
            (list["items"].as_array().unwrap().iter().filter(holds).count() >= NODES).then_some(())
        })
        .await;
        start.elapsed()
    }

    /// Ends the nodes. Asserts that each connected once and stayed connected, and holds the last
    /// change.
    pub(crate) async fn part(mut self) {
        let nodes: NodeList = ask(&self.client, Route::Nodes).await.unwrap();
        let good = nodes.items.iter().filter(|node| node.name().starts_with("good-"));
        let hellos: Vec<u64> = good.map(|node| node.served().unwrap().counters.hellos).collect();
        assert_eq!(hellos, vec![1; NODES], "a good node had to say Hello again");
        self.go.send_replace(true);
        let metadata = |name: &str| self.shared["metadata"][name].as_str().unwrap();
        while let Some(ended) = self.nodes.join_next().await {
            let (node, memory, result) = ended.unwrap();
            result.unwrap_or_else(|error| panic!("{node} was cut off: {error}"));
            let (version, _) = &memory.rows[metadata("uid")];
            assert_eq!(version.as_str(), metadata("resourceVersion"), "{node}");
        }
    }
}
