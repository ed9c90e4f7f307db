//! `edgesync join`: from a token to the configuration of a running agent.

mod advice;
mod connection;
mod device_state;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::Membership;
use super::calls::{self, CallError, Credential, JoinService};
use super::files::{self, FilesError, RealDisk};
use super::renewal::{Schedule, Validity};
use super::settings;
use super::token::Token;
use edgesync_config as config;
use edgesync_config::edge::Config;
use edgesync_config::{Brokers, CloudCoreUrl, ConfigErrors, JoinUrl, LinkType};
use edgesync_runtime::systemd;
use edgesync_transport::tls::{Certificate, Client, Clock, HandshakeError, Identity, Key, TlsError, Trust};

use device_state::{DeviceState, Member};

/// Path of the service's configuration.
const USUAL_PATH: &str = "/etc/edgesync/edgesync.toml";

/// Options of the command.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// Address of the join service.
    pub cloud: JoinUrl,
    /// Token of the operator.
    pub token: Token,
    /// Address of CloudCore's WebSocket, if it is not at the default port on the join service's
    /// host.
    pub cloudcore: Option<CloudCoreUrl>,
    /// Name of the node; by default that of the token, of the configuration or of the host.
    pub node: Option<String>,
    /// Configuration file to create or edit.
    pub config: PathBuf,
    /// Whether to replace another identity.
    pub force: bool,
}

/// Reason why a device has not joined; each states a remedy, see also [`JoinError::advice`].
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// A call to the cloud failed.
    #[error(transparent)]
    Call(CallError),
    /// A certificate of the cloud is not valid by this clock.
    #[error("{problem}{}", advice::beside(*now, *cloud))]
    Clock {
        /// The certificate, with its validity.
        problem: HandshakeError,
        /// Time of this clock.
        now: Timestamp,
        /// Time of the cloud's clock, if it was sent.
        cloud: Option<Timestamp>,
    },
    /// Files cannot be read or written.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The existing configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// An identity of another cloud or of another name exists.
    #[error("already joined {cloud} as node '{node}'; hint: --force replaces that identity")]
    Joined {
        /// Address of the join service in the configuration.
        cloud: String,
        /// Name of the node.
        node: String,
    },
    /// The broker or CloudCore refuses the node.
    #[error("identity installed, but {broker} refused the node: {problem}; hint: run 'edgesync check'")]
    Broker {
        /// Address of the broker or CloudCore.
        broker: String,
        /// Reason for the refusal.
        problem: String,
    },
    /// The broker or CloudCore does not answer.
    #[error("identity installed, but {broker} does not respond: {problem}; hint: run 'edgesync check'")]
    BrokerSilent {
        /// Address of the broker or CloudCore.
        broker: String,
        /// Error of the connection.
        problem: String,
    },
    /// The agent runs, and its cloud refuses it.
    #[error("agent running, but refused by {broker}: {problem}; hint: see 'edgesync status'")]
    Agent {
        /// Address of the broker or CloudCore.
        broker: String,
        /// Message of the agent.
        problem: String,
    },
    /// The node was removed from the fleet.
    #[error(
        "identity installed, but node '{node}' was removed from the fleet; hint: on the cloud side, run \
         'edgesync-cloud node admit {node}'"
    )]
    Removed {
        /// Name of the node.
        node: String,
    },
    /// Another error, with its message.
    #[error("{0}")]
    Other(String),
}

impl From<TlsError> for JoinError {
    fn from(error: TlsError) -> Self {
        Self::Call(CallError::Local(error))
    }
}

/// Joins: fetches CA, certificate and membership, installs the files, tests one connection to the
/// broker, and writes the next steps to `out`. If the device has already joined the same cloud
/// under the same name, and its certificate is valid, it only tests the connection: running it
/// twice is safe.
///
/// # Errors
/// See [`JoinError`]. Nothing changes until all files are in place.
pub async fn run(options: &JoinOptions, out: &mut (dyn Write + Send)) -> Result<(), JoinError> {
    run_at(options, Timestamp::now, out).await
}

/// As [`run`], with another clock.
async fn run_at(
    options: &JoinOptions,
    now: fn() -> Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), JoinError> {
    let claims = options.token.claims();
    let state = DeviceState::read(&options.config, options.node.as_deref().or(claims.node.as_deref()))?;
    let node = choose_name(options.node.as_deref(), claims.node.as_deref(), &state.config.node.name)?;
    if let Some(member) = state.member.as_ref().filter(|_| !options.force)
        && is_reusable(member, options, &node, now)?
    {
        return verify_existing(&state, member, now, out).await;
    }
    let mut disk = RealDisk;
    files::probe(&mut disk, &state.root, &state.path)?;

    let service = state.service(&options.cloud)?;
    let issued = request_identity(options, &service, &node, now, out).await?;
    let route = route_of(&state, issued.membership.as_ref(), options, out)?;
    let set = files::new_set_name();
    let directory = files::install(
        &mut disk,
        &state.root,
        &set,
        &issued.ca,
        &issued.identity,
        &state.path,
        |directory| configuration(&state, &node, &route, directory, &options.cloud),
    )?;
    print(out, "identity", &directory.display().to_string());
    print(out, "configuration", &state.path.display().to_string());
    if let Err(error) = files::remove_others(&mut disk, &state.root, &directory) {
        print(out, "note", &format!("old identity not removed: {error}; the next join removes it"));
    }

    let config = config::load::<Config>(&state.named)?.config;
    let clock = Clock::of(now, [issued.ca.not_before(), issued.identity.certificate().not_before()]);
    let runs = connection::agent_runs(&config);
    if runs && config.link_type == LinkType::KubeEdge {
        // A CloudCore may close the new session together with the old one.
        print(out, "cloudcore", &format!("{}: not tested, because the agent is running", config.peer()));
    } else {
        let peer = connection::check(&config, &[issued.ca], &issued.identity, clock).await?;
        print(out, route.word(), &format!("{peer}: connected"));
    }
    if config.link_type == LinkType::KubeEdge && state.may_hold_others(&options.cloud) {
        print(out, "note", &advice::other_objects(&config.store.path));
    }
    if issued.membership.is_some_and(|membership| membership.removed) {
        return Err(JoinError::Removed { node });
    }
    print_next_steps(out, runs, &state.named, &config);
    Ok(())
}

/// Data issued by the cloud.
struct Issued {
    ca: Certificate,
    identity: Identity,
    /// None from a CloudCore.
    membership: Option<Membership>,
}

/// The node's way to its cloud.
#[derive(Debug)]
enum Route {
    /// Through an MQTT broker, at one of its addresses.
    Mqtt { broker: Brokers, prefix: String },
    /// Directly to a CloudCore.
    KubeEdge(CloudCoreUrl),
}

impl Route {
    /// Returns the peer as the first word of an output line.
    fn word(&self) -> &'static str {
        match self {
            Self::Mqtt { .. } => "broker",
            Self::KubeEdge(_) => "cloudcore",
        }
    }
}

/// Returns the way that the cloud announces, by addresses of the configuration if it has some: an
/// operator may have set that of a load balancer. Those of another cloud are replaced. Each
/// difference is reported.
fn route_of(
    state: &DeviceState,
    membership: Option<&Membership>,
    options: &JoinOptions,
    out: &mut (dyn Write + Send),
) -> Result<Route, JoinError> {
    let keeps = state.config.identity.cloud.as_ref().is_none_or(|cloud| *cloud == options.cloud);
    match membership {
        Some(membership) => {
            let broker = broker_of(membership, &options.cloud)?;
            let broker = choose(out, "link.broker", state.configured_brokers(), broker, keeps);
            // The cloud listens to its own topics only.
            let configured = state.configured("link", "prefix", |text| Ok(text.to_owned()));
            let prefix = choose(out, "link.prefix", configured, membership.prefix.clone(), false);
            Ok(Route::Mqtt { broker, prefix })
        }
        None => {
            let configured = state.configured("kubeedge", "url", CloudCoreUrl::parse);
            let usual = || CloudCoreUrl::at(&options.cloud.host);
            let keeps = keeps && options.cloudcore.is_none();
            let url = options.cloudcore.clone().unwrap_or_else(usual);
            Ok(Route::KubeEdge(choose(out, "kubeedge.url", configured, url, keeps)))
        }
    }
}

/// Chooses between the configured value of a key and that of the cloud, and reports the other one
/// if they differ.
fn choose<V: PartialEq + Display>(
    out: &mut (dyn Write + Send),
    key: &str,
    configured: Option<V>,
    cloud: V,
    keeps: bool,
) -> V {
    let Some(configured) = configured.filter(|configured| *configured != cloud) else { return cloud };
    if keeps {
        let hint = "hint: remove the key and join with --force to use that of the cloud";
        print(out, "note", &format!("{key} stays {configured}; the cloud has {cloud}; {hint}"));
        return configured;
    }
    print(out, "note", &format!("{key} was {configured}, replaced by {cloud}"));
    cloud
}

/// Requests CA, certificate and membership from the cloud; writes nothing.
async fn request_identity(
    options: &JoinOptions,
    service: &JoinService,
    node: &str,
    now: fn() -> Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<Issued, JoinError> {
    let url = &options.cloud;
    let (ca, time) = calls::fetch_ca(service, &options.token).await.map_err(JoinError::Call)?;
    print(out, "cloud", &format!("{url}, CA verified by token"));
    print(out, "node", node);
    let failed = |error| match error {
        CallError::Tls(problem @ HandshakeError::OutsideItsTime { .. }) => {
            JoinError::Clock { problem, now: now(), cloud: time }
        }
        error => JoinError::Call(error),
    };
    let trust = Trust::new(vec![ca.clone()]);
    let clock = Clock::of(now, [ca.not_before()]);
    let key = Key::generate()?;
    let request = key.node_request(node)?;
    let tls = Client::new(&trust, None, clock)?;
    let is_cloud_core = calls::is_cloud_core(service, &tls).await.map_err(failed)?;
    if options.cloudcore.is_some() && !is_cloud_core {
        return Err(JoinError::Other(format!(
            "{url} is an edgesync-cloud, which announces its broker; hint: omit --cloudcore"
        )));
    }
    let credential = Credential::Token(&options.token);
    let certificate =
        calls::fetch_certificate(service, &tls, &trust, node, &request, credential).await.map_err(failed)?;
    let identity = Identity::new("response of the join service", vec![certificate], key)?;
    let until = identity.certificate().not_after();
    print(out, "certificate", &format!("valid until {until}, renewed by the agent"));

    if is_cloud_core {
        print(out, "link", "kubeedge, because the cloud is a CloudCore");
        return Ok(Issued { ca, identity, membership: None });
    }
    let tls = Client::new(&trust, Some(&identity), clock)?;
    let membership = calls::fetch_membership(service, &tls).await.map_err(failed)?;
    let membership = membership.ok_or_else(|| {
        JoinError::Other(format!(
            "request membership from {url}: not found, although the same path required a certificate before"
        ))
    })?;
    if membership.node != node {
        return Err(JoinError::Other(format!(
            "request membership from {url}: response is for another node than '{node}'"
        )));
    }
    if let Some(warning) = membership.time.parse().ok().and_then(|cloud| advice::wrong_clock(now(), cloud)) {
        print(out, "clock", &format!("{warning}; the node can connect; hint: set the clock"));
    }
    Ok(Issued { ca, identity, membership: Some(membership) })
}

/// Chooses the name of the node.
fn choose_name(requested: Option<&str>, token: Option<&str>, configured: &str) -> Result<String, JoinError> {
    if let (Some(requested), Some(token)) = (requested, token)
        && requested != token
    {
        return Err(JoinError::Other(format!(
            "the token is for node '{token}', not for '{requested}'; hint: omit --node, or create a token with \
             'edgesync-cloud token create --node {requested}'"
        )));
    }
    let name = requested.or(token).unwrap_or(configured);
    match edgesync_object::name::check_subdomain(name) {
        Ok(()) => Ok(name.to_owned()),
        Err(problem) => Err(JoinError::Other(format!("--node {problem}"))),
    }
}

/// Returns whether the existing identity is the requested one and valid for a while.
fn is_reusable(
    member: &Member,
    options: &JoinOptions,
    node: &str,
    now: fn() -> Timestamp,
) -> Result<bool, JoinError> {
    let is_ca = |ca: &Certificate| ca.fingerprint() == options.token.ca_fingerprint();
    let same_cloud = member.cloud.as_ref() == Some(&options.cloud) && member.stored.ca.iter().any(is_ca);
    if !same_cloud || member.node != node {
        let cloud = member.cloud.as_ref().map_or("another cloud".into(), JoinUrl::to_string);
        return Err(JoinError::Joined { cloud, node: member.node.clone() });
    }
    let validity = Schedule::new(member.stored.identity.certificate(), 0.0).validity(&member.clock(now));
    Ok(matches!(validity, Validity::Good | Validity::Unknown))
}

/// Tests the connection of a device that has already joined.
async fn verify_existing(
    state: &DeviceState,
    member: &Member,
    now: fn() -> Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), JoinError> {
    let cloud = member.cloud.as_ref().map_or(String::new(), JoinUrl::to_string);
    print(out, "cloud", &format!("{cloud}, already joined"));
    print(out, "node", &member.node);
    let until = member.stored.identity.certificate().not_after();
    print(out, "certificate", &format!("valid until {until}, token not used"));
    let word = match state.config.link_type {
        LinkType::Mqtt => "broker",
        LinkType::KubeEdge => "cloudcore",
    };
    verify_membership(state, member, now).await?;
    // A second connection of one node would end the first.
    if connection::agent_runs(&state.config) {
        connection::check_agent(&state.config).await?;
        let peers: Vec<String> = state.config.peers().iter().map(ToString::to_string).collect();
        print(out, word, &format!("{}: connected by the running agent", peers.join(", ")));
        return Ok(());
    }
    let Member { stored, .. } = member;
    let peer = connection::check(&state.config, &stored.ca, &stored.identity, member.clock(now)).await?;
    print(out, word, &format!("{peer}: connected"));
    print_next_steps(out, false, &state.named, &state.config);
    Ok(())
}

/// Asks the cloud whether it still knows the device. A service that does not answer is ignored.
async fn verify_membership(
    state: &DeviceState,
    member: &Member,
    now: fn() -> Timestamp,
) -> Result<(), JoinError> {
    let Some(cloud) = &member.cloud else { return Ok(()) };
    let service = state.service(cloud)?;
    let trust = Trust::new(member.stored.ca.clone());
    let tls = Client::new(&trust, Some(&member.stored.identity), member.clock(now))?;
    match calls::fetch_membership(&service, &tls).await {
        Ok(Some(membership)) if membership.removed => Err(JoinError::Removed { node: membership.node }),
        Err(error @ CallError::Tls(HandshakeError::Refused { .. })) => Err(JoinError::Call(error)),
        _ => Ok(()),
    }
}

/// Returns the broker's addresses; the service omits a host that is its own.
fn broker_of(membership: &Membership, requested: &JoinUrl) -> Result<Brokers, JoinError> {
    let full = |address: &str| match address.split_once("://:") {
        Some((scheme, rest)) if requested.host.contains(':') => {
            format!("{scheme}://[{}]:{rest}", requested.host)
        }
        Some((scheme, rest)) => format!("{scheme}://{}:{rest}", requested.host),
        None => address.to_owned(),
    };
    let mut addresses: Vec<String> = Vec::new();
    for address in membership.brokers.iter().map(|address| full(&address.to_string())) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        addresses.push(full(&membership.broker));
    }
    Brokers::parse(addresses.iter().map(String::as_str)).map_err(|problem| {
        JoinError::Other(format!(
            "broker address from {requested}: {problem}; hint: check enrollment.broker_url there"
        ))
    })
}

/// Creates the text of the new configuration, and verifies it by parsing.
fn configuration(
    state: &DeviceState,
    node: &str,
    route: &Route,
    directory: &Path,
    cloud: &JoinUrl,
) -> Result<String, FilesError> {
    let wrong = |problem| FilesError::Settings { path: state.path.clone(), problem };
    let mut settings = vec![("node", "name", settings::string(node))];
    // A new key is inserted right after its header, so keys are set in reverse order.
    match route {
        Route::Mqtt { broker, prefix } => {
            if state.configured_brokers().as_ref() != Some(broker) {
                settings.push(("link", "broker", broker.to_toml()));
            }
            settings.push(("link", "prefix", settings::string(prefix)));
            if state.config.link_type != LinkType::Mqtt {
                settings.push(("link", "type", settings::string(LinkType::Mqtt.name())));
            }
        }
        Route::KubeEdge(url) => {
            settings.push(("link", "type", settings::string(LinkType::KubeEdge.name())));
            settings.push(("kubeedge", "url", settings::string(&url.to_string())));
        }
    }
    settings.push(("identity", "cloud", settings::string(&cloud.to_string())));
    settings.push(("identity", "directory", settings::string(&directory.display().to_string())));
    let text = settings::set_all(&state.text, &settings).map_err(wrong)?;
    let loaded = config::parse::<Config>(&state.named, &text, std::env::vars_os());
    let config = loaded.map_err(|errors| wrong(errors.to_string()))?.config;
    let mut in_force = match route {
        Route::Mqtt { broker, prefix } => vec![
            ("LINK_TYPE", config.link_type == LinkType::Mqtt),
            ("LINK_BROKER", config.link.broker == *broker),
            ("LINK_PREFIX", config.link.prefix == *prefix),
        ],
        Route::KubeEdge(url) => vec![
            ("LINK_TYPE", config.link_type == LinkType::KubeEdge),
            ("KUBEEDGE_URL", config.kubeedge.url.as_ref() == Some(url)),
        ],
    };
    in_force.extend([
        ("NODE_NAME", config.node.name == node),
        ("IDENTITY_CLOUD", config.identity.cloud.as_ref() == Some(cloud)),
        ("IDENTITY_DIRECTORY", config.identity.directory.as_deref() == Some(directory)),
    ]);
    match in_force.iter().find(|(_, holds)| !holds) {
        None => Ok(text),
        Some((variable, _)) => {
            Err(wrong(format!("environment variable EDGESYNC_{variable} has another value; hint: unset it")))
        }
    }
}

/// Writes one line of progress. Errors are ignored: the terminal may be gone.
fn print(out: &mut (dyn Write + Send), label: &str, value: &str) {
    let _ = writeln!(out, "{label:<14} {value}");
}

/// Writes the next steps, with paths that differ from the defaults. Mentions systemd only if it
/// runs and its unit uses this configuration.
fn print_next_steps(out: &mut (dyn Write + Send), runs: bool, named: &Path, config: &Config) {
    let usual = Config::default().api.socket;
    let is_usual = named == Path::new(USUAL_PATH);
    let file = if is_usual { String::new() } else { format!(" --config {}", shell_quoted(named)) };
    let socket = &config.api.socket;
    let socket = if *socket == usual { String::new() } else { format!(" --socket {}", shell_quoted(socket)) };
    let start = match (is_usual && systemd::manages(), runs) {
        (true, true) => ("systemctl restart edgesync".to_owned(), "restarts the agent with the new identity"),
        (true, false) => {
            ("systemctl enable --now edgesync".to_owned(), "starts the agent, now and at each boot")
        }
        (false, true) => (format!("edgesync run{file}"), "restart the running agent, for the new identity"),
        (false, false) => (format!("edgesync run{file}"), "starts the agent"),
    };
    let check = (format!("edgesync check{file}"), "checks the agent, with next steps for problems");
    let status = (format!("edgesync status{socket}"), "shows the health of the agent");
    let _ = writeln!(out, "\nJoined. Next:");
    for (command, why) in [start, check, status] {
        let _ = writeln!(out, "  {command:<32} # {why}");
    }
}

/// Quotes a path for a shell.
fn shell_quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-'));
    if is_plain { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}
