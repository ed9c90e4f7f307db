//! The agent's configuration: `config/edgesync.toml`.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::host::host_name;
use super::slot::Keys;
use super::units::{self, GIB, KIB, MIB, TIB, hours, minutes, seconds};
use super::{Files, JoinUrl, KubeEdge, Link, LinkType, Log, Review, Settings};
use crate::section;
use edgesync_object::name;

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
    /// Which objects become which files.
    pub files: Files,
    /// Who writes them.
    pub helper: Helper,
    /// The log.
    pub log: Log,
}

section! {
    /// Who this node is.
    #[derive(Eq)]
    pub struct Node in "node";
    /// Node name: a DNS-1123 subdomain; after loading never empty.
    name: String = String::new(), fixed units::text(name, "a node name", parse_name, String::clone);
    /// Labels by which the cloud side places objects.
    labels: BTreeMap<String, String> = BTreeMap::new(), fixed units::labels(labels);
}

section! {
    /// Where and how objects are kept.
    #[derive(Eq)]
    pub struct Store in "store";
    /// The database file.
    path: PathBuf = "/var/lib/edgesync/edgesync.db".into(), fixed units::path(path);
    /// Largest size of the database with its log, in bytes.
    max_size: u64 = GIB, fixed units::size(max_size, MIB..=TIB);
    /// SQLite's page cache of each connection, in bytes.
    cache_size: u64 = 512 * KIB, fixed units::size(cache_size, 64 * KIB..=GIB);
    /// Size of the write-ahead log at which it is copied into the database, in bytes.
    wal_size: u64 = 4 * MIB, fixed units::size(wal_size, 64 * KIB..=256 * MIB);
    /// How often the confirmed revision is written when nothing else is.
    flush_interval: Duration = seconds(30), live units::duration(flush_interval, seconds(1)..=hours(1));
    /// How often checksums and digest are recomputed when idle; `None` for never.
    scrub_interval: Option<Duration> = Some(hours(24)),
        live units::duration_or_never(scrub_interval, minutes(1)..=hours(24 * 365));
}

section! {
    /// Key and certificates of the node, as `edgesync join` writes them.
    #[derive(Eq)]
    pub struct Identity in "identity";
    /// The directory with `ca.crt` and `node.pem`; none before the node has joined.
    directory: Option<PathBuf> = None, fixed units::optional_path(directory);
    /// The join service, where the certificate is renewed: `https://HOST:PORT`; empty for nowhere.
    cloud: Option<JoinUrl> = None, fixed units::optional(cloud, JOIN_SERVICE, parse_join_url);
}

section! {
    /// What is unreadable in the database without a key.
    #[derive(Eq)]
    pub struct Seal in "seal";
    /// Kinds whose objects are sealed, beside Secrets.
    kinds: Vec<String> = vec!["secrets".to_owned()], fixed units::words(kinds, KINDS, check_kind);
    /// The file with the keys; after loading never empty.
    key_file: PathBuf = PathBuf::new(), fixed units::path_or_derived(key_file);
    /// Whether the agent starts only with the credential that wraps the keys.
    require_credential: bool = false, fixed units::flag(require_credential);
}

section! {
    /// Limits and times of the sync protocol.
    #[derive(Eq)]
    pub struct Sync in "sync";
    /// Largest object that is accepted, in bytes of JSON.
    max_object: usize = 8 << 20, live units::size(max_object, KIB..=64 * MIB);
    /// Frames of at least this size are compressed; `None` for never.
    compress_above: Option<usize> = Some(1 << 10), live units::size_or_never(compress_above, 0..=16 * MIB);
    /// How long the cloud may take to answer a Hello.
    hello_timeout: Duration = seconds(10), live units::duration(hello_timeout, seconds(1)..=minutes(10));
    /// How long the cloud may take to confirm a report.
    report_timeout: Duration = seconds(10), live units::duration(report_timeout, seconds(1)..=minutes(10));
}

section! {
    /// The node's Lease.
    #[derive(Eq)]
    pub struct Lease in "lease";
    /// How often it is renewed.
    interval: Duration = seconds(10), live units::duration(interval, seconds(1)..=hours(1));
    /// How long it is good without renewal.
    duration: Duration = seconds(40), live units::duration(duration, seconds(2)..=hours(24));
}

section! {
    /// What waits for the cloud.
    #[derive(Eq)]
    pub struct Outbox in "outbox";
    /// Most items that wait.
    max_items: u64 = 10_000, live units::count(max_items, 100..=1_000_000);
    /// Most bytes of items that wait.
    max_size: u64 = 8 * MIB, live units::size(max_size, 256 * KIB..=GIB);
}

section! {
    /// Events of the agent.
    #[derive(Eq)]
    pub struct Events in "events";
    /// How many Events of one source may come at once.
    burst: u32 = 25, live units::count(burst, 1..=10_000);
    /// After how long a source may have one more.
    refill: Duration = minutes(1), live units::duration(refill, Duration::from_millis(1)..=hours(24));
}

section! {
    /// What may be sent and received.
    #[derive(Eq)]
    pub struct Traffic in "traffic";
    /// Bytes in both directions within a day (UTC); `None` for any number.
    daily_budget: Option<u64> = None, live units::size_or_never(daily_budget, 100 * KIB..=TIB);
}

section! {
    /// The local API.
    #[derive(Eq)]
    pub struct Api in "api";
    /// The Unix socket.
    socket: PathBuf = "/run/edgesync/edgesync.sock".into(), fixed units::path(socket);
    /// Permission bits of the socket.
    socket_mode: u32 = 0o660, fixed units::file_mode(socket_mode);
    /// The TCP address on loopback; `None` for none.
    listen: Option<SocketAddr> = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 10550))),
        fixed units::loopback_or_off(listen, WHY_LOOPBACK);
    /// The file for `kubectl`, beside which the tokens are; after loading never empty.
    kubeconfig: PathBuf = PathBuf::new(), fixed units::path_or_derived(kubeconfig);
    /// Changes kept in memory for those who watch, in bytes.
    watch_buffer: usize = 1 << 20, fixed units::size(watch_buffer, 64 * KIB..=64 * MIB);
}

section! {
    /// Who writes files and reloads programs.
    #[derive(Eq)]
    pub struct Helper in "helper";
    /// Where it listens for the agent.
    socket: PathBuf = "/run/edgesync-files.sock".into(), fixed units::path(socket);
    /// The directory in which it keeps what it has written where.
    state: PathBuf = "/var/lib/edgesync-files".into(), fixed units::path(state);
    /// The program that reloads units.
    systemctl: PathBuf = "/usr/bin/systemctl".into(), fixed units::path(systemctl);
}

const JOIN_SERVICE: &str = "the address of a join service such as \"https://cloud.example:10002\", or \"\"";
const KINDS: &str = "a list of kinds such as [\"secrets\", \"widgets.example.com\"]";
const WHY_LOOPBACK: &str = "the local API is without TLS, so what is sent over a network could be read there; use a \
                            tunnel such as ssh -L";

impl Node {
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
            files,
            helper,
            log,
        } = self;
        // What stands at the top level comes before all sections.
        files.bind(keys);
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
        helper.bind(keys);
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
        if let Err(message) = edgesync_files::rule::ordered(&self.files.rules) {
            review.conflict(&["files"], message);
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

fn parse_join_url(text: &str) -> Result<JoinUrl, String> {
    text.parse().map_err(|problem: String| format!("must be {JOIN_SERVICE}: {problem}"))
}

fn parse_name(text: &str) -> Result<String, String> {
    if !text.is_empty() {
        name::check_subdomain(text)?;
    }
    Ok(text.to_owned())
}
