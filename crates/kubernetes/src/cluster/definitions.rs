//! Watch of CustomResourceDefinitions. Notifies discovery of each change, and shows the API groups
//! of the cluster's own store.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::StreamExt as _;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, PartialObjectMeta};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::sync::{Notify, watch};

use super::store_version::{self, Groups};
use super::watch_run::{Task, WATCH_SECONDS};

type Definition = PartialObjectMeta<DynamicObject>;

/// The watch; ends on drop.
pub(super) struct Definitions {
    /// `None` until the definitions are listed, or unreadable.
    groups: watch::Receiver<Option<Groups>>,
    _task: Task,
}

impl Definitions {
    /// Starts the watch. `changed` is notified of each change.
    pub(super) fn watch(client: Client, changed: Arc<Notify>) -> Self {
        let resource = ApiResource {
            group: "apiextensions.k8s.io".to_owned(),
            version: "v1".to_owned(),
            api_version: "apiextensions.k8s.io/v1".to_owned(),
            kind: "CustomResourceDefinition".to_owned(),
            plural: "customresourcedefinitions".to_owned(),
        };
        let api = Api::<Definition>::all_with(client, &resource);
        let (sender, groups) = watch::channel(None);
        let task = tokio::spawn(async move {
            let events = watcher(api, watcher::Config::default().timeout(WATCH_SECONDS));
            let mut events = std::pin::pin!(events.default_backoff());
            let mut names = Names::default();
            while let Some(event) = events.next().await {
                let has_changed = match names.apply(event) {
                    Outcome::Partial => continue,
                    outcome => outcome == Outcome::Changed,
                };
                sender.send_replace(Some(names.groups()));
                if has_changed {
                    changed.notify_one();
                }
            }
        });
        Self { groups, _task: Task(task) }
    }

    /// Returns the API groups of the cluster's own store, once known. Without permission to list
    /// definitions, these are the groups of Kubernetes.
    pub(super) fn groups(&self) -> impl Future<Output = Groups> + Send + use<> {
        let mut groups = self.groups.clone();
        async move {
            let known = groups.wait_for(Option::is_some).await;
            known.ok().and_then(|known| known.clone()).unwrap_or_default()
        }
    }
}

/// The names of all definitions.
#[derive(Debug, Default)]
struct Names {
    known: BTreeSet<String>,
    /// The names of a list in progress.
    listed: BTreeSet<String>,
}

/// Effect of an event on the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// A list is in progress.
    Partial,
    /// The names are known, and definitions may have changed.
    Changed,
    /// The watch failed. Without permission, periodic discovery applies.
    Failed,
}

impl Names {
    fn apply(&mut self, event: watcher::Result<Event<Definition>>) -> Outcome {
        match event {
            Ok(Event::Init) => {
                self.listed.clear();
                return Outcome::Partial;
            }
            Ok(Event::InitApply(definition)) => {
                self.listed.extend(definition.metadata.name);
                return Outcome::Partial;
            }
            Ok(Event::InitDone) => self.known = std::mem::take(&mut self.listed),
            Ok(Event::Apply(definition)) => self.known.extend(definition.metadata.name),
            Ok(Event::Delete(definition)) => {
                self.known.remove(&definition.metadata.name.unwrap_or_default());
            }
            Err(_) => return Outcome::Failed,
        }
        Outcome::Changed
    }

    fn groups(&self) -> Groups {
        store_version::groups(self.known.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn definition(name: &str) -> Definition {
        serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
    }

    #[test]
    fn groups_of_definitions_follow_lists_and_changes() {
        let mut names = Names::default();
        let groups = |names: &Names| {
            let groups = names.groups();
            ["lab.io", "shop.io", "new.io"].map(|group| groups.contains(group))
        };
        assert_eq!(names.apply(Ok(Event::Init)), Outcome::Partial);
        for name in ["widgets.lab.io", "gears.lab.io", "orders.shop.io"] {
            assert_eq!(names.apply(Ok(Event::InitApply(definition(name)))), Outcome::Partial);
        }
        assert_eq!(groups(&names), [false; 3], "the list is incomplete");
        assert_eq!(names.apply(Ok(Event::InitDone)), Outcome::Changed);
        assert_eq!(groups(&names), [true, true, false]);
        names.apply(Ok(Event::Apply(definition("things.new.io"))));
        names.apply(Ok(Event::Delete(definition("widgets.lab.io"))));
        names.apply(Ok(Event::Delete(definition("orders.shop.io"))));
        assert_eq!(groups(&names), [true, false, true]);
        assert_eq!(names.apply(Err(watcher::Error::NoResourceVersion)), Outcome::Failed);
        assert_eq!(groups(&names), [true, false, true]);
        names.apply(Ok(Event::Init));
        names.apply(Ok(Event::InitDone));
        assert_eq!(groups(&names), [false; 3]);
    }

    #[tokio::test]
    async fn groups_are_known_although_definitions_are_unreadable() {
        // A cluster that refuses connections.
        let client = Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        let definitions = Definitions::watch(client, Arc::default());
        assert!(definitions.groups().await.contains("apps"));
    }
}
