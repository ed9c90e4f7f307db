//! One of the replicas that serve a fleet over a Kubernetes cluster.
//!
//! It waits for a cluster that does not serve, and says so; only what nobody can put right there ends it. With an external
//! broker one replica serves all nodes, and the others stand by: nodes join at any of them.

use std::time::Duration;

use anyhow::Context as _;

use super::{Backing, Joining, enrollment_options, serve};
use edgesync_config::host_name;
use edgesync_enrollment::EnrollmentService;
use edgesync_enrollment::membership::MembershipStore;
use edgesync_fleet::bare::{Bare, Readiness};
use edgesync_fleet::config::{BrokerMode, Config};
use edgesync_fleet::probes::Probes;
use edgesync_kubernetes::cache::{Cache, CacheOptions};
use edgesync_kubernetes::cluster::Cluster;
use edgesync_kubernetes::source::Kubernetes;
use edgesync_runtime::Service;
use edgesync_runtime::random;
use edgesync_runtime::systemd::{self, Signals};

/// How long is waited before the cluster is asked again that does not serve.
const PAUSE: Duration = Duration::from_secs(2);

/// What replicas share, opened.
struct Opened {
    source: Kubernetes,
    enrollment: EnrollmentService,
}

/// Runs until the process is told to stop.
///
/// # Errors
/// There is no way to a cluster; the cache cannot be made; an address is taken.
pub(super) async fn run(
    service: Service<Config>,
    mut signals: Signals,
    probes: Probes,
) -> anyhow::Result<()> {
    let config = service.config().clone();
    let cluster = Cluster::connect(config.kubernetes.kubeconfig.as_deref()).await?;
    let cache = open_cache(&config).await?;
    // The service manager does not wait for a cluster.
    systemd::ready("waiting for the cluster");
    let replica = format!("{}-{:08x}", host_name(), random() >> 32);
    tracing::info!(?cluster, replica, "a replica over a cluster");
    let opening = open(&config, &cluster, &cache, &replica, probes.readiness());
    let Some(Opened { source, enrollment }) = signals.unless_stopped(opening).await else { return Ok(()) };
    let mut joining = Joining::open(&config, &enrollment).await?;
    joining.keep(&enrollment, None);
    let lost = match config.broker.mode {
        BrokerMode::Embedded => None,
        BrokerMode::External => {
            probes.readiness().set(None);
            let standing_by = "standing by until this replica leads";
            systemd::status(standing_by);
            tracing::info!(joining = ?joining.address, "{standing_by}");
            let led = async { while !source.is_leader() && !source.leads_otherwise().await {} };
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
        joining,
        database: None,
        shown: format!("{cluster:?}"),
    };
    let serving = serve(service, signals, &probes, backing, || ());
    let Some(leading) = lost else { return serving.await };
    tokio::select! {
        served = serving => served,
        // Nobody may speak for the fleet beside the next one.
        () = async { while leading.is_leader() && leading.leads_otherwise().await {} } => {
            anyhow::bail!("another replica serves the nodes from now on: this one begins anew")
        }
    }
}

/// Opens what replicas share, as soon as the cluster serves and allows it.
async fn open(
    config: &Config,
    cluster: &Cluster,
    cache: &Cache,
    replica: &str,
    readiness: &Readiness,
) -> Opened {
    let mut told = String::new();
    loop {
        match try_open(config, cluster, cache, replica).await {
            Ok(opened) => return opened,
            Err(error) => {
                let why = format!("{error:#}");
                if why != told {
                    tracing::error!("the fleet cannot be served yet, next try in {PAUSE:?}: {why}");
                    systemd::status(&format!("waiting: {why}"));
                }
                readiness.set(Some(why.clone()));
                told = why;
                tokio::time::sleep(PAUSE).await;
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
    let register =
        MembershipStore::of_cluster(std::sync::Arc::new(cluster.clone()), &config.kubernetes.namespace);
    let enrollment = EnrollmentService::open(enrollment_options(config), register.clone())
        .await
        .context("opening the CA")?;
    let opened = Kubernetes::open(config, cluster.clone(), cache.clone(), register, replica).await;
    let source = opened.context("reading what replicas share")?;
    tracing::info!(version, "the cluster serves");
    Ok(Opened { source, enrollment })
}

async fn open_cache(config: &Config) -> anyhow::Result<Cache> {
    let path = config.kubernetes.cache.clone();
    let opened = tokio::task::spawn_blocking(move || {
        if let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            std::fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
        }
        Cache::open(&path, &CacheOptions::default()).with_context(|| format!("opening {}", path.display()))
    });
    opened.await?
}
