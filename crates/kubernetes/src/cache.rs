//! Disposable on-disk copy of the cluster's objects, so that not all bodies need to be in memory.
//!
//! The file is not durable: it starts empty at each open, is never synced to disk, and may be
//! deleted at any time. It is readable by its owner only, because it contains Secrets.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, Row};

use edgesync_cloud_store::summary;
use edgesync_object::{OmittedFields, Resource, ResourceVersion, Scope};
use edgesync_placement::Summary;
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::Loaded;
use edgesync_protocol::message::Body;
use edgesync_store::StoreError;
use edgesync_store::durable::with_suffix;
use edgesync_store::engine::{self, EngineOptions, Kind};
use edgesync_store::mark;
use edgesync_store::migrate::CACHE;
use edgesync_store::reader::{Generation, ReaderLimits, Readers};
use edgesync_store::writer::{Writer, WriterHooks, WriterLimits};

/// Identifies a cache file.
const KIND: Kind = Kind { application_id: mark::CACHE, migrations: CACHE };
/// Maximum number of objects in one [`CachePart`].
const PART_ROWS: usize = 512;
/// Size in bytes of bodies from which a part takes no more objects.
const PART_BYTES: usize = 4 << 20;
/// Maximum number of bodies that one call reads.
pub const MAX_BODIES: usize = 10_000;

/// Options for opening a cache.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Options of the SQLite connections.
    pub engine: EngineOptions,
    /// Limits of the writer's queue.
    pub writer: WriterLimits,
    /// Limits of the readers.
    pub readers: ReaderLimits,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            engine: EngineOptions { cache_kib: 8 << 10, wal_bytes: 16 << 20, ..EngineOptions::default() },
            writer: WriterLimits { jobs: 64, bytes: 64 << 20, group_bytes: 4 << 20, wal_bytes: 16 << 20 },
            readers: ReaderLimits { threads: 2, queue: 256 },
        }
    }
}

/// A change of one object.
#[derive(Clone, Debug)]
pub enum CacheChange {
    /// The object's current state, with its JSON text.
    Put(Arc<Summary>, Arc<str>),
    /// The object was deleted.
    Remove(Uid),
}

impl CacheChange {
    fn bytes(&self) -> usize {
        match self {
            Self::Put(_, body) => body.len() + 256,
            Self::Remove(_) => 64,
        }
    }
}

/// One page of all objects in the cache.
#[derive(Clone, Debug)]
pub struct CachePart {
    /// Placement's view of the objects.
    pub summaries: Vec<Summary>,
    /// Start of the next part; `None` for the last one.
    pub next: Option<u64>,
}

/// A handle of a cache, cheap to clone. The threads end with [`Cache::close`] or the last handle.
#[derive(Clone, Debug)]
pub struct Cache {
    writer: Writer<State>,
    readers: Readers,
}

/// State of the writer beside the file.
struct State {
    /// Row ids of the kinds in the file.
    kinds: HashMap<Arc<Resource>, i64>,
    /// Held while the cache is open: another process gets [`StoreError::InUse`].
    _lock: File,
}

impl WriterHooks for State {
    fn rolled_back(&mut self, _conn: &Connection) {
        self.kinds.clear();
    }
}

impl Cache {
    /// Creates an empty cache in place of an existing one. Blocks: call it at startup, outside of
    /// async tasks.
    ///
    /// # Errors
    /// [`StoreError::InUse`] if another process has it open; [`StoreError::Foreign`] if the file is
    /// not a cache, which is left untouched; other errors of the file system or SQLite.
    pub fn open(path: &Path, options: &CacheOptions) -> Result<Self, StoreError> {
        let lock = engine::lock(path)?;
        clear(path, &options.engine)?;
        let conn = engine::open_writer(path, KIND, &options.engine)?;
        // A crash may lose data, because the next open deletes it anyway.
        conn.pragma_update(None, "synchronous", "off")?;
        let on_corrupt = Box::new(|error: &StoreError| tracing::error!(%error, "cache damaged"));
        let generation = Generation::default();
        let readers = Readers::start(path, &options.engine, options.readers, &generation, on_corrupt)?;
        let state = State { kinds: HashMap::new(), _lock: lock };
        let limits = WriterLimits { wal_bytes: options.engine.wal_bytes, ..options.writer };
        Ok(Self { writer: Writer::start("cache-write", conn, state, limits)?, readers })
    }

    /// Applies changes in order, all or none. Later reads observe them.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn apply(&self, changes: Vec<CacheChange>) -> Result<(), StoreError> {
        let bytes = changes.iter().map(CacheChange::bytes).sum();
        self.writer
            .run(bytes, move |conn, state: &mut State| {
                changes.iter().try_for_each(|change| apply(conn, &mut state.kinds, change))
            })
            .await
    }

    /// Returns the bodies of objects, at most [`MAX_BODIES`]. Skips unknown UIDs.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn bodies(&self, uids: Vec<Uid>, left_out: OmittedFields) -> Result<Vec<Loaded>, StoreError> {
        self.readers.run(move |conn| bodies(conn, &uids, left_out)).await
    }

    /// Returns one part of all objects: the first from 0, each later one from [`CachePart::next`].
    ///
    /// # Errors
    /// Those of the store.
    pub async fn part(&self, from: u64) -> Result<CachePart, StoreError> {
        self.readers.run(move |conn| part(conn, from)).await
    }

    /// Drains the queue and closes the file.
    pub async fn close(&self) {
        self.readers.close();
        self.writer.close().await;
    }
}

/// Deletes an existing cache, whatever its state.
fn clear(path: &Path, options: &EngineOptions) -> Result<(), StoreError> {
    if !path.exists() {
        return Ok(());
    }
    if let Err(error @ StoreError::Foreign { .. }) = engine::open_writer(path, KIND, options) {
        return Err(error);
    }
    for part in ["", "-wal", "-shm"] {
        match fs::remove_file(with_suffix(path, part)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

fn apply(
    conn: &Connection,
    kinds: &mut HashMap<Arc<Resource>, i64>,
    change: &CacheChange,
) -> Result<(), StoreError> {
    match change {
        CacheChange::Put(summary, body) => {
            let kind = kind_id(conn, kinds, &summary.resource)?;
            conn.prepare_cached(
                "INSERT INTO objects (uid, kind_id, version, body) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (uid) DO UPDATE SET kind_id = ?2, version = ?3, body = ?4",
            )?
            .execute((&summary.uid, kind, summary.version.as_str(), body))?;
        }
        CacheChange::Remove(uid) => {
            conn.prepare_cached("DELETE FROM objects WHERE uid = ?1")?.execute([uid])?;
        }
    }
    Ok(())
}

fn kind_id(
    conn: &Connection,
    kinds: &mut HashMap<Arc<Resource>, i64>,
    resource: &Arc<Resource>,
) -> Result<i64, StoreError> {
    if let Some(id) = kinds.get(resource) {
        return Ok(*id);
    }
    let Resource { group, version, kind, plural, scope } = &**resource;
    let id = conn.query_row(
        r#"INSERT INTO kinds ("group", version, kind, plural, namespaced) VALUES (?1, ?2, ?3, ?4, ?5)
           ON CONFLICT DO UPDATE SET kind = ?3 RETURNING id"#,
        (group, version, kind, plural, *scope == Scope::Namespaced),
        |row| row.get(0),
    )?;
    kinds.insert(Arc::clone(resource), id);
    Ok(id)
}

fn bodies(conn: &Connection, uids: &[Uid], left_out: OmittedFields) -> Result<Vec<Loaded>, StoreError> {
    let mut statement = conn.prepare_cached("SELECT version, body FROM objects WHERE uid = ?1")?;
    let mut bodies = Vec::with_capacity(uids.len().min(MAX_BODIES));
    for uid in uids.iter().take(MAX_BODIES) {
        let mut rows = statement.query([uid])?;
        let Some(row) = rows.next()? else { continue };
        let body = Body::new(left_out.of(row.get(1)?))
            .map_err(|error| StoreError::corrupt(format!("read object {uid}: {error}")))?;
        bodies.push(Loaded { uid: Arc::clone(uid), version: version(row, 0)?, body });
    }
    Ok(bodies)
}

fn version(row: &Row<'_>, column: usize) -> Result<ResourceVersion, StoreError> {
    Ok(ResourceVersion::new(row.get::<_, String>(column)?))
}

fn part(conn: &Connection, from: u64) -> Result<CachePart, StoreError> {
    let kinds = kinds(conn)?;
    let mut statement = conn.prepare_cached(
        "SELECT id, kind_id, version, body FROM objects WHERE id >= ?1 ORDER BY id LIMIT ?2",
    )?;
    // One extra row shows whether a next part exists.
    let mut rows = statement.query((from, PART_ROWS + 1))?;
    let (mut summaries, mut bytes) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        if summaries.len() == PART_ROWS || bytes >= PART_BYTES {
            return Ok(CachePart { summaries, next: Some(row.get(0)?) });
        }
        let kind: i64 = row.get(1)?;
        let resource = kinds.get(&kind).ok_or_else(|| StoreError::corrupt(format!("unknown kind {kind}")))?;
        let body = row.get_ref(3)?.as_str().map_err(|error| StoreError::corrupt(error.to_string()))?;
        bytes += body.len();
        summaries.push(summary(body, Arc::clone(resource), version(row, 2)?)?);
    }
    Ok(CachePart { summaries, next: None })
}

fn kinds(conn: &Connection) -> Result<HashMap<i64, Arc<Resource>>, StoreError> {
    let mut statement =
        conn.prepare_cached(r#"SELECT id, "group", version, kind, plural, namespaced FROM kinds"#)?;
    let rows = statement.query_map([], |row| {
        let scope = if row.get(5)? { Scope::Namespaced } else { Scope::Cluster };
        let (group, version, kind, plural) = (row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?);
        Ok((row.get(0)?, Arc::new(Resource { group, version, kind, plural, scope })))
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::{Object, kinds};
    use serde_json::json;

    fn put(word: &str, uid: &str, version: u64, text: &str) -> CacheChange {
        let resource = Arc::new(kinds::by_word(word).unwrap().resource());
        let object = json!({
            "apiVersion": resource.api_version(), "kind": resource.kind, "data": {"text": text},
            "metadata": {"name": uid, "namespace": "shop", "uid": uid, "labels": {"tier": "edge"}},
        });
        let body = object.to_string();
        let object: Object = serde_json::from_value(object).unwrap();
        let summary = Summary::of(&object, resource, version.into()).with_size(body.len());
        CacheChange::Put(Arc::new(summary), body.into())
    }

    fn summary_of(change: &CacheChange) -> &Summary {
        match change {
            CacheChange::Put(summary, _) => summary,
            CacheChange::Remove(_) => panic!("a removal has no summary"),
        }
    }

    async fn all(cache: &Cache) -> Vec<Summary> {
        let (mut all, mut next) = (Vec::new(), Some(0));
        while let Some(from) = next {
            let part = cache.part(from).await.unwrap();
            assert!(part.summaries.len() <= PART_ROWS);
            all.extend(part.summaries);
            next = part.next;
        }
        all
    }

    fn opened(directory: &Path) -> Cache {
        Cache::open(&directory.join("cache.db"), &CacheOptions::default()).unwrap()
    }

    #[tokio::test]
    async fn a_cache_has_the_newest_version_until_removal() {
        let directory = tempfile::tempdir().unwrap();
        let cache = opened(directory.path());
        let (old, new) = (put("cm", "a", 1, "old"), put("cm", "a", 2, "new"));
        let secret = put("secret", "b", 3, "x");
        cache.apply(vec![old, secret.clone()]).await.unwrap();
        cache.apply(vec![new.clone(), CacheChange::Remove("none".into())]).await.unwrap();
        assert_eq!(all(&cache).await, [summary_of(&new).clone(), summary_of(&secret).clone()]);
        let uids = || vec!["b".into(), "none".into(), "a".into()];
        let bodies = cache.bodies(uids(), OmittedFields::default()).await.unwrap();
        let found: Vec<_> = bodies.iter().map(|body| (&*body.uid, body.version.as_str())).collect();
        assert_eq!(found, [("b", "3"), ("a", "2")]);
        assert!(bodies[1].body.as_str().contains("new"));
        cache.apply(vec![CacheChange::Remove("a".into())]).await.unwrap();
        assert_eq!(cache.bodies(uids(), OmittedFields::default()).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn cache_parts_are_bounded_in_objects_and_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let cache = opened(directory.path());
        let many = (0..PART_ROWS + 1).map(|n| put("cm", &format!("u{n}"), 1, "x")).collect();
        cache.apply(many).await.unwrap();
        assert_eq!(all(&cache).await.len(), PART_ROWS + 1);
        let large = "x".repeat(PART_BYTES);
        cache.apply(vec![put("cm", "u0", 2, &large), put("cm", "u1", 2, &large)]).await.unwrap();
        assert_eq!(cache.part(0).await.unwrap().summaries.len(), 1);
        assert_eq!(all(&cache).await.len(), PART_ROWS + 1);
    }

    #[tokio::test]
    async fn a_cache_starts_empty_and_refuses_foreign_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cache.db");
        let cache = opened(directory.path());
        cache.apply(vec![put("cm", "a", 1, "x")]).await.unwrap();
        let in_use = Cache::open(&path, &CacheOptions::default()).unwrap_err();
        assert!(matches!(in_use, StoreError::InUse { .. }), "{in_use}");
        cache.close().await;
        drop(cache);
        let cache = opened(directory.path());
        assert!(all(&cache).await.is_empty());
        cache.close().await;
        drop(cache);
        fs::write(&path, b"SQLite format 3\0 and then nonsense").unwrap();
        let cache = opened(directory.path());
        assert!(all(&cache).await.is_empty());
        cache.close().await;
        drop(cache);
        fs::remove_file(&path).unwrap();
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
        let foreign = Cache::open(&path, &CacheOptions::default()).unwrap_err();
        assert!(matches!(foreign, StoreError::Foreign { .. }), "{foreign}");
        assert!(path.exists());
    }
}
