//! Who belongs to the fleet: the CA, tokens, certificates of nodes and their revocation, and the service over which
//! nodes join and renew.
//!
//! What is secret is in files of `pairing.directory`, mode 0600: `ca.key`, `token.key`, `server.pem`. What is known of
//! tokens and certificates is in the store. The CA may be the operator's own: `ca.crt` and `ca.key` are taken as they
//! are found.

pub(super) mod authority;
pub(super) mod broker_config;
pub(super) mod service;
pub(super) mod tokens;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::object::status::Result;
use crate::store::cloud::CloudStore;
use crate::store::cloud::pairing::TokenRecord;
use crate::tls::{self, Identity, Trust};

use authority::Authority;

/// What pairing keeps to; `pairing` in the configuration.
#[derive(Clone, Debug)]
pub(super) struct PairingOptions {
    /// Where keys and certificates are.
    pub(super) directory: std::path::PathBuf,
    /// Host names and addresses of this machine, for the certificate of its services.
    pub(super) names: Vec<String>,
    /// What nodes are told; an empty host stands for the one they asked.
    pub(super) broker: String,
    /// The topics' prefix, which nodes are told.
    pub(super) prefix: String,
    /// How long certificates of nodes are good.
    pub(super) lifetime: Duration,
    /// How long after its end a certificate may still be renewed.
    pub(super) grace: Duration,
}

/// Everything about membership; cheap to clone.
#[derive(Clone)]
pub(crate) struct Pairing {
    shared: Arc<Shared>,
}

struct Shared {
    authority: Authority,
    store: CloudStore,
}

/// A token as it is handed out, once.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct NewToken {
    /// `<fingerprint>.<JWT>`.
    pub(super) token: String,
    /// What is kept of it.
    pub(super) record: TokenRecord,
}

impl Pairing {
    /// Opens or makes CA and keys, and reads what is revoked.
    ///
    /// # Errors
    /// Files that cannot be read or made, a CA that is none.
    pub(super) async fn open(options: PairingOptions, store: CloudStore) -> anyhow::Result<Self> {
        todo!()
    }

    /// What of the options can change while it runs.
    pub(super) fn reconfigure(&self, lifetime: Duration, grace: Duration) {
        todo!()
    }

    /// The CA.
    pub(super) fn trust(&self) -> Trust {
        todo!()
    }

    /// What this machine's services show. Made anew well before it ends; see [`Pairing::keep`].
    pub(super) fn server_identity(&self) -> Identity {
        todo!()
    }

    /// What the cloud side shows to an external broker.
    ///
    /// # Errors
    /// The library's.
    pub(super) fn cloud_identity(&self) -> anyhow::Result<Identity> {
        todo!()
    }

    /// TLS for the MQTT endpoint: certificates demanded, none expired, none revoked. Follows revocations and renewals.
    pub(super) fn endpoint_tls(&self) -> tls::Server {
        todo!()
    }

    /// TLS for the API: the same rule.
    pub(super) fn api_tls(&self) -> tls::Server {
        todo!()
    }

    /// TLS for joining and renewing: certificates are optional, and may have expired within the grace.
    pub(super) fn joining_tls(&self) -> tls::Server {
        todo!()
    }

    /// Renews the certificate of the services when it is time, and the revocation list. Never ends.
    pub(super) async fn keep(&self) {
        todo!()
    }

    /// Makes a token. `uses` is how often it can be used.
    ///
    /// # Errors
    /// A bad name, a time to live or number of uses out of range, the store's.
    pub(super) async fn create_token(
        &self,
        node: Option<&str>,
        ttl: Duration,
        uses: u32,
    ) -> Result<NewToken> {
        todo!()
    }

    /// All tokens that can still be used, and those that ended within the last week.
    ///
    /// # Errors
    /// The store's.
    pub(super) async fn tokens(&self) -> Result<Vec<TokenRecord>> {
        todo!()
    }

    /// Makes a token useless. Tells whether it was of use before.
    ///
    /// # Errors
    /// There is no such token; the store's.
    pub(super) async fn revoke_token(&self, id: &str) -> Result<bool> {
        todo!()
    }

    /// A certificate for a node that shows a token. The request's subject must name the node.
    ///
    /// # Errors
    /// Each says what to do: 401 for a token that is unknown, expired, used up or revoked; 403 for one of another
    /// node, or a request that names another; 409 for a name that another device has; 422 for a request that cannot
    /// be read.
    pub(super) async fn join(&self, bearer: &str, node: &str, request: &[u8]) -> Result<tls::Certificate> {
        todo!()
    }

    /// A new certificate for a node that has shown one (which TLS has verified, expired or not).
    ///
    /// # Errors
    /// 403 if it is another node's or revoked, or for too long expired; 422 as above.
    pub(super) async fn renew(
        &self,
        shown: &tls::Certificate,
        node: &str,
        request: &[u8],
    ) -> Result<tls::Certificate> {
        todo!()
    }

    /// Revokes all certificates and tokens of a node. Gives how many certificates it were. Connections must be cut by
    /// whoever has them.
    ///
    /// # Errors
    /// The store's.
    pub(super) async fn revoke_node(&self, node: &str) -> Result<usize> {
        todo!()
    }

    /// Whether a node's certificates are revoked and it has joined with no new token since: nothing that comes in its
    /// name is listened to, whatever an external broker lets through.
    pub(super) fn is_revoked(&self, node: &str) -> bool {
        todo!()
    }

    /// A certificate for an operator of the API.
    ///
    /// # Errors
    /// A bad name; the library's.
    pub(super) async fn operator(&self, name: &str, lifetime: Duration) -> Result<Identity> {
        todo!()
    }

    /// The revocation list, PEM, for brokers.
    pub(super) fn revocation_list(&self) -> String {
        todo!()
    }
}

/// Now, with the precision of certificates: seconds.
pub(super) fn now() -> Timestamp {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap_or(Timestamp::UNIX_EPOCH)
}
