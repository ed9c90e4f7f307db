//! The lists of a round and their results.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use siphasher::sip::SipHasher24;

use crate::application::Scope;
use crate::names::{QueriedKind, WatchRule};
use crate::types::{BridgeConfig, HeldEntry};
use edgesync_object::{Relation, ResourceVersion};

/// The purpose of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A rule desires all of it.
    Watched,
    /// Rules with `*` desire some of it.
    Fetched,
    /// Proof that CloudCore may list the kind in all namespaces, as its watches do.
    Proof,
    /// The Pods of the node. CloudCore pushes them by itself; a watch of them would match nothing.
    Pods,
}

/// One list of a round.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) scope: Scope,
    pub(super) purpose: Purpose,
    /// Whether all of it is listed, or only one item to prove that a watch is safe.
    pub(super) is_whole: bool,
}

fn core(plural: &str, namespace: Option<&str>) -> WatchRule {
    WatchRule {
        group: "".into(),
        version: "v1".into(),
        plural: plural.into(),
        namespace: namespace.map(Into::into),
    }
}

/// Returns the rules that need a list: hash, scope, purpose.
fn rules(config: &BridgeConfig) -> impl Iterator<Item = (u64, Scope, Purpose)> {
    let watched = config.watch.iter().map(|rule| (rule.to_string(), rule.clone(), Purpose::Watched));
    let fetched = config.fetch.iter().filter(|rule| rule.exact().is_none()).map(|rule| {
        let plural = match rule.kind() {
            QueriedKind::ConfigMap => "configmaps",
            QueriedKind::Secret => "secrets",
        };
        (rule.to_string(), core(plural, Some(rule.namespace())), Purpose::Fetched)
    });
    let scoped = watched.chain(fetched);
    scoped.map(|(words, rule, purpose)| (kept_hash(&words), Scope { rule, fields: "".into() }, purpose))
}

/// Returns a hash that is stable across versions of the program, because it is stored.
fn kept_hash(words: &str) -> u64 {
    SipHasher24::new_with_keys(0, 0).hash(words.as_bytes())
}

/// Returns the desired watches.
pub(super) fn watched(config: &BridgeConfig) -> BTreeSet<Scope> {
    rules(config).map(|(_, scope, _)| scope).collect()
}

/// Returns the rules of a scope.
pub(super) fn rules_of(config: &BridgeConfig, scope: &Scope) -> Vec<u64> {
    rules(config).filter(|(_, of, _)| of == scope).map(|(rule, ..)| rule).collect()
}

/// Returns all rules that need a list.
pub(super) fn all_rules(config: &BridgeConfig) -> BTreeSet<u64> {
    rules(config).map(|(rule, ..)| rule).collect()
}

/// Returns the lists of a round. `carried_out` are the rules whose lists have been stored.
pub(super) fn targets(config: &BridgeConfig, lists_all: bool, carried_out: &BTreeSet<u64>) -> Vec<Target> {
    let mut targets: Vec<Target> = Vec::new();
    let mut push = |scope: Scope, purpose, is_whole| {
        let is_there = |known: &Target| {
            known.scope == scope && (purpose == Purpose::Proof || known.purpose != Purpose::Proof)
        };
        if !targets.iter().any(is_there) {
            targets.push(Target { scope, purpose, is_whole });
        }
    };
    for (_, scope, purpose) in rules(config) {
        if scope != scope.everywhere() {
            push(scope.everywhere(), Purpose::Proof, false);
        }
        let is_new = rules_of(config, &scope).iter().any(|rule| !carried_out.contains(rule));
        push(scope, purpose, lists_all || is_new);
    }
    if lists_all {
        let fields = format!("spec.nodeName={}", config.node).into();
        push(Scope { rule: core("pods", None), fields }, Purpose::Pods, true);
    }
    targets
}

/// The result of a list: the objects that exist in its scope.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) api_version: Box<str>,
    pub(super) kind: Box<str>,
    pub(super) namespace: Option<Box<str>>,
    pub(super) resource_version: Box<str>,
    /// The hashes of the UIDs, sorted once the list is complete.
    pub(super) uids: Vec<u64>,
    /// Whether an item was unreadable: absence proves nothing then.
    pub(super) is_partial: bool,
}

/// The statement of a list about a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListedState {
    /// The row is outside of its scope, or newer than the list.
    Nothing,
    Exists,
    Gone,
}

pub(super) fn hash(uid: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    hasher.finish()
}

impl Listed {
    pub(super) fn complete(&mut self) {
        self.uids.sort_unstable();
        self.uids.shrink_to_fit();
    }

    pub(super) fn state_of(&self, entry: &HeldEntry) -> ListedState {
        let object = &entry.object;
        let is_covered = *object.api_version == *self.api_version
            && *object.kind == *self.kind
            && self.namespace.as_ref().is_none_or(|namespace| **namespace == *object.namespace);
        if !is_covered {
            return ListedState::Nothing;
        }
        if self.uids.binary_search(&hash(&entry.uid)).is_ok() {
            return ListedState::Exists;
        }
        match entry.version.relation(&ResourceVersion::from(&*self.resource_version)) {
            Relation::Older | Relation::Equal if !self.is_partial => ListedState::Gone,
            Relation::Older | Relation::Equal | Relation::Newer | Relation::Different => ListedState::Nothing,
        }
    }
}
