//! Queries for ConfigMaps and Secrets, which CloudCore sends only on request: desired names,
//! queries in flight, and missing objects.
//!
//! A name is desired because a rule without `*` names it, or because a Pod references it. It stays
//! desired after the Pod's deletion, until the next walk over the held objects has seen all
//! remaining references ([`Queries::sweep`]).
//!
//! Names beyond the limits of these tables are found again by a walk over the Pods in the database:
//! [`Queries::has_unqueried`] demands one, and the node is not in sync before it is complete.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use super::delivery::Delivery;
use super::message::MessageId;
use super::message::{self, Incoming};
use super::names::{Name, QueriedKind, WatchRule, references};
use super::outbound::Outbound;
use super::types::BridgeConfig;
use edgesync_object::{Head, ObjectKey};
use edgesync_protocol::change::{Change, Delete, Put, Uid};
use edgesync_protocol::timing::{Now, backoff, earlier};

/// The most queries in flight.
pub(super) const WINDOW: usize = 16;
/// The most names whose desired and held state is known. Beyond it no pushed object is dropped, and
/// the held state is read from the database.
pub(super) const MAX_KNOWN: usize = 16_384;
/// The most names recorded as desired and not held.
pub(super) const MAX_MISSING: usize = 4096;
/// The delay before an object that an answer did not know is queried again.
const RECHECK_DELAY: Duration = Duration::from_secs(30);
/// The most queued names.
pub(super) const MAX_QUEUE: usize = 4096;
/// The number of attempts before a query is abandoned.
const ATTEMPTS: u32 = 3;
/// The number of timeout extensions while CloudCore sends other messages: it sends one after the
/// other.
const MAX_EXTENSIONS: u32 = 30;
/// The factor on the failure delays for missing objects, which may never be created.
const MISSING_FACTOR: u32 = 10;
/// The source of messages that a watch pushes.
const DYNAMIC_CONTROLLER: &str = "dynamiccontroller";

/// A query in flight.
#[derive(Debug)]
struct Query {
    name: Name,
    /// The object held under the name, if the query verifies it: it is removed if the answer has
    /// none.
    held: Option<Uid>,
    until: Now,
    attempts: u32,
    /// The number of timeout extensions while CloudCore was busy, and the acknowledged messages at
    /// the last one.
    extensions: u32,
    acknowledged: u64,
    /// Whether an earlier query was unsuccessful.
    is_retry: bool,
    /// Whether this is the second query for an object that the first answer did not know.
    is_recheck: bool,
}

impl Query {
    fn new(name: Name, queued: QueuedQuery) -> Self {
        let QueuedQuery { held, is_retry } = queued;
        let (until, is_recheck) = (Now::ZERO, false);
        Self { name, held, until, attempts: 0, extensions: 0, acknowledged: 0, is_retry, is_recheck }
    }

    /// Extends the timeout if the answer may be queued behind other messages, and returns whether
    /// it did.
    fn extend_if_busy(&mut self, outbound: &Outbound) -> bool {
        let acknowledged = outbound.counters.acknowledged;
        let extend_if_busy = acknowledged > self.acknowledged && self.extensions < MAX_EXTENSIONS;
        if extend_if_busy {
            (self.extensions, self.acknowledged) = (self.extensions + 1, acknowledged);
            self.until = outbound.at.now + outbound.config.answer_timeout;
        }
        extend_if_busy
    }
}

#[derive(Debug, Default)]
struct QueuedQuery {
    /// The object to verify, see [`Query`].
    held: Option<Uid>,
    is_retry: bool,
}

/// The known state of a name.
#[derive(Debug, Default)]
struct NameState {
    held: Option<Uid>,
    /// The last walk that found it desired; zero if it is not.
    desired_in: u32,
    /// The last walk that found its row, or during which the row was created.
    row_in: u32,
    /// The walk during which CloudCore has answered with the object.
    answered: u32,
}

/// A name that is desired and not held.
#[derive(Debug, Default)]
struct Missing {
    /// The time of the next query: with growing delays, because it may be created at any time.
    retry_at: Option<Now>,
    attempts: u32,
}

/// The tables of desired names and the queries for them.
#[derive(Debug)]
pub(super) struct Queries {
    /// Known names by hash.
    names: BTreeMap<u64, NameState>,
    missing: BTreeMap<Name, Missing>,
    queue: BTreeMap<Name, QueuedQuery>,
    in_flight: BTreeMap<MessageId, Query>,
    /// The number of walks that compare the held objects.
    walk: u32,
    /// The earliest retry of a missing name.
    retry_at: Option<Now>,
    /// The deletion that the last answer has proven.
    replaced: Option<Change>,
    /// Held objects that an answer did not know, with the time of their second query.
    rechecks: BTreeMap<Name, (Uid, Now)>,
    /// Whether desired names may be missing in these tables.
    is_partial: bool,
    /// Whether a table overflowed since the last walk has begun.
    has_overflowed: bool,
    /// Whether names may be desired, not held, and not queried.
    has_unqueried: bool,
    /// Unsuccessful names beyond the limit of `missing`: their number, and the time of the next
    /// rescan.
    overflow: (u64, Option<Now>),
}

impl Default for Queries {
    fn default() -> Self {
        Self {
            names: BTreeMap::new(),
            missing: BTreeMap::new(),
            queue: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            walk: 1,
            retry_at: None,
            replaced: None,
            rechecks: BTreeMap::new(),
            is_partial: false,
            has_overflowed: false,
            has_unqueried: false,
            overflow: (0, None),
        }
    }
}

fn hash(name: &Name) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

fn replaced(query: &Query, incoming: &Incoming<'_>) -> Option<Change> {
    let held = query.held.clone()?;
    let head: Head<'_> = serde_json::from_str(incoming.content?.get()).ok()?;
    let uid = head.metadata.uid;
    let is_other = !uid.is_empty() && *uid != *held;
    is_other.then(|| Change::Delete(Delete { uid: held, key: key(&query.name) }))
}

/// Returns the name of a ConfigMap or a Secret.
pub(super) fn queried_name(api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Name> {
    let kind =
        [QueriedKind::ConfigMap, QueriedKind::Secret].into_iter().find(|asked| asked.kind() == kind)?;
    (api_version == "v1").then(|| Name { namespace: namespace.into(), kind, name: name.into() })
}

fn name_of(put: &Put) -> Option<Name> {
    queried_name(&put.resource.api_version(), &put.resource.kind, &put.namespace, &put.name)
}

/// Returns the name that a message is about, if it can be queried.
fn target(incoming: &Incoming<'_>) -> Option<Name> {
    let target = incoming.target()?;
    let kind = [QueriedKind::ConfigMap, QueriedKind::Secret]
        .into_iter()
        .find(|asked| asked.word() == target.kind)?;
    Some(Name { namespace: target.namespace.into(), kind, name: target.name.into() })
}

fn key(name: &Name) -> ObjectKey {
    ObjectKey {
        group: Arc::from(""),
        kind: name.kind.kind().into(),
        namespace: (&*name.namespace).into(),
        name: (&*name.name).into(),
    }
}

/// Returns whether a rule watches all objects of this kind and namespace.
fn watches(rule: &WatchRule, name: &Name) -> bool {
    let plural = match name.kind {
        QueriedKind::ConfigMap => "configmaps",
        QueriedKind::Secret => "secrets",
    };
    matches!(&*rule.group, "" | "core")
        && &*rule.plural == plural
        && rule.namespace.as_ref().is_none_or(|namespace| *namespace == name.namespace)
}

/// Returns whether a rule matches this name.
pub(super) fn rules_match(config: &BridgeConfig, name: &Name) -> bool {
    config.fetch.iter().any(|rule| rule.matches(name)) || config.watch.iter().any(|rule| watches(rule, name))
}

impl Queries {
    /// Ends the connection: queries are repeated after the next one. Desired names stay.
    pub(super) fn forget(&mut self) {
        self.rechecks.clear();
        let in_flight = std::mem::take(&mut self.in_flight).into_values();
        let queue = std::mem::take(&mut self.queue).into_iter();
        let queue = queue.map(|(name, queued)| Query::new(name, queued));
        for query in in_flight.chain(queue).filter(|query| query.held.is_none()) {
            self.miss(&query.name);
        }
    }

    /// Returns whether to store a change. ConfigMaps and Secrets that a watch pushes are dropped
    /// unless desired; everything else and every delete is stored.
    pub(super) fn accepts(&self, config: &BridgeConfig, source: &str, change: &Change) -> bool {
        let Change::Put(put) = change else { return true };
        if source != DYNAMIC_CONTROLLER {
            return true;
        }
        name_of(put).is_none_or(|name| self.is_name_desired(config, &name))
    }

    /// Returns whether a rule or a reference desires this name.
    pub(super) fn is_name_desired(&self, config: &BridgeConfig, name: &Name) -> bool {
        rules_match(config, name) || self.is_desired(name)
    }

    fn get(&self, name: &Name) -> Option<&NameState> {
        self.names.get(&hash(name))
    }

    fn get_mut(&mut self, name: &Name) -> Option<&mut NameState> {
        self.names.get_mut(&hash(name))
    }

    /// Returns whether a reference or a rule without `*` desires this name, as far as known.
    fn is_desired(&self, name: &Name) -> bool {
        self.is_partial || self.get(name).is_some_and(|state| state.desired_in > 0)
    }

    /// Returns whether this name is known as desired.
    pub(super) fn knows(&self, name: &Name) -> bool {
        self.get(name).is_some_and(|state| state.desired_in > 0)
    }

    /// Adds a desired name (a rule, a reference) and queries it unless it is known to be held.
    pub(super) fn add_desired(&mut self, outbound: &mut Outbound, name: Name) {
        self.mark_desired(&name);
        if !self.has(&name) {
            self.query(outbound, name, None);
        }
    }

    /// Returns whether the name is held, or is scheduled for another query.
    pub(super) fn has(&self, name: &Name) -> bool {
        self.get(name).is_some_and(|state| state.held.is_some())
            || self.missing.get(name).is_some_and(|missing| missing.retry_at.is_some())
    }

    /// Adds a desired name without a query.
    pub(super) fn mark_desired(&mut self, name: &Name) {
        let walk = self.walk;
        match self.entry(name) {
            Some(state) => state.desired_in = walk,
            None => (self.is_partial, self.has_overflowed) = (true, true),
        }
    }

    fn entry(&mut self, name: &Name) -> Option<&mut NameState> {
        let (hash, has_capacity) = (hash(name), self.names.len() < MAX_KNOWN);
        if !has_capacity && !self.names.contains_key(&hash) {
            return None;
        }
        Some(self.names.entry(hash).or_default())
    }

    /// Schedules the query of a desired name that is not held: see [`Queries::query_missing`].
    pub(super) fn miss(&mut self, name: &Name) {
        if self.missing.len() < MAX_MISSING || self.missing.contains_key(name) {
            self.missing.entry(name.clone()).or_default().retry_at = None;
        } else {
            self.has_unqueried = true;
        }
    }

    /// Queries a name once, whether it is held or not: for a round, or because it may be another
    /// object by now. `held` is the object held under it. At most [`WINDOW`] queries are in flight,
    /// the rest is queued. Returns whether the queue accepted it.
    pub(super) fn query(&mut self, outbound: &mut Outbound, name: Name, held: Option<Uid>) -> bool {
        let is_asked = |query: &Query| query.name == name && query.held == held;
        self.in_flight.values().any(is_asked) || self.requery(outbound, name, held)
    }

    /// Queries a name even if an answer to the same query is in flight.
    fn requery(&mut self, outbound: &mut Outbound, name: Name, held: Option<Uid>) -> bool {
        if self.queue.len() >= MAX_QUEUE && !self.queue.contains_key(&name) {
            self.has_unqueried |= held.is_none();
            return false;
        }
        let is_retry = self.missing.get(&name).is_some_and(|missing| missing.attempts > 0);
        let queued = self.queue.entry(name).or_default();
        queued.is_retry = is_retry;
        queued.held = held.or_else(|| queued.held.take());
        self.fill(outbound);
        true
    }

    fn fill(&mut self, outbound: &mut Outbound) {
        while self.in_flight.len() < WINDOW
            && let Some((name, queued)) = self.queue.pop_first()
        {
            self.put(outbound, Query::new(name, queued));
        }
    }

    fn put(&mut self, outbound: &mut Outbound, mut query: Query) {
        query.until = outbound.at.now + outbound.config.answer_timeout;
        query.attempts += 1;
        query.acknowledged = outbound.counters.acknowledged;
        outbound.counters.asked += 1;
        let id = outbound.send(&message::query(&query.name));
        self.in_flight.insert(id, query);
    }

    /// Begins an urgent round: no name counts as held, and every missing one is queried again.
    pub(super) fn invalidate(&mut self) {
        self.names.values_mut().for_each(|state| state.held = None);
        self.missing.values_mut().for_each(|missing| *missing = Missing::default());
        self.overflow = (0, None);
    }

    /// Begins a walk over everything held.
    pub(super) fn begin_walk(&mut self) {
        (self.walk, self.has_overflowed) = (self.walk.saturating_add(1), false);
    }

    /// Begins a rescan of rows and Pods, which finds the names beyond the limits.
    pub(super) fn rescan(&mut self) {
        (self.has_unqueried, self.overflow) = (false, (0, None));
    }

    /// Returns whether names may be desired and not held that were not queried.
    pub(super) fn has_unqueried(&self) -> bool {
        self.has_unqueried
    }

    /// Returns whether a rescan of the database is due and no query is open.
    pub(super) fn is_rescan_due(&self, now: Now) -> bool {
        self.open() == 0 && (self.has_unqueried || self.overflow.1.is_some_and(|at| at <= now))
    }

    /// Completes a walk over everything held: names it has not seen as desired are dropped, and
    /// names without a row are not held.
    pub(super) fn sweep(&mut self, config: &BridgeConfig) {
        for name in config.fetch.iter().filter_map(super::FetchRule::exact) {
            self.mark_desired(&name);
        }
        let walk = self.walk;
        self.names.retain(|_, state| state.desired_in >= walk);
        for state in self.names.values_mut().filter(|state| state.row_in < walk) {
            state.held = None;
        }
        self.is_partial = self.has_overflowed;
        let (names, is_partial) = (&self.names, self.is_partial);
        self.missing.retain(|name, _| is_partial || names.contains_key(&hash(name)));
    }

    /// Queries every name known as desired and not held, unless its retry is not due. Returns the
    /// number of queries.
    pub(super) fn query_missing(&mut self, outbound: &mut Outbound) -> u64 {
        let is_due = |(_, missing): &(&Name, &Missing)| missing.retry_at.is_none();
        let names: Vec<_> = self.missing.iter().filter(is_due).map(|(name, _)| name.clone()).collect();
        let mut asked = 0;
        for name in names {
            asked += u64::from(self.query(outbound, name, None));
        }
        asked
    }

    /// Records the row of this name.
    pub(super) fn is_held(&mut self, name: &Name, uid: &Uid) {
        let (walk, has_capacity) = (self.walk, self.names.len() < MAX_KNOWN / 4 * 3);
        // Names known from rows only must leave capacity for desired ones.
        let names = if has_capacity { self.entry(name) } else { self.get_mut(name) };
        if let Some(state) = names {
            (state.held, state.row_in) = (Some(uid.clone()), walk);
        }
        self.missing.remove(name);
    }

    /// Records that this name has no row any more.
    pub(super) fn is_gone(&mut self, name: &Name) {
        if let Some(state) = self.get_mut(name) {
            state.held = None;
        }
    }

    /// Returns whether CloudCore has answered with this object since the round has begun.
    pub(super) fn is_compared(&self, name: &Name) -> bool {
        self.get(name).is_some_and(|state| state.answered == self.walk)
    }

    /// Handles an object about to be stored: references of a Pod become desired, a desired name
    /// becomes held. `is_listed` returns whether a list of this round covers a name.
    pub(super) fn stored(
        &mut self,
        outbound: &mut Outbound,
        put: &Put,
        is_listed: impl Fn(&BridgeConfig, &Name) -> bool,
    ) {
        if put.resource.kind == "Pod" && put.resource.group.is_empty() {
            for name in references(put.body.get()) {
                match is_listed(&outbound.config, &name) {
                    true => self.mark_desired(&name),
                    false => self.add_desired(outbound, name),
                }
            }
        } else if let Some(name) = name_of(put) {
            self.is_held(&name, &put.uid);
        }
    }

    /// Handles an object about to be removed. A desired name is queried, because CloudCore never
    /// pushes a recreated object by itself.
    pub(super) fn deleted(&mut self, outbound: &mut Outbound, incoming: &Incoming<'_>, uid: &Uid) {
        let Some(name) = target(incoming) else { return };
        let held = self.get(&name).and_then(|state| state.held.as_ref());
        if held.is_some_and(|held| held != uid) {
            return;
        }
        self.is_gone(&name);
        if self.is_desired(&name) {
            self.requery(outbound, name, None);
        }
    }

    /// Handles a delete without a UID: queries the name if possible.
    pub(super) fn unclear(&mut self, outbound: &mut Outbound, incoming: &Incoming<'_>) {
        let Some(name) = target(incoming).filter(|name| self.is_name_desired(&outbound.config, name)) else {
            return;
        };
        let held = self.get(&name).and_then(|state| state.held.clone());
        self.requery(outbound, name, held);
    }

    /// Handles an answer; an object in it is then handled like any other. `NotFound` removes the
    /// queried object. Returns whether the answer belongs to a query of this table.
    pub(super) fn answered(
        &mut self,
        outbound: &mut Outbound,
        delivery: &mut Delivery,
        incoming: &Incoming<'_>,
    ) -> bool {
        let Some(id) = incoming.parent.filter(|id| self.in_flight.contains_key(id)) else { return false };
        let is_missing = |failure: message::Failure| failure.reason == "NotFound" || failure.code == 404;
        let is_missing = incoming.content.and_then(message::failure).is_some_and(is_missing);
        // Any other failure counts as no answer: the query is repeated after its timeout.
        if !is_missing && !incoming.is_object() {
            return true;
        }
        let Some(query) = self.in_flight.remove(&id) else { return false };
        outbound.counters.answered += 1;
        if is_missing {
            self.missed(outbound, delivery, &query);
        } else {
            let walk = self.walk;
            if let Some(state) = self.get_mut(&query.name) {
                state.answered = walk;
            }
            match replaced(&query, incoming) {
                change @ Some(_) if query.is_recheck => self.replaced = change,
                Some(Change::Delete(Delete { uid, .. })) => self.recheck_row(outbound, &query.name, uid),
                _ => {}
            }
        }
        self.fill(outbound);
        true
    }

    /// Returns the deletion of the queried object, if the answer had another one under its name.
    /// The new one replaces it; if that cannot be stored, the old one is deleted all the same.
    pub(super) fn take_replaced(&mut self) -> Option<Change> {
        self.replaced.take()
    }

    fn missed(&mut self, outbound: &mut Outbound, delivery: &mut Delivery, query: &Query) {
        if let Some(uid) = query.held.as_ref().filter(|_| !query.is_recheck) {
            return self.recheck_row(outbound, &query.name, uid.clone());
        }
        if let Some(uid) = &query.held {
            let delete = Delete { uid: uid.clone(), key: key(&query.name) };
            delivery.apply(outbound, vec![Change::Delete(delete)], Vec::new());
        }
        // Another object may have arrived under the name meanwhile.
        let held = self.get(&query.name).and_then(|state| state.held.clone());
        if held.is_none() || held == query.held {
            self.is_gone(&query.name);
            self.retry_later(outbound, &query.name);
        }
    }

    /// Schedules a second query: CloudCore answers from a cache that is empty after its start and
    /// may lag. Only a second answer without the object removes it.
    fn recheck_row(&mut self, outbound: &Outbound, name: &Name, uid: Uid) {
        if self.rechecks.len() < MAX_QUEUE {
            self.rechecks.insert(name.clone(), (uid, outbound.at.now + RECHECK_DELAY));
        }
    }

    fn query_rechecks(&mut self, outbound: &mut Outbound) {
        let now = outbound.at.now;
        while self.in_flight.len() < WINDOW
            && let Some(name) =
                self.rechecks.iter().find(|(_, (_, due))| *due <= now).map(|(name, _)| name.clone())
            && let Some((uid, _)) = self.rechecks.remove(&name)
        {
            let is_settled = |state: &NameState| state.desired_in > 0 && state.held.as_ref() != Some(&uid);
            if self.get(&name).is_some_and(is_settled) {
                continue;
            }
            let queued = QueuedQuery { held: Some(uid), is_retry: false };
            self.put(outbound, Query { is_recheck: true, ..Query::new(name, queued) });
        }
    }

    fn retry_later(&mut self, outbound: &mut Outbound, name: &Name) {
        if !self.is_desired(name) {
            self.missing.remove(name);
            return;
        }
        let (shortest, draw) = (outbound.config.retry_max, outbound.draw());
        let longest = shortest.saturating_mul(MISSING_FACTOR);
        let in_time = |delay: Duration| outbound.at.now + delay.max(Duration::from_secs(1));
        if self.missing.len() >= MAX_MISSING && !self.missing.contains_key(name) {
            let at = in_time(backoff(longest, longest, 0, draw));
            self.overflow = (self.overflow.0 + 1, self.overflow.1.or(Some(at)));
            return;
        }
        let missing = self.missing.entry(name.clone()).or_default();
        let at = in_time(backoff(shortest, longest, missing.attempts, draw));
        missing.attempts = missing.attempts.saturating_add(1);
        missing.retry_at = Some(at);
        self.retry_at = earlier(self.retry_at, Some(at));
    }

    /// Abandons unanswered queries, retries missing names, fills the window.
    pub(super) fn tick(&mut self, outbound: &mut Outbound) {
        let now = outbound.at.now;
        let is_due = |query: &mut Query| query.until <= now && !query.extend_if_busy(outbound);
        let due: Vec<_> =
            self.in_flight.iter_mut().filter_map(|(id, query)| is_due(query).then_some(*id)).collect();
        for id in due {
            let Some(query) = self.in_flight.remove(&id) else { continue };
            if query.attempts < ATTEMPTS {
                self.put(outbound, query);
                continue;
            }
            outbound.counters.unanswered += 1;
            if query.held.is_none() && self.get(&query.name).is_none_or(|state| state.held.is_none()) {
                self.retry_later(outbound, &query.name);
            }
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry(outbound);
        }
        self.query_rechecks(outbound);
        self.fill(outbound);
    }

    fn retry(&mut self, outbound: &mut Outbound) {
        let now = outbound.at.now;
        let mut due = Vec::new();
        self.retry_at = None;
        for (name, missing) in &mut self.missing {
            if missing.retry_at.is_some_and(|at| at <= now) {
                missing.retry_at = None;
                due.push(name.clone());
            } else {
                self.retry_at = earlier(self.retry_at, missing.retry_at);
            }
        }
        for name in due {
            if !self.query(outbound, name.clone(), None) {
                self.retry_later(outbound, &name);
            }
        }
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        let doubted = self.rechecks.values().map(|(_, due)| *due).min();
        let doubted = doubted.filter(|_| self.in_flight.len() < WINDOW);
        let overflow = self.overflow.1.filter(|_| self.open() == 0);
        let again = earlier(self.retry_at, overflow);
        earlier(earlier(self.in_flight.values().map(|query| query.until).min(), again), doubted)
    }

    /// Returns the free capacity of the window.
    pub(super) fn capacity(&self) -> usize {
        if self.rechecks.len() >= MAX_QUEUE {
            return 0;
        }
        WINDOW.saturating_sub(self.in_flight.len() + self.queue.len())
    }

    /// Returns the number of queued queries and of those in flight.
    pub(super) fn open(&self) -> u64 {
        (self.queue.len() + self.in_flight.len()) as u64
    }

    /// Returns the number of open queries for new, not held names.
    pub(super) fn open_new(&self) -> u64 {
        let in_flight = self.in_flight.values().map(|query| (&query.held, query.is_retry));
        let queue = self.queue.values().map(|queued| (&queued.held, queued.is_retry));
        in_flight.chain(queue).filter(|(held, is_retry)| held.is_none() && !is_retry).count() as u64
    }

    /// Returns the desired names that are not held although queried: at most `limit` of them, and
    /// their number.
    pub(super) fn missing(&self, limit: usize) -> (Vec<String>, u64) {
        let missing = || self.missing.iter().filter(|(_, missing)| missing.attempts > 0);
        let names = missing().take(limit).map(|(name, _)| name.to_string()).collect();
        (names, missing().count() as u64 + self.overflow.0)
    }
}
