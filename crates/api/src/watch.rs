//! Watches: changes as lines, after a version or after the initial objects. A watch pulls its
//! changes, so a slow client costs one line and one connection, and never blocks a write; one that
//! falls behind the history gets 410.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::convert::Texts;
use super::kind::Kind;
use super::metrics::{ApiMetrics, Cut};
use super::read::STREAM_TIMEOUT;
use super::request::{Options, VersionMatch};
use super::select::Selection;
use super::storage::{Change, ChangeType, PAGE_ROWS, Snapshot, Storage};
use super::table::View;
use edgesync_object::status::{Cause, Reason, Result};
use edgesync_object::{Object, Resource, Status};

/// Interval of bookmarks while idle, if the client requested them.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// Interval at which a watch of a custom kind checks whether its definition changed.
const KIND_CHECK_EVERY: Duration = Duration::from_secs(1);
/// Default duration of a watch; randomised up to twice as long.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Size at which lines are sent, in bytes.
const CHUNK_BYTES: usize = 32 << 10;

pub(super) struct Watch<K> {
    pub(super) storage: Arc<K>,
    pub(super) kind: Arc<Kind>,
    pub(super) selection: Arc<Selection>,
    pub(super) start: Start,
    pub(super) bookmarks: bool,
    pub(super) timeout: Duration,
    pub(super) lines: Lines,
    pub(super) metrics: Arc<ApiMetrics>,
    /// Becomes true when watches must end.
    pub(super) stopping: tokio::sync::watch::Receiver<bool>,
}

/// The start of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// Changes after a version.
    After(u64),
    /// All objects, then changes.
    Everything {
        /// Whether a bookmark marks the end of the initial objects.
        bookmark: bool,
    },
    /// The client's version was never assigned by this server.
    Unknown(u64),
}

impl Start {
    /// Derives the start from the options of a watch. `current` is the newest version.
    ///
    /// # Errors
    /// 422 for contradictory options, 504 for initial events newer than the newest version.
    pub(super) fn read(options: &Options, current: u64) -> Result<Self> {
        let version = options.resource_version.filter(|version| *version > 0);
        let invalid = |cause| Err(Status::invalid("meta.k8s.io", "ListOptions", "", vec![cause]));
        match (options.initial_events, options.version_match) {
            (None, Some(_)) => {
                return invalid(Cause::forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                ));
            }
            (Some(_), None | Some(VersionMatch::Exact)) => {
                return invalid(Cause::forbidden(
                    "resourceVersionMatch",
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                ));
            }
            _ => {}
        }
        match (options.initial_events, version) {
            (Some(true), Some(version)) if version > current => {
                Err(Status::version_too_large(version, current))
            }
            (Some(true), _) => Ok(Self::Everything { bookmark: options.bookmarks }),
            (Some(false), None) => Ok(Self::After(current)),
            // The store was replaced or restored from an older copy.
            (_, Some(version)) if version > current => Ok(Self::Unknown(version)),
            (_, Some(version)) => Ok(Self::After(version)),
            (None, None) => Ok(Self::Everything { bookmark: false }),
        }
    }
}

/// Returns the duration of a watch: the client's, or a random one, so that watches do not restart
/// all at once.
pub(super) fn timeout(options: &Options) -> Duration {
    match options.timeout_seconds {
        Some(seconds) if seconds > 0 => Duration::from_secs(seconds.min(24 * 3600)),
        _ => DEFAULT_TIMEOUT + Duration::from_secs(edgesync_transport::random() % DEFAULT_TIMEOUT.as_secs()),
    }
}

type Sender = mpsc::Sender<Result<Bytes>>;

/// The cause of ending a watch early.
enum End {
    /// The client closed its connection.
    Disconnected,
    /// Sent to the client as an error event.
    Failed(Status),
}

impl From<Status> for End {
    fn from(status: Status) -> Self {
        Self::Failed(status)
    }
}

impl<K: Storage> Watch<K> {
    /// Sends until the timeout, a disconnect, or a failure, which is sent as an error event.
    pub(super) async fn run(mut self, sender: Sender) {
        let _open = self.metrics.watch_opened();
        let deadline = Instant::now() + self.timeout;
        let sent = tokio::time::timeout_at(deadline, self.send(&sender)).await;
        if let Ok(Err(End::Failed(status))) = sent {
            let expired = status.is(&Reason::Expired);
            self.metrics.watch_cut(if expired { Cut::Expired } else { Cut::Closed });
            let line = line("ERROR", &serde_json::to_string(&status).unwrap_or_default());
            let _ = tokio::time::timeout(STREAM_TIMEOUT, sender.send(Ok(Bytes::from(line)))).await;
        }
    }

    async fn send(&mut self, sender: &Sender) -> Result<(), End> {
        let mut after = match self.start {
            Start::After(version) => version,
            // A relist repairs the client. The error is sent within the watch, as for an expired
            // version: some clients would retry the same version for ever if the watch itself were
            // refused.
            Start::Unknown(version) => {
                let message =
                    format!("The provided resource version {version} was not issued by this server");
                return Err(Status::expired(message).into());
            }
            Start::Everything { bookmark } => {
                let sent = tokio::time::timeout(STREAM_TIMEOUT, self.send_everything(bookmark, sender)).await;
                sent.unwrap_or_else(|_| Err(Status::timeout("timed out sending the objects").into()))?
            }
        };
        let mut bookmark_at = Instant::now() + BOOKMARK_EVERY;
        let (mut kinds, mut check_tick) = (0, tokio::time::interval(KIND_CHECK_EVERY));
        let mut stopping = self.stopping.clone();
        loop {
            let batch = tokio::select! {
                biased;
                () = sender.closed() => return Err(End::Disconnected),
                _ = stopping.wait_for(|stopping| *stopping) => return Ok(()),
                // Objects are deleted before their definition; their deletions must be sent first.
                batch = self.storage.changes(&self.kind.stored_as, after) => Some(batch?),
                () = tokio::time::sleep_until(bookmark_at), if self.bookmarks => None,
                _ = check_tick.tick(), if self.kind.custom => {
                    if std::mem::replace(&mut kinds, self.storage.kinds_version()) != kinds && !self.is_served() {
                        return Ok(());
                    }
                    continue;
                }
            };
            let Some(batch) = batch else {
                send_line(self.bookmark(after, false), sender).await?;
                bookmark_at = Instant::now() + BOOKMARK_EVERY;
                continue;
            };
            let mut out = Vec::new();
            for change in &batch.changes {
                out.extend(self.change(change)?);
            }
            self.metrics.watch_events(out.len() as u64);
            send_all(out, sender).await?;
            after = batch.version;
        }
    }

    /// Returns whether the kind is unchanged since the watch began: after a schema change clients
    /// must relist.
    fn is_served(&self) -> bool {
        let Resource { group, version, plural, .. } = &*self.kind.resource;
        self.storage.kind(group, version, plural).is_some_and(|kind| kind == self.kind)
    }

    /// Sends all objects as added. Returns the version after which changes follow.
    async fn send_everything(&mut self, bookmark: bool, sender: &Sender) -> Result<u64, End> {
        let storage = Arc::clone(&self.storage);
        let mut snapshot = storage.snapshot(&self.kind.stored_as).await?;
        let version = snapshot.version();
        let mut after = None;
        loop {
            let page = snapshot.page(self.selection.query(after.take(), PAGE_ROWS)).await?;
            let mut out = Vec::new();
            for row in page.items {
                out.push(Bytes::from(self.lines.line("ADDED", row.json)?));
            }
            send_all(out, sender).await?;
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        if bookmark {
            let bookmark = self.bookmark(version, true);
            send_line(bookmark, sender).await?;
        }
        Ok(version)
    }

    /// Encodes a change for this watch; `None` if it is not visible.
    fn change(&mut self, change: &Change) -> Result<Option<Bytes>> {
        let is_selected = self.selection.matches(&change.object);
        let was_selected = match (&change.previous, change.kind) {
            _ if self.selection.is_everything() => is_selected && change.kind != ChangeType::Added,
            (_, ChangeType::Deleted) => is_selected,
            (Some(previous), _) => {
                self.selection.matches_text(&change.object.namespace, &change.object.name, previous)
            }
            (None, _) => false,
        };
        let event = match (change.kind, was_selected, is_selected) {
            (ChangeType::Deleted, _, true) => "DELETED",
            (_, false, true) => "ADDED",
            (_, true, true) => "MODIFIED",
            // The object left the selection: sent as it was before, with the version of the change.
            (_, true, false) => {
                let previous = change.previous.as_deref().unwrap_or(&change.object.json);
                let mut object: Object = serde_json::from_str(previous).map_err(Status::internal)?;
                object.set_metadata("resourceVersion", change.object.version.to_string());
                return Ok(Some(self.lines.line("DELETED", object.to_json())?.into()));
            }
            (_, false, false) => return Ok(None),
        };
        let own_event = match change.kind {
            ChangeType::Added => "ADDED",
            ChangeType::Modified => "MODIFIED",
            ChangeType::Deleted => "DELETED",
        };
        if event == own_event && self.lines.is_plain(&self.kind) {
            // Encoded once for all watches.
            let line = change.line.get_or_init(|| Bytes::from(line(event, &change.object.json)));
            return Ok(Some(line.clone()));
        }
        Ok(Some(self.lines.line(event, change.object.json.clone())?.into()))
    }

    fn bookmark(&mut self, version: u64, initial_end: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": version.to_string(), "creationTimestamp": null});
        if initial_end && let Some(metadata) = metadata.as_object_mut() {
            metadata.insert("annotations".to_owned(), json!({"k8s.io/initial-events-end": "true"}));
        }
        let resource = &self.kind.resource;
        let object =
            json!({"kind": resource.kind, "apiVersion": resource.api_version(), "metadata": metadata});
        let object = self.lines.shown(object);
        Bytes::from(line("BOOKMARK", &object.to_string()))
    }
}

async fn send_line(line: Bytes, sender: &Sender) -> Result<(), End> {
    sender.send(Ok(line)).await.map_err(|_| End::Disconnected)
}

/// Sends lines, merging small ones into chunks.
async fn send_all(lines: Vec<Bytes>, sender: &Sender) -> Result<(), End> {
    let mut chunk = Vec::new();
    let count = lines.len();
    for (number, line) in lines.into_iter().enumerate() {
        if chunk.is_empty() && (number + 1 == count || line.len() >= CHUNK_BYTES) {
            send_line(line, sender).await?;
            continue;
        }
        chunk.extend_from_slice(&line);
        if chunk.len() >= CHUNK_BYTES || number + 1 == count {
            send_line(Bytes::from(std::mem::take(&mut chunk)), sender).await?;
        }
    }
    Ok(())
}

/// Encoder of watch lines.
pub(super) struct Lines {
    texts: Texts,
    view: View,
    /// Whether anything was sent: only the first table has column definitions.
    started: bool,
}

impl Lines {
    pub(super) fn new(texts: Texts, view: View) -> Self {
        Self { texts, view, started: false }
    }

    /// Returns whether objects are sent as stored. Custom objects may have been stored under
    /// another schema.
    fn is_plain(&self, kind: &Kind) -> bool {
        matches!(self.view, View::Whole) && !kind.custom && kind.resource == kind.stored_as
    }

    fn line(&mut self, event: &str, json: String) -> Result<String> {
        let json = self.texts.served(json)?;
        if matches!(self.view, View::Whole) {
            return Ok(line(event, &json));
        }
        let object: Value = serde_json::from_str(&json).map_err(Status::internal)?;
        Ok(line(event, &self.shown(object).to_string()))
    }

    /// Converts an object to the view.
    fn shown(&mut self, object: Value) -> Value {
        let first = !std::mem::replace(&mut self.started, true);
        self.view.object(object, first, jiff::Timestamp::now())
    }
}

fn line(event: &str, json: &str) -> String {
    format!("{{\"type\":\"{event}\",\"object\":{}}}\n", json.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(options: &Options) -> Result<Start, u16> {
        Start::read(options, 100).map_err(|status| status.code)
    }

    #[test]
    fn watch_starts_by_its_options() {
        let at = |version| Options { resource_version: version, ..Options::default() };
        let initial = |options: Options, send| Options {
            initial_events: Some(send),
            version_match: Some(VersionMatch::NotOlderThan),
            bookmarks: true,
            ..options
        };
        assert_eq!(start(&at(None)), Ok(Start::Everything { bookmark: false }));
        assert_eq!(start(&at(Some(0))), Ok(Start::Everything { bookmark: false }));
        assert_eq!(start(&at(Some(7))), Ok(Start::After(7)));
        assert_eq!(start(&at(Some(101))), Ok(Start::Unknown(101)));
        assert_eq!(start(&initial(at(None), true)), Ok(Start::Everything { bookmark: true }));
        assert_eq!(start(&initial(at(Some(7)), true)), Ok(Start::Everything { bookmark: true }));
        assert_eq!(start(&initial(at(Some(101)), true)), Err(504));
        assert_eq!(start(&initial(at(None), false)), Ok(Start::After(100)));
        assert_eq!(start(&initial(at(Some(7)), false)), Ok(Start::After(7)));
    }

    #[test]
    fn contradictory_options_are_refused() {
        let with =
            |initial, version_match| Options { initial_events: initial, version_match, ..Options::default() };
        assert_eq!(start(&with(None, Some(VersionMatch::NotOlderThan))), Err(422));
        assert_eq!(start(&with(Some(true), None)), Err(422));
        assert_eq!(start(&with(Some(true), Some(VersionMatch::Exact))), Err(422));
    }

    #[test]
    fn watch_timeout_is_the_clients_within_a_day() {
        let of = |seconds| timeout(&Options { timeout_seconds: seconds, ..Options::default() });
        assert_eq!(of(Some(5)), Duration::from_secs(5));
        assert_eq!(of(Some(u64::MAX)), Duration::from_secs(24 * 3600));
        let default = of(None);
        assert!(default >= DEFAULT_TIMEOUT && default <= 2 * DEFAULT_TIMEOUT);
        assert!(of(Some(0)) >= DEFAULT_TIMEOUT);
    }
}
