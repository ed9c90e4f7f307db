//! A model of an API server: objects with versions, compare-and-swap, watches that expire, and
//! answers from a cache that lags behind.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::change::Uid;
use crate::timing::Now;

/// The age of answers from a watch cache.
const CACHE_LAG: Duration = Duration::from_secs(10);

/// An object that is placed on the nodes of a mask. Its status is part of it: a status has the
/// number of the item that wrote it.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) uid: Uid,
    pub(super) name: u64,
    pub(super) version: u64,
    pub(super) nodes: u8,
    pub(super) size: usize,
    pub(super) status: u64,
}

/// The Lease of a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Lease {
    pub(super) version: u64,
    /// The replica that it names; empty for none.
    pub(super) server: String,
    /// The time since which it names that replica.
    pub(super) since: Now,
}

/// A stored ObjectSync or Event.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) version: u64,
    /// The version that the node holds, or the number of the item that wrote the Event.
    pub(super) value: u64,
    /// The number of the item that wrote the labels for what is in effect.
    pub(super) effect: u64,
    /// Whether an upload has created the ObjectSync, or another session of the node, at this or
    /// another replica, has written it late.
    pub(super) is_stray: bool,
}

/// A thing that a replica writes for a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Lease,
    /// The version in an ObjectSync.
    Record(Uid),
    /// The labels of an ObjectSync.
    Effect(Uid),
    Status(Uid),
    Event(u64),
}

/// The new state of a [`Key`].
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// The replica that the Lease names from now on.
    Server(String),
    Number(u64),
    Deleted,
}

/// The state that a write requires.
#[derive(Clone, Copy, Debug)]
pub(super) enum Base {
    Any,
    Absent,
    Version(u64),
}

/// The error of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// 409: the object exists, or has another version.
    Conflict,
    /// 404
    NotFound,
    /// 410: the watch starts at a version that is no longer kept.
    Expired,
    /// 429
    TooMany,
    /// 503, 504 or no answer: a write may have taken effect.
    Unavailable,
}

/// A change of an object: its state since this version.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) uid: Uid,
    pub(super) object: Option<Object>,
}

#[derive(Default)]
pub(super) struct Server {
    version: u64,
    pub(super) objects: BTreeMap<Uid, Object>,
    leases: BTreeMap<usize, Lease>,
    pub(super) records: BTreeMap<(usize, Uid), Stored>,
    pub(super) events: BTreeMap<(usize, u64), Stored>,
    /// All changes of objects, in order, with their times.
    log: Vec<(Now, Change)>,
    /// All states of Leases, likewise.
    lease_log: Vec<(Now, usize, Lease)>,
    /// No watch starts at an older version.
    compacted: u64,
}

impl Server {
    /// Returns the newest version of all.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Sets the state of an object, `None` to delete it, and gives it the next version.
    pub(super) fn set(&mut self, now: Now, uid: &Uid, object: Option<Object>) {
        self.version += 1;
        let version = self.version;
        let object = object.map(|object| Object { version, ..object });
        match &object {
            Some(object) => self.objects.insert(uid.clone(), object.clone()),
            None => self.objects.remove(uid),
        };
        self.log.push((now, Change { version, uid: uid.clone(), object }));
    }

    /// Drops the history that watches need to continue.
    pub(super) fn compact(&mut self) {
        self.compacted = self.version;
    }

    pub(super) fn has_expired(&self, version: u64) -> bool {
        version < self.compacted
    }

    /// Returns the changes of objects after a version.
    pub(super) fn changes(&self, after: u64) -> Vec<Change> {
        let start = self.log.partition_point(|(_, change)| change.version <= after);
        self.log[start..].iter().map(|(_, change)| change.clone()).collect()
    }

    pub(super) fn has_changes(&self, after: u64) -> bool {
        self.log.last().is_some_and(|(_, change)| change.version > after)
    }

    /// Lists all objects, with the version of the list.
    pub(super) fn list(&self) -> (u64, Vec<Object>) {
        (self.version, self.objects.values().cloned().collect())
    }

    /// Lists all objects from a watch cache.
    pub(super) fn list_cached(&self, now: Now) -> (u64, Vec<Object>) {
        let (mut objects, mut version) = (BTreeMap::new(), 0);
        let known = self.log.iter().take_while(|(at, _)| *at + CACHE_LAG <= now);
        for (_, change) in known {
            version = change.version;
            match &change.object {
                Some(object) => objects.insert(change.uid.clone(), object.clone()),
                None => objects.remove(&change.uid),
            };
        }
        (version, objects.into_values().collect())
    }

    pub(super) fn lease(&self, node: usize) -> Option<&Lease> {
        self.leases.get(&node)
    }

    /// Returns a Lease from a watch cache.
    pub(super) fn lease_cached(&self, now: Now, node: usize) -> Option<&Lease> {
        let known = |(at, of, _): &&(Now, usize, Lease)| *of == node && *at + CACHE_LAG <= now;
        self.lease_log.iter().rfind(known).map(|(.., lease)| lease)
    }

    /// Returns the ObjectSyncs of a node.
    pub(super) fn records_of(&self, node: usize) -> impl Iterator<Item = (&Uid, &Stored)> {
        self.records.iter().filter(move |((of, _), _)| *of == node).map(|((_, uid), stored)| (uid, stored))
    }

    /// Returns the current number under a key of a node; 0 if there is none.
    pub(super) fn number(&self, node: usize, key: &Key) -> u64 {
        let record = |uid: &Uid| self.records.get(&(node, uid.clone()));
        match key {
            Key::Lease => 0,
            Key::Record(uid) => record(uid).map_or(0, |record| record.value),
            Key::Effect(uid) => record(uid).map_or(0, |record| record.effect),
            Key::Status(uid) => self.objects.get(uid).map_or(0, |object| object.status),
            Key::Event(name) => self.events.get(&(node, *name)).map_or(0, |event| event.value),
        }
    }

    /// Returns the version of the object that a key belongs to.
    fn version_of(&self, node: usize, key: &Key) -> Option<u64> {
        match key {
            Key::Lease => self.leases.get(&node).map(|lease| lease.version),
            Key::Record(uid) | Key::Effect(uid) => {
                self.records.get(&(node, uid.clone())).map(|record| record.version)
            }
            Key::Status(uid) => self.objects.get(uid).map(|object| object.version),
            Key::Event(name) => self.events.get(&(node, *name)).map(|event| event.version),
        }
    }

    /// Writes one key of a node, by compare-and-swap. Returns the new version.
    pub(super) fn write(
        &mut self,
        now: Now,
        (node, key): (usize, &Key),
        base: Base,
        value: Value,
    ) -> Result<u64, Failure> {
        let is_creation = matches!(base, Base::Any | Base::Absent);
        match (base, self.version_of(node, key)) {
            (Base::Absent, Some(_)) => return Err(Failure::Conflict),
            (Base::Version(base), Some(current)) if base != current => return Err(Failure::Conflict),
            (_, None) if !is_creation || matches!(key, Key::Effect(_) | Key::Status(_)) => {
                return Err(Failure::NotFound);
            }
            _ => {}
        }
        match (key, value) {
            (Key::Lease, Value::Server(server)) => self.write_lease(now, node, server),
            (Key::Record(uid), Value::Number(value)) => {
                self.version += 1;
                let record = self.records.entry((node, uid.clone()));
                let record = record.or_insert(Stored { version: 0, value: 0, effect: 0, is_stray: false });
                (record.version, record.value) = (self.version, value);
            }
            (Key::Record(uid), Value::Deleted) => {
                self.version += 1;
                self.records.remove(&(node, uid.clone()));
            }
            (Key::Effect(uid), Value::Number(made)) => {
                self.version += 1;
                if let Some(record) = self.records.get_mut(&(node, uid.clone())) {
                    (record.version, record.effect) = (self.version, made);
                }
            }
            (Key::Status(uid), Value::Number(status)) => {
                let object = self.objects.get(uid).cloned().map(|object| Object { status, ..object });
                self.set(now, uid, object);
            }
            (Key::Event(name), Value::Number(value)) => {
                self.version += 1;
                let event = Stored { version: self.version, value, effect: 0, is_stray: false };
                self.events.insert((node, *name), event);
            }
            (key, value) => unreachable!("{key:?} never becomes {value:?}"),
        }
        Ok(self.version)
    }

    fn write_lease(&mut self, now: Now, node: usize, server: String) {
        self.version += 1;
        let lease = self.leases.entry(node).or_default();
        lease.version = self.version;
        if lease.server != server {
            (lease.server, lease.since) = (server, now);
        }
        self.lease_log.push((now, node, lease.clone()));
    }
}
