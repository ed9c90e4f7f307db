//! Tokens: JWTs (RFC 7519) with HMAC-SHA-256 (`HS256`) under a key of their own in `token.key`. Signed ones are looked
//! up in the store, which counts their uses.

use std::path::Path;

use jiff::Timestamp;

/// The key that signs tokens. Not shown.
pub(super) struct TokenKey {}

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenClaims {
    /// Its id (`jti`), by which the store knows it.
    pub(super) id: String,
    /// Its only node (`sub`).
    pub(super) node: Option<String>,
    /// Until when it can be used (`exp`).
    pub(super) expires: Timestamp,
}

/// Why a bearer is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TokenRefusal {
    /// No JWT, another algorithm, another key.
    #[error("the token is not from this cloud: create one here with 'edgesync-cloud token create'")]
    Unknown,
    /// Its time is over.
    #[error("the token has expired: create a new one with 'edgesync-cloud token create'")]
    Expired,
}

impl TokenKey {
    /// Reads `token.key`, or makes it: 32 random bytes, mode 0600.
    ///
    /// # Errors
    /// The file's.
    pub(super) fn open(directory: &Path) -> anyhow::Result<Self> {
        todo!()
    }

    /// The JWT of some claims.
    pub(super) fn sign(&self, claims: &TokenClaims) -> String {
        todo!()
    }

    /// Checks signature and time.
    ///
    /// # Errors
    /// See [`TokenRefusal`].
    pub(super) fn verify(&self, jwt: &str, now: Timestamp) -> Result<TokenClaims, TokenRefusal> {
        todo!()
    }
}
