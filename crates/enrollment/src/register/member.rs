//! What is known of a name, as one object of the cluster: a ConfigMap with a document. Pure.
//!
//! The rules are those of the embedded store; a document takes the place of the rows of a node.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::objects::{self, LABEL, of_hash};
use edgesync_cloud_store::pairing::{CertificateRecord, MemberRecord, PairingRefusal, check_held};
use edgesync_object::{Labels, Object};
use edgesync_transport::tls::certificate::sha256_hex;

/// What [`LABEL`] says of it.
pub(super) const MEMBER: &str = "member";
/// The key of the document.
const KEY: &str = "member.json";
/// The longest name that stands in the name of its object: those have 253 characters, as names of nodes may.
const MAX_NAME: usize = 200;
/// The most certificates of a name that are remembered; an object of a cluster has at most 1 MiB. Those that ended first go
/// first: one that is not known renews nothing.
pub(super) const MAX_REMEMBERED: usize = 1024;

/// What is known of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Member {
    /// The name.
    pub(super) node: String,
    /// Whether it was used: it is not free again by itself.
    pub(super) used: bool,
    /// Those of the token that it joined with last.
    pub(super) labels: Labels,
    /// When it was removed from the fleet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) removed: Option<Timestamp>,
    /// Its certificates, in the order in which they were given.
    pub(super) certificates: Vec<Given>,
}

/// A certificate that was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Given {
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
    pub(super) fn new(node: &str) -> Self {
        Self { node: node.to_owned(), ..Self::default() }
    }

    /// The name of the object of a node.
    pub(super) fn object_name(node: &str) -> String {
        if node.len() <= MAX_NAME {
            format!("edgesync-member.{node}")
        } else {
            format!("edgesync-member-by-hash.{}", sha256_hex(node.as_bytes()))
        }
    }

    /// Reads an object.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn read(object: &Object) -> Result<Self, String> {
        let member: Self = objects::read(object, KEY)?;
        objects::named(Self::object_name(&member.node) == object.name(), &member.node).map(|()| member)
    }

    /// Writes it into an object, whose other fields stay.
    pub(super) fn write(&self, object: &mut Object) {
        objects::write(object, KEY, self);
    }

    /// A new object of it.
    pub(super) fn object(&self, namespace: &str) -> Object {
        let labels = json!(of_hash(&self.node, MEMBER));
        let mut object = objects::object(&Self::object_name(&self.node), namespace, labels);
        self.write(&mut object);
        object
    }

    /// Whether the object is worth keeping.
    pub(super) fn is_empty(&self) -> bool {
        !self.used && self.removed.is_none() && self.certificates.is_empty()
    }

    /// Whether anybody has joined under the name, or was removed.
    pub(super) fn was_used(&self) -> bool {
        self.used || self.removed.is_some()
    }

    /// How many certificates have neither ended nor been revoked.
    pub(super) fn held(&self, now: Timestamp) -> u32 {
        let good = |given: &&Given| given.revoked.is_none() && given.not_after > now;
        u32::try_from(self.certificates.iter().filter(good).count()).unwrap_or(u32::MAX)
    }

    /// It has joined with a token that has these labels.
    ///
    /// # Errors
    /// There is no room.
    pub(super) fn join(
        &mut self,
        certificate: &CertificateRecord,
        labels: Labels,
        now: Timestamp,
    ) -> Result<(), PairingRefusal> {
        self.add(certificate, now)?;
        self.used = true;
        self.labels = labels;
        Ok(())
    }

    /// It shows a certificate and gets another one.
    ///
    /// # Errors
    /// The one that is shown is revoked or not known; there are too many.
    pub(super) fn renew(
        &mut self,
        shown: &str,
        certificate: &CertificateRecord,
        now: Timestamp,
    ) -> Result<(), PairingRefusal> {
        let is_shown = |given: &Given| given.serial == shown && given.revoked.is_none();
        if !self.certificates.iter().any(is_shown) {
            return Err(PairingRefusal::Revoked);
        }
        check_held(self.held(now))?;
        self.add(certificate, now)
    }

    fn add(&mut self, certificate: &CertificateRecord, now: Timestamp) -> Result<(), PairingRefusal> {
        let CertificateRecord { serial, not_before, not_after, revoked, .. } = certificate.clone();
        self.certificates.push(Given { serial, not_before, not_after, revoked, refused: None });
        while self.certificates.len() > MAX_REMEMBERED {
            let ended = self.certificates.iter().enumerate().filter(|(_, given)| given.not_after <= now);
            let Some((first, _)) = ended.min_by_key(|(_, given)| given.not_after) else {
                return Err(PairingRefusal::TooMany);
            };
            self.certificates.remove(first);
        }
        Ok(())
    }

    /// Revokes all certificates. Gives how many were not.
    pub(super) fn revoke(&mut self, now: Timestamp) -> usize {
        self.note(|given| given.revoked.is_none(), |given| given.revoked = Some(now))
    }

    /// Revokes one certificate. Gives how many were not: one or none.
    pub(super) fn revoke_one(&mut self, serial: &str, now: Timestamp) -> usize {
        let is_it = |given: &Given| given.serial == serial && given.revoked.is_none();
        self.note(is_it, |given| given.revoked = Some(now))
    }

    /// A broker refuses what is revoked. Gives how many of these were not known to be refused.
    pub(super) fn note_refused(&mut self, now: Timestamp) -> usize {
        let is_doubtful = |given: &Given| given.revoked.is_some() && given.refused.is_none();
        self.note(is_doubtful, |given| given.refused = Some(now))
    }

    fn note(&mut self, of: impl Fn(&Given) -> bool, note: impl Fn(&mut Given)) -> usize {
        self.certificates.iter_mut().filter(|given| of(given)).map(note).count()
    }

    /// Frees the name, and revokes what is still good. Tells whether it was used.
    pub(super) fn forget(&mut self, now: Timestamp) -> bool {
        self.revoke(now);
        self.labels = Labels::new();
        std::mem::take(&mut self.used)
    }

    /// It is removed from the fleet; the name is not free again. Tells whether it was not removed before.
    pub(super) fn remove(&mut self, now: Timestamp) -> bool {
        self.used = true;
        // Whoever removes a node twice does not change when it was removed.
        let is_new = self.removed.is_none();
        self.removed.get_or_insert(now);
        is_new
    }

    /// It may come back. Tells whether it was removed.
    pub(super) fn admit(&mut self) -> bool {
        self.removed.take().is_some()
    }

    /// Forgets certificates that ended before this time. Gives how many.
    pub(super) fn prune(&mut self, before: Timestamp) -> usize {
        let all = self.certificates.len();
        self.certificates.retain(|given| given.not_after >= before);
        all - self.certificates.len()
    }

    /// What is revoked: serial numbers and times.
    pub(super) fn revoked(&self) -> BTreeMap<&str, Timestamp> {
        let revoked = self.certificates.iter();
        revoked.filter_map(|given| Some((&*given.serial, given.revoked?))).collect()
    }

    /// Whether it has certificates, and all of them are revoked.
    pub(super) fn is_shut_out(&self) -> bool {
        !self.certificates.is_empty() && self.certificates.iter().all(|given| given.revoked.is_some())
    }

    /// What is told of it, if somebody has joined under it and it is not removed.
    pub(super) fn record(&self) -> Option<MemberRecord> {
        (self.used && self.removed.is_none()).then(|| MemberRecord {
            node: self.node.clone(),
            ends: self.ends(),
            is_revoked: self.is_shut_out(),
        })
    }

    /// When the last of its certificates that are not revoked ends.
    pub(super) fn ends(&self) -> Option<Timestamp> {
        let good = self.certificates.iter().filter(|given| given.revoked.is_none());
        good.map(|given| given.not_after).max()
    }

    /// Whether of something that is revoked nobody has said that a broker refuses it.
    pub(super) fn is_doubtful(&self) -> bool {
        self.certificates.iter().any(|given| given.revoked.is_some() && given.refused.is_none())
    }
}

/// Whether an object is one of these.
pub(super) fn is_member(object: &Object) -> bool {
    object.labels().get(LABEL).is_some_and(|value| value == MEMBER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_cloud_store::pairing::MAX_CERTIFICATES_PER_NODE;
    use edgesync_object::name::{MAX_SUBDOMAIN, check_subdomain};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn certificate(serial: u32, until: i64) -> CertificateRecord {
        CertificateRecord {
            serial: format!("{serial:x}"),
            node: "a".into(),
            not_before: at(0),
            not_after: at(until),
            revoked: None,
        }
    }

    #[test]
    fn each_name_has_one_object_with_a_name_that_a_cluster_takes() {
        let long = |last: &str| format!("{}.{last}", "n".repeat(MAX_SUBDOMAIN - 2));
        let names = ["a".to_owned(), "by-hash.a".to_owned(), "n".repeat(MAX_NAME), long("a"), long("b")];
        let mut objects = std::collections::BTreeSet::new();
        for node in &names {
            check_subdomain(node).unwrap();
            let object = Member::new(node).object("edgesync");
            check_subdomain(object.name()).unwrap();
            assert_eq!(Member::read(&object).unwrap(), Member::new(node));
            objects.insert(object.name().to_owned());
        }
        assert_eq!(objects.len(), names.len());
    }

    #[test]
    fn an_object_that_is_of_another_node_or_of_nobody_is_not_believed() {
        let mut object = Member::new("a").object("edgesync");
        Member::new("b").write(&mut object);
        assert!(Member::read(&object).unwrap_err().contains("'b'"));
        object.fields_mut().insert("data".to_owned(), json!({ KEY: "{" }));
        assert!(Member::read(&object).is_err());
        object.fields_mut().remove("data");
        assert!(Member::read(&object).unwrap_err().contains(KEY));
    }

    #[test]
    fn a_name_is_bounded_and_what_is_good_is_kept() {
        let mut member = Member::new("a");
        let most = u32::try_from(MAX_REMEMBERED).unwrap();
        for serial in 0..most {
            member.join(&certificate(serial, 100 + i64::from(serial)), Labels::new(), at(0)).unwrap();
        }
        member.revoke(at(1));
        let full = member.clone();
        assert_eq!(member.join(&certificate(most, 9999), Labels::new(), at(1)), Err(PairingRefusal::TooMany));
        member = full;
        member.join(&certificate(most, 9999), Labels::new(), at(101)).unwrap();
        let serials: Vec<_> = member.certificates.iter().map(|given| &*given.serial).collect();
        assert_eq!((serials.len(), serials[0]), (MAX_REMEMBERED, "1"), "the one that ended first has gone");
        assert!(serials.contains(&&*format!("{most:x}")));
        assert!(member.object("edgesync").to_json().len() < 1 << 20);
        assert!(MAX_REMEMBERED > 2 * MAX_CERTIFICATES_PER_NODE as usize);
    }
}
