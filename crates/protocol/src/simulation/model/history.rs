//! What was really written in the cloud, in all its timelines. It decides what is right, whatever a message says.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::change::Uid;
use crate::timing::Now;
use edgesync_object::{ObjectKey, ResourceVersion};

use super::{CloudDb, Truth};

/// What was under way at the node when a connection ended may be committed so much later.
const COMMIT: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Default)]
pub struct History {
    /// For each version the number of its writing, over all timelines.
    written: HashMap<(Uid, ResourceVersion), usize>,
    /// Versions that a restore has undone.
    lost: HashSet<(Uid, ResourceVersion)>,
    /// Until when a UID was not wanted; [`Now::MAX`] while it is not.
    unwanted: HashMap<Uid, Now>,
    /// UIDs and names of objects that are gone although nobody deleted them.
    vanished: HashMap<Uid, String>,
    /// When the connection of now began.
    connected: Now,
    restores: usize,
}

impl History {
    /// Somebody has written an object: what had its name before is replaced.
    pub fn wrote(&mut self, uid: &Uid, name: &str, version: &ResourceVersion) {
        let number = self.written.len();
        self.written.insert((uid.clone(), version.clone()), number);
        self.vanished.retain(|_, vanished| vanished != name);
    }

    /// Somebody has deleted an object: whatever had its name before is not wanted either.
    pub fn deleted(&mut self, uid: &Uid, name: &str) {
        self.unwanted.insert(uid.clone(), Now::MAX);
        self.vanished.retain(|_, vanished| vanished != name);
    }

    pub fn connected(&mut self, now: Now) {
        self.connected = now;
    }

    /// An older copy takes the place of the cloud's database.
    pub fn restored(&mut self, now: Now, from: &CloudDb, to: &CloudDb) {
        self.restores += 1;
        let kept: u64 = to.last_version();
        for (uid, version) in self.written.keys() {
            // Whatever was written after the copy was made, and is not in it.
            if version.as_str().parse().is_ok_and(|number: u64| number > kept) {
                self.lost.insert((uid.clone(), version.clone()));
            }
        }
        for (uid, object) in from.objects.iter().filter(|(uid, _)| !to.objects.contains_key(*uid)) {
            self.unwanted.insert(uid.clone(), Now::MAX);
            self.vanished.insert(uid.clone(), object.name.clone());
        }
        self.vanished.retain(|_, vanished| !to.has_name(vanished));
        for uid in to.objects.keys() {
            if let Some(until) = self.unwanted.get_mut(uid) {
                *until = (*until).min(now);
            }
        }
    }

    /// How often an older copy took the place of the database.
    pub fn restores(&self) -> usize {
        self.restores
    }

    /// Whether the object is gone although nobody deleted it.
    pub fn has_vanished(&self, uid: &Uid) -> bool {
        self.vanished.contains_key(uid)
    }
}

impl Truth for History {
    fn may_replace(&self, uid: &Uid, old: &ResourceVersion, new: &ResourceVersion) -> bool {
        let number = |version: &ResourceVersion| self.written.get(&(uid.clone(), version.clone()));
        let is_lost = |version: &ResourceVersion| self.lost.contains(&(uid.clone(), version.clone()));
        number(new).is_some() && (number(new) > number(old) || is_lost(old))
    }

    fn may_remove(&self, uid: &Uid, _key: &ObjectKey) -> bool {
        self.unwanted.get(uid).is_some_and(|until| until.saturating_add(COMMIT) >= self.connected)
    }
}
