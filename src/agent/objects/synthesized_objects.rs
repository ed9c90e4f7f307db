//! Objects that the agent synthesizes: its own Node, and the namespaces of held objects. Computed
//! on request; watches receive the difference to the last request.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::list::EdgeList;
use super::named::{SynthesizedList, position};
use super::ring::LazyRing;
use super::{EdgeObjects, ObjectSource, SynthesizedKind, watch};
use edgesync_api::{PAGE_ROWS, PageQuery, Snapshot as _, Stored};
use edgesync_object::objectsync::record_uid;
use edgesync_object::status::Result;
use edgesync_object::{Object, Resource, kinds, with_resource_version};
use edgesync_protocol::node::{agent_ready, new_node, set_node_condition};

/// Interval of the checks for changes during a watch.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The Node as last reported, shared by reporter and API.
pub(in crate::agent) type SharedNode = Arc<Mutex<Object>>;

/// A boxed future, which keeps its callers' futures small.
type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Returns the Node of an agent that has just started: ready while it answers.
pub(in crate::agent) fn shared_node(name: &str) -> SharedNode {
    let mut node = new_node(name);
    node.set_metadata("uid", uid("Node", name));
    set_node_condition(&mut node, &agent_ready(), jiff::Timestamp::now());
    Arc::new(Mutex::new(node))
}

/// The objects of one kind as last served.
pub(super) struct Synthesized {
    resource: Arc<Resource>,
    served: Mutex<Served>,
}

#[derive(Default)]
struct Served {
    /// The store's version that they derive from; `None` before the first request.
    objects: Option<u64>,
    version: u64,
    shown: Arc<Vec<Stored>>,
}

impl Synthesized {
    pub(super) fn new(kind: &str) -> Self {
        Self { resource: Arc::new(kinds::guess("v1", kind, false)), served: Mutex::default() }
    }

    fn served(&self) -> MutexGuard<'_, Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the served objects, and publishes the difference to watches. The first result is no
    /// change: no client has seen objects of this run.
    fn publish(
        &self,
        served: &mut Served,
        ring: &LazyRing,
        mut items: Vec<Stored>,
        objects: u64,
    ) -> SynthesizedList {
        let newest = ring.version();
        let Some(before) = served.objects.replace(objects) else {
            served.version = newest.max(objects);
            for item in &mut items {
                set_version(item, served.version);
            }
            ring.skip(served.version);
            served.shown = Arc::new(items);
            return served.list();
        };
        if before > objects {
            // A concurrent request with a newer version was faster.
            served.objects = Some(before);
            return served.list();
        }
        let next = (newest + 1).max(objects);
        let mut changes = Vec::new();
        for item in &mut items {
            let before = position(&served.shown, &item.name).ok().and_then(|at| served.shown.get(at));
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
        for gone in served.shown.iter() {
            if position(&items, &gone.name).is_err() {
                changes.push(watch::removed(&self.resource, gone.clone(), next));
            }
        }
        if !changes.is_empty() {
            served.version = next;
            ring.note(next, || changes);
            served.shown = Arc::new(items);
        }
        served.list()
    }
}

impl Served {
    fn list(&self) -> SynthesizedList {
        SynthesizedList { version: self.version, items: self.shown.clone() }
    }
}

impl EdgeObjects {
    /// Returns the objects of a kind.
    pub(super) fn synthesized(&self, kind: SynthesizedKind) -> Boxed<'_, SynthesizedList> {
        Box::pin(self.refresh(kind))
    }

    async fn refresh(&self, kind: SynthesizedKind) -> Result<SynthesizedList> {
        let (synthesized, ring) =
            (self.synthesized_of(kind), self.watches.of(&ObjectSource::Synthesized(kind)));
        ring.record_interest();
        if let SynthesizedKind::Node = kind {
            let mut served = synthesized.served();
            let json = self.shared_node.lock().unwrap_or_else(PoisonError::into_inner).to_json();
            let node = Stored { name: self.node.to_string(), json, ..Stored::default() };
            return Ok(synthesized.publish(&mut served, ring, vec![node], 0));
        }
        let objects = self.store.versions().objects;
        {
            let served = synthesized.served();
            if served.objects == Some(objects) {
                return Ok(served.list());
            }
        }
        let mut list = self.rows(ObjectSource::Synced, &synthesized.resource).await?;
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
            rows.turn_to(ObjectSource::Synthesized(kind));
        }
        for mut found in list.page(PageQuery::default()).await?.items {
            if let Err(at) = position(&items, &found.name) {
                found.json = namespace(&found.name);
                items.insert(at, found);
            }
        }
        Ok(synthesized.publish(&mut synthesized.served(), ring, items, objects))
    }

    /// Waits for changes of a kind after a version.
    pub(super) fn synthesized_changed(&self, kind: SynthesizedKind, after: u64) -> Boxed<'_, ()> {
        Box::pin(async move {
            let ring = self.watches.of(&ObjectSource::Synthesized(kind));
            loop {
                self.synthesized(kind).await?;
                if ring.version() > after {
                    return Ok(());
                }
                tokio::time::sleep(CHECK_INTERVAL).await;
                ring.check()?;
            }
        })
    }

    fn synthesized_of(&self, kind: SynthesizedKind) -> &Synthesized {
        let [nodes, namespaces] = &self.synthesized;
        match kind {
            SynthesizedKind::Node => nodes,
            SynthesizedKind::Namespace => namespaces,
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
