//! Who says who may join: the keys, and who remembers. Not more, so that the command line can do the same from any machine
//! that reaches the cluster.

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

/// See the module. What it revokes is in force where whoever remembers is followed: [`Pairing`](super::Pairing) does that.
pub struct Enrollment {
    pub(super) authority: Authority,
    pub(super) tokens: TokenKey,
    pub(super) membership: MembershipStore,
}

impl std::fmt::Debug for Enrollment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Office").field("membership", &self.membership).finish_non_exhaustive()
    }
}

impl Enrollment {
    /// The one of a cluster, with whatever rights there are to the Secrets in this namespace.
    ///
    /// # Errors
    /// They cannot be read; there are none, and the message says what to do.
    pub async fn connect(cluster: Arc<dyn ObjectStore>, namespace: &str) -> anyhow::Result<Self> {
        let (authority, tokens) = super::keys::read(&*cluster, namespace).await?;
        let membership = MembershipStore::of_cluster(cluster, namespace);
        Ok(Self { authority, tokens, membership })
    }

    /// Opens or makes the keys where the membership is, and begins to follow it.
    ///
    /// # Errors
    /// The files', the cluster's; a CA that is none, or another one than that of other replicas.
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

    /// The CA.
    #[must_use]
    pub fn trust(&self) -> Trust {
        self.authority.trust()
    }

    /// The membership.
    #[must_use]
    pub fn store(&self) -> &MembershipStore {
        &self.membership
    }

    /// Revokes all certificates and tokens of a node. Gives how many certificates it were.
    ///
    /// # Errors
    /// The store's.
    pub async fn revoke_node(&self, node: &str) -> Result<usize> {
        Ok(self.membership.revoke_certificates(node, now()).await?)
    }

    /// Frees the name of a node that was removed. Tells whether the name was used.
    ///
    /// # Errors
    /// The store's.
    pub async fn forget_node(&self, node: &str) -> Result<bool> {
        Ok(self.membership.forget_name(node, now()).await?)
    }

    /// An external broker refuses all certificates of a node that are revoked. Gives the number of those that this was not
    /// known of.
    ///
    /// # Errors
    /// The store's.
    pub async fn broker_updated(&self, node: &str) -> Result<usize> {
        Ok(self.membership.note_refused(node, now()).await?)
    }

    /// What is known of the certificates of operators, newest first.
    ///
    /// # Errors
    /// The store's.
    pub async fn operator_records(&self) -> Result<Vec<OperatorRecord>> {
        Ok(self.membership.operators().await?)
    }

    /// A certificate for an operator of the API, recorded.
    ///
    /// # Errors
    /// A bad name, role or time; too many; the library's and the store's.
    pub async fn new_operator(&self, name: &str, role: Role, lifetime: Duration) -> Result<Identity> {
        operators::issue(&self.authority, &self.membership, name, role, lifetime).await
    }

    /// Revokes the certificate with this serial number, or all of this name. Gives how many.
    ///
    /// # Errors
    /// 404 if there is none that could be revoked; the store's.
    pub async fn revoke_operators(&self, which: &str) -> Result<usize> {
        let revoked = self.membership.revoke_operators(which, now()).await?;
        operators::check_found(which, revoked)
    }
}
