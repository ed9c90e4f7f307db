//! Merged, ordered stream of a cluster's changes. Watches start and stop as rules and served kinds
//! change.
//!
//! A read failure never deletes an object. Only a delete event, or a complete list of the same
//! watch that reported the object before, does.

use std::sync::Arc;

use tokio::sync::{Notify, mpsc, watch};

use super::access::Cluster;
use super::informer::Informer;
use super::item::Item;
use super::plan::Interest;
use super::watch_run::Task;

/// Capacity of the channel to the consumer.
const ITEMS: usize = 16;

/// A subscription to a cluster; ends on drop.
#[derive(Debug)]
pub struct Feed {
    items: mpsc::Receiver<Item>,
    requests: watch::Sender<u64>,
    restore_suspected: Arc<Notify>,
    _informer: Task,
}

impl Feed {
    /// Follows these interests, which include [`Interest::fleet`], and those of rules stored as
    /// objects of the cluster. Placeable objects in the namespaces `reserved` are not read:
    /// they are those of edgesync itself.
    #[must_use]
    pub fn new(cluster: Cluster, interests: Vec<Interest>, reserved: Vec<Arc<str>>) -> Self {
        let (to, items) = mpsc::channel(ITEMS);
        let (requests, requested) = watch::channel(0);
        let restore_suspected = Arc::new(Notify::new());
        let informer = Informer::new(cluster, interests, reserved, to, Arc::clone(&restore_suspected));
        let informer = tokio::spawn(async move {
            // An error means that the consumer was dropped.
            let _ = informer.run(requested).await;
        });
        Self { items, requests, restore_suspected, _informer: Task(informer) }
    }

    /// Waits for the next item. Cancel-safe.
    pub async fn next(&mut self) -> Item {
        match self.items.recv().await {
            Some(item) => item,
            None => std::future::pending().await,
        }
    }

    /// Requests an [`Item::CaughtUp`] for the current state of the cluster. Returns the number of
    /// the request, from 1. One item answers all requests made before the cluster was read.
    ///
    /// Only a relist proves that a watch has missed nothing, because a watch is silent when nothing
    /// happens and when it lags. A catch-up therefore costs as much as a start; concurrent requests
    /// share one.
    pub fn catch_up(&mut self) -> u64 {
        self.requests.send_modify(|requested| *requested += 1);
        *self.requests.borrow()
    }
    /// Accepts older versions as changes from now on, because the cluster turned out to be restored
    /// from a backup. The caller also requests a catch-up.
    pub(crate) fn accept_older_versions(&self) {
        self.restore_suspected.notify_one();
    }
}
