//! The history: the newest changes in partitions, each with bounds of its own, so that what the fleet writes in great
//! numbers (a roll-out to all nodes, a night without a network) does not push out what people write. Versions are of one
//! sequence; which of them can still be gone on from is for each partition to say.

use std::sync::Arc;

use rusqlite::{Connection, Row};

use super::change::ChangeKind;
use super::nodes::record_before;
use super::objects::resource_id;
use super::observer::KindName;
use super::read::{MAX_PAGE_ITEMS, version};
use super::state::Event;
use super::{CloudError, WatchChange};
use crate::object::objectsync;
use crate::store::StoreError;

/// The bytes of changes of what people write that are kept.
const OBJECTS_BYTES: u64 = 64 << 20;
/// The bytes of changes that are kept in each of the other partitions.
const FLEET_BYTES: u64 = 16 << 20;

/// The bounds of the history. A partition is cut when it exceeds one of them by an eighth.
#[derive(Clone, Copy, Debug)]
pub struct HistoryLimits {
    /// Of all kinds but those of the fleet.
    pub objects: HistoryBound,
    /// Of Nodes, of ObjectSyncs, of Leases and of Events, each.
    pub fleet: HistoryBound,
}

/// The bounds of a partition.
#[derive(Clone, Copy, Debug)]
pub struct HistoryBound {
    /// Changes.
    pub changes: u64,
    /// Bytes of objects in the changes.
    pub bytes: u64,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self {
            objects: HistoryBound { changes: 10_000, bytes: OBJECTS_BYTES },
            fleet: HistoryBound { changes: 10_000, bytes: FLEET_BYTES },
        }
    }
}

impl HistoryLimits {
    /// The bounds of a partition.
    fn of(&self, partition: Partition) -> HistoryBound {
        if partition == Partition::Objects { self.objects } else { self.fleet }
    }
}

/// A part of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Partition {
    /// What people write, and all that is in no other part.
    Objects,
    Nodes,
    Records,
    Leases,
    Events,
}

/// All of them, in the order of their numbers.
pub(super) const PARTITIONS: [Partition; 5] =
    [Partition::Objects, Partition::Nodes, Partition::Records, Partition::Leases, Partition::Events];

impl Partition {
    /// The part that changes of a kind are in.
    pub(super) fn of(kind: &KindName) -> Self {
        match (kind.group.as_str(), kind.kind.as_str()) {
            ("", "Node") => Self::Nodes,
            (objectsync::GROUP, objectsync::OBJECT_SYNC | objectsync::CLUSTER_OBJECT_SYNC) => Self::Records,
            ("coordination.k8s.io", "Lease") => Self::Leases,
            ("" | "events.k8s.io", "Event") => Self::Events,
            _ => Self::Objects,
        }
    }

    /// Its number, as stored.
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Objects => 0,
            Self::Nodes => 1,
            Self::Records => 2,
            Self::Leases => 3,
            Self::Events => 4,
        }
    }

    /// The table of its changes.
    pub(super) fn table(self) -> &'static str {
        match self {
            Self::Objects => "events",
            Self::Nodes => "node_changes",
            Self::Records => "record_changes",
            Self::Leases => "lease_changes",
            Self::Events => "event_changes",
        }
    }
}

/// How long a partition is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Length {
    /// Every change after this version is in it.
    start: u64,
    changes: u64,
    bytes: u64,
}

/// How long each partition is. Part of the transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lengths([Length; PARTITIONS.len()]);

impl Lengths {
    /// Counts what there is; a partition that is new begins at a version.
    pub(super) fn open(conn: &Connection, version: u64) -> rusqlite::Result<Self> {
        let mut lengths = Self::default();
        for partition in PARTITIONS {
            conn.execute(
                "INSERT INTO partitions (id, start) VALUES (?1, ?2) ON CONFLICT (id) DO NOTHING",
                (partition.number(), version),
            )?;
            let sql = format!(
                "SELECT (SELECT start FROM partitions WHERE id = ?1), count(*),
                   coalesce(sum(octet_length(object) + coalesce(octet_length(previous), 0)), 0) FROM {}",
                partition.table()
            );
            *lengths.of(partition) = conn.query_row(&sql, [partition.number()], |row| {
                Ok(Length { start: row.get(0)?, changes: row.get(1)?, bytes: row.get(2)? })
            })?;
        }
        Ok(lengths)
    }

    fn of(&mut self, partition: Partition) -> &mut Length {
        let [objects, nodes, records, leases, events] = &mut self.0;
        match partition {
            Partition::Objects => objects,
            Partition::Nodes => nodes,
            Partition::Records => records,
            Partition::Leases => leases,
            Partition::Events => events,
        }
    }

    /// Enters a change.
    pub(super) fn enter(
        &mut self,
        conn: &Connection,
        partition: Partition,
        event: &Event,
    ) -> rusqlite::Result<()> {
        let Event { kind, resource_id, object, before } = event;
        let (previous_version, previous) = before.columns();
        let sql = format!(
            "INSERT INTO {} (version, type, resource_id, namespace, name, object, previous_version, previous)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            partition.table()
        );
        conn.prepare_cached(&sql)?.execute((
            object.version,
            kind.code(),
            resource_id,
            &object.namespace,
            &object.name,
            &object.body,
            previous_version,
            previous,
        ))?;
        let length = self.of(partition);
        length.changes += 1;
        length.bytes += (object.body.len() + previous.map_or(0, str::len)) as u64;
        Ok(())
    }

    /// Cuts each partition to its bounds.
    pub(super) fn trim(&mut self, conn: &Connection, limits: &HistoryLimits) -> rusqlite::Result<()> {
        for partition in PARTITIONS {
            let (bound, length) = (limits.of(partition), self.of(partition));
            if length.exceeds(bound, true) {
                length.cut(conn, partition, bound)?;
            }
        }
        Ok(())
    }
}

impl Length {
    fn exceeds(&self, bound: HistoryBound, slack: bool) -> bool {
        let limit = |limit: u64| if slack { limit.saturating_add(limit / 8) } else { limit };
        self.changes > limit(bound.changes) || self.bytes > limit(bound.bytes)
    }

    fn cut(&mut self, conn: &Connection, partition: Partition, bound: HistoryBound) -> rusqlite::Result<()> {
        let table = partition.table();
        let mut oldest = conn.prepare_cached(&format!(
            "SELECT version, octet_length(object) + coalesce(octet_length(previous), 0)
             FROM {table} ORDER BY version"
        ))?;
        let mut rows = oldest.query([])?;
        while self.exceeds(bound, false) {
            let Some(row) = rows.next()? else { break };
            self.start = row.get(0)?;
            self.changes = self.changes.saturating_sub(1);
            self.bytes = self.bytes.saturating_sub(row.get(1)?);
        }
        drop(rows);
        conn.prepare_cached(&format!("DELETE FROM {table} WHERE version <= ?1"))?.execute([self.start])?;
        conn.prepare_cached("UPDATE partitions SET start = ?2 WHERE id = ?1")?
            .execute((partition.number(), self.start))?;
        Ok(())
    }
}

/// Which changes are to be read from the history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryQuery {
    /// Only changes after this version.
    pub after: u64,
    /// Only changes of this kind.
    pub of: KindName,
    /// At most so many changes, [`MAX_PAGE_ITEMS`] if more.
    pub limit: usize,
    /// Ends with the change that reaches so many bytes.
    pub bytes: usize,
}

/// Changes from the history, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryPage {
    /// The changes.
    pub changes: Vec<WatchChange>,
    /// Everything up to this version is in here or was before.
    pub version: u64,
}

/// Changes of a kind after a version.
///
/// # Errors
/// [`CloudError::Expired`] if its partition reaches back no further.
pub(super) fn history(conn: &Connection, query: &HistoryQuery) -> Result<HistoryPage, CloudError> {
    let HistoryQuery { after, ref of, limit, bytes: most } = *query;
    let partition = Partition::of(of);
    let oldest: u64 = conn
        .prepare_cached("SELECT start FROM partitions WHERE id = ?1")?
        .query_row([partition.number()], |row| row.get(0))?;
    if after < oldest {
        return Err(CloudError::Expired { after, oldest });
    }
    let mut page = HistoryPage { changes: Vec::new(), version: version(conn)?.max(after) };
    let Some(id) = resource_id(conn, &of.group, &of.kind)? else { return Ok(page) };
    let of = Arc::new(of.clone());
    let mut statement = conn.prepare_cached(&format!(
        "SELECT type, version, namespace, name, object, previous, previous_version FROM {}
         WHERE version > ?1 AND resource_id = ?2 ORDER BY version",
        partition.table()
    ))?;
    let mut rows = statement.query((after, id))?;
    let mut bytes = 0;
    while let Some(row) = rows.next()? {
        let change = past_change(row, &of)?;
        bytes += change.body.len() + change.previous.as_ref().map_or(0, String::len);
        page.changes.push(change);
        if page.changes.len() >= limit.min(MAX_PAGE_ITEMS) || bytes >= most {
            page.version = page.changes.last().map_or(after, |last| last.version);
            break;
        }
    }
    Ok(page)
}

fn past_change(row: &Row<'_>, of: &Arc<KindName>) -> Result<WatchChange, CloudError> {
    let code: u8 = row.get(0)?;
    let kind = ChangeKind::from_code(code)
        .ok_or_else(|| StoreError::corrupt(format!("an event has the unknown type {code}")))?;
    let body: String = row.get(4)?;
    let previous = match (row.get::<_, Option<String>>(5)?, row.get(6)?) {
        (Some(held), Some(version)) if !held.starts_with('{') => Some(record_before(&body, version, &held)?),
        (previous, _) => previous,
    };
    Ok(WatchChange {
        kind,
        of: Arc::clone(of),
        version: row.get(1)?,
        namespace: row.get(2)?,
        name: row.get(3)?,
        body,
        previous,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::migrate::CLOUD;

    #[test]
    fn changes_from_before_the_partitions_come_into_theirs() {
        let conn = Connection::open_in_memory().unwrap();
        let place = CLOUD.iter().position(|migration| migration.name.ends_with("partitions.sql")).unwrap();
        for migration in &CLOUD[..place] {
            conn.execute_batch(migration.sql).unwrap();
        }
        let kinds = [
            ("", "ConfigMap"),
            ("", "Node"),
            (objectsync::GROUP, "ObjectSync"),
            (objectsync::GROUP, "ClusterObjectSync"),
            ("coordination.k8s.io", "Lease"),
            ("events.k8s.io", "Event"),
            ("example.com", "Event"),
        ];
        conn.execute("INSERT INTO meta VALUES (1, 100, 50, 'a')", []).unwrap();
        for (id, (group, kind)) in (1_u64..).zip(kinds) {
            let sql = r#"INSERT INTO resources (id, "group", version, kind, plural, namespaced)
                VALUES (?1, ?2, 'v1', ?3, ?3, 1)"#;
            conn.execute(sql, (id, group, kind)).unwrap();
            let sql = "INSERT INTO events (version, type, resource_id, namespace, name, object)
                VALUES (50 + ?1, 0, ?1, 'n', 'a', '{}')";
            conn.execute(sql, [id]).unwrap();
        }
        for migration in &CLOUD[place..] {
            conn.execute_batch(migration.sql).unwrap();
        }
        let mut lengths = Lengths::open(&conn, 900).unwrap();
        assert_eq!(PARTITIONS.map(|partition| lengths.of(partition).changes), [2, 1, 2, 1, 1]);
        assert_eq!(PARTITIONS.map(|partition| lengths.of(partition).start), [50; 5]);
        for (id, (group, kind)) in (1_u64..).zip(kinds) {
            let of = KindName { group: group.to_owned(), kind: kind.to_owned() };
            let query = HistoryQuery { after: 50, of, limit: 10, bytes: usize::MAX };
            let page = history(&conn, &query).unwrap();
            assert_eq!(page.changes.iter().map(|change| change.version).collect::<Vec<_>>(), [50 + id]);
            assert!(matches!(
                history(&conn, &HistoryQuery { after: 49, ..query }),
                Err(CloudError::Expired { .. })
            ));
        }
    }
}
