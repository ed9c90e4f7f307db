//! Runs the agent: a loop around the [`EdgeMachine`](edgesync_protocol::edge::EdgeMachine), with
//! store, link and local API as tasks. The loop decides nothing: it passes events to the machine
//! and performs the effects that the machine returns.

mod access;
mod apply;
mod check_ins;
mod clock;
mod driver;
mod events;
mod files;
mod identity;
mod instance_lock;
mod joining;
mod kinds;
mod link_class;
mod listening;
pub mod metrics;
mod node_report;
mod objects;
mod seal;
mod starting;
mod status;
mod traffic;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::store::{EdgeOptions, EdgeStore, OutboxWrite};
use edgesync_api::{Address, Limits, Listener, Server};
use edgesync_config::LinkType;
use edgesync_config::edge::Config;
use edgesync_object::NodeName;
use edgesync_protocol::edge::EdgeConfig;
use edgesync_runtime::Service;
use edgesync_runtime::VERSION;
use edgesync_runtime::connection::{configured_link, dialer, kubeedge_options, read_trust};
use edgesync_runtime::systemd::{self, Signals};
use edgesync_transport::dial::LastGood;
use edgesync_transport::link::compact::CompactTopics;
use edgesync_transport::link::presence::Presence;
use edgesync_transport::link::{Link, LinkEvent, LinkHandle, LinkOptions, Topics};
use edgesync_transport::tls;

use access::Tokens;
use clock::Clock;
use driver::{Driver, Reporting, Wire, event_limits, outbox_limits};
use events::Events;
use files::Files;
use identity::NodeIdentity;
use kinds::KindRegistry;
use listening::ListenState;
use objects::{EdgeObjects, ReadClock, SharedNode, shared_node};
use starting::Starting;
use status::StatusExtension;

/// Time limit for the farewell to reach the broker.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);
/// Metadata key of the addresses that worked last.
const LAST_GOOD: &str = "last-good";
/// Status requests that may queue for the loop.
const STATUS_QUEUE: usize = 16;

/// Runs the agent until a signal stops it.
///
/// # Errors
/// Fails if the database belongs to another process or the socket cannot be created.
pub async fn run(mut service: Service<Config>) -> anyhow::Result<()> {
    let mut signals = Signals::new().context("install signal handlers")?;
    if !joining::wait(&mut service, &mut signals).await {
        return Ok(());
    }
    let config = service.config().clone();
    let name = NodeName::parse(&config.node.name).map_err(anyhow::Error::msg).context("read node.name")?;
    let _name = instance_lock::acquire(&config, &name)?;
    make_parent(&config.store.path)?;
    let passed = last_written(&config.store.path);
    let mut identity = NodeIdentity::open(&config, &name, passed).context("read identity")?;
    let clock = Clock::new(passed);
    let starting = Starting::watch(&config.store.path);
    let store = EdgeStore::open(&config.store.path, store_options(&config))
        .with_context(|| format!("open database {}", config.store.path.display()))?;
    drop(starting);
    let read_clock = clock.reader();
    let events = {
        let read_clock = Arc::clone(&read_clock);
        Events::start(store.clone(), &name, event_limits(&config), move || read_clock())
    };
    let files_clock = clock.reader();
    let node = shared_node(&name);
    let reporting = Reporting::new(&config, &store, clock, events.clone(), node.clone()).await;
    let reporting = reporting.context("read what earlier runs kept")?;
    // Recorded before anything is served: a kill from here on counts as the end of a run.
    events.begin_run().await;
    seal::emit_events(&store, &events).await;
    let kinds = Arc::new(KindRegistry::sealing(seal::options(&config)));
    kinds.register_all(store.held_kinds().await.context("read held kinds")?);
    let (query_sender, queries) = mpsc::channel(STATUS_QUEUE);
    let (stop_api, api_stopped) = watch::channel(());
    // Ensures that units ordered after the agent find the desired files without a network.
    let files = Files::start(&config, store.clone(), events.clone(), Arc::clone(&kinds), files_clock).await;
    let extension = (query_sender, files.clone(), node);
    let mut api = serve_api(&config, &name, &store, &kinds, read_clock, extension, api_stopped).await?;
    let (link, link_events, wire) = connect(&config, &name, identity.as_mut(), &store).await?;
    if reporting.metered.is_spent(false) {
        // Not one connection is left in the budget; the driver resumes the link.
        link.pause(Vec::new(), Duration::ZERO);
    }
    let farewell = wire.farewell(&name);
    tracing::info!(
        node = name.as_str(),
        peer = %config.peer(),
        store = %config.store.path.display(),
        version = VERSION,
        "agent started"
    );
    systemd::ready("connecting to the cloud");
    let mut driver =
        Driver::new((&config, name), store.clone(), kinds, link.clone(), wire, (reporting, files), identity);
    driver.run(&mut service, &mut signals, link_events, queries).await;
    signals
        .during(async {
            link.shutdown(farewell, FAREWELL_TIMEOUT).await;
            driver.end_reporting();
            drop(stop_api);
            while api.join_next().await.is_some() {}
            store.close().await;
        })
        .await;
    tracing::info!("stopped");
    Ok(())
}

fn make_parent(path: &Path) -> anyhow::Result<()> {
    if let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
    }
    Ok(())
}

/// Returns when the database was last written: a lower bound for the current time.
fn last_written(path: &Path) -> Timestamp {
    let modified = std::fs::metadata(path).and_then(|metadata| metadata.modified());
    modified.ok().and_then(|time| Timestamp::try_from(time).ok()).unwrap_or(Timestamp::MIN)
}

/// Serves the local API on the Unix socket, and over TCP once its address can be bound.
async fn serve_api(
    config: &Config,
    name: &NodeName,
    store: &EdgeStore,
    kinds: &Arc<KindRegistry>,
    clock: ReadClock,
    (query_sender, files, node): (mpsc::Sender<status::Query>, Files, SharedNode),
    stopped: watch::Receiver<()>,
) -> anyhow::Result<JoinSet<()>> {
    let address = Address::Unix(config.api.socket.clone());
    let socket = Listener::bind(&address).await.context("open local API")?;
    set_mode(&config.api.socket, config.api.socket_mode)?;
    let api = &config.api;
    let tokens = Tokens::prepare(&api.kubeconfig).context("prepare tokens of the local API")?;
    let objects = EdgeObjects::new(store.clone(), kinds.clone(), name, api.watch_buffer, clock, node);
    let objects = Arc::new(objects);
    let (state, listening) = watch::channel(ListenState::default());
    let extension = StatusExtension::new(query_sender, files, listening, store.clone());
    let server = Server::new(objects.clone(), extension, tokens.access(), Limits::edge());
    let mut tasks = JoinSet::new();
    let (until, store) = (until_stopped(stopped.clone()), store.clone());
    tasks.spawn(async move {
        tokio::select! {
            () = objects.release_periodically() => {}
            () = seal::rotate_worn(&store) => {}
            () = until => {}
        }
    });
    if let Some(address) = api.listen {
        let (server, stopped) = (Arc::clone(&server), stopped.clone());
        tasks.spawn(async move {
            let listener = tokio::select! {
                listener = listening::listen(address, &tokens, &state) => listener,
                () = until_stopped(stopped.clone()) => return,
            };
            server.serve(listener, until_stopped(stopped)).await;
        });
    }
    tasks.spawn(async move { server.serve(socket, until_stopped(stopped)).await });
    Ok(tasks)
}

/// Completes when the sender is dropped.
async fn until_stopped(mut stopped: watch::Receiver<()>) {
    let _ = stopped.changed().await;
}

fn set_mode(path: &Path, mode: u32) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .with_context(|| format!("set mode of {}", path.display()))
}

/// Returns the store's options as configured.
pub(crate) fn store_options(config: &Config) -> EdgeOptions {
    let mut options = EdgeOptions::default();
    let store = &config.store;
    options.engine.cache_kib = u32::try_from(store.cache_size / 1024).unwrap_or(u32::MAX);
    options.engine.wal_bytes = store.wal_size;
    options.engine.max_bytes = Some(store.max_size);
    options.flush_after = store.flush_interval;
    options.outbox = outbox_limits(config);
    options.seal = Some(seal::options(config));
    // Without a scrub the digest is still recomputed at the start.
    options.check_every = store.scrub_interval.unwrap_or(Duration::MAX / 4);
    options
}

/// Starts the configured link, and the renewal of the certificate beside it.
async fn connect(
    config: &Config,
    node: &NodeName,
    identity: Option<&mut NodeIdentity>,
    store: &EdgeStore,
) -> anyhow::Result<(LinkHandle, mpsc::Receiver<LinkEvent>, Wire)> {
    let last_good = last_good(store).await;
    let identity = match identity {
        Some(identity) => {
            identity.start_renewal(config, last_good.clone())?;
            Some(&*identity)
        }
        None => None,
    };
    let dialer = dialer(&config.link, last_good)?;
    match config.link_type {
        LinkType::Mqtt => {
            let topics = Topics::new(&config.link.prefix)?;
            let mut options = mqtt_options(config, node, &topics, identity)?;
            options.dialer = dialer;
            let (link, link_events) = Link::spawn(options);
            Ok((link, link_events, Wire::Mqtt(topics)))
        }
        LinkType::KubeEdge => {
            let mut options = kubeedge_options(config)?;
            options.dialer = dialer;
            if config.peer().tls {
                let identity = identity.context(
                    "kubeedge.url requires TLS, and the node has no identity; hint: 'edgesync join'",
                )?;
                options.tls = Some(identity.tls());
            }
            let wire = Wire::kubeedge(config, node, store).await;
            let (link, link_events) = edgesync_kubeedge::link::spawn(options);
            Ok((link, link_events, wire))
        }
    }
}

/// Returns the peer and the addresses that worked last, which the database keeps. Without a
/// readable value the link starts with none.
async fn last_good(store: &EdgeStore) -> LastGood {
    let stored = store.note(LAST_GOOD).await.unwrap_or_else(|error| {
        tracing::debug!(%error, "last good addresses not read");
        None
    });
    let (store, is_stored) = (store.clone(), AtomicBool::new(stored.is_some()));
    LastGood::new(stored.as_deref(), move |text| {
        // The first one is worth a write of its own. Later ones join others: the addresses of a
        // name may change with each connection.
        if is_stored.swap(true, Ordering::Relaxed) {
            return store.keep_note(LAST_GOOD, text);
        }
        let store = store.clone();
        tokio::spawn(async move {
            if let Err(error) = store.post(vec![OutboxWrite::Metadata(LAST_GOOD, text)]).await {
                tracing::debug!(%error, "last good address not stored");
            }
        });
    })
}

fn mqtt_options(
    config: &Config,
    node: &NodeName,
    topics: &Topics,
    identity: Option<&NodeIdentity>,
) -> anyhow::Result<LinkOptions> {
    let mut options = configured_link(&config.link)?;
    options.tls = match (config.link.broker.uses_tls(), identity, &config.link.ca_file) {
        (false, ..) => None,
        (true, Some(identity), _) => Some(identity.tls()),
        (true, None, file) => {
            let trust = file.as_deref().map(read_trust).transpose()?;
            let trust = trust
                .context("link.broker requires TLS, and the node has neither an identity nor link.ca_file; hint: 'edgesync join'")?;
            Some(tls::Client::new(&trust, None, tls::Clock::system([last_written(&config.store.path)]))?)
        }
    };
    // A broker that authorizes by node does so by user name.
    options.username.get_or_insert_with(|| node.to_string());
    options.subscriptions = vec![topics.down(node), topics.cloud()];
    options.own_topic = Some(topics.presence(node));
    options.compact = Some(CompactTopics::new(topics, node));
    options.introduce = Presence::introduce(topics.clone(), node.to_string());
    // Received messages that wait for the store are bounded by the cloud's in-flight window.
    options.queue = 64;
    options.queue_bytes = config.link.max_frame.max(1 << 20);
    options.events = 64;
    Ok(options)
}

fn edge_config(config: &Config) -> EdgeConfig {
    let max_frame = match config.link_type {
        LinkType::Mqtt => config.link.max_frame,
        // The bridge splits frames: each item becomes a message.
        LinkType::KubeEdge => config.kubeedge.max_message,
    };
    EdgeConfig {
        node: config.node.name.clone(),
        agent: VERSION.into(),
        max_frame: u32::try_from(max_frame).unwrap_or(u32::MAX),
        max_object: u32::try_from(config.sync.max_object).unwrap_or(u32::MAX),
        hello_timeout: config.sync.hello_timeout,
        report_timeout: config.sync.report_timeout,
        retry_max: config.link.backoff_max.max(config.sync.hello_timeout),
        report_attempts: 4,
        max_applying: 8,
        lease_interval: config.lease.interval,
        lease_duration: config.lease.duration,
        patches: config.link_type == LinkType::Mqtt,
    }
}

#[cfg(test)]
mod tests;
