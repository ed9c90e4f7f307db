//! The complete history of writes in the cloud, over all timelines: the truth for all checks,
//! regardless of messages.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::change::Uid;
use crate::timing::Now;
use edgesync_object::{ObjectKey, ResourceVersion};

use super::{CloudDb, Truth};

/// The longest delay of commits that were in flight at the end of a connection.
const COMMIT: Duration = Duration::from_secs(1);

/// The history of one simulated cloud.
#[derive(Default)]
pub struct History {
    /// The write number of each version, over all timelines.
    written: HashMap<(Uid, ResourceVersion), usize>,
    /// Versions undone by a restore.
    lost: HashSet<(Uid, ResourceVersion)>,
    /// The time until which a UID was not desired; [`Now::MAX`] while it is not.
    unwanted: HashMap<Uid, Now>,
    /// UIDs and names of objects that vanished without a delete.
    vanished: HashMap<Uid, String>,
    /// The start of the current connection.
    connected: Now,
    restores: usize,
}

impl History {
    /// Records a write: it replaces the earlier object of its name.
    pub fn wrote(&mut self, uid: &Uid, name: &str, version: &ResourceVersion) {
        let number = self.written.len();
        self.written.insert((uid.clone(), version.clone()), number);
        self.vanished.retain(|_, vanished| vanished != name);
    }

    /// Records a delete: earlier objects of the name are not desired either.
    pub fn deleted(&mut self, uid: &Uid, name: &str) {
        self.unwanted.insert(uid.clone(), Now::MAX);
        self.vanished.retain(|_, vanished| vanished != name);
    }

    pub fn connected(&mut self, now: Now) {
        self.connected = now;
    }

    /// Records a restore of the cloud's database from an older copy.
    pub fn restored(&mut self, now: Now, from: &CloudDb, to: &CloudDb) {
        self.restores += 1;
        let kept: u64 = to.last_version();
        for (uid, version) in self.written.keys() {
            // Everything written after the copy and missing in it.
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

    /// Returns the number of restores of the database.
    pub fn restores(&self) -> usize {
        self.restores
    }

    /// Returns whether the object vanished without a delete.
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
