//! The state shared by the replicas: the objects, their placement on the node, and every change in
//! order. Each replica knows a prefix of the changes, except for unreadable objects.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::body::Body;
use crate::change::Uid;
use crate::cloud::testing::DesiredObject;
use crate::cloud::{LoadRequest, Loaded};
use crate::simulation::model::{Truth, config_map, object_ref};
use crate::timing::Now;
use edgesync_object::urgency::Urgency;
use edgesync_object::{ObjectKey, ObjectRef, ResourceVersion};

/// The number of placement groups: a whole group is placed or removed, and no object version shows
/// it.
pub(super) const GROUPS: u64 = 4;
/// One object in this many is of a kind for which the replicas may lose their permissions.
const SECRET: u64 = 3;

fn is_secret(name: u64) -> bool {
    name.is_multiple_of(SECRET)
}

/// Returns the same for an object that a node names.
pub(super) fn may_be_secret(object: &ObjectRef) -> bool {
    object.name.rsplit('-').next().and_then(|number| number.parse().ok()).is_some_and(is_secret)
}

#[derive(Clone)]
pub(super) struct Object {
    pub(super) version: u64,
    name: u64,
    size: usize,
}

#[derive(Clone)]
enum Change {
    /// Sets the current state of an object; `None` if it is deleted.
    Object(Uid, Option<Object>),
    /// Places the objects of a group on the node, or removes them.
    Group(u64, bool),
    /// Restores the cluster to the state after this many changes.
    Restored(usize),
}

/// The known state of the cluster after a number of changes.
#[derive(Clone, Default)]
pub(super) struct View {
    objects: BTreeMap<Uid, Object>,
    unplaced: BTreeSet<u64>,
    pub(super) changes: usize,
    given: u64,
    /// Whether secrets are unreadable: their known state is older.
    pub(super) is_blind: bool,
}

impl View {
    /// Sets the current state of an object; `None` if it is deleted.
    fn set(&mut self, uid: &Uid, object: Option<&Object>) {
        match object {
            Some(object) => self.objects.insert(uid.clone(), object.clone()),
            None => self.objects.remove(uid),
        };
    }

    /// Places the objects of a group on the node, or removes them. Returns their UIDs.
    fn turn(&mut self, group: u64, is_placed: bool) -> Vec<Uid> {
        match is_placed {
            true => self.unplaced.remove(&group),
            false => self.unplaced.insert(group),
        };
        let of = |(uid, object): (&Uid, &Object)| (object.name % GROUPS == group).then(|| uid.clone());
        self.objects.iter().filter_map(of).collect()
    }

    /// Copies the selected objects from another view. Returns the UIDs whose state changes.
    fn take_over(&mut self, other: &Self, which: impl Fn(&Object) -> bool) -> Vec<Uid> {
        let known = self.objects.iter().chain(&other.objects).filter(|(_, object)| which(object));
        let known: BTreeSet<Uid> = known.map(|(uid, _)| uid.clone()).collect();
        let version = |view: &Self, uid: &Uid| view.objects.get(uid).map(|object| object.version);
        let changed = |uid: &Uid| version(self, uid) != version(other, uid);
        let changed: Vec<Uid> = known.into_iter().filter(changed).collect();
        changed.iter().for_each(|uid| self.set(uid, other.objects.get(uid)));
        changed
    }

    /// Returns the newest version.
    pub(super) fn version(&self) -> u64 {
        self.given
    }

    fn placed(&self, uid: &str) -> Option<&Object> {
        self.objects.get(uid).filter(|object| !self.unplaced.contains(&(object.name % GROUPS)))
    }

    pub(super) fn wish(&self, uid: &Uid) -> Option<DesiredObject> {
        self.placed(uid).map(|object| DesiredObject {
            version: object.version.into(),
            object: Arc::new(object_ref(&object.name())),
            resource: config_map(),
            size: object.size,
            urgency: Urgency::Normal,
        })
    }

    pub(super) fn wishes(&self) -> BTreeMap<Uid, DesiredObject> {
        self.objects.keys().filter_map(|uid| Some((uid.clone(), self.wish(uid)?))).collect()
    }

    /// Returns the desired state of the node.
    pub(super) fn wanted(&self) -> BTreeMap<Uid, ResourceVersion> {
        self.wishes().into_iter().map(|(uid, wish)| (uid, wish.version)).collect()
    }

    pub(super) fn load(&self, objects: &[LoadRequest]) -> Vec<Loaded> {
        let load = |LoadRequest { uid, .. }: &LoadRequest| {
            let object = self.objects.get(uid)?;
            let body = format!(
                r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{}","namespace":"default","uid":"{uid}","resourceVersion":"{}"}},"data":{{"x":"{}"}}}}"#,
                object.name(),
                object.version,
                "x".repeat(object.size)
            );
            Some(Loaded {
                uid: uid.clone(),
                version: object.version.into(),
                body: Body::new(body).unwrap(),
                patch: None,
            })
        };
        objects.iter().filter_map(load).collect()
    }
}

impl Object {
    fn name(&self) -> String {
        format!("object-{:03}", self.name)
    }
}

/// The times from and until which an object was desired on the node.
type Wanted = Vec<(Now, Option<Now>)>;

/// The cluster with its history.
#[derive(Default)]
pub(super) struct Cluster {
    log: Vec<Change>,
    pub(super) view: View,
    wanted: HashMap<Uid, Wanted>,
    written: HashMap<Uid, Vec<(Now, u64)>>,
    /// The time of the node's Hello: some replica knew everything that was sent before.
    hello: Now,
    /// The objects held at that time.
    held: HashSet<Uid>,
    /// The version of which the node held a part then: it is completed before a newer one.
    begun: Option<(Uid, ResourceVersion)>,
    /// The life that replicas have announced, and the number of restores, which equals the number
    /// of lives.
    pub(super) life: u64,
    lives: u64,
    /// The number of changes at which each life began, except for the first one.
    born: Vec<usize>,
    /// The times of the first and the last restore.
    restored: Option<Now>,
    reborn: Now,
    /// Objects desired in a lost life and not in the current one.
    lost: HashSet<Uid>,
    /// Whether the replicas lack the permission to read secrets, or some have not read them since.
    pub(super) hides: bool,
    pub(super) hid: bool,
}

impl Cluster {
    fn change(&mut self, now: Now, change: Change) {
        let mut view = std::mem::take(&mut self.view);
        let touched = self.step(&mut view, &change);
        self.view = view;
        let is_restored = matches!(change, Change::Restored(_));
        // An object that a new one of its name has replaced is not lost, even if that is deleted.
        if let Change::Object(_, Some(object)) = &change {
            self.lost.retain(|uid| name_of(uid) != object.name);
        }
        self.log.push(change);
        for uid in touched {
            if is_restored {
                match self.view.objects.get(&uid) {
                    Some(object) => self.written.entry(uid.clone()).or_default().push((now, object.version)),
                    None => drop(self.lost.insert(uid.clone())),
                }
            }
            let is_wanted = self.view.placed(&uid).is_some();
            if is_wanted {
                self.lost.remove(&uid);
            }
            let times = self.wanted.entry(uid).or_default();
            match times.last_mut() {
                Some((_, until @ None)) if !is_wanted => *until = Some(now),
                Some((_, None)) => {}
                _ if is_wanted => times.push((now, None)),
                _ => {}
            }
        }
    }

    /// Applies the next change to a view. Returns the affected UIDs.
    fn step(&self, view: &mut View, change: &Change) -> Vec<Uid> {
        view.changes += 1;
        match change {
            Change::Object(uid, object) => {
                view.given += 1;
                if view.is_blind && is_secret(name_of(uid)) {
                    return Vec::new();
                }
                view.set(uid, object.as_ref());
                vec![uid.clone()]
            }
            Change::Group(group, is_placed) => {
                view.given += 1;
                view.turn(*group, *is_placed)
            }
            Change::Restored(to) => {
                let then = self.view_at(*to);
                view.given = then.given;
                let is_blind = view.is_blind;
                let mut touched = view.take_over(&then, |object| !(is_blind && is_secret(object.name)));
                for group in 0..GROUPS {
                    if view.unplaced.contains(&group) != then.unplaced.contains(&group) {
                        touched.extend(view.turn(group, !then.unplaced.contains(&group)));
                    }
                }
                touched
            }
        }
    }

    fn uid_of(&self, name: u64) -> Option<Uid> {
        self.view.objects.iter().find(|(_, object)| object.name == name).map(|(uid, _)| uid.clone())
    }

    /// Writes an object, possibly a new one.
    pub(super) fn write(&mut self, now: Now, name: u64, size: usize) {
        let version = self.view.version() + 1;
        let uid = self.uid_of(name).unwrap_or_else(|| format!("uid-{name}-{}", self.log.len()).into());
        self.written.entry(uid.clone()).or_default().push((now, version));
        self.change(now, Change::Object(uid, Some(Object { version, name, size })));
    }

    pub(super) fn delete(&mut self, now: Now, name: u64) {
        if let Some(uid) = self.uid_of(name) {
            self.change(now, Change::Object(uid, None));
        }
    }

    /// Toggles the placement of a group.
    pub(super) fn turn(&mut self, now: Now, group: u64) {
        let is_placed = self.view.unplaced.contains(&group);
        self.change(now, Change::Group(group, is_placed));
    }

    pub(super) fn place_all(&mut self, now: Now) {
        for group in self.view.unplaced.clone() {
            self.turn(now, group);
        }
    }

    /// Restores the cluster to a copy from `ago` changes earlier.
    pub(super) fn restore(&mut self, now: Now, ago: usize) {
        let to = self.view.changes.saturating_sub(ago);
        self.change(now, Change::Restored(to));
        self.restored.get_or_insert(now);
        self.reborn = now;
        self.born.push(self.view.changes);
        self.lives += 1;
    }

    /// Announces the current life, which one replica knows completely.
    pub(super) fn name_life(&mut self) {
        self.life = self.lives;
    }

    /// Begins another life, which a node has proven, unless one was begun for it already.
    pub(super) fn begin_another(&mut self) {
        self.lives = self.lives.max(self.life + 1);
        self.life = self.lives;
    }

    /// Returns whether an object was lost with a life of the cluster and not replaced. A client may
    /// have deleted it before an older session, and unreadable objects are not checked with the
    /// rest: their loss shows later.
    pub(super) fn has_lost(&self, uid: &Uid) -> bool {
        let is_there = || self.view.objects.values().any(|object| object.name == name_of(uid));
        let is_judged = self.reborn < self.hello && !(self.hid && is_secret(name_of(uid)));
        is_judged && self.lost.contains(uid) && !is_there()
    }

    /// Confirms the removal of all lost objects.
    pub(super) fn confirm_loss(&mut self) {
        self.lost.clear();
    }

    pub(super) fn was_restored(&self) -> bool {
        self.restored.is_some()
    }

    /// Applies the changes up to this one to a replica's view. Returns the affected UIDs.
    pub(super) fn tell(&self, view: &mut View, upto: usize) -> Vec<Uid> {
        let from = view.changes.min(upto);
        self.log[from..upto].iter().flat_map(|change| self.step(view, change)).collect()
    }

    /// Returns whether a life ends between these numbers of changes.
    pub(super) fn ends_between(&self, from: usize, to: usize) -> bool {
        self.born.iter().any(|born| from < *born && *born <= to)
    }

    /// Returns whether a view of this many changes knows the current life.
    pub(super) fn is_known(&self, changes: usize) -> bool {
        self.born.last().is_none_or(|born| changes >= *born)
    }

    /// Returns the view after this many changes.
    pub(super) fn view_at(&self, changes: usize) -> View {
        self.listed(changes, false)
    }

    /// Returns the view of a list from the current life, possibly stale; without permission it has
    /// no secrets.
    pub(super) fn listed(&self, changes: usize, is_blind: bool) -> View {
        let mut view = View { is_blind, ..View::default() };
        self.tell(&mut view, changes);
        view
    }

    /// Returns a number of changes within the current life: no replica lists another one.
    pub(super) fn no_older(&self, changes: usize) -> usize {
        changes.max(self.born.last().copied().unwrap_or_default())
    }

    /// Updates a view for gained or lost permission to read secrets. Returns the affected UIDs.
    pub(super) fn see(&self, view: &mut View) -> Vec<Uid> {
        view.is_blind = self.hides;
        if self.hides {
            return Vec::new();
        }
        let listed = self.view_at(view.changes);
        view.take_over(&listed, |object| is_secret(object.name))
    }

    /// Returns the number of objects affected by later changes, counting repetitions.
    pub(super) fn told_since(&self, changes: usize) -> usize {
        self.tell(&mut self.view_at(changes), self.log.len()).len()
    }

    pub(super) fn said_hello(&mut self, now: Now, held: HashSet<Uid>, begun: Option<(Uid, ResourceVersion)>) {
        (self.hello, self.held, self.begun) = (now, held, begun);
    }
}

fn name_of(uid: &str) -> u64 {
    uid.split('-').nth(1).and_then(|name| name.parse().ok()).unwrap_or_default()
}

/// Every change that the node is made to apply was desired at some time since its Hello. Earlier
/// changes came from replicas that may have known more. In a restored cluster, objects return to
/// earlier states. A node that lacks an unreadable object may receive its last known version.
impl Truth for Cluster {
    fn may_replace(&self, uid: &Uid, old: &ResourceVersion, new: &ResourceVersion) -> bool {
        let is_undone = |at: &Now| self.restored.is_some_and(|restored| *at >= restored);
        let is_right = |(at, version): &(Now, u64)| {
            *new == (*version).into() && (old.is_older_than(new) || is_undone(at))
        };
        self.written.get(uid).is_some_and(|all| all.iter().any(is_right))
    }

    fn may_insert(&self, uid: &Uid, version: &ResourceVersion) -> bool {
        let times = self.wanted.get(uid).and_then(|times| times.last());
        let is_wanted = times.is_some_and(|(_, until)| until.is_none_or(|until| until >= self.hello));
        let outdated = self.written.get(uid).and_then(|all| all.iter().rfind(|(at, _)| *at < self.hello));
        let is_right = is_wanted && outdated.is_none_or(|(_, then)| !version.is_older_than(&(*then).into()));
        // The state restored since the Hello is the desired one now.
        let is_undone = |at: &Now| *at >= self.hello && self.restored.is_some_and(|restored| *at >= restored);
        let is_restored =
            |all: &Vec<(Now, u64)>| all.iter().any(|(at, then)| is_undone(at) && *version == (*then).into());
        let is_begun = self.begun.as_ref().is_some_and(|(begun, then)| begun == uid && then == version);
        let is_right =
            is_right || (is_wanted && (is_begun || self.written.get(uid).is_some_and(is_restored)));
        // An object removed since may return for a while, by an overtaken frame.
        is_right || self.held.contains(uid) || (self.hid && is_secret(name_of(uid)))
    }

    fn may_remove(&self, uid: &Uid, _key: &ObjectKey) -> bool {
        let times = self.wanted.get(uid).and_then(|times| times.last());
        !times.is_some_and(|(from, until)| *from < self.hello && until.is_none())
    }
}
