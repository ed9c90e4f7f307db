//! The state of all names that a replica knows from the watch and from its own writes. Pure.
//!
//! An own write takes effect at once; older events of the same object are ignored.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::documents::Record as _;
use super::member::Member;
use super::objects;
use super::records::{MemberRecord, Revocations};
use super::{Changed, Membership, RevocationChange};
use edgesync_object::{Labels, NodeName, ResourceVersion};

/// Maximum number of interned sets of labels.
const MAX_SHARED_LABELS: usize = 1024;

/// The cached members, with an index of the revoked ones.
#[derive(Debug, Default)]
pub(super) struct Table {
    members: BTreeMap<NodeName, CachedMember>,
    /// Names with revoked certificates.
    revoked: BTreeSet<NodeName>,
    /// Versions of own writes that the watch has not delivered yet.
    own_writes: HashMap<NodeName, ResourceVersion>,
    /// Names reported since the current list started.
    listed: Option<HashSet<NodeName>>,
    shared: HashSet<Arc<Labels>>,
}

/// The cached state of a name.
#[derive(Debug)]
struct CachedMember {
    membership: Membership,
    /// Whether the removal is not complete.
    is_removing: bool,
    /// The earliest expiry of its certificates.
    first_end: Option<Timestamp>,
    /// The latest expiry of those that are not revoked.
    last_end: Option<Timestamp>,
    revoked: Option<Box<RevokedCertificates>>,
}

/// The revoked certificates of a name.
#[derive(Debug, Default, PartialEq, Eq)]
struct RevokedCertificates {
    serials: BTreeMap<String, Timestamp>,
    is_fully_revoked: bool,
    is_doubtful: bool,
}

impl Table {
    /// Starts a list. Its request is not sent yet, so that it contains all earlier own writes.
    pub(super) fn start_list(&mut self) {
        self.own_writes.clear();
        self.listed = Some(HashSet::new());
    }

    /// Applies a member from a list.
    pub(super) fn list(&mut self, member: &Member, version: &ResourceVersion) -> Option<Changed> {
        if let Some(listed) = &mut self.listed {
            listed.insert(member.node.clone());
        }
        self.set(member, version)
    }

    /// Keeps the known state of an object that exists and is damaged.
    pub(super) fn keep_unreadable(&mut self, object: &str) {
        if let Some(listed) = &mut self.listed {
            let node = self.members.keys().find(|node| objects::name(Member::KIND, node) == object);
            listed.extend(node.cloned());
        }
    }

    /// Ends a list and drops the names that it did not report.
    pub(super) fn finish_list(&mut self) -> Vec<Changed> {
        let Some(listed) = self.listed.take() else { return Vec::new() };
        let is_missing = |node: &&NodeName| !listed.contains(*node) && !self.own_writes.contains_key(*node);
        let missing: Vec<NodeName> = self.members.keys().filter(is_missing).cloned().collect();
        missing.iter().filter_map(|node| self.put(node, None, false)).collect()
    }

    /// Applies a new or changed member.
    pub(super) fn set(&mut self, member: &Member, version: &ResourceVersion) -> Option<Changed> {
        let node = &member.node;
        if self.own_writes.get(node).is_some_and(|own| version.is_older_than(own)) {
            return None;
        }
        self.own_writes.remove(node);
        self.put(node, Some(member), false)
    }

    /// Applies the deletion of a member.
    pub(super) fn deleted(&mut self, node: &NodeName, version: &ResourceVersion) -> Option<Changed> {
        if self.own_writes.get(node).is_some_and(|own| version.is_older_than(own)) {
            return None;
        }
        self.own_writes.remove(node);
        self.put(node, None, false)
    }

    /// Applies an own write; a deletion has no version.
    pub(super) fn written(&mut self, member: &Member, version: Option<ResourceVersion>) -> Option<Changed> {
        let node = &member.node;
        let Some(version) = version else {
            self.own_writes.remove(node);
            return self.put(node, None, true);
        };
        self.own_writes.insert(node.clone(), version);
        self.put(node, Some(member), true)
    }

    fn put(&mut self, node: &NodeName, member: Option<&Member>, own: bool) -> Option<Changed> {
        let cached = member.map(|member| self.cache_entry(member));
        let after = cached.as_ref().and_then(|cached| cached.revoked.as_deref());
        let before = self.members.get(node);
        let revocation = change(before.and_then(|cached| cached.revoked.as_deref()), after);
        let is_same = match (before, &cached) {
            (None, None) => true,
            (Some(before), Some(cached)) => before.membership == cached.membership,
            _ => false,
        };
        if after.is_some() {
            self.revoked.insert(node.clone());
        } else {
            self.revoked.remove(node);
        }
        match cached {
            Some(cached) => drop(self.members.insert(node.clone(), cached)),
            None => drop(self.members.remove(node)),
        }
        let is_change = !is_same || revocation != RevocationChange::None;
        is_change.then(|| Changed::Member { node: node.clone(), own, revocation })
    }

    fn cache_entry(&mut self, member: &Member) -> CachedMember {
        let serials: BTreeMap<String, Timestamp> =
            member.revoked().into_iter().map(|(serial, at)| (serial.to_owned(), at)).collect();
        let (is_fully_revoked, is_doubtful) = (member.is_fully_revoked(), member.is_doubtful());
        let revoked = (!serials.is_empty())
            .then(|| Box::new(RevokedCertificates { serials, is_fully_revoked, is_doubtful }));
        let labels = self.share(&member.labels);
        CachedMember {
            membership: Membership { used: member.used, labels, removed: member.removed },
            is_removing: member.removing,
            first_end: member.certificates.iter().map(|given| given.not_after).min(),
            last_end: member.ends(),
            revoked,
        }
    }

    /// Interns labels: most names share theirs with others.
    fn share(&mut self, labels: &Labels) -> Arc<Labels> {
        if let Some(shared) = self.shared.get(labels) {
            return Arc::clone(shared);
        }
        let labels = Arc::new(labels.clone());
        if self.shared.len() >= MAX_SHARED_LABELS {
            self.shared.retain(|labels| Arc::strong_count(labels) > 1);
        }
        if self.shared.len() < MAX_SHARED_LABELS {
            self.shared.insert(Arc::clone(&labels));
        }
        labels
    }

    /// The membership of a name.
    pub(super) fn membership(&self, node: &NodeName) -> Option<Membership> {
        self.members.get(node).map(|cached| cached.membership.clone())
    }

    /// The removed nodes, ordered by name.
    pub(super) fn removed(&self) -> Vec<(NodeName, Timestamp)> {
        let removed = self.members.iter();
        removed.filter_map(|(node, cached)| Some((node.clone(), cached.membership.removed?))).collect()
    }

    /// The removed nodes whose removal is not complete, ordered by name.
    pub(super) fn unfinished_removals(&self) -> Vec<NodeName> {
        let members = self.members.iter();
        members.filter(|(_, cached)| cached.is_removing).map(|(node, _)| node.clone()).collect()
    }

    /// The nodes that have joined and are not removed, ordered by name.
    pub(super) fn members(&self) -> Vec<MemberRecord> {
        let is_one = |cached: &CachedMember| cached.membership.used && cached.membership.removed.is_none();
        let members = self.members.iter().filter(|(_, cached)| is_one(cached));
        let record = |(node, cached): (&NodeName, &CachedMember)| MemberRecord {
            node: node.clone(),
            ends: cached.last_end,
            is_revoked: cached.revoked.as_ref().is_some_and(|revoked| revoked.is_fully_revoked),
        };
        members.map(record).collect()
    }

    /// Collects the revoked certificates of all names.
    pub(super) fn revocations(&self) -> Revocations {
        let mut revocations = Revocations::default();
        for node in &self.revoked {
            let Some(revoked) = self.members.get(node).and_then(|cached| cached.revoked.as_deref()) else {
                continue;
            };
            let serials = revoked.serials.iter().map(|(serial, at)| (serial.clone(), *at));
            revocations.serials.extend(serials);
            if revoked.is_fully_revoked {
                revocations.nodes.push(node.clone());
            }
            if revoked.is_doubtful {
                revocations.doubtful.push(node.clone());
            }
        }
        revocations.serials.sort();
        revocations
    }

    /// Names with a certificate that expired before this time.
    pub(super) fn ended(&self, before: Timestamp) -> Vec<NodeName> {
        let ended = |cached: &CachedMember| cached.first_end.is_some_and(|end| end < before);
        self.members.iter().filter(|(_, cached)| ended(cached)).map(|(node, _)| node.clone()).collect()
    }
}

/// Compares the revocations of a name before and after a change.
fn change(before: Option<&RevokedCertificates>, after: Option<&RevokedCertificates>) -> RevocationChange {
    let is_new = |serial| before.is_none_or(|before| !before.serials.contains_key(serial));
    match after {
        after if after == before => RevocationChange::None,
        Some(after) if after.serials.keys().any(is_new) => RevocationChange::More,
        _ => RevocationChange::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::CertificateRecord;
    use crate::node_name;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn member(node: &str, serial: &str) -> Member {
        let certificate = CertificateRecord {
            serial: serial.into(),
            node: node_name(node),
            not_before: at(0),
            not_after: at(100),
        };
        let mut member = Member::new(&node_name(node));
        member.join(&certificate, Labels::new(), at(0)).unwrap();
        member
    }

    fn version(number: u64) -> ResourceVersion {
        number.into()
    }

    fn revoked(mut member: Member) -> Member {
        member.revoke(at(1));
        member
    }

    fn changed(node: &str, own: bool, revocation: RevocationChange) -> Option<Changed> {
        Some(Changed::Member { node: node_name(node), own, revocation })
    }

    #[test]
    fn an_own_write_takes_precedence_until_the_watch_delivers_it() {
        let mut table = Table::default();
        let (good, bad) = (member("a", "1"), revoked(member("a", "1")));
        assert_eq!(table.set(&good, &version(5)), changed("a", false, RevocationChange::None));
        assert_eq!(table.written(&bad, Some(version(7))), changed("a", true, RevocationChange::More));
        assert_eq!(table.set(&good, &version(6)), None);
        assert_eq!(table.deleted(&node_name("a"), &version(6)), None);
        assert_eq!(table.revocations().nodes, ["a"]);
        assert_eq!(table.set(&bad, &version(7)), None, "nothing new");
        assert_eq!(table.set(&good, &version(8)), changed("a", false, RevocationChange::Other));
        assert_eq!(table.revocations(), Revocations::default());
    }

    #[test]
    fn members_missing_from_a_list_are_dropped_unless_written_since() {
        let mut table = Table::default();
        table.written(&revoked(member("old", "1")), Some(version(3)));
        table.set(&member("kept", "2"), &version(4));
        table.start_list();
        table.written(&revoked(member("new", "3")), Some(version(9)));
        table.written(&revoked(member("kept", "2")), Some(version(10)));
        assert_eq!(table.list(&member("kept", "2"), &version(4)), None);
        assert_eq!(table.finish_list(), [changed("old", false, RevocationChange::Other).unwrap()]);
        assert_eq!(table.revocations().nodes, ["kept", "new"]);
        // The cluster was restored from a copy: the versions are older, and still apply.
        table.start_list();
        table.list(&member("kept", "2"), &version(2));
        assert_eq!(table.finish_list().len(), 1);
        assert_eq!(table.revocations(), Revocations::default());
    }

    #[test]
    fn the_state_of_a_name_stays_while_its_object_is_damaged() {
        let mut table = Table::default();
        table.set(&revoked(member("a", "1")), &version(3));
        table.start_list();
        table.keep_unreadable(&objects::name(Member::KIND, "a"));
        table.keep_unreadable(&objects::name(Member::KIND, "b"));
        assert_eq!(table.finish_list(), []);
        assert_eq!(table.revocations().nodes, ["a"]);
    }

    #[test]
    fn a_restarted_list_drops_nothing_before_it_is_complete() {
        let mut table = Table::default();
        table.set(&revoked(member("a", "1")), &version(3));
        table.start_list();
        table.start_list();
        assert_eq!(table.revocations().nodes, ["a"]);
        assert_eq!(table.finish_list().len(), 1);
        assert_eq!(table.finish_list(), []);
    }

    #[test]
    fn another_revocation_is_a_change_of_a_node_with_a_valid_one() {
        let mut table = Table::default();
        let mut two = member("a", "1");
        two.revoke(at(1));
        two.join(&CertificateRecord { serial: "2".into(), ..certificate_of("a") }, Labels::new(), at(2))
            .unwrap();
        table.set(&two, &version(1));
        assert_eq!(table.revocations().nodes, [""; 0]);
        assert_eq!(table.revocations().doubtful, ["a"]);
        two.note_refused(at(3));
        assert_eq!(table.set(&two, &version(2)), changed("a", false, RevocationChange::Other));
        two.revoke_one("2", at(4));
        assert_eq!(table.set(&two, &version(3)), changed("a", false, RevocationChange::More));
        assert_eq!(table.revocations().serials.len(), 2);
    }

    fn certificate_of(node: &str) -> CertificateRecord {
        CertificateRecord { serial: "9".into(), node: node_name(node), not_before: at(0), not_after: at(100) }
    }

    #[test]
    fn equal_labels_are_interned() {
        let mut table = Table::default();
        for node in ["a", "b"] {
            let mut member = member(node, node);
            member.labels = Labels::from([("site".into(), "north".into())]);
            table.set(&member, &version(1));
        }
        let labels = |node| table.membership(&node_name(node)).unwrap().labels;
        assert!(Arc::ptr_eq(&labels("a"), &labels("b")));
        assert_eq!(table.ended(at(100)), [""; 0]);
        assert_eq!(table.ended(at(101)), ["a", "b"]);
    }
}
