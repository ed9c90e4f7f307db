//! What a round lists, and what it knows of it afterwards.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::object::{Relation, ResourceVersion};
use crate::sync::kubeedge::application::Scope;
use crate::sync::kubeedge::names::{AskedKind, WatchRule};
use crate::sync::kubeedge::types::{BridgeConfig, HeldEntry, RoundReason};

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
}

fn core(plural: &str, namespace: Option<&str>) -> WatchRule {
    WatchRule {
        group: "".into(),
        version: "v1".into(),
        plural: plural.into(),
        namespace: namespace.map(Into::into),
    }
}

/// The rules, each scope once.
fn wanted(config: &BridgeConfig) -> Vec<Target> {
    let mut seen = BTreeSet::new();
    let watched = config.watch.iter().map(|rule| (rule.clone(), Purpose::Watched));
    let fetched = config.fetch.iter().filter(|rule| rule.exact().is_none()).map(|rule| {
        let plural = match rule.kind() {
            AskedKind::ConfigMap => "configmaps",
            AskedKind::Secret => "secrets",
        };
        (core(plural, Some(rule.namespace())), Purpose::Fetched)
    });
    let scoped = watched
        .chain(fetched)
        .map(|(rule, purpose)| Target { scope: Scope { rule, fields: "".into() }, purpose });
    scoped.filter(|target| seen.insert(target.scope.clone())).collect()
}

/// What is to be watched.
pub(super) fn watched(config: &BridgeConfig) -> BTreeSet<Scope> {
    wanted(config).into_iter().map(|target| target.scope).collect()
}

/// What a round lists.
pub(super) fn targets(config: &BridgeConfig, reason: RoundReason) -> Vec<Target> {
    let wanted = wanted(config);
    let mut targets: Vec<Target> = Vec::new();
    for target in wanted {
        let everywhere = target.scope.everywhere();
        if target.scope != everywhere && !targets.iter().any(|known| known.scope == everywhere) {
            targets.push(Target { scope: everywhere, purpose: Purpose::Proof });
        }
        targets.push(target);
    }
    if reason != RoundReason::Reconnect {
        let fields = format!("spec.nodeName={}", config.node).into();
        targets.push(Target { scope: Scope { rule: core("pods", None), fields }, purpose: Purpose::Pods });
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
