//! Gets and lists. A list is read page by page from one snapshot while the client reads it: its
//! memory does not grow with its length, and it is consistent.

use std::sync::Arc;
use std::time::Duration;

use hyper::Response;
use hyper::body::Bytes;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::convert::Texts;
use super::kind::Kind;
use super::listing::ListWriter;
use super::media::Format;
use super::memory_budget::{ObjectBudget, READ_FACTOR, hold_until_sent};
use super::request::{Options, VersionMatch};
use super::response::{self, ResponseBody};
use super::select::Selection;
use super::snapshots::{OpenSnapshot, Snapshots, Token};
use super::storage::{Cursor, Snapshot, Storage};
use super::table::View;
use edgesync_object::Status;
use edgesync_object::status::{Cause, Reason, Result};

/// Size at which a part of a list is sent, in bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// Default and longest time to read the first part of a list.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time to stream a list: meanwhile its snapshot keeps the database from reusing its
/// write-ahead log.
pub(super) const STREAM_TIMEOUT: Duration = Duration::from_secs(120);

/// The representation of objects for a client.
#[derive(Clone)]
pub(super) struct Show {
    /// The kind in the version of the path.
    pub(super) kind: Arc<Kind>,
    /// Conversion of objects to that version.
    pub(super) texts: Texts,
    pub(super) format: Format,
    pub(super) view: View,
}

impl Show {
    /// Builds a response with one object.
    pub(super) fn object(&self, code: u16, json: String) -> Result<Response<ResponseBody>> {
        let body = match &self.view {
            View::Whole => self.format.render(self.served(json)?)?,
            view => {
                let object = self.value(json)?;
                self.format.render_value(&view.object(object, true, jiff::Timestamp::now()))?
            }
        };
        Ok(response::text(code, self.format.media_type(), body))
    }

    fn served(&self, json: String) -> Result<String> {
        self.texts.served(json)
    }

    fn value(&self, json: String) -> Result<Value> {
        serde_json::from_str(&self.served(json)?).map_err(Status::internal)
    }
}

pub(super) async fn get<K: Storage>(
    storage: &K,
    object_budget: &ObjectBudget,
    show: &Show,
    (namespace, name): (&str, &str),
    options: &Options,
) -> Result<Response<ResponseBody>> {
    let kind = &show.kind;
    check_not_newer(options, storage.version(&kind.stored_as))?;
    let found = object_budget.read(READ_FACTOR, || storage.get(&kind.stored_as, namespace, name)).await?;
    let (found, reservation) = found.ok_or_else(|| Status::not_found(&kind.resource, name))?;
    Ok(hold_until_sent(show.object(200, found.json)?, reservation))
}

fn check_not_newer(options: &Options, current: u64) -> Result<()> {
    match options.resource_version {
        Some(version) if version > current => Err(Status::version_too_large(version, current)),
        _ => Ok(()),
    }
}

/// Answers a list. The first page is read before the response begins, so that errors become a
/// proper status; the other pages are read while the client reads.
pub(super) async fn list<K: Storage>(
    storage: &Arc<K>,
    snapshots: &Arc<Snapshots<K::Snapshot>>,
    show: Show,
    selection: Selection,
    options: &Options,
) -> Result<Response<ResponseBody>> {
    let timeout = options.timeout_seconds.filter(|seconds| *seconds > 0);
    let timeout = timeout.map_or(LIST_TIMEOUT, |seconds| Duration::from_secs(seconds).min(LIST_TIMEOUT));
    let start = async || {
        let (show, selection) = (show.clone(), selection.clone());
        let mut lister = Lister::open(storage, snapshots, show, selection, options).await?;
        let page = lister.page().await?;
        Ok::<_, Status>((lister, page))
    };
    let first = async {
        match start().await {
            // Expired before its first page: the client has seen nothing of it, so it restarts.
            Err(status) if options.continue_token.is_empty() && status.is(&Reason::Expired) => start().await,
            first => first,
        }
    };
    let Ok(first) = tokio::time::timeout(timeout, first).await else {
        return Err(Status::timeout("timed out reading the list"));
    };
    let (lister, page) = first?;
    let format = lister.show.format;
    let view = lister.show.view.clone();
    let mut writer = ListWriter::of(format, &lister.show.kind, view, jiff::Timestamp::now());
    if lister.is_done() {
        let mut body = writer.items(&page)?;
        body.push_str(&writer.end(lister.finish().await?)?);
        return Ok(response::text(200, format.media_type(), body));
    }
    // One part is buffered while the next one is encoded: a list takes the memory of two pages. The
    // second place is reserved for the failure that cuts the connection.
    let (sender, parts) = mpsc::channel(2);
    let failure = sender.clone().try_reserve_owned().map_err(Status::internal)?;
    tokio::spawn(async move {
        let streamed = stream(lister, &mut writer, page, &sender);
        let streamed = tokio::time::timeout(STREAM_TIMEOUT, streamed).await;
        let too_slow = || Err(Status::timeout("timed out sending the list"));
        if let Err(status) = streamed.unwrap_or_else(|_| too_slow()) {
            failure.send(Err(status));
        }
    });
    Ok(response::stream(format.media_type(), ResponseBody::Parts(parts)))
}

/// Sends all pages. A disconnected client ends the list without an error.
async fn stream<S: Snapshot>(
    mut lister: Lister<S>,
    writer: &mut ListWriter,
    first: Vec<String>,
    sender: &mpsc::Sender<Result<Bytes>>,
) -> Result<()> {
    let mut page = first;
    loop {
        let mut items = page.as_slice();
        while !items.is_empty() {
            let (chunk, rest) = items.split_at(chunk_len(items));
            if sender.send(Ok(Bytes::from(writer.items(chunk)?))).await.is_err() {
                return Ok(());
            }
            items = rest;
        }
        if lister.is_done() {
            let end = writer.end(lister.finish().await?)?;
            let _ = sender.send(Ok(Bytes::from(end))).await;
            return Ok(());
        }
        page = lister.page().await?;
    }
}

/// Returns how many items form a part: at least one.
fn chunk_len(items: &[String]) -> usize {
    let mut bytes = 0;
    let enough = |item: &String| {
        bytes += item.len();
        bytes >= CHUNK_BYTES
    };
    items.iter().position(enough).map_or(items.len(), |last| last + 1)
}

/// Reads a list page by page, up to the client's limit.
struct Lister<S> {
    show: Show,
    selection: Arc<Selection>,
    snapshots: Arc<Snapshots<S>>,
    open: OpenSnapshot<S>,
    id: Option<u128>,
    /// The client's `continue` token.
    token: Option<Token>,
    list_id: String,
    /// Start of the next page; `None` before the first and after the last.
    next: Option<Cursor>,
    started: bool,
    /// Remaining items of the limit; `None` for all.
    remaining: Option<u64>,
    /// Items returned so far, including earlier requests.
    returned: u64,
}

impl<S: Snapshot> Lister<S> {
    async fn open<K: Storage<Snapshot = S>>(
        storage: &Arc<K>,
        snapshots: &Arc<Snapshots<S>>,
        show: Show,
        selection: Selection,
        options: &Options,
    ) -> Result<Self> {
        let resource = Arc::clone(&show.kind.resource);
        let stored_as = Arc::clone(&show.kind.stored_as);
        check_options(options)?;
        let list_id = Token::list_id(&resource.plural, &resource.group, selection.namespace());
        let token = match options.continue_token.as_str() {
            "" => None,
            text => Some(Token::decode(text, &list_id)?),
        };
        check_not_newer(options, storage.version(&stored_as))?;
        let id = token.as_ref().and_then(|token| token.snapshot);
        let open = match (id, &token) {
            (Some(id), Some(token)) => snapshots.take(id).ok_or_else(|| token.expired())?,
            _ => OpenSnapshot::new(storage.snapshot(&stored_as).await?),
        };
        if options.version_match == Some(VersionMatch::Exact)
            && options.resource_version.is_some_and(|version| version != open.snapshot.version())
        {
            let (requested, now) = (options.resource_version.unwrap_or_default(), open.snapshot.version());
            return Err(Status::expired(format!(
                "The provided resource version {requested} is not the newest one ({now}), and older states are unavailable"
            )));
        }
        Ok(Self {
            next: token.as_ref().map(Token::cursor),
            returned: token.as_ref().map_or(0, |token| token.returned),
            token,
            show,
            selection: Arc::new(selection),
            snapshots: Arc::clone(snapshots),
            open,
            id,
            list_id,
            started: false,
            remaining: options.limit,
        })
    }

    /// Reads the next page and advances.
    async fn page(&mut self) -> Result<Vec<String>> {
        let limit =
            self.remaining.and_then(|remaining| usize::try_from(remaining).ok()).unwrap_or(usize::MAX);
        let query = self.selection.query(self.next.take(), limit);
        let page = self.open.snapshot.page(query).await.map_err(|status| match &self.token {
            // The snapshot expired meanwhile.
            Some(token) if !self.started && status.is(&Reason::Expired) => token.expired(),
            _ => status,
        })?;
        self.started = true;
        let count = page.items.len() as u64;
        self.remaining = self.remaining.map(|remaining| remaining.saturating_sub(count));
        self.returned = self.returned.saturating_add(count);
        self.next = page.next;
        page.items.into_iter().map(|row| self.show.served(row.json)).collect()
    }

    /// Returns whether the list has ended or the limit is reached.
    fn is_done(&self) -> bool {
        self.started && (self.next.is_none() || self.remaining == Some(0))
    }

    /// Returns the list's metadata. If items remain, holds the snapshot for the next page.
    async fn finish(mut self) -> Result<Map<String, Value>> {
        let mut metadata = Map::new();
        metadata.insert("resourceVersion".into(), json!(self.open.snapshot.version().to_string()));
        let Some(next) = self.next.take() else { return Ok(metadata) };
        if self.selection.is_everything() {
            let all = self.open.snapshot.count(self.selection.namespace()).await?;
            metadata.insert("remainingItemCount".into(), json!(all.saturating_sub(self.returned)));
        }
        let id = self.id.unwrap_or_else(|| Uuid::new_v4().as_u128());
        let token =
            Token { snapshot: Some(id), cursor: next.0, list_id: self.list_id, returned: self.returned };
        metadata.insert("continue".into(), json!(token.encode()));
        self.snapshots.keep(id, self.open);
        Ok(metadata)
    }
}

/// Refuses contradictory options of a list.
fn check_options(options: &Options) -> Result<()> {
    let invalid = |field: &str, message: &str| {
        let cause = Cause::forbidden(field, message);
        Err(Status::invalid("meta.k8s.io", "ListOptions", "", vec![cause]))
    };
    let version = options.resource_version;
    if options.initial_events.is_some() {
        return invalid("sendInitialEvents", "sendInitialEvents is forbidden for list");
    }
    if !options.continue_token.is_empty() {
        if options.version_match.is_some() {
            return invalid(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden when continue is provided",
            );
        }
        if version.is_some_and(|version| version > 0) {
            let message = "specifying resource version is not allowed when using continue";
            return Err(Status::bad_request(message));
        }
    }
    match (options.version_match, version) {
        (Some(_), None) => invalid(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
        ),
        (Some(VersionMatch::Exact), Some(0)) => invalid(
            "resourceVersionMatch",
            "resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"",
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_list_have_a_bounded_size() {
        let items = |sizes: &[usize]| -> Vec<String> { sizes.iter().map(|size| "x".repeat(*size)).collect() };
        assert_eq!(chunk_len(&items(&[1, 2, 3])), 3);
        assert_eq!(chunk_len(&items(&[1, CHUNK_BYTES, 3])), 2);
        assert_eq!(chunk_len(&items(&[CHUNK_BYTES * 9])), 1);
    }

    #[test]
    fn contradictory_options_are_refused() {
        let code = |options: Options| check_options(&options).map_err(|status| status.code);
        let with = |version, version_match| Options {
            resource_version: version,
            version_match,
            ..Options::default()
        };
        assert_eq!(code(with(None, None)), Ok(()));
        assert_eq!(code(with(Some(7), Some(VersionMatch::Exact))), Ok(()));
        assert_eq!(code(with(Some(0), Some(VersionMatch::NotOlderThan))), Ok(()));
        assert_eq!(code(with(Some(0), Some(VersionMatch::Exact))), Err(422));
        assert_eq!(code(with(None, Some(VersionMatch::NotOlderThan))), Err(422));
        let continued = |options: Options| Options { continue_token: "t".into(), ..options };
        assert_eq!(code(continued(with(None, None))), Ok(()));
        assert_eq!(code(continued(with(Some(7), None))), Err(400));
        assert_eq!(code(Options { initial_events: Some(true), ..Options::default() }), Err(422));
    }
}
