//! The revision of each rule that a node has, and the desired objects that follow from it.
//!
//! A rule with a roll-out *governs* objects on its nodes: what is desired of them there follows
//! from the revision that is assigned to the node, not from the newest versions. Nodes with equal
//! assignments share one, and all nodes share the sets of the revisions.
//!
//! An assignment changes node by node ([`super::reconciler::Reconciler::reassign`]), together with
//! the desired objects of the node's machine. Nodes whose assignment may have changed wait in a
//! queue.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;

use super::interner::Interner;
use super::node::desired;
use crate::source::{RevisionKey, RuleKey};
use edgesync_object::file_rules::{Candidate, FileRules};
use edgesync_object::{Labels, NodeName, ObjectRef, Resource, ResourceVersion, kinds, split_api_version};
use edgesync_placement::{OnNode, Placed, Reasons, RuleId};
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::Desired;
#[cfg(test)]
use edgesync_protocol::fault::{Fault, planted};
use edgesync_rollout::desired::{self as decision, Age, Governing, decide};
use edgesync_rollout::{Rollout, Set, Status};

/// Number of a governing rule; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RuleIndex(u32);

/// A revision, shared by all of its nodes.
#[derive(Debug)]
pub(crate) struct Revision {
    pub(crate) key: RevisionKey,
    /// Its content; `None` if it is lost, or is not known yet.
    pub(crate) set: Option<Arc<Set>>,
    /// Names and kinds of its objects, for those that the source has deleted.
    objects: HashMap<Uid, (Arc<ObjectRef>, Arc<Resource>)>,
    /// Their UIDs by name alone.
    names: HashMap<Arc<str>, Vec<Uid>>,
}

/// Life cycle of a governing rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nodes get their first assignment; until it is active the rule places the newest versions
    /// there, but decides about no version.
    Adopting,
    /// Each of its nodes has an assignment. On others the rule places nothing.
    Active,
    /// It has no roll-out any more: it places the newest versions on nodes without an assignment.
    Leaving,
    /// It was deleted, and places nothing on nodes without an assignment.
    Gone,
}

/// A rule with a roll-out.
#[derive(Debug)]
pub(crate) struct GoverningRule {
    pub(crate) key: RuleKey,
    created: Timestamp,
    namespace: Arc<str>,
    name: Arc<str>,
    /// Its numbers in the placement index: several while a changed rule replaces the one before.
    ids: Vec<RuleId>,
    stage: Stage,
    pub(crate) rollout: Arc<Rollout>,
    /// Whether its waves are not known: nodes keep what they hold while revisions are rolled out.
    is_frozen: bool,
    pub(crate) status: Status,
    /// The revisions of its stack whose sets were read.
    revisions: Vec<Arc<Revision>>,
    /// Those whose sets cannot be read now: their nodes keep what they hold.
    unreadable: Vec<RevisionKey>,
}

/// The assignment of a node under a rule.
#[derive(Clone, Debug)]
struct Entry {
    rule: RuleIndex,
    /// `None` before the first revision of the rule.
    revision: Option<Arc<Revision>>,
    /// Whether the rule is being adopted: it places the newest versions without deciding about
    /// versions, as it did before it had the roll-out.
    is_adopting: bool,
}

/// The revisions that are assigned to a node, by the age of their rules. Interned.
#[derive(Debug)]
pub(crate) struct Assignment(Vec<Entry>);

/// The desired version of an object on a node.
#[derive(Debug)]
pub(crate) enum Effective<'a> {
    /// The newest version.
    Newest,
    /// The version of this revision.
    Version(&'a edgesync_rollout::revision::Entry, &'a Arc<Revision>),
    /// The object is not desired.
    Absent,
    /// Not known: a node that holds the object keeps it.
    Unknown,
}

/// Where the name of an object is found.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named<'a> {
    /// The placement index does not have the object.
    Absent,
    /// Here.
    As(&'a ObjectRef),
    /// In the placement index, which places it on the node.
    On(&'a OnNode<'a>),
}

/// Key of a revision, and whether its set is known.
type Known = (RevisionKey, bool);

/// Key of an entry: that of its revision, and whether the rule is being adopted.
type EntryKey = (Option<Known>, bool);

/// Key of an interned assignment: the rules with the numbers and digests of their revisions.
type Interned = Vec<(RuleIndex, EntryKey)>;

/// Governing rules, assignments of nodes, and the queue; see the module.
#[derive(Debug, Default)]
pub(crate) struct Assignments {
    rules: BTreeMap<RuleIndex, GoverningRule>,
    by_key: HashMap<RuleKey, RuleIndex>,
    by_id: HashMap<RuleId, RuleIndex>,
    next: u32,
    of_nodes: HashMap<NodeName, Arc<Assignment>>,
    interned: Interner<Interned, Assignment>,
    /// Nodes whose assignment may have changed.
    queue: BTreeSet<NodeName>,
}

/// Identity of a rule, for [`Assignments::govern`].
#[derive(Clone, Debug)]
pub(crate) struct RuleIdentity {
    pub(crate) key: RuleKey,
    /// Its creation; the minimum for rules of the configuration.
    pub(crate) created: Timestamp,
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
}

impl Revision {
    /// Creates a revision. `resource` returns the kind of an object that the source still has.
    pub(crate) fn new(
        key: RevisionKey,
        set: Option<Arc<Set>>,
        resource: impl Fn(&str) -> Option<Arc<Resource>>,
    ) -> Self {
        let entries = set.iter().flat_map(|set| set.entries());
        let objects = entries.map(|(uid, entry)| {
            let ObjectRef { api_version, kind, namespace, .. } = &entry.object;
            let guess = || Arc::new(kinds::guess(api_version, kind, !namespace.is_empty()));
            (uid.clone(), (Arc::new(entry.object.clone()), resource(uid).unwrap_or_else(guess)))
        });
        let objects: HashMap<_, _> = objects.collect();
        let mut names: HashMap<Arc<str>, Vec<Uid>> = HashMap::with_capacity(objects.len());
        for (uid, (object, _)) in &objects {
            names.entry(object.name.clone()).or_default().push(uid.clone());
        }
        Self { key, set, objects, names }
    }

    /// Creates a revision whose set is not known: its nodes keep what they hold.
    fn unknown(key: RevisionKey) -> Self {
        Self { key, set: None, objects: HashMap::new(), names: HashMap::new() }
    }

    /// Returns the UID that an object of this kind, namespace and name has in the revision. After
    /// the removal of an object was undone, there may be a new one of its name too: the one with
    /// the newest version counts.
    fn uid_of(&self, object: &ObjectRef) -> Option<&Uid> {
        let group = |object: &ObjectRef| split_api_version(&object.api_version).0.to_owned();
        let namesakes = self.names.get(&object.name)?.iter().filter(|uid| {
            self.objects.get(*uid).is_some_and(|(known, _)| {
                (&known.kind, &known.namespace) == (&object.kind, &object.namespace)
                    && group(known) == group(object)
            })
        });
        // Versions without an order are ordered by UID, so that all replicas choose the same one.
        namesakes.max_by_key(|uid| {
            let version = self.set.as_ref().and_then(|set| set.version(uid));
            (version.and_then(|version| version.as_str().parse::<u128>().ok()), *uid)
        })
    }

    /// Returns whether a node cannot hold an object of the revision, because another one has its
    /// name.
    pub(crate) fn is_hidden(&self, uid: &Uid) -> bool {
        let Some((object, _)) = self.objects.get(uid) else { return false };
        let has_namesakes = self.names.get(&object.name).is_some_and(|uids| uids.len() > 1);
        has_namesakes && self.uid_of(object).is_some_and(|first| first != uid)
    }

    /// Returns which of its objects, in their order, file rules concern; `None` if that is not
    /// known.
    pub(crate) fn concerned(&self, rules: &FileRules) -> Option<Vec<bool>> {
        let entries = self.set.as_ref()?.entries().iter();
        let candidates = entries.map(|(uid, entry)| {
            let (object, resource) = self.objects.get(uid)?;
            let ObjectRef { namespace, name, .. } = &**object;
            Some(Candidate { resource, namespace, name, labels: &entry.labels })
        });
        rules.concern(&candidates.collect::<Option<Vec<_>>>()?)
    }

    /// Returns whether messages of a node with these file rules about one of its objects may quote
    /// a Secret; they may if the rules are not known.
    pub(crate) fn may_quote_secrets(&self, uid: &str, rules: Option<&FileRules>) -> bool {
        let entry = self.set.as_ref().and_then(|set| set.entries().get(uid));
        let Some((rules, (entry, (object, resource)))) = rules.zip(entry.zip(self.objects.get(uid))) else {
            return true;
        };
        let ObjectRef { namespace, name, .. } = &**object;
        let object = Candidate { resource, namespace, name, labels: &entry.labels };
        rules.may_quote(&object, &kinds::guess("v1", "Secret", true))
    }

    fn known(&self) -> Known {
        (self.key.clone(), self.set.is_some())
    }

    /// Returns the desired object of an entry. The urgency is that of the newest version.
    fn desired(
        &self,
        uid: &str,
        entry: &edgesync_rollout::revision::Entry,
        newest: Option<&Placed>,
    ) -> Option<Desired> {
        let (object, resource) = self.objects.get(uid)?;
        Some(Desired {
            version: entry.version.clone(),
            object: object.clone(),
            resource: resource.clone(),
            size: usize::try_from(entry.size).unwrap_or(usize::MAX),
            urgency: newest.map(|newest| newest.urgency).unwrap_or_default(),
            is_exact: true,
        })
    }
}

impl GoverningRule {
    fn age(&self) -> Age<'_> {
        Age { created: self.created, namespace: &self.namespace, name: &self.name }
    }

    /// Returns the name for operators: `NAMESPACE/NAME`, or the name alone.
    pub(crate) fn shown_name(&self) -> String {
        match self.namespace.is_empty() {
            true => self.name.to_string(),
            false => format!("{}/{}", self.namespace, self.name),
        }
    }

    /// Returns whether this rule decides before the other one.
    pub(crate) fn is_older_than(&self, other: &Self) -> bool {
        self.age() < other.age()
    }

    /// Returns whether its waves are not known.
    pub(crate) fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// Returns its numbers in the placement index.
    pub(crate) fn ids(&self) -> &[RuleId] {
        &self.ids
    }

    /// Returns whether its roll-out can be moved: each node has an assignment.
    pub(crate) fn is_active(&self) -> bool {
        self.stage == Stage::Active
    }

    /// Returns whether it has no roll-out any more.
    pub(crate) fn is_ending(&self) -> bool {
        matches!(self.stage, Stage::Leaving | Stage::Gone)
    }

    /// Returns a revision of its stack, if its set was read.
    pub(crate) fn revision(&self, key: &RevisionKey) -> Option<&Arc<Revision>> {
        self.revisions.iter().find(|revision| revision.key == *key)
    }

    /// Returns the key of a revision of this rule.
    pub(crate) fn revision_key(&self, revision: &edgesync_rollout::status::Revision) -> RevisionKey {
        RevisionKey { rule: self.key.clone(), number: revision.number, digest: revision.digest }
    }

    /// Returns the sets of the stack for the engine; without lost ones.
    pub(crate) fn sets(&self) -> edgesync_rollout::engine::Sets {
        let sets = self.status.revisions.iter().filter_map(|revision| {
            let read = self.revision(&self.revision_key(revision))?;
            Some((revision.number, read.set.clone()?))
        });
        sets.collect()
    }

    /// Returns the numbers of the stack's revisions whose sets are lost.
    pub(crate) fn lost(&self) -> BTreeSet<u64> {
        let lost = self.status.revisions.iter().filter(|revision| {
            self.revision(&self.revision_key(revision)).is_some_and(|read| read.set.is_none())
        });
        lost.map(|revision| revision.number).collect()
    }

    /// Returns the first revision of the stack whose set was not read yet.
    pub(crate) fn first_unread(&self) -> Option<RevisionKey> {
        self.unread().next()
    }

    /// Returns the first of them that is waited for: reading it has not failed repeatedly.
    pub(crate) fn first_awaited(&self) -> Option<RevisionKey> {
        self.unread().find(|key| !self.unreadable.contains(key))
    }

    fn unread(&self) -> impl Iterator<Item = RevisionKey> {
        let keys = self.status.revisions.iter().map(|revision| self.revision_key(revision));
        keys.filter(|key| self.revision(key).is_none())
    }
}

impl Entry {
    fn key(&self) -> EntryKey {
        (self.revision.as_ref().map(|revision| revision.known()), self.is_adopting)
    }
}

impl Assignment {
    fn key(&self) -> Interned {
        self.0.iter().map(|entry| (entry.rule, entry.key())).collect()
    }

    fn entry(&self, rule: RuleIndex) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.rule == rule)
    }

    /// Returns whether the set of a revision is lost.
    pub(crate) fn has_lost(&self) -> bool {
        self.0.iter().filter_map(|entry| entry.revision.as_ref()).any(|revision| revision.set.is_none())
    }

    /// Returns the known sets, by the age of their rules.
    fn sets(&self) -> impl DoubleEndedIterator<Item = &Set> {
        self.0.iter().filter_map(|entry| entry.revision.as_ref()?.set.as_deref())
    }
}

impl Assignments {
    /// Returns whether no rule governs objects.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the assignment of a node.
    pub(crate) fn of(&self, node: &NodeName) -> Option<&Arc<Assignment>> {
        self.of_nodes.get(node)
    }

    /// Returns whether an object may be in a revision of a node whose set is not known.
    /// `may_select` is whether a rule may select it.
    pub(crate) fn may_be_lost(&self, assignment: &Assignment, may_select: impl Fn(RuleId) -> bool) -> bool {
        let is_lost = |entry: &&Entry| entry.revision.as_ref().is_some_and(|revision| revision.set.is_none());
        let rules = assignment.0.iter().filter(is_lost).filter_map(|entry| self.rules.get(&entry.rule));
        rules.flat_map(|rule| &rule.ids).any(|id| may_select(*id))
    }

    /// Returns the governing rules with their numbers.
    pub(crate) fn rules(&self) -> impl Iterator<Item = (RuleIndex, &GoverningRule)> {
        self.rules.iter().map(|(index, rule)| (*index, rule))
    }

    pub(crate) fn rule(&self, index: RuleIndex) -> Option<&GoverningRule> {
        self.rules.get(&index)
    }

    /// Returns the number of a rule that is not being removed.
    pub(crate) fn index(&self, key: &RuleKey) -> Option<RuleIndex> {
        self.by_key.get(key).copied()
    }

    /// Returns whether a rule of the placement index governs the objects that it selects.
    pub(crate) fn governs(&self, id: RuleId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Returns the revision of a rule that is assigned to a node.
    pub(crate) fn revision_of(&self, node: &NodeName, rule: RuleIndex) -> Option<&Arc<Revision>> {
        self.of(node)?.entry(rule)?.revision.as_ref()
    }

    /// Returns whether nodes apply a revision outside of their windows, as was asked for when the
    /// one above was undone.
    pub(crate) fn overrides_windows(&self, key: &RevisionKey) -> bool {
        let rule = self.index(&key.rule).and_then(|index| self.rule(index));
        let revisions = rule.iter().flat_map(|rule| &rule.status.revisions);
        revisions
            .filter(|revision| (revision.number, revision.digest) == (key.number, key.digest))
            .any(|revision| revision.overrides_windows_of.is_some())
    }

    // --- what is desired

    /// Decides what is desired of an object on a node. `reasons` are those of the placement index,
    /// `named` says what its name is there.
    ///
    /// A node holds one object of a name. An object that was deleted and created again under
    /// another UID is absent as long as the revision has the one before.
    pub(crate) fn effective<'a>(
        &'a self,
        assignment: Option<&'a Assignment>,
        uid: &str,
        reasons: &Reasons,
        named: Named<'_>,
    ) -> Effective<'a> {
        let effective = self.decide(assignment, uid, reasons);
        let revisions = || assignment.iter().flat_map(|it| &it.0).filter_map(|entry| entry.revision.as_ref());
        let is_taken = |object: &ObjectRef| {
            let first = revisions().find_map(|revision| revision.uid_of(object));
            first.is_some_and(|first| **first != *uid)
        };
        let is_absent = match (&effective, named) {
            (Effective::Version(entry, _), _) => is_taken(&entry.object),
            (Effective::Newest, Named::As(object)) => is_taken(object),
            (Effective::Newest, Named::On(on)) => {
                let has_name = |name| revisions().any(|revision| revision.names.contains_key(name));
                on.name(uid).is_some_and(has_name) && on.get(uid).is_some_and(|it| is_taken(&it.object))
            }
            _ => false,
        };
        if is_absent { Effective::Absent } else { effective }
    }

    fn decide<'a>(
        &'a self,
        assignment: Option<&'a Assignment>,
        uid: &str,
        reasons: &Reasons,
    ) -> Effective<'a> {
        #[cfg(test)]
        if planted(Fault::RevisionIgnored) && *reasons != Reasons::default() {
            return Effective::Newest;
        }
        #[cfg(test)]
        if planted(Fault::PlainRuleDecides) && reasons.rules.iter().any(|id| !self.by_id.contains_key(id)) {
            return Effective::Newest;
        }
        let entries = assignment.map_or(&[][..], |assignment| &assignment.0);
        let is_plain = |id: &RuleId| match self.by_id.get(id) {
            None => true,
            Some(index) => {
                let is_plain = |rule: &GoverningRule| matches!(rule.stage, Stage::Adopting | Stage::Leaving);
                match entries.iter().find(|entry| entry.rule == *index) {
                    Some(entry) => entry.is_adopting,
                    None => self.rules.get(index).is_none_or(is_plain),
                }
            }
        };
        let is_placed = reasons.is_direct || reasons.rules.iter().any(is_plain);
        let deciding = entries.iter().filter(|entry| !entry.is_adopting);
        let governing = deciding.filter_map(|entry| {
            let rule = self.rules.get(&entry.rule)?;
            let assigned = match &entry.revision {
                #[cfg(test)]
                None if planted(Fault::LostStatusRemoves) => decision::Assigned::Set(&EMPTY),
                None => decision::Assigned::None,
                Some(revision) => {
                    revision.set.as_deref().map_or(decision::Assigned::Lost, decision::Assigned::Set)
                }
            };
            let selects = reasons.rules.iter().any(|id| rule.ids.contains(id));
            Some(Governing { age: rule.age(), selects, assigned })
        });
        let governing: Vec<Governing<'a>> = governing.collect();
        #[cfg(test)]
        let governing = match planted(Fault::YoungestDecides) {
            true => youngest(uid, governing),
            false => governing,
        };
        let decision = decide(uid, &governing, is_placed);
        match decision.desired {
            decision::Desired::Newest => Effective::Newest,
            decision::Desired::Absent => Effective::Absent,
            decision::Desired::Unchanged => Effective::Unknown,
            decision::Desired::Version(version) => {
                let is_by = |entry: &&Entry| {
                    self.rules.get(&entry.rule).is_some_and(|rule| Some(rule.age()) == decision.by)
                };
                let by = entries.iter().find(is_by).and_then(|entry| entry.revision.as_ref());
                by.map_or(Effective::Unknown, |revision| Effective::Version(version, revision))
            }
        }
    }

    /// Returns the desired object of a UID. `object` is its newest state with the reasons for it.
    pub(crate) fn desired(
        &self,
        assignment: Option<&Assignment>,
        uid: &str,
        object: Option<(&Placed, &Reasons)>,
    ) -> Option<Desired> {
        let none = Reasons::default();
        let reasons = object.map_or(&none, |(_, reasons)| reasons);
        let named = object.map_or(Named::Absent, |(object, _)| Named::As(&object.object));
        match self.effective(assignment, uid, reasons, named) {
            Effective::Newest => object.map(|(object, _)| desired(object)),
            Effective::Version(entry, revision) => {
                revision.desired(uid, entry, object.map(|(object, _)| object))
            }
            Effective::Absent | Effective::Unknown => None,
        }
    }

    /// Returns the desired version of an object that the placement index has.
    pub(crate) fn version(
        &self,
        assignment: Option<&Assignment>,
        on: &OnNode<'_>,
        uid: &str,
        newest: ResourceVersion,
    ) -> Option<ResourceVersion> {
        match self.effective(assignment, uid, &on.reasons(uid).unwrap_or_default(), Named::On(on)) {
            Effective::Newest => Some(newest),
            Effective::Version(entry, _) => Some(entry.version.clone()),
            Effective::Absent | Effective::Unknown => None,
        }
    }

    /// Returns the desired objects of a node that the placement index does not place there.
    pub(crate) fn pinned<'a>(
        &'a self,
        assignment: Option<&'a Assignment>,
        on: OnNode<'a>,
    ) -> impl Iterator<Item = (&'a str, ResourceVersion)> {
        let none = Reasons::default();
        let entries = assignment.map_or(&[][..], |assignment| &assignment.0);
        let pinned = entries.iter().enumerate().flat_map(move |(place, entry)| {
            let set = entry.revision.as_ref().and_then(|revision| revision.set.as_deref());
            let uids = set.into_iter().flat_map(|set| set.entries().keys());
            uids.filter(move |uid| {
                let mut earlier = entries.iter().take(place).filter_map(|entry| entry.revision.as_ref());
                !earlier.any(|it| it.set.as_ref().is_some_and(|set| set.entries().contains_key(&***uid)))
            })
        });
        pinned.filter_map(move |uid| {
            if on.reasons(uid).is_some_and(|reasons| reasons != none) {
                return None;
            }
            match self.effective(assignment, uid, &none, Named::Absent) {
                Effective::Version(entry, _) => Some((&**uid, entry.version.clone())),
                _ => None,
            }
        })
    }

    /// Returns the UIDs whose desired version may differ between two assignments of a node;
    /// `objects` returns those that a rule selects now, `all` those that are placed on the node.
    /// `exists` returns whether the source has an object: one that it has deleted may stand in the
    /// way of another one of its name.
    pub(crate) fn candidates<O: IntoIterator<Item = Uid>>(
        &self,
        before: Option<&Arc<Assignment>>,
        after: Option<&Arc<Assignment>>,
        objects: impl Fn(RuleId) -> O,
        all: impl Fn() -> Vec<Uid>,
        exists: impl Fn(&Uid) -> bool,
    ) -> BTreeSet<Uid> {
        let both = [before, after];
        let mut found = BTreeSet::new();
        let assignments = || both.iter().copied().flatten();
        let rules: BTreeSet<RuleIndex> =
            assignments().flat_map(|assignment| assignment.0.iter().map(|entry| entry.rule)).collect();
        for rule in rules {
            let [before, after] = both.map(|assignment| assignment.and_then(|it| it.entry(rule)));
            let key = |entry: Option<&Entry>| entry.map(Entry::key);
            if key(before) == key(after) {
                continue;
            }
            let set = |entry: Option<&Entry>| entry.and_then(|it| it.revision.as_ref()?.set.clone());
            match (set(before), set(after)) {
                (Some(one), Some(other)) => {
                    let differences = other.difference(&one);
                    found.extend(differences.into_iter().map(|difference| difference.uid));
                }
                (one, other) => {
                    let sets = one.iter().chain(&other);
                    found.extend(sets.flat_map(|set| set.entries().keys().cloned()));
                    let ids = self.rules.get(&rule).map_or(&[][..], |rule| &rule.ids);
                    ids.iter().for_each(|id| found.extend(objects(*id)));
                }
            }
        }
        // Objects of one name hide one another.
        let revisions = || assignments().flat_map(|it| &it.0).filter_map(|entry| entry.revision.as_ref());
        let name = |uid: &Uid| revisions().find_map(|it| Some(it.objects.get(uid)?.0.name.clone()));
        let names: BTreeSet<Arc<str>> = found.iter().filter_map(name).collect();
        #[cfg(test)]
        let names = if planted(Fault::NamesakeForgotten) { BTreeSet::new() } else { names };
        let namesakes = names.iter().flat_map(|name| revisions().filter_map(|it| it.names.get(name)));
        found.extend(namesakes.flatten().cloned());
        let has_lost = assignments().any(|assignment| assignment.has_lost());
        if has_lost || found.iter().any(|uid| !exists(uid)) {
            found.extend(all());
            let sets = assignments().flat_map(|assignment| assignment.sets());
            found.extend(sets.flat_map(|set| set.entries().keys().cloned()));
        }
        found
    }

    // --- rules

    /// Makes a rule govern the objects that it selects. A rule that placed the newest versions
    /// before (`places`) continues to do so until its nodes have assignments. `ids` are its numbers
    /// in the placement index.
    pub(crate) fn govern(
        &mut self,
        rule: RuleIdentity,
        rollout: Arc<Rollout>,
        status: Status,
        ids: Vec<RuleId>,
        places: bool,
    ) -> RuleIndex {
        if let Some(index) = self.by_key.get(&rule.key).copied()
            && let Some(known) = self.rules.get_mut(&index)
        {
            known.rollout = rollout;
            if known.stage == Stage::Leaving {
                known.stage = Stage::Adopting;
            }
            #[cfg(test)]
            let ids = if planted(Fault::ChangedRuleIsPlain) { Vec::new() } else { ids };
            known.ids.extend(ids.iter().filter(|id| !self.by_id.contains_key(*id)));
            self.by_id.extend(ids.into_iter().map(|id| (id, index)));
            return index;
        }
        let index = RuleIndex(self.next);
        self.next = self.next.saturating_add(1);
        let RuleIdentity { key, created, namespace, name } = rule;
        self.by_key.insert(key.clone(), index);
        self.by_id.extend(ids.iter().map(|id| (*id, index)));
        let stage = if places { Stage::Adopting } else { Stage::Active };
        let rule = GoverningRule {
            key,
            created,
            namespace,
            name,
            ids,
            stage,
            rollout,
            is_frozen: false,
            status,
            revisions: Vec::new(),
            unreadable: Vec::new(),
        };
        self.rules.insert(index, rule);
        index
    }

    /// Sets whether the waves of a rule are not known. Nodes of earlier waves have newer revisions,
    /// and these nodes are not known either.
    pub(crate) fn set_frozen(&mut self, index: RuleIndex, is_frozen: bool) {
        if let Some(rule) = self.rules.get_mut(&index) {
            rule.is_frozen = is_frozen;
        }
    }

    /// Lets a rule place the newest versions again: it has no roll-out any more.
    pub(crate) fn leave(&mut self, index: RuleIndex) {
        if let Some(rule) = self.rules.get_mut(&index) {
            rule.stage = Stage::Leaving;
        }
    }

    /// Handles the deletion of a rule.
    pub(crate) fn rule_deleted(&mut self, key: &RuleKey) -> Option<RuleIndex> {
        let index = self.by_key.remove(key)?;
        #[cfg(test)]
        if planted(Fault::DeletedRuleGoverns) {
            return Some(index);
        }
        self.rules.get_mut(&index)?.stage = Stage::Gone;
        Some(index)
    }

    /// Handles a changed rule, which the placement index has as a new one in addition to the one
    /// before.
    pub(crate) fn add_id(&mut self, before: RuleId, id: RuleId) {
        #[cfg(test)]
        if planted(Fault::ChangedRuleIsPlain) {
            return;
        }
        let Some(index) = self.by_id.get(&before).copied() else { return };
        self.by_id.insert(id, index);
        if let Some(rule) = self.rules.get_mut(&index) {
            rule.ids.push(id);
        }
    }

    /// Handles a number of the placement index that is free again.
    pub(crate) fn forget_id(&mut self, id: RuleId) {
        let Some(index) = self.by_id.remove(&id) else { return };
        if let Some(rule) = self.rules.get_mut(&index) {
            rule.ids.retain(|known| *known != id);
        }
        self.queue_assigned(index);
    }

    /// Replaces the status of a rule.
    pub(crate) fn set_status(&mut self, index: RuleIndex, status: Status) {
        let Some(rule) = self.rules.get_mut(&index) else { return };
        rule.status = status;
        let kept: Vec<RevisionKey> =
            rule.status.revisions.iter().map(|revision| rule.revision_key(revision)).collect();
        rule.revisions.retain(|revision| kept.contains(&revision.key));
        rule.unreadable.retain(|key| kept.contains(key));
    }

    /// Adds a revision whose set was read, or is lost.
    pub(crate) fn add_revision(&mut self, index: RuleIndex, revision: Revision) {
        let Some(rule) = self.rules.get_mut(&index) else { return };
        rule.revisions.retain(|known| known.key != revision.key);
        rule.unreadable.retain(|known| *known != revision.key);
        rule.revisions.push(Arc::new(revision));
    }

    /// Records that a revision cannot be read now: its nodes keep what they hold, and nothing waits
    /// for it any more.
    pub(crate) fn set_unreadable(&mut self, index: RuleIndex, key: RevisionKey) {
        let Some(rule) = self.rules.get_mut(&index) else { return };
        if !rule.unreadable.contains(&key) {
            rule.unreadable.push(key);
        }
    }

    /// Returns a revision whose set is waited for, with its rule.
    pub(crate) fn first_awaited(&self) -> Option<(RuleIndex, RevisionKey)> {
        self.rules().find_map(|(index, rule)| Some((index, rule.first_awaited()?)))
    }

    /// Returns whether sets of assigned revisions are waited for.
    pub(crate) fn is_reading(&self) -> bool {
        self.first_awaited().is_some()
    }

    // --- assignments

    /// Computes the assignment of a node that these rules select. `labels` are those that others
    /// have assigned to it.
    pub(crate) fn target(
        &mut self,
        node: &NodeName,
        labels: &Labels,
        selecting: impl Iterator<Item = RuleId>,
    ) -> Option<Arc<Assignment>> {
        let rules: BTreeSet<RuleIndex> = selecting.filter_map(|id| self.by_id.get(&id).copied()).collect();
        let before = self.of_nodes.get(node);
        let mut entries: Vec<(&GoverningRule, Entry)> = Vec::new();
        for index in rules {
            let Some(rule) = self.rules.get(&index) else { continue };
            let assigned = before.and_then(|before| before.entry(index));
            let revision = match rule.stage {
                Stage::Leaving | Stage::Gone => continue,
                Stage::Adopting => {
                    // It may have had a roll-out until now.
                    let entry = Entry { rule: index, revision: None, is_adopting: true };
                    entries.push((rule, assigned.cloned().unwrap_or(entry)));
                    continue;
                }
                Stage::Active if let Some(top) = rule.status.progressing().filter(|_| rule.is_frozen) => {
                    Some(Arc::new(Revision::unknown(rule.revision_key(top))))
                }
                Stage::Active => {
                    let status = &rule.status;
                    #[cfg(test)]
                    let status = &match planted(Fault::ChangedWavesOpen) {
                        true => Status { waves: rule.rollout.waves.digests(), ..status.clone() },
                        false => status.clone(),
                    };
                    let assignment = status.assignment(&rule.rollout.waves);
                    match assignment.of(node, labels).map(|revision| rule.revision_key(revision)) {
                        None => None,
                        Some(key) => match (rule.revision(&key), assigned) {
                            (Some(revision), _) => Some(revision.clone()),
                            // Its set is being read: the node keeps what it has.
                            (None, Some(entry)) if !rule.unreadable.contains(&key) => {
                                entries.push((rule, entry.clone()));
                                continue;
                            }
                            (None, _) => Some(Arc::new(Revision::unknown(key))),
                        },
                    }
                }
            };
            entries.push((rule, Entry { rule: index, revision, is_adopting: false }));
        }
        if entries.is_empty() {
            return None;
        }
        entries.sort_by(|(one, _), (other, _)| one.age().cmp(&other.age()));
        let assignment = Assignment(entries.into_iter().map(|(_, entry)| entry).collect());
        Some(self.intern(assignment))
    }

    fn intern(&mut self, assignment: Assignment) -> Arc<Assignment> {
        let key = assignment.key();
        self.interned.get(&key).unwrap_or_else(|| self.interned.insert(key, assignment))
    }

    /// Replaces the assignment of a node.
    pub(crate) fn set(&mut self, node: &NodeName, assignment: Option<Arc<Assignment>>) {
        match assignment {
            Some(assignment) => drop(self.of_nodes.insert(node.clone(), assignment)),
            None => drop(self.of_nodes.remove(node)),
        }
    }

    // --- the queue

    /// Queues a node.
    pub(crate) fn queue(&mut self, nodes: impl IntoIterator<Item = NodeName>) {
        if !self.is_empty() {
            self.queue.extend(nodes);
        }
    }

    /// Queues the nodes that have an assignment under a rule.
    pub(crate) fn queue_assigned(&mut self, index: RuleIndex) {
        let assigned = self.of_nodes.iter().filter(|(_, assignment)| assignment.entry(index).is_some());
        self.queue.extend(assigned.map(|(name, _)| name.clone()));
    }

    /// Returns the next node of the queue.
    pub(crate) fn next_queued(&mut self) -> Option<NodeName> {
        self.queue.pop_first()
    }

    /// Returns whether no assignment is about to change.
    pub(crate) fn is_settled(&self) -> bool {
        self.queue.is_empty()
    }

    /// Handles the end of the queue: rules whose nodes all have assignments become active, those
    /// without any are removed. Returns the rules that have become active.
    pub(crate) fn settle(&mut self) -> Vec<RuleIndex> {
        let is_over = |rule: &GoverningRule| match rule.stage {
            Stage::Leaving => true,
            Stage::Gone => rule.ids.is_empty(),
            Stage::Adopting | Stage::Active => false,
        };
        let over: Vec<RuleIndex> =
            self.rules.iter().filter(|(_, rule)| is_over(rule)).map(|(index, _)| *index).collect();
        for index in over {
            if self.rules.remove(&index).is_some() {
                self.by_key.retain(|_, known| *known != index);
                self.by_id.retain(|_, known| *known != index);
            }
        }
        let is_adopted =
            |rule: &GoverningRule| rule.stage == Stage::Adopting && rule.first_awaited().is_none();
        let adopting = self.rules.iter_mut().filter(|(_, rule)| is_adopted(rule));
        adopting
            .map(|(index, rule)| {
                rule.stage = Stage::Active;
                *index
            })
            .collect()
    }
}

/// An assigned revision of [`Fault::LostStatusRemoves`].
#[cfg(test)]
static EMPTY: std::sync::LazyLock<Set> = std::sync::LazyLock::new(Set::default);

/// Returns the rules that [`Fault::YoungestDecides`] lets decide.
#[cfg(test)]
fn youngest<'a>(uid: &str, mut rules: Vec<Governing<'a>>) -> Vec<Governing<'a>> {
    let has = |rule: &Governing<'_>| match rule.assigned {
        decision::Assigned::Set(set) => rule.selects || set.entries().contains_key(uid),
        decision::Assigned::None | decision::Assigned::Lost => rule.selects,
    };
    rules.retain(has);
    rules.sort_by_key(|rule| rule.age);
    rules.split_off(rules.len().saturating_sub(1))
}

#[cfg(test)]
mod tests;
