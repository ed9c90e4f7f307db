//! Enrollment on the cloud side: CA, join tokens, certificates of nodes and operators, revocation, and the HTTPS service for
//! joining and renewal. It does not know the fleet's loop or the sync protocol, and keeps its records behind a store: the
//! embedded database or Secrets of a cluster. Read [`membership`] first, then [`service`].
//!
//! Private keys are files of `pairing.directory`, mode 0600: `ca.key`, `token.key`, `server.pem`. The CA may be the
//! operator's own: existing `ca.crt` and `ca.key` are used as they are. With a cluster as the store, keys are Secrets that
//! all replicas share, and each replica follows the revocations of the others.

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

use edgesync_object::status::{Result, Status};
use edgesync_store::durable;
use edgesync_transport::gate::Seldom;
use edgesync_transport::tls::{self, Identity, Subject, Trust};

use authority::Authority;
pub use enrollment::Enrollment;
use membership::{Changes, MembershipError, MembershipStore, TokenRecord};

/// How long the cloud side's certificate for an external broker lives. Its key is never written: each start has a new
/// one.
const CLOUD_LIFETIME: Duration = days(10 * 365);
/// How old the revocation list becomes without a revocation.
const LIST_MAX_AGE: Duration = days(30);
/// How often all that is looked after.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(3600);
/// How often it is looked whether a revocation list could not be published.
const REPUBLISH_INTERVAL: Duration = Duration::from_secs(5);
/// How long tokens are shown after their end, and certificates kept after they can be renewed no more.
const RETENTION: Duration = days(7);
const LIST_FILE: &str = "revoked.crl";

const fn days(days: u64) -> Duration {
    Duration::from_secs(days * 24 * 3600)
}

/// What pairing keeps to; `pairing` in the configuration.
#[derive(Clone, Debug)]
pub struct EnrollmentOptions {
    /// Where certificates are, and keys that are not in a cluster.
    pub directory: PathBuf,
    /// Host names and addresses of this machine, for the certificate of its services.
    pub names: Vec<String>,
    /// What nodes are told; an empty host stands for the one they asked.
    pub broker: String,
    /// The topics' prefix, which nodes are told.
    pub prefix: String,
    /// How long certificates of nodes are good.
    pub lifetime: Duration,
    /// How long after its end a certificate may still be renewed.
    pub grace: Duration,
    /// Whether an external broker lets nodes in, which may know an older revocation list.
    pub external: bool,
}

/// Everything about membership; cheap to clone.
#[derive(Clone)]
pub struct EnrollmentService {
    shared: Arc<Shared>,
}

struct Shared {
    enrollment: Enrollment,
    directory: PathBuf,
    names: Vec<String>,
    broker: String,
    prefix: String,
    external: bool,
    state: Mutex<State>,
    /// The number of the last revocation list. Lists are made one after the other, each from what is stored then.
    publishing: tokio::sync::Mutex<u64>,
    /// Refusals of the join service in the log.
    refusals: Seldom,
    endpoint: tls::Server,
    api: tls::Server,
    joining: tls::Server,
    operators: Arc<operators::Table>,
    /// Somebody is to be cut off.
    cut: Notify,
    /// What others change. Whoever heeds it has it.
    changes: tokio::sync::Mutex<Changes>,
}

impl Deref for Shared {
    type Target = Enrollment;

    fn deref(&self) -> &Enrollment {
        &self.enrollment
    }
}

impl std::fmt::Debug for EnrollmentService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pairing").field("office", &self.shared.enrollment).finish_non_exhaustive()
    }
}

/// What changes while it runs.
struct State {
    lifetime: Duration,
    grace: Duration,
    identity: Identity,
    revoked: RevocationList,
    /// Nodes that were shut out, and whose connections are to be cut.
    to_cut: BTreeSet<String>,
    /// How often the list was to be published, and the last time of these that it is known to be out. A restart publishes
    /// it in any case: what is revoked is in the database.
    generation: u64,
    published_generation: u64,
}

/// The revocation list that is in force.
struct RevocationList {
    der: Vec<u8>,
    created: Timestamp,
    /// Nodes that are not listened to.
    nodes: HashSet<String>,
}

/// A token as it is handed out, once.
#[derive(Clone, PartialEq, Eq)]
pub struct NewToken {
    /// `<fingerprint>.<JWT>`.
    pub token: String,
    /// What is kept of it.
    pub record: TokenRecord,
}

impl std::fmt::Debug for NewToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewToken").field("record", &self.record).finish_non_exhaustive()
    }
}

impl EnrollmentService {
    /// Opens or makes CA and keys, and reads what is revoked.
    ///
    /// # Errors
    /// Files that cannot be read or made, a CA that is none. Of a cluster: it does not serve, or its CA is another one than
    /// that of the files, or than nodes trust.
    pub async fn open(
        options: EnrollmentOptions,
        membership: impl Into<MembershipStore>,
    ) -> anyhow::Result<Self> {
        let enrollment = Enrollment::open(&options, membership.into()).await?;
        let EnrollmentOptions { directory, names, broker, prefix, lifetime, grace, external } = options;
        let names = served_certificates::all_names(&names);
        let (directory, names, enrollment, identity) = tokio::task::spawn_blocking(move || {
            let identity =
                served_certificates::load_or_issue(&enrollment.authority, &directory, &names, now())?;
            anyhow::Ok((directory, names, enrollment, identity))
        })
        .await??;
        let mut number = 0;
        let changes = tokio::sync::Mutex::new(enrollment.membership.changes());
        let revoked = served_certificates::build_list(
            &enrollment.authority,
            &enrollment.membership,
            external,
            &mut number,
        )
        .await?;
        let written = write_list(&directory, &revoked.der).await;
        if let Err(error) = &written {
            tracing::error!("{error:#}");
        }
        let (to_cut, published_generation) = (BTreeSet::new(), u64::from(written.is_ok()));
        let state = State { lifetime, grace, identity, revoked, to_cut, generation: 1, published_generation };
        let server = |required, grace| {
            let rule = state.rule(&enrollment.authority, required, grace);
            tls::Server::new(
                &state.identity,
                &rule,
                tls::Clock::system([enrollment.authority.certificate().not_before()]),
            )
        };
        let (endpoint, api, joining) =
            (server(true, Duration::ZERO)?, server(true, Duration::ZERO)?, server(false, grace)?);
        let operators = operators::Table::new(&enrollment.membership.operators().await?);
        let shared = Shared {
            enrollment,
            directory,
            names,
            broker,
            prefix,
            external,
            state: Mutex::new(state),
            publishing: tokio::sync::Mutex::new(number),
            refusals: Seldom::new(),
            endpoint,
            api,
            joining,
            operators,
            cut: Notify::new(),
            changes,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// What of the options can change while it runs.
    pub fn reconfigure(&self, lifetime: Duration, grace: Duration) {
        let mut state = self.state();
        (state.lifetime, state.grace) = (lifetime, grace);
        if let Err(error) = self.shared.apply(&state) {
            tracing::error!("the grace for renewals stays as it was: {error:#}");
        }
    }

    /// The keys, and who remembers.
    #[must_use]
    pub fn enrollment(&self) -> &Enrollment {
        &self.shared.enrollment
    }

    /// The CA.
    #[must_use]
    pub fn trust(&self) -> Trust {
        self.shared.authority.trust()
    }

    /// What this machine's services show. Made anew well before it ends; see [`Pairing::keep`].
    #[cfg(test)]
    fn server_identity(&self) -> Identity {
        self.state().identity.clone()
    }

    /// What the cloud side shows to an external broker: a new key each time, good for ten years.
    ///
    /// # Errors
    /// The library's.
    pub fn cloud_identity(&self) -> anyhow::Result<Identity> {
        let subject = Subject { common_name: tls::CLOUD.to_owned(), ..Subject::default() };
        self.shared.authority.client(&subject, now(), CLOUD_LIFETIME)
    }

    /// TLS for the MQTT endpoint: certificates demanded, none expired, none revoked. Follows revocations and renewals.
    pub fn endpoint_tls(&self) -> tls::Server {
        self.shared.endpoint.clone()
    }

    /// TLS for the API: the same rule.
    pub fn api_tls(&self) -> tls::Server {
        self.shared.api.clone()
    }

    /// TLS for joining and renewing: certificates are optional, and may have expired within the grace.
    pub(crate) fn joining_tls(&self) -> tls::Server {
        self.shared.joining.clone()
    }

    /// Renews what it is time to renew: the certificate of the services, the kubeconfig of this machine, if there is
    /// one, for the API at this address, the revocation list; publishes what could not be published; puts in force what others revoke. Never
    /// ends.
    pub async fn keep(&self, kubeconfig: Option<(&Path, &str)>) {
        let upkeep = async {
            loop {
                tokio::time::sleep(UPKEEP_INTERVAL).await;
                if let Err(error) = self.upkeep(now()).await {
                    tracing::error!(
                        "certificates and tokens are not looked after, next try in an hour: {error:#}"
                    );
                }
                if let Some((kubeconfig, api)) = kubeconfig
                    && let Err(error) = self.write_kubeconfig(kubeconfig, api).await
                {
                    tracing::warn!(
                        "the kubeconfig of this machine may be out of date, next try in an hour: {error:#}"
                    );
                }
            }
        };
        let republish = async {
            loop {
                tokio::time::sleep(REPUBLISH_INTERVAL).await;
                match self.republish().await {
                    Ok(true) => tracing::info!("the revocation list is published again"),
                    Ok(false) => {}
                    Err(error) => tracing::debug!("{error:#}"),
                }
            }
        };
        tokio::join!(upkeep, republish, self.follow_changes());
    }

    /// What is to be done at this time.
    async fn upkeep(&self, now: Timestamp) -> anyhow::Result<()> {
        let (grace, created, identity) = {
            let state = self.state();
            (state.grace, state.revoked.created, state.identity.clone())
        };
        if served_certificates::needs_renewal(&self.shared.authority, &identity, now) {
            let service = self.clone();
            let fresh = tokio::task::spawn_blocking(move || {
                let Shared { enrollment, directory, names, .. } = &*service.shared;
                served_certificates::issue(&enrollment.authority, directory, names, now)
            })
            .await??;
            let mut state = self.state();
            state.identity = fresh;
            self.shared.apply(&state)?;
        }
        let forgotten = self.shared.membership.prune_expired(before(before(now, grace), RETENTION)).await?;
        if forgotten > 0 || after(created, LIST_MAX_AGE) < now {
            self.publish().await?;
        }
        Ok(())
    }

    /// Makes the revocation list anew from what is stored, puts it in force here and writes it for brokers. What fails is
    /// tried again until it is done.
    async fn publish(&self) -> anyhow::Result<()> {
        self.state().generation += 1;
        let mut number = self.shared.publishing.lock().await;
        self.publish_as(&mut number).await.inspect_err(|error| tracing::error!("{error:#}"))
    }

    /// Publishes the list if that could not be done. Tells whether it was so.
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
        let revoked =
            served_certificates::build_list(&enrollment.authority, &enrollment.membership, *external, number)
                .await?;
        let der = revoked.der.clone();
        {
            let mut state = self.state();
            let fresh: Vec<_> = revoked.nodes.difference(&state.revoked.nodes).cloned().collect();
            state.to_cut.extend(fresh);
            state.revoked = revoked;
            self.shared.apply(&state)?;
        }
        self.shared.cut.notify_one();
        write_list(directory, &der).await?;
        let mut state = self.state();
        state.published_generation = state.published_generation.max(generation);
        Ok(())
    }

    /// Revokes all certificates and tokens of a node: from its commit on nothing of the node is listened to, it is cut off,
    /// and then the list is published. Gives how many certificates it were.
    ///
    /// # Errors
    /// The store's, and then nothing is revoked. Or it is, and the list could not be published, which is tried again.
    pub async fn revoke_node(&self, node: &str) -> Result<usize> {
        let name = node.to_owned();
        self.revoke_and_publish(async move |service| {
            let revoked = service.shared.membership.revoke_certificates(&name, now()).await?;
            if revoked > 0 {
                service.block_node(&name);
            }
            Ok(revoked)
        })
        .await
    }

    /// Whether a name was ever used.
    ///
    /// # Errors
    /// The store's.
    pub async fn knows_name(&self, node: &str) -> Result<bool> {
        Ok(self.shared.membership.knows_name(node).await?)
    }

    /// Frees the name of a node that was removed: what is left of its certificates and tokens is revoked. Tells whether
    /// the name was used.
    ///
    /// # Errors
    /// As above.
    pub async fn forget_node(&self, node: &str) -> Result<bool> {
        let name = node.to_owned();
        self.revoke_and_publish(async move |service| {
            service.shared.membership.forget_name(&name, now()).await
        })
        .await
    }

    /// The external broker refuses all certificates of a node that are revoked: whoever comes in its name now has another
    /// one. Gives the number of those that this was not known of.
    ///
    /// # Errors
    /// As above.
    pub async fn broker_updated(&self, node: &str) -> Result<usize> {
        let name = node.to_owned();
        self.revoke_and_publish(async move |service| {
            service.shared.membership.note_refused(&name, now()).await
        })
        .await
    }

    /// Has the store change what is revoked, and publishes that: both to the end, although whoever has asked may be gone.
    async fn revoke_and_publish<T, F>(&self, change: impl FnOnce(Self) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = std::result::Result<T, MembershipError>> + Send + 'static,
    {
        let (service, change) = (self.clone(), change(self.clone()));
        let changing = tokio::spawn(async move {
            let changed = change.await?;
            // Also when nothing has changed: what failed the last time is made up for.
            service.publish().await.map_err(|error| Status::internal(format!("{error:#}")))?;
            Ok(changed)
        });
        changing.await.map_err(Status::internal)?
    }

    /// Nothing of a node is listened to any more.
    fn block_node(&self, node: &str) {
        let mut state = self.state();
        state.revoked.nodes.insert(node.to_owned());
        state.to_cut.insert(node.to_owned());
        drop(state);
        self.shared.cut.notify_one();
    }

    /// Waits for nodes that were shut out: whoever has their connections is to cut them. Can be cancelled without loss.
    pub async fn nodes_to_cut(&self) -> Vec<String> {
        loop {
            let nodes = std::mem::take(&mut self.state().to_cut);
            if !nodes.is_empty() {
                return nodes.into_iter().collect();
            }
            self.shared.cut.notified().await;
        }
    }

    /// Whether nothing that comes in a node's name is listened to: its certificates are revoked and it has joined with no
    /// new token since. An external broker does not tell with which certificate a client has come, so there it has to be
    /// known of every revoked one that the broker refuses it.
    #[must_use]
    pub fn is_revoked(&self, node: &str) -> bool {
        self.state().revoked.nodes.contains(node)
    }

    /// The revocation list, PEM, for brokers.
    #[must_use]
    pub fn revocation_list(&self) -> String {
        served_certificates::list_pem(&self.state().revoked.der)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// All services show and demand what the state says.
    fn apply(&self, state: &State) -> anyhow::Result<()> {
        for (server, required, grace) in [
            (&self.endpoint, true, Duration::ZERO),
            (&self.api, true, Duration::ZERO),
            (&self.joining, false, state.grace),
        ] {
            server.replace(&state.identity, &state.rule(&self.authority, required, grace))?;
        }
        Ok(())
    }
}

impl State {
    fn rule(&self, authority: &Authority, required: bool, grace: Duration) -> tls::ClientRule {
        let revoked = vec![self.revoked.der.clone()];
        tls::ClientRule { trust: authority.trust(), revoked, required, expired_grace: grace }
    }
}

/// Writes the list for brokers.
async fn write_list(directory: &Path, der: &[u8]) -> anyhow::Result<()> {
    let (path, pem) = (directory.join(LIST_FILE), served_certificates::list_pem(der));
    tokio::task::spawn_blocking(move || durable::write(&path, pem.as_bytes(), 0o600))
        .await?
        .context("what is revoked is in force here, but brokers cannot learn of it yet, which is tried again")
}

/// Now, with the precision of certificates: seconds.
pub fn now() -> Timestamp {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn after(time: Timestamp, duration: Duration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}

fn before(time: Timestamp, duration: Duration) -> Timestamp {
    time.checked_sub(duration).unwrap_or(Timestamp::UNIX_EPOCH)
}
