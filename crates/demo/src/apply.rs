//! Applies the demo's objects over a few connections, and can hold back the last ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::DemoError;
use super::objects::object;
use edgesync_api::{Address, Client};

/// Parallel connections: objects that arrive together are committed together.
const CONNECTIONS: u32 = 8;

/// Objects being applied. Dropping it stops the work.
pub(super) struct ApplyJob {
    tasks: JoinSet<Result<(), DemoError>>,
    shared: Arc<Shared>,
}

struct Shared {
    next: AtomicU32,
    applied: AtomicU32,
    allowed: Semaphore,
    objects: u32,
    node: &'static str,
}

impl ApplyJob {
    /// Starts creating this many objects; after `allowed` of them it waits for [`Self::allow`].
    pub(super) fn start(cloud: &Address, objects: u32, allowed: u32, node: &'static str) -> Self {
        let shared = Arc::new(Shared {
            next: AtomicU32::new(0),
            applied: AtomicU32::new(0),
            allowed: Semaphore::new(allowed as usize),
            objects,
            node,
        });
        let mut tasks = JoinSet::new();
        for _ in 0..CONNECTIONS {
            tasks.spawn(apply(Client::new(cloud.clone()), shared.clone()));
        }
        Self { tasks, shared }
    }

    /// Releases the remaining objects.
    pub(super) fn allow(&self) {
        self.shared.allowed.add_permits(self.shared.objects as usize);
    }

    /// Waits until every object is applied.
    ///
    /// # Errors
    /// The cloud side refuses an object or does not answer.
    pub(super) async fn finish(&mut self) -> Result<(), DemoError> {
        while let Some(ended) = self.tasks.join_next().await {
            ended.map_err(|error| DemoError::Unexpected(format!("applying: {error}")))??;
        }
        Ok(())
    }

    /// Returns the number of objects applied so far.
    pub(super) fn applied(&self) -> u64 {
        self.shared.applied.load(Ordering::Relaxed).into()
    }
}

async fn apply(client: Client, shared: Arc<Shared>) -> Result<(), DemoError> {
    loop {
        let index = shared.next.fetch_add(1, Ordering::Relaxed);
        if index >= shared.objects {
            return Ok(());
        }
        // The semaphore is never closed.
        if let Ok(permit) = shared.allowed.acquire().await {
            permit.forget();
        }
        create(&client, index, shared.node, 1).await?;
        shared.applied.fetch_add(1, Ordering::Relaxed);
    }
}

/// Creates an object through the cloud's API.
///
/// # Errors
/// The cloud side refuses the object or does not answer.
pub(super) async fn create(client: &Client, index: u32, node: &str, revision: u32) -> Result<(), DemoError> {
    let object = object(index, node, revision);
    client.post::<Value>(&object.collection, &object.body).await?;
    Ok(())
}

/// Updates an object through the cloud's API.
///
/// # Errors
/// As [`create`].
pub(super) async fn change(client: &Client, index: u32, node: &str, revision: u32) -> Result<(), DemoError> {
    let object = object(index, node, revision);
    client.put::<Value>(&object.path(), &object.body).await?;
    Ok(())
}

/// Deletes an object through the cloud's API.
///
/// # Errors
/// As [`create`].
pub(super) async fn delete(client: &Client, index: u32, node: &str) -> Result<(), DemoError> {
    client.delete::<Value>(&object(index, node, 1).path(), None).await?;
    Ok(())
}
