//! What an operator hands to a device: `<SHA-256 of the CA in hexadecimal>.<JWT>`, as KubeEdge's `keadm gettoken`
//! prints it. Pure.

use jiff::Timestamp;

/// A token. Its secret part is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    ca: String,
    jwt: String,
}

/// Text that is no token. Never holds the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is no token: {0}; expected <64 hexadecimal digits>.<three parts with dots between>, as 'edgesync-cloud token create' or 'keadm gettoken' prints it"
)]
pub struct TokenError(pub String);

/// What the token says of itself. Not verified: only the cloud can.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// Until when it can be used.
    pub expires: Option<Timestamp>,
    /// The only node that it is for.
    pub node: Option<String>,
}

impl std::str::FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        todo!()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("ca", &self.ca).finish_non_exhaustive()
    }
}

impl Token {
    /// SHA-256 of the CA's DER, lower-case hexadecimal.
    #[must_use]
    pub fn ca_fingerprint(&self) -> &str {
        &self.ca
    }

    /// The JWT, for the header `Authorization: Bearer`.
    #[must_use]
    pub fn bearer(&self) -> &str {
        &self.jwt
    }

    /// What it says of itself.
    #[must_use]
    pub fn claims(&self) -> Claims {
        todo!()
    }
}
