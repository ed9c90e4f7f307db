//! Starts and stops the cloud side: store, endpoint or broker, fleet, API.

#[cfg(feature = "kubernetes")]
mod replica;
mod shared;
#[cfg(feature = "kubernetes")]
mod signer;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use edgesync_api::{Access, Address, Limits, Listener, Server, Storage, own_uid};
use edgesync_broker::{Broker, BrokerOptions, Downlink, FleetEvents, SharedSource, external};
use edgesync_cloud_store::{CloudOptions, CloudStore};
use edgesync_config::{JoinUrl, host_name};
use edgesync_fleet::config::{BrokerMode, Config, StoreType};
use edgesync_runtime::Service;
use edgesync_runtime::connection::{configured_link, packet_limit, read_trust};
use edgesync_runtime::random;
use edgesync_runtime::systemd::{self, Signals};
use edgesync_transport::link::presence::CloudPresence;
use edgesync_transport::link::{Publish, SessionIntro, Topics};
use edgesync_transport::shared::Inlet;
use edgesync_transport::tls::{self, Clock};

use edgesync_enrollment::pages::Keys;
use edgesync_enrollment::service::{self, JoinService};
use edgesync_enrollment::{EnrollmentOptions, EnrollmentRole, EnrollmentService, JoinRelay};
use edgesync_fleet::admin::{Admin, BrokerDefaults, Parts};
use edgesync_fleet::fleet::Fleet;
use edgesync_fleet::objects::CloudObjects;
use edgesync_fleet::page::Page;
use edgesync_fleet::probes::Probes;
use edgesync_fleet::source::{Embedded, Source};
use edgesync_fleet::summary::Board;
use edgesync_fleet::upkeep::Upkeep;
use edgesync_object::name::check_subdomain;
use shared::SharedPort;

/// Time over which a stopping replica sends its nodes to the others, at most.
const DRAIN_PERIOD: Duration = Duration::from_secs(5);
/// Time limit for an external broker to accept the offline presence.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);
/// Capacity of the queue of operators' requests to the fleet.
const ADMIN_QUEUE: usize = 64;

/// Runs the cloud side until it is stopped.
///
/// # Errors
/// The start fails: the database is damaged or in use, the cluster's configuration is unusable, or
/// an address is in use.
pub(crate) async fn run(service: Service<Config>) -> anyhow::Result<()> {
    let config = service.config();
    let (kind, health) = (config.store.r#type, config.api.health);
    let signals = Signals::new().context("install signal handlers")?;
    let probes = Probes::open(health).await.context("open api.health")?;
    match kind {
        StoreType::Sqlite => run_embedded(service, signals, probes).await,
        #[cfg(feature = "kubernetes")]
        StoreType::Kubernetes => replica::run(service, signals, probes).await,
        #[cfg(not(feature = "kubernetes"))]
        StoreType::Kubernetes => without_feature(),
    }
}

/// Runs the signer of a fleet in a cluster until it is stopped.
///
/// # Errors
/// The fleet can have no signer; the cluster's configuration is unusable, or an address is in
/// use.
pub(crate) async fn run_signer(service: Service<Config>) -> anyhow::Result<()> {
    check_signer(service.config())?;
    #[cfg(feature = "kubernetes")]
    {
        signer::run(service).await
    }
    #[cfg(not(feature = "kubernetes"))]
    {
        without_feature()
    }
}

/// Refuses a signer of a fleet whose other processes need the keys themselves. Replicas refuse
/// `enrollment.signer` with the same settings, which the configuration of a signer lacks.
fn check_signer(config: &Config) -> anyhow::Result<()> {
    anyhow::ensure!(
        config.store.r#type == StoreType::Kubernetes,
        "a signer needs store.type = \"kubernetes\"; hint: with a database of its own the cloud side signs itself, \
         'edgesync-cloud run'"
    );
    anyhow::ensure!(
        config.broker.mode == BrokerMode::Embedded,
        "a signer needs broker.mode = \"embedded\": with an external broker each replica signs its certificate for the \
         broker; hint: install replicas without a signer, packaging/kubernetes/overlays/external-broker"
    );
    Ok(())
}

#[cfg(not(feature = "kubernetes"))]
fn without_feature() -> anyhow::Result<()> {
    anyhow::bail!(
        "store.type = \"kubernetes\" needs a build with the feature 'kubernetes'; hint: cargo build --release -p edgesync-cloud --features kubernetes"
    )
}

/// Runs with a database of this process.
async fn run_embedded(service: Service<Config>, signals: Signals, probes: Probes) -> anyhow::Result<()> {
    let config = service.config().clone();
    let store = systemd::patiently("opening the database", open_store(&config)).await?;
    let enrollment = EnrollmentService::open(
        enrollment_options(&config, EnrollmentRole::Whole, &host_name()),
        store.clone(),
    )
    .await
    .context("open the CA")?;
    let objects = Arc::new(CloudObjects::new(store.clone()).await.context("read the kinds")?);
    let mut upkeep = Upkeep::start(&objects).await.context("prepare the API")?;
    let mut shared = SharedPort::open(&config).await?;
    let backing = Backing {
        source: Embedded::new(Arc::clone(&objects)),
        objects: Arc::clone(&objects),
        enrollment_tasks: EnrollmentTasks::open(&config, &enrollment, &mut shared).await?,
        shared,
        enrollment,
        database: Some((store, config.store.path.clone())),
        display_name: config.store.path.display().to_string(),
    };
    let begin = move || {
        upkeep.read_all(&objects);
        upkeep
    };
    serve(service, signals, &probes, backing, begin).await
}

/// The store of a fleet, with its enrollment.
struct Backing<S, K> {
    source: S,
    /// The objects that the API serves.
    objects: Arc<K>,
    enrollment: EnrollmentService,
    enrollment_tasks: EnrollmentTasks,
    shared: SharedPort,
    /// The embedded store and its file.
    database: Option<(CloudStore, PathBuf)>,
    /// The store's name in the log.
    display_name: String,
}

/// Tasks of enrollment: the join service, and the upkeep of keys, certificates and revocations.
/// Aborted on drop.
struct EnrollmentTasks {
    address: Option<SocketAddr>,
    tasks: JoinSet<()>,
}

impl EnrollmentTasks {
    /// Starts the join service, or its relay to the signer, where it is configured.
    ///
    /// # Errors
    /// The address is in use.
    async fn open(
        config: &Config,
        enrollment: &EnrollmentService,
        shared: &mut SharedPort,
    ) -> anyhow::Result<Self> {
        let mut enrollment_tasks = Self { address: None, tasks: JoinSet::new() };
        if let Some(inlet) = shared.join.take() {
            enrollment_tasks.address = Some(inlet.address());
            enrollment_tasks.tasks.spawn(service::serve_shared(inlet, enrollment.clone()));
        }
        let Some(address) = config.enrollment.listen else { return Ok(enrollment_tasks) };
        let failed = "open the join service";
        match &config.enrollment.signer {
            None => {
                let service = JoinService::bind(address, enrollment.clone()).await.context(failed)?;
                enrollment_tasks.address = Some(service.address());
                enrollment_tasks.tasks.spawn(service.serve());
            }
            Some(JoinUrl { host, port }) => {
                let relay = JoinRelay::bind(address, (host.clone(), *port)).await.context(failed)?;
                enrollment_tasks.address = Some(relay.address());
                enrollment_tasks.tasks.spawn(relay.serve());
            }
        }
        Ok(enrollment_tasks)
    }

    /// Starts the upkeep of certificates, and of this machine's kubeconfig: its file and the API's
    /// URL.
    fn keep(&mut self, enrollment: &EnrollmentService, kubeconfig: Option<(PathBuf, String)>) {
        let enrollment = enrollment.clone();
        self.tasks.spawn(async move {
            enrollment.run(kubeconfig.as_ref().map(|(path, api)| (path.as_path(), api.as_str()))).await;
        });
    }
}

/// Serves a fleet until the process is stopped. `begin` starts tasks that run once nodes are
/// served.
async fn serve<S: Source, K: Storage, T>(
    mut service: Service<Config>,
    mut signals: Signals,
    probes: &Probes,
    backing: Backing<S, K>,
    begin: impl FnOnce() -> T,
) -> anyhow::Result<()> {
    let config = service.config().clone();
    let Backing { source, objects, enrollment, mut enrollment_tasks, mut shared, database, display_name } =
        backing;
    let store = database.as_ref().map(|(store, _)| store.clone());
    let (requests, admin) = mpsc::channel(ADMIN_QUEUE);
    let (stop_api, api_stopped) = watch::channel(());
    let socket = Address::Unix(config.api.socket.clone());
    let socket = Listener::bind(&socket).await.context("open api.socket")?;
    let listener = match config.api.listen {
        Some(address) => {
            Some(Listener::bind_tls(address, enrollment.api_tls()).await.context("open api.listen")?)
        }
        None => None,
    };
    let shared_api = shared.api.take().map(|inlet| Listener::shared(inlet, enrollment.api_tls()));
    let address = [&listener, &shared_api].into_iter().flatten().next();
    let address = address.map(|listener| listener.address().clone());
    let topics = Topics::new(&config.link.prefix)?;
    let (downlink, events) = open_downlink(&config, &topics, &enrollment, shared.mqtt.take()).await?;
    let broker = match &downlink {
        Downlink::Embedded(broker) => format!("embedded on {}", broker.address()),
        Downlink::External(_) => config.link.broker.to_string(),
    };
    let (page, page_listener) = open_page(&config).await?;
    let board = Board::new(format!("{:016x}", random()));
    let limits = Limits { body_bytes: config.api.max_body, ..Limits::cloud() };
    let parts = Parts {
        database,
        downlink: downlink.clone(),
        enrollment_service: enrollment.clone(),
        broker: BrokerDefaults {
            names: config.enrollment.names.clone(),
            prefix: config.link.prefix.clone(),
            max_packet: packet_limit(config.link.max_frame),
        },
        service: enrollment_tasks.address.map(|address| join_url(&config, address)),
        board: Arc::clone(&board),
        page: page.clone(),
        has_tls_api: address.is_some(),
        shared: shared.counters(),
    };
    let access = Access::certificates(enrollment.operators(), own_uid());
    let access = match &page {
        Some(page) => access.with_pages(page.keys()),
        None => access,
    };
    let extension = Admin::new(requests, parts);
    probes.started(extension.clone(), {
        let objects = Arc::clone(&objects);
        move || objects.checks()
    });
    let server = Server::new(objects, extension, access, limits);
    // Operators of a cluster have the cluster's kubeconfigs, and the upkeep of a replica runs
    // already.
    if source.replication().is_none() {
        let kubeconfig =
            address.as_ref().map(|address| (config.api.kubeconfig.clone(), local_api_url(address)));
        if let Some((path, api)) = &kubeconfig {
            let written = enrollment.write_kubeconfig(path, api).await;
            written.with_context(|| format!("write kubeconfig {}", path.display()))?;
        }
        enrollment_tasks.keep(&enrollment, kubeconfig);
    }
    let mut api = JoinSet::new();
    for listener in [Some(socket), listener, shared_api, page_listener].into_iter().flatten() {
        let (server, mut stopped) = (Arc::clone(&server), api_stopped.clone());
        api.spawn(async move {
            let stopped = async move {
                let _ = stopped.changed().await;
            };
            server.serve(listener, stopped).await;
        });
    }
    shared.start(&enrollment);
    let joins = enrollment_tasks.address.map_or_else(|| "off".to_owned(), |address| address.to_string());
    let address = address.map_or_else(|| "off".to_owned(), |address| address.to_string());
    tracing::info!(api = %address, broker, joining = joins, store = display_name, "cloud side started");
    let running = format!("API on {address}, broker {broker}");
    let reading = "loading placement index";
    probes.readiness().set(Some(reading.to_owned()));
    systemd::ready(&format!("{running}; {reading}"));
    // The endpoint queues messages of nodes until their desired objects are known.
    let fleet = Fleet::start(&config, source, downlink.clone(), enrollment);
    let (fleet, kept, failed) = match signals.unless_stopped(fleet).await {
        Some(Ok(mut fleet)) => {
            fleet.show_on(board);
            systemd::status(&running);
            probes.readiness().set(None);
            let kept = begin();
            fleet.run(&mut service, &mut signals, events, admin).await;
            (Some(fleet), Some(kept), None)
        }
        Some(Err(error)) => (None, None, Some(error)),
        None => (None, None, None),
    };
    systemd::stopping("draining");
    probes.readiness().set(Some("stopping".to_owned()));
    match failed {
        None => tracing::info!("stopping: draining"),
        Some(_) => tracing::error!("fleet failed: draining"),
    }
    shared.stop().await;
    let boot = fleet.as_ref().map_or_else(String::new, |fleet| fleet.boot().to_owned());
    let farewell = CloudPresence { boot, online: false }.to_json();
    signals
        .during(async {
            downlink.shutdown(farewell, FAREWELL_TIMEOUT).await;
            drop(stop_api);
            while api.join_next().await.is_some() {}
            enrollment_tasks.tasks.shutdown().await;
            drop(kept);
            if let Some(mut fleet) = fleet {
                fleet.finish().await;
            }
            if let Some(store) = store {
                store.close().await;
            }
        })
        .await;
    tracing::info!("stopped");
    failed.map_or(Ok(()), |error| Err(anyhow::Error::from(error).context("read the store")))
}

/// Opens the page and its listener for browsers on this machine.
async fn open_page(config: &Config) -> anyhow::Result<(Option<Page>, Option<Listener>)> {
    if !config.page.enabled {
        return Ok((None, None));
    }
    let listener = match config.page.address() {
        // The page is optional: nodes are served even if its address is in use.
        Some(address) => Listener::bind(&Address::Tcp(address))
            .await
            .inspect(|listener| {
                let address = listener.address();
                tracing::info!(%address, "page started; hint: 'edgesync-cloud page' prints its URL");
            })
            .inspect_err(|error| tracing::warn!(%address, %error, "page not started"))
            .ok(),
        None => None,
    };
    let beside = match config.store.r#type {
        StoreType::Sqlite => &config.store.path,
        StoreType::Kubernetes => &config.kubernetes.cache,
    };
    let address = listener.as_ref().and_then(|listener| match listener.address() {
        Address::Tcp(address) => Some(*address),
        _ => None,
    });
    let keys = Keys::open(&beside.with_file_name("page.key")).context("open the page")?;
    Ok((Some(Page::new(keys, address)), listener))
}

/// Creates the directory of a file.
fn create_directory_of(path: &Path) -> anyhow::Result<()> {
    let Some(directory) = path.parent() else { return Ok(()) };
    std::fs::create_dir_all(directory).with_context(|| format!("create directory {}", directory.display()))
}

async fn open_store(config: &Config) -> anyhow::Result<CloudStore> {
    let path = config.store.path.clone();
    create_directory_of(&path)?;
    let mut options = CloudOptions::default();
    options.engine.cache_kib = u32::try_from(config.store.cache_size / 1024).unwrap_or(u32::MAX);
    options.engine.wal_bytes = config.store.wal_size;
    options.history.objects.changes = config.store.history;
    options.history.fleet.changes = config.store.history_fleet;
    options.events_per_node = config.nodes.max_events;
    options.max_object_bytes = options.max_object_bytes.max(config.api.max_body);
    open(&path, options).await
}

async fn open(path: &Path, options: CloudOptions) -> anyhow::Result<CloudStore> {
    let path = path.to_owned();
    Ok(tokio::task::spawn_blocking(move || CloudStore::open(&path, &options)).await??)
}

/// The URL of the API for programs on this machine.
fn local_api_url(address: &Address) -> String {
    match address {
        Address::Tls { host, port } if host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_unspecified()) => {
            format!("https://127.0.0.1:{port}")
        }
        address => address.to_string(),
    }
}

/// The URL of the join service for a hint, with the first configured name, else the host name.
fn join_url(config: &Config, address: SocketAddr) -> String {
    let host =
        config.enrollment.names.first().cloned().unwrap_or_else(|| match address.ip().is_unspecified() {
            true => {
                Some(host_name()).filter(|name| check_subdomain(name).is_ok()).unwrap_or("HOST".to_owned())
            }
            false => address.ip().to_string(),
        });
    JoinUrl { host, port: address.port() }.to_string()
}

/// Returns the settings of enrollment on the machine with this host name. The certificate of a
/// signer is for all replicas, and so has the configured names only.
fn enrollment_options(config: &Config, role: EnrollmentRole, host_name: &str) -> EnrollmentOptions {
    let mut names = config.enrollment.names.clone();
    if role == EnrollmentRole::Whole {
        match check_subdomain(host_name) {
            Ok(()) => names.push(host_name.to_owned()),
            Err(problem) => tracing::warn!(
                "host name left out of the server certificate, {problem}; hint: list the names by which nodes reach this \
                 machine in enrollment.names"
            ),
        }
        let listens =
            [config.enrollment.listen, config.broker.listen, config.api.listen, config.listen.address];
        for address in listens {
            names.extend(
                address.filter(|address| !address.ip().is_unspecified()).map(|at| at.ip().to_string()),
            );
        }
    }
    if config.listen.address.is_some() {
        names.extend(config.listen.reserved().map(|(name, _)| name.to_owned()));
    }
    names.sort();
    names.dedup();
    let (broker, brokers) = shared::advertised(config);
    EnrollmentOptions {
        directory: config.enrollment.directory.clone(),
        names,
        broker,
        brokers,
        prefix: config.link.prefix.clone(),
        lifetime: config.enrollment.certificate_lifetime,
        grace: config.enrollment.renewal_grace,
        external: config.broker.mode == BrokerMode::External,
        role,
    }
}

fn endpoint_options(
    config: &Config,
    topics: &Topics,
    enrollment: Option<&EnrollmentService>,
) -> BrokerOptions {
    let link = &config.link;
    BrokerOptions {
        topics: topics.clone(),
        tls: enrollment
            .filter(|_| config.broker.listen.is_some_and(|listen| config.broker.tls.at(listen)))
            .map(EnrollmentService::endpoint_tls),
        max_connections: config.broker.max_connections,
        max_packet: packet_limit(link.max_frame),
        queue_bytes: config.broker.queue,
        inflight: link.inflight,
        max_keepalive: link.keepalive,
        farewells: match config.store.r#type {
            StoreType::Sqlite => Duration::ZERO,
            StoreType::Kubernetes => DRAIN_PERIOD,
        },
        ..BrokerOptions::default()
    }
}

async fn open_downlink(
    config: &Config,
    topics: &Topics,
    enrollment: &EnrollmentService,
    inlet: Option<Inlet>,
) -> anyhow::Result<(Downlink, FleetEvents)> {
    let link = &config.link;
    match config.broker.mode {
        BrokerMode::Embedded => {
            let options = endpoint_options(config, topics, Some(enrollment));
            let shared = inlet.map(|inlet| SharedSource { inlet, tls: enrollment.endpoint_tls() });
            let opened = Broker::open(config.broker.listen, shared, options).await;
            let (broker, events) = opened.context("open the MQTT endpoint")?;
            Ok((Downlink::Embedded(broker), events))
        }
        BrokerMode::External => {
            let mut options = configured_link(link)?;
            options.tls = cloud_tls(link, enrollment)?;
            options.queue = 1024;
            options.queue_bytes = config.broker.queue;
            options.events = 1024;
            let topic = topics.cloud();
            options.introduce = Arc::new(move |_| {
                let payload = CloudPresence { boot: String::new(), online: false }.to_json();
                let will = Publish { topic: topic.clone(), payload, retain: true };
                SessionIntro { will: Some(will), greetings: Vec::new() }
            });
            Ok(external(options, topics))
        }
    }
}

/// TLS for an external broker, with a certificate of our own CA.
fn cloud_tls(
    link: &edgesync_config::Link,
    enrollment: &EnrollmentService,
) -> anyhow::Result<Option<tls::Client>> {
    if !link.broker.uses_tls() {
        return Ok(None);
    }
    let trust = match &link.ca_file {
        Some(file) => read_trust(file)?,
        None => enrollment.trust(),
    };
    Ok(Some(tls::Client::new(&trust, Some(&enrollment.cloud_identity()?), Clock::system([]))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_applies_the_documented_keys_of_link() {
        let mut config = Config::default();
        config.link.prefix = "plant/7".into();
        config.link.keepalive = Duration::from_secs(45);
        config.link.max_frame = 32 << 10;
        config.link.inflight = 7;
        let options = endpoint_options(&config, &Topics::new(&config.link.prefix).unwrap(), None);
        assert_eq!(options.topics.prefix(), "plant/7");
        assert_eq!(options.max_keepalive, Duration::from_secs(45));
        assert_eq!((options.max_packet, options.inflight), ((32 << 10) + 2048, 7));
    }

    #[test]
    fn signer_is_refused_where_replicas_need_the_keys() {
        let mut config = Config::default();
        let refused = |config: &Config| check_signer(config).err().map(|error| error.to_string());
        assert!(refused(&config).is_some_and(|why| why.contains("store.type = \"kubernetes\"")));
        config.store.r#type = StoreType::Kubernetes;
        assert_eq!(refused(&config), None);
        config.broker.mode = BrokerMode::External;
        assert!(refused(&config).is_some_and(|why| why.contains("broker.mode = \"embedded\"")));
    }

    /// The cloud side used not to start there: "host name must be a DNS-1123 subdomain".
    #[test]
    fn host_names_that_no_certificate_can_have_are_left_out() {
        let names = |role, host: &str| enrollment_options(&Config::default(), role, host).names;
        for host in ["(none)", "my_machine", "", "-a", "b\u{fc}ro"] {
            assert_eq!(names(EnrollmentRole::Whole, host), ["127.0.0.1"], "{host:?}");
        }
        assert_eq!(names(EnrollmentRole::Whole, "gw-1"), ["127.0.0.1", "gw-1"]);
        assert_eq!(names(EnrollmentRole::Signer, "edgesync-signer-5d9"), [""; 0], "the name of one Pod");
    }

    #[test]
    fn a_host_name_left_out_of_the_certificate_is_logged_once() {
        let logged = |host: &str| {
            let log = tempfile::NamedTempFile::new().unwrap();
            let writer = Arc::new(log.reopen().unwrap());
            let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
            tracing::subscriber::with_default(subscriber, || {
                enrollment_options(&Config::default(), EnrollmentRole::Whole, host);
            });
            std::fs::read_to_string(log.path()).unwrap()
        };
        let lines = logged("my_machine");
        assert_eq!(lines.lines().count(), 1, "{lines}");
        for words in [" WARN ", "host name left out of the server certificate, ", "enrollment.names"] {
            assert!(lines.contains(words), "{lines}");
        }
        assert_eq!(logged("gw-1"), "");
    }
}
