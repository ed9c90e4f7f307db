//! What goes on behind the API of the cloud: the kinds of CustomResourceDefinitions are served, dependents and
//! namespaces collected.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::CloudObjects;
use super::collect::Collector;
use super::definitions::Definitions;
use crate::object::status::Result;

/// The tasks behind the API. They end when this is dropped.
#[derive(Debug)]
pub struct Upkeep {
    _tasks: JoinSet<()>,
}

impl Upkeep {
    /// Makes the namespaces that every cluster has, serves the kinds that are defined, and starts the tasks.
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
        tasks.spawn(Collector::new(Arc::clone(objects), Arc::clone(namespaces)).run());
        Ok(Self { _tasks: tasks })
    }
}
