//! A Kubernetes cluster as who remembers, for as many replicas as one wants.
//!
//! Names are ConfigMaps, tokens are Secrets, both in one namespace. What is known of all names is followed; what decides
//! over a write is read from the quorum, and the write names the version that it replaces.

mod follow;
mod operators;

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;

use super::member::{MEMBER, Member};
use super::table::Table;
use super::{Changed, Membership, RegisterError, Result, objects};
use crate::object_store::{Failure, ObjectStore, Precondition};
use edgesync_cloud_store::MAX_REMOVED_NODES;
use edgesync_cloud_store::pairing::{
    CertificateRecord, MemberRecord, PairingRefusal, Revocations, TokenRecord,
};
use edgesync_object::node_labels::has_reported;
use edgesync_object::{Labels, Object, ObjectKey, Resource, ResourceVersion, kinds};

/// How often a write is tried that others are faster with.
const TRIES: u32 = 16;
/// How long is waited between two tries at first, and at most, about.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(160));
/// How many changes may wait for somebody who is told of them.
const TOLD: usize = 1024;

/// Tokens, certificates and members in a cluster. Cheap to clone.
#[derive(Clone)]
pub struct ClusterRegister {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) cluster: Arc<dyn ObjectStore>,
    pub(super) namespace: String,
    pub(super) secrets: Resource,
    maps: Resource,
    nodes: Resource,
    known: Arc<Known>,
    /// One at a time spends a token here: others would only be in each other's way.
    pub(super) turns: [tokio::sync::Mutex<()>; 16],
    following: Mutex<Option<Task>>,
}

/// What the task that follows knows.
struct Known {
    table: Mutex<Table>,
    changes: broadcast::Sender<Changed>,
    /// Whether what is known is as new as the cluster.
    is_current: watch::Sender<bool>,
}

/// A task that ends with its handle.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl fmt::Debug for ClusterRegister {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { cluster, namespace, .. } = &*self.shared;
        f.debug_struct("ClusterRegister").field("cluster", cluster).field("namespace", namespace).finish()
    }
}

impl Known {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, changed: impl IntoIterator<Item = Changed>) {
        for changed in changed {
            // Nobody may listen.
            let _ = self.changes.send(changed);
        }
    }
}

impl ClusterRegister {
    /// The one in this namespace. Nothing is followed before [`Self::follow`].
    #[must_use]
    pub fn new(cluster: Arc<dyn ObjectStore>, namespace: &str) -> Self {
        let kind = |kind: &str, is_namespaced| kinds::guess("v1", kind, is_namespaced);
        let known = Arc::new(Known {
            table: Mutex::default(),
            changes: broadcast::Sender::new(TOLD),
            is_current: watch::Sender::new(false),
        });
        let shared = Shared {
            cluster,
            namespace: namespace.to_owned(),
            secrets: kind("Secret", true),
            maps: kind("ConfigMap", true),
            nodes: kind("Node", false),
            known,
            turns: Default::default(),
            following: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> &dyn ObjectStore {
        &*self.shared.cluster
    }

    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.shared.namespace
    }

    /// Tells what changes from now on, this process' own changes too.
    pub(super) fn changes(&self) -> broadcast::Receiver<Changed> {
        self.shared.known.changes.subscribe()
    }

    /// The nodes that were removed, and when, and the other names that were joined under, as the cluster has it now.
    ///
    /// # Errors
    /// The cluster's.
    pub async fn removed_and_members(&self) -> Result<(Vec<(String, Timestamp)>, Vec<MemberRecord>)> {
        self.known(|table| (table.removed(), table.members())).await
    }

    /// The same of one node, read from the quorum.
    ///
    /// # Errors
    /// The cluster's; a name that somebody else has written.
    pub async fn standing(&self, node: &str) -> Result<(Option<Timestamp>, Option<MemberRecord>)> {
        let (_, member) = self.read_member(node).await?;
        Ok((member.removed, member.record()))
    }

    /// What is known of a name; nothing if it was never used. Only for who follows.
    #[must_use]
    pub fn membership(&self, node: &str) -> Option<Membership> {
        self.shared.known.table().membership(node)
    }

    fn is_followed(&self) -> bool {
        self.shared.following.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Reads what is known: what is followed, or else what there is now.
    async fn known<T>(&self, read: impl FnOnce(&Table) -> T) -> Result<T> {
        if self.is_followed() {
            return Ok(read(&self.shared.known.table()));
        }
        let mut table = Table::default();
        for object in self.list(&self.shared.maps, &objects::selector(MEMBER)).await? {
            match Member::read(&object) {
                Ok(member) => drop(table.set(&member, &object.resource_version().into())),
                Err(why) => left_out(&object, &why),
            }
        }
        Ok(read(&table))
    }
}

/// The operations of [`super::Register`].
impl ClusterRegister {
    pub async fn put_token(&self, token: TokenRecord) -> Result<()> {
        let Shared { cluster, namespace, secrets, .. } = &*self.shared;
        cluster.create(secrets, &objects::token_object(&token, namespace)).await?;
        Ok(())
    }

    pub async fn tokens(&self) -> Result<Vec<TokenRecord>> {
        let mut tokens = Vec::new();
        for object in self.list(&self.shared.secrets, &objects::tokens()).await? {
            match objects::read_token(&object) {
                Ok(token) => tokens.push(token),
                Err(why) => left_out(&object, &why),
            }
        }
        tokens.sort_by(|one, other| other.created.cmp(&one.created).then_with(|| one.id.cmp(&other.id)));
        Ok(tokens)
    }

    pub(super) async fn revoke_token(&self, id: &str, now: Timestamp) -> Result<Option<bool>> {
        let mut was_of_use = false;
        let revoke = |token: &mut TokenRecord| {
            was_of_use = token.is_of_use(now);
            token.revoked.get_or_insert(now);
        };
        let known = self.change_token(id, revoke).await?;
        Ok(known.map(|_| was_of_use))
    }

    pub(super) async fn renew_certificate(
        &self,
        shown: &str,
        certificate: CertificateRecord,
        now: Timestamp,
    ) -> Result<Result<(), PairingRefusal>> {
        self.change_member(&certificate.node, |member| member.renew(shown, &certificate, now)).await
    }

    /// First the tokens, then the certificates: whoever is just joining with one of these tokens looks at it once more after
    /// the certificate was recorded.
    pub async fn revoke_certificates(&self, node: &str, now: Timestamp) -> Result<usize> {
        self.revoke_tokens_of(node, now).await?;
        self.alter_member(node, |member| member.revoke(now)).await
    }

    pub(super) async fn forget_name(&self, node: &str, now: Timestamp) -> Result<bool> {
        self.revoke_tokens_of(node, now).await?;
        self.alter_member(node, |member| member.forget(now)).await
    }

    async fn revoke_tokens_of(&self, node: &str, now: Timestamp) -> Result<()> {
        for object in self.list(&self.shared.secrets, &objects::tokens_of(node)).await? {
            match objects::read_token(&object) {
                Ok(token) if token.node.as_deref() == Some(node) && token.revoked.is_none() => {
                    self.revoke_token(&token.id, now).await?;
                }
                Ok(_) => {}
                Err(why) => return Err(self.damaged(&self.shared.secrets, object.name(), why)),
            }
        }
        Ok(())
    }

    pub async fn knows_name(&self, node: &str) -> Result<bool> {
        let Shared { cluster, namespace, secrets, .. } = &*self.shared;
        if self.is_used(&self.read_member(node).await?.1).await? {
            return Ok(true);
        }
        let tokens = cluster.list(secrets, Some(namespace), &objects::tokens_of(node)).await?;
        Ok(!tokens.is_empty())
    }

    pub async fn note_refused(&self, node: &str, now: Timestamp) -> Result<usize> {
        self.alter_member(node, |member| member.note_refused(now)).await
    }

    pub async fn revocations(&self) -> Result<Revocations> {
        self.known(Table::revocations).await
    }

    pub(super) async fn prune_pairing(&self, before: Timestamp) -> Result<usize> {
        let mut forgotten = self.prune_tokens(before).await? + self.prune_operators(before).await?;
        for node in self.known(|table| table.ended(before)).await? {
            forgotten += self.alter_member(&node, |member| member.prune(before)).await?;
        }
        let mut removed = self.removed().await?;
        removed.sort_by(|(_, one), (_, other)| other.cmp(one));
        let most = usize::try_from(MAX_REMOVED_NODES).unwrap_or(usize::MAX);
        for (node, _) in removed.into_iter().skip(most) {
            self.admit_node(&node).await?;
        }
        Ok(forgotten)
    }

    async fn prune_tokens(&self, before: Timestamp) -> Result<usize> {
        let mut forgotten = 0;
        for object in self.list(&self.shared.secrets, &objects::tokens()).await? {
            if objects::read_token(&object).is_ok_and(|token| token.expires < before) {
                forgotten += usize::from(self.delete(&self.shared.secrets, &object).await?);
            }
        }
        Ok(forgotten)
    }

    pub(super) async fn member_labels(&self, node: &str) -> Result<Option<Labels>> {
        let (_, member) = self.read_member(node).await?;
        Ok(member.used.then_some(member.labels))
    }

    /// See [`super::Register::members`].
    ///
    /// # Errors
    /// The cluster's.
    pub(super) async fn members(&self) -> Result<Vec<MemberRecord>> {
        self.known(Table::members).await
    }

    /// The same of one name, read from the quorum.
    ///
    /// # Errors
    /// The cluster's; a name that somebody else has written.
    pub(super) async fn member(&self, node: &str) -> Result<Option<MemberRecord>> {
        Ok(self.read_member(node).await?.1.record())
    }

    pub async fn removed(&self) -> Result<Vec<(String, Timestamp)>> {
        self.known(Table::removed).await
    }

    /// Remembers that a node is removed. Tells whether it was not.
    pub async fn remove_node(&self, node: &str, now: Timestamp) -> Result<bool> {
        self.alter_member(node, |member| member.remove(now)).await
    }

    pub(super) async fn admit_node(&self, node: &str) -> Result<bool> {
        self.alter_member(node, Member::admit).await
    }
}

/// Reads, and writes that name what they replace.
impl ClusterRegister {
    /// A name as it is now, and the object that it is in, if there is one.
    pub(super) async fn read_member(&self, node: &str) -> Result<(Option<Object>, Member)> {
        let Shared { cluster, namespace, maps, .. } = &*self.shared;
        let name = Member::object_name(node);
        let Some(object) = cluster.get(maps, namespace, &name).await? else {
            return Ok((None, Member::new(node)));
        };
        let member = Member::read(&object).map_err(|why| self.damaged(maps, &name, why))?;
        Ok((Some(object), member))
    }

    /// Changes what is known of a name, however it is changed meanwhile, unless that is refused.
    pub(super) async fn change_member<T, E>(
        &self,
        node: &str,
        mut change: impl FnMut(&mut Member) -> Result<T, E>,
    ) -> Result<Result<T, E>> {
        for attempt in 0..TRIES {
            pause(attempt).await;
            let (object, before) = self.read_member(node).await?;
            let mut member = before.clone();
            let changed = match change(&mut member) {
                Ok(changed) => changed,
                Err(refusal) => return Ok(Err(refusal)),
            };
            if member == before {
                return Ok(Ok(changed));
            }
            if self.write_member(object, &member).await? {
                if member.revoked().len() > before.revoked().len() {
                    self.mark().await;
                }
                return Ok(Ok(changed));
            }
        }
        Err(self.contended(&self.shared.maps, &Member::object_name(node)))
    }

    /// The same for a change that nothing refuses.
    pub(super) async fn alter_member<T>(
        &self,
        node: &str,
        mut change: impl FnMut(&mut Member) -> T,
    ) -> Result<T> {
        let Ok(changed) = self.change_member(node, |member| Ok::<_, Infallible>(change(member))).await?;
        Ok(changed)
    }

    /// Writes a name in the place of what was read; false if that has changed meanwhile.
    async fn write_member(&self, object: Option<Object>, member: &Member) -> Result<bool> {
        let Shared { cluster, namespace, maps, known, .. } = &*self.shared;
        let written = match object {
            None => cluster.create(maps, &member.object(namespace)).await.map(Some),
            Some(object) if member.is_empty() => self.delete_now(maps, &object).await.map(|()| None),
            Some(mut object) => {
                member.write(&mut object);
                changed(cluster.replace(maps, &object).await).map(Some)
            }
        };
        match written {
            Ok(written) => {
                let version = written.map(|written| ResourceVersion::new(written.resource_version()));
                let told = known.table().wrote(member, version);
                known.tell(told);
                Ok(true)
            }
            Err(Failure::Conflict(_)) => Ok(false),
            Err(failure) => Err(failure.into()),
        }
    }

    /// A token as it is now, with the object that it is in.
    pub(super) async fn read_token(&self, id: &str) -> Result<Option<(Object, TokenRecord)>> {
        let Shared { cluster, namespace, secrets, .. } = &*self.shared;
        let name = objects::token_name(id);
        let Some(object) = cluster.get(secrets, namespace, &name).await? else { return Ok(None) };
        let token = objects::read_token(&object).map_err(|why| self.damaged(secrets, &name, why))?;
        Ok(Some((object, token)))
    }

    /// Changes a token, however it is changed meanwhile. Gives it; none if there is none.
    pub(super) async fn change_token(
        &self,
        id: &str,
        mut change: impl FnMut(&mut TokenRecord),
    ) -> Result<Option<TokenRecord>> {
        for attempt in 0..TRIES {
            pause(attempt).await;
            let Some((object, before)) = self.read_token(id).await? else { return Ok(None) };
            let mut token = before.clone();
            change(&mut token);
            if token == before || self.write_token(object, &token).await? {
                return Ok(Some(token));
            }
        }
        Err(self.contended(&self.shared.secrets, &objects::token_name(id)))
    }

    /// Writes a token in the place of what was read; false if that has changed meanwhile.
    pub(super) async fn write_token(&self, mut object: Object, token: &TokenRecord) -> Result<bool> {
        objects::write_token(&mut object, token);
        match changed(self.shared.cluster.replace(&self.shared.secrets, &object).await) {
            Ok(_) => Ok(true),
            Err(Failure::Conflict(_)) => Ok(false),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Whether a name was used: somebody has joined or reported under it, it was removed, or a node of the cluster itself has
    /// it.
    pub(super) async fn is_used(&self, member: &Member) -> Result<bool> {
        if member.was_used() {
            return Ok(true);
        }
        let node = self.shared.cluster.get(&self.shared.nodes, "", &member.node).await?;
        Ok(node.is_some_and(|node| has_reported(&node) || has_kubelet(&node)))
    }

    async fn list(&self, resource: &Resource, selector: &str) -> Result<Vec<Object>> {
        Ok(self.shared.cluster.list(resource, Some(&self.shared.namespace), selector).await?)
    }

    /// Deletes an object as it was read; false if it has changed meanwhile, or is no more.
    async fn delete(&self, resource: &Resource, object: &Object) -> Result<bool> {
        match self.delete_now(resource, object).await {
            Ok(()) => Ok(true),
            Err(Failure::Conflict(_)) => Ok(false),
            Err(failure) => Err(failure.into()),
        }
    }

    async fn delete_now(&self, resource: &Resource, object: &Object) -> Result<(), Failure> {
        let Shared { cluster, namespace, .. } = &*self.shared;
        let precondition = Precondition { uid: Some(object.uid()), version: Some(object.resource_version()) };
        match cluster.delete(resource, (namespace, object.name()), precondition).await? {
            true => Ok(()),
            false => Err(Failure::Conflict(resource.key(namespace, object.name()))),
        }
    }

    fn key(&self, resource: &Resource, name: &str) -> ObjectKey {
        resource.key(&self.shared.namespace, name)
    }

    pub(super) fn contended(&self, resource: &Resource, name: &str) -> RegisterError {
        RegisterError::Contended(self.key(resource, name))
    }

    fn damaged(&self, resource: &Resource, name: &str, why: String) -> RegisterError {
        RegisterError::Damaged { key: self.key(resource, name), why }
    }
}

/// One that is gone has changed.
fn changed(replaced: Result<Object, Failure>) -> Result<Object, Failure> {
    replaced.map_err(|failure| match failure {
        Failure::NotFound(key) => Failure::Conflict(key),
        failure => failure,
    })
}

/// Waits before another try, longer each time, and not as long as others.
pub(super) async fn pause(attempt: u32) {
    if attempt > 0 {
        let longest = PAUSES.1.min(PAUSES.0.saturating_mul(2u32.saturating_pow(attempt)));
        let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
        let longest = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX);
        tokio::time::sleep(Duration::from_micros(random % longest)).await;
    }
}

/// Something else than this program is the node.
fn has_kubelet(node: &Object) -> bool {
    let version =
        node.fields().get("status").and_then(|status| status.get("nodeInfo")?.get("kubeletVersion"));
    version.and_then(serde_json::Value::as_str).is_some_and(|version| !version.is_empty())
}

fn left_out(object: &Object, why: &str) {
    tracing::error!(name = object.name(), why, "an object is not as edgesync has written it, and left out");
}
