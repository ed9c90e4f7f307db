//! What the replicas share: the objects, what of them is placed on the node, and every change of that in its order. Each
//! replica knows the changes up to one of them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::object::{ObjectKey, ResourceVersion};
use crate::sync::change::Uid;
use crate::sync::cloud::Loaded;
use crate::sync::cloud::testing::Wish;
use crate::sync::message::Body;
use crate::sync::simulation::model::{Truth, config_map, object_ref};
use crate::sync::timing::Now;

/// Objects are placed by groups: a whole one comes and goes, and no version of an object tells.
pub(super) const GROUPS: u64 = 4;

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
}

/// What is known of the cluster after so many changes.
#[derive(Clone, Default)]
pub(super) struct View {
    objects: BTreeMap<Uid, Object>,
    unplaced: BTreeSet<u64>,
    pub(super) changes: usize,
}

impl View {
    /// The next change. Tells of which objects it says something.
    fn apply(&mut self, change: &Change) -> Vec<Uid> {
        self.changes += 1;
        match change {
            Change::Object(uid, object) => {
                match object {
                    Some(object) => self.objects.insert(uid.clone(), object.clone()),
                    None => self.objects.remove(uid),
                };
                vec![uid.clone()]
            }
            Change::Group(group, is_placed) => {
                match is_placed {
                    true => self.unplaced.remove(group),
                    false => self.unplaced.insert(*group),
                };
                let of =
                    |(uid, object): (&Uid, &Object)| (object.name % GROUPS == *group).then(|| uid.clone());
                self.objects.iter().filter_map(of).collect()
            }
        }
    }

    /// The version of the last change.
    pub(super) fn version(&self) -> u64 {
        self.changes as u64
    }

    fn placed(&self, uid: &str) -> Option<&Object> {
        self.objects.get(uid).filter(|object| !self.unplaced.contains(&(object.name % GROUPS)))
    }

    pub(super) fn wish(&self, uid: &Uid) -> Option<Wish> {
        self.placed(uid).map(|object| Wish {
            version: object.version.into(),
            object: Arc::new(object_ref(&object.name())),
            resource: config_map(),
            size: object.size,
        })
    }

    pub(super) fn wishes(&self) -> BTreeMap<Uid, Wish> {
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
}

impl Cluster {
    fn change(&mut self, now: Now, change: Change) {
        let touched = self.view.apply(&change);
        self.log.push(change);
        for uid in touched {
            let is_wanted = self.view.placed(&uid).is_some();
            let times = self.wanted.entry(uid).or_default();
            match times.last_mut() {
                Some((_, until @ None)) if !is_wanted => *until = Some(now),
                Some((_, None)) => {}
                _ if is_wanted => times.push((now, None)),
                _ => {}
            }
        }
    }

    fn uid_of(&self, name: u64) -> Option<Uid> {
        self.view.objects.iter().find(|(_, object)| object.name == name).map(|(uid, _)| uid.clone())
    }

    /// Somebody writes an object, which may be a new one.
    pub(super) fn write(&mut self, now: Now, name: u64, size: usize) {
        let version = self.view.version() + 1;
        let uid = self.uid_of(name).unwrap_or_else(|| format!("uid-{name}-{version}").into());
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

    /// A replica hears of the changes up to this one. Tells which objects they are about.
    pub(super) fn tell(&self, view: &mut View, upto: usize) -> Vec<Uid> {
        let from = view.changes.min(upto);
        self.log[from..upto].iter().flat_map(|change| view.apply(change)).collect()
    }

    /// What was known after so many changes.
    pub(super) fn view_at(&self, changes: usize) -> View {
        let mut view = View::default();
        self.tell(&mut view, changes);
        view
    }

    /// Of how many objects changes say something that came after so many others, an object counted each time.
    pub(super) fn told_since(&self, changes: usize) -> usize {
        self.tell(&mut self.view_at(changes), self.log.len()).len()
    }

    pub(super) fn said_hello(&mut self, now: Now, held: HashSet<Uid>) {
        (self.hello, self.held) = (now, held);
    }
}

/// Whatever the node is made to hold, or to hold no more, was wanted so at some time since its Hello. Before that it was told
/// by replicas that may have known more.
impl Truth for Cluster {
    fn may_replace(&self, uid: &Uid, old: &ResourceVersion, new: &ResourceVersion) -> bool {
        let is_known = |(_, version): &(Now, u64)| *new == (*version).into();
        old.is_older_than(new) && self.written.get(uid).is_some_and(|all| all.iter().any(is_known))
    }

    fn may_insert(&self, uid: &Uid, version: &ResourceVersion) -> bool {
        let times = self.wanted.get(uid).and_then(|times| times.last());
        let is_wanted = times.is_some_and(|(_, until)| until.is_none_or(|until| until >= self.hello));
        let outdated = self.written.get(uid).and_then(|all| all.iter().rfind(|(at, _)| *at < self.hello));
        let is_right = is_wanted && outdated.is_none_or(|(_, then)| !version.is_older_than(&(*then).into()));
        // What was removed since comes back, for a while, with a frame that was overtaken.
        is_right || self.held.contains(uid)
    }

    fn may_remove(&self, uid: &Uid, _key: &ObjectKey) -> bool {
        let times = self.wanted.get(uid).and_then(|times| times.last());
        !times.is_some_and(|(from, until)| *from < self.hello && until.is_none())
    }
}
