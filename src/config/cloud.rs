//! The cloud side's configuration: `config/edgesync-cloud.toml`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::slot::Keys;
use super::units::{self, GIB, KIB, MIB, hours, minutes, ordered, seconds, show_duration, show_size};
use super::{Link, Log, Placement, Review, Settings};

/// The cloud side's configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// Which objects belong on which nodes.
    pub placement: Placement,
    /// Where and how objects are kept.
    pub store: Store,
    /// Who serves MQTT.
    pub broker: Broker,
    /// The connection to an external broker; its prefix and frame limit count for the embedded one too.
    pub link: Link,
    /// Windows, times and guards of the sync protocol.
    pub sync: Sync,
    /// What is kept of the nodes.
    pub nodes: Nodes,
    /// The API for operators.
    pub api: Api,
    /// The log.
    pub log: Log,
}

/// Where and how objects are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// The database file.
    pub path: PathBuf,
    /// How many past changes are kept for watches that resume.
    pub history: u64,
    /// SQLite's page cache of each connection, in bytes.
    pub cache_size: u64,
    /// Size of the write-ahead log at which it is copied into the database, in bytes.
    pub wal_size: u64,
}

/// Who serves MQTT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    /// The embedded endpoint or an external broker.
    pub mode: BrokerMode,
    /// Address of the embedded endpoint.
    pub listen: SocketAddr,
    /// Largest number of connections to the embedded endpoint.
    pub max_connections: usize,
    /// Largest number of bytes that wait for one slow client of the embedded endpoint.
    pub queue: usize,
}

/// The embedded endpoint or an external broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokerMode {
    /// This process serves MQTT itself.
    Embedded,
    /// `[link]` says where the broker is.
    External,
}

const MODES: &[(&str, BrokerMode)] =
    &[("embedded", BrokerMode::Embedded), ("external", BrokerMode::External)];

const WHY_LOOPBACK: &str = "this version has no certificates to tell nodes apart, so nobody else may connect; for nodes \
                            on other machines use mode = \"external\" and a broker with authentication";
const WHY_LOOPBACK_API: &str =
    "this version has no certificates to tell operators apart; use a tunnel such as ssh -L";

/// Windows, times and guards of the sync protocol.
#[derive(Clone, Debug, PartialEq)]
pub struct Sync {
    /// Largest number of objects sent to a node and not reported yet.
    pub window_objects: usize,
    /// Largest number of bytes sent to a node and not reported yet.
    pub window_bytes: usize,
    /// Largest number of objects in a frame.
    pub frame_objects: usize,
    /// First wait before an unreported object is sent again.
    pub resend_min: Duration,
    /// Longest wait before an unreported or rejected object is sent again.
    pub resend_max: Duration,
    /// Frames of at least this size are compressed; `None` for never.
    pub compress_above: Option<usize>,
    /// Whether `metadata.managedFields` is left out of what is sent.
    pub strip_managed_fields: bool,
    /// Share of a node's objects above which deletions after a change of incarnation wait for a
    /// confirmation.
    pub mass_delete_share: f64,
    /// Number of deletions that never need a confirmation.
    pub mass_delete_min: usize,
}

/// What is kept of the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// How often renewed Leases are written.
    pub lease_flush: Duration,
    /// How long an Event is kept after its last change.
    pub event_ttl: Duration,
    /// Whether `/metrics` has gauges for each node.
    pub metrics_per_node: bool,
}

/// The API for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Api {
    /// Address of the HTTP API.
    pub listen: SocketAddr,
    /// Largest request body, in bytes.
    pub max_body: usize,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            path: "/var/lib/edgesync-cloud/cloud.db".into(),
            history: 10_000,
            cache_size: 8 * MIB,
            wal_size: 16 * MIB,
        }
    }
}

impl Default for Broker {
    fn default() -> Self {
        Self {
            mode: BrokerMode::Embedded,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 1883)),
            max_connections: 20_000,
            queue: 4 << 20,
        }
    }
}

impl Default for Sync {
    fn default() -> Self {
        Self {
            window_objects: 1024,
            window_bytes: 1 << 20,
            frame_objects: 128,
            resend_min: seconds(5),
            resend_max: minutes(5),
            compress_above: Some(1 << 10),
            strip_managed_fields: true,
            mass_delete_share: 0.1,
            mass_delete_min: 10,
        }
    }
}

impl Default for Nodes {
    fn default() -> Self {
        Self { lease_flush: seconds(5), event_ttl: hours(1), metrics_per_node: true }
    }
}

impl Default for Api {
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 10_551)), max_body: 32 << 20 }
    }
}

impl Store {
    fn bind(&mut self, keys: &mut dyn Keys) {
        let Self { path, history, cache_size, wal_size } = self;
        keys.section("store");
        keys.fixed("path", units::path(path));
        keys.live("history", units::count(history, 100..=10_000_000));
        keys.fixed("cache_size", units::size(cache_size, 64 * KIB..=16 * GIB));
        keys.fixed("wal_size", units::size(wal_size, 64 * KIB..=GIB));
    }
}

impl Broker {
    fn bind(&mut self, keys: &mut dyn Keys) {
        let Self { mode, listen, max_connections, queue } = self;
        keys.section("broker");
        keys.fixed("mode", units::choice(mode, MODES));
        keys.fixed("listen", units::loopback(listen, WHY_LOOPBACK));
        keys.fixed("max_connections", units::count(max_connections, 1..=1_000_000));
        keys.fixed("queue", units::size(queue, 64 * KIB..=256 * MIB));
    }
}

impl Sync {
    fn bind(&mut self, keys: &mut dyn Keys) {
        let Self {
            window_objects,
            window_bytes,
            frame_objects,
            resend_min,
            resend_max,
            compress_above,
            strip_managed_fields,
            mass_delete_share,
            mass_delete_min,
        } = self;
        keys.section("sync");
        keys.live("window_objects", units::count(window_objects, 1..=65_536));
        keys.live("window_bytes", units::size(window_bytes, 4 * KIB..=GIB));
        keys.live("frame_objects", units::count(frame_objects, 1..=4096));
        keys.live("resend_min", units::duration(resend_min, Duration::from_millis(100)..=hours(1)));
        keys.live("resend_max", units::duration(resend_max, Duration::from_millis(100)..=hours(24)));
        keys.live("compress_above", units::size_or_never(compress_above, 0..=16 * MIB));
        keys.live("strip_managed_fields", units::flag(strip_managed_fields));
        keys.live("mass_delete_share", units::share(mass_delete_share));
        keys.live("mass_delete_min", units::count(mass_delete_min, 0..=1_000_000));
    }

    fn check(&self, link: &Link, review: &mut Review<'_>) {
        let orders = [
            ordered(
                ("sync.resend_min", self.resend_min),
                ("sync.resend_max", self.resend_max),
                show_duration,
            )
            .map_err(|message| (["sync.resend_min", "sync.resend_max"], message)),
            ordered(
                ("sync.frame_objects", self.frame_objects),
                ("sync.window_objects", self.window_objects),
                |count| count.to_string(),
            )
            .map_err(|message| (["sync.frame_objects", "sync.window_objects"], message)),
            ordered(
                ("link.max_frame", link.max_frame as u64),
                ("sync.window_bytes", self.window_bytes as u64),
                show_size,
            )
            .map_err(|message| (["link.max_frame", "sync.window_bytes"], message)),
        ];
        for (keys, message) in orders.into_iter().filter_map(Result::err) {
            review.conflict(&keys, message);
        }
    }
}

impl Nodes {
    fn bind(&mut self, keys: &mut dyn Keys) {
        let Self { lease_flush, event_ttl, metrics_per_node } = self;
        keys.section("nodes");
        keys.live("lease_flush", units::duration(lease_flush, Duration::from_millis(100)..=minutes(1)));
        keys.live("event_ttl", units::duration(event_ttl, minutes(1)..=hours(24 * 365)));
        keys.live("metrics_per_node", units::flag(metrics_per_node));
    }
}

impl Api {
    fn bind(&mut self, keys: &mut dyn Keys) {
        let Self { listen, max_body } = self;
        keys.section("api");
        keys.fixed("listen", units::loopback(listen, WHY_LOOPBACK_API));
        keys.fixed("max_body", units::size(max_body, 64 * KIB..=256 * MIB));
    }
}

impl Settings for Config {
    const ENV_PREFIX: &'static str = "EDGESYNC_CLOUD_";
    const ENV_OTHERS: &'static [&'static str] = &["EDGESYNC_CLOUD_CONFIG", "EDGESYNC_CLOUD_SERVER"];

    fn bind(&mut self, keys: &mut dyn Keys) {
        let Self { placement, store, broker, link, sync, nodes, api, log } = self;
        placement.bind(keys);
        store.bind(keys);
        broker.bind(keys);
        link.bind(keys);
        sync.bind(keys);
        nodes.bind(keys);
        api.bind(keys);
        log.bind(keys);
    }

    fn log(&self) -> &Log {
        &self.log
    }

    fn complete(&mut self, review: &mut Review<'_>) {
        if self.link.client_id.is_empty() {
            "edgesync-cloud".clone_into(&mut self.link.client_id);
            review.derived("link.client_id", "the program's name");
        }
        self.link.check(review);
        self.sync.check(&self.link, review);
        if self.broker.mode == BrokerMode::Embedded && review.is_set("link.broker") {
            review.warn("link.broker is not used: broker.mode is \"embedded\"");
        }
        if self.broker.listen == self.api.listen && self.api.listen.port() != 0 {
            let message = format!("broker.listen and api.listen must not both be {}", self.api.listen);
            review.conflict(&["broker.listen", "api.listen"], message);
        }
    }
}
