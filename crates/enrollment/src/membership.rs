//! The members of the fleet: tokens, certificates, and what became of the nodes that they are of.
//!
//! A [`MembershipStore`] applies the rules; the documents that it keeps are in the database of this process, or in a Kubernetes
//! cluster for all replicas. What decides over a write is read before it, and the write names what it replaces
//! (`documents`), so that of several writers one wins.

mod changes;
mod documents;
mod follow;
mod member;
pub(super) mod objects;
mod records;
mod spending;
mod table;

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;

use crate::object_store::{Failure, ObjectStore};
use documents::{DocumentStore, Record, Revision, Stored};
use edgesync_cloud_store::{CloudError, CloudStore, NodeEffect};
use edgesync_object::{Labels, ObjectKey, Status};
use edgesync_store::StoreError;
use follow::{Cache, WatchTask};
use member::Member;
use objects::ClusterDocuments;
use table::Table;

pub use changes::{Changed, Changes, RevocationChange};
pub(crate) use records::MAX_OPERATORS;
pub use records::{
    CertificateRecord, EnrollmentRefusal, MAX_CERTIFICATES_PER_NODE, MemberRecord, OperatorRecord,
    Revocations, TokenRecord,
};

/// How often a write is tried that others are faster with.
const MAX_ATTEMPTS: u32 = 16;
/// How long is waited between two tries at first, and at most, about.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(160));
/// The most removed nodes that are remembered: the last ones.
const MAX_REMOVED_NODES: usize = 100_000;
/// How long somebody is asked to wait while the cluster does not serve, in seconds.
const RETRY_SECONDS: u32 = 5;

/// Tokens, certificates and members. Cheap to clone.
#[derive(Clone)]
pub struct MembershipStore {
    shared: Arc<Shared>,
}

struct Shared {
    documents: Arc<dyn DocumentStore>,
    /// The same documents, where other replicas change them too.
    cluster: Option<Arc<ClusterDocuments>>,
    cache: Arc<Cache>,
    /// One at a time spends a token here: others would only be in each other's way.
    locks: [tokio::sync::Mutex<()>; 16],
    watch_task: Mutex<Option<WatchTask>>,
}

/// Why something was not stored, or could not be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MembershipError {
    /// The database's.
    #[error(transparent)]
    Store(#[from] CloudError),
    /// The cluster's.
    #[error(transparent)]
    Cluster(#[from] Failure),
    /// Others were always faster.
    #[error("the {kind} '{id}' is changed by others all the time: try again")]
    Contended {
        /// What it is.
        kind: &'static str,
        /// Which one.
        id: String,
    },
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

type Result<T, E = MembershipError> = std::result::Result<T, E>;

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

impl From<MembershipError> for Status {
    fn from(error: MembershipError) -> Self {
        match &error {
            MembershipError::Store(_)
            | MembershipError::Damaged { .. }
            | MembershipError::Cluster(Failure::Invalid(_)) => Self::internal(error),
            // What is missing there can be put right there.
            _ => Self::unavailable(error.to_string(), RETRY_SECONDS),
        }
    }
}

impl fmt::Debug for MembershipStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MembershipStore").field("documents", &self.shared.documents).finish_non_exhaustive()
    }
}

/// In the database of this process, which alone writes it.
impl From<CloudStore> for MembershipStore {
    fn from(store: CloudStore) -> Self {
        Self::of(Arc::new(store), None)
    }
}

impl MembershipStore {
    /// The one in this namespace of a cluster. Nothing is followed before [`Self::follow`].
    #[must_use]
    pub fn of_cluster(cluster: Arc<dyn ObjectStore>, namespace: &str) -> Self {
        let documents = Arc::new(ClusterDocuments::new(cluster, namespace));
        Self::of(Arc::clone(&documents) as _, Some(documents))
    }

    fn of(documents: Arc<dyn DocumentStore>, cluster: Option<Arc<ClusterDocuments>>) -> Self {
        let (cache, locks, watch_task) = Default::default();
        Self { shared: Arc::new(Shared { documents, cluster, cache, locks, watch_task }) }
    }

    /// The cluster and the namespace that it is in, if it is in one.
    #[must_use]
    pub fn cluster(&self) -> Option<(&dyn ObjectStore, &str)> {
        self.shared.cluster.as_deref().map(|documents| (&*documents.cluster, &*documents.namespace))
    }

    /// Tells what changes from now on, this process' own changes too.
    #[must_use]
    pub fn changes(&self) -> Changes {
        Changes::new(self.shared.cluster.as_ref().map(|_| self.shared.cache.changes.subscribe()))
    }

    /// What is known of a name; nothing if it was never used. Only for who follows.
    #[must_use]
    pub fn membership(&self, node: &str) -> Option<Membership> {
        self.shared.cache.table().membership(node)
    }
}

/// Each method may fail with what [`MembershipError`] names.
#[allow(clippy::missing_errors_doc, reason = "said once above")]
impl MembershipStore {
    /// Records a token.
    pub async fn put_token(&self, token: TokenRecord) -> Result<()> {
        match self.write(&token, Revision::NONE, NodeEffect::None).await? {
            true => Ok(()),
            false => Err(contended::<TokenRecord>(&token.id)),
        }
    }

    /// All tokens, newest first.
    pub async fn tokens(&self) -> Result<Vec<TokenRecord>> {
        let mut tokens = self.values::<TokenRecord>().await?;
        tokens.sort_by(|one, other| other.created.cmp(&one.created).then_with(|| one.id.cmp(&other.id)));
        Ok(tokens)
    }

    /// Revokes a token; none if there is no such token, and else whether it was of use before.
    pub async fn revoke_token(&self, id: &str, now: Timestamp) -> Result<Option<bool>> {
        let revoke = |token: &mut TokenRecord| {
            let was_of_use = token.is_usable(now);
            token.revoked.get_or_insert(now);
            was_of_use
        };
        self.alter(id, NodeEffect::None, revoke).await
    }

    /// Records the certificate of a renewal. The one that was shown must be known, of the same node and not revoked.
    pub async fn renew_certificate(
        &self,
        presented: &str,
        certificate: CertificateRecord,
        now: Timestamp,
    ) -> Result<Result<(), EnrollmentRefusal>> {
        let renew = |member: &mut Member| member.renew(presented, &certificate, now);
        // What there is not has no certificate to show.
        let renewed = self.change(&certificate.node, NodeEffect::None, renew).await?;
        Ok(renewed.unwrap_or(Err(EnrollmentRefusal::Revoked)))
    }

    /// Revokes all certificates of a node and all tokens that are bound to it. Gives the number of certificates.
    ///
    /// First the tokens, then the certificates: whoever is just joining with one of these tokens looks at it once more after
    /// the certificate was recorded.
    pub async fn revoke_certificates(&self, node: &str, now: Timestamp) -> Result<usize> {
        self.revoke_tokens_of(node, now).await?;
        self.alter_member(node, NodeEffect::None, |member| member.revoke(now)).await
    }

    /// Forgets that a name was used, and with it the labels of its token: any device may join under it again. What is
    /// still good of it is revoked. Tells whether it was used.
    pub async fn forget_name(&self, node: &str, now: Timestamp) -> Result<bool> {
        self.revoke_tokens_of(node, now).await?;
        self.alter_member(node, NodeEffect::None, |member| member.forget(now)).await
    }

    /// Whether a name was ever used, or a token was made for it.
    pub async fn knows_name(&self, node: &str) -> Result<bool> {
        let documents = &self.shared.documents;
        Ok(self.is_used(&self.read_member(node).await?).await?
            || !documents.list(TokenRecord::KIND, Some(node)).await?.is_empty())
    }

    /// Notes that an external broker refuses all certificates of a node that are revoked so far. Gives their number.
    pub async fn note_refused(&self, node: &str, now: Timestamp) -> Result<usize> {
        self.alter_member(node, NodeEffect::None, |member| member.note_refused(now)).await
    }

    /// What is revoked, as far as it is known here: whatever this process has revoked, and what others have as soon as it
    /// is heard of.
    pub async fn revocations(&self) -> Result<Revocations> {
        self.read_table(Table::revocations).await
    }

    /// Forgets tokens and certificates (also revoked ones) that ended before this time, which nobody can use, and of the nodes
    /// that were removed those that were first, if there are too many.
    pub async fn prune_expired(&self, before: Timestamp) -> Result<usize> {
        let mut forgotten = self.prune(|token: &TokenRecord| token.expires < before).await?
            + self.prune(|operator: &OperatorRecord| operator.expires < before).await?;
        for node in self.read_table(|table| table.ended(before)).await? {
            forgotten += self.alter_member(&node, NodeEffect::None, |member| member.prune(before)).await?;
        }
        self.prune_removed(MAX_REMOVED_NODES).await?;
        Ok(forgotten)
    }

    /// Records the certificate of an operator; false if there are too many already. Replicas that do this at the same moment
    /// may make a few more than there should be.
    pub async fn put_operator(&self, operator: OperatorRecord) -> Result<bool> {
        let _guard = self.lock(OperatorRecord::KIND).await;
        let is_good = |other: &&OperatorRecord| other.revoked.is_none() && other.expires > operator.created;
        if self.operators().await?.iter().filter(is_good).count() >= MAX_OPERATORS {
            return Ok(false);
        }
        if !self.write(&operator, Revision::NONE, NodeEffect::None).await? {
            return Err(contended::<OperatorRecord>(&operator.serial));
        }
        self.shared.cache.notify([Changed::Operators]);
        Ok(true)
    }

    /// All certificates of operators, newest first.
    pub async fn operators(&self) -> Result<Vec<OperatorRecord>> {
        let mut operators = self.values::<OperatorRecord>().await?;
        operators.sort_by(|one, other| {
            other.created.cmp(&one.created).then_with(|| one.serial.cmp(&other.serial))
        });
        Ok(operators)
    }

    /// Revokes the certificate with this serial number, or all of this name. Gives how many that were not revoked before.
    pub async fn revoke_operators(&self, which: &str, now: Timestamp) -> Result<usize> {
        let mut revoked = 0;
        for OperatorRecord { serial, name, .. } in self.operators().await? {
            if serial == which || name == which {
                let revoke = |operator: &mut OperatorRecord| {
                    let is_new = operator.revoked.is_none();
                    operator.revoked.get_or_insert(now);
                    usize::from(is_new)
                };
                revoked += self.alter(&serial, NodeEffect::None, revoke).await?.unwrap_or_default();
            }
        }
        if revoked > 0 {
            self.shared.cache.notify([Changed::Operators]);
        }
        Ok(revoked)
    }

    /// The labels of the token that a node joined with last; none if its name was never used.
    pub async fn member_labels(&self, node: &str) -> Result<Option<Labels>> {
        let member = self.read_member(node).await?;
        Ok(member.used.then_some(member.labels))
    }

    /// The names that somebody has joined under and that are not removed, in their order.
    pub async fn members(&self) -> Result<Vec<MemberRecord>> {
        self.read_table(Table::members).await
    }

    /// The same of one name, as it is now.
    pub async fn member(&self, node: &str) -> Result<Option<MemberRecord>> {
        Ok(self.read_member(node).await?.record())
    }

    /// The nodes that were removed from the fleet, and when, in the order of their names.
    pub async fn removed(&self) -> Result<Vec<(String, Timestamp)>> {
        self.read_table(Table::removed).await
    }

    /// The nodes that were removed, and when, and the other names that were joined under.
    pub async fn removed_and_members(&self) -> Result<(Vec<(String, Timestamp)>, Vec<MemberRecord>)> {
        self.read_table(|table| (table.removed(), table.members())).await
    }

    /// When a node was removed, and what there is of it otherwise, as it is now.
    pub async fn standing(&self, node: &str) -> Result<(Option<Timestamp>, Option<MemberRecord>)> {
        let member = self.read_member(node).await?;
        Ok((member.removed, member.record()))
    }

    /// Remembers that a node is removed from the fleet at this time; its name is not free again. Tells whether it was not
    /// removed before. The database deletes all that it has of the node with this, of a cluster it is for the fleet to do.
    pub async fn remove_node(&self, node: &str, now: Timestamp) -> Result<bool> {
        self.alter_member(node, NodeEffect::Delete, |member| member.remove(now)).await
    }

    /// Forgets that a node was removed: it may come back. Tells whether it had been.
    pub async fn admit_node(&self, node: &str) -> Result<bool> {
        self.alter_member(node, NodeEffect::None, Member::admit).await
    }
}

/// Reads, and writes that name what they replace.
impl MembershipStore {
    /// Reads a record, or what stands for one that is not there.
    async fn read<T: Record>(&self, id: &str) -> Result<Option<Stored<T>>> {
        let documents = &*self.shared.documents;
        match documents.get(T::KIND, id).await? {
            Some(found) => documents::read(documents, found).map(Some),
            None => Ok(T::absent(id).map(|value| Stored { value, revision: Revision::NONE })),
        }
    }

    async fn read_member(&self, node: &str) -> Result<Member> {
        Ok(self.read(node).await?.map_or_else(|| Member::new(node), |stored| stored.value))
    }

    /// Reads all records of a kind, or those that are for a node.
    async fn read_all<T: Record>(&self, node: Option<&str>) -> Result<Vec<Result<Stored<T>>>> {
        let documents = Arc::clone(&self.shared.documents);
        let found = documents.list(T::KIND, node).await?;
        // Of a large fleet that takes long.
        let read =
            move || found.into_iter().map(|found| documents::read(&*documents, found)).collect::<Vec<_>>();
        let read = tokio::task::spawn_blocking(read).await;
        read.map_err(|error| CloudError::from(StoreError::internal(error.to_string())).into())
    }

    /// The same without those that somebody else has written in a cluster.
    async fn list<T: Record>(&self) -> Result<Vec<Stored<T>>> {
        let mut records = Vec::new();
        for read in self.read_all(None).await? {
            match read {
                Err(MembershipError::Damaged { key, why }) => warn_damaged(&key.name, &why),
                read => records.push(read?),
            }
        }
        Ok(records)
    }

    async fn values<T: Record>(&self) -> Result<Vec<T>> {
        Ok(self.list().await?.into_iter().map(|stored| stored.value).collect())
    }

    /// Reads what is known: what is followed, or else what there is now.
    async fn read_table<T>(&self, read: impl FnOnce(&Table) -> T) -> Result<T> {
        if self.is_followed() {
            return Ok(read(&self.shared.cache.table()));
        }
        let mut table = Table::default();
        for Stored { value, revision } in self.list::<Member>().await? {
            table.set(&value, &revision.version());
        }
        Ok(read(&table))
    }

    /// Changes a record until nobody else changes it meanwhile, unless that is refused. None if there is none.
    async fn change<T: Record, R, E>(
        &self,
        id: &str,
        effect: NodeEffect,
        mut change: impl FnMut(&mut T) -> Result<R, E>,
    ) -> Result<Option<Result<R, E>>> {
        for attempt in 0..MAX_ATTEMPTS {
            back_off(attempt).await;
            let Some(Stored { value: before, revision }) = self.read::<T>(id).await? else { return Ok(None) };
            let mut after = before.clone();
            let changed = match change(&mut after) {
                Ok(changed) => changed,
                Err(refusal) => return Ok(Some(Err(refusal))),
            };
            if after == before || self.write(&after, revision, effect).await? {
                if after.revoked_certificates() > before.revoked_certificates() {
                    self.mark().await;
                }
                return Ok(Some(Ok(changed)));
            }
        }
        Err(contended::<T>(id))
    }

    /// The same for a change that nothing refuses.
    async fn alter<T: Record, R>(
        &self,
        id: &str,
        effect: NodeEffect,
        mut change: impl FnMut(&mut T) -> R,
    ) -> Result<Option<R>> {
        let changed = self.change(id, effect, |value| Ok::<_, Infallible>(change(value))).await?;
        Ok(changed.map(|changed| changed.unwrap_or_else(|never| match never {})))
    }

    /// The same for a member: there is always one.
    async fn alter_member<R: Default>(
        &self,
        node: &str,
        effect: NodeEffect,
        change: impl FnMut(&mut Member) -> R,
    ) -> Result<R> {
        Ok(self.alter(node, effect, change).await?.unwrap_or_default())
    }

    /// Writes a record in the place of what was read, or deletes one that says nothing; false if that has changed meanwhile.
    async fn write<T: Record>(&self, value: &T, replaces: Revision, effect: NodeEffect) -> Result<bool> {
        let Shared { documents, cluster, cache, .. } = &*self.shared;
        let version = if replaces != Revision::NONE && value.as_member().is_some_and(Member::is_empty) {
            documents.delete(T::KIND, value.id(), replaces).await?.then_some(None)
        } else {
            documents.put(documents::write(value), replaces, effect).await?.map(Some)
        };
        let Some(version) = version else { return Ok(false) };
        if let (Some(member), Some(_)) = (value.as_member(), cluster) {
            let changed = cache.table().written(member, version);
            cache.notify(changed);
        }
        Ok(true)
    }

    async fn prune<T: Record>(&self, is_over: impl Fn(&T) -> bool) -> Result<usize> {
        let mut forgotten = 0;
        for Stored { value, revision } in self.list::<T>().await? {
            if is_over(&value) {
                let deleted = self.shared.documents.delete(T::KIND, value.id(), revision).await?;
                forgotten += usize::from(deleted);
            }
        }
        Ok(forgotten)
    }

    /// Forgets which nodes were removed, but for the last ones.
    async fn prune_removed(&self, most: usize) -> Result<()> {
        let mut removed = self.removed().await?;
        removed.sort_by(|(_, one), (_, other)| other.cmp(one));
        for (node, _) in removed.into_iter().skip(most) {
            self.admit_node(&node).await?;
        }
        Ok(())
    }

    async fn revoke_tokens_of(&self, node: &str, now: Timestamp) -> Result<()> {
        for token in self.read_all::<TokenRecord>(Some(node)).await? {
            let token = token?.value;
            if token.node.as_deref() == Some(node) && token.revoked.is_none() {
                self.revoke_token(&token.id, now).await?;
            }
        }
        Ok(())
    }

    /// Whether a name was used: somebody has joined or reported under it, it was removed, or a node of the cluster itself has
    /// it.
    async fn is_used(&self, member: &Member) -> Result<bool> {
        Ok(member.was_used() || self.shared.documents.is_node(&member.node).await?)
    }
}

fn contended<T: Record>(id: &str) -> MembershipError {
    MembershipError::Contended { kind: T::KIND, id: id.to_owned() }
}

/// Waits before another try, longer each time, and not as long as others.
async fn back_off(attempt: u32) {
    if attempt > 0 {
        let longest = BACKOFF.1.min(BACKOFF.0.saturating_mul(2u32.saturating_pow(attempt)));
        let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
        let longest = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX);
        tokio::time::sleep(Duration::from_micros(random % longest)).await;
    }
}

fn warn_damaged(name: &str, why: &str) {
    tracing::error!(name, why, "an object is not as edgesync has written it, and left out");
}

#[cfg(test)]
mod tests;
