//! What CloudCore sends only when it is asked: ConfigMaps and Secrets. Names that are wanted, questions under way, and
//! what is wanted and not there.
//!
//! A name is wanted because a rule without `*` says it, or because a Pod references it. It stays wanted when that Pod has
//! gone, until the next walk over everything held has seen all references there are ([`Queries::sweep`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::delivery::Delivery;
use super::message::MessageId;
use super::message::{self, Incoming};
use super::names::{AskedKind, Name, WatchRule, references};
use super::outbound::Outbound;
use super::types::BridgeConfig;
use crate::object::{Head, ObjectKey};
use crate::sync::change::{Change, Delete, Put, Uid};
use crate::sync::timing::{Now, backoff, earlier};

/// Questions under way at a time.
pub(super) const WINDOW: usize = 16;
/// The most names that are remembered as wanted (by references of Pods and rules without `*`).
pub(super) const MAX_WANTED: usize = 4096;
/// How long after an answer that did not know an object it is asked about again.
const CONFIRM: Duration = Duration::from_secs(30);
/// The most names that wait to be asked for.
pub(super) const MAX_QUEUE: usize = 4096;
/// How often a question is put before it is given up.
const ATTEMPTS: u32 = 3;
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
    /// Whether it is the second one about an object that the first answer did not know.
    is_doubted: bool,
}

/// A name that is to be held.
#[derive(Clone, Debug, Default)]
struct Wanted {
    held: Option<Uid>,
    /// When it is asked for again, if it is not held: with growing delays, it may come to be at any time.
    retry_at: Option<Now>,
    attempts: u32,
    /// The walk that has seen last that it is wanted.
    seen: u64,
    /// The walk during which its row was seen last, or made.
    row: u64,
    /// The walk of the round during which CloudCore has answered with the object.
    answered: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Queries {
    wanted: BTreeMap<Name, Wanted>,
    queue: BTreeMap<Name, Option<Uid>>,
    flight: BTreeMap<MessageId, Question>,
    /// Counts the walks over what is held.
    walk: u64,
    /// No name is to be asked for again before this.
    retry_at: Option<Now>,
    /// What the last answer has shown to be gone.
    replaced: Option<Change>,
    /// Objects that are held and that an answer did not know: asked about again at this time.
    doubts: BTreeMap<Name, (Uid, Now)>,
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

impl Queries {
    /// The connection is over: questions are put again after the next one. What is wanted stays so.
    pub(super) fn forget(&mut self) {
        self.queue.clear();
        self.flight.clear();
        self.doubts.clear();
        self.retry_at = None;
        for wanted in self.wanted.values_mut() {
            wanted.retry_at = None;
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
        config.fetch.iter().any(|rule| rule.matches(name))
            || self.wanted.contains_key(name)
            || config.watch.iter().any(|rule| watches(rule, name))
    }

    /// Wants a name (a rule, a reference): asks for it unless it is known to be held.
    pub(super) fn want(&mut self, outbound: &mut Outbound, name: Name) {
        self.remember(&name);
        let waits = |wanted: &Wanted| wanted.held.is_some() || wanted.retry_at.is_some();
        if !self.wanted.get(&name).is_some_and(waits) {
            self.ask(outbound, name, None);
        }
    }

    /// Wants a name, and leaves the question for later: see [`Queries::ask_for_missing`].
    pub(super) fn remember(&mut self, name: &Name) {
        if let Some(wanted) = self.wanted.get_mut(name) {
            wanted.seen = self.walk;
        } else if self.wanted.len() < MAX_WANTED {
            self.wanted.insert(name.clone(), Wanted { seen: self.walk, ..Wanted::default() });
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
            return false;
        }
        let waiting = self.queue.entry(name).or_default();
        *waiting = held.or_else(|| waiting.take());
        self.fill(outbound);
        true
    }

    fn fill(&mut self, outbound: &mut Outbound) {
        while self.flight.len() < WINDOW
            && let Some((name, held)) = self.queue.pop_first()
        {
            self.put(outbound, Question { name, held, until: Now::ZERO, attempts: 0, is_doubted: false });
        }
    }

    fn put(&mut self, outbound: &mut Outbound, mut question: Question) {
        question.until = outbound.at.now + outbound.config.answer_timeout;
        question.attempts += 1;
        outbound.counters.asked += 1;
        let id = outbound.send(&message::query(&question.name));
        self.flight.insert(id, question);
    }

    /// An urgent round begins: nothing is known to be held, and everything is worth another question.
    pub(super) fn doubt(&mut self) {
        for wanted in self.wanted.values_mut() {
            *wanted = Wanted { seen: wanted.seen, ..Wanted::default() };
        }
    }

    /// A round that walks over everything held begins.
    pub(super) fn begin_walk(&mut self) {
        self.walk += 1;
    }

    /// A walk is over: what it has not seen to be wanted is wanted no more, and what it has not seen is not held.
    pub(super) fn sweep(&mut self, config: &BridgeConfig) {
        for name in config.fetch.iter().filter_map(super::FetchRule::exact) {
            self.remember(&name);
        }
        let walk = self.walk;
        self.wanted.retain(|_, wanted| wanted.seen >= walk);
        for wanted in self.wanted.values_mut().filter(|wanted| wanted.row < walk) {
            wanted.held = None;
        }
    }

    /// Asks for everything that is wanted and not held. Returns how many names that are.
    pub(super) fn ask_for_missing(&mut self, outbound: &mut Outbound) -> u64 {
        let is_missing = |(_, wanted): &(&Name, &Wanted)| wanted.held.is_none();
        let names: Vec<_> = self.wanted.iter().filter(is_missing).map(|(name, _)| name.clone()).collect();
        let mut asked = 0;
        for name in names {
            asked += u64::from(self.ask(outbound, name, None));
        }
        asked
    }

    /// Asks for up to `limit` names that are wanted and held. Returns how many.
    pub(super) fn ask_for_held(&mut self, outbound: &mut Outbound, limit: u32) -> u32 {
        let held = self.wanted.iter().filter_map(|(name, wanted)| Some((name.clone(), wanted.held.clone()?)));
        let names: Vec<_> = held.take(limit as usize).collect();
        let mut asked = 0;
        for (name, held) in names {
            asked += u32::from(self.ask(outbound, name, Some(held)));
        }
        asked
    }

    /// A row of this name exists.
    pub(super) fn is_held(&mut self, name: &Name, uid: &Uid) {
        if let Some(wanted) = self.wanted.get_mut(name) {
            wanted.held = Some(uid.clone());
            wanted.row = self.walk;
            wanted.retry_at = None;
            wanted.attempts = 0;
        }
    }

    /// A row of this name does not exist any more.
    pub(super) fn is_gone(&mut self, name: &Name) {
        if let Some(wanted) = self.wanted.get_mut(name) {
            wanted.held = None;
        }
    }

    /// Whether CloudCore has answered with the object of this name since the round has begun.
    pub(super) fn is_compared(&self, name: &Name) -> bool {
        self.wanted.get(name).is_some_and(|wanted| wanted.answered == self.walk)
    }

    /// An object is going to be stored: if it is a Pod, what it references is wanted; if it is wanted, it is held.
    pub(super) fn stored(&mut self, outbound: &mut Outbound, put: &Put) {
        if put.resource.kind == "Pod" && put.resource.group.is_empty() {
            for name in references(put.body.get()) {
                self.want(outbound, name);
            }
        } else if let Some(name) = name_of(put) {
            self.is_held(&name, &put.uid);
        }
    }

    /// An object is going to be removed. If its name is wanted it may have been made anew, which CloudCore never sends by
    /// itself: it is asked for.
    pub(super) fn deleted(&mut self, outbound: &mut Outbound, incoming: &Incoming<'_>, uid: &Uid) {
        let Some(name) = target(incoming) else { return };
        let Some(wanted) = self.wanted.get_mut(&name) else { return };
        if wanted.held.as_ref().is_some_and(|held| held != uid) {
            return;
        }
        wanted.held = None;
        self.ask_anew(outbound, name, None);
    }

    /// A delete that names no object: asks for the name if that can be asked for.
    pub(super) fn unclear(&mut self, outbound: &mut Outbound, incoming: &Incoming<'_>) {
        let Some(name) = target(incoming).filter(|name| self.wants_name(&outbound.config, name)) else {
            return;
        };
        let held = self.wanted.get(&name).and_then(|wanted| wanted.held.clone());
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
            if let Some(wanted) = self.wanted.get_mut(&question.name) {
                wanted.answered = self.walk;
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
        let wanted = self.wanted.get_mut(&question.name);
        let Some(wanted) = wanted.filter(|wanted| wanted.held == question.held) else { return };
        wanted.held = None;
        self.retry_later(outbound, &question.name);
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
            let is_settled = |wanted: &Wanted| wanted.held.as_ref() != Some(&uid);
            if self.wanted.get(&name).is_some_and(is_settled) {
                continue;
            }
            let question =
                Question { name, held: Some(uid), until: Now::ZERO, attempts: 0, is_doubted: true };
            self.put(outbound, question);
        }
    }

    fn retry_later(&mut self, outbound: &mut Outbound, name: &Name) {
        let Some(wanted) = self.wanted.get_mut(name) else { return };
        let longest = outbound.config.retry_max.saturating_mul(MISSING_FACTOR);
        let delay = backoff(outbound.config.retry_max, longest, wanted.attempts, outbound.draw());
        wanted.attempts = wanted.attempts.saturating_add(1);
        let at = outbound.at.now + delay.max(Duration::from_secs(1));
        wanted.retry_at = Some(at);
        self.retry_at = earlier(self.retry_at, Some(at));
    }

    /// Gives up questions without an answer, asks again for what is missing, fills the window.
    pub(super) fn tick(&mut self, outbound: &mut Outbound) {
        let now = outbound.at.now;
        let due: Vec<_> =
            self.flight.iter().filter(|(_, question)| question.until <= now).map(|(id, _)| *id).collect();
        for id in due {
            let Some(question) = self.flight.remove(&id) else { continue };
            if question.attempts < ATTEMPTS {
                self.put(outbound, question);
                continue;
            }
            outbound.counters.unanswered += 1;
            if self.wanted.get(&question.name).is_some_and(|wanted| wanted.held.is_none()) {
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
        for (name, wanted) in &mut self.wanted {
            if wanted.retry_at.is_some_and(|at| at <= now) {
                wanted.retry_at = None;
                due.push(name.clone());
            } else {
                self.retry_at = earlier(self.retry_at, wanted.retry_at);
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
        earlier(earlier(self.flight.values().map(|question| question.until).min(), self.retry_at), doubted)
    }

    /// How many more names may be asked for without waiting.
    pub(super) fn room(&self) -> usize {
        WINDOW.saturating_sub(self.flight.len() + self.queue.len())
    }

    /// Questions that wait or are under way.
    pub(super) fn open(&self) -> u64 {
        (self.queue.len() + self.flight.len()) as u64
    }

    /// Wanted and not held although asked for: at most `limit` names, and how many there are.
    pub(super) fn missing(&self, limit: usize) -> (Vec<String>, u64) {
        let missing =
            || self.wanted.iter().filter(|(_, wanted)| wanted.held.is_none() && wanted.attempts > 0);
        (missing().take(limit).map(|(name, _)| name.to_string()).collect(), missing().count() as u64)
    }
}
