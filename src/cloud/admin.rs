//! What operators ask of the fleet, under `/edgesync/v1/`; and the metrics of the cloud side.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::metrics::{self, CloudNumbers};
use crate::api::{Extension, ExtensionCall, MetricsWriter};
use crate::broker::Downlink;
use crate::object::Status;
use crate::object::status::{Reason, Result};
use crate::store::cloud::CloudStore;

/// How long those who want metrics wait for the fleet: less than Prometheus waits for them.
const METRICS_PATIENCE: Duration = Duration::from_secs(5);

/// A request to the fleet.
#[derive(Debug)]
pub(super) enum AdminRequest {
    /// All nodes.
    Nodes(oneshot::Sender<Value>),
    /// One node, with what it refuses and what is held back.
    Node(String, oneshot::Sender<Option<Value>>),
    /// Removals that are held back may go out; answers with their number.
    ConfirmDeletions(String, oneshot::Sender<Option<usize>>),
    /// A node is removed from the fleet; answers with whether it was not before.
    Remove(String, Answer),
    /// A node that was removed may come back; answers with whether it had been removed.
    Admit(String, Answer),
    /// The numbers for the metrics, but for those of store and broker, which are read beside the fleet.
    Numbers(oneshot::Sender<Box<CloudNumbers>>),
}

/// What becomes of a request that changes the fleet.
pub(super) type Answer = oneshot::Sender<Result<bool>>;

/// What the metrics show beside the fleet.
pub(super) struct Sources {
    /// The store.
    pub(super) store: CloudStore,
    /// Its database.
    pub(super) database: PathBuf,
    /// The way to the nodes.
    pub(super) downlink: Downlink,
}

/// Serves `nodes`, `nodes/NODE`, and `confirm-deletions`, `remove` and `admit` below that, and the metrics of the
/// cloud side.
pub(super) struct Admin {
    requests: mpsc::Sender<AdminRequest>,
    sources: Sources,
}

impl Admin {
    pub(super) fn new(requests: mpsc::Sender<AdminRequest>, sources: Sources) -> Self {
        Self { requests, sources }
    }

    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> AdminRequest) -> Result<T> {
        let stopping = || Status::unavailable("the cloud side is stopping", 5);
        let (answer, answered) = oneshot::channel();
        self.requests.send(request(answer)).await.map_err(|_| stopping())?;
        answered.await.map_err(|_| stopping())
    }
}

pub(super) fn unknown(node: &str) -> Status {
    Status::new(Reason::NotFound, format!("node '{node}' has never said Hello"))
}

impl Extension for Admin {
    async fn call(&self, call: ExtensionCall) -> Result<Value> {
        let path: Vec<&str> = call.path.split('/').collect();
        match (call.method.as_str(), path.as_slice()) {
            ("GET", ["nodes"]) => self.ask(AdminRequest::Nodes).await,
            ("GET", ["nodes", node]) => {
                let found = self.ask(|answer| AdminRequest::Node((*node).into(), answer)).await?;
                found.ok_or_else(|| unknown(node))
            }
            ("POST", ["nodes", node, "confirm-deletions"]) => {
                let request = |answer| AdminRequest::ConfirmDeletions((*node).into(), answer);
                let count = self.ask(request).await?.ok_or_else(|| unknown(node))?;
                Ok(json!({ "node": node, "confirmed": count }))
            }
            ("POST", ["nodes", node, "remove"]) => {
                let removed = self.ask(|answer| AdminRequest::Remove((*node).into(), answer)).await??;
                Ok(json!({ "node": node, "removed": removed }))
            }
            ("POST", ["nodes", node, "admit"]) => {
                let admitted = self.ask(|answer| AdminRequest::Admit((*node).into(), answer)).await??;
                Ok(json!({ "node": node, "admitted": admitted }))
            }
            _ => Err(Status::no_such_path()),
        }
    }

    async fn metrics(&self, out: &mut MetricsWriter<'_>) {
        // Without an answer only the families of the API and the process are there: an alert can tell.
        let answered = tokio::time::timeout(METRICS_PATIENCE, self.ask(AdminRequest::Numbers)).await;
        let Ok(Ok(mut numbers)) = answered else { return };
        let Sources { store, database, downlink } = &self.sources;
        numbers.store = store.stats();
        numbers.database_bytes = size(database);
        let mut log = database.clone().into_os_string();
        log.push("-wal");
        numbers.log_bytes = size(Path::new(&log));
        match downlink {
            Downlink::Embedded(broker) => numbers.endpoint = Some(broker.traffic()),
            Downlink::External(external) => {
                numbers.link = Some((external.link().traffic(), external.link().endings()));
            }
        }
        metrics::write(&numbers, out);
    }
}

/// The size of a file; zero if there is none.
fn size(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}
