//! What the node serves though nobody sends it: its own Node, and the namespaces of what it holds. It is worked out when it is
//! asked for; who watches is told of what has changed since somebody asked last.

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

/// How often is looked for changes while somebody watches.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The Node as it was looked at last, shared by those who look and those who show it.
pub(in crate::agent) type OwnNode = Arc<Mutex<Object>>;

/// A future with one place in memory, whoever waits for it.
type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// The Node of an agent that has just started: it is ready as long as it answers.
pub(in crate::agent) fn own_node(name: &str) -> OwnNode {
    let mut node = new_node(name);
    node.set_metadata("uid", uid("Node", name));
    set_node_condition(&mut node, &agent_ready(), jiff::Timestamp::now());
    Arc::new(Mutex::new(node))
}

/// The objects of one kind as they were shown last.
pub(super) struct Own {
    resource: Arc<Resource>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The version of the store in which they were found; none before the first look.
    objects: Option<u64>,
    version: u64,
    /// By name.
    shown: Arc<Vec<Stored>>,
}

impl Own {
    pub(super) fn new(kind: &str) -> Self {
        Self { resource: Arc::new(kinds::guess("v1", kind, false)), known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what is to be shown from now on, and tells those who watch what is new, other or gone. What is found first is
    /// no news: nobody has seen anything of this run.
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
            // Somebody who has looked later was faster.
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
    /// The objects of a kind.
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

    /// Waits until there are changes of a kind after a version.
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

/// A UID of this node's own: the same kind and name have the same one.
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
