//! Reads, each within one snapshot. The functions do the work of the methods of
//! [`EdgeStore`](super::EdgeStore) with the same names, which document them.

use std::sync::Arc;

use rusqlite::{Connection, Row};

use super::journal::{self, Recent};
use super::rows::{OBJECT_COLUMNS, ObjectRow, Resources, uid_key};
use super::seals::Seals;

use super::{Changes, Entry, Inventory, InventoryCursor, List, ListCursor, ObjectRef, Stored};
use edgesync_object::{Resource, ResourceVersion};
use edgesync_protocol::apply::Totals;
use edgesync_protocol::change::Uid;
use edgesync_protocol::digest::{BucketSet, Buckets};
use edgesync_store::StoreError;
use edgesync_store::engine::integer;

/// Maximum bytes of bodies on a page of a list; the first object always fits.
const LIST_BYTES: usize = 1 << 20;
/// Rows that a page may scan per row of its limit: bounds the time of a read.
const SCAN_FACTOR: usize = 64;

/// Returns a text column; an error if it is damaged.
pub(super) fn text<'a>(row: &'a Row<'_>, index: usize) -> Result<&'a str, StoreError> {
    Ok(row.get_ref(index)?.as_str().map_err(rusqlite::Error::from)?)
}

pub(super) fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

pub(super) fn object_ref(
    resources: &Resources,
    resource_id: i64,
    namespace: &str,
    name: &str,
) -> Result<ObjectRef, StoreError> {
    let kind = resources
        .by_id(resource_id)
        .ok_or_else(|| StoreError::corrupt(format!("kind {resource_id} is not in table resources")))?;
    Ok(ObjectRef {
        resource: Arc::clone(&kind.resource),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

pub(super) fn changes(
    conn: &Connection,
    recent: &Recent,
    after: u64,
    limit: usize,
) -> Result<Changes, StoreError> {
    let (totals, written) = journal::totals(conn, recent)?;
    if after < written.confirmed {
        return Err(StoreError::Compacted { after, oldest: written.confirmed });
    }
    let resources = Resources::load(conn)?;
    let mut page = Changes { from: after, to: after, entries: Vec::new(), more: false };
    let most = limit.max(1);
    if !journaled(conn, &resources, &mut page, most)? {
        page.more = page.to < totals.revision;
        return Ok(page);
    }
    // The journal ends here; only the rows record what follows.
    let mut statement = conn.prepare_cached(
        "SELECT revision, NULL, resource_id, namespace, name, uid, version FROM objects
         WHERE id = ?1 AND revision = ?2",
    )?;
    let later = recent.after(after.max(written.revision));
    for (revision, id) in later.into_iter().filter(|(revision, _)| *revision <= totals.revision) {
        if page.entries.len() == most {
            page.more = true;
            return Ok(page);
        }
        let mut rows = statement.query((id, integer(revision)))?;
        if let Some(row) = rows.next()? {
            page.entries.extend(change(row, &resources)?);
        }
        page.to = revision;
    }
    page.to = totals.revision.max(after);
    Ok(page)
}

/// Adds the journal's changes to the page. Returns whether its end was reached.
fn journaled(
    conn: &Connection,
    resources: &Resources,
    page: &mut Changes,
    most: usize,
) -> Result<bool, StoreError> {
    let mut statement = conn.prepare_cached(
        "SELECT j.revision, j.uid, coalesce(j.resource_id, o.resource_id), coalesce(j.namespace, o.namespace),
                coalesce(j.name, o.name), o.uid, o.version
         FROM journal j LEFT JOIN objects o ON o.id = j.object_id AND o.revision = j.revision
         WHERE j.revision > ?1 ORDER BY j.revision",
    )?;
    let mut rows = statement.query([integer(page.from)])?;
    for _ in 0..most.saturating_mul(SCAN_FACTOR) {
        let Some(row) = rows.next()? else { return Ok(true) };
        page.to = unsigned(row.get(0)?);
        page.entries.extend(change(row, resources)?);
        if page.entries.len() == most {
            return Ok(false);
        }
    }
    Ok(false)
}

/// Returns the entry of a change; `None` if the row changed again later.
fn change(row: &Row<'_>, resources: &Resources) -> Result<Option<Entry>, StoreError> {
    let removed: Option<&str> = row.get_ref(1)?.as_str_or_null().map_err(rusqlite::Error::from)?;
    let (uid, version) = match removed {
        Some(uid) => (uid, None),
        None => match row.get_ref(5)?.as_str_or_null().map_err(rusqlite::Error::from)? {
            Some(uid) => (uid, Some(ResourceVersion::from(text(row, 6)?))),
            None => return Ok(None),
        },
    };
    let object = object_ref(resources, row.get(2)?, text(row, 3)?, text(row, 4)?)?;
    Ok(Some(Entry { revision: unsigned(row.get(0)?), uid: uid.into(), version, object }))
}

pub(super) fn buckets(conn: &Connection, recent: &Recent) -> Result<(Totals, Buckets), StoreError> {
    let (totals, _) = journal::totals(conn, recent)?;
    let mut buckets = Buckets::default();
    let mut statement = conn.prepare_cached("SELECT uid, version FROM objects")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        buckets.add(totals.epoch, text(row, 0)?, &text(row, 1)?.into());
    }
    Ok((totals, buckets))
}

pub(super) fn inventory(
    conn: &Connection,
    recent: &Recent,
    buckets: BucketSet,
    after: Option<InventoryCursor>,
    limit: usize,
) -> Result<Inventory, StoreError> {
    let (totals, _) = journal::totals(conn, recent)?;
    let resources = Resources::load(conn)?;
    let mut statement = conn.prepare_cached(
        "SELECT id, uid, resource_id, namespace, name, version, revision FROM objects WHERE id > ?1 ORDER BY id",
    )?;
    let mut rows = statement.query([after.map_or(i64::MIN, |InventoryCursor(id)| id)])?;
    let mut entries = Vec::new();
    let most = limit.max(1);
    let mut scanned = 0;
    while let Some(row) = rows.next()? {
        scanned += 1;
        let uid = text(row, 1)?;
        if buckets.contains(totals.epoch.bucket(uid)) {
            entries.push(Entry {
                revision: unsigned(row.get(6)?),
                uid: uid.into(),
                version: Some(text(row, 5)?.into()),
                object: object_ref(&resources, row.get(2)?, text(row, 3)?, text(row, 4)?)?,
            });
        }
        if entries.len() == most || scanned == most.saturating_mul(SCAN_FACTOR) {
            return Ok(Inventory { totals, entries, next: Some(InventoryCursor(row.get(0)?)) });
        }
    }
    Ok(Inventory { totals, entries, next: None })
}

/// Returns a row's object, opened; the row's id if it is damaged or cannot be opened.
pub(super) fn stored(
    row: &Row<'_>,
    resources: &Resources,
    seals: &Seals,
    base: u64,
) -> Result<Result<Stored, i64>, StoreError> {
    let id = row.get(0)?;
    let Some(row) = ObjectRow::read(row)?.filter(|row| row.is_sound(resources)) else { return Ok(Err(id)) };
    let Ok(body) = seals.open_body(row.binding(), row.body) else { return Ok(Err(id)) };
    Ok(Ok(Stored {
        uid: row.uid.into(),
        version: row.version.into(),
        revision: unsigned(row.revision),
        own_version: base.saturating_add(unsigned(row.revision)),
        object: object_ref(resources, row.resource_id, row.namespace, row.name)?,
        body: body.into_owned(),
    }))
}

/// An object, or the ids of damaged rows.
type Found = (Option<Stored>, Vec<i64>);

fn one(row: Option<&Row<'_>>, resources: &Resources, seals: &Seals, base: u64) -> Result<Found, StoreError> {
    let Some(row) = row else { return Ok((None, Vec::new())) };
    Ok(match stored(row, resources, seals, base)? {
        Ok(stored) => (Some(stored), Vec::new()),
        Err(id) => (None, vec![id]),
    })
}

/// Returns the object of a name, for [`super::EdgeStore::get`].
pub(super) fn by_name(
    conn: &Connection,
    seals: &Seals,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<Found, StoreError> {
    let resources = Resources::load(conn)?;
    let Some(kind) = resources.find(resource) else { return Ok((None, Vec::new())) };
    let sql = format!(
        "SELECT {OBJECT_COLUMNS} FROM objects WHERE resource_id = ?1 AND namespace = ?2 AND name = ?3"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query((kind.id, namespace, name))?;
    one(rows.next()?, &resources, seals, journal::base(conn)?)
}

pub(super) fn by_uid(conn: &Connection, seals: &Seals, uid: &Uid) -> Result<Found, StoreError> {
    let resources = Resources::load(conn)?;
    let sql = format!("SELECT {OBJECT_COLUMNS} FROM objects WHERE uid_key = ?1 AND uid = ?2");
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query((uid_key(uid), &**uid))?;
    one(rows.next()?, &resources, seals, journal::base(conn)?)
}

/// Returns the object of a row; `None` if it is damaged or cannot be opened.
pub(super) fn by_id(
    conn: &Connection,
    resources: &Resources,
    seals: &Seals,
    base: u64,
    id: i64,
) -> Result<Option<Stored>, StoreError> {
    let sql = format!("SELECT {OBJECT_COLUMNS} FROM objects WHERE id = ?1");
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query([id])?;
    Ok(one(rows.next()?, resources, seals, base)?.0)
}

pub(super) fn list(
    conn: &Connection,
    recent: &Recent,
    seals: &Seals,
    resource: &Resource,
    namespace: Option<&str>,
    after: Option<&ListCursor>,
    limit: usize,
) -> Result<(List, Vec<i64>), StoreError> {
    let (totals, _) = journal::totals(conn, recent)?;
    let mut list = List { revision: totals.revision, items: Vec::new(), next: None };
    let resources = Resources::load(conn)?;
    let Some(kind) = resources.find(resource) else { return Ok((list, Vec::new())) };
    let within = if namespace.is_some() { "AND namespace = ?4" } else { "AND ?4 IS NULL" };
    let sql = format!(
        "SELECT {OBJECT_COLUMNS} FROM objects
         WHERE resource_id = ?1 AND (namespace, name) > (?2, ?3) {within} ORDER BY namespace, name"
    );
    let from = match (after, namespace) {
        (Some(after), _) => (after.namespace.as_str(), after.name.as_str()),
        (None, Some(namespace)) => (namespace, ""),
        (None, None) => ("", ""),
    };
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query((kind.id, from.0, from.1, namespace))?;
    let (mut damaged, mut bytes, base) = (Vec::new(), 0, journal::base(conn)?);
    while let Some(row) = rows.next()? {
        let item = match stored(row, &resources, seals, base)? {
            Ok(item) => item,
            Err(id) => {
                damaged.push(id);
                continue;
            }
        };
        let full = list.items.len() == limit.max(1) || bytes + item.body.len() > LIST_BYTES;
        if let Some(last) = list.items.last().filter(|_| full) {
            let ObjectRef { namespace, name, .. } = last.object.clone();
            list.next = Some(ListCursor { namespace, name });
            break;
        }
        bytes += item.body.len();
        list.items.push(item);
    }
    Ok((list, damaged))
}

pub(super) fn held_kinds(conn: &Connection) -> Result<Vec<Arc<Resource>>, StoreError> {
    let resources = Resources::load(conn)?;
    let mut is_held = conn.prepare_cached("SELECT EXISTS (SELECT 1 FROM objects WHERE resource_id = ?1)")?;
    let mut held = Vec::new();
    for kind in resources.iter() {
        if is_held.query_row([kind.id], |row| row.get(0))? {
            held.push(Arc::clone(&kind.resource));
        }
    }
    Ok(held)
}

pub(super) fn kinds(conn: &Connection) -> Result<Vec<(Arc<Resource>, u64)>, StoreError> {
    let resources = Resources::load(conn)?;
    let mut statement =
        conn.prepare_cached("SELECT resource_id, count(*) FROM objects GROUP BY resource_id")?;
    let mut rows = statement.query([])?;
    let mut kinds = Vec::new();
    while let Some(row) = rows.next()? {
        if let Some(kind) = resources.by_id(row.get(0)?) {
            kinds.push((Arc::clone(&kind.resource), unsigned(row.get(1)?)));
        }
    }
    kinds.sort();
    Ok(kinds)
}

/// Counts the objects of the selected kinds.
pub(super) fn count_of(conn: &Connection, counts: impl Fn(&Resource) -> bool) -> Result<u64, StoreError> {
    Ok(kinds(conn)?.iter().filter(|(resource, _)| counts(resource)).map(|(_, count)| count).sum())
}

/// Returns the bytes within the file that are free for reuse.
pub(super) fn free_bytes(conn: &Connection) -> Result<u64, StoreError> {
    let pages: i64 = conn.pragma_query_value(None, "freelist_count", |row| row.get(0))?;
    Ok(unsigned(pages) * edgesync_store::engine::PAGE_BYTES)
}
