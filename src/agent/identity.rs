//! The node's key and certificates at run time: loaded from disk, presented by the link, renewed
//! before they expire.
//!
//! A renewal interrupts nothing: the new certificate is issued and verified beside the link, which
//! presents it on the next connection. The previous one stays, in memory and on disk, until a
//! connection with the new one succeeds.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::sleep;

use edgesync_admin::agent::IdentityStatus;
use edgesync_config::edge::Config;
use edgesync_join::calls::JoinService;
use edgesync_join::files::{self, FilesError, RealDisk, Stored};
use edgesync_join::renewal::{self, Schedule, Validity};
use edgesync_object::NodeName;
use edgesync_object::time::rfc3339;
use edgesync_runtime::connection::{dialer, read_trust};
use edgesync_runtime::random;
use edgesync_transport::dial::LastGood;
use edgesync_transport::tls::{Certificate, Client, Clock, Identity, Trust};

/// Maximum sleep: limits the delay after a suspend or a change of the clock.
const MAX_SLEEP: Duration = Duration::from_secs(60);
/// Changes that may queue for the loop.
const CHANGE_QUEUE: usize = 16;

/// A change of the certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum IdentityChange {
    Renewed(Certificate),
    /// A renewal failed; it is retried.
    Failed(String),
    /// The validity has degraded.
    Validity(Validity),
}

/// State of the certificate, for status, conditions and metrics.
#[derive(Clone, Debug)]
pub(super) struct IdentityState {
    pub(super) certificate: Certificate,
    pub(super) validity: Validity,
    planned: Timestamp,
    renewed: u64,
    failure: Option<String>,
}

/// The loop's handle to the identity.
pub(super) struct NodeIdentity {
    tls: Client,
    state: watch::Receiver<IdentityState>,
    pub(super) changes: mpsc::Receiver<IdentityChange>,
    shared: Arc<Shared>,
    /// The renewal until it starts, with the trust anchors of the broker.
    renewal: Option<(Renewer, Trust)>,
}

struct Shared {
    set: PathBuf,
    /// Whether an identity from before the last renewal is on disk.
    previous: AtomicBool,
    reread: Notify,
}

/// The task that renews the certificate while the agent runs.
struct Renewer {
    shared: Arc<Shared>,
    /// The enrollment service; none without one, or before the start.
    service: Option<JoinService>,
    node: NodeName,
    trust: Trust,
    identity: Identity,
    tls: Client,
    clock: Clock,
    schedule: Schedule,
    state: watch::Sender<IdentityState>,
    changes: mpsc::Sender<IdentityChange>,
}

impl NodeIdentity {
    /// Loads the identity; `None` if the node has not joined. [`Self::start_renewal`] starts its
    /// renewal. `passed` is a lower bound of the current time, for the check of validity.
    ///
    /// # Errors
    /// Fails if the files cannot be read or are invalid.
    pub(super) fn open(config: &Config, node: &NodeName, passed: Timestamp) -> anyhow::Result<Option<Self>> {
        let Some(set) = config.identity.directory.clone() else { return Ok(None) };
        let stored = load(&set)?;
        let clock = Clock::system([passed, stored.identity.certificate().not_before()]);
        let trust = Trust::new(stored.ca);
        let broker = match &config.link.ca_file {
            Some(file) => read_trust(file)?,
            None => trust.clone(),
        };
        let tls = Client::new(&broker, Some(stored.previous.as_ref().unwrap_or(&stored.identity)), clock)?;
        if stored.previous.is_some() {
            tls.replace(&broker, Some(&stored.identity))?;
        }
        let shared = Arc::new(Shared {
            previous: AtomicBool::new(stored.previous.is_some()),
            reread: Notify::new(),
            set,
        });
        let schedule = Schedule::new(stored.identity.certificate(), fraction());
        let (state, state_receiver) = watch::channel(IdentityState {
            certificate: stored.identity.certificate().clone(),
            validity: schedule.validity(&clock),
            planned: schedule.planned(),
            renewed: 0,
            failure: None,
        });
        let (changes, change_receiver) = mpsc::channel(CHANGE_QUEUE);
        let renewer = Renewer {
            shared: Arc::clone(&shared),
            service: None,
            node: node.clone(),
            trust,
            identity: stored.identity,
            tls: tls.clone(),
            clock,
            schedule,
            state,
            changes,
        };
        let renewal = Some((renewer, broker));
        Ok(Some(Self { tls, state: state_receiver, changes: change_receiver, shared, renewal }))
    }

    /// Starts the renewal, once. It shares the last good addresses with the link, whose broker
    /// often has the name of the join service.
    ///
    /// # Errors
    /// Fails if the proxy cannot be used.
    pub(super) fn start_renewal(&mut self, config: &Config, last_good: LastGood) -> anyhow::Result<()> {
        let Some((mut renewer, broker)) = self.renewal.take() else { return Ok(()) };
        if let Some(url) = &config.identity.cloud {
            renewer.service = Some(JoinService::new(url.clone(), dialer(&config.link, last_good)?));
        }
        tokio::spawn(renewer.run(broker));
        Ok(())
    }

    /// Returns TLS for the link.
    pub(super) fn tls(&self) -> Client {
        self.tls.clone()
    }

    pub(super) fn state(&self) -> IdentityState {
        self.state.borrow().clone()
    }

    /// Removes the previous identity: the broker has accepted the current one.
    pub(super) fn connected(&self) {
        let shows = self.tls.shows();
        let current = self.state.borrow().certificate.clone();
        if shows.as_ref() != Some(&current) || !self.shared.previous.swap(false, Ordering::Relaxed) {
            return;
        }
        let shared = Arc::clone(&self.shared);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = files::forget_previous(&mut RealDisk, &shared.set) {
                tracing::warn!(%error, "previous certificate not removed");
            }
        });
    }

    /// Rereads the files, which an operator may have replaced.
    pub(super) fn reread(&self) {
        self.shared.reread.notify_one();
    }
}

impl IdentityState {
    /// Returns the section of the status.
    pub(super) fn show(&self) -> IdentityStatus {
        let certificate = &self.certificate;
        IdentityStatus {
            subject: certificate.subject().common_name.clone(),
            serial: certificate.serial().to_string(),
            not_before: rfc3339(certificate.not_before()),
            not_after: rfc3339(certificate.not_after()),
            validity: word(self.validity).to_owned(),
            renew_at: rfc3339(self.planned),
            renewals: self.renewed,
            renewal_failure: self.failure.clone(),
        }
    }
}

fn word(validity: Validity) -> &'static str {
    match validity {
        Validity::Good => "valid",
        Validity::Tight => "expires soon",
        Validity::Expired => "expired",
        Validity::Unknown => "unknown: the clock is not set",
    }
}

impl Renewer {
    async fn run(mut self, broker: Trust) {
        loop {
            self.check_validity();
            // Without an enrollment service only the validity is watched.
            let wait = match &self.service {
                Some(_) => self.schedule.wait(&self.clock, fraction()),
                None => MAX_SLEEP,
            };
            // Shorter sleeps, because the clock may be set and the device may suspend meanwhile.
            let check_validity =
                if wait > MAX_SLEEP && !self.schedule.is_due(&self.clock) { MAX_SLEEP } else { wait };
            tokio::select! {
                () = sleep(check_validity) => {}
                () = self.shared.reread.notified() => {
                    self.reread(&broker).await;
                    continue;
                }
                () = self.changes.closed() => return,
            }
            if self.schedule.is_due(&self.clock) {
                self.renew(&broker).await;
            }
        }
    }

    /// Publishes a change of the validity.
    fn check_validity(&self) {
        let validity = self.schedule.validity(&self.clock);
        let changed =
            self.state.send_if_modified(|state| std::mem::replace(&mut state.validity, validity) != validity);
        if changed && matches!(validity, Validity::Tight | Validity::Expired) {
            self.notify(IdentityChange::Validity(validity));
        }
    }

    async fn renew(&mut self, broker: &Trust) {
        let Some(service) = &self.service else { return };
        let renewed = renewal::renew(service, &self.trust, &self.identity, &self.node, self.clock).await;
        let result = match renewed {
            Ok(identity) => self.store(identity, broker).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = result {
            let problem = format!("{error:#}");
            tracing::warn!(problem, "certificate renewal failed");
            self.schedule.failed();
            self.state.send_modify(|state| state.failure = Some(problem.clone()));
            self.notify(IdentityChange::Failed(problem));
        }
    }

    /// Stores a new identity and presents it from the next connection on.
    async fn store(&mut self, identity: Identity, broker: &Trust) -> anyhow::Result<()> {
        let (set, written) = (self.shared.set.clone(), identity.clone());
        tokio::task::spawn_blocking(move || files::renew(&mut RealDisk, &set, &written)).await??;
        self.shared.previous.store(true, Ordering::Relaxed);
        self.tls.replace(broker, Some(&identity))?;
        let certificate = identity.certificate().clone();
        tracing::info!(until = %rfc3339(certificate.not_after()), serial = certificate.serial(), "certificate renewed");
        self.take(identity);
        self.state.send_modify(|state| state.renewed += 1);
        self.notify(IdentityChange::Renewed(certificate));
        Ok(())
    }

    async fn reread(&mut self, broker: &Trust) {
        let set = self.shared.set.clone();
        let read =
            tokio::task::spawn_blocking(move || load(&set)).await.map_err(anyhow::Error::from).flatten();
        let result = read.and_then(|stored| {
            if stored.identity.certificate() == self.identity.certificate() {
                return Ok(());
            }
            self.tls.replace(broker, Some(&stored.identity))?;
            self.take(stored.identity);
            tracing::info!("identity reloaded");
            Ok(())
        });
        if let Err(error) = result {
            tracing::error!(error = format!("{error:#}"), "identity not reloaded");
        }
    }

    fn take(&mut self, identity: Identity) {
        self.schedule = Schedule::new(identity.certificate(), fraction());
        self.identity = identity;
        let (certificate, planned) = (self.identity.certificate().clone(), self.schedule.planned());
        let validity = self.schedule.validity(&self.clock);
        self.state.send_modify(|state| {
            *state = IdentityState { certificate, validity, planned, failure: None, ..state.clone() };
        });
    }

    fn notify(&self, changes: IdentityChange) {
        // A loop that lags this far behind sees the state.
        let _ = self.changes.try_send(changes);
    }
}

fn load(set: &Path) -> anyhow::Result<Stored> {
    files::load(&RealDisk, set).map_err(|error| {
        let advice = match &error {
            FilesError::Io(error) if error.cause.kind() == ErrorKind::PermissionDenied => {
                "run the agent as root or as user edgesync"
            }
            _ => "'edgesync join --force --cloud https://HOST:10002 --token -'",
        };
        anyhow::Error::from(error).context(format!("read identity {}; hint: {advice}", set.display()))
    })
}

/// Returns a random number in `[0, 1)`.
fn fraction() -> f64 {
    (random() >> 11) as f64 / (1u64 << 53) as f64
}
