//! The keys and the membership store, without the service.
//!
//! The command line uses it alone, from any machine that reaches the cluster, for what needs a
//! signature. All else needs the [`MembershipStore`] only, and no right to the keys.

use std::sync::Arc;
use std::time::Duration;

use super::authority::Authority;
use super::operators;
use super::published;
use super::tokens::TokenKey;
use super::{EnrollmentOptions, EnrollmentRole, files, now};
use crate::membership::{MembershipStore, OperatorRecord};
use crate::object_store::ObjectStore;
use edgesync_api::Role;
use edgesync_object::Status;
use edgesync_object::status::{Reason, Result};
use edgesync_transport::tls::{Certificate, Identity, Trust};

/// CA, keys and membership store.
pub struct Enrollment {
    /// The certificate of the CA.
    pub(super) ca: Certificate,
    /// `None` in a replica whose fleet has a signer.
    keys: Option<SigningKeys>,
    pub(super) membership: MembershipStore,
}

/// Keys of a process that signs certificates and tokens.
pub(super) struct SigningKeys {
    pub(super) authority: Authority,
    pub(super) tokens: TokenKey,
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
        let keys = super::keys::read(&*cluster, namespace).await?;
        Ok(Self::with_keys(keys, MembershipStore::of_cluster(cluster, namespace)))
    }

    fn with_keys((authority, tokens): (Authority, TokenKey), membership: MembershipStore) -> Self {
        let ca = authority.certificate().clone();
        Self { ca, keys: Some(SigningKeys { authority, tokens }), membership }
    }

    /// Opens the keys, creates those that are missing, and follows the membership. A replica opens
    /// no keys and reads the certificate of the CA.
    ///
    /// # Errors
    /// Files or cluster fail; `ca.crt` is not a CA, or not the one of the other replicas. For a
    /// replica: the signer has not started yet.
    pub(super) async fn open(
        options: &EnrollmentOptions,
        membership: MembershipStore,
    ) -> anyhow::Result<Self> {
        let directory = options.directory.clone();
        let enrollment = match membership.cluster() {
            None => {
                let opened = tokio::task::spawn_blocking(move || {
                    files::open_directory(&directory)?;
                    anyhow::Ok((Authority::open(&directory, now())?, TokenKey::open(&directory)?))
                });
                Self::with_keys(opened.await??, membership)
            }
            Some((cluster, namespace)) if options.role == EnrollmentRole::Replica => {
                let (ca, _) = published::read(cluster, namespace).await?;
                Self { ca, keys: None, membership }
            }
            Some((cluster, namespace)) => {
                let keys = super::keys::open(cluster, namespace, &directory).await?;
                Self::with_keys(keys, membership)
            }
        };
        enrollment.membership.follow().await?;
        Ok(enrollment)
    }

    /// Returns the keys.
    ///
    /// # Errors
    /// 409 in a process without keys, with a hint where they are.
    pub(super) fn keys(&self) -> Result<&SigningKeys> {
        self.keys.as_ref().ok_or_else(|| {
            let namespace = self.membership.cluster().map_or("NAMESPACE", |(_, namespace)| namespace);
            let message = format!(
                "this process has no key of the CA: the signer of the fleet has it; hint: run the command in the Pod of the \
                 signer, kubectl -n {namespace} exec deploy/edgesync-signer -- edgesync-cloud ..., or with the kubeconfig of the \
                 cluster, --kubeconfig FILE"
            );
            Status::new(Reason::Conflict, message)
        })
    }

    /// The trust anchor of nodes: the CA.
    #[must_use]
    pub fn trust(&self) -> Trust {
        Trust::new(vec![self.ca.clone()])
    }

    /// The store of tokens, certificates and members.
    #[must_use]
    pub fn store(&self) -> &MembershipStore {
        &self.membership
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
        operators::issue(&self.keys()?.authority, &self.membership, name, role, lifetime).await
    }
}
