//! Watch planning: computes the set of watches from interests and served kinds. Pure.
//!
//! A watch covers one kind, in one namespace or all, with one label selector: the narrowest that
//! covers all interests there. Each watch costs a connection, so there is one per kind and scope,
//! and none for a namespace that the cluster-wide watch covers. If the cluster-wide watch is
//! refused, the namespaced one is kept: an interest with access to one namespace does not depend on
//! one that wants all.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use edgesync_object::objectsync::is_placeable;
use edgesync_object::selector::MAX_SELECTOR;
use edgesync_object::{Resource, Scope, Selector, Target};
use edgesync_placement::{Glob, KindMatch, NODE_LABEL, ObjectMatch, Unread};

/// Maximum number of namespaces of one kind watched individually per interest; above it, all
/// namespaces are watched.
pub(crate) const MAX_NAMESPACES: usize = 32;
/// Maximum number of watches in a plan.
pub(crate) const MAX_WATCHES: usize = 1024;

/// Originator of an interest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// The fleet itself: its Nodes and the kinds of rules.
    Fleet,
    /// A rule stored as an object, by UID.
    Rule(Arc<str>),
    /// A rule of the configuration, by index from 0.
    Configured(usize),
    /// The label or annotation by which objects name their nodes.
    Named,
    /// Pods, and the objects referred to by Pods bound to a node.
    Pods,
}

/// A set of objects to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interest {
    pub origin: Origin,
    /// The kinds, namespaces and labels. Names are filtered later.
    pub objects: ObjectMatch,
    /// For Pods: only those bound to a node.
    pub bound_only: bool,
}

impl Interest {
    /// Returns the interest of a rule.
    #[must_use]
    pub fn rule(origin: Origin, objects: ObjectMatch) -> Self {
        Self { origin, objects, bound_only: false }
    }

    /// Returns the interests of the fleet itself: Nodes with these labels, and rules stored as
    /// objects.
    #[must_use]
    pub fn fleet(nodes: Selector) -> [Self; 2] {
        let kind =
            |group: &str, kind: &str| KindMatch::Known { group: group.to_owned(), kind: kind.to_owned() };
        let rules = ["Placement", "ClusterPlacement"].map(|name| kind("edgesync.io", name));
        let of = |kinds, selector| {
            Self::rule(Origin::Fleet, ObjectMatch { kinds, selector, ..ObjectMatch::default() })
        };
        [of(vec![kind("", "Node")], nodes), of(rules.into(), Selector::default())]
    }

    /// Returns the interest in objects of some kinds that have the node label.
    #[must_use]
    pub fn labelled(kinds: Vec<KindMatch>) -> Self {
        let selector = NODE_LABEL.parse().unwrap_or_default();
        Self::rule(Origin::Named, ObjectMatch { kinds, selector, ..ObjectMatch::default() })
    }

    /// Returns the interest in objects of some kinds that may have the node annotation. All of them
    /// are read, because selectors do not cover annotations.
    #[must_use]
    pub fn annotated(kinds: Vec<KindMatch>) -> Self {
        Self::rule(Origin::Named, ObjectMatch { kinds, ..ObjectMatch::default() })
    }

    /// Returns the interest in a namespace's Pods that are bound to a node.
    #[must_use]
    pub fn pods(namespace: Glob) -> Self {
        let kinds = vec![KindMatch::Known { group: String::new(), kind: "Pod".to_owned() }];
        let objects = ObjectMatch { kinds, namespaces: vec![namespace], ..ObjectMatch::default() };
        Self { origin: Origin::Pods, objects, bound_only: true }
    }

    /// Returns the interest in objects that Pods of a namespace refer to.
    #[must_use]
    pub fn referred(target: Target, namespace: Glob) -> Self {
        let kind = match target {
            Target::ConfigMap => "ConfigMap",
            Target::Secret => "Secret",
        };
        let kinds = vec![KindMatch::Known { group: String::new(), kind: kind.to_owned() }];
        Self::rule(Origin::Pods, ObjectMatch { kinds, namespaces: vec![namespace], ..ObjectMatch::default() })
    }

    /// Returns whether objects of a kind are of interest.
    pub(super) fn selects(&self, resource: &Resource) -> bool {
        self.may_select(resource) && self.objects.takes(resource)
    }

    fn may_select(&self, resource: &Resource) -> bool {
        is_placeable(resource) || self.origin == Origin::Fleet
    }

    /// Returns the scopes of interest for a kind; none if the kind cannot exist in the namespaces.
    fn namespaces_of(&self, resource: &Resource) -> Vec<Namespaces> {
        let namespaces = &self.objects.namespaces;
        if namespaces.is_empty() {
            return vec![Namespaces::All];
        }
        if resource.scope == Scope::Cluster {
            return Vec::new();
        }
        let names: Option<BTreeSet<&str>> = namespaces.iter().map(Glob::name).collect();
        match names.filter(|names| names.len() <= MAX_NAMESPACES) {
            Some(names) => names.into_iter().map(|name| Namespaces::One(name.into())).collect(),
            None => vec![Namespaces::All],
        }
    }
}

/// The kinds that a cluster serves with `list` and `watch`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// The kinds, each in one version.
    pub served: Vec<Arc<Resource>>,
    /// Groups whose discovery failed, so that their kinds are unknown.
    pub undiscovered: BTreeSet<String>,
}

impl Kinds {
    /// Keeps the previous kinds of groups whose discovery failed.
    pub(crate) fn keep_undiscovered(&mut self, before: &Self) {
        let kept = before.served.iter().filter(|resource| self.undiscovered.contains(&resource.group));
        let kept: Vec<_> = kept.cloned().collect();
        self.served.extend(kept);
        self.served.sort_by(|one, other| (&one.group, &one.plural).cmp(&(&other.group, &other.plural)));
    }

    /// Returns whether an unknown kind may be served by a group whose discovery failed.
    fn may_serve(&self, kind: &KindMatch) -> bool {
        match kind {
            KindMatch::Known { group, .. } | KindMatch::Other { group: Some(group), .. } => {
                self.undiscovered.contains(group)
            }
            KindMatch::Other { group: None, .. } => !self.undiscovered.is_empty(),
        }
    }
}

/// A kind, independent of its version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KindId {
    /// API group; empty for the core group.
    pub group: Arc<str>,
    /// Lower-case plural of API paths, such as `configmaps`.
    pub plural: Arc<str>,
}

impl KindId {
    /// Returns the id of a resource.
    #[must_use]
    pub(crate) fn of(resource: &Resource) -> Self {
        Self { group: resource.group.as_str().into(), plural: resource.plural.as_str().into() }
    }
}

impl fmt::Display for KindId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            f.write_str(&self.plural)
        } else {
            write!(f, "{}.{}", self.plural, self.group)
        }
    }
}

/// Scope of a watch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Namespaces {
    /// All namespaces, or a cluster-scoped kind.
    All,
    One(Arc<str>),
}

impl Namespaces {
    /// Returns the description of a kind that is unreadable in this scope.
    pub(super) fn unread(&self, resource: &Resource) -> Unread {
        let kind = KindMatch::Known { group: resource.group.clone(), kind: resource.kind.clone() };
        let namespace = match self {
            Self::All => None,
            Self::One(name) => Some(Arc::clone(name)),
        };
        Unread::Kind(kind, namespace)
    }
}

/// Key of a watch: kind and scope.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WatchScope {
    pub kind: KindId,
    pub namespaces: Namespaces,
}

impl fmt::Display for WatchScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespaces {
            Namespaces::All => self.kind.fmt(f),
            Namespaces::One(name) => write!(f, "{} in namespace {name}", self.kind),
        }
    }
}

/// Parameters of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The kind, in the served version.
    pub resource: Arc<Resource>,
    /// Label selector, the narrowest that covers those of the interests.
    pub selector: Selector,
    /// For Pods: only those bound to a node.
    pub bound_only: bool,
    /// Namespaces without interest, which the API server leaves out.
    pub excluded: BTreeSet<Arc<str>>,
    /// Originators of the interests that this watch covers.
    pub origins: BTreeSet<Origin>,
}

impl Watch {
    /// Widens the watch to cover another interest.
    fn widen(&mut self, interest: &Interest) {
        self.selector = self.selector.joined(&interest.objects.selector);
        self.bound_only &= interest.bound_only;
        self.origins.insert(interest.origin.clone());
    }

    /// Returns whether both watches send the same request.
    pub(super) fn has_same_request(&self, other: &Self) -> bool {
        (&self.resource, &self.selector, self.bound_only, &self.excluded)
            == (&other.resource, &other.selector, other.bound_only, &other.excluded)
    }

    /// Returns whether this watch delivers all objects of another one of the same kind.
    fn covers(&self, other: &Self) -> bool {
        self.selector.covers(&other.selector) && (!self.bound_only || other.bound_only)
    }
}

/// A reason why an interest is not met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The originator of the interest.
    pub origin: Origin,
    /// The kind, as named in the interest or as served.
    pub kind: String,
    pub cause: Cause,
}

/// Cause of a [`Problem`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The kind is not served, or not watchable.
    #[error("kind not served, or not watchable")]
    Unserved,
    /// Discovery of the kind's group failed.
    #[error("unknown whether the kind is served: discovery of an API group failed")]
    Undiscovered,
    /// The API server denies it, with its message.
    #[error("{0}")]
    Refused(String),
    /// Several attempts in a row failed; the text is the last error.
    #[error("not readable: {0}")]
    Broken(String),
    /// The namespace is that of edgesync itself.
    #[error("objects in the namespace of edgesync itself are never placed")]
    Reserved,
    /// The limit on watches is exceeded.
    #[error("limit of {MAX_WATCHES} watches reached; rules that name fewer namespaces need fewer watches")]
    TooMany,
}

/// The watches to run, and the interests not met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// One watch per key at most.
    pub watches: BTreeMap<WatchScope, Watch>,
    /// Unmet interests, by originator.
    pub problems: Vec<Problem>,
    /// Objects of interest that are not watched.
    pub unread: Vec<Unread>,
}

impl Plan {
    /// Plans watches for some interests. Includes refused watches, so that they are retried, but
    /// does not count on them to cover others.
    #[must_use]
    pub(super) fn of(interests: &[Interest], kinds: &Kinds, refused: &BTreeSet<WatchScope>) -> Self {
        let mut plan = Self::default();
        for interest in interests {
            plan.record_problems(interest, kinds);
            for resource in kinds.served.iter().filter(|resource| interest.selects(resource)) {
                for namespaces in interest.namespaces_of(resource) {
                    plan.add(WatchScope { kind: KindId::of(resource), namespaces }, resource, interest);
                }
            }
        }
        for watch in plan.watches.values_mut() {
            // The selector is part of the request's URL, which has a limit.
            if watch.selector.to_string().len() > MAX_SELECTOR {
                watch.selector = Selector::default();
            }
        }
        plan.remove_covered(refused);
        plan
    }

    /// Excludes the placeable objects of a namespace from all watches. Watches of that namespace
    /// alone become problems of their interests.
    pub(super) fn exclude(&mut self, namespace: &Arc<str>) {
        let placeable = |watch: &Watch| is_placeable(&watch.resource);
        let own = |scope: &WatchScope| scope.namespaces == Namespaces::One(Arc::clone(namespace));
        for (scope, watch) in self.watches.extract_if(.., |scope, watch| own(scope) && placeable(watch)) {
            let kind = scope.to_string();
            let problem = |origin| Problem { origin, kind: kind.clone(), cause: Cause::Reserved };
            self.problems.extend(watch.origins.into_iter().map(problem));
        }
        let wide = self.watches.iter_mut().filter(|(scope, _)| scope.namespaces == Namespaces::All);
        let namespaced = |watch: &&mut Watch| watch.resource.scope == Scope::Namespaced && placeable(watch);
        for watch in wide.map(|(_, watch)| watch).filter(namespaced) {
            watch.excluded.insert(Arc::clone(namespace));
        }
    }

    fn record_problems(&mut self, interest: &Interest, kinds: &Kinds) {
        for kind in &interest.objects.kinds {
            if !kinds.served.iter().any(|resource| interest.may_select(resource) && kind.matches(resource)) {
                let cause = if kinds.may_serve(kind) { Cause::Undiscovered } else { Cause::Unserved };
                self.record(interest, Unread::Kind(kind.clone(), None), cause);
            }
        }
        if interest.objects.kinds.is_empty() {
            for group in &kinds.undiscovered {
                self.record(interest, Unread::Group(group.clone()), Cause::Undiscovered);
            }
        }
    }

    fn record(&mut self, interest: &Interest, unread: Unread, cause: Cause) {
        self.problems.push(Problem { origin: interest.origin.clone(), kind: unread.to_string(), cause });
        if !self.unread.contains(&unread) {
            self.unread.push(unread);
        }
    }

    fn add(&mut self, scope: WatchScope, resource: &Arc<Resource>, interest: &Interest) {
        let new = || Watch {
            resource: Arc::clone(resource),
            selector: interest.objects.selector.clone(),
            bound_only: interest.bound_only,
            excluded: BTreeSet::new(),
            origins: BTreeSet::new(),
        };
        if self.watches.len() < MAX_WATCHES || self.watches.contains_key(&scope) {
            self.watches.entry(scope).or_insert_with(new).widen(interest);
        } else {
            self.record(interest, scope.namespaces.unread(resource), Cause::TooMany);
        }
    }

    /// Returns whether the limit on watches leaves out nothing.
    #[must_use]
    pub(super) fn is_whole(&self) -> bool {
        !self.problems.iter().any(|problem| problem.cause == Cause::TooMany)
    }

    fn remove_covered(&mut self, refused: &BTreeSet<WatchScope>) {
        let everywhere =
            |scope: &WatchScope| WatchScope { kind: scope.kind.clone(), namespaces: Namespaces::All };
        let covered = |(scope, watch): (&WatchScope, &Watch)| {
            let wide = everywhere(scope);
            let is_covered = wide != *scope
                && !refused.contains(&wide)
                && self.watches.get(&wide).is_some_and(|wide| wide.covers(watch));
            is_covered.then(|| scope.clone())
        };
        let covered_scopes: Vec<WatchScope> = self.watches.iter().filter_map(covered).collect();
        for scope in covered_scopes {
            let Some(watch) = self.watches.remove(&scope) else { continue };
            if let Some(wide) = self.watches.get_mut(&everywhere(&scope)) {
                wide.origins.extend(watch.origins);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::kinds;

    fn served(words: &[&str]) -> Kinds {
        let resource = |word: &&str| match kinds::by_word(word) {
            Some(known) => Arc::new(known.resource()),
            None => Arc::new(kinds::guess("lab.io/v1", word, true)),
        };
        Kinds { served: words.iter().map(resource).collect(), undiscovered: BTreeSet::new() }
    }

    fn usual() -> Kinds {
        served(&["cm", "secret", "pod", "ns", "clusterrole", "lease", "Widget"])
    }

    fn rule(number: usize, kinds: &[&str], namespaces: &[&str], selector: &str) -> Interest {
        let objects = ObjectMatch {
            kinds: kinds.iter().map(|kind| kind.parse().unwrap()).collect(),
            namespaces: namespaces.iter().map(|glob| glob.parse().unwrap()).collect(),
            selector: selector.parse().unwrap(),
            ..ObjectMatch::default()
        };
        Interest::rule(Origin::Configured(number), objects)
    }

    /// `plural[ in namespace X][ with SELECTOR] for ORIGINS`, in order.
    fn shown(plan: &Plan) -> Vec<String> {
        let shown = |(scope, watch): (&WatchScope, &Watch)| {
            let with =
                if watch.selector.is_empty() { String::new() } else { format!(" with {}", watch.selector) };
            let on = if watch.bound_only { " on a node" } else { "" };
            let origins: Vec<String> = watch
                .origins
                .iter()
                .map(|origin| match origin {
                    Origin::Configured(number) => number.to_string(),
                    other => format!("{other:?}"),
                })
                .collect();
            format!("{scope}{with}{on} for {}", origins.join(" "))
        };
        plan.watches.iter().map(shown).collect()
    }

    fn unread(plan: &Plan) -> Vec<String> {
        plan.unread.iter().map(ToString::to_string).collect()
    }

    fn planned(interests: &[Interest]) -> Vec<String> {
        shown(&Plan::of(interests, &usual(), &BTreeSet::new()))
    }

    #[test]
    fn a_rule_is_watched_in_its_namespaces_with_its_selector() {
        let rule = rule(0, &["cm", "widgets"], &["shop", "plant"], "tier=edge");
        assert_eq!(
            planned(&[rule]),
            [
                "configmaps in namespace plant with tier=edge for 0",
                "configmaps in namespace shop with tier=edge for 0",
                "widgets.lab.io in namespace plant with tier=edge for 0",
                "widgets.lab.io in namespace shop with tier=edge for 0",
            ]
        );
    }

    #[test]
    fn patterns_and_many_namespaces_need_a_cluster_wide_watch() {
        assert_eq!(planned(&[rule(0, &["cm"], &["shop-*", "plant"], "")]), ["configmaps for 0"]);
        let many: Vec<String> = (0..=MAX_NAMESPACES).map(|number| format!("n{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(planned(&[rule(0, &["cm"], &many, "")]), ["configmaps for 0"]);
        assert_eq!(planned(&[rule(0, &["cm"], &many[1..], "")]).len(), MAX_NAMESPACES);
        assert_eq!(planned(&[rule(0, &["cm"], &["shop", "shop"], "")]).len(), 1);
    }

    #[test]
    fn placeable_objects_of_the_excluded_namespace_are_not_watched() {
        let [own, keys]: [Arc<str>; 2] = ["edgesync".into(), "edgesync-ca".into()];
        let [nodes, rules] = Interest::fleet(Selector::default());
        let kinds = served(&["cm", "secret", "pod", "clusterrole", "node"]);
        let own_ones = ["edgesync", "edgesync-ca", "shop"];
        let placed = [rule(0, &["cm"], &[], ""), rule(1, &["secret"], &own_ones, "")];
        let unscoped = rule(2, &["clusterrole"], &[], "");
        let pods = Interest::pods("*".parse().unwrap());
        let interests: Vec<_> = placed.into_iter().chain([unscoped, pods, nodes, rules]).collect();
        let mut plan = Plan::of(&interests, &kinds, &BTreeSet::new());
        plan.problems.clear();
        plan.exclude(&own);
        plan.exclude(&keys);
        let both = BTreeSet::from([own, keys]);
        let excluded: Vec<String> = plan
            .watches
            .iter()
            .filter(|(_, watch)| watch.excluded == both)
            .map(|(scope, _)| scope.to_string())
            .collect();
        assert_eq!(excluded, ["configmaps", "pods"]);
        let others: Vec<String> = plan
            .watches
            .iter()
            .filter(|(_, watch)| watch.excluded.is_empty())
            .map(|(scope, _)| scope.to_string())
            .collect();
        assert_eq!(others, ["nodes", "secrets in namespace shop", "clusterroles.rbac.authorization.k8s.io"]);
        let [problem, other] = &plan.problems[..] else { panic!("{:?}", plan.problems) };
        assert_eq!((&problem.origin, &problem.cause), (&Origin::Configured(1), &Cause::Reserved));
        assert_eq!(problem.kind, "secrets in namespace edgesync");
        assert_eq!(other.kind, "secrets in namespace edgesync-ca");
    }

    #[test]
    fn cluster_scoped_kinds_are_in_no_named_namespace() {
        assert_eq!(planned(&[rule(0, &["clusterrole"], &["shop"], "")]), [""; 0]);
        let everywhere = ["clusterroles.rbac.authorization.k8s.io for 0"];
        assert_eq!(planned(&[rule(0, &["clusterrole"], &[], "")]), everywhere);
    }

    #[test]
    fn a_rule_without_kinds_watches_all_placeable_kinds() {
        let all = planned(&[rule(0, &[], &[], "tier=edge")]);
        let plurals: Vec<&str> = all.iter().map(|watch| watch.split(' ').next().unwrap()).collect();
        let expected =
            ["configmaps", "pods", "secrets", "widgets.lab.io", "clusterroles.rbac.authorization.k8s.io"];
        assert_eq!(BTreeSet::from_iter(plurals), BTreeSet::from(expected));
        assert_eq!(planned(&[rule(0, &["ns"], &[], "")]), ["namespaces for 0"]);
    }

    #[test]
    fn interests_in_the_same_scope_share_a_watch() {
        let rules =
            |one: &str, other: &str| planned(&[rule(0, &["cm"], &[], one), rule(1, &["cm"], &[], other)]);
        assert_eq!(rules("tier=a", "tier=b"), ["configmaps with tier in (a,b) for 0 1"]);
        assert_eq!(rules("tier=a,app=web", "tier=a"), ["configmaps with tier=a for 0 1"]);
        assert_eq!(rules("tier=a", "app=web"), ["configmaps for 0 1"]);
    }

    #[test]
    fn a_cluster_wide_watch_replaces_those_of_namespaces_it_covers() {
        let rules = [rule(0, &["cm"], &[], "tier"), rule(1, &["cm"], &["shop"], "tier=a")];
        assert_eq!(planned(&rules), ["configmaps with tier for 0 1"]);
        let less = [rule(0, &["cm"], &[], "tier"), rule(1, &["cm"], &["shop"], "app=web")];
        let both = ["configmaps with tier for 0", "configmaps in namespace shop with app=web for 1"];
        assert_eq!(planned(&less), both);

        let kind = KindId { group: "".into(), plural: "configmaps".into() };
        let refused = BTreeSet::from([WatchScope { kind, namespaces: Namespaces::All }]);
        let both = ["configmaps with tier for 0", "configmaps in namespace shop with tier=a for 1"];
        assert_eq!(shown(&Plan::of(&rules, &usual(), &refused)), both);
    }

    #[test]
    fn labelled_objects_are_selected_and_annotated_kinds_read_whole() {
        let kinds = || vec!["cm".parse().unwrap(), "Widget".parse().unwrap()];
        let labelled =
            ["configmaps with edgesync.io/node for Named", "widgets.lab.io with edgesync.io/node for Named"];
        assert_eq!(planned(&[Interest::labelled(kinds())]), labelled);
        assert_eq!(
            planned(&[Interest::annotated(kinds())]),
            ["configmaps for Named", "widgets.lab.io for Named"]
        );
        let both = [Interest::labelled(kinds()), rule(3, &["cm"], &["shop"], "")];
        assert!(planned(&both).contains(&"configmaps in namespace shop for 3".to_owned()));
    }

    #[test]
    fn pods_are_watched_if_bound_with_their_references() {
        let shop: Glob = "shop".parse().unwrap();
        let interests = [Interest::pods("*".parse().unwrap()), Interest::referred(Target::Secret, shop)];
        assert_eq!(planned(&interests), ["pods on a node for Pods", "secrets in namespace shop for Pods"]);
        let all = [Interest::pods("*".parse().unwrap()), rule(0, &["pods"], &[], "")];
        assert_eq!(planned(&all), ["pods for 0 Pods"]);
        let some = [Interest::pods("*".parse().unwrap()), rule(0, &["pods"], &["shop"], "")];
        assert_eq!(planned(&some), ["pods on a node for Pods", "pods in namespace shop for 0"]);
    }

    #[test]
    fn only_the_fleet_watches_nodes_and_rules() {
        let mut kinds = served(&["node", "cm"]);
        kinds.served.push(Arc::new(kinds::guess("edgesync.io/v1alpha1", "Placement", true)));
        let [nodes, rules] = Interest::fleet("edgesync.io/fleet=a".parse().unwrap());
        let plan = Plan::of(&[nodes, rules, rule(0, &[], &[], "")], &kinds, &BTreeSet::new());
        assert_eq!(
            shown(&plan),
            [
                "configmaps for 0",
                "nodes with edgesync.io/fleet=a for Fleet",
                "placements.edgesync.io for Fleet"
            ]
        );
        let [Problem { origin: Origin::Fleet, kind, cause: Cause::Unserved }] = &plan.problems[..] else {
            panic!("{:?}", plan.problems)
        };
        assert_eq!(kind, "ClusterPlacement.edgesync.io");
    }

    #[test]
    fn an_unserved_kind_is_a_problem_of_its_rule_only() {
        let rules = [rule(0, &["cm", "gizmos"], &[], ""), rule(1, &["secrets"], &[], "")];
        let problem = |kinds: &Kinds| {
            let plan = Plan::of(&rules, kinds, &BTreeSet::new());
            assert_eq!(shown(&plan), ["configmaps for 0", "secrets for 1"]);
            let [Problem { origin: Origin::Configured(0), kind, cause }] = &plan.problems[..] else {
                panic!("{:?}", plan.problems)
            };
            assert_eq!(kind, "gizmos");
            assert_eq!(unread(&plan), ["gizmos"]);
            cause.clone()
        };
        assert_eq!(problem(&usual()), Cause::Unserved);
        let undiscovered = Kinds { undiscovered: ["metrics.k8s.io".to_owned()].into(), ..usual() };
        assert_eq!(problem(&undiscovered), Cause::Undiscovered);
        let elsewhere = [rule(0, &["Gizmo.lab.io"], &[], "")];
        assert_eq!(Plan::of(&elsewhere, &undiscovered, &BTreeSet::new()).problems[0].cause, Cause::Unserved);
    }

    #[test]
    fn kinds_of_a_group_stay_while_its_discovery_fails() {
        let mut kinds = Kinds { undiscovered: ["lab.io".to_owned()].into(), ..served(&["cm"]) };
        kinds.keep_undiscovered(&usual());
        let plan = Plan::of(&[rule(0, &["Widget"], &[], "")], &kinds, &BTreeSet::new());
        assert_eq!((shown(&plan), plan.problems), (vec!["widgets.lab.io for 0".to_owned()], Vec::new()));
        assert!(!kinds.served.iter().any(|resource| resource.kind == "Secret"), "that group has answered");
    }

    #[test]
    fn an_undiscovered_group_is_unread_once() {
        let kinds = Kinds { undiscovered: ["lab.io".to_owned()].into(), ..served(&["cm"]) };
        let rules = [rule(0, &[], &[], ""), rule(1, &["gizmos"], &[], ""), rule(2, &["gizmos"], &[], "")];
        let plan = Plan::of(&rules, &kinds, &BTreeSet::new());
        assert_eq!((unread(&plan).join(" "), plan.problems.len()), ("*.lab.io gizmos".to_owned(), 3));
    }

    #[test]
    fn excess_watches_are_problems_of_the_last_rules() {
        let name = |rule: usize, number: usize| format!("n{rule}-{number}");
        let names = |rule: usize| (0..MAX_NAMESPACES).map(|number| name(rule, number)).collect::<Vec<_>>();
        let rules = |count: usize| {
            let rule = |number: usize| {
                let names = names(number);
                rule(number, &["cm"], &names.iter().map(String::as_str).collect::<Vec<_>>(), "")
            };
            (0..count).map(rule).collect::<Vec<_>>()
        };
        let full = MAX_WATCHES / MAX_NAMESPACES;
        assert!(Plan::of(&rules(full), &usual(), &BTreeSet::new()).is_whole());
        let plan = Plan::of(&rules(full + 1), &usual(), &BTreeSet::new());
        assert!(!plan.is_whole() && plan.watches.len() == MAX_WATCHES);
        assert_eq!(plan.problems.len(), MAX_NAMESPACES);
        assert!(plan.problems.iter().all(|problem| problem.origin == Origin::Configured(full)));
        assert_eq!(unread(&plan)[0], "ConfigMap in namespace n32-0");
    }

    #[test]
    fn a_selector_too_long_for_a_request_selects_everything() {
        let values = |number: usize| format!("tier=v{number:060}");
        let rules: Vec<Interest> =
            (0..400).map(|number| rule(number, &["cm"], &[], &values(number))).collect();
        assert!(planned(&rules[..100])[0].starts_with("configmaps with tier in ("));
        assert!(planned(&rules)[0].starts_with("configmaps for "));
    }
}
