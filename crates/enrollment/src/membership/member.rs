//! The rules for one name: its certificates and labels, and whether it was used or removed. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::records::{CertificateRecord, EnrollmentRefusal, MemberRecord, check_held};
use edgesync_object::{Labels, NodeName, Object, ResourceVersion};

/// Maximum number of remembered certificates of a name, so that its object stays below a cluster's
/// limit of 1 MiB. Those that expired first are dropped: a certificate that is not remembered
/// cannot be renewed.
pub(super) const MAX_REMEMBERED: usize = 1024;
/// Maximum number of remembered removals of a name, by the UIDs of the Nodes: no replica lags
/// behind by more.
const MAX_REMOVED_UIDS: usize = 8;

/// The record of a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Member {
    pub(super) node: NodeName,
    /// Whether a node has joined under the name or was removed. The name stays taken until it is
    /// forgotten.
    #[serde(default)]
    pub(super) used: bool,
    /// The labels of the token of the last join.
    #[serde(default)]
    pub(super) labels: Labels,
    /// Time of the removal from the fleet, which identifies it: a node may return and be removed
    /// again.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) removed: Option<Timestamp>,
    /// Whether no process has deleted all objects of the removed node yet: its Node may be an
    /// earlier one.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub(super) removing: bool,
    /// UIDs of the Nodes that the node was removed with, oldest first. Each replica sees the
    /// deletion of a Node, some after the node was admitted again or the name was freed.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(super) removed_nodes: Vec<String>,
    /// The newest `resourceVersion` of those Nodes: a Node that is older was replaced before a
    /// removal, so its deletion, which a replica sees late, means nothing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) removed_version: Option<ResourceVersion>,
    /// The issued certificates, oldest first.
    #[serde(default)]
    pub(super) certificates: Vec<IssuedCertificate>,
}

/// One Node of those that a node has had one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeIdentity {
    /// Its UID.
    pub uid: Arc<str>,
    /// Its `resourceVersion` when it was last seen.
    pub version: ResourceVersion,
}

impl NodeIdentity {
    /// Returns the identity of this Node.
    #[must_use]
    pub fn of(node: &Object) -> Self {
        Self { uid: node.uid().into(), version: node.resource_version().into() }
    }
}

/// A certificate that was issued to the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct IssuedCertificate {
    pub(super) serial: String,
    pub(super) not_before: Timestamp,
    pub(super) not_after: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) revoked: Option<Timestamp>,
    /// Since when an external broker is known to refuse it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) refused: Option<Timestamp>,
}

impl Member {
    pub(super) fn new(node: &NodeName) -> Self {
        Self {
            node: node.clone(),
            used: false,
            labels: Labels::new(),
            removed: None,
            removing: false,
            removed_nodes: Vec::new(),
            removed_version: None,
            certificates: Vec::new(),
        }
    }

    /// Whether the record holds no information and can be deleted.
    pub(super) fn is_empty(&self) -> bool {
        !self.used && self.removed.is_none() && self.certificates.is_empty()
    }

    /// Whether a node has joined under the name or was removed.
    pub(super) fn was_used(&self) -> bool {
        self.used || self.removed.is_some()
    }

    /// The number of certificates that are neither expired nor revoked.
    pub(super) fn held(&self, now: Timestamp) -> u32 {
        let good = |issued: &&IssuedCertificate| issued.revoked.is_none() && issued.not_after > now;
        u32::try_from(self.certificates.iter().filter(good).count()).unwrap_or(u32::MAX)
    }

    /// Records a join with a token that has these labels.
    ///
    /// # Errors
    /// The record is full.
    pub(super) fn join(
        &mut self,
        certificate: &CertificateRecord,
        labels: Labels,
        now: Timestamp,
    ) -> Result<(), EnrollmentRefusal> {
        self.add(certificate, now)?;
        self.used = true;
        self.labels = labels;
        Ok(())
    }

    /// Records the renewal of the presented certificate.
    ///
    /// # Errors
    /// The presented certificate is revoked or unknown; there are too many.
    pub(super) fn renew(
        &mut self,
        presented: &str,
        certificate: &CertificateRecord,
        now: Timestamp,
    ) -> Result<(), EnrollmentRefusal> {
        let is_presented =
            |issued: &IssuedCertificate| issued.serial == presented && issued.revoked.is_none();
        if !self.certificates.iter().any(is_presented) {
            return Err(EnrollmentRefusal::Revoked);
        }
        check_held(self.held(now))?;
        self.add(certificate, now)
    }

    fn add(&mut self, certificate: &CertificateRecord, now: Timestamp) -> Result<(), EnrollmentRefusal> {
        let CertificateRecord { serial, not_before, not_after, .. } = certificate.clone();
        self.certificates.push(IssuedCertificate {
            serial,
            not_before,
            not_after,
            revoked: None,
            refused: None,
        });
        while self.certificates.len() > MAX_REMEMBERED {
            let ended = self.certificates.iter().enumerate().filter(|(_, issued)| issued.not_after <= now);
            let Some((first, _)) = ended.min_by_key(|(_, issued)| issued.not_after) else {
                return Err(EnrollmentRefusal::TooMany);
            };
            self.certificates.remove(first);
        }
        Ok(())
    }

    /// Revokes all certificates. Returns the number of newly revoked ones.
    pub(super) fn revoke(&mut self, now: Timestamp) -> usize {
        self.update(|issued| issued.revoked.is_none(), |issued| issued.revoked = Some(now))
    }

    /// Revokes one certificate. Returns the number of newly revoked ones: one or zero.
    pub(super) fn revoke_one(&mut self, serial: &str, now: Timestamp) -> usize {
        let is_it = |issued: &IssuedCertificate| issued.serial == serial && issued.revoked.is_none();
        self.update(is_it, |issued| issued.revoked = Some(now))
    }

    /// Records that a broker refuses all revoked certificates. Returns the number of those that
    /// were unconfirmed.
    pub(super) fn note_refused(&mut self, now: Timestamp) -> usize {
        let is_doubtful = |issued: &IssuedCertificate| issued.revoked.is_some() && issued.refused.is_none();
        self.update(is_doubtful, |issued| issued.refused = Some(now))
    }

    fn update(
        &mut self,
        of: impl Fn(&IssuedCertificate) -> bool,
        update: impl Fn(&mut IssuedCertificate),
    ) -> usize {
        self.certificates.iter_mut().filter(|issued| of(issued)).map(update).count()
    }

    /// Frees the name and revokes all certificates. Returns whether it was used.
    pub(super) fn forget(&mut self, now: Timestamp) -> bool {
        self.revoke(now);
        self.labels = Labels::new();
        // Another replica may have recorded the removal again.
        self.admit();
        std::mem::take(&mut self.used)
    }

    /// Records the removal from the fleet, with the Node if there is one; the name stays taken.
    /// Returns whether this is new.
    pub(super) fn remove(&mut self, deleted: Option<&NodeIdentity>, now: Timestamp) -> bool {
        self.used = true;
        if let Some(deleted) = deleted {
            self.remember(deleted);
        }
        // A repeated removal keeps the time of the first.
        let is_new = self.removed.is_none();
        self.removed.get_or_insert(now);
        self.removing |= is_new;
        is_new
    }

    /// Records that this removal is complete, unless the node has returned since.
    pub(super) fn complete_removal(&mut self, removal: Timestamp) {
        if self.removed == Some(removal) {
            self.removing = false;
        }
    }

    /// Records that the removal also deletes this Node, unless the node has returned. Returns
    /// whether it is still removed.
    pub(super) fn add_removed_node(&mut self, deleted: &NodeIdentity) -> bool {
        let is_removed = self.removed.is_some();
        if is_removed {
            self.remember(deleted);
        }
        is_removed
    }

    fn remember(&mut self, deleted: &NodeIdentity) {
        if !self.was_removed_with(&deleted.uid) {
            self.removed_nodes.push(deleted.uid.to_string());
            let excess = self.removed_nodes.len().saturating_sub(MAX_REMOVED_UIDS);
            self.removed_nodes.drain(..excess);
        }
        // Versions have no order in a cluster that does not number them: then the first one stays.
        let is_newer = |known: &ResourceVersion| known.is_older_than(&deleted.version);
        if self.removed_version.as_ref().is_none_or(is_newer) {
            self.removed_version = Some(deleted.version.clone());
        }
    }

    /// Returns whether a removal with this Node is recorded, even if the node has returned since.
    fn was_removed_with(&self, uid: &str) -> bool {
        self.removed_nodes.iter().any(|known| known == uid)
    }

    /// Returns whether a removal is recorded with this Node or a later one.
    fn was_removed_since(&self, deleted: &NodeIdentity) -> bool {
        let is_earlier = |newest: &ResourceVersion| deleted.version.is_older_than(newest);
        self.was_removed_with(&deleted.uid) || self.removed_version.as_ref().is_some_and(is_earlier)
    }

    /// Records the removal because a Node was deleted, unless it is recorded already, or the name
    /// was freed since the record was read as `before`. Returns whether the node is removed.
    pub(super) fn remove_deleted(
        &mut self,
        before: &Self,
        deleted: Option<&NodeIdentity>,
        now: Timestamp,
    ) -> bool {
        let was_freed = self.is_empty() && !before.is_empty();
        if !was_freed && !deleted.is_some_and(|deleted| self.was_removed_since(deleted)) {
            self.remove(deleted, now);
        }
        self.removed.is_some()
    }

    /// Lets a removed node return. Returns whether it was removed.
    pub(super) fn admit(&mut self) -> bool {
        self.removing = false;
        self.removed.take().is_some()
    }

    /// Lets a node return from this removal and from no later one. Returns whether the node is not
    /// removed then.
    pub(super) fn admit_from(&mut self, removal: Option<Timestamp>) -> bool {
        if self.removed == removal {
            self.admit();
        }
        self.removed.is_none()
    }

    /// Drops certificates that expired before this time. Returns their number.
    pub(super) fn prune(&mut self, before: Timestamp) -> usize {
        let all = self.certificates.len();
        self.certificates.retain(|issued| issued.not_after >= before);
        all - self.certificates.len()
    }

    /// The revoked certificates: serial numbers and times.
    pub(super) fn revoked(&self) -> BTreeMap<&str, Timestamp> {
        let revoked = self.certificates.iter();
        revoked.filter_map(|issued| Some((&*issued.serial, issued.revoked?))).collect()
    }

    /// Whether there are certificates, all of them revoked.
    pub(super) fn is_fully_revoked(&self) -> bool {
        !self.certificates.is_empty() && self.certificates.iter().all(|issued| issued.revoked.is_some())
    }

    /// The public record, if a node has joined under the name and is not removed.
    pub(super) fn record(&self) -> Option<MemberRecord> {
        (self.used && self.removed.is_none()).then(|| MemberRecord {
            node: self.node.clone(),
            ends: self.ends(),
            is_revoked: self.is_fully_revoked(),
        })
    }

    /// The latest expiry of the certificates that are not revoked.
    pub(super) fn ends(&self) -> Option<Timestamp> {
        let good = self.certificates.iter().filter(|issued| issued.revoked.is_none());
        good.map(|issued| issued.not_after).max()
    }

    /// Whether there are revoked certificates that no broker is known to refuse.
    pub(super) fn is_doubtful(&self) -> bool {
        self.certificates.iter().any(|issued| issued.revoked.is_some() && issued.refused.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::documents;
    use crate::membership::records::MAX_CERTIFICATES_PER_NODE;
    use crate::node_name;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn deleted(uid: &str, version: u64) -> NodeIdentity {
        NodeIdentity { uid: uid.into(), version: version.into() }
    }

    fn certificate(serial: u32, until: i64) -> CertificateRecord {
        CertificateRecord {
            serial: format!("{serial:x}"),
            node: node_name("a"),
            not_before: at(0),
            not_after: at(until),
        }
    }

    #[test]
    fn a_late_removal_takes_no_freed_name() {
        let mut member = Member::new(&node_name("a"));
        assert!(member.remove(None, at(1)) && member.admit());
        let before = member.clone();
        // Of two replicas that see the deletion of its Node, one is late.
        assert!(member.remove_deleted(&before, None, at(2)));
        assert!(member.forget(at(3)));
        assert!(member.is_empty());
        assert!(!member.remove_deleted(&before, None, at(4)));
        assert!(member.is_empty(), "the name stays free");
        // The name of a token has no record yet.
        assert!(member.remove_deleted(&Member::new(&node_name("a")), None, at(5)));
    }

    #[test]
    fn a_late_admission_undoes_no_later_removal() {
        let mut member = Member::new(&node_name("a"));
        assert!(member.remove(None, at(1)) && member.removing);
        assert!(member.admit_from(Some(at(1))) && !member.removing);
        assert!(member.admit_from(Some(at(1))), "another process has done it");
        assert!(member.remove(None, at(2)));
        assert!(!member.admit_from(Some(at(1))) && !member.admit_from(None));
        assert_eq!(member.removed, Some(at(2)));
        assert!(member.admit_from(Some(at(2))));
    }

    #[test]
    fn a_removal_is_complete_once_and_stays_so() {
        let mut member = Member::new(&node_name("a"));
        member.remove(None, at(1));
        let text = documents::write(&member).text;
        assert!(text.contains("removing"), "{text}");
        member.complete_removal(at(1));
        assert!(!member.remove(None, at(2)) && !member.removing, "a repetition begins nothing");
        let text = documents::write(&member).text;
        assert!(!text.contains("removing"), "{text}");
        member.admit();
        member.remove(None, at(3));
        member.complete_removal(at(1));
        assert!(member.removing, "a late answer is about another removal");
        member.forget(at(4));
        assert!(!member.removing && member.is_empty());
    }

    #[test]
    fn late_removals_with_the_same_node_take_nothing_back() {
        let mut member = Member::new(&node_name("a"));
        let late = |member: &mut Member, uid| {
            let before = member.clone();
            member.remove_deleted(&before, Some(&deleted(uid, 0)), at(9))
        };
        member.join(&certificate(1, 100), Labels::new(), at(0)).unwrap();
        assert!(member.remove(Some(&deleted("u1", 0)), at(1)));
        assert!(late(&mut member, "u1"), "it is removed all the same");
        assert_eq!(member.removed, Some(at(1)));
        assert!(member.add_removed_node(&deleted("write in flight", 0)) && member.admit());
        assert!(!late(&mut member, "u1") && !late(&mut member, "write in flight"), "it has returned");
        assert!(!member.add_removed_node(&deleted("u2", 0)));
        // The next Node was deleted before the late replica has seen the deletion of the first.
        assert!(late(&mut member, "u2") && member.admit());
        assert!(!late(&mut member, "u1") && !late(&mut member, "u2"));
        // Another device has taken the name.
        member.forget(at(2));
        member.join(&certificate(2, 100), Labels::new(), at(3)).unwrap();
        assert!(!late(&mut member, "u2"));
        assert_eq!(member.removed, None);
        for number in 0..100 {
            let node = deleted(&format!("n{number}"), 0);
            assert!(member.remove(Some(&node), at(4)) && member.admit());
        }
        assert_eq!(member.removed_nodes.len(), MAX_REMOVED_UIDS);
        assert!(!late(&mut member, "n99"));
    }

    #[test]
    fn late_deletion_of_a_replaced_node_takes_nothing_back() {
        let mut member = Member::new(&node_name("a"));
        let late = |member: &mut Member, uid, version| {
            let before = member.clone();
            member.remove_deleted(&before, Some(&deleted(uid, version)), at(9))
        };
        member.join(&certificate(1, 100), Labels::new(), at(0)).unwrap();
        // A client has replaced the Node of version 90 before the node was removed and readmitted.
        assert!(member.remove(None, at(1)) && member.add_removed_node(&deleted("u2", 100)) && member.admit());
        assert!(!late(&mut member, "u1", 90), "its deletion is from before the removal");
        assert!(!member.add_removed_node(&deleted("u3", 110)), "it has returned");
        assert!(!late(&mut member, "u1", 99));
        assert!(!late(&mut member, "u2", 1000), "it is the one that was removed");
        let text = documents::write(&member).text;
        assert!(text.contains(r#""removedVersion": "100""#), "{text}");
        assert!(late(&mut member, "u3", 1001), "a Node that was created since");
        assert!(member.admit() && !late(&mut member, "u4", 1000));
    }

    #[test]
    fn versions_without_an_order_leave_the_uids_to_decide() {
        let mut member = Member::new(&node_name("a"));
        let node = |uid: &str, version: &str| NodeIdentity { uid: uid.into(), version: version.into() };
        assert!(member.remove(Some(&node("u1", "x")), at(1)) && member.admit());
        let before = member.clone();
        assert!(!member.remove_deleted(&before, Some(&node("u1", "y")), at(2)));
        assert!(member.remove_deleted(&before, Some(&node("u0", "a")), at(2)));
    }

    #[test]
    fn a_full_name_drops_expired_certificates_and_keeps_valid_ones() {
        let mut member = Member::new(&node_name("a"));
        let most = u32::try_from(MAX_REMEMBERED).unwrap();
        for serial in 0..most {
            member.join(&certificate(serial, 100 + i64::from(serial)), Labels::new(), at(0)).unwrap();
        }
        member.revoke(at(1));
        let full = member.clone();
        assert_eq!(
            member.join(&certificate(most, 9999), Labels::new(), at(1)),
            Err(EnrollmentRefusal::TooMany)
        );
        member = full;
        member.join(&certificate(most, 9999), Labels::new(), at(101)).unwrap();
        let serials: Vec<_> = member.certificates.iter().map(|issued| &*issued.serial).collect();
        assert_eq!((serials.len(), serials[0]), (MAX_REMEMBERED, "1"), "the one that ended first has gone");
        assert!(serials.contains(&&*format!("{most:x}")));
        assert!(documents::write(&member).text.len() < 1 << 20);
        assert!(MAX_REMEMBERED > 2 * MAX_CERTIFICATES_PER_NODE as usize);
    }
}
