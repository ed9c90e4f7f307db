//! Starts the cloud side and ends it: store, endpoint or broker, fleet, API.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::{mpsc, watch};

use crate::agent::presence::CloudPresence;
use crate::agent::{configured_link, packet_limit};
use crate::api::{Access, Address, Limits, Listener, Server};
use crate::broker::{Broker, BrokerOptions, Downlink, FleetEvent, external};
use crate::cli::service::Service;
use crate::config::cloud::{BrokerMode, Config};
use crate::link::{Introduction, Publish, Topics};
use crate::store::cloud::{CloudOptions, CloudStore, HistoryLimits};
use crate::systemd::{self, Signals};

use super::admin::{Admin, Sources};
use super::fleet::Fleet;
use super::objects::CloudObjects;
use super::upkeep::Upkeep;

/// How long the end waits for an external broker to take the farewell.
const FAREWELL: Duration = Duration::from_secs(2);
/// Requests of operators that wait for the fleet.
const ADMIN_QUEUE: usize = 64;

/// Runs the cloud side until it is told to stop.
///
/// # Errors
/// What keeps it from starting: a database that is damaged or in use, an address that is taken.
pub async fn run(mut service: Service<Config>) -> anyhow::Result<()> {
    let config = service.config().clone();
    let mut signals = Signals::new().context("installing signal handlers")?;
    let store = open_store(&config).await?;
    let (requests, admin) = mpsc::channel(ADMIN_QUEUE);
    let (stop_api, mut api_stopped) = watch::channel(());
    let listener = Listener::bind(&Address::Tcp(config.api.listen)).await.context("opening the API")?;
    let address = listener.address().clone();
    let topics = Topics::new(&config.link.prefix)?;
    let (downlink, events) = open_downlink(&config, &topics).await?;
    let broker = match &downlink {
        Downlink::Embedded(broker) => format!("embedded on {}", broker.address()),
        Downlink::External(_) => config.link.broker.to_string(),
    };
    let objects = Arc::new(CloudObjects::new(store.clone()).await.context("reading the kinds")?);
    let mut fleet =
        Fleet::start(&config, Arc::clone(&objects), downlink.clone()).await.context("reading the store")?;
    let upkeep = Upkeep::start(&objects).await.context("preparing the API")?;
    let limits = Limits { body_bytes: config.api.max_body, ..Limits::cloud() };
    let sources =
        Sources { store: store.clone(), database: config.store.path.clone(), downlink: downlink.clone() };
    let server = Server::new(objects, Admin::new(requests, sources), Access::open(), limits);
    let api = tokio::spawn(async move {
        server
            .serve(listener, async move {
                let _ = api_stopped.changed().await;
            })
            .await;
    });
    tracing::info!(%address, broker, store = %config.store.path.display(), "the cloud side runs");
    systemd::ready(&format!("API on {address}, broker {broker}"));
    fleet.run(&mut service, &mut signals, events, admin).await;
    systemd::stopping("draining");
    tracing::info!("told to stop: draining");
    let farewell = CloudPresence { boot: fleet.boot().to_owned(), online: false }.to_json();
    signals
        .during(async {
            downlink.shutdown(farewell, FAREWELL).await;
            drop(stop_api);
            let _ = api.await;
            drop(upkeep);
            fleet.finish().await;
            store.close().await;
        })
        .await;
    tracing::info!("stopped");
    Ok(())
}

async fn open_store(config: &Config) -> anyhow::Result<CloudStore> {
    let path = config.store.path.clone();
    if let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    }
    let mut options = CloudOptions::default();
    options.engine.cache_kib = u32::try_from(config.store.cache_size / 1024).unwrap_or(u32::MAX);
    options.engine.wal_bytes = config.store.wal_size;
    options.history = HistoryLimits { events: config.store.history, ..options.history };
    options.max_object_bytes = options.max_object_bytes.max(config.api.max_body);
    open(&path, options).await.with_context(|| format!("opening {}", path.display()))
}

async fn open(path: &Path, options: CloudOptions) -> anyhow::Result<CloudStore> {
    let path = path.to_owned();
    Ok(tokio::task::spawn_blocking(move || CloudStore::open(&path, &options)).await??)
}

fn endpoint_options(config: &Config, topics: &Topics) -> BrokerOptions {
    let link = &config.link;
    BrokerOptions {
        topics: topics.clone(),
        tls: None,
        max_connections: config.broker.max_connections,
        max_packet: packet_limit(link.max_frame),
        queue_bytes: config.broker.queue,
        inflight: link.inflight,
        max_keepalive: link.keepalive,
        ..BrokerOptions::default()
    }
}

async fn open_downlink(
    config: &Config,
    topics: &Topics,
) -> anyhow::Result<(Downlink, mpsc::Receiver<FleetEvent>)> {
    let link = &config.link;
    match config.broker.mode {
        BrokerMode::Embedded => {
            let options = endpoint_options(config, topics);
            let (broker, events) =
                Broker::bind(config.broker.listen, options).await.context("opening the MQTT endpoint")?;
            Ok((Downlink::Embedded(broker), events))
        }
        BrokerMode::External => {
            let mut options = configured_link(link)?;
            options.queue = 1024;
            options.queue_bytes = config.broker.queue;
            options.events = 1024;
            let topic = topics.cloud();
            options.introduce = Arc::new(move |_| {
                let payload = CloudPresence { boot: String::new(), online: false }.to_json();
                let will = Publish { topic: topic.clone(), payload, retain: true };
                Introduction { will: Some(will), greetings: Vec::new() }
            });
            Ok(external(options, topics))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_keeps_to_the_keys_of_link_that_are_documented_for_it() {
        let mut config = Config::default();
        config.link.prefix = "plant/7".into();
        config.link.keepalive = Duration::from_secs(45);
        config.link.max_frame = 32 << 10;
        config.link.inflight = 7;
        let options = endpoint_options(&config, &Topics::new(&config.link.prefix).unwrap());
        assert_eq!(options.topics.prefix(), "plant/7");
        assert_eq!(options.max_keepalive, Duration::from_secs(45));
        assert_eq!((options.max_packet, options.inflight), ((32 << 10) + 2048, 7));
    }
}
