//! The agent's configuration: `config/edgesync.toml`.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::binding::Keys;
use super::files::hidden_from_helper;
use super::host::host_name;
use super::metered::{URGENCIES, check_interface};
use super::units::{self, GIB, KIB, MIB, TIB, hours, minutes, seconds};
use super::{ConnectPlan, Files, JoinUrl, KubeEdge, Link, LinkType, Log, Metered, Review, Settings};
use crate::section;
use edgesync_object::urgency::Urgency;
use edgesync_object::{name, node_labels};

/// Configuration of the agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// Identity of the node.
    pub node: Node,
    /// Settings of the local database.
    pub store: Store,
    /// Type of the link to the cloud.
    pub link_type: LinkType,
    /// Connection to the broker; its backoff applies to both link types.
    pub link: Link,
    /// Connection to a CloudCore.
    pub kubeedge: KubeEdge,
    /// Key and certificates of the node.
    pub identity: Identity,
    /// Encryption of objects in the database.
    pub seal: Seal,
    /// Limits and timeouts of the sync protocol.
    pub sync: Sync,
    /// Lease of the node.
    pub lease: Lease,
    /// Queue of items for the cloud.
    pub outbox: Outbox,
    /// Rate limit for Events of the agent.
    pub events: Events,
    /// Budget for traffic to the cloud.
    pub traffic: Traffic,
    /// Local API of the node.
    pub api: Api,
    /// Rules that derive files from objects.
    pub files: Files,
    /// Privileged helper that applies the rules.
    pub helper: Helper,
    /// Level and format of the log.
    pub log: Log,
}

section! {
    /// Identity of the node.
    #[derive(Eq)]
    pub struct Node in "node";
    /// Node name: a DNS-1123 subdomain; never empty after loading.
    name: String = String::new(), fixed units::text(name, "a node name", parse_name, String::clone);
    /// Labels that the cloud side uses for placement.
    labels: BTreeMap<String, String> = BTreeMap::new(), fixed units::labels(labels);
}

section! {
    /// Settings of the local database.
    #[derive(Eq)]
    pub struct Store in "store";
    /// Path of the database file.
    path: PathBuf = "/var/lib/edgesync/edgesync.db".into(), fixed units::path(path);
    /// Maximum size of the database with its log, in bytes.
    max_size: u64 = GIB, fixed units::size(max_size, MIB..=TIB);
    /// SQLite's page cache per connection, in bytes.
    cache_size: u64 = 512 * KIB, fixed units::size(cache_size, 64 * KIB..=GIB);
    /// Size of the write-ahead log that triggers a checkpoint, in bytes.
    wal_size: u64 = 4 * MIB, fixed units::size(wal_size, 64 * KIB..=256 * MIB);
    /// Interval at which the confirmed revision is written if nothing else is.
    flush_interval: Duration = seconds(30), live units::duration(flush_interval, seconds(1)..=hours(1));
    /// Interval at which checksums and digest are recomputed when idle; `None` for never.
    scrub_interval: Option<Duration> = Some(hours(24)),
        live units::duration_or_never(scrub_interval, minutes(1)..=hours(24 * 365));
}

section! {
    /// Key and certificates of the node, as `edgesync join` writes them.
    #[derive(Eq)]
    pub struct Identity in "identity";
    /// Directory with `ca.crt` and `node.pem`; none before the node has joined.
    directory: Option<PathBuf> = None, fixed units::optional_path(directory);
    /// Join service that renews the certificate: `https://HOST:PORT`; empty for none.
    cloud: Option<JoinUrl> = None, fixed units::optional(cloud, JOIN_SERVICE, parse_join_url);
}

section! {
    /// Encryption of objects in the database.
    #[derive(Eq)]
    pub struct Seal in "seal";
    /// Kinds whose objects are sealed, in addition to Secrets.
    kinds: Vec<String> = vec!["secrets".to_owned()], fixed units::words(kinds, KINDS, check_kind);
    /// File with the keys; never empty after loading.
    key_file: PathBuf = PathBuf::new(), fixed units::path_or_derived(key_file);
    /// Whether the agent refuses to start without the credential that wraps the keys.
    require_credential: bool = false, fixed units::flag(require_credential);
}

section! {
    /// Limits and timeouts of the sync protocol.
    #[derive(Eq)]
    pub struct Sync in "sync";
    /// Maximum size of an accepted object, in bytes of JSON.
    max_object: usize = 8 << 20, live units::size(max_object, KIB..=64 * MIB);
    /// Minimum size of compressed frames; `None` for never.
    compress_above: Option<usize> = Some(1 << 10), live units::size_or_never(compress_above, 0..=16 * MIB);
    /// Timeout for the answer to a Hello.
    hello_timeout: Duration = seconds(10), live units::duration(hello_timeout, seconds(1)..=minutes(10));
    /// Timeout for the confirmation of a report.
    report_timeout: Duration = seconds(10), live units::duration(report_timeout, seconds(1)..=minutes(10));
}

section! {
    /// Lease of the node.
    #[derive(Eq)]
    pub struct Lease in "lease";
    /// Interval between renewals of the Lease.
    interval: Duration = seconds(10), live units::duration(interval, seconds(1)..=hours(1));
    /// Duration of the Lease without renewal.
    duration: Duration = seconds(40), live units::duration(duration, seconds(2)..=hours(24));
}

section! {
    /// Queue of items for the cloud.
    #[derive(Eq)]
    pub struct Outbox in "outbox";
    /// Maximum number of queued items.
    max_items: u64 = 10_000, live units::count(max_items, 100..=1_000_000);
    /// Maximum size of the queued items in bytes.
    max_size: u64 = 8 * MIB, live units::size(max_size, 256 * KIB..=GIB);
}

section! {
    /// Rate limit for Events of the agent.
    #[derive(Eq)]
    pub struct Events in "events";
    /// Maximum burst of Events from one source.
    burst: u32 = 25, live units::count(burst, 1..=10_000);
    /// Time after which a source may emit one more.
    refill: Duration = minutes(1), live units::duration(refill, Duration::from_millis(1)..=hours(24));
}

section! {
    /// Budgets for traffic to the cloud, and limits for metered links.
    #[derive(Eq)]
    pub struct Traffic in "traffic";
    /// Maximum bytes in both directions per day (UTC); `None` for no limit.
    daily_budget: Option<u64> = None, live units::size_or_never(daily_budget, 100 * KIB..=TIB);
    /// How the agent decides whether its link is metered.
    metered: Metered = Metered::Auto, live units::choice(metered, Metered::WORDS);
    /// Interfaces that are metered: names, or begins of names with `*` after them.
    metered_interfaces: Vec<String> = vec!["wwan*".to_owned(), "ppp*".to_owned()],
        live units::words(metered_interfaces, INTERFACES, check_interface);
    /// Maximum bytes on a metered line in both directions per day (UTC); `None` for no limit.
    metered_daily_budget: Option<u64> = None, live units::size_or_never(metered_daily_budget, 100 * KIB..=TIB);
    /// The same per month.
    metered_monthly_budget: Option<u64> = None, live units::size_or_never(metered_monthly_budget, 100 * KIB..=TIB);
    /// Lowest urgency of objects that may come over a metered link.
    metered_min_urgency: Urgency = Urgency::Low, live units::choice(metered_min_urgency, URGENCIES);
    /// Maximum size of objects that may come over a metered link, in bytes of JSON.
    metered_max_object: Option<u64> = None, live units::size_or_never(metered_max_object, KIB..=64 * MIB);
    /// Minimum interval between renewals of the Lease on a metered link.
    metered_lease_interval: Duration = seconds(1),
        live units::duration(metered_lease_interval, seconds(1)..=hours(1));
}

section! {
    /// Local API of the node.
    #[derive(Eq)]
    pub struct Api in "api";
    /// Path of the Unix socket.
    socket: PathBuf = "/run/edgesync/edgesync.sock".into(), fixed units::path(socket);
    /// Permission bits of the socket.
    socket_mode: u32 = 0o660, fixed units::file_mode(socket_mode);
    /// TCP address on loopback; `None` for none.
    listen: Option<SocketAddr> = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 10550))),
        fixed units::loopback_or_off(listen, WHY_LOOPBACK);
    /// kubeconfig file for `kubectl`; the tokens are in the same directory. Never empty after
    /// loading.
    kubeconfig: PathBuf = PathBuf::new(), fixed units::path_or_derived(kubeconfig);
    /// Size of the watch cache in bytes.
    watch_buffer: usize = 1 << 20, fixed units::size(watch_buffer, 64 * KIB..=64 * MIB);
}

section! {
    /// Privileged helper that writes files and reloads programs.
    #[derive(Eq)]
    pub struct Helper in "helper";
    /// Socket on which it listens for the agent.
    socket: PathBuf = "/run/edgesync-files.sock".into(), fixed units::path(socket);
    /// Directory of its records.
    state: PathBuf = "/var/lib/edgesync-files".into(), fixed units::path(state);
    /// Path of the program that reloads units.
    systemctl: PathBuf = "/usr/bin/systemctl".into(), fixed units::path(systemctl);
    /// Longest time for which programs hold a rule, by any number of holds.
    longest_hold: Duration = hours(24), live units::duration(longest_hold, minutes(1)..=hours(24 * 30));
    /// Time without a hold after which the longest time starts again.
    hold_gap: Duration = hours(1), live units::duration(hold_gap, minutes(1)..=hours(24));
}

const JOIN_SERVICE: &str = "the address of a join service such as \"https://cloud.example:10002\", or \"\"";
const KINDS: &str = "a list of kinds such as [\"secrets\", \"widgets.example.com\"]";
const INTERFACES: &str = "a list of interfaces such as [\"wwan*\", \"ppp0\"]";
const WHY_LOOPBACK: &str =
    "the local API has no TLS and listens on loopback only; use a tunnel such as ssh -L";

impl Node {
    /// Falls back to the host name.
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
                format!("node.name must be set: the host name is not a valid node name: it {problem}"),
            ),
        }
    }
}

impl Settings for Config {
    const ENV_PREFIX: &'static str = "EDGESYNC_";
    const ENV_OTHERS: &'static [&'static str] = &[
        "EDGESYNC_CONFIG",
        "EDGESYNC_SOCKET",
        "EDGESYNC_HOLD_SOCKET",
        "EDGESYNC_CLOUD_",
        "EDGESYNC_JOIN_",
        "EDGESYNC_TEST_",
    ];

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
        // Top-level keys come before all sections.
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
        let ignored = self.node.labels.iter().filter(|(key, value)| !node_labels::may_set(key, value));
        for (key, _) in ignored {
            review.warn(format!(
                "label '{key}' of node.labels is not set on the Node: Kubernetes reserves it; an operator or the node's token \
                 may set it"
            ));
        }
        // A CloudCore does not use it.
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
        for rule in &self.files.rules {
            if let Some(why) = &rule.unknown_zone {
                review.warn(format!("rule {:?}: {why}", rule.name));
            }
            if let Some(path) = rule.unless.as_deref().filter(|path| hidden_from_helper(path)) {
                review.warn(format!(
                    "rule {:?}: unless = \"{path}\" defers nothing where systemd runs the helper: its unit does not see this \
                     file; hint: use a path below /run or /var/lib",
                    rule.name
                ));
            }
        }
        self.link.check_proxy(review);
        match self.link_type {
            LinkType::Mqtt => self.check_mqtt(review),
            LinkType::KubeEdge => {
                if self.link.connect != ConnectPlan::Always {
                    let message = "link.connect: a CloudCore knows no planned absences; use \"always\"";
                    review.conflict(&["link.connect"], message);
                }
                if self.traffic.has_metered_limits() {
                    review.warn(
                        "the limits of [traffic] for metered links are not used: a CloudCore keeps to none"
                            .to_owned(),
                    );
                }
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

impl Traffic {
    /// Returns whether anything is limited on metered links.
    #[must_use]
    pub fn has_metered_limits(&self) -> bool {
        let is_budget = self.metered_daily_budget.is_some() || self.metered_monthly_budget.is_some();
        is_budget
            || self.metered_min_urgency != Urgency::Low
            || self.metered_max_object.is_some()
            || self.metered_lease_interval > seconds(1)
    }
}

impl Config {
    /// Returns whether the device has joined: a broker, a CloudCore or an identity is configured.
    /// `is_set` returns whether a file or a variable sets a `section.key`.
    #[must_use]
    pub fn is_joined(&self, is_set: impl Fn(&str) -> bool) -> bool {
        self.link_type != LinkType::Mqtt || self.identity.directory.is_some() || is_set("link.broker")
    }

    fn check_mqtt(&self, review: &mut Review<'_>) {
        self.link.check(review);
        if self.link.broker.uses_tls() && self.link.ca_file.is_none() && self.identity.directory.is_none() {
            let message =
                format!("no trusted CA for {}; hint: 'edgesync join', or set link.ca_file", self.link.broker);
            review.conflict(&["link.broker"], message);
        }
        if review.is_set("kubeedge.url") {
            review.warn("kubeedge.url is not used: link.type is \"mqtt\"");
        }
    }
}

/// Checks a kind as in `kubectl`: plural, with the group after a dot.
fn check_kind(text: &str) -> Result<(), String> {
    name::check_subdomain(text)
        .map_err(|problem| format!("{text:?} is not a kind such as \"secrets\": it {problem}"))
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
