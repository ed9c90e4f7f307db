//! What enrollment keeps: tokens, certificates of nodes and of operators. None of it has a signature or a key in it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use edgesync_object::Labels;

/// The most certificates of a node that have neither ended nor been revoked: a node that renews without end does not
/// fill the store.
pub const MAX_CERTIFICATES_PER_NODE: u32 = 64;
/// The most certificates of operators that have neither ended nor been revoked.
pub(crate) const MAX_OPERATORS: usize = 10_000;

/// A token, without its signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenRecord {
    /// Its id.
    pub id: String,
    /// The only node that it is for.
    pub node: Option<String>,
    /// When it was made.
    pub created: Timestamp,
    /// Until when it can be used.
    pub expires: Timestamp,
    /// How often it could be used at first.
    pub uses: u32,
    /// How often it has been used.
    pub used: u32,
    /// When it was revoked.
    pub revoked: Option<Timestamp>,
    /// What it gives to the Nodes of those that join with it.
    pub labels: Labels,
}

/// A certificate of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateRecord {
    /// Its serial number in hexadecimal.
    pub serial: String,
    /// The node.
    pub node: String,
    /// From when it is valid.
    pub not_before: Timestamp,
    /// Until when.
    pub not_after: Timestamp,
}

/// A certificate of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OperatorRecord {
    /// Its serial number in hexadecimal.
    pub serial: String,
    /// Whose it is.
    pub name: String,
    /// What they may do, in a word of the API.
    pub role: String,
    /// When it was made.
    pub created: Timestamp,
    /// Until when it is valid.
    pub expires: Timestamp,
    /// When it was revoked.
    pub revoked: Option<Timestamp>,
}

/// Why a certificate is not recorded, and so not given out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnrollmentRefusal {
    /// There is no such token: the database is another one than the token was made with.
    #[error("the token is not known here")]
    UnknownToken,
    /// It was revoked.
    #[error("the token was revoked")]
    RevokedToken,
    /// It has been used as often as it may.
    #[error("the token has been used already, as often as it may")]
    UsedUp,
    /// It is for another node.
    #[error("the token is for node '{0}' only")]
    OtherNode(String),
    /// The name has been used before, and the token is not bound to it.
    #[error("the name '{0}' is taken")]
    NameTaken(String),
    /// The certificate that was shown is revoked, or not known.
    #[error("the certificate is revoked")]
    Revoked,
    /// The node has [`MAX_CERTIFICATES_PER_NODE`] certificates already.
    #[error("the node has {MAX_CERTIFICATES_PER_NODE} certificates that have not ended")]
    TooMany,
}

/// What is revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revocations {
    /// Serial numbers of certificates, and when each was revoked.
    pub serials: Vec<(String, Timestamp)>,
    /// Nodes that have certificates, all of them revoked.
    pub nodes: Vec<String>,
    /// Nodes with revoked certificates of which nobody has said that an external broker refuses them.
    pub doubtful: Vec<String>,
}

/// A name that somebody has joined under, and that is not removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberRecord {
    /// The name.
    pub node: String,
    /// When the last of its certificates that are not revoked ends.
    pub ends: Option<Timestamp>,
    /// Whether it has certificates, all of them revoked.
    pub is_revoked: bool,
}

impl TokenRecord {
    /// Whether somebody can join with it.
    pub(super) fn is_usable(&self, now: Timestamp) -> bool {
        self.revoked.is_none() && self.used < self.uses && now < self.expires
    }

    /// Whether it gives a certificate to a node, whose name `was_used` before or not, and which has `held` certificates that
    /// are good. When the token ends is in its signature.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check(&self, node: &str, was_used: bool, held: u32) -> Result<(), EnrollmentRefusal> {
        match &self.node {
            _ if self.revoked.is_some() => Err(EnrollmentRefusal::RevokedToken),
            Some(only) if only != node => Err(EnrollmentRefusal::OtherNode(only.clone())),
            _ if self.used >= self.uses => Err(EnrollmentRefusal::UsedUp),
            None if was_used => Err(EnrollmentRefusal::NameTaken(node.to_owned())),
            _ => check_held(held),
        }
    }
}

/// Whether a node may have one more certificate that is good, beside so many.
///
/// # Errors
/// [`PairingRefusal::TooMany`].
pub(super) fn check_held(held: u32) -> Result<(), EnrollmentRefusal> {
    if held < MAX_CERTIFICATES_PER_NODE { Ok(()) } else { Err(EnrollmentRefusal::TooMany) }
}
