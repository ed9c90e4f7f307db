//! The history of the cluster, and what must hold of everything that is written.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use super::node::{Node, Thing};
use super::server::{Key, Server};
use crate::change::Uid;
use crate::simulation::model::Truth;
use crate::timing::Now;
use edgesync_object::{ObjectKey, ResourceVersion};

/// The longest time from a check of a Lease to a write on it: that of the proof, and that of the
/// longest request with its retries.
const LONGEST: Duration = Duration::from_secs(60);

/// The times from and until which an object was desired on a node.
type Wanted = Vec<(Now, Option<Now>)>;

/// The history of objects and their placement.
#[derive(Default)]
pub(super) struct History {
    wanted: BTreeMap<(usize, Uid), Wanted>,
    written: BTreeMap<Uid, Vec<(Now, u64)>>,
}

impl History {
    /// Records the state of an object: its version, and the nodes that it is placed on.
    pub(super) fn record(&mut self, now: Now, uid: &Uid, state: Option<(u64, u8)>, nodes: usize) {
        if let Some((version, _)) = state {
            self.written.entry(uid.clone()).or_default().push((now, version));
        }
        for node in 0..nodes {
            let is_wanted = state.is_some_and(|(_, mask)| mask & (1 << node) != 0);
            let times = self.wanted.entry((node, uid.clone())).or_default();
            match times.last_mut() {
                Some((_, until @ None)) if !is_wanted => *until = Some(now),
                Some((_, None)) => {}
                _ if is_wanted => times.push((now, None)),
                _ => {}
            }
        }
    }

    fn last(&self, node: usize, uid: &Uid) -> Option<(Now, Option<Now>)> {
        self.wanted.get(&(node, uid.clone()))?.last().copied()
    }

    /// Returns whether an object has been desired on a node from this time until now.
    fn is_wanted_since(&self, node: usize, uid: &Uid, time: Now) -> bool {
        self.last(node, uid).is_some_and(|(from, until)| from <= time && until.is_none())
    }
}

/// Decides whether a change on a node is right: every change that the node is made to apply was
/// desired at some time since its Hello.
pub(super) struct TruthOf<'a> {
    pub(super) history: &'a History,
    pub(super) node: usize,
    pub(super) hello: Now,
    pub(super) held_then: &'a HashSet<Uid>,
}

impl Truth for TruthOf<'_> {
    fn may_replace(&self, _: &Uid, old: &ResourceVersion, new: &ResourceVersion) -> bool {
        old.is_older_than(new)
    }

    fn may_insert(&self, uid: &Uid, version: &ResourceVersion) -> bool {
        let last = self.history.last(self.node, uid);
        let is_wanted = last.is_some_and(|(_, until)| until.is_none_or(|until| until >= self.hello));
        let written = self.history.written.get(uid);
        let then = written.and_then(|all| all.iter().rfind(|(at, _)| *at < self.hello));
        let is_right = is_wanted && then.is_none_or(|(_, then)| !version.is_older_than(&(*then).into()));
        is_right || self.held_then.contains(uid)
    }

    fn may_remove(&self, uid: &Uid, _: &ObjectKey) -> bool {
        let last = self.history.last(self.node, uid);
        !last.is_some_and(|(from, until)| from < self.hello && until.is_none())
    }
}

/// A write that the API server has accepted.
pub(super) struct Written<'a> {
    pub(super) node: usize,
    pub(super) key: &'a Key,
    /// The replica, with the number of its starts, and its session with the node.
    pub(super) replica: &'a str,
    pub(super) session: (usize, u64, u64),
    /// The time at which the API server has answered the check of the Lease.
    pub(super) checked: Now,
    /// The number before and after.
    pub(super) before: u64,
    pub(super) after: u64,
}

/// The writes of the run.
#[derive(Default)]
pub(super) struct Oracle {
    pub(super) history: History,
    /// The items that each session has written.
    applied: BTreeSet<((usize, u64, u64), usize, u64)>,
}

impl Oracle {
    /// Checks an accepted write.
    pub(super) fn check_write(
        &mut self,
        now: Now,
        server: &Server,
        nodes: &[Node],
        write: &Written<'_>,
    ) -> Result<(), String> {
        let Written { node, key, replica, session, checked, before, after } = *write;
        let what = format!("{replica} writes {key:?} of node {node}: {before} → {after}");
        // The Lease may change between the check and the write, which conflicts if it has to.
        if checked != Now::MAX
            && let Some(lease) = server.lease(node)
            && !lease.server.is_empty()
            && lease.server != replica
            && (lease.since < checked || now > checked + LONGEST)
        {
            let (by, since) = (&lease.server, lease.since);
            return Err(format!("fence: {what}, which {by} has served since {since:?}, checked {checked:?}"));
        }
        if matches!(key, Key::Record(_)) {
            if after != 0 && after < before {
                return Err(format!("record: {what}, an older report after a newer one"));
            }
            return Ok(());
        }
        if nodes[node].settled.get(key).is_some_and(|(settled, _)| after < *settled) {
            return Err(format!("upload: {what}, although a newer value is settled"));
        }
        // A record that was removed and created again has lost its labels.
        let is_lost = matches!(key, Key::Effect(_)) && before == 0;
        if !self.applied.insert((session, node, after)) && !is_lost {
            return Err(format!("upload: {what} a second time"));
        }
        Ok(())
    }

    /// Checks a settled item: its value, or a newer one, is in the cluster, or it was refused and
    /// had to be.
    pub(super) fn check_settled(
        &self,
        server: &Server,
        (index, node): (usize, &Node),
        thing: &Thing,
        is_refused: bool,
    ) -> Result<(), String> {
        if is_refused {
            // A replica that knows the state at the Hello places it. One that follows slowly may
            // have had the node remove it.
            let is_placed = |uid: &&Uid| {
                let is_held = node.removed.get(*uid).is_none_or(|removed| *removed < thing.at);
                self.history.is_wanted_since(index, uid, node.hello)
                    || (is_held && self.history.is_wanted_since(index, uid, thing.at))
            };
            let lost = thing.uid().filter(is_placed);
            return match lost {
                Some(_) => Err(format!("upload: node {index} was refused {thing:?}, placed all the time")),
                None => Ok(()),
            };
        }
        check_value(server, (index, node), &thing.key, thing.made, thing.at)
    }
}

/// Checks that the value under a key is as new as this one of `at`, unless the object, or its
/// record, was removed since.
fn check_value(
    server: &Server,
    (index, node): (usize, &Node),
    key: &Key,
    made: u64,
    at: Now,
) -> Result<(), String> {
    let is_gone = match key {
        Key::Status(uid) => !server.objects.contains_key(uid),
        Key::Effect(uid) => {
            node.db.version(uid).is_none() || node.removed.get(uid).is_some_and(|removed| *removed >= at)
        }
        _ => false,
    };
    let value = server.number(index, key);
    match value >= made || is_gone {
        true => Ok(()),
        false => Err(format!("upload: {key:?} of node {index} is {value}, {made} is settled")),
    }
}

/// Checks the settled values and the ObjectSyncs of a node that is in sync.
///
/// An upload may create the ObjectSync of an object that is removed at the same time, and a replica
/// that the node has left may complete a write. Such a record stays until the next session, which
/// the node `has_returned` for.
pub(super) fn check_records(
    server: &Server,
    (index, node): (usize, &Node),
    has_returned: bool,
) -> Result<(), String> {
    for (key, (made, at)) in &node.settled {
        check_value(server, (index, node), key, *made, *at)?;
    }
    let held = node.db.held();
    let records = server.records_of(index);
    let records = records.filter(|(uid, record)| has_returned || held.contains_key(*uid) || !record.is_stray);
    let records: BTreeMap<Uid, ResourceVersion> =
        records.map(|(uid, record)| (uid.clone(), record.value.into())).collect();
    match records == held {
        true => Ok(()),
        false => Err(format!("records of node {index}: {records:?}, held {held:?}")),
    }
}
