//! All watches of the informer: starts, restarts and stops them, and keeps their states.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::Client;
use tokio::sync::mpsc;

use super::object_index::WatchId;
use super::plan::{KindId, Problem, Watch, WatchScope};
use super::watch_run::{self, Message, ScopeEvent};
use super::watch_state::{RunningWatch, StoppedWatch, WatchState};
use edgesync_object::Resource;
use edgesync_placement::Unread;

/// Capacity of the channel from the watches.
const EVENTS: usize = 16;

/// Running and stopped watches, at most one of either per scope.
pub(super) struct Watches {
    client: Client,
    running: BTreeMap<WatchScope, RunningWatch>,
    /// Stopped watches, kept until their objects are covered by others or no longer of interest.
    stopped: BTreeMap<WatchScope, StoppedWatch>,
    /// The last assigned number of a watch.
    last_id: u32,
    /// The last assigned number of a run.
    last_run: u64,
    events: mpsc::Receiver<Message>,
    sender: mpsc::Sender<Message>,
}

/// Effect of an event on the state of its watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateChange {
    /// The state is the same.
    None,
    /// The watch is now refused, or no longer refused. A refused watch does not cover others.
    Refusal,
    Other,
}

impl Watches {
    pub(super) fn new(client: Client) -> Self {
        let (sender, events) = mpsc::channel(EVENTS);
        let (running, stopped) = (BTreeMap::new(), BTreeMap::new());
        Self { client, running, stopped, last_id: 0, last_run: 0, events, sender }
    }

    /// Waits for the next event of a running watch. Drops events of earlier runs. Cancel-safe.
    pub(super) async fn next(&mut self) -> (Arc<WatchScope>, WatchId, ScopeEvent) {
        loop {
            let Some(Message { scope, run, event }) = self.events.recv().await else {
                // `self` holds a sender.
                return std::future::pending().await;
            };
            if let Some(current) = self.running.get(&*scope).filter(|running| running.run == run) {
                return (scope, current.id, event);
            }
        }
    }

    /// Starts and stops watches to match a plan. A watch that sends the same request goes on.
    pub(super) fn apply(&mut self, plan: BTreeMap<WatchScope, Watch>) {
        for (scope, RunningWatch { id, watch, .. }) in
            self.running.extract_if(.., |scope, _| !plan.contains_key(scope))
        {
            self.stopped.insert(scope, StoppedWatch { id, resource: watch.resource });
        }
        for (scope, watch) in plan {
            match self.running.get_mut(&scope) {
                Some(running) if running.watch.has_same_request(&watch) => {
                    running.watch.origins = watch.origins;
                }
                _ => self.start(scope, watch),
            }
        }
    }

    /// Starts or restarts a watch. It keeps its number, so its previous objects are dropped when a
    /// complete list lacks them.
    fn start(&mut self, scope: WatchScope, watch: Watch) {
        let before = self.running.remove(&scope);
        let stopped = self.stopped.remove(&scope).map(|stopped| stopped.id);
        let id = before.as_ref().map(|before| before.id).or(stopped).unwrap_or_else(|| {
            self.last_id += 1;
            WatchId(self.last_id)
        });
        // An unchanged watch keeps its state, so that nothing waits for one that fails.
        let state = before.filter(|before| before.watch.has_same_request(&watch)).map(|before| before.state);
        let state = state.unwrap_or(WatchState::Healthy);
        self.last_run += 1;
        let run = self.last_run;
        let task =
            watch_run::start(self.client.clone(), Arc::new(scope.clone()), &watch, run, self.sender.clone());
        self.running.insert(scope, RunningWatch { id, run, watch, state, is_listed: false, _task: task });
    }

    /// Restarts every running watch with a new list.
    pub(super) fn relist_all(&mut self) {
        self.relist(|_| true);
    }

    /// Relists the watches given up. A working watch is silent while nothing changes, so only a
    /// list shows that it works again.
    pub(super) fn relist_given_up(&mut self) {
        self.relist(|running| running.is_listed && running.state.is_given_up());
    }

    fn relist(&mut self, which: impl Fn(&RunningWatch) -> bool) {
        let chosen = self.running.iter().filter(|(_, running)| which(running));
        let chosen: Vec<(WatchScope, Watch)> =
            chosen.map(|(scope, running)| (scope.clone(), running.watch.clone())).collect();
        for (scope, watch) in chosen {
            self.start(scope, watch);
        }
    }

    /// Records that the list of a watch is complete.
    pub(super) fn set_listed(&mut self, scope: &WatchScope) {
        if let Some(running) = self.running.get_mut(scope) {
            running.is_listed = true;
        }
    }

    /// Records that a watch works.
    pub(super) fn set_healthy(&mut self, scope: &WatchScope) -> StateChange {
        self.set_state(scope, |_| WatchState::Healthy)
    }

    /// Records that the API server denies a watch, with its message.
    pub(super) fn set_refused(&mut self, scope: &WatchScope, cause: String) -> StateChange {
        self.set_state(scope, |_| WatchState::Refused(cause))
    }

    /// Counts a failure of a watch. Returns also whether it is the first one in a row.
    pub(super) fn add_failure(&mut self, scope: &WatchScope, cause: String) -> (StateChange, bool) {
        let change = self.set_state(scope, |before| before.after_failure(cause));
        let state = self.running.get(scope).map(|running| &running.state);
        (change, matches!(state, Some(WatchState::Failing(1, _))))
    }

    fn set_state(&mut self, scope: &WatchScope, next: impl FnOnce(&WatchState) -> WatchState) -> StateChange {
        let Some(running) = self.running.get_mut(scope) else { return StateChange::None };
        let state = next(&running.state);
        if running.state == state {
            return StateChange::None;
        }
        tracing::debug!(%scope, ?state, "watch state changed");
        let before = std::mem::replace(&mut running.state, state);
        if before.is_refused() == running.state.is_refused() {
            StateChange::Other
        } else {
            StateChange::Refusal
        }
    }

    /// Returns the scopes that the API server refuses.
    pub(super) fn refused(&self) -> BTreeSet<WatchScope> {
        let refused = self.running.iter().filter(|(_, running)| running.state.is_refused());
        refused.map(|(scope, _)| scope.clone()).collect()
    }

    /// Returns whether each watch is listed, or need not be waited for.
    pub(super) fn are_synced(&self) -> bool {
        self.running.values().all(RunningWatch::is_synced)
    }

    /// Returns the problems and unread objects of the watches that are refused or given up.
    pub(super) fn problems(&self) -> impl Iterator<Item = (Vec<Problem>, Unread)> {
        self.running.iter().filter_map(|(scope, running)| running.problems(scope))
    }

    /// Drops stopped watches whose objects are no longer of interest, or of a covered kind whose
    /// other watches are all listed. Returns their numbers.
    pub(super) fn release_stopped(
        &mut self,
        is_of_interest: impl Fn(&Resource) -> bool,
        is_covered: impl Fn(&KindId) -> bool,
    ) -> Vec<WatchId> {
        let running = &self.running;
        let are_listed = |kind: &KindId| {
            running.iter().filter(|(scope, _)| scope.kind == *kind).all(|(_, running)| running.is_listed)
        };
        let is_over = |scope: &WatchScope, stopped: &mut StoppedWatch| {
            !is_of_interest(&stopped.resource) || (is_covered(&scope.kind) && are_listed(&scope.kind))
        };
        self.stopped.extract_if(.., is_over).map(|(_, stopped)| stopped.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Namespaces, Origin};
    use super::*;
    use edgesync_object::{Selector, kinds};
    use kube::Config;

    /// Watches of a cluster that refuses connections.
    fn watches() -> Watches {
        Watches::new(Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap())
    }

    fn scope(namespace: &str) -> WatchScope {
        let resource = kinds::by_word("cm").unwrap().resource();
        WatchScope { kind: KindId::of(&resource), namespaces: Namespaces::One(namespace.into()) }
    }

    fn plan(namespaces: &[&str], selector: &str) -> BTreeMap<WatchScope, Watch> {
        let watch = Watch {
            resource: Arc::new(kinds::by_word("cm").unwrap().resource()),
            selector: selector.parse::<Selector>().unwrap(),
            bound_only: false,
            excluded: BTreeSet::new(),
            origins: BTreeSet::from([Origin::Pods]),
        };
        namespaces.iter().map(|namespace| (scope(namespace), watch.clone())).collect()
    }

    fn runs(watches: &Watches) -> Vec<(u32, u64)> {
        watches.running.values().map(|running| (running.id.0, running.run)).collect()
    }

    #[tokio::test]
    async fn only_watches_with_another_request_restart() {
        let mut watches = watches();
        watches.apply(plan(&["a", "b"], "tier=x"));
        assert_eq!(runs(&watches), [(1, 1), (2, 2)]);
        watches.apply(plan(&["a", "b"], "tier=x"));
        assert_eq!(runs(&watches), [(1, 1), (2, 2)]);
        watches.apply(plan(&["a"], "tier"));
        assert_eq!(runs(&watches), [(1, 3)]);
        watches.apply(plan(&["a", "b"], "tier"));
        assert_eq!(runs(&watches), [(1, 3), (2, 4)], "a watch that was stopped keeps its number");
    }

    #[tokio::test]
    async fn events_of_earlier_runs_are_dropped() {
        let mut watches = watches();
        watches.apply(plan(&["a"], ""));
        watches.relist_all();
        for (run, event) in [(1, ScopeEvent::Listed(Vec::new())), (2, ScopeEvent::Complete)] {
            let scope = Arc::new(scope("a"));
            watches.sender.send(Message { scope, run, event }).await.unwrap();
        }
        loop {
            match watches.next().await {
                (_, id, ScopeEvent::Complete) => break assert_eq!(id, WatchId(1)),
                // The watch itself cannot connect.
                (_, _, ScopeEvent::ListStarted | ScopeEvent::Failed(_)) => {}
                (_, _, event) => panic!("{event:?}"),
            }
        }
    }

    #[tokio::test]
    async fn states_change_by_refusals_and_failures() {
        let mut watches = watches();
        watches.apply(plan(&["a"], ""));
        let a = scope("a");
        assert_eq!(watches.set_healthy(&a), StateChange::None);
        assert_eq!(watches.set_refused(&a, "no".to_owned()), StateChange::Refusal);
        assert_eq!(watches.refused(), BTreeSet::from([a.clone()]));
        assert!(watches.are_synced() && watches.problems().count() == 1);
        assert_eq!(watches.add_failure(&a, "cut".to_owned()), (StateChange::Refusal, true));
        assert!(!watches.are_synced() && watches.problems().count() == 0);
        assert_eq!(watches.add_failure(&a, "cut".to_owned()), (StateChange::Other, false));
        assert_eq!(watches.set_healthy(&a), StateChange::Other);
        assert_eq!(watches.set_healthy(&scope("b")), StateChange::None, "it is not running");
        watches.set_listed(&a);
        assert!(watches.are_synced());
    }

    #[tokio::test]
    async fn only_listed_watches_that_were_given_up_are_relisted() {
        let mut watches = watches();
        watches.apply(plan(&["a", "b", "c"], ""));
        for namespace in ["a", "b"] {
            watches.set_listed(&scope(namespace));
        }
        for _ in 0..3 {
            watches.add_failure(&scope("b"), "cut".to_owned());
            watches.add_failure(&scope("c"), "cut".to_owned());
        }
        watches.relist_given_up();
        assert_eq!(runs(&watches), [(1, 1), (2, 4), (3, 3)]);
        assert_eq!(watches.problems().count(), 2, "a restarted watch keeps its state");
    }

    #[tokio::test]
    async fn a_stopped_watch_is_released_once_others_cover_its_objects() {
        let mut watches = watches();
        watches.apply(plan(&["a"], ""));
        watches.apply(plan(&["b"], ""));
        assert_eq!(watches.release_stopped(|_| true, |_| true), [], "the other one is not listed");
        watches.set_listed(&scope("b"));
        assert_eq!(watches.release_stopped(|_| true, |_| false), []);
        assert_eq!(watches.release_stopped(|_| true, |_| true), [WatchId(1)]);
        watches.apply(plan(&[], ""));
        assert_eq!(watches.release_stopped(|_| false, |_| false), [WatchId(2)]);
    }
}
