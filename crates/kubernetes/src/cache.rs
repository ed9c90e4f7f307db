//! Disposable on-disk copy of the cluster's objects, so that not all bodies need to be in memory.
//!
//! The file is not durable: it starts empty at each open, is never synced to disk, and may be
//! deleted at any time. It is readable by its owner only, because it contains Secrets.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension as _, Row};

use edgesync_cloud_store::summary;
use edgesync_object::{OmittedFields, Resource, ResourceVersion, Scope};
use edgesync_placement::Summary;
use edgesync_protocol::body::Body;
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::Loaded;
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
/// Maximum number of bytes of earlier bodies, the bases of patches.
const EARLIER_BYTES: u64 = 64 << 20;
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
    earlier: Earlier,
    /// Held while the cache is open: another process gets [`StoreError::InUse`].
    _lock: File,
}

impl WriterHooks for State {
    fn rolled_back(&mut self, _conn: &Connection) {
        self.kinds.clear();
        self.earlier.bytes = None;
    }
}

/// Earlier bodies of objects, the oldest of which give way to newer ones.
#[derive(Debug)]
struct Earlier {
    limit: u64,
    /// Their bytes; unknown after a rollback.
    bytes: Option<u64>,
}

impl Earlier {
    /// Keeps the body that a newer version replaces.
    fn keep(&mut self, conn: &Connection, uid: &str, version: &str) -> Result<(), StoreError> {
        let kept = conn
            .prepare_cached(
                "INSERT INTO earlier (uid, version, body)
                 SELECT uid, version, body FROM objects WHERE uid = ?1 AND version <> ?2
                 RETURNING octet_length(body)",
            )?
            .query_row((uid, version), |row| row.get::<_, u64>(0))
            .optional()?;
        let Some(kept) = kept else { return Ok(()) };
        let bytes = match self.bytes {
            Some(bytes) => bytes + kept,
            None => conn
                .prepare_cached("SELECT coalesce(sum(octet_length(body)), 0) FROM earlier")?
                .query_row([], |row| row.get(0))?,
        };
        self.bytes = Some(self.trim(conn, bytes)?);
        Ok(())
    }

    /// Drops the bodies of a deleted object.
    fn remove(&mut self, conn: &Connection, uid: &str) -> Result<(), StoreError> {
        if conn.prepare_cached("DELETE FROM earlier WHERE uid = ?1")?.execute([uid])? > 0 {
            self.bytes = None;
        }
        Ok(())
    }

    /// Drops the oldest bodies beyond the limit. Returns the bytes of the others.
    fn trim(&self, conn: &Connection, mut bytes: u64) -> Result<u64, StoreError> {
        let mut oldest = conn.prepare_cached(
            "DELETE FROM earlier WHERE id = (SELECT min(id) FROM earlier) RETURNING octet_length(body)",
        )?;
        while bytes > self.limit {
            let Some(freed) = oldest.query_row([], |row| row.get::<_, u64>(0)).optional()? else { break };
            bytes = bytes.saturating_sub(freed);
        }
        Ok(bytes)
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
        let earlier = Earlier { limit: EARLIER_BYTES, bytes: Some(0) };
        let state = State { kinds: HashMap::new(), earlier, _lock: lock };
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
                changes.iter().try_for_each(|change| apply(conn, state, change))
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

    /// Returns earlier versions of objects, as [`Cache::bodies`] returned them. Skips unknown ones.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn bases(
        &self,
        wanted: Vec<(Uid, ResourceVersion)>,
        left_out: OmittedFields,
    ) -> Result<Vec<(Uid, ResourceVersion, String)>, StoreError> {
        self.readers.run(move |conn| bases(conn, wanted, left_out)).await
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

fn apply(conn: &Connection, state: &mut State, change: &CacheChange) -> Result<(), StoreError> {
    match change {
        CacheChange::Put(summary, body) => {
            let kind = kind_id(conn, &mut state.kinds, &summary.resource)?;
            state.earlier.keep(conn, &summary.uid, summary.version.as_str())?;
            conn.prepare_cached(
                "INSERT INTO objects (uid, kind_id, version, body) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (uid) DO UPDATE SET kind_id = ?2, version = ?3, body = ?4",
            )?
            .execute((&summary.uid, kind, summary.version.as_str(), body))?;
        }
        CacheChange::Remove(uid) => {
            conn.prepare_cached("DELETE FROM objects WHERE uid = ?1")?.execute([uid])?;
            state.earlier.remove(conn, uid)?;
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
        bodies.push(Loaded { uid: Arc::clone(uid), version: version(row, 0)?, body, patch: None });
    }
    Ok(bodies)
}

fn bases(
    conn: &Connection,
    wanted: Vec<(Uid, ResourceVersion)>,
    left_out: OmittedFields,
) -> Result<Vec<(Uid, ResourceVersion, String)>, StoreError> {
    let mut statement = conn.prepare_cached("SELECT body FROM earlier WHERE uid = ?1 AND version = ?2")?;
    let mut bases = Vec::with_capacity(wanted.len().min(MAX_BODIES));
    for (uid, version) in wanted.into_iter().take(MAX_BODIES) {
        let text = statement.query_row((&uid, version.as_str()), |row| row.get::<_, String>(0)).optional()?;
        bases.extend(text.map(|text| (uid, version, left_out.of(text))));
    }
    Ok(bases)
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

    async fn bases(cache: &Cache, wanted: &[(&str, u64)]) -> Vec<u64> {
        let wanted = wanted.iter().map(|(uid, version)| ((*uid).into(), (*version).into())).collect();
        let bases = cache.bases(wanted, OmittedFields::default()).await.unwrap();
        bases.iter().map(|(_, version, _)| version.as_str().parse().unwrap()).collect()
    }

    #[tokio::test]
    async fn earlier_versions_are_kept_until_the_limit_or_removal() {
        let directory = tempfile::tempdir().unwrap();
        let cache = opened(directory.path());
        for version in 1..=3 {
            let text = format!("x{version}");
            cache.apply(vec![put("cm", "a", version, &text), put("cm", "b", version, "y")]).await.unwrap();
        }
        // The same version again replaces nothing.
        cache.apply(vec![put("cm", "a", 3, "x3")]).await.unwrap();
        assert_eq!(bases(&cache, &[("a", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 1)]).await, [1, 2, 1]);
        let texts = cache.bases(vec![("a".into(), 1.into())], OmittedFields::default()).await.unwrap();
        assert!(texts[0].2.contains(r#""text":"x1""#), "{texts:?}");
        cache.apply(vec![CacheChange::Remove("b".into())]).await.unwrap();
        assert_eq!(bases(&cache, &[("a", 2), ("b", 1), ("b", 2)]).await, [2]);
    }

    #[test]
    fn old_versions_give_way_to_newer_ones() {
        let conn = Connection::open_in_memory().unwrap();
        CACHE.iter().for_each(|migration| conn.execute_batch(migration.sql).unwrap());
        let mut earlier = Earlier { limit: 1000, bytes: None };
        conn.execute("INSERT INTO kinds VALUES (1, '', 'v1', 'ConfigMap', 'configmaps', 1)", []).unwrap();
        let text = "x".repeat(300);
        conn.execute("INSERT INTO objects VALUES (1, 'a', 1, '0', ?1)", [&text]).unwrap();
        for version in 1..10 {
            earlier.keep(&conn, "a", &version.to_string()).unwrap();
            conn.execute("UPDATE objects SET version = ?1", [version.to_string()]).unwrap();
        }
        let versions: String =
            conn.query_row("SELECT group_concat(version, ' ') FROM earlier", [], |row| row.get(0)).unwrap();
        assert_eq!((versions.as_str(), earlier.bytes), ("6 7 8", Some(900)));
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
