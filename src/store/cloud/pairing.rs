//! What is known of tokens and certificates. Migration `cloud/0004_pairing.sql`.

use jiff::Timestamp;
use serde::Serialize;

use super::{CloudError, CloudStore};

/// A token, without its signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
}

/// A certificate of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateRecord {
    /// Its serial number in hexadecimal.
    pub serial: String,
    /// The node.
    pub node: String,
    /// From when it is valid.
    pub not_before: Timestamp,
    /// Until when.
    pub not_after: Timestamp,
    /// When it was revoked.
    pub revoked: Option<Timestamp>,
}

/// Why a certificate is not recorded, and so not given out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairingRefusal {
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
    /// Another device has joined under this name, and the token is not bound to it.
    #[error("the name '{0}' is taken")]
    NameTaken(String),
    /// The certificate that was shown is revoked, or not known.
    #[error("the certificate is revoked")]
    Revoked,
}

impl CloudStore {
    /// Records a token.
    ///
    /// # Errors
    /// The store's.
    pub async fn put_token(&self, token: TokenRecord) -> Result<(), CloudError> {
        todo!()
    }

    /// All tokens, newest first.
    ///
    /// # Errors
    /// The store's.
    pub async fn tokens(&self) -> Result<Vec<TokenRecord>, CloudError> {
        todo!()
    }

    /// Revokes a token; none if there is no such token, and else whether it was of use before.
    ///
    /// # Errors
    /// The store's.
    pub async fn revoke_token(&self, id: &str, now: Timestamp) -> Result<Option<bool>, CloudError> {
        todo!()
    }

    /// Counts a use of a token and records the certificate that it led to, in one transaction. A token that is not
    /// bound to a node gives no certificate for a name under which a certificate has been given out that is neither
    /// expired nor revoked. A node that was revoked comes back by this: its older certificates stay revoked.
    ///
    /// # Errors
    /// The store's; inside, why not.
    pub async fn spend_token(
        &self,
        id: &str,
        certificate: CertificateRecord,
        now: Timestamp,
    ) -> Result<Result<(), PairingRefusal>, CloudError> {
        todo!()
    }

    /// Records the certificate of a renewal. The one that was shown must be known and not revoked.
    ///
    /// # Errors
    /// The store's; inside, why not.
    pub async fn renew_certificate(
        &self,
        shown: &str,
        certificate: CertificateRecord,
    ) -> Result<Result<(), PairingRefusal>, CloudError> {
        todo!()
    }

    /// Revokes all certificates of a node and all tokens that are bound to it. Gives the number of certificates.
    ///
    /// # Errors
    /// The store's.
    pub async fn revoke_certificates(&self, node: &str, now: Timestamp) -> Result<usize, CloudError> {
        todo!()
    }

    /// All certificates; of a node if one is given.
    ///
    /// # Errors
    /// The store's.
    pub async fn certificates(&self, node: Option<&str>) -> Result<Vec<CertificateRecord>, CloudError> {
        todo!()
    }

    /// Forgets tokens and certificates (also revoked ones) that ended before this time: nobody can use them.
    ///
    /// # Errors
    /// The store's.
    pub async fn prune_pairing(&self, before: Timestamp) -> Result<usize, CloudError> {
        todo!()
    }
}
