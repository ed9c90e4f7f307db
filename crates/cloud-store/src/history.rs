//! History of the newest changes, in partitions with separate bounds, so that mass writes by the
//! fleet (a roll-out to all nodes, a night without a network) do not evict changes made by people.
//! All partitions share one sequence of versions; each has its own oldest version to continue from.

use rusqlite::Connection;

use super::change::ChangeKind;
use super::commit_listener::KindName;
use super::stored::Stored;
use edgesync_object::objectsync;

/// Limit of the bytes of changes in the partition of objects that people write.
const OBJECTS_BYTES: u64 = 64 << 20;
/// Limit of the bytes of changes in each of the other partitions.
const FLEET_BYTES: u64 = 16 << 20;

/// Bounds of the history. A partition is trimmed when it exceeds a bound by an eighth.
#[derive(Clone, Copy, Debug)]
pub struct HistoryLimits {
    /// For all kinds except those of the fleet.
    pub objects: HistoryBound,
    /// For Nodes, ObjectSyncs, Leases and Events, each.
    pub fleet: HistoryBound,
}

/// Bounds of one partition.
#[derive(Clone, Copy, Debug)]
pub struct HistoryBound {
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
    fn of(&self, partition: Partition) -> HistoryBound {
        if partition == Partition::Objects { self.objects } else { self.fleet }
    }
}

/// Partition of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Partition {
    /// Objects that people write, and kinds of no other partition.
    Objects,
    Nodes,
    Records,
    Leases,
    Events,
}

/// All partitions, in the order of their numbers.
pub(super) const PARTITIONS: [Partition; 5] =
    [Partition::Objects, Partition::Nodes, Partition::Records, Partition::Leases, Partition::Events];

impl Partition {
    /// Returns the partition of a kind.
    pub(super) fn of(kind: &KindName) -> Self {
        match (kind.group.as_str(), kind.kind.as_str()) {
            ("", "Node") => Self::Nodes,
            (objectsync::GROUP, objectsync::OBJECT_SYNC | objectsync::CLUSTER_OBJECT_SYNC) => Self::Records,
            ("coordination.k8s.io", "Lease") => Self::Leases,
            ("" | "events.k8s.io", "Event") => Self::Events,
            _ => Self::Objects,
        }
    }

    /// Returns the stored number.
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Objects => 0,
            Self::Nodes => 1,
            Self::Records => 2,
            Self::Leases => 3,
            Self::Events => 4,
        }
    }

    /// Returns the table of the partition.
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

/// Extent of one partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Length {
    /// Every change after this version is in the partition.
    pub(super) start: u64,
    pub(super) changes: u64,
    bytes: u64,
}

/// Extents of all partitions. Part of the transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lengths([Length; PARTITIONS.len()]);

impl Lengths {
    /// Counts the stored changes; a new partition starts at `version`.
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

    pub(super) fn of(&mut self, partition: Partition) -> &mut Length {
        let [objects, nodes, records, leases, events] = &mut self.0;
        match partition {
            Partition::Objects => objects,
            Partition::Nodes => nodes,
            Partition::Records => records,
            Partition::Leases => leases,
            Partition::Events => events,
        }
    }

    pub(super) fn enter(
        &mut self,
        conn: &Connection,
        partition: Partition,
        (kind, resource_id, object): (ChangeKind, i64, &Stored),
        (previous_version, previous): (Option<u64>, Option<&str>),
    ) -> rusqlite::Result<()> {
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

    /// Trims each partition to its bounds.
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
