//! Reads: single objects, lists, bodies to be sent. Each in one snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::Connection;

use super::CloudError;
use crate::object::{Resource, Scope, without_managed_fields};
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
