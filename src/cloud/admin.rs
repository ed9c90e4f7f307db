//! What operators ask of the fleet, under `/edgesync/v1/`.

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::api::{Extension, ExtensionCall};
use crate::object::Status;
use crate::object::status::{Reason, Result};

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
}

/// What becomes of a request that changes the fleet.
pub(super) type Answer = oneshot::Sender<Result<bool>>;

/// Serves `nodes`, `nodes/NODE`, and `confirm-deletions`, `remove` and `admit` below that.
pub(super) struct Admin {
    requests: mpsc::Sender<AdminRequest>,
}

impl Admin {
    pub(super) fn new(requests: mpsc::Sender<AdminRequest>) -> Self {
        Self { requests }
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
}
