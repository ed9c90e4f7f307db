//! Rounds: comparing what is held with what CloudCore has, because CloudCore never asks.
//!
//! A round first lists what the dynamic controller can list (the watched kinds, the rules with `*`, the Pods of the
//! node), page by page; then it walks over what is held: an object that a complete list does not have is removed, a
//! ConfigMap or Secret that no list covers is asked for; so is what Pods and rules want and what is not held. An urgent
//! round ([`RoundReason::is_urgent`]) goes as fast as CloudCore answers. A routine one has a budget, so that everything is
//! compared once within `verify_interval`. A session with the database of before lists nothing but what rules want that
//! are new, and compares nothing: its walk, if any, only reads the database.
//!
//! A list is a statement about one moment: what is held in a newer version than that of the list stays.
//!
//! CloudCore does not survive the watch of a kind that the API server does not know, and hangs on one that it may not
//! list. So a watch is asked for only after a list of the same key was approved; where no round lists it, one of a single
//! item is asked for first.

mod budget;
mod list;
mod memory;
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
use list::Listing;
pub(super) use memory::Memory;
use scope::{Listed, Target};
use walk::Walk;
use watch::Watches;

/// Questions that a routine round may put at once.
pub(super) const BURST: u32 = 64;
/// How long after a round in which a list has failed the next one begins, at least.
const AGAIN: Duration = Duration::from_secs(60);
/// How often the dynamic controller is asked before it is believed to be silent.
const ATTEMPTS: u32 = 2;

/// Where a round stands.
#[derive(Debug)]
enum Stage {
    /// Lists are asked for, one after the other.
    Listing(Listing),
    /// What is held is walked over.
    Walking(Walk),
    /// The last questions are under way.
    Ending,
}

#[derive(Debug)]
struct Round {
    reason: RoundReason,
    targets: Vec<Target>,
    listed: Vec<Listed>,
    stage: Stage,
    /// Where the walk begins.
    cursor: u64,
    compared: u64,
    differed: u64,
    /// Whether nothing was held when it began: what is held now is what it has found.
    was_empty: bool,
    /// Rules whose lists are complete.
    carried_out: Vec<u64>,
    /// Whether a list has failed for a reason that passes.
    is_incomplete: bool,
}

/// Items of a page of a list.
#[derive(Debug)]
struct Limit(u32);

impl Default for Limit {
    fn default() -> Self {
        Self(list::LIMIT)
    }
}

/// A walk that the end of its session has interrupted.
#[derive(Debug)]
struct Interrupted {
    cursor: u64,
    compared: u64,
    differed: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    round: Option<Round>,
    /// A walk at a low rate that goes on in the next session.
    interrupted: Option<Interrupted>,
    /// What is wanted of the next round before it is due.
    demanded: Option<RoundReason>,
    next_at: Option<Now>,
    /// When lists of new rules that have failed are asked for again.
    again_at: Option<Now>,
    watches: Watches,
    budget: Budget,
    /// Whether the round waits for a token of the budget.
    waits: bool,
    /// How many objects are held.
    rows: u64,
    pub(super) dynamic: DynamicController,
    limit: Limit,
    /// When, why, compared, differed.
    pub(super) verified: Option<(i64, RoundReason, u64, u64)>,
    /// Why an urgent round is owed: until it is over the database is not proven.
    owed: Option<RoundReason>,
    /// What is kept of this in the database.
    memory: Memory,
    /// The marker that was in the Lease when the round that is owed was called for.
    found: Option<Marker>,
    /// Whether a session is up, and the Lease was compared.
    is_live: bool,
    /// Whether that was so at any time.
    is_known: bool,
}

impl Rounds {
    /// What an earlier run of the agent has kept of this in the database.
    pub(super) fn recall(&mut self, text: &str) {
        self.memory = Memory::read(text);
    }

    /// A session begins, or rules have changed: asks for the watches, and begins a round (an urgent one that is under way
    /// or demanded stays urgent).
    pub(super) fn begin(&mut self, outbound: &mut Outbound, asking: &mut Queries, reason: RoundReason) {
        if !self.is_known {
            self.next_at = self.memory.due_in(outbound).map(|left| outbound.at.now + left);
        }
        (self.is_live, self.is_known) = (true, true);
        let demanded = self.demanded.take();
        let reason = if reason.is_urgent() { reason } else { self.owed.or(demanded).unwrap_or(reason) };
        if matches!(reason, RoundReason::First | RoundReason::Lost) && self.owed.is_none() {
            outbound.notice(BridgeNotice::Refilling(reason));
        }
        self.start(outbound, asking, reason);
    }

    /// So many objects are held.
    pub(super) fn set_rows(&mut self, rows: u64) {
        self.rows = rows;
    }

    /// Which marker the Lease has, other than that of this database. Returns whether everything was compared since, and
    /// only the marker was not written yet.
    pub(super) fn is_settled(&mut self, found: Option<&Marker>) -> bool {
        self.found = found.cloned();
        self.memory.is_settled_over(found)
    }

    /// Whether the marker in the Lease is to be replaced at once.
    pub(super) fn is_unmarked(&self) -> bool {
        self.proves() && self.memory.settled_over.is_some()
    }

    /// The Lease has the marker of this database.
    pub(super) fn is_marked(&mut self, outbound: &mut Outbound) {
        if self.memory.settled_over.take().is_some() {
            self.memory.keep(outbound);
        }
    }

    fn start(&mut self, outbound: &mut Outbound, asking: &mut Queries, reason: RoundReason) {
        let now = outbound.at.now;
        self.put_off();
        self.budget.pace(now, self.rows, outbound.config.verify_interval);
        self.watches.want(scope::watched(&outbound.config));
        let mut round = Round {
            reason,
            targets: scope::targets(&outbound.config, reason.compares(), &self.memory.carried_out),
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
            self.owed = Some(reason);
            asking.doubt();
        }
        if reason != RoundReason::Routine {
            self.again_at = None;
        }
        if reason.compares() {
            self.next_at = Some(now + outbound.config.verify_interval);
            match self.interrupted.take().filter(|_| reason == RoundReason::Routine) {
                Some(Interrupted { cursor, compared, differed }) => {
                    (round.cursor, round.compared, round.differed) = (cursor, compared, differed);
                    // They have been listed.
                    round.targets.clear();
                }
                None => asking.begin_walk(),
            }
        }
        for name in outbound.config.fetch.iter().filter_map(super::FetchRule::exact) {
            asking.remember(&name);
            if !asking.has(&name) {
                asking.miss(&name);
            }
        }
        round.compared += asking.ask_for_missing(outbound);
        self.round = Some(round);
    }

    /// The connection is lost: an urgent round begins anew with the next session, whatever the Lease says then.
    pub(super) fn pause(&mut self) {
        (self.is_live, self.waits) = (false, false);
        self.watches.forget();
        if let Some(Round { stage: Stage::Listing(listing), .. }) = &self.round
            && listing.is_asked()
        {
            // It may have been the page that was too much.
            self.limit.0 = (self.limit.0 / 4).max(1);
        }
        self.put_off();
    }

    /// The round under way ends early. A routine one goes on later.
    fn put_off(&mut self) {
        let round = self.round.take().filter(|round| round.reason == RoundReason::Routine);
        let Some(Round { compared, differed, stage, cursor, .. }) = round else { return };
        let cursor = match stage {
            // What was listed so far is forgotten.
            Stage::Listing(_) if cursor == 0 => {
                self.next_at = Some(Now::ZERO);
                return;
            }
            Stage::Listing(_) => cursor,
            Stage::Walking(walk) => walk.cursor(),
            Stage::Ending => return,
        };
        self.interrupted = Some(Interrupted { cursor, compared, differed });
    }

    /// A round for this reason begins at once, or with the next session.
    pub(super) fn demand(&mut self, reason: RoundReason) {
        self.demanded = Some(reason);
    }

    /// Whether the marker of the database may be written into the Lease: it was compared with the one that is there, and
    /// no urgent round is owed.
    pub(super) fn proves(&self) -> bool {
        self.is_known && self.owed.is_none()
    }

    /// What is still to be done before the node is in sync, about: questions, rows of the walk. What has been announced
    /// and nobody has asked for yet counts, whatever the round.
    pub(super) fn pending(&self, asking: &Queries) -> u64 {
        let unasked = u64::from(asking.has_unasked()) + u64::from(self.again_at.is_some());
        let Some(round) = self.round.as_ref().filter(|round| round.reason != RoundReason::Routine) else {
            return unasked + asking.open_news();
        };
        let stage = match &round.stage {
            // Nobody knows how long they are; of one that does not answer nothing is expected.
            Stage::Listing(listing) => u64::from(
                round.reason.is_urgent()
                    || (round.lists_more(listing) && self.dynamic != DynamicController::Silent),
            ),
            Stage::Walking(walk) => self.rows.saturating_sub(walk.rows()).max(1),
            Stage::Ending => u64::from(round.reason.is_urgent()),
        };
        let open = if round.reason.is_urgent() { asking.open() } else { asking.open_news() };
        stage + open + unasked
    }

    /// An answer of the dynamic controller to a watch, or to a page of a list.
    pub(super) fn answered(
        &mut self,
        outbound: &mut Outbound,
        delivery: &mut Delivery,
        asking: &mut Queries,
        incoming: &Incoming<'_>,
    ) {
        if self.watches.answered(outbound, incoming)
            || self.list_answered(outbound, delivery, asking, incoming)
        {
            self.dynamic = DynamicController::On;
        }
    }

    /// What was asked for has changed so much.
    pub(super) fn applied(&mut self, outbound: &mut Outbound, changes: u64) {
        outbound.counters.differed += changes;
        if let Some(round) = &mut self.round {
            round.differed += changes;
        }
    }

    /// An object is going to be stored or removed.
    pub(super) fn changed(&mut self, change: &Change) {
        if let Some(Round { stage: Stage::Walking(walk), .. }) = &mut self.round {
            walk.changed(match change {
                Change::Put(put) => put.key(),
                Change::Delete(delete) => delete.key.clone(),
            });
        }
    }

    /// A page of what is held.
    pub(super) fn held_read(&mut self, page: HeldPage) {
        if let Some(Round { stage: Stage::Walking(walk), .. }) = &mut self.round {
            walk.read(page);
        }
    }

    /// The rows could not be read.
    pub(super) fn read_failed(&mut self, outbound: &Outbound) {
        if let Some(Round { stage: Stage::Walking(walk), .. }) = &mut self.round {
            walk.failed(outbound.at.now + outbound.config.answer_timeout);
        }
    }

    /// Whether a routine round, or the rest of one, may begin.
    fn routine_at(&self) -> Option<Now> {
        let goes_on = self.interrupted.as_ref().map(|_| Now::ZERO);
        goes_on.or(self.next_at).filter(|_| self.round.is_none())
    }

    /// Whether nothing is under way that may not be put off.
    fn is_free(&self) -> bool {
        self.round.as_ref().is_none_or(|round| round.reason == RoundReason::Routine)
    }

    /// Whether lists of new rules are due again, or the Pods are to be gone through for what they want.
    fn is_to_look_again(&self, asking: &Queries, now: Now) -> bool {
        self.is_free() && (asking.is_to_look_through(now) || self.again_at.is_some_and(|at| at <= now))
    }

    /// Gives up what was not answered, and begins a round that is due.
    pub(super) fn tick(&mut self, outbound: &mut Outbound, asking: &mut Queries) {
        let now = outbound.at.now;
        let in_vain = self.watches.tick(outbound);
        if self.list_tick(outbound, asking) || in_vain {
            if self.dynamic != DynamicController::Silent {
                outbound.notice(BridgeNotice::DynamicControllerSilent);
            }
            self.dynamic = DynamicController::Silent;
        }
        if let Some(reason) = self.demanded.take() {
            self.start(outbound, asking, reason);
        } else if self.routine_at().is_some_and(|at| at <= now) {
            self.start(outbound, asking, self.owed.unwrap_or(RoundReason::Routine));
        }
    }

    /// Goes as far as it can without waiting.
    pub(super) fn advance(&mut self, outbound: &mut Outbound, delivery: &mut Delivery, asking: &mut Queries) {
        if !self.is_live {
            return;
        }
        self.waits = false;
        self.watches.advance(outbound);
        if self.is_to_look_again(asking, outbound.at.now) {
            self.start(outbound, asking, RoundReason::Reconnect);
        }
        while let Some(round) = &mut self.round {
            let goes_on = match &round.stage {
                Stage::Listing(_) => self.list_on(outbound, delivery, asking),
                Stage::Walking(_) => self.walk_on(outbound, delivery, asking),
                Stage::Ending => {
                    if asking.open() > 0 || delivery.has_compared() {
                        false
                    } else if asking.has_unasked() && round.reason != RoundReason::Routine {
                        round.look_through(asking);
                        true
                    } else {
                        self.finish(outbound);
                        // What has waited meanwhile.
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
        let before = self.memory.clone();
        let rules = scope::all_rules(&outbound.config);
        self.memory.carried_out.extend(carried_out);
        self.memory.carried_out.retain(|rule| rules.contains(rule));
        let again = Some(outbound.at.now + outbound.config.retry_max.max(AGAIN));
        if is_incomplete && !reason.compares() {
            self.again_at = again;
        } else if is_incomplete {
            self.next_at = again;
        } else {
            if reason.is_urgent() && self.owed.take().is_some_and(|owed| owed != RoundReason::Asked) {
                self.memory.settled_over = Some(self.found.take());
            }
            // Without a time nobody would ever compare: the first session counts as one.
            if reason.compares() || self.next_at.is_none() {
                self.memory.compared_at = Some(outbound.at.wall);
            }
            self.next_at = self.next_at.or(Some(outbound.at.now + outbound.config.verify_interval));
        }
        if self.memory != before {
            self.memory.keep(outbound);
        }
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
        let token = self.waits.then(|| self.budget.next_at());
        let demanded = self.demanded.map(|_| Now::ZERO);
        let again = self.again_at.filter(|_| self.is_free());
        let next = earlier(earlier(self.routine_at(), again), demanded);
        earlier(earlier(earlier(stage, token), next), self.watches.deadline())
    }

    /// The round under way, and what it has compared.
    pub(super) fn current(&self) -> Option<(RoundReason, u64)> {
        self.round.as_ref().map(|round| (round.reason, round.compared))
    }
}
