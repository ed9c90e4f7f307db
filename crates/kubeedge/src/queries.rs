//! What CloudCore sends only when it is asked: ConfigMaps and Secrets. Names that are wanted, questions under way, and
//! what is wanted and not there.
//!
//! A name is wanted because a rule without `*` says it, or because a Pod references it. It stays wanted when that Pod has
//! gone, until the next walk over everything held has seen all references there are ([`Queries::sweep`]).
//!
//! Whatever finds no room here is found again by a walk over the Pods in the database: [`Queries::has_unasked`] says that
//! one is owed, and nobody is in sync before it is over.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use super::delivery::Delivery;
use super::message::MessageId;
use super::message::{self, Incoming};
use super::names::{AskedKind, Name, WatchRule, references};
use super::outbound::Outbound;
use super::types::BridgeConfig;
use edgesync_object::{Head, ObjectKey};
use edgesync_protocol::change::{Change, Delete, Put, Uid};
use edgesync_protocol::timing::{Now, backoff, earlier};

/// Questions under way at a time.
pub(super) const WINDOW: usize = 16;
/// The most names of which it is known whether they are wanted and held. Beyond it nothing that a watch pushes is left
/// out, and whether it is held is read from the database.
pub(super) const MAX_KNOWN: usize = 16_384;
/// The most names that are remembered as wanted and not held.
pub(super) const MAX_MISSING: usize = 4096;
/// How long after an answer that did not know an object it is asked about again.
const CONFIRM: Duration = Duration::from_secs(30);
/// The most names that wait to be asked for.
pub(super) const MAX_QUEUE: usize = 4096;
/// How often a question is put before it is given up.
const ATTEMPTS: u32 = 3;
/// So often an answer is waited for longer while CloudCore sends other things: it sends one after the other.
const WAITS: u32 = 30;
/// What does not exist may never come to be: it is asked for at delays of up to so many times those of a failure.
const MISSING_FACTOR: u32 = 10;
/// The source of what a watch pushes.
const DYNAMIC_CONTROLLER: &str = "dynamiccontroller";

/// A question under way.
#[derive(Debug)]
struct Question {
    name: Name,
    /// The object that is held under the name, if the question is about that: if the answer is that there is none, it is
    /// removed.
    held: Option<Uid>,
    until: Now,
    attempts: u32,
    /// How often it was waited for longer, because CloudCore was busy, and what it had got acknowledged by then.
    waits: u32,
    acknowledged: u64,
    /// Whether it was asked for in vain before.
    is_again: bool,
    /// Whether it is the second one about an object that the first answer did not know.
    is_doubted: bool,
}

impl Question {
    fn new(name: Name, waiting: Waiting) -> Self {
        let Waiting { held, is_again } = waiting;
        let (until, is_doubted) = (Now::ZERO, false);
        Self { name, held, until, attempts: 0, waits: 0, acknowledged: 0, is_again, is_doubted }
    }

    /// Whether the answer may only be behind other things that come.
    fn may_wait(&mut self, outbound: &Outbound) -> bool {
        let acknowledged = outbound.counters.acknowledged;
        let may_wait = acknowledged > self.acknowledged && self.waits < WAITS;
        if may_wait {
            (self.waits, self.acknowledged) = (self.waits + 1, acknowledged);
            self.until = outbound.at.now + outbound.config.answer_timeout;
        }
        may_wait
    }
}

/// A question that waits.
#[derive(Debug, Default)]
struct Waiting {
    /// As that of [`Question`].
    held: Option<Uid>,
    is_again: bool,
}

/// What is known of a name.
#[derive(Debug, Default)]
struct Known {
    held: Option<Uid>,
    /// The walk that has seen last that it is wanted; zero if it is not.
    seen: u32,
    /// The walk during which its row was seen last, or made.
    row: u32,
    /// The walk of the round during which CloudCore has answered with the object.
    answered: u32,
}

/// A name that is wanted and not held.
#[derive(Debug, Default)]
struct Missing {
    /// When it is asked for again: with growing delays, it may come to be at any time.
    retry_at: Option<Now>,
    attempts: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Queries {
    /// By the hash of the name.
    known: BTreeMap<u64, Known>,
    missing: BTreeMap<Name, Missing>,
    queue: BTreeMap<Name, Waiting>,
    flight: BTreeMap<MessageId, Question>,
    /// Counts the walks that compare what is held.
    walk: u32,
    /// No name is to be asked for again before this.
    retry_at: Option<Now>,
    /// What the last answer has shown to be gone.
    replaced: Option<Change>,
    /// Objects that are held and that an answer did not know: asked about again at this time.
    doubts: BTreeMap<Name, (Uid, Now)>,
    /// Whether names are wanted that are in none of these tables.
    is_partial: bool,
    /// Whether that is so since the last walk has begun.
    was_full: bool,
    /// Whether names may be wanted, not held, and were not asked for.
    has_unasked: bool,
    /// Names that were asked for in vain and found no room in `missing`: how many, and when they are looked for again.
    beyond: (u64, Option<Now>),
}

impl Default for Queries {
    fn default() -> Self {
        Self {
            known: BTreeMap::new(),
            missing: BTreeMap::new(),
            queue: BTreeMap::new(),
            flight: BTreeMap::new(),
            walk: 1,
            retry_at: None,
            replaced: None,
            doubts: BTreeMap::new(),
            is_partial: false,
            was_full: false,
            has_unasked: false,
            beyond: (0, None),
        }
    }
}

fn hash(name: &Name) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

fn replaced(question: &Question, incoming: &Incoming<'_>) -> Option<Change> {
    let held = question.held.clone()?;
    let head: Head<'_> = serde_json::from_str(incoming.content?.get()).ok()?;
    let uid = head.metadata.uid;
    let is_other = !uid.is_empty() && *uid != *held;
    is_other.then(|| Change::Delete(Delete { uid: held, key: key(&question.name) }))
}

/// The name of a ConfigMap or a Secret.
pub(super) fn asked_name(api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Name> {
    let kind = [AskedKind::ConfigMap, AskedKind::Secret].into_iter().find(|asked| asked.kind() == kind)?;
    (api_version == "v1").then(|| Name { namespace: namespace.into(), kind, name: name.into() })
}

fn name_of(put: &Put) -> Option<Name> {
    asked_name(&put.resource.api_version(), &put.resource.kind, &put.namespace, &put.name)
}

/// The name that a message is about, if that can be asked for.
fn target(incoming: &Incoming<'_>) -> Option<Name> {
    let target = incoming.target()?;
    let kind =
        [AskedKind::ConfigMap, AskedKind::Secret].into_iter().find(|asked| asked.word() == target.kind)?;
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

/// Whether a rule watches all objects of this kind and namespace.
fn watches(rule: &WatchRule, name: &Name) -> bool {
    let plural = match name.kind {
        AskedKind::ConfigMap => "configmaps",
        AskedKind::Secret => "secrets",
    };
    matches!(&*rule.group, "" | "core")
        && &*rule.plural == plural
        && rule.namespace.as_ref().is_none_or(|namespace| *namespace == name.namespace)
}

/// Whether a rule wants this name.
pub(super) fn rules_want(config: &BridgeConfig, name: &Name) -> bool {
    config.fetch.iter().any(|rule| rule.matches(name)) || config.watch.iter().any(|rule| watches(rule, name))
}

impl Queries {
    /// The connection is over: questions are put again after the next one. What is wanted stays so.
    pub(super) fn forget(&mut self) {
        self.doubts.clear();
        let flight = std::mem::take(&mut self.flight).into_values();
        let queue = std::mem::take(&mut self.queue).into_iter();
        let queue = queue.map(|(name, waiting)| Question::new(name, waiting));
        for question in flight.chain(queue).filter(|question| question.held.is_none()) {
            self.miss(&question.name);
        }
    }

    /// Whether an object is to be kept. ConfigMaps and Secrets that a watch pushes and nobody wants are not; everything
    /// else is, and so is what is wanted already, and every delete.
    pub(super) fn wants(&self, config: &BridgeConfig, source: &str, change: &Change) -> bool {
        let Change::Put(put) = change else { return true };
        if source != DYNAMIC_CONTROLLER {
            return true;
        }
        name_of(put).is_none_or(|name| self.wants_name(config, &name))
    }

    /// Whether a rule or a reference wants this name.
    pub(super) fn wants_name(&self, config: &BridgeConfig, name: &Name) -> bool {
        rules_want(config, name) || self.is_wanted(name)
    }

    fn get(&self, name: &Name) -> Option<&Known> {
        self.known.get(&hash(name))
    }

    fn get_mut(&mut self, name: &Name) -> Option<&mut Known> {
        self.known.get_mut(&hash(name))
    }

    /// Whether a reference or a rule without `*` wants this name, as far as is known.
    fn is_wanted(&self, name: &Name) -> bool {
        self.is_partial || self.get(name).is_some_and(|known| known.seen > 0)
    }

    /// Whether something is known of this name.
    pub(super) fn knows(&self, name: &Name) -> bool {
        self.get(name).is_some_and(|known| known.seen > 0)
    }

    /// Wants a name (a rule, a reference): asks for it unless it is known to be held.
    pub(super) fn want(&mut self, outbound: &mut Outbound, name: Name) {
        self.remember(&name);
        if !self.has(&name) {
            self.ask(outbound, name, None);
        }
    }

    /// Whether the name is held, or is asked for again when it is time.
    pub(super) fn has(&self, name: &Name) -> bool {
        self.get(name).is_some_and(|known| known.held.is_some())
            || self.missing.get(name).is_some_and(|missing| missing.retry_at.is_some())
    }

    /// Wants a name, and asks nothing.
    pub(super) fn remember(&mut self, name: &Name) {
        let walk = self.walk;
        match self.entry(name) {
            Some(known) => known.seen = walk,
            None => (self.is_partial, self.was_full) = (true, true),
        }
    }

    fn entry(&mut self, name: &Name) -> Option<&mut Known> {
        let (hash, has_room) = (hash(name), self.known.len() < MAX_KNOWN);
        if !has_room && !self.known.contains_key(&hash) {
            return None;
        }
        Some(self.known.entry(hash).or_default())
    }

    /// A name that is wanted and not held is to be asked for: see [`Queries::ask_for_missing`].
    pub(super) fn miss(&mut self, name: &Name) {
        if self.missing.len() < MAX_MISSING || self.missing.contains_key(name) {
            self.missing.entry(name.clone()).or_default().retry_at = None;
        } else {
            self.has_unasked = true;
        }
    }

    /// Asks for a name, whether it is held or not, once: for a round, or because it may be another object by now. `held`
    /// is the object that is held under it. As many as [`WINDOW`] at a time, the rest waits. Returns whether there was
    /// room.
    pub(super) fn ask(&mut self, outbound: &mut Outbound, name: Name, held: Option<Uid>) -> bool {
        let is_asked = |question: &Question| question.name == name && question.held == held;
        self.flight.values().any(is_asked) || self.ask_anew(outbound, name, held)
    }

    /// As [`Queries::ask`], even if an answer to the same question is on its way.
    fn ask_anew(&mut self, outbound: &mut Outbound, name: Name, held: Option<Uid>) -> bool {
        if self.queue.len() >= MAX_QUEUE && !self.queue.contains_key(&name) {
            self.has_unasked |= held.is_none();
            return false;
        }
        let is_again = self.missing.get(&name).is_some_and(|missing| missing.attempts > 0);
        let waiting = self.queue.entry(name).or_default();
        waiting.is_again = is_again;
        waiting.held = held.or_else(|| waiting.held.take());
        self.fill(outbound);
        true
    }

    fn fill(&mut self, outbound: &mut Outbound) {
        while self.flight.len() < WINDOW
            && let Some((name, waiting)) = self.queue.pop_first()
        {
            self.put(outbound, Question::new(name, waiting));
        }
    }

    fn put(&mut self, outbound: &mut Outbound, mut question: Question) {
        question.until = outbound.at.now + outbound.config.answer_timeout;
        question.attempts += 1;
        question.acknowledged = outbound.counters.acknowledged;
        outbound.counters.asked += 1;
        let id = outbound.send(&message::query(&question.name));
        self.flight.insert(id, question);
    }

    /// An urgent round begins: nothing is known to be held, and everything is worth another question.
    pub(super) fn doubt(&mut self) {
        self.known.values_mut().for_each(|known| known.held = None);
        self.missing.values_mut().for_each(|missing| *missing = Missing::default());
        self.beyond = (0, None);
    }

    /// A round that walks over everything held begins.
    pub(super) fn begin_walk(&mut self) {
        (self.walk, self.was_full) = (self.walk.saturating_add(1), false);
    }

    /// The rows and Pods are gone through: what was left out is found.
    pub(super) fn look_through(&mut self) {
        (self.has_unasked, self.beyond) = (false, (0, None));
    }

    /// Whether names may be wanted and not held that nothing was asked for.
    pub(super) fn has_unasked(&self) -> bool {
        self.has_unasked
    }

    /// Whether what found no room here is to be looked for in the database, and nothing else is asked for any more.
    pub(super) fn is_to_look_through(&self, now: Now) -> bool {
        self.open() == 0 && (self.has_unasked || self.beyond.1.is_some_and(|at| at <= now))
    }

    /// A walk over everything held is over: what it has not seen to be wanted is wanted no more, and what it has not seen
    /// is not held.
    pub(super) fn sweep(&mut self, config: &BridgeConfig) {
        for name in config.fetch.iter().filter_map(super::FetchRule::exact) {
            self.remember(&name);
        }
        let walk = self.walk;
        self.known.retain(|_, known| known.seen >= walk);
        for known in self.known.values_mut().filter(|known| known.row < walk) {
            known.held = None;
        }
        self.is_partial = self.was_full;
        let (known, is_partial) = (&self.known, self.is_partial);
        self.missing.retain(|name, _| is_partial || known.contains_key(&hash(name)));
    }

    /// Asks for everything that is known to be wanted and not held, unless its time has not come. Returns how many names
    /// that are.
    pub(super) fn ask_for_missing(&mut self, outbound: &mut Outbound) -> u64 {
        let is_due = |(_, missing): &(&Name, &Missing)| missing.retry_at.is_none();
        let names: Vec<_> = self.missing.iter().filter(is_due).map(|(name, _)| name.clone()).collect();
        let mut asked = 0;
        for name in names {
            asked += u64::from(self.ask(outbound, name, None));
        }
        asked
    }

    /// A row of this name exists.
    pub(super) fn is_held(&mut self, name: &Name, uid: &Uid) {
        let (walk, has_room) = (self.walk, self.known.len() < MAX_KNOWN / 4 * 3);
        // What only rows tell of leaves room for what is wanted.
        let known = if has_room { self.entry(name) } else { self.get_mut(name) };
        if let Some(known) = known {
            (known.held, known.row) = (Some(uid.clone()), walk);
        }
        self.missing.remove(name);
    }

    /// A row of this name does not exist any more.
    pub(super) fn is_gone(&mut self, name: &Name) {
        if let Some(known) = self.get_mut(name) {
            known.held = None;
        }
    }

    /// Whether CloudCore has answered with the object of this name since the round has begun.
    pub(super) fn is_compared(&self, name: &Name) -> bool {
        self.get(name).is_some_and(|known| known.answered == self.walk)
    }

    /// An object is going to be stored: if it is a Pod, what it references is wanted; if it is wanted, it is held.
    /// `is_listed` tells whether a list has just said all there is to be said of a name.
    pub(super) fn stored(
        &mut self,
        outbound: &mut Outbound,
        put: &Put,
        is_listed: impl Fn(&BridgeConfig, &Name) -> bool,
    ) {
        if put.resource.kind == "Pod" && put.resource.group.is_empty() {
            for name in references(put.body.get()) {
                match is_listed(&outbound.config, &name) {
                    true => self.remember(&name),
                    false => self.want(outbound, name),
                }
            }
        } else if let Some(name) = name_of(put) {
            self.is_held(&name, &put.uid);
        }
    }

    /// An object is going to be removed. If its name is wanted it may have been made anew, which CloudCore never sends by
    /// itself: it is asked for.
    pub(super) fn deleted(&mut self, outbound: &mut Outbound, incoming: &Incoming<'_>, uid: &Uid) {
        let Some(name) = target(incoming) else { return };
        let held = self.get(&name).and_then(|known| known.held.as_ref());
        if held.is_some_and(|held| held != uid) {
            return;
        }
        self.is_gone(&name);
        if self.is_wanted(&name) {
            self.ask_anew(outbound, name, None);
        }
    }

    /// A delete that names no object: asks for the name if that can be asked for.
    pub(super) fn unclear(&mut self, outbound: &mut Outbound, incoming: &Incoming<'_>) {
        let Some(name) = target(incoming).filter(|name| self.wants_name(&outbound.config, name)) else {
            return;
        };
        let held = self.get(&name).and_then(|known| known.held.clone());
        self.ask_anew(outbound, name, held);
    }

    /// An answer has come; the object in it, if there is one, takes the way of all objects. That there is none (a Status
    /// `NotFound`) removes the object that was asked about. Returns whether it was asked for here.
    pub(super) fn answered(
        &mut self,
        outbound: &mut Outbound,
        delivery: &mut Delivery,
        incoming: &Incoming<'_>,
    ) -> bool {
        let Some(id) = incoming.parent.filter(|id| self.flight.contains_key(id)) else { return false };
        let is_missing = |failure: message::Failure| failure.reason == "NotFound" || failure.code == 404;
        let is_missing = incoming.content.and_then(message::failure).is_some_and(is_missing);
        // Any other failure is as good as no answer: the question is put again in time.
        if !is_missing && !incoming.is_object() {
            return true;
        }
        let Some(question) = self.flight.remove(&id) else { return false };
        outbound.counters.answered += 1;
        if is_missing {
            self.missed(outbound, delivery, &question);
        } else {
            let walk = self.walk;
            if let Some(known) = self.get_mut(&question.name) {
                known.answered = walk;
            }
            match replaced(&question, incoming) {
                change @ Some(_) if question.is_doubted => self.replaced = change,
                Some(Change::Delete(Delete { uid, .. })) => self.doubt_row(outbound, &question.name, uid),
                _ => {}
            }
        }
        self.fill(outbound);
        true
    }

    /// The object that was asked about, if the answer was another one under its name. That takes its place, unless it
    /// cannot be stored: then what was held is gone all the same.
    pub(super) fn take_replaced(&mut self) -> Option<Change> {
        self.replaced.take()
    }

    fn missed(&mut self, outbound: &mut Outbound, delivery: &mut Delivery, question: &Question) {
        if let Some(uid) = question.held.as_ref().filter(|_| !question.is_doubted) {
            return self.doubt_row(outbound, &question.name, uid.clone());
        }
        if let Some(uid) = &question.held {
            let delete = Delete { uid: uid.clone(), key: key(&question.name) };
            delivery.apply(outbound, vec![Change::Delete(delete)], Vec::new());
        }
        // Another object may have come under the name meanwhile.
        let held = self.get(&question.name).and_then(|known| known.held.clone());
        if held.is_none() || held == question.held {
            self.is_gone(&question.name);
            self.retry_later(outbound, &question.name);
        }
    }

    /// CloudCore answers from a cache, which is empty for a while after its start, and may be behind: what it does not know
    /// is gone when it does not know it a second time.
    fn doubt_row(&mut self, outbound: &Outbound, name: &Name, uid: Uid) {
        if self.doubts.len() < MAX_QUEUE {
            self.doubts.insert(name.clone(), (uid, outbound.at.now + CONFIRM));
        }
    }

    fn ask_doubted(&mut self, outbound: &mut Outbound) {
        let now = outbound.at.now;
        while self.flight.len() < WINDOW
            && let Some(name) =
                self.doubts.iter().find(|(_, (_, due))| *due <= now).map(|(name, _)| name.clone())
            && let Some((uid, _)) = self.doubts.remove(&name)
        {
            let is_settled = |known: &Known| known.seen > 0 && known.held.as_ref() != Some(&uid);
            if self.get(&name).is_some_and(is_settled) {
                continue;
            }
            let waiting = Waiting { held: Some(uid), is_again: false };
            self.put(outbound, Question { is_doubted: true, ..Question::new(name, waiting) });
        }
    }

    fn retry_later(&mut self, outbound: &mut Outbound, name: &Name) {
        if !self.is_wanted(name) {
            self.missing.remove(name);
            return;
        }
        let (shortest, draw) = (outbound.config.retry_max, outbound.draw());
        let longest = shortest.saturating_mul(MISSING_FACTOR);
        let in_time = |delay: Duration| outbound.at.now + delay.max(Duration::from_secs(1));
        if self.missing.len() >= MAX_MISSING && !self.missing.contains_key(name) {
            let at = in_time(backoff(longest, longest, 0, draw));
            self.beyond = (self.beyond.0 + 1, self.beyond.1.or(Some(at)));
            return;
        }
        let missing = self.missing.entry(name.clone()).or_default();
        let at = in_time(backoff(shortest, longest, missing.attempts, draw));
        missing.attempts = missing.attempts.saturating_add(1);
        missing.retry_at = Some(at);
        self.retry_at = earlier(self.retry_at, Some(at));
    }

    /// Gives up questions without an answer, asks again for what is missing, fills the window.
    pub(super) fn tick(&mut self, outbound: &mut Outbound) {
        let now = outbound.at.now;
        let is_due = |question: &mut Question| question.until <= now && !question.may_wait(outbound);
        let due: Vec<_> =
            self.flight.iter_mut().filter_map(|(id, question)| is_due(question).then_some(*id)).collect();
        for id in due {
            let Some(question) = self.flight.remove(&id) else { continue };
            if question.attempts < ATTEMPTS {
                self.put(outbound, question);
                continue;
            }
            outbound.counters.unanswered += 1;
            if question.held.is_none() && self.get(&question.name).is_none_or(|known| known.held.is_none()) {
                self.retry_later(outbound, &question.name);
            }
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry(outbound);
        }
        self.ask_doubted(outbound);
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
            if !self.ask(outbound, name.clone(), None) {
                self.retry_later(outbound, &name);
            }
        }
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        let doubted = self.doubts.values().map(|(_, due)| *due).min();
        let doubted = doubted.filter(|_| self.flight.len() < WINDOW);
        let beyond = self.beyond.1.filter(|_| self.open() == 0);
        let again = earlier(self.retry_at, beyond);
        earlier(earlier(self.flight.values().map(|question| question.until).min(), again), doubted)
    }

    /// How many more names may be asked for without waiting.
    pub(super) fn room(&self) -> usize {
        if self.doubts.len() >= MAX_QUEUE {
            return 0;
        }
        WINDOW.saturating_sub(self.flight.len() + self.queue.len())
    }

    /// Questions that wait or are under way.
    pub(super) fn open(&self) -> u64 {
        (self.queue.len() + self.flight.len()) as u64
    }

    /// Those of them for what is not held, and was not asked for in vain before.
    pub(super) fn open_news(&self) -> u64 {
        let flight = self.flight.values().map(|question| (&question.held, question.is_again));
        let queue = self.queue.values().map(|waiting| (&waiting.held, waiting.is_again));
        flight.chain(queue).filter(|(held, is_again)| held.is_none() && !is_again).count() as u64
    }

    /// Wanted and not held although asked for: at most `limit` names, and how many there are.
    pub(super) fn missing(&self, limit: usize) -> (Vec<String>, u64) {
        let missing = || self.missing.iter().filter(|(_, missing)| missing.attempts > 0);
        let names = missing().take(limit).map(|(name, _)| name.to_string()).collect();
        (names, missing().count() as u64 + self.beyond.0)
    }
}
