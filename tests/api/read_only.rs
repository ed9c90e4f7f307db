//! The API over a storage that is read-only, fails midway or waits.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use edgesync_api::{Batch, ClientError, Cursor, Kind, Limits, Page, PageQuery, Snapshot, Storage, Stored};
use edgesync_object::status::Result;
use edgesync_object::{Object, Resource, Status, kinds};
use edgesync_testkit::serving::{Running, config_map, connect, parse, send, soon};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const JSON: &str = "Content-Type: application/json\r\n";

/// The version of the kinds at which a [`ReadOnly`] serves another kind.
const OTHER_KINDS: u64 = 2;

/// A read-only storage whose pages fail after `pages_that_work` and whose objects wait for a
/// permit.
struct ReadOnly {
    pages: Arc<AtomicUsize>,
    item: String,
    pages_that_work: usize,
    permits: Semaphore,
    kinds_version: AtomicU64,
    /// Number of calls of `kinds`.
    asked: AtomicUsize,
}

impl ReadOnly {
    fn new(item_bytes: usize, pages_that_work: usize) -> Arc<Self> {
        let item = json!({"apiVersion": "v1", "metadata": {"name": "a"}, "data": "x".repeat(item_bytes)})
            .to_string();
        let (pages, permits) = (Arc::default(), Semaphore::new(0));
        let (kinds_version, asked) = (AtomicU64::new(0), AtomicUsize::new(0));
        Arc::new(Self { pages, item, pages_that_work, permits, kinds_version, asked })
    }
}

impl Storage for ReadOnly {
    type Snapshot = Pages;

    fn kind(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Kind>> {
        let known = kinds::by_plural(group, version, plural)?;
        Some(Arc::new(Kind::without_schema(Arc::new(known.resource()))))
    }

    fn kinds(&self) -> Vec<Arc<Kind>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let other = self.kinds_version() == OTHER_KINDS;
        self.kind("", "v1", if other { "secrets" } else { "configmaps" }).into_iter().collect()
    }

    fn kinds_version(&self) -> u64 {
        self.kinds_version.load(Ordering::Relaxed)
    }

    fn checks(&self) -> Vec<(&'static str, Result<()>)> {
        vec![("store", Err(Status::unavailable("the database is being checked", 3)))]
    }

    fn version(&self, _: &Resource) -> u64 {
        7
    }

    async fn get(&self, _: &Resource, _: &str, _: &str) -> Result<Option<Stored>> {
        self.permits.acquire().await.map_err(Status::internal)?.forget();
        Ok(Some(Stored { json: self.item.clone(), ..Stored::default() }))
    }

    async fn snapshot(&self, _: &Arc<Resource>) -> Result<Pages> {
        let (read, item) = (Arc::clone(&self.pages), self.item.clone());
        Ok(Pages { read, item, work: self.pages_that_work })
    }

    async fn changes(&self, _: &Arc<Resource>, _: u64) -> Result<Batch> {
        std::future::pending().await
    }

    async fn create(&self, _: &Arc<Resource>, _: Object) -> Result<Stored> {
        Err(Status::internal("nothing is written here"))
    }

    async fn update(&self, _: &Arc<Resource>, _: Object, _: u64) -> Result<Stored> {
        Err(Status::internal("nothing is written here"))
    }

    async fn remove(&self, _: &Arc<Resource>, _: &Stored) -> Result<Stored> {
        Err(Status::internal("nothing is written here"))
    }
}

/// Endless pages; the first `work` of them succeed.
struct Pages {
    read: Arc<AtomicUsize>,
    item: String,
    work: usize,
}

impl Snapshot for Pages {
    fn version(&self) -> u64 {
        7
    }

    async fn page(&mut self, _: PageQuery) -> Result<Page> {
        if self.read.fetch_add(1, Ordering::SeqCst) >= self.work {
            return Err(Status::internal("the disk is gone"));
        }
        let item = Stored { json: self.item.clone(), ..Stored::default() };
        Ok(Page { items: vec![item], next: Some(Cursor("more".into())) })
    }

    async fn count(&mut self, _: Option<&str>) -> Result<u64> {
        Ok(1)
    }
}

#[tokio::test]
async fn read_only_storage_refuses_every_write() {
    let running = Running::start(ReadOnly::new(1, 1), Limits::edge()).await;
    for (method, path) in [
        ("POST", MAPS),
        ("PUT", "/api/v1/namespaces/default/configmaps/a"),
        ("DELETE", "/api/v1/namespaces/default/configmaps/a"),
    ] {
        let answer = send(&running.unix, method, path, JSON, &config_map("a", "1")).await;
        assert_eq!((answer.code, answer.header("allow")), (405, Some("GET, HEAD, OPTIONS")), "{method}");
    }
    let unknown =
        send(&running.unix, "POST", "/apis/example.com/v1/widgets", JSON, r#"{"kind":"Widget"}"#).await;
    assert_eq!(unknown.code, 404);
    let ready = send(&running.unix, "GET", "/readyz", "", "").await;
    assert_eq!(ready.code, 500);
    assert!(ready.body.contains("[-]store failed"), "{}", ready.body);
}

#[tokio::test]
async fn openapi_v3_is_rebuilt_only_when_the_kinds_change() {
    let storage = ReadOnly::new(1, 1);
    let running = Running::start(Arc::clone(&storage), Limits::edge()).await;
    let asked = || storage.asked.swap(0, Ordering::Relaxed);
    let index = async || send(&running.unix, "GET", "/openapi/v3", "", "").await;
    let first = index().await;
    assert!(first.body.contains("/openapi/v3/api/v1?hash="), "{first:?}");
    assert_eq!((index().await.body, asked()), (first.body, 1));
    let document = async |headers: &str| send(&running.unix, "GET", "/openapi/v3/api/v1", headers, "").await;
    let tag = document("").await.header("etag").unwrap().to_owned();
    assert_eq!(asked(), 1, "its parts are made from the kinds");
    assert_eq!((document(&format!("If-None-Match: {tag}\r\n")).await.code, asked()), (304, 0));
    storage.kinds_version.store(1, Ordering::Relaxed);
    assert_eq!((index().await.code, asked()), (200, 1));
}

#[tokio::test]
async fn openapi_v2_is_rebuilt_only_when_the_kinds_change() {
    let storage = ReadOnly::new(1, 1);
    let running = Running::start(Arc::clone(&storage), Limits::edge()).await;
    let asked = || storage.asked.swap(0, Ordering::Relaxed);
    let document = async |headers: &str| send(&running.unix, "GET", "/openapi/v2", headers, "").await;
    let first = document("").await;
    assert!(first.body.contains(r#""swagger":"2.0""#), "{first:?}");
    let known = format!("If-None-Match: {}\r\n", first.header("etag").unwrap());
    asked();
    let again = document(&known).await;
    assert_eq!((again.code, again.body.as_str(), asked()), (304, "", 0));
    assert_eq!(again.header("etag"), first.header("etag"));
    assert_eq!((document("").await.body, asked()), (first.body, 1), "its parts are made from the kinds");
    storage.kinds_version.store(1, Ordering::Relaxed);
    assert_eq!((document(&known).await.code, asked()), (304, 1), "the kinds are what they were");
    storage.kinds_version.store(OTHER_KINDS, Ordering::Relaxed);
    let other = document(&known).await;
    assert!(other.body.contains("secrets") && other.code == 200, "{other:?}");
    let protobuf = "Accept: application/com.github.proto-openapi.spec.v2@v1.0+protobuf\r\n";
    let protobuf = document(&format!("{protobuf}If-None-Match: {}\r\n", other.header("etag").unwrap())).await;
    assert_eq!((protobuf.code, protobuf.header("etag")), (200, None), "it is another document");
}

#[tokio::test]
async fn list_that_fails_midway_is_never_seen_as_complete() {
    let running = Running::start(ReadOnly::new(10, 2), Limits::edge()).await;
    let error = running.client().get::<Value>("/api/v1/pods").await.unwrap_err();
    assert!(matches!(error, ClientError::Exchange { .. }), "{error}");
    let first = send(&running.unix, "GET", "/api/v1/pods", "", "").await;
    assert_eq!(
        (first.code, first.reason().as_str()),
        (500, "InternalError"),
        "the first page fails as a status"
    );
}

#[tokio::test]
async fn client_that_does_not_read_loses_its_connection() {
    let limits = Limits { connections: 1, write_timeout: Duration::from_millis(100), ..Limits::edge() };
    let storage = ReadOnly::new(1 << 20, usize::MAX);
    let running = Running::start(Arc::clone(&storage), limits).await;
    let mut stalled = connect(&running.unix).await;
    stalled.write_all(b"GET /api/v1/pods HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut start = [0; 1];
    soon("the start of an endless list", stalled.read_exact(&mut start)).await.unwrap();
    assert_eq!(send(&running.unix, "GET", "/healthz", "", "").await.code, 200);
    assert!(storage.pages.load(Ordering::SeqCst) < 64, "pages are not read ahead of the client");
}

#[tokio::test]
async fn shutdown_finishes_requests_and_removes_the_socket() {
    let storage = ReadOnly::new(1, 1);
    let running = Running::start(Arc::clone(&storage), Limits::edge()).await;
    let socket = running.socket();
    let mut waiting = connect(&running.unix).await;
    waiting.write_all(b"GET /api/v1/nodes/a HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut idle = connect(&running.unix).await;
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut byte = [0; 1];
    soon("the idle connection", idle.read_exact(&mut byte)).await.unwrap();
    let ended = tokio::spawn(running.stopped());
    let mut rest = Vec::new();
    soon("the end of the idle connection", idle.read_to_end(&mut rest)).await.unwrap();
    assert!(!ended.is_finished() && !socket.exists());
    storage.permits.add_permits(1);
    let mut answer = Vec::new();
    soon("the answer", waiting.read_to_end(&mut answer)).await.unwrap();
    assert_eq!(parse(&answer).code, 200);
    soon("the server", ended).await.unwrap();
}
