//! `edgesync join`: from a token to a running agent's configuration.

mod advice;
mod before;
mod connection;
#[cfg(test)]
mod tests;

use std::io::Write;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::Membership;
use super::calls::{self, CallError, Credential};
use super::files::{self, FilesError, RealDisk};
use super::renewal::{Schedule, Validity};
use super::settings;
use super::token::Token;
use edgesync_config as config;
use edgesync_config::edge::Config;
use edgesync_config::{BrokerUrl, CloudCoreUrl, ConfigErrors, JoinUrl, LinkType};
use edgesync_runtime::systemd;
use edgesync_transport::tls::{Certificate, Client, Clock, HandshakeError, Identity, Key, TlsError, Trust};

use before::{Before, Member};

/// The configuration of the service.
const USUAL_PATH: &str = "/etc/edgesync/edgesync.toml";

/// What is asked for.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// The join service.
    pub cloud: JoinUrl,
    /// The token.
    pub token: Token,
    /// Where the WebSocket of a CloudCore is, if not at its usual port where the join service is.
    pub cloudcore: Option<CloudCoreUrl>,
    /// The node's name; that of the token, of the configuration or of the host if none is given.
    pub node: Option<String>,
    /// The configuration that is written, or edited if it exists.
    pub config: PathBuf,
    /// Whether another identity is replaced.
    pub force: bool,
}

/// Why a device has not joined; each says what to do, see also [`JoinError::advice`].
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// A call to the cloud.
    #[error(transparent)]
    Call(CallError),
    /// A certificate of the cloud is not valid by the clock here.
    #[error("{problem}{}", advice::beside(*now, *cloud))]
    Clock {
        /// Which one, with its times.
        problem: HandshakeError,
        /// What the clock here shows.
        now: Timestamp,
        /// What that of the cloud showed, if it has told.
        cloud: Option<Timestamp>,
    },
    /// Files.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The configuration that exists is wrong.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// There is an identity of another cloud or another name already.
    #[error("this device has joined {cloud} as '{node}' already; --force replaces that identity")]
    Joined {
        /// The join service in the configuration.
        cloud: String,
        /// The node's name.
        node: String,
    },
    /// The broker or CloudCore does not let the node in.
    #[error(
        "the identity is in place, but {broker} does not let the node in: {problem}; run 'edgesync check'"
    )]
    Broker {
        /// The broker, or CloudCore.
        broker: String,
        /// Why not.
        problem: String,
    },
    /// Nobody answers where the broker or CloudCore is to be.
    #[error("the identity is in place, but {broker} does not answer: {problem}; run 'edgesync check'")]
    BrokerSilent {
        /// The broker.
        broker: String,
        /// What the system says.
        problem: String,
    },
    /// The agent runs, and its cloud does not let it in.
    #[error("the agent runs, but {broker} does not let it in: {problem}; see 'edgesync status'")]
    Agent {
        /// The broker, or CloudCore.
        broker: String,
        /// What the agent says.
        problem: String,
    },
    /// The node was removed from the fleet.
    #[error(
        "the identity is in place, but node '{node}' was removed from the fleet; 'edgesync-cloud node admit {node}' on the \
         cloud side takes it in again"
    )]
    Removed {
        /// The node.
        node: String,
    },
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl From<TlsError> for JoinError {
    fn from(error: TlsError) -> Self {
        Self::Call(CallError::Local(error))
    }
}

/// Joins: the CA, a key, a certificate, the membership, files, one connection to the broker, and what to do next on
/// `out`. Joined to the same cloud under the same name with a certificate that is still good, it only checks the
/// connection: running it twice is safe.
///
/// # Errors
/// See [`JoinError`]. Until the files are in place nothing has changed.
pub async fn run(options: &JoinOptions, out: &mut (dyn Write + Send)) -> Result<(), JoinError> {
    run_at(options, Timestamp::now, out).await
}

/// As [`run`], by another clock.
async fn run_at(
    options: &JoinOptions,
    now: fn() -> Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), JoinError> {
    let claims = options.token.claims();
    let before = Before::read(&options.config, options.node.as_deref().or(claims.node.as_deref()))?;
    let node = decide(options.node.as_deref(), claims.node.as_deref(), &before.config.node.name)?;
    if let Some(member) = before.member.as_ref().filter(|_| !options.force)
        && is_kept(member, options, &node, now)?
    {
        return check_again(&before, member, now, out).await;
    }
    let mut disk = RealDisk;
    files::probe(&mut disk, &before.root, &before.path)?;

    let issued = ask(options, &node, now, out).await?;
    let route = route_of(issued.membership.as_ref(), options)?;
    let set = files::new_set_name();
    let directory = files::install(
        &mut disk,
        &before.root,
        &set,
        &issued.ca,
        &issued.identity,
        &before.path,
        |directory| configuration(&before, &node, &route, directory, &options.cloud),
    )?;
    say(out, "identity", &directory.display().to_string());
    say(out, "configuration", &before.path.display().to_string());
    if let Err(error) = files::remove_others(&mut disk, &before.root, &directory) {
        say(out, "note", &format!("an old identity is left: {error}; the next join removes it"));
    }

    let config = config::load::<Config>(&before.named)?.config;
    let clock = Clock::of(now, [issued.ca.not_before(), issued.identity.certificate().not_before()]);
    let runs = connection::agent_runs(&config);
    if runs && config.link_type == LinkType::KubeEdge {
        // A CloudCore may close the new session with the old one.
        say(out, "cloudcore", &format!("{}: not tried, because the agent runs", config.peer()));
    } else {
        connection::check(&config, &[issued.ca], &issued.identity, clock).await?;
        say(out, route.word(), &format!("{}: lets the node in", config.peer()));
    }
    if config.link_type == LinkType::KubeEdge && before.may_hold_others(&options.cloud) {
        say(out, "note", &advice::other_objects(&config.store.path));
    }
    if issued.membership.is_some_and(|membership| membership.removed) {
        return Err(JoinError::Removed { node });
    }
    next_steps(out, runs, &before.named, &config);
    Ok(())
}

/// What the cloud has given.
struct Issued {
    ca: Certificate,
    identity: Identity,
    /// None of a CloudCore.
    membership: Option<Membership>,
}

/// How the node will reach its cloud.
#[derive(Debug)]
enum Route {
    /// Through a broker.
    Mqtt { broker: BrokerUrl, prefix: String },
    /// Directly.
    KubeEdge(CloudCoreUrl),
}

impl Route {
    /// The other end, as the first word of a line.
    fn word(&self) -> &'static str {
        match self {
            Self::Mqtt { .. } => "broker",
            Self::KubeEdge(_) => "cloudcore",
        }
    }
}

fn route_of(membership: Option<&Membership>, options: &JoinOptions) -> Result<Route, JoinError> {
    match membership {
        Some(membership) => {
            let broker = broker_of(membership, &options.cloud)?;
            Ok(Route::Mqtt { broker, prefix: membership.prefix.clone() })
        }
        None => {
            let usual = || CloudCoreUrl::at(&options.cloud.host);
            Ok(Route::KubeEdge(options.cloudcore.clone().unwrap_or_else(usual)))
        }
    }
}

/// Asks the cloud for everything; nothing is written.
async fn ask(
    options: &JoinOptions,
    node: &str,
    now: fn() -> Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<Issued, JoinError> {
    let url = &options.cloud;
    let (ca, time) = calls::fetch_ca(url, &options.token).await.map_err(JoinError::Call)?;
    say(out, "cloud", &format!("{url}, the CA is that of the token"));
    say(out, "node", node);
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
    let is_cloud_core = calls::is_cloud_core(url, &tls).await.map_err(failed)?;
    if options.cloudcore.is_some() && !is_cloud_core {
        return Err(JoinError::Other(format!(
            "{url} is an edgesync-cloud, which tells itself where its broker is: leave --cloudcore out"
        )));
    }
    let credential = Credential::Token(&options.token);
    let certificate =
        calls::fetch_certificate(url, &tls, &trust, node, &request, credential).await.map_err(failed)?;
    let identity = Identity::new("the answer of the join service", vec![certificate], key)?;
    let until = identity.certificate().not_after();
    say(out, "certificate", &format!("valid until {until}; the agent renews it in time"));

    if is_cloud_core {
        say(out, "link", "kubeedge, because that is a CloudCore");
        return Ok(Issued { ca, identity, membership: None });
    }
    let tls = Client::new(&trust, Some(&identity), clock)?;
    let membership = calls::fetch_membership(url, &tls).await.map_err(failed)?;
    let membership = membership.ok_or_else(|| {
        JoinError::Other(format!(
            "{url} forgets what it is: it wanted to see a certificate for a call that it has not"
        ))
    })?;
    if membership.node != node {
        return Err(JoinError::Other(format!("{url} takes this device for another node than '{node}'")));
    }
    if let Some(warning) = membership.time.parse().ok().and_then(|cloud| advice::wrong_clock(now(), cloud)) {
        say(out, "clock", &format!("{warning}; it does not keep the node from its cloud, but set it"));
    }
    Ok(Issued { ca, identity, membership: Some(membership) })
}

/// Which name the node has.
fn decide(asked: Option<&str>, token: Option<&str>, configured: &str) -> Result<String, JoinError> {
    if let (Some(asked), Some(token)) = (asked, token)
        && asked != token
    {
        return Err(JoinError::Other(format!(
            "the token is for node '{token}', not for '{asked}': leave --node out, or create a token with \
             'edgesync-cloud token create --node {asked}'"
        )));
    }
    let name = asked.or(token).unwrap_or(configured);
    match edgesync_object::name::check_subdomain(name) {
        Ok(()) => Ok(name.to_owned()),
        Err(problem) => Err(JoinError::Other(format!("--node {problem}"))),
    }
}

/// Whether the identity that exists is the one that is asked for, and good for a while.
fn is_kept(
    member: &Member,
    options: &JoinOptions,
    node: &str,
    now: fn() -> Timestamp,
) -> Result<bool, JoinError> {
    let is_ca = |ca: &Certificate| ca.fingerprint() == options.token.ca_fingerprint();
    let same_cloud = member.cloud.as_ref() == Some(&options.cloud) && member.stored.ca.iter().any(is_ca);
    if !same_cloud || member.node != node {
        let cloud = member.cloud.as_ref().map_or("a cloud".into(), JoinUrl::to_string);
        return Err(JoinError::Joined { cloud, node: member.node.clone() });
    }
    let validity = Schedule::new(member.stored.identity.certificate(), 0.0).validity(&member.clock(now));
    Ok(matches!(validity, Validity::Good | Validity::Unknown))
}

/// The second run of the same command.
async fn check_again(
    before: &Before,
    member: &Member,
    now: fn() -> Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), JoinError> {
    let cloud = member.cloud.as_ref().map_or(String::new(), JoinUrl::to_string);
    say(out, "cloud", &format!("{cloud}, which this device has joined already"));
    say(out, "node", &member.node);
    let until = member.stored.identity.certificate().not_after();
    say(out, "certificate", &format!("valid until {until}; the token was not needed"));
    let peer = before.config.peer();
    let word = match before.config.link_type {
        LinkType::Mqtt => "broker",
        LinkType::KubeEdge => "cloudcore",
    };
    still_member(member, now).await?;
    // A second connection of one node would throw out the first.
    if connection::agent_runs(&before.config) {
        connection::ask_agent(&before.config).await?;
        say(out, word, &format!("{peer}: the agent runs and has the connection; see 'edgesync status'"));
        return Ok(());
    }
    connection::check(&before.config, &member.stored.ca, &member.stored.identity, member.clock(now)).await?;
    say(out, word, &format!("{peer}: lets the node in"));
    next_steps(out, false, &before.named, &before.config);
    Ok(())
}

/// Asks the cloud whether it still knows the device. A service that does not answer says nothing against it.
async fn still_member(member: &Member, now: fn() -> Timestamp) -> Result<(), JoinError> {
    let Some(cloud) = &member.cloud else { return Ok(()) };
    let trust = Trust::new(member.stored.ca.clone());
    let tls = Client::new(&trust, Some(&member.stored.identity), member.clock(now))?;
    match calls::fetch_membership(cloud, &tls).await {
        Ok(Some(membership)) if membership.removed => Err(JoinError::Removed { node: membership.node }),
        Err(error @ CallError::Tls(HandshakeError::Refused { .. })) => Err(JoinError::Call(error)),
        _ => Ok(()),
    }
}

/// Where the broker is; the service leaves the host out where it is its own.
fn broker_of(membership: &Membership, asked: &JoinUrl) -> Result<BrokerUrl, JoinError> {
    let said = &membership.broker;
    let full = match said.split_once("://:") {
        Some((scheme, port)) if asked.host.contains(':') => format!("{scheme}://[{}]:{port}", asked.host),
        Some((scheme, port)) => format!("{scheme}://{}:{port}", asked.host),
        None => said.clone(),
    };
    BrokerUrl::parse(&full).map_err(|problem| {
        JoinError::Other(format!(
            "{asked} tells a broker that cannot be used: it {problem}; see pairing.broker_url there"
        ))
    })
}

/// The text of the new configuration, proven by reading it.
fn configuration(
    before: &Before,
    node: &str,
    route: &Route,
    directory: &Path,
    cloud: &JoinUrl,
) -> Result<String, FilesError> {
    let wrong = |problem| FilesError::Settings { path: before.path.clone(), problem };
    let mut settings = vec![("node", "name", settings::string(node))];
    // Behind its header a new key comes first.
    match route {
        Route::Mqtt { broker, prefix } => {
            settings.push(("link", "broker", settings::string(&broker.to_string())));
            settings.push(("link", "prefix", settings::string(prefix)));
            if before.config.link_type != LinkType::Mqtt {
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
    let text = settings::set_all(&before.text, &settings).map_err(wrong)?;
    let loaded = config::parse::<Config>(&before.named, &text, std::env::vars_os());
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
            Err(wrong(format!("the environment variable EDGESYNC_{variable} says something else; unset it")))
        }
    }
}

/// One line of what was done. Nobody is left to tell if the terminal is gone.
fn say(out: &mut (dyn Write + Send), what: &str, words: &str) {
    let _ = writeln!(out, "{what:<14} {words}");
}

/// What to do next, with the paths that are not the usual ones. Where systemd does not run, or its unit has another
/// configuration, nothing is said of it.
fn next_steps(out: &mut (dyn Write + Send), runs: bool, named: &Path, config: &Config) {
    let usual = Config::default().api.socket;
    let is_usual = named == Path::new(USUAL_PATH);
    let file = if is_usual { String::new() } else { format!(" --config {}", shown(named)) };
    let socket = &config.api.socket;
    let socket = if *socket == usual { String::new() } else { format!(" --socket {}", shown(socket)) };
    let start = match (is_usual && systemd::manages(), runs) {
        (true, true) => ("systemctl restart edgesync".to_owned(), "the agent takes over the new identity"),
        (true, false) => {
            ("systemctl enable --now edgesync".to_owned(), "runs the agent, now and after each start")
        }
        (false, true) => (
            format!("edgesync run{file}"),
            "after the agent that runs has ended: takes over the new identity",
        ),
        (false, false) => (format!("edgesync run{file}"), "runs the agent"),
    };
    let check = (format!("edgesync check{file}"), "looks at everything the agent needs");
    let status = (format!("edgesync status{socket}"), "shows whether all is well");
    let _ = writeln!(out, "\nJoined. Next:");
    for (command, why) in [start, check, status] {
        let _ = writeln!(out, "  {command:<32} # {why}");
    }
}

/// A path as a shell reads it.
fn shown(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-'));
    if is_plain { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}
