//! Who remembers: tokens, certificates and what became of the nodes that they are of.
//!
//! [`Register::Embedded`] is the database of this process. A cluster keeps the same things as objects, for all replicas;
//! each write that depends on what was read is a compare-and-swap there. The rules are the same, and shared where both can
//! ask the same question: [`TokenRecord::check`](edgesync_cloud_store::pairing::TokenRecord::check).

mod cluster;
mod member;
pub(super) mod objects;
mod spending;
mod table;

use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::broadcast;

use crate::object_store::Failure;
use edgesync_cloud_store::operators::OperatorRecord;
use edgesync_cloud_store::pairing::{
    CertificateRecord, MemberRecord, PairingRefusal, Revocations, TokenRecord,
};
use edgesync_cloud_store::{CloudError, CloudStore};
use edgesync_object::ObjectKey;
use edgesync_object::{Labels, Status};

pub use cluster::ClusterRegister;

/// Who remembers. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Register {
    /// The database of this process.
    Embedded(CloudStore),
    /// A Kubernetes cluster, for all replicas.
    Cluster(ClusterRegister),
}

/// Why something was not remembered, or could not be looked up.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RegisterError {
    /// The database's.
    #[error(transparent)]
    Store(#[from] CloudError),
    /// The cluster's.
    #[error(transparent)]
    Cluster(#[from] Failure),
    /// Others were always faster.
    #[error("{0} is changed by others all the time: try again")]
    Contended(ObjectKey),
    /// Somebody else has written an object of these.
    #[error(
        "{key} is not as edgesync has written it: {why}; restore it, or delete it, and what it says is forgotten"
    )]
    Damaged {
        /// Which one.
        key: ObjectKey,
        /// What is wrong.
        why: String,
    },
    /// What there is cannot be followed.
    #[error("tokens and certificates in the namespace '{namespace}' cannot be followed: {why}")]
    Unfollowed {
        /// Where.
        namespace: String,
        /// Why.
        why: String,
    },
}

type Result<T, E = RegisterError> = std::result::Result<T, E>;

/// What has become of a name, beside its certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Somebody has joined under it, or it was removed.
    pub used: bool,
    /// The labels of the token that it joined with last.
    pub labels: Arc<Labels>,
    /// Since when it has been removed from the fleet.
    pub removed: Option<Timestamp>,
}

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Something of a name.
    Member {
        /// The name.
        node: Arc<str>,
        /// Whether this process has changed it, and knows that already: the watch may be faster than the answer.
        own: bool,
        /// Whether what is revoked of it has changed.
        revocation: RevocationChange,
    },
    /// Certificates of operators.
    Operators,
    /// More than could be told: everything is to be looked at.
    All,
}

/// What has become of what is revoked of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevocationChange {
    /// It is the same.
    None,
    /// Something more is revoked.
    More,
    /// Something else: it has joined anew, what is revoked was forgotten, or a broker refuses it.
    Other,
}

/// Tells what changes.
#[derive(Debug)]
pub struct Changes(Option<broadcast::Receiver<Changed>>);

impl Changes {
    /// Waits for the next change; for ever, where nobody else can change anything. Can be cancelled without loss.
    pub async fn next(&mut self) -> Changed {
        loop {
            let Some(told) = &mut self.0 else { return std::future::pending().await };
            match told.recv().await {
                Ok(changed) => return changed,
                Err(broadcast::error::RecvError::Lagged(_)) => return Changed::All,
                Err(broadcast::error::RecvError::Closed) => self.0 = None,
            }
        }
    }

    /// A change that can be told at once.
    pub(super) fn at_once(&mut self) -> Option<Changed> {
        match self.0.as_mut()?.try_recv() {
            Ok(changed) => Some(changed),
            Err(broadcast::error::TryRecvError::Lagged(_)) => Some(Changed::All),
            Err(_) => None,
        }
    }
}

impl From<RegisterError> for Status {
    fn from(error: RegisterError) -> Self {
        match &error {
            RegisterError::Store(_) => Self::internal(error),
            RegisterError::Damaged { .. } | RegisterError::Cluster(Failure::Invalid(_)) => {
                Self::internal(error)
            }
            // What is missing there can be put right there.
            _ => Self::unavailable(error.to_string(), RETRY_SECONDS),
        }
    }
}

/// How long somebody is asked to wait while the cluster does not serve, in seconds.
const RETRY_SECONDS: u32 = 5;

/// Asks whoever remembers.
macro_rules! ask {
    ($register:expr, $call:ident($($argument:expr),*)) => {
        match $register {
            Register::Embedded(store) => Ok(store.$call($($argument),*).await?),
            Register::Cluster(cluster) => cluster.$call($($argument),*).await,
        }
    };
}

/// Each method may fail with what [`RegisterError`] names.
#[allow(clippy::missing_errors_doc, reason = "said once above")]
impl Register {
    /// Records a token.
    pub async fn put_token(&self, token: TokenRecord) -> Result<()> {
        ask!(self, put_token(token))
    }

    /// All tokens, newest first.
    pub async fn tokens(&self) -> Result<Vec<TokenRecord>> {
        ask!(self, tokens())
    }

    /// Revokes a token; none if there is no such token, and else whether it was of use before.
    pub async fn revoke_token(&self, id: &str, now: Timestamp) -> Result<Option<bool>> {
        ask!(self, revoke_token(id, now))
    }

    /// Counts a use of a token, records the certificate that it led to and notes the labels of the token. See
    /// [`CloudStore::spend_token`].
    pub async fn spend_token(
        &self,
        id: &str,
        certificate: CertificateRecord,
        now: Timestamp,
    ) -> Result<Result<(), PairingRefusal>> {
        ask!(self, spend_token(id, certificate, now))
    }

    /// Records the certificate of a renewal. The one that was shown must be known, of the same node and not revoked.
    pub async fn renew_certificate(
        &self,
        shown: &str,
        certificate: CertificateRecord,
        now: Timestamp,
    ) -> Result<Result<(), PairingRefusal>> {
        ask!(self, renew_certificate(shown, certificate, now))
    }

    /// Revokes all certificates of a node and all tokens that are bound to it. Gives the number of certificates.
    pub async fn revoke_certificates(&self, node: &str, now: Timestamp) -> Result<usize> {
        ask!(self, revoke_certificates(node, now))
    }

    /// Forgets that a name was used, and with it the labels of its token. What is still good of it is revoked. Tells whether
    /// it was used.
    pub async fn forget_name(&self, node: &str, now: Timestamp) -> Result<bool> {
        ask!(self, forget_name(node, now))
    }

    /// Whether a name was ever used, or a token was made for it.
    pub async fn knows_name(&self, node: &str) -> Result<bool> {
        ask!(self, knows_name(node))
    }

    /// Notes that an external broker refuses all certificates of a node that are revoked so far. Gives their number.
    pub async fn note_refused(&self, node: &str, now: Timestamp) -> Result<usize> {
        ask!(self, note_refused(node, now))
    }

    /// What is revoked, as far as it is known here: whatever this process has revoked, and what others have as soon as it
    /// is heard of.
    pub async fn revocations(&self) -> Result<Revocations> {
        ask!(self, revocations())
    }

    /// Forgets tokens and certificates (also revoked ones) that ended before this time: nobody can use them.
    pub async fn prune_pairing(&self, before: Timestamp) -> Result<usize> {
        ask!(self, prune_pairing(before))
    }

    /// Records the certificate of an operator; false if there are too many already.
    pub async fn put_operator(&self, operator: OperatorRecord) -> Result<bool> {
        ask!(self, put_operator(operator))
    }

    /// All certificates of operators, newest first.
    pub async fn operators(&self) -> Result<Vec<OperatorRecord>> {
        ask!(self, operators())
    }

    /// Revokes the certificate with this serial number, or all of this name. Gives how many that were not revoked before.
    pub async fn revoke_operators(&self, which: &str, now: Timestamp) -> Result<usize> {
        ask!(self, revoke_operators(which, now))
    }

    /// The labels of the token that a node joined with last; none if its name was never used.
    pub async fn member_labels(&self, node: &str) -> Result<Option<Labels>> {
        ask!(self, member_labels(node))
    }

    /// The names that somebody has joined under and that are not removed, in their order.
    pub async fn members(&self) -> Result<Vec<MemberRecord>> {
        ask!(self, members())
    }

    /// The same of one name.
    pub async fn member(&self, node: &str) -> Result<Option<MemberRecord>> {
        ask!(self, member(node))
    }

    /// The nodes that were removed from the fleet, and when, in the order of their names.
    pub async fn removed(&self) -> Result<Vec<(String, Timestamp)>> {
        match self {
            Self::Embedded(store) => Ok(store.registered().await?.removed),
            Self::Cluster(cluster) => cluster.removed().await,
        }
    }

    /// Remembers that a node is removed from the fleet; its name is not free again. Tells whether there was anything of it:
    /// the database removes all of that, of the cluster it is for the fleet to do.
    pub async fn remove_node(&self, node: &str) -> Result<bool> {
        match self {
            Self::Embedded(store) => Ok(store.remove_node(node).await?),
            Self::Cluster(cluster) => cluster.remove_node(node, super::now()).await,
        }
    }

    /// Forgets that a node was removed: it may come back. Tells whether it had been.
    pub async fn admit_node(&self, node: &str) -> Result<bool> {
        ask!(self, admit_node(node))
    }

    /// Tells what changes from now on.
    #[must_use]
    pub fn changes(&self) -> Changes {
        match self {
            Self::Embedded(_) => Changes(None),
            Self::Cluster(cluster) => Changes(Some(cluster.changes())),
        }
    }
}

impl From<CloudStore> for Register {
    fn from(store: CloudStore) -> Self {
        Self::Embedded(store)
    }
}

impl From<ClusterRegister> for Register {
    fn from(cluster: ClusterRegister) -> Self {
        Self::Cluster(cluster)
    }
}
