//! The stored records: tokens, certificates of nodes and of operators. None contains a signature or
//! a key.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use edgesync_object::{Labels, NodeName};

/// Maximum number of certificates of a node that are neither expired nor revoked. Keeps a node that
/// renews in a loop from filling the store.
pub const MAX_CERTIFICATES_PER_NODE: u32 = 64;
/// Maximum number of operator certificates that are neither expired nor revoked.
pub(crate) const MAX_OPERATORS: usize = 10_000;

/// A token, without its signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenRecord {
    /// The claim `jti` of the token.
    pub id: String,
    /// The only node that may use it.
    pub node: Option<NodeName>,
    /// When it was issued.
    pub created: Timestamp,
    /// When it stops being accepted.
    pub expires: Timestamp,
    /// Number of joins that it allows in all.
    pub uses: u32,
    /// Number of joins so far.
    pub used: u32,
    /// Time of revocation; `None` while it is valid.
    pub revoked: Option<Timestamp>,
    /// Labels for the Nodes that join with it.
    pub labels: Labels,
}

/// A certificate of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateRecord {
    /// The serial number in hexadecimal.
    pub serial: String,
    /// The name of the node.
    pub node: NodeName,
    /// Start of validity, in whole seconds.
    pub not_before: Timestamp,
    /// End of validity, in whole seconds.
    pub not_after: Timestamp,
}

/// A certificate of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OperatorRecord {
    /// The serial number in hexadecimal.
    pub serial: String,
    /// The name of the operator.
    pub name: String,
    /// The role, as the API spells it.
    pub role: String,
    /// When it was issued.
    pub created: Timestamp,
    /// When it stops being accepted.
    pub expires: Timestamp,
    /// Time of revocation; `None` while it is valid.
    pub revoked: Option<Timestamp>,
}

/// Reason why a certificate is neither recorded nor issued.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnrollmentRefusal {
    /// The token does not exist: it was created with another store.
    #[error("token unknown")]
    UnknownToken,
    /// The token was revoked.
    #[error("token revoked")]
    RevokedToken,
    /// The token has no uses left.
    #[error("token used up")]
    UsedUp,
    /// The token is bound to another node.
    #[error("token bound to node '{0}'")]
    OtherNode(NodeName),
    /// The name was used before, and the token is not bound to it.
    #[error("name '{0}' taken")]
    NameTaken(NodeName),
    /// The presented certificate is revoked or unknown.
    #[error("certificate revoked")]
    Revoked,
    /// The node has [`MAX_CERTIFICATES_PER_NODE`] certificates already.
    #[error("node has {MAX_CERTIFICATES_PER_NODE} unexpired certificates")]
    TooMany,
}

/// Revoked certificates and the nodes that they affect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revocations {
    /// Serial numbers of revoked certificates, with the time of revocation.
    pub serials: Vec<(String, Timestamp)>,
    /// Nodes with certificates, all of them revoked.
    pub nodes: Vec<NodeName>,
    /// Nodes with revoked certificates that no external broker is known to refuse.
    pub doubtful: Vec<NodeName>,
}

/// A node that has joined and is not removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberRecord {
    /// The name of the node.
    pub node: NodeName,
    /// The latest expiry of its certificates that are not revoked.
    pub ends: Option<Timestamp>,
    /// Whether it has certificates, all of them revoked.
    pub is_revoked: bool,
}

impl TokenRecord {
    /// Whether a node can join with it.
    pub(super) fn is_usable(&self, now: Timestamp) -> bool {
        self.revoked.is_none() && self.used < self.uses && now < self.expires
    }

    /// Checks that the token admits a node. `was_used` says whether the name was used before,
    /// `held` how many valid certificates it has. The expiry is checked with the signature.
    ///
    /// # Errors
    /// The refusal.
    pub(super) fn check(&self, node: &NodeName, was_used: bool, held: u32) -> Result<(), EnrollmentRefusal> {
        match &self.node {
            _ if self.revoked.is_some() => Err(EnrollmentRefusal::RevokedToken),
            Some(only) if only != node => Err(EnrollmentRefusal::OtherNode(only.clone())),
            _ if self.used >= self.uses => Err(EnrollmentRefusal::UsedUp),
            None if was_used => Err(EnrollmentRefusal::NameTaken(node.clone())),
            _ => check_held(held),
        }
    }
}

/// Checks that a node with this number of valid certificates may get another one.
///
/// # Errors
/// [`EnrollmentRefusal::TooMany`].
pub(super) fn check_held(held: u32) -> Result<(), EnrollmentRefusal> {
    if held < MAX_CERTIFICATES_PER_NODE { Ok(()) } else { Err(EnrollmentRefusal::TooMany) }
}
