//! Single objects and lists as responses. A list is read page by page from one snapshot while the client takes
//! it: its memory does not grow with its length, and it shows one moment.

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
use super::request::{Options, VersionMatch};
use super::response::{self, ResponseBody};
use super::room::{SHOWN, Work, hold};
use super::select::Selection;
use super::snapshots::{Held, Snapshots, Token};
use super::storage::{Cursor, Snapshot, Storage};
use super::table::View;
use edgesync_object::Status;
use edgesync_object::status::{Cause, Reason, Result};

/// Once this many bytes are gathered, a part of a list is written.
const CHUNK_BYTES: usize = 64 << 10;
/// How long reading the first part of a list may take if the client does not say.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a client may take for a list: as long, it keeps the log of the database from being reused.
pub(super) const STREAM_TIMEOUT: Duration = Duration::from_secs(120);

/// How objects are written for a client.
#[derive(Clone)]
pub(super) struct Show {
    /// The kind in the version of the path.
    pub(super) kind: Arc<Kind>,
    /// How its objects are turned into that version.
    pub(super) texts: Texts,
    /// The encoding.
    pub(super) format: Format,
    /// What is shown of them.
    pub(super) view: View,
}

impl Show {
    /// An object as a response.
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

/// Answers a get.
pub(super) async fn get<K: Storage>(
    storage: &K,
    work: &Work,
    show: &Show,
    (namespace, name): (&str, &str),
    options: &Options,
) -> Result<Response<ResponseBody>> {
    let kind = &show.kind;
    check_not_newer(options, storage.version(&kind.stored_as))?;
    let found = work.read(SHOWN, || storage.get(&kind.stored_as, namespace, name)).await?;
    let (found, share) = found.ok_or_else(|| Status::not_found(&kind.resource, name))?;
    Ok(hold(show.object(200, found.json)?, share))
}

fn check_not_newer(options: &Options, current: u64) -> Result<()> {
    match options.resource_version {
        Some(version) if version > current => Err(Status::version_too_large(version, current)),
        _ => Ok(()),
    }
}

/// Answers a list. Its first page is read before anything is answered, so that whatever is wrong
/// with the request is a proper status; the other pages are read as the client takes them.
pub(super) async fn list<K: Storage>(
    storage: &Arc<K>,
    snapshots: &Arc<Snapshots<K::Snapshot>>,
    show: Show,
    selection: Selection,
    options: &Options,
) -> Result<Response<ResponseBody>> {
    let timeout = options.timeout_seconds.filter(|seconds| *seconds > 0);
    let timeout = timeout.map_or(LIST_TIMEOUT, |seconds| Duration::from_secs(seconds).min(LIST_TIMEOUT));
    let begin = async || {
        let (show, selection) = (show.clone(), selection.clone());
        let mut lister = Lister::open(storage, snapshots, show, selection, options).await?;
        let page = lister.page().await?;
        Ok::<_, Status>((lister, page))
    };
    let first = async {
        match begin().await {
            // Given up before it was begun: nobody has seen anything of it.
            Err(status) if options.continue_token.is_empty() && status.is(&Reason::Expired) => begin().await,
            first => first,
        }
    };
    let Ok(first) = tokio::time::timeout(timeout, first).await else {
        return Err(Status::timeout("the list could not be read in time"));
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
    // One part waits while the next one is made: a list costs two pages, however long it is. The other place is for
    // the failure that cuts the connection, which must not get lost.
    let (sender, parts) = mpsc::channel(2);
    let failure = sender.clone().try_reserve_owned().map_err(Status::internal)?;
    tokio::spawn(async move {
        let streamed = stream(lister, &mut writer, page, &sender);
        let streamed = tokio::time::timeout(STREAM_TIMEOUT, streamed).await;
        let late = || Err(Status::timeout("the list was not taken in time"));
        if let Err(status) = streamed.unwrap_or_else(|_| late()) {
            failure.send(Err(status));
        }
    });
    Ok(response::stream(format.media_type(), ResponseBody::Parts(parts)))
}

/// Writes all pages. A client that has gone ends it early, which is no error.
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

/// How many items make up a part of a reasonable size: at least one.
fn chunk_len(items: &[String]) -> usize {
    let mut bytes = 0;
    let enough = |item: &String| {
        bytes += item.len();
        bytes >= CHUNK_BYTES
    };
    items.iter().position(enough).map_or(items.len(), |last| last + 1)
}

/// Reads a list page by page, up to the limit of the client.
struct Lister<S> {
    show: Show,
    selection: Arc<Selection>,
    snapshots: Arc<Snapshots<S>>,
    held: Held<S>,
    id: Option<u128>,
    /// What the client came with.
    token: Option<Token>,
    place: String,
    /// Where the next page starts; `None` before the first and after the last.
    next: Option<Cursor>,
    begun: bool,
    /// Items still wanted; `None` for all.
    left: Option<u64>,
    /// Items given so far, in earlier requests too.
    given: u64,
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
        let place = Token::place(&resource.plural, &resource.group, selection.namespace());
        let token = match options.continue_token.as_str() {
            "" => None,
            text => Some(Token::decode(text, &place)?),
        };
        check_not_newer(options, storage.version(&stored_as))?;
        let id = token.as_ref().and_then(|token| token.snapshot);
        let held = match (id, &token) {
            (Some(id), Some(token)) => snapshots.take(id).ok_or_else(|| token.expired())?,
            _ => Held::new(storage.snapshot(&stored_as).await?),
        };
        if options.version_match == Some(VersionMatch::Exact)
            && options.resource_version.is_some_and(|version| version != held.snapshot.version())
        {
            let (given, now) = (options.resource_version.unwrap_or_default(), held.snapshot.version());
            return Err(Status::expired(format!(
                "The resourceVersion {given} is not the newest one ({now}), and older states are not kept"
            )));
        }
        Ok(Self {
            next: token.as_ref().map(Token::cursor),
            given: token.as_ref().map_or(0, |token| token.given),
            token,
            show,
            selection: Arc::new(selection),
            snapshots: Arc::clone(snapshots),
            held,
            id,
            place,
            begun: false,
            left: options.limit,
        })
    }

    /// Reads the next page and moves on behind it.
    async fn page(&mut self) -> Result<Vec<String>> {
        let wanted = self.left.and_then(|left| usize::try_from(left).ok()).unwrap_or(usize::MAX);
        let query = self.selection.query(self.next.take(), wanted);
        let page = self.held.snapshot.page(query).await.map_err(|status| match &self.token {
            // Given up meanwhile.
            Some(token) if !self.begun && status.is(&Reason::Expired) => token.expired(),
            _ => status,
        })?;
        self.begun = true;
        let count = page.items.len() as u64;
        self.left = self.left.map(|left| left.saturating_sub(count));
        self.given = self.given.saturating_add(count);
        self.next = page.next;
        page.items.into_iter().map(|row| self.show.served(row.json)).collect()
    }

    /// Whether nothing follows, or the client wants no more.
    fn is_done(&self) -> bool {
        self.begun && (self.next.is_none() || self.left == Some(0))
    }

    /// The metadata of the list. If there is more, the snapshot waits for the client.
    async fn finish(mut self) -> Result<Map<String, Value>> {
        let mut metadata = Map::new();
        metadata.insert("resourceVersion".into(), json!(self.held.snapshot.version().to_string()));
        let Some(next) = self.next.take() else { return Ok(metadata) };
        if self.selection.is_everything() {
            let all = self.held.snapshot.count(self.selection.namespace()).await?;
            metadata.insert("remainingItemCount".into(), json!(all.saturating_sub(self.given)));
        }
        let id = self.id.unwrap_or_else(|| Uuid::new_v4().as_u128());
        let token = Token { snapshot: Some(id), cursor: next.0, place: self.place, given: self.given };
        metadata.insert("continue".into(), json!(token.encode()));
        self.snapshots.keep(id, self.held);
        Ok(metadata)
    }
}

/// Options of a list that do not go together.
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
    fn parts_of_a_list_have_a_reasonable_size() {
        let items = |sizes: &[usize]| -> Vec<String> { sizes.iter().map(|size| "x".repeat(*size)).collect() };
        assert_eq!(chunk_len(&items(&[1, 2, 3])), 3);
        assert_eq!(chunk_len(&items(&[1, CHUNK_BYTES, 3])), 2);
        assert_eq!(chunk_len(&items(&[CHUNK_BYTES * 9])), 1);
    }

    #[test]
    fn options_that_do_not_go_together_are_refused() {
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
