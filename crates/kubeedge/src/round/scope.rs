//! What a round lists, and what it knows of it afterwards.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use siphasher::sip::SipHasher24;

use crate::application::Scope;
use crate::names::{AskedKind, WatchRule};
use crate::types::{BridgeConfig, HeldEntry};
use edgesync_object::{Relation, ResourceVersion};

/// What a list is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A rule wants all of it.
    Watched,
    /// Rules with `*` want some of it.
    Fetched,
    /// That CloudCore may list the kind in all namespaces: its watches always do.
    Proof,
    /// The Pods of the node. CloudCore pushes them by itself; a watch of them would match nothing.
    Pods,
}

/// A list of a round.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) scope: Scope,
    pub(super) purpose: Purpose,
    /// Whether all of it is listed; otherwise one item, to see whether a watch is safe.
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

/// A rule that wants a list: the hash of its words, its scope, what for.
fn rules(config: &BridgeConfig) -> impl Iterator<Item = (u64, Scope, Purpose)> {
    let watched = config.watch.iter().map(|rule| (rule.to_string(), rule.clone(), Purpose::Watched));
    let fetched = config.fetch.iter().filter(|rule| rule.exact().is_none()).map(|rule| {
        let plural = match rule.kind() {
            AskedKind::ConfigMap => "configmaps",
            AskedKind::Secret => "secrets",
        };
        (rule.to_string(), core(plural, Some(rule.namespace())), Purpose::Fetched)
    });
    let scoped = watched.chain(fetched);
    scoped.map(|(words, rule, purpose)| (kept_hash(&words), Scope { rule, fields: "".into() }, purpose))
}

/// A hash that is the same in every version of the program: it is kept.
fn kept_hash(words: &str) -> u64 {
    SipHasher24::new_with_keys(0, 0).hash(words.as_bytes())
}

/// What is to be watched.
pub(super) fn watched(config: &BridgeConfig) -> BTreeSet<Scope> {
    rules(config).map(|(_, scope, _)| scope).collect()
}

/// The rules of a scope.
pub(super) fn rules_of(config: &BridgeConfig, scope: &Scope) -> Vec<u64> {
    rules(config).filter(|(_, of, _)| of == scope).map(|(rule, ..)| rule).collect()
}

/// All rules that want a list.
pub(super) fn all_rules(config: &BridgeConfig) -> BTreeSet<u64> {
    rules(config).map(|(rule, ..)| rule).collect()
}

/// What a round lists. `carried_out` are the rules whose lists have been stored.
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

/// A list: what exists in its scope.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) api_version: Box<str>,
    pub(super) kind: Box<str>,
    pub(super) namespace: Option<Box<str>>,
    pub(super) resource_version: Box<str>,
    /// Hashes of the UIDs; in order once the list is complete.
    pub(super) uids: Vec<u64>,
    /// Whether an item could not be read: then nothing is known to be gone.
    pub(super) is_partial: bool,
}

/// What a list says of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says {
    /// It is none of its scope, or newer than the list.
    Nothing,
    /// It exists.
    Exists,
    /// It does not.
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

    pub(super) fn says(&self, entry: &HeldEntry) -> Says {
        let object = &entry.object;
        let is_covered = *object.api_version == *self.api_version
            && *object.kind == *self.kind
            && self.namespace.as_ref().is_none_or(|namespace| **namespace == *object.namespace);
        if !is_covered {
            return Says::Nothing;
        }
        if self.uids.binary_search(&hash(&entry.uid)).is_ok() {
            return Says::Exists;
        }
        match entry.version.relation(&ResourceVersion::from(&*self.resource_version)) {
            Relation::Older | Relation::Equal if !self.is_partial => Says::Gone,
            Relation::Older | Relation::Equal | Relation::Newer | Relation::Different => Says::Nothing,
        }
    }
}
