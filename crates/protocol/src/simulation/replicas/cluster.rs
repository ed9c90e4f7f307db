//! What the replicas share: the objects, what of them is placed on the node, and every change of that in its order. Each
//! replica knows the changes up to one of them, but for what it cannot read.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::change::Uid;
use crate::cloud::Loaded;
use crate::cloud::testing::DesiredObject;
use crate::message::Body;
use crate::simulation::model::{Truth, config_map, object_ref};
use crate::timing::Now;
use edgesync_object::{ObjectKey, ObjectRef, ResourceVersion};

/// Objects are placed by groups: a whole one comes and goes, and no version of an object tells.
pub(super) const GROUPS: u64 = 4;
/// One object of so many is of a kind for which the replicas may lose their rights.
const SECRET: u64 = 3;

fn is_secret(name: u64) -> bool {
    name.is_multiple_of(SECRET)
}

/// The same by what a node says of an object.
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
    /// An object is as it is now; none if it is deleted.
    Object(Uid, Option<Object>),
    /// Objects of a group are placed on the node, or are not.
    Group(u64, bool),
    /// The cluster is what it was after so many changes.
    Restored(usize),
}

/// What is known of the cluster after so many changes.
#[derive(Clone, Default)]
pub(super) struct View {
    objects: BTreeMap<Uid, Object>,
    unplaced: BTreeSet<u64>,
    pub(super) changes: usize,
    /// How far versions have got.
    given: u64,
    /// Nothing is heard of secrets: what is known of them is from before.
    pub(super) is_blind: bool,
}

impl View {
    /// An object is as it is now; none if it is deleted.
    fn set(&mut self, uid: &Uid, object: Option<&Object>) {
        match object {
            Some(object) => self.objects.insert(uid.clone(), object.clone()),
            None => self.objects.remove(uid),
        };
    }

    /// Objects of a group are placed on the node, or are not. Tells which those are.
    fn turn(&mut self, group: u64, is_placed: bool) -> Vec<Uid> {
        match is_placed {
            true => self.unplaced.remove(&group),
            false => self.unplaced.insert(group),
        };
        let of = |(uid, object): (&Uid, &Object)| (object.name % GROUPS == group).then(|| uid.clone());
        self.objects.iter().filter_map(of).collect()
    }

    /// What these objects are is as another view has it. Tells of which of them something else is known from now on.
    fn take_over(&mut self, other: &Self, which: impl Fn(&Object) -> bool) -> Vec<Uid> {
        let known = self.objects.iter().chain(&other.objects).filter(|(_, object)| which(object));
        let known: BTreeSet<Uid> = known.map(|(uid, _)| uid.clone()).collect();
        let version = |view: &Self, uid: &Uid| view.objects.get(uid).map(|object| object.version);
        let changed = |uid: &Uid| version(self, uid) != version(other, uid);
        let changed: Vec<Uid> = known.into_iter().filter(changed).collect();
        changed.iter().for_each(|uid| self.set(uid, other.objects.get(uid)));
        changed
    }

    /// How far versions have got.
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
        })
    }

    pub(super) fn wishes(&self) -> BTreeMap<Uid, DesiredObject> {
        self.objects.keys().filter_map(|uid| Some((uid.clone(), self.wish(uid)?))).collect()
    }

    /// What the node is to hold.
    pub(super) fn wanted(&self) -> BTreeMap<Uid, ResourceVersion> {
        self.wishes().into_iter().map(|(uid, wish)| (uid, wish.version)).collect()
    }

    pub(super) fn load(&self, objects: &[(Uid, ResourceVersion)]) -> Vec<Loaded> {
        let load = |(uid, _): &(Uid, ResourceVersion)| {
            let object = self.objects.get(uid)?;
            let body = format!(
                r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{}","namespace":"default","uid":"{uid}","resourceVersion":"{}"}},"data":{{"x":"{}"}}}}"#,
                object.name(),
                object.version,
                "x".repeat(object.size)
            );
            Some(Loaded { uid: uid.clone(), version: object.version.into(), body: Body::new(body).unwrap() })
        };
        objects.iter().filter_map(load).collect()
    }
}

impl Object {
    fn name(&self) -> String {
        format!("object-{:03}", self.name)
    }
}

/// Since when and until when an object was wanted on the node.
type Wanted = Vec<(Now, Option<Now>)>;

/// See the module.
#[derive(Default)]
pub(super) struct Cluster {
    log: Vec<Change>,
    pub(super) view: View,
    wanted: HashMap<Uid, Wanted>,
    written: HashMap<Uid, Vec<(Now, u64)>>,
    /// When the node said Hello: what it was told before, some replica knew by then.
    hello: Now,
    /// What it held then.
    held: HashSet<Uid>,
    /// The life that replicas speak of, and how often it was restored: as many lives there are.
    pub(super) life: u64,
    lives: u64,
    /// After how many changes each of them began, but for the first one.
    born: Vec<usize>,
    /// When it was restored for the first time, and for the last time.
    restored: Option<Now>,
    reborn: Now,
    /// What was wanted in a life that is lost, and is not in this one.
    lost: HashSet<Uid>,
    /// The replicas have no right to read secrets, or some of them have not read them since they had none.
    pub(super) hides: bool,
    pub(super) hid: bool,
}

impl Cluster {
    fn change(&mut self, now: Now, change: Change) {
        let mut view = std::mem::take(&mut self.view);
        let touched = self.step(&mut view, &change);
        self.view = view;
        let is_restored = matches!(change, Change::Restored(_));
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

    /// The next change, as far as it is heard of. Tells of which objects it says something.
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

    /// Somebody writes an object, which may be a new one.
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

    /// Places a group on the node, or takes it away.
    pub(super) fn turn(&mut self, now: Now, group: u64) {
        let is_placed = self.view.unplaced.contains(&group);
        self.change(now, Change::Group(group, is_placed));
    }

    pub(super) fn place_all(&mut self, now: Now) {
        for group in self.view.unplaced.clone() {
            self.turn(now, group);
        }
    }

    /// The cluster is replaced by a copy of what it was so many changes ago.
    pub(super) fn restore(&mut self, now: Now, ago: usize) {
        let to = self.view.changes.saturating_sub(ago);
        self.change(now, Change::Restored(to));
        self.restored.get_or_insert(now);
        self.reborn = now;
        self.born.push(self.view.changes);
        self.lives += 1;
    }

    /// The replicas speak of the life of now, of which one of them knows all.
    pub(super) fn name_life(&mut self) {
        self.life = self.lives;
    }

    /// A node shows that this must be another life, unless one was begun for that already.
    pub(super) fn begin_another(&mut self) {
        self.lives = self.lives.max(self.life + 1);
        self.life = self.lives;
    }

    /// Whether an object went with a life of the cluster, and nothing has taken its place. In a session that is older somebody may
    /// have deleted it before, and what cannot be read is not judged with the rest: that it is gone turns out later.
    pub(super) fn has_lost(&self, uid: &Uid) -> bool {
        let is_there = || self.view.objects.values().any(|object| object.name == name_of(uid));
        let is_judged = self.reborn < self.hello && !(self.hid && is_secret(name_of(uid)));
        is_judged && self.lost.contains(uid) && !is_there()
    }

    /// Somebody has confirmed that all of that may go.
    pub(super) fn confirm_loss(&mut self) {
        self.lost.clear();
    }

    pub(super) fn was_restored(&self) -> bool {
        self.restored.is_some()
    }

    /// A replica hears of the changes up to this one. Tells which objects they are about.
    pub(super) fn tell(&self, view: &mut View, upto: usize) -> Vec<Uid> {
        let from = view.changes.min(upto);
        self.log[from..upto].iter().flat_map(|change| self.step(view, change)).collect()
    }

    /// Whether a life ends between so many changes and so many more.
    pub(super) fn ends_between(&self, from: usize, to: usize) -> bool {
        self.born.iter().any(|born| from < *born && *born <= to)
    }

    /// Whether whoever knows so many changes knows the life of now.
    pub(super) fn is_known(&self, changes: usize) -> bool {
        self.born.last().is_none_or(|born| changes >= *born)
    }

    /// What was known after so many changes.
    pub(super) fn view_at(&self, changes: usize) -> View {
        self.listed(changes, false)
    }

    /// What a list tells that is of this life, and not of the newest changes: secrets are not in it if nobody may read them.
    pub(super) fn listed(&self, changes: usize, is_blind: bool) -> View {
        let mut view = View { is_blind, ..View::default() };
        self.tell(&mut view, changes);
        view
    }

    /// No replica lists what is of another life.
    pub(super) fn no_older(&self, changes: usize) -> usize {
        changes.max(self.born.last().copied().unwrap_or_default())
    }

    /// A replica may read secrets, or may not any more. Tells of which something else is known from now on.
    pub(super) fn see(&self, view: &mut View) -> Vec<Uid> {
        view.is_blind = self.hides;
        if self.hides {
            return Vec::new();
        }
        let listed = self.view_at(view.changes);
        view.take_over(&listed, |object| is_secret(object.name))
    }

    /// Of how many objects changes say something that came after so many others, an object counted each time.
    pub(super) fn told_since(&self, changes: usize) -> usize {
        self.tell(&mut self.view_at(changes), self.log.len()).len()
    }

    pub(super) fn said_hello(&mut self, now: Now, held: HashSet<Uid>) {
        (self.hello, self.held) = (now, held);
    }
}

fn name_of(uid: &str) -> u64 {
    uid.split('-').nth(1).and_then(|name| name.parse().ok()).unwrap_or_default()
}

/// Whatever the node is made to hold, or to hold no more, was wanted so at some time since its Hello. Before that it was told
/// by replicas that may have known more. Where a cluster was restored, objects go back to what they were. What cannot be read
/// may be given to a node that lacks it as it was known last.
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
        // What a cluster was restored to since the Hello is what is wanted now.
        let is_undone = |at: &Now| *at >= self.hello && self.restored.is_some_and(|restored| *at >= restored);
        let is_restored =
            |all: &Vec<(Now, u64)>| all.iter().any(|(at, then)| is_undone(at) && *version == (*then).into());
        let is_right = is_right || (is_wanted && self.written.get(uid).is_some_and(is_restored));
        // What was removed since comes back, for a while, with a frame that was overtaken.
        is_right || self.held.contains(uid) || (self.hid && is_secret(name_of(uid)))
    }

    fn may_remove(&self, uid: &Uid, _key: &ObjectKey) -> bool {
        let times = self.wanted.get(uid).and_then(|times| times.last());
        !times.is_some_and(|(from, until)| *from < self.hello && until.is_none())
    }
}
