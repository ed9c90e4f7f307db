//! What the node serves though nobody sends it: its own Node, and the namespaces of what it holds. It is worked out when it is
//! asked for; who watches is told of what has changed since somebody asked last. Versions count apart from those of the store.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{EdgeObjects, OwnKind, expired, shown, unavailable, watch};
use crate::api::{Batch, Cursor, Page, PageQuery, Ring, Stored};
use crate::object::objectsync::record_uid;
use crate::object::status::Result;
use crate::object::time::rfc3339;
use crate::object::{Resource, kinds, with_resource_version};
use crate::store::edge::{Scan, ScanRow};
use crate::sync::node::READY;

/// Bytes of changes that are kept for those who watch a kind.
const WATCH_BYTES: usize = 32 << 10;
/// How often is looked for changes while somebody watches.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The objects of one kind.
pub(super) struct Own {
    resource: Arc<Resource>,
    ring: Ring<Arc<Resource>>,
    /// The newest version.
    version: AtomicU64,
    known: tokio::sync::Mutex<Known>,
}

/// What was shown last, by name, and what it was made of.
#[derive(Default)]
struct Known {
    objects: Option<u64>,
    report: Arc<str>,
    shown: Vec<Stored>,
}

impl Own {
    /// Both kinds, from a version of the store on.
    pub(super) fn both(version: u64) -> [Self; 2] {
        ["Node", "Namespace"].map(|kind| Self {
            resource: Arc::new(kinds::guess("v1", kind, false)),
            ring: Ring::new(WATCH_BYTES, version),
            version: AtomicU64::new(version),
            known: tokio::sync::Mutex::default(),
        })
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
}

impl EdgeObjects {
    /// The objects of a kind, by name.
    pub(super) async fn own(&self, kind: OwnKind) -> Result<OwnList> {
        let own = self.own_of(kind);
        let mut known = own.known.lock().await;
        let objects = self.store.versions().objects;
        let report = self.report.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if known.objects != Some(objects) || known.report != report {
            let items = self.own_items(kind, &own.resource, &report).await?;
            own.tell(&mut known, items, objects);
            (known.objects, known.report) = (Some(objects), report);
        }
        Ok(OwnList { version: own.version(), items: known.shown.clone() })
    }

    /// What is to be shown; only what came from the cloud has a version.
    async fn own_items(&self, kind: OwnKind, resource: &Arc<Resource>, report: &str) -> Result<Vec<Stored>> {
        let snapshot = self.open().await?;
        let sent = Scan::Objects { resource: resource.clone(), namespace: None, name: None, after: None };
        let mut items = snapshot.scan(sent, Vec::new(), keep).await.map_err(|error| unavailable(&error))?;
        let names = match kind {
            OwnKind::Node => vec![self.node.to_string()],
            OwnKind::Namespace => {
                let all = Scan::Records { cluster: false, namespace: None, uid: None, after: None };
                snapshot.scan(all, Vec::new(), note).await.map_err(|error| unavailable(&error))?
            }
        };
        for name in names {
            if let Err(at) = place(&items, &name) {
                let object = match kind {
                    OwnKind::Node => node(&name, report, &self.since),
                    OwnKind::Namespace => namespace(&name),
                };
                items.insert(at, Stored { name, json: object.to_string(), ..Stored::default() });
            }
        }
        Ok(items)
    }

    /// Changes of a kind after a version: see [`crate::api::Storage::changes`].
    pub(super) async fn own_changes(&self, kind: OwnKind, after: u64) -> Result<Batch> {
        let own = self.own_of(kind);
        loop {
            self.own(kind).await?;
            let batch = own.ring.after(after, |_| true).ok_or_else(|| expired(after))?;
            if batch.version > after {
                return Ok(batch);
            }
            tokio::time::sleep(LOOK_EVERY).await;
            self.watches.check()?;
        }
    }

    pub(super) fn own_of(&self, kind: OwnKind) -> &Own {
        let [nodes, namespaces] = &self.own;
        match kind {
            OwnKind::Node => nodes,
            OwnKind::Namespace => namespaces,
        }
    }
}

impl Own {
    /// Takes over what is to be shown from now on, and tells those who watch what is new, other or gone.
    fn tell(&self, known: &mut Known, mut items: Vec<Stored>, objects: u64) {
        let next = (self.version() + 1).max(objects);
        let mut changes = Vec::new();
        for item in &mut items {
            let before = place(&known.shown, &item.name).ok().and_then(|at| known.shown.get(at));
            match before {
                Some(before) if with_resource_version(&item.json, before.version) == before.json => {
                    *item = before.clone();
                }
                _ => {
                    (item.json, item.version) = (with_resource_version(&item.json, next), next);
                    let previous = before.map(|before| before.json.clone());
                    changes.push(watch::entry(&self.resource, true, item.clone(), previous));
                }
            }
        }
        for gone in std::mem::take(&mut known.shown) {
            if place(&items, &gone.name).is_err() {
                changes.push(watch::removed(&self.resource, gone, next));
            }
        }
        if !changes.is_empty() {
            self.version.store(next, Ordering::Release);
            self.ring.push(changes, next);
        }
        known.shown = items;
    }
}

/// Where an object of this name is, or would be.
fn place(items: &[Stored], name: &str) -> std::result::Result<usize, usize> {
    items.binary_search_by(|item| (*item.name).cmp(name))
}

fn keep(sent: &mut Vec<Stored>, row: ScanRow) -> ControlFlow<()> {
    if let ScanRow::Object(stored, _) = row {
        sent.push(shown(stored));
    }
    ControlFlow::Continue(())
}

fn note(names: &mut Vec<String>, row: ScanRow) -> ControlFlow<()> {
    if let ScanRow::Record(row) = row {
        let namespace = row.entry.object.namespace;
        if let Err(at) = names.binary_search(&namespace) {
            names.insert(at, namespace);
        }
    }
    ControlFlow::Continue(())
}

fn namespace(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "uid": record_uid(name),
            "labels": { "kubernetes.io/metadata.name": name },
        },
        "status": { "phase": "Active" },
    })
}

/// The Node as the cloud side makes it of the same report. It is ready as long as it answers.
fn node(name: &str, report: &str, since: &str) -> Value {
    let mut report: Value = serde_json::from_str(report).unwrap_or_default();
    let ready = json!({
        "type": READY, "status": "True", "reason": "AgentRuns", "message": "the agent of this node answers",
    });
    let mut conditions = vec![ready];
    if let Value::Array(told) = report["conditions"].take() {
        conditions.extend(told);
    }
    for condition in &mut conditions {
        let at = json!(condition["lastTransitionTime"].as_str().unwrap_or(since));
        condition["lastHeartbeatTime"] = at.clone();
        condition["lastTransitionTime"] = at;
    }
    report["status"]["conditions"] = conditions.into();
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": name, "uid": record_uid(name), "labels": report["labels"].take() },
        "spec": {},
        "status": report["status"].take(),
    })
}

/// Since when the agent runs, as text.
pub(super) fn now() -> String {
    rfc3339(Timestamp::now())
}

/// The objects of one kind at one moment.
#[derive(Debug)]
pub(crate) struct OwnList {
    pub(super) version: u64,
    pub(super) items: Vec<Stored>,
}

impl OwnList {
    /// The object of this name.
    pub(super) fn take(mut self, name: &str) -> Option<Stored> {
        place(&self.items, name).ok().map(|at| self.items.swap_remove(at))
    }

    pub(super) fn page(&self, query: &PageQuery) -> Page {
        let after = query.after.as_ref().map_or("", |cursor| &cursor.0);
        let is_wanted = |item: &&Stored| {
            *item.name > *after
                && query.name.as_ref().is_none_or(|name| item.name == *name)
                && query.filter.as_ref().is_none_or(|filter| filter(item))
        };
        let mut items: Vec<Stored> =
            self.items.iter().filter(is_wanted).take(query.limit.saturating_add(1)).cloned().collect();
        let more = items.len() > query.limit;
        items.truncate(query.limit);
        let next = items.last().filter(|_| more).map(|last| Cursor(last.name.clone()));
        Page { items, next }
    }
}
