//! Objects that the agent synthesizes: its own Node, and the namespaces of held objects. Computed
//! on request; watches receive the difference to the last request.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::list::EdgeList;
use super::named::{OwnList, place};
use super::ring::LazyRing;
use super::{EdgeObjects, OwnKind, Place, watch};
use edgesync_api::{PAGE_ROWS, PageQuery, Snapshot as _, Stored};
use edgesync_object::objectsync::record_uid;
use edgesync_object::status::Result;
use edgesync_object::{Object, Resource, kinds, with_resource_version};
use edgesync_protocol::node::{agent_ready, new_node, set_node_condition};

/// Interval of the checks for changes during a watch.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The Node as last reported, shared by reporter and API.
pub(in crate::agent) type OwnNode = Arc<Mutex<Object>>;

/// A boxed future, which keeps its callers' futures small.
type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Returns the Node of an agent that has just started: ready while it answers.
pub(in crate::agent) fn own_node(name: &str) -> OwnNode {
    let mut node = new_node(name);
    node.set_metadata("uid", uid("Node", name));
    set_node_condition(&mut node, &agent_ready(), jiff::Timestamp::now());
    Arc::new(Mutex::new(node))
}

/// The objects of one kind as last served.
pub(super) struct Own {
    resource: Arc<Resource>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The store's version that they derive from; `None` before the first request.
    objects: Option<u64>,
    version: u64,
    shown: Arc<Vec<Stored>>,
}

impl Own {
    pub(super) fn new(kind: &str) -> Self {
        Self { resource: Arc::new(kinds::guess("v1", kind, false)), known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the served objects, and publishes the difference to watches. The first result is no
    /// change: no client has seen objects of this run.
    fn tell(&self, known: &mut Known, ring: &LazyRing, mut items: Vec<Stored>, objects: u64) -> OwnList {
        let newest = ring.version();
        let Some(before) = known.objects.replace(objects) else {
            known.version = newest.max(objects);
            for item in &mut items {
                set_version(item, known.version);
            }
            ring.skip(known.version);
            known.shown = Arc::new(items);
            return known.list();
        };
        if before > objects {
            // A concurrent request with a newer version was faster.
            known.objects = Some(before);
            return known.list();
        }
        let next = (newest + 1).max(objects);
        let mut changes = Vec::new();
        for item in &mut items {
            let before = place(&known.shown, &item.name).ok().and_then(|at| known.shown.get(at));
            if let Some(before) = before {
                set_version(item, before.version);
                if item.json == before.json {
                    continue;
                }
            }
            set_version(item, next);
            let previous = before.map(|before| before.json.clone());
            changes.push(watch::entry(&self.resource, true, item.clone(), previous));
        }
        for gone in known.shown.iter() {
            if place(&items, &gone.name).is_err() {
                changes.push(watch::removed(&self.resource, gone.clone(), next));
            }
        }
        if !changes.is_empty() {
            known.version = next;
            ring.note(next, || changes);
            known.shown = Arc::new(items);
        }
        known.list()
    }
}

impl Known {
    fn list(&self) -> OwnList {
        OwnList { version: self.version, items: self.shown.clone() }
    }
}

impl EdgeObjects {
    /// Returns the objects of a kind.
    pub(super) fn own(&self, kind: OwnKind) -> Boxed<'_, OwnList> {
        Box::pin(self.look(kind))
    }

    async fn look(&self, kind: OwnKind) -> Result<OwnList> {
        let (own, ring) = (self.own_of(kind), self.watches.of(&Place::Own(kind)));
        ring.interest();
        if let OwnKind::Node = kind {
            let mut known = own.known();
            let json = self.own_node.lock().unwrap_or_else(PoisonError::into_inner).to_json();
            let node = Stored { name: self.node.to_string(), json, ..Stored::default() };
            return Ok(own.tell(&mut known, ring, vec![node], 0));
        }
        let objects = self.store.versions().objects;
        {
            let known = own.known();
            if known.objects == Some(objects) {
                return Ok(known.list());
            }
        }
        let mut list = self.rows(Place::Synced, &own.resource).await?;
        let objects = list.version();
        let (mut items, mut after) = (Vec::new(), None);
        loop {
            let query = PageQuery { after, limit: PAGE_ROWS, ..PageQuery::default() };
            let page = list.page(query).await?;
            items.extend(page.items);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        if let EdgeList::Rows(rows) = &mut list {
            rows.turn_to(Place::Own(kind));
        }
        for mut found in list.page(PageQuery::default()).await?.items {
            if let Err(at) = place(&items, &found.name) {
                found.json = namespace(&found.name);
                items.insert(at, found);
            }
        }
        Ok(own.tell(&mut own.known(), ring, items, objects))
    }

    /// Waits for changes of a kind after a version.
    pub(super) fn own_changed(&self, kind: OwnKind, after: u64) -> Boxed<'_, ()> {
        Box::pin(async move {
            let ring = self.watches.of(&Place::Own(kind));
            loop {
                self.own(kind).await?;
                if ring.version() > after {
                    return Ok(());
                }
                tokio::time::sleep(LOOK_EVERY).await;
                ring.check()?;
            }
        })
    }

    fn own_of(&self, kind: OwnKind) -> &Own {
        let [nodes, namespaces] = &self.own;
        match kind {
            OwnKind::Node => nodes,
            OwnKind::Namespace => namespaces,
        }
    }
}

fn set_version(item: &mut Stored, version: u64) {
    if item.version != version {
        item.json = with_resource_version(&item.json, version);
        item.version = version;
    }
}

/// Returns the UID of a synthesized object, derived from kind and name.
fn uid(kind: &str, name: &str) -> String {
    record_uid(&[kind, "/", name].concat())
}

fn namespace(name: &str) -> String {
    let uid = uid("Namespace", name);
    let name = Value::from(name);
    format!(
        r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":{name},"uid":"{uid}","labels":{{"kubernetes.io/metadata.name":{name}}}}},"status":{{"phase":"Active"}}}}"#
    )
}
