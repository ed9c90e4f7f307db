//! The informer: one task that merges the events of all watches into one order, and starts and
//! stops watches as interests and served kinds change.

use std::sync::Arc;

use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

use super::access::{Cluster, Unserved};
use super::catch_up::CatchUp;
use super::discovery::{Discovered, Discovery};
use super::interests::Interests;
use super::item::Item;
use super::object_index::{ObjectIndex, WatchId};
use super::output::{Closed, Output};
use super::plan::{Interest, WatchScope};
use super::planner::Planner;
use super::store_version::StoreVersion;
use super::watch_run::{Failure, ObservedObject, ScopeEvent};
use super::watches::{StateChange, Watches};
use edgesync_object::ResourceVersion;
use edgesync_placement::Summary;

/// The informer. Each part owns its state; this type decides what follows from an event.
pub(super) struct Informer {
    cluster: Cluster,
    interests: Interests,
    planner: Planner,
    watches: Watches,
    discovery: Discovery,
    index: ObjectIndex,
    catch_up: CatchUp,
    output: Output,
    /// The newest version delivered of the cluster's own store.
    version: StoreVersion,
    /// Set when [`Item::Complete`] was sent.
    is_complete: bool,
    /// Set when problems or unread objects may differ from those sent last.
    are_problems_outdated: bool,
    /// Notified when the cluster may be restored from a backup.
    restore_suspected: Arc<Notify>,
}

impl Informer {
    pub(super) fn new(
        cluster: Cluster,
        interests: Vec<Interest>,
        reserved: Vec<Arc<str>>,
        items: mpsc::Sender<Item>,
        restore_suspected: Arc<Notify>,
    ) -> Self {
        Self {
            interests: Interests::new(interests),
            planner: Planner::new(reserved),
            watches: Watches::new((*cluster.watch_client).clone()),
            discovery: Discovery::new(cluster.clone()),
            index: ObjectIndex::default(),
            catch_up: CatchUp::new(Instant::now()),
            output: Output::new(items),
            version: StoreVersion::new(),
            is_complete: false,
            are_problems_outdated: false,
            restore_suspected,
            cluster,
        }
    }

    /// Runs until the consumer is dropped. `requests` has the number of the last catch-up request.
    pub(super) async fn run(mut self, mut requests: watch::Receiver<u64>) -> Result<(), Closed> {
        loop {
            tokio::select! {
                (scope, id, event) = self.watches.next() => self.handle_event(&scope, id, event).await?,
                (found, newest) = self.discovery.next(self.version.newest()) => {
                    self.handle_discovery(found, &newest).await?;
                }
                requested = requests.changed() => match requested {
                    Ok(()) => self.catch_up.request(*requests.borrow_and_update()),
                    Err(_) => return Err(Closed),
                },
                () = self.restore_suspected.notified() => self.index.invalidate_versions(),
                () = self.output.closed() => return Err(Closed),
            }
            self.reconcile().await?;
        }
    }

    /// Handles the result of a discovery that started when `newest` was the newest version.
    async fn handle_discovery(
        &mut self,
        found: Result<Discovered, Unserved>,
        newest: &ResourceVersion,
    ) -> Result<(), Closed> {
        let Discovered { kinds, reached, groups } = match found {
            Ok(discovered) => discovered,
            Err(error) => {
                tracing::debug!(%error, "API discovery failed");
                self.discovery.schedule_soon();
                // Failing watches report themselves.
                return match self.planner.has_kinds() {
                    true => Ok(()),
                    false => self.output.report_outage(error.to_string()).await,
                };
            }
        };
        self.planner.set_kinds(kinds);
        self.version.set_groups(groups);
        if reached.is_older_than(newest) {
            tracing::warn!(%reached, %newest, "cluster was restored from a backup: relisting");
            self.version.reset(reached.clone());
            self.index.invalidate_versions();
            self.watches.relist_all();
            self.output.send(Item::Restored).await?;
        }
        self.watches.relist_given_up();
        if self.catch_up.discovered(reached) {
            self.watches.relist_all();
        }
        Ok(())
    }

    async fn handle_event(
        &mut self,
        scope: &WatchScope,
        id: WatchId,
        event: ScopeEvent,
    ) -> Result<(), Closed> {
        if !matches!(event, ScopeEvent::ListStarted | ScopeEvent::Failed(_)) {
            self.output.end_outage();
        }
        // A partial list proves nothing about unread objects; only its end does.
        if !matches!(event, ScopeEvent::ListStarted | ScopeEvent::Failed(_) | ScopeEvent::Listed(_)) {
            let change = self.watches.set_healthy(scope);
            self.record_state_change(change);
        }
        match event {
            ScopeEvent::ListStarted => self.index.start_list(id),
            ScopeEvent::Listed(mut objects) => {
                objects.retain(|object| self.index.list(id, &object.summary));
                objects.iter().for_each(|object| self.record(object));
                if !objects.is_empty() {
                    self.output.send(Item::Listed(objects)).await?;
                }
            }
            ScopeEvent::Complete => {
                self.watches.set_listed(scope);
                let missing: Vec<Arc<Summary>> =
                    self.index.finish_list(id).into_iter().map(Arc::new).collect();
                missing.iter().for_each(|summary| self.remove_rule(summary));
                if !missing.is_empty() {
                    self.output.send(Item::Unlisted(missing)).await?;
                }
            }
            ScopeEvent::Updated(object) => {
                if self.index.set(id, &object.summary) {
                    self.record(&object);
                    self.output.send(Item::Updated(object)).await?;
                }
            }
            ScopeEvent::Deleted(object) => {
                if self.index.remove(id, &object.summary.uid) {
                    self.remove_rule(&object.summary);
                    self.output.send(Item::Deleted(object.summary)).await?;
                }
            }
            ScopeEvent::Failed(failure) => self.handle_failure(scope, failure).await?,
        }
        Ok(())
    }

    async fn handle_failure(&mut self, scope: &WatchScope, failure: Failure) -> Result<(), Closed> {
        let change = match failure {
            Failure::Refused(cause) => self.watches.set_refused(scope, cause),
            Failure::Unserved => {
                self.discovery.schedule_soon();
                self.watches.add_failure(scope, "kind no longer served".to_owned()).0
            }
            Failure::Broken(error) => {
                // The cluster may be a different one after the outage.
                self.discovery.schedule_soon();
                let cause = self.cluster.unserved(&error).to_string();
                let (change, is_first) = self.watches.add_failure(scope, cause.clone());
                if is_first {
                    self.output.report_outage(cause).await?;
                }
                change
            }
        };
        self.record_state_change(change);
        Ok(())
    }

    fn record_state_change(&mut self, change: StateChange) {
        if change == StateChange::Refusal {
            self.planner.invalidate();
        }
        self.are_problems_outdated |= change != StateChange::None;
    }

    /// Records the version of a new or changed object, and its interest if it is a rule.
    fn record(&mut self, object: &ObservedObject) {
        self.version.record(&object.summary);
        if self.interests.set(&object.summary) {
            self.planner.invalidate();
        }
    }

    /// Removes the interest of a deleted object, if it was a rule.
    fn remove_rule(&mut self, summary: &Summary) {
        if self.interests.remove(&summary.uid) {
            self.planner.invalidate();
        }
    }

    /// Applies the consequences of the last event.
    async fn reconcile(&mut self) -> Result<(), Closed> {
        if self.planner.take_outdated() {
            self.replan();
        }
        if !self.interests.are_active() && self.is_synced() {
            self.interests.activate();
            self.replan();
        }
        self.release_stopped().await?;
        if std::mem::take(&mut self.are_problems_outdated) {
            self.report_problems().await?;
        }
        if !self.is_complete && self.is_synced() {
            self.is_complete = true;
            self.output.send(Item::Complete).await?;
        }
        self.catch_up().await
    }

    /// Makes a new plan, and starts and stops watches to match it.
    fn replan(&mut self) {
        if let Some(plan) = self.planner.replan(&self.interests.active(), &self.watches.refused()) {
            self.are_problems_outdated = true;
            self.watches.apply(plan);
        }
    }

    /// Returns whether each watch is listed, refused or given up. Requires the kinds of the fleet.
    fn is_synced(&self) -> bool {
        self.planner.is_fleet_served() && self.watches.are_synced()
    }

    /// Releases stopped watches whose objects are no longer of interest or covered by other
    /// watches.
    async fn release_stopped(&mut self) -> Result<(), Closed> {
        let Self { watches, interests, planner, .. } = self;
        let released =
            watches.release_stopped(|resource| interests.select(resource), |kind| planner.covers(kind));
        for id in released {
            for summary in self.index.release(id) {
                self.remove_rule(&summary);
                self.output.send(Item::Deleted(Arc::new(summary))).await?;
            }
        }
        Ok(())
    }

    async fn report_problems(&mut self) -> Result<(), Closed> {
        let (mut problems, mut unread) = self.planner.problems();
        for (of_watch, objects) in self.watches.problems() {
            problems.extend(of_watch);
            unread.push(objects);
        }
        self.output.report_problems(problems, unread).await
    }

    /// Completes a catch-up round, and starts the next one if requested.
    async fn catch_up(&mut self) -> Result<(), Closed> {
        if self.is_synced()
            && let Some((question, reached)) = self.catch_up.finish_round(Instant::now())
        {
            let reached = self.version.reached(reached);
            self.output.send(Item::CaughtUp { question, reached }).await?;
        }
        if self.is_complete
            && let Some(at) = self.catch_up.start_round(Instant::now())
        {
            self.discovery.restart(at);
        }
        Ok(())
    }
}
