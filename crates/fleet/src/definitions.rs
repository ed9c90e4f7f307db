//! CustomResourceDefinitions: validation, conversion to kinds, and the task that follows the stored
//! ones. Depends on `api` and `object`.
//!
//! A definition is written like any object. After its commit the task serves the kinds, and only
//! then writes `NamesAccepted` and `Established` into the status: a client that waits for the
//! condition finds the kind served. A deleted definition stays until all objects of its kind are
//! deleted.

mod check;
mod names;
mod read;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::{Instant, sleep_until};

use super::collect::remove;
use edgesync_api::{Batch, ChangeType, Kind, PAGE_ROWS, PageQuery, Snapshot, Storage, Stored};
use edgesync_object::status::{Reason, Result};
use edgesync_object::{Object, Resource, Scope, Status, map_field as map, text_field as text, yaml};
use edgesync_schema as schema;
use names::Outcome;
use read::Definition;

/// API group of definitions.
const GROUP: &str = "apiextensions.k8s.io";
const KIND: &str = "CustomResourceDefinition";
/// Finalizer that keeps a definition until the objects of its kind are deleted.
const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
/// Initial and maximum delay of a retry.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// Maximum wait when nothing is due.
const IDLE: Duration = Duration::from_secs(3600);

/// Completes and validates a definition that is created (`old` is `None`) or changed. Ignores
/// objects of other kinds. Returns warnings: rules that are not evaluated here.
///
/// # Errors
/// 422 with all problems. A change that leaves the spec as it is always succeeds.
pub(super) fn admit(kind: &Kind, old: Option<&Object>, object: &mut Object) -> Result<Vec<String>> {
    if kind.resource.group != GROUP || kind.resource.kind != KIND {
        return Ok(Vec::new());
    }
    check::complete(object);
    let spec = |object: &Object| object.fields().get("spec").cloned();
    if old.is_some_and(|old| spec(old) == spec(object)) {
        return Ok(Vec::new());
    }
    let (causes, warnings) = check::check(old, object);
    if causes.is_empty() { Ok(warnings) } else { Err(Status::invalid(GROUP, KIND, object.name(), causes)) }
}

/// Returns the project's own kinds, served without a stored definition. A cluster gets the same
/// definitions.
pub(super) fn own() -> Vec<Kind> {
    let texts = [
        include_str!("../../../packaging/kubernetes/crds/clusterplacements.yaml"),
        include_str!("../../../packaging/kubernetes/crds/placements.yaml"),
    ];
    let objects =
        texts.iter().filter_map(|text| serde_json::from_value::<Object>(yaml::parse(text).ok()?).ok());
    let definitions = objects.map(|object| Definition::of(&object, 0));
    definitions
        .flat_map(|definition| definition.served(&definition.names))
        .map(Arc::unwrap_or_clone)
        .collect()
}

/// Returns the objects in a list.
fn list<'a>(
    fields: &'a Map<String, Value>,
    name: &str,
) -> impl Iterator<Item = &'a Map<String, Value>> + use<'a> {
    fields.get(name).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
}

/// Callback that receives all kinds to serve, each time.
pub(super) type Serve = Box<dyn Fn(Vec<Arc<Kind>>) + Send + Sync>;

/// Task that follows the definitions, with the kinds of all of them.
pub(super) struct Definitions<K> {
    storage: Arc<K>,
    resource: Arc<Resource>,
    serve: Serve,
    /// By name, as of `version`.
    known: BTreeMap<String, Definition>,
    version: u64,
}

impl<K: Storage> Definitions<K> {
    /// Lists the definitions and serves their kinds.
    ///
    /// # Errors
    /// Those of the storage.
    pub(super) async fn start(storage: Arc<K>, serve: Serve) -> Result<Self> {
        let resource = Resource {
            group: GROUP.to_owned(),
            version: "v1".to_owned(),
            kind: KIND.to_owned(),
            plural: "customresourcedefinitions".to_owned(),
            scope: Scope::Cluster,
        };
        let mut definitions =
            Self { storage, resource: Arc::new(resource), serve, known: BTreeMap::new(), version: 0 };
        definitions.load().await?;
        definitions.publish();
        Ok(definitions)
    }

    /// Runs forever. Can be dropped at any time to stop it.
    pub(super) async fn run(mut self) {
        let mut pause = RETRY.0;
        // Work left unfinished by the last process is due now.
        let mut due = Some(Instant::now());
        loop {
            let wake = due.unwrap_or_else(|| Instant::now() + IDLE);
            tokio::select! {
                batch = self.storage.changes(&self.resource, self.version) => match self.follow(batch).await {
                    Ok(false) => {}
                    Ok(true) => due = Some(Instant::now()),
                    Err(status) => {
                        tracing::warn!(%status, "watching CustomResourceDefinitions failed");
                        tokio::time::sleep(RETRY.1 / 10).await;
                    }
                },
                () = sleep_until(wake) => {}
            }
            if due.is_none_or(|due| due > Instant::now()) {
                continue;
            }
            let settled = self.settle().await;
            (due, pause) = if settled {
                (None, RETRY.0)
            } else {
                (Some(Instant::now() + pause), (pause * 2).min(RETRY.1))
            };
        }
    }

    async fn load(&mut self) -> Result<()> {
        let mut snapshot = self.storage.snapshot(&self.resource).await?;
        self.known.clear();
        let mut query = PageQuery { limit: PAGE_ROWS, ..PageQuery::default() };
        loop {
            let page = snapshot.page(query.clone()).await?;
            for stored in &page.items {
                self.learn(stored);
            }
            query.after = page.next;
            if query.after.is_none() {
                self.version = snapshot.version();
                return Ok(());
            }
        }
    }

    fn learn(&mut self, stored: &Stored) {
        match Object::parse(&stored.json) {
            Ok(object) => {
                self.known.insert(stored.name.clone(), Definition::of(&object, stored.version));
            }
            Err(error) => tracing::warn!(name = stored.name, %error, "invalid CustomResourceDefinition"),
        }
    }

    /// Applies changes and serves the kinds. Returns whether there were any.
    async fn follow(&mut self, batch: Result<Batch>) -> Result<bool> {
        let batch = match batch {
            Err(status) if status.is(&Reason::Expired) => {
                self.load().await?;
                self.publish();
                return Ok(true);
            }
            batch => batch?,
        };
        self.version = batch.version;
        for change in &batch.changes {
            match change.kind {
                ChangeType::Deleted => {
                    self.known.remove(&change.object.name);
                }
                ChangeType::Added | ChangeType::Modified => self.learn(&change.object),
            }
        }
        if !batch.changes.is_empty() {
            self.publish();
        }
        Ok(!batch.changes.is_empty())
    }

    fn outcomes(&self) -> BTreeMap<String, Outcome> {
        names::resolve(&self.known, &self.storage.kinds())
    }

    /// Serves the established kinds.
    fn publish(&self) {
        let outcomes = self.outcomes();
        let established = outcomes.iter().filter(|(_, outcome)| outcome.established);
        let kinds = established.filter_map(|(name, outcome)| {
            let definition = self.known.get(name)?;
            Some((&definition.group, definition.served(&outcome.accepted)))
        });
        // Groups are kept together.
        let mut kinds: Vec<_> = kinds.collect();
        kinds.sort_by_key(|(group, _)| *group);
        (self.serve)(kinds.into_iter().flat_map(|(_, kinds)| kinds).collect());
    }

    /// Writes the status of the definitions, and cleans up after deleted ones. Returns whether all
    /// is done.
    async fn settle(&self) -> bool {
        let mut settled = true;
        for (name, outcome) in self.outcomes() {
            let Some(definition) = self.known.get(&name) else { continue };
            let done = self.settle_one(&name, definition, &outcome).await;
            if let Err(status) = &done {
                tracing::warn!(definition = name, %status, "writing the status of a CustomResourceDefinition failed, retrying");
            }
            settled &= done.unwrap_or_default();
        }
        settled
    }

    async fn settle_one(&self, name: &str, definition: &Definition, outcome: &Outcome) -> Result<bool> {
        let status = names::status(definition, outcome, &remove::now());
        if status != definition.status {
            self.write_status(name, definition, status).await?;
        }
        if !definition.deleting {
            return Ok(true);
        }
        // Under names that were not accepted, the objects are those of another kind.
        let of_kind = definition.kept_as().filter(|_| outcome.established);
        if let Some(resource) = of_kind
            && remove::sweep(&self.storage, &resource, None).await? > 0
        {
            return Ok(false);
        }
        remove::release(&*self.storage, &self.resource, ("", name), CLEANUP).await?;
        Ok(true)
    }

    /// Writes the status, unless the definition has changed since: then the change arrives later.
    async fn write_status(&self, name: &str, known: &Definition, status: Map<String, Value>) -> Result<()> {
        let Some(stored) = self.storage.get(&self.resource, "", name).await? else { return Ok(()) };
        if stored.version != known.version {
            return Ok(());
        }
        let mut object = Object::parse(&stored.json).map_err(Status::internal)?;
        object.fields_mut().insert("status".to_owned(), Value::Object(status));
        match self.storage.update(&self.resource, object, stored.version).await {
            Err(status) if status.is(&Reason::Conflict) || status.is(&Reason::NotFound) => Ok(()),
            written => written.map(drop),
        }
    }
}

#[cfg(test)]
mod tests;
