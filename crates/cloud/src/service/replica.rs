//! A replica that serves a fleet with a Kubernetes cluster as the store.
//!
//! It waits for an unavailable cluster and reports that; only errors that the cluster cannot fix
//! end it. With an external broker one replica serves all nodes, and the others stand by; every
//! replica runs the join service, or its relay to the signer.

use std::time::Duration;

use anyhow::Context as _;

use super::shared::SharedPort;
use super::{Backing, EnrollmentTasks, create_directory_of, enrollment_options, serve};
use edgesync_config::host_name;
use edgesync_enrollment::membership::MembershipStore;
use edgesync_enrollment::{EnrollmentRole, EnrollmentService};
use edgesync_fleet::bare::{Bare, Readiness};
use edgesync_fleet::config::{BrokerMode, Config};
use edgesync_fleet::probes::Probes;
use edgesync_kubernetes::cache::{Cache, CacheOptions};
use edgesync_kubernetes::cluster::Cluster;
use edgesync_kubernetes::source::Kubernetes;
use edgesync_runtime::Service;
use edgesync_runtime::connection::proxy_rules;
use edgesync_runtime::random;
use edgesync_runtime::systemd::{self, Signals};

/// Interval between two attempts to open an unavailable cluster.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// The shared state of the replicas, opened.
struct Opened {
    source: Kubernetes,
    enrollment: EnrollmentService,
}

/// Runs a replica until it is stopped.
///
/// # Errors
/// The cluster's configuration is unusable, the cache cannot be created, or an address is in use.
pub(super) async fn run(
    service: Service<Config>,
    mut signals: Signals,
    probes: Probes,
) -> anyhow::Result<()> {
    let config = service.config().clone();
    let rules = proxy_rules(&config.link)?;
    let cluster = Cluster::connect(config.kubernetes.kubeconfig.as_deref(), &rules).await?;
    let cache = open_cache(&config).await?;
    // Reported before the cluster responds: the service manager does not wait for it.
    systemd::ready("waiting for the cluster");
    let replica = format!("{}-{:08x}", host_name(), random() >> 32);
    tracing::info!(?cluster, replica, "replica started");
    let attempt = async || try_open(&config, &cluster, &cache, &replica).await;
    let opening = until_open("fleet not served yet", probes.readiness(), attempt);
    let Some(Opened { source, enrollment }) = signals.unless_stopped(opening).await else { return Ok(()) };
    let mut shared = SharedPort::open(&config).await?;
    let mut enrollment_tasks = EnrollmentTasks::open(&config, &enrollment, &mut shared).await?;
    enrollment_tasks.keep(&enrollment, None);
    let lost = match config.broker.mode {
        BrokerMode::Embedded => None,
        BrokerMode::External => {
            // Devices join at every replica.
            shared.start(&enrollment);
            probes.readiness().set(None);
            let standing_by = "standing by until this replica leads";
            systemd::status(standing_by);
            tracing::info!(joining = ?enrollment_tasks.address, "{standing_by}");
            let led = async { while !source.is_leader() && !source.leadership_changed().await {} };
            if signals.unless_stopped(led).await.is_none() {
                return Ok(());
            }
            Some(source.clone())
        }
    };
    let backing = Backing {
        source,
        objects: Bare::new(Vec::new),
        enrollment,
        enrollment_tasks,
        shared,
        database: None,
        display_name: format!("{cluster:?}"),
    };
    let serving = serve(service, signals, &probes, backing, || ());
    let Some(leading) = lost else { return serving.await };
    tokio::select! {
        served = serving => served,
        // Only the leader may act for the fleet: this replica stops when it loses the lease.
        () = async { while leading.is_leader() && leading.leadership_changed().await {} } => {
            anyhow::bail!("leadership lost to another replica: restarting")
        }
    }
}

/// Opens the shared state, and retries until the cluster is available and permits it. `missing`
/// says what does not work until then.
pub(super) async fn until_open<T>(
    missing: &str,
    readiness: &Readiness,
    attempt: impl AsyncFn() -> anyhow::Result<T>,
) -> T {
    let mut last_error = String::new();
    loop {
        match attempt().await {
            Ok(opened) => return opened,
            Err(error) => {
                let why = format!("{error:#}");
                if why != last_error {
                    tracing::error!("{missing}, next attempt in {RETRY_INTERVAL:?}: {why}");
                    systemd::status(&format!("waiting: {why}"));
                }
                readiness.set(Some(why.clone()));
                last_error = why;
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

async fn try_open(
    config: &Config,
    cluster: &Cluster,
    cache: &Cache,
    replica: &str,
) -> anyhow::Result<Opened> {
    let version = cluster.version().await?;
    let membership =
        MembershipStore::of_cluster(std::sync::Arc::new(cluster.clone()), &config.kubernetes.namespace);
    let role = match config.enrollment.signer {
        Some(_) => EnrollmentRole::Replica,
        None => EnrollmentRole::Whole,
    };
    let options = enrollment_options(config, role, &host_name());
    let enrollment = EnrollmentService::open(options, membership.clone()).await.context("open the CA")?;
    let opened = Kubernetes::open(config, cluster.clone(), cache.clone(), membership, replica).await;
    let source = opened.context("read the state shared by replicas")?;
    tracing::info!(version, "cluster connected");
    Ok(Opened { source, enrollment })
}

async fn open_cache(config: &Config) -> anyhow::Result<Cache> {
    let path = config.kubernetes.cache.clone();
    let opened = tokio::task::spawn_blocking(move || {
        create_directory_of(&path)?;
        Cache::open(&path, &CacheOptions::default()).with_context(|| format!("open {}", path.display()))
    });
    opened.await?
}
