//! Configuration of the cloud side: `config/edgesync-cloud.toml`.

mod kubernetes;
mod listen;
mod network;
mod placement;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use edgesync_config::Keys;
use edgesync_config::section;
use edgesync_config::units::{
    self, GIB, KIB, MIB, hours, minutes, ordered, seconds, show_duration, show_size,
};
use edgesync_config::{BrokerUrl, ConnectPlan, JoinUrl, Link, Log, Review, Settings};
use edgesync_enrollment::{AdvertisedBroker, reserved_namespaces};
use edgesync_object::name;
use edgesync_placement::Naming;

pub use kubernetes::{Kubernetes, ObjectSyncs};
pub use listen::{Listen, SharedService};
pub use network::Network;
pub use placement::Placement;

/// Configuration of the cloud side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// Rules that place objects on nodes.
    pub placement: Placement,
    /// Store of the objects.
    pub store: Store,
    /// The Kubernetes cluster, if that is the store.
    pub kubernetes: Kubernetes,
    /// One address for all services.
    pub listen: Listen,
    /// MQTT endpoint or external broker.
    pub broker: Broker,
    /// Connection to an external broker; its prefix and frame limit apply to the embedded one too.
    pub link: Link,
    /// Windows, times and guards of the sync protocol.
    pub sync: Sync,
    /// Join service, and the certificates of nodes.
    pub enrollment: Enrollment,
    /// Retention of the state of nodes.
    pub nodes: Nodes,
    /// API for operators: socket, addresses and kubeconfig.
    pub api: Api,
    /// Page for browsers, and its address on this machine.
    pub page: Page,
    /// Level, format and destination of the log.
    pub log: Log,
}

section! {
    /// Store of the objects.
    #[derive(Eq)]
    pub struct Store in "store";
    /// Type of the store.
    r#type: StoreType = StoreType::Sqlite, fixed units::choice(r#type, STORES);
    /// SQLite database file; its write-ahead log is beside it.
    path: PathBuf = "/var/lib/edgesync-cloud/cloud.db".into(), fixed units::path(path);
    /// Number of past changes kept for watches that resume, of the kinds not in `history_fleet`.
    history: u64 = 10_000, fixed units::count(history, 100..=10_000_000);
    /// Number of past changes kept of each of Nodes, ObjectSyncs, Leases and Events.
    history_fleet: u64 = 10_000, fixed units::count(history_fleet, 100..=10_000_000);
    /// SQLite's page cache of each connection, in bytes.
    cache_size: u64 = 8 * MIB, fixed units::size(cache_size, 64 * KIB..=16 * GIB);
    /// Size of the write-ahead log at which it is copied into the database, in bytes.
    wal_size: u64 = 16 * MIB, fixed units::size(wal_size, 64 * KIB..=GIB);
}

/// Type of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreType {
    /// A database of this process.
    #[default]
    Sqlite,
    /// A Kubernetes cluster, from which other replicas may serve nodes too.
    Kubernetes,
}

const STORES: &[(&str, StoreType)] = &[("sqlite", StoreType::Sqlite), ("kubernetes", StoreType::Kubernetes)];

section! {
    /// MQTT endpoint or external broker.
    #[derive(Eq)]
    pub struct Broker in "broker";
    /// The embedded endpoint or an external broker.
    mode: BrokerMode = BrokerMode::Embedded, fixed units::choice(mode, MODES);
    /// Address of the embedded endpoint; `None` if nodes use `listen.address` only.
    listen: Option<SocketAddr> = Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8883))),
        fixed units::address_or_off(listen);
    /// Whether the embedded endpoint requires TLS and client certificates.
    tls: Tls = Tls::Auto, fixed units::choice(tls, TLS);
    /// Maximum number of connections to the embedded endpoint.
    max_connections: usize = 20_000, fixed units::count(max_connections, 1..=1_000_000);
    /// Maximum number of bytes queued for one slow client of the embedded endpoint.
    queue: usize = 1 << 20, fixed units::size(queue, 64 * KIB..=256 * MIB);
}

/// Embedded endpoint or external broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokerMode {
    /// This process serves MQTT itself.
    Embedded,
    /// `[link]` has the address of the broker.
    External,
}

const MODES: &[(&str, BrokerMode)] =
    &[("embedded", BrokerMode::Embedded), ("external", BrokerMode::External)];

/// Whether clients need TLS and a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// Required unless the address is loopback.
    #[default]
    Auto,
    /// Always, also on a loopback address.
    On,
    /// Never; only on a loopback address.
    Off,
}

const TLS: &[(&str, Tls)] = &[("auto", Tls::Auto), ("on", Tls::On), ("off", Tls::Off)];

impl Tls {
    /// Returns whether TLS and certificates are required at an address.
    #[must_use]
    pub fn at(self, address: SocketAddr) -> bool {
        match self {
            Self::Auto => !address.ip().to_canonical().is_loopback(),
            Self::On => true,
            Self::Off => false,
        }
    }

    /// Without TLS clients are not authenticated, so only this machine may connect.
    fn check(self, listen: (&'static str, SocketAddr), key: &'static str, review: &mut Review<'_>) {
        if self == Self::Off && Self::Auto.at(listen.1) {
            let message = format!(
                "{key} = \"off\" admits every client that reaches {} = \"{}\": use \"auto\", which requires a certificate \
                 there, or a loopback address",
                listen.0, listen.1
            );
            review.conflict(&[key, listen.0], message);
        }
    }
}

section! {
    /// Windows, times and guards of the sync protocol.
    pub struct Sync in "sync";
    /// Maximum number of objects in flight to a node: sent and not reported yet.
    window_objects: usize = 1024, live units::count(window_objects, 1..=65_536);
    /// Maximum number of bytes in flight to a node: sent and not reported yet.
    window_bytes: usize = 1 << 20, live units::size(window_bytes, 4 * KIB..=GIB);
    /// Maximum number of bytes of objects in memory, in flight to all nodes together.
    bodies: usize = 256 << 20, live units::size(bodies, 16 * MIB..=64 * GIB);
    /// Maximum number of bytes of patches in memory: updates as the difference from the version
    /// that a node holds. With 0 whole objects are sent.
    patches: usize = 32 << 20, live units::size(patches, 0..=64 * GIB);
    /// Maximum number of objects in a frame.
    frame_objects: usize = 128, live units::count(frame_objects, 1..=4096);
    /// Initial delay before an unreported object is resent.
    resend_min: Duration = seconds(5),
        live units::duration(resend_min, Duration::from_millis(100)..=hours(1));
    /// Maximum delay before an unreported or rejected object is resent.
    resend_max: Duration = minutes(5),
        live units::duration(resend_max, Duration::from_millis(100)..=hours(24));
    /// Minimum size of compressed frames; `None` for no compression.
    compress_above: Option<usize> = Some(1 << 10), live units::size_or_never(compress_above, 0..=16 * MIB);
    /// Whether `metadata.managedFields` is removed from sent objects.
    strip_managed_fields: bool = true, live units::flag(strip_managed_fields);
    /// Whether the annotation in which `kubectl apply` keeps a second copy of the object is removed
    /// from sent objects.
    strip_last_applied: bool = true, live units::flag(strip_last_applied);
    /// Share of a node's objects above which deletions after a change of incarnation need a
    /// confirmation.
    mass_delete_share: f64 = 0.1, live units::share(mass_delete_share);
    /// Number of deletions that never need a confirmation.
    mass_delete_min: usize = 10, live units::count(mass_delete_min, 0..=1_000_000);
    /// Maximum number of objects that a node may report without having been sent them.
    max_unknown: usize = 20_000, live units::count(max_unknown, 0..=10_000_000);
}

section! {
    /// Join service, and the certificates of nodes.
    #[derive(Eq)]
    pub struct Enrollment in "enrollment";
    /// Address of the join service; `None` to disable it.
    listen: Option<SocketAddr> = Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 10_002))),
        fixed units::address_or_off(listen);
    /// The signer of a fleet in a cluster: this process has no keys, and relays devices to the
    /// signer's join service. `None` if it signs itself.
    signer: Option<JoinUrl> = None, fixed units::optional(signer, SIGNER, str::parse);
    /// Directory of keys and certificates; never empty after loading.
    directory: PathBuf = PathBuf::new(), fixed units::path_or_derived(directory);
    /// Host names and addresses by which nodes reach this machine, in addition to its host name.
    names: Vec<String> = Vec::new(), fixed units::words(names, NAMES, check_host);
    /// URL of the broker given to nodes; `None` to derive it.
    broker_url: Option<BrokerUrl> = None, fixed units::optional(broker_url, BROKER_URL, BrokerUrl::parse);
    /// All addresses of the broker given to nodes, the preferred one first; empty to derive them.
    broker_urls: Vec<AdvertisedBroker> = Vec::new(), fixed units::list(broker_urls, BROKER_URLS, str::parse);
    /// Validity of nodes' certificates.
    certificate_lifetime: Duration = hours(365 * 24), live units::duration(certificate_lifetime, minutes(1)..=hours(24 * 3650));
    /// Time after its expiry in which a certificate can still be renewed.
    renewal_grace: Duration = hours(90 * 24),
        live units::duration(renewal_grace, seconds(0)..=hours(24 * 3650));
}

section! {
    /// Retention of the state of nodes.
    #[derive(Eq)]
    pub struct Nodes in "nodes";
    /// Interval of writes of renewed Leases.
    lease_flush: Duration = seconds(5),
        live units::duration(lease_flush, Duration::from_millis(100)..=minutes(1));
    /// Longest absence that a node may announce before it disconnects as planned.
    max_absence: Duration = hours(24), live units::duration(max_absence, seconds(1)..=hours(24 * 8));
    /// Time to live of an Event after its last change.
    event_ttl: Duration = hours(1), live units::duration(event_ttl, minutes(1)..=hours(24 * 365));
    /// Maximum number of stored Events of a node.
    max_events: usize = 1_000, fixed units::count(max_events, 10..=1_000_000);
    /// Events that a node may upload at once.
    event_burst: usize = 1_000, live units::count(event_burst, 10..=1_000_000);
    /// Time until a node may upload another Event, after that.
    event_refill: Duration = Duration::from_millis(200),
        live units::duration(event_refill, Duration::from_millis(1)..=minutes(10));
    /// Whether `/metrics` has gauges for each node.
    metrics_per_node: bool = true, live units::flag(metrics_per_node);
    /// Keys of labels, or prefixes of keys with a `*`, that nodes may set themselves and placement
    /// rules may use.
    trusted_labels: Vec<String> = Vec::new(),
        fixed units::words(trusted_labels, TRUSTED_LABELS, check_trusted_label);
}

section! {
    /// API for operators: socket, addresses and kubeconfig.
    #[derive(Eq)]
    pub struct Api in "api";
    /// Unix socket for the administrators of this machine.
    socket: PathBuf = "/run/edgesync-cloud/edgesync-cloud.sock".into(), fixed units::path(socket);
    /// Address of the HTTPS API; `None` to disable it.
    listen: Option<SocketAddr> = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 10_551))),
        fixed units::address_or_off(listen);
    /// Address for probes and metrics, without TLS; `None` to disable it.
    health: Option<SocketAddr> = None, fixed units::address_or_off(health);
    /// Kubeconfig for the administrators of this machine; never empty after loading.
    kubeconfig: PathBuf = PathBuf::new(), fixed units::path_or_derived(kubeconfig);
    /// Maximum size of a request body, in bytes.
    max_body: usize = 32 << 20, fixed units::size(max_body, 64 * KIB..=256 * MIB);
}

section! {
    /// Page for browsers, and its address on this machine.
    #[derive(Eq)]
    pub struct Page in "page";
    /// Whether the page is served.
    enabled: bool = true, fixed units::flag(enabled);
    /// Address of the page for browsers on this machine, without TLS; `None` to serve it at the API
    /// only.
    listen: Option<SocketAddr> = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 10_553))),
        fixed units::address_or_off(listen);
}

impl Page {
    /// Returns the address at which it is served without TLS.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.listen.filter(|_| self.enabled)
    }

    /// Permits loopback addresses only: without TLS a key could be intercepted.
    fn check(&self, review: &mut Review<'_>) {
        if let Some(address) = self.address().filter(|address| !address.ip().to_canonical().is_loopback()) {
            let message = format!(
                "page.listen = \"{address}\" must be a loopback address, because it has no TLS: other machines reach the page \
                 at api.listen, with the certificate of an operator"
            );
            review.conflict(&["page.listen"], message);
        }
    }
}

impl Sync {
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

const NAMES: &str = "a list of host names and addresses such as [\"cloud.example\", \"192.0.2.1\"]";
const SIGNER: &str = "an address such as \"https://edgesync-signer.edgesync.svc:10002\", or \"\"";
const BROKER_URLS: &str =
    "a list of broker addresses such as [\"mqtts://broker.example:8883\", \"wss://broker.example/mqtt\"]";
const BROKER_URL: &str = "a broker address such as \"mqtts://broker.example:8883\", or \"\"";

const TRUSTED_LABELS: &str = "a list of keys of labels such as [\"rack\", \"example.com/*\"]";

/// Validates the key of a label, or a prefix of keys followed by `*`.
fn check_trusted_label(text: &str) -> Result<(), String> {
    // A prefix is valid if some suffix makes it a key.
    let key = text.strip_suffix('*').map_or_else(|| text.to_owned(), |begin| format!("{begin}x"));
    name::check_label_key(&key).map_err(|problem| format!("{text:?}: {problem}"))
}

/// Validates a host name or address.
fn check_host(text: &str) -> Result<(), String> {
    if text.parse::<IpAddr>().is_ok() || name::check_subdomain(text).is_ok() {
        return Ok(());
    }
    Err(format!("{text:?} is neither a host name in lower case nor an IP address"))
}

impl Config {
    /// A signer needs a cluster, through which replicas get their certificate and the revocations.
    /// Towards an external broker a replica would need another certificate.
    fn check_signer(&self, review: &mut Review<'_>) {
        if self.enrollment.signer.is_none() {
            return;
        }
        if self.store.r#type != StoreType::Kubernetes {
            let message = "enrollment.signer requires store.type = \"kubernetes\": with a database of its own the cloud side \
                           signs itself";
            review.conflict(&["enrollment.signer", "store.type"], message.to_owned());
        }
        if self.broker.mode == BrokerMode::External {
            let message = "enrollment.signer requires broker.mode = \"embedded\": with an external broker each replica signs its \
                           own certificate for the broker";
            review.conflict(&["enrollment.signer", "broker.mode"], message.to_owned());
        }
    }

    /// Each service needs an address, and a host name is for one service at most.
    fn check_listen(&self, review: &mut Review<'_>) {
        let is_embedded = self.broker.mode == BrokerMode::Embedded;
        if is_embedded && self.broker.listen.is_none() && self.listen.serves(SharedService::Mqtt).is_none() {
            let message = "broker.listen = \"off\" leaves nodes without an address: set listen.address, with \"mqtt\" in \
                           listen.services";
            review.conflict(&["broker.listen"], message.to_owned());
        }
        if self.enrollment.signer.is_some() && self.listen.serves(SharedService::Join).is_some() {
            let message = "listen.services must not contain \"join\" with enrollment.signer: the signer ends the TLS of devices \
                           that join, so they need enrollment.listen";
            review.conflict(&["listen.services", "enrollment.signer"], message.to_owned());
        }
        let reserved: Vec<_> = self.listen.reserved().collect();
        for (number, (name, service)) in reserved.iter().enumerate() {
            let other = reserved[number + 1..].iter().find(|(other, _)| other == name);
            if let Some((_, other)) = other {
                let message =
                    format!("{name:?} is reserved for {service} and for {other}: a name is for one service");
                review.conflict(&["listen.address"], message);
            }
            if name.parse::<IpAddr>().is_ok() {
                let message =
                    format!("{name:?} is no host name: clients send names only, no addresses (SNI)");
                review.conflict(&["listen.address"], message);
            }
        }
    }

    /// Returns the namespaces in which edgesync keeps its members and its keys, if the store is a
    /// cluster. Their objects are never placed. The embedded store keeps them outside of its
    /// objects.
    #[must_use]
    pub fn reserved_namespaces(&self) -> Vec<Arc<str>> {
        match self.store.r#type {
            StoreType::Sqlite => Vec::new(),
            StoreType::Kubernetes => reserved_namespaces(&self.kubernetes.namespace).map(Arc::from).to_vec(),
        }
    }

    /// Returns the objects that may name their own nodes. In a cluster, authors of objects are not
    /// operators of devices; all authors of the embedded store are.
    #[must_use]
    pub(crate) fn naming(&self) -> Option<Naming> {
        let Kubernetes { labelled, annotated, pods, .. } = &self.kubernetes;
        (self.store.r#type == StoreType::Kubernetes).then(|| Naming {
            labelled: labelled.clone(),
            annotated: annotated.clone(),
            pods: pods.clone(),
        })
    }
}

impl Settings for Config {
    const ENV_PREFIX: &'static str = "EDGESYNC_CLOUD_";
    const ENV_OTHERS: &'static [&'static str] =
        &["EDGESYNC_CLOUD_CONFIG", "EDGESYNC_CLOUD_SERVER", "EDGESYNC_CLOUD_KUBECONFIG"];
    const RENAMED_SECTIONS: &'static [(&'static str, &'static str)] = &[("pairing", "enrollment")];

    fn bind(&mut self, keys: &mut dyn Keys) {
        let Self {
            placement,
            store,
            kubernetes,
            listen,
            broker,
            link,
            sync,
            enrollment,
            nodes,
            api,
            page,
            log,
        } = self;
        placement::bind(placement, keys);
        store.bind(keys);
        kubernetes.bind(keys);
        listen.bind(keys);
        broker.bind(keys);
        link.bind(keys);
        sync.bind(keys);
        enrollment.bind(keys);
        nodes.bind(keys);
        api.bind(keys);
        page.bind(keys);
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
        self.link.check_proxy(review);
        if self.link.connect != ConnectPlan::Always {
            let message = "link.connect: a plan is for nodes, the cloud side is always connected";
            review.conflict(&["link.connect"], message);
        }
        self.sync.check(&self.link, review);
        self.page.check(review);
        if self.enrollment.directory.as_os_str().is_empty() {
            self.enrollment.directory = self.store.path.with_file_name("pki");
            review.derived("enrollment.directory", "beside store.path");
        }
        if self.api.kubeconfig.as_os_str().is_empty() {
            self.api.kubeconfig = self.store.path.with_file_name("admin.kubeconfig");
            review.derived("api.kubeconfig", "beside store.path");
        }
        if self.kubernetes.cache.as_os_str().is_empty() {
            self.kubernetes.cache = self.store.path.with_file_name("cache.db");
            review.derived("kubernetes.cache", "beside store.path");
        }
        if self.store.r#type == StoreType::Kubernetes && !self.sync.strip_managed_fields {
            let message = "sync.strip_managed_fields = false requires store.type = \"sqlite\": metadata.managedFields \
                           is not read from a cluster";
            review.conflict(&["sync.strip_managed_fields", "store.type"], message.to_owned());
        }
        if self.store.r#type == StoreType::Kubernetes
            && self.placement.rules.iter().any(|rule| rule.rollout.is_some())
        {
            let message = "[[placement]] with rollout requires store.type = \"sqlite\": in a cluster, roll-outs are \
                           fields of Placements and ClusterPlacements, which its replicas share";
            review.conflict(&["store.type"], message);
        }
        self.check_signer(review);
        if let Some(listen) = self.broker.listen {
            self.broker.tls.check(("broker.listen", listen), "broker.tls", review);
        }
        self.check_listen(review);
        if self.broker.mode == BrokerMode::Embedded && review.is_set("link.broker") {
            review.warn("link.broker is not used: broker.mode is \"embedded\"");
        }
        let has_api = self.api.listen.is_some() || self.listen.serves(SharedService::Api).is_some();
        if self.page.enabled && self.page.listen.is_none() && !has_api {
            review.warn("page.enabled is not used: page.listen and api.listen are \"off\"");
        }
        let listens = [
            ("listen.address", self.listen.address),
            ("broker.listen", self.broker.listen.filter(|_| self.broker.mode == BrokerMode::Embedded)),
            ("api.listen", self.api.listen),
            ("api.health", self.api.health),
            ("page.listen", self.page.address()),
            ("enrollment.listen", self.enrollment.listen),
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
