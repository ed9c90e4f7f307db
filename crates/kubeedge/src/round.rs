//! Rounds: relists that compare the held objects with CloudCore's, which never compares by itself.
//!
//! A round first lists everything that the dynamic controller can list (the watched kinds, the
//! rules with `*`, the Pods of the node), page by page. Then it walks over the held objects: an
//! object missing in a complete list is removed, and a ConfigMap or Secret outside of all lists is
//! queried, as are desired names that are not held. An urgent round ([`RoundReason::is_urgent`])
//! runs as fast as CloudCore answers. A routine one has a budget, so that everything is compared
//! once within `verify_interval`. A session with the previous database lists only new rules and
//! compares nothing: its walk, if any, only reads the database.
//!
//! A list describes one moment: a held object newer than the list stays.
//!
//! CloudCore crashes on a watch of a kind that the API server does not know, and hangs on one that
//! it may not list. Invariant: a watch is requested only after a list of the same key was approved;
//! without a full list, one of a single item is requested first.

mod budget;
mod list;
mod proof;
mod saved_state;
mod schedule;
mod scope;
mod walk;
mod watch;

use std::time::Duration;

use super::delivery::Delivery;
use super::lease::Marker;
use super::message::Incoming;
use super::outbound::Outbound;
use super::queries::Queries;
use super::types::{BridgeNotice, DynamicController, HeldPage, RoundReason};
use edgesync_protocol::change::Change;
use edgesync_protocol::timing::{Now, earlier};

use budget::Budget;
use list::{Listing, PageSize};
use proof::Proof;
use schedule::{Schedule, SuspendedWalk};
use scope::{Listed, Target};
use walk::Walk;
use watch::Watches;

/// The burst of queries of a routine round.
pub(super) const BURST: u32 = 64;
/// The least delay between a round with a failed list and the next one.
const RELIST_DELAY: Duration = Duration::from_secs(60);
/// The number of attempts before the dynamic controller counts as silent.
const ATTEMPTS: u32 = 2;

/// The stage of a round.
#[derive(Debug)]
enum Stage {
    /// Lists are requested, one after the other.
    Listing(Listing),
    /// The walk over the held objects.
    Walking(Walk),
    /// The last queries are in flight.
    Ending,
}

#[derive(Debug)]
struct Round {
    reason: RoundReason,
    targets: Vec<Target>,
    listed: Vec<Listed>,
    stage: Stage,
    /// The start of the walk.
    cursor: u64,
    compared: u64,
    differed: u64,
    /// Whether nothing was held at the start: everything held now was found by this round.
    was_empty: bool,
    /// The rules whose lists are complete.
    carried_out: Vec<u64>,
    /// Whether a list has failed for a temporary reason.
    is_incomplete: bool,
}

/// The current round and the schedule of the next ones.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    round: Option<Round>,
    schedule: Schedule,
    proof: Proof,
    watches: Watches,
    budget: Budget,
    page_size: PageSize,
    /// The number of held objects.
    rows: u64,
    pub(super) dynamic: DynamicController,
    /// Time, reason, compared, differed.
    pub(super) verified: Option<(i64, RoundReason, u64, u64)>,
    /// Whether a session is up and its Lease was compared.
    is_live: bool,
}

impl Rounds {
    /// Restores the state that an earlier run of the agent has kept in the database.
    pub(super) fn restore_state(&mut self, text: &str) {
        self.proof.restore(text);
    }

    /// Begins a round after a session start or a change of rules, and requests the watches. A
    /// pending urgent round stays urgent.
    pub(super) fn begin(&mut self, outbound: &mut Outbound, queries: &mut Queries, reason: RoundReason) {
        if self.proof.lease_compared() {
            let due_in = self.proof.due_in(outbound);
            self.schedule.restore(due_in.map(|left| outbound.at.now + left));
        }
        self.is_live = true;
        let demanded = self.schedule.take_demanded();
        let owed = self.proof.owed();
        let reason = if reason.is_urgent() { reason } else { owed.or(demanded).unwrap_or(reason) };
        if matches!(reason, RoundReason::First | RoundReason::Lost) && owed.is_none() {
            outbound.notice(BridgeNotice::Refilling(reason));
        }
        self.start(outbound, queries, reason);
    }

    /// Sets the number of held objects.
    pub(super) fn set_rows(&mut self, rows: u64) {
        self.rows = rows;
    }

    /// Records a foreign marker found in the Lease. Returns whether everything was compared since
    /// it was found, and only the marker was not written yet.
    pub(super) fn marker_found(&mut self, found: Option<&Marker>) -> bool {
        self.proof.marker_found(found)
    }

    /// Returns whether the marker in the Lease has to be replaced at once.
    pub(super) fn is_unmarked(&self) -> bool {
        self.proof.is_unmarked()
    }

    /// Handles a Lease that has the marker of this database.
    pub(super) fn marker_written(&mut self, outbound: &mut Outbound) {
        self.proof.marker_written(outbound);
    }

    fn start(&mut self, outbound: &mut Outbound, queries: &mut Queries, reason: RoundReason) {
        let now = outbound.at.now;
        self.suspend();
        self.budget.pace(now, self.rows, outbound.config.verify_interval);
        self.watches.set_desired(scope::watched(&outbound.config));
        let mut round = Round {
            reason,
            targets: scope::targets(&outbound.config, reason.compares(), self.proof.completed_rules()),
            listed: Vec::new(),
            stage: Stage::Listing(Listing::default()),
            cursor: 0,
            compared: 0,
            differed: 0,
            was_empty: self.rows == 0 && reason != RoundReason::Asked,
            carried_out: Vec::new(),
            is_incomplete: false,
        };
        if reason.is_urgent() {
            self.proof.owe(reason);
            queries.invalidate();
        }
        match self.schedule.started(reason, now + outbound.config.verify_interval) {
            Some(SuspendedWalk { cursor, compared, differed }) => {
                (round.cursor, round.compared, round.differed) = (cursor, compared, differed);
                // A resumed walk has completed its lists.
                round.targets.clear();
            }
            None if reason.compares() => queries.begin_walk(),
            None => {}
        }
        for name in outbound.config.fetch.iter().filter_map(super::FetchRule::exact) {
            queries.mark_desired(&name);
            if !queries.has(&name) {
                queries.miss(&name);
            }
        }
        round.compared += queries.query_missing(outbound);
        self.round = Some(round);
    }

    /// Ends the session: an urgent round restarts with the next one, whatever the Lease contains
    /// then.
    pub(super) fn pause(&mut self) {
        self.is_live = false;
        self.budget.stop_waiting();
        self.watches.forget();
        if let Some(Round { stage: Stage::Listing(listing), .. }) = &self.round
            && listing.is_in_flight()
        {
            // The page in flight may have been too large.
            self.page_size.shrink();
        }
        self.suspend();
    }

    /// Suspends the current round. A routine one continues later.
    fn suspend(&mut self) {
        let round = self.round.take().filter(|round| round.reason == RoundReason::Routine);
        let Some(Round { compared, differed, stage, cursor, .. }) = round else { return };
        let cursor = match stage {
            // Lists so far are dropped.
            Stage::Listing(_) if cursor == 0 => {
                self.schedule.restart();
                return;
            }
            Stage::Listing(_) => cursor,
            Stage::Walking(walk) => walk.cursor(),
            Stage::Ending => return,
        };
        self.schedule.suspend(SuspendedWalk { cursor, compared, differed });
    }

    /// Demands a round for this reason, now or with the next session.
    pub(super) fn demand(&mut self, reason: RoundReason) {
        self.schedule.demand(reason);
    }

    /// Returns whether the marker of the database may be written into the Lease: it was compared
    /// with the present one, and no urgent round is pending.
    pub(super) fn proves(&self) -> bool {
        self.proof.holds()
    }

    /// Returns the estimated work before the node is in sync: queries and rows of the walk.
    /// Announced names without a query count in any round.
    pub(super) fn pending(&self, queries: &Queries) -> u64 {
        let unasked = u64::from(queries.has_unqueried()) + u64::from(self.schedule.relist_at().is_some());
        let Some(round) = self.round.as_ref().filter(|round| round.reason != RoundReason::Routine) else {
            return unasked + queries.open_new();
        };
        let stage = match &round.stage {
            // The length of lists is unknown; a silent controller is not awaited.
            Stage::Listing(listing) => u64::from(
                round.reason.is_urgent()
                    || (round.lists_more(listing) && self.dynamic != DynamicController::Silent),
            ),
            Stage::Walking(walk) => self.rows.saturating_sub(walk.rows()).max(1),
            Stage::Ending => u64::from(round.reason.is_urgent()),
        };
        let open = if round.reason.is_urgent() { queries.open() } else { queries.open_new() };
        stage + open + unasked
    }

    /// Handles an answer of the dynamic controller to a watch or to a page of a list.
    pub(super) fn answered(
        &mut self,
        outbound: &mut Outbound,
        delivery: &mut Delivery,
        queries: &mut Queries,
        incoming: &Incoming<'_>,
    ) {
        if self.watches.answered(outbound, incoming)
            || self.list_answered(outbound, delivery, queries, incoming)
        {
            self.dynamic = DynamicController::On;
        }
    }

    /// Counts the changes caused by queries and lists.
    pub(super) fn applied(&mut self, outbound: &mut Outbound, changes: u64) {
        outbound.counters.differed += changes;
        if let Some(round) = &mut self.round {
            round.differed += changes;
        }
    }

    /// Handles an object about to be stored or removed.
    pub(super) fn changed(&mut self, change: &Change) {
        if let Some(Round { stage: Stage::Walking(walk), .. }) = &mut self.round {
            walk.changed(match change {
                Change::Put(put) => put.key(),
                // A CloudCore sends whole objects.
                Change::Patch(_) => return,
                Change::Delete(delete) => delete.key.clone(),
            });
        }
    }

    /// Handles a page of held objects.
    pub(super) fn held_read(&mut self, page: HeldPage) {
        if let Some(Round { stage: Stage::Walking(walk), .. }) = &mut self.round {
            walk.read(page);
        }
    }

    /// Handles a failed read of the rows.
    pub(super) fn read_failed(&mut self, outbound: &Outbound) {
        if let Some(Round { stage: Stage::Walking(walk), .. }) = &mut self.round {
            walk.failed(outbound.at.now + outbound.config.answer_timeout);
        }
    }

    /// Returns whether the current round, if any, may be suspended.
    fn is_suspendable(&self) -> bool {
        self.round.as_ref().is_none_or(|round| round.reason == RoundReason::Routine)
    }

    /// Returns whether new rules have to be relisted, or the Pods have to be rescanned for desired
    /// names.
    fn is_relist_due(&self, queries: &Queries, now: Now) -> bool {
        self.is_suspendable()
            && (queries.is_rescan_due(now) || self.schedule.relist_at().is_some_and(|at| at <= now))
    }

    /// Abandons unanswered requests and begins a round that is due.
    pub(super) fn tick(&mut self, outbound: &mut Outbound, queries: &mut Queries) {
        let now = outbound.at.now;
        let in_vain = self.watches.tick(outbound);
        if self.list_tick(outbound, queries) || in_vain {
            if self.dynamic != DynamicController::Silent {
                outbound.notice(BridgeNotice::DynamicControllerSilent);
            }
            self.dynamic = DynamicController::Silent;
        }
        if let Some(reason) = self.schedule.take_demanded() {
            self.start(outbound, queries, reason);
        } else if self.round.is_none() && self.schedule.routine_at().is_some_and(|at| at <= now) {
            self.start(outbound, queries, self.proof.owed().unwrap_or(RoundReason::Routine));
        }
    }

    /// Advances as far as possible without waiting.
    pub(super) fn advance(
        &mut self,
        outbound: &mut Outbound,
        delivery: &mut Delivery,
        queries: &mut Queries,
    ) {
        if !self.is_live {
            return;
        }
        self.budget.stop_waiting();
        self.watches.advance(outbound);
        if self.is_relist_due(queries, outbound.at.now) {
            self.start(outbound, queries, RoundReason::Reconnect);
        }
        while let Some(round) = &mut self.round {
            let goes_on = match &round.stage {
                Stage::Listing(_) => self.list_on(outbound, delivery, queries),
                Stage::Walking(_) => self.walk_on(outbound, delivery, queries),
                Stage::Ending => {
                    if queries.open() > 0 || delivery.has_compared() {
                        false
                    } else if queries.has_unqueried() && round.reason != RoundReason::Routine {
                        round.rescan(queries);
                        true
                    } else {
                        self.finish(outbound);
                        // Waiting changes run first.
                        false
                    }
                }
            };
            if !goes_on {
                break;
            }
        }
    }

    fn finish(&mut self, outbound: &mut Outbound) {
        let Some(round) = self.round.take() else { return };
        let Round { reason, compared, differed, is_incomplete, carried_out, .. } = round;
        outbound.counters.rounds += 1;
        if reason.compares() || compared > 0 {
            self.verified = Some((outbound.at.wall, reason, compared, differed));
            outbound.notice(BridgeNotice::Verified { reason, compared, differed });
        }
        let now = outbound.at.now;
        let is_first = if is_incomplete {
            self.schedule.failed(reason, now + outbound.config.retry_max.max(RELIST_DELAY));
            false
        } else {
            self.schedule.completed(now + outbound.config.verify_interval)
        };
        let is_comparison = reason.compares() || is_first;
        self.proof.round_ended(outbound, reason, carried_out, !is_incomplete, is_comparison);
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        if !self.is_live {
            return None;
        }
        let stage = match self.round.as_ref().map(|round| &round.stage) {
            Some(Stage::Listing(listing)) => listing.deadline(),
            Some(Stage::Walking(walk)) => walk.deadline(),
            Some(Stage::Ending) | None => None,
        };
        let next = self.schedule.deadline(self.round.is_none(), self.is_suspendable());
        earlier(earlier(earlier(stage, self.budget.deadline()), next), self.watches.deadline())
    }

    /// Returns the current round and its number of compared objects.
    pub(super) fn current(&self) -> Option<(RoundReason, u64)> {
        self.round.as_ref().map(|round| (round.reason, round.compared))
    }
}
