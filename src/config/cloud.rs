//! The cloud side's configuration: `config/edgesync-cloud.toml`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::slot::Keys;
use super::units::{self, GIB, KIB, MIB, hours, minutes, ordered, seconds, show_duration, show_size};
use super::{BrokerUrl, Link, Log, Placement, Review, Settings};
use crate::object::name;

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
    /// How nodes join.
    pub pairing: Pairing,
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
    /// Whether the embedded endpoint demands TLS and certificates.
    pub tls: Tls,
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

/// Whether somebody must come with TLS and a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// Where other machines can connect.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never; only on a loopback address.
    Off,
}

const TLS: &[(&str, Tls)] = &[("auto", Tls::Auto), ("on", Tls::On), ("off", Tls::Off)];

impl Tls {
    /// Whether TLS and certificates are demanded at an address.
    #[must_use]
    pub fn at(self, address: SocketAddr) -> bool {
        match self {
            Self::Auto => !address.ip().to_canonical().is_loopback(),
            Self::On => true,
            Self::Off => false,
        }
    }

    /// Without TLS nobody is told apart, so only this machine may connect.
    fn check(self, listen: (&'static str, SocketAddr), key: &'static str, review: &mut Review<'_>) {
        if self == Self::Off && Self::Auto.at(listen.1) {
            let message = format!(
                "{key} = \"off\" lets everybody in who reaches {} = \"{}\": use \"auto\", which demands a certificate \
                 there, or a loopback address",
                listen.0, listen.1
            );
            review.conflict(&[key, listen.0], message);
        }
    }
}

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

/// How nodes join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairing {
    /// Address of the join service; none for no joining.
    pub listen: Option<SocketAddr>,
    /// Where keys and certificates are; after loading never empty.
    pub directory: PathBuf,
    /// Host names and addresses by which nodes reach this machine, beside the host name.
    pub names: Vec<String>,
    /// What nodes are told of the broker; none for what follows from the rest.
    pub broker_url: Option<BrokerUrl>,
    /// How long certificates of nodes are good.
    pub certificate_lifetime: Duration,
    /// How long after its end a certificate may still be renewed.
    pub renewal_grace: Duration,
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
    /// Whether the API demands TLS and certificates.
    pub tls: Tls,
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
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8883)),
            tls: Tls::Auto,
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

impl Default for Pairing {
    fn default() -> Self {
        Self {
            listen: Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 10_002))),
            directory: PathBuf::new(),
            names: Vec::new(),
            broker_url: None,
            certificate_lifetime: hours(365 * 24),
            renewal_grace: hours(90 * 24),
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
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 10_551)), tls: Tls::Auto, max_body: 32 << 20 }
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
        let Self { mode, listen, tls, max_connections, queue } = self;
        keys.section("broker");
        keys.fixed("mode", units::choice(mode, MODES));
        keys.fixed("listen", units::address(listen));
        keys.fixed("tls", units::choice(tls, TLS));
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

impl Pairing {
    fn bind(&mut self, keys: &mut dyn Keys) {
        let Self { listen, directory, names, broker_url, certificate_lifetime, renewal_grace } = self;
        keys.section("pairing");
        keys.fixed("listen", units::address_or_off(listen));
        keys.fixed("directory", units::path_or_derived(directory));
        let what = "a list of host names and addresses such as [\"cloud.example\", \"192.0.2.1\"]";
        keys.fixed("names", units::words(names, what, check_host));
        let url = "a broker address such as \"mqtts://broker.example:8883\", or \"\"";
        let parse = |text: &str| match text {
            "" => Ok(None),
            text => BrokerUrl::parse(text).map(Some),
        };
        let show = |value: &Option<BrokerUrl>| value.as_ref().map_or(String::new(), BrokerUrl::to_string);
        keys.fixed("broker_url", units::text(broker_url, url, parse, show));
        let lifetime = minutes(1)..=hours(24 * 3650);
        keys.live("certificate_lifetime", units::duration(certificate_lifetime, lifetime));
        keys.live("renewal_grace", units::duration(renewal_grace, seconds(0)..=hours(24 * 3650)));
    }
}

/// A host name or address.
fn check_host(text: &str) -> Result<(), String> {
    if text.parse::<std::net::IpAddr>().is_ok() || name::check_subdomain(text).is_ok() {
        return Ok(());
    }
    Err(format!("{text:?} is neither a host name in lower case nor an IP address"))
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
        let Self { listen, tls, max_body } = self;
        keys.section("api");
        keys.fixed("listen", units::address(listen));
        keys.fixed("tls", units::choice(tls, TLS));
        keys.fixed("max_body", units::size(max_body, 64 * KIB..=256 * MIB));
    }
}

impl Settings for Config {
    const ENV_PREFIX: &'static str = "EDGESYNC_CLOUD_";
    const ENV_OTHERS: &'static [&'static str] =
        &["EDGESYNC_CLOUD_CONFIG", "EDGESYNC_CLOUD_SERVER", "EDGESYNC_CLOUD_KUBECONFIG"];

    fn bind(&mut self, keys: &mut dyn Keys) {
        let Self { placement, store, broker, link, sync, pairing, nodes, api, log } = self;
        placement.bind(keys);
        store.bind(keys);
        broker.bind(keys);
        link.bind(keys);
        sync.bind(keys);
        pairing.bind(keys);
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
        if self.pairing.directory.as_os_str().is_empty() {
            self.pairing.directory = self.store.path.with_file_name("pki");
            review.derived("pairing.directory", "beside store.path");
        }
        self.broker.tls.check(("broker.listen", self.broker.listen), "broker.tls", review);
        self.api.tls.check(("api.listen", self.api.listen), "api.tls", review);
        if self.broker.mode == BrokerMode::Embedded && review.is_set("link.broker") {
            review.warn("link.broker is not used: broker.mode is \"embedded\"");
        }
        let listens = [
            ("broker.listen", (self.broker.mode == BrokerMode::Embedded).then_some(self.broker.listen)),
            ("api.listen", Some(self.api.listen)),
            ("pairing.listen", self.pairing.listen),
        ];
        for (number, (one, address)) in listens.iter().enumerate() {
            for (other, same) in &listens[number + 1..] {
                if let (Some(address), true) = (address, address == same)
                    && address.port() != 0
                {
                    let message = format!("{one} and {other} must not both be {address}");
                    review.conflict(&[one, other], message);
                }
            }
        }
    }
}
