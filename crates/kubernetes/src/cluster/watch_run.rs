//! One watch as a task: lists, watches and reconnects, on top of `kube::runtime::watcher`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::api::{Api, DynamicObject, TypeMeta};
use kube::runtime::watcher::{Event, InitialListStrategy, ListSemantic};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Error};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::api_discovery;
use super::plan::{Namespaces, Watch, WatchScope};
use edgesync_object::{Object, Resource, ResourceVersion};
use edgesync_placement::Summary;

/// Maximum number of objects in one part of a list.
const PART_OBJECTS: usize = 256;
/// Size in bytes from which a part takes no more objects.
const PART_BYTES: usize = 1 << 20;
/// Page size of list requests.
pub(super) const PAGE: u32 = 500;
/// Server-side timeout of a watch request, in seconds. A dead connection is detected five seconds
/// later.
pub(super) const WATCH_SECONDS: u32 = 120;
/// Delay before a restart of a watch that could not be started.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// An object as read from the cluster.
#[derive(Clone, Debug)]
pub struct ObservedObject {
    /// Placement's view of the object.
    pub summary: Arc<Summary>,
    /// The object as JSON text, without `metadata.managedFields`.
    pub body: Arc<str>,
}

/// An event of a watch.
#[derive(Debug)]
pub(super) enum ScopeEvent {
    /// A list has started.
    ListStarted,
    /// A part of the list.
    Listed(Vec<ObservedObject>),
    /// The list is complete.
    Complete,
    /// An object was added or modified.
    Updated(ObservedObject),
    /// An object was deleted, or no longer matches the selector.
    Deleted(ObservedObject),
    /// The watch failed and is retried.
    Failed(Failure),
}

/// Reason for a failed watch.
#[derive(Debug)]
pub(super) enum Failure {
    /// Forbidden, with the server's message.
    Refused(String),
    /// The kind is no longer served.
    Unserved,
    Broken(Error),
}

impl Failure {
    fn of(error: Error) -> Self {
        match error {
            Error::Api(status) if status.is_forbidden() => Self::Refused(status.message),
            Error::Api(status) if status.is_not_found() => Self::Unserved,
            error => Self::Broken(error),
        }
    }
}

/// An event of one run of a watch. Run numbers are never reused.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) scope: Arc<WatchScope>,
    pub(super) run: u64,
    pub(super) event: ScopeEvent,
}

/// A task that is aborted on drop.
#[derive(Debug)]
pub(super) struct Task(pub(super) JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts a run of a watch.
pub(super) fn start(
    client: Client,
    scope: Arc<WatchScope>,
    watch: &Watch,
    number: u64,
    to: mpsc::Sender<Message>,
) -> Task {
    let config = config(watch);
    let run = Run { client, scope, resource: Arc::clone(&watch.resource), config, number, to };
    Task(tokio::spawn(async move {
        while run.follow().await.is_some() {
            tokio::time::sleep(RESTART_DELAY).await;
        }
    }))
}

fn config(watch: &Watch) -> watcher::Config {
    watcher::Config {
        label_selector: (!watch.selector.is_empty()).then(|| watch.selector.to_string()),
        field_selector: field_selector(watch),
        timeout: Some(WATCH_SECONDS),
        page_size: Some(PAGE),
        // Paged lists work with every version of Kubernetes.
        initial_list_strategy: InitialListStrategy::ListWatch,
        // A list from the cache of an API server may be older than a request to catch up.
        list_semantic: ListSemantic::MostRecent,
        ..watcher::Config::default()
    }
}

/// Returns the field selector of a watch.
fn field_selector(watch: &Watch) -> Option<String> {
    let bound = watch.bound_only.then(|| "spec.nodeName!=".to_owned());
    let excluded = watch.excluded.iter().map(|namespace| format!("metadata.namespace!={namespace}"));
    let terms: Vec<String> = bound.into_iter().chain(excluded).collect();
    (!terms.is_empty()).then(|| terms.join(","))
}

/// One run of a watch.
struct Run {
    client: Client,
    scope: Arc<WatchScope>,
    resource: Arc<Resource>,
    config: watcher::Config,
    number: u64,
    to: mpsc::Sender<Message>,
}

/// A part of a list under construction.
#[derive(Default)]
struct Part {
    objects: Vec<ObservedObject>,
    bytes: usize,
}

impl Part {
    /// Adds an object. Returns the part if it is full.
    fn add(&mut self, object: ObservedObject) -> Option<ScopeEvent> {
        self.bytes += object.body.len();
        self.objects.push(object);
        if self.objects.len() < PART_OBJECTS && self.bytes < PART_BYTES { None } else { self.take() }
    }

    fn take(&mut self) -> Option<ScopeEvent> {
        let Self { objects, .. } = std::mem::take(self);
        (!objects.is_empty()).then_some(ScopeEvent::Listed(objects))
    }
}

impl Run {
    /// Lists and watches until a restart is necessary; `None` if the receiver was dropped.
    async fn follow(&self) -> Option<()> {
        let mut part = Part::default();
        let events =
            watcher(api(self.client.clone(), &self.resource, &self.scope.namespaces), self.config.clone());
        let mut events = std::pin::pin!(events.default_backoff());
        while let Some(event) = events.next().await {
            let needs_relist = needs_relist(&event);
            for event in self.convert(event, &mut part).into_iter().flatten() {
                let message = Message { scope: Arc::clone(&self.scope), run: self.number, event };
                self.to.send(message).await.ok()?;
            }
            if needs_relist {
                break;
            }
        }
        Some(())
    }

    /// Translates an event of the client library.
    fn convert(
        &self,
        event: watcher::Result<Event<DynamicObject>>,
        part: &mut Part,
    ) -> [Option<ScopeEvent>; 2] {
        let event = match event {
            Ok(Event::Init) => {
                *part = Part::default();
                Some(ScopeEvent::ListStarted)
            }
            Ok(Event::InitApply(object)) => {
                observed(&self.resource, object).and_then(|object| part.add(object))
            }
            Ok(Event::InitDone) => return [part.take(), Some(ScopeEvent::Complete)],
            Ok(Event::Apply(object)) => observed(&self.resource, object).map(ScopeEvent::Updated),
            Ok(Event::Delete(object)) => observed(&self.resource, object).map(ScopeEvent::Deleted),
            Err(error) => failure(error).map(ScopeEvent::Failed),
        };
        [event, None]
    }
}

pub(super) fn api(client: Client, resource: &Resource, namespaces: &Namespaces) -> Api<DynamicObject> {
    let kind = api_discovery::api_resource(resource);
    match namespaces {
        Namespaces::All => Api::all_with(client, &kind),
        Namespaces::One(name) => Api::namespaced_with(client, name, &kind),
    }
}

/// Returns whether a failed watch must restart with a list. When a watch request fails, the watcher
/// repeats the same one: forever if its version has expired, and silently once access is granted
/// again.
pub(super) fn needs_relist(event: &watcher::Result<Event<DynamicObject>>) -> bool {
    let Err(watcher::Error::WatchStartFailed(Error::Api(status))) = event else { return false };
    status.code == 410 || status.is_forbidden() || status.is_not_found()
}

/// Classifies an error; `None` if a relist recovers from it.
pub(super) fn failure(error: watcher::Error) -> Option<Failure> {
    let error = match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => error,
        watcher::Error::WatchError(status) => Error::Api(status),
        watcher::Error::NoResourceVersion => {
            let why = "kind not watchable: its lists have no resourceVersion";
            return Some(Failure::Refused(why.to_owned()));
        }
    };
    let expired = matches!(&error, Error::Api(status) if status.code == 410);
    (!expired).then(|| Failure::of(error))
}

/// Converts an object, without its managed fields; `None` if it has no UID or is invalid.
fn observed(resource: &Arc<Resource>, mut object: DynamicObject) -> Option<ObservedObject> {
    object.metadata.managed_fields = None;
    // Items of a list lack `apiVersion` and `kind`.
    object.types = Some(TypeMeta { api_version: resource.api_version(), kind: resource.kind.clone() });
    let object: Object = serde_json::to_value(&object).and_then(serde_json::from_value).ok()?;
    if object.uid().is_empty() {
        return None;
    }
    let body = object.to_json();
    let version = ResourceVersion::new(object.resource_version());
    let summary = Summary::of(&object, Arc::clone(resource), version);
    Some(ObservedObject { summary: Arc::new(summary.with_size(body.len())), body: body.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::{Selector, kinds};
    use kube::core::Status;
    use serde_json::{Value, json};
    use std::collections::BTreeSet;

    fn config_map(metadata: &Value) -> Option<ObservedObject> {
        let resource = Arc::new(kinds::by_word("cm").unwrap().resource());
        let object = json!({"metadata": metadata, "data": {"mode": "fast"}});
        observed(&resource, serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_listed_object_gets_its_type_and_loses_managed_fields() {
        let metadata = json!({"name": "a", "namespace": "shop", "uid": "u", "resourceVersion": "7", "labels": {"x": "y"}});
        let mut managed = metadata.clone();
        managed["managedFields"] = json!([{"manager": "m", "operation": "Apply"}]);
        let observed_object = config_map(&managed).unwrap();
        let expected =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"mode": "fast"}});
        assert_eq!(serde_json::from_str::<Value>(&observed_object.body).unwrap(), expected);
        let summary = observed_object.summary;
        assert_eq!((&*summary.uid, summary.version.as_str(), &*summary.name), ("u", "7", "a"));
        assert_eq!(summary.size, observed_object.body.len());
        assert!(
            config_map(&json!({"name": "a", "namespace": "shop"})).is_none(),
            "without a UID it is no object"
        );
    }

    #[test]
    fn each_list_is_the_most_recent_state() {
        let watch = Watch {
            resource: Arc::new(kinds::by_word("cm").unwrap().resource()),
            selector: Selector::default(),
            bound_only: false,
            excluded: BTreeSet::new(),
            origins: BTreeSet::new(),
        };
        let config = config(&watch);
        assert_eq!(config.list_semantic, ListSemantic::MostRecent);
        assert_eq!(config.initial_list_strategy, InitialListStrategy::ListWatch);
    }

    #[test]
    fn parts_of_a_list_are_bounded_in_objects_and_bytes() {
        let object = |bytes: usize| {
            let observed_object = config_map(&json!({"uid": "u"})).unwrap();
            ObservedObject { body: "x".repeat(bytes).into(), ..observed_object }
        };
        let mut part = Part::default();
        assert!((1..PART_OBJECTS).all(|_| part.add(object(1)).is_none()));
        assert!(
            matches!(part.add(object(1)), Some(ScopeEvent::Listed(objects)) if objects.len() == PART_OBJECTS)
        );
        assert!(part.take().is_none());
        assert!(part.add(object(1)).is_none());
        assert!(
            matches!(part.add(object(PART_BYTES)), Some(ScopeEvent::Listed(objects)) if objects.len() == 2)
        );
    }

    #[test]
    fn only_a_watch_that_cannot_start_needs_a_relist() {
        for (code, reason, relists, expected) in [
            (403, "Forbidden", true, "Some(Refused(\"why\"))"),
            (404, "NotFound", true, "Some(Unserved)"),
            (410, "Expired", true, "None"),
            (500, "InternalError", false, "Some(Broken("),
        ] {
            let error = || Error::Api(Status::failure("why", reason).with_code(code).boxed());
            assert_eq!(needs_relist(&Err(watcher::Error::WatchStartFailed(error()))), relists, "{code}");
            let event = format!("{:?}", failure(watcher::Error::WatchStartFailed(error())));
            assert!(event.starts_with(expected), "{code}: {event}");
            assert!(!needs_relist(&Err(watcher::Error::WatchFailed(error()))));
        }
    }
}
