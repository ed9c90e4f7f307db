//! Enrollment on the cloud side: CA, join tokens, certificates of nodes and operators, revocation,
//! and the HTTPS service for joining and renewal.
//!
//! The crate is independent of the fleet's loop and the sync protocol. It keeps its records behind
//! a store: the embedded database, or objects of a cluster. Read [`membership`] first, then
//! [`service`].
//!
//! Private keys are files in `enrollment.directory`, mode 0600: `ca.key`, `token.key`,
//! `server.pem`. An existing `ca.crt` with `ca.key`, the operator's own CA, is used unchanged.
//! With a cluster as the store, the keys of CA and tokens are Secrets in a namespace of their
//! own, and each replica watches the revocations of the others. All replicas sign, or a separate
//! signer does ([`EnrollmentRole`]).

mod admission;
pub mod authority;
pub mod broker_config;
mod enrollment;
mod files;
mod keys;
pub mod membership;
pub mod object_store;
mod operators;
pub mod pages;
mod published;
mod relay;
mod request;
mod revocation_watch;
mod served_certificates;
pub mod service;
#[cfg(test)]
mod tests;
pub mod tokens;

use std::collections::{BTreeSet, HashSet};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use tokio::sync::Notify;

use edgesync_object::NodeName;
use edgesync_object::status::{Result, Status};
use edgesync_store::durable;
use edgesync_transport::admission::LogThrottle;
use edgesync_transport::tls::{self, Identity, Subject, Trust};

pub use admission::{check_revoked_token, parse_node};
pub use edgesync_join::brokers::{AdvertisedBroker, BrokerScheme};
pub use enrollment::Enrollment;
use membership::{Changes, MembershipError, MembershipStore, TokenRecord};
pub use operators::check_revoked_operators;
pub use relay::JoinRelay;

/// Lifetime of the cloud side's certificate for an external broker. Its key is never stored: each
/// start generates a new one.
const CLOUD_LIFETIME: Duration = days(10 * 365);
/// Maximum age of the revocation list. An older list is published again, also without a revocation.
const LIST_MAX_AGE: Duration = days(30);
/// Interval at which records are pruned and certificates are renewed.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(3600);
/// Interval between two checks for a revocation list that failed to publish.
const REPUBLISH_INTERVAL: Duration = Duration::from_secs(5);
/// Retention of tokens after their expiry, and of certificates after the end of their renewal
/// grace.
const RETENTION: Duration = days(7);
const LIST_FILE: &str = "revoked.crl";
/// Interval at which a replica reads the certificate of the services that the signer renews.
const PUBLISHED_INTERVAL: Duration = Duration::from_secs(60);

const fn days(days: u64) -> Duration {
    Duration::from_secs(days * 24 * 3600)
}

/// Returns the namespace with the keys of the fleet whose members are in `namespace`. Only the part
/// that signs has rights to it.
#[must_use]
pub fn ca_namespace(namespace: &str) -> String {
    format!("{namespace}-ca")
}

/// Returns the namespaces of edgesync in a cluster: that of its members, `namespace`, and that of
/// its keys. Their objects are never placed.
#[must_use]
pub fn reserved_namespaces(namespace: &str) -> [String; 2] {
    [namespace.to_owned(), ca_namespace(namespace)]
}

/// The part of a process in enrollment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EnrollmentRole {
    /// Signs, and serves nodes and the API.
    #[default]
    Whole,
    /// Signs for replicas, and publishes the certificate of their services.
    Signer,
    /// Serves nodes without the keys, which the signer has.
    Replica,
}

/// Settings of enrollment, the section `enrollment` of the configuration.
#[derive(Clone, Debug)]
pub struct EnrollmentOptions {
    /// Directory of the certificates, and of the keys that are not in a cluster.
    pub directory: PathBuf,
    /// Host names and addresses of this machine, for the certificate of its services.
    pub names: Vec<String>,
    /// URL of the broker for nodes. An empty host stands for the host of the join service.
    pub broker: String,
    /// All addresses of the broker for nodes, the preferred one first.
    pub brokers: Vec<AdvertisedBroker>,
    /// Topic prefix for nodes.
    pub prefix: String,
    /// Lifetime of node certificates.
    pub lifetime: Duration,
    /// Time after its expiry in which a certificate can still be renewed.
    pub grace: Duration,
    /// Whether an external broker authenticates nodes. It may use an older revocation list.
    pub external: bool,
    /// Role of this process; a process with a database does everything.
    pub role: EnrollmentRole,
}

/// Issues, renews and revokes certificates, and publishes the revocation list. Cheap to clone.
#[derive(Clone)]
pub struct EnrollmentService {
    shared: Arc<Shared>,
}

struct Shared {
    enrollment: Enrollment,
    directory: PathBuf,
    names: Vec<String>,
    broker: String,
    brokers: Vec<AdvertisedBroker>,
    prefix: String,
    external: bool,
    role: EnrollmentRole,
    state: Mutex<State>,
    /// The number of the last revocation list. The lock serializes publishing: each list is built
    /// from the store under it.
    publishing: tokio::sync::Mutex<u64>,
    /// Limits the log lines about refusals of the join service.
    refusals: LogThrottle,
    tls: Servers,
    operators: Arc<operators::Table>,
    /// Wakes [`EnrollmentService::nodes_to_disconnect`] after a revocation.
    disconnect_notify: Notify,
    /// The subscription to changes of the membership. The task that follows them holds the lock.
    changes: tokio::sync::Mutex<Changes>,
}

/// TLS of the services: one certificate, a rule for each.
struct Servers {
    endpoint: tls::Server,
    api: tls::Server,
    joining: tls::Server,
}

impl Deref for Shared {
    type Target = Enrollment;

    fn deref(&self) -> &Enrollment {
        &self.enrollment
    }
}

impl std::fmt::Debug for EnrollmentService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnrollmentService")
            .field("enrollment", &self.shared.enrollment)
            .finish_non_exhaustive()
    }
}

/// Mutable state of the service.
struct State {
    lifetime: Duration,
    grace: Duration,
    identity: Identity,
    revoked: RevocationList,
    /// Nodes whose connections must be closed after a revocation.
    to_disconnect: BTreeSet<NodeName>,
    /// Number of requests to publish the list. Not stored: a start publishes in any case, from the
    /// revocations in the store.
    generation: u64,
    /// The last of these requests that is fulfilled.
    published_generation: u64,
}

/// The revocations in force.
struct RevocationList {
    /// The signed list for brokers; `None` without the key of the CA.
    der: Option<Vec<u8>>,
    /// Serial numbers of revoked certificates.
    serials: Arc<HashSet<String>>,
    created: Timestamp,
    /// Nodes whose messages are ignored.
    nodes: HashSet<NodeName>,
}

/// A new token. Its secret part is shown this one time.
#[derive(Clone, PartialEq, Eq)]
pub struct NewToken {
    /// The text for the device: `<fingerprint of the CA>.<JWT>`.
    pub token: String,
    /// The stored record, without the signature.
    pub record: TokenRecord,
}

impl std::fmt::Debug for NewToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewToken").field("record", &self.record).finish_non_exhaustive()
    }
}

impl EnrollmentService {
    /// Opens the CA and the keys, creates those that are missing, and publishes the current
    /// revocations.
    ///
    /// # Errors
    /// Files cannot be read or written, or `ca.crt` is not a CA. With a cluster: it does not
    /// respond, or its CA differs from the one in the files or the one that nodes trust.
    pub async fn open(
        options: EnrollmentOptions,
        membership: impl Into<MembershipStore>,
    ) -> anyhow::Result<Self> {
        let enrollment = Enrollment::open(&options, membership.into()).await?;
        let EnrollmentOptions { directory, names, broker, brokers, prefix, lifetime, grace, external, role } =
            options;
        let names = served_certificates::all_names(&names);
        let (directory, names, enrollment, identity) = match (role, enrollment.membership.cluster()) {
            (EnrollmentRole::Whole, _) | (_, None) => {
                tokio::task::spawn_blocking(move || {
                    let authority = &enrollment.keys()?.authority;
                    let identity = served_certificates::load_or_issue(authority, &directory, &names, now())?;
                    anyhow::Ok((directory, names, enrollment, identity))
                })
                .await??
            }
            (EnrollmentRole::Signer, Some((cluster, namespace))) => {
                let authority = &enrollment.keys()?.authority;
                let identity = published::issue(cluster, namespace, authority, &names, now()).await?;
                (directory, names, enrollment, identity)
            }
            (EnrollmentRole::Replica, Some((cluster, namespace))) => {
                let (_, identity) = published::read(cluster, namespace).await?;
                (directory, names, enrollment, identity)
            }
        };
        let mut number = 0;
        let changes = tokio::sync::Mutex::new(enrollment.membership.changes());
        let revoked = served_certificates::build_list(&enrollment, external, &mut number).await?;
        let written = write_list(&directory, revoked.der.as_deref()).await;
        if let Err(error) = &written {
            tracing::error!("{error:#}");
        }
        let (to_disconnect, published_generation) = (BTreeSet::new(), u64::from(written.is_ok()));
        let state =
            State { lifetime, grace, identity, revoked, to_disconnect, generation: 1, published_generation };
        let server = |required, grace| {
            let rule = state.rule(&enrollment, required, grace);
            tls::Server::new(&state.identity, &rule, tls::Clock::system([enrollment.ca.not_before()]))
        };
        let tls = Servers {
            endpoint: server(true, Duration::ZERO)?,
            api: server(true, Duration::ZERO)?,
            joining: server(false, grace)?,
        };
        let operators = operators::Table::new(&enrollment.membership.operators().await?);
        let shared = Shared {
            enrollment,
            directory,
            names,
            broker,
            brokers,
            prefix,
            external,
            role,
            state: Mutex::new(state),
            publishing: tokio::sync::Mutex::new(number),
            refusals: LogThrottle::new(),
            tls,
            operators,
            disconnect_notify: Notify::new(),
            changes,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Applies the settings that a reload can change.
    pub fn reconfigure(&self, lifetime: Duration, grace: Duration) {
        let mut state = self.state();
        (state.lifetime, state.grace) = (lifetime, grace);
        if let Err(error) = self.shared.apply(&state) {
            tracing::error!("reload rejected, renewal grace unchanged: {error:#}");
        }
    }

    /// The keys and the store, without the service.
    #[must_use]
    pub fn enrollment(&self) -> &Enrollment {
        &self.shared.enrollment
    }

    /// The trust anchor of nodes: the CA.
    #[must_use]
    pub fn trust(&self) -> Trust {
        self.shared.trust()
    }

    /// The certificate of this machine's services. [`EnrollmentService::run`] renews it well
    /// before its expiry.
    #[cfg(test)]
    fn server_identity(&self) -> Identity {
        self.state().identity.clone()
    }

    /// Issues the client certificate for an external broker, with a new key, valid for ten years.
    ///
    /// # Errors
    /// This process has no keys; signing fails.
    pub fn cloud_identity(&self) -> anyhow::Result<Identity> {
        let subject = Subject { common_name: tls::CLOUD.to_owned(), ..Subject::default() };
        self.shared.keys()?.authority.client(&subject, now(), CLOUD_LIFETIME)
    }

    /// TLS for the MQTT endpoint: a client certificate is required, neither expired nor revoked.
    /// Follows revocations and renewals.
    pub fn endpoint_tls(&self) -> tls::Server {
        self.shared.tls.endpoint.clone()
    }

    /// TLS for the API, with the rule of [`Self::endpoint_tls`].
    pub fn api_tls(&self) -> tls::Server {
        self.shared.tls.api.clone()
    }

    /// TLS for joining and renewal: client certificates are optional, and may have expired within
    /// the grace.
    pub fn joining_tls(&self) -> tls::Server {
        self.shared.tls.joining.clone()
    }

    /// Renews the services' certificate, the revocation list and the kubeconfig of this machine, if
    /// one is given with the address of its API. Publishes lists that failed to publish, and
    /// applies revocations of other processes. Never returns.
    pub async fn run(&self, kubeconfig: Option<(&Path, &str)>) {
        let identity = async {
            let interval = match self.shared.role {
                EnrollmentRole::Replica => PUBLISHED_INTERVAL,
                EnrollmentRole::Whole | EnrollmentRole::Signer => UPKEEP_INTERVAL,
            };
            loop {
                tokio::time::sleep(interval).await;
                if let Err(error) = self.renew_identity(now()).await {
                    tracing::error!(
                        "renewal of the server certificate failed, retrying in {interval:?}: {error:#}"
                    );
                }
            }
        };
        let upkeep = async {
            loop {
                tokio::time::sleep(UPKEEP_INTERVAL).await;
                if let Err(error) = self.upkeep(now()).await {
                    tracing::error!("revocation upkeep failed, retrying in 1 h: {error:#}");
                }
                if let Some((kubeconfig, api)) = kubeconfig
                    && let Err(error) = self.write_kubeconfig(kubeconfig, api).await
                {
                    tracing::warn!("renewal of the local kubeconfig failed, retrying in 1 h: {error:#}");
                }
            }
        };
        let republish = async {
            loop {
                tokio::time::sleep(REPUBLISH_INTERVAL).await;
                match self.republish().await {
                    Ok(true) => tracing::info!("revocation list published after an earlier failure"),
                    Ok(false) => {}
                    Err(error) => tracing::debug!("{error:#}"),
                }
            }
        };
        tokio::join!(identity, upkeep, republish, self.follow_changes());
    }

    /// Prunes records, and publishes the revocation list if that changes it or it is old.
    async fn upkeep(&self, now: Timestamp) -> anyhow::Result<()> {
        let (grace, created) = {
            let state = self.state();
            (state.grace, state.revoked.created)
        };
        let forgotten = self.shared.membership.prune_expired(before(before(now, grace), RETENTION)).await?;
        if forgotten > 0 || after(created, LIST_MAX_AGE) < now {
            self.publish().await?;
        }
        Ok(())
    }

    /// Renews the certificate of the services, or reads the one that the signer has renewed.
    async fn renew_identity(&self, now: Timestamp) -> anyhow::Result<()> {
        let held = self.state().identity.clone();
        let Shared { enrollment, names, role, .. } = &*self.shared;
        let fresh = match (role, enrollment.membership.cluster()) {
            (EnrollmentRole::Whole, _) | (_, None) => {
                if !served_certificates::needs_renewal(&enrollment.keys()?.authority, &held, now) {
                    return Ok(());
                }
                let service = self.clone();
                tokio::task::spawn_blocking(move || {
                    let Shared { enrollment, directory, names, .. } = &*service.shared;
                    served_certificates::issue(&enrollment.keys()?.authority, directory, names, now)
                })
                .await??
            }
            (EnrollmentRole::Signer, Some((cluster, namespace))) => {
                published::issue(cluster, namespace, &enrollment.keys()?.authority, names, now).await?
            }
            (EnrollmentRole::Replica, Some((cluster, namespace))) => {
                let (ca, identity) = published::read(cluster, namespace).await?;
                if ca != enrollment.ca {
                    anyhow::bail!("the CA of the signer has changed; hint: restart the replicas");
                }
                identity
            }
        };
        if fresh.certificate() != held.certificate() {
            let mut state = self.state();
            state.identity = fresh;
            self.shared.apply(&state)?;
        }
        Ok(())
    }

    /// Rebuilds the revocation list from the store, applies it here and writes it for brokers. A
    /// failed write is retried by [`Self::republish`].
    async fn publish(&self) -> anyhow::Result<()> {
        self.state().generation += 1;
        let mut number = self.shared.publishing.lock().await;
        self.publish_as(&mut number).await.inspect_err(|error| tracing::error!("{error:#}"))
    }

    /// Publishes the list if an earlier attempt failed. Returns whether one had.
    async fn republish(&self) -> anyhow::Result<bool> {
        let is_behind = |state: &State| state.published_generation < state.generation;
        if !is_behind(&self.state()) {
            return Ok(false);
        }
        let mut number = self.shared.publishing.lock().await;
        let behind = is_behind(&self.state());
        if behind {
            self.publish_as(&mut number).await?;
        }
        Ok(behind)
    }

    async fn publish_as(&self, number: &mut u64) -> anyhow::Result<()> {
        let Shared { enrollment, directory, external, .. } = &*self.shared;
        let generation = self.state().generation;
        let revoked = served_certificates::build_list(enrollment, *external, number).await?;
        let der = revoked.der.clone();
        {
            let mut state = self.state();
            let fresh: Vec<_> = revoked.nodes.difference(&state.revoked.nodes).cloned().collect();
            state.to_disconnect.extend(fresh);
            state.revoked = revoked;
            self.shared.apply(&state)?;
        }
        self.shared.disconnect_notify.notify_one();
        write_list(directory, der.as_deref()).await?;
        let mut state = self.state();
        state.published_generation = state.published_generation.max(generation);
        Ok(())
    }

    /// Revokes all certificates and tokens of a node. From the commit on its messages are ignored
    /// and its connections are closed; then the list is published. Returns the number of
    /// certificates.
    ///
    /// # Errors
    /// The store fails, and nothing is revoked; or the revocation is committed and publishing
    /// fails, which is retried.
    pub async fn revoke_node(&self, node: &NodeName) -> Result<usize> {
        let name = node.clone();
        self.revoke_and_publish(async move |service| {
            let revoked = service.shared.membership.revoke_certificates(&name, now()).await?;
            if revoked > 0 {
                service.block_node(&name);
            }
            Ok(revoked)
        })
        .await
    }

    /// Whether a name was ever used, or a token is bound to it.
    ///
    /// # Errors
    /// The store fails.
    pub async fn knows_name(&self, node: &NodeName) -> Result<bool> {
        Ok(self.shared.membership.knows_name(node).await?)
    }

    /// Frees the name of a removed node and revokes its remaining certificates and tokens. Returns
    /// whether the name was used.
    ///
    /// # Errors
    /// As for [`Self::revoke_node`].
    pub async fn forget_node(&self, node: &NodeName) -> Result<bool> {
        let name = node.clone();
        self.revoke_and_publish(async move |service| {
            service.shared.membership.forget_name(&name, now()).await
        })
        .await
    }

    /// Records that the external broker refuses all revoked certificates of a node: a client that
    /// connects in its name now holds another one. Returns the number of certificates not yet
    /// recorded as refused.
    ///
    /// # Errors
    /// As for [`Self::revoke_node`].
    pub async fn broker_updated(&self, node: &NodeName) -> Result<usize> {
        let name = node.clone();
        self.revoke_and_publish(async move |service| {
            service.shared.membership.note_refused(&name, now()).await
        })
        .await
    }

    /// Runs a change of the revocations and publishes it. Both complete even if the caller is
    /// cancelled.
    async fn revoke_and_publish<T, F>(&self, change: impl FnOnce(Self) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = std::result::Result<T, MembershipError>> + Send + 'static,
    {
        let (service, change) = (self.clone(), change(self.clone()));
        let changing = tokio::spawn(async move {
            let changed = change.await?;
            // Without a change too: it retries what failed before.
            service.publish().await.map_err(|error| Status::internal(format!("{error:#}")))?;
            Ok(changed)
        });
        changing.await.map_err(Status::internal)?
    }

    /// Ignores the node's messages from now on and closes its connections.
    fn block_node(&self, node: &NodeName) {
        let mut state = self.state();
        state.revoked.nodes.insert(node.clone());
        state.to_disconnect.insert(node.clone());
        drop(state);
        self.shared.disconnect_notify.notify_one();
    }

    /// Waits for nodes whose connections the caller must close after a revocation. Cancel-safe.
    pub async fn nodes_to_disconnect(&self) -> Vec<NodeName> {
        loop {
            let nodes = std::mem::take(&mut self.state().to_disconnect);
            if !nodes.is_empty() {
                return nodes.into_iter().collect();
            }
            self.shared.disconnect_notify.notified().await;
        }
    }

    /// Whether a node's messages are ignored: its certificates are revoked, and it has not joined
    /// with a new token since.
    ///
    /// An external broker does not report a client's certificate. Behind one, a node counts as
    /// revoked until the broker is known to refuse each of its revoked certificates.
    #[must_use]
    pub fn is_revoked(&self, node: &NodeName) -> bool {
        self.state().revoked.nodes.contains(node)
    }

    /// The revocation list in PEM, for brokers.
    ///
    /// # Errors
    /// This process has no keys.
    pub fn revocation_list(&self) -> Result<String> {
        self.shared.keys()?;
        Ok(served_certificates::list_pem(self.state().revoked.der.as_deref().unwrap_or_default()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Applies certificate and revocation list to the TLS of all services.
    fn apply(&self, state: &State) -> anyhow::Result<()> {
        for (server, required, grace) in [
            (&self.tls.endpoint, true, Duration::ZERO),
            (&self.tls.api, true, Duration::ZERO),
            (&self.tls.joining, false, state.grace),
        ] {
            server.replace(&state.identity, &state.rule(&self.enrollment, required, grace))?;
        }
        Ok(())
    }
}

impl State {
    fn rule(&self, enrollment: &Enrollment, required: bool, grace: Duration) -> tls::ClientRule {
        let revoked = Arc::clone(&self.revoked.serials);
        tls::ClientRule { trust: enrollment.trust(), revoked, required, expired_grace: grace }
    }
}

/// Writes the revocation list, if there is one, to the directory, for brokers.
async fn write_list(directory: &Path, der: Option<&[u8]>) -> anyhow::Result<()> {
    let Some(der) = der else { return Ok(()) };
    let (path, pem) = (directory.join(LIST_FILE), served_certificates::list_pem(der));
    tokio::task::spawn_blocking(move || durable::write(&path, pem.as_bytes(), 0o600))
        .await?
        .context("write revocation list for brokers (already in force here, retrying)")
}

/// The current time in whole seconds, the precision of certificates.
pub fn now() -> Timestamp {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn after(time: Timestamp, duration: Duration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}

fn before(time: Timestamp, duration: Duration) -> Timestamp {
    time.checked_sub(duration).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
fn node_name(name: &str) -> NodeName {
    NodeName::parse(name).unwrap()
}
