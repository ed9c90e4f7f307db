//! What goes on behind the API of the cloud: the kinds of CustomResourceDefinitions are served,
//! dependents and namespaces collected.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::CloudObjects;
use super::collect::Collector;
use super::definitions::Definitions;
use edgesync_object::status::Result;
use edgesync_runtime::chain;

/// The tasks behind the API. They end when this is dropped.
#[derive(Debug)]
pub struct Upkeep {
    tasks: JoinSet<()>,
}

impl Upkeep {
    /// Makes the namespaces that every cluster has and serves the kinds that are defined, from now
    /// on as they change.
    ///
    /// # Errors
    /// The store's, as the API says it.
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

    /// Starts what reads every object: the collector, and one look through the database.
    pub fn read_all(&mut self, objects: &Arc<CloudObjects>) {
        let store = objects.store().clone();
        self.tasks.spawn(Collector::new(Arc::clone(objects), Arc::clone(objects.namespaces())).run());
        self.tasks.spawn(async move {
            match store.look_through().await {
                Ok(seen) => {
                    tracing::info!(objects = seen.objects, changes = seen.changes, "the database is sound");
                }
                Err(error) => tracing::error!(error = chain(&error), "the database was not looked through"),
            }
        });
    }
}
