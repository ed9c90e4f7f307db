//! Background tasks of the cloud's API: serves the kinds of CustomResourceDefinitions, and runs
//! garbage collection.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::CloudObjects;
use super::collect::Collector;
use super::definitions::Definitions;
use edgesync_object::status::Result;
use edgesync_runtime::chain;

/// Background tasks, aborted on drop.
#[derive(Debug)]
pub struct Upkeep {
    tasks: JoinSet<()>,
}

impl Upkeep {
    /// Creates the system namespaces, and starts to serve defined kinds as they change.
    ///
    /// # Errors
    /// Those of the store, as API statuses.
    pub async fn start(objects: &Arc<CloudObjects>) -> Result<Self> {
        let namespaces = objects.namespaces();
        namespaces.ensure_system(&**objects).await?;
        let served = Arc::clone(objects);
        let serve = Box::new(move |kinds: Vec<_>| served.set_custom(&kinds));
        let definitions = Definitions::start(Arc::clone(objects), serve).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(definitions.run());
        Ok(Self { tasks })
    }

    /// Starts the tasks that read every object: the collector, and an integrity check of the
    /// database.
    pub fn read_all(&mut self, objects: &Arc<CloudObjects>) {
        let store = objects.store().clone();
        self.tasks.spawn(Collector::new(Arc::clone(objects), Arc::clone(objects.namespaces())).run());
        self.tasks.spawn(async move {
            match store.look_through().await {
                Ok(seen) => {
                    tracing::info!(objects = seen.objects, changes = seen.changes, "database check passed");
                }
                Err(error) => tracing::error!(error = chain(&error), "database check failed"),
            }
        });
    }
}
