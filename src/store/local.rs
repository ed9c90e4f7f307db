//! Local objects: Leases and Events created on this node. They have their own table and sequence of
//! versions and are not part of revision, count and digest.
//!
//! The writer writes them in its group commits. Damaged rows are dropped.

use std::collections::VecDeque;

use rusqlite::{Connection, OptionalExtension as _, Row};

use super::commit_listener::{LocalTransition, Recorder};
use super::journal;
use super::types::{LocalKind, LocalObject};
use edgesync_object::with_resource_version;
use edgesync_store::StoreError;
use edgesync_store::checksum::checksum64;
use edgesync_store::engine::integer;

/// Maximum bytes of a local object's JSON.
pub(crate) const MAX_LOCAL_BYTES: usize = 64 << 10;
/// Maximum number of Leases.
pub const MAX_LEASES: usize = 256;
/// Maximum number of Events; the oldest are dropped for new ones.
pub const MAX_EVENTS: usize = 1000;
/// Maximum bytes of Events; the oldest are dropped for new ones.
pub const MAX_EVENTS_BYTES: usize = 1 << 20;
/// Seconds for which an Event is kept after its last change.
pub const EVENT_SECONDS: i64 = 3600;

/// Key in table `meta` of the last version, for when no row has it.
const VERSION_KEY: &str = "local_version";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalWrite {
    Create(LocalObject),
    /// Creates the object or replaces its content, whatever its version.
    Put(LocalObject),
    /// Replaces the content if the object still has this version.
    Update(LocalObject, u64),
    /// Deletes the object if it still has this version. The body is ignored.
    Remove(LocalObject, u64),
}

impl LocalWrite {
    /// Returns the object of the write.
    #[must_use]
    pub fn object(&self) -> &LocalObject {
        match self {
            Self::Create(object) | Self::Put(object) | Self::Update(object, _) | Self::Remove(object, _) => {
                object
            }
        }
    }
}

/// Reason of a refused write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalRefusal {
    /// The name exists already.
    Exists,
    /// No object has this name.
    Missing,
    /// The object has another version.
    Modified,
    /// The object is larger than [`MAX_LOCAL_BYTES`].
    TooLarge,
    /// The node has [`MAX_LEASES`] already.
    TooMany,
}

/// Result of a write: the object in its new state, or a deleted one with the version of its
/// deletion.
pub type LocalOutcome = Result<LocalObject, LocalRefusal>;

/// The columns of [`LocalRow::read`], in its order.
pub(super) const COLUMNS: &str = "id, kind, namespace, name, version, changed, checksum, body";

/// A row, borrowed from the statement.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalRow<'a> {
    id: i64,
    kind: LocalKind,
    namespace: &'a str,
    name: &'a str,
    version: u64,
    changed: i64,
    body: &'a str,
}

impl<'a> LocalRow<'a> {
    /// Reads a row; `Err` with its id if the row is damaged.
    pub(super) fn read(row: &'a Row<'_>) -> Result<Result<Self, i64>, StoreError> {
        let id: i64 = row.get(0)?;
        let text = |index: usize| row.get_ref(index).map(|value| value.as_str().ok());
        let number = |index: usize| row.get_ref(index).map(|value| value.as_i64().ok());
        let (kind, version, changed, checksum) = (number(1)?, number(4)?, number(5)?, number(6)?);
        let (namespace, name, body) = (text(2)?, text(3)?, text(7)?);
        let read = || {
            let kind = LocalKind::of_code(kind?)?;
            let version = u64::try_from(version?).ok()?;
            let read = Self {
                id,
                kind,
                namespace: namespace?,
                name: name?,
                version,
                changed: changed?,
                body: body?,
            };
            (checksum == Some(read.checksum())).then_some(read)
        };
        Ok(read().ok_or(id))
    }

    fn checksum(&self) -> i64 {
        checksum64(&[
            &self.kind.code().to_le_bytes(),
            self.namespace.as_bytes(),
            self.name.as_bytes(),
            &self.version.to_le_bytes(),
            &self.changed.to_le_bytes(),
            self.body.as_bytes(),
        ])
    }

    pub(super) fn object(&self) -> LocalObject {
        LocalObject {
            kind: self.kind,
            namespace: self.namespace.to_owned(),
            name: self.name.to_owned(),
            version: self.version,
            body: self.body.to_owned(),
        }
    }

    /// Writes the row, over the older one of this id if there is one.
    fn put(&self, conn: &Connection, replaced: Option<i64>) -> Result<i64, StoreError> {
        let (version, checksum) = (integer(self.version), self.checksum());
        match replaced {
            Some(id) => {
                conn.prepare_cached(
                    "UPDATE local_objects SET version = ?2, changed = ?3, checksum = ?4, body = ?5 WHERE id = ?1",
                )?
                .execute((id, version, self.changed, checksum, self.body))?;
                Ok(id)
            }
            None => {
                conn.prepare_cached(
                    "INSERT INTO local_objects (kind, namespace, name, version, changed, checksum, body)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                )?
                .execute((
                    self.kind.code(),
                    self.namespace,
                    self.name,
                    version,
                    self.changed,
                    checksum,
                    self.body,
                ))?;
                Ok(conn.last_insert_rowid())
            }
        }
    }
}

/// Reads the object of a name, or the ids of damaged rows.
pub(super) fn by_name(
    conn: &Connection,
    kind: LocalKind,
    namespace: &str,
    name: &str,
) -> Result<(Option<LocalObject>, Vec<i64>), StoreError> {
    Ok(match find(conn, kind, namespace, name)? {
        None => (None, Vec::new()),
        Some(Ok((_, object))) => (Some(object), Vec::new()),
        Some(Err(id)) => (None, vec![id]),
    })
}

type Found = Result<(i64, LocalObject), i64>;

fn find(
    conn: &Connection,
    kind: LocalKind,
    namespace: &str,
    name: &str,
) -> Result<Option<Found>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM local_objects WHERE kind = ?1 AND namespace = ?2 AND name = ?3");
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query((kind.code(), namespace, name))?;
    let Some(row) = rows.next()? else { return Ok(None) };
    Ok(Some(LocalRow::read(row)?.map(|row| (row.id, row.object()))))
}

fn by_id(conn: &Connection, id: i64) -> Result<Option<LocalObject>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM local_objects WHERE id = ?1");
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query([id])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    Ok(LocalRow::read(row)?.ok().map(|row| row.object()))
}

/// Returns the ids of all damaged rows.
pub(super) fn damaged(conn: &Connection) -> Result<Vec<i64>, StoreError> {
    let mut damaged = Vec::new();
    let mut statement = conn.prepare(&format!("SELECT {COLUMNS} FROM local_objects"))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        damaged.extend(LocalRow::read(row)?.err());
    }
    Ok(damaged)
}

/// Returns the last version in a snapshot.
pub(super) fn version(conn: &Connection) -> Result<u64, StoreError> {
    let stored = journal::number(conn, VERSION_KEY)?.unwrap_or(0);
    let newest: Option<i64> = conn
        .prepare_cached("SELECT max(version) FROM local_objects")?
        .query_row([], |row| row.get(0))
        .optional()?
        .flatten();
    let newest = newest.and_then(|version| u64::try_from(version).ok()).unwrap_or(0);
    Ok(newest.max(stored))
}

/// An Event's share of the limits.
#[derive(Clone, Copy, Debug)]
struct EventRow {
    id: i64,
    bytes: usize,
    changed: i64,
}

/// In-memory totals of the table.
#[derive(Debug, Default)]
pub(super) struct Local {
    version: u64,
    leases: usize,
    /// Sorted by the time of the last change, oldest first.
    events: VecDeque<EventRow>,
    event_bytes: usize,
}

impl Local {
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Reads the table. Damaged rows do not count; the next check removes them.
    pub(super) fn load(conn: &Connection) -> Result<Self, StoreError> {
        let mut local = Self { version: journal::number(conn, VERSION_KEY)?.unwrap_or(0), ..Self::default() };
        let mut statement = conn.prepare(&format!("SELECT {COLUMNS} FROM local_objects ORDER BY version"))?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            if let Ok(row) = LocalRow::read(row)? {
                local.version = local.version.max(row.version);
                local.count(&row);
            }
        }
        Ok(local)
    }

    /// Starts a new sequence: no version of it was ever used before.
    pub(super) fn start(conn: &Connection, floor: u64) -> Result<(), StoreError> {
        let now = u64::try_from(jiff::Timestamp::now().as_microsecond()).unwrap_or(0);
        let mut local = Self::load(conn)?;
        local.version = (local.version.max(floor) + 1).max(now);
        local.write_version(conn)
    }

    /// Prepares an opened file: drops damaged rows, and starts a sequence if it has none. A damaged
    /// row may have had the last version, so the sequence restarts then.
    pub(super) fn prepare(conn: &Connection) -> Result<(), StoreError> {
        let damaged = damaged(conn)?;
        if damaged.is_empty() && journal::number(conn, VERSION_KEY)?.is_some() {
            return Ok(());
        }
        let tx = conn.unchecked_transaction()?;
        for id in damaged {
            tracing::warn!(row = id, "damaged Lease or Event dropped");
            tx.execute("DELETE FROM local_objects WHERE id = ?1", [id])?;
        }
        Self::start(&tx, 0)?;
        Ok(tx.commit()?)
    }

    /// Raises the version to at least this one.
    pub(super) fn at_least(mut self, version: u64) -> Self {
        self.version = self.version.max(version);
        self
    }

    fn count(&mut self, row: &LocalRow<'_>) {
        match row.kind {
            LocalKind::Lease => self.leases += 1,
            LocalKind::Event => {
                self.event_bytes += row.body.len();
                self.events.push_back(EventRow { id: row.id, bytes: row.body.len(), changed: row.changed });
            }
        }
    }

    fn uncount(&mut self, kind: LocalKind, id: i64) {
        match kind {
            LocalKind::Lease => self.leases = self.leases.saturating_sub(1),
            LocalKind::Event => {
                if let Some(at) = self.events.iter().position(|event| event.id == id)
                    && let Some(event) = self.events.remove(at)
                {
                    self.event_bytes = self.event_bytes.saturating_sub(event.bytes);
                }
            }
        }
    }

    /// Performs a write. Adds to `dropped` the Events dropped for it before they expired.
    pub(super) fn write(
        &mut self,
        conn: &Connection,
        recorder: &mut Recorder,
        write: &LocalWrite,
        dropped: &mut u64,
    ) -> Result<LocalOutcome, StoreError> {
        let object = write.object();
        let found = match find(conn, object.kind, &object.namespace, &object.name)? {
            Some(Err(id)) => {
                self.drop_damaged(conn, recorder, &[id])?;
                None
            }
            Some(Ok(found)) => Some(found),
            None => None,
        };
        match (write, found) {
            (LocalWrite::Create(_), Some(_)) => Ok(Err(LocalRefusal::Exists)),
            (LocalWrite::Put(object), found) => self.put(conn, recorder, object, found, dropped),
            (LocalWrite::Create(object), None) => self.put(conn, recorder, object, None, dropped),
            (_, None) => Ok(Err(LocalRefusal::Missing)),
            (LocalWrite::Update(_, expected) | LocalWrite::Remove(_, expected), Some((_, held)))
                if held.version != *expected =>
            {
                Ok(Err(LocalRefusal::Modified))
            }
            (LocalWrite::Update(object, _), found) => self.put(conn, recorder, object, found, dropped),
            (LocalWrite::Remove(..), Some((id, held))) => {
                let gone = self.remove(conn, recorder, id, held)?;
                self.write_version(conn)?;
                Ok(Ok(gone))
            }
        }
    }

    fn put(
        &mut self,
        conn: &Connection,
        recorder: &mut Recorder,
        object: &LocalObject,
        replaced: Option<(i64, LocalObject)>,
        dropped: &mut u64,
    ) -> Result<LocalOutcome, StoreError> {
        // Its actual version has at most as many digits.
        let bytes = with_resource_version(&object.body, u64::MAX).len();
        if bytes > MAX_LOCAL_BYTES {
            return Ok(Err(LocalRefusal::TooLarge));
        }
        if object.kind == LocalKind::Lease && replaced.is_none() && self.leases >= MAX_LEASES {
            return Ok(Err(LocalRefusal::TooMany));
        }
        let now = jiff::Timestamp::now().as_second();
        let (id, before) = replaced.unzip();
        if let Some(id) = id {
            self.uncount(object.kind, id);
        }
        if object.kind == LocalKind::Event {
            *dropped += self.evict(conn, recorder, Some(bytes), now)?;
        }
        self.version += 1;
        let body = with_resource_version(&object.body, self.version);
        let object = LocalObject { version: self.version, body, ..object.clone() };
        let mut row = LocalRow {
            id: 0,
            kind: object.kind,
            namespace: &object.namespace,
            name: &object.name,
            version: object.version,
            changed: now,
            body: &object.body,
        };
        row.id = row.put(conn, id)?;
        self.count(&row);
        if recorder.is_on() {
            let change = LocalTransition { version: object.version, before, after: Some(object.clone()) };
            recorder.local(change);
        }
        Ok(Ok(object))
    }

    /// Removes the object of a row; returns its last state, with the version of its deletion.
    fn remove(
        &mut self,
        conn: &Connection,
        recorder: &mut Recorder,
        id: i64,
        held: LocalObject,
    ) -> Result<LocalObject, StoreError> {
        conn.prepare_cached("DELETE FROM local_objects WHERE id = ?1")?.execute([id])?;
        self.uncount(held.kind, id);
        self.version += 1;
        let body = with_resource_version(&held.body, self.version);
        let gone = LocalObject { version: self.version, body, ..held.clone() };
        if recorder.is_on() {
            recorder.local(LocalTransition { version: self.version, before: Some(held), after: None });
        }
        Ok(gone)
    }

    /// Drops expired Events, and the oldest others until one of so many bytes fits. Returns how
    /// many were dropped before they expired.
    fn evict(
        &mut self,
        conn: &Connection,
        recorder: &mut Recorder,
        required_bytes: Option<usize>,
        now: i64,
    ) -> Result<u64, StoreError> {
        let mut early = 0;
        while let Some(oldest) = self.events.front().copied() {
            let expired = is_expired(&oldest, now);
            let full = required_bytes.is_some_and(|bytes| {
                self.events.len() >= MAX_EVENTS || self.event_bytes + bytes > MAX_EVENTS_BYTES
            });
            if !expired && !full {
                break;
            }
            match by_id(conn, oldest.id)? {
                Some(held) => {
                    self.remove(conn, recorder, oldest.id, held)?;
                }
                None => self.drop_damaged(conn, recorder, &[oldest.id])?,
            }
            early += u64::from(!expired);
        }
        Ok(early)
    }

    /// Returns whether there are expired Events.
    pub(super) fn has_expired(&self, now: i64) -> bool {
        self.events.front().is_some_and(|oldest| is_expired(oldest, now))
    }

    /// Drops expired Events, and writes the last version.
    pub(super) fn expire(
        &mut self,
        conn: &Connection,
        recorder: &mut Recorder,
        now: i64,
    ) -> Result<(), StoreError> {
        self.evict(conn, recorder, None, now)?;
        self.write_version(conn)
    }

    /// Drops the given rows that are really damaged. Watches must relist: the content of those rows
    /// is unknown.
    pub(super) fn drop_damaged(
        &mut self,
        conn: &Connection,
        recorder: &mut Recorder,
        ids: &[i64],
    ) -> Result<(), StoreError> {
        for id in ids {
            if by_id(conn, *id)?.is_none() {
                conn.prepare_cached("DELETE FROM local_objects WHERE id = ?1")?.execute([id])?;
                tracing::warn!(row = id, "damaged Lease or Event dropped");
            }
        }
        let version = self.version + 1;
        *self = Self::load(conn)?.at_least(version);
        recorder.forget();
        self.write_version(conn)
    }

    /// Writes the last version, for when no row has it.
    fn write_version(&self, conn: &Connection) -> Result<(), StoreError> {
        journal::set_number(conn, VERSION_KEY, self.version)
    }
}

fn is_expired(event: &EventRow, now: i64) -> bool {
    event.changed.saturating_add(EVENT_SECONDS) < now
}

/// Copies the readable rows into another file. Returns the last version found.
pub(super) fn salvage(source: &Connection, fresh: &Connection) -> Result<u64, StoreError> {
    let mut newest = journal::number(source, VERSION_KEY).ok().flatten().unwrap_or(0);
    let Ok(mut statement) = source.prepare(&format!("SELECT {COLUMNS} FROM local_objects")) else {
        return Ok(newest);
    };
    let Ok(mut rows) = statement.query([]) else { return Ok(newest) };
    while let Ok(Some(row)) = rows.next() {
        let Ok(Ok(row)) = LocalRow::read(row) else { continue };
        newest = newest.max(row.version);
        match row.put(fresh, None) {
            // Pages that a damaged tree references twice show their rows twice.
            Ok(_) | Err(StoreError::Internal(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(newest)
}
