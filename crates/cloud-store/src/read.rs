//! Reads: kinds, bodies to send, history. Each runs in one snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row};

use super::change::ChangeKind;
use super::commit_listener::KindName;
use super::history::Partition;
use super::nodes::record_before;
use super::objects::resource_id;
use super::{CloudError, WatchChange};
use edgesync_object::{OmittedFields, Resource, ResourceVersion, Scope};
use edgesync_protocol::body::Body;
use edgesync_protocol::cloud::Loaded;
use edgesync_protocol::message::read_head;
use edgesync_store::StoreError;

/// Limit of the bytes of bodies on a page of a list.
pub(crate) const MAX_PAGE_BYTES: usize = 16 << 20;
/// Limit of the changes on a page.
pub(crate) const MAX_PAGE_ITEMS: usize = 10_000;
/// Limit of the bodies of one read.
pub const MAX_BODIES: usize = 10_000;

/// End of a page: lists are ordered by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Namespace of the last object.
    pub namespace: String,
    /// Name of the last object.
    pub name: String,
}

/// Returns the version of the connection's snapshot.
pub(super) fn version(conn: &Connection) -> Result<u64, CloudError> {
    Ok(conn.prepare_cached("SELECT last_version FROM meta WHERE id = 1")?.query_row([], |row| row.get(0))?)
}

pub(super) fn resources(conn: &Connection) -> Result<Vec<Resource>, CloudError> {
    let mut used = conn.prepare_cached("SELECT 1 FROM objects WHERE resource_id = ?1 LIMIT 1")?;
    let mut resources = Vec::new();
    for (id, resource) in resource_map(conn)? {
        if used.exists([id])? {
            resources.push(resource);
        }
    }
    Ok(resources)
}

pub(super) fn resource_map(conn: &Connection) -> Result<BTreeMap<i64, Resource>, CloudError> {
    let mut statement =
        conn.prepare_cached(r#"SELECT id, "group", version, kind, plural, namespaced FROM resources"#)?;
    let rows = statement.query_map([], |row| {
        let scope = if row.get(5)? { Scope::Namespaced } else { Scope::Cluster };
        let (group, version, kind, plural) = (row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?);
        Ok((row.get(0)?, Resource { group, version, kind, plural, scope }))
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn bodies(
    conn: &Connection,
    uids: &[Arc<str>],
    left_out: OmittedFields,
) -> Result<Vec<Loaded>, CloudError> {
    let mut statement =
        conn.prepare_cached("SELECT version, body FROM objects WHERE uid = ?1 AND sync_node IS NULL")?;
    let mut bodies = Vec::with_capacity(uids.len().min(MAX_BODIES));
    for uid in uids.iter().take(MAX_BODIES) {
        let mut rows = statement.query([uid])?;
        let Some(row) = rows.next()? else { continue };
        let body: String = row.get(1)?;
        let body = match Body::new(left_out.of(body)) {
            Ok(body) => body,
            Err(error) => {
                tracing::error!(%uid, %error, "object is not JSON, not sent");
                continue;
            }
        };
        let version = row.get::<_, u64>(0)?.into();
        bodies.push(Loaded { uid: Arc::clone(uid), version, body, patch: None });
    }
    Ok(bodies)
}

/// Reads earlier versions of objects. The change that made a version has its text, and the change
/// that followed has it as the previous one; older ones are gone.
pub(super) fn bases(
    conn: &Connection,
    wanted: Vec<(Arc<str>, ResourceVersion)>,
    left_out: OmittedFields,
) -> Result<Vec<(Arc<str>, ResourceVersion, String)>, CloudError> {
    let mut made = conn.prepare_cached("SELECT object FROM events WHERE version = ?1 AND type <> 2")?;
    let mut replaced = conn.prepare_cached(
        "SELECT e.previous FROM objects o JOIN events e ON e.version = o.version
         WHERE o.uid = ?1 AND e.previous_version = ?2 AND e.previous IS NOT NULL",
    )?;
    let mut bases = Vec::with_capacity(wanted.len().min(MAX_BODIES));
    for (uid, version) in wanted.into_iter().take(MAX_BODIES) {
        let Some(number) = version.as_str().parse::<i64>().ok().filter(|_| version.is_decimal()) else {
            continue;
        };
        let text: Option<String> = match made.query_row([number], |row| row.get(0)).optional()? {
            Some(text) => Some(text),
            None => replaced.query_row((&uid, number), |row| row.get(0)).optional()?,
        };
        // Versions are unique in the store, but the version may be that of another store.
        let is_it = |text: &String| read_head(text).is_ok_and(|head| head.metadata.uid == *uid);
        if let Some(text) = text.filter(is_it) {
            bases.push((uid, version, left_out.of(text)));
        }
    }
    Ok(bases)
}

/// Selection and bounds of a read of the history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryQuery {
    /// Only changes after this version.
    pub after: u64,
    /// Only changes of this kind.
    pub of: KindName,
    /// Limit of the changes, at most [`MAX_PAGE_ITEMS`].
    pub limit: usize,
    /// Limit of the bytes; the page ends with the change that reaches it.
    pub bytes: usize,
}

/// Changes from the history, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryPage {
    /// The changes, of the kind in question.
    pub changes: Vec<WatchChange>,
    /// The page is complete up to this version.
    pub version: u64,
}

/// Returns changes of a kind after a version.
///
/// # Errors
/// [`CloudError::Expired`] if the kind's partition does not reach back that far.
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
        .ok_or_else(|| StoreError::corrupt(format!("unknown event type {code}")))?;
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
    use super::super::history::{Lengths, PARTITIONS};
    use super::super::stored::Stored;
    use super::*;
    use edgesync_object::objectsync;
    use edgesync_store::migrate::CLOUD;

    #[test]
    fn changes_are_read_from_the_partition_of_their_kind() {
        let conn = Connection::open_in_memory().unwrap();
        for migration in CLOUD {
            conn.execute_batch(migration.sql).unwrap();
        }
        conn.execute("INSERT INTO meta VALUES (1, 100, 'a')", []).unwrap();
        let mut lengths = Lengths::open(&conn, 50).unwrap();
        let kinds = [
            ("", "ConfigMap"),
            ("", "Node"),
            (objectsync::GROUP, "ObjectSync"),
            (objectsync::GROUP, "ClusterObjectSync"),
            ("coordination.k8s.io", "Lease"),
            ("events.k8s.io", "Event"),
            ("example.com", "Event"),
        ];
        for (id, (group, kind)) in (1_u64..).zip(kinds) {
            let sql = r#"INSERT INTO resources (id, "group", version, kind, plural, namespaced)
                VALUES (?1, ?2, 'v1', ?3, ?3, 1)"#;
            conn.execute(sql, (id, group, kind)).unwrap();
            let of = KindName { group: group.to_owned(), kind: kind.to_owned() };
            let object = Stored {
                uid: format!("u{id}").into(),
                version: 50 + id,
                namespace: "n".to_owned(),
                name: "a".to_owned(),
                body: "{}".to_owned(),
            };
            let change = (ChangeKind::Added, id.cast_signed(), &object);
            lengths.enter(&conn, Partition::of(&of), change, (None, None)).unwrap();
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
