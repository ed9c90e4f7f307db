//! Reads: single objects, lists, bodies to be sent, history. Each in one snapshot.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rusqlite::{Connection, Row};

use super::change::ChangeKind;
use super::nodes::record_before;
use super::objects::resource_id;
use super::observer::KindName;
use super::{CloudError, WatchChange};
use crate::object::{Resource, Scope, without_managed_fields};
use crate::store::StoreError;
use crate::sync::cloud::Loaded;
use crate::sync::message::Body;

/// A page of a list ends when its bodies have this many bytes together.
pub const MAX_PAGE_BYTES: usize = 16 << 20;
/// The most objects on a page.
pub const MAX_PAGE_ITEMS: usize = 10_000;
/// The most bodies that one call reads.
pub const MAX_BODIES: usize = 10_000;

/// Where a page ends: lists are in the order of namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Namespace of the last object.
    pub namespace: String,
    /// Name of the last object.
    pub name: String,
}

/// Which changes are to be read from the history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryQuery {
    /// Only changes after this version.
    pub after: u64,
    /// Only changes of this kind; of all if absent.
    pub of: Option<KindName>,
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

/// The version of the snapshot that the connection reads.
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
    managed_fields: bool,
) -> Result<Vec<Loaded>, CloudError> {
    let mut statement =
        conn.prepare_cached("SELECT version, body FROM objects WHERE uid = ?1 AND sync_node IS NULL")?;
    let mut bodies = Vec::with_capacity(uids.len().min(MAX_BODIES));
    for uid in uids.iter().take(MAX_BODIES) {
        let mut rows = statement.query([uid])?;
        let Some(row) = rows.next()? else { continue };
        let body: String = row.get(1)?;
        let body = match Body::new(if managed_fields { body } else { without_managed_fields(body) }) {
            Ok(body) => body,
            Err(error) => {
                tracing::error!(%uid, %error, "an object that is not JSON: it cannot be sent");
                continue;
            }
        };
        bodies.push(Loaded { uid: Arc::clone(uid), version: row.get::<_, u64>(0)?.into(), body });
    }
    Ok(bodies)
}

pub(super) fn history(conn: &Connection, query: &HistoryQuery) -> Result<HistoryPage, CloudError> {
    let after = query.after;
    let oldest: u64 = conn
        .prepare_cached("SELECT history_start FROM meta WHERE id = 1")?
        .query_row([], |row| row.get(0))?;
    if after < oldest {
        return Err(CloudError::Expired { after, oldest });
    }
    let mut page = HistoryPage { changes: Vec::new(), version: version(conn)?.max(after) };
    let only = match &query.of {
        Some(of) => match resource_id(conn, &of.group, &of.kind)? {
            Some(id) => Some(id),
            None => return Ok(page),
        },
        None => None,
    };
    let mut statement = conn.prepare_cached(
        r#"SELECT type, events.version, resource_id, namespace, name, object, previous, previous_version,
                  "group", kind
           FROM events JOIN resources ON resources.id = resource_id
           WHERE events.version > ?1 AND (?2 IS NULL OR resource_id = ?2) ORDER BY events.version"#,
    )?;
    let mut rows = statement.query((after, only))?;
    let mut names = HashMap::new();
    let mut bytes = 0;
    while let Some(row) = rows.next()? {
        let change = past_change(row, &mut names)?;
        bytes += change.body.len() + change.previous.as_ref().map_or(0, String::len);
        page.changes.push(change);
        if page.changes.len() >= query.limit.min(MAX_PAGE_ITEMS) || bytes >= query.bytes {
            page.version = page.changes.last().map_or(after, |last| last.version);
            break;
        }
    }
    Ok(page)
}

fn past_change(row: &Row<'_>, names: &mut HashMap<i64, Arc<KindName>>) -> Result<WatchChange, CloudError> {
    let code: u8 = row.get(0)?;
    let kind = ChangeKind::from_code(code)
        .ok_or_else(|| StoreError::corrupt(format!("an event has the unknown type {code}")))?;
    let resource_id = row.get(2)?;
    let of = match names.get(&resource_id) {
        Some(name) => Arc::clone(name),
        None => {
            let name = KindName { group: row.get(8)?, kind: row.get(9)? };
            Arc::clone(names.entry(resource_id).or_insert(Arc::new(name)))
        }
    };
    let body: String = row.get(5)?;
    let previous = match (row.get::<_, Option<String>>(6)?, row.get(7)?) {
        (Some(held), Some(version)) if !held.starts_with('{') => Some(record_before(&body, version, &held)?),
        (previous, _) => previous,
    };
    Ok(WatchChange {
        kind,
        of,
        version: row.get(1)?,
        namespace: row.get(3)?,
        name: row.get(4)?,
        body,
        previous,
    })
}
