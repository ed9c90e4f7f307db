//! Serves the agent's status through the local API; the loop answers the queries.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use super::files::Files;
use super::listening::ListenState;
use super::metrics::{self, AgentNumbers};
use super::seal;
use crate::store::{EdgeStats, EdgeStore};
use edgesync_admin::Route;
use edgesync_admin::agent::{
    AgentStatus, CheckedRows, SyncStarted, Traffic, Verification, VerifiedCloud, VerifiedStore,
};
use edgesync_api::{Extension, ExtensionCall, MetricsWriter, Role};
use edgesync_object::status::Result;
use edgesync_object::{Resource, Status};
use edgesync_runtime::chain;

/// Time for which a request for metrics waits for the loop: less than a scrape's timeout.
const METRICS_TIMEOUT: Duration = Duration::from_secs(3);

/// A query to the loop. The requester may disconnect before the answer.
pub(super) enum Query {
    /// The status for a role, which includes this view of the store.
    Status(Box<StoreView>, Role, oneshot::Sender<Box<AgentStatus>>),
    /// Traffic counts of the link.
    Traffic(oneshot::Sender<Traffic>),
    /// Verifies by a new Hello that the cloud's records match what is held; answered once both
    /// sides agree.
    Verify(oneshot::Sender<VerifiedCloud>),
    /// Connects before the next planned check-in.
    Sync(oneshot::Sender<SyncStarted>),
    /// The metrics, except those of the store, which are read outside the loop.
    Numbers(oneshot::Sender<Box<AgentNumbers>>),
}

/// The store's part of the status. Read outside the loop, which never waits for a read.
#[derive(Debug, Default)]
pub(super) struct StoreView {
    /// Sizes and counters; `None` if the store cannot be read.
    pub(super) stats: Option<EdgeStats>,
    /// The kinds of held objects, with the count of each.
    pub(super) kinds: Vec<(Arc<Resource>, u64)>,
}

/// Serves `status`, `traffic`, `files`, `verify` and `seal/rotate` under `/edgesync/v1/`, and the
/// metrics of the agent.
pub(super) struct StatusExtension {
    query_sender: mpsc::Sender<Query>,
    files: Files,
    listening: watch::Receiver<ListenState>,
    store: EdgeStore,
}

impl StatusExtension {
    pub(super) fn new(
        query_sender: mpsc::Sender<Query>,
        files: Files,
        listening: watch::Receiver<ListenState>,
        store: EdgeStore,
    ) -> Self {
        Self { query_sender, files, listening, store }
    }

    /// Checks all rows and repairs what is wrong, then requests a comparison with the cloud.
    async fn verify(&self) -> Result<Verification> {
        let store = match self.store.check().await {
            Ok(report) => VerifiedStore::Checked(CheckedRows {
                rows: report.rows,
                removed: report.removed,
                local_removed: report.local_removed,
                outbox_removed: report.outbox_removed,
                renewed: report.renewed,
                problem: None,
            }),
            // The readable rows move to a new file; the next Hello announces that to the cloud.
            Err(error) => VerifiedStore::Damaged { problem: chain(&error) },
        };
        Ok(Verification { store, cloud: self.ask(Query::Verify).await? })
    }

    async fn status(&self, role: Role) -> Result<Box<AgentStatus>> {
        let view = self.store_view().await;
        let mut status = self.ask(|answer| Query::Status(view, role, answer)).await?;
        status.api = self.listening.borrow().show();
        status.files = self.files.view().show();
        status.store.seal = seal::show(&self.store).await;
        Ok(status)
    }

    async fn store_view(&self) -> Box<StoreView> {
        Box::new(StoreView {
            stats: self.store.stats().await.ok(),
            kinds: self.store.kinds().await.unwrap_or_default(),
        })
    }

    /// Queries the loop; fails if the loop ends.
    async fn ask<T>(&self, query: impl FnOnce(oneshot::Sender<T>) -> Query) -> Result<T> {
        let stopping = || Status::unavailable("the agent is stopping", 5);
        let (answer, answered) = oneshot::channel();
        self.query_sender.send(query(answer)).await.map_err(|_| stopping())?;
        answered.await.map_err(|_| stopping())
    }
}

impl Extension for StatusExtension {
    async fn call(&self, call: ExtensionCall) -> Result<Value> {
        match Route::parse(&call.method, &call.path) {
            Some(Route::Status) => answer(&self.status(call.caller.role).await?),
            Some(Route::RotateSeal) => answer(&seal::rotate(&self.store, call.caller.role).await?),
            Some(Route::Traffic) => answer(&self.ask(Query::Traffic).await?),
            Some(Route::Verify) => answer(&self.verify().await?),
            Some(Route::Sync) => answer(&self.ask(Query::Sync).await?),
            Some(Route::Files) => answer(&self.files.list(call.caller.role).await?),
            Some(Route::CheckFiles) => answer(&self.files.check(call.caller.role).await?),
            Some(Route::ApplyFiles(rule)) => answer(&self.files.apply(rule, call.caller.role).await?),
            _ => Err(Status::no_such_path()),
        }
    }

    async fn metrics(&self, out: &mut MetricsWriter<'_>) {
        // Without an answer only the families of the API and the process appear, which an alert can
        // detect.
        let answered = tokio::time::timeout(METRICS_TIMEOUT, self.ask(Query::Numbers)).await;
        let Ok(Ok(mut numbers)) = answered else { return };
        let stats = tokio::time::timeout(METRICS_TIMEOUT, self.store.stats()).await;
        numbers.store.stats = stats.ok().and_then(std::result::Result::ok);
        let health = self.store.health().borrow().clone();
        numbers.store.writing = health.writing;
        numbers.store.resets = health.reset.map_or(0, |reset| reset.number);
        numbers.files = self.files.view().numbers();
        metrics::write(&numbers, out);
    }
}

fn answer(answer: &impl Serialize) -> Result<Value> {
    edgesync_admin::write(answer).map_err(Status::internal)
}

/// Returns seconds, rounded to one decimal.
pub(super) fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::EdgeOptions;
    use edgesync_admin::agent::ListenStatus;
    use edgesync_admin::samples;
    use serde_json::json;

    /// Returns an extension over an empty store, and the loop's end of the queue.
    fn extension(directory: &tempfile::TempDir) -> (StatusExtension, mpsc::Receiver<Query>) {
        let store = EdgeStore::open(&directory.path().join("edge.db"), EdgeOptions::default()).unwrap();
        let (query_sender, queries) = mpsc::channel(4);
        let (_, listening) = watch::channel(ListenState::default());
        let files = Files::idle();
        (StatusExtension::new(query_sender, files, listening, store), queries)
    }

    fn get(path: &str) -> ExtensionCall {
        ExtensionCall { method: "GET".into(), path: path.into(), ..ExtensionCall::default() }
    }

    #[tokio::test]
    async fn the_loop_answers_and_the_store_is_read_outside_it() {
        let directory = tempfile::tempdir().unwrap();
        let (extension, mut queries) = extension(&directory);
        let the_loop = tokio::spawn(async move {
            while let Some(query) = queries.recv().await {
                match query {
                    Query::Status(view, role, answer) => {
                        assert!(view.stats.is_some());
                        assert_eq!(role, Role::View, "that of the caller");
                        drop(answer.send(Box::new(samples::status())));
                    }
                    Query::Traffic(answer) => drop(answer.send(samples::traffic())),
                    Query::Verify(answer) => drop(answer.send(samples::verification().cloud)),
                    Query::Sync(answer) => {
                        drop(answer.send(SyncStarted { was_connected: false, spent_until: None }));
                    }
                    Query::Numbers(answer) => {
                        let mut numbers = AgentNumbers::default();
                        numbers.objects.held = 7;
                        drop(answer.send(Box::new(numbers)));
                    }
                }
            }
        });
        let status = extension.call(get("status")).await.unwrap();
        let mut expected = AgentStatus { api: ListenStatus::Off, files: None, ..samples::status() };
        expected.store.seal = None;
        assert_eq!(status, json!(expected));
        assert_eq!(extension.call(get("traffic")).await.unwrap(), json!(samples::traffic()));
        let verify =
            ExtensionCall { method: "POST".into(), path: "verify".into(), ..ExtensionCall::default() };
        let verified = extension.call(verify).await.unwrap();
        let cloud = json!(samples::verification().cloud);
        assert_eq!((&verified["cloud"], &verified["store"]["rows"]), (&cloud, &json!(0)));
        assert_eq!(extension.call(get("nothing")).await.unwrap_err().code, 404);
        let mut text = String::new();
        extension.metrics(&mut MetricsWriter::new(&mut text)).await;
        assert!(text.contains("\nedgesync_agent_objects 7\n"), "{text}");
        assert!(text.contains("\nedgesync_agent_store_health{state=\"works\"} 1\n"), "{text}");
        assert!(text.contains("\nedgesync_agent_store_database_bytes "), "{text}");
        extension.store.close().await;
        drop(extension);
        the_loop.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn metrics_omit_the_agent_if_the_loop_does_not_answer() {
        let directory = tempfile::tempdir().unwrap();
        let (extension, queries) = extension(&directory);
        let mut text = String::new();
        extension.metrics(&mut MetricsWriter::new(&mut text)).await;
        assert_eq!(text, "");
        drop(queries);
        extension.metrics(&mut MetricsWriter::new(&mut text)).await;
        assert_eq!(text, "");
        assert_eq!(extension.call(get("traffic")).await.unwrap_err().code, 503);
        extension.store.close().await;
    }
}
