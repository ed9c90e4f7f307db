//! The agent's configuration: `config/edgesync.toml`.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::host::host_name;
use super::slot::Keys;
use super::units::{self, GIB, KIB, MIB, TIB, hours, minutes, seconds};
use super::{JoinUrl, KubeEdge, Link, LinkType, Log, Review, Settings};
use crate::object::name;

/// The agent's configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// Who this node is.
    pub node: Node,
    /// Where and how objects are kept.
    pub store: Store,
    /// What connects the node with its cloud.
    pub link_type: LinkType,
    /// The connection to the broker; its times between attempts are for both types.
    pub link: Link,
    /// The connection to CloudCore.
    pub kubeedge: KubeEdge,
    /// Key and certificates of the node.
    pub identity: Identity,
    /// What is unreadable in the database without a key.
    pub seal: Seal,
    /// Limits and times of the sync protocol.
    pub sync: Sync,
    /// The node's Lease.
    pub lease: Lease,
    /// What waits for the cloud.
    pub outbox: Outbox,
    /// Events of the agent.
    pub events: Events,
    /// What may be sent and received.
    pub traffic: Traffic,
    /// The local API.
    pub api: Api,
    /// The log.
    pub log: Log,
}

/// Who this node is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Node name: a DNS-1123 subdomain; after loading never empty.
    pub name: String,
    /// Labels by which the cloud side places objects.
    pub labels: BTreeMap<String, String>,
}

/// Where and how objects are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// The database file.
    pub path: PathBuf,
    /// Largest size of the database, in bytes.
    pub max_size: u64,
    /// SQLite's page cache of each connection, in bytes.
    pub cache_size: u64,
    /// Size of the write-ahead log at which it is copied into the database, in bytes.
    pub wal_size: u64,
    /// How often the confirmed revision is written when nothing else is.
    pub flush_interval: Duration,
    /// How often checksums and digest are recomputed when idle; `None` for never.
    pub scrub_interval: Option<Duration>,
}

/// Key and certificates of the node, as `edgesync join` writes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The directory with `ca.crt` and `node.pem`; none before the node has joined.
    pub directory: Option<PathBuf>,
    /// The join service, where the certificate is renewed: `https://HOST:PORT`; empty for nowhere.
    pub cloud: Option<JoinUrl>,
}

/// What is unreadable in the database without a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Kinds whose objects are sealed, beside Secrets.
    pub kinds: Vec<String>,
    /// The file with the keys; after loading never empty.
    pub key_file: PathBuf,
}

/// Limits and times of the sync protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sync {
    /// Largest object that is accepted, in bytes of JSON.
    pub max_object: usize,
    /// Frames of at least this size are compressed; `None` for never.
    pub compress_above: Option<usize>,
    /// How long the cloud may take to answer a Hello.
    pub hello_timeout: Duration,
    /// How long the cloud may take to confirm a report.
    pub report_timeout: Duration,
}

/// The node's Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// How often it is renewed.
    pub interval: Duration,
    /// How long it is good without renewal.
    pub duration: Duration,
}

/// What waits for the cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outbox {
    /// Most items that wait.
    pub max_items: u64,
    /// Most bytes of items that wait.
    pub max_size: u64,
}

/// Events of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Events {
    /// How many Events of one source may come at once.
    pub burst: u32,
    /// After how long a source may have one more.
    pub refill: Duration,
}

/// What may be sent and received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes in both directions within a day (UTC); `None` for any number.
    pub daily_budget: Option<u64>,
}

/// The local API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Api {
    /// The Unix socket.
    pub socket: PathBuf,
    /// Permission bits of the socket.
    pub socket_mode: u32,
    /// The TCP address on loopback; `None` for none.
    pub listen: Option<SocketAddr>,
    /// The file for `kubectl`, beside which the tokens are; after loading never empty.
    pub kubeconfig: PathBuf,
    /// Changes kept in memory for those who watch, in bytes.
    pub watch_buffer: usize,
}

const WHY_LOOPBACK: &str = "the local API is without TLS, so what is sent over a network could be read there; use a \
                            tunnel such as ssh -L";

impl Default for Store {
    fn default() -> Self {
        Self {
            path: "/var/lib/edgesync/edgesync.db".into(),
            max_size: GIB,
            cache_size: 512 * KIB,
            wal_size: 4 * MIB,
            flush_interval: seconds(30),
            scrub_interval: Some(hours(24)),
        }
    }
}

impl Default for Seal {
    fn default() -> Self {
        Self { kinds: vec!["secrets".to_owned()], key_file: PathBuf::new() }
    }
}

impl Default for Sync {
    fn default() -> Self {
        Self {
            max_object: 8 << 20,
            compress_above: Some(1 << 10),
            hello_timeout: seconds(10),
            report_timeout: seconds(10),
        }
    }
}

impl Default for Lease {
    fn default() -> Self {
        Self { interval: seconds(10), duration: seconds(40) }
    }
}

impl Default for Outbox {
    fn default() -> Self {
        Self { max_items: 10_000, max_size: 8 * MIB }
    }
}

impl Default for Events {
    fn default() -> Self {
        Self { burst: 25, refill: minutes(1) }
    }
}

impl Default for Api {
    fn default() -> Self {
        Self {
            socket: "/run/edgesync/edgesync.sock".into(),
            socket_mode: 0o660,
            listen: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 10550))),
            kubeconfig: PathBuf::new(),
            watch_buffer: 1 << 20,
        }
    }
}

impl Node {
    fn bind(&mut self, keys: &mut dyn Keys) {
        let Self { name, labels } = self;
        keys.section("node");
        keys.fixed("name", units::text(name, "a node name", parse_name, String::clone));
        keys.fixed("labels", units::labels(labels));
    }

    /// Takes the host name where the configuration gives no name.
    fn complete(&mut self, review: &mut Review<'_>) {
        if !self.name.is_empty() {
            return;
        }
        let host = host_name();
        match name::check_subdomain(&host) {
            Ok(()) => {
                self.name = host;
                review.derived("node.name", "the host name");
            }
            Err(problem) => review.conflict(
                &["node.name"],
                format!("node.name must be set, because the host name is no node name: it {problem}"),
            ),
        }
    }
}

impl Store {
    fn bind(&mut self, keys: &mut dyn Keys) {
        let Self { path, max_size, cache_size, wal_size, flush_interval, scrub_interval } = self;
        keys.section("store");
        keys.fixed("path", units::path(path));
        keys.fixed("max_size", units::size(max_size, MIB..=TIB));
        keys.fixed("cache_size", units::size(cache_size, 64 * KIB..=GIB));
        keys.fixed("wal_size", units::size(wal_size, 64 * KIB..=256 * MIB));
        keys.live("flush_interval", units::duration(flush_interval, seconds(1)..=hours(1)));
        keys.live("scrub_interval", units::duration_or_never(scrub_interval, minutes(1)..=hours(24 * 365)));
    }
}

impl Identity {
    fn bind(&mut self, keys: &mut dyn Keys) {
        let Self { directory, cloud } = self;
        keys.section("identity");
        keys.fixed("directory", units::optional_path(directory));
        let what = "the address of a join service such as \"https://cloud.example:10002\", or \"\"";
        let parse = |text: &str| match text {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|problem: String| format!("must be {what}: {problem}")),
        };
        let show = |url: &Option<JoinUrl>| url.as_ref().map_or(String::new(), JoinUrl::to_string);
        keys.fixed("cloud", units::text(cloud, what, parse, show));
    }
}

impl Seal {
    fn bind(&mut self, keys: &mut dyn Keys) {
        let Self { kinds, key_file } = self;
        keys.section("seal");
        let what = "a list of kinds such as [\"secrets\", \"widgets.example.com\"]";
        keys.fixed("kinds", units::words(kinds, what, check_kind));
        keys.fixed("key_file", units::path_or_derived(key_file));
    }
}

impl Sync {
    fn bind(&mut self, keys: &mut dyn Keys) {
        let Self { max_object, compress_above, hello_timeout, report_timeout } = self;
        keys.section("sync");
        keys.live("max_object", units::size(max_object, KIB..=64 * MIB));
        keys.live("compress_above", units::size_or_never(compress_above, 0..=16 * MIB));
        keys.live("hello_timeout", units::duration(hello_timeout, seconds(1)..=minutes(10)));
        keys.live("report_timeout", units::duration(report_timeout, seconds(1)..=minutes(10)));
    }
}

impl Lease {
    fn bind(&mut self, keys: &mut dyn Keys) {
        let Self { interval, duration } = self;
        keys.section("lease");
        keys.live("interval", units::duration(interval, seconds(1)..=hours(1)));
        keys.live("duration", units::duration(duration, seconds(2)..=hours(24)));
    }
}

impl Outbox {
    fn bind(&mut self, keys: &mut dyn Keys) {
        let Self { max_items, max_size } = self;
        keys.section("outbox");
        keys.live("max_items", units::count(max_items, 100..=1_000_000));
        keys.live("max_size", units::size(max_size, 256 * KIB..=GIB));
    }
}

impl Events {
    fn bind(&mut self, keys: &mut dyn Keys) {
        let Self { burst, refill } = self;
        keys.section("events");
        keys.live("burst", units::count(burst, 1..=10_000));
        keys.live("refill", units::duration(refill, Duration::from_millis(1)..=hours(24)));
    }
}

impl Traffic {
    fn bind(&mut self, keys: &mut dyn Keys) {
        let Self { daily_budget } = self;
        keys.section("traffic");
        keys.live("daily_budget", units::size_or_never(daily_budget, 100 * KIB..=TIB));
    }
}

impl Api {
    fn bind(&mut self, keys: &mut dyn Keys) {
        let Self { socket, socket_mode, listen, kubeconfig, watch_buffer } = self;
        keys.section("api");
        keys.fixed("socket", units::path(socket));
        keys.fixed("socket_mode", units::file_mode(socket_mode));
        keys.fixed("listen", units::loopback_or_off(listen, WHY_LOOPBACK));
        keys.fixed("kubeconfig", units::path_or_derived(kubeconfig));
        keys.fixed("watch_buffer", units::size(watch_buffer, 64 * KIB..=64 * MIB));
    }
}

impl Settings for Config {
    const ENV_PREFIX: &'static str = "EDGESYNC_";
    const ENV_OTHERS: &'static [&'static str] =
        &["EDGESYNC_CONFIG", "EDGESYNC_SOCKET", "EDGESYNC_CLOUD_", "EDGESYNC_JOIN_", "EDGESYNC_TEST_"];

    fn bind(&mut self, keys: &mut dyn Keys) {
        let Self {
            node,
            store,
            link_type,
            link,
            kubeedge,
            identity,
            seal,
            sync,
            lease,
            outbox,
            events,
            traffic,
            api,
            log,
        } = self;
        node.bind(keys);
        store.bind(keys);
        keys.section("link");
        keys.fixed("type", units::choice(link_type, LinkType::WORDS));
        link.bind(keys);
        kubeedge.bind(keys);
        identity.bind(keys);
        seal.bind(keys);
        sync.bind(keys);
        lease.bind(keys);
        outbox.bind(keys);
        events.bind(keys);
        traffic.bind(keys);
        api.bind(keys);
        log.bind(keys);
    }

    fn log(&self) -> &Log {
        &self.log
    }

    fn complete(&mut self, review: &mut Review<'_>) {
        self.node.complete(review);
        // With a CloudCore nobody sees it.
        if self.link.client_id.is_empty() && self.link_type == LinkType::Mqtt {
            self.link.client_id.clone_from(&self.node.name);
            review.derived("link.client_id", "the node name");
        }
        if self.api.kubeconfig.as_os_str().is_empty() {
            self.api.kubeconfig = self.store.path.with_file_name("kubeconfig");
            review.derived("api.kubeconfig", "beside store.path");
        }
        if self.seal.key_file.as_os_str().is_empty() {
            self.seal.key_file = self.store.path.with_file_name("seal.key");
            review.derived("seal.key_file", "beside store.path");
        }
        match self.link_type {
            LinkType::Mqtt => self.check_mqtt(review),
            LinkType::KubeEdge => {
                self.link.check_waits(review);
                self.kubeedge.check(self.identity.directory.is_some(), review);
            }
        }
        let (interval, duration) =
            (("lease.interval", self.lease.interval), ("lease.duration", self.lease.duration));
        if let Err(message) = units::ordered(interval, duration, units::show_duration) {
            review.conflict(&[interval.0, duration.0], message);
        }
        let frame = ("link.max_frame", self.link.max_frame as u64);
        let message = ("kubeedge.max_message", self.kubeedge.max_message as u64);
        let object = ("sync.max_object", self.sync.max_object as u64);
        let size = ("store.max_size", self.store.max_size);
        let transport = match self.link_type {
            LinkType::Mqtt => (frame, object),
            LinkType::KubeEdge => (object, message),
        };
        for (low, high) in [transport, (object, size)] {
            if let Err(message) = units::ordered(low, high, units::show_size) {
                review.conflict(&[low.0, high.0], message);
            }
        }
    }
}

impl Config {
    fn check_mqtt(&self, review: &mut Review<'_>) {
        self.link.check(review);
        if self.link.broker.tls && self.link.ca_file.is_none() && self.identity.directory.is_none() {
            let message = format!(
                "nothing says which certificate {} may have: join with 'edgesync join', or set link.ca_file",
                self.link.broker
            );
            review.conflict(&["link.broker"], message);
        }
        if review.is_set("kubeedge.url") {
            review.warn("kubeedge.url is not used: link.type is \"mqtt\"");
        }
    }
}

/// A kind as in `kubectl`: plural, with the group behind a dot.
fn check_kind(text: &str) -> Result<(), String> {
    name::check_subdomain(text)
        .map_err(|problem| format!("{text:?} is no kind such as \"secrets\": it {problem}"))
}

fn parse_name(text: &str) -> Result<String, String> {
    if !text.is_empty() {
        name::check_subdomain(text)?;
    }
    Ok(text.to_owned())
}
