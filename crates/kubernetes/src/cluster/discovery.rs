//! Schedules API discovery: periodically, and soon after a sign that the served kinds have changed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::access::{Cluster, Unserved};
use super::definitions::Definitions;
use super::plan::Kinds;
use super::store_version::Groups;
use edgesync_object::ResourceVersion;

/// Interval of discovery without a sign that the served kinds have changed.
const INTERVAL: Duration = Duration::from_secs(30);
/// Delay of discovery after an outage or a sign that the served kinds have changed; both take the
/// cluster a while.
const DELAY: Duration = Duration::from_secs(2);

/// Discovery of the served kinds, at most one at a time.
pub(super) struct Discovery {
    cluster: Cluster,
    running: Option<Running>,
    /// Start of the next discovery.
    next: Instant,
    /// Notified when the served kinds may have changed.
    changed_kinds: Arc<Notify>,
    definitions: Definitions,
}

struct Running {
    task: JoinHandle<Result<Discovered, Unserved>>,
    /// The newest version delivered at its start.
    newest: ResourceVersion,
}

/// Result of a discovery.
pub(super) struct Discovered {
    pub(super) kinds: Kinds,
    /// The newest version that the cluster had assigned, read before the kinds: they include all
    /// that have objects up to it.
    pub(super) reached: ResourceVersion,
    /// The API groups of the cluster's own store.
    pub(super) groups: Groups,
}

impl Discovery {
    /// Schedules the first discovery at once, and watches CustomResourceDefinitions.
    pub(super) fn new(cluster: Cluster) -> Self {
        let changed_kinds = Arc::new(Notify::new());
        let definitions = Definitions::watch((*cluster.watch_client).clone(), Arc::clone(&changed_kinds));
        Self { cluster, running: None, next: Instant::now(), changed_kinds, definitions }
    }

    /// Waits for the result of a discovery. `newest` is the newest version delivered; returns the
    /// one at the start of the discovery. Cancel-safe: the next call waits for the same discovery.
    pub(super) async fn next(
        &mut self,
        newest: &ResourceVersion,
    ) -> (Result<Discovered, Unserved>, ResourceVersion) {
        loop {
            let Self { running, next, changed_kinds, .. } = self;
            let is_running = running.is_some();
            let finished = async {
                match running {
                    Some(running) => (&mut running.task).await.ok(),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                result = finished => {
                    if let (Some(result), Some(Running { newest, .. })) = (result, self.running.take()) {
                        return (result, newest);
                    }
                }
                () = sleep_until(*next), if !is_running => self.start(newest),
                () = changed_kinds.notified() => self.schedule_soon(),
            }
        }
    }

    fn start(&mut self, newest: &ResourceVersion) {
        self.next = Instant::now() + INTERVAL;
        let (cluster, groups) = (self.cluster.clone(), self.definitions.groups());
        let task = tokio::spawn(async move {
            let reached = cluster.reached().await?;
            Ok(Discovered { kinds: cluster.kinds().await?, reached, groups: groups.await })
        });
        self.running = Some(Running { task, newest: newest.clone() });
    }

    /// Schedules the next discovery soon.
    pub(super) fn schedule_soon(&mut self) {
        self.next = self.next.min(Instant::now() + DELAY);
    }

    /// Discards a running discovery and schedules another one.
    pub(super) fn restart(&mut self, at: Instant) {
        self.running = None;
        self.next = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::Config;

    /// A cluster that refuses connections.
    fn unreachable() -> Cluster {
        Cluster::at(Config::new("http://127.0.0.1:1".parse().unwrap()))
    }

    #[tokio::test]
    async fn discovery_starts_at_once_and_again_after_an_interval() {
        let mut discovery = Discovery::new(unreachable());
        let begun = Instant::now();
        let (result, newest) = discovery.next(&7.into()).await;
        assert!(matches!(result, Err(Unserved::Unreachable { .. })));
        assert_eq!(newest, 7.into());
        assert!(discovery.next >= begun + INTERVAL && discovery.running.is_none());
        discovery.schedule_soon();
        assert!(discovery.next < Instant::now() + INTERVAL);
        let soon = discovery.next;
        discovery.schedule_soon();
        assert_eq!(discovery.next, soon, "a later sign does not postpone it");
    }

    #[tokio::test]
    async fn a_result_has_the_version_at_the_start_of_its_discovery() {
        let mut discovery = Discovery::new(unreachable());
        discovery.start(&7.into());
        assert_eq!(discovery.next(&9.into()).await.1, 7.into());
        discovery.start(&7.into());
        discovery.restart(Instant::now());
        assert_eq!(discovery.next(&9.into()).await.1, 9.into(), "the earlier one is discarded");
    }
}
