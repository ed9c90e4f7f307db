//! Lists: pages of a snapshot, for the API.
//!
//! Synced and local objects are sorted by namespace and name. ObjectSync records follow the order
//! of their rows, because no index has theirs. That order is as stable, and cursors are opaque to
//! clients.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use crate::store::{EdgeSnapshot, InventoryCursor, ListCursor, Scan, ScanRow};
use edgesync_api::{Cursor, PAGE_ROWS, Page, PageQuery, RowFilter, Snapshot, Stored};
use edgesync_object::status::Result;
use edgesync_object::{NodeName, Resource, Scope, Status, objectsync};

use super::named::{SynthesizedList, position};
use super::statuses::Statuses;
use super::{ObjectSource, record, shown, shown_local, unavailable};

/// Maximum bytes of objects on a page.
const PAGE_BYTES: usize = 1 << 20;
/// Maximum bytes read for a page, matching or not.
const READ_BYTES: usize = 8 << 20;

/// An open list of one kind.
#[derive(Debug)]
pub(crate) enum EdgeList {
    Rows(RowList),
    /// A list of synthesized objects.
    Synthesized(SynthesizedList),
}

/// An open list of rows.
#[derive(Debug)]
pub(crate) struct RowList {
    snapshot: EdgeSnapshot,
    source: ObjectSource,
    resource: Arc<Resource>,
    node: NodeName,
    statuses: Arc<Statuses>,
}

/// Collects a page from rows.
struct Collected {
    node: NodeName,
    statuses: Arc<Statuses>,
    filter: Option<RowFilter>,
    limit: usize,
    /// Whether to collect only the namespaces of the rows.
    names: bool,
    items: Vec<Stored>,
    bytes: usize,
    read: usize,
    /// Position of the last row.
    last: Cursor,
    /// Whether more rows follow.
    more: bool,
}

impl Collected {
    fn is_full(&self) -> bool {
        self.items.len() >= self.limit || self.bytes >= PAGE_BYTES || self.read >= READ_BYTES
    }

    fn visit(&mut self, row: ScanRow) -> ControlFlow<()> {
        if self.is_full() {
            self.more = true;
            return ControlFlow::Break(());
        }
        let mut synced = None;
        let item = match row {
            ScanRow::Object(stored, waiting) => {
                self.last = Cursor(format!("{}/{}", stored.object.namespace, stored.object.name));
                synced = Some((stored.uid.clone(), waiting));
                Some(shown(stored))
            }
            ScanRow::Local(object) => {
                self.last = Cursor(format!("{}/{}", object.namespace, object.name));
                Some(shown_local(object))
            }
            ScanRow::Record(row) if self.names => {
                let name = row.entry.object.namespace;
                if let Err(at) = position(&self.items, &name) {
                    self.items.insert(at, Stored { name, ..Stored::default() });
                }
                None
            }
            ScanRow::Record(row) => {
                self.last = Cursor(row.cursor.number().to_string());
                record::of_entry(&self.node, &row.entry, row.own_version)
            }
        };
        let Some(item) = item else { return ControlFlow::Continue(()) };
        self.read += item.json.len();
        // A selector matches the cloud's version, as in a watch.
        if self.filter.as_ref().is_none_or(|filter| filter(&item)) {
            let item = match synced {
                Some((uid, waiting)) => self.statuses.show(&uid, item, waiting.as_deref(), Instant::now()),
                None => item,
            };
            self.bytes += item.json.len();
            self.items.push(item);
        }
        ControlFlow::Continue(())
    }
}

impl RowList {
    pub(super) fn new(
        snapshot: EdgeSnapshot,
        source: ObjectSource,
        resource: Arc<Resource>,
        node: NodeName,
        statuses: Arc<Statuses>,
    ) -> Self {
        Self { snapshot, source, resource, node, statuses }
    }

    /// Continues with another source, in the same snapshot.
    pub(super) fn turn_to(&mut self, source: ObjectSource) {
        self.source = source;
    }

    /// Returns the scan; `None` for a name that no record can have.
    fn scan(
        &self,
        namespace: Option<String>,
        name: Option<String>,
        after: Option<&Cursor>,
    ) -> Result<Option<Scan>> {
        let by_name = || after.map(named).transpose();
        Ok(Some(match self.source {
            ObjectSource::Synced => {
                Scan::Objects { resource: self.resource.clone(), namespace, name, after: by_name()? }
            }
            ObjectSource::Local(kind) => Scan::Local { kind, namespace, name, after: by_name()? },
            ObjectSource::Records(scope) => {
                let after = after.map(numbered).transpose()?;
                let uid = match name.as_deref().map(objectsync::split_sync_name) {
                    None => None,
                    Some(Some((node, uid))) if *node == *self.node => Some(uid.into()),
                    Some(_) => return Ok(None),
                };
                Scan::Records { cluster: scope == Scope::Cluster, namespace, uid, after }
            }
            // Namespaces derive from records.
            ObjectSource::Synthesized(_) => {
                Scan::Records { cluster: false, namespace: None, uid: None, after: None }
            }
        }))
    }
}

fn bad_cursor() -> Status {
    Status::bad_request("the continue token was not issued by this server")
}

fn named(cursor: &Cursor) -> Result<ListCursor> {
    let (namespace, name) = cursor.0.split_once('/').ok_or_else(bad_cursor)?;
    Ok(ListCursor { namespace: namespace.to_owned(), name: name.to_owned() })
}

fn numbered(cursor: &Cursor) -> Result<InventoryCursor> {
    let number = cursor.0.parse().map_err(|_| bad_cursor())?;
    InventoryCursor::from_number(number).ok_or_else(bad_cursor)
}

impl Snapshot for EdgeList {
    fn version(&self) -> u64 {
        let list = match self {
            Self::Rows(list) => list,
            Self::Synthesized(synthesized) => return synthesized.version,
        };
        let versions = list.snapshot.versions();
        match list.source {
            ObjectSource::Synced | ObjectSource::Records(_) | ObjectSource::Synthesized(_) => {
                versions.objects
            }
            ObjectSource::Local(_) => versions.local,
        }
    }

    async fn page(&mut self, query: PageQuery) -> Result<Page> {
        let list = match self {
            Self::Rows(list) => list,
            Self::Synthesized(synthesized) => return Ok(synthesized.page(&query)),
        };
        let PageQuery { namespace, after, limit, name, filter, .. } = query;
        let Some(scan) = list.scan(namespace, name, after.as_ref())? else { return Ok(Page::default()) };
        let names = matches!(list.source, ObjectSource::Synthesized(_));
        let collected = Collected {
            node: list.node.clone(),
            statuses: list.statuses.clone(),
            filter,
            limit: if names { usize::MAX } else { limit.clamp(1, PAGE_ROWS) },
            names,
            items: Vec::new(),
            bytes: 0,
            read: 0,
            last: Cursor::default(),
            more: false,
        };
        let scanned = list.snapshot.scan(scan, collected, Collected::visit).await;
        let Collected { items, last, more, .. } = scanned.map_err(|error| unavailable(&error))?;
        Ok(Page { items, next: more.then_some(last) })
    }

    async fn count(&mut self, namespace: Option<&str>) -> Result<u64> {
        let list = match self {
            Self::Rows(list) => list,
            Self::Synthesized(synthesized) => return Ok(synthesized.items.len() as u64),
        };
        match list.scan(namespace.map(str::to_owned), None, None)? {
            Some(scan) => list.snapshot.count(scan).await.map_err(|error| unavailable(&error)),
            None => Ok(0),
        }
    }
}
