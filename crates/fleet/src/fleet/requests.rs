//! Requests of the loop to the source and to links. Each runs in its own task; its response arrives
//! here.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::assignments::RuleIndex;
use super::bodies::NextRead;
use super::ingest::Stored;
use super::nodes::NodeId;
use super::patches::Pair;
use crate::source::{Admission, Removal, Result, RevisionKey, Source};
use edgesync_object::NodeName;
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::{Loaded, Record};
use edgesync_protocol::patch::Patch;
use edgesync_rollout::{Set, Snapshot};

/// Capacity of the channel of responses.
const INBOX: usize = 4096;

/// A response, with the requested node or objects.
pub(super) enum Response {
    /// Records of a node, with its expected number of differences.
    RecordsRead(NodeName, usize, Result<Vec<(Uid, Record)>>),
    BodiesRead(NextRead, Result<Vec<Loaded>>),
    /// `None` if the job has failed.
    PatchesMade(Vec<Pair>, Option<Vec<Option<Patch>>>),
    Recorded(NodeName, u64, Result<Vec<(Uid, String)>>),
    LinkReady(NodeId),
    Incarnation(Result<Arc<str>>),
    Ingested(NodeName, u64, Option<Stored>),
    LeasesWritten(Result<u64>),
    NodesChanged(Result<()>),
    EventsExpired(Result<u64>),
    EventEmitted(Result<()>, EventCause),
    RuleStatusWritten(Result<()>),
    /// The stored statuses of configured rules.
    RolloutStatuses(Result<Vec<(String, String)>>),
    /// Whether the status of a roll-out was written.
    RolloutWritten(RuleIndex, Result<bool>),
    /// Whether the status of a rule without a roll-out was deleted.
    RolloutDeleted(Result<bool>),
    RevisionRead(RuleIndex, RevisionKey, Result<Option<Arc<Set>>>),
    SnapshotMade(RuleIndex, Result<Option<Snapshot>>),
    RevisionsSwept(Result<()>),
    Confirmed(NodeName, Result<()>),
    Removed(NodeName, Result<Removal>),
    Admitted(NodeName, Result<Admission>),
}

/// Why an Event was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventCause {
    /// A node has missed its planned check-in.
    MissedCheckIn,
    /// A roll-out has moved.
    Rollout,
}

/// Source, and channel of responses; see the module.
pub(super) struct Requests<S> {
    source: S,
    responses: mpsc::Sender<Response>,
    arrived: mpsc::Receiver<Response>,
}

impl<S: Source> Requests<S> {
    pub(super) fn new(source: S) -> Self {
        let (responses, arrived) = mpsc::channel(INBOX);
        Self { source, responses, arrived }
    }

    /// Returns the source, for calls that do not block.
    pub(super) fn source(&self) -> &S {
        &self.source
    }

    /// Starts a request to the source.
    pub(super) fn ask<F>(&self, request: impl FnOnce(S) -> F)
    where
        F: Future<Output = Response> + Send + 'static,
    {
        self.run(request(self.source.clone()));
    }

    /// Returns the state shared with other replicas; `None` if this process serves all nodes.
    pub(super) fn replication(&self) -> Option<&S::Replication> {
        self.source.replication()
    }

    /// Starts a request to the shared state, if there is any.
    pub(super) fn ask_replicas<F>(&self, request: impl FnOnce(S::Replication) -> F)
    where
        F: Future<Output = Response> + Send + 'static,
    {
        if let Some(replication) = self.source.replication() {
            self.run(request(replication.clone()));
        }
    }

    /// Starts a request to a link.
    pub(super) fn run(&self, request: impl Future<Output = Response> + Send + 'static) {
        let responses = self.responses.clone();
        tokio::spawn(async move {
            let response = request.await;
            // The loop may have ended.
            let _ = responses.send(response).await;
        });
    }

    /// Waits for the next response. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Response> {
        self.arrived.recv().await
    }

    /// Returns the next response if one has arrived.
    pub(super) fn try_next(&mut self) -> Option<Response> {
        self.arrived.try_recv().ok()
    }
}
