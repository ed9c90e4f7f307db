//! The keys and the membership store, without the service.
//!
//! The command line uses it alone, from any machine that reaches the cluster.

use std::sync::Arc;
use std::time::Duration;

use super::authority::Authority;
use super::operators;
use super::tokens::TokenKey;
use super::{EnrollmentOptions, files, now};
use crate::membership::{MembershipStore, OperatorRecord};
use crate::object_store::ObjectStore;
use edgesync_api::Role;
use edgesync_object::status::Result;
use edgesync_transport::tls::{Identity, Trust};

/// CA, token key and membership store. A revocation takes effect in the processes that follow the
/// store: [`EnrollmentService`](super::EnrollmentService) does.
pub struct Enrollment {
    pub(super) authority: Authority,
    pub(super) tokens: TokenKey,
    pub(super) membership: MembershipStore,
}

impl std::fmt::Debug for Enrollment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Enrollment").field("membership", &self.membership).finish_non_exhaustive()
    }
}

impl Enrollment {
    /// Opens the enrollment of a cluster, with the caller's rights to the Secrets in this
    /// namespace.
    ///
    /// # Errors
    /// The Secrets cannot be read, or do not exist. The message says what to do.
    pub async fn connect(cluster: Arc<dyn ObjectStore>, namespace: &str) -> anyhow::Result<Self> {
        let (authority, tokens) = super::keys::read(&*cluster, namespace).await?;
        let membership = MembershipStore::of_cluster(cluster, namespace);
        Ok(Self { authority, tokens, membership })
    }

    /// Opens the keys, creates those that are missing, and follows the membership.
    ///
    /// # Errors
    /// Files or cluster fail; `ca.crt` is not a CA, or not the one of the other replicas.
    pub(super) async fn open(
        options: &EnrollmentOptions,
        membership: MembershipStore,
    ) -> anyhow::Result<Self> {
        let directory = options.directory.clone();
        let (authority, tokens) = match membership.cluster() {
            None => {
                tokio::task::spawn_blocking(move || {
                    files::open_directory(&directory)?;
                    anyhow::Ok((Authority::open(&directory, now())?, TokenKey::open(&directory)?))
                })
                .await??
            }
            Some((cluster, namespace)) => super::keys::open(cluster, namespace, &directory).await?,
        };
        membership.follow().await?;
        Ok(Self { authority, tokens, membership })
    }

    /// The trust anchor of nodes: the CA.
    #[must_use]
    pub fn trust(&self) -> Trust {
        self.authority.trust()
    }

    /// The store of tokens, certificates and members.
    #[must_use]
    pub fn store(&self) -> &MembershipStore {
        &self.membership
    }

    /// Revokes all certificates and tokens of a node. Returns the number of certificates.
    ///
    /// # Errors
    /// The store fails.
    pub async fn revoke_node(&self, node: &str) -> Result<usize> {
        Ok(self.membership.revoke_certificates(node, now()).await?)
    }

    /// Frees the name of a removed node. Returns whether the name was used.
    ///
    /// # Errors
    /// The store fails.
    pub async fn forget_node(&self, node: &str) -> Result<bool> {
        Ok(self.membership.forget_name(node, now()).await?)
    }

    /// Records that an external broker refuses all revoked certificates of a node. Returns the
    /// number of certificates not yet recorded as refused.
    ///
    /// # Errors
    /// The store fails.
    pub async fn broker_updated(&self, node: &str) -> Result<usize> {
        Ok(self.membership.note_refused(node, now()).await?)
    }

    /// Returns the recorded certificates of operators, newest first.
    ///
    /// # Errors
    /// The store fails.
    pub async fn operator_records(&self) -> Result<Vec<OperatorRecord>> {
        Ok(self.membership.operators().await?)
    }

    /// Issues and records a certificate for an operator of the API.
    ///
    /// # Errors
    /// Name, role or lifetime is invalid; there are too many operators; signing or the store fails.
    pub async fn new_operator(&self, name: &str, role: Role, lifetime: Duration) -> Result<Identity> {
        operators::issue(&self.authority, &self.membership, name, role, lifetime).await
    }

    /// Revokes the operator certificate with this serial number, or all of this name. Returns their
    /// number.
    ///
    /// # Errors
    /// 404 if none could be revoked; the store fails.
    pub async fn revoke_operators(&self, which: &str) -> Result<usize> {
        let revoked = self.membership.revoke_operators(which, now()).await?;
        operators::check_found(which, revoked)
    }
}
