//! The members of the fleet: tokens, certificates and removed nodes.
//!
//! A [`MembershipStore`] applies the rules. Its documents are in the database of this process, or
//! in a Kubernetes cluster, shared by all replicas. Writes are compare-and-swap (`documents`): each
//! names the state that it was decided on, so that of concurrent writers one wins.

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

use super::{RETENTION, before};
use crate::object_store::{Failure, ObjectStore};
use documents::{DocumentStore, Record, Revision, Stored};
use edgesync_cloud_store::{CloudError, CloudStore, NodeEffect};
use edgesync_object::{Labels, NodeName, ObjectKey, Status};
use edgesync_store::StoreError;
use follow::{Cache, WatchTask};
use member::Member;
use objects::ClusterDocuments;
use table::Table;

pub use changes::{Changed, Changes, RevocationChange};
pub use documents::RecordError;
pub use member::NodeIdentity;
pub(crate) use records::MAX_OPERATORS;
pub use records::{
    CertificateRecord, EnrollmentRefusal, MAX_CERTIFICATES_PER_NODE, MemberRecord, OperatorRecord,
    Revocations, TokenRecord,
};

/// Attempts of a write that conflicts with others.
const MAX_ATTEMPTS: u32 = 16;
/// Base and maximum of the exponential backoff between two attempts, before jitter.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(160));
/// Maximum number of remembered removed nodes; the oldest are dropped.
const MAX_REMOVED_NODES: usize = 100_000;
/// Value of `Retry-After` while the cluster is unavailable, in seconds.
const RETRY_SECONDS: u32 = 5;

/// Store of tokens, certificates and members. Cheap to clone.
#[derive(Clone)]
pub struct MembershipStore {
    shared: Arc<Shared>,
}

struct Shared {
    documents: Arc<dyn DocumentStore>,
    /// The same documents in a cluster, where other replicas change them too.
    cluster: Option<Arc<ClusterDocuments>>,
    cache: Arc<Cache>,
    /// Serialize compare-and-swap loops on a token within this process: concurrent ones would only
    /// conflict. Indexed by a hash of the id.
    locks: [tokio::sync::Mutex<()>; 16],
    watch_task: Mutex<Option<WatchTask>>,
}

/// Reason why the membership could not be read or written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MembershipError {
    /// The database of this process fails.
    #[error(transparent)]
    Store(#[from] CloudError),
    /// The cluster refuses the request or is unavailable.
    #[error(transparent)]
    Cluster(#[from] Failure),
    /// Every attempt has conflicted with another writer.
    #[error("write {kind} '{id}': too many conflicting writes; try again")]
    Contended {
        /// The kind of document.
        kind: &'static str,
        /// The id of the document.
        id: String,
    },
    /// Another program has written one of these objects.
    #[error("read {key}: {why}; restore it, or delete it with its content")]
    Damaged {
        /// Kind, namespace and name of the object.
        key: ObjectKey,
        /// The problem with its content.
        why: RecordError,
    },
    /// The watch could not start.
    #[error("watch tokens and certificates in namespace '{namespace}': {why}")]
    Unfollowed {
        /// The namespace in the cluster.
        namespace: String,
        /// The error of the watch.
        why: String,
    },
}

type Result<T, E = MembershipError> = std::result::Result<T, E>;

/// The state of a name, apart from its certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// A node has joined under it, or it was removed.
    pub used: bool,
    /// The labels of the token of the last join.
    pub labels: Arc<Labels>,
    /// Time of the removal from the fleet.
    pub removed: Option<Timestamp>,
}

impl From<MembershipError> for Status {
    fn from(error: MembershipError) -> Self {
        match &error {
            MembershipError::Store(_)
            | MembershipError::Damaged { .. }
            | MembershipError::Cluster(Failure::Invalid(_)) => Self::internal(error),
            // Temporary, or repairable in the cluster: the client retries.
            _ => Self::unavailable(error.to_string(), RETRY_SECONDS),
        }
    }
}

impl fmt::Debug for MembershipStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MembershipStore").field("documents", &self.shared.documents).finish_non_exhaustive()
    }
}

/// The store in this process's database, without other writers.
impl From<CloudStore> for MembershipStore {
    fn from(store: CloudStore) -> Self {
        Self::of(Arc::new(store), None)
    }
}

impl MembershipStore {
    /// The store in this namespace of a cluster. [`Self::follow`] starts the watch.
    #[must_use]
    pub fn of_cluster(cluster: Arc<dyn ObjectStore>, namespace: &str) -> Self {
        let documents = Arc::new(ClusterDocuments::new(cluster, namespace));
        Self::of(Arc::clone(&documents) as _, Some(documents))
    }

    fn of(documents: Arc<dyn DocumentStore>, cluster: Option<Arc<ClusterDocuments>>) -> Self {
        let (cache, locks, watch_task) = Default::default();
        Self { shared: Arc::new(Shared { documents, cluster, cache, locks, watch_task }) }
    }

    /// The cluster and the namespace of the store, if it is in a cluster.
    #[must_use]
    pub fn cluster(&self) -> Option<(&dyn ObjectStore, &str)> {
        self.shared.cluster.as_deref().map(|documents| (&*documents.cluster, &*documents.namespace))
    }

    /// Subscribes to the changes from now on, including those of this process.
    #[must_use]
    pub fn changes(&self) -> Changes {
        Changes::new(self.shared.cluster.as_ref().map(|_| self.shared.cache.changes.subscribe()))
    }

    /// The known state of a name; `None` if it was never used. Requires [`Self::follow`].
    #[must_use]
    pub fn membership(&self, node: &NodeName) -> Option<Membership> {
        self.shared.cache.table().membership(node)
    }
}

/// Every method fails with a [`MembershipError`].
#[allow(clippy::missing_errors_doc, reason = "documented above")]
impl MembershipStore {
    /// Records a new token.
    pub async fn put_token(&self, token: TokenRecord) -> Result<()> {
        match self.write(&token, Revision::NONE, NodeEffect::None).await? {
            true => Ok(()),
            false => Err(contended::<TokenRecord>(&token.id)),
        }
    }

    /// Returns all tokens, newest first.
    pub async fn tokens(&self) -> Result<Vec<TokenRecord>> {
        let mut tokens = self.values::<TokenRecord>().await?;
        tokens.sort_by(|one, other| other.created.cmp(&one.created).then_with(|| one.id.cmp(&other.id)));
        Ok(tokens)
    }

    /// Returns the usable tokens and those that ended within the last week, newest first.
    pub async fn listed_tokens(&self, now: Timestamp) -> Result<Vec<TokenRecord>> {
        let since = before(now, RETENTION);
        let mut tokens = self.tokens().await?;
        tokens.retain(|token| token.revoked.is_none_or(|at| at >= since) && token.expires >= since);
        Ok(tokens)
    }

    /// Revokes a token. Returns whether it was usable before; `None` if it does not exist.
    pub async fn revoke_token(&self, id: &str, now: Timestamp) -> Result<Option<bool>> {
        let revoke = |token: &mut TokenRecord| {
            let was_of_use = token.is_usable(now);
            token.revoked.get_or_insert(now);
            was_of_use
        };
        self.alter(id, None, NodeEffect::None, revoke).await
    }

    /// Records the certificate of a renewal. The presented one must be a known, unrevoked
    /// certificate of the same node.
    pub async fn renew_certificate(
        &self,
        presented: &str,
        certificate: CertificateRecord,
        now: Timestamp,
    ) -> Result<Result<(), EnrollmentRefusal>> {
        let renew = |member: &mut Member| member.renew(presented, &certificate, now);
        // A name without a record has no certificates.
        let renewed = self.change(&certificate.node, None, NodeEffect::None, renew).await?;
        Ok(renewed.unwrap_or(Err(EnrollmentRefusal::Revoked)))
    }

    /// Revokes all certificates of a node and all tokens bound to it. Returns the number of
    /// certificates.
    ///
    /// Tokens are revoked before certificates: a concurrent join reads its token again after it has
    /// recorded its certificate.
    pub async fn revoke_certificates(&self, node: &NodeName, now: Timestamp) -> Result<usize> {
        self.revoke_tokens_of(node, now).await?;
        self.alter_member(node, NodeEffect::None, |member| member.revoke(now)).await
    }

    /// Frees a used name, so that any device can join under it again. Drops its labels and revokes
    /// its certificates. Returns whether it was used.
    pub async fn forget_name(&self, node: &NodeName, now: Timestamp) -> Result<bool> {
        self.revoke_tokens_of(node, now).await?;
        self.alter_member(node, NodeEffect::None, |member| member.forget(now)).await
    }

    /// Whether a name was ever used, or a token is bound to it.
    pub async fn knows_name(&self, node: &NodeName) -> Result<bool> {
        self.is_known(&self.read_member(node).await?).await
    }

    /// Records that an external broker refuses all revoked certificates of a node. Returns the
    /// number of those that were unconfirmed.
    pub async fn note_refused(&self, node: &NodeName, now: Timestamp) -> Result<usize> {
        self.alter_member(node, NodeEffect::None, |member| member.note_refused(now)).await
    }

    /// Returns the known revocations: those of this process at once, those of others as soon as
    /// they are observed.
    pub async fn revocations(&self) -> Result<Revocations> {
        self.read_table(Table::revocations).await
    }

    /// Drops tokens and certificates that expired before this time, also revoked ones, and the
    /// oldest removed nodes beyond the limit. Returns the number of tokens and certificates.
    pub async fn prune_expired(&self, before: Timestamp) -> Result<usize> {
        let mut forgotten = self.prune(|token: &TokenRecord| token.expires < before).await?
            + self.prune(|operator: &OperatorRecord| operator.expires < before).await?;
        let (ended, removed) = self.read_table(|table| (table.ended(before), table.removed())).await?;
        for node in ended {
            forgotten += self.alter_member(&node, NodeEffect::None, |member| member.prune(before)).await?;
        }
        self.prune_removed(removed, MAX_REMOVED_NODES).await?;
        Ok(forgotten)
    }

    /// Records the certificate of an operator; `false` if there are too many. Concurrent replicas
    /// may exceed the limit slightly.
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

    /// Returns all certificates of operators, newest first.
    pub async fn operators(&self) -> Result<Vec<OperatorRecord>> {
        let mut operators = self.values::<OperatorRecord>().await?;
        operators.sort_by(|one, other| {
            other.created.cmp(&one.created).then_with(|| one.serial.cmp(&other.serial))
        });
        Ok(operators)
    }

    /// Revokes the operator certificate with this serial number, or all of this name. Returns the
    /// number of newly revoked ones.
    pub async fn revoke_operators(&self, which: &str, now: Timestamp) -> Result<usize> {
        let mut revoked = 0;
        for OperatorRecord { serial, name, .. } in self.operators().await? {
            if serial == which || name == which {
                let revoke = |operator: &mut OperatorRecord| {
                    let is_new = operator.revoked.is_none();
                    operator.revoked.get_or_insert(now);
                    usize::from(is_new)
                };
                revoked += self.alter(&serial, None, NodeEffect::None, revoke).await?.unwrap_or_default();
            }
        }
        if revoked > 0 {
            self.shared.cache.notify([Changed::Operators]);
        }
        Ok(revoked)
    }

    /// Returns the labels of a node's last join; `None` if its name is not used.
    pub async fn member_labels(&self, node: &NodeName) -> Result<Option<Labels>> {
        let member = self.read_member(node).await?;
        Ok(member.used.then_some(member.labels))
    }

    /// Returns the nodes that have joined and are not removed, ordered by name.
    pub async fn members(&self) -> Result<Vec<MemberRecord>> {
        self.read_table(Table::members).await
    }

    /// Reads one member from the store.
    pub async fn member(&self, node: &NodeName) -> Result<Option<MemberRecord>> {
        Ok(self.read_member(node).await?.record())
    }

    /// Returns the removed nodes with the time of removal, ordered by name.
    pub async fn removed(&self) -> Result<Vec<(NodeName, Timestamp)>> {
        self.read_table(Table::removed).await
    }

    /// Returns the removed nodes with the time of removal, and the members.
    pub async fn removed_and_members(&self) -> Result<(Vec<(NodeName, Timestamp)>, Vec<MemberRecord>)> {
        self.read_table(|table| (table.removed(), table.members())).await
    }

    /// Reads the time of removal and the member record of a node from the store.
    pub async fn removal_and_member(
        &self,
        node: &NodeName,
    ) -> Result<(Option<Timestamp>, Option<MemberRecord>)> {
        let member = self.read_member(node).await?;
        Ok((member.removed, member.record()))
    }

    /// Returns the removed nodes whose objects no process has deleted completely, ordered by name:
    /// one does so now, or has ended before.
    pub async fn unfinished_removals(&self) -> Result<Vec<NodeName>> {
        self.read_table(Table::unfinished_removals).await
    }

    /// Records that a node is removed from the fleet, with its Node if there is one; its name stays
    /// taken. Returns the time of the recorded removal, which identifies it. The database deletes
    /// all data of the node in the same transaction; in a cluster the fleet deletes it, and calls
    /// [`Self::complete_removal`].
    pub async fn remove_node(
        &self,
        node: &NodeName,
        deleted: Option<&NodeIdentity>,
        now: Timestamp,
    ) -> Result<Timestamp> {
        let remove = |member: &mut Member| {
            member.remove(deleted, now);
            let removal = member.removed.unwrap_or(now);
            self.delete_with(member, removal);
            removal
        };
        self.alter_member(node, NodeEffect::Delete(node.clone()), remove).await
    }

    /// Completes a removal whose transaction deletes the data of the node, too.
    fn delete_with(&self, member: &mut Member, removal: Timestamp) {
        if self.shared.cluster.is_none() {
            member.complete_removal(removal);
        }
    }

    /// Records that a node is removed because this Node of it was deleted. Several replicas do so
    /// at any time after the deletion: one removal is recorded, a node that has returned meanwhile
    /// is not removed, and a name that was freed stays free. Returns whether the node is removed; a
    /// node whose name is not known is, without a record.
    pub async fn remove_deleted_node(
        &self,
        node: &NodeName,
        deleted: Option<&NodeIdentity>,
        now: Timestamp,
    ) -> Result<bool> {
        let before = self.read_member(node).await?;
        if !self.is_known(&before).await? {
            return Ok(true);
        }
        let remove = |member: &mut Member| {
            let is_removed = member.remove_deleted(&before, deleted, now);
            self.delete_with(member, now);
            is_removed
        };
        self.alter_member(node, NodeEffect::Delete(node.clone()), remove).await
    }

    /// Records that the removal of a node deletes this Node too, unless the node has returned.
    /// Returns whether it is still removed.
    pub async fn add_removed_node(&self, node: &NodeName, deleted: &NodeIdentity) -> Result<bool> {
        self.alter_member(node, NodeEffect::None, |member| member.add_removed_node(deleted)).await
    }

    /// Records that all objects of a removed node are deleted, unless it has returned since.
    pub async fn complete_removal(&self, node: &NodeName, removal: Timestamp) -> Result<()> {
        self.alter_member(node, NodeEffect::None, |member| member.complete_removal(removal)).await
    }

    /// Lets a node return from the removal of this time; without one, no removal is known. A later
    /// removal stays. Returns whether the node is not removed then.
    pub async fn admit_from(&self, node: &NodeName, removal: Option<Timestamp>) -> Result<bool> {
        self.alter_member(node, NodeEffect::None, |member| member.admit_from(removal)).await
    }

    /// Lets a removed node return, whatever its removal. Returns whether it was removed.
    pub async fn admit_node(&self, node: &NodeName) -> Result<bool> {
        self.alter_member(node, NodeEffect::None, Member::admit).await
    }
}

/// Reads and compare-and-swap writes.
impl MembershipStore {
    /// Reads a record.
    async fn read<T: Record>(&self, id: &str) -> Result<Option<Stored<T>>> {
        let documents = &*self.shared.documents;
        match documents.get(T::KIND, id).await? {
            Some(found) => documents::read(documents, found).map(Some),
            None => Ok(None),
        }
    }

    async fn read_member(&self, node: &NodeName) -> Result<Member> {
        Ok(self.read(node).await?.map_or_else(|| Member::new(node), |stored| stored.value))
    }

    /// Reads all records of a kind, or those for a node.
    async fn read_all<T: Record>(&self, node: Option<&NodeName>) -> Result<Vec<Result<Stored<T>>>> {
        let documents = Arc::clone(&self.shared.documents);
        let found = documents.list(T::KIND, node).await?;
        // Takes long for a large fleet.
        let read =
            move || found.into_iter().map(|found| documents::read(&*documents, found)).collect::<Vec<_>>();
        let read = tokio::task::spawn_blocking(read).await;
        read.map_err(|error| CloudError::from(StoreError::internal(error.to_string())).into())
    }

    /// Reads all records of a kind, without damaged objects of a cluster.
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

    /// Reads the followed table, or one built from the store.
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

    /// Changes a record by compare-and-swap, unless the change is refused. A record that does not
    /// exist has the value `absent`. Returns `None` if there is neither.
    async fn change<T: Record, R, E>(
        &self,
        id: &str,
        absent: Option<&T>,
        effect: NodeEffect,
        mut change: impl FnMut(&mut T) -> Result<R, E>,
    ) -> Result<Option<Result<R, E>>> {
        for attempt in 0..MAX_ATTEMPTS {
            back_off(attempt).await;
            let (before, revision) = match (self.read::<T>(id).await?, absent) {
                (Some(Stored { value, revision }), _) => (value, revision),
                (None, Some(absent)) => (absent.clone(), Revision::NONE),
                (None, None) => return Ok(None),
            };
            let mut after = before.clone();
            let changed = match change(&mut after) {
                Ok(changed) => changed,
                Err(refusal) => return Ok(Some(Err(refusal))),
            };
            if after == before || self.write(&after, revision, effect.clone()).await? {
                if after.revoked_certificates() > before.revoked_certificates() {
                    self.mark().await;
                }
                return Ok(Some(Ok(changed)));
            }
        }
        Err(contended::<T>(id))
    }

    /// Changes a record by compare-and-swap, for a change that cannot be refused.
    async fn alter<T: Record, R>(
        &self,
        id: &str,
        absent: Option<&T>,
        effect: NodeEffect,
        mut change: impl FnMut(&mut T) -> R,
    ) -> Result<Option<R>> {
        let changed = self.change(id, absent, effect, |value| Ok::<_, Infallible>(change(value))).await?;
        Ok(changed.map(|changed| changed.unwrap_or_else(|never| match never {})))
    }

    /// Changes a member, whose record is created on demand.
    async fn alter_member<R: Default>(
        &self,
        node: &NodeName,
        effect: NodeEffect,
        change: impl FnMut(&mut Member) -> R,
    ) -> Result<R> {
        let absent = Member::new(node);
        Ok(self.alter(node, Some(&absent), effect, change).await?.unwrap_or_default())
    }

    /// Replaces a record as it was read, and deletes an empty one; `false` if it has changed since.
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

    /// Forgets all but the most recently removed nodes.
    async fn prune_removed(&self, mut removed: Vec<(NodeName, Timestamp)>, most: usize) -> Result<()> {
        removed.sort_by(|(_, one), (_, other)| other.cmp(one));
        for (node, removal) in removed.into_iter().skip(most) {
            self.admit_from(&node, Some(removal)).await?;
        }
        Ok(())
    }

    async fn revoke_tokens_of(&self, node: &NodeName, now: Timestamp) -> Result<()> {
        for token in self.read_all::<TokenRecord>(Some(node)).await? {
            let token = token?.value;
            if token.node.as_ref() == Some(node) && token.revoked.is_none() {
                self.revoke_token(&token.id, now).await?;
            }
        }
        Ok(())
    }

    /// Whether a name is taken, or a token is bound to it.
    async fn is_known(&self, member: &Member) -> Result<bool> {
        let documents = &self.shared.documents;
        Ok(self.is_used(member).await?
            || !documents.list(TokenRecord::KIND, Some(&member.node)).await?.is_empty())
    }

    /// Whether a name is taken: a node has joined or reported under it, it was removed, or a node
    /// of the cluster itself has it.
    async fn is_used(&self, member: &Member) -> Result<bool> {
        Ok(member.was_used() || self.shared.documents.is_node(&member.node).await?)
    }
}

fn contended<T: Record>(id: &str) -> MembershipError {
    MembershipError::Contended { kind: T::KIND, id: id.to_owned() }
}

/// Waits before another attempt, with exponential backoff and jitter.
async fn back_off(attempt: u32) {
    if attempt > 0 {
        let longest = BACKOFF.1.min(BACKOFF.0.saturating_mul(2u32.saturating_pow(attempt)));
        let random = edgesync_transport::random();
        let longest = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX);
        tokio::time::sleep(Duration::from_micros(random % longest)).await;
    }
}

fn warn_damaged(name: &str, why: &RecordError) {
    tracing::error!(name, %why, "damaged object skipped");
}

#[cfg(test)]
mod tests;
